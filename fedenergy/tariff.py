"""Prices, elasticities and the incentive scenario: what a discount for peak shifting does to load, price and bills.

Loads are kWh per step, prices pence per kWh, bills pounds. All functions are pure. The scenario is that of the HXAI
source (papers/hxai.zh.txt, section VI: a 20 % bill discount, 20 of 50 homes); the source prints no price, so the model
is ours, and for 50 homes the price is a shadow price: nobody is charged it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

NORMAL_ETA, TIGHT_ETA = 2.0, 6.0        # how steeply the price rises with the load: with and without spare capacity
RESPONSIVE, CONTROLLED = 0.07, 0.21     # sigma: people alone; with load control
DTOU_PENCE = {"High": 67.20, "Normal": 11.76, "Low": 3.99}  # Low Carbon London's trial, 2013, p/kWh
FLAT_PENCE = 14.228                                         # its flat tariff, p/kWh


@dataclass(frozen=True)
class InverseDemand:
    """The zone's price as a function of its load: P = P0 (Q / Q0)^eta.

    price_pence  P0 at the load Q0, p/kWh; load_kwh: Q0, kWh per step; eta: 2 in normal times, 6 when supply is tight

    >>> InverseDemand(10.0, 40.0, 2.0).price(np.array([20.0, 40.0, 80.0])).tolist()
    [2.5, 10.0, 40.0]
    """

    price_pence: float
    load_kwh: float
    eta: float = NORMAL_ETA

    def __post_init__(self) -> None:
        for name in ("price_pence", "load_kwh"):
            _positive(f"InverseDemand: {name}", getattr(self, name))
        _number("InverseDemand: eta", self.eta, 0.0, 100.0)

    def price(self, load: np.ndarray | float) -> np.ndarray:
        """p/kWh at a load, kWh per step, of any shape. Loads below 0 or not finite raise ValueError."""
        load = np.asarray(load, np.float64)
        if not np.isfinite(load).all() or (load < 0).any():
            raise ValueError("InverseDemand: a load is finite and >= 0 kWh: fill gaps and net out nothing before")
        return self.price_pence * (load / self.load_kwh) ** self.eta

    def change(self, load_change: float) -> float:
        """Relative change of the price for a relative change of the load: (1 + x)^eta - 1.

        >>> round(InverseDemand(1.0, 1.0, 6.0).change(-0.0161), 3)
        -0.093
        """
        return (1.0 + _number("InverseDemand: load_change", load_change, -1.0, math.inf)) ** self.eta - 1.0


@dataclass(frozen=True)
class PeakDiscount:
    """A discount on the whole bill that a home earns by moving its peak.

    discount    D, share of the bill, 0 to below 1
    peak_share  w, share of the home's use within the peak hours, 0 < w < 1
    sigma       elasticity of the peak: a joining home's peak changes by the factor R^(-sigma)
    payback     share of the moved energy that is used later the same day; 1: all of it
    The discount is D per kWh of the bill but only the peak's kWh earn it, so each of them costs 1 + D / w as much as it
    did: R = 1 + D / w.

    >>> scheme = PeakDiscount(0.2, 0.25, sigma=0.07)
    >>> round(scheme.price_ratio, 3), round(scheme.zone_change(20, 50), 4)
    (1.8, -0.0161)
    """

    discount: float = 0.2
    peak_share: float = 0.25
    sigma: float = RESPONSIVE
    payback: float = 1.0

    def __post_init__(self) -> None:
        _number("PeakDiscount: discount", self.discount, 0.0, 1.0, high_open=True)
        _number("PeakDiscount: peak_share", self.peak_share, 0.0, 1.0, low_open=True, high_open=True)
        _number("PeakDiscount: sigma", self.sigma, 0.0, 10.0)
        _number("PeakDiscount: payback", self.payback, 0.0, 1.0)

    @property
    def price_ratio(self) -> float:
        """R: what a peak kWh costs with the discount at stake, over what it costs without."""
        return 1.0 + self.discount / self.peak_share

    @property
    def home_change(self) -> float:
        """Relative change of a joining home's peak: R^(-sigma) - 1, at most 0."""
        return self.price_ratio ** -self.sigma - 1.0

    def zone_change(self, joining: int, homes: int) -> float:
        """Relative change of the zone's peak when `joining` of `homes` alike homes join."""
        if not 0 <= joining <= homes or homes < 1:
            raise ValueError(f"PeakDiscount: {joining} of {homes} homes cannot join")
        return joining / homes * self.home_change

    def respond(self, load: np.ndarray, peak: np.ndarray, steps_per_day: int) -> np.ndarray:
        """Load of homes that join, (T,) or (T, n) kWh per step; see shift."""
        return shift(load, peak, steps_per_day, self.home_change, self.payback)


