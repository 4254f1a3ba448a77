"""The study of private imputation runs, resumes by cell, writes the same bytes, and reaches what it promises on London."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedenergy import imputation as imp
from fedenergy import studies
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.progress import SilentProgress
from simulations.imputing import cells, constants, page
from simulations.imputing.data import HALF_HOUR, Set, homes_windows, masks
from simulations.private_imputation import PrivateImputation

CONFIG = Path(__file__).parents[2] / "configs" / "private_imputation.toml"
TOY = PrivateImputation(name="toy", datasets=("simulated",), patterns=("outage",), rates=(0.5,), epsilons=(2.0,), seeds=(0,),
                        test_windows=20, residual="none", objective_sets=())


def run(study, place):
    return studies.run(study, place, SilentProgress())


def test_smoke(tmp_path):
    finished = run(TOY, studies.Place("", str(tmp_path)))
    files = {name: (finished.folder / name).read_bytes() for name in ("metrics.csv", "cells.csv", "table.csv", "lost.csv")}
    metrics, names = (pd.read_csv(finished.folder / name).set_index("cell") for name in ("metrics.csv", "cells.csv"))
    assert {"dataset", "pattern", "rate", "objective", "regime", "unit"} < set(names.columns)
    assert set(metrics.index) == set(names.index)
    private = metrics[metrics["strategy"] == cells.GP].join(names[["unit", "regime"]])
    assert len(private) == 2 * 2                                                # units, metrics
    assert set(private["regime"]) == {cells.PRIVATE}
    text = finished.page.read_text()
    assert SimulationNoise(0).stamp in text.lower()
    assert "household of" in text
    assert list((finished.folder / "figures").glob("*.png"))
    kept = {path: path.stat().st_mtime_ns for path in (finished.folder / "cells").glob("*.json")}
    next(iter(kept)).unlink()
    again = studies.resume(finished.folder, SilentProgress())
    assert all((again.folder / name).read_bytes() == value for name, value in files.items())
    assert sum(path.stat().st_mtime_ns != when for path, when in kept.items()) == 1


def test_the_config_is_taken_and_checked(tmp_path):
    study, place = studies.load(CONFIG, quick=True, out=str(tmp_path))
    assert study.name == "private-imputation-quick"
    assert len(study.seeds) == 1
    said = dict(replace(study, datasets=("simulated", "etth1")).check(place))
    assert "dp_gp" in said["simulated: the public rule takes"] or "simulated" in said["simulated: the public rule takes"]
    assert "about" in said
    assert not list(tmp_path.iterdir())
    for message, more in (("datasets holds", {"datasets": ("paris",)}), ("residual", {"residual": "big"}),
                          ("seeds is empty", {"seeds": ()}), ("tune_steps", {"tune_steps": 0}), ("rate", {"rates": (1.5,)})):
        with pytest.raises(ValueError, match=message):
            replace(study, **more)


def test_where_nothing_is_read_one_filling_serves_every_epsilon_and_seed(tmp_path, monkeypatch):
    """Three homes, household unit: the public rule takes the simulated homes' imputer, whose filling has no noise."""
    use = np.random.default_rng(0).gamma(2.0, 0.1, (9, 96, 1))
    windows = imp.Windows(use, 48, homes=("a", "b", "c") * 3)
    found = Set(windows, windows, use, HALF_HOUR, "homes")
    work = cells.Work(TOY, found, masks(found, ("outage",), (0.5,)), tmp_path, SilentProgress())
    calls, inner = [], cells.Work._scored
    monkeypatch.setattr(cells.Work, "_scored", lambda *a, **more: calls.append(1) or inner(*a, **more))
    got = [work.compute(cells.Cell("simulated", cells.DEFAULT, cells.PRIVATE, "household", epsilon, seed))
           for epsilon in (0.5, 10.0) for seed in (0, 1)]
    assert all(one == got[0] for one in got)
    assert (got[0]["choice"], got[0]["spent"], got[0]["home"], len(calls)) == ("simulated", 0.0, 0.0, 1)


