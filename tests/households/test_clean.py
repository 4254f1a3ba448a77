"""clean: outages and stuck runs become NaN and are counted; steps follow the stated rule; wrong units are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedenergy.households import clean
from fedenergy.households.household import Household
from fedenergy.households.readers.series import Series, pack, unpack

MIDNIGHT = np.datetime64("2013-10-01", "m")


def minutes(values: np.ndarray, names: tuple[str, ...] = ("total",)) -> Series:
    grid = np.full((1440, len(names)), np.nan)
    grid[:len(values)] = np.reshape(values, (len(values), -1))
    return Series(MIDNIGHT, 1, names, grid, {"missing_readings": np.isnan(grid[:, 0]).astype(np.int32)})


def lively(count: int) -> np.ndarray:
    """Readings of which no two neighbours are equal."""
    return 0.001 + 0.0001 * (np.arange(count) % 7)


def test_runs_golden():
    assert clean.runs(np.array([1, 1, 0, 0, 1])) == [(0, 2), (4, 5)]
    assert clean.runs(np.zeros(3, bool)) == []
    assert clean.runs(np.ones(2, bool)) == [(0, 2)]


@pytest.mark.parametrize(("length", "gone"), [(59, 0), (60, 60), (300, 300)])
def test_a_run_of_zeros_is_an_outage_from_the_stated_length_on(length, gone):
    use = lively(1440)
    use[100:100 + length] = 0
    marked = clean.mark_outages(minutes(use), "total", 60, 60)
    assert marked.totals()["outage_zero"] == gone
    assert marked.totals()["stuck"] == 0
    assert np.isnan(marked.values[:, 0]).sum() == gone
    kept = ~np.isnan(marked.values[:, 0])
    np.testing.assert_array_equal(marked.values[kept, 0], use[kept])  # nothing is filled or changed


def test_a_stuck_value_keeps_its_first_reading():
    use = lively(1440)
    use[200:320] = 0.445  # 1 reading and 119 repeats
    marked = clean.mark_outages(minutes(use), "total", 60, 60)
    assert marked.totals()["stuck"] == 119
    assert marked.totals()["outage_zero"] == 0
    assert marked.values[200, 0] == 0.445
    assert np.isnan(marked.values[201:320, 0]).all()
    assert clean.mark_outages(minutes(use), "total", None, None).totals()["stuck"] == 0


def test_an_outage_takes_all_columns():
    use = np.column_stack([lively(1440), lively(1440)])
    use[0:90, 0] = 0
    marked = clean.mark_outages(minutes(use, ("total", "Kettle")), "total", 60, 60)
    assert np.isnan(marked.values[:90]).all()
    assert not np.isnan(marked.values[90:]).any()


@pytest.mark.parametrize(("present", "value"), [(60, 0.6), (58, 0.6), (31, 0.6), (30, np.nan), (0, np.nan)])
def test_an_hour_needs_more_than_half_its_minutes_and_is_scaled(present, value):
    use = np.full(1440, 0.01)
    use[present:60] = np.nan
    hours = clean.to_steps(minutes(use), 60)
    np.testing.assert_allclose(hours.values[0, 0], value, rtol=1e-12)
    assert hours.counts["scaled_steps"][0] == (30 < present < 60)
    assert hours.totals()["missing_readings"] == 60 - present
    assert hours.window(MIDNIGHT - np.timedelta64(1, "D"), 48).totals()["missing_readings"] == 1440 + 60 - present


def test_one_absent_half_hour_makes_its_hour_missing():
    use = np.full((48, 1), 0.25)
    use[5] = np.nan
    hours = clean.to_steps(Series(MIDNIGHT, 30, ("kwh",), use), 60)
    assert np.flatnonzero(np.isnan(hours.values[:, 0])).tolist() == [2]


def test_temperatures_are_averaged_over_what_is_present():
    values = np.column_stack([np.ones(144), np.full(144, -4.0)])
    values[0, 1], values[6:12, 1] = np.nan, np.nan
    values[12, 0] = np.nan
    hours = clean.to_steps(Series(MIDNIGHT, 10, ("kwh", "T_out"), values), 60, means=["T_out"])
    np.testing.assert_allclose(hours.values[:3, 1], [-4, np.nan, -4])
    np.testing.assert_allclose(hours.values[:3, 0], [6, 6, 6])  # the third from 5 of 6 readings
    assert hours.counts["scaled_steps"].tolist()[:3] == [0, 0, 1]


@given(st.sampled_from([2, 3, 5, 10, 15, 60, 1440]), st.integers(0, 2**32 - 1))
def test_longer_steps_keep_the_energy_where_nothing_is_missing(step, seed):
    use = np.random.default_rng(seed).random(1440)
    np.testing.assert_allclose(clean.to_steps(minutes(use), step).values.sum(), use.sum(), rtol=1e-12)


@pytest.mark.parametrize("step", [7, 45, 2880])
def test_steps_that_do_not_fit_are_refused(step):
    with pytest.raises(ValueError, match="choose a multiple of the source's 30 minutes that divides a day"):
        clean.to_steps(Series(MIDNIGHT, 30, ("kwh",), np.ones((48, 1))), step)


def test_wrong_units_are_named():
    use = np.full((48, 1), 0.25)
    use[3] = 250  # Wh
    with pytest.raises(ValueError, match=r"mac1: 250 kWh in 30 minutes at 2013-10-01T01:30 is .* 500 kW.*Wh or W"):
        clean.check_unit(Series(MIDNIGHT, 30, ("kwh",), use), "kwh", "mac1")
    clean.check_unit(Series(MIDNIGHT, 30, ("kwh",), np.full((48, 1), np.nan)), "kwh", "mac1")


def test_a_window_beyond_the_series_is_missing_and_counted():
    series = clean.to_steps(minutes(lively(1440)), 60)
    for start, steps, missing in (("2013-09-30", 48, 24), ("2013-10-02", 24, 24), ("2013-10-01", 48, 24),
                                  ("2012-01-01", 24, 24)):
        window = series.window(np.datetime64(start, "m"), steps)
        assert window.values.shape == (steps, 1)
        assert np.isnan(window.values).sum() == missing
        assert window.totals()["missing_readings"] == missing * 60


def test_pack_and_unpack_are_inverse():
    one = clean.mark_outages(minutes(np.r_[lively(100), np.zeros(100)]), "total", 60, 60)
    two = Series(MIDNIGHT, 30, ("a", "b"), np.ones((96, 2)), readings=3)
    back = unpack(pack({"x": one, "y": two}))
    for before, after in ((one, back["x"]), (two, back["y"])):
        assert (after.start, after.step_minutes, after.names, after.readings) == \
            (before.start, before.step_minutes, before.names, before.readings)
        np.testing.assert_array_equal(after.values, before.values)
        assert after.totals() == before.totals()


def test_series_refuse_what_does_not_fit():
    for bad in (lambda: Series(MIDNIGHT, 30, ("a",), np.ones((48, 2))),
                lambda: Series(MIDNIGHT, 30, ("a",), np.ones((47, 1))),
                lambda: Series(MIDNIGHT, 30, ("a",), np.ones((48, 1)), {"lost": np.ones(48)})):
        with pytest.raises(ValueError, match="series"):
            bad()


class TwoHomes:
    """A population that knows nothing of `read`."""

    name, unit, channels = "two", "household", ("a",)
    step_minutes, steps, ids = 60, 24, ("h1", "h2")
    excluded = {"h3": "no readings"}  # noqa: RUF012

    def __len__(self):
        return 2

    def load(self, index):
        use = np.ones(24)
        return Household(self.ids[index], self.channels, use[:, None], use, MIDNIGHT, 60, quality={"missing": index})

    def identity(self):
        return {}


def test_quality_table_has_one_row_per_home_members_first():
    rows = clean.quality_table(TwoHomes())
    assert [row["household"] for row in rows] == ["h1", "h2", "h3"]
    assert [row["missing"] for row in rows] == [0, 1, 0]
    assert [row["excluded"] for row in rows] == ["", "", "no readings"]
    assert len({tuple(row) for row in rows}) == 1  # one set of columns
    assert set(clean.QUALITY) < set(rows[0])
