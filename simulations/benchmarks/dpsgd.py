"""How much a private step costs: book-keeping against a plain AdamW step, Opacus' hooks and its ghost clipping.

    python -m simulations.benchmarks.dpsgd [--quick] [--json FILE] [--patches 1,4,8] [--engines plain,bookkeeping,...]

One thread, the source's DiT (8 x 256, 7.63 M parameters), batch 32, windows of 96. All engines take the same records, the
same draws and the same fused AdamW, and all private ones clip per record and add noise to the sum (tested equal). "opacus"
is the library's default way, GradSampleModule's hooks and its own DPOptimizer, with two helps: the fused AdamW, and a summed
loss, which saves it a pass over the output gradients. "opacus-default" is what PrivacyEngine.make_private gives a user who
changes nothing: a mean loss and torch's AdamW as it comes; no verdict rests on it. All noise is seeded or torch's own.
"bookkeeping" handles a batch in the parts that the trainer would choose (patch 1: two of 16); Opacus takes it whole, as it
does unless it is told. "opacus-halves" tells it (virtual steps), and no verdict rests on that either.
Engines take turns step by step in one process, each round starting with another; a step's ratio is to the plain step of
its own round, so that other work on the machine disturbs them alike, and on the CPU time is the thread's processor time.
Each repeat builds its models anew and gives the median of its rounds; least, median and most are over the repeats. Peak
memory is that of a process of its own that takes two steps, above what it held before it built the model. CUDA rows run
where there is a GPU and say "not run" elsewhere. `--engines` also takes vmap (torch.func), opacus-default and opacus-halves.
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
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

ENGINES = ("plain", "bookkeeping", "opacus", "ghost", "vmap", "opacus-default", "opacus-halves")
FULL, QUICK = ENGINES[:4], ENGINES[:3]
DEVICES = ("cpu", "cuda")
BATCH, LENGTH, CLIP, SIGMA = 32, 96, 1.0, 1.5
PLAIN = {1: 1.25, 8: 1.4}                 # reach: book-keeping / plain, at most
HOOKS = {1: 1.6, 4: 2.0, 8: 2.0}          # reach: Opacus hooks / book-keeping, at least
MEMORY = 2.0                              # reach: the same in peak memory


def build(engine: str, patch: int, width: int = 256, depth: int = 8, device: str = "cpu",
          sigma: float = SIGMA) -> tuple[Callable[[], None], Any]:
    """(a closure that takes one optimiser step with the engine, its net)."""
    import torch

    from fedenergy.imputation.bookkeeping import Clip
    from fedenergy.imputation.dit import DiT, DiTConfig
    from fedenergy.imputation.dpsgd import DPSGD, PrivateGradient, SeededGaussian, records_at_once
    from fedenergy.imputation.objective import Objective, noised
    from fedenergy.imputation.schedule import alpha_bar

    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown (takes: {', '.join(ENGINES)})")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, objective = DiT(DiTConfig(LENGTH, 1, patch, width, depth)), Objective("v")
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.02 * torch.randn_like(p))
    x0, noise = torch.rand(BATCH, LENGTH, 1), torch.randn(BATCH, LENGTH, 1)
    mask, t = (torch.rand(BATCH, LENGTH, 1) < 0.5).float(), torch.randint(0, 1000, (BATCH,))
    a = alpha_bar("cosine").float()[t]
    net, (x0, noise, mask, t, a) = net.to(device), (x.to(device) for x in (x0, noise, mask, t, a))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def losses(model: Any = net, at: Any = slice(None)) -> Any:
        clean, hidden, seen, scale = x0[at], noise[at], mask[at], a[at]
        out = model(noised(clean, hidden, scale.view(-1, 1, 1)), t[at], clean * seen, seen)
        return objective.losses(out, clean, hidden, scale, seen < 0.5)

    def parts(size: int) -> list[slice]:
        return [slice(low, min(low + size, BATCH)) for low in range(0, BATCH, size)]

    if engine == "plain":
        def step() -> None:
            optimizer.zero_grad()
            losses().mean().backward()
            optimizer.step()
        return step, net

    if engine == "bookkeeping":
        privacy = DPSGD(clip=CLIP, sigma=1.0, engine=engine)
        private = PrivateGradient(net, privacy, sigma, BATCH, SeededGaussian(0))
        split = parts(records_at_once(net, privacy, BATCH))

        def step() -> None:
            private.step([(partial(losses, net, part), part.stop - part.start) for part in split], 0)
            optimizer.step()
        return step, net

    if engine in ("opacus", "opacus-halves"):
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        hooked = GradSampleModule(net, batch_first=True, loss_reduction="sum")
        private = DPOptimizer(optimizer, noise_multiplier=sigma, max_grad_norm=CLIP, expected_batch_size=BATCH)
        *first, last = parts(BATCH if engine == "opacus" else BATCH // 2)

        def step() -> None:
            private.zero_grad()
            for part in first:      # clipped and added up, as Opacus' BatchMemoryManager does
                losses(hooked, part).sum().backward()
                private.signal_skip_step(True)
                private.step()
                private.zero_grad()
            losses(hooked, last).sum().backward()
            if first:
                private.signal_skip_step(False)
            private.step()
        return step, net

    if engine == "opacus-default":
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(torch.zeros(10 * BATCH, 1)), batch_size=BATCH)
        hooked, private, _ = PrivacyEngine().make_private(
            module=net.train(), optimizer=torch.optim.AdamW(net.parameters(), lr=1e-4), data_loader=loader,
            noise_multiplier=sigma, max_grad_norm=CLIP)

        def step() -> None:
            private.zero_grad()
            losses(hooked).mean().backward()
            private.step()
        return step, net

    gaussian = SeededGaussian(0)

    def privatise() -> None:
        """The sums in .grad become noisy means; one flat tensor, as the other engines have."""
        flat = torch.cat([p.grad.view(-1) for p in net.parameters()])
        gaussian.add(flat, sigma * CLIP, 0)
        flat.mul_(1.0 / BATCH)
        for p, part in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
            p.grad = part.view(p.shape)

    if engine == "ghost":
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        module = GradSampleModuleFastGradientClipping(net, batch_first=True, loss_reduction="sum", max_grad_norm=CLIP)

        def step() -> None:
            each = losses(module)
            each.sum().backward(retain_graph=True)
            optimizer.zero_grad()
            scale = module.get_clipping_coef()
            module.disable_hooks()
            (scale * each).sum().backward()
            module.enable_hooks()
            privatise()
            optimizer.step()
        return step, net

    clip = Clip(CLIP)

    def one(parameters: dict, x0: Any, noise: Any, mask: Any, t: Any, a: Any) -> Any:
        call = (noised(x0, noise, a)[None], t[None], (x0 * mask)[None], mask[None])
        out = torch.func.functional_call(net, parameters, call)
        return objective.losses(out, x0[None], noise[None], a[None], mask[None] < 0.5).sum()

    gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0, 0, 0, 0))

    def step() -> None:
        with torch.no_grad():
            rows = gradients({n: p.detach() for n, p in net.named_parameters()}, x0, noise, mask, t, a)
            norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in rows.values()]).norm(dim=0)
            scale = clip(norms)
            for name, p in net.named_parameters():
                p.grad = (rows[name].flatten(1).t() @ scale).view(p.shape)
            privatise()
        optimizer.step()
    return step, net


def clock(device: str) -> Callable[[], float]:
    """Seconds: processor time of this thread, or the wall clock once the GPU has finished."""
    if device == "cpu":
        return time.thread_time
    import torch

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()
    return now


def timed(patch: int, engines: tuple[str, ...], rounds: int, repeats: int, device: str = "cpu",
          **size: int) -> dict[str, dict[str, dict[str, float]]]:
    """Per engine: seconds a step, its ratio to plain (`to_plain`), and Opacus hooks' ratio to it (`hooks_to_it`)."""
    now, found = clock(device), {engine: {"seconds": [], "to_plain": [], "hooks_to_it": []} for engine in engines}
    for _ in range(repeats):
        steps = {engine: build(engine, patch, device=device, **size)[0] for engine in engines}
        for step in steps.values():
            step()
        taken: dict[str, list[float]] = {engine: [] for engine in engines}
        for number in range(rounds):
            turn = number % len(engines)
            for engine in engines[turn:] + engines[:turn]:
                start = now()
                steps[engine]()
                taken[engine].append(now() - start)
        for engine, seconds in taken.items():
            found[engine]["seconds"].append(statistics.median(seconds))
            for key, above, below in (("to_plain", seconds, taken.get("plain")),
                                      ("hooks_to_it", taken.get("opacus"), seconds)):
                if above and below:
                    found[engine][key].append(statistics.median([x / y for x, y in zip(above, below)]))
    return {engine: {key: spread(values) for key, values in parts.items() if values} for engine, parts in found.items()}


