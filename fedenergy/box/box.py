"""The Private Data Box: from a sealed query to the one envelope that may leave the home, or `refused`.

Order, for every home: the stored answer of the same query -> agreement -> policy -> summary -> grid -> clip -> one
ledger transaction (charge, noise, store) -> envelope -> gate. A refusal is decided from the agreement, the ledger and
public state, before anything is fitted; its reason stays inside.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedenergy.box.admission import Authenticator, BoxKey, Revocations, check_query
from fedenergy.box.agreement import Agreement, AgreementError
from fedenergy.box.agreement_ledger import keep_ledger
from fedenergy.box.carried import carry_over
from fedenergy.box.clock import StoredClock
from fedenergy.box.ledger import Charge, Ledger, LedgerBroken, LedgerUnavailable
from fedenergy.box.ledger_rows import BROKEN
from fedenergy.box.policy import OFFER, Case, PolicyError, Public, decide
from fedenergy.box.query import IN_BLOCKS, SYNTHETIC, UPDATE, SealedQuery
from fedenergy.box.revocation import RevocationWatch
from fedenergy.box.shaping import SHAPED, grid_steps, leaks, release_mechanism
from fedenergy.box.world import SECURE, World
from fedenergy.households.household import Household
from fedenergy.privacy.gaussian import GAUSSIAN, rho_micro
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import noise_from
from fedenergy.privacy.noise_free import NoiseFree, gathered
from fedenergy.privacy.noisy_max import NOISY_MAX
from fedenergy.privacy.one_block import OneBlock
from fedenergy.privacy.pairwise_masks import BINDING_BYTES
from fedenergy.privacy.secure_sum import laplace_share, pad, seal
from fedenergy.privacy.shared_gaussian import SharedGaussian
from fedenergy.privacy.sum_protocol import SumProtocol
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM, Deposit, Envelope, Plain, Release, Share, check_envelope
from fedenergy.privacy.weighted import ATTRIBUTION

if TYPE_CHECKING:
    from fedenergy.box.agreement_files import Enrolment

RELATION = "replace-one"
MICRO = 1_000_000
ENROLMENT_SEED = 0  # keys of simulated homes: the same in every study, stamped by the Authenticator
ONLY_UNDER = {GAUSSIAN: (LOCAL, CURATOR), NOISY_MAX: (LOCAL,), ATTRIBUTION: (LOCAL,)}  # shares would not add up
Summarise = Callable[[Sequence["Box"], Sequence[SealedQuery]], Sequence[tuple[NoiseFree, str]]]


@dataclass(frozen=True)
class Answer:
    """What a box gives: an envelope, or none with the code and the reason that stay inside."""

    household: str
    envelope: Envelope | None
    code: str
    reason: str = ""


def sound(answers: Sequence[Answer | None]) -> Sequence[Answer | None]:
    """The answers, unless a ledger could not be used: that is a failure of its home, which a refusal never is.

    Errors: LedgerUnavailable with the ledger's own reason, for the inside; all answers charged so far are stored.
    """
    for answer in answers:
        if answer is not None and answer.code == BROKEN:
            raise LedgerUnavailable(answer.reason)
    return answers


@dataclass(frozen=True)
class Masking:
    """What a protocol-mode sum adds to one home's answer (privacy/pairwise_masks.py): (d,) uint64, and the digest of
    what the homes posted, which is stored behind the answer: it is of use with that alone."""

    mask: np.ndarray = field(repr=False)
    binding: bytes


class Box:
    """One home's box. Holds its agreement; loads readings only while it answers."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.id = world.population.ids[index]
        self.bound: dict[str, int] = {}  # query id -> micro-epsilon of its own offer, granted exactly; 0: not its offer
        self.masking: Masking | None = None  # only in a copy made for one query of a protocol-mode sum
        self._list = -1  # version of the revocation list under which the agreement on file was read

    def load(self) -> Household:
        """The readings. Nothing of them leaves but through an envelope."""
        return self.world.population.load(self.index)

    @cached_property
    def public_key(self) -> bytes:
        """The box's own Ed25519 key, 32 bytes. AgreementError where its key file is absent or open to others."""
        if (enrolment := enrolment_of(self.world)) is not None:
            return enrolment.box_key(self.id).public_key
        return _box_key(self.id, self._seed).public_key

    def agreement_under(self, listed: Revocations | None) -> Agreement:
        """The agreement; where it is a file, read again when a newer revocation list came: it may have been renewed."""
        if listed is not None and listed.version != self._list:
            self.__dict__.pop("agreement", None)
            self._list = listed.version
        return self.agreement

    @property
    def _seed(self) -> int | None:
        return None if self.world.noise == SECURE else ENROLMENT_SEED

    @cached_property
    def agreement(self) -> Agreement:
        """The signed agreement, bound to this box's key and verified when first read. AgreementError: it has none."""
        world, seed = self.world, self._seed
        if (enrolment := enrolment_of(world)) is not None:
            return enrolment.agreement(self.id)
        terms = replace(world.terms, trust=(*world.terms.trust, OPEN)) if world.open else world.terms
        authenticator = _authenticator(seed)
        signed = authenticator.issue(self.id, _box_key(self.id, seed), terms, unit=world.population.unit)
        return Agreement.verify(signed.to_bytes(), authenticator.public_key)


