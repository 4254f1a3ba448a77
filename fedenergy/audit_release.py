"""The release part of an audit: the mechanism as configured on its worst pair, and the stored answers made again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedenergy.audit_checks import ABSENT, FINDING, NOTE, OK, Check, Run
from fedenergy.box.carried import MECHANISM as CARRIED
from fedenergy.box.ledger import Ledger, LedgerBroken, LedgerUnavailable, Row
from fedenergy.box.ledger_mark import holds_ledger
from fedenergy.box.policy import Public, policy_name
from fedenergy.box.shaping import SHAPED, policy_mechanism, shaped
from fedenergy.privacy import audit
from fedenergy.privacy.by_name import mechanism
from fedenergy.privacy.gaussian import Gaussian
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.privacy.noisy_max import NoisyMax
from fedenergy.privacy.sum_protocol import SumProtocol
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM
from fedenergy.privacy.weighted import ATTRIBUTION, WeightedLaplace
from fedenergy.progress import Progress

AREA = "release"
ONE = 1_000_000           # how noise is keyed does not depend on epsilon: at 1 few trials show a fault
SUM_SHARE = 4             # shares cost more to draw: fewer trials
LEAST_ROWS, MOST_ROWS = 10, 200  # stored answers from which a seed is told


@dataclass(frozen=True)
class Ran:
    """One cell as it was configured: law is None where there is none to audit, note says why."""

    cell: str
    trust: str
    name: str
    law: Any
    size: int
    asked_micro: int
    seed: int
    note: str = ""


def configured(run: Run) -> list[Ran]:
    """Every private cell of the run's plan with the mechanism of its releases."""
    from fedenergy.federation.campaign import cell_of, declared
    from fedenergy.federation.trust_grid import UNBOUNDED

    found: dict[str, Ran] = {}
    for part in run.plan.parts:
        world, query = part.world, part.query
        spec = world.spec(query.kind)
        for entry in part.entries:
            trust, name, _ = declared(entry.build(), entry.trust, query.kind)
            name = shaped(world.policy, name)
            if trust == OPEN:
                continue
            law, note = None, ""
            if name == ATTRIBUTION:
                note = f"{policy_name(world.policy)} sets the noise by the true answer: no epsilon is claimed to audit"
            elif name == UNBOUNDED:
                note = "central_unbounded adds the noise of a bounded sum n times over, as its source has it: not audited"
            elif name in SHAPED:
                public = Public(N=len(world.population), d=len(spec.coordinates), clip=spec.clip, trust=trust)
                law = policy_mechanism(world.policy, SHAPED[name], public)
            else:
                law = mechanism("laplace" if SumProtocol.parse(name) else name, spec.clip, query.delta)
            if trust == SUM and law is not None and not isinstance(law, Laplace | WeightedLaplace):
                law, note = None, f"shares of {name} noise are not audited here"
            cell = cell_of(part, trust, name)
            found[cell] = Ran(cell, trust, name, law, len(spec.coordinates), query.epsilon_micro, part.seed, note)
    return list(found.values())


def release_checks(run: Run, trials: int, progress: Progress) -> tuple[list[Check], list[dict[str, Any]]]:
    """(checks, one row per design: claim and bounds)."""
    if run.plan is None:
        return [Check(AREA, "empirical epsilon", ABSENT, run.why)], []
    try:
        cells = configured(run)
        rows = _rows(run, {ran.cell for ran in cells})
    except (LedgerBroken, LedgerUnavailable, ValueError) as error:
        return [Check(AREA, "empirical epsilon", ABSENT, str(error))], []
    checks = [Check(AREA, "empirical epsilon", NOTE, note) for note in sorted({ran.note for ran in cells} - {""})]
    verdicts = list(_verdicts(run, cells, rows, trials, progress))
    reds = [(row, problem) for row in verdicts if (problem := row["problem"])]
    checks += [Check(AREA, "empirical epsilon", FINDING, f"{row['mechanism']} under trust {row['trust']}, {row['design']}: "
                     f"{problem}") for row, problem in reds]
    if verdicts and not reds:
        worst = max((row for row in verdicts if row["tight"]), key=lambda row: row["low"] / row["claimed"])
        checks.append(Check(AREA, "empirical epsilon", OK, f"{len(verdicts)} designs, none loses more than claimed "
                            f"(99 % for all together); closest: {worst['mechanism']} under trust {worst['trust']}, at "
                            f"least {worst['low']:.3f} of {worst['claimed']:g}"))
    checks += list(_remade(run, cells, rows))
    return checks, verdicts


def _rows(run: Run, cells: set[str]) -> list[Row]:
    if not holds_ledger(run.ledger):
        return []
    with Ledger(run.ledger) as ledger:
        return [row for row in ledger.rows() if row.cell in cells and row.epsilon_micro is not None]


