"""The records of a study: read once, cut down to what is tested, with the masks that every method shares."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedenergy import imputation as imp
from fedenergy.ids import digest, stream
from fedenergy.imputation import series
from fedenergy.imputation.masks import RATES
from simulations.objectives.settings import SUFFIX, Condition

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

RUNS = "uci_household/missing_runs.csv"
KINDS = {"random": imp.points, "block": imp.blocks, "outage": imp.outage}
SEED = 0                # of test masks and test windows: the same for every method and training seed


@dataclass(frozen=True, eq=False)
class Set:
    """A data set as a study uses it. conditions: {condition: (n, T, D) True where observed}; absent: condition -> why;
    mark: digest of the training and validation windows; tested: {condition: digest of test windows, truth and mask}."""

    records: series.Records
    conditions: dict[Condition, np.ndarray]
    absent: dict[Condition, str]
    mark: str
    tested: dict[Condition, str]

    @property
    def train(self) -> imp.Windows:
        return self.records.train

    @property
    def home_windows(self) -> int:
        """Training windows of one home (transformer, sensor)."""
        reading = self.records.reading
        return len(self.train) if reading.one_unit else -(-len(self.train) // len(reading.series))


def conditions(study: Objectives) -> list[Condition]:
    """Every pattern and rate, then the suffixes."""
    found: list[Condition] = []
    for pattern in study.patterns:
        found += [(pattern, 0.0)] if pattern == "real outages" else [(pattern, rate) for rate in study.rates]
    return found + [(SUFFIX, h) for h in study.horizons]


def length_of(study: Objectives, dataset: str) -> int:
    return study.window_electricity if dataset.startswith("electricity") else study.window


def batch_of(study: Objectives, dataset: str) -> int:
    return study.batch_electricity if dataset.startswith("electricity") else study.batch


def load(study: Objectives, dataset: str, data: str) -> Set:
    """FileNotFoundError where the data set is absent."""
    rows = {"household": study.household_rows, "electricity": study.electricity_rows,
            "electricity-369": study.electricity_rows}.get(dataset, 0)
    reading = series.read(dataset, data or None, study.channels, rows)
    records = series.records(reading, length_of(study, dataset))
    if 0 < study.test_windows < len(records.test):
        chosen = np.sort(stream(SEED, "test windows", "", dataset).permutation(len(records.test))[:study.test_windows])
        records = replace(records, test=records.test.take(chosen), truth=records.truth[chosen])
    masks, absent = {}, {}
    for condition in conditions(study):
        try:
            mask = mask_of(condition, data, 1440 // reading.steps_per_day)
            masks[condition] = mask.observed(len(records.test), records.test.length, records.test.channels)
        except FileNotFoundError as error:
            absent[condition] = f"data absent ({Path(str(error).split(':')[0]).name})"
        except ValueError as error:
            absent[condition] = str(error)
    tested = {condition: _mark(records.test.values, records.truth, mask) for condition, mask in masks.items()}
    return Set(records, masks, absent, _mark(records.train.values, records.valid.values), tested)


def _mark(*arrays: np.ndarray) -> str:
    """The same text for the same arrays, NaN included."""
    parts = b"".join(np.ascontiguousarray(np.nan_to_num(x, nan=-1e300)).tobytes() for x in arrays)
    return digest(b"fe.windows.1", parts, 8).hex()


def mask_of(condition: Condition, data: str, step_minutes: int) -> imp.Masks:
    """The test masks of a condition."""
    pattern, number = condition
    if pattern == SUFFIX:
        return imp.suffix(int(number), SEED)
    if pattern in KINDS:
        return KINDS[pattern](number, seed=SEED)
    with open(Path(data or ".") / RUNS, encoding="utf-8") as file:
        minutes = [int(row["minutes"]) for row in csv.DictReader(file)]
    return imp.runs([-(-m // step_minutes) for m in minutes], SEED)


def training_masks(kind: str) -> imp.Masks:
    """The distribution of training masks: all three patterns mixed, or one of them; 10 to 50 %."""
    return imp.mixed(*(make(RATES) for make in KINDS.values())) if kind == "mixed" else KINDS[kind](RATES)
