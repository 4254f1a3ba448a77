"""Trust modes: which envelope leaves a household's box, and who can open it.

| trust   | envelope  | who can open it                                   |
|---------|-----------|---------------------------------------------------|
| local   | Release   | anyone                                            |
| sum     | Share     | nobody singly; the Summer reveals only the sum    |
| curator | Deposit   | the Curator, who draws one noise                  |
| open    | Plain     | anyone: epsilon is infinite                       |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedenergy.households.household import check_household_id

LOCAL, SUM, CURATOR, OPEN = "local", "sum", "curator", "open"
TRUST_MODES = (LOCAL, SUM, CURATOR, OPEN)
REFUSED = "refused"


@dataclass(frozen=True)
class Envelope:
    """What one household lets out in answer to one query. Use a subclass; the trust mode fixes which."""

    household: str
    query_id: str
    epsilon_micro: int | None
    values: np.ndarray

    trust: ClassVar[str] = ""
    dtype: ClassVar[np.dtype]
    seen_by: ClassVar[str] = ""


class Release(Envelope):
    """(d,) float64, fully noised: exact multiples of the grid step."""

    trust, dtype, seen_by = LOCAL, np.dtype(np.float64), "anyone"


class Share(Envelope):
    """(d,) uint64: z plus a noise share plus a mask, modulo 2**64."""

    trust, dtype, seen_by = SUM, np.dtype(np.uint64), "nobody singly; the Summer reveals the sum"


class Deposit(Envelope):
    """(d,) int64: clipped, un-noised grid integers, for the Curator alone."""

    trust, dtype, seen_by = CURATOR, np.dtype(np.int64), "the Curator"


class Plain(Envelope):
    """(2, d) float64: clipped and unclipped summary; no privacy."""

    trust, dtype, seen_by = OPEN, np.dtype(np.float64), "anyone"


ENVELOPES: dict[str, type[Envelope]] = {kind.trust: kind for kind in (Release, Share, Deposit, Plain)}


def check_trust(trust: str) -> str:
    """Return trust if it is one of the four modes, else raise ValueError."""
    if trust not in ENVELOPES:
        raise ValueError(f"trust mode {trust!r} is unknown: use one of {', '.join(TRUST_MODES)}")
    return trust


def check_envelope(envelope: Envelope, trust: str, coordinates: int, grid_step: float | np.ndarray, bound: int,
                   norm: int = 1) -> Envelope:
    """The schema of the outbound gate and of the decoder: type, dtype, shape, finite, on the grid.

    coordinates  d; grid_step: g, in the unit of the values, or (d,) one for each; bound: K, of a Deposit's norm in
                 grid steps
    norm         1: l1; 2: l2, under Gaussian noise
    Raises ValueError naming the rule, never the values.
    """
    expected = ENVELOPES[check_trust(trust)]
    if type(envelope) is not expected:
        raise ValueError(f"trust {trust} lets out a {expected.__name__}, not a {type(envelope).__name__}")
    check_household_id(envelope.household)
    values = envelope.values
    shape = (2, coordinates) if trust == OPEN else (coordinates,)
    if values.dtype != expected.dtype or values.shape != shape:
        raise ValueError(f"a {expected.__name__} is {expected.dtype} {shape}, not {values.dtype} {values.shape}")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"a {expected.__name__} holds finite numbers only")
        if trust == LOCAL and not (np.remainder(values, grid_step) == 0).all():
            raise ValueError("a Release lies on the noise grid: every value is a multiple of the grid step")
    if trust == CURATOR and sum(abs(int(value)) ** norm for value in values) > bound**norm:  # Python's: no wrap-around
        raise ValueError(f"a Deposit is clipped: its l{norm} norm in grid steps is at most the agreed bound")
    epsilon = envelope.epsilon_micro
    if epsilon is not None if trust == OPEN else not (type(epsilon) is int and epsilon > 0):
        raise ValueError(f"a {expected.__name__} carries a positive integer micro-epsilon, and a Plain none")
    return envelope
