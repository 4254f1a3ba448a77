"""Figures of artificial load profiles beside the real ones: pure functions from a judgement's curves to Figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedenergy.report import axes as look
from fedenergy.report.axes import TEXT
from fedenergy.report.svg import INK, MUTED, PALETTE

WIDTH = 4.6
SMALLEST = 1e-3     # kWh: what smaller readings are drawn as on a logarithmic axis
REAL, FAKE, AWAY = PALETTE[0], PALETTE[1], PALETTE[2]
KINDS = (("real", "real", REAL, "-"), ("fake", "artificial", FAKE, (0, (4, 1.5))))
Curves = Mapping[str, np.ndarray]


def axes(height: float = 3.0, columns: int = 1) -> tuple[Figure, list[Axes]]:
    return look.axes(height, columns=columns, width=WIDTH)


def legend(figure: Figure, ax: Axes, columns: int = 3) -> None:
    look.legend(figure, ax.get_legend_handles_labels()[0], columns, handlelength=1.9)


def _pair(ax: Axes, x: np.ndarray, curves: Curves, name: str) -> None:
    for kind, label, colour, style in KINDS:
        ax.plot(x, curves[f"{name}_{kind}"], color=colour, linestyle=style, linewidth=1.6, label=label)


def by_hour(curves: Curves, names: Sequence[tuple[str, str]], label: str) -> Figure:
    """Curves over the hours of a day or of a week; names: (curve, title of its panel)."""
    figure, found = axes(columns=len(names))
    for ax, (name, title) in zip(found, names):
        length = curves[f"{name}_real"].size
        whole = 168 if name == "weekly" else 24
        _pair(ax, (np.arange(length) + 0.5) * whole / length, curves, name)
        ax.set_xticks(range(0, whole + 1, 24 if whole > 24 else 12 if len(names) > 1 else 6))
        ax.set_xlabel("hour of the week, from Monday" if whole > 24 else "hour of the day")
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        ax.set_title(title, fontsize=TEXT, color=INK)
    found[0].set_ylabel(label)
    legend(figure, found[0])
    return figure


def correlation(curves: Curves, step_minutes: int) -> Figure:
    """Autocorrelation, mean over homes, by lag in hours."""
    figure, (ax,) = axes()
    _pair(ax, np.arange(curves["acf_real"].size) * step_minutes / 60, curves, "acf")
    ax.axhline(0, color=MUTED, linewidth=0.8)
    most = (curves["acf_real"].size - 1) * step_minutes / 60
    ax.set_xticks(np.arange(0, most + 1, 24))
    ax.set(xlabel="lag (hours)", ylabel="autocorrelation")
    legend(figure, ax)
    return figure


CRITERIA = (("inertia", "inertia (elbow)"), ("silhouette", "silhouette"), ("calinski_harabasz", "Calinski-Harabasz"))


def criteria(scores: Mapping[int, Mapping[str, float]], chosen: int) -> Figure:
    """The three criteria by number of clusters K; the K that was taken is marked."""
    figure, found = axes(2.6, columns=3)
    for ax, (name, title) in zip(found, CRITERIA):
        k = sorted(count for count in scores if name in scores[count])
        ax.plot(k, [scores[count][name] for count in k], color=REAL, marker="o", markersize=3.5, linewidth=1.4)
        ax.axvline(chosen, color=FAKE, linestyle=(0, (4, 1.5)), linewidth=1.2, label=f"chosen: K = {chosen}")
        ax.set_title(title, fontsize=TEXT, color=INK)
        ax.set_xticks(range(2, max(k) + 1, 2))
        ax.set_xlabel("K")
        ax.tick_params(labelsize=TEXT - 2)
    legend(figure, found[0])
    return figure


def quantiles(curves: Curves) -> Figure:
    """Quantiles of all readings against each other."""
    figure, (ax,) = axes()
    real, fake = curves["quantiles_real"], curves["quantiles_fake"]
    signed = min(real[0], fake[0]) < 0
    if not signed:
        real, fake = np.maximum(real, SMALLEST), np.maximum(fake, SMALLEST)
    edge = [min(real[0], fake[0]), max(real[-1], fake[-1])]
    ax.plot(edge, edge, color=MUTED, linewidth=1, label="equal")
    ax.plot(real, fake, color=FAKE, marker=".", markersize=4, linestyle="none", label="400 quantiles")
    if not signed:
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlabel="real reading (kWh)", ylabel="artificial reading (kWh)")
    legend(figure, ax)
    return figure


def clouds(curves: Curves, unit: str) -> Figure:
    """PCA and t-SNE of real and artificial rows, drawn over one another."""
    figure, found = axes(2.6, columns=2)
    fake = curves[f"{unit}_fake"]
    for ax, name, title in zip(found, ("pca", "tsne"), ("PCA", "t-SNE")):
        points = curves[f"{unit}_{name}"]
        for which, label, colour, marker in ((~fake, "real", REAL, "o"), (fake, "artificial", FAKE, "x")):
            ax.plot(*points[which].T, color=colour, marker=marker, markersize=3.4, linestyle="none", alpha=0.6, label=label,
                    markerfacecolor="none", markeredgewidth=0.8)
        ax.set_title(title, fontsize=TEXT, color=INK)
        ax.set_xticks([])
        ax.set_yticks([])
    legend(figure, found[0])
    return figure


def per_home(curves: Curves) -> Figure:
    """Distribution functions over homes of the demand-response potential, up and down."""
    figure, found = axes(2.8, columns=2)
    for ax, name, title in zip(found, ("uDRP", "dDRP"), ("up", "down")):
        for kind, label, colour, style in KINDS:
            values = curves[f"{name}_home_{kind}"]
            ax.plot(values, (np.arange(values.size) + 1) / values.size, color=colour, linestyle=style, linewidth=1.6,
                    label=label)
        ax.set(xlabel="kWh a day", ylim=(0, 1.02))
        ax.set_xlim(left=0)
        ax.set_title(title, fontsize=TEXT, color=INK)
    found[0].set_ylabel("share of homes")
    legend(figure, found[0])
    return figure


def distances(curves: Curves, unit: str) -> Figure:
    """Distribution functions of the distances to the closest of the real homes, and of the holdout."""
    figure, (ax,) = axes()
    for pool, label, colour, style in (("real", "to the homes behind them", FAKE, "-"),
                                       ("holdout", "to strangers", AWAY, (0, (4, 1.5)))):
        if (values := curves.get(f"dcr_{unit}_{pool}")) is not None:
            ax.plot(values, (np.arange(values.size) + 1) / values.size, color=colour, linestyle=style, linewidth=1.6,
                    label=label)
    ax.set(xlabel="distance to the closest (kWh)", ylabel="share of artificial rows", ylim=(0, 1.02))
    ax.set_xlim(left=0)
    legend(figure, ax, 2)
    return figure
