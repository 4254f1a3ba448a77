"""Every score of a set of artificial records, in one call: numbers, a table, curves to draw, and one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedenergy.synthesis import judge_utility as useful
from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.intake import Panel, day_types, panel
from fedenergy.synthesis.judge_canaries import canaries
from fedenergy.synthesis.judge_classifier import discriminative
from fedenergy.synthesis.judge_downstream import forecast
from fedenergy.synthesis.judge_embedding import embed
from fedenergy.synthesis.judge_privacy import UNITS, dcr_nndr, privacy, rows, sample_rows, self_test, top_overlap

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("utility", "discriminative", "forecast", "privacy", "embedding")
_DRAWN = 2_000      # distances kept for a figure
CURVE_LAGS = 170    # hours


@dataclass(frozen=True)
class Judgement:
    """The scores of one set of artificial records.

    scores  nested, plain numbers and words: json.dumps takes it
    curves  what the page draws, by name; arrays, of the real homes too: an inside view like the page itself
    found["utility"] is found.scores["utility"]; found.table() has a row per score; found.to_html(path) writes the page.
    """

    scores: Mapping[str, Any]
    curves: Mapping[str, np.ndarray] = field(repr=False, default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.scores[name]

    def __contains__(self, name: object) -> bool:
        return name in self.scores

    def table(self) -> pd.DataFrame:
        """A row per score: part, score, per (day, home), artificial, yardstick, what the yardstick is, reading."""
        from fedenergy.synthesis.judge_table import table

        return table(self.scores)

    def to_html(self, path: str | Path, title: str = "Artificial load profiles") -> Path:
        """Write one page that opens without a network; returns its path."""
        from fedenergy.report.synthesis_page import write

        return write(self, Path(path), title)


def judge(homes: Any, fake: Synthetic, holdout: Any = None, *, seed: int = 0, parts: Sequence[str] = PARTS,
          make: Callable[[Panel], Synthetic] | None = None, claimed: float = np.inf, delta: float = 0.0) -> Judgement:
    """Judge artificial records against the homes that they were made from.

    homes    those homes; fake may hold more or fewer records than there are homes
    holdout  other homes of the same population over the same window, which the generator never saw (at least 6): the
             yardstick of every distance, the non-members of the membership test, the test homes of the forecaster
    parts    which scores; without a holdout there is no membership test and no self-test
    make     the generator itself, Panel -> Synthetic: adds canaries and a lower bound of epsilon, for one more run of it;
             claimed, delta: what it states (replace-one)
    Linkage and top-decile overlap are scored only in the process that made the records: where their days came from does
    not travel.
    Errors: ValueError where homes, records and holdout are not of one window, or homes are not those of the records.
    """
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ValueError(f"parts has {unknown[0]!r}; use some of {', '.join(PARTS)}")
    real = homes if isinstance(homes, Panel) else panel(homes, on_bad="drop")
    behind = fake.counts.get("homes", len(real.ids))
    if (real.values.shape[1] != fake.values.shape[1] or len(real.ids) != behind or real.start != fake.start
            or real.step_minutes != fake.step_minutes):
        raise ValueError(f"{real.values.shape[0]} usable homes x {real.values.shape[1]} steps from {real.start} are not"
                         f" those behind {fake.values.shape[0]} records (of {behind} homes) x {fake.values.shape[1]} steps"
                         f" from {fake.start}")
    away = None if holdout is None else _holdout(holdout, real)
    made, per_day = fake.values, real.per_day
    found: dict[str, Any] = {
        "guarantee": fake.guarantee, "counts": dict(fake.counts), "records": len(made),
        "window": {"start": str(np.datetime64(real.start, "D")), "days": real.days, "step_minutes": real.step_minutes},
        "variant": fake.variant, "mode": fake.mode, "holdout_homes": 0 if away is None else len(away.values)}
    if fake.choice:
        found["choice"] = {"clusters": int(np.unique(fake.cluster).size), "scores": {k: dict(v) for k, v in
                                                                                     fake.choice.items()}}
    if fake.cells:
        found["shuffle"] = {"method": fake.shuffle, "violations": fake.violations, "real_violations": fake.real_violations,
                            "cells_free_of_violations_possible": sum(cell.feasible for cell in fake.cells)}
    curves: dict[str, np.ndarray] = {}
    if "utility" in parts:
        found["utility"] = useful.utility(real.values, made, real.start, per_day)
        curves |= _curves(real, made)
    if "discriminative" in parts and min(len(real.ids), len(made)) >= 4:
        found["discriminative"] = {unit: discriminative(real.values, made, unit, per_day, seed=seed) for unit in UNITS}
        if away is not None and len(away.values) >= 4:
            found["discriminative"] |= {f"{unit}_holdout": discriminative(real.values, away.values, unit, per_day, seed=seed)
                                        for unit in UNITS}
    if "forecast" in parts and real.days >= 4:
        test = real.values if away is None else away.values
        found["forecast"] = forecast(real.values, made, test, real.start, per_day, seed=seed) | {
            "tested_on": "the homes themselves" if away is None else "the holdout"}
    if "privacy" in parts:
        found |= _privacy(real, fake, away, seed)
        curves |= _distances(real, made, away, seed)
    if make is not None:
        found["canaries"] = canaries(real, make, claimed=claimed, delta=delta, seed=seed)
    if "embedding" in parts and min(len(real.ids), len(made)) >= 3:
        for unit in UNITS:
            drawn = embed(real.values, made, unit, per_day, seed=seed)
            curves |= {f"{unit}_{name}": value for name, value in drawn.items()}
            found.setdefault("embedding", {})[unit] = {"rows": int(drawn["fake"].size),
                                                       "pca_explained": [float(share) for share in drawn["explained"]]}
    return Judgement(found, curves)


def _holdout(holdout: Any, real: Panel) -> Panel:
    away = holdout if isinstance(holdout, Panel) else panel(holdout, on_bad="drop")
    window = [(one.values.shape[1], one.start, one.step_minutes) for one in (away, real)]
    if window[0] != window[1]:
        raise ValueError(f"the holdout's {away.values.shape[1]} steps from {away.start} are not the homes' window: "
                         f"{real.values.shape[1]} steps from {real.start}")
    if both := sorted(set(away.ids) & set(real.ids)):
        raise ValueError(f"household {both[0]} is in the holdout and among the homes: keep them apart")
    return away


def _privacy(real: Panel, fake: Synthetic, away: Panel | None, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {"privacy": privacy(real.values, fake.values, None if away is None else away.values,
                                                real.per_day, provenance=fake._provenance, seed=seed)}
    if away is not None:
        found["self_test"] = self_test(real.values, away.values, real.per_day, seed=seed)
    if fake._provenance is not None and _long_enough(real):
        overlap = top_overlap(real.values, fake.values, fake._provenance, real.start, real.per_day)
        if overlap:
            found["privacy"]["top_overlap"] = overlap
    return found


def _long_enough(real: Panel) -> bool:
    kinds = day_types(real.start, real.days)
    return bool(min(kinds.sum(), (~kinds).sum()) >= 5)


def _curves(real: Panel, made: np.ndarray) -> dict[str, np.ndarray]:
    found, most = {}, min(CURVE_LAGS * real.per_day // 24, real.values.shape[1] // 2)
    at = (np.arange(400) + 0.5) / 400
    for name, values in (("real", real.values), ("fake", made)):
        found[f"daily_{name}"] = useful.daily_curve(values, real.per_day)
        found[f"weekly_{name}"] = useful.weekly_curve(values, real.start, real.per_day)
        found[f"acf_{name}"] = np.nanmean(useful.acf(values, most), axis=0)
        found[f"quantiles_{name}"] = np.quantile(values, at)
        if _long_enough(real):
            potential = useful.drp(values, real.start, real.per_day)
            found |= {f"{kind}_{name}": potential[kind] / len(values) for kind in ("uDRP", "dDRP")}
            found |= {f"{kind}_home_{name}": np.sort(potential[f"{kind}_home"]) for kind in ("uDRP", "dDRP")}
    return found


def _distances(real: Panel, made: np.ndarray, away: Panel | None, seed: int) -> dict[str, np.ndarray]:
    """Distances of artificial days and homes to the nearest real one and to the holdout's; references equally large."""
    found = {}
    for unit in UNITS:
        pools = {"real": rows(real.values, unit, real.per_day)}
        if away is not None:
            pools["holdout"] = rows(away.values, unit, real.per_day)
        size = min(_DRAWN, *map(len, pools.values()))
        query = sample_rows(rows(made, unit, real.per_day), seed, f"drawn.{unit}.fake", _DRAWN)
        for name, pool in pools.items():
            if size >= 2:
                distance = dcr_nndr(query, sample_rows(pool, seed, f"drawn.{unit}.{name}", size))[0]
                found[f"dcr_{unit}_{name}"] = np.sort(distance)
    return found
