"""Artificial records as files: long or wide CSV, long or wide Parquet, with a page of facts beside them.

Long: home, start, kwh, cluster, size. Wide: home, cluster, size, one column per step. Readings are rounded to .0001 kWh.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.synthesis.attributes import size_names
from fedenergy.synthesis.generate import Synthetic

DECIMALS = 4
FORMATS = ("long-csv", "wide-csv", "long-parquet", "wide-parquet")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True)
class Block:
    """Some artificial records: ids, values (n, T) kWh per step, start, step_minutes, cluster and size (n,), size classes."""

    ids: tuple[str, ...]
    values: np.ndarray
    start: np.datetime64
    step_minutes: int
    cluster: np.ndarray
    size: np.ndarray
    sizes: int = 3

    @classmethod
    def of(cls, fake: Synthetic) -> Block:
        return cls(fake.ids, fake.values, fake.start, fake.step_minutes, fake.cluster, fake.size,
                   max(1, int(fake.size.max(initial=0)) + 1))

    @property
    def per_day(self) -> int:
        return MINUTES_PER_DAY // self.step_minutes

    @property
    def stamps(self) -> np.ndarray:
        """(T,) when each step begins: consecutive, one continuous record."""
        return np.datetime64(self.start, "s") + np.arange(self.values.shape[1]) * np.timedelta64(60 * self.step_minutes, "s")


def safe_text(text: str) -> str:
    """Text that no spreadsheet runs as a formula: a leading = + - @, tab or line break gets an apostrophe before it.

    >>> safe_text("-home"), safe_text("home-1")
    ("'-home", 'home-1')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def table(block: Block, layout: str = "long", decimals: int = DECIMALS) -> pa.Table:
    """The records as an Arrow table."""
    homes, steps = block.values.shape
    values = np.round(block.values, decimals) + 0.0     # no minus zero
    ids = [safe_text(name) for name in block.ids]
    sizes = size_names(block.size, block.sizes)
    if layout == "wide":
        names = [str(stamp).replace("T", " ")[:16] for stamp in block.stamps]
        return pa.table([pa.array(ids), pa.array(block.cluster, pa.int16()), pa.array(sizes),
                         *np.ascontiguousarray(values.T)],
                        ["home", "cluster", "size", *names])
    if layout != "long":
        raise ValueError(f'layout = {layout!r}; use "long" or "wide"')
    row = np.repeat(np.arange(homes, dtype=np.int32), steps)
    words = sorted(set(sizes))      # a dictionary must not hold a word twice: equal tables would then be other bytes
    word = np.repeat(np.array([words.index(size) for size in sizes], np.int32), steps)
    return pa.table({
        "home": pa.DictionaryArray.from_arrays(row, ids), "start": pa.array(np.tile(block.stamps, homes)),
        "kwh": values.ravel(), "cluster": pa.array(np.repeat(block.cluster, steps), pa.int16()),
        "size": pa.DictionaryArray.from_arrays(word, words)})


class Sink(Protocol):
    """Where blocks go, in order."""

    def write(self, block: Block) -> None: ...

    def close(self) -> None: ...


class CsvSink:
    """A CSV, LF, as many digits as needed."""

    def __init__(self, path: Path, layout: str, decimals: int = DECIMALS) -> None:
        self._file: BinaryIO = path.open("wb")
        self._layout, self._decimals, self._header = layout, decimals, True

    def write(self, block: Block) -> None:
        found = table(block, self._layout, self._decimals)
        plain = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in found.columns]
        options = pyarrow.csv.WriteOptions(include_header=self._header, quoting_style="none")  # ids need none
        pyarrow.csv.write_csv(pa.table(plain, names=found.column_names), self._file, options)
        self._header = False

    def close(self) -> None:
        self._file.close()


class ParquetSink:
    """A Parquet file, a row group per block, zstd; `about` in its metadata under the key "fedenergy"."""

    def __init__(self, path: Path, layout: str, about: Mapping[str, Any], decimals: int = DECIMALS) -> None:
        self._path, self._layout, self._decimals = path, layout, decimals
        self._about = about     # facts may be gathered while blocks come: read at the end
        self._writer: pyarrow.parquet.ParquetWriter | None = None

    def write(self, block: Block) -> None:
        found = table(block, self._layout, self._decimals)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._path, found.schema, compression="zstd")
        self._writer.write_table(found, row_group_size=max(1, found.num_rows))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.add_key_value_metadata({"fedenergy": json.dumps(self._about, sort_keys=True)})
            self._writer.close()


def open_sink(path: Path, form: str, about: Mapping[str, Any]) -> Sink:
    """A sink of one of FORMATS at the path."""
    layout, kind = form.split("-")
    return CsvSink(path, layout) if kind == "csv" else ParquetSink(path, layout, about)


def format_of(path: Path, form: str = "") -> str:
    """The format that is asked, or that the file's name says; ValueError where they disagree or neither says one.

    >>> format_of(Path("homes.csv")), format_of(Path("homes.parquet"), "wide-parquet")
    ('long-csv', 'wide-parquet')
    """
    kind = path.suffix.lstrip(".")
    if form and form not in FORMATS:
        raise ValueError(f"format = {form!r}; use one of {', '.join(FORMATS)}")
    if kind not in ("csv", "parquet"):
        raise ValueError(f"{path} ends in {repr(path.suffix) if kind else 'nothing'}: name a file .csv or .parquet")
    form = form or f"long-{kind}"
    if not form.endswith(kind):
        raise ValueError(f"format = {form!r} is not what {path.name} says: let it end in .{form.split('-')[1]}")
    return form


def about(fake: Synthetic) -> dict[str, Any]:
    """What a file of these records must say: the guarantee first."""
    return {"guarantee": fake.guarantee, "mode": fake.mode, "variant": fake.variant, "shuffle": fake.shuffle,
            "unit_of_values": f"kWh per {fake.step_minutes} minutes", "counts": dict(fake.counts)}


def write(fake: Synthetic, path: str | Path, form: str = "") -> Path:
    """Write records to a file, whole or not at all, and what they are to FILE.about.json beside it; returns the path.

    form  one of FORMATS; "": long, by the file's ending
    """
    path = Path(path)
    return write_blocks([Block.of(fake)], path, format_of(path, form), about(fake))


def write_blocks(blocks: Iterable[Block], path: Path, form: str, facts: Mapping[str, Any]) -> Path:
    """The same for blocks that come one after another: memory holds one of them."""
    part = path.with_name(f".{path.name}.part")
    sink = open_sink(part, form, facts)
    try:
        for block in blocks:
            sink.write(block)
    except BaseException:
        sink.close()
        part.unlink(missing_ok=True)
        raise
    sink.close()
    os.replace(part, path)
    write_about(path, facts)
    return path


def write_about(path: Path, facts: Mapping[str, Any]) -> None:
    """FILE.about.json: guarantee, arguments and counts beside the records."""
    part = path.with_name(f".{path.name}.about.part")
    part.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
    os.replace(part, path.with_name(f"{path.name}.about.json"))
