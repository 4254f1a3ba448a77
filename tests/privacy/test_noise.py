"""The sampler: its law (statistics), its thresholds (oracle: mpmath), its stream (golden), its batches (contract)."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedenergy.ids import stream
from fedenergy.privacy.noise import (
    CHUNK,
    SecureNoise,
    SimulationNoise,
    digit_thresholds,
    digits_needed,
    discrete_laplace,
    discrete_laplace_many,
    noise_from,
)

SCALES = [Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(50)]
HUGE = [Fraction(2 * 1_638_400 * 10**6, 100_000), Fraction(4 * 10**7), Fraction(10**12)]
Z99 = 2.576


def seeded(name="h1", query="q1", seed=1):
    return SimulationNoise(seed).source(name, query)


class Scripted:
    """A source that reads given bytes, for the paths that chance takes once in 2**16 words."""

    def __init__(self, data):
        self.data = data

    def bits(self, n):
        taken, self.data = self.data[:n], self.data[n:]
        assert len(taken) == n
        return taken


# -- statistics ----------------------------------------------------------------------------------------------------

def pmf_p_value(draws, scale):
    """Chi-squared p-value of integers against P(x) = (1 - r) / (1 + r) r**|x|, cells of at least 10 expected."""
    r = float(mpmath.exp(-1 / mpmath.mpf(scale.numerator) * scale.denominator))
    widest = int(np.abs(draws).max()) + 1
    support = np.arange(-widest, widest + 1)
    expected = (1 - r) / (1 + r) * r**np.abs(support) * draws.size
    inside = support[expected >= 10]
    observed = np.array([(draws == x).sum() for x in inside] + [(np.abs(draws) > inside.max()).sum()])
    cells = np.append(expected[expected >= 10], draws.size - expected[expected >= 10].sum())
    return stats.chisquare(observed, cells * observed.sum() / cells.sum()).pvalue


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("noise", [SimulationNoise(5), SecureNoise()], ids=["simulation", "secure"])
def test_small_scales_follow_the_exact_law(scale, noise):
    draws = discrete_laplace(noise.source("h1", "law"), scale, 40_000)
    assert pmf_p_value(draws, scale) > (0.01 if noise.name == "simulation" else 1e-6)


def test_the_law_test_can_fail():
    draws = discrete_laplace(seeded(), Fraction(5, 2), 40_000)
    assert pmf_p_value(draws, Fraction(26, 10)) < 1e-6


@pytest.mark.parametrize("scale", [*SCALES, *HUGE], ids=str)
def test_mean_variance_and_kurtosis(scale):
    n = 100_000
    draws = discrete_laplace(seeded(query="moments"), scale, n).astype(float)
    r = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
    moments = [2 * (1 - r) / (1 + r) * mpmath.nsum(lambda x, p=p: r**x * x**p, [1, mpmath.inf]) for p in (2, 4, 6, 8)
               ] if scale <= 50 else [mpmath.factorial(p) * mpmath.mpf(scale.numerator)**p for p in (2, 4, 6, 8)]
    variance, fourth, sixth, eighth = (float(m) for m in moments)
    kurtosis = fourth / variance**2                     # 6 for the Laplace law, more below scale 1
    assert abs(draws.mean()) < Z99 * np.sqrt(variance / n)
    assert abs(draws.var() / variance - 1) < Z99 * np.sqrt((kurtosis - 1) / n)
    spread = eighth / variance**4 - 4 * kurtosis * sixth / variance**3 + 4 * kurtosis**3 - kurtosis**2
    assert abs((draws**4).mean() / (draws**2).mean()**2 - kurtosis) < Z99 * np.sqrt(spread / n)


@pytest.mark.parametrize("scale", HUGE, ids=str)
def test_huge_scales_follow_the_laplace_law(scale):
    draws = discrete_laplace(seeded(query="ks"), scale, 20_000)
    assert stats.kstest(draws / float(scale), stats.laplace.cdf).pvalue > 0.01
    low_bits = draws & 7                                # rounding floats of 53 bits would show up here at 1e12
    assert stats.chisquare(np.bincount(low_bits, minlength=8)).pvalue > 0.01


# -- oracle and golden ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("scale", [Fraction(1, 1000), *SCALES, *HUGE, Fraction(3, 7), Fraction(2**50)], ids=str)
def test_thresholds_are_the_probabilities_to_144_bits(scale):
    first, rest = digit_thresholds(scale)
    with mpmath.workprec(600):
        for digit, (high, low) in enumerate(zip(first.tolist(), rest, strict=True)):
            q = mpmath.exp(-mpmath.mpf(2)**digit * scale.denominator / scale.numerator)
            assert (high << 128) + low == int(mpmath.floor(q / (1 + q) * mpmath.mpf(2)**144))
        left_out = mpmath.exp(-mpmath.mpf(2)**len(rest) * scale.denominator / scale.numerator)
        assert left_out < mpmath.mpf(2)**-144


@pytest.mark.parametrize("scale", [Fraction(1, 100), Fraction(1), Fraction(32, 25), Fraction(13, 10), Fraction(2**50)])
def test_digits_needed_is_the_smallest_enough(scale):
    digits = digits_needed(scale)
    assert 2**digits >= 100 * scale
    assert digits == 1 or 2**(digits - 1) < 100 * scale


def slow_reference(data, scale, size):
    """The documented format, read with mpmath one word at a time; no ties expected."""
    digits = digits_needed(scale)
    words = iter(int.from_bytes(data[at:at + 2], "little") for at in range(0, len(data), 2))
    draws = []
    with mpmath.workprec(200):
        b = mpmath.mpf(scale.numerator) / scale.denominator
        for _ in range(size):
            pair = []
            for _ in range(2):
                ones = [next(words) < mpmath.floor(2**16 / (1 + mpmath.exp(2**j / b))) for j in range(digits)]
                pair.append(sum(one << j for j, one in enumerate(ones)))
            draws.append(pair[0] - pair[1])
    return draws


def test_golden_draws_of_the_default_release():
    # b = 2 K 1e6 / micro at C = 50, epsilon 1: 3,276,800 grid steps. Provenance: slow_reference on the Philox bytes of
    # stream(1, "noise", "h1", "q1"), which reads 2 x 29 words of 16 bits a draw.
    golden = [61582, -2670985, 11052789, -1017722, 3009447, 1361005, -213877]
    scale = Fraction(3_276_800)
    assert discrete_laplace(seeded(), scale, 7).tolist() == golden
    raw = stream(1, "noise", "h1", "q1").bit_generator.random_raw(4 * 29 * 7 // 8 + 1).astype("<u8").tobytes()
    assert slow_reference(raw, scale, 7) == golden


def test_a_tie_of_the_first_word_is_settled_by_128_more_bits():
    scale = Fraction(5, 2)
    first, rest = digit_thresholds(scale)
    digits = len(rest)
    above = b"\xff\xff" * digits                        # every digit 0
    tied = [int(first[0]).to_bytes(2, "little"), int(first[2]).to_bytes(2, "little")]
    geometric = tied[0] + b"\xff\xff" + tied[1] + b"\xff\xff" * (digits - 3)
    for digit0, digit2 in ((0, 0), (0, 1), (1, 0), (1, 1)):
        more = (rest[0] - digit0).to_bytes(16, "little") + (rest[2] - digit2).to_bytes(16, "little")
        source = Scripted(geometric + above + more)
        assert discrete_laplace(source, scale, 1).tolist() == [digit0 + 4 * digit2]
        assert source.data == b""


# -- contract ------------------------------------------------------------------------------------------------------

@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*SCALES, *HUGE]), max_size=12), st.integers(0, 20), st.integers(0, 2**64))
def test_a_batch_equals_one_by_one(scales, size, seed):
    names = [f"h{i}" for i in range(len(scales))]
    batch = discrete_laplace_many([seeded(name, seed=seed) for name in names], scales, size)
    alone = [discrete_laplace(seeded(name, seed=seed), scale, size) for name, scale in zip(names, scales)]
    assert batch.shape == (len(scales), size)
    assert batch.dtype == np.int64
    assert batch.tobytes() == b"".join(row.tobytes() for row in alone)


def test_a_batch_with_ties_and_chunks_equals_one_by_one():
    size, scale = CHUNK + 5, Fraction(50)               # 26 words a draw: about 1.6 ties in 4,096 draws, a home
    batch = discrete_laplace_many([seeded(f"h{i}") for i in range(4)], [scale] * 4, size)
    assert all((batch[i] == discrete_laplace(seeded(f"h{i}"), scale, size)).all() for i in range(4))


def test_streams_are_keyed_by_seed_household_and_query():
    keys = [(1, "h1", "q1"), (2, "h1", "q1"), (1, "h2", "q1"), (1, "h1", "q2")]
    draws = {discrete_laplace(seeded(household, query, seed), Fraction(10**7), 4).tobytes()
             for seed, household, query in keys}
    assert len(draws) == 4
    assert len({SimulationNoise(seed).pad_key(home) for seed, home in ((1, "h1"), (1, "h2"), (2, "h1"))}) == 3
    assert SimulationNoise(1).pad_key("h1") == SimulationNoise(1).pad_key("h1")


def test_secure_noise_is_fresh_every_time():
    draws = [discrete_laplace(SecureNoise().source("h1", "q1"), Fraction(10**7), 4).tobytes() for _ in range(3)]
    assert len(set(draws)) == 3
    assert SecureNoise().pad_key("h1") != SecureNoise().pad_key("h1")
    with pytest.raises(TypeError):
        SecureNoise(1)


def test_noise_from_config():
    assert noise_from("simulation", 3).stamp == "seeded noise: not private"
    assert noise_from("secure", 3).stamp == ""
    with pytest.raises(ValueError, match='"simulation"'):
        noise_from("seeded", 3)
    for seed in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="seed"):
            noise_from("simulation", seed)


@pytest.mark.parametrize(("scale", "error"), [
    (0.5, TypeError), (np.float64(1), TypeError), (True, TypeError),
    (Fraction(0), ValueError), (Fraction(-1), ValueError), (Fraction(2**50) + 1, ValueError)])
def test_scales_are_exact_and_in_range(scale, error):
    with pytest.raises(error, match="noise scale"):
        discrete_laplace(seeded(), scale, 1)


@pytest.mark.parametrize("size", [-1, 1.0, True, None])
def test_sizes_are_counts(size):
    with pytest.raises(ValueError, match="size"):
        discrete_laplace(seeded(), Fraction(1), size)


def test_a_source_serves_one_household():
    source = seeded()
    with pytest.raises(ValueError, match="twice"):
        discrete_laplace_many([source, source], [Fraction(1)] * 2, 3)
    with pytest.raises(ValueError, match="2 scales"):
        discrete_laplace_many([source], [Fraction(1)] * 2, 3)


def test_nothing_is_noise_below_the_smallest_scale():
    assert not discrete_laplace(seeded(), Fraction(1, 10**9), 1000).any()
