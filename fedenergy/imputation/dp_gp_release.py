"""What the private second-moment imputer takes from the records: three Gaussian releases, exact on a grid.

Each release is the sum over records of one vector, clipped in l2 to a public radius R, plus discrete Gaussian noise, over
the public number of records. Replacing one record moves the mean by at most 2 R / n. Everything after the noise is
post-processing of what was released: it costs nothing and reads no record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.fft import dct
from scipy.optimize import isotonic_regression

from fedenergy.privacy.epsilon import MICRO
from fedenergy.privacy.gaussian import discrete_gaussian, epsilon_of_rho
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import NoiseSource

AT_ONCE = 512                   # records whose second moments are in memory together
_MARGIN = 1.0 - 1e-9            # far above the rounding of a float norm: the integer vector never exceeds K


@dataclass(frozen=True)
class Released:
    """One noised mean: values (d,); sigma, the noise's standard deviation in each of them (0: no noise)."""

    values: np.ndarray
    sigma: float


def clipped(vectors: np.ndarray, radius: float) -> np.ndarray:
    """(m, d) real vectors -> (m, d) int64 on the grid of the radius; what is not finite counts as 0.

    Guarantee: every row's l2 norm is at most K = NoiseGrid(radius).bound, for any input: rows are scaled into the ball
    first, then rounded towards 0.

    >>> grid = NoiseGrid(5.0)
    >>> np.round(grid.decode(clipped(np.array([[30.0, -40.0], [0.3, 0.4]]), 5.0)), 4).tolist()
    [[3.0, -4.0], [0.3, 0.4]]
    """
    grid = NoiseGrid(radius)
    x = np.where(np.isfinite(vectors), vectors, 0.0)
    largest = np.maximum(np.abs(x).max(1, keepdims=True), np.finfo(float).tiny)
    unit = np.sqrt(((x / largest) ** 2).sum(1, keepdims=True))                    # no overflow, whatever the record
    inside = grid.bound * grid.step * _MARGIN
    long = (unit > 0) & (largest > inside / np.where(unit > 0, unit, 1.0))
    shrunk = np.where(long, (x / largest) * (inside / np.where(unit > 0, unit, 1.0)), x)
    return np.trunc(shrunk / grid.step).astype(np.int64)


def mean_of(parts: Iterator[np.ndarray], radius: float, n: int, rho_micro: int | None, source: NoiseSource) -> Released:
    """The mean of n records' vectors (given in parts, each (m, d)), clipped to the radius, noised at rho.

    rho_micro  millionths of rho that it may cost; None: no noise, no privacy
    """
    grid = NoiseGrid(radius)
    total, seen = None, 0
    for part in parts:
        z = clipped(part, radius)
        total, seen = z.sum(0) + (0 if total is None else total), seen + len(z)
    if seen != n:
        raise ValueError(f"{seen} records were given for n = {n}: n is public and fixes the noise")
    if rho_micro is None:
        return Released(grid.decode(total) / n, 0.0)
    variance = Fraction((2 * grid.bound) ** 2 * MICRO, 2 * rho_micro)
    noised = total + discrete_gaussian(source, variance, total.size)
    return Released(grid.decode(noised) / n, math.sqrt(variance) * grid.step / n)


@dataclass(frozen=True)
class Basis:
    """Days x slots: cosines over days times cosines over the slots of a day, and which second moments are released.

    Second moments of two coefficients are released where the day frequency is the same: a covariance that depends on the
    two slots and on how many days lie between them is (nearly) of that form, days x slots (slots + 1) / 2 numbers instead
    of T (T + 1) / 2.
    """

    days: int
    slots: int

    @property
    def length(self) -> int:
        return self.days * self.slots

    def forward(self, x: np.ndarray) -> np.ndarray:
        """(m, T) -> (m, days, slots) coefficients; orthonormal."""
        return dct(dct(x.reshape(-1, self.days, self.slots), axis=1, norm="ortho"), axis=2, norm="ortho")

    @property
    def matrix(self) -> np.ndarray:
        """(T, T) rows are the basis vectors."""
        return self.forward(np.eye(self.length)).reshape(self.length, self.length).T

    def moments(self, x: np.ndarray) -> np.ndarray:
        """(m, T) -> (m, days slots (slots + 1) / 2): upper triangles, off-diagonal entries times sqrt(2), so that the l2
        norm is the Frobenius norm."""
        rows, columns = np.triu_indices(self.slots)
        weight = np.where(rows == columns, 1.0, math.sqrt(2.0))
        c = self.forward(x)
        return (c[:, :, rows] * c[:, :, columns] * weight).reshape(len(x), -1)

    def blocks(self, moments: np.ndarray) -> np.ndarray:
        """The inverse for one vector: (days, slots, slots), symmetric."""
        rows, columns = np.triu_indices(self.slots)
        weight = np.where(rows == columns, 1.0, math.sqrt(0.5))
        found = np.zeros((self.days, self.slots, self.slots))
        found[:, rows, columns] = found[:, columns, rows] = moments.reshape(self.days, -1) * weight
        return found

    def covariance(self, blocks: np.ndarray) -> np.ndarray:
        """(T, T) in time."""
        u = self.matrix.reshape(self.days, self.slots, self.length)
        return np.einsum("dit,dij,dju->tu", u, blocks, u, optimize=True)


