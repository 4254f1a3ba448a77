"""Black-box audits of what leaves a home: worlds that differ in one household, events, exact bounds on epsilon.

A world lists what one attacker sees: (household, query id, S). The two worlds of a design differ in the whole record of
one household. A path answers a world many times; the share of answers in the design's event, on either side, bounds the
loss: log(P / Q) (Ding et al. 2018, Bichsel et al. 2018: statistical tests of differential privacy). A bound from below
that exceeds the claim proves the claim wrong, at the confidence stated; one from above that stays below the claim shows
that there is more noise than the claim needs. No audit proves a mechanism right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from fedenergy.privacy.gaussian import Gaussian
from fedenergy.privacy.noise import SecureNoise, SimulationNoise, noise_from
from fedenergy.privacy.noisy_max import NoisyMax
from fedenergy.privacy.secure_sum import Summer, laplace_share, pad, seal
from fedenergy.privacy.weighted import WeightedLaplace

CONFIDENCE = 0.99
LEAST_OF_CLAIM = 0.95  # an upper bound below this share of what the law gives: more noise than the claim needs
TRIALS = 20_000
QUICK_TRIALS = 300     # enough where a fault shows in every answer
World = Sequence[tuple[str, str, np.ndarray]]
ZONE = "zone"


# -- bounds ------------------------------------------------------------------------------------------------------------

def clopper_pearson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """Exact two-sided interval of a probability (Clopper and Pearson 1934).

    >>> clopper_pearson(0, 10, 0.99)[0], round(clopper_pearson(0, 10, 0.99)[1], 3)
    (0.0, 0.411)
    """
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def epsilon_bounds(hits: int, hits_beside: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bounds of log(P / Q), each at that confidence: either end uses one side of each interval, half the error each."""
    (low, high), (low_beside, high_beside) = (clopper_pearson(h, trials, confidence) for h in (hits, hits_beside))
    return math.log(max(low, 1e-300) / high_beside), math.log(high / max(low_beside, 1e-300))


