"""A negotiated study: the offers of the last round are what the ledger charges, whatever crashes or lies in between."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

import fedenergy as fe
from fedenergy.box.box import open_ledger
from fedenergy.box.ledger import Ledger
from fedenergy.box.negotiation import Budget, NeedAccuracy, Procurement, Response, TakeIt
from fedenergy.box.policies import BoundedSearch, Fixed
from fedenergy.box.policies_paid import Auction
from fedenergy.box.policies_weighted import AttributionWeighted, FeatureWeighted
from fedenergy.box.policy import Offer, Public, Published
from fedenergy.box.query import Query, homes_digest
from fedenergy.box.zone_store import ZoneStore
from fedenergy.config import Engine
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import negotiation_rounds as rounds
from fedenergy.federation import study
from fedenergy.federation.campaign import load_state
from fedenergy.federation.negotiation_rounds import Negotiation
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.study import play_plan
from fedenergy.federation.trust_grid import Crossings, Exchange, TrustGrid
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from strategies.central_laplace import CentralLaplace
from strategies.secure_sum import SecureSum
from strategies.zonal_sum import ZonalSum
from tests.federation.helpers import (
    FITTED,
    Known,
    Planted,
    Says,
    Sums,
    Tap,
    boxes_of,
    local_grid,
    make_world,
    seal,
    to_homes,
)
from tests.federation.test_leaks import planted
from tests.federation.test_study import Stop, StopAfter, make_config, one_by_one, ray_again, results  # noqa: F401

HOMES = 6
SEARCH = BoundedSearch(epsilon_target=1.5, ell=1.4, price=1.0, utility="zone", rounds=32)
NEED = NeedAccuracy(need=0.99, prior=0.2)


def ProtocolSum():  # its name is its label
    return SecureSum(mode="protocol")


STRATEGIES = [ZonalSum, SecureSum, ProtocolSum, CentralLaplace]


@pytest.fixture(autouse=True)
def fresh():
    FITTED.clear()
    yield
    open_ledger.cache_clear()


def made(folder, strategies, *, policy=SEARCH, operator=NEED, turns=4, population=None, asked=2, epsilon=3.0, **more):
    return plan_from_objects(population or Planted(HOMES), more.pop("task", Sums()), Query(epsilon=epsilon, rounds=asked),
                             strategies, policy=policy, operator=operator, negotiation_rounds=turns,
                             engine=Engine(workers=0), folder=folder, **more)


def charged(plan) -> dict[tuple[str, str], int]:
    with Ledger(plan.ledger) as ledger:
        assert ledger.verify() == []
        return {(row.household, row.query_id): row.epsilon_micro for row in ledger.rows() if row.trust != "open"}


def agreed(plan) -> dict[tuple[str, str], int]:
    """(household, query) -> the offers that were kept."""
    found = {}
    with ZoneStore(plan.ledger) as zones, Ledger(plan.ledger) as ledger:
        names = list(plan.parts[0].world.population.ids)
        for query in {row.query_id for row in ledger.rows() if row.trust != "open"}:
            kept = json.loads(zones.get(f"offers-{query}-{homes_digest(names)}").payload)
            found |= {(name, query): one[0] for name, one in kept.items()}
    return found


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda item: item.__name__)
def test_the_last_offers_are_what_the_ledger_charges_and_again_nothing(tmp_path, strategy):
    plan = made(tmp_path / "run", [strategy])
    folder = play_plan(plan)
    first = charged(plan)
    assert len(first) == 2 * HOMES
    assert first == agreed(plan)
    assert all(100_000 < amount < 3_000_000 for amount in first.values())
    before = results(folder)
    fitted = len(FITTED)
    play_plan(plan)  # from the first round again: the same offers, the same answers, no charge
    assert charged(plan) == first
    assert results(folder) == before
    assert fitted > 0


def test_it_negotiates_further_than_one_round_does(tmp_path):
    one, many = (made(tmp_path / str(turns), [ZonalSum], turns=turns, asked=1) for turns in (1, 4))
    play_plan(one)
    play_plan(many)
    assert set(charged(one).values()) == {100_000}
    assert min(charged(many).values()) > 1_000_000


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_a_run_stopped_between_turns_resumes_to_the_same_bytes(tmp_path, turns):
    policy = replace(SEARCH, epsilon_target=None, ell=0.5, price=0.3, utility="own_report")  # follows releases
    whole = made(tmp_path / "whole", [ZonalSum, SecureSum], policy=policy, asked=3)
    expected = results(play_plan(whole))
    plan = made(tmp_path / "cut", [ZonalSum, SecureSum], policy=policy, asked=3)
    with pytest.raises(Stop):
        play_plan(plan, StopAfter(turns))
    with study._only_run(plan.out):
        study._play(plan, StopAfter(10**6))
    assert results(plan.out) == expected
    assert charged(plan) == charged(whole)
    state = load_state(plan.out / "checkpoints" / "all-seed0.json")
    assert [len(found) for found in state.published.values()] == [3, 3]


def test_earlier_answers_reach_the_homes_and_the_operator(tmp_path):
    seen = []

    @dataclass(frozen=True)
    class Watch:
        def respond(self, bids, case):
            seen.append((case.public.trust, len(case.public.releases)))
            return Response(done=case.round > 0)

    def by_releases(case):
        return Offer(0.5 if case.public.releases else 0.25, "more once something was published")

    plan = made(tmp_path / "run", [ZonalSum, SecureSum], policy=Says(by_releases), operator=Watch())
    play_plan(plan)
    assert sorted(set(seen)) == [("local", 0), ("local", 1), ("sum", 0), ("sum", 1)]
    assert sorted(charged(plan).values()) == [250_000] * 2 * HOMES + [500_000] * 2 * HOMES


def test_who_is_not_bought_is_not_asked(tmp_path):
    plan = made(tmp_path / "run", [ZonalSum, SecureSum], policy=Auction(), operator=Procurement(3.0), asked=1, epsilon=1.0)
    folder = play_plan(plan)
    sold = len(charged(plan))
    assert 0 < sold < 2 * HOMES
    with open(folder / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] in ("answers", "refusals", "failures")]
    for strategy in ("ZonalSum", "SecureSum"):
        counts = {row["metric"]: float(row["value"]) for row in rows if row["strategy"] == strategy}
        assert counts == {"answers": sold / 2, "refusals": HOMES - sold / 2, "failures": 0}
    found = json.loads((folder / "summary.json").read_text())["refusals"]
    assert {row["code"] for row in found} == {"outbid"}  # of the last round; the offers of those bought are none
    assert sum(row["count"] for row in found) == 2 * HOMES - sold


def test_who_sees_what_counts_offers_and_words(tmp_path):
    summary = json.loads((play_plan(made(tmp_path / "run", [ZonalSum, ProtocolSum], operator=TakeIt(), asked=1))
                          / "summary.json").read_text())
    rows = {(row["trust"], row["envelope"]): row for row in summary["who_sees_what"]}
    assert rows["local", "Offer"]["count"] == rows["sum", "Offer"]["count"] == HOMES
    assert rows["local", "Offer"]["seen_by"] == "the operator: epsilon, kind, window, code; computed from public state"
    assert rows["sum", "Acceptance"]["count"] == HOMES
    assert rows["sum", "Share"]["seen_by"] == "nobody singly; the aggregator opens only the sum over survivors"
    assert rows["local", "Release"]["count"] == HOMES
    plain = json.loads((play_plan(made(tmp_path / "plain", [SecureSum, ProtocolSum], operator=None, asked=1))
                        / "summary.json").read_text())
    rows = {(row["trust"], row["envelope"]): row for row in plain["who_sees_what"]}
    assert ("sum", "Offer") not in rows
    assert rows["sum", "Share"]["seen_by"].startswith("nobody singly; the Summer reveals the sum; in protocol mode nobody")


# the wire

class Side:
    """One exchange with a negotiation over a tapped grid; change(message, reply): what the network does to replies."""

    def __init__(self, folder, change=None, operator=NEED, policy=SEARCH, population=None, **terms: Any) -> None:
        self.world = make_world(folder, Sums(), HOMES, policy=policy, population=population or Planted(HOMES), **terms)
        self.tap, self.crossings = Tap(local_grid(self.world), change), Crossings()
        self.zones, self.operator = ZoneStore(self.world.ledger), operator

    def ask(self, trust, indices=range(HOMES), exchange=None):
        self.exchange = exchange or Exchange(self.tap, self.world, 0, 3, self.zones, self.crossings,
                                             Negotiation(self.operator, 4))
        grid = TrustGrid(self.exchange, trust, lambda homes: seal(self.world, trust, homes, epsilon=3.0))
        return grid, grid.send_and_receive(to_homes(indices))

    def spent(self):
        return {name: open_ledger(self.world.ledger).spent(name) for name in self.world.population.ids}

    def of_kind(self, kind, way):
        return [c for c in self.tap.crossings if (c.kind, c.way) == (kind, way)]


NEGOTIATE = "query.negotiate"


def lie(at, **fields):
    """The network puts other fields into the bids of one home."""
    def change(message, reply):
        if message.metadata.message_type != NEGOTIATE or flower.node_index(message.metadata.dst_node_id) != at:
            return reply
        record = dict(reply.content[rounds.BID])
        return flower.reply(message, RecordDict({rounds.BID: ConfigRecord({**record, **fields})}))
    return change


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
@pytest.mark.parametrize("fields", [{"epsilon_micro": 10**12}, {"household": "h0"}, {"extra": 1}, {"status": "bribe"},
                                    {"code": "3.25 kWh at noon"}, {"kind": "nothing"}, {"window": ["a", "b"]},
                                    {"window": [5, 2]}], ids=str)
def test_a_hostile_bid_is_one_failure(tmp_path, trust, fields):
    side = Side(tmp_path, lie(2, **fields))
    grid, replies = side.ask(trust)
    assert (grid.failed, grid.refused, len(grid.answered)) == (1, 0, HOMES - 1)
    assert replies
    assert "h2" not in grid.answered
    assert side.spent()["h2"] == 0
    assert side.crossings.errors[trust] == 1
    assert len([c for c in side.of_kind(NEGOTIATE, "in") if flower.node_index(c.node) == 2]) == 1  # asked no more


@pytest.mark.parametrize("fields", [{"tag": b"\0" * 32}, {"epsilon_micro": 3_000_000}])
def test_a_changed_offer_binds_nobody(tmp_path, fields):
    """The operator (or the network) raises an offer, or makes one up: the box knows that it is not its own."""
    side = Side(tmp_path, lie(2, **fields))
    grid, _ = side.ask("local")
    assert (grid.failed, grid.refused) == (0, 1)
    assert side.spent()["h2"] == 0


def test_a_home_that_fails_in_a_negotiation_is_asked_again_by_the_next_run(tmp_path):
    side = Side(tmp_path, lie(2, extra=1))
    assert side.ask("local")[0].failed == 1
    spent = side.spent()
    side.tap.change = None
    grid, _ = side.ask("local")
    assert (grid.failed, grid.answered) == (0, tuple(f"h{at}" for at in range(HOMES)))
    assert {name: amount for name, amount in side.spent().items() if name != "h2"} \
        == {name: amount for name, amount in spent.items() if name != "h2"}
    assert side.spent()["h2"] > 0


def test_a_strategy_that_asks_other_homes_negotiates_with_those_alone(tmp_path):
    side = Side(tmp_path)
    first, _ = side.ask("local", range(3))
    talked = len(side.of_kind(NEGOTIATE, "out"))
    second, replies = side.ask("local", range(HOMES), side.exchange)
    assert (first.answered, second.answered) == (("h0", "h1", "h2"), tuple(side.world.population.ids))
    assert {flower.node_index(c.node) for c in side.of_kind(NEGOTIATE, "out")[talked:]} == {3, 4, 5}
    assert len(replies) == HOMES
    third, _ = side.ask("local", [1, 4], side.exchange)
    assert third.answered == ("h1", "h4")


def test_an_offer_above_what_remains_is_refused_before_anything_is_fitted(tmp_path):
    side = Side(tmp_path, policy=Says(lambda case: Offer(2, "always two")), operator=TakeIt(), cap=3.0)
    side.ask("local")
    FITTED.clear()
    box = boxes_of(side.world)[0]
    query = seal(side.world, "local", epsilon=3.0, rows=(0, 24))
    box.bound[query.id] = 2_000_000
    [answer] = side.world.task.answer_many([box], [query], seed=0)
    assert (answer.envelope, answer.code) == (None, "budget")
    assert FITTED == []


@pytest.mark.parametrize("size", [1e155, 1e308])
def test_one_home_that_sends_huge_numbers_does_not_end_the_talks(tmp_path, size):
    side = Side(tmp_path)
    side.ask("local")
    query = seal(side.world, "local", epsilon=3.0)
    side.exchange.published.clear()
    side.exchange.publish(query, [np.array([size, size]), np.array([size, 1.0])], [1_000_000, 500_000])
    releases = tuple(Published(**one) for one in side.exchange.published.values())
    assert len(releases) == (size < 1e300)
    later = seal(side.world, "local", epsilon=3.0, rows=(0, 24))
    talk = Negotiation(NEED, 2, {later.cell: releases})
    exchange = Exchange(side.tap, side.world, 0, 3, side.zones, side.crossings, talk)
    grid = TrustGrid(exchange, "local", lambda homes: later)
    grid.send_and_receive(to_homes(range(HOMES)))
    assert (grid.failed, grid.refused) == (0, 0)


def test_the_epsilon_noted_gives_the_noise_that_is_in_the_answer(tmp_path):
    side = Side(tmp_path)
    side.ask("local")
    query = seal(side.world, "local", epsilon=3.0)
    side.exchange.publish(query, [np.ones(2)] * 3, [1_000_000, 500_000, 2_000_000])
    [found] = side.exchange.published.values()
    law = Laplace(64.0)
    variance = sum(law.scale_units(amount) ** 2 for amount in (1_000_000, 500_000, 2_000_000))
    assert found["noises"] * (law.sensitivity() / found["epsilon"]) ** 2 == pytest.approx(variance)
    assert (found["values"], found["homes"]) == ([3.0, 3.0], 3)


def test_messages_have_exactly_this_schema(tmp_path):
    side = Side(tmp_path, operator=Budget(money=6.0, need=0.99))
    side.ask("local")
    for crossing in side.of_kind(NEGOTIATE, "in"):
        assert set(crossing.content) == {"bid"}
        assert set(crossing.content["bid"]) == {"household", "query_id", "status", "epsilon_micro", "kind", "code", "window",
                                                "tag", "price_micro"}
    for crossing in side.of_kind(NEGOTIATE, "out"):
        assert set(crossing.content) == {"query", "terms"}
        assert set(crossing.content["terms"]) == {"homes", "payments", "epsilons", "need", "feedback", "kind", "values",
                                                  "release"}
    asked = side.of_kind("train", "out")
    assert len(asked) == HOMES
    for crossing in asked:
        assert set(crossing.content) == {"query", "binding"}
        assert set(crossing.content["binding"]) == {"homes", "epsilons", "payments", "tags"}
    for crossing in side.of_kind("train", "in"):
        assert set(crossing.content) == {"arrays", "metrics", "envelope"}


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
def test_homes_with_other_data_and_the_same_public_state_bid_the_same_bytes(tmp_path, trust):
    one = Side(tmp_path / "one")
    other = Side(tmp_path / "other", population=Planted(HOMES, odd=(1, "large")))
    one.ask(trust)
    other.ask(trust)
    kinds = (NEGOTIATE, "query.accept")
    bids = [[(c.way, c.node, c.kind, c.data) for c in side.tap.crossings if c.kind in kinds] for side in (one, other)]
    assert bids[0] == bids[1]
    assert len(bids[0]) >= 2 * HOMES
    assert one.spent() == other.spent()
    answers = [[c.data for c in side.of_kind("train", "in")] for side in (one, other)]
    assert answers[0] != answers[1]  # the scan above would see a difference


def test_no_reading_is_in_what_a_negotiation_says(tmp_path):
    side = Side(tmp_path)
    side.ask("local")
    needles = planted(Planted(HOMES), Sums(), 1, (0.5,))
    assert needles.scan({str(at): c.data for at, c in enumerate(side.tap.crossings)}) == set()
    assert needles.scan({"found": Planted(HOMES).load(0).readings.tobytes()})  # it would see one


# noise shaped by coordinate

PROFILE = (9.0, 1.0)


@pytest.mark.parametrize("strategy", [ZonalSum, SecureSum, CentralLaplace], ids=lambda item: item.__name__)
def test_public_weights_shape_the_noise(tmp_path, strategy):
    """S within the weighted ball: the answer is the sum plus noise on the grid of w_k g, charged as weighted."""
    policy = FeatureWeighted(profile=PROFILE)
    task = Known(64.0, values=tuple((20.0 + at, 2.0) for at in range(HOMES)))
    plan = made(tmp_path / "run", [strategy], policy=policy, operator=None, asked=1, epsilon=1000.0, task=task,
                agreement=fe.AgreementTerms(cap=2000.0))
    folder = play_plan(plan)
    with Ledger(plan.ledger) as ledger:
        assert {row.mechanism for row in ledger.rows() if row.trust != "open"} == {"weighted-laplace"}
    summary = json.loads((folder / "summary.json").read_text())
    [zone] = summary["zones"]
    law = policy.mechanism(Public(N=HOMES, d=2, clip=64.0))
    assert zone["true_clipped"] == pytest.approx(zone["true_total"], abs=1e-3)
    assert zone["released"] == pytest.approx(zone["true_total"], abs=6 * 25 * max(law.scale_units(10**9)))
    steps = NoiseGrid(64.0).step * np.array(law.weights)
    assert not np.remainder(zone["released"], steps).any()
    [noise] = [answer["noise"] for answer in summary["zone_answers"]]
    assert noise["scale"] == pytest.approx(max(law.weights) * Laplace(64.0).scale_units(10**9))


def test_weights_of_one_are_the_plain_mechanism(tmp_path):
    kinds = {"plain": Fixed(), "weighted": FeatureWeighted(weights=(1.0, 1.0))}
    released = {}
    for name, policy in kinds.items():
        plan = made(tmp_path / name, [ZonalSum], policy=policy, operator=None, asked=1, epsilon=1.0)
        summary = json.loads((play_plan(plan) / "summary.json").read_text())
        released[name] = summary["zones"][0]["true_clipped"]
        assert any("equal weights" in note for note in summary["notes"]) == (name == "weighted")
    assert released["plain"] == released["weighted"]


def test_a_release_off_the_weighted_grid_is_a_failure(tmp_path):
    world = make_world(tmp_path, Sums(), 2, policy=FeatureWeighted(profile=PROFILE))
    query = Query("appliances", 1.0).sealed(
        task=world.task.identity(), population=world.population.identity(), window=(0, 49), grid=NoiseGrid(64.0).step,
        clip=64.0, trust="local", mechanism="weighted-laplace", cell="ab" * 16, round=0, homes=world.population.ids)
    plain = make_world(tmp_path / "plain", Sums(), 2)  # homes that do not know the weights refuse
    [answer] = plain.task.answer_many(boxes_of(plain)[:1], [query], seed=0)
    assert (answer.envelope, answer.code) == (None, "mechanism")

    def step(message, reply):
        if not reply.has_content():
            return reply
        values = reply.content["arrays"]["summary"].numpy().copy()
        values[1] += NoiseGrid(64.0).step / 2**11
        content = RecordDict({**reply.content})
        content["arrays"] = type(reply.content["arrays"])({"summary": type(reply.content["arrays"]["summary"])(values)})
        return flower.reply(message, content)

    for change, failed in ((None, 0), (step, 2)):
        exchange = Exchange(Tap(local_grid(world), change), world, 0, 3, ZoneStore(world.ledger), Crossings())
        grid = TrustGrid(exchange, "local", lambda homes: query)
        grid.send_and_receive(to_homes(range(2)))
        assert grid.failed == failed


def test_the_sources_weights_are_refused_unless_the_study_says_leaking(tmp_path):
    with pytest.raises(ConfigError, match=r"leaking = true"):
        made(tmp_path / "no", [ZonalSum], policy=AttributionWeighted(), operator=None)
    assert not (tmp_path / "no").exists()
    with pytest.raises(ConfigError, match='for trust "local"'):
        made(tmp_path / "no", [SecureSum], policy=AttributionWeighted(), operator=None, leaking=True)
    for leaking in (False, True):
        world = replace(make_world(tmp_path / str(leaking), Sums(), 1, policy=AttributionWeighted()), leaking=leaking)
        [answer] = world.task.answer_many(boxes_of(world), [seal(world, "local")], seed=0)
        assert (answer.code == "leaks") == (not leaking)
    folder = play_plan(made(tmp_path / "yes", [ZonalSum], policy=AttributionWeighted(), operator=None, asked=1,
                            leaking=True))
    with open(folder / "cells.csv", newline="") as file:
        assert {(row["mechanism"], row["guarantee"]) for row in csv.DictReader(file)} \
            == {("attribution-laplace", "no guarantee")}
    [row] = [row for row in json.loads((folder / "summary.json").read_text())["who_sees_what"] if row["trust"] == "local"]
    assert row["epsilon_vs_querier"].startswith("no guarantee")
    assert any(note.startswith("No guarantee: AttributionWeighted")
               for note in json.loads((folder / "summary.json").read_text())["notes"])


def test_policies_that_shape_noise_are_refused_where_they_cannot(tmp_path):
    with pytest.raises(ConfigError, match=r"FeatureWeighted shapes Laplace noise .* ProtocolSum"):
        made(tmp_path / "no", [ProtocolSum], policy=FeatureWeighted(profile=PROFILE), operator=None)
    with pytest.raises(ConfigError, match="3 factors do not fit 2 coordinates"):
        made(tmp_path / "no", [ZonalSum], policy=AttributionWeighted(preference=(1.0,) * 3), operator=None, leaking=True)


# as a config, and from a notebook

def test_a_config_negotiates(tmp_path):
    config = make_config(tmp_path, seeds=[0], policy={"use": "fedenergy:BoundedSearch", "epsilon_target": 0.25, "ell": 0.2},
                         negotiation={"use": "fedenergy:NeedAccuracy", "need": 0.99, "rounds": 3})
    folder = study.run_study(config)
    with open(folder / "cells.csv", newline="") as file:
        assert {row["policy"] for row in csv.DictReader(file)} == {"BoundedSearch"}
    with Ledger(folder / "ledger") as ledger:
        first = [row.epsilon_micro for row in ledger.rows() if row.trust != "open"]
    assert all(amount < 500_000 for amount in first)
    done = results(folder)
    study.run_study(config)
    assert results(folder) == done
    with Ledger(folder / "ledger") as ledger:
        assert [row.epsilon_micro for row in ledger.rows() if row.trust != "open"] == first


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_neither_workers_nor_single_messages_change_anything(tmp_path, monkeypatch, workers, ray_again):  # noqa: F811
    def run(name, **changes):
        return study.run_study(make_config(
            tmp_path / name, seeds=[0], query={"rounds": 2, "epsilon": 0.5}, negotiation={"use": "fedenergy:NeedAccuracy"},
            policy={"use": "fedenergy:BoundedSearch", "epsilon_target": 0.25, "ell": 0.2}, **changes))

    expected = results(run("batches"))
    if not workers:
        monkeypatch.setattr(study, "make_client", one_by_one)
    assert results(run("other", engine={"workers": workers, "batch": 5})) == expected


def test_the_report_shows_weighted_and_leaking_noise(tmp_path):
    for policy in (fe.FeatureWeighted(profile=PROFILE), fe.AttributionWeighted()):
        report = fe.compare(Planted(HOMES), Sums(), fe.Query(), [ZonalSum], policy=policy, leaking=True, out=tmp_path)
        leaking = type(policy) is fe.AttributionWeighted
        for shown in (str(report), report.to_html().read_text(encoding="utf-8")):
            assert "ZonalSum" in shown
            assert ("no guarantee under AttributionWeighted" in " ".join(shown.split())) == leaking


def test_compare_takes_an_operator(tmp_path):
    homes, task = Planted(HOMES), Sums()
    report = fe.compare(homes, task, fe.Query(epsilon=3.0), [ZonalSum], policy=SEARCH, operator=fe.NeedAccuracy(0.99),
                        negotiation_rounds=4, out=tmp_path)
    assert 0.1 < float(report.table["epsilon_spent_mean"].iloc[0]) < 3.0
    for options, said in (({"operator": fe.NeedAccuracy}, "no operator"), ({"operator": object()}, "no operator"),
                          ({"operator": NEED, "negotiation_rounds": 0}, "rounds = 0"),
                          ({"operator": NEED, "negotiation_rounds": 65}, "rounds = 65")):
        with pytest.raises(ConfigError, match=said):
            fe.compare(homes, task, fe.Query(), [ZonalSum], out=tmp_path, **options)


def test_a_study_in_which_a_home_breaks_the_negotiation_fails_and_says_so(tmp_path, monkeypatch):
    real = study.make_grid
    monkeypatch.setattr(study, "make_grid", lambda plan, homes: Tap(real(plan, homes), lie(2, extra=1)))
    with pytest.raises(RunFailed, match="1 of 6 homes failed"):
        play_plan(made(tmp_path / "run", [ZonalSum], oracle=False))
