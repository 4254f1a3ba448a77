"""Policies that weigh money: Incentive, RiskAware, Auction; and the auction itself, pure and exact.

Amounts are in the study's currency. Prices of single homes come from streams of their own names, never from data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from types import MappingProxyType

from fedenergy.box.policies import (
    affordable,
    budget_argument,
    number_argument,
    over_budget,
    private_price,
)
from fedenergy.box.policies_public import CLASS_RATIO
from fedenergy.box.policy import Case, Counter, Offer, Refuse
from fedenergy.box.query import GENERAL, SPECIFIC
from fedenergy.errors import FrozenMap
from fedenergy.privacy.epsilon import MICRO

FIXED, GHOSH_ROTH = RULES = ("fixed", "ghosh_roth")
PURPOSE_RISK: Mapping[str, float] = MappingProxyType({"planning": 0.2, "monitoring": 0.5, "diagnosis": 0.7})
KIND_RISK: Mapping[str, float] = MappingProxyType({
    "total": 0.1, "trend": 0.2, "peak_hour": 0.3, "top": 0.4, "incentive": 0.6, "elasticity": 0.7, "appliances": 0.8})


@dataclass(frozen=True)
class Incentive:
    """Grants epsilon for money: accepts what was asked where the payment covers lambda_i per unit of epsilon.

    price, spread, seed   lambda_i: policies.private_price, currency per unit of epsilon
    partial               where the payment is too small: True sells as much epsilon as it buys, False refuses
    epsilon_min           the least that it sells; below that it refuses (code "payment")
    """

    price: float = 0.5
    spread: float = 0.5
    partial: bool = True
    epsilon_min: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon_min", self.epsilon_min)
        number_argument(self, "price", above=0)
        number_argument(self, "spread", least=0, most=10)

    def reservation(self, household: str) -> Decimal:
        """lambda_i, currency per unit of epsilon: the least that it sells for."""
        return Decimal(repr(private_price(household, self.price, self.spread, self.seed)))

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        return sell(case, self.reservation(case.agreement.household), self.partial, self.epsilon_min)


def sell(case: Case, reservation: Decimal, partial: bool, epsilon_min: float) -> Offer | Refuse:
    """What a home with that reservation price per unit of epsilon answers to case.payment."""
    asked = Decimal(case.query.epsilon_micro).scaleb(-6)
    if case.payment >= reservation * asked:
        return affordable(case, asked, f"the payment of {case.payment} covers {reservation:.4g} per unit", "paid")
    bought = int(case.payment / reservation * MICRO)  # rounded down: never below its price
    if not partial or bought < min(epsilon_min * MICRO, case.query.epsilon_micro):
        return Refuse(f"the payment of {case.payment} does not cover {reservation:.4g} per unit of epsilon", "payment")
    if case.most_micro == 0:
        return over_budget(case, bought / MICRO)
    return Offer(Decimal(min(bought, case.most_micro)).scaleb(-6),
                 f"what {case.payment} buys at {reservation:.4g} per unit", "part_paid")


@dataclass(frozen=True)
class RiskAware:
    """Weighs five factors into a risk in [0, 1], then grants, trims, counters or refuses, and says why.

    trust        in the querier, 0 to 1; trust_in: querier -> trust, for single queriers
    weights      of distrust, sensitivity of what is asked, purpose, history (share of the cap that was spent); they
                 are divided by their sum
    accept, refuse   grants all up to the first risk, nothing from the second on; linear between
    rate         price per unit of risk and epsilon: a payment of rate * risk * epsilon buys the ask in between

    After X-NegoBox (arXiv 2604.24326): trust, feature sensitivity, declared purpose, history, risk-aware pricing,
    counter-offers, justifications. Its abstract names these factors; weights and formulas here are ours.
    """

    trust: float = 0.6
    trust_in: Mapping[str, float] = FrozenMap()
    weights: tuple[float, float, float, float] = (0.35, 0.3, 0.15, 0.2)
    accept: float = 0.3
    refuse: float = 0.8
    rate: float = 1.0
    epsilon_min: float = 0.01

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon_min", self.epsilon_min)
        number_argument(self, "trust", "accept", "refuse", least=0, most=1)
        number_argument(self, "rate", above=0)
        object.__setattr__(self, "weights", tuple(self.weights))
        object.__setattr__(self, "trust_in", FrozenMap(self.trust_in))
        if len(self.weights) != 4 or not all(0 <= w < math.inf for w in self.weights) or not any(self.weights):
            raise ValueError(f"[policy] weights = {self.weights!r} of RiskAware: give four numbers >= 0 (distrust, "
                             "sensitivity, purpose, history)")
        if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in self.trust_in.values()):
            raise ValueError(f"[policy] trust_in = {dict(self.trust_in)!r:.80} of RiskAware: trust lies in 0 to 1")
        if not self.accept < self.refuse:
            raise ValueError(f"[policy] accept = {self.accept:g} of RiskAware is not below refuse = {self.refuse:g}")

    def factors(self, case: Case, kind: str | None = None) -> dict[str, float]:
        """The four risks, each 0 to 1, of the case's query (or of another kind in its place)."""
        total = case.spent + case.remaining
        return {"distrust": 1 - self.trust_in.get(case.query.querier, self.trust),
                "sensitivity": KIND_RISK.get(kind or case.query.kind, 1.0),
                "purpose": PURPOSE_RISK.get(case.query.purpose, 1.0),
                "history": float(case.spent / total) if total > 0 else 1.0}

    def risk(self, case: Case, kind: str | None = None) -> float:
        """Weighted mean of the factors."""
        parts = self.factors(case, kind).values()
        return math.fsum(w * part for w, part in zip(self.weights, parts, strict=True)) / math.fsum(self.weights)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        risk, asked = self.risk(case), case.query.epsilon
        why = f"risk {risk:.2f}: " + ", ".join(f"{name} {value:.2f}" for name, value in self.factors(case).items())
        if risk >= self.refuse:
            return Refuse(f"{why}; refused from {self.refuse:g} on", "risk")
        if risk <= self.accept:
            return affordable(case, asked, f"{why}; accepted up to {self.accept:g}", "low_risk")
        if case.payment >= Decimal(repr(self.rate * risk * asked)):
            return affordable(case, asked, f"{why}; the payment covers it", "risk_paid")
        share = (self.refuse - risk) / (self.refuse - self.accept)
        trimmed = min(case.most_micro, int(case.query.epsilon_micro * share))
        cost = int(case.query.epsilon_micro / CLASS_RATIO)
        if self._lower(case) and share < 1 / CLASS_RATIO and 0 < cost <= case.most_micro:
            return Counter(replace(case.query, kind="top"), cost / MICRO,
                           f"{why}; the top category alone has risk {self.risk(case, 'top'):.2f}", "lower_class")
        if trimmed < min(self.epsilon_min * MICRO, case.query.epsilon_micro):
            return over_budget(case, asked)
        return Offer(trimmed / MICRO, f"{why}; granted {share:.0%}", "trimmed")

    def _lower(self, case: Case) -> bool:
        return (case.query.query_class == SPECIFIC and GENERAL in case.agreement.classes
                and case.agreement.granularity in ("appliance", "feature_lag")
                and self.risk(case, "top") < self.refuse)


