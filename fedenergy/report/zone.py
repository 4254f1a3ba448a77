"""The zone report as the operator gets it: what leads and how surely, the shape of the day, who answered, may it be shown.

Pure computations on what was released and on what is public about its noise (rows of `zone_answers` in summary.json,
made by federation/zone_answers.py). No truth, no refusal reason and no household enters: an operator has none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

MANY = 2_000  # noises from which the exact law of their sum is replaced by its normal limit (fourth moment: 3 + 3 / n)


# -- the law of the noise ----------------------------------------------------------------------------------------------

def tail(noise: Mapping[str, Any], value: float, coordinates: int = 1) -> float:
    """P(N > value) for value >= 0, N the sum of `coordinates` independent coordinates' noises.

    noise  {"law": "laplace", "scale": b, "noises": n}: n Laplace(b) in each coordinate, exact: their sum exceeds x with
           probability sum over j < n of C(n - 1 + j, j) / 2**(n + j) Q(n - j, x / b), Q the upper gamma function;
           {"law": "normal", "sd": s}

    >>> round(tail({"law": "laplace", "scale": 2.0, "noises": 1}, 2.0), 4)      # exp(-1) / 2
    0.1839
    """
    if not value >= 0:
        raise ValueError(f"a tail is asked for at value = {value!r}: give a number >= 0")
    if noise["law"] == "normal":
        return math.erfc(value / (noise["sd"] * math.sqrt(2 * coordinates))) / 2
    scale, n = float(noise["scale"]), int(noise["noises"]) * coordinates
    if n > MANY:
        return math.erfc(value / (2 * scale * math.sqrt(n))) / 2
    from scipy.special import gammaincc
    from scipy.stats import nbinom

    j = np.arange(n)
    return float(nbinom.pmf(j, n, 0.5) @ gammaincc(n - j, value / scale))


def margin(noise: Mapping[str, Any], chance: float) -> float:
    """The value that one coordinate's noise exceeds, in size, with that chance (0 to 1)."""
    if not 0 < chance < 1:
        raise ValueError(f"chance = {chance!r} lies outside (0, 1)")
    low, high = 0.0, float(noise.get("sd") or noise["scale"])
    while 2 * tail(noise, high) > chance:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 * tail(noise, middle) > chance else (low, middle)
    return high


