"""How much a private step costs: book-keeping against a plain AdamW step, Opacus' hooks and torch's vmap.

    python -m simulations.benchmarks.dpsgd [--quick] [--json FILE] [--patches 1,4,8] [--engines plain,bookkeeping,...]

One thread, the source's DiT (8 x 256, 7.63 M parameters), batch 32, windows of 96. All engines take the same records, the
same draws and the same fused AdamW, and all private ones clip per record and add noise to the sum. Times are taken round
robin in one process (a round: one step of every engine), as processor time of the thread, so that other work on the
machine disturbs them less; ratios are medians over the rounds. Peak memory is the resident maximum of a child process
that takes two steps, above what it held before it built the model (Linux).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ENGINES = ("plain", "bookkeeping", "opacus", "vmap")
QUICK = ("plain", "bookkeeping", "opacus")
BATCH, LENGTH, CLIP, SIGMA = 32, 96, 1.0, 1.5
REACH = {1: 1.25, 8: 1.4}                 # book-keeping / plain
HOOKS = {1: 1.6, 4: 2.0, 8: 2.0}          # Opacus hooks / book-keeping


def build(engine: str, patch: int, width: int = 256, depth: int = 8) -> Callable[[], None]:
    """A closure that takes one optimiser step with the engine."""
    import torch

    from fedenergy.imputation.bookkeeping import Clip
    from fedenergy.imputation.dit import DiT, DiTConfig
    from fedenergy.imputation.dpsgd import DPSGD, PrivateGradient, SeededGaussian
    from fedenergy.imputation.objective import Objective, noised
    from fedenergy.imputation.schedule import alpha_bar

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, objective = DiT(DiTConfig(LENGTH, 1, patch, width, depth)), Objective("v")
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.02 * torch.randn_like(p))
    x0, noise = torch.rand(BATCH, LENGTH, 1), torch.randn(BATCH, LENGTH, 1)
    mask, t = (torch.rand(BATCH, LENGTH, 1) < 0.5).float(), torch.randint(0, 1000, (BATCH,))
    a = alpha_bar("cosine").float()[t]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def losses() -> Any:
        out = net(noised(x0, noise, a.view(-1, 1, 1)), t, x0 * mask, mask)
        return objective.losses(out, x0, noise, a, mask < 0.5)

    def plain() -> None:
        optimizer.zero_grad()
        losses().mean().backward()
        optimizer.step()

    if engine == "plain":
        return plain
    if engine in ("bookkeeping", "opacus"):
        private = PrivateGradient(net, DPSGD(clip=CLIP, sigma=SIGMA, engine=engine), SIGMA, BATCH, SeededGaussian(0))

        def hooked() -> None:
            private.step([(losses, BATCH)], 0)
            optimizer.step()

        return hooked
    if engine != "vmap":
        raise ValueError(f"engine {engine!r} is unknown (takes: {', '.join(ENGINES)})")
    clip, gaussian = Clip(CLIP), SeededGaussian(0)

    def one(parameters: dict, x0: Any, noise: Any, mask: Any, t: Any, a: Any) -> Any:
        call = (noised(x0, noise, a)[None], t[None], (x0 * mask)[None], mask[None])
        out = torch.func.functional_call(net, parameters, call)
        return objective.losses(out, x0[None], noise[None], a[None], mask[None] < 0.5).sum()

    gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0, 0, 0, 0))

    def mapped() -> None:
        with torch.no_grad():
            rows = gradients({n: p.detach() for n, p in net.named_parameters()}, x0, noise, mask, t, a)
            norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in rows.values()]).norm(dim=0)
            scale = clip(norms)
            for k, (name, p) in enumerate(net.named_parameters()):
                total = (rows[name].flatten(1).t() @ scale).view(p.shape)
                gaussian.add(total.view(-1), SIGMA * CLIP, k)
                p.grad = total / BATCH
        optimizer.step()

    return mapped


def timed(patch: int, engines: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Processor seconds per step and engine, round robin; ratios to the plain step of the same round."""
    steps = {engine: build(engine, patch) for engine in engines}
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine, step in steps.items():
            start = time.thread_time()
            step()
            taken[engine].append(time.thread_time() - start)
    plain = taken.get("plain", [])
    return {engine: {"seconds": statistics.median(values), "least": min(values),
                     "to_plain": statistics.median([x / y for x, y in zip(values, plain)]) if plain else None}
            for engine, values in taken.items()}


def child(engine: str, patch: int) -> float:
    """Peak resident megabytes of two steps above what the process held before the model."""
    import opacus  # noqa: F401  the same libraries for every engine
    import torch  # noqa: F401

    before = resident("VmRSS")
    step = build(engine, patch)
    step()
    step()
    return resident("VmHWM") - before


def resident(key: str) -> float:
    """Megabytes of this process from /proc: VmRSS now, VmHWM at most (getrusage's maximum is inherited over a fork)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key + ":"))


def peak(engine: str, patch: int) -> float:
    """`child` in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "simulations.benchmarks.dpsgd", "--child", engine, "--patches",
               str(patch)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def verdict(patch: int, part: dict[str, Any]) -> list[str]:
    """What was reached, from this run's figures."""
    ours, lines = part["bookkeeping"], []
    if patch in REACH and ours["to_plain"]:
        lines.append(f"book-keeping / plain {ours['to_plain']:.2f} (reach {REACH[patch]:g})")
    if "opacus" in part:
        theirs = part["opacus"]
        lines.append(f"Opacus hooks / book-keeping {theirs['seconds'] / ours['seconds']:.2f} in time (reach "
                     f"{HOOKS.get(patch, 2.0):g}), {theirs['peak_mb'] / ours['peak_mb']:.2f} in memory (reach 2)")
    return lines


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m simulations.benchmarks.dpsgd", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, without vmap")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--patches", default="1,4,8")
    parser.add_argument("--engines")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    patches = [int(patch) for patch in options.patches.split(",")]
    warnings.filterwarnings("ignore", message=".*(backward hook|performance drop).*")
    if options.child:
        print(child(options.child, patches[0]))
        return {}
    engines = tuple(options.engines.split(",")) if options.engines else QUICK if options.quick else ENGINES
    result: dict[str, Any] = {
        "quick": options.quick, "load": os.getloadavg()[0], "batch": BATCH, "clock": "thread processor time",
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("torch", "opacus")},
                     "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread"}}
    print(", ".join(f"{k} {v}" for k, v in result["versions"].items()) + f", load {result['load']:.1f}")
    for patch in patches:
        part = timed(patch, engines, (3 if options.quick else 9) * (1 if patch == 1 else 2))
        for engine in engines:
            part[engine]["peak_mb"] = peak(engine, patch)
            print(f"patch {patch} {engine:12s} {part[engine]['seconds'] * 1e3:8.0f} ms  "
                  f"x {part[engine]['to_plain'] or float('nan'):.2f} plain  {part[engine]['peak_mb']:7.0f} MB", flush=True)
        result[f"patch {patch}"] = part
        print(*(f"  {line}" for line in verdict(patch, part)), sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    sys.exit(0 if main() is not None else 1)
