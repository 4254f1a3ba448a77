"""One table of readings, read as its layout says: the engine under every delimited kind of meter file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedenergy.households.readers.periods import period_offsets
from fedenergy.households.readers.readings import MeterFileError, Readings, Stream, assemble
from fedenergy.households.readers.registers import differences
from fedenergy.households.readers.sheet import Sheet, numbers, read_sheet, unwrap
from fedenergy.households.readers.stamps import StampParser, begins, to_utc, zone_of

UNITS = {"kWh": 1.0, "Wh": 0.001, "MWh": 1_000.0, "kW": 1.0, "W": 0.001}
POWER = ("kW", "W")
_FACTORS = {name.lower(): (lambda nominal, scale=scale, power=name in POWER: scale * (nominal / 60 if power else 1))
            for name, scale in UNITS.items()}
STAMPS, MEASURES = ("start", "end"), ("interval", "register")


@dataclass(frozen=True)
class Channel:
    """A column (or, in a long table, a label) and what it meters: import, export or a name of its own."""

    column: str
    channel: str
    register: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Layout:
    """What a table means; None is not known yet.

    time      the stamp's column, or date and clock columns
    label     long tables: the column that names the register; values are then in `reading`
    whole     the columns of one row are parts of one whole, so one missing makes the interval missing
    """

    kind: str
    time: tuple[str, ...]
    channels: tuple[Channel, ...]
    dates: str | None = None
    stamp: str | None = None
    tz: str | None = None
    unit: str | None = None
    measure: str | None = None
    decimal: str | None = None
    step_minutes: int | None = None
    meter: str = ""
    label: str = ""
    reading: str = ""
    status: str = ""
    unit_column: str = ""
    delimiter: str = ""
    any_label: bool = False  # labels without a channel of their own are set aside, not refused
    period: str = ""  # the column that numbers the intervals of a day, from 0 or 1
    late: bool = False  # a register's stamp names the interval at whose end it was read


def stamp_row(row: Sequence[str]) -> bool:
    """Whether a row of text holds a time stamp and, in another cell, a number or a missing one."""
    from fedenergy.households.readers.sheet import number

    cells = [begins([unwrap(cell)])[0] for cell in row]
    stamped = [k for k, cell in enumerate(cells) if _is_stamp(cell)]
    return bool(stamped) and any(number(cell, sign) is not None for k, cell in enumerate(cells) if k != stamped[0]
                                 for sign in ".,")


def _is_stamp(cell: str) -> bool:
    if not 6 <= len(cell) <= 40 or not any(letter.isdecimal() for letter in cell):
        return False
    for order in ("ymd", "dmy", "mdy", "epoch"):
        try:
            StampParser(order).parse(cell)
            return True
        except ValueError:
            continue
    return False


def read_layout(path: Path, layout: Layout) -> Readings:
    """A table's readings. Every field of the layout that matters must be known; MeterFileError otherwise."""
    sheet = read_sheet(path, stamp_row, layout.delimiter)
    for name in ("dates", "measure", "decimal"):
        if getattr(layout, name) is None:
            raise MeterFileError(path, f"--{name} is not declared")
    if layout.measure == "interval" and layout.stamp is None:
        raise MeterFileError(path, "--stamp is not declared: does a time name the interval's start or its end?")
    wall, offset = stamps(sheet, layout)
    if offset is None and layout.tz is None:
        raise MeterFileError(path, "--tz is not declared and the stamps carry no offset")
    counts = dict(sheet.counts)
    streams, notes = [], []
    foreign = _foreign(sheet, layout, counts, notes)
    for meter, rows in _groups(sheet, layout.meter).items():
        rows = rows[~foreign[rows]]
        if not len(rows):
            continue
        if layout.label:
            streams += _long(sheet, layout, meter, rows, wall, offset, counts, notes)
        else:
            streams += _wide(sheet, layout, meter, rows, wall, offset)
    if layout.dates in ("dmy", "mdy"):
        counts["swap_suspect"] = swap_suspects(wall)
    if layout.measure == "register":
        streams = [differences(path, stream, layout.step_minutes) for stream in streams]
        if lost := sum(stream.counts.get("across_gaps", 0) for stream in streams):
            notes.append(f"{lost} differences span a gap of the register: their energy is known, its time is not; left out")
    return assemble(path, streams, layout.tz or "UTC", layout.step_minutes, counts, notes)


