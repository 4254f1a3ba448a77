"""Forecast and ForecastTrees end to end: they learn, whatever the workers; homes without data; what is refused."""

from __future__ import annotations

import flwr.serverapp.strategy as flower
import numpy as np
import pytest

import fedenergy as fe
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.ledger import Ledger
from fedenergy.box.updates import Computed, UpdateSpec, make_update
from fedenergy.errors import ConfigError
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.shard import Client
from fedenergy.forecast import net
from fedenergy.forecast.task import Forecast
from fedenergy.forecast.trees import ForecastTrees
from strategies.ifca import Ifca
from strategies.scaffold import Scaffold
from tests.forecast.helpers import Habits

NET = Forecast(lags=(1, 2), hidden=8, local_steps=10, batch=32, test_days=2)
TERMS = AgreementTerms(classes=("update",))


def opened(name: str, **arguments):
    def build():
        made = getattr(flower, name)(**arguments)
        made.trust = "open"
        return made
    build.__name__ = name
    return build


def train(out, strategies=(), task=NET, homes=None, rounds=3, **known):
    query = fe.Query("train.forecast", rounds=rounds, repeat="same_window")
    strategies = list(strategies) or [opened("FedAvg")]
    return fe.compare(homes or Habits(), task, query, strategies, agreement=TERMS, out=out, **known)


def last(report, metric: str, strategy: str = "FedAvg") -> float:
    rows = report.metrics
    rows = rows[(rows["metric"] == metric) & (rows["strategy"] == strategy)]
    return float(rows.sort_values("round")["value"].iloc[-1])


@pytest.mark.parametrize(("task", "name"), [(NET, "FedAvg"),
                                            (ForecastTrees(lags=(1, 2), learning_rate=1.0, test_days=2), "FedXgbBagging")])
def test_it_learns_to_beat_no_change(tmp_path, task, name):
    report = train(tmp_path, [opened(name)], task, rounds=8)
    assert last(report, "rmse", name) < 0.8 * last(report, "rmse_no_change", name)
    rows = report.metrics[report.metrics["metric"] == "train_loss"].sort_values("round")["value"].tolist()
    assert rows[-1] < 0.5 * rows[0]


def test_errors_are_those_of_the_stored_model_on_the_last_days(tmp_path):
    """Recomputed from the checkpoint and the readings with numpy alone."""
    import json

    from fedenergy.federation.freeze import load_arrays
    from fedenergy.forecast.rows import rows_of

    report = train(tmp_path, rounds=2)
    state = json.loads((report.folder / "checkpoints" / "all-seed0.json").read_text())
    model = {name: array.numpy() for name, array in load_arrays(state["arrays"]["FedAvg"]).items()}
    squares, sizes = [], []
    for index in range(6):
        rows = rows_of(Habits().load(index), NET.plan(Habits()), 0)
        off = (np.tanh(rows.test_x @ model[net.HIDDEN] + model[net.BIAS]) @ model[net.OUT] + model[net.LEVEL] - rows.test_y)
        squares.append(np.mean((off * rows.scale) ** 2))
        sizes.append(np.mean(np.abs(off * rows.scale)))
    assert last(report, "rmse") == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-9)
    assert last(report, "mae") == pytest.approx(np.mean(sizes), rel=1e-9)
    assert last(report, "mae_worst_tenth") == pytest.approx(max(sizes), rel=1e-9)


def one_by_one(homes: Homes) -> Client:
    client = make_client(homes)
    return Client(client.app, {}, client.failed)


def test_one_message_at_a_time_gives_the_same_bytes(tmp_path, monkeypatch):
    from fedenergy.federation import study

    entries = [opened("FedAvg", fraction_train=0.5), Scaffold, Ifca]
    together = train(tmp_path / "a", entries, rounds=2, seeds=(0, 1))
    monkeypatch.setattr(study, "make_client", one_by_one)
    alone = train(tmp_path / "b", entries, rounds=2, seeds=(0, 1))
    assert (alone.folder / "metrics.csv").read_bytes() == (together.folder / "metrics.csv").read_bytes()


