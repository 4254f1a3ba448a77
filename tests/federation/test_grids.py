"""Grids: the same Flower app gives the same answers in this process and in Ray actors, whoever dies."""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.shard import Client
from simulations.benchmarks.engines.stock import content_of

COUNT = 40


def answer(message: Message, context: Context) -> Message:
    index = context.node_config["partition-id"]
    asked = message.content["ask"]
    fatal = Path(str(asked["folder"]))
    if (fatal / f"always-{index}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (fatal / f"once-{index}").exists():
        (fatal / f"once-{index}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.get("raise") == index:
        raise RuntimeError("reading 3.14159 is secret")
    seen = context.state.get("seen", MetricRecord({"n": 0}))
    context.state["seen"] = MetricRecord({"n": seen["n"] + 1})
    return Message(RecordDict({"out": MetricRecord({"index": index, "calls": context.state["seen"]["n"]})}),
                   reply_to=message)


def make_client() -> Client:
    app = ClientApp()
    app.query("ping")(answer)
    app.query("many")(answer)

    def many(messages, contexts):
        return [flower.reply(message, answer(message, context).content)
                for message, context in zip(messages, contexts, strict=True)]

    @app.query("size")
    def size(message: Message, context: Context) -> Message:
        total = sum(array.numpy().nbytes for array in message.content["arrays"].values())
        return flower.reply(message, RecordDict({"out": MetricRecord({"index": 0, "bytes": total})}))

    return Client(app, {"query.many": many})


def live_replies(monkeypatch) -> weakref.WeakSet:
    """Replies with a content that exist in this process: those that are made from now on."""
    alive, make = weakref.WeakSet(), flower._message

    def counting(*fields):
        message = make(*fields)
        if message.metadata.src_node_id != flower.SERVER_NODE and message.has_content():
            alive.add(message)
        return message
    monkeypatch.setattr(flower, "_message", counting)
    return alive


def ask(grid, kind="query.ping", **config) -> list[Message]:
    content = RecordDict({"ask": ConfigRecord({"folder": "/nonexistent", **config})})
    return grid.send_and_receive([flower.instruction(content, node, kind, "1") for node in grid.get_node_ids()])


def indices(replies) -> list[int]:
    return [reply.content["out"]["index"] for reply in replies if reply.has_content()]


@pytest.fixture(scope="module")
def ray_grid():
    from fedenergy.federation.ray_grid import RayGrid

    grid = RayGrid(make_client, COUNT, placement=lambda index: index % 8, workers=2, batch=4)
    yield grid
    grid.close()


@pytest.mark.parametrize("kind", ["query.ping", "query.many"])
def test_every_node_answers_in_order_and_keeps_its_state(kind, ray_grid):
    for grid in (LocalGrid(make_client(), COUNT), ray_grid):
        first = ask(grid, kind)
        second = ask(grid, kind)
        assert indices(first) == indices(second) == list(range(COUNT))
        assert [b.content["out"]["calls"] - a.content["out"]["calls"] for a, b in zip(first, second)] == [1] * COUNT


def stream(grid, at_once: int, kind="query.ping", **config):
    content = RecordDict({"ask": ConfigRecord({"folder": "/nonexistent", **config})})
    return grid.stream((flower.instruction(content, node, kind, "1") for node in grid.get_node_ids()), at_once)


@pytest.mark.parametrize("at_once", [1, 7, COUNT, 10 * COUNT])
def test_streamed_replies_are_those_of_the_list_in_its_order(at_once, ray_grid):
    for grid in (LocalGrid(make_client(), COUNT), ray_grid):
        listed, streamed = ask(grid, **{"raise": 7}), list(stream(grid, at_once, **{"raise": 7}))
        assert indices(streamed) == indices(listed) == [i for i in range(COUNT) if i != 7]
        assert streamed[7].error.code == flower.CLIENT_RAISED
        assert [reply.metadata.src_node_id for reply in streamed] == grid.get_node_ids()


def test_replies_that_land_name_their_messages(ray_grid):
    for grid in (LocalGrid(make_client(), COUNT), ray_grid):
        content = RecordDict({"ask": ConfigRecord({"folder": "/nonexistent", "raise": 7})})
        landed = dict(grid.landing(flower.instruction(content, node, "query.ping", "1") for node in grid.get_node_ids()))
        assert sorted(landed) == list(range(COUNT))
        assert indices(landed[at] for at in range(COUNT)) == [i for i in range(COUNT) if i != 7]
        assert list(grid.landing([])) == []


@pytest.mark.parametrize("at_once", [1, 6])
def test_no_more_replies_than_asked_for_exist_at_a_time(at_once, ray_grid, monkeypatch):
    alive = live_replies(monkeypatch)
    for grid in (LocalGrid(make_client(), COUNT), ray_grid):
        most = 0
        for reply in stream(grid, at_once, kind="query.many"):
            most = max(most, len(alive))
            del reply
        assert 1 <= most <= max(2, at_once) + 1  # two windows of at least one; and the one that the loop holds
    list(ask(grid))
    assert len(alive) <= 1


def test_a_quarantined_home_is_an_error_in_its_place_of_a_stream(ray_grid):
    ray_grid.quarantined.add(11)
    try:
        replies = list(stream(ray_grid, 8))
    finally:
        ray_grid.quarantined.clear()
    assert indices(replies) == [i for i in range(COUNT) if i != 11]
    assert replies[11].error.code == flower.NODE_UNAVAILABLE


def test_a_broadcast_is_put_into_the_store_once(ray_grid, monkeypatch):
    puts, put = [], ray_grid._ray.put
    monkeypatch.setattr(ray_grid._ray, "put", lambda value: puts.append(value) or put(value))
    model = ArrayRecord({"model": Array(np.zeros(262_144, np.float32))})  # 1 MB
    content = RecordDict({"ask": ConfigRecord({"folder": "/nonexistent"}), "arrays": model})

    def messages():
        return [flower.instruction(content, node, "query.many", "1") for node in ray_grid.get_node_ids()]

    assert indices(ray_grid.send_and_receive(messages())) == list(range(COUNT))
    assert [one is content for one in puts] == [True]  # 40 messages in 10 batches
    assert indices(ray_grid.stream(messages(), 8)) == list(range(COUNT))
    assert len(puts) == 2


def test_the_broadcast_reaches_the_homes_whole(ray_grid):
    content = content_of(1.0)
    content["ask"] = ConfigRecord({"folder": "/nonexistent"})
    replies = ray_grid.send_and_receive(flower.instruction(content, node, "query.size", "1") for node in (2, 3, 4))
    assert [reply.content["out"]["bytes"] for reply in replies] == [1_048_576] * 3


@pytest.mark.parametrize("kind", ["query.ping", "query.many"])
def test_an_exception_is_one_nodes_error_code_without_text(kind, ray_grid):
    for grid in (LocalGrid(make_client(), COUNT), ray_grid):
        replies = ask(grid, kind, **{"raise": 7})
        assert indices(replies) == [i for i in range(COUNT) if i != 7]
        assert replies[7].error.code == flower.CLIENT_RAISED
        assert replies[7].error.reason is None


def test_handlers_cannot_change_what_others_receive():
    app = ClientApp()

    @app.query("spoil")
    def spoil(message, context):
        clean = message.content["ask"]["x"]
        message.content["ask"]["x"] = -1
        return Message(RecordDict({"out": MetricRecord({"index": clean})}), reply_to=message)

    grid = LocalGrid(Client(app), 3)
    content = RecordDict({"ask": ConfigRecord({"x": 5}), "arrays": ArrayRecord()})
    replies = grid.send_and_receive([flower.instruction(content, node, "query.spoil", "") for node in grid.get_node_ids()])
    assert indices(replies) == [5, 5, 5]


def test_a_message_to_a_node_that_does_not_exist_is_refused():
    grid = LocalGrid(make_client(), 3)
    with pytest.raises(ValueError, match="nodes 2 to 4"):
        grid.send_and_receive([flower.instruction(RecordDict(), 99, "query.ping", "")])


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="at least one household"):
        LocalGrid(make_client(), 0)


def test_a_killed_worker_is_replaced_and_all_homes_answer(ray_grid):
    os.kill(ray_grid.pids()[0], signal.SIGKILL)
    assert indices(ask(ray_grid)) == list(range(COUNT))
    assert indices(ask(ray_grid)) == list(range(COUNT))


def test_a_home_that_dies_once_answers_in_the_end(ray_grid, tmp_path):
    (tmp_path / "once-5").touch()
    assert indices(ask(ray_grid, folder=str(tmp_path))) == list(range(COUNT))
    assert not ray_grid.quarantined


def test_a_home_that_always_kills_its_worker_is_quarantined_alone(ray_grid, tmp_path):
    (tmp_path / "always-9").touch()
    replies = ask(ray_grid, folder=str(tmp_path))
    assert indices(replies) == [i for i in range(COUNT) if i != 9]
    assert replies[9].error.code == flower.NODE_UNAVAILABLE
    assert ray_grid.quarantined == {9}
    ray_grid.quarantined.clear()


def test_ray_is_private(ray_grid):
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_ray_runs_no_log_monitor(ray_grid):
    """Its processes name the grid's folder; the raylet among them shows that they are found."""
    import ray

    folder, ours = ray._private.worker._global_node.get_session_dir_path(), []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):                     # it ended meanwhile
            if folder in (command := (process / "cmdline").read_bytes().decode(errors="replace")):
                ours.append(command)
    assert any("raylet" in command for command in ours)
    assert not [command for command in ours if "log_monitor" in command]


def test_a_cluster_without_token_authentication_is_refused(monkeypatch):
    from fedenergy.federation.ray_grid import RayGrid

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ValueError, match="RAY_AUTH_MODE=token"):
        RayGrid(make_client, 1, placement=lambda index: 0, address="auto")
