"""Nothing of a home's readings leaves it but in its envelope: byte scans, non-interference, exceptions, the network."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import socket
import sqlite3
import subprocess
import sys
import traceback
import types
import urllib.request
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedenergy.box import box as box_module
from fedenergy.box.box import open_ledger
from fedenergy.box.policy import Offer
from fedenergy.box.query import Query
from fedenergy.config import Engine, parse
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.explain import task as explain_task
from fedenergy.explain.summary import Explainer
from fedenergy.explain.task import Explain
from fedenergy.federation import client_app, records, study
from fedenergy.federation.client_app import Homes
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.strategy import ZoneStrategy
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from strategies.central_laplace import CentralLaplace
from strategies.non_private import NonPrivate
from strategies.secure_sum import SecureSum
from strategies.zonal_sum import ZonalSum
from tests import no_network
from tests.federation.helpers import Crossing, Planted, Says, Sums, Tap, all_logs, wire
from tests.federation.helpers_scan import Hit, Needles, files_in, sqlite_rows

STRATEGIES = {"local": ZonalSum, "sum": SecureSum, "curator": CentralLaplace}
TASK = Sums(clip=120.0)
EXPLAIN = Explain(lags=(1,), clip=2.0, trees=4, depth=2)
ROUNDS = 2
HALF = Says(lambda case: Offer(case.query.epsilon / 2, "half of what was asked"))


class Played:
    """A study that was run, and everything that it showed to anybody."""

    def __init__(self, folder: Path, crossings: list[Crossing], shown: dict[str, bytes]) -> None:
        self.folder, self.crossings, self.shown = folder, crossings, shown
        self.files = files_in(folder)

    def blobs(self) -> dict[str, bytes]:
        found = {f"file {name}": data for name, data in self.files.items()} | self.shown
        for number, c in enumerate(self.crossings):
            found[f"{c.way} {c.kind} {c.status} {number}"] = c.data + c.text.encode()
            if c.content is not None:  # numbers of a ConfigRecord are varints on the wire
                found[f"{c.way} {c.kind} {c.status} {number} text"] = repr(
                    {k: dict(r) for k, r in c.content.items() if k != records.ARRAYS}).encode()
        return found


@pytest.fixture
def play(tmp_path, monkeypatch, capfd):
    """play(strategies, ...) -> Played: a study through plan and campaign on a tapped LocalGrid (workers: RayGrid)."""
    monkeypatch.delenv("FEDENERGY_DEBUG", raising=False)
    taps: list[Tap] = []
    ray_logs: dict[str, bytes] = {}
    real = study.make_grid

    def tapped(plan, homes):
        taps.append(Tap(real(plan, homes)))
        return taps[-1]

    monkeypatch.setattr(study, "make_grid", tapped)

    def run(strategies, *, name="run", population=None, task=TASK, oracle=False, policy=None, rounds=ROUNDS, workers=0,
            epsilon=1.0, noise="simulation", max_failures=0.0, nodes="homes", config=None):
        explain_task._cache.clear()
        folder = tmp_path / name
        capfd.readouterr()
        with all_logs() as lines:
            if config is not None:
                folder = study.run_study(config)
            else:
                plan = plan_from_objects(population or Planted(), task, Query("appliances", epsilon, rounds),
                                         list(strategies), policy=policy, oracle=oracle, noise=noise, seeds=(5,),
                                         engine=Engine(workers=workers, nodes=nodes), name="leaks", folder=folder)
                plan = replace(plan, parts=tuple(replace(part, max_failures=max_failures) for part in plan.parts))
                study.play_plan(plan)
        shown = capfd.readouterr()
        found = {"log": "\n".join(lines).encode(), "stdout": shown.out.encode(), "stderr": shown.err.encode()}
        open_ledger(folder / "ledger").close()
        return Played(folder, taps[-1].crossings, found | ray_logs)

    run.taps, run.ray_logs = taps, ray_logs
    yield run
    open_ledger.cache_clear()


def planted(population=None, task=TASK, rounds=ROUNDS, grants=(1.0,), pairs=False) -> Needles:
    """Every reading, every S_i and clipped S_i coordinate, every grid integer of a study; pairs: where bytes differ from
    run to run, single 32-bit words would be met by chance."""
    population = population or Planted()
    found: dict[str, list] = {"reading": [], "S": [], "clipped": [], "z": []}
    grid = NoiseGrid(task.clip)
    for index in range(len(population)):
        home = population.load(index)
        found["reading"] += [home.readings.ravel(), *home.readings.T, home.total]
        for window in task.windows(population, rounds, "next_window"):
            rows = slice(*window.rows)
            values = task.summary(home, rows) if isinstance(task, Sums) else task.explainer.summary(home, rows).values
            found["S"].append(values)
            for grant in grants:
                z = grid.encode(values, int(grid.bound * grant))
                found["clipped"].append(grid.decode(z))
                found["z"].append(z)
    return Needles({what: np.concatenate(values) for what, values in found.items()}, pairs=pairs)


def test_the_planted_homes_are_what_the_scan_needs():
    grid = NoiseGrid(TASK.clip)
    windows = TASK.windows(Planted(), ROUNDS, "next_window")
    over = [grid.was_clipped(TASK.summary(Planted().load(index), slice(*window.rows)))
            for index in range(3) for window in windows]
    assert any(over)
    assert not all(over)
    assert np.array_equal(Planted().load(1).readings, Planted().load(1).readings)
    assert not np.array_equal(Planted().load(1).readings, Planted().load(2).readings)


# -- the scan finds what it should -------------------------------------------------------------------------------------

X = 1.2345678901234567


@pytest.mark.parametrize("data", [
    np.float64(X).tobytes(), np.array(X, ">f8").tobytes(), b"x" + np.float64(-X).tobytes()[::-1],
    np.float32(X).tobytes(), b"..." + np.array(X, ">f4").tobytes(), repr(X).encode(), f"{X:.6g}".encode(),
    f"{X:.9g}".encode(), f"-{X:.12f} kWh".encode(), f"{X:.6e}".encode(), str(np.float32(X)).encode(), X.hex().encode(),
    np.float64(X).tobytes().hex().encode()], ids=lambda data: data[:20].hex())
def test_the_scan_knows_every_form_of_a_float(data):
    needles = Needles({"x": np.array([X, -X])})
    assert {hit.what for hit in needles.scan({"there": b"\0\1\2" + data + b" end"})} == {"x"}
    assert not Needles({"x": np.array([1.2345778])}).scan({"there": data})


def test_the_scan_opens_what_is_packed(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.array([0.0, X]))
    pq.write_table(pa.table({"x": [0.5, X]}), tmp_path / "b.parquet")
    with sqlite3.connect(tmp_path / "c.sqlite") as sql:
        sql.execute("CREATE TABLE t (x, y)")
        sql.execute("INSERT INTO t VALUES (?, ?)", (X, zlib.compress(b"abc" + np.float64(X).tobytes())))
    sql.close()
    (tmp_path / "d.json").write_text(json.dumps({"a": base64.b64encode(np.array([1.0, X]).tobytes()).decode()}))
    (tmp_path / "e.bin").write_bytes(np.array([2_000_003], ">i8").tobytes())
    (tmp_path / "f.txt").write_text("z = -2000003;")
    hits = Needles({"x": np.array([X]), "z": np.array([2_000_003])}).scan(files_in(tmp_path))
    assert {(hit.place, hit.what) for hit in hits} == {
        ("a.npz", "x"), ("b.parquet", "x"), ("c.sqlite", "x"), ("d.json", "x"), ("e.bin", "z"), ("f.txt", "z")}


# -- whole studies -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("policy", [None, HALF], ids=["as asked", "half"])
@pytest.mark.parametrize("trust", ["local", "sum"])
def test_nothing_planted_leaves_a_home_under_local_and_sum(trust, policy, play):
    played = play([STRATEGIES[trust]], policy=policy)
    needles = planted(grants=(1.0, 0.5))
    assert needles.scan(played.blobs()) == set()
    assert len([c for c in played.crossings if c.status == "envelope" and c.way == "in"]) == 3 * ROUNDS
    assert {"file metrics.csv", "file summary.json", "file checkpoints/all-seed5.json"} <= set(played.blobs())
    assert any(name.startswith("ledger/receipts/") for name in played.files)
    assert any(name.endswith(".sqlite") for name in played.files)


def test_under_curator_planted_numbers_are_in_the_deposits_alone(play):
    played = play([CentralLaplace])
    hits = planted().scan(played.blobs())
    assert {hit.what for hit in hits} == {"z"}  # clipped, on the grid; no reading and no unclipped S
    assert {re.sub(r" \d+$", "", hit.place) for hit in hits} == {"in train envelope"}
    deposits = [c for c in played.crossings if c.way == "in" and c.status == "envelope"]
    assert len(deposits) == len({hit.place for hit in hits}) == 3 * ROUNDS


def test_all_three_modes_side_by_side_leak_no_more(play):
    played = play(STRATEGIES.values())
    assert {re.sub(r" \d+$", "", hit.place) for hit in planted().scan(played.blobs())} == {"in train envelope"}
    crossed = [c.data for c in played.crossings if c.way == "in" and c.status == "envelope"]
    assert len(crossed) == 3 * 3 * ROUNDS
    trusted = {"local": "<f8", "sum": "<u8", "curator": "<i8"}
    for code in trusted.values():
        assert sum(f"'descr': '{code}'".encode() in data for data in crossed) == 3 * ROUNDS


@pytest.mark.parametrize("trust", ["local", "sum"])
def test_real_explanations_leak_nothing(trust, play):
    played = play([STRATEGIES[trust]], task=EXPLAIN)
    needles = planted(task=EXPLAIN)
    assert needles.whole
    assert needles.scan(played.blobs()) == set()


def test_secure_noise_leaks_nothing(play):
    assert planted(pairs=True).scan(play([ZonalSum, SecureSum], noise="secure").blobs()) == set()


def test_a_study_from_a_config_leaks_nothing(play, tmp_path):
    config = parse({
        "name": "leaks", "seeds": [5], "oracle": False, "out": str(tmp_path / "runs"),
        "population": {"use": "tests.federation.helpers:Planted"}, "task": {"use": "tests.federation.helpers:Sums"},
        "query": {"epsilon": 1.0, "rounds": ROUNDS}, "engine": {"workers": 0},
        "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}, {"use": "strategies.secure_sum:SecureSum"}]})
    played = play([], config=config)
    assert planted().scan(played.blobs()) == set()
    assert played.files["config.resolved.toml"]


def test_ray_workers_leak_nothing_by_their_logs_either(play, tmp_path, monkeypatch):
    """Messages as before, and every file of Ray's own session folder, before it is removed."""
    from fedenergy.federation import ray_grid

    if "ray" in sys.modules:  # of an earlier module of this process: Ray keeps the first session's token
        from ray._raylet import AuthenticationTokenLoader

        AuthenticationTokenLoader.instance().reset_cache()
    folders: list[str] = []
    real = ray_grid.tempfile.mkdtemp
    monkeypatch.setattr(ray_grid, "tempfile", types.SimpleNamespace(
        mkdtemp=lambda **options: folders.append(real(**options)) or folders[-1]))
    closing = Tap.close

    def close(tap):
        play.ray_logs |= {f"ray {name}": data for name, data in files_in(Path(folders[0])).items()}
        closing(tap)

    monkeypatch.setattr(Tap, "close", close)
    played = play(STRATEGIES.values(), workers=1)
    assert any(name.startswith("ray ") and "worker" in name for name in played.shown)
    hits = planted().scan(played.blobs())
    assert {re.sub(r" \d+$", "", hit.place) for hit in hits} == {"in train envelope"}
    local = play(STRATEGIES.values(), name="local")
    assert [(c.way, c.node, c.kind, c.data) for c in local.crossings] \
        == [(c.way, c.node, c.kind, c.data) for c in played.crossings]