def intervals(released: Sequence[float], noise: Mapping[str, Any],
              confidence: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """(low, high), each (d,) or (n, d) as released: they hold all d clipped sums at once, with that confidence.

    Bonferroni: each of the d holds its own with 1 - (1 - confidence) / d.
    """
    values = np.asarray(released, np.float64)
    half = margin(noise, (1 - confidence) / values.shape[-1])
    return values - half, values + half


def leader(released: Sequence[float], noise: Mapping[str, Any] | None) -> tuple[int, float | None]:
    """(index of the largest value, confidence that it is the largest clipped sum); None where the noise is not known.

    confidence = 1 - sum over the others of P(their noise exceeds the leader's by the gap seen), at least 0: were another
    one the largest in truth, a lead like this would come up in at most 1 - confidence of all draws.
    """
    values = np.asarray(released, np.float64)
    first = int(np.argmax(values))
    if noise is None:
        return first, None
    gaps = values[first] - np.delete(values, first)
    return first, max(0.0, 1.0 - math.fsum(tail(noise, float(gap), 2) for gap in gaps))


def day_shape(released: Sequence[float], answers: int) -> np.ndarray:
    """(24,) the zone's mean share of energy per clock hour: released sums per home, none below 0, adding up to 1.

    Biased upwards where the true share is within the noise of 0; all zeros where noise left nothing positive.

    >>> day_shape([3.0, -1.0, 1.0], 4).tolist()
    [0.75, 0.0, 0.25]
    """
    shares = np.maximum(np.asarray(released, np.float64) / max(1, answers), 0.0)
    total = shares.sum()
    return shares / total if total > 0 else shares


# -- may it be published -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class KMin:
    """A publishing rule that operators apply on top of differential privacy: enough homes, and none that dominates.

    least  homes in the sum; largest_share: of a public bound of the sum that one home may hold at most; None: no rule
    """

    least: int
    largest_share: float | None = None

    def verdict(self, answers: int, clip: float, public_bound: float | None = None) -> tuple[bool, str]:
        """(may it be published, why).

        clip          C: the most that one home can add to a coordinate, which clipping guarantees
        public_bound  of the zone's sum, in the same unit: a feeder's rating, say, never the sum itself; None: what that
                      many homes can add at most, answers * clip (then the rule is the number of homes again)

        >>> PRESETS["15"].verdict(14, 50.0)
        (False, '14 homes answered, at least 15 are needed')
        >>> PRESETS["15"].verdict(20, 50.0, public_bound=200.0)
        (False, 'one home can hold 25 % of the public bound, at most 15 % is allowed')
        """
        if answers < self.least:
            return False, f"{answers} homes answered, at least {self.least} are needed"
        if self.largest_share is None:
            return True, f"{answers} homes answered, at least {self.least} are needed"
        bound = answers * clip if public_bound is None else public_bound
        if not bound > 0:
            raise ValueError(f"public_bound = {public_bound!r} is not a bound above 0")
        share = clip / bound
        if not share <= self.largest_share:
            return False, (f"one home can hold {100 * share:.3g} % of the public bound, at most "
                           f"{100 * self.largest_share:g} % is allowed")
        return True, f"{answers} homes answered, and one can hold at most {100 * share:.3g} % of the public bound"


PRESETS: Mapping[str, KMin] = MappingProxyType({"15": KMin(15, 0.15), "100": KMin(100)})
"""K_min: the 15/15 rule of utility regulators, and 100 homes."""


# -- the report --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class ZoneReport:
    """One answer of a zone, read.

    names, values    (d,) the released sums; low, high: simultaneous intervals, None where the noise is not known
    leader, confidence   the largest one (None for a kind with one number), and how sure that is
    shares           (d,) of the homes that answered (top) or of the day's energy (peak_hour), else None
    refused          homes that were asked and gave no answer; publish: preset -> (may it be, why)
    zone             its number, where the homes were dealt out to several
    """

    kind: str
    unit: str
    strategy: str
    epsilon: float
    round: int
    names: tuple[str, ...]
    values: tuple[float, ...]
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    leader: str | None
    confidence: float | None
    shares: tuple[float, ...] | None
    answers: int
    refused: int
    publish: Mapping[str, tuple[bool, str]]
    zone: str = ""

    @property
    def ranked(self) -> list[int]:
        """Coordinates by value, largest first; clock hours stay in order."""
        if self.kind == "peak_hour":
            return list(range(len(self.names)))
        return sorted(range(len(self.names)), key=lambda k: (-self.values[k], k))


def read_answer(row: Mapping[str, Any], public_bound: float | None = None, confidence: float = 0.95) -> ZoneReport:
    """The report of one row of `zone_answers`. public_bound: see KMin.verdict.

    Errors: ValueError for a row whose numbers do not fit together.
    """
    names, values = tuple(row["coordinates"]), tuple(map(float, row["released"]))
    if len(names) != len(values) or not values or not np.isfinite(values).all():
        raise ValueError(f"a zone's answer has {len(values)} finite numbers for {len(names)} coordinates, at least one")
    noise, answers = row.get("noise"), int(row["answers"])
    low, high = intervals(values, noise, confidence) if noise else (None, None)
    first, sure = leader(values, noise) if len(values) > 1 else (None, None)
    shares = {"peak_hour": lambda: day_shape(values, answers), "top": lambda: np.array(values) / max(1, answers)}
    found = shares[row["kind"]]() if row["kind"] in shares else None
    return ZoneReport(
        row["kind"], row["unit"], row["strategy"], float(row["epsilon"]), int(row["round"]), names, values,
        None if low is None else tuple(low.tolist()), None if high is None else tuple(high.tolist()),
        None if first is None else names[first], sure, None if found is None else tuple(found.tolist()), answers,
        int(row["asked"]) - answers,
        {name: rule.verdict(answers, float(row["clip"]), public_bound) for name, rule in PRESETS.items()},
        str(row.get("zone", "")))


def latest(rows: Sequence[Mapping[str, Any]]) -> list[ZoneReport]:
    """One report per kind, strategy and zone: of the first seed, the largest epsilon and the last round."""
    chosen: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = row["kind"], row["strategy"], str(row.get("zone", ""))
        order = (-int(row["seed"]), float(row["epsilon"]), int(row["round"]))
        known = chosen.get(key)
        if known is None or order > (-int(known["seed"]), float(known["epsilon"]), int(known["round"])):
            chosen[key] = row
    return [read_answer(chosen[key]) for key in sorted(chosen, key=lambda key: (*key[:2], len(key[2]), key[2]))]
