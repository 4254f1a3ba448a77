"""What is asked: the researcher's Query, and the sealed form that reaches every box.

A `SealedQuery` is its canonical JSON body: equal bodies have equal ids, in every process and on every engine. Numbers
inside the body are decimal texts (fedenergy.ids.canon); the properties give them back typed. Nothing is pickled.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from fedenergy import ids
from fedenergy.households.household import ID_PATTERN, check_household_id
from fedenergy.privacy.epsilon import MICRO, check_micro, micro
from fedenergy.privacy.epsilon import text as epsilon_text
from fedenergy.privacy.gaussian import GAUSSIAN
from fedenergy.privacy.trust import CURATOR, SUM, TRUST_MODES

GENERAL, SPECIFIC, WINDOWS, SYNTHETIC, UPDATE = CLASSES = ("general", "specific", "windows", "synthetic", "update")
QUERY_CLASSES: Mapping[str, str] = MappingProxyType({
    "total": GENERAL, "top": GENERAL, "peak_hour": GENERAL, "trend": GENERAL,
    "appliances": SPECIFIC, "elasticity": SPECIFIC, "incentive": SPECIFIC,
    "windows": WINDOWS, "synthesise": SYNTHETIC, "synth_shape": SYNTHETIC, "synth_size": SYNTHETIC,
    "synth_stats": SYNTHETIC, "train": UPDATE, "train.imputer": UPDATE, "moments_mean": UPDATE, "moments_scale": UPDATE,
    "moments": UPDATE, "train.forecast": UPDATE, "evaluate.forecast": UPDATE})
IN_BLOCKS = ("synth_shape", "synth_size", "synth_stats")  # every home fills one block: privacy/one_block.py
PURPOSES = ("planning", "monitoring", "diagnosis")
REPEATS = ("next_window", "same_window")
GRANULARITIES = ("total", "daypart", "appliance", "feature_lag")  # coarse to fine
_KIND_GRANULARITY = {"total": "total", "trend": "total", "peak_hour": "daypart", "top": "appliance",
                     "elasticity": "appliance", "incentive": "appliance"}
BY_CLASS = type("ByClass", (), {"__repr__": lambda self: "by class"})()  # the default epsilon follows from the kind
SPECIFIC_TO_GENERAL = 1.65  # of epsilon: what the utilities in the source's Figure 11 (.83 and .67) imply

BODY_KEYS = frozenset({"kind", "epsilon", "task", "population", "window", "grid", "clip", "trust", "mechanism",
                       "querier", "purpose", "repeat", "fresh", "cell"})
HOMES = b"fe.homes.1"
MAX_BODY_BYTES = 64 * 1024
MAX_COUNT = 2**31 - 1
_WIRE = {"query_id": str, "body": str, "epsilon_micro": int, "round": int, "homes": int}
_COUNT = re.compile(r"0|[1-9][0-9]{0,9}")


def check_choice(what: str, value: object, allowed: Collection[str]) -> str:
    """Return value if it is one of the allowed words, else raise ValueError with the nearest one.

    >>> check_choice("kind", "appliance", ["appliances", "total"])
    Traceback (most recent call last):
    ValueError: kind = 'appliance' is unknown: use one of appliances, total. Did you mean "appliances"?
    """
    if isinstance(value, str) and value in allowed:
        return value
    near = difflib.get_close_matches(value[:64], allowed, 1) if isinstance(value, str) else []
    raise ValueError(f"{what} = {_short(value)} is unknown: use one of {', '.join(allowed)}"
                     + (f'. Did you mean "{near[0]}"?' if near else ""))


def check_name(what: str, value: object) -> str:
    """Return value if it is a plain name ([a-z0-9_-], 1 to 64), so that no two names look alike; else ValueError."""
    if not isinstance(value, str) or not ID_PATTERN.fullmatch(value):
        raise ValueError(f"{what} = {_short(value)} is not a name: use 1 to 64 of a-z, 0-9, _ and -")
    return value


def check_count(what: str, value: object, least: int = 0) -> int:
    """Return value if it is a whole number from least to 2**31 - 1 (True is not), else raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise ValueError(f"{what} = {_short(value)} is not a whole number from {least} to {MAX_COUNT}")
    return value


