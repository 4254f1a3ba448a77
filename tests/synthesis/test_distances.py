"""Dynamic time warping, and clusters by it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fedenergy.synthesis import distances, segments
from fedenergy.synthesis.generate import synthesise
from fedenergy.synthesis.intake import panel


def by_definition(a, b, band):
    """The least sum of squares over all monotone matchings, by recursion on their last pair."""
    @cache
    def least(i, j):
        if abs(i - j) > band or i < 0 or j < 0:
            return np.inf
        here = (a[i] - b[j]) ** 2
        if i == j == 0:
            return here
        return here + min(least(i - 1, j - 1), least(i - 1, j), least(i, j - 1))

    return np.sqrt(least(len(a) - 1, len(b) - 1))


@pytest.mark.parametrize("band", [0, 1, 3, 24])
def test_oracle_by_definition(band):
    rng = np.random.default_rng(band)
    for _ in range(10):
        a, b = rng.normal(size=(2, 12))
        assert distances.dtw(a, b, band) == pytest.approx(by_definition(a, b, band))
        assert distances.dtw(a, b, band) == pytest.approx(distances.dtw(b, a, band))
    assert distances.dtw(a, a, band) == 0


def test_oracle_no_band_is_euclidean(homes):
    x = segments.features(homes)[:12]
    np.testing.assert_allclose(distances.pairwise_dtw(x, 0), np.linalg.norm(x[:, None] - x, axis=2), atol=1e-12)
    narrow, wide = distances.pairwise_dtw(x, 1), distances.pairwise_dtw(x, 3)
    assert (wide <= narrow + 1e-12).all()


def test_oracle_kmeans_without_a_band_is_sklearns(homes):
    from sklearn.cluster import KMeans

    x = segments.features(homes)
    labels, centres, inertia = distances.kmeans_dtw(x, 2, 0, band=0)
    best = KMeans(2, n_init=10, random_state=0).fit(x)
    assert inertia == pytest.approx(best.inertia_, rel=0.01)
    np.testing.assert_allclose(centres, [x[labels == k].mean(axis=0) for k in (0, 1)])
    apart = np.concatenate([x[:20], x[:20] + np.array([2.0, -2.0] * 12)])
    best = KMeans(2, n_init=10, random_state=0).fit(apart)
    assert distances.kmeans_dtw(apart, 2, 0, band=0)[2] == pytest.approx(best.inertia_)
    assert centres.shape == (2, 24)


def test_shifted_shapes_are_one_cluster():
    """An evening peak at 18 or 19 h against a morning peak: warped distances see two habits, Euclidean three or more."""
    rng, hours = np.random.default_rng(0), np.arange(24)
    peaks = np.repeat([18, 19, 7], 12)
    x = np.exp(-0.5 * (hours - peaks[:, None]) ** 2) + 0.01 * rng.random((36, 24))
    labels, _, inertia = distances.kmeans_dtw(x, 2, 0)
    assert len(set(labels[:24])) == len(set(labels[24:])) == 1
    assert labels[0] != labels[30]
    assert inertia < 0.2 * segments.kmeans(x, 2, 0)[2]


def test_option_of_the_synthesiser(homes):
    few = panel(homes.values[:20], ids=homes.ids[:20])
    found = segments.segment(few, 2, distance="dtw", min_cell=2)
    np.testing.assert_array_equal(found.cluster, segments.segment(few, 2, distance="dtw", min_cell=2).cluster)
    auto = segments.segment(few, "auto", distance="dtw", most=3, min_cell=2)
    assert set(auto.scores[3]) == {"inertia", "silhouette", "calinski_harabasz"}
    assert synthesise(few, seed=0, clusters=2, distance="dtw").values.shape == (20, 744)
    for wrong in ({"distance": "cosine"}, {"distance": "dtw", "of": "series"}):
        with pytest.raises(ValueError, match="use"):
            segments.segment(few, 2, **wrong)
    with pytest.raises(ValueError, match="band"):
        distances.dtw(np.zeros(3), np.zeros(3), -1)


def test_more_clusters_than_shapes():
    x = np.repeat(np.random.default_rng(0).random((2, 24)), 3, axis=0)
    labels, _, inertia = distances.kmeans_dtw(x, 2, 0)
    assert inertia == pytest.approx(0)
    assert np.bincount(labels).tolist() == [3, 3]
    with pytest.raises(ValueError, match="only 2 different homes"):
        segments.kmeans(x, 3, 0, "dtw")
