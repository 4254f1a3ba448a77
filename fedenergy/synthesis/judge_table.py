"""The scores as one table for people: what was measured, beside what, and how to read it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

COLUMNS = ("part", "score", "per", "artificial", "yardstick", "yardstick_is", "reading")
Line = tuple[str, str, str, float, float, str, str]
NONE = float("nan")


def table(scores: Mapping[str, Any]) -> pd.DataFrame:
    """A row per score of a Judgement's scores. Readings are computed; NaN where there is no yardstick."""
    lines = [line for part in (_levels, _time, _response, _tasks, _distances, _attacks) for line in part(scores)]
    return pd.DataFrame(lines, columns=COLUMNS)


def _levels(scores: Mapping[str, Any]) -> Iterator[Line]:
    found = scores.get("utility")
    if not found:
        return
    for name in found["real"]:
        real, fake = found["real"][name], found["fake"][name]
        off = abs(fake / real - 1) if real else NONE
        yield "levels", _LEVELS.get(name, f"quantile {name[1:]} %"), "reading", fake, real, "real homes", _percent_off(off)
    yield "levels", "PSI", "reading", found["psi"], 0.0, "no drift", f"{found['psi_band']} drift"
    if "shuffle" in scores:
        mine, real = scores["shuffle"]["violations"], scores["shuffle"]["real_violations"]
        yield ("levels", "day-to-day steps above sigma", "day", mine, real, "real homes",
               "no rougher than real" if mine <= real else "rougher than real")


_LEVELS = {"mean": "mean (kWh)", "variance": "variance (kWh²)"}


def _time(scores: Mapping[str, Any]) -> Iterator[Line]:
    found = scores.get("utility")
    if not found:
        return
    for name, hours in found["shift_hours"].items():
        yield ("time", f"{name} hour moved by (h)", "population", hours, 0.0, "no move", "kept" if hours == 0 else "moved")
    for name in ("daily", "weekly"):
        error = found[f"{name}_curve_error"]
        yield "time", f"{name} curve, relative error", "population", error, 0.0, "the real curve", _percent_off(error)
    for kind in ("acf", "pacf"):
        for lag, pair in found[kind].items():
            yield ("time", f"{kind.upper()} at {lag} steps", "home", pair["fake"], pair["real"], "real homes",
                   f"off by {abs(pair['fake'] - pair['real']):.2f}")
    yield ("time", "spread of the population's daily energy", "population", found["daily_energy_sd_ratio"], 1.0, "as real",
           _percent_off(abs(found["daily_energy_sd_ratio"] - 1)))


def _response(scores: Mapping[str, Any]) -> Iterator[Line]:
    found = (scores.get("utility") or {}).get("drp", {})
    for name, value in found.items():
        kind, _, what = name.partition("_")
        words = {"curve_error": "curve, relative error", "total_ratio": "total over the real one",
                 "home_distance": "distance between the distributions over homes"}[what]
        aim = 1.0 if what == "total_ratio" else 0.0
        yield ("response", f"{kind} {words}", "home" if what == "home_distance" else "population", value, aim,
               "as real", _percent_off(abs(value - aim)))


def _tasks(scores: Mapping[str, Any]) -> Iterator[Line]:
    found = scores.get("discriminative", {})
    for unit in ("day", "home"):
        if unit in found:
            score, base = found[unit]["score"], found.get(f"{unit}_holdout", {}).get("score", NONE)
            yield ("use", "discriminative score (0 to .5)", unit, score, base,
                   "real against holdout" if base == base else "none",
                   "cannot be told apart" if score < 0.05 else "told apart at times" if score < 0.2 else "easily told apart")
    if "forecast" in scores:
        found = scores["forecast"]
        yield ("use", f"forecast error on {found['tested_on']} (kWh)", "reading", found["fake"], found["real"],
               "trained on real homes", f"{100 * (found['ratio'] - 1):+.1f} %".replace("-", "−"))
        yield ("use", "the same, without training", "reading", found["yesterday"], found["real"], "trained on real homes",
               "worse than training on artificial homes" if found["yesterday"] > found["fake"] else
               "training on artificial homes is worse than none")


