"""What one home computes for the private mode, inside its box: cleaned record, size, one clipped vector of statistics.

All bounds are public constants: typical values of simulated homes and of published ones (Low Carbon London), never of the
homes that are asked. A record that cannot be used gives no vector, and the box then answers zeros, noised like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedenergy.households.household import Household
from fedenergy.synthesis.private_shape import HARMONICS, HOURS, shape_of, squash
from fedenergy.synthesis.stl import decompose

MIN_DAYS = 7
MISSING = 0.2                              # of a record's steps: beyond, it is not used
LAGS = (0, 6, 12, 24, 48, 96, 168)         # hours, of the trend's autocovariance
DAY_MEMORY = 0.95                          # of the seasonal part from day to day: STL's window of 13 days makes it so
COVARIANCE = np.triu_indices(2 * HARMONICS)
_OFF = np.where(COVARIANCE[0] == COVARIANCE[1], 1.0, np.sqrt(2.0))


@dataclass(frozen=True)
class Group:
    """One statistic of the vector: `width` numbers, clipped to an l2 norm of `bound`, then scaled to a norm of `share`.

    The squares of all shares add up to 1, so the whole vector's norm is at most 1. typical: the norm of a typical home's
    numbers beside the bound, for the promise; public.
    """

    name: str
    width: int
    bound: float
    share: float
    typical: float = 0.6


GROUPS = (Group("level", 2, 1.5, 0.10**0.5, 0.4),             # (mean log1p - log1p of the mean) / .06, and its square
          Group("shape covariance", COVARIANCE[0].size, 0.25, 0.25**0.5, 0.3),   # of the squashed shape around its centre
          Group("residual scale by hour", HOURS, 1.8, 0.30**0.5),
          Group("residual memory", 1, 0.7, 0.08**0.5),
          Group("residual L-skewness", 1, 0.25, 0.05**0.5, 0.4),
          Group("day-to-day change", 1, 0.055, 0.07**0.5, 0.5),
          Group("trend autocovariance", len(LAGS), 0.33, 0.15**0.5, 0.5))
WIDTH = sum(group.width for group in GROUPS)
LEVEL_UNIT = 0.06
LEAST_LEVEL = 0.02    # mean log1p kWh, below which amplitudes are not divided by the root of it


def amplitude(level: float | np.ndarray) -> float | np.ndarray:
    """What residual, trend and day-to-day change grow with: the root of the home's mean log1p kWh. Over homes their slope in
    it is .4 to .6, simulated and published, and what is left varies by a fifth to a half."""
    return np.sqrt(np.maximum(level, LEAST_LEVEL))


def slices() -> dict[str, slice]:
    """Where each group lies in the vector."""
    ends = np.cumsum([group.width for group in GROUPS])
    return {group.name: slice(int(end) - group.width, int(end)) for group, end in zip(GROUPS, ends)}


def cleaned(home: Household, rows: tuple[int, int], cap_kwh: float) -> tuple[np.ndarray | None, str]:
    """(hourly kWh (T,), a note for the inside view), or (None, why the record is not used).

    rows     steps of the record, half-open, cut to whole days; cap_kwh: public bound of one hour, to which readings are cut
    A missing step becomes the home's mean of that time of day.
    """
    per_day = home.steps_per_day
    row = np.array(home.total[rows[0]:rows[1]], np.float64)
    row = row[:row.size // per_day * per_day]
    if 60 % home.step_minutes:
        return None, f"steps of {home.step_minutes} minutes do not make up hours"
    if row.size < MIN_DAYS * per_day or row.size < (rows[1] - rows[0]) // per_day * per_day:
        return None, f"{row.size // per_day} days are too few"
    if np.datetime64(home.start, "m") + rows[0] * home.step_minutes != np.datetime64(home.start, "D"):
        return None, "the record does not start at a midnight"
    if (row < 0).any() or np.isinf(row).any():
        return None, "a negative or infinite reading"
    days, missing = row.reshape(-1, per_day), np.isnan(row)
    if missing.mean() > MISSING or np.isnan(days).all(axis=0).any():
        return None, f"{int(missing.sum())} of {row.size} readings are missing"
    row = np.where(missing, np.tile(np.nanmean(days, axis=0), len(days)), row)
    hourly = row.reshape(-1, 60 // home.step_minutes).sum(axis=1)
    above = int((hourly > cap_kwh).sum())
    return np.minimum(hourly, cap_kwh), f"{above} hours cut to the public cap" if above else ""


def daily_kwh(kwh: np.ndarray) -> float:
    """Mean energy per day of hourly kWh (T,): the home's size."""
    return float(kwh.mean() * HOURS)


