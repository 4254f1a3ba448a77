"""Synthesis over a Flower grid: the private mode's noised rounds, and the local mode's granted series.

Both go the one natural way for data (sealed query -> box -> ledger -> envelope -> TrustGrid), on LocalGrid or RayGrid. The
private rounds: T Lloyd steps, one size histogram, one vector of statistics; each is one Gaussian query of a Curator, or of a
sum that nobody sees the parts of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from fedenergy import ids
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.ledger import Ledger, bucket
from fedenergy.box.policies import Fixed
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.world import SECURE, World, enrolment_secret
from fedenergy.box.zone_store import ZoneStore
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import records
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.flower_adapter import instruction, node_id, quiet_flower
from fedenergy.federation.local_grid import HomesGrid, LocalGrid
from fedenergy.federation.trust_grid import Crossings, Exchange, TrustGrid
from fedenergy.households.population import Population
from fedenergy.privacy.epsilon import MICRO, micro, text
from fedenergy.privacy.gaussian import GAUSSIAN, epsilon_of_rho
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import noise_from
from fedenergy.privacy.trust import CURATOR, OPEN, SUM
from fedenergy.synthesis import private_model as models
from fedenergy.synthesis import private_shape as shapes
from fedenergy.synthesis.private_plan import RELATION, UNIT, Budget, Spend
from fedenergy.synthesis.task import SYNTHESISE, Synthesise

BATCH = 256
SEEN_BY = {CURATOR: "a Curator who sees each home's clipped statistics and adds the noise",
           SUM: "nobody singly; the Summer reveals the noised sum"}


@contextmanager
def homes_grid(world: World, workers: int = 0, inside: Path | None = None) -> Iterator[HomesGrid]:
    """A grid of the world's homes: in this process, or over Ray workers; closed at the end."""
    homes, count = Homes((world,), inside), len(world.population)
    if workers == 0:
        grid: HomesGrid = LocalGrid(make_client(homes), count)
    else:
        from fedenergy.federation.ray_grid import RayGrid

        names = world.population.ids
        grid = RayGrid(partial(make_client, homes), count, lambda index: bucket(names[index]), workers=workers, batch=BATCH)
    try:
        with quiet_flower():
            yield grid
    finally:
        grid.close()


def make_world(population: Population, task: Synthesise, terms: AgreementTerms, ledger: Path, noise: str) -> World:
    """The homes of a population with their agreement. ConfigError for records too short, or noise of an unknown kind."""
    try:
        task.windows(population, 1, "same_window")
        return World(population, task, Fixed(), terms, ledger, noise, False, enrolment_secret(noise, ledger))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _to_all(homes: int, kind: str, number: int) -> list[Message]:
    """One message to every home; they share one content, so that a worker answers them as one batch."""
    content = RecordDict()
    return [instruction(content, node_id(index), f"query.{kind}", str(number)) for index in range(homes)]


# -- private mode ------------------------------------------------------------------------------------------------------

@dataclass
class Rounds:
    """The queries of one private run, asked one after another; what crossed is counted."""

    world: World
    grid: HomesGrid
    zones: ZoneStore
    trust: str
    seed: int
    cell: str
    fresh: int = 0
    crossings: Crossings = field(default_factory=Crossings)
    asked: list[tuple[str, int]] = field(default_factory=list)   # (query id, homes in the answer)

    def ask(self, spend: Spend, at: int, **state: Any) -> tuple[np.ndarray, np.ndarray, float, int]:
        """(sums (blocks, width), counts (blocks,), noise sd of each number of them, homes) of one query.

        state  what earlier answers made public; it travels in the query, hence in its id
        Errors: RunFailed where the sum stays closed or no home answers.
        """
        task, population = self.world.task, self.world.population
        law = task.constants.law(spend.kind, spend.delta)
        query = Query(spend.kind, f"{text(spend.epsilon_micro)}", repeat="same_window", delta=spend.delta, fresh=self.fresh)

        def seal(names) -> SealedQuery:
            return query.sealed(task=task.public(spend.kind, step=at, **state), population=population.identity(),
                                window=task.windows(population, 1, "same_window")[0], grid=law.grid.step, clip=law.clip,
                                trust=self.trust, mechanism=GAUSSIAN, cell=self.cell, round=at, homes=names)

        exchange = Exchange(self.grid, self.world, 0, self.seed, self.zones, self.crossings)
        zone = TrustGrid(exchange, self.trust, seal)
        replies = zone.send_and_receive(_to_all(len(population), spend.kind, at + 1))
        if not replies:
            why = zone.closed or f"{zone.refused} homes refused and {zone.failed} failed{self._spent_before(spend)}"
            raise RunFailed(f"query {at + 1} ({spend.kind}) has no answer: {why}. Charges of earlier queries stay; with the "
                            "same ledger their answers are stored and free")
        self.asked.append((zone.query.id, len(zone.answered)))
        table = replies[0].content[records.ARRAYS][records.SUMMARY].numpy().reshape(law.blocks, law.width + 1)
        return table[:, :-1], table[:, -1] / law.weight, law.scale_units(spend.epsilon_micro), len(zone.answered)

    def _spent_before(self, spend: Spend) -> str:
        """Why homes refuse, where the ledger says it: what they spent leaves less of their cap than is asked."""
        world, cap = self.world, micro(self.world.terms.cap)
        scope = None if world.noise == SECURE else self.cell
        with Ledger(world.ledger) as ledger:
            spent = ledger.spent_many([(name, scope) for name in world.population.ids]).values()
        short = [one for one in spent if one + spend.epsilon_micro > cap]
        if not short:
            return ""
        most, asked = max(short) / MICRO, spend.epsilon_micro / MICRO
        return (f": {len(short)} of them have spent up to epsilon = {most:g} of the cap = {cap / MICRO:g} of their "
                f"agreement, says the ledger {world.ledger}, and {asked:g} is asked. The arguments and the seed of before "
                "give the stored answers, free; for new ones let the agreement grant more (cap and delta in "
                "[synthesis.agreement])")


