"""Populations of real homes: London, homes with labelled appliances, and windows of the three UCI sets.

A population holds a path and arguments only; readings are parsed where they are needed, once per process, and kept in
the disk cache (cache.py). A member without enough readings is never dropped silently: `excluded` names it and why.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedenergy.households import cache
from fedenergy.households.clean import check_unit, mark_outages, quality_of, to_steps
from fedenergy.households.household import MINUTES_PER_DAY, Household
from fedenergy.households.measured import Cut, MeasuredHomes, check_whole, find
from fedenergy.households.readers.names import by_home
from fedenergy.households.readers.series import Series
from fedenergy.ids import digest

DAY = np.timedelta64(1, "D")
DAY_PARTS = {"Night 0-6": (0, 6), "Morning 6-10": (6, 10), "Day 10-16": (10, 16), "Evening 16-21": (16, 21),
             "Late 21-24": (21, 24)}
STUCK_MINUTES = 60
# The public list of appliances (readers/appliance_house.py): fixed, so that it says nothing about who owns what.
HOUSE_CHANNELS = ("Kettle", "Dishwasher", "Washing Machine", "Microwave", "Shower", "other")


@dataclass(frozen=True)
class LondonHouseholds(MeasuredHomes):
    """London homes over one window; see `london_households`."""

    start: str
    days: int

    name: ClassVar[str] = "london"
    unit: ClassVar[str] = "household"
    channels: ClassVar[tuple[str, ...]] = tuple(DAY_PARTS)
    _source_minutes: ClassVar[int] = 30

    @property
    def steps(self) -> int:
        return self.days * MINUTES_PER_DAY // self.step_minutes

    def files(self) -> tuple[Path, ...]:
        return (Path(self.path),)

    def identity(self) -> Mapping[str, Any]:
        return {"name": "london_households", "step_minutes": self.step_minutes, "start": self.start, "days": self.days,
                "channels": "dayparts", "min_present": self.min_present, "sha256": cache.sha256(self.path)}

    def _reading(self) -> tuple[Any, ...]:
        return (self.step_minutes,)

    @staticmethod
    def parse(files: Sequence[Path], step_minutes: int) -> Mapping[str, Series]:
        # Readers load pyarrow, which a worker with a warm cache can do without.
        from fedenergy.households.readers.lcl import read_lcl

        homes = read_lcl(files[0])
        for home, series in homes.items():
            check_unit(series, "kwh", home)
        return {home: to_steps(series, step_minutes) for home, series in homes.items()}

    def candidates(self) -> Mapping[str, Cut]:
        return {home: Cut(home, np.datetime64(self.start, "m"), self.steps) for home in self.series()}

    def _household(self, name: str, cut: Cut, window: Series) -> Household:
        total = window.column("kwh")
        hour = np.arange(cut.steps) * self.step_minutes // 60 % 24
        part = np.stack([(hour >= lo) & (hour < hi) for lo, hi in DAY_PARTS.values()], axis=1)
        return Household(name, self.channels, np.where(part, total[:, None], 0.0), total, cut.start, self.step_minutes,
                         quality=quality_of(window, total))


@dataclass(frozen=True)
class ApplianceHomes(MeasuredHomes):
    """Months of homes with labelled appliances; see `appliance_homes`."""

    outage_minutes: int
    stuck_minutes: int

    name: ClassVar[str] = "appliance-homes"
    unit: ClassVar[str] = "home-month"
    channels: ClassVar[tuple[str, ...]] = HOUSE_CHANNELS
    _source_minutes: ClassVar[int] = 1

    @property
    def steps(self) -> int:
        return max(cut.steps for cut in self.candidates().values())

    def files(self) -> tuple[Path, ...]:
        return tuple(file for months in _months(self.path).values() for file in months.values())

    def identity(self) -> Mapping[str, Any]:
        listing = {file.name: cache.sha256(file) for file in self.files()}
        return {"name": "appliance_homes", "step_minutes": self.step_minutes, "outage_minutes": self.outage_minutes,
                "stuck_minutes": self.stuck_minutes, "min_present": self.min_present,
                "sha256": digest(b"fe.files.1", listing, 32).hex()}

    def _reading(self) -> tuple[Any, ...]:
        return self.step_minutes, self.outage_minutes, self.stuck_minutes

    @staticmethod
    def parse(files: Sequence[Path], step_minutes: int, outage_minutes: int,
              stuck_minutes: int) -> Mapping[str, Series]:
        from fedenergy.households.readers.appliance_house import read_house

        homes = {}
        for home, months in by_home(files).items():
            series = read_house(list(months.values()), home)
            check_unit(series, "total", home)
            homes[home] = to_steps(mark_outages(series, "total", outage_minutes, stuck_minutes), step_minutes)
        return homes

    def candidates(self) -> Mapping[str, Cut]:
        return {f"{home}-{month}": Cut(home, month.astype("M8[m]"),
                                       int(((month + 1).astype("M8[D]") - month.astype("M8[D]")) // DAY)
                                       * MINUTES_PER_DAY // self.step_minutes)
                for home, months in _months(self.path).items() for month in months}

    def _household(self, name: str, cut: Cut, window: Series) -> Household:
        total = window.column("total")
        labelled = np.zeros((cut.steps, len(self.channels) - 1))
        for k, appliance in enumerate(self.channels[:-1]):
            owned = appliance in window.names
            labelled[:, k] = window.column(appliance) if owned else np.where(np.isnan(total), np.nan, 0.0)
        readings, floored = _with_other(labelled, total)
        return Household(name, self.channels, readings, total, cut.start, self.step_minutes, charged_to=cut.series,
                         quality=quality_of(window, total, floored))


@dataclass(frozen=True)
class UciSet:
    """How one UCI set is found and cut: explained channels, whether their rest is a channel, columns to average."""

    places: tuple[str, ...]
    channels: tuple[str, ...]
    total: str = ""                       # the metered whole; "" where the channels are all there is
    source_minutes: int = 60
    step_minutes: int = 60
    quantity: str = "kWh"
    features: bool = True                 # whether the further columns are given to the model unless asked otherwise


UCI_SETS = {
    "household": UciSet(("uci_household/household_power_consumption.txt",),
                        ("Sub_metering_1", "Sub_metering_2", "Sub_metering_3", "other"), "total", source_minutes=1,
                        features=False),
    "appliances": UciSet(("uci_appliances/energydata_complete.csv",
                          "uci_appliances/energydata_complete_excel_precision.csv"),
                         ("Appliances", "lights"), source_minutes=10, step_minutes=10),
    "bike": UciSet(("uci_bike/hour.csv",), ("casual", "registered"), "cnt", quantity="rentals"),
}


@dataclass(frozen=True)
class UciWindows(MeasuredHomes):
    """Windows of one UCI series; see `uci_windows`."""

    set: str
    window_days: int
    features: bool

    unit: ClassVar[str] = "window"

    @property
    def name(self) -> str:
        return f"uci-{self.set}"

    @property
    def channels(self) -> tuple[str, ...]:
        return UCI_SETS[self.set].channels

    @property
    def quantity(self) -> str:
        return UCI_SETS[self.set].quantity

    @property
    def _source_minutes(self) -> int:
        return UCI_SETS[self.set].source_minutes

    @property
    def steps(self) -> int:
        return self.window_days * MINUTES_PER_DAY // self.step_minutes

    def files(self) -> tuple[Path, ...]:
        return (Path(self.path),)

    def identity(self) -> Mapping[str, Any]:
        return {"name": "uci_windows", "set": self.set, "window_days": self.window_days,
                "step_minutes": self.step_minutes, "min_present": self.min_present, "features": self.features,
                "sha256": cache.sha256(self.path)}

    @property
    def feature_names(self) -> tuple[str, ...]:
        if not self.features:
            return ()
        (series,) = self.series().values()
        kind = UCI_SETS[self.set]
        return tuple(column for column in series.names if column not in (*kind.channels, kind.total))

    def _reading(self) -> tuple[Any, ...]:
        return self.set, self.step_minutes

    @staticmethod
    def parse(files: Sequence[Path], set: str, step_minutes: int) -> Mapping[str, Series]:
        from fedenergy.households.readers import uci

        series = {"household": uci.read_power, "appliances": uci.read_appliances, "bike": uci.read_bikes}[set](files[0])
        if UCI_SETS[set].quantity == "kWh":
            check_unit(series, series.names[0], files[0].name)
        if set == "household":  # it holds no zero total; the one long flat run (400 minutes) is a stuck meter
            series = mark_outages(series, "total", None, STUCK_MINUTES)
        metered = (*UCI_SETS[set].channels, UCI_SETS[set].total)
        series = to_steps(series, step_minutes, [name for name in series.names if name not in metered])
        return {f"uci-{set}": series}

    def candidates(self) -> Mapping[str, Cut]:
        (series,) = self.series().values()
        per_day = MINUTES_PER_DAY // self.step_minutes
        begins_whole = not np.isnan(series.values[0, 0])  # else the first day began before the readings did
        first = 0 if begins_whole else 1
        starts = [series.start + day * DAY for day in range(first, len(series.values) // per_day, self.window_days)]
        return {f"{self.name}-{start.astype('M8[D]')}": Cut(self.name, start, self.steps) for start in starts}

    def _household(self, name: str, cut: Cut, window: Series) -> Household:
        kind, floored = UCI_SETS[self.set], 0
        names = [column for column in self.channels if column in window.names]
        readings = np.stack([window.column(column) for column in names], axis=1)
        total = window.column(kind.total) if kind.total else readings.sum(axis=1)
        if len(names) < len(self.channels):
            readings, floored = _with_other(readings, total)
        extra = self.feature_names
        features = np.stack([window.column(column) for column in extra], axis=1) if extra else None
        return Household(name, self.channels, readings, total, cut.start, self.step_minutes, features, extra,
                         charged_to=cut.series, quality=quality_of(window, total, floored))


@functools.lru_cache(maxsize=8)
def _months(folder: str) -> Mapping[str, Mapping[np.datetime64, Path]]:
    return by_home(sorted(Path(folder).iterdir()))


def _with_other(labelled: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, int]:
    """((T, d) labelled channels and the rest of the total, floored at 0; in how many steps the floor was needed).

    The channels of a step add up to its total, except in the counted steps, where the labelled ones exceed it.
    """
    rest = total - labelled.sum(axis=1)
    floored = rest < -1e-9  # kWh: below that it is rounding, not a meter that disagrees
    return np.column_stack([labelled, np.maximum(rest, 0.0)]), int(floored.sum())


def london_households(data: str | Path | None = None, count: int | None = None, step_minutes: int = 60,
                      start: str = "2013-01-01", days: int = 31, channels: str = "dayparts",
                      min_present: float = 0.5) -> LondonHouseholds:
    """100 real homes of Low Carbon London, 2013, over the window of `days` days from `start`; unit household.

    data         folder of data sets (else $FEDENERGY_DATA) with lcl_london/lcl_2013_100households_long.csv(.xz)
    count        the first so many homes in id order ("mac000002", ...); None takes all
    step_minutes 60 or 30 (the source's) or a longer multiple; an absent half hour makes its hour missing
    channels     "dayparts" only, as the homes have one meter: night 0-6, morning 6-10, day 10-16, evening 16-21, late
                 21-24, by the source's clock (GMT all year, so in summer one hour behind the homes' own); a day-part's
                 channel is the total within its hours and 0 elsewhere
    min_present  homes with a smaller share of the window's steps present are in `excluded`, with the reason
    Values: kWh per step; absent readings are NaN. Zeros stay and are counted (one home has 99.4 % of them).
    Errors: FileNotFoundError; ValueError for bad arguments or a file that is not the table described in readers/lcl.py.
    """
    if channels != "dayparts":
        raise ValueError(f"london_households: channels = {channels!r}; the homes have one meter, so use \"dayparts\"")
    return LondonHouseholds(find(data, ["lcl_london/lcl_2013_100households_long.csv"], "london_households"), count,
                            step_minutes, min_present, _day(start), check_whole("london_households: days", days))


def appliance_homes(data: str | Path | None = None, count: int | None = None, step_minutes: int = 60,
                    outage_minutes: int = 60, stuck_minutes: int = STUCK_MINUTES,
                    min_present: float = 0.5) -> ApplianceHomes:
    """Calendar months of five real homes with labelled appliances (REFIT 2 and 20, UK-DALE 2, IDEAL 65 and 175).

    Unit home-month: "refit-2-2013-10", charged to the home "refit-2": months of one home are one household's data.
    data            folder of data sets (else $FEDENERGY_DATA) with appliance_houses_1min/
    step_minutes    any multiple of a minute that divides a day; NaN where at most half of a step's minutes are present
    outage_minutes  a run of exact zeros of the metered whole of at least this length is an outage that the source
                    filled with 0 (a lived-in home has a base load and never uses 0 for an hour): NaN in all channels,
                    counted as outage_zero, in minutes
    stuck_minutes   likewise a value that repeats exactly for so long (a gap filled with the last reading): stuck
    Channels: the union of the labelled appliances and "other", the metered whole less the labelled ones, floored at 0
    (other_floored counts the steps). An appliance that a home does not label is 0. kWh per step, naive local time.
    """
    check_whole("appliance_homes: outage_minutes", outage_minutes)
    check_whole("appliance_homes: stuck_minutes", stuck_minutes)
    folder = find(data, ["appliance_houses_1min"], "appliance_homes")
    if not _months(folder):
        raise FileNotFoundError(f"appliance_homes: {folder} holds no file named like REFIT_House2_2013-10.csv.gz; "
                                "pass --data DIR or set FEDENERGY_DATA")
    return ApplianceHomes(folder, count, step_minutes, min_present, outage_minutes, stuck_minutes)


def uci_windows(data: str | Path | None = None, set: str = "household", window_days: int = 14, count: int | None = None,
                step_minutes: int | None = None, min_present: float = 0.5,
                features: bool | None = None) -> UciWindows:
    """Windows of one UCI series, which stand in for households as in the explanation study's source; unit window.

    Windows follow one another from the first whole day and do not overlap: "uci-household-2006-12-17", all charged to
    the one underlying series, "uci-household". The last one may be short, and is then excluded or padded with NaN.
    set "household"   1 min, default step 60: Sub_metering_1..3 and other (the rest of Global_active_power), kWh.
                      A step is NaN where at most half of its minutes are present, else its sum is scaled to the whole
                      step (scaled_steps); a total that repeats exactly for an hour is stuck, hence NaN
    set "appliances"  10 min (the default step; the source calls the set hourly: step_minutes=60 gives that):
                      Appliances and lights, kWh; total is their sum. Features: the weather and indoor columns, rv1
                      and rv2 included
    set "bike"        hourly: casual and registered, total cnt, in *rentals*, not kWh (`quantity`). Features: calendar
                      codes and scaled weather. The 165 absent hours are NaN
    features          whether the further columns enter the model; they are released only where a summary's coordinates
                      are "feature_lag". None: yes for appliances and bike; no for household, whose reactive power,
                      voltage and intensity (means) measure the total itself at the same time, so a model that sees them
                      unlagged explains the total by them and by nothing else. With "feature_lag" they are lagged: True
    Errors: as london_households.
    """
    if set not in UCI_SETS:
        raise ValueError(f"uci_windows: set = {set!r} is not one of {', '.join(map(repr, UCI_SETS))}")
    kind = UCI_SETS[set]
    return UciWindows(find(data, kind.places, f"uci_windows {set}"), count,
                      kind.step_minutes if step_minutes is None else step_minutes, min_present, set,
                      check_whole("uci_windows: window_days", window_days),
                      kind.features if features is None else features)


def _day(start: Any) -> str:
    try:
        day = np.datetime64(str(start), "D")
    except ValueError:
        day = np.datetime64("NaT")
    if np.isnat(day) or str(day) != str(start):
        raise ValueError(f'start = {start!r}; use a day as "2013-01-01"')
    return str(day)
