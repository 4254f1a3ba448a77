"""Negotiation in rounds: the operator's need and public feedback go in, the homes' offers come out. Pure.

An operator is any object with `respond(bids, case) -> Response`; a home is a Policy. What crosses in either direction
is made of public numbers: no utility, no price of a home unless it sells, no reason. The last round's offer binds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Protocol, runtime_checkable

from fedenergy.box.policies import home_norm
from fedenergy.box.policies_paid import FIXED, RULES, Bought, procure
from fedenergy.box.policy import COUNTER, OFFER, REFUSE, Case, Policy, PolicyError, Public, Published, decide
from fedenergy.box.query import QUERY_CLASSES, Query
from fedenergy.privacy.epsilon import MICRO
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.trust import REFUSED

MAX_ROUNDS = 64


@dataclass(frozen=True)
class Terms:
    """What the operator has said to one home so far; all of it public.

    need       cosine utility that it asks for; None: not stated
    feedback   its answers to the earlier rounds' offers, oldest first: need minus the utility that they promise
    payment_micro   currency for the answer, in millionths; epsilon_micro: asked of this home, 0: as in the query
    kind       another kind of query in place of the one asked (a counter-offer that it took up); "": the query's
    releases   earlier answers, oldest first
    """

    need: float | None = None
    feedback: tuple[float, ...] = ()
    payment_micro: int = 0
    epsilon_micro: int = 0
    kind: str = ""
    releases: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (*self.feedback, self.need or 0.0))) or len(self.feedback) > MAX_ROUNDS:
            raise ValueError(f"terms hold finite numbers and at most {MAX_ROUNDS} feedbacks")
        if self.payment_micro < 0 or self.epsilon_micro < 0 or (self.kind and self.kind not in QUERY_CLASSES):
            raise ValueError("terms have a payment and an epsilon >= 0 and a kind of query that exists")

    def case(self, case: Case) -> Case:
        """The case that a home's policy sees under these terms."""
        query = case.query
        if self.kind and self.kind != query.kind:
            query = replace(query, kind=self.kind)
        if 0 < self.epsilon_micro < query.epsilon_micro:
            query = replace(query, epsilon=self.epsilon_micro / MICRO)
        public = replace(case.public, need=self.need, feedback=self.feedback,
                         releases=self.releases or case.public.releases)
        return replace(case, query=query, public=public, payment=Decimal(self.payment_micro).scaleb(-6))


@dataclass(frozen=True)
class Bid:
    """What the operator learns of one home's answer in one round.

    action   offer, counter or refuse; epsilon_micro: of an offer or counter; kind: that it answers, or would answer
    code     of an offer or counter; a refusal is the word refused, whatever its reason
    price_micro   what a home that sells by auction asks per unit of epsilon, millionths of currency; else None
    window   steps (first, last) that it would answer for; None where nothing was said about it
    """

    household: str
    action: str
    epsilon_micro: int | None = None
    kind: str = ""
    code: str = REFUSED
    price_micro: int | None = None
    window: tuple[int, int] | None = None


@dataclass(frozen=True)
class Response:
    """What the operator says to all homes after a round.

    need, feedback   as in Terms; feedback None: nothing said
    payment          to every home that answers, currency; payments: instead of it, for single homes
    epsilons_micro   asked of single homes from now on, at most the query's
    kind             from now on it asks this kind instead; None: no change
    done             the bids in hand bind, under the terms that they were made for
    """

    need: float | None = None
    feedback: float | None = None
    payment: Decimal = Decimal(0)
    payments: Mapping[str, Decimal] = field(default_factory=dict)
    epsilons_micro: Mapping[str, int] = field(default_factory=dict)
    kind: str | None = None
    done: bool = False

    def terms(self, household: str, before: Terms) -> Terms:
        """The terms of one home in the next round."""
        feedback = before.feedback if self.feedback is None else (*before.feedback, self.feedback)
        payment = self.payments.get(household, self.payment)
        asked = self.epsilons_micro.get(household, before.epsilon_micro)
        return Terms(self.need, feedback, int(payment.scaleb(6)), asked,
                     before.kind if self.kind is None else self.kind, before.releases)


@dataclass(frozen=True)
class OperatorCase:
    """What an operator decides on: the query, what is public (its N, d, clip, trust, releases), and the rounds so far.

    round   how many rounds of bids it has seen; rounds: how many there may be; history: its own earlier responses
    """

    query: Query
    public: Public
    round: int
    rounds: int
    history: tuple[Response, ...] = ()

    @property
    def last(self) -> bool:
        return self.round >= self.rounds


@runtime_checkable
class Operator(Protocol):
    """The operator's side of a negotiation. Called with no bids at first, then after every round."""

    def respond(self, bids: Sequence[Bid], case: OperatorCase) -> Response:
        """From the bids and public state only; the same ones get the same answer."""
        ...


