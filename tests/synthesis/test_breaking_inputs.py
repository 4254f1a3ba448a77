"""Inputs at the edge that no other test of this folder has: sigma of 0, one cell of identical days, one cluster of one."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy.synthesis import shuffle
from fedenergy.synthesis.components import Recipe
from fedenergy.synthesis.generate import synthesise
from fedenergy.synthesis.judge_privacy import dcr_gower, dcr_nndr


@pytest.fixture(scope="module")
def same_days() -> np.ndarray:
    """(6, 336) homes of which each uses the same energy every day, at other hours: all day-to-day differences are 0."""
    rng = np.random.default_rng(0)
    days = np.repeat(rng.integers(1, 64, (6, 1, 24)) / 64, 14, axis=1)   # exact in binary, in any order of addition
    return rng.permuted(days, axis=2).reshape(6, 336)


@pytest.mark.parametrize("method", ["within_date", "free", "same_daytype", "rejection", "swaps"])
def test_sigma_of_zero(same_days, method):
    """No step between different homes' days is allowed then; the result says how often it could not hold."""
    fake = synthesise(same_days, seed=0, clusters=1, sizes=1, variant="raw_shuffle", shuffle=method, max_tries=3)
    (cell,) = fake.cells
    assert cell.sigma_kwh == 0
    assert cell.real_violations == 0 <= cell.violations <= 1
    assert cell.feasible          # each home's own days, as they were
    assert np.isfinite(fake.values).all()
    np.testing.assert_allclose(np.sort(fake.values, axis=None), np.sort(same_days, axis=None))


def test_identical_homes_and_days_have_no_violation(same_days):
    same = np.repeat(same_days[:1], 5, axis=0)
    totals = same.reshape(5, 14, 24).sum(axis=2)
    rule = shuffle.constraint(totals)
    assert (rule.sigma, rule.real, rule.feasible) == (0.0, 0.0, True)
    for method in ("within_date", "free", "swaps"):
        places = shuffle.assign(totals, rule.sigma, method, np.random.default_rng(0))
        assert shuffle.violations(totals.ravel()[places], rule.sigma) == 0


@pytest.mark.parametrize("residual", ["gev_ar", "empirical"])
def test_trap_a_record_without_a_residual_would_be_passed_on(same_days, residual):
    """Days that are all alike, or alike but for a straight trend: the seasonal part and the trend are the whole record."""
    twin = same_days.copy()
    twin[2] = np.tile(twin[2, :24], 14)
    with pytest.raises(ValueError, match="household home-000003: all its days are the same"):
        synthesise(twin, seed=0, clusters=1)
    assert list(synthesise(twin, seed=0, clusters=1, on_bad="drop").excluded) == ["home-000003"]
    twin[2] = np.expm1(np.log1p(twin[2]) + np.linspace(0, 1, 336))
    with pytest.raises(ValueError, match="household home-000003: nothing is left beside"):
        synthesise(twin, seed=0, clusters=1, recipe=Recipe(residual=residual))


def test_constant_and_duplicate_columns_in_distances():
    real = np.array([[1.0, 5.0, 2.0], [1.0, 5.0, 3.0], [1.0, 5.0, 3.0]])
    distance, ratio = dcr_nndr(np.array([[1.0, 5.0, 3.0], [1.0, 5.0, 2.5]]), real)
    np.testing.assert_allclose(distance, [0, 0.5])
    np.testing.assert_allclose(ratio, [1, 1])              # two equal references hide each other
    np.testing.assert_allclose(dcr_gower(np.array([[1.0, 6.0, 2.0]]), real), [1 / 3])
