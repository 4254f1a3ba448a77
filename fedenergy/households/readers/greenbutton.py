"""Green Button, ESPI XML: each IntervalBlock under its own ReadingType. DTDs and entities are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np

from fedenergy.households.readers.readings import MeterFileError, Readings, Stream, assemble
from fedenergy.households.readers.registers import differences
from fedenergy.households.readers.sheet import OPEN

MAX_BYTES, MAX_DEPTH = 1 << 27, 40
WATT_HOURS = "72"
FLOWS = {"1": "import", "19": "export"}  # delivered to the customer; received from the customer
ELECTRICITY = ("", "0", "1", "2")
CUMULATIVE = ("1", "3")
QUALITY = {"7": "substituted", "8": "estimated", "9": "estimated", "10": "questionable", "12": "estimated"}


@dataclass
class _Entry:
    own: str = ""
    up: str = ""
    related: tuple[str, ...] = ()
    content: list[ElementTree.Element] = field(default_factory=list)


def read_green_button(path: Path, tz: str = "UTC") -> Readings:
    """Consumption (flowDirection 1) and export (19) in watt-hours (uom 72) of every UsagePoint; kWh by UTC start.

    Each block is matched with its ReadingType by the feed's links. Net flows, demand, other commodities and
    quantities are set aside and noted. The scale is the ReadingType's powerOfTenMultiplier; one inside an
    IntervalReading is not ESPI and is counted where it differs (multiplier_conflict). tz only names the clock of
    daily readings (a day is then a day of that clock). MeterFileError names the line for what is no XML.
    """
    entries = [_entry(item) for item in _parse(path).iter("entry")]
    types = {entry.own: item for entry in entries for item in entry.content if item.tag == "ReadingType"}
    meters = {entry.own: entry for entry in entries for item in entry.content if item.tag == "MeterReading"}
    notes, counts, told = [], {"set_aside": 0, "multiplier_conflict": 0}, set()
    readings: dict[tuple[str, str, str], list[tuple]] = {}
    for entry in entries:
        for block in (item for item in entry.content if item.tag == "IntervalBlock"):
            own = _meter_reading(entry, meters)
            kind_of, kind = _reading_type(path, own, meters, types)
            why, channel = _why_not(kind, types)
            size = len(block.findall("IntervalReading"))
            if why:
                counts["set_aside"] += size
                if (kind_of, why) not in told:
                    notes.append(
                        f"ReadingType {kind_of.rsplit('/', 1)[-1] or '?'}: {why}; its {size} readings are set aside"
                    )
                told.add((kind_of, why))
                continue
            scale = _whole(path, kind, "powerOfTenMultiplier", 0)
            meter = re.sub(r".*/UsagePoint/([^/]+).*", r"\1", own or entry.own) or ""
            register = kind_of.rsplit("/", 1)[-1]
            rows = readings.setdefault((meter, channel, register), [])
            for item in block.findall("IntervalReading"):
                rows.append((*_reading(path, item, kind, scale, counts),
                             _text(kind, "accumulationBehaviour") in CUMULATIVE))
    if not readings:
        raise MeterFileError(path, "no electricity consumption (flowDirection 1, uom 72)"
                                   + (f": {'; '.join(notes[:4])}" if notes else " and no IntervalBlock"))
    if counts["multiplier_conflict"]:
        notes.append(f"{counts['multiplier_conflict']} IntervalReadings carry a powerOfTenMultiplier unlike their "
                     "ReadingType's: the ReadingType's is used, as ESPI says")
    return _assemble(path, readings, tz, counts, notes)


def _assemble(path: Path, readings: dict, tz: str, counts: dict, notes: list) -> Readings:
    streams, steps = [], []
    registers = {channel: {key[2] for key in readings if key[1] == channel} for _, channel, _ in readings}
    for (meter, channel, register), rows in readings.items():
        when, kwh = np.array([row[0] for row in rows], np.int64), np.array([row[2] for row in rows], np.float64)
        flags = np.array([row[3] for row in rows], object)
        name = register if len(registers[channel]) > 1 else ""
        stream = Stream(meter, channel, name, when, kwh, flags)
        if rows[0][4]:
            stream = differences(path, stream)
        else:
            steps += [row[1] for row in rows]
        streams.append(stream)
    lengths, times = np.unique(np.array(steps or [0]), return_counts=True)
    step = int(lengths[times.argmax()]) // 60
    if 1380 <= step <= 1500:
        step = 1440
    odd = (
        sum(times[k] for k in range(len(times)) if abs(lengths[k] - step * 60) > (3_600 if step == 1440 else 0))
        if step
        else 0
    )
    if odd:
        raise MeterFileError(
            path,
            f"{odd} readings last another time than the common {step} minutes: two resolutions of one "
            "quantity in a feed would be counted twice; export one of them",
        )
    if step == 1440 and tz == "UTC":
        phase = int(streams[0].when[0]) % 86_400
        notes.append(f"daily readings begin at {phase // 3600:02d}:{phase % 3600 // 60:02d} UTC")
    return assemble(path, streams, tz, step or None, counts, notes)


def _parse(path: Path) -> ElementTree.Element:
    builder, depth = ElementTree.TreeBuilder(), 0
    parser = expat.ParserCreate(namespace_separator=" ")

    def refuse(*_: object) -> None:
        raise MeterFileError(path, "declares a DTD or an entity: refused, a meter feed needs none", parser.CurrentLineNumber)

    def begin(name: str, attributes: dict) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise MeterFileError(path, f"nested more than {MAX_DEPTH} deep", parser.CurrentLineNumber)
        builder.start(name.rsplit(" ", 1)[-1], {key.rsplit(" ", 1)[-1]: value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name.rsplit(" ", 1)[-1])

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = parser.ExternalEntityRefHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = begin, end, builder.data
    try:
        with OPEN.get(path.suffix, open)(path, "rb") as file:
            size = 0
            while chunk := file.read(1 << 16):
                size += len(chunk)
                if size > MAX_BYTES:
                    raise MeterFileError(path, f"larger than {MAX_BYTES:,} bytes: split it", parser.CurrentLineNumber)
                parser.Parse(chunk)
            parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, MeterFileError):
            raise
        raise MeterFileError(
            path, f"not well-formed XML ({error})", getattr(error, "lineno", parser.CurrentLineNumber)
        ) from None
    except (OSError, EOFError) as error:
        raise MeterFileError(path, f"cannot be read: {error}") from None
    return builder.close()


def _entry(item: ElementTree.Element) -> _Entry:
    found = _Entry()
    for link in item.findall("link"):
        where, relation = link.get("href", "").rstrip("/"), link.get("rel", "")
        if relation == "self":
            found.own = where
        elif relation == "up":
            found.up = where
        elif relation == "related":
            found.related += (where,)
    found.content = [child for content in item.findall("content") for child in content]
    return found


def _meter_reading(entry: _Entry, meters: dict[str, _Entry]) -> str:
    """The MeterReading that a block belongs to: the longest one whose address begins the block's own or upper one."""
    for where in (entry.up, entry.own, *entry.related):
        while where:
            if where in meters:
                return where
            where = where.rpartition("/")[0]
    return ""


