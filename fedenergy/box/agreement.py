"""The signed agreement between a household and its querier (the source's ICA).

On the wire: 64 bytes of Ed25519 signature, then the canonical JSON body. The signature covers a domain prefix and the
body *as received*; only then is the body parsed, so nothing unsigned is ever interpreted. As a file: agreement_files.py.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import lru_cache
from sys import intern
from typing import Any, ClassVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedenergy import ids
from fedenergy.box.query import (
    CLASSES,
    GENERAL,
    GRANULARITIES,
    PURPOSES,
    SPECIFIC,
    check_choice,
    check_name,
    load_canonical,
    plain_json,
)
from fedenergy.households.household import check_household_id
from fedenergy.privacy.epsilon import LARGEST, MICRO, micro
from fedenergy.privacy.trust import TRUST_MODES

DOMAIN = b"fedenergy.agreement.1\n"
AGREEMENT_ID, KEY_ID = b"fe.agreement.1", b"fe.key.1"
SIGNATURE_BYTES = 64
MAX_BYTES = 16 * 1024
FAR_FUTURE = 4_102_444_800  # 2100-01-01 UTC
MAX_TIME = 2**53
MAX_MICRO = LARGEST * MICRO
RELATIONS = ("replace-one", "zero-out", "add-remove")
_HEX = {size: re.compile(f"[0-9a-f]{{{size}}}") for size in (16, 32, 64)}
_WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")


class AgreementError(ValueError):
    """An agreement that is not accepted. code: length, key, signature, form, value, proof, bound, absent, private (a key
    that others can read), revocations (a list that is missing, or older than one seen), household (of another home),
    revoked, ledger (charged in another one)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple:
        return AgreementError, (self.code, str(self))


@dataclass(frozen=True)
class AgreementTerms:
    """What the `[agreement]` table of a config says; the same for every household of a study.

    cap             epsilon that all answers together may cost (the source's L_max); delta likewise, in [0, 1)
    trust           modes the home accepts; classes: of queries; purposes, queriers, zone: whom it answers
    per_query_max   epsilon that one query may ask; None: the cap alone limits it
    granularity     the finest coordinate that is released: total, daypart, appliance or feature_lag
    not_before, expires   whole seconds since 1970 UTC, or a date; valid while not_before <= now < expires
    Raises ValueError naming the key, the value and the rule.
    """

    cap: float = 6.73
    trust: tuple[str, ...] = ("local", "sum", "curator")
    per_query_max: float | None = None
    classes: tuple[str, ...] = (GENERAL, SPECIFIC)
    purposes: tuple[str, ...] = PURPOSES
    queriers: tuple[str, ...] = ("zone-operator",)
    zone: str = "zone-1"
    granularity: str = "appliance"
    not_before: int = 0
    expires: int = FAR_FUTURE
    delta: float = 0.0

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
        put("cap", _micro("cap", self.cap) / MICRO)
        if self.per_query_max is not None:
            put("per_query_max", _micro("per_query_max", self.per_query_max) / MICRO)
            if self.per_query_max > self.cap:
                raise ValueError(f"[agreement] per_query_max = {self.per_query_max:g} is above cap = {self.cap:g}: "
                                 "lower it, or leave it out")
        for name, allowed in (("trust", TRUST_MODES), ("classes", CLASSES), ("purposes", PURPOSES), ("queriers", None)):
            put(name, _words(f"[agreement] {name}", getattr(self, name), allowed))
        check_name("[agreement] zone", self.zone)
        check_choice("[agreement] granularity", self.granularity, GRANULARITIES)
        for name in ("not_before", "expires"):
            put(name, _seconds(f"[agreement] {name}", getattr(self, name)))
        if self.not_before >= self.expires:
            raise ValueError(f"[agreement] expires = {day(self.expires)} is not after not_before = {day(self.not_before)}")
        if isinstance(self.delta, bool) or not isinstance(self.delta, int | float | Decimal) or not 0 <= self.delta < 1:
            raise ValueError(f"[agreement] delta = {self.delta!r} is not a number in [0, 1); 0 means pure epsilon")
        put("delta", float(self.delta))


