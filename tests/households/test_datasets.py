"""datasets: known answers counted by a second, slow route; quality counts; tiny files that the tests write."""

from __future__ import annotations

import csv
import gzip
import itertools
import lzma
import pickle
import subprocess
import sys
from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from fedenergy.households import cache, datasets, measured
from fedenergy.households.clean import QUALITY, quality_table
from fedenergy.households.datasets import appliance_homes, london_households, uci_windows
from fedenergy.households.household import ID_PATTERN
from fedenergy.households.population import Population
from fedenergy.ids import canon


def forget() -> None:
    """What a new process would not know."""
    for function in (measured._stamps, measured._parsed, measured._members, datasets._months, cache._sha256):
        function.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _cold_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDENERGY_CACHE", str(tmp_path_factory.mktemp("cache")))
        forget()
        yield
        forget()


# Tiny files -----------------------------------------------------------------------------------------------------------

def write_london(folder, homes=None, days=2):
    """Half-hours of 0.25 kWh; homes: id -> rows to leave out (half-hour numbers)."""
    lines = ["LCLid,tstp,energy_kwh_hh"]
    for home, absent in ({"MAC000003": (), "MAC000002": ()} if homes is None else homes).items():
        lines += [f"{home},{datetime(2013, 1, 1) + k * timedelta(minutes=30)},{0.25 + k / 1000}"
                  for k in range(48 * days) if k not in absent]
    (folder / "lcl_london").mkdir(parents=True)
    path = folder / "lcl_london" / "lcl_2013_100households_long.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_house(folder, name, start, watts, header="Aggregate,Kettle,WashingMachine"):
    """One-minute rows; watts (n, columns)."""
    (folder / "appliance_houses_1min").mkdir(parents=True, exist_ok=True)
    begin = datetime.fromisoformat(start)
    rows = [f"{begin + timedelta(minutes=k)},{','.join(map(str, row))}" for k, row in enumerate(watts)]
    with gzip.open(folder / "appliance_houses_1min" / name, "wt") as file:
        file.write("\n".join([f"Time,{header}", *rows]) + "\n")


def write_power(folder, days=2, start="2008-02-28 23:50", blank=(), sub=(1, 2, 3), kw=1.2):
    (folder / "uci_household").mkdir(parents=True)
    begin = datetime.fromisoformat(start)
    head = ("Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity;"
            "Sub_metering_1;Sub_metering_2;Sub_metering_3")
    rows = []
    for k in range(1440 * days + 10):
        when = begin + timedelta(minutes=k)
        values = "?;?;?;?;?;?;" if k in blank else \
            f"{kw + k % 2 / 100:.3f};0.100;{240 + k % 3}.000;5.000;{sub[0]}.000;{sub[1]}.000;{sub[2]}.000"
        rows.append(f"{when.day}/{when.month}/{when.year};{when:%H:%M:%S};{values}")
    with lzma.open(folder / "uci_household" / "household_power_consumption.txt.xz", "wt", newline="") as file:
        file.write("\r\n".join([head, *rows]) + "\r\n")


def rewrite(path, old, new):
    with lzma.open(path, "rt", newline="") as file:
        text = file.read()
    with lzma.open(path, "wt", newline="") as file:
        file.write(text.replace(old, new))


def test_london_golden(tmp_path):
    write_london(tmp_path, {"MAC000003": (), "MAC000002": (1, 12)})
    homes = london_households(tmp_path, days=2, step_minutes=30)
    assert isinstance(homes, Population)
    assert (homes.ids, len(homes), homes.steps, homes.unit) == (("mac000002", "mac000003"), 2, 96, "household")
    home = homes.load(0)
    assert (home.id, home.charged_to, str(home.start)) == ("mac000002", "mac000002", "2013-01-01T00:00")
    assert home.channels == ("Night 0-6", "Morning 6-10", "Day 10-16", "Evening 16-21", "Late 21-24")
    assert np.flatnonzero(np.isnan(home.total)).tolist() == [1, 12]
    assert home.readings[0].tolist() == [0.25, 0, 0, 0, 0]
    assert home.readings[13].tolist() == [0, 0.25 + 0.013, 0, 0, 0]  # 06:30
    assert home.quality["missing"] == home.quality["missing_readings"] == 2
    for step in (31, 41, 47):  # 15:30, 20:30, 23:30
        assert np.flatnonzero(home.readings[step]).tolist() == [{31: 2, 41: 3, 47: 4}[step]]
    hourly = london_households(tmp_path, days=2).load(0)
    assert np.flatnonzero(np.isnan(hourly.total)).tolist() == [0, 6]  # half an hour is not enough for an hour
    assert hourly.total[1] == pytest.approx(0.252 + 0.253, abs=1e-12)


