"""The server's side of nodes that are shards of homes: one exchange per round, and the grid that a strategy sees.

The counterpart of trust_grid.Exchange and TrustGrid, with the same guarantees, for strategies of this library (they
read a leading home axis); negotiations and protocol-mode sums go home by home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedenergy.box.block import Block
from fedenergy.box.query import SealedQuery
from fedenergy.box.world import World
from fedenergy.box.zone_store import ZoneStore
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records, shard_nodes
from fedenergy.federation.trust_grid import (
    COHORT,
    Crossings,
    RoundGrid,
    cohort_of,
    failed_beside,
    zone_reply,
    zone_total,
)
from fedenergy.privacy.secure_sum import Summer
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM

Seal = Callable[[Sequence[str]], SealedQuery]


@dataclass(frozen=True)
class Answered:
    """The blocks of the shards asked, by shard; how many homes refused, and how many failed."""

    blocks: dict[int, Block]
    refused: int
    failed: int

    @property
    def households(self) -> list[str]:
        return [name for _, block in sorted(self.blocks.items()) for name in block.households]


class ShardExchange:
    """One round of one variation: every query id is asked of a shard at most once, whoever asks."""

    def __init__(self, grid: Grid, world: World, number: int, seed: int, zones: ZoneStore, crossings: Crossings,
                 max_failures: float = 1.0) -> None:
        self.max_failures = max_failures
        self.grid, self.world, self.number, self.seed = grid, world, number, seed
        self.zones, self.crossings = zones, crossings
        self.published: dict[str, dict] = {}  # nothing negotiates here
        self._memo: dict[str, dict[int, tuple[Block | None, int, int]]] = {}
        self._trusts: dict[str, str] = {}

    @property
    def shards(self) -> tuple[tuple[int, ...], ...]:
        """Household indices by shard."""
        return shard_nodes.shards_of(self.world)

    def strategy_grid(self, trust: str, seal: Seal) -> ShardGrid:
        """The grid of one strategy."""
        return ShardGrid(self, trust, seal)

    def ask(self, query: SealedQuery, shards: Sequence[int], content: RecordDict, group: str, *,
            parties: int = 0, left_out: Mapping[int, Sequence[int]] | None = None) -> Answered:
        """The blocks of the shards; those that were asked before in this round are remembered.

        left_out  household indices, by shard, that are not asked: homes that take no part in a sum
        """
        out = left_out or {}
        known = self._memo.setdefault(query.id, {})
        self._trusts[query.id] = query.trust
        todo = [shard for shard in shards if shard not in known]
        replies = self._send(query, todo, shard_nodes.ASK, content, group, parties, out)
        for shard, reply in zip(todo, replies, strict=True):
            known[shard] = self._read(query, shard, reply, len(out.get(shard, ())))
        found = {shard: known[shard] for shard in shards}
        return Answered({shard: one[0] for shard, one in found.items() if one[0] is not None},
                        sum(one[1] for one in found.values()), sum(one[2] for one in found.values()))

    def accepting(self, query: SealedQuery, shards: Sequence[int], content: RecordDict, group: str
                  ) -> tuple[list[str], int, int]:
        """First phase of a sum: the homes that will take part; refusals; failures."""
        takers: list[str] = []
        refused = failed = 0
        replies = self._send(query, shards, shard_nodes.ACCEPT, content, group, 0, {})
        for shard, reply in zip(shards, replies, strict=True):
            try:
                if not reply.has_content():
                    raise ValueError("no answer")
                names, no, broken = shard_nodes.counts(reply.content, query, self.world, shard, {records.ENVELOPE})
            except ValueError:
                failed += len(self.shards[shard])
                continue
            takers += names
            refused, failed = refused + no, failed + broken
        for counter, count in ((self.crossings.refused, refused), (self.crossings.errors, failed),
                               (self.crossings.accepted, len(takers))):
            counter[query.trust] += count
        return takers, refused, failed

    def truth_of(self, query: SealedQuery, group: str) -> tuple[dict[str, np.ndarray], int, int]:
        """(household -> (2, d), refused, failed) of every home, under trust open."""
        shards = [shard for shard, homes in enumerate(self.shards) if homes]
        asked = self.ask(query, shards, RecordDict(), group)
        found = {name: block.values[row] for block in asked.blocks.values() for row, name in enumerate(block.households)}
        return dict(sorted(found.items())), asked.refused, asked.failed

    def granted(self, query_id: str, answered: Iterable[str]) -> list[int]:
        """Micro-epsilon of the homes that answered, sorted by household."""
        known = {name: int(micro) for block, _, _ in self._memo.get(query_id, {}).values() if block is not None
                 for name, micro in zip(block.households, block.epsilon_micro, strict=True)}
        return [known[name] for name in sorted(answered) if name in known]

    def releases(self) -> list[tuple[str, tuple[str, ...], np.ndarray, np.ndarray]]:
        """(query id, households, micro-epsilon, values) of what crossed openly (trust local), sorted."""
        return [(query_id, *sorted_rows([block for block, _, _ in self._memo[query_id].values() if block is not None]))
                for query_id, trust in sorted(self._trusts.items()) if trust == LOCAL and self._memo[query_id]]

    def _send(self, query: SealedQuery, shards: Sequence[int], kind: str, content: RecordDict, group: str,
              parties: int, left_out: Mapping[int, Sequence[int]]) -> list[Message]:
        record = records.query_record(query, world=self.number, seed=self.seed, parties=parties)
        sealed = RecordDict({**content, records.QUERY: record})
        outgoing = []
        for shard in shards:
            out = left_out.get(shard)
            own = sealed if not out else RecordDict({**sealed, shard_nodes.LEFT_OUT: ConfigRecord({"indices": list(out)})})
            outgoing.append(flower.instruction(own, flower.node_id(shard), f"query.{kind}", group))
        answers = {reply.metadata.src_node_id: reply for reply in self.grid.send_and_receive(outgoing)} if shards else {}
        return [answers.get(one.metadata.dst_node_id) or flower.reply(one, flower.NODE_UNAVAILABLE) for one in outgoing]

    def _read(self, query: SealedQuery, shard: int, reply: Message, left_out: int) -> tuple[Block | None, int, int]:
        asked = len(self.shards[shard]) - left_out
        try:
            if not reply.has_content():
                raise ValueError("no answer")
            block, refused, failed = shard_nodes.decode(reply.content, query, self.world, shard, asked)
        except ValueError:  # a node that breaks the schema is a failure of its homes, whatever it sent
            self.crossings.errors[query.trust] += asked
            return None, 0, asked
        for counter, count in ((self.crossings.envelopes, len(block.households)), (self.crossings.refused, refused),
                               (self.crossings.errors, failed)):
            counter[query.trust] += count
        return block, refused, failed


def sorted_rows(blocks: Sequence[Block]) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """(households, micro-epsilon, values) of several blocks, sorted by household."""
    names = [name for block in blocks for name in block.households]
    order = sorted(range(len(names)), key=names.__getitem__)
    micro = np.concatenate([block.epsilon_micro for block in blocks])[order]
    return tuple(names[at] for at in order), micro, np.concatenate([block.values for block in blocks])[order]


class ShardGrid(RoundGrid):
    """The grid of one strategy in one round, whose nodes are shards of homes.

    Guarantee: the strategy receives, sorted by household, every Release (local) or Plain (open) in one array, or one
    ZoneRelease (sum, curator); refusals and errors are dropped and counted; nothing that it does reaches another.
    """

    def __init__(self, exchange: ShardExchange, trust: str, seal: Seal) -> None:
        super().__init__(exchange.grid, exchange.max_failures)
        self._exchange, self._trust, self._seal = exchange, trust, seal

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        batch = list(messages)
        shards = [flower.node_index(message.metadata.dst_node_id) for message in batch]
        if len(set(shards)) != len(shards):
            raise ValueError("a strategy sent two messages to one shard of homes in one round: ask each node once")
        if not batch:
            return []
        exchange, ids = self._exchange, self._exchange.world.population.ids
        self.asked_indices = sorted(index for shard in shards for index in exchange.shards[shard])
        self.query = query = self._seal([ids[index] for index in self.asked_indices])
        self.asked += len(self.asked_indices)
        content, group = batch[0].content, batch[0].metadata.group_id
        if self._trust in (SUM, CURATOR):
            return self._zone(query, shards, batch[0])
        asked = exchange.ask(query, shards, content, group)
        if not asked.blocks:
            self._count((), asked.refused, asked.failed)
            return []
        names, micro, values = sorted_rows(list(asked.blocks.values()))
        self._count(names, asked.refused, asked.failed)
        arrays = {records.SUMMARY: Array(values)} if query.trust == OPEN else {
            records.SUMMARY: Array(values), shard_nodes.EPSILONS: Array(micro)}
        fields = {"households": "\n".join(names).encode(), "query_id": query.id}
        return [flower.reply(batch[0], RecordDict({
            records.ARRAYS: ArrayRecord(arrays), records.METRICS: MetricRecord({"num-examples": len(names)}),
            records.ENVELOPE: ConfigRecord(fields)}))] if names else []

    def _zone(self, query: SealedQuery, shards: list[int], first: Message) -> list[Message]:
        zones = self._exchange.zones
        row = zones.get(query.id)
        fresh = row is None
        if fresh:
            open_it = self._open_sum if self._trust == SUM else self._open_deposits
            row = open_it(query, shards, first.content, first.metadata.group_id)
        if row is None:
            return []
        lost = self._kept_lost(zones, query, row, fresh)
        self._count(tuple(row.households), self.asked - len(row.households) - lost, lost)
        self._exchange.crossings.zones[self._trust] += 1
        _, content = zone_reply(query, row, self._exchange.world)
        return [flower.reply(first, content)]

    def _open_sum(self, query: SealedQuery, shards: list[int], content: RecordDict, group: str):
        exchange, zones = self._exchange, self._exchange.zones
        fixed = zones.get(COHORT + query.id)
        if fixed is None:
            takers, refused, failed = exchange.accepting(query, shards, content, group)
            if takers and not self.too_many(failed):
                fixed = zones.put_once(COHORT + query.id, takers, lambda: cohort_of(failed), SUM)
        else:
            takers, failed = list(fixed.households), failed_beside(fixed)
            refused = self.asked - len(takers) - failed
        self._count((), refused, failed)
        if not takers or self.too_many(failed):
            return None
        names = set(takers)
        left_out = {shard: [index for index in exchange.shards[shard] if exchange.world.population.ids[index] not in names]
                    for shard in shards}
        some = [shard for shard in shards if len(left_out[shard]) < len(exchange.shards[shard])]
        asked = exchange.ask(query, some, content, group, parties=len(takers), left_out=left_out)
        names = tuple(asked.households)
        if set(names) != set(takers):  # missing shares would leave the sum with too little noise
            self._count((), refused + asked.refused, failed + asked.failed)
            return None
        summer = Summer(query.id, {name: exchange.world.key("pad", name) for name in names})

        shares = {name: row for block in asked.blocks.values()
                  for name, row in zip(block.households, block.values, strict=True)}

        def opened() -> bytes:
            return summer.open(shares).astype("<i8").tobytes()
        return zones.put_once(query.id, names, opened, SUM)

    def _open_deposits(self, query: SealedQuery, shards: list[int], content: RecordDict, group: str):
        exchange = self._exchange
        asked = exchange.ask(query, shards, content, group)
        self._count((), asked.refused, asked.failed)
        names = asked.households
        if not names or self.too_many(asked.failed):
            return None
        total = np.sum([block.values.sum(axis=0, dtype=np.int64) for block in asked.blocks.values()], axis=0, dtype=np.int64)
        return exchange.zones.put_once(query.id, names, lambda: zone_total(query, exchange.world, exchange.seed, total,
                                                                          len(names)), CURATOR)

    def get_node_ids(self) -> list[int]:
        return [flower.node_id(shard) for shard, homes in enumerate(self._exchange.shards) if homes]
