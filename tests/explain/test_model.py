"""Contract tests of the boosted-tree model."""

import numpy as np
import xgboost

from fedenergy.explain import model
from tests.explain.reference import appliances


def test_contract_equal_inputs_give_equal_bytes():
    X, y = appliances(300, 6, missing=0.1)
    first, second = (bytes(model.fit(X, y, trees=20).booster.save_raw("ubj")) for _ in range(2))
    assert first == second


def test_oracle_fit_equals_xgboost_train():
    X, y = appliances(300, 6)
    parameters = {"tree_method": "hist", "max_bin": 64, "max_depth": 4, "eta": 0.3, "nthread": 1}
    reference = xgboost.train(parameters, xgboost.QuantileDMatrix(X, y, max_bin=64, nthread=1), 20)
    fitted = model.fit(X, y, trees=20)
    np.testing.assert_array_equal(model.predict(fitted), reference.predict(xgboost.DMatrix(X, nthread=1)))


def test_contract_contributions_add_up_to_the_prediction():
    X, y = appliances(100, 4)
    fitted = model.fit(X, y, trees=10)
    whole = fitted.booster.predict(fitted.matrix, pred_contribs=True)
    np.testing.assert_array_equal(model.contributions(fitted), whole[:, :-1])
    np.testing.assert_allclose(whole.sum(axis=1), model.predict(fitted), atol=1e-5)
