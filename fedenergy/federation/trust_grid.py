"""TrustGrid: what a strategy sees of a grid. It seals every message, opens sums, and lets no Share or Deposit through.

A strategy of a user need not know about queries, trust or ledgers: it asks the nodes it likes, and receives what its
trust mode allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedenergy.box.query import UPDATE, SealedQuery
from fedenergy.box.shaping import grid_steps, release_mechanism
from fedenergy.box.world import World
from fedenergy.box.zone_store import ZoneRow, ZoneStore
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.client_app import ACCEPT
from fedenergy.federation.failures import too_many
from fedenergy.federation.masked_rounds import MaskedRounds
from fedenergy.federation.negotiation_rounds import Negotiation
from fedenergy.federation.offers import Offers, Willing
from fedenergy.federation.update_records import decode_update, encode
from fedenergy.privacy.mechanisms import Laplace, discrete_laplace
from fedenergy.privacy.noise import noise_from
from fedenergy.privacy.pairwise_masks import SumClosed
from fedenergy.privacy.secure_sum import Summer
from fedenergy.privacy.sum_protocol import SumProtocol, vanishing
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM, Envelope

UNBOUNDED = "central_unbounded"
COHORT, LOST = "cohort-", "failed-"     # beside a query's answer: who takes part; how many failed

Seal = Callable[[Sequence[str]], SealedQuery]


@dataclass
class Crossings:
    """Envelopes counted as they cross, by trust mode: the "who sees what" page is made of these.

    offers    bids of a negotiation, all rounds; accepted: words of the homes that will take part in a sum
    """

    envelopes: Counter = field(default_factory=Counter)
    refused: Counter = field(default_factory=Counter)
    errors: Counter = field(default_factory=Counter)
    zones: Counter = field(default_factory=Counter)
    offers: Counter = field(default_factory=Counter)
    accepted: Counter = field(default_factory=Counter)


@dataclass(frozen=True)
class Asked:
    """The outcome of one exchange: envelopes by household, and how many homes refused or failed."""

    envelopes: dict[str, Envelope]
    refused: int
    failed: int


class Exchange:
    """One round of one variation: every query id is asked of a home at most once, whoever asks.

    negotiation   what the operator negotiates with before it asks; None: it asks at once
    max_failures  share of the homes asked that may fail: where more do, no sum is opened and none is begun
    """

    def __init__(self, grid: Grid, world: World, number: int, seed: int, zones: ZoneStore, crossings: Crossings,
                 negotiation: Negotiation | None = None, max_failures: float = 1.0) -> None:
        self.max_failures = max_failures
        self.grid, self.world, self.number, self.seed = grid, world, number, seed
        self.zones, self.crossings = zones, crossings
        self._memo: dict[str, dict[str, Envelope | str]] = {}
        self.offers = Offers(self, negotiation)
        self.published: dict[str, dict] = {}  # cell -> this round's zone answer, as the fields of a policy's Published

    def publish(self, query: SealedQuery, values: Sequence[np.ndarray], granted_micro: Sequence[int]) -> None:
        """Note a zone answer, which is public: later negotiations of its cell may use it.

        values         of (d,), to be added up; where that overflows (a home may send anything) nothing is noted
        granted_micro  of each home in it; under local noise the epsilon noted is the one that, the same for all homes,
                       would give the noise that is in it (of Laplace noise; of other kinds it is the epsilon granted alike)
        """
        if not self.offers.negotiating:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.sum(values, axis=0)  # of multiples of the grid step: exact, in any order
        if not np.isfinite(total).all():
            return
        homes, epsilon, noises = len(granted_micro), query.epsilon, 1
        if query.trust == LOCAL:
            noises = homes
            epsilon = 1e-6 * (homes / sum(amount**-2 for amount in granted_micro)) ** 0.5
        elif query.mechanism == UNBOUNDED:
            noises = homes**2
        self.published[query.cell] = {"values": total.tolist(), "epsilon": epsilon, "homes": homes, "noises": noises}

    def ask(self, query: SealedQuery, messages: Sequence[Message], *, parties: int = 0) -> Asked:
        """The envelopes that answer a query, asking only the homes that were not asked before in this round."""
        ids = self.world.population.ids
        known = self._memo.setdefault(query.id, {})
        named = [(ids[flower.node_index(m.metadata.dst_node_id)], m) for m in messages]
        todo = [(name, message) for name, message in named if name not in known]
        outgoing = self._sealed(query, [message for _, message in todo], parties)
        for at, reply in self._landing(outgoing) if outgoing else ():
            known[todo[at][0]] = self._read(query, todo[at][0], reply)
        found = {name: known[name] for name, _ in named}
        words = Counter(item for item in found.values() if isinstance(item, str))
        return Asked({name: item for name, item in sorted(found.items()) if isinstance(item, Envelope)},
                     words["refused"], words["failed"])

    def one_by_one(self, query: SealedQuery, messages: Sequence[Message],
                   at_once: int) -> Iterator[tuple[str, Message, Envelope | str]]:
        """(household, message, envelope or word) in household order; no answer is remembered.

        at_once  replies that exist at a time, where the grid can stream them
        """
        named = sorted(zip(self.names(messages), messages, strict=True), key=lambda one: one[0])
        outgoing = self._sealed(query, [message for _, message in named], 0)
        stream = getattr(self.grid, "stream", None)
        replies = stream(outgoing, at_once) if stream else self._exchanged(outgoing)
        for (name, message), reply in zip(named, replies, strict=True):
            yield name, message, self._read(query, name, reply)

    def accepting(self, query: SealedQuery, messages: Sequence[Message]) -> tuple[list[Message], int, list[str]]:
        """First phase of a sum: the messages of the homes that will take part; refusals; the homes that failed."""
        replies = self.send(query, messages, 0, kind=f"query.{ACCEPT}")
        status = [records.status_of(reply.content) if reply.has_content() else "failed" for reply in replies]
        self.crossings.refused[query.trust] += status.count("refused")
        self.crossings.errors[query.trust] += status.count("failed")
        self.crossings.accepted[query.trust] += status.count("accepted")
        return ([message for message, word in zip(messages, status, strict=True) if word == "accepted"],
                status.count("refused"),
                [name for name, word in zip(self.names(messages), status, strict=True) if word == "failed"])

    def names(self, messages: Sequence[Message]) -> list[str]:
        """Household ids that messages go to."""
        ids = self.world.population.ids
        return [ids[flower.node_index(message.metadata.dst_node_id)] for message in messages]

    def received(self, trust: str) -> list[Envelope]:
        """The envelopes of a trust mode that reached the exchange so far, by query and household."""
        return [envelope for _, homes in sorted(self._memo.items()) for _, envelope in sorted(homes.items())
                if isinstance(envelope, Envelope) and envelope.trust == trust]

    def strategy_grid(self, trust: str, seal: Seal) -> TrustGrid:
        """The grid of one strategy."""
        return TrustGrid(self, trust, seal)

    def truth_of(self, query: SealedQuery, group: str) -> tuple[dict[str, np.ndarray], int, int]:
        """(household -> (2, d), refused, failed) of every home, under trust open."""
        asked = self.ask(query, [flower.instruction(RecordDict(), flower.node_id(home), "train", group)
                                 for home in range(len(self.world.population))])
        return {name: envelope.values for name, envelope in asked.envelopes.items()}, asked.refused, asked.failed

    def granted(self, query_id: str, answered: Iterable[str]) -> list[int]:
        """Micro-epsilon of the homes that answered, sorted by household."""
        known = self._memo.get(query_id, {})
        return [known[name].epsilon_micro for name in sorted(answered) if isinstance(known.get(name), Envelope)]

    def releases(self) -> list[tuple[str, tuple[str, ...], np.ndarray, np.ndarray]]:
        """(query id, households, micro-epsilon, values) of what crossed openly (trust local), sorted."""
        found: dict[str, list[Envelope]] = {}
        for envelope in self.received(LOCAL):
            found.setdefault(envelope.query_id, []).append(envelope)
        return [(query_id, tuple(one.household for one in several), np.array([one.epsilon_micro for one in several]),
                 np.stack([one.values for one in several])) for query_id, several in found.items()]

    def send(self, query: SealedQuery, messages: Sequence[Message], parties: int, kind: str = "") -> list[Message]:
        """A reply for each message, in order: an error where none came. kind: another message type."""
        return self._exchanged(self._sealed(query, messages, parties, kind)) if messages else []

    def _sealed(self, query: SealedQuery, messages: Sequence[Message], parties: int, kind: str = "") -> list[Message]:
        record = records.query_record(query, world=self.number, seed=self.seed, parties=parties)
        sealed: dict[int, RecordDict] = {}
        outgoing = []
        for message in messages:
            content = message.content
            if id(content) not in sealed:
                sealed[id(content)] = RecordDict({**content, records.QUERY: record})
            outgoing.append(flower.instruction(sealed[id(content)], message.metadata.dst_node_id,
                                               kind or message.metadata.message_type, message.metadata.group_id))
        return outgoing

    def _landing(self, outgoing: Sequence[Message]) -> Iterable[tuple[int, Message]]:
        """(position, reply) of each message; a grid of ours hands them on as they come, so that they are read while the
        other homes still work."""
        landing = getattr(self.grid, "landing", None)
        return landing(outgoing) if landing else enumerate(self._exchanged(outgoing))

    def _exchanged(self, outgoing: Sequence[Message]) -> list[Message]:
        answers = {reply.metadata.src_node_id: reply for reply in self.grid.send_and_receive(outgoing)}
        missing = flower.NODE_UNAVAILABLE
        return [answers.get(message.metadata.dst_node_id) or flower.reply(message, missing) for message in outgoing]

    def _read(self, query: SealedQuery, name: str, reply: Message) -> Envelope | str:
        if not reply.has_content():
            self.crossings.errors[query.trust] += 1
            return "failed"
        if records.status_of(reply.content) == "refused":
            self.crossings.refused[query.trust] += 1
            return "refused"
        try:
            if query.query_class == UPDATE and query.trust == OPEN and hasattr(self.world.task, "update_spec"):
                spec = self.world.task.update_spec(query.kind, self.world.population)
                envelope = decode_update(reply.content, query, name, spec)
                self.crossings.envelopes[OPEN] += 1
                return envelope
            size = len(self.world.spec(query.kind).coordinates)
            envelope = records.decode(reply.content, query, name, size, grid_steps(query, self.world.policy, size))
        except ValueError:  # a home that breaks the schema is one failure, whatever it sent
            self.crossings.errors[query.trust] += 1
            return "failed"
        self.crossings.envelopes[query.trust] += 1
        return envelope


def cohort_of(failed: int) -> bytes:
    """What is stored with those who take part in a sum: how many failed when they were asked."""
    return b"cohort %d" % failed


def failed_beside(row: ZoneRow) -> int:
    """The number in a row of `cohort_of`."""
    return int([*row.payload.split(), b"0"][1])


def zone_total(query: SealedQuery, world: World, seed: int, total: np.ndarray, homes: int) -> bytes:
    """The Curator's one noise on the sum (d,) of the Deposits of `homes` homes, grid integers: what is stored."""
    source = noise_from(world.noise, seed).source(records.ZONE, query.id)
    if query.mechanism == UNBOUNDED:  # the source's sensitivity of a sum of N homes
        noise = discrete_laplace(source, Laplace(query.clip).scale(query.epsilon_micro) * homes, total.size)
    else:
        noise = release_mechanism(query, world.policy, total.size).noise(source, query.epsilon_micro, total.size)
    return (total + noise).astype("<i8").tobytes()


