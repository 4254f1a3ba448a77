"""The private second-moment imputer: what a record can move, how much noise there is, and what it fills."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedenergy import imputation as imp
from fedenergy.ids import stream
from fedenergy.imputation import dp_gp
from fedenergy.imputation import dp_gp_release as release
from fedenergy.imputation.base import Base
from fedenergy.privacy.gaussian import epsilon_of_rho, rho_micro
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import SimulationNoise

SLOTS = 6
ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)


def process(n: int, seed: int = 0, days: int = 2, slots: int = SLOTS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x (n, T), mean, covariance) of a known Gaussian in x = sqrt(use), far from 0: a level, a day shape, an AR(1)."""
    t = np.arange(days * slots)
    mean = np.tile(1.0 + 0.3 * np.cos(2 * np.pi * np.arange(slots) / slots), days)
    scale = np.tile(0.1 + 0.03 * np.sin(2 * np.pi * np.arange(slots) / slots), days)
    cov = (0.4 + 0.6 * 0.7 ** np.abs(np.subtract.outer(t, t))) * np.outer(scale, scale)
    return np.random.default_rng(seed).multivariate_normal(mean, cov, n), mean, cov


def windows(n: int = 400, seed: int = 0, **more) -> imp.Windows:
    return imp.Windows(process(n, seed)[0] ** 2, SLOTS, **more)


def fitted(data=None, epsilon=math.inf, **more):
    return dp_gp.fit(windows() if data is None else data, epsilon, **{"cap": 4.0, "typical": 1.2, **more})


# ---- contract

@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, (1, 5), elements=ANY), st.floats(1e-3, 1e3))
def test_contract_every_record_lies_in_the_ball(record, radius):
    z = release.clipped(record, radius)
    assert sum(int(v) ** 2 for v in z[0]) <= NoiseGrid(radius).bound ** 2


@settings(max_examples=40, deadline=None)
@given(arrays(np.float64, (2 * SLOTS,), elements=st.one_of(ANY, st.floats(-10, 10))), st.sampled_from(["sqrt", "none"]))
def test_contract_replacing_a_record_moves_each_release_by_at_most_two_radii_over_n(record, transform):
    """All three vectors, before noise, for the same earlier releases; the record may hold anything but infinity."""
    record = np.where(np.isinf(record), np.nan, record)
    base = windows(20).values[:, :, 0]
    other = np.vstack([record, base[1:]])
    basis = release.Basis(2, SLOTS)
    mean, scale = base.reshape(-1, 2, SLOTS).mean((0, 1)), np.full(2 * SLOTS, 0.1)

    def moved(function, radius):
        sums = []
        for data in (base, other):
            x = dp_gp.forward(imp.baselines.linear(data[:, :, None])[:, :, 0], 0.0, 4.0, transform)
            sums.append(release.mean_of(release.in_parts(function, x, None), radius, 20, None, None).values)
        assert np.linalg.norm(sums[0] - sums[1]) <= 2 * radius / 20 * (1 + 1e-12)

    moved(lambda x: x.reshape(-1, 2, SLOTS).mean(1), 0.7)
    moved(lambda x: ((x - np.tile(mean, 2)) ** 2).reshape(-1, 2, SLOTS).mean(1), 0.2)
    moved(lambda x: basis.moments((x - np.tile(mean, 2)) / scale), 5.0)


def test_contract_a_household_is_one_record_whatever_its_windows():
    x = windows(12).values[:, :, 0]
    homes = np.array(["a"] * 9 + ["b"] * 3)
    other = np.where((homes == "a")[:, None], 1e9, x)
    means = [release.mean_of(release.in_parts(lambda w: w, data, homes), 1.5, 2, None, None).values for data in (x, other)]
    assert 0 < np.linalg.norm(means[0] - means[1]) <= 2 * 1.5 / 2
    with pytest.raises(ValueError, match="n is public"):
        release.mean_of(release.in_parts(lambda w: w, x, None), 1.5, 2, None, None)


