"""Every kind of query through every trust mode, end to end at toy size; Gaussian noise with its delta and its charge."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedenergy as fe
from fedenergy.box.box import answer_many
from fedenergy.box.ledger import Charge, Ledger
from fedenergy.box.policy import Offer
from fedenergy.box.query import Query
from fedenergy.box.world import KindSpec
from fedenergy.errors import ConfigError
from fedenergy.explain.kinds import KINDS
from fedenergy.federation.scores import exact_sum
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.gaussian import Gaussian, rho_micro
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.noisy_max import NoisyMax
from fedenergy.report.zone import read_answer
from strategies.secure_sum import SecureSum
from tests.federation.helpers import CELL, Says, Window, boxes_of, make_world, seal

HOMES, ROUNDS = 6, 2
TASK = fe.Explain(lags=(1, 24), trees=5, depth=2)
STRATEGIES = [f"strategies.{name}" for name in ("zonal_sum:ZonalSum", "secure_sum:SecureSum",
                                                "central_laplace:CentralLaplace", "non_private:NonPrivate")]
GAUSSIANS = [f"strategies.{name}" for name in ("zonal_gaussian:ZonalGaussian", "central_gaussian:CentralGaussian")]
DELTA = 1e-5


def population(homes=HOMES):
    return fe.simulate_households(homes, steps=24 * 9, seed=2)


def compare(tmp_path, query, strategies=STRATEGIES, task=TASK, homes=HOMES, **known):
    return fe.compare(population(homes), task, query, strategies, out=tmp_path, **known)


def expected(kind, rounds=ROUNDS, homes=HOMES):
    """The unclipped sums, one per round, straight from the readings."""
    people = population(homes)
    windows = TASK.windows(people, rounds, "next_window")
    return [np.sum([TASK.measures.summary(kind, people.load(index), window.rows) for index in range(homes)], axis=0)
            for window in windows]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_through_every_trust_mode(kind, tmp_path):
    report = compare(tmp_path, fe.Query(kind, rounds=ROUNDS))
    spec = TASK.kind_spec(kind, population())
    summary = json.loads((report.folder / "summary.json").read_text())
    assert summary["coordinates"] == list(spec.coordinates)
    assert summary["unit_of_values"] == spec.unit
    rows = report.metrics.pivot_table(index=["strategy", "round"], columns="metric", values="value")
    assert (rows["answers"] == HOMES).all()
    assert (rows["refusals"] == 0).all()
    truths = expected(kind)
    for zone in summary["zones"]:
        assert zone["true_total"] == pytest.approx(truths[zone["round"] - 1], rel=1e-9, abs=1e-12)
        if zone["strategy"] == "NonPrivate":
            assert zone["released"] == pytest.approx(zone["true_total"], rel=1e-12, abs=1e-12)
    noises = {answer["strategy"]: answer for answer in summary["zone_answers"] if answer["round"] == 1}
    assert set(noises) == {"ZonalSum", "SecureSum", "CentralLaplace"}
    b = Laplace(spec.clip).scale_units(micro(fe.Query(kind).epsilon))
    for name in ("SecureSum", "CentralLaplace"):
        assert noises[name]["noise"] == {"law": "laplace", "scale": b, "noises": 1}
    if kind != "top":
        assert noises["ZonalSum"]["noise"] == {"law": "laplace", "scale": b, "noises": HOMES}
    for zone in summary["zones"]:                             # the noise is that large: 1e-9 that none of these holds
        if zone["strategy"] != "NonPrivate":
            error = np.abs(np.subtract(zone["released"], zone["true_clipped"])).max()
            assert 0 < error < (HOMES if zone["strategy"] == "ZonalSum" else 1) * b * 25
    ledger = report.ledger
    private = ledger[ledger["trust"] != "open"]
    assert set(private["epsilon"]) == {fe.Query(kind).epsilon}
    assert (private["delta"] == 0).all()
    assert len(private) == 3 * HOMES * ROUNDS
    for answer in summary["zone_answers"]:                    # and the operator's report can be read from each of them
        assert read_answer(answer).answers == HOMES
    if kind == "top":
        assert "homes that answered" in report.to_html().read_text(encoding="utf-8")


def test_a_general_kind_fits_no_model(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a model was fitted")
    monkeypatch.setattr("fedenergy.explain.summary.model.fit", fail)
    compare(tmp_path, fe.Query("total"), STRATEGIES[:1])


def test_appliances_by_dayparts(tmp_path):
    report = compare(tmp_path, fe.Query("appliances"), task=replace(TASK, coordinates="daypart"),
                     agreement=fe.AgreementTerms(granularity="daypart"))
    summary = json.loads((report.folder / "summary.json").read_text())
    assert summary["coordinates"] == ["night", "morning", "day", "evening", "late"]
    assert all(answer["answers"] == HOMES for answer in summary["zone_answers"])


def test_a_kind_finer_than_agreed_is_refused(tmp_path):
    report = compare(tmp_path, fe.Query("top"), STRATEGIES[:1], oracle=False,
                     agreement=fe.AgreementTerms(granularity="daypart"))
    assert set(report.metrics.query("metric == 'refusals'")["value"]) == {HOMES}


# -- top ---------------------------------------------------------------------------------------------------------------

def test_under_local_trust_a_home_tells_one_category(tmp_path):
    report = compare(tmp_path, fe.Query("top", epsilon=1.0), STRATEGIES[:1], homes=HOMES)
    assert set(report.ledger.query("trust == 'local'")["mechanism"]) == {"noisy-max"}
    releases = pd.read_parquet(report.folder / "releases.parquet")
    low, high = (level * NoisyMax().grid.step for level in NoisyMax().levels(1_000_000, 7))
    for _, values in releases.groupby("household")["value"]:
        assert sorted(values) == [low] * 6 + [high]
    (answer,) = json.loads((report.folder / "summary.json").read_text())["zone_answers"]
    assert sum(answer["released"]) == pytest.approx(HOMES, abs=1e-3)
    most = max(NoisyMax().variance(1_000_000, 7))
    assert answer["noise"] == {"law": "normal", "sd": pytest.approx(math.sqrt(HOMES * most))}


def test_statistics_the_count_of_categories_is_unbiased(tmp_path):
    """30 runs of 6 homes: the mean count lies within 3.9 standard errors of the true one, in every category."""
    report = compare(tmp_path, fe.Query("top", epsilon=3.0), STRATEGIES[:1], seeds=range(30))
    summary = json.loads((report.folder / "summary.json").read_text())
    released = np.array([answer["released"] for answer in summary["zone_answers"]])
    (truth,) = expected("top", 1)
    error = np.abs(released.mean(axis=0) - truth)
    assert (error < 3.9 * math.sqrt(HOMES * max(NoisyMax().variance(3_000_000, 7)) / 30)).all()


# -- Gaussian noise ----------------------------------------------------------------------------------------------------

def gaussian(tmp_path, query=None, agreement=None, **known):
    query = query or fe.Query("appliances", rounds=ROUNDS, delta=DELTA)
    return compare(tmp_path, query, GAUSSIANS, agreement=agreement or fe.AgreementTerms(delta=ROUNDS * DELTA), **known)


def test_gaussian_noise_is_charged_with_delta_and_rho(tmp_path):
    report = gaussian(tmp_path)
    private = report.ledger[report.ledger["trust"] != "open"]
    assert set(private["mechanism"]) == {"gaussian"}
    assert set(private["delta"]) == {DELTA}
    assert set(private["rho_micro"]) == {rho_micro(1_000_000, DELTA)}
    assert set(report.metrics.query("trust != 'open'")["delta"]) == {DELTA}
    summary = json.loads((report.folder / "summary.json").read_text())
    sigma = Gaussian(50.0, DELTA).scale_units(1_000_000)
    laws = {answer["strategy"]: answer["noise"]["sd"] for answer in summary["zone_answers"]}
    assert laws == {"ZonalGaussian": pytest.approx(sigma * math.sqrt(HOMES)), "CentralGaussian": pytest.approx(sigma)}
    with Ledger(report.folder / "ledger") as ledger:
        assert ledger.verify() == []


def test_gaussian_answers_are_scored_against_sums_clipped_in_l2(tmp_path):
    report = gaussian(tmp_path, task=replace(TASK, clip=0.5), query=fe.Query("appliances", delta=DELTA))
    summary = json.loads((report.folder / "summary.json").read_text())
    people, law = population(), Gaussian(0.5, DELTA)
    (window,) = TASK.windows(people, 1, "next_window")
    homes = [TASK.explainer.summary(people.load(index), slice(*window.rows)).values for index in range(HOMES)]
    clipped = exact_sum([law.plain(values)[0] for values in homes], 7)
    for zone in summary["zones"]:
        assert zone["true_clipped"] == pytest.approx(clipped, rel=1e-12)
    share = report.metrics.query("metric == 'clipped_share'")["value"]
    assert set(share) == {np.mean([np.linalg.norm(values) > 0.5 for values in homes])}


@pytest.mark.parametrize("kind", ["total", "top", "peak_hour"])
def test_general_kinds_under_gaussian_noise(kind, tmp_path):
    report = gaussian(tmp_path, fe.Query(kind, delta=DELTA))
    answers = json.loads((report.folder / "summary.json").read_text())["zone_answers"]
    assert [answer["mechanism"] for answer in answers] == ["gaussian", "gaussian"]
    assert all(answer["answers"] == HOMES for answer in answers)


def test_deltas_add_up_to_at_most_the_agreed_one(tmp_path):
    """Three rounds asked, two allowed: 1e-5 + 1e-5 = 2e-5, to the digit."""
    report = gaussian(tmp_path, fe.Query("total", rounds=3, delta=DELTA), fe.AgreementTerms(delta=2 * DELTA))
    refusals = report.metrics.query("metric == 'refusals'").groupby("round")["value"].max()
    assert refusals.tolist() == [0, 0, HOMES]
    assert report.ledger.groupby(["household", "cell"])["delta"].sum().max() == pytest.approx(2 * DELTA)


def test_the_ledger_adds_deltas_up_in_the_scope_of_the_cap(tmp_path):
    """Three times 1e-5 are 3e-5; another cell counts only where the cap sums all cells; asking again is free."""
    def charge(query, cell="one", **known):
        return Charge("h1", query, b"digest", cell, 0, 0, "household", "replace-one", "gaussian", "local", 1000, 10**6,
                      delta=1e-5, rho_micro=1, delta_cap=3e-5, **known)

    with Ledger(tmp_path) as ledger:
        asked = [charge(f"q{n}") for n in range(4)]
        assert [o.status for o in ledger.settle(asked, lambda i: b"noised")] == ["charged"] * 3 + ["over_cap"]
        again = [*asked[:1], charge("q4"), charge("q5", "two"), charge("q6", "two", all_cells=True)]
        assert [o.status for o in ledger.settle(again, lambda i: b"noised")] == ["stored", "over_cap", "charged", "over_cap"]
        assert ledger.spent("h1") == 4000                  # nothing was charged for what was refused
        assert ledger.verify() == []


@pytest.mark.parametrize(("query", "terms", "word"), [
    (fe.Query("total"), {"delta": DELTA}, r"\[query\] delta is not given"),
    (fe.Query("total", delta=DELTA), {}, r"\[agreement\] delta = 0 is below one query"),
    (fe.Query("total", epsilon=0.001, delta=DELTA), {"delta": DELTA}, "less than a millionth of rho")])
def test_a_study_without_delta_is_refused_before_it_runs(query, terms, word, tmp_path):
    with pytest.raises(ConfigError, match=word):
        gaussian(tmp_path, query, fe.AgreementTerms(**terms))


def test_there_is_no_gaussian_sum(tmp_path):
    class Summed(SecureSum):
        mechanism = "gaussian"

    with pytest.raises(ConfigError, match="do not add up to one"):
        compare(tmp_path, fe.Query("total", delta=DELTA), [Summed], agreement=fe.AgreementTerms(delta=DELTA))


# -- the box decides for itself ----------------------------------------------------------------------------------------

class Kinds:
    """A task with two kinds that differ in everything."""

    kinds, unit, clip = ("appliances", "total"), "kWh^2", 64.0

    def coordinate_names(self, population):
        return tuple(population.channels)

    def kind_spec(self, kind, population):
        return KindSpec(("total",), "kWh/day", 20.0) if kind == "total" else KindSpec(("a", "b"), "kWh^2", 64.0)

    def identity(self):
        return {"use": "tests.federation.test_kinds:Kinds"}

    def windows(self, population, rounds, repeat):
        raise NotImplementedError

    def answer_many(self, boxes, queries, **extra):
        return answer_many(boxes, queries, lambda boxes, queries: [
            (NoiseFree(np.array([5.0] if query.kind == "total" else [3.0, 4.0])), "") for query in queries], **extra)


def ask(world, query):
    (answer,) = world.task.answer_many(boxes_of(world)[:1], [query], seed=1)
    return answer


def sealed(world, kind="total", trust="local", mechanism="laplace", delta=0.0, epsilon=1.0, clip=None):
    clip = world.spec(kind).clip if clip is None else clip
    return Query(kind, epsilon, delta=delta).sealed(
        task=world.task.identity(), population=world.population.identity(), window=Window((0, 49)),
        grid=NoiseGrid(clip).step, clip=clip, trust=trust, mechanism=mechanism, cell=CELL, round=0,
        homes=world.population.ids)


@pytest.mark.parametrize(("change", "code"), [
    ({"kind": "total"}, "charged"), ({"kind": "appliances"}, "charged"), ({"kind": "total", "clip": 64.0}, "clip"),
    ({"kind": "trend", "clip": 64.0}, "kind"), ({"mechanism": "noisy-max", "trust": "curator"}, "mechanism"),
    ({"mechanism": "gaussian", "delta": DELTA, "trust": "sum"}, "mechanism"),
    ({"mechanism": "gaussian"}, "delta"), ({"mechanism": "gaussian", "delta": 0.1}, "delta"),
    ({"mechanism": "gaussian", "delta": DELTA}, "charged"),
    ({"mechanism": "gaussian", "delta": DELTA, "epsilon": 0.001}, "delta")])
def test_a_box_checks_kind_bound_and_mechanism(change, code, tmp_path):
    world = make_world(tmp_path, Kinds(), delta=0.01)
    answer = ask(world, sealed(world, **change))
    assert answer.code == code
    if code == "charged":
        assert answer.envelope.values.shape == ((1,) if change.get("kind", "total") == "total" else (2,))


def test_a_home_that_grants_less_deposits_less_under_gaussian_noise(tmp_path):
    world = make_world(tmp_path, Kinds(), policy=Says(Offer(0.1, "a tenth")), delta=0.01)
    answer = ask(world, sealed(world, trust="curator", mechanism="gaussian", delta=DELTA))
    law = Gaussian(20.0, DELTA)
    assert answer.envelope.epsilon_micro == 100_000
    assert answer.envelope.values.tolist() == [min(law.bound_for(100_000, 1_000_000), round(5.0 / law.grid.step))]
    assert law.bound_for(100_000, 1_000_000) < round(5.0 / law.grid.step)       # so it was clipped to its own rho


def test_laplace_queries_carry_no_delta(tmp_path):
    world = make_world(tmp_path, Kinds())
    assert "delta" not in sealed(world, delta=DELTA).body
    assert sealed(world, delta=DELTA).id == sealed(world).id
    assert sealed(world, mechanism="gaussian", delta=DELTA).delta == DELTA
    assert sealed(world, mechanism="gaussian", delta=DELTA).query.delta == DELTA
    plain = make_world(tmp_path / "plain", fe.Explain(lags=(1,)))
    assert seal(plain, "local").body["task"] == sealed(plain, "appliances").body["task"]
