"""The scale figure: homes against seconds and memory, measured; and what k machines would do, computed from that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fedenergy.report import svg
from fedenergy.report.axes import TEXT
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations import pages

MACHINES = (4, 16)


def curves(rows: list[dict[str, Any]]) -> Figure:
    """rows: of the benchmark's census. Seconds of a new query and memory against homes; machines are computed, dashed."""
    shards = sorted((row for row in rows if row["nodes"] == "shards"), key=lambda row: row["homes"])
    single = sorted((row for row in rows if row["nodes"] == "homes"), key=lambda row: row["homes"])
    homes, seconds = [row["homes"] for row in shards], [row["seconds"]["median"] for row in shards]
    figure, (left, right) = pages.axes(3.0, columns=2)
    left.plot(homes, seconds, color=PALETTE[0], marker="o", markersize=4, label="measured, 2 cores (nodes: shards)")
    if single:
        left.plot([row["homes"] for row in single], [row["seconds"]["median"] for row in single], color=PALETTE[1],
                  marker="s", markersize=4, linestyle="none", label="measured, a message per home")
    for machines, dash in zip(MACHINES, ((0, (4, 2)), (0, (1, 1.5)))):
        left.plot(homes, computed(homes, seconds, machines), color=MUTED, linestyle=dash, linewidth=1.2,
                  label=f"computed, {machines} such machines")
    right.plot(homes, [row["memory_gb"] for row in shards], color=PALETTE[0], marker="o", markersize=4)
    for ax, name in ((left, "a new query of all homes, s"), (right, "memory, GB")):
        ax.set(xscale="log", xlabel="homes")
        ax.set_title(name, fontsize=TEXT, color=INK)
    left.set_yscale("log")
    right.set_ylim(bottom=0.0)
    for axis in (left.xaxis, right.xaxis, left.yaxis):
        axis.set_minor_formatter(NullFormatter())
    pages.plain_ticks(left.yaxis)
    for axis in (left.xaxis, right.xaxis):
        axis.set_major_formatter(lambda value, _: f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,.0f}")
    pages.legend(figure, left, 2)
    return figure


def computed(homes: list[int], seconds: list[float], machines: int) -> list[float]:
    """Seconds on k machines: the smallest population's time stays, what homes add is divided by k.

    >>> computed([1_000, 101_000], [1.0, 5.0], 4)
    [1.0, 2.0]
    """
    return [seconds[0] + (value - seconds[0]) / machines for value in seconds]


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    """The figure as path (.svg) and beside it as PNG."""
    figure = curves(rows)
    return svg.save(figure, svg.render(figure), path.with_suffix(""))[0]
