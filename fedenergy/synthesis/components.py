"""One home's record taken apart on the log scale, each part modelled and drawn again, and put together.

log1p -> STL -> trend by a Gaussian process, residual by a GEV law, seasonal part kept or moved -> sum -> expm1. Everything
is computed for many homes at once; random numbers are keyed by the home's id, so a home's result does not depend on the
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedenergy.ids import stream
from fedenergy.synthesis import residual as residuals
from fedenergy.synthesis.intake import Panel
from fedenergy.synthesis.stl import decompose_seasons
from fedenergy.synthesis.trend import TrendGP

BLOCK = 256
JITTER = 0.1   # sd of a day's log amplitude
SEASONAL_PARTS = ("keep", "jitter", "phase_shift")


@dataclass(frozen=True)
class Recipe:
    """How each part is made; the defaults are the sound forms, SOURCE the source's.

    seasonal       STL's seasonal window in *periods* (days at 24 h), odd
    periods        hours of the seasonal parts: (24,), or (24, 168) with a weekly one (at least 21 days)
    gp             "grid": centred, alpha relative to the trend's variance; "source": neither, alpha = 1e-2 absolute
    trend          "joint" sample of the posterior, "prior" (does not see the home's path), "marginal" (the source's: white
                   noise around the posterior mean)
    residual       "gev_ar", "gev" (the source's) or "empirical"
    seasonal_part  "keep" passes it on verbatim, "jitter" scales every day's by exp(N(0, .1)), "phase_shift" moves the whole
                   part by -phase_hours .. phase_hours
    fit            "home": a residual law and a trend kernel for each home; "cell": one of each for all homes of a cell, so
                   that they are no single home's own
    floor_kwh      readings below are lifted to it before the log
    polish         GEV: largest likelihood, rather than L-moments alone
    """

    seasonal: int = 13
    periods: tuple[int, ...] = (24,)
    gp: str = "grid"
    trend: str = "joint"
    residual: str = "gev_ar"
    seasonal_part: str = "keep"
    phase_hours: int = 1
    floor_kwh: float = 0.0
    polish: bool = True
    fit: str = "home"

    def __post_init__(self) -> None:
        for name, options in (("gp", ("grid", "source")), ("trend", ("joint", "prior", "marginal")),
                              ("residual", residuals.FORMS), ("seasonal_part", SEASONAL_PARTS), ("fit", ("home", "cell"))):
            if (value := getattr(self, name)) not in options:
                raise ValueError(f"{name} = {value!r}; use one of {', '.join(options)}")
        whole = [isinstance(hours, int | np.integer) and not isinstance(hours, bool) and hours > 0 for hours in self.periods]
        if not whole or not all(whole):
            raise ValueError(f"periods = {self.periods!r}; use whole hours: (24,), or (24, 168) with a weekly part")
        if not 0 <= self.floor_kwh < np.inf:
            raise ValueError(f"floor_kwh = {self.floor_kwh}; use 0 or a small energy per step such as 0.1")
        if isinstance(self.phase_hours, bool) or not isinstance(self.phase_hours, int) or self.phase_hours < 1:
            raise ValueError(f"phase_hours = {self.phase_hours!r}; use a whole number of hours of at least 1")


DEFAULT = Recipe()
SOURCE = Recipe(gp="source", trend="marginal", residual="gev")


@dataclass(frozen=True)
class Made:
    """values (N, T) kWh per step, and per home how many steps came out negative (set to 0) or above the cap (set to it)."""

    values: np.ndarray
    clipped: np.ndarray
    capped: np.ndarray


def remake(panel: Panel, recipe: Recipe = DEFAULT, seed: int = 0, cells: Sequence[np.ndarray] | None = None) -> Made:
    """Every home of the panel made anew, row for row: row i still follows home i (see shuffle.py).

    cells  of fit = "cell": the rows of each; None: all homes are one
    """
    everyone = np.arange(len(panel.ids))
    if recipe.fit == "cell":
        parts = [everyone] if cells is None else list(cells)
    else:
        parts = [everyone[first:first + BLOCK] for first in range(0, everyone.size, BLOCK)]
    blocks = [_remake([panel.ids[row] for row in part], panel.values[part], panel, recipe, seed) for part in parts]
    back_to = np.argsort(np.concatenate(parts), kind="stable")
    return Made(*(np.concatenate(part)[back_to] for part in zip(*blocks)))


def _remake(ids: Sequence[str], kwh: np.ndarray, panel: Panel, recipe: Recipe, seed: int):
    steps = kwh.shape[1]
    periods = [hours * 60 // panel.step_minutes for hours in recipe.periods]
    trend, season, rest = decompose_seasons(np.log1p(np.maximum(kwh, recipe.floor_kwh)), periods, recipe.seasonal)
    if (idle := rest.std(axis=1) <= 1e-9 * (trend + season).std(axis=1)).any():
        raise ValueError(f"household {ids[int(np.argmax(idle))]}: nothing is left beside its trend and seasonal part, so "
                         "its record would be passed on; leave it out")
    try:
        left = (residuals.fit_together if recipe.fit == "cell" else residuals.fit)(rest, recipe.residual, panel.per_day,
                                                                                   recipe.polish)
    except ValueError as error:
        flat = int(np.argmin(rest.std(axis=1)))
        raise ValueError(f"household {ids[flat]}: {error}; leave it out") from error
    process = TrendGP(steps, panel.step_minutes, recipe.gp == "source")
    fitted = process.fit_together(trend) if recipe.fit == "cell" else process.fit(trend)
    width = steps if recipe.trend == "marginal" else process.grid.size
    normal = _normals(ids, seed, "synthesis.components", steps + width)  # the residual's first: as wide in every form
    log = process.sample(fitted, normal[:, steps:], recipe.trend)
    log += left.sample(normal[:, :steps])
    log += _move(season, ids, recipe, panel, seed)
    return back(log, panel.cap_kwh)


def _normals(ids: Sequence[str], seed: int, purpose: str, width: int) -> np.ndarray:
    return np.stack([stream(seed, purpose, home).standard_normal(width) for home in ids])


def _move(season: np.ndarray, ids: Sequence[str], recipe: Recipe, panel: Panel, seed: int) -> np.ndarray:
    if recipe.seasonal_part == "keep":
        return season
    if recipe.seasonal_part == "jitter":
        factor = np.exp(JITTER * _normals(ids, seed, "synthesis.seasonal", panel.days))
        return season * np.repeat(factor, panel.per_day, axis=1)
    moved = np.empty_like(season)
    for i, home in enumerate(ids):
        hours = int(stream(seed, "synthesis.seasonal", home).integers(-recipe.phase_hours, recipe.phase_hours + 1))
        moved[i] = np.roll(season[i], hours * 60 // panel.step_minutes)
    return moved


def back(log: np.ndarray, cap_kwh: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(kWh (N, T), steps below 0 (N,), steps above the cap (N,)) of log1p values.

    expm1 of a sum of parts can be negative. Those steps become 0, and the home's others are scaled so that its mean stays
    what it was before; then the cap.

    >>> values, clipped, capped = back(np.log1p(np.array([[-0.5, 1.0, 2.0, 1.5]])), 10.0)
    >>> round(float(values.mean()), 9), int(clipped[0]), int(capped[0])
    (1.0, 1, 0)
    """
    kwh = np.expm1(np.minimum(log, 50.0))
    negative = kwh < 0
    lifted = np.where(negative, 0.0, kwh)
    before, after = kwh.mean(axis=1), lifted.mean(axis=1)
    kept = (before > 0) & (after > 0)
    lifted *= np.where(kept, before / np.where(after > 0, after, 1), 1)[:, None]
    above = lifted > cap_kwh
    return np.minimum(lifted, cap_kwh), negative.sum(axis=1), above.sum(axis=1)
