"""`query.negotiate` over a grid: terms go to the homes, bids come back, and the last offers bind.

Nothing is fitted or charged here, and a home's readings are never loaded. An offer carries a tag: a keyed digest by the
home's own box over the query, the epsilon and the payment. The operator sends it back with the query; the box
recognises its own offer and grants exactly that, after a crash too. The ledger still has the last word on the cap.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedenergy import ids
from fedenergy.box.admission import check_query
from fedenergy.box.agreement import AgreementError
from fedenergy.box.box import MICRO, Box, open_ledger, revocations_of
from fedenergy.box.clock import StoredClock
from fedenergy.box.negotiation import MAX_ROUNDS, Bid, Negotiated, Operator, Terms, answer, talk
from fedenergy.box.policies_public import window
from fedenergy.box.policy import COUNTER, OFFER, REFUSE, Case, Public, Published
from fedenergy.box.query import QUERY_CLASSES, SealedQuery
from fedenergy.box.world import SECURE
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.trust import OPEN, REFUSED

NEGOTIATE = "negotiate"
TERMS, BID, BINDING = "terms", "bid", "binding"
TOGETHER = 256  # homes that share one message content: few contents for Ray, and no list of all homes to each
TAG_BYTES = 32
_CODE = re.compile(r"[a-z0-9_]{1,32}")
_REFUSED = {"household": str, "query_id": str, "status": str, "price_micro": int}
_BID = {**_REFUSED, "epsilon_micro": int, "kind": str, "code": str, "window": list, "tag": bytes}
_TERMS = {"homes": list, "payments": list, "epsilons": list, "need": list, "feedback": list, "kind": str,
          "values": list, "release": list}


# the wire

def terms_records(terms: Mapping[str, Terms], together: int = TOGETHER) -> list[tuple[list[str], ConfigRecord]]:
    """(homes, record) for groups of homes; within a group only payment and epsilon differ from home to home."""
    groups: dict[Terms, list[str]] = {}
    for name, said in terms.items():
        groups.setdefault(replace(said, payment_micro=0, epsilon_micro=0), []).append(name)
    found = []
    for said, names in groups.items():
        for start in range(0, len(names), together):
            part = names[start:start + together]
            release = [number for one in said.releases
                       for number in (float(len(one.values)), one.epsilon, float(one.homes), float(one.noises))]
            found.append((part, ConfigRecord({
                "homes": part, "payments": [terms[name].payment_micro for name in part],
                "epsilons": [terms[name].epsilon_micro for name in part],
                "need": [] if said.need is None else [float(said.need)], "feedback": list(map(float, said.feedback)),
                "kind": said.kind, "values": [value for one in said.releases for value in one.values],
                "release": release})))
    return found


def read_terms(content: RecordDict) -> dict[str, Terms]:
    """Inverse of one record of terms_records; whatever does not fit raises ValueError."""
    fields = _checked(content, TERMS, _TERMS)
    homes = fields["homes"]
    if not len(homes) == len(fields["payments"]) == len(fields["epsilons"]) or len(fields["need"]) > 1:
        raise ValueError("terms list one payment and one epsilon per home, and at most one need")
    values, releases = list(fields["values"]), []
    for at in range(0, len(fields["release"]), 4):
        size, epsilon, number, noises = fields["release"][at:at + 4]
        taken, values = values[:int(size)], values[int(size):]
        releases.append(Published(tuple(taken), epsilon, int(number), int(noises)))
    need = fields["need"][0] if fields["need"] else None
    return {name: Terms(need, tuple(fields["feedback"]), payment, epsilon, fields["kind"], tuple(releases))
            for name, payment, epsilon in zip(homes, fields["payments"], fields["epsilons"], strict=True)}


def encode_bid(bid: Bid, query_id: str, tag: bytes = b"") -> RecordDict:
    """One home's answer in one round. A refusal has no code; a home that sells adds its price."""
    fields = {"household": bid.household, "query_id": query_id, "price_micro": bid.price_micro or 0,
              "status": REFUSED if bid.action == REFUSE else bid.action}
    if bid.action != REFUSE:
        fields |= {"epsilon_micro": bid.epsilon_micro, "kind": bid.kind, "code": bid.code,
                   "window": list(bid.window or ()), "tag": tag}
    return RecordDict({BID: ConfigRecord(fields)})


