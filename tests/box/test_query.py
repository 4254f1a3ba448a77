"""The query and its sealed form: golden identity, strict wire form, friendly mistakes."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from decimal import Decimal
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy import ids
from fedenergy.box.query import (
    CLASSES,
    GRANULARITIES,
    MAX_BODY_BYTES,
    QUERY_CLASSES,
    Query,
    SealedQuery,
    homes_digest,
    load_canonical,
)

CELL = "0123456789abcdef0123456789abcdef"
SEAL = {"task": {"use": "fedenergy:Explain", "lags": [1, 24]}, "population": {"use": "sim", "seed": 1},
        "window": (0, 744), "grid": 2.0**-15, "clip": 50.0, "trust": "local", "mechanism": "laplace", "cell": CELL,
        "round": 0}
# written out by hand: sorted keys, no spaces, numbers as decimal texts (2**-15 = 0.000030517578125)
GOLDEN = ('{"cell":"0123456789abcdef0123456789abcdef","clip":"50","epsilon":"1","fresh":"0",'
          '"grid":"0.000030517578125",'
          '"kind":"appliances","mechanism":"laplace","population":{"seed":"1","use":"sim"},"purpose":"planning",'
          '"querier":"zone-operator","repeat":"next_window","task":{"lags":["1","24"],"use":"fedenergy:Explain"},'
          '"trust":"local","window":{"blocks":["0","0"],"rows":["0","744"]}}')


def sealed(query: Query | None = None, **changes: object) -> SealedQuery:
    return (query or Query()).sealed(**(SEAL | changes))


# golden

def test_golden_query_id_and_digest():
    query = sealed()
    assert query.text == GOLDEN
    assert query.id == hashlib.blake2b(GOLDEN.encode(), digest_size=16, person=b"fe.query.1").hexdigest()
    assert query.id == "b39280cb1dc284ed0f49bd8a32c1739c"
    assert query.content_digest == hashlib.blake2b(GOLDEN.encode(), digest_size=32).digest()


def test_golden_digest_of_homes_ignores_order():
    expected = hashlib.blake2b(b'["a","b"]', digest_size=16, person=b"fe.homes.1").hexdigest()
    assert homes_digest(["b", "a"]) == homes_digest(["a", "b"]) == expected


# the user's form

def test_every_kind_has_a_class():
    assert set(QUERY_CLASSES.values()) == set(CLASSES)
    assert Query("total").query_class == "general"
    assert Query("appliances").query_class == "specific"


@pytest.mark.parametrize(("changes", "message"), [
    ({"kind": "appliance"}, 'Did you mean "appliances"'),
    ({"kind": 7}, "kind = 7"),
    ({"purpose": "control"}, "planning, monitoring, diagnosis"),
    ({"purpose": "real-time control"}, "purpose"),
    ({"repeat": "same"}, "same_window"),
    ({"rounds": 0}, "rounds = 0"), ({"rounds": 1.5}, "rounds"), ({"rounds": True}, "rounds"),
    ({"fresh": -1}, "fresh"),
    ({"querier": "../etc"}, "querier"), ({"querier": ""}, "querier"),
    ({"querier": "zone-\u043eperator"}, r"zone-\\u043eperator"),  # a Cyrillic o, shown as such
    *[({"epsilon": bad}, r"\[query\] epsilon")
      for bad in (0, -1, float("nan"), float("inf"), "1e-5", "x", None, True, 1e7)],
])
def test_mistakes_name_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        Query(**changes)


@pytest.mark.parametrize("epsilon", ["0.1", 0.1, Decimal("0.1"), Decimal("0.10")])
def test_epsilon_of_any_spelling_is_the_same_budget(epsilon):
    assert Query(epsilon=epsilon) == Query(epsilon=0.1)
    assert Query(epsilon=epsilon).epsilon_micro == 100_000


@given(st.integers(1, 10**12))
def test_epsilon_survives_its_float_form(micro_epsilon):
    query = Query(epsilon=Decimal(micro_epsilon).scaleb(-6))
    assert query.epsilon_micro == micro_epsilon
    assert Query(epsilon=query.epsilon).epsilon_micro == micro_epsilon


def test_epsilon_is_rounded_up():
    assert Query(epsilon="0.0000011").epsilon_micro == 2


# sealing

def test_typed_properties():
    query = sealed()
    assert (query.clip, query.grid, query.rows, query.blocks) == (50.0, 2.0**-15, (0, 744), (0, 0))
    assert (query.kind, query.query_class, query.querier, query.purpose, query.trust, query.mechanism, query.cell) == \
        ("appliances", "specific", "zone-operator", "planning", "local", "laplace", CELL)
    assert (query.epsilon, query.epsilon_micro, query.round, query.homes) == (1.0, 1_000_000, 0, 0)
    assert query.query == Query()


def test_window_with_blocks():
    query = sealed(window=SimpleNamespace(rows=(0, 744), blocks=(15706, 15737)))
    assert (query.rows, query.blocks) == ((0, 744), (15706, 15737))


def test_every_part_of_the_body_changes_the_id():
    base = sealed()
    others = [sealed(Query(kind="total")), sealed(Query(querier="other")), sealed(Query(purpose="diagnosis")),
              sealed(Query(repeat="same_window")), sealed(Query(fresh=1)), sealed(task={"use": "other"}),
              sealed(population={"seed": 2}), sealed(window=(744, 1488)), sealed(grid=2.0**-14), sealed(clip=51.0),
              sealed(trust="open"), sealed(mechanism="gaussian"), sealed(cell="f" * 32),
              sealed(trust="sum", homes=["a", "b"]), sealed(trust="sum", homes=["a", "c"]),
              sealed(trust="curator", homes=["a", "b"])]
    assert len({query.id for query in [base, *others]}) == len(others) + 1


def test_the_round_does_not_change_the_id_outside_training_and_epsilon_does():
    assert sealed(Query(rounds=5), round=3).id == sealed().id
    assert sealed(Query(epsilon=2.0)).id != sealed().id


def test_homes_enter_the_id_only_where_one_sum_is_opened():
    assert sealed(homes=["a", "b"]).id == sealed().id
    assert sealed(homes=["a", "b"]).homes == 2
    assert sealed(trust="sum", homes=["a", "b"]).body["homes"] == homes_digest(["a", "b"])


def test_training_carries_strategy_and_round():
    query = sealed(Query("train"), strategy="flwr.serverapp.strategy:FedAvg", round=3, trust="open")
    assert (query.body["strategy"], query.body["round"], query.round) == ("flwr.serverapp.strategy:FedAvg", "3", 3)
    assert query.id != sealed(Query("train"), strategy="flwr.serverapp.strategy:FedAvg", round=4, trust="open").id


@pytest.mark.parametrize(("kind", "changes", "message"), [
    ("appliances", {"trust": "sum"}, "lacks homes"),
    ("appliances", {"trust": "sum", "homes": ["a", "a"]}, "repeat an id"),
    ("appliances", {"trust": "sum", "homes": ["../a"]}, "household id"),
    ("appliances", {"trust": "nobody"}, "trust"),
    ("appliances", {"strategy": "x:Y"}, "has no round, strategy"),
    ("train", {}, "lacks round, strategy"),
    ("appliances", {"window": (5, 5)}, "window"), ("appliances", {"window": (-1, 5)}, "window"),
    ("appliances", {"window": (0,)}, "window"), ("appliances", {"window": (0.5, 2)}, "window"),
    ("appliances", {"window": "07"}, "window"),
    ("appliances", {"clip": 0}, "clip"), ("appliances", {"clip": -1.0}, "clip"),
    ("appliances", {"clip": float("nan")}, "finite"), ("appliances", {"clip": "inf"}, "clip"),
    ("appliances", {"clip": "50.0"}, "clip"), ("appliances", {"grid": True}, "grid"),
    ("appliances", {"cell": "short"}, "cell"), ("appliances", {"mechanism": "La place"}, "mechanism"),
    ("appliances", {"task": {1: 2}}, "plain JSON"), ("appliances", {"task": {"a": {1, 2}}}, "plain JSON"),
    ("appliances", {"task": object()}, "plain JSON"), ("appliances", {"task": "x" * MAX_BODY_BYTES}, "bytes"),
    ("appliances", {"round": -1}, "round"),
])
def test_sealing_refuses(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        sealed(Query(kind), **changes)


def test_deeply_nested_task_is_refused():
    task: list = []
    for _ in range(100_000):
        task = [task]
    with pytest.raises(ValueError, match="plain JSON"):
        sealed(task=task)


def test_a_sealed_query_cannot_be_changed():
    task = {"lags": [1]}
    query = sealed(task=task)
    task["lags"].append(2)
    assert query.body["task"]["lags"] == ("1",)
    with pytest.raises(TypeError):
        query.body["clip"] = "1"
    with pytest.raises(TypeError):
        query.body["task"]["lags"] = ()
    with pytest.raises(FrozenInstanceError):
        query.epsilon_micro = 5


@pytest.mark.parametrize(("kind", "coordinates", "expected"), [
    ("total", "feature_lag", "total"), ("peak_hour", None, "daypart"), ("top", None, "appliance"),
    ("appliances", None, "appliance"), ("appliances", "feature_lag", "feature_lag"), ("appliances", "room", "unknown")])
def test_granularity_follows_from_kind_and_task(kind, coordinates, expected):
    task = {} if coordinates is None else {"coordinates": coordinates}
    assert sealed(Query(kind), task=task).granularity == expected
    assert expected in (*GRANULARITIES, "unknown")


# the wire

def test_wire_round_trip():
    for query in (sealed(), sealed(trust="sum", homes=["a", "b"], round=7),
                  sealed(Query("train", epsilon=0.16), strategy="s:S", round=2)):
        wire = query.to_wire()
        assert {type(value) for value in wire.values()} <= {str, int, bytes}
        back = SealedQuery.from_wire(wire)
        assert back == query
        assert hash(back) == hash(query)
        assert back.to_wire() == wire


def test_pickle_goes_through_the_strict_form():
    query = sealed(trust="curator", homes=["a"])
    data = pickle.dumps(query)
    assert pickle.loads(data) == query
    assert b"from_wire" in data


@pytest.mark.parametrize(("changes", "message"), [
    ({"extra": 1}, "exactly the keys"), ({"body": None}, "body of a query record is a str"),
    ({"query_id": "0" * 32}, "conflict"), ({"epsilon_micro": 0}, "epsilon_micro"),
    ({"epsilon_micro": 10**13}, "epsilon_micro"), ({"epsilon_micro": 1.0}, "epsilon_micro"),
    ({"epsilon_micro": True}, "epsilon_micro"), ({"round": -1}, "round"), ({"homes": 2**40}, "homes"),
    ({"body": "x" * (MAX_BODY_BYTES + 1)}, "more than"), ({"body": "[" * 60_000}, "canonical JSON"),
    ({"body": "{}"}, "kind"), ({"body": "[]"}, "mapping"), ({"body": "null"}, "mapping"),
    ({"body": ""}, "not canonical JSON"),
    ({"body": GOLDEN.replace('"fresh":"0"', '"fresh":0')}, "bare number"),
    ({"body": GOLDEN.replace('"fresh":"0"', '"fresh":NaN')}, "bare number"),
    ({"body": GOLDEN.replace('"fresh":"0"', '"fresh":"0","fresh":"0"')}, "repeats a key"),
    ({"body": GOLDEN.replace(",", ", ")}, "canonical form"),
    ({"body": GOLDEN.replace("planning", "\\u0070lanning")}, "canonical form"),
    ({"body": GOLDEN.replace('"clip":"50"', '"clip":"51"')}, "conflict"),
    ({"body": GOLDEN.replace('"clip":"50"', '"clip":"\uff15\uff10"')}, "clip"),
    ({"body": GOLDEN.replace('"clip":"50"', '"clip":"5e1"')}, "clip"),
    ({"body": GOLDEN.replace('"clip":"50",', "")}, "lacks clip"),
    ({"body": GOLDEN.replace('"window"', '"wide":true,"window"')}, "has no wide"),
    ({"body": GOLDEN.replace("zone-operator", "zone-\u043eperator")}, "querier"),
    ({"body": GOLDEN.replace('"use":"sim"', '"use":"\ud800"')}, "canonical JSON"),
])
def test_wire_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        SealedQuery.from_wire(sealed().to_wire() | changes)


def test_wire_refuses_missing_keys_and_other_types():
    for key in sealed().to_wire():
        wire = sealed().to_wire()
        del wire[key]
        with pytest.raises(ValueError, match="exactly the keys"):
            SealedQuery.from_wire(wire)
    for other in (None, [], "x", b"x"):
        with pytest.raises(ValueError):
            SealedQuery.from_wire(other)


def test_wire_refuses_another_round_in_training():
    query = sealed(Query("train"), strategy="s:S", round=2)
    with pytest.raises(ValueError, match="round"):
        SealedQuery.from_wire(query.to_wire() | {"round": 3})


_json = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8)
_value = st.text(max_size=40) | st.integers() | st.binary(max_size=8) | st.floats() | st.booleans() | st.none()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*sealed().to_wire(), "x"]), _value | _json, max_size=6))
def test_fuzzed_records_raise_only_value_error(wire):
    with pytest.raises(ValueError):
        SealedQuery.from_wire(wire)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*json.loads(GOLDEN), "homes", "strategy", "round", "x"]), _json)
def test_fuzzed_bodies_raise_value_error_or_round_trip(key, value):
    body = json.loads(GOLDEN) | {key: value}
    try:
        text = ids.canon(body).decode()
        wire = sealed().to_wire() | {"body": text, "query_id": ids.query_id(body)}
    except ValueError:  # NaN, lone surrogates: no canonical form exists
        return
    try:
        query = SealedQuery.from_wire(wire)
    except ValueError:
        return
    assert key in ("task", "population") or ids.canon(value) == ids.canon(query.body[key])
    assert query.to_wire() == wire


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOLDEN) - 1), st.characters(codec="utf-8"))
def test_any_other_character_in_the_body_is_refused(position, character):
    text = GOLDEN[:position] + character + GOLDEN[position + 1:]
    if text != GOLDEN:
        with pytest.raises(ValueError):
            SealedQuery.from_wire(sealed().to_wire() | {"body": text})


def test_load_canonical_accepts_only_its_own_spelling():
    assert load_canonical(b'{"a":["1"]}', "x") == {"a": ["1"]}
    for bad in (b"\xff", b'{"a":1}', b'{ "a":"1"}', b'{"b":"1","a":"1"}', b'{"a":"1"}\n', b"\xef\xbb\xbf{}"):
        with pytest.raises(ValueError):
            load_canonical(bad, "x")


def test_replacing_a_field_checks_again():
    with pytest.raises(ValueError, match="kind"):
        replace(Query(), kind="everything")
