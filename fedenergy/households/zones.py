"""A population dealt out to zones, each with an aggregator of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedenergy.households.household import Household
from fedenergy.households.population import Population


@dataclass(frozen=True, eq=False)
class Zone:
    """The homes of one zone: every `zones`-th home of the population, from the `number`-th on (1, 2, ..., zones).

    >>> from fedenergy.households.simulate import simulate_households
    >>> [list(Zone(simulate_households(5), number, 2).ids) for number in (1, 2)]
    [['home-000001', 'home-000003', 'home-000005'], ['home-000002', 'home-000004']]
    """

    whole: Population
    number: int
    zones: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.zones:
            raise ValueError(f"zone {self.number} of {self.zones}: zones are numbered from 1")
        if self.zones > len(self.whole):
            raise ValueError(f"zones = {self.zones} is more than the {len(self.whole)} homes of {self.whole.name}: "
                             "every zone needs a home")

    def __len__(self) -> int:
        return len(range(self.number - 1, len(self.whole), self.zones))

    def __getattr__(self, name: str) -> Any:  # channels, unit, step_minutes, steps, start, feature_names, excluded
        if name.startswith("__") or name == "whole":
            raise AttributeError(name)
        return getattr(self.whole, name)

    @property
    def name(self) -> str:
        return f"{self.whole.name}/zone-{self.number}"

    @property
    def unit(self) -> str:
        return self.whole.unit

    @property
    def channels(self) -> tuple[str, ...]:
        return self.whole.channels

    @property
    def step_minutes(self) -> int:
        return self.whole.step_minutes

    @property
    def steps(self) -> int:
        return self.whole.steps

    @cached_property
    def ids(self) -> Sequence[str]:
        return tuple(self.whole.ids[self._index(index)] for index in range(len(self)))

    def load(self, index: int) -> Household:
        return self.whole.load(self._index(index))

    def source(self, index: int) -> int:
        """Which readings a home has (fedenergy.simulate_households, `distinct`)."""
        return getattr(self.whole, "source", int)(self._index(index))

    def identity(self) -> Mapping[str, Any]:
        return {**self.whole.identity(), "zone": self.number, "zones": self.zones}

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"no home at index {index}: {self.name} has {len(self)}")
        return self.number - 1 + index * self.zones
