"""The report's figures: pure functions from tables to matplotlib Figures, without pyplot and its global state.

Every figure is narrow enough to be read on a phone; several stand side by side on a wide page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedenergy.report import axes as look
from fedenergy.report.axes import TEXT
from fedenergy.report.svg import INK, MUTED, PALETTE
from fedenergy.report.words import heading, labels, minus, number, unit_text

WIDTH, HEIGHT = 4.6, 3.1
MARKERS = "osD^vPX*<>h"  # 11 markers and 7 hues: 77 pairs before one comes twice
MOST_BARS, MOST_BANDS, MOST_COORDINATES, MOST_CHANNELS = 6, 6, 12, 7


def styles(strategies: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker per strategy, the same in every figure of a run."""
    return {
        name: (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(sorted(set(strategies)))
    }


def utility(
    values: pd.DataFrame,
    metric: str,
    style: Mapping[str, tuple[str, str]],
    x: str = "epsilon",
    expected: Sequence[Mapping[str, Any]] = (),
    values_unit: str = "",
) -> Figure:
    """One metric against epsilon (or another numeric key x), a line per strategy.

    values    one value per strategy, x and seed (tables.per_seed, one setting); the band spans the seeds
    expected  rows {strategy, epsilon, <metric>}: closed forms, dashed
    """
    figure, ax = _figure()
    names, handles, dashed = labels(style), [], False
    for strategy, group in values.groupby("strategy"):
        colour, marker = style[strategy]
        line = group.groupby(x)["value"].agg(["mean", "min", "max"]).dropna()
        if line.empty:
            continue
        if banded(values):
            ax.fill_between(line.index, line["min"], line["max"], color=colour, alpha=0.2, linewidth=0)
        ax.plot(line.index, line["mean"], color=colour, marker=marker, markersize=5, linewidth=1.6)
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=5, label=_plain(names[strategy])))
        points = sorted(
            (row[x], row[metric])
            for row in expected
            if row.get("strategy") == strategy and _finite(row.get(x)) and _finite(row.get(metric))
        )
        if points:
            ax.plot(*zip(*points), color=colour, linestyle=(0, (4, 2)), linewidth=1.2)
            dashed = True
    if dashed:
        handles.append(Line2D([], [], color=MUTED, linestyle=(0, (4, 2)), linewidth=1.2, label="closed form"))
    _scale_x(ax, sorted(float(value) for value in values[x].unique()))
    shown = values["value"].dropna()
    if heading(metric, "x").endswith("(x)") and len(shown) and shown.min() > 0 and shown.max() > 3 * shown.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if shown.max() < 100 * shown.min() else (1,)))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(_tick))
    ax.set_xlabel("ε asked per round" if x == "epsilon" else _plain(x))
    ax.set_ylabel(heading(metric, values_unit))
    _legend(figure, handles)
    return figure


def banded(values: pd.DataFrame) -> bool:
    """Whether `utility` draws bands: those of many strategies would hide one another."""
    return values["strategy"].nunique() <= MOST_BANDS


def dots(values: pd.DataFrame, metric: str, style: Mapping[str, tuple[str, str]], values_unit: str = "") -> Figure:
    """One metric per strategy where nothing numeric varies: the seeds as dots, their mean as a bar."""
    strategies = [name for name in style if name in set(values["strategy"])]
    figure, ax = _figure(height=max(1.4, 0.34 * len(strategies) + 0.9))
    names = labels(style)
    for row, strategy in enumerate(reversed(strategies)):
        points, (colour, marker) = values.loc[values["strategy"] == strategy, "value"].dropna(), style[strategy]
        if len(points):
            ax.barh(row, points.mean(), color=colour, alpha=0.35, height=0.6)
            ax.plot(points, [row] * len(points), color=colour, marker=marker, linestyle="", markersize=5)
    ax.set_yticks(range(len(strategies)), [_plain(names[name]) for name in reversed(strategies)])
    ax.set_xlabel(heading(metric, values_unit))
    return figure


