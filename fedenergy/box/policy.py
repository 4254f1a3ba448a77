"""How a household negotiates: the Policy protocol, what a policy sees, what it may answer.

A policy decides from public state only: the query, its agreement, what was spent, what was published, what the operator
says. It never sees readings or a true S_i, so its offers tell nothing about them. Policies to use: policies.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Protocol, runtime_checkable

from fedenergy.box.agreement import Agreement
from fedenergy.box.query import Query, SealedQuery
from fedenergy.ids import decimal_text
from fedenergy.privacy.epsilon import micro, text
from fedenergy.privacy.trust import CURATOR, LOCAL, SUM

OFFER, COUNTER, REFUSE = "offer", "counter", "refuse"
SLACK = Decimal("0.001")  # of a micro-epsilon: float rounding of a computed offer
SNAP = 1e-9  # an offer above its limit by float rounding only (0.1 * 3 of 0.3) is the limit


class PolicyError(ValueError):
    """A policy gave an answer that breaks the rules, or failed. The box then refuses; nothing is charged."""


@dataclass(frozen=True)
class Published:
    """An answer that was released earlier, hence public.

    values   (d,) noised summary, units of S (kWh^2); epsilon: of each home in it
    homes    how many homes it sums: 1 for this home's own release
    noises   how many noises it holds: homes under local noise, 1 for one noise
    """

    values: tuple[float, ...]
    epsilon: float
    homes: int = 1
    noises: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(map(float, self.values)))
        if not all(map(math.isfinite, self.values)) or not (self.epsilon > 0 and self.homes >= 1 and self.noises >= 1):
            raise ValueError("a published answer has finite values, epsilon > 0, and at least one home and one noise")


@dataclass(frozen=True)
class Public:
    """What everybody knows during a negotiation.

    N, d       homes asked, coordinates of an answer; clip: l1 bound C of one home's S, kWh^2
    releases   earlier answers, oldest first
    need       the cosine utility (0 to 1) that the operator asks for; None: not stated
    feedback   the operator's answers to this negotiation's earlier offers, oldest first: need minus the utility that
               the offers promise. > 0: still short; < 0: more than needed; 0: enough
    trust      trust mode of the query: it says how many noises a zone answer holds
    """

    N: int
    d: int
    clip: float
    releases: tuple[Published, ...] = ()
    need: float | None = None
    feedback: tuple[float, ...] = ()
    trust: str = LOCAL

    @property
    def noises(self) -> int:
        """M, the number of noises in a zone answer: N (local noise) or 1."""
        return 1 if self.trust in (SUM, CURATOR) else self.N


@dataclass(frozen=True)
class Case:
    """What a policy decides on. Frozen, and free of household data.

    query      what is asked (a Query: query.epsilon, query.kind, query.purpose, ...; a SealedQuery becomes one)
    agreement  the home's own
    spent, remaining   epsilon charged so far, and left under the cap (Decimal, exact)
    history    this home's earlier decisions or charges, oldest first; each has epsilon_micro
    payment    what the operator pays for the answer, in the study's currency
    """

    query: Query
    agreement: Agreement
    spent: Decimal
    remaining: Decimal
    public: Public
    history: tuple[Any, ...] = ()
    payment: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        if isinstance(self.query, SealedQuery):
            object.__setattr__(self, "query", self.query.query)

    @property
    def most_micro(self) -> int:
        """The largest offer that the rules allow: what was asked or what remains, integer micro-epsilon."""
        return min(self.query.epsilon_micro, micro_floor(self.remaining))

    @property
    def most(self) -> Decimal:
        """most_micro as an epsilon. Compare with this one: the float .1 is above Decimal("0.1")."""
        return Decimal(self.most_micro).scaleb(-6)


@dataclass(frozen=True)
class Offer:
    """The home answers with this epsilon: above 0, at most what was asked and what remains."""

    epsilon: float | Decimal | int | str
    reason: str
    code: str = OFFER


@dataclass(frozen=True)
class Counter:
    """The home would answer another query (a lower class, another kind) with this epsilon."""

    query: Query
    epsilon: float | Decimal | int | str
    reason: str
    code: str = COUNTER


@dataclass(frozen=True)
class Refuse:
    """The home does not answer."""

    reason: str
    code: str = REFUSE


@runtime_checkable
class Policy(Protocol):
    """How a household negotiates. Write one with this one method; check it with fedenergy.testing.check_policy.

    A class may say `uniform = True`: homes with equal terms, equal spending and equal public state get equal answers, so
    that a shard of a large population is decided once.
    """

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        """Answer one case. From public state only; the same case gets the same answer."""
        ...


@dataclass(frozen=True)
class Decision:
    """A policy's answer, checked: what the box acts on and logs.

    action   offer, counter or refuse; epsilon_micro: integer, None for a refusal; query: the counter-query, else None
    reason   for people, inside the box; code: for machines
    """

    action: str
    epsilon_micro: int | None
    reason: str
    code: str
    query: Query | None = None


def decide(policy: Policy, case: Case) -> Decision:
    """Ask the policy and check its answer: its type, a finite epsilon above 0, at most asked and remaining, a reason.

    Epsilon becomes integer micro-epsilon, rounded up. Raises PolicyError naming the policy, the answer and the rule; an
    exception of the policy itself becomes one too. It must not leave the box: its text may say anything.
    """
    try:
        answer = policy.offer(case)
    except Exception as error:
        raise PolicyError(f"policy {policy_name(policy)}.offer failed with {type(error).__name__}: {error}") from error
    kind = type(answer)
    if kind not in (Offer, Counter, Refuse):
        raise PolicyError(f"policy {policy_name(policy)} answered {answer!r:.120}: "
                          "return an Offer, a Counter or a Refuse")
    for name in ("reason", "code"):
        value = getattr(answer, name)
        if not isinstance(value, str) or not value.strip():
            raise PolicyError(f"policy {policy_name(policy)} gave the {kind.__name__} the {name} {value!r:.120}: "
                              "every decision says why, in words")
    if kind is Refuse:
        return Decision(REFUSE, None, answer.reason, answer.code)
    counter = answer.query if kind is Counter else None
    if kind is Counter:
        if not isinstance(counter, Query):
            raise PolicyError(f"policy {policy_name(policy)} countered with {counter!r:.120}: a Counter names a Query, "
                              'for example dataclasses.replace(case.query, kind="total")')
        if counter.querier != case.query.querier:
            raise PolicyError(f"policy {policy_name(policy)} countered for the querier {counter.querier}: "
                              f"{case.query.querier} asks")
    granted = _granted(policy, answer.epsilon, case)
    return Decision(OFFER if counter is None else COUNTER, granted, answer.reason, answer.code, counter)


def policy_name(policy: Any) -> str:
    """The class name of a policy, for messages."""
    return (policy if isinstance(policy, type) else type(policy)).__qualname__


def micro_floor(epsilon: Decimal) -> int:
    """Whole micro-epsilon in a Decimal, rounded down: what remains must never be rounded up."""
    return max(0, int(epsilon.scaleb(6).to_integral_value(ROUND_FLOOR)))


def _granted(policy: Policy, epsilon: Any, case: Case) -> int:
    asked, remaining = case.query.epsilon_micro, micro_floor(case.remaining)
    limit = min(asked, remaining)
    try:
        micro(epsilon)  # refuses what is no budget at all
        exact = Decimal(epsilon if isinstance(epsilon, str) else decimal_text(epsilon))
        granted = int((exact.scaleb(6) + SLACK).to_integral_value(rounding="ROUND_FLOOR"))  # never more than was offered
    except (TypeError, ValueError, ArithmeticError) as error:
        raise PolicyError(f"policy {policy_name(policy)} offered epsilon = {epsilon!r:.80}: {error}") from error
    if granted < 1:
        raise PolicyError(f"policy {policy_name(policy)} offered epsilon = {epsilon!r:.80}, less than the smallest budget, "
                          "0.000001: Refuse instead")
    if granted > limit > 0 and float(epsilon) * 1e6 <= limit * (1 + SNAP):
        granted = limit
    if granted > asked:
        raise PolicyError(f"policy {policy_name(policy)} offered epsilon = {text(granted)}, more than the "
                          f"{text(asked)} that was asked: offer min(case.most, ...)")
    if granted > remaining:
        raise PolicyError(f"policy {policy_name(policy)} offered epsilon = {text(granted)}, more than the "
                          f"{text(remaining)} that remains: offer min(case.most, ...) or Refuse")
    return granted
