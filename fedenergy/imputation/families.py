"""What a window says about its own law: interpolation averaged over stationary laws, each weighed by how well it explains
the values that are seen. Free: it reads the window that is filled and no other.

    mean, mass = families.average(u, seen, families.laws(96, 24))

Straight lines, smoothing by a local level, the window's mean, smooth curves and a repeated day are all best linear
predictors under some law of the list. Source: ours; the evidence is that of a Gaussian with unknown level and scale
(Rasmussen and Williams 2006, 2.7 and 5.4), tempered because readings are not Gaussian.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg.lapack import dposv

TEMPER = 0.3                    # power of the evidence
LEVEL = 1e4                     # variance of the unknown level over that of the series
LEAST = 1e-8                    # of a window's squared length under a law: below it the window counts as constant
KEPT = 96                       # averages remembered
JITTER = 1e-6


@dataclass(frozen=True, eq=False)
class Average:
    """mean (n, T): the laws' fillings, weighed; mass (n,): log of the laws' summed weights, to add further laws."""

    mean: np.ndarray
    mass: np.ndarray


@lru_cache(maxsize=8)
def laws(length: int, slots: int) -> np.ndarray:
    """(K, T, T) covariances of unit variance on average: random walks with and without noise, rougher and smoother ones,
    memories of 2 to 32 steps, and days where a window holds at least one.

    slots  steps per day
    """
    h = np.abs(np.arange(length)[:, None] - np.arange(length)) + 0.0
    white, most = np.eye(length), float(length - 1)
    found = [most - h + noise * white for noise in (JITTER, 0.3, 3.0, 30.0)]
    found += [most**p - h**p + 1e-4 * white for p in (0.5, 0.75, 1.2, 1.5)]
    found += [np.exp(-h / memory) + noise * white for noise, memories in ((JITTER, (2, 4, 8, 16, 32)), (0.3, (4, 16)))
              for memory in memories]
    found += [np.exp(-((h / memory) ** 1.6)) + 1e-4 * white for memory in (2, 4, 8)]
    if 4 <= slots <= length:
        day = np.cos(2 * np.pi * h / slots) + 0.25 * np.cos(4 * np.pi * h / slots)
        found += [share * day + np.exp(-h / memory) + JITTER * white for share, memory in ((0.3, 16), (1, 4), (1, 16))]
        found += [share * day + most - h for share in (3.0, 30.0)]
    stack = np.array([law * length / np.trace(law) for law in found])
    stack.flags.writeable = False
    return stack


def average(u: np.ndarray, seen: np.ndarray, over: np.ndarray) -> Average:
    """The fillings of windows by each law, weighed by its evidence to the power TEMPER, every law alike before.

    u     (n, T), read where seen only
    seen  (n, T) bool, or (T,) where all windows have the same positions
    over  (K, T, T) laws
    """
    y, centre = centred(u, seen)
    key = hashlib.blake2b(b"".join(np.ascontiguousarray(a).tobytes() for a in (y, centre, seen, over))).digest()
    if key in _known:
        _known.move_to_end(key)
        return _known[key]
    mean, mass = np.zeros_like(y), np.full(len(y), -np.inf)
    for k in range(len(over)):
        filled, evidence = filling(y, seen, over[k])
        joined = np.logaddexp(mass, TEMPER * evidence)
        mean += (filled - mean) * np.exp(TEMPER * evidence - joined)[:, None]
        mass = joined
    found = Average(mean + centre[:, None], mass - np.log(len(over)))
    _known[key] = found
    if len(_known) > KEPT:
        _known.popitem(last=False)
    return found


def with_law(u: np.ndarray, seen: np.ndarray, known: Average, law: np.ndarray, share: float) -> np.ndarray:
    """(n, T) fillings: one more law with that share before the evidence, `known` with the rest."""
    if not share:
        return known.mean
    y, centre = centred(u, seen)
    filled, evidence = filling(y, seen, law)
    odds = np.log(share) + TEMPER * evidence - (np.log1p(-share) + known.mass)
    weight = 1.0 / (1.0 + np.exp(-np.clip(odds, -50.0, 50.0)))
    return known.mean + (filled + centre[:, None] - known.mean) * weight[:, None]


def centred(u: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n, T) deviations from the mean of what is seen, 0 where hidden; (n,) that mean, 0 where nothing is seen)."""
    seen = np.broadcast_to(seen, u.shape)
    centre = np.where(seen, u, 0.0).sum(1) / np.maximum(seen.sum(1), 1)
    return np.where(seen, u - centre[:, None], 0.0), centre


def filling(y: np.ndarray, seen: np.ndarray, law: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n, T) best linear predictions, (n,) log evidence up to what is common to all laws) of centred windows."""
    cov = law + LEVEL
    if seen.ndim == 1:
        at = np.flatnonzero(seen)
        inverse = np.linalg.inv(cov[np.ix_(at, at)])
        weights = y[:, at] @ inverse
        return weights @ cov[at], _evidence(np.linalg.slogdet(inverse)[1], len(at), (weights * y[:, at]).sum(1))
    weights, minus_log_det = np.zeros_like(y), np.empty(len(y))
    for i, here in enumerate(seen):
        if not len(at := np.flatnonzero(here)):             # a window without readings: no evidence, filled with the centre
            minus_log_det[i] = 0.0
            continue
        factor, weights[i, at], failed = dposv(cov[at[:, None], at], y[i, at], lower=1, overwrite_a=1)
        if failed:
            raise np.linalg.LinAlgError("a law is not positive definite at the positions that are seen")
        minus_log_det[i] = -2.0 * np.log(factor.diagonal()).sum()
    return weights @ cov, _evidence(minus_log_det, seen.sum(1), (weights * y).sum(1))


def _evidence(minus_log_det: np.ndarray | float, count: np.ndarray | int, length: np.ndarray) -> np.ndarray:
    return 0.5 * minus_log_det - 0.5 * (count - 1) * np.log(np.maximum(length, LEAST))


_known: OrderedDict[bytes, Average] = OrderedDict()
