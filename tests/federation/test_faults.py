"""Faults under a study: a full disk, a torn log, a config that was edited, a ledger that cannot be."""

from __future__ import annotations

import errno
import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from fedenergy import cli
from fedenergy.box.box import open_ledger
from fedenergy.box.ledger import LedgerUnavailable
from fedenergy.box.ledger_sqlite import SqliteStore
from fedenergy.box.receipts import ReceiptLog
from fedenergy.config import parse
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import campaign
from fedenergy.federation.failures import note_inside, noted_inside
from fedenergy.federation.study import resume_study, run_study
from tests.federation.test_study import CENTRAL, SECURE_SUM, ZONAL, charges, results

MASKED = {"use": SECURE_SUM, "mode": "protocol", "tau": 0.8}


@pytest.fixture(autouse=True)
def fresh():
    yield
    open_ledger.cache_clear()


def config(out: Path, strategies=(ZONAL,), **changes):
    document = {"name": "faulty", "seeds": [5], "out": str(out), "oracle": False,
                "population": {"use": "tests.federation.helpers:Planted", "count": 10},
                "task": {"use": "tests.federation.helpers:Sums", "clip": 120.0}, "engine": {"workers": 0},
                "query": {"epsilon": 1.0, "rounds": 2}, "agreement": {"cap": 6.0},
                "strategy": [{"use": item} if isinstance(item, str) else item for item in strategies]}
    return parse({**document, **changes})


def no_room(*args, **more):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_row(*args):
    raise LedgerUnavailable("ledger file 37.sqlite cannot be used now (disk full): nothing was revealed, ask again")


def the_only_run(out: Path) -> Path:
    return next(path for path in out.iterdir() if (path / "start.json").exists())


FAULTS = {"receipts": (ReceiptLog, "append", no_room), "rows": (SqliteStore, "add", no_row),
          "reads": (SqliteStore, "cells", no_row)}


def breaks_later(patch, fault: str, after: int = 0) -> None:
    """From the call `after` on, the ledger's call fails."""
    owner, name, raises = FAULTS[fault]
    sound, calls = getattr(owner, name), []

    def call(self, *args):
        calls.append(1)
        return sound(self, *args) if len(calls) <= after else raises()
    patch.setattr(owner, name, call)


# -- a full disk under the ledger --------------------------------------------------------------------------------------

@pytest.mark.parametrize(("nodes", "strategy"), [
    *(("homes", one) for one in (ZONAL, CENTRAL, SECURE_SUM, MASKED)),
    *(("shards", one) for one in (ZONAL, CENTRAL, SECURE_SUM))], ids=str)
@pytest.mark.parametrize(("fault", "after"), [("receipts", 4), ("rows", 4), ("reads", 0)])
def test_a_full_ledger_stops_the_run_and_resume_ends_in_the_same_bytes(nodes, strategy, fault, after, tmp_path):
    engine = {"engine": {"workers": 0, "nodes": nodes}}
    whole = run_study(config(tmp_path / "whole", [strategy], **engine))
    open_ledger.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        breaks_later(patch, fault, after)
        with pytest.raises(RunFailed, match=r"\d+ of 10 homes failed in round 1 of .* the first error: household \S+, .*"
                                            r"nothing was revealed[;,] ask again.*\(run folder: "):
            run_study(config(tmp_path / "full", [strategy], **engine))
    folder = the_only_run(tmp_path / "full")
    assert not list(folder.glob("checkpoints/*.json"))
    open_ledger.cache_clear()
    assert results(resume_study(folder)) == results(whole)
    assert charges(folder / "ledger") == charges(whole / "ledger")


