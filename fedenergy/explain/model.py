"""The household's boosted-tree model: xgboost, histogram method, one thread, deterministic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xgboost

from fedenergy.explain.trees import Trees, from_ubjson


class Fitted(NamedTuple):
    """A fitted booster and the matrix of the rows that it was fitted on."""

    booster: xgboost.Booster
    matrix: xgboost.DMatrix


def fit(X: np.ndarray, y: np.ndarray, trees: int = 100, depth: int = 4, bins: int = 64, learning_rate: float = 0.3
        ) -> Fitted:
    """Fit squared error on X (n, F) float32, NaN = missing, and y (n,), finite.

    Equal inputs give equal models, bit for bit: no sampling, one thread (one home per core scales better than one home
    over cores). DMatrix and plain updates: for a month of rows the binning of QuantileDMatrix and the callbacks of
    `xgboost.train` cost a tenth more and change nothing.
    """
    parameters = {"objective": "reg:squarederror", "tree_method": "hist", "max_bin": bins, "max_depth": depth,
                  "learning_rate": learning_rate, "nthread": 1, "verbosity": 0, "seed": 0}
    matrix = xgboost.DMatrix(X, y, nthread=1)
    booster = xgboost.Booster(parameters, [matrix])
    for step in range(trees):
        booster.update(matrix, step)
    return Fitted(booster, matrix)


def trees_of(fitted: Fitted) -> Trees:
    """The trees as flat arrays, for `leaf_tables.compile_tables`."""
    return from_ubjson(bytes(fitted.booster.save_raw("ubj")))


def predict(fitted: Fitted) -> np.ndarray:
    """(n,) float32 predictions for the rows of the fit."""
    return fitted.booster.predict(fitted.matrix)


def contributions(fitted: Fitted) -> np.ndarray:
    """phi (n, F) float64 of the rows of the fit by xgboost's own TreeSHAP: slow, any depth, and the tables' oracle."""
    return fitted.booster.predict(fitted.matrix, pred_contribs=True)[:, :-1].astype(np.float64)
