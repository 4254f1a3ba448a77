"""Smoke and arithmetic of configs/gappy_homes.toml at toy size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedenergy import studies
from fedenergy.progress import SilentProgress
from simulations.gappy_homes import SAID, GappyStudy, _apart

CONFIG = Path(__file__).parents[2] / "configs" / "gappy_homes.toml"
TOY = GappyStudy(name="toy", count=3, steps=24 * 12, missing=(0.2,), gap_seeds=(0,), seeds=(0, 1), lags=(1, 24), trees=4,
                 fills=("true", "linear", "imputer"))


def test_the_study_runs_and_runs_again_from_what_it_kept(tmp_path):
    place = studies.Place(out=str(tmp_path))
    done = studies.run(TOY, place, SilentProgress())
    assert done.page.is_file()
    table = done.table.set_index("fill")
    assert list(table.index) == ["true", "linear", "imputer"]
    assert (table.loc["true", ["zone", "zone_clipped", "home"]] == 0).all()
    assert (table.loc[["linear", "imputer"], "zone"] > 0).all()
    page = done.page.read_text()
    for words in (*(SAID[fill] for fill in TOY.fills), "Seeded noise: not private", "no real home is in it", "What holds"):
        assert words in page
    metrics = pd.read_csv(done.folder / "metrics.csv")
    assert tuple(metrics) == studies.HEADER
    assert set(metrics["metric"]) == {"zone", "zone_clipped", "home", "spearman", "released"}
    assert (metrics["epsilon"] == 1.0).all()
    assert len(list((done.folder / "answers").iterdir())) == 3
    bytes_before = (done.folder / "metrics.csv").read_bytes()
    again = studies.resume(done.folder, SilentProgress())
    assert (again.folder / "metrics.csv").read_bytes() == bytes_before
    assert len(list((done.folder / "answers").iterdir())) == 3             # no home was asked again


def test_the_config_is_checked_and_has_a_toy(tmp_path):
    study, place = studies.load(CONFIG, out=str(tmp_path))
    assert study == GappyStudy()                          # the file states the defaults
    assert len(study.cells()) == 1 + 3 * 2 * 4
    rows = dict(study.check(place))
    assert rows["homes"] == "60"
    assert "epsilon, each home and answer" in rows
    toy, _ = studies.load(CONFIG, out=str(tmp_path), quick=True)
    assert (toy.count, len(toy.cells()), toy.name) == (20, 5, "gappy-homes-quick")


@pytest.mark.parametrize(("change", "words"), [
    ({"fills": ("linear",)}, "lacks \"true\""), ({"missing": (1.5,)}, "missing = 1.5"), ({"seeds": ()}, "seeds"),
    ({"fills": ("true", "spline")}, "spline"), ({"epsilon": 0.0}, "epsilon"), ({"clip": -1.0}, "clip"),
    ({"steps": 24}, "steps")])
def test_mistakes(change, words):
    with pytest.raises(ValueError, match=words):
        replace(TOY, **change)


def test_distance():
    assert _apart(np.array([1.0, 3.0]), np.array([2.0, 2.0])) == 0.5
    assert np.isnan(_apart(np.zeros(2), np.zeros(2)))
