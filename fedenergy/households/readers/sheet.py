"""Delimited text as meters and portals write it: encodings, delimiters, preambles, numbers in either decimal sign.

Everything is bounded: bytes, lines, a line's length, rows, columns.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedenergy.households.readers.readings import MeterFileError

MOST_DATED_PREAMBLE = 2
MAX_BYTES, MAX_LINE, MAX_ROWS, MAX_COLUMNS = 1 << 29, 1 << 17, 5_000_000, 2_000
OPEN = {".xz": lzma.open, ".gz": gzip.open}
MISSING = frozenset(("", "?", "null", "na", "n/a", "nan", "none", "-", "--", "unavailable", "unknown", "missing", "#n/a"))
DELIMITERS = (";", "\t", ",", "|")
_UNIT_CELL = re.compile(r"(?i)[(\[]?(?:[km]?wh?s?|k?va(?:r)?h?|m?[va]|k?hz|%|°? ?[cf]|m3|m³|eur|€|£|\$|ct|min|s|h|-)?[)\]]?")
_CLOCK_CELL = re.compile(r"[A-Z][A-Za-z]+/[A-Z][A-Za-z_]+.*|\[?[dDmMyYhHsSjJtT:./ -]{5,24}\]?|(?:UTC|GMT|CET)\S*|")
_FOOTER = re.compile(r"(?i)\W*(?:grand |sub)?(?:totals?|totaal|totale|totaux|gesamt|summe|sums?|suma|somme|som|average|mean|"
                     r"gemiddelde?|moyenne|mittelwert|durchschnitt|celkem|razem|yhteensä|i alt|kokku)\b")
_PLAIN = re.compile(r"[+-]?(?:\d{1,18}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_GROUPED = {",": re.compile(r"[+-]?[1-9]\d{0,2}(?:[.\u00a0' ]\d{3})+(?:,\d*)?"),
            ".": re.compile(r"[+-]?[1-9]\d{0,2}(?:[,\u00a0' ]\d{3})+(?:\.\d*)?")}


@dataclass(frozen=True)
class Sheet:
    """Columns of text; lines[k] is the line of row k in the file. header holds "column 1", ... where the file has none."""

    path: Path
    header: tuple[str, ...]
    named: bool
    columns: tuple[list[str], ...]
    lines: list[int]
    delimiter: str
    encoding: str
    complete: bool
    counts: dict[str, int] = field(default_factory=dict)
    preamble: tuple[str, ...] = ()

    def column(self, name: str) -> list[str]:
        if name not in self.header:
            raise MeterFileError(self.path, f"no column {name!r} (its columns: {', '.join(self.header[:12])})")
        return self.columns[self.header.index(name)]


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file, decompressed; MeterFileError where it cannot be read."""
    try:
        with OPEN.get(path.suffix, open)(path, "rb") as file:
            return file.read(size)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise MeterFileError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def encoding_of(path: Path) -> str:
    """utf-8-sig, utf-16 or cp1252, from the first bytes; MeterFileError for what is no text."""
    start = head(path)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if b"\0" in start:
        raise MeterFileError(path, "holds NUL bytes: it is no text file (save a spreadsheet as CSV first)")
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(start)
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def lines_of(path: Path, encoding: str | None = None) -> Iterator[str]:
    """A text file's lines with their ends, bounded; MeterFileError names the line where something is wrong."""
    encoding, number, size = encoding or encoding_of(path), 0, 0
    try:
        with OPEN.get(path.suffix, open)(path, "rb") as raw, io.TextIOWrapper(raw, encoding, newline="") as file:
            while line := file.readline(MAX_LINE):
                number, size = number + 1, size + len(line)
                if len(line) == MAX_LINE and not line.endswith("\n"):
                    raise MeterFileError(path, f"longer than {MAX_LINE:,} characters: it is no meter file", number)
                if size > MAX_BYTES:
                    raise MeterFileError(path, f"larger than {MAX_BYTES:,} characters: split it", number)
                yield line
    except UnicodeError:
        raise MeterFileError(path, f"not {encoding.removesuffix('-sig')} text: save it as UTF-8", number + 1) from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise MeterFileError(path, f"cannot be read: {error}", number + 1) from None


