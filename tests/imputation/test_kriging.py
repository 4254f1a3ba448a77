"""Kriging on a private variogram: what a record can move, what noise alone leaves, and what it fills."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedenergy import imputation as imp
from fedenergy.imputation import kriging
from fedenergy.imputation.base import Base
from fedenergy.imputation.dp_gp_release import in_parts, mean_of

T = 32
LAGS = kriging.lags_of(T)


def series(n: int, seed: int = 0, memory: float = 3.0) -> np.ndarray:
    """(n, T) of an AR(1) around levels of its own, within [0, 1]."""
    at = np.arange(T)
    cov = 0.01 * np.exp(-np.abs(at[:, None] - at) / memory)
    rng = np.random.default_rng(seed)
    return (rng.multivariate_normal(np.zeros(T), cov, n) + rng.uniform(0.4, 0.6, (n, 1))).clip(0, 1)


def fitted(n: int = 400, epsilon: float = math.inf, **more) -> kriging.Kriging:
    return kriging.fit(imp.Windows(series(n)), epsilon, **{"limits": (0.0, 1.0), "skewed": False, **more})


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (1, T), elements=st.floats(0, 1)))
def test_contract_no_window_is_longer_than_one(u):
    v = kriging.shapes(u, LAGS)
    assert np.isfinite(v).all()
    assert np.linalg.norm(v) <= 1 + 1e-12


@settings(max_examples=20, deadline=None)
@given(arrays(np.float64, (T,), elements=st.floats(-1e300, 1e300)))
def test_contract_replacing_a_window_moves_the_release_by_at_most_two_over_n(record):
    base = series(20)
    other = np.vstack([record, base[1:]])
    found = [mean_of(in_parts(lambda x: kriging.shapes(x, LAGS), data.clip(0, 1), None), 1.0, 20, None, None).values
             for data in (base, other)]
    assert np.linalg.norm(found[0] - found[1]) <= 2 / 20 * (1 + 1e-12)


def test_contract_hidden_values_are_never_read_and_observed_ones_are_kept():
    k, values = fitted(epsilon=2.0), series(6, 1)
    seen = imp.blocks(0.4, 2, 4).observed(6, T)[:, :, 0]
    first = k.fill(values, seen)
    assert np.array_equal(first, k.fill(np.where(seen, values, np.nan), seen))
    assert np.array_equal(first[seen], values[seen])
    np.testing.assert_allclose(k.fill(values[2:3], seen[2:3]), first[2:3], rtol=1e-9)
    assert isinstance(k, Base)
    assert "epsilon 2" in k.note


def test_contract_privacy_and_saved_state():
    k = fitted(epsilon=2.0, delta=1e-6)
    assert 1.999 < k.privacy.epsilon <= 2.0
    assert (k.privacy.records, k.privacy.relation) == (400, "replace-one")
    again = kriging.Kriging.from_state(*k.state())
    seen = imp.outage(0.5).observed(3, T)[:, :, 0]
    assert np.array_equal(again.fill(series(3), seen), k.fill(series(3), seen))
    assert "no privacy" in str(fitted().privacy)


def test_contract_bad_arguments_are_named():
    for message, more in (("limits", {"limits": (1.0, 1.0)}), ("unit", {"unit": "household"}), ("unit", {"unit": "day"}),
                          ("millionth", {"epsilon": 0.001})):
        with pytest.raises(ValueError, match=message):
            fitted(20, **more)
    with pytest.raises(ValueError, match="1 channel"):
        kriging.fit(np.ones((2, T, 2)), 1.0, limits=(0, 1))


def test_golden_a_random_walk_gives_the_straight_line():
    """Its variogram grows with the distance: over the distance it is flat."""
    law = kriging.covariance(np.full(len(LAGS), 1 / math.sqrt(len(LAGS))), LAGS, T, T)
    k = kriging.Kriging(law, fitted(20).privacy, 0.0, 1.0, False)
    values, seen = np.linspace(0.2, 0.8, T)[None], np.zeros((1, T), bool)
    seen[0, [0, 10, T - 1]] = True
    np.testing.assert_allclose(k.fill(values, seen), values, atol=0.01)


def test_statistics_noise_alone_leaves_the_straight_line():
    """epsilon .05 on 30 windows: the noise is many times longer than the shape."""
    values = series(200, 3)
    seen = imp.blocks(0.5, 4, 8).observed(200, T)
    line = imp.fill_with("linear", imp.Windows(values), seen)[:, :, 0]
    same = sum(np.abs(fitted(30, 0.05, seed=s).fill(values, seen[:, :, 0]) - line).max() < 0.01 for s in range(20))
    assert same >= 14


def test_statistics_it_is_near_the_best_predictor_and_better_than_the_line():
    """Memory of three steps, 400 windows, epsilon 4: a gap's middle is the level."""
    values = series(600, 2)
    seen = imp.outage(0.5).observed(600, T)
    at = np.arange(T)
    best = kriging.Kriging(np.exp(-at / 3.0) + kriging.LEVEL, fitted(20).privacy, 0.0, 1.0, False)
    score = {name: imp.errors(found, values[:, :, None], seen)["mse"] for name, found in (
        ("best", best.fill(values[:, :, None], seen)), ("private", fitted(epsilon=4.0).fill(values[:, :, None], seen)),
        ("line", imp.fill_with("linear", imp.Windows(values), seen)))}
    assert score["private"] < 1.05 * score["best"]
    assert score["private"] < 0.9 * score["line"]
