"""Blended filling: what the window's own evidence gives, what it costs, what noise leaves, and what it fills."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedenergy import imputation as imp
from fedenergy.imputation import blend, families
from fedenergy.imputation.base import Base
from fedenergy.imputation.baselines import linear

T, SLOTS = 32, 100
FLAT = np.eye(T)


def series(n: int, seed: int = 0, memory: float = 3.0) -> np.ndarray:
    """(n, T) of an AR(1) around levels of its own, within [0, 1]."""
    at = np.arange(T)
    cov = 0.01 * np.exp(-np.abs(at[:, None] - at) / memory)
    rng = np.random.default_rng(seed)
    return (rng.multivariate_normal(np.zeros(T), cov, n) + rng.uniform(0.4, 0.6, (n, 1))).clip(0, 1)


def fitted(n: int = 300, epsilon: float = math.inf, **more) -> blend.Blend:
    windows = imp.Windows(series(n), SLOTS, homes=("a", "b", "c") * (n // 3))
    return blend.fit(windows, epsilon, **{"limits": (0.0, 1.0), "skewed": False, **more})


def test_oracle_the_random_walk_alone_gives_the_straight_line():
    u, seen = series(6), imp.blocks(0.5).observed(6, T)[:, :, 0]
    line = linear(np.where(seen, u, np.nan)[:, :, None])[:, :, 0]
    np.testing.assert_allclose(families.average(u, seen, families.laws(T, SLOTS)[:1]).mean, line, atol=1e-4)


def test_oracle_evidence_is_the_density_of_what_is_seen():
    """Differences between laws of a window of known unit scale: those of the multivariate normal density, once its level and
    scale are put back: REML profiled, -(m - 1) / 2 log q in place of -q / 2."""
    y, _ = families.centred(np.random.default_rng(0).standard_normal((1, T)), np.ones(T, bool))
    laws = families.laws(T, SLOTS)[[6, 8, 12]]
    for law, (_, found) in zip(laws, (families.filling(y, np.ones(T, bool), law) for law in laws)):
        cov = law + families.LEVEL
        q = y[0] @ np.linalg.solve(cov, y[0])
        density = multivariate_normal(np.zeros(T), cov).logpdf(y[0]) + 0.5 * q + T / 2 * math.log(2 * math.pi)
        assert found[0] == pytest.approx(density - 0.5 * (T - 1) * math.log(q), abs=1e-3)


def test_contract_shared_positions_fill_as_each_row_s_own():
    u, seen = series(5, 1), imp.blocks(0.4).observed(1, T)[0, :, 0]
    over = families.laws(T, 8)
    one, each = families.average(u, seen, over), families.average(u, np.tile(seen, (5, 1)), over)
    np.testing.assert_allclose(one.mean, each.mean, atol=1e-6)
    np.testing.assert_allclose(one.mass, each.mass, atol=1e-4)
    assert len(over) > len(families.laws(T, SLOTS))                           # days only where a window holds one


def test_statistics_evidence_finds_the_law_and_not_the_scale():
    """White noise: the window's mean, not the line; a random walk: the line; both at a thousandth of the range too."""
    rng, seen = np.random.default_rng(0), imp.outage(0.4).observed(1, 96)[0, :, 0]
    over = families.laws(96, SLOTS)
    for size in (0.1, 1e-3):
        for walk in (False, True):
            x = rng.standard_normal((50, 96))
            u = 0.5 + size * (x.cumsum(1) / 8 if walk else x)
            holey = np.where(seen, u, np.nan)[:, :, None]
            ends = {"line": linear(holey)[:, :, 0], "mean": families.centred(u, seen)[1][:, None] + 0 * u}
            far = {k: np.square(families.average(u, seen, over).mean - v)[:, ~seen].mean() for k, v in ends.items()}
            assert (far["line"] < far["mean"]) == walk


def test_contract_hidden_values_are_never_read_and_observed_ones_are_kept():
    s, values = fitted(epsilon=2.0), series(6, 1)
    seen = imp.blocks(0.4, 2, 4).observed(6, T)[:, :, 0]
    first = s.points(values, seen)
    again = s.points(np.where(seen, values, np.nan), seen)
    for a, b in zip(first, again):
        assert np.array_equal(a, b)
        assert np.array_equal(a[seen], values[seen])
    np.testing.assert_allclose(s.fill(values[2:3], seen[2:3]), first[0][2:3], rtol=1e-9)
    assert isinstance(s, Base)
    assert "epsilon 2" in s.note


def test_contract_bad_arguments_are_named():
    for message, more in (("limits", {"limits": (1.0, 1.0)}), ("unit", {"unit": "day"}), ("millionth", {"epsilon": 0.001})):
        with pytest.raises(ValueError, match=message):
            fitted(30, **more)
    with pytest.raises(ValueError, match="point"):
        fitted(30).fill(series(1), np.ones((1, T), bool), point="mode")
    with pytest.raises(ValueError, match="1 channel"):
        blend.fit(np.ones((2, T, 2)), 1.0, limits=(0, 1))


