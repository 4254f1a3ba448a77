"""What the study varies, under which names, and the figures that the source (arXiv 2602.22610) prints."""

from __future__ import annotations

from dataclasses import dataclass

from fedenergy.imputation.limits import LEVELS, SCOPES, AdaLNBound
from fedenergy.imputation.objective import Objective

PUBLISHED, TRUE, PLAIN = "published_sigma", "true_epsilon", "non_private"
REGIMES = {PUBLISHED: "published σ: mechanism diagnostics, no privacy", TRUE: "calibrated true ε", PLAIN: "not private"}
NONE = "none"
TASKS = ("imputation", "forecasting")
DATASETS = ("household", "etth1", "ettm1", "simulated")
SCALINGS = ("training", "public", "by regime")
PARTS = (0.7, 0.15, 0.15)
SCHEDULE = "linear"
# What the source prints (its meter, PrivatePower, is not public): vanilla, then with its limits.
RMSE_FORECAST = (0.567, 0.423)             # forecasting, sigma 0.05
P99 = (64.5, 54.8)                         # p99 of ||g_cond||, sigma 0.2
ABLATION = {NONE: 3.50, "c only": 4.00, "modulation only": 2.34, "both": 2.02}


@dataclass(frozen=True)
class Fit:
    """One training: what determines a cell. asked: sigma, or epsilon, or 0 without privacy."""

    dataset: str
    limits: str
    objective: str
    regime: str
    asked: float
    clip: float
    seed: int

    @property
    def words(self) -> str:
        """For progress lines."""
        return f"{self.dataset}, limits {self.limits}, {noise_words(self.regime, self.asked)}, seed {self.seed}"


def noise_words(regime: str, asked: float) -> str:
    """The noise of a cell, for tables.

    >>> noise_words("published_sigma", 0.05), noise_words("non_private", 0.0)
    ('σ 0.05', 'no noise')
    """
    return {PUBLISHED: f"σ {asked:g}", TRUE: f"ε {asked:g}", PLAIN: "no noise"}[regime]


def parse(limits: str) -> tuple[str, str, bool]:
    """"medium, c only, hard" -> (level, scope, soft); ("none", "both", True) for "none". ValueError for other words.

    >>> parse("medium"), parse("tight, modulation only, hard")
    (('medium', 'both', True), ('tight', 'modulation only', False))
    """
    level, *more = (word.strip() for word in limits.split(","))
    scopes = [word for word in more if word in SCOPES]
    rest = [word for word in more if word not in SCOPES and word != "hard"]
    if level not in (NONE, *LEVELS) or rest or len(scopes) > 1 or (level == NONE and more):
        raise ValueError(f"limits = {limits!r} is unknown: \"none\", or a level ({', '.join(LEVELS)}), then where wanted "
                         "\"c only\" or \"modulation only\", then \"hard\", all with commas between")
    return level, scopes[0] if scopes else "both", "hard" not in more


def bound_of(limits: str, reference: AdaLNBound) -> AdaLNBound | None:
    """The limits by name, as a share of reference magnitudes.

    >>> bound_of("too tight, c only", AdaLNBound(4.0, 1.0, 1.0, 1.0))
    AdaLNBound(c=2.0, gamma=None, beta=None, alpha=None, soft=True)
    """
    level, scope, soft = parse(limits)
    if level == NONE:
        return None
    whole = reference.scaled(LEVELS[level])
    return AdaLNBound(whole.c, whole.gamma, whole.beta, whole.alpha, soft).only(scope)


def objective_of(text: str) -> Objective:
    """"eps" or "v alpha_bar": a target and, after a blank, a weight."""
    target, _, weight = text.partition(" ")
    return Objective(target, weight=weight or "none")