@lru_cache(maxsize=2)
def _authenticator(seed: int | None) -> Authenticator:
    return Authenticator(seed)


@lru_cache(maxsize=65_536)  # a home has one box key per process, whichever worlds it plays in
def _box_key(household: str, seed: int | None) -> BoxKey:
    return BoxKey(household, seed)


@lru_cache(maxsize=4)
def open_ledger(folder: Path) -> Ledger:
    """This process's handle on a ledger folder."""
    return Ledger(folder)


@lru_cache(maxsize=4)
def _clock(folder: Path) -> StoredClock:
    return StoredClock(folder / "clock")


@lru_cache(maxsize=8)
def _watch(enrolment: Enrolment, ledger: Path) -> RevocationWatch:
    return RevocationWatch(enrolment.revoked, enrolment.public_key, ledger)


def enrolment_of(world: World) -> Enrolment | None:
    """Where this world's agreements lie as files, if they do."""
    return None if world.open else world.enrolment


def revocations_of(world: World, ledger: Path) -> Revocations | None:
    """The revocation list as it is now; None where there are no agreement files. AgreementError: nothing may be said."""
    enrolment = enrolment_of(world)
    if enrolment is None:
        return None
    if world.noise == SECURE:
        keep_ledger(enrolment.folder, ledger)
    return _watch(enrolment, ledger).read()


def consider(boxes: Sequence[Box], queries: Sequence[SealedQuery], ledger: Ledger,
             parties: int = 0) -> list[int | Answer]:
    """Each home's decision, from agreement, ledger and public state alone: granted micro-epsilon, or why not."""
    scopes = [(box.id, None if box.world.noise == SECURE else query.cell)
              for box, query in zip(boxes, queries, strict=True)]
    now = _clock(ledger.path).read(int(time.time()))
    try:
        listed = revocations_of(boxes[0].world, ledger.path) if boxes else None
    except AgreementError as error:
        return [Answer(box.id, None, "revocations", str(error)) for box in boxes]
    held = [_held(box, listed) for box in boxes]
    try:
        spent = ledger.spent_many(scopes)
        carrying = [(one, query.cell) for box, query, one in zip(boxes, queries, held, strict=True)
                    if isinstance(one, Agreement) and one.spent_micro and one.household == box.id and query.trust != OPEN]
        if carrying:
            carry_over(ledger, *zip(*carrying, strict=True), spent, boxes[0].world.noise == SECURE)
    except (LedgerBroken, LedgerUnavailable) as error:
        if len(boxes) == 1:
            return [Answer(boxes[0].id, None, BROKEN, str(error))]
        return [consider([box], [query], ledger, parties)[0] for box, query in zip(boxes, queries, strict=True)]
    return [one if isinstance(one, Answer) else _consider(box, query, one, listed, spent[scope], now, parties)
            for box, query, scope, one in zip(boxes, queries, scopes, held, strict=True)]


def _held(box: Box, listed: Revocations | None) -> Agreement | Answer:
    """The home's agreement with its box's key at hand, or why it has none."""
    try:
        agreement = box.agreement_under(listed)
        return agreement if box.public_key else Answer(box.id, None, "agreement")
    except AgreementError as error:
        return Answer(box.id, None, "agreement", str(error))


