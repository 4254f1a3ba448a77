"""Public holidays and summer time, computed from their rules: no table to keep up to date."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache

_ONE = dt.timedelta(days=1)
_MONDAY, _SATURDAY, _SUNDAY = 0, 5, 6


def easter(year: int) -> dt.date:
    """Easter Sunday of the Gregorian calendar (Meeus, Astronomical Algorithms, chapter 8).

    >>> easter(2013)
    datetime.date(2013, 3, 31)
    """
    golden, (century, rest) = year % 19, divmod(year, 100)
    leap, left = divmod(century, 4)
    moon = (19 * golden + century - leap - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    four, last = divmod(rest, 4)
    weekday = (32 + 2 * left + 2 * four - moon - last) % 7
    month, day = divmod(moon + weekday - 7 * ((golden + 11 * moon + 22 * weekday) // 451) + 114, 31)
    return dt.date(year, month, day + 1)


def _first(year: int, month: int, weekday: int) -> dt.date:
    day = dt.date(year, month, 1)
    return day + _ONE * ((weekday - day.weekday()) % 7)


def _last(year: int, month: int, weekday: int) -> dt.date:
    day = dt.date(year, month, 31)
    return day - _ONE * ((day.weekday() - weekday) % 7)


def _substituted(days: list[dt.date]) -> set[dt.date]:
    """The days themselves and, for each on a weekend, the next free weekday (the UK's substitute days)."""
    taken = {day for day in days if day.weekday() < _SATURDAY}
    for day in (day for day in days if day.weekday() >= _SATURDAY):
        while day.weekday() >= _SATURDAY or day in taken:
            day += _ONE
        taken.add(day)
    return taken | set(days)


def _united_kingdom(year: int) -> set[dt.date]:
    movable = {easter(year) - 2 * _ONE, easter(year) + _ONE, _first(year, 5, _MONDAY), _last(year, 5, _MONDAY),
               _last(year, 8, _MONDAY)}
    fixed = _substituted([dt.date(year, 12, 25), dt.date(year, 12, 26)])
    return movable | fixed | _substituted([dt.date(year, 1, 1)])


def _germany(year: int) -> set[dt.date]:
    fixed = {dt.date(year, month, day) for month, day in ((1, 1), (5, 1), (10, 3), (12, 25), (12, 26))}
    return fixed | {easter(year) + offset * _ONE for offset in (-2, 1, 39, 50)}


HOLIDAYS: dict[str, Callable[[int], set[dt.date]]] = {
    "GB": _united_kingdom,  # England and Wales, without one-off royal days
    "DE": _germany,         # the nine that all states share
    "none": lambda _: set(),
}


@lru_cache(maxsize=256)
def public_holidays(year: int, country: str = "GB") -> frozenset[dt.date]:
    """Public holidays of a year in a country of HOLIDAYS ("GB", "DE", "none").

    >>> sorted(public_holidays(2013))[1].isoformat()
    '2013-03-29'
    """
    return frozenset(HOLIDAYS[country](year))


def day_off(day: dt.date, country: str = "GB") -> bool:
    """True on Saturdays, Sundays and public holidays."""
    return day.weekday() >= _SATURDAY or day in public_holidays(day.year, country)


def summer_time(day: dt.date, country: str = "GB") -> bool:
    """True from the last Sunday of March until the day before the last Sunday of October (never for "none")."""
    return country != "none" and _last(day.year, 3, _SUNDAY) <= day < _last(day.year, 10, _SUNDAY)
