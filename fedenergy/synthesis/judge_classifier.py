"""Can a classifier tell artificial rows from real ones? The discriminative score of TimeGAN (Yoon, Jarrett and van der
Schaar 2019), with boosted trees, per day and per home."""

from __future__ import annotations

import numpy as np

from fedenergy.ids import stream
from fedenergy.synthesis.judge_privacy import UNITS

MOST_ROWS = 4_000   # of each kind


def discriminative(real: np.ndarray, fake: np.ndarray, unit: str = "day", per_day: int = 24, *, seed: int = 0,
                   most: int = MOST_ROWS) -> dict[str, float]:
    """Accuracy, AUC and score = max(0, accuracy - 1/2) of boosted trees on rows they did not see: 0 cannot tell, .5 always.

    real, fake  (N, T) and (M, T) kWh; equally many rows of both are used, a seeded sample
    unit        "day": a row is one day's profile; "home": mean and standard deviation of a home's readings by time of day
    Two-fold cross-validation in which all rows of a home are on one side. A real day and its verbatim copy carry both
    labels, so copies lower the accuracy: read it beside the share of exact copies.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    if unit not in UNITS:
        raise ValueError(f"unit = {unit!r}; use one of {', '.join(UNITS)}")
    if min(len(real), len(fake)) < 4:
        raise ValueError(f"{len(real)} real and {len(fake)} artificial homes are too few to train on one half and test "
                         "on the "
                         "other: give at least 4 of each")
    rng = stream(seed, "judge.discriminative", "", unit)
    size = min(len(real), len(fake))
    tables, folds = [], []
    for values in (real, fake):
        chosen = values[np.sort(rng.permutation(len(values))[:size])]
        days = chosen.reshape(size, -1, per_day)
        half = rng.permutation(size) % 2
        if unit == "home":
            tables.append(np.concatenate([days.mean(axis=1), days.std(axis=1)], axis=1))
            folds.append(half)
            continue
        each = max(1, most // size)
        at = np.unique(np.linspace(0, days.shape[1] - 1, min(each, days.shape[1])).astype(int))
        tables.append(days[:, at].reshape(-1, per_day))
        folds.append(np.repeat(half, at.size))
    x, fold = np.concatenate(tables), np.concatenate(folds)
    y = np.repeat([0, 1], [len(table) for table in tables])
    score = np.empty(len(x))
    for side in (0, 1):
        trees = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, early_stopping=False, random_state=0)
        score[fold == side] = trees.fit(x[fold != side], y[fold != side]).predict_proba(x[fold == side])[:, 1]
    accuracy = float(((score > 0.5) == y).mean())
    return {"accuracy": accuracy, "score": max(0.0, accuracy - 0.5), "auc": float(roc_auc_score(y, score)), "rows": len(x)}
