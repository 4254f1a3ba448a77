"""What the study measures of a trained model: errors in z-scores, sizes on the conditioning path, the bound."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedenergy import imputation as imp
from fedenergy.ids import stream
from fedenergy.imputation.bound import conditioning_bound
from fedenergy.imputation.model import Model
from fedenergy.imputation.task import Scale
from simulations.adaln import data

if TYPE_CHECKING:
    from simulations.adaln_zero import AdaLNZero

REACH = {False: 6.0, True: 3.0}    # x0 is kept within so many units at every sampling step: deviations; public limits
COVER = (0.05, 0.95)
PROBED = 20                        # diffusion times of each probed window
CEILING = 1.2                  # times sqrt(T D): longer noise has a chance of 6e-20 at T D = 1,176 (Chernoff)
MAGNITUDES = ("c", "gamma", "beta", "alpha")
TYPICAL = {"c": 0.9, "gamma": 0.99, "beta": 0.99, "alpha": 0.99}     # a magnitude: what lies above is rare


def device_of(name: str) -> str:
    """"auto": a CUDA device where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


# ---- filling in z units, where the sampler works within [0, 1]

class _Centred(nn.Module):
    """The network behind the sampler's [0, 1] units: what it sees is put back into its own."""

    def __init__(self, net: nn.Module, reach: float):
        super().__init__()
        self.net, self.reach = net, reach

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor, extra: Tensor | None = None) -> Tensor:
        return self.net(x_t, t, self.reach * (2 * observed - 1) * mask, mask)


class _Centre:
    """A base at the middle of the sampler's units: 0 in the model's."""

    name, note = "centre", ""

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray) -> np.ndarray:
        return np.zeros_like(values)


def fill(study: AdaLNZero, model: Model, windows: imp.Windows, observed: np.ndarray, seed: int, reach: float) -> imp.Filled:
    """Samples of the model in its own units: x0 within +-reach at every step, diffused as it was trained."""
    span = Scale.given((-reach, reach), windows.channels)
    setup = replace(model.setup, scale=span, residual_scale=1 / (2 * reach))
    behind = replace(model, net=_Centred(model.net, reach), setup=setup, base=_Centre())
    return imp.fill(behind, windows, observed, samples=study.samples, steps=study.ddim_steps, seed=seed, levels=COVER,
                    device=device_of(study.device))


def scores(one: data.Set, filled: np.ndarray, observed: np.ndarray, low: np.ndarray | None = None,
           high: np.ndarray | None = None) -> dict[str, float]:
    """RMSE, MAE, MSE, R2 in z-scores of the training part, over all channels, where hidden and measured; and the share of
    truths within [low, high]. All arguments in original units."""
    z, truth = one.score_units(filled), one.score_units(one.test.values)
    found = imp.errors(z, truth, observed)
    where = ~observed & np.isfinite(truth)
    spread = float(np.mean((truth[where] - truth[where].mean())**2))
    found["r2"] = 1 - found["mse"] / spread if spread > 0 else math.nan
    if low is not None:
        found["coverage"] = float(((low <= one.test.values) & (one.test.values <= high))[where].mean())
    return found


# ---- what is measured on the conditioning path

@torch.no_grad()
def magnitudes(study: AdaLNZero, model: Model, windows: imp.Windows) -> dict[str, list[float]]:
    """Sizes on the conditioning path at random times: {"c": norms, "gamma" ...: coordinates of all layers}, each as its
    median, its TYPICAL quantile and its maximum; after the limits."""
    observed = data.training_masks(study).observed(len(windows), windows.length, windows.channels, stream(0, "sizes"))
    inputs, net = model.prepare(windows, observed), model.net
    t = torch.from_numpy(stream(0, "sizes", "", "t").integers(0, study.diffusion_steps, len(windows)))
    c = net.condition(t, torch.cat([inputs.values, inputs.mask], -1))
    found: dict[str, list[Tensor]] = {"gamma": [], "beta": [], "alpha": []}
    for layer in (*(block.modulation for block in net.blocks), net.modulation):
        parts = layer(nn.functional.silu(c)).split(net.config.width, -1)
        for k, part in enumerate(parts):
            name = ("gamma", "beta", "alpha")[k % 3] if len(parts) == 6 else ("gamma", "beta")[k]
            found[name].append(net.bound.limit(part, name).abs().flatten())
    values = {"c": c.norm(dim=-1).double(), **{name: torch.cat(parts).double() for name, parts in found.items()}}
    return {name: [float(np.quantile(x.numpy(), q)) for q in (0.5, TYPICAL[name], 1.0)]
            for name, x in values.items()}


@torch.no_grad()
def conditions_met(study: AdaLNZero, model: Model, windows: imp.Windows) -> dict[str, float]:
    """The assumptions of the bound as these windows meet them: least spread of a token, largest patch (lab only)."""
    spreads: list[float] = []
    hooks = [m.register_forward_pre_hook(lambda _, x: spreads.append(float(x[0].std(-1, correction=0).min())))
             for m in model.net.modules() if isinstance(m, nn.LayerNorm)]
    inputs = model.prepare(windows, data.training_masks(study).observed(len(windows), windows.length, windows.channels,
                                                                        stream(0, "sizes")))
    rng = stream(0, "sizes", "", "x")
    noise = torch.from_numpy(rng.standard_normal(inputs.values.shape, np.float32))
    t = torch.from_numpy(rng.integers(0, study.diffusion_steps, len(windows)))
    inputs.run(model.net, noise, t)
    for hook in hooks:
        hook.remove()
    patches = torch.cat([torch.from_numpy(np.nan_to_num(windows.values)), torch.ones_like(inputs.mask)], -1)
    patches = patches.reshape(len(windows), study.length // study.patch, -1)
    return {"spread": min(spreads), "patch_norm": float(patches.norm(dim=-1).max())}


def bounds(study: AdaLNZero, model: Model, windows: imp.Windows, objective: imp.Objective) -> dict[str, float]:
    """The bound on ||g_cond|| with no assumption on tokens, and with the spread that was met; infinite without limits.

    Holds for "eps" (the target is noise) and for records whose patches are no longer than the longest one met.
    """
    met = conditions_met(study, model, windows)
    target = CEILING * math.sqrt(study.length * windows.channels)
    if objective.target != "eps":
        target += float(np.sqrt(np.nansum(windows.values**2, axis=(1, 2)).max()))
    common = dict(counted=data.least_hidden(study, windows.channels), patch_norm=met["patch_norm"])
    return {"bound": conditioning_bound(model.net, target, **common).total,
            "bound_met": conditioning_bound(model.net, target, spread=0.9 * met["spread"], **common).total, **met}
