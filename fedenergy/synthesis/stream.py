"""Any number of artificial homes, batch by batch: a batch depends on its own number and on the plan, never on other batches.

A population is cut into shards of about `shard` homes. Batch b makes a record for every usable home of shard b mod S, in
round b div S, with a seed of its own: so 1,000,000 records come from 1,000,000 homes once each, or from 100 homes 10,000
times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.box.agreement import AgreementTerms
from fedenergy.ids import digest, stream
from fedenergy.synthesis import net_load, records, seams
from fedenergy.synthesis.components import DEFAULT, Recipe
from fedenergy.synthesis.generate import GUARANTEES, PRIVATE, Synthetic, check_choices, synthesise
from fedenergy.synthesis.intake import Panel
from fedenergy.synthesis.private_plan import Constants
from fedenergy.synthesis.records import Reading, Records
from fedenergy.synthesis.tables import known, table_of, typed


@dataclass(frozen=True)
class Plan:
    """What is made of a population, and how.

    mode, variant, shuffle, clusters, sizes, min_cell, of, criterion, distance, unit_days, max_tries
                see generate.synthesise
    agreement   what the homes signed (see box.agreement.AgreementTerms). mode = "local": each series leaves its home's box
                only where it grants trust "open" and class "synthetic"; "private": {} is the smallest that lets it run
    private     mode = "private": epsilon, delta and other arguments of private.fit_private; of the keys here it takes
                clusters, sizes, cap_kwh, days (of the records drawn: any number) and shard (records per batch)
    recipe      how components are made (see components.Recipe)
    reading     window, gaps, net load, public cap (see records.Reading)
    shard       homes that are pooled and held in memory at once
    continuous  where days were exchanged, midnights are brought back to the size of real ones (see seams.join)
    """

    mode: str = "curator"
    variant: str = "components_shuffle"
    shuffle: str = ""
    clusters: int | str = 4
    sizes: int = 3
    min_cell: int = 5
    of: str = "profile"
    criterion: str = "silhouette"
    distance: str = "euclidean"
    unit_days: int = 1
    max_tries: int = 200
    shard: int = 1000
    continuous: bool = True
    recipe: Recipe = DEFAULT
    reading: Reading = field(default_factory=Reading)
    private: Mapping[str, Any] = field(default_factory=dict)
    agreement: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in (*GUARANTEES, PRIVATE):
            raise ValueError(f"mode = {self.mode!r}; use one of {', '.join((*GUARANTEES, PRIVATE))}")
        if self.mode == PRIVATE:
            _check_private(self)
        elif self.mode == "curator" and self.agreement:
            raise ValueError('[synthesis.agreement]: mode = "curator" asks no home, so none has a say; use "local" '
                             f'or "{PRIVATE}", or leave it out')
        elif self.private:
            raise ValueError(f'[synthesis.private] belongs to mode = "{PRIVATE}", not "{self.mode}"')
        else:
            check_choices(self.mode, self.variant, self.shuffle or ("within_date" if self.mode == "curator" else "free"))
        self.terms  # noqa: B018 - its checks
        if isinstance(self.shard, bool) or not isinstance(self.shard, int) or self.shard < self.min_cell:
            raise ValueError(f"shard = {self.shard!r}; use a whole number of homes of at least min_cell = {self.min_cell}")

    @classmethod
    def of_table(cls, table: Mapping[str, Any]) -> Plan:
        """A plan of a config's [synthesis] table: its own keys, those of Reading, and a table `recipe`."""
        own = {item.name for item in fields(cls)} - {"recipe", "reading", "private", "agreement"}
        reading = {item.name for item in fields(Reading)}
        given = table_of("synthesis", table)
        recipe, private, agreement = (table_of(f"synthesis.{name}", given.pop(name, {}))
                                      for name in ("recipe", "private", "agreement"))
        recipe = {name: tuple(value) if isinstance(value, list) else value for name, value in recipe.items()}
        known("recipe", recipe, {item.name for item in fields(Recipe)})
        known("synthesis", given, own | reading)
        known("synthesis.agreement", agreement, {item.name for item in fields(AgreementTerms)})
        typed("synthesis.recipe", recipe, Recipe)
        typed("synthesis", given, cls, Reading)
        return cls(**{name: value for name, value in given.items() if name in own}, recipe=Recipe(**recipe),
                   reading=Reading(**{name: value for name, value in given.items() if name in reading}), private=private,
                   agreement=agreement)

    @property
    def terms(self) -> AgreementTerms | None:
        """What the homes signed; None where the config does not say."""
        return AgreementTerms(**self.agreement) if self.agreement else None

    def arguments(self) -> dict[str, Any]:
        """The arguments of synthesise()."""
        names = ("mode", "variant", "clusters", "sizes", "min_cell", "of", "criterion", "distance", "unit_days", "max_tries",
                 "recipe")
        return {name: getattr(self, name) for name in names} | {"shuffle": self.shuffle or None}


