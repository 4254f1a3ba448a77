"""The kinds of query that need no model: known answers, their public bounds, and the sensitivity of each."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.box.query import GENERAL, QUERY_CLASSES, SPECIFIC, SPECIFIC_TO_GENERAL, Query
from fedenergy.explain.kinds import KINDS, SUMMARIES, Measures, _varies
from fedenergy.explain.summary import DAYPARTS, Explainer
from fedenergy.explain.task import Explain
from fedenergy.households.household import Household
from fedenergy.households.simulate import simulate_households
from fedenergy.privacy.gaussian import Gaussian
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.tariff import PeakDiscount

CHANNELS = ("fridge", "oven")
DAYS = 6
ROWS = (24, 24 * DAYS)


def home(readings, total=None, features=None, start="2024-01-01T00:00"):
    readings = np.asarray(readings, np.float64)
    total = readings.sum(axis=1) if total is None else np.asarray(total, np.float64)
    names = () if features is None else ("outdoor_temperature",)
    return Household("h1", CHANNELS, readings, total, np.datetime64(start), 60,
                     None if features is None else np.asarray(features, np.float64)[:, None], names)


def flat(fridge=0.1, oven=0.4, **known):
    return home(np.tile([fridge, oven], (24 * DAYS, 1)), **known)


def summary(kind, household, rows=ROWS, **measures):
    return Measures(**measures).summary(kind, household, rows)


# -- known answers -----------------------------------------------------------------------------------------------------

def test_golden_total_is_the_mean_day():
    assert summary("total", flat()).tolist() == pytest.approx([0.5 * 24])
    total = np.full(24 * DAYS, 0.5)
    total[24:48] = np.nan                                   # a missing day adds nothing: 4 of 5 days of 12 kWh
    assert summary("total", flat(total=total)).tolist() == pytest.approx([12 * 4 / 5])
    assert summary("total", flat(), rows=(24, 24 * 20)).tolist() == pytest.approx([12 * 5 / 19])  # a record that ends early


def test_golden_top_is_one_vote():
    assert summary("top", flat()).tolist() == [0.0, 1.0]
    assert summary("top", flat(0.4, 0.4)).tolist() == [1.0, 0.0]          # the first of two equal ones
    assert summary("top", flat(0.0, 0.0)).tolist() == [0.0, 0.0]


def test_golden_peak_hour_is_a_share_of_the_day():
    readings = np.zeros((24 * DAYS, 2))
    readings[19::24, 0], readings[7::24, 1] = 3.0, 1.0
    shares = summary("peak_hour", home(readings))
    assert (shares[19], shares[7], shares.sum()) == pytest.approx((0.75, 0.25, 1.0))
    late = summary("peak_hour", home(readings, start="2024-01-01T02:00"))  # the clock counts, not the position
    assert (late[21], late[9]) == pytest.approx((0.75, 0.25))
    assert summary("peak_hour", flat(0.0, 0.0)).tolist() == [0.0] * 24


def test_golden_trend_is_second_half_less_first():
    total = np.repeat([0.0, 1.0, 1.0, 9.0, 2.0, 3.0], 24)   # rows are days 1 to 5: (2, 3) less (1, 1), day 3 left out
    assert summary("trend", flat(total=total)).tolist() == pytest.approx([(2.5 - 1.0) * 24])
    assert summary("trend", flat(total=total), rows=(24, 48)).tolist() == [0.0]              # one day has no halves
    total[24 * 4:] = np.nan
    assert summary("trend", flat(total=total)).tolist() == [0.0]


def test_golden_elasticity_finds_the_slope_beneath_habit():
    rng, t = np.random.default_rng(1), np.arange(24 * DAYS)
    habit = 1 + np.sin(t * np.pi / 12)
    degrees = 5 * np.sin(t * np.pi / 12) + rng.normal(0, 3, t.size)         # follows the clock as well
    readings = np.stack([1 + habit + 0.02 * degrees, 1 + habit], axis=1)
    assert summary("elasticity", home(readings, features=degrees)) == pytest.approx([0.02 * 24, 0.0], abs=1e-9)
    readings[40:60, 0] = np.nan
    assert summary("elasticity", home(readings, features=degrees)) == pytest.approx([0.02 * 24, 0.0], abs=1e-9)


def test_golden_elasticity_to_public_prices():
    rng = np.random.default_rng(2)
    prices = rng.choice([4.0, 12.0, 68.0], 24 * DAYS)
    relative = prices / prices[slice(*ROWS)].mean()
    readings = np.stack([2 - 0.1 * relative, np.full(prices.size, 1.0)], axis=1)
    found = summary("elasticity", home(readings), prices=tuple(prices))
    assert found == pytest.approx([-0.1 * 24, 0.0], abs=1e-9)               # a doubled price: 2.4 kWh a day less


def test_a_signal_that_never_differs_tells_nothing_and_an_absent_one_is_an_error():
    daily = np.tile(np.arange(24.0), DAYS)
    assert summary("elasticity", flat(features=daily)).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="no feature 'outdoor_temperature'"):
        summary("elasticity", flat())


def test_golden_incentive_is_the_tariff_modules_shift():
    readings = np.tile([0.1, 0.1], (24 * DAYS, 1))
    readings[np.arange(24 * DAYS) % 24 == 17, 1] = 2.0
    household = home(readings)
    peak = household.readings[slice(*ROWS)].reshape(-1, 24, 2)[:, 16:20].sum(axis=(0, 1)) / 5      # kWh a day
    share = peak.sum() / (household.total[slice(*ROWS)].sum() / 5)
    expected = -PeakDiscount(0.2, share, sigma=0.07).home_change * peak
    assert summary("incentive", household) == pytest.approx(expected)
    assert summary("incentive", flat(0.0, 0.0)).tolist() == [0.0, 0.0]


def test_every_kind_by_a_second_way_on_a_simulated_home():
    """The same numbers by loops over pandas days."""
    pd = pytest.importorskip("pandas")
    household = simulate_households(1, steps=24 * 12, seed=3).load(0)
    stamps = pd.date_range(str(household.start), periods=24 * 12, freq="h")[24:]
    total = pd.Series(household.total[24:], stamps)
    rows = (24, 24 * 12)
    assert summary("total", household, rows)[0] == pytest.approx(total.resample("D").sum().mean())
    shares = total.groupby(total.index.hour).sum() / total.sum()
    assert summary("peak_hour", household, rows) == pytest.approx(shares.to_numpy())
    daily = total.resample("D").sum()
    assert summary("trend", household, rows)[0] == pytest.approx(daily[-5:].mean() - daily[:5].mean())
    used = pd.DataFrame(household.readings[24:], stamps, household.channels).sum()
    assert household.channels[int(np.argmax(summary("top", household, rows)))] == used.idxmax()


# -- public bounds and sensitivity -------------------------------------------------------------------------------------

def test_every_kind_has_a_class_a_unit_and_a_bound():
    task, homes = Explain(lags=[1]), simulate_households(2, steps=96)
    assert {QUERY_CLASSES[kind] for kind in task.kinds} == {GENERAL, SPECIFIC}
    assert set(task.kinds) == {kind for kind, name in QUERY_CLASSES.items() if name in (GENERAL, SPECIFIC)}
    for kind in task.kinds:
        spec = task.kind_spec(kind, homes)
        assert spec.unit
        assert spec.clip > 0
        assert len(spec.coordinates) == len(set(spec.coordinates)) > 0
        assert Laplace(spec.clip).sensitivity() == pytest.approx(2 * spec.clip, rel=1e-6)


def test_a_general_query_asks_less_by_default():
    assert Query("appliances").epsilon / Query("total").epsilon == pytest.approx(SPECIFIC_TO_GENERAL, rel=1e-5)
    assert Query("total", epsilon=1.0).epsilon == 1.0


@st.composite
def households(draw):
    """Any record: silent, missing, huge, short."""
    steps = draw(st.sampled_from([30, 24 * DAYS]))
    seed, size = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.0, 1e-9, 1.0, 1e6, 1e12]))
    rng = np.random.default_rng(seed)
    readings = size * rng.gamma(draw(st.sampled_from([0.05, 1.0])), 1.0, (steps, 2))
    readings[rng.random(readings.shape) < draw(st.sampled_from([0.0, 0.5, 1.0]))] = np.nan
    total = np.nan_to_num(readings).sum(axis=1) * draw(st.sampled_from([0.0, 1.0, 2.0]))
    total[rng.random(steps) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = np.nan
    return home(readings, total, features=rng.normal(8, draw(st.sampled_from([0.0, 1e-12, 4.0])), steps))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(one=households(), other=households())
def test_two_arbitrary_households_differ_by_at_most_twice_the_bound(kind, one, other):
    """Replace-one: in integers on the grid, l1 under Laplace noise and l2 under Gaussian noise."""
    spec = Measures().spec(kind, CHANNELS)
    found = [summary(kind, household) for household in (one, other)]
    for values in found:
        assert values.shape == (len(spec.coordinates),)
        assert np.isfinite(values).all()
    law = Laplace(spec.clip)
    a, b = (law.deposit(values) for values in found)
    assert sum(abs(int(x)) for x in a - b) <= law.grid_sensitivity() == 2 * law.grid.bound
    law = Gaussian(spec.clip, 1e-5)
    a, b = (law.deposit(values) for values in found)
    assert math.isqrt(sum(int(x) ** 2 for x in a - b)) <= law.grid_sensitivity()


@settings(max_examples=40, deadline=None)
@given(household=households())
def test_shares_and_votes_are_never_clipped(household):
    for kind in ("top", "peak_hour"):
        values = summary(kind, household)
        assert np.abs(values).sum() <= 1 + 1e-9
        assert (values >= 0).all()


@settings(max_examples=40, deadline=None)
@given(household=households())
def test_who_is_within_the_bound_of_total_is_not_clipped_in_incentive(household):
    measures = Measures()
    readings = np.minimum(np.nan_to_num(household.readings), np.nan_to_num(household.total)[:, None] / 2)
    sane = home(readings, household.total)                      # channels within the total, as a population promises
    if summary("total", sane)[0] <= measures.clip("total"):
        assert np.abs(summary("incentive", sane)).sum() <= measures.clip("incentive") * (1 + 1e-9)


# -- arguments ---------------------------------------------------------------------------------------------------------

def test_golden_default_bounds():
    assert {kind: round(Measures().clip(kind), 4) for kind in KINDS} == {
        "total": 20.0, "top": 1.0, "peak_hour": 1.0, "trend": 5.0, "elasticity": 1.0,
        "incentive": 0.2536}                                    # 20 (1 - 1.2**-.07)
    assert Measures(prices=(1.0, 3.0)).clip("elasticity") == 2.0
    assert Measures(clips={"total": 40.0}).clip("incentive") == pytest.approx(2 * Measures().clip("incentive"))


@pytest.mark.parametrize(("given", "word"), [
    ({"clips": {"top": 2}}, "clips name 'top'"), ({"clips": {"appliances": 2}}, "the task's own clip"),
    ({"clips": {"total": 0}}, "clip of total = 0"), ({"clips": {"total": math.inf}}, "total = inf"),
    ({"peak_hours": (20, 16)}, "peak_hours"), ({"peak_hours": (0, 24)}, "shorter than it"),
    ({"peak_hours": (16.0, 20)}, "clock hours"), ({"discount": 1.0}, "discount = 1.0"), ({"sigma": 0}, "sigma = 0"),
    ({"prices": (1.0, math.nan)}, "finite p/kWh"), ({"prices": (0.0, 0.0)}, "mean above 0"),
    ({"feature": 3}, "feature = 3")])
def test_senseless_arguments_are_refused(given, word):
    with pytest.raises(ValueError, match=word):
        Measures(**given)


def test_a_table_of_a_config_becomes_measures_and_unknown_keys_are_named():
    task = Explain(measures={"clips": {"total": 30}, "peak_hours": [17, 21]})
    assert task.measures == Measures({"total": 30.0}, (17, 21))
    assert hash(task) == hash(Explain(measures=task.measures))
    with pytest.raises(ValueError, match=r'no argument "clip".*Did you mean "clips"'):
        Explain(measures={"clip": {"total": 30}})


def test_queries_of_a_task_without_measures_keep_their_ids():
    assert "measures" not in Explain().identity()
    assert Explain(measures={"clips": {"total": 30}}).identity()["measures"] == {"clips": {"total": 30.0}}
    long = Measures(prices=tuple(float(k % 7 + 1) for k in range(17_520)))
    assert len(long.identity()["prices"]) == 32                  # a digest: a query body holds at most 64 kB


def test_a_tariff_that_cannot_be_told_from_habit_is_refused():
    homes = simulate_households(2, steps=96)
    fixed = tuple(float(hour >= 16) + 10 for hour in range(24)) * 4
    with pytest.raises(ValueError, match="same every day"):
        Explain(measures={"prices": fixed}).kind_spec("elasticity", homes)
    with pytest.raises(ValueError, match="10 prices for a record of 96 steps"):
        Explain(measures={"prices": fixed[:10]}).kind_spec("elasticity", homes)
    assert not _varies(np.array(fixed), 24)
    assert _varies(np.array(fixed) + (np.arange(96) == 50), 24)
    assert Explain(measures={"prices": (*fixed[:-1], 99.0)}).kind_spec("elasticity", homes).unit.endswith("doubled price")


def test_every_summary_is_listed():
    assert set(SUMMARIES) | {"appliances"} == set(Explain.kinds)


# -- coordinates "daypart" ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("observed", ["now", "lagged"])
@pytest.mark.parametrize("engine", ["tables", "xgboost"])
def test_dayparts_add_up_to_the_appliances(observed, engine):
    """The same phi x, cut by the hour of t instead of by channel."""
    household = simulate_households(1, steps=24 * 12, seed=5).load(0)
    known = {"lags": (1, 24), "trees": 20, "observed": observed, "engine": engine}
    parts = Explainer(**known, coordinates="daypart")
    found, whole = parts.summary(household).values, Explainer(**known).summary(household).values
    assert parts.names(household.channels) == ("night", "morning", "day", "evening", "late")
    assert found.shape == (len(DAYPARTS),)
    assert found.sum() == pytest.approx(whole.sum(), rel=1e-5)
    assert np.count_nonzero(found) == 5


def test_oracle_dayparts_from_the_shap_matrix():
    from fedenergy.explain import model
    from fedenergy.windows import lagged

    household = simulate_households(1, steps=24 * 12, seed=5).load(0)
    design = lagged(household, (1, 24))
    phi = model.contributions(model.fit(design.X, design.y, 20, 4, 64, 0.3))
    hours = np.arange(24, 24 * 12) % 24
    expected = np.zeros(5)
    for t, hour in enumerate(hours):
        part = 0 if hour < 6 else 1 if hour < 10 else 2 if hour < 16 else 3 if hour < 21 else 4
        for f, owner in enumerate(design.feature_channel):
            expected[part] += phi[t, f] * design.observed[t, owner] if owner >= 0 else 0.0
    found = Explainer(lags=(1, 24), trees=20, coordinates="daypart").summary(household).values
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_dayparts_are_of_daypart_granularity():
    assert Explain(coordinates="daypart").identity()["coordinates"] == "daypart"
    assert Explain(coordinates="daypart").kind_spec("appliances", simulate_households(1, steps=96)).coordinates[0] == "night"
