"""The net of a federated imputer: its weights as one vector, and what a home makes of them in one round."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.ids import stream
from fedenergy.imputation.base import Base, base_from
from fedenergy.imputation.dit import DiT, DiTConfig
from fedenergy.imputation.model import Model, Setup
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.packaged import Longer, simulated
from fedenergy.imputation.task import Scale, Windows
from fedenergy.imputation.training import train
from fedenergy.privacy import accounting
from fedenergy.privacy.accounting import Statement

if TYPE_CHECKING:
    from fedenergy.imputation.federated import NetPlan


def size(plan: NetPlan, length: int, slots: int, cap: float) -> int:
    """How many weights are trained."""
    return sum(p.numel() for _, p in _trained(_start(plan, length, slots, cap).net, plan))


def first_weights(plan: NetPlan, length: int, slots: int, cap: float) -> np.ndarray:
    """(d,) float64: the weights that are trained, before the first round."""
    return flat(_start(plan, length, slots, cap).net, plan)


def flat(net: nn.Module, plan: NetPlan) -> np.ndarray:
    """(d,) the trained weights of a net, in the order of its parameters."""
    return np.concatenate([p.detach().double().numpy().ravel() for _, p in _trained(net, plan)])


def with_weights(plan: NetPlan, weights: np.ndarray, length: int, slots: int, cap: float,
                 privacy: Statement | None = None) -> Model:
    """The model of a vector of weights; the others are the first ones. ValueError for another number of weights."""
    start = _start(plan, length, slots, cap)
    net = DiT(start.setup.net)
    net.load_state_dict(start.net.state_dict())
    if weights.shape != (size(plan, length, slots, cap),):
        raise ValueError(f"{weights.shape} weights for a net of {size(plan, length, slots, cap)}")
    at = 0
    with torch.no_grad():
        for _, p in _trained(net, plan):
            p.copy_(torch.from_numpy(weights[at:at + p.numel()].astype(np.float32)).view_as(p))
            at += p.numel()
    return Model(net.eval(), start.setup, start.base, privacy or start.privacy, accounting.History(), {})


def update(plan: NetPlan, windows: Windows, weights: np.ndarray, cap: float, household: str, query_id: str) -> np.ndarray:
    """(d,) what a few steps on a home's windows change in the weights; not clipped, no noise."""
    model = with_weights(plan, weights, windows.length, windows.steps_per_day, cap)
    seed = int(stream(plan.seed, "local steps", household, query_id).integers(2**31))
    after = train(windows, None, Objective("x0"), None, steps=plan.local_steps, seed=seed, rate=plan.rate,
                  batch=min(plan.batch, len(windows)), base=model.base, residual_scale=plan.residual_scale,
                  limits=(0.0, cap), start=model, train_only=plan.train_only)
    return flat(after.net, plan) - flat(model.net, plan)


def _trained(net: nn.Module, plan: NetPlan) -> list[tuple[str, nn.Parameter]]:
    words = [word.strip() for word in plan.train_only.split(",") if word.strip()]
    found = [(name, p) for name, p in net.named_parameters() if not words or any(word in name for word in words)]
    if not found:
        raise ValueError(f"net: train_only = {plan.train_only!r} matches no weight")
    return found


def base_of(plan: NetPlan, slots: int) -> Base:
    """The public filling that the net corrects."""
    return Longer(simulated(MINUTES_PER_DAY // slots)) if plan.base == "simulated" else base_from(plan.base)


@lru_cache(maxsize=8)
def _start(plan: NetPlan, length: int, slots: int, cap: float) -> Model:
    """The model before the first round: the same in every process."""
    base = base_of(plan, slots)
    shape = DiTConfig(length, 1, plan.patch, plan.width, plan.depth, plan.heads, extra=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(plan.seed, "init").integers(2**63)))
        net = DiT(shape)
    setup = Setup(shape, Objective("x0"), Scale.given((0.0, cap), 1), residual_scale=plan.residual_scale,
                  steps_per_day=slots)
    return Model(net.eval(), setup, base, accounting.state(accounting.History(), 0.0, 0.0), accounting.History(), {})