@dataclass(frozen=True)
class Round:
    """One round of a transcript: the terms (of the first home, where they differ), all bids, the response."""

    terms: Terms
    bids: tuple[Bid, ...]
    response: Response


@dataclass(frozen=True)
class Negotiated:
    """The outcome: what binds, and how it came about.

    agreed     the operator ended it; False: the rounds ran out, and the last offers stand as they are
    bids       of the last round, by home; terms: those they were made under
    """

    agreed: bool
    bids: Mapping[str, Bid]
    terms: Mapping[str, Terms]
    transcript: tuple[Round, ...]

    @property
    def granted_micro(self) -> dict[str, int]:
        """Binding offers: home -> micro-epsilon."""
        return {name: bid.epsilon_micro for name, bid in self.bids.items() if bid.action == OFFER}

    @property
    def payments_micro(self) -> dict[str, int]:
        """What the operator owes the homes that will answer, millionths of currency."""
        return {name: self.terms[name].payment_micro for name in self.granted_micro}


def answer(household: str, policy: Policy, case: Case, terms: Terms) -> tuple[Bid, str, str]:
    """One home's bid under terms, with its code and reason, which stay inside. A policy that fails refuses."""
    case = terms.case(case)
    price = None
    try:
        decision = decide(policy, case)
        if hasattr(policy, "bid") and (claim := policy.bid(case)) is not None:
            price = max(1, int(claim.scaleb(6)))
    except PolicyError as error:
        return Bid(household, REFUSE), "policy_error", str(error)
    if decision.action == REFUSE:
        return Bid(household, REFUSE, price_micro=price), decision.code, decision.reason
    kind = decision.query.kind if decision.action == COUNTER else case.query.kind
    bid = Bid(household, decision.action, decision.epsilon_micro, kind, decision.code, price)
    return bid, decision.code, decision.reason


def negotiate(homes: Mapping[str, tuple[Policy, Case]], operator: Operator, rounds: int = 8) -> Negotiated:
    """Up to `rounds` rounds between all homes and one operator.

    homes   household -> its policy and its case (before any terms); at least one. All cases have the same query
    """
    if not homes or not 1 <= rounds <= MAX_ROUNDS:
        raise ValueError(f"a negotiation has one home or more and 1 to {MAX_ROUNDS} rounds, not {len(homes)}, {rounds}")
    names = sorted(homes)
    first = homes[names[0]][1]

    def ask(terms: Mapping[str, Terms]) -> list[Bid]:
        return [answer(name, *homes[name], terms[name])[0] for name in names]
    return talk(names, first.query, first.public, operator, rounds, ask)


def talk(names: Sequence[str], query: Query, public: Public, operator: Operator, rounds: int, ask) -> Negotiated:
    """The loop alone: `ask(terms by home) -> bids in order of names`, in this process or over a grid."""
    said = [operator.respond((), OperatorCase(query, public, 0, rounds))]
    start = Terms(releases=public.releases)
    terms = {name: replace(said[0], feedback=None).terms(name, start) for name in names}
    transcript: list[Round] = []
    for number in range(1, rounds + 1):
        bids = ask(terms)
        response = operator.respond(bids, OperatorCase(query, public, number, rounds, tuple(said)))
        transcript.append(Round(terms[names[0]], tuple(bids), response))
        if response.done or number == rounds:
            break
        said.append(response)
        terms = {name: response.terms(name, terms[name]) for name in names}
    return Negotiated(response.done, {bid.household: bid for bid in bids}, terms, tuple(transcript))


def promised_utility(granted_micro: Sequence[int], asked_micro: int, public: Public, prior: float = 0.5) -> float:
    """Expected cosine of a zone answer from the homes' offers, by the public model; 0 without an offer.

    Local noise: the homes' variances 2 d b_i^2 add up, b_i = Delta/eps_i, so the most cautious home counts most. One
    noise (sum, curator): a single 2 d b^2 at the epsilon asked, and a home that grants less is clipped to its share of
    the ball. Homes are taken to be alike: ||S_i||_2 from a release, or prior * clip; ||S_i||_1 at its largest.
    """
    granted = [amount for amount in granted_micro if amount > 0]
    if not granted:
        return 0.0
    delta = Laplace(public.clip).sensitivity()
    norm = home_norm(public.releases, delta) or prior * public.clip
    if public.noises == 1:
        inside = public.clip / min(public.clip, math.sqrt(public.d) * norm)  # how far S lies within the ball, >= 1
        signal = norm * math.fsum(min(1.0, inside * amount / asked_micro) for amount in granted)
        variance = 2 * public.d * (delta * MICRO / asked_micro) ** 2
    else:
        signal = norm * len(granted)
        variance = 2 * public.d * math.fsum((delta * MICRO / amount) ** 2 for amount in granted)
    return signal / math.hypot(signal, math.sqrt(variance))