def decode_bid(content: RecordDict, query: SealedQuery, household: str) -> tuple[Bid, bytes]:
    """The bid and its tag; a bid that names another home or query, or offers more than was asked, raises ValueError."""
    if set(content) != {BID}:
        raise ValueError("a bid is exactly one record")
    record = content.get(BID)
    refused = isinstance(record, ConfigRecord) and record.get("status") == REFUSED
    fields = _checked(content, BID, _REFUSED if refused else _BID)
    if (fields["household"], fields["query_id"]) != (household, query.id):
        raise ValueError(f"household {household}: the bid names another household or another query")
    price = fields["price_micro"] or None
    if refused:
        if (price or 0) < 0:
            raise ValueError(f"household {household}: the bid has a negative price")
        return Bid(household, REFUSE, price_micro=price), b""
    span = fields["window"]
    if fields["status"] not in (OFFER, COUNTER) or not 0 < fields["epsilon_micro"] <= query.epsilon_micro \
            or fields["kind"] not in QUERY_CLASSES or not _CODE.fullmatch(fields["code"]) \
            or not (not span or (len(span) == 2 and all(type(step) is int for step in span) and 0 <= span[0] < span[1])) \
            or (price or 0) < 0 or len(fields["tag"]) != TAG_BYTES:
        raise ValueError(f"household {household}: the bid is not an offer or counter within what was asked")
    return Bid(household, fields["status"], fields["epsilon_micro"], fields["kind"], fields["code"], price,
               tuple(fields["window"]) or None), fields["tag"]


def _checked(content: RecordDict, name: str, schema: Mapping[str, type]) -> dict:
    record = content.get(name)
    if not isinstance(record, ConfigRecord) or set(record) != set(schema) \
            or any(type(record[key]) is not kind for key, kind in schema.items()):
        raise ValueError(f"a {name} record has exactly the keys {', '.join(schema)}, each of its type")
    return dict(record)


# the home's side

@lru_cache(maxsize=4)
def _clock(folder: Path) -> StoredClock:
    return StoredClock(folder / "clock")


def case_of(box: Box, query: SealedQuery, spent_micro: int, now: int) -> Case | None:
    """The case of a home before any terms; None where its agreement does not allow the query."""
    world = box.world
    try:
        listed = revocations_of(world, world.ledger)
        agreement = box.agreement_under(listed)
        refusal = check_query(agreement, query, now, household=box.id, box_key=box.public_key, zone=world.terms.zone,
                              revocations=listed)
    except AgreementError:
        return None
    if refusal is not None:
        return None
    if query.kind not in world.task.kinds or query.trust == OPEN:
        return None
    spec = world.spec(query.kind)
    if (query.clip, query.grid) != (spec.clip, NoiseGrid(spec.clip).step):
        return None
    spent = max(spent_micro, agreement.spent_micro)
    left = max(0, agreement.cap_micro - spent)
    public = Public(N=query.homes, d=len(spec.coordinates), clip=query.clip, trust=query.trust)
    return Case(query.query, agreement, Decimal(spent) / MICRO, Decimal(left) / MICRO, public)


def bid_many(boxes: Sequence[Box], query: SealedQuery, terms: Mapping[str, Terms]) -> list[tuple[Bid, bytes, str, str]]:
    """(bid, tag, code and reason that stay inside) of each home.

    A home whose answer to this query is stored already bids as it did before it was charged, so that a resumed
    negotiation ends as the first one did.
    """
    ledger = open_ledger(boxes[0].world.ledger)
    scopes = [(box.id, None if box.world.noise == SECURE else query.cell) for box in boxes]
    spent, now = ledger.spent_many(scopes), _clock(ledger.path).read(int(time.time()))
    stored = ledger.lookup([(box.id, query.id) for box in boxes])
    found = []
    for box, scope in zip(boxes, scopes, strict=True):
        row = stored.get((box.id, query.id))
        case = case_of(box, query, spent[scope] - (row.epsilon_micro or 0 if row else 0), now)
        said = terms.get(box.id)
        if case is None or said is None:
            found.append((Bid(box.id, REFUSE), b"", "terms", "the agreement does not allow the query, or no terms came"))
            continue
        bid, code, reason = answer(box.id, box.world.policy, case, said)
        if bid.action != REFUSE:  # a code is a word of a fixed form: a policy's own text stays inside
            bid = replace(bid, window=window(code, query.rows), code=code if _CODE.fullmatch(code) else bid.action)
        made = b"" if bid.action == REFUSE else tag(box, query, bid, said.payment_micro)
        found.append((bid, made, code, reason))
    return found


