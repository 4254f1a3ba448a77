"""Noisy max over one home's categories: a home tells one category, so that the zone can count them.

Report noisy max adds noise to d scores and tells the index of the largest; with Gumbel noise it is the exponential
mechanism, P(k) proportional to exp(epsilon score_k / (2 Delta)) in general (McSherry and Talwar 2007). Here a home's
scores are 1 for its own largest category and 0 elsewhere. The normaliser is then the same for every home, so the
factor 2 is not needed: P(k) is proportional to exp(epsilon) for the largest and to 1 elsewhere, and no mechanism that
tells one category and treats all alike does better. (It is d-ary randomised response: Kairouz, Oh and Viswanath 2014.)
With one-sided or Laplace noise of scale 2 / epsilon on the same scores the true category is told less often at the
same guarantee: tests/privacy/test_noisy_max.py measures it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from fedenergy.privacy.epsilon import MICRO, check_micro
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import NoiseSource, exact, random_integer

NOISY_MAX = "noisy-max"
_BITS = 192


@dataclass(frozen=True)
class NoisyMax:
    """The home's largest category, or another one by chance; told as a vector whose sum over homes counts without bias.

    clip   C: the value of one vote; 1 counts homes

    Formal guarantee: `release` is purely epsilon-differentially private in the household's whole record (replace-one),
    exactly: the probability of telling the truth is rounded down to 2**-192, and what is released follows from the
    category told and from public numbers.

    | case                                | what holds                                                         |
    |-------------------------------------|--------------------------------------------------------------------|
    | no category (all zeros)             | a category at random, as if one vote were spread evenly            |
    | two largest alike                   | the first one counts                                               |
    | zone sum over n homes               | unbiased within n 2**-21 C; variance: see variance                 |
    | trust "sum", "curator"              | not used: one-hot votes with one Laplace noise of scale 2 C/epsilon |
    | d = 1                               | nothing to hide: the one category is told                          |

    >>> [round(chance, 3) for chance in NoisyMax(1.0).probabilities(1_000_000, 7)]      # the truth, each other category
    [0.312, 0.115]
    """

    clip: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", self.grid.clip_bound)

    @property
    def grid(self) -> NoiseGrid:
        return NoiseGrid(self.clip)

    def probabilities(self, epsilon_micro: int, size: int) -> tuple[float, float]:
        """(p, q): of telling the largest category of `size`, and of telling each other one; p / q = exp(epsilon)."""
        honest = self._honest(epsilon_micro, size)
        return honest + (1 - honest) / size, (1 - honest) / size

    def variance(self, epsilon_micro: int, size: int) -> tuple[float, float]:
        """Variance of one home's released coordinate, units of S squared: its own category's, and every other's."""
        vote = (self.clip / self._honest(epsilon_micro, size)) ** 2
        p, q = self.probabilities(epsilon_micro, size)
        return p * (1 - p) * vote, q * (1 - q) * vote

    def choose(self, source: NoiseSource, largest: int | None, epsilon_micro: int, size: int) -> int:
        """The category told, 0 .. size - 1. largest: the home's own, or None where it has none."""
        honest = random_integer(source, _BITS) < truth_threshold(epsilon_micro, size)
        other = _below(source, size)
        return largest if honest and largest is not None else other

    def release(self, summary: Any, source: NoiseSource, epsilon_micro: int) -> np.ndarray:
        """What trust "local" lets out: (d,) float64, multiples of g: one high value, at the category told."""
        z = self.deposit(summary)
        largest = int(np.argmax(z)) if z.max() > 0 else None
        told = self.choose(source, largest, epsilon_micro, z.size)
        low, high = self.levels(epsilon_micro, z.size)
        return self.grid.decode(np.where(np.arange(z.size) == told, high, low))

    def levels(self, epsilon_micro: int, size: int) -> tuple[int, int]:
        """Grid integers told for the other categories and for the one chosen: (0 - q) / (p - q) and (1 - q) / (p - q)
        votes, so that the mean over the noise is the home's own vote."""
        _, q = self.probabilities(epsilon_micro, size)
        votes = np.array([-q, 1 - q]) / self._honest(epsilon_micro, size) * self.clip / self.grid.step
        low, high = np.rint(votes).astype(np.int64).tolist()
        return low, high

    @staticmethod
    def _honest(epsilon_micro: int, size: int) -> float:
        """p - q."""
        return truth_threshold(epsilon_micro, size) / 2.0**_BITS

    def deposit(self, summary: Any, bound: int | None = None) -> np.ndarray:
        """As Laplace: what the oracle sees clipped."""
        return Laplace(self.clip).deposit(summary, bound)

    def plain(self, summary: Any) -> np.ndarray:
        """As Laplace."""
        return Laplace(self.clip).plain(summary)

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """As Laplace: not used, since every home adds its own noise."""
        return self.grid.bound_for(granted_micro, asked_micro)


@lru_cache(maxsize=1024, typed=True)
def truth_threshold(epsilon_micro: int, size: int) -> int:
    """(exp(epsilon) - 1) / (exp(epsilon) + d - 1) times 2**192, rounded down: below it the truth is told, above it any
    of the d categories, the true one among them."""
    check_micro(epsilon_micro)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{size!r} is not a number of categories")
    with exact():
        grown = (Decimal(epsilon_micro) / MICRO).exp()
        threshold = int((grown - 1) / (grown + size - 1) * Decimal(2) ** _BITS)
    if threshold < 2 ** (_BITS - 32):  # larger votes would leave the exact integers of a float
        raise ValueError(f"epsilon = {epsilon_micro / MICRO:g} over {size} categories tells nothing: ask for more")
    return min(threshold, 2**_BITS - 1)


def _below(source: NoiseSource, size: int) -> int:
    """A uniform integer below size, by rejection."""
    most = 2**64 // size * size
    while (drawn := random_integer(source, 64)) >= most:
        pass
    return drawn % size
