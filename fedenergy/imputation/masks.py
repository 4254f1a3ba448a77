"""Which positions are missing: random points, blocks, one outage, a suffix, real outage lengths, mixtures.

A mask is True where a value is *observed*. Masks hold parameters only; they draw from a generator that is given, or from
the stream of their own seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedenergy.ids import stream

KINDS = ("points", "blocks", "blocks apart", "outage", "suffix", "runs", "mixed")
RATES = (0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Masks:
    """A distribution of masks; made by `points`, `blocks`, `outage`, `suffix`, `runs` and `mixed`.

    rates  shares of missing positions, one drawn per window; the missing count is exact (rounded, at least 1, at most
           T - 1, so that every window keeps an observed position)
    """

    kind: str
    rates: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    seed: int = 0
    parts: tuple[Masks, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"mask kind = {self.kind!r} is unknown (takes: {', '.join(KINDS)})")
        if bad := [rate for rate in self.rates if not 0 < rate < 1]:
            raise ValueError(f"missing rate {bad[0]!r} is not strictly between 0 and 1")
        if bad := [n for n in self.lengths if n < 1]:
            raise ValueError(f"run length {bad[0]!r} is not at least 1")

    @property
    def name(self) -> str:
        """For tables."""
        if self.kind == "mixed":
            return " + ".join(part.name for part in self.parts)
        numbers = self.rates or self.lengths
        return f"{self.kind} {'/'.join(f'{x:g}' for x in numbers)}"

    def observed(self, n: int, length: int, channels: int = 1, rng: np.random.Generator | None = None) -> np.ndarray:
        """(n, length, channels) bool, True where observed; points differ between channels, runs strike all of them.

        rng  None: the stream of the mask's seed, so that the same call gives the same masks
        """
        rng = stream(self.seed, "mask", "", self.kind) if rng is None else rng
        if length < 2:
            raise ValueError(f"a window of {length} positions cannot have both an observed and a missing one")
        if not n:
            return np.ones((0, length, channels), bool)
        if self.kind == "mixed":
            choice = rng.integers(len(self.parts), size=n)
            result = np.ones((n, length, channels), bool)
            for k, part in enumerate(self.parts):
                rows = np.flatnonzero(choice == k)
                if len(rows):
                    result[rows] = part.observed(len(rows), length, channels, rng)
            return result
        if self.kind == "points":
            missing = _points(self._counts(n, length * channels, rng), length * channels, rng)
            return ~missing.reshape(n, length, channels)
        if self.kind == "suffix":
            at = rng.choice(self.lengths, n)
            if at.max() >= length:
                raise ValueError(f"a suffix of {at.max()} does not fit a window of {length}: at most {length - 1}")
            missing = np.arange(length) >= length - at[:, None]
        elif self.kind == "outage":
            missing = _one_run(self._counts(n, length, rng), length, rng)
        elif self.kind == "runs":
            missing = _one_run(np.minimum(rng.choice(self.lengths, n), length - 1), length, rng)
        else:
            place = _blocks if self.kind == "blocks" else _blocks_apart
            missing = place(self._counts(n, length, rng), length, min(self.lengths), max(self.lengths), rng)
        return np.repeat(~missing[:, :, None], channels, axis=2)

    def _counts(self, n: int, positions: int, rng: np.random.Generator) -> np.ndarray:
        rate = rng.choice(np.asarray(self.rates), n)
        return np.clip(np.rint(rate * positions).astype(np.int64), 1, positions - 1)


def points(rate: float | Sequence[float] = RATES, seed: int = 0) -> Masks:
    """Single positions missing at random.

    >>> int((~points(0.5).observed(3, 96)).sum())
    144
    """
    return Masks("points", _tuple(rate), seed=seed)


def blocks(rate: float | Sequence[float] = RATES, shortest: int = 4, longest: int = 12, seed: int = 0,
           apart: bool = False) -> Masks:
    """Runs of `shortest` to `longest` positions until the rate is met (the last run is cut to meet it).

    apart  False: runs start anywhere and may touch or overlap; True: an observed position lies between any two
    """
    if shortest > longest:
        raise ValueError(f"shortest = {shortest} is longer than longest = {longest}")
    return Masks("blocks apart" if apart else "blocks", _tuple(rate), (shortest, longest), seed)


def outage(rate: float | Sequence[float] = RATES, seed: int = 0) -> Masks:
    """One run, anywhere in the window: a sustained outage."""
    return Masks("outage", _tuple(rate), seed=seed)


def suffix(horizon: int | Sequence[int], seed: int = 0) -> Masks:
    """The last `horizon` positions: forecasting with an imputer."""
    return Masks("suffix", lengths=tuple(int(h) for h in np.atleast_1d(horizon)), seed=seed)


def runs(lengths: Sequence[int], seed: int = 0) -> Masks:
    """One run whose length is drawn from a list, such as real outage lengths; longer ones are cut to T - 1."""
    return Masks("runs", lengths=tuple(int(n) for n in lengths), seed=seed)


def mixed(*parts: Masks, seed: int = 0) -> Masks:
    """Each window's mask comes from one of the parts, with equal chances."""
    if not parts:
        raise ValueError("mixed() needs at least one mask")
    return Masks("mixed", parts=parts, seed=seed)


