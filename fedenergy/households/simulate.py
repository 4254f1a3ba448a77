"""A population of simulated homes, made one at a time from their ids.

A home is events on a one-minute clock (appliances.py), binned to the step asked: the same energy at 1, 15 or 60
minutes. Nothing of any data set is in it; simulations/simulator_vs_london.py judges it against real homes.
"""

from __future__ import annotations

import datetime as dt
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from fedenergy.households.appliances import DAY_DRAWS, home_energy
from fedenergy.households.archetypes import APPLIANCES, ARCHETYPES, OWNERSHIP, Home, draw_home
from fedenergy.households.holidays import HOLIDAYS, day_off, summer_time
from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.occupancy import Days
from fedenergy.households.weather import CLIMATES, SLOT_MINUTES, SLOTS, zone_weather
from fedenergy.ids import stream

FEATURES = ("outdoor_temperature", "irradiance")
_MODEL = 1  # raised whenever the same arguments would give other readings: it is part of every query id
_WATT_MINUTES_PER_KWH = 60_000.0
_HERE = "simulate_households"


@dataclass(frozen=True)
class HomeIds(Sequence):
    """The ids home-000001, home-000002, ... of a population, made when asked."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self.count)))
        if not -self.count <= index < self.count:
            raise IndexError(f"no home at index {index}: the population has {self.count}")
        return f"home-{index % self.count + 1:06d}"


@dataclass(frozen=True)
class SimulatedPopulation:
    """Simulated homes; see simulate_households for the arguments. load(index) depends on the id, not on the count."""

    count: int
    steps: int = 744
    seed: int = 0
    step_minutes: int = 60
    start: str = "2013-01-07"
    channels: tuple[str, ...] = APPLIANCES
    archetypes: Mapping[str, float] = field(default_factory=dict)
    ownership: Mapping[str, float] = field(default_factory=dict)
    climate: str = "london"
    country: str = "GB"
    distinct: int = 0
    name: str = field(default="simulated", init=False)
    unit: str = field(default="household", init=False)

    feature_names = FEATURES  # of every home: the weather

    def __post_init__(self) -> None:
        for argument in ("count", "steps", "seed", "step_minutes", "distinct"):
            value = getattr(self, argument)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{_HERE}: {argument} = {value!r} is not a whole number")
            object.__setattr__(self, argument, int(value))
        for argument in ("count", "steps"):
            if getattr(self, argument) < 1:
                raise ValueError(f"{_HERE}: {argument} = {getattr(self, argument)} is below 1")
        if self.distinct < 0:
            raise ValueError(f"{_HERE}: distinct = {self.distinct} is below 0 (0: every home has readings of its own)")
        if not 1 <= self.step_minutes <= 60 or MINUTES_PER_DAY % self.step_minutes:
            raise ValueError(f"{_HERE}: step_minutes = {self.step_minutes} must be 1 to 60 and divide a day "
                             "(1,440 minutes): 1, 5, 10, 15, 30 or 60, for instance")
        object.__setattr__(self, "start", _minute(self.start))
        channels = (self.channels,) if isinstance(self.channels, str) else tuple(self.channels)
        for channel in channels:
            _known("appliance", channel, APPLIANCES)
        if not channels or len(set(channels)) < len(channels):
            raise ValueError(f"{_HERE}: appliances = {list(channels)} must be one or more names, each once")
        object.__setattr__(self, "channels", channels)
        object.__setattr__(self, "archetypes", _mix(self.archetypes))
        for appliance, share in self.ownership.items():
            _known("appliance", appliance, APPLIANCES)
            if not 0 <= share <= 1:
                raise ValueError(f"{_HERE}: ownership of {appliance} = {share} is not a share between 0 and 1")
        object.__setattr__(self, "ownership", {**OWNERSHIP, **self.ownership})
        _known("climate", self.climate, CLIMATES)
        _known("country", self.country, HOLIDAYS)

    def __len__(self) -> int:
        return self.count

    @property
    def ids(self) -> HomeIds:
        return HomeIds(self.count)

    def source(self, index: int) -> int:
        """Index of the home whose readings a home has: its own, but for populations with `distinct` homes."""
        return index % self.distinct if self.distinct else index

    def load(self, index: int) -> Household:
        """Make the home at that index: the same bytes on every call and in every process."""
        household = self.ids[self.source(index)]
        zone = _zone(self.seed, self.climate, self.country, self.start, self.steps, self.step_minutes)
        rng = stream(self.seed, "household", household)
        home = draw_home(rng, self.archetypes, self.ownership)
        draws = rng.random((zone.days.midnight.size, DAY_DRAWS))
        energy = home_energy(home, zone.days, draws, self.steps, self.step_minutes)
        features = zone.features.copy()
        features[:, 0] += round(home.between("offset", -0.6, 0.6), 2)
        order = [APPLIANCES.index(channel) for channel in self.channels]
        return Household(
            id=self.ids[index], channels=self.channels,
            readings=np.ascontiguousarray(energy[order].T) / _WATT_MINUTES_PER_KWH,
            total=energy.sum(axis=0) / _WATT_MINUTES_PER_KWH,
            start=np.datetime64(self.start, "m"), step_minutes=self.step_minutes,
            features=features, feature_names=FEATURES)

    def home(self, index: int) -> Home:
        """The traits behind a home's readings: archetype, occupants, what it owns (inside view)."""
        household = self.ids[self.source(index)]
        return draw_home(stream(self.seed, "household", household), self.archetypes, self.ownership)

    def identity(self) -> dict[str, Any]:
        """Everything that shapes the readings, without the count, and the simulator's own version."""
        return {"name": self.name, "model": _MODEL, "steps": self.steps, "seed": self.seed, "start": self.start,
                "step_minutes": self.step_minutes, "appliances": list(self.channels),
                "archetypes": dict(self.archetypes), "ownership": dict(self.ownership), "climate": self.climate,
                "country": self.country, **({"distinct": self.distinct} if self.distinct else {})}