def test_london_names_the_homes_it_leaves_out(tmp_path):
    write_london(tmp_path, {"MAC1": range(49, 96), "MAC2": (), "MAC3": range(2, 96)})
    homes = london_households(tmp_path, days=2, step_minutes=30)
    assert homes.ids == ("mac1", "mac2")
    assert homes.excluded == {"mac3": "2 of 96 steps present (2.1 %), fewer than min_present = 0.5"}
    assert homes.read("mac3").quality["short_days"] == 1
    assert [row["excluded"] != "" for row in quality_table(homes)] == [False, False, True]
    assert london_households(tmp_path, days=2, step_minutes=30, min_present=0.02).ids == ("mac1", "mac2", "mac3")
    assert london_households(tmp_path, days=2, count=1).ids == ("mac1",)
    with pytest.raises(ValueError, match="count = 4, but 2 members have enough readings"):
        london_households(tmp_path, days=2, count=4).ids  # noqa: B018
    with pytest.raises(KeyError, match="no member 'mac9'"):
        homes.read("mac9")


def test_london_counts_rows_that_it_sets_aside(tmp_path):
    path = write_london(tmp_path)
    text = path.read_text().splitlines()
    path.write_text("\n".join([text[0], *reversed(text[1:]), "MAC000002,2013-01-01 00:00:00,9",
                               "MAC000002,2013-01-01 00:00:07,9", "MAC000003,2013-01-02 00:00:00,Null"]) + "\n")
    first, second = map(london_households(tmp_path, days=2, step_minutes=30).load, (0, 1))
    assert (first.quality["duplicates"], first.quality["off_grid"], second.quality["duplicates"]) == (1, 1, 1)
    assert first.total[0] == 0.25  # the first in the file stays
    assert first.quality["missing"] == second.quality["missing"] == 0


@pytest.mark.parametrize(("row", "message"), [
    ("MAC000002,2013-01-03 00:00:00,-0.1", r"mac000002: kwh = -0.1 at 2013-01-03T00:00:00; consumption is finite"),
    ("MAC000002,2013-01-03 00:00:00,inf", r"mac000002: kwh = inf at"),
    ("MAC000002,2013-01-03 00:00:00,250", r"mac000002: 250 kWh in 30 minutes .* 500 kW.*Convert it to kWh"),
    ("MAC000002,2013-01-03 00:00:00,\"0,25\"", r"lcl_2013_100households_long.csv cannot be read.*numbers as 1234.5"),
    ("../etc,2013-01-03 00:00:00,1", r"household id '../etc' is not allowed"),
    ("mac000002,2013-01-03 00:00:00,1", r"two homes become the id 'mac000002'"),
])
def test_london_refuses_impossible_rows(tmp_path, row, message):
    path = write_london(tmp_path)
    path.write_text(path.read_text() + row + "\n")
    with pytest.raises(ValueError, match=message):
        london_households(tmp_path).ids  # noqa: B018


def test_a_file_of_another_form_is_named(tmp_path):
    path = write_london(tmp_path)
    path.write_text(path.read_text().replace("LCLid", "Home"))
    with pytest.raises(ValueError, match="has no column 'LCLid'"):
        london_households(tmp_path).ids  # noqa: B018


