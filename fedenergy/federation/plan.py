"""From a config, or from objects in a notebook, to a plan: worlds, parts, strategies; checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedenergy import ids
from fedenergy.box.admission import Admission, DataDealer, QuerierPolicy
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.agreement_files import AgreementFolder, Enrolment
from fedenergy.box.agreement_ledger import check_ledger
from fedenergy.box.ledger import BUCKETS
from fedenergy.box.negotiation import Operator
from fedenergy.box.policies import Fixed
from fedenergy.box.policy import Policy, Public, policy_name
from fedenergy.box.query import Query
from fedenergy.box.shaping import LAPLACE, SHAPED, leaks, policy_mechanism, shaped
from fedenergy.box.world import SECURE, World, enrolment_secret
from fedenergy.config import Config, Engine, Spec, StrategySpec, thaw
from fedenergy.errors import ConfigError
from fedenergy.federation.campaign import Entry, Part, declared
from fedenergy.federation.freeze import freeze
from fedenergy.federation.negotiation_rounds import Negotiation
from fedenergy.federation.plan_shards import sharded
from fedenergy.federation.training import check_training, trains
from fedenergy.households.population import Population
from fedenergy.households.zones import Zone
from fedenergy.privacy.gaussian import GAUSSIAN, rho_micro
from fedenergy.privacy.noisy_max import NOISY_MAX
from fedenergy.privacy.sum_protocol import MAX_HOMES, SumProtocol
from fedenergy.privacy.trust import LOCAL, OPEN, TRUST_MODES
from fedenergy.privacy.weighted import ATTRIBUTION


@dataclass(frozen=True)
class Plan:
    """A study, ready to run.

    name, title, text   run name, title, and the resolved config as TOML (empty for objects)
    worlds              every combination of population, task, policy and agreement that occurs; the oracle's are open
    parts               one per combination of the varied keys and seed
    """

    name: str
    title: str
    text: str
    worlds: tuple[World, ...]
    parts: tuple[Part, ...]
    seeds: tuple[int, ...]
    oracle: bool
    noise: str
    engine: Engine
    out: Path
    cloud: bool = True

    @property
    def population(self) -> Population:
        """The largest population of the study: its nodes are the grid's."""
        return max((world.population for world in self.worlds), key=len)

    @property
    def nodes(self) -> int:
        """Nodes of the grid: one for each home, or for each shard of them."""
        return BUCKETS if self.engine.nodes == "shards" else len(self.population)

    @property
    def ledger(self) -> Path:
        return self.worlds[0].ledger


def plan_from_config(config: Config, folder: Path, ledger: Path, fresh: int = 0) -> Plan:
    """The plan of a config. Every mistake is a ConfigError; nothing is spent.

    folder  of the run; ledger: folder of the charges; fresh: 0, or the number of the --fresh
    """
    secret = enrolment_secret(config.privacy.noise, ledger)
    worlds: list[World] = []
    known: dict[bytes, tuple[int, int | None]] = {}
    parts = []
    for variation, zone in ((one, zone) for one in config.variations() for zone in zone_numbers(one.config)):
        own = variation.config
        keys = {**variation.keys, "zone": zone} if zone else variation.keys
        key = ids.canon([own.population.identity(), zone, own.task.identity(), own.policy.identity(),
                         thaw(own.agreement), own.privacy.noise, own.privacy.leaking])
        if key not in known:
            population = zoned(own.population.build(), zone, own.population.zones)
            terms, enrolment = agreed(own.agreement_spec.build(), population, ledger, own.privacy.noise)
            world = World(population, own.task.build(), own.policy.build(), terms, ledger, own.privacy.noise, False,
                          secret, own.privacy.leaking, enrolment)
            known[key] = _add(worlds, world, own.oracle)
        number, open_number = known[key]
        query = own.query.build(**({"fresh": fresh} if fresh else {}))
        entries = [Entry(label, spec.build, spec.trust) for label, spec in labelled(own.strategies)]
        talk = own.negotiation and _negotiation(own.negotiation.build(), own.negotiation.rounds)
        policy = own.policy.identity() | ({"negotiation": own.negotiation.identity()} if own.negotiation else {})
        parts += _parts(keys, worlds, number, open_number, query, policy, own.seeds, entries,
                        own.engine.max_failures, talk)
    _check_delta(parts)
    parts = sharded(parts) if config.engine.nodes == "shards" else parts
    return Plan(config.run_name, config.title or config.name, config.to_toml(), tuple(worlds), tuple(parts),
                config.seeds, config.oracle, config.privacy.noise, config.engine, folder, config.population.cloud)


