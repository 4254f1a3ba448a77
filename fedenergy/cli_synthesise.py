"""`fedenergy synthesise`: any number of artificial homes from a config, into one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedenergy.errors import ConfigError, call, did_you_mean, one_line, parameters, read_toml

if TYPE_CHECKING:
    from fedenergy.synthesis.stream import Plan

TABLES = ("population", "synthesis", "ledger")
PLAIN = ("name", "title", "data")       # besides the tables; where the config is a study's, its own arguments too
ELSEWHERE = {"agreement": "[synthesis.agreement]", "privacy": "noise in [synthesis.private]", "seed": "--seed N"}


def synthesise(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config with [population] and [synthesis], such as "
                                                                  "configs/synthesis_source.toml.")],
    homes: Annotated[int, typer.Option("--homes", metavar="N", min=1, help="How many artificial homes.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write: .csv or .parquet.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Another seed, other homes.")] = 0,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=0,
                                         help="Worker processes; 0 works in this one. The file does not depend on it.")] = 0,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT",
                                      help="long-csv, wide-csv, long-parquet or wide-parquet; else long, by the file's "
                                           "name.")] = "",
    address: Annotated[str, typer.Option("--address", metavar="ADDR",
                                         help="A Ray cluster to join: auto or ray://host:port.")] = "",
    data: Annotated[str, typer.Option("--data", metavar="DIR", envvar="FEDENERGY_DATA",
                                      help="Folder of the real data sets.")] = "",
) -> None:
    """Write artificial homes to one CSV or Parquet file, and what they are to FILE.about.json.

    Memory stays flat for any number of homes. A run that is stopped goes on when the same command is given again.

    \b
    fedenergy synthesise configs/synthesis_source.toml --homes 10000 --out homes.parquet
    fedenergy synthesise configs/synthesis_london.toml --homes 500 --out homes.csv --data DIR
    """
    from fedenergy.progress import open_progress

    population, plan, ledger = read_config(config, data)
    from fedenergy.federation.streaming import check_file, stream_homes

    try:
        check_file(out, form)
    except ValueError as error:
        raise ConfigError(f"--out, --format: {error}") from error
    try:
        with closing(open_progress()) as progress:
            done = stream_homes(population, plan, homes, out, seed=seed, workers=workers, form=form, address=address,
                                progress=progress, ledger=ledger)
    except ValueError as error:
        raise ConfigError(f"{config}: {error}") from error
    except KeyboardInterrupt:
        typer.echo("\nInterrupted; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    facts = done.facts
    print(f"{done.path}: {done.homes:,} artificial homes from {done.behind:,} homes, {facts['unit_of_values']}")
    print(f"guarantee  {facts['guarantee']}")
    if facts["draws_per_home"] > 1:
        print(f"note       each home is drawn up to {facts['draws_per_home']:,} times: what is kept of it (its seasonal "
              "part) "
              "repeats as often")
    if facts["readings_filled"]:
        print(f"note       {facts['readings_filled']:,} missing readings were estimated from the nearest days")
    if facts["homes_excluded"]:
        name, reason = next(iter(facts["excluded"].items()))
        print(f"note       {facts['homes_excluded']:,} homes left out; the first: {one_line(name)}: {one_line(reason)}")


def read_config(path: Path, data: str = "") -> tuple[Any, Plan, Path | None]:
    """(population, plan, folder of the ledger or None) of a config; ConfigError for a mistake in it."""
    from fedenergy.config_tables import Spec
    from fedenergy.synthesis.stream import Plan

    tables = read_toml(path)
    _check_keys(path, tables)
    spec = tables.get("population")
    if not isinstance(spec, dict) or "use" not in spec:
        raise ConfigError(f'{path} lacks [population] with use = "module:Name": say whose records to start from')
    if folder := data or str(tables.get("data", "")):
        if not Path(folder).is_dir():
            raise ConfigError(f'data = "{folder}" is no folder: give that of the data sets (--data, $FEDENERGY_DATA)')
        os.environ["FEDENERGY_DATA"] = str(Path(folder).resolve())  # loaders find it here, in workers too
    try:
        plan = Plan.of_table(tables.get("synthesis", {}))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    ledger = _ledger(path, tables, plan)
    args = {key: value for key, value in spec.items() if key != "use"}
    population = Spec(spec["use"], args, table="population").build()
    try:
        len(population)
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path}: [population] {error}") from error
    return population, plan, ledger


def _check_keys(path: Path, tables: Mapping[str, Any]) -> None:
    """ConfigError for a key without effect here: neither read by this command nor an argument of the study that `use`
    names."""
    from fedenergy.config_tables import Spec

    takes = [*TABLES, *PLAIN]
    if "use" in tables:
        own, others = parameters(Spec(tables["use"]).resolve())
        if others:
            return
        takes += [key for key in ("use", "out", *own) if key not in takes]
    for key in tables:
        if key not in takes:
            hint = f" Here it is {ELSEWHERE[key]}" if key in ELSEWHERE else did_you_mean(key, takes)
            raise ConfigError(f'{path} has no place for "{key}" (takes: {", ".join(takes)}).{hint}')


def _ledger(path: Path, tables: Mapping[str, Any], plan: Plan) -> Path | None:
    """The folder that [ledger] names; None where it names none."""
    from fedenergy.config_tables import Ledger

    if "ledger" not in tables:
        return None
    if not isinstance(tables["ledger"], dict):
        raise ConfigError(f"{path}: ledger is not a table: write [ledger]")
    given = call(Ledger, tables["ledger"], "ledger").path
    if "://" in given:
        raise ConfigError(f"{path}: [ledger] path names a data base, and synthesise keeps its charges in a folder: name one")
    if plan.mode == "curator":
        raise ConfigError(f'{path}: [ledger]: mode = "curator" asks no home, so nothing is charged: leave it out')
    return Path(given) if given else None
