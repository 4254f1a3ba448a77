"""Strategies that fold: results to the bit those of the list of replies, in memory that does not grow with the homes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedenergy.config import parse
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import training
from fedenergy.federation.estimate import estimate
from fedenergy.federation.strategy import Folding, RunningMean
from strategies.byzantine import Byzantine
from strategies.ifca import Ifca
from strategies.running_avg import RunningAvg
from strategies.zonal_sum import ZonalSum
from tests.federation.test_grids import live_replies
from tests.forecast.helpers import Habits
from tests.forecast.test_task import NET, last, opened, train


def two() -> Ifca:
    return Ifca(clusters=2)


def outcome(report) -> tuple[bytes, dict]:
    state = json.loads((report.folder / "checkpoints" / "all-seed0.json").read_text())
    kept = {name: state[name] for name in ("arrays", "strategies", "crossings")}
    return (report.folder / "metrics.csv").read_bytes(), kept


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(training, "replies_held", lambda model_bytes, workers: 4)


@pytest.fixture
def listed(tmp_path):
    """The outcome where nobody folds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "Folding", type("Nobody", (), {}))
        patch.setattr(RunningAvg, "fold", _counted(RunningAvg.fold, folded := []))
        report = train(tmp_path / "listed", [RunningAvg, two], NET, Habits(count=10, silent=(4,)), rounds=2)
    assert len(folded) == 20
    return outcome(report)


def _counted(method, calls: list):
    def counting(self, *given):
        calls.append(1)
        return method(self, *given)
    return counting


def test_a_fold_ends_where_the_list_does_to_the_bit(tmp_path, listed, small_windows):
    report = train(tmp_path / "folded", [RunningAvg, two], NET, Habits(count=10, silent=(4,)), rounds=2)
    assert outcome(report) == listed


def test_a_fold_over_two_workers_ends_there_too(tmp_path, listed, small_windows):
    report = train(tmp_path / "folded", [RunningAvg, two], NET, Habits(count=10, silent=(4,)), rounds=2, workers=2)
    assert outcome(report) == listed


def test_a_running_mean_is_fedavgs(tmp_path):
    report = train(tmp_path, [RunningAvg, opened("FedAvg")], rounds=3)
    assert last(report, "rmse", "RunningAvg") == pytest.approx(last(report, "rmse"), rel=1e-9)


@pytest.mark.parametrize("homes", [8, 24])
def test_replies_that_exist_at_a_time_do_not_grow_with_the_homes(tmp_path, small_windows, monkeypatch, homes):
    seen = []
    with monkeypatch.context() as patch:
        alive = live_replies(patch)
        patch.setattr(RunningAvg, "fold", _watched(RunningAvg.fold, alive, seen))
        train(tmp_path, [RunningAvg], NET, Habits(count=homes), rounds=1)
    assert len(seen) == homes
    assert max(seen) <= 4 + 2  # the window; the reply that the strategy has, and the one it was made from


def _watched(method, alive, seen: list):
    def watching(self, state, reply):
        seen.append(len(alive))
        return method(self, state, reply)
    return watching


def test_a_list_does_grow(tmp_path, monkeypatch):
    seen = []
    with monkeypatch.context() as patch:
        alive = live_replies(patch)
        patch.setattr(training, "Folding", type("Nobody", (), {}))
        patch.setattr(RunningAvg, "fold", _watched(RunningAvg.fold, alive, seen))
        train(tmp_path, [RunningAvg], NET, Habits(count=24), rounds=1)
    assert max(seen) >= 24


def test_who_folds():
    assert isinstance(RunningAvg(), Folding)
    assert isinstance(Ifca(), Folding)
    for strategy in (FedAvg(), ZonalSum(), Byzantine("strategies.running_avg:RunningAvg")):
        assert not isinstance(strategy, Folding)


def reply(**arrays):
    asked = flower.instruction(RecordDict(), 2, "train", "1")
    return flower.reply(asked, RecordDict({"arrays": ArrayRecord({k: Array(v) for k, v in arrays.items()}),
                                           "metrics": MetricRecord({"num-examples": 1, "loss": float(len(arrays))}),
                                           "envelope": ConfigRecord()}))


def test_nobody_is_nothing_and_a_fold_leaves_its_replies_alone():
    assert RunningAvg().aggregate_train(1, []) == (None, None)
    one, two_ = reply(w=np.ones(2)), reply(w=np.full(2, 4.0))
    arrays, metrics = RunningAvg().aggregate_train(1, [one, two_])
    np.testing.assert_array_equal(arrays["w"].numpy(), [2.5, 2.5])
    assert dict(metrics) == {"loss": 1.0}
    np.testing.assert_array_equal(one.content["arrays"]["w"].numpy(), [1.0, 1.0])


@pytest.mark.parametrize(("second", "rule"), [
    ({"w": np.ones(3)}, "different arrays"), ({"v": np.ones(2)}, "different arrays"),
    ({"w": np.ones(2, np.float32)}, "different arrays"), ({"w": np.ones(2, np.int64)}, "floating point")])
def test_models_that_do_not_fit_are_refused(second, rule):
    mean = RunningMean()
    mean.add(reply(w=np.ones(2)).content)
    with pytest.raises(ValueError, match=rule):
        mean.add(reply(**second).content)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "all"])
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match="RunningAvg: fraction_train"):
        RunningAvg(fraction_train=wrong)


def test_check_tells_who_lists_and_how_much(tmp_path):
    config = parse({
        "name": "memory", "oracle": True, "out": str(tmp_path), "seeds": [0],
        "population": {"use": "fedenergy:simulate_households", "count": 5_000, "steps": 744, "distinct": 2},
        "task": {"use": "fedenergy:Forecast", "hidden": 1_000}, "agreement": {"classes": ["update"]},
        "query": {"kind": "train.forecast", "rounds": 1, "repeat": "same_window"},
        "strategy": [{"use": "strategies.running_avg:RunningAvg"},
                     {"use": "flwr.serverapp.strategy:FedAvg", "trust": "open"}]}).check()
    found = estimate(config)
    folds, lists = (next(note for note in found.notes if f" {word} its replies" in note) for word in ("folds", "lists"))
    assert "5,000 models" in lists
    model = sum(shape.prod() for shape in map(np.array, config.task.build().shapes(config.population.build()).values())) * 8
    assert found.driver_mb > 3e-6 * 5_000 * model
    held = int(re.search("replies, ([0-9,]+) models", folds)[1].replace(",", ""))
    assert 64 * 2**20 - model <= held * model <= 64 * 2**20
