"""Homes drawn from the private mode's model: any number, any number of days, without more budget."""

from __future__ import annotations

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import gamma, ndtr

from fedenergy.ids import stream
from fedenergy.synthesis.components import back
from fedenergy.synthesis.private_home import DAY_MEMORY, LAGS, amplitude, size_class
from fedenergy.synthesis.private_model import PrivateModel
from fedenergy.synthesis.private_shape import HARMONICS, HOURS, basis, unsquash
from fedenergy.synthesis.residual import Gev, ar1

BLOCK = 128
STRIDE = 6         # hours between the trend's points
FADE = 48.0        # hours in which the trend's autocovariance falls to 1 / e beyond its last lag
STEEPNESS, BEND = 0.8, (0.3, 2.0)   # a shape's norm grows with its home's level to this power; within these factors
RESCALE = (0.5, 2.0)   # a drawn record's mean is brought to its drawn size by a factor within these


def draw(model: PrivateModel, count: int, days: int, seed: int) -> tuple[np.ndarray, ...]:
    """(kWh (count, 24 days), cluster (count,), size class (count,), steps below 0 and above the cap, per home).

    Record i depends on the model, days, seed and i alone. The window's month repeats: a model of one month has no seasons.
    """
    parts = [_block(model, range(first, min(first + BLOCK, count)), days, seed) for first in range(0, count, BLOCK)]
    return tuple(np.concatenate(part) for part in zip(*parts))


def _block(model: PrivateModel, numbers: range, days: int, seed: int) -> tuple[np.ndarray, ...]:
    steps, width = days * HOURS, 2 * HARMONICS
    spectra = [_spectrum(cell.trend, steps) for cell in model.cells]
    points = spectra[0].size
    usual = [_usual_level(model, at) for at in range(len(model.share))]
    cluster, size, energy = np.empty(len(numbers), int), np.empty(len(numbers), int), np.empty(len(numbers))
    log = np.empty((len(numbers), steps))
    rest, memory, scale = np.empty((len(numbers), steps)), np.empty(len(numbers)), np.empty(len(numbers))
    for row, number in enumerate(numbers):
        rng = stream(seed, "synthesis.private.home", f"syn-{number + 1:06d}")
        one = rng.random(3)
        cluster[row] = np.searchsorted(np.cumsum(model.share)[:-1], one[0], side="right")
        energy[row] = _size(model, cluster[row], one[1], one[2])
        size[row] = size_class(energy[row], model.sizes.borders[cluster[row]])
        cell = model.cells[cluster[row] * model.classes + size[row]]
        normal = rng.standard_normal(width + 1)
        sizes, axes = np.linalg.eigh(cell.covariance)
        shape = unsquash(model.centres[cluster[row]] + axes @ (np.sqrt(np.maximum(sizes, 0)) * normal[:-1]))
        level = max(np.log1p(energy[row] / HOURS) + min(0.0, cell.level + cell.level_sd * normal[-1]), 0.0)
        shape *= np.clip((level / usual[cluster[row]]) ** STEEPNESS, *BEND)
        scale[row] = amplitude(level)
        # one day's seasonal part differs from the mean one: 24 hours' variance spread over the harmonics
        daily = ar1(rng.standard_normal((width, days)), np.full(width, DAY_MEMORY)).T
        daily = (shape + scale[row] * np.sqrt(cell.day_variance * HOURS / width) * daily) @ basis().T
        trend = np.fft.irfft(spectra[cluster[row] * model.classes + size[row]] * _white(rng, points), 2 * (points - 1))
        log[row] = level + daily.ravel() + scale[row] * _hourly(trend, steps)
        rest[row], memory[row] = rng.standard_normal(steps), cell.memory
    probability = np.clip(ndtr(ar1(rest, memory)), 1e-9, 1 - 1e-9)
    for row in range(len(numbers)):
        cell = model.cells[cluster[row] * model.classes + size[row]]
        shock = standard_gev(cell.skewness).quantile(probability[row:row + 1])[0]
        log[row] += shock * np.tile(scale[row] * cell.hours, days)
    kwh, below, above = back(log, model.cap_kwh)
    mean = np.maximum(kwh.mean(axis=1), 1e-9)
    kwh *= np.clip(energy / HOURS / mean, *RESCALE)[:, None]
    above = above + (kwh > model.cap_kwh).sum(axis=1)
    return np.minimum(kwh, model.cap_kwh), cluster, size, below, above


def _usual_level(model: PrivateModel, cluster: int) -> float:
    """Mean log1p kWh of a cluster's homes, by its histogram."""
    ratio = model.edges[1] / model.edges[0]
    middle = np.concatenate([[model.edges[0] / ratio**0.5], model.edges * ratio**0.5])
    return max(float(model.sizes.histogram[cluster] @ np.log1p(middle / HOURS)), 1e-3)


def _size(model: PrivateModel, cluster: int, which: float, where: float) -> float:
    """kWh a day: a bin of the cluster's histogram, and a place in it, uniform in the logarithm."""
    row = model.sizes.histogram[cluster]
    at = min(int(np.searchsorted(np.cumsum(row), which * row.sum(), side="right")), row.size - 1)
    ratio = model.edges[1] / model.edges[0]
    low = model.edges[at - 1] if at else model.edges[0] / ratio
    return float(min(low * ratio**where, model.cap_kwh * HOURS))


def standard_gev(skewness: float) -> Gev:
    """The law of mean 0 and variance 1 with that L-skewness (shape by Hosking, Wallis and Wood 1985)."""
    part = 2 / (3 + skewness) - np.log(2) / np.log(3)
    c = float(np.clip(7.8590 * part + 2.9554 * part**2, -0.3, 0.5))
    c = c if abs(c) > 1e-5 else 1e-5
    first, second = gamma(1 + c), gamma(1 + 2 * c)
    scale = abs(c) / np.sqrt(second - first**2)
    return Gev(np.array([c]), np.array([-scale * (1 - first) / c]), np.array([scale]))


def _spectrum(covariance: np.ndarray, steps: int) -> np.ndarray:
    """(m,) amplitudes of a stationary process on points STRIDE hours apart, by circulant embedding; what is negative in the
    spectrum (noise can do that) becomes 0, and the variance is kept."""
    points = steps // STRIDE + 2
    half = 1 << int(np.ceil(np.log2(points + 1)))
    lag = np.arange(half + 1) * STRIDE
    inner = np.interp(lag, LAGS, covariance)
    values = np.where(lag <= LAGS[-1], inner, covariance[-1] * np.exp(-(lag - LAGS[-1]) / FADE))
    power = np.maximum(np.fft.irfft(values, 2 * half)[:half + 1] * 2 * half, 0)
    total = power[0] + power[-1] + 2 * power[1:-1].sum()
    if not total > 0 or not covariance[0] > 0:
        return np.zeros(half + 1)
    return np.sqrt(power * (covariance[0] * 2 * half / total) * 2 * half)


def _white(rng: np.random.Generator, points: int) -> np.ndarray:
    """(points,) Fourier coefficients of real white noise, of mean square 1."""
    both = rng.standard_normal((2, points))
    found = (both[0] + 1j * both[1]) / np.sqrt(2)
    found[[0, -1]] = both[0, [0, -1]]
    return found


def _hourly(trend: np.ndarray, steps: int) -> np.ndarray:
    points = steps // STRIDE + 2
    return CubicSpline(np.arange(points) * STRIDE, trend[:points])(np.arange(steps))