@dataclass(frozen=True)
class Auction:
    """Sells epsilon in a sealed-bid auction: first it names its price, then it accepts what it won.

    price, spread, seed   its true cost lambda_i per unit of epsilon: policies.private_price
    shade                 what it claims is shade times the truth; 1 is honest, and the best that it can do
    The operator (negotiation.Procurement) allocates and pays. A home that won is paid at least its claim; one that did
    not has no payment and refuses (code "outbid"). Ghosh and Roth's caveat holds: if the costs themselves told
    something about the data, the bids would leak it. Here they come from the home's name, so they do not.
    """

    price: float = 0.5
    spread: float = 0.5
    shade: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        number_argument(self, "price", "shade", above=0)
        number_argument(self, "spread", least=0, most=10)

    def cost(self, household: str) -> Decimal:
        """lambda_i, currency per unit of epsilon, in whole millionths, at least one."""
        value = private_price(household, self.price, self.spread, self.seed)
        return Decimal(max(1, round(value * MICRO))).scaleb(-6)

    def bid(self, case: Case) -> Decimal | None:
        """What it claims as its price per unit of epsilon; None where its budget does not allow the query."""
        if case.most_micro < case.query.epsilon_micro:
            return None
        claim = float(self.cost(case.agreement.household)) * self.shade
        return Decimal(max(1, round(claim * MICRO))).scaleb(-6)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        asked = Decimal(case.query.epsilon_micro).scaleb(-6)
        bid = self.bid(case)
        if bid is None:
            return over_budget(case, case.query.epsilon)
        # payments are whole millionths, so its claim is rounded down to one
        if case.payment > 0 and case.payment >= (bid * asked).quantize(Decimal("0.000001"), rounding=ROUND_FLOOR):
            return affordable(case, asked, f"won the auction: paid {case.payment}", "won")
        return Refuse("no payment that covers its bid: it was outbid, or the auction is still open", "outbid")


