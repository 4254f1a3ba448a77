"""What a meter file says, judged: UTC intervals in kWh by meter, channel and register, and counts of what was wrong.

Nothing is filled. A row is kept, or set aside and counted; a doubtful value stays, with a flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from fedenergy.errors import ConfigError
from fedenergy.households.clean import MAX_HOME_KW, runs
from fedenergy.households.readers.stamps import wall_seconds

COLUMNS = ("meter", "channel", "register", "start", "minutes", "kwh", "quality")
# Longer than a night away, shorter than a holiday: worth a look, never proof of an outage.
ZERO_RUN_MINUTES = 360
FLAT_RUN_MINUTES, FLAT_RUN_READINGS = 60, 12
MOST_IMPLAUSIBLE = 0.01  # more readings than this above 100 kW: the unit is wrong, not the reading
MOST_CONFLICTS = 0.3
COUNT_NAMES = ("rows", "missing", "null_text", "duplicates", "conflicts", "off_grid", "gaps", "gap_runs", "zero_run",
               "flat_run", "negative", "implausible", "unit_jumps", "substituted", "estimated", "questionable",
               "nonexistent_local", "dst_repeated", "dst_single", "swap_suspect", "register_reset", "register_rollover",
               "across_gaps", "blank_lines", "preamble_lines", "footer_lines", "set_aside", "multiplier_conflict",
               "unsorted")


class MeterFileError(ConfigError, ValueError):
    """A meter file that cannot be read as declared: names the file, the line where there is one, the rule, the remedy."""

    def __init__(self, path: Path | str, message: object, line: int | None = None):
        super().__init__(f"{Path(path).name}{'' if line is None else f', line {line}'}: {message}")
        self.line = line


@dataclass(frozen=True)
class Stream:
    """One register of one meter as parsed, in file order: beginnings in UTC seconds, kWh, flags ("" = none)."""

    meter: str
    channel: str
    register: str
    when: np.ndarray
    kwh: np.ndarray
    flags: np.ndarray
    counts: Mapping[str, int] = field(default_factory=dict)
    step_minutes: int = 0  # where it differs from the file's commonest; 0: the same


@dataclass(frozen=True)
class Readings:
    """Readings of one file.

    frame         columns COLUMNS, sorted: start is the interval's beginning (UTC), minutes its length, kwh is NaN where
                  the file lists the interval without a value, quality its flags joined by "|" ("" where there are none)
    step_minutes  nominal length of an interval
    counts        (meter, channel, register) -> count by name (COUNT_NAMES); what belongs to no register has ("", "", "")
    notes         lines for the reader: what was set aside and why
    """

    frame: pd.DataFrame
    step_minutes: int
    counts: Mapping[tuple[str, str, str], Mapping[str, int]]
    notes: tuple[str, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.frame["channel"]))

    @property
    def meters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.frame["meter"]))

    def totals(self) -> dict[str, int]:
        """Every count that is not 0, summed over registers."""
        found: dict[str, int] = {}
        for counts in self.counts.values():
            for name, value in counts.items():
                found[name] = found.get(name, 0) + value
        return {name: found[name] for name in COUNT_NAMES if found.get(name)}

    def series(self, channel: str = "import", meter: str | None = None) -> pd.Series:
        """kWh by UTC start of one channel, its registers (tariffs, phases) added; NaN where one of them is missing."""
        part = self.frame[self.frame["channel"] == channel]
        if meter is None and part["meter"].nunique() > 1:
            raise ValueError(
                f"the file holds {part['meter'].nunique()} meters ({', '.join(self.meters[:3])}, ...): name one"
            )
        if meter is not None:
            part = part[part["meter"] == meter]
        if part.empty:
            raise ValueError(f"no readings of channel {channel!r}{f', meter {meter!r}' if meter is not None else ''} "
                             f"(channels: {', '.join(self.channels)})")
        return part.groupby("start")["kwh"].agg(lambda values: values.sum(skipna=False)) \
            if part["register"].nunique() > 1 else part.set_index("start")["kwh"]


def assemble(path: Path, streams: Iterable[Stream], zone: str, step_minutes: int | None = None,
             counts: Mapping[str, int] | None = None, notes: Sequence[str] = ()) -> Readings:
    """Streams to Readings: sorted, duplicates and off-grid rows set aside, gaps and suspect runs counted.

    zone         the meter's clock ("" or "UTC", "+10:00", "Europe/Brussels"): days are days of that clock
    step_minutes None: the commonest distance; MeterFileError where there is none
    """
    streams = _merged([stream for stream in streams if len(stream.when)])
    if not streams:
        raise MeterFileError(path, "no readings at all: is it the right file, and are the columns declared?")
    step = step_minutes or _step(path, streams)
    if (step < 1440 and 1440 % step) or (step > 1440 and step % 1440):
        raise MeterFileError(path, f"readings are {step} minutes apart, which does not divide a day: declare --step")
    found, frames = {}, []
    for stream in streams:
        frame, judged = _judge(path, stream, zone, stream.step_minutes or step)
        key = (stream.meter, stream.channel, stream.register)
        old = found.get(key, {})
        found[key] = {name: old.get(name, 0) + judged.get(name, 0) for name in {**old, **judged}}
        frames.append(frame)
    if counts and any(counts.values()):
        found["", "", ""] = {name: int(value) for name, value in counts.items() if value}
    whole = pd.concat(frames, ignore_index=True)
    whole = whole.sort_values(["meter", "channel", "start", "register"], kind="stable", ignore_index=True)
    _flag_runs(whole, found)
    return Readings(whole[list(COLUMNS)], step, found, tuple(notes))


def _merged(streams: Sequence[Stream]) -> list[Stream]:
    """Streams of one register put together, so that what both hold is met as a duplicate and not counted twice."""
    groups: dict[tuple, list[Stream]] = {}
    for stream in streams:
        groups.setdefault((stream.meter, stream.channel, stream.register, stream.step_minutes), []).append(stream)
    merged = []
    for (*key, step), parts in groups.items():
        counts: dict[str, int] = {}
        for part in parts:
            for name, value in part.counts.items():
                counts[name] = counts.get(name, 0) + value
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in ("when", "kwh", "flags"))
        merged.append(parts[0] if len(parts) == 1 else Stream(*key, *columns, counts=counts, step_minutes=step))
    return merged


def _step(path: Path, streams: Sequence[Stream]) -> int:
    gaps = np.concatenate([np.diff(np.unique(stream.when)) for stream in streams])
    if not len(gaps):
        raise MeterFileError(path, "one reading does not tell the step: declare --step MINUTES")
    values, times = np.unique(gaps, return_counts=True)
    best = int(values[times.argmax()])
    if 82_800 <= best <= 90_000:  # days of 23 and 25 hours
        return 1440
    if best % 60 or best < 60:
        raise MeterFileError(path, f"readings are mostly {best} s apart, which is no whole minute: declare --step MINUTES")
    return best // 60


def _judge(path: Path, stream: Stream, zone: str, step: int) -> tuple[pd.DataFrame, dict[str, int]]:
    counts = {name: int(value) for name, value in stream.counts.items() if value}
    if (np.diff(stream.when) < 0).any() and (np.diff(stream.when) > 0).any():
        counts["unsorted"] = counts.get("unsorted", 0) + int((np.diff(stream.when) < 0).sum())
    order = np.argsort(stream.when, kind="stable")
    when, kwh, flags = stream.when[order], stream.kwh[order], stream.flags[order].astype(object)
    wall = wall_seconds(when, zone) if step >= 1440 else when
    phase, times = np.unique(wall % (step * 60), return_counts=True)
    # Days of 23 and 25 hours move a daily reading by an hour, where the clock is not known better.
    slack = 3_600 if step >= 1440 else 0
    slot, rest = np.divmod(wall - int(phase[times.argmax()]) + slack, step * 60)
    off = rest > 2 * slack if slack else rest != 0
    counts["off_grid"] = counts.get("off_grid", 0) + int(off.sum())
    repeat = np.zeros(len(slot), bool)
    kept = np.flatnonzero(~off)
    repeat[kept[1:]] = slot[kept][1:] == slot[kept][:-1]
    # The first of the rows with one time that holds a value stays.
    empty = np.isnan(kwh)
    if repeat.any():
        first_of = kept[np.maximum.accumulate(np.where(repeat[kept], 0, np.arange(len(kept))))]
        at = dict(zip(kept.tolist(), first_of.tolist()))
        for row in np.flatnonzero(repeat).tolist():
            lead = at[row]
            if empty[lead] and not empty[row]:
                kwh[lead], flags[lead], empty[lead] = kwh[row], flags[row], False
            differs = not empty[row] and kwh[row] != kwh[lead]
            counts["conflicts" if differs else "duplicates"] = counts.get("conflicts" if differs else "duplicates", 0) + 1
    refuse_shared(path, counts.get("conflicts", 0) - stream.counts.get("conflicts", 0), len(slot))
    keep = ~off & ~repeat
    when, kwh, slot, flags = when[keep], kwh[keep], slot[keep], flags[keep]
    holes = np.diff(slot) - 1
    counts |= {"rows": len(when), "missing": counts.get("missing", 0) + int(np.isnan(kwh).sum()), "gaps": int(holes.sum()),
               "gap_runs": int((holes > 0).sum())}
    power = np.abs(kwh) * 60 / step
    high = np.nan_to_num(power) > MAX_HOME_KW
    if high.sum() > max(MOST_IMPLAUSIBLE * len(kwh), 0) and stream.channel in ("import", "export", "net", "generation") and (
            high.mean() > 0.5 or high.sum() > 20):
        worst = int(np.nanargmax(power))
        raise MeterFileError(
            path,
            f"{stream.channel} {kwh[worst]:g} kWh in {step} minutes at {_text(when[worst])} is a mean of "
            f"{power[worst]:g} kW, and {high.sum()} readings are above {MAX_HOME_KW:g} kW for a home: "
            "is the unit Wh or W, or is it a register? Declare --unit or --measure register",
        )
    counts["implausible"] = int(high.sum())
    flags[high] = [_join(flag, "implausible") for flag in flags[high]]
    if stream.channel != "net":
        negative = np.nan_to_num(kwh) < 0
        counts["negative"] = int(negative.sum())
        flags[negative] = [_join(flag, "negative") for flag in flags[negative]]
    flags[np.isnan(kwh)] = [_join(flag, "missing") for flag in flags[np.isnan(kwh)]]
    for name in ("substituted", "estimated", "questionable"):
        counts[name] = counts.get(name, 0) + sum(name in flag for flag in flags if flag)
    counts["unit_jumps"] = _unit_jumps(when, kwh)
    frame = pd.DataFrame({"meter": stream.meter, "channel": stream.channel, "register": stream.register,
                          "start": pd.to_datetime(when, unit="s", utc=True).as_unit("s"), "minutes": np.int32(step),
                          "kwh": kwh, "quality": flags})
    return frame, {name: value for name, value in counts.items() if value}


def refuse_shared(path: Path, conflicts: int, total: int) -> None:
    """MeterFileError where so many rows have a time in common, with other values, that they cannot be one register's."""
    if conflicts >= 3 and conflicts > MOST_CONFLICTS * total:
        raise MeterFileError(path, f"{conflicts} of {total} rows repeat a time with another value: several meters or "
                                   "registers in one column (declare --meter), or a clock column left out (declare "
                                   "--time twice)")