# -- the scan goes red -------------------------------------------------------------------------------------------------

def places(hits: set[Hit]) -> set[str]:
    return {re.sub(r" \d+$", "", hit.place) for hit in hits}


def test_a_mechanism_without_noise_is_found(play, monkeypatch):
    monkeypatch.setattr(Laplace, "release_many", lambda self, summaries, sources, granted:
                        self.grid.decode(self.deposit_many(summaries, [self.grid.bound] * len(sources))))
    hits = planted().scan(play([ZonalSum]).blobs())
    assert "clipped" in {hit.what for hit in hits}
    assert "in train envelope" in places(hits)
    assert any(place.startswith("file ledger/") for place in places(hits))
    assert "file releases.parquet" in places(hits)


def test_a_share_without_its_mask_is_found(play, monkeypatch):
    monkeypatch.setattr(box_module, "pad", lambda key, household, query, size: np.zeros(size, np.uint64))
    monkeypatch.setattr(box_module, "laplace_share", lambda source, scale, parties, size: np.zeros(size, np.int64))
    hits = planted().scan(play([SecureSum]).blobs())
    assert {hit.what for hit in hits} == {"z"}
    assert "in train envelope" in places(hits)


def test_a_gate_that_adds_a_note_is_found(play, monkeypatch):
    real = records.encode

    def leaky(envelope):
        content = real(envelope)
        content[records.ENVELOPE]["note"] = f"first reading {Planted().load(0).readings[0, 0]:.6f}"
        return content

    monkeypatch.setattr(client_app.records, "encode", leaky)
    with pytest.raises(RunFailed, match="3 of 3 homes failed"):  # decode refuses the key; the scan saw it cross
        play([ZonalSum])
    hits = planted().scan({str(n): c.data for n, c in enumerate(play.taps[-1].crossings)})
    assert {(hit.what, hit.form) for hit in hits} == {("reading", "decimal")}


