"""Exports of portals whose files the repository does not hold, written here in their publishers' forms: right, or asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedenergy.households.readers.inspect import inspect, read
from fedenergy.households.readers.readings import MeterFileError


@pytest.fixture
def write(tmp_path):
    def make(text, encoding="utf-8"):
        path = tmp_path / "meter.csv"
        path.write_bytes(text.encode(encoding))
        return path

    return make


def times(start: str, count: int, step: int, zone: str = "") -> pd.DatetimeIndex:
    """Interval beginnings; start is on the zone's clock, steps are of true time."""
    return pd.date_range(pd.Timestamp(start, tz=zone or None), periods=count, freq=f"{step}min")


def kwh(k: int) -> float:
    return round(0.11 + k * 7 % 23 / 20, 3)


def comma(value: float) -> str:
    return str(value).replace(".", ",")


def table(header: str, line, count: int, *, before: str = "", after: str = "") -> str:
    return before + header + "\n" + "".join(line(k) + "\n" for k in range(count)) + after


def days(start: str, count: int, lengths: dict[str, int] | None = None, first: int = 1, size: int = 24):
    """(day, ordinal) of every interval; lengths: day -> how many intervals it has."""
    return [
        (day, k)
        for day in pd.date_range(start, periods=count)
        for k in range(first, first + (lengths or {}).get(str(day.date()), size))
    ]


@dataclass(frozen=True)
class Export:
    """A file and what is right: declared answers its questions (flags), import sums to total kWh from the UTC time first."""

    text: str
    first: str
    count: int
    flags: tuple[str, ...] = ()
    declared: dict[str, Any] = field(default_factory=dict)
    channels: tuple[str, ...] = ("import",)
    step: int = 60
    total: float = 0.0
    encoding: str = "utf-8"
    settings: dict[str, str] = field(default_factory=dict)


def total(count: int) -> float:
    return sum(map(kwh, range(count)))


def octopus() -> Export:
    at = times("2024-03-30", 96, 30, "Europe/London")
    return Export(
        table(
            "Consumption (kwh), Estimated Cost Inc. Tax (p), Standing Charge Inc. Tax (p), Start, End",
            lambda k: f"{kwh(k)}, 3.2, 1.1, {at[k].isoformat()}, {(at[k] + pd.Timedelta('30min')).isoformat()}",
            96,
        ),
        "2024-03-30 00:00",
        96,
        step=30,
    )


def pge(generation: bool = False) -> Export:
    at = times("2024-03-09", 184, 15, "America/Los_Angeles")  # the 10th has 23 hours
    head = 'Name,JANE ROE\nAddress,"1 MAIN ST, SPRINGFIELD CA"\nAccount Number,\'1234\nService,Service 1\n\n'
    more = ",EXPORT (kWh)" if generation else ""
    return Export(
        table(
            f"TYPE,DATE,START TIME,END TIME,{'IMPORT' if generation else 'USAGE'} (kWh){more},COST,NOTES",
            lambda k: (
                f"Electric usage,{at[k]:%Y-%m-%d,%H:%M},{at[k] + pd.Timedelta('14min'):%H:%M},{kwh(k)}"
                f"{',0.10' * generation},$0.1,"
            ),
            184,
            before=head,
        ),
        "2024-03-09 08:00",
        184,
        ("--tz",),
        {"tz": "America/Los_Angeles"},
        step=15,
        channels=("export", "import") if generation else ("import",),
    )


def units_in_a_column() -> Export:
    at = times("2024-01-20", 96, 15)
    return Export(
        table(
            "TYPE,DATE,START TIME,END TIME,USAGE,UNITS,COST",
            lambda k: f"Electric usage,{at[k]:%m/%d/%Y,%I:%M %p},x,{int(kwh(k) * 1000)},Wh,$0.1",
            96,
        ),
        "2024-01-20 05:00",
        96,
        ("--tz",),
        {"tz": "America/New_York"},
        step=15,
        settings={"unit": "Wh"},
    )


def enedis() -> Export:
    at = times("2024-01-01 00:30", 96, 30, "Europe/Paris")
    head = (
        "Identifiant PRM;Type de donnees;Date de debut;Date de fin;Grandeur physique;Grandeur metier;Etape metier;Unite;"
        "Pas en minutes\n"
        "16401220101758;Courbe de charge;01/01/2024;03/01/2024;Energie active;Consommation;Comptage Brut;W;\n"
    )
    return Export(
        table("Horodate;Valeur", lambda k: f"{at[k].isoformat()};{int(kwh(k) * 2000)}", 96, before=head),
        "2023-12-31 23:00",
        96,
        ("--unit",),
        {"unit": "W"},
        step=30,
        encoding="utf-8-sig",
        settings={"stamp": "end"},
    )