@dataclass(frozen=True, slots=True)
class Agreement:
    """A household's signed agreement. Make one with Authenticator.issue, read one with Agreement.verify.

    box_key             the box's Ed25519 public key, 32 bytes; key_id: names the Authenticator's key
    cap_micro           integer micro-epsilon; spent_micro: carried over from the agreement that this one renews
    per_query_*_micro   range of one query's epsilon; max None: the cap alone
    unit, relation      what the epsilon protects ("household", "replace-one")
    Equality and hash are those of the fields; the signature is one of them.
    """

    household: str
    box_key: bytes
    zone: str
    queriers: tuple[str, ...]
    purposes: tuple[str, ...]
    classes: tuple[str, ...]
    granularity: str
    trust: tuple[str, ...]
    unit: str
    relation: str
    cap_micro: int
    delta: float
    per_query_min_micro: int
    per_query_max_micro: int | None
    spent_micro: int
    renews: str
    not_before: int
    expires: int
    key_id: str
    id: str = ""
    signature: bytes = b""

    VERSION: ClassVar[str] = "1"

    @property
    def terms_key(self) -> tuple:
        """Everything but whose it is (household, box key, id, signature): equal keys, equal terms."""
        return (self.zone, self.queriers, self.purposes, self.classes, self.granularity, self.trust, self.unit,
                self.relation, self.cap_micro, self.delta, self.per_query_min_micro, self.per_query_max_micro,
                self.spent_micro, self.renews, self.not_before, self.expires, self.key_id)

    def text(self) -> bytes:
        """The signed content: canonical JSON of every field but the signature, and of the format's version."""
        body = {name: getattr(self, name) for name in _FIELDS}
        for name in _INTEGERS:
            body[name] = None if body[name] is None else str(body[name])
        return plain_json(body | {"version": self.VERSION, "box_key": self.box_key.hex(),
                                  "delta": ids.decimal_text(self.delta)})

    def signed(self, key: Ed25519PrivateKey) -> Agreement:
        """This agreement with its id and a signature; key_id must name that key."""
        text = replace(self, id="").text()
        name = _id_of(text)
        return replace(self, id=name, signature=key.sign(DOMAIN + _with_id(text, "", name)))

    def to_bytes(self) -> bytes:
        """Signature and canonical body; what the household keeps and the box verifies."""
        return self.signature + self.text()

    @staticmethod
    def verify(data: bytes, authenticator_public_key: bytes) -> Agreement:
        """The agreement in data, if the Authenticator with that key (32 bytes) signed exactly these bytes.

        Raises AgreementError. Results are cached by the bytes and the key.
        """
        if not isinstance(data, bytes) or not SIGNATURE_BYTES < len(data) <= MAX_BYTES:
            size = f"{len(data)} bytes" if isinstance(data, bytes) else f"a {type(data).__name__}"
            raise AgreementError("length", f"an agreement has {SIGNATURE_BYTES + 1} to {MAX_BYTES} bytes, not {size}")
        return _verified(data, authenticator_public_key)


@lru_cache(maxsize=64)
def key_id(public_key: bytes) -> str:
    """Short name of a public key, 16 hex digits."""
    return ids.digest(KEY_ID, public_key, size=8).hex()


