"""check_policy finds what a policy gets wrong, and says it plainly."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from decimal import Decimal

import pytest

from fedenergy.box.policies import BoundedSearch, Fixed, Strict
from fedenergy.box.policy import Counter, Offer, Refuse
from fedenergy.testing_policy import check_policy


class Base:
    """Answers like Fixed; each faulty policy below changes one thing."""

    def offer(self, case):
        return Offer(case.most, "as much as is allowed") if case.most > 0 else Refuse("nothing remains")


@pytest.mark.parametrize("policy", [
    Fixed(), Fixed(0.5), Strict(), BoundedSearch(), BoundedSearch(utility="zone", ell=0.0), BoundedSearch(price=1e-9),
    Base()], ids=lambda policy: repr(policy).split(" object at ")[0].strip("<>"))
def test_sound_policies_pass(policy):
    assert check_policy(policy) == []


class CountersWhenPoor(Base):
    def offer(self, case):
        if case.most < Decimal("0.01"):
            return Refuse("too little")
        if case.query.query_class == "specific" and case.most < 1:
            return Counter(replace(case.query, kind="total"), case.most / 2, "a total costs less")
        return super().offer(case)


class UsesPaymentAndHistory(Base):
    def offer(self, case):
        if case.payment == 0 and len(case.history) > 1:
            return Refuse("asked often and unpaid")
        return super().offer(case)


def test_policies_of_ones_own_pass():
    assert check_policy(CountersWhenPoor()) == []
    assert check_policy(UsesPaymentAndHistory()) == []


class Raises(Base):
    def offer(self, case):
        return Offer(1 / case.remaining, "r")


class ReadsReadings(Base):
    def offer(self, case):
        return Offer(case.readings.mean(), "r")


class MixesTypes(Base):
    def offer(self, case):
        return Offer(case.remaining * 0.5, "Decimal times float")


class ReturnsNumber(Base):
    def offer(self, case):
        return case.query.epsilon


class ReturnsNothing(Base):
    def offer(self, case):
        pass


class NaN(Base):
    def offer(self, case):
        return Offer(float("nan"), "r")


class OverAsk(Base):
    def offer(self, case):
        return Offer(case.query.epsilon * 1.01, "r")


class OverBudget(Base):
    def offer(self, case):
        return Offer(case.query.epsilon, "r")


class NoReason(Base):
    def offer(self, case):
        return replace(super().offer(case), reason="")


class Chance(Base):
    def __init__(self):
        self.random = random.Random(0)

    def offer(self, case):
        return Offer(float(case.most) * self.random.uniform(0.1, 0.9), "r") if case.most > 1e-3 else Refuse("r")


class Counts(Base):
    def __init__(self):
        self.calls = itertools.count()

    def offer(self, case):
        return Refuse("tired") if next(self.calls) > 400 else super().offer(case)


class Mutates(Base):
    def offer(self, case):
        answer = super().offer(case)
        object.__setattr__(case, "remaining", Decimal(1000))
        return answer


class FailsOnFeedback(Base):
    def offer(self, case):
        if case.public.feedback:
            raise RuntimeError("no feedback, please")
        return super().offer(case)


class FailsPaid(Base):
    def offer(self, case):
        if case.payment:
            raise RuntimeError("no money, please")
        return super().offer(case)


@pytest.mark.parametrize(("policy", "words"), [
    (Raises(), "DivisionByZero"), (ReadsReadings(), "A case has: query"), (MixesTypes(), "TypeError"),
    (ReturnsNumber(), "return an Offer"), (ReturnsNothing(), "return an Offer"), (NaN(), "nan"),
    (OverAsk(), "that was asked"), (OverBudget(), "that remains"), (NoReason(), "says why"),
    (Chance(), "in two ways"), (Counts(), "in two ways"), (Mutates(), "changed the case"),
    (FailsOnFeedback(), "no feedback, please"), (FailsPaid(), "no money, please")],
    ids=lambda value: type(value).__name__ if isinstance(value, Base) else "")
def test_faults_are_found_and_named(policy, words):
    problems = check_policy(policy)
    assert any(words in problem for problem in problems)
    assert all(type(policy).__name__ in problem and problem.startswith("asked ") for problem in problems)
    assert len(problems) < 40


def test_what_is_no_policy():
    assert "is a class" in check_policy(Fixed)[0]
    assert "no method offer" in check_policy(object())[0]
    assert "no method offer" in check_policy(None)[0]
