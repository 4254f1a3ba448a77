"""Where noise comes from, and exact integer discrete Laplace draws.

A source hands out uniform bytes. The law of a draw is P(x) proportional to r**|x|, r = exp(-1/b), over the integers:
the difference of two geometric variables, whose binary digits are independent Bernoulli variables with
P(digit j is 1) = q / (1 + q), q = r**(2**j). Each digit compares a 16-bit word with the probability's first 16 bits
and, on a tie only, 128 further bits: no floating point comes near a draw (Mironov 2012).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, InvalidOperation, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np

from fedenergy.ids import stream, stream_key
from fedenergy.privacy.noise_free import Sealed

DIGITS = 100            # decimal digits of every threshold computation: 2**-144 is 5e-44
LARGEST_SCALE = 2**50   # draws stay below 2**57
CHUNK = 4096            # draws whose first words are read together: part of the stream format
WORDS_AT_ONCE = 2**22   # memory bound of a batch, no part of the format
_FIRST, _REST = 16, 128
_NOTHING = np.zeros(4, np.uint64)


class NoiseSource(Protocol):
    """Uniform bytes for one household and one query."""

    def bits(self, n: int) -> bytes:
        """The next n bytes."""
        ...


class _Source(Sealed):
    """Bytes from a reader; shows and gives away nothing of its state."""

    __slots__ = ("bits",)
    _label = "<NoiseSource>"

    def __init__(self, reader: Callable[[int], bytes]) -> None:
        self.bits = reader


class _Keyed:
    """Bytes of the stream with that key, read through a Philox that others use too."""

    __slots__ = ("_key", "_shared", "_used")

    def __init__(self, shared: np.random.Philox, key: np.ndarray) -> None:
        self._shared, self._key, self._used = shared, key, 0

    def bits(self, n: int) -> bytes:
        words = -(-n // 8)
        self._shared.state = {"bit_generator": "Philox", "buffer": _NOTHING, "buffer_pos": 4, "has_uint32": 0,
                              "uinteger": 0, "state": {"counter": _NOTHING, "key": self._key}}
        raw = self._shared.random_raw(self._used + words)[self._used:]
        self._used += words
        return raw.astype("<u8", copy=False).tobytes()[:n]


class SimulationNoise(Sealed):
    """Reproducible noise: Philox keyed by (seed, "noise", household, query id). Not private, and stamped so.

    >>> SimulationNoise(1).source("h1", "q").bits(4) == SimulationNoise(1).source("h1", "q").bits(4)
    True
    """

    __slots__ = ("_seed",)
    name: ClassVar[str] = "simulation"
    stamp: ClassVar[str] = "seeded noise: not private"
    _label = "<SimulationNoise>"

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"the noise seed {seed!r} is not an integer")
        self._seed = seed

    def source(self, household: str, query_id: str) -> NoiseSource:
        """The bytes of one household's answer to one query: the same on every call and in every process."""
        raw = stream(self._seed, "noise", household, query_id).bit_generator.random_raw
        return _Source(lambda n: raw(-(-n // 8)).astype("<u8", copy=False).tobytes()[:n])

    def sources(self, households: Sequence[str], query_id: str) -> list[NoiseSource]:
        """source() of each household, byte for byte, for many at once: they share one Philox, set to a home's key when
        that home's bytes are read (making a Philox costs more than the bytes)."""
        keys = b"".join([stream_key(self._seed, "noise", household, query_id) for household in households])
        shared = np.random.Philox(key=0)
        return [_Source(_Keyed(shared, key).bits) for key in np.frombuffer(keys, "<u8").reshape(-1, 2)]

    def pad_key(self, household: str) -> bytes:
        """32 bytes that the home shares with the Summer (secure_sum)."""
        return stream(self._seed, "pad", household).bit_generator.random_raw(4).astype("<u8", copy=False).tobytes()


class SecureNoise(Sealed):
    """Noise from the operating system's entropy: no seed exists, an answer is repeated only from the ledger's bytes."""

    __slots__ = ()
    name: ClassVar[str] = "secure"
    stamp: ClassVar[str] = ""
    _label = "<SecureNoise>"

    def source(self, household: str, query_id: str) -> NoiseSource:
        """Fresh bytes, whatever the household and the query."""
        return _Source(os.urandom)

    def sources(self, households: Sequence[str], query_id: str) -> list[NoiseSource]:
        """One source per household."""
        return [self.source(household, query_id) for household in households]

    def pad_key(self, household: str) -> bytes:
        """32 fresh bytes: agree on them once, at enrolment, and keep them on both sides."""
        return os.urandom(32)


def noise_from(name: str, seed: int) -> SimulationNoise | SecureNoise:
    """The noise of a config ("simulation" or "secure"), rebuilt in a worker; seed serves simulation only."""
    if name == SimulationNoise.name:
        return SimulationNoise(seed)
    if name == SecureNoise.name:
        return SecureNoise()
    raise ValueError(f'noise = {name!r} is unknown: use "simulation" (seeded, not private) or "secure"')


def discrete_laplace(source: NoiseSource, scale: Fraction, size: int) -> np.ndarray:
    """(size,) int64 independent draws of the discrete Laplace law of scale b: P(x) = (1 - r) / (1 + r) r**|x|.

    scale  b in grid units, a Fraction (never a float), 0 < b <= 2**50; r = exp(-1/b)
    Guarantee: the law is within total variation 2**-136 a draw (each of the at most 2 * 57 digits errs by less than
    2**-144, the digits that are left out are 1 with probability below 2**-143). Variance 2 r / (1 - r)**2, near 2 b**2.
    Source: Ghosh, Roughgarden, Sundararajan 2009 (the law); own digits and thresholds.

    >>> discrete_laplace(SimulationNoise(1).source("h1", "q"), Fraction(1, 2), 8)
    array([0, 0, 0, 0, 1, 0, 0, 0])
    """
    return discrete_laplace_many([source], [scale], size)[0]


def discrete_laplace_many(sources: Sequence[NoiseSource], scales: Sequence[Fraction], size: int) -> np.ndarray:
    """(n, size) int64: row i is `discrete_laplace(sources[i], scales[i], size)`, byte for byte, drawn in one batch.

    sources  n distinct sources; scales  n scales (grid units), which may differ
    """
    if len(sources) != len(scales):
        raise ValueError(f"{len(sources)} sources for {len(scales)} scales: give each household one of both")
    check_batch(sources, size)
    draws = np.empty((len(sources), size), np.int64)
    groups: dict[Fraction, list[int]] = {}
    same: dict[int, list[int]] = {}  # by object: thousands of homes share one, and hashing a Fraction takes 2 us
    for row, scale in enumerate(scales):
        same.setdefault(id(scale), []).append(row)
    for rows in same.values():
        groups.setdefault(check_scale(scales[rows[0]]), []).extend(rows)
    for scale, rows in groups.items():
        first, rest = digit_thresholds(scale)
        step = max(1, WORDS_AT_ONCE // (2 * max(1, min(size, CHUNK)) * len(rest)))
        for low in range(0, len(rows), step):
            part = rows[low:low + step]
            for begin in range(0, size, CHUNK):
                end = min(size, begin + CHUNK)
                draws[part, begin:end] = _block([sources[row] for row in part], first, rest, end - begin)
    return draws


def _block(sources: Sequence[NoiseSource], first: np.ndarray, rest: Sequence[int], size: int) -> np.ndarray:
    """One chunk of draws for each source: all first words, then 128 bits for each tie, in order of position."""
    digits = len(rest)
    words = np.frombuffer(b"".join([source.bits(4 * digits * size) for source in sources]), "<u2")
    words = words.reshape(len(sources), size, 2, digits)
    ones = words < first
    for at in np.argwhere(words == first):
        home, draw, side, digit = at.tolist()
        ones[home, draw, side, digit] = random_integer(sources[home], _REST) < rest[digit]
    whole = np.zeros((len(sources), size, 2, 8), np.uint8)
    packed = np.packbits(ones, axis=-1, bitorder="little")
    whole[..., :packed.shape[-1]] = packed
    geometric = whole.view("<i8")[..., 0].astype(np.int64, copy=False)
    return geometric[..., 0] - geometric[..., 1]


def random_integer(source: NoiseSource, bits: int) -> int:
    """A uniform integer of that many bits (a multiple of 8)."""
    return int.from_bytes(source.bits(bits // 8), "little")


def check_batch(sources: Sequence[NoiseSource], size: int) -> None:
    """Raise ValueError unless the sources are distinct and size is a count."""
    if len({id(source) for source in sources}) != len(sources):
        raise ValueError("a source appears twice: two households would share one stream of noise")
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise ValueError(f"size = {size!r} is not a number of draws")


def check_scale(scale: Fraction) -> Fraction:
    """Return the scale as a Fraction if it is exact and in range, else raise."""
    if isinstance(scale, bool) or not isinstance(scale, Fraction | int):
        raise TypeError(f"the noise scale {scale!r} is a {type(scale).__name__}: give the Fraction of Laplace.scale")
    if not 0 < scale <= LARGEST_SCALE:
        raise ValueError(f"the noise scale {scale} grid steps lies outside (0, 2**50]: raise epsilon")
    return Fraction(scale)


def exact(digits: int = DIGITS) -> AbstractContextManager[Context]:
    """A decimal context of that many digits whose exponents do not run out; what underflows is 0."""
    return localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, DivisionByZero]))


def digits_needed(scale: Fraction) -> int:
    """Binary digits of a geometric variable beyond which all are 0 up to 2**-144: 2**digits >= 100 b."""
    return max(1, (-(-100 * scale.numerator // scale.denominator) - 1).bit_length())


@lru_cache(maxsize=1024)
def digit_thresholds(scale: Fraction) -> tuple[np.ndarray, tuple[int, ...]]:
    """P(digit j is 1) times 2**144, cut into its first 16 bits, uint16 (J,), and its other 128 bits."""
    with exact():
        rate = Decimal(scale.denominator) / Decimal(scale.numerator)
        powers = [(-rate * 2**digit).exp() for digit in range(digits_needed(scale))]
        whole = [int(q / (1 + q) * Decimal(2)**(_FIRST + _REST)) for q in powers]
    first = np.array([threshold >> _REST for threshold in whole], "<u2")
    first.setflags(write=False)
    return first, tuple(threshold & (2**_REST - 1) for threshold in whole)
