"""What the commands share: data folder, progress and Ctrl-C, run folders, the console."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from fedenergy.errors import ConfigError, RunFailed, did_you_mean, os_text
from fedenergy.progress import Progress, open_progress

if TYPE_CHECKING:
    from rich.console import Console

Value = TypeVar("Value")


def use_data(data: str | None) -> None:
    """Loaders, in this process and in workers started from it, find the data sets through the environment."""
    if data:
        if not Path(data).is_dir():
            raise ConfigError(f'data = "{data}" is no folder: give that of the data sets (--data, $FEDENERGY_DATA)')
        os.environ["FEDENERGY_DATA"] = str(Path(data).resolve())


def watched(work: Callable[[Progress], Value], folder: Path) -> Value:
    """Do the work under a progress bar; on Ctrl-C and on a full disk say how to go on."""
    try:
        with closing(open_progress()) as progress:
            return work(progress)
    except KeyboardInterrupt:
        how = f"go on with: fedenergy resume {shlex.quote(str(folder))}" if folder.is_dir() else "nothing was begun"
        print(f"\nInterrupted; {how}", file=sys.stderr)
        raise typer.Exit(130) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not (folder / "versions.json").is_file():  # the last that a start writes
            raise
        raise RunFailed(os_text(error, f"fedenergy resume {shlex.quote(str(folder))}")) from error


def run_folder(run: str) -> Path:
    """The folder itself, or the one of that name in runs/."""
    for folder in (Path(run), Path("runs", run)):
        if folder.is_dir():
            return folder
    parent = Path(run).parent if Path(run).parent != Path() else Path("runs")
    names = [item.name for item in parent.iterdir() if item.is_dir()] if parent.is_dir() else []
    raise ConfigError(f"{run} is no run folder, nor is runs/{run}: give the folder that fedenergy run printed."
                      f"{did_you_mean(Path(run).name, names)}")


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    print()
    for name, value in rows:
        print(f"{name:<20} {value:>12}")


def console() -> Console:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, 120))
