"""Columns of a table of no known kind: stamps, what each column meters, labels, units, numbered intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedenergy.households.readers.kinds import channel_of, is_other, unit_of
from fedenergy.households.readers.layout import POWER, UNITS, Channel, Layout
from fedenergy.households.readers.periods import period_size
from fedenergy.households.readers.readings import MeterFileError
from fedenergy.households.readers.sheet import Sheet, number, unwrap
from fedenergy.households.readers.stamps import begins, date_orders, split, zone_of

MOST_LABELS = 40
FEW_WORDS = 0.1                 # of a column's cells: with more it is no column of numbers
_UNIT_HEADING = re.compile(
    r"(?i)\b(?:units?|uom|unit of measurement|eenheid|einheit|unidad|unit[ée]|unità|måleenhed|enhed|enhet"
    r"|jednotka|jednostka|yksikkö|ühik)\b"
)
_ZONE = re.compile(r"\b([A-Z][A-Za-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][A-Za-z_]+)?)")
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?(\s?[AaPp]\.?[Mm]\.?)?")


def generic(path: Path, sheet: Sheet, declared: Mapping[str, Any], evidence: dict, alternatives: dict) -> Layout:
    """Columns of a table of no known kind: stamps, and channels by their headings."""
    time = tuple([declared["time"]] if isinstance(declared.get("time"), str) else declared.get("time", ()))
    for name in time:
        sheet.column(name)
    if not time:
        time, others = _time_columns(path, sheet)
        evidence["time"] = [f"{' and '.join(map(repr, time))} hold time stamps"]
        if others:
            alternatives["time"] = [f"--time {name!r}" for name in others]
    numbered = time[1] if len(time) == 2 and period_size("hour", sheet.column(time[1])) else ""
    time = time[:1] if numbered else time
    layout = _clock_of_heading(Layout("table", time, ()), evidence)
    if len(time) == 1 and (period := numbered or _period(sheet, time[0])):
        size = period_size("hour", sheet.column(period))
        layout = replace(layout, period=period, stamp="start", step_minutes=1440 // size)
        evidence.setdefault("time", []).append(f"{period!r} numbers the {size} intervals of a day")
        evidence["stamp"] = [f"{period!r} numbers the interval itself"]
    numeric = [name for name in sheet.header if name not in (*time, layout.period) and _numeric(sheet, name)]
    if "channel" in declared:
        texts = (
            [declared["channel"]] if isinstance(declared["channel"], str) else [str(text) for text in declared["channel"]]
        )
        if any(text.rpartition("=")[0] in sheet.header for text in texts):
            evidence["channels"] = ["declared"]
            return replace(
                _units(path, sheet, layout, evidence),
                channels=tuple(
                    replace(item, unit=item.unit or unit_of(item.column))
                    for item in (declared_channel(path, sheet.header, text) for text in texts)
                ),
            )
    parts = tuple(found for name in numeric if (found := channel_of(name)))
    if not parts:
        others = [name for name in sheet.header if name not in (*time, layout.period)]
        _refuse_stray_words(sheet, [name for name in others if channel_of(name)])
    if not parts and numeric and all(map(is_other, numeric)):
        raise MeterFileError(path, f"its columns of numbers hold no electric energy or power ({', '.join(numeric[:6])}): "
                                   "if one does, declare --channel COLUMN=import", sheet.lines[0])
    if not parts and len(numeric) == 1:
        parts = (Channel(numeric[0], "import", "", unit_of(numeric[0])),)
        evidence["channels"] = [f"{numeric[0]!r} is the only column of numbers: taken for consumption"]
    elif parts:
        evidence["channels"] = ["by the headings"]
        parts = _one_quantity(parts)
    if left := [name for name in numeric if name not in {item.column for item in parts}]:
        evidence["set aside"] = [f"{name!r}: no active electricity, or a part of what is read" for name in left]
    layout = replace(layout, channels=parts)
    if len(parts) == 1 and (label := _label(sheet, layout, numeric)):
        layout = _long(path, sheet, layout, label, declared, evidence)
    elif "channel" in declared:
        for text in texts:
            declared_channel(path, sheet.header, text)
    if made := [item.column for item in layout.channels if item.channel == "generation"]:
        evidence.setdefault("channels", []).append(
            f"{made[0]!r} is what was produced; if it is what went into the grid, declare --channel {made[0] + '=export'!r}"
        )
    return _units(path, sheet, layout, evidence)


def _clock_of_heading(layout: Layout, evidence: dict) -> Layout:
    """With the zone that a heading of the stamps names, as "Time (America/New_York)" does."""
    for name in layout.time:
        for text in _ZONE.findall(name):
            try:
                zone_of(text)
            except ValueError:
                continue
            evidence["tz"] = [f"the heading {name!r}"]
            return replace(layout, tz=text)
    return layout


def _period(sheet: Sheet, date: str) -> str:
    """The column that numbers a day's intervals where the date has no clock, or ""."""
    if any(split(text)[1] for text in begins([unwrap(text) for text in sheet.column(date)[:50]])):
        return ""
    return next((name for name in sheet.header if name != date and period_size(name, sheet.column(name))), "")


