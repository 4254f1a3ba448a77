"""Incentive, RiskAware, Auction: who sells for what, what risk is made of, and that nobody gains by misreporting."""

from __future__ import annotations

import copy
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.box.policies_paid import FIXED, GHOSH_ROTH, Auction, Incentive, RiskAware, procure
from fedenergy.box.policy import decide
from fedenergy.box.query import Query
from fedenergy.testing_policy import check_policy
from tests.box.test_policy import AGREEMENT, CAP, case

PAID = [Incentive(), Incentive(partial=False, spread=0.0), RiskAware(), RiskAware(trust=0.1, weights=(1, 1, 1, 1)),
        RiskAware(trust=1.0), RiskAware(trust_in={"zone-operator": 0.9}), Auction(), Auction(shade=2.0)]


@pytest.mark.parametrize("policy", PAID, ids=repr)
def test_check_policy_passes(policy):
    assert check_policy(policy) == []


@pytest.mark.parametrize("policy", PAID, ids=repr)
def test_policies_can_travel_and_be_keys(policy):
    assert copy.deepcopy(policy) == policy
    assert hash(policy) == hash(copy.deepcopy(policy))


# Incentive

def test_a_reservation_price():
    """lambda = .5: 1 epsilon costs .50; .20 buys .4; .004 buys .008, below the least."""
    policy = Incentive(price=0.5, spread=0.0)

    def paid(amount: str, **more):
        return decide(replace(policy, **more), replace(case(), payment=Decimal(amount)))
    assert (paid("0.5").code, paid("0.5").epsilon_micro) == ("paid", 1_000_000)
    assert (paid("0.2").code, paid("0.2").epsilon_micro) == ("part_paid", 400_000)
    assert paid("0.004").code == "payment"
    assert paid("0").action == "refuse"
    assert paid("0.2", partial=False).code == "payment"
    assert decide(policy, replace(case(1.0, "0.3"), payment=Decimal("0.2"))).epsilon_micro == 300_000
    assert decide(policy, replace(case(1.0, "0.3"), payment=Decimal(5))).code == "budget"


@given(st.integers(1, 10**7), st.integers(0, 10**7), st.integers(0, 10**4))
def test_nobody_sells_below_its_price(asked, payment_micro, home):
    policy = Incentive(spread=1.0)
    this = replace(case(Decimal(asked).scaleb(-6)), payment=Decimal(payment_micro).scaleb(-6))
    decision = decide(policy, this)
    cost = policy.reservation(AGREEMENT.household)
    if decision.epsilon_micro:
        assert cost * decision.epsilon_micro <= payment_micro + cost


# RiskAware

def test_golden_risk():
    """(.35 x .4 + .3 x .8 + .15 x .2 + .2 x 0) / 1 = .41: between .3 and .8, (.8 - .41)/.5 = 78 % is granted."""
    policy = RiskAware()
    assert policy.risk(case()) == pytest.approx(0.41)
    decision = decide(policy, case())
    assert (decision.code, decision.epsilon_micro) == ("trimmed", 780_000)
    for word in ("risk 0.41", "distrust 0.40", "sensitivity 0.80", "purpose 0.20", "history 0.00"):
        assert word in decision.reason


def test_every_factor_counts_in_its_direction():
    policy, base = RiskAware(), case(1.0, "3.3")
    risk = policy.risk(base)
    assert replace(policy, trust=0.9).risk(base) < risk < replace(policy, trust=0.1).risk(base)
    assert replace(policy, trust_in={"zone-operator": 1.0}).risk(base) < risk
    assert policy.risk(replace(base, query=Query("total"))) < risk
    assert policy.risk(replace(base, query=Query(purpose="diagnosis"))) > risk
    assert policy.risk(case(1.0, CAP)) < risk < policy.risk(case(1.0, "0.5"))


def test_decisions_follow_the_risk():
    assert decide(RiskAware(trust=1.0), case()).code == "low_risk"
    assert decide(RiskAware(refuse=0.4), case()).code == "risk"
    paid = decide(RiskAware(), replace(case(), payment=Decimal("0.42")))  # rate 1 x risk .41 x epsilon 1
    assert (paid.code, paid.epsilon_micro) == ("risk_paid", 1_000_000)
    counter = decide(RiskAware(trust=0.1), case(1.0, "3.3"))
    assert (counter.code, counter.query.kind) == ("lower_class", "top")
    assert counter.epsilon_micro == 606_060
    shut = replace(case(1.0, "3.3"), agreement=replace(AGREEMENT, classes=("specific",)))
    assert decide(RiskAware(trust=0.1), shut).code == "trimmed"


def test_more_trust_never_grants_less():
    granted = [decide(RiskAware(trust=t / 20, weights=(1, 0.2, 0.2, 0)), case()).epsilon_micro or 0
               for t in range(21)]
    assert granted == sorted(granted)


