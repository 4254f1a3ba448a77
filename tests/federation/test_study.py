"""Studies: the numbers do not depend on how they were run: grid, workers, batches, deaths, stops, reruns."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedenergy import cli
from fedenergy.box.ledger import Ledger
from fedenergy.config import Config, parse
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import client_app, study
from fedenergy.federation.shard import Client
from fedenergy.federation.study import resume_study, run_study
from fedenergy.households.simulate import SimulatedPopulation
from fedenergy.progress import SilentProgress
from fedenergy.report.load import RunData
from fedenergy.report.prose import in_short

ROOT = Path(__file__).parents[2]
HOMES = 12
ZONAL, CENTRAL, SECURE_SUM = (f"strategies.{name}" for name in (
    "zonal_sum:ZonalSum", "central_laplace:CentralLaplace", "secure_sum:SecureSum"))
ALL = (ZONAL, CENTRAL, SECURE_SUM)
SMOOTH = "mine:Smooth"
MINE = '''
"""A strategy with a memory: what it answers depends on all rounds so far."""
import numpy as np
from fedenergy.federation.strategy import ZoneStrategy

class Smooth(ZoneStrategy):
    def __init__(self, keep: float = 0.7):
        self.keep, self.mean, self.weight, self.seen, self.log = keep, None, 0.0, {}, []

    def combine(self, answers):
        now = answers.values.sum(axis=0)
        self.mean = now if self.mean is None else self.keep * self.mean + (1 - self.keep) * now
        self.weight = self.keep * self.weight + (1 - self.keep)
        self.log.append(("round", float(now[0])))
        for household in answers.households:
            self.seen[household] = self.seen.get(household, 0) + 1
        return self.mean / (1 if len(self.log) == 1 else self.weight) + min(self.seen.values())
'''


def make_config(out: Path, strategies=ALL, **changes) -> Config:
    """A toy study: 12 homes of 400 hours, two seeds; a table among the changes is merged, a value replaces."""
    document = {"name": "toy", "seeds": [0, 1], "oracle": True, "out": str(out),
                "population": {"count": HOMES, "steps": 400, "seed": 1},
                "task": {"lags": [1, 24], "trees": 20, "depth": 3}, "query": {"epsilon": 0.5},
                "engine": {"workers": 0},
                "strategy": [{"use": item} if isinstance(item, str) else dict(item) for item in strategies]}
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return parse(document)


def results(folder: Path) -> tuple:
    """What must be equal: metrics.csv and cells.csv as bytes, releases.parquet as a table."""
    return ((folder / "metrics.csv").read_bytes(), (folder / "cells.csv").read_bytes(),
            pq.read_table(folder / "releases.parquet").to_pydict())


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def charges(ledger: Path) -> dict[tuple[str, str], tuple]:
    """(household, query id) -> what was charged and stored."""
    with Ledger(ledger) as opened:
        assert opened.verify() == []
        return {(row.household, row.query_id): (row.cell, row.trust, row.epsilon_micro, row.payload)
                for row in opened.rows()}


def spent(ledger: Path, trust: str | None = None) -> int:
    """Micro-epsilon of all charges, or of those of a trust mode."""
    return sum(epsilon or 0 for _, mode, epsilon, _ in charges(ledger).values() if trust in (None, mode))


def values(folder: Path, metric: str) -> dict[tuple[str, int, int], float]:
    """(strategy, seed, round) -> value, of a study that varies nothing else."""
    with open(folder / "metrics.csv", newline="") as file:
        return {(row["strategy"], int(row["seed"]), int(row["round"])): float(row["value"])
                for row in csv.DictReader(file) if row["metric"] == metric}


class Stop(Exception):
    """Stands in for a crash of the driver between two turns."""


class StopAfter(SilentProgress):
    """Stops the run once so many turns are done."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    def advance(self, n: int = 1, **counts) -> None:
        self.left -= n
        if n and self.left <= 0:
            raise Stop


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """Two rounds in this process, never stopped."""
    return run_study(make_config(tmp_path_factory.mktemp("reference"), query={"rounds": 2}))


