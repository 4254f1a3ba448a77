from __future__ import annotations

import numpy as np
import pytest

from fedenergy.synthesis import stl


@pytest.mark.parametrize(("steps", "period", "seasonal"), [(744, 24, 13), (336, 24, 7), (168, 24, 13), (750, 24, 13),
                                                           (744, 168, 7), (1_600, 24, 13), (100, 7, 7)])
def test_oracle_statsmodels(steps, period, seasonal):
    from statsmodels.tsa.seasonal import STL

    rng = np.random.default_rng(steps + period)
    y = rng.gamma(1, 1, (2, steps)) + 0.01 * rng.standard_normal((2, steps)).cumsum(axis=1)
    trend, season, rest = stl.decompose(y, period, seasonal)
    for i in range(2):
        expected = STL(y[i], period=period, seasonal=seasonal).fit()
        assert np.abs(trend[i] - expected.trend).max() < 1e-10
        assert np.abs(season[i] - expected.seasonal).max() < 1e-10
        assert np.abs(rest[i] - expected.resid).max() < 1e-10


def test_oracle_statsmodels_mstl():
    from statsmodels.tsa.seasonal import MSTL

    y = np.random.default_rng(0).gamma(1, 1, 744) + np.sin(np.arange(744) * 2 * np.pi / 168)
    trend, season, rest = stl.decompose_seasons(y, (24, 168), 13)
    expected = MSTL(y, periods=(24, 168), windows=(13, 13)).fit()
    assert np.abs(trend[0] - expected.trend).max() < 1e-10
    assert np.abs(season[0] - expected.seasonal.sum(axis=1)).max() < 1e-10
    assert np.abs(rest[0] - expected.resid).max() < 1e-10
    with pytest.raises(ValueError, match="rising order"):
        stl.decompose_seasons(y, (168, 24))


def test_contract_linear_and_complete():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1, 336))
    parts = [np.array(stl.decompose(x)) for x in (a, b, 2 * a - 3 * b)]
    np.testing.assert_allclose(parts[2], 2 * parts[0] - 3 * parts[1], atol=1e-11)
    np.testing.assert_allclose(parts[0].sum(axis=0), a, atol=1e-13)


@pytest.mark.parametrize("seasonal", [12, 1, 7.0])
def test_trap_seasonal_counts_days_and_is_odd(seasonal):
    with pytest.raises(ValueError, match=r"counts periods \(days\)"):
        stl.decompose(np.ones((1, 336)), 24, seasonal)


def test_trap_two_periods_would_be_all_seasonal():
    with pytest.raises(ValueError, match="whole record seasonal"):
        stl.decompose(np.random.default_rng(0).random((1, 48)))


def test_trap_raising_seasonal_does_not_whiten_the_residual(homes):
    memory = []
    for seasonal in (7, 13, 19):
        rest = stl.decompose(np.log1p(homes.values), 24, seasonal)[2]
        memory.append(np.mean([np.corrcoef(row[1:], row[:-1])[0, 1] for row in rest]))
    assert min(memory) > 0.2
    assert memory[2] >= memory[0] - 0.02
