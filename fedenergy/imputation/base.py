"""Bases: imputers that the diffusion model corrects. At the first step of training the model *is* its base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from fedenergy.imputation.baselines import linear, same_time_of_day

NAMES = ("none", "linear", "daily", "dp_gp")


@runtime_checkable
class Base(Protocol):
    """A filling that a residual model starts from. Window i's filling depends on window i only."""

    name: str
    note: str                  # what it costs, for the privacy statement; "" where it is free

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray) -> np.ndarray:
        """values (n, T, D) original units, read where observed only; time_of_day (n, T) -> (n, T, D)."""


@dataclass(frozen=True, eq=False)
class Cues:
    """What a base knows of windows beyond its filling.

    filling, spread  (n, T, D) original units: what it fills in, and the standard deviation of what is hidden (0 where seen)
    columns          (n, T, k) numbers of order 1 for the network's input
    """

    filling: np.ndarray
    spread: np.ndarray
    columns: np.ndarray


@runtime_checkable
class Guide(Base, Protocol):
    """A base that the network sees more of: the residual is then in units of the root of its standard deviation."""

    columns: int

    def guide(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray,
              homes: Sequence[str] | None = None) -> Cues:
        """Arguments as `fill`, and the home of each window where it is known; reads observed values only."""


def inputs_of(base: Base | None, channels: int) -> int:
    """Input columns that a network has for a base: its filling's channels, and a guide's own."""
    return 0 if base is None else channels + (base.columns if isinstance(base, Guide) else 0)


class Linear:
    """Linear interpolation of the window: free."""

    name, note = "linear", ""

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray) -> np.ndarray:
        return linear(np.where(observed, values, np.nan))


class Daily:
    """The mean of linear interpolation and of the window's other values at the same time of day: free."""

    name, note = "daily", ""

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray) -> np.ndarray:
        seen = np.where(observed, values, np.nan)
        return (linear(seen) + same_time_of_day(seen, time_of_day)) / 2


def base_from(base: str | Base) -> Base | None:
    """A base by name, or one's own object; "none" gives None."""
    if not isinstance(base, str):
        if not isinstance(base, Base):
            raise TypeError(f"base {base!r} has no name, note and fill(values, observed, time_of_day)")
        return base
    if base == "none":
        return None
    if base == "dp_gp":
        raise ValueError("base = \"dp_gp\" is fitted to data and has a cost: pass the fitted object, not its name")
    known = {"linear": Linear, "daily": Daily}
    if base not in known:
        raise ValueError(f"base = {base!r} is unknown (takes: {', '.join(NAMES)})")
    return known[base]()