def iberia(lengths: dict[str, int], start: str, count: int, head: str, order: str) -> Export:
    at = days(start, count, lengths)
    return Export(
        table(head, lambda k: f"ES0031;{at[k][0]:{order}};{at[k][1]};{comma(kwh(k))};0,02;0;R", len(at)),
        str(pd.Timestamp(start, tz="Europe/Madrid").tz_convert("UTC"))[:16],
        len(at),
        ("--tz",),
        {"tz": "Europe/Madrid"},
        channels=("export", "import"),
    )


def datadis() -> Export:
    at = days("2024-01-10", 3)
    return Export(
        table(
            "cups;fecha;hora;consumo_kWh;metodoObtencion;energiaVertida_kWh",
            lambda k: f"ES0031;{at[k][0]:%Y/%m/%d};{at[k][1]:02d}:00;{comma(kwh(k))};Real;0,02",
            72,
        ),
        "2024-01-09 23:00",
        72,
        ("--tz",),
        {"tz": "Europe/Madrid"},
        channels=("export", "import"),
        settings={"stamp": "end"},
    )


def smud() -> Export:
    """Hours 0 to 23 of the clock: the day that skips an hour has no hour 2."""
    at = [(day, k) for day, k in days("2024-03-08", 4, first=0) if (day.day, k) != (10, 2)]
    return Export(
        table(
            "Date,Hour,Usage (kWh)", lambda k: f"{at[k][0]:%m/%d/%Y},{at[k][1]},{kwh(k)}", len(at), before="Account,123456\n"
        ),
        "2024-03-08 08:00",
        95,
        ("--tz",),
        {"tz": "America/Los_Angeles"},
        settings={"dates": "mdy"},
    )


def settlement_periods() -> Export:
    at = days("2023-10-28", 3, {"2023-10-29": 50}, size=48)
    return Export(
        table(
            "Settlement Date,Settlement Period,MPAN,kWh",
            lambda k: f"{at[k][0]:%Y-%m-%d},{at[k][1]},1200012345678,{kwh(k)}",
            146,
        ),
        "2023-10-27 23:00",
        146,
        ("--tz",),
        {"tz": "Europe/London"},
        step=30,
    )


def sdge() -> Export:
    at = times("2024-01-20", 192, 15)
    return Export(
        table(
            "Meter Number,Date,Start Time,Duration,Consumption,Generation,Net",
            lambda k: f"05971234,{at[k]:%m/%d/%Y},{at[k]:%I:%M %p},15,{kwh(k)},0.02,{kwh(k) - 0.02:.3f}",
            192,
        ),
        "2024-01-20 08:00",
        192,
        ("--tz", "--unit"),
        {"tz": "America/Los_Angeles", "unit": "kWh"},
        step=15,
        channels=("generation", "import"),
    )


def sce() -> Export:
    at = times("2024-01-01", 48, 60)
    head = (
        'Energy Usage Information\n"For location: 1 MAIN ST"\n\nDetailed Usage\n"Start date: 2024-01-01 00:00:00 for 2 '
        'days"\n\n"Data for period starting: 2024-01-01 00:00:00 for 24 hours"\n'
    )
    return Export(
        table(
            "Energy consumption time period,Usage(Real energy in kilowatt-hours),Reading quality",
            lambda k: f'"{at[k]} to {at[k] + pd.Timedelta("1h")}","{kwh(k)}",""',
            48,
            before=head,
        ),
        "2024-01-01 08:00",
        48,
        ("--tz",),
        {"tz": "America/Los_Angeles"},
        settings={"stamp": "start"},
    )


def texas() -> Export:
    at = times("2024-01-20", 96, 15)
    return Export(
        table(
            "ESIID,USAGE_DATE,REVISION_DATE,USAGE_START_TIME,USAGE_END_TIME,USAGE_KWH,ESTIMATED_ACTUAL,"
            "CONSUMPTION_SURPLUSGENERATION",
            lambda k: (
                f"'1044,{at[k % 96]:%m/%d/%Y},01/25/2024 07:05:01, {at[k % 96]:%H:%M}, x,{kwh(k) if k < 96 else 0.2},A,"
                f"{'Consumption' if k < 96 else 'Surplus Generation'}"
            ),
            192,
        ),
        "2024-01-20 06:00",
        96,
        ("--tz",),
        {"tz": "America/Chicago"},
        channels=("export", "import"),
        step=15,
    )


