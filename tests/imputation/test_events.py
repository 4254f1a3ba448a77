"""Event files: the bytes that TensorBoard reads, and a curve that is on disk while it grows."""

from __future__ import annotations

import math
import struct

from fedenergy.imputation import events


def points(path) -> list[tuple[int, float]]:
    """(step, value) of the scalars of an event file, read back by the format's own rules."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12:at + 12 + size]
        assert events.record(body) == data[at:at + 16 + size]          # both checksums
        at += 16 + size
        if b"brain.Event" not in body:
            step = body[10] if body[9] == 0x10 else 0                 # one-byte steps here
            found.append((step, struct.unpack("<f", body[-4:])[0]))
    return found


def test_contract_a_live_curve_is_on_disk_after_each_call(tmp_path):
    live = events.LiveCurve(tmp_path / "logs")
    for step, value in enumerate((0.5, math.nan, 0.25)):
        live(step, value)
        assert len(points(live.path)) == (1, 1, 2)[step]
    assert points(live.path) == [(0, 0.5), (2, 0.25)]
    assert events.write_events(tmp_path / "logs", {"loss": [(0, 1.0)]}, live.when) == live.path
    assert points(live.path) == [(0, 1.0)]


def test_contract_an_earlier_curve_gives_way_and_other_files_stay(tmp_path):
    old = events.write_events(tmp_path, {"loss": [(0, 1.0)]}, 1.0)
    other = tmp_path / "events.out.tfevents.1.somebody"
    other.write_bytes(b"")
    live = events.LiveCurve(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {live.path.name, other.name}
    assert not old.exists()
