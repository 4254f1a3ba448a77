"""Groups of alike homes: K-means on daily patterns, then size classes inside each cluster, with a smallest cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedenergy.synthesis.intake import Panel

CRITERIA = ("silhouette", "calinski_harabasz", "elbow")
FEATURES = ("profile", "shape", "series")
DISTANCES = ("euclidean", "dtw")


@dataclass(frozen=True)
class Segments:
    """cluster, size, cell (N,) of every home; smallest: the k homes of the smallest cell; merged: cells given up.

    size is 0 .. segments - 1 from small to large, before small cells are merged; scores: K -> criterion -> value ("auto").
    """

    cluster: np.ndarray
    size: np.ndarray
    cell: np.ndarray
    smallest: int
    merged: int
    inertia: float
    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def members(self) -> list[np.ndarray]:
        """The homes of every cell, in cell order."""
        return [np.flatnonzero(self.cell == cell) for cell in range(self.cell.max() + 1)]


def features(panel: Panel, of: str = "profile") -> np.ndarray:
    """(N, f) "profile": mean log1p daily profile; "shape": that minus its mean; "series": all log1p values (the source)."""
    if of not in FEATURES:
        raise ValueError(f"features = {of!r}; use one of {', '.join(FEATURES)}")
    if of == "series":
        return np.log1p(panel.values)
    mean = np.log1p(panel.profiles).mean(axis=1)
    return mean - mean.mean(axis=1, keepdims=True) if of == "shape" else mean


def segment(panel: Panel, clusters: int | str = 4, *, sizes: int = 3, min_cell: int = 5, seed: int = 0,
            of: str = "profile", criterion: str = "silhouette", most: int = 8, distance: str = "euclidean") -> Segments:
    """Cells of at least min_cell homes.

    clusters   K, or "auto": the K of 2 .. `most` that the criterion prefers
    sizes      classes by mean consumption inside a cluster (3: terciles)
    min_cell   smaller cells join their neighbour in size; a cluster that stays smaller joins the nearest cluster. A cell of
               one would "shuffle" a home to itself.
    distance   "euclidean", or "dtw": profiles that are alike but for an hour or two are near (distances.py)
    """
    homes = len(panel.ids)
    if min_cell < 2 or sizes < 1:
        raise ValueError(f"min_cell = {min_cell} and sizes = {sizes}; use at least 2 homes per cell and 1 size class")
    if homes < min_cell:
        raise ValueError(f"{homes} home{'s' * (homes != 1)} cannot fill a cell of min_cell = {min_cell}: give more homes, "
                         'or use mode = "local", in which each home is alone')
    if distance not in DISTANCES:
        raise ValueError(f"distance = {distance!r}; use one of {', '.join(DISTANCES)}")
    if distance == "dtw" and of == "series":
        raise ValueError('distance = "dtw" warps daily profiles: use of = "profile" or "shape", not "series"')
    x = features(panel, of)
    scores: dict[int, dict[str, float]] = {}
    if clusters == "auto":
        clusters, scores = _choose(x, criterion, min(most, homes - 1), seed, distance)
    labels, centres, inertia = kmeans(x, clusters, seed, distance)
    size, mean = np.zeros(homes, int), panel.values.mean(axis=1)
    groups: list[list[np.ndarray]] = []
    for cluster in range(len(centres)):
        who = np.flatnonzero(labels == cluster)
        parts = np.array_split(who[np.lexsort((who, mean[who]))], sizes)
        for rank, part in enumerate(parts):
            size[part] = rank
        groups.append([part for part in parts if part.size])
    before = sum(map(len, groups))
    cells = _merge(groups, centres, min_cell)
    cell = np.empty(homes, int)
    for index, who in enumerate(cells):
        cell[who] = index
    return Segments(labels, size, cell, min(map(len, cells)), before - len(cells), inertia, scores)


def kmeans(x: np.ndarray, clusters: int, seed: int = 0,
           distance: str = "euclidean") -> tuple[np.ndarray, np.ndarray, float]:
    """(labels, centres, inertia) of scikit-learn's KMeans, 10 starts, or of distances.kmeans_dtw."""
    from sklearn.cluster import KMeans

    if isinstance(clusters, bool) or not isinstance(clusters, int | np.integer) or clusters < 1:
        raise ValueError(f'clusters = {clusters!r}; use a whole number of at least 1, or "auto"')
    distinct = len(np.unique(x, axis=0))
    if clusters > distinct:
        raise ValueError(f"clusters = {clusters}, but there are only {distinct} different homes: ask for fewer")
    if distance == "dtw":
        from fedenergy.synthesis.distances import kmeans_dtw

        return kmeans_dtw(x, int(clusters), seed)
    fitted = KMeans(int(clusters), n_init=10, random_state=seed).fit(x)
    return fitted.labels_.astype(int), fitted.cluster_centers_, float(fitted.inertia_)


