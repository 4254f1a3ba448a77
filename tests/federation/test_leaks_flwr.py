"""What leaves the homes under `flwr run`: the byte scan of a real SuperLink, its database, logs and Ray's own files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.federation.helpers import Planted
from tests.federation.helpers_scan import files_in
from tests.federation.test_flwr_run import ROOT, study, superlink  # noqa: F401  (fixtures)
from tests.federation.test_leaks import planted

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


@pytest.fixture
def superlink_of_homes(request, monkeypatch):
    """Its processes find the planted homes, whose module denies sockets outside loopback."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return request.getfixturevalue("superlink")


def test_nothing_planted_leaves_a_home_under_flwr_run(superlink_of_homes, study, tmp_path):  # noqa: F811
    study(SCANNED + "".join(OUTSIDE))
    left = ran(superlink_of_homes, tmp_path)
    assert {"flwr/state.db", "superlink.log", "stream"} <= set(left)
    assert any(name.startswith("there/") and name.endswith(".sqlite") for name in left)
    assert any("/checkpoints/" in name for name in left)
    assert planted().scan(left) == set()


@pytest.mark.slow
def test_what_a_trusted_server_receives_stays_off_the_disk_under_flwr_run(superlink_of_homes, study, tmp_path):  # noqa: F811
    """Deposits and plains cross in Flower's memory: no file of the SuperLink, of Ray or of the run keeps one."""
    study(SCANNED.replace("seeds", "oracle = true\nseeds") + "".join(OUTSIDE + TRUSTED))
    hits = planted().scan(ran(superlink_of_homes, tmp_path))
    assert hits == set()
