"""Contract: budgets are integers, rounded up from the decimal text."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedenergy.privacy.epsilon import check_micro, micro, text


@pytest.mark.parametrize(("epsilon", "expected"), [
    ("0.1", 100_000), (0.1, 100_000), ("6.73", 6_730_000), (20, 20_000_000), (Decimal("1.05361"), 1_053_610),
    (np.float64(0.1), 100_000), (1e6, 10**12), (".5", 500_000), ("1.", 1_000_000),
    (1e-7, 1),                                                     # 0.1 micro, rounded up
    ("0.1000000000000000000000000000000000000000001", 100_001),   # more digits than a decimal context holds
    ("0." + "0" * 400 + "1", 1), (5e-324, 1), (Decimal("1e-999999"), 1),
])
def test_micro_is_the_ceiling_of_the_decimal_text(epsilon, expected):
    assert micro(epsilon) == expected


@pytest.mark.parametrize("epsilon", [
    0, 0.0, -0.0, -1, "0", "0.000", float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("sNaN"),
    Decimal("Infinity"), 1_000_001, "1000000.000001", Decimal("1e999999"), 10**400,
    "nan", "inf", "1e-5", "-1", "+1", "", " 1", "1 ", "1_0", "0,1", "٣", "0x1", "1\n",
])
def test_micro_refuses_what_is_no_budget(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        micro(epsilon)


@pytest.mark.parametrize("epsilon", [True, None, 1j, b"1", [1], Fraction(1, 2)])
def test_micro_refuses_other_types(epsilon):
    with pytest.raises(TypeError, match="epsilon"):
        micro(epsilon)


@given(st.integers(1, 10**12))
def test_text_and_micro_are_inverse(value):
    assert micro(text(value)) == value
    assert micro(Decimal(text(value))) == value


@given(st.decimals("0.000000001", 10**6, allow_nan=False, allow_infinity=False))
def test_the_charge_is_never_below_the_budget_asked(asked):
    assert 0 <= Fraction(micro(asked), 10**6) - Fraction(asked) < Fraction(1, 10**6)


@pytest.mark.parametrize("value", [0, -1, 10**12 + 1])
def test_check_micro_refuses_what_is_out_of_range(value):
    with pytest.raises(ValueError, match="cap_micro"):
        check_micro(value, "cap_micro")


@pytest.mark.parametrize("value", [True, 1.0, "1", np.float64(1)])
def test_check_micro_refuses_what_is_no_integer(value):
    with pytest.raises(TypeError, match="integer"):
        check_micro(value)
