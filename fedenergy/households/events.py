"""Energy as events, counted in whole watt-minutes."""

from __future__ import annotations

import numpy as np


class Events:
    """Collects what runs when, on a one-minute clock, and bins it to a step.

    Every event is whole: minutes and watts are integers, so its energy in a step is a whole number of watt-minutes.
    Sums of those are exact in float64 below 2^53, so a record's energy is the same at every step, to the last bit.
    """

    def __init__(self, channels: int) -> None:
        self._channels = channels
        self._parts: list[np.ndarray] = []

    def add(self, channel: int, start: np.ndarray, minutes: np.ndarray | float, watts: np.ndarray | float) -> None:
        """Add events: start (...,) minutes from the record's start; durations and powers broadcast; all are floored."""
        part = np.empty((4, *start.shape))
        part[0], part[1], part[2], part[3] = channel, start, minutes, watts
        self._parts.append(part.reshape(4, -1))

    def watt_minutes(self, steps: int, step_minutes: int) -> np.ndarray:
        """Energy per channel and step: (channels, steps) whole numbers, exact."""
        events = np.concatenate(self._parts, axis=1)
        channel, start, minutes, watts = events[:, events[2] >= 1].astype(np.int64)
        edge = np.concatenate([start, start + minutes])
        np.clip(edge, 0, steps * step_minutes, out=edge)
        power = np.concatenate([watts, -watts])
        step = edge // step_minutes
        key = np.concatenate([channel, channel]) * (steps + 2) + step
        size = self._channels * (steps + 2)
        # An event that starts in step k adds its power to the rest of k and to every later step; its end takes it off.
        partial = np.bincount(key, power * ((step + 1) * step_minutes - edge), size)
        lasting = np.bincount(key + 1, power * step_minutes, size)
        energy = partial.reshape(self._channels, -1) + lasting.reshape(self._channels, -1).cumsum(axis=1)
        return energy[:, :steps]
