"""What a researcher types in a notebook: fe.compare and fe.run, and what they say about mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import fedenergy as fe
from fedenergy.errors import ConfigError
from strategies.zonal_sum import ZonalSum
from tests.federation.test_study import ray_again, results  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[1]
ZONAL, SECURE_SUM = "strategies.zonal_sum:ZonalSum", "strategies.secure_sum:SecureSum"
SMALL = {"lags": [1, 24], "trees": 20, "depth": 3}


@pytest.fixture(scope="module")
def homes():
    return fe.simulate_households(12, steps=400, seed=1)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder of its own: runs go to ./runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def notebook_policy() -> type:
    """A class that no worker can import, as one typed in a notebook."""
    class Cautious:
        def offer(self, case):
            return fe.Offer(case.query.epsilon / 2, reason="half of what was asked")
    return Cautious


# As in DESIGN.md, What a researcher types


def test_compare_as_in_the_design(homes):
    table = fe.compare(homes, fe.Explain(lags=[1, 24], clip=50.0), fe.Query("appliances", epsilon=1.0),
                       strategies=[ZONAL, SECURE_SUM], seeds=range(3))
    shown = str(table)
    for text in ("ZonalSum", "SecureSum", "MAE", "Spearman", "cosine", "refusals", "seeded noise: not private", "±"):
        assert text in shown
    frame = table.table
    assert list(frame["strategy"]) == ["SecureSum", "ZonalSum"]
    assert set(frame["n"]) == {3}
    for metric in ("mae", "rmse", "spearman", "cosine", "refusals", "epsilon_spent_mean"):
        assert {metric, f"{metric}_sd"} <= set(frame.columns)
        assert np.isfinite(frame[[metric, f"{metric}_sd"]].to_numpy()).all()
    assert set(frame["epsilon_spent_mean"]) == {1.0}
    assert table.folder.parent == Path("runs")


def test_run_as_in_the_design_with_a_policy_typed_in_a_notebook(folder):
    """Cautious grants 1.0 of the 2.0 asked: six rounds fit into the cap of 6.73, the seventh would cost too much."""
    homes = fe.simulate_households(6, steps=24 + 12 * 24, seed=1)
    report = fe.run(homes, fe.Explain(**SMALL), fe.Query("appliances", epsilon=2.0, rounds=12), strategy=ZONAL,
                    policy=notebook_policy()())
    answers = report.metrics.query("metric == 'answers'").sort_values("round")["value"]
    assert list(answers) == [6] * 6 + [0] * 6
    ledger = report.ledger
    private = ledger[ledger["trust"] == "local"]
    assert len(private) == 6 * 6
    assert set(private["epsilon"]) == {1.0}
    assert set(private["unit"]), set(private["relation"]) == ({"household"}, {"replace-one"})
    assert set(ledger[ledger["trust"] == "open"]["epsilon"].isna()) == {True}
    assert {"Cautious"} == set(report.table["policy"])
    page = report.to_html("run.html")
    assert page == folder / "run.html" or page == Path("run.html")
    text = page.read_text(encoding="utf-8")
    assert "ZonalSum" in text
    assert "http" not in "".join(line for line in text.splitlines() if "src=" in line)  # opens without a network


def test_workers_change_nothing_for_a_policy_typed_in_a_notebook(homes, ray_again):  # noqa: F811
    options = {"strategies": [ZONAL, SECURE_SUM], "seeds": range(2)}
    one, two = (fe.compare(homes, fe.Explain(**SMALL), fe.Query("appliances", epsilon=1.0), workers=workers,
                           policy=notebook_policy()(), **options) for workers in (0, 2))
    assert one.folder != two.folder
    assert results(one.folder) == results(two.folder)
    columns = ["household", "query_id", "epsilon_micro", "payload"]
    assert one.ledger[columns].equals(two.ledger[columns])
    assert set(one.ledger["epsilon"].dropna()) == {0.5}


def test_a_ledger_of_ones_own_makes_the_second_run_free_and_equal(homes, folder):
    ask = {"strategy": ZONAL, "ledger": folder / "my-ledger"}
    first = fe.run(homes, fe.Explain(**SMALL), fe.Query(epsilon=3.0), **ask)
    second = fe.run(homes, fe.Explain(**SMALL), fe.Query(epsilon=3.0), **ask)
    assert results(first.folder) == results(second.folder)
    third = fe.run(homes, fe.Explain(**SMALL), fe.Query(epsilon=3.0, fresh=1), **ask)
    fourth = fe.run(homes, fe.Explain(**SMALL), fe.Query(epsilon=3.0, fresh=2), **ask)  # 6 of 6.73 are spent
    assert third.table["mae"][0] != first.table["mae"][0]
    assert (third.table["refusals"][0], fourth.table["refusals"][0]) == (0, 12)
    with pytest.raises(FileNotFoundError, match="kept its ledger elsewhere"):
        first.ledger  # noqa: B018


def test_strategies_can_be_names_classes_and_functions(homes):
    def trimmed():
        from flwr.serverapp.strategy import FedTrimmedAvg
        return FedTrimmedAvg(beta=0.1)

    report = fe.compare(homes, fe.Explain(**SMALL), fe.Query(), [SECURE_SUM, ZonalSum, trimmed], oracle=False)
    assert list(report.table["strategy"]) == ["SecureSum", "ZonalSum", "trimmed"]
    assert "mae" not in set(report.metrics["metric"])  # without an oracle no error can be computed


SCRIPT = """
import fedenergy as fe

