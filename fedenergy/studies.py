"""Studies that ask no homes: a config whose first key is `use = "module:Name"` names one, its other keys are arguments.

Name is a frozen dataclass (see Study); `fedenergy run | check | resume` take its config like any other. The helpers
below keep what such runs have in common: cells that are not computed twice, and result files of the same bytes.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from fedenergy.config import parse_value
from fedenergy.config_tables import Spec
from fedenergy.errors import ConfigError, naming, read_toml, thaw, toml_key, toml_text
from fedenergy.federation.run_folder import versions
from fedenergy.ids import cell_id, digest
from fedenergy.progress import Progress

HEADER = ("run", "cell", "population", "strategy", "policy", "trust", "epsilon", "delta", "seed", "round", "metric", "value")
PLACED = ("data", "out")


@dataclass(frozen=True)
class Place:
    """Where a study finds data and leaves its runs. data: folder of the data sets, "" where none was given."""

    data: str = ""
    out: str = "runs"

    def folder(self, study: Any) -> Path:
        """<out>/<name>-<8 hex digits of everything that determines its numbers>."""
        body = json.dumps(document(study), sort_keys=True, default=str)
        return Path(self.out) / f"{study.name}-{digest(b'fe.study.1', body, 4).hex()}"

    def data_folder(self, why: str) -> Path:
        """The folder of the data sets; ConfigError saying what it is needed for where none was given."""
        if not self.data:
            raise ConfigError(f"{why} needs the data sets: give their folder (--data DIR, or $FEDENERGY_DATA)")
        return Path(self.data)


@dataclass(frozen=True)
class Finished:
    """What a study left: its folder, its page (HTML), its main table, and lines to print below it."""

    folder: Path
    page: Path
    table: pd.DataFrame
    lines: Sequence[str] = ()


class Study(Protocol):
    """A frozen dataclass: its fields are the config's keys, checked in __post_init__ (ValueError)."""

    name: str

    def toy(self) -> Study:
        """The same study at toy size (--quick): minutes on two cores."""
        ...

    def check(self, place: Place) -> Sequence[tuple[str, str]]:
        """(what, value) rows of what a run would do and cost. Runs nothing, spends nothing."""
        ...

    def run(self, place: Place, progress: Progress) -> Finished:
        """Run it into place.folder(self). Cells that were finished before are not run again."""
        ...


def load(path: str | os.PathLike, *, sets: Sequence[str] = (), seeds: str | None = None, data: str | None = None,
         quick: bool = False, out: str | None = None) -> tuple[Study, Place]:
    """The study that a config names, and its place. ConfigError names the first mistake; nothing runs.

    sets: "KEY=VALUE"; seeds: "0,1,2"; quick: at toy size, "-quick" added to its name
    """
    tables = read_toml(Path(path))
    for text in sets:
        key, _, value = (part.strip() for part in text.partition("="))
        if not key or "=" not in text:
            raise ConfigError(f'--set "{text}" is not KEY=VALUE: write --set steps=500')
        tables[key] = parse_value(value)
    if seeds is not None:
        if not re.fullmatch(r"\s*\d{1,18}\s*(,\s*\d{1,18}\s*)*", seeds):
            raise ConfigError(f'--seeds "{seeds}" is not a list of whole numbers: write --seeds 0,1,2')
        tables["seeds"] = [int(seed) for seed in seeds.split(",")]
    use = tables.pop("use", None)
    if not isinstance(use, str):
        raise ConfigError(f'{path} has no use: a study of this kind begins with use = "module:Name"')
    found = {key: tables.pop(key, "") for key in PLACED}
    place = Place(str(data or found["data"] or os.environ.get("FEDENERGY_DATA", "")), str(out or found["out"] or "runs"))
    spec = Spec(use, {"name": Path(path).stem, **tables}, table="config")
    maker = spec.resolve()
    if not (isinstance(maker, type) and is_dataclass(maker) and hasattr(maker, "run")):
        raise ConfigError(f'use = "{use}" is no study: it names {maker!r}, not a dataclass with run, check and toy')
    study = spec.build()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", study.name):
        raise ConfigError(f'name = "{study.name}" is no name of a folder: letters, digits, ".", "_" and "-"')
    if quick:
        study = study.toy()
        study = study if study.name.endswith("-quick") else replace(study, name=f"{study.name}-quick")
    return study, place