@pytest.mark.parametrize(("reads_each", "calls"), [(True, [6, 6]), (False, [1] * 6 + [6])])
def test_homes_with_arrays_of_their_own_are_asked_together(tmp_path, monkeypatch, reads_each, calls):
    """SCAFFOLD sends each home its own correction: one batch to train and one to evaluate, where the task allows it."""
    seen, answer_many = [], Forecast.answer_many

    def counted(task, boxes, queries, **known):
        seen.append(len(boxes))
        return answer_many(task, boxes, queries, **known)
    monkeypatch.setattr(Forecast, "answer_many", counted)
    monkeypatch.setattr(Forecast, "reads_each", reads_each)
    train(tmp_path, [Scaffold], rounds=2)
    assert seen[-len(calls):] == calls


def test_only_arrays_may_differ_between_homes_that_are_asked_together():
    from flwr.app import ConfigRecord, RecordDict

    from fedenergy.federation.records import array_record
    from fedenergy.federation.update_records import alike, brought

    def content(value: float, mu: float = 0.1) -> RecordDict:
        return RecordDict({"arrays": array_record({"w": np.full(2, value)}), "config": ConfigRecord({"mu": mu})})

    one, other = content(1.0), content(2.0)
    assert alike(NET, one, other)
    assert not alike(NET, one, content(1.0, mu=0.2))
    assert not alike(NET, one, RecordDict({"config": ConfigRecord({"mu": 0.1})}))
    assert not alike(ForecastTrees(), one, other)
    assert alike(ForecastTrees(), one, one)
    found = brought(NET, [one, other])
    assert [mine["w"].tolist() for mine in found["arrays"]] == [[1.0, 1.0], [2.0, 2.0]]
    assert found["config"] == {"mu": 0.1}
    assert brought(NET, [one, one])["arrays"]["w"].tolist() == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(tmp_path, workers):
    entries = [opened("FedAvg", fraction_train=0.5), Scaffold, Ifca]
    here = train(tmp_path / "a", entries, rounds=2)
    there = train(tmp_path / "b", entries, rounds=2, workers=workers)
    assert (here.folder / "metrics.csv").read_bytes() == (there.folder / "metrics.csv").read_bytes()


def test_seeds_and_rounds_draw_other_batches_and_strategies_the_same(tmp_path):
    def twin():
        return opened("FedAvg")()
    report = train(tmp_path, [opened("FedAvg"), twin], seeds=(0, 1), rounds=2)
    rows = report.metrics[report.metrics["metric"] == "rmse"].pivot_table(index=["seed", "round"], columns="strategy",
                                                                         values="value")
    assert (rows["FedAvg"] == rows["twin"]).all()
    assert rows["FedAvg"].nunique() == len(rows)


def test_a_home_without_readings_sends_the_model_back_and_is_not_tested(tmp_path):
    report = train(tmp_path, homes=Habits(silent=(1,)), rounds=1)
    whole = train(tmp_path, homes=Habits(), rounds=1)
    assert last(report, "answers") == 6
    assert last(report, "rmse_no_change") == pytest.approx(last(whole, "rmse_no_change"), rel=0.1)  # not 5/6 of it
    nobody = train(tmp_path, homes=Habits(silent=tuple(range(6))), rounds=1)
    assert "rmse" not in set(nobody.metrics["metric"])


def test_every_answer_is_an_unbounded_row_and_asking_again_writes_none(tmp_path):
    first = train(tmp_path, rounds=2, ledger=tmp_path / "ledger")
    with Ledger(tmp_path / "ledger") as ledger:
        rows = list(ledger.rows())
        assert ledger.verify() == []
    assert len(rows) == 6 * 2 * 2  # homes, rounds, trained and evaluated
    assert {(row.trust, row.epsilon_micro) for row in rows} == {("open", None)}
    again = train(tmp_path, rounds=2, ledger=tmp_path / "ledger")
    with Ledger(tmp_path / "ledger") as ledger:
        assert len(list(ledger.rows())) == len(rows)
    assert (again.folder / "metrics.csv").read_bytes() == (first.folder / "metrics.csv").read_bytes()


def test_an_answer_that_differs_from_the_stored_one_is_an_error(tmp_path):
    """Same question, other data: the digest in the ledger tells."""
    from dataclasses import replace

    from fedenergy.errors import RunFailed
    from fedenergy.forecast import task

    train(tmp_path, rounds=1, ledger=tmp_path / "ledger")

    class Other(Habits):
        def load(self, index):
            home = super().load(index)
            return replace(home, total=home.total + 1, readings=home.readings + 1)

    task._cache.clear()
    try:
        with pytest.raises(RunFailed, match="6 of 6 homes failed"):
            train(tmp_path, homes=Other(), rounds=1, ledger=tmp_path / "ledger")
    finally:
        task._cache.clear()