def stamps(sheet: Sheet, layout: Layout) -> tuple[np.ndarray, np.ndarray | None]:
    """((rows,) wall seconds, (rows,) UTC offsets or None where the stamps carry none)."""
    parser = StampParser(layout.dates)
    columns = [begins([unwrap(text) for text in sheet.column(name)]) for name in layout.time]
    wall, offset, bare = np.zeros(len(sheet.lines), np.int64), np.zeros(len(sheet.lines), np.int64), None
    for row, cells in enumerate(zip(*columns)):
        try:
            wall[row], found = parser.parse(cells[0], cells[1] if len(cells) > 1 else None)
        except ValueError as error:
            raise MeterFileError(sheet.path, error, sheet.lines[row]) from None
        if bare is None:
            bare = found is None
        if bare != (found is None):
            raise MeterFileError(sheet.path, "some stamps carry a UTC offset and some do not", sheet.lines[row])
        offset[row] = found or 0
    if layout.period:
        return period_offsets(sheet, wall, sheet.column(layout.period), layout.tz)
    return wall, None if bare else offset


def _groups(sheet: Sheet, column: str) -> Mapping[str, np.ndarray]:
    if not column:
        return {"": np.arange(len(sheet.lines))}
    found: dict[str, list[int]] = {}
    for row, text in enumerate(sheet.column(column)):
        found.setdefault(unwrap(text), []).append(row)
    return {name: np.array(rows) for name, rows in found.items()}


def _foreign(sheet: Sheet, layout: Layout, counts: dict[str, int], notes: list[str]) -> np.ndarray:
    """(rows,) bool: rows in a unit that is no energy or power (gas in m3, reactive energy), set aside."""
    if not layout.unit_column:
        return np.zeros(len(sheet.lines), bool)
    units = [unwrap(text) for text in sheet.column(layout.unit_column)]
    known = {text: text.lower() in _FACTORS for text in set(units)}
    foreign = np.array([not known[text] for text in units])
    if foreign.any():
        counts["set_aside"] = counts.get("set_aside", 0) + int(foreign.sum())
        notes.append(
            f"{int(foreign.sum())} rows in {', '.join(sorted(text or 'no unit' for text in known if not known[text]))[:60]}"
            " are set aside"
        )
    return foreign


def _utc(path: Path, layout: Layout, wall: np.ndarray, offset: np.ndarray | None, nominal: int) -> tuple:
    """Beginnings in UTC of one register's rows in file order: (utc, real, counts)."""
    if layout.late:
        utc, real, found = _utc(path, replace(layout, late=False), wall, offset, nominal)
        return utc + nominal * 60, real, found
    if offset is not None:
        shift = nominal * 60 if layout.stamp == "end" and layout.measure == "interval" else 0
        return wall - offset - shift, np.ones(len(wall), bool), {}
    down = len(wall) > 1 and int((np.diff(wall) < 0).sum()) * 2 > len(wall)
    if layout.stamp != "end" or layout.measure != "interval":
        return to_utc(wall, layout.tz, down)
    # An end may be written as the wall clock at that instant, or as the beginning's wall clock plus the step; the two
    # differ on clock changes only, and the wrong one leaves stamps that do not exist or stand alone.
    ends = to_utc(wall, layout.tz, down)
    begins = to_utc(wall - nominal * 60, layout.tz, down)
    bad = [found[2].get("nonexistent_local", 0) + found[2].get("dst_single", 0) for found in (ends, begins)]
    return begins if bad[1] < bad[0] else (ends[0] - nominal * 60, *ends[1:])