def zone_numbers(config: Config) -> range | tuple[int]:
    """1 to [population] zones; only 0 where the homes are not dealt out."""
    return range(1, config.population.zones + 1) if config.population.zones > 1 else (0,)


def zoned(population: Population, zone: int, zones: int) -> Population:
    """The homes of one zone; all of them for zone 0."""
    try:
        return Zone(population, zone, zones) if zone else population
    except ValueError as error:
        raise ConfigError(f"[population] {error}") from error


def plan_from_objects(population: Population, task: Any, query: Query, strategies: Sequence[str | Strategy | type], *,
                      policy: Any = None, agreement: AgreementTerms | AgreementFolder | None = None,
                      seeds: Sequence[int] = (0,),
                      oracle: bool = True, noise: str = "simulation", engine: Engine | None = None, name: str = "study",
                      operator: Operator | None = None, negotiation_rounds: int = 8, leaking: bool = False,
                      folder: Path, ledger: Path | None = None) -> Plan:
    """The plan of objects made in Python. Strategies: "module:Name", classes, or functions that make a fresh one.

    operator  who negotiates before each query, in at most negotiation_rounds rounds; None: the homes are asked at once
    leaking   allow policies that set noise by the true answer: no guarantee
    """
    policy = Fixed() if policy is None else policy
    agreement = AgreementTerms() if agreement is None else agreement
    seeds = tuple(seeds)
    _check_objects(population, task, query, policy, agreement, seeds, name)
    ledger = folder / "ledger" if ledger is None else Path(ledger)
    terms, enrolment = agreed(agreement, population, ledger, noise)
    try:
        world = World(population, task, policy, terms, ledger, noise, False, enrolment_secret(noise, ledger),
                      bool(leaking), enrolment)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    worlds: list[World] = []
    number, open_number = _add(worlds, world, oracle)
    entries = [_entry(item) for item in strategies]
    names = [entry.label for entry in entries]
    if not entries or len(set(names)) < len(names):
        raise ConfigError(f"strategies = {names}: give one or more, each with a name of its own")
    talk = None if operator is None else _negotiation(operator, negotiation_rounds)
    known = policy_identity(policy)
    if talk is not None:  # other talks end in other offers: another cell
        known |= {"negotiation": {**policy_identity(operator), "rounds": negotiation_rounds}}
    parts = _parts({}, worlds, number, open_number, query, known, tuple(seeds), entries, 0.0, talk)
    _check_delta(parts)
    engine = engine or Engine()
    parts = sharded(parts) if engine.nodes == "shards" else parts
    return Plan(name, name, "", tuple(worlds), tuple(parts), tuple(seeds), oracle, noise, engine, folder)


def agreed(agreement: AgreementTerms | AgreementFolder, population: Population, ledger: Path,
           noise: str) -> tuple[AgreementTerms, Enrolment | None]:
    """The terms to plan with, and where the homes find signed agreements (None: the simulation signs them)."""
    if not isinstance(agreement, AgreementFolder):
        return agreement, None
    try:
        terms, enrolment = agreement.agreed(population.ids)
        if noise == SECURE:
            check_ledger(enrolment.folder, ledger)
        return terms, enrolment
    except (ValueError, OSError) as error:
        raise ConfigError(f"[agreement] {error}") from error


