"""Scores of a noised zone vector against the truth, and what theory says that they should be. Pure functions.

A vector is (d,) real numbers, one per coordinate, in units of S (kWh^2). A score is NaN, to be counted apart, where it
says nothing: an entry is NaN or infinite, or (cosine, ranks and signs) ||truth||_2 is below `floor`, the source's lower
bound c, or zero. Formulas: spec "Exact formulas"; the source is HXAI (papers/hxai.zh.txt).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

NAN = float("nan")


def mae(estimate: np.ndarray, truth: np.ndarray) -> float:
    """Mean absolute error, units of S."""
    estimate, truth, sound = _pair(estimate, truth)
    return float(np.abs(estimate - truth).mean()) if sound else NAN


def rmse(estimate: np.ndarray, truth: np.ndarray) -> float:
    """Root mean squared error, units of S."""
    estimate, truth, sound = _pair(estimate, truth)
    return float(np.sqrt(np.square(estimate - truth).mean())) if sound else NAN


def cosine(estimate: np.ndarray, truth: np.ndarray, floor: float = 0.0) -> float:
    """Cosine similarity, the source's utility U; NaN also where the estimate is all zeros.

    >>> cosine(np.array([1.0, 1.0]), np.array([1.0, 0.0]))
    0.7071067811865475
    """
    estimate, truth, sound = _pair(estimate, truth, floor)
    if not sound or not estimate.any():
        return NAN
    estimate, truth = estimate / np.abs(estimate).max(), truth / np.abs(truth).max()  # norms do not overflow
    value = float(estimate @ truth / (np.linalg.norm(estimate) * np.linalg.norm(truth)))
    return min(1.0, max(-1.0, value))


def spearman(estimate: np.ndarray, truth: np.ndarray, floor: float = 0.0) -> float:
    """Spearman's rank correlation, ties by mean rank; NaN where either vector is constant.

    >>> spearman(np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    0.5
    """
    estimate, truth, sound = _pair(estimate, truth, floor)
    if not sound or np.ptp(estimate) == 0 or np.ptp(truth) == 0:
        return NAN
    first, second = _ranks(estimate), _ranks(truth)
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / math.sqrt((first @ first) * (second @ second)))


def kendall(estimate: np.ndarray, truth: np.ndarray, floor: float = 0.0) -> float:
    """Kendall's tau-b; NaN where either vector is constant."""
    from scipy.stats import kendalltau

    estimate, truth, sound = _pair(estimate, truth, floor)
    if not sound or np.ptp(estimate) == 0 or np.ptp(truth) == 0:
        return NAN
    return float(kendalltau(estimate, truth).statistic)


def top1(estimate: np.ndarray, truth: np.ndarray, floor: float = 0.0) -> float:
    """1 if the estimate's largest coordinate is (one of) the truth's largest, else 0; by value, not magnitude."""
    estimate, truth, sound = _pair(estimate, truth, floor)
    return float(truth[np.argmax(estimate)] == truth.max()) if sound else NAN


def top_k_overlap(estimate: np.ndarray, truth: np.ndarray, k: int, floor: float = 0.0) -> float:
    """Share of the truth's k largest coordinates that the estimate's k largest hold; ties go to the lower index.

    >>> top_k_overlap(np.array([3.0, 1.0, 2.0]), np.array([3.0, 2.0, 1.0]), k=2)
    0.5
    """
    estimate, truth, sound = _pair(estimate, truth, floor)
    if not 1 <= k <= truth.size:
        raise ValueError(f"k = {k} lies outside 1 .. d = {truth.size}")
    if not sound:
        return NAN
    first, second = (set(np.argsort(-vector, kind="stable")[:k].tolist()) for vector in (estimate, truth))
    return len(first & second) / k


def sign_agreement(estimate: np.ndarray, truth: np.ndarray, floor: float = 0.0) -> float:
    """Share of the coordinates with truth != 0 whose sign the estimate keeps; an estimate of 0 keeps none."""
    estimate, truth, sound = _pair(estimate, truth, floor)
    signed = truth != 0
    return float((np.sign(estimate) == np.sign(truth))[signed].mean()) if sound and signed.any() else NAN


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float, float]:
    """(mean, sd, low, high) of repeated scores, NaNs left out: sample sd and Student's t interval of the mean.

    One value gives sd and interval NaN; none gives four NaNs.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence} lies outside (0, 1)")
    sound = np.asarray(values, np.float64)
    sound = sound[~np.isnan(sound)]
    if sound.size < 2:
        return (float(sound[0]) if sound.size else NAN), NAN, NAN, NAN
    from scipy.stats import t

    mean, sd = float(sound.mean()), float(sound.std(ddof=1))
    half = float(t.ppf((1 + confidence) / 2, sound.size - 1)) * sd / math.sqrt(sound.size)
    return mean, sd, mean - half, mean + half


def expected_abs_sum_of_laplace(n: int) -> float:
    """E|sum of n Laplace(b)| / b = 2 n C(2n, n) / 4**n, near 2 sqrt(n / pi): a coordinate's error with local noise.

    >>> round(expected_abs_sum_of_laplace(50), 3), round(expected_abs_sum_of_laplace(10_000), 1)
    (7.959, 112.8)
    """
    if n < 1:
        raise ValueError(f"n = {n} is not a number of homes")
    if n <= 500:
        return 2 * n * math.comb(2 * n, n) / 4**n
    # C(2n, n) / 4**n by its asymptotic series: 1e-16 relative from n = 500 on, where lgamma cancels to 1e-8
    series = 1 - 1 / (8 * n) + 1 / (128 * n**2) + 5 / (1024 * n**3) - 21 / (32768 * n**4)
    return 2 * math.sqrt(n / math.pi) * series


def eps0(sensitivity: float, coordinates: int, noises: int, norm: float) -> float:
    """The epsilon at which noise and signal are equal: Delta sqrt(2 d M) / ||S_zone||_2.

    noises  M: N with local noise, 1 with one noise for the zone; norm: ||S_zone||_2, units of S
    """
    if not (sensitivity > 0 and coordinates >= 1 and noises >= 1 and norm > 0):
        raise ValueError(f"eps0 needs sensitivity > 0, d >= 1, M >= 1 and norm > 0, not {sensitivity}, {coordinates}, "
                         f"{noises}, {norm}")
    return sensitivity * math.sqrt(2 * coordinates * noises) / norm


def expected_cosine(epsilon: float, eps0: float) -> float:
    """E[U], near (1 + (eps0 / epsilon)**2)**(-1/2).

    Above .45 within .02 for the sum of many noises; one Laplace noise for the zone does up to .03 better than this (its
    norm varies more), within .02 above .8. Measured at d = 7.
    """
    return 1 / math.hypot(1, eps0 / epsilon)


def source_error_bound(homes: int, coordinates: int, sensitivity: float, epsilon: float) -> float:
    """The source's linear bound on the zone's expected l1 error, N d Delta / epsilon: holds, 6.3x loose at N = 50."""
    return homes * coordinates * sensitivity / epsilon


def source_cosine_bound(homes: int, coordinates: int, sensitivity: float, epsilon: float, floor: float) -> float:
    """A lower bound of E[U] in the source's form, 1 minus the noise's size over the truth's: 1 - 2 N d Delta / (eps c).

    floor  c, the lower bound of ||S_true||_2
    The source prints no constant: cos(S + e, S) >= 1 - 2 ||e|| / ||S|| holds always, its linear bound covers E||e||.
    Mostly far below the true value, often below -1 (where it says nothing).
    """
    return 1 - 2 * source_error_bound(homes, coordinates, sensitivity, epsilon) / floor


def sign_flip_probability(value: float, scale: float, homes: int = 1, *, one_noise: bool = False) -> float:
    """Probability that a sign flips: near Phi(-|S_k| / (b sqrt(2 N))) with local noise, exp(-|S_k| / b) / 2 with one.

    value  S_k of the zone; scale: b; same units
    """
    if one_noise:
        return math.exp(-abs(value) / scale) / 2
    return math.erfc(abs(value) / (2 * scale * math.sqrt(homes))) / 2


def _pair(estimate: np.ndarray, truth: np.ndarray, floor: float | None = None) -> tuple[np.ndarray, np.ndarray, bool]:
    """Both as float64 (d,), and whether a score means anything."""
    estimate, truth = np.asarray(estimate, np.float64), np.asarray(truth, np.float64)
    if estimate.shape != truth.shape or truth.ndim != 1 or truth.size == 0:
        raise ValueError(f"scores compare two vectors of one length d >= 1, not {estimate.shape} with {truth.shape}")
    sound = bool(np.isfinite(estimate).all() and np.isfinite(truth).all())
    if sound and floor is not None:
        sound = bool(truth.any()) and not math.hypot(*truth.tolist()) < floor
    return estimate, truth, sound


def _ranks(vector: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(vector, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]
