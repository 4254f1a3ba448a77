"""The trend as a Gaussian process on one regular grid, shared by all homes.

A trend smoothed over 41 h carries nothing faster than its grid of 6 h (12 h in long records), so the process lives on that
grid. The kernel C (RBF(l1) + Matern 5/2(l2)) depends on the grid alone: a small set of (l1, l2) is eigendecomposed once,
and the exact log marginal likelihood of every home and every C is two matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.interpolate import CubicSpline

ALPHA = 1e-2                                        # noise: relative to the trend's variance; absolute in the source
# (l1 of the RBF, l2 of the Matern kernel), hours: dense near the 41 h smoother's own scale, up to the source's bound of 100
LENGTHS = ((6.0, 9.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.5, 18.0, 21.0, 26.0, 34.0, 48.0, 70.0, 100.0),
           (6.0, 10.0, 14.0, 18.0, 26.0, 45.0, 100.0))
LENGTHS_LONG = ((9.0, 12.0, 15.0, 21.0, 34.0, 70.0), (10.0, 18.0, 45.0))   # a year: products of 730 points are dear
SCALES = np.logspace(-3, 3, 31)
LONG_HOURS = 2_200


@dataclass(frozen=True)
class TrendFit:
    """What was fitted to N trends: level, deviation, kernel (its index), scale (C) and log marginal likelihood, all (N,)."""

    level: np.ndarray
    deviation: np.ndarray
    kernel: np.ndarray
    scale: np.ndarray
    likelihood: np.ndarray
    projected: np.ndarray   # (N, m) the standardised trend in its kernel's eigenbasis
    lengths: np.ndarray     # (N, 2) l1 of the RBF and l2 of the Matern kernel, hours


@dataclass(frozen=True)
class TrendGP:
    """A Gaussian process of trends (N, T).

    steps, step_minutes  of the record
    source  the source's form: no centring, alpha = 1e-2 absolute (about the whole variance of a real trend)
    """

    steps: int
    step_minutes: int = 60
    source: bool = False

    @property
    def stride(self) -> int:
        """Steps between grid points."""
        return max(1, (12 if self._long else 6) * 60 // self.step_minutes)

    @property
    def _long(self) -> bool:
        return self.steps * self.step_minutes > LONG_HOURS * 60

    @property
    def _kernels(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        return _kernels(self.grid.size, self.stride * self.step_minutes, *(LENGTHS_LONG if self._long else LENGTHS))

    @property
    def grid(self) -> np.ndarray:
        """(m,) steps at which the process lives."""
        return np.arange(self.stride // 2 - 1 if self.stride > 1 else 0, self.steps, self.stride)

    def standardise(self, trend: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(trend on the grid, centred and scaled (N, m); level (N,); deviation (N,))."""
        values = trend[:, self.grid]
        if self.source:
            return values, np.zeros(len(values)), np.ones(len(values))
        level, deviation = values.mean(axis=1), values.std(axis=1)
        deviation = np.where(deviation > 1e-12, deviation, 1.0)  # a straight line of zeros stays one
        return (values - level[:, None]) / deviation[:, None], level, deviation

    def fit(self, trend: np.ndarray) -> TrendFit:
        """The kernel of largest exact log marginal likelihood for every trend, over the set of (l1, l2, C)."""
        values, level, deviation = self.standardise(np.atleast_2d(trend))
        homes, points = values.shape
        kernels = self._kernels
        smooth, rough = LENGTHS_LONG if self._long else LENGTHS
        best, kernel, choice = np.full(homes, -np.inf), np.zeros(homes, int), np.zeros(homes, int)
        projected, around = np.empty_like(values), np.zeros((homes, 3))

        def visit(index: int, who: np.ndarray) -> None:
            spectrum, basis = kernels[index]
            along = values[who] @ basis
            variance = SCALES[:, None] * spectrum + ALPHA                       # (C, m)
            likelihood = -0.5 * (along**2 @ (1 / variance).T + np.log(variance).sum(axis=1) + points * np.log(2 * np.pi))
            peak = likelihood.argmax(axis=1)
            value = likelihood[np.arange(who.size), peak]
            better = value > best[who]
            at = who[better]
            best[at], kernel[at], choice[at], projected[at] = value[better], index, peak[better], along[better]
            three = np.clip(peak[better], 1, SCALES.size - 2)[:, None] + np.array([-1, 0, 1])
            around[at] = np.take_along_axis(likelihood[better], three, axis=1)

        everyone = np.arange(homes)
        for row in range(len(smooth)):                         # the best l1 at the middle l2,
            visit(row * len(rough) + len(rough) // 2, everyone)
        rows = kernel // len(rough)
        for row in range(len(smooth)):                         # then every l2 at that l1 and two on each side
            near = np.flatnonzero(np.abs(rows - row) <= 2)
            for column in range(len(rough) if near.size else 0):
                visit(row * len(rough) + column, near)
        scale = SCALES[choice]
        # between two values of C the likelihood is close to a parabola in log C: its top, if that is better
        low, middle, high = around.T
        bend = low - 2 * middle + high
        step = np.where(bend < 0, 0.5 * (low - high) / np.where(bend < 0, bend, 1), 0).clip(-1, 1)
        inner = (choice > 0) & (choice < SCALES.size - 1)
        trial = np.where(inner, scale * (SCALES[1] / SCALES[0]) ** step, scale)
        variance = trial[:, None] * np.stack([kernels[index][0] for index in kernel]) + ALPHA
        value = -0.5 * (projected**2 / variance + np.log(2 * np.pi * variance)).sum(axis=1)
        better = value > best
        lengths = np.array([(first, second) for first in smooth for second in rough])[kernel]
        return TrendFit(level, deviation, kernel, np.where(better, trial, scale), np.where(better, value, best), projected,
                        lengths)

    def fit_together(self, trend: np.ndarray) -> TrendFit:
        """One kernel and one C for all trends: those of the largest sum of their log marginal likelihoods."""
        values, level, deviation = self.standardise(np.atleast_2d(trend))
        homes, points = values.shape
        best = (-np.inf, 0, 0.0)
        for index, (spectrum, basis) in enumerate(self._kernels):
            energy = np.square(values @ basis).sum(axis=0)
            variance = SCALES[:, None] * spectrum + ALPHA
            total = -0.5 * (energy @ (1 / variance).T + homes * (np.log(variance).sum(axis=1) + points * np.log(2 * np.pi)))
            best = max(best, (float(total.max()), index, float(SCALES[total.argmax()])))
        _, index, scale = best
        spectrum, basis = self._kernels[index]
        along, variance = values @ basis, scale * spectrum + ALPHA
        smooth, rough = LENGTHS_LONG if self._long else LENGTHS
        likelihood = -0.5 * (along**2 / variance + np.log(2 * np.pi * variance)).sum(axis=1)
        lengths = (smooth[index // len(rough)], rough[index % len(rough)])
        return TrendFit(level, deviation, np.full(homes, index), np.full(homes, scale), likelihood, along,
                        np.tile(lengths, (homes, 1)))

    def sample(self, fit: TrendFit, normal: np.ndarray, form: str = "joint") -> np.ndarray:
        """Trends (N, T) drawn from the fit with standard normals (N, T), of which joint forms use the first m.

        form  "joint": one draw of the whole posterior, as smooth as the trend; "prior": a trend of the same law that has
              not seen the home's path; "marginal": the source's form, independent normals around the posterior mean,
              which are white noise
        """
        if form not in ("joint", "prior", "marginal"):
            raise ValueError(f'trend = {form!r}; use "joint", "prior" or "marginal"')
        kernels = self._kernels
        points = fit.projected.shape[1]
        drawn, marginal = np.empty((2, len(fit.level), points))
        for index in np.unique(fit.kernel):
            who = np.flatnonzero(fit.kernel == index)
            spectrum, basis = kernels[index]
            signal = fit.scale[who, None] * spectrum                             # (n, m)
            along, spread = signal / (signal + ALPHA) * fit.projected[who], np.sqrt(signal * ALPHA / (signal + ALPHA))
            if form == "joint":
                along = along + spread * normal[who, :points]
            elif form == "prior":
                along = np.sqrt(signal) * normal[who, :points]
            else:
                marginal[who] = np.sqrt(spread**2 @ (basis.T**2))
            drawn[who] = along @ basis.T
        result = self._everywhere(drawn)                                         # (N, T)
        if form == "marginal":
            result += np.maximum(self._everywhere(marginal), 0) * normal
        return fit.level[:, None] + fit.deviation[:, None] * result

    def _everywhere(self, values: np.ndarray) -> np.ndarray:
        """(n, T) a cubic spline through values (n, m) on the grid."""
        return CubicSpline(self.grid, values, axis=1)(np.arange(self.steps))


@lru_cache(maxsize=4)
def _kernels(points: int, minutes: int, smooth_hours: tuple[float, ...],
             rough_hours: tuple[float, ...]) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """(eigenvalues (m,), eigenvectors (m, m)) of RBF(l1) + Matern(l2), for every pair of lengths."""
    hours = np.arange(points) * minutes / 60
    distance = np.abs(hours[:, None] - hours)
    result = []
    for first in smooth_hours:
        smooth = np.exp(-0.5 * (distance / first) ** 2)
        for second in rough_hours:
            z = np.sqrt(5) * distance / second
            values, vectors = np.linalg.eigh(smooth + (1 + z + z * z / 3) * np.exp(-z))
            result.append((np.maximum(values, 0), vectors))
    return tuple(result)
