"""Flower's own simulation (1.42) doing what our grid does: the peer of the engine benchmark."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp


def content_of(megabytes: float) -> RecordDict:
    """A broadcast of that size (float32 zeros), or a small record for 0."""
    if not megabytes:
        return RecordDict({"config": ConfigRecord({"round": 1})})
    return RecordDict({"arrays": ArrayRecord({"model": Array(np.zeros(int(megabytes * 262_144), np.float32))})})


def answer(message: Message, context: Context) -> Message:
    """What a node does: nothing but to answer."""
    return Message(RecordDict({"config": ConfigRecord({"done": True})}), reply_to=message)


def sweeps(nodes: int, repeats: int, megabytes: float, workers: int) -> list[float]:
    """Seconds of each round of `nodes` query messages on Flower's simulation, after one that warms it up."""
    from flwr.simulation import run_simulation

    found: list[float] = []
    server, client = ServerApp(), ClientApp()
    client.query()(answer)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.05)
        for turn in range(repeats + 1):
            content = content_of(megabytes)
            messages = [Message(content=content, dst_node_id=node, message_type="query", group_id=str(turn))
                        for node in grid.get_node_ids()]
            began = time.perf_counter()
            replies = list(grid.send_and_receive(messages))
            if len(replies) != nodes or any(reply.has_error() for reply in replies):
                raise RuntimeError(f"{len(replies)} of {nodes} nodes answered")
            if turn:
                found.append(time.perf_counter() - began)

    run_simulation(server_app=server, client_app=client, num_supernodes=nodes,
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}})
    if len(found) != repeats:
        raise RuntimeError("Flower's simulation did not finish its rounds: see its log above")
    return found


def measure(part: dict[str, Any]) -> dict[str, Any]:
    """{"seconds": [...]} of a part {nodes, repeats, megabytes, workers}."""
    return {"seconds": sweeps(part["nodes"], part["repeats"], part.get("megabytes", 0.0), part["workers"])}