def test_contract_hidden_values_are_never_read_and_windows_are_independent():
    gp, data = fitted(epsilon=2.0), windows(6, 3)
    seen = imp.blocks(0.4, 2, 4).observed(6, 12, 1)
    first = gp.fill(data.values, seen, data.time_of_day)
    assert np.array_equal(first, gp.fill(np.where(seen, data.values, np.nan), seen, data.time_of_day))
    assert np.array_equal(first[seen], data.values[seen])
    np.testing.assert_allclose(gp.fill(data.values[2:3], seen[2:3]), first[2:3], rtol=1e-9)
    assert isinstance(gp, Base)
    assert "epsilon 2" in gp.note


def test_contract_masks_with_all_or_nothing_missing():
    gp, data = fitted(), windows(3, 4)
    full = np.ones(data.values.shape, bool)
    assert np.array_equal(gp.fill(data.values, full), data.values)
    empty = gp.fill(np.full_like(data.values, np.nan), ~full)
    np.testing.assert_allclose(empty[0, :, 0], np.tile(gp.mean**2 + gp.scale**2 * np.diag(gp.correlation)[:SLOTS], 2),
                               rtol=0.05)
    drawn = gp.sample(data.values, full, samples=2)
    assert np.array_equal(drawn[:, 1], data.values)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 10.0, math.inf])
def test_contract_the_covariance_is_positive_definite(epsilon):
    gp = fitted(windows(30), epsilon)
    assert np.linalg.eigvalsh(gp.correlation).min() >= 1e-3 * (1 - 1e-9)
    assert gp.scale.min() > 0
    for by in range(SLOTS):
        assert np.linalg.eigvalsh(dp_gp.shifted(gp.correlation, SLOTS, by)).min() > 0


def test_contract_privacy_is_computed_from_what_ran():
    data = windows(40, homes=("a",) * 30 + ("b",) * 10)
    gp = fitted(data, 2.0, delta=1e-6)
    assert gp.privacy.epsilon <= 2.0
    assert gp.privacy.epsilon == pytest.approx(2.0, abs=1e-3)
    assert gp.privacy.rho == pytest.approx(rho_micro(2_000_000, 1e-6) / 1e6, abs=3e-6)
    assert gp.privacy.household == pytest.approx(epsilon_of_rho(round(gp.privacy.rho * 1e6) * 30**2, 1e-6))
    assert (gp.privacy.records, gp.privacy.relation, gp.privacy.household_windows) == (40, "replace-one", 30)
    assert "seeded noise: not private" in str(gp.privacy)
    home = fitted(data, 2.0, unit="household").privacy
    assert (home.records, home.household) == (2, home.epsilon)
    assert "no privacy" in str(fitted(data).privacy)
    assert fitted(data, 2.0, noise="secure").privacy.noise == ""


def test_contract_the_public_rule():
    assert dp_gp.choose_base(12_195, 0.5) == "dp_gp"
    assert dp_gp.choose_base(127, 10.0) == "linear"
    assert dp_gp.choose_base(127, math.inf) == "linear"
    radii = [dp_gp.radius_of(n, 85_000, 96) for n in (100, 1_000, 12_000, 10**6)]
    assert radii == sorted(radii)
    assert (radii[0], radii[-1]) == (48, 384)


def test_contract_bad_arguments_are_named():
    for message, data, more in (
            ("several times of day", windows(2, phase=np.array([0, 1])), {}), ("whole days", windows(2).values, {}),
            ("channels", imp.Windows(np.ones((2, 12, 2)), SLOTS), {}), ("split", windows(2), {"split": (1, 1, 1)}),
            ("homes", windows(2), {"unit": "household"}), ("limits", windows(2), {"cap": -1.0, "typical": None}),
            ("typical", windows(2), {"typical": 9.0}), ("transform", windows(2), {"transform": "log"}),
            ("epsilon", windows(2), {"epsilon": -1.0}), ("millionth", windows(2), {"epsilon": 0.01})):
        with pytest.raises(ValueError, match=message):
            fitted(data, **more)
    with pytest.raises(ValueError, match="point"):
        fitted().fill(np.ones((1, 12)), np.ones((1, 12), bool), point="mode")
    with pytest.raises(ValueError, match="NaN"):
        fitted().fill(np.full((1, 12), np.nan), np.ones((1, 12), bool))


