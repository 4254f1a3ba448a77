"""Delimited text to a table, and a table's rows to a grid: the two steps that all readers share."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from fedenergy.households.readers.series import Series

OPEN = {".xz": lzma.open, ".gz": gzip.open}
SECONDS_PER_DAY = 86_400


def read_table(path: Path, types: Mapping[str, pa.DataType], delimiter: str = ",", others: pa.DataType | None = None,
               missing: Sequence[str] = ("",)) -> pa.Table:
    """The named columns of a text file with a header, plain or compressed (.xz, .gz).

    types    Arrow type of each column to read; a column that the file lacks raises ValueError
    others   type of all further columns, which are then read too; None leaves them out
    missing  spellings of a missing number
    """
    with OPEN.get(path.suffix, open)(path, "rb") as file:
        text = file.read()
    header = text[:text.find(b"\n")].decode("utf-8-sig").strip("\r").split(delimiter)
    if absent := [name for name in types if name not in header]:
        raise ValueError(f"{path.name} has no column {absent[0]!r} (its header: {', '.join(header[:12])})")
    wanted = [name for name in header if name in types or others is not None]
    options = csv.ConvertOptions(column_types={name: types.get(name, others) for name in wanted},
                                 include_columns=wanted, null_values=list(missing), strings_can_be_null=False)
    try:
        return csv.read_csv(io.BytesIO(text), csv.ReadOptions(use_threads=False, block_size=1 << 24),
                            csv.ParseOptions(delimiter=delimiter), options)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name} cannot be read: {error}; every row needs {', '.join(wanted[:4])}"
                         f"{', ...' if len(wanted) > 4 else ''}, with numbers as 1234.5") from None


def numbers(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    """(rows, len(names)) float64 of numeric columns; NaN where missing."""
    return np.stack([table[name].to_numpy().astype(np.float64) for name in names], axis=1)


def seconds(column: pa.ChunkedArray) -> np.ndarray:
    """(rows,) int64 seconds since 1970 on the source's own clock, of a timestamp column of any resolution."""
    return column.cast(pa.timestamp("ns")).to_numpy().astype("M8[ns]").astype(np.int64) // 1_000_000_000


def on_grid(when: np.ndarray, values: np.ndarray, names: Sequence[str], step_minutes: int, what: str,
            metered: int | None = None) -> Series:
    """Rows in any order to a regular series over the whole days that they touch.

    when    (rows,) seconds since 1970, beginning of each step
    values  (rows, n) per step
    what    the home's or set's name, for messages
    metered the first columns that are consumption: never negative, and all missing where one is (None: all columns);
            the others (temperatures) may be negative
    A row off the grid is set aside and counted (off_grid); of rows with one time the first in the file stays and the
    others are counted (duplicates). No rows, a negative or an infinite value raise ValueError.
    """
    if not len(when):
        raise ValueError(f"{what}: no readings at all")
    step = step_minutes * 60
    start = int(when.min()) // SECONDS_PER_DAY * SECONDS_PER_DAY
    steps = -(-(int(when.max()) + 1 - start) // SECONDS_PER_DAY) * (SECONDS_PER_DAY // step)
    slot, rest = np.divmod(when - start, step)
    off = rest != 0
    first = np.unique(slot[~off], return_index=True)[1]
    rows = np.flatnonzero(~off)[first]
    extra = np.bincount(slot[~off], minlength=steps) - 1
    grid = np.full((steps, len(names)), np.nan)
    grid[slot[rows]] = values[rows]
    use = grid[:, :metered]
    _refuse_impossible(use, names, start, step, what)
    gone = np.isnan(use).any(axis=1)
    use[gone] = np.nan
    counts = {"missing_readings": gone.astype(np.int32),
              "duplicates": np.maximum(extra, 0).astype(np.int32),
              "off_grid": np.bincount(slot[off], minlength=steps).astype(np.int32)}
    return Series(np.datetime64(start // 60, "m"), step_minutes, tuple(names), grid, counts)


def _refuse_impossible(grid: np.ndarray, names: Sequence[str], start: int, step: int, what: str) -> None:
    bad = np.argwhere((grid < 0) | np.isinf(grid))
    if len(bad):
        row, column = map(int, bad[0])
        raise ValueError(f"{what}: {names[column]} = {grid[row, column]:g} at {np.datetime64(start + row * step, 's')};"
                         " consumption is finite and not negative: mark bad readings as missing, net exports out first")
