"""The command line: what each command hands on, what it prints, how it leaves. The engine is a fake."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedenergy import cli
from fedenergy.errors import ConfigError, RunFailed

ROOT = Path(__file__).parents[1]
HERE = "tests.test_config"
TEXT = f"""
name = "toy"
[population]
use = "{HERE}:Homes"
[task]
use = "{HERE}:Task"
[policy]
use = "{HERE}:Fixed"
[query]
use = "{HERE}:Query"
[[strategy]]
use = "{HERE}:ZonalSum"
"""
ROW = "toy,c{seed},simulated,{strategy},Fixed,{trust},1.0,0.0,{seed},1,mae,{value}"


def leave_a_run(folder: Path) -> Path:
    """The files of a finished run of two strategies and three seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [ROW.format(strategy=strategy, trust=trust, seed=seed, value=value + seed)
            for strategy, trust, value in (("ZonalSum", "local", 9.0), ("CentralLaplace", "curator", 3.0))
            for seed in range(3)]
    head = "run,cell,population,strategy,policy,trust,epsilon,delta,seed,round,metric,value"
    (folder / "metrics.csv").write_text("\n".join([head, *rows]) + "\n")
    (folder / "cells.csv").write_text("cell\nc0\nc1\nc2\n")
    (folder / "summary.json").write_text('{"name": "toy", "oracle": true}')
    (folder / "config.resolved.toml").write_text('name = "toy"\n')
    return folder


@pytest.fixture
def study(monkeypatch, tmp_path):
    """A fake engine in a fresh folder; `study.calls` lists what it was asked."""
    module = types.ModuleType("fedenergy.federation.study")
    module.calls, module.raises = [], None

    def run_study(config, *, progress):
        module.calls.append(("run", config))
        progress.start(2, "cells")
        progress.advance(1, refusals=3, epsilon_max=1.0)
        if module.raises is not None:
            Path(config.out, config.run_name).mkdir(parents=True)
            raise module.raises
        return leave_a_run(Path(config.out, config.run_name))

    def resume_study(folder, *, progress):
        module.calls.append(("resume", folder))
        if module.raises is not None:
            raise module.raises
        return leave_a_run(folder)

    def estimate(config):
        module.calls.append(("estimate", config))
        rows = [("epsilon 1", 1_000_000, 6_730_000, False, "household"),
                ("epsilon 9", 9_000_000, 6_730_000, True, "household"), ("oracle", None, None, False, "household")]
        return types.SimpleNamespace(homes=1_000, cells=6, rounds=1, exchanges=6, worst_case_epsilon=rows,
                                     charges=6_000,
                                     seconds=12.3, driver_mb=150.0, worker_mb=220.0, disk_mb=3.25,
                                     notes=["the oracle\nis open"])

    module.run_study, module.resume_study = run_study, resume_study
    module.place = lambda config: (Path(config.out, config.run_name), Path("ledger"), 0)
    costs = types.ModuleType("fedenergy.federation.estimate")
    costs.estimate = estimate
    monkeypatch.setitem(sys.modules, "fedenergy.federation.study", module)
    monkeypatch.setitem(sys.modules, "fedenergy.federation.estimate", costs)
    monkeypatch.setenv("FEDENERGY_DATA", "")
    monkeypatch.delenv("FEDENERGY_DEBUG", raising=False)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.chdir(tmp_path)
    Path("toy.toml").write_text(TEXT)
    return module