def _consider(box: Box, query: SealedQuery, agreement: Agreement, listed: Revocations | None, spent: int, now: int,
              parties: int) -> int | Answer:
    refusal = check_query(agreement, query, now, household=box.id, box_key=box.public_key, zone=box.world.terms.zone,
                          revocations=listed)
    if refusal is not None:
        return Answer(box.id, None, refusal.code, refusal.reason)
    if query.kind not in box.world.task.kinds:
        return Answer(box.id, None, "kind", f"the agreed task answers no {query.kind} query")
    spec = box.world.spec(query.kind)
    if (query.clip, query.grid) != (spec.clip, NoiseGrid(spec.clip).step):
        return Answer(box.id, None, "clip", "the query's clipping bound or grid is not that of the agreed task")
    if query.query_class == SYNTHETIC:
        if (why := _unfit(query, box.world, len(spec.coordinates))):
            return Answer(box.id, None, "mechanism", why)
    elif query.mechanism in ONLY_UNDER and query.trust not in ONLY_UNDER[query.mechanism] and not _shared(query):
        return Answer(box.id, None, "mechanism", f"no {query.mechanism} noise under trust {query.trust}")
    if query.trust == SUM and parties > query.homes:
        return Answer(box.id, None, "parties", "more parties to the sum than homes that were asked")
    if query.trust == OPEN:
        return query.epsilon_micro
    spent = max(spent, agreement.spent_micro)  # a renewed agreement carries over what was spent before
    left = max(0, agreement.cap_micro - spent)
    public = Public(N=query.homes, d=len(spec.coordinates), clip=query.clip, trust=query.trust)
    granted = _granted(box, query, public, spent, left)
    if isinstance(granted, int) and query.mechanism == GAUSSIAN:
        try:
            rho_micro(granted, query.delta)
        except ValueError as error:  # no delta, or too small an offer: before anything is fitted
            return Answer(box.id, None, "delta", str(error))
    return granted


def _shared(query: SealedQuery) -> bool:
    """Updates in a sum: the homes share one Gaussian noise (privacy/shared_gaussian.py)."""
    return query.query_class == UPDATE and query.mechanism == GAUSSIAN and query.trust == SUM


def _unfit(query: SealedQuery, world: World, coordinates: int) -> str:
    """Why a query of class synthetic is not answered, or "": a series leaves in the open or not at all, statistics leave
    in blocks under Gaussian noise of a Curator or of a sum."""
    if query.kind not in IN_BLOCKS:
        return "" if query.trust == OPEN else f"a synthetic series leaves under trust {OPEN} only, not {query.trust}"
    if query.mechanism != GAUSSIAN or query.trust not in (SUM, CURATOR):
        return f"{query.kind} is answered under {GAUSSIAN} noise and trust {SUM} or {CURATOR} only"
    try:
        law = release_mechanism(query, world.policy, coordinates)
    except (ValueError, TypeError, OverflowError) as error:
        return str(error)
    own = world.task.layout(query.kind)
    return "" if (law.blocks, law.width) == (own["blocks"], own["width"]) else "the blocks are not those of the agreed task"


def _granted(box: Box, query: SealedQuery, public: Public, spent: int, left: int) -> int | Answer:
    """Micro-epsilon: the box's own offer where one came back with the query, else what the policy says now."""
    if leaks(box.world.policy) and not box.world.leaking:
        return Answer(box.id, None, "leaks", "the policy sets noise by the true answer; the study does not allow it")
    if query.mechanism in SHAPED:
        try:
            release_mechanism(query, box.world.policy, public.d)
        except Exception as error:  # a user's own policy: it must not take the other homes of the batch with it
            return Answer(box.id, None, "mechanism", f"{type(error).__name__}: {error}")
    if query.id in box.bound:
        offered = box.bound[query.id]
        if not offered:
            return Answer(box.id, None, "offer", "an offer came back with the query that this box did not make")
        return offered if offered <= left else Answer(
            box.id, None, "budget", f"the offer of {offered} micro-epsilon is more than the {left} that remain")
    case = Case(query=query.query, agreement=box.agreement, spent=Decimal(spent) / MICRO,
                remaining=Decimal(left) / MICRO, public=public)
    try:
        decision = decide(box.world.policy, case)
    except PolicyError as error:
        return Answer(box.id, None, "policy_error", str(error))
    if decision.action != OFFER:
        return Answer(box.id, None, decision.code, decision.reason)
    return decision.epsilon_micro


