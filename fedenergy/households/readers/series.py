"""A metered series on a regular grid: what every reader returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

COUNTS = ("missing_readings", "duplicates", "off_grid", "outage_zero", "stuck", "scaled_steps")


@dataclass(frozen=True)
class Series:
    """One home's columns on a grid that begins at a midnight and holds whole days.

    start         beginning of the first step, on the source's own clock (the reader says which)
    step_minutes  length of a step; divides a day
    names         the n columns
    values        (T, n) float64, per step (kWh for energy columns); NaN where missing
    readings      source readings that make a step (60 for an hour of minutes)
    counts        what was found in each step, (T,) integers by name, absent = none:
                  missing_readings (absent in the source), duplicates and off_grid (source rows set aside),
                  outage_zero and stuck (readings taken for an outage, now NaN), scaled_steps (made from a part
                  of the step's readings)
    """

    start: np.datetime64
    step_minutes: int
    names: tuple[str, ...]
    values: np.ndarray
    counts: Mapping[str, np.ndarray] = field(default_factory=dict)
    readings: int = 1

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(f"series: values have shape {self.values.shape}, expected (steps, {len(self.names)})")
        if 1440 % self.step_minutes or self.values.shape[0] % (1440 // self.step_minutes):
            raise ValueError(f"series: {self.values.shape[0]} steps of {self.step_minutes} minutes are not whole days")
        if unknown := set(self.counts) - set(COUNTS):
            raise ValueError(f"series: unknown count {min(unknown)!r} (known: {', '.join(COUNTS)})")

    def column(self, name: str) -> np.ndarray:
        """(T,) values of one column."""
        return self.values[:, self.names.index(name)]

    def window(self, start: np.datetime64, steps: int) -> Series:
        """The steps from start on; where the series has none, NaN, counted as missing readings."""
        first = int((start - self.start) // np.timedelta64(self.step_minutes, "m"))
        lo, hi = min(max(first, 0), len(self.values)), max(min(first + steps, len(self.values)), 0)
        values = np.full((steps, len(self.names)), np.nan)
        inside = slice(lo - first, max(hi, lo) - first)
        values[inside] = self.values[lo:max(hi, lo)]
        counts = {}
        for name, found in self.counts.items():
            counts[name] = np.zeros(steps, found.dtype)
            counts[name][inside] = found[lo:max(hi, lo)]
        outside = np.ones(steps, bool)
        outside[inside] = False
        if outside.any():
            missing = counts.get("missing_readings", np.zeros(steps, np.int32)).copy()
            missing[outside] += self.readings
            counts["missing_readings"] = missing
        return replace(self, start=start, values=values, counts=counts)

    def totals(self) -> dict[str, int]:
        """Sum of every count over the series."""
        return {name: int(self.counts[name].sum()) if name in self.counts else 0 for name in COUNTS}


def pack(series: Mapping[str, Series]) -> dict[str, np.ndarray]:
    """Flat arrays of a set of series, for the cache; `unpack` gives the set back."""
    flat = {}
    for key, one in series.items():
        flat[f"{key}/start"] = np.asarray(one.start, "M8[m]")
        flat[f"{key}/minutes"] = np.asarray((one.step_minutes, one.readings))
        flat[f"{key}/names"] = np.asarray(one.names)
        flat[f"{key}/values"] = one.values
        flat |= {f"{key}/counts/{name}": found for name, found in one.counts.items() if found.any()}
    return flat


def unpack(flat: Mapping[str, np.ndarray]) -> dict[str, Series]:
    """The set of series that `pack` flattened."""
    fields: dict[str, dict[str, np.ndarray]] = {}
    for path, array in flat.items():
        key, name = path.split("/", 1)
        fields.setdefault(key, {})[name] = array
    return {key: _series(found) for key, found in fields.items()}


def _series(found: Mapping[str, np.ndarray]) -> Series:
    step_minutes, readings = map(int, found["minutes"])
    counts = {name.removeprefix("counts/"): array for name, array in found.items() if name.startswith("counts/")}
    return Series(found["start"][()], step_minutes, tuple(map(str, found["names"])), found["values"], counts, readings)
