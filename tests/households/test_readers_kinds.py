"""Every kind of meter file, on small files that the tests write: what is read, what is counted, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

from fedenergy.households.readers.convert import convert
from fedenergy.households.readers.greenbutton import read_green_button
from fedenergy.households.readers.inspect import inspect, read
from fedenergy.households.readers.nem12 import read_nem12
from fedenergy.households.readers.readings import MeterFileError


@pytest.fixture
def write(tmp_path):
    def make(text, name="meter.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path
    return make


def rows(start, step, values, form="%Y-%m-%d %H:%M", mark=",", zone=None):
    """One line per value; with a zone the stamps are that clock's, at steps of true time."""
    when = pd.date_range(start, periods=len(values), freq=f"{step}min", tz="UTC" if zone else None)
    if zone:
        when = when.tz_convert(zone)
    return "\n".join(f"{time.strftime(form)}{mark}{value}" for time, value in zip(when, values)) + "\n"


def flags(path, **declared):
    return [question.flag for question in inspect(path, **declared).questions]


# -- questions: nothing is guessed silently

def test_what_is_ambiguous_becomes_a_question(write):
    path = write("when,kwh\n" + rows("2024-01-01 00:30", 30, [0.2, 0.1, 0.4, 0.2, 0.3, 0.1]))
    assert flags(path) == ["--tz", "--stamp"]
    with pytest.raises(MeterFileError, match=r"2 open questions.*--tz.*--stamp"):
        read(path)
    found = read(path, tz="UTC", stamp="end")
    assert found.series().index[0] == pd.Timestamp("2024-01-01", tz="UTC")


def test_unit_is_asked_for_with_what_each_would_mean(write):
    path = write("start,reading\n" + rows("2024-01-01", 30, [200, 100, 450, 230]))
    question = next(item for item in inspect(path, tz="UTC").questions if item.flag == "--unit")
    assert "kWh: 900 kW (no home)" in question.text
    assert "Wh: 0.9 kW" in question.text
    assert read(path, tz="UTC", unit="Wh").series().sum() == pytest.approx(0.98)
    assert read(path, tz="UTC", unit="W").series().sum() == pytest.approx(0.49)
    assert inspect(path, tz="UTC", unit="W").energy_or_power == "power"


def test_decimal_sign_or_thousands(write):
    path = write("start;kWh\n" + rows("2024-01-01", 60, ["1,234", "2,345", "1,111", "2,222", "1,111"], mark=";"))
    assert "--decimal" in flags(path, tz="UTC")
    assert read(path, tz="UTC", decimal=",").series().sum() == pytest.approx(8.023)
    with pytest.raises(MeterFileError, match="above 100 kW"):
        read(path, tz="UTC", decimal=".")
    clear = write("start;kWh\n" + rows("2024-01-01", 60, ["0,234", "2,345", "1,111"], mark=";"))
    assert inspect(clear).settings["decimal"] == ","


def test_day_and_month(write):
    ambiguous = write("start,kwh\n01/02/2024 00:00,0.5\n01/02/2024 01:00,0.4\n01/02/2024 02:00,0.6\n")
    assert "--dates" in flags(ambiguous)
    assert read(ambiguous, tz="UTC", dates="mdy", stamp="start", measure="interval").series().index[0].month == 1
    american = write("start,kwh\n" + rows("2024-01-30", 60, [0.1, 0.2] * 30, "%m/%d/%Y %I:%M %p"))
    assert inspect(american).settings["dates"] == "mdy"
    few = write("start,kwh\n" + rows("2024-03-01", 60, [0.1, 0.3] * 48, "%m/%d/%Y %H:%M"))
    found = inspect(few)
    assert (found.settings["dates"], found.alternatives["dates"]) == ("mdy", ("dmy",))


def test_swapped_days_and_months_are_counted_or_refused(write):
    days = [f"{day:02d}/03/2024" if day != 5 else "03/05/2024" for day in range(2, 12)]
    path = write("start,kwh\n" + "".join(f"{day} {hour:02d}:00,0.{hour % 7 + 1}\n" for day in days for hour in range(24)))
    assert read(path, tz="UTC", dates="dmy").totals()["swap_suspect"] == 24
    beyond = write("start,kwh\n13/03/2024 00:00,0.4\n03/14/2024 00:00,0.5\n")
    with pytest.raises(MeterFileError, match=r"line 3: .*swapped"):
        read(beyond, tz="UTC", measure="interval")


