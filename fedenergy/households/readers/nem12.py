"""NEM12, Australia's interval file: 100/200/300/400/500/900 records, no table header, market time (UTC+10, no DST)."""

from __future__ import annotations

import csv
import datetime
import re
from pathlib import Path

import numpy as np

from fedenergy.households.readers.readings import MeterFileError, Readings, Stream, assemble
from fedenergy.households.readers.sheet import lines_of

UNITS = {"KWH": 1.0, "WH": 0.001, "MWH": 1_000.0}
METHOD = re.compile(r"[AEFNSV]\d{0,2}")
NAMES = {"S": "substituted", "F": "substituted", "E": "estimated"}
_VALUE = re.compile(r"[+-]?(?:\d{1,15}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][+-]?\d{1,3})?")


def read_nem12(path: Path, tz: str = "+10:00") -> Readings:
    """Import (suffix E) and export (suffix B) of every NMI, by suffix; kWh.

    Quality comes from the 300 record or, where it is variable (V), from the 400 records, which must cover the day
    once. A null interval (N) is NaN; substituted (S, F) and estimated (E) ones are flagged. Reactive and other
    quantities are set aside and counted. Refused with the line's number: a record out of order, another number of values
    than the day has, a trailer (900) without its header (100): the file then lost its beginning. A portal's excerpt
    with neither is read, and noted.
    """
    records = _records(path)
    blocks: dict[tuple[str, str, str, int], list] = {}
    counts: dict[str, int] = {"set_aside": 0}
    notes: list[str] = []
    meter = None
    day: dict | None = None
    for line, fields in records:
        kind = fields[0]
        if kind == "200":
            _close(path, day)
            day, meter = None, _meter(path, line, fields)
            if meter[2] is None:
                notes.append(f"line {line}: {meter[1]} in {meter[4]} is no active energy: set aside")
        elif kind == "300":
            _close(path, day)
            if meter is None:
                raise MeterFileError(path, "a 300 record before any 200 record: the meter and its unit are not known", line)
            day = _day(path, line, fields, meter[3])
            if meter[2] is None:
                counts["set_aside"] += len(day["values"])
            else:
                blocks.setdefault((meter[0], meter[2], meter[1], meter[3]), []).append((meter, day))
        elif kind == "400":
            if day is None:
                raise MeterFileError(path, "a 400 record that follows no 300 record", line)
            _event(path, line, fields, day)
    _close(path, day)
    if not any(fields[0] == "100" for _, fields in records[:1]):
        notes.append("no 100 header and no 900 trailer: an excerpt; whether it is whole cannot be checked")
    elif records[-1][1][0] != "900":
        notes.append("a 100 header but no 900 trailer: the end may be cut off")
    steps = sorted({key[3] for key in blocks})
    if len(steps) > 1:
        notes.append(f"intervals of {' and '.join(map(str, steps))} minutes in one file: each row says its own")
    return assemble(path, _streams(blocks, tz), tz, steps[0] if steps else None, counts, notes)


def _records(path: Path) -> list[tuple[int, list[str]]]:
    reader = csv.reader(lines_of(path))
    found: list[tuple[int, list[str]]] = []
    try:
        for fields in reader:
            fields = [field.strip() for field in fields]
            if not any(fields):
                continue
            if fields[0] not in ("100", "200", "300", "400", "500", "900"):
                raise MeterFileError(path, f"record {fields[0][:20]!r} is none of 100, 200, 300, 400, 500, 900",
                                     reader.line_num)
            if found and found[-1][1][0] == "900":
                raise MeterFileError(path, "a record after the 900 trailer", reader.line_num)
            if fields[0] == "100" and (found or fields[1:2] != ["NEM12"]):
                raise MeterFileError(path, "a 100 header that is not the first record, or not of NEM12", reader.line_num)
            found.append((reader.line_num, fields))
    except csv.Error as error:
        raise MeterFileError(path, f"not comma-separated text ({error})", reader.line_num) from None
    if not found:
        raise MeterFileError(path, "no NEM12 record in the file")
    if found[-1][1][0] == "900" and found[0][1][0] != "100":
        raise MeterFileError(path, f"begins with a {found[0][1][0]} record but ends with the 900 trailer: the 100 header is "
                                   "missing, so records before this line may be too; ask for the whole file", found[0][0])
    return found


