"""Read a run folder: what the campaign left, checked once, for tables, figures and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

METRIC_COLUMNS = (
    "run",
    "cell",
    "population",
    "strategy",
    "policy",
    "trust",
    "epsilon",
    "delta",
    "seed",
    "round",
    "metric",
    "value",
)
NUMBERS = ("epsilon", "delta", "seed", "round", "value")


class RunFolderError(ValueError):
    """The folder is no run folder, is unfinished, or holds a damaged file; the text says which and what to do."""


@dataclass(frozen=True)
class RunData:
    """A finished run.

    folder    the run folder
    metrics   tidy: one row per (cell, strategy, round, metric), columns METRIC_COLUMNS
    cells     one row per cell, with one column per varied key
    summary   what the campaign knows beyond numbers; every key is optional
    config    text of config.resolved.toml
    versions  {"fedenergy": "0.1.0", ...}
    """

    folder: Path
    metrics: pd.DataFrame
    cells: pd.DataFrame
    summary: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    versions: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path) -> RunData:
        """Read runs/<name>-<digest>/. Raises RunFolderError naming the file and the remedy.

        metrics.csv, cells.csv and summary.json are the end of a run: without them it is unfinished.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise RunFolderError(
                f"{folder} is not a folder: give the run folder that `fedenergy run` printed (runs/<name>-<digest>)"
            )
        if not (folder / "config.resolved.toml").is_file():
            raise RunFolderError(
                f"{folder} is not a run folder: it has no config.resolved.toml; give runs/<name>-<digest>"
            )
        if absent := [name for name in ("metrics.csv", "cells.csv", "summary.json") if not (folder / name).is_file()]:
            raise RunFolderError(
                f"the run in {folder} is unfinished: it has no {', '.join(absent)}; "
                f"go on where it stopped with `fedenergy resume {folder}`"
            )
        versions = folder / "versions.json"
        return cls(
            folder,
            _metrics(folder / "metrics.csv"),
            _cells(folder / "cells.csv"),
            _object(folder / "summary.json"),
            (folder / "config.resolved.toml").read_text(encoding="utf-8", errors="replace"),
            _object(versions) if versions.is_file() else {},
        )

    def part(self, key: str, kind: type, default: Any = None) -> Any:
        """summary[key] if present and of the given kind, an empty `kind` (or default) if absent or null.

        Raises RunFolderError where the value is of another kind.
        """
        value = self.summary.get(key)
        if value is None:
            return kind() if default is None else default
        if not isinstance(value, kind):
            raise RunFolderError(
                f"{self.folder / 'summary.json'}: {key!r} is a {type(value).__name__}, expected a {kind.__name__}"
            )
        return value

    def rows(self, key: str) -> list[Mapping[str, Any]]:
        """summary[key] as a list of objects; [] where absent."""
        rows = self.part(key, list)
        if any(not isinstance(row, Mapping) for row in rows):
            raise RunFolderError(f"{self.folder / 'summary.json'}: {key!r} is a list of objects, one per row")
        return rows

    @property
    def title(self) -> str:
        return str(self.summary.get("title") or self.summary.get("name") or self.folder.name)

    @property
    def unit(self) -> str:
        """The privacy unit that every epsilon of this run protects; "" where the run does not state it."""
        return str(self.part("population", dict).get("unit") or "")

    @property
    def oracle(self) -> bool:
        """Whether errors against the truth were computed."""
        stated = self.summary.get("oracle")
        return bool(stated) if stated is not None else bool((self.metrics["metric"] == "mae").any())

    @property
    def privacy_line(self) -> str:
        """Unit, relation and noise stamp in one line, to stand under every table."""
        relation, stamp = self.summary.get("relation"), self.summary.get("stamp")
        parts = [f"epsilon per {self.unit or 'unit (not stated)'} and round", f"relation {relation or 'not stated'}"]
        return "; ".join(parts + ([str(stamp)] if stamp else []))


def _metrics(path: Path) -> pd.DataFrame:
    frame = _csv(path)
    if absent := [name for name in METRIC_COLUMNS if name not in frame]:
        raise RunFolderError(f"{path} has no column {absent[0]!r}: its columns are {', '.join(METRIC_COLUMNS)}")
    for name in NUMBERS:
        try:
            frame[name] = frame[name].replace("", "nan").astype(float)
        except ValueError as error:
            raise RunFolderError(f"{path}: column {name!r} holds numbers only ({error})") from None
    if frame[["seed", "round"]].isna().any(axis=None):
        raise RunFolderError(f"{path}: every row has a seed and a round")
    return frame.astype({"seed": int, "round": int})


def _cells(path: Path) -> pd.DataFrame:
    frame = _csv(path)
    if "cell" not in frame:
        raise RunFolderError(f"{path} has no column 'cell'")
    if frame["cell"].duplicated().any():
        twice = frame.loc[frame["cell"].duplicated(), "cell"].iloc[0]
        raise RunFolderError(f"{path} describes cell {twice} twice: it holds one row per cell")
    for name in frame.columns.drop("cell"):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if len(frame) and numbers.notna().all():
            frame[name] = numbers
    return frame


def _csv(path: Path) -> pd.DataFrame:
    # Everything as text first: a policy called "NA" or a cell "1e5" must not turn into a number.
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from None


def _object(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from None
    if not isinstance(value, Mapping):
        raise RunFolderError(f"{path} holds a {type(value).__name__}, expected one JSON object")
    return value
