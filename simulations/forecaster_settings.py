"""Which strategy trains the best forecaster where: like homes, unlike homes, homes that lie, homes that drop out.

    fedenergy run configs/forecaster_settings.toml [--quick]

Every setting is a study of its own, with the same task, seeds and strategies. Errors are those of the shared model on the
homes' last days, after the last round. Nothing here is private (trust open).
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedenergy.config import Config, parse
from fedenergy.federation.plan import labelled
from fedenergy.federation.study import run_study
from fedenergy.progress import Progress, SilentProgress
from fedenergy.report.gallery import Plate
from fedenergy.report.markup import bullets
from fedenergy.report.svg import PALETTE
from fedenergy.report.words import number
from fedenergy.studies import Finished, Place, kept, write_results
from simulations import pages

LIKE, UNLIKE, LIARS, LOST = SETTINGS = ("like", "unlike", "liars", "drop-outs")
SAID = {LIKE: "one kind of home, none heated by electricity", UNLIKE: "all kinds of homes, half heated by electricity",
        LIARS: "like homes, of which some add a push to every weight", LOST: "unlike homes, whose answers often get lost"}
FLOWER = "flwr.serverapp.strategy:"
METRICS = ("rmse", "mae", "mae_worst_tenth", "train_loss", "rmse_no_change")


@dataclass(frozen=True)
class ForecasterSettings:
    """The keys of configs/forecaster_settings.toml.

    homes, steps, seed   simulated homes of one hour's steps; rounds, seeds: of every training
    liars, push          share of lying homes and what they add to every weight, signs alternating
    lost                 share of the answers that never arrive
    local_steps, rate    of the homes' gradient descent
    names                which of the strategies below play; empty: all
    """

    name: str = "forecaster-settings"
    title: str = "Which strategy trains the best forecaster where"
    homes: int = 24
    steps: int = 1_008
    seed: int = 1
    rounds: int = 15
    seeds: tuple[int, ...] = (0, 1)
    liars: float = 0.2
    push: float = 0.2
    lost: float = 0.5
    local_steps: int = 20
    rate: float = 0.1
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("seeds", "names"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("homes", "rounds", "local_steps"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not a whole number of at least 1")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {list(self.seeds)}: give one or more, each once")
        for name in ("liars", "lost"):
            if not 0 <= getattr(self, name) < 0.5 + 1e-9:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not a share from 0 to 0.5")
        if unknown := set(self.names) - set(self._strategies()):
            raise ValueError(f"names: {min(unknown)!r} is unknown (takes: {', '.join(self._strategies())})")
        made = self.config(UNLIKE, Path("unused"))
        made.task.build().plan(made.population.build())  # refuses records that are too short

    def _strategies(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Name -> (use, arguments). The robust ones are told how many homes lie."""
        bad = int(self.liars * self.homes + 1e-9)
        step = self.rate * self.local_steps
        return {"FedAvg": (FLOWER + "FedAvg", {}), "FedProx": (FLOWER + "FedProx", {"proximal_mu": 0.1}),
                "FedAvgM": (FLOWER + "FedAvgM", {"server_momentum": 0.5}),
                "FedAdam": (FLOWER + "FedAdam", {"eta": 0.03, "tau": 0.01}),
                "QFedAvg": (FLOWER + "QFedAvg", {"client_learning_rate": step, "q": 0.5}),
                "FedMedian": (FLOWER + "FedMedian", {}),
                "FedTrimmedAvg": (FLOWER + "FedTrimmedAvg", {"beta": max(0.1, self.liars)}),
                "Krum": (FLOWER + "Krum", {"num_malicious_nodes": bad}),
                "MultiKrum": (FLOWER + "MultiKrum", {"num_malicious_nodes": bad,
                                                     "num_nodes_to_select": max(1, self.homes // 2)}),
                "Scaffold": ("strategies.scaffold:Scaffold", {}), "Ifca": ("strategies.ifca:Ifca", {"clusters": 3})}

    @property
    def played(self) -> tuple[str, ...]:
        return self.names or tuple(self._strategies())

    def config(self, setting: str, out: Path) -> Config:
        """The study of one setting."""
        tables = []
        for name in self.played:
            use, arguments = self._strategies()[name]
            if setting in (LIARS, LOST):
                extra = {"share": self.liars, "size": self.push} if setting == LIARS else {"share": self.lost}
                wrapper = "strategies.byzantine:Byzantine" if setting == LIARS else "strategies.lossy:Lossy"
                tables.append({"use": wrapper, "trust": "open", "inner": use, "arguments": arguments, **extra})
            else:
                tables.append({"use": use, "trust": "open", **arguments})
        unlike = setting in (UNLIKE, LOST)
        return parse({
            "name": f"forecaster-{setting}", "seeds": list(self.seeds), "oracle": True, "out": str(out),
            "population": {"count": self.homes, "steps": self.steps, "seed": self.seed,
                           **({"ownership": {"Heating": 0.5}} if unlike
                              else {"ownership": {"Heating": 0.0}, "archetypes": ["family"]})},
            "task": {"use": "fedenergy.forecast.task:Forecast", "local_steps": self.local_steps, "rate": self.rate},
            "agreement": {"classes": ["update"]}, "engine": {"workers": 0}, "strategy": tables,
            "query": {"kind": "train.forecast", "rounds": self.rounds, "repeat": "same_window"}}).check()

    def toy(self) -> ForecasterSettings:
        """8 homes, 3 rounds, one seed, five strategies."""
        return replace(self, homes=8, steps=min(self.steps, 24 * 21), rounds=min(self.rounds, 3), seeds=self.seeds[:1],
                       liars=min(self.liars, 0.25), names=("FedAvg", "FedMedian", "Krum", "Scaffold", "Ifca"))

    def check(self, place: Place) -> Sequence[tuple[str, str]]:
        """What a run would do and cost."""
        turns = len(SETTINGS) * len(self.played) * self.rounds * len(self.seeds)
        return [("settings", "; ".join(f"{name}: {SAID[name]}" for name in SETTINGS)),
                ("strategies", ", ".join(self.played)), ("rounds of all strategies", f"{turns:,}"),
                ("epsilon", "infinite: models travel as they are (trust open, oracle = true)"),
                ("seconds, about", f"{turns * self.homes * 0.008:,.0f}")]

    def run(self, place: Place, progress: Progress) -> Finished:
        """Every setting, the table, the page."""
        folder, found = place.folder(self), []
        folder.mkdir(parents=True, exist_ok=True)
        progress.start(len(SETTINGS), "settings")
        try:
            for setting in SETTINGS:
                found += kept(folder, {"setting": setting}, lambda setting=setting: self._played(folder, setting))
                progress.advance()
        finally:
            progress.close()
        rows = pd.DataFrame(found)
        write_results(folder, rows.assign(population="simulated", mechanism="none", trust="open"), vary=["setting"],
                      metrics=METRICS, population="population", strategy="strategy")
        table = ranked(rows)
        table.to_csv(folder / "settings.csv", index=False, float_format="%.6g", lineterminator="\n")
        return Finished(folder, self._page(folder, table), table, self._lines(table))

    def _played(self, folder: Path, setting: str) -> list[dict[str, Any]]:
        config = self.config(setting, folder / "trainings")
        run = run_study(config, progress=SilentProgress())
        names = dict(zip([label for label, _ in labelled(config.strategies)], self.played, strict=True))
        with open(run / "metrics.csv", newline="") as file:
            lines = [line for line in csv.DictReader(file)
                     if int(line["round"]) == self.rounds and line["metric"] in METRICS]
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for line in lines:
            key = names[line["strategy"]], int(line["seed"])
            row = rows.setdefault(key, {"setting": setting, "strategy": key[0], "seed": key[1]})
            row[line["metric"]] = float(line["value"])
        shutil.rmtree(run)  # its numbers are kept here; a training's ledger holds no budget
        return [rows[key] for key in sorted(rows)]

    # ---- what is shown

    def _lines(self, table: pd.DataFrame) -> list[str]:
        lines = []
        for setting in SETTINGS:
            part = table[table["setting"] == setting]
            first, plain = part.iloc[0], part[part["strategy"] == "FedAvg"]
            text = f"{setting}: {first['strategy']} has the lowest RMSE, {first['rmse']:.3f} kWh"
            if len(plain) and first["strategy"] != "FedAvg":
                text += f" (FedAvg {number(plain.iloc[0]['rmse'])})"
            beaten = part[part["rmse"] > part["rmse_no_change"]]["strategy"].tolist()
            text += f"; to expect no change gives {first['rmse_no_change']:.3f}"
            lines.append(text + (f", which beats {', '.join(beaten)}" if beaten else ""))
        return lines

    def _page(self, folder: Path, table: pd.DataFrame) -> Path:
        return pages.write_page(
            folder / "report.html", title=self.title, meta=f"{folder.name} · {self.homes} homes, {self.rounds} rounds",
            short=self._lines(table), stamp="Not private: models travel as they are", plates=[self._plate(table)],
            parts=[pages.Part("settings", "Strategies by setting", pages.frame_table(
                       table, f"After {self.rounds} rounds, best first; means over {len(self.seeds)} seed(s) "
                       "and rmse_sd, their standard deviation; kWh; worst tenth: MAE of the tenth of the homes that the "
                       "model serves worst; no_change: the last step's value as forecast.")),
                   pages.Part("setting", "What the settings are", bullets([
                       *(f"{name}: {SAID[name]}" for name in SETTINGS),
                       f"liars: {self.liars:.0%} of the homes, the same in every round, add {self.push:g} to every weight, "
                       f"signs alternating. drop-outs: {self.lost:.0%} of the answers of a round are lost.",
                       "Every home weighs the same, trains and is judged in the same way; errors are on its last days."]))])

    def _plate(self, table: pd.DataFrame) -> Plate:
        figure, axes = pages.axes(1.1 + 0.22 * len(self.played), 1, len(SETTINGS), sharey=True)
        for k, (ax, setting) in enumerate(zip(axes, SETTINGS, strict=True)):
            part = table[table["setting"] == setting].set_index("strategy").reindex(self.played[::-1])
            still = float(part["rmse_no_change"].iloc[0])
            ax.barh(range(len(part)), part["rmse"].clip(upper=2 * still), color=PALETTE[k], alpha=0.6)
            ax.axvline(still, color="0.5", linewidth=1, linestyle="--")
            ax.set_title(setting)
            ax.set_xlabel("RMSE, kWh")
        axes[0].set_yticks(range(len(self.played)), self.played[::-1])
        return Plate("settings", "settings", "Error of the shared model, by setting",
                     "Dashed: to expect no change. Bars are cut at twice that.",
                     "RMSE of every strategy in four settings; the numbers are in the table.", figure)


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds and the sd of the RMSE, per setting the best first."""
    grouped = rows.groupby(["setting", "strategy"])
    table = grouped[list(METRICS)].mean()
    table.insert(1, "rmse_sd", grouped["rmse"].std())
    table = table.reset_index()
    order: Mapping[str, int] = {name: at for at, name in enumerate(SETTINGS)}
    table["at"] = table["setting"].map(order)
    return table.sort_values(["at", "rmse"], kind="stable", ignore_index=True).drop(columns="at")