def test_contract_the_diffusion_starts_from_it():
    gp, data = fitted(epsilon=2.0), windows(20)
    net = imp.DiTConfig(12, 1, patch=2, width=16, depth=1, heads=2)
    model = imp.train(data, None, imp.Objective("x0"), imp.DPSGD(clip=1.0, sigma=1.0, delta=1e-5), steps=1, batch=4, seed=0,
                      base=gp, net=net, limits=(0.0, 4.0))
    seen = imp.outage(0.5).observed(20, 12)
    base = model.prepare(data, seen).base.numpy() * 4.0
    np.testing.assert_allclose(base, gp.fill(data.values, seen), rtol=1e-5)
    assert gp.note in str(model.privacy)


# ---- statistics

def test_statistics_the_noise_of_a_release():
    """2 R / (n sqrt(2 rho)): R 3, n 50, rho .02 gives .6; 20,000 coordinates, so 5 sd of the estimate are 2.5 %."""
    zero = iter([np.zeros((50, 20_000))])
    found = release.mean_of(zero, 3.0, 50, 20_000, SimulationNoise(1).source("*zone", "q"))
    assert found.sigma == pytest.approx(0.6, rel=1e-5)
    assert found.values.std() == pytest.approx(0.6, rel=0.025)
    kurtosis = ((found.values / found.values.std()) ** 4).mean()
    assert kurtosis == pytest.approx(3, abs=0.2)


def test_statistics_noise_of_all_three_releases(monkeypatch):
    """fit hands out the radii and shares that it documents: R = sqrt(6 1.2), sqrt(6) 1.2, 12 / 2."""
    seen = []
    inner = dp_gp.mean_of
    monkeypatch.setattr(dp_gp, "mean_of", lambda *a: seen.append((a[1], a[3])) or inner(*a))
    fitted(epsilon=2.0)
    total = rho_micro(2_000_000, 1e-5)
    assert [radius for radius, _ in seen] == pytest.approx([math.sqrt(7.2), math.sqrt(6) * 1.2, 6.0])
    assert [share for _, share in seen] == [int(total * s) for s in dp_gp.SPLIT]


def test_statistics_noise_differs_between_releases_and_seeds():
    a, b, again = (fitted(epsilon=1.0, seed=s) for s in (1, 2, 1))
    assert np.array_equal(a.correlation, again.correlation)
    assert not np.array_equal(a.mean, b.mean)


def test_statistics_samples_have_the_conditional_moments():
    gp, data = fitted(), windows(2, 5)
    seen = np.ones((2, 12, 1), bool)
    seen[:, 4:9] = False
    drawn = gp.sample(data.values, seen, samples=4000, seed=1)
    np.testing.assert_allclose(drawn.mean(1)[:, 4:9], gp.fill(data.values, seen)[:, 4:9], rtol=0.02)
    median = gp.fill(data.values, seen, point="median")
    np.testing.assert_allclose(np.median(drawn, 1)[:, 4:9], median[:, 4:9], rtol=0.02)


def test_statistics_a_known_process_is_recovered():
    """Without noise and with radii that do not clip; at epsilon 4 the filling is within 10 % of the optimum."""
    x, mean, cov = process(20_000, 1)
    data = imp.Windows(x**2, SLOTS)
    gp = fitted(data, moment_radius=1e4, typical=2.0)
    np.testing.assert_allclose(gp.mean, mean[:SLOTS], atol=0.005)
    at = np.tile(gp.scale, 2)
    np.testing.assert_allclose(gp.correlation * np.outer(at, at), cov, atol=0.12 * cov.max())
    test = imp.Windows(process(1500, 2)[0] ** 2, SLOTS)
    seen = imp.outage(0.5).observed(1500, 12)
    best = replace(gp, mean=mean[:SLOTS], scale=np.ones(SLOTS), correlation=cov)
    score = {name: imp.errors(g.fill(test.values, seen), test.values, seen)["mse"]
             for name, g in (("best", best), ("private", fitted(data, 4.0, typical=2.0)))}
    linear = imp.errors(imp.fill_with("linear", test, seen), test.values, seen)["mse"]
    assert score["private"] < 1.1 * score["best"] < 0.7 * linear


# ---- oracle, golden

