"""Envelopes on the wire: one ArrayRecord, one MetricRecord with num-examples = 1, one ConfigRecord.

The weight is always 1: a count of readings would say something about a home. A refusal is one word.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedenergy.box.query import WINDOWS, SealedQuery
from fedenergy.box.training import window_shape
from fedenergy.federation import flower_adapter as flower
from fedenergy.privacy.gaussian import GAUSSIAN
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.trust import CURATOR, ENVELOPES, OPEN, REFUSED, Deposit, Envelope, check_envelope
from fedenergy.privacy.window_records import WIDTH, check_windows

QUERY, ARRAYS, METRICS, ENVELOPE = "query", "arrays", "metrics", "envelope"
SUMMARY = "summary"
NPY = "numpy.ndarray"
ANSWER_KEYS = frozenset({"household", "query_id", "epsilon_micro"})
_ARRAYS, _METRICS, _FIELDS = (flower.RECORDS.index(kind) for kind in (ArrayRecord, MetricRecord, ConfigRecord))
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
    """The one layout of every answer, so that stock strategies can read it. fields: str and int."""
    return flower.content_from(((ARRAYS, _ARRAYS, _forms({SUMMARY: values})), (METRICS, _METRICS, {"num-examples": 1}),
                                (ENVELOPE, _FIELDS, dict(fields))))


def decode(content: RecordDict, query: SealedQuery, household: str, coordinates: int,
           grid: float | np.ndarray | None = None) -> Envelope:
    """Flower records to the envelope of the query's trust mode; whatever does not fit its schema raises ValueError.

    grid  what one integer of the answer is worth, where that is not the query's step: (d,) under weights
    """
    if set(content) != {ARRAYS, METRICS, ENVELOPE}:
        raise ValueError(f"an answer holds exactly the records {ARRAYS}, {METRICS}, {ENVELOPE}")
    arrays, metrics, fields = content[ARRAYS], content[METRICS], content[ENVELOPE]
    if not (isinstance(arrays, ArrayRecord) and isinstance(metrics, MetricRecord) and isinstance(fields, ConfigRecord)):
        raise ValueError("an answer holds an ArrayRecord, a MetricRecord and a ConfigRecord")
    if list(arrays) != [SUMMARY] or list(metrics) != ["num-examples"] or metrics["num-examples"] != 1:
        raise ValueError("an answer holds one array (summary) and the weight 1")
    expected = ANSWER_KEYS - ({"epsilon_micro"} if query.trust == OPEN else set())
    if set(fields) != expected:
        raise ValueError(f"an answer's envelope has the keys {sorted(expected)}")
    if fields["household"] != household or fields["query_id"] != query.id:
        raise ValueError(f"household {household}: the answer names another household or another query")
    epsilon = fields.get("epsilon_micro")
    if epsilon is not None and not (type(epsilon) is int and 0 < epsilon <= query.epsilon_micro):
        raise ValueError("an answer's epsilon is a whole number of micro-epsilon, above 0 and at most what was asked")
    if query.query_class == WINDOWS and query.trust == CURATOR:
        shape = window_shape(query, coordinates)
        windows = read_array(arrays[SUMMARY], WIDTH, shape)
        return check_windows(Deposit(household, query.id, epsilon, windows), shape, query.clip)
    kind = ENVELOPES[query.trust]
    shape = (2, coordinates) if query.trust == OPEN else (coordinates,)
    made = kind(household, query.id, epsilon, read_array(arrays[SUMMARY], kind.dtype, shape))
    return check_envelope(made, query.trust, coordinates, query.grid if grid is None else grid, NoiseGrid(query.clip).bound,
                          2 if query.mechanism == GAUSSIAN else 1)


def array_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """ArrayRecord of named numpy arrays, as Flower would make it of C-contiguous ones, to the byte.

    numpy's file writer and the constructors, which Flower's own way calls for every array, take most of the time of a small
    model.
    """
    return flower.content_from(((ARRAYS, _ARRAYS, _forms(arrays)),))[ARRAYS]


def _forms(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...], str, bytes]]:
    """The fields of a Flower Array for each array, see flower.parts_of."""
    return {name: (str(values.dtype), values.shape, NPY, _npy_header(values.dtype, values.shape) + values.tobytes())
            for name, values in arrays.items()}


def loaded(array: Array) -> np.ndarray:
    """array.numpy(), of the usual form without numpy's file reader."""
    header = _npy_header(np.dtype(array.dtype), tuple(array.shape)) if array.stype == NPY else b"-"
    if not array.data.startswith(header):
        return array.numpy()
    return np.frombuffer(array.data, array.dtype, offset=len(header)).reshape(array.shape).copy()


def stacked(arrays: Sequence[Array]) -> np.ndarray:
    """(n, ...) of n arrays of one shape, such as one array of every reply, read as one block.

    ValueError where their shapes differ.
    """
    first = arrays[0]
    header = _npy_header(np.dtype(first.dtype), tuple(first.shape))
    if not all(array.data.startswith(header) for array in arrays):
        return np.stack([array.numpy() for array in arrays])
    data = b"".join([array.data[len(header):] for array in arrays])
    return np.frombuffer(data, first.dtype).reshape(len(arrays), *first.shape)


def read_array(array: Array, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The array, if its bytes are exactly a .npy file of that dtype and shape.

    numpy would allocate whatever a header claims: here the header is compared with the one expected, never believed.
    """
    header = _npy_header(dtype, shape)
    size = dtype.itemsize * math.prod(shape)
    data = array.data
    if (array.stype != NPY or not isinstance(data, bytes) or len(data) != len(header) + size
            or not data.startswith(header)):
        raise ValueError(f"the array is not {dtype} {shape} in npy form")
    return np.frombuffer(data, dtype, offset=len(header)).reshape(shape)


@lru_cache(maxsize=256)
def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The first bytes of a .npy file; nothing of that shape is allocated."""
    if dtype.hasobject:
        raise ValueError("Object arrays do not travel: numbers only")
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False,
                                                "shape": shape})
    return file.getvalue()
