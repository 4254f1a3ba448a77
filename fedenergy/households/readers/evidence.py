"""What a sample of a table tells about its own meaning, and the questions that it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedenergy.households.clean import MAX_HOME_KW
from fedenergy.households.readers.days import day_columns
from fedenergy.households.readers.layout import POWER, UNITS, Layout, stamps
from fedenergy.households.readers.readings import MeterFileError
from fedenergy.households.readers.registers import MOST_FALLS, falls
from fedenergy.households.readers.sheet import Sheet, number, unwrap
from fedenergy.households.readers.stamps import begins, date_orders

LABELLED = ("fluvius", "esb-hdf", "home-assistant")  # one register may have two labels
MOST_BELOW = 0.02  # of the rows; a stray negative reading is counted, not asked for
FEW_FALLS = 0.01  # a register proposed without asking is reset hardly ever
GUESSES_FROM = 20  # rows: fewer tell nothing about monotony


@dataclass(frozen=True)
class Question:
    """What the file does not say, and the flag that answers it."""

    flag: str
    text: str
    choices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text} {self.flag} {'|'.join(self.choices)}"


ASK_MEASURE = Question(
    "--measure", "Are the values per interval, or those of a register that counts up?", ("interval", "register")
)


def fill(path: Path, sheet: Sheet, layout: Layout, evidence: dict, alternatives: dict) -> tuple[Layout, list[Question]]:
    """The layout with what the sample tells, and the questions that it leaves."""
    questions: list[Question] = []
    if not layout.channels:
        if layout.label:
            known = ", ".join(dict.fromkeys(repr(unwrap(text)[:40]) for text in sheet.column(layout.label)[:2_000]))[:300]
            questions.append(Question("--channel", f"Which {layout.label} meters what? ({known})",
                                      ("LABEL=import", "LABEL=export")))
        else:
            numeric = [name for name in sheet.header if name not in layout.time]
            questions.append(Question("--channel", f"Which column meters what? (columns: {', '.join(numeric[:12])})",
                                      ("COLUMN=import", "COLUMN=export")))
    keys = [(item.channel, item.register) for item in layout.channels]
    if twice := [item.column for item, key in zip(layout.channels, keys) if keys.count(key) > 1
                 and not (layout.label and layout.kind in LABELLED)]:
        names = ", ".join(repr(name[:30]) for name in twice[:6])
        questions.append(Question("--channel", f"{names} seem to meter the same: which is what?",
                                  ("COLUMN=import:REGISTER", "COLUMN=NAME")))
    if layout.dates is None:
        layout = _dates(path, sheet, layout, evidence, alternatives, questions)
    columns = (
        [layout.reading] if layout.reading else [item.column for item in layout.channels if item.column in sheet.header]
    )
    if layout.kind == "wide-days":
        columns = list(day_columns(sheet.header))
    if layout.decimal is None:
        layout = _decimal(path, sheet, layout, columns, evidence, questions)
    wall = offset = None
    if layout.dates is not None:
        wall, offset = stamps(sheet, layout)
    layout = _clock(sheet, layout, wall, offset, evidence, alternatives, questions)
    layout = _unit(layout, evidence)
    layout = _measure(sheet, layout, wall if offset is None else wall - offset, evidence, alternatives, questions)
    layout = _stamp(sheet, layout, wall, evidence, alternatives, questions)
    _signs(sheet, layout, evidence, questions)
    if layout.unit is None and not all(item.unit for item in layout.channels):
        told = _magnitude(sheet, layout, columns, wall)
        questions.append(Question("--unit", f"In what unit are the values?{told}", tuple(UNITS)[:2] + (
            () if layout.measure == "register" else POWER)))
    return layout, questions


def _dates(path: Path, sheet: Sheet, layout: Layout, evidence: dict, alternatives: dict, questions: list) -> Layout:
    cells = begins([unwrap(text) for text in sheet.column(layout.time[0])])
    texts = list(dict.fromkeys(cells))
    orders = date_orders(texts)
    if not orders:
        first = date_orders(texts[:1])
        for row, text in enumerate(cells):
            if not date_orders([text]) or not set(first) & set(date_orders([text])):
                raise MeterFileError(
                    path,
                    f"{layout.time[0]} = {text[:30]!r} is no date of the order that the first row has: is the "
                    "file cut, or are days and months swapped? Else declare --dates",
                    sheet.lines[row],
                )
            first = tuple(order for order in first if order in date_orders([text]))
        raise MeterFileError(path, "no one order of day and month fits all rows: declare --dates", sheet.lines[0])
    if len(orders) == 1:
        telling = next((text for text in texts if len(date_orders([text])) == 1), texts[0])
        evidence["dates"] = [
            f"{telling!r} is a date in the order {orders[0]} only" if orders[0] != "epoch" else "seconds since 1970"
        ]
        return replace(layout, dates=orders[0])
    jumps = {}
    for order in orders:
        wall, _ = stamps(sheet, replace(layout, dates=order))
        days = np.unique(wall // 86_400)
        jumps[order] = int((np.diff(days) > 1).sum()), len(days)
    ranked = sorted(orders, key=lambda order: jumps[order])
    if jumps[ranked[0]][0] < jumps[ranked[1]][0] and jumps[ranked[0]][1] > 1:
        evidence["dates"] = [f"with {order} the days jump {jumps[order][0]} times" for order in ranked]
        alternatives["dates"] = [ranked[1]]
        return replace(layout, dates=ranked[0])
    questions.append(
        Question("--dates", f"Is {texts[0][:20]!r} day/month or month/day? Both fit every row.", ("dmy", "mdy"))
    )
    return layout


def _used(sheet: Sheet, layout: Layout, name: str) -> Iterable[str]:
    """A column's texts; of a long table, those of the labels that are read."""
    if not layout.label or not layout.reading:
        return sheet.column(name)
    known = {item.column for item in layout.channels}
    return [text for text, label in zip(sheet.column(name), sheet.column(layout.label)) if unwrap(label) in known]


