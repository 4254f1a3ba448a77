"""Every aggregation strategy on the same releases: equal and mixed budgets, honest homes and some that lie.

    python -m simulations.strategies_compared [configs/strategies.toml] [--quick]
    python -m simulations.strategies_compared --profile      the prior of configs/strategies.toml, computed again

Beside the run's own report it writes strategies.csv: one row per strategy, asked epsilon, cautious homes and attack.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

import fedenergy as fe
from fedenergy import ids
from fedenergy.box.policy import Case, Counter, Offer, Refuse
from fedenergy.config import Config, load
from fedenergy.explain.summary import Explainer
from fedenergy.federation.study import run_study
from fedenergy.households.population import Population
from fedenergy.progress import open_progress
from fedenergy.report.report import Report

CONFIG = "configs/strategies.toml"
SCORES = ("cosine", "spearman", "top1", "mae", "cosine_total", "mae_total")
ATTACKED = re.compile(r"Byzantine\(inner=[\w.]+:(?P<inner>\w+)(?:, (?P<rest>.*))?\)")
ARGUMENTS = r"(, )?arguments=\{.*\}"
PANEL_SEED, PANEL_HOMES = 2, 100


@dataclass(frozen=True)
class PerHome:
    """A policy: most homes grant what is asked, the cautious ones at most `epsilon`.

    homes    ids of the cautious homes
    share    besides those, the share of all homes that are cautious, chosen by a hash of the id: public, so that an
             offer says nothing about a home's data
    """

    homes: tuple[str, ...] = ()
    share: float = 0.0
    epsilon: float = 0.16

    def __post_init__(self) -> None:
        object.__setattr__(self, "homes", tuple(self.homes))
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 <= self.share <= 1:
            raise ValueError(f"[policy] share = {self.share!r} of PerHome is not a number from 0 to 1")
        fe.Fixed(self.epsilon)  # its own check, now rather than in a worker

    def cautious(self, household: str) -> bool:
        """Whether a home is one of the cautious."""
        draw = int.from_bytes(ids.digest(b"fe.cautious.1", household, 8), "little") / 2**64
        return household in self.homes or draw < self.share

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        return fe.Fixed(self.epsilon if self.cautious(case.agreement.household) else None).offer(case)


def comparison(table: pd.DataFrame) -> pd.DataFrame:
    """A Report's table with attacked strategies under their own name and the attack beside it.

    Columns: epsilon (asked), what the config varies, attack, strategy, trust, answers, n (seeds), then mean and sd of
    each score: cosine, Spearman, top-1, MAE against the clipped sum of those who answered; _total against the unclipped
    sum of all homes.
    """
    found = table["strategy"].str.extract(ATTACKED)
    attack = ("some homes lie, " + found["rest"].fillna("").str.replace(ARGUMENTS, "", regex=True)).str.strip(", ")
    frame = table.assign(strategy=found["inner"].fillna(table["strategy"]),
                         attack=np.where(found["inner"].isna(), "none", attack))
    varied = [key for key in table if key.startswith(("policy.", "query.", "population.", "task."))]
    scores = [name for score in SCORES for name in (score, f"{score}_sd") if name in table]
    keys = ["epsilon", *varied, "attack"]
    frame = frame.sort_values([*keys, "cosine"], ascending=[True] * len(keys) + [False], kind="stable")
    return frame[[*keys, "strategy", "trust", "answers", "n", *scores]].reset_index(drop=True)


def reference_profile(panel: Population, task: fe.Explain, rounds: int) -> np.ndarray:
    """Mean clipped S (d,), kWh^2, of a panel of homes that publish theirs: what a public profile would be.

    The panel's homes are none of the study's, so their profile costs the study's homes nothing.
    """
    explainer = Explainer(lags=task.lags, trees=task.trees, depth=task.depth, bins=task.bins)
    windows = task.windows(panel, rounds, "next_window")
    values = np.array([explainer.summary(panel.load(home), slice(*window.rows)).values
                       for home in range(len(panel)) for window in windows])
    norms = np.abs(values).sum(axis=1, keepdims=True)
    return (values * np.minimum(1.0, task.clip / np.maximum(norms, 1e-12))).mean(axis=0)


def main(config: Config | None = None) -> Report:
    """Run the study (default: configs/strategies.toml), write its page and strategies.csv. Returns the Report."""
    config = load(CONFIG) if config is None else config
    report = Report(run_study(config, progress=open_progress()))
    comparison(report.table).to_csv(report.folder / "strategies.csv", index=False, float_format="%.6g",
                                    lineterminator="\n")
    report.to_html()
    return report


def _profile(config: Config) -> np.ndarray:
    panel = {**config.population.args, "count": PANEL_HOMES, "seed": PANEL_SEED}
    return reference_profile(fe.simulate_households(**panel), config.task.build(), config.query.args["rounds"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG)
    parser.add_argument("--quick", action="store_true", help="toy size")
    parser.add_argument("--profile", action="store_true", help="compute the public profile and stop")
    options = parser.parse_args()
    study = load(options.config, quick=options.quick)
    if options.profile:
        print(np.round(_profile(study), 2).tolist())
    else:
        done = main(study)
        print(comparison(done.table).to_string(index=False, float_format=lambda value: f"{value:.3g}"))
        print(done.folder / "strategies.csv")
