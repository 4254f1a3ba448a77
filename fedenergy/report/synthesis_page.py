"""One self-contained HTML page from a judgement of artificial load profiles: what holds, what leaks, how it was measured."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

import fedenergy
from fedenergy.report import markup, svg
from fedenergy.report import synthesis_figures as figures
from fedenergy.report.gallery import Plate
from fedenergy.report.style import CSS, PAGE
from fedenergy.report.words import number

if TYPE_CHECKING:
    from fedenergy.synthesis.judging import Judgement

TITLES = ["score", "per", "artificial", "yardstick", "yardstick is", "what it says"]
UTILITY, PRIVACY = ("levels", "time", "response", "use"), ("proxy", "attack", "self-test")
NOTES = (
    "Day: every daily profile is a row. Home: every whole record is one. Population: sums or means over all homes.",
    "DCR is the Euclidean distance of an artificial row to the closest real row; NNDR is that over the distance to the "
    "second "
    "closest. Both are proxies: records made of verbatim real days can have the best DCR per home (arXiv 2505.01524). "
    "The same distance to a holdout of strangers is the yardstick.",
    "Membership compares, for each real row, the nearest artificial row with the nearest row of strangers (a DOMIAS-style "
    "ratio). Intervals are 95 %, by bootstrap over homes.",
    "Demand response: a home's baseline is the median of its readings at that time on that type of day; uDRP is the load "
    "that "
    "could be added up to it, dDRP the load above it that could be shed.",
    "The discriminative score is the accuracy of boosted trees above one half, on homes that they were not trained on. A "
    "verbatim copy carries both labels and lowers it, so read it beside the exact copies.",
    "This page shows curves and distances of the real homes too: it is an inside view, for those who may see the records.",
)


def write(judged: Judgement, path: Path, title: str = "Artificial load profiles") -> Path:
    """Write the page whole or not at all; returns its path. The same judgement gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(page(judged, title), encoding="utf-8", newline="\n")
    os.replace(part, path)
    return path


def page(judged: Judgement, title: str = "Artificial load profiles") -> str:
    """The page as text."""
    scores, lines = judged.scores, judged.table()
    plates = gallery(judged)
    useful, private = lines[lines["part"].isin(UTILITY)], lines[lines["part"].isin(PRIVACY)]
    absent = "" if scores["holdout_homes"] or not len(private) else markup.paragraph(
        "No holdout was given: distances have no yardstick, and the membership test and the self-test were not run. Give "
        "homes "
        "that the generator did not see: judge(homes, fake, holdout).", "note")
    parts = [("utility", "Is it like the real thing?", plates, _table(useful, "Utility: artificial records beside real "
                                                                              "ones")),
             ("privacy", "What does it give away?", plates,
              absent + _table(private, "Privacy: distances, attacks, and whether the attacks can see")),
             ("made", "How it was made", plates, _made(scores)),
             ("method", "How to read this", (), markup.bullets(NOTES))]
    parts = [part for part in parts if part[0] not in ("utility", "privacy") or part[3] != ""]
    short = f'<section class="short" aria-labelledby="short"><h2 id="short">In short</h2>{markup.bullets(in_short(judged))}'
    body = short + "</section>" + "".join(
        f'\n<section aria-labelledby="{key}"><h2 id="{key}">{markup.escape(heading)}</h2>{html}'
        + _plates([plate for plate in chosen if plate.section == key]) + "</section>" for key, heading, chosen,
                                          html in parts)
    window = scores["window"]
    meta = (f"{scores['records']:,} artificial records from {scores['counts'].get('homes', 0):,} homes · "
            f"{window['days']} days "
            f"from {window['start']}, every {window['step_minutes']} minutes · {scores['variant'].replace('_', ' ')}")
    return string.Template(PAGE.replace("fedenergy report", "fedenergy synthesis")).substitute(
        title=markup.escape(title), css=CSS, meta=markup.escape(meta),
        stamp=f'<p class="stamp">Guarantee: {markup.escape(str(scores["guarantee"]))}</p>',
        contents="".join(f'<li><a href="#{key}">{markup.escape(heading)}</a></li>' for key, heading, _, _ in parts),
                                                                                               body=body,
        footer=f"Written by fedenergy {fedenergy.__version__}. Every number on this page was computed from these records.")


def in_short(judged: Judgement) -> list[str]:
    """What a reader must know first, each from the scores."""
    scores, said = judged.scores, []
    if "utility" in scores:
        found = scores["utility"]
        said.append(f"Readings drift by a PSI of {number(found['psi'])} ({found['psi_band']}); the mean day is off by "
                    f"{100 * found['daily_curve_error']:.1f} %, its peak by {number(found['shift_hours']['peak'])} h.")
        if "drp" in found:
            said.append(f"Demand-response potential by hour is off by {100 * found['drp']['uDRP_curve_error']:.0f} % "
                        "upwards "
                        f"and {100 * found['drp']['dDRP_curve_error']:.0f} % downwards.")
    if "forecast" in scores:
        said.append(f"A forecaster trained on these records errs {number(scores['forecast']['ratio'])} times as much on "
                    f"{scores['forecast']['tested_on']} as one trained on the real homes.")
    found = scores.get("privacy", {})
    if found:
        day = found["day"]
        copies = day["exact_copies"]
        text = "No day is a verbatim copy."
        if copies:
            text = f"{100 * copies:.1f} % of the artificial days are verbatim real days."
        if "membership" in day:
            attack, home = day["membership"], found["home"]["membership"]
            text += (f" Membership is guessed with an AUC of {attack['auc']:.2f} by day and {home['auc']:.2f} by home"
                     " (.5 is chance).")
        said.append(text)
        if "linkage" in found:
            said.append(f"A known real day leads to its home in {100 * found['linkage']['home']:.0f} % of the cases "
                        "(chance: "
                        f"{100 * found['linkage']['chance']:.1f} %).")
    if "canaries" in scores:
        seen = scores["canaries"]
        bound = "no bound above 0"
        if seen["epsilon_lower"]:
            bound = f"epsilon is at least {number(seen['epsilon_lower'])} (95 %)"
        said.append(f"Canaries: {bound}; claimed: {number(seen['epsilon_claimed'])}"
                    + ("; the claim is refuted." if seen["falsified"] else "."))
    return said


