"""Homes whose readings and summaries are known to the test: a population that is rebuilt anywhere, and fast tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid

from fedenergy import ids
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.box import Answer, Box, answer_many
from fedenergy.box.policies import Fixed
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.world import World, enrolment_secret
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.households.household import Household
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise_free import NoiseFree
from tests import no_network

no_network.deny()  # Ray's workers import this module: they reach nobody either

FITTED: list[str] = []  # households whose readings a task asked for, in this process
CELL = "ab" * 16


@dataclass(frozen=True)
class Planted:
    """Homes with readings of random mantissas, made from a seed so that nothing of them lies in a pickle.

    odd    (index, how): that home's data differ ("other", "constant", "large", "missing"), or loading it fails
           ("broken"). No part of identity(): two populations with the same public state
    """

    count: int = 3
    seed: int = 1
    odd: tuple[int, str] | None = None
    steps: int = 49
    channels: tuple[str, ...] = ("fridge", "oven")

    name = "planted"
    unit = "household"
    step_minutes = 60
    start = "2024-01-01"

    def __len__(self) -> int:
        return self.count

    @property
    def ids(self) -> Sequence[str]:
        return [f"h{index}" for index in range(self.count)]

    def load(self, index: int) -> Household:
        how = self.odd[1] if self.odd and self.odd[0] == index else ""
        draw = ids.stream(self.seed, f"planted {how}", f"h{index}")
        # mantissas with set high bits look like no text, so a hit in a log is a hit
        readings = draw.uniform(0.1, 2.0, (self.steps, len(self.channels)))
        total = readings.sum(axis=1) * draw.uniform(1.0, 1.1, self.steps)
        if how == "broken":
            raise ValueError(f"home {index}: a reading of {readings[0, 0]!r} kWh, then {readings[1].tolist()}")
        if how == "constant":
            readings, total = np.ones_like(readings), np.full_like(total, 2.0)
        if how == "large":
            readings, total = readings * 1e3, total * 1e3
        if how == "missing":
            total[5:] = np.nan
        return Household(f"h{index}", self.channels, readings, total, np.datetime64(self.start, "m"), 60)

    def identity(self) -> Mapping[str, Any]:
        return {"use": "tests.federation.helpers:Planted", "seed": self.seed, "steps": self.steps}


@dataclass(frozen=True)
class Window:
    rows: tuple[int, int]
    blocks: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Sums:
    """A fast task: S_i[k] = sum over the window of reading[t, k] total[t], NaN skipped; kWh^2.

    fails   the summary of that home raises, with readings in the exception's text
    """

    clip: float = 64.0
    fails: int = -1

    kinds = ("appliances",)
    unit = "kWh^2"

    def coordinate_names(self, population: Any) -> tuple[str, ...]:
        return tuple(population.channels)

    def windows(self, population: Any, rounds: int, repeat: str) -> Sequence[Window]:
        each = population.steps // rounds
        return [Window((0, population.steps) if repeat == "same_window" else (at * each, (at + 1) * each), (at, at + 1))
                for at in range(rounds)]

    def identity(self) -> Mapping[str, Any]:
        return {"use": "tests.federation.helpers:Sums", "clip": self.clip}

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int,
                    parties: int = 0) -> list[Answer]:
        return answer_many(boxes, queries, self.summaries, seed=seed, parties=parties)

    def summaries(self, boxes: Sequence[Box], queries: Sequence[SealedQuery]) -> list[tuple[NoiseFree, str]]:
        found = []
        for box, query in zip(boxes, queries, strict=True):
            FITTED.append(box.id)
            values = self.summary(box.load(), slice(*query.rows))
            if box.index == self.fails:
                raise RuntimeError(f"cannot explain {box.load().readings[0].tolist()}, S = {values.tolist()}")
            found.append((NoiseFree(values), ""))
        return found

    def summary(self, home: Household, rows: slice) -> np.ndarray:
        return np.nansum(home.readings[rows] * home.total[rows, None], axis=0)


@dataclass(frozen=True)
class Known(Sums):
    """Sums with its summaries given: values[i] is the S of the home with index i."""

    values: tuple[tuple[float, ...], ...] = field(default=(), hash=False)

    def coordinate_names(self, population: Any) -> tuple[str, ...]:
        return tuple(f"k{k}" for k in range(len(self.values[0])))

    def summaries(self, boxes: Sequence[Box], queries: Sequence[SealedQuery]) -> list[tuple[NoiseFree, str]]:
        FITTED.extend(box.id for box in boxes)
        return [(NoiseFree(np.array(self.values[box.index])), "") for box in boxes]


@dataclass(frozen=True)
class Says:
    """A policy that gives a fixed answer; an exception is raised."""

    answer: Any

    def offer(self, case: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(case) if callable(self.answer) else self.answer


def make_world(folder: Path, task: Any, count: int = 3, *, policy: Any = None, noise: str = "simulation",
               population: Any = None, open: bool = False, **terms: Any) -> World:
    """A world of planted homes with its ledger in folder."""
    ledger = folder / "ledger"
    return World(population or Planted(count), task, policy or Fixed(), AgreementTerms(**terms), ledger, noise, open,
                 enrolment_secret(noise, ledger))


def seal(world: World, trust: str, homes: Sequence[str] | None = None, *, epsilon: Any = 1.0, rows=(0, 49),
         cell: str = CELL, round: int = 0, **query: Any) -> SealedQuery:
    """A query of a world, as a campaign would seal it."""
    asked = Query("appliances", epsilon, **query)
    clip = world.task.clip
    return asked.sealed(task=world.task.identity(), population=world.population.identity(), window=Window(rows),
                        grid=NoiseGrid(clip).step, clip=clip, trust=trust,
                        mechanism="none" if trust == "open" else "laplace", cell=cell, round=round,
                        homes=world.population.ids if homes is None else homes)


def boxes_of(world: World) -> list[Box]:
    return [Box(world, index) for index in range(len(world.population))]


def local_grid(*worlds: World, inside: Path | None = None) -> LocalGrid:
    """The homes of the worlds, in this process."""
    return LocalGrid(make_client(Homes(worlds, inside)), max(len(world.population) for world in worlds))


def to_homes(nodes: Sequence[int], kind: str = "train", content: RecordDict | None = None) -> list[Message]:
    """One message to each home (by index), as a strategy makes them."""
    content = RecordDict() if content is None else content
    return [flower.instruction(content, flower.node_id(index), kind, "1") for index in nodes]


def wire(content: RecordDict) -> bytes:
    """The bytes of a content on Flower's wire."""
    return recorddict_to_proto(content).SerializeToString(deterministic=True)


