"""The public parameters of a protocol-mode sum, and the homes that a simulation makes vanish."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from fedenergy import ids

MILLION = 1_000_000
MAX_HOMES = 1000          # every home seals a letter to every other: 10**6 key agreements
_NAME = re.compile(r"laplace-protocol-tau([1-9][0-9]{0,6})-c(0|[1-9][0-9]{0,2})-drop(0|[1-9][0-9]{0,5})")
KEYS, SECRETS, LATE = STAGES = ("keys", "secrets", "late")


@dataclass(frozen=True)
class SumProtocol:
    """The public parameters of a protocol-mode sum; they travel in the sealed query as its mechanism's name.

    tau        share of the n homes that must remain: noise shares are 1 / (tau n); on a grid of 1e-6
    colluders  c: how many homes the aggregator may have on its side
    drop_out   of a simulation: the share of the homes asked that vanish before their answer arrives

    >>> SumProtocol(0.8, drop_out=0.2).mechanism
    'laplace-protocol-tau800000-c0-drop200000'
    >>> SumProtocol.parse("laplace-protocol-tau800000-c0-drop200000") == SumProtocol(0.8, drop_out=0.2)
    True
    """

    tau: float = 1.0
    colluders: int = 0
    drop_out: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in (("tau", 1, MILLION), ("drop_out", 0, MILLION - 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value != value \
                    or not low <= round(value * MILLION) <= high:
                rule = "above 0 and at most 1" if low else "at least 0 and below 1"
                raise ValueError(f"SecureSum {name} = {value!r}: use a share {rule}")
            object.__setattr__(self, name, round(value * MILLION) / MILLION)
        if isinstance(self.colluders, bool) or not isinstance(self.colluders, int) \
                or not 0 <= self.colluders < MAX_HOMES:
            raise ValueError(f"SecureSum colluders = {self.colluders!r}: use a whole number from 0 to {MAX_HOMES - 1}")
        if self.colluders and self.tau == 1:
            raise ValueError(f"SecureSum colluders = {self.colluders} with tau = 1: no sum could open, since n survivors "
                             "minus colluders stay below n; lower tau")

    @property
    def mechanism(self) -> str:
        """The name in the sealed query: hence part of its id."""
        return f"laplace-protocol-tau{_millionths(self.tau)}-c{self.colluders}-drop{_millionths(self.drop_out)}"

    @staticmethod
    def parse(mechanism: str) -> SumProtocol | None:
        """The parameters that a mechanism's name states; None where it is not a protocol-mode sum."""
        if not mechanism.startswith("laplace-protocol"):
            return None
        if (found := _NAME.fullmatch(mechanism)) is None:
            raise ValueError(f"mechanism {mechanism!r} is no protocol-mode sum: use SumProtocol(...).mechanism")
        tau, colluders, drop = map(int, found.groups())
        return SumProtocol(tau / MILLION, colluders, drop / MILLION)

    def parties(self, homes: int) -> int:
        """P = ceil(tau n): how many noise shares make one whole noise."""
        return -(-_millionths(self.tau) * homes // MILLION)

    def threshold(self, homes: int) -> int:
        """t = floor((n + c) / 2) + 1 homes open a secret; more than c, and no two sets of survivors find t answers."""
        return (homes + self.colluders) // 2 + 1

    def needed(self, homes: int) -> int:
        """The fewest survivors over which the sum opens: max(P + c, t)."""
        return max(self.parties(homes) + self.colluders, self.threshold(homes))

    def variance_factor(self, homes: int, survivors: int) -> Fraction:
        """Variance of the noise in the sum over those survivors, in variances of one Laplace: s / P."""
        return Fraction(survivors, self.parties(homes))


def vanishing(protocol: SumProtocol, query_id: str, asked: Sequence[str]) -> dict[str, str]:
    """Of a simulation: which homes vanish, floor(drop_out N) of those asked, and in which round.

    "keys" (before it posts anything), "secrets" (before round 3: not charged) or "late" (its y comes too late: charged),
    in turn; a function of query id and names alone.
    """
    count = _millionths(protocol.drop_out) * len(asked) // MILLION
    order = sorted(asked, key=lambda name: ids.digest(b"fe.dropout.1", [query_id, name]))
    return {name: STAGES[place % 3] for place, name in enumerate(order[:count])}


def _millionths(value: float) -> int:
    return round(value * MILLION)
