"""Records of a population as a Panel: cut to one window, small gaps filled and counted, net load where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedenergy.households.household import Household
from fedenergy.synthesis.intake import Panel, day_types, panel
from fedenergy.synthesis.net_load import lift

MONDAY = np.datetime64("2013-01-07", "m")   # the nominal first day of windows that were aligned by weekday
GAPS = ("refuse", "fill")
ALIGN = ("start", "monday")


@dataclass(frozen=True)
class Reading:
    """How records are read.

    days          length of the window; 0: the whole record, in whole days
    align         "start": every record's own first step, which must be the same for all; "monday": from the first Monday of
                  each (months of different lengths, years): weekdays then agree, dates do not, and the window is dated from
                  Monday 2013-01-07
    gaps          "refuse" a home with a missing reading; "fill" it from the nearest days of the same type at the same time
    most_missing  share of missing readings above which a home is left out, with gaps = "fill"
    export_channel  a channel to subtract from the total: the record is then the net load, which may be negative
    export_cap_kwh  public bound of what one step can feed in; above 0 it admits negative net load (see net_load.py)
    cap_kwh       public bound of one step (see intake.panel)
    """

    days: int = 0
    align: str = "start"
    gaps: str = "refuse"
    most_missing: float = 0.1
    export_channel: str = ""
    export_cap_kwh: float = 0.0
    cap_kwh: float | None = None

    def __post_init__(self) -> None:
        for name, options in (("gaps", GAPS), ("align", ALIGN)):
            if (value := getattr(self, name)) not in options:
                raise ValueError(f"{name} = {value!r}; use one of {', '.join(options)}")
        if self.cap_kwh is not None and (isinstance(self.cap_kwh, bool | str) or not 0 < self.cap_kwh < np.inf):
            raise ValueError(f"cap_kwh = {self.cap_kwh!r}; use a public bound above 0 kWh per step, such as 100")
        if isinstance(self.days, bool) or not isinstance(self.days, int) or self.days < 0:
            raise ValueError(f"days = {self.days!r}; use 0 (all) or a whole number of days of at least 7")
        if not 0 <= self.most_missing < 1:
            raise ValueError(f"most_missing = {self.most_missing!r}; use a share from 0 to below 1, such as 0.1")
        if not 0 <= self.export_cap_kwh < np.inf:
            raise ValueError(f"export_cap_kwh = {self.export_cap_kwh!r}; use 0 or a public bound above it, kWh per step")
        if self.export_channel and self.export_cap_kwh == 0:
            raise ValueError(f'export_channel = "{self.export_channel}" gives negative net load: state the public bound '
                             "export_cap_kwh of what one step can feed in")


@dataclass(frozen=True)
class Records:
    """panel: the usable homes; filled: readings that were missing and are estimates; owners: whose data each record is."""

    panel: Panel
    filled: int = 0
    owners: tuple[str, ...] = field(default=(), repr=False)


def read(population: Any, rows: Sequence[int] | None = None, how: Reading = Reading()) -> Records:
    """The records of a Population (of its members at `rows`), of Households, a Panel or an array (N, T).

    Homes that cannot be used are in panel.excluded with the reason. With export_cap_kwh the panel holds lifted values, from
    which net_load.lower gives kWh back.
    Errors: ValueError where no home is left, or an array holds what its rules refuse.
    """
    if isinstance(population, Panel | np.ndarray):
        whole = population if isinstance(population, Panel) else None
        values = population.values if whole else np.asarray(population, np.float64)
        if rows is not None:
            values = values[rows]
        names = [whole.ids[i] for i in (range(len(whole.ids)) if rows is None else rows)] if whole else None
        start, minutes = (whole.start, whole.step_minutes) if whole else (MONDAY, 60)
        found = _panel(values, names, start, minutes, how)
        return Records(found, 0, found.ids)
    rows = range(len(population)) if rows is None else rows
    load = population.load if hasattr(population, "load") else population.__getitem__
    kept, away, filled, owner = {}, {}, 0, {}
    for row in rows:
        home = load(row)
        try:
            kept[home.id], start, count = _record(home, how)
            filled, owner[home.id] = filled + count, home.charged_to
        except ValueError as error:
            away[home.id] = str(error)
    if not kept:
        name, reason = next(iter(away.items()), ("none", "there is no household"))
        raise ValueError(f"none of {len(away)} households can be used; household {name}: {reason}")
    lengths = [row.size for row in kept.values()]
    usual = max(set(lengths), key=lambda length: (lengths.count(length), length))
    for name in [name for name, row in kept.items() if row.size != usual]:
        away[name] = f"its record has {kept.pop(name).size} steps, most others {usual}: state days, or cut all to one window"
    begins = MONDAY if how.align == "monday" else start
    found = _panel(np.stack(list(kept.values())), list(kept), begins, home.step_minutes, how)
    found = Panel(found.ids, found.values, found.start, found.step_minutes, found.cap_kwh, {**away, **found.excluded})
    return Records(found, filled, tuple(owner[name] for name in found.ids))


def _record(home: Household, how: Reading) -> tuple[np.ndarray, np.datetime64, int]:
    """(record, its start, readings filled) of one home, or ValueError with the reason to leave it out."""
    values, start = home.total, home.start
    if how.export_channel:
        if how.export_channel not in home.channels:
            raise ValueError(f"it has no channel {how.export_channel!r} (it has: {', '.join(home.channels)})")
        values = values - home.readings[:, home.channels.index(how.export_channel)]
    per_day = home.steps_per_day
    if how.align == "monday":
        midnight = np.datetime64(start, "D")
        if np.datetime64(start, "m") != midnight.astype("M8[m]"):
            raise ValueError(f"its record starts at {start}, not at a midnight")
        skip = int(-(midnight.astype(int) + 3) % 7)
        values, start = values[skip * per_day:], midnight + skip
    days = how.days or values.size // per_day
    if values.size < days * per_day or days < 1:
        raise ValueError(f"it has {values.size // per_day} whole days of the {days} asked")
    values = values[:days * per_day]
    missing = int(np.isnan(values).sum())
    if missing and how.gaps == "fill":
        if missing > how.most_missing * values.size:
            raise ValueError(f"{missing} of {values.size} readings are missing, more than most_missing = "
                             f"{how.most_missing:g}")
        values = fill(values, start, per_day)
    return values, np.datetime64(start, "m"), missing


def fill(values: np.ndarray, start: np.datetime64, per_day: int = 24) -> np.ndarray:
    """(T,) with every NaN replaced by the mean of the nearest known readings at that time on days of its type.

    Of no use for judging an imputer: a plain rule, so that a record with a few gaps can be decomposed.

    >>> day = np.arange(24.0)
    >>> week = np.concatenate([day, day, np.full(24, np.nan), day])
    >>> bool((fill(week, np.datetime64("2013-01-07")) == np.tile(day, 4)).all())
    True
    """
    days = values.reshape(-1, per_day).copy()
    known, kind = ~np.isnan(days), day_types(start, len(days))
    for day, step in np.argwhere(~known):
        for same in (kind == kind[day], np.ones(len(days), bool)):
            at = np.flatnonzero(known[:, step] & same)
            if at.size:
                near = np.abs(at - day)
                days[day, step] = values.reshape(-1, per_day)[at[near == near.min()], step].mean()
                break
        else:
            raise ValueError(f"step {step} of the day is missing on every day")
    return days.ravel()


def _panel(values: np.ndarray, names: Sequence[str] | None, start: np.datetime64, minutes: int, how: Reading) -> Panel:
    cap = how.cap_kwh
    if how.export_cap_kwh:
        values, cap = lift(values, how.export_cap_kwh, cap, minutes)
    return panel(values, ids=names, start=start, step_minutes=minutes, cap_kwh=cap, on_bad="drop")
