"""Local mode in the box: a home makes an artificial series from its own record, alone.

One home at a time and on one thread of linear algebra: the same record gives the same bytes in every process, whatever the
batch it is asked in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedenergy.households.household import Household
from fedenergy.synthesis import seams
from fedenergy.synthesis.components import DEFAULT, Recipe
from fedenergy.synthesis.generate import Synthetic, synthesise
from fedenergy.synthesis.records import Reading, read


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


def series_of(home: Household, seed: int, steps: int, *, continuous: bool = False, gaps: str = "refuse",
              most_missing: float = 0.1, **options: Any) -> np.ndarray:
    """(steps,) kWh per step: the home's artificial series, zeros after its whole days.

    continuous         midnights between exchanged days are brought back to the size of its own (seams.join)
    gaps, most_missing see records.Reading; options: of synthesise_home, whose errors it raises
    """
    if gaps != "refuse":
        home = _filled(home, Reading(gaps=gaps, most_missing=most_missing, cap_kwh=options.get("cap_kwh")))
    fake = synthesise_home(home, seed, **options)
    made = fake.values
    if continuous and fake.shuffle:
        real = home.total[None, :made.shape[1]]
        cap = options.get("cap_kwh")
        made = np.minimum(seams.join(made, real, home.steps_per_day), np.inf if cap is None else cap)
    found = np.zeros(steps)
    found[:made.size] = made[0]
    return found


def _filled(home: Household, how: Reading) -> Household:
    row = read([home], None, how).panel.values[0]
    return Household(home.id, ("total",), row[:, None], row, home.start, home.step_minutes)
