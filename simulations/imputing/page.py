"""Result files, claims and page of the private imputation study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from fedenergy.privacy.noise import SimulationNoise
from fedenergy.report import markup
from fedenergy.report.axes import TEXT
from fedenergy.report.gallery import Plate
from fedenergy.report.svg import INK, MUTED, PALETTE
from fedenergy.studies import Finished, write_results
from simulations import pages
from simulations.imputing.cells import (
    BY_HOME,
    DEFAULT,
    DIFFUSION,
    FREE,
    FULL,
    GP,
    OBJECTIVES,
    PRIVATE,
    TUNED,
    TWIN,
    unpacked,
)
from simulations.pages import Claim, judged, plain_ticks

if TYPE_CHECKING:
    from simulations.private_imputation import PrivateImputation

KEYS = ["dataset", "pattern", "rate"]
REACH = {"random": 0.945, "block": 0.90, "outage": 0.875}      # of the best free MSE on London at epsilon 2
EVEN = 1.001            # a ratio up to here counts as no worse: rounding of a table
FAR = 2.0               # standard errors (over test windows, paired) by which a cell counts as lost beyond chance
TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)


def publish(study: PrivateImputation, folder: Path, raw: pd.DataFrame, said: Sequence[str],
            absent: Sequence[str]) -> Finished:
    """Write everything; the table is that of `summarise`."""
    raw = raw.assign(mechanism=["gaussian" if regime == PRIVATE else "none" for regime in raw["regime"]],
                     objective=raw["method"], twin=[e == np.inf for e in raw["epsilon"]],
                     epsilon=[np.nan if e is None or e == np.inf else e for e in raw["epsilon"]])
    write_results(folder, raw, vary=(*KEYS, "objective", "regime", "unit"), metrics=("mse", "mae"))
    table = summarise(raw)
    cells = standings(table, raw)
    lost = lost_cells(cells)
    table.to_csv(folder / "table.csv", index=False, float_format="%.6g", lineterminator="\n")
    lost.to_csv(folder / "lost.csv", index=False, float_format="%.6g", lineterminator="\n")
    claims = claims_of(table, cells)
    plates = [Plate(f"private_imputation_{name}", "figure", f"{name}: error against epsilon",
                    "MSE of the mean over that of the best free baseline of the pattern; bars: sd over noise seeds.",
                    f"MSE ratio against epsilon on {name}, by pattern.", figure(table, name))
              for name in dict.fromkeys(raw["dataset"])]
    digits = {name: (lambda v: "" if pd.isna(v) else f"{v:.4g}") for name in
              ("epsilon", "spent", "household", "mse", "mae", "mse_sd", "mae_sd", "ratio", "mae_ratio", "mse_behind",
               "mae_behind")}
    parts = [pages.Part("figure", "Error against epsilon"),
             pages.Part("lost", "Cells in which a free baseline is better",
                        pages.frame_table(lost, "The default method's; ratio: MSE, mae_ratio: MAE, over the best free one "
                                          "(chosen in hindsight, by each measure); behind: the difference in standard "
                                          "errors, paired over test windows as if independent (below 0: ahead).",
                                          digits) if len(lost) else "<p>None.</p>"),
             pages.Part("table", "All cells", pages.frame_table(
                 table.drop(columns="twin"), "MSE by the mean, MAE by the median; spent: epsilon of a unit, replace-one; "
                 "household: of all windows of a home together.", digits)),
             pages.Part("holds", "What holds", pages.claims_table(claims, "What was to be reached.") if claims else ""),
             pages.Part("privacy", "What it costs", markup.bullets([*absent, *said]))]
    page = pages.write_page(folder / "report.html", title=study.title, plates=plates, parts=parts,
                            stamp=SimulationNoise(0).stamp.capitalize(),
                            meta=f"{folder.name} · delta {study.delta:g} · "
                                 f"{len(study.seeds)} noise seed{'s' * (len(study.seeds) > 1)}",
                            short=[f"{c.figure}: {c.claim}: {c.verdict} ({c.ours})." for c in claims]
                            or ["No claim is judged on these data."])
    return Finished(folder, page, table, [*absent, *(f"{c.figure}: {c.claim}: {c.verdict} ({c.ours})" for c in claims)])


def summarise(raw: pd.DataFrame) -> pd.DataFrame:
    """Mean and sd over noise seeds (no sd of a single one), and the ratios to the best free baseline of the same data set,
    pattern and rate."""
    keys = [*KEYS, "method", "regime", "unit", "epsilon", "twin", "choice"]
    group = raw.groupby(keys, dropna=False, sort=False)
    table = group[["mse", "mae"]].mean().join(group[["mse", "mae"]].std(ddof=1).add_suffix("_sd"))
    table = table.join(raw.astype({"spent": float, "household": float}).groupby(keys, dropna=False, sort=False)
                       [["spent", "household"]].max()).reset_index()
    best = table[table["regime"] == FREE].groupby(KEYS)[["mse", "mae"]].min()
    at = pd.MultiIndex.from_frame(table[KEYS])
    return table.assign(ratio=table["mse"].to_numpy() / best["mse"].reindex(at).to_numpy(),
                        mae_ratio=table["mae"].to_numpy() / best["mae"].reindex(at).to_numpy())


def standings(table: pd.DataFrame, raw: pd.DataFrame) -> pd.DataFrame:
    """The default method's cells at a true epsilon, against the best free baseline of each measure.

    mse_behind, mae_behind   by how many standard errors (paired, windows taken as independent; below 0: it is ahead)
    """
    cells = table[(table["method"] == DEFAULT) & (table["regime"] == PRIVATE)]
    free, mine = raw[raw["regime"] == FREE], raw[(raw["method"] == DEFAULT) & (raw["regime"] == PRIVATE)]
    found = []
    for row in cells.itertuples():
        rivals, own = free[_same(free, row, KEYS)], mine[_same(mine, row, [*KEYS, "unit", "epsilon"])]
        errors = np.mean([unpacked(text) for text in own["by_window"]], axis=0)
        best = [rivals.loc[rivals[measure].idxmin(), "by_window"] for measure in ("mse", "mae")]
        found.append([standard_errors(errors[k] - unpacked(best[k])[k]) for k in range(2)])
    behind = dict(zip(("mse_behind", "mae_behind"), np.array(found).reshape(-1, 2).T))
    return cells[[*KEYS, "unit", "epsilon", "choice", "ratio", "mae_ratio"]].assign(**behind).reset_index(drop=True)


def lost_cells(cells: pd.DataFrame) -> pd.DataFrame:
    """Those of `standings` in which the best free baseline has a lower MSE or MAE."""
    return cells[(cells["ratio"] > EVEN) | (cells["mae_ratio"] > EVEN)].reset_index(drop=True)


def _same(rows: pd.DataFrame, cell: tuple, keys: Sequence[str]) -> np.ndarray:
    return np.logical_and.reduce([rows[key] == getattr(cell, key) for key in keys])


def standard_errors(difference: np.ndarray) -> float:
    """Sum of (n,) differences over its standard error; NaN for one window.

    >>> round(standard_errors(np.array([1.0, 3.0])), 12)
    2.0
    """
    total = float(difference.sum())
    spread = math.sqrt(len(difference)) * float(np.std(difference, ddof=1)) if len(difference) > 1 else math.nan
    return total / spread if spread else math.copysign(math.inf, total) if total else 0.0


def _private(table: pd.DataFrame, method: str, epsilon: float | None = None, unit: str = "window") -> pd.DataFrame:
    rows = table[(table["method"] == method) & (table["regime"] == PRIVATE) & (table["unit"] == unit)]
    return rows if epsilon is None else rows[rows["epsilon"] == epsilon]


def claims_of(table: pd.DataFrame, cells: pd.DataFrame) -> list[Claim]:
    """What was to be reached, and what this run yields; cells: `standings`."""
    found = []
    london = table[(table["dataset"] == "london") & (table["rate"] == 0.5)]
    for pattern, goal in REACH.items():
        here = london[london["pattern"] == pattern]
        for two in _private(here, GP, 2.0).itertuples():
            found.append(Claim("London, ε 2", f"dp_gp, {pattern}: MSE at most {goal:g} of the best free baseline",
                               f"{goal:g}", f"{two.ratio:.3f}", judged(two.ratio <= goal), "mean over noise seeds",
                               own=True))
        for method in (GP, DEFAULT, DIFFUSION, TUNED, BY_HOME):
            for ten in _private(here, method, 10.0).itertuples():
                over = ten.mse / here[here["method"] == FULL]["mse"].iloc[0]
                found.append(Claim("London, ε 10", f"{method}, {pattern}: within 5 % of the non-private full covariance",
                                   "1.05", f"{over:.3f}", judged(over <= 1.05), "mean over noise seeds", own=True))
        for method in (DIFFUSION, TUNED, BY_HOME):
            for reference in (GP, DEFAULT):
                rows, alone = _private(here, method).set_index("epsilon"), _private(here, reference).set_index("epsilon")
                if pattern == "random" or not len(rows):
                    continue
                gain = 1 - rows["mse"] / alone["mse"].reindex(rows.index)
                shown = ", ".join(f"ε {e:g}: {g:.1%}" for e, g in gain.items())
                found.append(Claim("London", f"{method}, {pattern}: MSE at least 5 % below {reference} at the same epsilon",
                                   "5 %", shown, judged(*(gain >= 0.05)), "mean over noise seeds", own=True))
    for dataset, rows in cells.groupby("dataset", sort=False):
        worse, behind = len(lost_cells(rows)), rows[["mse_behind", "mae_behind"]]
        ahead = (behind < -FAR).sum()
        shown = (f"{len(rows) - worse} of {len(rows)} cells, worst ratio {rows[['ratio', 'mae_ratio']].max(axis=None):.3f}; "
                 f"by more than {FAR:g} standard errors: {(behind > FAR).any(axis=1).sum()} behind, "
                 f"{ahead['mse_behind']} ahead in MSE, {ahead['mae_behind']} in MAE")
        found.append(Claim(dataset, "default: no worse than the best free baseline in MSE and MAE, every cell", "all", shown,
                           judged(not worse), f"ratios up to {EVEN:g}", own=True))
    for method in OBJECTIVES:
        for dataset, rows in _private(table, method).groupby("dataset", sort=False):
            mine = _private(table[table["dataset"] == dataset], DEFAULT).set_index([*KEYS, "epsilon"])["mse"]
            times = (rows.set_index([*KEYS, "epsilon"])["mse"] / mine).dropna()
            if len(times):
                found.append(Claim(dataset, f"default: a tenth of the MSE of {method} (small net) at the same true epsilon",
                                   "10", f"{times.min():.1f} to {times.max():.0f} times lower", judged(*(times >= 10)),
                                   "every pattern and rate", own=True))
    return found


def figure(table: pd.DataFrame, dataset: str):
    """MSE over the best free baseline against epsilon, one panel per pattern; below 1 it is worth its cost."""
    rows = table[(table["dataset"] == dataset) & (table["rate"] == table["rate"].max())]
    patterns = list(dict.fromkeys(rows["pattern"]))
    drawn, found = pages.axes(2.9, columns=len(patterns), sharey=True)
    epsilons = sorted(rows["epsilon"].dropna().unique())
    lines = [(GP, "window", 0, "o", "-"), (DEFAULT, "window", 1, "s", "-"), (TUNED, "window", 2, "^", "-"),
             (DIFFUSION, "window", 3, "v", "-"), (BY_HOME, "window", 4, "D", "-"), (GP, "household", 0, "o", ":"),
             (DEFAULT, "household", 1, "s", ":")]
    shown = []
    for ax, pattern in zip(found, patterns):
        here = rows[rows["pattern"] == pattern]
        for method, unit, colour, marker, style in lines:
            line = _private(here, method, unit=unit).sort_values("epsilon")
            if len(line):
                spread = line["mse_sd"] / line["mse"] * line["ratio"]
                ax.errorbar(line["epsilon"], line["ratio"], spread, color=PALETTE[colour], marker=marker, markersize=3.5,
                            linewidth=1.4, linestyle=style, label=f"{method}, {unit}")
                shown += line["ratio"].tolist()
        for method, style in ((TWIN, (0, (4, 2))), (FULL, (0, (1, 1.5))), (DEFAULT, (0, (4, 2))), (DIFFUSION, (0, (6, 1)))):
            line = here[(here["method"] == method) & (here["regime"] != PRIVATE)]
            if len(line) and (method != DEFAULT or not (here["method"] == TWIN).any()):
                label = method if method in (TWIN, FULL) else f"{method}, no noise"
                ax.axhline(line["ratio"].iloc[0], color=MUTED, linestyle=style, linewidth=1.2, label=label)
                shown.append(line["ratio"].iloc[0])
        ax.axhline(1.0, color=INK, linewidth=1.0, label="best free baseline")
        ax.set(xscale="log", yscale="log", xlabel="ε")
        ax.set_title(pattern, fontsize=TEXT, color=INK)
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        ax.set_xticks([], minor=True)
    found[0].set_ylabel("MSE / best free")
    low, high = min(0.95, 0.95 * np.min(shown)), max(1.05, 1.1 * np.max(shown))
    found[0].set_ylim(low, high)
    found[0].yaxis.set_major_locator(FixedLocator([v for v in TICKS if low <= v <= high]))
    plain_ticks(found[0].yaxis)
    pages.legend(drawn, found[0], 2)
    return drawn
