"""An imputer trained over homes: by a trusted trainer who gets their windows, or from what each home computes itself.

    central(homes, epsilon=4, folder="runs/imputer")       windows to the Curator, who fits a dp_gp or trains a net
    moments(homes, epsilon=4, folder=..., trust="sum")     a dp_gp from three sums; nobody sees a home's vector
    imputing_rounds.rounds(homes, FedAvg, epsilon=0.5, rounds=10, folder=...)      a net, by any Flower strategy

All take the one way for data: sealed query -> agreement -> policy -> ledger -> envelope -> Grid. The unit is the household,
under replace-one; a window is a part of a household's record, so nothing more is lost of it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedenergy import ids
from fedenergy.box.admission import Admission, DataDealer, QuerierPolicy
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.ledger import Ledger
from fedenergy.box.policies import Fixed
from fedenergy.box.policy import Policy
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.world import World, enrolment_secret
from fedenergy.box.zone_store import ZoneStore
from fedenergy.config import Engine
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import records
from fedenergy.federation.client_app import Homes
from fedenergy.federation.flower_adapter import instruction, node_id, quiet_flower
from fedenergy.federation.study import make_grid
from fedenergy.federation.trust_grid import Crossings, Exchange, TrustGrid
from fedenergy.households.population import Population
from fedenergy.imputation import dp_gp
from fedenergy.imputation import federated as task_of
from fedenergy.imputation.dp_gp_release import Released
from fedenergy.imputation.dp_gp_release import spent as statement_of
from fedenergy.imputation.federated import STAGES, WINDOWS, TrainImputer
from fedenergy.imputation.packaged import FILE, load_gp, save_gp
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.gaussian import GAUSSIAN, Gaussian, epsilon_of_rho, rho_micro
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import noise_from
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM, TRUST_MODES

NO_NOISE = "none"


@dataclass(frozen=True)
class Setting:
    """How a training is run.

    agreement  what the homes signed; None: each agrees to exactly this training. policy: how they negotiate (Fixed)
    seed       of simulated noise and of draws; noise: "simulation" (seeded: not private) or "secure"
    workers    0: in this process, else Ray workers; the result is the same
    fresh      raised to train anew over the same ledger: new answers, which are charged
    """

    agreement: AgreementTerms | None = None
    policy: Policy | None = None
    seed: int = 0
    noise: str = "simulation"
    workers: int = 0
    fresh: int = 0


DEFAULT = Setting()


@dataclass(frozen=True)
class Spending:
    """What the ledger says that one training took from every home, the home that paid most.

    epsilon, delta   the sums of what was charged: what the budget is held against
    rho, tighter     its zCDP, and epsilon at the same delta by composing that (None: the mechanism was another)
    """

    epsilon: float
    delta: float
    rho: float | None
    tighter: float | None
    charges: int
    homes: int
    noise: str

    def __str__(self) -> str:
        if not self.charges:
            return "no privacy: nothing was noised (trust open)"
        also = "" if self.tighter is None else (f"; by zCDP composition (rho {self.rho:.4g}) epsilon {self.tighter:.4g} at "
                                                "the same delta")
        return "; ".join(filter(None, [
            f"per household (replace-one): epsilon {self.epsilon:.4g} at delta {self.delta:.3g} charged in {self.charges} "
            f"answer{'s' if self.charges > 1 else ''}{also}",
            "per window (replace-one): no more than that, as a window is a part of its household's record", self.noise]))


@dataclass(frozen=True)
class Trained:
    """An imputer that homes trained. model: a DpGp or a Model; folder/model holds its files.

    crossings  envelopes that crossed, by trust mode; answered: homes in the last answer
    """

    model: Any
    spending: Spending
    folder: Path
    crossings: Crossings
    answered: int


@dataclass
class Session:
    """One training: its world, grid, stores, and the queries that were asked."""

    world: World
    grid: Grid
    zones: ZoneStore
    trust: str
    seed: int
    cell: str
    crossings: Crossings = field(default_factory=Crossings)
    asked: list[str] = field(default_factory=list)

    @property
    def mechanism(self) -> str:
        return NO_NOISE if self.trust == OPEN else GAUSSIAN

    def seal(self, query: Query, round_index: int, names: Sequence[str], strategy: str = "", **state: Any) -> SealedQuery:
        """The query of one round, for the homes asked; state is public and part of its id."""
        population, task = self.world.population, self.world.task
        clip = self.world.spec(query.kind).clip
        return query.sealed(task=task.public(population, **state), population=population.identity(),
                            window=task.windows(population)[0], grid=NoiseGrid(clip).step, clip=clip, trust=self.trust,
                            mechanism=self.mechanism, cell=self.cell, round=round_index, homes=names,
                            strategy=strategy or None)

    def exchange(self) -> Exchange:
        return Exchange(self.grid, self.world, 0, self.seed, self.zones, self.crossings)

    def messages(self, kind: str) -> list[Message]:
        """One to every home."""
        content = RecordDict()
        return [instruction(content, node_id(index), kind, "1") for index in range(len(self.world.population))]

    def spending(self, delta: float) -> Spending:
        """From the ledger's rows of the queries asked: those of the home that paid most."""
        names, most = self.world.population.ids, (0, 0.0, 0, 0)
        with Ledger(self.world.ledger) as ledger:
            rows = ledger.lookup([(name, query) for query in self.asked for name in names])
        by_home: dict[str, list] = {}
        for (name, _), row in rows.items():
            by_home.setdefault(name, []).append(row)
        for own in by_home.values():
            most = max(most, (sum(row.epsilon_micro or 0 for row in own), float(sum(row.delta for row in own)),
                              sum(row.rho_micro or 0 for row in own), sum(row.epsilon_micro is not None for row in own)))
        epsilon, deltas, rho, charges = most
        tighter = epsilon_of_rho(rho, delta) if rho else None
        return Spending(epsilon / MICRO, deltas, rho / MICRO if rho else None, tighter, charges, len(by_home),
                        noise_from(self.world.noise, self.seed).stamp)


