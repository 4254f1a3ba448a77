"""`fedenergy impute` and `fedenergy imputer train | show`: what they write, print and refuse."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import fedenergy as fe
from fedenergy import cli
from fedenergy.cli_impute import app, impute

GAP, CLOCK = slice(30, 40), ["--tz", "UTC", "--stamp", "start"]


@pytest.fixture(scope="module", autouse=True)
def commands():
    """The commands, also where fedenergy.cli does not list them yet."""
    if all(group.name != "imputer" for group in cli.app.registered_groups):
        cli.app.add_typer(app)
    if all(command.callback is not impute for command in cli.app.registered_commands):
        cli.app.command()(impute)


def run(*args):
    with pytest.raises(SystemExit) as left:
        cli.main([str(arg) for arg in args])
    return left.value.code


@pytest.fixture(scope="module")
def truth():
    return fe.simulate_households(1, steps=24 * 8, seed=77).load(0).total.round(3)


@pytest.fixture
def meter(tmp_path, truth):
    """Eight days by the hour; ten hours without a value, five hours without a row."""
    stamps = pd.date_range("2024-01-01", periods=len(truth), freq="h")
    rows = [f"{stamp:%Y-%m-%d %H:%M},{'' if GAP.start <= k < GAP.stop else value}"
            for k, (stamp, value) in enumerate(zip(stamps, truth, strict=True)) if not 100 <= k < 105]
    path = tmp_path / "meter.csv"
    path.write_text("when,kwh\n" + "\n".join(rows) + "\n")
    return path


def test_impute_fills_values_and_rows_that_are_missing(meter, truth, capsys):
    before = meter.read_bytes()
    assert run("impute", meter, *CLOCK) == 0
    assert meter.read_bytes() == before
    frame = pd.read_csv(meter.with_name("meter.filled.csv"))
    assert list(frame) == ["start", "kwh", "filled", "q5", "q95"]
    assert len(frame) == len(truth)
    filled = frame["filled"] == 1
    assert filled.to_numpy().nonzero()[0].tolist() == [*range(30, 40), *range(100, 105)]
    np.testing.assert_allclose(frame["kwh"][~filled], truth[~filled])
    assert frame["q5"][~filled].isna().all()
    assert (frame["q5"] <= frame["q95"])[filled].all()
    assert frame["start"].iloc[0] == "2024-01-01T00:00:00Z"
    shown = capsys.readouterr().out
    for words in ("192 intervals of 60 minutes, 15 of them filled", "5 % and 95 % quantiles of the model's law",
                  "fitted to simulated homes only, which costs no privacy", "not this file"):
        assert words in shown


def test_declared_columns_and_options(meter, tmp_path, capsys):
    out = tmp_path / "o.csv"
    known = ["impute", meter, "--column", "kwh", "--time", "when", *CLOCK, "--out", out, "--samples", "50", "--level", "0.5"]
    assert run(*known) == 0
    first = out.read_bytes()
    assert first.splitlines()[0] == b"start,kwh,filled,q25,q75"
    assert run(*known) == 0
    assert out.read_bytes() == first
    assert run(*known, "--seed", "1", "--point", "median") == 0
    assert out.read_bytes() != first
    assert "the median where filled = 1" in capsys.readouterr().out


def test_the_clock_of_the_meter_decides_the_time_of_day(meter, tmp_path):
    means = []
    for zone in ("UTC", "+12:00"):
        out = tmp_path / f"{zone[:3]}.csv"
        assert run("impute", meter, "--tz", zone, "--stamp", "start", "--out", out) == 0
        means.append(pd.read_csv(out)["kwh"][GAP].to_numpy())
    np.testing.assert_allclose(*means, rtol=1e-5)              # local hours are the same: so is what a day looks like


@pytest.mark.parametrize(("change", "words"), [
    ([], "1 open question"), ([*CLOCK, "--model", "nowhere"], "--model nowhere: no imputer is saved there"),
    ([*CLOCK, "--column", "kW"], "no column 'kW'"), ([*CLOCK, "--point", "mode"], "--point mode"),
    ([*CLOCK, "--level", "1"], "--level 1"), ([*CLOCK, "--out", "x.parquet"], "does not end in .csv"),
    ([*CLOCK, "--out", "no/such/o.csv"], "does not exist"), ([*CLOCK, "--samples", "1"], "--samples"),
    ([*CLOCK, "--step", "7"], "7")])
def test_mistakes_are_one_line(meter, change, words, capsys, monkeypatch):
    monkeypatch.chdir(meter.parent)
    assert run("impute", meter, *change) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("Error: ")
    assert words in error
    assert not meter.with_name("meter.filled.csv").exists()


def test_files_that_cannot_be_filled(tmp_path, capsys, meter):
    assert run("impute", meter, *CLOCK, "--out", meter) == 2
    assert "meter file itself" in capsys.readouterr().err
    assert run("impute", tmp_path / "absent.csv", *CLOCK) == 2
    five = tmp_path / "five.csv"
    five.write_text("when,kwh\n" + "".join(f"2024-01-01 {k // 12:02d}:{k % 12 * 5:02d},0.{k % 7 + 1}\n" for k in range(40)))
    assert run("impute", five, *CLOCK) == 2
    assert "no packaged imputer has steps of 5 minutes" in capsys.readouterr().err
    none = tmp_path / "none.csv"
    none.write_text("when,kwh\n" + "".join(f"2024-01-01 {k:02d}:00,\n" for k in range(24)))
    assert run("impute", none, *CLOCK, "--column", "kwh", "--time", "when", "--step", "60") == 2
    assert capsys.readouterr().err.startswith("Error: none.csv")


def test_nothing_missing_is_said(tmp_path, capsys):
    whole = tmp_path / "whole.csv"
    whole.write_text("when,kwh\n" + "".join(f"2024-01-{1 + k // 24:02d} {k % 24:02d}:00,0.{k % 7 + 1}\n" for k in range(72)))
    assert run("impute", whole, *CLOCK) == 0
    assert "nothing was missing" in capsys.readouterr().out


def test_a_meter_format_of_the_readers(data_dir, tmp_path, capsys):
    """Fluvius: quarter hours, decimal commas, two clocks of autumn; blanks are missing, not 0."""
    path = data_dir / "messy" / "02_fluvius_quarterhour_decimalcomma.csv"
    out = tmp_path / "o.csv"
    assert run("impute", path, "--out", out) == 0
    frame = pd.read_csv(out)
    assert "15 minutes" in capsys.readouterr().out
    assert frame["kwh"].notna().all()
    assert (pd.to_datetime(frame["start"]).diff().dropna() == pd.Timedelta(minutes=15)).all()
    assert frame["filled"].sum() >= 1


def test_train_then_show_then_impute(meter, tmp_path, capsys):
    model = tmp_path / "runs" / "mine" / "model"
    assert run("imputer", "train", "--out", model, "--step", "60", "--homes", "4", "--days", "8", "--seed", "3") == 0
    shown = capsys.readouterr().out
    assert "no real home is in it: it costs no privacy" in shown
    assert "MSE, unseen simulated homes" in shown
    card = json.loads((model / "dp_gp.json").read_text())["card"]
    assert card["made by"].startswith("fedenergy imputer train --out")
    assert set(card["scores"]["unseen simulated homes"]) == {"points 0.3", "blocks 0.5", "outage 0.2", "outage 0.5"}
    assert run("imputer", "show", model) == 0
    assert "4 windows of 168 steps" in capsys.readouterr().out
    assert run("impute", meter, *CLOCK, "--model", model.parent) == 0          # a run folder that holds a model
    assert f"{model.parent}: no real home is in it: it costs no privacy" in capsys.readouterr().out


def test_show_lists_the_packaged_imputers(capsys):
    assert run("imputer", "show") == 0
    shown = capsys.readouterr().out
    for step in (10, 15, 30, 60):
        assert f"--step {step} " in shown


@pytest.mark.parametrize(("change", "words"), [
    (["--on", "paris"], "--on paris"), (["--on", "london"], "needs --epsilon"), (["--step", "7"], "--step 7"),
    (["--on", "london", "--epsilon", "2", "--net", "5"], "--net is for simulated homes")])
def test_bad_trainings(change, words, tmp_path, capsys):
    assert run("imputer", "train", "--out", tmp_path / "m", *change) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_train_on_real_homes_states_its_epsilon(data_dir, tmp_path, capsys):
    assert run("imputer", "train", "--out", tmp_path, "--on", "london", "--data", data_dir, "--step", "60", "--epsilon", "8",
               "--per", "window") == 0
    shown = capsys.readouterr().out
    assert "epsilon 8 at delta 1e-05 per window (replace-one" in shown
    assert "household of" in shown
    assert "seeded" not in shown
    assert "London, last" not in shown              # an error on their later days would be a statistic without noise
    assert ", windows of" not in shown
    made, windows = json.loads((tmp_path / "dp_gp.json").read_text()), 3_000
    assert int(made["card"]["trained on"].split()[0].replace(",", "")) > windows        # the whole record, not its January


def test_a_household_as_the_unit_tells_no_number_of_windows(data_dir, tmp_path, capsys):
    assert run("imputer", "train", "--out", tmp_path, "--on", "london", "--data", data_dir, "--step", "60", "--epsilon", "8",
               "--per", "household") == 0
    made = json.loads((tmp_path / "dp_gp.json").read_text())
    assert made["privacy"]["household_windows"] is None
    assert made["card"]["trained on"].startswith("windows of 168 steps of 60 minutes of ")


@pytest.mark.slow
def test_a_net_on_top_is_trained_resumed_and_used(meter, tmp_path, capsys):
    known = ["imputer", "train", "--out", tmp_path / "m", "--step", "60", "--homes", "4", "--days", "8", "--net", "30"]
    assert run(*known) == 0
    assert "with the net, 100 windows" in capsys.readouterr().out
    assert list((tmp_path / "m" / "logs").glob("*tfevents*"))
    assert (tmp_path / "m" / "training" / "training.json").exists()
    weights = next((tmp_path / "m").glob("*.safetensors")).read_bytes()
    assert run(*known) == 0
    assert weights in [path.read_bytes() for path in (tmp_path / "m").glob("*.safetensors")]
    assert run("impute", meter, *CLOCK, "--model", tmp_path / "m", "--samples", "4") == 0
    assert pd.read_csv(meter.with_name("meter.filled.csv"))["kwh"].notna().all()


def test_what_a_reader_of_the_file_must_know_is_said(tmp_path, truth, capsys):
    """Readings beyond the model's limit, and what the reader counted: both change what stands in the file."""
    when = pd.date_range("2024-01-01", periods=len(truth), freq="h", tz="UTC")
    frame = pd.DataFrame({"when": when.strftime("%Y-%m-%d %H:%M:%S"), "kwh": truth}).astype({"kwh": object})
    frame.loc[20:22, "kwh"], frame.loc[21, "kwh"] = 9.0, np.nan
    frame = pd.concat([frame, frame.iloc[[50]].assign(kwh=5.5)])
    path = tmp_path / "big.csv"
    frame.to_csv(path, index=False)
    assert run("impute", path, *CLOCK, "--column", "kwh", "--time", "when") == 0
    shown = capsys.readouterr().out
    assert "2 readings are above 6 kWh, the model's limit for 60 minutes" in shown
    assert "the reader counted 1 conflicts" in shown
