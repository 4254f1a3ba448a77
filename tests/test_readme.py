"""The README is true: its drop-ins run, its files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
QUICK = ["--set", "population.count=6", "--set", "population.steps=300", "--set", "task.lags=[1,24]", "--seeds", "0",
         "--set", "vary={}", "--workers", "0"]


def run(folder: Path, *arguments: str) -> str:
    """fedenergy in a folder that holds mine.py, with the checkout's strategies beside it."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); from fedenergy.cli import main; main({list(arguments)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def block(word: str) -> str:
    return next(text for text in BLOCKS if word in text)


def test_the_strategy_of_the_readme_runs(tmp_path):
    text = block("class Trimmed")
    body = [line for line in text.splitlines() if line.strip() and not line.startswith(("import", "#"))]
    assert len(body) <= 15
    (tmp_path / "mine.py").write_text(text)
    out = run(tmp_path, "run", str(ROOT / "configs/quickstart.toml"), *QUICK, "--set", "strategy+=mine:Trimmed")
    assert "Trimmed" in out


def test_the_policy_of_the_readme_halves_the_spending(tmp_path):
    text = block("class Cautious")
    assert len([line for line in text.splitlines() if line.strip() and not line.startswith("#")]) <= 6
    (tmp_path / "mine.py").write_text(text)
    out = run(tmp_path, "run", str(ROOT / "configs/quickstart.toml"), *QUICK, "--set", "policy=mine:Cautious",
              "--set", "query.epsilon=2")
    assert re.search(r"ZonalSum.*\b1 ± 0|ZonalSum.*\b1(\.0+)?\s*$", out, re.MULTILINE), out


def test_check_functions_of_the_readme(tmp_path):
    (tmp_path / "mine.py").write_text(block("class Trimmed"))
    command = re.search(r'python -c "(from fedenergy.testing.*?)"', README).group(1)
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "fine", done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(set(re.findall(r"configs/[a-z_0-9]+\.toml", README))))
def test_named_configs_exist(name):
    assert (ROOT / name).is_file()


def test_the_readme_names_two_commands_first():
    screen = README.split("## ")[0]
    assert "fedenergy run configs/quickstart.toml" in screen
    assert "python -m pytest" in screen
