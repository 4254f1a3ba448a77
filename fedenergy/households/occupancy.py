"""When the people of a simulated home are there and awake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedenergy.households.archetypes import ARCHETYPES, Home
from fedenergy.households.weather import SLOT_MINUTES, SLOTS, Weather

PRESENCE_DRAWS = 13  # uniforms a day that Presence uses


@dataclass(frozen=True)
class Days:
    """The calendar and weather of the days that a record touches, the same for every home of the zone.

    midnight    (D,) int minutes from the record's start to each midnight (the first is a day earlier: nights wrap)
    off         (D,) bool, weekend or public holiday; clock: (D,) int minutes that clocks are ahead of the time stamps
    week        (D,) int, row of the day that stands for the day's week; holiday_month: (D,) bool, people travel more
    """

    midnight: np.ndarray
    off: np.ndarray
    clock: np.ndarray
    week: np.ndarray
    holiday_month: np.ndarray
    weather: Weather


class Presence:
    """Two intervals a day when people are up and at home, [wake, leave) and [back, bed), clock minutes; (D,) each."""

    def __init__(self, home: Home, days: Days, u: np.ndarray) -> None:
        kind = ARCHETYPES[home.archetype]
        jitter = (u[:, 0:4] + u[:, 4:8] - 1) * 2.45 * kind.spread  # triangular, standard deviation = spread
        early = home.between("early", -75, 75)  # this home's own habit around its archetype's
        table = np.array([[day.wake, day.leave, day.back, day.bed] for day in (kind.work, kind.off)], float)
        times = table[days.off.astype(np.intp)] + early + jitter
        self.wake, self.bed = times[:, 0], times[:, 3]
        out = u[:, 8] < np.where(days.off, kind.out_off, kind.out_work)
        errand = self.wake + 60 + u[:, 9] * np.maximum(self.bed - self.wake - 240, 0)
        self.leave = np.maximum(np.where(out, times[:, 1], errand), self.wake + 10)
        self.back = np.maximum(np.where(out, times[:, 2], errand + 70), self.leave + 20)
        self.bed = np.maximum(self.bed, self.back + 20)
        travel = np.where(days.holiday_month, 0.12, 0.03) * (0.3 + 1.4 * home.traits["trips"])
        self.here = (u[days.week, 10] >= travel).astype(float)  # (D,) 0 in a week away
        self.clock = days.midnight - days.clock  # stamp of the clock's midnight
        lively = u[:, 11] + u[days.week, 12] - 1  # some days, and some weeks, are busier than others
        self.lively = np.exp(home.between("lively", 0.4, 1.5) * lively)
        self.morning = self.leave - self.wake
        self.awake = self.morning + self.bed - self.back

    def moment(self, u: np.ndarray) -> np.ndarray:
        """Clock minutes while someone is up and at home, from uniforms (D, k)."""
        passed = u * self.awake[:, None]
        return self.wake[:, None] + passed + (passed > self.morning[:, None]) * (self.back - self.leave)[:, None]

    def dinner(self, home: Home, u: np.ndarray) -> np.ndarray:
        """(D,) clock minute at which dinner is cooked: the usual one, or soon after coming back."""
        usual = ARCHETYPES[home.archetype].dinner + home.between("early", -30, 30) + (u[:, 0] + u[:, 1] - 1) * 140
        return np.where((usual > self.leave) & (usual < self.back + 15), self.back + 15 + 25 * u[:, 0], usual)

    def slots(self, lead: int = 0) -> np.ndarray:
        """(D * 48,) bool, someone is up and at home (from lead minutes before), by half hour of the time stamps."""
        n = self.clock.size * SLOTS
        stamp = np.concatenate([self.wake - lead, self.back - lead, self.leave, self.bed])
        stamp += np.tile(self.clock - self.clock[0], 4)
        key = np.clip(stamp // SLOT_MINUTES, 0, n).astype(np.int64)
        sign = np.repeat([1.0, 1.0, -1.0, -1.0], self.clock.size) * np.tile(self.here, 4)
        return np.bincount(key, sign, n + 1).cumsum()[:n] > 0.5
