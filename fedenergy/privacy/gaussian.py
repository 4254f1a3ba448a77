"""The discrete Gaussian mechanism on the noise grid: round first, clip after in integers to an l2 ball, integer noise.

The sampler is exact rejection from discrete Laplace draws (Canonne, Kamath and Steinke, "The Discrete Gaussian for
Differential Privacy", 2020, Algorithm 3). The guarantee is zero-concentrated: rho = Delta_2^2 / (2 sigma^2) (their
Theorem 4), converted to (epsilon, delta) by their Corollary 13. Nothing is charged that did not run: rho is fixed from
epsilon and delta first, as a whole number of millionths rounded down, and sigma follows from it exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from fedenergy.privacy.epsilon import MICRO, check_micro
from fedenergy.privacy.mechanisms import RELATIONS, NoiseGrid
from fedenergy.privacy.noise import LARGEST_SCALE, NoiseSource, check_batch, discrete_laplace, exact, random_integer
from fedenergy.privacy.noise_free import reveal_to_mechanism

GAUSSIAN = "gaussian"
SMALLEST_DELTA = 1e-300
_FIRST, _REST = 64, 128
_MARGIN = 2.0**-40     # far above the float error of one acceptance probability (below 2**-50)
_SAFETY = 1e-9         # of log(delta): the conversion's own float error is below 1e-12
_FAST = 2**30          # below it a grid integer is exact after one float division
_RHO_MOST = 10**15     # micro-rho: epsilon above 30 million


# -- the sampler -------------------------------------------------------------------------------------------------------

def discrete_gaussian(source: NoiseSource, variance: Fraction, size: int) -> np.ndarray:
    """(size,) int64 independent draws of the discrete Gaussian law: P(x) proportional to exp(-x**2 / (2 variance)).

    variance  sigma**2 in grid steps squared, a Fraction (never a float), 0 < sigma < 2**50
    Guarantee: up to the discrete Laplace sampler's 2**-136 a draw the law is exact: a draw is accepted by comparing
    192 uniform bits with exp(-gamma), the first 64 of them in floats only where they are 2**-40 away from the answer.

    >>> from fedenergy.privacy.noise import SimulationNoise
    >>> int(np.abs(discrete_gaussian(SimulationNoise(1).source("h1", "q"), Fraction(1, 100), 50)).max())   # sigma .1
    0
    """
    if isinstance(variance, bool) or not isinstance(variance, Fraction | int):
        raise TypeError(f"the variance {variance!r} is a {type(variance).__name__}: give the Fraction of "
                        "Gaussian.variance")
    variance = Fraction(variance)
    if not 0 < variance < LARGEST_SCALE**2:
        raise ValueError(f"the variance {variance} grid steps squared lies outside (0, 2**100): raise epsilon or delta")
    check_batch([source], size)
    scale = math.isqrt(variance.numerator // variance.denominator) + 1
    found, missing = [np.zeros(0, np.int64)], int(size)
    while missing:
        drawn = discrete_laplace(source, Fraction(scale), 2 * missing + 4)
        kept = drawn[_accepted(source, drawn, variance, scale)][:missing]
        found.append(kept)
        missing -= kept.size
    return np.concatenate(found)


def _accepted(source: NoiseSource, drawn: np.ndarray, variance: Fraction, scale: int) -> np.ndarray:
    """Which Laplace draws become Gaussian ones: each with probability exp(-(|y| - variance / scale)**2 / 2 variance)."""
    words = np.frombuffer(source.bits(8 * drawn.size), "<u8")
    sigma = math.sqrt(variance)
    away = (np.abs(drawn).astype(np.float64) - float(variance / scale)) / sigma
    likely, uniform = np.exp(-0.5 * away * away), words * 2.0**-_FIRST
    accepted = uniform < likely
    for at in np.flatnonzero(np.abs(uniform - likely) < _MARGIN).tolist():
        threshold = _threshold(abs(int(drawn[at])), variance, scale)
        accepted[at] = (int(words[at]) << _REST | random_integer(source, _REST)) < threshold
    return accepted


def _threshold(size: int, variance: Fraction, scale: int) -> int:
    """exp(-gamma) times 2**192, rounded down, gamma exact."""
    gamma = (size - variance / scale) ** 2 / (2 * variance)
    with exact():
        return int((-Decimal(gamma.numerator) / Decimal(gamma.denominator)).exp() * Decimal(2) ** (_FIRST + _REST))


# -- accounting --------------------------------------------------------------------------------------------------------

def check_delta(delta: float) -> float:
    """Return delta as a float if it lies in [1e-300, 1), else raise ValueError."""
    if isinstance(delta, bool | str) or not SMALLEST_DELTA <= float(delta) < 1:
        raise ValueError(f"delta = {delta!r} is not a probability of failure strictly between 0 and 1, such as 1e-5: "
                         "the Gaussian mechanism is never purely epsilon-private")
    return float(delta)


def log_delta(rho: float, epsilon: float) -> float:
    """log of a delta such that rho-zCDP implies (epsilon, delta): the best order alpha of CKS 2020, Corollary 13.

    delta = exp((a - 1)(a rho - epsilon)) / (a - 1) (1 - 1/a)**a holds for every a > 1, so any a gives a sound answer.
    """
    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1 + excess
        return excess * (order * rho - epsilon) - log_excess - order * math.log1p(1 / excess)

    low, high = math.log(1e-6), math.log(1e9)
    for _ in range(120):  # the function is convex in the order: a golden section narrows it to 1e-12
        left, right = high - (high - low) * 0.6180339887498949, low + (high - low) * 0.6180339887498949
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return min(0.0, at((low + high) / 2))


@lru_cache(maxsize=4096)
def rho_micro(epsilon_micro: int, delta: float) -> int:
    """The largest whole millionth of rho such that rho-zCDP implies (epsilon, delta); rounded down, so more noise.

    Errors: ValueError where not even a millionth fits (epsilon below about .005 at delta 1e-5).

    >>> rho_micro(1_000_000, 1e-5)
    30556
    """
    epsilon, goal = check_micro(epsilon_micro) / MICRO, math.log(check_delta(delta)) - _SAFETY
    low, high = 0, 1
    while high < _RHO_MOST and log_delta(high / MICRO, epsilon) <= goal:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log_delta(middle / MICRO, epsilon) <= goal else (low, middle)
    if low == 0:
        raise ValueError(f"epsilon = {epsilon:g} with delta = {delta:g} allows less than a millionth of rho: ask for a "
                         "larger epsilon or delta, or use Laplace noise")
    return low


def epsilon_of_rho(total_micro: int, delta: float) -> float:
    """Epsilon at delta of answers whose rho add up: the tighter statement beside the sum of epsilons, never instead.

    >>> round(epsilon_of_rho(4 * rho_micro(1_000_000, 1e-5), 1e-5), 2)      # four queries of epsilon 1
    2.14
    """
    goal = math.log(check_delta(delta)) - _SAFETY
    low, high = 0.0, 1.0
    while log_delta(total_micro / MICRO, high) > goal:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(total_micro / MICRO, middle) > goal else (low, middle)
    return high


# -- the mechanism -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Gaussian:
    """Discrete Gaussian noise on the grid, per vector.

    clip   C, units of S: here the l2 bound of one household's summary (an l1 ball of C lies inside it: clips no more)
    delta  probability with which epsilon may fail, strictly between 0 and 1

    Formal guarantee: `release` is rho-zCDP, hence (epsilon, delta)-differentially private, in the household's whole
    record, replace-one: two records are at most 2 K apart in l2, sigma^2 = (2 K)^2 / (2 rho).

    | case                              | what holds                                                           |
    |-----------------------------------|----------------------------------------------------------------------|
    | trust "curator"                   | one noise on the exact integer sum: the same guarantee               |
    | trust "sum"                       | refused: shares of a discrete Gaussian do not add up to the law      |
    | a home that grants less epsilon   | K_i = floor(K sqrt(rho_i / rho)): the same sigma is its own rho_i    |
    | one query, the same C             | more noise than Laplace (405 against 141 at epsilon 1, delta 1e-5):  |
    |                                   | it pays where ||S||_2 is far below ||S||_1, or over many queries      |
    | seeded noise                      | not private: outputs carry the stamp                                 |

    >>> law = Gaussian(50.0, 1e-5)
    >>> law.sensitivity(), round(law.scale_units(1_000_000))       # Laplace: b = 100, a standard deviation of 141
    (100.0, 405)
    """

    clip: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", self.grid.clip_bound)
        object.__setattr__(self, "delta", check_delta(self.delta))

    @property
    def grid(self) -> NoiseGrid:
        """Step and bound are those of Laplace; encode here clips in l2."""
        return NoiseGrid(self.clip)

    def grid_sensitivity(self, relation: str = "replace-one") -> int:
        """l2 sensitivity in grid steps: 2 K ("replace-one") or K ("zero-out")."""
        if relation not in RELATIONS:
            raise ValueError(f"relation {relation!r} is unknown: use one of {', '.join(RELATIONS)}")
        return RELATIONS[relation] * self.grid.bound

    def sensitivity(self, relation: str = "replace-one") -> float:
        """l2 sensitivity in units of S, rounded down to the grid."""
        return self.grid_sensitivity(relation) * self.grid.step

    def rho_micro(self, epsilon_micro: int) -> int:
        """What is charged beside epsilon, millionths of rho."""
        return rho_micro(epsilon_micro, self.delta)

    def variance(self, epsilon_micro: int) -> Fraction:
        """sigma^2 in grid steps squared, exact: sensitivity^2 / (2 rho)."""
        return Fraction(self.grid_sensitivity() ** 2 * MICRO, 2 * self.rho_micro(epsilon_micro))

    def scale_units(self, epsilon_micro: int) -> float:
        """sigma in units of S."""
        return math.sqrt(self.variance(epsilon_micro)) * self.grid.step

    def noise(self, source: NoiseSource, epsilon_micro: int, size: int) -> np.ndarray:
        """(size,) int64 noise in grid steps."""
        return discrete_gaussian(source, self.variance(epsilon_micro), size)

    def bound_for(self, granted_micro: int, asked_micro: int) -> int:
        """K_i of a home that grants less than was asked, under the noise of what was asked: (2 K_i)^2 / (2 sigma^2)
        is at most its own rho."""
        grid = self.grid
        grid.bound_for(granted_micro, asked_micro)  # its checks
        return math.isqrt(grid.bound**2 * self.rho_micro(granted_micro) // self.rho_micro(asked_micro))

    def deposit(self, summary: Any, bound: int | None = None) -> np.ndarray:
        """(d,) int64: rounded half to even, then clipped in integers to ||z||_2 <= bound (K unless given). No noise.

        z_k becomes sign(z_k) floor(|z_k| bound / ||z||_2), by integer square roots. NaN, infinity: ValueError.
        """
        bound = self.grid.bound if bound is None else bound
        if isinstance(bound, bool) or not isinstance(bound, int) or not 0 <= bound <= self.grid.bound:
            raise ValueError(f"bound = {bound!r} is not an integer of 0 .. K = {self.grid.bound}: take it from bound_for")
        return np.array(clip_l2(_rounded(summary, self.grid.step), bound), np.int64)

    def release(self, summary: Any, source: NoiseSource, epsilon_micro: int) -> np.ndarray:
        """What trust "local" lets out: (d,) float64, rounded, clipped in l2, noised, a multiple of g."""
        z = self.deposit(summary)
        return self.grid.decode(z + self.noise(source, epsilon_micro, z.size))

    def plain(self, summary: Any) -> np.ndarray:
        """What trust "open" lets out: (2, d) float64, clipped (in l2) and unclipped; no privacy."""
        return np.stack([self.grid.decode(self.deposit(summary)), np.asarray(reveal_to_mechanism(summary), np.float64)])


def clip_l2(z: list[int], bound: int) -> list[int]:
    """Integers with sum of squares at most bound**2: each scaled by bound / ||z||_2, towards 0, exactly.

    >>> clip_l2([3, -4], 5), clip_l2([30, -40], 5), clip_l2([7, 7], 5)
    ([3, -4], [3, -4], [3, 3])
    """
    squares = sum(value * value for value in z)
    if squares <= bound * bound:
        return z
    return [math.isqrt(value * value * bound * bound // squares) * (1 if value > 0 else -1) for value in z]


def _rounded(summary: Any, step: float) -> list[int]:
    values = np.asarray(reveal_to_mechanism(summary))
    if values.dtype.kind not in "iuf" or values.ndim != 1 or values.size == 0:
        raise ValueError(f"one home's summary is (d,) real numbers, d >= 1, not {values.dtype} {values.shape}: "
                         "release each home with its own noise")
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a summary holds finite numbers only: it has NaN or infinity; leave missing readings out")
    if np.abs(values).max() < _FAST * step:
        return [int(value) for value in np.rint(values / step).tolist()]
    return [round(Fraction(value) / Fraction(step)) for value in values.tolist()]
