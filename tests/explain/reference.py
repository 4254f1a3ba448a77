"""Slow references: trees made by hand, and Shapley values straight from their definition."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np

from fedenergy.explain.trees import Trees


def random_trees(seed: int, count: int, depth: int, features: int, empty: float = 0.0) -> Trees:
    """Ragged trees on thresholds -1, 0, 1, 2; features repeat on a path; a share `empty` of the leaves has no cover."""
    rng = np.random.default_rng(seed)
    sizes, fields = [], {name: [] for name in ("left", "right", "feature", "threshold", "cover", "default_left")}

    def grow(nodes: list[dict], level: int) -> int:
        node, me = {}, len(nodes)
        nodes.append(node)
        if level == depth or (level > 0 and rng.random() < 0.2):
            node.update(left=-1, right=-1, feature=0, threshold=rng.normal(), default_left=0,
                        cover=0.0 if rng.random() < empty else float(rng.integers(1, 9)))
            return me
        node.update(feature=int(rng.integers(features)), threshold=float(rng.integers(-1, 3)),
                    default_left=int(rng.integers(2)))
        node["left"], node["right"] = grow(nodes, level + 1), grow(nodes, level + 1)
        node["cover"] = nodes[node["left"]]["cover"] + nodes[node["right"]]["cover"]
        return me

    for _ in range(count):
        nodes: list[dict] = []
        grow(nodes, 0)
        sizes.append(len(nodes))
        for name, values in fields.items():
            values.extend(node[name] for node in nodes)
    return Trees(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.array(fields["left"], np.int32),
                 np.array(fields["right"], np.int32), np.array(fields["feature"], np.int32),
                 np.array(fields["threshold"], np.float32), np.array(fields["cover"], np.float32),
                 np.array(fields["default_left"], np.uint8))


def expected_value(trees: Trees, tree: int, x: np.ndarray, known: frozenset[int], node: int = 0) -> float:
    """Path-dependent conditional expectation: known features follow their branch, the others spread by cover."""
    at = int(trees.offset[tree]) + node
    if trees.left[at] < 0:
        return float(trees.threshold[at])
    left, right, feature = int(trees.left[at]), int(trees.right[at]), int(trees.feature[at])
    if feature in known:
        missing, below = np.isnan(x[feature]), np.float32(x[feature]) < trees.threshold[at]
        goes_left = bool(trees.default_left[at]) if missing else below
        return expected_value(trees, tree, x, known, left if goes_left else right)
    if trees.cover[at] == 0:
        return 0.0
    base = int(trees.offset[tree])
    return sum(float(trees.cover[base + child]) / float(trees.cover[at]) * expected_value(trees, tree, x, known, child)
               for child in (left, right))


def brute_force(trees: Trees, X: np.ndarray) -> np.ndarray:
    """phi (n, F) from the definition: 2^F expectations per tree and row."""
    n, features = X.shape
    phi = np.zeros((n, features))
    for tree in range(trees.count):
        for row in range(n):
            value = {frozenset(s): expected_value(trees, tree, X[row], frozenset(s))
                     for size in range(features + 1) for s in combinations(range(features), size)}
            for known, v in value.items():
                for k in set(range(features)) - known:
                    weight = factorial(len(known)) * factorial(features - 1 - len(known)) / factorial(features)
                    phi[row, k] += weight * (value[known | {k}] - v)
    return phi


def appliances(n: int, features: int, seed: int = 0, missing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """X (n, features) float32 with many equal values, y (n,): enough structure for deep trees."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.gamma(1.0, 1.0, (n, features)), 1).astype(np.float32)
    y = (X[:, 0] * (X[:, 1] > 1) + np.sin(X[:, 2]) + 0.3 * rng.normal(size=n)).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    return X, y
