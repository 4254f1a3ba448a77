"""Members cut from metered series: what the populations of real homes share, and where their files are looked for."""

from __future__ import annotations

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedenergy.households import cache
from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.readers.series import Series, pack, unpack


@dataclass(frozen=True)
class Cut:
    """One member as a piece of a series: which series, from when, how many steps."""

    series: str
    start: np.datetime64
    steps: int


@dataclass(frozen=True)
class MeasuredHomes(ABC):
    """Members cut from metered series: the part that the real populations share (a Population, see population.py).

    path         the source file or folder
    count        how many members, in id order; None takes all
    step_minutes length of a step
    min_present  a member with a smaller share of its steps present is excluded
    """

    path: str
    count: int | None
    step_minutes: int
    min_present: float

    def __post_init__(self) -> None:
        if self.count is not None:
            check_whole(f"{self.name}: count", self.count, "or leave it out for all")
        if not 0 < self.min_present <= 1:
            raise ValueError(f"{self.name}: min_present = {self.min_present!r}; use a share above 0 and up to"
                             " 1, such as 0.5")
        check_whole(f"{self.name}: step_minutes", self.step_minutes)
        if MINUTES_PER_DAY % self.step_minutes or self.step_minutes % self._source_minutes:
            raise ValueError(f"{self.name}: step_minutes = {self.step_minutes!r}; use a multiple of the source's "
                             f"{self._source_minutes} that divides a day (1440)")

    name: ClassVar[str]
    unit: ClassVar[str]
    channels: ClassVar[tuple[str, ...]]
    quantity: ClassVar[str] = "kWh"   # what readings and total count, per step
    feature_names: ClassVar[tuple[str, ...]] = ()
    _source_minutes: ClassVar[int]

    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The source files."""

    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Name, arguments and the SHA-256 of the source; neither count nor path."""

    @abstractmethod
    def _reading(self) -> tuple[Any, ...]:
        """The arguments that parse() needs beside the files."""

    @staticmethod
    @abstractmethod
    def parse(files: Sequence[Path], *reading: Any) -> Mapping[str, Series]:
        """Every series of the set, read from the source: slow, so callers use series()."""

    def series(self) -> Mapping[str, Series]:
        """Every series of the set, in steps of step_minutes; parsed once per process, or found in the disk cache."""
        return _parsed(type(self), _stamps(self), self._reading())

    @abstractmethod
    def candidates(self) -> Mapping[str, Cut]:
        """Every member that the set could give, id -> cut, in order."""

    @abstractmethod
    def _household(self, name: str, cut: Cut, window: Series) -> Household: ...

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the members, in index order."""
        return _members(self)[0]

    @property
    def excluded(self) -> Mapping[str, str]:
        """Members left out for want of readings, id -> reason (those beyond `count` are not among them)."""
        return _members(self)[1]

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, index: int) -> Household:
        """The household at that index."""
        return self.read(self.ids[index])

    def read(self, name: str) -> Household:
        """The household of that id, excluded ones too."""
        try:
            cut = self.candidates()[name]
        except KeyError:
            raise KeyError(f"{self.name} has no member {name!r}; see .ids and .excluded") from None
        return self._household(name, cut, self.series()[cut.series].window(cut.start, cut.steps))


@functools.lru_cache(maxsize=64)
def _stamps(population: MeasuredHomes) -> tuple[tuple[str, int, int], ...]:
    return tuple(map(cache.stamp, population.files()))


@functools.lru_cache(maxsize=8)
def _parsed(kind: type[MeasuredHomes], stamps: tuple[tuple[str, int, int], ...],
            reading: tuple[Any, ...]) -> dict[str, Series]:
    files = [Path(state[0]) for state in stamps]
    return unpack(cache.arrays(kind.__name__.lower(), files, {"reading": reading},
                               lambda: pack(kind.parse(files, *reading))))


@functools.lru_cache(maxsize=64)
def _members(population: MeasuredHomes) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """(ids, excluded) by the rule min_present; count then takes the first."""
    ids, excluded = [], {}
    for name, cut in population.candidates().items():
        present = int((~np.isnan(population.series()[cut.series].window(cut.start, cut.steps).values[:, 0])).sum())
        if present < population.min_present * cut.steps:
            excluded[name] = (f"{present} of {cut.steps} steps present ({100 * present / cut.steps:.1f} %), "
                              f"fewer than min_present = {population.min_present:g}")
        else:
            ids.append(name)
    if population.count is not None and population.count > len(ids):
        raise ValueError(f"{population.name}: count = {population.count}, but {len(ids)} members have enough readings "
                         f"({len(excluded)} excluded); ask for fewer or lower min_present = {population.min_present:g}")
    return tuple(ids[:population.count]), excluded


def check_whole(what: str, value: Any, otherwise: str = "") -> int:
    """Return value if it is a whole number of at least 1, else raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} = {value!r}; use a whole number of at least 1{otherwise and ', ' + otherwise}")
    return value


def find(data: str | Path | None, places: Sequence[str], what: str) -> str:
    """The first of the places (plain, .xz or .gz) under data, else under $FEDENERGY_DATA."""
    given = data if data is not None else os.environ.get("FEDENERGY_DATA")
    if not given:
        raise FileNotFoundError(f"{what}: no folder of data sets is given, and {places[0]} is wanted from it; "
                                "pass --data DIR (argument data) or set FEDENERGY_DATA")
    root = Path(given).expanduser()
    tried = [root / f"{place}{suffix}" for place in places for suffix in ("", ".xz", ".gz")]
    for path in tried:
        if path.exists():
            return str(path.absolute())
    raise FileNotFoundError(f"{what}: {tried[0]} does not exist (nor {', '.join(path.name for path in tried[1:])}); "
                            "pass --data DIR, the folder that holds it, or set FEDENERGY_DATA")
