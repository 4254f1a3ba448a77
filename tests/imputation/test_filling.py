"""The interval around what fills a series: of a dp_gp's law, and of that law around what a net makes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedenergy.imputation import DiTConfig, Objective, packaged
from fedenergy.imputation.dp_gp import fit
from fedenergy.imputation.filling import fill_series, law_under, limit_of, says_interval
from fedenergy.imputation.packaged import Longer
from fedenergy.imputation.training import train

SLOTS = 24


@pytest.fixture(scope="module")
def windows():
    return packaged.simulated_windows(6, 28, 60, seed=3)


@pytest.fixture(scope="module")
def gp(windows):
    return fit(windows, math.inf)


def net_over(gp, windows, **more):
    return train(windows, None, Objective("x0"), None, seed=1, batch=8, limits=(gp.low, gp.cap), residual_scale=0.1,
                 net=DiTConfig(windows.length, 1, patch=4, width=16, depth=1, heads=2), base=gp, **{"steps": 1, "rate": 0.0}
                 | more)


def series(windows, hidden=0.3):
    values = windows.values[:12, :, 0].ravel()
    seen = np.random.default_rng(5).random(len(values)) > hidden
    return values, np.where(seen, values, np.nan), np.arange(len(values)) % SLOTS


def test_oracle_a_net_that_corrects_nothing_has_the_interval_of_its_base(windows, gp):
    """Its output is zero before training: point and interval are the dp_gp's."""
    _, gappy, clock = series(windows)
    law = fill_series(gp, gappy, clock)
    found = fill_series(net_over(gp, windows), gappy, clock, samples=2)
    for name in ("values", "low", "high"):
        ours, theirs = getattr(found, name)[found.filled], getattr(law, name)[found.filled]
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_net_does_not_lose_its_base_s_coverage(windows, gp):
    """Its own samples lie close together: a 90 % interval of them held one truth in six."""
    truth, gappy, clock = series(windows)
    model = net_over(gp, windows, steps=40, rate=1e-3)
    found = fill_series(model, gappy, clock, samples=4)
    at = found.filled
    covered = np.mean((truth[at] >= found.low[at]) & (truth[at] <= found.high[at]))
    assert 0.8 < covered < 0.99
    assert (found.low[at] <= found.values[at]).all()
    assert (found.values[at] <= found.high[at]).all()
    assert found.low[at].min() >= 0.0
    assert np.nanmax(found.high) <= gp.cap


def test_what_is_said_of_intervals_and_limits(windows, gp):
    model = net_over(gp, windows)
    assert law_under(model) is gp
    longer = type("Net", (), {"base": Longer(gp), "setup": model.setup})()
    assert law_under(longer) is gp
    bare = train(windows, None, Objective("x0"), None, steps=1, seed=1, batch=8, limits=(0.0, 4.0),
                 net=DiTConfig(windows.length, 1, patch=4, width=16, depth=1, heads=2))
    assert law_under(bare) is None
    assert says_interval(gp) == "the model's law for that step"
    assert "moved to the net's value" in says_interval(model)
    assert says_interval(bare) == "the net's samples"
    assert (limit_of(gp), limit_of(model), limit_of(bare)) == (pytest.approx(6.0), pytest.approx(6.0), 4.0)
