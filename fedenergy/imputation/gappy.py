"""Homes whose meters drop out, filled inside the box before anything is explained: a population for studies.

The readings are simulated, so the truth under every gap is known; outages hide all channels of a home at once. The imputer
is a dp_gp per channel, fitted to other simulated homes: it has no real home in it and costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from fedenergy.households.appliances import APPLIANCES
from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.simulate import SimulatedPopulation, simulate_households
from fedenergy.ids import stream
from fedenergy.imputation import dp_gp
from fedenergy.imputation.dp_gp import DpGp
from fedenergy.imputation.filling import cut_out, fill_linear
from fedenergy.imputation.task import cut, join

FILLS = ("true", "none", "linear", "imputer", "draw")
# Minutes of the outages of half an hour and more in UCI's Individual Household record (1 home, 2006-2010; CC BY 4.0)
OUTAGE_MINUTES = (33, 38, 43, 47, 70, 83, 891, 2027, 3129, 3305, 3723, 5237, 7226)
TEACHERS, TEACHER_DAYS, TEACHER_SEED, WINDOW_DAYS = 150, 56, 1_000_003, 7
CAP_KW = 12.0            # of one channel: electric heating of a house
OTHER = "other"


@dataclass(frozen=True)
class GappyHomes:
    """Simulated homes with outages; see `fedenergy.simulate_households` for the first five arguments.

    fill            what a box does with its gaps before it explains: "true" (nothing is lost: the oracle), "none" (they stay
                    missing), "linear", "imputer" (the conditional mean of every channel), "draw" (one draw instead of the
                    mean, which keeps the spread of the readings)
    missing         share of every record that is lost, in whole outages; outages end when it is met
    outage_minutes  lengths that outages are drawn from; each is rounded up to whole steps
    gap_seed        of the outages; they are the same for every fill
    """

    count: int
    steps: int = 744
    seed: int = 0
    step_minutes: int = 60
    appliances: tuple[str, ...] = APPLIANCES
    fill: str = "imputer"
    missing: float = 0.2
    outage_minutes: tuple[int, ...] = OUTAGE_MINUTES
    gap_seed: int = 0

    name = "gappy"
    unit = "household"

    def __post_init__(self) -> None:
        if self.fill not in FILLS:
            raise ValueError(f"gappy homes: fill = {self.fill!r} is unknown (takes: {', '.join(FILLS)})")
        if isinstance(self.missing, bool) or not isinstance(self.missing, int | float) or not 0 <= self.missing < 1:
            raise ValueError(f"gappy homes: missing = {self.missing!r} is not a share within [0, 1)")
        minutes = tuple(self.outage_minutes)
        if not minutes or not all(type(length) is int and length >= 1 for length in minutes):
            raise ValueError(f"gappy homes: outage_minutes = {list(minutes)} are not whole minutes of at least 1")
        object.__setattr__(self, "outage_minutes", minutes)
        object.__setattr__(self, "appliances", tuple(self.appliances))
        self.homes  # noqa: B018 - its own checks

    def __len__(self) -> int:
        return self.count

    @cached_property
    def homes(self) -> SimulatedPopulation:
        """The same homes without outages."""
        return simulate_households(self.count, self.steps, self.seed, step_minutes=self.step_minutes,
                                   appliances=self.appliances)

    @property
    def ids(self) -> Sequence[str]:
        return self.homes.ids

    @property
    def channels(self) -> tuple[str, ...]:
        return self.homes.channels

    @property
    def start(self) -> str:
        return self.homes.start

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(getattr(self.homes, "feature_names", ()))

    def identity(self) -> Mapping[str, Any]:
        return {**self.homes.identity(), "name": self.name, "fill": self.fill, "missing": self.missing,
                "outage_minutes": list(self.outage_minutes), "gap_seed": self.gap_seed}

    def lost(self, index: int) -> np.ndarray:
        """(T,) bool: the steps that an outage hides. At least one step stays."""
        rng = stream(self.gap_seed, "outages", self.ids[index])
        lengths = -(-np.array(self.outage_minutes) // self.step_minutes)
        lost = np.zeros(self.steps, bool)
        wanted = min(round(self.missing * self.steps), self.steps - 1)
        while (left := wanted - int(lost.sum())) > 0:
            length = int(min(rng.choice(lengths), left))
            start = int(rng.integers(0, self.steps - length + 1))
            lost[start:start + length] = True
        return lost

    def load(self, index: int) -> Household:
        """The home as its box has it: with its gaps, or filled."""
        return _loaded(self, index)

    def filled(self, index: int) -> Household:
        """`load`, computed anew."""
        home, lost = self.homes.load(index), self.lost(index)
        if self.fill == "true" or not lost.any():
            return home
        other = np.maximum(home.total - home.readings.sum(axis=1), 0.0)
        seen = np.where(lost[:, None], np.nan, np.column_stack([home.readings, other]))
        filled = seen if self.fill == "none" else fill_linear(seen) if self.fill == "linear" else np.column_stack(
            [self._imputed(model, seen[:, k], home.id) for k, model in enumerate(self._models)])
        return replace(home, readings=np.ascontiguousarray(filled[:, :-1]), total=filled.sum(axis=1),
                       quality={"missing": int(lost.sum())})

    @property
    def _models(self) -> tuple[DpGp, ...]:
        return teachers(self.step_minutes, self.channels)

    def _imputed(self, model: DpGp, values: np.ndarray, household: str) -> np.ndarray:
        """(T,) one channel without gaps. A channel that never runs is not owned: zeros."""
        if not np.nan_to_num(values).any():
            return np.zeros_like(values)
        first = int(np.datetime64(self.start, "m").astype(int)) // self.step_minutes
        clock = (first + np.arange(len(values))) % len(model.mean)
        windows, starts, places = cut_out(values, clock, model.length, len(model.mean), model.phase)
        seen, time = np.isfinite(windows), (starts[:, None] + np.arange(model.length)) % len(model.mean)
        known = np.where(seen, windows, 0.0)
        if self.fill == "imputer":
            found = model.fill(known, seen, time)
        else:
            seed = int(stream(self.gap_seed, "draw", household).integers(2**31))
            found = model.sample(known, seen, time, samples=1, seed=seed)[:, 0]
        values = values.copy()
        for row, (offset, low, high) in enumerate(places):
            values[low:high] = found[row, offset:offset + high - low]
        return values


def gappy_homes(count: int, steps: int = 744, seed: int = 0, *, step_minutes: int = 60,
                appliances: Iterable[str] = APPLIANCES, fill: str = "imputer", missing: float = 0.2,
                outage_minutes: Iterable[int] = OUTAGE_MINUTES, gap_seed: int = 0) -> GappyHomes:
    """Simulated homes with outages, filled in the box: `use = "fedenergy.imputation.gappy:gappy_homes"`.

    >>> homes = gappy_homes(2, steps=96, missing=0.25)
    >>> int(homes.lost(0).sum()), bool(np.isfinite(homes.load(0).total).all())
    (24, True)
    """
    return GappyHomes(count, steps, seed, step_minutes, tuple(appliances), fill, missing, tuple(outage_minutes), gap_seed)


@lru_cache(maxsize=512)
def _loaded(homes: GappyHomes, index: int) -> Household:
    """Filling every channel takes some tenth of a second, and a study loads a home several times."""
    return homes.filled(index)


@lru_cache(maxsize=8)
def teachers(step_minutes: int, channels: tuple[str, ...]) -> tuple[DpGp, ...]:
    """One dp_gp for each channel, and one for what no channel meters: fitted without noise to other simulated homes."""
    slots = MINUTES_PER_DAY // step_minutes
    homes = simulate_households(TEACHERS, steps=TEACHER_DAYS * slots, seed=TEACHER_SEED, step_minutes=step_minutes,
                                appliances=channels)
    parts: list[list] = [[] for _ in (*channels, OTHER)]
    for index in range(TEACHERS):
        home = homes.load(index)
        columns = np.column_stack([home.readings, np.maximum(home.total - home.readings.sum(axis=1), 0.0)])
        for k, column in enumerate(columns.T):
            if column.any():                     # homes that do not own it say nothing about how it is used
                parts[k].append(cut(column, WINDOW_DAYS * slots, steps_per_day=slots))
    return tuple(dp_gp.fit(join(part), np.inf, cap=CAP_KW * step_minutes / 60) for part in parts)
