"""Lags and windows: the design matrix of a household, and which rows and day blocks each round of a query touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedenergy.households.household import Household

MINUTES_PER_HOUR = 60
MIN_ROWS = 24                    # below this a boosted model of lags explains noise only
CALENDAR = ("hour_of_day", "weekday")
REPEATS = ("next_window", "same_window")


def lag_steps(lags: Sequence[float], step_minutes: int) -> tuple[int, ...]:
    """Lags in hours -> whole steps, in the order given.

    Raises ValueError for no lag, a lag that is not positive, not a whole number of steps, or given twice.

    >>> lag_steps([1, 24, 0.5], 30)
    (2, 48, 1)
    """
    if not len(lags):
        raise ValueError("lags is empty: name at least one lag in hours, such as [1, 24, 168]")
    steps = []
    for lag in lags:
        exact = Fraction(str(lag)) * MINUTES_PER_HOUR / step_minutes
        if exact <= 0:
            raise ValueError(f"lag {lag} h is not positive: the target at t may use earlier steps only")
        if exact.denominator != 1:
            raise ValueError(f"lag {lag} h is not a whole number of {step_minutes}-minute steps: "
                             f"use multiples of {step_minutes / MINUTES_PER_HOUR:g} h")
        steps.append(int(exact))
    if len(set(steps)) < len(steps):
        raise ValueError(f"lags {list(lags)} repeat a lag: name each once")
    return tuple(steps)


@dataclass(frozen=True)
class Lagged:
    """A household as a regression: predict use at t from what was known before t.

    X                (n, F) float32: values at t - lag, then what is known of t itself; NaN where missing
    y                (n,) float32 kWh: the target at t, never NaN
    feature_channel  (F,) int64: column of `observed` that a feature belongs to, -1 for the bucket that is not released
    feature_names    F names such as "Oven_lag24" (lag in hours)
    observed         (n, d) float64 kWh at t; with lag_features (n, d + f), the household's features behind the channels
    dropped          rows left out because their target is missing
    """

    X: np.ndarray
    y: np.ndarray
    feature_channel: np.ndarray
    feature_names: tuple[str, ...]
    observed: np.ndarray
    dropped: int

    @property
    def observed_lagged(self) -> np.ndarray:
        """(n, F) float64: the lagged value that fed each feature, NaN where missing."""
        return self.X.astype(np.float64)


def lagged_names(names: Sequence[str], lags: Sequence[float]) -> tuple[str, ...]:
    """Column names, name by name and lag by lag, lags in hours.

    >>> lagged_names(["Oven", "Fridge"], [1, 0.5])
    ('Oven_lag1', 'Oven_lag0.5', 'Fridge_lag1', 'Fridge_lag0.5')
    """
    return tuple(f"{name}_lag{lag:g}" for name in names for lag in lags)


def lagged(household: Household, lags: Sequence[float], rows: slice | range = slice(None), target: str = "total",
           lag_features: bool = False) -> Lagged:
    """The lagged design matrix of rows t of a household.

    lags          hours; every channel enters at every one
    rows          half-open range of steps within [longest lag, T); open ends mean all of it
    target        "total" or a channel, kWh in step t: one step ahead of the newest lag of one step
    lag_features  False: household.features enter at t, unreleased, like the calendar (hour of day, weekday);
                  True: they enter at every lag, each belonging to its own column of `observed`
    Rows whose target is NaN are dropped and counted; a missing feature stays NaN, which trees route by themselves.
    Raises ValueError for lags that are not whole steps, unknown targets and rows outside the record.
    """
    steps = lag_steps(lags, household.step_minutes)
    first, last = _row_range(household, rows, max(steps))
    if target != "total" and target not in household.channels:
        raise ValueError(f"target {target!r} is neither \"total\" nor a channel of household {household.id} "
                         f"({', '.join(household.channels)})")
    whole = household.total if target == "total" else household.readings[:, household.channels.index(target)]
    series, names, bucket = household.readings, tuple(household.channels), ()
    features = household.features
    if features is not None and lag_features:
        series, names = np.concatenate([series, features], axis=1), names + tuple(household.feature_names)
    elif features is not None:
        bucket = tuple(household.feature_names)
    n, width = last - first, series.shape[1]
    X = np.empty((n, width * len(steps) + len(CALENDAR) + len(bucket)), np.float32)
    cube = X[:, :width * len(steps)]
    for j, lag in enumerate(steps):
        cube[:, j::len(steps)] = series[first - lag:last - lag]
    X[:, width * len(steps):width * len(steps) + len(CALENDAR)] = _calendar(household, first, last)
    if bucket:
        X[:, -len(bucket):] = features[first:last]
    y, observed, keep = whole[first:last].astype(np.float32), series[first:last], None
    if np.isnan(y).any():
        keep = ~np.isnan(y)
        X, y, observed = X[keep], y[keep], observed[keep]
    owner = np.concatenate([np.repeat(np.arange(width), len(steps)), np.full(len(CALENDAR) + len(bucket), -1)])
    return Lagged(X, y, owner.astype(np.int64), lagged_names(names, lags) + CALENDAR + bucket, observed, n - y.size)


def _row_range(household: Household, rows: slice | range, reach: int) -> tuple[int, int]:
    steps = household.total.shape[0]
    if rows.step not in (None, 1):
        raise ValueError(f"rows {rows} have step {rows.step}: give a half-open range of neighbouring steps")
    first = reach if rows.start is None else rows.start
    last = steps if rows.stop is None else rows.stop
    if not reach <= first < last <= steps:
        raise ValueError(f"household {household.id}: rows {first} to {last} are not within [{reach}, {steps}): the "
                         f"longest lag reaches {reach} steps back and the record has {steps} steps; shorten either")
    return first, last


def _calendar(household: Household, first: int, last: int) -> np.ndarray:
    """(n, 2) hour of day [0, 24) and weekday (Monday = 0) of steps first to last."""
    start = int(household.start.astype("datetime64[m]").astype(np.int64))
    minutes = start + np.arange(first, last) * household.step_minutes
    days, minute = np.divmod(minutes, 1440)
    return np.stack([minute / MINUTES_PER_HOUR, (days + 3) % 7], axis=1)       # 1 January 1970 was a Thursday


@dataclass(frozen=True)
class Window:
    """Rows of one round, half-open: t in [first_row, last_row); and the days that they read, [block_from, block_to).

    Blocks are days of the record, counted from its first step and rounded outwards: every day that a row or the longest
    lag of a row touches belongs to the window, and is what the ledger charges.
    """

    first_row: int
    last_row: int
    block_from: int
    block_to: int

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.last_row)


def round_windows(steps: int, max_lag: int, steps_per_day: int, rounds: int, repeat: str = "next_window"
                  ) -> tuple[Window, ...]:
    """The window of every round, for a record of `steps` steps and a longest lag of `max_lag` steps.

    Usable rows are [max_lag, steps). "next_window" cuts them into `rounds` equal parts of whole days, one after another
    from max_lag on; what is left after the last part is not used (no part takes a remainder, so all rounds weigh the
    same). "same_window" gives every round all usable rows.
    Raises ValueError where a part would be shorter than 24 rows, saying how many steps would do.

    >>> round_windows(steps=240, max_lag=24, steps_per_day=24, rounds=2)[1]
    Window(first_row=120, last_row=216, block_from=4, block_to=9)
    """
    if repeat not in REPEATS:
        raise ValueError(f"repeat = {repeat!r} is not known (takes: {', '.join(REPEATS)})")
    if rounds < 1 or max_lag < 1 or steps_per_day < 1:
        raise ValueError(f"rounds = {rounds}, max_lag = {max_lag}, steps_per_day = {steps_per_day}: "
                         "each must be at least 1")
    usable = max(steps - max_lag, 0)
    if repeat == "same_window":
        length, parts, needed = usable, 1, max_lag + MIN_ROWS
        rule = "all rows after the longest lag"
    else:
        length, parts = usable // rounds // steps_per_day * steps_per_day, rounds
        needed = max_lag + rounds * -(-MIN_ROWS // steps_per_day) * steps_per_day
        rule = f"{rounds} equal parts of whole days ({steps_per_day} steps) of the rows after the longest lag"
    if length < MIN_ROWS:
        raise ValueError(f"{steps} steps are too few for {rounds} round(s) with repeat = {repeat!r}: the rule is "
                         f"{rule} ({max_lag} steps), each of at least {MIN_ROWS} rows, and a part has {length}; "
                         f"{needed} steps would do, or fewer rounds, or shorter lags")
    windows = []
    for part in range(parts):
        first, last = max_lag + part * length, max_lag + (part + 1) * length
        windows.append(Window(first, last, (first - max_lag) // steps_per_day, -(-last // steps_per_day)))
    return tuple(windows) if repeat == "next_window" else (windows[0],) * rounds
