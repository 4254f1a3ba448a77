"""An imputer trained by homes that keep their data, against one trained by a trusted party, at equal epsilon per household.

    fedenergy run configs/imputation/federated.toml [--quick]

Every method takes the same homes through their boxes and ledgers: windows to a Curator (central), three noised sums
(moments, trust sum or curator), a small net in rounds (any Flower strategy). Errors are those of unseen homes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

import fedenergy as fe
from fedenergy.config_tables import StrategySpec
from fedenergy.federation import imputing, imputing_rounds
from fedenergy.federation.imputing import Setting
from fedenergy.imputation import dp_gp, packaged
from fedenergy.imputation.federated import NetPlan, TrainImputer
from fedenergy.imputation.federated_net import base_of
from fedenergy.imputation.sample import fill
from fedenergy.imputation.task import Windows, errors
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.gaussian import epsilon_of_rho, rho_micro
from fedenergy.progress import Progress, SilentProgress
from fedenergy.report.gallery import Plate
from fedenergy.report.markup import bullets
from fedenergy.report.svg import PALETTE
from fedenergy.studies import Finished, Place, kept, write_results
from simulations import pages

METHODS = ("central", "moments sum", "moments curator", "rounds")
SAID = {"central": "dp_gp, windows to the Curator", "moments sum": "dp_gp, three secure sums",
        "moments curator": "dp_gp, three sums of the Curator", "rounds": "net in rounds", "oracle": "dp_gp, no noise",
        "packaged": "packaged (simulated homes)", "start": "what the net starts from", "linear": "linear lines"}
FREE = ("linear", "packaged", "start")
SAMPLES, SAMPLING_STEPS = 5, 10


@dataclass(frozen=True)
class FederatedStudy:
    """The keys of configs/imputation/federated.toml.

    homes      numbers of simulated homes; steps, step_minutes, seed: of them; days: of a window
    epsilons   per household, the whole training by zCDP, at delta; the ledgers charge the sum of the answers' epsilons
    methods    see METHODS; strategy, rounds, net: of "rounds"
    seeds      of the noise; test_homes, test_days: unseen homes that score
    """

    name: str = "imputer-federated"
    title: str = "An imputer that homes train together"
    homes: tuple[int, ...] = (200, 600)
    steps: int = 672
    step_minutes: int = 60
    seed: int = 1
    days: int = 2
    epsilons: tuple[float, ...] = (4.0, 10.0)
    delta: float = 1e-5
    methods: tuple[str, ...] = METHODS
    rounds: int = 4
    strategy: str = "flwr.serverapp.strategy:FedAvg"
    train_only: str = "out"
    net_homes: int = 200
    seeds: tuple[int, ...] = (0, 1)
    test_homes: int = 40
    test_days: int = 14

    def __post_init__(self) -> None:
        for name in ("homes", "epsilons", "methods", "seeds"):
            values = tuple(getattr(self, name))
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} = {list(values)}: give one or more, each once")
            object.__setattr__(self, name, values)
        if unknown := set(self.methods) - set(METHODS):
            raise ValueError(f"methods: {min(unknown)!r} is unknown (takes: {', '.join(METHODS)})")
        for epsilon in self.epsilons:
            rho_micro(micro(epsilon), self.delta)
        for name in ("rounds", "net_homes", "test_homes", "test_days", "step_minutes"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not a whole number of at least 1")
        for count in self.homes:
            self.task.kind_spec("windows", self.population(count))
        StrategySpec(self.strategy, table="strategy").check()

    @property
    def task(self) -> TrainImputer:
        return TrainImputer(self.days, net=NetPlan(train_only=self.train_only))

    def population(self, count: int) -> Any:
        return fe.simulate_households(count, steps=self.steps, seed=self.seed, step_minutes=self.step_minutes)

    def cells(self) -> list[tuple[str, int, float, int]]:
        """(method, homes, epsilon, noise seed)."""
        plain = [("oracle", count, math.inf, 0) for count in self.homes]
        return plain + [(method, count, epsilon, seed) for method in self.methods for count in self.homes
                        for epsilon in self.epsilons for seed in self.seeds
                        if method != "rounds" or count <= self.net_homes]

    def toy(self) -> FederatedStudy:
        """12 homes, 16 days, the largest epsilon, one seed, two rounds."""
        return replace(self, homes=(12,), steps=min(self.steps, 24 * 16 * 60 // self.step_minutes),
                       epsilons=self.epsilons[-1:], seeds=self.seeds[:1], rounds=min(self.rounds, 2), test_homes=6,
                       test_days=6)

    def check(self, place: Place) -> Sequence[tuple[str, str]]:
        """What a run would do and cost."""
        cells = self.cells()
        answers = sum(count * {"central": 1, "rounds": self.rounds}.get(method, 3) for method, count, _, _ in cells)
        return [("trainings", f"{len(cells):,}"), ("answers of homes", f"{answers:,}"),
                ("epsilon per household, each training", f"{', '.join(f'{e:g}' for e in self.epsilons)} at delta "
                 f"{self.delta:g} (replace-one, zCDP); every training has its own ledger"),
                ("seconds, about", f"{answers * 0.01 + sum(c[0] == 'rounds' for c in cells) * self.rounds * 4:,.0f}")]

    def run(self, place: Place, progress: Progress) -> Finished:
        """Every training, scored; the table, the page."""
        folder, found, cells = place.folder(self), [], self.cells()
        folder.mkdir(parents=True, exist_ok=True)
        progress.start(len(cells), "trainings")
        try:
            for cell in cells:
                key = dict(zip(("method", "homes", "epsilon", "seed"), cell, strict=True))
                key["epsilon"] = "inf" if math.isinf(cell[2]) else cell[2]
                found.append({**key, **kept(folder, key, lambda cell=cell: self._cell(folder, *cell))})
                progress.advance()
        finally:
            progress.close()
        rows = self._rows(found + [{"method": name, "homes": count, "epsilon": 0.0, "seed": 0, **self._free(name)}
                                   for name in FREE for count in self.homes])
        write_results(folder, rows, vary=["method", "homes", "pattern"], metrics=["mse", "against_linear", "charged"],
                      population="population", strategy="method")
        groups = rows.groupby(["homes", "pattern", "method", "epsilon"], sort=False)
        table = groups[["mse", "against_linear", "charged"]].mean().reset_index()
        table["sd"] = groups["against_linear"].std().to_numpy()          # over noise seeds; nan where there is one
        table.to_csv(folder / "methods.csv", index=False, float_format="%.6g", lineterminator="\n")
        return Finished(folder, self._page(folder, found, table), table, self._lines(table))

    # ---- one training

    @cached_property
    def _tests(self) -> Windows:
        return packaged.simulated_windows(self.test_homes, self.test_days, self.step_minutes, self.seed + 1_000, self.days)

    def _cell(self, folder, method: str, count: int, epsilon: float, seed: int) -> dict[str, Any]:
        homes, task, setting = self.population(count), self.task, Setting(seed=seed)
        place = folder / "trainings" / f"{method}-{count}-{epsilon:g}-{seed}".replace(" ", "-")
        known = {"folder": place, "task": task, "setting": setting}
        if method == "oracle":
            made = imputing.moments(homes, epsilon=1.0, delta=self.delta, trust="open", **known)
        elif method == "central":
            made = imputing.central(homes, epsilon=epsilon, delta=self.delta, **known)
        elif method == "rounds":
            each = epsilon_of_rho(rho_micro(micro(epsilon), self.delta) // self.rounds, self.delta / self.rounds)
            made = imputing_rounds.rounds(homes, StrategySpec(self.strategy, table="strategy").build,
                                          epsilon=math.floor(each * MICRO) / MICRO, delta=self.delta, rounds=self.rounds,
                                          progress=SilentProgress(), **known)
        else:
            made = imputing.moments(homes, epsilon=epsilon, delta=self.delta, trust=method.split()[1], **known)
        spent = made.spending
        return {"mse": self._scores(made.model), "charged": spent.epsilon, "delta": spent.delta, "tighter": spent.tighter,
                "said": str(spent), "answered": made.answered, "crossed": dict(made.crossings.envelopes)}

    def _scores(self, model: Any) -> dict[str, float]:
        """MSE of the mean on unseen homes, by pattern."""
        tests, found = self._tests, {}
        for pattern, observed in self._masks():
            if isinstance(model, dp_gp.DpGp):
                mean = model.fill(np.where(observed, tests.values, 0.0), observed, tests.time_of_day)
            else:
                mean = fill(model, tests, observed, samples=SAMPLES, steps=SAMPLING_STEPS).mean
            found[pattern] = errors(mean, tests.values, observed)["mse"]
        return found

    def _masks(self):
        tests = self._tests
        return [(pattern.name, pattern.observed(len(tests), tests.length)) for pattern in packaged.PATTERNS]

    def _free(self, name: str) -> dict[str, Any]:
        tests = self._tests
        if name == "linear":
            scores = {pattern: errors(packaged.fill_with("linear", tests, observed), tests.values, observed)["mse"]
                      for pattern, observed in self._masks()}
        else:
            base = (packaged.Longer(packaged.simulated(self.step_minutes)) if name == "packaged"
                    else base_of(self.task.net, tests.steps_per_day))
            scores = {pattern: errors(base.fill(tests.values, observed, tests.time_of_day), tests.values, observed)["mse"]
                      for pattern, observed in self._masks()}
        return {"mse": scores, "charged": 0.0, "said": ""}

    def _rows(self, found: list[dict[str, Any]]) -> pd.DataFrame:
        lines = {row["homes"]: row["mse"] for row in found if row["method"] == "linear"}
        rows = []
        for one in found:
            for pattern, mse in one["mse"].items():
                rows.append({"population": "simulated", "method": one["method"], "homes": one["homes"], "pattern": pattern,
                             "epsilon": float(one["epsilon"]), "delta": self.delta, "seed": one["seed"], "mse": mse,
                             "mechanism": "gaussian", "charged": one["charged"],
                             "against_linear": mse / lines[one["homes"]][pattern]})
        return pd.DataFrame(rows)

    # ---- what is shown

    def _lines(self, table: pd.DataFrame) -> list[str]:
        pattern, lines = packaged.PATTERNS[1].name, []
        own = table[table["pattern"] == pattern]
        for count in self.homes:
            part = own[own["homes"] == count]
            lines.append(f"{pattern}, {count:,} homes, MSE against linear lines: " + "; ".join(
                f"{SAID[row.method]}{'' if row.epsilon in (0, math.inf) else f' at epsilon {row.epsilon:g}'} "
                f"{row.against_linear:.2f}{'' if math.isnan(row.sd) else f' (sd {row.sd:.2f})'}"
                for row in part.itertuples() if row.method != "linear"))
        return lines

    def _page(self, folder, found: list[dict[str, Any]], table: pd.DataFrame):
        said = list(dict.fromkeys(f"{SAID[one['method']]}, {one['homes']:,} homes: {one['said']}" for one in found
                                  if one["seed"] == self.seeds[0] and one["method"] != "oracle"))
        shown = table.assign(method=[SAID[name] for name in table["method"]])
        return pages.write_page(
            folder / "report.html", title=self.title, meta=f"{folder.name} · {len(found)} trainings",
            short=self._lines(table), stamp="Seeded noise: not private", plates=[self._plate(table)],
            parts=[pages.Part("methods", "Methods", pages.frame_table(
                       shown, "MSE of the mean on unseen homes; against_linear: over that of linear lines, sd: its "
                       "standard deviation over noise seeds; charged: the ledger's sum of epsilons per household. "
                       "Epsilon 0: no home's data; infinite: no noise.")),
                   pages.Part("cost", "What the ledgers say", bullets(said)),
                   pages.Part("setting", "Setting", bullets([
                       "The unit is the household, replace-one: all its windows are one record. Epsilon is that of the "
                       "whole training by zCDP; budgets are held against the plain sum of what each answer cost, which is "
                       "larger.",
                       "central: homes send windows, which the Curator sees: the boundary that no reading leaves a home "
                       "does not hold there, and the agreement must grant it. The others send clipped vectors. Under trust "
                       "sum nobody sees a single one: the homes share one discrete Gaussian noise; only the sum is opened.",
                       f"rounds: {self.strategy.split(':')[1]}, {self.rounds} rounds, the weights named "
                       f"{self.train_only or '(all)'!r}, Curator; at most {self.net_homes} homes.",
                       "Where two rows differ by less than their sd, their order is chance: take more seeds.",
                       "Filling reads the readings of the home that is filled: training protects those that trained."]))])

    def _plate(self, table: pd.DataFrame) -> Plate:
        figure, axes = pages.axes(2.7, 1, len(self.homes))
        own = table[table["pattern"] == packaged.PATTERNS[1].name]
        for ax, count in zip(axes, self.homes, strict=True):
            for k, method in enumerate(self.methods):
                line = own[(own["homes"] == count) & (own["method"] == method)].sort_values("epsilon")
                ax.errorbar(line["epsilon"], line["against_linear"], line["sd"].fillna(0.0), fmt="o-", color=PALETTE[k],
                            label=SAID[method], linewidth=1.6, elinewidth=0.8)
            ax.axhline(1.0, color="0.5", linewidth=1, linestyle="--")
            ax.set(xscale="log", xlabel="epsilon per household", title=f"{count:,} homes")
            ax.set_ylim(bottom=0)
            ax.xaxis.set_major_locator(FixedLocator(self.epsilons))
            ax.xaxis.set_minor_locator(NullLocator())
            pages.plain_ticks(ax.xaxis)
        axes[0].set_ylabel("MSE / linear")
        pages.legend(figure, axes[0], 2)
        return Plate("methods", "methods", "Error against linear lines, blocks of half the window",
                     "Mean over noise seeds; bars: one standard deviation over them. Dashed: linear lines, which cost "
                     "nothing.",
                     "MSE over that of linear interpolation against epsilon, by method and number of homes.", figure)
