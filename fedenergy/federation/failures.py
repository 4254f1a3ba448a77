"""Which homes failed, by name: from the inside view, where each process notes type and place, and from the grid."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flwr.serverapp import Grid

INSIDE = "inside"       # folder of a run where its processes note what never leaves a home
NAMED = 10              # homes that a message names


def first_error(inside: Path) -> str:
    """The first home that raised, as the inside view of this machine has it; "" where it has none."""
    for path in sorted(inside.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in path.read_text(encoding="utf-8").splitlines():
            if (one := json.loads(line)).get("code") == "error":
                return f"household {one['household']}, {one['reason']}, in phase {one['phase']}"
    return ""


def killers_of(grid: Grid, ids: Sequence[str]) -> str:
    """The homes (or shards of homes) that a grid does not ask any more, by name; "" where there is none."""
    gone = sorted(getattr(grid, "quarantined", ()))
    names = [ids[index] for index in gone] if getattr(grid, "count", 0) == len(ids) else [f"shard {n}" for n in gone]
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"quarantined, having killed their workers again and again: {shown}" if names else ""
