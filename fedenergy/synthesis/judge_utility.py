"""How useful artificial records are: scores against the real ones. Pure functions of arrays; leaks are in judge_privacy.py.

values are (N, T) kWh per step, T whole days of `per_day` steps, both sets over the same window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedenergy.synthesis.intake import day_types

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
LAGS = (24, 168)


def moments(values: np.ndarray) -> dict[str, float]:
    """Mean, variance and quantiles of all readings."""
    quantiles = np.quantile(values, QUANTILES)
    return {"mean": float(values.mean()), "variance": float(values.var()),
            **{f"q{100 * q:g}": float(value) for q, value in zip(QUANTILES, quantiles)}}


def psi(real: np.ndarray, fake: np.ndarray, bins: int = 10) -> float:
    """Population stability index over the real readings' quantile bins; empty shares count as half a reading.

    >>> psi(np.arange(100.0), np.arange(100.0))
    0.0
    """
    if bins < 2:
        raise ValueError(f"bins = {bins}; use at least 2")
    real, fake = np.ravel(real), np.ravel(fake)
    edges = np.unique(np.quantile(real, np.linspace(0, 1, bins + 1)[1:-1]))  # many equal readings merge bins
    shares = []
    for values in (real, fake):
        count = np.bincount(np.searchsorted(edges, values, side="right"), minlength=edges.size + 1)
        shares.append(np.maximum(count, 0.5) / values.size)
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def psi_band(value: float) -> str:
    """The usual reading of a PSI.

    >>> psi_band(0.05), psi_band(0.1), psi_band(0.3)
    ('small', 'moderate', 'large')
    """
    return "small" if value < 0.1 else "moderate" if value <= 0.25 else "large"


def daily_curve(values: np.ndarray, per_day: int = 24) -> np.ndarray:
    """(per_day,) mean kWh by time of day."""
    return values.reshape(-1, per_day).mean(axis=0)


def weekly_curve(values: np.ndarray, start: np.datetime64, per_day: int = 24) -> np.ndarray:
    """(7 per_day,) mean kWh by time of the week, from Monday; NaN for a weekday that the window lacks."""
    days = values.mean(axis=0).reshape(-1, per_day)
    weekday = (np.datetime64(start, "D").astype(int) + 3 + np.arange(len(days))) % 7
    return np.concatenate([days[weekday == k].mean(axis=0) if (weekday == k).any() else np.full(per_day, np.nan)
                           for k in range(7)])


def curve_error(real: np.ndarray, fake: np.ndarray) -> float:
    """Sum of |fake - real| over the sum of |real|, where both are known."""
    known = ~(np.isnan(real) | np.isnan(fake))
    return float(np.abs(fake - real)[known].sum() / np.abs(real)[known].sum())


def hour_shift(real: np.ndarray, fake: np.ndarray, per_day: int = 24) -> dict[str, float]:
    """How many hours the mean day's peak and valley moved, -12 to 12 (later: positive).

    >>> day = np.sin(np.arange(24) / 24 * 2 * np.pi)[None]
    >>> hour_shift(day, np.roll(day, 2))
    {'peak': 2.0, 'valley': 2.0}
    """
    first, second = daily_curve(real, per_day), daily_curve(fake, per_day)
    moved = {"peak": int(second.argmax() - first.argmax()), "valley": int(second.argmin() - first.argmin())}
    half = per_day // 2
    return {name: ((steps + half) % per_day - half) * 24 / per_day for name, steps in moved.items()}


def acf(values: np.ndarray, most: int) -> np.ndarray:
    """(N, most + 1) autocorrelations of every record, biased as usual (1 / T); NaN for a constant record."""
    steps = values.shape[1]
    if not 1 <= most < steps:
        raise ValueError(f"lag {most} needs a record longer than {steps} steps")
    spectrum = np.fft.rfft(values - values.mean(axis=1, keepdims=True), n=2 * steps)
    products = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * steps)[:, :most + 1]
    flat = np.ptp(values, axis=1) == 0
    return np.where(flat[:, None], np.nan, products / np.where(flat, 1, products[:, 0])[:, None])


def pacf(values: np.ndarray, most: int) -> np.ndarray:
    """(N, most + 1) partial autocorrelations, by Durbin and Levinson's recursion on acf()."""
    rho = acf(values, most)
    partial = np.ones_like(rho)
    phi = np.zeros((len(rho), 0))
    error = np.ones(len(rho))
    for k in range(1, most + 1):
        top = rho[:, k] - (phi * rho[:, k - 1:0:-1]).sum(axis=1) if k > 1 else rho[:, 1]
        last = top / error
        phi = np.concatenate([phi - last[:, None] * phi[:, ::-1], last[:, None]], axis=1)
        error = error * (1 - last**2)
        partial[:, k] = last
    return partial


