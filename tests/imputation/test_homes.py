"""What is released of homes: bounded per window, stated jointly with the base, nothing where noise is all there is."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy import imputation as imp
from fedenergy.imputation import default, dp_gp, homes, joint
from fedenergy.imputation.guided import Guided
from fedenergy.imputation.model import Model
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import SimulationNoise

SLOTS, T, LIMITS = 6, 12, (0.0, 3.0)
LEVELS = {"a": 0.1, "b": 0.3, "c": 0.8}


def windows(each: int = 30, seed: int = 0) -> imp.Windows:
    """Three homes that differ in level and in the hour of their peak."""
    rng, parts = np.random.default_rng(seed), []
    for k, (home, level) in enumerate(LEVELS.items()):
        day = level * (1 + 0.6 * np.cos((np.arange(T) - 2 * k) * 2 * np.pi / SLOTS))
        parts.append(imp.Windows(day * rng.gamma(30.0, 1 / 30, (each, T)), SLOTS, homes=(home,) * each))
    return imp.join(parts)


def base(epsilon: float = math.inf) -> dp_gp.DpGp:
    return dp_gp.fit(windows(), epsilon, cap=LIMITS[1], typical=0.3)


def residual(gp: dp_gp.DpGp) -> Model:
    net = imp.DiTConfig(T, 1, patch=3, width=16, depth=1, heads=2)
    return imp.train(windows(), None, imp.Objective("x0", late=0.5), None, steps=1, batch=10, rate=1e-2, seed=0,
                     base=Guided(gp), limits=LIMITS, residual_scale=0.3, net=net)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 5), st.floats(-1e6, 1e6), st.integers(0, 2**32 - 1), st.floats(0.01, 100.0))
def test_property_one_window_moves_the_sums_by_at_most_two_radii(row, height, seed, radius):
    """Replaced by any other of the same home: the matrix of sums moves by 2 R in l2 at most, in that home's row only."""
    rng = np.random.default_rng(seed)
    vectors, at, counts = rng.standard_normal((6, 4)), np.array([0, 0, 1, 1, 2, 2]), np.array([2, 2, 2])
    other = vectors.copy()
    other[row] = height * rng.standard_normal(4)
    source = SimulationNoise(0).source("*zone", "test")
    one, two = (homes.means_of(v, at, counts, radius, None, source)[0] * counts[:, None] for v in (vectors, other))
    moved = np.linalg.norm(one - two, axis=1)
    assert moved.max() <= 2 * radius * (1 + 1e-9)
    assert not np.delete(moved, at[row]).any()


def test_golden_noise_has_the_scale_of_the_sensitivity():
    """rho .02, R 1: sd of the sum 2 / sqrt(.04) = 10; homes of 2 and 5 windows: 5 and 2."""
    counts = np.array([2, 5])
    vectors, at = np.zeros((7, 4000)), np.repeat([0, 1], counts)
    found, sigma = homes.means_of(vectors, at, counts, 1.0, 20_000, SimulationNoise(3).source("*zone", "test"))
    assert sigma == pytest.approx([5.0, 2.0], rel=1e-5)
    assert found.std(1) == pytest.approx(sigma, rel=0.04)
    assert float(Fraction((2 * NoiseGrid(1.0).bound) ** 2 * 10**6, 40_000)) ** 0.5 * NoiseGrid(1.0).step == pytest.approx(10)


def test_contract_where_noise_is_all_there_is_the_base_is_left():
    """At a rho of a millionth or so no profile survives, the correlations are the base's, and the residual is zero."""
    gp, data = base(2.0), windows(4, 1)
    found = homes.release(windows(), gp, 1e-5)
    assert not found.profiles.any()
    np.testing.assert_allclose(found.correlation, gp.correlation, rtol=1e-12)
    seen = imp.outage(0.5).observed(12, T)
    with_homes, without = Guided(gp, found), Guided(gp)
    np.testing.assert_allclose(with_homes.guide(data.values, seen, data.time_of_day, data.homes).filling,
                               without.guide(data.values, seen, data.time_of_day).filling, rtol=1e-9)


