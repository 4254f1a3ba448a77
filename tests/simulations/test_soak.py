"""The soak at toy size: every kind of fault occurs and nothing is lost; and it can fail."""

from __future__ import annotations

from fedenergy.federation.shard_exchange import ShardExchange
from simulations.soak import FAULTS, lines, soak


def test_a_short_soak_loses_nothing(tmp_path):
    found = soak(tmp_path, rounds=60, homes=24, seed=5)
    assert found.problems == []
    assert set(found.faults) == set(FAULTS)
    assert found.answers == 40 * 24  # the cap holds two thirds of the rounds
    assert found.refusals == 20 * 24
    assert "no lost charge" in lines(found)[-1]


def test_the_check_sees_an_answer_that_changed_on_its_way(tmp_path, monkeypatch):
    ask = ShardExchange.ask

    def changed(self, *arguments, **more):
        asked = ask(self, *arguments, **more)
        for block in asked.blocks.values():
            block.values.setflags(write=True) if block.values.flags.owndata else None
            object.__setattr__(block, "values", block.values * 2)
        return asked
    monkeypatch.setattr(ShardExchange, "ask", changed)
    found = soak(tmp_path, rounds=3, homes=8, workers=1, seed=1)
    assert any("not what is stored" in problem for problem in found.problems)
