"""Policies that decide from public state, without money: ClosedForm, Accuracy, CounterOffer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedenergy.box.policies import (
    OWN_REPORT,
    UTILITIES,
    ZONE,
    affordable,
    best_epsilon,
    budget_argument,
    choice_argument,
    epsilon_zero,
    expected_utility,
    number_argument,
    over_budget,
    private_price,
)
from fedenergy.box.policy import Case, Counter, Offer, Public, Refuse
from fedenergy.box.query import GENERAL, GRANULARITIES, SPECIFIC, SPECIFIC_TO_GENERAL
from fedenergy.metrics import expected_abs_sum_of_laplace
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.mechanisms import Laplace

CLASS_RATIO = SPECIFIC_TO_GENERAL
COARSER = {"appliances": ("peak_hour", "total"), "elasticity": ("peak_hour", "total"), "incentive": ("total",),
           "top": ("peak_hour", "total"), "peak_hour": ("total",), "trend": ("total",)}  # kinds that tell less
GRANULARITY = {"top": "appliance", "peak_hour": "daypart", "total": "total", "trend": "total"}


@dataclass(frozen=True)
class ClosedForm:
    """Offers the optimum of U(eps) - lambda_i eps in closed form, within what was asked and what remains.

    eps* = sqrt((eps0^2/lambda)^(2/3) - eps0^2) if lambda < 1/eps0, else epsilon_min. U is concave, so
    the nearest end of the interval is the optimum where eps* lies outside. It does not negotiate: feedback is not used.

    price, spread, seed   lambda_i: policies.private_price; utility, prior, epsilon_min: as in BoundedSearch
    """

    price: float = 0.1
    spread: float = 0.0
    epsilon_min: float = 0.01
    utility: str = OWN_REPORT
    prior: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon_min", self.epsilon_min)
        number_argument(self, "price", "prior", above=0)
        number_argument(self, "spread", least=0, most=10)
        choice_argument(self, "utility", UTILITIES)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        most, least = case.most_micro, min(micro(self.epsilon_min), case.query.epsilon_micro)
        if most < least:
            return over_budget(case, self.epsilon_min)
        eps0 = epsilon_zero(case.public, self.utility, self.prior)
        star = best_epsilon(eps0, private_price(case.agreement.household, self.price, self.spread, self.seed),
                            self.epsilon_min)
        granted = most if star >= most / MICRO else max(least, int(star * MICRO))
        code = "optimum" if granted not in (least, most) else "least" if granted == least else "most"
        return Offer(granted / MICRO, f"eps* = {star:.4g} balances utility {expected_utility(star, eps0):.2f} against "
                     f"its price; {granted / MICRO:g} is within what was asked and what remains", code)


@dataclass(frozen=True)
class Accuracy:
    """Grants the least epsilon that reaches a stated accuracy: asked is an error, the home computes the epsilon.

    error    expected absolute error per coordinate, units of S (kWh^2); None: the cosine utility below is the goal
    target   cosine utility to reach, in (0, 1); None: the need that the operator states (without one: as asked)
    of       "zone": the zone's answer over all N homes; "own_report": this home's
    short    what it does where the goal costs more than is asked or remains: "offer" the most, or "refuse"

    E|sum of M Laplace(b)| = b 2M C(2M, M)/4^M and b = 2C/eps give eps; U = (1 + (eps0/eps)^2)^(-1/2) gives
    eps = eps0 U/sqrt(1 - U^2).
    """

    error: float | None = None
    target: float | None = None
    of: str = ZONE
    short: str = "offer"
    prior: float = 0.5

    def __post_init__(self) -> None:
        if self.error is not None:
            number_argument(self, "error", above=0)
        if self.target is not None:
            number_argument(self, "target", above=0, most=0.999999)
        number_argument(self, "prior", above=0)
        choice_argument(self, "of", UTILITIES)
        choice_argument(self, "short", ("offer", "refuse"))

    def needed(self, public: Public) -> float | None:
        """The epsilon that reaches the goal; None where nothing states one."""
        if self.error is not None:
            noises = public.noises if self.of == ZONE else 1
            return Laplace(public.clip).sensitivity() * expected_abs_sum_of_laplace(noises) / self.error
        goal = self.target if self.target is not None else public.need
        if goal is None:
            return None
        goal = min(max(goal, 1e-6), 1 - 1e-9)
        return epsilon_zero(public, self.of, self.prior) * goal / math.sqrt(1 - goal * goal)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        needed = self.needed(case.public)
        if needed is None:
            return affordable(case, case.query.epsilon, "no accuracy was stated: as asked", "as_asked")
        wanted = max(1, math.ceil(min(needed, 2e6) * MICRO))
        if wanted <= case.most_micro:
            return Offer(wanted / MICRO, f"{wanted / MICRO:g} is the least for the stated accuracy", "accuracy")
        if self.short == "refuse" or case.most_micro == 0:
            return Refuse(f"the stated accuracy costs {needed:.6g}, more than the {case.most} asked and remaining",
                          "unreachable" if case.most_micro else "budget")
        return Offer(case.most, f"the stated accuracy costs {needed:.6g}: this is the most", "short")


@dataclass(frozen=True)
class CounterOffer:
    """Grants what is within its limit; else proposes a query that tells less: lower class, coarser, shorter window.

    epsilon      the most for the query as asked; None: what was asked
    order        which concessions it tries, in this order: "class" (the top category instead of the vector),
                 "resolution" (dayparts or the total), "window" (half or a quarter of the time and of epsilon)
    epsilon_min  a counter-offer below it is pointless: it refuses instead (code "budget")
    Only kinds, classes and granularities that its agreement allows are proposed. A general query costs 1/1.65 of a
    specific one. After X-NegoBox (arXiv 2604.24326: counter-offers of reduced resolution or duration); the ladder is
    ours. A shorter window is the counter's code, "window_half" or "window_quarter": `window` turns it into steps.
    """

    epsilon: float | None = None
    order: tuple[str, ...] = ("class", "resolution", "window")
    epsilon_min: float = 0.05

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon", self.epsilon)
        budget_argument(self, "epsilon_min", self.epsilon_min)
        object.__setattr__(self, "order", tuple(self.order))
        if not self.order or set(self.order) - {"class", "resolution", "window"}:
            raise ValueError(f"[policy] order = {self.order!r} of CounterOffer lists other things than class, "
                             "resolution, window")

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        asked = case.query.epsilon_micro
        limit = min(case.most_micro, asked if self.epsilon is None else micro(self.epsilon))
        if limit == asked:
            return Offer(case.query.epsilon, "as asked, within the home's limit", "as_asked")
        for step in self.order:
            for kind, share, code in self._steps(step, case):
                cost = math.ceil(asked * share)
                if min(micro(self.epsilon_min), asked) <= cost <= limit:
                    query = replace(case.query, kind=kind)
                    return Counter(query, cost / MICRO, f"{case.query.epsilon:g} is above the home's limit of "
                                   f"{limit / MICRO:g}: {code.replace('_', ' ')} instead", code)
        return over_budget(case, case.query.epsilon)

    def _steps(self, step: str, case: Case) -> list[tuple[str, float, str]]:
        kind, own = case.query.kind, case.query.query_class
        if own not in (GENERAL, SPECIFIC):
            return []
        if step == "window":
            return [(kind, 1 / 2, "window_half"), (kind, 1 / 4, "window_quarter")]
        kinds = (("top",) if own == SPECIFIC else ()) if step == "class" else COARSER.get(kind, ())
        share = 1 / CLASS_RATIO if own == SPECIFIC else 1.0
        finest = GRANULARITIES.index(case.agreement.granularity)
        allowed = [name for name in kinds if GENERAL in case.agreement.classes
                   and GRANULARITIES.index(GRANULARITY[name]) <= finest]
        # telling less by the same class of query costs less only if it is asked for less: half, then a quarter
        return [(name, share if own == SPECIFIC else share / 2 ** (place + 1), "lower_class" if step == "class"
                 else "coarser") for place, name in enumerate(allowed)]


def window(code: str, rows: tuple[int, int]) -> tuple[int, int]:
    """The steps that a counter-offer's code leaves of a window: its last half or quarter, at least one step.

    >>> window("window_half", (0, 168)), window("coarser", (0, 168))
    ((84, 168), (0, 168))
    """
    part = {"window_half": 2, "window_quarter": 4}.get(code, 1)
    return max(rows[0], rows[1] - max(1, (rows[1] - rows[0]) // part)), rows[1]
