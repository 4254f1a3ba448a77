"""InverseVariance: with unequal budgets, homes with less noise count for more."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


def inverse_variance(values: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Mean over the homes (d,), weighted by epsilon^2: the inverse of a release's variance 2 b^2, b = 2C/epsilon.

    values    (n, d) releases; epsilons: (n,) > 0, granted by each home
    Least variance of all weighted means; n times it estimates the zone's sum. Biased where homes differ: it expects
    sum w_i S_i / sum w_i, so a home that grants less counts less, down to nothing. With equal epsilons it is the plain
    mean, without bias. The same estimate as n_eff = (sum w)^2 / sum w^2 equal homes would give.

    >>> inverse_variance(np.array([[4.0, 1.0], [0.0, 6.0]]), np.array([2.0, 1.0]))    # weights 4/5 and 1/5
    array([3.2, 2. ])
    """
    weights = np.square(epsilons / epsilons.max())
    return weights @ values / weights.sum()


class InverseVariance(ZoneStrategy):
    """Trust local. Guarantee: epsilon per home as charged (replace-one); weighting is post-processing.

    Bias: homes with a small epsilon count less, which matters where caution and consumption go together.
    Source: Aitken's weights, for the mixed budgets of the HXAI negotiation (spec "Strategies to compare").
    """

    trust = "local"
    returns = "mean"

    def combine(self, answers: Answers) -> np.ndarray:
        return inverse_variance(answers.values, answers.epsilons)
