"""Records that are already in memory, as a Population of this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedenergy.households.household import Household
from fedenergy.synthesis.intake import Panel


@dataclass(frozen=True, eq=False)
class HeldHomes:
    """Households held by this process. Ray's workers cannot be given them: readings would travel in a pickle."""

    members: tuple[Household, ...] = field(repr=False)

    name = "held"
    unit = "household"
    channels = ("total",)

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("there is no household to start from: give at least one")
        if len({home.step_minutes for home in self.members}) > 1:
            raise ValueError("homes held in memory have steps of different lengths: convert them to one step")

    @classmethod
    def of(cls, homes: Any) -> HeldHomes:
        """Homes of a Panel, an array (N, T) of hourly kWh, or Households. Nothing but their form is looked at: a record that
        is of no use is found out in its own box, which answers zeros."""
        if isinstance(homes, np.ndarray):
            if homes.ndim != 2:
                raise ValueError(f"an array of homes has shape (N, T), not {homes.shape}")
            homes = Panel(tuple(f"home-{i + 1:06d}" for i in range(len(homes))), homes, np.datetime64("2013-01-07"))
        if isinstance(homes, Panel):
            homes = [Household(name, cls.channels, row[:, None], row, homes.start, homes.step_minutes)
                     for name, row in zip(homes.ids, np.asarray(homes.values, np.float64), strict=True)]
        return cls(tuple(sorted(homes, key=lambda home: home.id)))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(home.id for home in self.members)

    @property
    def step_minutes(self) -> int:
        return self.members[0].step_minutes

    @property
    def steps(self) -> int:
        return max(home.total.size for home in self.members)

    @property
    def start(self) -> str:
        return str(np.datetime64(self.members[0].start, "m"))

    def load(self, index: int) -> Household:
        return self.members[index]

    def identity(self) -> Mapping[str, Any]:
        """Name and window: a digest of the readings would tell who knows them."""
        return {"use": "fedenergy.synthesis.held:HeldHomes", "start": self.start, "steps": self.steps,
                "step_minutes": self.step_minutes}

    def __reduce__(self) -> tuple:
        raise TypeError("homes held in memory stay in this process: pass a Population that a worker can load itself, or use "
                        "workers = 0")
