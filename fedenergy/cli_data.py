"""`fedenergy data inspect | convert`: what a meter file holds, and its readings as one canonical file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(name="data", no_args_is_help=True, rich_markup_mode="rich",
                  help="Meter files: inspect or convert one; published sets: list, fetch, verify them.")

MeterFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A meter file: CSV of any portal, NEM12, Green Button XML; .gz and .xz too.")
]
PANEL = "Declare what the file does not say"


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=PANEL)


Unit = Annotated[str | None, _option("--unit", "kWh|Wh|kW|W", "Unit of the values.")]
Measure = Annotated[
    str | None, _option("--measure", "interval|register", "Energy per interval, or a register that counts up.")
]
Stamp = Annotated[str | None, _option("--stamp", "start|end", "Which end of its interval a time names.")]
Zone = Annotated[str | None, _option("--tz", "ZONE", "Clock of the stamps: UTC, +01:00, Europe/Brussels.")]
Dates = Annotated[str | None, _option("--dates", "ymd|dmy|mdy|epoch", "Order of year, month and day.")]
DecimalSign = Annotated[str | None, _option("--decimal", ".|,", "Decimal sign.")]
Step = Annotated[str | None, _option("--step", "MINUTES", "Length of an interval.")]
Time = Annotated[list[str], _option("--time", "COLUMN", "Column of the stamps; twice for a date and a clock column.")]
Channels = Annotated[
    list[str],
    _option("--channel", "COLUMN=import", "COLUMN=CHANNEL[:REGISTER[:UNIT]]: import, export or a name. Repeat it for more."),
]
Meter = Annotated[str | None, _option("--meter", "COLUMN", "Column that names the meter.")]
Delimiter = Annotated[str | None, _option("--delimiter", "MARK", "Delimiter: one character, or tab.")]
Kind = Annotated[str | None, _option("--kind", "KIND", "Insist on a kind; table ignores known headers.")]


@app.command()
def inspect(file: MeterFile, unit: Unit = None, measure: Measure = None, stamp: Stamp = None, tz: Zone = None,
            dates: Dates = None, decimal: DecimalSign = None, step: Step = None, time: Time = [],  # noqa: B006
            channel: Channels = [], meter: Meter = None, delimiter: Delimiter = None, kind: Kind = None) -> None:  # noqa: B006
    """Say how a meter file would be read, on what evidence, and what it does not tell.

    \b
    fedenergy data inspect readings.csv
    fedenergy data inspect readings.csv --tz Europe/Brussels
    """
    from fedenergy.households.readers.inspect import inspect as look

    found = look(file, unit=unit, measure=measure, stamp=stamp, tz=tz, dates=dates, decimal=decimal, step=step, time=time,
                 channel=channel, meter=meter, delimiter=delimiter, kind=kind)
    print(f"{file.name}: {found.kind}")
    _lines("", "kind", found)
    for name, value in found.settings.items():
        _lines("?" if value is None else value, name, found)
    print(f"{'quantity':<10} {found.energy_or_power or '?'}")
    for item in found.channels:
        print(f"{'channel':<10} {item.channel}{f', {item.register}' if item.register else ''}: {_shown(item.column)}")
    for name in (name for name in found.evidence if name not in (*found.settings, "kind")):
        _lines("", name, found)
    for question in found.questions:
        print(f"question   {_shown(question.text)}  {question.flag} {' | '.join(question.choices)}")
    if not found.questions:
        print("nothing is open: fedenergy data convert reads it so")


@app.command()
def convert(file: MeterFile,
            out: Annotated[Path, typer.Option("--out", metavar="OUT", help="The file to write: .parquet or .csv.")],
            unit: Unit = None, measure: Measure = None, stamp: Stamp = None, tz: Zone = None, dates: Dates = None,
            decimal: DecimalSign = None, step: Step = None, time: Time = [], channel: Channels = [],  # noqa: B006
            meter: Meter = None, delimiter: Delimiter = None, kind: Kind = None) -> None:
    """Write a meter file's readings as UTC intervals in kWh, and count what was wrong with it.

    \b
    fedenergy data convert readings.csv --out readings.parquet --tz Europe/Brussels
    """
    from fedenergy.households.readers.convert import convert as write

    readings = write(file, out, unit=unit, measure=measure, stamp=stamp, tz=tz, dates=dates, decimal=decimal, step=step,
                     time=time, channel=channel, meter=meter, delimiter=delimiter, kind=kind)
    frame = readings.frame
    print(f"{out}: {len(frame):,} intervals of {readings.step_minutes} minutes, {frame['start'].min():%Y-%m-%d %H:%M} to "
          f"{frame['start'].max():%Y-%m-%d %H:%M} UTC")
    for (meter_name, channel_name), part in frame.groupby(["meter", "channel"], sort=False):
        whose = f"  meter {_shown(meter_name)}" if meter_name else ""
        print(f"{_shown(channel_name):<16} {part['kwh'].sum():>12,.3f} kWh{whose}")
    for name, count in readings.totals().items():
        print(f"{name:<16} {count:>12,}")
    for note in readings.notes:
        print(f"note: {_shown(note)}")


def _lines(value: str, name: str, found: Any) -> None:
    why = [*found.evidence.get(name, ()), *(f"else: {item}" for item in found.alternatives.get(name, ()))]
    print(f"{name:<10} {_shown(value):<16} {_shown(why[0]) if why else ''}".rstrip())
    for line in why[1:]:
        print(f"{'':<10} {'':<16} {_shown(line)}")


def _shown(text: object) -> str:
    """Text of a file, without its control characters."""
    from fedenergy.errors import one_line

    return one_line(text)
