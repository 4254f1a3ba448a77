"""CentralUnbounded: a Curator with N times the noise, where the source's Table III may come from."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


class CentralUnbounded(ZoneStrategy):
    """Trust curator, for comparison: one Laplace(N 2C/epsilon) on the sum of the N clipped summaries.

    The source ranks central noise (.65) below local noise (.9999) at one epsilon, which no bounded sensitivity allows:
    its linear bound N d Delta / epsilon suggests that the sum's sensitivity was taken as N Delta, as if all homes
    changed at once. Unbiased; mean absolute error N b, 2 sqrt(N / pi) times less with local noise.
    Guarantee: epsilon for the whole zone replaced at once, hence epsilon / N for one home, at a charge of epsilon.
    The Curator (TrustGrid) draws the noise; use CentralLaplace for the sound form.
    """

    trust = "curator"
    mechanism = "central_unbounded"

    def combine(self, answers: Answers) -> np.ndarray:
        return answers.values[0]
