"""Kinds of meter file known by their headers, and what their publishers say about them."""

from __future__ import annotations

import re
from collections.abc import Callable

from fedenergy.households.readers.days import day_columns
from fedenergy.households.readers.layout import Channel, Layout
from fedenergy.households.readers.sheet import Sheet, unwrap
from fedenergy.households.readers.stamps import split

Evidence = dict[str, list[str]]
Found = tuple[Layout, Evidence]

_SKIP = re.compile(r"(?i)(?<![a-z])gas(?![a-z])|gas usage|naturgas|erdgas|aardgas|water(?!t)|wasser|m3|m³|therm|\bccf\b"
                   r"|\b[gm]j\b|temp|volt|humid"
                   r"|reactive|reactiva|r[ée]active|reattiva|kvar|kva\b|factor|frequency|hertz|intensity|irradian|w/m|ampere|peak"
                   r"|currently"
                   r"|(?<![a-z])current(?![a-z])|momentan|instant|price|preis|prijs|precio|cost|kosten|charge\b|\bimporte\b|\bimporto\b"
                   r"|betrag|[€£$%]|tarif\b|co2|index_|total_act_power|invalid|autocons|batter|self.?cons|eigenverbr|zelfverbr"
                   r"|\b(?:id|number|nummer|serial|account|contract|ean|nmi|mprn|mpan|cups|esiid|prm)\b")
_EXPORT = re.compile(
    r"(?i)return|retour|export|inject|injectie|feed|terug|tilbagel|einspeis|immess|surplus|vertid|excedent|\bAS[_ ]k?wh"
    r"|oddan|dod[áa]v|to (?:the )?grid|(?<!\w)-A\b|\bA-(?!\w)|\b2\.8\.[0-9]"
)
_GENERATION = re.compile(
    r"(?i)solar|\bpv\b|photovolt|fotovolt|generat|generad|produc|produz|produktion|tootmi|opwek|erzeug|v[ýy]rob|wytw"
    r"|yield|ertrag|opbrengst|\bE-?(?:today|total|day)\b"
)
_IMPORT = re.compile(
    r"(?i)import|offtake|afname|entnahme|pr[ée]l[èe]v|preliev|soutir|consum|consom|consumo|verbrui|verbrau|forbrug|förbruk|forbruk"
    r"|kulutus|tarbi|fogyaszt|spotřeb|odběr|pobór|zużyc|usage|bezug|deliver|energy|energia|énergie|energie|electric|elektr|[ée]lectric"
    r"|active|attiva|activa|kwh|(?<![a-z])wh(?![a-z])|power|puissance|leistung|watt|load|grid|value|volume|mængde|maengde|mengde"
    r"|määrä|\bmängd|\bmenge|quantit|cantidad|kogus|\bwert\b|waarde|valeur|valor|warto[śs][ćc]|\b1\.8\.[0-9]|curva"
    r"|(?<!\w)\+A\b|\bA\+"
)
_UNIT = re.compile(r"(?<![A-Za-z])([Mm][Ww][Hh]|[Kk][Ww][Hh]|[Ww][Hh]|[Kk][Ww]|W)(?![A-Za-z]|/m)")
_SPELT = re.compile(r"(?i)(?<![a-z])(?:(k)(?:ilo)?)?w(?:att)?s?(?:[- ]?(h)(?:(?:ou)?rs?|s)?)?(?![a-z])|(watt)age")
_REGISTER = (
    (re.compile(r"(?i)heures? pleines|\bHP[HB]?\b"), "day"),
    (re.compile(r"(?i)heures? creuses|\bHC[HB]?\b"), "night"),
    (re.compile(r"(?i)\bT1\b|\btari?ff? ?1|\bElectricity 1\b|delivered_1|returned_1|[12]\.8\.1\b|\blow tariff"), "t1"),
    (re.compile(r"(?i)\bT2\b|\btari?ff? ?2|\bElectricity 2\b|delivered_2|returned_2|[12]\.8\.2\b|normal tariff"), "t2"),
    (re.compile(r"(?i)\b(?:day|dag|jour|peak)\b"), "day"),
    (re.compile(r"(?i)\b(?:night|nacht|nuit)\b"), "night"),
    (re.compile(r"\(A\)|\bL1\b|(?i:phase ?(?:a|1))"), "a"),
    (re.compile(r"\(B\)|\bL2\b|(?i:phase ?(?:b|2))"), "b"),
    (re.compile(r"\(C\)|\bL3\b|(?i:phase ?(?:c|3))"), "c"),
)
_UNITS = {name.lower(): name for name in ("kWh", "Wh", "MWh", "kW", "W")}


