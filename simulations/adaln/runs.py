"""Train and measure the cells of the study; a cell that is kept in the run's folder is not run again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from fedenergy import imputation as imp
from fedenergy.ids import digest, stream
from fedenergy.imputation import diagnose
from fedenergy.imputation.baselines import FROM_TRAINING, WINDOW_ONLY
from fedenergy.imputation.limits import AdaLNBound
from fedenergy.imputation.model import Model
from fedenergy.privacy import accounting
from fedenergy.progress import Progress, SilentProgress
from fedenergy.studies import Place, kept
from simulations.adaln import data
from simulations.adaln.measure import COVER, MAGNITUDES, REACH, bounds, device_of, fill, magnitudes, scores
from simulations.adaln.settings import NONE, PLAIN, PUBLISHED, SCHEDULE, TRUE, Fit, bound_of, objective_of

if TYPE_CHECKING:
    from simulations.adaln_zero import AdaLNZero



@dataclass
class Results:
    """rows: errors by task; gradients: norms by part (lab only); times: norms by diffusion time (lab only); costs: what
    each training costs; sizes: magnitudes on the conditioning path and the bound; reference: what limits are a share of."""

    reference: AdaLNBound
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)
    gradients: pd.DataFrame = field(default_factory=pd.DataFrame)
    times: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    sizes: pd.DataFrame = field(default_factory=pd.DataFrame)
    unrun: list[tuple[str, str]] = field(default_factory=list)
    sets: dict[str, str] = field(default_factory=dict)


def fits(study: AdaLNZero, dataset: str) -> list[Fit]:
    """Every training on a set; the first seed first."""
    noises = [(PUBLISHED, s) for s in study.sigmas] + [(TRUE, e) for e in study.epsilons]
    noises += [(PLAIN, 0.0)] if study.non_private else []
    return [Fit(dataset, limits, objective, regime, asked, clip, seed)
            for seed in study.seeds for regime, asked in noises for objective in study.objectives
            for clip in (study.clips if regime != PLAIN else study.clips[:1]) for limits in study.limits]


def shape_of(study: AdaLNZero, channels: int, bound: AdaLNBound | None = None) -> imp.DiTConfig:
    """The network: one architecture for all cells, which differ in its limits."""
    return imp.DiTConfig(study.length, channels, study.patch, study.width, study.depth, study.heads, pooled=True,
                         bound=bound)


def privacy(study: AdaLNZero, fit: Fit) -> imp.DPSGD | None:
    """DP-SGD of a cell, or None."""
    if fit.regime == PLAIN:
        return None
    asked = {"sigma": fit.asked} if fit.regime == PUBLISHED else {"epsilon": fit.asked}
    return imp.DPSGD(fit.clip, delta=study.delta, **asked)


def trained(study: AdaLNZero, fit: Fit, one: data.Set, bound: AdaLNBound | None, state: Path, progress: Progress
            ) -> tuple[Model, diagnose.Norms | None]:
    """The model of a cell, in its own units, and the norms of its last 20 % of steps."""
    units = one.units(data.public(study, fit.regime))
    windows = data.scaled(one.train, *units)
    named = dict(steps=study.steps, seed=fit.seed, batch=min(study.batch, len(windows)), rate=study.rate,
                 weight_decay=study.weight_decay, warmup=study.warmup, ema=study.ema,
                 net=shape_of(study, windows.channels, bound), masks=data.training_masks(study), schedule=SCHEDULE,
                 diffusion_steps=study.diffusion_steps,
                 limits=(0.0, 1.0), checkpoint=state if study.checkpoint_every else None,
                 checkpoint_every=study.checkpoint_every, device=device_of(study.device), progress=progress)
    dp, objective = privacy(study, fit), objective_of(fit.objective)
    if dp is None:
        return imp.train(windows, None, objective, None, **named), None
    watch = diagnose.Watch(0.2, state / "norms.bin" if study.checkpoint_every else None)
    return diagnose.train_watched(watch, windows, None, objective, dp, **named), watch.norms


# ---- cells

def reference(study: AdaLNZero) -> dict[str, float]:
    """Magnitudes that an AdaLN without limits reaches, trained without privacy on a *simulated* home (public): TYPICAL
    quantiles of ||c||, |gamma|, |beta|, |alpha|."""
    one = data.load(study, "simulated", "")
    fit = Fit("simulated", NONE, study.objectives[0], PLAIN, 0.0, study.clips[0], study.seeds[0])
    model, _ = trained(replace(study, checkpoint_every=0), fit, one, None, Path(), SilentProgress())
    found = magnitudes(study, model, data.scaled(one.train, *one.units(data.public(study, PLAIN))))
    return {name: max(found[name][1], 1e-3) for name in MAGNITUDES}


def cell(study: AdaLNZero, fit: Fit, one: data.Set, limits: AdaLNBound, state: Path, progress: Progress) -> dict[str, Any]:
    """Train, fill both tasks, diagnose, account."""
    bound = bound_of(fit.limits, limits)
    model, norms = trained(study, fit, one, bound, state, progress)
    centre, unit = one.units(data.public(study, fit.regime))
    rows = []
    for task, observed in data.test_masks(study, one.test).items():
        filled = fill(study, model, data.scaled(one.test, centre, unit), observed & one.test.known, fit.seed,
                      REACH[data.public(study, fit.regime)])
        low, high = (filled.quantiles[q] * unit + centre for q in COVER)
        rows.append({"task": task, **scores(one, filled.median * unit + centre, observed, low, high)})
    model.net.cpu()                # sampling moved it
    whole = np.flatnonzero(one.train.known.all((1, 2)))
    windows = data.scaled(one.train.take(np.sort(stream(0, "probes").permutation(whole)[:study.probes])), centre, unit)
    found = diagnose.probe(model, windows, 20, clip=fit.clip, masks=data.training_masks(study))
    said = model.privacy
    result = {"rows": rows, "norms": {} if norms is None else norms.table(), "times": diagnose.by_time(found),
              "sizes": {name: values[1] for name, values in magnitudes(study, model, windows).items()},
              "bound": {**bounds(study, model, windows, objective_of(fit.objective)),
                        "largest": float(found.conditioning.max())},
              "notes": list(said.notes), "noise": said.noise}
    if norms is not None:
        parts = model.history.parts
        result["privacy"] = {"epsilon": said.epsilon, "epsilon_rdp": said.epsilon_rdp, "replace_one": said.replace_one,
                             "hour": accounting.epsilon_of(parts, study.delta, windows=overlap(study)),
                             "sigma": said.sigma, "q": said.q, "steps": said.steps, "empty": said.empty_batches,
                             "n": len(one.train)}
    shutil.rmtree(state, ignore_errors=True)
    return result


def overlap(study: AdaLNZero) -> int:
    """In how many windows one reading can be."""
    return -(-study.length // study.stride)


def free(study: AdaLNZero, one: data.Set) -> list[dict[str, Any]]:
    """What costs nothing, and what reads training statistics without protection (the train mean: R2 about 0)."""
    rows = []
    for task, observed in data.test_masks(study, one.test).items():
        seen = observed & one.test.known
        for name in (*(n for n in WINDOW_ONLY if n != "kalman"), *FROM_TRAINING):
            filled = imp.fill_with(name, one.test, seen, one.train)
            rows.append({"task": task, "limits": name, "regime": "unprotected" if name in FROM_TRAINING else "free",
                         **scores(one, filled, observed)})
    return rows


class _Steps(SilentProgress):
    """Passes the steps of one training on to the progress of the whole study."""

    def __init__(self, outer: Progress):
        self.outer, self.done = outer, 0

    def advance(self, n: int = 1, **_: Any) -> None:
        self.done += n
        self.outer.advance(n)


def play(study: AdaLNZero, place: Place, progress: Progress) -> Results:
    """Every cell that is not kept yet; then everything that is kept."""
    if study.threads:
        torch.set_num_threads(study.threads)
    folder = place.folder(study)
    found = Results(reference_of(study, lambda: kept(folder, {"reference": 1}, lambda: reference(study))))
    rows, gradients, times, costs, sizes = [], [], [], [], []
    progress.start(study.steps * sum(len(fits(study, dataset)) for dataset in study.datasets), study.name)
    for dataset in study.datasets:
        try:
            one = data.load(study, dataset, place.data)
        except FileNotFoundError:
            found.unrun.append((dataset, "not run: data absent"))
            progress.advance(study.steps * len(fits(study, dataset)))
            continue
        found.sets[dataset] = one.note
        base = {"dataset": dataset, "objective": "none", "asked": 0.0, "clip": math.nan, "seed": study.seeds[0]}
        rows += [base | row for row in kept(folder, {"free": dataset}, lambda one=one: free(study, one))]
        for fit in fits(study, dataset):
            label = asdict(fit)
            state = folder / "state" / digest(b"fe.adaln.1", label, 8).hex()
            steps = _Steps(progress)
            result = kept(folder, {"fit": label}, lambda fit=fit, one=one, state=state, steps=steps: cell(
                study, fit, one, found.reference, state, steps))
            rows += [label | {"epsilon": result.get("privacy", {}).get("epsilon")} | row for row in result["rows"]]
            gradients += [label | {"part": part} | row for part, row in result["norms"].items()]
            times += [label | row for row in result["times"]]
            sizes.append(label | result["sizes"] | result["bound"])
            if "privacy" in result:
                costs.append(label | result["privacy"] | {"notes": result["notes"], "noise": result["noise"]})
            progress.advance(study.steps - steps.done)
    progress.close()
    shutil.rmtree(folder / "state", ignore_errors=True)
    for name, body in (("rows", rows), ("gradients", gradients), ("times", times), ("costs", costs), ("sizes", sizes)):
        setattr(found, name, pd.DataFrame(body))
    return found


def reference_of(study: AdaLNZero, compute: Callable[[], dict[str, float]]) -> AdaLNBound:
    """The study's own reference magnitudes, or those computed."""
    return AdaLNBound(*study.reference) if study.reference else AdaLNBound(**compute())
