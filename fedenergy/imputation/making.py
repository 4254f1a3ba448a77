"""One command from homes to a saved imputer: fit, score on unseen homes, write the model, its card and its curves."""

from __future__ import annotations

import json
import math
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.imputation import dp_gp, packaged
from fedenergy.imputation.dp_gp import DpGp
from fedenergy.imputation.task import Windows, cut, errors, join
from fedenergy.progress import Progress, SilentProgress

SOURCES = ("simulated", "london")
LONGEST = 400            # steps of a window: its covariance has their square
HELD_OUT_HOMES, HELD_OUT_DAYS = 30, 28
TRAIN, TEST = (0.0, 0.7), (0.8, 1.0)     # of each London home's record
WHOLE_YEAR, LEAST_PRESENT = 365, 0.01    # of the record: homes with a smaller share are left out
CHECKPOINT_EVERY = 100
NET = {"patch": 8, "width": 64, "depth": 2, "heads": 4}


def make(out: str | Path, *, on: str = "simulated", step_minutes: int = 30, homes: int = 200, days: int = 364,
         epsilon: float = math.inf, delta: float = 1e-5, unit: str = "household", net_steps: int = 0, seed: int = 11,
         data: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Fit a dp_gp (and, with net_steps, a diffusion model that corrects it), save it into out, return its card.

    on       "simulated": nothing is spent; "london": (epsilon, delta) per unit with noise of the operating system
    data     folder of the data sets; where it is given, London's homes score a model of simulated ones too (never one of
             their own: an error on a home's later days is a statistic of that home that no noise covers)
    Raises ValueError naming the argument.
    """
    if on not in SOURCES:
        raise ValueError(f"--on {on} is unknown (takes: {', '.join(SOURCES)})")
    if on == "london" and math.isinf(epsilon):
        raise ValueError("--on london needs --epsilon: these are real homes")
    if net_steps and on != "simulated":
        raise ValueError("--net is for simulated homes: a private one is trained with fedenergy.imputation.train")
    progress, began, span = progress or SilentProgress(), time.monotonic(), window_days(step_minutes)
    if on == "simulated":
        windows = packaged.simulated_windows(homes, days, step_minutes, seed, span, progress)
        gp = dp_gp.fit(windows, epsilon, delta, unit=unit, seed=seed)
    else:
        windows = london_windows(data, step_minutes, TRAIN, span)
        gp = dp_gp.fit(windows, epsilon, delta, unit=unit, noise="secure")
    options = {"out": str(out), "on": on, "step": step_minutes, "homes": homes, "days": days, "epsilon": epsilon,
               "delta": delta, "per": unit, "net": net_steps, "seed": seed}
    card: dict[str, Any] = {"made by": "fedenergy imputer train " + " ".join(
        f"--{key} {shlex.quote(f'{value}')}" for key, value in options.items()),
        "trained on": _told(windows, step_minutes, on, unit),
        "privacy": "no real home is in it: it costs no privacy" if on == "simulated" and math.isinf(epsilon)
        else str(gp.privacy)}
    tests = {"unseen simulated homes": packaged.simulated_windows(HELD_OUT_HOMES, HELD_OUT_DAYS, step_minutes, seed + 1,
                                                                  span)}
    if on == "simulated" and data is not None and step_minutes in (30, 60):
        tests["London, last 20 % of each home"] = _whole(london_windows(data, step_minutes, TEST, span))
    card["scores"] = {name: packaged.scores(gp, test) for name, test in tests.items()}
    card["size"] = f"{sum(np.size(getattr(gp, name)) for name in packaged.ARRAYS):,} numbers"
    packaged.save_gp(gp, out, card)
    if net_steps:
        packaged.save_gp(gp, out, card | _net(Path(out), gp, windows, tests, card, net_steps, seed, progress))
        card = packaged.load_gp(out)[1]
    progress.note(f"made in {time.monotonic() - began:.0f} s")
    return card


def window_days(step_minutes: int) -> int:
    """A week where the step allows it: other days say how much a home uses when a day is gone.

    >>> [window_days(step) for step in (60, 30, 15, 5)]
    [7, 7, 2, 1]
    """
    return next(days for days in (7, 2, 1) if days * MINUTES_PER_DAY // step_minutes <= LONGEST)


def london_windows(data: str | None, step_minutes: int, part: tuple[float, float], span: int) -> Windows:
    """Windows of whole days of every London home's record, from a share of it to a share of it; NaN where missing."""
    from fedenergy.households.datasets import london_households

    population = london_households(data, step_minutes=step_minutes, days=WHOLE_YEAR, min_present=LEAST_PRESENT)
    slots = MINUTES_PER_DAY // step_minutes
    found = []
    for index in range(len(population)):
        home = population.load(index)
        first, last = (int(home.days * share) * slots for share in part)
        if last - first >= span * slots:
            found.append(cut(home.total[first:last], span * slots, steps_per_day=slots, home=home.id))
    windows = join(found)
    return windows.take(np.flatnonzero(windows.known.any(axis=(1, 2))))


def _told(windows: Windows, step_minutes: int, on: str, unit: str) -> str:
    """What a model was fitted to; how many windows of real homes is told where a window is the unit only."""
    homes, shape = f"{len(set(windows.homes)):,}", f"of {windows.length} steps of {step_minutes} minutes"
    if on == "simulated":
        return f"{len(windows):,} windows {shape} of {homes} simulated homes"
    return (f"{len(windows):,} windows {shape} of" if unit == "window" else f"windows {shape} of") + f" {homes} London homes"


def _whole(windows: Windows) -> Windows:
    return windows.take(np.flatnonzero(windows.known.all(axis=(1, 2))))


def _net(out: Path, gp: DpGp, windows: Windows, tests: dict[str, Windows], card: dict[str, Any], steps: int, seed: int,
         progress: Progress) -> dict[str, Any]:
    """Train, save and score the diffusion model on top; what it adds to the card."""
    from fedenergy.imputation.dit import DiTConfig
    from fedenergy.imputation.events import LiveCurve, curves_of, write_events
    from fedenergy.imputation.objective import Objective
    from fedenergy.imputation.sample import fill
    from fedenergy.imputation.training import train

    live = LiveCurve(out / "logs")
    model = train(windows, None, Objective("x0"), None, steps=steps, seed=seed, batch=64, rate=1e-3, warmup=min(50, steps),
                  ema=0.99, net=DiTConfig(windows.length, 1, **NET), base=gp, residual_scale=0.1, limits=(gp.low, gp.cap),
                  checkpoint=out / "training", checkpoint_every=CHECKPOINT_EVERY, on_step=live,
                  progress=progress)
    model.save(out)
    write_events(out / "logs", curves_of(model.log), live.when)
    scored = {where: dict(patterns) for where, patterns in card["scores"].items()}
    for where, test in tests.items():
        few = test.take(slice(0, 100))
        for pattern in packaged.PATTERNS:
            observed = pattern.observed(len(few), few.length)
            mean, _ = gp.points(np.where(observed, few.values, 0.0), observed, few.time_of_day)
            found = fill(model, few, observed, samples=10, steps=10, seed=seed)
            scored.setdefault(f"{where}: with the net, 100 windows", {})[pattern.name] = {
                "dp_gp": _short(errors(mean, few.values, observed)), "with the net": _short(found.errors("mean"))}
    return {"scores": scored, "net": json.loads(json.dumps(NET | {"steps": steps}))}


def _short(found: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{found[name]:.5g}") for name in ("mse", "mae")}
