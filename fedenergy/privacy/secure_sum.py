"""One noise for the whole zone: each home adds an exact share of it, and only the sum over all homes is opened.

Discrete Laplace(b) is the sum over n parties of NB(1/n, r) - NB(1/n, r), r = exp(-1/b). One party's share is compound
Poisson: a Poisson(2 L / n) number of jumps, L = -ln(1 - r), each with a random sign and a size of the logarithmic law
P(k) = r**k / (k L). Source: Acs & Castelluccia 2011 (shares of one Laplace noise over smart meters). The sampler is our
own: inversion against 192-bit thresholds, and rejection inside [2**j, 2**(j+1)).

A bare share is mostly 0, so every share is masked, also here in the ideal mode: z + share + pad modulo 2**64, the pad
known to the home and the Summer alone.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial
from typing import Any

import numpy as np

from fedenergy.households.household import check_household_id
from fedenergy.ids import canon
from fedenergy.privacy.noise import NoiseSource, check_batch, check_scale, exact, random_integer
from fedenergy.privacy.noise_free import Sealed, reveal_to_mechanism

PAD = b"fe.pad.1"
_BITS, _FIRST = 192, 64
_REST = _BITS - _FIRST
_TAIL = 145            # beyond 145 scales the logarithmic law holds less than 2**-200
_DIRECT = 10           # buckets below 2**10 are summed term by term
_TERMS = 16            # of the Euler-Maclaurin sum: relative error below 1e-70 from 2**10 on


# -- shares ------------------------------------------------------------------------------------------------------------

def laplace_share(source: NoiseSource, scale: Fraction, parties: int, size: int) -> np.ndarray:
    """(size,) int64: one home's share of discrete Laplace noise that `parties` homes make together.

    scale    b of the whole noise, grid steps, exact; parties: n >= 1, fixed before anything is drawn
    Guarantee: the sum of n independent shares follows discrete Laplace(b) within total variation n 2**-160 a
    coordinate (thresholds err by 2**-192, left-out tails hold 2**-200); parties = 1 is the discrete Laplace law itself.
    With m of n shares missing, (n - m) / n of the noise is there and epsilon does not hold: open all or nothing.
    """
    return laplace_share_many([source], scale, parties, size)[0]


def laplace_share_many(sources: Sequence[NoiseSource], scale: Fraction, parties: int, size: int) -> np.ndarray:
    """(homes, size) int64: row i is `laplace_share(sources[i], scale, parties, size)`, byte for byte."""
    if isinstance(parties, bool) or not isinstance(parties, int | np.integer) or parties < 1:
        raise ValueError(f"parties = {parties!r} is not a number of homes: give the n that was fixed before the query")
    check_batch(sources, size)
    scale = check_scale(scale)
    counts, jumps = _counts(scale, int(parties)), None
    words = np.frombuffer(b"".join([source.bits(8 * size) for source in sources]), "<u8").reshape(len(sources), size)
    number = np.searchsorted(counts.first, words)                        # (homes, size), ties not settled
    tied = np.take(counts.first, number, mode="clip") == words if len(counts.first) else np.zeros(words.shape, bool)
    shares = np.zeros(words.shape, np.int64)
    for home, at in np.argwhere((number > 0) | tied).tolist():
        source = sources[home]
        many = counts.settle(int(words[home, at]), source) if tied[home, at] else int(number[home, at])
        jumps = jumps or _jumps(scale)
        shares[home, at] = _signed(sum(jumps.draw(source) for _ in range(many)))
    return shares


class _Inversion:
    """A law on 0, 1, 2, ... by inversion: 64 bits first, 128 more on a tie. Its last value takes the whole tail."""

    def __init__(self, probabilities: Sequence[Decimal]) -> None:
        cumulative, total = [], Decimal(0)
        for probability in probabilities:
            total += probability
            cumulative.append(int(total * Decimal(2)**_BITS))
        self.whole = [threshold for threshold in cumulative if threshold < 2**_BITS]
        self.words = [threshold >> _REST for threshold in self.whole]
        self.first = np.array(self.words, np.uint64)

    def settle(self, word: int, source: NoiseSource) -> int:
        return bisect_right(self.whole, word << _REST | random_integer(source, _REST))

    def draw(self, source: NoiseSource) -> int:
        word = random_integer(source, _FIRST)
        value = bisect_left(self.words, word)
        if value < len(self.words) and self.words[value] == word:
            return self.settle(word, source)
        return value


class _Jumps:
    """Signed sizes of the logarithmic law of r = exp(-1/b)."""

    def __init__(self, scale: Fraction) -> None:
        with exact():
            total, weights = _log_law(scale), _bucket_weights(scale)
            rate = _rate(scale)
            self.buckets = _Inversion([weight / total for weight in weights[:-1]])
            decay = [int((-rate * 2**bit).exp() * Decimal(2)**_BITS) for bit in range(len(weights))]
        self.decay = decay
        self.decay_first = [threshold >> _REST for threshold in decay]

    def draw(self, source: NoiseSource) -> int:
        bucket = self.buckets.draw(source)
        low = 1 << bucket
        while True:
            word = random_integer(source, 64)                            # bit 63: the sign; the low bits: k - 2**j
            offset = word & (low - 1)
            if self._keeps_inverse(source, low + offset, bucket) and self._keeps_decay(source, offset):
                return low + offset if word >> 63 else -low - offset

    @staticmethod
    def _keeps_inverse(source: NoiseSource, size: int, bucket: int) -> bool:
        """True with probability 2**bucket / size: u size < 2**bucket for a uniform u of 192 bits, read lazily."""
        word = random_integer(source, _FIRST)
        if (word + 1) * size <= 1 << bucket + _FIRST:
            return True
        if word * size >= 1 << bucket + _FIRST:
            return False
        return (word << _REST | random_integer(source, _REST)) * size < 1 << bucket + _BITS

    def _keeps_decay(self, source: NoiseSource, offset: int) -> bool:
        """True with probability exp(-offset / b): one Bernoulli for each binary digit of the offset."""
        while offset:
            bit = (offset & -offset).bit_length() - 1
            word = random_integer(source, _FIRST)
            if word > self.decay_first[bit]:
                return False
            if word == self.decay_first[bit] and (
                    word << _REST | random_integer(source, _REST)) >= self.decay[bit]:
                return False
            offset &= offset - 1
        return True


@lru_cache(maxsize=1024)
def _counts(scale: Fraction, parties: int) -> _Inversion:
    """The number of jumps of one coordinate of one home: Poisson(2 L / n)."""
    with exact():
        mean = 2 * _log_law(scale) / parties
        probabilities, tiny = [(-mean).exp()], Decimal(2)**-220
        while len(probabilities) <= mean or probabilities[-1] > tiny:
            probabilities.append(probabilities[-1] * mean / len(probabilities))
        return _Inversion(probabilities)


@lru_cache(maxsize=128)
def _jumps(scale: Fraction) -> _Jumps:
    return _Jumps(scale)


def _rate(scale: Fraction) -> Decimal:
    return Decimal(scale.denominator) / Decimal(scale.numerator)


def _log_law(scale: Fraction) -> Decimal:
    """L = -ln(1 - r), at the precision of the current context; small r by its series."""
    r = (-_rate(scale)).exp()
    if r < Decimal("1e-40"):
        return r * (1 + r / 2 + r * r / 3)
    return -(1 - r).ln()


def _bucket_weights(scale: Fraction) -> list[Decimal]:
    """Sums of r**k / k over [2**j, 2**(j+1)), j = 0, 1, ... until 2**j passes 145 b."""
    weights, bucket = [], 0
    while not weights or (1 << bucket) * scale.denominator <= _TAIL * scale.numerator:
        low = 1 << bucket
        weights.append(_direct_sum(scale, low) if bucket < _DIRECT else _euler_maclaurin(scale, low))
        bucket += 1
    return weights


def _direct_sum(scale: Fraction, low: int) -> Decimal:
    rate = _rate(scale)
    r, power, total = (-rate).exp(), (-rate * low).exp(), Decimal(0)
    for k in range(low, 2 * low):
        total += power / k
        power *= r
    return total


def _euler_maclaurin(scale: Fraction, low: int) -> Decimal:
    """The same sum from the integral E1(low / b) - E1(2 low / b), the end terms and the odd derivatives.

    The series of the integral has terms up to exp(290), which cancel: hence 250 digits.
    """
    with exact(250):
        rate = _rate(scale)
        x, power = rate * low, Decimal(1)                                # power: (-x)**k / k!
        total, k = Decimal(2).ln(), 1
        while k <= 2 * x or abs(power) * 2**k > Decimal("1e-100"):
            power *= -x / k
            total += power * (2**k - 1) / k
            k += 1
        ends = [(-rate * low).exp(), (-rate * 2 * low).exp()]
        total += (ends[0] / low - ends[1] / (2 * low)) / 2
        for i, bernoulli in enumerate(_bernoulli(_TERMS), 1):
            odd = 2 * i - 1
            slopes = [end * sum(comb(odd, l) * factorial(l) * rate**(odd - l) / Decimal(at)**(l + 1)
                                for l in range(odd + 1)) for end, at in zip(ends, (low, 2 * low))]
            total += (slopes[0] - slopes[1]) * bernoulli.numerator / bernoulli.denominator / factorial(2 * i)
        return total


@lru_cache(maxsize=1)
def _bernoulli(terms: int) -> tuple[Fraction, ...]:
    """B_2, B_4, ..., B_(2 terms)."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * terms + 1):
        numbers.append(-sum((comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0)) / (n + 1))
    return tuple(numbers[2::2])