# the auction

def test_golden_auction():
    """Budget 6, epsilon 1. k = 3: 9 <= 2? no. k = 2: 2 <= 3: yes; each is paid min(3, 9) = 3."""
    bought = procure({"a": 1, "b": 2, "c": 9}, 6)
    assert bought.winners == ("a", "b")
    assert bought.payments == {"a": 3, "b": 3}
    # the next claim is the critical one where the budget is not: k = 2, min(10/2, 4) = 4
    assert procure({"a": 1, "b": 2, "c": 4}, 10).payments == {"a": 4, "b": 4}
    assert procure({"a": 5}, 4).winners == ()
    assert procure({}, 4).total == 0


def test_golden_fair_query():
    """Ghosh and Roth: N = 4, costs 1, 2, 3, 4, budget 4. k = 3: 3/1 <= 4/3? no. k = 2: 2/2 <= 2: yes; epsilon 1/2,
    paid min(2, 3/2) = 3/2 each."""
    bought = procure({"a": 1, "b": 2, "c": 3, "d": 4}, 4, rule=GHOSH_ROTH)
    assert bought.epsilon == Fraction(1, 2)
    assert bought.payments == {"a": Fraction(3, 2), "b": Fraction(3, 2)}


claims = st.lists(st.integers(0, 30), min_size=1, max_size=9)


def profit(costs: list[int], home: int, claim: int, budget: int, rule: str, epsilon) -> Fraction:
    """Payment minus true cost of the epsilon that was sold."""
    said = {f"h{i}": claim if i == home else cost for i, cost in enumerate(costs)}
    bought = procure(said, budget, rule=rule, epsilon=epsilon)
    name = f"h{home}"
    return bought.payments[name] - costs[home] * bought.epsilon if name in bought.winners else Fraction(0)


@settings(deadline=None, max_examples=300)
@given(claims, st.integers(0, 60), st.sampled_from([FIXED, GHOSH_ROTH]), st.sampled_from([Fraction(1, 3), 1, 2]),
       st.data())
def test_no_home_gains_by_misreporting(costs, budget, rule, epsilon, data):
    home = data.draw(st.integers(0, len(costs) - 1))
    honest = profit(costs, home, costs[home], budget, rule, epsilon)
    assert honest >= 0  # taking part never costs
    for lie in range(0, 33):
        assert profit(costs, home, lie, budget, rule, epsilon) <= honest


@settings(deadline=None, max_examples=200)
@given(claims, st.integers(0, 60), st.sampled_from([FIXED, GHOSH_ROTH]))
def test_the_budget_holds_and_the_cheapest_win(costs, budget, rule):
    said = {f"h{i}": cost for i, cost in enumerate(costs)}
    bought = procure(said, budget, rule=rule)
    assert bought.total <= budget
    outside = [said[name] for name in said if name not in bought.winners]
    assert not bought.winners or not outside or max(said[name] for name in bought.winners) <= min(outside)
    assert all(bought.payments[name] >= said[name] * bought.epsilon for name in bought.winners)


def test_an_untruthful_auction_would_be_caught():
    """The property can fail: paying each winner its own claim rewards overstating it."""
    costs = [1, 2, 9]

    def first_price(claim: int) -> Fraction:
        bought = procure({"h0": claim, "h1": 2, "h2": 9}, 6)
        return Fraction(claim - costs[0]) if "h0" in bought.winners else Fraction(0)
    assert first_price(2) > first_price(1)


def test_a_home_bids_then_accepts():
    policy = Auction(price=0.5, spread=0.0)
    assert policy.bid(case()) == Decimal("0.5")
    assert replace(policy, shade=2.0).bid(case()) == Decimal(1)
    assert policy.bid(case(1.0, "0.5")) is None  # it could not deliver
    assert decide(policy, case()).code == "outbid"
    assert decide(policy, replace(case(), payment=Decimal("0.5"))).code == "won"
    assert decide(policy, replace(case(), payment=Decimal("0.49"))).code == "outbid"


@pytest.mark.parametrize("make", [
    lambda: Incentive(price=0), lambda: Incentive(spread=11), lambda: RiskAware(trust=2),
    lambda: RiskAware(weights=(1,)),
    lambda: RiskAware(weights=(0, 0, 0, 0)), lambda: RiskAware(accept=0.9), lambda: RiskAware(trust_in={"a": 3}),
    lambda: Auction(shade=0), lambda: Auction(price=float("nan"))])
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match=r"\[policy\]"):
        make()


def test_wrong_auctions_are_refused():
    for bad in ({"budget": -1}, {"epsilon": 0}, {"rule": "english"}):
        with pytest.raises(ValueError, match=r"auction|rule"):
            procure({"a": 1}, **({"budget": 1} | bad))
