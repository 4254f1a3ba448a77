"""Synthesise: the task in which homes make artificial series, or tell the zone the noised statistics for making them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedenergy.box.box import Answer, Box, answer_many
from fedenergy.box.query import IN_BLOCKS, SealedQuery
from fedenergy.box.world import SECURE, KindSpec
from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.households.population import Population
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.synthesis import private_home as own
from fedenergy.synthesis.components import DEFAULT, Recipe
from fedenergy.synthesis.local import series_of
from fedenergy.synthesis.private_plan import Constants
from fedenergy.synthesis.private_shape import HARMONICS, nearest, shape_of, squash
from fedenergy.synthesis.records import Reading

SYNTHESISE = "synthesise"
CONSTANTS = Constants()


class RoundWindow(NamedTuple):
    """rows: steps [first, last) of the record; blocks: days [first, last) since 1970, or of the record."""

    rows: tuple[int, int]
    blocks: tuple[int, int]


@dataclass(frozen=True)
class Synthesise:
    """kind "synthesise": the box makes a series from its own record. It stays there unless the agreement grants the class
    "synthetic" under trust "open"; then epsilon is infinite.

    Kinds "synth_shape", "synth_size", "synth_stats": the noised rounds of the private mode (federation/synthesising.py);
    the constants say which cluster, bin and cell there are, and each query carries the public state so far.

    variant, shuffle, max_tries, unit_days, recipe   of the series: synthesis.synthesise, mode "local"
    continuous, gaps, most_missing                   of the series: synthesis.local.series_of
    constants                                        of the private rounds
    """

    variant: str = "components_shuffle"
    shuffle: str = "free"
    max_tries: int = 200
    unit_days: int = 1
    continuous: bool = False
    gaps: str = "refuse"
    most_missing: float = 0.1
    recipe: Recipe | Mapping[str, Any] = DEFAULT
    constants: Constants | Mapping[str, Any] = CONSTANTS

    kinds = (SYNTHESISE, *IN_BLOCKS)
    unit = "kWh"

    def __post_init__(self) -> None:
        for name, kind in (("recipe", Recipe), ("constants", Constants)):
            if isinstance(given := getattr(self, name), Mapping):
                given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
                object.__setattr__(self, name, kind(**given))
        from fedenergy.synthesis.generate import check_choices

        check_choices("local", self.variant, self.shuffle)
        Reading(gaps=self.gaps, most_missing=self.most_missing)  # its checks

    @property
    def clip(self) -> float:
        return self.constants.cap_kwh

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        """Steps of the series."""
        return _steps(population.steps)

    def kind_spec(self, kind: str, population: Population) -> KindSpec:
        """Coordinates, unit and bound of a kind. A series is bounded by the public cap in every step."""
        if kind == SYNTHESISE:
            return KindSpec(self.coordinate_names(population), self.unit, self.constants.cap_kwh * population.steps)
        law = self.constants.law(kind, 0.5)  # its delta is the query's own: bound and size do not depend on it
        return KindSpec(_blocks(law.blocks, law.width), "1", law.clip)

    def windows(self, population: Population, rounds: int, repeat: str) -> Sequence[RoundWindow]:
        """The whole record, cut to whole days, in every round."""
        per_day = MINUTES_PER_DAY // population.step_minutes
        days = population.steps // per_day
        if days < own.MIN_DAYS:
            raise ValueError(f"records of {days} days are too short to synthesise: give at least {own.MIN_DAYS}")
        start = getattr(population, "start", None)
        first = int(np.datetime64(start, "D").astype(int)) if start else 0
        return [RoundWindow((0, days * per_day), (first, first + days))] * rounds

    def identity(self) -> Mapping[str, Any]:
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["recipe"] = asdict(self.recipe) | {"periods": list(self.recipe.periods)}
        return {"use": "fedenergy.synthesis:Synthesise"} | found | {"constants": asdict(self.constants)}

    def layout(self, kind: str) -> Mapping[str, int]:
        """{"blocks", "width"} of the answers to a private kind: the box refuses a query that names others."""
        return self.constants.layout(kind)

    def public(self, kind: str, **state: Any) -> dict[str, Any]:
        """The task as a private query carries it: layout, and what earlier rounds made public."""
        return {"use": "fedenergy.synthesis:Synthesise", "constants": asdict(self.constants),
                "layout": self.layout(kind), **state}

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int,
                    parties: int = 0) -> list[Answer]:
        """One answer per box, each home by itself."""
        def summaries(asked: Sequence[Box], of: Sequence[SealedQuery]) -> list[tuple[NoiseFree, str]]:
            return [self._summary(box, query, seed) for box, query in zip(asked, of, strict=True)]

        return answer_many(boxes, queries, summaries, seed=seed, parties=parties)

    def _summary(self, box: Box, query: SealedQuery, seed: int) -> tuple[NoiseFree, str]:
        """What the home computes, and a note for the inside view. A record that cannot be used gives zeros: a refusal would
        tell the outside something about the data."""
        size = len(box.world.spec(query.kind).coordinates)
        try:
            if query.kind == SYNTHESISE:
                return NoiseFree(self._series(box, seed)), ""
            kwh, note = own.cleaned(box.load(), query.rows, self.constants.cap_kwh)
            if kwh is None:
                return NoiseFree(np.zeros(size)), f"no summary ({note}): zeros instead"
            values = np.zeros(size)
            block, vector = self._block(query, kwh)
            table = values.reshape(-1, vector.size + 1)
            table[block, :-1], table[block, -1] = vector, 1
            return NoiseFree(values), note
        except ValueError as error:
            return NoiseFree(np.zeros(size)), f"no summary ({error}): zeros instead"

    def _series(self, box: Box, seed: int) -> np.ndarray:
        if box.world.noise == SECURE:  # a seed that is known outside would say where each day came from
            seed = int.from_bytes(box.world.key("synthesis", box.id)[:8], "little")
        step = box.world.population.step_minutes
        return series_of(box.load(), seed, box.world.population.steps, variant=self.variant, shuffle=self.shuffle,
                         recipe=self.recipe, max_tries=self.max_tries, unit_days=self.unit_days,
                         continuous=self.continuous, gaps=self.gaps, most_missing=self.most_missing,
                         cap_kwh=self.constants.cap_kwh * step / 60)

    def _block(self, query: SealedQuery, kwh: np.ndarray) -> tuple[int, np.ndarray]:
        """(block, vector) of the home: the one block that it fills."""
        task, known = query.body["task"], self.constants
        centres = _floats(task["centres"])
        point = squash(shape_of(kwh, HARMONICS))
        cluster = nearest(point, centres)
        if query.kind == "synth_shape":
            return cluster, point
        energy = own.daily_kwh(kwh)
        if query.kind == "synth_size":
            return cluster * known.bins + own.size_bin(energy, known.edges), np.zeros(0)
        borders = _floats(task["borders"]).reshape(len(centres), known.sizes - 1)[cluster]
        return cluster * known.sizes + own.size_class(energy, borders), own.statistics(kwh, centres[cluster])


def _floats(rows: Sequence) -> np.ndarray:
    """Numbers of a canonical body, which are decimal texts."""
    found = np.array([[float(value) for value in row] for row in rows], np.float64)
    if not np.isfinite(found).all():
        raise ValueError("the query's public state holds something that is no finite number")
    return found


@lru_cache(maxsize=8)
def _steps(count: int) -> tuple[str, ...]:
    return tuple(f"step {at}" for at in range(count))


@lru_cache(maxsize=8)
def _blocks(blocks: int, width: int) -> tuple[str, ...]:
    return tuple(f"{block}.{at}" if at < width else f"{block}.count" for block in range(blocks) for at in range(width + 1))
