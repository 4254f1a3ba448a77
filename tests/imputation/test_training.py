"""Training: reproducible, resumable bit for bit, honest about its cost, and stored without pickle."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from fedenergy import imputation as imp
from fedenergy.imputation import task
from fedenergy.imputation.model import _digest
from fedenergy.imputation.training import _Trainer
from fedenergy.privacy import accounting
from fedenergy.progress import SilentProgress

NET = imp.DiTConfig(24, 1, patch=4, width=16, depth=1, heads=2)


def data(n=40, seed=0, length=24):
    rng = np.random.default_rng(seed)
    day = np.sin(2 * np.pi * (np.arange(length) / 24 + rng.random((n, 1))))
    return imp.Windows(2 + day * rng.random((n, 1)) + 0.1 * rng.standard_normal((n, length)))


TRAIN, VALID = data(), data(10, 1)
PRIVATE = imp.DPSGD(clip=1.0, sigma=1.0)


def run(steps=6, privacy=PRIVATE, objective=None, **more):
    options = dict(steps=steps, seed=7, batch=8, net=NET, limits=(0.0, 4.0), rate=1e-3) | more
    return imp.train(TRAIN, VALID, objective or imp.Objective("v"), privacy, **options)


def weights(model):
    return torch.cat([v.flatten() for v in model.net.state_dict().values()])


class Killed(Exception):
    pass


class KillAt(SilentProgress):
    def __init__(self, step):
        self.left = step + 1

    def advance(self, n=1, **_):
        self.left -= 1
        if self.left == 0:
            raise Killed


@pytest.mark.parametrize("privacy", [PRIVATE, None], ids=["private", "plain"])
@pytest.mark.parametrize("more", [{}, dict(ema=0.9, valid_every=2, select="best", warmup=3)], ids=["last", "best"])
def test_contract_a_resumed_run_equals_the_uninterrupted_one(tmp_path, privacy, more):
    whole = run(privacy=privacy, **more)
    options = dict(privacy=privacy, checkpoint=tmp_path, checkpoint_every=2, **more)
    for step in (3, 1):                        # killed twice: one or more steps after the last checkpoint
        with pytest.raises(Killed):
            run(progress=KillAt(step), **options)
    parts = run(**options)
    assert torch.equal(weights(whole), weights(parts))
    assert whole.history == parts.history
    assert whole.log == parts.log
    assert whole.privacy == parts.privacy
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert torch.equal(weights(run(**options)), weights(whole))            # finished: nothing more is spent


def test_contract_each_step_is_told_once_and_again_on_resuming(tmp_path):
    whole, first, again = [], [], []
    model = run(6, on_step=lambda *a: whole.append(a))
    assert whole == list(zip(model.log["step"], model.log["loss"]))
    options = dict(checkpoint=tmp_path, checkpoint_every=2)
    with pytest.raises(Killed):
        run(progress=KillAt(3), on_step=lambda *a: first.append(a), **options)
    run(on_step=lambda *a: again.append(a), **options)
    assert first == whole[:len(first)] != []
    assert again == whole


def test_contract_other_arguments_or_damage_are_refused(tmp_path):
    run(2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"other arguments \(rate\)"):
        run(2, checkpoint=tmp_path, rate=2e-3)
    arrays = next(tmp_path.glob("*.safetensors"))
    blob = bytearray(arrays.read_bytes())
    blob[len(blob) // 2] ^= 1
    arrays.write_bytes(blob)
    with pytest.raises(ValueError, match="damaged"):
        run(2, checkpoint=tmp_path)


class Level:
    """A base that fills a constant; its cost is in its note."""

    name = "level"

    def __init__(self, level, note=""):
        self.level, self.note = level, note

    def fill(self, values, observed, time_of_day):
        return np.where(observed, values, self.level)


def test_contract_a_state_goes_on_with_the_data_the_base_and_the_start_that_it_began_with(tmp_path):
    """Under another base of that name the statement would speak of a budget that the net never had."""
    def again(folder, train=TRAIN, valid=VALID, **more):
        return imp.train(train, valid, imp.Objective("x0"), PRIVATE, steps=2, seed=7, batch=8, net=NET, limits=(0.0, 4.0),
                         checkpoint=tmp_path / folder, **more)
    first = again("base", base=Level(1.0, "epsilon 50"))
    assert torch.equal(weights(again("base", base=Level(1.0, "epsilon 50"))), weights(first))
    for other in (Level(2.0, "epsilon 50"), Level(1.0, "epsilon 1")):
        with pytest.raises(ValueError, match=r"\(the content of base\)"):
            again("base", base=other)
    begun = again("data")
    one = TRAIN.values.copy()
    one[-1, 0] += 1e-6
    with pytest.raises(ValueError, match=r"\(the content of train\)"):
        again("data", imp.Windows(one))
    with pytest.raises(ValueError, match=r"\(the content of valid\)"):
        again("data", valid=data(10, 2))
    again("start", start=begun)
    with pytest.raises(ValueError, match=r"\(the content of start\)"):
        again("start", start=again("elsewhere", rate=2e-3))


def test_contract_the_seed_decides_everything():
    a, b, c = run(3), run(3), run(3, seed=8)
    assert torch.equal(weights(a), weights(b))
    assert not torch.equal(weights(a), weights(c))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    run(1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("objective", [imp.Objective("eps"), imp.Objective("x0", "alpha_bar", draws=3),
                                       imp.Objective("v", "min_snr", loss_on="all", reduction="sum")])
@pytest.mark.parametrize("base", ["none", "linear"])
def test_oracle_opacus_trains_the_same_model(objective, base):
    if base == "linear":
        objective = imp.Objective("x0", draws=objective.draws)
    ours = run(4, objective=objective, base=base)
    theirs = run(4, objective=objective, base=base, privacy=imp.DPSGD(clip=1.0, sigma=1.0, engine="opacus"),
                 valid_every=2, select="best")
    theirs_last = run(4, objective=objective, base=base, privacy=imp.DPSGD(clip=1.0, sigma=1.0, engine="opacus"))
    torch.testing.assert_close(weights(ours), weights(theirs_last), rtol=1e-5, atol=2e-5)
    assert not any(hasattr(p, "grad_sample") for p in theirs.net.parameters())


def test_contract_privacy_is_computed_from_what_ran():
    model = run(6, privacy=imp.DPSGD(clip=1.0, sigma=1.2), batch=7)
    q = 7 / 40                                  # not 1 / len(loader) = 1 / 6
    assert model.history.parts == [accounting.Steps(1.2, q, 6)]
    assert model.privacy.epsilon == accounting.epsilon(1.2, q, 6, 1e-5)
    assert model.privacy.steps == 6 == len(model.history.batches)
    assert model.privacy.epsilon_rdp > model.privacy.epsilon
    assert model.privacy.replace_one > model.privacy.epsilon
    assert model.privacy.noise == "seeded noise: not private"
    assert "household: its number of windows is not known" in str(model.privacy)
    plain = run(2, privacy=None)
    assert math.isinf(plain.privacy.epsilon)
    assert "no privacy" in str(plain.privacy)
    target = run(3, privacy=imp.DPSGD(clip=1.0, epsilon=4.0))
    assert 3.9 < target.privacy.epsilon <= 4.0
    notes = " ".join(run(2, limits=None, select="best", valid_every=1).privacy.notes)
    assert "scale is read off" in notes
    assert "validation" in notes
    assert run(2).privacy.notes == ()


def test_contract_the_household_statement_counts_its_windows():
    homes = imp.Windows(TRAIN.values, homes=tuple(f"home{k // 4}" for k in range(40)))
    model = imp.train(homes, None, imp.Objective("v"), PRIVATE, steps=2, seed=1, batch=8, net=NET, limits=(0, 4))
    assert model.privacy.household_windows == 4
    assert model.privacy.epsilon < model.privacy.household < 8 * model.privacy.epsilon


def test_contract_empty_batches_are_noise_only_steps_and_count():
    model = imp.train(TRAIN, None, imp.Objective("v"), PRIVATE, steps=12, seed=3, batch=1, net=NET, limits=(0, 4))
    assert model.privacy.empty_batches == model.history.batches.count(0) > 0
    assert model.privacy.steps == 12
    assert weights(model).isfinite().all()


@pytest.mark.parametrize(("noise", "same"), [("simulation", True), ("secure", False)])
def test_contract_what_is_drawn_for_a_record_is_secret_where_the_noise_is(noise, same, monkeypatch):
    """Known draws by place in the batch would let one record more change the gradient of every other one."""
    drawn = []
    inner = _Trainer.losses_of
    monkeypatch.setattr(_Trainer, "losses_of", lambda self, windows, rows, rng: drawn.append(
        str(rng.bit_generator.state["state"])) or inner(self, windows, rows, rng))
    for _ in range(2):
        run(2, privacy=imp.DPSGD(sigma=1.0, noise=noise))
    assert (drawn[:2] == drawn[2:]) == same
    assert drawn[0] != drawn[1]


def test_contract_an_empty_batch_is_a_step_under_every_mask():
    for masks in (imp.suffix(4), imp.blocks(0.3, apart=True), imp.runs([3]), imp.points(0.3)):
        model = run(3, privacy=imp.DPSGD(sigma=1.0), batch=1, seed=1, masks=masks)
        assert model.history.steps == 3
        assert 0 in model.history.batches


def test_contract_secure_noise_trains_unstamped():
    a, b = (run(2, privacy=imp.DPSGD(sigma=1.0, noise="secure")) for _ in range(2))
    assert a.privacy.noise == ""
    assert not torch.equal(weights(a), weights(b))


def trainer(values, objective, **more):
    arguments = dict(train=imp.Windows(values), valid=None, objective=objective, privacy=PRIVATE, steps=1, seed=1, batch=8,
                     rate=1e-3, weight_decay=0.0, warmup=0, ema=0.0, net=NET, masks=None, schedule="cosine",
                     diffusion_steps=1000, base="none", residual_scale=1.0, limits=(0, 4), start=None, train_only="",
                     select="last", valid_every=0, checkpoint=None, checkpoint_every=0, device="cpu")
    return _Trainer(arguments | more)


def test_contract_draws_are_averaged_within_a_record():
    """At the zero start the loss of eps-prediction is the mean of noise^2: 1 whatever K, with less variance."""
    losses = {}
    for draws in (1, 16):
        made = trainer(TRAIN.values, imp.Objective("eps", draws=draws))
        losses[draws] = made.losses_of(made.windows, np.arange(40), np.random.default_rng(0))(np.arange(40))().detach()
        assert losses[draws].shape == (40,)
        assert float(losses[draws].mean()) == pytest.approx(1.0, abs=0.25)
    assert losses[16].std() < 0.5 * losses[1].std()


def test_contract_other_records_do_not_move_a_record_s_loss():
    """Same draws, other company: a record's own loss is the same."""
    def losses(values):
        made = trainer(values, imp.Objective("x0", draws=2), base="linear")
        return made.losses_of(made.windows, np.arange(6), np.random.default_rng(0))(np.arange(6))().detach()

    other = TRAIN.values.copy()
    other[1:] = data(39, 5).values
    first, second = losses(TRAIN.values), losses(other)
    torch.testing.assert_close(first[0], second[0], rtol=1e-6, atol=0)
    assert (first[1:] - second[1:]).abs().min() > 0