@pytest.fixture
def fedenergy(capsys):
    """Run a command line in this process: exit code, stdout, stderr."""
    def call(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main(args)
        shown = capsys.readouterr()
        return left.value.code, shown.out, shown.err
    return call


# Help


def test_help_teaches_every_command_and_how_to_bring_ones_own():
    shown = CliRunner().invoke(cli.app, ["--help"])
    assert shown.exit_code == 0
    for text in ("run", "compare", "resume", "check", "report", "configs/quickstart.toml", "strategies.mine:Mine",
                 "policies.mine:Cautious", "Exit codes"):
        assert text in shown.output
    assert CliRunner().invoke(cli.app, []).output == shown.output


@pytest.mark.parametrize("command", ["run", "compare", "resume", "check", "report"])
def test_every_command_shows_an_example_and_its_options(command):
    shown = CliRunner().invoke(cli.app, [command, "--help"], terminal_width=100)
    assert shown.exit_code == 0
    assert f"fedenergy {command} " in shown.output
    assert "--data" in shown.output
    if command in ("run", "compare", "check"):
        for option in ("--set", "--vary", "--seeds", "--workers", "--address", "--quick", "--fresh", "--out"):
            assert option in shown.output
        assert "at most 20 homes" in " ".join(shown.output.replace("│", " ").split())
    assert ("--metric" in shown.output) == (command == "compare")


def test_version(fedenergy):
    code, out, _ = fedenergy("--version")
    assert (code, out.split()[0]) == (0, "fedenergy")


def test_python_m_fedenergy_is_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedenergy", "--version"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("fedenergy", run_name="__main__")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("fedenergy ")


# Commands


def test_run_hands_on_the_options_then_shows_the_table_and_the_report(study, fedenergy):
    code, out, err = fedenergy("run", "toy.toml", "--set", "query.epsilon=2", "--vary", "population.count=5,6",
                               "--seeds", "4,5", "--workers", "3", "--address", "auto", "--fresh", "--out", "elsewhere")
    assert code == 0, err
    (_, config), = study.calls
    assert config.query.args == {"epsilon": 2}
    assert (dict(config.vary), config.seeds, config.fresh) == ({"population.count": (5, 6)}, (4, 5), 1)
    assert (config.engine.workers, config.engine.address, config.out) == (3, "auto", "elsewhere")
    assert "ZonalSum" in out
    page = Path("elsewhere", config.run_name, "report.html")
    assert out.splitlines()[-1] == f"Report: {page}"
    assert page.is_file()
    assert "cells: 1/2 (50%)" in err
    assert "3 refused, epsilon 1" in err


@pytest.fixture
def no_page(monkeypatch):
    """The page takes a second to draw, and is drawn in one test only."""
    from fedenergy.report import page

    monkeypatch.setattr(page, "write_report", lambda folder: Path(folder, "report.html"))


def test_compare_ranks_by_the_metric(study, fedenergy, no_page):
    code, out, err = fedenergy("compare", "toy.toml", "--metric", "mae")
    assert code == 0, err
    assert "95 % Student intervals over seeds" in out
    ranked = out[out.index("rank"):]
    assert ranked.index("CentralLaplace") < ranked.index("ZonalSum")
    code, out, err = fedenergy("compare", "toy.toml", "--metric", "maee")
    assert code == 2
    assert 'there is no metric "maee"' in err
    assert err.endswith('Did you mean "mae"?\n')


def test_resume_and_report_take_a_folder_or_its_name(study, fedenergy, no_page, tmp_path):
    folder = leave_a_run(tmp_path / "runs" / "toy-1a2b3c4d")
    assert fedenergy("resume", "toy-1a2b3c4d")[0] == 0
    assert fedenergy("resume", str(folder), "--data", str(tmp_path))[0] == 0
    assert study.calls == [("resume", Path("runs/toy-1a2b3c4d")), ("resume", folder)]
    assert os.environ["FEDENERGY_DATA"] == str(tmp_path)
    code, out, _ = fedenergy("report", "runs/toy-1a2b3c4d")
    assert code == 0
    assert "Report: runs/toy-1a2b3c4d/report.html" in out
    code, _, err = fedenergy("report", "toy-1a2b3c4e")
    assert code == 2
    assert 'Did you mean "toy-1a2b3c4d"?' in err


@pytest.mark.parametrize(("code", "answers", "left"), [("policy_error", 0, 1), ("policy_error", 2, 0), ("over_cap", 0, 0)])
def test_refusals_are_told_under_the_table(study, fedenergy, no_page, tmp_path, code, answers, left):
    """Where a broken policy refused for every home, the run has failed."""
    folder = leave_a_run(tmp_path / "runs" / "toy")
    with (folder / "metrics.csv").open("a") as file:
        row = ROW.format(strategy="ZonalSum", trust="local", seed=0, value=answers)
        file.write(row.replace(",mae,", ",answers,") + "\n")
    (folder / "summary.json").write_text(json.dumps({"name": "toy", "oracle": True, "refusals": [
        {"code": code, "reason": "policy Mine.offer\nfailed with KeyError", "count": 12}]}))
    done, out, err = fedenergy("report", str(folder))
    assert done == left
    assert f"refused 12 times: {code}: policy Mine.offer failed with KeyError" in out
    assert ("the policy itself failed in every one" in err) == bool(left)


def test_a_study_that_ran_before_says_that_stored_answers_came_again(study, fedenergy, no_page):
    assert "stored" not in fedenergy("run", "toy.toml")[2]
    assert "--fresh asks and charges anew" in fedenergy("run", "toy.toml")[2]


def test_report_of_an_unfinished_run_says_how_to_go_on(study, fedenergy, tmp_path):
    (leave_a_run(tmp_path / "runs" / "toy-1a2b3c4d") / "summary.json").unlink()
    code, _, err = fedenergy("report", "toy-1a2b3c4d")
    assert code == 2
    assert "fedenergy resume" in err


def test_check_shows_config_worst_case_and_estimate_and_runs_nothing(study, fedenergy, tmp_path):
    code, out, err = fedenergy("check", "toy.toml", "--seeds", "7")
    assert code == 0, err
    assert [name for name, _ in study.calls] == ["estimate"]
    assert not (tmp_path / "runs").exists()
    for text in ("seeds = [7]", f'use = "{HERE}:ZonalSum"', "6.73", "refused: above the cap", "unbounded", "household",
                 "6,000", "12 s", "150 MB", "220 MB", "note: the oracle is open"):
        assert text in out


def test_quick_is_the_toy_size(study, fedenergy, no_page):
    assert fedenergy("run", "toy.toml", "--quick", "--seeds", "1,2,3")[0] == 0
    config = study.calls[0][1]
    assert (config.population.args["count"], config.seeds) == (20, (1, 2))


@pytest.mark.parametrize("how", ["option", "environment", "config"])
def test_data_reaches_loaders_through_the_environment(study, fedenergy, no_page, tmp_path, monkeypatch, how):
    (tmp_path / "sets").mkdir()
    if how == "environment":
        monkeypatch.setenv("FEDENERGY_DATA", "sets")
    if how == "config":
        Path("toy.toml").write_text('data = "sets"\n' + TEXT)
    assert fedenergy("run", "toy.toml", *(["--data", "sets"] if how == "option" else []))[0] == 0
    assert os.environ["FEDENERGY_DATA"] == str(tmp_path / "sets")
    assert study.calls[0][1].data == "sets"


# Failures


@pytest.mark.parametrize(("args", "said"), [
    (["run", "toy.toml", "--set", "strategy.0.flor=1"],
     '[strategy] has no argument "flor" (ZonalSum takes: floor). Did you mean "floor"?'),
    (["run", "toi.toml"], 'Did you mean "toy.toml"?'), (["run", "toy.toml", "--workers", "-1"], "Invalid value"),
    (["run", "toy.toml", "--seeds", "a"], "--seeds 0,1,2"), (["run"], "Missing argument"),
    (["runn"], "Did you mean 'run'?"),
    (["run", "toy.toml", "--sett", "x=1"], "--set"), (["check", "toy.toml", "--data", "absent"], "is no folder"),
    (["resume", "absent"], "absent is no run folder"), (["report", "toy-x", "--data", "absent"], "no run folder"),
])
def test_a_mistake_is_one_line_and_exit_2(study, fedenergy, args, said):
    code, out, err = fedenergy(*args)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert said in err
    assert study.calls == []


@pytest.mark.parametrize(("error", "code", "said"), [
    (ConfigError("[agreement] cap = 0.05 is below one query\nof 0.1"), 2,
     "Error: [agreement] cap = 0.05 is below one query of 0.1\n"),
    (RunFailed("round 1: 5 of 20 homes failed"), 1, "Error: round 1: 5 of 20 homes failed\n"),
    (KeyError("x"), 1, "Error: unexpected KeyError: 'x' (FEDENERGY_DEBUG=1 shows where)\n"),
])
def test_what_the_engine_raises_becomes_an_exit_code(study, fedenergy, error, code, said, monkeypatch):
    study.raises = error
    left, out, err = fedenergy("run", "toy.toml")
    assert (left, out) == (code, "")
    assert err.endswith(said)
    assert "Traceback" not in err
    monkeypatch.setenv("FEDENERGY_DEBUG", "1")
    Path("runs", study.calls[0][1].run_name).rmdir()
    left, _, err = fedenergy("run", "toy.toml")
    assert left == code
    assert "Traceback" in err


def test_an_interrupted_run_says_how_to_go_on(study, fedenergy):
    study.raises = KeyboardInterrupt()
    code, _, err = fedenergy("run", "toy.toml")
    assert code == 130
    name = study.calls[0][1].run_name
    assert err.splitlines()[-1] == f"Interrupted; go on with: fedenergy resume runs/{name}"
    assert fedenergy("resume", name)[0] == 130


def test_the_process_leaves_with_2_and_one_line(tmp_path):
    (tmp_path / "toy.toml").write_text("[quary]\nepsilon = 1\n" + TEXT.replace('name = "toy"', ""))
    done = subprocess.run([sys.executable, "-m", "fedenergy.cli", "check", "toy.toml"], cwd=tmp_path, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT), "FEDENERGY_DATA": ""})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert 'the config has no table "quary"' in done.stderr
    assert 'Did you mean "query"?' in done.stderr


def test_help_loads_nothing_heavy():
    code = ("import sys\nfrom fedenergy import cli\ntry:\n    cli.main(['--help'])\nexcept SystemExit as left:\n"
            "    assert left.code == 0, left\n"
            "heavy = {'numpy', 'pandas', 'scipy', 'flwr', 'ray', 'torch', 'matplotlib'} & set(sys.modules)\n"
            "assert not heavy, heavy\n")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
                   env={**os.environ, "PYTHONPATH": str(ROOT)})
