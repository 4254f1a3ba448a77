"""The right answers of shared/data/README.md for real meter files."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from fedenergy.households.readers.convert import convert
from fedenergy.households.readers.greenbutton import read_green_button
from fedenergy.households.readers.inspect import inspect, read
from fedenergy.households.readers.lcl import read_lcl
from fedenergy.households.readers.nem12 import read_nem12
from fedenergy.households.readers.readings import MeterFileError

pytestmark = pytest.mark.data


@pytest.fixture
def messy(data_dir):
    if not (data_dir / "messy").is_dir():
        pytest.skip(f"{data_dir / 'messy'} is absent")
    return data_dir / "messy"


def day(series, zone, text):
    """The readings of one local day."""
    local = series.tz_convert(zone)
    return local[local.index.date == datetime.date.fromisoformat(text)]


def test_fluvius(messy):
    found = read(messy / "02_fluvius_quarterhour_decimalcomma.csv")
    used = found.series("import")
    first, last = day(used, "Europe/Brussels", "2023-10-22"), day(used, "Europe/Brussels", "2023-10-29")
    assert (len(first), int(first.isna().sum())) == (96, 1)  # the blank is missing, not 0
    assert first.sum() == pytest.approx(18.95, abs=5e-3)
    assert (len(last), int(last.isna().sum())) == (100, 0)
    assert last.sum() == pytest.approx(24.70, abs=5e-3)
    exported = found.series("export")
    assert {round(day(exported, "Europe/Brussels", text).sum(), 3) for text in ("2023-10-22", "2023-10-29")} >= {2.805}
    assert found.totals()["dst_repeated"] == 8  # four quarter hours of two registers
    assert found.meters == ("123456879123456789",)
    assert (np.diff(used.index[96:].astype("int64")) == 900).all()


def test_homewizard(messy):
    path = messy / "04_homewizard_cumulative_15min.csv"
    assert [question.flag for question in inspect(path).questions] == ["--tz"]
    with pytest.raises(MeterFileError, match=r"1 open question.*--tz"):
        read(path)
    frame = read(path, tz="Europe/Amsterdam").frame
    for register, kwh in (("t1", 26.784), ("t2", 16.981)):
        part = frame[(frame["channel"] == "import") & (frame["register"] == register)].set_index("start")["kwh"]
        first = day(part, "Europe/Amsterdam", "2022-09-01")[:95]  # the 96th ends with the next day's first reading
        assert len(first) == 95
        assert first.sum() == pytest.approx(kwh, abs=1e-6)


def test_dsmr_reader(messy):
    found = read(messy / "05_dsmrreader_hourly_iso_offset_dst.csv").series("import")
    for text, hours, kwh in (("2024-03-31", 23, 7.280), ("2024-10-27", 25, 6.852)):
        one = day(found, "Europe/Amsterdam", text)
        assert len(one) == hours
        assert one.sum() == pytest.approx(kwh, abs=5e-4)
        assert (np.diff(one.index.as_unit("s").asi8) == 3_600).all()


def test_nem12(messy):
    found = read_nem12(messy / "06_nem12_5min_quality400.csv")
    used = found.series()
    assert day(used, "Etc/GMT-10", "2023-10-19").sum() == pytest.approx(5.132, abs=5e-4)
    assert day(used, "Etc/GMT-10", "2023-10-20").sum() == pytest.approx(1.694, abs=5e-4)
    assert found.totals()["substituted"] == 98
    assert (found.frame["quality"].str.contains("substituted").to_numpy().nonzero()[0] == np.arange(98)).all()


def test_nem12_without_its_header_is_refused_with_the_line(messy):
    path = messy / "06b_Example_NEM12_missing_header.csv"
    for reader in (read, read_nem12):
        with pytest.raises(MeterFileError, match=r"06b.*line 2: .*100 header is missing") as caught:
            reader(path)
        assert caught.value.line == 2


def test_shelly(messy):
    used = read(messy / "09_shelly_em3_wh_utc_10min.csv").series()
    assert len(used) == 288
    assert used.sum() == pytest.approx(7.581, abs=5e-4)


def test_uci_resaved_by_a_spreadsheet(messy):
    path = messy / "10_uci_household_excel_resaved.csv"
    found = read(path, tz="UTC")
    assert sorted(set(found.series().index.date.tolist())) == [datetime.date(2007, 1, 1), datetime.date(2007, 1, 2)]
    assert found.step_minutes == 1
    assert found.series().iloc[0] == pytest.approx(2.58 / 60)
    assert any("2 January" in line for line in inspect(path).evidence["dates"])


def test_green_button(messy):
    found = read_green_button(messy / "13_greenbutton_united_power.xml")
    used = found.series("import")
    assert used.tolist() == [49.6, 23.03]  # 7 readings in all sum to 74.892, of which only these are consumption
    assert used.index[0].isoformat() == "2025-10-19T06:00:00+00:00"
    assert found.totals()["set_aside"] == 3
    assert sum("set aside" in note for note in found.notes) == 2


def test_metern_is_no_register(messy):
    path = messy / "17_metern_cumulative_yyyymmdd_noheader.csv"
    proposal = inspect(path)
    assert proposal.settings["measure"] == "interval"
    assert {question.flag for question in proposal.questions} == {"--tz", "--unit"}
    with pytest.raises(MeterFileError, match=r"is no register: it falls in \d+ of 364 rows"):
        read(path, tz="Europe/Brussels", unit="Wh", measure="register")
    used = read(path, tz="Europe/Brussels", unit="Wh").series()
    assert (len(used), used.iloc[0]) == (365, 9.648)
    with pytest.raises(MeterFileError, match="kW for a home"):
        read(path, tz="Europe/Brussels", unit="kWh")


def test_london_raw(messy):
    path = messy / "18_lcl_raw_format_quirks_SYNTHETIC.csv"
    found = read(path)
    used = found.series(meter="MAC000002")
    assert len(used) == 7
    assert used.sum() == pytest.approx(1.532, abs=1e-9)
    counts = found.counts["MAC000002", "import", ""]
    assert {name: counts[name] for name in ("gaps", "duplicates", "off_grid", "null_text")} == {
        "gaps": 20, "duplicates": 1, "off_grid": 1, "null_text": 1}
    homes = read_lcl(path)
    assert sorted(homes) == ["mac000002", "mac000146"]
    assert np.nansum(homes["mac000002"].values) == pytest.approx(1.532)
    assert homes["mac000002"].totals()["duplicates"] == homes["mac000002"].totals()["off_grid"] == 1


def test_every_file_converts_or_says_why(messy, tmp_path):
    answers = {"--tz": ("tz", "Europe/Brussels"), "--unit": ("unit", "Wh")}
    done = 0
    for path in sorted(messy.glob("*.*")):
        if path.suffix not in (".csv", ".xml") or path.name.startswith("06b"):
            continue
        declared = dict(answers[question.flag] for question in inspect(path).questions)
        found = convert(path, tmp_path / "out.parquet", **declared)
        assert str(found.frame["start"].dtype) == "datetime64[s, UTC]"
        done += 1
    assert done == 9