def training_masks() -> Masks:
    """The default in training: points, blocks and outages at 10 to 50 %."""
    return mixed(points(), blocks(), outage())


def _tuple(rate: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(float(r) for r in np.atleast_1d(rate))


def _points(counts: np.ndarray, positions: int, rng: np.random.Generator) -> np.ndarray:
    order = rng.random((len(counts), positions)).argsort(axis=1)
    missing = np.zeros(order.shape, bool)
    np.put_along_axis(missing, order, np.arange(positions) < counts[:, None], axis=1)
    return missing


def _one_run(counts: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    start = rng.integers(0, length - counts + 1)[:, None]
    at = np.arange(length)
    return (at >= start) & (at < start + counts[:, None])


def _blocks(counts: np.ndarray, length: int, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """Runs at independent places, until each window has its count."""
    missing, at = np.zeros((len(counts), length), bool), np.arange(length)
    todo = np.arange(len(counts))
    while len(todo):
        size = np.minimum(rng.integers(low, high + 1, len(todo)), length)
        start = rng.integers(0, length - size + 1)[:, None]
        new = (at >= start) & (at < start + size[:, None]) & ~missing[todo]
        left = (counts[todo] - missing[todo].sum(1))[:, None]
        missing[todo] |= new & (new.cumsum(1) <= left)
        todo = todo[missing[todo].sum(1) < counts[todo]]
    return missing


def _blocks_apart(counts: np.ndarray, length: int, low: int, high: int, rng: np.random.Generator) -> np.ndarray:
    """Runs in random gaps: the observed positions leave observed + 1 gaps, a run goes into a gap of its own."""
    n, most = len(counts), -(-int(counts.max()) // low)
    ends = np.minimum(rng.integers(low, high + 1, (n, most)).cumsum(axis=1), counts[:, None])
    slots = length - counts + 1
    used = np.minimum((np.diff(ends, axis=1, prepend=0) > 0).sum(axis=1), slots)
    for row in np.flatnonzero(used < (np.diff(ends, axis=1, prepend=0) > 0).sum(axis=1)):
        ends[row, used[row] - 1:] = counts[row]            # more runs than gaps: the last one takes the rest
    lot = rng.random((n, length + 1))
    lot[np.arange(length + 1) >= slots[:, None]] = 2.0
    gaps = np.where(np.arange(length + 1) < used[:, None], lot.argsort(axis=1), length + 1)
    gaps.sort(axis=1)
    missing = np.zeros((n, length), bool)
    at = np.arange(length)
    before = np.zeros(n, np.int64)
    for k in range(int(used.max())):
        start = gaps[:, k] + before
        size = np.where(k < used, ends[:, k] - before, 0)
        missing |= (at >= start[:, None]) & (at < (start + size)[:, None])
        before = np.where(k < used, ends[:, k], before)
    return missing