def eloverblik() -> Export:
    at = times("2024-10-26", 49, 60, "Europe/Copenhagen")
    return Export(
        table(
            "MålepunktsID;Fra_dato;Til_dato;Mængde;Måleenhed;Kvalitet;Type",
            lambda k: f"571313175500000000;{at[k]:%d-%m-%Y %H:%M:%S};x;{comma(kwh(k))};KWH;Målt;Tidsserie",
            49,
        ),
        "2024-10-25 22:00",
        49,
        ("--tz",),
        {"tz": "Europe/Copenhagen"},
        encoding="cp1252",
        settings={"stamp": "start"},
    )


def elering() -> Export:
    at = times("2024-01-01", 72, 60)
    return Export(
        table(
            "Perioodi algus;Perioodi lõpp;Tarbimine (kWh);Tootmine (kWh)",
            lambda k: f"{at[k]:%d.%m.%Y %H:%M};{at[k] + pd.Timedelta('1h'):%d.%m.%Y %H:%M};{comma(kwh(k))};0,000",
            72,
            before="EIC kood;38ZEE-1\n\n",
        ),
        "2023-12-31 22:00",
        72,
        ("--tz",),
        {"tz": "Europe/Tallinn"},
        channels=("generation", "import"),
    )


def tauron() -> Export:
    """Import above export in one column, hours that end, 24:00."""
    at = days("2024-01-20", 3)
    return Export(
        table(
            "Data;Wartość kWh;Rodzaj",
            lambda k: (
                f"{at[k % 72][0]:%d.%m.%Y} {at[k % 72][1]}:00;{comma(kwh(k) if k < 72 else 0.3)};"
                f"{'pobór' if k < 72 else 'oddanie'}"
            ),
            144,
        ),
        "2024-01-19 23:00",
        72,
        ("--tz",),
        {"tz": "Europe/Warsaw"},
        channels=("export", "import"),
    )


def victron() -> Export:
    """Three rows of headings: device, quantity, unit; the zone stands above the stamps."""
    at = times("2024-01-01", 97, 15)
    counter = np.concatenate(([0], np.cumsum([kwh(k) for k in range(96)])))
    return Export(
        table(
            "timestamp,Grid meter [30],Grid meter [30],PV inverter [20]\n,L1 Power,Total imported,L1 Power\n"
            "Europe/Amsterdam (+01:00),W,kWh,W",
            lambda k: f"{at[k]},{(-1) ** k * 300},{1000 + counter[k]:.3f},{40 * k % 300}",
            97,
        ),
        "2023-12-31 23:00",
        96,
        step=15,
    )


def statistics() -> Export:
    """Home Assistant's sum is that of the hour's end."""
    at = times("2024-01-01", 97, 60)
    counter = np.cumsum([5.0] + [kwh(k) for k in range(96)])
    return Export(
        table(
            "statistic_id,unit_of_measurement,start,state,sum",
            lambda k: f"sensor.energy_import_tariff_1,kWh,{at[k]},{1000 + counter[k]:.3f},{counter[k]:.3f}",
            97,
        ),
        "2024-01-01 01:00",
        96,
        ("--tz",),
        {"tz": "UTC"},
    )


def sense() -> Export:
    at = times("2024-01-01", 48, 60)
    names = ("Total Usage", "Fridge", "Solar Production")
    return Export(
        table(
            "DateTime,Device ID,Name,Device Type,Avg Wattage,kWh",
            lambda k: f"{at[k // 3]},x{k % 3},{names[k % 3]},,{k},{kwh(k // 3) if k % 3 == 0 else 0.1}",
            144,
            before="### Sense export for monitor 12345\n",
        ),
        "2024-01-01 06:00",
        48,
        ("--tz",),
        {"tz": "America/Chicago"},
        channels=("generation", "import"),
    )


