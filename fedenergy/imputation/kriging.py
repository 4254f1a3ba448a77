"""Interpolation that learns privately how fast a series forgets: ordinary kriging on a released variogram.

    k = imp.kriging.fit(train, epsilon=0.5, limits=(-10.0, 60.0))
    mean, median = k.points(values, observed)

A window is filled by the best linear predictor with an unknown level. Linear interpolation is its special case for a
random walk, the window's mean that for values that remember nothing; which of them is right is read off a dozen
noisy numbers, so that a hundred windows are enough where a covariance needs thousands. Each record's variogram counts
by its shape only (unit length), hence the sensitivity is known without any guess of the data's size.
Source: ours; ordinary kriging is a textbook's (Cressie 1993, 3.2), the accounting is zCDP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from fedenergy.imputation.baselines import linear
from fedenergy.imputation.dp_gp import AT_ONCE, POINTS, UNITS, conditional
from fedenergy.imputation.dp_gp_release import Spent, in_parts, mean_of, spent
from fedenergy.imputation.task import Windows
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.gaussian import check_delta, rho_micro
from fedenergy.privacy.noise import SecureNoise, SimulationNoise, noise_from

LAGS = 12                       # semivariances released, at logarithmic distances
OFFSET = 0.02                   # of the limits' range: log(u + OFFSET) is the scale of the median
LEVEL = 100.0                   # variance of the unknown level over that of the series
MARGIN, SAMPLING = 1.2, 0.5      # of the length of the noise; of a record's deviation from the mean shape, over sqrt(n)
WALK = 32.0                     # memory of what counts as a random walk, in windows
MEMORY = (0.7, 8.0)             # shortest memory in steps, longest in windows
ROUGHNESS = (1.0, 1.6)          # exponents: 1 a random walk's, towards 2 smooth


class FromVariogram:
    """What fillings that rest on a released variogram share: limits, shapes, the two points. A subclass has low, high,
    privacy, name, length, and _points."""

    @property
    def note(self) -> str:
        """What it costs, for the statement of a model that corrects it."""
        return f"the base {self.name} was fitted to the same windows: {self.privacy}"

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray | None = None,
             point: str = "mean") -> np.ndarray:
        """Fill what is not observed; observed values are kept. values, observed (n, T) or (n, T, 1), original units."""
        if point not in POINTS:
            raise ValueError(f"point = {point!r} is unknown (takes: {', '.join(POINTS)})")
        return self.points(values, observed)[POINTS.index(point)]

    def points(self, values: np.ndarray, observed: np.ndarray,
               time_of_day: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(mean, median): for squared and for absolute error; arguments as `fill`."""
        shape = np.shape(values)
        if shape[1:] not in ((self.length,), (self.length, 1)) or np.shape(observed) != shape:
            raise ValueError(f"values {shape}, observed {np.shape(observed)}: give both (n, {self.length}) or "
                             f"(n, {self.length}, 1): the length that was fitted, one channel")
        seen = np.asarray(observed, bool).reshape(-1, self.length)
        u = np.where(seen, (np.reshape(values, seen.shape) - self.low) / (self.high - self.low), 0.0).clip(0.0, 1.0)
        if not np.isfinite(u).all():
            raise ValueError("an observed value is NaN: mark it as not observed")
        return tuple(np.where(observed, values, (self.low + part.clip(0.0, 1.0) * (self.high - self.low)).reshape(shape))
                     for part in self._points(u, seen))

    def _points(self, u: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(mean, median) (n, T) of u = (value - low) / (high - low), 0 where not seen."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Kriging(FromVariogram):
    """A fitted interpolator; satisfies base.Base. Window i's filling depends on window i only.

    by_distance  (T,) covariance of two values so many steps apart, in units of the series' variance, the level's added
    low, high    public limits: values are read within them
    skewed       the median is that of log(u + OFFSET), u = (value - low) / (high - low); False: the mean
    """

    by_distance: np.ndarray
    privacy: Spent
    low: float
    high: float
    skewed: bool = True

    name = "kriging"

    @property
    def length(self) -> int:
        """T."""
        return len(self.by_distance)

    def _points(self, u: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The predictor of the values, and that of their logarithms, whose median passes through exp."""
        mean = _predicted(self.by_distance, u, seen)
        return mean, np.exp(_predicted(self.by_distance, np.log(u + OFFSET), seen)) - OFFSET if self.skewed else mean

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) from which `from_state` makes an equal one."""
        return {"by_distance": self.by_distance}, {"low": self.low, "high": self.high, "skewed": self.skewed,
                                                   "privacy": asdict(self.privacy)}

    @classmethod
    def from_state(cls, arrays: Mapping[str, np.ndarray], body: Mapping[str, Any]) -> Kriging:
        """The inverse of `state`."""
        return cls(arrays["by_distance"], Spent(**body["privacy"]), body["low"], body["high"], body["skewed"])


def fit(train: Windows | np.ndarray, epsilon: float, delta: float = 1e-5, *, limits: tuple[float, float],
        skewed: bool | None = None, unit: str = "window", noise: str = "simulation", seed: int = 0) -> Kriging:
    """Fit to windows of one channel at (epsilon, delta) under replace-one.

    epsilon  inf: no noise and no privacy
    limits   public (low, high) of the values
    skewed   whether values crowd at their lower limit, as a use of energy does; default: low >= 0
    unit     "household": a home's windows are averaged first and the home is the record (train.homes needed)
    noise, seed   "secure" or "simulation" (seeded: the statement says that it is not private)
    Guarantee: `privacy`, with n public.
    """
    windows, (low, high) = Windows.of(train), (float(limits[0]), float(limits[1]))
    law, _, privacy = variogram(windows, epsilon, delta, low, high, unit, noise, seed)
    return Kriging(law, privacy, low, high, low >= 0 if skewed is None else skewed)


def variogram(windows: Windows, epsilon: float, delta: float, low: float, high: float, unit: str, noise: str,
              seed: int) -> tuple[np.ndarray, float, Spent]:
    """(law by distance, how much of it is not a random walk's, what it cost); arguments, guarantee and errors as `fit`."""
    check(windows, low, high, unit)
    total = None if math.isinf(epsilon) else rho_micro(micro(epsilon), check_delta(delta))
    if total == 0:
        raise ValueError(f"epsilon = {epsilon:g} leaves less than a millionth of rho: ask for more")
    homes = np.asarray(windows.homes) if unit == "household" else None
    n = len(windows) if homes is None else len(np.unique(homes))
    drawing = noise_from(noise, seed)
    law, known = released(scaled(windows, low, high), windows.steps_per_day, homes, total, drawing)
    return law, known, spent(total, delta, n, unit, windows.windows_per_home, drawing.stamp)


def check(windows: Windows, low: float, high: float, unit: str) -> None:
    """ValueError for windows, limits or a unit that cannot be fitted."""
    if windows.channels != 1 or windows.length < 4:
        raise ValueError(f"windows of {windows.length} steps x {windows.channels} channels: give 4 steps or more, 1 channel")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"limits ({low}, {high}) are not two finite numbers in ascending order")
    if unit not in UNITS or (unit == "household" and windows.homes is None):
        raise ValueError(f"unit = {unit!r}: take one of {UNITS}; \"household\" needs Windows(..., homes=...)")


def scaled(windows: Windows, low: float, high: float) -> np.ndarray:
    """(n, T) in [0, 1] within the limits; gaps by straight lines."""
    return (linear(windows.values)[:, :, 0].clip(low, high) - low) / (high - low)


def released(u: np.ndarray, slots: int, homes: np.ndarray | None, rho_micro: int | None,
             drawing: SimulationNoise | SecureNoise) -> tuple[np.ndarray, float]:
    """((T,) covariance by distance, the level's added; how much of it is not a random walk's, 0 to 1) at that rho.

    u          (n, T) in [0, 1]; homes: (n,) where the home is the record
    rho_micro  millionths; None: no noise, no privacy
    """
    n, lags = len(u) if homes is None else len(np.unique(homes)), lags_of(u.shape[1])
    found = mean_of(in_parts(lambda x: shapes(x, lags), u, homes), 1.0, n, rho_micro,
                    drawing.source("*zone", "kriging variogram"))
    doubt = MARGIN * math.sqrt(len(lags)) * found.sigma + SAMPLING / math.sqrt(n)
    return mixture(found.values, lags, u.shape[1], slots, doubt)


def lags_of(length: int, count: int = LAGS) -> np.ndarray:
    """Distances at which semivariances are released, at most so many, up to three quarters of a window.

    >>> lags_of(8).tolist()
    [1, 2, 3, 4, 5, 6]
    """
    return np.unique(np.rint(np.geomspace(1, 0.75 * length, count)).astype(int))


def shapes(u: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """(m, T) values -> (m, lags): mean squared differences over the distance (a random walk's do not depend on it), of unit
    length together; 0 for a constant window. No window's is longer than 1, whatever it holds."""
    v = np.stack([np.square(u[:, h:] - u[:, :-h]).mean(1) / h for h in lags], axis=1)
    v = np.where(v.max(1, keepdims=True) < 1e-140, v * 2.0**600, v)  # else their squares underflow in the length
    size = np.linalg.norm(v, axis=1, keepdims=True)
    return np.where(size > 0, v / np.where(size > 0, size, 1.0), 0.0)


def covariance(shape: np.ndarray, lags: np.ndarray, length: int, slots: int, doubt: float = 0.0) -> np.ndarray:
    """(T,) covariance by distance: `mixture` without the share."""
    return mixture(shape, lags, length, slots, doubt)[0]


def mixture(shape: np.ndarray, lags: np.ndarray, length: int, slots: int, doubt: float = 0.0) -> tuple[np.ndarray, float]:
    """((T,) covariance by distance, share of the second fit) from a released shape whose error is about `doubt` long.

    Two fits by non-negative least squares: a random walk, whose filling is the straight line, and a mixture of a random
    walk, white noise, powered exponentials and, where a window holds a day, the day's first harmonics. They are mixed with
    the share that the random walk's misfit leaves to the second after doubt (a James-Stein share): noise alone mostly
    leaves the straight line. The series' own variance is 1; LEVEL is added for the unknown level.
    """
    h = np.arange(length)
    walk, white = np.exp(-h / (WALK * length)), np.where(h == 0, 1.0, 0.0)
    rich = [np.exp(-((h / memory) ** power)) for power in ROUGHNESS
            for memory in np.geomspace(MEMORY[0], MEMORY[1] * length, 12)]
    if slots <= length:
        rich += [np.cos(2 * np.pi * k * h / slots) for k in (1, 2, 3) if slots >= 2 * k]
    (plain, misfit), (mixed, _) = (_fitted(np.array(atoms), lags, shape) for atoms in ([walk], [walk, white, *rich]))
    share = max(0.0, 1.0 - (doubt / misfit) ** 2) if misfit > 0 else 0.0
    if plain is None or mixed is None:
        plain, share = walk, 0.0
    found = plain if not share else (1 - share) * plain + share * mixed
    return found / found[0] + LEVEL, share


def _fitted(atoms: np.ndarray, lags: np.ndarray, shape: np.ndarray) -> tuple[np.ndarray | None, float]:
    """(covariance by distance, or None where nothing fits; length of the misfit)."""
    weights, misfit = nnls((atoms[:, :1] - atoms[:, lags]).T / lags[:, None], shape)
    return (weights @ atoms if weights.any() else None), float(misfit)


def _predicted(by_distance: np.ndarray, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    at = np.arange(len(by_distance))
    cov = by_distance[np.abs(at[:, None] - at)]
    centre = np.where(seen, x, 0.0).sum(1, keepdims=True) / np.maximum(seen.sum(1, keepdims=True), 1)
    out = np.empty_like(x)
    for low in range(0, len(x), AT_ONCE):
        rows = slice(low, low + AT_ONCE)
        out[rows] = centre[rows] + conditional(np.zeros(len(at)), cov, x[rows] - centre[rows], seen[rows])[0]
    return out