def gaussian_bounds(hits: int, hits_beside: int, trials: int, delta: float,
                    confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bounds of epsilon at delta of a Gaussian release, from the event "y >= 0" under +C and -C.

    P = Phi(mu / 2) and Q = 1 - P, mu the distance of the two worlds in standard deviations: one proportion of both
    sides bounds mu, and mu gives epsilon (Dong, Roth and Su 2022, Gaussian differential privacy).
    """
    from scipy.stats import norm

    low, high = clopper_pearson(hits + trials - hits_beside, 2 * trials, confidence)
    return (gaussian_epsilon(2 * float(norm.ppf(max(low, 0.5 + 1e-9))), delta),
            gaussian_epsilon(2 * float(norm.ppf(min(high, 1 - 1e-12))), delta))


@lru_cache(maxsize=256)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at delta of Gaussian noise whose standard deviation is the sensitivity / mu, by bisection.

    Source: Balle and Wang 2018, Theorem 8. 0 where delta alone covers the difference.
    """
    from scipy.stats import norm

    low, high = 0.0, max(1.0, mu * mu + 40 * mu)
    for _ in range(80):
        middle = (low + high) / 2
        found = norm.cdf(mu / 2 - middle / mu) - math.exp(min(middle, 700) + norm.logcdf(-mu / 2 - middle / mu))
        low, high = (middle, high) if found > delta else (low, middle)
    return high


# -- what is audited ---------------------------------------------------------------------------------------------------

class Path(Protocol):
    """Answers the queries of a world many times, as an attacker sees them."""

    epsilon_micro: int

    def release(self, world: World, trials: int, seed: int) -> list[np.ndarray]:
        """For each entry of the world (trials, d) released numbers, in units of S."""
        ...


@dataclass(frozen=True)
class LocalPath:
    """Trust "local": one home's release. Every trial is a query of its own, as in a study.

    law     of the query (privacy/by_name.py, WeightedLaplace)
    noise   seed -> where noise comes from; noise_from(name, seed) in a study
    """

    law: Any
    epsilon_micro: int
    noise: Callable[[int], SimulationNoise | SecureNoise] = SimulationNoise

    def release(self, world: World, trials: int, seed: int) -> list[np.ndarray]:
        made = self.noise(seed)
        return [np.stack([self.law.release(summary, made.source(household, f"{query}-{trial}"), self.epsilon_micro)
                          for trial in range(trials)]) for household, query, summary in world]


@dataclass(frozen=True)
class CuratorPath:
    """Trust "curator": one noise on the exact sum over the homes of the world. One answer for the whole world."""

    law: Any
    epsilon_micro: int
    noise: Callable[[int], SimulationNoise | SecureNoise] = SimulationNoise

    def release(self, world: World, trials: int, seed: int) -> list[np.ndarray]:
        made, total = self.noise(seed), sum(self.law.deposit(summary) for _, _, summary in world)
        return [np.stack([self.law.grid.decode(total + self.law.noise(made.source(ZONE, f"q-{trial}"), self.epsilon_micro,
                                                                      total.size)) for trial in range(trials)])]


@dataclass(frozen=True)
class SumPath:
    """Trust "sum": every home adds its share of one noise and a pad; the Summer opens the total."""

    law: Any
    epsilon_micro: int
    noise: Callable[[int], SimulationNoise | SecureNoise] = SimulationNoise

    def release(self, world: World, trials: int, seed: int) -> list[np.ndarray]:
        made, scale = self.noise(seed), self.law.scale(self.epsilon_micro)
        z = {household: self.law.deposit(summary) for household, _, summary in world}
        pads = {household: bytes([place + 1]) * 32 for place, household in enumerate(z)}
        rows = []
        for trial in range(trials):
            query = f"q-{trial}"
            shares = {household: seal(values, laplace_share(made.source(household, query), scale, len(z), values.size),
                                      pad(pads[household], household, query, values.size))
                      for household, values in z.items()}
            rows.append(self.law.grid.decode(Summer(query, pads).open(shares)))
        return [np.stack(rows)]


def study_noise(name: str) -> Callable[[int], SimulationNoise | SecureNoise]:
    """The noise of a study's config, by seed."""
    return lambda seed: noise_from(name, seed)


# -- designs -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Design:
    """Two neighbouring worlds and an event of what is seen.

    queries   how many of the changed household's answers are seen: the claim is as many epsilon
    tight     the right mechanism reaches the claim here, so an upper bound below it shows too much noise
    """

    name: str
    one: World
    other: World
    event: Callable[[list[np.ndarray]], np.ndarray]
    queries: int = 1
    tight: bool = False
    trials: int = QUICK_TRIALS


def designs(path: Path, size: int, trials: int = TRIALS) -> list[Design]:
    """The designs that fit a path whose answers have `size` coordinates."""
    law = path.law
    if isinstance(law, NoisyMax):
        if size < 2:
            return []
        return [Design("other category", [("h1", "q1", basis(law, size, 0))], [("h1", "q1", basis(law, size, 1))],
                       lambda y: np.argmax(y[0], axis=1) == 0, tight=True, trials=trials)]
    first, opposite = basis(law, size, 0), basis(law, size, 0, -1)
    # of Laplace noise: P = 1/2 against exp(-epsilon) / 2, the pair and the event that reach epsilon
    level = 0.0 if isinstance(law, Gaussian) else first[0]
    if not isinstance(path, LocalPath):
        still = [("h2", "q1", np.zeros(size))]
        return [Design("worst pair", [("h1", "q1", first), *still], [("h1", "q1", opposite), *still],
                       lambda y: y[0][:, 0] >= level, tight=True, trials=trials)]
    found = [
        Design("worst pair", [("h1", "q1", first)], [("h1", "q1", opposite)], lambda y: y[0][:, 0] >= level, tight=True,
               trials=trials),
        Design("two releases", [("h1", "q1", first), ("h1", "q2", first)], [("h1", "q1", first), ("h1", "q2", opposite)],
               lambda y: y[0][:, 0] == y[1][:, 0], queries=2)]
    if size > 1:
        second = basis(law, size, 1)
        found += [
            Design("absent appliance", [("h1", "q1", first)], [("h1", "q1", second)], lambda y: y[0][:, 1] == 0),
            Design("two households", [("h1", "q1", first), ("h2", "q1", second)],
                   [("h1", "q1", -first), ("h2", "q1", second)], lambda y: y[0][:, 0] - y[1][:, 0] == first[0])]
    return found


def basis(law: Any, size: int, k: int, sign: int = 1) -> np.ndarray:
    """(size,) the largest summary that the law lets through in coordinate k, units of S."""
    weight = law.weights[k] if isinstance(law, WeightedLaplace) else 1.0
    return np.eye(size)[k] * (sign * law.grid.bound * law.grid.step * weight)


# -- verdicts ----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Verdict:
    """What one design found.

    claimed        epsilon that the changed household was charged; delta beside it
    low, high      bounds of the loss, each at `confidence`; trials: a side
    problem        "" or what is wrong
    """

    design: str
    claimed: float
    delta: float
    low: float
    high: float
    trials: int
    confidence: float
    problem: str


def judge(path: Path, design: Design, *, seed: int = 1, confidence: float = CONFIDENCE) -> Verdict:
    """Run a design on a path. The two sides draw from different seeds, so their trials are independent.

    Red where the lower bound exceeds the claim, where an answer is off the noise grid (then its low bits may tell S:
    Mironov 2012), and in a tight design where the upper bound stays below 95 % of what the law gives.
    """
    law, claimed = path.law, design.queries * path.epsilon_micro / 1e6
    delta = min(1.0, design.queries * law.delta) if isinstance(law, Gaussian) else 0.0
    hits, off = [], False
    for side, world in enumerate((design.one, design.other)):
        seen = path.release(world, design.trials, seed + side)
        off = off or any(not _on_grid(law, values) for values in seen)
        hits.append(int(np.count_nonzero(design.event(seen))))
    reached = claimed
    if isinstance(law, Gaussian) and design.tight:
        low, high = gaussian_bounds(*hits, design.trials, law.delta, confidence)
        reached = gaussian_epsilon(law.grid_sensitivity() / math.sqrt(law.variance(path.epsilon_micro)), law.delta)
    else:
        low, high = epsilon_bounds(*hits, design.trials, confidence)
    problem = ""
    if low > claimed:
        problem = f"loses more than claimed: at least {low:.3f}, claimed {claimed:g}"
    elif off:
        problem = "answers lie off the noise grid: their low bits may tell what was measured"
    elif design.tight and high < LEAST_OF_CLAIM * reached:
        problem = f"more noise than the claim needs: at most {high:.3f} of {reached:.3f}"
    return Verdict(design.name, claimed, delta, max(0.0, low), high, design.trials, confidence, problem)


def audit(path: Path, size: int, *, trials: int = TRIALS, seed: int = 1, confidence: float = CONFIDENCE) -> list[Verdict]:
    """All designs of a path; `confidence` is that of each."""
    return [judge(path, design, seed=seed + 2 * place, confidence=confidence)
            for place, design in enumerate(designs(path, size, trials))]


def each_of(count: int, confidence: float = CONFIDENCE) -> float:
    """The confidence that each of `count` bounds needs, so that all hold together at `confidence` (Bonferroni)."""
    return 1 - (1 - confidence) / max(1, count)


def _on_grid(law: Any, values: np.ndarray) -> bool:
    steps = law.grid.step * (np.array(law.weights) if isinstance(law, WeightedLaplace) else 1.0)
    return bool(np.isfinite(values).all() and (np.remainder(values, steps) == 0).all())
