"""`fedenergy synthesise`: the command, its file, its mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from fedenergy.cli_synthesise import read_config, synthesise
from fedenergy.errors import ConfigError, RunFailed

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
    population, plan, _ = read_config(config)
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
    root = Path(__file__).parents[1]
    for name in ("source", "tradeoff", "equal_epsilon"):
        population, plan, _ = read_config(root / f"configs/synthesis_{name}.toml")
        assert len(population) >= 145
        assert plan.mode == "curator"


PRIVATE = """
[population]
use = "fedenergy:simulate_households"
count = 8
steps = 168
[synthesis]
mode = "private"
clusters = 1
sizes = 1
[synthesis.private]
epsilon = 2.0
delta = 1e-5
steps = 1
noise = "secure"
"""


@pytest.mark.parametrize(("added", "words"), [
    ("[agreement]\ncap = 0.1", r'no place for "agreement" \(takes: population, synthesis, .*holdout.*synthesis.agreement'),
    ('[privacy]\nnoise = "secure"', r'no place for "privacy" .*noise in \[synthesis.private\]'),
    ("[bogus]\nx = 1", 'no place for "bogus"'), ("[populations]\nx = 1", 'Did you mean "population"'),
    ('[ledger]\nfolder = "x"', r'\[ledger\] .*no argument "folder" .*takes: path'),
    ('[ledger]\npath = "postgresql://me@host/charges"', "a data base, and synthesise keeps its charges in a folder")])
def test_a_key_that_has_no_effect_is_refused_in_a_study_too(tmp_path, added, words):
    root = Path(__file__).parents[1]
    path = tmp_path / "a.toml"
    text = (root / "configs/synthesis_private.toml").read_text()
    path.write_text(text)
    read_config(path)
    path.write_text(f"{text}\n{added}\n")
    with pytest.raises(ConfigError, match=words):
        read_config(path)


def test_a_seed_in_the_config_is_refused_since_the_option_gives_it(config):
    config.write_text("seed = 3" + CONFIG)
    with pytest.raises(ConfigError, match=r'no place for "seed" .*--seed N'):
        read_config(config)


def test_a_ledger_where_no_home_is_asked_is_refused(config):
    config.write_text(CONFIG + '[ledger]\npath = "x"\n')
    with pytest.raises(ConfigError, match="asks no home, so nothing is charged"):
        read_config(config)


def test_secure_noise_a_deleted_ledger_is_missed(tmp_path):
    config, out = tmp_path / "a.toml", tmp_path / "s.csv"
    config.write_text(PRIVATE)
    command = (config, "--homes", 5, "--out", out)
    assert run(*command).exit_code == 0
    first = out.read_bytes()
    assert run(*command).exit_code == 0
    assert out.read_bytes() == first
    shutil.rmtree(tmp_path / "s.csv.ledger")
    found = run(*command)
    assert isinstance(found.exception, ConfigError)
    for words in ("s.csv.about.json", "s.csv.ledger", "which is gone", "Put the ledger back"):
        assert words in str(found.exception)
    assert not (tmp_path / "s.csv.ledger").exists()
    assert out.read_bytes() == first


def test_several_files_share_the_ledger_that_the_config_names(tmp_path):
    config, shared = tmp_path / "a.toml", tmp_path / "shared"
    config.write_text(f'{PRIVATE}[ledger]\npath = "{shared}"\n')
    assert run(config, "--homes", 5, "--out", tmp_path / "a.csv").exit_code == 0
    assert run(config, "--homes", 5, "--out", tmp_path / "b.csv").exit_code == 0     # the stored answers, free
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert not list(tmp_path.glob("*.ledger"))
    assert json.loads((tmp_path / "a.csv.about.json").read_text())["ledger"] == "shared"
    found = run(config, "--homes", 5, "--out", tmp_path / "c.csv", "--seed", 1)      # new questions: nothing is left
    assert isinstance(found.exception, RunFailed)
    for words in ("8 homes refused", "have spent up to epsilon = ", "of the cap = ", "[synthesis.agreement]"):
        assert words in str(found.exception)
    config.write_text(PRIVATE)
    found = run(config, "--homes", 5, "--out", tmp_path / "a.csv")
    assert isinstance(found.exception, ConfigError)
    assert "Set [ledger] path to the former" in str(found.exception)
    config.write_text(f'{PRIVATE}[ledger]\npath = "{shared}"\n')
    shutil.rmtree(shared)
    found = run(config, "--homes", 5, "--out", tmp_path / "a.csv")
    assert isinstance(found.exception, ConfigError)
    assert "which is gone" in str(found.exception)


@pytest.mark.slow
def test_real_homes(data_dir, tmp_path):
    root = Path(__file__).parents[1]
    for name in ("london", "appliances"):
        out = tmp_path / f"{name}.parquet"
        found = run(root / f"configs/synthesis_{name}.toml", "--homes", 50, "--out", out, "--data", data_dir)
        assert found.exit_code == 0, found.output
        assert pd.read_parquet(out)["home"].nunique() == 50
