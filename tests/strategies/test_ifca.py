"""Ifca: the clusters are the load patterns; each home's own model is the better one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedenergy.federation.freeze import load_arrays
from fedenergy.forecast import net
from fedenergy.forecast.rows import rows_of
from fedenergy.forecast.task import Forecast
from strategies.ifca import Ifca, per_cluster, split, spread_out
from tests.forecast.helpers import Habits
from tests.forecast.test_task import last, opened, train

CLOCK = Forecast(lags=(12,), hidden=8, local_steps=20, batch=64, test_days=2, rate=0.2)
PEOPLE = Habits(count=8)


def two() -> Ifca:
    return Ifca(clusters=2)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return train(tmp_path_factory.mktemp("ifca"), [two, opened("FedAvg")], CLOCK, PEOPLE, rounds=12)


def test_homes_of_one_habit_find_together(report):
    state = json.loads((report.folder / "checkpoints" / "all-seed0.json").read_text())
    models = {name: array.numpy() for name, array in load_arrays(state["arrays"]["two"]).items()}
    chosen = []
    for index in range(len(PEOPLE)):
        rows = rows_of(PEOPLE.load(index), CLOCK.plan(PEOPLE), 0)
        losses = [net.mean_square({name: values[k] for name, values in models.items()}, rows.x, rows.y) for k in (0, 1)]
        chosen.append(int(np.argmin(losses)))
    assert len(set(chosen[::2])) == len(set(chosen[1::2])) == 1
    assert chosen[0] != chosen[1]
    assert last(report, "cluster_0", "two") == last(report, "cluster_1", "two") == 4


def test_two_models_serve_two_habits_better_than_one(report):
    assert last(report, "rmse", "two") < 0.7 * last(report, "rmse")


def test_one_cluster_is_fedavg(tmp_path):
    def single() -> Ifca:
        return Ifca(clusters=1)
    found = train(tmp_path, [single, opened("FedAvg")], CLOCK, PEOPLE, rounds=3)
    assert last(found, "rmse", "single") == pytest.approx(last(found, "rmse"), rel=1e-9)


def test_a_model_that_nobody_chose_stays():
    models = {"w": np.array([[1.0], [2.0], [3.0]])}
    after = per_cluster(models, {2: {"w": np.array([7.0])}})
    np.testing.assert_array_equal(after["w"], [[1.0], [2.0], [7.0]])


def test_a_model_that_nobody_chose_starts_again_beside_the_favourite():
    models = {"w": np.array([[1.0], [2.0], [300.0]])}
    after = split(models, {1: 2, 0: 1}, 0.1, seed=0, server_round=4)
    np.testing.assert_array_equal(after["w"][:2], models["w"][:2])
    assert 0 < abs(after["w"][2, 0] - 2.0) < 1
    assert models["w"][2, 0] == 300.0
    assert after["w"][2, 0] != split(models, {1: 2, 0: 1}, 0.1, seed=0, server_round=5)["w"][2, 0]


def test_the_start_is_reproducible_and_the_first_copy_is_the_model():
    model = {"w": np.arange(3.0), "b": np.zeros(1)}
    one, two_ = spread_out(model, 3, 0.1, 5), spread_out(model, 3, 0.1, 5)
    assert list(one) == ["w", "b"]
    np.testing.assert_array_equal(one["w"], two_["w"])
    np.testing.assert_array_equal(one["w"][0], model["w"])
    assert not np.array_equal(one["w"], spread_out(model, 3, 0.1, 6)["w"])


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"clusters": True}, {"spread": 0}, {"seed": -1}, {"fraction_train": 2}])
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match="Ifca: "):
        Ifca(**wrong)
