"""The FedAvg benchmark compares like with like: one training, however it is played, and the peer's data are ours."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.records import array_record
from fedenergy.forecast.net import Local, first_weights, train_one
from simulations.benchmarks.engines import fedavg

PEER = Path(fedavg.__file__).with_name("pfl_peer.py")
NODES = 5


def played(vectorised: bool, start: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    grid = LocalGrid(fedavg.client(vectorised), NODES)
    content = RecordDict({"arrays": array_record(start)})
    return fedavg.average(grid.send_and_receive([flower.instruction(content, node, "train", "1")
                                                 for node in grid.get_node_ids()]))


@pytest.mark.parametrize("vectorised", [True, False])
def test_a_round_is_the_mean_of_the_definition(vectorised):
    start = first_weights(fedavg.FEATURES, fedavg.HIDDEN, 0)
    trained = [train_one(Local(start, *fedavg.data_of(node)), fedavg.RATE) for node in range(NODES)]
    for name, values in played(vectorised, start).items():
        np.testing.assert_allclose(values, np.mean([one[name] for one in trained], axis=0), rtol=1e-9, atol=1e-12)


def test_the_peer_trains_on_the_same_numbers():
    """pfl is not installed here: what the peer's file says of its data is run without it."""
    parts = [node for node in ast.parse(PEER.read_text()).body
             if isinstance(node, ast.Assign) or getattr(node, "name", "") == "data_of"]
    told = {"np": np, "torch": torch}
    exec(compile(ast.Module(parts, []), str(PEER), "exec"), told)
    assert all(told[name] == getattr(fedavg, name) for name in ("FEATURES", "HIDDEN", "STEPS", "BATCH", "RATE"))
    for ours, theirs in zip(fedavg.data_of(3), told["data_of"](3), strict=True):
        np.testing.assert_array_equal(theirs.numpy(), ours.reshape(theirs.shape).astype(np.float32))