@pytest.fixture
def ray_again() -> None:
    """Let Ray forget the token of a session before; see test_two_sessions_after_another_in_one_process."""
    if "ray" in sys.modules:
        from ray._raylet import AuthenticationTokenLoader

        AuthenticationTokenLoader.instance().reset_cache()


# Engines


def one_by_one(homes) -> Client:
    """The same client without its batch handlers: Flower's own way, one message at a time."""
    client = client_app.make_client(homes)
    return Client(client.app, {}, client.failed)


def lethal(flags: str, homes) -> Client:
    """A client whose process dies once before and once after it answered (charged, but the answer is lost)."""
    client = client_app.make_client(homes)

    def wrap(handler):
        def lethal_handler(messages, contexts):
            die_once(flags, "before")
            answers = handler(messages, contexts)
            if messages[0].metadata.message_type == client_app.TRAIN:
                die_once(flags, "after")
            return answers
        return lethal_handler

    return Client(client.app, {kind: wrap(handler) for kind, handler in client.batch.items()}, client.failed)


def die_once(flags: str, moment: str) -> None:
    try:
        Path(flags, moment).unlink()  # whoever removes it dies: exactly one process
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Notes(SilentProgress):
    """Keeps the notes; calls `act` once, after the third turn."""

    def __init__(self, act=lambda: None) -> None:
        self.notes, self.act, self.turns = [], act, 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, n: int = 1, **counts) -> None:
        self.turns += n
        if n and self.turns == 3:
            self.act()


def test_one_message_at_a_time_gives_the_same_bytes(reference, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "make_client", one_by_one)
    assert results(run_study(make_config(tmp_path, query={"rounds": 2}))) == results(reference)


@pytest.mark.parametrize(("workers", "batch"), [(1, 1), (2, 5), (4, 256)])
@pytest.mark.slow
def test_workers_and_batches_change_nothing(reference, tmp_path, ray_again, workers, batch):
    folder = run_study(make_config(tmp_path, query={"rounds": 2}, engine={"workers": workers, "batch": batch}))
    assert results(folder) == results(reference)
    assert charges(folder / "ledger") == charges(reference / "ledger")
    same = [{key: value for key, value in json.loads((run / "summary.json").read_text()).items()
             if key not in ("started", "seconds")} for run in (folder, reference)]
    assert same[0] == same[1]


def test_workers_killed_before_and_after_they_charge_change_nothing(reference, tmp_path, monkeypatch, ray_again):
    flags, grids = tmp_path / "flags", []
    flags.mkdir()
    for moment in ("before", "after"):
        (flags / moment).touch()
    made = study.make_grid

    def make_grid(plan, homes):
        grids.append(made(plan, homes))
        return grids[-1]

    monkeypatch.setattr(study, "make_client", partial(lethal, str(flags)))
    monkeypatch.setattr(study, "make_grid", make_grid)
    progress = Notes(lambda: os.kill(grids[0].pids()[0], signal.SIGKILL))
    folder = run_study(make_config(tmp_path, query={"rounds": 2}, engine={"workers": 2, "batch": 3}), progress=progress)
    assert list(flags.iterdir()) == []
    assert progress.notes == ["3 worker(s) died and were replaced"]
    assert results(folder) == results(reference)
    assert charges(folder / "ledger") == charges(reference / "ledger")


@pytest.mark.slow
def test_two_sessions_after_another_in_one_process(reference, tmp_path):
    for name in ("first", "second"):
        folder = run_study(make_config(tmp_path / name, query={"rounds": 2}, engine={"workers": 2}))
        assert results(folder) == results(reference)


