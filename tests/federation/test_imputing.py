"""An imputer trained over homes: central and federated, every trust mode, charges, leaks, resuming."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian

import fedenergy as fe
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.box import Box
from fedenergy.box.ledger import Ledger
from fedenergy.box.policies import Fixed
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.training import answer_windows, window_shape
from fedenergy.box.world import World, enrolment_secret
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import imputing, records
from fedenergy.federation.campaign import MECHANISMS
from fedenergy.federation.imputing import Setting, central, moments
from fedenergy.federation.imputing_rounds import CHECKPOINT, rounds
from fedenergy.imputation import dp_gp, federated
from fedenergy.imputation.federated import MEAN, UPDATE, WINDOWS, NetPlan, TrainImputer, digest_of
from fedenergy.imputation.packaged import open_model
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.gaussian import GAUSSIAN, Gaussian, epsilon_of_rho, rho_micro
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.trust import Deposit
from tests.federation.helpers import CELL, Planted, Says, Tap, wire
from tests.federation.helpers_scan import Needles, files_in

HOMES = Planted(count=4, steps=24 * 6)
TASK = TrainImputer(days=1, net=NetPlan(width=8, patch=12, train_only="out", local_steps=1))
EPSILON, DELTA = 4.0, 1e-5
CHECKED = Setting(agreement=AgreementTerms(cap=4.0, classes=("general", "windows"), trust=("curator",), delta=1e-5))


@pytest.fixture
def tapped(monkeypatch):
    """The taps on every grid that a training makes."""
    taps = []
    make = imputing.make_grid

    def tap(plan, homes):
        taps.append(Tap(make(plan, homes)))
        return taps[-1]
    monkeypatch.setattr(imputing, "make_grid", tap)
    return taps


def own_fit(homes=HOMES, task=TASK, **known):
    """dp_gp fitted outside the federation, to what the homes' boxes would give."""
    rows = [np.clip(task.records(homes.load(i), homes), 0, task.cap(homes)).astype(np.float32) for i in range(len(homes))]
    windows = federated.windows_of(homes.ids, rows, task.slots(homes), task.phase(homes))
    return dp_gp.fit(windows, cap=task.cap(homes), unit="household", **known)


# -- moments -----------------------------------------------------------------------------------------------------------

def test_without_noise_three_sums_are_the_fit_of_all_windows(tmp_path):
    """Oracle: trust "open" on the same path against dp_gp.fit of the pooled windows."""
    made = moments(HOMES, epsilon=EPSILON, folder=tmp_path, trust="open", task=TASK)
    fitted = own_fit(epsilon=math.inf, moment_radius=dp_gp.radius_of(4, None, 24))
    np.testing.assert_allclose(made.model.mean, fitted.mean, atol=1e-5)
    np.testing.assert_allclose(made.model.scale, fitted.scale, atol=1e-5)
    np.testing.assert_allclose(made.model.correlation, fitted.correlation, atol=1e-3)
    assert math.isinf(made.model.privacy.epsilon)
    assert "no privacy" in str(made.spending)


