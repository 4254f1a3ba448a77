"""Oracle and contract tests of reading xgboost's trees."""

import numpy as np
import pytest

from fedenergy.explain import model
from fedenergy.explain.trees import from_json, from_ubjson
from tests.explain.reference import appliances


@pytest.mark.parametrize("depth", [1, 4])
def test_oracle_ubjson_equals_json(depth):
    X, y = appliances(200, 5, missing=0.1)
    fitted = model.fit(X, y, trees=7, depth=depth)
    fast, slow = model.trees_of(fitted), from_json(fitted.booster.save_raw("json"))
    assert fast.count == 7
    assert fast.default_left.any()
    for a, b in zip(fast, slow):
        np.testing.assert_array_equal(a, b)


def test_contract_a_model_without_trees_is_refused():
    with pytest.raises(ValueError, match="no trees"):
        from_ubjson(b"{}")


def test_contract_another_layout_is_refused():
    X, y = appliances(60, 3)
    raw = bytes(model.fit(X, y, trees=2).booster.save_raw("ubj")).replace(b"sum_hessian[$", b"sum_hessiam[$", 1)
    with pytest.raises(ValueError, match="has no array 'sum_hessian'"):
        from_ubjson(raw)
