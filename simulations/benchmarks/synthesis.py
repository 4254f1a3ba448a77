"""How fast the synthesiser is: against the source's recipe, and the nearest-record distances against SDMetrics' definition.

    python -m simulations.benchmarks.synthesis [--quick] [--json FILE]

One thread. The source's recipe is run as its snippets read (sklearn's Gaussian process with ten restarts, scipy's
genextreme.fit, statsmodels' STL) on a few homes of the same population, in the same run. CPU time, so that other load on the
machine counts less; ratios are what to compare. Machine code, operators and kernels are made before the clock starts, and
their one-time cost is a line of its own.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.federation.streaming import stream_homes
from fedenergy.households.simulate import simulate_households
from fedenergy.synthesis import components, judge_privacy, residual, shuffle, stl
from fedenergy.synthesis.generate import synthesise
from fedenergy.synthesis.intake import Panel, panel
from fedenergy.synthesis.stream import Plan
from fedenergy.synthesis.trend import TrendGP

REACH = {"ms_per_home": 1.0, "ten_thousand_s": 10.0, "ratio": 10_000.0, "year_ms_per_home": 10.0, "dcr_ratio": 500.0}


def clocked(function: Callable[[], Any]) -> tuple[float, Any]:
    """(CPU seconds, result)."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def population(count: int, steps: int) -> Panel:
    """`count` homes: 100 simulated ones, repeated with other sizes and a little noise where more are asked."""
    base = panel(simulate_households(min(count, 100), steps=min(steps, 744), seed=1))
    rng = np.random.default_rng(0)
    values = np.tile(base.values, (-(-count // len(base.ids)), -(-steps // base.values.shape[1])))[:count, :steps]
    values = values * rng.uniform(0.7, 1.3, (count, 1)) * rng.uniform(0.9, 1.1, values.shape)
    return panel(values, start=base.start)


def source_recipe(record: np.ndarray, restarts: int, rng: np.random.Generator) -> dict[str, float]:
    """The source's three snippets on one home (T,): CPU seconds of each part."""
    from scipy.stats import genextreme
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
    from statsmodels.tsa.seasonal import STL

    hours = np.arange(record.size)[:, None].astype(float)
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * (RBF(3, (1e-1, 1e2)) + Matern(1, (1e-1, 1e2), nu=2.5))
    taken = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bounds reached, slow convergence: as in the source
        taken["stl"], parts = clocked(lambda: STL(np.log1p(record), period=24, seasonal=13).fit())

        def trend() -> np.ndarray:
            process = GaussianProcessRegressor(kernel, alpha=1e-2, n_restarts_optimizer=restarts, random_state=0)
            mean, sd = process.fit(hours, parts.trend).predict(hours, return_std=True)
            return rng.normal(mean, sd)

        taken["trend"], _ = clocked(trend)
        taken["residual"], _ = clocked(
            lambda: genextreme.rvs(*genextreme.fit(parts.resid), size=record.size, random_state=rng))
    return taken


def against_the_source(quick: bool) -> dict[str, Any]:
    """Per home-month: the source's recipe on one or two homes, ours on 1,000 (components, segments and matching)."""
    homes = population(1_000, 744)
    first, _ = clocked(lambda: synthesise(homes, seed=0))
    ours, fake = clocked(lambda: synthesise(homes, seed=1))
    sample = 1 if quick else 2
    rng = np.random.default_rng(0)
    theirs = [source_recipe(homes.values[i], 10, rng) for i in range(sample)]
    mean = {part: float(np.mean([one[part] for one in theirs])) for part in theirs[0]}
    ms, slow = ours, 1e3 * sum(mean.values())    # seconds per 1,000 homes are ms per home
    return {"homes": 1_000, "ours_ms_per_home": ms, "first_call_s": first, "source_homes": sample,
            "source_ms_per_home": slow, "source_parts_ms": {part: 1e3 * value for part, value in mean.items()},
            "ratio": slow / ms, "violations": fake.violations, "real_violations": fake.real_violations}


def parts() -> dict[str, float]:
    """ms per home of each part, 500 homes; STL, GEV and the trend as fitted, matching in cells of 50."""
    homes = population(500, 744)
    log = np.log1p(homes.values)
    stl.decompose(log[:2])
    taken = {}
    taken["stl"], (trend, _, rest) = clocked(lambda: stl.decompose(log))
    process = TrendGP(744)
    process.fit(trend[:2])
    taken["trend"], fitted = clocked(lambda: process.fit(trend))
    taken["trend_sample"], _ = clocked(lambda: process.sample(fitted, log))
    residual.fit_gev(rest[:2])
    taken["gev_l_moments"], _ = clocked(lambda: residual.fit_gev(rest, polish=False))
    taken["gev"], _ = clocked(lambda: residual.fit_gev(rest))
    taken["gev_ar"], _ = clocked(lambda: residual.fit(rest))
    taken["all_components"], _ = clocked(lambda: components.remake(homes, seed=2))
    totals = homes.profiles.sum(axis=2)
    for method, tries in (("within_date", 1), ("rejection", 200), ("swaps", 200)):
        def match(method: str = method, tries: int = tries) -> None:
            for at in range(0, 500, 50):
                cell = totals[at:at + 50]
                shuffle.assign(cell, shuffle.constraint(cell).sigma, method, np.random.default_rng(at), max_tries=tries)

        taken[f"shuffle_{method}"], _ = clocked(match)
    return {name: 1e3 * seconds / 500 for name, seconds in taken.items()}


def ten_thousand(quick: bool) -> dict[str, float]:
    """10,000 home-months, one core (quick: 2,000, scaled)."""
    count = 2_000 if quick else 10_000
    homes = population(count, 744)
    taken, _ = clocked(lambda: synthesise(homes, seed=0))
    return {"homes": count, "seconds": taken, "scaled_to_10000_s": taken * 10_000 / count}


def year(quick: bool) -> dict[str, float]:
    """Home-years of 8,760 hours: 50 homes (quick: 20) after the operators and kernels are there."""
    count = 20 if quick else 50
    homes = population(count, 8_760)
    made = Panel(homes.ids[:2], homes.values[:2], homes.start)
    first, _ = clocked(lambda: components.remake(made))
    taken, _ = clocked(lambda: synthesise(homes, seed=0, clusters=1, sizes=1))
    return {"homes": count, "once_s": first, "ms_per_home": 1e3 * taken / count}


def streaming(quick: bool) -> dict[str, float]:
    """Home-months from 100 homes into one Parquet file, in this process; peak memory of the process before and after."""
    count, homes = (500, 2_000) if quick else (2_000, 10_000), simulate_households(100, steps=744, seed=1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="fe-bench-") as folder:
        for name, number in zip(("few", "many"), count):
            taken, _ = clocked(lambda number=number: stream_homes(homes, Plan(), number, Path(folder) / "a.parquet", seed=0))
            found |= {f"{name}_homes": number, f"{name}_ms_per_home": 1e3 * taken / number,
                      f"{name}_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    return found


def by_definition(fake: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """SDMetrics' definition of DCR in plain loops: value by value, row by row."""
    span = [max(column) - min(column) for column in reference.T.tolist()]
    reference_rows, result = reference.tolist(), []
    for row in fake.tolist():
        nearest = []
        for other in reference_rows:
            total = 0.0
            for a, b, width in zip(row, other, span):
                total += min(abs(a - b) / width, 1.0) if width else float(a != b)
            nearest.append(total / len(row))
        result.append(min(nearest))
    return np.array(result)


def distances(quick: bool) -> dict[str, float]:
    """DCR of 100 artificial homes x 744 hours to 100 real ones (quick: the loop on 10 of them, scaled)."""
    real = population(100, 744).values
    fake = synthesise(real, seed=0).values
    some = fake[:10] if quick else fake
    judge_privacy.dcr_gower(some, some)
    slow, expected = clocked(lambda: by_definition(some, real))
    fast, found = clocked(lambda: judge_privacy.dcr_gower(fake, real))
    gemm, _ = clocked(lambda: judge_privacy.dcr_nndr(fake, real))
    slow *= len(fake) / len(some)
    return {"loop_s": slow, "ours_s": fast, "ratio": slow / fast, "euclidean_s": gemm,
            "largest_difference": float(np.abs(found[:len(some)] - expected).max())}


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer homes of the source's recipe: about a minute or two")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args(arguments)
    found: dict[str, Any] = {
        "machine": {"python": platform.python_version(), "numpy": version("numpy"), "cpu": platform.processor(),
                    "threads": os.environ["OMP_NUM_THREADS"], "load": list(os.getloadavg())},
        "streaming": streaming(asked.quick),
        "source": against_the_source(asked.quick), "parts_ms_per_home": parts(),
        "ten_thousand": ten_thousand(asked.quick), "year": year(asked.quick), "dcr": distances(asked.quick)}
    source, dcr = found["source"], found["dcr"]
    checks = {"ms_per_home": source["ours_ms_per_home"] <= REACH["ms_per_home"],
              "ten_thousand_s": found["ten_thousand"]["scaled_to_10000_s"] < REACH["ten_thousand_s"],
              "ratio": source["ratio"] >= REACH["ratio"],
              "year_ms_per_home": found["year"]["ms_per_home"] <= REACH["year_ms_per_home"],
              "dcr_ratio": dcr["ratio"] >= REACH["dcr_ratio"]}
    found["reached"] = checks
    print(f"synthesis and matching   {source['ours_ms_per_home']:.3f} ms per home-month at 1,000 homes"
          f" (first call {source['first_call_s']:.2f} s)")
    print(f"the source's recipe      {source['source_ms_per_home']:,.0f} ms per home-month"
          f" ({source['source_homes']} homes): {source['ratio']:,.0f} times ours")
    for part, value in found["parts_ms_per_home"].items():
        print(f"  {part:22} {value:.4f} ms")
    print(f"10,000 home-months       {found['ten_thousand']['scaled_to_10000_s']:.1f} s"
          f" (measured on {found['ten_thousand']['homes']:,})")
    print(f"a home-year              {found['year']['ms_per_home']:.1f} ms, {found['year']['once_s']:.1f} s once")
    flow = found["streaming"]
    print(f"streamed to a file       {flow['many_ms_per_home']:.2f} ms per home-month, {flow['many_homes']:,} homes; "
          "peak memory"
          f" {flow['many_peak_mb']:,.0f} MB ({flow['few_peak_mb']:,.0f} MB at {flow['few_homes']:,})")
    print(f"DCR, 100 x 744           {dcr['ours_s']:.4f} s, loop {dcr['loop_s']:.1f} s: {dcr['ratio']:,.0f} times,"
          f" largest difference {dcr['largest_difference']:.1e}")
    print("reached: " + ", ".join(f"{name} {'yes' if good else 'NO'}" for name, good in checks.items()))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
