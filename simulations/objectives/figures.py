"""The source's figures 1 and 2, and ours: error against the best free baseline, sampler by sampler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedenergy import imputation as imp
from fedenergy.ids import stream
from fedenergy.imputation import diagnose
from fedenergy.imputation.schedule import alpha_bar
from fedenergy.report.axes import TEXT
from fedenergy.report.gallery import Plate
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations import pages
from simulations.objectives.models import device_of
from simulations.objectives.paper import EPS, V_DYNAMIC, V
from simulations.objectives.settings import AS_PUBLISHED, NO_PRIVACY, TRUE_EPSILON
from simulations.objectives.tables import WORDS, condition_words

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

LATE = 800               # where the source shades "late, low SNR": read off its figure, it gives no number
TIMES = 41
BATCH, RECORDS = 64, 128
MARKS = ("o", "s", "^", "D", "v", "P", "X")
IMPLIED = "eps, loss on the implied x0"


def figure_1(schedule: str, steps: int) -> Figure:
    """The kept share of the signal against t, and its inverse."""
    a = alpha_bar(schedule, steps).numpy()
    drawn, (ax,) = pages.axes(2.8)
    ax.plot(a, color=PALETTE[0], linewidth=1.6, label="ᾱ_t, kept share of the signal")
    ax.plot(1 / a, color=PALETTE[1], linewidth=1.6, linestyle=(0, (4, 2)), label="1 / ᾱ_t")
    ax.axvspan(LATE / 1000 * steps, steps, color=MUTED, alpha=0.12, linewidth=0)
    ax.set(xlabel="diffusion timestep t", yscale="log", ylabel="value")
    pages.legend(drawn, ax, 2)
    return drawn


def synthetic(n: int, length: int, seed: int = 0) -> imp.Windows:
    """Normalised windows without data: a daily wave of random phase and level, noise, clipped to [0, 1]."""
    rng = stream(seed, "synthetic batch")
    at = np.arange(length) / 24
    wave = 0.5 + 0.25 * np.sin(2 * math.pi * (at + rng.random((n, 1)))) + 0.1 * rng.standard_normal((n, 1))
    return imp.Windows(np.clip(wave + 0.05 * rng.standard_normal((n, length)), 0.0, 1.0))


def curves(study: Objectives) -> dict[str, Any]:
    """Median gradient norm against t at fixed checkpoints on a synthetic normalised batch, by objective.

    One eps and one v checkpoint, trained as published on synthetic windows; v dynamic is the v checkpoint under ᾱ_t.
    """
    windows = synthetic(RECORDS, study.window)
    net = imp.DiTConfig(study.window, 1, study.patch, study.width, study.depth, study.heads)
    dp = imp.DPSGD(study.clip, sigma=study.sigma, delta=study.delta)
    times = np.linspace(0, study.diffusion_steps - 1, TIMES).round().astype(int).tolist()
    batch, found = synthetic(BATCH, study.window, seed=1), {"t": times}
    a = alpha_bar(study.schedule, study.diffusion_steps).numpy()[times]
    for target, weights in (("eps", ("none",)), ("v", ("none", "alpha_bar"))):
        objective = imp.Objective(target, "none", study.loss_on, study.reduction)
        model = imp.train(windows, None, objective, dp, steps=study.steps, seed=study.seeds[0], rate=study.rate, net=net,
                          batch=study.batch, schedule=study.schedule, diffusion_steps=study.diffusion_steps,
                          limits=(0.0, 1.0), device=device_of(study.device))
        for weight in weights:
            norms = diagnose.probe(model, batch, times, weight=weight, clip=study.clip)
            name = {"eps": EPS, "v": V if weight == "none" else V_DYNAMIC}[target]
            found[name] = [float(np.median(norms.total[norms.step == t])) for t in times]
    found[IMPLIED] = [norm * (1 - kept) / kept for norm, kept in zip(found[EPS], a.tolist())]
    return found


def figure_2(found: dict[str, Any], clip: float) -> Figure:
    """Gradient norm against t, logarithmic."""
    drawn, (ax,) = pages.axes(3.2)
    styles = {EPS: (PALETTE[1], "-"), V: (PALETTE[0], "-"), V_DYNAMIC: (PALETTE[2], "-"), IMPLIED: (PALETTE[1], ":")}
    for name, (colour, line) in styles.items():
        ax.plot(found["t"], found[name], color=colour, linestyle=line, linewidth=1.6, label=name)
    ax.axhline(clip, color=INK, linestyle=(0, (4, 2)), linewidth=1, label=f"C = {clip:g}")
    ax.axvspan(LATE / 1000 * (found["t"][-1] + 1), found["t"][-1], color=MUTED, alpha=0.12, linewidth=0)
    ax.set(xlabel="diffusion timestep t", yscale="log", ylabel="median gradient norm")
    pages.legend(drawn, ax, 2)
    return drawn


def against_free(table: pd.DataFrame, study: Objectives, dataset: str, condition: tuple[str, float]) -> Figure | None:
    """MSE over the best free baseline's by method; a marker per sampler, filled as published, hollow at a true epsilon."""
    here = table[(table["dataset"] == dataset) & (table["pattern"] == condition[0]) & (table["rate"] == condition[1])]
    here = here[here["regime"].isin([AS_PUBLISHED, TRUE_EPSILON, NO_PRIVACY]) & here["ratio"].notna()]
    here = here[(here["regime"] != TRUE_EPSILON) | (here["asked"] == max(study.epsilons, default=0))]
    methods = list(dict.fromkeys(here["method"]))
    if not methods:
        return None
    drawn, (ax,) = pages.axes(0.9 + 0.3 * len(methods))
    samplers = list(dict.fromkeys(here["sampler"]))
    for row in here.to_dict("records"):
        regimes = [r for r in study.regimes if r in set(here["regime"])]
        y = methods.index(row["method"]) + 0.22 * (regimes.index(row["regime"]) - (len(regimes) - 1) / 2)
        k = samplers.index(row["sampler"])
        ax.plot(row["ratio"], y, MARKS[k % len(MARKS)], color=PALETTE[k % len(PALETTE)], markersize=5,
                fillstyle="none" if row["regime"] == TRUE_EPSILON else "full")
    ax.axvline(1.0, color=INK, linewidth=1)
    ax.set(xscale="log", xlabel="MSE / best free baseline", ylim=(len(methods) - 0.5, -0.5))
    ax.set_yticks(range(len(methods)), methods)
    handles = [Line2D([], [], linestyle="", marker=MARKS[k % len(MARKS)], color=PALETTE[k % len(PALETTE)],
                      label={"": "no sampler"}.get(name, name)) for k, name in enumerate(samplers)]
    if len(set(here["regime"])) > 1:
        handles += [Line2D([], [], linestyle="", marker="o", color=MUTED, label=WORDS[AS_PUBLISHED]),
                    Line2D([], [], linestyle="", marker="o", fillstyle="none", color=MUTED, label=WORDS[TRUE_EPSILON])]
    pages.legend(drawn, ax, 3, handles)
    ax.tick_params(axis="y", labelsize=TEXT - 1)
    return drawn


