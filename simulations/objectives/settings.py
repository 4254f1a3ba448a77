"""What a study compares, by name: methods, samplers, regimes, conditions; and which cells each table of the source holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from fedenergy import imputation as imp
from simulations.objectives import paper

DATASETS = ("etth1", "ettm1", "electricity", "electricity-369", "household", "appliances")
PATTERNS = ("random", "block", "outage", "real outages")
AS_PUBLISHED, TRUE_EPSILON, NO_PRIVACY = REGIMES = ("as_published", "true_epsilon", "non_private")
LEARNED = {"patchtst": "PatchTST", "itransformer": "iTransformer", "timesnet": "TimesNet", "timedit": "TimeDiT"}
TUNED = "eps tuned"
LITERAL = "literal"
SUFFIX = "suffix"
SCALES, CALIBRATE, TRAINING = ("by regime", "training", "public"), ("sigma", "steps"), ("mixed", "random", "block", "outage")
TABLES = ("1", "2", "3", "4", "5", "6", "7", "8", "C.13", "D.12", "F.14", "F.15", "H.16", "I.17", "figure 1", "figure 2")
_SAMPLER = re.compile(r"(literal|clip_x0)?(?:\s*\+?\s*start_t (\d+))?")


@dataclass(frozen=True)
class Method:
    """A model to train. net: "dit" or a learned baseline's name; objective None: that net's own default."""

    name: str
    net: str = "dit"
    objective: imp.Objective | None = None
    base: str = "none"

    @property
    def diffuses(self) -> bool:
        """Whether a sampler matters: regressors fill in one pass."""
        return self.net in ("dit", "timedit")


def method(name: str, loss_on: str = "missing", reduction: str = "mean") -> Method:
    """A method by its row name: "eps", "v alpha_bar", "v static(0.6)", "x0 over linear", "eps tuned", "PatchTST".

    >>> method("x0 over linear").base, method("PatchTST").net, method("v alpha_bar").objective.weight
    ('linear', 'patchtst', 'alpha_bar')
    """
    nets = {title: key for key, title in LEARNED.items()}
    if name in nets:
        return Method(name, nets[name])
    words = "eps" if name == TUNED else name
    words, _, base = words.partition(" over ")
    target, _, weight = words.partition(" ")
    return Method(name, "dit", imp.Objective(target, weight or "none", loss_on, reduction), base or "none")


def sampler(name: str) -> tuple[bool, int | None]:
    """(clip_x0, start_t) of a sampler: "literal" (the source's: clip at the end only), "clip_x0", "start_t 980", "clip_x0 +
    start_t 980".

    >>> sampler("literal"), sampler("start_t 980"), sampler("clip_x0 + start_t 980")
    ((False, None), (False, 980), (True, 980))
    """
    match = _SAMPLER.fullmatch(name)
    if not name or match is None:
        raise ValueError(f"sampler {name!r} is unknown (takes: literal, clip_x0, start_t 980, clip_x0 + start_t 980)")
    return match.group(1) == "clip_x0", int(match.group(2)) if match.group(2) else None


@dataclass(frozen=True)
class Fit:
    """One training: what a cell of a run is. epsilon: the one asked (None without privacy, the claimed 10 as published)."""

    dataset: str
    method: str
    regime: str
    epsilon: float | None
    seed: int


Condition = tuple[str, float]        # pattern, rate; ("suffix", 48): last 48 steps; ("real outages", 0): drawn lengths


@dataclass(frozen=True)
class Need:
    """Cells of one of the source's tables: what must have been run to test it whole."""

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    conditions: tuple[Condition, ...]
    epsilons: tuple[float, ...] = (10.0,)

    def cells(self) -> Iterator[tuple[str, str, float, float]]:
        """(dataset, pattern, rate, epsilon)."""
        for dataset, (pattern, rate), epsilon in product(self.datasets, self.conditions, self.epsilons):
            yield dataset, pattern, rate, epsilon


THREE = ("etth1", "ettm1", "appliances")
HALF = tuple((pattern, 0.5) for pattern in paper.PATTERNS)
ALL_RATES = tuple((pattern, rate) for pattern in paper.PATTERNS for rate in paper.RATES)
HORIZONS = ((SUFFIX, 24), (SUFFIX, 48), (SUFFIX, 72))
CORE = (paper.EPS, paper.V, paper.V_DYNAMIC)
NEEDS = {
    "1": Need(paper.DATASETS, (paper.EPS, paper.V_DYNAMIC), HALF),
    "2": Need(THREE, (paper.EPS, paper.V, *paper.STATIC, paper.V_DYNAMIC), HALF),
    "3": Need(paper.DATASETS, (paper.EPS, paper.EPS_DYNAMIC, paper.V, paper.V_DYNAMIC), ALL_RATES),
    "5": Need(paper.DATASETS, CORE, ALL_RATES),
    "6": Need(paper.DATASETS, CORE, HORIZONS),
    "7": Need(paper.DATASETS[:3], (*LEARNED.values(), paper.V_DYNAMIC), (("random", 0.5),), (8.0, 10.0)),
    "8": Need(THREE, (TUNED, paper.EPS, paper.V), (*ALL_RATES, *HORIZONS)),
    "C.13": Need(THREE, (paper.EPS, paper.V_DYNAMIC), HALF),
    "D.12": Need(paper.DATASETS, CORE, ALL_RATES),
    "F.14": Need(paper.DATASETS, (*paper.STATIC, paper.V_DYNAMIC), ALL_RATES),
    "F.15": Need(paper.DATASETS, (paper.EPS, paper.EPS_DYNAMIC), ALL_RATES),
    "H.16": Need(THREE, CORE, HALF, (6.0, 8.0, 10.0)),
}