def test_contract_homes_of_their_own_level_are_filled_better_and_unknown_ones_as_before():
    gp, test = base(), windows(20, 7)
    guided, seen = Guided(gp, homes.release(windows(), gp, None)), imp.outage(0.5).observed(60, T)

    def error(names):
        return imp.errors(guided.guide(test.values, seen, test.time_of_day, names).filling, test.values, seen)["mse"]
    assert error(test.homes) < 0.8 * error(None)
    assert error(("x", "y", "z") * 20) == error(None)
    shuffled = np.random.default_rng(0).permutation(60)
    one = guided.guide(test.values, seen, test.time_of_day, test.homes)
    two = guided.guide(test.values[shuffled], seen[shuffled], test.time_of_day, [test.homes[k] for k in shuffled])
    np.testing.assert_allclose(one.columns[shuffled], two.columns, rtol=1e-3, atol=1e-5)


def test_contract_base_and_homes_stay_within_epsilon_together_and_are_the_same_again():
    rows, model = windows(), residual(base())
    gp = dp_gp.fit(rows, 8.0, cap=LIMITS[1], typical=0.3)
    found = default.over_homes(model, gp, rows, 20.0, 1e-5)
    known = found.base.homes
    assert 19.4 < found.total.epsilon <= 20.0
    assert found.total.epsilon == joint.epsilon_of(gp.privacy.rho, [joint.gaussian_step(known.rho)], 1e-5)
    one = joint.epsilon_of(gp.privacy.rho + known.rho, [], 1e-5)                 # Gaussians compose to one Gaussian
    assert found.total.epsilon == pytest.approx(one, rel=3e-3)
    assert "replace-one" in str(found.total)
    assert SimulationNoise(0).stamp in str(found.total)
    assert homes.RELATION in str(found.privacy)
    assert found.total.household > 30 * 20.0
    again = default.over_homes(model, gp, rows, 20.0, 1e-5)
    assert np.array_equal(again.base.homes.profiles, known.profiles)
    assert not np.array_equal(default.over_homes(model, gp, rows, 20.0, 1e-5, seed=1).base.homes.profiles, known.profiles)
    assert math.isinf(default.over_homes(model, base(), rows, math.inf, 1e-5).total.epsilon)
    with pytest.raises(ValueError, match="fit it at less"):
        default.over_homes(model, gp, rows, 7.0, 1e-5)


def test_contract_a_saved_model_knows_the_homes(tmp_path):
    rows, seen = windows(4, 2), imp.outage(0.5).observed(12, T)
    gp = dp_gp.fit(windows(), 8.0, cap=LIMITS[1], typical=0.3)
    for name, epsilon, over in (("private", 20.0, gp), ("twin", math.inf, base())):
        model = default.over_homes(residual(over), over, windows(), epsilon, 1e-5)
        again = Model.load(model.save(tmp_path / name))
        assert again.total == model.total
        assert np.array_equal(*(imp.fill(m, rows, seen, samples=2, steps=1).mean for m in (model, again)))
        nameless = replace(rows, homes=None)
        assert not np.array_equal(*(imp.fill(model, w, seen, samples=2, steps=1).mean for w in (rows, nameless)))


def test_contract_what_cannot_be_released_is_refused():
    gp = base()
    with pytest.raises(ValueError, match="name no homes"):
        homes.release(replace(windows(), homes=None), gp, 1.0)
    with pytest.raises(ValueError, match="millionth"):
        homes.release(windows(), gp, 1e-7)
    with pytest.raises(ValueError, match="fitted to"):
        homes.release(replace(windows(), phase=np.ones(90, int)), gp, 1.0)
    with pytest.raises(ValueError, match="by_home"):
        default.fit(windows(), 2.0, limits=LIMITS, kind="homes", by_home=True)