@dataclass(frozen=True)
class Bought:
    """The outcome of an auction: who sells, how much epsilon each, and what each is paid (exact; others nothing)."""

    winners: tuple[str, ...]
    epsilon: Fraction
    payments: Mapping[str, Fraction]

    @property
    def total(self) -> Fraction:
        return sum(self.payments.values(), Fraction(0))


def procure(costs: Mapping[str, int | Fraction | Decimal], budget: int | Fraction | Decimal, *, rule: str = FIXED,
            epsilon: int | Fraction | Decimal = 1) -> Bought:
    """Buy epsilon from the cheapest homes so that nobody gains by misreporting and the budget holds.

    costs    claimed cost of one unit of epsilon, by home, >= 0; ties go by name; budget: the most that is paid in all
    rule     "fixed": every winner sells `epsilon` (proportional share: Singer 2010);
             "ghosh_roth": each sells 1/(N - k), k winners (at most `epsilon`): FairQuery of Ghosh and Roth 2011, whose
             noise then is of the size of leaving N - k homes out; at least one home stays out
    With costs v_1 <= ... <= v_N and e(k) epsilon for k winners: the largest k with v_k e(k) <= budget/k wins, each is
    paid min(budget/k, v_{k+1} e(k)). A payment depends on the others' claims alone, as long as the home wins.

    >>> procure({"a": 1, "b": 2, "c": 9}, 6).payments == {"a": 3, "b": 3}
    True
    """
    if rule not in RULES:
        raise ValueError(f"rule = {rule!r} is unknown: use {' or '.join(RULES)}")
    prices = {name: Fraction(cost) for name, cost in costs.items()}
    purse, fixed = Fraction(budget), Fraction(epsilon)
    if purse < 0 or fixed <= 0 or any(price < 0 for price in prices.values()):
        raise ValueError("an auction has a budget and costs >= 0 and an epsilon > 0")
    order = sorted(prices, key=lambda name: (prices[name], name))

    def sold(k: int) -> Fraction:
        return fixed if rule == FIXED else min(fixed, Fraction(1, len(order) - k))

    for k in range(len(order) if rule == FIXED else len(order) - 1, 0, -1):
        if prices[order[k - 1]] * sold(k) <= purse / k:
            pay = purse / k if k == len(order) else min(purse / k, prices[order[k]] * sold(k))
            return Bought(tuple(order[:k]), sold(k), MappingProxyType(dict.fromkeys(order[:k], pay)))
    return Bought((), Fraction(0), MappingProxyType({}))