def _check_objects(population, task, query, policy, agreement, seeds, name) -> None:
    """What a config's tables are checked for, for objects."""
    agreement = AgreementTerms() if isinstance(agreement, AgreementFolder) else agreement
    for what, value, kind in (("population", population, Population), ("query", query, Query), ("policy", policy, Policy),
                              ("agreement", agreement, AgreementTerms)):
        if isinstance(value, type) or not isinstance(value, kind):
            shown = value.__name__ if isinstance(value, type) else repr(value)[:60]
            raise ConfigError(f"{what} = {shown} is not a {kind.__name__}: pass an object"
                              + (f", {shown}()" if isinstance(value, type) else ""))
    if isinstance(task, type) or not hasattr(task, "answer_many"):
        raise ConfigError(f"task = {task!r:.60} is not a task: pass an object such as fedenergy.Explain()")
    if not seeds or len(set(seeds)) < len(seeds) or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ConfigError(f"seeds = {list(seeds)}: give one or more different whole numbers >= 0")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f'name = "{name}" names a folder: 1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit')


def _negotiation(operator: Any, rounds: int) -> Negotiation:
    try:
        return Negotiation(operator, rounds)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def labelled(specs: Sequence[StrategySpec]) -> list[tuple[str, StrategySpec]]:
    """A short label for each strategy: its name, with its arguments where two share a name.

    >>> [label for label, _ in labelled([StrategySpec("a:Sum"), StrategySpec("b:Trim", {"share": 0.1}),
    ...                                  StrategySpec("b:Trim", {"share": 0.2})])]
    ['Sum', 'Trim(share=0.1)', 'Trim(share=0.2)']
    """
    names = [short(spec.use) for spec in specs]
    labels = []
    for name, spec in zip(names, specs, strict=True):
        args = ", ".join(f"{key}={thaw(value)}" for key, value in spec.args.items())
        if spec.trust is not None and names.count(name) > 1:
            args = ", ".join(filter(None, (args, f"trust={spec.trust}")))
        labels.append(f"{name}({args})" if names.count(name) > 1 and args else name)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ConfigError(f"[[strategy]] {twice} is listed twice with the same arguments: remove one")
    return list(zip(labels, specs, strict=True))


def policy_identity(policy: Any) -> dict[str, Any]:
    """What tells a policy made in Python from another: its class and, for a dataclass, its fields."""
    kind = type(policy)
    values = {item.name: getattr(policy, item.name) for item in fields(policy)} if is_dataclass(policy) else {}
    try:
        ids.canon(values)
    except (TypeError, ValueError):
        values = {"repr": repr(policy)}
    return {"use": f"{kind.__module__}:{kind.__qualname__}", **values}


def short(use: str) -> str:
    """The Name of "module:Name"; of a class inside a function, its own name.

    >>> short("strategies.zonal_sum:ZonalSum"), short("notebook:cell.<locals>.Cautious")
    ('ZonalSum', 'Cautious')
    """
    return use.split(":")[-1].split(".")[-1]


def _add(worlds: list[World], world: World, oracle: bool) -> tuple[int, int | None]:
    _check(world)
    worlds.append(world)
    if not oracle:
        return len(worlds) - 1, None
    worlds.append(replace(world, open=True))
    return len(worlds) - 2, len(worlds) - 1


def _check(world: World) -> None:
    try:  # measured homes are read when their ids are asked for, which the check of the type does
        for table, thing, kind in (("policy", world.policy, Policy), ("population", world.population, Population)):
            if not isinstance(thing, kind):
                raise ConfigError(f"[{table}] makes a {type(thing).__name__}, which is no {kind.__name__}: see "
                                  f"fedenergy.{kind.__name__}")
        ids_seen = world.population.ids
    except (ValueError, OSError) as error:
        raise ConfigError(f"[population] {world.population.name}: {error}") from error
    if len(set(ids_seen)) != len(ids_seen):
        raise ConfigError(f"population {world.population.name} repeats a household id: ids must be unique")
    if not len(world.population):
        left_out = next(iter(getattr(world.population, "excluded", {}).items()), None)
        why = "" if left_out is None else f": all were left out, such as {left_out[0]} ({left_out[1]})"
        raise ConfigError(f"population {world.population.name} has no household{why}")