def test_unknown_settings_and_values(write):
    path = write("start,kwh\n" + rows("2024-01-01", 60, [0.1, 0.3, 0.2]))
    for declared, message in (
        ({"unti": "Wh"}, 'Did you mean "unit"'),
        ({"unit": "J"}, "choose one of kWh"),
        ({"tz": "Mars/Base"}, "Mars/Base"),
        ({"step": "x"}, "whole number"),
        ({"time": "no"}, "no column"),
        ({"channel": "kwh"}, "COLUMN=import"),
        ({"kind": "esb-hdf"}, "no such file"),
        ({"unit": "kW", "measure": "register"}, "counts energy"),
    ):
        with pytest.raises(MeterFileError, match=message):
            read(path, **{"tz": "UTC"} | declared)


def test_declared_columns(write):
    path = write("t;x;y;id\n" + "".join(f"2024-01-01 {hour:02d}:00;{hour % 3};{hour % 5};=\"541\"\n" for hour in range(24)))
    found = read(path, time=["t"], channel=["x=import:low:Wh", "y=export::kWh"], tz="+01:00", meter="id")
    assert found.meters == ("541",)
    assert found.series("import").sum() == pytest.approx(0.024)
    assert found.series("export").sum() == pytest.approx(46)
    assert found.series().index[0] == pd.Timestamp("2023-12-31 23:00", tz="UTC")


def test_a_register_that_is_reset_often_is_asked_for(write):
    path = write("start,Energy today kWh\n" + rows("2024-01-01", 60, [f"{k % 24 * 0.5:.1f}" for k in range(240)]))
    assert flags(path, tz="UTC") == ["--measure"]
    found = read(path, tz="UTC", measure="register")
    assert found.totals()["register_reset"] == 9
    power = write("time,P (W)\n" + rows("2024-01-01", 10, [k * 37 % 900 for k in range(144)]))
    assert (inspect(power).settings["unit"], inspect(power).settings["measure"]) == ("W", "interval")


def test_columns_that_repeat_others_are_not_added(write):
    line = ",".join(str(value) for value in (5, 3, 8, 400, 21))
    head = "start,Import T1 kWh,Import T2 kWh,Import total kWh,electricity_currently_delivered W,Gas m3\n"
    path = write(head + rows("2024-01-01", 60, [line] * 3))
    found = inspect(path)
    assert [(item.channel, item.register) for item in found.channels] == [("import", "t1"), ("import", "t2")]
    assert len(found.evidence["set aside"]) == 3
    alike = write("start,Fridge kWh,Oven kWh\n" + rows("2024-01-01", 60, ["0.1,0.2"] * 3))
    assert "--channel" in flags(alike)
    named = ["Fridge kWh=fridge", "Oven kWh=oven"]
    assert read(alike, tz="UTC", measure="interval", unit="kWh", stamp="start", channel=named).channels == ("fridge", "oven")


# -- clocks

@pytest.mark.parametrize("stamp", ["start", "end"])
@pytest.mark.parametrize(("day", "hours"), [("2024-03-30 23:00", 23), ("2024-10-26 22:00", 25)])
def test_days_of_clock_changes(write, day, hours, stamp):
    first = pd.Timestamp(day) + pd.Timedelta(minutes=15 if stamp == "end" else 0)
    path = write("when,kWh\n" + rows(first, 15, [f"0.{k % 9 + 1}" for k in range(4 * hours)], zone="Europe/Brussels"))
    found = read(path, tz="Europe/Brussels", stamp=stamp)
    assert len(found.frame) == 4 * hours
    assert (np.diff(found.series().index.asi8) == 900).all()
    assert found.series().index[0] == pd.Timestamp(day, tz="UTC")
    assert set(found.totals()) <= {"rows", "dst_repeated"}


def test_autumn_from_the_newest_row_down(write):
    lines = rows("2024-10-26 22:00", 60, [f"0.{10 + k * 7 % 25}" for k in range(25)], zone="Europe/Dublin").splitlines()
    path = write("start,kWh\n" + "\n".join(reversed(lines)))
    found = read(path, tz="Europe/Dublin").series()
    assert found.tolist() == [float(f"0.{10 + k * 7 % 25}") for k in range(25)]


