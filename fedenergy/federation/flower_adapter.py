"""The one place that touches what Flower does not document: process identity, message ids, quiet defaults.

Flower 1.42 lets a Message be made only inside a run, whose identity sits in a class of its own, and numbers messages
on its SuperLink. Our grids live in one process, so both are set here and nowhere else.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from contextlib import contextmanager

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's new default; without it Ray warns at every start
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
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


def stamp_id(message: Message, message_id: str) -> Message:
    """Give a message its id, as the SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id
    return message


def received(content: RecordDict, message_id: str, node: int, kind: str, group: str) -> Message:
    """An instruction as the node sees it, rebuilt from the parts that crossed a process boundary."""
    meta = Metadata(RUN_ID, message_id, SERVER_NODE, node, "", group, time.time(), DAY_SECONDS, kind)
    return Message(metadata=meta, content=content)


def reply(instruction: Message, content: RecordDict | int) -> Message:
    """The answer to an instruction: a content, or an error code without any text (texts leak values)."""
    meta = instruction.metadata
    back = Metadata(meta.run_id, "", meta.dst_node_id, meta.src_node_id, meta.message_id, meta.group_id,
                    meta.created_at, meta.ttl, meta.message_type)
    if isinstance(content, RecordDict):
        return Message(metadata=back, content=content)
    return Message(metadata=back, error=Error(code=content, reason=None))


def instruction(content: RecordDict, node: int, kind: str, group: str) -> Message:
    """A message to a node."""
    return Message(content=content, dst_node_id=node, message_type=kind, group_id=group)


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
