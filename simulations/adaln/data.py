"""The study's sets: seven channels, overlapping windows split by time, in units of the training part's deviation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedenergy import imputation as imp
from fedenergy.households import cache
from fedenergy.households.archetypes import APPLIANCES
from fedenergy.households.clean import to_steps
from fedenergy.households.measured import find
from fedenergy.households.simulate import simulate_households
from fedenergy.ids import digest, stream
from fedenergy.imputation import series
from simulations.adaln.settings import PARTS, PUBLISHED, TASKS

if TYPE_CHECKING:
    from simulations.adaln_zero import AdaLNZero

POWER = "uci_household/household_power_consumption.txt"
SIMULATED_HOURS = 24 * 120
CHANNELS = 7
# Public (low, high) per channel, from what the instruments can show; the model's unit is a sixth of the width.
HOUSE = ((0.0, 12.0), (0.0, 6.0), (0.0, 6.0), (0.0, 6.0), (0.0, 3.0), (200.0, 260.0), (0.0, 60.0))
LIMITS = {"household": HOUSE, "etth1": (series.LOADS,) * 6 + (series.OIL,), "ettm1": (series.LOADS,) * 6 + (series.OIL,),
          "simulated": ((0.0, 6.0),) * 7}


@dataclass(frozen=True, eq=False)
class Set:
    """A set as the study uses it: windows in original units; mean, sd: (D,) of the training part (uncovered by DP-SGD);
    mark: digest of training and test windows."""

    name: str
    train: imp.Windows
    valid: imp.Windows
    test: imp.Windows
    mean: np.ndarray
    sd: np.ndarray
    note: str
    mark: str = ""

    def units(self, public: bool) -> tuple[np.ndarray, np.ndarray]:
        """(centre, unit) per channel that the model's numbers are in: the training part's mean and deviation, or public."""
        if not public:
            return self.mean, self.sd
        low, high = np.array(LIMITS[self.name]).T
        return (low + high) / 2, (high - low) / 6

    def score_units(self, values: np.ndarray) -> np.ndarray:
        """Original units -> z-scores by the training part: what errors are in, whatever the model's own units."""
        return (values - self.mean) / self.sd


def read(name: str, data: str) -> tuple[np.ndarray, int, str]:
    """((t, 7) original units, steps a day, what it is); NaN where nothing was measured. FileNotFoundError if absent."""
    if name in ("etth1", "ettm1"):
        reading = series.read(name, data or None, "all")
        return reading.series[0], reading.steps_per_day, "all seven channels"
    if name == "household":
        path = find(data or None, [POWER], name)
        hours = cache.arrays("uci-power-hours", [path], {}, lambda: _hours(Path(path)))["values"]
        return hours, 24, "UCI household power by the hour, seven channels, in place of the source's meter"
    home = simulate_households(1, steps=SIMULATED_HOURS, seed=5, archetypes=("family",),
                               ownership=dict.fromkeys(APPLIANCES, 1.0))
    return home.load(0).readings, 24, "a simulated home, seven appliances by the hour"


def _hours(path: Path) -> dict[str, np.ndarray]:
    """Hours of the household set from its first to its last whole one: kWh, then means of kvar, V, A."""
    from fedenergy.households.readers.uci import ELECTRICAL, read_power

    hours = to_steps(read_power(path), 60, ELECTRICAL).values
    present = np.flatnonzero(np.isfinite(hours).all(1))
    return {"values": hours[present[0]:present[-1] + 1]}


def load(study: AdaLNZero, name: str, data: str) -> Set:
    """A set, its test windows thinned to `test_windows` (0: all)."""
    values, steps_per_day, note = read(name, data)
    train, valid, test = imp.split(values, study.length, study.stride, steps_per_day, parts=PARTS)
    part = values[:int(len(values) * PARTS[0])]
    mean, sd = np.nanmean(part, axis=0), np.nanstd(part, axis=0)
    if 0 < study.test_windows < len(test):
        test = test.take(np.sort(stream(0, "test windows", "", name).permutation(len(test))[:study.test_windows]))
    said = f"{note}; {len(values):,} steps; windows of {study.length} every {study.stride}: {len(train):,} train, " \
           f"{len(valid):,} validation, {len(test):,} test"
    parts = b"".join(np.ascontiguousarray(np.nan_to_num(x.values, nan=-1e300)).tobytes() for x in (train, test))
    return Set(name, train, valid, test, mean, np.where(sd > 0, sd, 1.0), said, digest(b"fe.windows.1", parts, 8).hex())


def why_left_out(name: str, data: str) -> str:
    """Why the quick form does not run a set."""
    here = name == "simulated" or series.present(name, data or None)
    return f"not run: {'left out of the quick form' if here else 'data absent'}"


def scaled(windows: imp.Windows, centre: np.ndarray, unit: np.ndarray) -> imp.Windows:
    """Windows in the model's units."""
    return replace(windows, values=(windows.values - centre) / unit)


def training_masks(study: AdaLNZero) -> imp.Masks:
    """One model serves both tasks: points, blocks and outages at 10 to 50 %, and the suffix to forecast."""
    return imp.mixed(imp.points(), imp.blocks(), imp.outage(), imp.suffix(study.horizon))


def least_hidden(study: AdaLNZero, channels: int) -> int:
    """The fewest positions that a training mask hides: the smallest count that a record's loss averages over."""
    return min(round(0.1 * study.length) * channels, round(0.1 * study.length * channels), study.horizon * channels)


def test_masks(study: AdaLNZero, test: imp.Windows) -> dict[str, np.ndarray]:
    """{task: (n, T, D) True where observed}, the same for every model."""
    masks = imp.points(study.missing), imp.suffix(study.horizon)
    return {task: mask.observed(len(test), test.length, test.channels) for task, mask in zip(TASKS, masks)}


def public(study: AdaLNZero, regime: str) -> bool:
    """Whether the model's units are public constants."""
    return study.scaling == "public" or (study.scaling == "by regime" and regime != PUBLISHED)
