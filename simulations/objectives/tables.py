"""Rows of a run to tables: means and deviations over seeds, the source's numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedenergy.imputation.baselines import FROM_TRAINING
from fedenergy.privacy import accounting
from fedenergy.report import markup
from fedenergy.report.words import number, spread
from simulations import pages
from simulations.objectives import paper
from simulations.objectives.runs import Results
from simulations.objectives.settings import AS_PUBLISHED, LITERAL, NO_PRIVACY, SUFFIX, TRUE_EPSILON, Condition

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

KEYS = ["dataset", "pattern", "rate", "method", "regime", "asked", "sampler"]
METRICS = ("mse", "mae", "rmse")
NOT_RUN = "not run"
WORDS = {AS_PUBLISHED: "as published", TRUE_EPSILON: "true ε", NO_PRIVACY: "no privacy"}


@dataclass(frozen=True)
class View:
    """One way to look at a run: a regime, the epsilon asked and a sampler."""

    regime: str
    asked: float
    sampler: str

    @property
    def words(self) -> str:
        """As text: "true ε 10, clip_x0 sampler"."""
        return f"{self.regime_words}, {self.sampler} sampler"

    @property
    def regime_words(self) -> str:
        """"true ε 10"."""
        return WORDS[self.regime] + ("" if self.regime != TRUE_EPSILON else f" {self.asked:g}")


class Cells:
    """Means over seeds by (dataset, pattern, rate, method, view); sampler-free rows answer for every sampler."""

    def __init__(self, table: pd.DataFrame):
        self._found: dict[tuple, Mapping[str, float]] = {}
        for row in table.to_dict("records"):
            asked = -1.0 if math.isnan(row["asked"]) else row["asked"]
            self._found[(row["dataset"], row["pattern"], row["rate"], row["method"], row["regime"], asked,
                         row["sampler"])] = row

    def get(self, dataset: str, pattern: str, rate: float, method: str, view: View, metric: str) -> float | None:
        """The mean over seeds, None where the cell was not run."""
        head = (dataset, pattern, float(rate), method, view.regime, -1.0 if view.regime == NO_PRIVACY else view.asked)
        for sampler in (view.sampler, "one pass", ""):
            if (row := self._found.get((*head, sampler))) is not None:
                return None if math.isnan(row[metric]) else row[metric]
        return None


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: mean and sd (ddof 1) over seeds, their number, and MSE over the best free baseline's."""
    if rows.empty:
        return pd.DataFrame(columns=[*KEYS, *METRICS, *(f"{m}_sd" for m in METRICS), "mse_mean", "seeds", "ratio"])
    group = rows.groupby(KEYS, dropna=False, sort=False)
    table = group[[*METRICS, "mse_mean"]].mean().join(group[list(METRICS)].std(ddof=1).add_suffix("_sd"))
    table = table.join(group["seed"].nunique().rename("seeds")).reset_index()
    best = best_free(table)
    at = pd.MultiIndex.from_frame(table[["dataset", "pattern", "rate"]])
    return table.assign(ratio=table["mse"].to_numpy() / best.reindex(at).to_numpy())


def best_free(table: pd.DataFrame) -> pd.Series:
    """The lowest MSE of a baseline that costs nothing, by (dataset, pattern, rate)."""
    return table[table["regime"] == "free"].groupby(["dataset", "pattern", "rate"])["mse"].min()


def true_epsilon(costs: pd.DataFrame) -> dict[tuple[str, str, str, float], float]:
    """(dataset, method, regime, asked) -> the largest epsilon that a seed cost (PLD)."""
    if costs.empty:
        return {}
    group = costs.assign(asked=costs["asked"].astype(float).fillna(-1.0)).groupby(["dataset", "method", "regime", "asked"])
    return group["epsilon"].max().to_dict()


