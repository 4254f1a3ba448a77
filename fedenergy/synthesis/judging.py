"""Every score of a set of artificial records, in one call."""

from __future__ import annotations

from typing import Any

from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.intake import panel
from fedenergy.synthesis.judge_privacy import privacy, self_test
from fedenergy.synthesis.judge_utility import utility


def judge(homes: Any, fake: Synthetic, holdout: Any = None, *, seed: int = 0) -> dict[str, Any]:
    """{"utility", "shuffle", "counts", "guarantee"} and, with a holdout, {"privacy", "self_test"}.

    homes    those that the records were made from
    holdout  other homes of the same population over the same window, which the generator never saw (at least 6)
    Linkage is scored only in the process that made the records: where their days came from does not travel.
    Errors: ValueError where homes, records and holdout are not of one window, or homes are not those of the records.
    """
    real = panel(homes, on_bad="drop")
    if real.values.shape != fake.values.shape or real.start != fake.start or real.step_minutes != fake.step_minutes:
        raise ValueError(f"{real.values.shape[0]} usable homes x {real.values.shape[1]} steps from {real.start} are not"
                         f" those behind {fake.values.shape[0]} records x {fake.values.shape[1]} steps from {fake.start}")
    found: dict[str, Any] = {
        "guarantee": fake.guarantee, "counts": dict(fake.counts),
        "utility": utility(real.values, fake.values, real.start, real.per_day),
        "shuffle": {"method": fake.shuffle, "violations": fake.violations, "real_violations": fake.real_violations,
                    "cells_free_of_violations_possible": sum(cell.feasible for cell in fake.cells)}}
    if holdout is not None:
        away = panel(holdout, on_bad="drop")
        window = [(one.values.shape[1], one.start, one.step_minutes) for one in (away, real)]
        if window[0] != window[1]:
            raise ValueError(f"the holdout's {away.values.shape[1]} steps from {away.start} are not the homes' window: "
                             f"{real.values.shape[1]} steps from {real.start}")
        if both := sorted(set(away.ids) & set(real.ids)):
            raise ValueError(f"household {both[0]} is in the holdout and among the homes: keep them apart")
        found["privacy"] = privacy(real.values, fake.values, away.values, real.per_day, provenance=fake._provenance,
                                   seed=seed)
        found["self_test"] = self_test(real.values, away.values, real.per_day, seed=seed)
    return found