def unit_of(text: str) -> str:
    """The unit that a heading names, or "".

    >>> unit_of("KWH/hh (per half hour)"), unit_of("Active energy Wh (A)"), unit_of("Volume")
    ('kWh', 'Wh', '')
    >>> unit_of("Main (kWatts)"), unit_of("Home (kWhs)"), unit_of("energy in kilowatt-hours"), unit_of("Avg Wattage")
    ('kW', 'kWh', 'kWh', 'W')
    """
    if match := _UNIT.search(text):
        return _UNITS[match[1].lower()]
    match = next((found for found in _SPELT.finditer(text) if len(found[0]) > 2), None)
    return f"{'k' * bool(match[1])}W{'h' * bool(match[2])}" if match else ""


def is_other(name: str) -> bool:
    """Whether a heading says that its column is no active electricity.

    >>> is_other("Water m3"), is_other("price"), is_other("Sensor 1")
    (True, True, False)
    """
    return _SKIP.search(name) is not None


def channel_of(name: str) -> Channel | None:
    """What a heading meters; None for what is no active electricity (gas, voltage, prices) or names nothing known.

    What is produced is "generation", which is not what was fed into the grid ("export").

    >>> channel_of("Electricity 2 Returned (Dutch Users: Normal Tariff)")
    Channel(column='Electricity 2 Returned (Dutch Users: Normal Tariff)', channel='export', register='t2', unit='')
    """
    if is_other(name):
        return None
    channel = "export" if _EXPORT.search(name) else "generation" if _GENERATION.search(name) else \
        "import" if _IMPORT.search(name) else ""
    if not channel:
        return None
    register = next((label for pattern, label in _REGISTER if pattern.search(name)), "")
    return Channel(name, channel, register, unit_of(name))


def recognise(sheet: Sheet) -> Found | None:
    """(layout with what the kind fixes, evidence) where the header is one of a known kind."""
    for kind in KINDS:
        if found := kind(sheet):
            return found
    return None


def _named(sheet: Sheet, *patterns: str) -> list[str]:
    """The first column that each pattern matches, or ""."""
    return [next((name for name in sheet.header if re.search(pattern, name, re.IGNORECASE)), "") for pattern in patterns]


def _labels(sheet: Sheet, column: str) -> list[str]:
    return list(dict.fromkeys(unwrap(text) for text in sheet.column(column)))


def _fluvius(sheet: Sheet) -> Found | None:
    date, clock, ean, register, volume, unit, status = _named(
        sheet,
        r"^(from|van|de|von) \(dat",
        r"^(from|van|de|von) \((time|tijd|heure|uhr|zeit)",
        r"\bean",
        r"^regist",
        r"^volume",
        r"^(unit|eenheid|unit[ée]|einheit)$",
        r"valid",
    )
    if not (date and clock and register and volume and unit):
        return None
    channels = tuple(found for label in _labels(sheet, register) if (found := _fluvius_label(label)))
    layout = Layout("fluvius", (date, clock), channels, stamp="start", tz="Europe/Brussels", measure="interval", meter=ean,
                    label=register, reading=volume, status=status, unit_column=unit, unit="kWh")
    return layout, {"kind": [f"columns {date!r}, {register!r}, {volume!r}: Fluvius, quarter-hour export"],
                    "stamp": [f"{date!r} is the interval's beginning"], "unit": [f"column {unit!r} names it in each row"],
                    "tz": ["Fluvius writes Belgian local time; the autumn hour is listed twice"],
                    "measure": ["volumes per interval"]}


def _fluvius_label(label: str) -> Channel | None:
    side = "export" if re.search(r"(?i)inject|einspeis", label) else \
        "import" if re.search(r"(?i)offtake|afname|pr[ée]l[èe]v|entnahme", label) else ""
    register = next((name for pattern, name in _REGISTER if pattern.search(label)), "")
    return Channel(label, side, register) if side else None