def test_contract_unknown_readings_are_never_read():
    values = TRAIN.values.copy()
    values[:, 3:6] = np.nan
    model = imp.train(imp.Windows(values), None, imp.Objective("v", loss_on="all"), PRIVATE, steps=3, seed=1, batch=8,
                      net=NET, limits=(0, 4))
    assert weights(model).isfinite().all()
    assert all(math.isfinite(x) for x in model.log["loss"])


def test_contract_models_are_saved_without_pickle(tmp_path):
    model = run(3, objective=imp.Objective("x0"), base="linear")
    model.save(tmp_path, lab=True)
    again = imp.Model.load(tmp_path)
    assert torch.equal(weights(model), weights(again))
    assert (again.setup, again.privacy, again.history, again.log) == (model.setup, model.privacy, model.history, model.log)
    assert again.base.name == "linear"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors"]
    body = json.loads((tmp_path / "model.json").read_text())
    assert body["history"]["batches"] == model.history.batches
    model.save(tmp_path / "out")                     # what may leave holds no private statistics
    text = (tmp_path / "out" / "model.json").read_text()
    assert json.loads(text)["log"] == {}
    assert json.loads(text)["history"]["batches"] is None
    public = imp.Model.load(tmp_path / "out")
    assert public.privacy.epsilon == model.privacy.epsilon == public.history.epsilon(1e-5)
    assert public.privacy.empty_batches is None
    assert "empty" not in str(public.privacy)
    plain = run(1, privacy=None)
    plain.save(tmp_path / "plain")
    assert math.isinf(imp.Model.load(tmp_path / "plain").privacy.epsilon)
    (tmp_path / "model.json").write_text(json.dumps({**body, "arrays": "../../evil"}))
    with pytest.raises(ValueError, match="damaged"):
        imp.Model.load(tmp_path)