def _label(sheet: Sheet, layout: Layout, numeric: Sequence[str]) -> str:
    """The column of words that tells the rows of one time apart (import and export under one another), or ""."""
    stamps = list(zip(*(sheet.column(name) for name in (*layout.time, *([layout.period] if layout.period else [])))))
    if len(set(stamps)) > 0.7 * len(stamps):
        return ""
    found = []
    for name in sheet.header:
        if name in (*layout.time, layout.period, *numeric):
            continue
        texts = [unwrap(text) for text in sheet.column(name)]
        labels = set(texts) - {""}
        if 2 <= len(labels) <= MOST_LABELS and len(set(zip(stamps, texts))) >= 0.95 * len(stamps):
            found.append((-sum(channel_of(text) is not None for text in labels), len(labels), name))
    best = min(found, default=(0, 0, ""))
    return best[2] if best[0] else ""


def _long(path: Path, sheet: Sheet, layout: Layout, label: str, declared: Mapping[str, Any], evidence: dict) -> Layout:
    """The layout whose one column of values holds several registers, told apart by a label."""
    value = layout.channels[0]
    labels = list(dict.fromkeys(unwrap(text) for text in sheet.column(label)))
    parts = {text: replace(found, unit=value.unit) for text in labels if (found := channel_of(text))}
    evidence["channels"] = [f"{label!r} names what {value.column!r} meters in each row"]
    if "channel" in declared:
        texts = [declared["channel"]] if isinstance(declared["channel"], str) else declared["channel"]
        found = [declared_channel(path, labels, str(text), label) for text in texts]
        parts |= {item.column: replace(item, unit=item.unit or value.unit) for item in found}
        evidence["channels"].append("declared")
    if left := [text for text in labels if text not in parts]:
        evidence["set aside"] = [*evidence.get("set aside", ()), *(f"rows of {label} {text!r}" for text in left[:8])]
    return replace(layout, channels=tuple(parts.values()), label=label, reading=value.column, any_label=True)


def _units(path: Path, sheet: Sheet, layout: Layout, evidence: dict) -> Layout:
    """With the unit that a column names in each row; MeterFileError where it is that of no electricity."""
    for name in sheet.header:
        if name in layout.time or not _UNIT_HEADING.search(name.replace("_", " ")):
            continue
        texts = {unwrap(text) for text in sheet.column(name)}
        known = {found for text in texts if (found := unit_of(text)) and len(text) < 16}
        if (
            not known
            and len(texts) == 1
            and (only := next(iter(texts)))
            and not any(item.unit for item in layout.channels)
            and number(only, ".") is None
        ):
            raise MeterFileError(
                path, f"every reading is in {only[:20]!r} ({name}): no electric energy or power", sheet.lines[0]
            )
        if not known:
            continue
        evidence["unit"] = [f"column {name!r} names it in each row"]
        if len(texts) == 1:
            return replace(
                layout, unit=next(iter(known)), channels=tuple(replace(item, unit="") for item in layout.channels)
            )
        return replace(layout, unit="kWh", unit_column=name)
    return layout


def _one_quantity(parts: tuple[Channel, ...]) -> tuple[Channel, ...]:
    """Without columns that repeat others: power beside energy, a total beside its registers."""
    energy = tuple(item for item in parts if item.unit and item.unit not in POWER)
    if energy and any(item.unit in POWER for item in parts):
        parts = tuple(item for item in parts if item.unit not in POWER)
    split_up = {item.channel for item in parts if item.register}
    return tuple(
        item
        for item in parts
        if item.register
        or item.channel not in split_up
        or not re.search(r"(?i)\b(total|totaal|totale|gesamt|sum)\b", item.column)
    )