def drp(values: np.ndarray, start: np.datetime64, per_day: int = 24, *, up: float = 0.5, low: float = 0.5,
        cap_kwh: float = np.inf) -> dict[str, np.ndarray]:
    """Demand-response potential, kWh: by time of day (per_day,) summed over homes and averaged over days, and per home (N,).

    B = quantile of a home's readings at that time on that type of day; uDRP = max(0, min(B_up, cap) - L) is load that could
    be added, dDRP = max(0, L - B_low) load that could be shed.
    Errors: ValueError with fewer than five days of a type: their quantile says little.
    """
    days = values.reshape(len(values), -1, per_day)
    weekend = day_types(start, days.shape[1])
    upward, downward = np.empty_like(days), np.empty_like(days)
    for kind, name in ((False, "working days"), (True, "weekend days")):
        who = weekend == kind
        if who.sum() < 5:
            raise ValueError(f"{int(who.sum())} {name} are too few for a baseline by time of day: at least 5 are needed; "
                             "give a longer window")
        high, floor = (np.quantile(days[:, who], q, axis=1)[:, None] for q in (up, low))
        upward[:, who] = np.maximum(0, np.minimum(high, cap_kwh) - days[:, who])
        downward[:, who] = np.maximum(0, days[:, who] - floor)
    return {"uDRP": upward.mean(axis=1).sum(axis=0), "dDRP": downward.mean(axis=1).sum(axis=0),
            "uDRP_home": upward.sum(axis=2).mean(axis=1), "dDRP_home": downward.sum(axis=2).mean(axis=1)}


def utility(real: np.ndarray, fake: np.ndarray, start: np.datetime64, per_day: int = 24,
            lags: Sequence[int] = LAGS) -> dict[str, Any]:
    """Every score of this module in one nested dict; what the window is too short for (lags, DRP) is absent."""
    hour = per_day // 24
    found: dict[str, Any] = {"real": moments(real), "fake": moments(fake), "psi": psi(real, fake)}
    found["psi_band"] = psi_band(found["psi"])
    found["shift_hours"] = hour_shift(real, fake, per_day)
    found["daily_curve_error"] = curve_error(daily_curve(real, per_day), daily_curve(fake, per_day))
    found["weekly_curve_error"] = curve_error(weekly_curve(real, start, per_day), weekly_curve(fake, start, per_day))
    within = [1, *(lag * hour for lag in lags if lag * hour < real.shape[1] // 2)]
    for name, function in (("acf", acf), ("pacf", pacf)):
        first, second = (np.nanmean(function(values, max(within)), axis=0) for values in (real, fake))
        found[name] = {lag: {"real": float(first[lag]), "fake": float(second[lag])} for lag in within}
    first, second = (values.reshape(len(values), -1, per_day).mean(axis=0).sum(axis=1).std() for values in (real, fake))
    found["daily_energy_sd_ratio"] = float(second / first) if first > 0 else float("nan")
    if min((kinds := day_types(start, real.shape[1] // per_day)).sum(), (~kinds).sum()) >= 5:
        found["drp"] = compare_drp(drp(real, start, per_day), drp(fake, start, per_day), len(real) / len(fake))
    return found


def compare_drp(real: Mapping[str, np.ndarray], fake: Mapping[str, np.ndarray], scale: float = 1.0) -> dict[str, float]:
    """Curve errors and ratios of the totals of two drp() results.

    scale  real homes per artificial one, where they are not equally many
    Homes are compared as distributions (mean distance of sorted values over the real mean): which home is which is undefined
    after a shuffle, and a leak before one.
    """
    found = {}
    for name in ("uDRP", "dDRP"):
        found[f"{name}_curve_error"] = curve_error(real[name], scale * fake[name])
        found[f"{name}_total_ratio"] = float(scale * fake[name].sum() / real[name].sum())
        at = (np.arange(200) + 0.5) / 200
        first, second = (np.quantile(side[f"{name}_home"], at) for side in (real, fake))
        found[f"{name}_home_distance"] = float(np.abs(first - second).mean() / first.mean())
    return found