@contextmanager
def training(homes: Population, task: TrainImputer, queries: Sequence[Query], *, trust: str, classes: str, folder: Path,
             setting: Setting, key: Any) -> Iterator[Session]:
    """A session over the homes' boxes. ConfigError before anything is asked, where they would all refuse.

    queries  what will be asked; classes: of queries that the homes must have agreed to; key: what tells this training from
             others of the same trust and seed
    """
    if trust not in TRUST_MODES:
        raise ConfigError(f"trust = {trust!r} is unknown: use one of {', '.join(TRUST_MODES)}")
    ledger, terms = folder / "ledger", setting.agreement or terms_for(trust, queries, classes)
    terms = replace(terms, trust=tuple(word for word in terms.trust if word != OPEN))
    try:
        world = World(homes, task, setting.policy or Fixed(), terms, ledger, setting.noise, trust == OPEN,
                      enrolment_secret(setting.noise, ledger))
        for query in queries:
            world.spec(query.kind)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _agreed(world, trust, queries)
    cell = ids.cell_id({"trust": trust, "mechanism": GAUSSIAN, "policy": type(world.policy).__name__, "seed": setting.seed,
                        "epsilon": repr([query.epsilon for query in queries]), "vary": {"training": key}})
    plan = SimpleNamespace(population=homes, engine=Engine(workers=setting.workers))
    grid = make_grid(plan, Homes((world,), folder / "inside"))
    try:
        with ZoneStore(ledger) as zones, quiet_flower():
            yield Session(world, grid, zones, trust, setting.seed, cell)
    finally:
        grid.close()