def shift(load: np.ndarray, peak: np.ndarray, steps_per_day: int, change: float, payback: float = 1.0) -> np.ndarray:
    """Change the peak steps by a factor 1 + change and spread what was moved evenly over the day's other steps.

    load     (T,) or (T, n) kWh per step, from midnight on; peak: (T,) bool
    change   -1 to 0; payback: share of the moved energy that comes back, the same day
    Guarantee: with payback 1 every day's energy is that of the load, for every home (within rounding).
    Errors: ValueError for a day whose steps are all peak (nowhere to move to), NaN, negative loads, other shapes.

    >>> shift(np.array([1.0, 4.0, 1.0]), np.array([False, True, False]), 3, -0.5).tolist()
    [2.0, 2.0, 2.0]
    """
    load, peak = np.asarray(load, np.float64), np.asarray(peak)
    if peak.dtype != np.bool_ or load.ndim not in (1, 2) or peak.shape != load.shape[:1]:
        raise ValueError(f"shift: load {load.shape} is (T,) or (T, n) and peak {peak.dtype} {peak.shape} is (T,) bool")
    if not np.isfinite(load).all() or (load < 0).any():
        raise ValueError("shift: a load is finite and >= 0 kWh per step: fill gaps before")
    _number("shift: change", change, -1.0, 0.0)
    _number("shift: payback", payback, 0.0, 1.0)
    if not isinstance(steps_per_day, int) or steps_per_day < 1:
        raise ValueError(f"shift: steps_per_day = {steps_per_day!r} is not a whole number of at least 1")
    moved = load.copy()
    for first in range(0, load.shape[0], steps_per_day):
        day = slice(first, first + steps_per_day)
        on = peak[day]
        if not on.any():
            continue
        if on.all():
            raise ValueError(f"shift: every step of day {first // steps_per_day} is peak: there is nowhere to move use")
        taken = -change * load[day][on]
        moved[day][on] = load[day][on] - taken
        moved[day][~on] += payback * taken.sum(axis=0) / (~on).sum()
    return moved


def flat_discount(load: np.ndarray, discount: float, elasticity: float = 0.1) -> np.ndarray:
    """Load of homes whose whole bill falls by a discount tied to nothing: (1 - D)^(-elasticity) times as much.

    elasticity  own-price, > 0; .1 is an assumption. Energy is cheaper at every hour, so the peak rises too.

    >>> flat_discount(np.array([1.0]), 0.2).round(4).tolist()
    [1.0226]
    """
    _number("flat_discount: discount", discount, 0.0, 1.0, high_open=True)
    _number("flat_discount: elasticity", elasticity, 0.0, 10.0)
    return np.asarray(load, np.float64) * (1.0 - discount) ** -elasticity


def scheme_cost(bills: np.ndarray, joined: np.ndarray, discount: float) -> tuple[float, float]:
    """(pounds, share of all bills) that a discount on the bills of those who joined costs.

    bills  (n,) pounds, before the discount; joined: (n,) bool

    >>> scheme_cost(np.full(50, 100.0), np.arange(50) < 20, 0.2)
    (400.0, 0.08)
    """
    bills, joined = np.asarray(bills, np.float64), np.asarray(joined)
    if joined.dtype != np.bool_ or joined.shape != bills.shape or not bills.sum() > 0:
        raise ValueError("scheme_cost: bills (n,) have a sum above 0 and joined is (n,) bool")
    _number("scheme_cost: discount", discount, 0.0, 1.0)
    cost = discount * float(bills[joined].sum())
    return cost, cost / float(bills.sum())


