"""`fedenergy data list | fetch | verify`: the published sets that the loaders read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedenergy.cli_data import app
from fedenergy.errors import ConfigError, RunFailed

Name = Annotated[str, typer.Argument(metavar="NAME", help="A set: fedenergy data list names them.")]
Folder = Annotated[Path, typer.Option("--data", metavar="DIR", envvar="FEDENERGY_DATA",
                                      help="Folder of the data sets; each set has one inside.")]


@app.command("list")
def list_sets(data: Folder = Path("data")) -> None:
    """Say which data sets the loaders know: what they are, their licence, and which files are here.

    \b
    fedenergy data list
    fedenergy data list --data DIR
    """
    from fedenergy.households.catalogue import SETS, found_at

    for one in SETS.values():
        print(f"{one.name:<15} {one.title}\n{'':<15} {one.licence}; {one.citation}")
        for item in one.items:
            place = found_at(data, item)
            source = f"fedenergy data fetch {one.name}" if item.urls else "by hand: --from FILE"
            where = f"here: {place}" if place else source
            pinned = "" if item.sha256 else " (unpinned: its hash is not known)"
            print(f"{'':<15} {item.path}{pinned}  {where}")


@app.command()
def fetch(name: Name, data: Folder = Path("data"),
          offline: Annotated[bool, typer.Option("--offline", help="Reach out to nobody.")] = False,
          source: Annotated[Path | None, typer.Option(
              "--from", metavar="FILE", help="Take it from a file at hand (the file itself, .gz, .xz or .zip).")] = None
          ) -> None:
    """Put a data set into the data folder: fetched from its publisher, or taken from a file. Goes on where it stopped.

    \b
    fedenergy data fetch ett --data DIR
    fedenergy data fetch uci_household --from household.zip --data DIR
    """
    from contextlib import closing

    from fedenergy.households import fetch as fetching
    from fedenergy.households.catalogue import dataset
    from fedenergy.progress import open_progress

    with closing(open_progress()) as progress:
        done = fetching.fetch(data, name, offline=offline, given=source, progress=progress)
    for item, place, what in done:
        print(f"{place}: {what}{'' if item.sha256 else ' (unpinned: its hash was recorded, not compared)'}")
    one = dataset(name)
    print(f"licence: {one.licence}; cite: {one.citation}")


@app.command()
def verify(name: Annotated[str, typer.Argument(metavar="[NAME]", help="One set; without it, all.")] = "",
           data: Folder = Path("data")) -> None:
    """Compare the files that are here with the published hashes. Exit 1 if one differs, or if none is here.

    \b
    fedenergy data verify --data DIR
    fedenergy data verify ett --data DIR
    """
    from fedenergy.households import catalogue

    if not data.is_dir():
        raise ConfigError(f"{data} is no folder: give that of the data sets (--data DIR, $FEDENERGY_DATA)")
    verdicts = catalogue.verify(data, name)
    for one in verdicts:
        print(f"{one.verdict:<9} {one.path}  {one.sha256}{'  ' + one.told if one.told else ''}".rstrip())
    differing = [one.path for one in verdicts if one.verdict == catalogue.DIFFERS]
    if differing:
        raise RunFailed(f"{len(differing)} file(s) are not what was published: {', '.join(differing)}")
    if all(one.verdict == catalogue.ABSENT for one in verdicts):
        raise RunFailed(f"{data} holds none of these files: fedenergy data fetch NAME --data {data}")
