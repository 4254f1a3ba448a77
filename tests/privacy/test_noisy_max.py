"""Noisy max: its law, its exact guarantee, its audit with mutants, and why it beats noise on each score."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedenergy.privacy import noisy_max as module
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noise import SimulationNoise, discrete_laplace
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.noisy_max import NoisyMax, truth_threshold
from tests.privacy.auditing import epsilon_bounds

EPSILON, D, TRIALS = 1_000_000, 7, 20_000
LAW = NoisyMax(1.0)


def source(seed=1, name="h1"):
    return SimulationNoise(seed).source(name, "q1")


def told(largest, trials=TRIALS, seed=1, epsilon=EPSILON, size=D):
    """(trials,) categories told."""
    drawn = source(seed)
    return np.array([LAW.choose(drawn, largest, epsilon, size) for _ in range(trials)])


def vote(k, size=D):
    return np.eye(size)[k]


@pytest.mark.parametrize("epsilon", [100_000, 1_000_000, 6_730_000])
def test_the_law(epsilon):
    p, q = LAW.probabilities(epsilon, D)
    assert p + (D - 1) * q == pytest.approx(1)
    assert p / q == pytest.approx(math.exp(epsilon * 1e-6))
    counts = np.bincount(told(2, epsilon=epsilon), minlength=D)
    assert stats.chisquare(counts, np.where(np.arange(D) == 2, p, q) * TRIALS).pvalue > 0.001
    assert stats.chisquare(np.bincount(told(None, epsilon=epsilon), minlength=D)).pvalue > 0.001    # nothing to tell


@pytest.mark.parametrize("epsilon", [1, 1_000, 1_000_000, 20_000_000, 10**12])
@pytest.mark.parametrize("size", [1, 2, 7, 24])
def test_the_guarantee_holds_exactly(epsilon, size):
    """p / q <= exp(epsilon) in rational arithmetic, for the thresholds that are used: no total variation is left."""
    mpmath = pytest.importorskip("mpmath")
    honest = Fraction(truth_threshold(epsilon, size), 2**192)
    assert 0 < honest < 1
    ratio = 1 + honest * size / (1 - honest)                 # p / q
    if epsilon <= 20_000_000:                                # beyond, exp has no digits to compare with
        with mpmath.workdps(120):
            grown = mpmath.exp(mpmath.mpf(epsilon) / 10**6)
            assert mpmath.mpf(ratio.numerator) / ratio.denominator <= grown
            assert mpmath.mpf(ratio.numerator) / ratio.denominator > grown * (1 - mpmath.mpf(2) ** -100)
    assert Fraction(1, size) / ((1 - honest) / size) <= ratio    # a home without a category differs by no more


def test_a_release_has_two_levels_and_its_mean_is_the_vote():
    released = np.stack([LAW.release(NoiseFree(vote(3)), source(seed), EPSILON) for seed in range(3000)])
    low, high = (level * LAW.grid.step for level in LAW.levels(EPSILON, D))
    assert set(np.unique(released)) == {low, high}
    assert (released == high).sum(axis=1).tolist() == [1] * 3000
    own, other = LAW.variance(EPSILON, D)
    sd = np.sqrt(np.where(np.arange(D) == 3, own, other) / 3000)
    assert (np.abs(released.mean(axis=0) - vote(3)) < 3.9 * sd).all()
    p, q = LAW.probabilities(EPSILON, D)
    assert p * high + (1 - p) * low == pytest.approx(1, abs=2.0**-20)       # unbiased, to the grid
    assert q * high + (1 - q) * low == pytest.approx(0, abs=2.0**-20)
    assert p * high**2 + (1 - p) * low**2 - 1 == pytest.approx(own, rel=1e-5)
    assert q * high**2 + (1 - q) * low**2 == pytest.approx(other, rel=1e-5)
    assert (np.remainder(released, LAW.grid.step) == 0).all()


def test_a_home_without_a_category_counts_as_one_vote_spread_evenly():
    released = np.stack([LAW.release(np.zeros(D), source(seed), EPSILON) for seed in range(3000)])
    assert (np.abs(released.mean(axis=0) - 1 / D) < 3.9 * np.sqrt(max(LAW.variance(EPSILON, D)) / 3000)).all()
    assert released.sum(axis=1) == pytest.approx(np.ones(3000), abs=D * 2.0**-20)


def test_the_vote_counts_what_the_clip_says():
    assert np.array_equal(NoisyMax(2.0).release(2 * vote(1), source(), EPSILON), 2 * LAW.release(vote(1), source(), EPSILON))


def test_golden_choices():
    assert told(2, 12).tolist() == [1, 2, 4, 1, 3, 4, 6, 1, 2, 1, 6, 6]


def test_larger_values_do_not_matter_only_which_is_largest():
    scores = np.array([0.3, 0.31, 0.0, 0.1, 0.0, 0.0, 0.29])
    assert np.array_equal(LAW.release(scores, source(), EPSILON), LAW.release(vote(1), source(), EPSILON))


@pytest.mark.parametrize("size", [0, True, 2.0])
def test_a_number_of_categories(size):
    with pytest.raises(ValueError, match="number of categories"):
        truth_threshold(EPSILON, size)


def test_uniform_choices_by_rejection():
    class Bytes:
        def __init__(self, *words):
            self.words = list(words)

        def bits(self, n):
            return self.words.pop(0).to_bytes(n, "little")

    assert module._below(Bytes(2**64 - 1, 8), 7) == 1            # 2**64 - 1 is above the largest multiple of 7: drawn again


# -- audit -------------------------------------------------------------------------------------------------------------

def bounds(make, seed=1):
    """Bounds of log P(tells 0 | own is 0) / P(tells 0 | own is 1), the worst event; make(own, seed) -> (trials,)."""
    return epsilon_bounds(*(int((make(own, seed + own) == 0).sum()) for own in (0, 1)), TRIALS)


def test_the_audit_passes_and_is_tight():
    low, high = bounds(lambda own, seed: told(own, seed=seed))
    assert 0.85 < low <= 1                                       # .945 expected
    assert high >= 0.95


def honest_half(own, seed):
    """Two categories' randomised response used for seven: p = e / (e + 1)."""
    rng = np.random.default_rng(seed)
    p = math.e / (math.e + 1)
    return np.where(rng.random(TRIALS) < p, own, rng.integers(0, D, TRIALS))


