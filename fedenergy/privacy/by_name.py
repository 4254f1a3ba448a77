"""The closed set of mechanisms by the names that queries carry."""

from __future__ import annotations

from fedenergy.privacy.gaussian import GAUSSIAN, Gaussian
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noisy_max import NOISY_MAX, NoisyMax

Mechanism = Laplace | Gaussian | NoisyMax


def mechanism(name: str, clip: float, delta: float = 0.0) -> Mechanism:
    """The mechanism of a query: "gaussian" needs its delta; every other name is Laplace noise, or none ("none").

    >>> mechanism("laplace", 50.0), mechanism("gaussian", 50.0, 1e-5)
    (Laplace(clip=50.0), Gaussian(clip=50.0, delta=1e-05))
    """
    if name == GAUSSIAN:
        return Gaussian(clip, delta)
    return NoisyMax(clip) if name == NOISY_MAX else Laplace(clip)
