"""The private mode's public constants, how its budget is split, and what that can give for a number of homes.

The total is (epsilon, delta) by zero-concentrated composition: rho of the whole follows from it, every query gets a part of
rho, and each is charged the epsilon that its own rho and its own part of delta say (privacy/gaussian.py).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Decimal
from functools import cached_property
from typing import Any

import numpy as np

from fedenergy.box.agreement import AgreementTerms
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.gaussian import check_delta, epsilon_of_rho, rho_micro
from fedenergy.privacy.one_block import OneBlock
from fedenergy.synthesis.private_home import GROUPS, WIDTH
from fedenergy.synthesis.private_shape import HARMONICS, START, effective

RELATION, UNIT = "replace-one", "household (all of its days)"
SHARES = {"synth_shape": 0.55, "synth_size": 0.08, "synth_stats": 0.37}   # of rho
USEFUL = {"daily shape": 0.6, "size classes": 0.25, "statistics, all cells": 0.6}   # noise beside the signal, at most
LOWEST_KWH, HIGHEST_KWH = 0.5, 200.0      # of a day: the inner borders of the size histogram


@dataclass(frozen=True)
class Constants:
    """What everyone knows before any home is asked; part of every query.

    clusters, sizes   K clusters of daily shapes, and size classes in each; steps: T Lloyd steps
    bins              of the size histogram, log-spaced from .5 to 200 kWh a day
    cap_kwh           bound of one hour: higher readings are cut to it in the home
    """

    clusters: int = 4
    sizes: int = 3
    steps: int = 4
    bins: int = 16
    cap_kwh: float = 100.0

    def __post_init__(self) -> None:
        for name, least, most in (("clusters", 1, 32), ("sizes", 1, 8), ("steps", 1, 16), ("bins", 4, 64)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f'{name} = {value!r}; mode = "private" uses a whole number from {least} to {most}')
        if self.bins < self.sizes:
            raise ValueError(f"bins = {self.bins} cannot hold {self.sizes} size classes; use more bins")
        if isinstance(self.cap_kwh, bool) or not 0 < self.cap_kwh < 1e6:
            raise ValueError(f"cap_kwh = {self.cap_kwh!r}; use a public bound above 0 kWh per hour, such as 100")

    @property
    def edges(self) -> np.ndarray:
        """(bins - 1,) inner borders of the size histogram, kWh a day."""
        return np.geomspace(LOWEST_KWH, HIGHEST_KWH, self.bins - 1)

    def layout(self, kind: str) -> dict[str, int]:
        """Blocks and their width in the answers to a kind of query."""
        blocks, width = {"synth_shape": (self.clusters, 2 * HARMONICS), "synth_size": (self.clusters * self.bins, 0),
                         "synth_stats": (self.clusters * self.sizes, WIDTH)}[kind]
        return {"blocks": blocks, "width": width}

    def law(self, kind: str, delta: float) -> OneBlock:
        return OneBlock(**self.layout(kind), delta=delta)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the queries, in the order in which they are asked."""
        return ("synth_shape",) * self.steps + ("synth_size", "synth_stats")


@dataclass(frozen=True)
class Spend:
    """One query's part of the budget: what each home is charged for it."""

    kind: str
    epsilon_micro: int
    delta: float
    rho_micro: int


