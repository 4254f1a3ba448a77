"""Faults under a study: a full disk, a torn log, a config that was edited, a ledger that cannot be."""

from __future__ import annotations

import errno
import json
import os
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedenergy import cli
from fedenergy.box.box import open_ledger
from fedenergy.box.ledger import Ledger, LedgerUnavailable
from fedenergy.box.ledger_sqlite import SqliteStore
from fedenergy.box.receipts import ReceiptLog
from fedenergy.config import parse
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import campaign, trust_grid
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.failures import first_error, note_inside, noted_inside, sizes_of, too_many
from fedenergy.federation.plan import plan_from_config
from fedenergy.federation.shard import Shard
from fedenergy.federation.study import resume_study, run_study
from tests.federation.helpers import Planted
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
@pytest.mark.parametrize(("fault", "after", "cap"), [
    ("receipts", 4, 6.0), ("receipts", 4, 1.0), ("rows", 4, 6.0), ("reads", 0, 6.0)])   # 1.0: filled by the first round
def test_a_full_ledger_stops_the_run_and_resume_ends_in_the_same_bytes(nodes, strategy, fault, after, cap, tmp_path):
    engine = {"engine": {"workers": 0, "nodes": nodes}, "agreement": {"cap": cap}}
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


def fails(patch, kind: str, *homes: int, error: type[BaseException] = RuntimeError) -> None:
    """Those homes raise at messages of that type."""
    sound = Shard.run

    def run(self, messages):
        answers = []
        for message in messages:
            if message.metadata.message_type == kind and flower.node_index(message.metadata.dst_node_id) in homes:
                self._client.failed(self._context(message.metadata.dst_node_id), error("no"), kind)
                answers.append(flower.reply(message, flower.CLIENT_RAISED))
            else:
                answers += sound(self, [message])
        return answers
    patch.setattr(Shard, "run", run)


def counts(folder: Path, number: int = 1) -> dict[str, float]:
    """Answers, refusals and failures of a round of a study of one strategy."""
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    return {row[-2]: float(row[-1]) for row in rows
            if row[-2] in ("answers", "refusals", "failures") and row[-3] == str(number)}


@pytest.mark.parametrize(("strategy", "kind"), [
    (CENTRAL, "train"), (SECURE_SUM, "query.accept"), (MASKED, "query.accept"), (MASKED, "query.keys"), (MASKED, "train")])
def test_failures_are_counted_alike_by_who_opens_an_answer_and_who_reads_it(strategy, kind, tmp_path):
    """The run was killed after all answers were stored and before a checkpoint: nobody is asked again."""
    with pytest.MonkeyPatch.context() as patch:
        fails(patch, kind, 3)
        folder = run_study(config(tmp_path, [strategy], engine={"workers": 0, "max_failures": 0.1},
                                  query={"epsilon": 1.0, "rounds": 1}))
    assert counts(folder) == {"answers": 9, "refusals": 0, "failures": 1}
    before = results(folder)
    for path in folder.glob("checkpoints/*.json"):
        path.unlink()
    open_ledger.cache_clear()
    assert results(resume_study(folder)) == before


def test_who_fails_is_not_hidden_by_those_that_the_simulation_makes_vanish(tmp_path):
    """Two of ten vanish; two others fail when they are asked to take part, which max_failures = 0 does not allow."""
    strategy = MASKED | {"drop_out": 0.2, "tau": 0.4}
    ids = [f"h{k}" for k in range(10)]
    gone: list[dict] = []
    with pytest.MonkeyPatch.context() as patch:
        inner = trust_grid.vanishing
        patch.setattr(trust_grid, "vanishing", lambda *a: gone.append(inner(*a)) or gone[-1])
        run_study(config(tmp_path / "sound", [strategy], query={"epsilon": 1.0, "rounds": 1}))
    vanished = {ids.index(name) for name in gone[0]}
    assert vanished
    others = sorted(set(range(10)) - vanished)[:2]
    with pytest.MonkeyPatch.context() as patch:
        fails(patch, "query.accept", *others)
        with pytest.raises(RunFailed, match="2 of 10 homes failed in round 1 of SecureSum"):
            run_study(config(tmp_path / "fails", [strategy], query={"epsilon": 1.0, "rounds": 1}))
    with pytest.MonkeyPatch.context() as patch:        # one that vanishes anyway is one failure
        fails(patch, "query.accept", *vanished)
        folder = run_study(config(tmp_path / "both", [strategy], query={"epsilon": 1.0, "rounds": 1}))
    found = counts(folder)
    assert found["failures"] == len(vanished)
    assert found["refusals"] == 0


def test_too_many_failed_offers_charge_nobody(tmp_path):
    """Offers that were made without six homes do not bind: a resumed run makes others."""
    bargain = {"negotiation": {"use": "fedenergy:Procurement", "rule": "ghosh_roth", "money": 5.0, "rounds": 4},
               "policy": {"use": "fedenergy:Auction"}, "query": {"epsilon": 1.0, "rounds": 1}}
    whole = run_study(config(tmp_path / "whole", [CENTRAL], **bargain))
    with pytest.MonkeyPatch.context() as patch:
        fails(patch, "query.negotiate", 1, 2, 3, 4)
        with pytest.raises(RunFailed, match="4 of 10 homes failed"):
            run_study(config(tmp_path / "some", [CENTRAL], **bargain))
    folder = the_only_run(tmp_path / "some")
    assert charges(folder / "ledger") == {}
    open_ledger.cache_clear()
    assert results(resume_study(folder)) == results(whole)


def test_a_share_of_failures_is_taken_as_it_is_written():
    assert not too_many(29, 100, 0.29)              # .29 * 100 is 28.999999999999996
    assert too_many(30, 100, 0.29)
    assert not too_many(1, 3, 1)
    assert too_many(1, 3, 0.0)


def test_the_first_error_is_that_of_this_round(tmp_path):
    note = {"code": "error", "reason": "RuntimeError", "phase": "train"}
    note_inside(tmp_path, [note | {"household": "h3"}])
    since = sizes_of(tmp_path)
    assert first_error(tmp_path, since) == ""
    note_inside(tmp_path, [note | {"household": "h7"}])
    assert first_error(tmp_path, since).startswith("household h7")
    assert first_error(tmp_path).startswith("household h3")


def test_whatever_a_home_raises_is_its_own_failure(tmp_path, monkeypatch):
    class Odd(BaseException):
        pass

    def load(self, index):
        if index == 3:
            raise Odd("2.71 kWh")
        return sound(self, index)
    sound = Planted.load
    monkeypatch.setattr(Planted, "load", load)
    with pytest.raises(RunFailed, match=r"1 of 10 homes failed.*household h3, Odd") as told:
        run_study(config(tmp_path))
    assert "2.71" not in str(told.value)


def test_who_was_quarantined_stays_so_when_a_run_goes_on(tmp_path):
    folder = run_study(config(tmp_path))
    (path,) = folder.glob("checkpoints/*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quarantined": [3]}))
    grid = SimpleNamespace(quarantined=set())
    again = parse(tomllib.loads((folder / "config.resolved.toml").read_text()))
    plan = plan_from_config(again, folder, folder / "ledger", 0)
    with Ledger(folder / "ledger") as ledger:
        campaign.Campaign(plan.parts[0], grid, None, path, None, None, ledger, {})
    assert grid.quarantined == {3}


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
