"""The imputation task: windows of a series, the split by time, scaling to [0, 1], and the errors of a filling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

PARTS = (0.7, 0.1, 0.2)
REACH = 10.0             # times the width of public limits that a value may lie outside them


@dataclass(frozen=True, eq=False)
class Windows:
    """Records of an imputer: each window is one record.

    values         (n, T, D) float64, NaN where nothing is known
    steps_per_day  T's clock, for day-periodic baselines and bases
    phase          (n,) step of the day at which a window starts
    homes          (n,) household of each window, or None: the household statement counts windows per home
    covariates     (n, T, k) known columns, such as temperature, already scaled; None without
    """

    values: np.ndarray
    steps_per_day: int = 24
    phase: np.ndarray | None = None
    homes: tuple[str, ...] | None = None
    covariates: np.ndarray | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, np.float64)
        values = values[:, :, None] if values.ndim == 2 else values
        if values.ndim != 3 or not values.size:
            raise ValueError(f"windows have shape {np.shape(self.values)}: give (n, T) or (n, T, D), none of them 0")
        if np.isinf(values).any():
            raise ValueError("windows hold infinite values: mark what is missing as NaN")
        n = len(values)
        phase = np.zeros(n, np.int64) if self.phase is None else np.asarray(self.phase, np.int64)
        if phase.shape != (n,) or (self.homes is not None and len(self.homes) != n):
            raise ValueError(f"{n} windows need {n} phases and {n} homes (or None)")
        if self.steps_per_day < 1:
            raise ValueError(f"steps_per_day = {self.steps_per_day} is not at least 1")
        if self.covariates is not None and (np.shape(self.covariates)[:2] != values.shape[:2]
                                            or np.ndim(self.covariates) != 3 or not np.isfinite(self.covariates).all()):
            raise ValueError(f"covariates {np.shape(self.covariates)} must be finite and of shape "
                             f"({n}, {values.shape[1]}, k)")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "phase", phase % self.steps_per_day)

    @classmethod
    def of(cls, data: Windows | np.ndarray) -> Windows:
        """Windows as they are, an (n, T) or (n, T, D) array wrapped."""
        return data if isinstance(data, Windows) else cls(data)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def length(self) -> int:
        """T."""
        return self.values.shape[1]

    @property
    def channels(self) -> int:
        """D."""
        return self.values.shape[2]

    @property
    def known(self) -> np.ndarray:
        """(n, T, D) bool: where there is a value."""
        return np.isfinite(self.values)

    @property
    def time_of_day(self) -> np.ndarray:
        """(n, T) step of the day."""
        return (self.phase[:, None] + np.arange(self.length)) % self.steps_per_day

    @property
    def windows_per_home(self) -> int | None:
        """The most windows that one household has; None where homes are not named."""
        return None if self.homes is None else int(np.unique(self.homes, return_counts=True)[1].max())

    def take(self, rows: Sequence[int] | np.ndarray | slice) -> Windows:
        """Some of the windows, in the order given."""
        at = np.arange(len(self))[rows]
        return replace(self, values=self.values[at], phase=self.phase[at],
                       homes=None if self.homes is None else tuple(self.homes[k] for k in at),
                       covariates=None if self.covariates is None else self.covariates[at])


def cut(series: np.ndarray, length: int, stride: int | None = None, steps_per_day: int = 24, first_step: int = 0,
        home: str | None = None) -> Windows:
    """A series (t,) or (t, D) -> its windows; without a stride they do not overlap, and a rest is dropped.

    first_step  position of the series' first value on the clock (0: midnight)
    Overlapping windows (stride < length) share readings: one reading is then in several records.

    >>> cut(np.arange(10.0), 4).values[:, :, 0].tolist()
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    """
    series = np.asarray(series, np.float64)
    series = series[:, None] if series.ndim == 1 else series
    stride = length if stride is None else stride
    if length < 2 or stride < 1 or len(series) < length:
        raise ValueError(f"{len(series)} steps, length {length}, stride {stride}: a window needs 2 <= length <= steps "
                         "and stride >= 1")
    starts = np.arange(0, len(series) - length + 1, stride)
    return Windows(np.stack([series[s:s + length] for s in starts]), steps_per_day, starts + first_step,
                   None if home is None else (home,) * len(starts))


def split(series: np.ndarray, length: int, stride: int | None = None, steps_per_day: int = 24, first_step: int = 0,
          parts: tuple[float, float, float] = PARTS) -> tuple[Windows, Windows, Windows]:
    """Train, validation and test windows of a series, split by time; no window crosses a border."""
    n = len(series)
    low, high = int(n * parts[0]), int(n * parts[0]) + int(n * parts[1])
    return tuple(cut(series[a:b], length, stride, steps_per_day, first_step + a)
                 for a, b in ((0, low), (low, high), (high, n)))


def join(windows: Sequence[Windows]) -> Windows:
    """Windows of several series, one after the other."""
    homes = None if any(w.homes is None for w in windows) else tuple(h for w in windows for h in w.homes)
    if len({(w.length, w.channels, w.steps_per_day, w.covariates is None) for w in windows}) != 1:
        raise ValueError("only windows of one length, clock, number of channels and kind of covariates can be joined")
    covariates = None if windows[0].covariates is None else np.concatenate([w.covariates for w in windows])
    return Windows(np.concatenate([w.values for w in windows]), windows[0].steps_per_day,
                   np.concatenate([w.phase for w in windows]), homes, covariates)


@dataclass(frozen=True)
class Scale:
    """Per-channel limits that map to [0, 1].

    low, high  D numbers each
    public     False where they were read off the training data: DP-SGD does not cover them
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    public: bool

    def __post_init__(self) -> None:
        for low, high in zip(self.low, self.high, strict=True):
            if not (np.isfinite([low, high]).all() and low < high):
                raise ValueError(f"limits ({low}, {high}) are not two finite numbers in ascending order")

    @classmethod
    def given(cls, limits: tuple[float, float] | Sequence[tuple[float, float]], channels: int) -> Scale:
        """Public limits: one (low, high) for all channels, or one per channel."""
        pairs = np.broadcast_to(np.asarray(limits, np.float64), (channels, 2))
        return cls(tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist()), True)

    @classmethod
    def fitted(cls, train: Windows) -> Scale:
        """Min and max of the training windows per channel (the source's reading)."""
        if not train.known.any(axis=(0, 1)).all():
            raise ValueError("a channel of the training windows has no value at all: drop it")
        low, high = np.nanmin(train.values, axis=(0, 1)), np.nanmax(train.values, axis=(0, 1))
        high = np.where(high > low, high, low + 1.0)
        return cls(tuple(low.tolist()), tuple(high.tolist()), False)

    def normal(self, values: np.ndarray) -> np.ndarray:
        """Original units -> [0, 1] (beyond it for values outside the limits; of public limits, by REACH at most: a net's
        numbers stay where float32 is exact enough for a clipped gradient, whatever a record holds)."""
        found = (values - np.array(self.low)) / (np.array(self.high) - np.array(self.low))
        return np.clip(found, -REACH, 1.0 + REACH) if self.public else found

    def original(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `normal`."""
        return values * (np.array(self.high) - np.array(self.low)) + np.array(self.low)


def errors(filled: np.ndarray, truth: np.ndarray, observed: np.ndarray) -> dict[str, float]:
    """MSE, MAE and RMSE in original units over the masked positions whose truth is known, all windows pooled.

    >>> errors(np.array([1.0, 5.0]), np.array([1.0, 2.0]), np.array([True, False]))
    {'mse': 9.0, 'mae': 3.0, 'rmse': 3.0}
    """
    where = ~observed & np.isfinite(truth)
    if not where.any():
        raise ValueError("no masked position has a known value: nothing can be scored")
    gap = (filled - truth)[where]
    mse = float(np.mean(gap**2))
    return {"mse": mse, "mae": float(np.abs(gap).mean()), "rmse": mse**0.5}
