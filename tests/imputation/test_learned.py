"""Learned baselines: every class keeps the rules of DP-SGD, is reached by name, filled with and stored like the DiT.

That engines agree, that a record's gradient is its own and that no clipped one exceeds the bound is tested over these
classes too, by toys.NETS in test_bookkeeping and test_dpsgd.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedenergy import imputation as imp
from fedenergy.imputation.learned import NETS, REGRESSORS, network, objective_for, regresses, shape_from_json, shape_of
from fedenergy.imputation.learned_nets import amplitude, neighbours, normed
from fedenergy.privacy import accounting
from tests.imputation.test_training import TRAIN, VALID, KillAt, Killed, trainer, weights
from tests.imputation.toys import learned, make

PRIVATE = imp.DPSGD(clip=1.0, sigma=1.0)


def run(name, steps=4, privacy=PRIVATE, objective=None, **more):
    options = dict(steps=steps, seed=7, batch=8, net=learned(name), limits=(0.0, 4.0), rate=1e-3) | more
    return imp.train(TRAIN, VALID, objective, privacy, **options)


def inputs(channels=1, rows=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, o, base = (torch.rand(rows, 24, channels, generator=g) for _ in range(3))
    m = (torch.rand(rows, 24, channels, generator=g) < 0.5).float()
    return x, torch.randint(0, 1000, (rows,), generator=g), o * m, m, base


@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NETS)
def test_contract_linear_layers_only_and_rows_do_not_mix(name, channels, extra):
    torch.manual_seed(0)
    net = network(learned(name, channels=channels, extra=channels * extra))
    owned = {id(p) for layer in net.modules() if isinstance(layer, nn.Linear) for p in layer.parameters()}
    assert owned == {id(p) for p in net.parameters()}
    assert not list(net.buffers())
    assert all(p.requires_grad for p in net.parameters())
    nn.init.normal_(net.out.weight)
    given = inputs(channels)[:5 if extra else 4]
    out = net(*given)
    assert out.shape == (3, 24, channels)
    alone = torch.cat([net(*(x[k:k + 1] for x in given)) for k in range(3)])
    torch.testing.assert_close(out, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_contract_the_start_is_the_window_mean_or_the_base(name):
    x, t, o, m, base = inputs()
    mean = o.sum((1, 2)) / m.sum((1, 2))
    out = network(learned(name))(x, t, o, m)
    wanted = mean.view(3, 1, 1).expand_as(out) if name in REGRESSORS else torch.zeros_like(out)
    torch.testing.assert_close(out, wanted)
    assert (network(learned(name, extra=1))(x, t, o, m, base) == 0).all()         # the residual of the base is nothing


@pytest.mark.parametrize("name", NETS)
def test_contract_what_a_net_reads(name):
    """Regressors ignore x_t and t; a denoiser reads both, x_t at hidden steps only; all read o, m."""
    net, (x, t, o, m, _) = make(name), inputs()
    out = net(x, t, o, m)

    def gap(*changed):
        return float((net(*changed) - out).detach().abs().max())

    reads = name not in REGRESSORS
    assert (gap(x + (1 - m), t, o, m) > 1e-3) == reads
    assert (gap(x, (t + 300) % 1000, o, m) > 1e-3) == reads
    assert gap(x + m, t, o, m) < 1e-6
    flat = m * torch.linspace(0, 1, 24).view(1, -1, 1)
    assert gap(x, t, o + flat, m) > 1e-3
    assert gap(x, t, o * m.roll(1, 1), m * m.roll(1, 1)) > 1e-3


@pytest.mark.parametrize("name", NETS)
def test_contract_k_draws_stay_in_a_record(name):
    """Other company and other data elsewhere leave a record's loss, averaged over its K draws, as it is."""
    def losses(values):
        made = trainer(values, imp.Objective("eps" if name == "timedit" else "x0", draws=3), net=learned(name))
        torch.manual_seed(0)
        nn.init.normal_(made.net.out.weight)
        return made.losses_of(made.windows, np.arange(6), np.random.default_rng(0))(np.arange(6))().detach()

    other = TRAIN.values.copy()
    other[1:] = other[1:][::-1].copy()
    first, second = losses(TRAIN.values), losses(other)
    torch.testing.assert_close(first[0], second[0], rtol=1e-6, atol=0)
    assert (first[1:] - second[1:]).abs().min() > 0