def check_signature(domain: bytes, data: bytes, public_key: bytes) -> bytes:
    """Return the body of signature + body if that key signed domain + body, else raise AgreementError."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
    except (TypeError, ValueError) as error:
        raise AgreementError("key", f"the Authenticator's key is not an Ed25519 public key: {error}") from error
    try:
        key.verify(data[:SIGNATURE_BYTES], domain + data[SIGNATURE_BYTES:])
    except InvalidSignature:
        raise AgreementError("signature", "not signed by this Authenticator, or altered since: "
                             "ask the Authenticator for a new one") from None
    return data[SIGNATURE_BYTES:]


@lru_cache(maxsize=16_384)  # one entry a home, some 3 kB; failures are not kept
def _verified(data: bytes, public_key: bytes) -> Agreement:
    text = check_signature(DOMAIN, data, public_key)
    try:
        agreement = _parse(load_canonical(text, "agreement"), data[:SIGNATURE_BYTES])
        if agreement.id != _id_of(_with_id(text, agreement.id, "")):
            raise AgreementError("value", f"agreement: id = {agreement.id} is not the digest of the body")
    except AgreementError:
        raise
    except ValueError as error:
        raise AgreementError("form", str(error)) from error
    if agreement.key_id != key_id(public_key):
        raise AgreementError("key", f"the agreement names the key {agreement.key_id}, not {key_id(public_key)}")
    return agreement


def _id_of(text: bytes) -> str:
    """Digest of a canonical body whose id is empty (fedenergy.ids.digest of it), 32 hex digits."""
    return hashlib.blake2b(text, digest_size=16, person=AGREEMENT_ID).hexdigest()


def _with_id(text: bytes, old: str, new: str) -> bytes:
    # in the canonical text, to write it once: no value can hold a quote, and no other key is "id"
    return text.replace(b'"id":"%b"' % old.encode(), b'"id":"%b"' % new.encode(), 1)


_FIELDS = tuple(item.name for item in fields(Agreement) if item.name != "signature")
_INTEGERS = ("cap_micro", "per_query_min_micro", "per_query_max_micro", "spent_micro", "not_before", "expires")
_KEYS = frozenset({"version", *_FIELDS})


def _parse(body: Any, signature: bytes) -> Agreement:
    """An agreement from its parsed body. A valid signature does not make a value sensible: all are checked."""
    if not isinstance(body, dict) or set(body) != _KEYS:
        odd = sorted(set(body) ^ _KEYS) if isinstance(body, dict) else [type(body).__name__]
        raise AgreementError("form", f"missing or unknown keys in the agreement: {', '.join(map(ascii, odd))[:200]}")
    try:
        if body["version"] != Agreement.VERSION:
            raise ValueError(f"version = {body['version']!a} is not {Agreement.VERSION}: renew the agreement")
        highest = body["per_query_max_micro"]
        agreement = Agreement(
            household=check_household_id(body["household"]), box_key=bytes.fromhex(_hex(body, "box_key", 64)),
            zone=intern(check_name("zone", body["zone"])), queriers=_words("queriers", body["queriers"], None),
            purposes=_words("purposes", body["purposes"], PURPOSES),
            classes=_words("classes", body["classes"], CLASSES), trust=_words("trust", body["trust"], TRUST_MODES),
            granularity=intern(check_choice("granularity", body["granularity"], GRANULARITIES)),
            unit=intern(check_name("unit", body["unit"])),
            relation=intern(check_choice("relation", body["relation"], RELATIONS)),
            cap_micro=_whole(body, "cap_micro", 1, MAX_MICRO), delta=_delta(body["delta"]),
            per_query_min_micro=_whole(body, "per_query_min_micro", 1, MAX_MICRO),
            per_query_max_micro=None if highest is None else _whole(body, "per_query_max_micro", 1, MAX_MICRO),
            spent_micro=_whole(body, "spent_micro", 0, MAX_MICRO),
            renews=_hex(body, "renews", 32) if body["renews"] != "" else "",
            not_before=_whole(body, "not_before", 0, MAX_TIME), expires=_whole(body, "expires", 1, MAX_TIME),
            key_id=intern(_hex(body, "key_id", 16)), id=_hex(body, "id", 32), signature=signature)
        if agreement.not_before >= agreement.expires:
            raise ValueError(f"expires = {day(agreement.expires)} is not after not_before = {day(agreement.not_before)}")
    except ValueError as error:
        raise AgreementError("value", f"agreement: {error}") from error
    return agreement


def _words(what: str, value: Any, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
    """A non-empty tuple of distinct words; a bare text is a mistake, never a list of letters."""
    if isinstance(value, str) or not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{what} = {value!a} is not a list with at least one entry")
    if not all(isinstance(word, str) for word in value):
        raise ValueError(f"{what} = {value!a:.80} holds something that is no text")
    return _distinct(what, tuple(value), allowed)


@lru_cache(maxsize=256)  # the same few lists in every home's agreement
def _distinct(what: str, words: tuple[str, ...], allowed: tuple[str, ...] | None) -> tuple[str, ...]:
    for word in words:
        if allowed is None:
            check_name(what, word)
        else:
            check_choice(what, word, allowed)
    if len(set(words)) != len(words):
        raise ValueError(f"{what} repeats an entry: {', '.join(words)}")
    return words


def _micro(name: str, value: Any) -> int:
    try:
        return micro(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"[agreement] {name} = {value!r}: {error}") from error


def _seconds(what: str, value: Any) -> int:
    if isinstance(value, datetime.date):
        if not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        value = int((value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp())
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TIME:
        raise ValueError(f"{what} = {value!r} is not a date or a whole number of seconds >= 0")
    return value


def day(seconds: int) -> str:
    """Seconds since 1970 UTC as a date; with the time of day where it is not midnight.

    >>> day(1_767_225_600), day(1_767_229_200), day(2**53)
    ('2026-01-01', '2026-01-01 01:00:00 UTC', '9007199254740992 s')
    """
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return f"{seconds} s"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC" if seconds % 86_400 else "%Y-%m-%d")


def _hex(body: Mapping[str, Any], key: str, digits: int) -> str:
    if not isinstance(body[key], str) or not _HEX[digits].fullmatch(body[key]):
        raise ValueError(f"{key} = {body[key]!a:.80} is not {digits} hex digits")
    return body[key]


def _whole(body: Mapping[str, Any], key: str, least: int, most: int) -> int:
    if not isinstance(body[key], str) or not _WHOLE.fullmatch(body[key]) or not least <= int(body[key]) <= most:
        raise ValueError(f"{key} = {body[key]!a:.80} is not a whole number from {least} to {most}")
    return _int(body[key])


def _delta(text: Any) -> float:
    if not isinstance(text, str) or not re.fullmatch(r"0(\.[0-9]{1,340})?", text, re.ASCII):
        raise ValueError(f"delta = {text!a:.80} is not a number in [0, 1)")
    return _float(text)


_int, _float = lru_cache(maxsize=256)(int), lru_cache(maxsize=256)(float)  # one object for all homes that share a number
