"""Smoke and arithmetic of configs/forecaster_settings.toml, smaller than its toy."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fedenergy import studies
from fedenergy.errors import ConfigError
from fedenergy.progress import SilentProgress
from simulations.forecaster_settings import SETTINGS, ForecasterSettings, ranked

CONFIG = Path(__file__).parents[2] / "configs" / "forecaster_settings.toml"
TINY = ForecasterSettings(name="tiny", homes=5, steps=24 * 18, rounds=2, seeds=(0,), liars=0.2, push=1.0,
                          local_steps=5, names=("FedAvg", "FedMedian"))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return studies.run(TINY, studies.Place(out=str(tmp_path_factory.mktemp("settings"))), SilentProgress())


def test_every_strategy_is_scored_in_every_setting(done):
    table = done.table
    assert table.groupby("setting")["strategy"].apply(set).to_dict() == {name: {"FedAvg", "FedMedian"} for name in SETTINGS}
    assert (table[["rmse", "mae", "rmse_no_change"]] > 0).all().all()
    liars = table[table["setting"] == "liars"].set_index("strategy")["rmse"]
    like = table[table["setting"] == "like"].set_index("strategy")["rmse"]
    assert liars["FedAvg"] > 1.2 * like["FedAvg"]        # one home of five lies: the mean follows, the median does not
    assert liars["FedMedian"] < 1.2 * like["FedMedian"]
    metrics = pd.read_csv(done.folder / "metrics.csv")
    assert tuple(metrics) == studies.HEADER
    assert set(metrics["trust"]) == {"open"}
    assert "Not private" in done.page.read_text()


def test_it_goes_on_where_it_stopped(done):
    again = studies.resume(done.folder, SilentProgress())
    pd.testing.assert_frame_equal(again.table, done.table)


def test_the_table_ranks_by_rmse_within_a_setting():
    one = {"mae": 1.0, "mae_worst_tenth": 1.0, "train_loss": 1.0, "rmse_no_change": 2.0}
    rows = pd.DataFrame([{"setting": setting, "strategy": name, "seed": seed, "rmse": value, **one}
                         for setting, name, seed, value in (("unlike", "A", 0, 3.0), ("unlike", "A", 1, 5.0),
                                                            ("unlike", "B", 0, 2.0), ("unlike", "B", 1, 2.0),
                                                            ("like", "A", 0, 1.0), ("like", "B", 0, 7.0))])
    table = ranked(rows)
    assert table["setting"].tolist() == ["like", "like", "unlike", "unlike"]
    assert table["strategy"].tolist() == ["A", "B", "B", "A"]
    assert table["rmse"].tolist() == [1.0, 7.0, 2.0, 4.0]
    assert table["rmse_sd"].tolist()[2:] == pytest.approx([0.0, 2**0.5])


def test_the_config_is_checked_and_has_a_toy(tmp_path):
    study, place = studies.load(CONFIG, out=str(tmp_path))
    rows = dict(study.check(place))
    assert len(rows["strategies"].split(", ")) == 11
    toy, _ = studies.load(CONFIG, out=str(tmp_path), quick=True)
    assert toy.homes < study.homes
    assert toy.name.endswith("-quick")


@pytest.mark.parametrize(("change", "words"), [("homes=0", "homes = 0"), ("liars=0.9", "liars = 0.9"),
                                               ('names=["FedAvg", "Nobody"]', "names: 'Nobody' is unknown"),
                                               ("seeds=[1, 1]", "seeds = "), ("steps=100", "records of 100 steps")])
def test_mistakes(change, words):
    with pytest.raises(ConfigError, match=words):
        studies.load(CONFIG, sets=[change])
