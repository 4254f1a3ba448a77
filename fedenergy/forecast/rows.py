"""A home's record as rows of a regression: lags and the clock in, the next step's energy out; the last days test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.population import Population
from fedenergy.windows import lag_steps

CLOCK = ("sin_day", "cos_day", "weekend")
LEAST_ROWS = 24


@dataclass(frozen=True)
class Rows:
    """x (n, F) and y (n,) in units of `scale` kWh, rows with a missing value left out; the last days are for tests.

    last  (n_test,) kWh: the step before each test row's, the forecast of whoever expects no change
    """

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    last: np.ndarray
    scale: float


@dataclass(frozen=True)
class Plan:
    """Where the rows of every home of a population are: public.

    lags   steps back; first: the first row with all its lags; split: the first test row; steps: of the record
    """

    lags: tuple[int, ...]
    first: int
    split: int
    steps: int
    step_minutes: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"lag{lag}" for lag in self.lags) + CLOCK


def plan_of(population: Population, lags: Sequence[float], test_days: int) -> Plan:
    """The plan; ValueError where the record is too short for its lags, a day of training and the test days."""
    return _plan(tuple(lags), test_days, population.steps, population.step_minutes)


@lru_cache(maxsize=64)
def _plan(lags: tuple[float, ...], test_days: int, steps: int, minutes: int) -> Plan:
    back = lag_steps(lags, minutes)
    split = steps - test_days * (MINUTES_PER_DAY // minutes)
    if split - max(back) < LEAST_ROWS:
        raise ValueError(f"records of {steps} steps hold no {LEAST_ROWS} rows of training between the longest lag of "
                         f"{max(back)} steps and the last {test_days} days, which are for tests: use more steps, shorter "
                         "lags or fewer test days")
    return Plan(back, max(back), split, steps, minutes)


def rows_of(home: Household, plan: Plan, scale_kwh: float) -> Rows:
    """The rows of one home. A record that is shorter than the population's is missing at its end.

    scale_kwh  kWh per step that stand for 1; 0: the home's own root mean square before the test days, which stays there
    """
    total = np.full(plan.steps, np.nan)
    known = min(plan.steps, home.total.shape[0])
    total[:known] = home.total[:known]
    scale = float(scale_kwh) or _own_scale(total[:plan.split])
    at = np.arange(plan.first, plan.steps)
    minutes = int(home.start.astype("datetime64[m]").astype(np.int64)) + at * plan.step_minutes
    angle = 2 * math.pi * (minutes % MINUTES_PER_DAY) / MINUTES_PER_DAY
    weekend = (minutes // MINUTES_PER_DAY + 3) % 7 >= 5  # 1970-01-01 was a Thursday, day 3 of a week from Monday
    columns = [total[at - lag] / scale for lag in plan.lags] + [np.sin(angle), np.cos(angle), weekend.astype(float)]
    x, y, last = np.stack(columns, axis=1), total[at] / scale, total[at - 1]
    whole = np.isfinite(x).all(axis=1) & np.isfinite(y) & np.isfinite(last)
    train, test = whole & (at < plan.split), whole & (at >= plan.split)
    return Rows(np.ascontiguousarray(x[train]), y[train], np.ascontiguousarray(x[test]), y[test], last[test], scale)


def _own_scale(known: np.ndarray) -> float:
    """1 where nothing was used or read."""
    readings = known[np.isfinite(known)]
    square = float(np.mean(np.square(readings))) if len(readings) else 0.0
    return math.sqrt(square) if square > 0 else 1.0
