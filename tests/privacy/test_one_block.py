"""The law of sums in which every home fills one block: form, sensitivity, noise."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.stats import kurtosis

from fedenergy.privacy.gaussian import rho_micro
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.privacy.one_block import OneBlock

LAW = OneBlock(3, 2, 1e-5)


def filled(block, vector, count=1.0):
    values = np.zeros((3, 3))
    values[block] = [*vector, count]
    return values.ravel()


@settings(max_examples=150, deadline=None)
@given(*[some.tuples(some.integers(0, 3), some.floats(-3, 3), some.floats(-3, 3))] * 2, some.integers(0, 2**21))
def test_contract_two_answers_are_never_farther_apart_than_the_sensitivity(first, second, bound):
    """Block 3 stands for a home that has nothing to say; the home may grant less than was asked."""
    bound = min(bound, LAW.grid.bound)
    a, b = (np.zeros(9, np.int64) if block == 3 else LAW.deposit(filled(block, (x, y)), bound)
            for block, x, y in (first, second))
    apart = sum(int(value) ** 2 for value in a - b)
    assert apart * LAW.grid.bound**2 <= LAW.squared * bound**2
    assert sum(int(value) ** 2 for value in a) <= bound**2


def test_golden_the_sensitivity_is_reached():
    """max(2, sqrt(2 (1 + 1))) = 2 in the same block; different ones are 2 apart too; a histogram sqrt(2)."""
    apart = LAW.deposit(filled(0, (1, 0))) - LAW.deposit(filled(0, (-1, 0)))
    assert np.linalg.norm(apart) * LAW.grid.step == pytest.approx(2, abs=1e-5)
    other = LAW.deposit(filled(0, (1, 0))) - LAW.deposit(filled(1, (1, 0)))
    assert np.linalg.norm(other) * LAW.grid.step == pytest.approx(2, abs=1e-5)
    assert LAW.sensitivity() == pytest.approx(2, abs=1e-5)
    assert OneBlock(5, 0, 1e-5).sensitivity() == pytest.approx(math.sqrt(2), abs=1e-5)
    assert LAW.weight == pytest.approx(1, abs=1e-5)


def test_golden_rounding_then_clipping():
    """Half steps to even; a vector of any length ends on the unit ball."""
    step = LAW.grid.step
    assert LAW.deposit(filled(0, (1.5 * step, 2.5 * step)))[:2].tolist() == [2, 2]
    for size in (3.0, 1e6, 1e300):
        vector = LAW.deposit(filled(0, (3 * size, -4 * size)))[:2]
        assert vector.tolist() == [int(0.6 / step), -int(0.8 / step)]


def test_golden_sigma():
    """sigma^2 = Delta^2 / (2 rho), exactly."""
    assert LAW.variance(1_000_000) == Fraction(LAW.squared * 10**6, 2 * rho_micro(1_000_000, 1e-5))
    assert LAW.scale_units(1_000_000) == pytest.approx(2 / math.sqrt(2 * 0.030556), rel=1e-4)


def test_statistics_shares_add_up_to_the_noise():
    """Eight homes' shares have the variance of the curator's one noise (a millionth of rho less), and its kurtosis."""
    homes, size = 8, 9
    sources = [SimulationNoise(1).source(f"h{i}", "q") for i in range(homes)]
    sums = np.concatenate([sum(LAW.share(source, 500_000, homes, size) for source in sources) for _ in range(400)])
    sd = math.sqrt(LAW.variance(500_000))
    assert sums.std() == pytest.approx(sd, rel=0.05)
    assert abs(kurtosis(sums)) < 0.3
    one = LAW.noise(SimulationNoise(2).source("*zone", "q"), 500_000, 3_600)
    assert one.std() == pytest.approx(sd, rel=0.05)


@pytest.mark.parametrize("values", [filled(0, (1, 0)) + filled(1, (1, 0)), filled(0, (1, 0), 2.0), filled(0, (1, 0), 0.0),
                                    np.full(9, np.nan), np.zeros(8)])
def test_answers_of_another_form_are_refused(values):
    with pytest.raises(ValueError, match="in blocks"):
        LAW.deposit(values)


@pytest.mark.parametrize(("task", "word"), [({}, "says in its task"), ({"layout": {"blocks": "3"}}, "says in its task"),
                                            ({"layout": {"blocks": "3", "width": "1"}}, "are not the 9 coordinates")])
def test_a_query_must_name_its_blocks(task, word):
    assert OneBlock.of({"layout": {"blocks": "3", "width": "2"}}, 1e-5, 9) == LAW
    with pytest.raises(ValueError, match=word):
        OneBlock.of(task, 1e-5, 9)


def test_breaking_inputs():
    for blocks, width in ((0, 1), (1, -1), (True, 1), (2**12, 2**6)):
        with pytest.raises(ValueError, match=r"blocks|width"):
            OneBlock(blocks, width, 1e-5)
    with pytest.raises(ValueError, match="delta"):
        OneBlock(1, 1, 0.0)
    with pytest.raises(ValueError, match="parties"):
        LAW.share(SimulationNoise(1).source("h", "q"), 500_000, 0, 9)
    with pytest.raises(ValueError, match="curator"):
        LAW.share(SimulationNoise(1).source("h", "q"), 10**12, 10**6, 9)
