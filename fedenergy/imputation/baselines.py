"""Imputers that cost no privacy, or that read plain statistics off the training windows: the rows every table carries.

All take (values (n, T, D), observed bool) and return (n, T, D): observed values kept, the rest filled. Values at positions
that are not observed are never read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from fedenergy.imputation.task import Windows

WINDOW_ONLY = ("linear", "nearest", "window mean", "window median", "same time of day", "kalman")
FROM_TRAINING = ("train mean", "daily profile")


def fill_with(name: str, windows: Windows, observed: np.ndarray, train: Windows | None = None) -> np.ndarray:
    """Fill by a baseline's name.

    windows   what is to be filled; positions with observed False (or without a value) are filled
    train     needed by "train mean" and "daily profile": statistics of private data without protection
    """
    seen = observed & windows.known
    values = np.where(seen, windows.values, np.nan)
    if name in FROM_TRAINING:
        if train is None:
            raise ValueError(f"baseline {name!r} reads the training windows: pass train")
        filled = _train_mean(values, train) if name == "train mean" else _profile(values, windows, train)
    elif name == "same time of day":
        filled = same_time_of_day(values, windows.time_of_day)
    elif name in _ALONE:
        filled = _ALONE[name](values)
    else:
        raise ValueError(f"baseline {name!r} is unknown (takes: {', '.join(WINDOW_ONLY + FROM_TRAINING)})")
    return np.where(seen, windows.values, filled)


def linear(values: np.ndarray) -> np.ndarray:
    """Straight lines between observed neighbours, constant beyond the first and the last; 0 in an empty window.

    >>> linear(np.array([[[np.nan], [1.0], [np.nan], [3.0]]]))[0, :, 0].tolist()
    [1.0, 1.0, 2.0, 3.0]
    """
    before, after = _neighbours(values)
    at = np.arange(values.shape[1])[None, :, None]
    left, right = _at(values, before), _at(values, after)
    share = (at - before) / np.maximum(after - before, 1)
    line = np.where(after > before, left + (right - left) * share, left)
    line = np.where(before < 0, right, np.where(after >= values.shape[1], left, line))
    return np.where(np.isnan(line), 0.0, line)


def nearest(values: np.ndarray) -> np.ndarray:
    """The nearest observed value, the earlier one on a tie; 0 in an empty window."""
    before, after = _neighbours(values)
    at = np.arange(values.shape[1])[None, :, None]
    earlier = (before >= 0) & ((after >= values.shape[1]) | (at - before <= after - at))
    filled = np.where(earlier, _at(values, before), _at(values, after))
    return np.where(np.isnan(filled), 0.0, filled)


def window_mean(values: np.ndarray) -> np.ndarray:
    """The mean of the window's observed values; 0 in an empty window."""
    return np.broadcast_to(_over_time(np.nanmean, values), values.shape)


def window_median(values: np.ndarray) -> np.ndarray:
    """The median of the window's observed values; 0 in an empty window."""
    return np.broadcast_to(_over_time(np.nanmedian, values), values.shape)


def same_time_of_day(values: np.ndarray, time_of_day: np.ndarray) -> np.ndarray:
    """The mean of the window's other values at that time of day; linear where there is none."""
    filled = linear(values)
    seen = ~np.isnan(values)
    for slot in np.unique(time_of_day):
        here = (time_of_day == slot)[:, :, None]
        count = (seen & here).sum(1, keepdims=True)
        mean = np.where(seen & here, values, 0.0).sum(1, keepdims=True) / np.maximum(count, 1)
        filled = np.where(here & (count > 0), mean, filled)
    return filled


def kalman(values: np.ndarray) -> np.ndarray:
    """Smoothed local-level model of statsmodels, fitted to each window's own observed values; linear where it fails."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    filled = linear(values)
    for i in range(values.shape[0]):
        for d in range(values.shape[2]):
            series = values[i, :, d]
            seen = series[~np.isnan(series)]
            if len(seen) < 8 or np.ptp(seen) == 0 or len(seen) == len(series):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")      # a fit that does not converge is still a smoother
                try:
                    fit = UnobservedComponents((series - seen.mean()) / seen.std(), "llevel").fit(disp=False, maxiter=50)
                    smooth = fit.smoothed_state[0] * seen.std() + seen.mean()
                except (np.linalg.LinAlgError, ValueError):
                    continue
            if np.isfinite(smooth).all():
                filled[i, :, d] = smooth
    return filled


def _train_mean(values: np.ndarray, train: Windows) -> np.ndarray:
    return np.broadcast_to(np.nanmean(train.values, axis=(0, 1)), values.shape)


def _profile(values: np.ndarray, windows: Windows, train: Windows) -> np.ndarray:
    """The training mean by time of day, scaled and shifted to the window's observed values by least squares."""
    slots, fallback = train.time_of_day, np.nanmean(train.values, axis=(0, 1))
    table = np.tile(fallback, (windows.steps_per_day, 1))
    for slot in np.unique(slots):
        part = train.values[slots == slot]
        known = ~np.isnan(part)
        table[slot] = np.where(known.any(0), np.where(known, part, 0).sum(0) / np.maximum(known.sum(0), 1), fallback)
    shape, seen = table[windows.time_of_day], ~np.isnan(values)
    count = np.maximum(seen.sum(1, keepdims=True), 1)
    mean_p, mean_v = (np.where(seen, x, 0).sum(1, keepdims=True) / count for x in (shape, values))
    centred = np.where(seen, shape - mean_p, 0.0)
    spread = (centred**2).sum(1, keepdims=True)
    slope = np.where(spread > 0, (centred * np.where(seen, values - mean_v, 0.0)).sum(1, keepdims=True)
                     / np.where(spread > 0, spread, 1.0), 0.0)
    return np.where(seen.any(1, keepdims=True), mean_v + slope * (shape - mean_p), shape)


_ALONE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": linear, "nearest": nearest, "window mean": window_mean, "window median": window_median, "kalman": kalman}


def _neighbours(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the observed neighbours: -1 where there is none before, T where there is none after."""
    at = np.arange(values.shape[1])[None, :, None]
    seen = ~np.isnan(values)
    before = np.maximum.accumulate(np.where(seen, at, -1), axis=1)
    after = np.minimum.accumulate(np.where(seen, at, values.shape[1])[:, ::-1], axis=1)[:, ::-1]
    return before, after


def _at(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, np.clip(place, 0, values.shape[1] - 1), axis=1)


def _over_time(function: Callable, values: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)          # empty windows
        found = function(values, axis=1, keepdims=True)
    return np.where(np.isnan(found), 0.0, found)