def household(epsilon: float, delta: float, windows: int) -> str:
    """What holds for a home so many of whose windows were records: the group bound, or that none is left.

    >>> household(0.1, 1e-5, 3), household(10.0, 1e-5, 127)
    ('0.300, δ 3e-05', 'none')
    """
    if not math.isfinite(epsilon):
        return "none"
    bound, failure = accounting.group(epsilon, delta, windows)
    return "none" if failure >= 1.0 else f"{number(bound)}, δ {failure:.1g}"


def condition_words(condition: Condition) -> str:
    """A condition as text.

    >>> condition_words(("random", 0.5)), condition_words(("suffix", 24))
    ('random, 50 % missing', 'last 24 steps hidden')
    """
    pattern, rate = condition
    if pattern == SUFFIX:
        return f"last {rate:g} steps hidden"
    return "real outage lengths" if pattern == "real outages" else f"{pattern}, {rate:.0%} missing".replace("%", " %")


def measured(study: Objectives, table: pd.DataFrame, costs: pd.DataFrame, dataset: str, condition: Condition) -> str:
    """One condition of one data set as HTML: a row per method and regime, MSE by sampler, MAE, RMSE."""
    here = table[(table["dataset"] == dataset) & (table["pattern"] == condition[0]) & (table["rate"] == condition[1])]
    epsilons = true_epsilon(costs)
    own = [row for row in costs.to_dict("records") if row["dataset"] == dataset]
    windows = {row["method"]: row["home_windows"] for row in own}
    source = number(source_epsilon(own[0]["q"]), 4) if own else ""
    titles = ["method", "regime", "seeds", "true ε", "ε, household", *(f"MSE, {name}" for name in study.samplers),
              f"MAE, {study.samplers[0]}", f"RMSE, {study.samplers[0]}", "MSE / best free",
              "source: MSE", "source: MAE", "source: true ε"]
    lines = []
    for (regime, asked, method), part in here.groupby(["regime", "asked", "method"], dropna=False, sort=False):
        by = {row["sampler"]: row for row in part.to_dict("records")}
        first = by.get(study.samplers[0]) or next(iter(by.values()))
        alone = next(iter(by)) not in study.samplers
        trained = regime in WORDS
        epsilon = epsilons.get((dataset, method, regime, -1.0 if math.isnan(asked) else asked))
        if method == "dp_gp":
            epsilon = asked
        told = mae = ""
        if trained and regime != NO_PRIVACY:
            told, mae = (_quoted(dataset, condition, method, asked, metric) for metric in ("mse", "mae"))
        mses = [_spread(by[name], "mse") if name in by else ("" if alone else NOT_RUN) for name in study.samplers]
        if alone:
            mses[0] = _spread(first, "mse")
        lines.append([
            method, WORDS.get(regime, regime) + (f" {asked:g}" if regime == TRUE_EPSILON else ""),
            f"{first['seeds']} of {len(study.seeds)}" if trained else "",
            "∞" if regime in (NO_PRIVACY, "no privacy") else "0" if epsilon is None else number(epsilon, 4),
            "" if regime == "free" else household(math.inf if epsilon is None else epsilon, study.delta,
                                                  int(windows.get(method, max(windows.values(), default=1)))),
            *mses, _spread(first, "mae"), _spread(first, "rmse"), number(first["ratio"]),
            told, mae, "" if not (told or mae) else source if asked == paper.EPSILON else "σ not given"])
    run = {(line[0], line[1]) for line in lines}
    for regime in dict.fromkeys(view.regime_words for view in views(study)):
        lines += [[method, regime, f"0 of {len(study.seeds)}", "", "", NOT_RUN, *[""] * (len(titles) - 6)]
                  for method in study.methods
                  if (method, regime) not in run]
    lines.sort(key=lambda line: _rank(study, line))
    return markup.table(titles, lines, f"{dataset}: {condition_words(condition)}. Mean ± sd over seeds, original units, "
                        "errors only where hidden. A filling that needs no sampler stands in the first MSE column. The "
                        "source states the ε of the regime (10 as published); its true ε: what its σ and steps cost on "
                        "these windows.",
                        ["method", "regime", "ε, household"], group=1, tall=False)


