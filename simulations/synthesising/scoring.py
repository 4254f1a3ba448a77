"""One cell of the study: records made, judged, and their scores as a flat row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.judging import Judgement, judge
from simulations.synthesising.homes import Split

PARTS = ("utility", "discriminative", "forecast", "privacy")
METRICS = (
    "psi", "mean_ratio", "variance_ratio", "peak_shift_hours", "daily_curve_error", "weekly_curve_error", "acf_1_off",
    "acf_24_off", "acf_168_off", "daily_energy_sd_ratio", "udrp_curve_error", "ddrp_curve_error", "drp_error",
    "udrp_total_ratio", "ddrp_total_ratio", "udrp_home_distance", "ddrp_home_distance", "discriminative_day",
    "discriminative_home", "forecast_ratio", "violations", "real_violations", "clipped_share", "dcr_day", "dcr_day_share",
    "nndr_day", "dcr_home", "dcr_home_share", "nndr_home", "copies_day", "copies_home", "membership_day", "membership_home",
    "tpr_day", "linkage_home", "linkage_chance", "top_overlap_udrp", "top_overlap_chance", "canary_auc", "epsilon_lower",
    "falsified", "self_test_shuffle", "self_test_strangers", "smallest_cell", "ms_per_home")
NAN = float("nan")


def score(split: Split, make: Callable[[], Synthetic], *, judged: Callable[[Judgement], None] | None = None,
          canary: Callable[..., Synthetic] | None = None, claimed: float = np.inf, delta: float = 0.0) -> dict[str, Any]:
    """{"scores": flat row, "drp": curves by hour per home} of the records that make() gives, against the split's homes.

    canary  Panel -> Synthetic: adds canaries, for another run of the generator
    """
    start = time.process_time()
    fake = make()
    taken = time.process_time() - start
    found = judge(split.homes, fake, split.holdout, parts=PARTS if judged is None else (*PARTS, "embedding"), make=canary,
                  claimed=claimed, delta=delta)
    if judged is not None:
        judged(found)
    drawn = {name: found.curves[name].tolist() for name in ("uDRP_fake", "dDRP_fake", "daily_fake") if name in found.curves}
    return {"scores": flat(found.scores) | {"ms_per_home": 1e3 * taken / len(fake.values)}, "drp": drawn}


def truth(split: Split) -> dict[str, Any]:
    """The real homes' own curves, in the shape of score()'s "drp"."""
    from fedenergy.synthesis.intake import day_types
    from fedenergy.synthesis.judge_utility import daily_curve, drp

    weekend = day_types(split.homes.start, split.homes.days)
    if min(weekend.sum(), (~weekend).sum()) < 5:
        return {"daily_real": daily_curve(split.homes.values, split.homes.per_day).tolist()}
    found = drp(split.homes.values, split.homes.start, split.homes.per_day)
    return {"daily_real": daily_curve(split.homes.values, split.homes.per_day).tolist(),
            **{f"{name}_real": (found[name] / len(split.homes.ids)).tolist() for name in ("uDRP", "dDRP")}}


def flat(scores: Mapping[str, Any]) -> dict[str, float]:
    """METRICS of a judgement; what was not scored is absent."""
    use, leak, counts = scores["utility"], scores["privacy"], scores["counts"]
    found: dict[str, Any] = {
        "psi": use["psi"], "mean_ratio": use["fake"]["mean"] / use["real"]["mean"],
        "variance_ratio": use["fake"]["variance"] / use["real"]["variance"], "peak_shift_hours": use["shift_hours"]["peak"],
        "daily_curve_error": use["daily_curve_error"], "weekly_curve_error": use["weekly_curve_error"],
        "daily_energy_sd_ratio": use["daily_energy_sd_ratio"],
                             "forecast_ratio": scores.get("forecast", {}).get("ratio", NAN)}
    found |= {f"acf_{lag}_off": pair["fake"] - pair["real"] for lag, pair in use["acf"].items()}
    if "drp" in use:
        found |= {name.lower(): value for name, value in use["drp"].items()}
        found["drp_error"] = (use["drp"]["uDRP_curve_error"] + use["drp"]["dDRP_curve_error"]) / 2
    found |= {f"discriminative_{unit}": scores["discriminative"][unit]["score"] for unit in ("day", "home")
              if unit in scores.get("discriminative", {})}
    if "shuffle" in scores:
        found |= {name: scores["shuffle"][name] for name in ("violations", "real_violations")}
    steps = scores["records"] * scores["window"]["days"] * 1440 / scores["window"]["step_minutes"]
    if "clipped_steps" in counts:
        found["clipped_share"] = counts["clipped_steps"] / steps
    found["smallest_cell"] = counts.get("smallest_cell", NAN)
    for unit in ("day", "home"):
        entry = leak[unit]
        found |= {f"dcr_{unit}": entry["real"]["dcr"], f"nndr_{unit}": entry["real"]["nndr"],
                  f"dcr_{unit}_share": entry["dcr_share"], f"copies_{unit}": entry["exact_copies"],
                  f"membership_{unit}": entry["membership"]["auc"]}
    found["tpr_day"] = leak["day"]["membership"]["tpr_at_1_fpr"]
    if "linkage" in leak:
        found |= {"linkage_home": leak["linkage"]["home"], "linkage_chance": leak["linkage"]["chance"]}
    if "top_overlap" in leak:
        found |= {"top_overlap_udrp": leak["top_overlap"]["uDRP"], "top_overlap_chance": leak["top_overlap"]["chance"]}
    if "canaries" in scores:
        found |= {"canary_auc": scores["canaries"]["auc"], "epsilon_lower": scores["canaries"]["epsilon_lower"],
                  "falsified": scores["canaries"]["falsified"]}
    found |= {"self_test_shuffle": scores["self_test"]["raw_shuffle_auc"],
              "self_test_strangers": scores["self_test"]["holdout_auc"]}
    return {name: float(value) for name, value in found.items() if value == value}