@pytest.mark.parametrize("name", NETS)
def test_contract_trained_by_the_same_engine_with_the_same_statement(name):
    model = run(name)
    theirs = run(name, privacy=imp.DPSGD(clip=1.0, sigma=1.0, engine="opacus"))
    torch.testing.assert_close(weights(model), weights(theirs), rtol=1e-5, atol=2e-5)
    assert model.privacy.epsilon == accounting.epsilon(1.0, 8 / 40, 4, 1e-5)
    assert model.history.parts == [accounting.Steps(1.0, 8 / 40, 4)]
    assert model.setup.objective.target == ("eps" if name == "timedit" else "x0")
    assert math.isinf(run(name, privacy=None).privacy.epsilon)
    sparse = run(name, steps=6, batch=1)
    assert sparse.privacy.empty_batches == sparse.history.batches.count(0) > 0
    assert sparse.privacy.steps == 6
    assert weights(sparse).isfinite().all()


@pytest.mark.parametrize("name", NETS)
def test_oracle_engines_agree_on_several_channels_draws_and_a_base(name):
    """A channel-independent net has D rows per record inside, K draws more: both engines clip records, not rows."""
    windows = imp.Windows(np.random.default_rng(3).random((20, 24, 3)))
    target = "eps" if name == "timedit" else "x0"
    models = [imp.train(windows, None, imp.Objective(target, draws=2), imp.DPSGD(clip=0.05, sigma=1.0, engine=engine),
                        steps=3, seed=2, batch=6, net=learned(name, channels=3), limits=(0, 1), rate=1e-3,
                        base="linear" if target == "x0" else "none") for engine in ("bookkeeping", "opacus")]
    torch.testing.assert_close(weights(models[0]), weights(models[1]), rtol=1e-5, atol=2e-5)
    assert max(models[0].log["clipped"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_smoke_default_size_two_steps(name):
    windows = imp.Windows(np.random.default_rng(0).random((40, 96)))
    model = imp.train(windows, None, None, PRIVATE, steps=2, seed=1, batch=8, net=name, limits=(0, 1))
    assert np.isfinite(imp.fill(model, windows.values[:2], imp.outage(0.3), samples=2, steps=2).median).all()


@pytest.mark.parametrize("name", NETS)
def test_contract_saved_and_resumed(tmp_path, name):
    whole = run(name)
    with pytest.raises(Killed):
        run(name, checkpoint=tmp_path / "c", checkpoint_every=2, progress=KillAt(3))
    assert torch.equal(weights(whole), weights(run(name, checkpoint=tmp_path / "c", checkpoint_every=2)))
    again = imp.Model.load(whole.save(tmp_path / "m", lab=True))
    assert (again.setup, again.privacy, again.history) == (whole.setup, whole.privacy, whole.history)
    filled = [imp.fill(m, VALID, imp.points(0.5), samples=2, steps=3) for m in (whole, again)]
    assert np.array_equal(filled[0].median, filled[1].median)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("base", ["none", "linear"])
def test_contract_fill(name, base):
    if base == "linear" and name == "timedit":
        with pytest.raises(ValueError, match="needs target"):
            run(name, base=base)
        return
    model = run(name, base=base)
    filled = imp.fill(model, VALID, imp.points(0.5), samples=3, steps=3)
    assert np.isfinite(filled.median).all()
    assert (filled.median[filled.observed] == VALID.values[filled.observed]).all()
    spread = np.ptp(np.stack([*filled.quantiles.values(), filled.mean]), axis=0).max()
    assert (spread < 1e-12) == regresses(model.setup.net)
    assert filled.median.min() >= 0.0
    assert filled.median.max() <= 4.0
    if regresses(model.setup.net):                         # one pass: neither the sampler nor its seed matters
        other = imp.fill(model, VALID, filled.observed, seed=9)
        assert np.array_equal(other.median, filled.median)


@pytest.mark.parametrize("name", REGRESSORS)
def test_statistics_regressors_learn(name):
    """Plain training beats the window mean, from which a regressor starts."""
    model = run(name, steps=150, privacy=None, rate=3e-3, batch=20)
    found = imp.fill(model, VALID, imp.points(0.3)).errors()["mse"]
    start = imp.fill(run(name, steps=1, privacy=None, rate=1e-9), VALID, imp.points(0.3)).errors()["mse"]
    assert found < 0.7 * start


def test_contract_nets_are_reached_by_name():
    windows = imp.Windows(TRAIN.values, steps_per_day=48)
    assert shape_of(None, windows) == shape_of("dit", windows) == imp.DiTConfig(24, 1)
    for name in NETS:
        shape = shape_of(name, windows)
        assert (shape.name, shape.length, shape.channels) == (name, 24, 1)
        assert shape_from_json(shape.as_json()) == shape
        assert shape_from_json(replace(shape, extra=1).as_json()) == replace(shape, extra=1)
    assert shape_of("timesnet", windows).periods == (24, 12)                # half a day, a quarter of it
    model = imp.train(TRAIN, None, None, PRIVATE, steps=1, seed=1, batch=8, net="itransformer", limits=(0, 4))
    assert model.setup.net == imp.LearnedConfig("itransformer", 24, 1)


def test_golden_neighbours_and_amplitude():
    series = torch.arange(6.0).view(1, 6, 1)                                # folded at 3: [[0, 1, 2], [3, 4, 5]]
    found = neighbours(series, 3)
    assert found[0, 4].tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0]              # around the 4: the row above, its own, none
    assert found[0, 0].tolist() == [0, 0, 0, 0, 0, 1, 0, 3, 4]
    wave = torch.cos(2 * math.pi * torch.arange(24) / 12).view(1, 24, 1)
    assert float(amplitude(wave, 12)) == pytest.approx(0.5, abs=1e-4)       # mean of cos^2
    assert float(amplitude(wave, 24)) == pytest.approx(0.0, abs=1e-4)


def test_golden_normalisation_reads_observed_values_only():
    observed, mask = torch.tensor([1.0, 3.0, 99.0]).view(1, 3, 1), torch.tensor([1.0, 1.0, 0.0]).view(1, 3, 1)
    x, shift, spread = normed(observed, mask, None)
    assert float(shift) == 2.0
    assert float(spread) == pytest.approx(1.0001**0.5)                      # variance 1, floor 1e-4
    assert x[0, :, 0, 0].tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-3)
    empty = normed(observed, torch.zeros_like(mask), None)
    assert all(part.isfinite().all() for part in empty)


@pytest.mark.parametrize(("make_it", "match"), [
    (lambda: imp.LearnedConfig("patchtsst"), "patchtst, itransformer"), (lambda: run("patchtst", net="gpt"), "unknown"),
    (lambda: imp.LearnedConfig("patchtst", width=30), "multiple of heads"),
    (lambda: imp.LearnedConfig("timesnet", 24, periods=(48,)), "between 2 and length"),
    (lambda: imp.LearnedConfig("timedit", 24, depth=-1), "depth"),
    (lambda: imp.LearnedConfig("timedit", 24, 3, extra=2), "extra"),
    (lambda: objective_for(learned("patchtst"), imp.Objective("v")), "one pass"),
    (lambda: objective_for(learned("timesnet"), imp.Objective("x0", "alpha_bar")), "one pass")])
def test_mistakes_are_named(make_it, match):
    with pytest.raises(ValueError, match=match):
        make_it()