def test_autumn_hour_listed_once_leaves_a_gap(write):
    path = write("start,kWh\n" + rows("2024-10-27", 60, [0.1, 0.3] * 12))
    counts = read(path, tz="Europe/Brussels").totals()
    assert (counts["dst_single"], counts["gaps"], counts["rows"]) == (1, 1, 24)


def test_readings_in_the_skipped_hour_refuse_the_zone(write):
    path = write("start,kWh\n" + rows("2024-03-31", 60, [0.1, 0.3] * 12))
    with pytest.raises(MeterFileError, match=r"line 4: the clock Europe/Brussels skips this hour"):
        read(path, tz="Europe/Brussels")
    assert len(read(path, tz="+01:00").frame) == 24


def test_duplicates_after_conversion(write):
    path = write("start,kWh\n2024-01-01T00:00:00+01:00,0.5\n2023-12-31T23:00:00Z,0.5\n2024-01-01T01:00:00+01:00,0.4\n"
                 "2024-01-01T00:00:00Z,0.7\n2024-01-01T02:00:00+01:00,0.2\n2024-01-01T03:00:00+01:00,0.3\n")
    found = read(path, measure="interval", stamp="start")
    assert found.series().tolist() == [0.5, 0.4, 0.2, 0.3]
    assert (found.totals()["duplicates"], found.totals()["conflicts"]) == (1, 1)


def test_rows_that_share_their_times_are_not_thinned_out(write):
    hours = "".join(f"2024-01-{day:02d};{hour};0,{hour % 7 + 1}\n" for day in (1, 2, 3) for hour in range(1, 25))
    with pytest.raises(MeterFileError, match=r"60 of 72 rows repeat a time.*--time twice"):
        read(write("Fecha;Turno;Consumo kWh\n" + hours), tz="Europe/Madrid", measure="interval")
    two = "start,kWh\n" + rows("2024-01-01", 60, [0.1, 0.4] * 12) + rows("2024-01-01", 60, [0.3, 0.2] * 12)
    with pytest.raises(MeterFileError, match="24 of 48 rows repeat a time"):
        read(write(two), tz="UTC", measure="interval")


def test_offsets_in_some_rows_only(write):
    path = write("start,kWh\n2024-01-01T00:00:00Z,0.5\n2024-01-01T01:00:00,0.5\n")
    with pytest.raises(MeterFileError, match="line 3: some stamps carry a UTC offset"):
        read(path)


# -- what is wrong is counted

def test_gaps_nulls_off_grid_and_runs(write):
    values = [0.1 + k % 5 / 10 for k in range(48)] + [0.0] * 14 + [0.3, 0.4, 0.2] + [0.7] * 20 + [0.2, 0.1]
    lines = rows("2024-01-01", 30, values).splitlines()
    lines[3] = lines[3].split(",")[0] + ",Null"
    del lines[10:13]
    lines.insert(20, "2024-01-01 11:37,0.2")
    found = read(write("start,kWh\n" + "\n".join(lines)), tz="UTC")
    counts = found.totals()
    assert {
        name: counts[name] for name in ("gaps", "gap_runs", "missing", "null_text", "off_grid", "zero_run", "flat_run")
    } == {"gaps": 3, "gap_runs": 1, "missing": 1, "null_text": 1, "off_grid": 1, "zero_run": 14, "flat_run": 20}
    assert len(found.frame) == len(values) - 3
    assert found.frame["kwh"].isna().sum() == 1
    assert (found.frame["quality"] == "zero_run").sum() == 14


def test_negative_and_implausible_readings_stay_flagged(write):
    values = [0.3, 0.5] * 100
    values[7], values[9] = -0.2, 900
    found = read(write("start,kWh\n" + rows("2024-01-01", 30, values)), tz="UTC", stamp="start")
    assert (found.totals()["negative"], found.totals()["implausible"]) == (1, 1)
    assert found.frame["quality"].tolist()[7:10:2] == ["negative", "implausible"]


def test_wh_and_kwh_in_one_column(write):
    path = write("start,kWh\n" + rows("2024-01-01", 60, [0.3, 0.5] * 24 + [300, 500] * 12 + [0.3, 0.5] * 240))
    with pytest.raises(MeterFileError, match="is the unit Wh or W"):
        read(path, tz="UTC")
    path = write("start,Wh\n" + rows("2024-01-01", 60, [300, 500] * 24 + [0.3, 0.5] * 12 + [300, 500] * 24))
    assert read(path, tz="UTC").totals()["unit_jumps"] == 2


