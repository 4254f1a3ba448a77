"""Straight lines, corrected by a private law and by what the window itself shows.

    b = blend.fit(train, epsilon=2.0, limits=(-10.0, 60.0))
    mean, median = b.points(values, observed)

One release: the variogram of kriging.py, at all of rho. Its law stands beside the stationary laws of families.py (free),
each weighed by how well it explains what the window shows, and the filling is a public share of the way from the straight
line to their average: shrinkage towards what needs no law, for windows unlike those that were fitted. Where noise swamps the
variogram its law drops out, and the filling reads no record. Source: ours; averages over laws by evidence are a textbook's
(Hoeting et al. 1999).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedenergy.imputation import families, kriging
from fedenergy.imputation.baselines import linear, nearest
from fedenergy.imputation.dp_gp_release import Spent
from fedenergy.imputation.kriging import OFFSET, FromVariogram
from fedenergy.imputation.task import Windows

LAW = 0.5                       # share of the released law before the window's evidence, where noise leaves all of it
SQUARED = 0.6                   # of the way from the straight line, for the mean
ABSOLUTE, NEAREST = 0.5, 0.3    # for the median; and of the way to the nearest value, where values crowd at their limit
SINGLE = 0.2                    # for the median of a single hidden step, where they do not


@dataclass(frozen=True, eq=False)
class Blend(FromVariogram):
    """A fitted imputer; satisfies base.Base. Window i's filling depends on window i only.

    law         (T, T) covariance of the released variogram, unit variance
    share       its weight before the window's evidence
    low, high   public limits: values are read within them
    slots       steps per day
    skewed      whether values crowd at `low`: log(u + OFFSET), u = (value - low) / (high - low), is filled as well, and the
                nearest value counts for the median
    """

    law: np.ndarray
    share: float
    privacy: Spent
    low: float
    high: float
    slots: int
    skewed: bool

    name = "blend"

    @property
    def length(self) -> int:
        """T."""
        return len(self.law)

    def _points(self, u: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        holey = np.where(seen, u, np.nan)[:, :, None]
        line, plain = linear(holey)[:, :, 0], self._average(u, seen).clip(0.0, 1.0)
        hidden = between(seen)
        mean, median = line + SQUARED * (plain - line), line + np.where(hidden == 1, SINGLE, ABSOLUTE) * (plain - line)
        if self.skewed:
            logs = self._average(np.log(u + OFFSET), seen).clip(math.log(OFFSET), math.log(1.0 + OFFSET))
            low = np.exp(logs) - OFFSET
            mean = line + SQUARED * ((plain + low) / 2 - line)
            steps = np.where(hidden > 1, NEAREST * (nearest(holey)[:, :, 0] - line), 0.0)
            median = line + ABSOLUTE * (low - line) + steps
        return mean, median

    def _average(self, x: np.ndarray, seen: np.ndarray) -> np.ndarray:
        known = families.average(x, seen, families.laws(self.length, self.slots))
        return families.with_law(x, seen, known, self.law, self.share)


def fit(train: Windows | np.ndarray, epsilon: float, delta: float = 1e-5, *, limits: tuple[float, float],
        skewed: bool | None = None, unit: str = "window", noise: str = "simulation", seed: int = 0) -> Blend:
    """Fit to windows of one channel at (epsilon, delta), replace-one; arguments, guarantee and errors as kriging.fit."""
    windows, (low, high) = Windows.of(train), (float(limits[0]), float(limits[1]))
    by_distance, known, privacy = kriging.variogram(windows, epsilon, delta, low, high, unit, noise, seed)
    steps = np.arange(windows.length)
    law = (by_distance - kriging.LEVEL)[np.abs(steps[:, None] - steps)] + families.JITTER * np.eye(len(steps))
    return Blend(law, LAW * known, privacy, low, high, windows.steps_per_day, low >= 0 if skewed is None else skewed)


def between(seen: np.ndarray) -> np.ndarray:
    """(n, T) int: steps of the gap that a hidden step is in; 0 in a gap at the edge, and where seen.

    >>> between(np.array([[False, True, False, True, False, False, True, False]]))[0].tolist()
    [0, 0, 1, 0, 2, 2, 0, 0]
    """
    length = seen.shape[1]
    at = np.arange(length)
    before = np.maximum.accumulate(np.where(seen, at, -1), axis=1)
    after = np.minimum.accumulate(np.where(seen, at, length)[:, ::-1], axis=1)[:, ::-1]
    return np.where((before >= 0) & (after < length), np.maximum(after - before - 1, 0), 0)
