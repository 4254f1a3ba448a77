"""Whatever a file holds, a reader returns readings or raises its own error: it names the file, never hangs, never dies.

FEDENERGY_FUZZ=N sets the number of examples of each test, with fresh randomness.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import lzma
import os
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedenergy.households.readers.convert import convert
from fedenergy.households.readers.greenbutton import read_green_button
from fedenergy.households.readers.inspect import inspect, read
from fedenergy.households.readers.kinds import channel_of, unit_of
from fedenergy.households.readers.layout import UNITS
from fedenergy.households.readers.nem12 import read_nem12
from fedenergy.households.readers.periods import SIZES, period_size
from fedenergy.households.readers.readings import COLUMNS, MeterFileError
from fedenergy.households.readers.sheet import MAX_LINE, number
from fedenergy.households.readers.stamps import StampParser, begins, date_orders, to_utc, wall_seconds, zone_of
from tests.households.test_readers_kinds import FLUVIUS, HOURS, block, feed, nem, values, wide
from tests.households.test_readers_more import EXPORTS

EXAMPLES = int(os.environ.get("FEDENERGY_FUZZ", "30"))
quick = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FEDENERGY_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
DECLARED = {"tz": "Europe/Brussels", "stamp": "start", "measure": "interval", "unit": "Wh", "decimal": ".", "dates": "dmy"}

cells = st.one_of(
    st.sampled_from(
        [
            "",
            "Null",
            "?",
            "0",
            "1.5",
            "1,5",
            "1.234,5",
            "-3",
            "1e3",
            "1e999",
            "nan",
            "inf",
            '="541"',
            '"',
            "x" * 40,
            "\x00",
            "é",
        ]
    ),
    st.dates().map(str),
    st.datetimes().map(str),
    st.integers(-10, 2 * 10**9).map(str),
    st.floats(allow_nan=True).map(str),
    st.from_regex(r"\d{1,2}/\d{1,2}/(20)?\d\d( \d{1,2}:\d\d)?", fullmatch=True),
    st.from_regex(r"\d{1,2}:\d\d ?(AM|-\d\d:\d\d)?", fullmatch=True),
    st.from_regex(r"2024-0\d-1\d (0\d:00)?( to | - |-)2024-0\d-1\d", fullmatch=True),
    st.sampled_from(["Total", "Consumption", "Generation", "kWh", "W", "therms", "Usage", "sensor.energy", "24"]),
    st.text(max_size=6),
)


def tables(headers):
    lines = st.lists(st.lists(cells, min_size=1, max_size=6), max_size=12)
    return st.tuples(
        st.sampled_from(headers), lines, st.sampled_from([",", ";", "\t"]), st.sampled_from(["\n", "\r\n", "\r"])
    ).map(
        lambda part: (
            part[3].join([part[0].replace(",", part[2]), *(part[2].join(row) for row in part[1])]).encode("utf-8", "replace")
        )
    )


HEADERS = [
    "",
    "start,kWh",
    "Date,Time,Global_active_power,Sub_metering_1",
    "LCLid,stdorToU,DateTime,KWH/hh (per half hour) ",
    "MPRN,Meter Serial Number,Read Value,Read Type,Read Date and End Time",
    "entity_id,state,last_changed",
    "Hour Start,Electricity 1,Electricity 1 Returned",
    "Date/time UTC,Active energy Wh (A)",
    FLUVIUS.strip().replace(";", ","),
    "Fecha,Hora,Consumo_kWh,Importe",
    "time,name,kWh",
    "start,Usage,Unit",
    "timestamp,Grid [30],PV [20]\n,L1 Power,L1 Power\nEurope/Amsterdam,W,kWh",
    "statistic_id,unit_of_measurement,start,sum",
    "NMI,CON/GEN,DATE," + ",".join(f"{k:02d}:00 - {k + 1:02d}:00" for k in range(24)),
    "Giorno," + ",".join(f"{k}" for k in range(1, 25)),
    "100,NEM12,1,A,B",
    "<feed>",
]


def holds(path, reader, **declared):
    """The one promise of every reader."""
    found, told = None, ""
    try:
        found = reader(path, **declared)
    except MeterFileError as error:
        told = str(error)
    if found is None:
        assert path.name in told
        assert "\n" not in told
        assert len(told) < 2_000
        return None
    assert tuple(found.frame.columns) == COLUMNS
    assert not np.isinf(found.frame["kwh"]).any()

    assert not found.frame.duplicated(["meter", "channel", "register", "start", "minutes"]).any()
    return found


@pytest.fixture
def file(tmp_path):
    return tmp_path / "meter.csv"


@quick
@given(st.binary(max_size=600))
def test_random_bytes(file, data):
    file.write_bytes(data)
    for reader in (read, read_nem12, read_green_button):
        holds(file, reader)


@quick
@given(tables(HEADERS), st.booleans())
def test_random_tables(file, data, answered):
    file.write_bytes(data)
    holds(file, read, **(DECLARED if answered else {}))


def damaged(good):
    """A good file with bytes changed, removed, repeated or inserted."""
    def apply(edits):
        data = bytearray(good)
        for kind, where, what in edits:
            at = where % max(len(data), 1)
            if kind == "set" and data:
                data[at] = what
            elif kind == "cut":
                del data[at:at + what]
            elif kind == "insert":
                data[at:at] = bytes([what]) * (what % 4 + 1)
            elif kind == "repeat":
                data[at:at] = data[at:at + what]
        return bytes(data)

    return st.lists(
        st.tuples(st.sampled_from(["set", "cut", "insert", "repeat"]), st.integers(0, 1 << 20), st.integers(0, 255)),
        min_size=1,
        max_size=6,
    ).map(apply)


NEM = nem(block(), values("20240101", method="V"), "400,1,20,A,,", "400,21,48,S14,76,").encode()
ESB = (
    "MPRN,Meter Serial Number,Read Value,Read Type,Read Date and End Time\n"
    + "".join(
        f"10001,20,0.{k % 9},Active Import Interval (kW),28-10-2023 {k // 2:02d}:{k % 2 * 30:02d}\n" for k in range(40)
    )
).encode()
WIDE = wide(
    ["30/03/2024", "31/03/2024", "27/10/2024"],
    [f"H{k}" for k in range(1, 26)],
    lambda row, k: "" if k + row * row >= 24 and row < 2 else f"0,{k}",
).encode()
FLU = (
    FLUVIUS
    + "".join(
        f'29/10/2023;{k // 4 % 24:02d}:{k % 4 * 15:02d}:00;x;y;="541";m;t;Afname Nacht;0,{k};kWh;Gemeten;\n'
        for k in range(40)
    )
).encode()
DSMR = b"Hour Start,Electricity 1,Electricity 2\n" + b"".join(
    b"2024-01-01T%02d:00:00+01:00,0.%d,0\n" % (k, k) for k in range(24)
)
HA = b"entity_id,state,last_changed\n" + b"".join(
    b"sensor.kwh,%d.5,2024-01-01T%02d:00:00.000Z\n" % (k, k) for k in range(24)
)


MORE = {name: EXPORTS[name] for name in ("endesa, spring", "texas", "victron", "sce", "enedis", "totals", "jemena",
                                         "units in a column", "home assistant statistics")}
IDS = ["nem", "green", "esb", "fluvius", "dsmr", "wide", "ha", *MORE]


@pytest.mark.parametrize(("good", "declared"), [
    (NEM, {}), (feed([(1, 72, 0, 4, HOURS[:4]), (19, 72, 0, 4, HOURS[:4])]).encode(), {}), (ESB, {}), (FLU, {}), (DSMR, {}),
    (WIDE, {"tz": "Europe/Rome", "unit": "kWh"}), (HA, {"step": "60"}),
    *((one.text.encode(one.encoding), one.declared) for one in MORE.values())], ids=IDS)
def test_damaged_files(file, good, declared):
    @quick
    @given(damaged(good))
    def check(data):
        file.write_bytes(data)
        holds(file, read, **declared)

    file.write_bytes(good)
    assert holds(file, read, **declared) is not None
    check()


@quick
@given(st.lists(st.one_of(st.text(max_size=30), cells), max_size=5))
def test_ranges_and_headings(texts):
    cut = begins(texts)
    assert len(cut) == len(texts)
    assert all(old.strip().startswith(new) or old == new for old, new in zip(texts, cut))
    for text in texts:
        assert unit_of(text) in ("", *UNITS)
        found = channel_of(text)
        assert found is None or found.channel in ("import", "export", "generation")
        assert period_size(text, texts) in (0, *SIZES)


@quick
@given(st.sampled_from(["Europe/Madrid", "America/New_York", "Australia/Lord_Howe", "+10:00", "UTC"]), st.dates(
    datetime.date(2000, 1, 1), datetime.date(2037, 12, 30)), st.sampled_from([24, 48, 96]), st.integers(0, 1))
def test_numbered_intervals_are_the_days_own(file, zone, date, size, first):
    """However long the day, its numbered intervals are a step apart and fill it."""
    lines, starts, step = [], [], 1440 // size
    for day in (date - datetime.timedelta(1), date, date + datetime.timedelta(1)):
        midnight = int(np.datetime64(day, "s").astype(np.int64))
        begin, end = to_utc(np.array([midnight, midnight + 86_400]), zone)[0].tolist()
        count = (end - begin) // (60 * step)
        if (end - begin) % (60 * step):
            return  # Lord Howe moves its clock by half an hour
        starts.append(begin)
        lines += [f"{day},{k + first},{k % 7 / 10 + 0.1:.1f}" for k in range(count)]
    file.write_text("Date,Hour,Usage (kWh)\n" + "\n".join(lines))
    found = holds(file, read, tz=zone, measure="interval")
    assert found is not None
    assert len(found.frame) == len(lines)
    assert (np.diff(found.series().index.as_unit("s").asi8) == 60 * step).all()
    assert int(found.series().index.as_unit("s").asi8[0]) == starts[0]


@quick
@given(st.text(max_size=30))
def test_small_parsers(text):
    for sign in ".,":
        value = number(text, sign)
        assert value is None or not np.isinf(value)
    for order in date_orders([text]):
        StampParser(order).parse(text)
    with contextlib.suppress(ValueError):  # and nothing else
        zone_of(text)


@quick
@given(st.integers(315_532_800, 4_102_444_800), st.sampled_from(["Europe/Brussels", "UTC", "+10:00", "America/New_York"]))
def test_clock_there_and_back(seconds, zone):
    wall = wall_seconds(np.array([seconds]), zone)
    back, real, counts = to_utc(wall, zone)
    assert real.all()
    assert back[0] == seconds or (counts.get("dst_single") and seconds - back[0] == 3_600)


@quick
@given(st.integers(0, 400), st.lists(st.integers(0, 399), max_size=30), st.randoms(use_true_random=False))
def test_counts_add_up(file, first, gone, random):
    """Every row of a file is a reading, a duplicate or set aside; every slot between first and last is a row or a gap."""
    lines = [
        (1_704_067_200 + 900 * k, random.randint(1, 50) / 100)
        for k in range(first, first + 60)
        if k - first not in gone[:15]
    ]
    twice = [random.choice(lines) for _ in range(5)]
    every = lines + twice
    random.shuffle(every)
    file.write_text("epoch,kWh\n" + "".join(f"{when},{kwh}\n" for when, kwh in every))
    found = read(file, step="15", measure="interval", stamp="start")
    counts = found.totals()
    assert counts["rows"] == len(lines)
    assert counts["duplicates"] == 5
    assert counts["rows"] + counts.get("gaps", 0) == (lines[-1][0] - lines[0][0]) // 900 + 1
    assert found.series().tolist() == [kwh for _, kwh in lines]


def test_hostile_sizes(tmp_path):
    long = tmp_path / "long.csv"
    long.write_text("a" * (MAX_LINE + 10))
    with pytest.raises(MeterFileError, match=r"long.csv, line 1: longer than"):
        inspect(long)
    quote = tmp_path / "quote.csv"
    quote.write_text('start,kWh\n"2024-01-01 00:00,0.5\n' + "2024-01-01 00:00,0.5\n" * 20_000)
    with pytest.raises(MeterFileError, match=r"quote.csv, line \d+: not delimited text|no row of a time stamp"):
        inspect(quote)
    columns = tmp_path / "columns.csv"
    columns.write_text("2024-01-01" + ",1" * 3_000)
    with pytest.raises(MeterFileError, match="3001 columns"):
        inspect(columns)
    for name, data in (
        ("cut.csv.gz", gzip.compress(b"start,kWh\n" * 99)[:-9]),
        ("bad.csv.xz", b"xz?"),
        ("cut.csv.xz", lzma.compress(os.urandom(9_999))[:-99]),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(MeterFileError, match=re.escape(name)):
            inspect(tmp_path / name)
    with pytest.raises(MeterFileError, match=r"absent\.csv"):
        convert(tmp_path / "absent.csv", tmp_path / "out.csv")
    with pytest.raises(MeterFileError):
        inspect(tmp_path)


def test_a_bomb_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(200):
            file.write(b"0\n" * (1 << 18))
    tracemalloc.start()
    try:
        with pytest.raises(MeterFileError, match="first 200"):
            inspect(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
