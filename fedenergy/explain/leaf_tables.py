"""Exact path-dependent TreeSHAP by tables over condition patterns.

A leaf with m distinct features on its path contributes to phi only through m yes/no answers: does the row satisfy the
path's conditions on feature j? For feature k, with r_j the share of the training cover that satisfies j,

    phi_k = v (z_k - r_k) * integral over u in [0, 1] of prod_{j != k} (z_j u + r_j (1 - u)) du,

because the Shapley weight s! (m-1-s)! / m! is the integral of u^s (1-u)^(m-1-s). The integrand is a polynomial of
degree m - 1, so ceil(m / 2) Gauss-Legendre points give it exactly, with positive terms only: no division by a cover
that may be zero, no cancellation. (TreeSHAP: Lundberg et al. 2018, arXiv 1802.03888; tables: Yang 2021, 2109.09847.)

Neighbouring leaves are joined into groups: subtrees whose splits, with those of their ancestors, are at most 8. A row's
answers to a group's splits are one byte, its pattern, and a group's table gives phi for every pattern. Then
S[k] = sum_t phi[t, k] x[t, k] needs one histogram of x by pattern per group, never the (rows, features) matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedenergy.explain import leaf_kernels
from fedenergy.explain.trees import Trees

MAX_DEPTH = 8        # a pattern is one byte
MAX_CUTS = 254       # bin codes are bytes too, and 255 means missing
_MANY_ROWS = 4_000   # measured: from here on, tables of 256 patterns pay


def _gauss_legendre() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]; row q - 1 holds the q-point rule, exact up to degree 2q - 1."""
    nodes, weights = np.zeros((4, 4)), np.zeros((4, 4))
    for points in range(1, 5):
        x, w = np.polynomial.legendre.leggauss(points)
        nodes[points - 1, :points], weights[points - 1, :points] = (x + 1) / 2, w / 2
    return nodes, weights


_NODES, _WEIGHTS = _gauss_legendre()


class LeafTables(NamedTuple):
    """Trees compiled for pattern look-ups. G groups; splits, leaves, columns and players are flat lists behind offsets.

    cut_from (F + 1,), cuts             sorted float32 thresholds of every feature: they turn x into a bin code
    split_from (G + 1,), split_feature, split_start, split_width     uint8 test: code - start <= width means left
    leaf_from (G + 1,), leaf_value      the group's leaves
    column_from (G + 1,), column_feature       distinct features of the group
    player_from (L + 1,), player_column, player_mask, player_want, player_ratio
                                        a leaf's distinct features: satisfied where pattern & mask == want;
                                        ratio is the share of cover that satisfies it
    """

    cut_from: np.ndarray
    cuts: np.ndarray
    split_from: np.ndarray
    split_feature: np.ndarray
    split_start: np.ndarray
    split_width: np.ndarray
    leaf_from: np.ndarray
    leaf_value: np.ndarray
    column_from: np.ndarray
    column_feature: np.ndarray
    player_from: np.ndarray
    player_column: np.ndarray
    player_mask: np.ndarray
    player_want: np.ndarray
    player_ratio: np.ndarray

    @property
    def features(self) -> int:
        return self.cut_from.size - 1


def group_bits(rows: int, depth: int) -> int:
    """Splits per group that serve rows of that number best: larger groups mean fewer passes over the rows.

    >>> group_bits(746, 4), group_bits(8_786, 4)
    (5, 8)
    """
    return MAX_DEPTH if rows >= _MANY_ROWS else min(depth + 1, MAX_DEPTH)