@dataclass(frozen=True)
class Crossing:
    """One message as it crossed: out to a node, or back from it; error: the code, where there is no content."""

    way: str
    node: int
    kind: str
    group: str
    content: RecordDict | None
    data: bytes
    error: int = 0
    text: str = ""

    @property
    def trust(self) -> str:
        """"local", ... where it is a query, else ""."""
        record = (self.content or {}).get(records.QUERY)
        return SealedQuery.from_wire({k: v for k, v in record.items() if k not in records.EXTRAS}).trust \
            if record else ""

    @property
    def status(self) -> str:
        return records.status_of(self.content) or "envelope" if self.content is not None else "error"


class Tap(Grid):
    """A grid that keeps a copy of everything that crosses another; change(message) may put another reply in place."""

    def __init__(self, grid: Grid, change: Callable[[Message, Message], Message] | None = None) -> None:
        self.grid, self.change = grid, change
        self.crossings: list[Crossing] = []

    def send_and_receive(self, messages, *, timeout=None):
        batch = list(messages)
        for message in batch:
            self._keep("out", message, message.metadata.dst_node_id)
        replies = list(self.grid.send_and_receive(batch, timeout=timeout))
        for message, reply in zip(batch, replies, strict=True):
            self._keep("in", reply, message.metadata.dst_node_id)
        return replies if self.change is None else list(map(self.change, batch, replies))

    def _keep(self, way: str, message: Message, node: int) -> None:
        meta = message.metadata
        if message.has_content():
            content = RecordDict({name: record.copy() for name, record in message.content.items()})
            self.crossings.append(Crossing(way, node, meta.message_type, meta.group_id, content, wire(content)))
        else:
            self.crossings.append(Crossing(way, node, meta.message_type, meta.group_id, None, b"",
                                           message.error.code, message.error.reason or ""))

    def replies(self, *status: str) -> list[Crossing]:
        return [c for c in self.crossings if c.way == "in" and (not status or c.status in status)]

    def asked(self, kind: str = "") -> list[int]:
        """Indices of the homes that were asked, in order."""
        return [flower.node_index(c.node) for c in self.crossings if c.way == "out" and kind in ("", c.kind)]

    def close(self) -> None:
        if hasattr(self.grid, "close"):
            self.grid.close()

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids):
        return self.grid.pull_messages(message_ids)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run):
        self.grid.set_run(run)

    @property
    def run(self):
        return self.grid.run


@contextmanager
def all_logs() -> Iterator[list[str]]:
    """Every record of every logger, down to DEBUG, as text."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.name.startswith("numba"):  # what it compiles depends on its cache
                lines.append(self.format(record))

    root, keep = logging.getLogger(), Keep()
    level = root.level
    root.addHandler(keep)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.removeHandler(keep)
        root.setLevel(level)