def declared_channel(path: Path, names: Sequence[str], text: str, label: str = "") -> Channel:
    """A channel of "COLUMN=import[:register[:unit]]"; names are the columns, or the labels that the column `label` holds."""
    column, mark, rest = str(text).rpartition("=")
    parts = rest.split(":")
    if not mark or not parts[0] or len(parts) > 3 or (len(parts) == 3 and parts[2] not in UNITS):
        raise MeterFileError(
            path, f"--channel {str(text)[:60]!r}: write COLUMN=import[:register[:unit]], unit one of {', '.join(UNITS)}"
        )
    if column not in names and column not in {unwrap(name) for name in names}:
        shown = ", ".join(dict.fromkeys(unwrap(name) for name in names[:5_000])) if label else ", ".join(names[:12])
        raise MeterFileError(
            path, f"no {f'label {column!r} in {label!r}' if label else f'column {column!r}'} (there are: {shown[:300]})"
        )
    return Channel(column, parts[0], parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 2 else "")


def _time_columns(path: Path, sheet: Sheet) -> tuple[tuple[str, ...], list[str]]:
    found, clocks = [], []
    for k, name in enumerate(sheet.header):
        texts = begins([unwrap(text) for text in sheet.columns[k][:50]])
        if all(date_orders([text]) for text in texts) and (
            k == 0
            or not all(number(text, ".") is not None for text in texts)
            or re.search(r"(?i)date|time|stamp|epoch|day|datum|data\b|fecha", name)
        ):
            found.append(name)
        elif all(_CLOCK.fullmatch(text) for text in texts):
            clocks.append(name)
    if not found:
        raise _no_stamps(path, sheet)
    if changing := [name for name in found if len(set(sheet.column(name))) > 1]:
        found = changing  # one text in every row is about the file
    starts = [
        name
        for name in found
        if re.search(
            r"(?i)start|begin|utc|\b(?:from|van|von|dal|desde|de|fra|od|algus|d[ée]but|inicio|inizio)\b",
            name.replace("_", " "),
        )
    ]
    best = (starts or found)[0]
    texts = begins([unwrap(text) for text in sheet.column(best)[:50]])
    chosen = (
        (best, clocks[0])
        if clocks and not any(split(text)[1] for text in texts) and "epoch" not in date_orders(texts)
        else (best,)
    )
    return chosen, [name for name in found if name not in chosen]


def _no_stamps(path: Path, sheet: Sheet) -> MeterFileError:
    """The error of a table without a column of stamps: at the first row that breaks the column nearest to being one."""
    good = [[bool(date_orders(begins([unwrap(text)]))) for text in column[:50]] for column in sheet.columns]
    best = max(range(len(good)), key=lambda k: sum(good[k]))
    if len(good[best]) > sum(good[best]) > len(good[best]) / 2:
        row = good[best].index(False)
        return MeterFileError(
            path,
            f"{sheet.header[best]} = {sheet.columns[best][row][:30]!r} is no time stamp, as the rows "
            "above have: a second table in one file? Else declare --time COLUMN",
            sheet.lines[row],
        )
    return MeterFileError(
        path, "no column holds time stamps in every row: declare --time COLUMN (and --dates)", sheet.lines[0]
    )


def _numeric(sheet: Sheet, name: str) -> bool:
    read = _read(sheet, name)
    return all(read) and any(value == value for values in read for value in values)


def _read(sheet: Sheet, name: str) -> list[list[float]]:
    """What each of a column's first cells is as a number, by either decimal sign; [] where it is none."""
    both = ((number(text, sign) for sign in (".", ",")) for text in sheet.column(name)[:500])
    return [[value for value in values if value is not None] for values in both]


def _refuse_stray_words(sheet: Sheet, names: Sequence[str]) -> None:
    """MeterFileError names the cell where a column whose heading meters electricity holds numbers but for a few words."""
    for name in names:
        read = _read(sheet, name)
        if 0 < read.count([]) <= FEW_WORDS * len(read):
            wrong = read.index([])
            told = f"{name[:60]} = {sheet.column(name)[wrong][:30]!r} is no number, as the others are"
            raise MeterFileError(sheet.path, told, sheet.lines[wrong])
