"""One cautious home at .16 among 49 at 6.73 (the spec: cosine .906 -> .364 with local noise, .994 with one noise)."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy import metrics
from strategies.drop_cautious import drop_cautious
from strategies.inverse_variance import inverse_variance
from strategies.zonal_median import zonal_median
from strategies.zonal_sum import zonal_sum
from tests.strategies.zone import LAPLACE, draws, one_noise, zone

TIMES, HOMES, ASKED, CAUTIOUS = 2_000, 50, 6.73, 0.16


def cosine(estimates: np.ndarray) -> float:
    truth = zone(HOMES).sum(axis=0)
    return float(np.mean([metrics.cosine(one, truth) for one in estimates]))


def test_local_noise():
    equal, mixed = np.full(HOMES, ASKED), np.full(HOMES, ASKED)
    mixed[0] = CAUTIOUS
    summaries = zone(HOMES)
    alike, one = draws(summaries, equal, TIMES), draws(summaries, mixed, TIMES)
    assert cosine(alike.sum(axis=1)) == pytest.approx(0.906, abs=0.02)
    assert cosine(np.array([zonal_sum(values) for values in one])) == pytest.approx(0.33, abs=0.04)
    for estimate in (lambda values: inverse_variance(values, mixed), lambda values: drop_cautious(values, mixed, 0.5),
                     zonal_median):
        assert cosine(np.array([estimate(values) for values in one])) > 0.88


def test_one_noise_with_a_clip_of_its_own_for_the_cautious_home():
    """C_i = eps_i b / 2: the cautious home is clipped to .16 / 6.73 C, and the noise stays that of 6.73."""
    summaries = zone(HOMES)
    bound = LAPLACE.grid.bound_for(160_000, 6_730_000)
    summaries[0] = LAPLACE.grid.decode(LAPLACE.grid.encode(summaries[0], bound))
    assert 2 * bound / (LAPLACE.scale(6_730_000)) <= CAUTIOUS
    found = cosine(one_noise(summaries.sum(axis=0), ASKED, TIMES))
    assert found > 0.994
    even = metrics.eps0(LAPLACE.sensitivity(), 7, 1, float(np.linalg.norm(zone(HOMES).sum(axis=0))))
    assert found == pytest.approx(metrics.expected_cosine(ASKED, even), abs=0.002)