def test_golden_the_setting_with_the_least_shortfall_comes_first():
    """Ratios (2, .5) and (1.1, 1.1): shortfalls log(2) / 2 = .347 and log(1.1) = .095; the first has the lower mean."""
    made = pd.DataFrame([(f"cell {i}", lags, value, value) for lags, pair in ((8, (2.0, 0.5)), (12, (1.1, 1.1)))
                         for i, value in enumerate(pair)], columns=["family", "lags", "mse", "mae"])
    table = constants.judged(made, ["lags"])
    assert table["lags"].tolist() == [12, 8]
    assert table["shortfall"].tolist() == pytest.approx([math.log(1.1), math.log(2) / 2])
    assert table["mean"].tolist() == pytest.approx([1.1, 1.0])
    assert table["worst"].tolist() == pytest.approx([1.1, 2.0])
    assert table["above"].tolist() == [1.0, 0.5]


def test_smoke_kriging_constants_are_set_on_simulated_series(monkeypatch):
    """Two settings on one family; nothing is read from disk."""
    for name, value in (("LAGS", (6,)), ("MARGINS", (1.0,)), ("SAMPLINGS", (1.0, 9.0)), ("RECORDS", ((30, 2.0),)),
                        ("EACH", 2)):
        monkeypatch.setattr(constants, name, value)
    first = next(constants.series(0))
    monkeypatch.setattr(constants, "series", lambda seed: [first])
    found = constants.kriging_cells(0)
    assert len(found) == 2 * len(constants.HIDING)
    assert np.isfinite(found[["mse", "mae"]].to_numpy()).all()
    assert found["sampling"].nunique() == 2


def test_the_split_is_by_time_and_windows_with_gaps_are_left_out():
    """20 windows: the first 14 train, the last 4 test; one of the training windows has a gap."""
    use = np.arange(80.0)
    use[5] = np.nan
    train, test = homes_windows({"a": use}, 2, 2)
    assert len(train) == 13
    assert len(test) == 4
    assert train.values.max() == 55
    assert test.values.min() == 64


def test_golden_lost_cells_and_claims():
    """Two baselines (MSE 2 and 4) and a default of 1 and 3: half of its cells are lost, its ratio is .5 and 1.5."""
    table, raw = lost_and_won(windows=[(2.0, 4.0), (4.0, 2.0)])
    lost = page.lost_cells(page.standings(table, raw))
    assert lost["epsilon"].tolist() == [1.0]
    assert lost["ratio"].tolist() == [1.5]
    claims = {c.claim.split(":")[0] + c.claim[-22:]: c.verdict for c in page.claims_of(table, page.standings(table, raw))}
    assert len(claims) == 2
    assert sorted(claims.values()) == ["does not hold", "holds"]


def lost_and_won(windows):
    """(table, raw) of two baselines and a default; windows: squared errors of each window by linear (MSE 2) at 2, 2, and by
    two noise seeds of the default at epsilon 1 (MSE 3)."""
    base = {"dataset": "etth1", "pattern": "outage", "rate": 0.5, "choice": "", "spent": None, "household": None, "mae": 1.0}
    errors = [(2.0, 2.0), (8.0, 0.0), *windows, (1.0, 1.0), None]
    named = (("linear", page.FREE, "", np.nan, 2.0), ("nearest", page.FREE, "", np.nan, 4.0),
             (page.DEFAULT, page.PRIVATE, "window", 1.0, 3.0), (page.DEFAULT, page.PRIVATE, "window", 1.0, 3.0),
             (page.DEFAULT, page.PRIVATE, "window", 10.0, 1.0), ("A: eps", page.PRIVATE, "window", 10.0, 50.0))
    raw = pd.DataFrame([{**base, "method": m, "regime": r, "unit": u, "epsilon": e, "twin": False, "mse": v,
                         "by_window": "" if each is None else cells.packed(np.array([each, (1.0, 1.0)]))}
                        for each, (m, r, u, e, v) in zip(errors, named)])
    return page.summarise(raw), raw


