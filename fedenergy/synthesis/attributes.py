"""What is known of an artificial home beside its record: the cell that it was made in, and what its record adds up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from fedenergy.synthesis.outputs import Block

SIZES = {1: ("all",), 2: ("small", "large"), 3: ("small", "medium", "large")}


def size_names(size: np.ndarray, classes: int = 0) -> list[str]:
    """Size classes in words, from small to large; "" where there is none (-1). classes: how many there are.

    >>> size_names(np.array([0, 2, -1]), 3), size_names(np.array([4]), 5)
    (['small', 'large', ''], ['class 5 of 5'])
    """
    classes = classes or int(size.max(initial=-1)) + 1
    words = SIZES.get(classes, [f"class {k + 1} of {classes}" for k in range(classes)])
    return [words[k] if k >= 0 else "" for k in size.tolist()]


def attributes(block: Block) -> pd.DataFrame:
    """A row per record: home, cluster (-1: none), size, mean_kwh_per_day, peak_kwh, peak_hour (of its mean day)."""
    import pandas as pd

    days = block.values.reshape(len(block.ids), -1, block.per_day)
    return pd.DataFrame({
        "home": list(block.ids), "cluster": block.cluster, "size": size_names(block.size, block.sizes),
        "mean_kwh_per_day": days.sum(axis=2).mean(axis=1), "peak_kwh": days.max(axis=(1, 2)),
        "peak_hour": days.mean(axis=1).argmax(axis=1) * 24 / block.per_day})