def tag(box: Box, query: SealedQuery, bid: Bid, payment_micro: int) -> bytes:
    """The box's own mark on an offer, 32 bytes: keyed with its enrolment, so nobody else can make one."""
    what = ids.canon([query.id, query.content_digest, bid.action, bid.epsilon_micro, bid.kind, payment_micro])
    return hashlib.blake2b(what, key=box.world.key("offer", box.id), digest_size=TAG_BYTES).digest()


def bound_micro(box: Box, query: SealedQuery, binding: Mapping[str, tuple[int, int, bytes]]) -> int | None:
    """What the box must grant: the epsilon of its own offer for exactly this query; None if it made no such offer.

    A box remembers no rounds: whatever it offered for a query stands, for the payment that it was offered for.
    """
    epsilon, payment, mark = binding.get(box.id, (0, 0, b""))
    own = tag(box, query, Bid(box.id, OFFER, epsilon, query.kind), payment)
    return epsilon if epsilon > 0 and hmac.compare_digest(own, mark) else None


def handler(homes) -> Callable[[Sequence[Message], Sequence[Context]], list[Message]]:
    """The batch handler of `query.negotiate` for fedenergy.federation.client_app.Homes."""
    def negotiate_many(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        read: dict[int, list[tuple[Message, int]]] = {}
        for message, context in zip(messages, contexts, strict=True):  # contents are shared: read each of them once
            read.setdefault(id(message.content), []).append((message, int(context.node_config["partition-id"])))
        made: dict[str, Message] = {}
        for part in read.values():
            query, extras = records.read_query(part[0][0].content)
            boxes = [homes.box(extras["world"], index) for _, index in part]
            bids = bid_many(boxes, query, read_terms(part[0][0].content))
            homes.log([{"household": bid.household, "query_id": query.id, "cell": query.cell, "action": bid.action,
                        "code": code, "epsilon_micro": bid.epsilon_micro, "reason": reason}
                       for bid, _, code, reason in bids])
            for (message, _), (bid, mark, *_) in zip(part, bids, strict=True):
                made[message.metadata.message_id] = flower.reply(message, encode_bid(bid, query.id, mark))
        return [made[message.metadata.message_id] for message in messages]
    return negotiate_many


def bind(boxes: Sequence[Box], query: SealedQuery, content: RecordDict) -> None:
    """Have the boxes grant their own offers that came back with the query; 0 where the box did not make the offer.

    Without a binding the policy decides anew, under no terms at all.
    """
    binding = read_binding(content) if BINDING in content else None
    for box in boxes:
        if binding is None:
            box.bound.pop(query.id, None)
        else:
            box.bound[query.id] = bound_micro(box, query, binding) or 0


# the operator's side

Bound = tuple[int, int, bytes]  # of one offer: micro-epsilon, payment in millionths, tag


@dataclass(frozen=True)
class Negotiation:
    """What a study negotiates with: an operator, how many rounds, and the earlier zone answers of each cell."""

    operator: Operator
    rounds: int = 8
    releases: Mapping[str, tuple[Published, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or not 1 <= self.rounds <= MAX_ROUNDS:
            raise ValueError(f"[negotiation] rounds = {self.rounds!r} is not a whole number from 1 to {MAX_ROUNDS}")
        if isinstance(self.operator, type) or not isinstance(self.operator, Operator):
            raise ValueError(f"[negotiation] {self.operator!r:.80} is no operator: it has no method respond(bids, case)")


@dataclass(frozen=True)
class Outcome:
    """What a negotiation over a grid ended in: the talk, each binding offer's tag, and the homes that failed."""

    talk: Negotiated
    tags: Mapping[str, bytes]
    failed: tuple[str, ...]

    def bindings(self, kind: str, together: int = TOGETHER) -> list[tuple[list[str], ConfigRecord]]:
        """(homes, record) for the query itself: only homes with an offer of that kind; sent back to them with it."""
        return binding_records(self.binding(kind), together)

    def binding(self, kind: str) -> dict[str, Bound]:
        """The offers for that kind."""
        return {name: (bid.epsilon_micro, self.talk.terms[name].payment_micro, self.tags[name])
                for name, bid in self.talk.bids.items() if bid.action == OFFER and bid.kind == kind}


def binding_records(bound: Mapping[str, Bound], together: int = TOGETHER) -> list[tuple[list[str], ConfigRecord]]:
    """(homes, record) for groups of homes: the offers that bind, sent back to those that made them."""
    names = list(bound)
    parts = [names[start:start + together] for start in range(0, len(names), together)]
    return [(part, ConfigRecord({"homes": part, **{key: [bound[name][at] for name in part] for at, key in enumerate(
        ("epsilons", "payments", "tags"))}})) for part in parts]


def read_binding(content: RecordDict) -> dict[str, Bound]:
    """home -> (micro-epsilon, payment, tag); {} where the message carries no binding record."""
    if BINDING not in content:
        return {}
    fields = _checked(content, BINDING, {"homes": list, "epsilons": list, "payments": list, "tags": list})
    return {name: tuple(rest) for name, *rest in zip(*(fields[key] for key in ("homes", "epsilons", "payments", "tags")),
                                                     strict=True)}


def negotiate_over(send: Callable[[list[tuple[str, RecordDict]]], list[RecordDict | None]], names: Sequence[str],
                   query: SealedQuery, coordinates: int, operator: Operator, rounds: int = 8,
                   releases: tuple[Published, ...] = ()) -> Outcome:
    """Negotiate one sealed query with the homes named.

    send         (home, content) pairs -> the content of each reply, None for a home that failed; adds the query record
    coordinates  d; releases: earlier zone answers of this cell, oldest first: Public.releases on both sides
    """
    if not 1 <= rounds <= MAX_ROUNDS:
        raise ValueError(f"[negotiation] rounds = {rounds} is outside 1..{MAX_ROUNDS}")
    public = Public(N=query.homes or len(names), d=coordinates, clip=query.clip, releases=releases, trust=query.trust)
    tags: dict[str, bytes] = {}
    failed: set[str] = set()

    def ask(terms: Mapping[str, Terms]) -> list[Bid]:
        tags.clear()
        asked = {name: said for name, said in terms.items() if name not in failed}
        batch = [(name, content) for part, record in terms_records(asked)
                 for content in [RecordDict({TERMS: record})] for name in part]
        found = {}
        for (name, _), reply in zip(batch, send(batch), strict=True):
            try:
                if reply is None:
                    raise ValueError("no reply")
                found[name], tags[name] = decode_bid(reply, query, name)
            except ValueError:  # a home that breaks the schema is one failure, whatever it sent; it is asked no more
                failed.add(name)
        return [found.get(name, Bid(name, REFUSE)) for name in names]

    found = talk(names, query.query, public, operator, rounds, ask)
    return Outcome(found, dict(tags), tuple(sorted(failed)))


def with_bindings(bound: Mapping[str, Bound], messages: Mapping[str, Message]) -> list[Message]:
    """The messages (by home) of the homes whose offer binds, each with it inside; the others are not asked."""
    found = []
    for names, record in binding_records({name: bound[name] for name in messages if name in bound}):
        shared: dict[int, RecordDict] = {}
        for name in names:
            old = messages[name]
            content = shared.setdefault(id(old.content), RecordDict({**old.content, BINDING: record}))
            found.append(flower.instruction(content, old.metadata.dst_node_id, old.metadata.message_type,
                                            old.metadata.group_id))
    return found
