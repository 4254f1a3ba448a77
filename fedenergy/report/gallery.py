"""Which figures a run gets: chosen from what varied and from what the summary holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedenergy.report import figures
from fedenergy.report.load import RunData
from fedenergy.report.svg import render
from fedenergy.report.tables import per_seed
from fedenergy.report.tiers import ZONE, by_number, zone_of, zones_only
from fedenergy.report.words import epsilon_text, heading, labels, listing, number

MOST_PANELS, MOST_EPSILONS, MOST_CURVES = 4, 3, 8


@dataclass(frozen=True)
class Plate:
    """A figure with its words. section: results | truth | spent | refusals | inside."""

    name: str
    section: str
    title: str
    caption: str
    alt: str
    figure: Figure

    @cached_property
    def svg(self) -> str:
        return render(self.figure)


def gallery(data: RunData) -> list[Plate]:
    """Every figure that the run's data allow, in the order of the page."""
    data = zones_only(data)
    return [plate for part in (_training, _utility, _truth, _spent, _refusals, _inside) for plate in part(data)]


def _training(data: RunData) -> Iterator[Plate]:
    """Errors round by round, of a run that trains a model; the first setting where several vary."""
    if not data.summary.get("training"):
        return
    rows = data.metrics[(data.metrics["metric"] == "rmse") & data.metrics["value"].notna()]
    cells = data.cells.drop(columns=["cell", "seed"]).astype(str).agg(" ".join, axis=1)
    first = set(data.cells.loc[cells == cells.iloc[0], "cell"]) if len(cells) else set()
    rows = rows[rows["cell"].isin(first)]
    if rows["round"].nunique() < 2:
        return
    figure = figures.utility(rows, "rmse", figures.styles(data.metrics["strategy"]), "round", (),
                             str(data.summary.get("unit_of_values") or ""))
    yield Plate(
        "training",
        "results",
        "Error of the shared model, round by round",
        "RMSE on the homes' last days, which are never trained on. Line: mean over seeds.",
        "Root mean squared error against the round, a line per strategy. The last round is in the results table.",
        figure,
    )


def _utility(data: RunData) -> Iterator[Plate]:
    values, keys = per_seed(data.metrics, data.cells)
    if (values["trust"] != "open").any():
        values = values[values["trust"] != "open"]
    style = figures.styles(data.metrics["strategy"])
    varied = keys[keys.index("delta") + 1 :]
    numeric = [
        key
        for key in ("epsilon", *varied)
        if pd.api.types.is_numeric_dtype(values[key]) and values[key].replace(np.inf, np.nan).nunique() > 1
    ]
    x = numeric[0] if numeric else ""
    others = [key for key in ("population", "policy", "epsilon", *varied) if key != x and values[key].nunique() > 1]
    panels = list(values[others].drop_duplicates().itertuples(index=False, name=None)) if others else [()]
    unit, zoned = str(data.summary.get("unit_of_values") or ""), bool(zone_of(data))
    for metric in ("cosine", "mae"):
        for place, setting_values in enumerate(panels[:MOST_PANELS]):
            where = dict(zip(others, setting_values))
            panel = values[
                np.logical_and.reduce(
                    [values[key] == value for key, value in where.items()] or [np.ones(len(values), bool)]
                )
            ]
            chosen = panel[panel["metric"] == metric]
            chosen = chosen[np.isfinite(chosen[x])] if x else chosen
            if chosen["value"].notna().sum() == 0:
                continue
            answers = set(panel.loc[panel["metric"] == "answers", "value"]) if zoned else None
            known = [] if zoned and metric == "cosine" else data.rows("expected")  # a cosine's is of one zone's truth
            expected = _expected(known, where, x, chosen, answers)
            if x:
                figure = figures.utility(chosen, metric, style, x, expected, unit)
            else:
                figure = figures.dots(chosen, metric, style, unit)
            against = "ε" if x == "epsilon" else x
            setting = listing(f"{key} = {_short(value)}" for key, value in where.items())
            seeds, names = chosen["seed"].nunique(), labels(style)
            title = (
                heading(metric)[:1].upper() + heading(metric)[1:] + (f" against {against}" if x else " per strategy")
            )
            spread = "Line: mean over seeds" + ("; band: lowest to highest seed." if figures.banded(chosen) else ".")
            caption = "One seed." if seeds < 2 else spread if x else "Bar: mean over seeds; dots: the seeds."
            caption += " Dashed: what the closed form expects." if expected else ""
            caption += (
                f" {len(panels) - MOST_PANELS} more settings are in metrics.csv."
                if len(panels) > MOST_PANELS and place == MOST_PANELS - 1
                else ""
            )
            drawn = listing(names[name] for name in sorted(set(chosen["strategy"])))
            alt = f"{title}: {drawn}. The numbers are in the results table."
            yield Plate(
                f"utility_{metric}" + (f"_{place + 1}" if len(panels) > 1 else ""),
                "results",
                title + (f", {setting}" if setting else ""),
                caption,
                alt,
                figure,
            )


