"""From noised sums to the private mode's model: what the zone knows of its homes, and all that it will ever know.

Everything here is post-processing of noised numbers and public constants: it costs no budget, and branches on noised
values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from fedenergy.synthesis.private_home import DAY_MEMORY, GROUPS, LEVEL_UNIT, matrix_of, slices
from fedenergy.synthesis.private_shape import HARMONICS, basis, unsquash

BETTER = 9.0      # noise variances by which a cluster's own law of sizes must fit better
CLEAR = 2.5       # standard deviations of its noise by which a bin must differ from the law
SPARE = 2.0       # noised counts of a cell below so many standard deviations of their noise: all cells' mean is used


@dataclass(frozen=True)
class Cell:
    """What is drawn from in one cell.

    level, level_sd    of mean log1p minus log1p of the mean
    covariance         (f, f) of squashed shapes around the cluster's centre, positive semi-definite
    hours              (24,) scale of the residual; memory: its lag-1 correlation; skewness: its L-skewness
    day_variance       of the seasonal part from day to day, per hour; trend: (7,) autocovariance at LAGS
    hours, and the roots of day_variance and trend, are for a home whose amplitude() is 1
    """

    level: float
    level_sd: float
    covariance: np.ndarray
    hours: np.ndarray
    memory: float
    skewness: float
    day_variance: float
    trend: np.ndarray


@dataclass(frozen=True)
class Sizes:
    """histogram (k, bins) shares of each cluster's homes; borders (k, sizes - 1) kWh a day between its size classes."""

    histogram: np.ndarray
    borders: np.ndarray


def sizes_of(counts: np.ndarray, sigma: float, edges: np.ndarray, classes: int) -> Sizes:
    """Histograms (k, bins) of noised counts made shares, and the borders that cut each into equal classes.

    sigma  of the counts' noise; edges (bins - 1,) inner borders
    Each histogram is a log-normal law, and its own counts only in bins that differ from it by CLEAR deviations of the noise
    (hard thresholding: Donoho and Johnstone 1994), so that noise in an empty bin of large homes makes no large homes. The
    law is the one that fits it best, where it fits better than that of all homes by more than noise would make it, else
    that of all homes.
    """
    laws = _laws(edges)
    everyone = laws[_misfit(counts.sum(axis=0), laws).argmin()]
    shares = np.stack([simplex(_towards_law(row, sigma, laws, everyone)) for row in counts])
    outer = np.concatenate([[edges[0] ** 2 / edges[1]], edges, [edges[-1] ** 2 / edges[-2]]])
    wanted = np.arange(1, classes) / classes
    logs = np.log(outer)
    rising = 1e-12 * np.arange(outer.size)   # empty bins must not make the inverse ambiguous
    borders = np.stack([np.exp(np.interp(wanted, np.concatenate([[0], np.cumsum(row)]) + rising, logs)) for row in shares])
    borders = borders.reshape(len(shares), classes - 1)
    return Sizes(shares, np.round(borders, 6))


def _laws(edges: np.ndarray) -> np.ndarray:
    """(laws, bins) of unit length: log-normal laws of many centres and widths on the bins."""
    middle, width = np.meshgrid(np.log(np.geomspace(2 * edges[0], edges[-1] / 2, 48)), np.geomspace(0.15, 1.2, 14))
    below = ndtr((np.log(edges) - middle.reshape(-1, 1)) / width.reshape(-1, 1))
    found = np.diff(below, axis=1, prepend=0.0, append=1.0)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def _misfit(counts: np.ndarray, laws: np.ndarray) -> np.ndarray:
    """(laws,) squared distance of counts to each law at its best height >= 0: the noise is the same in every bin."""
    return np.square(counts).sum() - np.square(np.maximum(laws @ counts, 0))


def _towards_law(counts: np.ndarray, sigma: float, laws: np.ndarray, everyone: np.ndarray) -> np.ndarray:
    misfit = _misfit(counts, laws)
    own = misfit.min() + BETTER * sigma**2 < _misfit(counts, everyone[None])[0]
    law = laws[misfit.argmin()] if own else everyone
    law = law * max(float(law @ counts), sigma)
    apart = counts - law
    return law + np.where(np.abs(apart) > CLEAR * sigma, apart, 0.0)


def simplex(counts: np.ndarray) -> np.ndarray:
    """The nearest non-negative numbers with the same sum, as shares; equal shares where that sum is not above 0."""
    total = counts.sum()
    if not total > 0:
        return np.full(counts.size, 1 / counts.size)
    ordered = np.sort(counts)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, counts.size + 1)
    return np.maximum(counts - excess[np.flatnonzero(ordered > excess)[-1]], 0) / total


