"""The records of the private imputation study: windows to train on and to fill, what may be scored, public limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedenergy import imputation as imp
from fedenergy.households.datasets import london_households
from fedenergy.households.simulate import simulate_households
from fedenergy.ids import stream
from fedenergy.imputation import series

DATASETS = ("london", "etth1", "ettm1", "appliances", "household", "simulated")
MASKS = {"random": imp.points, "block": imp.blocks, "outage": imp.outage}
HALF_HOUR = (0.0, 3.0)          # kWh: 6 kW over half an hour


@dataclass(frozen=True, eq=False)
class Set:
    """truth: values of the test windows, NaN where they must not be scored; kind: see default.KINDS."""

    train: imp.Windows
    test: imp.Windows
    truth: np.ndarray
    limits: tuple[float, float]
    kind: str

    def homes(self) -> int:
        """Homes (transformers) behind the training windows."""
        return len(set(self.train.homes))


def homes_windows(found: dict[str, np.ndarray], days: int, steps_per_day: int) -> tuple[imp.Windows, imp.Windows]:
    """Train and test windows of homes: each home's first 70 % and last 20 %, those with a gap left out."""
    length, parts = days * steps_per_day, ([], [])
    for home, values in found.items():
        count = len(values) // length
        cut = values[:count * length].reshape(count, length)
        for part, rows in zip(parts, (slice(0, int(0.7 * count)), slice(count - int(0.2 * count), count))):
            known = cut[rows][np.isfinite(cut[rows]).all(1)]
            if len(known):
                part.append(imp.Windows(known, steps_per_day, homes=(home,) * len(known)))
    return imp.join(parts[0]), imp.join(parts[1])


def load(name: str, data: str, most: int) -> Set:
    """A set by name; at most so many test windows, drawn once (0: all). FileNotFoundError where its file is absent."""
    if name == "london":
        homes = london_households(data or None, step_minutes=30, days=365, min_present=0.01).series()
        found = _set(*homes_windows({home: s.column("kwh") for home, s in homes.items()}, 2, 48), None, HALF_HOUR, "homes")
    elif name == "simulated":
        homes = simulate_households(100, steps=48 * 120, step_minutes=30, seed=1)
        parts = homes_windows({homes.ids[k]: homes.load(k).total for k in range(len(homes))}, 2, 48)
        found = _set(*parts, None, HALF_HOUR, "homes")
    else:
        reading = series.read(name, data or None)
        records = series.records(reading, 96)
        train = replace(records.train, homes=(name,) * len(records.train))
        found = _set(train, records.test, records.truth, tuple(reading.limits[0]), "other")
    if 0 < most < len(found.test):
        rows = np.sort(stream(0, "test windows", "", name).permutation(len(found.test))[:most])
        found = replace(found, test=found.test.take(rows), truth=found.truth[rows])
    return found


def masks(found: Set, patterns: tuple[str, ...], rates: tuple[float, ...]) -> dict[tuple[str, float], np.ndarray]:
    """{(pattern, rate): (n, T, 1) True where observed}: the same for every method and seed."""
    return {(p, r): MASKS[p](r).observed(len(found.test), found.test.length) for p in patterns for r in rates}


def _set(train: imp.Windows, test: imp.Windows, truth: np.ndarray | None, limits: tuple[float, float], kind: str) -> Set:
    return Set(train, test, test.values if truth is None else truth, limits, kind)
