"""NonPrivate: the oracle. Everyone sees everything; epsilon is infinite."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


class NonPrivate(ZoneStrategy):
    """Trust open: sums the unclipped summaries. For comparison only; homes refuse it unless `oracle = true`."""

    trust = "open"
    mechanism = "none"

    def combine(self, answers: Answers) -> np.ndarray:
        return answers.values[:, 1].sum(axis=0)