def _unit_jumps(when: np.ndarray, kwh: np.ndarray) -> int:
    """Days whose median is 300 times that of the day before, or a 300th: kWh and Wh mixed in one column."""
    use = np.nan_to_num(kwh) > 0
    if not use.any():
        return 0
    days, inverse = np.unique(when[use] // 86_400, return_inverse=True)
    if len(days) < 2:
        return 0
    medians = pd.Series(kwh[use]).groupby(inverse).median().to_numpy()
    ratio = np.abs(np.log10(medians[1:] / medians[:-1]))
    return int((ratio > np.log10(300)).sum())


def _flag_runs(frame: pd.DataFrame, counts: dict) -> None:
    """Long runs of zeros, and of one value, in a consumption whose registers are added: a tariff that rests is no run."""
    if "import" not in set(frame["channel"]):
        return
    quality = frame["quality"].to_numpy(object, copy=True)
    for (meter, channel, step), part in frame.groupby(["meter", "channel", "minutes"], sort=False):
        if channel != "import":
            continue
        start, codes = np.unique(part["start"].to_numpy(), return_inverse=True)
        whole = np.bincount(codes, part["kwh"].to_numpy(), len(start))
        split = np.diff(start).astype("m8[m]").astype(int) != step  # a run ends at a gap
        alike = np.concatenate(([False], (np.diff(whole) == 0) & ~split))
        zero = flat = 0
        marks: dict[str, np.ndarray] = {name: np.zeros(len(start), bool) for name in ("zero_run", "flat_run")}
        for low, high in runs(alike):
            low -= 1  # the first of the run equals none before it
            minutes = (high - low) * step
            if whole[low] == 0 and minutes >= ZERO_RUN_MINUTES and high - low > 1:
                marks["zero_run"][low:high], zero = True, zero + high - low
            elif whole[low] != 0 and minutes >= FLAT_RUN_MINUTES and high - low >= FLAT_RUN_READINGS:
                marks["flat_run"][low:high], flat = True, flat + high - low
        if zero or flat:
            rows = part.index.to_numpy()
            for name, mark in marks.items():
                hit = rows[mark[codes]]
                quality[hit] = [_join(flag, name) for flag in quality[hit]]
            key = next(key for key in counts if key[:2] == (meter, channel))
            for name, value in (("zero_run", zero), ("flat_run", flat)):
                if value:
                    counts[key] = {**counts[key], name: counts[key].get(name, 0) + value}
    frame["quality"] = quality


def _join(flag: str, name: str) -> str:
    return f"{flag}|{name}" if flag else name


def _text(seconds: int) -> str:
    return f"{np.datetime64(int(seconds), 's')}Z"
