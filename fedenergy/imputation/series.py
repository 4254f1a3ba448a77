"""Series that imputers are compared on, as records: five sets, their readings, and what may be scored.

The source (objective-conditioning, appendix B) names the sets and leaves readings open: which channels of ETT, how many
sensors of Electricity, which subset of Household. Each choice is an argument here and is said in `note`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedenergy.households.measured import find
from fedenergy.imputation.baselines import linear
from fedenergy.imputation.task import PARTS, Windows, cut, join

OIL, LOADS = (-10.0, 60.0), (-60.0, 60.0)       # ETT: degrees of a transformer's oil; its loads, either way
HOUSE_KW = 12.0                                 # a French home's largest common contract, kVA
ROOM_WH = 1_150.0                               # ten minutes at 30 A and 230 V
ETT = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
FILES = {"etth1": "ett/ETTh1.csv", "ettm1": "ett/ETTm1.csv",
         "household": "uci_household/household_power_consumption.txt",
         "appliances": "uci_appliances/energydata_complete_excel_precision.csv",
         "electricity": "electricity/LD2011_2014.txt", "electricity-369": "electricity/LD2011_2014.txt"}
SENSOR = "MT_369"


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to read a set.

    series         one (t, D) array per series, original units; gaps inside are interpolated, those at the edges cut off
    scored         (t, D) bool each: False where the value was interpolated, which no error may count
    test           the series whose last part is tested (Electricity trains on all sensors and tests one)
    limits         public limits, one pair or a pair per channel; None where none are known
    one_unit       True: every record is of one home or transformer, so that no household statement is left
    """

    name: str
    series: tuple[np.ndarray, ...]
    scored: tuple[np.ndarray, ...]
    steps_per_day: int
    first_step: int
    unit: str
    limits: tuple | None
    note: str
    test: int = 0
    one_unit: bool = True


@dataclass(frozen=True, eq=False)
class Records:
    """Training, validation and test windows of a reading.

    truth  (n, T, D) values of the test windows that may be scored: NaN where the reading interpolated
    """

    reading: Reading
    train: Windows
    valid: Windows
    test: Windows
    truth: np.ndarray


def read(name: str, data: str | Path | None = None, channels: str = "OT", rows: int = 0) -> Reading:
    """A set by name: etth1, ettm1, household, appliances, electricity (all sensors) or electricity-369 (one alone).

    data      folder of data sets (else $FEDENERGY_DATA)
    channels  of ETT: "OT" alone (the source's errors exceed what other channels can give) or "all" seven
    rows      0 all; else the first so many steps (the source uses a subset of Household and does not say which)
    Raises FileNotFoundError where the file is absent, ValueError for an unknown name or a file of another kind.
    """
    if name not in FILES:
        raise ValueError(f"data set {name!r} is unknown (takes: {', '.join(FILES)})")
    if channels not in ("OT", "all"):
        raise ValueError(f"channels = {channels!r} is unknown (takes: OT, all)")
    if rows < 0:
        raise ValueError(f"rows = {rows} is below 0: 0 takes all")
    path = Path(find(data, [FILES[name]], name))
    return _READERS[name](name, path, channels, rows)


def present(name: str, data: str | Path | None = None) -> bool:
    """Whether the set's file is there."""
    try:
        find(data, [FILES[name]], name)
    except FileNotFoundError:
        return False
    return True


def records(reading: Reading, length: int = 96, parts: tuple[float, float, float] = PARTS) -> Records:
    """Windows without overlap of every series, split by time; the test windows are the tested series' own."""
    split, truth = ([], [], []), None
    for k, (series, scored) in enumerate(zip(reading.series, reading.scored)):
        n = len(series)
        low, high = (int(n * share + 1e-6) for share in (parts[0], parts[0] + parts[1]))    # 0.7 * 1440 is below 1008
        for part, a, b in zip(split, (0, low, high), (low, high, n)):
            if part is split[2] and k != reading.test:
                continue
            if b - a < length:
                raise ValueError(f"{reading.name}: {b - a} steps hold no window of {length}: take more rows")
            part.append(cut(series[a:b], length, None, reading.steps_per_day, reading.first_step + a))
        if k == reading.test:
            kept = cut(np.where(scored[high:], series[high:], np.nan), length, None, reading.steps_per_day)
            truth = kept.values
    return Records(reading, *(join(part) for part in split), truth)