def size_bin(kwh_per_day: float, edges: np.ndarray) -> int:
    """The bin of edges (B - 1,) inner borders."""
    return int(np.searchsorted(edges, kwh_per_day, side="right"))


def size_class(kwh_per_day: float, borders: Sequence[float]) -> int:
    """0 .. len(borders): the home's own size class in its cluster. Never leaves the home."""
    return int(np.searchsorted(np.asarray(borders, float), kwh_per_day, side="right"))


def statistics(kwh: np.ndarray, centre: np.ndarray, seasonal: int = 13) -> np.ndarray:
    """(WIDTH,) norm at most 1: the groups of GROUPS of hourly kWh (T,), each clipped and scaled.

    centre  (2 HARMONICS,) of the home's cluster, squashed and public
    Works for every finite record >= 0: one without any spread has zeros where a ratio would be 0 / 0.
    """
    log = np.log1p(kwh)
    trend, season, rest = (part[0] for part in decompose(log, HOURS, seasonal))
    level, scale = (log.mean() - np.log1p(kwh.mean())) / LEVEL_UNIT, amplitude(log.mean())
    away = squash(shape_of(kwh)) - centre
    hours = np.sqrt(np.square(rest.reshape(-1, HOURS)).mean(axis=0))
    floor = max(0.01 * np.sqrt(np.square(rest).mean()), 1e-9)
    scaled = (rest.reshape(-1, HOURS) / np.maximum(hours, floor)).ravel()
    energy = np.square(scaled).sum()
    memory = float((scaled[1:] * scaled[:-1]).sum() / energy) if energy > 0 else 0.0
    change = np.sqrt(np.square(np.diff(season.reshape(-1, HOURS), axis=0)).mean())
    centred = trend - trend.mean()
    covariance = np.array([np.mean(centred[:centred.size - lag] * centred[lag:]) if lag < centred.size else 0.0
                           for lag in LAGS])
    deviation = np.sqrt(covariance[0])
    values = {"level": [level, level**2], "shape covariance": np.outer(away, away)[COVARIANCE] * _OFF,
              "residual scale by hour": hours / scale, "residual memory": [memory],
              "residual L-skewness": [l_skewness(scaled)],
              "day-to-day change": [change / scale],
              "trend autocovariance": covariance / (deviation * scale) if deviation > 1e-9 else np.zeros(len(LAGS))}
    parts = []
    for group in GROUPS:
        value = np.asarray(values[group.name], np.float64)
        norm = float(np.linalg.norm(value))
        parts.append(value * (group.share / group.bound * min(1.0, group.bound / norm if norm > 0 else 1.0)))
    return np.concatenate(parts)


def l_skewness(values: np.ndarray) -> float:
    """The third L-moment ratio (Hosking 1990); 0 without spread."""
    ordered, n = np.sort(values), values.size
    j = np.arange(n)
    b0, b1 = ordered.mean(), ordered @ (j / (n - 1)) / n
    b2 = ordered @ (j * (j - 1) / ((n - 1) * (n - 2))) / n
    l2 = 2 * b1 - b0
    return float(np.clip((6 * b2 - 6 * b1 + b0) / l2, -1, 1)) if l2 > 1e-12 else 0.0


def matrix_of(upper: np.ndarray) -> np.ndarray:
    """(f, f) symmetric matrix of the shape covariance's numbers."""
    size = 2 * HARMONICS
    found = np.zeros((size, size))
    found[COVARIANCE] = upper / _OFF
    return found + np.triu(found, 1).T