@pytest.mark.parametrize("strategy", [ZONAL, CENTRAL])
def test_homes_without_a_ledger_are_failures_that_may_be_allowed(strategy, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        breaks_later(patch, "rows")
        folder = run_study(config(tmp_path, [strategy], engine={"workers": 0, "max_failures": 1.0}))
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    counts = {(row[-2], row[-3]): float(row[-1]) for row in rows if row[-2] in ("answers", "refusals", "failures")}
    assert counts["failures", "1"] == 10
    assert counts["answers", "1"] == counts["refusals", "1"] == 0


def test_a_full_disk_at_the_oracles_question_is_told_with_its_reason(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        breaks_later(patch, "rows")
        with pytest.raises(RunFailed, match=r"oracle's question failed in 10 of 10 homes.*the first error: .*disk full"):
            run_study(config(tmp_path, oracle=True))


# -- a full disk elsewhere ---------------------------------------------------------------------------------------------

def leave(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(args)
    return left.value.code


def test_a_full_disk_is_told_with_the_file_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    (tmp_path / "toy.toml").write_text(config(tmp_path / "runs").to_toml())
    with pytest.MonkeyPatch.context() as patch:
        sync = os.fsync
        patch.setattr(campaign.os, "fsync", lambda file: no_room() if os.readlink(f"/proc/self/fd/{file}").endswith(
            ".json.tmp") and "checkpoints" in os.readlink(f"/proc/self/fd/{file}") else sync(file))
        assert leave("run", str(tmp_path / "toy.toml")) == 1
    folder = the_only_run(tmp_path / "runs")
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"Error: No space left on device: {folder}/checkpoints/\S+\.json; make room, then fedenergy resume "
                        rf"{folder}", said)
    assert leave("resume", str(folder)) == 0


def test_what_failed_before_a_run_went_on_is_not_told_as_a_refusal(tmp_path, capsys):
    (tmp_path / "toy.toml").write_text(config(tmp_path / "runs").to_toml())
    with pytest.MonkeyPatch.context() as patch:
        breaks_later(patch, "rows")
        assert leave("run", str(tmp_path / "toy.toml")) == 1
    assert "10 of 10 homes failed" in capsys.readouterr().err
    assert leave("resume", str(the_only_run(tmp_path / "runs"))) == 0
    said = capsys.readouterr().out
    assert "failed 10 times: error: ledger file 37.sqlite" in said
    assert "refused" not in said


def test_a_full_disk_outside_a_run_is_told_as_well(monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", no_room)
    assert leave("report", "x") == 1
    assert capsys.readouterr().err == "Error: No space left on device; make room, then try again\n"


# -- a torn log --------------------------------------------------------------------------------------------------------

def test_a_torn_last_line_of_the_inside_view_is_no_obstacle(tmp_path):
    limits = {"agreement": {"cap": 1.0}}  # the second round is refused, and noted
    whole = run_study(config(tmp_path / "whole", **limits))
    folder = run_study(config(tmp_path / "torn", **limits))
    path = next((folder / "inside").glob("*.jsonl"))
    os.truncate(path, path.stat().st_size - 20)
    assert len(list(noted_inside(path))) == 9
    assert results(resume_study(folder)) == results(whole)


def test_only_the_last_line_may_be_torn_and_the_next_one_is_not_glued_to_it(tmp_path):
    note_inside(tmp_path, [{"code": "a"}, {"code": "b"}])
    path = tmp_path / f"{os.getpid()}.jsonl"
    os.truncate(path, path.stat().st_size - 4)
    assert list(noted_inside(path)) == [{"code": "a"}]
    note_inside(tmp_path, [{"code": "c"}])
    assert list(noted_inside(path)) == [{"code": "a"}, {"code": "c"}]
    path.write_text('{"code": "a"\n{"code": "c"}\n')
    with pytest.raises(json.JSONDecodeError):
        list(noted_inside(path))


# -- a config that was edited ------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("old", "new"), [('noise = "simulation"', 'noise = "secure"'), ("epsilon = 1.0", "epsilon = 0.5"),
                                          ("clip = 120.0", "clip = 60.0")])
def test_a_run_is_not_resumed_with_another_config(old, new, tmp_path):
    folder = run_study(config(tmp_path))
    before, file = results(folder), folder / "config.resolved.toml"
    text = file.read_text()
    file.write_text(text.replace(old, new))
    began, now = folder.name[-8:], parse(tomllib.loads(file.read_text())).digest()[:8]
    with pytest.raises(ConfigError) as told:
        resume_study(folder)
    assert re.search(rf'began with the config {began} \(noise = "simulation"\), and config.resolved.toml is now {now} .*'
                     rf"fedenergy run {file}", str(told.value))
    assert results(folder) == before
    assert not (folder / "ledger" / "enrolment.key").exists()
    file.write_text(text.replace("workers = 0", "workers = 0 # no result depends on it"))
    assert results(resume_study(folder)) == before


def test_a_run_folder_that_does_not_name_its_config_is_not_resumed(tmp_path):
    folder = run_study(config(tmp_path))
    start = json.loads((folder / "start.json").read_text())
    (folder / "start.json").write_text(json.dumps({key: start[key] for key in ("fresh", "ledger", "started")}))
    with pytest.raises(ConfigError, match=r"an older version wrote it.*fedenergy run \S+config.resolved.toml"):
        resume_study(folder)


# -- a ledger that cannot be -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("noise", ["simulation", "secure"])
@pytest.mark.parametrize(("path", "why"), [("/proc/nope", "No such file"), ("a.toml", "File exists"),
                                           ("a.toml/ledger", "File exists")])
def test_a_ledger_that_cannot_be_made_is_told_before_anything_is_written(path, why, noise, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text("")
    with pytest.raises(ConfigError, match=rf'\[ledger\] path = "{path}" cannot be made or written: {why}.*give a folder'):
        run_study(config(Path("runs"), ledger={"path": path}, privacy={"noise": noise}, oracle=noise == "simulation"))
    assert os.listdir() == ["a.toml"]
