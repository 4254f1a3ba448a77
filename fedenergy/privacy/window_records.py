"""Windowed records on their way to a trusted trainer: public limits and shape, nothing more. They carry no noise.

The trainer named in the agreement sees them; the guarantee is that of what it trains, against whoever sees the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedenergy.households.household import check_household_id
from fedenergy.privacy.noise_free import reveal_to_mechanism
from fedenergy.privacy.trust import Deposit

WIDTH = np.dtype(np.float32)


def window_deposit(summary: Any, shape: tuple[int, int], cap: float) -> np.ndarray:
    """(n, T) float32 within [0, cap]; NaN where a reading is missing.

    summary  (n, T) numbers, or a NoiseFree of them. ValueError for another shape.
    """
    values = np.asarray(reveal_to_mechanism(summary), np.float64)
    if values.shape != shape:
        raise ValueError(f"windows have shape {values.shape}, and {shape} was agreed")
    with np.errstate(invalid="ignore"):
        return np.minimum(np.clip(values, 0.0, cap).astype(WIDTH), _largest(cap))


def check_windows(envelope: Deposit, shape: tuple[int, int], cap: float) -> Deposit:
    """The schema of the outbound gate and of the decoder; ValueError naming the rule, never the values."""
    if type(envelope) is not Deposit:
        raise ValueError(f"windows leave in a Deposit, not in a {type(envelope).__name__}")
    check_household_id(envelope.household)
    values = envelope.values
    if values.dtype != WIDTH or values.shape != shape:
        raise ValueError(f"a Deposit of windows is {WIDTH} {shape}, not {values.dtype} {values.shape}")
    known = values[~np.isnan(values)]
    if known.size and (known.min() < 0 or known.max() > cap):
        raise ValueError(f"a Deposit of windows holds readings within [0, {cap:g}], or NaN")
    if not (type(envelope.epsilon_micro) is int and envelope.epsilon_micro > 0):
        raise ValueError("a Deposit carries a positive integer micro-epsilon")
    return envelope


def _largest(cap: float) -> np.float32:
    """The largest float32 that is at most cap."""
    near = WIDTH.type(cap)
    return near if near <= cap else np.nextafter(near, WIDTH.type(0))
