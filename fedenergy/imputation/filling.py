"""Filling the gaps of a whole series: windows around its gaps, a point and an interval for every missing step.

The values of the series itself are read: no privacy of training protects them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from fedenergy.households.clean import runs
from fedenergy.imputation.baselines import linear
from fedenergy.imputation.dp_gp import POINTS, DpGp, conditional
from fedenergy.imputation.task import Windows
from fedenergy.progress import Progress, SilentProgress

NUMBERS = 2**22         # of the covariances of windows that are drawn from together
LEVEL = 0.9


@dataclass(frozen=True, eq=False)
class FilledSeries:
    """A series without gaps.

    values     (n,) the readings, and a point where one was missing
    filled     (n,) bool: where it was
    low, high  (n,) quantiles (1 -+ level) / 2 where filled, widened to hold the point; NaN elsewhere. Of the law of a
               dp_gp; of a net over one, that law moved to the net's point (a net's own samples lie far too close together:
               it is trained for the least squared error); of another net, its samples
    blind      steps that were filled from a window without any reading: a typical day, no more
    """

    values: np.ndarray
    filled: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float
    blind: int


def pieces(missing: np.ndarray, length: int, align: int = 1) -> Iterator[tuple[int, int, int]]:
    """(window start, first, last) for every gap: first..last (half-open) is filled from that window. A gap longer than
    half a window is cut into pieces; each piece lies in the middle of its window, as far as start and end allow.

    align  windows start at multiples of it (a day: one covariance then serves all), where a window holds two of them; the
           last one may end after the series
    >>> list(pieces(np.array([0, 0, 1, 1, 0, 0, 0, 0, 1, 0], bool), 6))
    [(0, 2, 4), (4, 8, 9)]
    """
    align = align if length >= 2 * align else 1
    half, last = max(1, length // 2), max(0, len(missing) - length)
    for low, high in runs(missing):
        for first in range(low, high, half):
            stop = min(first + half, high)
            start = min(max((first + stop) // 2 - half, 0), last) // align * align
            yield start if stop <= start + length else first // align * align, first, stop


def cut_out(values: np.ndarray, clock: np.ndarray, length: int, slots: int,
            phase: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, int]]]:
    """(windows (m, T), their first steps of the day (m,), where each fills: (offset in the window, first, last))."""
    lead = int(clock[0] - phase) % slots
    padded = np.concatenate([np.full(lead, np.nan), values, np.full(length + slots, np.nan)])
    missing = np.isnan(padded)
    missing[:lead] = missing[lead + len(values):] = False
    todo = list(pieces(missing[:lead + len(values)], length, slots))
    times = np.concatenate([(clock[0] - lead + np.arange(lead)) % slots, clock])
    windows = np.stack([padded[start:start + length] for start, _, _ in todo]) if todo else np.zeros((0, length))
    places = [(first - start, first - lead, stop - lead) for start, first, stop in todo]
    return windows, times[[start for start, _, _ in todo]] if todo else np.zeros(0, np.int64), places


def fill_series(model: Any, values: np.ndarray, clock: np.ndarray, *, samples: int = 30, seed: int = 0,
                level: float = LEVEL, point: str = "mean", progress: Progress | None = None) -> FilledSeries:
    """Fill what is NaN; readings are kept as they are.

    model    a DpGp, or a trained diffusion Model
    values   (n,) original units; clock: (n,) step of the day of each, on the meter's clock
    samples  a net's draws of each gap (a dp_gp needs none); point: "mean" or "median"
    What fills a step depends on the readings of its own window only, and on seed where samples are drawn.
    """
    values, clock = np.asarray(values, np.float64), np.asarray(clock, np.int64)
    if values.ndim != 1 or values.shape != clock.shape or not values.size:
        raise ValueError(f"values {values.shape} and clock {clock.shape}: give both (n,), n >= 1")
    if np.isinf(values).any():
        raise ValueError("the series holds an infinite value: mark what is missing as NaN")
    if samples < 1 or not 0 < level < 1 or point not in POINTS:
        raise ValueError(f"samples = {samples}, level = {level}, point = {point!r}: at least 1, within (0, 1), one of "
                         f"{', '.join(POINTS)}")
    gp = isinstance(model, DpGp)
    length, slots = (model.length, len(model.mean)) if gp else (model.setup.net.length, model.setup.steps_per_day)
    missing = np.isnan(values)
    windows, starts, places = cut_out(values, clock, length, slots, model.phase if gp else 0)
    found = {name: np.where(missing, np.nan, values) if name == "point" else np.full(len(values), np.nan)
             for name in ("point", "low", "high")}
    blind, progress = 0, progress or SilentProgress()
    progress.start(len(places), "gaps")
    at_once = max(1, min(256, NUMBERS // length**2))
    for number, low in enumerate(range(0, len(places), at_once)):
        part = slice(low, low + at_once)
        drawn = _filled(model, windows[part], starts[part], samples, seed * 1_000_003 + number, level, point)
        for row, (offset, first, stop) in enumerate(places[part]):
            for name, window in drawn.items():
                found[name][first:stop] = window[row, offset:offset + stop - first]
            blind += (stop - first) * bool(np.isnan(windows[low + row]).all())
        progress.advance(len(places[part]))
    progress.close()
    return FilledSeries(found["point"], missing, found["low"], found["high"], level, blind)


def _filled(model: Any, windows: np.ndarray, starts: np.ndarray, samples: int, seed: int, level: float,
            point: str) -> dict[str, np.ndarray]:
    """point, low and high of windows (m, T), NaN where missing."""
    levels = (1 - level) / 2, (1 + level) / 2
    if isinstance(model, DpGp):
        return _law(model, windows, starts, levels, point)
    from fedenergy.imputation.sample import fill

    found = fill(model, Windows(windows, model.setup.steps_per_day, starts), samples=samples, seed=seed, levels=levels)
    own, low, high = (values[:, :, 0] for values in (getattr(found, point), *(found.quantiles[at] for at in levels)))
    if (gp := law_under(model)) is not None:
        wide = np.pad(windows, ((0, 0), (0, gp.length - windows.shape[1])), constant_values=np.nan)
        law = {name: values[:, :windows.shape[1]] for name, values in _law(gp, wide, starts, levels, point).items()}
        low, high = (np.clip(law[name] + own - law["point"], gp.low, gp.cap) for name in ("low", "high"))
    return {"point": own, "low": np.minimum(low, own), "high": np.maximum(high, own)}


def limit_of(model: Any) -> float:
    """The largest value that a model fills in, original units."""
    return model.cap if isinstance(model, DpGp) else float(max(model.setup.scale.high))


def says_interval(model: Any) -> str:
    """What low and high are quantiles of, for the reader of a filled series."""
    if isinstance(model, DpGp):
        return "the model's law for that step"
    return "the law of the dp_gp under the net, moved to the net's value" if law_under(model) else "the net's samples"


def law_under(model: Any) -> DpGp | None:
    """The dp_gp that a net corrects, by itself or as the base of shorter windows; None where there is none."""
    base = getattr(model, "base", None)
    base = getattr(base, "gp", base)
    return base if isinstance(base, DpGp) else None


def _law(gp: DpGp, windows: np.ndarray, starts: np.ndarray, levels: tuple[float, float],
         point: str) -> dict[str, np.ndarray]:
    """point, low and high of the conditional law of a dp_gp; arguments as `_filled`."""
    seen = np.isfinite(windows)
    time = (starts[:, None] + np.arange(gp.length)) % len(gp.mean)
    x, seen, starts = gp.read(np.where(seen, windows, 0.0), seen, time)
    found = {name: np.empty_like(x) for name in ("point", "low", "high")}
    far = dict(zip(("low", "high"), map(NormalDist().inv_cdf, levels)))
    for rows, mu, cov in gp.laws(starts):
        m, variance = conditional(mu, cov, x[rows], seen[rows])
        found["point"][rows] = gp.back(m, variance if point == "mean" else 0.0)
        for name, z in far.items():               # the way back to energy keeps the order, hence quantiles
            found[name][rows] = gp.back(m + z * np.sqrt(variance), 0.0)
    # the mean of a skewed law may lie beyond its quantiles
    return found | {"low": np.minimum(found["low"], found["point"]), "high": np.maximum(found["high"], found["point"])}


def fill_linear(values: np.ndarray) -> np.ndarray:
    """(n,) or (n, d): straight lines between readings, constant beyond the first and the last; 0 without any."""
    values = np.asarray(values, np.float64)
    return linear(values.reshape(1, len(values), -1))[0].reshape(values.shape)
