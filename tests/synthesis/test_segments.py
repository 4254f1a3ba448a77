from __future__ import annotations

import numpy as np
import pytest

from fedenergy.synthesis import segments
from fedenergy.synthesis.intake import panel


def test_oracle_sklearn(homes):
    from sklearn.cluster import KMeans

    found = segments.segment(homes, 3, seed=5)
    x = np.log1p(homes.values).reshape(60, 31, 24).mean(axis=1)
    expected = KMeans(3, n_init=10, random_state=5).fit(x)
    np.testing.assert_array_equal(found.cluster, expected.labels_)
    assert found.inertia == pytest.approx(expected.inertia_)


@pytest.mark.parametrize("criterion", segments.CRITERIA)
def test_auto_reports_every_criterion(homes, criterion):
    found = segments.segment(homes, "auto", criterion=criterion, most=5)
    assert set(found.scores) == {1, 2, 3, 4, 5}
    assert all({"inertia", "silhouette", "calinski_harabasz"} == set(found.scores[k]) for k in (2, 3, 4, 5))
    if criterion != "elbow":
        best = max((2, 3, 4, 5), key=lambda k: found.scores[k][criterion])
        assert len(set(found.cluster)) == best


@pytest.mark.parametrize("min_cell", [2, 5, 9])
@pytest.mark.parametrize("clusters", [1, 4, 8])
def test_trap_smallest_cell(homes, clusters, min_cell):
    found = segments.segment(homes, clusters, min_cell=min_cell)
    sizes = [len(who) for who in found.members()]
    assert min(sizes) == found.smallest >= min_cell
    assert sorted(np.concatenate(found.members()).tolist()) == list(range(60))


def test_size_classes_are_ordered(homes):
    found = segments.segment(homes, 1, min_cell=2)
    mean = homes.values.mean(axis=1)
    assert mean[found.size == 0].max() <= mean[found.size == 1].min() <= mean[found.size == 2].max()
    assert np.bincount(found.size).tolist() == [20, 20, 20]
    assert found.merged == 0


def test_breaking_inputs(homes):
    few = panel(homes.values[:6])
    with pytest.raises(ValueError, match="only 6 different homes"):
        segments.segment(few, 7)
    with pytest.raises(ValueError, match=r'1 home cannot fill.*"local"'):
        segments.segment(panel(homes.values[:1]), 1)
    same = panel(np.repeat(homes.values[:1], 8, axis=0))
    with pytest.raises(ValueError, match="only 1 different homes"):
        segments.segment(same, 2)
    assert segments.segment(same, 1).smallest == 8
    assert len(set(segments.segment(same, "auto").cluster)) == 1
    for wrong in ({"clusters": 0}, {"clusters": "many"}, {"min_cell": 1}, {"of": "pca"},
                  {"clusters": "auto", "criterion": "gap"}):
        with pytest.raises(ValueError, match="use"):
            segments.segment(homes, **wrong)


def test_features(homes):
    assert segments.features(homes, "series").shape == (60, 744)
    np.testing.assert_allclose(segments.features(homes, "shape").mean(axis=1), 0, atol=1e-12)