def test_a_home_that_fails_fails_the_run_unless_that_is_allowed(tmp_path, monkeypatch):
    load = SimulatedPopulation.load

    def broken(self, index):
        if index == 3:
            raise RuntimeError("reading 3.14159 is secret")
        return load(self, index)

    monkeypatch.setattr(SimulatedPopulation, "load", broken)
    same = {"oracle": False, "seeds": [0], "task": {"trees": 19}}  # not the cached summaries of the other studies
    with pytest.raises(RunFailed, match=r"1 of 12 homes failed in round 1 of ZonalSum.*max_failures") as raised:
        run_study(make_config(tmp_path / "strict", **same))
    assert "3.14159" not in str(raised.value)
    assert re.search(r"the first error: household \S+, RuntimeError at test_study.py:\d+, in phase train", str(raised.value))
    folder = run_study(make_config(tmp_path / "mild", **same, engine={"max_failures": 0.1}))
    answers = values(folder, "answers")
    assert (answers["ZonalSum", 0, 1], answers["CentralLaplace", 0, 1]) == (11, 11)
    assert answers["SecureSum", 0, 1] == 0  # the sum would lack a share of its noise: aborted
    assert "3.14159" not in "".join(path.read_text() for path in (folder / "inside").iterdir())


# The ledger: reruns, --fresh, the cap


def test_running_the_same_study_again_spends_nothing_and_gives_the_same_bytes(tmp_path):
    first = run_study(make_config(tmp_path))
    before, bytes_before = charges(first / "ledger"), results(first)
    again = run_study(make_config(tmp_path))
    assert again == first
    assert results(again) == bytes_before
    assert charges(again / "ledger") == before
    assert spent(again / "ledger") == 2 * 3 * HOMES * 500_000


def test_running_several_rounds_again_gives_the_same_bytes(tmp_path):
    config = make_config(tmp_path, [ZONAL], query={"rounds": 2})
    bytes_before = results(run_study(config))
    assert results(run_study(config)) == bytes_before


def test_secure_noise_comes_back_from_the_ledger_and_nowhere_else(tmp_path):
    """Another ledger, other numbers; the same ledger, the same bytes."""
    config = partial(make_config, seeds=[0], privacy={"noise": "secure"})
    first = run_study(config(tmp_path / "a"))
    bytes_before, before = results(first), charges(first / "ledger")
    assert results(run_study(config(tmp_path / "a"))) == bytes_before
    assert charges(first / "ledger") == before
    other = values(run_study(config(tmp_path / "b")), "mae")
    assert all(other[key] != value for key, value in values(first, "mae").items())


def test_fresh_asks_anew_in_its_own_folder_and_goes_on_from_what_was_spent(tmp_path):
    first = run_study(make_config(tmp_path, agreement={"cap": 1.2}))
    before = results(first), spent(first / "ledger")
    second = run_study(make_config(tmp_path, agreement={"cap": 1.2}, fresh=1))
    assert second.name == f"{first.name}-fresh1"
    assert spent(first / "ledger") == 2 * before[1]
    assert not (second / "ledger").exists()
    assert [summary(folder)["spent_most"]["epsilon_spent"] for folder in (first, second)] == [0.5, 1.0]
    for metric in ("mae", "cosine"):
        old, new = values(first, metric), values(second, metric)
        assert old.keys() == new.keys()
        assert not set(old.values()) & set(new.values())
    assert results(first) == before[0]
    with pytest.raises(Stop):
        run_study(make_config(tmp_path, agreement={"cap": 1.2}, fresh=1), progress=StopAfter(4))
    third = resume_study(tmp_path / f"{first.name}-fresh2")  # 1.0 of 1.2 is spent: no home can afford .5 more
    assert set(values(third, "answers").values()) == {0}
    assert set(values(third, "refusals").values()) == {HOMES}
    assert spent(first / "ledger") == 2 * before[1]


def test_secure_noise_budgets_are_read_over_all_cells_and_all_runs(tmp_path):
    """The cap is spent by one study; another one on the same ledger is refused by all, and its report says by what."""
    same = {"strategies": [ZONAL, CENTRAL], "seeds": [0], "privacy": {"noise": "secure"}, "agreement": {"cap": 1.0},
            "ledger": {"path": str(tmp_path / "shared")}}
    run_study(make_config(tmp_path, **same))
    folder = run_study(make_config(tmp_path, **same, name="late", query={"epsilon": 0.1}))
    assert set(values(folder, "answers").values()) == {0}
    found = summary(folder)
    assert [(row["cell"], row["epsilon_spent"], row["cap"]) for row in found["spent"]] == [("", 1.0, 1.0)] * HOMES
    assert found["spent_most"] == {"epsilon_spent": 1.0, "cap": 1.0}
    told = " ".join(in_short(RunData.read(folder)))
    assert "has spent ε = 1 of the 1 that its agreement allows, by what the ledger holds; at most ε = 0 by this run" in told
    assert "No home answered, so the errors are unknown" in told
    assert "oracle = false" not in told


