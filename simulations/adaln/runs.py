"""Train and measure the cells of the study; a cell that is kept, in the run's folder or by another study beside it (in
adaln-cells, by all that determines it), is not run again."""

from __future__ import annotations

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
from fedenergy.ids import digest, stream
from fedenergy.imputation import diagnose
from fedenergy.imputation.baselines import FROM_TRAINING, WINDOW_ONLY
from fedenergy.imputation.limits import AdaLNBound
from fedenergy.imputation.model import Model
from fedenergy.privacy import accounting
from fedenergy.progress import Progress, SilentProgress
from fedenergy.studies import Place, kept
from simulations.adaln import data
from simulations.adaln.measure import COVER, MAGNITUDES, PROBED, REACH, bounds, device_of, fill, magnitudes, scores
from simulations.adaln.settings import NONE, PLAIN, PUBLISHED, SCHEDULE, TRUE, Fit, bound_of, objective_of

if TYPE_CHECKING:
    from simulations.adaln_zero import AdaLNZero


STORE = "adaln-cells"
Noise = tuple[str, float, float, str]        # what a reference is measured for: regime, asked, clip, objective
# Fields of a study that no cell depends on: the lists that make its cells, and how it is run.
LISTS = ("name", "title", "datasets", "limits", "reference", "sigmas", "epsilons", "non_private", "clips", "objectives",
         "seeds", "checkpoint_every", "left_out", "hours", "small")


class Late(Exception):
    """A cell was not begun: the hours were spent."""


@dataclass
class Results:
    """rows: errors by task; gradients: norms by part (lab only); times: norms by diffusion time (lab only); costs: what
    each training costs; sizes: magnitudes on the conditioning path and the bound; reference: what limits are a share of, by
    (regime, asked, clip, objective)."""

    reference: dict[Noise, AdaLNBound]
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


def trained(study: AdaLNZero, fit: Fit, one: data.Set, bound: AdaLNBound | None, state: Path, progress: Progress,
            dp: imp.DPSGD | None) -> tuple[Model, diagnose.Norms | None]:
    """The model of a cell, in its own units, and the norms of its last 20 % of steps."""
    units = one.units(data.public(study, fit.regime))
    windows = data.scaled(one.train, *units)
    named = dict(steps=study.steps, seed=fit.seed, batch=min(study.batch, len(windows)), rate=study.rate,
                 weight_decay=study.weight_decay, warmup=study.warmup, ema=study.ema,
                 net=shape_of(study, windows.channels, bound), masks=data.training_masks(study), schedule=SCHEDULE,
                 diffusion_steps=study.diffusion_steps,
                 limits=(0.0, 1.0), checkpoint=state if study.checkpoint_every else None,
                 checkpoint_every=study.checkpoint_every, device=device_of(study.device), progress=progress)
    objective = objective_of(fit.objective)
    if dp is None:
        return imp.train(windows, None, objective, None, **named), None
    watch = diagnose.Watch(0.2, state / "norms.bin" if study.checkpoint_every else None)
    return diagnose.train_watched(watch, windows, None, objective, dp, **named), watch.norms


# ---- cells

def reference(study: AdaLNZero, fit: Fit, sigma: float) -> dict[str, float]:
    """Magnitudes that an AdaLN without limits reaches on a *simulated* home (public), trained as the cell is: the same
    noise, C, objective, steps. TYPICAL quantiles of ||c||, |gamma|, |beta|, |alpha|.

    Noise keeps modulation small: quantiles of a model trained without it would be limits that no noisy cell reaches.
    """
    one = data.load(study, "simulated", "")
    told = replace(fit, dataset="simulated", limits=NONE, seed=study.seeds[0])
    dp = None if fit.regime == PLAIN else imp.DPSGD(fit.clip, sigma=sigma, delta=study.delta)
    model, _ = trained(replace(study, checkpoint_every=0), told, one, None, Path(), SilentProgress(), dp)
    found = magnitudes(study, model, data.scaled(one.train, *one.units(data.public(study, fit.regime))))
    return {name: max(found[name][1], 1e-3) for name in MAGNITUDES}