@pytest.mark.parametrize(("trust", "noises"), [("curator", 1), ("sum", 1), ("local", 4)])
def test_three_sums_carry_the_noise_that_is_charged(trust, noises, tmp_path, monkeypatch):
    seen = []
    denoise = federated.denoised
    monkeypatch.setattr(federated, "denoised", lambda basis, released: seen.append(released) or denoise(basis, released))
    made = moments(HOMES, epsilon=EPSILON, delta=DELTA, folder=tmp_path / trust, trust=trust, task=TASK)
    plain = moments(HOMES, epsilon=EPSILON, folder=tmp_path / "open", trust="open", task=TASK)
    rho = int(rho_micro(micro(EPSILON), DELTA) * dp_gp.SPLIT[2])
    epsilon = math.floor(epsilon_of_rho(rho, DELTA / 3) * 1e6)
    radius = dp_gp.radius_of(4, rho, 24)
    sigma = Gaussian(radius, DELTA / 3).scale_units(epsilon) * math.sqrt(noises) / 4
    assert seen[0].sigma == pytest.approx(sigma)
    noise = (seen[0].values - seen[1].values) / sigma          # the noisy profiles before it move the moments a little
    assert abs(noise.std() - 1) < 0.2                          # 300 numbers: a fifth is five standard errors
    assert made.answered == 4
    with Ledger(tmp_path / trust / "ledger") as ledger:
        rows = [row for row in ledger.rows() if row.household == "h0"]
    assert [(row.unit, row.relation, row.mechanism, row.trust) for row in rows] == 3 * [
        ("household", "replace-one", GAUSSIAN, trust)]
    spent = made.spending
    assert spent.epsilon == pytest.approx(sum(row.epsilon_micro for row in rows) / 1e6)
    assert spent.delta == pytest.approx(DELTA)
    assert spent.charges == 3
    assert spent.tighter == epsilon_of_rho(sum(row.rho_micro for row in rows), DELTA) <= EPSILON
    assert made.model.privacy.epsilon == pytest.approx(spent.tighter)
    for words in ("per household (replace-one)", "per window (replace-one)", "seeded noise: not private"):
        assert words in str(spent)
    assert len(plain.crossings.envelopes) == 1


def test_the_same_ledger_answers_again_for_nothing(tmp_path, tapped):
    first = moments(HOMES, epsilon=EPSILON, folder=tmp_path, task=TASK)
    asked = len(tapped[0].asked())
    again = moments(HOMES, epsilon=EPSILON, folder=tmp_path, task=TASK)
    assert asked == 24                                         # 4 homes x 3 stages x (acceptance, share)
    assert not tapped[1].asked()
    assert (again.model.correlation == first.model.correlation).all()
    assert again.spending == first.spending
    fresh = moments(HOMES, epsilon=EPSILON, folder=tmp_path, task=TASK, setting=Setting(
        fresh=1, agreement=AgreementTerms(cap=20.0, classes=("update",), trust=("sum",), delta=1e-4)))
    assert (fresh.model.correlation != first.model.correlation).any()


def test_nothing_but_the_noised_or_masked_vector_differs_between_data_sets(tmp_path, tapped):
    """Non-interference: another home 1, the same public state: every message but its own share is the same."""
    for index, odd in enumerate((None, (1, "other"))):
        moments(replace(HOMES, odd=odd), epsilon=EPSILON, folder=tmp_path / str(index), task=TASK)
    first, second = (tap.crossings[:16] for tap in tapped)       # the first sum: 4 homes accept, 4 send their share
    assert [c.kind for c in first if c.way == "out"] == 4 * ["query.accept"] + 4 * ["query.moments_mean"]
    differ = [(c.way, c.node, c.status) for c, other in zip(first, second, strict=True) if c.data != other.data]
    assert differ == [("in", 3, "envelope")]                     # home 1 is node 3


def test_a_home_without_readings_answers_like_any_other(tmp_path):
    made = moments(replace(HOMES, odd=(2, "missing")), epsilon=EPSILON, folder=tmp_path, task=TASK)
    assert made.answered == 4
    assert np.isfinite(made.model.correlation).all()


# -- central -----------------------------------------------------------------------------------------------------------

