"""`run`, `check`, `resume` and `report` of studies that ask no homes (fedenergy.studies)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedenergy.cli_parts import console, pairs, use_data, watched
from fedenergy.errors import ConfigError, read_toml

if TYPE_CHECKING:
    from fedenergy.studies import Finished, Place, Study

ROWS = 60


def is_other(path: Path) -> bool:
    """Whether the config names a study that asks no homes. False where it cannot be read: others say why."""
    try:
        return "use" in read_toml(path)
    except ConfigError:
        return False


def load(path: Path, sets: Sequence[str], seeds: str | None, data: str | None, quick: bool, out: str | None,
         **options: Any) -> tuple[Study, Place]:
    """The study and its place; options that only studies of homes have are refused."""
    for name, value in options.items():
        if value not in (None, False, [], ()):
            raise ConfigError(f"--{name} is for studies that ask homes; {path} names its own study (use = ...): change "
                              "its keys with --set KEY=VALUE")
    from fedenergy import studies

    use_data(data)
    return studies.load(path, sets=sets, seeds=seeds, data=data, quick=quick, out=out)


def run(study: Study, place: Place) -> None:
    """Run it under a progress bar and print what it found."""
    from fedenergy import studies

    show(watched(lambda progress: studies.run(study, place, progress), place.folder(study)))


def check(study: Study, place: Place) -> None:
    """Print the resolved config and what a run would do."""
    from fedenergy import studies

    print(f"# {place.folder(study).name}: the resolved config\n{studies.to_toml(study)}")
    pairs(study.check(place))


def resume(folder: Path, data: str | None) -> None:
    """Go on with a run folder of such a study; a finished one only writes its page again."""
    from fedenergy import studies

    show(watched(lambda progress: studies.resume(folder, progress, data), folder))


def show(found: Finished) -> None:
    """The table, its lines, and where the page is."""
    from rich.table import Table
    from rich.text import Text

    from fedenergy.report.words import number

    if len(found.table):
        table = Table(box=None, pad_edge=False)
        for name in found.table:
            table.add_column(str(name), justify="left" if found.table[name].dtype == object else "right")
        for row in found.table.head(ROWS).itertuples(index=False, name=None):
            table.add_row(*(Text(number(value)) for value in row))
        console().print(table)
        if len(found.table) > ROWS:
            print(f"... and {len(found.table) - ROWS:,} more rows: {found.folder / 'metrics.csv'}")
    for line in found.lines:
        print(line)
    print(f"\nReport: {found.page}")
