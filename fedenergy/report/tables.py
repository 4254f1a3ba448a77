"""From tidy metrics to tables: mean and spread over seeds, and a ranking with paired intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from fedenergy.report.words import ABSENT, METRICS, epsilon_text, heading, labels, lower_is_better, number, spread

if TYPE_CHECKING:
    from rich.table import Table

ENTRANT = ["strategy", "trust"]
SETTING = ["population", "policy", "epsilon"]
CUMULATIVE = (
    "epsilon_spent_mean",
    "epsilon_spent_max",
)  # running totals: the last round counts, not the mean over rounds
TRAINING = "train_loss"  # runs that have it train a model: what counts is the last round's
EPSILON = "ε asked"
REPEATED = ("trust", "mechanism", "policy", "epsilon", "seed")


def varied_keys(metrics: pd.DataFrame, cells: pd.DataFrame | None) -> list[str]:
    """Columns of cells that tell settings apart and are not already a column of metrics under another name."""
    if cells is None or cells.empty:
        return []
    per_cell = metrics.drop_duplicates("cell").set_index("cell")
    described = cells.set_index("cell")
    described = described.loc[described.index.intersection(per_cell.index)]
    keys = []
    for key in described.columns:
        column = described[key]
        if column.nunique(dropna=False) < 2 or (key in REPEATED and key != "mechanism"):
            continue
        if key == "mechanism":  # a strategy brings its mechanism; only one that varies within a strategy is a setting
            within = metrics[["cell", "strategy"]].drop_duplicates().merge(cells[["cell", key]], on="cell")
            if within.groupby("strategy")[key].nunique().max() < 2:
                continue
        if key.startswith("policy") and _one_to_one(column, per_cell["policy"]):
            continue
        if key == "zone" and _told_by(column, per_cell["population"]):  # a zone is a population of its own
            continue
        if pd.api.types.is_numeric_dtype(column) and any(
            _equal(column, per_cell[name]) for name in ("epsilon", "delta", "seed")
        ):
            continue
        keys.append(key)
    return keys


def trained(metrics: pd.DataFrame) -> bool:
    """Whether the run trained a model."""
    return bool((metrics["metric"] == TRAINING).any())


def _equal(column: pd.Series, other: pd.Series) -> bool:
    return bool(np.array_equal(column.to_numpy(float), other.reindex(column.index).to_numpy(float), equal_nan=True))


def _one_to_one(column: pd.Series, other: pd.Series) -> bool:
    pairs = pd.DataFrame({"a": column, "b": other.reindex(column.index)}).drop_duplicates()
    return not (pairs["a"].duplicated().any() or pairs["b"].duplicated().any())


def _told_by(column: pd.Series, other: pd.Series) -> bool:
    pairs = pd.DataFrame({"a": column, "b": other.reindex(column.index)}).drop_duplicates()
    return not pairs["b"].duplicated().any()


def with_settings(metrics: pd.DataFrame, cells: pd.DataFrame | None) -> tuple[pd.DataFrame, list[str]]:
    """metrics with the varied keys joined on, and the names of those keys. A NaN delta is 0, open is infinite."""
    keys = varied_keys(metrics, cells)
    frame = metrics.copy()
    frame["delta"] = frame["delta"].fillna(0.0)
    frame.loc[frame["trust"] == "open", "epsilon"] = np.inf
    if keys and cells is not None:
        frame = frame.merge(cells[["cell", *keys]], on="cell", how="left", validate="many_to_one")
    return frame, keys


def per_seed(metrics: pd.DataFrame, cells: pd.DataFrame | None = None) -> tuple[pd.DataFrame, list[str]]:
    """One value per (strategy, setting, seed, metric), and the setting's key columns.

    The mean over rounds, NaN rounds left out; the last round for running totals (CUMULATIVE), and of a training.
    """
    frame, varied = with_settings(metrics, cells)
    keys = [*ENTRANT, *SETTING, "delta", *varied]
    totals = frame["metric"].isin(CUMULATIVE) | trained(frame)
    by = [*keys, "seed", "metric"]
    parts = [
        frame[~totals].groupby(by, dropna=False)["value"].mean(),
        frame[totals].sort_values("round", kind="stable").groupby(by, dropna=False)["value"].last(),
    ]
    return pd.concat(
        [part.reset_index() for part in parts if len(part)] or [frame[[*by, "value"]]], ignore_index=True
    ), keys


def summary_table(metrics: pd.DataFrame, cells: pd.DataFrame | None = None, unit: str = "") -> pd.DataFrame:
    """One row per strategy and setting: the mean over seeds of each metric, its sd and its n.

    Columns: strategy, trust, population, policy, epsilon, delta, unit (where given), the varied keys, n (seeds), then
    per metric m: m (mean over seeds of the mean over rounds), m_sd (sample sd, NaN for one seed), m_n (seeds with a
    finite value: cosine and ranks are NaN where the true sum is too small to have a direction).
    Spent epsilon is that of the last round. Rows are sorted by setting, then by strategy.
    """
    values, keys = per_seed(metrics, cells)
    varied = keys[len(ENTRANT) + len(SETTING) + 1 :]
    table = values.groupby(keys, dropna=False)["seed"].nunique().rename("n").reset_index()
    grouped = values.groupby([*keys, "metric"], dropna=False)["value"].agg(["mean", "std", "count"])
    present = set(values["metric"])
    for metric in [*METRICS, *sorted(present - set(METRICS))]:
        if metric in present:
            part = grouped.xs(metric, level="metric").rename(
                columns={"mean": metric, "std": f"{metric}_sd", "count": f"{metric}_n"}
            )
            table = table.merge(part.reset_index(), on=keys, how="left")
    if unit:
        table.insert(table.columns.get_loc("delta") + 1, "unit", unit)
    table = table.sort_values(
        ["population", "policy", *varied, "epsilon", "strategy"], kind="stable", ignore_index=True
    )
    return table


def ranking(
    metrics: pd.DataFrame,
    cells: pd.DataFrame | None = None,
    metric: str = "mae",
    confidence: float = 0.95,
    pooled: bool = False,
) -> pd.DataFrame:
    """Strategies ranked by one metric, each with the paired difference to the best of its setting.

    Differences are taken between equal rounds of the same seed and setting, averaged over rounds within a seed; the
    interval is Student's t over seeds, not adjusted for the number of strategies. Means are over the rounds that every
    strategy has. pooled: one ranking for the whole run, settings averaged within a seed. Plain answers (trust open)
    take no part beside private ones.
    Columns: the setting's keys, rank, strategy, trust, delta, metric, mean, n (paired seeds), difference, low, high,
    verdict (best | worse | indistinguishable | one seed: no interval | no round in common), against the setting's best.
    Empty where there is nothing to rank: `why_no_ranking` says why.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence!r} is outside (0, 1): 0.95 is usual")
    frame, varied = with_settings(metrics, cells)
    if trained(frame):
        frame = frame[frame["round"] == frame.groupby(["cell", "strategy"])["round"].transform("max")]
    frame = frame[frame["metric"] == metric]
    if (frame["trust"] != "open").any():
        frame = frame[frame["trust"] != "open"]
    keys = [] if pooled else [*SETTING, *varied]
    groups = frame.groupby(keys, dropna=False) if keys else [((), frame)]
    rows = []
    for key, group in groups:
        key = key if isinstance(key, tuple) else (key,)
        rows += [
            dict(zip(keys, key)) | row
            for row in _rank_one(group, [*SETTING, *varied, "seed", "round"], metric, confidence)
        ]
    columns = [*keys, "rank", *ENTRANT, "delta", "metric", "mean", "n", "difference", "low", "high", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def _rank_one(group: pd.DataFrame, block: list[str], metric: str, confidence: float) -> list[dict]:
    blocks = group.groupby([*ENTRANT, *block], dropna=False)["value"].mean().unstack(ENTRANT)  # (blocks, strategies)
    blocks = blocks.dropna(axis=1, how="all")
    if blocks.shape[1] < 2:
        return []
    shared = blocks.dropna()  # where every strategy has a value, so that the means compare like with like
    means = (shared if len(shared) else blocks).groupby("seed").mean().mean()
    order = means.sort_values(ascending=lower_is_better(metric), kind="stable").index
    best, deltas = order[0], group.groupby(ENTRANT)["delta"].max()
    rows = []
    for rank, entrant in enumerate(order, start=1):
        row = {
            "rank": rank,
            "strategy": entrant[0],
            "trust": entrant[1],
            "delta": deltas[entrant],
            "metric": metric,
            "mean": means[entrant],
        }
        gaps = (blocks[entrant] - blocks[best]).groupby("seed").mean().dropna()
        middle, low, high = paired_interval(gaps.to_numpy(), confidence)
        if entrant == best:
            verdict, middle, low, high = "best", 0.0, math.nan, math.nan
        elif not len(gaps):
            verdict = "no round in common"
        elif math.isnan(low):
            verdict = "one seed: no interval"
        elif low <= 0 <= high:
            verdict = "indistinguishable"
        else:
            verdict = "worse"
        rows.append(row | {"n": len(gaps), "difference": middle, "low": low, "high": high, "verdict": verdict})
    return rows


def paired_interval(differences: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and Student's t interval of (n,) paired differences; low and high are NaN for n < 2.

    >>> [round(float(x), 3) for x in paired_interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.484, 4.484]
    """
    n = len(differences)
    if n == 0:
        return math.nan, math.nan, math.nan
    middle = float(np.mean(differences))
    if n == 1:
        return middle, math.nan, math.nan
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1) * np.std(differences, ddof=1) / math.sqrt(n))
    return middle, middle - half, middle + half


def nobody_answered(metrics: pd.DataFrame) -> bool:
    """Whether every home refused or failed, in every round of every strategy."""
    answers = metrics.loc[metrics["metric"] == "answers", "value"]
    return len(answers) > 0 and not answers.any()


def why_no_ranking(metrics: pd.DataFrame, metric: str = "mae") -> str:
    """Why `ranking` is empty, for a reader."""
    rows = metrics[metrics["metric"] == metric]
    if nobody_answered(metrics):
        return "No ranking: no home answered."
    if rows.empty:
        return f"No ranking: the run has no {metric} (with oracle = false errors are unknown)."
    if rows["value"].isna().all():
        return f"No ranking: every {metric} is NaN."
    return "No ranking: it takes at least two strategies of the same setting."


def export_csv(table: pd.DataFrame, path: str | Path | None = None) -> str:
    """The table as CSV (LF, floats by repr), safe to open in a spreadsheet; written to path where given.

    Text that a spreadsheet would run as a formula (leading = + - @, tab or return) gets a leading apostrophe.

    >>> export_csv(pd.DataFrame({"strategy": ["=1+1"], "mae": [-0.5]}))
    "strategy,mae\\n'=1+1,-0.5\\n"
    """

    def guard(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value

    safe = table.rename(columns=guard)
    for place in range(safe.shape[1]):
        if not pd.api.types.is_numeric_dtype(safe.dtypes.iloc[place]):
            safe.isetitem(place, safe.iloc[:, place].map(guard))
    text = safe.to_csv(index=False, lineterminator="\n")
    if path is not None:
        Path(path).write_text(text, encoding="utf-8", newline="")
    return text


def display(
    table: pd.DataFrame, values_unit: str = "", metrics: list[str] | None = None
) -> tuple[list[str], list[list[str]]]:
    """A summary table or a ranking as headings and rows of text, for the terminal and for the page.

    Columns that say the same in every row (population, policy, unit) are left out, except epsilon and delta.
    metrics: which of a summary table's metrics to show (default: all).
    """
    ranked = "verdict" in table
    names, columns = labels(table["strategy"]), []
    trust = list(table["trust"])
    for key in table.columns:
        values = table[key]
        if key == "strategy":
            columns.append(("strategy", [names[value] for value in values]))
        elif key == "trust" or key in ("rank", "verdict"):
            columns.append((key, [str(value) for value in values]))
        elif key == "epsilon":
            columns.append((EPSILON, [epsilon_text(value, mode) for value, mode in zip(values, trust)]))
        elif key == "delta":
            columns.append(("δ", [number(value) for value in values]))
        elif ranked and key == "mean":
            columns.append((f"{heading(table['metric'].iloc[0], values_unit)}", [number(value) for value in values]))
        elif ranked and key == "difference":
            columns.append(("difference [interval]", [_interval(row) for row in table.itertuples()]))
        elif (key == "metric" and ranked) or (key in ("low", "high") and ranked):
            continue
        elif f"{key}_sd" in table:
            if metrics is None or key in metrics:
                columns.append((heading(key, values_unit), _cells_of(table, key)))
        elif not (key.endswith(("_sd", "_n")) and key.rsplit("_", 1)[0] in table) and (
            key == "n" or values.nunique() > 1
        ):
            columns.append((key, [value if isinstance(value, str) else number(value) for value in values]))
    return [title for title, _ in columns], [list(row) for row in zip(*(texts for _, texts in columns))]


def _cells_of(table: pd.DataFrame, metric: str) -> list[str]:
    """mean ± sd, with the count where fewer seeds than n have a value."""
    texts = []
    for mean, sd, count, n in zip(table[metric], table[f"{metric}_sd"], table[f"{metric}_n"], table["n"]):
        few = pd.notna(count) and 0 < count < n
        texts.append(spread(mean, sd) + (f" (n={int(count)})" if few else ""))
    return texts


def _interval(row: object) -> str:
    if row.rank == 1:  # type: ignore[attr-defined]
        return ABSENT
    if math.isnan(row.low):  # type: ignore[attr-defined]
        return number(row.difference)  # type: ignore[attr-defined]
    return f"{number(row.difference)} [{number(row.low)}, {number(row.high)}]"  # type: ignore[attr-defined]


# What a terminal shows first; the rest of a wide table is in report.html and metrics.csv.
TERMINAL = (
    "strategy",
    EPSILON,
    "δ",
    "rank",
    "mae",
    "difference [interval]",
    "verdict",
    "cosine",
    "trust",
    "refusals",
    "n",
    "epsilon_spent_mean",
    "spearman",
    "rmse",
    "top1",
    "answers",
)


def to_rich(table: pd.DataFrame, caption: str = "", values_unit: str = "", width: int = 100) -> Table:
    """A summary table or a ranking as a rich Table at most `width` columns wide.

    Columns that do not fit are dropped, the least telling first, and named in the caption, which also carries what
    stands beside every private result: unit, relation and noise stamp (RunData.privacy_line).
    """
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    titles, rows = display(table, values_unit)
    importance = {heading(name, values_unit): place for place, name in enumerate(TERMINAL)}
    keys = {key for key in table if f"{key}_sd" not in table}
    rank = [importance.get(title, 3.5 if title in keys else 99) for title in titles]  # varied keys are telling
    shown, console = (
        list(range(len(titles))),
        Console(width=10_000, color_system=None),
    )  # wide: to measure, not to print

    def build() -> Table:
        hidden = [titles[i] for i in range(len(titles)) if i not in shown]
        lines = [caption] if caption else []
        lines += [f"not shown (see report.html): {', '.join(hidden)}"] if hidden else []
        built = Table(
            box=box.SIMPLE_HEAD,
            caption=Text("\n".join(lines)) if lines else None,
            caption_justify="left",
            pad_edge=False,
            padding=(0, 1),
        )
        for i in shown:
            text = titles[i] in ("strategy", "trust", "verdict")
            built.add_column(Text(titles[i]), justify="left" if text else "right", no_wrap=titles[i] != "verdict")
        for row in rows:
            built.add_row(*(Text(row[i]) for i in shown))
        return built

    while Measurement.get(console, console.options, build()).maximum > width and len(shown) > 2:
        shown.remove(max(shown, key=lambda i: (rank[i], i)))
    return build()
