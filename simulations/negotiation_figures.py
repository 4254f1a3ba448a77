"""The figures of the negotiation study, for readers who know nothing of epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedenergy.report.svg import GRID, INK, MUTED, PALETTE

BLUE, ORANGE, GREEN, PINK = PALETTE[:4]
GROUP_COLOURS = {"careful": BLUE, "middle": MUTED, "relaxed": ORANGE}


def draw(tables: Mapping[str, pd.DataFrame], out: Path, homes: int, weeks: int) -> list[Path]:
    """Five figures as PNG; returns their paths."""
    made = {"year": _year(tables["year"], homes), "zone": _zone(tables["summary"]),
            "who_wins": _who(tables["groups"], weeks), "source_talk": _talk(tables["source_talk"]),
            "money_and_spread": _money(tables["lying"], tables["unequal"])}
    paths = []
    for name, figure in made.items():
        paths.append(out / f"{name}.png")
        FigureCanvasAgg(figure).print_png(str(paths[-1]), metadata={"Software": None})
    return paths


def _style(axis: Axes, **what: object) -> Axes:
    axis.set(**what)
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GRID)
    axis.tick_params(colors=INK, length=0, labelsize=9)
    axis.grid(color=GRID, linewidth=0.7)
    axis.set_axisbelow(True)
    axis.title.set(fontsize=10.5, fontweight="bold", color=INK)
    return axis


def _heading(figure: Figure, title: str, note: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    figure.supxlabel(note, x=0.01, ha="left", fontsize=9, color=MUTED)


def _year(year: pd.DataFrame, homes: int) -> Figure:
    """Homes that answer, counter and refuse, week by week, a panel per policy."""
    labels = list(dict.fromkeys(year["policy"]))
    columns = 4
    figure = Figure(figsize=(12, 2.0 * -(-len(labels) // columns) + 1), dpi=110, layout="constrained")
    axes = figure.subplots(-(-len(labels) // columns), columns, sharex=True, sharey=True, squeeze=False).flat
    for label, axis in zip(labels, axes):  # in this order: zip must not take a panel for which there is no label
        part = year[year["policy"] == label]
        shares = [part[name] / homes for name in ("answers", "counters", "refusals")]
        axis.stackplot(part["week"], *shares, colors=(GREEN, PALETTE[5], GRID), step="mid", linewidth=0)
        _style(axis, title=label, ylim=(0, 1), xlim=(1, part["week"].max()))
        axis.title.set_fontsize(9.5)
        axis.set_yticks([0, 0.5, 1], ["0", "half", "all"])
    for axis in list(axes):
        axis.set_axis_off()
    handles = [figure.axes[0].scatter([], [], marker="s", s=60, color=colour, label=word) for colour, word in (
        (GREEN, "answer"), (PALETTE[5], "propose another question"), (GRID, "refuse"))]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    _heading(figure, "Who still answers as the year goes on?",
             f"Share of {homes} homes, by week. A home that has spent the year's privacy budget refuses from then on.")
    return figure


def _zone(summary: pd.DataFrame) -> Figure:
    """Mean expected cosine over the year for one noise and for local noise."""
    table = summary.sort_values("utility_one_noise")
    figure = Figure(figsize=(10, 0.42 * len(table) + 1.9), dpi=110, layout="constrained")
    axis = _style(figure.subplots(), xlim=(0, 1), xlabel="how well the zone's answer points to the truth (1 is exact; "
                  "mean over the year, weeks without an answer count 0)")
    at = np.arange(len(table))
    axis.hlines(at, table["utility_local_noise"], table["utility_one_noise"], color=GRID, linewidth=3, zorder=1)
    axis.scatter(table["utility_local_noise"], at, s=70, color=ORANGE, marker="s", zorder=2,
                 label="every home adds its own noise")
    axis.scatter(table["utility_one_noise"], at, s=70, color=BLUE, zorder=3,
                 label="one noise for the zone (secure sum)")
    for place, (_, row) in zip(at, table.iterrows()):
        words = f"{row['epsilon_mean']:.1f}" + (f", paid {row['paid']:.0f}" if row["paid"] else "")
        axis.annotate(words, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9, color=INK,
                      annotation_clip=False)
    axis.annotate("privacy spent\nper home", (1.01, len(table) - 0.3), xycoords=("axes fraction", "data"), fontsize=8.5,
                  color=MUTED, annotation_clip=False, va="bottom")
    axis.set_yticks(at, table["policy"])
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    figure.suptitle("What does the zone still learn?", x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    return figure


def _who(groups: pd.DataFrame, weeks: int) -> Figure:
    """What each third of the homes gives, and what it gains."""
    labels = list(dict.fromkeys(groups["policy"]))[::-1]
    figure = Figure(figsize=(12, 0.5 * len(labels) + 2.1), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    at = np.arange(len(labels))
    start = np.zeros(len(labels))
    for offset, group in zip((0.25, 0.0, -0.25), GROUP_COLOURS):
        part = groups[groups["group"] == group].set_index("policy").loc[labels]
        share = part["given_share"].fillna(0).to_numpy()
        left.barh(at, share, 0.62, left=start, color=GROUP_COLOURS[group], label=f"{group} third")
        start = start + share
        right.barh(at + offset, part["gain"] / weeks, 0.23, color=GROUP_COLOURS[group])
    for place in (1 / 3, 2 / 3):
        left.axvline(place, color="white", linewidth=1.2, linestyle=(0, (3, 2)))
    _style(left, title="Share of all the privacy that was given", xlim=(0, 1))
    left.set_xticks([0, 1 / 3, 2 / 3, 1], ["0", "a third", "two thirds", "all"])
    left.set_yticks(at, labels)
    _style(right, title="What a home gains per week")
    right.axvline(0, color=INK, linewidth=1)
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    _heading(figure, "Who gives, and who gains?",
             "Thirds of the homes by how much their privacy is worth to them. A gain is the zone answer's worth (1 if "
             "exact, the same for all)\nminus the home's own price of what it gave, plus what it was paid. A group "
             "that gives little and gains as much as the others rides free.")
    return figure


def _talk(talk: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(8, 4.4), dpi=110, layout="constrained")
    axis = _style(figure.subplots(), xlabel="round of the negotiation", ylabel="offered by each home (epsilon)",
                  xticks=talk["turn"], ylim=(0, 7.6))
    axis.plot(talk["turn"], talk["epsilon"], color=BLUE, marker="o", linewidth=2)
    other = axis.twinx()
    other.plot(talk["turn"], talk["utility"], color=ORANGE, marker="s", linewidth=2)
    other.set(ylim=(0, 1.086), ylabel="expected utility of the zone's answer")
    other.spines[["top", "left"]].set_visible(False)
    other.tick_params(length=0, labelsize=9)
    other.yaxis.label.set_color(ORANGE)
    axis.yaxis.label.set_color(BLUE)
    for at, place in ((0, (18, -3)), (len(talk) - 1, (0, -18))):
        turn, epsilon = talk["turn"].iloc[at], talk["epsilon"].iloc[at]
        axis.annotate(f"{epsilon:.2f}", (turn, epsilon), xytext=place, textcoords="offset points", ha="center",
                      fontsize=10, color=BLUE, fontweight="bold")
    _heading(figure, "The source's negotiation, from .16 to 6.73",
             "50 homes, local noise. The operator says \"still short\"; each home halves the way to its upper end.\n"
             "The source gives the two ends; the path between them is our rule.")
    return figure


def _money(lying: pd.DataFrame, unequal: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(12, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots(1, 3)
    titles = {"fixed": "Auction, fixed epsilon", "ghosh_roth": "Auction, Ghosh-Roth"}
    for axis, (rule, title) in zip(axes, titles.items()):
        for (which, part), colour, marker in zip(lying[lying["rule"] == rule].groupby("home", sort=False),
                                                 (ORANGE, GREEN, BLUE), "osD"):
            axis.plot(part["claims"], part["profit"], color=colour, marker=marker, linewidth=1.8, markersize=4.5,
                      label=f"{which} home (true price {part['cost'].iloc[0]:.2f})")
        axis.axvline(1, color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
        axis.set_xscale("log")
        _style(axis, title=f"Does lying pay? {title}", xlabel="price that the home claims / its true price",
               ylabel="what it earns after its own cost")
        axis.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 8], ["0.1", "¼", "½", "1", "2", "4", "8"])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=8)
    means = unequal.groupby("spread")[["utility_local", "utility_one"]].mean()
    lines = (("utility_one", BLUE, "one noise (secure sum)"), ("utility_local", ORANGE, "every home its own noise"))
    for column, colour, words in lines:
        axes[2].plot(means.index, means[column], color=colour, marker="o", linewidth=2, label=words)
    _style(axes[2], title="The same total, shared unevenly", ylim=(0, 1),
           ylabel="expected utility of the zone's answer", xlabel="spread of the homes' budgets (sd of the log)")
    axes[2].legend(frameon=False, fontsize=8.5)
    truth = lying[lying["claims"] == 1].set_index(["home", "rule"])["profit"]
    gains = sum(row.profit > truth[row.home, row.rule] + 1e-9 for row in lying.itertuples())
    _heading(figure, "Money and uneven budgets",
             "Left, middle: everyone else claims the truth; at 1 the home does too. "
             f"{gains or 'No'} point{'s lie' if gains > 1 else ' lies'} above that of the truth. "
             "Right: the homes together spend the same epsilon everywhere.")
    return figure
