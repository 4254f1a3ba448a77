"""STL (Cleveland et al. 1990) without robustness weights, for many series at once.

Without weights every step of STL is linear in the series and the same for all series of one length, so trend and seasonal
part are two fixed matrices: dense and cached for records of up to DENSE steps, sparse steps in turn for longer ones. Equal
to statsmodels' STL(...).fit() to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import sparse

DENSE = 1_500
_PASSES = 5  # inner passes, statsmodels' default without robustness weights


def decompose(values: np.ndarray, period: int = 24, seasonal: int = 13) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(trend, seasonal part, residual) of values (N, T), each (N, T); their sum is values.

    seasonal  window of the seasonal smoother: *periods* (days at period 24), not hours; odd, >= 3
    Errors: ValueError for an even window, or T below three periods (with two the residual is 0 and the seasonal part is
    the whole record).
    """
    values = np.atleast_2d(np.asarray(values, np.float64))
    steps = values.shape[1]
    _check(steps, period, seasonal)
    if steps <= DENSE:
        both = values @ _dense(steps, period, seasonal)
        trend, season = both[:, :steps], both[:, steps:]
    else:
        trend, season = _in_turn(values.T, *_smoothers(steps, period, seasonal), period)
        trend, season = trend.T, season.T
    return trend, season, values - trend - season


def decompose_seasons(values: np.ndarray, periods: Sequence[int] = (24,), seasonal: int = 13,
                      rounds: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(trend, sum of the seasonal parts, residual) with one seasonal part per period, in `rounds` rounds of STL each.

    As statsmodels' MSTL with the same window for every period; one period is STL itself.
    """
    if not periods or list(periods) != sorted(set(periods)):
        raise ValueError(f"periods = {tuple(periods)}; use different numbers of steps in rising order, such as (24, 168)")
    if len(periods) == 1:
        return decompose(values, periods[0], seasonal)
    rest = np.atleast_2d(np.asarray(values, np.float64))
    parts = [np.zeros_like(rest) for _ in periods]
    for _ in range(rounds):
        for i, period in enumerate(periods):
            rest = rest + parts[i]
            trend, parts[i], _ = decompose(rest, period, seasonal)
            rest = rest - parts[i]
    return trend, sum(parts), rest - trend


def _check(steps: int, period: int, seasonal: int) -> None:
    if not isinstance(seasonal, int | np.integer) or seasonal < 3 or seasonal % 2 == 0:
        raise ValueError(f"seasonal = {seasonal!r} counts periods (days): an odd number of at least 3, such as 7 or 13")
    if period < 2:
        raise ValueError(f"period = {period} is below 2 steps")
    if steps < 3 * period:
        raise ValueError(f"{steps} steps are fewer than three periods of {period}: STL would call the whole record seasonal")


def trend_window(period: int, seasonal: int) -> int:
    """The trend smoother's window in steps: the smallest odd number >= 1.5 p / (1 - 1.5 / s).

    >>> trend_window(24, 13)
    41
    """
    window = int(np.ceil(1.5 * period / (1 - 1.5 / seasonal)))
    return window + (window % 2 == 0)


@lru_cache(maxsize=4)
def _dense(steps: int, period: int, seasonal: int) -> np.ndarray:
    """(T, 2T): a row of values times this gives trend and seasonal part side by side."""
    trend, season = _in_turn(np.eye(steps), *_smoothers(steps, period, seasonal), period)
    return np.concatenate([trend.T, season.T], axis=1)


def _in_turn(y, cycles, low_pass, trend_smoother, period) -> tuple[np.ndarray, np.ndarray]:
    """STL's inner passes on columns y (T, N)."""
    trend = np.zeros_like(y)
    for _ in range(_PASSES):
        cycle = cycles @ (y - trend)                                     # (T + 2 period, N)
        averaged = _moving(_moving(_moving(cycle, period), period), 3)   # (T, N)
        season = cycle[period:-period] - low_pass @ averaged
        trend = trend_smoother @ (y - season)
    return trend, season


def _moving(columns: np.ndarray, window: int) -> np.ndarray:
    total = np.cumsum(columns, axis=0)
    total[window:] = total[window:] - total[:-window]
    return total[window - 1:] / window


@lru_cache(maxsize=4)
def _smoothers(steps: int, period: int, seasonal: int) -> tuple[sparse.csr_matrix, ...]:
    """Cycle-subseries smoother (T + 2 period, T), low-pass loess (T, T), trend loess (T, T)."""
    low = period + 1 + period % 2  # the smallest odd number above the period
    smoothed = {count: _extended(count, seasonal) for count in {steps // period, -(-steps // period)}}
    rows, columns, weights = [], [], []
    for phase in range(period):
        matrix = smoothed[(steps - phase - 1) // period + 1]
        at, of = np.nonzero(matrix)
        rows.append(phase + period * at)
        columns.append(phase + period * of)
        weights.append(matrix[at, of])
    cycles = sparse.csr_matrix((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))),
                               shape=(steps + 2 * period, steps))
    return cycles, _loess(steps, low), _loess(steps, trend_window(period, seasonal))


def _extended(count: int, window: int) -> np.ndarray:
    """Loess of one cycle-subseries, with a value before its first and one after its last: (count + 2, count)."""
    first = _weights(0, 1, min(window, count), count, window)
    last = _weights(count + 1, max(1, count - window + 1), count, count, window)
    matrix = np.zeros((count + 2, count))
    matrix[0, :min(window, count)] = first
    matrix[1:-1] = _loess(count, window).toarray()
    matrix[-1, max(1, count - window + 1) - 1:] = last
    return matrix


def _loess(count: int, window: int) -> sparse.csr_matrix:
    """Local linear regression with tricube weights at every point of 1 .. count, `window` nearest points."""
    rows, columns, weights = [], [], []
    width = min(window, count)
    inner: np.ndarray | None = None  # away from the ends all rows are the same
    for at in range(1, count + 1):
        left = min(max(at - (window + 1) // 2 + 1, 1), count - width + 1)
        middle = window < count and left + (width - 1) // 2 == at
        if middle and inner is None:
            inner = _weights(at, left, left + width - 1, count, window)
        rows.append(np.full(width, at - 1))
        columns.append(np.arange(left - 1, left + width - 1))
        weights.append(inner if middle else _weights(at, left, left + width - 1, count, window))
    return sparse.csr_matrix((np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))),
                             shape=(count, count))


def _weights(at: int, left: int, right: int, count: int, window: int) -> np.ndarray:
    """Weights of points left .. right (from 1) in the local line's value at `at`."""
    points = np.arange(left, right + 1, dtype=np.float64)
    reach = max(at - left, right - at) + (max(window - count, 0) // 2)
    distance = np.abs(points - at)
    weights = np.where(distance <= 0.999 * reach, (1 - (distance / reach) ** 3) ** 3, 0.0)
    weights[distance <= 0.001 * reach] = 1.0
    weights /= weights.sum()
    centre = weights @ points
    spread = weights @ (points - centre) ** 2
    if np.sqrt(spread) > 0.001 * (count - 1):
        weights = weights * (1 + (at - centre) * (points - centre) / spread)
    return weights
