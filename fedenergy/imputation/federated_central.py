"""A net that a trusted trainer fits to deposited windows by DP-SGD, at a guarantee per household."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedenergy.imputation.dit import DiTConfig
from fedenergy.imputation.dpsgd import DPSGD
from fedenergy.imputation.federated import NetPlan
from fedenergy.imputation.federated_net import base_of
from fedenergy.imputation.model import Model
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.task import Windows
from fedenergy.imputation.training import train
from fedenergy.privacy import accounting
from fedenergy.progress import Progress

SMALLEST, LARGEST = 2.0**-6, 2.0**20
PRECISION = 1.01


@dataclass(frozen=True)
class CentralNet:
    """`fit` of fedenergy.federation.imputing.central for a diffusion net.

    epsilon, delta  per household, replace-one: those that the homes are charged
    cap             kWh per step; steps, batch: of DP-SGD (Poisson batches of windows); clip: of a window's gradient
    plan            the net's shape, its base and its rate
    checkpoint      folder: a training that stopped goes on there
    Guarantee: a home's k windows are drawn by coins of their own; the noise is the least (to 1 %) at which taking all of
    them out costs epsilon / 2 at delta / (1 + e^(epsilon / 2)) by PLD, and replacing them epsilon at delta (removal, then
    addition). The number of windows of every home is public.
    """

    epsilon: float
    delta: float
    cap: float
    steps: int = 200
    batch: int = 64
    clip: float = 0.1
    plan: NetPlan = field(default=NetPlan())
    noise: str = "simulation"
    seed: int = 0
    checkpoint: str | None = None
    progress: Progress | None = None

    name = "net"
    keeps_all = True       # windows without readings count too: their number would tell something

    def __call__(self, windows: Windows) -> Model:
        """Train; windows.homes names the household of each."""
        plan, batch = self.plan, min(self.batch, len(windows))
        homes = windows.windows_per_home
        sigma = household_sigma(self.epsilon, self.delta, batch / len(windows), self.steps, homes)
        dp = DPSGD(clip=self.clip, sigma=sigma, delta=one_sided(self.epsilon, self.delta)[1], noise=self.noise,
                   household_windows=homes)
        shape = DiTConfig(windows.length, 1, plan.patch, plan.width, plan.depth, plan.heads)
        return train(windows, None, Objective("x0"), dp, steps=self.steps, seed=self.seed, batch=batch, rate=plan.rate,
                     net=shape, base=base_of(plan, windows.steps_per_day), residual_scale=plan.residual_scale,
                     limits=(0.0, self.cap), checkpoint=self.checkpoint, checkpoint_every=50 if self.checkpoint else 0,
                     progress=self.progress)

    def load(self, place: str | Path, slots: int) -> Model:
        """The model that a training saved."""
        return Model.load(place, base_of(self.plan, slots))


def one_sided(epsilon: float, delta: float) -> tuple[float, float]:
    """(epsilon', delta') under add/remove of a unit that give (epsilon, delta) under replace-one of it.

    >>> epsilon, delta = accounting.to_replace_one(*one_sided(2.0, 1e-5))
    >>> epsilon, round(delta * 1e5, 9)
    (2.0, 1.0)
    """
    return epsilon / 2, delta / (1 + math.exp(epsilon / 2))


def household_sigma(epsilon: float, delta: float, q: float, steps: int, windows: int) -> float:
    """The least noise multiplier, to 1 %, at which a household of that many windows keeps (epsilon, delta), replace-one."""
    wanted, at = one_sided(epsilon, delta)

    def holds(sigma: float) -> bool:
        return accounting.epsilon(sigma, q, steps, at, windows=windows) <= wanted

    high = 1.0
    while not holds(high):
        high *= 2
        if high > LARGEST:
            raise ValueError(f"no noise gives epsilon = {epsilon:g} per household of {windows} windows in {steps} steps")
    while high > SMALLEST and holds(high / 2):
        high /= 2
    low = high / 2
    while high / low > PRECISION:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