def test_a_log_line_with_a_reading_is_found(play):
    class Chatty(Sums):
        def summary(self, home, rows):
            logging.getLogger("home").debug("first reading %.7g", home.readings[0, 0])
            print("S =", super().summary(home, rows).astype(np.float32).tolist())
            return super().summary(home, rows)

    hits = planted().scan(play([ZonalSum], task=Chatty(clip=120.0)).blobs())
    assert {(hit.place, hit.what) for hit in hits} >= {("log", "reading"), ("stdout", "S")}


class Diary(ZoneStrategy):
    """A strategy that keeps what it saw."""

    trust = "open"

    def combine(self, answers):
        self.seen = answers.values
        logging.getLogger("diary").info("seen %s", answers.values.tolist())
        return answers.values[:, 1].sum(axis=0)


def test_a_strategy_that_keeps_a_plain_is_found(play):
    hits = planted().scan(play([Diary], oracle=True).blobs())
    assert {"file checkpoints/all-seed5.json", "log"} <= places(hits)
    with pytest.raises(ConfigError, match="no home agrees"):
        play([Diary], name="refused", oracle=False)


# -- the oracle's inside view ------------------------------------------------------------------------------------------

def test_with_an_oracle_planted_numbers_are_in_plains_and_nowhere_else(play):
    """The report's inside view of this task: zone sums only, and no home's own number in any file."""
    played = play([ZonalSum, SecureSum, NonPrivate], oracle=True)
    hits = planted().scan(played.blobs())
    assert places(hits) == {"in train envelope"}
    assert {hit.what for hit in hits} == {"S", "clipped"}
    plains = {place.split()[3] for place in {hit.place for hit in hits}}
    assert plains <= {str(n) for n, c in enumerate(played.crossings) if c.data.count(b"(2, 2)")}
    assert played.files["summary.json"].count(b"true_clipped") == 3 * ROUNDS


