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

PRIVATE = "private"
GUARANTEES = {"curator": "none (heuristic): epsilon = infinity, one curator sees every record",
              "local": "none (heuristic): epsilon = infinity; each series is made of one home's record alone"}
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
    privacy    private mode: what was spent, on whom, in which queries (synthesis.private); else None
    choice     clusters = "auto": K -> criterion (inertia, silhouette, calinski_harabasz) -> value, for one figure of all
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
    privacy: Mapping[str, Any] | None = None
    choice: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

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
               distance: str = "euclidean", unit_days: int = 1, cap_kwh: float | None = None, on_bad: str = "raise",
               **private: Any) -> Synthetic:
    """As many artificial records as there are homes, over the same window; in private mode any number over any.

    homes     a Population, Households, a Panel, or an array (N, T) of hourly kWh
    mode      "curator": homes are pooled; "local": each home by itself, as in its own box; "private": from noised
              statistics of a federated run, with epsilon=, delta= and the other arguments of private.fit_private and
              private.sample_private (count=, days=, trust=, noise=, ledger=, workers=, ...); of those here it takes seed,
              clusters, sizes, cap_kwh
    variant   "components_shuffle": parts modelled and drawn anew, then whole days exchanged inside a cell; "components":
              without the exchange, so record i still follows home i; "raw_shuffle": real days exchanged, every one verbatim
    shuffle, max_tries, unit_days   see shuffle.assign; None: "within_date" (curator), "free" (local)
    clusters, sizes, min_cell, of, criterion, distance   see segments.segment (curator)
    cap_kwh, on_bad  see intake.panel
    Guarantee: none formal in curator and local mode (the judge measures what leaks); (epsilon, delta) per household in
    private mode, as .privacy and .guarantee state it. The result depends on homes, arguments and seed
    only: not on the homes' order.
    Errors: ValueError naming the household, or the argument, its value and the rule.
    """
    if mode not in (*GUARANTEES, PRIVATE):
        raise ValueError(f"mode = {mode!r}; use one of {', '.join((*GUARANTEES, PRIVATE))}")
    if mode == PRIVATE:
        others = {"variant": (variant, "components_shuffle"), "shuffle": (shuffle, None), "recipe": (recipe, DEFAULT),
                  "min_cell": (min_cell, 5), "of": (of, "profile"), "criterion": (criterion, "silhouette"),
                  "distance": (distance, "euclidean"), "max_tries": (max_tries, 200), "unit_days": (unit_days, 1),
                  "on_bad": (on_bad, "raise")}
        return _private(homes, others, {"seed": seed, "clusters": clusters, "sizes": sizes, "cap_kwh": cap_kwh, **private})
    if private:
        raise ValueError(f"{', '.join(private)}: mode = {mode!r} has no such argument; they belong to mode = \"{PRIVATE}\"")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ValueError(f"seed = {seed!r}; use a whole number")
    seed = int(seed)
    method = shuffle or ("within_date" if mode == "curator" else "free")
    check_choices(mode, variant, method)
    real = panel(homes, cap_kwh=cap_kwh, on_bad=on_bad)
    count = len(real.ids)
    nothing = np.full(count, -1)
    if mode == "curator":
        found = segment(real, clusters, sizes=sizes, min_cell=min_cell, seed=seed % 2**32, of=of, criterion=criterion,
                        distance=distance)
        members, cluster, size = found.members(), found.cluster, found.size
        names = [f"cell-{index}" for index in range(len(members))]
        merged, smallest, choice = found.merged, found.smallest, found.scores
    else:
        members, cluster, size = [np.array([i]) for i in range(count)], nothing, nothing
        names, merged, smallest, choice = list(real.ids), 0, 1, {}
    if variant == "raw_shuffle":
        base, clipped, capped = real.values, 0, 0
    else:
        made = remake(real, recipe, seed, members)
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
                     GUARANTEES[mode], cluster, size, tuple(cells), counts, real.excluded, source, choice=choice)


def check_choices(mode: str, variant: str, shuffle: str) -> None:
    """ValueError for a variant or shuffle that does not exist, or that one home alone cannot do."""
    if variant not in VARIANTS:
        raise ValueError(f"variant = {variant!r}; use one of {', '.join(VARIANTS)}")
    if shuffle not in shuffles.METHODS:
        raise ValueError(f"shuffle = {shuffle!r}; use one of {', '.join(shuffles.METHODS)}")
    if mode == "local" and shuffle == "within_date":
        raise ValueError('shuffle = "within_date" exchanges days between homes, and in mode = "local" each is alone: use '
                         '"free", "same_daytype", "rejection" or "swaps"')


def _private(homes: Any, others: Mapping[str, tuple[Any, Any]], arguments: dict[str, Any]) -> Synthetic:
    from fedenergy.synthesis.private import synthesise_private

    if given := [name for name, (value, default) in others.items() if value != default]:
        raise ValueError(f'{", ".join(given)}: mode = "private" draws from noised statistics and has no such argument')
    if not isinstance(arguments["clusters"], int):
        raise ValueError(f'clusters = {arguments["clusters"]!r}; mode = "private" needs a number of clusters that is chosen '
                         "without looking at the homes: a choice by their scores would cost budget")
    for name, example in (("epsilon", "2.0"), ("delta", "1e-5")):
        if arguments.get(name) is None:
            raise ValueError(f'mode = "private" needs {name}, such as {name} = {example}')
    if arguments["cap_kwh"] is None:
        del arguments["cap_kwh"]
    return synthesise_private(homes, **arguments)


def _mean(cells: tuple[Cell, ...], name: str) -> float:
    if not cells:  # private mode: nobody knows the homes' own rate
        return float("nan")
    return float(np.average([getattr(cell, name) for cell in cells], weights=[cell.homes for cell in cells]))
