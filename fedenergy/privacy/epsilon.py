"""Privacy budgets as integers: 1 epsilon is 1,000,000 micro-epsilon, rounded up from the decimal text.

The noise scale is derived from the integer, so the charge equals the mechanism and sums of charges are exact.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from fedenergy.ids import decimal_text

MICRO = 1_000_000
LARGEST = 1_000_000  # epsilon; beyond it a budget says nothing
_PLAIN = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)


def micro(epsilon: str | int | float | Decimal) -> int:
    """Integer micro-epsilon of a budget, rounded up.

    epsilon  plain decimal text, int, float (its shortest decimal text counts) or Decimal; 0 < epsilon <= 1e6
    Errors: ValueError for <= 0, NaN, infinity, > 1e6 and for text that is no plain decimal ("1e-5": write 0.00001);
    TypeError for other types.

    >>> micro("0.1"), micro(1e-7), micro(6.73)
    (100000, 1, 6730000)
    """
    number = _decimal(epsilon)
    if not number.is_finite() or not 0 < number <= LARGEST:
        raise ValueError(f"epsilon = {epsilon} is not a budget: give a number above 0 and at most {LARGEST}")
    return int(number.quantize(Decimal("0.000001"), rounding=ROUND_CEILING).scaleb(6))


def text(micro: int) -> str:
    """The plain decimal text of an integer micro-epsilon.

    >>> text(100_000), text(1), text(2_000_000)
    ('0.1', '0.000001', '2')
    """
    return decimal_text(Decimal(check_micro(micro, zero=True)).scaleb(-6))


def check_micro(value: int, name: str = "epsilon_micro", *, zero: bool = False) -> int:
    """Return value if it is an integer micro-epsilon, 0 < value <= 1e12 (0 allowed where zero), else raise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r} is not an integer: convert a budget with fedenergy.privacy.epsilon.micro")
    if not (0 if zero else 1) <= value <= LARGEST * MICRO:
        raise ValueError(f"{name} = {value} lies outside 1 .. {LARGEST * MICRO} micro-epsilon")
    return value


def _decimal(epsilon: str | int | float | Decimal) -> Decimal:
    if isinstance(epsilon, str):
        if not _PLAIN.fullmatch(epsilon):
            raise ValueError(f"epsilon {epsilon!r} is no plain decimal number: write digits and one point, such as 0.1")
        return Decimal(epsilon)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float | Decimal):
        raise TypeError(f"epsilon = {epsilon!r} is a {type(epsilon).__name__}: give text, a number or a Decimal")
    return Decimal(repr(float(epsilon))) if isinstance(epsilon, float) else Decimal(epsilon)
