"""Weighted noise: the sensitivity of the weighted ball is exact, weights of 1 are Laplace, the source's leaks."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.privacy.mechanisms import Laplace, SimulationNoise
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.weighted import AttributionLaplace, WeightedLaplace, ball_weights, quantise

EPSILON = 1_000_000
weights = st.lists(st.integers(1, 4096).map(lambda m: m * 2.0**-10), min_size=2, max_size=6)


def source(home: str = "h1", seed: int = 1):
    return SimulationNoise(seed).source(home, "q")


# the sound form

def test_weights_of_one_are_laplace_byte_for_byte():
    summary = np.array([3.0, -41.0, 0.1, 20.0])
    plain = Laplace(50.0).release(summary, source(), EPSILON)
    assert WeightedLaplace(50.0, (1,) * 4).release(summary, source(), EPSILON).tobytes() == plain.tobytes()


@settings(deadline=None, max_examples=200)
@given(weights, st.data())
def test_any_two_records_are_within_the_sensitivity(w, data):
    """Oracle: exact rationals. Privacy loss of the worst output = sum |z_k - z'_k| / b <= epsilon."""
    mechanism = WeightedLaplace(8.0, tuple(w))
    numbers = st.lists(st.floats(-1e6, 1e6), min_size=len(w), max_size=len(w))
    z, other = (mechanism.encode(data.draw(numbers)) for _ in range(2))
    distance = int(np.abs(z - other).sum())
    assert distance <= mechanism.grid_sensitivity() == 2 * mechanism.grid.bound
    assert Fraction(distance) / mechanism.scale(EPSILON) <= Fraction(EPSILON, 10**6)
    decoded = np.abs(mechanism.decode(z) - mechanism.decode(other))
    assert math.fsum(decoded / np.array(w)) <= mechanism.sensitivity()


def test_the_sensitivity_is_reached():
    """S = +-w_k C e_k: 2 K grid steps apart in coordinate k, whatever its weight."""
    mechanism = WeightedLaplace(8.0, (0.5, 1.0, 4.0))
    for k, weight in enumerate(mechanism.weights):
        far = np.zeros(3)
        far[k] = 8.0 * weight
        assert np.abs(mechanism.encode(far) - mechanism.encode(-far)).sum() == mechanism.grid_sensitivity()
        assert np.abs(mechanism.decode(mechanism.encode(far))).sum() == 8.0 * weight


def test_scale_per_coordinate():
    """b_k = w_k 2 C / epsilon: 0.5 * 100 / 2 = 25 and 3 * 100 / 2 = 150."""
    assert WeightedLaplace(50.0, (0.5, 3.0)).scale_units(2_000_000) == (25.0, 150.0)


def test_noise_has_its_scale_in_every_coordinate():
    """E|Laplace(b)| = b; 4,000 draws: standard error b / sqrt(4000) = 1.6 %, tested at 4 of them."""
    mechanism = WeightedLaplace(8.0, (0.25, 1.0, 4.0))
    noise = np.array([mechanism.release(np.zeros(3), source(f"h{i}"), EPSILON) for i in range(4_000)])
    ratio = np.abs(noise).mean(axis=0) / np.array(mechanism.scale_units(EPSILON))
    assert np.abs(ratio - 1).max() < 0.064


def test_a_release_lies_on_its_grid_and_sums_decode():
    mechanism = WeightedLaplace(8.0, (0.75, 2.0))
    released = mechanism.release(np.array([1.1, 2.2]), source(), EPSILON)
    steps = released / (np.array(mechanism.weights) * mechanism.grid.step)
    assert (steps == np.rint(steps)).all()
    z = [mechanism.encode(np.array(s)) for s in ([1.0, 2.0], [3.0, -1.0])]
    assert (mechanism.decode(z[0] + z[1]) == mechanism.decode(z[0]) + mechanism.decode(z[1])).all()


def test_noise_free_stays_inside():
    mechanism = WeightedLaplace(50.0, (2.0, 1.0))
    values = [4.0, 1.0]
    assert (mechanism.release(NoiseFree(values), source(), EPSILON)
            == mechanism.release(values, source(), EPSILON)).all()
    assert (mechanism.plain(NoiseFree([400.0, 1.0]))[1] == [400.0, 1.0]).all()


@pytest.mark.parametrize("make", [
    lambda: WeightedLaplace(50.0, ()), lambda: WeightedLaplace(50.0, (0.0, 1.0)),
    lambda: WeightedLaplace(50.0, (0.3,)), lambda: WeightedLaplace(50.0, (float("nan"),)),
    lambda: WeightedLaplace(50.0, (2048.0,)), lambda: WeightedLaplace(0.0, (1.0,)),
    lambda: WeightedLaplace(50.0, (1.0, 1.0)).encode([1.0]), lambda: WeightedLaplace(50.0, (1.0,)).encode([math.nan]),
    lambda: ball_weights([]), lambda: ball_weights([0.0]), lambda: ball_weights([-1.0, 2.0]),
    lambda: ball_weights([math.inf]), lambda: ball_weights([1.0], 2.0),
    lambda: AttributionLaplace(50.0, preference=(0.0,)), lambda: AttributionLaplace(50.0, floor=0.0),
    lambda: AttributionLaplace(50.0, need=(1.0,)).shares([1.0, 2.0])])
