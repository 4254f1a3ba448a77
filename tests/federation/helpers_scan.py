"""A byte scan: do planted numbers occur in some bytes, in any of the forms in which a program writes numbers?

Forms: f64 and int64 (so uint64) in both byte orders at any offset; f32 likewise; decimal text with six or more digits
that rounds a planted number; hexadecimal floats; whole numbers in text. Inside: base64, hexadecimal digests, zlib, npz,
parquet, SQLite rows.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import re
import sqlite3
import tempfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

DECIMAL = re.compile(rb"[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+")
HEX_FLOAT = re.compile(rb"0x[01]\.[0-9a-f]+p[-+]?[0-9]+")
WHOLE = re.compile(rb"(?<![0-9.])[0-9]{5,20}(?![0-9.])")
BASE64 = re.compile(rb"[A-Za-z0-9+/]{10,}={0,2}")
HEX = re.compile(rb"(?:[0-9a-f]{2}){8,}")
LEAST_WHOLE = 2**16  # smaller grid integers look like counters
SIGNIFICANT = 12     # numbers with no more significant bits (0, 2.0, K) look like any other


class Hit(NamedTuple):
    """Where, which kind of number (the name it was planted under), and in which form."""

    place: str
    what: str
    form: str


class Needles:
    """Planted numbers by kind: floats (readings, summaries), and int64 arrays (grid integers)."""

    def __init__(self, planted: Mapping[str, np.ndarray]) -> None:
        words64: dict[int, str] = {}
        words32: dict[int, str] = {}
        self.decimal: dict[float, str] = {}
        self.whole: dict[int, str] = {}
        for what, values in planted.items():
            flat = np.asarray(values).ravel()
            flat = flat[np.isfinite(flat) & (np.ldexp(np.frexp(flat)[0], SIGNIFICANT) % 1 != 0)]
            if flat.dtype.kind == "i":
                flat = flat[np.abs(flat) >= LEAST_WHOLE].astype(np.int64)
                self.whole |= {abs(int(value)): what for value in flat}
            else:
                flat = flat.astype(np.float64)
                self.decimal |= {abs(float(value)): what for value in flat}
                half = flat.astype(np.float32)
                for form in (half, half.byteswap()):
                    words32 |= dict.fromkeys(form.view(np.uint32).tolist(), what)
            for form in (flat, flat.byteswap()):
                words64 |= dict.fromkeys(form.view(np.uint64).tolist(), what)
        self.words = {8: words64, 4: words32}
        self.sorted = {size: np.array(sorted(words), f"u{size}") for size, words in self.words.items()}
        self.order = sorted(self.decimal)

    def hits(self, place: str, data: bytes) -> set[Hit]:
        """Every planted number in the data and in what is encoded in it."""
        found = set()
        for blob in _views(data):
            found |= self._binary(place, blob) | self._text(place, blob)
        return found

    def scan(self, blobs: Mapping[str, bytes]) -> set[Hit]:
        """Hits in many named blobs; files are opened by their suffix."""
        found = set()
        for place, data in blobs.items():
            for blob in (data, *_unpacked(place, data)):
                found |= self.hits(place, blob)
        return found

    def _binary(self, place: str, blob: bytes) -> set[Hit]:
        found = set()
        for size, form in ((8, "64 bits"), (4, "f32")):
            needles = self.sorted[size]
            for offset in range(size if needles.size else 0):
                count = (len(blob) - offset) // size
                if count <= 0:
                    continue
                words = np.frombuffer(blob, f"<u{size}", count, offset)
                at = np.searchsorted(needles, words).clip(max=needles.size - 1)
                found |= {Hit(place, self.words[size][int(word)], form) for word in words[needles[at] == words]}
        return found

    def _text(self, place: str, blob: bytes) -> set[Hit]:
        found = set()
        for token in DECIMAL.findall(blob):
            text = token.decode()
            digits = len(re.split("[eE]", text)[0].replace(".", "").lstrip("0"))
            if digits >= 6 and (what := self._near(float(text), min(digits, 17))):
                found.add(Hit(place, what, "decimal"))
        for token in HEX_FLOAT.findall(blob):
            if what := self.decimal.get(float.fromhex(token.decode())):
                found.add(Hit(place, what, "hexadecimal"))
        for token in WHOLE.findall(blob):
            if what := self.whole.get(int(token)):
                found.add(Hit(place, what, "whole"))
        return found

    def _near(self, value: float, digits: int) -> str | None:
        """The kind of a planted number that reads as value when it is rounded, as f64 or f32, to that many digits."""
        if not np.isfinite(value):
            return None
        at = bisect_left(self.order, value)
        for needle in self.order[max(0, at - 1):at + 2]:
            for form in (needle, float(np.float32(needle))):
                if float(f"{form:.{digits - 1}e}") == value or (digits >= 8 and abs(form - value) < 1e-8 * value):
                    return self.decimal[needle]
        return None


def _views(data: bytes) -> Iterator[bytes]:
    """The data, and what base64, hexadecimal and zlib hide in it, one level deep."""
    yield data
    for token in set(BASE64.findall(data)):
        with contextlib.suppress(binascii.Error):
            yield base64.b64decode(token + b"=" * (-len(token.rstrip(b"=")) % 4), validate=False)
    for token in set(HEX.findall(data)):
        yield bytes.fromhex(token.decode())
    with contextlib.suppress(zlib.error):
        yield zlib.decompress(data)


def _unpacked(place: str, data: bytes) -> Iterator[bytes]:
    """The contents of a compressed file or a database."""
    if place.endswith(".npz"):
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            yield from (file[name].tobytes() for name in file.files)
    elif place.endswith(".parquet"):
        import pyarrow.parquet as pq

        for column in pq.read_table(io.BytesIO(data)).to_pydict().values():
            yield np.array(column, np.float64).tobytes() if column and isinstance(column[0], float) \
                else repr(column).encode()
    elif place.endswith(".sqlite"):
        for _, row in sqlite_rows(data):
            for value in row:
                yield value if isinstance(value, bytes) else repr(value).encode()


def sqlite_rows(data: bytes) -> list[tuple[str, tuple]]:
    """(table, row) of every row of a database file's bytes."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(data)
        file.flush()
        sql = sqlite3.connect(file.name)
        try:
            tables = [name for name, in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return [(table, row) for table in sorted(tables) for row in sql.execute(f'SELECT * FROM "{table}"')]
        finally:
            sql.close()


def files_in(folder: Path) -> dict[str, bytes]:
    """Relative path -> bytes of every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink()}
