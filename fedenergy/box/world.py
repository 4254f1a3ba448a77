"""A world: everything that a worker needs to open the boxes of one population, and nothing noise-free."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedenergy import ids
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.policy import Policy
from fedenergy.households.population import Population

if TYPE_CHECKING:
    from fedenergy.box.agreement_files import Enrolment
    from fedenergy.box.box import Answer, Box
    from fedenergy.box.query import SealedQuery

SIMULATION, SECURE = "simulation", "secure"


@dataclass(frozen=True)
class KindSpec:
    """What one kind of query releases.

    coordinates   names of the d released numbers; unit: of them, for tables
    clip          C, the public bound of one home's summary, in that unit: l1, or l2 under Gaussian noise
    """

    coordinates: tuple[str, ...]
    unit: str
    clip: float


class Task(Protocol):
    """What the homes compute. Answers many homes at once; one home at a time is the n = 1 case.

    kinds      query kinds that it answers
    clip       l1 bound C of a home's summary, in the summary's unit
    unit       of the summary's values, for tables
    A task whose kinds differ in coordinates, unit or bound has `kind_spec(kind, population) -> KindSpec` too.
    """

    kinds: tuple[str, ...]
    clip: float
    unit: str

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        """Names of the d released coordinates."""
        ...

    def windows(self, population: Population, rounds: int, repeat: str) -> Sequence[Any]:
        """The window of each round: .rows (first, last) steps and .blocks (first, last) days, half-open."""
        ...

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], **extra: Any) -> list[Answer]:
        """One answer per box, in order."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """Arguments, JSON values only: part of the query id."""
        ...


@dataclass(frozen=True, eq=False)
class World:
    """The homes of one population with one task, policy and agreement.

    noise    "simulation" (seeded, stamped as not private) or "secure" (from the operating system)
    ledger   folder of the charges; secret: 32 bytes from which enrolment keys follow (agreements, pads, digests)
    open     the agreements of this world also grant trust "open": the oracle's world
    leaking  policies that set noise by the true answer (`leaks`) may answer: for comparison, without a guarantee
    enrolment  where signed agreements lie as files; None: the simulation signs one with these terms for each home. The
               oracle's world (open) always has the simulation's own
    """

    population: Population
    task: Task
    policy: Policy
    terms: AgreementTerms
    ledger: Path
    noise: str = SIMULATION
    open: bool = False
    secret: bytes = field(default=b"", repr=False)
    leaking: bool = False
    enrolment: Enrolment | None = None

    def __post_init__(self) -> None:
        check_noise(self.noise)

    @cached_property
    def coordinates(self) -> tuple[str, ...]:
        return tuple(self.task.coordinate_names(self.population))

    def spec(self, kind: str) -> KindSpec:
        """Coordinates, unit and bound of a kind of query. ValueError for a kind that the task does not answer."""
        if kind not in self._specs:
            if kind not in self.task.kinds:
                raise ValueError(f"{type(self.task).__name__} answers {', '.join(self.task.kinds)}, not {kind}")
            own = getattr(self.task, "kind_spec", None)
            self._specs[kind] = (KindSpec(self.coordinates, self.task.unit, self.task.clip) if own is None
                                 else own(kind, self.population))
        return self._specs[kind]

    @cached_property
    def _specs(self) -> dict[str, KindSpec]:
        return {}

    def key(self, purpose: str, household: str = "") -> bytes:
        """A 32-byte key of this enrolment, by purpose and home (keyed BLAKE2b of the secret)."""
        return hashlib.blake2b(ids.canon([purpose, household]), key=self.secret, digest_size=32).digest()


def check_noise(noise: str) -> str:
    """Return noise if it is one of the two kinds, else raise ValueError."""
    if noise not in (SIMULATION, SECURE):
        raise ValueError(f"[privacy] noise = {noise!r}: use simulation (seeded, reproducible, not private) "
                         "or secure (drawn from the operating system)")
    return noise


def enrolment_secret(noise: str, folder: Path) -> bytes:
    """The secret of an enrolment: fixed in a simulation; from the operating system, kept in the ledger, if secure."""
    if check_noise(noise) == SIMULATION:
        return ids.digest(b"fe.enrol.1", "simulation", 32)
    path = folder / "enrolment.key"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
    return path.read_bytes()