def simulate_households(count: int, steps: int = 744, seed: int = 0, *, step_minutes: int = 60,
                        start: str = "2013-01-07", appliances: Iterable[str] = APPLIANCES,
                        archetypes: Mapping[str, float] | Iterable[str] | None = None,
                        ownership: Mapping[str, float] | None = None, climate: str = "london",
                        country: str = "GB", distinct: int = 0) -> SimulatedPopulation:
    """Homes that exist only here, kWh per step for each appliance and for the whole home.

    count         homes; home i is the same in a population of 50 and of 200
    steps         length of the record; a longer record begins with the shorter one
    step_minutes  1 to 60, a divisor of 1,440; a home's energy is the same at every step
    start         local standard time of the first step (UTC for GB); habits follow summer time
    appliances    the explained channels; what is left out stays in the total
    archetypes    names, or name -> weight; None: the default mix of ARCHETYPES
    ownership     appliance -> share of homes, over OWNERSHIP; "Heating" is the share heated by electricity
                  (the others' boilers still use a pump)
    distinct      so many homes are made, and home i has the readings of home i mod distinct, under its own id, agreement
                  and ledger: for populations too large to fit a model in every home. 0: all homes are made
    climate, country  the zone's weather (CLIMATES) and public holidays with summer time (HOLIDAYS)
    Guarantee: readings >= 0, finite, and their sum is below the total, which also holds lights, electronics, standby.
    Errors: ValueError or TypeError naming the argument, its value and the rule.

    >>> homes = simulate_households(3, steps=48, seed=1)
    >>> homes.ids[0], homes.load(0).readings.shape
    ('home-000001', (48, 7))
    """
    mix = {} if archetypes is None else archetypes
    return SimulatedPopulation(count, steps, seed, step_minutes, start, appliances, mix, ownership or {}, climate,
                               country, distinct)


@dataclass(frozen=True)
class _Zone:
    """What all homes share: days with their weather, and the model's features (steps, 2)."""

    days: Days
    features: np.ndarray


@lru_cache(maxsize=4)
def _zone(seed: int, climate: str, country: str, start: str, steps: int, step_minutes: int) -> _Zone:
    begin = dt.datetime.fromisoformat(start)
    first = begin.date() - dt.timedelta(days=1)
    into_day = begin.hour * 60 + begin.minute
    count = 1 + -(-(into_day + steps * step_minutes) // MINUTES_PER_DAY)
    dates = [first + dt.timedelta(days=day) for day in range(count)]
    weather = zone_weather(seed, climate, first, count)
    days = Days(
        midnight=(np.arange(count) - 1) * MINUTES_PER_DAY - into_day,
        off=np.array([day_off(date, country) for date in dates]),
        clock=np.array([60 * summer_time(date, country) for date in dates]),
        week=np.array([max(0, index - date.weekday()) for index, date in enumerate(dates)]),
        holiday_month=np.array([date.month == 8 or (date.month, date.day) > (12, 22) for date in dates]),
        weather=weather)
    middle = (np.arange(steps) + 0.5) * step_minutes + MINUTES_PER_DAY + into_day  # minutes since the first midnight
    slot = (np.arange(count * SLOTS) + 0.5) * SLOT_MINUTES
    seen = [np.interp(middle, slot, values) for values in (weather.temperature, weather.irradiance)]
    return _Zone(days, np.stack(seen, axis=1))


def _minute(start: Any) -> str:
    try:
        moment = dt.datetime.fromisoformat(str(start))
    except ValueError:
        raise ValueError(f'{_HERE}: start = {start!r} is not a date: write "2013-01-07" or '
                         '"2013-01-07T06:00"') from None
    if moment.tzinfo or moment.second or moment.microsecond:
        raise ValueError(f"{_HERE}: start = {start!r} must be local standard time without an offset, "
                         "on a whole minute")
    return moment.isoformat(timespec="minutes")


def _mix(archetypes: Mapping[str, float] | Iterable[str] | str) -> dict[str, float]:
    if isinstance(archetypes, str):
        archetypes = [archetypes]
    archetypes = archetypes if isinstance(archetypes, Mapping) else list(archetypes)
    for name in archetypes:
        _known("archetype", name, ARCHETYPES)
    weights = dict(archetypes) if isinstance(archetypes, Mapping) else {
        name: ARCHETYPES[name].share for name in archetypes}
    weights = weights or {name: kind.share for name, kind in ARCHETYPES.items()}
    mix = {name: float(weights[name]) for name in ARCHETYPES if name in weights}  # one order: equal mixes, equal homes
    if not all(0 <= weight < np.inf for weight in mix.values()) or sum(mix.values()) <= 0:
        raise ValueError(f"{_HERE}: archetypes = {mix} must have weights >= 0, at least one above 0")
    return mix


def _known(kind: str, name: Any, known: Iterable[str]) -> None:
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(str(name), known, 1, 0.5) or [
        item for item in known if item.lower().startswith(str(name).lower()[:3])][:1]
    hint = f' Did you mean "{near[0]}"?' if near else ""
    raise ValueError(f"{_HERE} has no {kind} {name!r} (it has: {', '.join(known)}).{hint}")