def pooled(sums: np.ndarray, counts: np.ndarray, sigma: float, homes: int) -> tuple[np.ndarray, np.ndarray]:
    """(cells, WIDTH) means of the vector in every cell, drawn towards the mean of all homes as far as noise requires; and
    (cells,) the standard deviation of the noise left in a cell's shape covariance.

    sums, counts  noised, (cells, WIDTH) and (cells,); sigma: standard deviation of their noise; homes: public
    Each group of statistics is drawn by one factor: between-cell variance / (that + the cell's own noise), the variance
    estimated from the noised means (empirical Bayes: Efron and Morris 1973, for unequal noise).
    """
    counts = counts + (homes - counts.sum()) / counts.size
    whole = sums.sum(axis=0) / homes
    held = counts > SPARE * sigma
    size = np.where(held, np.maximum(counts, 1.0), np.inf)
    means = np.where(held[:, None], sums / size[:, None], whole)
    everywhere = sigma * np.sqrt(counts.size) / homes     # noise of the mean of all homes
    left = np.full(counts.size, everywhere)
    for group, at in zip(GROUPS, slices().values(), strict=True):
        noise = group.width * (sigma / size[held]) ** 2
        apart = np.square(means[held, at] - whole[at]).sum(axis=1)
        between = max(0.0, float(np.average(apart - noise, weights=size[held]))) if held.any() else 0.0
        factor = between / (between + noise) if between > 0 else np.zeros(noise.size)
        means[held, at] = whole[at] + factor[:, None] * (means[held, at] - whole[at])
        if group.name == "shape covariance":
            left[held] = np.hypot(factor * sigma / size[held], (1 - factor) * everywhere)
    return means, left


def cell_of(mean: np.ndarray, noise: float) -> Cell:
    """The statistics behind one cell's mean vector; values that noise made impossible become the nearest possible ones.

    noise  standard deviation left in every number of mean: eigenvalues of the covariance that it can explain become 0
    """
    value = {group.name: mean[at] * (group.bound / group.share) for group, at in zip(GROUPS, slices().values(), strict=True)}
    first, second = value["level"]
    first = float(np.clip(first, -8, 0))
    spread = float(np.clip(second - first**2, 0.01, 4))
    sizes, axes = np.linalg.eigh(matrix_of(value["shape covariance"]))
    group = next(group for group in GROUPS if group.name == "shape covariance")
    edge = noise * group.bound / group.share * np.sqrt(2 * HARMONICS)  # a noise matrix's largest eigenvalue is about that
    kept = np.where(sizes > edge, np.maximum(sizes, 0), 0)
    trend = value["trend autocovariance"]
    deviation = float(np.clip(trend[0], 0, 1))
    # per hour: the mean square of day-to-day steps is 2 (1 - memory) times the variance
    change = float(np.clip(value["day-to-day change"][0], 0, 0.5)) ** 2 / (2 * (1 - DAY_MEMORY))
    floor = max(float(np.median(value["residual scale by hour"])), 0) * 0.2
    return Cell(first * LEVEL_UNIT, spread**0.5 * LEVEL_UNIT, (axes * kept) @ axes.T,
                np.clip(value["residual scale by hour"], floor, 2), float(np.clip(value["residual memory"][0], -0.5, 0.95)),
                float(np.clip(value["residual L-skewness"][0], -0.1, 0.35)), change,
                np.clip(trend * deviation, -(deviation**2), deviation**2))


@dataclass(frozen=True)
class PrivateModel:
    """The zone's model: any number of homes over any number of days is drawn from it, without more budget.

    centres  (k, f) squashed shapes; share (k,) of homes in each cluster; cells: k x sizes, cluster by cluster
    edges, cap_kwh   public; step: hourly. Statement: what was spent, and on whom (dict, JSON values)
    """

    centres: np.ndarray
    share: np.ndarray
    sizes: Sizes
    cells: tuple[Cell, ...]
    edges: np.ndarray
    cap_kwh: float
    start: np.datetime64
    homes: int
    days: int
    privacy: Mapping[str, Any]

    @property
    def classes(self) -> int:
        return self.sizes.borders.shape[1] + 1

    def profile(self, cluster: int) -> np.ndarray:
        """(24,) of a cluster: log1p kWh around its mean."""
        return basis() @ unsquash(self.centres[cluster])

