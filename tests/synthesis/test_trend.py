from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedenergy.synthesis import stl
from fedenergy.synthesis.trend import ALPHA, TrendGP


@pytest.fixture(scope="module")
def trend(homes):
    return stl.decompose(np.log1p(homes.values[:12]))[0]


@pytest.mark.parametrize("source", [False, True])
def test_oracle_sklearn_likelihood(trend, source):
    """Within 1.5 nats of L-BFGS from several starts, on the same points, with the source's kernel and bounds."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    process = TrendGP(744, source=source)
    fitted = process.fit(trend)
    values = process.standardise(trend)[0]
    for i in range(4):
        best = -np.inf
        for length in (3.0, 15.0, 60.0):
            kernel = ConstantKernel(1.0, (1e-3, 1e3)) * (RBF(length, (1e-1, 1e2)) + Matern(length, (1e-1, 1e2), nu=2.5))
            oracle = GaussianProcessRegressor(kernel, alpha=ALPHA)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # bounds reached
                oracle.fit(process.grid[:, None].astype(float), values[i])
            best = max(best, oracle.log_marginal_likelihood_value_)
        assert best - 1.5 < fitted.likelihood[i] < best + 0.1


def test_golden_likelihood_is_the_gaussian_density(trend):
    from scipy.stats import multivariate_normal

    process = TrendGP(744)
    fitted = process.fit(trend[:2])
    first, second = fitted.lengths[1]
    hours = process.grid.astype(float)
    distance = np.abs(hours[:, None] - hours)
    z = np.sqrt(5) * distance / second
    cover = fitted.scale[1] * (np.exp(-0.5 * (distance / first) ** 2) + (1 + z + z * z / 3) * np.exp(-z))
    expected = multivariate_normal(cov=cover + ALPHA * np.eye(hours.size)).logpdf(process.standardise(trend)[0][1])
    assert fitted.likelihood[1] == pytest.approx(expected, abs=1e-6)


def test_trap_marginal_normals_are_white_noise_and_the_joint_sample_is_smooth(trend):
    normal = np.random.default_rng(0).standard_normal(trend.shape)
    rough = {}
    for source, form in ((True, "marginal"), (False, "joint"), (False, "prior")):
        process = TrendGP(744, source=source)
        rough[form] = np.diff(process.sample(process.fit(trend), normal, form), axis=1).std()
    real = np.diff(trend, axis=1).std()
    assert rough["marginal"] > 4 * real
    assert 0.8 * real < rough["joint"] < 1.2 * real
    assert 0.7 * real < rough["prior"] < 1.4 * real


def test_trap_absolute_noise_swallows_the_trend(trend):
    """alpha = 1e-2 is of the trend's own variance: the source's posterior mean follows it badly, a relative one well."""
    error = {}
    for source in (True, False):
        process = TrendGP(744, source=source)
        mean = process.sample(process.fit(trend), np.zeros_like(trend), "joint")
        error[source] = ((mean - trend).var(axis=1) / trend.var(axis=1)).mean()
    assert error[False] < 0.02 < 0.15 < error[True]


def test_statistics_posterior_covariance(trend):
    """4,000 joint draws of one home: mean and covariance on the grid are the textbook posterior's."""
    process = TrendGP(168)
    short = trend[:1, :168]
    fitted = process.fit(short)
    repeat = 4_000
    many = type(fitted)(*(np.repeat(getattr(fitted, name), repeat, axis=0) for name in fitted.__dataclass_fields__))
    drawn = process.sample(many, np.random.default_rng(1).standard_normal((repeat, 168)))[:, process.grid]
    first, second = fitted.lengths[0]
    distance = np.abs(process.grid[:, None] - process.grid).astype(float)
    z = np.sqrt(5) * distance / second
    kernel = fitted.scale[0] * (np.exp(-0.5 * (distance / first) ** 2) + (1 + z + z * z / 3) * np.exp(-z))
    gain = kernel @ np.linalg.inv(kernel + ALPHA * np.eye(len(kernel)))
    mean = fitted.level + fitted.deviation * gain @ process.standardise(short)[0][0]
    cover = fitted.deviation[0] ** 2 * (kernel - gain @ kernel)
    sd = np.sqrt(np.diag(cover))
    assert np.abs((drawn.mean(axis=0) - mean) / sd).max() < 5 / np.sqrt(repeat)
    np.testing.assert_allclose(np.cov(drawn.T), cover, atol=0.12 * cover.max())


def test_unknown_form(trend):
    process = TrendGP(744)
    with pytest.raises(ValueError, match="joint"):
        process.sample(process.fit(trend), trend, "independent")