def rewritten(folder, change):
    """A saved model whose text was changed by somebody who can digest it again."""
    body = json.loads((folder / "model.json").read_text())
    body.pop("digest")
    change(body)
    (folder / "model.json").write_text(json.dumps({**body, "digest": _digest(body)}))


@pytest.mark.parametrize(("change", "said"), [
    (lambda body: body["setup"]["net"].update(width=4096), "not those of this network"),
    (lambda body: body["setup"].update(residual_scale=math.nan), "residual_scale"),
    (lambda body: body["setup"].update(diffusion_steps=0), "diffusion_steps"),
    (lambda body: body.pop("privacy"), "privacy"), (lambda body: body.update(setup=None), "no model that can be used")])
def test_contract_a_model_that_makes_no_sense_is_refused(tmp_path, change, said):
    run(1).save(tmp_path)
    rewritten(tmp_path, lambda body: None)
    imp.Model.load(tmp_path)
    rewritten(tmp_path, change)
    with pytest.raises(ValueError, match=said):
        imp.Model.load(tmp_path)


def test_contract_the_text_of_a_model_is_under_its_digest(tmp_path):
    model = run(1)
    model.save(tmp_path)
    path = tmp_path / "model.json"
    path.write_text(path.read_text().replace(f'"epsilon": {model.privacy.epsilon!r}', '"epsilon": 0.01'))
    with pytest.raises(ValueError, match="does not match its digest"):
        imp.Model.load(tmp_path)
    broken = run(1)
    with torch.no_grad():
        next(iter(broken.net.parameters()))[0] = math.nan
    broken.save(tmp_path)
    with pytest.raises(ValueError, match="not finite"):
        imp.Model.load(tmp_path)