class Half:
    def offer(self, case):
        return fe.Offer(case.query.epsilon / 2, reason="half of what was asked")

homes = fe.simulate_households(6, steps=400, seed=1)
for workers in (0, 2):
    report = fe.run(homes, fe.Explain(lags=[1, 24], trees=5), fe.Query(), policy=Half(), workers=workers)
    print(report.table["mae"][0].hex(), report.table["epsilon_spent_mean"][0])
"""


@pytest.mark.slow
def test_a_script_whose_policy_lives_in_main(folder):
    """A class of __main__ reaches Ray's workers by value."""
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().splitlines()
    assert first == second
    assert first.endswith(" 0.5")


# Mistakes cost nothing


@dataclass(frozen=True)
class Odd:
    """Homes of a population, with ids of one's own."""

    homes: object
    ids: tuple[str, ...]
    name: str = "odd"
    unit: str = "household"

    def __len__(self) -> int:
        return len(self.ids)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(object.__getattribute__(self, "homes"), name)


MISTAKES = {
    "an instance": ({"strategies": [ZonalSum()]}, "ZonalSum is an instance.*pass the class"),
    "an unknown name": ({"strategies": ["strategies.zonal_sum:ZonalSumm"]}, 'Did you mean "ZonalSum"?'),
    "an unknown module": ({"strategies": ["strategies.zonal_summ:ZonalSum"]}, "there is no module"),
    "a dot for a colon": ({"strategies": ["strategies.zonal_sum.ZonalSum"]}, 'Did you mean "strategies.zonal_sum:Zona'),
    "one name for a list": ({"strategies": ZONAL}, "is not of the form"),
    "a kind of another task": ({"query": fe.Query("train")}, 'kind = "train": Explain answers'),
    "a cap below one query": ({"agreement": fe.AgreementTerms(cap=0.1)}, "cap = 0.1 is below one query of epsilon = 1"),
    "open without an oracle": ({"strategies": ["strategies.non_private:NonPrivate"], "oracle": False}, "oracle = true"),
    "a trust mode not signed": ({"strategies": [SECURE_SUM], "agreement": fe.AgreementTerms(trust=("local",))},
                                "every home would refuse"),
    "lags beyond the record": ({"task": fe.Explain(lags=[1, 500])}, "400 steps are too few .* 524 steps would do"),
    "too many rounds": ({"query": fe.Query(rounds=40), "task": fe.Explain(lags=[1, 24])}, "984 steps would do"),
}


def expect_mistake(homes, options, said, folder):
    task, query, strategies = (options.pop(name, default) for name, default in (
        ("task", fe.Explain(**SMALL)), ("query", fe.Query()), ("strategies", [ZONAL])))
    with pytest.raises(ConfigError, match=said):
        fe.compare(options.pop("homes", homes), task, query, strategies, **options)
    assert list(folder.rglob("*.sqlite")) == []
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_before_anything_is_spent(homes, folder, name):
    options, said = MISTAKES[name]
    expect_mistake(homes, dict(options), said, folder)


@pytest.mark.parametrize(("ids", "said"), [
    (("a", "b", "a"), "odd repeats a household id"), ((), "odd has no household")], ids=["repeated ids", "no homes"])
def test_a_population_that_is_none(homes, folder, ids, said):
    expect_mistake(homes, {"homes": Odd(homes, ids)}, said, folder)


UNCHECKED = {
    "no strategy": {"strategies": []},
    "a class that is none": {"strategies": [object]},
    "a number for a strategy": {"strategies": [3]},
    "a class twice": {"strategies": [ZonalSum, ZonalSum]},
    "no seeds": {"seeds": []},
    "a seed twice": {"seeds": [1, 1]},
    "a negative seed": {"seeds": [-1]},
    "half a seed": {"seeds": [0.5]},
    "a policy's class": {"policy": fe.Fixed},
    "a policy's name": {"policy": "fedenergy:Fixed"},
    "no such noise": {"noise": "none"},
    "fewer than no workers": {"workers": -1},
    "a task's class": {"task": fe.Explain},
    "a query's kind": {"query": "appliances"},
    "a table for terms": {"agreement": {"cap": 1.0}},
    "a list for a population": {"homes": []},
    "a path for a name": {"name": "../elsewhere"},
}


@pytest.mark.parametrize("name", UNCHECKED)
def test_a_mistake_of_another_kind_is_named_before_anything_is_spent(homes, folder, name):
    expect_mistake(homes, dict(UNCHECKED[name]), ".", folder)


def test_two_functions_of_one_name_are_two_strategies_or_a_mistake(homes):
    try:
        report = fe.compare(homes, fe.Explain(**SMALL), fe.Query(), [lambda: ZonalSum(), lambda: Loud()])
    except ConfigError:
        return
    assert len(report.table) == 2
    assert report.table["mae"].nunique() == 2


class Loud(ZonalSum):
    """Ten times the sum: no two strategies of these tests agree."""

    def combine(self, answers):
        return 10 * super().combine(answers)