@dataclass(frozen=True)
class Query:
    """What the operator asks of every household, as typed by a researcher.

    kind      what is released; its class (general, specific, ...) follows from QUERY_CLASSES
    epsilon   asked of each home, per round: a number or decimal text; kept as a float on the 1e-6 grid, rounded up.
              By default 1; 1 / 1.65 for a general kind
    rounds    how often it is asked; repeat: of the next window each time, or of the same one (the stored answer, free)
    querier   who asks; purpose: what for. Real-time control is excluded by the source, hence refused here
    fresh     raised by --fresh: a new id, hence new noise and a new charge
    delta     of strategies whose mechanism is gaussian, per round; 0: none of them may ask
    Raises ValueError naming the field, the value and the rule.

    >>> Query("appliances", epsilon="0.1").query_class
    'specific'
    """

    kind: str = "appliances"
    epsilon: float = BY_CLASS  # type: ignore[assignment] - replaced when made
    rounds: int = 1
    repeat: str = "next_window"
    querier: str = "zone-operator"
    purpose: str = "planning"
    fresh: int = 0
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_choice("[query] kind", self.kind, QUERY_CLASSES)
        if self.epsilon is BY_CLASS:
            general = QUERY_CLASSES[self.kind] == GENERAL
            object.__setattr__(self, "epsilon", 1 / SPECIFIC_TO_GENERAL if general else 1.0)
        try:
            asked = micro(self.epsilon)  # refuses what is no number above 0
            if asked == 1 and Decimal(self.epsilon if isinstance(self.epsilon, str)
                                      else ids.decimal_text(self.epsilon)) < Decimal("0.000001"):
                raise ValueError("the smallest budget is 0.000001")
            object.__setattr__(self, "epsilon", asked / MICRO)
        except (TypeError, ValueError) as error:
            raise ValueError(f"[query] epsilon = {_short(self.epsilon)}: {error}") from error
        check_count("[query] rounds", self.rounds, 1)
        check_choice("[query] repeat", self.repeat, REPEATS)
        check_name("[query] querier", self.querier)
        check_choice("[query] purpose", self.purpose, PURPOSES)
        check_count("[query] fresh", self.fresh)
        if isinstance(self.delta, bool) or not isinstance(self.delta, int | float) or not 0 <= self.delta < 1:
            raise ValueError(f"[query] delta = {_short(self.delta)} is not a probability in [0, 1), such as 1e-5")
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def query_class(self) -> str:
        return QUERY_CLASSES[self.kind]

    @cached_property
    def epsilon_micro(self) -> int:
        """Asked of each home and round, integer micro-epsilon."""
        return micro(self.epsilon)

    def sealed(self, *, task: Any, population: Any, window: Any, grid: float | None, clip: float | None,
               trust: str, mechanism: str, cell: str, round: int, homes: Sequence[str] | None = None,
               strategy: str | None = None) -> SealedQuery:
        """The query of one round, with everything that its answer depends on.

        task, population   JSON values that identify them (a population without its count)
        window             (first, last) steps of the record, half-open; or anything with .rows (those) and .blocks
                           (first, last) days since 1970 that the ledger charges; without .blocks they are (0, 0)
        grid, clip         grid step g and l1 bound C, units of the summary (kWh^2); None where nothing is clipped
        cell               32 hex digits (ids.cell_id); round: from 0
        homes              the ids asked: needed for sum and curator, where their digest is part of the id
        strategy           in training only, where it and the round are part of the id
        """
        window = {"rows": getattr(window, "rows", window), "blocks": getattr(window, "blocks", (0, 0))}
        body = {"kind": self.kind, "epsilon": epsilon_text(self.epsilon_micro), "task": task, "population": population,
                "window": window, "grid": grid, "clip": clip, "trust": trust, "mechanism": mechanism,
                "querier": self.querier, "purpose": self.purpose,
                "repeat": self.repeat, "fresh": self.fresh, "cell": cell}
        if trust in (SUM, CURATOR) and homes is not None:
            body["homes"] = homes_digest(homes)
        if strategy is not None:
            body |= {"strategy": strategy, "round": round}
        if mechanism == GAUSSIAN and self.delta:
            body["delta"] = self.delta
        return SealedQuery(body, self.epsilon_micro, round, len(homes or ()))


def homes_digest(homes: Sequence[str]) -> str:
    """Digest of a set of household ids, in any order, 32 hex digits. Repeated or malformed ids raise ValueError."""
    names = sorted(check_household_id(name) for name in homes)
    if len(set(names)) != len(names):
        raise ValueError(f"the {len(names)} homes asked repeat an id: ask each home once")
    return ids.digest(HOMES, names).hex()


