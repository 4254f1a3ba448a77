"""The household side: a Flower ClientApp whose handlers open boxes, one by one or many at once."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedenergy.box.box import Answer, Box, consider, open_ledger, sound
from fedenergy.box.ledger import LedgerBroken, LedgerUnavailable
from fedenergy.box.query import QUERY_CLASSES, SealedQuery
from fedenergy.box.world import World
from fedenergy.errors import one_line, where
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import masked_rounds, records, shard_nodes
from fedenergy.federation import negotiation_rounds as rounds
from fedenergy.federation.failures import note_inside
from fedenergy.federation.shard import Client
from fedenergy.federation.update_records import alike, brought, encode

ACCEPT, HELLO = "accept", "hello"
TRAIN, EVALUATE, IMPUTER = "train", "evaluate", "imputer"


@dataclass(frozen=True, eq=False)
class Homes:
    """What a process needs to play households: the worlds, by number, and where the inside view is logged."""

    worlds: tuple[World, ...]
    inside: Path | None = None

    def box(self, world: int, index: int) -> Box:
        """The box of a home, opened once per process."""
        self.world(world)
        return _box(self, world, index)

    def world(self, number: int) -> World:
        """The world of that number; ValueError where there is none."""
        if not 0 <= number < len(self.worlds):
            raise ValueError(f"world {number} does not exist: there are {len(self.worlds)}")
        return self.worlds[number]

    @property
    def shows_inside(self) -> bool:
        """Whether notes about a home's data may be logged: only in a simulation with an oracle."""
        return any(world.open for world in self.worlds)

    def failed(self, index: int, error: BaseException, phase: str = "") -> None:
        """Note inside where a home failed: texts of exceptions may hold readings, but for those of a ledger. phase: type
        of the message."""
        ids = self.worlds[0].population.ids if self.worlds else ()
        home = f"shard {index}" if "shard" in phase or index >= len(ids) else ids[index]
        reason = one_line(error) if isinstance(error, LedgerBroken | LedgerUnavailable) else where(error)
        self.log([{"index": index, "household": home, "phase": phase, "code": "error", "reason": reason}])
        if os.environ.get("FEDENERGY_DEBUG") == "1":
            traceback.print_exception(error)

    def log(self, entries: Iterable[dict]) -> None:
        """Append to this process's inside view: codes and reasons that the outside never sees."""
        if self.inside is not None:
            note_inside(self.inside, entries)


@cache
def _box(homes: Homes, world: int, index: int) -> Box:
    return Box(homes.worlds[world], index)


def make_client(homes: Homes) -> Client:
    """The Client (ClientApp and batch handlers) of these homes; functools.partial(make_client, homes) is a factory."""
    app = ClientApp()

    def many(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        indices = [index_of(context) for context in contexts]
        replies: list[Message] = []
        for query, extras, part in _runs(homes, messages):
            boxes = [homes.box(extras["world"], indices[at]) for at in part]
            if messages[0].metadata.message_type == EVALUATE and query.kind != getattr(boxes[0].world.task, "evaluates", ""):
                raise ValueError(f"a {query.kind} query is no evaluation of a model")
            rounds.bind(boxes, query, messages[part[0]].content)
            boxes = masked_rounds.masked_boxes(boxes, query, messages[part[0]].content, extras["parties"])
            task = boxes[0].world.task
            answers = task.answer_many(boxes, [query] * len(boxes), seed=extras["seed"], parties=extras["parties"],
                                       **brought(task, [messages[at].content for at in part]))
            homes.log(_noted(sound(answers), query, homes.shows_inside))
            replies += [_reply(messages[at], answer, query) for at, answer in zip(part, answers, strict=True)]
        return replies

    def accept(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        replies: list[Message] = []
        for query, extras, part in _runs(homes, messages):
            boxes = [homes.box(extras["world"], index_of(contexts[at])) for at in part]
            rounds.bind(boxes, query, messages[part[0]].content)
            decisions = sound(accept_many(boxes, query))
            homes.log(_noted([d for d in decisions if d is not None], query, homes.shows_inside))
            replies += [flower.reply(messages[at], records.acceptance(box.id, query.id) if decision is None
                                     else records.refusal(box.id, query.id))
                        for at, box, decision in zip(part, boxes, decisions, strict=True)]
        return replies

    def one(handler):
        return lambda message, context: handler([message], [context])[0]

    app.train()(one(many))
    app.query(ACCEPT)(one(accept))
    for kind in QUERY_CLASSES:
        if "." not in kind:
            app.query(kind)(one(many))
    app.train(IMPUTER)(one(many))
    app.evaluate()(one(many))
    more = {name: masked_rounds.handler(homes, name) for name in masked_rounds.ROUNDS}
    more[rounds.NEGOTIATE] = rounds.handler(homes)
    more |= {kind: shard_nodes.handler(homes, kind) for kind in shard_nodes.SHARD_KINDS}
    for name, handler in more.items():
        app.query(name)(one(handler))

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        return Message(RecordDict({HELLO: ConfigRecord({"index": index_of(context)})}), reply_to=message)

    def failed(context: Context, error: BaseException, phase: str) -> None:
        homes.failed(index_of(context), error, phase)

    batch = {f"query.{kind}": many for kind in QUERY_CLASSES} | {TRAIN: many, EVALUATE: many,
                                                                 f"{TRAIN}.{IMPUTER}": many, f"query.{ACCEPT}": accept}
    return Client(app, batch | {f"query.{name}": handler for name, handler in more.items()}, failed)


def accept_many(boxes: Sequence[Box], query: SealedQuery) -> list[Answer | None]:
    """First phase of a sum: None where the home will take part, else its refusal. Nothing is charged or fitted."""
    ledger = open_ledger(boxes[0].world.ledger)
    stored = ledger.lookup([(box.id, query.id) for box in boxes])
    decisions = consider(boxes, [query] * len(boxes), ledger)
    return [decision if isinstance(decision, Answer) and (box.id, query.id) not in stored else None
            for box, decision in zip(boxes, decisions, strict=True)]


def index_of(context: Context) -> int:
    """Household index of a node: Flower's partition id."""
    return int(context.node_config["partition-id"])


def _runs(homes: Homes, messages: Sequence[Message]):
    """Split a batch into runs whose homes can be asked together: (query, extras, positions)."""
    start = 0
    while start < len(messages):
        query, extras = records.read_query(messages[start].content)
        task, end = homes.world(extras["world"]).task, start + 1
        while end < len(messages) and alike(task, messages[start].content, messages[end].content):
            end += 1
        yield query, extras, range(start, end)
        start = end


def _reply(message: Message, answer: Answer, query: SealedQuery) -> Message:
    content = (records.refusal(answer.household, query.id) if answer.envelope is None
               else encode(answer.envelope))
    return flower.reply(message, content)


def _noted(answers: Sequence[Answer], query: SealedQuery, inside: bool) -> list[dict]:
    """Refusals, whose reasons never depend on data; notes on answered homes only where there is an inside view."""
    return [{"household": a.household, "query_id": query.id, "cell": query.cell, "code": a.code, "reason": a.reason}
            for a in answers if a.envelope is None or (inside and a.reason)]