def _parts(keys, worlds, number, open_number, query, policy, seeds, entries, max_failures, talk=None) -> list[Part]:
    world = worlds[number]
    oracle = None if open_number is None else (worlds[open_number], open_number)
    if query.kind not in world.task.kinds:
        raise ConfigError(f'[query] kind = "{query.kind}": {type(world.task).__name__} answers '
                          f"{', '.join(world.task.kinds)}")
    try:
        world.task.windows(world.population, query.rounds, query.repeat)
        coordinates = world.spec(query.kind).coordinates
    except ValueError as error:
        raise ConfigError(f"[task] {type(world.task).__name__}: {error}") from error
    if not coordinates:
        raise ConfigError(f"[task] {type(world.task).__name__} releases no coordinate for {world.population.name}")
    _admit(world, query)
    if leaks(world.policy) and not world.leaking:
        raise ConfigError(f"[policy] {policy_name(world.policy)} sets the noise by the true answer, which no epsilon "
                          "bounds: choose another policy, or set [privacy] leaking = true for a comparison that is "
                          'labelled "no guarantee"')
    homes = len(world.population)
    for entry in entries:
        strategy = entry.build()
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"[[strategy]] {entry.label} makes a {type(strategy).__name__}, which is no "
                              "flwr.serverapp.strategy.Strategy: derive from fedenergy.ZoneStrategy")
        try:
            freeze(strategy)
        except TypeError as error:
            raise ConfigError(f"[[strategy]] a run of it could not be resumed: {error}") from error
        try:
            trust, mechanism, returns = declared(strategy, entry.trust, query.kind)
        except ValueError as error:
            raise ConfigError(f"[[strategy]] {entry.label}: {error}") from error
        if (least := getattr(strategy, "min_available_nodes", 0)) > homes:
            raise ConfigError(f"[[strategy]] {entry.label} waits for min_available_nodes = {least} homes, but the "
                              f"population has {homes}: it would wait for ever; lower it or raise population.count")
        check_training(entry.label, strategy, trust, world.task, query.kind)
        if returns not in ("sum", "mean", "state"):
            raise ConfigError(f'[[strategy]] {entry.label}: returns = "{returns}" is not "sum", "mean" or "state"')
        _check_shaped(entry.label, world, query, trust, mechanism)
        if mechanism == GAUSSIAN:
            _check_gaussian(entry.label, world, query)
        if SumProtocol.parse(mechanism) is not None and homes > MAX_HOMES:
            raise ConfigError(f'[[strategy]] {entry.label}: mode = "protocol" is for at most {MAX_HOMES} homes (each '
                              f'writes to every other), and the population has {homes}: use mode = "ideal"')
        if trust == OPEN and open_number is None:
            raise ConfigError(f"[[strategy]] {entry.label} has trust open, and no home agrees to that: set "
                              "oracle = true (the oracle's cell only), or leave the strategy out")
        if trust != OPEN and trust not in world.terms.trust:
            raise ConfigError(f'[[strategy]] {entry.label} has trust "{trust}", which [agreement] trust = '
                              f"{list(world.terms.trust)} does not list: every home would refuse")
    if isinstance(world.policy, Fixed) and world.policy.epsilon is None and query.epsilon > world.terms.cap:
        raise ConfigError(f"[agreement] cap = {world.terms.cap:g} is below one query of epsilon = {query.epsilon:g}: "
                          "every home would refuse; raise the cap, or lower query.epsilon, or let a policy offer less")
    keys = thaw(keys, dates_as_text=True)  # a varied table is kept in checkpoints
    text = ids.digest(b"fe.part.1", keys, 4).hex() if keys else "all"
    return [Part(f"{text}-seed{seed}", keys, world, number, oracle, query, short(policy["use"]), policy, seed,
                 entries, max_failures, talk)
            for seed in seeds]


