"""Policies that shape the noise by coordinate: FeatureWeighted (public weights, sound) and the source's
AttributionWeighted, which sets noise levels from the true S and is therefore labelled as leaking.

How a policy states it: a method `mechanism(public)`, the mechanism of its release where that is not the plain Laplace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedenergy.box.policies import affordable, budget_argument, number_argument
from fedenergy.box.policy import Case, Counter, Offer, Public, Refuse
from fedenergy.privacy.weighted import AttributionLaplace, WeightedLaplace, ball_weights, quantise


@dataclass(frozen=True)
class FeatureWeighted:
    """Grants what Fixed grants, with noise shaped by public weights: sum |S_k|/w_k <= C, b_k = w_k 2C/epsilon.

    epsilon   the home's own limit; None: none
    weights   (d,) public; (): from the profile; profile: (d,) public sizes |S_k|, such as a national average; (): from
              the latest zone release; without any of them, or of the wrong length: all 1, the plain mechanism
              In a study releases are made without a look at earlier ones: give weights or a profile
    power     see privacy.weighted.ball_weights: 1/2 is best for the absolute error, 1/3 for the squared one
    """

    epsilon: float | None = None
    weights: tuple[float, ...] = ()
    profile: tuple[float, ...] = ()
    power: float = 0.5

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon", self.epsilon)
        number_argument(self, "power", least=0, most=1)
        for name in ("weights", "profile"):
            values = tuple(getattr(self, name))
            sound = all(isinstance(value, int | float) and 0 <= value < math.inf for value in values)
            if not sound or (values and not any(values)):
                raise ValueError(f"[policy] {name} = {values!r:.80} of FeatureWeighted is not a list of numbers >= 0")
            object.__setattr__(self, name, values)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        amount = case.query.epsilon if self.epsilon is None else min(self.epsilon, case.query.epsilon)
        shaped = any(weight != 1.0 for weight in self.weights_for(case.public))
        return affordable(case, amount, f"with {'public weights' if shaped else 'equal weights'} for the coordinates",
                          "weighted" if shaped else "equal_weights")

    def weights_for(self, public: Public) -> tuple[float, ...]:
        """(d,) from public state alone."""
        if len(self.weights) == public.d:
            return tuple(quantise(weight) for weight in self.weights)
        profile = self.profile if len(self.profile) == public.d else ()
        if not profile and public.releases and len(public.releases[-1].values) == public.d:
            profile = tuple(abs(value) for value in public.releases[-1].values)
        return ball_weights(profile, self.power) if any(profile) else (1.0,) * public.d

    def mechanism(self, public: Public) -> WeightedLaplace:
        """The mechanism of its release; in a sum, all homes must have the same."""
        return WeightedLaplace(public.clip, self.weights_for(public))


@dataclass(frozen=True)
class AttributionWeighted:
    """The source's negotiated budget: coordinates with larger true |S_k| get more of it. Leaks; for comparison only.

    epsilon            the home's own limit; None: none
    preference, need   (d,) factors of the home and of the operator; (): all 1
    power, floor       see privacy.weighted.AttributionLaplace, which says what it costs
    Its offer is public, but the noise of its release is fixed from the true S: a box refuses it unless the study says
    otherwise (`leaks`).
    """

    epsilon: float | None = None
    preference: tuple[float, ...] = ()
    need: tuple[float, ...] = ()
    power: float = 1.0
    floor: float = 0.1

    leaks = True

    def __post_init__(self) -> None:
        budget_argument(self, "epsilon", self.epsilon)
        try:
            made = AttributionLaplace(1.0, self.preference, self.need, self.power, self.floor)
        except (TypeError, ValueError) as error:
            raise ValueError(f"[policy] AttributionWeighted: {error}") from error
        object.__setattr__(self, "preference", made.preference)
        object.__setattr__(self, "need", made.need)

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        amount = case.query.epsilon if self.epsilon is None else min(self.epsilon, case.query.epsilon)
        return affordable(case, amount, "split by the true answer, as the source does: not private at this epsilon",
                          "leaks")

    def mechanism(self, public: Public) -> AttributionLaplace:
        """The mechanism of its release: not in the closed set, no guarantee."""
        return AttributionLaplace(public.clip, self.preference, self.need, self.power, self.floor)
