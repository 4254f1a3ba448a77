"""The three UCI sets of the explanation studies, each one series: household power, appliances energy, bike sharing.

Energy in kWh per step of the source; further numeric columns as they are. Clocks are naive local time.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from fedenergy.households.readers.series import Series
from fedenergy.households.readers.table import numbers, on_grid, read_table, seconds

LABELS = pa.dictionary(pa.int32(), pa.string())
ELECTRICAL = ("Global_reactive_power", "Voltage", "Global_intensity")
WEATHER = ("season", "holiday", "workingday", "weathersit", "temp", "atemp", "hum", "windspeed")


def read_power(path: Path) -> Series:
    """Individual Household Electric Power Consumption: minutes; columns total and Sub_metering_1..3 in kWh, then
    Global_reactive_power (kvar), Voltage (V), Global_intensity (A). Dates are d/m/yyyy; "?" and blanks are missing."""
    meters = ["Global_active_power", "Sub_metering_1", "Sub_metering_2", "Sub_metering_3", *ELECTRICAL]
    types = {"Date": LABELS, "Time": LABELS} | dict.fromkeys(meters, pa.float64())
    table = read_table(path, types, ";", missing=("", "?"))
    when = _decoded(table["Date"], _day, path) + _decoded(table["Time"], _clock, path)
    values = numbers(table, meters)
    values[:, 0] /= 60        # kW over a minute
    values[:, 1:4] /= 1_000   # Wh
    return on_grid(when, values, ["total", *meters[1:]], 1, path.name, metered=4)


def read_appliances(path: Path) -> Series:
    """Appliances Energy Prediction: ten-minute steps (the set is often called hourly); columns Appliances and lights in
    kWh, then the weather and indoor columns of the file (degC, %, mm Hg, m/s, km)."""
    table = read_table(path, {"date": pa.timestamp("ns"), "Appliances": pa.float64(), "lights": pa.float64()},
                       others=pa.float64())
    indoors = [name for name in table.column_names if name not in ("date", "Appliances", "lights")]
    names = ["Appliances", "lights", *indoors]
    values = numbers(table, names)
    values[:, :2] /= 1_000  # Wh
    return on_grid(seconds(table["date"]), values, names, 10, path.name, metered=2)


def read_bikes(path: Path) -> Series:
    """Bike Sharing, hourly: columns cnt, casual, registered are *rentals*, not kWh; then calendar codes and scaled
    weather. Hours without a rental are absent from the file, and so missing."""
    names = ["cnt", "casual", "registered", *WEATHER]
    table = read_table(path, {"dteday": LABELS, "hr": pa.int64()} | dict.fromkeys(names, pa.float64()))
    when = _decoded(table["dteday"], lambda text: _seconds(datetime.date.fromisoformat(text)), path)
    return on_grid(when + table["hr"].to_numpy() * 3_600, numbers(table, names), names, 60, path.name, metered=3)


def _decoded(column: pa.ChunkedArray, parse, path: Path) -> np.ndarray:
    """(rows,) int64: each distinct text parsed once."""
    column = column.unify_dictionaries().combine_chunks()
    texts = column.dictionary.to_pylist()
    try:
        found = np.array([parse(text) for text in texts], np.int64)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}; dates are read as d/m/yyyy (power) or yyyy-mm-dd, "
                         "times as hh:mm:ss") from None
    return found[column.indices.to_numpy()]


def _seconds(day: datetime.date) -> int:
    return (day - datetime.date(1970, 1, 1)).days * 86_400


def _day(text: str) -> int:
    day, month, year = map(int, text.split("/"))
    return _seconds(datetime.date(year, month, day))


def _clock(text: str) -> int:
    hour, minute, second = map(int, text.split(":"))
    datetime.time(hour, minute, second)
    return hour * 3_600 + minute * 60 + second
