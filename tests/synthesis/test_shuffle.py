from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fedenergy.synthesis import shuffle


@pytest.fixture(scope="module")
def totals(homes):
    """(20, 31) day totals of alike homes."""
    energy = homes.profiles.sum(axis=2)
    return energy[np.argsort(energy.mean(axis=1))][20:40]


def weekend():
    return np.arange(31) % 7 >= 5


@pytest.mark.parametrize("method", shuffle.METHODS)
def test_contract_every_day_used_once(totals, method):
    rule = shuffle.constraint(totals)
    places = [shuffle.assign(totals, rule.sigma, method, np.random.default_rng(3), weekend=weekend(), max_tries=5)
              for _ in range(2)]
    np.testing.assert_array_equal(places[0], places[1])
    assert sorted(places[0].ravel().tolist()) == list(range(totals.size))


def test_contract_dates_and_day_types_kept(totals):
    rule = shuffle.constraint(totals)
    rng = np.random.default_rng(0)
    within = shuffle.assign(totals, rule.sigma, "within_date", rng)
    assert (within % 31 == np.arange(31)).all()
    typed = shuffle.assign(totals, rule.sigma, "same_daytype", rng, weekend=weekend())
    assert (weekend()[typed % 31] == weekend()).all()


def test_trap_violations_by_method(totals):
    """Rejection hardly helps; swaps and within-date matching stay below the real homes' own rate."""
    rule = shuffle.constraint(totals)
    rate = {method: shuffle.violations(totals.ravel()[shuffle.assign(totals, rule.sigma, method, np.random.default_rng(1),
                                                                     weekend=weekend())], rule.sigma)
            for method in shuffle.METHODS}
    assert rate["within_date"] < rule.real / 2
    assert rate["swaps"] < rule.real / 2
    assert rule.real < 0.9 * rate["rejection"] < rate["free"]


def test_within_date_is_optimal_for_one_step():
    """Two dates, five homes: no matching has fewer violations (all 120 tried)."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        totals = rng.random((5, 2))
        found = totals.ravel()[shuffle.assign(totals, 0.2, "within_date", rng)]
        least = min(shuffle.violations(np.stack([totals[:, 0], totals[list(order), 1]], axis=1), 0.2)
                    for order in permutations(range(5)))
        assert shuffle.violations(found, 0.2) == least


def test_within_date_moves_on_to_another_home(totals):
    rule = shuffle.constraint(totals)
    places = shuffle.assign(totals, rule.sigma, "within_date", np.random.default_rng(0)) // 31
    assert (np.diff(places, axis=1) == 0).mean() < 0.1


def test_segments_of_days_stay_together(totals):
    rule, rng = shuffle.constraint(totals), np.random.default_rng(0)
    weeks = shuffle.assign(totals, rule.sigma, "within_date", rng, unit_days=7)
    inside = np.arange(1, 31)[np.arange(1, 31) % 7 != 0]
    assert (weeks[:, inside] == weeks[:, inside - 1] + 1).all()
    assert (weeks % 31 == np.arange(31)).all()
    free = shuffle.assign(totals[:, :28], rule.sigma, "free", rng, unit_days=4).reshape(-1, 4)
    assert (free == free[:, :1] + np.arange(4)).all()
    assert sorted(free[:, 0].tolist()) == list(range(0, 20 * 28, 4))
    for days, method, unit in ((31, "free", 7), (31, "swaps", 2), (31, "within_date", 40)):
        with pytest.raises(ValueError, match="unit_days"):
            shuffle.assign(totals[:, :days], rule.sigma, method, rng, unit_days=unit)


def test_large_cells_are_matched_in_blocks():
    totals = np.random.default_rng(0).random((300, 3))
    places = shuffle.assign(totals, 0.1, "within_date", np.random.default_rng(0))
    assert sorted(places.ravel().tolist()) == list(range(900))
    assert (places % 3 == np.arange(3)).all()


def test_oracle_feasibility_by_brute_force():
    """Every deal of 2 x 3 days tried: feasible() says exactly when one has no violation."""
    rng, seen = np.random.default_rng(0), set()
    orders = np.array(list(permutations(range(6))))
    for _ in range(150):
        totals = rng.integers(0, 12, (2, 3)).astype(float)
        sigma = float(rng.integers(0, 5))
        dealt = totals.ravel()[orders].reshape(-1, 2, 3)
        exists = bool((np.abs(np.diff(dealt, axis=2)) <= sigma).all(axis=(1, 2)).any())
        assert shuffle.feasible(totals, sigma) == exists
        seen.add(exists)
    assert seen == {True, False}


def test_swaps_keep_places_and_totals_together(totals):
    rule = shuffle.constraint(totals)
    before = np.random.default_rng(9).permutation(totals.size).reshape(totals.shape)
    after = before.copy()
    shuffle._swap(after, totals.ravel(), rule.sigma, np.random.default_rng(0), 20)
    fewer, more = (shuffle.violations(totals.ravel()[places], rule.sigma) for places in (after, before))
    assert fewer < 0.2 * more


def test_trap_identical_homes_have_sigma_zero():
    totals = np.full((4, 7), 3.0)
    rule = shuffle.constraint(totals)
    assert (rule.sigma, rule.real, rule.feasible) == (0.0, 0.0, True)
    for method in shuffle.METHODS:
        places = shuffle.assign(totals, 0.0, method, np.random.default_rng(0), weekend=np.arange(7) > 4)
        assert shuffle.violations(totals.ravel()[places], 0.0) == 0


def test_breaking_inputs(totals):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="its own record back"):
        shuffle.assign(totals[:1], 1.0, "within_date", rng)
    with pytest.raises(ValueError, match="within_date, free"):
        shuffle.assign(totals, 1.0, "random", rng)
    with pytest.raises(ValueError, match="weekend"):
        shuffle.assign(totals, 1.0, "same_daytype", rng)
    with pytest.raises(ValueError, match="max_tries"):
        shuffle.assign(totals, 1.0, "rejection", rng, max_tries=0)