def test_appliance_homes_golden(tmp_path):
    # October: 600 and 601 W by turns with a kettle of 240 W; from 02:00 on, 90 minutes of zeros.
    month = np.tile([[600.0, 240.0, 0.0], [601.0, 240.0, 0.0]], (1440 * 31 // 2, 1))
    month[120:210] = 0
    month[1440:1500, 1] = 900  # labelled above the whole for an hour
    write_house(tmp_path, "REFIT_House2_2013-10.csv.gz", "2013-10-01 00:00:00", month)
    write_house(tmp_path, "REFIT_House2_2013-11.csv.gz", "2013-11-01 00:00:00", np.zeros((1440 * 30, 3)))
    write_house(tmp_path, "IDEAL_House65_2013-02.csv.gz", "2013-02-01 00:00:00", month[:1440 * 28, :2],
                "Aggregate,Shower")
    (tmp_path / "appliance_houses_1min" / "summary.csv").write_text("not a house\n")
    homes = appliance_homes(tmp_path)
    assert isinstance(homes, Population)
    assert homes.ids == ("ideal-65-2013-02", "refit-2-2013-10")
    assert homes.excluded == {"refit-2-2013-11": "0 of 720 steps present (0.0 %), fewer than min_present = 0.5"}
    assert homes.steps == 744
    assert homes.channels == ("Kettle", "Dishwasher", "Washing Machine", "Microwave", "Shower", "other")
    refit = homes.read("refit-2-2013-10")
    assert (refit.charged_to, refit.total.shape) == ("refit-2", (744,))
    np.testing.assert_allclose(refit.readings[0], [0.24, 0, 0, 0, 0, 0.3605])  # 60 x 240 W min; (600.5 - 240) W
    np.testing.assert_allclose(refit.total[0], 0.6005)
    assert np.flatnonzero(np.isnan(refit.total)).tolist() == [2, 3]  # 30 of 60 minutes are not more than half
    assert refit.quality["outage_zero"] == 90
    assert (refit.quality["missing"], refit.quality["other_floored"], refit.quality["stuck"]) == (2, 1, 0)
    assert refit.readings[24, 5] == 0
    assert refit.readings[24].sum() > refit.total[24]  # kept and counted, not hidden
    ideal = homes.read("ideal-65-2013-02")
    assert ideal.total.shape == (672,)
    np.testing.assert_allclose(ideal.readings[0], [0, 0, 0, 0, 0.24, 0.3605])
    assert homes.read("refit-2-2013-11").quality["outage_zero"] == 1440 * 30


def test_an_unknown_appliance_is_named(tmp_path):
    write_house(tmp_path, "REFIT_House2_2013-10.csv.gz", "2013-10-01", [[1, 2]], "Aggregate,Ketle")
    with pytest.raises(ValueError, match=r"unknown appliance 'Ketle'.*Did you mean 'Kettle'"):
        appliance_homes(tmp_path).ids  # noqa: B018


def test_uci_household_golden(tmp_path):
    # 10 minutes before midnight, then two days; minutes 20 to 59 of the first hour after 01:00 absent.
    write_power(tmp_path, blank=range(10 + 60 + 20, 10 + 120))
    windows = uci_windows(tmp_path, window_days=1)
    assert isinstance(windows, Population)
    assert windows.ids == ("uci-household-2008-02-29", "uci-household-2008-03-01")  # the leap day is there
    assert (windows.unit, windows.steps, windows.feature_names) == ("window", 24, ())
    home = windows.load(0)
    assert (home.charged_to, home.features) == ("uci-household", None)
    np.testing.assert_allclose(home.total[0], (1.2 + 1.21) / 2)  # kWh of an hour at 1.2 and 1.21 kW by turns
    np.testing.assert_allclose(home.readings[0], [0.06, 0.12, 0.18, 1.205 - 0.36])
    assert np.flatnonzero(np.isnan(home.total)).tolist() == [1]  # 20 of 60 minutes
    assert home.quality["missing_readings"] == 40
    lagged = uci_windows(tmp_path, window_days=1, features=True)
    assert lagged.feature_names == ("Global_reactive_power", "Voltage", "Global_intensity")
    np.testing.assert_allclose(lagged.load(0).features[0], [0.1, 241, 5])


def test_uci_household_counts_a_stuck_meter_and_meters_that_disagree(tmp_path):
    write_power(tmp_path / "a", sub=(10, 10, 10))  # 30 Wh a minute is 1.8 kW, above the whole
    home = uci_windows(tmp_path / "a", window_days=1).load(0)
    assert home.quality["other_floored"] == 24
    assert not home.readings[:, 3].any()
    write_power(tmp_path / "b", kw=1.0)
    path = tmp_path / "b" / "uci_household" / "household_power_consumption.txt.xz"
    rewrite(path, "1.010;", "1.000;")
    assert uci_windows(tmp_path / "b", window_days=2).excluded
    assert uci_windows(tmp_path / "b", window_days=2).read("uci-household-2008-02-29").quality["stuck"] == 2880


def test_uci_appliances_golden(tmp_path):
    (tmp_path / "uci_appliances").mkdir()
    rows = [f"{datetime(2016, 1, 11, 17) + k * timedelta(minutes=10)},{60 + k % 6},10,{-2.0 + k % 6}"
            for k in range(6 * 60)]
    path = tmp_path / "uci_appliances" / "energydata_complete.csv"
    path.write_text("\n".join(["date,Appliances,lights,T_out", *rows]))
    windows = uci_windows(tmp_path, set="appliances", window_days=1)
    assert windows.ids == ("uci-appliances-2016-01-12", "uci-appliances-2016-01-13")
    assert (windows.step_minutes, windows.steps) == (10, 144)
    home = windows.load(0)
    np.testing.assert_allclose(home.readings[:2], [[0.060, 0.01], [0.061, 0.01]])
    np.testing.assert_array_equal(home.total, home.readings.sum(axis=1))
    assert home.features[0].tolist() == [-2.0]  # a temperature below zero is no consumption
    hourly = uci_windows(tmp_path, set="appliances", window_days=1, step_minutes=60).load(0)
    np.testing.assert_allclose(hourly.readings[0], [0.375, 0.06])
    np.testing.assert_allclose(hourly.features[0], [0.5])
    assert uci_windows(tmp_path, set="appliances", features=False).feature_names == ()


def test_uci_bike_golden(tmp_path):
    (tmp_path / "uci_bike").mkdir()
    head = "dteday,season,hr,holiday,workingday,weathersit,temp,atemp,hum,windspeed,casual,registered,cnt"
    rows = [f"2011-01-0{1 + k // 24},1,{k % 24},0,1,2,0.5,0.4,0.8,0,{k},{2 * k},{3 * k}" for k in range(72) if k != 30]
    (tmp_path / "uci_bike" / "hour.csv").write_text("\n".join([head, *rows]))
    windows = uci_windows(tmp_path, set="bike", window_days=2)
    assert windows.quantity == "rentals"
    assert windows.ids == ("uci-bike-2011-01-01", "uci-bike-2011-01-03")  # the second is half there, which is enough
    home = windows.load(0)
    assert np.flatnonzero(np.isnan(home.total)).tolist() == [30]
    assert home.readings[31].tolist() == [31, 62]
    assert home.total[31] == 93
    assert windows.load(1).quality["missing"] == 24
    assert home.features[0].tolist() == [1, 0, 1, 2, 0.5, 0.4, 0.8, 0]


def test_dates_are_read_strictly(tmp_path):
    write_power(tmp_path, days=1)
    path = tmp_path / "uci_household" / "household_power_consumption.txt.xz"
    rewrite(path, "29/2/2008;00:", "2008-02-29;00:")
    with pytest.raises(ValueError, match="dates are read as d/m/yyyy"):
        uci_windows(tmp_path).ids  # noqa: B018


# Arguments, identity, cache ------------------------------------------------------------------------------------

@pytest.mark.parametrize("make", [london_households, appliance_homes, uci_windows])
def test_missing_data_say_what_was_looked_for_and_what_to_do(make, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDENERGY_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"--data DIR .* FEDENERGY_DATA"):
        make()
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/.* does not exist .*--data DIR"):
        make(tmp_path)
    monkeypatch.setenv("FEDENERGY_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        make()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"count": 0}, "count = 0"), ({"count": 2.5}, "count = 2.5"), ({"step_minutes": 45}, "step_minutes = 45"),
    ({"step_minutes": 0}, "step_minutes = 0"), ({"step_minutes": 7}, "source's 30"), ({"days": 0}, "days = 0"),
    ({"start": "2013-13-01"}, "start = '2013-13-01'"), ({"start": "1/2/2013"}, "use a day"),
    ({"channels": "total"}, "channels = 'total'"), ({"min_present": 0}, "min_present = 0"),
    ({"min_present": 1.1}, "use a share"),
])
def test_wrong_arguments_are_named(tmp_path, arguments, message):
    write_london(tmp_path)
    with pytest.raises(ValueError, match=message):
        london_households(tmp_path, **arguments)


def test_wrong_arguments_of_the_others_are_named(tmp_path):
    with pytest.raises(ValueError, match="set = 'cars' is not one of 'household', 'appliances', 'bike'"):
        uci_windows(tmp_path, set="cars")
    write_house(tmp_path, "REFIT_House2_2013-10.csv.gz", "2013-10-01", [[1, 1, 0]])
    with pytest.raises(ValueError, match="outage_minutes = 0"):
        appliance_homes(tmp_path, outage_minutes=0)


def test_identity_is_stable_free_of_paths_and_follows_the_file(tmp_path):
    for folder in ("one", "two"):
        write_london(tmp_path / folder)
    first, second = (london_households(tmp_path / folder, days=2) for folder in ("one", "two"))
    assert first.identity() == second.identity() == london_households(tmp_path / "one", days=2, count=1).identity()
    assert str(tmp_path) not in canon(first.identity()).decode()
    assert first.identity() != london_households(tmp_path / "one", days=1).identity()
    with open(tmp_path / "two" / "lcl_london" / "lcl_2013_100households_long.csv", "a") as file:
        file.write("MAC000002,2013-01-03 00:00:00,1\n")
    assert first.identity() != london_households(tmp_path / "two", days=2).identity()


def test_a_population_is_small_and_gives_the_same_bytes_in_another_process(tmp_path):
    write_london(tmp_path)
    homes = london_households(tmp_path, days=2)
    homes.load(0)
    message = pickle.dumps(homes)
    assert len(message) < 1_000
    code = ("import pickle, sys; h = pickle.loads(bytes.fromhex(sys.argv[1])).load(1); "
            "print(h.id, h.readings.tobytes().hex(), [m for m in ('pandas', 'pyarrow') if m in sys.modules])")
    command = [sys.executable, "-c", code, message.hex()]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    there = homes.load(1)
    assert said == f"{there.id} {there.readings.tobytes().hex()} []\n"  # from the cache, without a parser


def test_the_cache_is_read_rebuilt_when_damaged_and_renewed_when_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDENERGY_CACHE", str(tmp_path / "cache"))
    path = write_london(tmp_path)
    before = london_households(tmp_path, days=2).load(0)
    (entry,) = (tmp_path / "cache").iterdir()
    parsed = []
    real = datasets.LondonHouseholds.parse
    monkeypatch.setattr(datasets.LondonHouseholds, "parse",
                        staticmethod(lambda *given: parsed.append(1) or real(*given)))
    for damage, times in ((None, 0), (entry.read_bytes()[:200], 1), (b"", 2), (entry.read_bytes()[:-9] + b"x" * 9, 3)):
        if damage is not None:
            entry.write_bytes(damage)
        forget()
        np.testing.assert_array_equal(london_households(tmp_path, days=2).load(0).total, before.total)
        assert len(parsed) == times
    path.write_text(path.read_text().replace(",0.25\n", ",0.75\n"))
    forget()
    assert london_households(tmp_path, days=2).load(0).total[0] == before.total[0] + 0.5
    assert [item.suffix for item in (tmp_path / "cache").iterdir()] == [".npz", ".npz"]  # no half-written file stays


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDENERGY_CACHE", str(tmp_path / "file"))
    write_london(tmp_path)
    forget()
    with pytest.warns(RuntimeWarning, match="set FEDENERGY_CACHE to a writable folder"):
        assert len(london_households(tmp_path, days=2)) == 2


def test_the_cache_never_holds_objects(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDENERGY_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="holds Python objects"):
        cache.arrays("bad", [], {}, lambda: {"a": np.array([{}], dtype=object)})
    np.savez(tmp_path / "planted.npz", a=np.array([{}], dtype=object))
    assert cache._read(tmp_path / "planted.npz") is None


# Real data ------------------------------------------------------------------------------------------------------------

def check_members(population):
    """Contract: ids, shapes, no negative reading, channels that add up to the total."""
    assert isinstance(population, Population)
    assert len(set(population.ids)) == len(population)
    assert all(ID_PATTERN.fullmatch(name) for name in (*population.ids, *population.excluded))
    for index in range(len(population)):
        home = population.load(index)
        assert home.id == population.ids[index]
        assert home.channels == population.channels
        assert home.feature_names == population.feature_names
        assert set(home.quality) == set(QUALITY)
        assert home.quality["missing"] == np.isnan(home.total).sum()
        gap = np.abs(home.readings.sum(axis=1) - home.total) > 1e-9
        assert gap.sum() == home.quality["other_floored"]


def slow_london(path, hour):
    """kWh of one hour of the file's first home, MAC000002, by decimal text."""
    with lzma.open(path, "rt") as file:
        rows = [row for row in itertools.islice(csv.DictReader(file), 17_520) if row["tstp"].startswith(hour)]
    assert {row["LCLid"] for row in rows} == {"MAC000002"}
    return float(sum(Decimal(row["energy_kwh_hh"]) for row in rows))


@pytest.mark.data
def test_london_real(data_dir):
    year = london_households(data_dir, days=365, step_minutes=30)
    rows = quality_table(year)
    assert len(rows) == 100
    assert sum(row["missing"] for row in rows) == 100 * 17_520 - 1_674_718  # 4.4 %, by the table's row count
    with open(data_dir / "lcl_london" / "summary_by_household.csv") as file:
        listed = {row["LCLid"].lower(): row for row in csv.DictReader(file)}
    assert {row["household"]: row["missing"] for row in rows} == {home: int(row["missing_of_17520"])
                                                                  for home, row in listed.items()}
    zeros = {row["household"]: row["zeros"] / (17_520 - row["missing"]) for row in rows}
    assert max(abs(zeros[home] - float(row["zero"])) for home, row in listed.items()) < 1e-9
    assert zeros["mac000037"] == pytest.approx(0.994, abs=5e-4)
    assert sum(row["duplicates"] + row["off_grid"] for row in rows) == 0
    january = london_households(data_dir)
    assert (len(january), list(january.excluded)) == (99, ["mac000016"])  # 721 half-hours from 16 January on
    check_members(january)
    home = january.read("mac000002")
    path = data_dir / "lcl_london" / "lcl_2013_100households_long.csv.xz"
    assert home.total[19] == pytest.approx(slow_london(path, "2013-01-01 19:"), abs=1e-12)
    assert home.readings[19].tolist() == [0, 0, 0, home.total[19], 0]


def slow_house(path, hour):
    """kWh of one hour by column, by decimal text."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["Time"].startswith(hour)]
    return {name: float(sum(Decimal(row[name]) for row in rows) / 60_000) for name in rows[0] if name != "Time"}


@pytest.mark.data
def test_appliance_homes_real(data_dir):
    months = appliance_homes(data_dir)
    rows = {row["household"]: row for row in quality_table(months)}
    assert len(rows) == 42
    assert {row["charged_to"] for row in rows.values()} == {"refit-2", "refit-20", "ukdale-2", "ideal-65", "ideal-175"}
    outage = [f"refit-2-{month}" for month in ("2013-11", "2013-12", "2014-01", "2014-02")]
    assert set(outage) < set(months.excluded)
    assert rows["refit-2-2013-11"]["outage_zero"] == 43_200
    assert rows["refit-2-2014-01"]["outage_zero"] == 44_640
    assert rows["refit-2-2013-10"]["outage_zero"] == 9_335  # the outage began on 25 October
    assert rows["refit-20-2015-03"]["stuck"] > 15_000         # 445 W for eleven days
    check_members(months)
    assert sum(row["missing_readings"] for row in rows.values()) == \
        sum(len(months.read(name).total) * 60 for name in rows) - 1_741_892
    known = slow_house(data_dir / "appliance_houses_1min" / "REFIT_House2_2014-10.csv.gz", "2014-10-07 18:")
    home = months.read("refit-2-2014-10")
    step = 6 * 24 + 18
    np.testing.assert_allclose(home.total[step], known["Aggregate"], rtol=1e-9)
    named = dict(zip(home.channels, home.readings[step]))
    for column, channel in (("Kettle", "Kettle"), ("Dishwasher", "Dishwasher"), ("WashingMachine", "Washing Machine"),
                            ("Microwave", "Microwave")):
        assert named[channel] == pytest.approx(known[column], abs=1e-9)
    assert named["Shower"] == 0
    whole = known.pop("Aggregate")
    assert named["other"] == pytest.approx(whole - sum(known.values()), abs=1e-9)


@pytest.mark.data
def test_uci_household_real(data_dir):
    windows = uci_windows(data_dir)
    with open(data_dir / "uci_household" / "missing_runs.csv") as file:
        gaps = [(np.datetime64(row["start"].replace(" ", "T"), "m"), int(row["minutes"]))
                for row in csv.DictReader(file)]
    assert (len(gaps), sum(minutes for _, minutes in gaps)) == (71, 25_979)
    rows = {row["household"]: row for row in quality_table(windows)}
    assert len(rows) == len(windows) + len(windows.excluded) == 103
    end = 177 + 1_440  # after 2010-11-26 21:02, to the end of the last window
    assert sum(row["missing_readings"] for row in rows.values()) == 25_979 + end
    assert sum(row["stuck"] for row in rows.values()) == 400  # 6 October 2008
    missing = np.zeros(103 * 14 * 1_440, bool)
    first = np.datetime64("2006-12-17", "m")
    for start, minutes in gaps:
        begin = int((start - first) // np.timedelta64(1, "m"))
        missing[begin:begin + minutes] = True
    missing[-end:] = True
    stuck = int((np.datetime64("2008-10-06T10:10", "m") - first) // np.timedelta64(1, "m"))
    hours = missing.reshape(-1, 60).sum(axis=1)
    expected = hours >= 30
    expected[stuck // 60:(stuck + 400) // 60 + 1] = False  # checked by their count above
    found = np.concatenate([np.isnan(windows.read(name).total) for name in rows])
    found[stuck // 60:(stuck + 400) // 60 + 1] = False
    np.testing.assert_array_equal(found, expected)
    check_members(windows)
    with lzma.open(data_dir / "uci_household" / "household_power_consumption.txt.xz", "rt") as file:
        lines = [line.rstrip().split(";") for line in itertools.islice(file, 3_000) if "17/12/2006;07:" in line]
    home = windows.load(0)
    assert len(lines) == 60
    assert home.total[7] == pytest.approx(float(sum(Decimal(row[2]) for row in lines) / 60), abs=1e-12)
    for k in range(3):
        assert home.readings[7, k] == pytest.approx(float(sum(Decimal(row[6 + k]) for row in lines) / 1_000), abs=1e-12)


@pytest.mark.data
def test_uci_appliances_and_bike_real(data_dir):
    ten, hourly = uci_windows(data_dir, set="appliances"), uci_windows(data_dir, set="appliances", step_minutes=60)
    assert len(ten.feature_names) == 26
    assert {"Press_mm_hg", "RH_1", "T_out"} < set(ten.feature_names)
    assert ten.ids[0] == "uci-appliances-2016-01-12"
    path = data_dir / "uci_appliances" / "energydata_complete_excel_precision.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["date"].startswith("2016-01-12 09:")]
    assert hourly.load(0).readings[9, 0] == pytest.approx(sum(int(row["Appliances"]) for row in rows) / 1_000)
    assert ten.load(0).readings[54, 0] == int(rows[0]["Appliances"]) / 1_000
    assert ten.load(0).features[54, ten.feature_names.index("T_out")] == float(rows[0]["T_out"])
    check_members(ten)
    check_members(hourly)
    bike = uci_windows(data_dir, set="bike")
    check_members(bike)
    assert sum(bike.load(index).quality["missing"] for index in range(len(bike))) == 165
    assert list(bike.excluded) == ["uci-bike-2012-12-29"]  # three days are left over
    kept = sum(np.nansum(bike.read(name).total) for name in (*bike.ids, *bike.excluded))
    with open(data_dir / "uci_bike" / "hour.csv") as file:
        assert kept == sum(int(row["cnt"]) for row in csv.DictReader(file))


@pytest.mark.data
def test_identities_of_the_real_sets_hold_no_path(data_dir):
    for population in (london_households(data_dir), appliance_homes(data_dir), uci_windows(data_dir, set="bike")):
        text = canon(population.identity()).decode()
        assert "/" not in text
        assert '"sha256":"' in text
        assert population.identity() == type(population)(**vars(population)).identity()
