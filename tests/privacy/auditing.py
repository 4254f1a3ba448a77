"""Large batches of one mechanism's noise, for the tight audits: the bounds are the library's (privacy/audit.py).

A world lists what one attacker sees: (household, query id, S). The two worlds of a design differ in one household's
whole record. A mechanism under audit answers a world many times: `release(world, trials, seed)` gives, for each entry,
(trials, d) noised grid integers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from fedenergy.privacy.audit import clopper_pearson, epsilon_bounds
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noise import SimulationNoise, discrete_laplace

__all__ = [
    "CLIP",
    "DESIGNS",
    "EPSILON_MICRO",
    "LAW",
    "TRIALS",
    "D",
    "Design",
    "K",
    "Mechanism",
    "audit",
    "basis",
    "clopper_pearson",
    "epsilon_bounds",
]

CLIP, D, EPSILON_MICRO = 50.0, 3, 1_000_000
TRIALS = 20_000
LAW = Laplace(CLIP)
K = LAW.grid.bound
World = Sequence[tuple[str, str, np.ndarray]]


def basis(k: int, size: float = CLIP) -> np.ndarray:
    return np.eye(D)[k] * size


@dataclass(frozen=True)
class Design:
    """Two neighbouring worlds and an event of what is seen; epsilon: what the neighbours' records were charged."""

    one: World
    other: World
    event: Callable[[list[np.ndarray]], np.ndarray]
    epsilon: float


DESIGNS = {
    # P = 1/2 against exp(-epsilon) / 2: the pair and the event that reach epsilon
    "worst pair": Design([("h1", "q1", basis(0))], [("h1", "q1", basis(0, -CLIP))], lambda y: y[0][:, 0] >= K, 1.0),
    "absent appliance": Design([("h1", "q1", basis(0))], [("h1", "q1", basis(1))], lambda y: y[0][:, 1] == 0, 1.0),
    "two releases": Design([("h1", "q1", basis(0)), ("h1", "q2", basis(0))],
                           [("h1", "q1", basis(0)), ("h1", "q2", basis(0, -CLIP))],
                           lambda y: y[0][:, 0] == y[1][:, 0], 2.0),
    "two households": Design([("h1", "q1", basis(0)), ("h2", "q1", basis(1))],
                             [("h1", "q1", basis(2)), ("h2", "q1", basis(1))],
                             lambda y: y[0][:, 0] - y[1][:, 0] == K, 1.0),
}


@dataclass(frozen=True)
class Mechanism:
    """The right mechanism, and by its fields the mutants."""

    scale: Fraction = field(default_factory=lambda: LAW.scale(EPSILON_MICRO))
    stream: Callable[[str, str], tuple[str, str]] = lambda household, query: (household, query)
    only_non_zero: bool = False

    def release(self, world: World, trials: int, seed: int) -> list[np.ndarray]:
        answers = []
        for household, query, summary in world:
            source = SimulationNoise(seed).source(*self.stream(household, query))
            noise = discrete_laplace(source, self.scale, trials * D).reshape(trials, D)
            z = LAW.grid.encode(summary)
            answers.append(z + (noise * (z != 0) if self.only_non_zero else noise))
        return answers


def audit(mechanism: Mechanism, design: str, trials: int = TRIALS, seed: int = 1) -> tuple[float, float]:
    """(lower, upper) 99 % bounds of the design's privacy loss."""
    case = DESIGNS[design]
    hits = [int(case.event(mechanism.release(world, trials, seed + side)).sum())
            for side, world in enumerate((case.one, case.other))]
    return epsilon_bounds(*hits, trials)
