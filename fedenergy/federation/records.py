"""Envelopes on the wire: one ArrayRecord, one MetricRecord with num-examples = 1, one ConfigRecord.

The weight is always 1: a count of readings would say something about a home. A refusal is one word.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedenergy.box.query import SealedQuery
from fedenergy.privacy.trust import ENVELOPES, OPEN, REFUSED, Envelope, check_envelope

QUERY, ARRAYS, METRICS, ENVELOPE = "query", "arrays", "metrics", "envelope"
SUMMARY = "summary"
ANSWER_KEYS = frozenset({"household", "query_id", "epsilon_micro"})
ZONE = "*zone"
EXTRAS = {"world": int, "seed": int, "parties": int}


def query_record(query: SealedQuery, *, world: int, seed: int, parties: int = 0) -> ConfigRecord:
    """The query as it travels, with the simulation's own two numbers: which world, which noise seed.

    parties  trust "sum": the number of homes that accepted, fixed before shares are drawn
    """
    return ConfigRecord({**query.to_wire(), "world": world, "seed": seed, "parties": parties})


def read_query(content: RecordDict) -> tuple[SealedQuery, dict[str, int]]:
    """Inverse of query_record; every missing, unknown or malformed key raises ValueError."""
    record = content.get(QUERY)
    if not isinstance(record, ConfigRecord):
        raise ValueError("the message carries no query record: only TrustGrid may send to households")
    fields = dict(record)
    extras = {}
    for name, kind in EXTRAS.items():
        value = fields.pop(name, None)
        if type(value) is not kind or value < 0:
            raise ValueError(f"query record: {name} is a whole number >= 0")
        extras[name] = value
    return SealedQuery.from_wire(fields), extras


def refusal(household: str, query_id: str) -> RecordDict:
    """All that the outside learns of a refusal."""
    return RecordDict({ENVELOPE: ConfigRecord({"household": household, "query_id": query_id, "status": REFUSED})})


def acceptance(household: str, query_id: str) -> RecordDict:
    """First phase of a sum: the home will take part."""
    return RecordDict({ENVELOPE: ConfigRecord({"household": household, "query_id": query_id, "status": "accepted"})})


def status_of(content: RecordDict) -> str | None:
    """"refused", "accepted", or None where the content is an envelope."""
    record = content.get(ENVELOPE)
    return record.get("status") if isinstance(record, ConfigRecord) else None


def encode(envelope: Envelope) -> RecordDict:
    """Envelope to Flower records."""
    fields = {"household": envelope.household, "query_id": envelope.query_id}
    if envelope.epsilon_micro is not None:
        fields["epsilon_micro"] = envelope.epsilon_micro
    return answer_records(envelope.values, fields)


def answer_records(values: np.ndarray, fields: Mapping[str, str | int]) -> RecordDict:
    """The one layout of every answer, so that stock strategies can read it."""
    return RecordDict({ARRAYS: ArrayRecord({SUMMARY: Array(np.ascontiguousarray(values))}),
                       METRICS: MetricRecord({"num-examples": 1}), ENVELOPE: ConfigRecord(dict(fields))})


def decode(content: RecordDict, query: SealedQuery, household: str, coordinates: int) -> Envelope:
    """Flower records to the envelope of the query's trust mode; whatever does not fit its schema raises ValueError."""
    if set(content) != {ARRAYS, METRICS, ENVELOPE}:
        raise ValueError(f"an answer holds exactly the records {ARRAYS}, {METRICS}, {ENVELOPE}; got {sorted(content)}")
    arrays, metrics, fields = content[ARRAYS], content[METRICS], content[ENVELOPE]
    if dict(metrics) != {"num-examples": 1} or set(arrays) != {SUMMARY}:
        raise ValueError("an answer holds one array (summary) and the weight 1")
    expected = ANSWER_KEYS - ({"epsilon_micro"} if query.trust == OPEN else set())
    if set(fields) != expected:
        raise ValueError(f"an answer's envelope has the keys {sorted(expected)}; got {sorted(fields)}")
    if fields["household"] != household or fields["query_id"] != query.id:
        raise ValueError(f"household {household}: the answer names another household or another query")
    made = ENVELOPES[query.trust](household, query.id, fields.get("epsilon_micro"), arrays[SUMMARY].numpy())
    return check_envelope(made, query.trust, coordinates, query.grid)
