"""Synthesisers at equal epsilon: private mode, a plain histogram, DP diffusion; and the heuristic one, without any."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedenergy.synthesis.generate import Synthetic, synthesise
from fedenergy.synthesis.intake import Panel
from fedenergy.synthesis.stream import Plan, make
from simulations.synthesising import diffusion, histogram

RIVALS = ("heuristic", "private_mode", "dp_histogram", "dp_diffusion")


@dataclass(frozen=True)
class Rival:
    """A way to make records, the epsilon that it states (household, replace-one) and whether canaries are cheap enough."""

    name: str
    epsilon: float
    make: Callable[[Panel], Synthetic]
    canaries: bool


def rival(name: str, plan: Plan, how: diffusion.Diffusion, epsilon: float, delta: float, seed: int) -> Rival:
    """One of RIVALS at that epsilon; the heuristic one has none, and says infinity."""
    if name == "heuristic":
        return Rival(name, math.inf, lambda homes: make(homes, plan, seed), True)
    if name == "private_mode":
        return Rival(name, epsilon, lambda homes: synthesise(homes, mode="private", epsilon=epsilon, delta=delta, seed=seed,
                                                             tell=lambda words: None),
                     True)
    if name == "dp_histogram":
        return Rival(name, epsilon, lambda homes: histogram.synthesise(homes, epsilon=epsilon, delta=delta, seed=seed), True)
    return Rival(name, epsilon, lambda homes: diffusion.synthesise(homes, how, epsilon=epsilon, delta=delta, seed=seed),
                 False)


def statement(fake: Synthetic) -> dict[str, Any]:
    """What the records claim, for the cell's file."""
    expected = (fake.privacy or {}).get("promise", {}).get("verdict")
    return {"guarantee": fake.guarantee + (f"; expected before anything was asked: {expected}" if expected else "")}
