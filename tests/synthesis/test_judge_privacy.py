from __future__ import annotations

import numpy as np
import pytest

from fedenergy.synthesis import judge_privacy as privacy
from fedenergy.synthesis.generate import synthesise


@pytest.fixture(scope="module")
def scores(homes, holdout):
    found = {}
    for variant in ("raw_shuffle", "components", "components_shuffle"):
        fake = synthesise(homes, seed=1, variant=variant)
        found[variant] = privacy.privacy(homes.values, fake.values, holdout, provenance=fake._provenance)
    return found


def test_oracle_nearest_by_brute_force(monkeypatch):
    monkeypatch.setattr(privacy, "_CHUNK", 7)   # several blocks on both sides
    rng = np.random.default_rng(0)
    fake, real = rng.random((40, 5)), rng.random((130, 5))
    real[17] = fake[3]
    distance, index = privacy.nearest(fake, real, 2)
    every = np.sqrt(((fake[:, None] - real) ** 2).sum(axis=2))
    np.testing.assert_allclose(distance, np.sort(every, axis=1)[:, :2], atol=1e-14)
    np.testing.assert_array_equal(index[:, 0], every.argmin(axis=1))
    dcr, nndr = privacy.dcr_nndr(fake, real)
    assert dcr[3] == nndr[3] == 0
    np.testing.assert_allclose(nndr, distance[:, 0] / distance[:, 1])


def test_trap_duplicates_and_constants():
    same = np.ones((3, 4))
    dcr, nndr = privacy.dcr_nndr(same, same)
    assert dcr.tolist() == [0, 0, 0]
    assert nndr.tolist() == [1, 1, 1]
    assert privacy.dcr_gower(same, same).tolist() == [0, 0, 0]
    assert privacy.dcr_gower(same * 2, same).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="give more rows"):
        privacy.dcr_nndr(same, same[:1])


def test_oracle_gower_by_definition():
    """SDMetrics' definition, value by value."""
    rng = np.random.default_rng(1)
    real, fake = rng.gamma(1, 1, (12, 9)), rng.gamma(1, 2, (7, 9))      # some fakes beyond the range
    real[:, 4] = 0.5
    fake[::2, 4] = 0.5
    span = real.max(axis=0) - real.min(axis=0)

    def one(a, b, width):
        return min(abs(a - b) / width, 1.0) if width else float(a != b)

    expected = [min(np.mean([one(*three) for three in zip(f, r, span)]) for r in real) for f in fake]
    np.testing.assert_allclose(privacy.dcr_gower(fake, real), expected, atol=1e-12)


def test_trap_home_distances_cannot_see_verbatim_days(scores):
    raw, remade = scores["raw_shuffle"], scores["components_shuffle"]
    assert raw["day"]["exact_copies"] == 1
    assert raw["day"]["real"]["dcr"] == 0 < raw["day"]["holdout"]["dcr"]
    assert raw["home"]["exact_copies"] == 0
    assert raw["home"]["dcr_share"] > 0.9           # per home, verbatim days look as far from the members as from others
    assert remade["day"]["real"]["dcr"] > 0


def test_trap_what_leaks_although_nothing_is_copied(scores):
    remade = scores["components_shuffle"]
    assert remade["linkage"]["home"] > 5 * remade["linkage"]["chance"]
    assert scores["raw_shuffle"]["linkage"]["home"] == 1
    unshuffled = scores["components"]["home"]["membership"]
    assert unshuffled["auc"] > 0.9
    assert unshuffled["low"] > 0.8
    assert remade["home"]["membership"]["auc"] < 0.75


def test_self_tests_of_the_auditor(homes, holdout):
    found = privacy.self_test(homes.values, holdout)
    assert found["raw_shuffle_auc"] > 0.99
    assert found["holdout_auc"] == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ValueError, match="at least 6"):
        privacy.self_test(homes.values, holdout[:5])


def test_membership_interval_and_rate(homes, holdout):
    fake = homes.values[:, ::-1]                    # neither set's days
    for unit in privacy.UNITS:
        found = privacy.membership(homes.values, holdout[::2], fake, holdout[1::2], unit, repeats=50)
        assert found["low"] <= found["auc"] <= found["high"]
        assert 0 <= found["tpr_at_1_fpr"] <= 0.3
    with pytest.raises(ValueError, match="unit"):
        privacy.membership(homes.values, holdout, fake, holdout, "week")


def test_auc_is_the_rank_statistic():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 20, 50), rng.integers(0, 15, 80)
    assert privacy.auc(a, b) == pytest.approx(roc_auc_score(np.r_[np.ones(50), np.zeros(80)], np.r_[a, b]))


def test_samples_are_seeded_and_reported(homes, holdout):
    fake = synthesise(homes, seed=1)
    found = privacy.privacy(homes.values, fake.values, holdout, most=500)
    assert found["day"]["rows"] == found["day"]["reference_rows"] == 500
    assert found == privacy.privacy(homes.values, fake.values, holdout, most=500)
    assert "linkage" not in found
    with pytest.raises(ValueError, match="holdout of 3"):
        privacy.privacy(homes.values, fake.values, holdout[:3])


def test_linkage_by_hand():
    real = np.arange(2 * 7 * 24, dtype=float).reshape(2, -1)
    right = np.arange(14).reshape(2, 7)
    assert privacy.linkage(real, real, right)["day"] == 1
    swapped = privacy.linkage(real, real, right[::-1])
    assert (swapped["home"], swapped["day"], swapped["chance"]) == (0, 0, 0.5)


def test_membership_sees_copies_among_more_days_than_it_asks_about():
    """300 homes x 28 days: 8,400 days are searched, 900 asked about; every copy must be found."""
    days = np.random.default_rng(0).gamma(1, 1, (3, 300, 28, 24))
    copied = np.random.default_rng(1).permutation(days[0].reshape(-1, 24)).reshape(300, -1)
    members, others, reference = days.reshape(3, 300, -1)
    found = privacy.membership(members, others, copied, reference, repeats=0, most=900)
    assert found["auc"] > 0.999
    assert found["rows"] == 1_800
