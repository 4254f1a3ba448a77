"""Freeze and thaw: a strategy's state through JSON and back, exact, or refused by name."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import strategy as stock
from hypothesis import given, settings
from hypothesis import strategies as some

from fedenergy.federation.freeze import dump_arrays, freeze, load_arrays, thaw
from fedenergy.federation.strategy import ZoneStrategy

Point = namedtuple("Point", "x y")


class Keeper(ZoneStrategy):
    """Keeps whatever it is given."""

    def __init__(self, **state) -> None:
        vars(self).update(state)

    def combine(self, answers):
        return answers.values.sum(axis=0)


class Schedule:
    """A callable with a state."""

    calls = 0

    def __call__(self) -> int:
        self.calls += 1
        return self.calls


def carried(value):
    """The value after freeze, JSON text and thaw into a new instance."""
    keeper = Keeper(value=None)
    thaw(json.loads(json.dumps(freeze(Keeper(value=value)))), keeper)
    return keeper.value


def frozen_or_refused(strategy, name: str) -> dict | None:
    """The frozen state, or None where a TypeError names what cannot be kept."""
    try:
        return freeze(strategy)
    except TypeError as error:
        if name in str(error):
            return None
        raise


def same(first, second) -> bool:
    """Equal in type and in every bit, order included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    if isinstance(first, float):
        return (math.isnan(first) and math.isnan(second)) or first.hex() == second.hex()
    if isinstance(first, dict):
        return same(list(first.items()), list(second.items()))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@pytest.mark.parametrize("value", [
    None, True, 0, -7, 2**80, "", "text äö\n", 0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan, b"", b"\x00\xff",
    [], (), set(), {}, [1, [2.5, (None, "x")]], (0.1, b"y"), {1, 2}, {"a": 0.1, 3: "b", (1, 2): [True]},
    {"float": "0x1p0", "array": "not one", "strategy": 3}, {None: {False: {}}},
], ids=repr)
def test_plain_values_and_containers_come_back_exactly(value):
    assert same(carried(value), value)