def smooth_profile(released: Released) -> np.ndarray:
    """A daily profile without the cosine coefficients that noise alone explains (hard, universal threshold)."""
    c = dct(released.values, norm="ortho")
    weak = np.abs(c) <= released.sigma * universal(c.size)
    weak[0] = False                                                              # the level is kept as it is
    return dct(np.where(weak, 0.0, c), type=3, norm="ortho")


def denoised(basis: Basis, released: Released) -> tuple[np.ndarray, float]:
    """((T, T) positive definite correlation-like matrix with trace T, relative noise level) from released moments.

    Off-diagonal entries that noise alone explains become 0 (universal threshold); the diagonal falls with frequency
    (isotonic regression within a day frequency), and no eigenvalue lies below the noise.
    """
    blocks, sigma = basis.blocks(released.values), released.sigma
    off = ~np.eye(basis.slots, dtype=bool)
    pairs = basis.days * basis.slots * (basis.slots - 1) // 2
    blocks = np.where(off & (np.abs(blocks) <= sigma / math.sqrt(2.0) * universal(max(pairs, 2))), 0.0, blocks)
    diagonal = np.einsum("dii->di", blocks)
    if sigma:
        falling = np.stack([isotonic_regression(row, increasing=False).x for row in diagonal])
        diagonal[:] = np.where(np.abs(falling - diagonal) <= sigma * universal(basis.length), falling, diagonal)
        np.maximum(diagonal, sigma, out=diagonal)
    total = max(float(diagonal.sum()), 1e-9)
    level = sigma * basis.length / total
    return positive(basis.covariance(blocks) * basis.length / total, max(level, 1e-3)), level


def universal(count: int) -> float:
    """sqrt(2 log count): the largest of so many standard normal draws (Donoho and Johnstone 1994).

    >>> round(universal(2352), 1)
    3.9
    """
    return math.sqrt(2.0 * math.log(count))


def positive(matrix: np.ndarray, least: float) -> np.ndarray:
    """The symmetric matrix with its eigenvalues raised to at least `least`."""
    w, v = np.linalg.eigh((matrix + matrix.T) / 2)
    return (v * np.maximum(w, least)) @ v.T


def in_parts(function: Callable[[np.ndarray], np.ndarray], records: np.ndarray,
             homes: np.ndarray | None) -> Iterator[np.ndarray]:
    """A function of windows, (m, T) -> (m, d), over all records in parts; with homes, each home's mean is one record."""
    if homes is None:
        for low in range(0, len(records), AT_ONCE):
            yield function(records[low:low + AT_ONCE])
    else:
        for home in np.unique(homes):
            yield function(records[homes == home]).mean(0, keepdims=True)


@dataclass(frozen=True)
class Spent:
    """What a fitted imputer may claim, computed from the rho of its releases.

    epsilon, delta      of one record (`unit`), replace-one; infinite without noise
    rho                 zCDP, the sum over the releases
    records             n, public
    household_windows   most windows of one household (None: not known); household: epsilon at the same delta of all of
                        them together (k windows: k**2 rho)
    noise               "" for noise of the operating system, else why the figure does not hold
    """

    epsilon: float
    delta: float
    rho: float
    records: int
    unit: str = "window"
    relation: str = "replace-one"
    household_windows: int | None = None
    household: float | None = None
    noise: str = ""

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return "no privacy: fitted without noise (epsilon is infinite)"
        home = ("household: its number of windows is not known" if self.household is None else
                f"household of {self.household_windows} windows: epsilon {self.household:.4g}")
        text = [f"epsilon {self.epsilon:.4g} at delta {self.delta:g} per {self.unit} ({self.relation}, zCDP rho "
                f"{self.rho:.4g}, {self.records} records)", home if self.unit == "window" else ""]
        return "; ".join(filter(None, [*text, self.noise]))


def spent(rho_micro: int | None, delta: float, n: int, unit: str, windows: int | None, noise: str) -> Spent:
    """The statement of releases that cost rho together. windows: most of one home; not told where the home is the unit, as
    it may depend on a home's readings."""
    windows = None if unit == "household" else windows
    if rho_micro is None:
        return Spent(math.inf, delta, math.inf, n, unit, household_windows=windows)
    cost = epsilon_of_rho(rho_micro, delta)
    home = cost if unit == "household" else None if windows is None else epsilon_of_rho(rho_micro * windows**2, delta)
    return Spent(cost, delta, rho_micro / MICRO, n, unit, household_windows=windows, household=home, noise=noise)
