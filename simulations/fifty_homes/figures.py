"""Figures 6 to 12 of the source's section VI, from our own run. Pure: tables in, matplotlib figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from fedenergy.report.axes import TEXT
from fedenergy.report.svg import INK, MUTED, PALETTE
from fedenergy.report.words import epsilon_text
from simulations.fifty_homes.incentive import Incentive
from simulations.pages import axes, legend, plain_ticks

LOCAL, ONE = "ZonalSum", "SecureSum"
WORDS = {LOCAL: "noise in every home (the source)", ONE: "one noise for the zone"}
COLOUR = {LOCAL: PALETTE[1], ONE: PALETTE[0]}
DASH = (0, (4, 2))


def shap_boxes(phi: np.ndarray, channels: Sequence[str], owned: np.ndarray) -> Figure:
    """Figure 6: distributions of phi (homes, rows, d) over the homes that have the appliance, owned (homes, d) bool."""
    figure, (ax,) = axes(height=3.4)
    order = np.argsort([phi[owned[:, k], :, k].std() if owned[:, k].any() else 0.0 for k in range(len(channels))])
    for place, k in enumerate(order):
        values = phi[owned[:, k], :, k].ravel()
        if not values.size:
            continue
        low, first, middle, third, high = np.percentile(values, [5, 25, 50, 75, 95])
        colour = PALETTE[k % len(PALETTE)]
        far = np.unique(np.round(values[(values < low) | (values > high)], 2))
        ax.plot(far, np.full(far.size, place), ".", color=colour, markersize=2.5, alpha=0.5)
        ax.plot([low, high], [place, place], color=colour, linewidth=1.6)
        ax.barh(place, third - first, left=first, height=0.5, color=colour, alpha=0.85)
        ax.plot([middle, middle], [place - 0.25, place + 0.25], color=INK, linewidth=1.6)
    ax.set_xscale("symlog", linthresh=0.05)
    ax.xaxis.set_major_locator(FixedLocator([-2, -0.5, -0.1, 0, 0.1, 0.5, 2]))
    ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax.xaxis)
    ax.set_yticks(range(len(channels)), [channels[k] for k in order])
    ax.set_xlabel("SHAP value of one hour in one home (kWh)")
    return figure


def shape_lines(zones: Sequence[Mapping], epsilons: Sequence[float]) -> Figure:
    """Figure 8: the zone's mean day, true and released (first seed), a panel per epsilon."""
    figure, panels = axes(height=4.6, rows=len(epsilons), sharex=True)
    hours = np.arange(24)
    for ax, epsilon in zip(panels, epsilons, strict=True):
        chosen = [zone for zone in zones if zone["epsilon"] == epsilon]
        seed = min(zone["seed"] for zone in chosen)
        ax.plot(hours, chosen[0]["true_clipped"], color=INK, linewidth=2, label="true")
        for zone in chosen:
            if zone["seed"] == seed:
                ax.plot(hours, zone["released"], color=COLOUR[zone["strategy"]], marker="." if zone["trust"] == "sum"
                        else "x", markersize=4, linewidth=1.2, label=WORDS[zone["strategy"]])
        ax.set_title(f"ε = {epsilon_text(epsilon)}", loc="left", fontsize=TEXT, color=INK)
        ax.set_ylabel("kWh per hour")
        ax.set_xticks(range(0, 24, 4), [f"{hour:02d}:00" for hour in range(0, 24, 4)])
        plain_ticks(ax.yaxis)
    panels[-1].set_xlabel("hour of the mean day")
    legend(figure, panels[0], 2)
    return figure