def jemena() -> Export:
    slots = ",".join(f"{k // 2:02d}:{k % 2 * 30:02d} - {(k + 1) // 2 % 24:02d}:{(k + 1) % 2 * 30:02d}" for k in range(48))
    return Export(
        table(
            f"NMI,METER SERIAL NUMBER,CON/GEN,DATE,ESTIMATED?,{slots}",
            lambda k: (
                f"6001,1234,{('Consumption', 'Generation')[k % 2]},{20 + k // 2}/01/2024,No,"
                + ",".join(str(kwh(k // 2 * 48 + at) if k % 2 == 0 else 0.1) for at in range(48))
            ),
            8,
        ),
        "2024-01-19 14:00",
        192,
        ("--tz", "--unit"),
        {"tz": "+10:00", "unit": "kWh"},
        step=30,
        channels=("generation", "import"),
    )


def units_under_the_header() -> Export:
    at = times("2024-01-20", 96, 15)
    return Export(
        table("Zeitstempel;Bezug;Einspeisung\n;kWh;kWh", lambda k: f"{at[k]:%d.%m.%Y %H:%M};{comma(kwh(k))};0,1", 96),
        "2024-01-19 23:00",
        96,
        ("--tz",),
        {"tz": "Europe/Zurich"},
        channels=("export", "import"),
        step=15,
        encoding="utf-16",
    )


def totals_at_the_bottom() -> Export:
    at = times("2024-01-20", 96, 15)
    return Export(
        table(
            "Datum;Zeit von;Zeit bis;Verbrauch [kWh]",
            lambda k: f"{at[k]:%d.%m.%Y;%H:%M};{at[k] + pd.Timedelta('15min'):%H:%M};{comma(kwh(k))}",
            96,
            after="\nSumme;;;54,3\nStand: heute\n",
        ),
        "2024-01-19 23:00",
        96,
        ("--tz",),
        {"tz": "Europe/Vienna"},
        step=15,
    )


def clock_ranges() -> Export:
    at = times("2024-01-20", 96, 30)
    return Export(
        table("Date,Interval,kWh", lambda k: f"{at[k]:%Y-%m-%d,%H:%M}-{at[k] + pd.Timedelta('30min'):%H:%M},{kwh(k)}", 96),
        "2024-01-20 00:00",
        96,
        ("--tz",),
        {"tz": "UTC"},
        step=30,
    )


def month_names() -> Export:
    at = times("2024-01-20", 96, 15)
    return Export(
        table("Date,Usage kWh", lambda k: f'"{at[k]:%b %d, %Y %I:%M %p}","{kwh(k)}"', 96),
        "2024-01-20 05:00",
        96,
        ("--tz",),
        {"tz": "America/New_York"},
        step=15,
    )


def emporia() -> Export:
    at = times("2024-11-02", 196, 15, "America/New_York")  # the 3rd has 25 hours
    names = ["'Main_A (kWatts)=import:a'", "'Dryer (kWatts)=dryer'"]
    return Export(
        table(
            "Time Bucket (America/New_York),Main_A (kWatts),Dryer (kWatts),EV (kWatts)",
            lambda k: f"{at[k]:%m/%d/%Y %H:%M:%S},{kwh(k) * 4:.4f},0.2,No CT",
            196,
        ),
        "2024-11-02 04:00",
        196,
        ("--channel",),
        {"channel": [name.strip("'") for name in names]},
        step=15,
        channels=("dryer", "import"),
        settings={"unit": "kW"},
    )


def fronius() -> Export:
    """Units in brackets under the headings, a format above the stamps; what goes to the grid is no import."""
    at = times("2024-01-20", 96, 15)
    return Export(
        table(
            "Date and time,Energy from Battery | Power,Energy to Grid | Power,Energy from Grid | Power\n"
            "[dd.MM.yyyy HH:mm],[Wh],[Wh],[Wh]",
            lambda k: f"{at[k]:%d.%m.%Y %H:%M},0,10,{kwh(k) * 1000:.0f}", 96),
        "2024-01-19 23:00", 96, ("--tz",), {"tz": "Europe/Vienna"}, channels=("export", "import"), step=15)


def influx() -> Export:
    """Annotated CSV: _start is the query's, the same in every row."""
    at = times("2024-01-20", 96, 15)
    return Export(
        table(
            "#group,false,false,true,true,false,false,true\n,result,table,_start,_stop,_time,_value,_field",
            lambda k: f",,0,2024-01-20T00:00:00Z,2024-01-21T00:00:00Z,{at[k]:%Y-%m-%dT%H:%M:%SZ},{kwh(k) * 4000:.1f},x", 96),
        "2024-01-20 00:00", 96, ("--unit",), {"unit": "W"}, step=15)


def caruna() -> Export:
    at = times("2024-01-20", 72, 60)
    return Export(
        table("Mittauspiste;Tuotteen tyyppi;Resoluutio;Yksikkö;Lukeman tyyppi;Alkuaika;Määrä;Laatu",
              lambda k: f"6430;8716867000030;PT1H;kWh;BN01;{at[k]:%Y-%m-%dT%H:%M:%S}Z;{comma(kwh(k))};OK", 72),
        "2024-01-20 00:00", 72, encoding="utf-8-sig")


def tibber() -> Export:
    at = times("2024-10-26", 60, 60, "Europe/Oslo")
    return Export(
        table(
            "From;To;Consumption;Consumption unit;Unit price;Total cost;Currency",
            lambda k: f"{at[k].isoformat()};{(at[k] + pd.Timedelta('1h')).isoformat()};{kwh(k)};kWh;0.9;1.2;NOK",
            60,
        ),
        "2024-10-25 22:00",
        60,
    )


def thousands() -> Export:
    at = times("2024-01-20", 96, 15)
    return Export(
        table('"Date","Usage (Wh)"', lambda k: f'"{at[k]:%m/%d/%Y %H:%M}","{int(kwh(k) * 1000):,}"', 96),
        "2024-01-20 05:00",
        96,
        ("--decimal", "--tz", "--measure"),
        {"tz": "America/New_York", "decimal": ".", "measure": "interval"},
        step=15,
    )


EXPORTS = {
    "octopus": octopus(),
    "pge": pge(),
    "pge solar": pge(True),
    "units in a column": units_in_a_column(),
    "enedis": enedis(),
    "endesa, spring": iberia(
        {"2024-03-31": 23}, "2024-03-30", 3, "CUPS;Fecha;Hora;AE_kWh;AS_KWh;AE_AUTOCONS_kWh;REAL/ESTIMADO", "%d/%m/%Y"
    ),
    "endesa, autumn": iberia(
        {"2023-10-29": 25}, "2023-10-28", 3, "CUPS;Fecha;Hora;Consumo_kWh;Vertido_kWh;Importe;Metodo", "%d/%m/%Y"
    ),
    "datadis": datadis(),
    "smud": smud(),
    "settlement periods": settlement_periods(),
    "sdge": sdge(),
    "sce": sce(),
    "texas": texas(),
    "eloverblik": eloverblik(),
    "elering": elering(),
    "tauron": tauron(),
    "victron": victron(),
    "home assistant statistics": statistics(),
    "sense": sense(),
    "jemena": jemena(),
    "unit row": units_under_the_header(),
    "totals": totals_at_the_bottom(),
    "clock ranges": clock_ranges(),
    "month names": month_names(),
    "emporia": emporia(),
    "fronius": fronius(),
    "influx": influx(),
    "caruna": caruna(),
    "tibber": tibber(),
    "thousands": thousands(),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_exports(write, name):
    export = EXPORTS[name]
    path = write(export.text, export.encoding)
    proposal = inspect(path)
    assert tuple(question.flag for question in proposal.questions) == export.flags
    assert {key: proposal.settings[key] for key in export.settings} == export.settings
    if export.flags:
        with pytest.raises(MeterFileError, match="open question"):
            read(path)
    found = read(path, **export.declared)
    used = found.series("import")
    assert (found.step_minutes, len(used), str(used.index[0])[:16]) == (export.step, export.count, export.first)
    assert tuple(sorted(found.channels)) == export.channels
    assert (np.diff(used.index.as_unit("s").asi8) == export.step * 60).all()
    expected = np.array([kwh(k) for k in range(export.count)])
    if name not in ("enedis", "units in a column", "thousands"):  # whole watts
        assert used.to_numpy() == pytest.approx(expected, abs=2e-9)
    assert used.to_numpy() == pytest.approx(expected, abs=1.01e-3)


# -- what has no one answer is asked for, or refused with the line


def lines(form, count=48, step=60, start="2024-06-01"):
    at = times(start, count, step)
    return "".join(form(k, at[k]) + "\n" for k in range(count))


def test_power_below_zero_is_asked_for(write):
    path = write("time,Grid power (W)\n" + lines(lambda k, t: f"{t},{(kwh(k) - 0.5) * 1000:.0f}"))
    (question,) = inspect(path, tz="UTC").questions
    assert "is below 0 in 18 of 48 rows" in question.text
    assert read(path, tz="UTC", channel="Grid power (W)=net::W").channels == ("net",)
    solar = write("time,Consumption (kWh),PV (kWh)\n" + lines(lambda k, t: f"{t},{kwh(k)},{-0.3 if 8 < k % 24 < 17 else 0}"))
    assert [question.flag for question in inspect(solar, tz="UTC").questions] == ["--channel"]
    few = write("time,Consumption (kWh)\n" + lines(lambda k, t: f"{t},{kwh(k) if k != 9 else -1}"))
    assert read(few, tz="UTC").totals()["negative"] == 1


def test_what_an_inverter_makes_is_generation_and_said(write):
    path = write(
        "Time,System Production (W)\n" + lines(lambda k, t: f"{t:%m/%d/%Y %H:%M},{max(0, 12 - abs(k % 24 - 12)) * 100}")
    )
    proposal = inspect(path, tz="UTC", dates="mdy")
    assert [item.channel for item in proposal.channels] == ["generation"]
    assert "declare --channel 'System Production (W)=export'" in proposal.evidence["channels"][-1]


@pytest.mark.parametrize("heading", ["Water m3", "price", "value %", "Battery kWh", "Importe (EUR)"])
def test_what_is_no_electricity_is_not_taken_for_it(write, heading):
    path = write(f"start,{heading}\n" + lines(lambda k, t: f"{t},{kwh(k)}"))
    with pytest.raises(MeterFileError, match=r"line 2: its columns of numbers hold no electric energy or power"):
        inspect(path)
    found = read(path, tz="UTC", stamp="start", measure="interval", unit="kWh", channel=f"{heading}=import")
    assert found.series().sum() == pytest.approx(total(48))


def test_a_yield_is_generation(write):
    path = write(";Total yield;Power\n;Counter;Analog\ndd/MM/yyyy HH:mm;kWh;kW\n" + lines(
        lambda k, t: f"{t:%d/%m/%Y %H:%M};{comma(round(1000 + k * 0.2, 3))};{comma(kwh(k))}"))
    found = read(path, tz="UTC", dates="dmy")
    assert found.channels == ("generation",)
    assert found.series("generation").sum() == pytest.approx(47 * 0.2)


def test_gas_is_no_electricity(write):
    path = write("TYPE,DATE,START TIME,USAGE,UNITS\n" + lines(lambda k, t: f"Gas,{t:%Y-%m-%d,%H:%M},{kwh(k)},therms"))
    with pytest.raises(MeterFileError, match=r"line 2: every reading is in 'therms' \(UNITS\)"):
        inspect(path)
    mixed = write("start,Usage,Unit\n" + lines(lambda k, t: f"{t},{kwh(k) if k % 2 else 900},{'kWh' if k % 2 else 'm3'}"))
    found = read(mixed, tz="UTC", stamp="start", measure="interval", step="60")
    assert (found.totals()["set_aside"], found.totals()["rows"]) == (24, 24)
    alike = write(
        "start,Usage,Unit\n" + lines(lambda k, t: f"{t},{kwh(k) if k % 2 else kwh(k) * 1000},{'kWh' if k % 2 else 'Wh'}")
    )
    assert read(alike, tz="UTC", stamp="start", measure="interval").series().sum() == pytest.approx(total(48))


def test_hours_that_no_clock_has_are_refused_with_the_line(write):
    at = days("2024-03-30", 3)
    path = write("Fecha;Hora;Consumo_kWh\n" + "".join(f"{day:%d/%m/%Y};{k};0,{k + 10}\n" for day, k in at))
    with pytest.raises(MeterFileError, match=r"line 28: interval 3 is in the hour that the clock Europe/Madrid skips"):
        read(path, tz="Europe/Madrid", measure="interval")
    assert len(read(path, tz="+01:00", measure="interval").frame) == 72
    twice = write(
        "Fecha;Hora;Consumo_kWh\n"
        + "".join(f"{day:%d/%m/%Y};{k};0,{k + 10}\n" for day, k in days("2024-01-30", 3, {"2024-01-31": 25}))
    )
    with pytest.raises(MeterFileError, match=r"line 50: interval 25 of a day of 24 intervals"):
        read(twice, tz="Europe/Madrid", dates="dmy", measure="interval")


def test_hours_of_the_clock_on_the_long_day(write):
    """24 numbered hours on the day of 25: hour 2 is there once, and its second is a gap."""
    at = days("2024-11-02", 3, first=0)
    path = write("Date,Hour,Usage (kWh)\n" + "".join(f"{day:%Y-%m-%d},{k},0.{k + 10}\n" for day, k in at))
    counts = read(path, tz="America/New_York", measure="interval").totals()
    assert (counts["rows"], counts["gaps"]) == (72, 1)


def test_a_second_table_is_refused_with_the_line(write):
    for second in ("start,m3\n", "Total,9\n2024-06-03 00:00:00,4\n"):
        path = write("start,kWh\n" + lines(lambda k, t: f"{t},{kwh(k)}") + second)
        with pytest.raises(MeterFileError, match=r"line 5[01]: "):
            read(path, tz="UTC")


@pytest.mark.parametrize(("rows", "why"), [
    ("45292.25,0.5\n", "line 2: .*day numbers of a spreadsheet"),
    ("2024-01-01 00:00,0.5 kWh\n", "line 2: .*the unit stands in"),
    ("12 o'clock,0.5\n", "line 2: .*declare --dates")])
def test_what_is_no_stamp_or_no_number_is_said_with_the_line(write, rows, why):
    with pytest.raises(MeterFileError, match=why):
        inspect(write("Date,Usage\n" + rows * 9))


def test_hours_may_be_declared_as_the_second_time_column(write):
    at = days("2024-03-30", 3, {"2024-03-31": 23})
    path = write("Fecha;N;Consumo_kWh\n" + "".join(f"{day:%d/%m/%Y};{k};0,{k % 7 + 10}\n" for day, k in at))
    found = read(path, tz="Europe/Madrid", measure="interval", time=["Fecha", "N"], channel="Consumo_kWh=import")
    assert (len(found.frame), found.step_minutes) == (71, 60)


def test_labels_that_mean_the_same_are_asked_for(write):
    text = lines(lambda k, t: f"{t},Usage {k % 2},{kwh(k)}", step=30)
    path = write("time,name,kWh\n" + text.replace(":30:00", ":00:00"))
    asked = inspect(path, tz="UTC", stamp="start", measure="interval").questions
    assert [question.flag for question in asked] == ["--channel"]
    found = read(path, tz="UTC", stamp="start", measure="interval", channel=["Usage 0=import:a", "Usage 1=import:b"])
    assert found.series().sum() == pytest.approx(total(48))


def test_an_offset_is_no_range(write):
    path = write("start,kWh\n" + lines(lambda k, t: f"{t:%Y-%m-%d %H:%M}-05:00,{kwh(k)}"))
    assert read(path).series().index[0] == pd.Timestamp("2024-06-01 05:00", tz="UTC")
    ranges = write("start,kWh\n" + lines(lambda k, t: f"{t:%Y-%m-%d %H:%M}-{t + pd.Timedelta('1h'):%H:%M},{kwh(k)}"))
    assert read(ranges, tz="UTC").series().index[0] == pd.Timestamp("2024-06-01", tz="UTC")


def test_labels_that_a_long_kind_does_not_know_can_be_declared(write):
    head = "MPRN,Meter Serial Number,Read Value,Read Type,Read Date and End Time\n"
    path = write(
        head
        + "".join(
            f"1,2,{1000 + k},{name} Active Import Register (kWh),{t:%d-%m-%Y} 00:00\n"
            for k, t in enumerate(times("2024-01-01", 30, 1440))
            for name in ("Day", "Night")
        )
    )
    (question,) = inspect(path).questions
    assert "'Day Active Import Register (kWh)'" in question.text
    found = read(
        path,
        channel=[f"{name} Active Import Register (kWh)=import:{name.lower()}:kWh" for name in ("Day", "Night")],
        measure="register",
        unit="kWh",
    )
    assert found.series().tolist() == [2.0] * 29
    with pytest.raises(MeterFileError, match=r"no label 'Noon' in 'Read Type' \(there are: Day"):
        read(path, channel="Noon=import")


def test_a_header_with_units_for_names_is_no_unit_row(write):
    path = write("Zähler;123\nDatum;kWh\n" + lines(lambda k, t: f"{t:%d.%m.%Y %H:%M};{comma(kwh(k))}"))
    proposal = inspect(path, dates="dmy")
    assert [item.column for item in proposal.channels] == ["kWh"]
    assert proposal.layout.time == ("Datum",)
