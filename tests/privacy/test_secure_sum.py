"""SecureSum: shares that add up to one discrete Laplace noise (statistics, oracle), and what opens it (contract)."""

import hashlib
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedenergy.privacy.mechanisms import Laplace, NoiseGrid, SecureNoise, SimulationNoise
from fedenergy.privacy.noise import exact
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.secure_sum import (
    Summer,
    _bucket_weights,
    _counts,
    _jumps,
    _log_law,
    laplace_share,
    laplace_share_many,
    pad,
    seal,
)
from tests.privacy.test_noise import Scripted, pmf_p_value

SCALES = [Fraction(1, 3), Fraction(7), Fraction(3_276_800), Fraction(2 * 1_638_400 * 10**6, 100_000), Fraction(2**42)]


def shares(parties, scale, size, seed=1, query="law", homes=None):
    noise = SimulationNoise(seed)
    names = [f"h{i}" for i in range(homes or parties)]
    return np.array([laplace_share(noise.source(name, query), scale, parties, size) for name in names])


# -- statistics ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(5, 2), Fraction(40)], ids=str)
@pytest.mark.parametrize("parties", [1, 3, 60])
def test_the_sum_of_all_shares_is_discrete_laplace(parties, scale):
    assert pmf_p_value(shares(parties, scale, 6000).sum(axis=0), scale) > 0.01


@pytest.mark.parametrize("parties", [1, 3, 60])
def test_the_sum_of_all_shares_is_laplace_at_the_scale_of_a_release(parties):
    scale = Laplace(50.0).scale(1_000_000)
    draws = shares(parties, scale, 2000).sum(axis=0)
    assert stats.kstest(draws / float(scale), stats.laplace.cdf).pvalue > 0.01
    assert stats.chisquare(np.bincount(draws & 7, minlength=8)).pvalue > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 3, 60, 1000])
