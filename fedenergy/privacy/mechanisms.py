"""The Laplace mechanism on a power-of-two grid: round first, clip after, in integers; then integer noise.

The sensitivity is a property of the mechanism and the only source of a noise scale. This set is closed: it carries the
guarantee. Source of the release: HXAI, papers/hxai.zh.txt, "local explanation and differentially private release";
the source's scale has no stated adjacency, ours is replace-one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedenergy.privacy.epsilon import MICRO, check_micro
from fedenergy.privacy.noise import (
    NoiseSource,
    SecureNoise,
    SimulationNoise,
    discrete_laplace,
    discrete_laplace_many,
    noise_from,
)
from fedenergy.privacy.noise_free import NoiseFree, reveal_to_mechanism

__all__ = ["Laplace", "NoiseGrid", "NoiseSource", "SecureNoise", "SimulationNoise", "discrete_laplace",
           "discrete_laplace_many", "noise_from"]

RELATIONS = {"replace-one": 2, "zero-out": 1}  # the l1 distance of two neighbours, in clipping bounds
_FAST = 2**40  # below it, |z| * K and sums of 2**20 coordinates fit int64


@dataclass(frozen=True, init=False)
class NoiseGrid:
    """The integers that summaries become: step g = 2**(floor(log2 C) - 20), l1 bound K = floor(C / g) < 2**21.

    clip  C, the l1 clipping bound in units of S (kWh^2), 2**-200 <= C <= 2**200; public, or paid for

    >>> grid = NoiseGrid(50.0)
    >>> grid.step == 2.0**-15, grid.bound
    (True, 1638400)
    """

    clip_bound: float

    def __init__(self, clip: float) -> None:
        if isinstance(clip, bool | str) or not 2.0**-200 <= clip <= 2.0**200:
            raise ValueError(f"clip = {clip!r} is no clipping bound: give a positive, finite l1 bound of one home's S")
        object.__setattr__(self, "clip_bound", float(clip))

    @property
    def step(self) -> float:
        """g, in units of S."""
        return math.ldexp(1.0, math.frexp(self.clip_bound)[1] - 21)

    @property
    def bound(self) -> int:
        """K, in grid steps."""
        return int(self.clip_bound / self.step)

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """The l1 bound K_i = floor(K granted / asked) of a home that grants less than was asked: eps_i = 2 K_i / b.

        Errors: ValueError unless 0 < granted <= asked, both integer micro-epsilon.

        >>> NoiseGrid(50.0).bound_for(160_000, 6_730_000)
        38951
        """
        check_micro(granted_micro, "granted_micro")
        check_micro(asked_micro, "asked_micro")
        if granted_micro > asked_micro:
            raise ValueError(f"granted_micro = {granted_micro} exceeds asked_micro = {asked_micro}: "
                             "an offer never exceeds what was asked")
        return self.bound * granted_micro // asked_micro

    def encode(self, summary: Any, bound: int | None = None) -> Any:
        """Round to the grid, half to even, then clip in integers to ||z||_1 <= bound (K unless given).

        summary  S, (d,) or (homes, d) real numbers in units of S, or a NoiseFree
        Guarantee: ||z||_1 <= bound exactly for every finite S, however large; int64 of the same shape. What comes out
        carries no noise: a NoiseFree gives a NoiseFree.
        Errors: ValueError for NaN, infinity, no coordinates.
        """
        z = self._clipped(_numbers(summary), self._checked(bound))
        return NoiseFree(z) if isinstance(summary, NoiseFree) else z

    def clip(self, z: Any, bound: int | None = None) -> Any:
        """z_k becomes sign(z_k) (|z_k| bound // ||z||_1) where ||z||_1 > bound; (..., d) int64, any int64 values."""
        inner = np.asarray(reveal_to_mechanism(z))
        if inner.dtype.kind not in "iu" or inner.ndim == 0 or inner.shape[-1] == 0:
            raise ValueError(f"integers (d,) are clipped here, not {inner.dtype} {inner.shape}: encode floats first")
        bound = self._checked(bound)
        rows = [_clip_exact(row, bound) for row in inner.reshape(-1, inner.shape[-1]).tolist()]
        clipped = np.array(rows, np.int64).reshape(inner.shape)
        return NoiseFree(clipped) if isinstance(z, NoiseFree) else clipped

    def decode(self, z: Any) -> np.ndarray:
        """z g, float64: exact, and a multiple of g, for |z| <= 2**53."""
        return np.asarray(z, np.int64).astype(np.float64) * self.step

    def was_clipped(self, summary: Any) -> Any:
        """Whether rounding alone exceeds K: bool, or (homes,) bool. Inside view: never leaves the box."""
        values = _numbers(summary)
        rows = values.reshape(-1, values.shape[-1])
        over = [sum(map(abs, _round_exact(row, self.step))) > self.bound for row in rows]
        return over[0] if values.ndim == 1 else np.array(over).reshape(values.shape[:-1])

    def _checked(self, bound: int | None) -> int:
        if bound is None:
            return self.bound
        if isinstance(bound, bool) or not isinstance(bound, int) or not 0 <= bound <= self.bound:
            raise ValueError(f"bound = {bound!r} is not an integer of 0 .. K = {self.bound}: take it from bound_for")
        return bound

    def _clipped(self, values: np.ndarray, bound: int) -> np.ndarray:
        rows = values.reshape(-1, values.shape[-1])
        large = np.abs(rows).max(axis=1) > _FAST * self.step if rows.shape[1] <= 2**20 else np.ones(len(rows), bool)
        z = np.rint(np.where(large[:, None], 0.0, rows) / self.step).astype(np.int64)
        size = np.abs(z)
        norm = size.sum(axis=1, keepdims=True)
        z = np.where(norm > bound, np.sign(z) * (size * bound // np.maximum(norm, 1)), z)
        for row in np.flatnonzero(large):
            z[row] = _clip_exact(_round_exact(rows[row], self.step), bound)
        return z.reshape(values.shape)


@dataclass(frozen=True)
class Laplace:
    """Discrete Laplace noise on the grid, per vector: b = sensitivity / epsilon.

    clip  C, the l1 clipping bound of one household's summary, in units of S

    Formal guarantee: `release` is epsilon-differentially private in the household's whole record (up to the sampler's
    2**-136 a draw), epsilon = epsilon_micro / 1e6, in the relation that the scale was taken for.

    | case                              | what holds                                                |
    |-----------------------------------|-----------------------------------------------------------|
    | replace-one (the default)         | two records of one home are at most 2 K grid steps apart  |
    | zero-out                          | one home's record against zeros: K                        |
    | a coordinate that is 0 (absent)   | noised like any other                                     |
    | C not a multiple of g             | K rounds down: sensitivity 2 K g <= 2 C                   |
    | seeded noise                      | not private: outputs carry the stamp                      |

    >>> Laplace(50.0).sensitivity(), Laplace(50.0).sensitivity("zero-out"), Laplace(50.0).scale(1_000_000)
    (100.0, 50.0, Fraction(3276800, 1))
    """

    clip: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", self.grid.clip_bound)

    @property
    def grid(self) -> NoiseGrid:
        return NoiseGrid(self.clip)

    def grid_sensitivity(self, relation: str = "replace-one") -> int:
        """l1 sensitivity in grid steps: 2 K ("replace-one") or K ("zero-out")."""
        if relation not in RELATIONS:
            raise ValueError(f"relation {relation!r} is unknown: use one of {', '.join(RELATIONS)}")
        return RELATIONS[relation] * self.grid.bound

    def sensitivity(self, relation: str = "replace-one") -> float:
        """l1 sensitivity in units of S: 2 C or C, rounded down to the grid."""
        return self.grid_sensitivity(relation) * self.grid.step

    def scale(self, epsilon_micro: int, relation: str = "replace-one") -> Fraction:
        """b in grid steps, exact: sensitivity 10**6 / epsilon_micro."""
        return Fraction(self.grid_sensitivity(relation) * MICRO, check_micro(epsilon_micro))

    def scale_units(self, epsilon_micro: int, relation: str = "replace-one") -> float:
        """b in units of S."""
        return float(self.scale(epsilon_micro, relation)) * self.grid.step

    def noise(self, source: NoiseSource, epsilon_micro: int, size: int) -> np.ndarray:
        """(size,) int64 noise in grid steps."""
        return discrete_laplace(source, self.scale(epsilon_micro), size)

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """K_i of a home that grants less than was asked, under the noise of what was asked: NoiseGrid.bound_for."""
        return self.grid.bound_for(granted_micro, asked_micro)

    def release(self, summary: Any, source: NoiseSource, epsilon_micro: int) -> np.ndarray:
        """What trust "local" lets out: (d,) float64, rounded, clipped, noised, a multiple of g."""
        # one home: broadcasting one noise over several would cancel in differences
        return self.release_many(_vector(summary)[None], [source], [epsilon_micro])[0]

    def release_many(self, summaries: Any, sources: Sequence[NoiseSource], granted_micro: Sequence[int]) -> np.ndarray:
        """(homes, d) float64: row i is `release(summaries[i], sources[i], granted_micro[i])`, byte for byte."""
        z = self.deposit_many(summaries, [self.grid.bound] * len(sources))
        scales = {amount: self.scale(amount) for amount in set(granted_micro)}
        noise = discrete_laplace_many(sources, [scales[amount] for amount in granted_micro], z.shape[1])
        return self.grid.decode(z + noise)

    def deposit_many(self, summaries: Any, bounds: Sequence[int]) -> np.ndarray:
        """(homes, d) int64: row i is `deposit(summaries[i], bounds[i])`."""
        values = _numbers(summaries)
        if values.ndim != 2 or len(values) != len(bounds):
            raise ValueError(f"summaries {values.shape} for {len(bounds)} bounds: give (homes, d) and one bound for each")
        found = np.empty(values.shape, np.int64)
        for bound in set(bounds):
            rows = [row for row, own in enumerate(bounds) if own == bound] if len(set(bounds)) > 1 else slice(None)
            found[rows] = self.grid.encode(values[rows], bound)
        return found

    def deposit(self, summary: Any, bound: int | None = None) -> np.ndarray:
        """What trust "curator" lets out: (d,) int64, rounded and clipped, without noise, for the Curator alone."""
        return reveal_to_mechanism(self.grid.encode(summary, bound))

    def plain(self, summary: Any) -> np.ndarray:
        """What trust "open" lets out: (2, d) float64, clipped and unclipped; no privacy."""
        return np.stack([self.grid.decode(self.deposit(summary)), _vector(summary)])


def _numbers(summary: Any) -> np.ndarray:
    values = np.asarray(reveal_to_mechanism(summary))
    if values.dtype.kind not in "iuf" or values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"a summary is (d,) real numbers with d >= 1, not {values.dtype} {values.shape}")
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a summary holds finite numbers only: it has NaN or infinity; mark missing readings before "
                         "the model and leave them out of the sum")
    return values


def _vector(summary: Any) -> np.ndarray:
    values = _numbers(summary)
    if values.ndim != 1:
        raise ValueError(f"one home's summary is (d,), not {values.shape}: release each home with its own noise")
    return values


def _round_exact(row: np.ndarray, step: float) -> list[int]:
    """Python integers rint(S / g): exact for every finite S, half to even."""
    return [round(Fraction(value) / Fraction(step)) for value in row.tolist()]


def _clip_exact(row: list[int], bound: int) -> list[int]:
    norm = sum(map(abs, row))
    if norm <= bound:
        return row
    return [(value > 0) * (value * bound // norm) - (value < 0) * (-value * bound // norm) for value in row]