def answer_many(boxes: Sequence[Box], queries: Sequence[SealedQuery], summarise: Summarise, *, seed: int,
                parties: int = 0) -> list[Answer]:
    """Answer one query per box, in order: the natural way for data.

    summarise   computes the noise-free summaries (d,) of the boxes that will answer, each with a note for the inside
    seed        of simulated noise; not used when the world's noise is secure
    parties     trust "sum": how many homes accepted, fixed before any share is drawn
    Guarantee: replace-one epsilon as charged; nothing is returned before its charge is durable.
    """
    if not boxes:
        return []
    if any((SumProtocol.parse(query.mechanism) is None) != (box.masking is None)
           for box, query in zip(boxes, queries, strict=True)):
        raise ValueError("a protocol-mode sum is answered with the board of its session, and nothing else is")
    ledger = open_ledger(boxes[0].world.ledger)
    answers: list[Answer | None] = [None] * len(boxes)
    broken: dict[str, str] = {}
    stored = ledger.lookup([(box.id, query.id) for box, query in zip(boxes, queries, strict=True)], broken)
    fresh = []
    for at, (box, query) in enumerate(zip(boxes, queries, strict=True)):
        row = stored.get((box.id, query.id))
        if box.id in broken:
            answers[at] = Answer(box.id, None, BROKEN, broken[box.id])
        elif row is not None and query.trust in (LOCAL, SUM):
            answers[at] = _stored_answer(box, query, row)
        else:
            fresh.append(at)
    decided = consider([boxes[at] for at in fresh], [queries[at] for at in fresh], ledger, parties)
    granted: dict[int, int] = {}
    for at, decision in zip(fresh, decided, strict=True):
        row = stored.get((boxes[at].id, queries[at].id))
        if row is not None:  # a Deposit or Plain asked again: charged already, so recomputed and checked
            granted[at] = row.epsilon_micro or queries[at].epsilon_micro
        elif isinstance(decision, Answer):
            answers[at] = decision
        else:
            granted[at] = decision
    if granted:
        _settle(boxes, queries, granted, summarise, seed, parties, ledger, answers)
    return answers


def _settle(boxes, queries, granted, summarise, seed, parties, ledger, answers) -> None:
    order = list(granted)
    summaries = summarise([boxes[at] for at in order], [queries[at] for at in order])
    outbound = [_Outbound(boxes[at], queries[at], granted[at], summary, seed, parties)
                for at, (summary, _) in zip(order, summaries, strict=True)]
    outcomes = ledger.settle([item.charge() for item in outbound], _drawn(outbound))
    for at, item, outcome, (_, note) in zip(order, outbound, outcomes, summaries, strict=True):
        box = boxes[at]
        if outcome.status in ("charged", "stored"):
            answers[at] = Answer(box.id, item.envelope(outcome.payload), outcome.status, note)
        else:
            answers[at] = Answer(box.id, None, outcome.status, outcome.reason)


def _drawn(outbound: Sequence[_Outbound]) -> Callable[[int], bytes]:
    """payload() of each, by position. Releases of one query are drawn together, at the first call: the same bytes, sooner.
    One that the ledger then refuses is dropped unseen."""
    first = outbound[0]
    law, query, world = first.mechanism, first.query, first.box.world
    if query.trust != LOCAL or type(law) is not Laplace or any(
            item.query is not query or item.box.world is not world for item in outbound):
        return lambda at: outbound[at].payload()

    @cache
    def rows() -> list[bytes]:
        sources = noise_from(world.noise, first.seed).sources([item.box.id for item in outbound], query.id)
        summaries = gathered([item.summary for item in outbound])
        released = law.release_many(summaries, sources, [item.granted for item in outbound]).astype("<f8")
        return [first.fitting(row).tobytes() for row in released]
    return lambda at: rows()[at]


