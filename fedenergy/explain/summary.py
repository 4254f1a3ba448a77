"""From a household's rows to its summary S_i: fit, explain, weight by what was used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedenergy.explain import model
from fedenergy.explain.leaf_tables import MAX_CUTS, MAX_DEPTH, compile_tables, group_bits, weighted_sums
from fedenergy.households.household import Household
from fedenergy.windows import MIN_ROWS, Lagged, lag_steps, lagged, lagged_names

OBSERVED = ("now", "lagged")
ENGINES = ("tables", "xgboost", "auto")
COORDINATES = ("appliance", "daypart", "feature_lag")
DAYPARTS = (("night", 0), ("morning", 6), ("day", 10), ("evening", 16), ("late", 21))  # name, first clock hour


@dataclass(frozen=True)
class Summary:
    """S_i of one household and one window, unclipped and without noise: it never leaves the box.

    values        (d,) float64, kWh^2 where target and weight are kWh (not a prediction, and not additive to one)
    rows_used     rows that were fitted and summed
    rows_dropped  rows without a target
    r2            share of the target's variance that the model explains on these rows; NaN for a constant target
    reason        why all values are 0: "constant target", otherwise empty
    """

    values: np.ndarray
    rows_used: int
    rows_dropped: int
    r2: float
    reason: str = ""


@dataclass(frozen=True)
class Explainer:
    """How a household explains its use: S_i[k] = sum over t of phi[t, k] x[t, k].

    lags           hours; every channel enters the model at each of them
    trees, depth, bins, learning_rate      of the boosted trees
    observed       x: "now", the reading at t; or "lagged", the value that fed each feature
    engine         "tables": exact leaf tables; "xgboost": its pred_contribs (equal within 1e-5 of the largest |phi|,
                   many times slower); "auto": tables wherever they apply (depth <= 8, bins <= 254). The choice never
                   looks at the data or at the machine
    coordinates    "appliance": phi[t, k] is summed over the lags of channel k; calendar and weather go to a bucket that
                   is not released. "feature_lag": every lagged column, weather included, is a coordinate of its own
                   (weather coordinates carry the weather's unit times kWh). "daypart": when, not what: the channels'
                   sum over the t of each part of the day (0, 6, 10, 16 and 21 h), for homes with one channel
    target         "total", or the channel to be predicted
    Guarantee: equal inputs give equal bytes on one machine, in any process and for any number of workers.
    """

    lags: Sequence[float] = (1, 24, 168)
    trees: int = 100
    depth: int = 4
    bins: int = 64
    learning_rate: float = 0.3
    observed: str = "now"
    engine: str = "tables"
    coordinates: str = "appliance"
    target: str = "total"

    def __post_init__(self) -> None:
        object.__setattr__(self, "lags", tuple(self.lags))
        for name, allowed in (("observed", OBSERVED), ("engine", ENGINES), ("coordinates", COORDINATES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"Explainer: {name} = {getattr(self, name)!r} is not known "
                                 f"(takes: {', '.join(allowed)})")
        lag_steps(self.lags, 1)
        for name in ("trees", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"Explainer: {name} = {getattr(self, name)} must be at least 1")
        if self.bins < 2:
            raise ValueError(f"Explainer: bins = {self.bins} must be at least 2")
        if not 0 < self.learning_rate <= 1:
            raise ValueError(f"Explainer: learning_rate = {self.learning_rate} is not within (0, 1]")
        if self.engine == "tables" and not self._tables_fit:
            raise ValueError(f"Explainer: depth = {self.depth} and bins = {self.bins} do not fit engine = \"tables\" "
                             f"(depth <= {MAX_DEPTH}, bins <= {MAX_CUTS}); use engine = \"auto\" or \"xgboost\"")

    @property
    def _tables_fit(self) -> bool:
        return self.depth <= MAX_DEPTH and self.bins <= MAX_CUTS

    def max_lag(self, step_minutes: int) -> int:
        """The longest lag in steps: the first row that can be explained."""
        return max(lag_steps(self.lags, step_minutes))

    def names(self, channels: Sequence[str], feature_names: Sequence[str] = ()) -> tuple[str, ...]:
        """Names of the d coordinates for a population's channels (and, for feature_lag, its weather features).

        >>> Explainer(lags=[24], coordinates="feature_lag").names(["Oven"], ["Temperature"])
        ('Oven_lag24', 'Temperature_lag24')
        """
        if self.coordinates == "appliance":
            return tuple(channels)
        if self.coordinates == "daypart":
            return tuple(name for name, _ in DAYPARTS)
        return lagged_names((*channels, *feature_names), self.lags)

    def summary(self, household: Household, rows: slice | range = slice(None)) -> Summary:
        """S_i of the household's rows.

        A constant target is legitimate (nothing varies, so nothing explains it): S is 0, with that reason, and no
        error, which would tell it to whoever asked. Fewer than 24 rows with a target raise ValueError before anything
        is fitted or spent.
        """
        design = lagged(household, self.lags, rows, self.target, lag_features=self.coordinates == "feature_lag")
        if design.y.size < MIN_ROWS:
            raise ValueError(f"household {household.id}: {design.y.size} rows with a target ({design.dropped} missing) "
                             f"are too few, at least {MIN_ROWS} are needed: ask for a longer window")
        if design.y.min() == design.y.max():
            d = len(self.names(household.channels, household.feature_names))
            return Summary(np.zeros(d), design.y.size, design.dropped, math.nan, "constant target")
        fitted = model.fit(design.X, design.y, self.trees, self.depth, self.bins, self.learning_rate)
        y = design.y.astype(np.float64)
        r2 = 1.0 - float(np.sum((y - model.predict(fitted)) ** 2) / np.sum((y - y.mean()) ** 2))
        return Summary(self._sums(design, fitted), y.size, design.dropped, r2)

    def _sums(self, design: Lagged, fitted: model.Fitted) -> np.ndarray:
        owner = design.feature_channel
        released = np.flatnonzero(owner >= 0)
        if self.coordinates == "daypart":
            return self._by_daypart(design, fitted, released)
        if self.coordinates == "appliance" and self.observed == "now":
            return self._engine(design, fitted, owner, design.observed)
        # One coordinate per released column first; appliances are the sums of their lags.
        weights = design.observed[:, owner[released]] if self.observed == "now" else design.X[:, released]
        column = np.full(owner.size, -1)
        column[released] = np.arange(released.size)
        sums = self._engine(design, fitted, column, weights)
        return sums if self.coordinates == "feature_lag" else np.bincount(owner[released], sums)

    def _by_daypart(self, design: Lagged, fitted: model.Fitted, released: np.ndarray) -> np.ndarray:
        """S[p] = sum over the rows t of day-part p and over the channels of phi[t] x[t]."""
        hour = design.X[:, design.feature_names.index("hour_of_day")]
        part = np.searchsorted([first for _, first in DAYPARTS], hour, side="right") - 1
        weights = design.observed[:, design.feature_channel[released]] if self.observed == "now" \
            else design.X[:, released]
        column = np.full(design.feature_channel.size, -1)
        column[released] = np.arange(released.size)
        return np.array([self._engine(design, fitted, column, np.where((part == p)[:, None], weights, 0.0)).sum()
                         for p in range(len(DAYPARTS))])

    def _engine(self, design: Lagged, fitted: model.Fitted, channel: np.ndarray, weights: np.ndarray) -> np.ndarray:
        if self.engine != "xgboost" and self._tables_fit:
            tables = compile_tables(model.trees_of(fitted), channel.size, group_bits(design.y.size, self.depth))
            return weighted_sums(tables, design.X, channel, weights)
        per_column = np.einsum("tf,tf->f", model.contributions(fitted), np.nan_to_num(weights[:, channel]))
        return np.bincount(channel[channel >= 0], per_column[channel >= 0], minlength=weights.shape[1])
