"""The audits that `fedenergy audit` makes: the right mechanisms pass, and every fault in the list turns one red.

Bounds are at 99 % each, seeds are fixed. A right mechanism reaches its claim in the worst pair, so another seed would turn
one bound in a hundred red by chance; the mutants are red by several standard errors.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedenergy.privacy import audit as audits
from fedenergy.privacy.audit import (
    CuratorPath,
    Design,
    LocalPath,
    SumPath,
    audit,
    basis,
    designs,
    each_of,
    gaussian_epsilon,
    judge,
)
from fedenergy.privacy.audit_scan import Needles, digits_for
from fedenergy.privacy.gaussian import Gaussian
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import SecureNoise, SimulationNoise, discrete_laplace
from fedenergy.privacy.noisy_max import NoisyMax
from fedenergy.privacy.weighted import WeightedLaplace

EPSILON, DELTA, TRIALS = 1_000_000, 1e-5, 700
SUM_TRIALS = 350  # shares cost more to draw
RIGHT = {
    "laplace, local": (LocalPath(Laplace(50.0), EPSILON), 3, 4),
    "laplace, local, one number": (LocalPath(Laplace(50.0), EPSILON), 1, 2),
    "laplace, curator": (CuratorPath(Laplace(50.0), EPSILON), 3, 1),
    "laplace, sum": (SumPath(Laplace(50.0), EPSILON), 1, 1),
    "weighted": (LocalPath(WeightedLaplace(50.0, (1.0, 0.5, 2.0)), EPSILON), 3, 4),
    "gaussian": (LocalPath(Gaussian(50.0, DELTA), EPSILON), 3, 4),
    "noisy max": (LocalPath(NoisyMax(1.0), EPSILON), 7, 1),
    "laplace, secure": (LocalPath(Laplace(50.0), EPSILON, lambda seed: SecureNoise()), 2, 4),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_mechanisms_pass(name):
    path, size, count = RIGHT[name]
    # operating system noise has no seed: ask for one false alarm in 10**6
    trials = SUM_TRIALS if isinstance(path, SumPath) else TRIALS
    found = audit(path, size, trials=trials, confidence=1 - 1e-6 if "secure" in name else 0.99)
    assert [verdict.problem for verdict in found] == [""] * count
    tight = found[0]
    assert tight.claimed == 1
    if name not in ("gaussian", "laplace, secure"):
        assert 0.4 < tight.low <= 1 < tight.high  # an audit of this size is no formality


def test_noisy_max_of_one_category_hides_nothing():
    assert designs(LocalPath(NoisyMax(1.0), EPSILON), 1) == []


# -- mutants -----------------------------------------------------------------------------------------------------------

class HalfSensitivity(Laplace):
    """B instead of 2B: the scale of zero-out sold as replace-one."""

    def scale(self, epsilon_micro, relation="replace-one"):
        return super().scale(epsilon_micro, "zero-out")


class Inverted(Laplace):
    def scale(self, epsilon_micro, relation="replace-one"):
        return 1 / super().scale(epsilon_micro, relation)


class Fourfold(Laplace):
    """Four times the noise: safe, and useless."""

    def scale(self, epsilon_micro, relation="replace-one"):
        return 4 * super().scale(epsilon_micro, relation)


class OnlyNonZero(Laplace):
    def release(self, summary, source, epsilon_micro):
        z = self.deposit(summary)
        return self.grid.decode(z + self.noise(source, epsilon_micro, z.size) * (z != 0))


class PerCoordinate(Laplace):
    """Epsilon for each coordinate instead of for the vector: no clipping of the vector to the ball."""

    def deposit(self, summary, bound=None):
        return np.clip(np.rint(np.asarray(summary) / self.grid.step).astype(np.int64), -self.grid.bound, self.grid.bound)

    def deposit_many(self, summaries, bounds):
        return np.stack([self.deposit(summary) for summary in summaries])

    @property
    def worst(self):
        return np.full(3, self.clip)


class Floats(Laplace):
    """numpy's float Laplace."""

    def release(self, summary, source, epsilon_micro):
        seed = int.from_bytes(source.bits(8), "little")
        return summary + np.random.default_rng(seed).laplace(0.0, self.scale_units(epsilon_micro), np.size(summary))


class HalfSigma(Gaussian):
    def variance(self, epsilon_micro):
        return super().variance(epsilon_micro) / 4


