"""The table of private imputation runs, writes the same bytes, and reaches what it promises on London."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedenergy.privacy.noise import SimulationNoise
from simulations.private_imputation import CONFIG, FULL, REACH, Config, homes_windows, load, main, printed

TOY = Config(name="toy", datasets=("simulated",), patterns=("outage",), epsilons=(2.0,), seeds=(0, 1), test_windows=40)


def test_smoke(tmp_path):
    study, again = (main(Config(**{**vars(TOY), "out": str(tmp_path / name)})) for name in "ab")
    for name in ("metrics.csv", "cells.csv", "table.csv"):
        assert (study.folder / name).read_bytes() == (again.folder / name).read_bytes()
    metrics, cells = (pd.read_csv(study.folder / name).set_index("cell") for name in ("metrics.csv", "cells.csv"))
    assert {"dataset", "pattern", "rate", "objective", "regime", "unit"} < set(cells.columns)
    assert set(metrics.index) == set(cells.index)
    private = metrics[metrics["strategy"] == "dp_gp"].join(cells[["unit", "regime"]])
    assert len(private) == 2 * 2 * 2                                            # units, seeds, metrics
    assert set(private["regime"]) == {"true_epsilon"}
    assert study.page.stat().st_size > 10_000
    assert list((study.folder / "figures").glob("*.png"))
    assert SimulationNoise(0).stamp in study.page.read_text().lower()
    assert "dp_gp, household, ε 2" in printed(study.table)


def test_the_split_is_by_time_and_windows_with_gaps_are_left_out():
    """20 windows: the first 14 train, the last 4 test; one of the training windows has a gap."""
    series = np.arange(20 * 4.0)
    series[5] = np.nan
    train, test = homes_windows({"a": series, "b": series[:8]}, 2, 2)
    assert train.homes == ("a",) * 13 + ("b",)
    assert test.values[:, 0, 0].tolist() == [64, 68, 72, 76]


def test_the_config_is_read_and_unknown_keys_are_refused(tmp_path):
    assert len(load(CONFIG).seeds) == 5
    assert load(CONFIG, quick=True).test_windows == 300
    (tmp_path / "bad.toml").write_text("epsilon = 3\n")
    with pytest.raises(ValueError, match="epsilon"):
        load(tmp_path / "bad.toml")


@pytest.mark.data
def test_data_london_reaches_its_goal_at_epsilon_two(data_dir, tmp_path):
    config = load(CONFIG, quick=True, data=str(data_dir), out=str(tmp_path))
    study = main(Config(**{**vars(config), "epsilons": (2.0,), "units": ("window",)}))
    london = study.table[study.table["dataset"] == "london"]
    two = london[london["method"] == "dp_gp"].set_index("pattern")
    for pattern, goal in REACH.items():
        assert two.loc[pattern, "ratio"] <= goal
        assert two.loc[pattern, "mse"] <= 1.1 * london[london["method"] == FULL].set_index("pattern").loc[pattern, "mse"]
    etth1 = study.table[(study.table["dataset"] == "etth1") & (study.table["method"] == "dp_gp")]
    assert (etth1["ratio"] > 1).all()
    assert any(line.startswith("etth1") and "public rule: linear" in line for line in study.statements)
