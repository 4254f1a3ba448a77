from __future__ import annotations

import numpy as np
import pytest

from fedenergy.synthesis import judge_utility as judge

START = np.datetime64("2013-01-07")


def test_oracle_acf_pacf():
    from statsmodels.tsa.stattools import acf, pacf

    x = np.random.default_rng(0).gamma(1, 1, (2, 600)).cumsum(axis=1) % 3
    for i in range(2):
        np.testing.assert_allclose(judge.acf(x, 168)[i], acf(x[i], nlags=168), atol=1e-12)
        np.testing.assert_allclose(judge.pacf(x, 168)[i], pacf(x[i], nlags=168, method="ldb"), atol=1e-10)
    assert np.isnan(judge.acf(np.ones((1, 50)), 3)).all()
    with pytest.raises(ValueError, match="lag 600"):
        judge.acf(x, 600)


def test_psi():
    rng = np.random.default_rng(0)
    x = rng.gamma(1, 1, 20_000)
    assert judge.psi(x, rng.gamma(1, 1, 20_000)) < 0.002
    assert judge.psi_band(judge.psi(x, x + 0.5)) == "large"
    # two bins of .5 and .5 against .75 and .25: (.25) log(1.5) + (-.25) log(.5) = .2747
    assert judge.psi(np.arange(8.0), np.array([0.0] * 6 + [7.0] * 2), 2) == pytest.approx(0.27465, abs=1e-5)
    zeros = np.r_[np.zeros(700), rng.random(300)]
    assert np.isfinite(judge.psi(zeros, rng.random(1_000)))
    with pytest.raises(ValueError, match="bins"):
        judge.psi(x, x, 1)


def test_curves_and_shifts():
    base = np.tile(np.exp(-0.5 * ((np.arange(24) - 18) / 2) ** 2) - 0.01 * np.cos((np.arange(24) - 3) * np.pi / 12), 14)
    values = base * np.repeat(1 + np.arange(14) % 7, 24)
    assert judge.hour_shift(values[None], np.roll(values, -3)[None])["peak"] == -3
    assert judge.hour_shift(values[None], np.roll(values, 13)[None])["peak"] == -11
    weekly = judge.weekly_curve(values[None], START).reshape(7, 24)
    np.testing.assert_allclose(weekly, base[:24] * np.arange(1, 8)[:, None])
    assert np.isnan(judge.weekly_curve(values[None, :120], START).reshape(7, 24)[5:]).all()
    assert judge.curve_error(weekly, weekly * 1.1) == pytest.approx(0.1)


def test_drp_in_numbers():
    """One home, one hour: working days 1 1 1 1 3, median 1: dDRP 2 / 5 of a day; weekends equal."""
    values = np.full((1, 21, 24), 2.0)
    days = np.arange(21)
    values[0, :, 0] = 1.0
    values[0, days[~judge.day_types(START, 21)][::5], 0] = 3.0            # 3 of 15 working days
    found = judge.drp(values.reshape(1, -1), START)
    assert found["dDRP"][0] == pytest.approx(3 * 2 / 21)
    assert found["uDRP"].sum() == 0
    assert found["dDRP_home"][0] == pytest.approx(found["dDRP"].sum())
    up = judge.drp(values.reshape(1, -1), START, up=0.9, cap_kwh=2.5)
    assert up["uDRP"][0] == pytest.approx((12 * 1.5 + 0) / 21)            # min(3, cap) - 1 on the 12 quiet working days


def test_drp_needs_five_days_of_each_type():
    with pytest.raises(ValueError, match="4 weekend days are too few"):
        judge.drp(np.ones((1, 14 * 24)), START)


def test_utility_of_a_copy(homes):
    found = judge.utility(homes.values, homes.values.copy(), homes.start)
    assert found["psi"] == 0
    assert found["shift_hours"] == {"peak": 0, "valley": 0}
    assert found["drp"]["uDRP_curve_error"] == 0
    assert set(found["acf"]) == {1, 24, 168}
    short = judge.utility(homes.values[:, :336], homes.values[:, :336], homes.start)
    assert "drp" not in short
    assert set(short["acf"]) == {1, 24}
