"""The campaign loop: stock Flower strategies by name, on the same releases as ours; sampling, trust, memory."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedenergy import cli
from fedenergy.box.query import Query
from fedenergy.config import Engine
from fedenergy.errors import ConfigError
from fedenergy.explain.task import Explain
from fedenergy.federation.campaign import seeded
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.strategy import ZoneStrategy
from fedenergy.federation.study import play_plan, resume_study, run_study
from fedenergy.households.simulate import simulate_households
from tests.federation.test_study import (
    CENTRAL,
    HOMES,
    MINE,
    SECURE_SUM,
    SMOOTH,
    ZONAL,
    Stop,
    StopAfter,
    make_config,
    results,
    spent,
    values,
)


def stock(name: str, **arguments) -> dict:
    return {"use": f"flwr.serverapp.strategy:{name}", **arguments}


def released(folder: Path) -> dict[tuple[str, int], np.ndarray]:
    """(strategy, round) -> the zone vector (d,) of seed 0."""
    zones = json.loads((folder / "summary.json").read_text())["zones"]
    return {(zone["strategy"], zone["round"]): np.array(zone["released"]) for zone in zones if zone["seed"] == 0}


def releases(folder: Path) -> np.ndarray:
    """(homes, d) of the only query of a run."""
    table = pq.read_table(folder / "releases.parquet").to_pandas()
    assert table["query_id"].nunique() == 1
    return table["value"].to_numpy().reshape(table["household"].nunique(), -1)


# Stock strategies


def test_stock_strategies_aggregate_the_same_releases_as_ours(tmp_path):
    """One exchange for all of them, whoever comes first; each result against numpy on releases.parquet."""
    entries = [stock("FedMedian"), stock("FedTrimmedAvg", beta=0.2), stock("FedAvg"), ZONAL, stock("Krum")]
    folder = run_study(make_config(tmp_path, entries, seeds=[0]))
    found, rows = released(folder), releases(folder)
    assert rows.shape[0] == HOMES
    close = {"rtol": 1e-12, "atol": 1e-9}
    np.testing.assert_array_equal(found["ZonalSum", 1], rows.sum(axis=0))
    np.testing.assert_allclose(found["FedAvg", 1], rows.sum(axis=0), **close)
    np.testing.assert_allclose(found["FedMedian", 1], HOMES * np.median(rows, axis=0), **close)
    middle = np.sort(rows, axis=0)[2:-2]  # beta = .2 cuts int(.2 * 12) = 2 from both ends
    np.testing.assert_allclose(found["FedTrimmedAvg", 1], HOMES * middle.mean(axis=0), **close)
    assert np.isclose(found["Krum", 1], HOMES * rows, **close).all(axis=1).sum() == 1  # Krum picks one home's answer
    state = json.loads((folder / "checkpoints" / "all-seed0.json").read_text())
    assert state["crossings"]["envelopes"]["local"] == HOMES
    assert len({cell for cell, row in state["cells"].items() if row["trust"] == "local"}) == 1
    assert spent(folder / "ledger") == HOMES * 500_000


def test_stock_strategies_with_a_memory_resume_to_the_same_bytes(tmp_path):
    entries = [stock(name) for name in ("FedAdam", "FedAdagrad", "FedYogi", "MultiKrum")]
    entries += [stock("FedAvgM", server_momentum=0.9), stock("FedProx", proximal_mu=0.1)]
    config = {"seeds": [0], "query": {"rounds": 3}}
    whole = run_study(make_config(tmp_path / "whole", entries, **config))
    with pytest.raises(Stop):
        run_study(make_config(tmp_path / "stopped", entries, **config), progress=StopAfter(len(entries) + 2))
    assert results(resume_study(next((tmp_path / "stopped").iterdir()))) == results(whole)
    memory = json.loads((whole / "checkpoints" / "all-seed0.json").read_text())["strategies"]["FedAdam"]
    assert any(key in memory for key in ("m_t", "v_t"))  # else this test could not fail


def test_sampling_is_reproducible_and_leaves_the_global_generators_alone(tmp_path):
    half = stock("FedAvg", fraction_train=0.5)
    folders = []
    for place in ("a", "b"):
        random.seed(place)
        np.random.seed(len(folders))  # noqa: NPY002 - what a stock strategy would draw from
        expected = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        folders.append(run_study(make_config(tmp_path / place, [half], query={"rounds": 2}, seeds=[0, 1])))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == expected  # noqa: NPY002
    assert results(folders[0]) == results(folders[1])
    table = pq.read_table(folders[0] / "releases.parquet").to_pandas()
    asked = table.groupby(["part", "round"])["household"].agg(lambda names: tuple(sorted(set(names))))
    assert {len(names) for names in asked} == {HOMES // 2}
    assert asked.nunique() > 1  # other homes in another round or under another seed
    assert set(values(folders[0], "answers").values()) == {HOMES / 2}


def test_a_sampled_mean_estimates_the_sum_over_the_homes_asked(tmp_path):
    folder = run_study(make_config(tmp_path, [stock("FedAvg", fraction_train=0.5)], seeds=[0]))
    np.testing.assert_allclose(released(folder)["FedAvg", 1], releases(folder).sum(axis=0), rtol=1e-12, atol=1e-9)


# What is refused


def nothing_spent(folder: Path) -> bool:
    return not list(folder.rglob("*.sqlite"))


def test_a_strategy_that_would_wait_for_ever_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="FedAvg waits for min_available_nodes = 13 homes, but the population has 12"):
        run_study(make_config(tmp_path, [stock("FedAvg", min_available_nodes=HOMES + 1)]))
    assert nothing_spent(tmp_path)


def test_a_strategy_that_would_wait_in_a_later_part_is_refused_before_anything_is_spent(tmp_path):
    config = make_config(tmp_path, [stock("FedAvg", min_available_nodes=5)], vary={"population.count": [HOMES, 3]})
    with pytest.raises(ConfigError, match="min_available_nodes = 5 homes, but the population has 3"):
        run_study(config)
    assert nothing_spent(tmp_path)


@pytest.mark.parametrize("entry", [{"use": ZONAL, "trust": "open"}, stock("FedAvg", trust="open"),
                                   "strategies.non_private:NonPrivate"], ids=["override", "stock", "declared"])
def test_open_trust_without_an_oracle_is_a_mistake_and_costs_nothing(tmp_path, entry, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    Path("toy.toml").write_text(make_config(Path("runs"), [entry], oracle=False).to_toml())
    with pytest.raises(SystemExit) as left:
        cli.main(["run", "toy.toml"])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert "no home agrees to that: set oracle = true" in err
    assert err.count("\n") == 1
    assert nothing_spent(tmp_path)


def test_a_trust_mode_that_the_homes_did_not_sign_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match=r'SecureSum has trust "sum", which .agreement. .*every home would refuse'):
        run_study(make_config(tmp_path, [SECURE_SUM], agreement={"trust": ["local"]}))
    assert nothing_spent(tmp_path)


def test_a_class_that_is_no_strategy_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match="OrderedDict"):
        run_study(make_config(tmp_path, ["collections:OrderedDict"]))
    assert nothing_spent(tmp_path)


def test_a_strategy_whose_state_cannot_be_kept_is_refused_before_anything_is_spent(tmp_path):
    class Draws(ZoneStrategy):
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def combine(self, answers):
            return answers.values.sum(axis=0)

    with pytest.raises(ConfigError, match="rng"):
        play_plan(toy_plan(tmp_path, [Draws]))
    assert nothing_spent(tmp_path)


# Trust overrides


def test_our_sum_under_a_curator_is_the_curators_answer(tmp_path):
    folder = run_study(make_config(tmp_path, [{"use": ZONAL, "trust": "curator"}, CENTRAL], seeds=[0]))
    found = released(folder)
    np.testing.assert_array_equal(found["ZonalSum", 1], found["CentralLaplace", 1])


@pytest.mark.parametrize(("trust", "ours"), [("sum", SECURE_SUM), ("curator", CENTRAL)])
def test_a_stock_mean_of_one_zone_answer_is_that_answer(tmp_path, trust, ours):
    folder = run_study(make_config(tmp_path, [stock("FedAvg", trust=trust), ours], seeds=[0]))
    found = released(folder)
    np.testing.assert_allclose(found["FedAvg", 1], found[ours.split(":")[1], 1], rtol=1e-12)


@pytest.mark.parametrize("entry", [{"use": ZONAL, "trust": "open"}, stock("FedAvg", trust="open")],
                         ids=["ours", "stock"])
def test_an_open_override_is_scored_or_refused_as_a_mistake(tmp_path, entry):
    try:
        folder = run_study(make_config(tmp_path, [entry], seeds=[0]))
    except ConfigError:
        assert nothing_spent(tmp_path)
        return
    assert all(np.isfinite(list(values(folder, "mae").values())))


# Strategies side by side


def toy_plan(folder: Path, strategies, **options):
    homes, task = simulate_households(HOMES, steps=400, seed=1), Explain(lags=[1, 24], trees=20, depth=3)
    return plan_from_objects(homes, task, Query("appliances", epsilon=0.5), strategies, folder=folder / "run",
                             engine=Engine(workers=0), **options)


class Vandal(ZoneStrategy):
    """Breaks what it is given: its own numbers are its own fault."""

    def combine(self, answers):
        return answers.values.sum(axis=0)

    def aggregate_train(self, server_round, replies):
        answer = super().aggregate_train(server_round, replies)
        for reply in replies:
            for record in reply.content.values():
                for key in list(record):
                    del record[key]
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        return answer


def test_what_a_strategy_does_to_its_replies_reaches_no_other(tmp_path):
    """The same with and without a Vandal before and after, who also reseeds the global generators."""
    def rows(folder):
        return {(strategy, seed): value for (strategy, seed, _), value in values(folder, "mae").items()}

    alone = rows(play_plan(toy_plan(tmp_path / "a", [ZONAL, "flwr.serverapp.strategy:FedMedian"])))
    beside = rows(play_plan(toy_plan(tmp_path / "b", [Vandal, ZONAL, "flwr.serverapp.strategy:FedMedian"])))
    assert {key: value for key, value in beside.items() if key[0] != "Vandal"} == alone
    assert beside["Vandal", 0] == alone["ZonalSum", 0]


def test_the_order_of_strategies_and_the_seeds_beside_change_nothing(tmp_path, monkeypatch):
    """A strategy that remembers starts anew for each seed: seed 1 alone gives the numbers of seed 1 after seed 0."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    both = run_study(make_config(tmp_path / "a", [ZONAL, SMOOTH, CENTRAL], query={"rounds": 2}))
    one = run_study(make_config(tmp_path / "b", [CENTRAL, SMOOTH, ZONAL], query={"rounds": 2}, seeds=[1]))
    for metric in ("mae", "cosine_total", "answers", "epsilon_spent_mean"):
        first = {key: value for key, value in values(both, metric).items() if key[1] == 1}
        assert first == values(one, metric)


