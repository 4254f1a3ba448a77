"""One setting through the boxes: fixed and negotiated budgets, Laplace and Gaussian noise, every epsilon and seed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedenergy import metrics
from fedenergy.config import Config, parse, thaw
from fedenergy.federation.study import run_study
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.trust import OPEN
from fedenergy.progress import Progress
from simulations.mechanisms.settings import DELTA, Setting, summaries

SAME, NEGOTIATED, WEIGHTED = "same ε", "negotiated ε", "negotiated ε, the source's form"
CENTRAL, UNBOUNDED, ONE, LOCAL_DP, ORACLE = "central", "central unbounded", "one noise", "local DP, one home", "oracle"
SAME_GAUSS, CENTRAL_GAUSS = "same ε, Gaussian", "central, Gaussian"
NAMES = {"ZonalSum": SAME, "LocalDP": LOCAL_DP, "CentralLaplace": CENTRAL, "CentralUnbounded": UNBOUNDED,
         "SecureSum": ONE, "NonPrivate": ORACLE, "ZonalGaussian": SAME_GAUSS, "CentralGaussian": CENTRAL_GAUSS}
ORDER = (ORACLE, ONE, CENTRAL, UNBOUNDED, SAME, NEGOTIATED, WEIGHTED, LOCAL_DP, CENTRAL_GAUSS, SAME_GAUSS)
SCORES = {"cosine": metrics.cosine, "spearman": metrics.spearman, "mae": metrics.mae, "top1": metrics.top1,
          "sign": metrics.sign_agreement}
GAUSSIANS = ({"use": "strategies.zonal_gaussian:ZonalGaussian"}, {"use": "strategies.central_gaussian:CentralGaussian"})


@dataclass(frozen=True)
class Vector:
    """What one mechanism released with one epsilon and seed, and the truth that it was noised from (inside view).

    truth    the sum of clipped summaries; total: of unclipped ones; of the one home for local DP
    granted  mean epsilon of the homes, from the ledger; epsilon: asked
    """

    mechanism: str
    epsilon: float
    seed: int
    released: np.ndarray
    truth: np.ndarray
    total: np.ndarray
    granted: float


@dataclass(frozen=True)
class Result:
    """One setting: names of the d coordinates, N, what was released, and how many summaries were clipped."""

    setting: Setting
    coordinates: tuple[str, ...]
    homes: int
    vectors: tuple[Vector, ...]
    clipped_share: float
    stamp: str
    seconds: float

    @property
    def truth(self) -> np.ndarray:
        """(d,) the zone's clipped sum under the l1 bound."""
        return next(vector.truth for vector in self.vectors if vector.mechanism == SAME)

    def of(self, mechanism: str, epsilon: float) -> list[Vector]:
        """A mechanism's vectors, by seed."""
        return sorted((v for v in self.vectors if v.mechanism == mechanism and v.epsilon == epsilon),
                      key=lambda v: v.seed)


def play(base: Config, settings: Sequence[Setting], folder: Path, progress: Progress) -> list[Result]:
    """Every setting, in [engine] workers processes at once (0: in this one). Each keeps its own runs and ledgers."""
    texts = [(base.document(), setting, str(folder / "runs")) for setting in settings]
    progress.start(len(settings), "settings")
    found: dict[str, Result] = {}
    try:
        if base.engine.workers == 0:
            for text in texts:
                found[text[1].key] = explore(*text)
                progress.advance()
        else:
            with ProcessPoolExecutor(min(base.engine.workers, len(settings)), mp_context=get_context("spawn")) as pool:
                waiting = [pool.submit(explore, *text) for text in texts]
                for done in as_completed(waiting):
                    found[done.result().setting.key] = done.result()
                    progress.advance()
    finally:
        progress.close()
    return [found[setting.key] for setting in settings]


@contextmanager
def _data(folder: str) -> Iterator[None]:
    """The folder of data sets where the populations look for it; a path in a config would change the run's name."""
    before = os.environ.get("FEDENERGY_DATA")
    if folder:
        os.environ["FEDENERGY_DATA"] = folder
    try:
        yield
    finally:
        if folder:
            os.environ.pop("FEDENERGY_DATA")
            os.environ |= {} if before is None else {"FEDENERGY_DATA": before}


def explore(document: Mapping[str, Any], setting: Setting, out: str) -> Result:
    """One setting from its runs."""
    with _data(document.get("data", "")):
        return _explore(document, setting, out)