def plates(study: Objectives, table: pd.DataFrame, scaling: dict[str, Any] | None) -> list[Plate]:
    """Every figure of a study."""
    made = []
    if "figure 1" in study.tables:
        made.append(Plate("figure_1", "figures", "Figure 1: signal left at each timestep", f"{study.schedule} schedule; "
                          f"shaded: t ≥ {LATE}, the late, low-SNR part (our reading).",
                          "The kept share falls from 1 to about 1e-9; its inverse rises.",
                          figure_1(study.schedule, study.diffusion_steps)))
    if scaling is not None:
        made.append(Plate("figure_2", "figures", "Figure 2: gradient norm against t on a synthetic batch",
                          f"Median of {BATCH} records at fixed checkpoints trained on synthetic windows. Dotted: what "
                          "the eps network's norm would be if its loss were taken on the x0 that it implies: (1 − ᾱ)/ᾱ "
                          "times as much.",
                          "Gradient norms by objective over diffusion time.", figure_2(scaling, study.clip)))
    for dataset in study.datasets:
        for rate in (sorted({r for p, r in zip(table["pattern"], table["rate"])}, reverse=True)[:1] if len(table) else []):
            for pattern in study.patterns:
                figure = against_free(table, study, dataset, (pattern, rate))
                if figure is not None:
                    made.append(Plate(f"free_{dataset}_{pattern}_{rate:g}".replace(" ", "_").replace(".", "_"), "figures",
                                      f"{dataset}, {condition_words((pattern, rate))}",
                                      "Right of the line, a baseline that costs nothing is better. Mean over seeds.",
                                      f"MSE over the best free baseline by method on {dataset}.", figure))
    return made
