"""Does work done with artificial records carry over? A forecaster trained on them is tested on real homes."""

from __future__ import annotations

import numpy as np

from fedenergy.ids import stream
from fedenergy.synthesis.intake import day_types

MOST_HOMES = 500
_RIDGE = 1e-3   # relative to the mean diagonal: keeps the normal equations regular, changes nothing else


def forecast(real: np.ndarray, fake: np.ndarray, test: np.ndarray, start: np.datetime64, per_day: int = 24, *,
             seed: int = 0, most: int = MOST_HOMES) -> dict[str, float]:
    """One-step-ahead mean absolute errors on the real test homes, kWh.

    A ridge regression on the readings 1 step, 2 steps, a day and (in windows of over two weeks) a week ago, two harmonics of
    the day and the day type. "real": trained on the real homes; "fake": on the artificial ones; "yesterday": the reading of
    the day before, which needs no training; "ratio": fake / real.
    Source of the protocol: "train on synthetic, test on real", Esteban, Hyland and Raetsch 2017.

    >>> x = np.random.default_rng(0).gamma(2.0, 1.0, (6, 240))
    >>> round(forecast(x[:4], x[:4], x[4:], np.datetime64("2013-01-07"))["ratio"], 6)
    1.0
    """
    lags = [1, 2, per_day, *([7 * per_day] if real.shape[1] > 15 * per_day else [])]
    if real.shape[1] <= max(lags) + per_day:
        raise ValueError(f"{real.shape[1]} steps are too few to train on a lag of {max(lags)}: give a longer window")
    found = {}
    target, table = _table(test, lags, start, per_day)
    for name, values in (("real", real), ("fake", fake)):
        if len(values) > most:
            values = values[np.sort(stream(seed, "judge.forecast").choice(len(values), most, replace=False))]
        y, x = _table(values, lags, start, per_day)
        square = x.T @ x
        weights = np.linalg.solve(square + _RIDGE * square.diagonal().mean() / len(square) * np.eye(len(square)), x.T @ y)
        found[name] = float(np.abs(target - table @ weights).mean())
    found["yesterday"] = float(np.abs(target - table[:, 1 + lags.index(per_day)]).mean())
    found["ratio"] = found["fake"] / found["real"] if found["real"] > 0 else float("nan")
    return found


def _table(values: np.ndarray, lags: list[int], start: np.datetime64, per_day: int) -> tuple[np.ndarray, np.ndarray]:
    """(targets (n,), features (n, f)): intercept, lags, harmonics, weekend."""
    first, steps = max(lags), values.shape[1]
    at = np.arange(first, steps)
    phase = 2 * np.pi * (at % per_day) / per_day
    shared = np.stack([np.sin(phase), np.cos(phase), np.sin(2 * phase), np.cos(2 * phase),
                       day_types(start, -(-steps // per_day))[at // per_day].astype(float)], axis=1)
    own = [np.ones(len(values) * at.size), *(values[:, at - lag].ravel() for lag in lags)]
    return values[:, at].ravel(), np.column_stack([*own, np.tile(shared, (len(values), 1))])
