"""Figures 2 to 5 of the source's section V, from our own runs. Pure: results in, matplotlib figures out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from fedenergy.report.axes import TEXT
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations.mechanisms.runs import (
    CENTRAL,
    CENTRAL_GAUSS,
    LOCAL_DP,
    NEGOTIATED,
    ONE,
    SAME,
    SAME_GAUSS,
    UNBOUNDED,
    WEIGHTED,
    Result,
    trajectory,
)
from simulations.mechanisms.settings import MODERATE
from simulations.pages import axes, legend, plain_ticks

COLOUR = {CENTRAL: PALETTE[0], UNBOUNDED: PALETTE[1], SAME: PALETTE[2], NEGOTIATED: PALETTE[3], ONE: PALETTE[4],
          WEIGHTED: PALETTE[5], LOCAL_DP: PALETTE[6], CENTRAL_GAUSS: PALETTE[0], SAME_GAUSS: PALETTE[2]}
MARKER = {CENTRAL: "o", UNBOUNDED: "s", SAME: "^", NEGOTIATED: "D", ONE: "x", WEIGHTED: "v", LOCAL_DP: ".",
          CENTRAL_GAUSS: "", SAME_GAUSS: ""}
DASH = (0, (4, 2))
LONGEST_NAME = 24


def curves(table: pd.DataFrame, unit: str) -> Figure:
    """Figure 2: cosine, Spearman and MAE against epsilon; mean over seeds, shaded one sd.

    table  runs.over_seeds of one setting
    """
    figure, panels = axes(height=7.4, rows=3, sharex=True)
    for mechanism in COLOUR:
        line = table[table["mechanism"] == mechanism].sort_values("epsilon")
        style = DASH if mechanism in (CENTRAL_GAUSS, SAME_GAUSS) else "-"
        for ax, score in zip(panels, ("cosine", "spearman", "mae"), strict=True):
            mean, sd = line[score].to_numpy(), line[f"{score}_sd"].fillna(0).to_numpy()
            low = np.maximum(mean - sd, mean / 4) if score == "mae" else mean - sd
            ax.fill_between(line["epsilon"], low, mean + sd, color=COLOUR[mechanism], alpha=0.10, linewidth=0)
            ax.plot(line["epsilon"], mean, color=COLOUR[mechanism], marker=MARKER[mechanism], markersize=4, linewidth=1.3,
                    linestyle=style, label=mechanism)
    for ax, words in zip(panels, ("utility (cosine)", "rank (Spearman)", f"MAE ({unit})"), strict=True):
        ax.set_ylabel(words)
        ax.axvline(MODERATE, color=MUTED, linewidth=0.8, linestyle=DASH)
    for ax in panels[:2]:
        ax.axhline(1, color=INK, linewidth=0.8)
        ax.set_ylim(-0.75, 1.08)
    panels[2].set_yscale("log")
    _epsilons(panels[2])
    legend(figure, panels[0], 2)
    return figure


def _epsilons(ax) -> None:
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 20]))
    ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax.xaxis)
    ax.set_xlabel("ε of one query (asked)")


def bars(result: Result, epsilon: float = MODERATE, top: int = 10) -> Figure:
    """Figure 3: the oracle's largest coordinates and what one seed's noise leaves of them; each panel by its own scale.

    Bars reach the largest true size times three, longer ones end there; a filled bar keeps the sign, a hollow one flips
    it.
    """
    chosen = (LOCAL_DP, SAME, ONE)
    vectors = {name: result.of(name, epsilon)[0] for name in chosen}
    figure, panels = axes(height=1.0 + 0.33 * min(top, len(result.coordinates)) * len(chosen), rows=len(chosen))
    for ax, (name, vector) in zip(panels, vectors.items(), strict=True):
        order = np.argsort(-np.abs(vector.truth), kind="stable")[:top]
        size = max(float(np.abs(vector.truth).max()), 1e-300)
        truth, noised = vector.truth[order] / size, np.clip(vector.released[order] / size, -3, 3)
        y = np.arange(len(order))[::-1]
        kept = np.sign(noised) == np.sign(truth)
        ax.barh(y + 0.2, truth, height=0.36, color=INK, label="oracle")
        ax.barh(y - 0.2, noised, height=0.36, edgecolor=COLOUR[name], linewidth=1.1,
                color=[COLOUR[name] if keep else "none" for keep in kept])
        ax.axvline(0, color=MUTED, linewidth=0.8)
        ax.set_xlim(-3.1, 3.1)
        ax.set_yticks(y, [_short(result.coordinates[k]) for k in order])
        ax.tick_params(axis="y", labelsize=TEXT - 2.5)
        ax.set_title(f"{name}: {int((~kept & (truth != 0)).sum())} of {len(order)} signs flipped", loc="left",
                     fontsize=TEXT, color=COLOUR[name])
        plain_ticks(ax.xaxis)
    panels[-1].set_xlabel("share of the largest true value (black: truth)")
    return figure


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME - 9]}…{name[-8:]}"


def ranks(result: Result, mechanisms: Sequence[str], epsilons: Sequence[float], top: int = 10) -> Figure:
    """Figures 4, 5: rank under noise of the oracle's Top-10; thin lines: seeds, thick: their mean; a column an epsilon."""
    size = min(top, len(result.coordinates))
    figure, panels = axes(height=0.6 + 2.0 * len(mechanisms), rows=len(mechanisms), columns=len(epsilons), sharex=True)
    x = np.arange(1, size + 1)
    for place, ax in enumerate(panels):
        name, epsilon = mechanisms[place // len(epsilons)], epsilons[place % len(epsilons)]
        lines = np.array([trajectory(v.released, v.truth, size) for v in result.of(name, epsilon)])
        ax.plot(x, x, color=INK, linewidth=1, linestyle=DASH)
        ax.plot(x, lines.T, color=COLOUR[name], linewidth=0.7, alpha=0.5)
        ax.plot(x, lines.mean(axis=0), color=COLOUR[name], linewidth=2, marker=MARKER[name], markersize=4)
        ax.set_ylim(len(result.coordinates) + 0.9, 0.1)
        ax.set_xticks(x)
        ax.set_title(f"{name.split(', ')[-1]}, ε = {epsilon:.3g}", loc="left", fontsize=TEXT - 0.5, color=INK)
        if place % len(epsilons) == 0:
            ax.set_ylabel("rank\n(lower is better)", fontsize=TEXT - 0.5)
    for ax in panels[-len(epsilons):]:
        ax.set_xlabel("oracle rank")
    return figure
