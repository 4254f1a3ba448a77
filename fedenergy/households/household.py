"""A household's record: what a Private Data Box holds, and nothing else may."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

ID_PATTERN = re.compile(r"[a-z0-9_-]{1,64}")
MINUTES_PER_DAY = 1440


def check_household_id(text: str) -> str:
    """Return text if it is a household id ([a-z0-9_-], 1 to 64 characters), else raise ValueError."""
    if not isinstance(text, str) or not ID_PATTERN.fullmatch(text):
        raise ValueError(f"household id {text!r} is not allowed: use 1 to 64 of a-z, 0-9, _ and - (no paths or spaces)")
    return text


@dataclass(frozen=True)
class Household:
    """Readings of one home (or of the window of a series that stands in for one).

    id            its name on every message; charged_to: the home whose ledger pays (itself unless the unit is a window)
    channels      the d explained groups (appliances, day-parts); the same for every member of a population
    readings      (T, d) float64 kWh per step; NaN where missing; 0 for an appliance that the home does not own
    total         (T,) float64 kWh per step: the metered whole; NaN where missing
    start         UTC (or documented local) time of the first step's beginning
    step_minutes  length of a step; divides a day
    features      (T, f) float64 model inputs that are never released (weather, calendar), named in feature_names
    quality       counts of what is wrong with the record: missing, outage_zero, short, ... (inside view)
    """

    id: str
    channels: tuple[str, ...]
    readings: np.ndarray
    total: np.ndarray
    start: np.datetime64
    step_minutes: int
    features: np.ndarray | None = None
    feature_names: tuple[str, ...] = ()
    charged_to: str = ""
    quality: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_household_id(self.id)
        object.__setattr__(self, "charged_to", check_household_id(self.charged_to or self.id))
        steps, groups = self.total.shape[0], len(self.channels)
        if self.readings.shape != (steps, groups):
            raise ValueError(f"household {self.id}: readings have shape {self.readings.shape}, "
                             f"expected ({steps}, {groups})")
        if self.step_minutes < 1 or MINUTES_PER_DAY % self.step_minutes:
            raise ValueError(f"household {self.id}: step_minutes = {self.step_minutes} does not divide a day")
        if self.features is not None and self.features.shape != (steps, len(self.feature_names)):
            raise ValueError(f"household {self.id}: features have shape {self.features.shape}, "
                             f"expected ({steps}, {len(self.feature_names)})")
        for name, values in (("readings", self.readings), ("total", self.total)):
            if np.isinf(values).any():
                raise ValueError(f"household {self.id}: {name} hold an infinite value; mark missing readings with NaN")
            if np.nanmin(values, initial=0.0) < 0:
                raise ValueError(f"household {self.id}: {name} hold a negative consumption ({np.nanmin(values):g} kWh): "
                                 "put what PV feeds in into a channel of its own")

    @property
    def steps_per_day(self) -> int:
        return MINUTES_PER_DAY // self.step_minutes

    @property
    def days(self) -> int:
        """Whole days in the record."""
        return self.total.shape[0] // self.steps_per_day