def private_rounds(population: Population, task: Synthesise, budget: Budget, *, seed: int, ledger: Path,
                   trust: str = CURATOR, noise: str = "simulation", workers: int = 0,
                   agreement: AgreementTerms | None = None, fresh: int = 0) -> models.PrivateModel:
    """The private mode's model of a population, asked for in constants.steps + 2 queries.

    budget     epsilon and delta of the whole run, per household, replace-one
    trust      "curator" or "sum"; noise: "simulation" (seeded, not private) or "secure"
    agreement  what the homes signed; None: the smallest that lets this run through
    Guarantee: (epsilon, delta) of the whole run against everyone but whom the trust mode names, by zero-concentrated
    composition of what the ledger says was charged. Nothing branches on a number that is not noised.
    Errors: ConfigError before anything is spent; RunFailed where the homes do not answer.
    """
    if trust not in (CURATOR, SUM):
        raise ConfigError(f'trust = {trust!r}; mode = "private" uses "{CURATOR}" or "{SUM}"')
    terms = budget.terms(trust) if agreement is None else agreement
    _granted(terms, budget, trust)
    world = make_world(population, task, terms, ledger, noise)
    known, homes = budget.constants, len(population)
    cell = ids.cell_id({"trust": trust, "mechanism": GAUSSIAN, "policy": "fedenergy:Fixed", "epsilon": repr(budget.epsilon),
                        "seed": seed, "vary": {"delta": repr(budget.delta)}})
    with homes_grid(world, workers) as grid, ZoneStore(ledger) as zones:
        rounds = Rounds(world, grid, zones, trust, seed, cell, fresh)
        state = shapes.start(known.clusters, 2 * shapes.HARMONICS)
        for at in range(known.steps):
            sums, counts, sigma, homes = rounds.ask(budget.spends[at], at, centres=state.centres.tolist())
            state = shapes.advance(state, sums, counts, sigma, homes)
        centres = shapes.finish(state)
        listed = centres.tolist()
        _, counts, sigma, homes = rounds.ask(budget.spends[known.steps], known.steps, centres=listed)
        sizes = models.sizes_of(counts.reshape(known.clusters, known.bins)[:len(centres)], sigma, known.edges, known.sizes)
        sums, counts, sigma, homes = rounds.ask(budget.spends[known.steps + 1], known.steps + 1, centres=listed,
                                                borders=sizes.borders.tolist())
        used = len(centres) * known.sizes
        share = models.simplex(counts[:used].reshape(-1, known.sizes).sum(axis=1))  # the last word on who is where
        means, left = models.pooled(sums[:used], counts[:used], sigma, homes)
    cells = tuple(models.cell_of(mean, float(noise_left)) for mean, noise_left in zip(means, left, strict=True))
    start = np.datetime64(getattr(population, "start", "2013-01-07"), "m")
    window = task.windows(population, 1, "same_window")[0].blocks
    return models.PrivateModel(centres, share, sizes, cells, known.edges, known.cap_kwh, start, homes, window[1] - window[0],
                               _statement(rounds, budget, world))


def _granted(terms: AgreementTerms, budget: Budget, trust: str) -> None:
    epsilon, delta = budget.charged
    for holds, what, value, need in (
            ("synthetic" in terms.classes, "classes", list(terms.classes), 'the class "synthetic"'),
            (trust in terms.trust, "trust", list(terms.trust), f'"{trust}"'),
            (terms.cap >= epsilon, "cap", f"{terms.cap:g}", f"{epsilon:g}, the sum of what the queries ask"),
            (terms.delta >= delta, "delta", f"{terms.delta:g}", f"{delta:g}, the sum of what the queries ask")):
        if not holds:
            raise ConfigError(f"[agreement] {what} = {value} would make every home refuse: the run needs {need}")


