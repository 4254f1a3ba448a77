"""The plainest private synthesiser: one noised histogram per hour of the day, every reading drawn from its hour's.

Unit household (all of its days), replace-one: a home adds one unit of weight per hour, spread over the bins as its days are,
so its vector has an l2 norm of at most sqrt(24) whatever it holds. One discrete Gaussian noise is drawn for the exact sum of
all homes (a curator sees the clipped vectors). Every draw after that is post-processing. It knows no home and no day: all
dependence between hours is lost, which is what it is here to show.
"""

from __future__ import annotations

import math

import numpy as np

from fedenergy.ids import stream
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.gaussian import Gaussian
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.intake import Panel

EDGES = np.concatenate([[0.0], np.geomspace(0.02, 10.0, 13), [np.inf]])     # kWh per hour, public
RELATION, UNIT = "replace-one", "household (all of its days)"


def counts(homes: Panel) -> np.ndarray:
    """(N, per_day * bins) each home's shares of days per hour and bin, each hour's adding up to 1."""
    bins = EDGES.size - 1
    at = np.searchsorted(EDGES * homes.step_minutes / 60, homes.profiles, side="right") - 1      # (N, D, per_day)
    index = at + bins * np.arange(homes.per_day)
    found = np.stack([np.bincount(home.ravel(), minlength=bins * homes.per_day) for home in index])
    return found / homes.days


def synthesise(homes: Panel, *, epsilon: float, delta: float, seed: int, count: int = 0) -> Synthetic:
    """`count` records (0: as many as homes) from the noised histograms, over the homes' window.

    The number of homes, the bins, the cap and the window are public. Seeded noise: stamped, not private.
    """
    law = Gaussian(math.sqrt(homes.per_day), delta)
    total = sum(law.deposit(row).astype(object) for row in counts(homes))
    source = SimulationNoise(seed).source("zone", "synthesis.histogram")
    noised = law.grid.decode(np.asarray(total + law.noise(source, micro(epsilon), total.size), np.int64))
    weights = np.maximum(noised.reshape(homes.per_day, -1), 0.0)
    weights[weights.sum(axis=1) == 0] = 1.0
    share = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    count = count or len(homes.ids)
    rng = stream(seed, "synthesis.histogram.draw")
    uniform = rng.random((2, count, homes.days, homes.per_day))
    bin_of = (uniform[0][..., None] > share[:, :-1]).sum(axis=-1)
    edges = EDGES * homes.step_minutes / 60
    low, high = edges[bin_of], np.minimum(edges[bin_of + 1], 2 * edges[-2])
    values = np.where(low > 0, np.where(low > 0, low, 1) * (high / np.where(low > 0, low, 1)) ** uniform[1],
                      high * uniform[1])
    values = np.minimum(values, homes.cap_kwh).reshape(count, -1)
    nothing = np.full(count, -1)
    return Synthetic(values, tuple(f"syn-{i + 1:06d}" for i in range(count)), homes.start, homes.step_minutes, "private",
                     "dp_histogram", "", f"epsilon {epsilon:g}, delta {delta:g} per {UNIT}, {RELATION}; a curator draws one "
                     f"noise; {SimulationNoise.stamp}", nothing, nothing, (), {"homes": len(homes.ids)})
