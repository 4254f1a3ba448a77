"""Filling gaps at a stated epsilon: dp_gp against every baseline that costs nothing, on real homes.

    python -m simulations.private_imputation [CONFIG] --data DIR [--quick] [--out DIR]

Two-day windows of London homes; the first 70 % of each home's windows train, the last 20 % test; half of each window is
hidden. Errors count where hidden: MSE of the mean, MAE of the median. ETTh1 (127 windows of four days) is the
case where noise wins: a public rule then keeps linear interpolation.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from fedenergy import imputation as imp
from fedenergy.households.datasets import london_households
from fedenergy.households.simulate import simulate_households
from fedenergy.ids import cell_id, digest, stream
from fedenergy.imputation import dp_gp
from fedenergy.imputation.base import Daily
from fedenergy.imputation.baselines import FROM_TRAINING, WINDOW_ONLY
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.report.gallery import Plate
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations import pages
from simulations.pages import TEXT, plain_ticks

CONFIG = "configs/imputation/private_imputation.toml"
MASKS = {"random": imp.points, "block": imp.blocks, "outage": imp.outage}
REACH = {"random": 0.945, "block": 0.90, "outage": 0.875}     # spec/imputation.md: at epsilon 2, of the best free MSE
DAILY, TWIN, FULL = "linear + same time", "dp_gp, no noise", "full covariance, no noise"
TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500)
HEADER = ("run", "cell", "population", "strategy", "policy", "trust", "epsilon", "delta", "seed", "round", "metric", "value")


@dataclass(frozen=True)
class Config:
    """See configs/imputation/private_imputation.toml. data: folder of the data sets; out: folder for runs."""

    name: str = "private-imputation"
    title: str = "Filling gaps at a stated epsilon"
    datasets: tuple[str, ...] = ("london",)
    patterns: tuple[str, ...] = tuple(MASKS)
    rates: tuple[float, ...] = (0.5,)
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 10.0)
    units: tuple[str, ...] = ("window", "household")
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0,)
    test_windows: int = 2000
    kalman: bool = False
    data: str = ""
    out: str = "runs"

    @property
    def run_name(self) -> str:
        """The name and a digest of what determines the numbers."""
        body = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if k not in ("data", "out")}
        return f"{self.name}-{digest(b'fe.imputing.1', json.dumps(body, sort_keys=True), 4).hex()}"


@dataclass(frozen=True)
class Study:
    """folder, page; table: rows dataset, pattern, rate, method, unit, epsilon, mse, mse_sd, mae, mae_sd, ratio."""

    folder: Path
    page: Path
    table: pd.DataFrame
    statements: list[str]


def load(path: str | Path = CONFIG, *, quick: bool = False, data: str = "", out: str = "") -> Config:
    """A config from its file; quick: one seed, 300 test windows, three epsilons, no Kalman smoother."""
    raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    known = {item.name for item in fields(Config)}
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"{path}: unknown key {unknown[0]!r} (takes: {', '.join(sorted(known))})")
    config = Config(**{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()})
    if quick:
        config = replace(config, name=f"{config.name}-quick", seeds=config.seeds[:1], test_windows=300, kalman=False,
                         epsilons=tuple(e for e in config.epsilons if e in (0.5, 2.0, 10.0)))
    return replace(config, data=data or config.data or os.environ.get("FEDENERGY_DATA", ""), out=out or config.out)


def homes_windows(series: dict[str, np.ndarray], days: int, steps_per_day: int) -> tuple[imp.Windows, imp.Windows]:
    """Train and test windows of homes: each home's first 70 % and last 20 %, those with a gap left out."""
    length, parts = days * steps_per_day, ([], [])
    for home, values in series.items():
        count = len(values) // length
        cut = values[:count * length].reshape(count, length)
        for part, rows in zip(parts, (slice(0, int(0.7 * count)), slice(count - int(0.2 * count), count))):
            known = cut[rows][np.isfinite(cut[rows]).all(1)]
            if len(known):
                part.append(imp.Windows(known, steps_per_day, homes=(home,) * len(known)))
    return imp.join(parts[0]), imp.join(parts[1])