def delimiter_of(lines: Sequence[str]) -> str:
    """The delimiter that splits most of the lines into the same, largest number of fields.

    >>> delimiter_of(["a;b", "1/1/2024;0,5", "2/1/2024;0,7"])
    ';'
    """
    best, score = ",", (0.0, 0)
    for mark in DELIMITERS:
        sizes = [len(row) for row in csv.reader(lines, delimiter=mark)]
        if not sizes:
            continue
        common = max(set(sizes), key=sizes.count)
        share = round(sizes.count(common) / len(sizes), 1)
        if common > 1 and share >= 0.5 and (min(share, 0.9), common) > score:
            best, score = mark, (min(share, 0.9), common)
    return best


def read_sheet(path: Path, is_data, delimiter: str = "", limit: int = MAX_ROWS) -> Sheet:
    """The file's table.

    is_data  row -> bool: whether a row is the first reading; the row before it, if as long, is the header, and what
             stands above is a preamble (counted). A row of units under the header joins it. A line of totals ends the
             readings (counted)
    limit    rows to read at most (a sample); a file of more than MAX_ROWS raises MeterFileError
    """
    encoding = encoding_of(path)
    if not delimiter:
        start = [line for line, _ in zip(lines_of(path, encoding), range(200))]
        try:
            delimiter = delimiter_of([line for line in start if line.strip()])
        except csv.Error as error:
            raise MeterFileError(path, f"not delimited text ({error})", 1) from None
    reader = csv.reader(lines_of(path, encoding), delimiter=delimiter)
    columns: list[list[str]] = []
    shared: list[dict[str, str]] = []
    lines, above, blank, complete, trailing, footer, where = [], [], 0, True, False, 0, 0
    try:
        for row in reader:
            if not row or not any(cell.strip() for cell in row):
                blank += 1
                continue
            if not columns:
                if not is_data(row):
                    above.append(row)
                    where = where or (reader.line_num if _like_data(row) else 0)
                    if len(above) > 200:
                        raise _no_data(path, above, where, " in the first 200")
                    continue
                width = len(row)
                if above and len(above[-1]) == width - 1 and not row[-1].strip():
                    trailing, width = True, width - 1  # a delimiter that ends each reading and not the header
                if width > MAX_COLUMNS:
                    raise MeterFileError(path, f"{width} columns: more than {MAX_COLUMNS}", reader.line_num)
                columns, shared = [[] for _ in range(width)], [{} for _ in range(width)]
            if _FOOTER.match(next(cell for cell in row if cell.strip())) and not is_data(row):
                footer += 1
                continue
            if footer and not is_data(row):
                footer += 1
                continue
            if footer:
                raise MeterFileError(path, "readings go on after a line of totals: is it a second table in one file?",
                                     reader.line_num)
            if len(lines) <= MOST_DATED_PREAMBLE and _titles(row) and not is_data(row) and (
                    len(row) != width or not above or len(above[-1]) != width or not _titles(above[-1])):
                above += [[column[k] for column in columns] for k in range(len(lines))] + [row]
                columns, lines, trailing = [], [], False  # what had a date was about the file
                continue
            if trailing and len(row) == width + 1 and not row[-1].strip():
                row = row[:-1]
            if len(row) != width:
                raise MeterFileError(path, f"{len(row)} fields where the first reading has {width}: cut short, or a second "
                                           "table in one file?", reader.line_num)
            if len(lines) >= limit:
                if limit >= MAX_ROWS:
                    raise MeterFileError(path, f"more than {MAX_ROWS:,} rows: split it", reader.line_num)
                complete = False
                break
            for column, known, cell in zip(columns, shared, row):
                column.append(known.setdefault(cell, cell))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise MeterFileError(path, f"not delimited text ({error})", reader.line_num) from None
    if not columns:
        raise _no_data(path, above, where, "")
    titled = int(bool(above) and len(above[-1]) == width)
    names = [cell.strip().removeprefix("\ufeff") for cell in above[-1]] if titled else []
    if titled and len(above) > 1 and len(above[-2]) == width and _units(names, [column[0] for column in columns], is_data):
        names, titled = _joined(above, names, width)
    header = _unique(names) if titled else tuple(f"column {k + 1}" for k in range(width))
    counts = {"blank_lines": blank, "preamble_lines": len(above) - titled, "footer_lines": footer}
    return Sheet(path, header, titled, tuple(columns), lines, delimiter, encoding, complete,
                 {name: value for name, value in counts.items() if value},
                 tuple(" ".join(row).strip() for row in above[:len(above) - titled]))


def _like_data(row: Sequence[str]) -> bool:
    """Whether a row without a stamp could be meant as a reading: two cells, of which one begins with a digit."""
    return len(row) > 1 and any(cell.strip()[:1].isdigit() for cell in row)


