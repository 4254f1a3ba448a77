"""How fast and how large: the grid against Flower's own simulation, rounds, populations, memory, deaths.

    python -m simulations.benchmarks.engine [--quick] [--json FILE] [--figure FILE] [--pfl-python PYTHON]
        [--only noop|broadcast|explain|census|memory|death|fedavg]

Every figure is measured in a process of its own; peers alternate with ours within this run, so ratios hold on a busy
machine where seconds do not. Flower's simulation is quadratic in the number of nodes: it is asked for at most 2,000.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

WORKERS = 2
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
         "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
REACH = {"noop_ratio": 20.0, "linear": 1.3, "explain_overhead": 0.05, "census_100k_s": 6.0, "census_1m_s": 60.0,
         "growth": 0.02, "idle_bytes": 2_048}

WHICH = {"first": "the first explain round of {:,} homes, with their enrolment (keys, agreements, a ledger)",
         "next": "an explain round of {:,} homes"}


def child(kind: str, part: dict[str, Any], timeout: float = 3_600) -> dict[str, Any]:
    """Measure one part in a fresh process; its figures. kind: a name of engines.ours.PARTS, or "stock"."""
    code = ("import json, sys; from simulations.benchmarks.engines import {m}; "
            "part = json.loads(sys.argv[1]); print('\\nFOUND ' + json.dumps({f}(part)))")
    module, _, name = kind.rpartition(".")  # "fedavg.ours", "census"
    code = code.format(m="stock", f="stock.measure") if kind == "stock" else code.format(
        m=module or "ours", f=f"{module or 'ours'}.PARTS[{name!r}]")
    env = {**os.environ, **QUIET, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, [
        str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))}
    ran = subprocess.run([sys.executable, "-c", code, json.dumps(part)], env=env, text=True, capture_output=True,
                         timeout=timeout)
    found = [line for line in ran.stdout.splitlines() if line.startswith("FOUND ")]
    if ran.returncode or not found:
        raise RuntimeError(f"the part {kind} {part} failed:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
    return json.loads(found[-1].removeprefix("FOUND "))


def spread(values: Iterable[float]) -> dict[str, float]:
    values = list(values)
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def against_stock(nodes: int, repeats: int, megabytes: float = 0.0) -> dict[str, Any]:
    """Rounds of ours and of Flower's simulation over the same number of nodes."""
    part = {"nodes": nodes, "repeats": repeats, "megabytes": megabytes, "workers": WORKERS}
    theirs, found = child("stock", part)["seconds"], child("rounds", part)
    ours = found["seconds"]
    return {"nodes": nodes, "megabytes": megabytes, "ours_s": spread(ours), "stock_s": spread(theirs), "puts": found["puts"],
            "ratio": spread(two / one for one, two in zip(sorted(ours), sorted(theirs)))}


def noop(quick: bool) -> dict[str, Any]:
    """No-op queries: against Flower's simulation, and how the time per home grows."""
    repeats = 3
    found = {"against_stock": [against_stock(nodes, repeats) for nodes in ((100, 250) if quick else (500, 2_000))]}
    sizes = (500, 2_000) if quick else (500, 1_000, 2_000, 10_000, 100_000)
    found["ours"] = [{"nodes": nodes, "seconds": spread(child("rounds", {"nodes": nodes, "repeats": repeats,
                                                                        "workers": WORKERS})["seconds"])} for nodes in sizes]
    few, many = min(sizes, key=lambda n: abs(n - 1_000)), max(sizes)
    pairs = [(per_home(few, 2 * many), per_home(many, 2 * many)) for _ in range(repeats)]
    found["linear"] = {"few": few, "many": many} | {
        name: spread(two[name] / one[name] for one, two in pairs) for name in ("seconds", "processor_s")} | {
        f"us_{label}": {name: spread(1e6 * pair[at][name] for pair in pairs) for name in ("seconds", "processor_s")}
        for at, label in enumerate(("few", "many"))}
    return found


