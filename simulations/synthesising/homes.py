"""Whose records a synthesis study starts from, and who is kept away as the yardstick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedenergy.config_tables import Spec
from fedenergy.errors import ConfigError, parameters
from fedenergy.ids import stream
from fedenergy.studies import Place
from fedenergy.synthesis.intake import Panel
from fedenergy.synthesis.records import Reading, read

LEAST_HOLDOUT = 6


@dataclass(frozen=True)
class Split:
    """homes: those that records are made from; holdout: strangers, of other owners; filled: readings that were estimates."""

    name: str
    homes: Panel
    holdout: Panel
    filled: int
    excluded: Mapping[str, str]
    owners: int


def population(table: Mapping[str, Any], place: Place) -> Any:
    """The population that a [population] table names; its `data` argument is the study's folder of data sets."""
    args = {key: value for key, value in table.items() if key != "use"}
    if "use" not in table:
        raise ConfigError('[population] lacks use = "module:Name": say whose records to start from')
    spec = Spec(table["use"], args, table="population")
    takes, _ = parameters(spec.resolve())
    if "data" in takes and "data" not in args:
        return spec.build(data=str(place.data_folder(f"[population] {table['use']}")))
    return spec.build()


def split(table: Mapping[str, Any], reading: Reading, holdout: float, place: Place) -> Split:
    """All usable records, those of whole owners kept away until they are a share `holdout` of all; by a fixed stream."""
    found = population(table, place)
    records = read(found, None, reading)
    panel, owner = records.panel, np.array(records.owners)
    owners = np.unique(owner)
    order = stream(0, "study.holdout").permutation(owners)
    away = np.zeros(len(owner), bool)
    for name in order:
        if away.sum() >= holdout * len(owner):
            break
        away |= owner == name
    if away.sum() < LEAST_HOLDOUT or (~away).sum() < LEAST_HOLDOUT:
        raise ConfigError(f"holdout = {holdout:g} keeps {int(away.sum())} of {len(owner)} records away, of {len(owners)} "
                          "owners: "
                          f"both sides need at least {LEAST_HOLDOUT} records")
    return Split(str(getattr(found, "name", "records")), part(panel, ~away), part(panel, away), records.filled,
                 {**getattr(found, "excluded", {}), **panel.excluded}, len(owners))


def part(panel: Panel, rows: np.ndarray) -> Panel:
    """Some homes of a panel."""
    return Panel(tuple(np.array(panel.ids)[rows].tolist()), panel.values[rows], panel.start, panel.step_minutes,
                 panel.cap_kwh)