def test_statistics_it_is_near_the_best_predictor_and_better_than_the_line():
    """Memory of three steps, 300 windows, epsilon 4: a gap's middle is the level."""
    values = series(400, 2)
    seen = imp.outage(0.5).observed(400, T)
    at = np.arange(T)
    best = families.with_law(values, seen[:, :, 0], families.Average(values, np.zeros(400)),
                             np.exp(-np.abs(at[:, None] - at) / 3.0), 1 - 1e-15)
    s = fitted(epsilon=4.0)
    mean, median = s.points(values, seen[:, :, 0])
    line = imp.fill_with("linear", imp.Windows(values), seen)[:, :, 0]
    score = {k: np.square(f - values)[~seen[:, :, 0]].mean() for k, f in (("best", best), ("mine", mean), ("line", line))}
    assert score["mine"] < 1.1 * score["best"]
    assert score["mine"] < 0.9 * score["line"]
    assert np.abs(median - values)[~seen[:, :, 0]].mean() < np.abs(line - values)[~seen[:, :, 0]].mean()


def test_contract_it_costs_what_was_asked():
    s = fitted(epsilon=2.0, delta=1e-6)
    assert 1.999 < s.privacy.epsilon <= 2.0
    assert (s.privacy.records, s.privacy.relation, s.privacy.household_windows) == (300, "replace-one", 100)
    assert fitted(epsilon=2.0, unit="household").privacy.records == 3
    assert "no privacy" in str(fitted().privacy)


def test_statistics_where_noise_swamps_the_release_no_record_shows():
    """epsilon .05 on 30 windows: in most draws the released law's share is 0 and the filling is free."""
    values, seen = series(20, 3), imp.blocks(0.5, 4, 8).observed(20, T)[:, :, 0]
    drawn = [fitted(30, 0.05, seed=s) for s in range(12)]
    swamped = [b for b in drawn if b.share == 0]
    assert len(swamped) >= 8
    assert all(np.array_equal(b.fill(values, seen), swamped[0].fill(values, seen)) for b in swamped)
    assert fitted().share > 0.3


def test_golden_the_nearest_value_counts_in_wide_gaps_of_skewed_values():
    """.2 then hidden, hidden, .2: all fillings are .2. Ends 0 and .9: the nearest moves the median by .3 of its distance
    from the line, towards the near end, against the same filling without it."""
    b = fitted(60, skewed=True)
    values = np.full((1, T), 0.2)
    seen = np.ones((1, T), bool)
    seen[0, [10, 11, 20]] = False
    np.testing.assert_allclose(b.points(values, seen)[1], 0.2, atol=1e-3)
    values[0, 12:] = 0.9
    line = 0.2 + 0.7 * np.array([1, 2]) / 3
    found, plain = b.points(values, seen)[1][0, 10:12], None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blend, "NEAREST", 0.0)
        plain = b.points(values, seen)[1][0, 10:12]
    np.testing.assert_allclose(found - plain, 0.3 * (np.array([0.2, 0.9]) - line), atol=1e-9)


def test_golden_a_seed_gives_the_same_bytes():
    a, b = fitted(60, 2.0, seed=3), fitted(60, 2.0, seed=3)
    assert np.array_equal(a.law, b.law)
    assert not np.array_equal(a.law, fitted(60, 2.0, seed=4).law)


def test_contract_a_window_without_a_reading_leaves_the_others_as_they_are():
    rng = np.random.default_rng(3)
    data = rng.normal(size=(40, 24)).cumsum(1)
    fitted = blend.fit(imp.Windows(data, 24), 10.0, limits=(-20.0, 20.0))
    seen = imp.outage(0.3).observed(3, 24)[:, :, 0]
    alone = fitted.points(data[1:3], seen[1:])
    seen[0] = False
    mean, median = fitted.points(np.where(seen, data[:3], 0.0), seen)
    assert np.isfinite(mean).all()
    assert mean[1:] == pytest.approx(alone[0], abs=1e-9)
    assert median[1:] == pytest.approx(alone[1], abs=1e-9)


def test_golden_a_single_hidden_step_keeps_nearer_to_the_line():
    seen = np.array([[True, False, True, True, False, False, True]])
    assert blend.between(seen).tolist() == [[0, 1, 0, 0, 2, 2, 0]]
    data = np.random.default_rng(4).normal(size=(50, 24))
    fitted = blend.fit(imp.Windows(data, 24), 10.0, limits=(-5.0, 5.0))
    one = np.ones((50, 24), bool)
    one[:, 10] = False
    line = (data[:, 9] + data[:, 11]) / 2
    mean, median = (part[:, 10] for part in fitted.points(np.where(one, data, 0.0), one))
    assert median - line == pytest.approx((mean - line) * blend.SINGLE / blend.SQUARED)