class _Outbound:
    """One home's answer on its way out: clipped integers inside, one envelope outside."""

    def __init__(self, box: Box, query: SealedQuery, granted: int, summary: NoiseFree, seed: int, parties: int) -> None:
        self.box, self.query, self.granted, self.summary = box, query, granted, summary
        self.seed, self.parties = seed, parties
        self.mechanism = release_mechanism(query, box.world.policy, len(box.world.spec(query.kind).coordinates))

    def charge(self) -> Charge:
        world, query = self.box.world, self.query
        first, last = query.blocks
        gaussian = query.mechanism == GAUSSIAN
        return Charge(household=self.box.id, query_id=query.id, content_digest=query.content_digest, cell=query.cell,
                      block_from=first, block_to=last, unit=world.population.unit, relation=RELATION,
                      mechanism=query.mechanism, trust=query.trust,
                      epsilon_micro=None if query.trust == OPEN else self.granted,
                      cap_micro=self.box.agreement.cap_micro, all_cells=world.noise == SECURE,
                      delta=query.delta, delta_cap=self.box.agreement.delta,
                      rho_micro=rho_micro(self.granted, query.delta) if gaussian else None)

    def payload(self) -> bytes:
        """Called inside the ledger's transaction: the bytes that are stored and, but for a digest, sent."""
        query, source = self.query, noise_from(self.box.world.noise, self.seed).source(self.box.id, self.query.id)
        if query.trust == LOCAL:
            return self.fitting(self.mechanism.release(self.summary, source, self.granted).astype("<f8")).tobytes()
        if query.trust == SUM:
            size = len(self.box.world.spec(query.kind).coordinates)
            if isinstance(self.mechanism, OneBlock | SharedGaussian):
                share = self.mechanism.share(source, query.epsilon_micro, self.parties, size)
            else:
                share = laplace_share(source, self.mechanism.scale(query.epsilon_micro), self.parties, size)
            masking, z = self.box.masking, self.fitting(self.mechanism.deposit(self.summary, self._bound))
            if masking is not None:
                return seal(z, share, masking.mask).astype("<u8").tobytes() + masking.binding
            mask = pad(self.box.world.key("pad", self.box.id), self.box.id, query.id, size)
            return seal(z, share, mask).astype("<u8").tobytes()
        return self._digest()

    def envelope(self, payload: bytes) -> Envelope:
        """The envelope of the query's trust mode, through the gate."""
        box, query = self.box, self.query
        if query.trust in (LOCAL, SUM):
            return _from_payload(box, query, self.granted, payload)
        if payload != self._digest():
            raise ValueError(f"household {box.id}: its data changed since this query was charged; ask with --fresh")
        if query.trust == CURATOR:
            return _gate(Deposit(box.id, query.id, self.granted, self.mechanism.deposit(self.summary, self._bound)),
                         box, query)
        return _gate(Plain(box.id, query.id, None, self.mechanism.plain(self.summary)), box, query)

    @property
    def _bound(self) -> int:
        """K_i: where one noise is scaled to the epsilon asked, a home that grants less is clipped to less."""
        return self.mechanism.bound_for(self.granted, self.query.epsilon_micro)

    def fitting(self, values: np.ndarray) -> np.ndarray:
        """The values, if they are as many as were asked for: an answer that no gate lets out must not be charged."""
        size = len(self.box.world.spec(self.query.kind).coordinates)
        if values.shape != (size,):
            raise ValueError(f"the task gave values of shape {values.shape} where {size} coordinates are asked for")
        return values

    def _digest(self) -> bytes:
        key = self.box.world.key("digest", self.box.id)
        deposit = self.mechanism.deposit(self.summary, self._bound)
        if self.query.trust != OPEN:
            self.fitting(deposit)
        return hashlib.blake2b(deposit.astype("<i8").tobytes(), key=key, digest_size=32).digest()


def _stored_answer(box: Box, query: SealedQuery, row) -> Answer:
    if row.content_digest != query.content_digest:
        return Answer(box.id, None, "conflict", "this query id was answered before with another content")
    if box.masking is not None and row.payload[-BINDING_BYTES:] != box.masking.binding:
        return Answer(box.id, None, "session", "this query was answered before under other masks, and masks serve once")
    return Answer(box.id, _from_payload(box, query, row.epsilon_micro, row.payload), "stored")


def _from_payload(box: Box, query: SealedQuery, epsilon_micro: int, payload: bytes) -> Envelope:
    kind, dtype = (Release, "<f8") if query.trust == LOCAL else (Share, "<u8")
    payload = payload if box.masking is None else payload[:-BINDING_BYTES]
    values = np.frombuffer(payload, dtype).astype(kind.dtype)
    return _gate(kind(box.id, query.id, epsilon_micro, values), box, query)


def _gate(envelope: Envelope, box: Box, query: SealedQuery) -> Envelope:
    """The one way out of a box."""
    bound, norm = NoiseGrid(query.clip).bound, 2 if query.mechanism == GAUSSIAN else 1
    coordinates = len(box.world.spec(query.kind).coordinates)
    return check_envelope(envelope, query.trust, coordinates, grid_steps(query, box.world.policy, coordinates), bound, norm)
