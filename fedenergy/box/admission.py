"""Who may ask whom: the Authenticator signs agreements, the Data Dealer admits queriers, a box checks each query.

Reasons stay inside the box (and in a simulation's "inside view"); outside it a refusal is the word `refused`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedenergy import ids
from fedenergy.box.agreement import (
    RELATIONS,
    Agreement,
    AgreementError,
    AgreementTerms,
    check_signature,
    key_id,
)
from fedenergy.box.query import (
    GENERAL,
    GRANULARITIES,
    PURPOSES,
    SPECIFIC,
    WINDOWS,
    Query,
    SealedQuery,
    check_choice,
    check_count,
    check_name,
    load_canonical,
)
from fedenergy.households.household import check_household_id
from fedenergy.privacy.epsilon import micro, text
from fedenergy.privacy.gaussian import GAUSSIAN
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, REFUSED, SUM

POSSESSION = b"fedenergy.possession.1\n"
REVOCATION = b"fedenergy.revocation.1\n"
SIMULATED_KEYS = "seeded keys: not private"

REFUSALS: Mapping[str, str] = MappingProxyType({
    "household": "the agreement is another household's",
    "box": "the agreement is bound to another box's key",
    "revoked": "the agreement is on the revocation list",
    "not_yet": "the agreement is not in force yet",
    "expired": "the agreement has expired",
    "zone": "another zone asks",
    "querier": "the agreement does not name this querier",
    "purpose": "the purpose is not agreed",
    "class": "the query class is not agreed",
    "trust": "the trust mode is not agreed",
    "windows": "windowed records go to the Curator only",
    "granularity": "the answer would be finer than agreed",
    "clip": "the query has no clipping bound or no noise grid",
    "delta": "the mechanism needs a delta that the agreement does not give",
    "range": "the epsilon asked is outside the range for one query"})
"""Codes of check_query and DataDealer.admit; the box and the ledger add theirs (budget, policy, ...)."""


@dataclass(frozen=True)
class Refusal:
    """A refusal with its reason, which stays inside: printed or formatted, it is the word `refused`."""

    code: str
    reason: str

    def __str__(self) -> str:
        return REFUSED

    def __format__(self, spec: str) -> str:
        return format(REFUSED, spec)


@dataclass(frozen=True)
class Admission:
    """The Data Dealer lets this query through to the boxes, which decide for themselves."""

    querier: str
    reason: str
    code: str = "admitted"


@dataclass(frozen=True)
class QuerierPolicy:
    """What the Data Dealer holds about the queriers of a zone; nothing in it is about a household.

    epsilon_max   the most a querier may ask of one home in one query; None: no limit of the querier's own
    """

    queriers: tuple[str, ...] = ("zone-operator",)
    purposes: tuple[str, ...] = PURPOSES
    classes: tuple[str, ...] = (GENERAL, SPECIFIC)
    trust: tuple[str, ...] = (LOCAL, SUM, CURATOR)
    epsilon_max: float | None = None


class _Secret:
    """Holds a private key: it is never copied, pickled or shown."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds a private key and is never copied or pickled: "
                        "make it again where it is needed, from its seed")


class BoxProof(Protocol):
    """What the Authenticator sees of a box: its public key, and that it can sign with it."""

    public_key: bytes

    def prove(self, challenge: bytes) -> bytes: ...


class BoxKey(_Secret):
    """A box's own key. seed None: from the OS; a seed: the same key every time, for simulations only.

    private      32 bytes of a key file (box/agreement_files.py) instead of a seed
    public_key   32 bytes; stamp: "" or "seeded keys: not private"
    """

    __slots__ = ("_key", "household", "public_key", "stamp")

    def __init__(self, household: str, seed: int | None = None, *, private: bytes | None = None) -> None:
        self.household = check_household_id(household)
        self._key, self.stamp = _private_key(seed, "box-key", household, private)
        self.public_key = self._key.public_key().public_bytes_raw()

    def prove(self, challenge: bytes) -> bytes:
        """Signature over the challenge (32 bytes) for this household, 64 bytes."""
        return self._key.sign(_possession(self.household, challenge))


