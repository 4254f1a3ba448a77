"""`fedenergy data inspect | convert`: what they print, how they leave."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedenergy import cli


@pytest.fixture
def meter(tmp_path):
    path = tmp_path / "meter.csv"
    path.write_text(
        "when,Verbruik kWh\n" + "".join(f"2024-01-{1 + k // 24:02d} {k % 24:02d}:00,0.{k % 7 + 1}\n" for k in range(48))
    )
    return path


def run(*args):
    with pytest.raises(SystemExit) as left:
        cli.main(["data", *map(str, args)])
    return left.value.code


def test_inspect_shows_evidence_and_questions(meter, capsys):
    assert run("inspect", meter) == 0
    out = capsys.readouterr().out
    assert "the heading 'Verbruik kWh'" in out
    assert "--tz UTC | +01:00" in out
    assert "interval         'Verbruik kWh' falls in" in out
    assert run("inspect", meter, "--tz", "UTC") == 0
    out = capsys.readouterr().out
    assert "question" not in out
    assert "nothing is open" in out


def test_convert_needs_answers(meter, tmp_path, capsys):
    out = tmp_path / "out.parquet"
    assert run("convert", meter, "--out", out) == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: meter.csv: 1 open question")
    assert "--tz" in error
    assert not out.exists()
    assert run("convert", meter, "--out", out, "--tz", "Europe/Brussels") == 0
    shown = capsys.readouterr().out
    assert "48 intervals of 60 minutes, 2023-12-31 23:00 to 2024-01-02 22:00 UTC" in shown
    assert "import" in shown
    assert out.exists()


def test_declared_channels(meter, tmp_path, capsys):
    assert run("convert", meter, "--out", tmp_path / "out.csv", "--tz", "UTC", "--channel", "Verbruik kWh=export:a:Wh",
               "--time", "when", "--step", "60") == 0
    assert "export" in capsys.readouterr().out
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == ",export,a,2024-01-01T00:00:00Z,60,0.0001,"


@pytest.mark.parametrize(
    "args", [("inspect", "absent.csv"), ("inspect",), ("convert", "absent.csv"), ("inspect", "x", "--unit")]
)
def test_mistakes_leave_with_2(args, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*args) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_line_stays_light():
    code = (
        "import sys, fedenergy.cli; heavy = {'pandas', 'pyarrow', 'torch', 'ray', 'fedenergy.households.readers.inspect'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
