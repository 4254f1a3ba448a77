"""Train and score the cells of a study. A cell is one training and everything measured with it.

Results of cells are kept in the run's folder. Trained models are kept beside the runs, in objectives-models, by everything
that determines them: a model trained for one table serves the others.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from fedenergy import imputation as imp
from fedenergy.ids import digest
from fedenergy.imputation import diagnose, dp_gp
from fedenergy.imputation.baselines import FROM_TRAINING, WINDOW_ONLY
from fedenergy.imputation.learned import LearnedConfig, Shape, periods_within
from fedenergy.privacy import accounting
from fedenergy.progress import Progress, SilentProgress
from fedenergy.studies import Place, kept, write_text
from simulations.objectives import data, paper
from simulations.objectives.settings import AS_PUBLISHED, NO_PRIVACY, TRUE_EPSILON, TUNED, Fit, Method, method, sampler

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

STORE = "objectives-models"
COLUMNS = ("dataset", "pattern", "rate", "method", "regime", "asked", "sampler", "seed", "mse", "mae", "rmse", "mse_mean")
PROBES = 64              # windows of the gradient diagnostics


class Late(Exception):
    """A cell was not begun: the hours were spent."""


@dataclass
class Results:
    """rows: COLUMNS; costs, norms, attenuations: one record or more per fit; unrun: (cells, why); sets: what each is."""

    rows: pd.DataFrame
    costs: pd.DataFrame
    norms: pd.DataFrame
    attenuations: pd.DataFrame
    unrun: list[tuple[str, str]] = field(default_factory=list)
    sets: dict[str, str] = field(default_factory=dict)


def fits(study: Objectives, dataset: str) -> list[Fit]:
    """Every training on a data set; first seeds first, so that a run that is cut short has every method."""
    found = []
    for seed in study.seeds:
        for regime in study.regimes:
            asked = {AS_PUBLISHED: (paper.EPSILON,), TRUE_EPSILON: study.epsilons, NO_PRIVACY: (None,)}[regime]
            found += [Fit(dataset, name, regime, epsilon, seed) for epsilon in asked for name in study.methods
                      if not (regime == NO_PRIVACY and name == TUNED)]
    return found


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
            clip: float | None = None, rate: float | None = None) -> tuple[imp.Model, dict[str, Any]]:
    """The model of a fit, from the store or trained now (going on from where an interrupted training stood), and the
    norms of its last 20 % of steps."""
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
        return imp.Model.load(folder), json.loads((folder / "norms.json").read_text())
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
    return model, norms


def device_of(name: str) -> str:
    """"auto": a CUDA device where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def tuned(study: Objectives, fit: Fit, found: data.Set, store: Path) -> tuple[imp.Model, dict[str, Any], dict[str, Any]]:
    """(model with the lowest validation loss, norms, what was chosen) over the grid of C and learning rate."""
    tried = []
    for clip in study.tuning_clips:
        for rate in study.tuning_rates:
            model, norms = trained(study, fit, found, store, SilentProgress(), clip, rate)
            valid, at = model.log["valid"], model.log["valid_step"]
            best = int(np.argmin(valid)) if valid else 0
            tried.append((valid[best] if valid else math.inf, clip, rate, at[best] if at else model.history.steps,
                          model, norms))
    loss, clip, rate, step, model, norms = min(tried, key=lambda one: one[0])
    return model, norms, {"clip": clip, "rate": rate, "checkpoint": step, "valid": loss, "runs": len(tried)}


def cell(study: Objectives, fit: Fit, found: data.Set, store: Path, end: float = math.inf) -> dict[str, Any]:
    """Train, fill every condition with every sampler, and account. Late where the clock is past `end`."""
    if time.monotonic() > end:
        raise Late
    chosen: dict[str, Any] = {}
    if fit.method == TUNED:
        model, norms, chosen = tuned(study, fit, found, store)
    else:
        model, norms = trained(study, fit, found, store, SilentProgress())
    how, rows = method(fit.method), []
    said = model.privacy
    for (pattern, rate), observed in found.conditions.items():
        for name in study.samplers if how.diffuses else ("one pass",):
            clip_x0, start_t = sampler(name) if how.diffuses else (True, None)
            filled = imp.fill(model, found.records.test, observed, samples=study.samples, steps=study.ddim_steps,
                              clip_x0=clip_x0, start_t=start_t, seed=fit.seed, device=device_of(study.device))
            rows.append({"pattern": pattern, "rate": rate, "sampler": name,
                         **scores(filled.median, found.records.truth, observed),
                         "mse_mean": scores(filled.mean, found.records.truth, observed)["mse"]})
    parts = [accounting.Steps(p.sigma, p.q, p.steps * chosen.get("runs", 1)) for p in model.history.parts]
    cost = {"epsilon": said.epsilon, "epsilon_rdp": said.epsilon_rdp, "replace_one": said.replace_one}
    if chosen:
        cost = {"epsilon": accounting.epsilon_of(parts, study.delta),
                "epsilon_rdp": accounting.epsilon_of(parts, study.delta, method="rdp"),
                "replace_one": accounting.epsilon_of(parts, study.delta, relation="replace-one")}
    result = {"rows": rows, "norms": norms, "chosen": chosen, "notes": list(said.notes), "noise": said.noise,
              "privacy": {**cost, "sigma": said.sigma, "q": said.q, "clip": said.clip, "steps": said.steps,
                          "empty": said.empty_batches, "n": len(found.train)}}
    if study.attenuate and how.net == "dit" and how.name == paper.V:
        windows = found.train.take(slice(0, PROBES))
        result["attenuation"] = diagnose.attenuation(model, windows, 20, seed=data.SEED).table()
    return result