# What is refused


def test_repeat_and_short_records_are_config_errors(tmp_path):
    with pytest.raises(ConfigError, match=r'set \[query\] repeat = "same_window"'):
        fe.compare(Habits(), NET, fe.Query("train.forecast", rounds=2), [opened("FedAvg")], agreement=TERMS, out=tmp_path)
    with pytest.raises(ConfigError, match="records of 72 steps hold no 24 rows of training"):
        train(tmp_path, homes=Habits(days=3))
    with pytest.raises(ConfigError, match=r'trains no model with the task Forecast: set \[query\] kind = "train.forecast"'):
        fe.compare(Habits(), NET, fe.Query("evaluate.forecast", repeat="same_window"), [opened("FedAvg")],
                   agreement=TERMS, out=tmp_path)


@pytest.mark.parametrize(("task", "name", "value"), [
    (Forecast, "hidden", 0), (Forecast, "rate", 0.0), (Forecast, "batch", 1.5), (Forecast, "scale_kwh", -1.0),
    (ForecastTrees, "bins", 1), (ForecastTrees, "learning_rate", float("nan"))])
def test_arguments_are_checked(task, name, value):
    with pytest.raises(ValueError, match=f"{task.__name__}: {name} = "):
        task(**{name: value})


def test_the_gate_of_an_update():
    spec = UpdateSpec({"w": ("float64", (2,))}, ("train_loss",), ("norm_bit",))
    good = Computed({"w": np.zeros(2)}, {"train_loss": 1.0})
    assert make_update("h0", "q", good, spec).trust == "open"
    for arrays, metrics, says in (({"w": np.zeros(3)}, good.metrics, "array w"),
                                  ({"v": np.zeros(2)}, good.metrics, "exactly"),
                                  ({"w": np.zeros(2, np.float32)}, good.metrics, "array w"),
                                  ({"w": np.array([0, np.inf])}, good.metrics, "finite"),
                                  (good.arrays, {}, "holds the metrics"),
                                  (good.arrays, {"train_loss": 1.0, "x": 1.0}, "at most"),
                                  (good.arrays, {"train_loss": float("nan")}, "finite")):
        with pytest.raises(ValueError, match=says):
            make_update("h0", "q", Computed(arrays, metrics), spec)


def test_the_main_job_does_not_load_torch():
    import subprocess
    import sys

    code = ("import sys, fedenergy.federation.study, fedenergy.forecast.task, fedenergy.forecast.trees;"
            "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_report_shows_the_last_round_and_names_what_it_is(tmp_path):
    from fedenergy.report.page import write_report
    from fedenergy.report.tables import summary_table

    report = train(tmp_path, [opened("FedAvg"), Scaffold], rounds=2)
    table = summary_table(report.metrics).set_index("strategy")
    assert table.loc["FedAvg", "rmse"] == last(report, "rmse")
    page = write_report(report.folder).read_text()
    for words in ("Errors of the shared model on the homes&#x27; last days, after the last round", "round by round",
                  "Not private: homes send models as they trained them", "MAE, no change"):
        assert words in page
    assert "clipped sum" not in page


def test_check_says_that_nothing_is_charged_and_how_long_it_takes(tmp_path):
    from fedenergy.config import parse
    from fedenergy.federation.estimate import estimate

    table = {"use": "fedenergy.forecast.task:Forecast"}
    found = [estimate(parse({"name": "toy", "oracle": True, "out": str(tmp_path), "task": table,
                             "population": {"count": 4, "steps": 24 * 20}, "agreement": {"classes": ["update"]},
                             "query": {"kind": "train.forecast", "rounds": rounds, "repeat": "same_window"},
                             "strategy": [{"use": "flwr.serverapp.strategy:FedAvg", "trust": "open"}]}))
             for rounds in (1, 1000)]
    assert found[1].seconds > 10 + found[0].seconds
    assert found[1].exchanges == 2000
    assert found[1].charges == 0