def _signed(value: int) -> int:
    """value modulo 2**64, as int64 reads it."""
    return (value + 2**63) % 2**64 - 2**63


# -- masks, and the one who opens the sum ------------------------------------------------------------------------------

def pad(key: bytes, household: str, query_id: str, size: int) -> np.ndarray:
    """(size,) uint64 mask of one household's answer to one query: keyed BLAKE2b in counter mode.

    key  32 bytes shared by the home and the Summer (`SimulationNoise.pad_key`, `SecureNoise.pad_key`)
    Guarantee: other households, other query ids and other keys give independent pads. One pad masks one answer.
    """
    if not isinstance(key, bytes) or len(key) != 32:
        raise ValueError("a pad key is 32 bytes: take it from the noise's pad_key")
    message = canon([household, query_id])
    blocks = [hashlib.blake2b(message + block.to_bytes(8, "little"), key=key, person=PAD).digest()
              for block in range(-(-size // 8))]
    return np.frombuffer(b"".join(blocks), "<u8")[:size].astype(np.uint64)


def seal(z: Any, share: np.ndarray, pad: np.ndarray) -> np.ndarray:
    """z + share + pad modulo 2**64: (d,) uint64, uniform to anyone without the pad.

    z  (d,) int64 grid integers, clipped, or a NoiseFree of them; share: (d,) int64; pad: (d,) uint64
    """
    z = np.asarray(reveal_to_mechanism(z))
    for name, array, dtype in (("z", z, np.int64), ("share", share, np.int64), ("pad", pad, np.uint64)):
        if array.dtype != dtype or array.shape != z.shape or array.ndim != 1:
            raise ValueError(f"{name} is {array.dtype} {array.shape}: seal takes (d,) int64 z and share, uint64 pad")
    return z.astype(np.uint64) + share.astype(np.uint64) + pad


def seal_many(z: np.ndarray, shares: np.ndarray, pads: np.ndarray) -> np.ndarray:
    """(homes, d) uint64: row i is `seal(z[i], shares[i], pads[i])`."""
    for name, array, dtype in (("z", z, np.int64), ("shares", shares, np.int64), ("pads", pads, np.uint64)):
        if array.dtype != dtype or array.shape != z.shape or array.ndim != 2:
            raise ValueError(f"{name} is {array.dtype} {array.shape}: seal_many takes (homes, d) int64 z and shares, "
                             "uint64 pads")
    return z.astype(np.uint64) + shares.astype(np.uint64) + pads


class Summer(Sealed):
    """The ideal aggregator of one query: it knows every pad and gives out nothing but the sum over all its homes.

    query_id  the query that the pads are bound to
    pad_keys  household -> 32-byte key; these homes, fixed before any share is drawn, are the only set opened (tau = 1)

    Guarantee: `open` returns the modular sum over exactly the fixed homes, or raises ValueError; no single value, pad
    or key is shown, printed, copied or pickled. A process convention: in a simulation, the memory is one machine's.
    """

    __slots__ = ("__keys", "__query_id")
    _label = "<Summer>"

    def __init__(self, query_id: str, pad_keys: Mapping[str, bytes]) -> None:
        if not pad_keys:
            raise ValueError("a Summer needs at least one home")
        for household, key in pad_keys.items():
            check_household_id(household)
            pad(key, household, query_id, 1)
        self.__keys = dict(pad_keys)
        self.__query_id = query_id

    @property
    def homes(self) -> tuple[str, ...]:
        """The households whose sum it opens, sorted."""
        return tuple(sorted(self.__keys))

    def open(self, shares: Mapping[str, np.ndarray]) -> np.ndarray:
        """(d,) int64: sum of z plus one discrete Laplace noise, from the (d,) uint64 envelopes of all homes."""
        missing = sorted(self.__keys.keys() - shares.keys())
        foreign = sorted(shares.keys() - self.__keys.keys())
        if missing or foreign:
            raise ValueError(
                f"the sum stays closed: {len(missing)} of {len(self.__keys)} shares are missing"
                f"{f' (first: {missing[0]})' if missing else ''} and {len(foreign)} come from other homes. Missing "
                "shares take their noise away and break epsilon: ask again, a new query over the homes that answer")
        arrays = {household: np.asarray(share) for household, share in shares.items()}
        shapes = {(array.dtype, array.shape) for array in arrays.values()}
        if len(shapes) != 1 or next(iter(shapes))[0] != np.uint64 or len(next(iter(shapes))[1]) != 1:
            raise ValueError(f"shares are uint64 of one length (d,), not {sorted(map(str, shapes))}")
        total = np.zeros(next(iter(shapes))[1], np.uint64)
        for household in self.homes:
            total += arrays[household] - pad(self.__keys[household], household, self.__query_id, total.size)
        return total.view(np.int64)
