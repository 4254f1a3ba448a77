"""Daily shapes and their clusters for the private mode: what a home computes, and what the zone makes of noised sums.

A home's shape is its mean log1p daily profile minus its mean, on the first six harmonics of the day (some 95 % of the
variance), squashed smoothly to a norm below 1 so that no home weighs more than another and none is cut off flat. The zone
clusters shapes by Lloyd's steps: each asks once for the noised (sum, count) of all clusters (as in Su et al. 2016, there
with Laplace noise), from a start that no data chose. Everything the zone does is a function of noised sums and of public
numbers alone: nothing branches on a true count, no label and no inertia exists outside the homes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedenergy.ids import stream

HOURS = 24
HARMONICS = 6
REACH = 1.5       # shapes of this norm are squashed to tanh(1): log1p kWh
KEEP = 0.7        # weight of the steps before in a step's sums
START = 0.5       # norm of the first centres, and of the typical squashed shape in the promise
SPLIT = 0.3       # how far from a large cluster an empty one starts anew
ALIVE = 2.0       # noised counts below so many standard deviations of their own noise count as empty


@lru_cache(maxsize=4)
def basis(harmonics: int = HARMONICS) -> np.ndarray:
    """(24, 2 harmonics) orthonormal cosines and sines of the day."""
    if not 1 <= harmonics <= HOURS // 2 - 1:
        raise ValueError(f"harmonics = {harmonics!r}; use 1 to {HOURS // 2 - 1} of a day of {HOURS} hours")
    angle = 2 * np.pi * np.arange(HOURS) / HOURS
    waves = [wave(k * angle) for k in range(1, harmonics + 1) for wave in (np.cos, np.sin)]
    return np.stack(waves, axis=1) * np.sqrt(2 / HOURS)


def shape_of(kwh: np.ndarray, harmonics: int = HARMONICS) -> np.ndarray:
    """(2 harmonics,) of hourly kWh (T,), T whole days."""
    profile = np.log1p(kwh).reshape(-1, HOURS).mean(axis=0)
    return (profile - profile.mean()) @ basis(harmonics)


def squash(shape: np.ndarray) -> np.ndarray:
    """Shapes (..., f) with their norms r made tanh(r / REACH) < 1; unsquash is its inverse.

    >>> float(np.linalg.norm(squash(np.array([300.0, 400.0])))) <= 1
    True
    """
    norm = np.linalg.norm(shape, axis=-1, keepdims=True)
    return shape * (np.tanh(norm / REACH) / np.where(norm > 0, norm, 1))


def unsquash(point: np.ndarray) -> np.ndarray:
    """Shapes of points (..., f); norms above .95 count as .95 (noise can push them past 1)."""
    norm = np.linalg.norm(point, axis=-1, keepdims=True)
    return point * (np.arctanh(np.minimum(norm, 0.95)) * REACH / np.where(norm > 0, norm, 1))


def nearest(point: np.ndarray, centres: np.ndarray) -> int:
    """The home's own cluster: the nearest of centres (k, f), the first of equals. Never leaves the home."""
    return int(np.square(centres - point).sum(axis=1).argmin())


@dataclass(frozen=True)
class Lloyd:
    """The public state after some steps.

    centres    (K, f) squashed, rounded to 6 decimals, for the next step
    sums, totals, weight, squares   noised sums and counts so far, the weights they have and the squares of these
    counts     (K,) homes, by the noised counts so far; deviation: standard deviation of their noise
    alive      (K,) which clusters these say are there
    """

    centres: np.ndarray
    sums: np.ndarray
    totals: np.ndarray
    weight: np.ndarray
    squares: np.ndarray
    alive: np.ndarray
    step: int
    counts: np.ndarray
    deviation: np.ndarray


def start(clusters: int, width: int) -> Lloyd:
    """Centres in directions fixed for good, of norm START: chosen by no data."""
    directions = stream(0, "synthesis.private.start").standard_normal((clusters, width))
    centres = START * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    none = np.zeros(clusters)
    return Lloyd(np.round(centres, 6), np.zeros((clusters, width)), none, none, none, none > 0, 0, none, none)


def advance(state: Lloyd, sums: np.ndarray, counts: np.ndarray, sigma: float, homes: int) -> Lloyd:
    """One Lloyd step from the noised sums (K, f) and counts (K,), whose noise has standard deviation sigma.

    Earlier steps' sums count too, by KEEP per step. Counts are shifted to add up to `homes`, which is public. A cluster
    whose noised count stays below ALIVE of its noise starts anew beside the largest one, in a direction fixed for good.
    """
    clusters, width = sums.shape
    counts = counts + (homes - counts.sum()) / clusters
    weight, squares = KEEP * state.weight + 1, KEEP**2 * state.squares + 1
    kept, totals = KEEP * state.sums + sums, KEEP * state.totals + counts
    mean_sums, mean_counts = kept / weight[:, None], totals / weight
    deviation = sigma * np.sqrt(squares) / weight
    alive = mean_counts > ALIVE * deviation
    alive[np.argmax(mean_counts)] = True
    centres = mean_sums / np.maximum(mean_counts, 1)[:, None]
    centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1)
    room = np.where(alive, mean_counts, -np.inf)
    for empty in np.flatnonzero(~alive):
        largest = int(np.argmax(room))
        room[largest] /= 2
        away = stream(0, "synthesis.private.split", str(state.step), str(empty)).standard_normal(width)
        centres[empty] = centres[largest] + SPLIT * away / np.sqrt(width)
        for array in (kept, totals, weight, squares):
            array[empty] = 0
    return Lloyd(np.round(centres, 6), kept, totals, weight, squares, alive, state.step + 1, mean_counts, deviation)


def finish(state: Lloyd) -> np.ndarray:
    """(k, f) centres of the clusters that the noised counts say are there, from large to small."""
    return state.centres[[j for j in np.argsort(-state.counts, kind="stable") if state.alive[j]]]


def effective(steps: int) -> float:
    """The last step's noise beside a single step's: the sums of earlier steps count too.

    >>> round(effective(1), 3), round(effective(4), 3)
    (1.0, 0.537)
    """
    powers = KEEP ** np.arange(steps)
    return float(np.sqrt(np.square(powers).sum()) / powers.sum())