def _reading_type(path: Path, own: str, meters: dict[str, _Entry], types: dict) -> tuple[str, ElementTree.Element]:
    if own:
        for where in meters[own].related:
            if where in types:
                return where, types[where]
    if len(types) == 1:
        return next(iter(types.items()))
    raise MeterFileError(
        path,
        f"an IntervalBlock (of {own or 'no MeterReading'}) has no link to a ReadingType, and the feed has "
        f"{len(types)}: what it meters is not known",
    )


def _why_not(kind: ElementTree.Element, types: dict) -> tuple[str, str]:
    """(why a reading type is not consumption or export, "") or ("", channel)."""
    uom, flow = _text(kind, "uom"), _text(kind, "flowDirection")
    if uom != WATT_HOURS:
        return f"uom {uom or 'not given'} is not watt-hours (72)", ""
    if _text(kind, "commodity") not in ELECTRICITY:
        return f"commodity {_text(kind, 'commodity')} is not electricity", ""
    if not flow and len(types) == 1:
        return "", "import"
    if flow not in FLOWS:
        return f"flowDirection {flow or 'not given'} is neither 1 (consumption) nor 19 (export)", ""
    return "", FLOWS[flow]


def _reading(path: Path, item: ElementTree.Element, kind: ElementTree.Element, scale: int, counts: dict) -> tuple:
    period = item.find("timePeriod")
    begin = None if period is None else _whole(path, period, "start", None)
    if begin is None or not 631_152_000 <= begin <= 4_133_980_800:
        raise MeterFileError(path, f"an IntervalReading starts at {begin}: seconds since 1970 in 1990 to 2100 are needed")
    length = _whole(path, period, "duration", None) or _whole(path, kind, "intervalLength", 0)
    if not length or length % 60 or not 0 < length <= 1_382_400:
        raise MeterFileError(path, f"an IntervalReading at {begin} lasts {length} s: whole minutes up to 16 days are read")
    own = _whole(path, item, "powerOfTenMultiplier", scale)
    counts["multiplier_conflict"] += own != scale
    value = _whole(path, item, "value", None)
    flags = {QUALITY[code] for element in item.findall("ReadingQuality")
             if (code := (element.findtext("quality") or "").strip()) in QUALITY}
    return begin, length, float("nan") if value is None else value * 10.0 ** (scale - 3), "|".join(sorted(flags))


def _text(item: ElementTree.Element, name: str) -> str:
    return (item.findtext(name) or "").strip()


def _whole(path: Path, item: ElementTree.Element, name: str, default: int | None) -> int | None:
    text = _text(item, name)
    if not text:
        return default
    if not re.fullmatch(r"[+-]?\d{1,15}", text) or (name == "powerOfTenMultiplier" and not -12 <= int(text) <= 9):
        raise MeterFileError(path, f"{item.tag}: {name} = {text[:30]!r} is no whole number of its range")
    return int(text)
