"""Artificial load profiles from pooled homes, or of each home by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedenergy.ids import stream
from fedenergy.synthesis import shuffle as shuffles
from fedenergy.synthesis.components import DEFAULT, Recipe, remake
from fedenergy.synthesis.intake import Panel, panel
from fedenergy.synthesis.segments import segment

GUARANTEES = {"curator": "none (heuristic): epsilon = infinity, one curator sees every record",
              "local": "none (heuristic): epsilon = infinity; a record stays in its home's box"}
VARIANTS = ("components_shuffle", "components", "raw_shuffle")


@dataclass(frozen=True)
class Cell:
    """Homes whose days were shuffled together: how many, sigma (kWh), the share of day-to-day steps larger than sigma in
    the real and in the artificial records, and whether a free shuffle without any was possible."""

    name: str
    homes: int
    sigma_kwh: float
    real_violations: float
    violations: float
    feasible: bool


@dataclass(frozen=True)
class Synthetic:
    """Artificial records.

    values     (N, T) float64 kWh per step, >= 0
    ids        curator: syn-000001, ... in an order that says nothing; local: each home's own
    cluster, size  of the cell that a record was made in (curator; -1 in local mode)
    counts     homes, cells, merged_cells, smallest_cell, clipped_steps (negative kWh set to 0), capped_steps
    guarantee  what protects the homes behind it, in words
    Where each day came from stays in the process that made it: it is not printed, exported or pickled.
    """

    values: np.ndarray
    ids: tuple[str, ...]
    start: np.datetime64
    step_minutes: int
    mode: str
    variant: str
    shuffle: str
    guarantee: str
    cluster: np.ndarray
    size: np.ndarray
    cells: tuple[Cell, ...]
    counts: Mapping[str, int]
    excluded: Mapping[str, str] = field(default_factory=dict)
    _provenance: np.ndarray | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_provenance": None}

    @property
    def violations(self) -> float:
        """Share of all day-to-day steps that are larger than their cell's sigma."""
        return _mean(self.cells, "violations")

    @property
    def real_violations(self) -> float:
        return _mean(self.cells, "real_violations")

    def panel(self) -> Panel:
        """The records as a Panel, for the judge."""
        return Panel(self.ids, self.values, self.start, self.step_minutes)


def synthesise(homes: Any, mode: str = "curator", *, seed: int, variant: str = "components_shuffle",
               shuffle: str | None = None, recipe: Recipe = DEFAULT, clusters: int | str = 4, sizes: int = 3,
               min_cell: int = 5, of: str = "profile", criterion: str = "silhouette", max_tries: int = 200,
               unit_days: int = 1, cap_kwh: float | None = None, on_bad: str = "raise") -> Synthetic:
    """As many artificial records as there are homes, over the same window.

    homes     a Population, Households, a Panel, or an array (N, T) of hourly kWh
    mode      "curator": homes are pooled; "local": each home by itself, as in its own box
    variant   "components_shuffle": parts modelled and drawn anew, then whole days exchanged inside a cell; "components":
              without the exchange, so record i still follows home i; "raw_shuffle": real days exchanged, every one verbatim
    shuffle, max_tries, unit_days   see shuffle.assign; None: "within_date" (curator), "free" (local)
    clusters, sizes, min_cell, of, criterion   see segments.segment (curator)
    cap_kwh, on_bad  see intake.panel
    Guarantee: none formal in either mode; the judge measures what leaks. The result depends on homes, arguments and seed
    only: not on the homes' order.
    Errors: ValueError naming the household, or the argument, its value and the rule.
    """
    if mode not in GUARANTEES:
        raise ValueError(f"mode = {mode!r}; use one of {', '.join(GUARANTEES)}")
    if variant not in VARIANTS:
        raise ValueError(f"variant = {variant!r}; use one of {', '.join(VARIANTS)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ValueError(f"seed = {seed!r}; use a whole number")
    seed = int(seed)
    method = shuffle or ("within_date" if mode == "curator" else "free")
    if method not in shuffles.METHODS:
        raise ValueError(f"shuffle = {method!r}; use one of {', '.join(shuffles.METHODS)}")
    if mode == "local" and method == "within_date":
        raise ValueError('shuffle = "within_date" exchanges days between homes, and in mode = "local" each is alone: use '
                         '"free", "same_daytype", "rejection" or "swaps"')
    real = panel(homes, cap_kwh=cap_kwh, on_bad=on_bad)
    count = len(real.ids)
    nothing = np.full(count, -1)
    if mode == "curator":
        found = segment(real, clusters, sizes=sizes, min_cell=min_cell, seed=seed % 2**32, of=of, criterion=criterion)
        members, cluster, size = found.members(), found.cluster, found.size
        names = [f"cell-{index}" for index in range(len(members))]
        merged, smallest = found.merged, found.smallest
    else:
        members, cluster, size = [np.array([i]) for i in range(count)], nothing, nothing
        names, merged, smallest = list(real.ids), 0, 1
    if variant == "raw_shuffle":
        base, clipped, capped = real.values, 0, 0
    else:
        made = remake(real, recipe, seed)
        base, clipped, capped = made.values, int(made.clipped.sum()), int(made.capped.sum())
    pool = base.reshape(real.profiles.shape)
    source = np.arange(count * real.days).reshape(count, real.days)
    cells = []
    for name, who in zip(names, members):
        totals = pool[who].sum(axis=2)
        rule = shuffles.constraint(real.profiles[who].sum(axis=2), totals)
        if variant != "components":
            rng = stream(seed, "synthesis.shuffle", name)
            here = shuffles.assign(totals, rule.sigma, method, rng, weekend=real.weekend, max_tries=max_tries,
                                   unit_days=unit_days)
            source[who] = who[here // real.days] * real.days + here % real.days
            totals = totals.ravel()[here]
        cells.append(Cell(name, who.size, rule.sigma, rule.real, shuffles.violations(totals, rule.sigma), rule.feasible))
    ids = real.ids
    if mode == "curator":  # the row number must not say whose record a row was made from
        order = stream(seed, "synthesis.order").permutation(count)
        source, cluster, size = source[order], cluster[order], size[order]
        ids = tuple(f"syn-{i + 1:06d}" for i in range(count))
    values = pool.reshape(count * real.days, -1)[source.ravel()].reshape(count, -1)
    counts = {"homes": count, "cells": len(cells), "merged_cells": merged, "smallest_cell": smallest,
              "clipped_steps": clipped, "capped_steps": capped}
    return Synthetic(values, ids, real.start, real.step_minutes, mode, variant, "" if variant == "components" else method,
                     GUARANTEES[mode], cluster, size, tuple(cells), counts, real.excluded, source)


def _mean(cells: tuple[Cell, ...], name: str) -> float:
    return float(np.average([getattr(cell, name) for cell in cells], weights=[cell.homes for cell in cells]))