class Authenticator(_Secret):
    """Issues, renews and revokes agreements; binds each household to one box key.

    seed None: key and challenges from the OS; a seed: the same ones every time, for simulations only (stamped).
    private, revoked    32 bytes of a key file, and the list that this Authenticator signed last, to go on from
    Speed: issue + verify some .3 ms; the first issue of a home adds the proof of its key, some .2 ms.
    """

    __slots__ = ("_bound", "_key", "_revoked", "_seed", "_version", "key_id", "public_key", "stamp")

    def __init__(self, seed: int | None = None, *, private: bytes | None = None,
                 revoked: Revocations | None = None) -> None:
        self._seed = seed
        self._key, self.stamp = _private_key(seed, "authenticator", "", private)
        self.public_key = self._key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public_key)
        self._bound: dict[str, bytes] = {}
        self._revoked: set[str] = set(() if revoked is None else revoked.ids)
        self._version = 0 if revoked is None else revoked.version

    def bind(self, household: str, box: BoxProof) -> None:
        """Bind household to the box's key, which the box proves by signing a challenge.

        Raises AgreementError: proof (it cannot sign), bound (the household has another box).
        """
        check_household_id(household)
        if (known := self._bound.get(household)) is not None:
            if known != box.public_key:
                raise AgreementError("bound", f"household {household} is bound to another box's key: revoke its "
                                     "agreements and release it first")
            return
        challenge = os.urandom(32) if self._seed is None else ids.digest(
            b"fe.challenge.1", [self._seed, household, box.public_key], size=32)
        try:
            # the signed bytes are the challenge's, laid out as in check_signature: signature first
            check_signature(b"", box.prove(challenge) + _possession(household, challenge), box.public_key)
        except AgreementError as error:
            raise AgreementError("proof", f"the box of household {household} did not prove its key") from error
        self._bound[household] = box.public_key

    def release(self, household: str) -> None:
        """Forget a household's box (lost, replaced); its next agreement may bind another."""
        self._bound.pop(household, None)

    def issue(self, household: str, box: BoxProof, terms: AgreementTerms, *, unit: str = "household",
              relation: str = RELATIONS[0], spent_micro: int = 0, renews: str = "") -> Agreement:
        """A signed agreement of that household under these terms. unit: the population's privacy unit."""
        self.bind(household, box)
        return Agreement(
            household=household, box_key=box.public_key, zone=terms.zone, queriers=terms.queriers,
            purposes=terms.purposes, classes=terms.classes, granularity=terms.granularity, trust=terms.trust,
            unit=check_name("unit", unit), relation=check_choice("relation", relation, RELATIONS),
            cap_micro=micro(terms.cap), delta=terms.delta, per_query_min_micro=1,
            per_query_max_micro=None if terms.per_query_max is None else micro(terms.per_query_max),
            spent_micro=spent_micro, renews=renews, not_before=terms.not_before, expires=terms.expires,
            key_id=self.key_id).signed(self._key)

    def renew(self, old: Agreement, box: BoxProof, terms: AgreementTerms, spent_micro: int) -> Agreement:
        """A new agreement that carries `spent` over; the old one is revoked.

        spent_micro   what the home's ledger says. Never less than what the old agreement carried: no refund.
        """
        Agreement.verify(old.to_bytes(), self.public_key)
        if isinstance(spent_micro, bool) or not isinstance(spent_micro, int) or spent_micro < old.spent_micro:
            raise AgreementError("value", f"spent_micro = {spent_micro!r} of household {old.household} is below the "
                                 f"{old.spent_micro} carried so far: nothing is refunded")
        new = self.issue(old.household, box, terms, unit=old.unit, relation=old.relation, spent_micro=spent_micro,
                         renews=old.id)
        self.revoke(old.id)
        return new

    def revoke(self, agreement_id: str) -> None:
        """Put an agreement on the list. It stays there: a later list holds all of an earlier one."""
        self._revoked.add(agreement_id)
        self._version += 1

    def revocations(self) -> bytes:
        """The signed revocation list, for Revocations.verify."""
        body = ids.canon({"version": self._version, "ids": sorted(self._revoked)})
        return self._key.sign(REVOCATION + body) + body


@dataclass(frozen=True)
class Revocations:
    """The agreements that no longer hold. A box keeps the newest version it has seen."""

    version: int = 0
    ids: frozenset[str] = frozenset()

    @staticmethod
    def verify(data: bytes, authenticator_public_key: bytes) -> Revocations:
        """The list in data if that key signed it, else AgreementError."""
        body = check_signature(REVOCATION, data, authenticator_public_key)
        try:
            parsed = load_canonical(body, "revocation list")
            if not isinstance(parsed, dict) or set(parsed) != {"version", "ids"}:
                raise ValueError("a revocation list has exactly the keys version, ids")
            if not isinstance(parsed["ids"], list):
                raise ValueError("ids is not a list")
            if not all(isinstance(name, str) for name in parsed["ids"]):
                raise ValueError("ids holds something that is no text")
            return Revocations(check_count("version", int(parsed["version"])), frozenset(parsed["ids"]))
        except (TypeError, ValueError) as error:
            raise AgreementError("form", f"revocation list: {error}") from error

    def newest(self, other: Revocations) -> Revocations:
        """The later of the two, so that replaying an old list revives nothing."""
        return other if other.version > self.version else self


class Clock:
    """A clock that never runs back: the highest time seen (invariant 8). Store `high` and start from it again."""

    def __init__(self, high: int = 0) -> None:
        self.high = high

    def read(self, now: int) -> int:
        """now, whole seconds since 1970 UTC, or the highest time seen so far if that is later."""
        if isinstance(now, bool) or not isinstance(now, int):
            raise TypeError(f"now = {now!r} is not a whole number of seconds")
        self.high = max(self.high, now)
        return self.high