def _decimal(path: Path, sheet: Sheet, layout: Layout, columns: Iterable[str], evidence: dict, questions: list) -> Layout:
    fits = {".": True, ",": True}
    telling: dict[str, str] = {}
    marked = ""
    for name in columns:
        for text in dict.fromkeys(_used(sheet, layout, name)):
            found = {sign: number(text, sign) is not None for sign in fits}
            if "," in text or "." in text:
                marked = marked or text
            for sign in fits:
                fits[sign] = fits[sign] and found[sign]
                if found[sign] and not all(found.values()):
                    telling.setdefault(sign, text)
    allowed = [sign for sign in fits if fits[sign]]
    if not allowed:  # the reader will name the line that is no number
        sign = "," if "," in telling and "." not in telling else "."
        evidence["decimal"] = ["neither sign fits every value"]
        return replace(layout, decimal=sign)
    if len(allowed) == 1:
        evidence["decimal"] = [f"{unwrap(telling[allowed[0]])!r} is a number with {allowed[0]!r} only"]
        return replace(layout, decimal=allowed[0])
    if not marked:
        evidence["decimal"] = ["whole numbers only"]
        return replace(layout, decimal=".")
    if sheet.delimiter == "," and "," not in marked:
        evidence["decimal"] = ["fields are separated by commas, so points are the decimal sign"]
        return replace(layout, decimal=".")
    questions.append(
        Question("--decimal", f"Is {unwrap(marked)!r} a number with a decimal sign or with thousands apart?", ("'.'", "','"))
    )
    return layout


def _clock(sheet: Sheet, layout: Layout, wall: np.ndarray | None, offset: np.ndarray | None, evidence: dict,
           alternatives: dict, questions: list) -> Layout:
    if layout.period:
        offset = None
    if offset is not None and layout.dates == "epoch":
        evidence.setdefault("tz", []).append("an epoch counts in UTC")
        return replace(layout, tz=layout.tz or "UTC")
    if offset is not None:
        found = sorted(set(offset.tolist()))
        evidence["tz"] = [f"each stamp carries its offset ({', '.join(f'{item / 3600:+g} h' for item in found[:4])})"]
        return replace(layout, tz=layout.tz or "UTC")
    if layout.tz is not None:
        return layout
    if any(re.search(r"(?i)\b(utc|gmt)\b", name) for name in layout.time):
        evidence["tz"] = [f"the heading {layout.time[0]!r}"]
        return replace(layout, tz="UTC")
    told = ""
    if wall is not None and len(wall) > 1:
        twice = _repeated_hour(wall)
        told = f" On {twice} an hour is listed twice: a clock with summer time." if twice else ""
    questions.append(
        Question(
            "--tz",
            f"On what clock are the stamps, which carry no offset?{told}",
            ("UTC", "+01:00", "Europe/Brussels", "..."),
        )
    )
    return layout


