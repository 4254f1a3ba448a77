"""simulations/strategies_compared.py and configs/strategies.toml at toy size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedenergy as fe
from fedenergy.config import load
from fedenergy.report.report import Report
from fedenergy.testing import check_policy
from simulations.strategies_compared import CONFIG, PerHome, comparison, main, reference_profile


def test_per_home():
    assert check_policy(PerHome(homes=["home-000001"], share=0.1)) == []
    assert PerHome(homes=["home-000001"]).cautious("home-000001")
    assert not PerHome().cautious("home-000001")
    names = [f"home-{home:06d}" for home in range(2_000)]
    assert np.mean([PerHome(share=0.1).cautious(name) for name in names]) == pytest.approx(0.1, abs=0.03)
    with pytest.raises(ValueError, match="share = 2"):
        PerHome(share=2)


def test_attacks_have_a_column_of_their_own():
    table = pd.DataFrame({"strategy": ["ZonalSum", "Byzantine(inner=a.b:ZonalSum)",
                                       "Byzantine(inner=f:Krum, share=0.2, arguments={'n': 1})"],
                          "trust": "local", "epsilon": 1.0, "answers": 50.0, "n": 5, "cosine": [0.5, 0.1, 0.2]})
    found = comparison(table)
    assert found["strategy"].tolist() == ["ZonalSum", "ZonalSum", "Krum"]
    assert found["attack"].tolist() == ["none", "some homes lie", "some homes lie, share=0.2"]


def test_the_study_runs(tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr(Report, "to_html", lambda report: pages.append(report))    # tests/report draws it: 10 s
    config = load(CONFIG, quick=True, workers=0, out=str(tmp_path), vary=["query.epsilon=6.73"], sets=[
        "population.count=8", "population.steps=240", "query.rounds=2", "task.trees=4", "task.lags=[1, 24]",
        "task.depth=2"])
    config = replace(config, seeds=(0,))
    report = main(config)
    table = pd.read_csv(report.folder / "strategies.csv")
    assert len(table) == len(config.strategies) * 2                # nobody cautious, one home
    assert set(table["answers"]) == {8.0}
    honest = table[table["attack"] == "none"]
    mixed = honest[honest["policy.homes"] != "[]"].set_index("strategy")
    assert mixed.loc["InverseVariance", "mae"] < mixed.loc["ZonalSum", "mae"]
    alike = honest[honest["policy.homes"] == "[]"].set_index("strategy")["mae"]
    assert alike["FedAvg"] == pytest.approx(alike["ZonalSum"])
    assert pages == [report]


def test_the_public_profile_is_reproducible():
    homes = fe.simulate_households(2, steps=240, seed=5)
    task = fe.Explain(lags=[1, 24], trees=4, depth=2)
    profile = reference_profile(homes, task, rounds=2)
    assert profile.shape == (7,)
    assert np.array_equal(profile, reference_profile(homes, task, rounds=2))
    assert np.abs(profile).sum() <= task.clip
