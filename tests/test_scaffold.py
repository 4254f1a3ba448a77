"""`fedenergy new`: the folder runs, its own tests pass, nothing is overwritten, strategies are the checkout's."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedenergy import cli, scaffold
from fedenergy.errors import ConfigError

ROOT = Path(__file__).parents[1]


def fedenergy(*args: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(arg) for arg in args])
    return left.value.code


def test_a_new_folder_passes_its_own_tests(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fedenergy("new", "my study") == 0
    assert "cd 'my study' && fedenergy run study.toml" in capsys.readouterr().out
    folder = tmp_path / "my study"
    for name in ("zonal_sum", "secure_sum", "non_private"):
        assert (folder / f"strategies/{name}.py").read_bytes() == (ROOT / f"strategies/{name}.py").read_bytes()
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=folder, env=env, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert ran.returncode == 0, ran.stdout
    assert "3 passed" in ran.stdout


def test_its_flower_app_is_complete(tmp_path):
    scaffold.new_study(tmp_path / 'a "quoted" ünï folder')
    folder = tmp_path / 'a "quoted" ünï folder'
    app = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert app["tool"]["flwr"]["app"]["config"]["root"] == str(folder.resolve())
    assert app["project"]["name"] == "a-quoted-n-folder"
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["tool"]["flwr"]["app"]["components"] == own["components"]
    assert set(app["tool"]["flwr"]["app"]["config"]) == set(own["config"])


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("precious")
    with pytest.raises(ConfigError, match="not an empty folder"):
        scaffold.new_study(tmp_path)
    assert fedenergy("new", tmp_path / "mine.py") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_an_installation_without_a_checkout_copies_what_it_installed(tmp_path, monkeypatch):
    """A wheel keeps the strategies under share/: here a stand-in for its list of files."""
    class Installed(type(Path("share/fedenergy/strategies/zonal_sum.py"))):
        def locate(self):
            return ROOT / "strategies" / self.name

    monkeypatch.setattr(scaffold, "__file__", str(tmp_path / "site-packages" / "fedenergy" / "scaffold.py"))
    monkeypatch.setattr(scaffold.metadata, "files", lambda _: [
        Installed("../../../share/fedenergy/strategies", path.name) for path in (ROOT / "strategies").glob("*.py")])
    scaffold.new_study(tmp_path / "study")
    assert (tmp_path / "study/strategies/secure_sum.py").read_bytes() == (ROOT / "strategies/secure_sum.py").read_bytes()
    monkeypatch.setattr(scaffold.metadata, "files", lambda _: None)
    with pytest.raises(ConfigError, match="install fedenergy again"):
        scaffold.new_study(tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["", ".", "afile/x", "/proc/x"])
def test_a_folder_that_cannot_be_made_is_a_mistake_in_one_line(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("x")
    assert fedenergy("new", name) == 2
    assert capsys.readouterr().err.count("\n") == 1
