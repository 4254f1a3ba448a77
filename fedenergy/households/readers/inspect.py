"""What a meter file seems to hold, with the evidence; what it does not tell becomes a question, never a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.households.readers.days import day_columns, read_days
from fedenergy.households.readers.evidence import Question, fill
from fedenergy.households.readers.greenbutton import read_green_button
from fedenergy.households.readers.kinds import channel_of, recognise, unit_of
from fedenergy.households.readers.layout import POWER, UNITS, Channel, Layout, check_layout, read_layout, stamp_row, stamps
from fedenergy.households.readers.nem12 import read_nem12
from fedenergy.households.readers.readings import MeterFileError, Readings
from fedenergy.households.readers.sheet import Sheet, encoding_of, head, number, read_sheet, unwrap
from fedenergy.households.readers.stamps import date_orders, split

SAMPLE_ROWS = 20_000
SETTINGS = ("dates", "stamp", "tz", "unit", "measure", "decimal", "step")
DECLARED = (*SETTINGS, "time", "channel", "meter", "delimiter", "kind")


@dataclass(frozen=True)
class Proposal:
    """How `convert` would read the file.

    settings      SETTINGS -> value, None where it is not known (then a question asks for it)
    evidence      setting -> why; alternatives: setting -> what else fits
    """

    path: Path
    kind: str
    settings: Mapping[str, str | None]
    channels: tuple[Channel, ...]
    evidence: Mapping[str, tuple[str, ...]]
    alternatives: Mapping[str, tuple[str, ...]]
    questions: tuple[Question, ...]
    layout: Layout | None = field(default=None, repr=False)

    @property
    def energy_or_power(self) -> str | None:
        unit = self.settings.get("unit")
        return None if unit is None else "power" if unit in POWER else "energy"


def inspect(path: Path | str, **declared: Any) -> Proposal:
    """A proposal for the file, from its first 20,000 rows; declared (DECLARED) answers come first.

    MeterFileError, naming file and line, where it is no meter file or an answer is none.
    """
    path = Path(path)
    declared = _checked(path, declared)
    start = head(path)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return _fixed(path, "green-button", declared, unit="Wh", stamp="start", tz="UTC", measure="interval",
                      dates="epoch", decimal=".", why={
                          "unit": "uom 72 is watt-hours; other quantities are set aside",
                          "tz": "ESPI counts seconds in UTC", "stamp": "timePeriod gives start and duration",
                          "measure": "each ReadingType says so (accumulationBehaviour)"})
    first = next((line for line in start.decode("latin-1").splitlines() if line.strip()), "").removeprefix(
        "\u00ef\u00bb\u00bf"
    )
    if re.match(r"(100,\s*NEM12|(200|300),)", first):
        return _fixed(path, "nem12", declared, unit="kWh", stamp="start", tz="+10:00", measure="interval", dates="ymd",
                      decimal=".", why={"unit": "each 200 record names its unit; converted to kWh",
                                        "tz": "NEM time: UTC+10 all year", "stamp": "value 1 begins at midnight",
                                        "measure": "300 records hold intervals"})
    return _table(path, declared)


def _checked(path: Path, declared: Mapping[str, Any]) -> dict[str, Any]:
    from fedenergy.errors import did_you_mean

    for name in declared:
        if name not in DECLARED:
            raise MeterFileError(
                path, f"no setting {name!r} (there are: {', '.join(DECLARED)}).{did_you_mean(name, DECLARED)}"
            )
    return {name: value for name, value in declared.items() if value not in (None, "", (), [])}


def _fixed(path: Path, kind: str, declared: Mapping[str, Any], why: Mapping[str, str], **settings: str) -> Proposal:
    extra = set(declared) - {"tz", "kind"}
    if extra or declared.get("kind", kind) != kind:
        raise MeterFileError(path, f"is {kind}, whose format fixes everything but --tz: drop --{min(extra or {'kind'})}")
    values = {**dict.fromkeys(SETTINGS), **settings, **{name: declared[name] for name in ("tz",) if name in declared}}
    evidence = {"kind": ("by its first record",)} | {name: (text,) for name, text in why.items()}
    layout = Layout(kind, (), (), tz=values["tz"])
    check_layout(path, layout)
    return Proposal(path, kind, values, (), evidence, {}, (), layout)


def _table(path: Path, declared: Mapping[str, Any]) -> Proposal:
    delimiter = {"tab": "\t", "\\t": "\t"}.get(declared.get("delimiter"), declared.get("delimiter", ""))
    if len(delimiter) > 1:
        raise MeterFileError(path, f"--delimiter {delimiter!r} is not one character")
    sheet = read_sheet(path, stamp_row, delimiter, SAMPLE_ROWS)
    evidence: dict[str, list[str]] = {"file": [f"{encoding_of(path).removesuffix('-sig')}, delimiter {sheet.delimiter!r}, "
                                               f"{len(sheet.lines):,}{' (a sample)' if not sheet.complete else ''} rows, "
                                               f"{'a header' if sheet.named else 'no header'}"]}
    alternatives: dict[str, list[str]] = {}
    known = recognise(sheet) if not {"time", "channel"} & set(declared) and declared.get("kind", "") != "table" else None
    if declared.get("kind") not in (None, "table", known[0].kind if known else None):
        raise MeterFileError(path, f"--kind {declared['kind']}: it is no such file; it looks like "
                                   f"{known[0].kind if known else 'a table'}")
    if known and known[0].label and not sheet.complete:  # a label may come first near the end
        sheet = read_sheet(path, stamp_row, delimiter)
        known = recognise(sheet)
    if known:
        layout = known[0]
        evidence |= known[1]
    else:
        layout = _generic(path, sheet, declared, evidence, alternatives)
    answers = {name: declared[name] for name in ("dates", "stamp", "tz", "unit", "measure", "decimal") if name in declared}
    if "unit" in answers:
        layout = replace(layout, channels=tuple(replace(item, unit="") for item in layout.channels), unit_column="")
    if "step" in declared:
        answers["step_minutes"] = _whole(path, declared["step"])
    layout = replace(
        layout, delimiter=sheet.delimiter, **answers, **({"meter": declared["meter"]} if "meter" in declared else {})
    )
    for name in answers:
        evidence[name.removesuffix("_minutes")] = ["declared"]
    check_layout(path, layout)
    layout, questions = fill(path, sheet, layout, evidence, alternatives)
    settings = {name: None if (value := getattr(layout, {"step": "step_minutes"}.get(name, name))) is None else str(value)
                for name in SETTINGS}
    if settings["step"] is None and layout.dates is not None:
        gaps, times = np.unique(np.diff(np.unique(stamps(sheet, layout)[0])), return_counts=True)
        if len(gaps):
            settings["step"] = f"{int(gaps[times.argmax()]) / 60:g}"
            evidence["step"] = [f"{times.max():,} of {times.sum():,} distances between stamps"]
    if layout.kind == "wide-days":
        settings["step"] = str(1440 // max(len(day_columns(sheet.header)) // 24 * 24, 24))
        evidence["step"] = ["columns of a day"]
    if layout.unit is None and layout.channels and all(item.unit for item in layout.channels):
        settings["unit"] = "/".join(dict.fromkeys(item.unit for item in layout.channels))
    return Proposal(path, layout.kind, settings, layout.channels, {name: tuple(lines) for name, lines in evidence.items()},
                    {name: tuple(items) for name, items in alternatives.items()}, tuple(questions), layout)


def _whole(path: Path, value: Any) -> int:
    if not re.fullmatch(r"\d{1,5}", str(value)):
        raise MeterFileError(path, f"--step {value!r} is no whole number of minutes")
    return int(value)


def _generic(path: Path, sheet: Sheet, declared: Mapping[str, Any], evidence: dict, alternatives: dict) -> Layout:
    """Columns of a table of no known kind: stamps, and channels by their headings."""
    time = tuple([declared["time"]] if isinstance(declared.get("time"), str) else declared.get("time", ()))
    for name in time:
        sheet.column(name)
    if not time:
        time, others = _time_columns(path, sheet)
        evidence["time"] = [f"{' and '.join(map(repr, time))} hold time stamps"]
        if others:
            alternatives["time"] = [f"--time {name!r}" for name in others]
    if "channel" in declared:
        texts = [declared["channel"]] if isinstance(declared["channel"], str) else declared["channel"]
        parts = tuple(_declared_channel(path, sheet, text) for text in texts)
        evidence["channels"] = ["declared"]
    else:
        numeric = [name for name in sheet.header if name not in time and _numeric(sheet, name)]
        parts = tuple(found for name in numeric if (found := channel_of(name)))
        if not parts and len(numeric) == 1:
            parts = (Channel(numeric[0], "import", "", unit_of(numeric[0])),)
            evidence["channels"] = [f"{numeric[0]!r} is the only column of numbers: taken for consumption"]
        elif parts:
            evidence["channels"] = ["by the headings"]
            parts = _one_quantity(parts)
        if left := [name for name in numeric if name not in {item.column for item in parts}]:
            evidence["set aside"] = [f"{name!r}: no active electricity, or a part of what is read" for name in left]
    return Layout("table", time, parts)


def _one_quantity(parts: tuple[Channel, ...]) -> tuple[Channel, ...]:
    """Without columns that repeat others: power beside energy, a total beside its registers."""
    energy = tuple(item for item in parts if item.unit and item.unit not in POWER)
    if energy and any(item.unit in POWER for item in parts):
        parts = tuple(item for item in parts if item.unit not in POWER)
    split_up = {item.channel for item in parts if item.register}
    return tuple(item for item in parts if item.register or item.channel not in split_up
                 or not re.search(r"(?i)\b(total|totaal|totale|gesamt|sum)\b", item.column))


def _declared_channel(path: Path, sheet: Sheet, text: str) -> Channel:
    """A channel of "COLUMN=import[:register[:unit]]"."""
    column, mark, rest = str(text).rpartition("=")
    parts = rest.split(":")
    if not mark or not parts[0] or len(parts) > 3 or (len(parts) == 3 and parts[2] not in UNITS):
        raise MeterFileError(
            path, f"--channel {str(text)[:60]!r}: write COLUMN=import[:register[:unit]], unit one of {', '.join(UNITS)}"
        )
    sheet.column(column)
    return Channel(column, parts[0], parts[1] if len(parts) > 1 else "", parts[2] if len(parts) > 2 else "")


def _time_columns(path: Path, sheet: Sheet) -> tuple[tuple[str, ...], list[str]]:
    found, clocks = [], []
    for k, name in enumerate(sheet.header):
        texts = [unwrap(text) for text in sheet.columns[k][:50]]
        if all(date_orders([text]) for text in texts) and (k == 0 or not all(number(text, ".") is not None for text in texts)
                                   or re.search(r"(?i)date|time|stamp|epoch|day|datum|data\b|fecha", name)):
            found.append(name)
        elif all(re.fullmatch(r"\d{1,2}:\d\d(:\d\d)?", text) for text in texts):
            clocks.append(name)
    if not found:
        raise MeterFileError(
            path, "no column holds time stamps in every row: declare --time COLUMN (and --dates)", sheet.lines[0]
        )
    begins = [name for name in found if re.search(r"(?i)start|from|begin|van|utc", name)]
    best = (begins or found)[0]
    texts = [unwrap(text) for text in sheet.column(best)[:50]]
    chosen = (
        (best, clocks[0])
        if clocks and not any(split(text)[1] for text in texts) and "epoch" not in date_orders(texts)
        else (best,)
    )
    return chosen, [name for name in found if name not in chosen]


def _numeric(sheet: Sheet, name: str) -> bool:
    texts = sheet.column(name)[:500]
    values = [number(text, sign) for text in texts for sign in (".", ",")]
    pairs = list(zip(values[::2], values[1::2]))
    return all(left is not None or right is not None for left, right in pairs) and any(
        value is not None and value == value for pair in pairs for value in pair)


def read(path: Path | str, **declared: Any) -> Readings:
    """The readings of a meter file of any kind; MeterFileError lists the questions that are open."""
    proposal = inspect(path, **declared)
    if proposal.questions:
        raise MeterFileError(proposal.path, f"{len(proposal.questions)} open question{'s' * (len(proposal.questions) > 1)}: "
                                            + " / ".join(map(str, proposal.questions)))
    if proposal.kind == "green-button":
        return read_green_button(proposal.path, proposal.settings["tz"])
    if proposal.kind == "nem12":
        return read_nem12(proposal.path, proposal.settings["tz"])
    if proposal.kind == "wide-days":
        return read_days(proposal.path, proposal.layout)
    return read_layout(proposal.path, proposal.layout)

