"""The campaign loop: rounds of configure, exchange and aggregate for several strategies at once, paired and resumable.

Flower's own Strategy.start cannot resume and asks the homes anew for every strategy. Here the strategies of one cell
share its releases, and each round ends in a checkpoint.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedenergy import ids
from fedenergy.box.ledger import Ledger
from fedenergy.box.policy import Published
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.shaping import grid_steps, release_mechanism, shaped
from fedenergy.box.world import World
from fedenergy.box.zone_store import ZoneStore
from fedenergy.errors import RunFailed, naming
from fedenergy.federation import records
from fedenergy.federation.failures import INSIDE, first_error, killers_of, sizes_of
from fedenergy.federation.flower_adapter import frozen_gc, quiet_flower
from fedenergy.federation.freeze import dump_arrays, freeze, load_arrays, thaw
from fedenergy.federation.local_grid import collector_paused
from fedenergy.federation.negotiation_rounds import Negotiation
from fedenergy.federation.scores import Less
from fedenergy.federation.shard_exchange import ShardExchange, ShardGrid
from fedenergy.federation.training import Training, trains
from fedenergy.federation.trust_grid import UNBOUNDED, Crossings, Exchange, TrustGrid
from fedenergy.federation.zone_answers import zone_answer
from fedenergy.privacy.epsilon import text
from fedenergy.privacy.gaussian import GAUSSIAN
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noisy_max import NOISY_MAX
from fedenergy.privacy.sum_protocol import SumProtocol
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM, check_trust
from fedenergy.privacy.weighted import ATTRIBUTION, WEIGHTED

NO_NOISE, LAPLACE = "none", "laplace"
SHOWN = 4  # earlier zone answers of a cell that a negotiation shows to the homes
MECHANISMS = {LOCAL: (LAPLACE, GAUSSIAN), SUM: (LAPLACE,), CURATOR: (LAPLACE, GAUSSIAN, UNBOUNDED), OPEN: (NO_NOISE,)}


@dataclass(frozen=True)
class Entry:
    """One strategy of a study: a label for tables, and how to make a fresh one."""

    label: str
    build: Callable[[], Strategy]
    trust: str | None = None


@dataclass(frozen=True)
class Part:
    """One combination of the varied keys, with one seed: its strategies run side by side, round by round."""

    name: str
    keys: Mapping[str, Any]
    world: World
    number: int
    oracle: tuple[World, int] | None
    query: Query
    policy: str
    policy_key: Any
    seed: int
    entries: Sequence[Entry]
    max_failures: float = 0.0
    negotiation: Negotiation | None = None
    shards: bool = False


@dataclass
class State:
    """What a part has done so far; the checkpoint is its JSON form."""

    round: int = 0
    rows: list[list] = field(default_factory=list)
    zones: list[dict] = field(default_factory=list)
    answers: list[dict] = field(default_factory=list)
    cells: dict[str, dict] = field(default_factory=dict)
    arrays: dict[str, dict] = field(default_factory=dict)
    strategies: dict[str, dict] = field(default_factory=dict)
    crossings: dict[str, dict] = field(default_factory=dict)
    published: dict[str, list[dict]] = field(default_factory=dict)
    queries: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    granted: dict[str, list[int]] = field(default_factory=dict)  # cell -> least and most micro-epsilon of one answer
    quarantined: list[int] = field(default_factory=list)         # nodes that a grid does not ask any more


class Spending:
    """What every home paid for this run's questions, cell by cell, as the ledger says.

    Read from the rows of the questions themselves and of the homes that this run asked, so that a run on a ledger with
    a past, or one that was resumed, shows the same numbers again.
    queries  cell -> query id -> indices of the homes asked so far: kept in the checkpoint
    granted  cell -> [least, most] micro-epsilon that a home granted for one answer
    """

    def __init__(self, ledger: Ledger, homes: Sequence[str], queries: dict[str, dict[str, list[int]]]) -> None:
        self._ledger, self._homes, self._queries = ledger, homes, queries
        self._totals: dict[str, np.ndarray] = {}
        self.granted: dict[str, list[int]] = {}
        for cell, asked in queries.items():
            for query_id, indices in asked.items():
                self._add(cell, query_id, indices)

    def after(self, cell: str, query_id: str, indices: Sequence[int]) -> tuple[float, float]:
        """(mean, largest) epsilon over all homes, with this question to these homes."""
        asked = self._queries.setdefault(cell, {}).setdefault(query_id, [])
        new = sorted(set(indices) - set(asked))
        asked += new
        self._add(cell, query_id, new)
        total = self._totals[cell]
        return float(total.sum()) * 1e-6 / len(self._homes), float(total.max()) * 1e-6

    def _add(self, cell: str, query_id: str, indices: Sequence[int]) -> None:
        total = self._totals.setdefault(cell, np.zeros(len(self._homes), dtype=np.int64))
        if len(indices):
            paid, homes = self._ledger.paid(query_id), self._homes
            total[np.array(indices)] += np.fromiter((paid.get(homes[at], 0) for at in indices), np.int64, len(indices))
            if amounts := [*self.granted.get(cell, ()), *(paid[homes[at]] for at in indices if homes[at] in paid)]:
                self.granted[cell] = [min(amounts), max(amounts)]


def declared(strategy: Strategy, override: str | None = None, kind: str = "") -> tuple[str, str, str]:
    """(trust, mechanism, returns) of a strategy: its class attributes, or the defaults that make stock ones safe.

    kind  of the query: a home that tells its top category under trust local does so by noisy max
    """
    trust = check_trust(override or getattr(strategy, "trust", LOCAL))
    mechanism = NO_NOISE if trust == OPEN else getattr(strategy, "mechanism", LAPLACE)
    if mechanism not in MECHANISMS[trust] and not (trust == SUM and SumProtocol.parse(mechanism)):
        raise ValueError(f"mechanism {mechanism!r} is not one of trust {trust}: use {', '.join(MECHANISMS[trust])}"
                         + (" (shares of a discrete Gaussian do not add up to one)" if mechanism == GAUSSIAN else ""))
    if (kind, trust, mechanism) == ("top", LOCAL, LAPLACE):
        mechanism = NOISY_MAX
    return trust, mechanism, getattr(strategy, "returns", "mean")


def cell_of(part: Part, trust: str, mechanism: str) -> str:
    """The part's cell for a trust mode and mechanism: its own world, with its own budgets."""
    return ids.cell_id({"trust": trust, "mechanism": mechanism, "policy": part.policy_key,
                        "epsilon": text(part.query.epsilon_micro), "seed": part.seed, "vary": part.keys})


