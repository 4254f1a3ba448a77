"""What the source says of its method, and our questions, each beside what a run yields."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from simulations.pages import Claim, judged
from simulations.synthesising.scoring import METRICS

LABEL = {"psi": "PSI", "drp_error": "DRP error", "dcr_home": "DCR per home (kWh)", "nndr_home": "NNDR per home",
         "membership_home": "membership AUC per home"}
RIVAL = {"dp_histogram": "a plain histogram", "dp_diffusion": "DP diffusion"}
CASE = {"raw_shuffle": "Case 1", "components": "components only", "components_shuffle": "Case 3"}


def claims(table: pd.DataFrame) -> list[Claim]:
    """Every claim that the table (one row per method, mean over seeds, column `study`) can judge."""
    table = table.reindex(columns=list(dict.fromkeys([*table.columns, *METRICS])))
    found = list(_variants(table[table["study"] == "variants"]))
    found += _tradeoff(table[table["study"] == "tradeoff"])
    found += _equal(table[table["study"] == "equal_epsilon"])
    return found


def _first(rows: pd.DataFrame, variant: str) -> pd.Series | None:
    """The variant as the source has it where it was run (its recipe, free exchange inside segments), else its first row."""
    mine = rows[rows["variant"] == variant]
    for shuffle, recipe in (("free", "source"), ("free", "none"), ("none", "source"), ("within_date", "source")):
        hit = mine[(mine["shuffle"] == shuffle) & (mine["recipe"] == recipe) & mine["segments"].astype(bool)
                   & (mine["seasonal_part"] == "keep")]
        if len(hit):
            return hit.iloc[0]
    return mine.iloc[0] if len(mine) else None


def _variants(rows: pd.DataFrame) -> Iterator[Claim]:
    raw, parts, whole = (_first(rows, variant) for variant in CASE)
    if raw is None or whole is None or parts is None:
        return
    named = {"raw shuffle": raw, "components": parts, "components shuffle": whole}
    if "drp_error" in rows and rows["drp_error"].notna().any():
        order = sorted(named, key=lambda name: named[name]["drp_error"])
        yield Claim("figure 11", "the DRP curve of Case 3 fits the real one best", "fits best",
                    ", ".join(f"{name} {100 * named[name]['drp_error']:.0f} %" for name in order),
                    judged(order[0] == "components shuffle"), "smallest mean error of the uDRP and dDRP curves")
    yield Claim("section 4", "Case 3: PSI below .1", "0.1", f"{whole['psi']:.3f}", judged(bool(whole["psi"] < 0.1)), "")
    highest = {unit: max(named, key=lambda name: named[name][f"dcr_{unit}"]) for unit in ("home", "day")}
    yield Claim("section 4.2", "Case 1 has the highest DCR, so the best privacy", "highest",
                f"per home: {highest['home']} ({named[highest['home']]['dcr_home']:.3g} kWh); per day: {highest['day']}; "
                "Case 1 "
                f"copies {100 * raw['copies_day']:.0f} % of its days from real ones",
                judged(highest["home"] == "raw shuffle", highest["day"] == "raw shuffle"), "median DCR, per home and per "
                                                                                           "day")
    seen = whole["membership_day"] > 0.55 or whole.get("linkage_home", 0) > 2 * whole.get("linkage_chance", 1)
    yield Claim("section 1", "no record can be matched to a real user", "none",
                f"a known day finds its home in {100 * whole.get('linkage_home', np.nan):.0f} % (chance "
                f"{100 * whole.get('linkage_chance', np.nan):.1f} %); membership AUC {whole['membership_day']:.2f}",
                judged(not seen), "linkage at most twice chance, membership AUC at most .55")
    yield Claim("section 3.3", "the exchange keeps day-to-day steps within sigma", "kept",
                f"{100 * whole['violations']:.0f} % break it; real homes break it in {100 * whole['real_violations']:.0f} %",
                judged(bool(whole["violations"] <= whole["real_violations"])), "not above the real rate")
    yield Claim("section 3.1", "log(x + 1) keeps small loads sound", "sound",
                f"{100 * whole['clipped_share']:.1f} % of the steps came back below 0 kWh",
                judged(bool(whole["clipped_share"] == 0)),
                "no step below 0")
    sound = rows[(rows["variant"] == "components_shuffle") & (rows["recipe"] == "sound") & (rows["shuffle"] == "within_date")
                 & rows["segments"].astype(bool) & (rows["seasonal_part"] == "keep")]
    if len(sound):
        ours, better = sound.iloc[0], ("psi", "drp_error", "violations")
        yield Claim("our form", "joint trend, hourly GEV with memory and exchange within the date beat the source's "
                                "form", "not said",
                    ", ".join(f"{name.replace('_', ' ')} {ours[name]:.3f} against {whole[name]:.3f}" for name in better),
                    judged(*(bool(ours[name] < whole[name]) for name in better)), "all three smaller", own=True)


def _tradeoff(rows: pd.DataFrame) -> list[Claim]:
    if rows["clusters"].nunique() < 2:
        return []
    names = ["psi", "drp_error", "dcr_home", "nndr_home", "membership_home"]
    by = rows.assign(k=rows["clusters"].astype(float)).groupby("k")[names].mean()
    low, high = by.iloc[0], by.iloc[-1]
    known = [name for name in names if by[name].notna().all()]      # the window may be too short for demand response
    text = f"K {by.index[0]:g} to {by.index[-1]:g}: " + "; ".join(
        f"{LABEL[name]} {low[name]:.3g} to {high[name]:.3g}" for name in known)
    moved = [bool(high[name] > 1.01 * low[name]) if name == "membership_home" else bool(high[name] < 0.99 * low[name])
             for name in known]
    return [Claim("section 5", "more clusters: more useful, less private", "a double-edged sword", text, judged(*moved),
                  "by more than 1 %: PSI, DRP error, DCR and NNDR fall, membership AUC rises")]


def _equal(rows: pd.DataFrame) -> list[Claim]:
    found = []
    private = rows[np.isfinite(rows["epsilon"].astype(float))] if len(rows) else rows
    for epsilon, part in private.groupby("epsilon"):
        if "private_mode" in set(part["method"]) and len(part) > 1:
            own = part[part["method"] == "private_mode"].iloc[0]
            others = part[part["method"] != "private_mode"]
            better = [bool(own[name] < others[name].min()) for name in ("psi", "daily_curve_error", "drp_error")
                      if part[name].notna().all()]
            best = ", ".join(f"{name.replace('_', ' ')} {own[name]:.3f} against {others[name].min():.3f}"
                             for name in ("psi", "daily_curve_error", "drp_error"))
            names = " and ".join(RIVAL.get(name, name.replace("_", " ")) for name in others["method"])
            found.append(Claim(f"ε {epsilon:g}", f"private mode beats {names}", "not said", best,
                               judged(*better), "smaller than the best of the others, score by score", own=True))
    audited = private[private["falsified"].notna()] if "falsified" in private else private.iloc[:0]
    if len(audited):
        worst = audited.sort_values("epsilon_lower").iloc[-1]
        found.append(Claim("audit", "canaries refute no claimed epsilon", "not said",
                           f"largest lower bound {worst['epsilon_lower']:.2f} ({worst['method'].replace('_', ' ')}, claimed "
                           f"{worst['epsilon']:g})", judged(bool((audited["falsified"] == 0).all())),
                           "95 % lower bounds, one run each", own=True))
    return found
