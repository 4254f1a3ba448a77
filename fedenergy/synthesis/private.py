"""Private mode: artificial homes from noised statistics alone, household-level (epsilon, delta)-differentially private."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.box.agreement import AgreementTerms
from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.held import HeldHomes
from fedenergy.synthesis.private_draw import draw
from fedenergy.synthesis.private_model import PrivateModel
from fedenergy.synthesis.private_plan import RELATION, Budget, Constants, Promise

AGAINST = {"curator": "against everyone but the Curator", "sum": "against everyone, the aggregator too"}


def promise(homes: int, epsilon: float, delta: float, **constants: Any) -> Promise:
    """What the noise leaves of each statistic, from public numbers alone: nothing is asked, nothing is spent.

    constants  see private_plan.Constants
    """
    return Budget(epsilon, delta, Constants(**constants)).promise(homes)


def fit_private(homes: Any, *, epsilon: float, delta: float, seed: int, trust: str = "curator", noise: str = "simulation",
                ledger: str | Path | None = None, workers: int = 0, agreement: AgreementTerms | None = None, fresh: int = 0,
                tell: Callable[[str], None] | None = None, **constants: Any) -> PrivateModel:
    """The noised model of homes, asked for over a Flower grid; sample_private draws from it as often as wanted, free.

    homes      a Population, or a Panel or an array (N, T) of hourly kWh held in this process (then workers = 0)
    epsilon, delta   of the whole run, per household (all of its days), replace-one
    trust, noise, workers, agreement, fresh   see federation.synthesising.private_rounds
    ledger     folder of the charges; asked again with the same arguments it gives the stored answers, free. None: one that
               is gone after the run, as when every run's homes had never answered before
    tell       is told what the number of homes and epsilon can give before anything is asked (default: stderr)
    constants  clusters, sizes, steps, bins, cap_kwh: public, never read off the homes
    Errors: ValueError naming the argument; ConfigError before anything is spent; RunFailed after.
    """
    from fedenergy.federation.synthesising import private_rounds
    from fedenergy.synthesis.task import Synthesise

    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ValueError(f"seed = {seed!r}; use a whole number")
    budget = Budget(epsilon, delta, Constants(**constants))
    people = homes if hasattr(homes, "load") else HeldHomes.of(homes)
    if workers and isinstance(people, HeldHomes):
        raise ValueError(f"workers = {workers}: homes held in memory stay here; pass a Population, or workers = 0")
    expected = budget.promise(len(people))
    (tell or _to_stderr)(str(expected))
    task = Synthesise(constants=budget.constants)

    def run(folder: Path) -> PrivateModel:
        return private_rounds(people, task, budget, seed=int(seed), ledger=folder, trust=trust, noise=noise, workers=workers,
                              agreement=agreement, fresh=fresh)

    if ledger is not None:
        made = run(Path(ledger))
    else:
        with tempfile.TemporaryDirectory(prefix="fedenergy-") as folder:
            made = run(Path(folder) / "ledger")
    made.privacy["promise"] = expected.as_dict()
    return made


def sample_private(model: PrivateModel, count: int | None = None, *, days: int | None = None, seed: int) -> Synthetic:
    """Artificial homes of a model: any number, over any number of days in a row (365: a continuous year), for no budget.

    count, days  None: as many as there were homes, over the same window
    A model of one month has no seasons: a year drawn from it is that month's weather for a year.
    """
    _check(count, days)
    count, days = model.homes if count is None else count, model.days if days is None else days
    values, cluster, size, below, above = draw(model, int(count), int(days), int(seed))
    known = model.privacy
    guarantee = (f"epsilon = {known['epsilon']:.4g}, delta = {known['delta']:g} per {known['unit']}, {RELATION}, "
                 f"{AGAINST[known['trust']]}"
                 + (f" ({known['noise']})" if known["noise"] else ""))
    counts = {"homes": model.homes, "records": int(count), "cells": len(model.cells), "clusters": len(model.share),
              "clipped_steps": int(below.sum()), "capped_steps": int(above.sum())}
    return Synthetic(values, tuple(f"syn-{i + 1:06d}" for i in range(count)), model.start, 60, "private", "private", "",
                     guarantee, cluster, size, (), counts, privacy=known)


def synthesise_private(homes: Any, *, seed: int, count: int | None = None, days: int | None = None,
                       **options: Any) -> Synthetic:
    """fit_private and sample_private in one; see there."""
    _check(count, days)  # before anything is spent
    return sample_private(fit_private(homes, seed=seed, **options), count, days=days, seed=seed)


def _check(count: int | None, days: int | None) -> None:
    for name, value in (("count", count), ("days", days)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise ValueError(f"{name} = {value!r}; use a whole number of at least 1, or leave it out")


def _to_stderr(words: str) -> None:
    print(words, file=sys.stderr)
