"""Nodes that are shards of homes: one message asks all homes of a ledger file, one reply carries their block.

For populations where a message per home costs more than the home's answer. What crosses is what crosses home by home:
the same envelopes, charges and noise, stacked along a leading home axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedenergy.box.block import Block, accept_block, answer_block, answer_open, gate, stacked
from fedenergy.box.box import Answer, Box, sound
from fedenergy.box.ledger import BUCKETS, bucket
from fedenergy.box.query import SealedQuery
from fedenergy.box.world import World
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.privacy.trust import ENVELOPES, OPEN

if TYPE_CHECKING:
    from fedenergy.federation.client_app import Homes

ASK, ACCEPT = "shard", "shard_accept"  # message types query.shard, query.shard_accept
SHARD_KINDS = (ASK, ACCEPT)
EPSILONS, LEFT_OUT = "epsilon_micro", "left_out"


@lru_cache(maxsize=64)
def shards_of(world: World) -> tuple[tuple[int, ...], ...]:
    """Household indices of each of the 64 shards: those of one ledger file, in index order."""
    found: list[list[int]] = [[] for _ in range(BUCKETS)]
    for index, household in enumerate(world.population.ids):
        found[bucket(household)].append(index)
    return tuple(map(tuple, found))


def handler(homes: Homes, kind: str) -> Callable[[Sequence[Message], Sequence[Context]], list[Message]]:
    """The batch handler of one of the two message types."""
    def handle(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        return [flower.reply(message, _answered(homes, kind, message, int(context.node_config["partition-id"])))
                for message, context in zip(messages, contexts, strict=True)]
    return handle


def _answered(homes: Homes, kind: str, message: Message, shard: int) -> RecordDict:
    query, extras = records.read_query(message.content)
    boxes = _boxes(homes, extras["world"], shard)
    if LEFT_OUT in message.content:
        out = set(message.content[LEFT_OUT]["indices"])
        boxes = tuple(box for box in boxes if box.index not in out)
    if kind == ACCEPT:
        takers, refused, failed = _accepted(homes, boxes, query)
        homes.log(noted(refused, query))
        return RecordDict({records.ENVELOPE: ConfigRecord({"query_id": query.id, "households": _joined(takers),
                                                           "refused": len(refused), "failed": failed})})
    block, failed = _block(homes, boxes, query, extras["seed"], extras["parties"]) if boxes else (None, 0)
    if block is None:
        size = len(homes.worlds[extras["world"]].spec(query.kind).coordinates)
        block = stacked(query, [], size)
    homes.log(noted(block.refused, query))
    return encode(block, failed)


def _accepted(homes: Homes, boxes: Sequence[Box], query: SealedQuery) -> tuple[list[str], list[Answer], int]:
    """(homes that will take part, refusals, failures): a home that raises fails alone."""
    if not boxes:
        return [], [], 0
    try:
        takers, refused = accept_block(boxes, query)
        return takers, sound(refused), 0
    except Exception:
        takers, refused, failed = [], [], 0
        for box in boxes:
            try:
                own, no = accept_block([box], query)
                sound(no)
            except (Exception, SystemExit) as error:
                failed += 1
                homes.failed(box.index, error, "accept")
                continue
            takers, refused = takers + own, refused + no
        return takers, refused, failed


def _block(homes: Homes, boxes: Sequence[Box], query: SealedQuery, seed: int, parties: int) -> tuple[Block, int]:
    """The block, and how many homes failed: one that raises fails alone."""
    task, ask = boxes[0].world.task, answer_open if query.trust == OPEN else answer_block
    try:
        block = ask(boxes, query, task.summaries, seed=seed, parties=parties)
        sound(block.refused)
        return block, 0
    except (Exception, SystemExit):
        answers, failed = [], 0
        for box in boxes:
            try:
                answers += sound(task.answer_many([box], [query], seed=seed, parties=parties))
            except (Exception, SystemExit) as error:
                failed += 1
                homes.failed(box.index, error, "answer")
        return stacked(query, answers, len(boxes[0].world.spec(query.kind).coordinates)), failed


@cache
def _boxes(homes: Homes, world: int, shard: int) -> tuple[Box, ...]:
    if not 0 <= world < len(homes.worlds) or not 0 <= shard < BUCKETS:
        raise ValueError(f"world {world}, shard {shard}: there are {len(homes.worlds)} worlds of {BUCKETS} shards")
    return tuple(Box(homes.worlds[world], index) for index in shards_of(homes.worlds[world])[shard])


def noted(refused: Iterable[Answer], query: SealedQuery) -> list[dict]:
    """Refusals for the inside view; their reasons never depend on data."""
    return [{"household": a.household, "query_id": query.id, "cell": query.cell, "code": a.code, "reason": a.reason}
            for a in refused]


def encode(block: Block, failed: int) -> RecordDict:
    """A block on the wire."""
    arrays = {records.SUMMARY: Array(np.ascontiguousarray(block.values))}
    if block.trust != OPEN:
        arrays[EPSILONS] = Array(np.ascontiguousarray(block.epsilon_micro))
    return RecordDict({
        records.ARRAYS: ArrayRecord(arrays), records.METRICS: MetricRecord({"num-examples": len(block.households)}),
        records.ENVELOPE: ConfigRecord({"query_id": block.query_id, "households": _joined(block.households),
                                        "refused": len(block.refused), "failed": failed})})


def decode(content: RecordDict, query: SealedQuery, world: World, shard: int, asked: int = -1) -> tuple[Block, int, int]:
    """(block, refused, failed) of a reply; ValueError for whatever does not fit the schema of the query's trust mode.

    asked  how many homes of the shard the question went to; -1: all
    """
    names, refused, failed = counts(content, query, world, shard, {records.ARRAYS, records.METRICS, records.ENVELOPE}, asked)
    arrays, metrics, n = content[records.ARRAYS], content[records.METRICS], len(names)
    if not isinstance(arrays, ArrayRecord) or not isinstance(metrics, MetricRecord) or metrics != {"num-examples": n}:
        raise ValueError("a shard's answer holds arrays and the number of its homes as weight")
    wanted = [records.SUMMARY] if query.trust == OPEN else [records.SUMMARY, EPSILONS]
    if list(arrays) != wanted:
        raise ValueError(f"a shard's answer holds the arrays {', '.join(wanted)}")
    size = len(world.spec(query.kind).coordinates)
    kind, shape = ENVELOPES[query.trust], (n, 2, size) if query.trust == OPEN else (n, size)
    values = records.read_array(arrays[records.SUMMARY], kind.dtype, shape)
    micro = np.zeros(n, np.int64) if query.trust == OPEN else records.read_array(arrays[EPSILONS], np.dtype(np.int64), (n,))
    return gate(Block(query.id, query.trust, names, micro, values), query), refused, failed


def counts(content: RecordDict, query: SealedQuery, world: World, shard: int, wanted: set[str],
           asked: int = -1) -> tuple[tuple[str, ...], int, int]:
    """(homes of this shard, refused, failed) of a reply; ValueError for anything else."""
    fields = content.get(records.ENVELOPE)
    if set(content) != wanted or not isinstance(fields, ConfigRecord) \
            or set(fields) != {"query_id", "households", "refused", "failed"} or fields["query_id"] != query.id \
            or type(fields["households"]) is not bytes:
        raise ValueError("a shard's answer names its query, its homes, and counts refusals and failures")
    try:
        names = tuple(fields["households"].decode("ascii").split("\n")) if fields["households"] else ()
    except UnicodeDecodeError as error:
        raise ValueError("a shard's homes are household ids") from error
    ids = world.population.ids
    own = {ids[index] for index in shards_of(world)[shard]}
    refused, failed = fields["refused"], fields["failed"]
    counted = type(refused) is int and type(failed) is int and min(refused, failed) >= 0
    if not counted or len(names) + refused + failed != (len(own) if asked < 0 else asked) \
            or len(set(names)) != len(names) or not own.issuperset(names):
        raise ValueError("every home of a shard answers, refuses or fails, once")
    return names, refused, failed


def _joined(names: Iterable[str]) -> bytes:
    return "\n".join(names).encode("ascii")