def rounds(table: pd.DataFrame, start: float, goal: float) -> Figure:
    """Figure 9, the negotiation: offers by round, and what the operator says is lacking."""
    figure, (ax, below) = axes(height=3.9, rows=2, sharex=True, height_ratios=(3, 2))
    ax.fill_between(table["round"], table["least ε"], table["most ε"], color=PALETTE[0], alpha=0.2, linewidth=0)
    ax.plot(table["round"], table["median ε"], color=PALETTE[0], marker="o", markersize=5)
    for value, words in ((start, f"{start:g}: no deal"), (goal, f"{goal:g}: the source's agreement, and its cap")):
        ax.axhline(value, color=MUTED, linestyle=DASH, linewidth=1)
        ax.annotate(words, (1, value), xycoords=("axes fraction", "data"), xytext=(-2, 4), ha="right",
                    textcoords="offset points", fontsize=TEXT - 1.5, color=INK)
    ax.set_ylim(0, goal * 1.2)
    ax.set_ylabel("ε offered")
    lack = table["lacking utility"].fillna(0)
    below.bar(table["round"], lack, color=PALETTE[1], width=0.6)
    for number, value in zip(table["round"], lack, strict=True):
        below.annotate(f"{value:.3f}", (number, value), xytext=(0, 2), textcoords="offset points", ha="center",
                       fontsize=TEXT - 2.5, color=INK)
    below.set_ylim(0, max(lack.max() * 1.2, 0.1))
    below.set_ylabel("utility\nlacking")
    below.set_xlabel("round")
    below.set_xticks(table["round"])
    return figure


def utility_curves(values: pd.DataFrame, closed: Mapping[str, float],
                   marks: Mapping[str, tuple[float, float]]) -> Figure:
    """Figures 9 and 11: measured cosine against epsilon (mean, lowest to highest seed) with the closed form.

    values  rows strategy, epsilon, value (one per seed); closed: strategy -> eps0; marks: the source's points by name
    """
    figure, (ax,) = axes(height=3.2)
    grid = np.geomspace(0.1, 20, 200)
    handles = []
    for strategy, eps0 in closed.items():
        colour = COLOUR[strategy]
        ax.plot(grid, grid / np.hypot(grid, eps0), color=colour, linestyle=DASH, linewidth=1.2)
        line = values[values["strategy"] == strategy].groupby("epsilon")["value"].agg(["mean", "min", "max"])
        ax.errorbar(line.index, line["mean"], yerr=[line["mean"] - line["min"], line["max"] - line["mean"]], fmt="o",
                    color=colour, markersize=5, elinewidth=1.2, capsize=2)
        handles.append(Line2D([], [], color=colour, marker="o", markersize=5, linestyle="", label=WORDS[strategy]))
    handles.append(Line2D([], [], color=MUTED, linestyle=DASH, label="closed form"))
    for words, (epsilon, utility) in marks.items():
        ax.plot(epsilon, utility, marker="*", markersize=11, color=INK, linestyle="")
        ax.annotate(words, (epsilon, utility), xytext=(7, -9), textcoords="offset points", fontsize=TEXT - 1,
                    color=INK)
    if marks:
        handles.append(Line2D([], [], color=INK, marker="*", markersize=9, linestyle="", label="the source's utility"))
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator([0.1, 0.5, 1, 2, 5, 10, 20]))
    ax.xaxis.set_minor_locator(NullLocator())
    plain_ticks(ax.xaxis, ax.yaxis)
    ax.set_ylim(min(0.0, values["value"].min()) - 0.05, 1.05)
    ax.set_xlabel("ε of one query")
    ax.set_ylabel("cosine with the true zone sum")
    legend(figure, ax, 2, handles)
    return figure


def class_bars(rows: pd.DataFrame) -> Figure:
    """Figure 11: utility of the general and the specific query; the source's as lines.

    rows  query, strategy, mean, low, high, source
    """
    figure, (ax,) = axes(height=3.0)
    queries = list(dict.fromkeys(rows["query"]))
    for place, strategy in enumerate((LOCAL, ONE)):
        part = rows[rows["strategy"] == strategy].set_index("query").loc[queries]
        x = np.arange(len(queries)) + (place - 0.5) * 0.36
        ax.bar(x, part["mean"], width=0.33, color=COLOUR[strategy], label=WORDS[strategy],
               yerr=[part["mean"] - part["low"], part["high"] - part["mean"]],
               error_kw={"ecolor": MUTED, "elinewidth": 1, "capsize": 2})
    for i, query in enumerate(queries):
        value = rows.loc[rows["query"] == query, "source"].iloc[0]
        ax.plot([i - 0.42, i + 0.42], [value, value], color=INK, linewidth=2, label="the source" if i == 0 else None)
    ax.axhline(0, color=MUTED, linewidth=0.8)
    ax.set_xticks(range(len(queries)), queries)
    ax.set_ylim(min(0.0, rows["low"].min()) * 1.1, 1.08)
    ax.set_ylabel("cosine with the truth")
    legend(figure, ax, 2)
    return figure