def gallery(judged: Judgement) -> list[Plate]:
    """Every figure that the curves allow."""
    curves, found = judged.curves, []
    if chosen := judged.scores.get("choice"):
        found.append(Plate("choice", "made", "How many clusters", "The elbow is the K whose inertia lies farthest below the "
                           "line from the first to the last; of the two others, larger is better.",
                           "Inertia, silhouette and Calinski-Harabasz by number of clusters.",
                           figures.criteria(chosen["scores"], chosen["clusters"])))
    step = judged.scores["window"]["step_minutes"]
    if "daily_real" in curves:
        found += [
            Plate("daily", "utility", "The mean day", "Mean over homes and days.", "Mean daily load, real and artificial.",
                  figures.by_hour(curves, [("daily", "")], "kWh per step")),
            Plate("weekly", "utility", "The mean week", "Mean over homes, by hour of the week.",
                  "Mean weekly load, real and artificial.", figures.by_hour(curves, [("weekly", "")], "kWh per step")),
            Plate("quantiles", "utility", "Distribution of readings", "On the line: equally distributed.",
                  "Quantiles of artificial readings against real ones.", figures.quantiles(curves)),
            Plate("acf", "utility", "Autocorrelation", "Mean over homes.", "Autocorrelation by lag, real and artificial.",
                  figures.correlation(curves, step))]
    if "uDRP_real" in curves:
        found.append(Plate("drp", "utility", "Demand-response potential", "Per home, mean over days; the source's figure "
                                                                          "11.",
                           "Demand-response potential by hour, up and down, real and artificial.",
                           figures.by_hour(curves, [("uDRP", "up"), ("dDRP", "down")], "kWh per step")))
    if "uDRP_home_real" in curves:
        found.append(Plate("drp_home", "utility", "Demand-response potential of homes", "Distributions are compared: "
                                                                                        "which home is "
                           "which means nothing after days were exchanged, and is a leak before.",
                           "Distribution of demand-response potential over homes.", figures.per_home(curves)))
    for unit in ("home", "day"):
        if f"{unit}_pca" in curves:
            share = judged.scores["embedding"][unit]
            found.append(Plate(f"cloud_{unit}", "utility", f"Two dimensions, per {unit}",
                               f"{share['rows'] // 2} rows of each kind. PCA's axes hold "
                               f"{100 * sum(share['pca_explained']):.0f} % of the variance; t-SNE's have no meaning.",
                               f"PCA and t-SNE of real and artificial rows per {unit}.", figures.clouds(curves, unit)))
    for unit in ("day", "home"):
        if f"dcr_{unit}_real" in curves:
            found.append(Plate(f"dcr_{unit}", "privacy", f"Distance to the closest record, per {unit}",
                               "Left of the dashed curve: closer to the homes behind them than to strangers."
                               if f"dcr_{unit}_holdout" in curves else "Without a holdout there is no yardstick.",
                               f"Distribution of distances to the closest real {unit}.",
                               figures.distances(curves, unit)))
    return found


def _table(lines: pd.DataFrame, caption: str) -> str:
    if not len(lines):
        return ""
    rows = [[line.score, line.per, number(line.artificial), number(line.yardstick), line.yardstick_is, line.reading]
            for line in lines.itertuples()]
    groups = [str(part) for part in lines["part"]]
    return markup.table(["part", *TITLES], [[group, *row] for group, row in zip(groups, rows)], caption,
                        ["part", "score", "per", "yardstick is", "what it says"], group=0, tall=False)


def _plates(plates: list[Plate]) -> str:
    own = "".join(markup.figure(p.title, svg.inline(p.svg, p.name, p.alt), p.caption) for p in plates)
    return f'<div class="plates">{own}</div>' if own else ""


def _made(scores: Any) -> str:
    counts = scores["counts"]
    words = {"homes": "homes behind the records", "cells": "cells (cluster × size)", "merged_cells": "cells merged as "
                                                                                                     "too small",
             "smallest_cell": "homes in the smallest cell", "clipped_steps": "negative steps set to 0",
             "capped_steps": "steps cut to the public cap"}
    items = [("mode", scores["mode"]), ("variant", scores["variant"].replace("_", " "))]
    if "shuffle" in scores:
        made = scores["shuffle"]
        mine, real = 100 * made["violations"], 100 * made["real_violations"]
        items += [("exchange of days", made["method"].replace("_", " ") or "none"),
                  ("day-to-day steps above sigma", f"{mine:.1f} % ({real:.1f} % of the real ones)"),
                  ("cells in which a free exchange without any exists",
                   f"{made['cells_free_of_violations_possible']} of {counts.get('cells', 0)}")]
    items += [(words.get(name, name.replace("_", " ")), number(value)) for name, value in counts.items()]
    items.append(("homes held out", number(scores["holdout_homes"])))
    return markup.pairs(items)
