"""Canaries: made-up homes of which the generator sees one of each pair, and a lower bound of epsilon from telling which.

The generator runs once. Which member of a pair it saw is a coin; guessing the coins from the artificial records alone can
refute a claim of (epsilon, delta)-differential privacy, never prove one. Bound: Steinke, Nasr and Jagielski 2023, "Privacy
auditing with one (1) training run", Theorem 5.2 and their appendix's p-value; as one home of a pair stands in for the other,
the relation is replace-one and the number of homes stays the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedenergy.ids import stream
from fedenergy.synthesis.intake import Panel, panel
from fedenergy.synthesis.judge_privacy import auc, nearest

CONFIDENCE = 0.95


def canary_homes(real: Panel, count: int, seed: int = 0) -> np.ndarray:
    """(count, T) records unlike anyone's: a real one moved by 6 to 18 h, each time of day scaled by a factor of its own."""
    rng = stream(seed, "judge.canaries")
    picked = real.values[rng.integers(len(real.ids), size=count)]
    hours = rng.integers(real.per_day // 4, real.per_day - real.per_day // 4 + 1, size=count)
    moved = np.stack([np.roll(row, int(hour)) for row, hour in zip(picked, hours)])
    scale = np.exp(rng.normal(0.0, 0.8, (count, real.per_day)))
    return np.minimum(moved * np.tile(scale, (1, real.days)), real.cap_kwh)


def canaries(homes: Any, make: Callable[[Panel], Any], *, pairs: int = 0, claimed: float = math.inf, delta: float = 0.0,
             seed: int = 0) -> dict[str, float]:
    """How well the artificial records tell which canaries the generator saw.

    make     Panel -> Synthetic: the generator under test, with the arguments that it is used with
    pairs    0: a fifth of the homes, at least 20 (with fewer, not even perfect guesses bound epsilon away from 0)
    claimed  the epsilon that the generator states at delta (replace-one): "falsified" is 1 where the bound is above it
    Returns auc (seen against unseen), guesses, correct, epsilon_lower (95 %, the better of day and home, each at 97.5 %).
    """
    real = panel(homes, on_bad="drop")
    pairs = pairs or max(20, len(real.ids) // 5)
    if isinstance(pairs, bool) or not isinstance(pairs, int) or pairs < 2:
        raise ValueError(f"pairs = {pairs!r}; use a whole number of at least 2")
    both = canary_homes(real, 2 * pairs, seed).reshape(pairs, 2, -1)
    coin = stream(seed, "judge.coins").integers(2, size=pairs)
    seen = both[np.arange(pairs), coin]
    names = tuple(f"canary-{k:06d}" for k in range(pairs))
    together = Panel((*names, *real.ids), np.concatenate([seen, real.values]), real.start, real.step_minutes, real.cap_kwh)
    fake = make(together).values
    found: dict[str, float] = {"pairs": pairs, "delta": delta}
    bounds, areas = [], []
    for unit in ("day", "home"):
        score = _closeness(both.reshape(2 * pairs, -1), fake, unit, real.per_day).reshape(pairs, 2)
        gap = score[:, 1] - score[:, 0]
        correct = int(((gap > 0) == (coin == 1))[gap != 0].sum())
        guesses = int((gap != 0).sum())
        areas.append(auc(score[np.arange(pairs), coin], score[np.arange(pairs), 1 - coin]))
        bounds.append(epsilon_lower(guesses, correct, pairs, delta, 1 - (1 - CONFIDENCE) / 2))
        found |= {f"{unit}_auc": areas[-1], f"{unit}_guesses": guesses, f"{unit}_correct": correct}
    return found | {"auc": max(areas), "epsilon_lower": max(bounds), "epsilon_claimed": claimed,
                    "falsified": float(max(bounds) > claimed)}


def _closeness(records: np.ndarray, fake: np.ndarray, unit: str, per_day: int) -> np.ndarray:
    """(n,) minus the distance of each record's nearest day, or of its mean day, to the artificial ones."""
    days, made = (values.reshape(len(values), -1, per_day) for values in (records, fake))
    if unit == "home":
        return -nearest(days.mean(axis=1), made.mean(axis=1))[0][:, 0]
    return -nearest(days.reshape(-1, per_day), made.reshape(-1, per_day))[0].reshape(len(records), -1).mean(axis=1)


def epsilon_lower(guesses: int, correct: int, coins: int, delta: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """The largest epsilon that `correct` right guesses of `coins` fair coins refute at that confidence; 0 where none.

    >>> epsilon_lower(20, 10, 20), round(epsilon_lower(20, 20, 20), 2), round(epsilon_lower(100, 100, 100, 1e-5), 2)
    (0.0, 1.82, 3.49)
    """
    if not 0 <= correct <= guesses <= coins:
        raise ValueError(f"{correct} right of {guesses} guesses of {coins} coins cannot be")
    if guesses == 0 or _p_value(guesses, correct, coins, 0.0, delta) > 1 - confidence:
        return 0.0
    low, high = 0.0, 1.0
    while _p_value(guesses, correct, coins, high, delta) <= 1 - confidence and high < 64:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _p_value(guesses, correct, coins, middle, delta) <= 1 - confidence else (low, middle)
    return low


def _p_value(guesses: int, correct: int, coins: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are at most under (epsilon, delta)-DP."""
    from scipy.special import bdtrc
    from scipy.stats import binom

    chance = 1 / (1 + math.exp(-epsilon))
    least = 1.0 if correct == 0 else float(bdtrc(correct - 1, guesses, chance))     # P(Binomial >= correct)
    if delta == 0 or correct == 0:
        return least
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))
    return min(1.0, least + 2 * coins * delta * float((below / np.arange(1, correct + 1)).max()))
