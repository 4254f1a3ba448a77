"""NonNegative: the sum of releases, with negative coordinates set to 0 where everybody knows that none can be."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


def non_negative(estimate: np.ndarray) -> np.ndarray:
    """The nearest vector (d,) without negative entries.

    If S >= 0, no coordinate's error grows, whatever the noise. Biased upwards: by E|noise| / 2 where S is 0, hardly
    where S is well above the noise.

    >>> non_negative(np.array([1.5, -0.5]))
    array([1.5, 0. ])
    """
    return np.maximum(estimate, 0.0)


class NonNegative(ZoneStrategy):
    """Trust local; public: True states that S >= 0 is public knowledge (energy totals, shares of the peak hour).

    Nothing is projected on an unstated assumption: without public = True it is not made. Explain's S may be negative
    (an appliance can lower a prediction): there the statement is false and negative sums are lost.
    Guarantee: epsilon per home as charged (replace-one); projecting is post-processing. Bias: see non_negative.
    """

    trust = "local"
    returns = "mean"

    def __init__(self, public: bool) -> None:
        if public is not True:
            raise ValueError(f"NonNegative: public = {public!r}: it is for sums that everybody knows to be >= 0; state "
                             "public = true if these are, else use ZonalSum")
        self.public = public

    def combine(self, answers: Answers) -> np.ndarray:
        return non_negative(answers.values.mean(axis=0))