def _verdicts(run: Run, cells: list[Ran], rows: list[Row], trials: int, progress: Progress) -> Iterator[dict[str, Any]]:
    """Each different (trust, mechanism, epsilon) once; how noise is keyed once for each mechanism."""
    kinds = {LOCAL: audit.LocalPath, CURATOR: audit.CuratorPath, SUM: audit.SumPath}
    noise = audit.study_noise(run.plan.noise)
    granted: dict[str, set[int]] = {}
    for row in rows:
        if row.trust == LOCAL and row.mechanism != CARRIED:
            granted.setdefault(row.cell, set()).add(row.epsilon_micro)
    todo: dict[tuple, tuple[str, audit.Path, audit.Design]] = {}
    for ran in cells:
        if ran.law is None:
            continue
        amounts = granted.get(ran.cell) if ran.trust == LOCAL else None
        for micro in sorted({min(amounts), max(amounts)} if amounts else {ran.asked_micro}):
            path, size = kinds[ran.trust](ran.law, micro, noise), ran.size if ran.trust != SUM else 1
            most = trials if ran.trust != SUM else max(1, trials // SUM_SHARE)
            for design in audit.designs(path, size, most):
                at = path if design.tight else kinds[ran.trust](ran.law, min(micro, ONE), noise)
                todo.setdefault((ran.trust, ran.law, ran.size, at.epsilon_micro if design.tight else 0, design.name),
                                (ran.name, at, design))
    confidence = audit.each_of(len(todo))
    progress.start(len(todo), "releases")
    for place, ((trust, *_), (name, path, design)) in enumerate(todo.items()):
        verdict = audit.judge(path, design, seed=1 + 2 * place, confidence=confidence)
        progress.advance(1)
        yield {"trust": trust, "mechanism": name, "tight": design.tight, **asdict(verdict)}


def _remade(run: Run, cells: list[Ran], rows: list[Row]) -> Iterator[Check]:
    """Seeded noise is drawn again and taken off: what is left lies in the clipping ball, or the noise was not that one.

    Under secure noise nothing may be left of a seed: were the noise that of an answer's own seed, which its cell names,
    anybody could take it off. The answers of one seed are looked at by themselves, and all of them together.
    """
    what = "stored answers made again"
    known = {ran.cell: ran for ran in cells if ran.trust == LOCAL and ran.law is not None
             and not isinstance(ran.law, NoisyMax)}
    rows = [row for row in rows if row.cell in known and row.trust == LOCAL and row.mechanism == known[row.cell].name]
    if run.plan.noise == "secure":
        yield _no_seed(known, rows)
        return
    if not rows:
        yield Check(AREA, what, ABSENT, "no home answered under trust local with noise that can be taken off")
        return
    wrong = [row for row in rows if not _in_ball(known[row.cell], row, known[row.cell].seed)]
    if wrong:
        yield Check(AREA, what, FINDING, f"{len(wrong):,} of {len(rows):,} stored answers are not a clipped answer with the "
                    f"noise of their seed, household and query: {wrong[0].household}, query {wrong[0].query_id}")
    else:
        yield Check(AREA, what, OK, f"{len(rows):,} stored answers: each is a point of the clipping ball with the noise of "
                    "its own seed, household and query")


def _no_seed(known: dict[str, Ran], rows: list[Row]) -> Check:
    what = "no seed gives the noise"
    hidden = [(known[row.cell], row) for row in rows if row.epsilon_micro <= known[row.cell].size * ONE]
    if len(hidden) < LEAST_ROWS:
        return Check(AREA, what, ABSENT, "too few answers under trust local to tell")
    seeds = sorted({ran.seed for ran, _ in hidden})
    groups = {f"seed {seed}": [(ran, row, seed) for ran, row in hidden if ran.seed == seed] for seed in seeds}
    groups["each cell's own seed"] = [(ran, row, ran.seed) for ran, row in hidden]
    groups["seed 0 in every cell"] = [(ran, row, 0) for ran, row in hidden]
    for name, group in groups.items():
        inside = [_in_ball(ran, row, seed) for ran, row, seed in group[:MOST_ROWS]]
        if len(inside) >= LEAST_ROWS and sum(inside) > 0.9 * len(inside):
            return Check(AREA, what, FINDING, f"the noise said to come from the operating system is that of {name}")
    return Check(AREA, what, OK, f"{len(hidden):,} answers, seeds {', '.join(map(str, seeds))}")


def _in_ball(ran: Ran, row: Row, seed: int) -> bool:
    law = ran.law
    steps = law.grid.step * (np.array(law.weights) if isinstance(law, WeightedLaplace) else 1.0)
    values = np.frombuffer(row.payload, "<f8")
    if values.size != ran.size:
        return False
    noise = law.noise(SimulationNoise(seed).source(row.household, row.query_id), row.epsilon_micro, values.size)
    left: Iterable[int] = (np.rint(values / steps).astype(np.int64) - noise).tolist()
    if isinstance(law, Gaussian):
        return sum(value * value for value in left) <= law.grid.bound**2
    return sum(map(abs, left)) <= law.grid.bound