def _repeated_hour(wall: np.ndarray) -> str:
    """The one day of a last Sunday in October that lists times twice, or ""."""
    values, times = np.unique(wall, return_counts=True)
    days = np.unique(values[times == 2] // 86_400)
    for day in days.tolist():
        date = np.datetime64(int(day), "D").item()
        if date.month == 10 and date.day > 24 and date.weekday() == 6 and len(days) <= 3:
            return str(date)
    return ""


def _unit(layout: Layout, evidence: dict) -> Layout:
    found = tuple(dict.fromkeys(item.unit for item in layout.channels if item.unit))
    if layout.unit is None and len(found) == 1 and all(item.unit for item in layout.channels):
        evidence.setdefault("unit", []).append(f"the heading {layout.channels[0].column!r}")
        return replace(layout, unit=found[0])
    return layout


def _measure(
    sheet: Sheet, layout: Layout, wall: np.ndarray | None, evidence: dict, alternatives: dict, questions: list
) -> Layout:
    power = [item for item in layout.channels if (item.unit or layout.unit) in POWER]
    if layout.measure is None and power and len(power) == len(layout.channels):
        evidence["measure"] = ["power: the mean of an interval"]
        return replace(layout, measure="interval")
    if layout.measure is not None or layout.decimal is None or wall is None:
        if layout.measure is None:
            questions.append(ASK_MEASURE)
        return layout
    moving = _movements(sheet, layout, wall)
    words = [
        item.column
        for item in layout.channels
        if re.search(
            r"(?i)cumul|total|register|meter ?reading|meterstand|stand\b|odometer|[12]\.8\.\d|lifetime", item.column
        )
    ]
    if any(down > max(1, MOST_FALLS * pairs) for _, down, _, pairs in moving):
        evidence["measure"] = [
            f"{name!r} falls in {down} of {pairs} rows: no register" for name, down, _, pairs in moving[:4]
        ]
        return replace(layout, measure="interval")
    if moving and all(
        down <= max(1, FEW_FALLS * pairs) and up > 5 and pairs >= GUESSES_FROM for _, down, up, pairs in moving
    ):
        evidence["measure"] = [f"{name!r} falls in {down or 'none'} of {pairs} rows" for name, down, _, pairs in moving[:4]]
        if words:
            evidence["measure"].append(f"the heading {words[0]!r}")
        alternatives["measure"] = ["interval"]
        return replace(layout, measure="register")
    questions.append(ASK_MEASURE)
    return layout


def _signs(sheet: Sheet, layout: Layout, evidence: dict, questions: list) -> None:
    """A question where what is consumed or produced is below 0 in more than stray rows: the two netted, or one's sign."""
    if layout.measure != "interval" or layout.decimal is None or layout.label or "declared" in evidence.get("channels", ()):
        return
    for item in layout.channels:
        if item.column not in sheet.header or item.channel == "net":
            continue
        found = [value for text in sheet.column(item.column) if (value := number(text, layout.decimal)) is not None]
        values = np.array(found, np.float64)
        below = int((np.nan_to_num(values) < 0).sum())
        if below > max(2, MOST_BELOW * len(values)):
            questions.append(Question(
                "--channel", f"{item.column!r} is below 0 in {below:,} of {len(values):,} rows: import less export, or "
                "another sign?", (f"'{item.column}=net'", f"'{item.column}=NAME'")))


def _in_time(wall: np.ndarray) -> np.ndarray:
    """Rows in the order of time: the file's own, up or down, because an autumn hour comes twice; else sorted."""
    back = float((np.diff(wall) < 0).mean()) if len(wall) > 1 else 0.0
    if 0.1 < back < 0.9:
        return np.argsort(wall, kind="stable")
    return np.arange(len(wall))[::-1 if back >= 0.9 else 1]


def _movements(sheet: Sheet, layout: Layout, wall: np.ndarray) -> list[tuple[str, int, int, int]]:
    """(column, falls, rises, pairs) of every column that moves, in the order of time, meters apart."""
    meters: dict[tuple[str, str], list[int]] = {}
    labels = [unwrap(text) for text in sheet.column(layout.label)] if layout.label else [""] * len(wall)
    for row, name in enumerate(zip(sheet.column(layout.meter) if layout.meter else labels, labels)):
        meters.setdefault(name, []).append(row)
    found = []
    for item in layout.channels:
        column = layout.reading or item.column
        if column not in sheet.header:
            continue
        texts = sheet.column(column)
        values = np.array([value if (value := number(text, layout.decimal)) is not None else np.nan for text in texts])
        down = up = pairs = 0
        for (_, label), rows in meters.items():
            if layout.label and label != item.column:
                continue
            part = values[rows][_in_time(wall[rows])]
            fallen, compared = falls(part)
            down, pairs = down + fallen, pairs + compared
            up += falls(-part)[0]
        if down + up:
            found.append((item.column, down, up, pairs))
    return found


def _stamp(
    sheet: Sheet, layout: Layout, wall: np.ndarray | None, evidence: dict, alternatives: dict, questions: list
) -> Layout:
    if layout.measure == "register":
        evidence["stamp"] = ["a register is read at an instant: an interval begins at one reading and ends at the next"]
        return replace(layout, stamp="start")
    if layout.stamp is not None:
        return layout
    heading = " ".join(layout.time)
    for stamp, words in (
        ("end", r"\b(end|until|ending|tot|bis|til|fine|fino|fin|hasta|ende|lõpp)\b"),
        ("start", r"\b(start|from|begin|beginning|van|von|fra|desde|dal|inizio|inicio|d[ée]but|algus)\b"),
    ):
        if re.search(words, heading.replace("_", " "), re.IGNORECASE):
            evidence["stamp"] = [f"the heading {heading!r}"]
            return replace(layout, stamp=stamp)
    if any(begins(texts := [unwrap(text) for text in sheet.column(name)]) != texts for name in layout.time):
        evidence["stamp"] = ["each time is a range, whose start is read"]
        return replace(layout, stamp="start")
    clock = np.unique(wall if wall is not None else [])
    if len(clock) > 1:
        gaps, times = np.unique(np.diff(clock), return_counts=True)
        step = int(gaps[times.argmax()])
        first, last = int(clock[0]) % 86_400, int(clock[-1]) % 86_400
        if step >= 86_400:
            evidence["stamp"] = ["a row is a day, named by its date"]
            return replace(layout, stamp="start")
        for stamp, edges in (("start", (0, 86_400 - step)), ("end", (step, 0))):
            if (first, last) == edges:
                evidence["stamp"] = [
                    f"the file runs from {_hhmm(first)} to {_hhmm(last)}: whole days of {step // 60}-minute {stamp}s"
                ]
                alternatives["stamp"] = ["end" if stamp == "start" else "start"]
                return replace(layout, stamp=stamp)
    questions.append(Question("--stamp", "Does a time name its interval's start or its end?", ("start", "end")))
    return layout


def _hhmm(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}"


def _magnitude(sheet: Sheet, layout: Layout, columns: Iterable[str], wall: np.ndarray | None) -> str:
    """What the largest value would mean in each unit, as power; "" where that cannot be said."""
    column = next((name for name in columns if name in sheet.header), None)
    if column is None or wall is None or layout.decimal is None or layout.measure == "register":
        return ""
    values = [
        value for text in sheet.column(column) if (value := number(text, layout.decimal)) is not None and value == value
    ]
    gaps = np.diff(np.unique(wall))
    if not values or not len(gaps) or max(values) <= 0:
        return ""
    step = float(np.median(gaps)) / 3_600
    means = {unit: max(values) * scale / (1 if unit in POWER else step) for unit, scale in UNITS.items() if unit != "MWh"}
    told = ", ".join(f"{unit}: {kw:.3g} kW{' (no home)' if kw > MAX_HOME_KW else ''}" for unit, kw in means.items())
    return f" The largest of {column!r} would be, as {told}."