def zone_reply(query: SealedQuery, row: ZoneRow, world: World) -> tuple[np.ndarray, RecordDict]:
    """A stored zone answer: (d,) in the unit of the values, and the records that the strategy receives."""
    values = np.frombuffer(row.payload, "<i8").astype(np.float64) * grid_steps(
        query, world.policy, len(world.spec(query.kind).coordinates))
    fields = {"household": records.ZONE, "query_id": query.id, "epsilon_micro": query.epsilon_micro,
              "answers": len(row.households)}
    return values, records.answer_records(values, fields)


class RoundGrid(Grid):
    """Abstract: what a strategy sees of a grid exchanges whole rounds; the rest is the grid's below."""

    def __init__(self, below: Grid, max_failures: float) -> None:
        self._below, self._max_failures = below, max_failures
        self.answered: tuple[str, ...] = ()
        self.refused = self.failed = self.asked = 0
        self.asked_indices: list[int] = []
        self.lost = 0                       # homes that failed of themselves
        self.vanished: dict[str, str] = {}  # homes that the simulation makes drop out; the other part of the failed
        self.closed = ""                    # why a protocol-mode sum stayed closed
        self.query: SealedQuery | None = None

    def too_many(self, failed: int) -> bool:
        """failures.too_many of the homes that this grid asked."""
        return too_many(failed, self.asked, self._max_failures)

    def _count(self, answered: tuple[str, ...], refused: int, lost: int) -> None:
        """lost: homes that failed of themselves; those that the simulation makes vanish failed too."""
        self.answered, self.lost, self.failed = answered, lost, lost + len(self.vanished)
        self.refused = max(0, min(refused, self.asked - len(answered) - self.failed))

    def _kept_lost(self, zones: ZoneStore, query: SealedQuery, row: ZoneRow, fresh: bool) -> int:
        """How many homes had failed when an answer was opened: kept beside it, as whoever reads it later asks nobody."""
        key = LOST + query.id
        if fresh and self.lost:
            zones.put_once(key, row.households, lambda: str(self.lost).encode(), row.trust)
        kept = None if fresh else zones.get(key)
        return self.lost if fresh else 0 if kept is None else int(kept.payload)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("a strategy's grid exchanges whole rounds: use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("a strategy's grid exchanges whole rounds: use send_and_receive")

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
                       ttl: float | None = None) -> Message:
        return self._below.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run: Run) -> None:
        self._below.set_run(run)

    @property
    def run(self) -> Run:
        return self._below.run


