"""One FedAvg round of a tiny MLP: our grid with the vectorised path, our grid one by one, and Flower's simulation.

The same nets, data and local steps everywhere, float64: 23 features, 16 hidden units, 5 steps of 32 rows. All three train by
fedenergy.forecast.net.train_many, which one home at a time makes 15 times as fast as automatic differentiation: what is
compared is the engine, and training many homes at once. The server averages in the same way everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.ray_grid import RayGrid
from fedenergy.federation.records import array_record, stacked
from fedenergy.federation.shard import Client
from fedenergy.forecast.net import Local, first_weights, train_many

FEATURES, HIDDEN, STEPS, BATCH, RATE = 23, 16, 5, 32, 0.05


@lru_cache(maxsize=4_096)
def data_of(index: int) -> tuple[np.ndarray, np.ndarray]:
    """A node's own rows: x (STEPS, BATCH, FEATURES), y (STEPS, BATCH)."""
    draw = np.random.default_rng(index)
    x = draw.normal(size=(STEPS, BATCH, FEATURES))
    return x, x[..., :3].sum(-1) + 0.1 * draw.normal(size=(STEPS, BATCH))


def weights_of(content: RecordDict) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in content["arrays"].items()}


def reply_of(weights: Mapping[str, np.ndarray]) -> RecordDict:
    return RecordDict({"arrays": array_record(weights), "metrics": MetricRecord({"num-examples": STEPS * BATCH})})


def train(message: Message, context: Context) -> Message:
    """One node's training, the handler of both runtimes."""
    local = Local(weights_of(message.content), *data_of(int(context.node_config["partition-id"])))
    return Message(reply_of(*train_many([local], RATE)), reply_to=message)


def client(vectorised: bool = True) -> Client:
    """The ClientApp, with the batch form or without."""
    app = ClientApp()
    app.train()(train)

    def many(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        weights = weights_of(messages[0].content)
        locals_ = [Local(weights, *data_of(int(context.node_config["partition-id"]))) for context in contexts]
        return [flower.reply(message, reply_of(found))
                for message, found in zip(messages, train_many(locals_, RATE), strict=True)]
    return Client(app, {"train": many} if vectorised else {})


def average(replies: Sequence[Message]) -> dict[str, np.ndarray]:
    """FedAvg of equal weights."""
    found = [reply.content["arrays"] for reply in replies]
    return {name: stacked([one[name] for one in found]).mean(axis=0) for name in found[0]}


def ours(part: dict[str, Any]) -> dict[str, Any]:
    """{"seconds": [...], "weights": checksum} of rounds over {nodes, repeats, workers, vectorised}."""
    from functools import partial

    grid = RayGrid(partial(client, part["vectorised"]), part["nodes"], lambda index: index % 64, workers=part["workers"])
    weights, seconds = first_weights(FEATURES, HIDDEN, 0), []
    try:
        for turn in range(part["repeats"] + 1):
            began = time.perf_counter()
            content = RecordDict({"arrays": array_record(weights)})
            replies = grid.send_and_receive([flower.instruction(content, node, "train", str(turn))
                                             for node in grid.get_node_ids()])
            weights = average(replies)
            if turn:
                seconds.append(time.perf_counter() - began)
    finally:
        grid.close()
    return {"seconds": seconds, "weights": float(sum(np.abs(value).sum() for value in weights.values()))}


def stock(part: dict[str, Any]) -> dict[str, Any]:
    """The same on Flower's simulation."""
    from flwr.simulation import run_simulation

    server, app = ServerApp(), ClientApp()
    app.train()(train)
    seconds: list[float] = []
    last: dict[str, np.ndarray] = {}

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < part["nodes"]:
            time.sleep(0.05)
        weights = first_weights(FEATURES, HIDDEN, 0)
        for turn in range(part["repeats"] + 1):
            began = time.perf_counter()
            content = RecordDict({"arrays": array_record(weights)})
            messages = [Message(content=content, dst_node_id=node, message_type="train", group_id=str(turn))
                        for node in grid.get_node_ids()]
            weights = average(list(grid.send_and_receive(messages)))
            if turn:
                seconds.append(time.perf_counter() - began)
        last.update(weights)

    run_simulation(server_app=server, client_app=app, num_supernodes=part["nodes"],
                   backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                                   "init_args": {"num_cpus": part["workers"]}})
    return {"seconds": seconds, "weights": float(sum(np.abs(value).sum() for value in last.values()))}


PARTS = {"ours": ours, "stock": stock}
