from __future__ import annotations

import pickle

import numpy as np
import pytest

from fedenergy.households.datasets import london_households
from fedenergy.households.simulate import simulate_households
from fedenergy.synthesis import judge_privacy
from fedenergy.synthesis import judge_utility as judge
from fedenergy.synthesis.components import DEFAULT, SOURCE
from fedenergy.synthesis.generate import VARIANTS, synthesise
from fedenergy.synthesis.intake import panel


@pytest.fixture(scope="module")
def made(homes):
    return {variant: synthesise(homes, seed=1, variant=variant) for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_contract_shape_counts_and_guarantee(homes, made, variant):
    fake = made[variant]
    assert fake.values.shape == (60, 744)
    assert np.isfinite(fake.values).all()
    assert fake.values.min() >= 0
    assert fake.ids[0] == "syn-000001"
    assert "epsilon = infinity" in fake.guarantee
    assert fake.counts["homes"] == 60
    assert fake.counts["smallest_cell"] >= 5
    assert fake.cluster.shape == fake.size.shape == (60,)
    assert (fake.counts["clipped_steps"] == 0) == (variant == "raw_shuffle")
    assert sorted(fake._provenance.ravel().tolist()) == list(range(60 * 31))


def test_contract_seed_and_order_of_homes(homes, made):
    again = synthesise(panel(homes.values[::-1], ids=homes.ids[::-1]), seed=1)
    np.testing.assert_array_equal(again.values, made["components_shuffle"].values)
    assert np.abs(synthesise(homes, seed=2).values - again.values).max() > 0.1


def test_provenance_never_leaves(made):
    fake = made["components_shuffle"]
    assert "provenance" not in repr(fake)
    assert pickle.loads(pickle.dumps(fake))._provenance is None
    assert not set(fake.ids) & set(simulate_households(60).ids)
    rows = (fake._provenance // 31)[:, 0]
    assert (made["components"]._provenance[:, 0] // 31 == np.arange(60)).mean() < 0.2   # row numbers say nothing
    assert (rows == np.arange(60)).mean() < 0.2


def test_trap_raw_shuffle_is_verbatim_days_with_perfect_marginals(homes, made):
    fake = made["raw_shuffle"].values
    assert judge.psi(homes.values, fake) == 0
    assert judge_privacy.exact_copies(fake.reshape(-1, 24), homes.values.reshape(-1, 24)) == 1
    for variant in ("components", "components_shuffle"):
        assert judge_privacy.exact_copies(made[variant].values.reshape(-1, 24), homes.values.reshape(-1, 24)) == 0


def test_trap_the_shuffle_inflates_demand_response_potential(homes, made):
    real = judge.drp(homes.values, homes.start)
    mixed = synthesise(homes, seed=1, variant="raw_shuffle", shuffle="free", clusters=1, sizes=1)
    free = judge.drp(mixed.values, homes.start)
    assert free["uDRP"].sum() > 1.1 * real["uDRP"].sum()
    assert free["dDRP"].sum() > 1.3 * real["dDRP"].sum()


def test_violations_stay_below_the_real_rate(made):
    fake = made["components_shuffle"]
    assert fake.violations < fake.real_violations / 2
    assert all(cell.sigma_kwh > 0 for cell in fake.cells)


def test_the_sound_form_beats_the_source(homes, made):
    """Distribution (PSI) and hourly memory (ACF at 1) of the default recipe against the source's."""
    source = synthesise(homes, seed=1, recipe=SOURCE)
    real, first, second = (judge.acf(values, 1)[:, 1].mean() for values in
                           (homes.values, made["components_shuffle"].values, source.values))
    assert abs(first - real) < abs(second - real)
    assert judge.psi(homes.values, made["components_shuffle"].values) < 0.1
    assert judge.psi(homes.values, made["components_shuffle"].values) < judge.psi(homes.values, source.values)


@pytest.mark.data
def test_real_homes_say_the_same(data_dir):
    """London: what the sound form gains on the source's, and what leaks from either."""
    population = london_households(data_dir, count=60)
    homes = (population.load(i) for i in range(60))
    real = panel([home for home in homes if not np.isnan(home.total).any()], on_bad="drop")
    ours, source = (synthesise(real, seed=1, variant="components", recipe=recipe) for recipe in (DEFAULT, SOURCE))
    truth, first, second = (judge.acf(values, 1)[:, 1].mean() for values in (real.values, ours.values, source.values))
    assert abs(first - truth) < 0.05 < 0.1 < abs(second - truth)
    assert judge.psi(real.values, ours.values) < 0.6 * judge.psi(real.values, source.values)
    assert source.counts["clipped_steps"] > 0.04 * real.values.size
    baseline = judge.drp(real.values, real.start)
    error = [judge.compare_drp(baseline, judge.drp(fake.values, real.start))["dDRP_curve_error"] for fake in (ours, source)]
    assert error[0] < 0.8 * error[1]
    assert judge_privacy.linkage(real.values, ours.values, ours._provenance)["home"] > 0.3


def test_local_each_home_alone(homes):
    fake = synthesise(homes, "local", seed=4)
    assert fake.ids == homes.ids
    assert (fake._provenance // 31 == np.arange(60)[:, None]).all()   # only its own days
    one = synthesise(panel(homes.values[7:8], ids=homes.ids[7:8]), "local", seed=4)
    np.testing.assert_allclose(one.values[0], fake.values[7], atol=1e-6)


def test_a_population_and_bad_homes_dropped():
    fake = synthesise(simulate_households(12, steps=336, seed=3), seed=0, clusters=2)
    assert fake.values.shape == (12, 336)
    values = fake.values.copy()
    values[3] = 0
    left = synthesise(values, seed=0, clusters=1, on_bad="drop")
    assert left.values.shape == (11, 336)
    assert list(left.excluded) == ["home-000004"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"mode": "cloud"}, "mode = 'cloud'; use one of curator, local"),
    ({"variant": "case3"}, "variant = 'case3'"),
    ({"shuffle": "hourly"}, "shuffle = 'hourly'"),
    ({"mode": "local", "shuffle": "within_date"}, "each is alone"),
    ({"seed": 1.5}, "seed"),
    ({"clusters": 100}, "only 60 different homes"),
])
def test_breaking_arguments(homes, arguments, message):
    with pytest.raises(ValueError, match=message):
        synthesise(homes, **{"seed": 0, **arguments})


def test_identical_homes(homes):
    fake = synthesise(np.repeat(homes.values[:1], 6, axis=0), seed=0, clusters=1)
    assert np.isfinite(fake.values).all()
    assert np.ptp(fake.values, axis=0).max() > 0   # identical homes do not give identical records