def test_with_an_oracle_explain_shows_one_homes_day_in_the_summary_alone(play):
    played = play([ZonalSum], task=replace(EXPLAIN), population=Planted(steps=73), oracle=True, rounds=1)
    hits = planted(Planted(steps=73), EXPLAIN, rounds=1).scan(played.blobs())
    assert places(hits) == {"in train envelope", "file summary.json"}
    shown = json.loads(played.files["summary.json"])["inside_view"]
    assert shown["household"] == "h0"
    without = play([ZonalSum], task=replace(EXPLAIN), population=Planted(steps=73), name="without", rounds=1)
    assert json.loads(without.files["summary.json"])["inside_view"] is None


# -- non-interference --------------------------------------------------------------------------------------------------

PAYLOADS = {"payload", "previous_hash"}  # a chain hashes the payload


def holds(c: Crossing, odd: int) -> bool:
    """Whether a reply carries the odd home's payload: its own envelope, or the block of its shard."""
    if c.status != "envelope" or records.ARRAYS not in c.content:
        return False
    block = c.content[records.ENVELOPE].get("households")
    return c.node == odd + 2 if block is None else f"h{odd}".encode() in block.split(b"\n")


def outside(played: Played, odd: int) -> dict[str, object]:
    """Everything but the noised payload of the odd home, and what is computed from it."""
    view: dict[str, object] = {}
    for number, c in enumerate(played.crossings):
        data = c.data
        if c.way == "in" and holds(c, odd):
            values = c.content[records.ARRAYS][records.SUMMARY]
            assert data.count(values.data) == 1
            data = data.replace(values.data, b"*" * len(values.data))
        if c.way == "out" and records.ARRAYS in c.content:  # the zone's answer so far
            values = c.content[records.ARRAYS][records.SUMMARY]
            data = data.replace(values.data, b"*" * len(values.data))
        view[f"message {number}"] = (c.way, c.node, c.kind, c.group, c.error, c.text, data)
    for name, data in played.files.items():
        path = Path(name)
        if path.name == "clock":  # the time of day
            continue
        if path.suffix == ".sqlite":
            rows = sqlite_rows(data)
            view[f"rows {name}"] = [
                (table, tuple(len(v) if isinstance(v, bytes) and (name.endswith("zone.sqlite") or row[0] == f"h{odd}")
                              else v for v in row)) for table, row in rows]
        elif path.suffix == ".log":
            view[f"lines {name}"] = [len(line) for line in data.split(b"\n")]
        elif path.suffix == ".parquet":
            table = pq.read_table(io.BytesIO(data)).to_pydict()
            view[name] = [row for row in zip(*(table[k] for k in sorted(table)), strict=True) if f"h{odd}" not in row]
        elif path.suffix == ".npz":
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                keep = file["household"] != f"h{odd}"
                view[name] = [(k, file[k].dtype.str, file[k].shape, file[k][keep].tobytes()) for k in file.files]
        elif name in ("start.json", "summary.json"):
            view[name] = {k: v for k, v in json.loads(data).items()
                          if k not in ("started", "seconds", "ledger", "zones", "zone_answers")}
        elif path.parts[0] == "checkpoints":
            state = json.loads(data)
            view[name] = {k: v for k, v in state.items() if k not in ("arrays", "strategies", "zones", "answers")}
            view[f"{name} shape"] = sorted(state["arrays"]), sorted(state["strategies"])
        elif path.parts[0] == "inside":
            view["inside"] = sorted(data.splitlines())  # the file is named after the process
        else:
            view[name] = data  # metrics.csv, cells.csv, versions.json, receipts' locks, ...
        if path.suffix not in (".parquet", ".npz", ".json") and path.parts[0] != "inside":
            view[f"size {name}"] = len(data)
    return view | {name: data for name, data in played.shown.items() if not name.startswith("ray ")}