def _check_shaped(label: str, world: World, query: Query, trust: str, mechanism: str) -> None:
    """A policy that shapes the noise meets only strategies whose noise it can shape."""
    name = policy_name(world.policy)
    if not hasattr(world.policy, "mechanism") or trust == OPEN or mechanism == NOISY_MAX:
        return
    if mechanism != LAPLACE:
        raise ConfigError(f"[policy] {name} shapes Laplace noise by coordinate, and [[strategy]] {label} adds "
                          f'"{mechanism}": leave one of them out')
    if shaped(world.policy, mechanism) == ATTRIBUTION and trust != LOCAL:
        raise ConfigError(f'[policy] {name} is for trust "local": in a sum (trust "{trust}", [[strategy]] {label}) every '
                          "home would have other noise levels")
    spec = world.spec(query.kind)
    public = Public(N=len(world.population), d=len(spec.coordinates), clip=spec.clip, trust=trust)
    try:
        policy_mechanism(world.policy, SHAPED[shaped(world.policy, mechanism)], public)
    except ValueError as error:
        raise ConfigError(f"[policy] {error}") from error


def _check_gaussian(label: str, world: World, query: Query) -> None:
    if not query.delta > 0:
        raise ConfigError(f"[query] delta is not given: {label} adds Gaussian noise, which fails with a probability "
                          "delta; set one, such as delta = 1e-5")
    if query.delta > world.terms.delta:
        raise ConfigError(f"[agreement] delta = {world.terms.delta:g} is below one query of delta = {query.delta:g}: "
                          f"every home would refuse {label}; raise it (all answers together stay below it)")
    try:
        rho_micro(query.epsilon_micro, query.delta)
    except ValueError as error:
        raise ConfigError(f"[query] {error}") from error


def _check_delta(parts: Sequence[Part]) -> None:
    """A delta that no part of the study uses is a mistake: a reader would take the answers for (epsilon, delta)."""
    told = [part for part in parts if part.query.delta > 0]
    for part in told:
        if trains(part.query.kind) or any(declared(entry.build(), entry.trust, part.query.kind)[1] == GAUSSIAN
                                          for entry in part.entries):
            return
    if told:
        names = ", ".join(entry.label for entry in told[0].entries)
        raise ConfigError(f"[query] delta = {told[0].query.delta:g} is of Gaussian noise, and no strategy of the study adds "
                          f"any ({names}): leave it out, or add one that does, such as "
                          "strategies.zonal_gaussian:ZonalGaussian")


def _admit(world: World, query: Query) -> None:
    """The Data Dealer lets the querier's query through, by policy alone, before any home hears of it."""
    terms = world.terms
    policy = QuerierPolicy(terms.queriers, terms.purposes, terms.classes, TRUST_MODES)
    verdict = DataDealer().admit(query, policy)
    if not isinstance(verdict, Admission):
        raise ConfigError(f"[query] the Data Dealer does not admit it ({verdict.code}): {verdict.reason}; "
                          "see [agreement]")


def _entry(item: str | type | Callable[[], Strategy]) -> Entry:
    if isinstance(item, str):
        spec = StrategySpec(item, table="strategies")
        return Entry(short(item), spec.check().build)
    if isinstance(item, Strategy):
        raise ConfigError(f"strategies: {type(item).__name__} is an instance, which would carry its state from one "
                          "seed to the next: pass the class, or a function that makes one")
    if not callable(item):
        raise ConfigError(f'strategies: {item!r:.60} is no strategy: pass "module:Name", a class, or a function that '
                          "makes one")
    return Entry(getattr(item, "__name__", type(item).__name__), item)


def spec_of(thing: Any) -> Spec | None:
    """The Spec of a thing that has an identity with a `use`, else None."""
    identity = getattr(thing, "identity", dict)()
    return Spec(identity.pop("use"), identity) if "use" in identity else None
