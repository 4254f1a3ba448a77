"""Studies that name themselves: found by `use`, checked, run, resumed; cells computed once; files of the same bytes."""

from __future__ import annotations

import pandas as pd
import pytest

from fedenergy import cli, studies
from fedenergy.errors import ConfigError
from fedenergy.progress import SilentProgress

MODULE = '''
from dataclasses import dataclass, replace
import pandas as pd
from fedenergy import studies

@dataclass(frozen=True)
class Coins:
    """Counts what it computed in a file beside the run."""
    name: str = "coins"
    seeds: tuple[int, ...] = (0, 1)
    steps: int = 4
    def __post_init__(self):
        object.__setattr__(self, "seeds", tuple(self.seeds))
        if self.steps < 1:
            raise ValueError(f"steps = {self.steps} is not at least 1")
    def toy(self):
        return replace(self, steps=1)
    def check(self, place):
        return [("steps", str(self.steps))]
    def run(self, place, progress):
        folder = place.folder(self)
        def compute(seed):
            with (folder / "computed").open("a") as file:
                file.write(f"{seed} ")
            return {"mse": seed / 4}
        rows = [{"dataset": "toy", "method": "coin", "seed": seed, "epsilon": 1.0, "delta": 1e-5,
                 **studies.kept(folder, {"seed": seed}, lambda: compute(seed))} for seed in self.seeds]
        table = pd.DataFrame(rows)
        studies.write_results(folder, table, vary=["dataset"], metrics=["mse"])
        (folder / "report.html").write_text("<p>coins</p>")
        return studies.Finished(folder, folder / "report.html", table, ["two coins"])
'''


def fedenergy(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(arg) for arg in args])
    return left.value.code


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coins_study.py").write_text(MODULE)
    (tmp_path / "coins.toml").write_text('use = "coins_study:Coins"\nseeds = [0, 1]\n')
    monkeypatch.delitem(__import__("sys").modules, "coins_study", raising=False)
    return tmp_path


def test_a_study_runs_is_kept_and_goes_on(working_folder, capsys):
    assert fedenergy("check", "coins.toml", "--set", "steps=7") == 0
    assert "steps                           7" in capsys.readouterr().out
    assert not (working_folder / "runs").exists()
    assert fedenergy("run", "coins.toml") == 0
    out = capsys.readouterr().out
    assert "two coins" in out
    assert "coin" in out
    assert "report.html" in out
    (folder,) = (working_folder / "runs").iterdir()
    assert (folder / "computed").read_text() == "0 1 "
    first = {name: (folder / name).read_bytes() for name in ("metrics.csv", "cells.csv")}
    assert b",0.25\n" in first["metrics.csv"]
    assert b",0.00001," not in first["metrics.csv"]
    (folder / "metrics.csv").unlink()
    assert fedenergy("resume", folder) == 0
    assert (folder / "computed").read_text() == "0 1 ", "a finished cell was computed again"
    assert {name: (folder / name).read_bytes() for name in first} == first
    assert fedenergy("report", folder.name) == 0


def test_quick_takes_the_toy_under_its_own_name_and_seeds_make_another_run(working_folder):
    study, place = studies.load("coins.toml", quick=True)
    assert (study.steps, study.name) == (1, "coins-quick")
    other, _ = studies.load("coins.toml", seeds="5")
    assert other.seeds == (5,)
    assert len({place.folder(one) for one in (study, other, studies.load("coins.toml")[0])}) == 3


@pytest.mark.parametrize(("text", "arguments", "told"), [
    ('use = "coins_study:Coins"\nstep = 3\n', [], 'Did you mean "steps"?'),
    ('use = "coins_study:Coins"\nsteps = 0\n', [], "steps = 0 is not at least 1"),
    ('use = "coins_study:Coin"\n', [], 'Did you mean "Coins"?'),
    ('use = "coins_study:pd"\n', [], "is no study"),
    ('use = "coins_study:Coins"\nname = "../x"\n', [], "no name of a folder"),
    ('use = "coins_study:Coins"\n', ["--workers", "2"], "--workers is for studies that ask homes"),
    ('use = "coins_study:Coins"\n', ["--set", "steps"], "is not KEY=VALUE"),
    ('use = "coins_study:Coins"\n', ["--seeds", "a"], "not a list of whole numbers"),
])
def test_mistakes_are_one_line(working_folder, capsys, text, arguments, told):
    (working_folder / "coins.toml").write_text(text)
    assert fedenergy("run", "coins.toml", *arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (working_folder / "runs").exists()


def test_a_renamed_run_is_not_resumed_into_another(working_folder):
    study, place = studies.load("coins.toml")
    found = studies.run(study, place, SilentProgress())
    moved = found.folder.rename(found.folder.with_name("elsewhere"))
    with pytest.raises(ConfigError, match="not the folder of its own"):
        studies.resume(moved, SilentProgress())


def test_results_leave_out_what_was_not_run(tmp_path):
    table = pd.DataFrame([{"dataset": "a", "method": "m", "seed": 0, "epsilon": None, "mse": float("nan"), "mae": 2.0}])
    studies.write_results(tmp_path, table, vary=["dataset"], metrics=["mse", "mae"])
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].endswith(",mae,2.0")
