"""One statement for a model and the base below it, both fitted to the same windows.

The base's Gaussian releases, rho together, are one Gaussian of mu = sqrt(2 rho) under replace-one (Dong, Roth and Su 2022),
which equals a step of DP-SGD at q = 1 whose sigma is 2 / mu, as replacing moves a clipped sum by 2 C. So the accountant of
the steps composes both. The releases' noise is discrete; on a grid with sigma of many thousand steps it is a continuous
Gaussian, a hair narrower, rounded at random (Peikert 2010, theorem 3.1): HAIR covers the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedenergy.imputation.dp_gp_release import Spent
from fedenergy.privacy import accounting
from fedenergy.privacy.accounting import History, Steps, check_delta

HAIR = 1e-6                     # relative; sigma of at least 2**12 grid steps would allow 1e-6 with a smoothing width of 5
TOLERANCE = 2e-3                # of sigma, upwards


@dataclass(frozen=True)
class Joint:
    """epsilon at delta of base and steps together, replace-one a window. Infinite where a part has no privacy.

    household  epsilon at 2 delta of all windows of a home, left out or not: the sum of what base (whose figure for
               replacing covers leaving out) and steps (add/remove) state; None: their number is not known
    """

    epsilon: float
    delta: float
    base: float
    household: float | None
    noise: str = ""
    relation: str = "replace-one"

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return "base and diffusion together: no privacy"
        home = ("" if self.household is None else
                f"; household, left out or not: epsilon {self.household:.4g} at delta {2 * self.delta:g}")
        return (f"base and diffusion together: epsilon {self.epsilon:.4g} at delta {self.delta:g} per window "
                f"({self.relation}, PLD; the base alone {self.base:.4g}){home}" + (f"; {self.noise}" if self.noise else ""))


def gaussian_step(rho: float) -> Steps:
    """The step of DP-SGD that costs, under replace-one, what releases of rho zCDP together cost.

    >>> round(gaussian_step(0.5).sigma, 4)
    2.0
    """
    return Steps(math.sqrt(2.0 / rho) * (1.0 - HAIR), 1.0, 1)


def epsilon_of(rho: float, steps: History | list[Steps], delta: float) -> float:
    """Epsilon at delta under replace-one of releases of rho and of the steps."""
    parts = steps.parts if isinstance(steps, History) else steps
    return accounting.epsilon_of([gaussian_step(rho), *parts], delta, relation="replace-one")


def calibrate(epsilon: float, rho: float, delta: float, q: float, steps: int) -> float:
    """The smallest sigma (to TOLERANCE) of `steps` steps that keeps base and steps within epsilon under replace-one.

    ValueError where the base alone leaves nothing.
    """
    check_delta(delta)
    if (alone := epsilon_of(rho, [], delta)) >= epsilon:
        raise ValueError(f"a base of rho {rho:.4g} costs epsilon {alone:.4g} of {epsilon:g} alone: fit it at less")
    low, high = 0.0, 1.0
    while epsilon_of(rho, [Steps(high, q, steps)], delta) > epsilon:
        low, high = high, 2 * high
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2 if low else high / 2
        if middle < 0.05:
            return high
        if epsilon_of(rho, [Steps(middle, q, steps)], delta) > epsilon:
            low = middle
        else:
            high = middle
    return high


def rest(epsilon: float, rho: float, delta: float) -> float:
    """The zCDP that further Gaussian releases may cost (to TOLERANCE, downwards) beside releases of rho within epsilon.

    ValueError where those leave nothing.
    """
    check_delta(delta)

    def cost(more: float) -> float:
        return epsilon_of(rho, [gaussian_step(more)], delta)
    if (alone := epsilon_of(rho, [], delta)) >= epsilon:
        raise ValueError(f"a base of rho {rho:.4g} costs epsilon {alone:.4g} of {epsilon:g} alone: fit it at less")
    low, high = 0.0, rho
    while cost(high) <= epsilon:
        low, high = high, 2 * high
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


def released(base: Any) -> float:
    """zCDP of what a base knows of homes by name, beside its `privacy` (homes.py); 0 where it knows none."""
    return float(getattr(getattr(base, "homes", None), "rho", 0.0))


def begun(base: Any, records: int) -> History:
    """What the history of a training over a base begins with: releases of homes that the base's `privacy` does not count."""
    rho = released(base)
    return History([gaussian_step(rho)], [records]) if 0 < rho < math.inf else History()


def joint(base: Any, history: History, delta: float, household: float | None, noise: str = "") -> Joint | None:
    """The statement of a base (anything with `privacy`, a Spent) and a history; None where the base states no cost.

    history    with what the base released of homes by name (see `begun`)
    household  the history's own figure for all windows of a home, add/remove
    """
    spent: Spent | None = getattr(base, "privacy", None)
    if not isinstance(spent, Spent) or spent.unit != "window":
        return None
    if math.isinf(spent.epsilon) or math.isinf(released(base)) or not history.parts:
        return Joint(math.inf, delta, spent.epsilon, math.inf if spent.household_windows else None, noise)
    home = None if household is None or spent.household is None else household + spent.household
    return Joint(epsilon_of(spent.rho, history, delta), delta, spent.epsilon, home, noise or spent.noise)
