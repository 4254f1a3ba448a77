"""Scaffold against a stateful reference of the paper's Algorithm 1, on homes whose optimum is known."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedenergy as fe
from fedenergy.errors import ConfigError
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.freeze import freeze, thaw
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.shard import Client
from strategies.scaffold import Scaffold

HOMES, STEPS, RATE = 4, 10, 0.02
CURVES = np.array([[1.0, 8.0], [4.0, 1.0], [0.5, 2.0], [2.0, 0.5]])    # f_i(w) = 1/2 sum a (w - b)^2
CENTRES = np.array([[0.0, 1.0], [5.0, -2.0], [-3.0, 4.0], [1.0, 1.0]])
OPTIMUM = (CURVES * CENTRES).sum(0) / CURVES.sum(0)


def local(at: int, start: np.ndarray, pull: np.ndarray) -> np.ndarray:
    y = start.copy()
    for _ in range(STEPS):
        y = y - RATE * (CURVES[at] * (y - CENTRES[at]) + pull)
    return y


def reference(rounds: int, asked=lambda at: range(HOMES), rate: float = 1.0) -> np.ndarray:
    """Algorithm 1, option II, each home with its own c_i."""
    x, zone, own = np.zeros(2), np.zeros(2), np.zeros((HOMES, 2))
    for at in range(rounds):
        moves, changes = [], []
        for home in asked(at):
            y = local(home, x, zone - own[home])
            new = own[home] - zone + (x - y) / (STEPS * RATE)
            moves.append(y - x)
            changes.append(new - own[home])
            own[home] = new
        x = x + rate * np.mean(moves, axis=0)
        zone = zone + np.sum(changes, axis=0) / HOMES
    return x


def play(strategy: FedAvg, rounds: int, keep=lambda at: range(HOMES), between=lambda made: made) -> np.ndarray:
    """keep: the homes of a round whose answers arrive; between: what becomes of the strategy after a round."""
    grid, arrays = LocalGrid(Client(app=None), HOMES), ArrayRecord({"w": Array(np.zeros(2))})
    for at in range(rounds):
        messages = list(strategy.configure_train(at + 1, arrays.copy(), ConfigRecord(), grid))
        replies = []
        for message in sorted(messages, key=lambda one: one.metadata.dst_node_id):
            home = flower.node_index(message.metadata.dst_node_id)
            given = message.content[records.ARRAYS]
            pull = given["control.w"].numpy() if "control.w" in given else np.zeros(2)
            if home in keep(at):
                trained = local(home, given["w"].numpy(), pull)
                replies.append(flower.reply(message, RecordDict({
                    records.ARRAYS: ArrayRecord({"w": Array(trained)}),
                    records.METRICS: MetricRecord({"num-examples": 1, "step": STEPS * RATE, "train_loss": 0.0})})))
        arrays, _ = strategy.aggregate_train(at + 1, replies)
        strategy = between(strategy)
    return arrays["w"].numpy()


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_it_is_the_paper_s_algorithm(rate):
    np.testing.assert_allclose(play(Scaffold(rate=rate), 7), reference(7, rate=rate), rtol=1e-12)


def test_homes_that_do_not_answer_keep_their_control():
    def some(at: int) -> list[int]:
        return [home for home in range(HOMES) if (home + at) % 3]
    np.testing.assert_allclose(play(Scaffold(), 9, some), reference(9, some), rtol=1e-11)


def test_it_reaches_the_optimum_that_averaging_drifts_away_from():
    assert np.abs(play(Scaffold(), 300) - OPTIMUM).max() < 1e-6
    assert np.abs(play(FedAvg(), 300) - OPTIMUM).max() > 0.05


def test_its_first_round_is_fedavg_s():
    np.testing.assert_allclose(play(Scaffold(), 1), play(FedAvg(), 1), rtol=1e-12)


def test_a_checkpoint_holds_its_memory():
    def reborn(old: Scaffold) -> Scaffold:
        new = Scaffold()
        thaw(freeze(old), new)
        return new
    np.testing.assert_array_equal(play(Scaffold(), 5, between=reborn), play(Scaffold(), 5))


def test_arguments_and_queries_that_do_not_fit(tmp_path):
    for wrong in ({"rate": 0}, {"rate": True}, {"fraction_train": 1.5}):
        with pytest.raises(ValueError, match="Scaffold: "):
            Scaffold(**wrong)
    with pytest.raises(ConfigError, match=r"Scaffold takes queries of kind train.forecast only, not appliances"):
        fe.run(fe.simulate_households(3, steps=24 * 9), fe.Explain(lags=(1,), trees=5), fe.Query("appliances"),
               "strategies.scaffold:Scaffold", out=tmp_path)