def noisy_scores(scale, one_sided=False):
    """Report noisy max on one-hot scores with noise of each score: the textbook form."""
    def make(own, seed):
        noise = discrete_laplace(source(seed), scale, TRIALS * D).reshape(TRIALS, D)
        scores = np.where(np.arange(D) == own, LAW.grid.bound, 0)
        return np.argmax(scores + (np.abs(noise) if one_sided else noise), axis=1)
    return make


MUTANTS = {
    "epsilon doubled": lambda own, seed: told(own, seed=seed, epsilon=2 * EPSILON),
    "two categories' odds for seven": honest_half,
    "noise of scale Delta / (2 epsilon)": noisy_scores(Fraction(LAW.grid.bound, 2)),
    "the truth on a tie of all others": lambda own, seed: np.where(np.arange(TRIALS) % 5 == 0, own, told(own, seed=seed)),
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())
def test_mutants_go_red(mutant):
    assert bounds(mutant)[0] > 1


def test_too_much_noise_goes_red_too():
    assert bounds(lambda own, seed: told(own, seed=seed, epsilon=EPSILON // 2))[1] < 0.95


def test_one_stream_for_two_homes_goes_red():
    """Reused noise: two homes with the same category then tell the same for sure, so that telling apart tells all."""
    def pair(own, seed, shared):
        return told(own, 2000, seed), told(0, 2000, seed if shared else seed + 100)

    for shared, red in ((True, True), (False, False)):
        hits = [int((one != two).sum()) for one, two in (pair(own, 7, shared) for own in (1, 0))]
        assert bool(epsilon_bounds(*hits, 2000)[0] > 1) is red


@pytest.mark.parametrize("one_sided", [False, True])
def test_the_textbook_noise_of_scale_two_delta_over_epsilon_holds_epsilon_but_tells_the_truth_less_often(one_sided):
    """Two scores of one home change by Delta_inf = K each: scale 2 K / epsilon."""
    make = noisy_scores(Fraction(2 * LAW.grid.bound * 10**6, EPSILON), one_sided)
    assert bounds(make)[0] <= 1
    p, _ = LAW.probabilities(EPSILON, D)
    assert (make(0, 5) == 0).mean() < p - 5 * math.sqrt(p * (1 - p) / TRIALS)


def test_local_votes_have_less_noise_than_local_laplace():
    laplace = 2 * Laplace(1.0).scale_units(EPSILON) ** 2
    assert max(LAW.variance(EPSILON, D)) < laplace / 1.4