def true_and_released(
    zones: Sequence[Mapping[str, Any]],
    coordinates: Sequence[str],
    style: Mapping[str, tuple[str, str]],
    values_unit: str = "",
) -> Figure:
    """The zone's true and released sum per appliance: bars are means over the entries (seeds), whiskers span them.

    zones  entries of one epsilon: {strategy, true_clipped (d,), true_total (d,), released (d,)}
    """
    truth = np.mean([entry["true_clipped"] for entry in zones], axis=0)  # (d,)
    total = (
        np.mean([entry["true_total"] for entry in zones], axis=0)
        if all(entry.get("true_total") for entry in zones)
        else None
    )
    shown = np.sort(np.argsort(-np.abs(truth), kind="stable")[:MOST_COORDINATES])
    strategies = [name for name in style if any(entry["strategy"] == name for entry in zones)][:MOST_BARS]
    height = 0.8 / max(1, len(strategies))
    figure, ax = _figure(height=max(2.2, len(shown) * (0.16 * len(strategies) + 0.14) + 1.1))
    names, handles = labels(style), []
    for place, strategy in enumerate(strategies):
        released = np.array([entry["released"] for entry in zones if entry["strategy"] == strategy], dtype=float)[
            :, shown
        ]
        mean, colour = released.mean(axis=0), style[strategy][0]
        y = np.arange(len(shown)) - 0.4 + (place + 0.5) * height
        ax.barh(
            y,
            mean,
            height=0.86 * height,
            color=colour,
            xerr=np.stack([mean - released.min(axis=0), released.max(axis=0) - mean]) if len(released) > 1 else None,
            error_kw={"ecolor": MUTED, "elinewidth": 1, "capsize": 2},
        )
        handles.append(Patch(color=colour, label=_plain(names[strategy])))
    for i, k in enumerate(shown):
        ax.plot([truth[k]] * 2, [i - 0.46, i + 0.46], color=INK, linewidth=2.2, solid_capstyle="butt")
        if total is not None and not np.isclose(total[k], truth[k], rtol=1e-3):
            ax.plot([total[k]] * 2, [i - 0.46, i + 0.46], color=INK, linewidth=1.2, linestyle=(0, (1, 1)))
    handles.append(Line2D([], [], color=INK, linewidth=2.2, label="true, clipped"))
    if total is not None:
        handles.append(Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (1, 1)), label="true, unclipped"))
    ax.axvline(0, color=MUTED, linewidth=0.8)
    ax.set_yticks(range(len(shown)), [_plain(str(coordinates[k]) if k < len(coordinates) else f"[{k}]") for k in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(FuncFormatter(_tick))
    ax.set_xlabel(f"zone sum{f' ({unit_text(values_unit)})' if values_unit else ''}")
    _legend(figure, handles)
    return figure


def spent(curves: Mapping[str, np.ndarray], caps: Sequence[float] = ()) -> Figure:
    """What each home has spent: homes sorted from the least to the most, one line per label, the cap dashed.

    curves  {label: (homes,) epsilon spent}; long ones are drawn by their percentiles
    """
    figure, ax = _figure()
    handles = []
    for place, (label, values) in enumerate(curves.items()):
        share = np.linspace(0, 100, min(201, max(2, len(values))))
        colour = PALETTE[place % len(PALETTE)]
        ax.plot(
            share,
            np.percentile(values, share),
            color=colour,
            linewidth=1.8,
            linestyle=("-", (0, (5, 1)), (0, (2, 1)))[place // 7 % 3],
        )
        handles.append(Line2D([], [], color=colour, linewidth=1.8, label=_plain(label)))
    for cap in caps:
        ax.axhline(cap, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        ax.annotate(
            f"cap {number(cap)}",
            (0.01, cap),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            color=INK,
            fontsize=TEXT - 1,
        )
    ax.set_ylim(0, max([*caps, *(float(np.max(values)) for values in curves.values()), 1e-9]) * 1.12)
    ax.set_xlabel("homes, sorted by what they spent (%)")
    ax.set_ylabel("ε spent")
    _legend(figure, handles)
    return figure


def refusals(counts: Mapping[str, int]) -> Figure:
    """How often each reason was given."""
    items = sorted(counts.items(), key=lambda item: item[1])[-MOST_COORDINATES:]
    figure, ax = _figure(height=max(1.3, 0.38 * len(items) + 0.8))
    bars = ax.barh(range(len(items)), [count for _, count in items], color=PALETTE[0], height=0.66)
    ax.bar_label(bars, labels=[number(count) for _, count in items], padding=3, color=INK, fontsize=TEXT - 1)
    ax.set_yticks(range(len(items)), ["\n".join(textwrap.wrap(_plain(reason, 56), 26)) or "-" for reason, _ in items])
    ax.margins(x=0.16)
    ax.set_xlabel("refusals")
    return figure


def day(hours: Sequence[object], channels: Mapping[str, Sequence[float]], label: str) -> Figure:
    """One home's day: stacked values per channel and hour; negative ones stack downwards.

    channels  {channel: (24,)}; the largest are drawn, the others as one; label: of the vertical axis, with its unit
    """
    values = {name: np.nan_to_num(np.asarray(row, dtype=float)) for name, row in channels.items()}
    order = sorted(values, key=lambda name: -np.abs(values[name]).sum())
    drawn = order if len(order) <= MOST_CHANNELS else order[: MOST_CHANNELS - 1]
    stack = {name: values[name] for name in values if name in drawn}
    if len(drawn) < len(order):
        stack[f"{len(order) - len(drawn)} others"] = np.sum(
            [values[name] for name in order if name not in drawn], axis=0
        )
    figure, ax = _figure()
    x, up, down = np.arange(len(hours)), np.zeros(len(hours)), np.zeros(len(hours))
    handles = []
    for place, (name, row) in enumerate(stack.items()):
        colour = PALETTE[sorted(values).index(name) % len(PALETTE)] if len(order) <= MOST_CHANNELS else PALETTE[place]
        for part, base in ((np.maximum(row, 0), up), (np.minimum(row, 0), down)):
            if part.any():
                ax.bar(x, part, bottom=base, width=0.9, color=colour)
                base += part
        handles.append(Patch(color=colour, label=_plain(name)))
    step = max(1, len(hours) // 8)
    ax.set_xticks(x[::step], [_plain(str(hour)) for hour in hours][::step])
    ax.axhline(0, color=MUTED, linewidth=0.8)
    ax.set_xlabel("hour of the day")
    ax.set_ylabel(label)
    ax.set_title("inside view: never leaves the box", loc="left", fontsize=TEXT - 0.5, color=MUTED, style="italic")
    _legend(figure, handles)
    return figure


def _figure(height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure, (ax,) = look.axes(height, width=WIDTH, ticks=TEXT - 0.5)
    return figure, ax


def _legend(figure: Figure, handles: list[Any]) -> None:
    if not handles:
        return
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(3, len(handles), 54 // (longest + 6)))
    look.legend(figure, handles, columns, text=TEXT - 0.5, handlelength=1.8, columnspacing=1.4)


def _scale_x(ax: Axes, values: list[float]) -> None:
    """Logarithmic where the values span more than a factor of 3; ticks at the values where they are few."""
    few = len(values) <= 6
    if values and values[0] > 0 and values[-1] > 3 * values[0]:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(FixedLocator(values) if few else LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_minor_locator(NullLocator())
    elif few:
        ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_major_formatter(FuncFormatter(_tick))


def _tick(value: float, _: object = None) -> str:
    return minus(f"{round(value, 12):,.6g}")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _plain(text: str, most: int = 34) -> str:
    """A name as a figure may show it: no mathematics between dollar signs, no leading underscore, not too long."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    text = text if len(text) <= most else text[: most - 1] + "…"
    return (" " + text if text.startswith("_") else text).replace("$", r"\$")