def per_home(nodes: int, messages: int) -> dict[str, float]:
    """Seconds and processor seconds per message of no-op rounds over that many nodes.

    On a busy machine compare the processor's: short rounds get their turn sooner than long ones.
    """
    found = child("rounds", {"nodes": nodes, "repeats": max(1, messages // nodes), "workers": WORKERS})
    return {"seconds": sum(found["seconds"]) / len(found["seconds"]) / nodes, "processor_s": found["processor_s"] / nodes}


def broadcast(quick: bool) -> dict[str, Any]:
    """A model of 1 MB to every node."""
    return {"against_stock": [against_stock(50 if quick else 500, 3, 1.0)]}


def explain(quick: bool) -> dict[str, Any]:
    """Rounds of fit, SHAP, noise and ledger against a loop that only fits and explains, on as many processes."""
    homes = 20 if quick else 1_000
    found = child("explain", {"nodes": homes, "repeats": 3 if quick else 5, "workers": WORKERS})
    rounds = {}
    for which in ("first", "next"):
        took = {name: found[f"{which}_{name}_s"] for name in ("ours", "bare", "ours_processor", "bare_processor")}
        rounds[which] = {f"{name}_s": spread(values) for name, values in took.items()} | {
            f"overhead{kind}": spread(one / two - 1 for one, two in zip(took[f"ours{kind}"], took[f"bare{kind}"]))
            for kind in ("", "_processor")}
    return {"homes": homes, "rounds": rounds, "home_ms": {
        name: spread(1e3 * value for value in found[f"{name}_s"]) for name in ("library", "alone")}}


def census(quick: bool) -> dict[str, Any]:
    """A new query of every home, charged, on kept summaries, ledger on disk included."""
    rows = []
    for nodes, form, repeats in (((2_000, "shards", 3), (500, "homes", 3)) if quick else (
            (1_000, "shards", 3), (10_000, "shards", 3), (100_000, "shards", 3), (1_000_000, "shards", 3),
            (10_000, "homes", 3))):
        found = child("census", {"nodes": nodes, "form": form, "repeats": repeats, "workers": WORKERS, "distinct": 20})
        rows.append({"homes": nodes, "nodes": form, "seconds": spread(found["seconds"]), "first_s": found["first_s"],
                     "memory_gb": found["memory_gb"]})
    return {"rows": rows}


def memory(quick: bool) -> dict[str, Any]:
    """The driver between rounds 20 and 200 at 1,000 nodes, and the bytes of an idle home in it."""
    few, many = 1_000, 20_000 if quick else 1_000_000
    idle = child("idle", {"nodes": many})["bytes"] - child("idle", {"nodes": few})["bytes"]
    return {"growth": child("growth", {"nodes": 200 if quick else 1_000, "repeats": 40 if quick else 200,
                                       "workers": WORKERS}),
            "idle": {"bytes_per_home": idle / (many - few), "nodes": many}}


def death(quick: bool) -> dict[str, Any]:
    """A worker killed in the middle of a round of 40 nodes."""
    return child("death", {"nodes": 40, "workers": WORKERS})


def fedavg(quick: bool, pfl_python: str = "") -> dict[str, Any]:
    """A FedAvg round of a tiny MLP: vectorised, one by one, on Flower's simulation and, with its Python given, in pfl."""
    rows = []
    for nodes in ((50,) if quick else (200, 1_000)):
        part = {"nodes": nodes, "repeats": 3, "workers": WORKERS}
        found = {"stock": child("fedavg.stock", part), "one_by_one": child("fedavg.ours", {**part, "vectorised": False}),
                 "ours": child("fedavg.ours", {**part, "vectorised": True}),
                 "ours_1": child("fedavg.ours", {**part, "vectorised": True, "workers": 1})}
        if pfl_python:
            found["pfl"] = pfl(pfl_python, part)
        if abs(found["stock"]["weights"] / found["ours"]["weights"] - 1) > 1e-6:
            raise RuntimeError(f"the same training ended elsewhere: {found['stock']['weights']} {found['ours']['weights']}")
        rows.append({"nodes": nodes, **{name: spread(one["seconds"]) for name, one in found.items()}})
    return {"rows": rows}


def pfl(python: str, part: dict[str, Any]) -> dict[str, Any]:
    """The same round in pfl, single process, run by the Python of its own virtual environment."""
    ran = subprocess.run([python, str(Path(__file__).parent / "engines" / "pfl_peer.py"), json.dumps(part)], text=True,
                         capture_output=True, timeout=1_800, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = [line for line in ran.stdout.splitlines() if line.startswith("FOUND ")]
    if ran.returncode or not found:
        raise RuntimeError(f"pfl failed ({python}):\n{ran.stdout[-1500:]}\n{ran.stderr[-1500:]}")
    return json.loads(found[-1].removeprefix("FOUND "))


PARTS = {"noop": noop, "broadcast": broadcast, "explain": explain, "census": census, "memory": memory, "death": death,
         "fedavg": fedavg}


def printed(found: dict[str, Any]) -> list[str]:
    """The figures as lines, each beside what was to be reached."""
    lines = []
    for part in ("noop", "broadcast"):
        lines += [f"{part}, {row['nodes']:,} nodes, {row['megabytes']:g} MB: ours {row['ours_s']['median']:.3f} s, Flower "
                  f"{row['stock_s']['median']:.2f} s, {_range(row['ratio'], 'x')}, {row['puts']:g} put a round"
                  + (f" (to reach: {REACH['noop_ratio']:g}x at 2,000)" if part == "noop" else "")
                  for row in found.get(part, {}).get("against_stock", [])]
    if "noop" in found:
        lines += [f"noop, {row['nodes']:,} nodes: {row['seconds']['median']:.3f} s, "
                  f"{1e6 * row['seconds']['median'] / row['nodes']:.0f} us each" for row in found["noop"]["ours"]]
        one = found["noop"]["linear"]
        lines += [f"{what} per home: {one['many']:,} nodes {_range(one['us_many'][name], ' us')}, {one['few']:,} nodes "
                  f"{_range(one['us_few'][name], ' us')}: {_range(one[name], 'x')}{goal}"
                  for name, what, goal in (("seconds", "time", f" (to reach: {REACH['linear']:g}x)"),
                                           ("processor_s", "processor time, all processes,", ""))]
    if "explain" in found:
        lines += [f"{WHICH[which].format(found['explain']['homes'])}: {one['ours_s']['median']:.2f} s, bare loop "
                  f"{one['bare_s']['median']:.2f} s, overhead {_percent(one['overhead'])}; of processor time "
                  f"{_percent(one['overhead_processor'])}{' (to reach: 5 %)' if which == 'next' else ''}"
                  for which, one in found["explain"]["rounds"].items()]
        one = found["explain"]["home_ms"]
        lines.append(f"a home on one core: the bare loop {_range(one['alone'], ' ms')}; xgboost's own training call and "
                     f"contributions {_range(one['library'], ' ms')}")
    lines += [f"a new query of {row['homes']:,} homes ({row['nodes']}): {_range(row['seconds'], ' s')}, memory "
              f"{row['memory_gb']:.2f} GB; the first one, with enrolment, {row['first_s']:.1f} s"
              for row in found.get("census", {}).get("rows", [])]
    if "memory" in found:
        grown, idle = found["memory"]["growth"], found["memory"]["idle"]
        lines.append(f"driver, round 20 to {grown['rounds']}: {100 * grown['growth']:+.2f} % (to reach: below 2); idle home "
                     f"{idle['bytes_per_home']:.0f} bytes (to reach: {REACH['idle_bytes']})")
    for row in found.get("fedavg", {}).get("rows", []):
        took = {name: value["median"] for name, value in row.items() if name != "nodes"}
        pfl_told = "pfl: not run (--pfl-python)" if "pfl" not in took else (
            f"pfl, one process, {took['pfl']:.2f} s against {took['ours_1']:.2f} s with one worker, "
            f"{took['pfl'] / took['ours_1']:.1f}x (to reach: 5x)")
        lines.append(f"FedAvg of {row['nodes']:,} homes, tiny MLP: {took['ours']:.3f} s vectorised, one by one "
                     f"{took['one_by_one']:.3f} s; Flower {took['stock']:.2f} s, {took['stock'] / took['ours']:.0f}x (to "
                     f"reach: 10x); {pfl_told}")
    if "death" in found:
        one = found["death"]
        lines.append(f"a worker killed in a round of {one['nodes']}: {one['answers'][0]} answers that round, "
                     f"{one['answers'][1]} the next, {one['replaced']} replaced")
    return lines


def _range(values: dict[str, float], unit: str) -> str:
    return f"{values['median']:.3g}{unit} ({values['min']:.3g} to {values['max']:.3g})"


def _percent(values: dict[str, float]) -> str:
    return f"{100 * values['median']:.1f} % ({100 * values['min']:.1f} to {100 * values['max']:.1f})"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write the figures as JSON where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, some two minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--pfl-python", default="", metavar="PYTHON", help="of a virtual environment with pfl 0.6 and torch")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="where the scale figure goes (SVG, and PNG beside it)")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; repeat it for more")
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {"machine": {
        "python": platform.python_version(), "platform": platform.platform(), "cores": os.cpu_count(), "workers": WORKERS,
        "load": os.getloadavg()[0], "quick": given.quick,
        **{name: version(name) for name in ("flwr", "ray", "numpy", "xgboost")}}}
    for name in given.only or PARTS:
        more = {"pfl_python": given.pfl_python} if name == "fedavg" else {}
        found[name] = PARTS[name](given.quick, **more)
        print("\n".join(printed({name: found[name]})), flush=True)
    if given.figure and "census" in found:
        from simulations.benchmarks.engines.figure import write

        print(write(found["census"]["rows"], given.figure))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