def _expected(
    rows: Sequence[Mapping[str, Any]], where: Mapping[str, Any], x: str, chosen: pd.DataFrame, answers: set | None = None
) -> list[dict[str, Any]]:
    """Closed forms of this panel: those of its number of homes (of a zone: that answered), and with x as a key."""
    count = where.get("population.count")
    rows = [dict(row) for row in rows if count is None or row.get("n") in (None, count)]
    rows = [row for row in rows if answers is None or row.get("n") in answers]
    if x == "population.count":
        asked = set(chosen["epsilon"])
        rows = [row | {x: row.get("n")} for row in rows if row.get("epsilon") in asked]
    elif "epsilon" in where:
        rows = [row for row in rows if row.get("epsilon") == where["epsilon"]]
    return rows if x in ("epsilon", "population.count") else []


def _truth(data: RunData) -> Iterator[Plate]:
    _, keys = per_seed(data.metrics, data.cells)
    zones = [
        zone
        for zone in data.rows("zones")
        if zone.get("true_clipped")
        and zone.get("released")
        and len(zone["true_clipped"]) == len(zone["released"])
        and zone.get("trust") != "open"
    ]
    if not zones:
        return
    varied = [key for key in keys[keys.index("delta") + 1 :] if key in data.cells and key != ZONE]
    varied += [ZONE] if zone_of(data) else []
    setting = ""
    if varied:  # one setting only: sums over unlike settings would mean nothing
        first = data.cells.set_index("cell").loc[:, varied]
        if ZONE in first:
            first = first.loc[sorted(first.index, key=lambda cell: by_number(str(first.at[cell, ZONE])))]
        first = first[first.index.isin({zone.get("cell") for zone in zones})]
        if len(first):
            same = set(first.index[(first == first.iloc[0]).all(axis=1)])
            zones = [zone for zone in zones if zone.get("cell") in same]
            setting = listing(f"{key} = {_short(first.iloc[0][key])}" for key in varied)
    last = max(zone.get("round") or 0 for zone in zones)
    zones = [zone for zone in zones if (zone.get("round") or 0) == last]
    size = len(zones[0]["released"])
    zones = [zone for zone in zones if len(zone["released"]) == size]
    epsilons = sorted({zone.get("epsilon") for zone in zones if zone.get("epsilon") is not None})
    if len(epsilons) > MOST_EPSILONS:
        epsilons = [epsilons[0], epsilons[len(epsilons) // 2], epsilons[-1]]
    style = figures.styles(data.metrics["strategy"])
    style |= figures.styles({zone["strategy"] for zone in zones} - set(style))
    coordinates = [str(name) for name in data.part("coordinates", list)]
    for epsilon in epsilons or [None]:
        chosen = [zone for zone in zones if zone.get("epsilon") == epsilon]
        strategies = {zone["strategy"] for zone in chosen}
        caption = (
            f"Round {last}. Vertical line: the truth, known to the simulation only. Whiskers: lowest to highest seed."
        )
        if setting:
            caption += f" Shown: {setting}."
        if size > figures.MOST_COORDINATES:
            caption += f" The {figures.MOST_COORDINATES} largest of {size} coordinates."
        if len(strategies) > figures.MOST_BARS:
            caption += f" The first {figures.MOST_BARS} of {len(strategies)} strategies by name."
        title = f"True and released zone sums, ε = {epsilon_text(epsilon)}"
        yield Plate(
            f"released_epsilon_{epsilon_text(epsilon)}".replace(".", "_"),
            "truth",
            title,
            caption,
            f"{title}: bars per appliance for {len(strategies)} strategies beside the true sum.",
            figures.true_and_released(chosen, coordinates, style, str(data.summary.get("unit_of_values") or "")),
        )


def _spent(data: RunData) -> Iterator[Plate]:
    rows = pd.DataFrame(data.rows("spent"))
    if rows.empty or "epsilon_spent" not in rows:
        return
    rows["epsilon_spent"] = pd.to_numeric(rows["epsilon_spent"], errors="coerce")
    trust = rows["trust"].astype(str) if "trust" in rows else pd.Series("", index=rows.index)
    rows = rows[np.isfinite(rows["epsilon_spent"]) & (trust != "open")]  # plain answers are outside the budget
    if rows.empty:
        return
    asked = data.metrics.drop_duplicates("cell").set_index("cell")["epsilon"]
    epsilon = rows["cell"].map(asked) if "cell" in rows else pd.Series(np.nan, index=rows.index)
    rows = rows.assign(trust=trust, asked=epsilon.fillna(-1.0))
    curves = _curves(rows, ["asked", "trust"])
    if len(curves) > MOST_CURVES:
        curves = _curves(rows, ["trust"])
    limits = pd.to_numeric(rows["cap"], errors="coerce") if "cap" in rows else pd.Series(np.nan, index=rows.index)
    caps = sorted(set(limits[np.isfinite(limits)]))[:3]
    over = int((rows["epsilon_spent"] > limits + 1e-9).sum())
    together = "cell" in rows and not rows["cell"].astype(str).any()
    caption = f"{number(len(rows))} budgets ({'homes, all cells together' if together else 'homes × cells'}), by what the " \
        f"ledger holds{'' if together else '; seeds are pooled'}."
    caption += (
        f" {number(over)} are above their cap: this must not happen."
        if over
        else " None is above its cap."
        if caps
        else ""
    )
    yield Plate(
        "spent",
        "spent",
        "Spent budget per home",
        caption,
        f"Sorted curve of epsilon spent per home; the largest is {number(rows['epsilon_spent'].max())}.",
        figures.spent(curves, caps),
    )


def _curves(rows: pd.DataFrame, keys: list[str]) -> dict[str, np.ndarray]:
    """Spent epsilon per group, sorted; equal curves become one, with the trust modes they share in its label."""
    merged: dict[tuple[str, bytes], tuple[list[str], np.ndarray]] = {}
    for key, group in rows.groupby(keys):
        asked = f"ε {epsilon_text(key[0])}" if "asked" in keys and key[0] >= 0 else ""
        values = np.sort(group["epsilon_spent"].to_numpy(float))
        merged.setdefault((asked, values.tobytes()), ([], values))[0].append(str(key[-1]))
    return {
        ": ".join(filter(None, (asked, ", ".join(filter(None, modes))))) or "all homes": values
        for (asked, _), (modes, values) in merged.items()
    }


def _refusals(data: RunData) -> Iterator[Plate]:
    counts: dict[str, int] = {}
    for row in data.rows("refusals"):
        reason = str(row.get("reason") or row.get("code") or "no reason given")
        counts[reason] = counts.get(reason, 0) + int(row.get("count") or 0)
    if any(counts.values()):
        yield Plate(
            "refusals",
            "refusals",
            "Refusals by reason",
            "Inside view: outside the box a refusal is the word “refused”.",
            f"Bars: {listing(f'{reason} {number(count)}' for reason, count in counts.items())}.",
            figures.refusals(counts),
        )


def _inside(data: RunData) -> Iterator[Plate]:
    view = data.part("inside_view", dict)
    hours = view.get("hours") or list(range(24))
    for key, title, label in (
        ("readings", "readings per appliance", "consumption (kWh)"),
        ("shap", "SHAP values per appliance", "SHAP value (kWh)"),
    ):
        channels = {str(name): row for name, row in (view.get(key) or {}).items() if len(row) == len(hours)}
        if channels:
            title = f"One home's day: {title}"
            yield Plate(
                f"inside_{key}",
                "inside",
                title,
                f"Home {view.get('household', 'unnamed')}. Recomputed by the driver for this report, off the network.",
                f"{title}, stacked by hour for {listing(channels)}.",
                figures.day(hours, channels, label),
            )


def _short(value: object) -> str:
    return epsilon_text(value) if isinstance(value, float) else str(value)
