"""Daily shapes and DP k-means: bounds, a start without data, and the three leaks that other libraries' k-means have."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy.households.simulate import simulate_households
from fedenergy.synthesis import private_shape as shapes
from fedenergy.synthesis.private_plan import Budget, Constants


@pytest.fixture(scope="module")
def thousand() -> np.ndarray:
    """(1000, 12) shapes of 1,000 simulated homes, 31 days."""
    population = simulate_households(1_000, steps=744, seed=1)
    return np.stack([shapes.shape_of(population.load(i).total) for i in range(1_000)])


def lloyd(points, sigma, clusters=4, steps=4, seed=0):
    """The rounds as the zone and the homes play them, with one Gaussian noise a step."""
    rng, state = np.random.default_rng(seed), shapes.start(clusters, points.shape[1])
    for _ in range(steps):
        label = np.array([shapes.nearest(point, state.centres) for point in points])
        sums = np.zeros(state.centres.shape)
        np.add.at(sums, label, points)
        counts = np.bincount(label, minlength=clusters)
        noise = rng.normal(0, sigma, (clusters, points.shape[1] + 1))
        state = shapes.advance(state, sums + noise[:, :-1], counts + noise[:, -1], sigma, len(points))
    return shapes.unsquash(shapes.finish(state))


def inertia(points, centres):
    return np.square(points[:, None] - centres).sum(axis=2).min(axis=1).sum()


def test_six_harmonics_hold_most_of_the_variance(homes):
    basis = shapes.basis()
    np.testing.assert_allclose(basis.T @ basis, np.eye(12), atol=1e-12)
    profile = np.log1p(homes.profiles).mean(axis=1)
    profile -= profile.mean(axis=1, keepdims=True)
    found = np.stack([shapes.shape_of(row) for row in homes.values])
    np.testing.assert_allclose(found, profile @ basis)
    assert np.square(found).sum() > 0.94 * np.square(profile).sum()


def test_contract_no_shape_is_longer_than_one():
    wild = np.random.default_rng(0).standard_cauchy((500, 12)) * 1e3
    assert np.linalg.norm(shapes.squash(wild), axis=1).max() <= 1 + 1e-12   # and the box clips the rest
    assert not shapes.squash(np.zeros((1, 12))).any()
    mild = np.random.default_rng(0).normal(0, 0.3, (50, 12))
    np.testing.assert_allclose(shapes.unsquash(shapes.squash(mild)), mild, rtol=1e-9)


def test_statistics_inertia_at_a_thousand_homes(thousand):
    """Epsilon 1, delta 1e-5, replace-one: 2.07 times the non-private inertia on average over 20 seeds with all of it for the
    clusters, 2.44 with their share of a whole run; no clustering at all is 4.58, the same steps without noise 1.56."""
    from sklearn.cluster import KMeans

    best = KMeans(4, n_init=10, random_state=0).fit(thousand).inertia_
    sigma = Budget(1.0, 1e-5).constants.law("synth_shape", 1e-5).sensitivity() / np.sqrt(2 * 0.030556 / 4)
    points = shapes.squash(thousand)
    ratio = [inertia(thousand, lloyd(points, sigma, seed=seed)) / best for seed in range(8)]
    assert np.mean(ratio) < 2.5
    share = Budget(1.0, 1e-5).sigma("synth_shape")
    assert np.mean([inertia(thousand, lloyd(points, share, seed=seed)) for seed in range(8)]) / best < 2.6
    assert inertia(thousand, thousand.mean(axis=0)[None]) / best > 4
    assert inertia(thousand, lloyd(points, 1e-9)) / best < 1.7


def test_statistics_a_hundred_homes_are_too_few(thousand):
    from sklearn.cluster import KMeans

    few = thousand[:100]
    best = KMeans(4, n_init=10, random_state=0).fit(few).inertia_
    sigma = 2 / np.sqrt(2 * 0.030556 / 4)
    assert np.mean([inertia(few, lloyd(shapes.squash(few), sigma, seed=seed)) for seed in range(5)]) / best > 2.5
    assert Budget(1.0, 1e-5).promise(100).verdict == "too few homes"
    assert Budget(1.0, 1e-5).promise(1_000).verdict == "useful"


def test_leak_the_start_sees_no_data():
    """A start from the homes (k-means++, random homes) would be a release of its own."""
    first, again = shapes.start(4, 12), shapes.start(4, 12)
    np.testing.assert_array_equal(first.centres, again.centres)
    np.testing.assert_allclose(np.linalg.norm(first.centres, axis=1), shapes.START, atol=1e-5)


def test_leak_the_zone_knows_noised_sums_only():
    """advance is a function of noised numbers: an empty cluster's noise decides what becomes of it, whoever is in it."""
    state, rng = shapes.start(2, 12), np.random.default_rng(0)
    sums = rng.normal(0, 5, (2, 12))
    kept = shapes.advance(state, sums, np.array([60.0, 40.0]), 5.0, 100)
    assert kept.alive.all()
    gone = shapes.advance(state, sums, np.array([95.0, 2.0]), 5.0, 100)
    assert gone.alive.tolist() == [True, False]
    assert np.linalg.norm(gone.centres[1] - gone.centres[0]) < 1        # beside the large one, in a fixed direction
    assert not gone.sums[1].any()
    np.testing.assert_array_equal(gone.centres, shapes.advance(state, sums, np.array([95.0, 2.0]), 5.0, 100).centres)


def test_counts_add_up_to_the_public_number_of_homes():
    state = shapes.advance(shapes.start(3, 12), np.ones((3, 12)), np.array([50.0, 30.0, 10.0]), 1.0, 120)
    assert state.counts.sum() == pytest.approx(120)


def test_constants_are_checked():
    for change in ({"clusters": 0}, {"clusters": 2.0}, {"sizes": 9}, {"steps": 0}, {"bins": 3}, {"cap_kwh": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(change))} = .*use"):
            Constants(**change)