def noise_of(fit: Fit) -> Noise:
    """What a cell's reference depends on."""
    return fit.regime, fit.asked, fit.clip, fit.objective


def cell(study: AdaLNZero, fit: Fit, one: data.Set, limits: AdaLNBound, state: Path, progress: Progress) -> dict[str, Any]:
    """Train, fill both tasks, diagnose, account."""
    bound = bound_of(fit.limits, limits)
    model, norms = trained(study, fit, one, bound, state, progress, privacy(study, fit))
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
    found = diagnose.probe(model, windows, PROBED, clip=fit.clip, masks=data.training_masks(study))
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
    store, found = Path(place.out) / STORE, Results({})
    end = time.monotonic() + 3600 * study.hours if study.hours else math.inf
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
        late: list[Fit] = []
        for fit in fits(study, dataset):
            label, steps = asdict(fit), _Steps(progress)
            try:
                result = kept(folder, {"fit": label}, lambda fit=fit, one=one, steps=steps: shared(
                    study, fit, one, folder, store, found.reference, steps, end))
            except Late:
                late.append(fit)
                progress.advance(study.steps)
                continue
            found.reference[noise_of(fit)] = AdaLNBound(**result["reference"])
            rows += [label | {"epsilon": result.get("privacy", {}).get("epsilon")} | row for row in result["rows"]]
            gradients += [label | {"part": part} | row for part, row in result["norms"].items()]
            times += [label | row for row in result["times"]]
            sizes.append(label | result["sizes"] | result["bound"])
            if "privacy" in result:
                costs.append(label | result["privacy"] | {"notes": result["notes"], "noise": result["noise"]})
            progress.advance(study.steps - steps.done)
        if late:
            found.unrun.append((f"{dataset}, {len(late)} of {len(fits(study, dataset))} trainings ("
                                + "; ".join(fit.words for fit in late[:4]) + (" ..." if len(late) > 4 else "") + ")",
                                f"not run: the {study.hours:g} hours were spent, `fedenergy resume` goes on"))
    found.unrun += [(dataset, data.why_left_out(dataset, place.data)) for dataset in study.left_out]
    progress.close()
    if not any(unrun.endswith("goes on") for _, unrun in found.unrun):
        shutil.rmtree(folder / "state", ignore_errors=True)
    for name, body in (("rows", rows), ("gradients", gradients), ("times", times), ("costs", costs), ("sizes", sizes)):
        setattr(found, name, pd.DataFrame(body))
    return found


def shared(study: AdaLNZero, fit: Fit, one: data.Set, folder: Path, store: Path, known: dict[Noise, AdaLNBound],
           progress: Progress, end: float) -> dict[str, Any]:
    """A cell from the store, or made now. Late where the clock is past `end`."""
    if time.monotonic() > end:
        raise Late
    limits = reference_for(study, fit, one, store, known)
    key = {**shared_key(study), "fit": asdict(fit), "windows": one.mark,
           "limits": None if fit.limits == NONE else asdict(limits)}
    state = folder / "state" / digest(b"fe.adaln.1", asdict(fit), 8).hex()
    return kept(store, key, lambda: cell(study, fit, one, limits, state, progress)) | {"reference": asdict(limits)}


def reference_for(study: AdaLNZero, fit: Fit, one: data.Set, store: Path, known: dict[Noise, AdaLNBound]) -> AdaLNBound:
    """The reference magnitudes of a cell's noise: the study's own, or measured once on the simulated home."""
    noise = noise_of(fit)
    if noise not in known:
        dp = privacy(study, fit)
        sigma = 0.0 if dp is None else dp.noise_multiplier(min(1.0, study.batch / len(one.train)), study.steps)
        key = {**shared_key(study), "noise": noise, "sigma": sigma, "seed": study.seeds[0]}
        known[noise] = (AdaLNBound(*study.reference) if study.reference else
                        AdaLNBound(**kept(store, key, lambda: reference(study, fit, sigma))))
    return known[noise]


def shared_key(study: AdaLNZero) -> dict[str, Any]:
    """What determines a cell beside its own fit: two studies that agree in this share their cells."""
    return {"format": 1, **{name: value for name, value in asdict(study).items() if name not in LISTS}}