def leakage(table: pd.DataFrame, cap: float) -> Figure:
    """Figure 12: what a home has spent after each query, from the ledger; refusals crossed."""
    figure, (ax,) = axes(height=3.2)
    general = table["kind"] == "peak_hour"
    ax.step(table["ask"], table["ε spent"], where="mid", color=MUTED, linewidth=1.2)
    answered = table["answers"] > 0
    for mask, words, marker, colour in ((answered & general, "general, answered", "o", PALETTE[2]),
                                        (answered & ~general, "specific, answered", "s", PALETTE[0]),
                                        (~answered, "refused by every home", "X", PALETTE[1])):
        ax.plot(table["ask"][mask], table["ε spent"][mask], marker, color=colour, markersize=8, label=words)
    ax.axhline(cap, color=INK, linestyle=DASH, linewidth=1.2)
    ax.annotate(f"L_max = {cap:g}", (0.01, cap), xycoords=("axes fraction", "data"), xytext=(0, 4),
                textcoords="offset points", fontsize=TEXT - 1, color=INK)
    last = table.iloc[-1]
    ax.annotate("asked before:\nstored, free", (last["ask"], last["ε spent"]), xytext=(-4, -34), ha="center",
                textcoords="offset points", fontsize=TEXT - 2, color=INK,
                arrowprops={"arrowstyle": "-", "color": MUTED})
    ax.set_ylim(0, cap * 1.15)
    ax.set_xticks(table["ask"])
    ax.set_xlabel("query, in order")
    ax.set_ylabel("ε spent by each home")
    legend(figure, ax, 2)
    return figure


def price_curves(found: Incentive, etas: Sequence[float], steps_per_day: int, days: slice = slice(None)) -> Figure:
    """Figure 10: the mean day of the price, before and after, a panel per eta; steps that are peak shaded."""
    figure, panels = axes(height=4.8, rows=len(etas), sharex=True)

    def mean_day(series: np.ndarray) -> np.ndarray:
        whole = series[:series.size // steps_per_day * steps_per_day].reshape(-1, steps_per_day)
        return whole[days].mean(axis=0)

    hours, shaded = np.arange(steps_per_day) * 24 / steps_per_day, mean_day(found.peak.astype(float)) > 0
    for ax, eta in zip(panels, etas, strict=True):
        outcomes = {sigma: outcome for (sigma, own), outcome in found.outcomes.items() if own == eta}
        some = next(iter(outcomes.values()))
        ax.plot(hours, mean_day(some.price_before), color=INK, linewidth=1.8, label="before")
        for place, (sigma, outcome) in enumerate(sorted(outcomes.items(), reverse=True)):
            words = f"σ = {sigma:g}" if sigma else "discount not tied to the peak"
            ax.plot(hours, mean_day(outcome.price_after), color=PALETTE[(0, 2, 1)[place]], linewidth=1.4, label=words,
                    linestyle="-" if sigma else DASH)
        ax.fill_between(hours, 0, 1, where=shaded, transform=ax.get_xaxis_transform(), color=MUTED, alpha=0.13,
                        step="mid", linewidth=0)
        ax.set_title(f"η = {eta:g}{' (supply is tight)' if eta > 3 else ''}", loc="left", fontsize=TEXT, color=INK)
        ax.set_ylabel("p/kWh")
        ax.set_ylim(0, None)
        ax.set_xticks(range(0, 25, 4))
        plain_ticks(ax.yaxis, ax.xaxis)
    panels[-1].set_xlabel("hour of the day")
    legend(figure, panels[0], 2)
    return figure
