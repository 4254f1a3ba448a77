"""Smoke and arithmetic of configs/imputation/federated.toml at toy size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedenergy import studies
from fedenergy.progress import SilentProgress
from simulations.imputer_federated import FREE, METHODS, FederatedStudy

CONFIG = Path(__file__).parents[2] / "configs" / "imputation" / "federated.toml"
TOY = FederatedStudy(name="toy", homes=(4,), steps=24 * 6, epsilons=(8.0,), seeds=(0,), rounds=1, test_homes=2, test_days=4)


def test_every_method_trains_and_states_what_it_cost(tmp_path):
    place = studies.Place(out=str(tmp_path))
    done = studies.run(TOY, place, SilentProgress())
    table = done.table
    assert set(table["method"]) == {*METHODS, *FREE, "oracle"}
    assert (table[table["method"] == "linear"]["against_linear"] == 1).all()
    assert table["sd"].isna().all()                                       # one noise seed tells nothing of its spread
    charged = table.groupby("method")["charged"].first()
    assert charged["central"] == 8.0
    assert charged["moments sum"] == charged["moments curator"] > 8.0      # the plain sum of three epsilons
    assert charged[["oracle", *FREE]].eq(0).all()
    page = done.page.read_text()
    for words in ("per household (replace-one)", "per window (replace-one)", "by zCDP composition",
                  "Seeded noise: not private"):
        assert words in page
    metrics = pd.read_csv(done.folder / "metrics.csv")
    assert tuple(metrics) == studies.HEADER
    again = studies.resume(done.folder, SilentProgress())
    pd.testing.assert_frame_equal(again.table, table)


def test_the_spread_over_noise_seeds_is_shown(tmp_path):
    done = studies.run(replace(TOY, methods=("central",), seeds=(0, 1)), studies.Place(out=str(tmp_path)), SilentProgress())
    own = done.table[done.table["method"] == "central"]
    assert (own["sd"] > 0).all()
    each = pd.read_csv(done.folder / "metrics.csv").query("metric == 'against_linear' and strategy == 'central'")
    each = each.merge(pd.read_csv(done.folder / "cells.csv")[["cell", "pattern"]], on="cell")
    assert sorted(own["sd"]) == pytest.approx(sorted(each.groupby("pattern")["value"].std()))
    assert f"(sd {own['sd'].iloc[1]:.2f})" in done.lines[0]


def test_the_config_is_checked_and_has_a_toy(tmp_path):
    study, place = studies.load(CONFIG, out=str(tmp_path))
    assert study == FederatedStudy()
    assert len(study.cells()) == 2 + 3 * 2 * 2 * 2 + 2 * 2                 # a net for 200 homes only
    assert dict(study.check(place))["trainings"] == "30"
    assert len(studies.load(CONFIG, quick=True)[0].cells()) == 5


@pytest.mark.parametrize(("change", "words"), [
    ({"methods": ("magic",)}, "magic"), ({"homes": ()}, "homes"), ({"epsilons": (-1.0,)}, "-1"),
    ({"rounds": 0}, "rounds = 0"), ({"steps": 12}, "shorter than one window"), ({"delta": 2.0}, "delta = 2")])
def test_mistakes(change, words):
    with pytest.raises(ValueError, match=words):
        replace(TOY, **change)
