"""What a meter file seems to hold, with the evidence; what it does not tell becomes a question, never a guess."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.households.readers.columns import declared_channel, generic
from fedenergy.households.readers.days import day_columns, read_days
from fedenergy.households.readers.evidence import Question, fill
from fedenergy.households.readers.greenbutton import read_green_button
from fedenergy.households.readers.kinds import recognise
from fedenergy.households.readers.layout import POWER, Channel, Layout, check_layout, read_layout, stamp_row, stamps
from fedenergy.households.readers.nem12 import read_nem12
from fedenergy.households.readers.readings import MeterFileError, Readings
from fedenergy.households.readers.sheet import Sheet, encoding_of, head, read_sheet

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
    known = _known(sheet, declared)
    if declared.get("kind") not in (None, "table", known[0].kind if known else None):
        raise MeterFileError(path, f"--kind {declared['kind']}: it is no such file; it looks like "
                                   f"{known[0].kind if known else 'a table'}")
    if known and known[0].label and not sheet.complete:  # a label may come first near the end
        sheet = read_sheet(path, stamp_row, delimiter)
        known = _known(sheet, declared)
    if known:
        layout = known[0]
        evidence |= known[1]
        if "channel" in declared:
            layout = _relabelled(path, sheet, layout, declared["channel"], evidence)
    else:
        layout = generic(path, sheet, declared, evidence, alternatives)
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


def _known(sheet: Sheet, declared: Mapping[str, Any]) -> Any:
    """The kind that the headers tell, unless columns are declared; the labels of a long kind are no columns."""
    if "time" in declared or declared.get("kind", "") == "table":
        return None
    known = recognise(sheet)
    if known and "channel" in declared and (
            not known[0].label or any(text.rpartition("=")[0] in sheet.header for text in _texts(declared["channel"]))):
        return None
    return known


def _texts(channel: Any) -> list[str]:
    return [channel] if isinstance(channel, str) else [str(text) for text in channel]


def _relabelled(path: Path, sheet: Sheet, layout: Layout, channel: Any, evidence: dict) -> Layout:
    """A long kind with declared labels in place of, or beside, those that it knows."""
    labels = sheet.column(layout.label)
    found = {item.column: item for item in layout.channels}
    found |= {item.column: item for text in _texts(channel) for item in [declared_channel(path, labels, text, layout.label)]}
    evidence["channels"] = ["declared"]
    return replace(layout, channels=tuple(found.values()))


def _whole(path: Path, value: Any) -> int:
    if not re.fullmatch(r"\d{1,5}", str(value)):
        raise MeterFileError(path, f"--step {value!r} is no whole number of minutes")
    return int(value)


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

