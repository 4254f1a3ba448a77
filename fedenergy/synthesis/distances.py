"""Dynamic time warping between daily profiles, and clusters by it: for homes whose days are alike but for an hour.

Warping costs steps x steps per pair, and a cluster's centre is a barycentre, not a mean (Petitjean, Ketterlin and Gancarski
2011): both are compiled, and a band keeps an hour from standing in for one far away (Sakoe and Chiba 1978).
"""

from __future__ import annotations

import numpy as np

from fedenergy.compiled import compiled

BAND = 2           # steps that a profile may be early or late
ROUNDS, STARTS = 20, 5
_CENTRE_ROUNDS = 5


@compiled
def _table(a, b, band):
    """(n + 1, m + 1) least sums of squares of warped beginnings; row and column 0 are the edges."""
    n, m = a.size, b.size
    band = max(band, abs(n - m))
    cost = np.full((n + 1, m + 1), np.inf)
    cost[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(max(1, i - band), min(m, i + band) + 1):
            best = min(cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1])
            cost[i, j] = (a[i - 1] - b[j - 1]) ** 2 + best
    return cost


@compiled
def _squares(x, centres, band):
    """(N, K) squared warped distances."""
    found = np.empty((x.shape[0], centres.shape[0]))
    for i in range(x.shape[0]):
        for k in range(centres.shape[0]):
            found[i, k] = _table(x[i], centres[k], band)[-1, -1]
    return found


@compiled
def _barycentre(x, centre, band):
    """(T,) mean of all values of x (n, T) that are warped onto each step of the centre."""
    total, count = np.zeros(centre.size), np.zeros(centre.size)
    for row in range(x.shape[0]):
        cost = _table(centre, x[row], band)
        i, j = centre.size, x.shape[1]
        while True:
            total[i - 1] += x[row, j - 1]
            count[i - 1] += 1
            if i == 1 and j == 1:
                break
            diagonal, up, left = cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1]
            if diagonal <= up and diagonal <= left:
                i, j = i - 1, j - 1
            elif up <= left:
                i -= 1
            else:
                j -= 1
    return total / count


def dtw(a: np.ndarray, b: np.ndarray, band: int = BAND) -> float:
    """Root of the least sum of squares between two profiles, each step matched to one at most `band` away.

    >>> dtw(np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.0, 0.0, 1.0, 0.0])), dtw(np.zeros(3), np.ones(3), 0) ** 2
    (0.0, 2.9999999999999996)
    """
    return float(np.sqrt(_table(np.asarray(a, np.float64), np.asarray(b, np.float64), _band(band))[-1, -1]))


def pairwise_dtw(x: np.ndarray, band: int = BAND) -> np.ndarray:
    """(N, N) distances between the rows of x (N, T); symmetric, zeros on the diagonal."""
    x = np.ascontiguousarray(x, np.float64)
    return np.sqrt(_squares(x, x, _band(band)))


def kmeans_dtw(x: np.ndarray, clusters: int, seed: int = 0, band: int = BAND) -> tuple[np.ndarray, np.ndarray, float]:
    """(labels, centres, inertia) of x (N, T): Lloyd's steps with warped distances and barycentres, the best of STARTS.

    Starts are k-means++ (Arthur and Vassilvitskii 2007) on warped distances. A band of 0 is Euclidean k-means.
    """
    x, band = np.ascontiguousarray(x, np.float64), _band(band)
    rng = np.random.default_rng(seed)
    best: tuple[np.ndarray, np.ndarray, float] | None = None
    for _ in range(STARTS if clusters > 1 else 1):
        labels, centres, inertia = _lloyd(x, _spread(x, clusters, band, rng), band)
        if best is None or inertia < best[2]:
            best = labels, centres, inertia
    return best


def _lloyd(x: np.ndarray, centres: np.ndarray, band: int) -> tuple[np.ndarray, np.ndarray, float]:
    squares = _squares(x, centres, band)
    labels = squares.argmin(axis=1)
    for _ in range(ROUNDS):
        for k in range(len(centres)):
            members = x[labels == k]
            if not len(members):  # the home that is worst off founds it anew
                members = x[[squares.min(axis=1).argmax()]]
                centres[k] = members[0]
            for _ in range(_CENTRE_ROUNDS):
                moved = _barycentre(members, centres[k], band)
                done = np.array_equal(moved, centres[k])
                centres[k] = moved
                if done:
                    break
        squares = _squares(x, centres, band)
        again = squares.argmin(axis=1)
        if np.array_equal(again, labels):
            break
        labels = again
    return labels, centres, float(squares.min(axis=1).sum())


def _spread(x: np.ndarray, clusters: int, band: int, rng: np.random.Generator) -> np.ndarray:
    picked = [int(rng.integers(len(x)))]
    near = _squares(x, x[picked], band)[:, 0]
    while len(picked) < clusters:
        weight = near if near.sum() > 0 else np.ones(len(x))
        picked.append(int(rng.choice(len(x), p=weight / weight.sum())))
        near = np.minimum(near, _squares(x, x[picked[-1:]], band)[:, 0])
    return x[picked].copy()


def _band(band: int) -> int:
    if isinstance(band, bool) or not isinstance(band, int | np.integer) or band < 0:
        raise ValueError(f"band = {band!r}; use a whole number of steps of at least 0")
    return int(band)
