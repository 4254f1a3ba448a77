"""Gaussian noise for sums in which every home fills one block: the vector and the count of its own cluster or cell.

A home's answer is blocks x (width + 1) numbers, zero but for one block that holds (x, w): ||x||_2 <= 1 and a count w = 1.
Two such answers are at most max(2, sqrt(2 (1 + w^2))) apart in l2: 2 in the same block, where the counts cancel, and
sqrt(2 (1 + w^2)) in different ones. That is sqrt(2) less than twice the largest norm, which a law that knows nothing of
the blocks must take. Sampler and conversion are those of privacy/gaussian.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedenergy.privacy.epsilon import MICRO
from fedenergy.privacy.gaussian import check_delta, clip_l2, discrete_gaussian, rho_micro
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import NoiseSource
from fedenergy.privacy.noise_free import reveal_to_mechanism

MOST = 2**16          # coordinates
FAST = 2**40          # grid steps
SMOOTH = 32           # variance of one share, grid steps squared: from here on the shares' sum is the law to e-300


@dataclass(frozen=True)
class OneBlock:
    """The law of a query with `blocks` blocks of `width` numbers and a count (width 0: counts alone, a histogram).

    delta  probability with which epsilon may fail

    Formal guarantee: one noise on the sum (`noise`), or n shares of it (`share`), is rho-zCDP in a household's whole
    record, replace-one, hence (epsilon, delta): rho = Delta_2^2 / (2 sigma^2), with Delta_2 as above, in integers.

    | case                             | what holds                                                                  |
    |----------------------------------|-----------------------------------------------------------------------------|
    | a home with nothing to say       | all zeros: no farther from any answer than two answers are from each other  |
    | a block that no home fills       | noised like any other: nothing branches on a count                          |
    | trust "sum"                      | n discrete Gaussians of variance sigma^2 / n; their sum is within tau of    |
    |                                  | the law (Kairouz, Liu, Steinke 2021, Proposition 14), paid from rho's last  |
    |                                  | millionth; all n shares or none                                             |
    | a home that grants less epsilon  | its block is scaled down: the same sigma is its own rho                     |

    >>> law = OneBlock(4, 12, 1e-5)
    >>> round(law.sensitivity(), 5), round(OneBlock(4, 0, 1e-5).sensitivity(), 5)     # 2, and sqrt(2) for a histogram
    (2.0, 1.41421)
    """

    blocks: int
    width: int
    delta: float

    def __post_init__(self) -> None:
        for name, least in (("blocks", 1), ("width", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
                raise ValueError(f"{name} = {value!r} is not a whole number from {least} to {MOST - 1}")
        if self.size > MOST:
            raise ValueError(f"{self.blocks} blocks of {self.width + 1} are {self.size} coordinates, more than {MOST}")
        object.__setattr__(self, "delta", check_delta(self.delta))

    @classmethod
    def of(cls, task: Any, delta: float, coordinates: int) -> OneBlock:
        """The law that a query's `task` names in its layout. ValueError where that is missing or does not fit."""
        layout = task.get("layout") if isinstance(task, Mapping) else None
        if not isinstance(layout, Mapping) or set(layout) != {"blocks", "width"}:
            raise ValueError("a query about blocks says in its task how many blocks of which width there are")
        made = cls(int(layout["blocks"]), int(layout["width"]), delta)
        if made.size != coordinates:
            raise ValueError(f"{made.blocks} blocks of {made.width + 1} are not the {coordinates} coordinates of the kind")
        return made

    @property
    def size(self) -> int:
        return self.blocks * (self.width + 1)

    @property
    def clip(self) -> float:
        """The l2 bound of one answer: sqrt(1 + w^2), or 1 for counts alone."""
        return math.sqrt(2.0) if self.width else 1.0

    @property
    def grid(self) -> NoiseGrid:
        return NoiseGrid(self.clip)

    @property
    def _parts(self) -> tuple[int, int]:
        """Bounds of the vector and of the count in grid steps, their squares together at most K**2."""
        vector = int(1 / self.grid.step) if self.width else 0
        return vector, math.isqrt(self.grid.bound**2 - vector**2)

    @property
    def weight(self) -> float:
        """w: what one home adds to its block's count, 1 rounded down to the grid."""
        return self._parts[1] * self.grid.step

    @property
    def squared(self) -> int:
        """Delta_2^2, replace-one, in grid steps squared."""
        vector, count = self._parts
        return max((2 * vector) ** 2, 2 * (vector**2 + count**2))

    def sensitivity(self) -> float:
        """Delta_2, replace-one."""
        return math.sqrt(self.squared) * self.grid.step

    def rho_micro(self, epsilon_micro: int) -> int:
        return rho_micro(epsilon_micro, self.delta)

    def variance(self, epsilon_micro: int) -> Fraction:
        """sigma^2 in grid steps squared, exact."""
        return Fraction(self.squared * MICRO, 2 * self.rho_micro(epsilon_micro))

    def scale_units(self, epsilon_micro: int) -> float:
        """sigma, where one home adds a vector of norm 1 at most and a count of 1."""
        return math.sqrt(self.variance(epsilon_micro)) * self.grid.step

    def noise(self, source: NoiseSource, epsilon_micro: int, size: int) -> np.ndarray:
        """(size,) int64: the Curator's one noise."""
        return discrete_gaussian(source, self.variance(epsilon_micro), size)

    def share(self, source: NoiseSource, epsilon_micro: int, parties: int, size: int) -> np.ndarray:
        """(size,) int64: one of the `parties` noises that add up to the zone's. ValueError where they would not."""
        if isinstance(parties, bool) or not isinstance(parties, int | np.integer) or parties < 1:
            raise ValueError(f"parties = {parties!r} is not a number of homes: give the n that was fixed before the query")
        rho = self.rho_micro(epsilon_micro) - 1
        each = Fraction(self.squared * MICRO, 2 * rho * int(parties)) if rho > 0 else Fraction(0)
        if each < SMOOTH:
            raise ValueError(f"epsilon is too small or too large for {parties} shares of a discrete Gaussian: "
                             'use trust "curator"')
        return discrete_gaussian(source, each, size)

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """K_i of a home that grants less than was asked, under the noise of what was asked."""
        bound = self.grid.bound
        self.grid.bound_for(granted_micro, asked_micro)  # its checks
        return math.isqrt(bound**2 * self.rho_micro(granted_micro) // self.rho_micro(asked_micro))

    def deposit(self, summary: Any, bound: int | None = None) -> np.ndarray:
        """(d,) int64: the block rounded and its vector clipped in integers, zeros elsewhere. No noise.

        summary  (d,) with at most one block filled, whose last number is the count 1
        Guarantee: whatever the vector holds, the answer has the form that the sensitivity was taken for.
        Errors: ValueError where several blocks are filled, a count is not 1, or a number is not finite.
        """
        values = np.asarray(reveal_to_mechanism(summary), np.float64)
        bound = self.grid.bound if bound is None else bound
        if values.shape != (self.size,) or not np.isfinite(values).all() or not 0 <= bound <= self.grid.bound:
            raise ValueError(f"an answer in blocks holds {self.size} finite numbers, clipped to at most {self.grid.bound}")
        table = values.reshape(self.blocks, self.width + 1)
        filled = np.flatnonzero(table.any(axis=1))
        found = np.zeros(table.shape, np.int64)
        if filled.size > 1 or (filled.size and table[filled[0], -1] != 1):
            raise ValueError("an answer in blocks fills one block, with a count of 1, or none")
        if filled.size:
            vector, count = (part * bound // self.grid.bound for part in self._parts)
            inner, step = table[filled[0], :-1], self.grid.step
            if np.abs(inner).max(initial=0.0) < FAST * step:  # exact: the step is a power of two
                steps = [int(value) for value in np.rint(inner / step).tolist()]
            else:
                steps = [round(Fraction(value) / Fraction(step)) for value in inner.tolist()]
            found[filled[0]] = [*clip_l2(steps, vector), count]
        return found.ravel()
