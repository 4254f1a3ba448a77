"""Cumulative registers to energy per interval: differences, with resets and roll-overs told apart and counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedenergy.households.clean import MAX_HOME_KW
from fedenergy.households.readers.readings import MeterFileError, Stream, _step, refuse_shared

MOST_FALLS = 0.1  # a register falls when it is reset or rolls over; readings per interval fall every other row


def falls(values: np.ndarray) -> tuple[int, int]:
    """(rows lower than the one before, rows compared), missing ones left out.

    >>> falls(np.array([1.0, 2.0, np.nan, 1.5]))
    (1, 2)
    """
    values = values[~np.isnan(values)]
    return int((np.diff(values) < 0).sum()), max(len(values) - 1, 0)


def differences(path: Path, stream: Stream, step_minutes: int | None = None) -> Stream:
    """Energy between consecutive readings of a register (`stream.kwh` holds the register in kWh).

    A fall is a roll-over where the register stood within a tenth of a power of ten and what was drawn then is possible
    for a home; else a reset, and that interval is NaN, because what was drawn before the reset is not known. Energy
    between readings more than a step apart is counted (across_gaps) and never spread. Readings that keep no grid are
    taken at the grid's instants, from the last one at most a step old. MeterFileError for what is no register.
    """
    order = np.argsort(stream.when, kind="stable")
    order = order[::-1] if stream.when[order[0]] > stream.when[order[-1]] else order
    when, value = stream.when[order], stream.kwh[order]
    counts = dict(stream.counts)
    blank = np.isnan(value)
    if blank.any():
        counts["missing"] = counts.get("missing", 0) + int(blank.sum())
        when, value = when[~blank], value[~blank]
    fallen, pairs = falls(value)
    if fallen > max(1, MOST_FALLS * pairs):
        raise MeterFileError(
            path,
            f"{stream.channel} {stream.register}".strip() + f" is no register: it falls in {fallen} of "
            f"{pairs} rows, as readings per interval do: declare --measure interval",
        )
    first = np.concatenate(([True], np.diff(when) != 0)) if len(when) else np.zeros(0, bool)
    if not first.all():
        again = np.flatnonzero(~first)
        same = value[again] == value[again - 1]
        counts["duplicates"] = counts.get("duplicates", 0) + int(same.sum())
        counts["conflicts"] = counts.get("conflicts", 0) + int((~same).sum())
        refuse_shared(path, counts["conflicts"], len(when))
        when, value = when[first], value[first]
    if len(when) < 2:
        return replace(stream, when=when[:0], kwh=value[:0], flags=stream.flags[:0], counts=counts)
    step = 60 * (step_minutes or _step(path, [replace(stream, when=when)]))
    if (when % step != when[0] % step).mean() > 0.2 and step < 86_400:
        when, value, aside = _at_grid(when, value, step)
        counts["off_grid"] = counts.get("off_grid", 0) + aside
    elif step < 86_400:
        phase, times = np.unique(when % step, return_counts=True)
        on = when % step == phase[times.argmax()]
        counts["off_grid"] = counts.get("off_grid", 0) + int((~on).sum())
        when, value = when[on], value[on]
    drawn, apart = np.diff(value), np.diff(when)
    flags = np.full(len(drawn), "", object)
    for row in np.flatnonzero(drawn < 0).tolist():
        limit = 10.0 ** max(len(str(int(value[row]))), 3)
        rolled = limit - value[row] + value[row + 1]
        if value[row] >= 0.9 * limit and 0 <= rolled <= MAX_HOME_KW * apart[row] / 3_600:
            drawn[row], flags[row] = rolled, "register_rollover"
        else:
            drawn[row], flags[row] = np.nan, "register_reset"
        counts[flags[row]] = counts.get(flags[row], 0) + 1
    # Days of 23 and 25 hours are one step of a daily register.
    whole = np.abs(apart - step) <= (3_600 if step >= 86_400 else 0)
    counts["across_gaps"] = counts.get("across_gaps", 0) + int((~whole).sum())
    return replace(stream, when=when[:-1][whole], kwh=drawn[whole], flags=flags[whole], counts=counts)


def _at_grid(when: np.ndarray, value: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The register at the grid's instants, and how many readings lie between them."""
    grid = np.arange(-(-int(when[0]) // step) * step, int(when[-1]) + 1, step, dtype=np.int64)
    at = np.searchsorted(when, grid, side="right") - 1
    fresh = grid - when[at] < step
    return grid[fresh], value[at[fresh]], int((when % step != 0).sum())
