"""Updates on the wire: one ArrayRecord, one MetricRecord with num-examples = 1, one ConfigRecord, as every answer.

Stock Flower strategies read exactly that. Homes weigh the same: a count of readings would say something about a home.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedenergy.box.query import SealedQuery
from fedenergy.box.updates import MAX_BYTES, Computed, Update, UpdateSpec, make_update
from fedenergy.federation import records
from fedenergy.privacy.trust import Envelope

NPY_HEADER = 128  # bytes of the .npy header of a one-axis array


def encode(envelope: Envelope) -> RecordDict:
    """Any envelope to Flower records."""
    return encode_update(envelope) if isinstance(envelope, Update) else records.encode(envelope)


def encode_update(update: Update) -> RecordDict:
    """Update to Flower records; evaluations have no arrays."""
    content = RecordDict({
        records.METRICS: MetricRecord({"num-examples": 1, **update.metrics}),
        records.ENVELOPE: ConfigRecord({"household": update.household, "query_id": update.query_id})})
    if update.arrays:
        content[records.ARRAYS] = records.array_record(update.arrays)
    return content


def decode_update(content: RecordDict, query: SealedQuery, household: str, spec: UpdateSpec) -> Update:
    """Flower records to an Update of that form; whatever does not fit it raises ValueError."""
    wanted = {records.METRICS, records.ENVELOPE} | ({records.ARRAYS} if spec.arrays else set())
    if set(content) != wanted:
        raise ValueError(f"an update holds exactly the records {sorted(wanted)}")
    metrics, fields = content[records.METRICS], content[records.ENVELOPE]
    if not isinstance(metrics, MetricRecord) or not isinstance(fields, ConfigRecord) \
            or dict(fields) != {"household": household, "query_id": query.id} or metrics.get("num-examples") != 1:
        raise ValueError("an update names its household and its query, and has the weight 1")
    arrays: dict[str, np.ndarray] = {}
    if spec.arrays:
        given = content[records.ARRAYS]
        if not isinstance(given, ArrayRecord) or list(given) != list(spec.arrays):
            raise ValueError(f"an update holds the arrays {list(spec.arrays)}, in that order")
        arrays = {name: _read(given[name], np.dtype(dtype), shape) for name, (dtype, shape) in spec.arrays.items()}
    numbers = {name: value for name, value in metrics.items() if name != "num-examples"}
    return make_update(household, query.id, Computed(arrays, numbers), spec)


def _read(array: Array, dtype: np.dtype, shape: tuple[int, ...] | None) -> np.ndarray:
    if shape is None:
        size = (len(array.data) - NPY_HEADER) // dtype.itemsize if isinstance(array.data, bytes) else -1
        if not 0 <= size * dtype.itemsize <= MAX_BYTES:
            raise ValueError("an array of an update is longer than is allowed")
        shape = (size,)
    return records.read_array(array, dtype, tuple(shape)).copy()


def model_digest(messages: Iterable[Message]) -> str:
    """32 hex digits of everything that a round's messages bring, home by home: part of the id of their query.

    A content that many homes share is read once; who gets which content counts.
    """
    state, seen = hashlib.blake2b(digest_size=16), {}
    for message in sorted(messages, key=lambda one: one.metadata.dst_node_id):
        content = message.content
        if id(content) not in seen:
            seen[id(content)] = _content_digest(content)
        state.update(message.metadata.dst_node_id.to_bytes(8, "little", signed=False) + seen[id(content)])
    return state.hexdigest() if len(set(seen.values())) > 1 else next(iter(seen.values()), b"").hex()


def _content_digest(content: RecordDict) -> bytes:
    """Arrays by value, config by its text: the same for equal contents in every process."""
    state = hashlib.blake2b(digest_size=16)
    for key, record in content.items():
        for name, value in record.items():
            if isinstance(value, Array):
                values = value.numpy()
                state.update(f"{key} {name} {values.dtype.str} {values.shape}\n".encode())
                state.update(np.ascontiguousarray(values).tobytes())
            elif name != "server-round":  # the round is in the query already
                state.update(f"{key} {name} {value!r}\n".encode())
    return state.digest()


def brought(task: Any, contents: Sequence[RecordDict]) -> Mapping[str, Any]:
    """What messages bring for tasks that read it: arrays, as numpy, and the strategy's config.

    contents  of the homes that are asked together. Where they differ, which a task must allow (`reads_each`), arrays is a
              list: of each home its own; their configs do not differ (see alike)
    """
    if not getattr(task, "reads_arrays", False):
        return {}
    found: dict[str, Any] = {}
    if any(content is not contents[0] for content in contents):
        found["arrays"] = [_arrays(content) for content in contents]
    elif contents[0].array_records:
        found["arrays"] = _arrays(contents[0])
    if getattr(task, "reads_config", False):
        found["config"] = dict(contents[0].config_records.get("config", {}))
    return found


def alike(task: Any, one: RecordDict, other: RecordDict) -> bool:
    """Whether homes that got these two contents can be asked together: they ask the same, and only the arrays may differ."""
    if one is other:
        return True
    return bool(getattr(task, "reads_each", False)) and list(one) == list(other) and all(
        one[name] == other[name] for name in one.config_records)


def _arrays(content: RecordDict) -> dict[str, np.ndarray]:
    record = next(iter(content.array_records.values()), {})
    return {name: records.loaded(array) for name, array in record.items()}