def _distances(scores: Mapping[str, Any]) -> Iterator[Line]:
    found = scores.get("privacy", {})
    for unit in ("day", "home"):
        if unit not in found:
            continue
        entry = found[unit]
        away = entry.get("holdout", {})
        kind = "distance to the holdout" if away else "none"
        for name, words in (("dcr", "DCR, median (kWh)"), ("dcr_q5", "DCR, closest 5 % (kWh)"), ("nndr", "NNDR, median")):
            mine, other = entry["real"][name], away.get(name, NONE)
            closer = "closer to members" if mine < 0.95 * other else "as far as from strangers" if away else "no yardstick"
            yield "proxy", words, unit, mine, other, kind, closer
        copies = entry["exact_copies"]
        yield ("proxy", "exact copies", unit, copies, 0.0, "none", "no copy" if copies == 0 else "real records pass")


def _attacks(scores: Mapping[str, Any]) -> Iterator[Line]:
    found = scores.get("privacy", {})
    for unit in ("day", "home"):
        attack = found.get(unit, {}).get("membership")
        if attack:
            seen = attack["low"] > 0.5
            yield ("attack", f"membership AUC [{attack['low']:.2f}, {attack['high']:.2f}]", unit, attack["auc"], 0.5,
                   "chance",
                   "members are seen" if seen else "not told from chance")
            yield ("attack", f"members found at 1 % false alarms [{attack['tpr_low']:.3f}, {attack['tpr_high']:.3f}]", unit,
                   attack["tpr_at_1_fpr"], 0.01, "chance",
                   "members are seen" if attack["tpr_low"] > 0.01 else "not told from chance")
    if "linkage" in found:
        link = found["linkage"]
        for unit in ("home", "day"):
            chance = link["chance"] if unit == "home" else link["chance"] / scores["window"]["days"]
            yield ("attack", f"a known day finds its {unit}", unit, link[unit], chance, "chance",
                   f"{link[unit] / chance:,.0f} times chance")
    if "top_overlap" in found:
        for name in ("uDRP", "dDRP"):
            value, chance = found["top_overlap"][name], found["top_overlap"]["chance"]
            yield ("attack", f"top tenth by {name} recognised (identity kept: a leak)", "home", value, chance, "chance",
                   f"{value / chance:,.1f} times chance")
    if "canaries" in scores:
        seen = scores["canaries"]
        yield ("attack", f"canary AUC, {seen['pairs']} pairs, the better of day and home", "home", seen["auc"], 0.5,
               "chance",
               "canaries are seen" if seen["epsilon_lower"] > 0 else "not told from chance")
        claimed = seen["epsilon_claimed"]
        yield ("attack", "epsilon is at least (95 %)", "home", seen["epsilon_lower"], claimed, "epsilon claimed",
               "the claim is refuted" if seen["falsified"] else "no epsilon claimed" if math.isinf(claimed) else
               "does not refute the claim")
    if "self_test" in scores:
        test = scores["self_test"]
        yield ("self-test", "membership AUC on shuffled real days", "day", test["raw_shuffle_auc"], 1.0, "must be near",
               "sees what it must" if test["raw_shuffle_auc"] > 0.9 else "blind: read no comfort from the attacks")
        yield ("self-test", "membership AUC on strangers", "day", test["holdout_auc"], 0.5, "must be near",
               "sees nothing else" if abs(test["holdout_auc"] - 0.5) < 0.1 else "biased: members and holdout differ")


def _percent_off(value: float) -> str:
    return "" if value != value else f"within {100 * value:.1f} %" if value < 0.1 else f"off by {100 * value:.0f} %"
