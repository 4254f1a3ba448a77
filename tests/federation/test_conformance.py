"""Every Flower 1.42 strategy and DP wrapper on our grids: on a net's arrays, on xgboost's bytes, and over Releases.

One study holds all three tasks. It is played in this process, on Ray, and stopped and gone on with: the same bytes.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import flwr.serverapp.strategy as flower
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.supercore import differential_privacy

import fedenergy as fe
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.updates import CLIPPING_NORM, NORM_BIT, PROXIMAL_MU, clipped_update
from fedenergy.config import Engine
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import study
from fedenergy.federation.freeze import load_arrays
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.plan import Plan, plan_from_objects
from fedenergy.federation.shard import Client
from fedenergy.federation.study import play_plan
from fedenergy.forecast.task import Forecast
from fedenergy.forecast.trees import ForecastTrees
from fedenergy.progress import SilentProgress
from tests.federation.helpers import Planted, Sums
from tests.federation.test_study import Stop, StopAfter

HOMES, ROUNDS = 8, 2
POPULATION = Planted(HOMES, steps=24 * 8)
NET = Forecast(lags=(1, 24), hidden=4, local_steps=3, batch=16, test_days=2)
TREES = ForecastTrees(lags=(1, 24), depth=2, test_days=2)
TRAINING = fe.Query("train.forecast", rounds=ROUNDS, repeat="same_window")

STOCK = {"Bulyan": {"num_malicious_nodes": 1}, "FedAdagrad": {}, "FedAdam": {}, "FedAvg": {},
         "FedAvgM": {"server_momentum": 0.5}, "FedMedian": {}, "FedProx": {"proximal_mu": 0.1},
         "FedTrimmedAvg": {"beta": 0.2}, "FedXgbBagging": {}, "FedXgbCyclic": {}, "FedYogi": {},
         "Krum": {"num_malicious_nodes": 1}, "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
         "QFedAvg": {"client_learning_rate": 0.1}}
WRAPPERS = {f"DifferentialPrivacy{side}Side{how}Clipping": how for side in ("Client", "Server")
            for how in ("Fixed", "Adaptive")}
BYTES = ("FedXgbBagging", "FedXgbCyclic")
METRIC = "QFedAvg"  # reads a loss beside the arrays


def make(name: str, trust: str) -> Callable[[], flower.Strategy]:
    """A function that makes a fresh one, with that trust."""
    def build() -> flower.Strategy:
        kind = getattr(flower, name)
        if name in STOCK:
            made = kind(**STOCK[name])
        elif WRAPPERS[name] == "Fixed":
            made = kind(flower.FedAvg(), noise_multiplier=0.01, clipping_norm=0.05, num_sampled_clients=HOMES)
        else:
            made = kind(flower.FedAvg(), noise_multiplier=0.01, num_sampled_clients=HOMES, initial_clipping_norm=0.05,
                        clipped_count_stddev=0.1)
        made.trust = trust
        return made
    build.__name__ = name
    return build


ON_ARRAYS = [name for name in (*STOCK, *WRAPPERS) if name not in BYTES]
ON_RELEASES = [name for name in ON_ARRAYS if name != METRIC and "Client" not in name]


def whole_plan(folder: Path, workers: int = 0) -> Plan:
    """Three parts in one study: arrays, bytes, Releases."""
    plans = [plan_from_objects(POPULATION, task, query, [make(name, trust) for name in names],
                               agreement=AgreementTerms(classes=("specific", "update")), folder=folder, name="conformance",
                               engine=Engine(workers=workers))
             for task, query, names, trust in ((NET, TRAINING, ON_ARRAYS, "open"), (TREES, TRAINING, BYTES, "open"),
                                               (Sums(), fe.Query("appliances", rounds=ROUNDS), ON_RELEASES, "local"))]
    worlds, parts = [], []
    for plan, title in zip(plans, ("arrays", "bytes", "releases"), strict=True):
        (part,) = plan.parts
        parts.append(replace(part, name=title, keys={"task": title}, number=part.number + len(worlds),
                             oracle=(part.oracle[0], part.oracle[1] + len(worlds))))
        worlds += plan.worlds
    return replace(plans[0], worlds=tuple(worlds), parts=tuple(parts))


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    return play_plan(whole_plan(tmp_path_factory.mktemp("local") / "run"))


def state(folder: Path, part: str) -> dict:
    return json.loads((folder / "checkpoints" / f"{part}.json").read_text())


def metrics(folder: Path) -> dict[tuple[str, int, str, str], float]:
    """(strategy, round, metric, trust) -> value, with the trees' strategies told by their names."""
    with open(folder / "metrics.csv", newline="") as file:
        return {(row["strategy"], int(row["round"]), row["metric"], row["trust"]): float(row["value"])
                for row in csv.DictReader(file)}


def model(folder: Path, part: str, strategy: str) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in load_arrays(state(folder, part)["arrays"][strategy]).items()}


def test_the_list_is_all_that_flower_has():
    assert set(STOCK) | set(WRAPPERS) == set(flower.__all__) - {"Strategy", "Result"}
    assert (len(STOCK), len(WRAPPERS)) == (14, 4)


def test_flower_s_names_are_ours():
    assert (CLIPPING_NORM, NORM_BIT) == (differential_privacy.KEY_CLIPPING_NORM, differential_privacy.KEY_NORM_BIT)
    config = ConfigRecord()
    flower.FedProx(proximal_mu=0.5).configure_train(1, ArrayRecord([np.zeros(1)]), config, LocalGrid(Client(app=None), 2))
    assert config[PROXIMAL_MU] == 0.5


