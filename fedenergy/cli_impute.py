"""`fedenergy impute FILE`: fill the gaps of a meter file. `fedenergy imputer`: make and show the models that do it."""

from __future__ import annotations

import math
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedenergy.cli_data import (
    Channels,
    Dates,
    DecimalSign,
    Delimiter,
    Kind,
    Measure,
    Meter,
    MeterFile,
    Stamp,
    Step,
    Time,
    Unit,
    Zone,
)
from fedenergy.errors import ConfigError, one_line
from fedenergy.progress import open_progress

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(name="imputer", no_args_is_help=True, rich_markup_mode="rich",
                  help="The models behind fedenergy impute: make one, show what is known of one.")

READS = ("The gaps are filled from the file's own readings around them: training with privacy protects the homes that the "
         "model was fitted to, not this file.")
SEED_SIMULATED = 11
MOST_STEPS = 20_000_000
DOUBTS = ("conflicts", "implausible", "negative", "unit_jumps", "questionable")     # counts of the reader that are told
FORMULA = ("=", "+", "-", "@", "\t", "\r")

ModelName = Annotated[str, typer.Option("--model", metavar="RUN|MODEL|simulated", help=(
    "Folder of a saved imputer, or of a run that holds one; simulated: the packaged one, fitted to simulated homes."))]


def impute(file: MeterFile, model: ModelName = "simulated",
           out: Annotated[Path | None, typer.Option("--out", metavar="OUT.csv", help=(
               "The file to write (default: FILE with .filled.csv)."))] = None,
           column: Annotated[str | None, typer.Option("--column", metavar="COLUMN", help=(
               "Column of the consumption, as in --channel COLUMN=import."))] = None,
           samples: Annotated[int, typer.Option("--samples", min=2, max=1000, metavar="N", help=(
               "Draws of a net per gap, whose mean or median is written; a dp_gp needs none."))] = 30,
           level: Annotated[float, typer.Option("--level", metavar="P", help=(
               "Probability between the two quantiles that are written."))] = 0.9,
           point: Annotated[str, typer.Option("--point", metavar="mean|median", help=(
               "What is written for a missing value: mean for sums, median for single steps."))] = "mean",
           seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the draws.")] = 0,
           unit: Unit = None, measure: Measure = None, stamp: Stamp = None, tz: Zone = None, dates: Dates = None,
           decimal: DecimalSign = None, step: Step = None, time: Time = [], channel: Channels = [],  # noqa: B006
           meter: Meter = None, delimiter: Delimiter = None, kind: Kind = None) -> None:
    """Fill the gaps of a meter file's consumption; write every interval with its value, flag and bounds.

    A gap is an interval without a value, or without a row. The model reads the file's own values around a gap: privacy
    in training protects the homes that the model was fitted to, not this file.

    \b
    fedenergy impute readings.csv --tz Europe/Brussels --stamp start
    fedenergy impute readings.csv --column kwh --time when --tz UTC --stamp start --samples 100
    fedenergy impute readings.xml --model runs/my-imputer --out filled.csv
    """
    from fedenergy.households.readers.inspect import inspect, read
    from fedenergy.imputation.dp_gp import POINTS
    from fedenergy.imputation.packaged import open_model

    target = file.with_name(f"{file.stem}.filled.csv") if out is None else out
    _check_out(file, target)
    if point not in POINTS or not 0 < level < 1:
        raise ConfigError(f"--point {point} --level {level:g}: a point is {' or '.join(POINTS)}, a level between 0 and 1")
    declared = dict(unit=unit, measure=measure, stamp=stamp, tz=tz, dates=dates, decimal=decimal, step=step, time=time,
                    channel=channel, meter=meter, delimiter=delimiter, kind=kind)
    if column is not None:
        declared |= {"channel": [*channel, f"{column}=import"], "unit": unit or _unit_in(column)}
    readings = read(file, **declared)
    zone = inspect(file, **declared).settings.get("tz") or "UTC"
    if "import" not in readings.channels:
        raise ConfigError(f"{file.name}: no consumption among its channels ({', '.join(map(one_line, readings.channels))}): "
                          "name its column with --column")
    imputer = open_model(model, readings.step_minutes)
    frames, blind = [], 0
    with closing(open_progress()) as progress:
        for name in readings.meters:
            series = readings.series("import", name)
            frame, unseen = _filled(file, series, readings.step_minutes, zone, imputer, samples=samples, seed=seed,
                                    level=level, point=point, progress=progress)
            frames.append(frame.assign(meter=name) if len(readings.meters) > 1 else frame)
            blind += unseen
    _write(frames, target)
    _say(target, frames, readings.step_minutes, model, imputer, blind, level, point)
    if counted := {name: count for name, count in readings.totals().items() if name in DOUBTS}:
        print("note: the reader counted " + ", ".join(f"{count:,} {name}" for name, count in counted.items())
              + f"; they stand as it read them: fedenergy data inspect {file.name} says more")