def _agreed(world: World, trust: str, queries: Sequence[Query]) -> None:
    terms = world.terms
    policy = QuerierPolicy(terms.queriers, terms.purposes, terms.classes, TRUST_MODES)
    epsilon, delta = math.fsum(q.epsilon * q.rounds for q in queries), math.fsum(q.delta * q.rounds for q in queries)
    for query in queries:
        verdict = DataDealer().admit(query, policy)
        if not isinstance(verdict, Admission):
            raise ConfigError(f"the Data Dealer does not admit {query.kind} ({verdict.code}): {verdict.reason}; see "
                              "[agreement]")
    if trust == OPEN:
        return
    for holds, what, value, need in (
            (trust in terms.trust, "trust", list(terms.trust), f'"{trust}"'),
            (micro(terms.cap) >= micro(epsilon), "cap", f"{terms.cap:g}", f"{epsilon:g}, the sum of what is asked"),
            (terms.delta >= delta * (1 - 1e-9), "delta", f"{terms.delta:g}", f"{delta:g}, the sum of what is asked")):
        if not holds:
            raise ConfigError(f"[agreement] {what} = {value} would make every home refuse: this training needs {need}")


def terms_for(trust: str, queries: Sequence[Query], classes: str) -> AgreementTerms:
    """The smallest agreement that lets a training through: for simulations where the homes agree to just that."""
    epsilon, delta = math.fsum(q.epsilon * q.rounds for q in queries), math.fsum(q.delta * q.rounds for q in queries)
    return AgreementTerms(cap=math.ceil(epsilon * MICRO + 0.5) / MICRO, classes=(classes,),
                          trust=(CURATOR if trust == OPEN else trust,), delta=min(delta * (1 + 1e-9), 0.999))


# -- central: windows to a trusted trainer -----------------------------------------------------------------------------

def central(homes: Population, *, epsilon: float, delta: float = 1e-5, folder: str | Path, fit: Any = None,
            task: TrainImputer | None = None, setting: Setting = DEFAULT) -> Trained:
    """Homes that agreed deposit their windows with the trainer, who fits an imputer at (epsilon, delta) per household.

    fit        Windows -> model, whose guarantee per household must be what was charged: CentralNet of
               imputation/federated_central.py trains a net. None: dp_gp.fit with unit "household"
    Each home is charged once, before its windows leave. Training again over the same ledger reads the stored model.
    Errors: ConfigError before anything is asked; RunFailed where no home answers or the stored model is gone.
    """
    folder, task = Path(folder), TrainImputer() if task is None else task
    query = Query(WINDOWS, epsilon=epsilon, delta=delta, repeat="same_window", fresh=setting.fresh)
    with training(homes, task, [query], trust=CURATOR, classes="windows", folder=folder, setting=setting,
                  key=["central", getattr(fit, "name", "dp_gp")]) as session:
        sealed = session.seal(query, 0, homes.ids)
        session.asked.append(sealed.id)
        place, row = folder / "model", session.zones.get(sealed.id)
        if row is None:
            asked = session.exchange().ask(sealed, session.messages("query.windows"))
            if not asked.envelopes:
                raise RunFailed(f"no home gave its windows: {asked.refused} refused, {asked.failed} failed")
            names = tuple(asked.envelopes)
            windows = task_of.windows_of(names, [asked.envelopes[name].values for name in names], task.slots(homes),
                                         task.phase(homes), getattr(fit, "keeps_all", False))
            if fit is None:
                save_gp(dp_gp.fit(windows, epsilon, delta, cap=task.cap(homes), moment_radius=task.moment_radius,
                                  unit="household", noise=setting.noise, seed=setting.seed), place)
            else:
                fit(windows).save(place)
            row = session.zones.put_once(sealed.id, names, lambda: _digest(place), CURATOR)
        if not place.is_dir() or row.payload != _digest(place):
            raise RunFailed(f"{place} is not the model that these windows gave: restore it, or train with fresh = "
                            f"{setting.fresh + 1}, which is charged")
        model = load_gp(place)[0] if fit is None else fit.load(place, task.slots(homes))
        return Trained(model, session.spending(delta), folder, session.crossings, len(row.households))


def _digest(place: Path) -> bytes:
    names = sorted(path for path in place.glob("*.json") if path.name in (FILE, "model.json"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in names), digest_size=32).digest()


# -- moments: a dp_gp from three sums ----------------------------------------------------------------------------------