def sealer(query: Query, world: World, trust: str, mechanism: str, cell: str, round_index: int, window):
    """A function that seals the query for the homes asked."""
    clip = world.spec(query.kind).clip
    grid = NoiseGrid(clip)

    def seal(homes: Sequence[str]) -> SealedQuery:
        return query.sealed(task=world.task.identity(), population=world.population.identity(), window=window,
                                 grid=grid.step, clip=clip, trust=trust, mechanism=mechanism, cell=cell,
                                 round=round_index, homes=homes)
    return seal


class Campaign:
    """Plays one part: its rounds, all strategies side by side.

    score     (released, truth) -> metrics; see fedenergy.federation.scores
    observe   told every exchange's releases, to be kept with the run
    """

    def __init__(self, part: Part, grid: Grid, zones: ZoneStore, checkpoint: Path, score: Callable[..., dict],
                 observe: Callable[..., None], ledger: Ledger,
                 truths: dict[str, dict[str, np.ndarray] | None]) -> None:
        self.part, self.grid, self.zones, self.checkpoint = part, grid, zones, checkpoint
        self.score, self.observe, self.truths, self.ledger = score, observe, truths, ledger
        self.state = load_state(checkpoint) or State()
        self.spending = Spending(ledger, part.world.population.ids, self.state.queries)
        self.state.granted = self.spending.granted
        self._noted: dict[str, int] = {}
        if (gone := getattr(grid, "quarantined", None)) is not None:
            gone |= set(self.state.quarantined)
        self.strategies = {entry.label: entry.build() for entry in part.entries}
        for label, frozen in self.state.strategies.items():
            thaw(frozen, self.strategies[label])

    def play(self, advance: Callable[..., None]) -> State:
        """All rounds that are not done yet. Each ends with a durable checkpoint."""
        part = self.part
        windows = part.world.task.windows(part.world.population, part.query.rounds, part.query.repeat)
        start = np.zeros(len(part.world.spec(part.query.kind).coordinates))
        training = self._training() if trains(part.query.kind) else None
        for index in range(self.state.round, part.query.rounds):
            crossings = Crossings()
            exchange = self._exchange(part.world, part.number, part.seed, crossings, self._negotiation())
            self._noted = sizes_of(self._inside)
            truth = None if training else self._truth(index, windows[index], crossings)
            for entry in part.entries:
                if training:
                    training.turn(entry, index, windows[index], crossings, advance)
                else:
                    self._turn(entry, index, windows[index], exchange, truth, start, advance)
            self.observe(part, index, exchange)
            for cell, answer in exchange.published.items():
                self.state.published[cell] = [*self.state.published.get(cell, []), answer][-SHOWN:]
            self.state.round = index + 1
            self.state.strategies = {label: freeze(strategy) for label, strategy in self.strategies.items()}
            merge(self.state.crossings, crossings)
            self.state.quarantined = sorted(getattr(self.grid, "quarantined", ()))
            save_state(self.checkpoint, self.state)
        return self.state

    def _training(self) -> Training:
        cell = cell_of(self.part, OPEN, NO_NOISE)
        self._describe(cell, OPEN, NO_NOISE)
        return Training(self, seeded, cell)

    def _describe(self, cell: str, trust: str, mechanism: str) -> None:
        self.state.cells[cell] = {"trust": trust, "mechanism": mechanism, "policy": self.part.policy,
                                  "epsilon": text(self.part.query.epsilon_micro), "seed": self.part.seed, **self.part.keys,
                                  **({"guarantee": "no guarantee"} if mechanism == ATTRIBUTION else {})}

    def _negotiation(self) -> Negotiation | None:
        """The part's negotiation with the zone answers of the rounds before this one."""
        if self.part.negotiation is None:
            return None
        return replace(self.part.negotiation, releases={
            cell: tuple(Published(**one) for one in answers) for cell, answers in self.state.published.items()})

    def _turn(self, entry: Entry, index: int, window, exchange: Exchange, truth, start, advance) -> None:
        part, strategy = self.part, self.strategies[entry.label]
        trust, mechanism, returns = declared(strategy, entry.trust, part.query.kind)
        mechanism = shaped(part.world.policy, mechanism)
        cell = cell_of(part, trust, mechanism)
        self._describe(cell, trust, mechanism)
        world = part.world
        if trust == OPEN and part.oracle is not None:  # the only world whose agreements grant "open"
            world, number = part.oracle
            exchange = self._exchange(world, number, part.seed, exchange.crossings)
        grid = exchange.strategy_grid(trust, sealer(part.query, world, trust, mechanism, cell, index, window))
        before = self.state.arrays.get(entry.label)
        arrays = load_arrays(before) if before else ArrayRecord({records.SUMMARY: Array(start)})
        with quiet_flower():
            with seeded(cell, index, "configure"), self.blame(entry, index):
                messages = list(strategy.configure_train(index + 1, arrays.copy(), ConfigRecord(), grid) or ())
            with collector_paused():
                replies = grid.send_and_receive(messages)
            self.check_failures(grid, entry, index)
            with seeded(cell, index, "aggregate"), self.blame(entry, index), frozen_gc():
                result, _ = strategy.aggregate_train(index + 1, replies) if replies else (None, None)
        released = None
        if result is not None:
            self.state.arrays[entry.label] = dump_arrays(result)
            with self.blame(entry, index):
                released = checked_zone(result, trust, start.size)
            if returns == "mean" and trust in (LOCAL, OPEN):  # under sum and curator the one reply is a sum already
                released = released * len(grid.answered)
        mean = most = float("nan")
        if trust != OPEN and grid.query is not None:
            mean, most = self.spending.after(cell, grid.query.id, grid.asked_indices)
        values = {"answers": len(grid.answered), "refusals": grid.refused, "failures": grid.failed,
                  "epsilon_spent_mean": mean, "epsilon_spent_max": most}
        delta = part.query.delta if mechanism == GAUSSIAN else 0.0
        if released is not None and grid.query is not None and trust != OPEN:
            weights = getattr(release_mechanism(grid.query, world.policy, released.size), "weights", (1.0,))
            self.state.answers.append(zone_answer(
                grid.query, part.world.spec(part.query.kind), released, self._granted(grid, exchange), asked=grid.asked,
                answers=len(grid.answered), plain_sum=returns == "sum" and mechanism != ATTRIBUTION,
                widest=max(weights), cell=cell, strategy=entry.label, seed=part.seed,
                round=index + 1))
        if truth is not None and released is not None:
            norm = {}
            if delta or mechanism == WEIGHTED:  # another ball: noise is measured against what it was added to
                law, norm = release_mechanism(grid.query, world.policy, released.size), {"norm": 2} if delta else {}
                truth = {name: law.plain(values[1]) for name, values in truth.items()}
            less = self._clipped_to_less(grid, world, truth)
            scores, zone = self.score(released, truth, grid.answered, less=less, **norm)
            values |= scores
            self.state.zones.append({"cell": cell, "strategy": entry.label, "trust": trust,
                                     "epsilon": part.query.epsilon, "seed": part.seed, "round": index + 1, **zone})
        key = [cell, part.world.population.name, entry.label, part.policy, trust,
               float("inf") if trust == OPEN else part.query.epsilon, delta, part.seed, index + 1]
        self.state.rows += [[*key, metric, float(value)] for metric, value in values.items()]
        advance(1, failures=grid.failed, refusals=grid.refused, epsilon_max=None if most != most else most)

    def check_failures(self, grid: TrustGrid | ShardGrid, entry: Entry, index: int) -> None:
        """RunFailed where more homes failed than the study allows."""
        part = self.part
        if grid.too_many(grid.lost):
            raise RunFailed(f"{grid.lost} of {grid.asked} homes failed in round {index + 1} of {entry.label} "
                            f"({part.name}), more than [engine] max_failures = {part.max_failures:g} allows"
                            + self._first_failure())

    @property
    def _inside(self) -> Path:
        return self.checkpoint.parent.parent / INSIDE

    def _first_failure(self) -> str:
        """What is known of it: a home that raised by its own note, a home that kills its workers by its quarantine."""
        told = first_error(self._inside, self._noted)
        killers = killers_of(self.grid, self.part.world.population.ids)
        found = [f"the first error: {told}"] * bool(told) + [killers] * bool(killers)
        return f"; {'; '.join(found)}" if found else ""

    @contextmanager
    def blame(self, entry: Entry, index: int):
        """A strategy's failure is its own: named, with the round, whatever it raised."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise RunFailed(f"strategy {entry.label} failed in round {index + 1} ({self.part.name}): "
                            f"{type(error).__name__}: {error}") from error

    def _exchange(self, world: World, number: int, seed: int, crossings: Crossings,
                  negotiation: Negotiation | None = None) -> Exchange | ShardExchange:
        if self.part.shards:
            return ShardExchange(self.grid, world, number, seed, self.zones, crossings, self.part.max_failures)
        return Exchange(self.grid, world, number, seed, self.zones, crossings, negotiation, self.part.max_failures)

    def _granted(self, grid: TrustGrid | ShardGrid, exchange: Exchange | ShardExchange) -> list[int]:
        """Micro-epsilon of each home in the answer: under one noise, what was asked."""
        if grid.query.trust != LOCAL:
            return [grid.query.epsilon_micro] * len(grid.answered)
        return exchange.granted(grid.query.id, grid.answered)

    def _clipped_to_less(self, grid: TrustGrid | ShardGrid, world: World,
                         truth: Mapping[str, np.ndarray]) -> dict[str, Less]:
        """The homes that granted less than was asked where one noise is scaled to what was: each is clipped to as much
        less. By household; nobody where every home adds its own noise."""
        query = grid.query
        if query is None or query.trust not in (SUM, CURATOR):
            return {}
        paid, asked = self.ledger.paid(query.id), query.epsilon_micro
        size = len(world.spec(query.kind).coordinates)
        law, steps = release_mechanism(query, world.policy, size), grid_steps(query, world.policy, size)
        return {name: Less(law.deposit(truth[name][1], law.bound_for(paid[name], asked)) * steps, paid[name] / asked)
                for name in grid.answered if name in truth and paid.get(name, asked) < asked}

    def _truth(self, index: int, window, crossings: Crossings) -> dict[str, np.ndarray] | None:
        """(2, d) per home, clipped and unclipped, asked on the same path under trust "open"; None without an oracle.

        Neither epsilon nor the seed changes it, so the parts of a study share it.
        """
        if self.part.oracle is None:
            return None
        world, number = self.part.oracle
        keys = {key: value for key, value in self.part.keys.items() if not key.startswith("query.")}
        cell = ids.cell_id({"trust": OPEN, "mechanism": NO_NOISE, "policy": self.part.policy_key, "epsilon": "inf",
                            "seed": 0, "vary": keys})
        exchange = self._exchange(world, number, 0, crossings)
        # without meaning here, so the same for every epsilon of the study
        asked = replace(self.part.query, epsilon=1.0, delta=0.0)
        query = sealer(asked, world, OPEN, NO_NOISE, cell, index, window)([])
        if query.id not in self.truths:
            found, refused, failed = exchange.truth_of(query, str(index + 1))
            if failed:
                why = self._first_failure() or ": see the inside view in the run folder, or set oracle = false"
                raise RunFailed(f"the oracle's question failed in {failed} of {len(world.population)} homes{why}")
            self.truths[query.id] = None if refused else found  # who refuses everybody has no truth to tell
        return self.truths[query.id]


def checked_zone(result: ArrayRecord, trust: str, coordinates: int) -> np.ndarray:
    """The zone's vector (d,) of a strategy's arrays: one array called summary, real and finite; else ValueError."""
    if list(result) != [records.SUMMARY]:
        raise ValueError(f"it returned the arrays {sorted(result)}: one array called summary is expected")
    values = result[records.SUMMARY].numpy()
    if trust == OPEN and values.shape == (2, coordinates):  # whatever adds up Plains: the unclipped half
        values = values[1]
    if values.shape != (coordinates,) or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        what = "" if values.dtype.kind not in "fc" or np.isfinite(values).all() else " with NaN or infinite values"
        raise ValueError(f"it returned {values.dtype} {values.shape}{what}: ({coordinates},) finite real numbers are "
                         "expected")
    return values.astype(np.float64)


@contextmanager
def seeded(cell: str, round_index: int, phase: str):
    """Seed `random` and `np.random` by cell and round around a strategy's own code, and restore them after."""
    state, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - stock strategies draw from it
    key = int.from_bytes(ids.digest(b"fe.strategy.1", [cell, round_index, phase], 4), "little")
    random.seed(key)
    np.random.seed(key)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(legacy)  # noqa: NPY002


def merge(total: dict[str, dict], crossings: Crossings) -> None:
    """Add one round's crossings to a part's."""
    for name in ("envelopes", "refused", "errors", "zones", "offers", "accepted"):
        counts = total.setdefault(name, {})
        for trust, count in getattr(crossings, name).items():
            counts[trust] = counts.get(trust, 0) + count


def save_state(path: Path, state: State) -> None:
    """Write a checkpoint so that a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(vars(state)).encode())


def load_state(path: Path) -> State | None:
    """The checkpoint, or None where there is none."""
    return State(**json.loads(path.read_bytes())) if path.exists() else None


def write_durably(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder."""
    draft = path.with_name(path.name + ".tmp")
    with naming(path), open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
