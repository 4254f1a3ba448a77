"""A study as one frozen value: read from TOML, changed by --set and --vary, checked before anything runs.

`use = "module:Name"` names a thing; the other keys of its table are its arguments, checked against its signature.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedenergy import ids
from fedenergy.config_tables import (
    AGREEMENTS,
    AgreementSpec,
    Engine,
    Ledger,
    NegotiationSpec,
    PopulationSpec,
    Privacy,
    Spec,
    StrategySpec,
)
from fedenergy.errors import (
    KIND,
    ConfigError,
    FrozenMap,
    call,
    did_you_mean,
    freeze,
    parameters,
    read_toml,
    thaw,
    toml_key,
    toml_text,
)

DEFAULT_USE = {"population": "fedenergy:simulate_households", "task": "fedenergy:Explain",
               "policy": "fedenergy:Fixed", "query": "fedenergy:Query"}
MAX_VARIATIONS, QUICK_HOMES = 10_000, 20
NOT_VARIED = {"name", "title", "seeds", "oracle", "fresh", "out", "data", "engine", "ledger", "vary"}
UNCOUNTED = ("engine", "ledger", "out", "data", "fresh")  # where and how a study runs, not what it computes


@dataclass(frozen=True)
class Variation:
    """One combination of the varied keys and the config that it makes (whose own `vary` is empty)."""

    keys: Mapping[str, Any]
    config: Config


@dataclass(frozen=True)
class Config:
    """A whole study. `fresh` counts the --fresh asked for; it is no part of the digest, so the ledger stays."""

    name: str
    strategies: tuple[StrategySpec, ...]
    title: str = ""
    seeds: tuple[int, ...] = (0,)
    oracle: bool = False
    fresh: int = 0
    out: str = "runs"
    data: str = ""
    population: PopulationSpec = field(default=PopulationSpec(DEFAULT_USE["population"]))
    task: Spec = field(default=Spec(DEFAULT_USE["task"]))
    policy: Spec = field(default=Spec(DEFAULT_USE["policy"]))
    negotiation: NegotiationSpec | None = None
    query: Spec = field(default=Spec(DEFAULT_USE["query"], {"kind": "appliances"}))
    agreement: Mapping[str, Any] = FrozenMap()
    privacy: Privacy = field(default=Privacy())
    engine: Engine = field(default=Engine())
    ledger: Ledger = field(default=Ledger())
    vary: Mapping[str, tuple] = FrozenMap()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name):
            raise ConfigError(f'name = "{self.name}" names a folder: 1 to 64 of A-Z a-z 0-9 . _ - starting with a '
                              "letter or digit")
        if not self.seeds or any(type(seed) is not int or seed < 0 for seed in self.seeds) \
                or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds = {toml_text(self.seeds)}: write one or more different whole numbers >= 0")
        if self.fresh < 0:
            raise ConfigError(f"fresh = {self.fresh} counts how often new answers were asked for: 0 or more")
        if not self.strategies:
            raise ConfigError('there is no [[strategy]]: add one, such as use = "strategies.zonal_sum:ZonalSum"')
        for key, values in self.vary.items():
            if not isinstance(values, tuple) or not values or len(set(values)) < len(values):
                raise ConfigError(f'[vary] "{key}" = {toml_text(values)}: write a list of one or more different values')
            if key.partition(".")[0] in NOT_VARIED or key == "strategy":
                raise ConfigError(f'[vary] "{key}" cannot be varied: seeds and strategies are always crossed; names, '
                                  "[engine], [ledger], out and data change no result; a study has one oracle")
            if clash := [other for other in self.vary if other.startswith(f"{key}.")]:
                raise ConfigError(f'[vary] "{key}" and "{clash[0]}" both set the same thing: keep one')

    @property
    def agreement_spec(self) -> Spec:
        """The terms of the households' agreements, to be built; with `folder`, where their signed files lie."""
        return AgreementSpec(f"fedenergy.box.{AGREEMENTS['folder' in self.agreement]}", self.agreement, table="agreement")

    def check(self) -> Config:
        """Resolve everything that is named and check all arguments, every variation's too. Returns self."""
        configs = [self, *(variation.config for variation in self.variations())]
        for spec in dict.fromkeys(spec for one in configs for spec in (
                one.population, one.task, one.policy, one.query, one.agreement_spec, *one.strategies,
                *([one.negotiation] if one.negotiation else []))):
            spec.check()
        return self

    def variations(self) -> list[Variation]:
        """The cartesian product of [vary], in its order (the last key turns fastest); one without keys if empty."""
        if (count := math.prod(map(len, self.vary.values()))) > MAX_VARIATIONS:
            raise ConfigError(f"[vary] makes {count} combinations, more than {MAX_VARIATIONS}: split the study")
        found = []
        for values in itertools.product(*self.vary.values()):
            document = {**self.document(), "vary": {}}
            for key, value in zip(self.vary, values):
                put(document, key, thaw(value))
            found.append(Variation(FrozenMap(zip(self.vary, values)), parse(document)))
        return found

    def document(self) -> dict[str, Any]:
        """The config as plain dicts and lists, in the order of the TOML form. `parse` reads it back."""
        document = {}
        for name in _keys():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, Spec):
                document[name] = value.written()
            elif isinstance(value, Privacy | Engine | Ledger):
                document[name] = {item.name: getattr(value, item.name) for item in fields(value)
                                  if item.name != "leaking" or value.leaking}
            else:
                document[name] = thaw(value)
        document["strategy"] = [spec.written() for spec in self.strategies]
        return document

    def digest(self) -> str:
        """32 hex digits of everything that results depend on: not [engine], [ledger], out, data, fresh."""
        counted = {key: value for key, value in self.document().items() if key not in UNCOUNTED}
        return ids.digest(b"fe.config.1", thaw(counted, dates_as_text=True)).hex()

    @property
    def run_name(self) -> str:
        """Name of the run and of its folder: the study's name and 8 hex digits of the digest."""
        return f"{self.name}-{self.digest()[:8]}"

    def to_toml(self) -> str:
        """TOML text from which `parse(tomllib.loads(text))` gives an equal config."""
        lines, tables = [], []
        for key, value in self.document().items():
            if key != "strategy" and not isinstance(value, dict):
                lines.append(f"{key} = {toml_text(value)}")
            for table in value if key == "strategy" else [value] if value and isinstance(value, dict) else []:
                tables += ["", f"[[{key}]]" if key == "strategy" else f"[{key}]"]
                tables += [f"{toml_key(name)} = {toml_text(item)}" for name, item in table.items()]
        return "\n".join([*lines, *tables]) + "\n"

    def quick(self) -> Config:
        """The same study at toy size: at most 20 homes, 2 seeds, and the first and last value of each varied key."""
        population, vary = self.population, {}
        if "count" in population.args or "count" in parameters(population.resolve())[0]:
            small = min(QUICK_HOMES, population.args.get("count", QUICK_HOMES))
            population = replace(population, args={**population.args, "count": small})
        for key, values in self.vary.items():
            ends = [values[0], values[-1]]
            ends = [min(QUICK_HOMES, value) for value in ends] if key == "population.count" else ends
            vary[key] = tuple(dict.fromkeys(ends))
        return replace(self, population=population, seeds=self.seeds[:2], vary=FrozenMap(vary))


