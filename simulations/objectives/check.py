"""What a study would do and cost, before anything runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from fedenergy import imputation as imp
from fedenergy.imputation import series
from fedenergy.imputation.learned import Shape, network
from fedenergy.privacy import accounting
from fedenergy.report.words import number
from fedenergy.studies import Place
from simulations.objectives import data, figures, models, runs
from simulations.objectives.settings import AS_PUBLISHED, LEARNED, NO_PRIVACY, TRUE_EPSILON, TUNED, Fit, method

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

SUSTAINED = 1e13                # what the work is divided by, beside the hours that this machine would need
TRAIN, TIMED = 3.5, 3           # a DP training step over a forward pass of its batch: backward twice, clipping, noise


def rows(study: Objectives, place: Place) -> list[tuple[str, str]]:
    """(what, value) pairs."""
    found: list[tuple[str, str]] = [
        ("tables", ", ".join(study.tables)),
        ("model", f"DiT {study.depth} x {study.width}, patch {study.patch}: {_parameters(figure_net(study)):,} parameters; "
                  f"{study.steps:,} steps; DDIM {study.ddim_steps} steps, {study.samples} samples; on "
                  f"{models.device_of(study.device)}"),
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
        learned = {title: models.shape(study, method(title), one.train) for name, title in LEARNED.items()
                   if name in study.learned}
        if learned:
            found.append((f"{dataset}, learned", ", ".join(f"{title} {_parameters(shape):,} parameters"
                                                           for title, shape in learned.items())))
        found += [(f"{dataset}, {regime}" + (f", {name}" if name == TUNED else ""),
                   cost(study, dataset, regime, epsilon, min(1.0, batch / n), name))
                  for name in ["eps", *([TUNED] if TUNED in study.objectives else [])] for regime, epsilon in asked(study)
                  if name != TUNED or regime != NO_PRIVACY]
        for fit in runs.fits(study, dataset):
            train, fill = seconds(study, fit, one)
            hours, cells = hours + (train + fill) / 3600, cells + 1
            work = [a + b for a, b in zip(work, petaflop(study, fit, one))]
    found += [(dataset, "not run: " + ("left out of the quick form" if series.present(dataset, place.data) else
                                       "data absent")) for dataset in study.left_out]
    if "figure 2" in study.tables:
        row = _row_seconds(study, figure_net(study))
        work[0] += 2 * 3 * forward_flop(study, study.window) / 1e15 * study.steps * study.batch
        hours += (2 * study.steps * study.batch + 3 * figures.BATCH * figures.TIMES) * TRAIN * row / 3600
        found.append(("figure 2", f"2 trainings on {figures.RECORDS} synthetic windows, which no one's privacy depends on; "
                                  f"{figures.TIMES} times x {figures.BATCH} records for each of 3 curves"))
    found.append(("cells", f"{cells} trainings (a model that another table trained is not trained again)"))
    total = sum(work)
    found.append(("work", f"{number(work[0])} PFLOP of training, {number(work[1])} of sampling (the DiT's, TimeDiT's too): "
                          f"{number(total * 1e15 / SUSTAINED / 3600)} hours at {SUSTAINED / 1e12:g} TFLOP/s sustained"))
    found.append(("estimated", f"{number(hours)} hours on this machine's {models.device_of(study.device)}, less what "
                               "another table trained, from timed forward passes on random numbers"))
    return found


def asked(study: Objectives) -> list[tuple[str, float | None]]:
    """(regime, epsilon asked) pairs."""
    return [(regime, epsilon) for regime in study.regimes
            for epsilon in {TRUE_EPSILON: study.epsilons}.get(regime, (None,))]


def cost(study: Objectives, dataset: str, regime: str, epsilon: float | None, q: float, name: str = "eps") -> str:
    """Sigma, steps and what they cost; of a tuned method all runs of its grid together."""
    if regime == NO_PRIVACY:
        return "no noise, no privacy: epsilon is infinite"
    dp, steps = models.privacy(study, Fit(dataset, name, regime, epsilon, 0), q)
    runs_of = len(study.tuning_clips) * len(study.tuning_rates) if name == TUNED else 1
    pld, rdp = (accounting.epsilon(dp.sigma, q, steps * runs_of, study.delta, method=m) for m in ("pld", "rdp"))
    grid = f"{runs_of} runs of " if runs_of > 1 else ""
    said = (f"sigma {dp.sigma:.4g}, {grid}{steps:,} steps: epsilon {number(pld, 4)} (PLD; RDP {number(rdp, 4)}) at delta "
            f"{study.delta:g}")
    return said + (", where the source states 10" if regime == AS_PUBLISHED else f", asked {epsilon:g}")


def petaflop(study: Objectives, fit: Fit, one: data.Set) -> tuple[float, float]:
    """(training, sampling) work of a fit in 1e15 floating-point operations; 0 for regressors, which are small."""
    how = method(fit.method)
    if not how.diffuses:
        return 0.0, 0.0
    batch, n = data.batch_of(study, fit.dataset), len(one.train)
    _, steps = models.privacy(study, fit, min(1.0, batch / n))
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


def figure_net(study: Objectives) -> imp.DiTConfig:
    """The network for one channel."""
    return imp.DiTConfig(study.window, 1, study.patch, study.width, study.depth, study.heads)


def _parameters(shape: Shape) -> int:
    return sum(p.numel() for p in network(shape).parameters())


_TIMES: dict[str, float] = {}


def seconds(study: Objectives, fit: Fit, one: data.Set) -> tuple[float, float]:
    """(training, filling) seconds of a fit, estimated."""
    how = method(fit.method)
    n, batch = len(one.train), data.batch_of(study, fit.dataset)
    row = _row_seconds(study, models.shape(study, how, one.train))
    _, steps = models.privacy(study, fit, min(1.0, batch / n))
    tries = len(study.tuning_clips) * len(study.tuning_rates) if fit.method == TUNED else 1
    checks = steps // study.valid_every * len(one.records.valid) if study.select == "best" else 0
    fills = len(one.conditions) * len(one.records.test) * (
        len(study.samplers) * study.samples * study.ddim_steps if how.diffuses else 1)
    return tries * row * (TRAIN * steps * batch + checks), row * fills


def _row_seconds(study: Objectives, shape: Shape) -> float:
    """Seconds of a forward pass per window, measured once per shape."""
    device = models.device_of(study.device)
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
            took = []
            for _ in range(TIMED):
                begin = time.perf_counter()
                net(*args, **more)
                _wait(device)
                took.append(time.perf_counter() - begin)
            _TIMES[key] = min(took) / rows                       # the shortest: other work disturbs
    return _TIMES[key]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