def _meter(path: Path, line: int, fields: list[str]) -> tuple:
    """(NMI, suffix, channel or None, step in minutes, unit) of a 200 record."""
    if len(fields) < 9:
        raise MeterFileError(path, f"a 200 record of {len(fields)} fields: it has at least 9 (the 9th is the step)", line)
    suffix, unit = fields[4].upper(), fields[7].upper()
    if not fields[1] or not suffix:
        raise MeterFileError(path, "a 200 record without NMI or suffix", line)
    if not re.fullmatch(r"0{0,2}(5|15|30)", fields[8]):
        raise MeterFileError(path, f"interval length {fields[8][:10]!r}: NEM12 has 5, 15 and 30 minutes", line)
    channel = {"E": "import", "B": "export"}.get(suffix[0]) if unit in UNITS else None
    return fields[1], suffix, channel, int(fields[8]), unit


def _day(path: Path, line: int, fields: list[str], step: int) -> dict:
    size = 1440 // step
    try:
        date = datetime.date(int(fields[1][:4]), int(fields[1][4:6]), int(fields[1][6:])) if re.fullmatch(
            r"\d{8}", fields[1] if len(fields) > 1 else "") else None
    except ValueError:
        date = None
    if date is None or not 1990 <= date.year <= 2100:
        raise MeterFileError(path, f"date {(fields[1] if len(fields) > 1 else '')[:20]!r} is no yyyymmdd", line)
    method = fields[2 + size] if len(fields) > 2 + size else ""
    if not METHOD.fullmatch(method):
        raise MeterFileError(path, f"a 300 record of {step}-minute intervals has {size} values and then a quality method "
                                   f"(A, E, F, N, S or V), found {method[:20]!r} there: the line is cut or its length is "
                                   "another", line)
    values = np.full(size, np.nan)
    for k, text in enumerate(fields[2:2 + size]):
        if text and not _VALUE.fullmatch(text):
            raise MeterFileError(path, f"value {k + 1} = {text[:20]!r} is no number", line)
        if text:
            values[k] = float(text)
    if np.isinf(values).any():
        raise MeterFileError(path, "a value that is not finite", line)
    flags = np.full(size, NAMES.get(method[0], ""), object)
    if method[0] == "N":
        values[:] = np.nan
    return {"line": line, "date": date, "values": values, "flags": flags, "variable": method[0] == "V",
            "covered": np.zeros(size, bool), "updated": max((text for text in fields[5 + size:7 + size] if text.isdecimal()),
                                                           default="")}


def _event(path: Path, line: int, fields: list[str], day: dict) -> None:
    size = len(day["values"])
    if len(fields) < 4 or not fields[1].isdecimal() or not fields[2].isdecimal() or not METHOD.fullmatch(fields[3]) \
            or len(fields[1]) > 4 or len(fields[2]) > 4 or not 1 <= int(fields[1]) <= int(fields[2]) <= size:
        raise MeterFileError(path, f"a 400 record names first and last interval (1 to {size}) and a quality method", line)
    span = slice(int(fields[1]) - 1, int(fields[2]))
    if day["covered"][span].any():
        raise MeterFileError(path, f"intervals {fields[1]} to {fields[2]} are covered twice by 400 records", line)
    day["covered"][span] = True
    day["flags"][span] = NAMES.get(fields[3][0], "")
    if fields[3][0] == "N":
        day["values"][span] = np.nan


def _close(path: Path, day: dict | None) -> None:
    if day is not None and day["variable"] and not day["covered"].all():
        lacks = int(np.flatnonzero(~day["covered"])[0]) + 1
        raise MeterFileError(path, f"variable quality (V), but no 400 record covers interval {lacks}", day["line"])


def _streams(blocks: dict, tz: str) -> list[Stream]:
    from fedenergy.households.readers.stamps import zone_of

    shift = int(zone_of(tz).utcoffset(datetime.datetime(2024, 7, 1)).total_seconds())
    streams = []
    for (name, channel, suffix, step), days in blocks.items():
        days = sorted(days, key=lambda pair: pair[1]["updated"], reverse=True)  # a revised day replaces the older one
        begins, values, flags, kept = [], [], [], {}
        counts = {"duplicates": 0, "conflicts": 0}
        for meter, day in days:
            energy = day["values"] * UNITS[meter[4]]
            if day["date"] in kept:
                same = np.array_equal(kept[day["date"]], energy, equal_nan=True)
                counts["duplicates" if same else "conflicts"] += len(energy)
                continue
            kept[day["date"]] = energy
            midnight = (day["date"].toordinal() - 719_163) * 86_400 - shift
            begins.append(midnight + 60 * step * np.arange(len(energy), dtype=np.int64))
            values.append(energy)
            flags.append(day["flags"])
        order = np.argsort([begin[0] for begin in begins])
        columns = (np.concatenate([part[k] for k in order]) for part in (begins, values, flags))
        streams.append(Stream(name, channel, suffix, *columns, counts=counts, step_minutes=step))
    return streams