def _check_out(file: Path, target: Path) -> None:
    if target.suffix != ".csv":
        raise ConfigError(f"--out {target.name} does not end in .csv")
    if target.exists() and file.exists() and target.samefile(file):
        raise ConfigError("--out is the meter file itself: name another")
    if not target.parent.is_dir():
        raise ConfigError(f"--out: the folder {target.parent} does not exist")


def _unit_in(column: str) -> str | None:
    from fedenergy.households.readers.kinds import unit_of

    return unit_of(column)


def _filled(file: Path, series: pd.Series, step: int, zone: str, imputer: Any, *, level: float,
            **options: Any) -> tuple[pd.DataFrame, int]:
    """One meter's series on its whole grid: (start, kwh, filled, two quantiles), and how many steps were filled blindly."""
    import numpy as np
    import pandas as pd

    from fedenergy.households.household import MINUTES_PER_DAY
    from fedenergy.households.readers.stamps import wall_seconds
    from fedenergy.imputation.filling import fill_series

    seconds = series.index.tz_localize(None).to_numpy().astype("M8[s]").astype(np.int64)
    count = (int(seconds[-1]) - int(seconds[0])) // (step * 60) + 1
    if count > MOST_STEPS:
        raise ConfigError(f"{file.name}: {count:,} intervals from its first to its last reading: is a date wrong?")
    grid = seconds[0] + np.arange(count) * step * 60
    values = np.full(count, np.nan)
    place = (seconds - seconds[0]) // (step * 60)
    if not np.isfinite(series.to_numpy()).any():
        raise ConfigError(f"{file.name}: the consumption has no value at all: nothing can be filled from it")
    values[place] = series.to_numpy()
    clock = wall_seconds(grid, zone) // (step * 60) % (MINUTES_PER_DAY // step)
    found = fill_series(imputer, values, clock, level=level, **options)
    low, high = _quantiles(level)
    return pd.DataFrame({"start": pd.to_datetime(grid, unit="s", utc=True), "kwh": found.values,
                         "filled": found.filled.astype(int), low: found.low, high: found.high}), found.blind


def _quantiles(level: float) -> tuple[str, str]:
    """Names of the two columns.

    >>> _quantiles(0.9)
    ('q5', 'q95')
    """
    return f"q{50 * (1 - level):.4g}", f"q{50 * (1 + level):.4g}"


