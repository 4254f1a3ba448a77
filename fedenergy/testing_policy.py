"""check_policy: verify a negotiation policy of one's own in one call (fedenergy.testing re-exports it)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache

from fedenergy.box.admission import Authenticator, BoxKey
from fedenergy.box.agreement import Agreement, AgreementTerms
from fedenergy.box.policy import Case, Decision, PolicyError, Public, Published, decide, policy_name
from fedenergy.box.query import Query

CAP = Decimal("6.73")


def check_policy(policy: object) -> list[str]:
    """What is wrong with a policy, in plain language; an empty list if it does what a policy must.

    The policy answers a grid of cases: fresh and nearly spent budgets, tiny and huge asks, both query classes, one home
    and many, with and without earlier releases, feedback, payment and history. Found are: exceptions (reading what a
    case does not have among them), wrong answers, NaN, offers above the ask or the remaining budget, missing reasons,
    answers that change from one call to the next, and changes to the case itself.

    >>> class Half:
    ...     def offer(self, case):
    ...         return Offer(case.query.epsilon, reason="")
    >>> from fedenergy.box.policy import Offer
    >>> check_policy(Half())[0].startswith("asked 0.1 of 6.73 left")
    True
    """
    if isinstance(policy, type):
        return [f"{policy_name(policy)} is a class: check an instance, {policy_name(policy)}(...)"]
    if not callable(getattr(policy, "offer", None)):
        return [f"{policy_name(policy)} has no method offer(self, case): write it (fedenergy.Policy)"]
    found: dict[str, str] = {}  # problem -> first case that shows it

    def note(label: str, problem: str) -> None:
        found.setdefault(problem, label)

    first: list[tuple[str, Case, Decision]] = []
    for label, case in _cases():
        before = copy.deepcopy(case)
        decision = _ask(policy, case, label, note)
        if case != before:
            note(label, f"policy {policy_name(policy)} changed the case that it was given: it must only read it")
            case = before
        if decision is not None:
            first.append((label, case, decision))
    for label, case, decision in reversed(first):  # in another order, so that hidden state shows
        if (again := _ask(policy, copy.deepcopy(case), label, note)) is not None and again != decision:
            note(label, f"policy {policy_name(policy)} answered the same case in two ways: no chance, no clock, "
                 "no memory between calls (use case.history)")
    return [f"{label}: {problem}" for problem, label in found.items()]


def _ask(policy: object, case: Case, label: str, note: object) -> Decision | None:
    try:
        return decide(policy, case)
    except PolicyError as error:
        cause = error.__cause__
        if isinstance(cause, AttributeError):
            note(label, f"{error}. A case has: query, agreement, spent, remaining, most, public, history, payment")
        else:
            note(label, str(error))
    return None


def _cases() -> Iterator[tuple[str, Case]]:
    """The grid: every case once, in a fixed order, each with a label that says what was asked of what."""
    agreement = _agreement()
    publics = {
        "": Public(N=50, d=7, clip=50.0),
        ", one home, one coordinate": Public(N=1, d=1, clip=1e-3),
        ", a million homes, one noise": Public(N=1_000_000, d=48, clip=1e4, trust="sum", need=1.0),
        ", after a release": Public(N=50, d=7, clip=50.0, need=0.9, releases=(
            Published((30.0, 4.0, 0.0, -2.0, 5.0, 1.0, 0.0), 6.73), Published((0.0,) * 7, 0.1, homes=50, noises=50))),
        ", with feedback": Public(N=50, d=7, clip=50.0, need=0.9, feedback=(0.5, 0.2, -0.1)),
        ", with enough": Public(N=50, d=7, clip=50.0, need=0.1, feedback=(-0.9, 0.0))}
    history = (Decision("offer", 160_000, "first", "strict"), Decision("refuse", None, "later", "budget"))
    for asked in ("0.1", "0.000001", "1.053610", "6.73", "20", "1000000"):
        for remaining in (CAP, Decimal("0.3"), Decimal("0.000001"), Decimal(0)):
            for note, public in publics.items():
                for kind in ("appliances", "total"):
                    case = Case(query=Query(kind, epsilon=asked), agreement=agreement, spent=CAP - remaining,
                                remaining=remaining, public=public, history=history if remaining < CAP else ())
                    label = f"asked {asked} of {remaining} left, {kind}{note}"
                    yield label, case
                    if not note:
                        yield f"{label}, paid", replace(case, payment=Decimal("2.50"))


@lru_cache(maxsize=1)
def _agreement() -> Agreement:
    return Authenticator(seed=0).issue("home-1", BoxKey("home-1", seed=0), AgreementTerms(cap=CAP))
