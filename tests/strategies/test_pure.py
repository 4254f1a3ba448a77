"""The aggregations as pure functions: golden arithmetic, oracles, and the bias that each docstring states."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg
from scipy import integrate, stats
from scipy.special import betaln

from fedenergy import metrics
from strategies.drop_cautious import DropCautious, drop_cautious
from strategies.inverse_variance import InverseVariance, inverse_variance
from strategies.non_negative import non_negative
from strategies.trimmed_mean import TrimmedMean, trimmed_mean
from strategies.zonal_median import ZonalMedian, zonal_median
from tests.strategies.zone import LAPLACE, aggregated, draws, replies, unbiased, zone

TIMES, ASKED = 2_000, 6.73


def scale(epsilon: float) -> float:
    return LAPLACE.scale_units(round(epsilon * 1e6))


def test_inverse_variance_is_the_weighted_average():
    rng = np.random.default_rng(0)
    values, epsilons = rng.normal(size=(9, 4)), rng.uniform(0.1, 7, 9)
    assert np.allclose(inverse_variance(values, epsilons), np.average(values, axis=0, weights=epsilons**2), rtol=1e-12)
    # weights 1 and 9 / 9: (1 x 9 + 9 x 1) / 10
    assert inverse_variance(np.array([[9.0], [1.0]]), np.array([1.0, 3.0])) == pytest.approx([1.8])


def test_inverse_variance_expects_the_weighted_mean_with_least_noise():
    summaries, epsilons = zone(20), np.repeat([0.5, 2.0], 10)
    sample = np.array([inverse_variance(values, epsilons) for values in draws(summaries, epsilons, TIMES)])
    weights = epsilons**2 / (epsilons**2).sum()
    assert unbiased(sample, weights @ summaries)
    assert not unbiased(sample, summaries.mean(axis=0))            # the bias: the cautious ten count 1/16
    # variance of the weighted mean: 1 / sum of 1 / (2 b_i^2)
    variance = 1 / (1 / (2 * np.array([scale(e) for e in epsilons])**2)).sum()
    assert sample.var(axis=0, ddof=1).mean() == pytest.approx(variance, rel=0.06)
    plain = draws(summaries, epsilons, TIMES).mean(axis=1)
    assert variance < plain.var(axis=0).mean() / 3


def test_drop_cautious_expects_the_kept_mean():
    summaries, epsilons = zone(20), np.repeat([0.16, ASKED], [8, 12])
    sample = np.array([drop_cautious(values, epsilons, 0.5) for values in draws(summaries, epsilons, TIMES)])
    assert unbiased(sample, summaries[8:].mean(axis=0))
    assert not unbiased(sample, summaries.mean(axis=0))
    # the variance of the sum: (n / kept)^2 x kept 2 b^2
    assert 20**2 * sample.var(axis=0, ddof=1).mean() == pytest.approx((20 / 12)**2 * 12 * 2 * scale(ASKED)**2, rel=0.06)


def test_the_floor_itself_is_kept_and_nobody_is_dropped_below_it():
    values = np.array([[2.0], [4.0], [9.0]])
    assert drop_cautious(values, np.array([0.1, 0.1, 0.3]), 1.0) == [9.0]
    assert aggregated(DropCautious(floor=0.3), replies(values, [0.1, 0.3, 0.3])) == [6.5]
    assert aggregated(InverseVariance(), replies(values, [0.3, 0.3, 0.3])) == pytest.approx([5.0])


def test_median_of_laplace_noise_has_half_the_variance():
    homes, epsilon = 51, 1.0
    summaries = np.tile(zone(1), (homes, 1))
    sample = np.array([zonal_median(values) for values in draws(summaries, np.full(homes, epsilon), TIMES)])
    assert unbiased(sample, summaries[0])
    middle, law = homes // 2, stats.laplace                        # n = 2 m + 1: n! / (m! m!) F^m (1 - F)^m f

    def density(x: float) -> float:
        return float(np.exp(middle * (law.logcdf(x) + law.logsf(x)) + law.logpdf(x) - betaln(middle + 1, middle + 1)))

    exact = 2 * integrate.quad(lambda x: x * x * density(x), 0, np.inf)[0]
    variance = sample.var(axis=0, ddof=1).mean() / scale(epsilon)**2
    assert variance == pytest.approx(exact, rel=0.06)              # 7 x 2,000 draws: sd 1.4 %
    assert 1 / homes < exact < 2 / homes * 0.65                    # towards b^2 / n; the mean has 2 b^2 / n


@pytest.mark.parametrize("estimate", [zonal_median, lambda values: trimmed_mean(values, 0.25)])
def test_what_few_homes_use_is_lost_by_robust_ones(estimate):
    """The bias: 2 of 10 homes heat, and the estimate of a zone without noise has no heating."""
    values = np.repeat([[0.0, 3.0]], 10, axis=0)
    values[:2, 0] = 40.0
    assert np.array_equal(estimate(values), [0.0, 3.0])
    assert values.mean(axis=0)[0] == 8.0


def test_trimmed_mean_matches_oracles():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(30, 6)) * 100
    for share in (0.0, 0.1, 0.25, 0.49):
        assert np.allclose(trimmed_mean(values, share), stats.trim_mean(values, share), rtol=1e-12)
    messages = replies(values, np.ones(30))
    assert np.allclose(aggregated(TrimmedMean(0.1), messages), aggregated(FedTrimmedAvg(beta=0.1), messages))
    assert np.allclose(aggregated(ZonalMedian(), messages), aggregated(FedMedian(), messages))
    assert trimmed_mean(np.arange(100.0)[:, None], 0.29) == [49.5]


def test_trimmed_mean_lies_between_mean_and_median():
    homes = 40
    sample = draws(np.tile(zone(1), (homes, 1)), np.ones(homes), TIMES)
    mean, median = (np.array([f(values) for values in sample]).var() for f in (lambda v: v.mean(axis=0), zonal_median))
    assert median < np.array([trimmed_mean(values, 0.2) for values in sample]).var() < mean


def test_non_negative_never_errs_more_and_its_bias_is_half_the_noise():
    homes, epsilon = 20, 1.0
    summaries = zone(homes)
    summaries[:, -1] = 0.0
    sample = draws(summaries, np.full(homes, epsilon), TIMES).mean(axis=1)
    shown, true = non_negative(sample), summaries.mean(axis=0)
    assert (np.abs(shown - true) <= np.abs(sample - true)).all()
    bias = metrics.expected_abs_sum_of_laplace(homes) * scale(epsilon) / 2 / homes
    assert unbiased(shown[:, -1:] - bias, np.zeros(1))
    assert not unbiased(shown[:, -1:], np.zeros(1))


@pytest.mark.parametrize(("estimate", "bad"), [
    (zonal_median, 14), (lambda values: trimmed_mean(values, 0.2), 6)])
def test_breakdown_point(estimate, bad):
    """Homes that send the largest number on the grid move nothing beyond the honest values; one more moves anything."""
    homes, extreme = 30, 2.0**52 * LAPLACE.grid.step
    honest = draws(zone(homes), np.ones(homes), 1)[0]
    attacked = honest.copy()
    attacked[:bad] = extreme
    low, high = honest[bad:].min(axis=0), honest[bad:].max(axis=0)
    assert ((low <= estimate(attacked)) & (estimate(attacked) <= high)).all()
    attacked[:homes // 2 + 1] = extreme
    assert (estimate(attacked) > 1e3 * high).all()
