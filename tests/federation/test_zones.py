"""Zones and the cloud tier: homes are dealt out once, and the cloud's sum is the sum over all homes' releases, exactly."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest

from fedenergy.config import parse
from fedenergy.errors import ConfigError
from fedenergy.federation.study import run_study
from fedenergy.households.simulate import simulate_households
from fedenergy.households.zones import Zone
from tests.federation.test_study import results

HOMES = 8


def config(out, zones=3, **changes):
    population = {"use": "fedenergy:simulate_households", "count": HOMES, "steps": 400, "seed": 1, "distinct": 4,
                  "zones": zones}
    return parse({"name": "zoned", "seeds": [0, 1], "oracle": True, "out": str(out),
                  "population": population | changes.pop("population", {}), "task": {"use": "fedenergy:Explain", "trees": 5},
                  "query": {"kind": "appliances", "epsilon": 1.0, "rounds": 2, "repeat": "same_window"},
                  "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}, {"use": "strategies.secure_sum:SecureSum"},
                               {"use": "strategies.zonal_median:ZonalMedian"}],
                  "engine": {"workers": 0}, **changes}).check()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_study(config(tmp_path_factory.mktemp("zones")))


def test_every_home_is_in_one_zone():
    homes = simulate_households(HOMES, steps=400, distinct=4)
    zones = [Zone(homes, number, 3) for number in (1, 2, 3)]
    assert sorted(name for zone in zones for name in zone.ids) == list(homes.ids)
    for zone in zones:
        for index, name in enumerate(zone.ids):
            assert zone.load(index).id == name
            assert zone.load(index).total.tobytes() == homes.load(list(homes.ids).index(name)).total.tobytes()
    assert len({json.dumps(zone.identity(), sort_keys=True) for zone in zones}) == 3
    with pytest.raises(IndexError):
        zones[2].load(2)


def test_the_cloud_is_the_flat_sum_of_all_releases(folder):
    rows = pd.read_parquet(folder / "releases.parquet")
    summary = json.loads((folder / "summary.json").read_text())
    names = summary["coordinates"]
    sums = [one for one in summary["cloud"] if one["strategy"] == "ZonalSum" and one["round"] == 1]
    assert len(sums) == 2
    for one in sums:
        own = rows[rows["part"].astype(str).str.endswith(f"seed{one['seed']}") & (rows["round"] == 1)]
        assert own["household"].nunique() == HOMES
        flat = own.groupby("coordinate", observed=True)["value"].sum()
        assert one["released"] == [flat[name] for name in names]  # exact: multiples of the grid step


def test_the_cloud_is_scored_against_all_homes(folder):
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    cloud = {(row["strategy"], row["seed"], row["round"], row["metric"]): float(row["value"]) for row in rows
             if row["population"] == "simulated/cloud"}
    assert cloud["SecureSum", "0", "1", "answers"] == HOMES
    zones = json.loads((folder / "summary.json").read_text())["zones"]
    for strategy in ("ZonalSum", "SecureSum", "ZonalMedian"):
        own = [zone for zone in zones if (zone["strategy"], zone["seed"], zone["round"]) == (strategy, 0, 1)]
        assert len(own) == 3
        error = np.abs(np.sum([zone["released"] for zone in own], 0) - np.sum([zone["true_clipped"] for zone in own], 0))
        assert cloud[strategy, "0", "1", "mae"] == pytest.approx(error.mean())
    cells = pd.read_csv(folder / "cells.csv", dtype=str)
    assert set(cells["zone"].dropna()) == {"1", "2", "3", "cloud"}
    assert set(pd.read_csv(folder / "metrics.csv")["cell"]) <= set(cells["cell"])


def test_no_home_pays_in_two_zones(folder):
    spent = pd.DataFrame(json.loads((folder / "summary.json").read_text())["spent"])
    assert (spent[spent["epsilon_spent"] > 0].groupby(["household", "trust"])["cell"].nunique() == 2).all()  # 2 seeds
    assert (folder / "report.html").exists() is False  # written by the command line


def test_workers_change_nothing_and_shards_serve_zones(folder, tmp_path):
    assert results(run_study(config(tmp_path, engine={"workers": 2, "nodes": "shards"}))) == results(folder)


def test_a_study_without_zones_has_no_cloud(tmp_path):
    folder = run_study(config(tmp_path, zones=1, strategy=[{"use": "strategies.zonal_sum:ZonalSum"}]))
    assert json.loads((folder / "summary.json").read_text())["cloud"] == []
    assert "zone" not in pd.read_csv(folder / "cells.csv")


@pytest.mark.parametrize(("zones", "told"), [(0, "whole number from 1"), (True, "whole number"),
                                             (9, "more than the 8 homes")])
def test_zones_that_cannot_be_are_refused(tmp_path, zones, told):
    with pytest.raises(ConfigError, match=told):
        run_study(config(tmp_path, zones=zones))


def test_the_cloud_can_be_left_out(tmp_path):
    only = config(tmp_path, population={"cloud": False}, strategy=[{"use": "strategies.zonal_sum:ZonalSum"}])
    assert parse(__import__("tomllib").loads(only.to_toml())) == only
    assert json.loads((run_study(only) / "summary.json").read_text())["cloud"] == []
