"""One Gaussian noise that n homes make together: each adds discrete Gaussian noise of variance sigma^2 / n to its clipped
vector, and only the sum over all of them is opened.

The sum of such shares is not exactly a discrete Gaussian, but its privacy is known (Kairouz, Liu and Steinke, "The
Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation", 2021, Theorem 1):
(1/2) e^2-zCDP with e = Delta_2 / sigma + tau sqrt(d), tau = 10 sum_(k<n) exp(-2 pi^2 (sigma^2 / n) k / (k + 1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedenergy.privacy.gaussian import Gaussian, discrete_gaussian
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import NoiseSource

LEAST_SHARE = 100                      # variance of one share, grid steps squared: tau < 10 n exp(-986), below 1e-417 n
INFLATED = 1 + Fraction(1, 2**40)      # of sigma^2: pays for tau sqrt(d), which is below 1e-400


@dataclass(frozen=True)
class SharedGaussian:
    """The law of an update under trust "sum"; clips and charges as `Gaussian` does.

    clip   C, the l2 bound of one home's vector; delta: strictly between 0 and 1

    Formal guarantee: the sum over exactly the n homes that were fixed before a share was drawn is rho-zCDP in a household's
    whole record, replace-one, hence (epsilon, delta): two records are at most 2 K apart in l2. With a share missing the sum
    must stay closed: its noise is too small.

    >>> law = SharedGaussian(1.0, 1e-5)
    >>> law.sensitivity(), round(law.scale_units(1_000_000), 2), round(Gaussian(1.0, 1e-5).scale_units(1_000_000), 2)
    (2.0, 8.09, 8.09)
    """

    clip: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", self.one.clip)
        object.__setattr__(self, "delta", self.one.delta)

    @property
    def one(self) -> Gaussian:
        """The same law with one noise."""
        return Gaussian(self.clip, self.delta)

    @property
    def grid(self) -> NoiseGrid:
        return self.one.grid

    def sensitivity(self, relation: str = "replace-one") -> float:
        """l2, in units of the vector."""
        return self.one.sensitivity(relation)

    def rho_micro(self, epsilon_micro: int) -> int:
        """What is charged beside epsilon, millionths of rho."""
        return self.one.rho_micro(epsilon_micro)

    def variance(self, epsilon_micro: int) -> Fraction:
        """sigma^2 of the whole noise, grid steps squared."""
        return self.one.variance(epsilon_micro) * INFLATED

    def scale_units(self, epsilon_micro: int) -> float:
        """sigma of the whole noise, in units of the vector."""
        return float(self.variance(epsilon_micro)) ** 0.5 * self.grid.step

    def share(self, source: NoiseSource, epsilon_micro: int, parties: int, size: int) -> np.ndarray:
        """(size,) int64: one home's share, for `parties` homes fixed before. ValueError where the grid is too coarse."""
        if isinstance(parties, bool) or not isinstance(parties, int) or parties < 1:
            raise ValueError(f"parties = {parties!r} is not a number of homes: give the n that was fixed before the query")
        each = self.variance(epsilon_micro) / parties
        if each < LEAST_SHARE:
            raise ValueError(f"{parties} homes' shares have a variance of {float(each):.3g} grid steps squared, below "
                             f"{LEAST_SHARE}: ask for a smaller epsilon, or fewer homes")
        return discrete_gaussian(source, each, size)

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """K_i of a home that grants less than was asked."""
        return self.one.bound_for(granted_micro, asked_micro)

    def deposit(self, summary: Any, bound: int | None = None) -> np.ndarray:
        """(d,) int64: rounded, clipped in l2. No noise."""
        return self.one.deposit(summary, bound)
