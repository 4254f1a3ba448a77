"""What a synthesiser starts from: complete, equally long hourly records, or a clear word on which home is not one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedenergy.households.household import MINUTES_PER_DAY, check_household_id

MIN_DAYS = 7            # below, the seasonal part is close to the record itself and would pass verbatim (<= 2 days: it is)
CAP_KWH_PER_HOUR = 100  # public: above any domestic supply (three phases of 100 A carry 69 kW)


@dataclass(frozen=True)
class Panel:
    """Records of N homes over one window, sorted by id.

    values        (N, T) float64 kWh per step, finite, >= 0, T whole days
    start         time of the first step, a midnight; day types are counted from it
    cap_kwh       public bound of one step
    excluded      id -> reason, with on_bad = "drop"
    """

    ids: tuple[str, ...]
    values: np.ndarray
    start: np.datetime64
    step_minutes: int = 60
    cap_kwh: float = CAP_KWH_PER_HOUR
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def per_day(self) -> int:
        return MINUTES_PER_DAY // self.step_minutes

    @property
    def days(self) -> int:
        return self.values.shape[1] // self.per_day

    @property
    def profiles(self) -> np.ndarray:
        """(N, D, steps per day), a view."""
        return self.values.reshape(len(self.ids), self.days, self.per_day)

    @property
    def weekend(self) -> np.ndarray:
        """(D,) whether a day is a Saturday or Sunday."""
        return day_types(self.start, self.days)


def day_types(start: np.datetime64, days: int) -> np.ndarray:
    """(D,) whether each day from start on is a Saturday or Sunday (1970-01-01 was a Thursday).

    >>> day_types(np.datetime64("2013-01-07"), 7).tolist()
    [False, False, False, False, False, True, True]
    """
    first = np.datetime64(start, "D").astype(int)
    return (first + 3 + np.arange(days)) % 7 >= 5


def panel(homes: Any, *, ids: Sequence[str] | None = None, start: str | np.datetime64 = "2013-01-07",
          step_minutes: int = 60, cap_kwh: float | None = None, on_bad: str = "raise") -> Panel:
    """A checked Panel of a Panel, a Population, Households, or an array (N, T) of kWh per step.

    ids, start, step_minutes  of an array only (ids default to home-000001, ...)
    cap_kwh  public bound of one step's energy; None: 100 kWh per hour. It must not be read off the data.
    on_bad   "raise" ValueError naming the household, or "drop" it and list it in .excluded
    """
    if on_bad not in ("raise", "drop"):
        raise ValueError(f'on_bad = {on_bad!r}; use "raise" or "drop"')
    if isinstance(homes, Panel):
        records = {name: (row, homes.start, homes.step_minutes) for name, row in zip(homes.ids, homes.values)}
    elif isinstance(homes, np.ndarray):
        if homes.ndim != 2:
            raise ValueError(f"an array of homes has shape (N, T), not {homes.shape}")
        names = [f"home-{i + 1:06d}" for i in range(len(homes))] if ids is None else [check_household_id(i) for i in ids]
        if len(set(names)) != len(homes):
            raise ValueError(f"{len(homes)} rows need as many different ids, not {len(set(names))}")
        records = {name: (row, np.datetime64(start), step_minutes) for name, row in zip(names, homes)}
    else:
        members = (homes.load(i) for i in range(len(homes))) if hasattr(homes, "load") else homes
        records = {home.id: (home.total, home.start, home.step_minutes) for home in members}
    if not records:
        raise ValueError("there is no household to start from: give at least one")
    ordered = sorted(records)
    lengths = [records[name][0].size for name in ordered]
    usual = max(set(lengths), key=lambda length: (lengths.count(length), length))
    begin, minutes = records[ordered[lengths.index(usual)]][1:]
    cap = (CAP_KWH_PER_HOUR * minutes / 60) if cap_kwh is None else cap_kwh
    if not 0 < cap < np.inf:
        raise ValueError(f"cap_kwh = {cap}; use a public bound above 0 kWh per step, such as {CAP_KWH_PER_HOUR}")
    if MINUTES_PER_DAY % minutes:
        raise ValueError(f"step_minutes = {minutes} does not divide a day: use 15, 30 or 60")
    kept, excluded = {}, {}
    for name in ordered:
        row, first, step = records[name]
        row = np.asarray(row, np.float64)
        if reason := _problem(row, first, step, usual, begin, minutes, cap):
            if on_bad == "raise":
                raise ValueError(f'household {name}: {reason} (on_bad = "drop" leaves such homes out and lists them)')
            excluded[name] = reason
        else:
            kept[name] = row
    if not kept:
        name, reason = next(iter(excluded.items()))
        raise ValueError(f"none of {len(excluded)} households can be used; household {name}: {reason}")
    return Panel(tuple(kept), np.stack(list(kept.values())), np.datetime64(begin), minutes, float(cap), excluded)


def _problem(row, first, step, usual, begin, minutes, cap) -> str:
    per_day = MINUTES_PER_DAY // minutes
    if step != minutes:
        return f"its steps last {step} minutes, the others' {minutes}: convert it to one step"
    if row.size % per_day:
        rest = row.size % per_day
        why = ": a record in local time across a clock change? Use UTC" if 60 // minutes in (rest, per_day - rest) else ""
        return f"its {row.size} steps are not whole days of {per_day}{why}; cut it at midnights"
    if np.datetime64(first, "m") != np.datetime64(first, "D"):
        return f"its record starts at {first}, not at a midnight; cut it at midnights"
    if row.size != usual or first != begin:
        return f"it has {row.size} steps from {first}, the others {usual} from {begin}; cut all to one window"
    if row.size < MIN_DAYS * per_day:
        return (f"{row.size // per_day} days are too few: with fewer than {MIN_DAYS} the seasonal part is nearly the record "
                "itself and would be passed on; give a longer record")
    if missing := int(np.isnan(row).sum()):
        return f"{missing} of {row.size} readings are missing (NaN), which would make its whole decomposition NaN; fill them"
    if not np.isfinite(row).all():
        return "it holds an infinite reading; mark what is missing with NaN and fill it"
    if row.min() < 0:
        return f"it holds a negative net load ({row.min():g} kWh): put what PV feeds in into a channel of its own"
    if row.max() > cap:
        return (f"it holds {row.max():g} kWh in one step, above the public cap of {cap:g}: check its units, mend the "
                "reading, or raise cap_kwh")
    if not row.any():
        return "all its readings are 0; there is nothing to model"
    if np.ptp(row) <= 1e-9 * row.max():
        return f"all its readings equal {row.max():g} kWh; there is nothing to model"
    if np.ptp(row.reshape(-1, per_day), axis=0).max() <= 1e-9 * row.max():
        return "all its days are the same: the seasonal part is the record itself and would be passed on"
    return ""
