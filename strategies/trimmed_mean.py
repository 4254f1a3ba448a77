"""TrimmedMean: leave out the largest and smallest answers of each coordinate, average the rest."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


def trimmed_mean(values: np.ndarray, share: float) -> np.ndarray:
    """Mean (d,) of (n, d) releases without the floor(share n) largest and as many smallest of each coordinate.

    share  0 <= share < 1/2; 0 is the plain mean. n times it stands for the zone's sum.
    Breakdown: floor(share n) homes that send anything at all cannot move it beyond the values of the others.
    Noise lies between that of the mean (variance 2 b^2 / n) and of the median (towards b^2 / n). Biased towards the
    typical home where homes are skewed, the more the larger the share.

    >>> trimmed_mean(np.array([[1.0], [2.0], [4.0], [1e9]]), share=0.25)
    array([3.])
    """
    cut = int(share * len(values) + 1e-9)  # .29 of 100 is 29, whatever its float says
    return np.sort(values, axis=0)[cut:len(values) - cut].mean(axis=0)


class TrimmedMean(ZoneStrategy):
    """Trust local; share: of the answers left out at each end, 0 <= share < 0.5.

    Guarantee: epsilon per home as charged (replace-one); and `share` of the homes cannot decide the answer.
    Bias: towards the typical home, see trimmed_mean. Source: Yin et al. 2018 (Byzantine-robust distributed learning).
    """

    trust = "local"
    returns = "mean"

    def __init__(self, share: float = 0.1) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 0.5:
            raise ValueError(f"TrimmedMean: share = {share!r} of the answers goes at each end: use 0 <= share < 0.5")
        self.share = float(share)

    def combine(self, answers: Answers) -> np.ndarray:
        return trimmed_mean(answers.values, self.share)