class SigmaForVariance(Gaussian):
    def variance(self, epsilon_micro):
        return Fraction(math.isqrt(int(super().variance(epsilon_micro))))


class TextbookScale(NoisyMax):
    """The truth as often as exp(2 epsilon) allows."""

    def choose(self, source, largest, epsilon_micro, size):
        return super().choose(source, largest, 2 * epsilon_micro, size)


class HalfWeights(WeightedLaplace):
    """Noise of half the weights around a ball of the whole ones."""

    def release(self, summary, source, epsilon_micro):
        z = self.encode(summary)
        return self.decode(z + self.noise(source, 2 * epsilon_micro, z.size))


def keyed(rule):
    """Noise whose stream is keyed by rule(household, query) instead of by both."""
    class Mutant:
        def __init__(self, seed):
            self.right = SimulationNoise(seed)

        def source(self, household, query):
            return self.right.source(*rule(household, query))
    return Mutant


REUSED = keyed(lambda household, query: (household, query.replace("q2", "q1")))
ONE_SEED = keyed(lambda household, query: ("h", query))
MUTANTS = {  # -> the design that must turn red, and what it says
    "B instead of 2B": (LocalPath(HalfSensitivity(50.0), EPSILON), "worst pair", "loses more"),
    "B instead of 2B, curator": (CuratorPath(HalfSensitivity(50.0), EPSILON), "worst pair", "loses more"),
    "B instead of 2B, sum": (SumPath(HalfSensitivity(50.0), EPSILON), "worst pair", "loses more"),
    "scale inverted": (LocalPath(Inverted(50.0), EPSILON), "worst pair", "loses more"),
    "noise on non-zero coordinates only": (LocalPath(OnlyNonZero(50.0), EPSILON), "absent appliance", "loses more"),
    "noise reused": (LocalPath(Laplace(50.0), EPSILON, REUSED), "two releases", "loses more"),
    "one seed for two households": (LocalPath(Laplace(50.0), EPSILON, ONE_SEED), "two households", "loses more"),
    "float Laplace": (LocalPath(Floats(50.0), EPSILON), "worst pair", "off the noise grid"),
    "too much noise": (LocalPath(Fourfold(50.0), EPSILON), "worst pair", "more noise than the claim needs"),
    "gaussian, half of sigma": (LocalPath(HalfSigma(50.0, DELTA), EPSILON), "worst pair", "loses more"),
    "gaussian, sigma for its square": (LocalPath(SigmaForVariance(50.0, DELTA), EPSILON), "worst pair", "loses more"),
    "gaussian, noise reused": (LocalPath(Gaussian(50.0, DELTA), EPSILON, REUSED), "two releases", "loses more"),
    "noisy max at twice epsilon": (LocalPath(TextbookScale(1.0), EPSILON), "other category", "loses more"),
    "weighted, half of the noise": (LocalPath(HalfWeights(50.0, (1.0, 0.5)), EPSILON), "worst pair", "loses more"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_go_red(name):
    path, red, says = MUTANTS[name]
    size = 1 if isinstance(path, SumPath) else 7 if isinstance(path.law, NoisyMax) else 2
    design, = (one for one in designs(path, size, SUM_TRIALS if isinstance(path, SumPath) else TRIALS) if one.name == red)
    assert says in judge(path, design, confidence=each_of(30)).problem  # as in a run with 30 designs


def test_an_epsilon_for_each_coordinate_goes_red():
    """Three coordinates, each at its own bound: the vector loses three epsilon, claimed as one."""
    path = LocalPath(PerCoordinate(50.0), EPSILON)
    worst = path.law.worst
    design = Design("all at once", [("h1", "q1", worst)], [("h1", "q1", -worst)], lambda y: (y[0] >= worst[0]).all(axis=1),
                    trials=TRIALS)
    verdict = judge(path, design)
    assert verdict.problem.startswith("loses more than claimed")
    assert verdict.low > 1.8


def test_a_share_that_stays_away_goes_red():
    """A sum that opens without one home's share holds half of the noise: all or nothing."""
    class Short(SumPath):
        def release(self, world, trials, seed):
            scale, made = self.law.scale(self.epsilon_micro), self.noise(seed)
            from fedenergy.privacy.secure_sum import laplace_share
            return [np.stack([self.law.grid.decode(self.law.deposit(world[0][2]) + laplace_share(
                made.source("h1", f"q-{trial}"), scale, 2, 1)) for trial in range(trials)])]

    path = Short(Laplace(50.0), EPSILON)
    verdict = judge(path, designs(path, 1, 2_000)[0])
    assert verdict.problem.startswith("loses more")


def test_a_sum_in_two_homes_has_the_noise_of_one_laplace():
    """The path that is audited draws what a study draws: its variance is 2 b**2 (1 + 1 / (12 b**2), b large)."""
    path = SumPath(Laplace(4.0), 6_000_000)
    drawn, = path.release([("h1", "q1", np.zeros(1)), ("h2", "q1", np.zeros(1))], 800, 3)
    b = path.law.scale_units(6_000_000)
    assert drawn.var() == pytest.approx(2 * b * b, rel=0.25)  # sd of the estimate: sqrt(5 / 800) = .08


def test_local_trials_are_queries_of_their_own():
    path = LocalPath(Laplace(50.0), EPSILON)
    drawn, = path.release([("h1", "q1", np.zeros(2))], 50, 1)
    assert len(np.unique(drawn)) == 100
    source = SimulationNoise(1).source("h1", "q1-7")
    assert np.array_equal(drawn[7], path.law.grid.decode(discrete_laplace(source, path.law.scale(EPSILON), 2)))


# -- arithmetic --------------------------------------------------------------------------------------------------------

def test_the_worst_pair_fills_the_ball():
    for law in (Laplace(50.0), Gaussian(50.0, DELTA), WeightedLaplace(50.0, (1.0, 0.5))):
        for k, sign in ((0, 1), (1, -1)):
            summary = basis(law, 2, k, sign)
            z = law.deposit(summary)
            assert abs(int(z[k])) == NoiseGrid(50.0).bound
            assert np.array_equal(law.decode(z) if isinstance(law, WeightedLaplace) else law.grid.decode(z), summary)


def test_gaussian_epsilon_inverts_balle_and_wang():
    from scipy.stats import norm

    for mu, delta in ((0.25, 1e-5), (1.0, 1e-5), (4.0, 1e-3)):
        epsilon = gaussian_epsilon(mu, delta)
        found = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert found == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(1e-9, 1e-3) == pytest.approx(0, abs=1e-6)


def test_bounds_hold_together():
    assert each_of(1) == 0.99
    assert each_of(10) == pytest.approx(0.999)
    one = audits.epsilon_bounds(1_000, 400, 2_000)
    all_ten = audits.epsilon_bounds(1_000, 400, 2_000, each_of(10))
    assert all_ten[0] < one[0] < math.log(2.5) < one[1] < all_ten[1]


def test_off_the_grid_is_red_even_where_bounds_hold():
    path = LocalPath(Floats(50.0), EPSILON)
    design = replace(designs(path, 2, TRIALS)[0], trials=200)
    assert judge(path, design).low < 1
    assert "grid" in judge(path, design).problem


# -- the scan of large populations -------------------------------------------------------------------------------------

def test_among_many_numbers_chance_is_told_from_a_leak():
    """100,000 numbers and .4 MB of random bytes: single 32-bit words meet by chance, pairs do not."""
    rng = np.random.default_rng(1)
    readings = rng.uniform(0.1, 2.0, (10_000, 10))
    noise = rng.bytes(400_000)
    assert Needles({"reading": readings}).hits("noise", noise)  # the scan for small sets would cry wolf
    needles = Needles({"reading": readings}, pairs=True, digits=digits_for(readings.size, len(noise)))
    assert needles.hits("noise", noise) == set()
    for data in (np.float64(readings[7, 3]).tobytes(), np.array(readings[7, 3], ">f8").tobytes(),
                 readings[7:9, 3].astype(np.float32).tobytes(), readings[7, 3:5].astype(">f4").tobytes(),
                 repr(float(readings[7, 3])).encode(), f"{readings[7, 3]:.14g}".encode()):
        assert {hit.what for hit in needles.hits("file", noise[:101] + b" " + data + b" " + noise[:99])} == {"reading"}


def test_round_numbers_are_no_leak_in_text():
    needles = Needles({"reading": np.array([[0.1], [0.0364], [1 / 60]])}, pairs=True, digits=12)
    assert needles.hits("metrics.csv", b"0.1,0.09999999999999999,0.0364,0.10000000000001") == set()
    assert needles.hits("metrics.csv", b"0.016666666666666666")
    assert needles.hits("file", np.float64(0.0364).tobytes())