class TrustGrid(RoundGrid):
    """The grid of one strategy in one round.

    Guarantee: the strategy receives, sorted by household, every Release (local) or Plain (open), or one ZoneRelease
    (sum, curator); refusals and errors are dropped and counted; nothing that it does to a reply reaches another.
    """

    def __init__(self, exchange: Exchange, trust: str, seal: Seal) -> None:
        super().__init__(exchange.grid, exchange.max_failures)
        self._exchange, self._trust, self._seal = exchange, trust, seal

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        batch = list(messages)
        if not batch:
            return []
        query = self._asking(batch)
        if self._trust in (SUM, CURATOR):
            return self._zone(query, batch)
        willing = self._exchange.offers.willing(query, batch)
        if self.too_many(willing.failed):               # the others would be charged for offers that do not bind
            self._count((), willing.refused, willing.failed)
            return []
        asked = self._exchange.ask(query, willing.messages)
        self._count(tuple(asked.envelopes), willing.refused + asked.refused, willing.failed + asked.failed)
        if self._trust == LOCAL and asked.envelopes:
            self._exchange.publish(query, [one.values for one in asked.envelopes.values()],
                                   [one.epsilon_micro for one in asked.envelopes.values()])
        by_name = dict(zip(self._exchange.names(batch), batch, strict=True))
        return [flower.reply(by_name[name], encode(envelope)) for name, envelope in asked.envelopes.items()]

    def stream(self, messages: Iterable[Message], at_once: int) -> Iterator[Message]:
        """The replies of send_and_receive under trust open, one after the other: about `at_once` of them exist at a time."""
        batch = list(messages)
        if self._trust != OPEN:
            raise ValueError(f"under trust {self._trust} the envelopes of a round are kept together: use send_and_receive")
        if not batch:
            return
        query = self._asking(batch)
        willing = self._exchange.offers.willing(query, batch)
        answered: list[str] = []
        words: Counter = Counter()
        for name, message, found in self._exchange.one_by_one(query, willing.messages, at_once):
            if isinstance(found, Envelope):
                answered.append(name)
                yield flower.reply(message, encode(found))
            else:
                words[found] += 1
        self._count(tuple(answered), willing.refused + words["refused"], willing.failed + words["failed"])

    def _asking(self, batch: Sequence[Message]) -> SealedQuery:
        """Seal the question that this batch asks, and note whom."""
        nodes = [message.metadata.dst_node_id for message in batch]
        if len(set(nodes)) != len(nodes):
            raise ValueError("a strategy sent two messages to one home in one round: ask each home once")
        self.query = self._seal(self._exchange.names(batch))
        self.asked += len(batch)
        self.asked_indices = [flower.node_index(node) for node in nodes]
        return self.query

    def _zone(self, query: SealedQuery, batch: list[Message]) -> list[Message]:
        zones, trust = self._exchange.zones, self._trust
        if (protocol := SumProtocol.parse(query.mechanism)) is not None:
            self.vanished = vanishing(protocol, query.id, self._exchange.names(batch))
        row = zones.get(query.id)
        fresh = row is None
        if fresh:
            row = self._open_sum(query, batch) if trust == SUM else self._open_deposits(query, batch)
        if row is None:
            return []
        lost = self._kept_lost(zones, query, row, fresh)
        self._count(tuple(row.households), len(batch) - len(row.households) - lost - len(self.vanished), lost)
        values, content = zone_reply(query, row, self._exchange.world)
        self._exchange.crossings.zones[trust] += 1
        self._exchange.publish(query, [values], [query.epsilon_micro] * len(row.households))
        return [flower.reply(batch[0], content)]

    def _open_sum(self, query: SealedQuery, batch: list[Message]):
        willing = self._exchange.offers.willing(query, batch)
        takers, refused, failed = self._cohort(query, willing)
        self._count((), refused, failed)
        if not takers or self.too_many(failed):
            return None
        if SumProtocol.parse(query.mechanism) is not None:
            return self._open_masked(query, batch, takers, failed)
        asked = self._exchange.ask(query, takers, parties=len(takers))
        if len(asked.envelopes) < len(takers):  # missing shares would leave the sum with too little noise
            self._count((), refused + asked.refused, failed + asked.failed)
            return None
        names = tuple(asked.envelopes)
        world = self._exchange.world
        summer = Summer(query.id, {name: world.key("pad", name) for name in names})
        shares = {name: envelope.values for name, envelope in asked.envelopes.items()}
        return self._exchange.zones.put_once(query.id, names, lambda: summer.open(shares).astype("<i8").tobytes(), SUM)

    def _open_masked(self, query: SealedQuery, batch: list[Message], takers: list[Message], failed: int):
        """The sum in protocol mode: no key of a home is on this side. None where it stays closed; charges stay."""
        exchange, names = self._exchange, self._exchange.names(takers)

        def ask(messages: list[Message], parties: int) -> dict[str, np.ndarray]:
            found = exchange.ask(query, messages, parties=parties).envelopes
            return {name: envelope.values for name, envelope in found.items()}

        rounds = MaskedRounds(query, takers, names, lambda messages: exchange.send(query, messages, 0), ask, self.vanished,
                              lambda lost: self.too_many(failed + lost))
        row = None
        try:
            survivors = rounds.play()
            row = exchange.zones.put_once(query.id, survivors, lambda: rounds.open().astype("<i8").tobytes(), SUM)
        except SumClosed as error:
            self.closed = str(error)
            rounds.lost |= rounds.silent
        refused = len(batch) - len(set(names) | set(self.vanished)) - failed
        self._count((), refused, failed + len(rounds.lost))
        return row

    def _cohort(self, query: SealedQuery, willing: Willing) -> tuple[list[Message], int, int]:
        """The homes that accepted, fixed for good by the first acceptance: their noise shares are drawn for that number."""
        batch = willing.messages
        zones, names = self._exchange.zones, self._exchange.names(batch)
        fixed = zones.get(COHORT + query.id)
        if fixed is None:
            takers, refused, broken = self._exchange.accepting(query, batch)
            refused, failed = refused + willing.refused, len(set(broken) - set(self.vanished)) + willing.failed
            if takers and not self.too_many(failed):
                fixed = zones.put_once(COHORT + query.id, self._exchange.names(takers), lambda: cohort_of(failed), SUM)
            return takers, refused, failed
        inside, failed = set(fixed.households), failed_beside(fixed)
        takers = [message for name, message in zip(names, batch, strict=True) if name in inside]
        if len(takers) < len(inside):  # noise shares were drawn for all of them
            self.closed = f"{len(inside) - len(takers)} homes that accepted do not take part now"
            return [], len(batch) + willing.refused, willing.failed
        return takers, len(batch) - len(takers) + willing.refused + willing.failed - failed, failed

    def _open_deposits(self, query: SealedQuery, batch: list[Message]):
        willing = self._exchange.offers.willing(query, batch)
        if self.too_many(willing.failed):               # the others would be charged for offers that do not bind
            self._count((), willing.refused, willing.failed)
            return None
        asked = self._exchange.ask(query, willing.messages)
        self._count((), willing.refused + asked.refused, willing.failed + asked.failed)
        if not asked.envelopes or self.too_many(self.lost):
            return None
        total = np.sum([envelope.values for envelope in asked.envelopes.values()], axis=0, dtype=np.int64)
        return self._exchange.zones.put_once(
            query.id, tuple(asked.envelopes),
            lambda: zone_total(query, self._exchange.world, self._exchange.seed, total, len(asked.envelopes)), CURATOR)

    def get_node_ids(self) -> list[int]:
        return [flower.node_id(index) for index in range(len(self._exchange.world.population))]
