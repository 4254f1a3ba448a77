"""Auditing DP-SGD: does the trainer keep the epsilon that it states?

Canaries are records whose gradient lies on a coordinate that nothing else uses; a coin puts each into the training data.
Who sees every noisy gradient (which DP-SGD allows) guesses the coins; better guesses than the stated epsilon permits
refute it. Canaries do not disturb each other or the model, so one run gives as many independent trials as canaries.

Main bound: Gaussian DP (Dong, Roth and Su 2022; Nasr et al. 2023): the false positive and false negative rates of one
threshold, at their Clopper-Pearson upper limits, give mu and so epsilon at delta. It takes the whole run's trade-off to
be Gaussian, exact at q = 1 and the limit of many steps below. Beside it, without that assumption, the bound of
Steinke, Nasr and Jagielski 2023 from the share of right guesses: weaker (halved noise can pass it).
An audit refutes, it never proves: a passed one says that this attack found nothing.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm
from torch import Tensor, nn

from fedenergy.ids import stream
from fedenergy.imputation.bookkeeping import Losses
from fedenergy.imputation.dpsgd import DPSGD, PrivateGradient
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.task import Windows, join
from fedenergy.imputation.training import _Trainer, train
from fedenergy.privacy.accounting import Statement

CHOICE = 0.25                  # share of the canaries that choose the threshold; the others are counted
LOUD = 1e4                     # a canary's gradient before the clip, in units of C
UNITS = ("window", "household")

# ---- bounds from scores: pure functions


def at_most(hits: int | np.ndarray, trials: int, confidence: float) -> np.ndarray:
    """Clopper-Pearson upper limits of rates, one-sided.

    >>> round(float(at_most(0, 300, 0.95)), 4)            # the rule of three
    0.0099
    """
    hits = np.minimum(hits, trials)
    return np.where(hits >= trials, 1.0, beta.ppf(confidence, hits + 1, np.maximum(trials - hits, 1)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at delta of mu-GDP (Dong, Roth and Su 2022, corollary 1).

    >>> round(gaussian_epsilon(1.0, 1e-5), 2)
    4.38
    """
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        high = norm.logcdf(-epsilon / mu - mu / 2) + epsilon
        return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(min(high, 700.0)) - delta)

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, mu * (mu / 2 + 12.0)))


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon by Gaussian DP.

    false_positive, false_negative   upper limits of the attack's error rates; trials: canaries counted
    """

    epsilon: float
    mu: float
    false_positive: float
    false_negative: float
    trials: int


def gaussian_bound(scores: np.ndarray, coins: np.ndarray, delta: float, confidence: float) -> Bound:
    """Lower bound on epsilon from scores (m,), higher where the attacker believes in, and coins (m,) bool.

    The first quarter chooses the threshold, the rest is counted: the bound errs with probability at most 1 - confidence
    where the trade-off is Gaussian.
    """
    scores, coins = np.asarray(scores, np.float64), np.asarray(coins, bool)
    first = int(len(scores) * CHOICE)
    candidates = np.unique(np.quantile(scores[:first], np.linspace(0.0, 1.0, 101)))
    best = candidates[np.argmax(_rates(scores[:first], coins[:first], candidates, confidence)[2])]
    positive, negative, mu = (float(x[0]) for x in _rates(scores[first:], coins[first:], np.array([best]), confidence))
    return Bound(gaussian_epsilon(mu, delta), mu, positive, negative, len(scores) - first)


def _rates(scores: np.ndarray, coins: np.ndarray, thresholds: np.ndarray, confidence: float) -> tuple[np.ndarray, ...]:
    """Per threshold: upper limits of both error rates, jointly at this confidence, and mu (0 where nothing is shown)."""
    each = (1.0 + confidence) / 2.0
    out, inside = np.sort(scores[~coins]), np.sort(scores[coins])
    positive = at_most(len(out) - np.searchsorted(out, thresholds), len(out), each)          # said in: score >= threshold
    negative = at_most(np.searchsorted(inside, thresholds), len(inside), each)
    return positive, negative, np.maximum(norm.isf(positive) - norm.ppf(negative), 0.0)


def one_run_bound(scores: np.ndarray, coins: np.ndarray, delta: float, confidence: float, share: float = 0.1) -> float:
    """Lower bound on epsilon from one run without assumptions (Steinke et al. 2023, theorem 5.2).

    share  of the coins that are guessed: the highest scores as in, the lowest as out, half each
    """
    half = max(1, int(len(scores) * share / 2))
    order = np.argsort(scores)
    right = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())

    def probability(epsilon: float) -> float:
        chance = 1.0 / (1.0 + math.exp(-epsilon))
        tail = binom.pmf(right - np.arange(1, right + 1), 2 * half, chance).cumsum() / np.arange(1, right + 1)
        return float(binom.sf(right - 1, 2 * half, chance) + 2.0 * len(scores) * delta * tail.max(initial=0.0))

    if probability(0.0) > 1.0 - confidence:
        return 0.0
    return float(brentq(lambda e: probability(e) - (1.0 - confidence), 0.0, 60.0))


def log_likelihood_ratio(seen: np.ndarray, sigma: float, q: float, shift: float = 1.0) -> np.ndarray:
    """(steps, m) canary coordinates of the noisy sums, in units of C -> (m,) log-likelihood ratio of in against out.

    shift  the sum's mean when a canary's record is drawn: 1 for one record at its clipping bound
    """
    drawn = np.log(q) + (2 * seen * shift - shift**2) / (2 * sigma**2)
    return np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, drawn).sum(0)


# ---- the runner: the real trainer, with canaries among its records


@dataclass(frozen=True)
class Audit:
    """What an attack with canaries found against a stated epsilon.

    claimed        the trainer's statement for `unit` ("window", or "household": all windows of a canary's home)
    bound, one_run   lower bounds on epsilon at delta, each at `confidence`; the claim is judged by the first
    inserted       canaries that the coin put in, of `canaries`; noise: the stamp of the noise that was used
    """

    claimed: float
    delta: float
    unit: str
    bound: Bound
    one_run: float
    confidence: float
    canaries: int
    inserted: int
    steps: int
    noise: str

    @property
    def passed(self) -> bool:
        """False: the stated epsilon is refuted at this confidence."""
        return self.bound.epsilon <= self.claimed

    def __str__(self) -> str:
        verdict = "not refuted" if self.passed else "REFUTED"
        return "; ".join(filter(None, [
            f"epsilon {self.claimed:.3g} per {self.unit} at delta {self.delta:g} is {verdict}: at least "
            f"{self.bound.epsilon:.3g} by Gaussian DP, {self.one_run:.3g} by one run, at {self.confidence:.0%} confidence",
            f"{self.canaries} canaries ({self.inserted} in), {self.steps} steps", self.noise]))


@dataclass(frozen=True, eq=False)
class Observed:
    """One training run with canaries, as the attacker sees it.

    seen   (steps, m) the canaries' coordinates of the noisy sums in units of C, towards "in"
    coins  (m,) which canaries were in; statement: what the trainer claims; sigma, q: of every step
    """

    seen: np.ndarray
    coins: np.ndarray
    statement: Statement
    sigma: float
    q: float


def observe(data: Windows | np.ndarray, privacy: DPSGD, *, steps: int, batch: int, seed: int, canaries: int = 1000,
            windows: int = 1, objective: Objective | None = None,
            tamper: Callable[[PrivateGradient], Any] | None = None, **options: Any) -> Observed:
    """Train with canaries among the records.

    data      ordinary windows that are always in
    canaries  each is in by a fair coin; windows: records of a canary's home, all in or all out
    tamper    called with the gradient before the first step: to break it and see the audit turn red
    options   of `train`: net, limits, masks, rate, ...
    Raises ValueError for too few canaries, and what `train` raises.
    """
    if canaries < 40 or windows < 1:
        raise ValueError(f"canaries = {canaries}, windows = {windows}: give at least 40 canaries of at least 1 window")
    data = Windows.of(data)
    coins = stream(seed, "audit").random(canaries) < 0.5
    owner = np.repeat(np.flatnonzero(coins), windows)
    ordinary = replace(data, homes=tuple(f"home-{k}" for k in range(len(data))))
    planted = replace(data.take(np.zeros(len(owner), np.int64)), homes=tuple(f"canary-{k}" for k in owner))
    trainer = _Audited(np.concatenate([np.full(len(data), -1), owner]), canaries, join([ordinary, planted]), None, objective,
                       replace(privacy, household_windows=None), steps=steps, batch=batch, seed=seed, **options)
    if tamper is not None:
        tamper(trainer.gradient)
    seen, unit = np.empty((steps, canaries)), trainer.q * len(trainer.windows) / privacy.clip
    try:
        for step in range(steps):
            trainer.step()
            seen[step] = trainer.planted().double().cpu().numpy() * unit
    finally:
        trainer.gradient.close()
    return Observed(seen, coins, trainer.statement(), trainer.sigma, trainer.q)


def audit(data: Windows | np.ndarray, privacy: DPSGD, *, unit: str = "window", confidence: float = 0.95,
          **options: Any) -> Audit:
    """Train with canaries, guess which were in, and compare with what the trainer claims.

    unit     the statement to test: epsilon of a "window", or of a "household" (all windows of a canary's home)
    options  of `observe`: steps, batch, seed, canaries, windows, net, ...
    """
    if unit not in UNITS:
        raise ValueError(f"unit = {unit!r} is unknown (takes: {', '.join(UNITS)})")
    found = observe(data, privacy, **options)
    said = found.statement
    scores = log_likelihood_ratio(found.seen, found.sigma, found.q)
    return Audit(said.epsilon if unit == "window" else said.household, said.delta, unit,
                 gaussian_bound(scores, found.coins, said.delta, confidence),
                 one_run_bound(scores, found.coins, said.delta, confidence), confidence, len(scores),
                 int(found.coins.sum()), said.steps, said.noise)


class _Beside(nn.Module):
    """A net with a layer that it does not use: one weight per canary."""

    def __init__(self, net: nn.Module, canaries: int):
        super().__init__()
        self.net, self.canary = net, nn.Linear(1, canaries, bias=False)

    def forward(self, *args: Any, **more: Any) -> Tensor:
        return self.net(*args, **more)


class _Audited(_Trainer):
    """The trainer, but record i with owner[i] >= 0 has the loss -LOUD C weight[owner[i]]: its clipped gradient is -C on
    that coordinate and 0 on the model."""

    def __init__(self, owner: np.ndarray, canaries: int, *positional: Any, **named: Any):
        self.owner, self.canaries = torch.from_numpy(owner), canaries
        bound = inspect.signature(train).bind(*positional, **named)
        bound.apply_defaults()
        super().__init__(bound.arguments)

    def _network(self, *arguments: Any) -> nn.Module:
        net = super()._network(*arguments)
        with torch.random.fork_rng(devices=[]):
            return _Beside(net, self.canaries).to(self.device)

    def losses_of(self, windows: Windows, rows: np.ndarray, rng: np.random.Generator) -> Callable[[np.ndarray], Losses]:
        ordinary = super().losses_of(windows, rows, rng)

        def part(at: np.ndarray) -> Losses:
            owner, usual = self.owner[rows[at]].to(self.device), ordinary(at)

            def losses() -> Tensor:
                weights = self.net.canary(torch.ones(len(owner), 1, device=self.device))       # (R, canaries)
                loud = -LOUD * self.privacy.clip * weights.gather(1, owner.clamp(min=0)[:, None])[:, 0]
                return torch.where(owner >= 0, loud, usual())
            return losses
        return part

    def planted(self) -> Tensor:
        """(canaries,) their coordinates of the last noisy gradient, towards "in"."""
        return -self.net.canary.weight.grad[:, 0]