def test_what_granting_less_cuts_is_told_from_the_noise(tmp_path):
    """Ten times less granted: a tenth of the bound, 5 of 50. Noise of b = 2 C / 1000 = .1 is the rest of the MAE."""
    folder = run_study(make_config(tmp_path, [SECURE_SUM, CENTRAL, ZONAL], seeds=[0], query={"epsilon": 1000},
                                   policy={"use": "fedenergy:Fixed", "epsilon": 100}, agreement={"cap": 2000}))
    noise, less, total = (values(folder, name) for name in ("mae", "mae_less", "mae_total"))
    assert set(less) == {("SecureSum", 0, 1), ("CentralLaplace", 0, 1)}  # with noise of its own a home adds more of that
    assert less["SecureSum", 0, 1] == less["CentralLaplace", 0, 1] > 5
    for key in less:
        assert abs(noise[key] - less[key]) < 0.5
        assert total[key] > less[key] - 0.5
    found = summary(folder)
    assert found["expected"] == []
    granted = {row["trust"]: row["epsilon_granted"] for row in found["who_sees_what"] if row["envelope"] != "Acceptance"}
    assert granted == {"local": "100", "sum": "100", "curator": "100", "open": ""}


def test_a_delta_that_no_strategy_uses_is_refused_before_anything_runs(tmp_path):
    delta = {"query": {"delta": 1e-5}, "agreement": {"delta": 1e-4}, "seeds": [0]}
    with pytest.raises(ConfigError, match=r"\[query\] delta = 1e-05 is of Gaussian.*\(ZonalSum, SecureSum\): leave it"):
        run_study(make_config(tmp_path, [ZONAL, SECURE_SUM], **delta))
    assert not list(tmp_path.iterdir())
    run_study(make_config(tmp_path, [ZONAL, "strategies.zonal_gaussian:ZonalGaussian"], **delta))


def test_rounds_of_new_windows_are_charged_until_the_cap(tmp_path):
    folder = run_study(make_config(tmp_path, query={"rounds": 4}, agreement={"cap": 1.2}, seeds=[0]))
    answers, refusals, cost = (values(folder, name) for name in ("answers", "refusals", "epsilon_spent_max"))
    for strategy in ("ZonalSum", "CentralLaplace", "SecureSum"):
        assert [answers[strategy, 0, n] for n in (1, 2, 3, 4)] == [HOMES, HOMES, 0, 0]
        assert [refusals[strategy, 0, n] for n in (1, 2, 3, 4)] == [0, 0, HOMES, HOMES]
        assert [cost[strategy, 0, n] for n in (1, 2, 3, 4)] == [0.5, 1.0, 1.0, 1.0]
    assert {key for key in values(folder, "mae") if key[2] > 2} == set()  # nobody answered: nothing to score
    assert spent(folder / "ledger") == 3 * HOMES * 1_000_000
    found = summary(folder)
    assert [(entry["code"], entry["count"]) for entry in found["refusals"]] == [("budget", 2 * 3 * HOMES)]


def test_rounds_of_the_same_window_cost_once_and_say_the_same(tmp_path):
    folder = run_study(make_config(tmp_path, query={"rounds": 3, "repeat": "same_window"}, agreement={"cap": 0.5}))
    assert set(values(folder, "answers").values()) == {HOMES}
    assert set(values(folder, "epsilon_spent_max").values()) == {0.5}
    error = values(folder, "mae")
    for strategy, seed, _ in error:
        assert len({error[strategy, seed, n] for n in (1, 2, 3)}) == 1
    assert spent(folder / "ledger") == 2 * 3 * HOMES * 500_000


