"""LocalDP returns one home's release as it is."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy.testing import check_strategy
from strategies.local_dp import LocalDP, one_release
from tests.strategies.zone import aggregated, draws, replies, zone

SUMMARIES = zone(6)


def test_the_release_of_the_first_home_comes_back_unchanged_whatever_the_order():
    values = draws(SUMMARIES, np.full(6, 1.05), 1)[0]
    messages = replies(values, np.full(6, 1.05))
    assert np.array_equal(aggregated(LocalDP(), messages), values[0])
    assert np.array_equal(aggregated(LocalDP(), messages[::-1]), values[0])
    assert np.array_equal(aggregated(LocalDP("home-003"), messages), values[3])


def test_signs_flip_as_the_law_says():
    """S_k = 15 of b = 2 50 / 1.05: a sign is wrong in exp(-S_k / b) / 2 of the draws."""
    found = draws(SUMMARIES, np.full(6, 1.05), 4_000)[:, 5, 0]
    expected = np.exp(-SUMMARIES[5, 0] / (2 * 50 / 1.05)) / 2
    assert (found < 0).mean() == pytest.approx(expected, abs=0.03)


def test_it_keeps_the_contract_and_refuses_unknown_homes():
    assert check_strategy(LocalDP) == []
    with pytest.raises(ValueError, match="not among the 2 homes"):
        one_release(np.ones((2, 3)), ("a", "b"), "c")
    with pytest.raises(ValueError, match="not the name"):
        LocalDP(3)