def test_text_in_a_number_column(write):
    path = write("start,kWh\n" + rows("2024-01-01", 60, [0.1, 0.2, "zero", 0.4]))
    with pytest.raises(MeterFileError, match=r"meter.csv, line 4: kWh = 'zero' is no number"):
        read(path, tz="UTC", stamp="start", channel=["kWh=import::kWh"], measure="interval")
    path = write("start,kWh\n" + rows("2024-01-01", 60, [0.1, 0.2, "zero", *[0.4] * 20]))
    with pytest.raises(MeterFileError, match=r"meter.csv, line 4: kWh = 'zero' is no number, as the others are"):
        read(path, tz="UTC", stamp="start")                  # before any question about the column
    path = write("start,kWh\n" + rows("2024-01-01", 60, [0.1, *["zero"] * 4, *[0.4] * 16]))
    with pytest.raises(MeterFileError, match="Which column meters what"):
        read(path, tz="UTC", stamp="start")                  # a fifth are words: no column of numbers
    cut = write("start,kWh\n2024-01-01 00:00,0.1\n2024-01-01 01:00\n")
    with pytest.raises(MeterFileError, match="line 3: 1 fields where the first reading has 2"):
        read(cut)


def test_preamble_encoding_and_spreadsheet(write):
    text = "Verbrauch für Zähler 1\n\nDatum;Verbrauch (kWh);Status\n" + rows(
        "2024-01-15", 60, ["0,31;ok", "0,42;ok", "0,27;ok"], "%d.%m.%Y %H:%M", ";"
    )
    for encoding in ("cp1252", "utf-16", "utf-8-sig"):
        found = read(write(text, encoding=encoding), tz="Europe/Berlin", stamp="start", measure="interval")
        assert found.series().sum() == pytest.approx(1.0)
        assert found.totals() == {"rows": 3, "preamble_lines": 1, "blank_lines": 1}
    with pytest.raises(MeterFileError, match="NUL bytes"):
        inspect(write("PK\x03\x04\0\0", "book.csv"))


def test_files_of_one_reading_or_one_time(write):
    for text in ("2024-01-01 00:00,0.5\n", "2024-01-01 00:00,0.5\n" * 3, "2024-01-01 00:00,\n2024-01-01 00:30,\n"):
        path = write("start,kWh\n" + text)
        assert "--measure" in flags(path, channel="kWh=import")
        with pytest.raises(MeterFileError, match="declare --step") if text.startswith("2024-01-01 00:00,0") else \
                pytest.raises(MeterFileError, match="open question"):
            read(path, tz="UTC", **({"measure": "interval"} if "0.5" in text else {}))
    assert read(write("start,kWh\n2024-01-01 00:00,0.5\n"), tz="UTC", measure="interval", step="30").series().tolist() == [
        0.5
    ]


# -- registers

def register(values, start="2024-01-01", step=60):
    return "time,Import T1 kWh\n" + rows(start, step, [f"{value:.3f}" for value in values])


def test_register_resets_and_rolls_over(write):
    drawn = np.tile([0.5, 0.4], 30)
    found = read(write(register((99_990 + np.cumsum(drawn)) % 100_000)), tz="UTC")
    assert found.totals() == {"rows": 59, "register_rollover": 1}
    assert found.series().tolist() == pytest.approx(drawn[1:].tolist())
    assert "register_rollover" in found.frame["quality"].tolist()
    values = 500 + np.cumsum(np.tile([0.5, 0.4], 30))
    values[30:] -= values[30]
    found = read(write(register(values)), tz="UTC")
    assert found.totals()["register_reset"] == found.totals()["missing"] == 1
    assert found.frame["quality"].tolist()[29] == "register_reset|missing"  # what was drawn before it is not known


def test_register_gap_is_not_spread(write):
    lines = register(100 + np.cumsum(np.tile([0.5, 0.4], 30))).splitlines()
    del lines[20:25]
    found = read(write("\n".join(lines)), tz="UTC")
    assert (found.totals()["across_gaps"], found.totals()["gaps"]) == (1, 6)
    assert "their energy is known" in found.notes[0]


def test_register_over_a_clock_change(write):
    values = 100 + np.cumsum(np.tile([0.5, 0.4], 40))
    path = write(
        "time,Import kWh\n" + rows("2024-10-26 12:00", 15, [f"{value:.2f}" for value in values], zone="Europe/Brussels")
    )
    found = read(path, tz="Europe/Brussels")
    assert len(found.frame) == 79
    assert found.series().sum() == pytest.approx(values[-1] - values[0])


