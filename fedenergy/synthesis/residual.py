"""What is left beside trend and season: generalised extreme value laws, with the hour's scale and memory, or resampled.

scipy's sign of the shape is used throughout: c > 0 means *bounded* peaks (below location + scale / c).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gamma, ndtr, ndtri

from fedenergy.synthesis.gev_kernel import SHAPE_BOUND, climb
from fedenergy.synthesis.loops import autoregress

FORMS = ("gev_ar", "gev", "empirical")
_SMALL = 1e-6
_EDGE = 1e-9     # normal scores stay finite


@dataclass(frozen=True)
class Gev:
    """Generalised extreme value laws of N samples: shape c (scipy's sign), location, scale, each (N,)."""

    shape: np.ndarray
    location: np.ndarray
    scale: np.ndarray

    def log_likelihood(self, values: np.ndarray) -> np.ndarray:
        """(N,) of values (N, n); -inf where one lies outside the support."""
        t, inside = _reduced(values, self.shape, self.location, self.scale)
        density = -np.log(self.scale)[:, None] - (1 - self.shape[:, None]) * t - np.exp(-t)
        return np.where(inside.all(axis=1), np.where(inside, density, 0).sum(axis=1), -np.inf)

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """(N, n) probabilities; 0 or 1 outside the support."""
        t, inside = _reduced(values, self.shape, self.location, self.scale)
        return np.where(inside, np.exp(-np.exp(-t)), np.where(self.shape[:, None] > 0, 1.0, 0.0))

    def quantile(self, probability: np.ndarray) -> np.ndarray:
        """(N, n) of probabilities (N, n) in (0, 1)."""
        t = -np.log(-np.log(probability))
        c = self.shape[:, None]
        small = np.abs(c) < _SMALL
        y = np.where(small, t, -np.expm1(-c * t) / np.where(small, 1, c))
        return self.location[:, None] + self.scale[:, None] * y


def _reduced(values, shape, location, scale):
    """t with F = exp(-exp(-t)): -log(1 - c z) / c; and whether a value is inside the support."""
    z = (values - location[:, None]) / scale[:, None]
    c = shape[:, None]
    small = np.abs(c) < _SMALL
    inside = c * z < 1
    t = np.where(small, z, -np.log1p(np.where(inside, -c * z, 0.0)) / np.where(small, 1, c))
    return np.clip(t, -700, None), inside


def l_moments(values: np.ndarray) -> Gev:
    """Start values in closed form: Hosking, Wallis & Wood 1985, from the first three L-moments of values (N, n).

    The shape is kept inside (-.5, .5); a sample without spread (l2 <= 0) raises ValueError.
    """
    ordered = np.sort(np.atleast_2d(values), axis=1)
    n = ordered.shape[1]
    if n < 3:
        raise ValueError(f"{n} values are too few for three L-moments")
    j = np.arange(n)
    b0 = ordered.mean(axis=1)
    b1 = ordered @ (j / (n - 1)) / n
    b2 = ordered @ (j * (j - 1) / ((n - 1) * (n - 2))) / n
    l2 = 2 * b1 - b0
    if (l2 <= 0).any():
        raise ValueError(f"the residual of row {int(np.argmax(l2 <= 0))} has no spread (l2 = {l2.min():g}): it is constant")
    skewness = (6 * b2 - 6 * b1 + b0) / l2
    part = 2 / (3 + skewness) - np.log(2) / np.log(3)
    c = np.clip(7.8590 * part + 2.9554 * part**2, -SHAPE_BOUND, SHAPE_BOUND)
    c = np.where(np.abs(c) < _SMALL, _SMALL, c)
    scale = l2 * c / ((1 - 2.0**-c) * gamma(1 + c))
    return Gev(c, b0 - scale * (1 - gamma(1 + c)) / c, scale)


def fit_gev(values: np.ndarray, polish: bool = True) -> Gev:
    """The law of every row of values (N, n): from the L-moments' start to the largest likelihood with |c| <= .5.

    polish  damped Newton steps with exact derivatives (gev_kernel.py), each accepted only where the likelihood grows;
            without it the start itself, with its support widened to hold every value
    """
    values = np.atleast_2d(np.asarray(values, np.float64))
    level, spread = values.mean(axis=1), values.std(axis=1)
    if not (spread > 0).all():
        raise ValueError(f"the residual of row {int(np.argmin(spread))} is constant: there is nothing to fit")
    x = (values - level[:, None]) / spread[:, None]
    start = l_moments(x)
    theta = np.stack([start.shape, start.location, np.log(start.scale)], axis=1)
    _widen(theta, x)
    if polish:
        climb(theta, x)
    return Gev(theta[:, 0], level + spread * theta[:, 1], spread * np.exp(theta[:, 2]))


def _widen(theta: np.ndarray, x: np.ndarray) -> None:
    """Pull the shape towards 0 until every value lies inside the support."""
    scale = np.exp(theta[:, 2])
    up, down = x.max(axis=1) - theta[:, 1], x.min(axis=1) - theta[:, 1]
    with np.errstate(divide="ignore"):
        highest = np.where(up > 0, 0.95 * scale / up, np.inf)
        lowest = np.where(down < 0, 0.95 * scale / down, -np.inf)
    theta[:, 0] = np.clip(theta[:, 0], lowest, highest)


@dataclass(frozen=True)
class Residual:
    """A fitted residual of N homes over T steps."""

    form: str
    per_day: int
    values: np.ndarray                    # (N, T), or (N, N T) of a cell: what "empirical" draws from
    law: Gev | None = None
    hourly: np.ndarray | None = None      # (N, per_day) scale of every time of day
    memory: np.ndarray | None = None      # (N,) lag-1 correlation of normal scores

    def sample(self, normal: np.ndarray) -> np.ndarray:
        """Residuals (N, T) from standard normals (N, T)."""
        steps = normal.shape[1]
        if self.form == "empirical":  # the home's own residuals of that time of day, drawn again
            days = self.values.shape[1] // self.per_day
            pick = np.minimum((ndtr(normal) * days).astype(int), days - 1)
            at = pick * self.per_day + np.arange(steps) % self.per_day
            return np.take_along_axis(self.values, at, axis=1)
        if self.memory is not None:
            normal = ar1(normal, self.memory)
        drawn = self.law.quantile(np.clip(ndtr(normal), _EDGE, 1 - _EDGE))
        return drawn if self.hourly is None else drawn * np.tile(self.hourly, (1, steps // self.per_day))


def ar1(normal: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Stationary AR(1) paths (N, T) of variance 1 from standard normals (N, T)."""
    return autoregress(np.ascontiguousarray(normal), np.ascontiguousarray(memory))


def fit(values: np.ndarray, form: str = "gev_ar", per_day: int = 24, polish: bool = True) -> Residual:
    """The residual's model: values (N, T), T whole days.

    form  "gev_ar": GEV of the residual over its hour's standard deviation, with AR(1) memory of its normal scores;
          "gev": the source's, one law and independent draws; "empirical": own residuals of that hour, drawn again
    A time of day without spread keeps 1 % of the home's.
    """
    if form not in FORMS:
        raise ValueError(f"residual = {form!r}; use one of {', '.join(FORMS)}")
    if form == "empirical":
        return Residual(form, per_day, values)
    if form == "gev":
        return Residual(form, per_day, values, fit_gev(values, polish))
    days = values.reshape(len(values), -1, per_day)
    hourly = np.sqrt(np.square(days).mean(axis=1))
    hourly = np.maximum(hourly, 0.01 * np.sqrt(np.square(values).mean(axis=1))[:, None])
    scaled = (days / hourly[:, None]).reshape(values.shape)
    law = fit_gev(scaled, polish)
    scores = ndtri(np.clip(law.cdf(scaled), 1e-4, 1 - 1e-4))
    scores -= scores.mean(axis=1, keepdims=True)
    memory = (scores[:, 1:] * scores[:, :-1]).sum(axis=1) / np.square(scores).sum(axis=1)
    return Residual(form, per_day, values, law, hourly, np.clip(memory, -0.98, 0.98))


def fit_together(values: np.ndarray, form: str = "gev_ar", per_day: int = 24, polish: bool = True) -> Residual:
    """One model for all homes of a cell: fit() of their residuals (N, T) in a row, each home's days after the other's."""
    homes, steps = values.shape
    one = fit(values.reshape(1, homes * steps), form, per_day, polish)

    def all_alike(part: np.ndarray) -> np.ndarray:
        return np.broadcast_to(part, (homes, *part.shape[1:]))

    law = one.law and Gev(*(all_alike(part) for part in (one.law.shape, one.law.location, one.law.scale)))
    return Residual(form, per_day, all_alike(one.values), law, None if one.hourly is None else all_alike(one.hourly),
                    None if one.memory is None else all_alike(one.memory))
