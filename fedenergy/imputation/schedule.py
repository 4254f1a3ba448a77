"""Noise schedules: how much of the signal is left at each diffusion step."""

from __future__ import annotations

import functools
import math

import torch

NAMES = ("cosine", "linear")


@functools.lru_cache(maxsize=32)
def alpha_bar(name: str = "cosine", steps: int = 1000) -> torch.Tensor:
    """(steps,) float64: the kept share of the signal's variance, x_t = sqrt(a) x_0 + sqrt(1 - a) noise.

    name   "cosine" (s = 0.008, beta at most 0.999: Nichol and Dhariwal 2021) or "linear" (beta from 1e-4 to 0.02 at
           1,000 steps, scaled for other numbers: Ho et al. 2020)
    steps  >= 2
    Guarantee: strictly decreasing, within (0, 1). Do not write into it: it is shared.

    >>> round(float(alpha_bar("cosine")[-1] * 1e9), 1)
    2.4
    """
    if steps < 2:
        raise ValueError(f"a schedule of {steps} diffusion steps is too short: at least 2")
    if name == "cosine":
        at = torch.arange(steps + 1, dtype=torch.float64) / steps
        kept = torch.cos((at + 0.008) / 1.008 * math.pi / 2) ** 2
        beta = (1 - kept[1:] / kept[:-1]).clamp(max=0.999)
    elif name == "linear":
        beta = torch.linspace(1e-4, 0.02, steps, dtype=torch.float64) * (1000 / steps)
        beta = beta.clamp(max=0.999)
    else:
        raise ValueError(f"schedule = {name!r} is unknown (takes: {', '.join(NAMES)})")
    return torch.cumprod(1 - beta, 0)


def snr(a: torch.Tensor) -> torch.Tensor:
    """Signal-to-noise ratio of alpha_bar."""
    return a / (1 - a)


def ddim_times(steps: int, diffusion_steps: int = 1000, start_t: int | None = None) -> list[int]:
    """Evenly spaced times from start_t (default: the last) down to 0, each once.

    >>> ddim_times(4, 1000)
    [999, 666, 333, 0]
    >>> ddim_times(3, 1000, start_t=980)
    [980, 490, 0]
    """
    first = diffusion_steps - 1 if start_t is None else start_t
    if not 0 <= first < diffusion_steps:
        raise ValueError(f"start_t = {start_t} is not a diffusion step: take 0 to {diffusion_steps - 1}")
    if not 1 <= steps <= first + 1:
        raise ValueError(f"{steps} sampling steps do not fit between t = {first} and 0: take 1 to {first + 1}")
    if steps == 1:
        return [first]
    return [round(first * (steps - 1 - k) / (steps - 1)) for k in range(steps)]