def parse(document: Mapping[str, Any], name: str = "study") -> Config:
    """A Config from TOML tables; nothing is imported. name: used where the document has none."""
    values = {"name": name, **thaw(freeze(document))}
    strategies = values.pop("strategy", [])
    known = [*_keys(), "strategy"]
    for key in values:
        if key not in known:
            kind = "table" if isinstance(values[key], dict) else "key"
            raise ConfigError(f'the config has no {kind} "{key}" (it takes: {", ".join(known)}).'
                              f"{did_you_mean(key, known)}")
    strategies = [strategies] if isinstance(strategies, dict) else strategies
    if not isinstance(strategies, list) or not all(isinstance(item, dict) and "use" in item for item in strategies):
        raise ConfigError('strategy is a list of tables with a use each: write [[strategy]] and '
                          'use = "strategies.zonal_sum:ZonalSum"')
    for key, kind in (("name", str), ("title", str), ("out", str), ("data", str), ("oracle", bool), ("fresh", int),
                      ("seeds", list), *((key, dict) for key in known[known.index("population"):-1])):
        if type(values.setdefault(key, kind())) is not kind:
            wanted = KIND.get(kind) or ("a list" if kind is list else f"a table: write [{key}]")
            raise ConfigError(f"{key} = {toml_text(values[key])} is not {wanted}")
    if "use" not in values["query"]:
        values["query"].setdefault("kind", "appliances")
    for key, default in DEFAULT_USE.items():
        values[key] = Spec(values[key].pop("use", default), values[key], table=key)
    homes = values["population"]
    zoned = {key: thaw(homes.args[key]) for key in ("zones", "cloud") if key in homes.args}
    values["population"] = PopulationSpec(homes.use, {k: v for k, v in homes.args.items() if k not in zoned},
                                          table="population", **zoned)
    values["negotiation"] = _negotiation(values["negotiation"])
    for key, maker in (("privacy", Privacy), ("engine", Engine), ("ledger", Ledger)):
        values[key] = call(maker, values[key], key)
    values |= {"seeds": tuple(values["seeds"]) if "seeds" in document else (0,), "out": values["out"] or "runs",
               "agreement": FrozenMap(values["agreement"]), "vary": FrozenMap(_flat(values["vary"]))}
    return Config(strategies=tuple(StrategySpec(item.pop("use"), trust=item.pop("trust", None), args=item,
                                                table="strategy") for item in strategies), **values)


def _negotiation(table: dict[str, Any]) -> NegotiationSpec | None:
    if not table:
        return None
    if "use" not in table:
        raise ConfigError('[negotiation] has no use: write use = "fedenergy:NeedAccuracy", or leave the table out')
    return NegotiationSpec(table.pop("use"), rounds=table.pop("rounds", 8), args=table, table="negotiation")


