"""Smoke: every config through the command line, every strategy in a study, every simulation without its own test."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import math
import os
import re
import tomllib
from pathlib import Path

import pytest
from flwr.serverapp.strategy import Strategy

from fedenergy import cli
from fedenergy.config import load
from fedenergy.federation.study import run_study
from tests.federation.test_study import HOMES, make_config, results, values

ROOT = Path(__file__).parents[1]
ALL_CONFIGS = sorted(ROOT.glob("configs/*.toml"))
CONFIGS = [path for path in ALL_CONFIGS if "use" not in tomllib.loads(path.read_text())]
OTHERS = [path for path in ALL_CONFIGS if path not in CONFIGS]  # studies that ask no homes (fedenergy.studies)
STRATEGIES = sorted(path for path in ROOT.glob("strategies/*.py") if path.stem != "__init__")
SIMULATIONS = sorted(path for path in ROOT.glob("simulations/**/*.py")
                     if re.search(r"^def main\(", path.read_text(), re.MULTILINE))
TESTED = "\n".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py") if path != Path(__file__))
ARGUMENTS = {  # of the strategies that cannot be made without
    "Byzantine": {"inner": "strategies.zonal_sum:ZonalSum"}, "DropCautious": {"floor": 0.1},
    "NonNegative": {"public": True}}
BENCHMARK = {"shap": ["--only", "step"]}  # the shortest part of each


def uses_real_data(config: Path) -> bool:
    use = tomllib.loads(config.read_text()).get("population", {}).get("use", "")
    return bool(use) and not use.endswith(":simulate_households")


def toy_size(config: Path) -> list[str]:
    """Options that make a config a matter of seconds: few homes, the shortest record that holds its lags and rounds."""
    document = tomllib.loads(config.read_text())
    options = ["--quick", "--seeds", "0", "--workers", "0"]
    if document.get("task", {}).get("use", "fedenergy:Explain") == "fedenergy:Explain":
        options += ["--set", "task.trees=20"]
    if document.get("query", {}).get("kind", "").startswith("train."):
        options += ["--set", "query.rounds=2"]
    options += ["--set", f"population.count={3 if uses_real_data(config) else 8}"]
    if "steps" in document["population"]:
        task, query = document.get("task", {}), document.get("query", {})
        rounds = min(2, query.get("rounds", 1))
        options += ["--set", f"query.rounds={rounds}",
                    "--set", f"population.steps={max(task.get('lags', [168])) + 48 * rounds}"]
    if math.prod(map(len, document.get("vary", {}).values())) > 6:
        options += ["--set", "vary={}"]
    return options


def fedenergy(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(args)
    return left.value.code


@pytest.fixture
def study_folder(tmp_path, monkeypatch):
    """A working folder of its own, where strategies/, simulations/ and configs/ of the checkout are found."""
    monkeypatch.syspath_prepend(str(ROOT))
    known = os.environ.get("FEDENERGY_DATA")
    monkeypatch.setenv("FEDENERGY_DATA", known or "")  # a run with --data sets it: put back in the end
    if not known:
        monkeypatch.delenv("FEDENERGY_DATA")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_checked_and_runs(config, study_folder, request, capsys):
    data = ["--data", str(request.getfixturevalue("data_dir"))] if uses_real_data(config) else []
    assert fedenergy("check", str(config), *toy_size(config), *data) == 0, capsys.readouterr().err
    assert not (study_folder / "runs").exists()
    assert fedenergy("run", str(config), *toy_size(config), *data) == 0, capsys.readouterr().err
    (folder,) = (study_folder / "runs").iterdir()
    answers = values(folder, "answers")
    labels = {name for name, _, _ in answers}
    assert len(labels) == len(tomllib.loads(config.read_text())["strategy"])
    assert all(value > 0 for value in answers.values())
    assert (folder / "report.html").stat().st_size > 10_000
    assert json.loads((folder / "summary.json").read_text())["who_sees_what"]


@pytest.mark.parametrize("config", OTHERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["full", "quick"])
def test_every_other_config_says_what_a_run_would_do(config, quick, study_folder, data_dir, capsys):
    """Runs of these take minutes even at toy size: each study's own test runs it smaller still."""
    assert fedenergy("check", str(config), *quick, "--data", str(data_dir)) == 0, capsys.readouterr().err
    assert len(capsys.readouterr().out.splitlines()) > 4
    assert not (study_folder / "runs").exists()
    module = tomllib.loads(config.read_text())["use"].partition(":")[0]
    assert module in TESTED, f"no test runs {module}"


def made_of(path: Path) -> list[type]:
    module = importlib.import_module(f"strategies.{path.stem}")
    return [item for item in vars(module).values() if inspect.isclass(item) and issubclass(item, Strategy)
            and item.__module__ == module.__name__ and not inspect.isabstract(item)]


@pytest.mark.parametrize("path", STRATEGIES, ids=lambda path: path.stem)
def test_every_strategy_file_holds_a_documented_strategy(path):
    for item in made_of(path):
        assert item.__doc__
        item(**ARGUMENTS.get(item.__name__, {}))
    assert made_of(path), f"{path.name} holds no Strategy"


def test_every_strategy_plays_a_study_beside_the_others_and_again_in_reverse(tmp_path):
    entries = [{"use": f"strategies.{path.stem}:{item.__name__}", **ARGUMENTS.get(item.__name__, {})}
               for path in STRATEGIES for item in made_of(path)
               if not isinstance(getattr(item, "kinds", None), tuple)]  # those are for training alone
    options = {"seeds": [0], "query": {"rounds": 2, "delta": 1e-6}, "agreement": {"delta": 1e-3}}  # delta: for Gaussians
    folder = run_study(make_config(tmp_path / "a", entries, **options))
    errors = values(folder, "mae")
    assert len(errors) == 2 * len(entries)
    assert all(value == value for value in errors.values())
    assert set(values(folder, "answers").values()) == {HOMES}
    again = run_study(make_config(tmp_path / "b", entries[::-1], **options))
    assert values(again, "mae") == errors
    assert results(again)[1:] == results(folder)[1:]


@pytest.mark.parametrize("path", [
    pytest.param(path, marks=pytest.mark.slow if path.parent.name == "benchmarks" else ()) for path in SIMULATIONS
], ids=lambda path: path.relative_to(ROOT / "simulations").as_posix())
def test_every_simulation_has_a_test_or_runs_here(path, study_folder, monkeypatch):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    if re.search(rf"\bfrom {re.escape(name)} import\b|\bimport {re.escape(name)}\b", TESTED):
        return
    module = importlib.import_module(name)
    first = next(iter(inspect.signature(module.main).parameters.values()))
    if "Config" in str(first.annotation):
        config = ROOT / getattr(module, "CONFIG", "configs/quickstart.toml")
        options = toy_size(config)
        sets = [value for option, value in itertools.pairwise(options) if option == "--set"]
        report = module.main(load(config, sets=sets, seeds=[0], workers=0, quick=True, out=str(study_folder / "runs")))
        assert report is not None
        assert list((study_folder / "runs").rglob("*.html"))
    elif path.parent.name == "benchmarks":
        monkeypatch.setenv("PYTHONPATH", str(ROOT))  # some measure in processes of their own
        assert "--quick" in path.read_text(), f"{name} cannot be run at toy size"
        assert module.main(["--quick", *BENCHMARK.get(path.stem, [])])
    else:
        pytest.fail(f"{name}.main takes {first}: write tests/simulations/test_{path.stem}.py")
