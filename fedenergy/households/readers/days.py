"""Wide days, as Enel and many portals write them: one row a day, one column an interval."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedenergy.households.readers.layout import POWER, UNITS, Layout, stamp_row
from fedenergy.households.readers.readings import MeterFileError, Readings, Stream, assemble
from fedenergy.households.readers.sheet import Sheet, numbers, read_sheet, unwrap
from fedenergy.households.readers.stamps import StampParser, to_utc

SIZES = (24, 48, 96, 144, 288)
_TIME = re.compile(r"(?:^|[^\d])(\d{1,2})[:.h](\d\d)")
_ORDINAL = re.compile(
    r"(?i)^(?:h|q|e|hr|ora|hour|uur|interval|intervallo|value|valore|period|p|int|slot|hh)?[ _]?0*(\d{1,3})$"
)


def day_columns(header: Sequence[str]) -> tuple[str, ...]:
    """The interval columns of a wide table, in order: named by clock times or by 1, 2, ...; () where there are none.

    >>> len(day_columns(["Giorno", *(f"{k // 4:02d}:{k % 4 * 15:02d}" for k in range(96)), "Totale"]))
    96
    """
    timed = [name for name in header if _TIME.search(name)]
    if len(timed) >= 23 and _clock_step(timed):
        return tuple(timed)
    ordinal = [(int(match[1]), name) for name in header if (match := _ORDINAL.fullmatch(name.strip()))]
    values = [value for value, _ in ordinal]
    if len(values) >= 23 and values in (list(range(1, len(values) + 1)), list(range(len(values)))) and _size(len(values)):
        return tuple(name for _, name in ordinal)
    return ()


def _clock_step(names: Sequence[str]) -> int:
    """Minutes between the columns' clock times; 0 where they are not evenly apart."""
    minutes = _minutes(names)
    steps = {(later - earlier) % 1440 for earlier, later in itertools.pairwise(minutes)}
    common = min((step for step in steps if step), default=0)
    even = sum((later - earlier) % 1440 == common for earlier, later in itertools.pairwise(minutes))
    return common if common and 1440 % common == 0 and 1440 // common in SIZES and even >= len(minutes) - 4 else 0


def _minutes(names: Sequence[str]) -> list[int]:
    return [int(match[1]) * 60 + int(match[2]) for name in names if (match := _TIME.search(name))]


def _size(columns: int) -> int:
    """Intervals of an ordinary day in a table of so many columns (a 25th hour may have columns of its own)."""
    return next((size for size in SIZES if columns in (size, size + size // 24)), 0)


def read_days(path: Path, layout: Layout) -> Readings:
    """Readings of a wide table; the layout's first time column is the day, its channel the column of labels, if any.

    A day of 23 hours has no value in the hour that its clock skips (blank or 0), or simply fewer values; one of 25
    hours has more columns, or lacks its second hour, which is then a gap (dst_single). MeterFileError names the line
    whose values fit neither.
    """
    sheet = read_sheet(path, stamp_row, layout.delimiter)
    for name in ("dates", "unit", "decimal", "tz"):
        if getattr(layout, name) is None:
            raise MeterFileError(path, f"--{name} is not declared")
    names = day_columns(sheet.header)
    size = _size(len(names))
    if not size:
        raise MeterFileError(path, f"{len(names)} interval columns: 24, 48, 96, 144 or 288 make a day (and a 25th hour)")
    step = 1440 // size
    first = 0
    if _TIME.search(names[0]):  # the first column names the first interval's start, or its end
        first = _minutes(names)[0]
        if first not in (0, step):
            raise MeterFileError(path, f"the first column is {names[0]!r}: a day begins at 00:00, or ends its first "
                                       f"interval at {step // 60:02d}:{step % 60:02d}")
    table = np.stack([numbers(sheet, name, layout.decimal)[0] for name in names], axis=1)
    factor = UNITS[layout.unit] * (step / 60 if layout.unit in POWER else 1)
    parser = StampParser(layout.dates)
    groups: dict[tuple[str, str, str], list] = {}
    counts: dict[str, int] = dict(sheet.counts)
    for row, line in enumerate(sheet.lines):
        try:
            midnight = parser.parse(unwrap(sheet.column(layout.time[0])[row]))[0]
        except ValueError as error:
            raise MeterFileError(path, error, line) from None
        if midnight % 86_400:
            raise MeterFileError(path, "a row of a wide table begins at midnight", line)
        when, values = _day(path, line, table[row], midnight, step, layout.tz, counts)
        groups.setdefault(_key(sheet, layout, row), []).append((when, values * factor))
    streams = [Stream(*key, np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]),
                      np.full(sum(len(part[0]) for part in parts), "", object)) for key, parts in groups.items()]
    return assemble(path, streams, layout.tz, step, counts)


def _key(sheet: Sheet, layout: Layout, row: int) -> tuple[str, str, str]:
    meter = unwrap(sheet.column(layout.meter)[row]) if layout.meter else ""
    if not layout.label:
        return meter, layout.channels[0].channel, layout.channels[0].register
    label = unwrap(sheet.column(layout.label)[row])
    known = {channel.column: channel for channel in layout.channels}
    if label not in known:
        raise MeterFileError(sheet.path, f"{layout.label} = {label[:40]!r} is no known register: declare --channel "
                                         "'LABEL=import|export'", sheet.lines[row])
    return meter, known[label].channel, known[label].register


def _day(path: Path, line: int, values: np.ndarray, midnight: int, step: int, tz: str,
         counts: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(UTC starts, values) of one row's intervals."""
    size, seconds = 1440 // step, step * 60
    ends = to_utc(np.array([midnight, midnight + 86_400]), tz)[0]
    length = int(ends[1] - ends[0]) // seconds
    when = ends[0] + seconds * np.arange(max(length, 0), dtype=np.int64)
    used = int(np.flatnonzero(~np.isnan(values)).max(initial=-1)) + 1
    if length == size or (length > size and used > size):
        if used > length:
            raise MeterFileError(
                path, f"{used} values in a day of {length} intervals on the clock {tz}: is --tz right?", line
            )
        return when, values[:length]
    wall = midnight + seconds * np.arange(size, dtype=np.int64)
    utc, real, found = to_utc(wall, tz)
    if length > size:
        counts["dst_single"] = counts.get("dst_single", 0) + found.get("dst_single", 0)
        return utc, values[:size]
    skipped, tail = values[:size][~real], values[length:size]
    by_clock = np.isnan(skipped).all() or not (np.isnan(tail).all() or np.nan_to_num(skipped).any())
    if by_clock:
        counts["nonexistent_local"] = counts.get("nonexistent_local", 0) + int((~real).sum())
        return utc[real], values[:size][real]
    if not np.nan_to_num(tail).any():
        return when, values[:length]
    raise MeterFileError(path, f"values in the hour that the clock {tz} skips on this day: the file is on another clock; "
                               "declare --tz (UTC, +01:00, ...)", line)