def compile_tables(trees: Trees, features: int, bits: int = 6) -> LeafTables:
    """Compile trees over `features` columns.

    bits (1 to 8) bounds the splits of a group: a matter of speed only, more of them for many rows.
    Zero cover: a child that no training row reached has ratio 0, and so have both children of a node without cover,
    where xgboost itself divides 0 by 0.
    Raises ValueError for a path longer than 8 splits and for more than 254 distinct thresholds on one feature.
    """
    inner = trees.left >= 0
    split_on, threshold = trees.feature[inner], trees.threshold[inner]
    if split_on.size and int(split_on.max()) >= features:
        raise ValueError(f"the trees split on column {int(split_on.max())}, but the matrix has {features} columns")
    order = np.lexsort((threshold, split_on))
    f, c = split_on[order], threshold[order]
    new = np.ones(order.size, np.bool_)
    new[1:] = (f[1:] != f[:-1]) | (c[1:] != c[:-1])
    cut_from = np.concatenate([[0], np.cumsum(np.bincount(f[new], minlength=features))])
    if (most := int(np.diff(cut_from).max(initial=0))) > MAX_CUTS:
        raise ValueError(f"a feature has {most} distinct thresholds, at most {MAX_CUTS} fit a byte: "
                         "fit with fewer bins (max_bin <= 254)")
    code = np.zeros(trees.left.size, np.int64)
    rank = np.empty(order.size, np.int64)
    rank[order] = np.cumsum(new) - 1
    code[inner] = rank - cut_from[split_on]
    leaves = int(trees.left.size - inner.sum())
    arrays = (np.zeros(leaves + 1, np.int64), np.zeros(leaves * MAX_DEPTH, np.int32),
              np.zeros(leaves * MAX_DEPTH, np.uint8), np.zeros(leaves * MAX_DEPTH, np.uint8),
              np.zeros(leaves + 1, np.int64), np.zeros(leaves, np.float64),
              np.zeros(leaves + 1, np.int64), np.zeros(leaves * MAX_DEPTH, np.int32),
              np.zeros(leaves + 1, np.int64), np.zeros(leaves * MAX_DEPTH, np.int32),
              np.zeros(leaves * MAX_DEPTH, np.uint8), np.zeros(leaves * MAX_DEPTH, np.uint8),
              np.zeros(leaves * MAX_DEPTH, np.float64))
    depth, groups, splits, found, columns, players = leaf_kernels.walk(trees, code, min(max(bits, 1), 8), *arrays)
    if depth > MAX_DEPTH:
        raise ValueError(f"a tree is {depth} splits deep, at most {MAX_DEPTH} fit a pattern byte: "
                         'fit with depth <= 8 or use engine = "xgboost"')
    ends = (groups + 1, splits, splits, splits, groups + 1, found, groups + 1, columns, found + 1,
            players, players, players, players)
    return LeafTables(cut_from, c[new], *(array[:end] for array, end in zip(arrays, ends)))


def shap_values(tables: LeafTables, X: np.ndarray) -> np.ndarray:
    """phi (n, F) float64 in the target's unit: path-dependent SHAP values of every row of X (n, F), NaN = missing.

    Rows add up to the margin minus the expected value, as `Booster.predict(pred_contribs=True)` without its last
    column; equal to it within 1e-5 of the largest |phi|.
    """
    codes = bin_codes(tables, X)
    phi = np.zeros(codes.shape, np.float64)
    leaf_kernels.add_shap(tables, codes, _NODES, _WEIGHTS, phi)
    return phi.T


def weighted_sums(tables: LeafTables, X: np.ndarray, channel_of_feature: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """S (d,) float64 with S[k] = sum over rows t and features f of channel k of phi[t, f] * weights[t, k].

    X (n, F) with NaN = missing; channel_of_feature (F,) in -1 .. d - 1 (-1: not released); weights (n, d), NaN counts
    as 0. Equal to the sum over `shap_values` within 1e-9 of sum |phi| |weights|, byte-identical on one machine.
    """
    channels, weights = np.array(channel_of_feature, np.int64), np.asarray(weights)
    if weights.shape[0] != X.shape[0] or channels.shape != (tables.features,):
        raise ValueError(f"weights {weights.shape} and channel_of_feature {channels.shape} do not fit X {X.shape}: "
                         "one weight row per row, one channel per column")
    d = weights.shape[1]
    if channels.size and not -1 <= channels.min() <= channels.max() < d:
        raise ValueError(f"channel_of_feature spans {channels.min()} to {channels.max()}, expected -1 to {d - 1}")
    by_channel = np.zeros((d + 1, X.shape[0]))                  # the last row stays 0: it fills unused histogram lanes
    np.copyto(by_channel[:d], weights.T)
    by_channel[np.isnan(by_channel)] = 0.0
    sums = np.zeros(d)
    leaf_kernels.add_weighted(tables, bin_codes(tables, X), _NODES, _WEIGHTS, channels, by_channel, sums)
    return sums


def bin_codes(tables: LeafTables, X: np.ndarray) -> np.ndarray:
    """(F, n) uint8: how many of the feature's thresholds are <= x (float32, as xgboost compares), 255 where missing."""
    if X.ndim != 2 or X.shape[1] != tables.features:
        raise ValueError(f"X has shape {X.shape}, expected (rows, {tables.features})")
    codes = np.empty((X.shape[1], X.shape[0]), np.uint8)
    leaf_kernels.bin_rows(np.array(X, np.float32, order="C"), tables.cut_from, tables.cuts, codes)
    return codes
