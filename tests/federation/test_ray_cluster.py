"""A Ray cluster of two raylets on this machine, one of which is killed in the middle of a round."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap

import pytest

# In a process of its own: Ray reads its token once, and a cluster's head is a process tree.
CODE = '''
import os, sys, threading, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from ray.cluster_utils import Cluster
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.ray_grid import RayGrid
from fedenergy.federation.shard import Client

NODES = 24


def make():
    app = ClientApp()

    @app.query()
    def where(message, context):
        time.sleep(0.1)
        node = os.environ.get("RAY_NODE_ID") or __import__("ray").get_runtime_context().get_node_id()
        return Message(RecordDict({"config": ConfigRecord({"index": context.node_config["partition-id"], "node": node})}),
                       reply_to=message)
    return Client(app, {})


def ask(grid, turn):
    content = RecordDict({"config": ConfigRecord({"turn": turn})})
    replies = grid.send_and_receive([flower.instruction(content, node, "query", str(turn)) for node in grid.get_node_ids()])
    found = [reply.content["config"] for reply in replies]
    return [one["index"] for one in found], {one["node"] for one in found}


cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80_000_000})
other = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
cluster.wait_for_nodes()
import fedenergy.federation.ray_grid as ray_grid
ray_grid.PATIENCE = 3.0
grid = RayGrid(make, NODES, lambda index: index % 64, workers=2, batch=4, address=cluster.address)
first = ask(grid, 0)
threading.Timer(0.5, lambda: cluster.remove_node(other, allow_graceful=False)).start()
second = ask(grid, 1)
third = ask(grid, 2)
expected = list(range(NODES))
assert first[0] == second[0] == third[0] == expected, (first, second, third)
assert len(first[1]) == 2, "both raylets serve"
assert len(third[1]) == 1, "the dead one serves no more"
assert grid.replaced == 1 and grid.moved == 1 and not grid.quarantined
grid.close()
cluster.shutdown()
print("ALL ANSWERED")
'''


@pytest.mark.slow
def test_a_round_survives_the_death_of_a_raylet():
    run_cluster()


def run_cluster():
    pytest.importorskip("ray.cluster_utils")
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0",
           "FLWR_TELEMETRY_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(CODE)], env=env, text=True, capture_output=True, timeout=240)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "ALL ANSWERED" in ran.stdout
