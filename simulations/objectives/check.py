"""What a study would do and cost, before anything runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from fedenergy.imputation.learned import network
from fedenergy.privacy import accounting
from fedenergy.report.words import number
from fedenergy.studies import Place
from simulations.objectives import data, runs
from simulations.objectives.settings import AS_PUBLISHED, NO_PRIVACY, TRUE_EPSILON, TUNED, Fit, method

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

SUSTAINED = 1e13                # what the work is divided by, beside the hours that this machine would need
TRAIN, TIMED = 3.5, 2           # a DP training step over a forward pass of its batch: backward twice, clipping, noise


def rows(study: Objectives, place: Place) -> list[tuple[str, str]]:
    """(what, value) pairs."""
    found: list[tuple[str, str]] = [
        ("tables", ", ".join(study.tables)),
        ("model", f"DiT {study.depth} x {study.width}, patch {study.patch}; {study.steps:,} steps; DDIM {study.ddim_steps} "
                  f"steps, {study.samples} samples; on {runs.device_of(study.device)}"),
        ("left open by the source", f"channels {study.channels}, loss on {study.loss_on}, reduction {study.reduction}, "
                                    f"training masks {study.training_masks}, scale {study.scale}, "
                                    f"checkpoint {study.select}")]
    hours, cells, work = 0.0, 0, [0.0, 0.0]
    for dataset in study.datasets:
        try:
            one = data.load(study, dataset, place.data)
        except FileNotFoundError:
            found.append((dataset, "not run: data absent"))
            continue
        n, batch = len(one.train), data.batch_of(study, dataset)
        found.append((dataset, f"{one.records.reading.note}; {n:,} train, {len(one.records.valid):,} validation, "
                               f"{len(one.records.test):,} test windows of {one.train.length}; batch {batch}, "
                               f"q {min(1.0, batch / n):.4g}; scored in {one.records.reading.unit}"))
        found += [(f"{dataset}, {regime}", cost(study, dataset, regime, epsilon, min(1.0, batch / n)))
                  for regime, epsilon in asked(study)]
        for fit in runs.fits(study, dataset):
            train, fill = seconds(study, fit, one)
            hours, cells = hours + (train + fill) / 3600, cells + 1
            work = [a + b for a, b in zip(work, petaflop(study, fit, one))]
    found.append(("cells", f"{cells} trainings (a model that another table trained is not trained again)"))
    total = sum(work)
    found.append(("work", f"{number(work[0])} PFLOP of training, {number(work[1])} of sampling (the DiT's, TimeDiT's too): "
                          f"{number(total * 1e15 / SUSTAINED / 3600)} hours at {SUSTAINED / 1e12:g} TFLOP/s sustained"))
    found.append(("estimated", f"{number(hours)} hours on this machine's {runs.device_of(study.device)}, from timed forward "
                               "passes on random numbers"))
    return found


def asked(study: Objectives) -> list[tuple[str, float | None]]:
    """(regime, epsilon asked) pairs."""
    return [(regime, epsilon) for regime in study.regimes
            for epsilon in {TRUE_EPSILON: study.epsilons}.get(regime, (None,))]


def cost(study: Objectives, dataset: str, regime: str, epsilon: float | None, q: float) -> str:
    """Sigma, steps and what they cost."""
    if regime == NO_PRIVACY:
        return "no noise, no privacy: epsilon is infinite"
    dp, steps = runs.privacy(study, Fit(dataset, "eps", regime, epsilon, 0), q)
    pld, rdp = (accounting.epsilon(dp.sigma, q, steps, study.delta, method=m) for m in ("pld", "rdp"))
    said = (f"sigma {dp.sigma:.4g}, {steps:,} steps: epsilon {number(pld, 4)} (PLD; RDP {number(rdp, 4)}) at delta "
            f"{study.delta:g}")
    return said + (", where the source states 10" if regime == AS_PUBLISHED else f", asked {epsilon:g}")


def petaflop(study: Objectives, fit: Fit, one: data.Set) -> tuple[float, float]:
    """(training, sampling) work of a fit in 1e15 floating-point operations; 0 for regressors, which are small."""
    how = method(fit.method)
    if not how.diffuses:
        return 0.0, 0.0
    batch, n = data.batch_of(study, fit.dataset), len(one.train)
    _, steps = runs.privacy(study, fit, min(1.0, batch / n))
    tries = len(study.tuning_clips) * len(study.tuning_rates) if fit.method == TUNED else 1
    row = forward_flop(study, one.train.length) / 1e15
    fills = len(one.conditions) * len(one.records.test) * len(study.samplers) * study.samples * study.ddim_steps
    return 3 * row * steps * batch * tries, row * fills


def forward_flop(study: Objectives, length: int) -> float:
    """Operations of a DiT's forward pass over one window: Linears and attention by token, modulation by window.

    >>> from simulations.objective_conditioning import Objectives
    >>> round(3 * forward_flop(Objectives(), 96) * 32 * 100_000 / 1e15, 1)
    8.5
    """
    tokens, width = length // study.patch, study.width
    return study.depth * (tokens * (16 * width**2 + 4 * tokens * width) + 12 * width**2)


_TIMES: dict[str, float] = {}


def seconds(study: Objectives, fit: Fit, one: data.Set) -> tuple[float, float]:
    """(training, filling) seconds of a fit, estimated."""
    how = method(fit.method)
    n, batch = len(one.train), data.batch_of(study, fit.dataset)
    row = _row_seconds(study, runs.shape(study, how, one.train))
    _, steps = runs.privacy(study, fit, min(1.0, batch / n))
    tries = len(study.tuning_clips) * len(study.tuning_rates) if fit.method == TUNED else 1
    checks = steps // study.valid_every * len(one.records.valid) if study.select == "best" else 0
    fills = len(one.conditions) * len(one.records.test) * (
        len(study.samplers) * study.samples * study.ddim_steps if how.diffuses else 1)
    return tries * row * (TRAIN * steps * batch + checks), row * fills


def _row_seconds(study: Objectives, shape) -> float:
    """Seconds of a forward pass per window, measured once per shape."""
    device = runs.device_of(study.device)
    if study.threads:
        torch.set_num_threads(study.threads)
    key = f"{shape} {device}"
    if key not in _TIMES:
        rows = study.batch
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            net = network(shape).to(device).eval()
            x = torch.rand(rows, shape.length, shape.channels, device=device)
            args = (x, torch.zeros(rows, dtype=torch.long, device=device), x, torch.ones_like(x))
            more = {"extra": x} if shape.extra else {}
            net(*args, **more)
            _wait(device)
            begin = time.perf_counter()
            for _ in range(TIMED):
                net(*args, **more)
            _wait(device)
            _TIMES[key] = (time.perf_counter() - begin) / TIMED / rows
    return _TIMES[key]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
