"""Months of homes with labelled appliances: Time, Aggregate, and one column per appliance, W, one-minute means.

The form in which DeviceScope republishes REFIT, UK-DALE and IDEAL; names.py reads the file names.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedenergy.households.readers.series import Series
from fedenergy.households.readers.table import numbers, on_grid, read_table, seconds

APPLIANCES = {"Kettle": "Kettle", "Dishwasher": "Dishwasher", "WashingMachine": "Washing Machine",
              "Microwave": "Microwave", "Shower": "Shower"}
KWH_PER_WATT_MINUTE = 1 / 60_000


def read_house(files: Sequence[Path], home: str) -> Series:
    """One home's minutes in kWh: column total, then every canonical appliance that it has, gaps between files NaN.

    Clock: naive local time, as the source; stamps are beginnings. An unknown appliance raises ValueError.
    """
    when, parts = [], []
    for path in files:
        table = read_table(path, {"Time": pa.timestamp("ns"), "Aggregate": pa.float64()}, others=pa.float64())
        labelled = [name for name in table.column_names if name not in ("Time", "Aggregate")]
        for name in labelled:
            if name not in APPLIANCES:
                close = difflib.get_close_matches(name, APPLIANCES, 1)
                raise ValueError(f"{path.name}: unknown appliance {name!r} (known: {', '.join(APPLIANCES)})."
                                 + (f" Did you mean {close[0]!r}?" if close else ""))
        watts = numbers(table, ["Aggregate", *labelled])
        when.append(seconds(table["Time"]))
        parts.append((["total", *(APPLIANCES[name] for name in labelled)], watts * KWH_PER_WATT_MINUTE))
    names = ["total", *(name for name in APPLIANCES.values() if any(name in part[0] for part in parts))]
    values = np.concatenate([_columns(part, values, names) for part, values in parts])
    return on_grid(np.concatenate(when), values, names, 1, home)


def _columns(have: list[str], values: np.ndarray, names: list[str]) -> np.ndarray:
    """(rows, len(names)): the file's columns where they belong; an appliance that it does not label uses 0."""
    placed = np.zeros((len(values), len(names)))
    placed[:, [names.index(name) for name in have]] = values
    return placed
