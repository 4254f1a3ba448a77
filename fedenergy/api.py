"""What a researcher types: run one strategy, compare several, on homes in memory; both give a Report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedenergy.box.agreement import AgreementTerms
    from fedenergy.box.agreement_files import AgreementFolder
    from fedenergy.box.negotiation import Operator
    from fedenergy.box.policy import Policy
    from fedenergy.box.query import Query
    from fedenergy.households.population import Population
    from fedenergy.progress import Progress
    from fedenergy.report.report import Report

Strategy = str | type | Callable[[], Any]


def compare(homes: Population, task: Any, query: Query, strategies: Sequence[Strategy], *, policy: Policy | None = None,
            agreement: AgreementTerms | AgreementFolder | None = None, seeds: Sequence[int] = (0,), oracle: bool = True,
            noise: str = "simulation", workers: int = 0, name: str = "compare", out: str | Path = "runs",
            operator: Operator | None = None, negotiation_rounds: int = 8, leaking: bool = False,
            ledger: str | Path | None = None, progress: Progress | None = None) -> Report:
    """Ask the homes once per seed and aggregate their answers with every strategy.

    homes       a Population, for example fe.simulate_households(1_000)
    task        what each home computes, for example fe.Explain(); query: what is asked, and for how much
    strategies  "module:Name", classes, or functions that make one; each seed gets fresh instances
    policy      how homes negotiate (default fe.Fixed(): what was asked, within the cap)
    operator    negotiates with the homes before each question (fe.NeedAccuracy(), fe.Budget(), ...), in at most
                negotiation_rounds rounds: the last offers bind. None: the homes are asked at once
    leaking     let policies set noise by the true answer (fe.AttributionWeighted): no guarantee, for comparison
    oracle      also ask under trust "open", to score the answers; with False no noise-free value leaves a box
    workers     0: in this process; n: that many Ray workers. Results are the same bytes
    ledger      a folder that survives the run: the same question on it costs nothing
    Raises ConfigError for mistakes, before anything is spent, and RunFailed.
    """
    from fedenergy.config import Engine
    from fedenergy.errors import ConfigError
    from fedenergy.federation.plan import plan_from_objects
    from fedenergy.federation.study import new_folder, play_plan
    from fedenergy.progress import open_progress
    from fedenergy.report.report import Report

    folder = new_folder(Path(out), name)
    try:
        engine = Engine(workers=workers)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"workers = {workers!r}: {error}") from error
    plan = plan_from_objects(homes, task, query, strategies, policy=policy, agreement=agreement, seeds=seeds,
                             oracle=oracle, noise=noise, engine=engine, name=name, folder=folder, operator=operator,
                             negotiation_rounds=negotiation_rounds, leaking=leaking,
                             ledger=None if ledger is None else Path(ledger))
    shown = progress or (open_progress() if sys.stderr.isatty() else None)
    return Report(play_plan(plan, shown))


def run(homes: Population, task: Any, query: Query, strategy: Strategy = "strategies.zonal_sum:ZonalSum",
        **options: Any) -> Report:
    """compare() with one strategy; the options are the same. The default needs the study folder's strategies/."""
    return compare(homes, task, query, [strategy], **{"name": "run", **options})
