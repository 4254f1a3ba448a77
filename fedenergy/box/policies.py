"""Negotiation policies: Fixed, Strict, BoundedSearch; and what all policies share: the public utility model, checks.

More: policies_public.py (decide from public state alone), policies_paid.py (decide with money).

U(eps) = (1 + (eps0/eps)^2)^(-1/2), eps0 = Delta sqrt(2 d M)/||S||_2, is the expected cosine between an answer and its
noised form. ||S||_2 comes from an earlier release or a stated prior, never from data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedenergy.box.policy import Case, Counter, Offer, Public, Published, Refuse, micro_floor
from fedenergy.ids import stream
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.mechanisms import Laplace

OWN_REPORT, ZONE = UTILITIES = ("own_report", "zone")
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Fixed:
    """Offers what was asked, or its own limit if that is less; the source's uniform budget.

    epsilon   the home's own limit; None: none
    Refuses (code "budget") when that amount is more than remains: it never offers less to fit the rest of a budget.
    """

    epsilon: float | None = None
    uniform: ClassVar[bool] = True

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon", self.epsilon)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        if self.epsilon is not None and self.epsilon < case.query.epsilon:
            reason = f"the home's own limit, below the {case.query.epsilon:g} asked"
            return affordable(case, self.epsilon, reason, "own_limit")
        return affordable(case, case.query.epsilon, "as asked", "as_asked")


@dataclass(frozen=True)
class Strict:
    """No deal: the source's default to stricter privacy. Offers a small epsilon whatever is asked.

    epsilon   the most that it offers (.16 is where the source's negotiation starts)
    Refuses (code "budget") when that is more than remains.
    """

    epsilon: float = 0.16
    uniform: ClassVar[bool] = True

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon", self.epsilon)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        return affordable(case, min(case.query.epsilon, self.epsilon), "no deal: the stricter default", "strict")


@dataclass(frozen=True)
class BoundedSearch:
    """The source's negotiation: maximise U(eps) - price * eps in [eps* - ell, eps* + ell], within what remains.

    price            lambda: utility that the home gives up per unit of epsilon, > 0; it never leaves the box
    ell              half-width of the interval, in epsilon, >= 0
    epsilon_target   eps*, its centre; None: the optimum of the public utility model in closed form
    epsilon_min      the least that it offers; below that it refuses (code "budget")
    rounds           how many feedbacks it follows before it stays put
    utility          "own_report": of the home's own report; "zone": of the zone's sum, where a home can ride free
    prior            ||S||_2 of one home as a fraction of the clip C, used until a release tells it

    Without feedback it offers the optimum; each feedback halves the interval towards what the operator still lacks, so
    the answer stays within ell of eps*. The source leaves the feedback rule open; this one is ours.
    """

    price: float = 0.1
    ell: float = 1.0
    epsilon_target: float | None = None
    epsilon_min: float = 0.01
    rounds: int = 8
    utility: str = OWN_REPORT
    prior: float = 0.5

    def __post_init__(self) -> None:
        for name in ("epsilon_target", "epsilon_min"):
            budget_argument(self, name, getattr(self, name))
        number_argument(self, "price", "prior", above=0)
        number_argument(self, "ell", least=0)
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 0:
            raise ValueError(f"[policy] rounds = {self.rounds!r} of BoundedSearch is not a whole number >= 0")
        choice_argument(self, "utility", UTILITIES)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        most, least = case.most_micro, min(micro(self.epsilon_min), case.query.epsilon_micro)
        if most < least:
            return over_budget(case, self.epsilon_min)
        eps0 = epsilon_zero(case.public, self.utility, self.prior)
        centre = self.epsilon_target or best_epsilon(eps0, self.price, self.epsilon_min)
        high = min(most / MICRO, centre + self.ell)
        low = min(max(least / MICRO, centre - self.ell), high)
        epsilon = maximise(lambda e: expected_utility(e, eps0) - self.price * e, low, high)
        followed = 0
        for lack in case.public.feedback[:self.rounds]:
            if lack == 0:
                break
            low, high = (epsilon, high) if lack > 0 else (low, epsilon)
            epsilon, followed = (low + high) / 2, followed + 1
        epsilon = max(least, min(most, round(epsilon * MICRO))) / MICRO
        reason = (f"expected utility {expected_utility(epsilon, eps0):.2f}, within {self.ell:g} of eps* = {centre:.4g}"
                  + (f", after {followed} rounds of feedback" if followed else ""))
        return Offer(epsilon, reason, "negotiated" if followed else "optimum")


def expected_utility(epsilon: float, eps0: float) -> float:
    """U: expected cosine of an answer with budget epsilon, between 0 and 1. Rises with epsilon, concave.

    >>> round(expected_utility(1.0, 1.0), 4)
    0.7071
    """
    return epsilon / math.hypot(epsilon, eps0)


def best_epsilon(eps0: float, price: float, epsilon_min: float) -> float:
    """eps* that maximises U(eps) - price eps: sqrt((eps0^2/price)^(2/3) - eps0^2) if price < 1/eps0, else epsilon_min.

    >>> round(best_epsilon(1.0, 0.125, 0.01), 6)    # sqrt(8^(2/3) - 1) = sqrt(3)
    1.732051
    """
    if not price < 1 / eps0:
        return epsilon_min
    return max(epsilon_min, math.sqrt(max(0.0, (eps0 * eps0 / price) ** (2 / 3) - eps0 * eps0)))


def epsilon_zero(public: Public, utility: str = OWN_REPORT, prior: float = 0.5) -> float:
    """eps0 = Delta sqrt(2 d M)/||S||_2, the epsilon at which U = .71, from public state.

    own_report   one home's report: M = 1, the norm of one home
    zone         the sum over N homes: M noises, N times that norm
    The norm is that of the latest release that stands out of its noise, per home; without one, prior * clip.
    """
    delta = Laplace(clip=public.clip).sensitivity()
    norm = home_norm(public.releases, delta) or prior * public.clip
    noises, norm = (public.noises, public.N * norm) if utility == ZONE else (1, norm)
    return delta * math.sqrt(2 * public.d * noises) / norm


def home_norm(releases: Sequence[Published], delta: float) -> float | None:
    """||S||_2 of one home from the latest release whose norm stands out of its noise; None if none does.

    The noise's share is taken off: E||noise||^2 = M d 2 b^2 with b = delta / epsilon. A zone's norm is divided by its
    number of homes (as if they were alike).
    """
    for release in reversed(releases):
        noise = release.noises * len(release.values) * 2.0 * (delta / release.epsilon) ** 2
        try:
            square = math.fsum(value * value for value in release.values) - noise
        except OverflowError:  # a home may have sent anything
            continue
        if 0 < square < math.inf:
            return math.sqrt(square) / release.homes
    return None


def maximise(gain: Callable[[float], float], low: float, high: float, tolerance: float = 1e-7) -> float:
    """Where a function with one peak is largest in [low, high], by golden-section search.

    >>> round(maximise(lambda x: -(x - 2) ** 2, 0.0, 5.0), 6)
    2.0
    """
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = gain(left), gain(right)
    while high - low > tolerance:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = gain(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = gain(right)
    return max((low, (low + high) / 2, high), key=gain)  # an end of the interval is met exactly


def affordable(case: Case, amount: float, reason: str, code: str) -> Offer | Refuse:
    """An offer of exactly that amount, or a refusal where less remains."""
    # compared as integers: the float .1 is above Decimal("0.1")
    return Offer(amount, reason, code) if micro(amount) <= micro_floor(case.remaining) else over_budget(case, amount)


def over_budget(case: Case, amount: float) -> Refuse:
    """The refusal of a home that would have to spend more than remains."""
    return Refuse(f"{amount:g} is more than the {case.remaining} that remains of the agreed budget", "budget")


def private_price(household: str, price: float, spread: float, seed: int) -> float:
    """lambda_i of one home, log-normal around `price`: utility (or money) that it gives up per unit of epsilon.

    spread  standard deviation of log lambda_i; 0: every home has the same
    Drawn from a stream of the home's own name, never from its data: it tells nothing about them. The seed is public, so
    in a simulation it stands in for what a real home would keep to itself.

    >>> private_price("h1", 0.1, 0.0, 0)
    0.1
    """
    return price * math.exp(spread * stream(seed, "policy-price", household).standard_normal()) if spread else price


def budget_argument(policy: object, name: str, value: float | None) -> None:
    """Check an epsilon argument and put it on the 1e-6 grid."""
    if value is None:
        return
    try:
        object.__setattr__(policy, name, micro(value) / MICRO)
    except (TypeError, ValueError) as error:
        raise ValueError(f"[policy] {name} = {value!r} of {type(policy).__name__}: {error}") from error


def number_argument(policy: object, *names: str, least: float | None = None, above: float | None = None,
                    most: float = math.inf) -> None:
    """Check that arguments are finite numbers in range."""
    for name in names:
        value = getattr(policy, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > most \
                or (least is not None and value < least) or (above is not None and value <= above):
            bound = f">= {least:g}" if least is not None else f"> {above:g}" if above is not None else ""
            raise ValueError(f"[policy] {name} = {value!r} of {type(policy).__name__} is not a finite number {bound}"
                             + (f" and <= {most:g}" if most < math.inf else ""))


def choice_argument(policy: object, name: str, allowed: Sequence[str]) -> None:
    """Check that an argument is one of the allowed words."""
    if getattr(policy, name) not in allowed:
        raise ValueError(f"[policy] {name} = {getattr(policy, name)!r} of {type(policy).__name__} is unknown: "
                         f"use {' or '.join(allowed)}")