@pytest.mark.parametrize("array", [
    np.arange(6.0).reshape(2, 3), np.array(2.5), np.zeros((0, 3)), np.array([True, False]),
    np.arange(3, dtype=np.uint64), np.arange(3, dtype=">i2"), np.ones(2, np.float16), np.array([np.nan, np.inf, -0.0]),
    np.arange(12.0)[::3], np.arange(6.0).reshape(2, 3).T,
], ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays_come_back_to_the_bit_and_can_be_written(array):
    back = carried({"m": [array]})["m"][0]
    assert same(back, np.ascontiguousarray(array).reshape(array.shape))
    back[...] = 0


def test_records_come_back():
    arrays = ArrayRecord({"b": Array(np.arange(3.0)), "a": Array(np.ones((2, 2), np.float32))})
    back = carried(arrays)
    assert isinstance(back, ArrayRecord)
    assert list(back) == ["b", "a"]
    assert all(same(back[key].numpy(), arrays[key].numpy()) for key in arrays)
    for record in (MetricRecord({"n": 3, "loss": 0.1, "many": [0.5, math.inf]}),
                   ConfigRecord({"text": "x", "raw": b"\x00", "yes": True, "list": ["a", "b"], "rate": 1e-9})):
        back = carried(record)
        assert type(back) is type(record)
        assert same(dict(back), dict(record))
    assert all(same(a.numpy(), b.numpy())
               for a, b in zip(load_arrays(json.loads(json.dumps(dump_arrays(arrays)))).values(), arrays.values()))


keys = some.text() | some.integers()
plain = some.recursive(
    keys | some.none() | some.booleans() | some.floats() | some.binary(),
    lambda inner: some.lists(inner) | some.lists(inner).map(tuple) | some.dictionaries(keys, inner), max_leaves=20)


@given(plain)
@settings(max_examples=100, deadline=None)
def test_any_nesting_comes_back_exactly(value):
    assert same(carried(value), value)


def test_functions_come_from_the_constructor_and_state_made_later_comes_back():
    def rule(x):
        return x

    frozen = json.loads(json.dumps(freeze(Keeper(rule=rule, rounds=2, made_later=np.ones(2)))))
    assert "rule" not in frozen
    fresh = Keeper(rule=rule, rounds=0)
    thaw(frozen, fresh)
    assert fresh.rule is rule
    assert fresh.rounds == 2
    assert same(fresh.made_later, np.ones(2))


def test_a_wrapped_strategy_is_thawed_in_place():
    outer = Keeper(inner=Keeper(inner=Keeper(m=np.arange(2.0)), n=1), k=2)
    deep = Keeper(m=None)
    fresh = Keeper(inner=Keeper(inner=deep, n=0), k=0)
    thaw(json.loads(json.dumps(freeze(outer))), fresh)
    assert fresh.inner.inner is deep
    assert same(deep.m, np.arange(2.0))
    assert (fresh.inner.n, fresh.k) == (1, 2)


STOCK = {
    "QFedAvg": {"client_learning_rate": 0.1}, "FedProx": {"proximal_mu": 0.1}, "FedTrimmedAvg": {"beta": 0.1},
    **{name: {} for name in ("FedAvg", "FedMedian", "Krum", "MultiKrum", "Bulyan", "FedAdam", "FedAdagrad", "FedYogi",
                             "FedAvgM", "FedXgbBagging", "FedXgbCyclic")}}
WRAPPERS = {f"DifferentialPrivacy{side}Side{kind}Clipping": {"noise_multiplier": 1.0, "num_sampled_clients": 200, **more}
            for side in ("Server", "Client") for kind, more in (("Fixed", {"clipping_norm": 1.0}), ("Adaptive", {}))}


@pytest.mark.parametrize("name", [*STOCK, *WRAPPERS])
def test_every_stock_strategy_can_be_frozen(name):
    def make(nodes=2):
        if name in WRAPPERS:
            return getattr(stock, name)(stock.FedAdam(min_available_nodes=nodes), **WRAPPERS[name])
        return getattr(stock, name)(min_available_nodes=nodes, **STOCK[name])

    used, fresh = make(nodes=3), make()
    frozen = freeze(used)
    assert freeze(fresh) != frozen
    thaw(json.loads(json.dumps(frozen)), fresh)
    assert freeze(fresh) == frozen


@pytest.mark.parametrize("value", [
    np.random.default_rng(0), deque([1]), frozenset([1]), 1j, np.array([None]), np.array(["a"]), np.array([1j]),
    np.array(["2020-01-01"], "M8[D]"), bytearray(b"x"), RecordDict(), object(), range(3),
], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"deep": [(v,)]}, lambda v: Keeper(value=v)],
                         ids=["bare", "nested", "wrapped"])
def test_state_without_a_json_form_is_refused_by_name(value, wrap):
    with pytest.raises(TypeError, match=rf"Keeper\.value is a {type(value).__name__}, which a checkpoint cannot hold"):
        freeze(Keeper(value=wrap(value)))


@pytest.mark.parametrize("value", [np.float32(0.1), np.float64(0.1), np.int8(100)], ids=repr)
def test_numpy_scalars_keep_their_type(value):
    assert same(carried(value), value)


@pytest.mark.parametrize("value", [defaultdict(float, a=1.0), Counter("aab"), OrderedDict(a=1), Point(1, 2)],
                         ids=lambda v: type(v).__name__)
def test_a_subclass_of_a_container_comes_back_as_such_or_is_refused_when_frozen(value):
    if (frozen := frozen_or_refused(Keeper(value=value), type(value).__name__)) is None:
        return
    fresh = Keeper(value=None)
    thaw(json.loads(json.dumps(frozen)), fresh)
    assert same(fresh.value, value)


@pytest.mark.parametrize("hold", [lambda s: [s], lambda s: {"a": s}, lambda s: (1, [s])], ids=["list", "dict", "deep"])
def test_wrapped_strategies_in_containers_come_back(hold):
    inner = Keeper(n=0)
    fresh = Keeper(inner=hold(inner))
    if (frozen := frozen_or_refused(Keeper(inner=hold(Keeper(n=5))), "Keeper.inner")) is None:
        return
    thaw(json.loads(json.dumps(frozen)), fresh)
    assert freeze(fresh) == frozen


def test_a_callable_with_a_state_is_not_lost_silently():
    schedule = Schedule()
    schedule()
    with pytest.raises(TypeError, match="schedule"):
        freeze(Keeper(schedule=schedule))


def test_a_mixed_set_comes_back():
    assert same(carried({1, "a"}), {1, "a"})
