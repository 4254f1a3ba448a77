"""What leaves the homes under `flwr run`: the byte scan of a real SuperLink, its database, logs and Ray's own files."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import flower_client
from tests.federation.helpers import Crossing, Planted, wire
from tests.federation.helpers_scan import Needles, files_in
from tests.federation.test_flwr_run import ROOT, Flower, play, study, superlink  # noqa: F401  (two are fixtures)
from tests.federation.test_leaks import Played, holds, outside, planted

SCANNED = """
name = "scanned"
seeds = [5]
[population]
use = "tests.federation.helpers:Planted"
[task]
use = "tests.federation.helpers:Sums"
clip = 120.0
[query]
rounds = 2
[engine]
workers = 0
"""
ENTRY = '[[strategy]]\nuse = "strategies.{}"\n'
OUTSIDE = [ENTRY.format("zonal_sum:ZonalSum"), ENTRY.format("secure_sum:SecureSum")]
TRUSTED = [ENTRY.format("central_laplace:CentralLaplace"), ENTRY.format("non_private:NonPrivate")]


def ran(env: dict, root: Path) -> dict[str, bytes]:
    """Everything that a `flwr run` of root's study.toml left, while the SuperLink and Ray still run."""
    done = subprocess.run(
        ["flwr", "run", ".", "--stream", "--run-config", f'config="study.toml" root="{root}" out="there"',
         "--federation-config", f"num-supernodes={len(Planted())} client-resources-num-cpus=1"],
        cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150)
    assert list(root.glob("there/*/metrics.csv")), done.stdout
    ray = {f"ray {name}": data for name, data in files_in(Path(env["RAY_TMPDIR"])).items()}
    assert any("worker" in name for name in ray), sorted(ray)[:20]
    return {"stream": done.stdout.encode()} | files_in(root) | ray


class Seen(Flower):
    """Flower's Grid that keeps everything that crosses it."""

    def __init__(self, run_config, nodes: int) -> None:
        super().__init__(run_config, nodes)
        self.crossings: list[Crossing] = []

    def send_and_receive(self, messages, *, timeout=None):
        batch = list(messages)
        replies = {reply.metadata.src_node_id: reply for reply in super().send_and_receive(batch, timeout=timeout)}
        for message in batch:
            meta, reply = message.metadata, replies[message.metadata.dst_node_id]
            node = flower.node_id(self.partitions[meta.dst_node_id])
            self.crossings += [Crossing(way, node, meta.message_type, meta.group_id, one.content, wire(one.content))
                               for way, one in (("out", message), ("in", reply))]
        return list(replies.values())


@pytest.mark.parametrize("how", ["other", "constant", "large", "missing"])
def test_other_data_change_the_noised_payload_and_nothing_else_on_flower(how, study, monkeypatch):  # noqa: F811
    """The ClientApp of `flwr run`: home 1 has other readings; every message, file and row but its payload is the same."""
    views, payloads, real = [], [], Planted.load
    for turn in ("first", "second"):
        run_config = study(SCANNED + "".join(OUTSIDE + TRUSTED[:1]), out=turn)
        flower_client._study.cache_clear(), flower_client._client.cache_clear()
        grid = Seen(run_config, len(Planted()))
        folder = play(run_config, grid)
        played = Played(folder, grid.crossings, {})
        views.append({name: seen for name, seen in outside(played, 1).items() if "config.resolved" not in name})  # out = ...
        payloads.append([c.data for c in grid.crossings if c.way == "in" and holds(c, 1)])
        monkeypatch.setattr(Planted, "load", lambda self, index: real(replace(self, odd=(1, how)), index))
    assert views[0].keys() == views[1].keys()
    for name in views[0]:
        assert views[0][name] == views[1][name], name
    assert len(payloads[0]) == 3 * 2
    assert all(a != b for a, b in zip(*payloads, strict=True))  # the test could have failed


@pytest.mark.slow
def test_nothing_planted_leaves_a_home_under_flwr_run(superlink, study, tmp_path):  # noqa: F811
    study(SCANNED + "".join(OUTSIDE))
    left = ran(superlink, tmp_path)
    assert {"flwr/state.db", "superlink.log", "stream"} <= set(left)
    assert any(name.startswith("there/") and name.endswith(".sqlite") for name in left)
    assert any("/checkpoints/" in name for name in left)
    assert planted().scan(left) == set()
    noised = pq.read_table(next(tmp_path.glob("there/*/releases.parquet")))["value"].to_numpy()
    found = {hit.place.partition("/")[0] for hit in Needles({"noised": noised}).scan(left)}
    assert "there" in found  # what may leave is there to be found


@pytest.mark.slow
def test_what_a_trusted_server_receives_stays_off_the_disk_under_flwr_run(superlink, study, tmp_path):  # noqa: F811
    """Deposits and plains cross in Flower's memory: no file of the SuperLink, of Ray or of the run keeps one."""
    study(SCANNED.replace("seeds", "oracle = true\nseeds") + "".join(OUTSIDE + TRUSTED))
    hits = planted().scan(ran(superlink, tmp_path))
    assert hits == set()