def test_answers_to_another_policy_are_not_taken_from_a_shared_ledger(tmp_path):
    def study_of(limit, ledger, out):
        return run_study(make_config(tmp_path / out, [ZONAL], ledger={"path": str(tmp_path / ledger)},
                                     policy={"use": "fedenergy:Strict", "epsilon": limit}))
    study_of(0.1, "shared", "first")
    assert results(study_of(0.2, "shared", "second")) == results(study_of(0.2, "empty", "third"))


def test_shares_drawn_for_more_homes_are_not_opened_over_fewer(tmp_path, monkeypatch):
    """Home 3 fails after 11 shares of 1/12 noise were stored; later home 7 is gone: 11 shares must not open."""
    load, sick = SimulatedPopulation.load, {3}

    def broken(self, index):
        if index in sick:
            raise RuntimeError
        return load(self, index)

    monkeypatch.setattr(SimulatedPopulation, "load", broken)
    config = make_config(tmp_path, [SECURE_SUM], seeds=[0], oracle=False, task={"trees": 18})
    with pytest.raises(RunFailed):
        run_study(config)
    sick.clear()
    considered = client_app.consider

    def without_home_7(boxes, queries, ledger):
        return [client_app.Answer(box.id, None, "broken", "lost") if box.index == 7 else decision
                for box, decision in zip(boxes, considered(boxes, queries, ledger), strict=True)]

    monkeypatch.setattr(client_app, "consider", without_home_7)
    lookup = Ledger.lookup
    monkeypatch.setattr(Ledger, "lookup", lambda self, keys: {
        key: row for key, row in lookup(self, keys).items() if key[0] != "home-000008"})
    try:
        folder = run_study(config)
    except (RunFailed, ValueError):
        return
    assert values(folder, "answers")["SecureSum", 0, 1] in (0, HOMES)  # closed, or with all twelve shares


# Stops and resumes


@pytest.mark.parametrize("turns", [1, 3, 4, 5, 9, 12])
def test_a_run_stopped_at_any_turn_resumes_to_the_same_bytes(reference, tmp_path, turns):
    """Two seeds, two rounds, three strategies: twelve turns."""
    with pytest.raises(Stop):
        run_study(make_config(tmp_path, query={"rounds": 2}), progress=StopAfter(turns))
    folder = next(tmp_path.iterdir())
    assert not (folder / "metrics.csv").exists()
    assert resume_study(folder) == folder
    assert results(folder) == results(reference)
    assert charges(folder / "ledger") == charges(reference / "ledger")
    assert results(resume_study(folder)) == results(reference)  # a finished run resumes to itself


def test_what_homes_paid_is_shown_in_full_whoever_asked_first(tmp_path):
    half = {"use": "flwr.serverapp.strategy:FedAvg", "fraction_train": 0.5}
    folder = run_study(make_config(tmp_path, [half, ZONAL], seeds=[0]))
    assert spent(folder / "ledger", "local") == HOMES * 500_000
    assert values(folder, "epsilon_spent_mean")["ZonalSum", 0, 1] == 0.5


def test_a_sampling_strategy_beside_one_that_asks_all_resumes_to_the_same_bytes(tmp_path):
    half = {"use": "flwr.serverapp.strategy:FedAvg", "fraction_train": 0.5}
    whole = run_study(make_config(tmp_path / "whole", [half, ZONAL]))
    with pytest.raises(Stop):
        run_study(make_config(tmp_path / "stopped", [half, ZONAL]), progress=StopAfter(2))
    assert results(resume_study(next((tmp_path / "stopped").iterdir()))) == results(whole)


def test_a_run_that_is_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        resume_study(tmp_path)


