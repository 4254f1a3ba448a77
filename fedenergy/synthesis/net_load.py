"""Net load, which solar panels make negative, on a signed logarithm: sign(x) log(1 + |x|).

The decomposition takes log(1 + z) of what it is given. With z = exp(s(x) + c) - 1, s the signed logarithm and c = s(B) for a
public bound B of what one step can feed in, that is s(x) + c: the signed logarithm but for a constant, which the trend
carries. So nothing is clipped at zero, and what would fall below -B is set to -B and counted like any other clip.
"""

from __future__ import annotations

import numpy as np

from fedenergy.synthesis.intake import CAP_KWH_PER_HOUR


def signed_log(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.log1p(np.abs(values))


def lift(values: np.ndarray, export_cap_kwh: float, cap_kwh: float | None, step_minutes: int) -> tuple[np.ndarray, float]:
    """(values >= 0 to synthesise, the cap of them) of net loads in kWh per step; NaN stays.

    Errors: ValueError for a step below -export_cap_kwh.

    >>> z, cap = lift(np.array([[-2.0, 0.0, 3.0]]), 5.0, 10.0, 60)
    >>> lower(z, 5.0).round(9).tolist()
    [[-2.0, 0.0, 3.0]]
    """
    low = np.nanmin(values)
    if low < -export_cap_kwh:
        raise ValueError(f"a step feeds in {-low:g} kWh, above the public bound export_cap_kwh = {export_cap_kwh:g}: "
                         "check the "
                         "units, or raise it")
    cap = CAP_KWH_PER_HOUR * step_minutes / 60 if cap_kwh is None else cap_kwh
    shift = np.log1p(export_cap_kwh)
    return np.maximum(np.expm1(signed_log(values) + shift), 0.0), float(np.expm1(np.log1p(cap) + shift))


def lower(lifted: np.ndarray, export_cap_kwh: float) -> np.ndarray:
    """Net loads in kWh of lifted values."""
    log = np.log1p(lifted) - np.log1p(export_cap_kwh)
    return np.sign(log) * np.expm1(np.abs(log))