def spread(values: list[float]) -> dict[str, float]:
    """Least, median and most."""
    return {"least": min(values), "median": statistics.median(values), "most": max(values)}


def child(engine: str, patch: int, device: str) -> float:
    """Peak megabytes of two steps: resident above what the process held before the model, or allocated on the GPU."""
    import opacus  # noqa: F401  the same libraries for every engine
    import torch

    import fedenergy.imputation.kernels  # noqa: F401

    before = resident("VmRSS")
    step, _ = build(engine, patch, device=device)
    step()
    step()
    return resident("VmHWM") - before if device == "cpu" else torch.cuda.max_memory_allocated() / 2**20


def resident(key: str) -> float:
    """Megabytes of this process from /proc: VmRSS now, VmHWM at most (getrusage's maximum is inherited over a fork)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key + ":"))


def peak(engine: str, patch: int, device: str) -> float:
    """`child` in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "simulations.benchmarks.dpsgd", "--child", engine, "--patches",
               str(patch), "--devices", device]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def verdict(patch: int, part: dict[str, Any]) -> list[str]:
    """What was reached at this patch length, from this run's medians."""
    ours, hooks, lines = part.get("bookkeeping", {}), part.get("opacus"), []
    if patch in PLAIN and "to_plain" in ours:
        lines.append(judged("book-keeping / plain, time", ours["to_plain"], PLAIN[patch], most=True))
    if hooks and patch in HOOKS and "hooks_to_it" in ours:
        lines.append(judged("Opacus hooks / book-keeping, time", ours["hooks_to_it"], HOOKS[patch]))
    if hooks and ours and patch in HOOKS:
        lines.append(judged("Opacus hooks / book-keeping, memory", spread([hooks["peak_mb"] / ours["peak_mb"]]), MEMORY))
    return lines


