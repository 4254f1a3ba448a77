"""ClosedForm, Accuracy, CounterOffer, FeatureWeighted, AttributionWeighted: closed forms and ladders."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.box.admission import Authenticator, BoxKey
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.policies import (
    epsilon_zero,
    expected_utility,
    maximise,
    private_price,
)
from fedenergy.box.policies_public import CLASS_RATIO, Accuracy, ClosedForm, CounterOffer, window
from fedenergy.box.policies_weighted import AttributionWeighted, FeatureWeighted
from fedenergy.box.policy import Public, Published, decide
from fedenergy.box.query import Query
from fedenergy.metrics import expected_abs_sum_of_laplace
from fedenergy.privacy.weighted import AttributionLaplace, WeightedLaplace, ball_weights
from fedenergy.testing_policy import check_policy
from tests.box.test_policy import AGREEMENT, CAP, PUBLIC, case

PUBLIC_POLICIES = [
    ClosedForm(), ClosedForm(price=0.02, spread=1.0, utility="zone"), Accuracy(), Accuracy(error=5.0),
    Accuracy(target=0.9, of="own_report"), Accuracy(target=0.99, short="refuse"), CounterOffer(),
    CounterOffer(0.5, ("window",)), CounterOffer(0.3, ("resolution", "class")), FeatureWeighted(),
    FeatureWeighted(0.5, profile=(5, 1, 1, 1, 1, 1, 1)), FeatureWeighted(weights=(2, 1, 1, 1, 1, 1, 1)),
    AttributionWeighted()]


@pytest.mark.parametrize("policy", PUBLIC_POLICIES, ids=repr)
def test_check_policy_passes(policy):
    assert check_policy(policy) == []


@pytest.mark.parametrize("policy", PUBLIC_POLICIES, ids=repr)
def test_every_decision_has_words_and_a_code(policy):
    for asked, left in ((1.0, CAP), (6.73, "0.2"), (1.0, 0)):
        decision = decide(policy, case(asked, left))
        assert decision.reason
        assert decision.code in {
            "optimum", "least", "most", "accuracy", "short", "unreachable", "as_asked", "budget", "lower_class",
            "coarser", "window_half", "window_quarter", "weighted", "equal_weights", "leaks"}


@pytest.mark.parametrize("policy", PUBLIC_POLICIES, ids=repr)
def test_no_budget_is_no_answer(policy):
    assert decide(policy, case(1.0, 0)).action == "refuse"


# ClosedForm

def test_golden_optimum():
    """One home, own report: eps0 = 14.97; lambda = .01 < 1/eps0: eps* = sqrt((eps0^2/.01)^(2/3) - eps0^2) = 23.89."""
    eps0 = 100 * math.sqrt(14) / 25
    star = math.sqrt((eps0**2 / 0.01) ** (2 / 3) - eps0**2)
    assert star == pytest.approx(23.89, abs=0.01)
    assert decide(ClosedForm(price=0.01), case(100.0, 200)).epsilon_micro == pytest.approx(star * 1e6, abs=2)
    assert decide(ClosedForm(price=0.01), case(1.0)).code == "most"
    assert decide(ClosedForm(price=1.0), case(1.0)).epsilon_micro == 10_000  # lambda >= 1/eps0: the least
    assert decide(ClosedForm(price=0.01), case(0.032767)).epsilon_micro == 32_767  # 0.032767 * 1e6 is 32766.999...


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-3, 10), st.integers(1, 10**7), st.integers(10_000, 6_730_000),
       st.sampled_from(["own_report", "zone"]), st.integers(1, 10**5))
def test_it_is_the_optimum_of_the_interval(price, asked, left, utility, homes):
    """Oracle: golden-section search over [epsilon_min, what is allowed]."""
    this = case(Decimal(asked).scaleb(-6), Decimal(left).scaleb(-6), Public(N=homes, d=7, clip=50.0))
    decision = decide(ClosedForm(price=price, utility=utility), this)
    eps0 = epsilon_zero(this.public, utility)
    low, high = min(10_000, asked) / 1e6, min(asked, left) / 1e6

    def gain(e: float) -> float:
        return expected_utility(e, eps0) - price * e
    assert gain(decision.epsilon_micro / 1e6) >= gain(maximise(gain, low, high)) - 1e-6 * max(1.0, price)


def test_prices_differ_by_home_and_not_by_data():
    policy = ClosedForm(price=0.02, spread=1.0, utility="zone")
    homes = [Authenticator(seed=1).issue(f"h{i}", BoxKey(f"h{i}", seed=1), AgreementTerms()) for i in range(20)]
    found = {decide(policy, replace(case(6.73), agreement=home)).epsilon_micro for home in homes}
    assert len(found) > 10
    logs = np.log([private_price(f"h{i}", 0.02, 0.5, 0) for i in range(4_000)])
    assert logs.mean() == pytest.approx(math.log(0.02), abs=0.04)
    assert logs.std() == pytest.approx(0.5, abs=0.03)


# Accuracy

def test_golden_error():
    """N = 50, local noise: 7.959 b with b = 100/eps: an error of 200 needs eps = 3.979; one noise, own report: .5."""
    assert Accuracy(error=200.0).needed(PUBLIC) == pytest.approx(100 * expected_abs_sum_of_laplace(50) / 200)
    assert Accuracy(error=200.0).needed(replace(PUBLIC, trust="sum")) == pytest.approx(0.5)
    assert Accuracy(error=200.0, of="own_report").needed(PUBLIC) == pytest.approx(0.5)
    decision = decide(Accuracy(error=200.0), case(6.73))
    assert (decision.code, decision.epsilon_micro) == ("accuracy", math.ceil(100 * 7.95892373871787 / 200 * 1e6))


@given(st.floats(0.01, 0.99))
def test_the_target_is_just_reached(target):
    eps0 = epsilon_zero(PUBLIC, "zone")
    needed = Accuracy(target=target).needed(PUBLIC)
    assert expected_utility(needed, eps0) == pytest.approx(target, abs=1e-9)


def test_the_operators_need_is_the_goal():
    public = replace(PUBLIC, need=0.5)
    assert Accuracy().needed(public) == pytest.approx(Accuracy(target=0.5).needed(PUBLIC))
    assert decide(Accuracy(), case(1.0)).code == "as_asked"
    assert decide(Accuracy(), case(0.1, public=replace(PUBLIC, need=0.9))).code == "short"
    assert decide(Accuracy(short="refuse"), case(0.1, public=replace(PUBLIC, need=0.9))).code == "unreachable"
    assert decide(Accuracy(), case(6.73, public=replace(PUBLIC, need=1.0))).code == "short"


# CounterOffer

def test_the_ladder():
    policy = CounterOffer(0.7)
    assert decide(policy, case(0.7)).code == "as_asked"
    first = decide(policy, case(1.0))  # 1/1.65 = .606 <= .7
    assert (first.code, first.query.kind, first.epsilon_micro) == ("lower_class", "top", math.ceil(1e6 / CLASS_RATIO))
    coarse = decide(replace(policy, order=("resolution",)), case(1.0))
    assert (coarse.code, coarse.query.kind) == ("coarser", "peak_hour")
    short = decide(replace(policy, order=("window",)), case(1.0))
    assert (short.code, short.query.kind, short.epsilon_micro) == ("window_half", "appliances", 500_000)
    assert decide(CounterOffer(0.3), case(1.0)).code == "window_quarter"  # .606 and .5 are above .3
    assert decide(CounterOffer(0.2), case(1.0)).action == "refuse"


def test_counters_stay_within_the_agreement():
    specific = replace(AGREEMENT, classes=("specific",))
    assert decide(CounterOffer(0.7), replace(case(1.0), agreement=specific)).code == "window_half"
    coarse = replace(AGREEMENT, granularity="total")
    assert decide(CounterOffer(0.7), replace(case(1.0), agreement=coarse)).query.kind == "total"
    general = replace(case(1.0), query=Query("peak_hour", epsilon=1.0))
    assert decide(CounterOffer(0.7), general).query.kind == "total"
    windows = replace(case(1.0), query=Query("windows", epsilon=1.0))
    assert decide(CounterOffer(0.7), windows).action == "refuse"


def test_windows_are_cut_at_the_start():
    assert window("window_quarter", (100, 500)) == (400, 500)
    assert window("window_half", (7, 8)) == (7, 8)
    assert window("as_asked", (3, 9)) == (3, 9)


# weights

def test_weights_come_from_what_is_public():
    profile = (9.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert FeatureWeighted(profile=profile).weights_for(PUBLIC) == ball_weights(profile)
    assert FeatureWeighted(profile=profile).weights_for(replace(PUBLIC, d=3)) == (1.0,) * 3
    released = Published(tuple(-v for v in profile), 1.0, homes=50, noises=50)
    assert FeatureWeighted().weights_for(replace(PUBLIC, releases=(released,))) == ball_weights(profile)
    assert FeatureWeighted(weights=(2, 1, 1, 1, 1, 1, 0.5)).weights_for(PUBLIC) == (2, 1, 1, 1, 1, 1, 0.5)
    mechanism = FeatureWeighted(profile=profile).mechanism(PUBLIC)
    assert mechanism == WeightedLaplace(50.0, ball_weights(profile))
    assert decide(FeatureWeighted(profile=profile), case()).code == "weighted"
    assert decide(FeatureWeighted(), case()).code == "equal_weights"


def test_the_source_form_is_labelled():
    policy = AttributionWeighted(preference=(1.0,) * 7, need=(2.0,) * 7)
    assert policy.leaks is True
    assert isinstance(policy.mechanism(PUBLIC), AttributionLaplace)
    assert decide(policy, case()).code == "leaks"
    assert not any(getattr(other, "leaks", False) for other in PUBLIC_POLICIES[:-1])


@pytest.mark.parametrize("make", [
    lambda: ClosedForm(price=0), lambda: ClosedForm(spread=-1), lambda: ClosedForm(utility="mine"),
    lambda: Accuracy(error=0), lambda: Accuracy(target=1.0), lambda: Accuracy(short="beg"), lambda: Accuracy(of="all"),
    lambda: CounterOffer(order=()), lambda: CounterOffer(order=("price",)), lambda: CounterOffer(epsilon=-1),
    lambda: FeatureWeighted(weights=(0.0,)), lambda: FeatureWeighted(profile=(math.nan,)),
    lambda: FeatureWeighted(power=2), lambda: AttributionWeighted(floor=0), lambda: AttributionWeighted(need=(0,))])
def test_wrong_arguments_are_refused(make):
    with pytest.raises(ValueError, match=r"\[policy\]"):
        make()
