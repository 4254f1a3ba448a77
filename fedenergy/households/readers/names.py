"""What file names say, apart from the readers so that listing a folder loads no parser."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

NAME = re.compile(r"(REFIT|UKDALE|IDEAL)_House(\d+)_(\d{4}-(?:0[1-9]|1[0-2]))\.csv(?:\.gz|\.xz)?")


def by_home(files: Iterable[Path]) -> dict[str, dict[np.datetime64, Path]]:
    """Home ("refit-2") -> month -> file, both in order. Files of other names are passed over."""
    found: dict[str, dict[np.datetime64, Path]] = {}
    for path in files:
        if match := NAME.fullmatch(path.name):
            found.setdefault(f"{match[1].lower()}-{int(match[2])}", {})[np.datetime64(match[3], "M")] = path
    return {home: dict(sorted(months.items())) for home, months in sorted(found.items())}