def filled(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """(series without its empty edges and with straight lines over its inner gaps, where it was measured, steps cut off
    at the beginning) of a (t, D) series with NaN.

    >>> series, measured, first = filled(np.array([[np.nan], [1.0], [np.nan], [3.0]]))
    >>> series[:, 0].tolist(), measured[:, 0].tolist(), first
    ([1.0, 2.0, 3.0], [True, False, True], 1)
    """
    whole = np.flatnonzero(np.isfinite(values).all(1))
    if not len(whole):
        raise ValueError("no step of the series has all its values")
    values = values[whole[0]:whole[-1] + 1]
    measured = np.isfinite(values)
    return linear(values[None])[0], measured, int(whole[0])


def _ett(name: str, path: Path, channels: str, rows: int) -> Reading:
    import pandas as pd

    wanted = ["OT"] if channels == "OT" else list(ETT)
    table = pd.read_csv(path, usecols=["date", *wanted])
    values = table[wanted].to_numpy(np.float64)[:rows or None]
    limits = (OIL,) if channels == "OT" else (LOADS,) * 6 + (OIL,)
    return Reading(name, (values,), (np.ones(values.shape, bool),), 24 if name == "etth1" else 96, 0, "°C", limits,
                   "channel OT" if channels == "OT" else "all seven channels; errors pooled over them")


def _household(name: str, path: Path, channels: str, rows: int) -> Reading:
    from fedenergy.households.readers.uci import read_power

    kw = read_power(path).column("total")[:, None] * 60
    values, measured, first = filled(kw)
    values, measured = values[:rows or None], measured[:rows or None]
    said = f"Global_active_power, one minute, {len(values):,} minutes, {int((~measured).sum()):,} of them interpolated"
    return Reading(name, (values,), (measured,), 1440, first % 1440, "kW", ((0.0, HOUSE_KW),), said)


def _appliances(name: str, path: Path, channels: str, rows: int) -> Reading:
    from fedenergy.households.readers.uci import read_appliances

    values, measured, first = filled(read_appliances(path).column("Appliances")[:, None] * 1_000)
    values, measured = values[:rows or None], measured[:rows or None]
    return Reading(name, (values,), (measured,), 144, first % 144, "Wh", ((0.0, ROOM_WH),), "column Appliances, ten minutes")


def _electricity(name: str, path: Path, channels: str, rows: int) -> Reading:
    hourly, sensors, measured = load_diagrams(path)
    use = [k for k in range(len(sensors)) if sensors[k] == SENSOR or (name == "electricity" and hourly[:24 * 31, k].any())]
    if SENSOR not in sensors:
        raise ValueError(f"{path.name} has no sensor {SENSOR}: it is not the set that the source scores")
    hourly, kept = hourly[:rows or None, use], measured[:rows or None]
    series = tuple(np.ascontiguousarray(hourly[:, k:k + 1]) for k in range(len(use)))
    said = (f"{len(use)} sensors that use something in January 2012, one channel" if name == "electricity" else "alone")
    return Reading(name, series, (kept[:, None],) * len(use), 24, 0, "kW", None,
                   f"{SENSOR} tested; trained on {said}; hourly means from 2012", use.index(sensors.index(SENSOR)), False)


def load_diagrams(path: Path) -> tuple[np.ndarray, Sequence[str], np.ndarray]:
    """((hours, sensors) mean kW by hour of 2012-2014, sensor names, (hours,) bool measured) of LD2011_2014.txt.

    The file: `;`, decimal comma, kW of the quarter of an hour that *ends* at the stamp. Its clock has 24 h every day: the
    hour that March skips is zero for all (here interpolated and not measured), the one that October repeats holds two
    hours (here halved).
    """
    import pandas as pd

    table = pd.read_csv(path, sep=";", decimal=",", index_col=0, parse_dates=[0])
    table.index = table.index - pd.Timedelta(minutes=15)
    table = table[table.index >= "2012-01-01"]
    if not len(table) or len(table) % 4 or (np.diff(table.index.to_numpy()) != np.timedelta64(15, "m")).any():
        raise ValueError(f"{path.name}: not whole hours of regular quarters of an hour from 2012 on")
    values = table.to_numpy(np.float64).reshape(len(table) // 4, 4, -1).mean(1)
    hours = table.index[::4]
    sunday = (hours.day_of_week == 6) & (hours.day > 24) & (hours.hour == 1)
    skipped = np.asarray(sunday & (hours.month == 3)) & (values == 0).all(1)
    values[np.asarray(sunday & (hours.month == 10))] /= 2
    values[skipped] = np.nan
    return linear(values[None])[0], [str(name) for name in table.columns], ~skipped


_READERS: dict[str, Callable[[str, Path, str, int], Reading]] = {
    "etth1": _ett, "ettm1": _ett, "household": _household, "appliances": _appliances, "electricity": _electricity,
    "electricity-369": _electricity}
