"""One continuous record instead of stitched days: the jumps at midnight brought back to the size of real ones."""

from __future__ import annotations

import numpy as np

REACH_HOURS = 3     # on each side of midnight


def midnight_jump(values: np.ndarray, per_day: int = 24) -> float:
    """Mean size of the change of log(1 + |x|), with its sign, from the last step of a day to the first of the next."""
    log = np.sign(values) * np.log1p(np.abs(values))
    return float(np.abs(log[:, per_day::per_day] - log[:, per_day - 1:-1:per_day]).mean())


def join(values: np.ndarray, real: np.ndarray, per_day: int = 24, reach_hours: int = REACH_HOURS) -> np.ndarray:
    """(N, T) whose midnights jump as much, on average, as the real records' do.

    Where exchanged days meet, each jump is shrunk by one factor: half of what goes is added before midnight and half taken
    after it, fading out over reach_hours on each side; every day keeps its energy (by scaling). Records that jump no more
    than the real ones, and records of a single day, come back as they are. Values >= 0 stay so.
    """
    first, aim = midnight_jump(values, per_day), midnight_jump(real, per_day)
    reach = max(1, reach_hours * per_day // 24)
    if not first > aim or values.shape[1] <= per_day:
        return values
    log = np.sign(values) * np.log1p(np.abs(values))
    days = log.reshape(len(log), -1, per_day)
    gap = (1 - aim / first) * (days[:, 1:, 0] - days[:, :-1, -1])
    fade = (np.arange(reach, 0, -1) - 0.5) / (reach - 0.5) / 2      # .5 at midnight, falling away from it
    days = days.copy()
    days[:, :-1, -reach:] += gap[:, :, None] * fade[::-1]
    days[:, 1:, :reach] -= gap[:, :, None] * fade
    joined = np.sign(days) * np.expm1(np.abs(days))
    old, new = values.reshape(joined.shape).sum(axis=2), joined.sum(axis=2)
    if values.min() < 0:    # net load: a day's sum may be near 0, no scale for it
        return (joined + ((old - new) / per_day)[:, :, None]).reshape(values.shape)
    joined = np.maximum(joined, 0.0)
    new = joined.sum(axis=2)
    sound = (old > 0) & (new > 0)
    joined *= np.where(sound, old / np.where(sound, new, 1.0), 1.0)[:, :, None]
    return joined.reshape(values.shape)
