from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import genextreme, kstest

from fedenergy.synthesis import residual, stl


@pytest.fixture(scope="module")
def rest(homes):
    return stl.decompose(np.log1p(homes.values))[2]


def scipy_fit(row):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape, location, scale = genextreme.fit(row)
    return shape, genextreme.logpdf(row, shape, location, scale).sum()


def test_oracle_never_worse_than_scipy(rest):
    """Trap: scipy's default start stops early in about half of the homes."""
    law = residual.fit_gev(rest[:16])
    ours = law.log_likelihood(rest[:16])
    early = 0
    for i in range(16):
        shape, reached = scipy_fit(rest[i])
        if abs(shape) < residual.SHAPE_BOUND:
            assert ours[i] > reached - 1e-3
        early += ours[i] > reached + 1
    assert early >= 4


def test_oracle_functions_are_scipys():
    c, location, scale = np.array([0.2, -0.3, 1e-9]), np.array([0.1, 0.0, -1.0]), np.array([0.5, 2.0, 1.0])
    law, u = residual.Gev(c, location, scale), np.tile(np.linspace(0.01, 0.99, 9), (3, 1))
    for i in range(3):
        x = genextreme.ppf(u[i], c[i], location[i], scale[i])
        np.testing.assert_allclose(law.quantile(u)[i], x, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(law.cdf(np.tile(x, (3, 1)))[i], u[i], rtol=1e-6)
        expected = genextreme.logpdf(x, c[i], location[i], scale[i]).sum()
        assert law.log_likelihood(np.tile(x, (3, 1)))[i] == pytest.approx(expected, rel=1e-6)
    assert law.log_likelihood(np.full((3, 1), 100.0))[0] == -np.inf


def test_statistics_recovers_the_law():
    rng = np.random.default_rng(3)
    truth = [(0.2, 0.5, 1.5), (-0.2, 0.0, 0.3), (0.02, -2.0, 1.0)]
    x = np.stack([genextreme.rvs(c, m, s, size=20_000, random_state=rng) for c, m, s in truth])
    for law in (residual.fit_gev(x), residual.l_moments(x)):
        np.testing.assert_allclose(np.stack([law.shape, law.location, law.scale], axis=1), truth, atol=0.04)


def test_trap_scipys_sign_positive_shape_is_bounded(rest):
    law = residual.fit_gev(rest)
    assert (law.shape > 0).mean() > 0.9   # simulated homes, as the real ones: bounded peaks
    bounded = law.shape > 0
    top = (law.location + law.scale / law.shape)[bounded]
    assert (top >= rest.max(axis=1)[bounded]).all()


def test_trap_guards():
    flat = np.zeros((2, 100))
    flat[0] = np.random.default_rng(0).random(100)
    with pytest.raises(ValueError, match="row 1"):
        residual.fit_gev(flat)
    with pytest.raises(ValueError, match="no spread"):
        residual.l_moments(flat)
    wild = np.random.default_rng(0).standard_cauchy((1, 500)) * 1e3   # heavier than the bound allows
    law = residual.fit_gev(wild)
    assert abs(law.shape[0]) <= residual.SHAPE_BOUND
    assert np.isfinite(law.log_likelihood(wild)).all()


def test_trap_zero_inflated_residual_stays_finite():
    x = np.zeros((1, 744))
    x[0, ::37] = np.random.default_rng(0).gamma(1, 0.2, x[0, ::37].size)
    for form in residual.FORMS:
        drawn = residual.fit(x, form).sample(np.random.default_rng(1).standard_normal(x.shape))
        assert np.isfinite(drawn).all()


def test_trap_memory_and_hourly_scale_need_gev_ar(rest):
    """The source's independent draws have neither memory nor the hours' scales; gev_ar has both."""
    def memory(x):
        return np.mean([np.corrcoef(row[1:], row[:-1])[0, 1] for row in x])

    def by_hour(x):
        return x.reshape(len(x), -1, 24).std(axis=1)

    normal = np.random.default_rng(0).standard_normal(rest.shape)
    source, ours = (residual.fit(rest, form).sample(normal) for form in ("gev", "gev_ar"))
    real = memory(rest)
    assert abs(memory(source)) < 0.03
    assert abs(memory(ours) - real) < 0.15 < real
    assert np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(by_hour(ours), by_hour(rest))]) > 0.8
    assert np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(by_hour(source), by_hour(rest))]) < 0.3
    assert ours.std() == pytest.approx(rest.std(), rel=0.1)


def test_empirical_draws_own_values_of_the_hour(rest):
    drawn = residual.fit(rest[:3], "empirical").sample(np.random.default_rng(0).standard_normal((3, 744)))
    for i in range(3):
        for hour in (0, 17):
            assert set(drawn[i, hour::24]) <= set(rest[i, hour::24])


def test_statistics_ar1():
    path = residual.ar1(np.random.default_rng(0).standard_normal((2, 50_000)), np.array([0.7, -0.3]))
    assert [np.corrcoef(row[1:], row[:-1])[0, 1] for row in path] == pytest.approx([0.7, -0.3], abs=0.02)
    assert kstest(path[0, ::40], "norm").pvalue > 0.01


def test_unknown_form(rest):
    with pytest.raises(ValueError, match="gev_ar"):
        residual.fit(rest, "normal")
