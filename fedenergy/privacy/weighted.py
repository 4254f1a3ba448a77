"""Laplace noise that differs by coordinate: from public weights (sound), or from the true answer (the source's; leaks).

WeightedLaplace changes the ball, not only the noise: S is clipped to sum |S_k|/w_k <= C and coordinate k gets the scale
b_k = w_k 2 C/epsilon. It is the Laplace mechanism on S/w, whose output is multiplied by w afterwards: the sensitivity,
the grid and the integers are those of Laplace, and weights of 1 give its very bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedenergy.privacy.epsilon import check_micro
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import NoiseSource, discrete_laplace
from fedenergy.privacy.noise_free import reveal_to_mechanism

WEIGHT_STEP = 2.0**-10  # weights are multiples of it: z w_k g is then exact in binary
MAX_WEIGHT = 2.0**10
WEIGHTED, ATTRIBUTION = "weighted-laplace", "attribution-laplace"


def ball_weights(profile: Sequence[float], power: float = 0.5) -> tuple[float, ...]:
    """(d,) weights for a public profile of |S|, (d,): w_k = q_k**power sum_j q_j**(1 - power), with q its shares.

    A vector with that profile and ||S||_1 = C then just fills the weighted ball, as it fills the plain one: weights are
    compared at equal clipping. power 1/2 makes sum w_k least, hence the mean absolute error: (sum sqrt q)**2 instead
    of d; power 1/3 makes the mean squared error least; 0 is the plain ball. Shares are at least 1e-3, so that no
    coordinate is clipped away. Results are multiples of 2**-10.
    Errors: ValueError for an empty, negative, infinite or zero profile and for a power outside [0, 1].

    >>> ball_weights([1.0, 1.0]), ball_weights([16.0, 1.0, 1.0], 0.5)
    ((1.0, 1.0), (1.3330078125, 0.3330078125, 0.3330078125))
    """
    sizes = [float(value) for value in profile]
    if not sizes or not all(0 <= value < math.inf for value in sizes) or not 0 < math.fsum(sizes) < math.inf:
        raise ValueError(f"profile = {sizes!r:.120} is not a list of finite numbers >= 0 with one above 0")
    if isinstance(power, bool) or not isinstance(power, int | float) or not 0 <= power <= 1:
        raise ValueError(f"power = {power!r} is not a number in [0, 1]")
    total = math.fsum(sizes)
    shares = [max(value / total, 1e-3) for value in sizes]
    total = math.fsum(shares)
    shares = [share / total for share in shares]
    fill = math.fsum(share ** (1 - power) for share in shares)
    return tuple(quantise(share**power * fill) for share in shares)


def quantise(weight: float) -> float:
    """The nearest multiple of 2**-10 in [2**-10, 2**10]."""
    return min(MAX_WEIGHT, max(1, round(weight / WEIGHT_STEP)) * WEIGHT_STEP)


@dataclass(frozen=True)
class WeightedLaplace:
    """Discrete Laplace noise of scale b_k = w_k 2 C/epsilon on S clipped to sum |S_k|/w_k <= C.

    clip     C, units of S; weights: (d,) multiples of 2**-10 in [2**-10, 2**10], public: never computed from S

    Formal guarantee: `release` is epsilon-differentially private in the household's whole record (replace-one), since
    S/w is rounded, clipped and noised exactly as Laplace does it, and multiplying by public weights is post-processing.

    | case                              | what holds                                                   |
    |-----------------------------------|--------------------------------------------------------------|
    | all weights 1                     | byte for byte Laplace                                        |
    | weights a w and clip C/a          | the same ball and the same noise, on another grid            |
    | trust "sum", "curator"            | every home must use the same weights; decode the sum         |
    | weights that depend on S          | no guarantee at all: AttributionLaplace                      |

    >>> WeightedLaplace(50.0, (1.0, 0.5)).scale_units(1_000_000)
    (100.0, 50.0)
    """

    clip: float
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        weights = tuple(float(value) for value in self.weights)
        if not weights or not all(WEIGHT_STEP <= w <= MAX_WEIGHT and (w / WEIGHT_STEP).is_integer() for w in weights):
            raise ValueError(f"weights = {weights!r:.120}: give one multiple of 2**-10 in [2**-10, 2**10] for each "
                             "coordinate (ball_weights makes them)")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "clip", self.laplace.clip)

    @property
    def laplace(self) -> Laplace:
        """The plain mechanism on S/w."""
        return Laplace(self.clip)

    @property
    def grid(self) -> NoiseGrid:
        """Of S/w. A release lies on the grid of step w_k g, in coordinate k."""
        return self.laplace.grid

    def grid_sensitivity(self, relation: str = "replace-one") -> int:
        """sum |z_k - z'_k| of two neighbours, grid steps of S/w: 2 K or K."""
        return self.laplace.grid_sensitivity(relation)

    def sensitivity(self, relation: str = "replace-one") -> float:
        """sum |S_k - S'_k|/w_k of two neighbours after clipping, units of S: 2 C or C."""
        return self.laplace.sensitivity(relation)

    def scale(self, epsilon_micro: int) -> Fraction:
        """b in grid steps of S/w, the same for every coordinate."""
        return self.laplace.scale(epsilon_micro)

    def scale_units(self, epsilon_micro: int) -> tuple[float, ...]:
        """b_k = w_k b in units of S."""
        return tuple(weight * self.laplace.scale_units(epsilon_micro) for weight in self.weights)

    def encode(self, summary: Any, bound: int | None = None) -> np.ndarray:
        """z of S/w, (d,) int64: rounded, then clipped to ||z||_1 <= bound (K unless given). Carries no noise."""
        return self.laplace.deposit(self._scaled(summary), bound)

    deposit = encode

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """K_i of a home that grants less than was asked, under the noise of what was asked: NoiseGrid.bound_for."""
        return self.grid.bound_for(granted_micro, asked_micro)

    def noise(self, source: NoiseSource, epsilon_micro: int, size: int) -> np.ndarray:
        """(size,) int64, grid steps of S/w."""
        return self.laplace.noise(source, epsilon_micro, size)

    def decode(self, z: Any) -> np.ndarray:
        """z g w, float64 (d,): of one home's integers, or of a sum over homes with the same weights."""
        return self.grid.decode(z) * np.array(self.weights)

    def release(self, summary: Any, source: NoiseSource, epsilon_micro: int) -> np.ndarray:
        """What trust "local" lets out: (d,) float64, noised, multiples of w_k g."""
        z = self.encode(summary)
        return self.decode(z + self.noise(source, epsilon_micro, z.size))

    def plain(self, summary: Any) -> np.ndarray:
        """What trust "open" lets out: (2, d) float64, clipped and unclipped; no privacy."""
        return np.stack([self.decode(self.encode(summary)), np.asarray(reveal_to_mechanism(summary), np.float64)])

    def _scaled(self, summary: Any) -> np.ndarray:
        values = np.asarray(reveal_to_mechanism(summary))
        if values.shape != (len(self.weights),):
            raise ValueError(f"a summary of {values.shape} does not fit {len(self.weights)} weights, one each")
        return values / np.array(self.weights)