@pytest.mark.parametrize("how", ["other", "constant", "large", "missing"])
def test_other_data_change_the_noised_payload_and_nothing_else(how, play):
    """The same noise tape and public state; home 1 has other readings, none that vary, huge ones, or hardly any."""
    first = play(STRATEGIES.values(), name="first")
    second = play(STRATEGIES.values(), name="second", population=Planted(odd=(1, how)))
    one, two = outside(first, 1), outside(second, 1)
    assert one.keys() == two.keys()
    for name in one:
        assert one[name] == two[name], name
    payloads = [[c.content[records.ARRAYS][records.SUMMARY].data for c in run.crossings
                 if c.node == 3 and c.way == "in" and c.status == "envelope"] for run in (first, second)]
    assert all(a != b for a, b in zip(*payloads, strict=True))  # the test could have failed
    assert len(payloads[0]) == 3 * ROUNDS


def test_non_interference_can_fail(play, monkeypatch):
    monkeypatch.setattr(Homes, "shows_inside", True)  # a box that logs its notes although there is no oracle

    class Counts(Sums):
        def summaries(self, boxes, queries):
            found = super().summaries(boxes, queries)
            return [(values, f"{np.isnan(box.load().total).sum()} readings are missing")
                    for box, (values, _) in zip(boxes, found, strict=True)]

    first = play([ZonalSum], name="first", task=Counts(120.0))
    second = play([ZonalSum], name="second", task=Counts(120.0), population=Planted(odd=(1, "missing")))
    one, two = outside(first, 1), outside(second, 1)
    assert {name for name in one if one[name] != two[name]} == {"inside", "summary.json"}


@pytest.mark.parametrize("how", ["other", "large"])
def test_other_data_explained_change_the_noised_payload_and_nothing_else(how, play):
    runs = [play(STRATEGIES.values(), name=f"run{n}", task=EXPLAIN, population=Planted(odd=odd))
            for n, odd in enumerate([None, (1, how)])]
    one, two = (outside(run, 1) for run in runs)
    assert one == two


@pytest.mark.parametrize("how", ["constant", "missing"])
def test_notes_on_the_data_stay_in_the_inside_log(how, play):
    runs = [play([ZonalSum], name=f"run{n}", task=EXPLAIN, population=Planted(odd=odd))
            for n, odd in enumerate([None, (1, how)])]
    one, two = (outside(run, 1) for run in runs)
    assert {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)} <= {"inside"}


# -- exceptions --------------------------------------------------------------------------------------------------------

