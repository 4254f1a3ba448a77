"""Trained models and what they fill in, kept beside the runs for every table that needs them.

A model lies in a folder named by a digest of all that determines it: windows, network, objective, masks, noise, steps, seed.
So do its errors: by test windows, mask, sampler, samples. Two tables that ask for the same training share it.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedenergy import imputation as imp
from fedenergy.ids import digest
from fedenergy.imputation import diagnose
from fedenergy.imputation.learned import LearnedConfig, Shape, periods_within
from fedenergy.privacy import accounting
from fedenergy.progress import Progress, SilentProgress
from fedenergy.studies import kept, write_text
from simulations.objectives import data
from simulations.objectives.settings import (
    AS_PUBLISHED,
    NO_PRIVACY,
    TRUE_EPSILON,
    TUNED,
    Condition,
    Fit,
    Method,
    method,
    sampler,
)

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

STORE = "objectives-models"
ONE_PASS = "one pass"


def shape(study: Objectives, how: Method, windows: imp.Windows) -> Shape:
    """The network of a method for these windows."""
    if how.net == "dit":
        return imp.DiTConfig(windows.length, windows.channels, study.patch, study.width, study.depth, study.heads)
    periods = periods_within(windows.length, windows.steps_per_day) if how.net == "timesnet" else ()
    return LearnedConfig(how.net, windows.length, windows.channels, study.learned_width, study.learned_depth,
                         periods=periods)


def privacy(study: Objectives, fit: Fit, q: float) -> tuple[imp.DPSGD | None, int]:
    """(DP-SGD or None, steps) of a regime; the grid of a tuned method shares one budget."""
    runs = len(study.tuning_clips) * len(study.tuning_rates) if fit.method == TUNED else 1
    if fit.regime == NO_PRIVACY:
        return None, study.steps
    if fit.regime == AS_PUBLISHED:
        return imp.DPSGD(study.clip, sigma=study.sigma, delta=study.delta), study.steps
    if study.calibrate == "steps":
        steps = most_steps(fit.epsilon, study.sigma, q, study.delta, study.steps * runs) // runs
        if steps < 1:
            raise ValueError(f"no step at sigma {study.sigma:g}, q {q:.3g} stays within epsilon {fit.epsilon:g}")
        return imp.DPSGD(study.clip, sigma=study.sigma, delta=study.delta), steps
    sigma = accounting.calibrate_sigma(fit.epsilon, study.delta, q, study.steps * runs)
    return imp.DPSGD(study.clip, sigma=sigma, delta=study.delta), study.steps


def most_steps(epsilon: float, sigma: float, q: float, delta: float, limit: int) -> int:
    """The most steps, up to a limit, that cost at most epsilon (PLD); 0 where one costs more.

    >>> most_steps(10.0, 1.5, 32 / 127, 1e-5, 100_000)
    104
    """
    low, high = 0, 1
    while high <= limit and accounting.epsilon(sigma, q, high, delta) <= epsilon:
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accounting.epsilon(sigma, q, middle, delta) <= epsilon else (low, middle)
    return low


def limits(study: Objectives, regime: str, found: data.Set) -> tuple | None:
    """Public limits of the scale, or None: min and max of the training windows (the source's)."""
    public = study.scale == "public" or (study.scale == "by regime" and regime == TRUE_EPSILON)
    return found.records.reading.limits if public else None


def trained(study: Objectives, fit: Fit, found: data.Set, store: Path, progress: Progress,
            clip: float | None = None, rate: float | None = None) -> tuple[imp.Model, dict[str, Any], Path]:
    """The model of a fit, from the store or trained now (going on from where an interrupted training stood), the norms of
    its last 20 % of steps, and its folder."""
    how = method(fit.method, study.loss_on, study.reduction)
    n, batch = len(found.train), data.batch_of(study, fit.dataset)
    dp, steps = privacy(study, fit, min(1.0, batch / n))
    dp = dp if dp is None or clip is None else replace(dp, clip=clip)
    every = min(study.valid_every, steps) if study.select == "best" else 0
    named = {"steps": steps, "seed": fit.seed, "batch": batch, "rate": rate or study.rate,
             "net": shape(study, how, found.train), "masks": data.training_masks(study.training_masks),
             "schedule": study.schedule, "diffusion_steps": study.diffusion_steps, "base": how.base,
             "limits": limits(study, fit.regime, found), "select": study.select, "valid_every": every}
    key = {**{k: asdict(v) if hasattr(v, "__dataclass_fields__") else v for k, v in named.items()}, "windows": found.mark,
           "objective": None if how.objective is None else asdict(how.objective), "dp": None if dp is None else asdict(dp),
           "valid": len(found.records.valid), "format": 1}
    folder = store / digest(b"fe.objectives.1", json.dumps(key, sort_keys=True, default=str), 8).hex()
    if (folder / "model.json").exists() and (folder / "norms.json").exists():
        return imp.Model.load(folder), json.loads((folder / "norms.json").read_text()), folder
    state = folder / "training"
    arguments = (found.train, found.records.valid, how.objective, dp)
    named |= {"checkpoint": state, "checkpoint_every": study.checkpoint_every, "device": device_of(study.device),
              "progress": progress}
    norms: dict[str, Any] = {}
    if dp is None:
        model = imp.train(*arguments, **named)
    else:
        watch = diagnose.Watch(0.2, state / "norms.bin")
        model = diagnose.train_watched(watch, *arguments, **named)
        norms = diagnose.summary(watch.norms.total, dp.clip)
    model.save(folder, lab=True)
    write_text(folder / "norms.json", json.dumps(norms))
    shutil.rmtree(state, ignore_errors=True)
    return model, norms, folder


def device_of(name: str) -> str:
    """"auto": a CUDA device where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def tuned(study: Objectives, fit: Fit, found: data.Set, store: Path
          ) -> tuple[imp.Model, dict[str, Any], Path, dict[str, Any]]:
    """(model with the lowest validation loss, norms, folder, what was chosen) over the grid of C and learning rate."""
    tried = []
    for clip in study.tuning_clips:
        for rate in study.tuning_rates:
            one = model, _, _ = trained(study, fit, found, store, SilentProgress(), clip, rate)
            valid, at = model.log["valid"], model.log["valid_step"]
            best = int(np.argmin(valid)) if valid else 0
            tried.append((valid[best] if valid else math.inf, clip, rate, at[best] if at else model.history.steps, one))
    loss, clip, rate, step, one = min(tried, key=lambda each: each[0])
    return *one, {"clip": clip, "rate": rate, "checkpoint": step, "valid": loss, "runs": len(tried)}


def filled(study: Objectives, fit: Fit, found: data.Set, model: imp.Model, folder: Path, condition: Condition,
           name: str) -> dict[str, Any]:
    """Errors of a model under a condition and a sampler, kept with the model: other tables ask for the same."""
    clip_x0, start_t = (True, None) if name == ONE_PASS else sampler(name)
    how = {"samples": study.samples, "steps": study.ddim_steps, "clip_x0": clip_x0, "start_t": start_t, "seed": fit.seed}

    def compute() -> dict[str, Any]:
        got = imp.fill(model, found.records.test, found.conditions[condition], device=device_of(study.device), **how)
        truth, observed = found.records.truth, found.conditions[condition]
        return {**imp.errors(got.median, truth, observed), "mse_mean": imp.errors(got.mean, truth, observed)["mse"]}
    return kept(folder, {"fill": how, "test": found.tested[condition], "format": 1}, compute)
