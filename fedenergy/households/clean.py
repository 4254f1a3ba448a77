"""What is wrong with a series: outages recorded as numbers, steps made from few readings, wrong units.

Nothing is filled. A reading is kept, or becomes NaN and is counted; `quality_table` shows the counts of every home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedenergy.households.population import Population
from fedenergy.households.readers.series import Series

MAX_HOME_KW = 100.0  # a home's connection: 100 A on three phases is 69 kVA; more is Wh or W taken for kWh
QUALITY = ("missing", "short_days", "zeros", "missing_readings", "outage_zero", "stuck", "scaled_steps", "duplicates",
           "off_grid", "other_floored")


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """[start, stop) of every stretch of True.

    >>> runs(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.asarray(flags, np.int8), [0]))))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def mark_outages(series: Series, column: str, zero_minutes: int | None, stuck_minutes: int | None) -> Series:
    """Readings that a gap left behind, to NaN in every column, counted.

    column         the metered whole that shows them
    zero_minutes   a stretch of exact zeros at least this long is an outage recorded as zeros (outage_zero);
                   None keeps all
    stuck_minutes  a value other than zero that repeats for this long or longer is a gap filled with the last reading
                   (stuck): the first of the run stays, its repeats go; None keeps all
    """
    whole = series.column(column)
    zero, stuck = np.zeros(len(whole), bool), np.zeros(len(whole), bool)
    if zero_minutes is not None:
        for lo, hi in runs(whole == 0):
            zero[lo:hi] = (hi - lo) * series.step_minutes >= zero_minutes
    if stuck_minutes is not None:
        for lo, hi in runs((np.diff(whole, prepend=np.nan) == 0) & (whole != 0)):
            stuck[lo:hi] = (hi - lo) * series.step_minutes >= stuck_minutes
    values = series.values.copy()
    values[zero | stuck] = np.nan
    counts = dict(series.counts)
    for name, found in (("outage_zero", zero), ("stuck", stuck)):
        counts[name] = counts.get(name, 0) + found.astype(np.int32)
    return replace(series, values=values, counts=counts)


def to_steps(series: Series, step_minutes: int, means: Sequence[str] = ()) -> Series:
    """The series in longer steps.

    means  columns to average (temperatures); all others are summed (energy, counts)
    Rule: a step is made where *more than half* of its readings are present, and its sum is then scaled to the whole
    step (x 60/58 where 2 of 60 minutes are absent; counted in scaled_steps), because the plain sum would understate it.
    Otherwise it is NaN. So one absent half hour makes its hour NaN. Averages are taken over what is present.

    >>> half_hours = Series(np.datetime64("2013-01-01"), 30, ("kwh",), np.full((48, 1), 0.25))
    >>> to_steps(half_hours, 60).values[:2, 0]
    array([0.5, 0.5])
    """
    if step_minutes % series.step_minutes or 1440 % step_minutes:
        raise ValueError(f"step_minutes = {step_minutes}: choose a multiple of the source's {series.step_minutes} "
                         "minutes that divides a day (1440)")
    share = step_minutes // series.step_minutes
    if share == 1:
        return series
    if unknown := set(means) - set(series.names):
        raise ValueError(f"no column {min(unknown)!r} to average (columns: {', '.join(series.names)})")
    averaged = np.array([name in means for name in series.names])
    blocks = series.values.reshape(-1, share, len(series.names))
    present = ~np.isnan(blocks[:, :, ~averaged]).any(axis=2)
    enough = 2 * present.sum(axis=1) > share
    scale = np.where(enough, share / np.maximum(present.sum(axis=1), 1), np.nan)
    values = np.where(present[:, :, None], blocks, 0.0).sum(axis=1) * scale[:, None]
    finite = ~np.isnan(blocks[:, :, averaged])
    seen = finite.sum(axis=1)
    sums = np.where(finite, blocks[:, :, averaged], 0.0).sum(axis=1)
    values[:, averaged] = np.where(seen > 0, sums / np.maximum(seen, 1), np.nan)
    counts = {name: found.reshape(-1, share).sum(axis=1, dtype=np.int32) for name, found in series.counts.items()}
    counts["scaled_steps"] = (enough & ~present.all(axis=1)).astype(np.int32)
    return Series(series.start, step_minutes, series.names, values, counts, series.readings * share)


def check_unit(series: Series, column: str, what: str) -> None:
    """Raise ValueError where a step's mean power is above 100 kW: no home draws that, so the unit is wrong."""
    kw = series.column(column) * 60 / series.step_minutes
    if np.nanmax(kw, initial=0.0) > MAX_HOME_KW:
        worst = int(np.nanargmax(kw))
        when = series.start + worst * np.timedelta64(series.step_minutes, "m")
        raise ValueError(f"{what}: {series.column(column)[worst]:g} kWh in {series.step_minutes} minutes at {when} is "
                         f"a mean of {kw[worst]:g} kW, above {MAX_HOME_KW:g} kW for a home: is the file in Wh or W? "
                         "Convert it to kWh")


def quality_of(series: Series, total: np.ndarray, other_floored: int = 0) -> dict[str, int]:
    """Counts of what is wrong with one member's window (QUALITY).

    missing        steps without a value
    short_days     days without a single value
    zeros          steps of exactly 0 that stay (an empty home, or an outage that cannot be told from one)
    other_floored  steps in which the labelled appliances exceed the metered whole
    The others are counts of source readings or steps (`Series.counts`).
    """
    steps_per_day = 1440 // series.step_minutes
    absent = np.isnan(total)
    return {"missing": int(absent.sum()), "short_days": int(absent.reshape(-1, steps_per_day).all(axis=1).sum()),
            "zeros": int((total == 0).sum()), **series.totals(), "other_floored": other_floored}


def quality_table(population: Population) -> list[dict[str, Any]]:
    """One row per member, then one per excluded member.

    Columns: household, charged_to, steps, every count of QUALITY, excluded (the reason, "" for members).
    An inside view of the data: it is never part of what a home releases. Populations whose homes count nothing give
    rows of zeros; excluded members are read where the population can (`read`).
    """
    rows = [_row(population.load(index), "") for index in range(len(population))]
    for name, reason in getattr(population, "excluded", {}).items():
        rows.append(_row(population.read(name), reason) if hasattr(population, "read") else
                    {"household": name, "charged_to": "", "steps": 0, **dict.fromkeys(QUALITY, 0), "excluded": reason})
    return rows


def _row(household: Any, reason: str) -> dict[str, Any]:
    counts = dict.fromkeys(QUALITY, 0) | dict(household.quality)
    return {"household": household.id, "charged_to": household.charged_to, "steps": len(household.total), **counts,
            "excluded": reason}
