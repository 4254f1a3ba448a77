"""Local mode in the box: a home makes an artificial series from its own record, alone.

One home at a time and on one thread of linear algebra: the same record gives the same bytes in every process, whatever the
batch it is asked in.
"""

from __future__ import annotations

import numpy as np

from fedenergy.households.household import Household
from fedenergy.synthesis.components import DEFAULT, Recipe
from fedenergy.synthesis.generate import Synthetic, synthesise


def synthesise_home(home: Household, seed: int, *, variant: str = "components_shuffle", shuffle: str = "free",
                    recipe: Recipe = DEFAULT, max_tries: int = 200, unit_days: int = 1,
                    cap_kwh: float | None = None) -> Synthetic:
    """One record made from one, over the same window; whole days of it exchanged among themselves (synthesise, "local").

    Guarantee: none formal. What leaves the box with it is the agreement's matter (box/box.py).
    Errors: ValueError naming the household: see intake.panel.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        return synthesise([home], "local", seed=seed, variant=variant, shuffle=shuffle, recipe=recipe, max_tries=max_tries,
                          unit_days=unit_days, cap_kwh=cap_kwh)


def series_of(home: Household, seed: int, steps: int, **options) -> np.ndarray:
    """(steps,) kWh per step: the home's artificial series, zeros after its whole days. ValueError: see synthesise_home."""
    made = synthesise_home(home, seed, **options).values[0]
    found = np.zeros(steps)
    found[:made.size] = made
    return found