def test_a_stale_lock_is_no_obstacle_and_a_held_one_is(tmp_path):
    config = make_config(tmp_path, [ZONAL], seeds=[0])
    folder = tmp_path / config.run_name
    folder.mkdir()
    (folder / ".lock").write_text("left by a run that was killed")
    run_study(config)
    before = results(folder)
    with open(folder / ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for again in (lambda: run_study(config), lambda: resume_study(folder)):
            with pytest.raises(ConfigError, match="in use by another run"):
                again()
    assert results(folder) == before
    assert results(resume_study(folder)) == before


FORKS = """
import json, os, sys
import fedenergy.federation.study, fedenergy.explain.task, fedenergy.report.page  # before the forks: seconds
from fedenergy import cli
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        cli.main(json.loads(line))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def environment(temporary: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "FEDENERGY_DATA": "", "TMPDIR": temporary}


class Forks:
    """`fedenergy ...` in children of one process that has imported everything: a kill a second, not one in ten."""

    def __init__(self, folder: Path) -> None:
        self.parent = subprocess.Popen([sys.executable, "-c", FORKS], cwd=folder, text=True, env=environment("/tmp"),
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.parent.stdout.readline() == "ready\n"

    def start(self, *args: str) -> Forks:
        self.parent.stdin.write(json.dumps(args) + "\n")
        self.parent.stdin.flush()
        self.child = int(self.parent.stdout.readline())
        return self

    def begun(self) -> None:
        """Wait until the run shows its first line of progress."""
        while "homes: 0/" not in self.parent.stderr.readline():
            pass

    def kill(self) -> None:
        os.kill(self.child, signal.SIGKILL)  # a child that has ended is a zombie until the parent waits, or just gone

    def wait(self) -> int:
        return int(self.parent.stdout.readline())

    def close(self) -> None:
        for pipe in (self.parent.stdin, self.parent.stdout, self.parent.stderr):
            pipe.close()
        self.parent.wait(timeout=60)


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Start `fedenergy ...` as a process in a study folder; the process and what it starts are gone in the end."""
    monkeypatch.chdir(tmp_path)
    temporary = tempfile.mkdtemp(prefix="fe", dir="/tmp")  # short, for Ray's sockets; killed runs leave their folders
    started = []

    def start(*args: str) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-m", "fedenergy.cli", *args], text=True, cwd=tmp_path,
                                        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        env=environment(temporary)))
        return started[-1]

    yield start
    for process in started:
        kill(process)
        process.stderr.close()
    shutil.rmtree(temporary, ignore_errors=True)


def begun(process: subprocess.Popen) -> bool:
    """Wait until a run shows its first line of progress; False where it ended before."""
    return any("homes: 0/" in line for line in iter(process.stderr.readline, ""))


def kill(process: subprocess.Popen) -> bool:
    """SIGKILL the process and what it started; False where it had finished."""
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return alive


def finish(process: subprocess.Popen) -> None:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


ROUNDS = 6


