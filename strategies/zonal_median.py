"""ZonalMedian: the number of homes times the median home, coordinate by coordinate."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


def zonal_median(values: np.ndarray) -> np.ndarray:
    """Coordinate-wise median (d,) of (n, d) releases; n times it stands for the zone's sum.

    Breakdown: fewer than n / 2 homes that send anything at all cannot move it beyond the values of the others.
    Where noise is much larger than the homes differ, the median is the likeliest centre of Laplace noise: its variance
    tends to b^2 / n, half that of the mean. Biased towards the typical home where homes are skewed: an appliance that
    fewer than half of them use goes towards 0, however much it adds to the zone's sum.

    >>> zonal_median(np.array([[1.0, 5.0], [2.0, 6.0], [1e9, -1e9]]))
    array([2., 5.])
    """
    return np.median(values, axis=0)


class ZonalMedian(ZoneStrategy):
    """Trust local. Guarantee: epsilon per home as charged (replace-one); and no minority of homes decides the answer.

    Bias: towards the typical home, see zonal_median. Source: Yin et al. 2018 (Byzantine-robust distributed learning).
    """

    trust = "local"
    returns = "mean"

    def combine(self, answers: Answers) -> np.ndarray:
        return zonal_median(answers.values)
