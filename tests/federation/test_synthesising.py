"""Synthesis over grids: series stay in their boxes unless granted, and every grid gives the same bytes."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.ledger import Ledger
from fedenergy.box.query import QUERY_CLASSES, SYNTHETIC, Query
from fedenergy.errors import ConfigError
from fedenergy.federation import client_app, synthesising
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.shard import Client
from fedenergy.federation.synthesising import local_series, make_world, private_rounds
from fedenergy.households.simulate import simulate_households
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.synthesis import task as tasks
from fedenergy.synthesis.components import Recipe
from fedenergy.synthesis.local import synthesise_home
from fedenergy.synthesis.private_plan import Budget, Constants
from fedenergy.synthesis.task import SYNTHESISE, Synthesise
from tests.federation.helpers import Tap, boxes_of
from tests.federation.helpers_scan import Needles

HOMES, STEPS, SEED = 6, 336, 4
SERIES = AgreementTerms(trust=("open",), classes=("synthetic",))


def population(count=HOMES):
    return simulate_households(count, steps=STEPS, seed=1)


@pytest.fixture
def tap(monkeypatch):
    """Every grid that synthesis makes is tapped; the taps, in order."""
    taps, made = [], synthesising.homes_grid

    @contextmanager
    def tapped(*given):
        with made(*given) as grid:
            taps.append(Tap(grid))
            yield taps[-1]

    monkeypatch.setattr(synthesising, "homes_grid", tapped)
    return taps


# -- local mode --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("terms", [None, {"trust": ("open",)}, {"classes": ("synthetic",)},
                                   {"trust": ("local", "sum", "curator"), "classes": ("synthetic", "general")}])
def test_nothing_is_made_and_nothing_leaves_without_both_grants(terms, tmp_path, tap, monkeypatch):
    def never(*given, **options):
        raise AssertionError("a series was made")

    monkeypatch.setattr(tasks, "series_of", never)
    found = local_series(population(), seed=SEED, ledger=tmp_path / "ledger",
                         agreement=None if terms is None else AgreementTerms(**terms))
    assert found.refused == HOMES
    assert found.values.shape == (0, STEPS)
    assert {reply.status for reply in tap[0].replies()} == {"refused"}
    with Ledger(tmp_path / "ledger") as ledger:
        assert list(ledger.rows()) == []


def test_granted_series_are_the_homes_own_and_cost_infinity(tmp_path, tap):
    found = local_series(population(), seed=SEED, ledger=tmp_path / "ledger", agreement=SERIES)
    assert found.households == tuple(population().ids)
    assert "epsilon = infinity" in found.guarantee
    for row in range(HOMES):
        np.testing.assert_array_equal(found.values[row], synthesise_home(population().load(row), SEED).values[0])
    assert isinstance(tap[0].grid, LocalGrid)
    assert tap[0].asked("query.synthesise") == list(range(HOMES))
    with Ledger(tmp_path / "ledger") as ledger:
        rows = list(ledger.rows())
        assert {(row.trust, row.epsilon_micro) for row in rows} == {("open", None)}
        assert len(rows) == HOMES
        assert ledger.verify() == []
    for reply in tap[0].replies():   # a series, its bound and who made it: nothing of where its days came from
        assert sorted(reply.content) == ["arrays", "envelope", "metrics"]
        assert sorted(reply.content["envelope"]) == ["household", "query_id"]
        assert reply.content["arrays"]["summary"].numpy().shape == (2, STEPS)


def test_no_reading_of_a_home_crosses(tmp_path, tap):
    local_series(population(), seed=SEED, ledger=tmp_path / "ledger", agreement=SERIES)
    readings = Needles({f"home {row}": population().load(row).total for row in range(HOMES)}, digits=10, pairs=True)
    assert not [hit for reply in tap[0].replies() for hit in readings.hits("reply", reply.data)]


def test_options_reach_the_boxes(tmp_path):
    for at, given in enumerate(({"variant": "components", "recipe": Recipe(residual="gev", seasonal_part="phase_shift")},
                                {"shuffle": "rejection", "max_tries": 30}, {"shuffle": "free", "unit_days": 2})):
        task = Synthesise(**given)
        found = local_series(population(2), task, seed=SEED, ledger=tmp_path / f"ledger{at}", agreement=SERIES)
        made = synthesise_home(population().load(1), SEED, **given).values[0]
        np.testing.assert_array_equal(found.values[1], made)
        assert np.abs(made - synthesise_home(population().load(1), SEED).values[0]).max() > 0.01
    for wrong in ({"variant": "case3"}, {"shuffle": "within_date"}, {"recipe": {"residual": "normal"}}):
        with pytest.raises(ValueError, match=r"use|alone"):
            Synthesise(**wrong)


def test_a_home_that_can_make_none_says_so_inside_only(tmp_path):
    from fedenergy.synthesis.held import HeldHomes

    values = np.random.default_rng(0).gamma(1, 0.5, (3, STEPS))
    values[1] = 0.7
    found = local_series(HeldHomes.of(values), seed=SEED, ledger=tmp_path / "ledger", agreement=SERIES,
                         inside=tmp_path / "inside")
    assert (found.households, found.empty) == (("home-000001", "home-000003"), 1)
    with pytest.raises(ConfigError, match="too short"):
        local_series(HeldHomes.of(values[:, :48]), seed=SEED, ledger=tmp_path / "other", agreement=SERIES)


def test_a_seed_that_is_known_does_not_open_a_secure_home(tmp_path):
    found = local_series(population(2), seed=SEED, ledger=tmp_path / "ledger", agreement=SERIES, noise="secure")
    assert np.abs(found.values[0] - synthesise_home(population().load(0), SEED).values[0]).max() > 0.01
    again = local_series(population(2), seed=SEED, ledger=tmp_path / "ledger", agreement=SERIES, noise="secure")
    np.testing.assert_array_equal(again.values, found.values)


def one_by_one(homes) -> Client:
    client = client_app.make_client(homes)
    return Client(client.app, {}, client.failed)


def test_one_message_at_a_time_gives_the_same_bytes(tmp_path, monkeypatch):
    granted = {"seed": SEED, "agreement": SERIES}
    private = {"seed": SEED, "task": Synthesise(), "budget": Budget(2.0, 1e-5)}
    first = local_series(population(), ledger=tmp_path / "a", **granted)
    model = private_rounds(population(), ledger=tmp_path / "b", **private)
    monkeypatch.setattr(synthesising, "make_client", one_by_one)
    assert local_series(population(), ledger=tmp_path / "c", **granted).values.tobytes() == first.values.tobytes()
    same(private_rounds(population(), ledger=tmp_path / "d", **private), model)


def same(one, other):
    assert one.centres.tobytes() == other.centres.tobytes()
    assert one.sizes.histogram.tobytes() == other.sizes.histogram.tobytes()
    assert [cell.hours.tobytes() for cell in one.cells] == [cell.hours.tobytes() for cell in other.cells]
    assert dict(one.privacy) == dict(other.privacy)


@pytest.mark.slow
def test_workers_change_nothing(tmp_path, tap):
    from fedenergy.federation.ray_grid import RayGrid

    workers = 2
    granted = {"seed": SEED, "agreement": SERIES}
    first, again = (local_series(population(), ledger=tmp_path / f"series{n}", workers=n, **granted) for n in (0, workers))
    assert first.values.tobytes() == again.values.tobytes()
    assert first.households == again.households
    assert [type(one.grid) for one in tap] == [LocalGrid, RayGrid]
    assert tap[1].asked("query.synthesise") == tap[0].asked("query.synthesise") == list(range(HOMES))
    for trust in ("curator", "sum"):
        models = [private_rounds(population(), Synthesise(), Budget(2.0, 1e-5), seed=SEED, trust=trust, workers=n,
                                 ledger=tmp_path / f"{trust}{n}") for n in (0, workers)]
        same(*models)


# -- private mode ------------------------------------------------------------------------------------------------------

def test_private_rounds_send_and_receive_this_and_no_more(tmp_path, tap):
    """Six queries to every home; answers are masked shares or clipped integers; no reading, in either direction."""
    private_rounds(population(), Synthesise(), Budget(2.0, 1e-5), seed=SEED, trust="sum", ledger=tmp_path / "ledger")
    kinds = [crossing.kind for crossing in tap[0].crossings if crossing.way == "out" and crossing.kind != "query.accept"]
    assert kinds == [f"query.{kind}" for kind in Constants().kinds for _ in range(HOMES)]
    readings = Needles({f"home {row}": population().load(row).total for row in range(HOMES)}, digits=10, pairs=True)
    assert not [hit for crossing in tap[0].crossings for hit in readings.hits(crossing.kind, crossing.data)]
    answers = [reply.content["arrays"]["summary"].numpy() for reply in tap[0].replies("envelope")]
    assert {answer.dtype for answer in answers} == {np.dtype(np.uint64)}
    assert not any((answer == 0).any() for answer in answers)    # masks hide even which block is filled


def test_a_curator_sees_one_filled_block_a_home(tmp_path, tap):
    private_rounds(population(), Synthesise(), Budget(2.0, 1e-5), seed=SEED, ledger=tmp_path / "ledger")
    for reply in tap[0].replies("envelope"):
        values = reply.content["arrays"]["summary"].numpy()
        known = Constants()
        for kind in ("synth_shape", "synth_size", "synth_stats"):
            law = known.law(kind, 1e-5)
            if law.size == values.size:
                assert np.count_nonzero(values.reshape(law.blocks, -1).any(axis=1)) == 1


def sealed(world, kind, trust="curator", mechanism="gaussian", layout=None, clip=None):
    task = world.task
    law = task.constants.law(kind, 1e-5) if kind != SYNTHESISE else None
    spec = world.spec(kind)
    body = task.public(kind) if law else dict(task.identity())
    if layout is not None:
        body["layout"] = layout
    clip = spec.clip if clip is None else clip
    return Query(kind, 0.5, delta=1e-5).sealed(
        task=body | {"centres": np.zeros((4, 12)).tolist()}, population=world.population.identity(),
        window=task.windows(world.population, 1, "same_window")[0], grid=NoiseGrid(clip).step, clip=clip, trust=trust,
        mechanism=mechanism, cell="ab" * 16, round=0, homes=world.population.ids)


@pytest.mark.parametrize(("change", "code"), [
    ({"kind": "synth_shape"}, "charged"), ({"kind": "synth_size"}, "charged"),
    ({"kind": "synth_shape", "mechanism": "laplace"}, "mechanism"), ({"kind": "synth_shape", "trust": "local"}, "mechanism"),
    ({"kind": "synth_shape", "trust": "open", "mechanism": "none"}, "mechanism"),
    ({"kind": "synth_shape", "layout": {"blocks": 2, "width": 25}}, "mechanism"),
    ({"kind": "synth_shape", "layout": {"blocks": 52, "width": 0}}, "mechanism"),
    ({"kind": "synth_shape", "layout": {"blocks": "many"}}, "mechanism"),
    ({"kind": SYNTHESISE, "trust": "curator", "mechanism": "laplace"}, "mechanism"),
    ({"kind": SYNTHESISE, "trust": "sum", "mechanism": "laplace"}, "mechanism")])
def test_a_box_holds_a_synthetic_query_to_its_form(change, code, tmp_path):
    terms = AgreementTerms(trust=("local", "sum", "curator", "open"), classes=("synthetic",), delta=0.1)
    world = make_world(population(1), Synthesise(), terms, tmp_path / "ledger", "simulation")
    (answer,) = world.task.answer_many(boxes_of(world), [sealed(world, **change)], seed=1)
    assert answer.code == code


def test_the_kinds_are_of_class_synthetic():
    assert {QUERY_CLASSES[kind] for kind in Synthesise.kinds} == {SYNTHETIC}