def test_central_gives_the_model_of_the_deposited_windows(tmp_path, tapped):
    made = central(HOMES, epsilon=EPSILON, delta=DELTA, folder=tmp_path, task=TASK, setting=CHECKED)
    fitted = own_fit(epsilon=EPSILON, delta=DELTA)
    np.testing.assert_allclose(made.model.correlation, fitted.correlation, atol=1e-6)
    assert made.model.privacy == fitted.privacy
    assert (made.model.privacy.unit, made.model.privacy.epsilon) == ("household", pytest.approx(EPSILON, rel=1e-5))
    assert (made.spending.epsilon, made.spending.charges) == (EPSILON, 1)
    with Ledger(tmp_path / "ledger") as ledger:
        rows = list(ledger.rows())
    assert len(rows) == 4
    assert {(row.epsilon_micro, row.delta, row.unit, row.trust, len(row.payload)) for row in rows} == {
        (micro(EPSILON), DELTA, "household", "curator", 32)}             # a digest, not the windows
    envelope = tapped[0].replies("envelope")[0].content
    values = envelope[records.ARRAYS][records.SUMMARY].numpy()
    assert (values.dtype, values.shape) == (np.float32, (6, 24))
    again = central(HOMES, epsilon=EPSILON, delta=DELTA, folder=tmp_path, task=TASK, setting=CHECKED)
    assert not tapped[1].asked()                                         # one opening: the stored model
    assert (again.model.correlation == made.model.correlation).all()
    path = tmp_path / "model" / "dp_gp.json"
    path.write_text(path.read_text().replace('"level"', '"level" '))
    with pytest.raises(RunFailed, match="fresh = 1"):
        central(HOMES, epsilon=EPSILON, delta=DELTA, folder=tmp_path, task=TASK, setting=CHECKED)


@pytest.mark.parametrize(("terms", "words"), [
    ({"classes": ("general",)}, "class"), ({"trust": ("local",)}, "trust"), ({"cap": 3.9}, "cap = 3.9"),
    ({"delta": 0.0}, "delta = 0")])
def test_a_training_that_every_home_would_refuse_is_a_mistake_in_the_agreement(terms, words, tmp_path, tapped):
    terms = replace(CHECKED.agreement, **terms)
    with pytest.raises(ConfigError, match=words):
        central(HOMES, epsilon=EPSILON, delta=DELTA, folder=tmp_path, task=TASK, setting=Setting(agreement=terms))
    assert not tapped


def test_homes_whose_policy_offers_less_keep_their_windows(tmp_path, tapped):
    policy = Says(lambda case: fe.Offer(case.query.epsilon / 2, "half"))
    with pytest.raises(RunFailed, match="4 refused"):
        central(HOMES, epsilon=EPSILON, delta=DELTA, folder=tmp_path, task=TASK, setting=replace(CHECKED, policy=policy))
    assert not tapped[0].replies("envelope")
    with Ledger(tmp_path / "ledger") as ledger:
        assert not list(ledger.rows())


def world_of(folder, **terms):
    known = {"classes": ("windows", "update"), "trust": ("curator", "sum"), "cap": 9.0, "delta": 1e-3}
    terms = AgreementTerms(**(known | terms))
    return World(HOMES, TASK, Fixed(), terms, folder, "simulation", False, enrolment_secret("simulation", folder))


def sealed(world, kind=WINDOWS, trust="curator", **state):
    query, clip = Query(kind, epsilon=1.0, delta=DELTA), world.spec(kind).clip
    return query.sealed(task=TASK.public(HOMES, **state), population=HOMES.identity(), window=TASK.windows(HOMES)[0],
                        grid=NoiseGrid(clip).step, clip=clip, trust=trust, mechanism=GAUSSIAN, cell=CELL, round=0,
                        homes=HOMES.ids, strategy=None if kind == WINDOWS else "s")


def test_windows_leave_to_the_curator_only_and_once(tmp_path):
    world = world_of(tmp_path)
    boxes, query = [Box(world, i) for i in range(4)], sealed(world)
    rows = [np.full((6, 24), 0.5) for _ in boxes]
    answers = answer_windows(boxes, [query] * 4, lambda found, _: [NoiseFree(row) for row in rows])
    assert [(a.code, type(a.envelope)) for a in answers] == 4 * [("charged", Deposit)]
    again = answer_windows(boxes, [query] * 4, lambda found, _: [NoiseFree(row) for row in rows])
    assert [a.code for a in again] == ["stored"] * 4
    with pytest.raises(ValueError, match="data changed"):
        answer_windows(boxes[:1], [query], lambda found, _: [NoiseFree(rows[0] + 1)])
    for trust in ("sum", "local"):
        query = sealed(world_of(tmp_path / trust, trust=("curator", "sum", "local")), trust=trust)
        other = [Box(world_of(tmp_path / trust, trust=("curator", "sum", "local")), 0)]
        assert answer_windows(other, [query], lambda found, _: [])[0].envelope is None
    assert window_shape(sealed(world), 6) == (6, 24)


