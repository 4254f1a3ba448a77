"""Parsed data sets kept on disk, so that workers and reruns need not read a source file twice.

The cache holds numpy arrays only (npz, never pickled objects), under $FEDENERGY_CACHE or ~/.cache/fedenergy. An entry
is named by a digest of the source files (path, size, time of change) and of the parameters, so a changed source or
parameter makes a new entry. Entries may be deleted at any time; one that cannot be read is made again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import lzma
import os
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.ids import digest

READERS = 1  # raise when a reader gives other arrays for the same file: old entries are then never read again

Arrays = dict[str, np.ndarray]


def folder() -> Path:
    """Where entries lie: $FEDENERGY_CACHE, else ~/.cache/fedenergy."""
    return Path(os.environ.get("FEDENERGY_CACHE") or Path.home() / ".cache" / "fedenergy")


def stamp(path: str | Path) -> tuple[str, int, int]:
    """(absolute path, bytes, nanoseconds of the last change): tells one state of a file from another."""
    status = os.stat(path)
    return os.path.abspath(path), status.st_size, status.st_mtime_ns


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, 64 hex digits; read once per process and state of the file."""
    return _sha256(stamp(path))


@functools.lru_cache(maxsize=512)
def _sha256(state: tuple[str, int, int]) -> str:
    with open(state[0], "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arrays(kind: str, files: Sequence[str | Path], parameters: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
    """The arrays that make() returns, from disk where an earlier call with the same files and parameters left them.

    kind        short name of the data set, in the entry's file name
    parameters  everything but the files that make() depends on; JSON values
    make        -> {name: array of numbers, dates or text}; objects raise ValueError
    An unwritable folder gives a RuntimeWarning and no entry; the arrays are returned all the same.
    """
    states = [list(stamp(file)) for file in files]
    key = digest(b"fe.cache.1", {"readers": READERS, "kind": kind, "files": states, "parameters": parameters}).hex()
    entry = folder() / f"{kind}-{key}.npz"
    if (kept := _read(entry)) is not None:
        return kept
    try:
        made = make()
    except (EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:  # a partial download, a cut file
        names = ", ".join(Path(file).name for file in files)
        raise ValueError(f"data set {kind}: {names} is damaged ({type(error).__name__}): copy it anew") from error
    if bad := [name for name, array in made.items() if array.dtype.hasobject]:
        raise ValueError(f"cache {kind}: array {bad[0]!r} holds Python objects; only numbers, dates and text are kept")
    _write(entry, made)
    return made


def _read(entry: Path) -> Arrays | None:
    try:
        with np.load(entry, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None  # damaged: the zip's checksums say so, and the entry is written anew


def _write(entry: Path, made: Arrays) -> None:
    part = entry.with_name(f"{entry.name}.{uuid.uuid4().hex}.part")
    try:
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(part, "xb") as file:
            np.savez(file, **made)
        os.replace(part, entry)  # atomic: a reader sees a whole entry or none
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        warnings.warn(f"the parsed data are not kept: {error}; set FEDENERGY_CACHE to a writable folder",
                      RuntimeWarning, stacklevel=3)