def _check_private(plan: Plan) -> None:
    keys = {"epsilon", "delta", "trust", "noise", "steps", "bins"}
    known("synthesis.private", plan.private, keys)
    for name in ("epsilon", "delta"):
        if name not in plan.private:
            raise ValueError(f'mode = "{PRIVATE}" needs {name} in [synthesis.private], such as epsilon = 2.0, delta = 1e-5')
    plain = replace(plan, mode="curator", private={}, agreement={}, clusters=4, sizes=3, shard=1000,
                    reading=replace(plan.reading, days=0, cap_kwh=None))
    if plain != Plan():
        names = [item.name for item in fields(Plan) if getattr(plain, item.name) != getattr(Plan(), item.name)]
        raise ValueError(f'{names[0]}: mode = "{PRIVATE}" draws from noised statistics and has no such argument')


@dataclass(frozen=True)
class Batch:
    """Records of one batch; filled: readings of its homes that were estimates."""

    number: int
    fake: Synthetic
    filled: int


class Maker:
    """Makes batches of a plan, in any process, with the same bytes."""

    def __init__(self, population: Any, plan: Plan, seed: int) -> None:
        self.population, self.plan, self.seed = population, plan, seed
        self.homes = size(population)
        self.shards = max(1, self.homes // plan.shard)
        self._last: tuple[int, Records] | None = None

    def rows(self, shard: int) -> range:
        """Members of the population in a shard: consecutive, and equally many but for one."""
        edges = [self.homes * k // self.shards for k in (shard, shard + 1)]
        return range(*edges)

    def records(self, shard: int) -> Records:
        """A shard's homes; the last one is kept, so that many rounds of a small population read it once."""
        if self._last is None or self._last[0] != shard:
            self._last = shard, records.read(self.population, self.rows(shard), self.plan.reading)
        return self._last[1]

    def __call__(self, number: int) -> Batch:
        """Batch `number`. One thread: the order of additions, hence every bit, is then the same everywhere."""
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            return self._make(number)

    def _make(self, number: int) -> Batch:
        found = self.records(number % self.shards)
        return Batch(number, make(found.panel, self.plan, batch_seed(self.seed, number)), found.filled)


class LocalMaker:
    """Batches of the series that homes made in their boxes and let out."""

    def __init__(self, made: Any, population: Any, plan: Plan, seed: int) -> None:
        self.made, self.plan, self.seed = made, plan, seed
        self.homes = len(made.households)
        self.shards = max(1, self.homes // plan.shard)
        names = population.ids if hasattr(population, "ids") else ()
        self._away = dict.fromkeys(sorted(set(names) - set(made.households)),
                                   "it refused, failed or could make none; why stays in its box")

    def __call__(self, number: int) -> Batch:
        first, last = (self.homes * k // self.shards for k in (number, number + 1))
        count, plan = last - first, self.plan
        shuffle = "" if plan.variant == "components" else plan.shuffle or "free"
        fake = Synthetic(self.made.values[first:last], self.made.households[first:last], self.made.start,
                         self.made.step_minutes, "local", plan.variant, shuffle, self.made.guarantee, np.full(count, -1),
                         np.full(count, -1), (), {"homes": count}, {} if number else self._away)
        return Batch(number, fake, 0)


class PrivateMaker:
    """Batches drawn from a private model: post-processing, so any number of homes over any number of days costs no more."""

    def __init__(self, model: Any, plan: Plan, seed: int) -> None:
        self.model, self.plan, self.seed, self.shards = model, plan, seed, 1

    def __call__(self, number: int) -> Batch:
        from fedenergy.synthesis.private import sample_private

        fake = sample_private(self.model, self.plan.shard, days=self.plan.reading.days or None,
                              seed=batch_seed(self.seed, number))
        return Batch(number, fake, 0)


def fit(population: Any, plan: Plan, seed: int, ledger: str | Path, workers: int = 0) -> Any:
    """The private model of a plan; its charges are kept in the ledger folder, and asked again it costs nothing."""
    from fedenergy.synthesis.private import fit_private

    if not isinstance(plan.clusters, int):
        raise ValueError(f'clusters = {plan.clusters!r}; mode = "{PRIVATE}" needs a whole number: a choice by scores '
                         'would cost')
    cap = {} if plan.reading.cap_kwh is None else {"cap_kwh": plan.reading.cap_kwh}
    return fit_private(population, seed=seed, ledger=ledger, workers=workers, agreement=plan.terms, clusters=plan.clusters,
                       sizes=plan.sizes, **cap, **plan.private)


def ask_locally(population: Any, plan: Plan, seed: int, ledger: str | Path, workers: int = 0) -> LocalMaker:
    """Every home asked for its own series, made in its own box (`query.synthesise`); charges are kept in the ledger folder.

    Errors: ValueError where no home lets a series out.
    """
    from fedenergy.federation.synthesising import local_series
    from fedenergy.synthesis.held import HeldHomes
    from fedenergy.synthesis.task import Synthesise

    public, how = Constants(), plan.reading
    if (how.days, how.align, how.export_channel, how.export_cap_kwh) != (0, "start", "", 0):
        raise ValueError('mode = "local" gives whole records of the total as the boxes hold them: leave out days, align, '
                         "export_channel and export_cap_kwh, or cut the population's window")
    people = population if hasattr(population, "load") else HeldHomes.of(population)
    cap = public.cap_kwh if how.cap_kwh is None else how.cap_kwh * 60 / people.step_minutes
    task = Synthesise(plan.variant, plan.shuffle or "free", plan.max_tries, plan.unit_days, plan.continuous, how.gaps,
                      how.most_missing, plan.recipe, replace(public, cap_kwh=cap))
    made = local_series(people, task, seed=seed, ledger=Path(ledger), agreement=plan.terms, workers=workers)
    if not made.households:
        raise ValueError(f"no home let a series out ({made.refused:,} refused, {made.failed:,} failed, {made.empty:,} could "
                         'make none): it leaves its box only under [synthesis.agreement] trust = ["open"], classes = '
                         '["synthetic"], and then epsilon is infinite')
    return LocalMaker(made, people, plan, seed)


def batch_seed(seed: int, number: int) -> int:
    """The seed of a batch; batch 0's is the seed itself, so a small run equals synthesise(homes, seed=seed)."""
    return seed if number == 0 else int(stream(seed, "synthesis.batch", "", str(number)).integers(2**62))


def make(panel: Any, plan: Plan, seed: int) -> Synthetic:
    """One draw of a plan from a panel that records.read gave: synthesised, joined, and net loads brought back."""
    fake = synthesise(panel, seed=seed, cap_kwh=panel.cap_kwh, **plan.arguments())
    values, real, export = fake.values, panel.values, plan.reading.export_cap_kwh
    if export:
        values, real = net_load.lower(values, export), net_load.lower(real, export)
    if plan.continuous and fake.shuffle:
        values = seams.join(values, real, panel.per_day)
        values = np.maximum(values, -export) if export else np.minimum(values, panel.cap_kwh)
    return replace(fake, values=values, cluster=_by_energy(fake.cluster, values),
                   excluded={**getattr(panel, "excluded", {}), **fake.excluded})


def _by_energy(cluster: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Clusters numbered from small to large mean consumption: k-means numbers them at random, in every batch anew."""
    names = np.unique(cluster[cluster >= 0])
    order = names[np.argsort([values[cluster == name].mean() for name in names], kind="stable")]
    result = cluster.copy()
    for number, name in enumerate(order):
        result[cluster == name] = number
    return result


def size(population: Any) -> int:
    """Members of a Population, Households, a Panel or an array."""
    return len(population.ids) if isinstance(population, Panel) else len(population)


def identity(population: Any, plan: Plan, seed: int, homes: int) -> str:
    """16 hex digits of everything that determines the records."""
    if hasattr(population, "identity"):
        who: Any = population.identity()
    else:
        values = population.values if isinstance(population, Panel) else population
        rows = values if isinstance(values, np.ndarray) else [home.total for home in values]
        who = [hashlib.sha256(np.ascontiguousarray(row, np.float64)).hexdigest() for row in rows]
    plain = asdict(replace(plan, private=dict(plan.private), agreement=dict(plan.agreement)))
    return digest(b"fe.synth.1",
                  {"population": who, "count": size(population), "plan": plain, "seed": seed, "homes": homes}, 8).hex()
