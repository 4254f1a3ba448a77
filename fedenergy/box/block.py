"""Many boxes at once: the answers of one shard of homes to one query, in arrays.

The same order, charges and bytes as fedenergy.box.box.answer_many, which stays the definition (a test holds the two
equal); here what does not differ between homes is decided once, and rounding, clipping and noise take all homes in one
go. Served are trust local, sum (ideal mode) and curator with Laplace noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fedenergy.box.box import RELATION, Answer, Box, answer_many, consider, enrolment_of, open_ledger
from fedenergy.box.ledger import Charge, Ledger, LedgerBroken, LedgerUnavailable
from fedenergy.box.query import SealedQuery
from fedenergy.box.world import SECURE
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import noise_from
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.secure_sum import laplace_share_many, pad, seal_many
from fedenergy.privacy.trust import CURATOR, ENVELOPES, LOCAL, OPEN, SUM

SERVED = {LOCAL: ("laplace",), SUM: ("laplace",), CURATOR: ("laplace", "central_unbounded")}
Summarise = Callable[[Sequence[Box], SealedQuery], NoiseFree]


@dataclass(frozen=True, eq=False)
class Block:
    """Envelopes of one trust mode, many homes in one array.

    households      n ids, in the order of the rows
    epsilon_micro   (n,) int64, as charged; zeros under trust open
    values          (n, d) of the envelope's dtype (fedenergy.privacy.trust); (n, 2, d) under trust open
    refused         answers that are none, with their reasons, which stay inside
    """

    query_id: str
    trust: str
    households: tuple[str, ...]
    epsilon_micro: np.ndarray
    values: np.ndarray
    refused: tuple[Answer, ...] = field(default=(), repr=False)


def answer_block(boxes: Sequence[Box], query: SealedQuery, summarise: Summarise, *, seed: int, parties: int = 0) -> Block:
    """One query of a shard of homes.

    boxes      of one world, each once
    summarise  noise-free summaries (n, d) of the boxes that will answer, in order
    Guarantee: replace-one epsilon as charged, per home; nothing is returned before its charge is durable.
    """
    if query.mechanism not in SERVED.get(query.trust, ()):
        raise ValueError(f"no block of {query.mechanism} answers under trust {query.trust}: ask home by home")
    ledger = open_ledger(boxes[0].world.ledger)
    stored = ledger.lookup([(box.id, query.id) for box in boxes])
    answers: dict[int, Answer] = {}
    if stored:  # answered before: the definition knows what to do with each
        old = [at for at, box in enumerate(boxes) if (box.id, query.id) in stored]
        answers = dict(zip(old, answer_many([boxes[at] for at in old], [query] * len(old), _each(summarise), seed=seed,
                                            parties=parties), strict=True))
    fresh = [at for at in range(len(boxes)) if at not in answers]
    granted: dict[int, int] = {}
    for at, decision in zip(fresh, _decided([boxes[at] for at in fresh], query, ledger, parties), strict=True):
        if isinstance(decision, Answer):
            answers[at] = decision
        else:
            granted[at] = decision
    values = np.zeros((len(boxes), len(boxes[0].world.spec(query.kind).coordinates)), ENVELOPES[query.trust].dtype)
    micro = np.zeros(len(boxes), np.int64)
    if granted:
        order = np.array(list(granted))
        chosen = [boxes[at] for at in order]
        out = _Outbound(chosen, query, list(granted.values()), summarise(chosen, query), seed, parties)
        outcomes = ledger.settle(out.charges(), out.payload)
        good = np.array([outcome.status in ("charged", "stored") for outcome in outcomes])
        micro[order[good]] = np.array(out.granted)[good]
        values[order[good]] = out.leaving([outcome.payload for outcome in outcomes], good)
        answers |= {int(order[row]): Answer(chosen[row].id, None, outcomes[row].status, outcomes[row].reason)
                    for row in np.flatnonzero(~good)}
    for at, answer in answers.items():
        if answer.envelope is not None:
            values[at], micro[at] = answer.envelope.values, answer.envelope.epsilon_micro
    kept = np.flatnonzero(micro)
    return gate(Block(query.id, query.trust, tuple(boxes[at].id for at in kept), micro[kept], values[kept],
                      tuple(answer for _, answer in sorted(answers.items()) if answer.envelope is None)), query)


def answer_open(boxes: Sequence[Box], query: SealedQuery, summarise: Summarise, *, seed: int, parties: int = 0) -> Block:
    """The Plains of a shard, (n, 2, d): no privacy, so nothing here is worth a batch of its own."""
    answers = answer_many(boxes, [query] * len(boxes), _each(summarise), seed=seed, parties=parties)
    return stacked(query, answers, len(boxes[0].world.spec(query.kind).coordinates))


def stacked(query: SealedQuery, answers: Sequence[Answer], size: int) -> Block:
    """Single answers as a block; size: d."""
    given = [answer.envelope for answer in answers if answer.envelope is not None]
    shape = (0, 2, size) if query.trust == OPEN else (0, size)
    values = np.stack([one.values for one in given]) if given else np.zeros(shape, ENVELOPES[query.trust].dtype)
    micro = np.array([one.epsilon_micro or 0 for one in given], np.int64)
    return gate(Block(query.id, query.trust, tuple(one.household for one in given), micro, values,
                      tuple(answer for answer in answers if answer.envelope is None)), query)


def accept_block(boxes: Sequence[Box], query: SealedQuery) -> tuple[list[str], list[Answer]]:
    """First phase of a sum: the homes that will take part, and the refusals. Nothing is charged or fitted."""
    ledger = open_ledger(boxes[0].world.ledger)
    stored = ledger.lookup([(box.id, query.id) for box in boxes])
    fresh = [box for box in boxes if (box.id, query.id) not in stored]
    decided = dict(zip([box.id for box in fresh], _decided(fresh, query, ledger, 0), strict=True))
    refused = [answer for answer in decided.values() if isinstance(answer, Answer)]
    out = {answer.household for answer in refused}
    return [box.id for box in boxes if box.id not in out], refused


def gate(block: Block, query: SealedQuery) -> Block:
    """The schema of check_envelope for a whole block: dtype, shape, finite, on the grid, clipped. Returns it."""
    kind, n = ENVELOPES[query.trust], len(block.households)
    axes = 3 if query.trust == OPEN else 2
    if block.values.dtype != kind.dtype or block.values.ndim != axes or len(block.values) != n:
        raise ValueError(f"a block of {n} {kind.__name__}s is {kind.dtype} with {axes} axes, the first of {n}, not "
                         f"{block.values.dtype} {block.values.shape}")
    micro = block.epsilon_micro
    if query.trust == OPEN:
        if not np.isfinite(block.values).all():
            raise ValueError("a Plain holds finite numbers only")
    elif micro.shape != (n,) or micro.dtype != np.int64 or not ((micro > 0) & (micro <= query.epsilon_micro)).all():
        raise ValueError("every home of a block has an integer micro-epsilon, above 0 and at most what was asked")
    if len(set(block.households)) != n:
        raise ValueError("a home answers once in a block")
    if query.trust == LOCAL and not (np.isfinite(block.values).all()
                                     and (np.remainder(block.values, query.grid) == 0).all()):
        raise ValueError("every value of a Release is finite and a multiple of the grid step")
    if query.trust == CURATOR:
        bound = NoiseGrid(query.clip).bound
        low = block.values >= -bound  # before abs: that of the least int64 is negative
        if not (low.all() and (np.abs(block.values).sum(axis=1, dtype=np.float64) <= bound).all()):
            raise ValueError("a Deposit is clipped: its l1 norm in grid steps is at most the agreed bound")
    return block


def _each(summarise: Summarise):
    return lambda boxes, queries: [(summarise([box], query), "") for box, query in zip(boxes, queries, strict=True)]


def _decided(boxes: Sequence[Box], query: SealedQuery, ledger: Ledger, parties: int) -> list[int | Answer]:
    """consider(), asked once for all homes that differ in nothing that it reads.

    That is so where the policy says that it is `uniform`, no home bids, and agreements are the simulation's own.
    """
    world = boxes[0].world if boxes else None
    if not boxes or not getattr(world.policy, "uniform", False) or enrolment_of(world) is not None:
        return consider(boxes, [query] * len(boxes), ledger, parties)
    scope = None if world.noise == SECURE else query.cell
    try:
        spent = ledger.spent_many([(box.id, scope) for box in boxes])
    except (LedgerBroken, LedgerUnavailable):
        return consider(boxes, [query] * len(boxes), ledger, parties)
    groups: dict[tuple, list[int]] = {}
    for at, box in enumerate(boxes):
        agreement = box.agreement
        own = (agreement.household == box.id and agreement.box_key == box.public_key and not agreement.spent_micro
               and query.id not in box.bound)
        key = (agreement.terms_key, spent[box.id, scope]) if own else (at,)
        groups.setdefault(key, []).append(at)
    decided: list[int | Answer] = [0] * len(boxes)
    first = consider([boxes[group[0]] for group in groups.values()], [query] * len(groups), ledger, parties)
    for group, decision in zip(groups.values(), first, strict=True):
        for at in group:
            decided[at] = decision if isinstance(decision, int) else Answer(boxes[at].id, None, decision.code,
                                                                            decision.reason)
    return decided


class _Outbound:
    """The answers of a block on their way out; what it holds of summaries is noise-free until the ledger has charged."""

    def __init__(self, boxes: Sequence[Box], query: SealedQuery, granted: list[int], summaries: NoiseFree, seed: int,
                 parties: int) -> None:
        self.boxes, self.query, self.granted, self.parties = boxes, query, granted, parties
        self.world, self.law, self.summaries = boxes[0].world, Laplace(query.clip), summaries
        self.noise = noise_from(self.world.noise, seed)
        self._payloads: list[bytes] = []

    def charges(self) -> list[Charge]:
        query, world, (first, last) = self.query, self.world, self.query.blocks
        make = partial(Charge, query_id=query.id, content_digest=query.content_digest, cell=query.cell, block_from=first,
                       block_to=last, unit=world.population.unit, relation=RELATION, mechanism=query.mechanism,
                       trust=query.trust, all_cells=world.noise == SECURE, delta=query.delta)
        return [make(household=box.id, epsilon_micro=amount, cap_micro=box.agreement.cap_micro,
                     delta_cap=box.agreement.delta) for box, amount in zip(self.boxes, self.granted, strict=True)]

    def payload(self, row: int) -> bytes:
        """Called inside the ledger's transaction. All rows are drawn at the first call; one that the ledger then
        refuses is dropped unseen."""
        if not self._payloads:
            rows = self._digests() if self.query.trust == CURATOR else self._noised()
            self._payloads = rows
        return self._payloads[row]

    def leaving(self, payloads: Sequence[bytes], good: np.ndarray) -> np.ndarray:
        """(rows that are good, d): the stored bytes, or the Deposits whose digests were stored."""
        if self.query.trust == CURATOR:
            for box, own, stored, kept in zip(self.boxes, self._digests(), payloads, good, strict=True):
                if kept and own != stored:
                    raise ValueError(f"household {box.id}: its data changed since this query was charged; ask with --fresh")
            return self._deposits()[good]
        data = b"".join([payload for payload, kept in zip(payloads, good, strict=True) if kept])
        return np.frombuffer(data, "<f8" if self.query.trust == LOCAL else "<u8").reshape(int(good.sum()), -1)

    def _noised(self) -> list[bytes]:
        query = self.query
        sources = self.noise.sources([box.id for box in self.boxes], query.id)
        if query.trust == LOCAL:
            whole = self.law.release_many(self.summaries, sources, self.granted).astype("<f8")
        else:
            z = self._deposits()
            shares = laplace_share_many(sources, self.law.scale(query.epsilon_micro), self.parties, z.shape[1])
            pads = np.stack([pad(self.world.key("pad", box.id), box.id, query.id, z.shape[1]) for box in self.boxes])
            whole = seal_many(z, shares, pads).astype("<u8")
        data, width = whole.tobytes(), whole[0].nbytes
        return [data[at:at + width] for at in range(0, len(data), width)]

    def _deposits(self) -> np.ndarray:
        bounds = {amount: self.law.bound_for(amount, self.query.epsilon_micro) for amount in set(self.granted)}
        return self.law.deposit_many(self.summaries, [bounds[amount] for amount in self.granted])

    def _digests(self) -> list[bytes]:
        return [hashlib.blake2b(row.tobytes(), key=self.world.key("digest", box.id), digest_size=32).digest()
                for box, row in zip(self.boxes, self._deposits().astype("<i8"), strict=True)]