def offers(bids: Sequence[Bid], kind: str) -> list[int]:
    """Micro-epsilon of the offers for that kind."""
    return [bid.epsilon_micro for bid in bids if bid.action == OFFER and bid.kind == kind]


@dataclass(frozen=True)
class TakeIt:
    """Asks once and takes what it gets. payment: to each home that answers, currency."""

    payment: float = 0.0

    def respond(self, bids: Sequence[Bid], case: OperatorCase) -> Response:
        return Response(payment=Decimal(repr(self.payment)), done=case.round > 0)


@dataclass(frozen=True)
class NeedAccuracy:
    """States a cosine utility that it needs, and tells after each round how much the offers lack of it.

    need        in (0, 1); tolerance: it is content within that
    fall_back   share of homes that must propose the same other kind before it asks that one instead; None: never
    prior       see promised_utility
    """

    need: float = 0.9
    tolerance: float = 0.005
    fall_back: float | None = None
    prior: float = 0.5

    def respond(self, bids: Sequence[Bid], case: OperatorCase) -> Response:
        if case.round == 0:
            return Response(need=self.need)
        kind = case.query.kind
        if any(said.kind for said in case.history):
            return Response(need=self.need, done=True)  # no utility model of other kinds: it takes what it gets
        if self.fall_back is not None:
            counters = [bid for bid in bids if bid.action == COUNTER and bid.kind != kind]
            kinds = [bid.kind for bid in counters]
            other = max(sorted(set(kinds)), key=kinds.count, default=None)
            if other is not None and kinds.count(other) >= self.fall_back * len(bids):
                least = min(bid.epsilon_micro for bid in counters if bid.kind == other)
                return Response(need=self.need, kind=other, epsilons_micro={bid.household: least for bid in bids})
        lack = self.need - promised_utility(offers(bids, kind), case.query.epsilon_micro, case.public, self.prior)
        if abs(lack) <= self.tolerance:
            return Response(need=self.need, feedback=0.0, done=True)
        return Response(need=self.need, feedback=lack)


@dataclass(frozen=True)
class Budget:
    """Raises one posted price for all homes until the utility is reached or the money would not do.

    money   for one query, currency; need: cosine utility at which it stops raising; prior: see promised_utility
    It starts at half of money/N and adds as much each round. Where a price brings in more homes than it can pay, it
    goes back to the one before: what is owed in the end never exceeds the money.
    """

    money: float = 10.0
    need: float = 0.9
    prior: float = 0.5

    def respond(self, bids: Sequence[Bid], case: OperatorCase) -> Response:
        step = Decimal(repr(self.money)) / max(1, case.public.N)
        step = step.quantize(Decimal("0.000001"), rounding="ROUND_FLOOR")
        if case.round == 0:
            return Response(need=self.need, payment=step / 2)
        price, found = case.history[-1].payment, offers(bids, case.query.kind)
        back_off = len(case.history) > 1 and price < case.history[-2].payment
        enough = promised_utility(found, case.query.epsilon_micro, case.public, self.prior) >= self.need
        if price * len(found) <= Decimal(repr(self.money)):
            if enough or back_off or case.round + 2 > case.rounds:  # one more round is kept to step back in
                return Response(need=self.need, payment=price, done=True)
            return Response(need=self.need, payment=price + step / 2)
        return Response(need=self.need, payment=case.history[-2].payment if len(case.history) > 1 else Decimal(0))


@dataclass(frozen=True)
class Procurement:
    """Buys epsilon in a truthful auction: bids first, then critical payments to the winners, then it is done.

    money   for one query, currency; rule: see policies_paid.procure. "fixed" buys what the query asks of each winner
    """

    money: float = 10.0
    rule: str = FIXED

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule = {self.rule!r} of Procurement is unknown: use {' or '.join(RULES)}")

    def allocate(self, bids: Sequence[Bid], asked_micro: int) -> Bought:
        """The auction among the homes that named a price."""
        costs = {bid.household: Fraction(bid.price_micro, MICRO) for bid in bids if bid.price_micro is not None}
        return procure(costs, Fraction(Decimal(repr(self.money))), rule=self.rule, epsilon=Fraction(asked_micro, MICRO))

    def respond(self, bids: Sequence[Bid], case: OperatorCase) -> Response:
        if case.round != 1:
            return Response(done=case.round > 1)
        bought = self.allocate(bids, case.query.epsilon_micro)
        sold = min(case.query.epsilon_micro, int(bought.epsilon * MICRO))
        return Response(payments={name: Decimal(int(pay * MICRO)).scaleb(-6) for name, pay in bought.payments.items()},
                        epsilons_micro=dict.fromkeys(bought.winners, max(1, sold)))