class DataDealer:
    """Admits queries by the querier's policy alone: it takes no agreement, no household and no data."""

    def admit(self, query: SealedQuery | Query, querier_policy: QuerierPolicy) -> Admission | Refusal:
        """Admission, or a Refusal with the code querier, purpose, class, trust or range."""
        allowed = querier_policy
        mode = query.trust if isinstance(query, SealedQuery) else None
        if query.querier not in allowed.queriers:
            return _refusal("querier", query.querier)
        if query.purpose not in allowed.purposes:
            return _refusal("purpose", query.purpose)
        if query.query_class not in allowed.classes:
            return _refusal("class", f"{query.kind} is a {query.query_class} query")
        if mode is not None and mode not in allowed.trust:
            return _refusal("trust", mode)
        if allowed.epsilon_max is not None and not query.epsilon_micro <= micro(allowed.epsilon_max):
            return _refusal("range", f"{text(query.epsilon_micro)} is above {text(micro(allowed.epsilon_max))}")
        return Admission(query.querier, f"{query.querier} may ask {query.kind} for {query.purpose}")


def check_query(agreement: Agreement, query: SealedQuery, now: int, *, household: str | None = None,
                box_key: bytes | None = None, zone: str | None = None,
                revocations: Revocations | None = None) -> Refusal | None:
    """Whether a home's agreement allows this query; None if it does, else the first constraint that it breaks.

    now         whole seconds, from Clock.read, so that a clock put back revives nothing
    household, box_key, zone   the checker's own, where it has one: an agreement of another is foreign
    Decided from the agreement, the query and the clock only, never from data. Budget is the ledger's to judge.
    """
    if household is not None and agreement.household != household:
        return _refusal("household", agreement.household)
    if box_key is not None and agreement.box_key != box_key:
        return _refusal("box", agreement.household)
    if revocations is not None and agreement.id in revocations.ids:
        return _refusal("revoked", f"{agreement.id}, list {revocations.version}")
    if not now >= agreement.not_before:
        return _refusal("not_yet", f"from {agreement.not_before}, now {now}")
    if not now < agreement.expires:
        return _refusal("expired", f"at {agreement.expires}, now {now}")
    if zone is not None and agreement.zone != zone:
        return _refusal("zone", f"{zone}, agreed with {agreement.zone}")
    body, query_class, mode = query.body, query.query_class, query.trust
    if body["querier"] not in agreement.queriers:
        return _refusal("querier", body["querier"])
    if body["purpose"] not in agreement.purposes:
        return _refusal("purpose", body["purpose"])
    if query_class not in agreement.classes:
        return _refusal("class", f"{query.kind} is a {query_class} query")
    if mode not in agreement.trust:
        return _refusal("trust", mode)
    if query_class == WINDOWS and mode not in (CURATOR, OPEN):
        return _refusal("windows", f"asked under trust {mode}")
    if query_class in (GENERAL, SPECIFIC):
        if (fine := query.granularity) not in GRANULARITIES[:GRANULARITIES.index(agreement.granularity) + 1]:
            return _refusal("granularity", f"{fine}, agreed {agreement.granularity}")
        if mode != OPEN and (body["clip"] is None or body["grid"] is None):
            return _refusal("clip", f"trust {mode}")
    if mode != OPEN:  # open rows are unbounded and outside the cap
        if body["mechanism"] == GAUSSIAN and not (agreement.delta > 0 and query.delta <= agreement.delta):
            return _refusal("delta", f"{query.delta:g} asked, agreed {agreement.delta:g}")
        lowest, highest = agreement.per_query_min_micro, agreement.per_query_max_micro
        if not (lowest <= query.epsilon_micro and (highest is None or query.epsilon_micro <= highest)):
            return _refusal("range", f"{text(query.epsilon_micro)} asked, agreed {text(lowest)} to "
                            f"{'the cap' if highest is None else text(highest)}")
    return None


def _refusal(code: str, detail: str) -> Refusal:
    return Refusal(code, f"{REFUSALS[code]}: {detail}")


def _possession(household: str, challenge: bytes) -> bytes:
    return POSSESSION + household.encode() + b"\n" + challenge


def _private_key(seed: int | None, purpose: str, household: str,
                 private: bytes | None) -> tuple[Ed25519PrivateKey, str]:
    if private is not None:
        if seed is not None:
            raise ValueError("a key comes from a seed or from a file, not from both")
        return Ed25519PrivateKey.from_private_bytes(private), ""
    if seed is None:
        return Ed25519PrivateKey.generate(), ""
    return Ed25519PrivateKey.from_private_bytes(ids.stream(seed, purpose, household).bytes(32)), SIMULATED_KEYS
