"""The one place that touches what Flower does not document: process identity, message ids, the inside of messages.

Flower 1.42 lets a Message be made only inside a run, whose identity sits in a class of its own, and numbers messages
on its SuperLink. Our grids live in one process, so both are set here and nowhere else. Its constructors check every
argument of every message; a grid that makes 100,000 alike fills in the same attributes itself, in a quarter of the time.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's new default; without it Ray warns at every start
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.app.message.message import DEFAULT_TTL  # noqa: E402
from flwr.app.metadata import Metadata  # noqa: E402
from flwr.common.constant import ErrorCode  # noqa: E402
from flwr.supercore.run import Run  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

RUN_ID, SERVER_NODE, TASK_ID = 1, 1, 1
FIRST_NODE = 2
DAY_SECONDS = 86_400.0
CLIENT_RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
NODE_UNAVAILABLE = ErrorCode.NODE_UNAVAILABLE


def assume_identity() -> None:
    """Let this process make Messages, unless Flower's own runtime has already given it an identity."""
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SERVER_NODE, TASK_ID


def node_id(index: int) -> int:
    """The node id of the household at that index on our grids: reproducible, unlike Flower's random ids."""
    return index + FIRST_NODE


def node_index(node: int) -> int:
    """Inverse of node_id."""
    return node - FIRST_NODE


def empty_run() -> Run:
    return Run.create_empty(RUN_ID)


def new_context(node: int, count: int) -> Context:
    """A node's Context, with the two entries of node_config that Flower's simulation sets."""
    config = {"partition-id": node_index(node), "num-partitions": count}
    return Context(run_id=RUN_ID, node_id=node, node_config=config, state=RecordDict(), run_config={})


def stamp(message: Message, message_id: str) -> tuple[int, str, str]:
    """Give a message its id, as the SuperLink would; its node, type and group."""
    fields = vars(message.metadata)
    fields["_message_id"] = message_id
    return fields["_dst_node_id"], fields["_message_type"], fields["_group_id"]


def received(content: RecordDict, message_id: str, node: int, kind: str, group: str) -> Message:
    """An instruction as the node sees it, rebuilt from the parts that crossed a process boundary."""
    return _message(RUN_ID, message_id, SERVER_NODE, node, "", group, time.time(), DAY_SECONDS, _accepted(kind), None,
                    content)


def reply(instruction: Message, content: RecordDict | int) -> Message:
    """The answer to an instruction: a content, or an error code without any text (texts leak values)."""
    asked = vars(instruction.metadata)
    error = None
    if not isinstance(content, RecordDict):
        content, error = None, Error(code=content, reason=None)
    return _message(asked["_run_id"], "", asked["_dst_node_id"], asked["_src_node_id"], asked["_message_id"],
                    asked["_group_id"], asked["_created_at"], asked["_ttl"], asked["_message_type"], None, content, error)


def instruction(content: RecordDict, node: int, kind: str, group: str) -> Message:
    """A message to a node."""
    return _message(TaskIdentity.run_id, "", TaskIdentity.node_id, node, "", group, time.time(), DEFAULT_TTL,
                    _accepted(kind), TaskIdentity.task_id, content)


def _message(run: int, name: str, source: int, node: int, replies_to: str, group: str, created: float, ttl: float, kind: str,
             task: int | None, content: RecordDict | None, error: Error | None = None) -> Message:
    """A Message with the attributes that Flower's constructor would give it."""
    meta, message = object.__new__(Metadata), object.__new__(Message)
    meta.__dict__ = {"_run_id": run, "_message_id": name, "_src_node_id": source, "_dst_node_id": node,
                     "_src_task_id": task, "_dst_task_id": None, "_reply_to_message_id": replies_to, "_group_id": group,
                     "_created_at": created, "_ttl": ttl, "_message_type": kind, "_delivered_at": ""}
    message.__dict__ = {"_metadata": meta, "_content": content, "_error": error}
    return message


@lru_cache(maxsize=256)
def _accepted(kind: str) -> str:
    """A message type that Flower accepts: ValueError else."""
    Metadata(RUN_ID, "", SERVER_NODE, FIRST_NODE, "", "", 0.0, DAY_SECONDS, kind)
    return kind


RECORDS = (ConfigRecord, MetricRecord, ArrayRecord)
_BLANK = {kind: vars(kind()) for kind in (RecordDict, *RECORDS)}

Parts = tuple[tuple[str, int, dict[str, Any]], ...]


def parts_of(content: RecordDict) -> Parts | RecordDict:
    """A content as built-in values, which cross a process boundary in a tenth of the time of Flower's objects.

    A content that holds anything but Flower's own records comes back as it is.
    """
    parts = []
    for name, record in content.items():
        kind, values = type(record), vars(record)["_data"]
        if kind is ArrayRecord:
            if any(type(array) is not Array for array in values.values()):
                return content
            values = {key: (array.dtype, array.shape, array.stype, array.data) for key, array in values.items()}
        elif kind is not ConfigRecord and kind is not MetricRecord:
            return content
        parts.append((name, RECORDS.index(kind), values))
    return tuple(parts)


def content_from(parts: Parts | RecordDict) -> RecordDict:
    """Inverse of parts_of: a content of its own, equal to the one that was sent."""
    if isinstance(parts, RecordDict):
        return parts
    found = {}
    for name, number, values in parts:
        kind = RECORDS[number]
        if kind is ArrayRecord:
            values = {key: _array(*fields) for key, fields in values.items()}
        found[name] = _filled(kind, values)
    return _filled(RecordDict, found)


def _filled(kind: type, values: dict[str, Any]) -> Any:
    record = object.__new__(kind)
    record.__dict__ = {**_BLANK[kind], "_data": values}
    return record


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    array = object.__new__(Array)
    array.__dict__ = {"_is_dirty": True, "dtype": dtype, "shape": shape, "stype": stype, "data": data}
    return array


@contextmanager
def quiet_flower():
    """Silence the log lines that Flower's strategies print every round; warnings still show."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def frozen_gc():
    """Keep what exists out of the collector's sight: Bulyan and QFedAvg collect once per reply, 33 s for 200 of them."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
