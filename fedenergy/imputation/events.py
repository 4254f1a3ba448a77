"""Training curves as TensorBoard reads them (`tensorboard --logdir DIR`), written without it.

The package `tensorboard` weighs some hundred MB with what it needs, for two small formats: TFRecord (length, CRC, data, CRC;
CRC-32C, masked) around the protocol buffers Event (1 wall_time, 2 step, 3 file_version, 5 summary) and Summary.Value
(1 tag, 2 simple_value).
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

NAME = "events.out.tfevents.{:010d}.fedenergy"
CURVES = {"loss": ("step", "loss"), "clipped": ("step", "clipped"), "valid loss": ("valid_step", "valid")}


class LiveCurve:
    """A curve that grows while it is being drawn: `imp.train(..., on_step=LiveCurve(folder))`; called with (step, value).

    Takes the place of event files of this name that an earlier run left in the folder; each point is on disk when the call
    returns. Values that are not finite are left out.
    """

    def __init__(self, folder: str | Path, tag: str = "loss"):
        self.folder, self.tag, self.when = Path(folder), tag, time.time()
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob(NAME.format(0).replace("0" * 10, "*")):
            old.unlink()
        self.path = self.folder / NAME.format(int(self.when))
        self.path.write_bytes(record(event(self.when, version="brain.Event:2")))

    def __call__(self, step: int, value: float) -> None:
        if math.isfinite(value):
            with self.path.open("ab") as file:
                file.write(record(event(time.time(), step, self.tag, value)))


def write_events(folder: str | Path, curves: Mapping[str, Iterable[tuple[int, float]]], when: float = 0.0) -> Path:
    """Write one event file; curves: tag -> (step, value). when: wall time in seconds since 1970, the same for all points."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    records = [record(event(when, version="brain.Event:2"))]
    records += [record(event(when, step, tag, value)) for tag, points in curves.items() for step, value in points]
    path = folder / NAME.format(int(when))
    part = path.with_suffix(".part")
    part.write_bytes(b"".join(records))
    os.replace(part, path)
    return path


def curves_of(log: Mapping[str, Sequence[Any]]) -> dict[str, list[tuple[int, float]]]:
    """The curves of a model's training log; steps without a value are left out."""
    found = {tag: [(int(step), float(value)) for step, value in zip(log.get(steps, ()), log.get(values, ()))
                   if value is not None] for tag, (steps, values) in CURVES.items()}
    return {tag: points for tag, points in found.items() if points}


def event(when: float, step: int = 0, tag: str = "", value: float = 0.0, *, version: str = "") -> bytes:
    """An Event of one scalar, or of the file's version."""
    head = b"\x09" + struct.pack("<d", when) + (b"\x10" + _varint(step) if step else b"")
    if version:
        return head + _field(0x1A, version.encode())
    scalar = _field(0x0A, tag.encode()) + b"\x15" + struct.pack("<f", value)
    return head + _field(0x2A, _field(0x0A, scalar))


def record(data: bytes) -> bytes:
    """A TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli).

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value
    return tuple(map(entry, range(256)))


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found + bytes([value]))


def _field(key: int, data: bytes) -> bytes:
    return bytes([key]) + _varint(len(data)) + data
