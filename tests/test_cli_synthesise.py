"""`fedenergy synthesise`: the command, its file, its mistakes."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from fedenergy.cli_synthesise import read_config, synthesise
from fedenergy.errors import ConfigError

CONFIG = """
[population]
use = "fedenergy:simulate_households"
count = 12
steps = 168
[synthesis]
clusters = 1
sizes = 2
[synthesis.recipe]
seasonal = 7
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(CONFIG)
    return path


def run(*args: object):
    app = typer.Typer()
    app.command()(synthesise)
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_writes_the_file_and_says_what_it_is(config, tmp_path):
    out = tmp_path / "homes.csv"
    found = run(config, "--homes", 30, "--out", out, "--seed", 4)
    assert found.exit_code == 0, found.output
    assert "30 artificial homes from 12 homes" in found.output
    assert "epsilon = infinity" in found.output
    assert "drawn up to 3 times" in found.output
    assert pd.read_csv(out)["home"].nunique() == 30
    assert json.loads((tmp_path / "homes.csv.about.json").read_text())["seed"] == 4


def test_format_by_option(config, tmp_path):
    out = tmp_path / "homes.csv"
    assert run(config, "--homes", 5, "--out", out, "--format", "wide-csv").exit_code == 0
    assert pd.read_csv(out).shape == (5, 3 + 168)


def test_config_is_read_as_written(config):
    population, plan = read_config(config)
    assert len(population) == 12
    assert (plan.clusters, plan.sizes, plan.recipe.seasonal) == (1, 2, 7)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("clusters", "cluster", 'Did you mean "clusters"'), ("[population]", "[populatio]", 'Did you mean "population"'),
    ("seasonal = 7", "seasonals = 7", 'no key "seasonals"'), ("sizes = 2", 'mode = "public"', "mode = 'public'"),
    ("[synthesis.recipe]\nseasonal = 7", "recipe = 3", r"\[synthesis.recipe\] is a table"),
    ("seasonal = 7", "periods = 24", "periods = 24; use a list"), ("seasonal = 7", "polish = 1", "true or false"),
    ("seasonal = 7", 'periods = ["a"]', "use whole hours"),
    ("sizes = 2", 'sizes = "2"', "sizes = '2'; use a whole number"), ("sizes = 2", 'cap_kwh = "x"', "cap_kwh = 'x'"),
    ("simulate_households", "simulate_household", "Did you mean"), ("count = 12", "count = 0", "below 1")])
def test_mistakes_in_the_config(config, old, new, words):
    config.write_text(CONFIG.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        read_config(config)


def test_mistakes_in_the_arguments(config, tmp_path):
    found = run(config, "--homes", 5, "--out", tmp_path / "homes.doc")
    assert isinstance(found.exception, ConfigError)
    assert "name a file .csv or .parquet" in str(found.exception)
    with pytest.raises(ConfigError, match="no folder"):
        read_config(config, data=str(tmp_path / "none"))


def test_study_configs_are_taken_too(tmp_path):
    from pathlib import Path

    root = Path(__file__).parents[1]
    for name in ("source", "tradeoff", "equal_epsilon"):
        population, plan = read_config(root / f"configs/synthesis_{name}.toml")
        assert len(population) >= 145
        assert plan.mode == "curator"


@pytest.mark.slow
def test_real_homes(data_dir, tmp_path):
    from pathlib import Path

    root = Path(__file__).parents[1]
    for name in ("london", "appliances"):
        out = tmp_path / f"{name}.parquet"
        found = run(root / f"configs/synthesis_{name}.toml", "--homes", 50, "--out", out, "--data", data_dir)
        assert found.exit_code == 0, found.output
        assert pd.read_parquet(out)["home"].nunique() == 50
