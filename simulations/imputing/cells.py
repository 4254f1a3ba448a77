"""What the private imputation study computes: one cell per data set, method, unit, epsilon and seed, kept when done."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedenergy import imputation as imp
from fedenergy.imputation import default, dp_gp
from fedenergy.imputation.base import Daily
from fedenergy.imputation.baselines import FROM_TRAINING, WINDOW_ONLY
from fedenergy.imputation.model import Model
from fedenergy.progress import Progress, SilentProgress
from simulations.imputing.data import Set

if TYPE_CHECKING:
    from simulations.private_imputation import PrivateImputation

DAILY, TWIN, FULL, PRIOR = "linear + same time", "dp_gp, no noise", "full covariance, no noise", "simulated homes' dp_gp"
GP, DEFAULT, DIFFUSION, TUNED = "dp_gp", "default", "default + diffusion", "default + tuned diffusion"
BY_HOME, LAW = "default + diffusion, homes by name", "homes by name, no network"
OBJECTIVES = {"A: v dynamic": imp.Objective("v", weight="alpha_bar"), "A: eps": imp.Objective("eps")}
REPEATING = ("same time of day", DAILY)
FREE, LEAKING, PRIVATE, PUBLIC = "free", "no privacy", "true_epsilon", "simulated prior"


@dataclass(frozen=True)
class Cell:
    """One thing to compute. epsilon None: no privacy is claimed; inf: the twin without noise of a private method."""

    dataset: str
    method: str
    regime: str
    unit: str = ""
    epsilon: float | None = None
    seed: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """What determines it, besides the study's own settings."""
        epsilon = self.epsilon
        return {**vars(self), "epsilon": str(epsilon) if epsilon is not None and math.isinf(epsilon) else epsilon}


def cells_of(study: PrivateImputation, dataset: str, found: Set) -> Iterator[Cell]:
    """Free baselines first, then what costs something, cheapest first."""
    once = found.test.length <= found.test.steps_per_day        # no time of day comes twice: both are the straight line
    for name in (*WINDOW_ONLY, DAILY):
        if (name != "kalman" or study.kalman) and not (once and name in REPEATING):
            yield Cell(dataset, name, FREE)
    for name in FROM_TRAINING:
        yield Cell(dataset, name, LEAKING)
    homes = found.kind == "homes"
    units = [unit for unit in study.units if unit == "window" or found.homes() > 1]
    if homes:
        yield from (Cell(dataset, PRIOR, PUBLIC), Cell(dataset, TWIN, LEAKING), Cell(dataset, FULL, LEAKING))
    methods = [GP, DEFAULT] if homes else [DEFAULT]
    if homes and study.residual != "none":
        methods += [DIFFUSION, *([TUNED] if study.residual == "tuned" else [])]
        methods += [BY_HOME, LAW] if study.by_home and found.homes() > 1 else []
    for method in methods:
        if method != GP:
            yield Cell(dataset, method, LEAKING, "window", math.inf)
        for unit in units if method in (GP, DEFAULT, DIFFUSION) else [u for u in units if u == "window"]:
            for epsilon in study.epsilons:
                yield from (Cell(dataset, method, PRIVATE, unit, epsilon, seed) for seed in study.seeds)
    if dataset in study.objective_sets:
        for method in OBJECTIVES:
            yield from (Cell(dataset, method, PRIVATE, "window", epsilon) for epsilon in study.objective_epsilons)