def judged(what: str, ratio: dict[str, float], reach: float, most: bool = False) -> str:
    """One line: a ratio beside what it should reach."""
    met = ratio["median"] <= reach if most else ratio["median"] >= reach
    return (f"{what}: {shown(ratio)} (reach: {'at most' if most else 'at least'} {reach:g}): "
            f"{'reached' if met else 'missed'}")


def shown(ratio: dict[str, float]) -> str:
    """A ratio with its spread."""
    if ratio["least"] == ratio["most"]:
        return f"{ratio['median']:.2f}"
    return f"{ratio['median']:.2f} [{ratio['least']:.2f}, {ratio['most']:.2f}]"


def here(device: str) -> bool:
    """Whether rows of the device can be run."""
    import torch

    return device == "cpu" or torch.cuda.is_available()


def rows(device: str, patches: list[int], engines: tuple[str, ...], rounds: int, repeats: int) -> dict[str, Any] | str:
    """One device's figures, printed as they come; "not run: ..." where there is none."""
    if not here(device):
        print(f"{device}: not run: no GPU")
        return "not run: no GPU"
    result: dict[str, Any] = {}
    for patch in patches:
        part = timed(patch, engines, rounds * (1 if patch == 1 else 2), repeats, device)
        for engine in engines:
            figures = part[engine] | {"peak_mb": peak(engine, patch, device)}
            part[engine] = figures
            ratios = "".join(f"  {name} {shown(figures[key])}" for key, name in (
                ("to_plain", "x plain"), ("hooks_to_it", "hooks / it")) if key in figures)
            print(f"{device} patch {patch} {engine:12s} {figures['seconds']['median'] * 1e3:8.1f} ms "
                  f"{figures['peak_mb']:7.0f} MB{ratios}", flush=True)
        lines = verdict(patch, part)
        result[f"patch {patch}"] = part | {"verdict": lines}
        print(*(f"  {line}" for line in lines), sep="\n", flush=True)
    return result


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m simulations.benchmarks.dpsgd", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three short repeats, without ghost clipping")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--patches", default="1,4,8")
    parser.add_argument("--engines", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    patches, devices = [int(patch) for patch in options.patches.split(",")], options.devices.split(",")
    warnings.filterwarnings("ignore", message=".*(backward hook|performance drop|Secure RNG).*")
    if options.child:
        print(child(options.child, patches[0], devices[0]))
        return {}
    engines = tuple(options.engines.split(",")) if options.engines else QUICK if options.quick else FULL
    result: dict[str, Any] = {
        "quick": options.quick, "repeats": options.repeats, "load_before": os.getloadavg()[0], "batch": BATCH,
        "model": "DiT 8 x 256, windows of 96",
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("torch", "opacus")},
                     "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread"}}
    print(", ".join(f"{k} {v}" for k, v in result["versions"].items()) + f", load {result['load_before']:.1f}", flush=True)
    for device in devices:
        result[device] = rows(device, patches, engines, 2 if options.quick else 5, options.repeats)
    result["load_after"] = os.getloadavg()[0]
    print(f"load at the end {result['load_after']:.1f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    sys.exit(0 if main() is not None else 1)
