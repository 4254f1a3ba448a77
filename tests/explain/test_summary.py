"""The Explainer: S_i against the SHAP matrix, its coordinates, and what it refuses."""

import math

import numpy as np
import pytest

from fedenergy.explain import model
from fedenergy.explain.summary import Explainer
from fedenergy.households.household import Household
from fedenergy.windows import lagged

CHANNELS, WEATHER = ("Oven", "Fridge", "Cooler"), ("Temperature",)


def home(steps=24 * 12, seed=0, missing=0.0, weather=True, flat=False):
    rng, t = np.random.default_rng(seed), np.arange(steps)
    readings = rng.gamma(1.0, 0.2, (steps, 3)) * (1 + np.sin(t[:, None] * np.pi / 12 + np.arange(3)))
    total = np.full(steps, 1.5) if flat else readings.sum(axis=1)
    readings[rng.random(readings.shape) < missing] = np.nan
    total[rng.random(steps) < missing] = np.nan
    features = 10 + 5 * np.sin(t / 50)[:, None] if weather else None
    return Household("home-1", CHANNELS, readings, total, np.datetime64("2024-01-01T00:00"), 60, features,
                     WEATHER if weather else ())


def reference(explainer, household):
    """S from xgboost's own contributions, in plain loops."""
    design = lagged(household, explainer.lags, lag_features=explainer.coordinates == "feature_lag")
    phi = model.contributions(model.fit(design.X, design.y, explainer.trees, explainer.depth))
    sums = {}
    for f, owner in enumerate(design.feature_channel):
        if owner < 0:
            continue
        x = design.observed[:, owner] if explainer.observed == "now" else design.observed_lagged[:, f]
        key = owner if explainer.coordinates == "appliance" else f
        sums[key] = sums.get(key, 0.0) + phi[:, f] @ np.nan_to_num(x)
    return np.array([sums[key] for key in sorted(sums)])


@pytest.mark.parametrize("observed", ["now", "lagged"])
@pytest.mark.parametrize("coordinates", ["appliance", "feature_lag"])
@pytest.mark.parametrize("missing", [0.0, 0.05])
def test_oracle_summary(observed, coordinates, missing):
    explainer = Explainer(lags=[1, 3, 24], trees=30, observed=observed, coordinates=coordinates)
    household = home(missing=missing)
    found = explainer.summary(household)
    expected = reference(explainer, household)
    assert np.abs(found.values - expected).max() < 1e-5 * np.abs(expected).max()
    assert found.values.shape == (len(explainer.names(CHANNELS, WEATHER)),)
    assert found.rows_used + found.rows_dropped == 24 * 11
    assert 0.5 < found.r2 <= 1


@pytest.mark.parametrize("engine", ["xgboost", "auto"])
def test_oracle_engines_agree(engine):
    household, common = home(missing=0.05), {"lags": (1, 24), "trees": 20}
    found, expected = (Explainer(**common, engine=name).summary(household).values for name in (engine, "tables"))
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_contract_auto_serves_what_tables_cannot():
    assert Explainer(lags=(1,), trees=2, depth=9, engine="auto").summary(home()).values.shape == (3,)


def test_golden_names():
    assert Explainer().names(CHANNELS, WEATHER) == CHANNELS
    assert Explainer(lags=[6, 24], coordinates="feature_lag").names(CHANNELS[:1], WEATHER) == (
        "Oven_lag6", "Oven_lag24", "Temperature_lag6", "Temperature_lag24")
    assert Explainer(lags=[1, 24, 168]).max_lag(30) == 336


def test_contract_equal_rows_give_equal_bytes():
    explainer = Explainer(lags=(1, 24), trees=20)
    first, second = (explainer.summary(home(), slice(24, 200)).values.tobytes() for _ in range(2))
    assert first == second


def test_contract_a_constant_target_is_zero_and_no_error():
    for coordinates in ("appliance", "feature_lag"):
        explainer = Explainer(lags=(1,), coordinates=coordinates)
        found = explainer.summary(home(flat=True))
        assert not found.values.any()
        assert found.values.shape == (len(explainer.names(CHANNELS, WEATHER)),)
        assert found.reason == "constant target"
        assert math.isnan(found.r2)


def test_contract_missing_channels_count_as_no_use():
    household = home(weather=False)
    household.readings[:, 1] = np.nan
    found = Explainer(lags=(1, 24), trees=10).summary(household).values
    assert found[1] == 0
    assert np.isfinite(found).all()


def test_contract_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="at least 24 are needed"):
        Explainer(lags=(1,)).summary(home(), slice(1, 24))


@pytest.mark.parametrize("bad", [
    {"observed": "later"}, {"engine": "lightgbm"}, {"coordinates": "home"}, {"lags": ()}, {"lags": (0,)}, {"trees": 0},
    {"depth": 9}, {"bins": 256}, {"bins": 1}, {"learning_rate": 0}])
def test_contract_wrong_arguments_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))[:3]):
        Explainer(**bad)