@pytest.fixture(scope="module")
def long_study(tmp_path_factory) -> tuple[str, Path]:
    """(TOML text, folder of an uninterrupted run) of a study of six rounds with a strategy that remembers."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "mine.py").write_text(MINE)
    config = make_config(Path("runs"), [*ALL, SMOOTH], query={"rounds": ROUNDS, "epsilon": 0.25}, task={"trees": 60})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return config.to_toml(), folder / run_study(config)


@pytest.fixture
def stopped(long_study, tmp_path):
    """The folder in which the long study will run, and a check that it ended as the uninterrupted one."""
    text, whole = long_study
    (tmp_path / "toy.toml").write_text(text)
    (tmp_path / "mine.py").write_text(MINE)
    folder = tmp_path / "runs" / whole.name

    def check() -> None:
        assert results(folder) == results(whole)
        assert charges(folder / "ledger") == charges(whole / "ledger")
        assert spent(folder / "ledger", "sum") == 2 * ROUNDS * HOMES * 250_000

    return folder, check


def next_command(folder: Path) -> tuple[str, ...]:
    return ("resume", str(folder)) if (folder / "start.json").exists() else ("run", "toy.toml", "--workers", "0")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_kill_9_at_random_moments_then_resume_ends_in_the_same_bytes(stopped, tmp_path, seed):
    folder, check = stopped
    draw, kills = random.Random(seed), 0
    forks = Forks(tmp_path)
    try:
        for number in range(9):
            forks.start(*next_command(folder))
            if number % 3:  # else from its start on
                forks.begun()
            time.sleep(draw.uniform(0, 0.3))
            forks.kill()
            kills += forks.wait() == -signal.SIGKILL
        assert kills >= 6, "the study is over before it is killed: make it longer"
        forks.start(*next_command(folder))
        assert forks.wait() == 0
    finally:
        forks.close()
    check()


@pytest.mark.slow
def test_kill_9_of_whole_command_lines_then_resume_ends_in_the_same_bytes(command, stopped):
    folder, check = stopped
    draw, kills = random.Random(4), 0
    for _ in range(8):
        process = command(*next_command(folder))
        if begun(process):
            time.sleep(draw.uniform(0, 0.25))
            kills += kill(process)
    assert kills >= 6
    finish(command(*next_command(folder)))
    check()


@pytest.mark.slow
def test_kill_9_of_driver_and_workers_then_resume_ends_in_the_same_bytes(command, stopped):
    folder, check = stopped
    process = command("run", "toy.toml", "--workers", "2")
    assert begun(process)
    while not list(folder.glob("checkpoints/*.json")):
        time.sleep(0.01)
    time.sleep(0.1)
    assert kill(process)
    finish(command("resume", str(folder)))
    check()


def test_a_second_run_beside_a_running_one_is_refused_and_its_lock_dies_with_it(command, stopped, capsys):
    folder, check = stopped
    first = command("run", "toy.toml", "--workers", "0")
    assert begun(first)
    first.send_signal(signal.SIGSTOP)
    for second in (("run", "toy.toml"), ("resume", str(folder))):
        with pytest.raises(SystemExit) as left:
            cli.main(second)
        assert left.value.code == 2
        err = capsys.readouterr().err
        assert "in use by another run" in err
        assert "Traceback" not in err
    assert kill(first)
    resume_study(folder)
    check()


def test_a_run_resumed_from_another_folder_charges_its_own_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stop):
        run_study(make_config(Path("runs"), [ZONAL], query={"rounds": 2}), progress=StopAfter(1))
    folder = next((tmp_path / "runs").iterdir())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume_study(folder)
    assert spent(folder / "ledger") == 2 * 2 * HOMES * 500_000
    assert list((tmp_path / "elsewhere").iterdir()) == []


# The closed form


def test_local_noise_costs_what_the_closed_form_says_and_secure_sum_what_a_curator_does(tmp_path):
    """quickstart's ratios on the real path: 40 homes, 8 seeds, 3 epsilons, d = 7, so n = 168 errors of each strategy.

    In units of b = 2C/epsilon the errors are independent: |Laplace| is exponential (mean 1, sd 1); |sum of N Laplace|
    is near |normal|, mean m = 2N C(2N,N)/4^N = 7.114, sd m sqrt(pi/2 - 1) = .756 m. A mean of n has the relative sd
    1/sqrt(168) = .077 and .756/sqrt(168) = .058. A ratio of independent means has sqrt(.077^2 + .058^2) = .097 (zonal
    to central) and .109 (secure to central): 3 sd are .29 and .33. The seeds are fixed: the test cannot flicker.
    """
    homes, seeds, epsilons, clip = 40, 8, (0.1, 1.05, 6.73), 50.0
    config = make_config(tmp_path, population={"count": homes}, seeds=list(range(seeds)), task={"clip": clip},
                         vary={"query.epsilon": list(epsilons)})
    rows = [line.split(",") for line in (run_study(config) / "metrics.csv").read_text().splitlines()[1:]]
    scaled = {name: np.array([float(row[11]) / (2 * clip / float(row[6])) for row in rows
                              if row[10] == "mae" and row[3] == name])
              for name in ("ZonalSum", "CentralLaplace", "SecureSum")}
    assert {len(errors) for errors in scaled.values()} == {seeds * len(epsilons)}
    zonal, central, secure = (scaled[name].mean() for name in ("ZonalSum", "CentralLaplace", "SecureSum"))
    form = 7.114  # 2 * 40 * C(80, 40) / 4**40 = 80 * 0.0889279
    assert zonal / central == pytest.approx(form, rel=3 * 0.097)
    assert secure / central == pytest.approx(1, rel=3 * 0.109)
    assert zonal == pytest.approx(form, rel=3 * 0.058)
    assert central == pytest.approx(1, rel=3 * 0.077)
    assert secure == pytest.approx(1, rel=3 * 0.077)
