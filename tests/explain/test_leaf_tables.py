"""Leaf tables against brute force, xgboost and shap."""

import json
import subprocess
import sys

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.explain import leaf_tables, model
from fedenergy.explain.leaf_tables import bin_codes, compile_tables, shap_values, weighted_sums
from fedenergy.explain.trees import Trees, from_json
from tests.explain.reference import appliances, brute_force, random_trees


def relative(found, expected):
    """Largest difference as a share of the largest expected magnitude."""
    return np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-12)


def xgboost_phi(booster, X):
    return booster.predict(xgboost.DMatrix(X, nthread=1), pred_contribs=True)[:, :-1]


def probes(seed, rows, features):
    """Rows on, beside and between the thresholds -1, 0, 1, 2 of random_trees, and missing."""
    below_zero = np.nextafter(np.float32(0), np.float32(-1))
    values = np.array([-1.5, -1, below_zero, 0.0, -0.0, 0.5, 1, 2, 3, np.nan], np.float32)
    return np.random.default_rng(seed).choice(values, (rows, features))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 6), features=st.integers(1, 5), bits=st.integers(1, 8),
       empty=st.sampled_from([0.0, 0.4]))
def test_contract_shap_values_are_the_shapley_values(seed, depth, features, bits, empty):
    trees, X = random_trees(seed, 2, depth, features, empty), probes(seed, 5, features)
    np.testing.assert_allclose(shap_values(compile_tables(trees, features, bits), X), brute_force(trees, X), atol=1e-9)


def test_golden_one_split():
    # Root splits x0 < 0.5: left value 2 (cover 3), right value -1 (cover 1). E = (3 * 2 - 1) / 4 = 1.25.
    # phi0 = 2 - 1.25 = 0.75 on the left; on the threshold and above -1 - 1.25 = -2.25; missing goes right.
    trees = Trees(np.array([0, 3]), np.array([1, -1, -1], np.int32), np.array([2, -1, -1], np.int32),
                  np.zeros(3, np.int32), np.array([0.5, 2, -1], np.float32), np.array([4, 3, 1], np.float32),
                  np.zeros(3, np.uint8))
    tables, X = compile_tables(trees, 2), np.array([[0.0, 9], [0.5, 9], [np.nan, 9]], np.float32)
    np.testing.assert_allclose(shap_values(tables, X), [[0.75, 0], [-2.25, 0], [-2.25, 0]], atol=1e-15)
    # S = .75 * 2 - 2.25 * 4; the NaN weight of the third row counts as 0.
    np.testing.assert_allclose(weighted_sums(tables, X, [0, -1], np.array([[2.0], [4.0], [np.nan]])), [-7.5])


@pytest.mark.parametrize("depth", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_oracle_xgboost(depth, missing):
    X, y = appliances(400, 7, seed=depth, missing=missing)
    fitted = model.fit(X, y, trees=30, depth=depth)
    expected = model.contributions(fitted)
    for bits in (depth, 8):
        assert relative(shap_values(compile_tables(model.trees_of(fitted), 7, bits), X), expected) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_oracle_shap():
    shap = pytest.importorskip("shap")
    X, y = appliances(150, 6, missing=0.1)
    fitted = model.fit(X, y, trees=20, depth=5)
    expected = shap.TreeExplainer(fitted.booster, feature_perturbation="tree_path_dependent").shap_values(X)
    assert relative(shap_values(compile_tables(model.trees_of(fitted), 6), X), expected) < 1e-5


def test_oracle_rows_on_thresholds():
    X, y = appliances(300, 4)
    fitted = model.fit(X, y, trees=20, depth=5)
    trees = model.trees_of(fitted)
    on = trees.threshold[trees.left >= 0][:200]
    beside = [np.nextafter(on, np.float32(side), dtype=np.float32) for side in (-9, 9)]
    rows = np.repeat(np.concatenate([on, *beside])[:, None], 4, axis=1)
    assert relative(shap_values(compile_tables(trees, 4), rows), xgboost_phi(fitted.booster, rows)) < 1e-5


def test_oracle_zero_cover_of_a_leaf():
    X, y = appliances(300, 4)
    document = json.loads(bytes(model.fit(X, y, trees=10, depth=3).booster.save_raw("json")))
    for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
        leaf = tree["left_children"].index(-1)
        gone, node = tree["sum_hessian"][leaf], leaf
        while node != 2147483647:                                          # up to the root's parent
            tree["sum_hessian"][node] -= gone
            node = tree["parents"][node]
    booster = xgboost.Booster()
    booster.load_model(bytearray(json.dumps(document).encode()))
    assert relative(shap_values(compile_tables(from_json(document), 4), X), xgboost_phi(booster, X)) < 1e-5


def test_contract_nodes_without_cover_stay_finite():
    trees = random_trees(3, 4, 4, 3)
    trees = trees._replace(cover=np.zeros_like(trees.cover))
    assert np.isfinite(shap_values(compile_tables(trees, 3), probes(0, 20, 3))).all()


def test_contract_single_leaf_trees_explain_nothing():
    X = np.ones((5, 2), np.float32)
    fitted = model.fit(X, np.ones(5, np.float32), trees=3)
    tables = compile_tables(model.trees_of(fitted), 2)
    assert not shap_values(tables, X).any()
    assert not weighted_sums(tables, X, [0, 1], np.ones((5, 2))).any()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), depth=st.integers(1, 8), channels=st.integers(1, 9), rows=st.integers(1, 9),
       bits=st.integers(1, 8))