def scores(filled: np.ndarray, truth: np.ndarray, observed: np.ndarray) -> dict[str, float]:
    """MSE, MAE, RMSE where hidden and measured."""
    return imp.errors(filled, truth, observed)


def free(study: Objectives, found: data.Set) -> list[dict[str, Any]]:
    """The baselines that cost nothing, and those that read training statistics without protection."""
    rows = []
    for (pattern, rate), observed in found.conditions.items():
        for name in (*WINDOW_ONLY, *FROM_TRAINING):
            if name == "kalman" and not study.kalman:
                continue
            filled = imp.fill_with(name, found.records.test, observed, found.train)
            rows.append({"pattern": pattern, "rate": rate, "method": name,
                         "regime": "no privacy" if name in FROM_TRAINING else "free",
                         **scores(filled, found.records.truth, observed)})
    return rows


def closed_form(study: Objectives, found: data.Set, epsilon: float, seed: int) -> dict[str, Any]:
    """Rows of dp_gp, or why it does not apply."""
    reading, rows = found.records.reading, []
    if not reading.limits:
        return {"rows": [], "why": "dp_gp needs public limits, and none are known"}
    low, cap = reading.limits[0]
    try:
        gp = dp_gp.fit(found.train, epsilon, study.delta, low=low, cap=cap, seed=seed,
                       transform="none" if low < 0 else "sqrt")
    except ValueError as error:
        return {"rows": [], "why": f"dp_gp does not apply: {error}"}
    for (pattern, rate), observed in found.conditions.items():
        mean, median = gp.points(found.records.test.values, observed, found.records.test.time_of_day)
        rows.append({"pattern": pattern, "rate": rate, **scores(median, found.records.truth, observed),
                     "mse_mean": scores(mean, found.records.truth, observed)["mse"]})
    return {"rows": rows, "why": "", "said": str(gp.privacy)}


def play(study: Objectives, place: Place, progress: Progress) -> Results:
    """Every cell that is not kept yet, until the hours are spent; then everything that is kept."""
    if study.threads:
        torch.set_num_threads(study.threads)
    folder, store = place.folder(study), Path(place.out) / STORE
    end = time.monotonic() + 3600 * study.hours if study.hours else math.inf
    rows: list[dict[str, Any]] = []
    costs, norms, attenuations = [], [], []
    found = Results(pd.DataFrame(), pd.DataFrame(), pd.DataFrame(), pd.DataFrame())
    total = sum(len(fits(study, dataset)) for dataset in study.datasets)
    progress.start(total, study.name)
    for dataset in study.datasets:
        try:
            one = data.load(study, dataset, place.data)
        except FileNotFoundError:
            found.unrun.append((dataset, "data absent"))
            progress.advance(len(fits(study, dataset)))
            continue
        found.sets[dataset] = f"{one.records.reading.note}; windows: {len(one.train):,} train, " \
                              f"{len(one.records.valid):,} validation, {len(one.records.test):,} test"
        found.unrun += [(f"{dataset}, {pattern} {rate:g}", why) for (pattern, rate), why in one.absent.items()]
        base = {"dataset": dataset, "seed": 0, "asked": None, "sampler": ""}
        if study.baselines:
            rows += [base | row for row in kept(folder, {"free": dataset}, lambda one=one: free(study, one))]
        if study.dp_gp and TRUE_EPSILON in study.regimes:
            rows += _closed_rows(study, folder, dataset, one, found)
        late: list[Fit] = []
        for fit in fits(study, dataset):
            progress.advance(0, label=f"{study.name}: {dataset}, {fit.method}, {fit.regime}, seed {fit.seed}")
            try:
                result = kept(folder, {"fit": asdict(fit)}, lambda fit=fit, one=one: cell(study, fit, one, store, end))
            except Late:
                late.append(fit)
                progress.advance()
                continue
            label = {"dataset": dataset, "method": fit.method, "regime": fit.regime, "asked": fit.epsilon, "seed": fit.seed}
            rows += [label | row for row in result["rows"]]
            costs.append(label | result["privacy"] | result["chosen"]
                         | {"notes": result["notes"], "noise": result["noise"], "home_windows": one.home_windows})
            if result["norms"]:
                norms.append(label | result["norms"])
            attenuations += [label | row for row in result.get("attenuation", ())]
            progress.advance()
        if late:
            names = ", ".join(dict.fromkeys(f"{fit.method} {fit.regime}" for fit in late))
            found.unrun.append((f"{dataset}, {len(late)} of {len(fits(study, dataset))} trainings ({names})",
                                f"the {study.hours:g} hours were spent: `fedenergy resume` goes on"))
    progress.close()
    found.rows = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"asked": float})
    found.costs, found.norms, found.attenuations = pd.DataFrame(costs), pd.DataFrame(norms), pd.DataFrame(attenuations)
    return found


def _closed_rows(study: Objectives, folder: Path, dataset: str, one: data.Set, found: Results) -> list[dict[str, Any]]:
    rows = []
    for epsilon in study.epsilons:
        for seed in study.seeds:
            result = kept(folder, {"dp_gp": [dataset, epsilon, seed]},
                          lambda e=epsilon, s=seed: closed_form(study, one, e, s))
            if result["why"]:
                found.unrun.append((f"{dataset}, dp_gp", result["why"]))
                return []
            rows += [{"dataset": dataset, "method": "dp_gp", "regime": TRUE_EPSILON, "asked": epsilon, "sampler": "",
                      "seed": seed} | row for row in result["rows"]]
    return rows
