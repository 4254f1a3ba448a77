"""What a home computes for an imputer that is trained over many homes: windows for a trusted trainer, second moments, or one
update of a small net. The box clips it, charges for it and lets it out; nothing here adds noise.

    windows                                   (n, T) readings, for the Curator alone (trust curator)
    moments_mean, moments_scale, moments      the three vectors of a dp_gp, a home's windows averaged: the home is the record
    train.imputer                             the change of the net's weights after a few local steps

Nothing but the clipped vector depends on a home's data: numbers of windows and shapes are public.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedenergy.box.box import Answer, Box, answer_many
from fedenergy.box.query import SealedQuery
from fedenergy.box.training import answer_windows
from fedenergy.box.world import KindSpec
from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.population import Population
from fedenergy.imputation.baselines import linear
from fedenergy.imputation.dp_gp import CAP_KW, LEAST_SHARE, LEAST_VARIANCE, TYPICAL, DpGp, forward
from fedenergy.imputation.dp_gp_release import Basis, Released, Spent, denoised, smooth_profile
from fedenergy.imputation.task import Windows, cut
from fedenergy.privacy.noise_free import NoiseFree

WINDOWS, MEAN, SCALE, MOMENTS, UPDATE = "windows", "moments_mean", "moments_scale", "moments", "train.imputer"
STAGES = (MEAN, SCALE, MOMENTS)
WEIGHTS = "summary"                     # the name of a model's weights among a message's arrays
USABLE = 0.5                            # share of a window's readings that must be known


class Span(NamedTuple):
    """rows: the whole record, steps [first, last); blocks: its days [first, last)."""

    rows: tuple[int, int]
    blocks: tuple[int, int]


@dataclass(frozen=True)
class NetPlan:
    """A small diffusion net and how a home trains it in one round.

    width, depth, heads, patch   of the DiT; base: "daily", "linear" or "simulated" (the packaged dp_gp), which it corrects
    clip         C, the l2 bound of a home's update
    local_steps, batch, rate     of the home's own AdamW; residual_scale: see fedenergy.imputation.train
    train_only   words in the names of the weights that are trained ("modulation,out"); "" all. Fewer weights, less noise
    seed         of the first weights (the net's output is zero at first: it is its base)
    """

    width: int = 16
    depth: int = 1
    heads: int = 2
    patch: int = 12
    base: str = "daily"
    clip: float = 0.1
    local_steps: int = 5
    batch: int = 8
    rate: float = 2e-3
    residual_scale: float = 0.1
    train_only: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clip", "rate", "residual_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"net: {name} = {getattr(self, name)!r} is not a finite number above 0")
        for name in ("local_steps", "batch"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"net: {name} = {getattr(self, name)!r} is not a whole number of at least 1")
        if self.base not in ("daily", "linear", "simulated"):
            raise ValueError(f"net: base = {self.base!r} is unknown (takes: daily, linear, simulated)")


@dataclass(frozen=True)
class TrainImputer:
    """The task of homes that train an imputer together.

    days           whole days of a window; windows do not overlap
    cap_kw         public: readings are read within [0, cap_kw]
    moment_radius  l2 bound of a home's second moments; None: T / 2 (dp_gp.radius_of says when more is better)
    net            the net of train.imputer
    """

    days: int = 2
    cap_kw: float = CAP_KW
    moment_radius: float | None = None
    net: NetPlan = NetPlan()

    kinds = (WINDOWS, *STAGES, UPDATE)
    reads_arrays = True
    unit = "kWh"

    def __post_init__(self) -> None:
        if type(self.days) is not int or self.days < 1:
            raise ValueError(f"days = {self.days!r} is not a whole number of at least 1")
        for name in ("cap_kw", "moment_radius"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise ValueError(f"{name} = {value!r} is not a number above 0")

    # ---- public: shapes and bounds

    def slots(self, population: Population) -> int:
        return MINUTES_PER_DAY // population.step_minutes

    def length(self, population: Population) -> int:
        """T."""
        return self.days * self.slots(population)

    def count(self, population: Population) -> int:
        """Windows of every home, public: the records' length decides."""
        return population.steps // self.length(population)

    def cap(self, population: Population) -> float:
        """kWh per step."""
        return self.cap_kw * population.step_minutes / 60

    def phase(self, population: Population) -> int:
        """Step of the day at which every window starts."""
        start = np.datetime64(getattr(population, "start", None) or "1970-01-01", "m").astype(int)
        return int(start) % MINUTES_PER_DAY // population.step_minutes

    @property
    def clip(self) -> float:
        return self.net.clip

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        return self.kind_spec(UPDATE, population).coordinates

    def kind_spec(self, kind: str, population: Population) -> KindSpec:
        """How many numbers a kind releases, and their public l2 bound; ValueError for records too short."""
        slots, cap = self.slots(population), self.cap(population)
        if self.count(population) < 1:
            raise ValueError(f"records of {population.steps} steps are shorter than one window of {self.length(population)}")
        if kind == WINDOWS:
            return KindSpec(tuple(f"window {k + 1}" for k in range(self.count(population))), self.unit, cap)
        typical = cap * TYPICAL
        if kind == MEAN:
            return KindSpec(_numbered(slots), "sqrt(kWh)", math.sqrt(slots * typical))
        if kind == SCALE:
            return KindSpec(_numbered(slots), self.unit, math.sqrt(slots) * typical)
        if kind == MOMENTS:
            count = self.days * slots * (slots + 1) // 2
            return KindSpec(_numbered(count), "1", self.moment_radius or self.length(population) / 2)
        from fedenergy.imputation import federated_net

        return KindSpec(_numbered(federated_net.size(self.net, self.length(population), slots, cap)), "1", self.net.clip)

    def windows(self, population: Population, rounds: int = 1, repeat: str = "same_window") -> list[Span]:
        """The whole record, in every round."""
        start = getattr(population, "start", None)
        day = int(np.datetime64(start, "D").astype(int)) if start else 0
        days = population.steps // self.slots(population)
        return [Span((0, population.steps), (day, day + days))] * rounds

    def identity(self) -> Mapping[str, Any]:
        return {"use": "fedenergy.imputation.federated:TrainImputer", **asdict(self)}

    def public(self, population: Population, **state: Any) -> dict[str, Any]:
        """The task as a query names it; state: what was released before, or the digest of the weights sent along."""
        return {**self.identity(), "length": self.length(population), **state}

    # ---- in the box

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int, parties: int = 0,
                    arrays: Mapping[str, np.ndarray] | None = None) -> list[Answer]:
        """One answer per box."""
        if queries and queries[0].kind == WINDOWS:
            return answer_windows(boxes, queries, self._windowed)
        return answer_many(boxes, queries, partial(self._summaries, arrays=arrays or {}), seed=seed, parties=parties)

    def _windowed(self, boxes: Sequence[Box], queries: Sequence[SealedQuery]) -> list[NoiseFree]:
        return [NoiseFree(self.records(box.load(), box.world.population)) for box in boxes]

    def records(self, home: Household, population: Population) -> np.ndarray:
        """(n, T) a home's windows, NaN where nothing was read; n is the same for every home."""
        length, count = self.length(population), self.count(population)
        series = np.full(count * length, np.nan)
        known = min(len(series), len(home.total))
        series[:known] = home.total[:known]
        return series.reshape(count, length)

    def _summaries(self, boxes: Sequence[Box], queries: Sequence[SealedQuery],
                   arrays: Mapping[str, np.ndarray]) -> list[tuple[NoiseFree, str]]:
        found = []
        for box, query in zip(boxes, queries, strict=True):
            population = box.world.population
            rows = usable(self.records(box.load(), population))
            if not len(rows):
                values = np.zeros(len(box.world.spec(query.kind).coordinates))
                found.append((NoiseFree(values), "no window has half its readings: zeros instead"))
            elif query.kind == UPDATE:
                found.append((NoiseFree(self._update(box, query, rows, arrays)), ""))
            else:
                state = {name: _floats(query.body["task"].get(name, ())) for name in ("mean", "scale")}
                values = moments_of(query.kind, rows, self.days, self.cap(population), **state)
                found.append((NoiseFree(values), ""))
        return found

    def _update(self, box: Box, query: SealedQuery, rows: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        from fedenergy.imputation import federated_net

        weights = np.asarray(arrays.get(WEIGHTS, ()), np.float64)
        if digest_of(weights) != query.body["task"].get("weights"):
            raise ValueError("the weights that came along are not those that the query names")
        population = box.world.population
        windows = Windows(rows, self.slots(population), np.full(len(rows), self.phase(population)))
        return federated_net.update(self.net, windows, weights, self.cap(population), box.id, query.id)


def digest_of(weights: np.ndarray) -> str:
    """32 hex digits of a model's weights: part of the id of every query that sends them."""
    return hashlib.blake2b(np.ascontiguousarray(weights, "<f8").tobytes(), digest_size=16).hexdigest()


def usable(windows: np.ndarray) -> np.ndarray:
    """Those of (n, T) windows of which at least half is known."""
    return windows[np.isfinite(windows).mean(axis=1) >= USABLE]


def moments_of(kind: str, rows: np.ndarray, days: int, cap: float, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """One home's vector of a stage of dp_gp (see dp_gp.fit), averaged over its windows (n, T). Not clipped, no noise.

    mean, scale  (slots,) what the stages before released; empty where there is none
    """
    slots = rows.shape[1] // days
    x = forward(linear(rows[:, :, None])[:, :, 0], 0.0, cap, "sqrt")
    if kind == MEAN:
        return x.reshape(-1, days, slots).mean((0, 1))
    if mean.shape != (slots,):
        raise ValueError(f"{kind} needs the released mean of {slots} steps of the day")
    x = x - np.tile(mean, days)
    if kind == SCALE:
        return (x**2).reshape(-1, days, slots).mean((0, 1))
    if scale.shape != (slots,) or not (scale > 0).all():
        raise ValueError(f"{kind} needs the released scale of {slots} steps of the day, above 0")
    return Basis(days, slots).moments(x / np.tile(scale, days)).mean(0)


def released_mean(released: Released) -> np.ndarray:
    """The profile that a mean's release gives."""
    return smooth_profile(released)


def released_scale(released: Released, typical: float) -> np.ndarray:
    """(slots,) above 0."""
    square = smooth_profile(released)
    return np.sqrt(np.maximum(square, max(LEAST_SHARE * float(square.mean()), LEAST_VARIANCE * typical)))


def assembled(mean: np.ndarray, scale: np.ndarray, moments: Released, days: int, cap: float, phase: int,
              privacy: Spent) -> DpGp:
    """The imputer of three releases."""
    correlation, level = denoised(Basis(days, len(mean)), moments)
    return DpGp(np.roll(mean, phase), np.roll(scale, phase), correlation, privacy, phase, 0.0, cap, "sqrt", level)


def windows_of(households: Sequence[str], records: Sequence[np.ndarray], slots: int, phase: int,
               keep_all: bool = False) -> Windows:
    """The usable windows of homes, for the trainer; a home without any keeps one empty window, so that it counts.

    keep_all  every window, whatever is known of it: where a window is a record, their number must tell nothing
    """
    values, homes = [], []
    for name, rows in zip(households, records, strict=True):
        rows = np.asarray(rows, np.float64)
        kept = rows if keep_all else usable(rows)
        kept = kept if len(kept) else np.full((1, rows.shape[1]), np.nan)
        values.append(kept)
        homes += [name] * len(kept)
    stacked = np.concatenate(values)
    return Windows(stacked, slots, np.full(len(stacked), phase), tuple(homes))


def own_windows(home: Household, days: int) -> Windows:
    """A home's windows as dp_gp.fit takes them: for comparison with training outside the federation."""
    slots = home.steps_per_day
    return cut(home.total, days * slots, steps_per_day=slots, home=home.id)


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"k{k}" for k in range(count))


def _floats(values: Sequence[str]) -> np.ndarray:
    return np.array([float(value) for value in values])
