"""Rows: the arithmetic by hand; the test days never train; missing readings; own scale."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy.forecast.rows import plan_of, rows_of
from fedenergy.households.household import Household
from tests.forecast.helpers import Habits


def home(total: np.ndarray, start: str = "2024-01-01T00:00") -> Household:
    return Household("h0", ("electricity",), total[:, None], total, np.datetime64(start, "m"), 60)


def test_rows_by_hand():
    people = Habits(days=4)
    plan = plan_of(people, (1, 24), test_days=1)
    assert (plan.first, plan.split, plan.names) == (24, 72, ("lag1", "lag24", "sin_day", "cos_day", "weekend"))
    total = np.arange(96.0)
    rows = rows_of(home(total), plan, scale_kwh=2.0)
    assert len(rows.y) == 48
    assert len(rows.test_y) == 24
    np.testing.assert_allclose(rows.y[0], 24 / 2)
    np.testing.assert_allclose(rows.x[0], [23 / 2, 0 / 2, 0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(rows.x[6], [29 / 2, 6 / 2, 1, 0, 0], atol=1e-12)  # six in the morning of a Tuesday
    np.testing.assert_allclose(rows.last, total[71:95])
    assert rows.test_y[0] == 72 / 2


def test_weekends_and_the_clock_follow_the_home_s_own_start():
    plan = plan_of(Habits(days=4), (1,), test_days=1)
    rows = rows_of(home(np.ones(96), "2024-01-05T00:00"), plan, 1.0)  # a Friday
    assert rows.x[:23, -1].max() == 0
    assert rows.x[23:, -1].min() == 1


def test_the_test_days_change_nothing_that_trains():
    plan = plan_of(Habits(days=4), (1, 24), test_days=1)
    total = np.random.default_rng(0).uniform(0, 1, 96)
    other = total.copy()
    other[72:] = 50.0
    one, two = rows_of(home(total), plan, 0), rows_of(home(other), plan, 0)
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(one.y, two.y)
    assert one.scale == two.scale == pytest.approx(np.sqrt(np.mean(total[:72] ** 2)))


def test_missing_readings_drop_every_row_that_would_use_them():
    plan = plan_of(Habits(days=4), (1, 24), test_days=1)
    total = np.arange(1.0, 97.0)
    total[30] = np.nan
    rows = rows_of(home(total), plan, 1.0)
    assert set(np.arange(25.0, 73.0)) - set(rows.y) == {31.0, 32.0, 55.0}  # itself, one hour later, one day later
    assert np.isfinite(rows.x).all()
    silent = rows_of(home(np.full(96, np.nan)), plan, 0)
    assert len(silent.y) == len(silent.test_y) == 0
    assert silent.scale == 1.0
    short = rows_of(home(np.ones(60)), plan, 1.0)
    assert (len(short.y), len(short.test_y)) == (36, 0)


def test_records_that_are_too_short_are_refused():
    with pytest.raises(ValueError, match="records of 96 steps hold no 24 rows of training"):
        plan_of(Habits(days=4), (1, 72), test_days=1)
