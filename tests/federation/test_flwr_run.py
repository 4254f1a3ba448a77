"""`flwr run`: Flower's own runtime gives the bytes that LocalGrid gives, whatever its node ids, order and errors."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

import cloudpickle
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedenergy.box.ledger import Ledger
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import flower_client, server_app
from fedenergy.federation.flower_grid import FlowerGrid
from fedenergy.federation.study import run_study
from tests.federation.helpers import Planted
from tests.federation.helpers_scan import files_in
from tests.federation.test_leaks import EXPLAIN, planted

ROOT = Path(__file__).parents[2]
HOMES = 5
PLANTED = f"""
name = "planted"
oracle = true
seeds = [0, 1]
[population]
use = "tests.federation.helpers:Planted"
count = {HOMES}
[task]
use = "tests.federation.helpers:Sums"
[query]
rounds = 2
[engine]
workers = 0
[[strategy]]
use = "strategies.zonal_sum:ZonalSum"
[[strategy]]
use = "strategies.secure_sum:SecureSum"
[[strategy]]
use = "strategies.central_laplace:CentralLaplace"
[[strategy]]
use = "strategies.non_private:NonPrivate"
"""
FAILING = PLANTED.replace("oracle = true", "oracle = false").partition('[[strategy]]\nuse = "strategies.secure')[0] \
    .replace('helpers:Sums"', 'helpers:Sums"\nfails = 2').replace("workers = 0", "workers = 0\nmax_failures = 0.5")


class Flower(Grid):
    """Stands in for Flower's Grid: random node ids that join late, replies in any order, texts of exceptions.

    nodes     how many there are; joined: how many when first asked, one more each time after
    silent    partition ids that never answer; raising: that answer with an error and its text
    shift     added to partition ids
    """

    def __init__(self, run_config, nodes: int, *, joined: int | None = None, silent=(), raising=(), shift=None) -> None:
        flower.assume_identity()
        self.random, self.run_config = random.Random(7), dict(run_config)
        shift = shift or {}
        numbers = self.random.sample(range(2**40, 2**62), nodes)
        self.partitions = {number: index + shift.get(index, 0) for index, number in enumerate(numbers)}
        self.joined = nodes if joined is None else joined
        self.silent, self.raising, self.sent = silent, raising, []

    def get_node_ids(self):
        found = list(self.partitions)[:self.joined]
        self.joined += 1
        return found

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for number, message in enumerate(messages):
            meta = message.metadata
            index = self.partitions[meta.dst_node_id]
            self.sent.append((index, meta.message_type))
            own = flower.received(RecordDict({k: v.copy() for k, v in message.content.items()}),
                                  f"{len(self.sent)}-{number}", meta.dst_node_id, meta.message_type, meta.group_id)
            context = Context(run_id=1, node_id=meta.dst_node_id, state=RecordDict(), run_config=self.run_config,
                              node_config={"partition-id": index, "num-partitions": len(self.partitions)})
            if index in self.raising and "hello" not in meta.message_type:
                replies.append(Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "3.14 kWh"), reply_to=own))
            elif index not in self.silent:
                replies.append(flower_client.app(own, context))
        self.random.shuffle(replies)
        return replies

    def push_messages(self, messages):
        raise AssertionError

    pull_messages = create_message = set_run = push_messages

    @property
    def run(self):
        return flower.empty_run()


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study folder; study(text, **changes) writes its config and gives the run config."""
    monkeypatch.chdir(tmp_path)

    def write(text: str = PLANTED, **changes):
        (tmp_path / "study.toml").write_text(text)
        return {"config": "study.toml", "root": str(tmp_path), "seeds": "", "data": "", "out": "", "quick": False,
                "fresh": False, **changes}
    yield write
    for cache in (flower_client._study, flower_client._client):
        cache.cache_clear()


def play(run_config, grid=None) -> Path:
    """The study in this process, or on a grid."""
    made = None if grid is None else partial(FlowerGrid, grid, patience=0.3)
    return run_study(flower_client.study_of(run_config), grid=made).resolve()


def scores(folder: Path) -> list[str]:
    """metrics.csv without the lines that follow the ledger."""
    return [line for line in (folder / "metrics.csv").read_text().splitlines() if "epsilon_spent" not in line]


def test_a_study_on_flower_gives_the_bytes_of_local_grid(study):
    here = play(study(out="here"))
    run_config = study(out="there")
    grid = Flower(run_config, HOMES + 2, joined=0)
    there = play(run_config, grid)
    assert (there / "metrics.csv").read_bytes() == (here / "metrics.csv").read_bytes()
    assert (there / "releases.parquet").read_bytes() == (here / "releases.parquet").read_bytes()
    assert len((there / "metrics.csv").read_text().splitlines()) > 100
    strangers = {kind for index, kind in grid.sent if index >= HOMES}
    assert strangers <= {"query.hello"}, "nodes beyond the population are never asked for anything"
    with Ledger(here / "ledger") as one, Ledger(there / "ledger") as other:
        def rows(ledger):
            return sorted((r.household, r.query_id, r.epsilon_micro, r.payload) for r in ledger.rows())
        assert rows(one) == rows(other)
        assert other.verify() == []


