"""Artificial homes streamed to a file: the same bytes however they are made, whole or not at all, and resumable."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from fedenergy.box.ledger import Ledger
from fedenergy.federation import streaming
from fedenergy.federation.streaming import stream_homes
from fedenergy.households.simulate import simulate_households
from fedenergy.synthesis import outputs, seams
from fedenergy.synthesis.generate import synthesise
from fedenergy.synthesis.intake import panel
from fedenergy.synthesis.local import synthesise_home
from fedenergy.synthesis.records import fill
from fedenergy.synthesis.stream import Maker, Plan, batch_seed, identity

PLAN = Plan(clusters=1, sizes=1, shard=12)
GRANTED = {"trust": ["open"], "classes": ["synthetic"]}
HOMES = simulate_households(24, steps=168, seed=1)


def records(path) -> np.ndarray:
    return pd.read_csv(path)["kwh"].to_numpy().reshape(-1, 168)


def test_contract_a_prefix_of_a_longer_run_and_one_clock(tmp_path):
    done = stream_homes(HOMES, PLAN, 30, tmp_path / "a.csv", seed=3)
    stream_homes(HOMES, PLAN, 17, tmp_path / "b.csv", seed=3)
    a, b = records(tmp_path / "a.csv"), records(tmp_path / "b.csv")
    assert a.shape == (30, 168)
    np.testing.assert_array_equal(a[:17], b)
    assert done.behind == 24
    assert done.facts["draws_per_home"] == 2
    ids = pd.read_csv(tmp_path / "a.csv")["home"].unique()
    assert list(ids[[0, -1]]) == ["syn-0000001", "syn-0000030"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.csv", "a.csv.about.json", "b.csv", "b.csv.about.json"]


def test_who_is_left_out_is_counted_and_named(tmp_path):
    values = panel(HOMES).values.copy()
    values[3, 5] = np.nan
    done = stream_homes(values, PLAN, 40, tmp_path / "a.csv", seed=1)
    assert (done.behind, done.facts["homes_excluded"], list(done.facts["excluded"])) == (23, 1, ["home-000004"])
    said = json.loads((tmp_path / "a.csv.about.json").read_text())
    assert "NaN" in said["excluded"]["home-000004"]


def test_first_batch_is_synthesise_itself(tmp_path):
    plan = Plan(clusters=1, sizes=1, shard=24, continuous=False)
    stream_homes(HOMES, plan, 24, tmp_path / "a.csv", seed=5)
    np.testing.assert_allclose(records(tmp_path / "a.csv"), synthesise(panel(HOMES), seed=5, clusters=1, sizes=1).values,
                               atol=0.5001e-4)


def test_rounds_differ_and_shards_cover_everyone():
    maker = Maker(HOMES, PLAN, 0)
    assert maker.shards == 2
    assert [list(maker.rows(k)) for k in range(2)] == [list(range(12)), list(range(12, 24))]
    assert np.abs(maker(0).fake.values - maker(2).fake.values).max() > 0.1
    assert batch_seed(7, 0) == 7
    assert batch_seed(7, 1) != batch_seed(7, 2)
    uneven = Maker(simulate_households(29, steps=168), PLAN, 0)
    assert sum(len(uneven.rows(k)) for k in range(uneven.shards)) == 29


class Stop(Exception):
    pass


def test_resumes_where_it_stopped_to_the_same_bytes(tmp_path, monkeypatch):
    whole = stream_homes(HOMES, PLAN, 60, tmp_path / "whole.csv", seed=1)
    real, made = Maker.__call__, []

    def failing(self, number):
        made.append(number)
        if number == 3 and len(made) == 4:
            raise Stop
        return real(self, number)

    monkeypatch.setattr(Maker, "__call__", failing)
    with pytest.raises(Stop):
        stream_homes(HOMES, PLAN, 60, tmp_path / "part.csv", seed=1)
    assert not (tmp_path / "part.csv").exists()
    again = stream_homes(HOMES, PLAN, 60, tmp_path / "part.csv", seed=1)
    assert made == [0, 1, 2, 3, 3, 4]
    assert again.found == 3
    assert (tmp_path / "part.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert again.facts == whole.facts
    assert not [item for item in tmp_path.iterdir() if item.name.startswith(".")]


def test_a_damaged_part_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / f".a.csv.{identity(HOMES, PLAN, 1, 20)}.parts"
    folder.mkdir()
    (folder / "00000000.npz").write_bytes(b"cut sho")
    assert stream_homes(HOMES, PLAN, 20, tmp_path / "a.csv", seed=1).found == 0


def test_another_seed_or_plan_is_another_run():
    base = identity(HOMES, PLAN, 1, 20)
    assert base == identity(HOMES, PLAN, 1, 20)
    others = [identity(HOMES, PLAN, 2, 20), identity(HOMES, Plan(clusters=1, sizes=1, shard=12, continuous=False), 1, 20),
              identity(simulate_households(24, steps=168, seed=2), PLAN, 1, 20)]
    assert len({base, *others}) == 4


def test_local_mode_keeps_names_and_refuses_more(tmp_path):
    plan = Plan(mode="local", variant="components", shard=12, agreement=GRANTED)
    done = stream_homes(HOMES, plan, 24, tmp_path / "a.csv", seed=1)
    assert list(pd.read_csv(tmp_path / "a.csv")["home"].unique()) == list(HOMES.ids)
    own = np.stack([synthesise_home(HOMES.load(row), 1, variant="components").values[0] for row in range(24)])
    np.testing.assert_allclose(records(tmp_path / "a.csv"), own, atol=0.5001e-4)
    assert (done.batches, done.behind, done.facts["homes_excluded"]) == (2, 24, 0)
    assert "left by its agreement" in done.facts["guarantee"]
    with Ledger(tmp_path / "a.csv.ledger") as ledger:
        charged = {(row.household, row.trust, row.epsilon_micro) for row in ledger.rows()}
    assert charged == {(name, "open", None) for name in HOMES.ids}
    with pytest.raises(ValueError, match="25 records of 24 homes"):
        stream_homes(HOMES, plan, 25, tmp_path / "b.csv", seed=1)


@pytest.mark.parametrize("agreement", [{}, {"trust": ["open"]}, {"classes": ["synthetic"]}])
def test_local_mode_writes_nothing_that_no_home_grants(tmp_path, agreement):
    with pytest.raises(ValueError, match=r"24 refused.*epsilon is infinite"):
        stream_homes(HOMES, Plan(mode="local", agreement=agreement), 24, tmp_path / "a.csv", seed=1)
    assert [item.name for item in tmp_path.iterdir()] == ["a.csv.ledger"]


def test_local_mode_fills_and_joins_in_the_box_and_counts_who_could_make_none(tmp_path):
    values = panel(HOMES).values[:3].copy()
    values[0, 30:40], values[1] = np.nan, 0.5
    plan = Plan.of_table({"mode": "local", "gaps": "fill", "agreement": GRANTED})
    done = stream_homes(values, plan, 2, tmp_path / "a.csv", seed=1)
    assert list(pd.read_csv(tmp_path / "a.csv")["home"].unique()) == ["home-000001", "home-000003"]
    assert list(done.facts["excluded"]) == ["home-000002"]
    whole = values[:1].copy()
    whole[0, 30:40] = fill(values[0], np.datetime64("2013-01-07"))[30:40]
    stitched = synthesise(whole, "local", seed=1).values
    joined = seams.join(stitched, whole)
    assert np.abs(joined - stitched).max() > 0.01
    np.testing.assert_allclose(records(tmp_path / "a.csv")[0], joined[0], atol=0.5001e-4)
    with pytest.raises(ValueError, match="only 2 of the 3 homes"):
        stream_homes(values, plan, 3, tmp_path / "c.csv", seed=1)


def test_a_file_that_cannot_be_written_is_refused_before(tmp_path, monkeypatch):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        stream_homes(HOMES, PLAN, 5, tmp_path / "a.csv", seed=1)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(streaming.Path, "mkdir", refused)
    with pytest.raises(ValueError, match=r"cannot be written in \(Permission denied\)"):
        stream_homes(HOMES, PLAN, 5, tmp_path / "b.csv", seed=1)


@dataclass
class Told:
    """A Progress that remembers."""

    total: int = 0
    done: int = 0

    def start(self, total, label):
        self.total = total

    def advance(self, n=1, **rest):
        self.done += n

    def note(self, text): ...

    def close(self): ...


def test_progress_counts_homes(tmp_path):
    told = Told()
    stream_homes(HOMES, PLAN, 30, tmp_path / "a.parquet", seed=1, progress=told)
    assert (told.total, told.done) == (30, 30)


@pytest.mark.parametrize(("homes", "name", "words"), [(0, "a.csv", "homes = 0"), (3, "no/a.csv", "does not exist"),
                                                      (3, "a.xlsx", "ends in '.xlsx'")])
def test_breaking_arguments(tmp_path, homes, name, words):
    with pytest.raises(ValueError, match=words):
        stream_homes(HOMES, PLAN, homes, tmp_path / name, seed=1)


def test_homes_in_memory_stay_in_this_process(tmp_path):
    with pytest.raises(ValueError, match="stay in this process"):
        stream_homes(panel(HOMES), PLAN, 3, tmp_path / "a.csv", seed=1, workers=2)


def test_memory_holds_one_block_at_a_time(tmp_path, monkeypatch):
    alive, most = [], 0

    class Counting(outputs.CsvSink):
        def write(self, block):
            nonlocal most
            alive.append(len(block.ids))
            most = max(most, len(block.ids))
            super().write(block)

    monkeypatch.setattr(outputs, "open_sink", lambda path, form, about: Counting(path, "long"))
    stream_homes(HOMES, PLAN, 100, tmp_path / "a.csv", seed=1)
    assert sum(alive) == 100
    assert most <= 12


def test_private_mode_spends_once_and_draws_any_length(tmp_path, capsys):
    spent = {"epsilon": 4.0, "delta": 1e-5}
    plan = Plan.of_table({"mode": "private", "days": 10, "shard": 20, "clusters": 2, "private": spent})
    first = stream_homes(HOMES, plan, 30, tmp_path / "a.csv", seed=1)
    frame = pd.read_csv(tmp_path / "a.csv")
    assert frame.groupby("home").size().eq(240).all()
    assert first.facts["privacy"]["relation"] == "replace-one"
    assert "epsilon = 4" in first.facts["guarantee"]
    assert "not private" in first.facts["guarantee"]
    before = (tmp_path / "a.csv").read_bytes()
    again = stream_homes(HOMES, plan, 30, tmp_path / "a.csv", seed=1)
    assert again.facts["privacy"]["ledger"] == first.facts["privacy"]["ledger"]     # nothing more was spent
    assert (tmp_path / "a.csv").read_bytes() == before
    capsys.readouterr()


def test_batches_of_a_stopped_run_without_its_ledger_are_refused(tmp_path, capsys):
    plan = Plan.of_table({"mode": "private", "clusters": 1, "private": {"epsilon": 4.0, "delta": 1e-5, "steps": 1}})
    folder = tmp_path / f".a.csv.{identity(HOMES, plan, 1, 30)}.parts"
    folder.mkdir()
    (folder / "00000000.npz").write_bytes(b"drawn from what homes were charged for")
    with pytest.raises(ValueError, match=r"\.parts is of a run .*a\.csv\.ledger, which is gone"):
        stream_homes(HOMES, plan, 30, tmp_path / "a.csv", seed=1)
    assert not (tmp_path / "a.csv.ledger").exists()
    capsys.readouterr()


@pytest.mark.parametrize(("table", "words"), [
    ({"mode": "private"}, "needs epsilon"), ({"private": {"epsilon": 1.0}}, "belongs to mode"),
    ({"mode": "private", "variant": "raw_shuffle", "private": {"epsilon": 1.0, "delta": 1e-5}}, "variant: mode"),
    ({"cluster": 3}, 'no key "cluster".* Did you mean "clusters"'), ({"recipe": {"season": 7}}, 'no key "season"'),
    ({"shard": 2}, "at least min_cell"), ({"agreement": {"trust": ["open"]}}, "asks no home"),
    ({"mode": "local", "agreement": {"cap": -1}}, "cap"), ({"mode": "local", "shuffle": "within_date"}, "each is alone")])
def test_breaking_plans(table, words):
    with pytest.raises(ValueError, match=words):
        Plan.of_table(table)


def test_packed_parts_hold_no_provenance():
    part = streaming.packed(Maker(HOMES, PLAN, 0)(0))
    assert set(part) == {"values", "cluster", "size", "ids", "head"}
    assert "provenance" not in str(part["head"])
    assert json.loads(str(part["head"]))["counts"]["homes"] == 12


@pytest.mark.slow
def test_same_bytes_for_any_number_of_workers(tmp_path):
    for workers in (0, 1, 2):
        stream_homes(HOMES, PLAN, 70, tmp_path / f"{workers}.parquet", seed=2, workers=workers)
    texts = {(tmp_path / f"{workers}.parquet").read_bytes() for workers in (0, 1, 2)}
    assert len(texts) == 1


@dataclass(frozen=True)
class Deadly:
    """Kills its worker at one item, the first time."""

    flag: str

    def __call__(self, item: int) -> int:
        import os
        from pathlib import Path

        if item == 3 and not Path(self.flag).exists():
            Path(self.flag).touch()
            os._exit(1)
        if item == 9:
            raise ValueError("nine")
        return item * item


@pytest.mark.slow
def test_ray_map_in_order_through_a_death_and_an_error(tmp_path):
    from fedenergy.federation.ray_grid import ray_map

    found = []
    with pytest.raises(ValueError, match="nine"):
        found.extend(pair for pair in ray_map(Deadly(str(tmp_path / "flag")), range(20), workers=2))
    assert found == [(k, k * k) for k in range(9)]
