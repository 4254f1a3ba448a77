"""Flower's privacy wrappers named in a config, and what is said of them: recounted by hand from what ran."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from fedenergy.config import parse
from fedenergy.errors import ConfigError
from fedenergy.federation.flower_privacy import composed, epsilons, multiplier
from fedenergy.federation.freeze import load_arrays
from fedenergy.federation.study import run_study

FLOWER = "flwr.serverapp.strategy:"
HOMES, ROUNDS = 6, 2


def wrapper(side: str, how: str, inner: str = "FedAvg", **arguments) -> dict:
    """A table of a wrapper around a strategy."""
    clip = {"clipping_norm": 0.1} if how == "Fixed" else {"initial_clipping_norm": 0.1, "clipped_count_stddev": 3.0}
    return {"use": f"{FLOWER}DifferentialPrivacy{side}Side{how}Clipping", "trust": "open", "noise_multiplier": 2.0,
            "num_sampled_clients": HOMES, "strategy": {"use": FLOWER + inner}, **clip, **arguments}


def study(out, *tables: dict, **changes):
    people = {"use": "tests.forecast.helpers:Habits", "count": HOMES}
    return parse({"name": "wrapped", "oracle": True, "out": str(out), "population": people, "strategy": list(tables),
                  "task": {"use": "fedenergy:Forecast", "lags": [1], "hidden": 8, "local_steps": 2, "batch": 16,
                           "test_days": 2},
                  "agreement": {"classes": ["update"]}, "engine": {"workers": 0},
                  "query": {"kind": "train.forecast", "rounds": ROUNDS, "repeat": "same_window"}} | changes).check()


def played(out, *tables: dict, **changes):
    """(metrics, notes, checkpoint) of a run."""
    import json

    folder = run_study(study(out, *tables, **changes))
    (state,) = (folder / "checkpoints").glob("all-*.json")
    return (pd.read_csv(folder / "metrics.csv"), json.loads((folder / "summary.json").read_text())["notes"],
            json.loads(state.read_text()))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return played(tmp_path_factory.mktemp("wrapped"), *(wrapper(side, how) for side in ("Server", "Client")
                                                        for how in ("Fixed", "Adaptive")))


def values(metrics: pd.DataFrame, strategy: str, name: str) -> list[float]:
    rows = metrics[(metrics["strategy"] == strategy) & (metrics["metric"] == name)]
    return rows.sort_values("round")["value"].tolist()


@pytest.mark.parametrize("side", ["Server", "Client"])
def test_fixed_clips_cost_what_their_rounds_cost(run, side):
    """z = 2 in 2 rounds of all homes: one Gaussian release of multiplier 2 / sqrt(2)."""
    metrics, notes, _ = run
    name = f"DifferentialPrivacy{side}SideFixedClipping"
    assert values(metrics, name, "noise_multiplier") == [2.0, 2.0]
    assert values(metrics, name, "clipping_norm") == [0.1, 0.1]
    (note,) = [text for text in notes if text.startswith(name)]
    cost = epsilons(2 / math.sqrt(2), 1e-5)
    assert f"epsilon = {cost['replace-one']:.3g} (replace-one; {cost['add/remove']:.3g} under add/remove)" in note
    for words in ("the 2 models", "at delta = 1e-05 per household", "seeded noise: not private", "cohorts 6"):
        assert words in note


@pytest.mark.parametrize("side", ["Server", "Client"])
def test_adaptive_clips_are_charged_for_the_clip_that_met_the_changes_and_for_the_count(run, side):
    """Noise is scaled to the clip of the next round; the count has its own: both as they were."""
    metrics, notes, state = run
    name = f"DifferentialPrivacy{side}SideAdaptiveClipping"
    clips = [*values(metrics, name, "clipping_norm"), float.fromhex(state["strategies"][name]["clipping_norm"]["float"])]
    assert len(set(clips)) == 3
    z = (2.0**-2 - 6.0**-2) ** -0.5                            # of the mean, so that mean and count make 2
    expected = [((z * clips[at + 1] / clips[at]) ** -2 + 6.0**-2) ** -0.5 for at in range(ROUNDS)]
    np.testing.assert_allclose(values(metrics, name, "noise_multiplier"), expected, rtol=1e-12)
    (note,) = [text for text in notes if text.startswith(name)]
    assert f"epsilon = {epsilons(sum(one**-2 for one in expected) ** -0.5, 1e-5)['replace-one']:.3g} (" in note


def test_the_noise_that_ran_is_the_noise_that_is_charged(tmp_path):
    """Homes without readings send the model back: what moves it is noise alone, z C / N a coordinate.

    (Clipped at home: on the server Flower divides by the norm of the change, which is 0.)
    """
    silent = {"use": "tests.forecast.helpers:Habits", "count": HOMES, "silent": list(range(HOMES))}
    task = {"use": "fedenergy:Forecast", "lags": [1], "hidden": 200, "test_days": 2}
    metrics, _, state = played(tmp_path, wrapper("Client", "Fixed", num_sampled_clients=4), population=silent, task=task,
                               query={"kind": "train.forecast", "rounds": 1, "repeat": "same_window"})
    name = "DifferentialPrivacyClientSideFixedClipping"
    (model,) = (load_arrays(one) for one in state["arrays"].values())
    first = study(tmp_path, wrapper("Server", "Fixed"), task=task).task.build().first_arrays(
        study(tmp_path, wrapper("Server", "Fixed"), population=silent).population.build())
    moved = np.concatenate([(model[key].numpy() - first[key]).ravel() for key in first])
    (sigma,) = values(metrics, name, "noise_multiplier")
    assert sigma == 3.0                                       # 2 x 6 answers / 4 told: more noise than asked
    assert np.std(moved) * HOMES / 0.1 == pytest.approx(sigma, rel=4 / math.sqrt(2 * moved.size))


def test_the_lost_answer_of_a_home_costs_privacy():
    assert multiplier(1.0, 1.0, 50, 100) == 0.5
    assert multiplier(1.0, 0.8, 100, 100) == 0.8
    assert composed([3.0, 4.0]) == pytest.approx(2.4)
    assert composed([1.0, 0.0]) == 0.0
    assert set(epsilons(0.0, 1e-5).values()) == {math.inf}
    assert epsilons(1.0, 1e-5)["add/remove"] == pytest.approx(4.38, rel=5e-3)     # Dong et al.: Phi(-e/m + m/2) ...
    assert epsilons(2.0, 1e-5)["replace-one"] == pytest.approx(epsilons(1.0, 1e-5)["add/remove"])


def test_what_does_not_average_and_what_adds_no_noise_guarantees_nothing(tmp_path):
    _, notes, _ = played(tmp_path, wrapper("Server", "Fixed", "FedAdam"), wrapper("Client", "Fixed", noise_multiplier=0.0),
                         query={"kind": "train.forecast", "rounds": 1, "repeat": "same_window"})
    told = [text for text in notes if text.startswith("DifferentialPrivacy")]
    assert len(told) == 2
    assert all("no guarantee" in text and "epsilon" not in text for text in told)


def test_check_says_it_before_anything_runs(tmp_path):
    from fedenergy.federation.estimate import estimate

    notes = estimate(study(tmp_path, wrapper("Server", "Fixed"), wrapper("Server", "Adaptive"))).notes
    (note,) = [text for text in notes if "epsilon = " in text]
    assert note.startswith("DifferentialPrivacyServerSideFixedClipping around FedAvg")
    assert f"epsilon = {epsilons(2 / math.sqrt(2), 1e-5)['replace-one']:.3g} (" in note


@pytest.mark.parametrize(("inner", "says"), [({"use": FLOWER + "FedAvg", "speed": 1}, r'\[strategy.strategy\].*"speed"'),
                                             ({"use": FLOWER + "FedAvgg"}, r"\[strategy.strategy\].*FedAvg")])
def test_mistakes_inside_a_wrapper_are_named(tmp_path, inner, says):
    with pytest.raises(ConfigError, match=says):
        study(tmp_path, wrapper("Server", "Fixed", strategy=inner))


def test_a_config_with_a_wrapper_is_written_and_read_again(tmp_path):
    import tomllib

    config = study(tmp_path, wrapper("Server", "Fixed"))
    assert parse(tomllib.loads(config.to_toml())) == config