def test_oracle_weighted_sums_equal_the_matrix(seed, depth, channels, rows, bits):
    features, rng = 11, np.random.default_rng(seed)
    trees, X = random_trees(seed, 3, depth, features), probes(seed, rows, features)
    owner, weights = rng.integers(-1, channels, features), rng.gamma(1.0, 1.0, (rows, channels))
    weights[rng.random(weights.shape) < 0.1] = np.nan
    tables = compile_tables(trees, features, bits)
    phi, expected = shap_values(tables, X), np.zeros(channels)
    for f in np.flatnonzero(owner >= 0):
        expected[owner[f]] += phi[:, f] @ np.nan_to_num(weights[:, owner[f]])
    np.testing.assert_allclose(weighted_sums(tables, X, owner, weights), expected, rtol=1e-9, atol=1e-9)


def test_contract_group_size_changes_speed_only():
    X, y = appliances(200, 5, missing=0.1)
    trees = model.trees_of(model.fit(X, y, trees=10, depth=6))
    owner, weights = np.array([0, 1, -1, 0, 1]), np.nan_to_num(X[:, :2])
    expected = weighted_sums(compile_tables(trees, 5, 8), X, owner, weights)
    for bits in range(1, 8):
        found = weighted_sums(compile_tables(trees, 5, bits), X, owner, weights)
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_contract_codes_count_thresholds_at_or_below():
    trees = random_trees(5, 6, 3, 1)                                         # thresholds -1, 0, 1, 2 on one feature
    tables = compile_tables(trees, 1)
    np.testing.assert_array_equal(tables.cuts, [-1, 0, 1, 2])
    codes = bin_codes(tables, np.array([[-2], [-1], [-0.0], [1.5], [2], [np.nan]]))
    np.testing.assert_array_equal(codes, [[0, 1, 2, 3, 4, 255]])


def test_contract_refusals_name_the_limit():
    for depth in (8, 9):                                 # a chain: node i has the children i + 1 and a leaf
        left, right = np.full(2 * depth + 1, -1, np.int32), np.full(2 * depth + 1, -1, np.int32)
        left[:depth], right[:depth] = np.arange(1, depth + 1), np.arange(depth + 1, 2 * depth + 1)
        chain = Trees(np.array([0, left.size]), left, right, np.zeros(left.size, np.int32),
                      np.arange(left.size, dtype=np.float32), np.ones(left.size, np.float32),
                      np.zeros(left.size, np.uint8))
        if depth == 8:
            assert np.isfinite(shap_values(compile_tables(chain, 1), probes(0, 5, 1))).all()
    with pytest.raises(ValueError, match="at most 8 fit a pattern byte"):
        compile_tables(chain, 1)
    with pytest.raises(ValueError, match="split on column 4"):
        compile_tables(random_trees(1, 3, 4, 5), 4)
    many = Trees(np.arange(0, 3 * 300 + 1, 3), np.tile([1, -1, -1], 300).astype(np.int32),
                 np.tile([2, -1, -1], 300).astype(np.int32), np.zeros(900, np.int32), np.arange(900, dtype=np.float32),
                 np.ones(900, np.float32), np.zeros(900, np.uint8))
    with pytest.raises(ValueError, match="300 distinct thresholds"):
        compile_tables(many, 1)
    tables = compile_tables(random_trees(1, 1, 2, 2), 2)
    with pytest.raises(ValueError, match="expected \\(rows, 2\\)"):
        shap_values(tables, np.zeros((3, 3)))
    with pytest.raises(ValueError, match="do not fit"):
        weighted_sums(tables, np.zeros((3, 2)), [0, 0], np.zeros((4, 1)))
    with pytest.raises(ValueError, match="expected -1 to 0"):
        weighted_sums(tables, np.zeros((3, 2)), [0, 1], np.zeros((3, 1)))


DIGEST = """
import hashlib
from fedenergy.explain import leaf_tables, model
from tests.explain.reference import appliances
X, y = appliances(300, 6, missing=.1)
tables = leaf_tables.compile_tables(model.trees_of(model.fit(X, y, trees=20)), 6)
print(hashlib.sha256(leaf_tables.weighted_sums(tables, X, [0, 1, 2, 0, 1, -1], X[:, :3])).hexdigest())
"""


def test_contract_another_process_gives_equal_bytes():
    found = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True)
    here = {}
    exec(DIGEST.replace("print(", "here['digest'] = ("), {"here": here})
    assert found.stdout.strip() == here["digest"]


def test_contract_limits_agree_with_the_kernels():
    assert (leaf_tables.MAX_DEPTH, leaf_tables.MAX_CUTS) == (8, 254)
