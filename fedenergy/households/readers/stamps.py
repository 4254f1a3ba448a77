"""Time stamps as meters write them, to seconds: wall clock first, then UTC through the declared zone."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pandas as pd

ORDERS = ("ymd", "dmy", "mdy", "epoch")
MOST_OFFSETS = 3  # more UTC offsets than a clock with summer time has: the second half of a range
YEARS = range(1990, 2101)
_YMD = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_XXY = re.compile(r"(\d{1,2})([-/. ])(\d{1,2})\2(\d{4}|\d{2})")
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)")
_NAMED = re.compile(r"(\d{1,2})[- ]([A-Za-z]{3})[A-Za-z]*[- ](\d{4}|\d{2})")
_NAMED_US = re.compile(r"([A-Za-z]{3})[A-Za-z]*\.? (\d{1,2}),? (\d{4})")
_RANGE = re.compile(r"(.*?\d(?:\s?[AaPp]\.?[Mm]\.?)?)(?:\s*\b(?:to|until|bis|tot|til|do)\b\s*|\s*[\u2013\u2014]\s*|\s+-\s+|"
                    r"(?<=\d\d:\d\d)-(?=\d\d?:\d\d))(\d.*)")
_MONTHS = {
    name: k + 1
    for k, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
}
_CLOCK = re.compile(
    r"(\d{1,2})[:.]?(\d\d)(?:[:.]?(\d\d)(?:[.,]\d{1,9})?)?\s*([AaPp]\.?[Mm]\.?)?\s*(Z|UTC|GMT|[+-]\d\d:?\d\d|[+-]\d\d)?"
)
_OFFSET = re.compile(r"-\d\d:\d\d")
_EPOCH = re.compile(r"\d{10}(?:\d{3})?(?:\.\d+)?")
_FIXED = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):?(\d\d)?")


def zone_of(text: str) -> datetime.tzinfo:
    """The clock that a user names: UTC, +10:00 or a region such as Europe/Brussels. ValueError otherwise."""
    if text in ("", "UTC", "GMT", "Z"):
        return datetime.UTC
    if match := _FIXED.fullmatch(text):
        minutes = int(match[2]) * 60 + int(match[3] or 0)
        if minutes > 14 * 60:
            raise ValueError(f"time zone {text!r} is more than 14 hours from UTC")
        return datetime.timezone(datetime.timedelta(minutes=minutes if match[1] == "+" else -minutes))
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"time zone {text[:40]!r} is not known: write UTC, +01:00 or a region such as Europe/Brussels"
        ) from None


def split(text: str) -> tuple[str, str]:
    """(date, clock) of one stamp; the clock may be "".

    >>> split("2012-12-19 11:30:00.0000000"), split("20240101"), split("202401010015")
    (('2012-12-19', '11:30:00.0000000'), ('20240101', ''), ('20240101', '0015'))
    """
    text = text.strip()
    for mark in ("T", " "):
        date, found, clock = text.partition(mark)
        if found and (_YMD.fullmatch(date) or _XXY.fullmatch(date) or _COMPACT.fullmatch(date)):
            return date, clock.strip()
    if text.isdecimal() and len(text) in (12, 14) and text[:2] in ("19", "20"):
        return text[:8], text[8:]
    if match := _NAMED.match(text) or _NAMED_US.match(text):
        return match[0], text[match.end():].removeprefix(",").strip()
    return text, ""


def begins(texts: Sequence[str]) -> list[str]:
    """Stamps or clock times whose every text is a range, "00:00-00:15" or "... to ...", cut to where each begins.

    A hyphen before a UTC offset is told from a range by the few offsets that a clock has.

    >>> begins(["2024-01-01 00:00 to 2024-01-01 01:00"]), begins(["00:00-05:00", "01:00-05:00"])
    (['2024-01-01 00:00'], ['00:00-05:00', '01:00-05:00'])
    """
    if not texts or not _RANGE.fullmatch(texts[0].strip()):
        return list(texts)
    found = {text: _RANGE.fullmatch(text.strip()) for text in dict.fromkeys(texts)}
    if not all(found.values()):
        return list(texts)
    offsets = {match[2] for match in found.values() if _OFFSET.fullmatch(match[0][match.end(1):])}
    if offsets and len(offsets) < MOST_OFFSETS:
        return list(texts)
    return [found[text][1] for text in texts]


def day_of(text: str, order: str) -> int:
    """Days since 1970 of a date in the given order; ValueError where it is none.

    >>> day_of("2/1/07", "dmy") - day_of("2007-01-02", "ymd")
    0
    """
    text = text.strip()
    if match := _YMD.fullmatch(text) or _COMPACT.fullmatch(text):
        parts = match.groups()
        year, month, day = int(parts[0]), int(parts[-2]), int(parts[-1])
    elif match := _NAMED.fullmatch(text):
        if match[2].lower() not in _MONTHS:
            raise ValueError(f"date {text[:30]!r} names no month")
        year, month, day = int(match[3]), _MONTHS[match[2].lower()], int(match[1])
    elif match := _NAMED_US.fullmatch(text):
        if match[1].lower() not in _MONTHS:
            raise ValueError(f"date {text[:30]!r} names no month")
        year, month, day = int(match[3]), _MONTHS[match[1].lower()], int(match[2])
    elif (match := _XXY.fullmatch(text)) and order in ("dmy", "mdy"):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        day, month = (first, second) if order == "dmy" else (second, first)
    else:
        raise ValueError(f"date {text[:30]!r} is not of the order {order} (ymd, dmy, mdy: declare --dates)")
    year += 2000 if year < 100 else 0
    if year not in YEARS:
        raise ValueError(f"date {text[:30]!r}: the year {year} is outside {YEARS[0]} to {YEARS[-1]}")
    try:
        return datetime.date(year, month, day).toordinal() - 719_163
    except ValueError:
        raise ValueError(f"date {text[:30]!r} is no day in the order {order}: the file may hold swapped days and months, "
                         "or declare --dates") from None


def clock_of(text: str) -> tuple[int, int | None]:
    """(seconds since midnight, UTC offset in seconds or None) of a clock text; 24:00 is the next midnight.

    >>> clock_of("02:30:00+02:00"), clock_of("0:15")
    ((9000, 7200), (900, None))
    """
    text = text.strip()
    match = _CLOCK.fullmatch(text) if text else None
    if text and match is None:
        raise ValueError(f"time {text[:30]!r} is not hh:mm or hh:mm:ss")
    if match is None:
        return 0, None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            raise ValueError(f"time {text[:30]!r}: {hour} is no hour of a 12-hour clock")
        hour = hour % 12 + (12 if match[4][0] in "Pp" else 0)
    seconds = hour * 3_600 + minute * 60 + second
    if minute > 59 or second > 59 or seconds > 86_400:
        raise ValueError(f"time {text[:30]!r} is outside 00:00 to 24:00")
    return seconds, _offset(match[5])


def _offset(text: str | None) -> int | None:
    if text is None:
        return None
    if text in ("Z", "UTC", "GMT"):
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3_600 + int(digits[2:]) * 60
    if seconds > 50_400:
        raise ValueError(f"UTC offset {text} is more than 14 hours")
    return seconds if text[0] == "+" else -seconds


class StampParser:
    """Parses stamps of one file in one order; each distinct date and clock text once."""

    def __init__(self, order: str):
        if order not in ORDERS:
            raise ValueError(f"date order {order!r}: choose one of {', '.join(ORDERS)}")
        self._order, self._days, self._clocks = order, {}, {}

    def parse(self, text: str, clock: str | None = None) -> tuple[int, int | None]:
        """(wall seconds since 1970, UTC offset or None); an epoch has the offset 0. ValueError where it is no stamp."""
        if self._order == "epoch":
            if not _EPOCH.fullmatch(text.strip()):
                raise ValueError(f"{text[:30]!r} is no epoch of 10 digits (seconds) or 13 (milliseconds)")
            whole = text.strip().split(".")[0]
            seconds = int(whole) // (1_000 if len(whole) == 13 else 1)
            return seconds, 0
        date, inside = split(text) if clock is None else (text, clock)
        days = self._days.get(date)
        if days is None:
            days = self._days[date] = day_of(split(date)[0], self._order)
        found = self._clocks.get(inside)
        if found is None:
            found = self._clocks[inside] = clock_of(inside)
        return days * 86_400 + found[0], found[1]


def date_orders(texts: Sequence[str]) -> tuple[str, ...]:
    """The orders that a file's date texts allow, most likely first; () where they are no dates.

    >>> date_orders(["22/10/2023"]), date_orders(["1/1/07", "2/1/07"]), date_orders(["2023-10-22"])
    (('dmy',), ('dmy', 'mdy'), ('ymd',))
    """
    if not texts:
        return ()
    if all(_EPOCH.fullmatch(text.strip()) for text in texts):
        return ("epoch",)
    fits = []
    for order in ("ymd", "dmy", "mdy"):
        parser = StampParser(order)
        try:
            for text in texts:
                parser.parse(text)
        except ValueError:
            continue
        if order == "ymd":
            return ("ymd",)
        fits.append(order)
    return tuple(fits)


def to_utc(wall: np.ndarray, zone: str, descending: bool = False) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Wall-clock seconds of one register, in file order, to UTC.

    Returns (utc (n,) int64, real (n,) bool, counts). real is False for a stamp that the clock skips in spring
    (nonexistent_local). A stamp of the autumn hour is summer time the first time it is met and winter time the second
    (dst_repeated); met once only, it is taken for summer time (dst_single).
    """
    tz = zone_of(zone)
    if not isinstance(tz, ZoneInfo):
        return wall - int(tz.utcoffset(None).total_seconds()), np.ones(len(wall), bool), {}
    clock = pd.DatetimeIndex(wall.astype("M8[s]"))
    summer = np.ones(len(wall), bool)
    summer_utc = clock.tz_localize(tz, ambiguous=summer, nonexistent="NaT")
    real = ~np.asarray(summer_utc.isna())
    twice = np.asarray(clock.tz_localize(tz, ambiguous="NaT", nonexistent="NaT").isna()) & real
    counts = {"nonexistent_local": int((~real).sum())}
    if twice.any():
        rows = np.flatnonzero(twice)
        rows = rows[::-1] if descending else rows
        seen: dict[int, int] = {}
        for row in rows.tolist():
            value = int(wall[row])
            summer[row] = not seen.get(value)
            seen[value] = seen.get(value, 0) + 1
        counts["dst_repeated"] = sum(times > 1 for times in seen.values())
        counts["dst_single"] = sum(times == 1 for times in seen.values())
        summer_utc = clock.tz_localize(tz, ambiguous=summer, nonexistent="NaT")
    utc = np.zeros(len(wall), np.int64)
    utc[real] = summer_utc[real].tz_convert("UTC").tz_localize(None).to_numpy().astype("M8[s]").astype(np.int64)
    return utc, real, {name: value for name, value in counts.items() if value}


def wall_seconds(utc: np.ndarray, zone: str) -> np.ndarray:
    """UTC seconds to the zone's wall clock."""
    tz = zone_of(zone)
    if not isinstance(tz, ZoneInfo):
        return utc + int(tz.utcoffset(None).total_seconds())
    index = pd.DatetimeIndex(utc.astype("M8[s]")).tz_localize("UTC").tz_convert(tz).tz_localize(None)
    return index.to_numpy().astype("M8[s]").astype(np.int64)
