"""Filling: the sampler, what it keeps and reads, and the way a researcher types it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from fedenergy import imputation as imp
from fedenergy.imputation.base import Linear
from fedenergy.imputation.model import Model, Setup
from fedenergy.imputation.schedule import alpha_bar
from fedenergy.imputation.task import Scale
from fedenergy.privacy import accounting

NET = imp.DiTConfig(24, 1, patch=4, width=16, depth=1, heads=2)


class Knows(torch.nn.Module):
    """A perfect network for windows that are all `level` (in [0, 1] units), whatever the target."""

    def __init__(self, target, level):
        super().__init__()
        self.target, self.level, self.weight = target, level, torch.nn.Parameter(torch.zeros(1))

    def forward(self, x_t, t, observed, mask, extra=None):
        a = alpha_bar("cosine")[t].float().view(-1, 1, 1)
        x0 = torch.full_like(x_t, self.level)
        noise = (x_t - a.sqrt() * x0) / (1 - a).sqrt()
        return {"x0": x0, "eps": noise, "v": a.sqrt() * noise - (1 - a).sqrt() * x0}[self.target]


def model_of(net, target, base=None, scale=(0.0, 10.0)):
    return Model(net, Setup(NET, imp.Objective(target), Scale.given(scale, 1)), base,
                 accounting.state(accounting.History(), 0.5, 1.0), accounting.History(), {})


@pytest.fixture(scope="module")
def trained():
    rng = np.random.default_rng(0)
    windows = imp.Windows(rng.random((30, 24)) * 4)
    return imp.train(windows, None, imp.Objective("v"), None, steps=3, seed=1, batch=8, net=NET, limits=(0, 4)), windows


@pytest.mark.parametrize("target", ["eps", "v", "x0"])
@pytest.mark.parametrize("clip_x0", [True, False])
def test_contract_a_perfect_network_fills_perfectly(target, clip_x0):
    windows = imp.Windows(np.full((3, 24), 3.0))
    filled = imp.fill(model_of(Knows(target, 0.3), target), windows, imp.points(0.5), samples=4, steps=10, clip_x0=clip_x0)
    tolerance = 0.05 if target == "eps" and not clip_x0 else 1e-3        # x0 is noise / 5e-5 at the first step
    np.testing.assert_allclose(filled.median, 3.0, atol=tolerance)
    np.testing.assert_allclose(filled.mean, 3.0, atol=tolerance)


def test_contract_clipping_x0_tames_a_wrong_eps_network():
    """An eps network that answers 0: unclipped, the last step's 20,291 turns it into coin flips between the limits."""
    windows, net = imp.Windows(np.full((6, 24), 5.0)), Knows("eps", 0.5)
    net.forward = lambda x_t, *_: torch.zeros_like(x_t)
    loose = imp.fill(model_of(net, "eps"), windows, imp.points(0.5), samples=1, steps=10, clip_x0=False)
    gaps = loose.median[~loose.observed]
    assert np.mean((gaps < 0.01) | (gaps > 9.99)) > 0.95
    late = imp.fill(model_of(net, "eps"), windows, imp.points(0.5), samples=1, steps=10, clip_x0=False, start_t=300)
    assert np.mean((late.median < 0.01) | (late.median > 9.99)) < 0.8


def test_contract_a_new_residual_model_is_its_base():
    rng = np.random.default_rng(0)
    windows = imp.Windows(rng.random((5, 24)) * 10)
    net = imp.DiT(imp.DiTConfig(24, 1, patch=4, width=16, depth=1, heads=2, extra=1))
    setup = Setup(net.config, imp.Objective("x0"), Scale.given((0, 10), 1))
    history = accounting.History()
    model = Model(net, setup, Linear(), accounting.state(history, 0.5, 1.0), history, {})
    mask = imp.outage(0.4, seed=2)
    filled = imp.fill(model, windows, mask, samples=3, steps=5)
    np.testing.assert_allclose(filled.median, imp.fill_with("linear", windows, mask.observed(5, 24)), atol=1e-5)


def test_contract_observed_values_stay_and_hidden_ones_are_never_read(trained):
    model, windows = trained
    mask = imp.blocks(0.5, seed=3)
    filled = imp.fill(model, windows, mask, samples=5, steps=4)
    assert np.array_equal(filled.observed, mask.observed(30, 24))
    for values in (filled.median, filled.mean, filled.quantiles[0.05], filled.quantiles[0.95]):
        assert np.array_equal(values[filled.observed], windows.values[filled.observed])
        assert ((values >= 0) & (values <= 4)).all()
    assert (filled.quantiles[0.05] <= filled.median).all()
    assert (filled.median <= filled.quantiles[0.95]).all()
    other = imp.Windows(np.where(filled.observed, windows.values, 3.9))
    assert np.array_equal(imp.fill(model, other, mask, samples=5, steps=4).median, filled.median)
    assert filled.errors("mean")["mse"] > 0
    with pytest.raises(ValueError, match="point"):
        filled.errors("mode")


def test_contract_windows_are_filled_one_by_one(trained):
    model, windows = trained
    mask = imp.points(0.5).observed(30, 24)
    whole = imp.fill(model, windows, mask, samples=40, steps=3)
    few = imp.fill(model, windows.take([0, 1]), mask[:2], samples=40, steps=3)
    np.testing.assert_allclose(few.median, whole.median[:2], atol=1e-4)
    assert not np.allclose(imp.fill(model, windows, mask, samples=40, steps=3, seed=1).median, whole.median)


def test_contract_real_gaps_are_filled_without_a_mask(trained):
    model, windows = trained
    values = windows.values.copy()
    values[:, 5:9] = np.nan
    filled = imp.fill(model, values, samples=2, steps=3)
    assert np.isfinite(filled.median).all()
    assert np.array_equal(~filled.observed, np.isnan(values))


@pytest.mark.parametrize(("call", "match"), [
    (dict(samples=0), "samples"), (dict(steps=0), "sampling steps"), (dict(start_t=1000), "start_t")])
def test_nonsense_is_refused(trained, call, match):
    model, windows = trained
    with pytest.raises(ValueError, match=match):
        imp.fill(model, windows, imp.points(0.5), **call)
    with pytest.raises(ValueError, match="cut them"):
        imp.fill(model, windows.values[:, :12], imp.points(0.5))


def test_smoke_what_a_researcher_types():
    rng = np.random.default_rng(0)
    train, valid, test = imp.split(np.sin(np.arange(1500) / 4) + 0.1 * rng.standard_normal(1500), 24)
    model = imp.train(train, valid, imp.Objective("v", weight="alpha_bar"), imp.DPSGD(clip=1.0, epsilon=10, delta=1e-5),
                      steps=3, seed=42, batch=8, net=NET)
    filled = imp.fill(model, test, mask=imp.outage(0.5, seed=0), samples=3, steps=5)
    assert filled.median.shape == test.values.shape
    assert 9.9 < model.privacy.epsilon <= 10
    assert imp.__all__ == sorted(imp.__all__)
    assert all(getattr(imp, name).__doc__ for name in imp.__all__)


def test_importing_the_package_loads_no_torch():
    code = ("import sys; from fedenergy import imputation; import fedenergy.privacy.accounting; "
            "assert 'torch' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