def test_a_second_run_is_free_and_fresh_ones_have_their_own_folder(study):
    run_config = study()
    first = play(run_config, Flower(run_config, HOMES))
    with Ledger(first / "ledger") as ledger:
        charged = sum(1 for _ in ledger.rows())
    before = scores(first)
    assert play(run_config, Flower(run_config, HOMES)) == first
    assert scores(first) == before
    with Ledger(first / "ledger") as ledger:
        assert sum(1 for _ in ledger.rows()) == charged
    run_config = study(fresh=True)
    again = play(run_config, Flower(run_config, HOMES))
    assert again.name == f"{first.name}-fresh1"
    assert scores(again) != before
    with Ledger(first / "ledger") as ledger:
        assert sum(1 for _ in ledger.rows()) > charged


def test_what_a_home_raises_is_logged_inside_the_run_folder_of_the_server_and_leaves_as_a_code(study):
    run_config = study(FAILING, fresh=True)
    grid = FlowerGrid(Flower(run_config, HOMES), HOMES)
    seen = []

    class Tap:
        def send_and_receive(self, messages, *, timeout=None):
            seen.extend(grid.send_and_receive(messages, timeout=timeout))
            return seen[-len(messages):]

    folder = run_study(flower_client.study_of(run_config), grid=lambda count: Tap()).resolve()
    errors = [reply for reply in seen if reply.has_error()]
    assert {reply.error.code for reply in errors} == {ErrorCode.CLIENT_APP_RAISED_EXCEPTION}
    assert {reply.error.reason for reply in errors} == {None}
    logged = "".join(path.read_text() for path in (folder / "inside").glob("*.jsonl"))
    assert '"index": 2' in logged
    assert "RuntimeError" in logged
    assert "cannot explain" not in logged
    assert folder.name.endswith("-fresh1")
    assert not (folder.with_name(folder.name.removesuffix("-fresh1")) / "inside").exists()


def test_replies_come_in_the_order_of_the_messages_under_household_ids(study):
    run_config = study()
    grid = FlowerGrid(Flower(run_config, HOMES, joined=2, raising=(1,)), HOMES)
    assert grid.get_node_ids() == [flower.node_id(index) for index in range(HOMES)]
    nodes = [flower.node_id(index) for index in (4, 1, 0)]
    replies = grid.send_and_receive([flower.instruction(RecordDict(), node, "query.hello", "7") for node in nodes])
    assert [reply.metadata.src_node_id for reply in replies] == nodes
    assert [reply.content["hello"]["index"] for reply in replies] == [4, 1, 0]
    assert {reply.metadata.group_id for reply in replies} == {"7"}
    raised = grid.send_and_receive([flower.instruction(RecordDict(), nodes[1], "query.total", "7")])
    assert raised[0].error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert raised[0].error.reason is None, "the text of an exception stays out"
    with pytest.raises(ValueError, match="nodes 2 to 6"):
        grid.send_and_receive([flower.instruction(RecordDict(), flower.node_id(HOMES), "query.hello", "7")])


def test_a_silent_node_has_no_reply(study):
    inner = Flower(study(), HOMES)
    grid = FlowerGrid(inner, HOMES)
    inner.silent = (3,)
    replies = grid.send_and_receive([flower.instruction(RecordDict(), node, "query.hello", "7")
                                     for node in grid.get_node_ids()], timeout=1.0)
    assert [flower.node_index(reply.metadata.src_node_id) for reply in replies] == [0, 1, 2, 4]


@pytest.mark.parametrize(("nodes", "kind", "message"), [
    (3, {}, "the study has 5 homes and Flower runs 3 SuperNodes.*num-supernodes=5"),
    (0, {}, "Flower runs 0 SuperNodes"),
    (6, {"silent": (1, 4)}, "2 of 5 homes have no node"),
    (5, {"shift": {3: -1}}, "two of Flower's nodes have partition-id = 2"),
])
def test_a_population_without_its_nodes_is_refused_before_anything_is_asked(study, nodes, kind, message):
    run_config = study()
    grid = Flower(run_config, nodes, **kind)
    with pytest.raises(ConfigError, match=message):
        play(run_config, grid)
    assert {kind for _, kind in grid.sent} <= {"query.hello"}