def _write(frames: list[pd.DataFrame], target: Path) -> None:
    import pandas as pd

    frame = pd.concat(frames, ignore_index=True)
    if "meter" in frame:
        frame["meter"] = frame["meter"].map(lambda text: f"'{text}" if text[:1] in FORMULA else text)
    frame["start"] = frame["start"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        frame.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
        os.replace(part, target)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _say(target: Path, frames: list[pd.DataFrame], step: int, name: str, imputer: Any, blind: int, level: float,
         point: str) -> None:
    from fedenergy.imputation.filling import limit_of, says_interval

    filled, count = sum(int(f["filled"].sum()) for f in frames), sum(map(len, frames))
    added = sum(float(f["kwh"][f["filled"] == 1].sum()) for f in frames)
    low, high = _quantiles(level)
    print(f"{target}: {count:,} intervals of {step} minutes, {filled:,} of them filled ({added:,.3f} kWh)")
    if not filled:
        print("nothing was missing")
        return
    print(f"kwh        the {point} where filled = 1, the reading elsewhere")
    print(f"{low}, {high}".ljust(10) + f" {low[1:]} % and {high[1:]} % quantiles of {says_interval(imputer)}")
    most = limit_of(imputer)
    if above := sum(int((f["kwh"][f["filled"] == 0] > most).sum()) for f in frames):
        print(f"note: {above:,} readings are above {most:g} kWh, the model's limit for {step} minutes: it reads them as "
              "that much and fills in no more")
    if blind:
        print(f"note: {blind:,} intervals lie in gaps longer than the model looks: a typical day is all they show")
    print(f"model      {name}: {_made(name, imputer)}")
    print(f"note: {READS}")


def _made(name: str, imputer: Any) -> str:
    if name == "simulated":
        return "fitted to simulated homes only, which costs no privacy"
    from fedenergy.imputation.packaged import card_of

    return one_line(card_of(name).get("privacy") or imputer.privacy)


@app.command()
def train(out: Annotated[Path, typer.Option("--out", metavar="DIR", help=(
              "Folder of the model; a stopped training goes on."))],
          on: Annotated[str, typer.Option("--on", metavar="simulated|london", help=(
              "Whose windows: simulated homes, or the first 70 % of each London home's (needs --data)."))] = "simulated",
          step: Annotated[int, typer.Option("--step", min=5, max=60, metavar="MINUTES", help="Length of a step.")] = 30,
          homes: Annotated[int, typer.Option("--homes", min=2, metavar="N", help="Simulated homes.")] = 200,
          days: Annotated[int, typer.Option("--days", min=7, metavar="N", help="Days of each simulated home.")] = 364,
          epsilon: Annotated[float, typer.Option("--epsilon", metavar="E", help=(
              "Privacy budget of the training; inf: none (simulated homes need none)."))] = math.inf,
          delta: Annotated[float, typer.Option("--delta", metavar="D", help="Delta of --epsilon.")] = 1e-5,
          per: Annotated[str, typer.Option("--per", metavar="window|household", help=(
              "What --epsilon protects."))] = "household",
          net: Annotated[int, typer.Option("--net", min=0, metavar="STEPS", help=(
              "Train a small diffusion model on top, that many steps (simulated homes only)."))] = 0,
          seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help=(
              "Seed of homes and training."))] = SEED_SIMULATED,
          data: Annotated[Path | None, typer.Option("--data", metavar="DIR", envvar="FEDENERGY_DATA", help=(
              "Folder of the real data sets; London's homes then score a model of simulated ones too."))] = None) -> None:
    """Fit an imputer, score it on homes that it has not seen, and save it for --model.

    \b
    fedenergy imputer train --out my-imputer
    fedenergy imputer train --out my-imputer --step 10 --homes 100
    fedenergy imputer train --out my-london --on london --data DIR --epsilon 2 --per window
    """
    from fedenergy.imputation import making

    if 1440 % step:
        raise ConfigError(f"--step {step} does not divide a day of 1,440 minutes")
    try:
        with closing(open_progress()) as progress:
            made = making.make(out, on=on, step_minutes=step, homes=homes, days=days, epsilon=epsilon, delta=delta, unit=per,
                               net_steps=net, seed=seed, data=None if data is None else str(data), progress=progress)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(error) from error
    except KeyboardInterrupt:
        print(f"\nInterrupted; the same command goes on with what is in {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    _show_card(made)
    print(f"\nSaved: {out}   (fedenergy impute FILE --model {out})")


@app.command()
def show(model: Annotated[str, typer.Argument(metavar="[MODEL]", help="A folder, or simulated.")] = "simulated") -> None:
    """Say how a model was made, what it cost, and how well it fills.

    \b
    fedenergy imputer show
    fedenergy imputer show my-imputer
    """
    from fedenergy.imputation.packaged import FILE, PRETRAINED, SIMULATED, load_gp, steps_packaged

    packaged = [PRETRAINED / f"{SIMULATED}-{minutes}" for minutes in steps_packaged()]
    folders = packaged if model == SIMULATED else [Path(model)]
    for number, folder in enumerate(folders):
        print(end="\n" if number else "")
        place = folder if (folder / FILE).exists() else folder / "model"
        _show_card(load_gp(place)[1])


def _show_card(card: Any) -> None:
    for name in ("made by", "trained on", "privacy", "size"):
        if name in card:
            print(f"{name:<12} {one_line(card[name])}")
    for where, patterns in card.get("scores", {}).items():
        methods = list(next(iter(patterns.values())))
        print(f"\n{'MSE, ' + one_line(where):<28}" + "".join(f"{name:>18}" for name in methods))
        for pattern, row in patterns.items():
            print(f"{one_line(pattern):<28}" + "".join(f"{row[name]['mse']:>18.4g}" for name in methods))
