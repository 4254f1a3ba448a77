"""Figures of the study: errors by noise, the tail of g_cond, norms against diffusion time."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from fedenergy.report.axes import TEXT
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations import pages
from simulations.adaln.settings import PLAIN, TASKS, noise_words


def _noises(frame: pd.DataFrame) -> list[tuple[str, float]]:
    """(regime, asked) in the order of the run."""
    return list(dict.fromkeys(zip(frame["regime"], frame["asked"])))


def errors(rows: pd.DataFrame, dataset: str) -> Figure:
    """RMSE by noise and limits, a panel per task; the dashed line: the best filling that costs nothing."""
    here = rows[rows["dataset"] == dataset]
    cells = here[~here["regime"].isin(["free", "unprotected"])]
    noises, limits = _noises(cells), list(dict.fromkeys(cells["limits"]))
    figure, found = pages.axes(2.9, columns=len(TASKS))
    for ax, task in zip(found, TASKS):
        for k, text in enumerate(limits):
            line = cells[(cells["limits"] == text) & (cells["task"] == task)].groupby(["regime", "asked"])["rmse"]
            mean, low, high = line.mean(), line.min(), line.max()
            at = [i + 0.6 * (k + 0.5) / len(limits) - 0.3 for i in range(len(noises))]
            height = [mean.get(noise, float("nan")) for noise in noises]
            spread = [[abs(mean.get(n, 0.0) - end.get(n, 0.0)) for n in noises] for end in (low, high)]
            ax.errorbar(at, height, spread, linestyle="none", marker="osD^vP"[k % 6], markersize=4.5,
                        color=PALETTE[k % len(PALETTE)], label=f"limits: {text}")
        free = here[(here["regime"] == "free") & (here["task"] == task)]["rmse"].min()
        ax.axhline(free, color=INK, linestyle=(0, (4, 2)), linewidth=1.0, label="best free filling")
        ax.set_title(task, fontsize=TEXT, color=INK)
        ax.set_xticks(range(len(noises)), [noise_words(*noise) for noise in noises])
        ax.set_xlim(-0.5, len(noises) - 0.5)
    found[0].set_ylabel("RMSE (z-scores)")
    pages.legend(figure, found[0], 2)
    return figure


def tails(gradients: pd.DataFrame, dataset: str) -> Figure:
    """p50, p95 and p99 of ||g_cond|| in the last fifth of training, by noise and limits."""
    cells = gradients[(gradients["dataset"] == dataset) & (gradients["part"] == "conditioning")]
    noises, limits = _noises(cells), list(dict.fromkeys(cells["limits"]))
    figure, (ax,) = pages.axes(2.9)
    for k, text in enumerate(limits):
        for name, marker in (("p50", "v"), ("p95", "s"), ("p99", "o")):
            value = cells[cells["limits"] == text].groupby(["regime", "asked"])[name].mean()
            at = [i + 0.6 * (k + 0.5) / len(limits) - 0.3 for i in range(len(noises))]
            ax.plot(at, [value.get(noise, float("nan")) for noise in noises], linestyle="none", marker=marker,
                    markersize=4.5, color=PALETTE[k % len(PALETTE)], label=f"{text}, {name}")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("‖g_cond‖ before clipping")
    ax.set_xticks(range(len(noises)), [noise_words(*noise) for noise in noises])
    ax.set_xlim(-0.5, len(noises) - 0.5)
    pages.legend(figure, ax, 3)
    return figure


def times(frame: pd.DataFrame, dataset: str) -> Figure:
    """p99 of ||g_cond|| and of the whole gradient against diffusion time at the final models, one noise."""
    cells = frame[(frame["dataset"] == dataset) & (frame["regime"] != PLAIN)]
    cells = cells if len(cells) else frame[frame["dataset"] == dataset]
    regime, asked = _noises(cells)[-1]
    cells = cells[(cells["regime"] == regime) & (cells["asked"] == asked)]
    cells = cells[(cells["clip"] == cells["clip"].iloc[0]) & (cells["objective"] == cells["objective"].iloc[0])]
    figure, found = pages.axes(2.8, columns=2)
    for ax, name, title in zip(found, ("p99", "cond_p99"), ("whole gradient", "conditioning path")):
        for k, text in enumerate(dict.fromkeys(cells["limits"])):
            line = cells[cells["limits"] == text].groupby("low")[name].mean()
            ax.plot(line.index + 50, line, color=PALETTE[k % len(PALETTE)], marker="o", markersize=3, linewidth=1.4,
                    label=f"limits: {text}")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_minor_locator(NullLocator())
        pages.plain_ticks(ax.yaxis)
        ax.set(xlabel="diffusion time t")
        ax.set_title(title, fontsize=TEXT, color=INK)
        ax.axhline(float(cells["clip"].iloc[0]), color=MUTED, linestyle=(0, (4, 2)), linewidth=1.0, label="C")
    found[0].set_ylabel(f"p99 of the norm, {noise_words(regime, asked)}")
    pages.legend(figure, found[0], 2)
    return figure
