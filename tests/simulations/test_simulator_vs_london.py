"""The comparison with real homes runs and states its differences."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from simulations.simulator_vs_london import autocorrelation, main, verdict


@pytest.mark.data
def test_smoke(data_dir, tmp_path):
    result = main({"data": data_dir, "out": tmp_path, "homes": 15, "quick": True})
    assert {path.name for path in result.files} == {
        "comparison.csv", "excluded.csv", "curves.csv", "simulator_vs_london.png", "simulator_vs_london.svg"}
    assert all(path.stat().st_size > 500 for path in result.files)
    table = pd.read_csv(tmp_path / "comparison.csv").set_index("measure")
    np.testing.assert_allclose(table["simulated"] - table["real"], table["difference"], atol=1e-3, rtol=1e-3)
    assert table["verdict"].str.len().min() > 5
    assert {"ACF at 24 h", "zero half hours, share of all", "winter / summer, zone"} < set(table.index)
    assert result.excluded["left_out"].sum() == 11  # ten with more than 100 gaps, one with 99.4 % zeros
    assert not result.excluded.set_index("household").loc["MAC000004", "left_out"]


def test_autocorrelation_of_a_daily_wave():
    """A sine of period 48 over 100 periods: 99/100 of the products remain after a day, -199/200 after half of one."""
    wave = np.sin(2 * np.pi * np.arange(4800) / 48)[:, None]
    acf = autocorrelation(wave, 48)[:, 0]
    assert acf[0] == pytest.approx(1)
    assert acf[48] == pytest.approx(0.99, abs=1e-6)
    assert acf[24] == pytest.approx(-0.995, abs=1e-6)


def test_verdicts_come_from_the_numbers():
    assert verdict(10, 9, 11, 10.5, "daily use") == "within the interval of the real homes"
    assert verdict(10, np.nan, np.nan, 10.5, "daily use") == "close: 5% higher"
    assert verdict(10, np.nan, np.nan, 10, "daily use") == "equal"
    assert verdict(10, np.nan, np.nan, 5, "daily use") == "far off: 50% lower"
    assert verdict(0.3, 0.29, 0.31, 0.25, "ACF at 24 h") == "lower by 0.05"


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match="no setting 'home'"):
        main({"home": 3})
