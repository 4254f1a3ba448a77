"""Whole days exchanged between the homes of a cell, with no jump between days larger than the cell's own.

E (N, D) are day totals. A result is (N, D) whole numbers: which pooled day, home * D + day, each place receives; each is
used once. The constraint is |E(d + 1) - E(d)| <= sigma, sigma the standard deviation of the cell's day-to-day differences.
Real homes break it in about a quarter of their steps, so the aim is not to exceed their rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

METHODS = ("within_date", "free", "same_daytype", "rejection", "swaps")
BLOCK = 64    # homes matched at once: larger cells are cut at random, as matching is cubic
_BROKEN, _STAYS = 1e3, 10.0


@dataclass(frozen=True)
class Constraint:
    """The cell's sigma and what can be said before anything is drawn.

    real      share of the real homes' steps that break it
    feasible  whether some free shuffle of the pool keeps it everywhere (exact)
    """

    sigma: float
    real: float
    feasible: bool


def constraint(totals: np.ndarray, pool: np.ndarray | None = None) -> Constraint:
    """sigma and the real rate of totals (N, D); feasibility of the pool (N, D), by default the same days."""
    sigma = float(np.diff(totals, axis=1).std())
    return Constraint(sigma, violations(totals, sigma), feasible(totals if pool is None else pool, sigma))


def violations(totals: np.ndarray, sigma: float) -> float:
    """Share of steps from one day to the next that are larger than sigma."""
    return float(_breaks(np.diff(totals, axis=1), sigma).mean())


def _breaks(difference: np.ndarray, sigma: float) -> np.ndarray:
    return np.abs(difference) > sigma * (1 + 1e-12) + 1e-12


def feasible(totals: np.ndarray, sigma: float) -> bool:
    """Whether the pooled days of totals (N, D) can be dealt into N sequences of D days without one violation.

    Exact: no sequence crosses a gap > sigma between sorted totals, so each block between gaps must hold a multiple of D; and
    then sorted runs of D days do it.

    >>> feasible(np.array([[1.0, 9.0], [9.5, 1.5]]), 1.0), feasible(np.array([[1.0, 1.2], [1.4, 9.0]]), 1.0)
    (True, False)
    """
    ordered = np.sort(totals, axis=None)
    cuts = np.flatnonzero(_breaks(np.diff(ordered), sigma)) + 1
    return bool((np.diff(np.r_[0, cuts, ordered.size]) % totals.shape[1] == 0).all())


def assign(totals: np.ndarray, sigma: float, method: str, rng: np.random.Generator, *, weekend: np.ndarray | None = None,
           max_tries: int = 200, unit_days: int = 1) -> np.ndarray:
    """Which pooled day each place receives, (N, D).

    method  "within_date": a day stays on its date and moves to another home, by matching consecutive dates for fewest
            violations (exact for its scheme, date by date); "free": any place; "same_daytype": any place of the same type
            (weekend (D,) says which days are); "rejection": the best of max_tries free shuffles (the source's advice);
            "swaps": a free shuffle, then up to max_tries passes of swaps that lower the violations
    unit_days  whole segments of so many days stay together ("within_date", whose last one may be shorter, and "free")
    Errors: ValueError for an unknown method, or for a single home with within_date (it would get its own days back).
    """
    homes, days = totals.shape
    if method not in METHODS:
        raise ValueError(f"shuffle = {method!r}; use one of {', '.join(METHODS)}")
    if max_tries < 1:
        raise ValueError(f"max_tries = {max_tries}; use at least 1")
    if not 1 <= unit_days <= days or (unit_days > 1 and method not in ("within_date", "free")):
        raise ValueError(f'unit_days = {unit_days} with shuffle = "{method}" and {days} days: use 1, or up to {days} with '
                         '"within_date" or "free"')
    if method == "within_date":
        if homes < 2:
            raise ValueError('shuffle = "within_date" gives a single home its own record back: use "free", or a larger cell')
        return _within_date(totals, sigma, rng, unit_days)
    if method == "same_daytype":
        if weekend is None or weekend.shape != (days,):
            raise ValueError(f'shuffle = "same_daytype" needs weekend, whether each of the {days} days is one')
        result = np.empty((homes, days), int)
        pool = np.arange(homes * days).reshape(homes, days)
        for kind in (False, True):
            result[:, weekend == kind] = rng.permutation(pool[:, weekend == kind].ravel()).reshape(homes, -1)
        return result
    if unit_days > 1:
        if days % unit_days:
            raise ValueError(f'unit_days = {unit_days} does not divide {days} days, which "free" needs: use "within_date"')
        units = rng.permutation(totals.size // unit_days)
        return (units[:, None] * unit_days + np.arange(unit_days)).reshape(homes, days)
    flat = totals.ravel()
    best = rng.permutation(flat.size).reshape(homes, days)
    if method == "rejection":
        least = violations(flat[best], sigma)
        for _ in range(max_tries - 1):
            if least == 0:
                break
            trial = rng.permutation(flat.size).reshape(homes, days)
            if (rate := violations(flat[trial], sigma)) < least:
                best, least = trial, rate
    if method == "swaps":
        _swap(best, flat, sigma, rng, max_tries)
    return best


def _within_date(totals: np.ndarray, sigma: float, rng: np.random.Generator, unit_days: int) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    homes, days = totals.shape
    order = rng.permutation(homes)
    source = np.empty((homes, days), int)
    for part in np.array_split(order, -(-homes // BLOCK)):
        here = part
        for day in range(days):
            if day and day % unit_days == 0:
                broken = _breaks(totals[part, day] - totals[here, day - 1][:, None], sigma)
                cost = rng.random((part.size, part.size)) + _BROKEN * broken + _STAYS * (part == here[:, None])
                here = part[linear_sum_assignment(cost)[1]]
            source[part, day] = here * days + day
    return source[rng.permutation(homes)]


def _swap(places: np.ndarray, flat: np.ndarray, sigma: float, rng: np.random.Generator, passes: int) -> None:
    """Swap days in place while that lowers the number of violations."""
    homes, days = places.shape
    padded = np.full((homes, days + 2), np.nan)       # NaN beside the ends breaks nothing
    padded[:, 1:-1] = flat[places]
    rows, columns = np.divmod(np.arange(homes * days), days)
    for _ in range(passes):
        broken = np.argwhere(_breaks(np.diff(padded[:, 1:-1], axis=1), sigma))
        gained = False
        for row, column in rng.permutation(broken):
            column += rng.integers(2)                 # either end of the step may move
            left, value, right = padded[row, column:column + 3]
            before = int(_breaks(value - left, sigma)) + int(_breaks(right - value, sigma))
            if not before:
                continue
            others, lefts, rights = padded[:, 1:-1].ravel(), padded[:, :-2].ravel(), padded[:, 2:].ravel()
            change = (_breaks(others - left, sigma) * 1 + _breaks(right - others, sigma) - before
                      + _breaks(value - lefts, sigma) + _breaks(rights - value, sigma)
                      - _breaks(others - lefts, sigma) - _breaks(rights - others, sigma))
            change[(rows == row) & (np.abs(columns - column) <= 1)] = 0
            least = change.min()
            if least >= 0:
                continue
            gained = True
            to = rng.choice(np.flatnonzero(change == least))
            there = rows[to], columns[to]
            padded[row, column + 1], padded[there[0], there[1] + 1] = padded[there[0], there[1] + 1], value
            places[row, column], places[there] = places[there], places[row, column]
        if not gained:
            break
