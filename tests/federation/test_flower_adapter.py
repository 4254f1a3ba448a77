"""Messages made without Flower's constructors are those that its constructors make."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto

from fedenergy.federation import flower_adapter as flower

flower.assume_identity()


def content() -> RecordDict:
    return RecordDict({
        "config": ConfigRecord({"n": 1, "x": 0.1, "word": "w", "raw": b"\0", "yes": True, "list": [1, 2], "none": []}),
        "metrics": MetricRecord({"loss": 0.25, "counts": [1, 2]}), "empty": ArrayRecord(),
        "arrays": ArrayRecord({"w": Array(np.arange(6.0).reshape(2, 3)), "b": Array(np.array(3, np.int8))})})


def fields(message: Message) -> dict:
    return {**vars(message.metadata), "_created_at": 0.0, "content": vars(message)["_content"],
            "error": vars(message)["_error"]}


def test_an_instruction_is_flowers():
    one = content()
    ours = flower.instruction(one, 7, "query.ping", "3")
    theirs = Message(content=one, dst_node_id=7, message_type="query.ping", group_id="3")
    assert fields(ours) == fields(theirs)
    assert abs(ours.metadata.created_at - theirs.metadata.created_at) < 60
    assert list(vars(ours)) == list(vars(theirs))


def test_a_received_message_and_its_reply_are_flowers():
    one = content()
    ours = flower.received(one, "m5", 7, "train", "3")
    meta = Metadata(flower.RUN_ID, "m5", flower.SERVER_NODE, 7, "", "3", 0.0, flower.DAY_SECONDS, "train")
    assert fields(ours) == fields(Message(metadata=meta, content=one))
    reply, theirs = flower.reply(ours, one), Message(one, reply_to=ours)
    assert fields(reply) | {"_ttl": 0} == fields(theirs) | {"_ttl": 0}
    assert message_to_proto(reply).content == message_to_proto(theirs).content
    error = flower.reply(ours, flower.CLIENT_RAISED)
    assert error.has_error()
    assert not error.has_content()
    assert (error.error.code, error.error.reason) == (flower.CLIENT_RAISED, None)


@pytest.mark.parametrize("kind", ["", "nonsense", "query.", "query.a.b", "query.a b"])
def test_a_type_that_flower_refuses_is_refused(kind):
    with pytest.raises(ValueError, match="Invalid message type"):
        flower.instruction(content(), 7, kind, "3")


def test_a_content_comes_back_from_its_parts_as_it_was():
    one = content()
    parts = flower.parts_of(one)
    back = flower.content_from(pickle.loads(pickle.dumps(parts)))  # as Ray's transport carries it
    assert back == one
    dirty = {"_is_dirty"}  # where it is missing, Flower takes it for true
    for name, record in one.items():
        assert type(back[name]) is type(record)
        assert set(vars(back[name])) == set(vars(record)) - dirty
    assert vars(back["arrays"]["w"]) == vars(one["arrays"]["w"])
    assert back["arrays"].is_dirty
    assert back.object_id == one.object_id
    assert not any(type(value).__module__.startswith("flwr") for _, _, values in parts for value in values.values())
    with pytest.raises(TypeError):
        back["config"]["bad"] = object()
    with pytest.raises(TypeError):
        back["bad"] = {}


def test_a_content_is_its_own():
    one = content()
    back = flower.content_from(flower.parts_of(one))
    back["metrics"]["loss"] = 9.0
    del back["arrays"]["w"]
    assert list(back["arrays"]) == ["b"]
    assert list(one["arrays"]) == ["w", "b"]


def test_records_of_a_users_own_class_cross_whole():
    class Own(ConfigRecord):
        pass
    one = RecordDict({"own": Own({"n": 1})})
    assert flower.parts_of(one) is one
    assert flower.content_from(one) is one