def _quoted(dataset: str, condition: Condition, method: str, asked: float, metric: str) -> str:
    """The source's number as text, with its deviation where table C.13 gives one; "" where the text at hand has none."""
    value = paper.quoted(dataset, *condition, method, asked, metric)
    if value is None:
        return ""
    deviation = paper.TABLE_C13.get((dataset, condition[0], method)) if (metric, condition[1], asked) == (
        "mae", 0.5, paper.EPSILON) else None
    return f"{value:,.2f}" + ("" if deviation is None else f" ± {deviation[1]:g}")


def _rank(study: Objectives, line: list[str]) -> tuple[int, int]:
    """Free rows first, then regime by regime in the study's order."""
    regimes = ["free", *dict.fromkeys(view.regime_words for view in views(study)), "no privacy"]
    if line[0] in FROM_TRAINING:
        return 1, 0
    names = ["dp_gp", *study.methods]
    return 2 * regimes.index(line[1]), names.index(line[0]) if line[0] in names else -1


@lru_cache(maxsize=64)
def source_epsilon(q: float) -> float:
    """What the source's sigma and steps cost at an inclusion probability."""
    return accounting.epsilon(paper.SIGMA, q, paper.STEPS, paper.DELTA)


def _spread(row: Mapping[str, float], metric: str) -> str:
    return spread(row[metric], row[f"{metric}_sd"])


def averaged(cells: Cells, dataset: str, conditions: Iterable[Condition], method: str, view: View,
             metric: str) -> float | None:
    """Mean over conditions; None unless all were run."""
    values = [cells.get(dataset, *condition, method, view, metric) for condition in conditions]
    return float(np.mean(values)) if values and None not in values else None


def decrease(before: float | None, after: float | None) -> float | None:
    """Relative decrease in %.

    >>> decrease(4.0, 1.0), decrease(None, 1.0)
    (75.0, None)
    """
    return None if before is None or after is None else 100 * (before - after) / before


def table_3(study: Objectives, cells: Cells, views: Iterable[View], conditions: list[Condition]) -> str:
    """Relative decreases of mean MSE and MAE over the conditions that were run."""
    pairs = ((paper.EPS, paper.EPS_DYNAMIC), (paper.EPS, paper.V), (paper.V, paper.V_DYNAMIC))
    lines = []
    for dataset in study.datasets:
        for before, after in pairs:
            for view in views:
                ours = [decrease(*(averaged(cells, dataset, conditions, m, view, metric) for m in (before, after)))
                        for metric in ("mse", "mae")]
                source = paper.TABLE_3.get(dataset) if after == paper.EPS_DYNAMIC else None
                ranges = paper.TABLE_3_RANGES.get((before, after))
                told = ([f"{x:g}" for x in source] if source
                        else [f"{a:g} to {b:g}" for a, b in ranges.values()] if ranges else ["", ""])
                lines.append([dataset, f"{before} → {after}", view.words,
                              *(NOT_RUN if x is None else f"{x:.2f}" for x in ours), *told])
    return markup.table(["data set", "change", "view", "MSE (%)", "MAE (%)", "source: MSE (%)", "source: MAE (%)"], lines,
                        f"Relative decrease of the mean over {len(conditions)} conditions (the source's table 3 has 12); "
                        "positive: better. The source's ranges are over its five sets.", ["change", "view"])


def table_5(study: Objectives, cells: Cells, views: Iterable[View]) -> str:
    """MAE averaged over patterns by rate."""
    lines = []
    patterns = [p for p in study.patterns if p in paper.PATTERNS]
    for dataset in study.datasets:
        for method in study.methods:
            for view in views:
                ours = [averaged(cells, dataset, [(p, rate) for p in patterns], method, view, "mae") for rate in study.rates]
                told = paper.TABLE_5.get((dataset, method), ("", ""))
                lines.append([dataset, method, view.words, *(NOT_RUN if x is None else number(x) for x in ours),
                              *(str(x) for x in told)])
    return markup.table(["data set", "method", "view", *(f"{100 * rate:g} %" for rate in study.rates), "source: 10 %",
                         "source: 50 %"], lines, "MAE averaged over the patterns.", ["method", "view"], group=1)