def test_contract_the_default_fits_base_and_homes_within_its_epsilon():
    """Two days of 48 steps, so that the public rule takes dp_gp (and its noise makes it lean on simulated homes)."""
    rng = np.random.default_rng(0)
    use = np.repeat([0.1, 0.4], 450)[:, None] * rng.gamma(9.0, 1 / 9, (900, 96))
    rows = imp.Windows(use, 48, homes=("a",) * 450 + ("b",) * 450)
    gp = dp_gp.fit(rows, math.inf, cap=LIMITS[1])
    net = imp.DiTConfig(96, 1, patch=48, width=8, depth=1, heads=1)
    model = imp.train(rows.take(np.arange(20)), None, imp.Objective("x0", late=0.5), None, steps=1, batch=10, seed=0,
                      base=Guided(gp), limits=LIMITS, residual_scale=0.3, net=net)
    found = default.fit(rows, 10.0, limits=LIMITS, kind="homes", residual=model, by_home=True)
    assert (found.choice, found.model.base.homes.names) == ("dp_gp", ("a", "b"))
    assert found.epsilon == found.model.total.epsilon <= 10.0
    assert found.base.privacy.epsilon <= default.HOMES_SHARE * 10.0
    assert homes.RELATION in found.privacy
    test, seen = rows.take(np.arange(0, 900, 90)), imp.outage(0.5).observed(10, 96)
    named, nameless = (found.points(test.values, seen, test.time_of_day, homes=who)[0] for who in (test.homes, None))
    assert np.array_equal(named[seen], test.values[seen])
    assert imp.errors(named, test.values, seen)["mse"] < imp.errors(nameless, test.values, seen)["mse"]


def test_contract_a_training_over_a_base_that_knows_homes_counts_them_once():
    """The true joint figure: the rho of base and homes together, and the steps."""
    gp = base(4.0)
    known = homes.release(windows(), gp, 0.2)
    dp = imp.DPSGD(clip=0.5, sigma=3.0)
    net = imp.DiTConfig(T, 1, patch=3, width=16, depth=1, heads=2)

    def trained(over: Guided, **more) -> Model:
        return imp.train(windows(), None, imp.Objective("x0"), dp, steps=3, batch=20, seed=1, base=over, limits=LIMITS,
                         residual_scale=default.UNIT, net=net, **more)
    plain, model = trained(Guided(gp)), trained(Guided(gp, known))
    steps = [part for part in plain.history.parts]
    assert model.total.epsilon == pytest.approx(joint.epsilon_of(gp.privacy.rho + 0.2, steps, 1e-5), rel=1e-3)
    assert model.total.epsilon > 1.1 * plain.total.epsilon
    assert "homes' profiles: zCDP rho 0.2" in str(model.privacy)
    assert "no privacy" in str(trained(Guided(gp, replace(known, rho=math.inf))).total)
    tuned = default.tune_head(replace(model, privacy=model.privacy), windows(), 12.0, 1e-5, steps=2, batch=20, rate=1e-2,
                              clip=0.5)
    dp_steps = tuned.history.parts[1:]
    assert joint.epsilon_of(gp.privacy.rho + 0.2, dp_steps, 1e-5) == pytest.approx(tuned.total.epsilon, rel=1e-3)
    assert tuned.total.epsilon <= 12.0


def test_contract_a_checkpoint_goes_on_over_the_same_homes_only(tmp_path):
    gp = base(4.0)
    options = dict(steps=2, batch=20, seed=1, limits=LIMITS, residual_scale=default.UNIT, checkpoint=tmp_path,
                   net=imp.DiTConfig(T, 1, patch=3, width=16, depth=1, heads=2))
    one, other = (Guided(gp, homes.release(windows(), gp, 0.2, seed=seed)) for seed in (1, 2))
    imp.train(windows(), None, imp.Objective("x0"), imp.DPSGD(sigma=3.0), base=one, **options)
    imp.train(windows(), None, imp.Objective("x0"), imp.DPSGD(sigma=3.0), base=one, **options)
    with pytest.raises(ValueError, match="the content of base"):
        imp.train(windows(), None, imp.Objective("x0"), imp.DPSGD(sigma=3.0), base=other, **options)