def test_decoding_windows_is_strict(tmp_path):
    world = world_of(tmp_path)
    query = sealed(world)
    good = np.full((6, 24), 0.5, np.float32)
    content = records.encode(Deposit("h0", query.id, micro(1.0), good))
    assert (records.decode(content, query, "h0", 6).values == good).all()
    for bad in (good.astype(np.float64), good[:5], good + 100, -good):
        with pytest.raises(ValueError):
            records.decode(records.encode(Deposit("h0", query.id, micro(1.0), bad)), query, "h0", 6)
    assert len(wire(content)) < 6 * 24 * 4 + 2000


# -- what leaves -------------------------------------------------------------------------------------------------------

def scanned(folder, tap):
    """Where readings, or a home's own vectors, were found: in messages and in files."""
    found: dict[str, list] = {"reading": [], "vector": []}
    for index in range(4):
        rows = TASK.records(HOMES.load(index), HOMES)
        found["reading"].append(HOMES.load(index).total)
        found["vector"].append(federated.moments_of(MEAN, rows, 1, TASK.cap(HOMES), np.zeros(0), np.zeros(0)))
    needles = Needles({name: np.concatenate(values) for name, values in found.items()})
    blobs = {f"{c.way} {c.kind} {c.status} {number}": c.data for number, c in enumerate(tap.crossings)}
    hits = needles.scan(blobs | {f"file {name}": data for name, data in files_in(folder).items()})
    return {(re.sub(r" [0-9]+$", "", hit.place), hit.what) for hit in hits}


def test_windows_are_in_the_deposits_and_nowhere_else(tmp_path, tapped):
    central(HOMES, epsilon=EPSILON, folder=tmp_path, task=TASK, setting=CHECKED)
    assert scanned(tmp_path, tapped[0]) == {("in query.windows envelope", "reading")}


@pytest.mark.parametrize("trust", ["sum", "local"])
def test_nothing_of_a_home_leaves_under_sum_and_local(trust, tmp_path, tapped):
    moments(HOMES, epsilon=EPSILON, folder=tmp_path, trust=trust, task=TASK)
    assert scanned(tmp_path, tapped[0]) == set()


def test_the_scan_would_find_what_leaves_in_the_open(tmp_path, tapped):
    moments(HOMES, epsilon=EPSILON, folder=tmp_path, trust="open", task=TASK)
    assert ("in query.moments_mean envelope", "vector") in scanned(tmp_path, tapped[0])


# -- rounds ------------------------------------------------------------------------------------------------------------

STRATEGIES = {"curator": FedAdam, "sum": partial(FedAvg, fraction_train=1.0), "local": FedMedian, "open": FedAvg}


@pytest.mark.parametrize("trust", STRATEGIES)
def test_any_flower_strategy_trains_the_net_under_any_trust(trust, tmp_path):
    made = rounds(HOMES, STRATEGIES[trust], epsilon=1.0, rounds=2, folder=tmp_path, trust=trust, task=TASK)
    assert made.answered == 4
    loaded = open_model(tmp_path, 60)
    state = made.model.net.state_dict()
    assert all((value == state[name]).all() for name, value in loaded.net.state_dict().items())
    assert any(value.abs().max() > 0 for name, value in state.items() if "out.weight" in name and "attention" not in name)
    if trust == "open":
        assert made.spending.charges == 0
        return
    assert (made.spending.epsilon, made.spending.charges) == (2.0, 2)
    assert made.spending.delta == pytest.approx(DELTA)
    assert made.spending.tighter == epsilon_of_rho(2 * rho_micro(micro(1.0), DELTA / 2), DELTA) < 2.0