def _explore(document: Mapping[str, Any], setting: Setting, out: str) -> Result:
    base = parse(document)
    count, trees = base.population.args.get("count", setting.count), base.task.args.get("trees", 100)
    own = {**document, "out": out, "engine": {**document["engine"], "workers": 0},
           "population": setting.population(count), "task": setting.task(trees)}
    closed = [one for one in document["strategy"] if not one["use"].endswith(":NonPrivate")]
    plain = [one for one in document["strategy"] if one not in closed]
    zonal = [one for one in closed if one["use"].endswith(":ZonalSum")]
    delta = {"query": {**document["query"], "delta": DELTA}, "task": setting.task(trees, setting.clip2)}
    runs = [(own | {"strategy": closed}, "fixed", {}),
            (own | {"strategy": zonal, "policy": {"use": "simulations.mechanisms.settings:OwnPrice"}}, "negotiated",
             {"ZonalSum": NEGOTIATED}),
            (own | {"strategy": zonal, "policy": {"use": "fedenergy:AttributionWeighted"},
                    "privacy": {**document["privacy"], "leaking": True}}, "leaking", {"ZonalSum": WEIGHTED}),
            (own | {"strategy": list(GAUSSIANS)} | delta, "gaussian", {})]
    if plain:  # neither epsilon nor seed changes the oracle
        runs.append((own | {"strategy": plain, "vary": {}, "seeds": document["seeds"][:1]}, "oracle", {}))
    vectors, seconds, clipped, stamp = [], 0.0, float("nan"), ""
    for tables, suffix, names in runs:
        path = run_study(parse(tables | {"name": f"{setting.key}-{suffix}"}))
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        seconds += summary["seconds"]
        rows = pd.read_csv(path / "metrics.csv")
        if suffix == "fixed":
            clipped, stamp = float(rows.loc[rows["metric"] == "clipped_share", "value"].iloc[0]), summary["stamp"]
        vectors += _vectors(summary["zones"], rows, NAMES | names)
    config = parse(own)
    population, task = config.population.build(), config.task.build()
    values = summaries(population, task)
    vectors = [_own_truth(v, values, task.clip, population.ids) if v.mechanism == LOCAL_DP else v for v in vectors]
    return Result(setting, tuple(task.coordinate_names(population)), len(population), tuple(vectors), clipped, stamp,
                  seconds)


def _vectors(zones: Sequence[Mapping], rows: pd.DataFrame, names: Mapping[str, str]) -> list[Vector]:
    spent = rows[rows["metric"] == "epsilon_spent_mean"].set_index(["cell", "strategy", "seed"])["value"]
    return [Vector(names[zone["strategy"]], float("inf") if zone["trust"] == OPEN else float(zone["epsilon"]),
                   zone["seed"], np.array(zone["released"]), np.array(zone["true_clipped"]), np.array(zone["true_total"]),
                   float(spent[zone["cell"], zone["strategy"], zone["seed"]]))
            for zone in zones]


def _own_truth(vector: Vector, values: np.ndarray, clip: float, ids: Sequence[str]) -> Vector:
    """Local DP is held against the home whose release it is."""
    home = list(ids).index(min(ids))
    clipped, total = Laplace(clip).plain(NoiseFree(values[home]))
    return Vector(vector.mechanism, vector.epsilon, vector.seed, vector.released, clipped, total, vector.granted)


def scores(results: Sequence[Result]) -> pd.DataFrame:
    """One row per setting, mechanism, epsilon and seed: every score, rank displacement, and the mean epsilon granted."""
    rows = []
    for result in results:
        for v in result.vectors:
            rows.append({"set": result.setting.words, "coordinates": result.setting.coordinates, "mechanism": v.mechanism,
                         "epsilon": v.epsilon, "seed": v.seed, "granted": v.granted,
                         **{name: score(v.released, v.truth) for name, score in SCORES.items()},
                         "cosine_total": metrics.cosine(v.released, v.total), "mae_total": metrics.mae(v.released, v.total),
                         "dominant": float(trajectory(v.released, v.truth, 1)[0] == 1),
                         "displacement": displacement(v.released, v.truth)})
    return pd.DataFrame(rows)


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Mean and sd over the seeds: columns score and score_sd, n; NaN scores are left out."""
    keys = ["set", "coordinates", "mechanism", "epsilon"]
    names = [name for name in table if name not in (*keys, "seed")]
    grouped = table.groupby(keys, sort=False)
    frame = grouped[names].mean().join(grouped[names].std().add_suffix("_sd")).join(grouped.size().rename("n"))
    return frame.reset_index()


def ranks(vector: np.ndarray) -> np.ndarray:
    """(d,) rank by magnitude, 1 the largest; ties go to the lower index.

    >>> ranks(np.array([1.0, -5.0, 2.0])).tolist()
    [3, 1, 2]
    """
    found = np.empty(len(vector), int)
    found[np.argsort(-np.abs(vector), kind="stable")] = np.arange(1, len(vector) + 1)
    return found


def trajectory(released: np.ndarray, truth: np.ndarray, top: int = 10) -> np.ndarray:
    """(top,) rank under noise of the coordinates that the truth ranks 1 to `top`: the source's Figures 4 and 5.

    >>> trajectory(np.array([3.0, 9.0, 1.0]), np.array([9.0, 3.0, 1.0])).tolist()
    [2, 1, 3]
    """
    return ranks(released)[np.argsort(-np.abs(truth), kind="stable")[:top]]


def displacement(released: np.ndarray, truth: np.ndarray, top: int = 10) -> float:
    """Mean distance of the Top-10 trajectory from the diagonal, in ranks; 0 is perfect.

    >>> displacement(np.array([3.0, 9.0, 1.0]), np.array([9.0, 3.0, 1.0]))
    0.6666666666666666
    """
    found = trajectory(released, truth, top)
    return float(np.abs(found - np.arange(1, len(found) + 1)).mean())


def with_moderate(config: Config, epsilon: float) -> Config:
    """The config with that epsilon among the varied ones."""
    varied = sorted({*config.vary.get("query.epsilon", ()), epsilon})
    return parse({**config.document(), "vary": {**thaw(config.vary), "query.epsilon": varied}})