def _statement(rounds: Rounds, budget: Budget, world: World) -> dict[str, Any]:
    """What was spent, read from the ledger: JSON values only."""
    names = world.population.ids
    rho, epsilon, delta = np.zeros((3, len(names)))
    with Ledger(world.ledger) as ledger:
        for query_id, _ in rounds.asked:
            rows = ledger.lookup([(name, query_id) for name in names])
            for at, name in enumerate(names):
                if (row := rows.get((name, query_id))) is not None:
                    rho[at] += row.rho_micro
                    epsilon[at] += row.epsilon_micro / 1e6
                    delta[at] += row.delta
    most = int(rho.max())
    return {"epsilon": epsilon_of_rho(most, budget.delta), "delta": budget.delta, "rho": most / 1e6, "unit": UNIT,
            "relation": RELATION, "mechanism": "discrete Gaussian on one block a home", "composition": "zCDP",
            "trust": rounds.trust, "seen_by": SEEN_BY[rounds.trust], "noise": noise_from(world.noise, rounds.seed).stamp,
            "homes": len(names), "asked": {"epsilon": budget.epsilon, "delta": budget.delta},
            "ledger": {"epsilon": float(epsilon.max()), "delta": float(delta.max()), "homes_charged": int((rho > 0).sum())},
            "queries": [{"kind": spend.kind, "epsilon": spend.epsilon_micro / 1e6, "delta": spend.delta,
                         "rho": spend.rho_micro / 1e6, "answers": answers}
                        for spend, (_, answers) in zip(budget.spends, rounds.asked, strict=True)],
            "crossed": dict(rounds.crossings.envelopes)}


# -- local mode --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Granted:
    """Series that left their boxes because an agreement grants it: epsilon is infinite.

    values (n, T) kWh per step of the homes `households`, sorted; refused, failed: homes whose series stayed; empty: homes
    that could make none (reasons stay inside)
    """

    values: np.ndarray
    households: tuple[str, ...]
    refused: int
    failed: int
    empty: int
    start: np.datetime64
    step_minutes: int
    guarantee: str = "none: epsilon = infinity; each series was made in its home's box and left by its agreement"


def local_series(population: Population, task: Synthesise | None = None, *, seed: int, ledger: Path,
                 agreement: AgreementTerms | None = None, noise: str = "simulation", workers: int = 0,
                 inside: Path | None = None) -> Granted:
    """Ask every home for a series made from its own record (`query.synthesise`).

    agreement  what the homes signed; None: the default one, which grants no trust "open": every home refuses, before it
               makes anything. AgreementTerms(trust=("open",), classes=("synthetic",)) grants series and nothing else
    The same bytes on every grid, for any number of workers.
    """
    task = Synthesise() if task is None else task
    terms = AgreementTerms() if agreement is None else agreement
    world = make_world(population, task, terms, ledger, noise)
    spec = world.spec(SYNTHESISE)
    query = Query(SYNTHESISE, repeat="same_window")
    cell = ids.cell_id({"trust": OPEN, "mechanism": "none", "policy": "fedenergy:Fixed", "epsilon": "inf", "seed": seed,
                        "vary": {}})
    window = task.windows(population, 1, "same_window")[0]

    def seal(names) -> SealedQuery:
        return query.sealed(task=task.identity(), population=population.identity(), window=window,
                            grid=NoiseGrid(spec.clip).step, clip=spec.clip, trust=OPEN, mechanism="none", cell=cell, round=0,
                            homes=names)

    with homes_grid(world, workers, inside) as grid, ZoneStore(ledger) as zones:
        zone = TrustGrid(Exchange(grid, world, 0, seed, zones, Crossings()), OPEN, seal)
        replies = zone.send_and_receive(_to_all(len(population), SYNTHESISE, 1))
    rows = {reply.content[records.ENVELOPE]["household"]: reply.content[records.ARRAYS][records.SUMMARY].numpy()[1]
            for reply in replies}
    made = {name: row for name, row in sorted(rows.items()) if row.any()}
    start = np.datetime64(getattr(population, "start", "2013-01-07"), "m")
    values = np.stack(list(made.values())) if made else np.zeros((0, population.steps))
    return Granted(values[:, window.rows[0]:window.rows[1]], tuple(made), zone.refused, zone.failed, len(rows) - len(made),
                   start, population.step_minutes)


def told(privacy: Mapping[str, Any]) -> str:
    """The statement of a private run in one line.

    >>> told({"epsilon": 1.0, "delta": 1e-5, "unit": "household", "relation": "replace-one", "trust": "curator",
    ...       "noise": "seeded noise: not private", "rho": 0.03})
    'epsilon = 1, delta = 1e-05 per household, replace-one (rho = 0.03, zCDP), trust curator; seeded noise: not private'
    """
    stamp = f"; {privacy['noise']}" if privacy["noise"] else ""
    return (f"epsilon = {privacy['epsilon']:.4g}, delta = {privacy['delta']:g} per {privacy['unit']}, {privacy['relation']} "
            f"(rho = {privacy['rho']:.4g}, zCDP), trust {privacy['trust']}{stamp}")
