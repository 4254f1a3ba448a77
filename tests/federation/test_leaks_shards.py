"""What leaves the homes over nodes that are shards of homes: the byte scans and non-interference of test_leaks."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedenergy.box import block as block_module
from fedenergy.box.box import answer_many
from fedenergy.box.ledger import bucket
from fedenergy.federation import records
from fedenergy.privacy.noise_free import NoiseFree, gathered
from tests.federation.helpers import Planted, Sums, Tap
from tests.federation.helpers_scan import files_in
from tests.federation.test_leaks import (  # noqa: F401  (play is a fixture)
    EXPLAIN,
    ROUNDS,
    STRATEGIES,
    holds,
    outside,
    places,
    planted,
    play,
)

DEPOSITS = {"in query.shard envelope"}
COUNT, ODD = 13, 12  # h5 and h12 share a shard


@dataclass(frozen=True)
class Blocks(Sums):
    """Sums in the form that shards ask for: the summaries of several homes to one query."""

    def answer_many(self, boxes, queries, *, seed, parties=0):
        return answer_many(boxes, queries, super().summaries, seed=seed, parties=parties)

    def summaries(self, boxes, query):
        if self.fails in [box.index for box in boxes]:
            raise RuntimeError(f"cannot explain {boxes[-1].load().readings[0].tolist()}")
        return gathered([NoiseFree(self.summary(box.load(), slice(*query.rows))) for box in boxes])


TASK = Blocks(clip=120.0)
HOMES = Planted(COUNT)


def test_two_homes_share_a_shard():
    assert bucket("h5") == bucket("h12")
    assert len({bucket(name) for name in HOMES.ids}) == COUNT - 1


def counted(monkeypatch) -> list[int]:
    """How many homes each block was made for; a block that fails is asked home by home, and then not counted."""
    found: list[int] = []
    real = block_module._Outbound.leaving
    monkeypatch.setattr(block_module._Outbound, "leaving", lambda self, payloads, good: found.append(len(payloads))
                        or real(self, payloads, good))
    return found


@pytest.mark.parametrize("trust", ["local", "sum"])
@pytest.mark.parametrize("task", [TASK, EXPLAIN], ids=["sums", "explain"])
def test_nothing_planted_leaves_a_shard_under_local_and_sum(task, trust, play, monkeypatch):  # noqa: F811
    blocks = counted(monkeypatch)
    played = play([STRATEGIES[trust]], population=HOMES, task=task, nodes="shards")
    assert sorted(blocks) == [1] * (COUNT - 2) * ROUNDS + [2] * ROUNDS
    assert planted(HOMES, task=task).scan(played.blobs()) == set()
    answered = [name for c in played.crossings if c.way == "in" and c.status == "envelope" and records.ARRAYS in c.content
                for name in c.content[records.ENVELOPE]["households"].split(b"\n")]
    assert sorted(answered) == sorted([name.encode() for name in HOMES.ids] * ROUNDS)
    assert any(name.endswith(".sqlite") for name in played.files)


def test_all_three_modes_over_shards_leak_in_the_deposits_alone(play):  # noqa: F811
    hits = planted(HOMES).scan(play(STRATEGIES.values(), population=HOMES, task=TASK, nodes="shards").blobs())
    assert places(hits) == DEPOSITS
    assert {hit.what for hit in hits} == {"z"}


def test_a_block_without_its_masks_is_found(play, monkeypatch):  # noqa: F811
    monkeypatch.setattr(block_module, "pad", lambda key, household, query, size: np.zeros(size, np.uint64))
    monkeypatch.setattr(block_module, "laplace_share_many", lambda sources, scale, parties, size:
                        np.zeros((len(sources), size), np.int64))
    played = play([STRATEGIES["sum"]], population=HOMES, task=TASK, nodes="shards")
    assert places(planted(HOMES).scan(played.blobs())) >= DEPOSITS


def test_ray_workers_over_shards_leak_nothing_by_their_logs_either(play, monkeypatch):  # noqa: F811
    """The bytes of LocalGrid, and every file of Ray's own session folder before it is removed."""
    from fedenergy.federation import ray_grid

    if "ray" in sys.modules:  # of an earlier module of this process: Ray keeps the first session's token
        from ray._raylet import AuthenticationTokenLoader

        AuthenticationTokenLoader.instance().reset_cache()
    folders: list[str] = []
    real = ray_grid.tempfile.mkdtemp
    monkeypatch.setattr(ray_grid, "tempfile", types.SimpleNamespace(
        mkdtemp=lambda **options: folders.append(real(**options)) or folders[-1]))
    closing = Tap.close

    def close(tap):
        if folders:
            play.ray_logs |= {f"ray {name}": data for name, data in files_in(Path(folders[0])).items()}
        closing(tap)

    monkeypatch.setattr(Tap, "close", close)
    played = play(STRATEGIES.values(), population=HOMES, task=TASK, workers=1, nodes="shards")
    assert any(name.startswith("ray ") and "worker" in name for name in played.shown)
    assert places(planted(HOMES).scan(played.blobs())) == DEPOSITS
    folders.clear()
    local = play(STRATEGIES.values(), population=HOMES, task=TASK, name="local", nodes="shards")
    assert [(c.way, c.node, c.kind, c.data) for c in local.crossings] \
        == [(c.way, c.node, c.kind, c.data) for c in played.crossings]


@pytest.mark.parametrize("how", ["other", "constant", "large", "missing"])
def test_other_data_change_the_noised_block_and_nothing_else(how, play):  # noqa: F811
    runs = [play(STRATEGIES.values(), name=f"run{n}", population=Planted(COUNT, odd=odd), task=TASK, nodes="shards")
            for n, odd in enumerate([None, (ODD, how)])]
    one, two = (outside(run, ODD) for run in runs)
    assert one.keys() == two.keys()
    for name in one:
        assert one[name] == two[name], name
    payloads = [[c.content[records.ARRAYS][records.SUMMARY].data for c in run.crossings if c.way == "in" and holds(c, ODD)]
                for run in runs]
    assert all(a != b for a, b in zip(*payloads, strict=True))  # the test could have failed
    assert len(payloads[0]) == 3 * ROUNDS


def test_what_a_home_raises_leaves_a_shard_as_a_count(play, monkeypatch):  # noqa: F811
    blocks = counted(monkeypatch)
    played = play([STRATEGIES["local"]], population=HOMES, task=replace(TASK, fails=ODD), max_failures=1.0, rounds=1,
                  nodes="shards")
    assert sorted(blocks) == [1] * (COUNT - 2)  # the shard of the odd home goes home by home
    assert planted(HOMES, rounds=1).scan(played.blobs()) == set()
    failed = [c.content[records.ENVELOPE]["failed"] for c in played.crossings if c.way == "in"]
    assert sum(failed) == 1
    inside = b"".join(data for name, data in played.files.items() if name.startswith("inside/"))
    assert re.search(rb"Error at \w+.py:", inside)  # type and place, no text