def table_4(results: Results) -> str:
    """Norms of the last 20 % of steps beside the source's."""
    if results.norms.empty:
        return markup.paragraph("No gradient norms: nothing was trained with DP-SGD.")
    names = ["mean", "p50", "p95", "p99", "clipped"]
    lines = []
    group = results.norms.groupby(["dataset", "method", "regime", "asked"], sort=False)
    for (dataset, method, regime, asked), part in group:
        told = paper.TABLE_4.get((dataset, method)) if regime == AS_PUBLISHED else None
        lines.append([dataset, method, WORDS[regime] + (f" {asked:g}" if regime == TRUE_EPSILON else ""),
                      *(spread(part[name].mean(), part[name].std(ddof=1)) for name in names),
                      *(["" if x is None else f"{x:g}" for x in told] if told else [""] * 5)])
    titles = ["mean", "median", "p95", "p99", "clipped"]
    return markup.table(["data set", "method", "regime", *titles, *(f"source: {title}" for title in titles)], lines,
                        "Norms of single records before clipping, last 20 % of the steps, mean ± sd over seeds; clipped: "
                        "share above C. Lab only: private statistics that DP-SGD does not cover.",
                        ["method", "regime"], group=2)


def table_i17(results: Results) -> str:
    """Controlled attenuation by time bin."""
    if results.attenuations.empty:
        return markup.paragraph("Not run: no unweighted v checkpoint was trained.")
    lines = []
    group = results.attenuations.groupby(["dataset", "regime", "low", "high"], sort=False)
    for (dataset, regime, low, high), part in group:
        told = [source.get(dataset, (None, None))[0 if low == 0 else 1] if low in (0, 900) and regime == AS_PUBLISHED
                else None for source in (paper.TABLE_I17, paper.I17_P95)]
        lines.append([dataset, WORDS[regime], f"{low}–{high}",
                      *(f"{100 * part[name].mean():.3f}" for name in ("median", "ratio_of_medians", "ratio_of_p95")),
                      *("" if x is None else f"{x:g}" for x in told)])
    return markup.table(["data set", "regime", "t", "median attenuation (%)", "1 − ratio of medians (%)",
                         "1 − ratio of p95 (%)", "source: medians (%)", "source: p95 (%)"], lines,
                        "The same v checkpoint, windows, masks, noise "
                        "and times; only the weight changes from 1 to ᾱ_t. A draw's attenuation is exactly 1 − ᾱ_t; the "
                        "source's figure is a ratio of median norms. Lab only.", ["regime", "t"], group=1)


def table_8(study: Objectives, results: Results) -> str:
    """What tuning chose, and what it cost."""
    if results.costs.empty or "checkpoint" not in results.costs:
        return markup.paragraph("Not run: no tuned eps.")
    lines = []
    for row in results.costs[results.costs["checkpoint"].notna()].to_dict("records"):
        told = paper.TABLE_8.get(row["dataset"])
        one = accounting.epsilon(row["sigma"], row["q"], int(row["steps"]), study.delta)
        lines.append([row["dataset"], WORDS[row["regime"]] + (f" {row['asked']:g}" if row["regime"] == TRUE_EPSILON else ""),
                      str(row["seed"]), f"{row['clip']:g}", f"{row['rate']:g}",
                      f"{row['checkpoint']:,.0f}", number(row["valid"]), f"{row['runs']:.0f}", number(one, 4),
                      number(row["epsilon"], 4),
                      "" if told is None else "C {:g}, rate {:g}, step {:,}, loss {:g}".format(*told)])
    return markup.table(["data set", "regime", "seed", "C", "rate", "checkpoint", "validation loss", "runs", "ε, one run",
                         "ε, all runs", "source"], lines, "Chosen by validation loss. The choice reads every run: all of "
                        "them are charged. That the choice reads the validation windows is not covered.",
                        ["regime", "source"])