def _choose(x: np.ndarray, criterion: str, most: int, seed: int,
            distance: str) -> tuple[int, dict[int, dict[str, float]]]:
    """Calinski-Harabasz knows Euclidean means only, and judges the labels by these."""
    from sklearn.metrics import calinski_harabasz_score, silhouette_score

    if criterion not in CRITERIA:
        raise ValueError(f"criterion = {criterion!r}; use one of {', '.join(CRITERIA)}")
    most = min(most, len(np.unique(x, axis=0)) - 1)
    if most < 2:
        return 1, {}
    apart = x
    if distance == "dtw":
        from fedenergy.synthesis.distances import pairwise_dtw

        apart = pairwise_dtw(x)
    metric = "precomputed" if distance == "dtw" else "euclidean"
    scores = {1: {"inertia": kmeans(x, 1, seed, distance)[2]}}
    for k in range(2, most + 1):
        labels, _, inertia = kmeans(x, k, seed, distance)
        scores[k] = {"inertia": inertia, "silhouette": float(silhouette_score(apart, labels, metric=metric)),
                     "calinski_harabasz": float(calinski_harabasz_score(x, labels))}
    if criterion == "elbow":  # the K farthest below the line from the first inertia to the last
        k = np.array(sorted(scores), float)
        inertia = np.array([scores[int(i)]["inertia"] for i in k])
        line = inertia[0] + (inertia[-1] - inertia[0]) * (k - 1) / (k[-1] - 1)
        return int(k[np.argmax(line - inertia)]), scores
    return max(range(2, most + 1), key=lambda k: scores[k][criterion]), scores


def _merge(groups: list[list[np.ndarray]], centres: np.ndarray, min_cell: int) -> list[np.ndarray]:
    sizes = [sum(map(len, parts)) for parts in groups]
    alive = list(range(len(groups)))
    while len(alive) > 1 and min(sizes[c] for c in alive) < min_cell:
        small = min(alive, key=lambda c: (sizes[c], c))
        alive.remove(small)
        near = min(alive, key=lambda c: (float(np.square(centres[c] - centres[small]).sum()), c))
        for rank, part in enumerate(groups[small]):  # class by class, so that sizes stay together
            at = min(rank, len(groups[near]) - 1)
            groups[near][at] = np.concatenate([groups[near][at], part])
        sizes[near] += sizes[small]
    cells = []
    for c in alive:
        parts = list(groups[c])
        while len(parts) > 1 and min(map(len, parts)) < min_cell:
            at = int(np.argmin([len(part) for part in parts]))
            other = at + 1 if at == 0 or (at + 1 < len(parts) and len(parts[at + 1]) < len(parts[at - 1])) else at - 1
            parts[min(at, other)] = np.concatenate([parts[min(at, other)], parts[max(at, other)]])
            del parts[max(at, other)]
        cells += [np.sort(part) for part in parts]
    return cells