def test_golden_how_far_a_lost_cell_is_behind():
    """Seeds' errors (1, 5) and (3, 5) average to (2, 5), against (2, 2): differences 0 and 3, sum 3, standard error 3."""
    table, raw = lost_and_won(windows=[(1.0, 5.0), (3.0, 5.0)])
    lost = page.lost_cells(page.standings(table, raw))
    assert lost["mse_behind"].tolist() == [pytest.approx(1.0)]
    assert lost["mae_behind"].tolist() == [0.0]                # the same errors in every window
    said = next(c.ours for c in page.claims_of(table, page.standings(table, raw)) if c.figure == "etth1")
    assert "0 behind, 1 ahead in MSE, 0 in MAE" in said        # at epsilon 10 each window's error is 1 below linear's
    assert math.isnan(page.standard_errors(np.array([1.0])))


def test_errors_by_window_add_up_to_what_is_printed():
    rng = np.random.default_rng(0)
    mean, median, truth = (rng.normal(size=(5, 8, 1)) for _ in range(3))
    seen = rng.random((5, 8, 1)) < 0.5
    truth[0, 3] = np.nan
    sums = cells.unpacked(cells.packed(cells.squared_and_absolute(mean, median, truth, seen)))
    count = (~seen & np.isfinite(truth)).sum()
    assert sums.shape == (2, 5)
    assert sums[0].sum() / count == pytest.approx(imp.errors(mean, truth, seen)["mse"])
    assert sums[1].sum() / count == pytest.approx(imp.errors(median, truth, seen)["mae"])


def test_a_baseline_that_needs_a_repeated_time_of_day_is_no_row_where_none_is_repeated():
    use = np.random.default_rng(0).gamma(2.0, 0.1, (9, 96, 1))
    for slots, rows in ((96, {"linear"}), (48, {"linear", *cells.REPEATING})):
        windows = imp.Windows(use, slots, homes=("a",) * 9)
        names = {c.method for c in cells.cells_of(TOY, "x", Set(windows, windows, use, HALF_HOUR, "other"))}
        assert names & {"linear", *cells.REPEATING} == rows
        seen = imp.outage(0.5).observed(9, 96)
        same = np.allclose(imp.fill_with("same time of day", windows, seen), imp.fill_with("linear", windows, seen))
        assert same == (slots == 96)


@pytest.mark.slow
def test_oracle_london_meets_the_reach(data_dir, tmp_path):
    """dp_gp at epsilon 2; and the default is no worse than any free baseline at any epsilon."""
    study = replace(TOY, datasets=("london",), patterns=("random", "block", "outage"), epsilons=(0.5, 2.0, 10.0),
                    seeds=(0, 1), test_windows=1000, units=("window",))
    finished = run(study, studies.Place(str(data_dir), str(tmp_path)))
    table = finished.table
    for pattern, goal in page.REACH.items():
        found = table[(table["method"] == cells.GP) & (table["epsilon"] == 2.0) & (table["pattern"] == pattern)]
        assert found["ratio"].max() <= goal
    rows = pd.read_csv(finished.folder / "lost.csv")
    assert not len(rows)


@pytest.mark.slow
def test_smoke_the_diffusion_over_it(tmp_path):
    study = replace(TOY, residual="tuned", pretrain_homes=10, pretrain_steps=3, pretrain_batch=16, tune_steps=2,
                    tune_batch=64, units=("window",), datasets=("simulated", "etth1"), objective_sets=())
    finished = run(study, studies.Place(str(tmp_path), str(tmp_path)))
    tuned = finished.table[finished.table["method"] == cells.TUNED]
    assert len(tuned) >= 1
    named, law = (finished.table[(finished.table["method"] == m) & (finished.table["epsilon"] == 2.0)]
                  for m in (cells.BY_HOME, cells.LAW))
    assert named["spent"].tolist() == law["spent"].tolist() == [pytest.approx(2.0, rel=0.03)]
    assert named["mse"].item() == pytest.approx(law["mse"].item(), rel=0.05)
    assert (finished.folder / "residual" / "model.json").exists()
    assert any("not run" in line for line in finished.lines)
