"""Filling gaps with a trained model: DDIM samples, their median, mean and quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedenergy.ids import stream
from fedenergy.imputation import task
from fedenergy.imputation.learned import regresses
from fedenergy.imputation.masks import Masks
from fedenergy.imputation.model import Model
from fedenergy.imputation.objective import noise_of
from fedenergy.imputation.schedule import alpha_bar, ddim_times
from fedenergy.imputation.task import Windows
from fedenergy.progress import Progress, SilentProgress

ROWS = 256                     # windows x samples that go through the network at once


@dataclass(frozen=True, eq=False)
class Filled:
    """Filled windows in original units, (n, T, D) each; observed values are kept everywhere.

    median, mean  of the samples, per position; quantiles  {level: values}, the interval around what was filled
    observed      what the model saw; truth: the windows as given (NaN where unknown)
    """

    median: np.ndarray
    mean: np.ndarray
    quantiles: dict[float, np.ndarray]
    observed: np.ndarray
    truth: np.ndarray

    def errors(self, point: str = "median") -> dict[str, float]:
        """MSE, MAE, RMSE of the "median" or "mean" at masked positions whose truth is known."""
        if point not in ("median", "mean"):
            raise ValueError(f"point = {point!r} is unknown (takes: median, mean)")
        return task.errors(getattr(self, point), self.truth, self.observed)


def fill(model: Model, test: Windows | np.ndarray, mask: Masks | np.ndarray | None = None, *, samples: int = 30,
         steps: int = 50, clip_x0: bool = True, start_t: int | None = None, seed: int = 0,
         levels: Sequence[float] = (0.05, 0.95), progress: Progress | None = None, device: str = "cpu") -> Filled:
    """Fill what is missing, or what the mask hides.

    test     windows in original units, NaN where missing
    mask     Masks (drawn from its own seed), booleans (n, T, D) with True = observed, or None: what is NaN is filled
    samples  DDIM samples per window; steps: sampling steps
    clip_x0  clip x0 to [0, 1] units at every step; False is the sources' literal sampler, which clips at the end only
    start_t  first time step (default the last); lower ones spare an eps-network the division by sqrt(alpha_bar) ~ 5e-5
    A regressor (net "patchtst", "itransformer", "timesnet") is run once: its filling is the median, mean and every quantile.
    Window i's samples depend on (seed, i) and its own observed values only. These values are not protected: DP-SGD
    protects the training windows, not the query.
    """
    if samples < 1:
        raise ValueError(f"samples = {samples} is not at least 1")
    windows, progress = Windows.of(test), progress or SilentProgress()
    if isinstance(mask, Masks):
        observed = mask.observed(len(windows), windows.length, windows.channels) & windows.known
    else:
        observed = windows.known if mask is None else np.asarray(mask, bool).reshape(windows.values.shape) & windows.known
    times = ddim_times(steps, model.setup.diffusion_steps, start_t)
    if regresses(model.setup.net):
        samples, times = 1, times[-1:]
    levels = tuple(sorted({0.5, *levels}))
    points, mean = np.empty((len(levels), *windows.values.shape)), np.empty(windows.values.shape)
    net, at_once = model.net.to(device), max(1, ROWS // samples)
    progress.start(len(windows), "filling")
    for low in range(0, len(windows), at_once):
        rows = range(low, min(low + at_once, len(windows)))
        drawn = _samples(model, net, windows.take(rows), observed[low:rows.stop], rows, samples, times, clip_x0, seed)
        drawn = model.setup.scale.original(drawn)
        points[:, low:rows.stop], mean[low:rows.stop] = np.quantile(drawn, levels, axis=1), drawn.mean(1)
        progress.advance(len(rows))
    progress.close()
    points, mean = np.where(observed, windows.values, points), np.where(observed, windows.values, mean)
    quantiles = dict(zip(levels, points))
    return Filled(quantiles[0.5], mean, quantiles, observed, windows.values)


@torch.no_grad()
def _samples(model: Model, net: torch.nn.Module, windows: Windows, observed: np.ndarray, rows: range, samples: int,
             times: list[int], clip_x0: bool, seed: int) -> np.ndarray:
    """(n, samples, T, D) in [0, 1] units."""
    shape = (samples, windows.length, windows.channels)
    device = next(net.parameters()).device
    noise = np.stack([stream(seed, "ddim", "", f"window-{i}").standard_normal(shape, np.float32) for i in rows])
    inputs = model.prepare(windows, observed).to(device, samples)
    base, unit = inputs.base, inputs.unit
    schedule = alpha_bar(model.setup.schedule, model.setup.diffusion_steps).to(device)
    x, x0 = torch.from_numpy(noise).flatten(0, 1).to(device), None
    for k, t in enumerate(times):
        a = schedule[t].float()
        out = inputs.run(net, x, torch.full((len(x),), t, device=device))
        x0, eps = model.setup.objective.split(out, x, a)
        if clip_x0:
            x0 = torch.clamp(x0, -base / unit, (1 - base) / unit)
            eps = noise_of(x0, x, a)
        if k + 1 < len(times):
            after = schedule[times[k + 1]].float()
            x = after.sqrt() * x0 + (1 - after).sqrt() * eps
    result = (base + unit * x0).clamp(0.0, 1.0)
    return result.reshape(len(windows), *shape).double().cpu().numpy()
