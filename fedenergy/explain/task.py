"""Explain: the task in which every home explains its own consumption (the HXAI source, section III)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedenergy import ids
from fedenergy.box.box import Answer, Box, answer_many
from fedenergy.box.query import SealedQuery
from fedenergy.box.world import KindSpec
from fedenergy.explain.kinds import DEFAULT, KINDS, Measures
from fedenergy.explain.model import contributions, fit
from fedenergy.explain.summary import Explainer
from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.population import Population
from fedenergy.privacy.noise_free import NoiseFree, gathered
from fedenergy.windows import lagged, round_windows

MAX_CACHED = 2_000_000
_EXPLAINER = tuple(field.name for field in fields(Explainer))
_cache: OrderedDict[tuple, tuple[NoiseFree, str]] = OrderedDict()  # of this process's homes; never serialised


class RoundWindow(NamedTuple):
    """rows: steps [first, last) that are explained; blocks: days [first, last) that they read, since 1970 where the
    population has one start, else of the record."""

    rows: tuple[int, int]
    blocks: tuple[int, int]


@dataclass(frozen=True)
class Explain:
    """Boosted trees on lagged readings -> TreeSHAP -> S_i[k] = sum over t of phi[t, k] x[t, k].

    lags          hours back from the hour that is predicted; whole steps of the record
    clip          C: l1 bound of a home's S_i, kWh^2. Public: from ratings or public data, never max ||S_i||
    trees, depth, bins, learning_rate   of the boosted trees
    observed      x at t ("now") or the lagged value that fed the feature ("lagged")
    coordinates   "appliance": lags of a channel are added up; "daypart": when it was used, for homes with one channel;
                  "feature_lag": every lagged feature by itself
    engine        "auto", "tables" (leaf-pattern tables) or "xgboost"; equal to 1e-5
    measures      public arguments of the kinds that need no model (explain/kinds.py): bounds, peak hours, prices, ...

    The query's kind chooses what is released: all of the above is for "appliances" only.
    """

    lags: tuple[int, ...] = (1, 24, 168)
    clip: float = 50.0
    trees: int = 100
    depth: int = 4
    bins: int = 64
    learning_rate: float = 0.3
    observed: str = "now"
    coordinates: str = "appliance"
    engine: str = "auto"
    measures: Measures | Mapping[str, Any] = DEFAULT

    kinds = ("appliances", *KINDS)
    unit = "kWh^2"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lags", tuple(self.lags))
        if not isinstance(self.clip, int | float) or isinstance(self.clip, bool) or not 0 < self.clip < 1e12:
            raise ValueError(f"clip = {self.clip!r} is not a bound: use a finite number of kWh^2 above 0")
        object.__setattr__(self, "measures", Measures.of(self.measures))
        self.explainer  # noqa: B018 - its own checks, now rather than in a worker

    @property
    def explainer(self) -> Explainer:
        return _explainer(self)

    def prepare(self) -> None:
        """Import and compile what answers need: some .3 s, once per process, before the first question comes."""
        readings = np.arange(60.0).reshape(-1, 1)
        home = Household("prepare", ("use",), readings, readings[:, 0], np.datetime64("2013-01-07", "m"), 60)
        replace(self.explainer, lags=(1,), trees=1, coordinates="appliance").summary(home)

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        """Names of the released coordinates."""
        return tuple(self.explainer.names(population.channels, tuple(getattr(population, "feature_names", ()))))

    def kind_spec(self, kind: str, population: Population) -> KindSpec:
        """Coordinates, unit and public bound of a kind; ValueError where the population cannot answer it."""
        if kind == "appliances":
            return KindSpec(self.coordinate_names(population), self.unit, self.clip)
        self.measures.check(kind, population.steps, population.step_minutes, getattr(population, "feature_names", None))
        return self.measures.spec(kind, tuple(population.channels))

    def windows(self, population: Population, rounds: int, repeat: str) -> Sequence[RoundWindow]:
        """What each round explains; see fedenergy.windows.round_windows."""
        minutes = population.step_minutes
        reach = self.explainer.max_lag(minutes)
        found = round_windows(population.steps, reach, MINUTES_PER_DAY // minutes, rounds, repeat)
        start = getattr(population, "start", None)
        day = int(np.datetime64(start, "D").astype(int)) if start else 0
        return [RoundWindow((window.first_row, window.last_row), (day + window.block_from, day + window.block_to))
                for window in found]

    def inside_view(self, household: Household, window: RoundWindow) -> dict[str, Any] | None:
        """One home's last whole day in the window: readings and SHAP values per channel and step, kWh.

        For the inside view of a simulation's report only; nothing of it may cross a grid. None where no day is whole.
        """
        per_day = household.steps_per_day
        last = min(window.rows[1], household.total.shape[0])
        design = lagged(household, self.lags, slice(window.rows[0], last))
        if self.coordinates != "appliance" or design.dropped or design.y.size < per_day:
            return None
        phi = contributions(fit(design.X, design.y, self.trees, self.depth, self.bins, self.learning_rate))
        columns = [design.feature_channel == k for k in range(len(household.channels))]
        shap = np.stack([phi[:, column].sum(axis=1) for column in columns], axis=1)
        minutes = household.step_minutes
        first = (design.y.size - per_day) // per_day * per_day + (-window.rows[0]) % per_day
        first -= per_day if first + per_day > design.y.size else 0
        day = slice(max(first, 0), max(first, 0) + per_day)
        return {"household": household.id, "hours": [f"{m // 60:02d}:{m % 60:02d}" for m in range(0, 1440, minutes)],
                "day": str(household.start + np.timedelta64((window.rows[0] + day.start) * minutes, "m"))[:10],
                "readings": dict(zip(household.channels, design.observed[day].T.tolist(), strict=True)),
                "shap": dict(zip(household.channels, shap[day].T.tolist(), strict=True))}

    def identity(self) -> Mapping[str, Any]:
        """Every argument that changes an answer; `engine` does not."""
        found = {k: v for k, v in asdict(self).items() if k not in ("engine", "measures")}
        own = self.measures.identity()  # said only where it differs: queries of other tables keep their ids
        return {"use": "fedenergy:Explain"} | found | ({"measures": own} if own else {})

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int,
                    parties: int = 0) -> list[Answer]:
        """One answer per box; summaries are kept, so that asking again does not fit again."""
        return answer_many(boxes, queries, self._summaries, seed=seed, parties=parties)

    def _summaries(self, boxes: Sequence[Box], queries: Sequence[SealedQuery]) -> list[tuple[NoiseFree, str]]:
        return [self._kept(box, query) for box, query in zip(boxes, queries, strict=True)]

    def summaries(self, boxes: Sequence[Box], query: SealedQuery) -> NoiseFree:
        """Noise-free summaries (n, d) of a shard's boxes, kept like those of single ones."""
        return gathered([self._kept(box, query)[0] for box in boxes])

    def _kept(self, box: Box, query: SealedQuery) -> tuple[NoiseFree, str]:
        source = getattr(box.world.population, "source", int)(box.index)
        key = (_family(box.world), query.rows, query.kind, source)
        if key not in _cache:
            _cache[key] = self._summary(box, query)
            if len(_cache) > MAX_CACHED:
                _cache.popitem(last=False)
        return _cache[key]

    def _summary(self, box: Box, query: SealedQuery) -> tuple[NoiseFree, str]:
        """S_i and a note for the inside view.

        A record that cannot be explained (too few readings in the window) gives zeros, noised like any other: a refusal
        would tell the outside something about the data.
        """
        household = box.load()
        try:
            if query.kind != "appliances":
                return NoiseFree(self.measures.summary(query.kind, household, query.rows)), ""
            summary = self.explainer.summary(household, slice(*query.rows))
        except ValueError:
            zeros = np.zeros(len(box.world.spec(query.kind).coordinates))
            return NoiseFree(zeros), "no summary (too few readings): zeros instead"
        return NoiseFree(summary.values), summary.reason


@lru_cache(maxsize=64)
def _explainer(task: Explain) -> Explainer:
    values = asdict(task)
    return Explainer(**{name: values[name] for name in _EXPLAINER if name in values})


@lru_cache(maxsize=64)
def _family(world) -> str:
    """What a summary depends on besides home and window: the data and the model, not the clip."""
    task = {k: v for k, v in world.task.identity().items() if k != "clip"}
    return ids.digest(b"fe.family.1", [world.population.identity(), task]).hex()
