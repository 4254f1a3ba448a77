"""Homes with known habits: populations that are rebuilt anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedenergy import ids
from fedenergy.households.household import Household


@dataclass(frozen=True)
class Habits:
    """Homes of two kinds: even ones use energy in the morning, odd ones in the evening; kWh per hour.

    noise   standard deviation of what cannot be forecast
    silent  indices of homes whose meter read nothing
    """

    count: int = 6
    days: int = 12
    noise: float = 0.05
    silent: tuple[int, ...] = ()

    name = "habits"
    unit = "household"
    channels = ("electricity",)
    step_minutes = 60
    start = "2024-01-01"

    def __len__(self) -> int:
        return self.count

    @property
    def steps(self) -> int:
        return 24 * self.days

    @property
    def ids(self) -> Sequence[str]:
        return [f"h{index}" for index in range(self.count)]

    def load(self, index: int) -> Household:
        draw = ids.stream(7, "habits", f"h{index}")
        hour = np.arange(self.steps) % 24
        peak = 7 if index % 2 == 0 else 19
        total = 0.3 + np.exp(-((hour - peak) ** 2) / 4) + self.noise * np.abs(draw.normal(size=self.steps))
        if index in self.silent:
            total = np.full(self.steps, np.nan)
        return Household(f"h{index}", self.channels, total[:, None], total, np.datetime64(self.start, "m"), 60)

    def identity(self) -> Mapping[str, Any]:
        return {"use": "tests.forecast.helpers:Habits", "days": self.days, "noise": self.noise,
                "silent": list(self.silent)}
