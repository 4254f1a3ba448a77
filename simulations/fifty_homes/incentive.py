"""The incentive scenario: a 20 % discount, 20 of 50 homes, the price curve; and London's real dynamic tariff."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

import fedenergy as fe
from fedenergy import ids, tariff
from fedenergy.households.population import Population

JOINING, DISCOUNT, PEAK_HOURS = 0.4, 0.2, 4   # the source's 20 of 50 homes and 20 %; our daily peak
SIGMAS, ETAS = (tariff.RESPONSIVE, tariff.CONTROLLED), (tariff.NORMAL_ETA, tariff.TIGHT_ETA)
LONDON_HOMES, MOST_GAPS, HALF_HOURS = 50, 4, 48


@dataclass(frozen=True)
class Incentive:
    """A table with one row per (sigma, eta), the outcomes behind it, and facts for the text."""

    table: pd.DataFrame
    outcomes: dict[tuple[float, float], tariff.Outcome] = field(repr=False)
    peak: np.ndarray = field(repr=False)
    facts: dict[str, float]


def loads_of(population: Population) -> np.ndarray:
    """(T, homes) kWh per step of the whole homes."""
    return np.stack([population.load(home).total for home in range(len(population))], axis=1)


def joiners(names: tuple[str, ...], share: float = JOINING) -> np.ndarray:
    """(n,) bool: the share of homes that join, by a hash of their ids: it says nothing about their data."""
    order = sorted(range(len(names)), key=lambda i: ids.digest(b"fe.join.1", names[i], 8))
    chosen = np.zeros(len(names), bool)
    chosen[order[:round(share * len(names))]] = True
    return chosen


def discount_scenario(population: Population) -> Incentive:
    """20 % off the bill for moving the daily peak, against what the closed form and a discount tied to nothing give."""
    loads, per_day = loads_of(population), 1440 // population.step_minutes
    zone, joined = loads.sum(axis=1), joiners(tuple(population.ids))
    peak = tariff.peak_steps(zone, per_day, PEAK_HOURS * 60 // population.step_minutes)
    share = float(loads[peak][:, joined].sum() / loads[:, joined].sum())
    of_peak = float(loads[peak][:, joined].sum() / zone[peak].sum())
    bills = tariff.bill(loads, tariff.FLAT_PENCE)
    cost, cost_share = tariff.scheme_cost(bills, joined, DISCOUNT)
    rows, outcomes = [], {}
    for sigma in SIGMAS:
        scheme = tariff.PeakDiscount(DISCOUNT, share, sigma)
        after = loads.copy()
        after[:, joined] = scheme.respond(loads[:, joined], peak, per_day)
        for eta in ETAS:
            found = outcomes[sigma, eta] = tariff.compare_loads(zone, after.sum(axis=1), peak, tariff.FLAT_PENCE, eta)
            closed = (1 + of_peak * scheme.home_change) ** eta - 1
            rows.append(_row(f"{sigma:g}", eta, found) | {"closed form, peak price": closed})
    loose = loads.copy()
    loose[:, joined] = tariff.flat_discount(loads[:, joined], DISCOUNT)
    for eta in ETAS:
        found = tariff.compare_loads(zone, loose.sum(axis=1), peak, tariff.FLAT_PENCE, eta)
        outcomes[0.0, eta] = found
        rows.append(_row("not tied to the peak", eta, found) | {"closed form, peak price": np.nan})
    table = pd.DataFrame(rows)
    table["scheme costs (£)"] = cost
    hours = np.flatnonzero(peak[:per_day]) * population.step_minutes / 60
    return Incentive(table, outcomes, peak, {
        "peak_share": share, "price_ratio": 1 + DISCOUNT / share, "of_peak": of_peak, "cost": cost,
        "cost_share": cost_share, "joined": int(joined.sum()), "homes": len(joined), "from": float(hours[0]),
        "to": float(hours[-1] + population.step_minutes / 60), "days": zone.size / per_day})


def _row(sigma: str, eta: float, found: tariff.Outcome) -> dict[str, object]:
    return {"sigma": sigma, "eta": eta, "peak energy": found.peak_change, "peak price": found.peak_price_change,
            "highest price": found.highest_price_change, "spread of prices": found.spread_change,
            "saved (£)": found.saved_pounds}


def london_homes(data: str | Path) -> tuple[np.ndarray, tuple[str, ...], int]:
    """((17520, n) kWh per half hour of 2013, ids, gaps filled): the first homes with few gaps, filled by their mean."""
    population = fe.london_households(data, step_minutes=30, start="2013-01-01", days=365, min_present=0.99)
    loads, names, gaps = [], [], 0
    for index, name in enumerate(population.ids):
        total = population.load(index).total
        missing = np.isnan(total)
        if missing.sum() > MOST_GAPS or (total == 0).mean() > 0.5:
            continue
        loads.append(np.where(missing, np.nanmean(total), total))
        names.append(name)
        gaps += int(missing.sum())
        if len(names) == LONDON_HOMES:
            break
    return np.stack(loads, axis=1), tuple(names), gaps


def london_scenario(data: str | Path) -> Incentive:
    """The trial's real tariff on real homes: joining homes pay High / Normal / Low, the others the flat price.

    A High half hour costs R = High / Normal times a usual one; use moves out of it by R^(-sigma) to the day's other
    half hours. What the Low price attracts is left out. Bills are a year's.
    """
    dtou = tariff.read_dtou(Path(data) / "lcl_london" / "tariffs_dtou_2013.csv")
    loads, names, gaps = london_homes(data)
    joined, peak = joiners(names), dtou.slots == "High"
    ratio, zone = dtou.levels["High"] / dtou.levels["Normal"], loads.sum(axis=1)
    at_flat, before = tariff.bill(loads, tariff.FLAT_PENCE), dtou.bill(loads[:, joined])
    rows, outcomes = [], {}
    for sigma in SIGMAS:
        change = ratio**-sigma - 1
        after = loads.copy()
        after[:, joined] = tariff.shift(loads[:, joined], peak, HALF_HOURS, change)
        bills = dtou.bill(after[:, joined])
        of_peak = float(loads[peak][:, joined].sum() / zone[peak].sum())
        for eta in ETAS:
            found = outcomes[sigma, eta] = tariff.compare_loads(zone, after.sum(axis=1), peak, tariff.FLAT_PENCE, eta)
            rows.append(_row(f"{sigma:g}", eta, found) | {
                "closed form, peak price": (1 + of_peak * change) ** eta - 1, "bill, flat (£)": at_flat[joined].mean(),
                "bill, dynamic, as before (£)": before.mean(), "bill, dynamic, moved (£)": bills.mean(),
                "revenue forgone": float((at_flat[joined].sum() - bills.sum()) / at_flat.sum())})
    return Incentive(pd.DataFrame(rows), outcomes, peak, {
        "homes": len(names), "joined": int(joined.sum()), "gaps": gaps, "price_ratio": ratio,
        "high_share": float(loads[peak][:, joined].sum() / loads[:, joined].sum()), "high_slots": int(peak.sum())})


def evening_event(found: Incentive) -> int:
    """The day (from 0) with the largest mean load in its High half hours, of the days with High from 16 h on only."""
    before, peak = next(iter(found.outcomes.values())).before.reshape(-1, HALF_HOURS), found.peak.reshape(-1, HALF_HOURS)
    load = (before * peak).sum(axis=1) / np.maximum(peak.sum(axis=1), 1)
    return int(np.where(peak[:, :32].any(axis=1), 0.0, load).argmax())