def _esb(sheet: Sheet) -> Found | None:
    mprn, value, kind, stamp = _named(sheet, r"^mprn", r"read value", r"read type", r"read date")
    if not (mprn and value and kind and stamp):
        return None
    channels = []
    for label in _labels(sheet, kind):
        if re.search(r"(?i)active (import|export) interval", label):
            side = "export" if "export" in label.lower() else "import"
            channels.append(Channel(label, side, "", unit_of(label) or "kW"))
    layout = Layout(
        "esb-hdf",
        (stamp,),
        tuple(channels),
        dates="dmy",
        stamp="end",
        tz="Europe/Dublin",
        measure="interval",
        unit=channels[0].unit if channels else "kW",
        meter=mprn,
        label=kind,
        reading=value,
        any_label=True,
        decimal=".",
    )
    return layout, {
        "kind": ["columns MPRN, Read Type, Read Date and End Time: ESB Networks' harmonised downloadable file"],
        "stamp": [f"{stamp!r} is the interval's end"],
        "unit": ["Read Type names it: kW is the mean of the interval"],
        "tz": ["ESB Networks writes Irish local time"],
        "dates": ["ESB Networks writes dd-mm-yyyy"],
        "measure": ["interval reads; registers are set aside"],
        "decimal": ["ESB Networks writes points"],
    }


def _london(sheet: Sheet) -> Found | None:
    home, stamp, value = _named(sheet, r"^lclid$", r"^(datetime|tstp|gmt)$", r"kwh")
    if not (home and stamp and value):
        return None
    layout = Layout(
        "lcl",
        (stamp,),
        (Channel(value, "import", "", "kWh"),),
        dates="ymd",
        stamp="start",
        tz="UTC",
        unit="kWh",
        measure="interval",
        decimal=".",
        step_minutes=30,
        meter=home,
    )
    return layout, {"kind": ["columns LCLid and KWH/hh: Low Carbon London"], "tz": ["GMT all year, as published"],
                    "stamp": ["as published"], "unit": [f"the heading {value!r}"], "measure": ["kWh per half hour"]}


def _uci(sheet: Sheet) -> Found | None:
    if not {"Date", "Time", "Global_active_power"} <= set(sheet.header):
        return None
    parts = [Channel("Global_active_power", "import", "", "kW")]
    parts += [Channel(name, name.lower(), "", "Wh") for name in sheet.header if re.fullmatch(r"Sub_metering_\d", name)]
    layout = Layout(
        "uci-household", ("Date", "Time"), tuple(parts), dates="dmy", stamp="start", unit="kW", measure="interval"
    )
    return layout, {"kind": ["columns Date, Time, Global_active_power: UCI Individual Household"],
                    "dates": ["the set is in d/m/y, also where a spreadsheet cut the zeros: 2/1/07 is 2 January"],
                    "unit": ["Global_active_power is kW over the minute, Sub_metering_* Wh"],
                    "stamp": ["minute averages by their beginning, as published"], "measure": ["means of a minute"]}


def _dsmr_reader(sheet: Sheet) -> Found | None:
    stamp, = _named(sheet, r"^(hour|day|minute|quarter|uur|dag) (start|begin)")
    parts = [found for name in sheet.header if name != stamp and (found := channel_of(name))]
    if not stamp or not any(re.match(r"(?i)electricity \d", part.column) for part in parts):
        return None
    layout = Layout("dsmr-reader", (stamp,), tuple(part for part in parts if part.register), stamp="start", unit="kWh",
                    measure="interval")
    return layout, {"kind": [f"columns {stamp!r} and Electricity 1, 2: DSMR-reader's summary export"],
                    "stamp": [f"the heading {stamp!r}"], "unit": ["DSMR meters count kWh"],
                    "measure": ["summaries hold the energy of each interval"]}


