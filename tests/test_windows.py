"""Golden tests of lags, rows and day blocks."""

import numpy as np
import pytest

from fedenergy.households.household import Household
from fedenergy.windows import Window, lag_steps, lagged, lagged_names, round_windows


def home(steps=96, step_minutes=30, features=True):
    t = np.arange(steps, dtype=float)
    readings = np.stack([t, 1000 + t], axis=1)
    return Household("h", ("Oven", "Fridge"), readings, readings.sum(axis=1), np.datetime64("2024-01-05T22:30"),
                     step_minutes, -t[:, None] if features else None, ("Temperature",) if features else ())


def test_golden_design_matrix():
    # Half-hourly; lags of 1 h and .5 h are 2 steps and 1 step. Row t = 5: Oven 3 and 4, Fridge 1003 and 1004.
    # Step 5 begins at 22:30 + 2.5 h = 01:00 on Saturday, 6 January 2024 (weekday 5). Weather at t: -5.
    design = lagged(home(), [1, 0.5], slice(5, 7))
    np.testing.assert_array_equal(design.X, [[3, 4, 1003, 1004, 1.0, 5, -5], [4, 5, 1004, 1005, 1.5, 5, -6]])
    np.testing.assert_array_equal(design.y, [1010, 1012])                  # 5 + 1005, 6 + 1006
    np.testing.assert_array_equal(design.observed, [[5, 1005], [6, 1006]])
    np.testing.assert_array_equal(design.observed_lagged, design.X)
    assert design.feature_channel.tolist() == [0, 0, 1, 1, -1, -1, -1]
    assert design.feature_names == ("Oven_lag1", "Oven_lag0.5", "Fridge_lag1", "Fridge_lag0.5", "hour_of_day",
                                    "weekday", "Temperature")
    assert design.dropped == 0


def test_golden_lagged_weather_belongs_to_its_own_column():
    design = lagged(home(), [1, 0.5], range(5, 6), target="Fridge", lag_features=True)
    np.testing.assert_array_equal(design.X, [[3, 4, 1003, 1004, -3, -4, 1.0, 5]])
    np.testing.assert_array_equal(design.observed, [[5, 1005, -5]])
    assert design.feature_channel.tolist() == [0, 0, 1, 1, 2, 2, -1, -1]
    assert design.y.tolist() == [1005]


def test_golden_missing_targets_are_dropped_and_missing_features_stay():
    household = home(features=False)
    household.total[10] = np.nan
    household.readings[11, 0] = np.nan
    design = lagged(household, [0.5], slice(9, 13))
    assert design.dropped == 1
    assert design.y.tolist() == [1018, 1022, 1024]                         # rows 9, 11, 12
    np.testing.assert_array_equal(design.X[:, 0], [8, 10, np.nan])
    np.testing.assert_array_equal(design.observed[:, 0], [9, np.nan, 12])


def test_contract_all_rows_after_the_longest_lag_by_default():
    assert lagged(home(), [1, 24]).y.size == 96 - 48


@pytest.mark.parametrize(("lags", "message"), [
    ([], "empty"), ([0.25], "whole number of 30-minute steps"), ([-1], "not positive"), ([0], "not positive"),
    ([1, 1.0], "repeat")])
def test_contract_lags_must_be_whole_positive_steps(lags, message):
    with pytest.raises(ValueError, match=message):
        lag_steps(lags, 30)


def test_golden_lags():
    assert lag_steps([1, 24, 168], 60) == (1, 24, 168)
    assert lag_steps([0.1], 2) == (3,)
    assert lagged_names(["a"], [24, 1.0, 0.5]) == ("a_lag24", "a_lag1", "a_lag0.5")


@pytest.mark.parametrize("rows", [slice(1, 50), slice(50, 97), slice(60, 60), slice(50, 60, 2)])
def test_contract_rows_outside_the_record_are_refused(rows):
    with pytest.raises(ValueError, match="rows"):
        lagged(home(), [24], rows)


def test_contract_unknown_target_is_refused():
    with pytest.raises(ValueError, match="neither"):
        lagged(home(), [1], target="Kettle")


def test_golden_next_window():
    # 744 hours, lag 168: 576 usable rows, 5 rounds: 115.2 rows are 4 whole days, 96 rows; 96 rows are left over.
    windows = round_windows(744, 168, 24, 5)
    assert [(w.first_row, w.last_row) for w in windows] == [(168, 264), (264, 360), (360, 456), (456, 552), (552, 648)]
    # The lag reaches back to step 0 in round 0: days 0 to 11 = 264 / 24.
    assert [(w.block_from, w.block_to) for w in windows] == [(0, 11), (4, 15), (8, 19), (12, 23), (16, 27)]
    assert windows[1].rows == slice(264, 360)


def test_golden_blocks_round_outwards():
    # Lag 1: rows [1, 25) read steps 0 to 24, days 0 and 1; rows [25, 49) read steps 24 to 48, days 1 and 2.
    assert round_windows(49, 1, 24, 2) == (Window(1, 25, 0, 2), Window(25, 49, 1, 3))


def test_golden_same_window():
    assert round_windows(744, 168, 24, 3, "same_window") == (Window(168, 744, 0, 31),) * 3


def test_golden_daily_steps_need_24_days_per_round():
    assert round_windows(1 + 48, 1, 1, 2) == (Window(1, 25, 0, 25), Window(25, 49, 24, 49))
    with pytest.raises(ValueError, match="49 steps would do"):
        round_windows(48, 1, 1, 2)


@pytest.mark.parametrize(("steps", "rounds", "repeat", "enough"), [
    (744, 30, "next_window", 168 + 30 * 24), (100, 1, "next_window", 192), (191, 4, "same_window", 192)])
def test_contract_too_short_names_what_would_do(steps, rounds, repeat, enough):
    with pytest.raises(ValueError, match=f"{steps} steps are too few for {rounds} .*{enough} steps would do"):
        round_windows(steps, 168, 24, rounds, repeat)
    assert len(round_windows(enough, 168, 24, rounds, repeat)) == rounds


def test_contract_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="next_window, same_window"):
        round_windows(744, 168, 24, 1, "last_window")
    with pytest.raises(ValueError, match="at least 1"):
        round_windows(744, 168, 24, 0)