@dataclass(frozen=True)
class AttributionLaplace:
    """The source's negotiated allocation: larger |S_k| gets more epsilon, hence less noise. It leaks; a study compares.

    clip         C, l1 bound of S
    preference   (d,) what the home lets go: > 0, 1 is neutral; need: (d,) what the operator asks for; () means all 1
    power        shares are |S_k|**power: 1 as in the source, 0 ignores S
    floor        the least share, as a part of an equal one, in (0, 1]

    epsilon_k = epsilon d share_k and b_k = 2 C/epsilon_k: the mean over coordinates is the epsilon granted. (The source
    speaks of a total constraint; it states no formula, nor whether the total is over coordinates or over the vector.)

    No guarantee at the epsilon granted. (1) Even with shares that everybody knew, a home could move the whole ball into
    the coordinate with the least noise: the cost is max_k epsilon_k. (2) The shares are computed from S, so the noise
    levels, which an observer sees, tell S; no finite epsilon follows from this argument.
    """

    clip: float
    preference: tuple[float, ...] = ()
    need: tuple[float, ...] = ()
    power: float = 1.0
    floor: float = 0.1

    leaks = True

    def __post_init__(self) -> None:
        for name in ("preference", "need"):
            values = tuple(float(value) for value in getattr(self, name))
            if not all(0 < value < math.inf for value in values):
                raise ValueError(f"{name} = {values!r:.120} is not a list of finite numbers > 0")
            object.__setattr__(self, name, values)
        if not 0 <= self.power <= 4 or not 0 < self.floor <= 1:
            raise ValueError(f"power = {self.power!r}, floor = {self.floor!r}: give 0 <= power <= 4 and 0 < floor <= 1")

    @property
    def laplace(self) -> Laplace:
        return Laplace(self.clip)

    @property
    def grid(self) -> NoiseGrid:
        return self.laplace.grid

    def shares(self, summary: Any) -> np.ndarray:
        """(d,) shares of the total epsilon, adding up to 1. Computed from S: the leak."""
        z = np.abs(self.laplace.deposit(summary)).astype(np.float64)
        raw = z**self.power if self.power else np.ones_like(z)
        for factor in (self.preference, self.need):
            if factor:
                if len(factor) != z.size:
                    raise ValueError(f"{len(factor)} factors do not fit {z.size} coordinates")
                raw = raw * np.array(factor)
        total = raw.sum()
        even = np.full(z.size, 1 / z.size)
        return (1 - self.floor) * (raw / total if total > 0 else even) + self.floor * even

    def epsilons_micro(self, shares: np.ndarray, epsilon_micro: int) -> list[int]:
        """Micro-epsilon of each coordinate, rounded down, at least 1; their mean is at most the one granted."""
        check_micro(epsilon_micro)
        return [max(1, math.floor(epsilon_micro * shares.size * share)) for share in shares.tolist()]

    def cost_if_public_micro(self, shares: np.ndarray, epsilon_micro: int) -> int:
        """What a release would cost if its shares were public: max_k epsilon_k, above what was granted."""
        return max(self.epsilons_micro(shares, epsilon_micro))

    def release(self, summary: Any, source: NoiseSource, epsilon_micro: int) -> np.ndarray:
        """(d,) float64 with noise of scale 2 C/epsilon_k in coordinate k. Leaks: see the class."""
        z = self.laplace.deposit(summary)
        noise = [discrete_laplace(source, self.laplace.scale(part), 1)[0]
                 for part in self.epsilons_micro(self.shares(summary), epsilon_micro)]
        return self.grid.decode(z + np.array(noise, np.int64))