def test_contract_saving_removes_nothing_of_anybody_else(tmp_path):
    for name, text in (("weights.safetensors", "x"), ("list.json", "[1]"), ("other.json", '{"a": 1}')):
        (tmp_path / name).write_text(text)
    run(1).save(tmp_path)
    run(2).save(tmp_path)
    assert {"weights.safetensors", "list.json", "other.json", "model.json"} < {path.name for path in tmp_path.iterdir()}
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    (tmp_path / "broken.json").write_text("{")
    run(3).save(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3          # which arrays it names cannot be known
    imp.Model.load(tmp_path)


def test_contract_pretraining_goes_on_from_a_model():
    first = imp.train(TRAIN, None, imp.Objective("v"), None, steps=3, seed=1, batch=8, net=NET, limits=(0, 4))
    tuned = run(3, start=first, limits=None, train_only="modulation,out")
    before, after = first.net.state_dict(), tuned.net.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("modulation" in name or "out" in name for name in moved)
    assert tuned.setup.scale == first.setup.scale
    assert "public or simulated" in str(tuned.privacy)
    assert "add it" in str(run(1, start=tuned, limits=None).privacy)


def test_contract_covariates_reach_the_net():
    net = imp.DiTConfig(24, 1, patch=4, width=16, depth=1, heads=2, pooled=True, covariates=2)
    columns = np.random.default_rng(0).normal(size=(40, 24, 2))
    models = [imp.train(imp.Windows(TRAIN.values, covariates=c), None, imp.Objective("v"), PRIVATE, steps=3, seed=1,
                        batch=8, net=net, limits=(0, 4)) for c in (columns, columns + 1)]
    assert not torch.equal(weights(models[0]), weights(models[1]))
    windows = imp.Windows(TRAIN.values[:3], covariates=columns[:3])
    assert np.isfinite(imp.fill(models[0], windows, imp.points(0.5), samples=2, steps=3).median).all()
    with pytest.raises(ValueError, match="covariates"):
        imp.fill(models[0], TRAIN, imp.points(0.5), samples=2, steps=3)


def test_contract_a_broken_record_does_not_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "REACH", math.inf)
    values = TRAIN.values.copy()
    values[3] = 1e300
    model = imp.train(imp.Windows(values), None, imp.Objective("v"), PRIVATE, steps=6, seed=1, batch=20, net=NET,
                      limits=(0, 4), checkpoint=tmp_path)
    assert None in model.log["loss"]
    assert weights(model).isfinite().all()


