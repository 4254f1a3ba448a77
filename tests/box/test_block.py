"""Blocks of homes: the bytes, charges and refusals of home by home, in every trust mode that they serve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.block import Block, accept_block, answer_block, gate
from fedenergy.box.box import Box, open_ledger
from fedenergy.box.ledger import bucket
from fedenergy.box.policies import BoundedSearch, Fixed
from fedenergy.box.query import Query
from fedenergy.box.world import World, enrolment_secret
from fedenergy.explain.task import Explain
from fedenergy.federation.campaign import sealer
from fedenergy.households.simulate import simulate_households
from fedenergy.privacy.noise_free import NoiseFree

HOMES = 12


class Given(Explain):
    """Explain with summaries that need no fit: some clipped, some not."""

    def _kept(self, box, query):
        return NoiseFree(np.random.default_rng(box.index).normal(0, 12, 7)), ""


class Shy(Fixed):
    """Not uniform: what a home grants depends on its name."""

    uniform = False

    def offer(self, case):
        half = int(case.agreement.household[-1]) % 2
        return super().offer(case) if half else Fixed(0.25).offer(case)


def make_world(folder, policy=None, cap=2.0, **more):
    return World(simulate_households(HOMES, steps=400, seed=1), Given(), policy or Fixed(),
                 AgreementTerms(cap=cap), folder, secret=enrolment_secret("simulation", folder), **more)


def sealed(world, trust, fresh=0, epsilon=1.0):
    query = Query("appliances", epsilon=epsilon, fresh=fresh)
    window = world.task.windows(world.population, 1, "next_window")[0]
    return sealer(query, world, trust, "laplace", "c" * 32, 0, window)(list(world.population.ids))


def one_by_one(world, query):
    boxes = [Box(world, index) for index in range(HOMES)]
    return world.task.answer_many(boxes, [query] * HOMES, seed=3, parties=HOMES)


def in_blocks(world, query, per_bucket=True):
    boxes = [Box(world, index) for index in range(HOMES)]
    groups = {}
    for box in boxes:
        groups.setdefault(bucket(box.id) if per_bucket else 0, []).append(box)
    return [answer_block(group, query, world.task.summaries, seed=3, parties=HOMES) for group in groups.values()]


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
@pytest.mark.parametrize("policy", [Fixed(), Fixed(0.3), BoundedSearch(), Shy()], ids=repr)
def test_blocks_are_home_by_home_to_the_byte(tmp_path, trust, policy):
    single, many = make_world(tmp_path / "a", policy), make_world(tmp_path / "b", policy)
    for fresh in range(3):  # the cap of 2 holds two queries of 1: the third is refused
        query = sealed(single, trust, fresh)
        wanted = {a.household: a for a in one_by_one(single, query)}
        blocks = in_blocks(many, query)
        answered = {name: (block.epsilon_micro[row], block.values[row].tobytes())
                    for block in blocks for row, name in enumerate(block.households)}
        assert answered == {name: (a.envelope.epsilon_micro, a.envelope.values.tobytes())
                            for name, a in wanted.items() if a.envelope is not None}
        assert {a.household: (a.code, a.reason) for block in blocks for a in block.refused} == {
            name: (a.code, a.reason) for name, a in wanted.items() if a.envelope is None}
    assert list(open_ledger(tmp_path / "a").rows()) == list(open_ledger(tmp_path / "b").rows())
    assert open_ledger(tmp_path / "b").verify() == []


def test_asking_again_costs_nothing_and_returns_the_same_bytes(tmp_path):
    world = make_world(tmp_path)
    query = sealed(world, "local")
    half = [Box(world, index) for index in range(HOMES // 2)]
    answer_block(half, query, world.task.summaries, seed=3)
    first, again = in_blocks(world, query, per_bucket=False)[0], in_blocks(world, query, per_bucket=False)[0]
    assert first.values.tobytes() == again.values.tobytes()
    assert open_ledger(tmp_path).spent_many([(name, query.cell) for name in world.population.ids]) == {
        (name, query.cell): 1_000_000 for name in world.population.ids}


def test_acceptance_is_decided_without_a_charge(tmp_path):
    world = make_world(tmp_path, cap=0.5)
    boxes = [Box(world, index) for index in range(HOMES)]
    assert accept_block(boxes, sealed(world, "sum", epsilon=0.5)) == (list(world.population.ids), [])
    takers, refused = accept_block(boxes, sealed(world, "sum", epsilon=0.75))
    assert takers == []
    assert {answer.code for answer in refused} == {"budget"}
    assert list(open_ledger(tmp_path).rows()) == []


@pytest.mark.parametrize(("trust", "change", "rule"), [
    ("local", lambda block: replace(block, values=block.values + block.values[0, 0] * 1e-9), "multiple of the grid"),
    ("local", lambda block: replace(block, values=block.values * np.nan), "finite"),
    ("local", lambda block: replace(block, values=block.values.astype(np.float32)), "float64"),
    ("local", lambda block: replace(block, epsilon_micro=block.epsilon_micro * 2), "at most what was asked"),
    ("local", lambda block: replace(block, households=block.households[:1] * len(block.households)), "answers once"),
    ("curator", lambda block: replace(block, values=np.full_like(block.values, np.iinfo(np.int64).min)), "clipped"),
    ("curator", lambda block: replace(block, values=np.full_like(block.values, np.iinfo(np.int64).max)), "clipped"),
])
def test_the_gate_refuses_what_breaks_the_schema(tmp_path, trust, change, rule):
    world = make_world(tmp_path)
    query = sealed(world, trust)
    block = in_blocks(world, query, per_bucket=False)[0]
    assert isinstance(gate(block, query), Block)
    with pytest.raises(ValueError, match=rule):
        gate(change(block), query)


def test_homes_with_the_readings_of_others_keep_their_own_names_and_noise(tmp_path):
    population = simulate_households(9, steps=400, seed=1, distinct=4)
    assert [population.load(k).total.tobytes() == population.load(k % 4).total.tobytes() for k in range(9)] == [True] * 9
    assert [population.load(k).id for k in (0, 4, 8)] == ["home-000001", "home-000005", "home-000009"]
    assert population.load(2).total.tobytes() == simulate_households(3, steps=400, seed=1).load(2).total.tobytes()
    assert population.identity()["distinct"] == 4
    assert "distinct" not in simulate_households(9, steps=400).identity()
    world = World(population, Explain(trees=5), Fixed(), AgreementTerms(), tmp_path,
                  secret=enrolment_secret("simulation", tmp_path))
    block = answer_block([Box(world, k) for k in range(9)], sealed(world, "local"), world.task.summaries, seed=0)
    assert len({row.tobytes() for row in block.values}) == 9


def test_a_deposit_of_other_data_than_was_charged_stays_inside(tmp_path, monkeypatch):
    world = make_world(tmp_path)
    query = sealed(world, "curator")
    in_blocks(world, query, per_bucket=False)
    monkeypatch.setattr(Given, "_kept", lambda self, box, query: (NoiseFree(np.full(7, 0.5)), ""))
    monkeypatch.setattr(type(open_ledger(tmp_path)), "lookup", lambda self, keys: {})  # as if it were busy just then
    with pytest.raises(ValueError, match="its data changed"):
        in_blocks(world, query, per_bucket=False)
