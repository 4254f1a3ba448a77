"""The script that sets the constants of homes by name runs on other windows than London's, and puts them back."""

from __future__ import annotations

import numpy as np

import simulations.imputing.homes_constants as homes_constants
from fedenergy import imputation as imp
from fedenergy.imputation import homes


def test_smoke_each_setting_is_scored_by_pattern(monkeypatch):
    rng = np.random.default_rng(0)
    use = np.repeat([0.1, 0.4], 40)[:, None] * rng.gamma(9.0, 1 / 9, (80, 96))
    windows = imp.Windows(use, 48, homes=("a",) * 40 + ("b",) * 40)
    monkeypatch.setattr(homes_constants, "DISTANCES", (homes.DISTANCE, 0.7))
    monkeypatch.setattr(homes_constants, "SHARES", ())
    before = homes.DISTANCE
    found = homes_constants.homes_cells(windows, windows.take(np.arange(0, 80, 8)), 1, epsilons=(10.0,))
    assert len(found) == 2 * len(homes_constants.HIDING)
    assert np.isfinite(found["mse"]).all()
    assert found["distance"].nunique() == 2
    assert before == homes.DISTANCE
