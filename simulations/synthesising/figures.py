"""The study's plates: the DRP curves (the source's figure 11), their ranking, utility against privacy, the sweep, equal
epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedenergy.report.axes import TEXT
from fedenergy.report.gallery import Plate
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations import pages

MARKERS = "os^DvP"
SWEEP = (("tradeoff_use", "What K and the seasonal window do to use", (("psi", "PSI"), ("drp_error", "DRP error"))),
         ("tradeoff_distance", "What they do to distances", (("dcr_home_share", "DCR per home, of the holdout's"),
                                                             ("nndr_home", "NNDR per home"))),
         ("tradeoff_attack", "What they do to attacks", (("membership_home", "membership AUC per home"),
                                                         ("linkage_home", "known day finds its home"))))
VARIANTS = ("raw_shuffle", "components", "components_shuffle")


def plates(table: pd.DataFrame, drawn: Mapping[str, Any], real: Mapping[str, Sequence[float]]) -> list[Plate]:
    """Every plate that the table (mean over seeds) and the kept curves (method -> curves) allow."""
    found = []
    variants, sweep, equal = (table[table["study"] == name] for name in ("variants", "tradeoff", "equal_epsilon"))
    if len(variants) and "uDRP_real" in real:
        found += [_curves(variants, drawn, real), _ranking(variants)]
    if len(variants):
        found.append(_scatter(variants))
    found += list(_sweep(sweep)) if len(sweep) else []
    if len(equal):
        found.append(_equal(equal))
    return found


def _chosen(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(method, label) of one row per variant, as in figure 11."""
    from simulations.synthesising.claims import CASE, _first

    picked = [(variant, _first(rows, variant)) for variant in VARIANTS]
    return [(str(row["method"]), variant.replace("_", " ") + (f" ({CASE[variant]})" if "Case" in CASE[variant] else ""))
            for variant, row in picked if row is not None]


def _curves(rows: pd.DataFrame, drawn: Mapping[str, Any], real: Mapping[str, Sequence[float]]) -> Plate:
    figure, found = pages.axes(2.9, columns=2)
    hours = (np.arange(len(real["uDRP_real"])) + 0.5) * 24 / len(real["uDRP_real"])
    for ax, name, title in zip(found, ("uDRP", "dDRP"), ("up (uDRP)", "down (dDRP)")):
        ax.plot(hours, real[f"{name}_real"], color=INK, linewidth=2, label="real")
        for (method, label), colour, style in zip(_chosen(rows), PALETTE, ("-", (0, (4, 2)), (0, (1, 1.5)))):
            if f"{name}_fake" in drawn.get(method, {}):
                ax.plot(hours, drawn[method][f"{name}_fake"], color=colour, linewidth=1.5, linestyle=style, label=label)
        ax.set_title(title, fontsize=TEXT, color=INK)
        ax.set(xlabel="hour of the day", xticks=range(0, 25, 6))
        ax.set_ylim(bottom=0)
    found[0].set_ylabel("kWh per step and home")
    pages.legend(figure, found[0], 2)
    return Plate("drp_curves", "drp", "Demand-response potential by hour", "The source's figure 11: baseline is the "
                                                                           "median by "
                 "home, hour and type of day.", "Demand-response potential by hour, real and three variants.", figure)


def _ranking(rows: pd.DataFrame) -> Plate:
    rows = rows.dropna(subset=["drp_error"]).sort_values("drp_error", ascending=False)
    figure, (ax,) = pages.axes(0.9 + 0.3 * len(rows))
    colours = [PALETTE[VARIANTS.index(variant)] for variant in rows["variant"]]
    ax.barh(range(len(rows)), rows["drp_error"], color=colours, height=0.65)
    labels = [method.replace(" / ", "\n", 1) for method in rows["method"]]
    ax.set_yticks(range(len(rows)), labels, fontsize=TEXT - 3)
    ax.set_xlabel("mean relative error of the uDRP and dDRP curves")
    ax.grid(False, axis="y")
    return Plate("drp_ranking", "drp", "Ranking by demand-response error", "Shorter is better.",
                 "Bars of demand-response error per method.", figure)


def _scatter(rows: pd.DataFrame) -> Plate:
    figure, (ax,) = pages.axes(3.2)
    for k, variant in enumerate(VARIANTS):
        mine = rows[rows["variant"] == variant]
        ax.plot(mine["psi"], mine["membership_day"], marker=MARKERS[k], color=PALETTE[k], linestyle="none", markersize=6,
                label=variant.replace("_", " "))
    ax.axhline(0.5, color=MUTED, linewidth=1, label="chance")
    ax.set(xlabel="PSI (0: no drift)", ylabel="membership AUC, per day")
    pages.legend(figure, ax, 2)
    return Plate("utility_privacy", "drp", "Useful and private", "Down and left is better.",
                 "Membership AUC against PSI per method.", figure)


def _sweep(rows: pd.DataFrame) -> Iterator[Plate]:
    rows = rows.assign(k=rows["clusters"].astype(int))
    for name, title, pair in SWEEP:
        figure, found = pages.axes(2.9, columns=2)
        for ax, (metric, label) in zip(found, pair):
            for k, (window, part) in enumerate(rows.groupby("seasonal")):
                line = part.sort_values("k")
                ax.plot(line["k"], line[metric], color=PALETTE[k % 7], marker=MARKERS[k % 6], markersize=5, linewidth=1.5,
                        label=f"seasonal {window}")
            ax.set_title(label, fontsize=TEXT, color=INK)
            ax.set(xlabel="clusters K", xticks=sorted(set(rows["k"])))
        pages.legend(figure, found[0], 3)
        yield Plate(name, "tradeoff", title, "components shuffle; mean over seeds.",
                    f"{pair[0][1]} and {pair[1][1]} against K, by seasonal window.", figure)


def _equal(rows: pd.DataFrame) -> Plate:
    figure, found = pages.axes(2.9, columns=2)
    finite = rows[np.isfinite(rows["epsilon"].astype(float))]
    plain = rows[~np.isfinite(rows["epsilon"].astype(float))]
    for ax, metric, label in zip(found, ("psi", "daily_curve_error"), ("PSI", "error of the mean day")):
        for k, (method, part) in enumerate(finite.groupby("method")):
            line = part.sort_values("epsilon")
            ax.plot(line["epsilon"], line[metric], color=PALETTE[k], marker=MARKERS[k], markersize=5, linewidth=1.5,
                    label=str(method).replace("_", " "))
        for method, part in plain.groupby("method"):
            ax.axhline(part[metric].iloc[0], color=MUTED, linestyle=(0, (4, 2)), linewidth=1.2,
                       label=f"{str(method).replace('_', ' ')}, no guarantee")
        ax.set_title(label, fontsize=TEXT, color=INK)
        epsilons = sorted(set(finite["epsilon"].astype(float)))
        ax.set(xscale="log", yscale="log", xlabel="ε per household")
        ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
        ax.set_xticks([], minor=True)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(lambda value, _: "")
    pages.legend(figure, found[0], 2)
    return Plate("equal_epsilon", "equal", "At equal epsilon", "Household, replace-one, the same delta; seeded noise.",
                 "PSI and error of the mean day against epsilon per synthesiser.", figure)
