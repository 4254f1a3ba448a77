"""Nodes that are shards of homes: the bytes of home by home, whatever the grid; failures and liars stay counted."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, RecordDict

from fedenergy.box.ledger import Ledger
from fedenergy.box.zone_store import ZoneStore
from fedenergy.config import parse
from fedenergy.errors import ConfigError
from fedenergy.explain import task as explain
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records, shard_nodes
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.plan_shards import sharded
from fedenergy.federation.shard_exchange import ShardExchange
from fedenergy.federation.study import run_study
from fedenergy.federation.trust_grid import Crossings
from tests.federation.test_study import results

STRATEGIES = ["strategies.zonal_sum:ZonalSum", "strategies.zonal_median:ZonalMedian", "strategies.secure_sum:SecureSum",
              "strategies.central_laplace:CentralLaplace", "strategies.non_private:NonPrivate"]
HOMES = 7


def config(out, nodes="shards", workers=0, **changes):
    return parse({
        "name": "shards", "seeds": [0, 1], "oracle": True, "out": str(out),
        "population": {"use": "fedenergy:simulate_households", "count": HOMES, "steps": 400, "seed": 1, "distinct": 3},
        "task": {"use": "fedenergy:Explain", "trees": 5}, "agreement": {"cap": 1.5},
        "query": {"kind": "appliances", "epsilon": 1.0, "rounds": 2, "repeat": "same_window"},
        "strategy": [{"use": use} for use in STRATEGIES], "engine": {"workers": workers, "nodes": nodes}, **changes}).check()


@pytest.fixture(scope="module")
def home_by_home(tmp_path_factory):
    return run_study(config(tmp_path_factory.mktemp("homes"), "homes"))


@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_those_of_home_by_home_to_the_byte(home_by_home, tmp_path, workers):
    folder = run_study(config(tmp_path, workers=workers))
    assert results(folder) == results(home_by_home)
    with Ledger(folder / "ledger") as mine, Ledger(home_by_home / "ledger") as theirs:
        assert list(mine.rows()) == list(theirs.rows())
    mine, theirs = (json.loads((one / "summary.json").read_text()) for one in (folder, home_by_home))
    for key in ("who_sees_what", "spent", "zone_answers", "refusals", "expected", "zones"):
        assert mine[key] == theirs[key], key


def test_a_second_run_is_free_and_equal(home_by_home, tmp_path):
    first = results(run_study(config(tmp_path)))
    assert results(run_study(config(tmp_path))) == first
    again = run_study(config(tmp_path, "homes"))  # the same ledger, asked home by home
    assert results(again) == first == results(home_by_home)


@pytest.mark.parametrize(("changes", "told"), [
    ({"strategy": [{"use": "flwr.serverapp.strategy:FedAvg", "min_available_nodes": 2}]}, "no fedenergy.ZoneStrategy"),
    ({"strategy": [{"use": "strategies.zonal_gaussian:ZonalGaussian"}], "agreement": {"delta": 1e-3},
      "query": {"kind": "appliances", "delta": 1e-6}}, "gaussian noise under trust local"),
    ({"negotiation": {"use": "fedenergy:NeedAccuracy"}}, "negotiation goes home by home"),
])
def test_what_goes_home_by_home_is_refused_before_anything_runs(tmp_path, changes, told):
    with pytest.raises(ConfigError, match=told):
        run_study(config(tmp_path, **changes))


def test_a_task_without_a_batch_form_goes_home_by_home():
    with pytest.raises(ConfigError, match="SimpleNamespace has no summaries"):
        sharded([SimpleNamespace(world=SimpleNamespace(task=SimpleNamespace()))])


class Exchanged:
    """One exchange over LocalGrid with a tap on the replies."""

    def __init__(self, tmp_path, change=lambda shard, content: content, task=None):
        from fedenergy.federation.plan import plan_from_config
        plan = plan_from_config(config(tmp_path), tmp_path / "run", tmp_path / "ledger")
        self.part = plan.parts[0]
        if task is not None:
            object.__setattr__(self.part.world, "task", task)
        inner = LocalGrid(make_client(Homes(plan.worlds, tmp_path / "inside")), plan.nodes)

        def send_and_receive(messages):
            return [flower.reply(message, change(flower.node_index(message.metadata.dst_node_id), reply.content))
                    for message, reply in zip(messages, inner.send_and_receive(messages), strict=True)]
        self.crossings = Crossings()
        self.exchange = ShardExchange(SimpleNamespace(send_and_receive=send_and_receive), self.part.world, self.part.number,
                                      0, ZoneStore(tmp_path / "ledger"), self.crossings)
        self.shards = [shard for shard, homes in enumerate(self.exchange.shards) if homes]

    def query(self, trust="local"):
        from fedenergy.federation.campaign import sealer
        window = self.part.world.task.windows(self.part.world.population, 1, "same_window")[0]
        return sealer(self.part.query, self.part.world, trust, "laplace", "c" * 32, 0, window)(
            list(self.part.world.population.ids))

    def ask(self, trust="local"):
        return self.exchange.ask(self.query(trust), self.shards, RecordDict(), "1")


def test_a_home_that_raises_fails_alone(tmp_path, monkeypatch):
    one = Exchanged(tmp_path)
    load = type(one.part.world.population).load

    def failing(self, index):
        if self.ids[index] == "home-000002":
            raise RuntimeError("3.14159265 kWh")
        return load(self, index)
    monkeypatch.setattr(type(one.part.world.population), "load", failing)
    monkeypatch.setattr(type(one.part.world.population), "source", lambda self, index: index)
    monkeypatch.setattr(explain, "_cache", OrderedDict())
    asked = one.ask()
    assert sorted(asked.households) == [name for name in one.part.world.population.ids if name != "home-000002"]
    assert (asked.refused, asked.failed) == (0, 1)
    noted = "".join(path.read_text() for path in (tmp_path / "inside").iterdir())
    assert "RuntimeError" in noted
    assert "3.14159265" not in noted


def changed(**fields):
    def change(shard, content):
        content[records.ENVELOPE] = ConfigRecord({**content[records.ENVELOPE], **fields})
        return content
    return change


def values(make):
    def change(shard, content):
        array = content[records.ARRAYS][records.SUMMARY].numpy()
        content[records.ARRAYS][records.SUMMARY] = Array(np.ascontiguousarray(make(array)))
        return content
    return change


@pytest.mark.parametrize("lie", [
    changed(query_id="other"), changed(households=b"home-000001\nhome-000001"), changed(households=b"stranger"),
    changed(households=b"\xff"), changed(refused=-1), changed(refused=5), changed(extra=1),
    values(lambda a: a[:, :-1]), values(lambda a: a * np.nan), values(lambda a: a + 1e-7), values(lambda a: a.astype("f4")),
    lambda shard, content: RecordDict(), lambda shard, content: flower.NODE_UNAVAILABLE,
], ids=range(13))
def test_a_node_that_breaks_the_schema_is_a_failure_of_its_homes(tmp_path, lie):
    one = Exchanged(tmp_path, lie)
    asked = one.ask()
    assert asked.households == []
    assert asked.failed == HOMES
    assert one.crossings.errors["local"] == HOMES


def test_a_sum_with_a_missing_share_stays_closed(tmp_path):
    silent = []
    one = Exchanged(tmp_path, lambda shard, content: flower.NODE_UNAVAILABLE if shard in silent else content)
    grid = one.exchange.strategy_grid("sum", partial(lambda homes, seal: seal("sum"), seal=one.query))
    ask = [flower.instruction(RecordDict(), node, "train", "1") for node in grid.get_node_ids()]
    accepting = one.exchange.accepting

    def then_silent(*args):
        found = accepting(*args)
        silent.append(one.shards[0])
        return found
    one.exchange.accepting = then_silent
    assert grid.send_and_receive(ask) == []
    assert grid.failed == len(one.exchange.shards[one.shards[0]])
    assert one.exchange.zones.get(grid.query.id) is None


def test_a_shard_is_a_ledger_file(tmp_path):
    one = Exchanged(tmp_path)
    found = shard_nodes.shards_of(one.part.world)
    assert sorted(index for shard in found for index in shard) == list(range(HOMES))
    assert len(found) == 64


def test_a_home_that_fails_to_accept_is_left_out_and_not_charged(tmp_path, monkeypatch):
    one = Exchanged(tmp_path)
    accept = shard_nodes.accept_block

    def failing(boxes, query):
        if any(box.id == "home-000002" for box in boxes):
            raise RuntimeError("3.14159265 kWh")
        return accept(boxes, query)
    monkeypatch.setattr(shard_nodes, "accept_block", failing)
    grid = one.exchange.strategy_grid("sum", lambda homes: one.query("sum"))
    ask = [flower.instruction(RecordDict(), node, "train", "1") for node in grid.get_node_ids()]
    (reply,) = grid.send_and_receive(ask)
    assert reply.content[records.ENVELOPE]["answers"] == HOMES - 1
    assert (grid.failed, grid.refused, len(grid.answered)) == (1, 0, HOMES - 1)
    with Ledger(tmp_path / "ledger") as ledger:
        paid = ledger.paid(grid.query.id)
    assert sorted(paid) == [name for name in one.part.world.population.ids if name != "home-000002"]