def _no_data(path: Path, above: Sequence[Sequence[str]], where: int, among: str) -> MeterFileError:
    """The error of a file without readings, at the first row that could be meant as one, with what is wrong in it."""
    row = next((row for row in above if _like_data(row)), [])
    cells = [cell.strip() for cell in row]
    if any(re.fullmatch(r"[2-6]\d{4}(?:[.,]\d+)?", cell) for cell in cells[:2]):
        why = ": the first cells are day numbers of a spreadsheet; give the column a date format and save it again"
    elif any(re.fullmatch(r"-?\d+(?:[.,]\d+)?\s*[kM]?Wh?", cell) for cell in cells):
        why = ": the unit stands in the cells; take it out of them (and declare --unit)"
    else:
        why = ": it is no meter file, or declare --dates and --delimiter"
    return MeterFileError(path, f"no row of a time stamp and numbers{among}{why}", where or None)


def _titles(row: Sequence[str]) -> bool:
    """Whether a row could be a header: several cells, none of them empty or a number."""
    return len(row) > 1 and all(cell.strip() and number(cell, ".") is None and number(cell, ",") is None for cell in row)


def _units(cells: Sequence[str], first: Sequence[str], is_data) -> bool:
    """Whether the row between the header and the first reading names units: blank, a zone or a format above stamps."""
    energy = False
    for cell, value in zip(cells, first):
        stamp = is_data([value, "0"])
        if not (_CLOCK_CELL if stamp else _UNIT_CELL).fullmatch(cell):
            return False
        energy = energy or (not stamp and re.fullmatch(r"(?i)[(\[]?[km]?wh?s?[)\]]?", cell) is not None)
    return energy


def _joined(above: Sequence[Sequence[str]], units: Sequence[str], width: int) -> tuple[list[str], int]:
    """(headings with their units, header rows used); a third row on top joins where the second repeats itself."""
    names, used = [cell.strip() for cell in above[-2]], 2
    filled = [name for name in names if name]
    if len(above) > 2 and len(above[-3]) == width and (len(set(filled)) < len(filled) or not names[0]):
        names, used = [f"{top.strip()} {name}".strip() for top, name in zip(above[-3], names)], 3
    return [f"{name} ({unit.strip('()[] ')})" if unit.strip("()[] ") else name for name, unit in zip(names, units)], used


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    for k, name in enumerate(names):
        name = name or f"column {k + 1}"
        found.append(name if name not in found else f"{name} ({k + 1})")
    return tuple(found)


def unwrap(text: str) -> str:
    """Without Excel's ="..." and blanks."""
    text = text.strip()
    return text[2:-1].strip() if text.startswith('="') and text.endswith('"') else text


def number(text: str, decimal: str) -> float | None:
    """A number, NaN for a spelling of "missing", None for what is neither.

    >>> number(" 0,173 ", ","), number("1.234,5", ","), number("Null", "."), number("1,5", ".")
    (0.173, 1234.5, nan, None)
    """
    text = unwrap(text)
    if text.lower() in MISSING:
        return float("nan")
    if _GROUPED[decimal].fullmatch(text):
        text = re.sub(r"[.\u00a0' ]" if decimal == "," else r"[,\u00a0' ]", "", text)
    if decimal == ",":
        if "." in text:
            return None
        text = text.replace(",", ".")
    if not _PLAIN.fullmatch(text):
        return None
    value = float(text)
    return value if np.isfinite(value) else None


def numbers(sheet: Sheet, name: str, decimal: str, rows: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """((rows,) float64, how many spell "missing" as a word); MeterFileError names the line of what is no number."""
    column = sheet.column(name)
    at = range(len(column)) if rows is None else rows.tolist()
    texts = column if rows is None else [column[row] for row in at]
    known: dict[str, float | None] = {text: number(text, decimal) for text in dict.fromkeys(texts)}
    if None in known.values():
        wrong = next(k for k, text in enumerate(texts) if known[text] is None)
        other = "," if decimal == "." else "."
        hint = f"; it is one with --decimal '{other}'" if number(texts[wrong], other) is not None else ""
        raise MeterFileError(sheet.path, f"{name[:60]} = {texts[wrong][:30]!r} is no number{hint}", sheet.lines[at[wrong]])
    words = {text for text, value in known.items() if value != value and unwrap(text)}
    return np.array([known[text] for text in texts], np.float64), sum(text in words for text in texts) if words else 0
