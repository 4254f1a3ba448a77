"""Columns that number the intervals of a day: hour 1 to 24 (Iberia), hour 0 to 23, settlement period 1 to 48 (Britain)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedenergy.households.readers.readings import MeterFileError
from fedenergy.households.readers.sheet import Sheet, unwrap
from fedenergy.households.readers.stamps import to_utc

SIZES = (24, 48, 96, 144, 288)
_HEADING = re.compile(
    r"(?i)\b(?:hours?|hora|heure|stunde|ora|uur|godzina|hodina|tund|time|hr|h|he|hh|period|periodo|interval|slot"
    r"|quarter|cuarto)\b"
)


def period_size(heading: str, texts: Sequence[str]) -> int:
    """Intervals of an ordinary day that a column of ordinals names; 0 where it is no such column.

    >>> period_size("Hora", [str(k % 24 + 1) for k in range(72)]), period_size("kWh", ["1", "2"])
    (24, 0)
    """
    if not _HEADING.search(heading.replace("_", " ")):
        return 0
    found = {unwrap(text) for text in texts}
    if len(found) > SIZES[-1] + SIZES[-1] // 24 + 1 or not all(re.fullmatch(r"\d{1,3}", text) for text in found):
        return 0
    values = sorted(map(int, found))
    if values[0] > 1 or len(values) < 23:
        return 0
    most = values[-1] + 1 - values[0]
    size = next((size for size in SIZES if size - size // 24 <= most <= size + size // 24), 0)
    return size if len(values) > 0.9 * size - 1 else 0


def period_offsets(
    sheet: Sheet, days: np.ndarray, texts: Sequence[str], tz: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """((rows,) wall seconds of the intervals' beginnings, (rows,) UTC offsets; None while the clock tz is not known).

    days    (rows,) wall seconds of midnight
    texts   (rows,) ordinals, from 0 or from 1
    On a day of 23 or 25 hours the ordinals count the day's own hours (1 to 23, 1 to 25), or they name the hours of the
    clock (a 24th on the short day, no 25th on the long one). MeterFileError names the line that fits neither.
    """
    size = period_size("hour", texts)
    try:
        ordinal = np.array([int(unwrap(text)) for text in texts], np.int64)
    except ValueError:
        row = next(k for k, text in enumerate(texts) if not unwrap(text).isdecimal())
        raise MeterFileError(sheet.path, f"{texts[row][:30]!r} is no number of an interval", sheet.lines[row]) from None
    if not size:
        raise MeterFileError(
            sheet.path,
            f"intervals are numbered {ordinal.min()} to {ordinal.max()}, but a day has {', '.join(map(str, SIZES))} of them",
            sheet.lines[int(ordinal.argmax())],
        )
    if (odd := np.flatnonzero(days % 86_400)).size:
        raise MeterFileError(sheet.path, "a date beside a numbered interval has no clock time", sheet.lines[int(odd[0])])
    at, step = ordinal - ordinal.min(), 86_400 // size
    wall = days + at * step
    if tz is None:
        return wall, None
    every, day = np.unique(days, return_inverse=True)
    edges = to_utc(np.concatenate((every, every + 86_400)), tz)[0].reshape(2, -1)
    length = (edges[1] - edges[0]) // step
    last = np.zeros(len(every), np.int64)
    np.maximum.at(last, day, at + 1)
    by_clock = (length == size) | ((length < size) & (last == size)) | ((length > size) & (last <= size))
    if (over := np.flatnonzero((at >= np.maximum(length, size)[day]) | ((at >= length[day]) & ~by_clock[day]))).size:
        row = int(over[0])
        raise MeterFileError(
            sheet.path,
            f"interval {ordinal[row]} of a day of {length[day[row]]} intervals on the clock {tz}: is --tz right?",
            sheet.lines[row],
        )
    utc = edges[0][day] + at * step
    clocked = np.flatnonzero(by_clock[day] & (length != size)[day])
    if clocked.size:
        utc[clocked], real, _ = to_utc(wall[clocked], tz)
        if not real.all():
            row = int(clocked[np.flatnonzero(~real)[0]])
            raise MeterFileError(
                sheet.path,
                f"interval {ordinal[row]} is in the hour that the clock {tz} skips: the file is on "
                "another clock; declare --tz (UTC, +01:00, ...)",
                sheet.lines[row],
            )
    return wall, wall - utc