@dataclass(frozen=True)
class SealedQuery:
    """One query of one round, as it travels. Frozen through and through; checked when made.

    body            its content, canonical: numbers are decimal texts, lists tuples. Exactly BODY_KEYS, plus homes
                    (trust sum, curator), strategy and round (class update), delta (mechanism gaussian)
    epsilon_micro   asked of each home; round: from 0; homes: n, how many are asked (0: not stated)
    id, content_digest   follow from the body alone: 32 hex digits; 32 bytes (the ledger's conflict check)
    Raises ValueError naming the key, the value and the rule.
    """

    body: Mapping[str, Any] = field(repr=False)
    epsilon_micro: int
    round: int = 0
    homes: int = 0
    id: str = field(init=False)
    content_digest: bytes = field(init=False, repr=False)
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.body, Mapping):
            raise ValueError(f"a query body is a mapping, not a {type(self.body).__name__}")
        try:
            canonical = ids.canon(self.body)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"the query body is not plain JSON: {str(error)[:200]}") from error
        if len(canonical) > MAX_BODY_BYTES:
            raise ValueError(f"the query body has {len(canonical)} bytes, more than {MAX_BODY_BYTES}: shorten the task")
        body = json.loads(canonical)
        _check_body(body)
        check_count("round", self.round)
        check_count("homes", self.homes)
        try:
            check_micro(self.epsilon_micro)
        except TypeError as error:
            raise ValueError(str(error)) from error
        if body["epsilon"] != epsilon_text(self.epsilon_micro):  # one id, one scale of noise for every home
            raise ValueError(f"the body asks for epsilon = {_short(body['epsilon'])}, the query for "
                             f"{epsilon_text(self.epsilon_micro)}")
        if body.get("round", str(self.round)) != str(self.round):
            raise ValueError(f"the body is of round {_short(body['round'])}, the query of round {self.round}")
        for name, value in (("body", _frozen(body)), ("id", ids.query_id(body)), ("text", canonical.decode()),
                            ("content_digest", hashlib.blake2b(canonical, digest_size=32).digest())):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return hash((self.id, self.epsilon_micro, self.round, self.homes))

    def __reduce__(self) -> tuple:
        return SealedQuery.from_wire, (self.to_wire(),)

    def to_wire(self) -> dict[str, str | int | bytes]:
        """Values for a Flower ConfigRecord: query_id, body (canonical JSON), epsilon_micro, round, homes."""
        return {"query_id": self.id, "body": self.text, "epsilon_micro": self.epsilon_micro, "round": self.round,
                "homes": self.homes}

    @staticmethod
    def from_wire(wire: Mapping[str, object]) -> SealedQuery:
        """The query of a message from outside. Anything but the exact bytes of to_wire raises ValueError."""
        if not isinstance(wire, Mapping) or (odd := set(wire) ^ set(_WIRE)):
            raise ValueError(f"a query record has exactly the keys {', '.join(_WIRE)}"
                             + (f", not {_short(sorted(map(str, odd)))}" if isinstance(wire, Mapping) else ""))
        for key, kind in _WIRE.items():
            if type(wire[key]) is not kind:
                raise ValueError(f"{key} of a query record is a {kind.__name__}, not a {type(wire[key]).__name__}")
        if len(wire["body"]) > MAX_BODY_BYTES:
            raise ValueError(f"the query body has more than {MAX_BODY_BYTES} bytes")
        return _parsed(*(wire[key] for key in _WIRE))

    @property
    def kind(self) -> str:
        return self.body["kind"]

    @property
    def query_class(self) -> str:
        return QUERY_CLASSES[self.kind]

    @property
    def querier(self) -> str:
        return self.body["querier"]

    @property
    def purpose(self) -> str:
        return self.body["purpose"]

    @property
    def trust(self) -> str:
        return self.body["trust"]

    @property
    def mechanism(self) -> str:
        return self.body["mechanism"]

    @property
    def cell(self) -> str:
        return self.body["cell"]

    @property
    def epsilon(self) -> float:
        """Asked of each home."""
        return self.epsilon_micro / MICRO

    @property
    def rows(self) -> tuple[int, int]:
        """(first, last) steps of the record, half-open."""
        first, last = self.body["window"]["rows"]
        return int(first), int(last)

    @property
    def blocks(self) -> tuple[int, int]:
        """(first, last) days since 1970 that are charged, half-open; (0, 0) where the unit is a whole record."""
        first, last = self.body["window"]["blocks"]
        return int(first), int(last)

    @property
    def clip(self) -> float | None:
        """l1 bound C, kWh^2; None where nothing is clipped."""
        return None if self.body["clip"] is None else float(self.body["clip"])

    @property
    def grid(self) -> float | None:
        """Step g of the noise grid, kWh^2."""
        return None if self.body["grid"] is None else float(self.body["grid"])

    @property
    def delta(self) -> float:
        """Of a Gaussian query, else 0."""
        return float(self.body.get("delta", 0.0))

    @property
    def granularity(self) -> str:
        """What one coordinate of the answer is, one of GRANULARITIES; "unknown" for a task that names another."""
        if (fixed := _KIND_GRANULARITY.get(self.kind)) is not None:
            return fixed
        task = self.body["task"]
        named = task.get("coordinates", "appliance") if isinstance(task, Mapping) else "appliance"
        return named if named in GRANULARITIES else "unknown"

    @cached_property
    def query(self) -> Query:
        """What a policy sees of it: the researcher's form, one round."""
        return Query(self.kind, self.epsilon_micro / MICRO, 1, self.body["repeat"], self.querier, self.purpose,
                     int(self.body["fresh"]), self.delta)