def _home_assistant(sheet: Sheet) -> Found | None:
    if {"statistic_id", "sum"} <= set(sheet.header):
        return _home_statistics(sheet)
    if not {"entity_id", "state", "last_changed"} <= set(sheet.header):
        return None
    parts = []
    for label in _labels(sheet, "entity_id"):
        if found := channel_of(label.replace("_", " ")):
            parts.append(Channel(label, found.channel, label.removeprefix("sensor."), found.unit))
    layout = Layout(
        "home-assistant",
        ("last_changed",),
        tuple(parts),
        measure="register",
        label="entity_id",
        reading="state",
        any_label=True,
    )
    return layout, {
        "kind": ["columns entity_id, state, last_changed: Home Assistant's history"],
        "measure": ["an energy sensor's state is a register (total_increasing); declare --measure interval otherwise"],
    }


def _home_statistics(sheet: Sheet) -> Found | None:
    stamp = next((name for name in ("start", "start_ts", "start_time") if name in sheet.header), "")
    parts = []
    for label in _labels(sheet, "statistic_id"):
        if found := channel_of(label.replace("_", " ")):
            parts.append(Channel(label, found.channel, label.removeprefix("sensor."), found.unit))
    if not stamp:
        return None
    units = _labels(sheet, "unit_of_measurement") if "unit_of_measurement" in sheet.header else []
    layout = Layout("home-assistant", (stamp,), tuple(parts), measure="register", label="statistic_id", reading="sum",
                    any_label=True, late=True, unit=unit_of(units[0]) or None if len(units) == 1 else None,
                    unit_column="unit_of_measurement" if len(units) > 1 else "")
    return layout, {
        "kind": [f"columns statistic_id, {stamp}, sum: Home Assistant's long-term statistics"],
        "measure": ["sum counts up; a row holds it as it was at the end of the hour that its stamp begins"],
        "tz": ["Home Assistant stores UTC; an export may not: declare what it is"],
    } | ({"unit": ["column 'unit_of_measurement'"]} if units else {})


def _metern(sheet: Sheet) -> Found | None:
    if sheet.named or len(sheet.header) != 2 or not all(re.fullmatch(r"(19|20)\d{6}", text) for text in sheet.columns[0]):
        return None
    layout = Layout("metern", ("column 1",), (Channel("column 2", "import"),), dates="ymd", stamp="start", step_minutes=1440)
    return layout, {"kind": ["two columns without a header, yyyymmdd and a whole number: meterN's days"],
                    "stamp": ["a row is a day"]}


def _days(sheet: Sheet) -> Found | None:
    names = day_columns(sheet.header)
    if not names:
        return None
    others = [name for name in sheet.header if name not in names]
    date = next((name for name in others if split(unwrap(sheet.column(name)[0]))[0] and _dates(sheet, name)), "")
    if not date:
        return None
    meter, label = (
        next((name for name in others if re.search(pattern, name, re.IGNORECASE)), "")
        for pattern in (
            r"^pod|meter|matricola|ean|nmi|mprn|cups|contatore",
            r"^(tipo|type|magnitude|register|misura|channel|grandezza)",
        )
    )
    if not label:  # several rows of one day, told apart by what they meter
        days = sheet.column(date)
        label = next((name for name in others if name not in (date, meter) and 2 <= len(words := _labels(sheet, name)) <= 12
                      and all(map(channel_of, words)) and len(set(zip(days, sheet.column(name)))) > len(set(days))), "")
    parts = (
        tuple(found for text in _labels(sheet, label) if (found := channel_of(text)))
        if label
        else (Channel(date, "import"),)
    )
    if label and not parts:
        label, parts = "", (Channel(date, "import"),)
    unit = next((found for text in (*sheet.preamble, *others, *names[:1]) if (found := unit_of(text))), None)
    evidence = {"kind": [f"one row a day and {len(names)} interval columns, {names[0]!r} to {names[-1]!r}"],
                "stamp": [f"{names[0]!r} is the first interval of the day"], "measure": ["intervals of a day"]}
    if unit:
        evidence["unit"] = ["named in the headings"]
    return Layout(
        "wide-days", (date,), parts, stamp="start", unit=unit, measure="interval", meter=meter, label=label
    ), evidence


def _dates(sheet: Sheet, name: str) -> bool:
    from fedenergy.households.readers.stamps import date_orders

    return bool(date_orders([unwrap(text) for text in sheet.column(name)[:50]]))


KINDS: tuple[Callable[[Sheet], Found | None], ...] = (
    _fluvius,
    _esb,
    _london,
    _uci,
    _dsmr_reader,
    _home_assistant,
    _days,
    _metern,
)
