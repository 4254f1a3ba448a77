"""Gradient diagnostics: norms by path, in training and at a fixed model; propositions 1-2 and corollary 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.imputation import diagnose
from fedenergy.imputation.bookkeeping import BookKeeping, Clip, Opacus
from fedenergy.imputation.diagnose import Attenuation, Norms, Split, Watch, attenuation, by_time, conditioning_layers, probe
from fedenergy.imputation.dit import DiTConfig, conditioning_parameters
from fedenergy.imputation.dpsgd import DPSGD
from fedenergy.imputation.masks import points
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.schedule import alpha_bar
from fedenergy.imputation.training import train
from tests.imputation.toys import SMALL, Batch, by_hand, make

NET = DiTConfig(**SMALL, pooled=True)
WINDOWS = np.sin(np.arange(30 * 24.0)).reshape(30, 24) + np.arange(30)[:, None] / 10
COMMON = dict(steps=10, seed=3, batch=8, rate=1e-2, net=NET, masks=points(0.5))


@pytest.fixture(scope="module")
def model():
    """A net that has moved away from its zero start."""
    return train(WINDOWS, None, Objective("v"), DPSGD(sigma=1.0), **COMMON)


def flat(net, parameters=None):
    return torch.cat([p.grad.flatten() for p in (parameters or net.parameters()) if p.grad is not None])


# ---- split norms

@pytest.mark.parametrize("engine", [BookKeeping, Opacus])
@pytest.mark.parametrize("name", ["dit pooled", "dit soft bound", "dit patch 12"])
def test_oracle_the_split_is_that_of_single_backward_passes(name, engine):
    net, batch, clip = make(name), Batch(records=5), Clip(0.5)
    total, norms = by_hand(net, batch, clip)
    expected = []
    for row in range(5):
        net.zero_grad()
        batch.part([row]).losses(net).sum().backward()
        expected.append(flat(net, conditioning_parameters(net)).norm())
    net.zero_grad()
    split = Split(engine(net), conditioning_layers(net))
    sums = [torch.zeros_like(p) for p in net.parameters()]
    _, found = split.add_clipped(lambda: batch.losses(net), 5, clip, sums)
    torch.testing.assert_close(found, norms, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(split.parts[0].float(), torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat([s.flatten() for s in sums]), total, rtol=1e-3, atol=1e-5)
    split.close()
    assert not any(m._forward_hooks for m in net.modules())


def test_a_net_without_conditioning_path_has_no_such_layers():
    net = make("mlp")
    assert conditioning_layers(net) == []
    split = Split(BookKeeping(net), [])
    split.add_clipped(lambda: Batch(4).losses(net), 4, Clip(1.0), [torch.zeros_like(p) for p in net.parameters()])
    assert split.parts[0].tolist() == [0.0] * 4


# ---- in training

def test_contract_watching_changes_nothing_and_keeps_the_last_fifth(model):
    watch = Watch(last=0.2)
    again = diagnose.train_watched(watch, WINDOWS, None, Objective("v"), DPSGD(sigma=1.0), **COMMON)
    for one, two in zip(model.net.state_dict().values(), again.net.state_dict().values()):
        assert torch.equal(one, two)
    norms = watch.norms
    assert set(norms.step) <= {8, 9}
    assert len(norms.total) == sum(again.history.batches[8:])
    assert ((norms.conditioning > 0) & (norms.conditioning <= norms.total * (1 + 1e-5))).all()
    clipped = [float((norms.total[norms.step == k] > 1.0).mean()) for k in (8, 9)]
    assert clipped == pytest.approx(again.log["clipped"][8:])
    assert norms.table()["total"]["clipped"] == pytest.approx((norms.total > 1.0).mean())


def test_contract_a_resumed_run_keeps_the_same_norms(tmp_path):
    whole, parts = Watch(0.5), Watch(0.5, tmp_path / "norms.bin")
    diagnose.train_watched(whole, WINDOWS, None, Objective("v"), DPSGD(sigma=1.0), **COMMON)

    class Stop(diagnose.training.SilentProgress):
        count = 0

        def advance(self, n=1, **_):
            self.count += n
            if self.count == 7:
                raise KeyboardInterrupt

    saved = dict(checkpoint=tmp_path / "state", checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt):
        diagnose.train_watched(parts, WINDOWS, None, Objective("v"), DPSGD(sigma=1.0), **COMMON, **saved, progress=Stop())
    assert len(parts.norms.step)
    fresh = Watch(0.5, tmp_path / "norms.bin")
    diagnose.train_watched(fresh, WINDOWS, None, Objective("v"), DPSGD(sigma=1.0), **COMMON, **saved)
    for name in ("step", "total", "conditioning"):
        assert np.array_equal(getattr(fresh.norms, name), getattr(whole.norms, name))


def test_plain_training_and_bad_shares_are_refused():
    with pytest.raises(ValueError, match="single records"):
        diagnose.train_watched(Watch(), WINDOWS, None, Objective("v"), None, **COMMON)
    with pytest.raises(ValueError, match="last"):
        Watch(last=0.0)


# ---- figures

def test_golden_summary():
    """Norms 0.5, 1, 2, 4 at C = 1: half clipped; eta 1, 1, 1/2, 1/4; distortion 0, 0, 1, 3."""
    found = diagnose.summary(np.array([0.5, 1.0, 2.0, 4.0]), 1.0)
    assert found["clipped"] == 0.5
    assert found["eta"] == pytest.approx(2.75 / 4)
    assert found["eta_p50"] == pytest.approx(0.75)
    assert found["distortion"] == pytest.approx(1.0)
    assert (found["mean"], found["p50"], found["max"], found["records"]) == (1.875, 1.5, 4.0, 4.0)
    broken = diagnose.summary(np.array([np.nan, np.inf, 1.0]), 1.0)
    assert broken["clipped"] == pytest.approx(2 / 3)
    assert (broken["eta"], broken["max"]) == (pytest.approx(1 / 3), 1.0)
    assert diagnose.summary(np.array([]), 1.0) == {}


def test_golden_rest_and_bins():
    norms = Norms(np.array([0, 99, 100, 999]), np.array([5.0, 1.0, 0.5, 3.0]), np.array([3.0, 1.0, 0.5, 0.0]), 1.0)
    assert norms.rest.tolist() == [4.0, 0.0, 0.0, 3.0]
    rows = by_time(norms)
    assert [(row["low"], row["high"], row["records"]) for row in rows] == [(0, 99, 2), (100, 199, 1), (900, 999, 1)]
    assert rows[0]["cond_p50"] == 2.0


# ---- source A: propositions and the controlled diagnostic

def one_gradient(net, batch, weight):
    batch.objective = Objective("v", weight=weight)
    net.zero_grad()
    batch.losses(net).sum().backward()
    return flat(net).double().clone()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), weight=st.floats(1e-4, 1.0), bound=st.floats(1e-3, 10.0))
def test_property_propositions_and_corollary(seed, weight, bound):
    """Proposition 1: ||lambda g|| = lambda ||g||; 2: clipped iff ||g|| > C / lambda; corollary 1: cut by (||g|| - C)+."""
    net, batch = make("dit", seed % 3), Batch(records=1, seed=seed)
    plain, weighted = one_gradient(net, batch, "none"), one_gradient(net, batch, f"static({weight!r})")
    norm = float(plain.norm())
    assert float(weighted.norm()) == pytest.approx(weight * norm, rel=1e-4)
    edge = float(diagnose.effective_bound(bound, weight))
    assert edge >= bound                  # so a weighted record is never clipped where the unweighted one is not
    if abs(weight * norm / bound - 1) > 1e-3:
        assert (float(weighted.norm()) > bound) == (norm > edge)
        assert (float(Clip(bound)(weighted.norm().float()[None])[0]) < 1) == (norm > edge)
    cut = weighted - weighted * float(Clip(bound)(weighted.norm()[None])[0])
    assert float(cut.norm()) == pytest.approx(float(diagnose.distortion(weighted.norm(), bound)), rel=1e-4,
                                              abs=1e-5 * float(weighted.norm()))
    assert float(diagnose.severity(weighted.norm(), bound)) == pytest.approx(
        float(Clip(bound)(weighted.norm()[None])[0]), rel=1e-5)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_golden_attenuation_is_one_minus_alpha_bar(model, schedule):
    model = diagnose.replace(model, setup=diagnose.replace(model.setup, schedule=schedule))
    found = attenuation(model, WINDOWS, 20, masks=points(0.5))
    a = alpha_bar(schedule).numpy()
    assert len(found.t) == 600
    np.testing.assert_allclose(found.each, 1 - a[found.t], rtol=0, atol=2e-6)
    for row in found.table():
        inside = np.sort(1 - a[found.t[(found.t >= row["low"]) & (found.t <= row["high"])]])
        assert row["median"] == pytest.approx(np.median(inside), abs=2e-6)
    if schedule == "cosine":
        first, last = found.table()[0], found.table()[-1]
        assert first["median"] == pytest.approx(0.008, abs=0.003)
        assert last["median"] == pytest.approx(0.994, abs=0.003)


def test_golden_ratio_of_medians_is_another_number():
    """Norms 1, 10 with weights .5, .1: attenuations .5, .9, median .7; medians 5.5 and .75: 1 - .75 / 5.5."""
    found = Attenuation(np.array([0, 50]), np.array([1.0, 10.0]), np.array([0.5, 1.0]))
    (row,) = found.table()
    assert row["median"] == pytest.approx(0.7)
    assert row["ratio_of_medians"] == pytest.approx(1 - 0.75 / 5.5)
    assert np.isnan(Attenuation(np.array([0]), np.array([0.0]), np.array([0.0])).each[0])


def test_contract_probes_compare_the_same_draws(model):
    one, two = probe(model, WINDOWS[:5], [0, 500, 999]), probe(model, WINDOWS[:5], [0, 500, 999], at_once=4)
    np.testing.assert_allclose(one.total, two.total, rtol=1e-4)
    np.testing.assert_allclose(one.conditioning, two.conditioning, rtol=1e-4)
    assert one.step.tolist() == [0, 500, 999] * 5
    assert not np.allclose(one.total, probe(model, WINDOWS[:5], [0, 500, 999], seed=1).total)
    with pytest.raises(ValueError, match="999"):
        probe(model, WINDOWS[:2], [1000])
