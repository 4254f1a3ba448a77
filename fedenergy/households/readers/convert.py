"""A meter file of any kind to one canonical file in UTC, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from fedenergy.households.readers.inspect import inspect, read
from fedenergy.households.readers.readings import MeterFileError, Readings

SUFFIXES = (".parquet", ".csv")
SCHEMA = pa.schema([("meter", pa.string()), ("channel", pa.string()), ("register", pa.string()),
                    ("start", pa.timestamp("ms", tz="UTC")), ("minutes", pa.int32()), ("kwh", pa.float64()),
                    ("quality", pa.string())])


def convert(path: Path | str, out: Path | str, **declared: Any) -> Readings:
    """Read a meter file as declared (see `inspect`) and write its readings to out (.parquet or .csv); returns them.

    Parquet carries settings, counts, notes and the source's SHA-256 under the metadata key "fedenergy". A CSV's texts
    that a spreadsheet would run as a formula get a leading apostrophe. MeterFileError where a question is open, the
    file is not as declared, or out cannot be written; an out that exists stays as it was then.
    """
    path, out = Path(path), Path(out)
    if out.suffix not in SUFFIXES:
        raise MeterFileError(out, f"--out ends in {out.suffix!r}: write .parquet or .csv")
    if out.exists() and path.exists() and out.samefile(path):
        raise MeterFileError(out, "--out is the meter file itself: name another")
    if not out.parent.is_dir():
        raise MeterFileError(out, f"the folder {out.parent} does not exist")
    readings = read(path, **declared)
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if out.suffix == ".parquet":
            _parquet(readings, partial, _origin(path, readings, declared))
        else:
            _csv(readings, partial)
        os.replace(partial, out)
    except OSError as error:
        raise MeterFileError(out, f"cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return readings


def _origin(path: Path, readings: Readings, declared: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    proposal = inspect(path, **declared)
    counts = [{"meter": key[0], "channel": key[1], "register": key[2], **found} for key, found in readings.counts.items()]
    return {"source": path.name, "sha256": digest.hexdigest(), "kind": proposal.kind, "settings": dict(proposal.settings),
            "counts": counts, "notes": list(readings.notes)}


def _parquet(readings: Readings, out: Path, origin: dict[str, Any]) -> None:
    table = pa.Table.from_pandas(readings.frame, SCHEMA, preserve_index=False)
    parquet.write_table(table.replace_schema_metadata({"fedenergy": json.dumps(origin, sort_keys=True)}), out)


def _csv(readings: Readings, out: Path) -> None:
    frame = readings.frame.copy()
    for name in ("meter", "channel", "register"):
        frame[name] = frame[name].map(lambda text: f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text)
    frame["start"] = pd.DatetimeIndex(frame["start"]).strftime("%Y-%m-%dT%H:%M:%SZ")
    frame.to_csv(out, index=False, lineterminator="\n")
