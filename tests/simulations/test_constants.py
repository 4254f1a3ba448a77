"""The script behind the default imputer's constants runs, on one simulated series and one setting."""

from __future__ import annotations

import pandas as pd

import simulations.imputing.constants as constants


def test_one_setting_of_one_series_is_judged_against_the_best_free_filling(monkeypatch, capsys, tmp_path):
    first = next(iter(constants.series(0)))
    monkeypatch.setattr(constants, "series", lambda seed: iter([first]))
    for name, value in (("LAGS", (8,)), ("MARGINS", (1.2,)), ("SAMPLINGS", (0.5,))):
        monkeypatch.setattr(constants, name, value)
    constants.main(["--cells", str(tmp_path / "cells.csv")])
    assert "sampling" in capsys.readouterr().out
    assert len((tmp_path / "cells.csv").read_text().splitlines()) > 2


def test_a_constant_of_blend_is_changed_for_its_own_cells_only(monkeypatch, capsys, tmp_path):
    first = next(iter(constants.series(0)))
    monkeypatch.setattr(constants, "series", lambda seed: iter([first]))
    for name, value in (("BLENDS", {"SQUARED": (0.6, 0.0), "LAW": (0.5,)}), ("RECORDS", ((30, 2.0),)), ("EACH", 2)):
        monkeypatch.setattr(constants, name, value)
    before = constants.blend.SQUARED
    constants.main(["--blend", "--cells", str(tmp_path / "cells.csv")])
    assert "SQUARED" in capsys.readouterr().out
    cells = pd.read_csv(tmp_path / "cells.csv", dtype={"setting": str}).set_index(["constant", "setting"]).sort_index()
    assert before == constants.blend.SQUARED
    line, mine = cells.loc[("SQUARED", "0.0")], cells.loc[("SQUARED", str(before))]
    assert mine["mse"].tolist() == cells.loc[("LAW", str(constants.blend.LAW)), "mse"].tolist()
    assert line["mae"].tolist() == mine["mae"].tolist()                     # absolute errors have a share of their own
    assert line["mse"].tolist() != mine["mse"].tolist()
    assert (line["mse"] >= 1 - 1e-9).all()                                  # the straight line is one of the free fillings
