"""A byte scan: do given numbers occur in some bytes, in any of the forms in which a program writes numbers?

Forms: f64 and int64 (so uint64) in both byte orders at any offset; f32 likewise; decimal text that rounds a number;
hexadecimal floats; whole numbers in text. Inside: base64, hexadecimal digests, zlib, npz, parquet, SQLite rows.
What it cannot see: numbers in a form of their own (encrypted, scaled, rounded to few digits, drawn as pixels).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import math
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
LEAST_DIGITS = 6


class Hit(NamedTuple):
    """Where, which kind of number (the name it was planted under), and in which form."""

    place: str
    what: str
    form: str


class _Words:
    """Sorted machine words of one size, each with the kind of number that it writes (of two kinds, the last planted)."""

    def __init__(self, size: int, found: list[tuple[np.ndarray, int]]) -> None:
        found = found[::-1]
        words = np.concatenate([np.zeros(0, f"u{size}"), *(part.astype(f"<u{size}") for part, _ in found)])
        kinds = np.concatenate([np.zeros(0, np.int16), *(np.full(part.size, kind, np.int16) for part, kind in found)])
        self.words, first = np.unique(words, return_index=True)
        self.kinds = kinds[first]

    def kinds_in(self, blob: bytes, size: int) -> set[int]:
        found: set[int] = set()
        for offset in range(size if self.words.size else 0):
            if (count := (len(blob) - offset) // size) <= 0:
                continue
            words = np.frombuffer(blob, f"<u{size}", count, offset)
            at = np.searchsorted(self.words, words).clip(max=self.words.size - 1)
            found |= set(self.kinds[at[self.words[at] == words]].tolist())
        return found


class Needles:
    """Planted numbers by kind: floats (readings, summaries), and int64 arrays (grid integers).

    planted  name -> numbers; digits: decimal text counts from so many digits on
    pairs    f32 counts only where two numbers that follow each other (down or along a 2-d array) stand side by side:
             among millions of numbers single 32-bit words meet others by chance
    """

    def __init__(self, planted: Mapping[str, np.ndarray], *, digits: int = LEAST_DIGITS, pairs: bool = False) -> None:
        self.names, self.digits = list(planted), digits
        self.decimal: dict[float, str] = {}
        self.whole: dict[int, str] = {}
        words: dict[tuple[str, int], list[tuple[np.ndarray, int]]] = {("64 bits", 8): [], ("f32", 4): [], ("f32", 8): []}
        for kind, (what, values) in enumerate(planted.items()):
            flat = np.asarray(values).ravel()
            flat = np.unique(flat[_telling(flat)])
            if flat.dtype.kind == "i":
                flat = flat[np.abs(flat) >= LEAST_WHOLE].astype(np.int64)
                self.whole |= {abs(int(value)): what for value in flat}
            else:
                flat = flat.astype(np.float64)
                self.decimal |= {value: what for value in np.abs(flat).tolist() if _digits(repr(value)) >= digits}
                half = flat.astype(np.float32)
                if pairs:
                    words["f32", 8] += [(pair, kind) for pair in _pairs(np.asarray(values, np.float32))]
                else:
                    words["f32", 4] += [(form.view(np.uint32), kind) for form in (half, half.byteswap())]
            words["64 bits", 8] += [(form.view(np.uint64), kind) for form in (flat, flat.byteswap())]
        self._words = {key: _Words(key[1], found) for key, found in words.items()}
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
        return {Hit(place, self.names[kind], form) for (form, size), table in self._words.items()
                for kind in table.kinds_in(blob, size)}

    def _text(self, place: str, blob: bytes) -> set[Hit]:
        found = set()
        for token in DECIMAL.findall(blob):
            text = token.decode()
            digits = _digits(text)
            if digits >= self.digits and (what := self._near(float(text), min(digits, 17))):
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
                if float(f"{form:.{digits - 1}e}") == value or (
                        digits >= max(8, self.digits) and abs(form - value) < 10.0 ** -max(8, self.digits) * value):
                    return self.decimal[needle]
        return None


def digits_for(numbers: int, data_bytes: int) -> int:
    """From how many decimal digits on text counts, so that one number in a hundred scans is there by chance.

    >>> digits_for(100, 10_000), digits_for(100_000, 10_000_000)
    (7, 13)
    """
    tokens = max(1, data_bytes // 20)
    return min(17, max(LEAST_DIGITS, math.ceil(math.log10(max(1, numbers) * tokens)) + 2))


def _digits(text: str) -> int:
    """Significant digits of a decimal text: a number of few looks like any other."""
    return len(re.split("[eE]", text)[0].replace(".", "").lstrip("0"))


def _telling(values: np.ndarray) -> np.ndarray:
    """Which numbers are finite and have more significant bits than any number has by chance."""
    return np.isfinite(values) & (np.ldexp(np.frexp(values)[0], SIGNIFICANT) % 1 != 0)


def _pairs(values: np.ndarray) -> Iterator[np.ndarray]:
    """Neighbours in an f32 array of one or two axes as 64-bit words, in both byte orders."""
    values = values.reshape(len(values), -1)
    telling = _telling(values)
    for one, other, both in ((values[:-1], values[1:], telling[:-1] & telling[1:]),
                             (values[:, :-1], values[:, 1:], telling[:, :-1] & telling[:, 1:])):
        side = np.stack([one[both], other[both]], axis=-1)
        for form in (side, side.byteswap()):
            yield np.ascontiguousarray(form).view("<u8").ravel()


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