def test_fed_avg_takes_the_mean_of_the_clipped_updates(tmp_path):
    """Oracle: one round without noise, by hand."""
    from fedenergy.imputation import federated_net

    made = rounds(HOMES, FedAvg, epsilon=1.0, rounds=1, folder=tmp_path, trust="open", task=TASK)
    first = federated_net.first_weights(TASK.net, 24, 24, 6.0)
    query = json.loads((tmp_path / CHECKPOINT).read_text())["asked"][0]
    total = np.zeros_like(first)
    for index in range(4):
        rows = federated.usable(TASK.records(HOMES.load(index), HOMES))
        windows = federated.Windows(rows, 24, np.zeros(len(rows), int))
        change = federated_net.update(TASK.net, windows, first, 6.0, HOMES.ids[index], query)
        total += imputing.clipped(change, TASK.net.clip)
    np.testing.assert_allclose(federated_net.flat(made.model.net, TASK.net), first + total / 4, atol=1e-6)


def test_rounds_resume_where_they_stopped(tmp_path):
    whole = rounds(HOMES, FedAdam, epsilon=1.0, rounds=3, folder=tmp_path / "whole", task=TASK)

    class Stops(FedAdam):
        def aggregate_train(self, server_round, replies):
            if server_round == 3:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)
    Stops.__name__ = "FedAdam"
    with pytest.raises(KeyboardInterrupt):
        rounds(HOMES, Stops, epsilon=1.0, rounds=3, folder=tmp_path / "cut", task=TASK)
    assert json.loads((tmp_path / "cut" / CHECKPOINT).read_text())["done"] == 2
    resumed = rounds(HOMES, FedAdam, epsilon=1.0, rounds=3, folder=tmp_path / "cut", task=TASK)
    for name, value in whole.model.net.state_dict().items():
        assert (value == resumed.model.net.state_dict()[name]).all(), name
    assert resumed.spending == whole.spending
    with pytest.raises(ConfigError, match="another training"):
        rounds(HOMES, FedAvg, epsilon=1.0, rounds=3, folder=tmp_path / "cut", task=TASK)


def test_failures_of_a_strategy_are_named(tmp_path):
    class Short(FedAvg):
        def aggregate_train(self, server_round, replies):
            return None, None
    with pytest.raises(RunFailed, match="round 1 of Short has no answer"):
        rounds(HOMES, Short, epsilon=1.0, rounds=1, folder=tmp_path, task=TASK)
    with pytest.raises(ConfigError, match="no flwr"):
        rounds(HOMES, dict, epsilon=1.0, rounds=1, folder=tmp_path / "b", task=TASK)
    with pytest.raises(ConfigError, match="rounds = 0"):
        rounds(HOMES, FedAvg, epsilon=1.0, rounds=0, folder=tmp_path / "c", task=TASK)


def test_a_box_trains_from_the_named_weights_only(tmp_path):
    """Weights that came along under a query of other weights: the home fails, and says nothing of them."""
    world = world_of(tmp_path)
    weights = np.zeros(len(world.spec(UPDATE).coordinates))
    query = sealed(world, UPDATE, "sum", weights=digest_of(weights + 1))
    with pytest.raises(ValueError, match="not those that the query names"):
        TASK.answer_many([Box(world, 0)], [query], seed=0, parties=4, arrays={"summary": weights})
    with Ledger(tmp_path) as ledger:
        assert not list(ledger.rows())


def test_class_update_needs_strategy_and_round(tmp_path):
    world = world_of(tmp_path)
    body = {**sealed(world, MEAN, "sum").body}
    for key in ("strategy", "round"):
        with pytest.raises(ValueError, match=f"lacks {key}"):
            SealedQuery({k: v for k, v in body.items() if k != key}, micro(1.0), 0, 4)
    assert GAUSSIAN not in MECHANISMS["sum"]                   # a campaign's summaries have no such form: only updates do