@dataclass(eq=False)
class Work:
    """A data set with its masks, and the diffusion trained on simulated homes (made when first needed)."""

    study: PrivateImputation
    found: Set
    masks: dict[tuple[str, float], np.ndarray]
    folder: Path
    progress: Progress
    _residual: dict[bool, Model] = field(default_factory=dict)
    _by_home: dict[tuple[float, int], default.Default] = field(default_factory=dict)
    _prior: dict[str, dict[str, Any]] = field(default_factory=dict)

    def compute(self, cell: Cell) -> dict[str, Any]:
        """{"rows": [[pattern, rate, mse, mae, packed errors by window], ...], "said", "choice", "spent", "home"}."""
        found, study = self.found, self.study
        if cell.method in (*WINDOW_ONLY, DAILY, *FROM_TRAINING):
            return self._scored(lambda seen: (self._baseline(cell.method, seen),) * 2, by_window=cell.regime == FREE)
        if cell.method in (PRIOR, TWIN, FULL):
            gp = self._reference(cell.method)
            return self._scored(lambda seen: gp.points(found.test.values, seen, found.test.time_of_day))
        if cell.method in OBJECTIVES:
            return self._objective(cell)
        if cell.method == GP:
            gp = dp_gp.fit(found.train, cell.epsilon, study.delta, low=found.limits[0], cap=found.limits[1],
                           unit=cell.unit, seed=cell.seed)
            return self._scored(lambda seen: gp.points(found.test.values, seen, found.test.time_of_day),
                                said=str(gp.privacy), choice=GP, spent=gp.privacy.epsilon, home=gp.privacy.household)
        if cell.method in (BY_HOME, LAW):
            return self._named(cell)
        residual = self.residual() if cell.method in (DIFFUSION, TUNED) else None
        fitted = default.fit(found.train, cell.epsilon, study.delta, limits=found.limits, kind=found.kind, unit=cell.unit,
                             residual=residual, tune=study.tune_steps if cell.method == TUNED else 0,
                             batch=study.tune_batch, seed=cell.seed)
        if fitted.choice == "simulated":            # no record, no noise: the same at every epsilon and seed
            return self._prior_alone(cell.method, fitted)
        home = fitted.base.privacy.household
        if fitted.model is not None and cell.method == TUNED and fitted.model.total is not None:
            home = fitted.model.total.household
        return self._scored(lambda seen: fitted.points(found.test.values, seen, found.test.time_of_day, seed=cell.seed),
                            said=fitted.privacy, choice=fitted.choice, spent=fitted.epsilon, home=home,
                            by_window=cell.method == DEFAULT)

    def _named(self, cell: Cell) -> dict[str, Any]:
        """Homes by name: fitted once for the diffusion and for what it is without its network."""
        found, test, key = self.found, self.found.test, (cell.epsilon, cell.seed)
        if key not in self._by_home:
            self._by_home[key] = default.fit(found.train, cell.epsilon, self.study.delta, limits=found.limits,
                                             kind=found.kind, residual=self.residual(by_home=True), by_home=True,
                                             seed=cell.seed)
        fitted = self._by_home[key]

        def fill(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if cell.method == LAW and fitted.model is not None:
                law = fitted.model.base.guide(test.values, seen, test.time_of_day, test.homes).filling
                mean, median = fitted.base.points(test.values, seen, test.time_of_day)
                return law, np.where(seen, test.values, np.maximum(median + law - mean, found.limits[0]))
            return fitted.points(test.values, seen, test.time_of_day, homes=test.homes, seed=cell.seed)
        total = None if fitted.model is None else fitted.model.total
        home = 0.0 if fitted.choice == "simulated" else None if total is None else total.household
        return self._scored(fill, said=fitted.privacy, choice=fitted.choice, spent=fitted.epsilon, home=home)

    def _prior_alone(self, method: str, fitted: default.Default) -> dict[str, Any]:
        if method not in self._prior:
            test, seed = self.found.test, self.study.seeds[0]
            self._prior[method] = self._scored(
                lambda seen: fitted.points(test.values, seen, test.time_of_day, seed=seed), said=fitted.privacy,
                choice=fitted.choice, spent=0.0, home=0.0, by_window=method == DEFAULT)
        return self._prior[method]

    def residual(self, by_home: bool = False) -> Model:
        """The diffusion of simulated homes, kept in the run folder."""
        place = self.folder / ("residual-homes" if by_home else "residual")
        if by_home not in self._residual:
            if not (place / "model.json").exists():
                default.pretrained(self.study.pretrain_homes, steps=self.study.pretrain_steps,
                                   batch=self.study.pretrain_batch, by_home=by_home,
                                   progress=self.progress).save(place, lab=True)
            self._residual[by_home] = Model.load(place)
        return self._residual[by_home]

    def _scored(self, fill: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], *, said: str = "", choice: str = "",
                spent: float | None = None, home: float | None = None, by_window: bool = False) -> dict[str, Any]:
        rows, truth = [], self.found.truth
        for (pattern, rate), seen in self.masks.items():
            mean, median = fill(seen)
            each = packed(squared_and_absolute(mean, median, truth, seen)) if by_window else ""
            rows.append([pattern, rate, imp.errors(mean, truth, seen)["mse"], imp.errors(median, truth, seen)["mae"], each])
        return {"rows": rows, "said": said, "choice": choice, "spent": spent, "home": home}

    def _baseline(self, name: str, seen: np.ndarray) -> np.ndarray:
        test = self.found.test
        if name == DAILY:
            return Daily().fill(np.where(seen, test.values, np.nan), seen, test.time_of_day)
        return imp.fill_with(name, test, seen, self.found.train if name in FROM_TRAINING else None)

    def _reference(self, name: str) -> dp_gp.DpGp:
        low, cap = self.found.limits
        if name == PRIOR:
            train = self.found.train
            return replace(default.simulated_homes(train.length, train.steps_per_day), low=low, cap=cap)
        twin = dp_gp.fit(self.found.train, math.inf, self.study.delta, low=low, cap=cap)
        return twin if name == TWIN else full_covariance(self.found.train, twin)

    def _objective(self, cell: Cell) -> dict[str, Any]:
        """A's objective at small size, at the same true epsilon (replace-one), by A's own sampler."""
        study, found = self.study, self.found
        net = imp.DiTConfig(found.train.length, 1, patch=8, width=64, depth=2, heads=4)
        privacy = imp.DPSGD(clip=1.0, epsilon=cell.epsilon, delta=study.delta, relation="replace-one")
        model = imp.train(found.train, None, OBJECTIVES[cell.method], privacy, steps=study.objective_steps, batch=32,
                          rate=1e-3, seed=cell.seed, net=net, limits=found.limits, progress=SilentProgress())
        few = np.arange(min(len(found.test), study.objective_windows))
        part = replace(found, test=found.test.take(few), truth=found.truth[few])
        rows = []
        for (pattern, rate), seen in self.masks.items():
            got = imp.fill(model, part.test, seen[few], samples=10, steps=20, clip_x0=False, seed=cell.seed)
            rows.append([pattern, rate, imp.errors(got.mean, part.truth, got.observed)["mse"],
                         imp.errors(got.median, part.truth, got.observed)["mae"], ""])
        return {"rows": rows, "said": str(model.privacy), "choice": "", "spent": model.privacy.replace_one,
                "home": model.privacy.household}


def squared_and_absolute(mean: np.ndarray, median: np.ndarray, truth: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """(2, n): each window's sum of squared errors of the mean and of absolute errors of the median, where they count."""
    where = ~seen & np.isfinite(truth)
    gaps = ((mean - truth)**2, np.abs(median - truth))
    return np.array([np.where(where, gap, 0.0).sum((1, 2)) for gap in gaps])


def packed(errors: np.ndarray) -> str:
    """(2, n) as text that a cell's file keeps: base64 of little-endian float32."""
    return base64.b64encode(errors.astype("<f4").tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    """(2, n) of packed()."""
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(2, -1).astype(float)


def full_covariance(train: imp.Windows, twin: dp_gp.DpGp) -> dp_gp.DpGp:
    """The non-private T x T covariance and mean by position of the window: what no noise and no structure would give."""
    x = dp_gp.forward(train.values[:, :, 0], twin.low, twin.cap, twin.transform)
    slots = train.steps_per_day
    mean = x.mean(0).reshape(-1, slots).mean(0)
    cov = np.cov(x.T) + 1e-6 * np.eye(train.length)
    return replace(twin, mean=np.roll(mean, twin.phase), scale=np.ones(slots), correlation=cov)
