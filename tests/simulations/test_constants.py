"""The script behind the default imputer's constants runs, on one simulated series and one setting."""

from __future__ import annotations

import simulations.imputing.constants as constants


def test_one_setting_of_one_series_is_judged_against_the_best_free_filling(monkeypatch, capsys, tmp_path):
    first = next(iter(constants.series(0)))
    monkeypatch.setattr(constants, "series", lambda seed: iter([first]))
    for name, value in (("LAGS", (8,)), ("MARGINS", (1.2,)), ("SAMPLINGS", (0.5,))):
        monkeypatch.setattr(constants, name, value)
    constants.main(["--cells", str(tmp_path / "cells.csv")])
    assert "sampling" in capsys.readouterr().out
    assert len((tmp_path / "cells.csv").read_text().splitlines()) > 2