def test_home_assistant_history(write):
    when = pd.date_range("2024-01-01", periods=200, freq="7min", tz="UTC")
    lines = [f"sensor.energy_import_kwh,{100 + k * 0.05:.2f},{time:%Y-%m-%dT%H:%M:%S.%f}Z" for k, time in enumerate(when)]
    lines[50] = lines[50].replace("102.50", "unavailable")
    lines.insert(20, "sensor.door,open,2024-01-01T00:00:00.000Z")
    path = write("entity_id,state,last_changed\n" + "\n".join(lines))
    assert inspect(path).kind == "home-assistant"
    found = read(path, step="60")
    assert found.step_minutes == 60
    assert found.series().sum() == pytest.approx(0.05 * 195, abs=0.5)
    assert found.totals()["off_grid"] > 100
    assert found.totals()["set_aside"] == 1


def test_epoch_registers_without_a_header(write):
    path = write("".join(f"{1_704_067_200 + 900 * k},{1000 + k * 0.25 + k % 3 * 0.01:.3f}\n" for k in range(60)))
    found = read(path, unit="kWh")
    assert len(found.frame) == 59
    assert found.series().index[0] == pd.Timestamp("2024-01-01", tz="UTC")


# -- kinds

FLUVIUS = ("Van (datum);Van (tijdstip);Tot (datum);Tot (tijdstip);EAN-code;Meter;Metertype;Register;Volume;Eenheid;"
           "Validatiestatus;Omschrijving\n")