def test_a_study_that_a_node_cannot_build_is_an_error_code_without_text(study, capfd):
    run_config = study(root="relative")
    with pytest.raises(ConfigError, match="5 of 5 homes have no node"):
        FlowerGrid(Flower(run_config, HOMES), HOMES, patience=0.1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("changes", "message"), [
    ({"root": ""}, "is not the absolute path of a folder"), ({"config": "stdy.toml"}, 'Did you mean "study.toml"'),
    ({"seeds": "a"}, "--seeds")])
def test_a_mistake_in_the_run_config_is_one_line(study, capsys, changes, message):
    run_config = study(**changes)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
    with pytest.raises(ConfigError, match=message):
        server_app.app(grid=Flower(run_config, HOMES), context=context)
    assert capsys.readouterr().out.startswith("Error: ")


def test_too_many_failures_end_the_run(study):
    run_config = study(FAILING.replace("max_failures = 0.5", "max_failures = 0.0"))
    with pytest.raises(RunFailed):
        play(run_config, Flower(run_config, HOMES))


def test_the_client_app_carries_no_homes(study):
    run_config = study()
    FlowerGrid(Flower(run_config, HOMES), HOMES)
    assert len(cloudpickle.dumps(flower_client.app)) < 2_000, "Flower pickles it with every message"


# The real runtime

TINY = """
name = "tiny"
oracle = true
[population]
use = "tests.federation.helpers:Planted"
count = 6
[task]
lags = [1]
clip = 2.0
trees = 4
depth = 2
[engine]
workers = 0
[[strategy]]
use = "strategies.zonal_sum:ZonalSum"
[[strategy]]
use = "strategies.secure_sum:SecureSum"
"""


def processes(mark: str) -> dict[int, str]:
    """Processes, by id, whose environment holds the mark: Flower's and Ray's inherit it."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except OSError:
            continue
    return found


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


@pytest.fixture
def superlink(tmp_path):
    """The environment of a SuperLink of our own, ended with everything that it started.

    Its processes find tests.federation.helpers: its homes, and no socket outside loopback.
    """
    binaries = Path(sys.executable).parent
    if not (binaries / "flwr").exists() or not Path("/proc/self/environ").exists():
        pytest.skip("needs the flwr command beside Python, and /proc to see that nothing is left behind")
    home, port = tmp_path / "flwr", str(free_port())
    sockets = tempfile.mkdtemp(prefix="fe-ray-")  # short: socket paths have a limit of 107 bytes
    env = {**os.environ, "FLWR_HOME": str(home), "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
           "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port, "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
           "PYTHONPATH": str(ROOT),
           "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_AUTH_MODE": "token",
           "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_TMPDIR": sockets, "OMP_NUM_THREADS": "1"}
    log = tmp_path / "superlink.log"
    with log.open("wb") as file:
        subprocess.Popen([binaries / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1",
                          "--port", port, "--database", str(home / "state.db")],
                         env=env, cwd=tmp_path, stdout=file, stderr=file, start_new_session=True)
    try:
        until(lambda: healthy(port), 120, lambda: log.read_text())
        yield env
    finally:
        mark = f"FLWR_HOME={home}"
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in processes(mark):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + 15
            while processes(mark) and time.monotonic() < deadline:
                time.sleep(0.1)
        left = processes(mark)
        shutil.rmtree(sockets, ignore_errors=True)
    assert not left


def healthy(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def until(done, seconds: float, why) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


def test_flwr_run_gives_the_bytes_of_local_grid_and_leaves_no_reading(superlink, study):
    before = (ROOT / "pyproject.toml").read_bytes()
    here = play(study(TINY, out="here"))
    done = subprocess.run(
        ["flwr", "run", ".", "--stream", "--run-config", f'config="study.toml" root="{here.parents[1]}" out="there"',
         "--federation-config", "num-supernodes=7 client-resources-num-cpus=1"],
        cwd=ROOT, env=superlink, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
    there = here.parents[1] / "there" / here.name
    assert (there / "metrics.csv").exists(), done.stdout
    assert (there / "metrics.csv").read_bytes() == (here / "metrics.csv").read_bytes()
    assert f"Report: {there / 'report.html'}" in done.stdout
    assert (there / "report.html").exists()
    assert (ROOT / "pyproject.toml").read_bytes() == before
    left = {"stream": done.stdout.encode()} | files_in(there.parents[1] / "flwr") | files_in(there)
    left |= {name: (there.parents[1] / name).read_bytes() for name in ("superlink.log", "flwr/state.db")}
    left |= {f"ray {name}": data for name, data in files_in(Path(superlink["RAY_TMPDIR"])).items()}
    assert any(name.startswith("ray ") and "worker" in name for name in left)
    hits = planted(Planted(6), EXPLAIN, rounds=1, pairs=True).scan(left)
    assert {hit.place for hit in hits} == {"summary.json"}  # the oracle's inside view of one home
