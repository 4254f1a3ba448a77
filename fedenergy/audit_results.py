"""The results part of an audit: the scores in metrics.csv, computed again from the sums that summary.json holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedenergy.audit_checks import ABSENT, FINDING, OK, Check, Run
from fedenergy.audit_leaks import fractions
from fedenergy.audit_ledger import CLOUD
from fedenergy.federation.scores import SCORES

AREA, WHAT = "results", "scores follow from the sums on file"
Turn = tuple[str, str, int]  # cell, strategy, round


def result_checks(run: Run) -> Iterator[Check]:
    """Every score, and every count of answers, is what the released and true sums give; shares are of whole homes."""
    try:
        wanted = scores_of(run)
    except (KeyError, TypeError, ValueError) as error:
        yield Check(AREA, WHAT, FINDING, f"the sums in summary.json cannot be read: {type(error).__name__} {error}")
        return
    metrics = run.data.metrics
    told = {(row.cell, row.strategy, row.round, row.metric): row.value for row in metrics.itertuples()}
    wrong = [(key, value) for key, value in wanted.items()
             if not np.isclose(told.get(key, np.inf), value, rtol=1e-9, atol=1e-9, equal_nan=True)]
    scored = {(*key, name) for key in {key[:3] for key in told} for name in SCORES if (*key, name) in told}
    loose = sorted(key for key in scored - wanted.keys()) if not run.data.summary.get("training") else []
    shares = metrics.loc[metrics["metric"] == "clipped_share", "value"].dropna().to_numpy(float)
    count = run.data.part("population", dict).get("count")
    odd = shares[~fractions(shares, count) | (shares > 1)] if isinstance(count, int) else shares[:0]
    if wrong:
        (cell, strategy, turn, metric), value = wrong[0]
        there = told.get((cell, strategy, turn, metric))
        yield Check(AREA, WHAT, FINDING, f"{len(wrong):,} of {len(wanted):,} values of metrics.csv are not what "
                    f"summary.json gives: {metric} of {strategy}, round {turn}, cell {cell} is "
                    f"{'absent' if there is None else f'{there:g}'}, computed {value:g}")
    if loose:
        yield Check(AREA, WHAT, FINDING, f"{len(loose):,} scores of metrics.csv have no sums in summary.json to follow "
                    f"from: {loose[0][3]} of {loose[0][1]}, round {loose[0][2]}, cell {loose[0][0]}")
    if len(odd):
        yield Check(AREA, WHAT, FINDING, f"a clipped share of {float(odd[0])!r} is no share of up to {count:,} homes")
    if wrong or loose or len(odd):
        return
    if wanted:
        yield Check(AREA, WHAT, OK, f"{len(wanted):,} values of metrics.csv computed again from summary.json")
    else:
        yield Check(AREA, WHAT, ABSENT, "the run kept no sums to compute scores from")


def scores_of(run: Run) -> dict[tuple[str, str, int, str], float]:
    """(cell, strategy, round, metric) -> value, of everything that the sums in summary.json determine."""
    found: dict[tuple[str, str, int, str], float] = {}
    turns: dict[Turn, Mapping[str, Any]] = {}
    for row in run.data.rows("zones"):
        turns[row["cell"], row["strategy"], int(row["round"])] = row
    for key, row in turns.items():
        found |= _scores(key, *(np.array(row[name], np.float64) for name in ("released", "true_clipped", "true_total")))
    answers = {(row["cell"], row["strategy"], int(row["round"])): row for row in run.data.rows("zone_answers")}
    found |= {(*key, "answers"): float(row["answers"]) for key, row in answers.items()}
    zones = _zones_of(run)
    for row in run.data.rows("cloud"):
        keys = [(cell, row["strategy"], int(row["round"])) for cell in zones.get(row["cell"], ())]
        whole = row["cell"], row["strategy"], int(row["round"])
        if keys and all(key in turns for key in keys):
            clipped, total = (np.sum([turns[key][name] for key in keys], axis=0) for name in ("true_clipped", "true_total"))
            found |= _scores(whole, np.sum([turns[key]["released"] for key in keys], axis=0), clipped, total)
        if keys and all(key in answers for key in keys):
            found[(*whole, "answers")] = float(sum(answers[key]["answers"] for key in keys))
    return found


def _scores(key: Turn, released: np.ndarray, clipped: np.ndarray, total: np.ndarray) -> dict[tuple, float]:
    return {(*key, f"{name}{end}"): float(function(released, truth)) for name, function in SCORES.items()
            for end, truth in (("", clipped), ("_total", total))}


def _zones_of(run: Run) -> dict[str, list[str]]:
    """Cell of the cloud -> the cells of its zones, by number: they differ in nothing but the zone."""
    groups: dict[tuple, list[tuple[float, str]]] = {}
    for cell, row in run.cells.items():
        if row.get("zone") not in (None, "", CLOUD):
            groups.setdefault(_but_zone(row), []).append((float(row["zone"]), cell))
    return {cell: [name for _, name in sorted(groups.get(_but_zone(row), []))] for cell, row in run.cells.items()
            if row.get("zone") == CLOUD}


def _but_zone(row: Mapping[str, Any]) -> tuple:
    return tuple((key, str(value)) for key, value in sorted(row.items()) if key not in ("cell", "zone"))
