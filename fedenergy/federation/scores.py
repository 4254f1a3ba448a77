"""How good a zone's answer is, against the sums that an oracle saw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fedenergy import metrics

SCORES = {"mae": metrics.mae, "rmse": metrics.rmse, "spearman": metrics.spearman, "cosine": metrics.cosine,
          "top1": metrics.top1, "sign": metrics.sign_agreement}


@dataclass(frozen=True)
class Less:
    """What a home that granted less than was asked put into a sum. values: (d,) its summary clipped to share * C."""

    values: np.ndarray
    share: float


def exact_sum(vectors: Sequence[np.ndarray], size: int) -> np.ndarray:
    """Correctly rounded sum of (d,) vectors, whatever their order."""
    if not len(vectors):
        return np.zeros(size)
    return np.array([math.fsum(column) for column in np.stack(vectors).T])


def score(released: np.ndarray, truth: Mapping[str, np.ndarray], answered: Sequence[str], clip: float,
          norm: int = 1, less: Mapping[str, Less] = MappingProxyType({})) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Scores of a released zone vector (d,), and the three vectors for figures.

    truth     household -> (2, d): clipped and unclipped summary of every home
    answered  the homes in the answer: mae, rmse, ... compare with the sum of *their clipped* summaries (noise, and what
              `less` cuts);
              mae_total, ... with the unclipped sum over *all* homes (noise, clipping and refusals)
    clip      C, for the share of homes whose summary was clipped; norm: 1 (l1) or 2 (Gaussian noise)
    less      homes that were clipped to less than C, as they granted less: mae_less says how far that alone puts the sum off
    """
    released = np.asarray(released, dtype=np.float64)
    clipped = exact_sum([truth[name][0] for name in answered], released.size)
    total = exact_sum([values[1] for values in truth.values()], released.size)
    found = {name: function(released, clipped) for name, function in SCORES.items()}
    found |= {f"{name}_total": function(released, total) for name, function in SCORES.items()}
    over = [float(np.linalg.norm(values[1], norm)) > clip * (less[name].share if name in less else 1.0)
            for name, values in truth.items()]
    found["clipped_share"] = float(np.mean(over)) if over else float("nan")
    if less:
        put_in = exact_sum([less[name].values if name in less else truth[name][0] for name in answered], released.size)
        found["mae_less"] = metrics.mae(put_in, clipped)
    return found, {"true_clipped": clipped.tolist(), "true_total": total.tolist(), "released": released.tolist()}
