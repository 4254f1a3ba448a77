"""DropCautious: leave out the homes that grant too little, and scale the rest up."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import EPSILON_UNIT, Answers, ZoneStrategy
from fedenergy.privacy.epsilon import micro


def drop_cautious(values: np.ndarray, epsilons: np.ndarray, floor: float) -> np.ndarray:
    """Mean (d,) of the releases whose epsilon is at least `floor`; of the largest epsilon where none is.

    values    (n, d) releases; epsilons: (n,) granted by each home; floor: epsilon
    n times it estimates the zone's sum: the kept homes' sum times n / kept. Biased unless the dropped homes consume as
    the others do: it expects the kept homes' mean. Noise of the estimated sum: n / kept times that of the kept sum.

    >>> drop_cautious(np.array([[1.0, 3.0], [3.0, 5.0], [90.0, -80.0]]), np.array([2.0, 1.0, 0.1]), floor=0.5)
    array([2., 4.])
    """
    return values[epsilons >= min(floor, epsilons.max())].mean(axis=0)


class DropCautious(ZoneStrategy):
    """Trust local; floor: epsilon below which a home's answer is left out, > 0.

    Guarantee: epsilon per home as charged (replace-one); a dropped home is charged too, for nothing. Bias: the dropped
    homes are taken to consume as the kept ones do. Epsilons are public, so who is dropped tells nothing more.
    """

    trust = "local"
    returns = "mean"

    def __init__(self, floor: float) -> None:
        try:
            self.floor = micro(floor) * EPSILON_UNIT  # on the grid of the epsilons that it is compared with
        except (TypeError, ValueError) as error:
            raise ValueError(f"DropCautious: floor = {floor!r} is no epsilon: {error}") from error

    def combine(self, answers: Answers) -> np.ndarray:
        return drop_cautious(answers.values, answers.epsilons, self.floor)
