"""The averaging attacker: 1 / sqrt(n) without a ledger, nothing with a stored answer, an end at the cap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedenergy.config import load
from simulations import pages
from simulations.repeated_queries import (
    CONFIG,
    FRESH,
    NO_LEDGER,
    SAME,
    WHOLE,
    closed_form,
    error_of_means,
    main,
    without_ledger,
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    sets = ["population.count=3", "population.steps=100", "task.lags=[1, 24]", "task.clip=10", "query.epsilon=2",
            "query.rounds=3"]
    return main(load(CONFIG, sets=sets, out=str(tmp_path_factory.mktemp("runs"))))


def test_smoke(study):
    assert study.page.stat().st_size > 10_000
    assert {path.suffix for path in (study.folder / "figures").iterdir()} == {".svg", ".png"}
    assert (study.folder / "curves.csv").exists()
    assert set(study.claims["verdict"]) == {pages.HOLDS}


def test_the_ledgers_arms(study):
    """cap 6.73 and 2 a question: three answers, 6 spent, then refused; a stored answer costs 2 for ever."""
    arms = {name: group.set_index("questions") for name, group in study.curves.groupby("arm")}
    assert arms[SAME]["error (kWh²)"].nunique() == 1
    assert set(arms[SAME]["ε spent"]) == {2.0}
    fresh = arms[FRESH]
    assert fresh["answered"].max() == 3
    assert fresh["ε spent"].max() == 6.0
    assert fresh.loc[fresh.index >= 3, "error (kWh²)"].nunique() == 1
    assert fresh["error (kWh²)"][1] == arms[SAME]["error (kWh²)"][1], "the first fresh question is that question"
    assert set(arms[WHOLE]["ε spent"]) == {6.73}
    free = arms[NO_LEDGER]
    np.testing.assert_allclose(free["error (kWh²)"], free["closed form (kWh²)"], rtol=0.15)


def test_closed_form():
    """n = 2: b 2 C(4, 2) / 16 = .75 b; large n: 2 b / sqrt(pi n)."""
    assert closed_form(2.0, 2) == pytest.approx(1.5)
    assert closed_form(1.0, 10_000) == pytest.approx(2 / math.sqrt(math.pi * 10_000), rel=1e-4)


def test_error_of_means_by_hand():
    """Answers 3 and 1 for a truth of 1: errors 2, then |2 - 1| = 1."""
    assert error_of_means(np.array([[[3.0]], [[1.0]]]), np.array([[1.0]])).tolist() == [2.0, 1.0]


def test_without_a_ledger_every_answer_is_new():
    answers = without_ledger(np.zeros((1, 2)), 10.0, 1_000_000, 3)
    assert answers.shape == (3, 20, 2)
    assert np.unique(answers).size == answers.size