def load(path: str | os.PathLike, *, sets: Sequence[str] = (), vary: Sequence[str] = (),
         seeds: str | Sequence[int] | None = None, workers: int | None = None, address: str | None = None,
         data: str | None = None, quick: bool = False, fresh: bool = False, out: str | None = None) -> Config:
    """Read a TOML file, apply the command line's changes in the order of the arguments, check everything.

    sets: "KEY=VALUE", "strategy+=module:Name"; vary: "KEY=A,B". Nothing runs. ConfigError names the first mistake.
    """
    document = read_toml(Path(path))
    if "vary" in document:
        document["vary"] = _flat(document["vary"])
    for text in sets:
        key, value = _split(text, "--set", "query.epsilon=2")
        put(document, key.removesuffix("+").strip(), parse_value(value), append=key.endswith("+"))
    for text in vary:
        key, value = _split(text, "--vary", "query.epsilon=0.5,1")
        put(document, f"vary.{key}", _parse_list(value))
    if isinstance(seeds, str):
        if not re.fullmatch(r"\s*\d{1,18}\s*(,\s*\d{1,18}\s*)*", seeds):
            raise ConfigError(f'--seeds "{seeds}" is not a list of whole numbers: write --seeds 0,1,2')
        seeds = [int(seed) for seed in seeds.split(",")]
    for key, value in {"seeds": None if seeds is None else list(seeds), "engine.workers": workers,
                       "engine.address": address, "data": data, "out": out}.items():
        if value is not None:
            put(document, key, value)
    config = parse(document, name=re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-._")[:64] or "study")
    if config.data and not Path(config.data).is_dir():
        raise ConfigError(f'data = "{config.data}" is no folder: give that of the data sets (--data, $FEDENERGY_DATA)')
    config = replace(config, fresh=config.fresh + bool(fresh)).check()
    return config.quick() if quick else config


def put(document: dict[str, Any], key: str, value: Any, *, append: bool = False) -> None:
    """Set a dotted key of a plain config document. `strategy`, and the tables with a `use`, have a short form."""
    head, _, rest = key.partition(".")
    if append and key != "strategy":
        raise ConfigError(f'"{key}+=" is not possible: only strategy+= appends')
    if head == "strategy":
        items = document.get("strategy", [])
        items = document["strategy"] = items if isinstance(items, list) else [items]
        index, _, inner = rest.partition(".")
        if not rest:
            new = [{"use": item} if isinstance(item, str) else item
                   for item in (value if isinstance(value, list) else [value])]
            items[:] = [*items, *new] if append else new
        elif not re.fullmatch(r"\d{1,6}", index) or int(index) >= len(items) or not isinstance(items[int(index)], dict):
            raise ConfigError(f'"{key}" is no strategy: there are {len(items)}, numbered from 0, as in strategy.0.use')
        elif inner:
            _put_inside(items[int(index)], inner.split("."), value, key)
        else:
            items[int(index)] = {"use": value} if isinstance(value, str) else value
    elif head == "vary" and rest:
        _put_inside(document, ["vary", rest], value, key)
    elif head in (*DEFAULT_USE, "negotiation") and not rest and isinstance(value, str):
        document[head] = {"use": value}
    else:
        _put_inside(document, key.split("."), value, key)


def _put_inside(table: dict[str, Any], path: list[str], value: Any, key: str) -> None:
    if not all(path):
        raise ConfigError(f'"{key}" has an empty part: write table.key')
    for parent in path[:-1]:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f'"{key}" cannot be set: {parent} is not a table')
    table[path[-1]] = value


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    key, _, value = (part.strip() for part in text.partition("="))
    if "=" not in text or not key.strip("+ "):
        raise ConfigError(f'{option} "{text}" is not KEY=VALUE: write {option} {example}')
    return key, value


def parse_value(text: str) -> Any:
    """A TOML value, or the bare text where it is none (".5" and "5." are numbers too).

    >>> parse_value("[1, 24]"), parse_value("1e-5"), parse_value(".5"), parse_value("strategies.mine:Mine")
    ([1, 24], 1e-05, 0.5, 'strategies.mine:Mine')
    """
    text = text.strip()
    try:
        document = tomllib.loads(f"value = {text}")
        if len(document) == 1:
            return document["value"]
    except (ValueError, RecursionError) as error:
        if text.startswith(("[", "{", '"', "'")):
            raise ConfigError(f"{text[:80]} is not a TOML value: {error}") from error
    return float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE) else text


def _parse_list(text: str) -> list[Any]:
    try:
        return parse_value(f"[{text}]")
    except ConfigError:
        return [parse_value(item) for item in text.split(",")]


def _flat(table: Any, prefix: str = "") -> dict[str, Any]:
    """[vary] with dotted keys, whether they were quoted or not."""
    if not isinstance(table, dict):
        raise ConfigError('vary is not a flat table: write [vary] and "query.epsilon" = [0.1, 1.0]')
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _keys() -> list[str]:
    return [item.name for item in fields(Config) if item.name != "strategies"]
