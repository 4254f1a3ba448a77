"""A population: whose data, loaded lazily by index, and what its privacy unit is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fedenergy.households.household import Household


@runtime_checkable
class Population(Protocol):
    """Households by index. Frozen, cheap to send to a worker; readings are loaded there, one home at a time.

    name      short name for tables ("simulated", "london")
    unit      the privacy unit that a member stands for: "household", "home-month", "window"
    channels  names of the d explained groups, the same for every member
    """

    name: str
    unit: str
    channels: tuple[str, ...]

    def __len__(self) -> int: ...

    @property
    def ids(self) -> Sequence[str]:
        """Household ids in index order; unique."""
        ...

    @property
    def step_minutes(self) -> int: ...

    @property
    def steps(self) -> int:
        """Steps of the longest member, known without loading anything."""
        ...

    def load(self, index: int) -> Household:
        """The household at that index; the same bytes on every call and in every process."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """What the query id says about the data: name and arguments, without the count; JSON values only."""
        ...