def test_bad_input_is_refused(make):
    with pytest.raises(ValueError):
        make()


# weights from a public profile

def test_golden_weights():
    """q = (.64, .36): sqrt q = (.8, .6), sum 1.4: w = (1.12, .84), sum 1.96 instead of 2; quantised to 1/1024."""
    w = ball_weights([64.0, 36.0])
    assert w == (quantise(1.12), quantise(0.84))
    assert ball_weights([5.0] * 7) == (1.0,) * 7
    assert ball_weights([64.0, 36.0], 0.0) == (1.0, 1.0)


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=8), st.floats(0, 1))
def test_the_profile_fills_the_ball_and_one_half_is_best(profile, power):
    q = np.array(profile) / sum(profile)
    w = np.array(ball_weights(profile, power))
    assert (q / w).sum() == pytest.approx(1, abs=0.02)
    best = np.array(ball_weights(profile, 0.5)).sum()
    assert best <= w.sum() + 0.02
    assert best == pytest.approx(np.sqrt(q).sum() ** 2, abs=0.01)
    assert (np.array(ball_weights(profile, 1 / 3)) ** 2).sum() <= (w**2).sum() + 0.05


def test_what_weights_gain():
    """Seven appliances, one dominant: mean absolute noise (sum sqrt q)^2 / d of the plain one."""
    profile = [55.0, 15.0, 10.0, 8.0, 6.0, 4.0, 2.0]
    q = np.array(profile) / 100
    gain = sum(ball_weights(profile)) / 7
    assert gain == pytest.approx(np.sqrt(q).sum() ** 2 / 7, abs=2e-3)
    assert gain < 0.82


# the source's form

def test_equal_attributions_are_laplace_in_scale():
    mechanism = AttributionLaplace(50.0)
    shares = mechanism.shares([5.0, -5.0, 5.0, 5.0])
    assert shares.tolist() == [0.25] * 4
    assert mechanism.epsilons_micro(shares, EPSILON) == [EPSILON] * 4
    assert mechanism.cost_if_public_micro(shares, EPSILON) == EPSILON


def test_golden_attribution():
    """|S| = (6, 2), floor .1: shares .9 (.75, .25) + .05 = (.725, .275); epsilon_k = 2 eps share = (1.45, .55)."""
    mechanism = AttributionLaplace(50.0)
    shares = mechanism.shares([6.0, -2.0])
    assert shares.tolist() == pytest.approx([0.725, 0.275])
    parts = mechanism.epsilons_micro(shares, EPSILON)
    assert parts == pytest.approx([1_450_000, 550_000], abs=2)
    assert mechanism.cost_if_public_micro(shares, EPSILON) > EPSILON
    tilted = AttributionLaplace(50.0, need=(1.0, 3.0)).shares([6.0, -2.0])
    assert tilted.tolist() == pytest.approx([0.5, 0.5])


def test_all_zero_is_split_evenly():
    assert AttributionLaplace(50.0).shares([0.0, 0.0]).tolist() == [0.5, 0.5]


def log_loss(mechanism: AttributionLaplace, one, other, output) -> float:
    """log of P(output | one) / P(output | other), continuous Laplace with the same scales."""
    total = 0.0
    for sign, s in ((1, one), (-1, other)):
        shares = mechanism.shares(s)
        for k, part in enumerate(mechanism.epsilons_micro(shares, EPSILON)):
            b = mechanism.laplace.scale_units(part)
            total += sign * (-math.log(2 * b) - abs(output[k] - s[k]) / b)
    return total


def test_the_sources_form_exceeds_the_epsilon_that_it_states():
    """Two records whose outputs differ by more than the epsilon = 1 granted; the weighted form never does so."""
    mechanism = AttributionLaplace(50.0)
    one, other = np.array([50.0, 0.0]), np.array([0.0, 50.0])
    grid = [np.array(point) for point in itertools.product((-200.0, 0.0, 50.0, 2_000.0), repeat=2)]
    worst = max(log_loss(mechanism, one, other, point) for point in grid)
    assert worst > 2.0
    assert mechanism.leaks is True
    assert not hasattr(WeightedLaplace, "leaks")


def test_the_source_releases_are_noised_and_repeatable():
    mechanism = AttributionLaplace(50.0)
    first = mechanism.release(NoiseFree([6.0, -2.0]), source(), EPSILON)
    assert (first == mechanism.release([6.0, -2.0], source(), EPSILON)).all()
    assert (np.remainder(first, mechanism.grid.step) == 0).all()
    assert not (first == [6.0, -2.0]).any()
