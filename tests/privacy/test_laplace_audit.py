"""Audits of the Laplace release at a claimed epsilon of 1, and mutants that the same audits must turn red."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fedenergy.privacy.mechanisms import Laplace, SimulationNoise
from tests.privacy.auditing import (
    CLIP,
    DESIGNS,
    EPSILON_MICRO,
    LAW,
    K,
    Mechanism,
    audit,
    basis,
    clopper_pearson,
    epsilon_bounds,
)

RIGHT = Mechanism()


def test_clopper_pearson_against_known_values():
    assert clopper_pearson(0, 3000, 0.99) == pytest.approx((0, 1 - 0.005**(1 / 3000)))          # exact for no hit
    assert clopper_pearson(10, 10, 0.99) == pytest.approx((0.005**(1 / 10), 1))
    # 10,000 and 3,679 hits of 20,000 (.5 and exp(-1) / 2): 1 -+ 2.576 (sqrt(.5 / (.5 n)) + sqrt(.816 / (.184 n)))
    assert epsilon_bounds(10_000, 3679, 20_000) == pytest.approx((0.9434, 1.0569), abs=0.001)


def test_the_released_vector_itself_passes_the_worst_pair_audit():
    hits, trials = [], 5000
    for seed, summary in enumerate((basis(0), basis(0, -CLIP))):
        source = SimulationNoise(seed).source("h1", "q1")
        released = [LAW.release(summary, source, EPSILON_MICRO)[0] for _ in range(trials)]
        hits.append(sum(value >= K * LAW.grid.step for value in released))
    low, high = epsilon_bounds(*hits, trials)
    assert 0.80 < low <= 1                               # .887 expected at 5,000 trials a side
    assert high >= 0.95                                  # not over-noised


@pytest.mark.parametrize("design", DESIGNS)
def test_the_right_mechanism_passes_every_audit(design):
    low, _ = audit(RIGHT, design)
    assert low <= DESIGNS[design].epsilon


def test_the_worst_pair_audit_is_tight():
    low, high = audit(RIGHT, "worst pair")
    assert 0.88 < low <= 1                               # .943 expected at 20,000 trials a side, .920 at 10,000
    assert high >= 0.95


@pytest.mark.slow
def test_the_worst_pair_audit_over_many_seeds_and_larger_runs():
    lows, highs = zip(*(audit(RIGHT, "worst pair", seed=1000 + 2 * seed) for seed in range(200)))
    assert sum(low > 1 for low in lows) <= 5             # expected at most 1 of 200 (each bound errs in 0.5 to 1 %)
    assert all(high >= 0.95 for high in highs)
    assert audit(RIGHT, "worst pair", trials=1_000_000)[0] == pytest.approx(0.992, abs=0.006)


MUTANTS = {
    "B instead of 2B": (Mechanism(scale=LAW.scale(EPSILON_MICRO) / 2), "worst pair"),
    "scale inverted": (Mechanism(scale=1 / LAW.scale(EPSILON_MICRO)), "worst pair"),
    "noise on non-zero coordinates only": (Mechanism(only_non_zero=True), "absent appliance"),
    "noise reused": (Mechanism(stream=lambda household, query: (household, "")), "two releases"),
    "one seed for two households": (Mechanism(stream=lambda household, query: ("", query)), "two households"),
    "zero-out scale sold as replace-one": (Mechanism(scale=LAW.scale(EPSILON_MICRO, "zero-out")), "worst pair"),
}


@pytest.mark.parametrize(("mutant", "design"), MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_go_red_where_the_right_mechanism_passes(mutant, design):
    assert audit(RIGHT, design)[0] <= DESIGNS[design].epsilon
    assert audit(mutant, design)[0] > DESIGNS[design].epsilon


def test_too_much_noise_goes_red_too():
    assert audit(RIGHT, "worst pair")[1] >= 0.95
    assert audit(Mechanism(scale=LAW.scale(EPSILON_MICRO) * Fraction(5, 4)), "worst pair")[1] < 0.95


# -- float Laplace (Mironov 2012): which doubles come out tells S, whatever epsilon is claimed -----------------------

SCALE = LAW.scale_units(100_000)                         # claimed epsilon .1
WORLDS = [np.zeros(7), np.full(7, CLIP / 7)]


def float_laplace(summary, trials, seed):
    """The mutant: numpy's floats instead of grid integers."""
    return summary + np.random.default_rng(seed).laplace(0.0, SCALE, (trials, 7))


def grid_laplace(summary, trials, seed):
    law, source = Laplace(CLIP), SimulationNoise(seed).source("h1", "q1")
    z = law.grid.encode(summary)
    return law.grid.decode(z + law.noise(source, 100_000, trials * 7).reshape(trials, 7))


def reachable_from_zero(value):
    """Whether 0 + b log(u), u a multiple of 2**-52, is this very double for some u near exp(-|value| / b)."""
    nearest = round(math.exp(-abs(value) / SCALE) * 2**52)
    return any(SCALE * math.log(k * 2.0**-52) == -abs(value) for k in range(max(1, nearest - 8), nearest + 9))


def attack(mechanism, trials=1500):
    """Lower bound of epsilon by the event "all seven doubles are reachable from S = 0"."""
    hits = [sum(all(map(reachable_from_zero, row)) for row in mechanism(summary, trials, seed).tolist())
            for seed, summary in enumerate(WORLDS)]
    return epsilon_bounds(*hits, trials)[0]


def test_float_laplace_goes_red_where_grid_integers_pass():
    assert attack(grid_laplace) <= 0.1
    assert attack(float_laplace) > 3                     # at a claimed .1


def test_float_laplace_leaves_the_grid_where_the_release_stays_on_it():
    step = LAW.grid.step
    assert (np.remainder(grid_laplace(WORLDS[1], 1000, 1), step) == 0).all()
    assert not (np.remainder(float_laplace(WORLDS[1], 1000, 1), step) == 0).all()
