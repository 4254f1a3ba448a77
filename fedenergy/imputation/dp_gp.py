"""The closed-form private imputer: a Gaussian process whose mean, scale and covariance are three noisy releases.

    gp = imp.dp_gp.fit(train, epsilon=2.0, delta=1e-5)
    gp.fill(values, observed, time_of_day);  gp.sample(...);  print(gp.privacy)

On x = sqrt(use), where a household's spread grows little with its level: a daily mean profile, a daily variance profile
and the second moments of the scaled deviations (dp_gp_release.py). A gap is then filled by the conditional Gaussian,
whatever its shape. It is a row of every table, and a base that the diffusion corrects (base.py).
Source: ours; the conditional Gaussian is a textbook's (Rasmussen and Williams 2006, 2.2), the accounting is zCDP.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedenergy.ids import stream
from fedenergy.imputation.baselines import linear
from fedenergy.imputation.dp_gp_release import Basis, Spent, denoised, in_parts, mean_of, positive, smooth_profile, spent
from fedenergy.imputation.task import Windows
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.gaussian import check_delta, rho_micro
from fedenergy.privacy.noise import noise_from

CAP_KW = 6.0                    # default cap: a home's mean power over a step; few appliances together exceed it for long
TYPICAL = 1 / 15                # default typical use over the cap: 0.4 kW of 6 kW, 3,500 kWh a year (a national figure)
SPLIT = (0.1, 0.1, 0.8)         # of rho: two profiles have 2 x 48 numbers, the second moments thousands
AMPLE, WIDEST = 0.1, 8.0        # relative noise below which the radius grows, and by how much at most
UNITS, TRANSFORMS, POINTS = ("window", "household"), ("sqrt", "none"), ("mean", "median")
AT_ONCE = 256                   # windows conditioned together
LEAST_SHARE, LEAST_VARIANCE = 0.1, 1e-4     # of a slot's variance over the slots' mean, and over typical: noise must not
                                            # make a slot all but constant
USABLE = 0.6                    # most relative noise: on simulated homes interpolation wins above .7


@dataclass(frozen=True, eq=False)
class DpGp:
    """A fitted imputer; satisfies base.Base. Window i's filling depends on window i only.

    mean, scale   (steps_per_day,) of x by time of day
    correlation   (T, T) of the scaled deviations, for windows that start at step `phase` of the day
    low, cap      public limits: values are read within them
    level         noise of one second moment over a mean eigenvalue (0 without noise)
    """

    mean: np.ndarray
    scale: np.ndarray
    correlation: np.ndarray
    privacy: Spent
    phase: int = 0
    low: float = 0.0
    cap: float = 3.0
    transform: str = "sqrt"
    level: float = 0.0

    name = "dp_gp"

    @property
    def note(self) -> str:
        """What it costs, for the statement of a model that corrects it."""
        return f"the base dp_gp was fitted to the same windows: {self.privacy}; add it to the model's own epsilon"

    @property
    def length(self) -> int:
        """T."""
        return len(self.correlation)

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray | None = None,
             point: str = "mean") -> np.ndarray:
        """Fill what is not observed; observed values are kept as they are.

        values, observed  (n, T) or (n, T, 1), original units; read where observed only
        time_of_day       (n, T) step of the day; None: windows start where the training windows did
        point             "mean" (least squared error) or "median" (least absolute error) of the conditional law
        """
        if point not in POINTS:
            raise ValueError(f"point = {point!r} is unknown (takes: {', '.join(POINTS)})")
        return self.points(values, observed, time_of_day)[POINTS.index(point)]

    def points(self, values: np.ndarray, observed: np.ndarray,
               time_of_day: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(mean, median) fillings at the price of one; arguments as `fill`."""
        x, seen, starts = self.read(values, observed, time_of_day)
        mean, median = np.empty_like(x), np.empty_like(x)
        for rows, mu, cov in self.laws(starts):
            m, variance = conditional(mu, cov, x[rows], seen[rows])
            mean[rows], median[rows] = self.back(m, variance), self.back(m, 0.0)
        return tuple(np.where(observed, values, out.reshape(np.shape(values))) for out in (mean, median))

    def sample(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray | None = None, *,
               samples: int = 30, seed: int = 0) -> np.ndarray:
        """(n, samples, T[, 1]) draws from the conditional law, for intervals; arguments as `fill`. Free of privacy cost.

        Window i's draws depend on (seed, i) and its own observed values only.
        """
        x, seen, starts = self.read(values, observed, time_of_day)
        out = np.empty((len(x), samples, self.length))
        for rows, mean, cov in self.laws(starts):
            root, (gain, _) = np.linalg.cholesky(cov), gains(cov, seen[rows])
            for i, g in zip(rows, gain):        # Matheron: a joint draw, corrected where it was observed
                noise = stream(seed, "dp_gp", "", f"window-{i}").standard_normal((samples, self.length)) @ root.T
                out[i] = mean + noise + np.where(seen[i], x[i] - mean - noise, 0.0) @ g
        drawn = self.back(out, 0.0).reshape(len(x), samples, *np.shape(values)[1:])
        return np.where(np.asarray(observed)[:, None], np.asarray(values)[:, None], drawn)

    def read(self, values: np.ndarray, observed: np.ndarray,
             time_of_day: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(x (n, T) transformed, observed (n, T), first step of the day (n,)) of windows; x is of no meaning where not
        observed. Arguments as `fill`; ValueError for another length or an observed NaN."""
        shape = np.shape(values)
        if shape[1:] not in ((self.length,), (self.length, 1)) or np.shape(observed) != shape:
            raise ValueError(f"values {shape}, observed {np.shape(observed)}: give both (n, {self.length}) or "
                             f"(n, {self.length}, 1): the length that was fitted, one channel")
        seen = np.asarray(observed, bool).reshape(-1, self.length)
        x = forward(np.where(seen, np.reshape(values, seen.shape), self.low), self.low, self.cap, self.transform)
        if not np.isfinite(x).all():
            raise ValueError("an observed value is NaN: mark it as not observed")
        starts = np.full(len(x), self.phase) if time_of_day is None else np.asarray(time_of_day)[:, 0]
        return x, seen, starts

    def laws(self, starts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(rows, mean (T,), covariance (T, T)) of x for every start of a window on the clock, at most AT_ONCE rows each."""
        slots = len(self.mean)
        for start in np.unique(starts):
            at = (int(start) + np.arange(self.length)) % slots
            scale = self.scale[at]
            shape = self.correlation if start == self.phase else shifted(self.correlation, slots,
                                                                         (int(start) - self.phase) % slots)
            rows = np.flatnonzero(starts == start)
            for low in range(0, len(rows), AT_ONCE):
                yield rows[low:low + AT_ONCE], self.mean[at], shape * np.outer(scale, scale)

    def back(self, x: np.ndarray, variance: np.ndarray | float) -> np.ndarray:
        """x -> original units: E[x**2] = m**2 + variance; the median's square."""
        u = np.where(x > 0, x, 0.0) ** 2 + variance if self.transform == "sqrt" else x * (self.cap - self.low)
        return self.low + np.clip(u, 0.0, self.cap - self.low)


def fit(train: Windows | np.ndarray, epsilon: float, delta: float = 1e-5, *, cap: float | None = None, low: float = 0.0,
        transform: str = "sqrt", typical: float | None = None, moment_radius: float | None = None,
        split: tuple[float, float, float] = SPLIT, unit: str = "window", noise: str = "simulation",
        seed: int = 0) -> DpGp:
    """Fit to windows of whole days, at (epsilon, delta) under replace-one.

    train          Windows (n, T, 1), T a multiple of steps_per_day, all starting at the same time of day; a record's
                   missing values are interpolated within it
    epsilon        inf: no noise and no privacy (the twin of the table)
    cap, low       public limits in original units; default cap: 6 kW over a step
    transform      "sqrt" for use of energy; "none" for what has no natural zero: x = (value - low) / (cap - low)
    typical        public guess of the mean of x**2 (for "sqrt": the mean use in a step); default cap / 15 (1/4 for
                   "none"). The radii follow: sqrt(slots typical) for the mean profile, sqrt(slots) typical for the
                   variance profile, as a variance of x is at most the mean of x**2
    moment_radius  of the second moments of T scaled deviations, whose squared length is T on average; default: see
                   `radius_of`
    split          shares of rho for mean, scale and second moments
    unit           "household": a home's windows are averaged first and the home is the record (train.homes needed)
    noise, seed    "secure" or "simulation" (seeded: the statement says that it is not private)
    Guarantee: `privacy`, with n and the phase public. The choice of all arguments must not rest on the private data.
    """
    windows = Windows.of(train)
    days, cap, typical = _checked(windows, cap, low, transform, typical, split, unit)
    basis = Basis(days, windows.steps_per_day)
    slots, phase = windows.steps_per_day, int(windows.phase[0])
    homes = np.asarray(windows.homes) if unit == "household" else None
    n = len(windows) if homes is None else len(np.unique(homes))
    total = None if math.isinf(epsilon) else rho_micro(micro(epsilon), check_delta(delta))
    shares = [None if total is None else int(total * share) for share in split]
    if total is not None and min(shares) < 1:
        raise ValueError(f"epsilon = {epsilon:g} leaves less than a millionth of rho for a release: ask for more")
    radius = radius_of(n, shares[2], basis.length) if moment_radius is None else moment_radius
    drawing = noise_from(noise, seed)

    def release(name: str, function, radius: float, share: int | None):
        return mean_of(in_parts(function, x, homes), radius, n, share, drawing.source("*zone", f"dp_gp {name}"))

    x = forward(linear(windows.values)[:, :, 0], low, cap, transform)
    mean = smooth_profile(release("mean", lambda w: w.reshape(-1, days, slots).mean(1), math.sqrt(slots * typical),
                                  shares[0]))
    x = x - np.tile(mean, days)
    square = smooth_profile(release("scale", lambda w: (w**2).reshape(-1, days, slots).mean(1),
                                    math.sqrt(slots) * typical, shares[1]))
    scale = np.sqrt(np.maximum(square, max(LEAST_SHARE * float(square.mean()), LEAST_VARIANCE * typical)))
    x = x / np.tile(scale, days)
    correlation, level = denoised(basis, release("moments", basis.moments, radius, shares[2]))
    rolled = np.roll(mean, phase), np.roll(scale, phase)                        # by time of day
    used = None if total is None else sum(shares)
    return DpGp(*rolled, correlation, spent(used, delta, n, unit, windows.windows_per_home, drawing.stamp), phase, low, cap,
                transform, level)


def relative_noise(n: int, rho: int, length: int) -> float:
    """Noise of one second moment at the radius T / 2, over a mean eigenvalue: 2 R / (n sqrt(2 rho)) / 0.4, as the clip
    leaves about 2 / 5 of an eigenvalue that is 1 on average. Public.

    rho  millionths
    """
    return length / (n * math.sqrt(2 * rho / MICRO)) / 0.4


def radius_of(n: int, rho: int | None, length: int) -> float:
    """R of the second moments from public quantities: T / 2, under which heavy users' windows are shrunk (which nearly
    keeps the covariance's shape); up to 4 T where the noise is so low that this bias would be what limits.

    >>> radius_of(1_000, 100_000, 96), radius_of(12_195, None, 96)
    (48.0, 384.0)
    """
    room = WIDEST if rho is None else AMPLE / relative_noise(n, rho, length)
    return length / 2 * min(max(room, 1.0), WIDEST)


def choose_base(n: int, epsilon: float, delta: float = 1e-5, *, length: int = 96,
                split: tuple[float, float, float] = SPLIT) -> str:
    """"dp_gp" or "linear", from public quantities only: above USABLE the covariance says less than interpolation.

    >>> choose_base(12_195, 2.0), choose_base(127, 10.0), choose_base(100, 2.0)
    ('dp_gp', 'linear', 'linear')
    """
    if n < 1:
        raise ValueError(f"n = {n} is not a number of records of at least 1")
    if math.isinf(epsilon):
        return "dp_gp" if n >= 10 * length else "linear"
    epsilon_micro, delta = micro(epsilon), check_delta(delta)
    try:
        rho = int(rho_micro(epsilon_micro, delta) * split[2])
    except ValueError:                                   # not a millionth of rho: nothing could be released
        return "linear"
    return "dp_gp" if relative_noise(n, max(rho, 1), length) <= USABLE else "linear"


def forward(values: np.ndarray, low: float, cap: float, transform: str) -> np.ndarray:
    """Original units -> x, within the public limits; NaN stays."""
    u = np.clip(values, low, cap) - low
    return np.sqrt(u) if transform == "sqrt" else u / (cap - low)


def conditional(mean: np.ndarray, cov: np.ndarray, x: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, variance), (n, T) each, of a Gaussian given the observed positions of each row; where nothing is observed,
    its own mean and variance."""
    gain, cross = gains(cov, seen)
    m = mean + np.einsum("nij,ni->nj", gain, np.where(seen, x - mean, 0.0))
    variance = np.maximum(np.diag(cov) - (cross * gain).sum(1), 0.0)
    return m, np.where(seen, 0.0, variance)


def gains(cov: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n, T, T) gain, (n, T, T) covariance of observed and all): row i's conditional mean is mean + (x - mean) @ gain[i],
    with 0 for x - mean where not observed."""
    at = np.arange(len(cov))
    a = cov * (seen[:, :, None] & seen[:, None, :])
    a[:, at, at] = np.where(seen, a[:, at, at], 1.0)
    cross = np.where(seen[:, :, None], cov, 0.0)
    return np.linalg.solve(a, cross), cross


def shifted(correlation: np.ndarray, slots: int, by: int) -> np.ndarray:
    """The correlation of windows that start `by` steps later in the day: blocks by days between, the last one repeated."""
    length = len(correlation)
    days = length // slots
    blocks = correlation.reshape(days, slots, days, slots)
    lags = [np.mean([blocks[d, :, d + k] for d in range(days - k)], axis=0) for k in range(days)]
    lags.append(lags[-1])
    longer = np.block([[lags[b - a] if b >= a else lags[a - b].T for b in range(days + 1)] for a in range(days + 1)])
    cut = longer[by:by + length, by:by + length]
    return positive(cut, max(float(np.linalg.eigvalsh(correlation)[0]), 1e-3))


def _checked(windows: Windows, cap: float | None, low: float, transform: str, typical: float | None,
             split: tuple[float, ...], unit: str) -> tuple[int, float, float]:
    """(days, cap, typical), or ValueError."""
    if windows.channels != 1:
        raise ValueError(f"windows of {windows.channels} channels: fit one imputer per channel, and add what they cost")
    days, rest = divmod(windows.length, windows.steps_per_day)
    if rest or not days:
        raise ValueError(f"windows of {windows.length} steps are not whole days of {windows.steps_per_day}: cut them so")
    if len(np.unique(windows.phase)) > 1:
        raise ValueError("training windows start at several times of day: cut them at one")
    if transform not in TRANSFORMS or unit not in UNITS:
        raise ValueError(f"transform = {transform!r}, unit = {unit!r}: take {TRANSFORMS} and {UNITS}")
    if unit == "household" and windows.homes is None:
        raise ValueError("unit = \"household\" needs the home of each window: Windows(..., homes=...)")
    if len(split) != 3 or min(split) <= 0 or sum(split) > 1 + 1e-9:
        raise ValueError(f"split = {split!r} is not three shares above 0 that add up to 1 at most")
    cap = low + CAP_KW * 24 / windows.steps_per_day if cap is None else cap
    if not (math.isfinite(cap) and math.isfinite(low) and low < cap):
        raise ValueError(f"limits ({low}, {cap}) are not two finite numbers in ascending order")
    typical = ((cap - low) * TYPICAL if transform == "sqrt" else 0.25) if typical is None else typical
    if not 0 < typical <= ((cap - low) if transform == "sqrt" else 1.0):
        raise ValueError(f"typical = {typical!r} is not a mean of x**2 within the limits")
    return days, cap, typical
