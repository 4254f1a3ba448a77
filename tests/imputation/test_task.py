"""Windows, splits, scales and errors."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy import imputation as imp
from fedenergy.imputation.task import Scale


def test_golden_the_source_s_split():
    train, valid, test = imp.split(np.arange(17_420.0), 96)
    assert (len(train), len(valid), len(test)) == (127, 18, 36)              # 12,194, 1,742 and 3,484 steps
    assert train.values[0, 0, 0] == 0
    assert valid.values[0, 0, 0] == 12_194
    assert test.values[0, 0, 0] == 13_936
    assert test.phase[0] == 13_936 % 24
    assert test.time_of_day[0, :3].tolist() == [16, 17, 18]
    assert np.array_equal(train.values[1, :, 0], np.arange(96, 192))


def test_golden_overlapping_windows_and_homes():
    windows = imp.cut(np.arange(10.0), 4, stride=2, home="h1")
    assert windows.values[:, 0, 0].tolist() == [0, 2, 4, 6]
    both = imp.join([windows, imp.cut(np.arange(8.0), 4, home="h2")])
    assert both.windows_per_home == 4
    assert imp.cut(np.arange(8.0), 4).windows_per_home is None
    part = both.take([5, 0])
    assert part.homes == ("h2", "h1")
    assert part.values[:, 0, 0].tolist() == [4, 0]


def test_contract_scales_are_inverse_and_say_where_they_come_from():
    values = np.random.default_rng(0).normal(size=(5, 8, 2)) * [1, 10] + [0, 50]
    values[0, 0, 0] = np.nan
    scale = Scale.fitted(imp.Windows(values))
    normal = scale.normal(values)
    assert np.nanmin(normal, axis=(0, 1)) == pytest.approx([0, 0])
    assert np.nanmax(normal, axis=(0, 1)) == pytest.approx([1, 1])
    np.testing.assert_allclose(scale.original(normal), values)
    assert not scale.public
    assert Scale.given((0, 3), 2) == Scale((0.0, 0.0), (3.0, 3.0), True)
    assert Scale.given([(0, 3), (-1, 1)], 2).low == (0.0, -1.0)
    assert Scale.fitted(imp.Windows(np.ones((2, 3)))).high == (2.0,)


def test_contract_public_limits_bound_what_a_net_reads():
    far = np.array([[1e30, -1e30, 1.5, 6.0]])[:, :, None]
    assert Scale.given((0, 3), 1).normal(far).ravel().tolist() == [11.0, -10.0, 0.5, 2.0]
    assert Scale((0.0,), (3.0,), False).normal(far).ravel()[3] == 2.0


def test_golden_errors_where_masked_and_known():
    truth, filled = np.array([1.0, 2.0, np.nan, 4.0]), np.array([0.0, 5.0, 9.0, 4.0])
    observed = np.array([True, False, False, False])
    assert imp.errors(filled, truth, observed) == {"mse": 4.5, "mae": 1.5, "rmse": 4.5**0.5}       # gaps 3 and 0
    with pytest.raises(ValueError, match="nothing can be scored"):
        imp.errors(filled, truth, np.ones(4, bool))


@pytest.mark.parametrize("call", [
    lambda: imp.Windows(np.zeros(3)), lambda: imp.Windows(np.zeros((0, 4))), lambda: imp.Windows(np.array([[np.inf, 1]])),
    lambda: imp.Windows(np.zeros((2, 4)), phase=np.zeros(3)), lambda: imp.Windows(np.zeros((2, 4)), homes=("a",)),
    lambda: imp.Windows(np.zeros((2, 4)), steps_per_day=0), lambda: imp.cut(np.zeros(3), 4),
    lambda: imp.cut(np.zeros(9), 4, stride=0), lambda: Scale.given((1, 1), 1), lambda: Scale.given((0, np.inf), 1),
    lambda: Scale.fitted(imp.Windows(np.full((2, 3), np.nan)))])
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError):
        call()
