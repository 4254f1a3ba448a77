"""The kinds of query that need no model: what each releases, in which unit, within which public bound. Pure functions.

General (cheap): total, top, peak_hour, trend. Specific (costly): elasticity, incentive; appliances (SHAP) is
explain/summary.py. Classes as in the HXAI source, section IV-E (papers/hxai.zh.txt: trends, peak shape and the dominant
category against appliance diagnosis, behavioural elasticity and the evaluation of incentives); the definitions and the
bounds are ours, since the source states none.

Guarantee of every kind: whatever the record holds, the box rounds the summary to the grid and clips it to the kind's
own l1 bound C, so that two records of one home are at most 2 C apart (`Laplace(C).sensitivity()`); C is public.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from fedenergy import ids
from fedenergy.box.world import KindSpec
from fedenergy.households.household import MINUTES_PER_DAY, Household

HOURS = 24
TOTAL_KWH_PER_DAY = 20.0     # twice the median of Low Carbon London's homes (public data), and 8 of 10 of them fit
TREND_KWH_PER_DAY = 5.0      # a quarter of it
PER_DEGREE_KWH = 1.0         # electric heating adds some 2 kWh a day per degree; the median simulated home .3, 9 of 10 fit
PRICE_RESPONSE = 0.1         # of the total bound: the short-run price elasticity that tariff.py assumes


@dataclass(frozen=True)
class Measures:
    """The public arguments of these kinds: a `[task.measures]` table of a config.

    clips       kind -> C in the kind's unit, instead of its default; top and peak_hour have C = 1 by definition
    peak_hours  clock hours [from, to) of the peak, for incentive
    feature     the household's feature that elasticity answers to (public weather), per unit of it
    prices      p/kWh of every step of the record: elasticity answers to them instead, per doubled price. A tariff that
                is the same every day cannot be told from habit and is refused (tariff.read_dtou gives a dynamic one)
    discount, sigma   of the offer that incentive evaluates: tariff.PeakDiscount
    Errors: ValueError naming the argument, its value and the rule.

    >>> Measures(clips={"total": 40}).clip("total"), Measures().clip("peak_hour")
    (40.0, 1.0)
    """

    clips: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    peak_hours: tuple[int, int] = (16, 20)
    feature: str = "outdoor_temperature"
    prices: tuple[float, ...] = ()
    discount: float = 0.2
    sigma: float = 0.07

    def __post_init__(self) -> None:
        clips = dict(self.clips)
        for kind, value in clips.items():
            if kind not in FREE_CLIPS:
                raise ValueError(f"measures: clips name {kind!r}: they set the bound of {', '.join(FREE_CLIPS)}"
                                 + (" (that of appliances is the task's own clip)" if kind == "appliances" else ""))
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
                raise ValueError(f"measures: the clip of {kind} = {value!r} is not a finite bound above 0")
        object.__setattr__(self, "clips", tuple(sorted((kind, float(value)) for kind, value in clips.items())))
        hours = tuple(self.peak_hours)
        if len(hours) != 2 or not all(type(hour) is int for hour in hours) or not 0 <= hours[0] < hours[1] <= HOURS \
                or hours == (0, HOURS):
            raise ValueError(f"measures: peak_hours = {list(hours)} are not clock hours [from, to) within a day and "
                             "shorter than it, such as [16, 20]")
        object.__setattr__(self, "peak_hours", hours)
        prices = tuple(map(float, self.prices))
        if not all(map(math.isfinite, prices)) or (prices and not math.fsum(prices) > 0):
            raise ValueError("measures: prices are finite p/kWh with a mean above 0, one for every step of the record")
        object.__setattr__(self, "prices", prices)
        for name, most in (("discount", 1.0), ("sigma", 10.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
                raise ValueError(f"measures: {name} = {value!r} is not a number above 0 and below {most:g}")
        if not isinstance(self.feature, str):
            raise ValueError(f"measures: feature = {self.feature!r} is not the name of a feature")

    @classmethod
    def of(cls, given: Measures | Mapping[str, Any]) -> Measures:
        """Measures from a config's table; unknown keys raise ValueError."""
        if isinstance(given, Measures):
            return given
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                raise ValueError(f'measures has no argument "{key}" (it takes: {", ".join(known)})'
                                 + (f'. Did you mean "{near[0]}"?' if near else ""))
        return cls(**given)

    def identity(self) -> dict[str, Any]:
        """What differs from the defaults, JSON values only; prices as their digest (a year of them is long)."""
        found = {field.name: getattr(self, field.name) for field in fields(self)
                 if getattr(self, field.name) != field.default}
        if "prices" in found:
            found["prices"] = ids.digest(b"fe.prices.1", self.prices).hex()
        return found | ({"clips": dict(self.clips)} if self.clips else {})

    def clip(self, kind: str) -> float:
        """C of a kind, in its unit; public."""
        given = dict(self.clips)
        if kind in given:
            return given[kind]
        if kind == "incentive":  # what a home moves is at most this share of all it uses, whatever its shape
            return self.clip("total") * (1 - (1 + self.discount) ** -self.sigma)
        if kind == "elasticity" and self.prices:
            return PRICE_RESPONSE * self.clip("total")
        return DEFAULT_CLIPS[kind]

    def spec(self, kind: str, channels: tuple[str, ...]) -> KindSpec:
        """Coordinates, unit and bound of a kind, for a population with these channels.

        >>> Measures().spec("top", ("Fridge", "Oven"))
        KindSpec(coordinates=('Fridge', 'Oven'), unit='homes', clip=1.0)
        """
        names = {"total": ("total",), "trend": ("trend",), "peak_hour": HOUR_NAMES}.get(kind, tuple(channels))
        unit = UNITS[kind]
        if kind == "elasticity":
            unit = "kWh/day per doubled price" if self.prices else f"kWh/day per unit of {self.feature}"
        return KindSpec(names, unit, self.clip(kind))

    def check(self, kind: str, steps: int, step_minutes: int, feature_names: tuple[str, ...] | None = None) -> None:
        """ValueError where a population of `steps` steps cannot answer the kind. feature_names None: not known."""
        if kind != "elasticity":
            return
        if not self.prices:
            if feature_names is not None and self.feature not in feature_names:
                raise ValueError(f"elasticity: the homes have no feature {self.feature!r} (they have: "
                                 f"{', '.join(feature_names) or 'none'}): name another, or give prices")
            return
        if len(self.prices) < steps:
            raise ValueError(f"elasticity: {len(self.prices)} prices for a record of {steps} steps: give one for each")
        if not _varies(np.array(self.prices[:steps]), MINUTES_PER_DAY // step_minutes):
            raise ValueError("elasticity: the prices are the same every day, so the answer to them cannot be told from "
                             "habit: give a dynamic tariff, or ask for the answer to a feature (weather)")

    def summary(self, kind: str, household: Household, rows: tuple[int, int]) -> np.ndarray:
        """The noise-free, unclipped summary (d,) of a kind: never leaves the box.

        rows  (first, last) steps of the record, half-open. Missing readings add nothing.
        """
        return SUMMARIES[kind](self, household, slice(rows[0], min(rows[1], household.total.shape[0])), rows)


def total(measures: Measures, household: Household, rows: slice, asked: tuple[int, int]) -> np.ndarray:
    """(1,) kWh a day: the window's energy over its days; C = 20. A window of n days used n times as much.

    A home that uses more counts as C, so the sum over a zone is biased downwards by what such homes use above C.
    """
    return np.array([np.nansum(household.total[rows])]) / _days(household, asked)


def top(measures: Measures, household: Household, rows: slice, asked: tuple[int, int]) -> np.ndarray:
    """(d,) 1 at the category (channel) that used most in the window, else 0; C = 1, so nothing is ever clipped.

    Under trust local it is released by noisy max (privacy/noisy_max.py), else as one-hot votes with Laplace noise.
    A window without any use gives zeros; of two equal categories the first one counts.
    """
    used = np.nansum(household.readings[rows], axis=0)
    votes = np.zeros(used.size)
    if used.max() > 0:
        votes[int(np.argmax(used))] = 1.0
    return votes


def peak_hour(measures: Measures, household: Household, rows: slice, asked: tuple[int, int]) -> np.ndarray:
    """(24,) the share of the home's energy in each clock hour; they add up to 1, so C = 1 and nothing is clipped.

    The sum over n homes divided by n is the zone's mean shape, each home counting alike. Steps longer than an hour
    count in the hour in which they begin.
    """
    used = np.bincount(_hours(household, rows), np.nan_to_num(household.total[rows]), minlength=HOURS)
    whole = used.sum()
    return used / whole if whole > 0 else used


def trend(measures: Measures, household: Household, rows: slice, asked: tuple[int, int]) -> np.ndarray:
    """(1,) kWh a day: mean daily use in the second half of the window minus that in the first; C = 5.

    Halves of whole days, a middle day left out; means over the readings that are there. 0 where a half has none, and
    for a window of one day.
    """
    per_day = household.steps_per_day
    days = (rows.stop - rows.start) // per_day
    half = days // 2 * per_day
    if not half:
        return np.zeros(1)
    first, second = household.total[rows][:half], household.total[rows][days * per_day - half:days * per_day]
    if np.isnan(first).all() or np.isnan(second).all():
        return np.zeros(1)
    return np.array([np.nanmean(second) - np.nanmean(first)]) * per_day


def elasticity(measures: Measures, household: Household, rows: slice, asked: tuple[int, int]) -> np.ndarray:
    """(d,) kWh a day that each channel adds per unit of a public signal; C = 1 per degree, 2 per doubled price.

    Least squares of the channel's use on the signal, both freed of the mean of their time of day, so that habit (which
    follows the clock, as do prices and temperatures) is no response. Divided by a zone's total in kWh a day, the answer
    to a doubled price is its price elasticity. 0 where the signal never differs between days. Raises ValueError where
    the home lacks the signal.
    """
    signal = _signal(measures, household, rows)
    slot = np.arange(signal.size) % household.steps_per_day
    slopes = np.zeros(len(household.channels))
    for k, use in enumerate(household.readings[rows].T):
        known = ~(np.isnan(use) | np.isnan(signal))
        if not known.any():
            continue
        moved, answered = (_without_means(values[known], slot[known]) for values in (signal, use))
        spread = float(moved @ moved)
        if spread > 1e-12 * float(np.square(signal[known]).sum()):
            slopes[k] = float(moved @ answered) / spread
    return slopes * household.steps_per_day


def incentive(measures: Measures, household: Household, rows: slice, asked: tuple[int, int]) -> np.ndarray:
    """(d,) kWh a day that each channel would move out of the peak under the public discount; C: see Measures.clip.

    The home's own peak share w gives its price ratio R = 1 + D / w, and each channel moves 1 - R^(-sigma) of its peak
    energy (tariff.PeakDiscount). Rises with w: at most 1 - (1 + D)^(-sigma) of all
    that the home uses, hence C from the bound of total: who is within that one is not clipped here.
    """
    hour = _hours(household, rows)
    peak = (hour >= measures.peak_hours[0]) & (hour < measures.peak_hours[1])
    whole = float(np.nansum(household.total[rows]))
    within = float(np.nansum(household.total[rows][peak]))
    if not within > 0:
        return np.zeros(len(household.channels))
    moved = 1 - (1 + measures.discount * whole / within) ** -measures.sigma
    return np.nansum(household.readings[rows][peak], axis=0) * moved / _days(household, asked)


def _days(household: Household, rows: tuple[int, int]) -> float:
    return (rows[1] - rows[0]) / household.steps_per_day


def _hours(household: Household, rows: slice) -> np.ndarray:
    """Clock hour in which each step begins."""
    start = int(household.start.astype("datetime64[m]").astype(np.int64))
    return (start + np.arange(rows.start, rows.stop) * household.step_minutes) // 60 % HOURS


def _signal(measures: Measures, household: Household, rows: slice) -> np.ndarray:
    if measures.prices:
        prices = np.array(measures.prices[rows])
        if prices.size < rows.stop - rows.start:
            raise ValueError(f"{len(measures.prices)} prices for rows up to {rows.stop}: give one for every step")
        return prices / prices.mean()
    if household.features is None or measures.feature not in household.feature_names:
        raise ValueError(f"household {household.id} has no feature {measures.feature!r}")
    return household.features[rows, household.feature_names.index(measures.feature)]


def _without_means(values: np.ndarray, slot: np.ndarray) -> np.ndarray:
    """Values less the mean of their slot."""
    counts = np.maximum(np.bincount(slot), 1)
    return values - (np.bincount(slot, values) / counts)[slot]


def _varies(prices: np.ndarray, per_day: int) -> bool:
    """Whether any step of the day has different prices on different days."""
    moved = _without_means(prices, np.arange(prices.size) % per_day)
    return float(np.abs(moved).max()) > 1e-9 * float(np.abs(prices).max())


Summary = Callable[[Measures, Household, slice, tuple[int, int]], np.ndarray]
HOUR_NAMES = tuple(f"{hour:02d}:00" for hour in range(HOURS))
SUMMARIES: Mapping[str, Summary] = MappingProxyType({
    "total": total, "top": top, "peak_hour": peak_hour, "trend": trend, "elasticity": elasticity,
    "incentive": incentive})
KINDS = tuple(SUMMARIES)
DEFAULT_CLIPS: Mapping[str, float] = MappingProxyType({
    "total": TOTAL_KWH_PER_DAY, "top": 1.0, "peak_hour": 1.0, "trend": TREND_KWH_PER_DAY,
    "elasticity": PER_DEGREE_KWH})
FREE_CLIPS = ("total", "trend", "elasticity", "incentive")
UNITS: Mapping[str, str] = MappingProxyType({
    "total": "kWh/day", "top": "homes", "peak_hour": "share", "trend": "kWh/day", "elasticity": "",
    "incentive": "kWh/day"})
DEFAULT = Measures()
