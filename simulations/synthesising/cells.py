"""The cells of the study: which records are made, by name, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedenergy.synthesis.components import DEFAULT, SOURCE, Recipe
from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.intake import Panel
from fedenergy.synthesis.stream import Plan, make

RECIPES: Mapping[str, Recipe] = {"source": SOURCE, "sound": DEFAULT}
VARY = ("study", "variant", "shuffle", "segments", "recipe", "seasonal_part", "clusters", "seasonal")
FREE, WITHIN, TYPED = "free", "within_date", "same_daytype"


@dataclass(frozen=True)
class Cell:
    """One kind of records of the studies "variants" and "tradeoff"."""

    study: str
    variant: str
    plan: Plan
    recipe: str
    segments: bool = True
    seed: int = 0

    @property
    def method(self) -> str:
        """Its name in tables: what is done, in words."""
        parts = [self.variant]
        if self.variant != "raw_shuffle":
            parts.append(self.recipe)
            if self.plan.recipe.seasonal_part != "keep":
                parts.append(self.plan.recipe.seasonal_part)
        if self.plan.shuffle:
            parts.append(self.plan.shuffle + ("" if self.segments else ", one segment"))
        return " / ".join(part.replace("_", " ") for part in parts)

    @property
    def key(self) -> dict[str, Any]:
        """What determines its records, beside the homes."""
        return {"study": self.study, "method": self.method, "clusters": self.plan.clusters,
                "seasonal": self.plan.recipe.seasonal, "seed": self.seed}

    @property
    def row(self) -> dict[str, Any]:
        """VARY, method and seed, for the tables."""
        return {"study": self.study, "method": self.method, "variant": self.variant, "shuffle": self.plan.shuffle or "none",
                "segments": self.segments, "recipe": self.recipe, "seasonal_part": self.plan.recipe.seasonal_part,
                "clusters": str(self.plan.clusters), "seasonal": self.plan.recipe.seasonal, "seed": self.seed}

    def make(self, homes: Panel) -> Synthetic:
        return make(homes, self.plan, self.seed)


def variants(plan: Plan, recipes: tuple[str, ...], shuffles: tuple[str, ...], segments: tuple[bool, ...],
             seasonal_parts: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Cell]:
    """raw_shuffle, components and components_shuffle, each with every exchange of days, with and without segments.

    Other treatments of the seasonal part are tried on the first recipe, exchange and segmentation only.
    """
    plan = replace(plan, continuous=False)      # the variants as the source has them: days stay what they are
    for seed in seeds:
        for recipe in recipes:
            own = replace(plan, recipe=_recipe(plan.recipe, recipe))
            yield Cell("variants", "components", replace(own, variant="components", shuffle=""), recipe, True, seed)
            for shuffle in shuffles:
                for segmented in segments:
                    yield Cell("variants", "components_shuffle", _cut(own, "components_shuffle", shuffle, segmented), recipe,
                               segmented, seed)
        for part in seasonal_parts:
            if part != "keep":
                own = replace(plan, recipe=replace(_recipe(plan.recipe, recipes[0]), seasonal_part=part))
                yield Cell("variants", "components_shuffle", _cut(own, "components_shuffle", shuffles[0], segments[0]),
                           recipes[0], segments[0], seed)
        for shuffle in shuffles:
            for segmented in segments:
                yield Cell("variants", "raw_shuffle", _cut(plan, "raw_shuffle", shuffle, segmented), "none", segmented, seed)


def tradeoff(plan: Plan, recipe: str, clusters: tuple[int, ...], seasonal: tuple[int, ...],
             seeds: tuple[int, ...]) -> Iterator[Cell]:
    """components_shuffle over a grid of K and of STL's seasonal window."""
    for seed in seeds:
        for k in clusters:
            for window in seasonal:
                own = replace(plan, clusters=k, variant="components_shuffle", shuffle=plan.shuffle or WITHIN,
                              continuous=False,
                              recipe=replace(_recipe(plan.recipe, recipe), seasonal=window))
                yield Cell("tradeoff", "components_shuffle", own, recipe, True, seed)


def _recipe(own: Recipe, name: str) -> Recipe:
    """The named recipe's models with the plan's own window, periods and floor."""
    known = RECIPES[name]
    return replace(own, gp=known.gp, trend=known.trend, residual=known.residual)


def _cut(plan: Plan, variant: str, shuffle: str, segmented: bool) -> Plan:
    one = {} if segmented else {"clusters": 1, "sizes": 1}
    return replace(plan, variant=variant, shuffle=shuffle, **one)
