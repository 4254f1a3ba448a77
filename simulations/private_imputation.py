"""Filling gaps at a stated epsilon: every method against every baseline that costs nothing.

    fedenergy run configs/private_imputation.toml --data DIR [--quick]

London and simulated homes in windows of two days (the first 70 % of each home's windows train, the last 20 % test); ETTh1,
ETTm1, Appliances and Household in windows of 96 steps, split by time. Errors count where hidden: MSE of the mean, MAE of
the median. The default method is chosen from public quantities (fedenergy.imputation.default); a table names every cell
in which a free baseline is better.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pandas as pd

from fedenergy import imputation as imp
from fedenergy.ids import digest
from fedenergy.imputation import default
from fedenergy.privacy.epsilon import micro
from fedenergy.progress import Progress
from fedenergy.studies import Finished, Place, kept
from simulations.imputing import page
from simulations.imputing.cells import Work, cells_of
from simulations.imputing.data import DATASETS, MASKS, load, masks

CAVEATS = (
    "The simulator's powers and habits were scaled by hand to the aggregates of the London homes: on London the simulated "
    "prior and the diffusion trained on simulated homes cost no epsilon, but they are not blind to these homes.",
    "Kriging's number of lags and margins of doubt were set on simulated series only; the form and the constants of blended "
    "filling on validation windows of ETTh1, ETTm1, Appliances and Household; the distance at which dp_gp is drawn towards "
    "simulated homes on London's: between 70 % and 80 % of each record (simulations.imputing.constants says how). Former "
    "values of kriging's and dp_gp's constants were set while test errors on these sets were looked at, and so was the form "
    "of both; which cells kriging alone had lost on test windows was known when blended filling was made, and a first form "
    "of that had a table on test windows too; that ETTm1's single points were lost by more than chance was known when the "
    "share for single steps was set on validation windows: none is blind to these sets.",
    "\"Homes by name\" is told which home a window is of, at training and at filling; the free baselines, dp_gp and default "
    "are not. Its constants were set on London's validation windows.",
    "What is fitted within a run is chosen from public quantities and noisy releases only. The use of the validation "
    "windows is in no epsilon.")
RESIDUALS = ("none", "simulated", "tuned")
UNITS = ("window", "household")
MINUTES = {"free": 0.1, "gp": 0.5, "diffusion": 2.0, "pretrain": 0.02}     # rough, one thread: for `check`


@dataclass(frozen=True)
class PrivateImputation:
    """dp_gp, the default method and the residual diffusion, by data set, pattern, rate, epsilon and unit.

    datasets    london, etth1, ettm1, appliances, household, simulated; patterns: random, block, outage; rates: missing
    epsilons    of dp_gp, default and diffusion, at delta, replace-one; seeds: of the noise (masks and windows stay)
    units       window, household
    test_windows   so many, drawn once; 0: all
    residual    diffusion over the base, on homes: "none", "simulated" (trained on simulated homes: free) or "tuned" (its
                last layer by DP-SGD as well)
    by_home     the diffusion with homes known by name as well (window unit), and that without its network
    pretrain_homes, pretrain_steps, pretrain_batch   of that diffusion; tune_steps, tune_batch: of the last layer
    objective_sets, objective_epsilons, objective_steps, objective_windows   A's objectives (v dynamic, eps) at small size
                (2 x 64, patches of 8, batch 32) at the same true epsilon; how many test windows they fill
    kalman      the Kalman smoother among the free baselines (minutes)
    """

    name: str = "private-imputation"
    title: str = "Filling gaps at a stated epsilon"
    datasets: tuple[str, ...] = DATASETS
    patterns: tuple[str, ...] = tuple(MASKS)
    rates: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 10.0)
    units: tuple[str, ...] = UNITS
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    test_windows: int = 2000
    residual: str = "simulated"
    by_home: bool = True
    pretrain_homes: int = 300
    pretrain_steps: int = 400
    pretrain_batch: int = 256
    tune_steps: int = 40
    tune_batch: int = 1024
    objective_sets: tuple[str, ...] = ("etth1", "ettm1")
    objective_epsilons: tuple[float, ...] = (10.0,)
    objective_steps: int = 300
    objective_windows: int = 200
    kalman: bool = False

    def __post_init__(self) -> None:
        for item in fields(self):
            if isinstance(getattr(self, item.name), list):
                object.__setattr__(self, item.name, tuple(getattr(self, item.name)))
        for key, known in (("datasets", DATASETS), ("patterns", tuple(MASKS)), ("units", UNITS),
                           ("objective_sets", DATASETS)):
            if bad := [value for value in getattr(self, key) if value not in known]:
                raise ValueError(f"{key} holds {bad[0]!r}, which is unknown (takes: {', '.join(known)})")
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual = {self.residual!r} is unknown (takes: {', '.join(RESIDUALS)})")
        for rate in self.rates:
            imp.points(rate)
        for epsilon in (*self.epsilons, *self.objective_epsilons):
            micro(epsilon)
        for key in ("datasets", "patterns", "rates", "epsilons", "units", "seeds"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty: give at least one")
        for key in ("pretrain_homes", "pretrain_steps", "pretrain_batch", "tune_steps", "tune_batch", "objective_steps",
                    "objective_windows"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)} is not at least 1")
        if self.test_windows < 0:
            raise ValueError(f"test_windows = {self.test_windows} is below 0 (0: all)")

    def toy(self) -> PrivateImputation:
        """One seed, one rate, 100 test windows, two epsilons, a diffusion of 20 steps, A's objectives of 20."""
        return replace(self, seeds=self.seeds[:1], rates=self.rates[-1:], test_windows=100, kalman=False,
                       epsilons=tuple(e for e in self.epsilons if e in (2.0, 10.0)) or self.epsilons[:1], pretrain_homes=20,
                       pretrain_steps=20, pretrain_batch=32, tune_steps=4, tune_batch=256, objective_steps=20,
                       objective_windows=10)

    def check(self, place: Place) -> list[tuple[str, str]]:
        """Windows, what the public rule chooses, cells and rough minutes."""
        rows, minutes = [], 0.0
        for name in self.datasets:
            try:
                found = load(name, place.data, self.test_windows)
            except FileNotFoundError as error:
                rows.append((name, f"not run: data absent ({error})"))
                continue
            cells = list(cells_of(self, name, found))
            kinds = ("free" if c.epsilon is None else "diffusion" if "diffusion" in c.method or "A:" in c.method else "gp"
                     for c in cells)
            minutes += sum(MINUTES[kind] for kind in kinds) * len(self.rates) * len(self.patterns) / 3
            chosen = {f"{unit} ε {e:g}": default.choose(
                len(found.train) if unit == "window" else found.homes(), e, self.delta, kind=found.kind,
                length=found.train.length, steps_per_day=found.train.steps_per_day)
                for unit in self.units[:2 if found.homes() > 1 else 1] for e in self.epsilons}
            rows.append((name, f"{len(found.train)} training windows of {found.homes()} homes, {len(found.test)} test "
                               f"windows, {len(cells)} cells"))
            rows.append((f"{name}: the public rule takes", "; ".join(f"{k}: {v}" for k, v in chosen.items())))
        if self.residual != "none":
            minutes += self.pretrain_steps * MINUTES["pretrain"] * (1 + self.by_home)
        rows.append(("about", f"{minutes / 60:.1f} h on one thread"))
        return rows

    def run(self, place: Place, progress: Progress) -> Finished:
        """metrics.csv, cells.csv, table.csv, lost.csv, report.html, figures/ in the run folder; resumable by cell."""
        folder, rows, said, absent = place.folder(self), [], [], []
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.datasets:
            try:
                found = load(name, place.data, self.test_windows)
            except FileNotFoundError as error:
                absent.append(f"{name}: not run: data absent ({error})")
                continue
            work = Work(self, found, masks(found, self.patterns, self.rates), folder, progress)
            cells = list(cells_of(self, name, found))
            mark = digest(b"fe.imputing.3", found.train.values.tobytes(), 8).hex()
            progress.start(len(cells), name)
            for cell in cells:
                got = kept(folder, {**cell.key, "data": mark}, lambda cell=cell, work=work: work.compute(cell))
                rows += [{**vars(cell), "delta": self.delta if cell.regime == "true_epsilon" else None,
                          "choice": got["choice"], "spent": got["spent"], "household": got["home"], "pattern": pattern,
                          "rate": rate, "mse": mse, "mae": mae, "by_window": by_window}
                         for pattern, rate, mse, mae, by_window in got["rows"]]
                if got["said"] and cell.seed == self.seeds[0]:
                    said.append(f"{name}, {cell.method} {got['choice']}, {cell.unit} unit, ε {cell.epsilon:g}: "
                                f"{got['said']}")
                progress.advance(1)
            progress.close()
        return page.publish(self, folder, pd.DataFrame(rows), [*CAVEATS, *said], absent)
