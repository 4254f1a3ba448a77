"""PublicPrior: pull a noisy answer towards what is public already, a profile or the zone's own earlier answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


def shrink(estimate: np.ndarray, towards: np.ndarray, weight: float) -> np.ndarray:
    """(1 - weight) estimate + weight towards, (d,). Bias: weight (towards - S).

    >>> shrink(np.array([4.0, 0.0]), np.array([2.0, 1.0]), 0.5)
    array([3. , 0.5])
    """
    return (1 - weight) * estimate + weight * towards


def james_stein_weight(estimate: np.ndarray, towards: np.ndarray, variance: float, fitted: int = 0) -> float:
    """The weight of a prior: min(1, (d - 2 - fitted) variance / ||estimate - towards||^2), 0 for d <= 2 + fitted.

    variance  of the noise of one coordinate of the estimate; fitted: parameters of the prior taken from the estimate
    For normal noise and any prior the expected squared error falls (James and Stein 1961, positive part).

    >>> james_stein_weight(np.array([2.0, 0.0, 0.0]), np.zeros(3), variance=1.0)    # (3 - 2) 1 / 4
    0.25
    """
    distance = float(np.square(estimate - towards).sum())
    free = max(0, estimate.size - 2 - fitted)
    return min(1.0, free * variance / distance) if distance > 0 else 0.0


def james_stein(estimate: np.ndarray, variance: float) -> np.ndarray:
    """Towards zero: the estimate times one number in [0, 1]. Lowers the error, changes neither cosine nor ranks.

    >>> james_stein(np.array([2.0, 0.0, 0.0]), variance=1.0)
    array([1.5, 0. , 0. ])
    """
    zero = np.zeros_like(estimate)
    return shrink(estimate, zero, james_stein_weight(estimate, zero, variance))


def fitted_profile(estimate: np.ndarray, profile: np.ndarray) -> np.ndarray:
    """The multiple >= 0 of a public profile that is nearest to the estimate: only its shape counts.

    >>> fitted_profile(np.array([4.0, 1.0]), np.array([1.0, 1.0]))
    array([2.5, 2.5])
    """
    return max(0.0, float(estimate @ profile)) / float(profile @ profile) * profile


def noise_variance(values: np.ndarray) -> float:
    """Variance of one coordinate of the mean of (n, d) releases, from their spread. At least the noise's: homes differ.

    >>> noise_variance(np.array([[1.0, 0.0], [3.0, 0.0]]))    # sample variances 2 and 0, of a mean of two
    0.5
    """
    return float(values.var(axis=0, ddof=1).mean()) / len(values) if len(values) > 1 else 0.0


class PublicPrior(ZoneStrategy):
    """Trust local. Shrinks the mean release towards a prior that is public.

    prior    d numbers, a public profile (only its shape counts); None: the estimate of the round before
    weight   of the prior, 0 to 1; None: James and Stein's, from the spread of the releases

    The mean is unweighted, so one cautious home's noise spoils it (see InverseVariance).
    Bias: towards the prior, by weight times its distance; with prior = None a zone that changes is followed late.
    Guarantee: epsilon per home as charged (replace-one): profile and earlier answers are public, so this is
    post-processing. Never give it a profile that was computed from these homes' data.
    """

    trust = "local"
    returns = "mean"

    def __init__(self, weight: float | None = None, prior: Sequence[float] | None = None) -> None:
        if weight is not None and (isinstance(weight, bool) or not isinstance(weight, int | float)
                                   or not 0 <= weight <= 1):
            raise ValueError(f"PublicPrior: weight = {weight!r} is not a number from 0 to 1")
        if prior is not None:
            prior = tuple(float(value) for value in prior)
            if not np.isfinite(prior).all() or not any(prior):
                raise ValueError(f"PublicPrior: prior = {prior!r}: give d finite numbers, not all 0")
        self.weight, self.prior = weight, prior
        self.last_: np.ndarray | None = None

    def combine(self, answers: Answers) -> np.ndarray:
        """The shrunk mean (d,); kept as the next round's prior."""
        mean = answers.values.mean(axis=0)
        if self.prior is not None and len(self.prior) != mean.size:
            raise ValueError(f"PublicPrior: prior has {len(self.prior)} numbers, the answers have {mean.size}")
        if self.prior is not None:
            towards, fitted = fitted_profile(mean, np.array(self.prior)), 1
        else:
            towards, fitted = (mean if self.last_ is None else self.last_), 0
        weight = self.weight
        if weight is None:
            weight = james_stein_weight(mean, towards, noise_variance(answers.values), fitted)
        self.last_ = shrink(mean, towards, weight)
        return self.last_