def test_two_strategies_that_share_a_name_get_different_labels_or_are_refused(tmp_path):
    twice = [stock("FedTrimmedAvg", beta=0.1), stock("FedTrimmedAvg", beta=0.4)]
    folder = run_study(make_config(tmp_path, twice, seeds=[0]))
    errors = values(folder, "mae")
    assert {key[0] for key in errors} == {"FedTrimmedAvg(beta=0.1)", "FedTrimmedAvg(beta=0.4)"}
    assert len(set(errors.values())) == 2
    with pytest.raises(ConfigError, match="listed twice"):
        run_study(make_config(tmp_path, [ZONAL, ZONAL]))


# seeded


def draws() -> tuple[float, float]:
    return random.random(), float(np.random.random())  # noqa: NPY002


def test_seeded_is_keyed_by_cell_round_and_phase_and_restores_the_global_state():
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = [draws(), draws()]
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    seen = [draws()]
    inside = []
    for key in (("a" * 32, 0, "configure"), ("a" * 32, 0, "configure"), ("b" * 32, 0, "configure"),
                ("a" * 32, 1, "configure"), ("a" * 32, 0, "aggregate")):
        with seeded(*key):
            inside.append(draws())
    seen.append(draws())
    assert seen == expected
    assert inside[0] == inside[1]
    assert len(set(inside)) == 4


def test_seeded_restores_after_an_exception_and_nests():
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    def fails():
        with seeded("c" * 32, 0, "configure"):
            draws()
            with seeded("d" * 32, 0, "configure"):
                draws()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
