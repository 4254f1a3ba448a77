"""Axes and legends with the report's look, for its own figures and those of studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedenergy.report.svg import GRID, INK, MUTED

TEXT = 9.5
LEGEND_LINE = 0.2       # inches of height


def axes(height: float, rows: int = 1, columns: int = 1, *, width: float, ticks: float = TEXT - 1,
         **kind: Any) -> tuple[Figure, list[Axes]]:
    """A figure of that size (inches) and its axes, row by row; ticks: size of their text; kind: of Figure.subplots."""
    figure = Figure(figsize=(width, height), layout="constrained")
    found = figure.subplots(rows, columns, squeeze=False, **kind).ravel().tolist()
    for ax in found:
        ax.set_facecolor("none")
        ax.grid(True, color=GRID, linewidth=0.7)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(MUTED)
        ax.tick_params(colors=MUTED, labelcolor=INK, labelsize=ticks, length=3)
        ax.title.set(color=INK, fontsize=TEXT)
        for axis in (ax.xaxis, ax.yaxis):
            axis.label.set(color=INK, fontsize=TEXT)
    return figure, found


def legend(figure: Figure, handles: Sequence[Any], columns: int, *, text: float = TEXT - 1, **kind: Any) -> None:
    """A legend below the axes, on height of its own, so that many lines do not squeeze the axes."""
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + LEGEND_LINE * -(-len(handles) // columns))
    figure.legend(handles=list(handles), loc="outside lower left", ncols=columns, fontsize=text, frameon=False,
                  labelcolor=INK, **kind)