def test_oracle_the_conditional_gaussian_by_numpy():
    x, mean, cov = process(40, 7)
    seen = imp.points(0.5).observed(40, 12)[:, :, 0]
    found, variance = dp_gp.conditional(mean, cov, x, seen)
    for i, o in enumerate(seen):
        inverse = np.linalg.inv(cov[np.ix_(o, o)])
        gain = cov[np.ix_(~o, o)] @ inverse
        np.testing.assert_allclose(found[i, ~o], mean[~o] + gain @ (x[i, o] - mean[o]), rtol=1e-9)
        np.testing.assert_allclose(variance[i, ~o], np.diag(cov[np.ix_(~o, ~o)] - gain @ cov[np.ix_(o, ~o)]), rtol=1e-7)


def test_oracle_samples_are_a_joint_draw_conditioned_on_its_error(monkeypatch):
    """Matheron, slowly: the prior's draw plus the filling of what it misses at the observed steps; one solve a chunk."""
    gp, data = fitted(), windows(3, 6)
    seen = imp.points(0.5).observed(3, 12)
    solves, inner = [], dp_gp.gains
    monkeypatch.setattr(dp_gp, "gains", lambda cov, seen: solves.append(len(seen)) or inner(cov, seen))
    drawn = gp.sample(data.values, seen, samples=5, seed=2)
    assert solves == [3]
    x, known, starts = gp.read(data.values, seen, None)
    (_, mean, cov), = gp.laws(starts)
    for i in range(3):
        noise = stream(2, "dp_gp", "", f"window-{i}").standard_normal((5, 12)) @ np.linalg.cholesky(cov).T
        for j in range(5):
            slow = noise[j] + dp_gp.conditional(mean, cov, (x[i] - noise[j])[None], known[i:i + 1])[0][0]
            np.testing.assert_allclose(drawn[i, j, ~known[i], 0], gp.back(slow, 0.0)[~known[i]], rtol=1e-9)


def test_oracle_the_noise_free_moments_are_those_of_numpy():
    """One day: the released blocks are the whole covariance; nothing is clipped, nothing thresholded."""
    x = np.random.default_rng(0).normal(size=(500, SLOTS)) @ np.random.default_rng(1).normal(size=(SLOTS, SLOTS))
    basis = release.Basis(1, SLOTS)
    found = release.mean_of(release.in_parts(basis.moments, x, None), 1e5, 500, None, None)
    np.testing.assert_allclose(basis.covariance(basis.blocks(found.values)), x.T @ x / 500, atol=0.2)
    assert basis.moments(x).shape == (500, 21)
    np.testing.assert_allclose(np.linalg.norm(basis.moments(x), axis=1), (x**2).sum(1))


def test_golden_two_days_of_two_slots():
    """Records (1,1,1,1) and (-1,1,-1,1): second moments are those of a level and of a slot contrast, half each, so slots
    are uncorrelated and days equal."""
    basis = release.Basis(2, 2)
    x = np.array([[1.0, 1, 1, 1], [-1, 1, -1, 1]])
    blocks = basis.blocks(basis.moments(x).mean(0))
    np.testing.assert_allclose(blocks, [[[2, 0], [0, 2]], [[0, 0], [0, 0]]], atol=1e-12)
    np.testing.assert_allclose(basis.covariance(blocks), np.kron(np.ones((2, 2)), np.eye(2)), atol=1e-12)


def test_golden_a_shifted_clock():
    """Days that repeat each other: the correlation of a window that starts later is that of the same slots."""
    gp = replace(fitted(), correlation=np.kron(np.ones((2, 2)), np.diag([1.0, 2, 3, 4, 5, 6])))
    clock = (np.arange(12)[None] + 2) % SLOTS
    use = np.linspace(0.8, 1.3, 6) ** 2
    values = use[clock]
    seen = np.arange(12)[None] < 6
    np.testing.assert_allclose(gp.fill(values, seen, clock, point="median"), values, rtol=2e-2)


def test_golden_thresholds_remove_what_noise_explains():
    noise = np.random.default_rng(0).normal(size=48) * 0.1
    level = release.smooth_profile(release.Released(2.0 + noise, 0.1))
    assert np.ptp(level) < 1e-9
    kept = release.smooth_profile(release.Released(2.0 + np.cos(np.pi * (np.arange(48) + 0.5) / 48) + noise, 0.1))
    assert np.ptp(kept) > 1.5