def table_8_errors(study: Objectives, cells: Cells, views: Iterable[View]) -> str:
    """MAE and RMSE of tuned eps, eps and v, averaged over the rates of a pattern and over the horizons."""
    groups = {pattern: [(pattern, rate) for rate in study.rates] for pattern in study.patterns if pattern in paper.PATTERNS}
    groups |= {SUFFIX: [(SUFFIX, h) for h in study.horizons]} if study.horizons else {}
    names, lines = [("tuned", "eps tuned"), (paper.EPS, paper.EPS), (paper.V, paper.V)], []
    for dataset in study.datasets:
        for group, conditions in groups.items():
            told = paper.TABLE_8_MAE.get((dataset, group), {})
            for view in views:
                source = told if (view.regime, view.sampler) == (AS_PUBLISHED, LITERAL) else {}
                for key, method in names:
                    ours = [averaged(cells, dataset, conditions, method, view, metric) for metric in ("mae", "rmse")]
                    lines.append([dataset, group, view.words, method, *(NOT_RUN if x is None else number(x) for x in ours),
                                  f"{source[key]:g}" if key in source else ""])
    return markup.table(["data set", "hidden", "view", "method", "MAE", "RMSE", "source: MAE"], lines,
                        "Means over the rates of a pattern, or over the horizons.", ["hidden", "view", "method"], group=2)


def costs_table(study: Objectives, results: Results) -> str:
    """What every regime cost."""
    if results.costs.empty:
        return ""
    lines = []
    for (dataset, regime, asked), part in results.costs.groupby(["dataset", "regime", "asked"], dropna=False, sort=False):
        row = part[part["method"] != "eps tuned"].iloc[0] if (part["method"] != "eps tuned").any() else part.iloc[0]
        private = regime != NO_PRIVACY
        lines.append([dataset, WORDS[regime] + (f" {asked:g}" if regime == TRUE_EPSILON else ""), f"{row['n']:,}",
                      f"{row['steps']:,}", *([f"{row['sigma']:.4g}", f"{row['q']:.4g}", f"{row['clip']:g}",
                      number(row["epsilon"], 4), number(row["epsilon_rdp"], 4), number(row["replace_one"], 4),
                      f"{study.delta:g}",
                      household(row["epsilon"], study.delta, int(row["home_windows"])),
                      "10 claimed" if regime == AS_PUBLISHED else f"{asked:g} asked"] if private else [""] * 9)])
    return markup.table(["data set", "regime", "windows", "steps", "σ", "q", "C", "ε, PLD", "ε, RDP", "ε, replace-one", "δ",
                         "ε, household", "stated"], lines, "One window is the unit; add/remove, Poisson batches, from the "
                        "steps that ran, empty batches included. Household: all windows of one home or transformer; none: "
                        "the group bound leaves no guarantee.", ["regime", "ε, household", "stated"])


def frame(table: pd.DataFrame) -> str:
    """Every row, for a collapsed block."""
    shown = table.assign(asked=["" if math.isnan(x) else f"{x:g}" for x in table["asked"].astype(float)])
    return pages.frame_table(shown.drop(columns=["seeds"]), "All cells.")


def views(study: Objectives) -> list[View]:
    """Views of a study, the source's first: as published with the literal sampler."""
    found = []
    for regime in study.regimes:
        asked = {AS_PUBLISHED: (paper.EPSILON,), TRUE_EPSILON: study.epsilons}.get(regime, (-1.0,))
        found += [View(regime, epsilon, name) for epsilon in asked for name in study.samplers]
    found.sort(key=lambda view: (view.regime != AS_PUBLISHED, view.sampler != LITERAL))
    return found
