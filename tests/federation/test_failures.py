"""Who failed, by name; and a cluster's address where nobody is."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.clientapp import ClientApp

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.failures import first_error, killers_of
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.shard import Client


def test_killers_are_named():
    ids = [f"home-{n}" for n in range(20)]
    assert killers_of(SimpleNamespace(count=20), ids) == ""
    assert killers_of(SimpleNamespace(count=20, quarantined={7, 3}), ids).endswith(": home-3, home-7")
    assert killers_of(SimpleNamespace(count=20, quarantined=set(range(12))), ids).endswith("home-9 and 2 more")
    assert killers_of(SimpleNamespace(count=4, quarantined={1}), ids).endswith(": shard 1")


def test_the_first_error_of_the_inside_view(tmp_path):
    assert first_error(tmp_path) == ""
    lines = [{"code": "budget", "household": "a"},
             {"code": "error", "household": "b", "phase": "train", "reason": "ValueError at x.py:1"}]
    (tmp_path / "7.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert first_error(tmp_path) == "household b, ValueError at x.py:1, in phase train"


def test_a_home_that_leaves_python_is_one_failure():
    app = ClientApp()

    @app.query()
    def leave(message, context):
        if context.node_config["partition-id"] == 1:
            raise SystemExit("reading 3.14159")
        return flower.reply(message, RecordDict({"out": ConfigRecord({"done": True})}))

    told = []
    grid = LocalGrid(Client(app, {}, lambda context, error, phase: told.append((type(error).__name__, phase))), 3)
    content = RecordDict({"ask": ConfigRecord({"n": 1})})
    replies = grid.send_and_receive(flower.instruction(content, node, "query", "1") for node in grid.get_node_ids())
    assert [reply.has_content() for reply in replies] == [True, False, True]
    assert len(told) == 1
    assert told[0][1] == "query"


def test_an_address_where_nothing_listens_is_told_at_once():
    from fedenergy.federation.ray_grid import _answers

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        _answers(f"127.0.0.1:{port}")
        _answers(f"ray://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=r"nothing listens at 127\.0\.0\.1"):
        _answers(f"127.0.0.1:{port}")
    for one in ("", "auto"):
        _answers(one)