def document(study: Any) -> dict[str, Any]:
    """The study's fields as plain values, with the `use` that finds it."""
    plain = {item.name: thaw(getattr(study, item.name), dates_as_text=True) for item in fields(study)}
    return {"use": f"{type(study).__module__}:{type(study).__name__}", **plain}


def to_toml(study: Any) -> str:
    """TOML text from which `load` makes an equal study."""
    lines, tables = [], []
    for key, value in document(study).items():
        if isinstance(value, Mapping) and value:
            tables += ["", f"[{toml_key(key)}]", *(f"{toml_key(k)} = {toml_text(v)}" for k, v in value.items())]
        elif value is not None and not isinstance(value, Mapping):
            lines.append(f"{toml_key(key)} = {toml_text(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def run(study: Study, place: Place, progress: Progress) -> Finished:
    """Write config.resolved.toml and versions.json, then run the study."""
    folder = place.folder(study)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.resolved.toml", to_toml(study))
    write_text(folder / "versions.json", json.dumps(versions(), indent=1, sort_keys=True) + "\n")
    return study.run(place, progress)


def resume(folder: Path, progress: Progress, data: str | None = None) -> Finished:
    """Go on with the study that a run folder belongs to: its config.resolved.toml says all, but for the data's folder."""
    study, place = load(folder / "config.resolved.toml", data=data, out=str(folder.parent))
    if place.folder(study).resolve() != folder.resolve():
        raise ConfigError(f"{folder} is not the folder of its own config.resolved.toml ({place.folder(study).name}): "
                          "was it renamed, or the file edited?")
    return run(study, place, progress)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with naming(path):
        part.write_text(text, encoding="utf-8", newline="\n")
    os.replace(part, path)


def kept(folder: Path, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
    """compute() once per key: its JSON value is kept in folder/cells/ and read back the next time.

    key  what determines the value (JSON; numbers as given). NaN and infinity are kept as JavaScript's words.
    """
    name = digest(b"fe.kept.1", json.dumps(key, sort_keys=True, default=str), 8).hex()
    path = folder / "cells" / f"{name}.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["key"] == json.loads(json.dumps(key, default=str)):
            return found["value"]
    value = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"key": key, "value": value}, default=str, indent=1))
    return json.loads(json.dumps(value, default=str))


def write_results(folder: Path, table: pd.DataFrame, *, vary: Sequence[str], metrics: Sequence[str], trust: str = "curator",
                  population: str = "dataset", strategy: str = "method") -> None:
    """metrics.csv and cells.csv of a study, in the project's format: the same bytes for the same rows.

    table       one row per setting and seed; columns: vary, metrics, and where they exist epsilon, delta, seed,
                mechanism, trust. NaN metrics are left out (not run).
    vary        columns that make a cell (dataset, pattern, rate, objective, regime, ...)
    population, strategy   columns that fill these two columns of metrics.csv
    """
    lines, cells = [], {}
    for row in table.to_dict("records"):
        epsilon, delta = _known(row.get("epsilon")), _known(row.get("delta"))
        mechanism = str(row.get("mechanism", "gaussian" if epsilon else "none"))
        key = {"trust": str(row.get("trust", trust)), "mechanism": mechanism, "policy": "none", "epsilon": epsilon,
               "seed": int(_known(row.get("seed")) or 0)}
        varied = {name: _written(row[name]) for name in vary}
        cell = cell_id({**key, "vary": varied})
        cells[cell] = [*key.values(), *varied.values()]
        lines += [[folder.name, cell, row.get(population, ""), row.get(strategy, ""), "", key["trust"], epsilon, delta,
                   key["seed"], 1, metric, repr(float(row[metric]))]
                  for metric in metrics if row.get(metric) is not None and not math.isnan(float(row[metric]))]
    head = ["cell", "trust", "mechanism", "policy", "epsilon", "seed", *vary]
    for name, header, body in (("metrics.csv", HEADER, sorted(lines, key=lambda line: [str(item) for item in line])),
                               ("cells.csv", head, [[cell, *values] for cell, values in sorted(cells.items())])):
        part = folder / f".{name}.part"
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([header, *body])
        os.replace(part, folder / name)


def _known(value: Any) -> str:
    """A number as text, "" where there is none."""
    return "" if value is None or value == "" or (isinstance(value, float) and math.isnan(value)) else _written(value)


def _written(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)