@lru_cache(maxsize=256)  # one round sends the same record to every home
def _parsed(query_id: str, body: str, epsilon_micro: int, round: int, homes: int) -> SealedQuery:
    parsed = load_canonical(body.encode(errors="surrogatepass"), "query body")
    query = SealedQuery(parsed, epsilon_micro, round, homes)
    if query.id != query_id:
        raise ValueError(f"query_id {_short(query_id)} is not the id of the body: "
                         "an id with other content is a conflict")
    return query


def load_canonical(data: bytes, what: str) -> Any:
    """Parse canonical JSON bytes; repeated keys, bare numbers, any other spelling of the value raise ValueError."""
    def refuse(token: str) -> None:
        raise ValueError(f"the {what} holds the bare number {token[:32]}: "
                         "canonical JSON writes numbers as decimal texts")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError(f"the {what} repeats a key")
        return found
    try:
        value = json.loads(data, object_pairs_hook=pairs, parse_int=refuse, parse_float=refuse, parse_constant=refuse)
        if plain_json(value) != data:
            raise ValueError(f"the {what} is not in canonical form: sorted keys, no spaces, UTF-8")
    except (RecursionError, UnicodeError, json.JSONDecodeError) as error:
        raise ValueError(f"the {what} is not canonical JSON ({type(error).__name__})") from error
    return value


def plain_json(value: Any) -> bytes:
    """ids.canon of a value that holds no numbers, in a tenth of the time: every home verifies its agreement."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _check_body(body: Mapping[str, Any]) -> None:
    """Keys and values of a canonical body (numbers are texts by now)."""
    kind = check_choice("kind", body.get("kind"), QUERY_CLASSES)
    trust = check_choice("trust", body.get("trust"), TRUST_MODES)
    keys = BODY_KEYS | ({"homes"} if trust in (SUM, CURATOR) else set())
    if QUERY_CLASSES[kind] == UPDATE:
        keys |= {"strategy", "round"}
    if body.get("mechanism") == GAUSSIAN:
        keys |= {"delta"} & set(body)
    if missing := keys - set(body):
        raise ValueError(f"a {kind} query under trust {trust} lacks {', '.join(sorted(missing))}")
    if unknown := set(body) - keys:
        raise ValueError(f"a {kind} query under trust {trust} has no {', '.join(sorted(unknown))[:200]}")
    for key in ("mechanism", "querier"):
        check_name(key, body[key])
    check_choice("purpose", body["purpose"], PURPOSES)
    check_choice("repeat", body["repeat"], REPEATS)
    for key in ("fresh", "round"):
        if key in body and not (isinstance(body[key], str) and _COUNT.fullmatch(body[key])):
            raise ValueError(f"{key} = {_short(body[key])} is not a whole number >= 0")
    for key in ("cell", "homes"):
        if key in body and not (isinstance(body[key], str) and re.fullmatch(r"[0-9a-f]{32}", body[key])):
            raise ValueError(f"{key} = {_short(body[key])} is not a digest: 32 hex digits (fedenergy.ids)")
    window = body["window"]
    if not isinstance(window, dict) or set(window) != {"rows", "blocks"} or not _span(window["rows"]) \
            or not _span(window["blocks"]) or window["rows"][0] == window["rows"][1]:
        raise ValueError(f"window = {_short(window)} is not rows (first, last), 0 <= first < last, "
                         "and blocks (first, last), 0 <= first <= last, both half-open")
    for key in ("grid", "clip"):
        if body[key] is not None and not (isinstance(body[key], str) and _positive(body[key])):
            raise ValueError(f"{key} = {_short(body[key])} is not a finite number > 0 (or absent)")
    if "delta" in body and not (isinstance(body["delta"], str) and _positive(body["delta"]) and Decimal(body["delta"]) < 1):
        raise ValueError(f"delta = {_short(body['delta'])} is not a probability strictly between 0 and 1")
    if "strategy" in body and not (isinstance(body["strategy"], str) and 0 < len(body["strategy"]) <= 256):
        raise ValueError(f"strategy = {_short(body['strategy'])} is not a name of 1 to 256 characters")


def _span(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 \
        and all(isinstance(edge, str) and _COUNT.fullmatch(edge) for edge in pair) and int(pair[0]) <= int(pair[1])


def _positive(text: str) -> bool:
    # Decimal alone would take "1e5", "inf" and full-width digits
    return re.fullmatch(r"[0-9]{1,40}(\.[0-9]{1,340})?", text, re.ASCII) is not None and Decimal(text) > 0 \
        and ids.decimal_text(Decimal(text)) == text


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _short(value: object) -> str:
    text = ascii(value)  # look-alike letters show as escapes
    return text if len(text) <= 80 else text[:77] + "..."
