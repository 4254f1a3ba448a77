"""What sets each home apart: its own daily profile and how its days scatter around it, released at window unit.

A dp_gp knows homes in general; a window says little about what its gap hides, and other windows of the same home say more.
For each home the mean of its windows' daily profiles is released (first its coarse shape, then the rest around it, so
that the second clip is small), then the second moments of all windows around their own home's profile. How far a
profile may be trusted is read off the released numbers themselves: where noise is all there is, it is zero, and the
moments are the dp_gp's (above its own limit, USABLE).
Source: ours; the posterior mean is that of a normal means problem (Efron and Morris 1973), its threshold the edge of the
noise's eigenvalues (Marchenko and Pastur 1967).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy.fft import dct

from fedenergy.imputation.baselines import linear
from fedenergy.imputation.dp_gp import TYPICAL, USABLE, DpGp, forward, radius_of
from fedenergy.imputation.dp_gp_release import Basis, clipped, denoised, in_parts, mean_of
from fedenergy.imputation.joint import gaussian_step
from fedenergy.imputation.task import Windows
from fedenergy.privacy.accounting import History, Statement, state
from fedenergy.privacy.epsilon import MICRO
from fedenergy.privacy.gaussian import discrete_gaussian, epsilon_of_rho
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.noise import NoiseSource, noise_from

SPLIT = (0.2, 0.5, 0.3)         # of rho: coarse profiles, fine profiles, second moments
COARSE = 8                      # cosines of a day in the first profile
WITHIN = 0.4                    # radius of the second profile over that of the first
LEAST_LEFT = 0.1        # of the variance of x, at least so much is not a home's own profile
RELATION = "closed-form releases of homes' profiles; which home a window is of, and how many each has, count as public"
DISTANCE = 0.1                  # relative noise at which the base's correlations are trusted as much as these


@dataclass(frozen=True, eq=False)
class Homes:
    """What was released of homes.

    names        the homes, sorted: public, and so is how many windows each has
    profiles     (homes, steps_per_day) what a home's mean of x is above the base's, by time of day
    correlation  (T, T) of the scaled deviations from a home's own mean
    rho          zCDP of all of it together for one window, replaced by another of the same home; infinite without noise
    noise        "" for noise of the operating system, else why the figure does not hold
    """

    names: tuple[str, ...]
    profiles: np.ndarray
    correlation: np.ndarray
    rho: float
    noise: str = ""

    def of(self, homes: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """((n,) True where the home is known, (n, steps_per_day) its profile, 0 elsewhere)."""
        names, homes = np.array(self.names), np.array([str(home) for home in homes])
        at = np.minimum(np.searchsorted(names, homes), len(names) - 1)
        known = names[at] == homes
        return known, np.where(known[:, None], self.profiles[at], 0.0)


def release(train: Windows, gp: DpGp, rho: float | None, *, noise: str = "simulation", seed: int = 0) -> Homes:
    """Each home's profile and the moments around them, above a dp_gp of the same windows, at rho zCDP.

    train  windows that name their homes, all starting at the dp_gp's phase
    rho    of all of it together; None: no noise and no privacy
    Guarantee: a window is in one row of each of two matrices of sums and in one sum of moments; replacing it by another of
    the same home moves each of the three by at most 2 R in l2, R the public radius of the clip.
    ValueError where the windows name no homes, or rho is too small to be split.
    """
    if train.homes is None:
        raise ValueError("these windows name no homes: give Windows(..., homes=...)")
    days, rest = divmod(train.length, train.steps_per_day)
    if rest or train.length != gp.length or train.channels != 1 or (train.phase != gp.phase).any():
        raise ValueError(f"windows of {train.length} steps from phase {train.phase.min()} over a dp_gp of {gp.length} "
                         f"from phase {gp.phase}: give those that it was fitted to")
    shares = [None if rho is None else int(rho * MICRO * share) for share in SPLIT]
    if rho is not None and min(shares) < 1:
        raise ValueError(f"rho = {rho:g} leaves less than a millionth for a release: ask for more")
    slots, basis, drawing = train.steps_per_day, Basis(days, train.steps_per_day), noise_from(noise, seed)
    labels = [str(home) for home in train.homes]
    names, at, counts = np.unique(labels, return_inverse=True, return_counts=True)
    mean, scale = np.roll(gp.mean, -gp.phase), np.roll(gp.scale, -gp.phase)
    x = forward(linear(train.values)[:, :, 0], gp.low, gp.cap, gp.transform) - np.tile(mean, days)
    day = dct(x.reshape(-1, days, slots).mean(1), norm="ortho")
    typical = (gp.cap - gp.low) * TYPICAL if gp.transform == "sqrt" else 0.25
    radius, few = math.sqrt(slots * typical), min(COARSE, slots)
    coarse = posterior(*means_of(day[:, :few], at, counts, radius, shares[0], drawing.source("*zone", "homes coarse")))
    profiles = np.pad(coarse, ((0, 0), (0, slots - few)))
    fine, sigma = means_of(day - profiles[at], at, counts, WITHIN * radius, shares[1], drawing.source("*zone", "homes fine"))
    profiles = posterior(profiles + fine, sigma)
    profiles = dct(profiles, type=3, norm="ortho")
    x = (x - np.tile(profiles, (1, days))[at]) / np.tile(scale, days)
    bound = radius_of(len(x), shares[2], basis.length)
    moments = mean_of(in_parts(basis.moments, x, None), bound, len(x), shares[2], drawing.source("*zone", "homes moments"))
    correlation, level = denoised(basis, moments)
    base = 1.0 if level > USABLE else level / (level + DISTANCE) if level else 0.0
    left = 1.0 - float(np.average((profiles / scale) ** 2, axis=0, weights=counts).mean())
    return Homes(tuple(map(str, names)), np.roll(profiles, gp.phase, axis=1),
                 ((1 - base) * correlation + base * gp.correlation) * max(left, LEAST_LEFT),
                 math.inf if rho is None else sum(shares) / MICRO, drawing.stamp)


def stated(homes: Homes, n: int, delta: float, windows: int) -> tuple[History, Statement]:
    """What the releases may claim, as steps of DP-SGD that cost the same (see joint.py).

    n  windows, public; windows  most of one home: all of them together cost windows**2 rho
    """
    if math.isinf(homes.rho):
        history = History()
        return history, state(history, delta, 0.0, household_windows=windows)
    history = History([gaussian_step(homes.rho)], [n])
    said = state(history, delta, 1.0, noise=homes.noise, notes=(RELATION,))
    return history, replace(said, household_windows=windows,
                            household=epsilon_of_rho(round(homes.rho * MICRO) * windows**2, delta))


def means_of(vectors: np.ndarray, at: np.ndarray, counts: np.ndarray, radius: float, rho_micro: int | None,
             source: NoiseSource) -> tuple[np.ndarray, np.ndarray]:
    """((homes, d) mean of each home's clipped vectors, noised; (homes,) the noise's standard deviation).

    vectors (n, d); at (n,) home of each, counts (homes,) public; rho_micro  millionths, None: no noise
    """
    grid = NoiseGrid(radius)
    total = np.zeros((len(counts), vectors.shape[1]), np.int64)
    np.add.at(total, at, clipped(vectors, radius))
    if rho_micro is None:
        return grid.decode(total) / counts[:, None], np.zeros(len(counts))
    variance = Fraction((2 * grid.bound) ** 2 * MICRO, 2 * rho_micro)
    noised = total + discrete_gaussian(source, variance, total.size).reshape(total.shape)
    return grid.decode(noised) / counts[:, None], math.sqrt(variance) * grid.step / counts


def posterior(noisy: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """(homes, d) noisy effects around 0 and each home's noise -> their posterior means under a normal law between homes,
    whose covariance is what the noise does not explain (half of it, off the diagonal). Free: reads released numbers only.

    >>> posterior(np.array([[2.0], [-2.0], [2.0], [-2.0]]), np.full(4, 1.0)).round(2).tolist()
    [[1.5], [-1.5], [1.5], [-1.5]]
    """
    if not sigma.any():
        return noisy
    usual = sigma <= 3 * np.median(sigma)                # homes of few windows say too little about the others
    seen, noise, d = noisy[usual], float((sigma[usual] ** 2).mean()), noisy.shape[1]
    between = seen.T @ seen / len(seen) - noise * np.eye(d)
    between = (between + np.diag(np.diag(between))) / 2
    ratio = d / len(seen)
    w, v = np.linalg.eigh(between)
    between = (v * np.where(w > noise * (2 * math.sqrt(ratio) + ratio), w, 0.0)) @ v.T
    return np.stack([between @ np.linalg.solve(between + s**2 * np.eye(d), row) if s else row
                     for row, s in zip(noisy, sigma)])