def told(error: BaseException) -> bytes:
    return "".join(traceback.format_exception(error)).encode()


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
@pytest.mark.parametrize("where", ["summary", "load"])
def test_an_exceptions_text_never_leaves_the_home(where, trust, play):
    population = Planted(odd=(1, "broken")) if where == "load" else Planted()
    task = replace(TASK, fails=1) if where == "summary" else TASK
    needles = planted()
    if where == "load":  # home 1 cannot be loaded at all: its readings are those in the exception's text
        with pytest.raises(ValueError) as raised:
            population.load(1)
        needles = Needles({"reading": np.array([float(x) for x in re.findall(r"\d\.\d+", str(raised.value))])})
        assert needles.scan({"text": str(raised.value).encode()})
    played = play([STRATEGIES[trust]], population=population, task=task, max_failures=1.0, rounds=1)
    blobs = played.blobs()
    allowed = {"in train envelope"} if trust == "curator" else set()
    assert places(needles.scan(blobs)) <= allowed
    errors = [c for c in played.crossings if c.error]
    assert [(c.node, c.text) for c in errors] == [(3, "")]
    inside = b"".join(data for name, data in played.files.items() if name.startswith("inside/"))
    assert b"Error at helpers.py:" in inside  # type and place are kept
    with pytest.raises(RunFailed, match="1 of 3 homes failed") as failed:
        play([STRATEGIES[trust]], name="strict", population=population, task=task, rounds=1)
    assert needles.scan({"the error": told(failed.value)}) == set()


def test_debugging_prints_the_exception(play, monkeypatch):
    """The test above can fail: with FEDENERGY_DEBUG=1 the text is on stderr, and only there."""
    play([ZonalSum], max_failures=1.0, rounds=1, name="warm")
    monkeypatch.setenv("FEDENERGY_DEBUG", "1")
    played = play([ZonalSum], task=replace(TASK, fails=1), max_failures=1.0, rounds=1)
    assert places(planted().scan(played.blobs())) == {"stderr"}


def test_a_value_error_of_the_explainer_is_kept_without_its_text(play, monkeypatch):
    def fails(self, home, rows=None):
        raise ValueError(f"label {home.readings[0, 0]!r} is not finite")

    needles = planted(task=EXPLAIN)
    monkeypatch.setattr(Explainer, "summary", fails)
    assert needles.scan(play([ZonalSum], task=EXPLAIN).blobs()) == set()


# -- the network -------------------------------------------------------------------------------------------------------

OUTSIDE = ("8.8.8.8", "192.0.2.1", "10.0.0.1", "0.0.0.0", "2001:db8::1", "example.org")


@pytest.mark.parametrize("host", OUTSIDE)
def test_nothing_connects_outside_loopback(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with no_network.expected() as seen:
        for way in ("connect", "connect_ex"):
            with socket.socket(family) as sock, pytest.raises(no_network.NetworkDenied):
                getattr(sock, way)((host, 80))
        if host != "example.org":
            with socket.socket(family, socket.SOCK_DGRAM) as sock, pytest.raises(no_network.NetworkDenied):
                sock.sendto(b"x", (host, 53))
        with pytest.raises(no_network.NetworkDenied):
            socket.create_connection((host, 80), timeout=1)
        with pytest.raises(no_network.NetworkDenied):
            urllib.request.urlopen(f"http://{f'[{host}]' if ':' in host else host}/", timeout=1)
    assert len(seen) >= 4
    assert no_network.denied == []


def test_loopback_and_unix_sockets_work(tmp_path):
    for address in (("127.0.0.1", 0), str(tmp_path / "s")):
        family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
        with socket.socket(family) as server, socket.socket(family) as client:
            server.bind(address)
            server.listen(1)
            client.connect(server.getsockname())
    assert socket.getaddrinfo("localhost", 80)


def test_a_swallowed_denial_still_fails_the_session(tmp_path):
    (tmp_path / "tests" / "sub").mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ["tests.no_network"]\n')
    (tmp_path / "tests" / "sub" / "test_sly.py").write_text(
        "import socket\n"
        "def test_sly():\n"
        "    try:\n"
        "        socket.create_connection(('192.0.2.1', 80), timeout=1)\n"
        "    except Exception:\n"
        "        pass\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path),
                           str(tmp_path / "tests" / "sub" / "test_sly.py")], capture_output=True, text=True,
                          cwd=Path(__file__).parents[2], timeout=120)
    assert done.returncode == 1, done.stdout
    assert "1 passed, 1 error" in done.stdout
    assert "192.0.2.1" in done.stdout


def test_the_wire_form_is_deterministic():
    content = records.refusal("h1", "q")
    assert wire(content) == wire(records.refusal("h1", "q"))
    assert b"refused" in wire(content)