def peak_steps(load: np.ndarray, steps_per_day: int, length: int) -> np.ndarray:
    """(T,) bool: the daily window of `length` steps in which the mean day of a zone's load (T,) is largest."""
    load = np.asarray(load, np.float64)
    if load.ndim != 1 or load.size < steps_per_day or not 1 <= length < steps_per_day:
        raise ValueError(f"peak_steps: load {load.shape} holds at least a day of {steps_per_day} steps, and a window "
                         f"of {length} steps is shorter than a day")
    day = load[:load.size // steps_per_day * steps_per_day].reshape(-1, steps_per_day).mean(axis=0)
    sums = np.convolve(day, np.ones(length), "valid")
    first = int(np.argmax(sums))
    step = np.arange(load.size) % steps_per_day
    return (step >= first) & (step < first + length)


@dataclass(frozen=True)
class Outcome:
    """What a zone's load and price were before and after some homes moved their peak.

    before, after          (T,) kWh per step; price_before, price_after: (T,) p/kWh
    peak_change            of the energy within the peak steps, relative
    peak_price_change      of the mean price over the peak steps; highest_price_change: of the highest price at any step
                           (the peak may come back at another hour); spread_change: of the price's standard deviation
    saved_pounds           what the same energy costs less at these prices
    """

    before: np.ndarray = field(repr=False)
    after: np.ndarray = field(repr=False)
    price_before: np.ndarray = field(repr=False)
    price_after: np.ndarray = field(repr=False)
    peak_change: float
    peak_price_change: float
    highest_price_change: float
    spread_change: float
    saved_pounds: float


def compare_loads(before: np.ndarray, after: np.ndarray, peak: np.ndarray, price_pence: float, eta: float) -> Outcome:
    """The outcome for a zone whose load (T,) kWh per step changes; peak (T,) bool.

    price_pence  P0, p/kWh, at the mean load before; eta: see InverseDemand
    """
    before, after = np.asarray(before, np.float64), np.asarray(after, np.float64)
    if before.ndim != 1 or before.shape != after.shape or peak.shape != before.shape or not peak.any():
        raise ValueError(f"compare_loads: loads {before.shape}, {after.shape} and peak {peak.shape} are (T,), and at "
                         "least one step is peak")
    curve = InverseDemand(price_pence, float(before.mean()), eta)
    was, now = curve.price(before), curve.price(after)
    return Outcome(before, after, was, now, float(after[peak].sum() / before[peak].sum() - 1),
                   float(now[peak].mean() / was[peak].mean() - 1), float(now.max() / was.max() - 1),
                   float(now.std() / was.std() - 1), float(bill(before, was) - bill(after, now)))


@dataclass(frozen=True)
class Tariff:
    """A tariff with one price level per step.

    levels  name -> p/kWh; slots: (T,) level name of each step; start: of the first step, local (GMT for London)
    """

    levels: Mapping[str, float]
    slots: np.ndarray = field(repr=False)
    start: np.datetime64
    step_minutes: int = 30

    def __post_init__(self) -> None:
        for name, pence in self.levels.items():
            _number(f"Tariff: level {name}", pence, -1e6, 1e6)
        if unknown := sorted(set(self.slots.tolist()) - set(self.levels)):
            raise ValueError(f"Tariff: slots name the level {unknown[0]!r} (it has: {', '.join(self.levels)})")

    @property
    def pence(self) -> np.ndarray:
        """(T,) p/kWh of each step."""
        found = np.empty(self.slots.shape, np.float64)
        for name, value in self.levels.items():
            found[self.slots == name] = value
        return found

    @property
    def counts(self) -> dict[str, int]:
        """Steps at each level."""
        return {name: int((self.slots == name).sum()) for name in self.levels}

    def bill(self, load: np.ndarray) -> np.ndarray:
        """Pounds for a load (T,) or loads (T, n), kWh per step of the tariff; NaN, another length: ValueError."""
        return bill(load, self.pence)


def bill(load: np.ndarray, pence: np.ndarray | float) -> np.ndarray:
    """Pounds for a load (T,) or (T, n), kWh per step, at a price of (T,) or one p/kWh.

    >>> float(bill(np.array([10.0, 20.0]), np.array([5.0, 10.0])))
    2.5
    """
    load, pence = np.asarray(load, np.float64), np.asarray(pence, np.float64)
    if load.ndim not in (1, 2) or pence.shape not in ((), load.shape[:1]):
        raise ValueError(f"bill: a price {pence.shape} does not fit a load {load.shape}: one per step, or one for all")
    if not np.isfinite(load).all():
        raise ValueError("bill: the load has gaps (NaN): fill them, or bill the steps that are there")
    return np.tensordot(np.broadcast_to(pence, load.shape[:1]), load, axes=1) / 100.0


def read_dtou(path: str | Path, levels: Mapping[str, float] | None = None) -> Tariff:
    """Low Carbon London's dynamic time-of-use tariff: columns TariffDateTime (GMT, half hours) and Tariff (a level).

    levels  p/kWh of each level; None: the trial's
    Errors: ValueError naming the line for other columns, stamps out of step, unknown levels.
    """
    levels = dict(DTOU_PENCE if levels is None else levels)
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"TariffDateTime", "Tariff"} <= set(rows[0]):
        raise ValueError(f"{Path(path).name}: its columns are TariffDateTime and Tariff, with a row per half hour")
    try:
        stamps = np.array([row["TariffDateTime"].strip().replace(" ", "T") for row in rows], "datetime64[m]")
    except ValueError as error:
        raise ValueError(f"{Path(path).name}: a TariffDateTime is no date like 2013-01-01 00:30:00 ({error})") from None
    gaps = np.flatnonzero(np.diff(stamps) != np.timedelta64(30, "m"))
    if gaps.size:
        raise ValueError(f"{Path(path).name}: line {gaps[0] + 3} is not half an hour after the one before")
    slots = np.array([row["Tariff"].strip() for row in rows])
    for line, name in enumerate(slots.tolist(), 2):
        if name not in levels:
            raise ValueError(f"{Path(path).name}: line {line} has the level {name!r} (known: {', '.join(levels)})")
    return Tariff(levels, slots, stamps[0])


def _number(what: str, value: float, low: float, high: float, *, low_open: bool = False,
            high_open: bool = False) -> float:
    sound = not isinstance(value, bool) and isinstance(value, int | float | np.floating) and low <= value <= high
    if not sound or (low_open and value == low) or (high_open and value == high):
        raise ValueError(f"{what} = {value!r} is not a number {'above' if low_open else 'from'} {low:g} "
                         f"{'to below' if high_open else 'to'} {high:g}")
    return float(value)


def _positive(what: str, value: float) -> None:
    if not math.isfinite(_number(what, value, 0.0, math.inf, low_open=True)):
        raise ValueError(f"{what} = {value!r} is not finite")