def moments(homes: Population, *, epsilon: float, delta: float = 1e-5, folder: str | Path, trust: str = SUM,
            task: TrainImputer | None = None, split: Sequence[float] = dp_gp.SPLIT, setting: Setting = DEFAULT) -> Trained:
    """A dp_gp whose three releases are sums over homes: mean profile, variance profile, second moments.

    epsilon, delta  of the three together, per household, by zCDP; the ledger charges the (larger) sum of three epsilons
    trust           "sum": nobody sees a home's vector, the homes share one Gaussian noise; "curator": the Curator sees
                    clipped vectors and adds one; "local": every home adds one of its own; "open": no noise, the oracle
    split           shares of rho; the bound of the second moments is task.moment_radius (None: dp_gp.radius_of)
    The estimate is that of dp_gp.fit(unit="household") on the same windows.
    """
    folder, task = Path(folder), TrainImputer() if task is None else task
    total = rho_micro(micro(epsilon), delta)
    rhos = [int(total * share) for share in split]
    if len(rhos) != len(STAGES) or min(rhos) < 1 or sum(split) > 1 + 1e-9:
        raise ConfigError(f"split = {list(split)} of epsilon = {epsilon:g}: three shares above 0 that add up to 1 at most")
    if task.moment_radius is None:
        rho = None if trust == OPEN else rhos[2]
        task = replace(task, moment_radius=dp_gp.radius_of(len(homes), rho, task.length(homes)))
    part = delta / len(STAGES)
    queries = [Query(kind, epsilon=_floor(epsilon_of_rho(rho, part)), delta=part, repeat="same_window", fresh=setting.fresh)
               for kind, rho in zip(STAGES, rhos, strict=True)]
    with training(homes, task, queries, trust=trust, classes="update", folder=folder, setting=setting,
                  key=["moments", *map(float, split)]) as session:
        mean, answered = _stage(session, queries[0], 0)
        profile = task_of.released_mean(mean)
        scale, _ = _stage(session, queries[1], 1, mean=profile.tolist())
        spread = task_of.released_scale(scale, task.cap(homes) * dp_gp.TYPICAL)
        second, answered = _stage(session, queries[2], 2, mean=profile.tolist(), scale=spread.tolist())
        spending = session.spending(delta)
        used = None if trust == OPEN else round(spending.rho * MICRO)
        privacy = statement_of(used, delta, answered, "household", task.count(homes), spending.noise)
        model = task_of.assembled(profile, spread, second, task.days, task.cap(homes), task.phase(homes), privacy)
        save_gp(model, folder / "model")
        return Trained(model, spending, folder, session.crossings, answered)


def _stage(session: Session, query: Query, at: int, **state: Any) -> tuple[Released, int]:
    """(the noised mean over the homes that answered, how many they are) of one stage."""
    grid = TrustGrid(session.exchange(), session.trust,
                     lambda names: session.seal(query, at, names, strategy="moments", **state))
    replies = grid.send_and_receive(session.messages(f"query.{query.kind}"))
    if not replies:
        why = grid.closed or f"{grid.refused} homes refused, {grid.failed} failed"
        raise RunFailed(f"{query.kind} has no answer: {why}; what was charged before is stored and free")
    session.asked.append(grid.query.id)
    values = [reply.content[records.ARRAYS][records.SUMMARY].numpy() for reply in replies]
    count, clip = len(grid.answered), session.world.spec(query.kind).clip
    if session.trust == OPEN:
        return Released(np.sum([clipped(both[1], clip) for both in values], axis=0) / count, 0.0), count
    noises = count if session.trust == LOCAL else 1
    sigma = Gaussian(clip, query.delta).scale_units(query.epsilon_micro) * math.sqrt(noises)
    return Released(np.sum(values, axis=0) / count, sigma / count), count


def clipped(values: np.ndarray, clip: float) -> np.ndarray:
    """(d,) what a box would have let out of a plain vector before any noise: on the grid, within the l2 bound."""
    law = Gaussian(clip, 0.5)
    return law.grid.decode(law.deposit(values))


def _floor(epsilon: float) -> float:
    return math.floor(epsilon * MICRO) / MICRO
