"""Which homes failed, by name: from the inside view, where each process notes type and place, and from the grid."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flwr.serverapp import Grid

from fedenergy.errors import naming

INSIDE = "inside"       # folder of a run where its processes note what never leaves a home
NAMED = 10              # homes that a message names


def sizes_of(inside: Path) -> dict[str, int]:
    """How much each file of the inside view holds: what is noted later begins there."""
    return {path.name: path.stat().st_size for path in inside.glob("*.jsonl")}


def first_error(inside: Path, since: Mapping[str, int] = MappingProxyType({})) -> str:
    """The first home that raised after `since`, as the inside view of this machine has it; "" where it has none."""
    for path in sorted(inside.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        for one in noted_inside(path, since.get(path.name, 0)):
            if one.get("code") == "error":
                return f"household {one['household']}, {one['reason']}, in phase {one['phase']}"
    return ""


def note_inside(inside: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Append to this process's own file of the inside view; a torn last line, of a process that had this number, is cut."""
    data = b"".join(json.dumps(entry, sort_keys=True).encode() + b"\n" for entry in entries)
    if not data:
        return
    inside.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = inside / f"{os.getpid()}.jsonl"
    with naming(path), open(path, "ab+") as file:
        if size := file.tell():
            file.seek(size - 1)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(data)


def noted_inside(path: Path, since: int = 0) -> Iterator[dict[str, Any]]:
    """The entries of one file of the inside view, from that byte on; a last line that was torn by a kill or a full disk is
    none."""
    lines = path.read_bytes()[since:].splitlines()
    for at, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except ValueError:
            if at < len(lines):
                raise


def too_many(failed: int, asked: int, max_failures: float) -> bool:
    """Whether more homes failed than a study allows. Then it stops, and nothing may be opened or fixed for good over the
    homes that are left: a resumed run would find that."""
    return failed > Fraction(str(float(max_failures))) * max(1, asked)       # as it was written: .29 of 100 are 29


def killers_of(grid: Grid, ids: Sequence[str]) -> str:
    """The homes (or shards of homes) that a grid does not ask any more, by name; "" where there is none."""
    gone = sorted(getattr(grid, "quarantined", ()))
    names = [ids[index] for index in gone] if getattr(grid, "count", 0) == len(ids) else [f"shard {n}" for n in gone]
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"quarantined, having killed their workers again and again: {shown}" if names else ""