def windows_of(name: str, data: str) -> tuple[imp.Windows, imp.Windows, dict]:
    """(train, test, arguments of dp_gp.fit) of a data set by name."""
    if name == "london":
        found = london_households(data or None, step_minutes=30, days=365, min_present=0.01).series()
        return *homes_windows({home: s.column("kwh") for home, s in found.items()}, 2, 48), {}
    if name == "simulated":
        homes = simulate_households(40, steps=48 * 60, step_minutes=30, seed=1)
        return *homes_windows({homes.ids[k]: homes.load(k).total for k in range(len(homes))}, 2, 48), {}
    if name == "etth1":
        series = pd.read_csv(Path(data) / "ett" / "ETTh1.csv")["OT"].to_numpy()
        train, _, test = imp.split(series, 96)
        return train, test, {"transform": "none", "low": -10.0, "cap": 60.0}      # degrees: public limits of an oil gauge
    raise ValueError(f"data set {name!r} is unknown (takes: london, etth1, simulated)")


def free(config: Config, train: imp.Windows, test: imp.Windows, observed: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Fillings that cost nothing, by name, then those that read training statistics without protection."""
    for name in WINDOW_ONLY:
        if name != "kalman" or config.kalman:
            yield name, imp.fill_with(name, test, observed)
    yield DAILY, Daily().fill(np.where(observed, test.values, np.nan), observed, test.time_of_day)
    for name in FROM_TRAINING:
        yield name, imp.fill_with(name, test, observed, train)


def full_covariance(train: imp.Windows, twin: dp_gp.DpGp) -> dp_gp.DpGp:
    """The non-private T x T covariance and mean by position of the window: what no noise and no structure would give."""
    x = dp_gp.forward(train.values[:, :, 0], twin.low, twin.cap, twin.transform)
    slots = train.steps_per_day
    mean = x.mean(0).reshape(-1, slots).mean(0)
    cov = np.cov(x.T) + 1e-6 * np.eye(train.length)
    return replace(twin, mean=np.roll(mean, twin.phase), scale=np.ones(slots), correlation=cov)


def measure(config: Config) -> tuple[pd.DataFrame, list[str]]:
    """One row per (dataset, pattern, rate, method, unit, epsilon, seed): mse, mae; and the statements of what was fitted."""
    rows, said = [], []
    for dataset in config.datasets:
        train, test, options = windows_of(dataset, config.data)
        if 0 < config.test_windows < len(test):
            test = test.take(np.sort(stream(0, "test windows", "", dataset).permutation(len(test))[:config.test_windows]))
        masks = {(p, r): MASKS[p](r).observed(len(test), test.length) for p in config.patterns for r in config.rates}

        def score(method: str, regime: str, unit: str, epsilon: float | None, seed: int, fillings, dataset=dataset,
                  test=test) -> None:
            for (pattern, rate), (mean, median, seen) in fillings:
                rows.append([dataset, pattern, rate, method, regime, unit, epsilon, seed,
                             imp.errors(mean, test.values, seen)["mse"], imp.errors(median, test.values, seen)["mae"]])

        def by(gp: dp_gp.DpGp, masks=masks, test=test):
            return [(key, (*gp.points(test.values, seen, test.time_of_day), seen)) for key, seen in masks.items()]

        for key, seen in masks.items():
            for name, filled in free(config, train, test, seen):
                score(name, "no privacy" if name in FROM_TRAINING else "free", "", None, 0, [(key, (filled, filled, seen))])
        units = [unit for unit in config.units if unit == "window" or train.homes is not None]
        twin = dp_gp.fit(train, math.inf, config.delta, **options)
        score(TWIN, "no privacy", "", None, 0, by(twin))
        score(FULL, "no privacy", "", None, 0, by(full_covariance(train, twin)))
        for unit in units:
            for epsilon in config.epsilons:
                for seed in config.seeds:
                    gp = dp_gp.fit(train, epsilon, config.delta, unit=unit, seed=seed, **options)
                    score("dp_gp", "true_epsilon", unit, epsilon, seed, by(gp))
                base = dp_gp.choose_base(gp.privacy.records, epsilon, config.delta, length=test.length)
                said.append(f"{dataset}, {unit} unit, epsilon {epsilon:g}: chosen by the public rule: {base}. {gp.privacy}")
    return pd.DataFrame(rows, columns=["dataset", "pattern", "rate", "method", "regime", "unit", "epsilon", "seed", "mse",
                                       "mae"]), said


def summarise(raw: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over noise seeds, and the ratio to the best free baseline of the same cell."""
    keys = ["dataset", "pattern", "rate", "method", "regime", "unit", "epsilon"]
    group = raw.groupby(keys, dropna=False, sort=False)[["mse", "mae"]]
    table = group.mean().join(group.std(ddof=1).fillna(0.0).add_suffix("_sd")).reset_index()
    best = table[table["regime"] == "free"].groupby(["dataset", "pattern", "rate"])[["mse", "mae"]].min()
    at = pd.MultiIndex.from_frame(table[["dataset", "pattern", "rate"]])
    return table.assign(ratio=table["mse"].to_numpy() / best["mse"].reindex(at).to_numpy(),
                        mae_ratio=table["mae"].to_numpy() / best["mae"].reindex(at).to_numpy())


def write_tables(config: Config, folder: Path, raw: pd.DataFrame) -> None:
    """metrics.csv and cells.csv (DESIGN.md), the same bytes for the same config."""
    lines, cells = [], {}
    for row in raw.itertuples(index=False):
        epsilon = "" if row.epsilon is None or math.isnan(row.epsilon) else float(row.epsilon)
        vary = {"dataset": row.dataset, "pattern": row.pattern, "rate": row.rate, "objective": "closed form"
                if row.method.startswith(("dp_gp", "full")) else "none", "regime": row.regime, "unit": row.unit or "none"}
        key = {"trust": "curator", "mechanism": "gaussian" if epsilon else "none", "policy": "none",
               "epsilon": str(epsilon), "seed": int(row.seed), "vary": {k: str(v) for k, v in vary.items()}}
        cell = cell_id(key)
        cells[cell] = [key["trust"], key["mechanism"], key["policy"], epsilon, row.seed, *vary.values()]
        lines += [[config.run_name, cell, row.dataset, row.method, "", "curator", epsilon, config.delta if epsilon else "",
                   row.seed, 1, metric, repr(float(getattr(row, metric)))] for metric in ("mae", "mse")]
    header = ["cell", "trust", "mechanism", "policy", "epsilon", "seed", "dataset", "pattern", "rate", "objective", "regime",
              "unit"]
    for name, head, body in (("metrics.csv", HEADER, sorted(lines, key=str)),
                             ("cells.csv", header, [[k, *v] for k, v in sorted(cells.items())])):
        with open(folder / name, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(head)
            writer.writerows(body)


def figure(table: pd.DataFrame, dataset: str):
    """MSE over the best free baseline against epsilon, one panel per pattern; below 1 it is worth its cost."""
    rows = table[table["dataset"] == dataset]
    patterns = list(dict.fromkeys(rows["pattern"]))
    drawn, found = pages.axes(2.9, columns=len(patterns), sharey=True)
    epsilons = sorted(rows["epsilon"].dropna().unique())
    for ax, pattern in zip(found, patterns):
        here = rows[(rows["pattern"] == pattern) & (rows["rate"] == rows["rate"].max())]
        for unit, colour, marker in (("window", PALETTE[0], "o"), ("household", PALETTE[1], "s")):
            line = here[(here["method"] == "dp_gp") & (here["unit"] == unit)].sort_values("epsilon")
            if len(line):
                spread = line["mse_sd"] / line["mse"] * line["ratio"]
                ax.errorbar(line["epsilon"], line["ratio"], spread, color=colour, marker=marker, markersize=4, linewidth=1.5,
                            label=f"dp_gp, {unit} unit")
        for method, style, label in ((TWIN, (0, (4, 2)), "same form, no noise"), (FULL, (0, (1, 1.5)), "full, no noise")):
            height = here[here["method"] == method]["ratio"].iloc[0]
            ax.axhline(height, color=MUTED, linestyle=style, linewidth=1.2, label=label)
        ax.axhline(1.0, color=INK, linewidth=1.0, label="best free baseline")
        ax.set(xscale="log", yscale="log", xlabel="ε")
        ax.set_title(pattern, fontsize=TEXT, color=INK)
        ax.yaxis.set_minor_locator(NullLocator())
        ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        ax.set_xticks([], minor=True)
    found[0].set_ylabel("MSE / best free")
    shown = rows[rows["method"].isin(["dp_gp", TWIN, FULL])]["ratio"]
    low, high = min(0.95, 0.95 * shown.min()), max(1.05, 1.1 * shown.max())
    found[0].set_ylim(low, high)
    found[0].yaxis.set_major_locator(FixedLocator([v for v in TICKS if low <= v <= high][::2 if high > 20 else 1]))
    plain_ticks(found[0].yaxis)
    pages.legend(drawn, found[0], 2)
    return drawn


def claims_of(table: pd.DataFrame) -> list[pages.Claim]:
    """What was to be reached, and what this run yields."""
    found = []
    london = table[(table["dataset"] == "london") & (table["rate"] == 0.5)]
    for pattern, goal in REACH.items():
        here = london[london["pattern"] == pattern]
        two = here[(here["method"] == "dp_gp") & (here["unit"] == "window") & (here["epsilon"] == 2.0)]
        ten = here[(here["method"] == "dp_gp") & (here["unit"] == "window") & (here["epsilon"] == 10.0)]
        if len(two):
            best = here[here["regime"] == "free"].sort_values("mse").iloc[0]
            found.append(pages.Claim("London, ε 2", f"{pattern}: MSE at most {goal:g} of the best free baseline",
                                     f"{goal:g}", f"{two['ratio'].iloc[0]:.3f} ({two['mse'].iloc[0]:.4f} against "
                                     f"{best['mse']:.4f}, {best['method']})",
                                     pages.judged(bool(two["ratio"].iloc[0] <= goal)), "mean over noise seeds", own=True))
        if len(ten):
            full = here[here["method"] == FULL]["mse"].iloc[0]
            over = ten["mse"].iloc[0] / full
            found.append(pages.Claim("London, ε 10", f"{pattern}: within 5 % of the non-private full covariance", "1.05",
                                     f"{over:.3f}", pages.judged(bool(over <= 1.05)), "mean over noise seeds", own=True))
    for dataset in sorted(set(table["dataset"]) - {"london", "simulated"}):
        here = table[table["dataset"] == dataset]
        beaten = here[(here["method"] == "dp_gp")]["ratio"]
        found.append(pages.Claim(dataset, "too few records: a free baseline wins, and the public rule picks it", "not said",
                                 f"lowest ratio of dp_gp {beaten.min():.2f}", pages.judged(bool((beaten > 1).all())),
                                 "all patterns and epsilons", own=True))
    return found


def main(config: Config | None = None) -> Study:
    """Measure, and write metrics.csv, cells.csv, table.csv, study.html and figures/ into the run folder."""
    config = load() if config is None else config
    folder = Path(config.out) / config.run_name
    folder.mkdir(parents=True, exist_ok=True)
    raw, statements = measure(config)
    table = summarise(raw)
    write_tables(config, folder, raw)
    table.to_csv(folder / "table.csv", index=False, float_format="%.6g", lineterminator="\n")
    claims = claims_of(table)
    plates = [Plate(f"private_imputation_{name}", "figure", f"{name}: error against epsilon",
                    "MSE of the mean over that of the best free baseline of the pattern; bars: sd over noise seeds.",
                    f"MSE ratio against epsilon on {name}, by pattern.", figure(table, name)) for name in config.datasets]
    shown = table.assign(epsilon=[("" if math.isnan(e) else f"{e:g}") for e in table["epsilon"].astype(float)])
    digits = {name: (lambda v: f"{v:.4f}") for name in ("mse", "mae", "mse_sd", "mae_sd", "ratio", "mae_ratio")}
    page = pages.write_page(
        folder / "study.html", title=config.title, plates=plates, stamp=SimulationNoise(0).stamp.capitalize(),
        meta=f"{folder.name} · delta {config.delta:g} · {len(config.seeds)} noise seeds",
        short=[f"{c.figure}: {c.claim}: {c.verdict} ({c.ours})." for c in claims] or ["No claim is judged on these data."],
        parts=[pages.Part("figure", "Error against epsilon"),
               pages.Part("table", "All cells", pages.frame_table(shown, "MSE by the mean, MAE by the median.", digits)),
               pages.Part("holds", "What holds", pages.claims_table(claims, "What was to be reached.") if claims else ""),
               pages.Part("privacy", "What it costs", pages.markup.bullets(statements))])
    return Study(folder, page, table, statements)


def printed(table: pd.DataFrame) -> str:
    """The table as text: one line per method, MSE / MAE per pattern."""
    lines = []
    for (dataset, rate), part in table.groupby(["dataset", "rate"]):
        patterns: Sequence[str] = list(dict.fromkeys(part["pattern"]))
        lines.append(f"{dataset}, {rate:.0%} missing: MSE ± sd / MAE ± sd (ratio of MSE) for {', '.join(patterns)}")
        for (method, unit, epsilon), rows in part.groupby(["method", "unit", "epsilon"], dropna=False, sort=False):
            name = method + (f", {unit}, ε {epsilon:g}" if unit else "")
            lines.append(f"  {name:28}" + "  ".join(f"{r.mse:.4f}±{r.mse_sd:.4f}/{r.mae:.4f}±{r.mae_sd:.4f} ({r.ratio:.3f})"
                                                  for r in rows.itertuples()))
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG)
    parser.add_argument("--data", default="", help="folder of data sets ($FEDENERGY_DATA)")
    parser.add_argument("--quick", action="store_true", help="one seed, 300 test windows")
    parser.add_argument("--out", default="", help="folder for runs")
    given = parser.parse_args()
    done = main(load(given.config, quick=given.quick, data=given.data, out=given.out))
    print(printed(done.table), *done.statements, done.page, sep="\n")
