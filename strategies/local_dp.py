"""LocalDP: one home's noised vector as it is, unaggregated: what noise alone leaves of an explanation."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


def one_release(values: np.ndarray, households: tuple[str, ...], home: str = "") -> np.ndarray:
    """The release (d,) of one home out of (n, d): of `home`, or of the first by name where that is empty.

    >>> one_release(np.array([[1.0, 2.0], [3.0, 4.0]]), ("h2", "h1"))
    array([3., 4.])
    """
    if home and home not in households:
        raise ValueError(f"LocalDP: home = {home!r} is not among the {len(households)} homes that answered: name one of "
                         "the population, or leave it out for the first by name")
    return values[households.index(home or min(households))]


class LocalDP(ZoneStrategy):
    """Trust local, for comparison: the source's "local DP", whose signs flip (its Figure 3). No zone, no aggregation.

    home   whose release; "": the first that answered, by name

    Unbiased for that home's clipped summary, not for the zone's sum: scores against the zone compare one home with all.
    Its error is one Laplace(2C/epsilon) on a vector about n times shorter than the zone's, so its cosine is about that
    of the zone at epsilon / sqrt(n).
    Guarantee: epsilon per home, replace-one, as charged: the release is visible to anyone anyway.
    """

    trust = "local"
    returns = "state"  # neither a sum nor a mean of the homes: kept as it is

    def __init__(self, home: str = "") -> None:
        if not isinstance(home, str):
            raise ValueError(f"LocalDP: home = {home!r} is not the name of a home")
        self.home = home

    def combine(self, answers: Answers) -> np.ndarray:
        return one_release(answers.values, answers.households, self.home)