def test_fluvius_in_dutch(write):
    line = '15/01/2024;{0:02d}:{1:02d}:00;15/01/2024;00:00:00;="541448812345678901";1SAG;Digitale meter;{2};{3};{4};{5};\n'
    text = FLUVIUS
    for k in range(96):
        tariff = "Dag" if 28 <= k < 88 else "Nacht"
        text += line.format(
            k // 4, k % 4 * 15, f"Afname {tariff}", "0,100" if k != 5 else "", "kWh", "Geschat" if k == 9 else "Gemeten"
        )
        text += line.format(k // 4, k % 4 * 15, f"Injectie {tariff}", f"0,0{k % 9}", "kWh", "Gemeten")
    text += line.format(0, 0, "Afname Nacht", "1,5", "m³", "Gemeten")
    found = read(write(text, encoding="utf-8-sig"))
    assert found.series("import").sum() == pytest.approx(9.5)
    assert len(found.series("import")) == len(found.series("export")) == 96
    assert set(found.frame["register"]) == {"day", "night"}
    counts = found.totals()
    assert (counts["missing"], counts["estimated"], counts["set_aside"]) == (1, 1, 1)
    with pytest.raises(MeterFileError, match=r"Register = 'Warmte' is no known register"):
        read(write(text + line.format(1, 0, "Warmte", "1,5", "kWh", "Gemeten"), encoding="utf-8-sig"))


def test_a_register_that_begins_near_the_end(write):
    line = "{0:%d/%m/%Y;%H:%M:%S};x;y;541;m;t;{1};0,1;kWh;Gemeten;"
    when = pd.date_range("2023-04-01", periods=12_000, freq="15min")
    text = FLUVIUS + "\n".join(line.format(time, label) for label in ("Afname Dag", "Injectie Dag") for time in when)
    assert read(write(text)).channels == ("export", "import")


def test_esb_hdf(write):
    head = "MPRN,Meter Serial Number,Read Value,Read Type,Read Date and End Time\n"
    when = pd.date_range("2023-10-28 23:00", periods=50, freq="30min", tz="UTC").tz_convert("Europe/Dublin") + pd.Timedelta(
        "30min"
    )
    lines = [
        f"10001234567,20,{0.5 + k / 100:.4f},Active Import Interval (kW),{time:%d-%m-%Y %H:%M}"
        for k, time in enumerate(when)
    ]
    lines += ["10001234567,20,4321.5,24 Hr Active Import Register (kWh),29-10-2023 00:00"]
    found = read(write(head + "\n".join(reversed(lines))))
    used = found.series()
    assert (len(used), used.index[0]) == (50, pd.Timestamp("2023-10-28 23:00", tz="UTC"))  # a day of 25 hours
    assert used.iloc[0] == pytest.approx(0.25)  # kW over half an hour
    both = [line.replace("(kW)", "(kWh)").replace("0.5000", "0.2500") for line in lines[:1]]
    again = read(write(head + "\n".join([*lines, *both])), step="30")  # the same energy in two units is not added
    assert again.series().sum() == pytest.approx(used.sum())
    assert again.totals()["duplicates"] == 1
    assert found.totals()["set_aside"] == 1


def wide(days, columns, cell, mark=";", head="Giorno"):
    return "\n".join([mark.join([head, *columns])] + [mark.join([day, *(cell(row, k) for k in range(len(columns)))])
                                                      for row, day in enumerate(days)])


QUARTERS = [f"{k // 4:02d}:{k % 4 * 15:02d}-{(k + 1) // 4:02d}:{(k + 1) % 4 * 15:02d}" for k in range(96)]


def test_enel_wide_days(write):
    days = ["29/03/2024", "30/03/2024", "31/03/2024", "01/04/2024"]
    text = wide(days, QUARTERS, lambda row, k: "0,000" if row == 2 and 8 <= k < 12 else f"0,{100 + k}")
    path = write("Consumi (kWh)\n" + text)
    found = read(path, tz="Europe/Rome")
    assert len(found.frame) == 4 * 96 - 4
    assert found.totals()["nonexistent_local"] == 4
    assert (np.diff(found.series().index.as_unit("s").asi8) == 900).all()
    shorter = write("Consumi (kWh)\n" + wide(days, QUARTERS, lambda row, k: "" if row == 2 and k >= 92 else f"0,{100 + k}"))
    assert len(read(shorter, tz="Europe/Rome").frame) == 4 * 96 - 4
    other = write("Consumi (kWh)\n" + wide(days, QUARTERS, lambda row, k: f"0,{100 + k}"))
    with pytest.raises(MeterFileError, match=r"line 5: values in the hour that the clock Europe/Rome skips"):
        read(other, tz="Europe/Rome")
    assert len(read(other, tz="+01:00").frame) == 4 * 96


def test_wide_days_of_25_hours(write):
    days = ["26/10/2024", "27/10/2024", "28/10/2024"]
    hours = [f"H{k + 1:02d}" for k in range(25)]
    path = write(wide(days, hours, lambda row, k: "" if k == 24 and row != 1 else f"{k + 1}.5"))
    found = read(path, tz="Europe/Madrid", unit="kWh")
    assert len(found.frame) == 24 + 25 + 24
    assert found.totals() == {"rows": 73}
    folded = write(wide(days, hours[:24], lambda row, k: f"{k + 1}.5"))
    counts = read(folded, tz="Europe/Madrid", unit="kWh").totals()
    assert (counts["rows"], counts["gaps"], counts["dst_single"]) == (72, 1, 1)


def test_dsmr_columns_add_and_gas_is_left_out(write):
    path = write("Hour Start,Electricity 1 (Dutch Users: Low Tariff),Electricity 2 (Dutch Users: Normal Tariff),Gas\n"
                 + rows("2024-01-01T00:00:00+01:00", 60, ["0.1,0.2,5", "0.3,,5", "0,0.4,5"], "%Y-%m-%dT%H:%M:%S%z"))
    found = read(path)
    assert found.series().iloc[[0, 2]].tolist() == pytest.approx([0.3, 0.4])
    assert np.isnan(found.series().iloc[1])  # half of a whole is not the whole
    assert found.channels == ("import",)


def test_shelly_phases_add(write):
    path = write("Date/time UTC,Active energy Wh (A),Returned energy Wh (A),Active energy Wh (B),Active energy Wh (C)\n"
                 + rows("2025-01-01", 10, [f"{30 + k % 5},0,{k % 3},{k % 2}" for k in range(144)]))
    found = read(path)
    assert set(found.frame["register"]) == {"a", "b", "c"}
    assert found.series().iloc[1] == pytest.approx((31 + 1 + 1) / 1_000)


# -- NEM12

def nem(*records, header=True, trailer=True):
    return (
        "\n".join((["100,NEM12,202401010000,A,B"] if header else []) + list(records) + (["900"] if trailer else [])) + "\n"
    )


def block(nmi="6001", suffix="E1", unit="KWH", step=30):
    return f"200,{nmi},E1B1,{suffix},{suffix},,123,{unit},{step},"


def values(date, step=30, method="A", value="0.5", updated="20240102000000"):
    return f"300,{date},{','.join([value] * (1440 // step))},{method},,,{updated},"


def test_nem12_channels_units_and_steps(write):
    path = write(
        nem(
            block(),
            values("20240101"),
            block(suffix="B1", unit="WH"),
            values("20240101", value="250"),
            block(suffix="Q1", unit="KVARH"),
            values("20240101"),
            block(step=5),
            values("20240102", 5, value="0.1"),
        )
    )
    found = read_nem12(path)
    assert found.series("import", "6001").sum() == pytest.approx(24 + 28.8)
    assert found.series("export").sum() == pytest.approx(12)
    assert found.totals()["set_aside"] == 48
    assert sorted(set(found.frame["minutes"])) == [5, 30]
    assert found.series("import").index[0] == pd.Timestamp("2023-12-31 14:00", tz="UTC")
    assert not any("header" in note for note in found.notes)


def test_nem12_quality_and_revised_days(write):
    path = write(
        nem(
            block(),
            values("20240101", method="V"),
            "400,1,20,A,,",
            "400,21,40,S14,76,",
            "400,41,48,N,,",
            values("20240102", updated="20240103000000"),
            values("20240102", value="0.7", updated="20240109000000"),
        )
    )
    found = read_nem12(path)
    assert (found.totals()["substituted"], found.totals()["missing"], found.totals()["conflicts"]) == (20, 8, 48)
    assert found.series().iloc[-1] == 0.7  # the revised day


@pytest.mark.parametrize(("records", "options", "line", "message"), [
    ([values("20240101")], {}, 2, "before any 200"),
    ([block(), values("20240101")], {"header": False}, 1, "100 header is missing"),
    ([block(), values("20240101", 15)], {}, 3, "48 values"),
    ([block(), values("20240101").replace(",A,", ",", 1)], {}, 3, "48 values"),
    ([block(), values("20240101", method="V"), "400,1,20,A,,"], {}, 3, "interval 21"),
    ([block(), values("20240101", method="V"), "400,1,30,A,,", "400,30,48,A,,"], {}, 5, "twice"),
    ([block(), values("20241301")], {}, 3, "yyyymmdd"),
    ([block(), values("20240101", value="x")], {}, 3, "no number"),
    ([block(step=7), values("20240101")], {}, 2, "5, 15 and 30"),
    ([block(step="0²5"), values("20240101")], {}, 2, "5, 15 and 30"),
    ([block(), "700,1"], {}, 3, "none of 100"),
    (["400,1,2,A,,"], {}, 2, "follows no 300"),
])
def test_nem12_refuses_with_the_line(write, records, options, line, message):
    with pytest.raises(MeterFileError, match=rf"line {line}: .*{message}"):
        read_nem12(write(nem(*records, **options)))


def test_nem12_excerpts_say_so(write):
    assert "excerpt" in read_nem12(write(nem(block(), values("20240101"), header=False, trailer=False))).notes[0]
    assert "cut off" in read_nem12(write(nem(block(), values("20240101"), trailer=False))).notes[0]


# -- Green Button

def feed(types, prefix=""):
    """A feed of (flow, uom, multiplier, accumulation, [(start, duration, value), ...])."""
    entry = '<entry><link rel="self" href="{0}"/><link rel="up" href="{1}"/>{2}<content>{3}</content></entry>'
    out = []
    for k, (flow, uom, scale, behaviour, readings) in enumerate(types):
        base = f"/UsagePoint/7/MeterReading/{k}"
        rows = "".join(
            f"<IntervalReading><timePeriod><duration>{long}</duration><start>{start}</start></timePeriod><value>{value}</value>"
            f"</IntervalReading>"
            for start, long, value in readings
        )
        out.append(entry.format(f"{base}/IntervalBlock/1", f"{base}/IntervalBlock", "", f'<IntervalBlock xmlns="http://naesb.org/espi">{rows}</IntervalBlock>'))
        out.append(entry.format(f"/ReadingType/{k}", "/ReadingType", "", f'<ReadingType xmlns="http://naesb.org/espi"><accumulationBehaviour>{behaviour}'
                                f"</accumulationBehaviour><flowDirection>{flow}</flowDirection><powerOfTenMultiplier>{scale}"
                                f"</powerOfTenMultiplier><uom>{uom}</uom></ReadingType>"))
        out.append(entry.format(base, "/MeterReading", f'<link rel="related" href="/ReadingType/{k}"/>', '<MeterReading xmlns="http://naesb.org/espi"/>'))
    return f'<?xml version="1.0"?>{prefix}<feed xmlns="http://www.w3.org/2005/Atom">{"".join(out)}</feed>'


HOURS = [(1_704_067_200 + 3_600 * k, 3_600, 100 + k) for k in range(24)]


def test_green_button_takes_consumption_only(write):
    path = write(
        feed([(1, 72, 0, 4, HOURS), (19, 72, -3, 4, HOURS), (4, 72, 0, 4, HOURS), (1, 38, 0, 4, HOURS)]), "feed.xml"
    )
    found = read(path)
    assert found.series().sum() == pytest.approx(2.676)
    assert found.series("export").sum() == pytest.approx(0.002676)
    assert found.totals()["set_aside"] == 48
    assert found.meters == ("7",)
    assert inspect(path).kind == "green-button"


def test_green_button_registers_and_overlaps(write):
    total = [(start, 3_600, 1_000_000 + 100 * k) for k, (start, _, _) in enumerate(HOURS)]
    found = read_green_button(write(feed([(1, 72, 0, 3, total)]), "feed.xml"))
    assert found.series().tolist() == pytest.approx([0.1] * 23)
    days = [(HOURS[0][0], 86_400, 2_676)]
    with pytest.raises(MeterFileError, match="counted twice"):
        read_green_button(write(feed([(1, 72, 0, 4, HOURS), (1, 72, 0, 4, days)]), "feed.xml"))


@pytest.mark.parametrize("prefix", ['<!DOCTYPE feed [<!ENTITY a "b">]>', '<!DOCTYPE feed SYSTEM "file:///etc/passwd">'])
def test_green_button_refuses_dtds_and_entities(write, prefix):
    with pytest.raises(MeterFileError, match=r"feed.xml, line 1: declares a DTD"):
        read(write(feed([(1, 72, 0, 4, HOURS)], prefix), "feed.xml"))


def test_green_button_refuses_what_it_cannot_match(write):
    with pytest.raises(MeterFileError, match="no electricity consumption"):
        read(write(feed([(1, 169, 0, 4, HOURS)]), "feed.xml"))
    with pytest.raises(MeterFileError, match="line 1: not well-formed"):
        read(write("<feed><entry></feed>", "feed.xml"))
    with pytest.raises(MeterFileError, match="nested more than"):
        read(write("<a>" * 100, "feed.xml"))
    broken = feed([(1, 72, 0, 4, HOURS), (19, 72, 0, 4, HOURS)]).replace('rel="related"', 'rel="none"')
    with pytest.raises(MeterFileError, match="no link to a ReadingType"):
        read(write(broken, "feed.xml"))


# -- convert

def test_convert_writes_whole_or_nothing(write, tmp_path):
    path = write("start,kWh,meter\n" + rows("2024-01-01", 60, [f"0.{k % 7 + 1},=A{k % 2}" for k in range(48)]))
    out = tmp_path / "out.parquet"
    with pytest.raises(MeterFileError, match="open question"):
        convert(path, out)
    assert not out.exists()
    found = convert(path, out, tz="UTC", stamp="start", meter="meter", step="60")
    table = parquet.read_table(out)
    assert table.column_names == ["meter", "channel", "register", "start", "minutes", "kwh", "quality"]
    assert str(table.schema.field("start").type) == "timestamp[ms, tz=UTC]"
    assert table["kwh"].to_pylist() == found.frame["kwh"].tolist()
    origin = json.loads(table.schema.metadata[b"fedenergy"])
    assert (origin["source"], origin["settings"]["tz"], len(origin["sha256"])) == ("meter.csv", "UTC", 64)
    convert(path, tmp_path / "out.csv", tz="UTC", stamp="start", meter="meter", step="60")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[1].split(",")[:5] == ["'=A0", "import", "", "2024-01-01T00:00:00Z", "60"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["meter.csv", "out.csv", "out.parquet"]
    for bad, message in (
        (path, "itself"),
        (tmp_path / "out.xls", "parquet or .csv"),
        (tmp_path / "no" / "out.csv", "does not exist"),
    ):
        with pytest.raises(MeterFileError, match=message):
            convert(path, bad, tz="UTC", stamp="start")
