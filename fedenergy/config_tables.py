"""The tables of a config as frozen values: a thing by name with its arguments, a strategy, an operator, settings.

`use = "module:Name"` names a thing; the other keys of its table are its arguments, checked against its signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedenergy.box.ledger_postgres import check_address
from fedenergy.errors import (
    ConfigError,
    FrozenMap,
    call,
    check_arguments,
    did_you_mean,
    freeze,
    look_up,
    parameters,
    thaw,
    toml_text,
)
from fedenergy.privacy.trust import TRUST_MODES

AGREEMENTS = ("agreement:AgreementTerms", "agreement_files:AgreementFolder")
MAX_TALK = 64  # rounds of one negotiation


@dataclass(frozen=True)
class Spec:
    """A thing by name and the arguments it is built with. `table` is where it was written, for messages.

    An argument of a strategy that is a table with a `use` of its own (the strategy inside a wrapper) is built first.

    >>> Spec("fractions:Fraction", {"numerator": 3, "denominator": 6}).build()
    Fraction(1, 2)
    """

    use: str
    args: Mapping[str, Any] = FrozenMap()
    table: str = field(default="config", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.use, str) or not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.use):
            hint = ":".join(str(self.use).rsplit(".", 1)) if re.fullmatch(r"\w+(\.\w+)+", str(self.use)) else ""
            raise ConfigError(f'[{self.table}] use = "{self.use}" is not of the form "module:Name"'
                              + (f'. Did you mean "{hint}"?' if hint else ', for example "strategies.mine:Mine"'))
        object.__setattr__(self, "args", freeze(self.args, self.table))

    def resolve(self) -> Any:
        """The object itself, looked up from the working folder first. ConfigError where there is none."""
        return look_up(self.use, self.table)

    def check(self) -> Spec:
        """Resolve it and check the arguments against its signature, without calling it. Returns self."""
        check_arguments(self.resolve(), thaw(self.args), self.table)
        for inner in self._inner().values():
            inner.check()
        return self

    def build(self, **extra: Any) -> Any:
        """The object called with its arguments; extra ones come on top.

        ConfigError naming the table for unknown and missing arguments, text where a number belongs, and whatever
        value the object itself refuses (ValueError, TypeError, OSError).
        """
        inner = {key: spec.build() for key, spec in self._inner().items()}
        return call(self.resolve(), {**thaw(self.args), **inner, **extra}, self.table)

    def _inner(self) -> dict[str, Spec]:
        if not self.table.startswith("strategy"):
            return {}
        tables = {key: dict(value) for key, value in thaw(self.args).items() if isinstance(value, dict) and "use" in value}
        return {key: Spec(value.pop("use"), value, table=f"{self.table}.{key}") for key, value in tables.items()}

    def identity(self) -> dict[str, Any]:
        """Plain JSON values: what identifies the thing in query ids and cells."""
        return thaw(self.written(), dates_as_text=True)

    def written(self) -> dict[str, Any]:
        """Its table as TOML has it."""
        return {"use": self.use, **thaw(self.args)}


@dataclass(frozen=True)
class AgreementSpec(Spec):
    """The [agreement] table: terms, or with `folder` where signed agreements lie. A key of neither is told what
    both take."""

    def check(self) -> Spec:
        takes = {name: list(parameters(look_up(f"fedenergy.box.{name}", self.table))[0]) for name in AGREEMENTS}
        known = [key for keys in takes.values() for key in keys]
        for key in self.args:
            if key not in known:
                told = ", or ".join(f"{name.split(':')[1]} takes: {', '.join(keys)}" for name, keys in takes.items())
                raise ConfigError(f'[{self.table}] has no argument "{key}" ({told}).{did_you_mean(key, known)}')
        return super().check()


@dataclass(frozen=True)
class StrategySpec(Spec):
    """A strategy; `trust` overrides the trust mode that its class declares (None: as declared)."""

    trust: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trust is not None and self.trust not in TRUST_MODES:
            raise ConfigError(f'[{self.table}] trust = "{self.trust}" is unknown: use one of {", ".join(TRUST_MODES)}.'
                              f"{did_you_mean(str(self.trust), TRUST_MODES)}")

    def written(self) -> dict[str, Any]:
        return {"use": self.use, **({"trust": self.trust} if self.trust else {}), **thaw(self.args)}


@dataclass(frozen=True)
class PopulationSpec(Spec):
    """A population. zones: aggregators that its homes are dealt out to, 1 = one for all; cloud: whether a tier above
    adds up what the zones released."""

    zones: int = 1
    cloud: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.zones) is not int or not 1 <= self.zones <= 10_000:
            raise ConfigError(f"[population] zones = {toml_text(self.zones)} is not a whole number from 1 to 10000")
        if type(self.cloud) is not bool:
            raise ConfigError(f"[population] cloud = {toml_text(self.cloud)} is not true or false")

    def written(self) -> dict[str, Any]:
        found = super().written()
        if self.zones > 1:
            found |= {"zones": self.zones, **({} if self.cloud else {"cloud": False})}
        return found


@dataclass(frozen=True)
class NegotiationSpec(Spec):
    """The operator that negotiates before each query; rounds: of offers, at most."""

    rounds: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.rounds) is not int or not 1 <= self.rounds <= MAX_TALK:
            raise ConfigError(f"[{self.table}] rounds = {toml_text(self.rounds)} is not a whole number from 1 to {MAX_TALK}")

    def written(self) -> dict[str, Any]:
        return {"use": self.use, "rounds": self.rounds, **thaw(self.args)}


@dataclass(frozen=True)
class Privacy:
    """noise: "simulation" (seeded, stamped) or "secure" (from the operating system); leaking: policies that set noise
    by the true answer may be compared (no guarantee)."""

    noise: str = "simulation"
    leaking: bool = False

    def __post_init__(self) -> None:
        if self.noise not in ("simulation", "secure"):
            raise ValueError(f'noise = "{self.noise}" is unknown: use "simulation" or "secure"')


@dataclass(frozen=True)
class Engine:
    """workers: processes, 0 = in this one; address: a Ray cluster, "" = start one here; batch: messages per batch, 0 =
    chosen by the engine; max_failures: share of a round's homes that may fail, 0..1; nodes: "homes", a message for each
    home, or "shards", one for all homes of a ledger file, for large populations. None of them changes a result."""

    workers: int = 2
    address: str = ""
    batch: int = 0
    max_failures: float = 0.0
    nodes: str = "homes"

    def __post_init__(self) -> None:
        if self.nodes not in ("homes", "shards"):
            raise ValueError(f'nodes = "{self.nodes}" is unknown: use "homes" or "shards"')
        for name, high in (("workers", 1024), ("batch", 10**6), ("max_failures", 1)):
            if not 0 <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)} is outside 0..{high}")
        if self.address and not self.workers:
            raise ValueError(f'address = "{self.address}" names a Ray cluster, but workers = 0 means this process: ask for '
                             "workers, or leave the address out")


@dataclass(frozen=True)
class Ledger:
    """path: folder of the ledger, "" = the run folder's own; or postgresql://USER@HOST/DATABASE, where the charges then
    live (receipts and zone answers stay in the run folder)."""

    path: str = ""

    def __post_init__(self) -> None:
        if re.match(r"\w+(\+\w+)?:/", self.path):
            check_address(self.path)
