"""The cloud tier: above the zones, adding up what they released and nothing else.

It sees zone vectors, which are public, so it costs no epsilon. On the noise grid the sum is exact: the cloud's sum is the
sum over all homes' releases, however they were dealt out to zones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedenergy import ids
from fedenergy.federation.scores import SCORES

COUNTS = ("answers", "refusals", "failures")


@dataclass
class Tier:
    """rows of metrics.csv, cells of cells.csv, and the sums themselves for summary.json."""

    rows: list[list] = field(default_factory=list)
    cells: dict[str, dict] = field(default_factory=dict)
    sums: list[dict] = field(default_factory=list)


def cloud(parts: Sequence[Any], states: Sequence[Any]) -> Tier:
    """The tier above the parts whose population is a zone; empty where there is none.

    A sum is made only where every zone released a vector; scores only where an oracle saw every zone.
    """
    groups: dict[str, list[tuple[Any, Any]]] = {}
    for part, state in zip(parts, states, strict=True):
        if getattr(part.world.population, "zones", 0) and "zone" in part.keys:
            keys = {name: value for name, value in part.keys.items() if name != "zone"}
            groups.setdefault(ids.canon([keys, part.seed]).decode(), []).append((part, state))
    tier = Tier()
    for members in groups.values():
        if len(members) == members[0][0].world.population.zones:
            _add(tier, members)
    return tier


def _add(tier: Tier, members: Sequence[tuple[Any, Any]]) -> None:
    part = members[0][0]
    homes = np.array([len(one.world.population) for one, _ in members])
    for entry in part.entries:
        for index in range(min(state.round for _, state in members)):
            turns = [_turn(state, entry.label, index + 1) for _, state in members]
            if any(turn is None or turn["released"] is None for turn in turns):
                continue
            described = {**turns[0]["cell"], "zone": "cloud"}
            cell = ids.cell_id({**{k: v for k, v in turns[0]["cell"].items() if k != "zone"}, "tier": "cloud"})
            tier.cells[cell] = described
            released = np.sum([turn["released"] for turn in turns], axis=0)
            values: dict[str, float] = {name: sum(turn["metrics"][name] for turn in turns) for name in COUNTS}
            spent = np.array([turn["metrics"]["epsilon_spent_mean"] for turn in turns])
            values["epsilon_spent_mean"] = float((spent * homes).sum() / homes.sum())
            values["epsilon_spent_max"] = max(turn["metrics"]["epsilon_spent_max"] for turn in turns)
            if all(turn["truth"] is not None for turn in turns):
                clipped, total = (np.sum([turn["truth"][k] for turn in turns], axis=0) for k in (0, 1))
                values |= {name: function(released, clipped) for name, function in SCORES.items()}
                values |= {f"{name}_total": function(released, total) for name, function in SCORES.items()}
            key = list(turns[0]["key"])
            key[0], key[1] = cell, f"{part.world.population.whole.name}/cloud"
            tier.rows += [[*key, metric, float(value)] for metric, value in values.items()]
            tier.sums.append({"strategy": entry.label, "seed": part.seed, "round": index + 1, "zones": len(members),
                              "released": released.tolist(), "cell": cell})


def _turn(state: Any, label: str, round_number: int) -> Mapping[str, Any] | None:
    """What one zone's strategy did in one round; None where it did not play."""
    rows = [row for row in state.rows if row[2] == label and row[8] == round_number]
    if not rows:
        return None
    shown = next((zone for zone in state.zones if zone["strategy"] == label and zone["round"] == round_number), None)
    answer = next((one for one in state.answers if one["strategy"] == label and one["round"] == round_number), None)
    released = shown["released"] if shown else answer["released"] if answer else None
    return {"key": rows[0][:9], "cell": state.cells[rows[0][0]], "metrics": {row[9]: row[10] for row in rows},
            "released": released, "truth": (shown["true_clipped"], shown["true_total"]) if shown else None}