@pytest.mark.parametrize("name", [*ON_ARRAYS, *BYTES])
def test_it_trains_and_is_evaluated_on_all_homes(local, name):
    found = metrics(local)
    asked = 1 if name == "FedXgbCyclic" else HOMES
    for at in (1, 2):
        assert found[name, at, "answers", "open"] == asked
        assert found[name, at, "failures", "open"] == found[name, at, "refusals", "open"] == 0
        for metric in ("rmse", "mae", "train_loss", "rmse_no_change"):
            assert math.isfinite(found[name, at, metric, "open"])
            assert found[name, at, metric, "open"] > 0
    assert found[name, 1, "rmse", "open"] != found[name, 2, "rmse", "open"]


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_arrays_keep_their_form_and_move(local, name):
    first, last = NET.first_arrays(POPULATION), model(local, "arrays", name)
    NET.check_arrays(last, POPULATION)
    assert any(not np.array_equal(first[key], last[key]) for key in first)


def test_bytes_are_models_that_grow_by_each_strategy_s_rule(local):
    trees = {name: json.loads(model(local, "bytes", name)["0"].tobytes())["learner"]["gradient_booster"]["model"]["trees"]
             for name in BYTES}
    assert len(trees["FedXgbBagging"]) == HOMES * ROUNDS  # one of each home and round
    assert len(trees["FedXgbCyclic"]) == ROUNDS           # one home in each round


@pytest.mark.parametrize("name", ON_RELEASES)
def test_releases_are_aggregated(local, name):
    found = metrics(local)
    for at in (1, 2):
        assert found[name, at, "answers", "local"] == HOMES
        assert math.isfinite(found[name, at, "mae", "local"])


def test_the_other_strategies_differ_from_plain_averaging(local):
    found = metrics(local)
    plain = found["FedAvg", 2, "rmse", "open"]
    for name in set(ON_ARRAYS) - {"FedAvg"}:
        assert found[name, 2, "rmse", "open"] != plain, name


def test_what_crossed_is_counted_as_open_and_unbounded(local):
    rows = {row["envelope"]: row for row in json.loads((local / "summary.json").read_text())["who_sees_what"]}
    assert rows["Plain"]["epsilon_vs_querier"] == rows["Plain"]["epsilon_vs_operator"] == "infinite"
    trained = sum(value for (name, _, metric, trust), value in metrics(local).items()
                  if metric == "answers" and trust == "open")
    evaluated = HOMES * ROUNDS * len((*ON_ARRAYS, *BYTES))
    truth = HOMES * ROUNDS
    assert rows["Plain"]["count"] == trained + evaluated + truth


def test_the_same_bytes_on_ray(local, tmp_path):
    on_ray = play_plan(whole_plan(tmp_path / "run", workers=2))
    assert (on_ray / "metrics.csv").read_bytes() == (local / "metrics.csv").read_bytes()
    for part in ("arrays", "bytes", "releases"):
        assert state(on_ray, part) == state(local, part)


def test_a_stopped_run_goes_on_to_the_same_bytes(local, tmp_path):
    plan = whole_plan(tmp_path / "run")
    with pytest.raises(Stop):
        play_plan(plan, StopAfter(len(ON_ARRAYS) + 3))
    with pytest.raises(Stop):
        study._play(plan, StopAfter(2 * len(ON_ARRAYS) + len(BYTES) + 1))
    study._play(plan, SilentProgress())
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (local / "metrics.csv").read_bytes()


# What does not fit is named


def compare(tmp_path, task, names, trust="open", **known):
    return fe.compare(POPULATION, task, TRAINING, [make(name, trust) for name in names],
                      agreement=AgreementTerms(classes=("update",)), out=tmp_path, **known)


@pytest.mark.parametrize(("task", "name", "says"), [(TREES, "FedAvg", "strategy FedAvg failed in round 1"),
                                                    (NET, "FedXgbBagging", "exactly one Array")])
def test_a_strategy_on_the_other_task_is_blamed(tmp_path, task, name, says):
    with pytest.raises(RunFailed, match=says):
        compare(tmp_path, task, [name])


def test_models_do_not_travel_without_trust_open(tmp_path):
    with pytest.raises(ConfigError, match="FedAvg has trust local, and un-noised models travel under trust open only"):
        compare(tmp_path, NET, ["FedAvg"], trust="local")
    with pytest.raises(ConfigError, match="no home agrees to that: set oracle = true"):
        compare(tmp_path, NET, ["FedAvg"], oracle=False)
    assert not list(tmp_path.rglob("*.sqlite"))


def test_homes_that_did_not_agree_to_updates_are_not_asked(tmp_path):
    with pytest.raises(ConfigError, match="update"):
        fe.compare(POPULATION, NET, TRAINING, [make("FedAvg", "open")], out=tmp_path)


def test_client_side_clipping_is_flower_s():
    draw = np.random.default_rng(0)
    for size, bound in ((0.1, 1.0), (3.0, 1.0)):
        sent = {name: draw.normal(size=shape) for name, shape in NET.shapes(POPULATION).items()}
        trained = {name: values + size * draw.normal(size=values.shape) for name, values in sent.items()}
        theirs = [values.copy() for values in trained.values()]
        bit = differential_privacy.compute_adaptive_clip_model_update(theirs, list(sent.values()), bound)
        ours, own_bit = clipped_update(sent, trained, bound)
        assert own_bit == int(bit)
        for mine, other in zip(ours.values(), theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-12)
