"""How fast the explain step is: leaf tables against xgboost's and shap's TreeSHAP, and a whole home-month.

    python -m simulations.benchmarks.shap [--quick] [--json FILE] [--only month|year|step|homes]

One thread. Every ratio comes from pairs measured one after the other in this run: min / median / max over the repeats.
Times depend on the machine and on its load, ratios less so. Both sides start from the same fitted booster and end with
S (for the tables: reading the trees, compiling and binning included). Machine code is compiled before the clock starts;
the first call's cost is printed on its own line.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.explain import model
from fedenergy.explain.leaf_tables import compile_tables, group_bits, weighted_sums
from fedenergy.explain.summary import Explainer
from fedenergy.households.household import Household
from fedenergy.windows import Lagged, lagged

LAGS = (1, 24, 168)
CHANNELS = ("Heating", "Fridge", "Fan", "Oven", "Washing_Machine", "Dryer", "Cooler")
MONTH, YEAR = 746, 8_786                     # rows that are explained
HOMES = 10_000
REACH = {"month": 7.0, "year": 30.0, "step": 2.2}


def appliance_home(seed: int, rows: int) -> Household:
    """A home of seven appliance-like channels, hourly, with `rows` rows after the lags: habits, bursts, a base load."""
    rng, steps = np.random.default_rng(seed), rows + max(LAGS)
    hour = np.arange(steps)[:, None] % 24
    peak, width, size = rng.integers(0, 24, 7), rng.uniform(1.5, 5, 7), rng.gamma(2.0, 0.4, 7)
    habit = np.exp(-((((hour - peak + 12) % 24) - 12) / width) ** 2)
    on = rng.random((steps, 7)) < 0.05 + 0.6 * habit
    readings = on * size * rng.gamma(4.0, 0.25, (steps, 7)) + 0.02 * rng.random((steps, 7))
    return Household(f"home-{seed}", CHANNELS, readings, readings.sum(axis=1) + 0.05 * rng.random(steps),
                     np.datetime64("2024-01-01T00:00"), 60)


def design(seed: int, rows: int) -> Lagged:
    """The regression of one home: rows x 23 (7 channels at 3 lags, hour of day, weekday)."""
    return lagged(appliance_home(seed, rows), LAGS)


def by_tables(fitted: model.Fitted, data: Lagged, depth: int = 4) -> np.ndarray:
    """S by leaf tables, from the fitted booster on, as the Explainer makes it."""
    trees = model.trees_of(fitted)
    tables = compile_tables(trees, data.X.shape[1], group_bits(data.y.size, depth))
    return weighted_sums(tables, data.X, data.feature_channel, data.observed)


def by_matrix(phi: np.ndarray, data: Lagged) -> np.ndarray:
    """S from the (rows, features) matrix of SHAP values."""
    sums = np.zeros(data.observed.shape[1])
    for f in np.flatnonzero(data.feature_channel >= 0):
        sums[data.feature_channel[f]] += phi[:, f] @ data.observed[:, data.feature_channel[f]]
    return sums


def clocked(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def compare(ours: Callable[[int], np.ndarray], theirs: Callable[[int], np.ndarray], repeats: int) -> dict[str, Any]:
    """Pairs of times over repeats (one home each), their ratios, and the largest relative difference of S."""
    pairs, difference = [], 0.0
    for repeat in range(repeats):
        slow, expected = clocked(lambda repeat=repeat: theirs(repeat))
        fast, found = clocked(lambda repeat=repeat: ours(repeat))
        pairs.append((fast, slow))
        difference = max(difference, float(np.abs(found - expected).max() / np.abs(expected).max()))
    return {"ours_s": spread([fast for fast, _ in pairs]), "theirs_s": spread([slow for _, slow in pairs]),
            "ratio": spread([slow / fast for fast, slow in pairs]), "repeats": repeats,
            "largest_difference": difference}


def month(quick: bool) -> dict[str, Any]:
    """SHAP sums of a fitted month, depth 4: tables against Booster.predict(pred_contribs=True)."""
    repeats = 5 if quick else 15
    data = [design(seed, MONTH) for seed in range(repeats)]
    fits = [model.fit(d.X, d.y, depth=4) for d in data]
    return compare(lambda r: by_tables(fits[r], data[r]), lambda r: by_matrix(model.contributions(fits[r]), data[r]),
                   repeats) | {"rows": MONTH, "depth": 4}


def year(quick: bool) -> dict[str, Any]:
    """SHAP sums of a fitted year (quick: a fifth of it), depth 6: tables against shap.TreeExplainer."""
    import shap

    rows = YEAR // 5 if quick else YEAR
    data = [design(seed, rows) for seed in range(3)]
    fits = [model.fit(d.X, d.y, depth=6) for d in data]

    def explainer(r: int) -> np.ndarray:
        tree_explainer = shap.TreeExplainer(fits[r].booster, feature_perturbation="tree_path_dependent")
        return by_matrix(tree_explainer.shap_values(data[r].X), data[r])

    return compare(lambda r: by_tables(fits[r], data[r], 6), explainer, 3) | {"rows": rows, "depth": 6}


def step(quick: bool) -> dict[str, Any]:
    """Fit and SHAP of a home-month, depth 4: tables against the bare loop of fit and pred_contribs."""
    repeats = 5 if quick else 15
    data = [design(seed, MONTH) for seed in range(repeats)]

    def bare(r: int) -> np.ndarray:
        return by_matrix(model.contributions(model.fit(data[r].X, data[r].y)), data[r])

    return compare(lambda r: by_tables(model.fit(data[r].X, data[r].y), data[r]), bare, repeats) | {
        "rows": MONTH, "depth": 4}


def homes(quick: bool) -> dict[str, Any]:
    """Explainer.summary of many homes on one core (lags, fit, SHAP, S; the homes are made off the clock)."""
    count, explainer, times = 60 if quick else 500, Explainer(LAGS), []
    for seed in range(count):
        home = appliance_home(seed, MONTH)
        times.append(clocked(lambda home=home: explainer.summary(home))[0])
    return {"homes": count, "rows": MONTH, "depth": explainer.depth, "seconds": sum(times), "home_s": spread(times),
            "minutes_for_10000_extrapolated": sum(times) / count * HOMES / 60}


def warm_up() -> dict[str, float]:
    """First call in this process: machine code from the cache, or compiled where the cache is empty."""
    data = design(0, 48)
    fitted = model.fit(data.X, data.y, trees=2)
    return {"first_call_s": clocked(lambda: by_tables(fitted, data))[0]}


def versions() -> dict[str, str]:
    names = ("numpy", "numba", "xgboost", "shap")
    return {"python": platform.python_version(), **{name: version(name) for name in names},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread"}


PARTS = {"month": month, "year": year, "step": step, "homes": homes}


def text(result: dict[str, Any]) -> str:
    """The result as lines for a reader."""
    lines = [", ".join(f"{name} {value}" for name, value in result["versions"].items()),
             f"first call in this process: {result['first_call_s']:.2f} s"]
    for name in ("month", "year", "step"):
        if name in result:
            part, ratio = result[name], result[name]["ratio"]
            lines.append(f"{name}: {part['rows']} rows, depth {part['depth']}: "
                         f"{part['theirs_s']['median'] * 1e3:.1f} ms -> "
                         f"{part['ours_s']['median'] * 1e3:.1f} ms, ratio {ratio['min']:.1f} / {ratio['median']:.1f} / "
                         f"{ratio['max']:.1f} (min / median / max of {part['repeats']}; reach {REACH[name]:g}), "
                         f"largest difference {part['largest_difference']:.1e}")
    if "homes" in result:
        part = result["homes"]
        lines.append(f"homes: {part['homes']} home-months in {part['seconds']:.1f} s "
                     f"({part['home_s']['median'] * 1e3:.1f} ms each); {HOMES:,} of them: "
                     f"{part['minutes_for_10000_extrapolated']:.1f} min on one core (extrapolated)")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m simulations.benchmarks.shap", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats and homes, a fifth of the year")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--only", choices=PARTS, help="one part of the benchmark")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {"quick": options.quick, "versions": versions(), **warm_up()}
    for name, part in PARTS.items():
        if options.only in (None, name):
            result[name] = part(options.quick)
    print(text(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