@dataclass(frozen=True)
class Budget:
    """epsilon, delta of the whole run, per household, replace-one; constants say which queries there are.

    Errors: ValueError where epsilon or delta is no budget, or too small for that many queries.
    """

    epsilon: float
    delta: float
    constants: Constants = Constants()

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", micro(self.epsilon) / MICRO)
        object.__setattr__(self, "delta", check_delta(self.delta))
        if self.delta > 0.01:
            raise ValueError(f"delta = {self.delta:g} would let one home in {1 / self.delta:.0f} go unprotected: use at "
                             "most .01, and well below 1 / (number of homes)")
        self.spends  # noqa: B018 - its checks, before anything is asked

    @cached_property
    def spends(self) -> tuple[Spend, ...]:
        """One Spend per query, in order: rho adds up to at most the whole's."""
        whole, kinds = rho_micro(micro(self.epsilon), self.delta), self.constants.kinds
        each = _floor(Decimal(repr(self.delta)) / len(kinds))
        found = []
        for kind in kinds:
            part = int(whole * SHARES[kind] / kinds.count(kind))
            if part < 4:
                raise ValueError(f"epsilon = {self.epsilon:g} with delta = {self.delta:g} is too little for {len(kinds)} "
                                 "queries: raise it, or ask for fewer steps")
            asked = int(epsilon_of_rho(part, each) * MICRO)
            while rho_micro(asked, each) > part:
                asked -= 1
            found.append(Spend(kind, asked, each, rho_micro(asked, each)))
        return tuple(found)

    @property
    def charged(self) -> tuple[float, float]:
        """(epsilon, delta) that each home's ledger adds up: plain sums, looser than the statement of the whole."""
        return (sum(spend.epsilon_micro for spend in self.spends) / MICRO,
                float(sum(Decimal(repr(spend.delta)) for spend in self.spends)))

    def terms(self, trust: str) -> AgreementTerms:
        """The smallest agreement under which a home answers all queries of the run, and nothing else."""
        epsilon, delta = self.charged
        return AgreementTerms(cap=epsilon, delta=delta, trust=(trust,), classes=("synthetic",))

    def sigma(self, kind: str) -> float:
        """Standard deviation of the noise in every number of one answer to that kind, where a home adds at most 1."""
        spend = next(one for one in self.spends if one.kind == kind)
        return self.constants.law(kind, spend.delta).scale_units(spend.epsilon_micro)

    def promise(self, homes: int) -> Promise:
        """What the noise leaves of each statistic for that many homes. Uses public numbers only; spends nothing."""
        known = self.constants
        cluster, cell = homes / known.clusters, homes / (known.clusters * known.sizes)
        shape = self.sigma("synth_shape") * effective(known.steps)
        rows = {"daily shape": shape * math.sqrt(2 * HARMONICS) / (cluster * START), "homes per cluster": shape / cluster,
                "size classes": self.sigma("synth_size") * math.sqrt(known.bins / 2) / cluster}
        sigma, cells = self.sigma("synth_stats"), known.clusters * known.sizes
        signals = {group: (group.share * group.typical, sigma * math.sqrt(group.width)) for group in GROUPS}
        for group, (signal, noise) in signals.items():
            rows[group.name] = noise / (cell * signal)
        # what noise hides of the shapes' covariance is left out of the model, not believed
        kept = [value for group, value in signals.items() if group.name != "shape covariance"]
        rows["statistics, all cells"] = math.sqrt(cells * sum(noise**2 for _, noise in kept)
                                                  / sum(signal**2 for signal, _ in kept)) / homes
        return Promise(homes, self.epsilon, self.delta, rows)


@dataclass(frozen=True)
class Promise:
    """noise: statistic -> expected norm of its noise beside the norm of a typical home's value (1: as large)."""

    homes: int
    epsilon: float
    delta: float
    noise: dict[str, float]

    @property
    def useful(self) -> bool:
        return all(self.noise[name] <= most for name, most in USEFUL.items())

    @property
    def verdict(self) -> str:
        return "useful" if self.useful else "too few homes"

    def __str__(self) -> str:
        lines = [f"{self.homes} homes at epsilon = {self.epsilon:g}, delta = {self.delta:g}, {UNIT}, {RELATION}: "
                 f"{self.verdict}"]
        for name, value in self.noise.items():
            limit = f" (useful up to {USEFUL[name]:g})" if name in USEFUL else ""
            lines.append(f"  {name:<24} noise / signal {value:8.2f}{limit}")
        return "\n".join([*lines, "  what is noisy cell by cell is drawn towards all cells' mean; sampling costs nothing"])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def _floor(delta: Decimal) -> float:
    """Three digits, rounded down, so that the parts add up to at most the whole, to the digit."""
    return float(delta.quantize(Decimal(1).scaleb(delta.adjusted() - 2), rounding=ROUND_FLOOR))