@pytest.mark.slow
def test_smoke_source_size_twenty_steps_and_a_resume(tmp_path):
    rng = np.random.default_rng(0)
    windows = imp.Windows(rng.random((64, 96)))
    options = dict(steps=20, seed=42, batch=32, net=imp.DiTConfig(patch=8), limits=(0, 1))
    whole = imp.train(windows, None, imp.Objective("v", weight="alpha_bar"), imp.DPSGD(sigma=1.5), **options)
    with pytest.raises(Killed):
        imp.train(windows, None, imp.Objective("v", weight="alpha_bar"), imp.DPSGD(sigma=1.5), checkpoint=tmp_path,
                  checkpoint_every=5, progress=KillAt(12), **options)
    parts = imp.train(windows, None, imp.Objective("v", weight="alpha_bar"), imp.DPSGD(sigma=1.5), checkpoint=tmp_path,
                      checkpoint_every=5, **options)
    assert torch.equal(weights(whole), weights(parts))
    hooks = imp.train(windows, None, imp.Objective("v", weight="alpha_bar"),
                      imp.DPSGD(sigma=1.5, engine="opacus"), **options | dict(steps=2))
    ours = imp.train(windows, None, imp.Objective("v", weight="alpha_bar"), imp.DPSGD(sigma=1.5),
                     **options | dict(steps=2))
    torch.testing.assert_close(weights(ours), weights(hooks), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("bad", "match"), [
    (dict(steps=0), "steps"), (dict(batch=41), "exceeds"), (dict(ema=1.0), "ema"), (dict(select="first"), "select"),
    (dict(select="best"), "valid_every"), (dict(base="linear"), "target"), (dict(base="dp_gp"), "fitted"),
    (dict(base="spline"), "unknown"), (dict(limits=(4.0, 0.0)), "limits"), (dict(train_only="nope"), "matches no"),
    (dict(schedule="sine"), "schedule"), (dict(net=imp.DiTConfig(12, 1, width=16, heads=2)), "cut them")])
def test_mistakes_are_named(bad, match):
    with pytest.raises(ValueError, match=match):
        run(**bad)


def test_statistics_plain_training_learns():
    model = run(60, privacy=None, objective=imp.Objective("x0"), rate=5e-3, batch=20)
    losses = model.log["loss"]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:5])