def _nominal(sheet: Sheet, layout: Layout, wall: np.ndarray) -> int:
    if layout.step_minutes:
        return layout.step_minutes
    gaps = np.diff(np.unique(wall))
    if not len(gaps):
        raise MeterFileError(sheet.path, "one reading does not tell the step: declare --step MINUTES")
    values, times = np.unique(gaps, return_counts=True)
    return max(int(values[times.argmax()]) // 60, 1)


def _streams(sheet: Sheet, layout: Layout, meter: str, rows: np.ndarray, wall: np.ndarray, offset: np.ndarray | None,
             parts: Sequence[tuple[Channel, np.ndarray, int]], flags: np.ndarray) -> list[Stream]:
    nominal = _nominal(sheet, layout, wall[rows])
    utc, real, found = _utc(sheet.path, layout, wall[rows], None if offset is None else offset[rows], nominal)
    streams = []
    for channel, values, words in parts:
        lost = ~real & (np.nan_to_num(values) != 0)
        if lost.sum() * nominal >= 60 or (lost.any() and nominal >= 60):
            row = rows[np.flatnonzero(lost)[0]]
            raise MeterFileError(
                sheet.path,
                f"the clock {layout.tz} skips this hour, but the meter read {lost.sum()} values in "
                "it: the file is on another clock; declare --tz (UTC, +01:00, ...)",
                sheet.lines[row],
            )
        factor = _factor(sheet, layout, channel, rows, nominal)
        streams.append(Stream(meter, channel.channel, channel.register, utc[real], (values * factor)[real],
                              flags[real].copy(), {**found, "null_text": words}))
    return streams


def _factor(sheet: Sheet, layout: Layout, channel: Channel, rows: np.ndarray, nominal: int) -> float | np.ndarray:
    """To kWh per step: one number, or one per row where the file names the unit in each row."""
    if layout.unit_column:
        texts = sheet.column(layout.unit_column)
        return np.array([_FACTORS[unwrap(texts[row]).lower()](nominal) for row in rows.tolist()])
    unit = channel.unit or layout.unit
    if unit is None:
        raise MeterFileError(sheet.path, f"the unit of {channel.column} is not declared: --unit {', '.join(UNITS)}")
    return _FACTORS[unit.lower()](nominal)


def _wide(sheet: Sheet, layout: Layout, meter: str, rows: np.ndarray, wall: np.ndarray,
          offset: np.ndarray | None) -> list[Stream]:
    parts = []
    for channel in layout.channels:
        parts.append((channel, *numbers(sheet, channel.column, layout.decimal, rows)))
    return _streams(sheet, layout, meter, rows, wall, offset, parts, _flags(sheet, layout, rows))


def _long(sheet: Sheet, layout: Layout, meter: str, rows: np.ndarray, wall: np.ndarray, offset: np.ndarray | None,
          counts: dict[str, int], notes: list[str]) -> list[Stream]:
    known = {channel.column: channel for channel in layout.channels}
    labels = [unwrap(text) for text in sheet.column(layout.label)]
    groups: dict[str, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(labels[row], []).append(row)
    streams = []
    for label, members in groups.items():
        if label not in known:
            if not layout.any_label:
                raise MeterFileError(sheet.path, f"{layout.label} = {label[:40]!r} is no known register "
                                                 f"({', '.join(known) or 'none declared'}): declare --channel "
                                                 "'LABEL=import|export'", sheet.lines[members[0]])
            counts["set_aside"] = counts.get("set_aside", 0) + len(members)
            notes.append(f"{layout.label} {label[:40]!r}: {len(members)} rows set aside, no interval energy of a meter")
            continue
        part = np.array(members)
        parts = [(known[label], *numbers(sheet, layout.reading, layout.decimal, part))]
        streams += _streams(sheet, layout, meter, part, wall, offset, parts, _flags(sheet, layout, part))
    return streams


def _flags(sheet: Sheet, layout: Layout, rows: np.ndarray) -> np.ndarray:
    if not layout.status:
        return np.full(len(rows), "", object)
    texts = sheet.column(layout.status)
    known = {text: _flag(text) for text in set(texts)}
    return np.array([known[texts[row]] for row in rows.tolist()], object)


def _flag(text: str) -> str:
    low = text.lower()
    if any(word in low for word in ("estim", "geschat", "stimat", "ersatz")):
        return "estimated"
    return "substituted" if any(word in low for word in ("substit", "edited", "herberekend", "corrected")) else ""


def swap_suspects(wall: np.ndarray) -> int:
    """Days out of order whose day and month, swapped, would follow the day before: a spreadsheet's work."""
    import datetime

    days = wall // 86_400
    firsts = np.concatenate(([True], np.diff(days) != 0))
    rows = days[firsts].tolist()
    sizes = np.diff(np.append(np.flatnonzero(firsts), len(days))).tolist()
    suspects, expected = 0, None
    for day, size in zip(rows, sizes):
        date = datetime.date.fromordinal(day + 719_163)
        swapped = None
        if date.day <= 12 and date.day != date.month:
            swapped = datetime.date(date.year, date.day, date.month).toordinal() - 719_163
        if expected is not None and abs(day - expected) > 2 and swapped in (expected, expected + 1):
            suspects, day = suspects + size, swapped
        expected = day + 1
    return suspects


def check_layout(path: Path, layout: Layout) -> None:
    """MeterFileError where a declared value is not one of its kind."""
    rules = (("unit", layout.unit, tuple(UNITS)), ("stamp", layout.stamp, STAMPS), ("measure", layout.measure, MEASURES),
             ("decimal", layout.decimal, (".", ",")), ("dates", layout.dates, ("ymd", "dmy", "mdy", "epoch")))
    for name, value, allowed in rules:
        if value is not None and value not in allowed:
            raise MeterFileError(path, f"--{name} {value!r}: choose one of {', '.join(allowed)}")
    if layout.measure == "register" and layout.unit in POWER:
        raise MeterFileError(path, f"--unit {layout.unit} with --measure register: a register counts energy (kWh, Wh)")
    if layout.step_minutes is not None and not 1 <= layout.step_minutes <= 1440:
        raise MeterFileError(path, f"--step {layout.step_minutes}: 1 to 1440 minutes")
    if layout.tz is not None:
        try:
            zone_of(layout.tz)
        except ValueError as error:
            raise MeterFileError(path, error) from None