def test_the_law_of_the_sum_in_long_runs(parties):
    size = 100_000 if parties < 1000 else 20_000
    assert pmf_p_value(shares(parties, Fraction(5, 2), size, seed=7).sum(axis=0), Fraction(5, 2)) > 0.01
    scale = Fraction(4 * 10**7)
    assert stats.kstest(shares(parties, scale, size // 10).sum(axis=0) / float(scale), stats.laplace.cdf).pvalue > 0.01


def test_the_law_test_sees_a_missing_share():
    assert pmf_p_value(shares(3, Fraction(5, 2), 6000, homes=2).sum(axis=0), Fraction(5, 2)) < 1e-6
    assert pmf_p_value(shares(60, Fraction(5, 2), 6000, homes=48).sum(axis=0), Fraction(5, 2)) < 1e-6


@pytest.mark.parametrize(("parties", "expected"), [(60, 0.607), (1000, 0.970)])
def test_most_shares_are_zero_hence_the_pad(parties, expected):
    # P(no jump) = (1 - r)**(2 / n) at b = 3,276,800: exp(-2 * 15.0 / 60) = .607, exp(-2 * 15.0 / 1000) = .970
    zero = (shares(parties, Fraction(3_276_800), 5000, homes=1) == 0).mean()
    assert abs(zero - expected) < 2.576 * np.sqrt(expected * (1 - expected) / 5000) + 1e-3


def test_secure_shares_differ_and_have_the_variance_of_a_part():
    scale, n = Fraction(50), 10_000                     # Var = 2 r / (1 - r)**2 / parties, near 2 b**2 / parties
    one, two = (laplace_share(SecureNoise().source("h", "q"), scale, 4, n).astype(float) for _ in range(2))
    assert (one != two).any()
    assert abs(one.var() / (2 * 50**2 / 4) - 1) < 6 * np.sqrt(25 / n)        # kurtosis of a quarter: 3 + 3 * 4, wide


# -- oracle --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("scale", [*SCALES, Fraction(2**50)], ids=str)
def test_bucket_weights_add_up_to_the_whole_logarithmic_law(scale):
    with exact(100):
        total = sum(_bucket_weights(scale)) / _log_law(scale)
    assert abs(total - 1) < 1e-60                       # sums, Euler-Maclaurin and the integral against one logarithm


@pytest.mark.parametrize(("scale", "bucket"), [(Fraction(7), 9), (Fraction(50), 10), (Fraction(50), 12),
                                               (Fraction(3_276_800), 10), (Fraction(10_007, 3), 13)], ids=str)
def test_bucket_weights_are_the_sums_term_by_term(scale, bucket):
    with exact(100):
        weight = str(_bucket_weights(scale)[bucket])
    with mpmath.workdps(110):
        r = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator)
        expected, power = mpmath.mpf(0), r**(2**bucket)
        for k in range(2**bucket, 2**(bucket + 1)):
            expected += power / k
            power *= r
        assert abs(mpmath.mpf(weight) / expected - 1) < mpmath.mpf(10)**-60


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("parties", [1, 60])
def test_thresholds_are_within_2_to_the_minus_180(scale, parties):
    jumps = _jumps(scale)
    with mpmath.workdps(120):
        r, whole = mpmath.exp(-mpmath.mpf(scale.denominator) / scale.numerator), mpmath.mpf(2)**192
        mean = -2 * mpmath.log1p(-r) / parties
        term = below = mpmath.exp(-mean)
        for k, threshold in enumerate(_counts(scale, parties).whole, 1):
            assert abs(threshold - below * whole) < 2**12
            term *= mean / k
            below += term
        assert 1 - below < mpmath.mpf(2)**-180
        for bit, threshold in enumerate(jumps.decay):
            assert abs(threshold - r**(2**bit) * whole) < 2**12
        if jumps.buckets.whole:
            assert abs(jumps.buckets.whole[0] - r / -mpmath.log1p(-r) * whole) < 2**12


def test_ties_are_settled_by_128_more_bits():
    counts = _counts(Fraction(5, 2), 3)
    threshold = counts.whole[1]
    word, more = (threshold >> 128).to_bytes(8, "little"), threshold & (2**128 - 1)
    for below, expected in ((1, 1), (0, 2)):            # U >= threshold counts it
        source = Scripted(word + (more - below).to_bytes(16, "little"))
        assert counts.draw(source) == expected
        source = Scripted((more - below).to_bytes(16, "little"))
        assert counts.settle(threshold >> 128, source) == expected
    first = counts.whole[0]
    source = Scripted((first >> 128).to_bytes(8, "little") + ((first & (2**128 - 1)) - 1).to_bytes(16, "little"))
    assert laplace_share(source, Fraction(5, 2), 3, 1).tolist() == [0]
    jumps = _jumps(Fraction(5, 2))
    for below, kept in ((1, True), (0, False)):         # exp(-1/b): u < threshold keeps
        data = jumps.decay[0] - below
        source = Scripted((data >> 128).to_bytes(8, "little") + (data & (2**128 - 1)).to_bytes(16, "little"))
        assert jumps._keeps_decay(source, 1) is kept
    for more, kept in ((b"\x00" * 16, True), (b"\xff" * 16, False)):         # u * 3 < 2: u = .10101010...
        source = Scripted((2**65 // 3).to_bytes(8, "little") + more)
        assert jumps._keeps_inverse(source, 3, 1) is kept


# -- contract ------------------------------------------------------------------------------------------------------

@settings(max_examples=25, deadline=None)
@given(st.integers(0, 9), st.sampled_from(SCALES), st.integers(1, 100), st.integers(0, 9), st.integers(0, 2**32))
def test_a_batch_of_shares_equals_one_by_one(homes, scale, parties, size, seed):
    names, noise = [f"h{i}" for i in range(homes)], SimulationNoise(seed)
    batch = laplace_share_many([noise.source(name, "q") for name in names], scale, parties, size)
    alone = [laplace_share(noise.source(name, "q"), scale, parties, size) for name in names]
    assert batch.shape == (homes, size)
    assert batch.dtype == np.int64
    assert batch.tobytes() == b"".join(row.tobytes() for row in alone)


@pytest.mark.parametrize("scale", [Fraction(1, 100), Fraction(1, 10**9)])
def test_tiny_scales_give_zeros(scale):
    assert not laplace_share(SimulationNoise(1).source("h", "q"), scale, 3, 1000).any()


@pytest.mark.parametrize("parties", [0, -1, 1.0, True, None])
def test_parties_are_a_count(parties):
    with pytest.raises(ValueError, match="parties"):
        laplace_share(SimulationNoise(1).source("h", "q"), Fraction(1), parties, 1)


def test_a_source_makes_one_share():
    source = SimulationNoise(1).source("h", "q")
    with pytest.raises(ValueError, match="twice"):
        laplace_share_many([source, source], Fraction(1), 2, 1)
    with pytest.raises(ValueError, match="size"):
        laplace_share(source, Fraction(1), 2, -1)


def zone(homes=5, d=7, query="q1", seed=3):
    noise, grid = SimulationNoise(seed), NoiseGrid(50.0)
    names = [f"h{i}" for i in range(homes)]
    keys = {name: noise.pad_key(name) for name in names}
    z = {name: grid.encode(np.random.default_rng(i).normal(0, 10, d)) for i, name in enumerate(names)}
    share = {name: laplace_share(noise.source(name, query), Fraction(3_276_800), homes, d) for name in names}
    sealed = {name: seal(z[name], share[name], pad(keys[name], name, query, d)) for name in names}
    return keys, z, share, sealed


def test_the_summer_opens_the_sum_of_what_was_sealed():
    keys, z, share, sealed = zone()
    opened = Summer("q1", keys).open(sealed)
    assert opened.dtype == np.int64
    assert (opened == sum(z.values()) + sum(share.values())).all()
    assert (opened < 0).any()
    assert (Summer("q1", keys).open(dict(reversed(sealed.items()))) == opened).all()     # order-free


@given(st.lists(st.tuples(*[st.integers(-2**63, 2**63 - 1)] * 2), min_size=1, max_size=4))
def test_sums_are_modulo_2_to_the_64(pairs):
    keys = {f"h{i}": bytes([i]) * 32 for i in range(len(pairs))}
    sealed = {name: seal(np.array([z]), np.array([share]), pad(key, name, "q", 1))
              for (name, key), (z, share) in zip(keys.items(), pairs)}
    total = sum(z + share for z, share in pairs)
    assert Summer("q", keys).open(sealed).tolist() == [(total + 2**63) % 2**64 - 2**63]


def test_a_missing_or_foreign_share_keeps_the_sum_closed():
    keys, _, _, sealed = zone()
    summer = Summer("q1", keys)
    with pytest.raises(ValueError, match=r"1 of 5 shares are missing \(first: h3\).*break epsilon"):
        summer.open({name: share for name, share in sealed.items() if name != "h3"})
    with pytest.raises(ValueError, match="1 come from other homes"):
        summer.open({**sealed, "h9": sealed["h1"]})
    with pytest.raises(ValueError, match="missing"):
        summer.open({})


def test_wrong_envelopes_keep_the_sum_closed():
    keys, _, _, sealed = zone()
    summer = Summer("q1", keys)
    for bad in (sealed["h1"].view(np.int64), sealed["h1"][:3], sealed["h1"][None], sealed["h1"].astype(float)):
        with pytest.raises(ValueError, match="uint64"):
            summer.open({**sealed, "h1": bad})


def test_a_pad_of_another_query_or_key_opens_nonsense():
    keys, z, _, sealed = zone()
    truth = sum(z.values())
    for wrong in (Summer("q2", keys), Summer("q1", {**keys, "h1": b"x" * 32})):
        assert (np.abs(wrong.open(sealed) - truth).astype(float) > 2.0**50).all()


def test_a_summer_is_made_of_homes_and_keys():
    assert Summer("q", {"h2": b"k" * 32, "h1": b"j" * 32}).homes == ("h1", "h2")
    for keys in ({}, {"../h": b"k" * 32}, {"h1": b"short"}, {"h1": "k" * 32}):
        with pytest.raises(ValueError):
            Summer("q", keys)


def test_pads_are_keyed_by_home_and_query_and_look_uniform():
    key = bytes(range(32))
    assert pad(key, "h1", "q1", 20).tolist()[:7] == pad(key, "h1", "q1", 7).tolist()
    assert len({pad(*args, 7).tobytes() for args in ((key, "h1", "q1"), (key, "h2", "q1"), (key, "h1", "q2"),
                                                     (key[::-1], "h1", "q1"), (key, "h1q", "1"))}) == 5
    words = pad(key, "h1", "q1", 20_000)
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 0.01
    assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 0.01


def test_a_sealed_value_shows_nothing_of_a_constant_plaintext():
    key, z = bytes(range(32)), np.full(20_000, 5)
    sealed = seal(z, np.zeros_like(z), pad(key, "h1", "q1", z.size))
    assert sealed.dtype == np.uint64
    assert stats.kstest(sealed / 2.0**64, "uniform").pvalue > 0.01


def test_seal_takes_wrapped_integers_and_refuses_other_shapes():
    one, mask = np.array([1]), np.array([2], np.uint64)
    assert seal(NoiseFree(np.array([-4])), one, mask).tolist() == [2**64 - 1]
    for args in ((np.array([1.0]), one, mask), (one, one, one), (one, np.array([1, 2]), mask), (one[0], one, mask)):
        with pytest.raises(ValueError, match="seal takes"):
            seal(*args)


def test_golden_pad():
    # BLAKE2b-512 keyed with 00 01 .. 1f, person "fe.pad.1", message '["h1","q1"]' and eight zero bytes, read as
    # little-endian words: computed with hashlib in one line
    raw = hashlib.blake2b(b'["h1","q1"]' + bytes(8), key=bytes(range(32)), person=b"fe.pad.1").digest()
    words = [int.from_bytes(raw[at:at + 8], "little") for at in (0, 8)]
    assert pad(bytes(range(32)), "h1", "q1", 2).tolist() == words == [13335203756670693425, 15353384041983898361]
