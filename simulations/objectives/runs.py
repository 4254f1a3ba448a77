"""Train and score the cells of a study. A cell is one training and everything measured with it.

Results of cells are kept in the run's folder. Trained models are kept beside the runs, in objectives-models, by everything
that determines them: a model trained for one table serves the others (`models`).
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from fedenergy import imputation as imp
from fedenergy.imputation import diagnose, dp_gp, series
from fedenergy.imputation.baselines import FROM_TRAINING, WINDOW_ONLY
from fedenergy.privacy import accounting
from fedenergy.progress import Progress, SilentProgress
from fedenergy.studies import Place, kept
from simulations.objectives import data, models, paper
from simulations.objectives.settings import AS_PUBLISHED, NO_PRIVACY, TRUE_EPSILON, TUNED, Fit, method

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

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


def cell(study: Objectives, fit: Fit, found: data.Set, store: Path, end: float = math.inf) -> dict[str, Any]:
    """Train, fill every condition with every sampler, and account. Late where the clock is past `end`."""
    if time.monotonic() > end:
        raise Late
    chosen: dict[str, Any] = {}
    if fit.method == TUNED:
        model, norms, kept_in, chosen = models.tuned(study, fit, found, store)
    else:
        model, norms, kept_in = models.trained(study, fit, found, store, SilentProgress())
    how, said = method(fit.method), model.privacy
    rows = [{"pattern": pattern, "rate": rate, "sampler": name,
             **models.filled(study, fit, found, model, kept_in, (pattern, rate), name)}
            for pattern, rate in found.conditions
            for name in (study.samplers if how.diffuses else (models.ONE_PASS,))]
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
                         **imp.errors(filled, found.records.truth, observed)})
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
        rows.append({"pattern": pattern, "rate": rate, **imp.errors(median, found.records.truth, observed),
                     "mse_mean": imp.errors(mean, found.records.truth, observed)["mse"]})
    return {"rows": rows, "why": "", "said": str(gp.privacy)}


def play(study: Objectives, place: Place, progress: Progress) -> Results:
    """Every cell that is not kept yet, until the hours are spent; then everything that is kept."""
    if study.threads:
        torch.set_num_threads(study.threads)
    folder, store = place.folder(study), Path(place.out) / models.STORE
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
    found.unrun += [(dataset, "left out of the quick form" if series.present(dataset, place.data) else "data absent")
                    for dataset in study.left_out]
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
