"""CentralGaussian: a trusted Curator adds one Gaussian noise to the sum of summaries clipped in l2."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


class CentralGaussian(ZoneStrategy):
    """Trust curator, discrete Gaussian noise: needs [query] delta and an [agreement] delta of at least all queries'.

    Homes deposit summaries clipped in l2 to C with the Curator, who alone sees them and adds one noise of standard
    deviation sigma = 2C / sqrt(2 rho) to their exact integer sum. Unbiased for the clipped sum, however many homes.
    Guarantee: (epsilon, delta) per home, replace-one, against whoever sees the answer; none against the Curator.
    Under trust sum there is no Gaussian form: shares of a discrete Gaussian do not add up to one.
    """

    trust = "curator"
    mechanism = "gaussian"

    def combine(self, answers: Answers) -> np.ndarray:
        return answers.values[0]
