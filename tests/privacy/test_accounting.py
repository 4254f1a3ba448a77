"""What DP-SGD costs: known answers, cross-checks, closed forms, refusals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedenergy.privacy import accounting as acc

DELTA = 1e-5
SOURCE = {"ETTh1": (127, 1834), "ETTm1": (508, 170), "Appliances": (143, 1484), "Household": (15_132, 2.0)}
# noise multipliers for a true epsilon of 10 / 8 / 6 in 100,000 steps of batch 32
SIGMAS = {127: (39.9, 48.0, 61.2), 508: (10.0, 12.0, 15.3), 143: (35.5, 42.6, 54.3), 15_132: (0.67, 0.72, 0.81)}


@pytest.mark.parametrize("name", SOURCE)
def test_golden_what_the_sources_settings_cost(name):
    windows, expected = SOURCE[name]
    assert acc.epsilon(1.5, 32 / windows, 100_000, DELTA) == pytest.approx(expected, rel=6e-3)


@pytest.mark.parametrize(("windows", "expected"), [(127, 1868), (508, 177), (143, 1510), (15_132, 2.2)])
def test_golden_by_rdp(windows, expected):
    assert acc.epsilon(1.5, 32 / windows, 100_000, DELTA, method="rdp") == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("windows", "epsilon", "sigma"), [(508, 10, 10.0)])
def test_golden_sigma_of_a_true_epsilon(windows, epsilon, sigma):
    found = acc.calibrate_sigma(epsilon, DELTA, 32 / windows, 100_000)
    assert found == pytest.approx(sigma, rel=0.01)
    assert acc.epsilon(found, 32 / windows, 100_000, DELTA) <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize("windows", SIGMAS)
def test_golden_sigma_table(windows):
    for epsilon, sigma in zip((10, 8, 6), SIGMAS[windows]):
        assert acc.calibrate_sigma(epsilon, DELTA, 32 / windows, 100_000) == pytest.approx(sigma, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("windows", "steps"), [(127, (104, 69, 40)), (508, (1739, 1188, 717)), (143, (132, 88, 51))])
def test_golden_steps_that_fit_at_sigma_1_5(windows, steps):
    for epsilon, fits in zip((10, 8, 6), steps):
        near = [acc.epsilon(1.5, 32 / windows, round(fits * f), DELTA) for f in (0.97, 1.03)]
        assert near[0] < epsilon < near[1]


def test_oracle_one_full_batch_step_is_the_gaussian_mechanism():
    """Balle and Wang 2018: delta(eps) = Phi(1 / 2s - eps s) - e^eps Phi(-1 / 2s - eps s)."""
    for sigma in (0.7, 1.0, 3.0):
        epsilon = acc.epsilon(sigma, 1.0, 1, DELTA)
        for e, low in ((epsilon, True), (epsilon * 0.995, False)):
            delta = norm.cdf(0.5 / sigma - e * sigma) - math.exp(e) * norm.cdf(-0.5 / sigma - e * sigma)
            assert (delta <= DELTA) == low
    many = acc.epsilon(10.0, 1.0, 100, DELTA)                   # 100 steps at 10 sigma are one step at sigma
    assert many == pytest.approx(acc.epsilon(1.0, 1.0, 1, DELTA), rel=5e-3)


def test_oracle_a_finer_discretisation_agrees():
    for sigma, q, steps in ((1.5, 256 / 12_195, 500), (1.0, 0.01, 1000), (39.9, 32 / 127, 100_000)):
        part = (acc.Steps(sigma, q, steps),)
        fine = acc._compose(part, "add/remove", 1, 1e-4).get_epsilon_for_delta(DELTA)
        found = acc.epsilon(sigma, q, steps, DELTA)
        assert fine * (1 - 1e-3) <= found <= fine * 1.004


@settings(max_examples=6, deadline=None, derandomize=True)
@given(sigma=st.floats(0.6, 8), q=st.floats(0.03, 1.0), steps=st.integers(1, 300))
def test_contract_epsilon_is_finite_monotone_and_below_rdp(sigma, q, steps):
    epsilon = acc.epsilon(sigma, q, steps, DELTA)
    assert 0 <= epsilon < math.inf
    assert epsilon <= acc.epsilon(sigma, q, steps, DELTA, method="rdp") * 1.005 + 1e-3
    assert acc.epsilon(sigma * 1.2, q, steps, DELTA) <= epsilon * 1.003 + 1e-6
    assert acc.epsilon(sigma, q, steps + 10, DELTA) >= epsilon * 0.997 - 1e-6
    assert acc.epsilon(sigma, q, steps, DELTA * 10) <= epsilon * 1.003 + 1e-6


def test_contract_settings_without_privacy_still_get_their_number():
    costs = [acc.epsilon(sigma, 0.144, 20_000, DELTA) for sigma in (0.2, 0.05)]
    assert 1e4 < costs[0] < 1e5 < costs[1] < 5e6


@pytest.mark.parametrize("call", [
    lambda: acc.epsilon(0.0, 0.1, 10, DELTA), lambda: acc.epsilon(-1.0, 0.1, 10, DELTA),
    lambda: acc.epsilon(math.nan, 0.1, 10, DELTA), lambda: acc.epsilon(math.inf, 0.1, 10, DELTA),
    lambda: acc.epsilon(1.0, 0.0, 10, DELTA), lambda: acc.epsilon(1.0, 1.5, 10, DELTA),
    lambda: acc.epsilon(1.0, math.nan, 10, DELTA), lambda: acc.epsilon(1.0, 0.1, 0, DELTA),
    lambda: acc.epsilon(1.0, 0.1, 2.5, DELTA), lambda: acc.epsilon(1.0, 0.1, True, DELTA),
    lambda: acc.epsilon(1.0, 0.1, 10, 0.0), lambda: acc.epsilon(1.0, 0.1, 10, 1.0),
    lambda: acc.epsilon(1.0, 0.1, 10, 2.0), lambda: acc.epsilon(1.0, 0.1, 10, math.nan),
    lambda: acc.epsilon("1", 0.1, 10, DELTA), lambda: acc.epsilon(1.0, 0.1, 10, DELTA, method="prv"),
    lambda: acc.epsilon(1.0, 0.1, 10, DELTA, relation="swap"), lambda: acc.epsilon(1.0, 0.1, 10, DELTA, windows=0),
    lambda: acc.epsilon(1.0, 0.1, 10, DELTA, windows=2, relation="replace-one"),
    lambda: acc.epsilon(1.0, 0.1, 10, DELTA, windows=2, method="rdp"),
    lambda: acc.calibrate_sigma(0.0, DELTA, 0.1, 10), lambda: acc.calibrate_sigma(math.nan, DELTA, 0.1, 10),
    lambda: acc.calibrate_sigma(1.0, 2.0, 0.1, 10), lambda: acc.calibrate_sigma(1.0, DELTA, 0.0, 10),
    lambda: acc.group(1.0, DELTA, 0)])
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError):
        call()


def test_contract_calibration_is_tight_and_within_budget():
    for epsilon, q, steps, relation in ((2.0, 0.1, 50, "replace-one"), (0.3, 1.0, 20, "add/remove"),
                                        (60.0, 0.2, 20, "add/remove")):
        sigma = acc.calibrate_sigma(epsilon, DELTA, q, steps, relation=relation)
        assert acc.epsilon(sigma, q, steps, DELTA, relation=relation) <= epsilon
        assert acc.epsilon(sigma / 1.01, q, steps, DELTA, relation=relation) > epsilon


def test_contract_replace_one_by_pld_is_below_the_conversion():
    """2 eps at delta (1 + e^eps): the direct figure is no larger at that delta."""
    for sigma, q, steps in ((1.0, 0.05, 100), (2.0, 0.2, 200)):
        one = acc.epsilon(sigma, q, steps, 1e-7)
        doubled, delta = acc.to_replace_one(one, 1e-7)
        assert (doubled, delta) == (2 * one, pytest.approx((1 + math.exp(one)) * 1e-7))
        direct = acc.epsilon(sigma, q, steps, delta, relation="replace-one")
        assert acc.epsilon(sigma, q, steps, delta) < direct <= doubled


def test_golden_group_privacy():
    assert acc.group(0.5, 1e-6, 1) == (0.5, 1e-6)
    assert acc.group(0.5, 1e-6, 3) == (1.5, pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0))))
    assert acc.group(20.0, 1e-5, 50) == (1000.0, 1.0)


def test_contract_a_household_of_k_windows_costs_more_than_k_times_less_than_the_group_bound():
    sigma, q, steps = 2.0, 0.05, 200
    one = acc.epsilon(sigma, q, steps, DELTA)
    costs = [acc.epsilon(sigma, q, steps, DELTA, windows=k) for k in (2, 4)]
    assert one < costs[0] < costs[1]
    for k, cost in zip((2, 4), costs):
        small = DELTA
        while acc.group(acc.epsilon(sigma, q, steps, small), small, k)[1] > DELTA:
            small /= 10
        assert cost <= k * acc.epsilon(sigma, q, steps, small)


def test_oracle_all_windows_in_every_batch_is_k_times_the_sensitivity():
    assert acc.epsilon(3.0, 1.0, 4, DELTA, windows=3) == pytest.approx(acc.epsilon(1.0, 1.0, 4, DELTA), rel=0.01)


def test_contract_a_history_is_what_ran():
    history = acc.History()
    assert history.epsilon(DELTA) == 0.0
    for batch in (3, 0, 2):
        history.add(1.0, 0.1, batch)
    for batch in (5, 1):
        history.add(2.0, 0.1, batch)
    assert history.parts == [acc.Steps(1.0, 0.1, 3), acc.Steps(2.0, 0.1, 2)]
    assert (history.steps, history.empty) == (5, 1)
    assert acc.epsilon(1.0, 0.1, 3, DELTA) < history.epsilon(DELTA) < acc.epsilon(1.0, 0.1, 5, DELTA)
    assert acc.History.from_json(history.as_json()) == history
    with pytest.raises(ValueError, match="corrupt"):
        acc.History.from_json({**history.as_json(), "batches": [1]})


def test_contract_statements_say_unit_relation_and_household():
    history = acc.History([acc.Steps(1.5, 0.1, 20)], [3] * 20)
    said = acc.state(history, DELTA, 1.0, household_windows=3, noise="seeded noise: not private")
    assert said.epsilon == history.epsilon(DELTA)
    assert said.household > said.epsilon
    for part in ("per window (add/remove, PLD", "replace-one", "household of 3 windows", "sigma 1.5", "not private"):
        assert part in str(said)
    assert "not known" in str(acc.state(history, DELTA, 1.0))
    assert math.isinf(acc.state(acc.History(), DELTA, 1.0).epsilon)
    assert acc.state(history, DELTA, 1.0, household_windows=1).household == said.epsilon


def test_oracle_all_windows_of_a_home_in_every_batch_are_one_gaussian():
    """q = 1: k windows are a shift of k."""
    assert acc.epsilon(6.0, 1.0, 1, DELTA, windows=3) == pytest.approx(acc.epsilon(2.0, 1.0, 1, DELTA), rel=5e-3)
