"""Lossy: who drops out is fixed by home, round and seed; inner sees the rest."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy.forecast.task import Forecast
from strategies.byzantine import Byzantine
from strategies.lossy import Lossy, arrives
from tests.forecast.helpers import Habits
from tests.forecast.test_task import last, opened, train

NET = Forecast(lags=(1, 2), hidden=4, local_steps=5, batch=16, test_days=2)


def wrapped(kind, **arguments):
    def build():
        made = kind("flwr.serverapp.strategy:FedAvg", **arguments)
        made.inner.trust = "open"
        return made
    build.__name__ = kind.__name__
    return build


def test_each_home_and_round_is_drawn_for_itself():
    lost = np.array([[not arrives(node, at, 0.3) for node in range(200)] for at in range(20)])
    assert abs(lost.mean() - 0.3) < 0.02
    assert not (lost == lost[0]).all()
    assert [arrives(node, 1, 0.3, seed=1) for node in range(50)] != [arrives(node, 1, 0.3) for node in range(50)]


def test_a_share_of_nothing_changes_nothing_and_losses_do(tmp_path):
    report = train(tmp_path, [opened("FedAvg"), wrapped(Lossy, share=0.0)], NET, rounds=2)
    assert last(report, "rmse", "Lossy") == last(report, "rmse")
    report = train(tmp_path, [opened("FedAvg"), wrapped(Lossy, share=0.5)], NET, rounds=2)
    assert last(report, "rmse", "Lossy") != last(report, "rmse")


def test_where_all_are_lost_the_model_stays(tmp_path):
    kept = [at for at in range(1, 40) if not any(arrives(node, at, 0.9) for node in range(2, 5))]
    seed = next(seed for seed in range(1000) if not any(arrives(node, 2, 0.9, seed) for node in range(2, 5))
                and any(arrives(node, 1, 0.9, seed) for node in range(2, 5)))
    assert kept  # so it happens at all
    report = train(tmp_path, [wrapped(Lossy, share=0.9, seed=seed)], NET, Habits(count=3), rounds=2)
    rows = report.metrics[report.metrics["metric"] == "rmse"].sort_values("round")["value"].tolist()
    assert rows[0] == rows[1]


def test_a_lying_home_moves_every_weight_of_the_mean(tmp_path):
    import json

    from fedenergy.federation.freeze import load_arrays

    report = train(tmp_path, [opened("FedAvg"), wrapped(Byzantine, share=0.5, size=2.0)], NET, rounds=1)
    state = json.loads((report.folder / "checkpoints" / "all-seed0.json").read_text())["arrays"]
    plain, spoilt = ({name: array.numpy() for name, array in load_arrays(state[key]).items()}
                     for key in ("FedAvg", "Byzantine"))
    for name, values in plain.items():
        np.testing.assert_allclose(np.abs(spoilt[name] - values), 1.0, rtol=1e-9)  # half of the homes, 2 each


@pytest.mark.parametrize("share", [1.0, -0.1, True])
def test_the_share_is_checked(share):
    with pytest.raises(ValueError, match="Lossy: share = "):
        Lossy(share=share)
