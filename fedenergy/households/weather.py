"""The weather that the homes of a simulated zone share: temperature and sun, keyed by seed and calendar date."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np

from fedenergy.ids import stream

SLOT_MINUTES = 30
SLOTS = 1440 // SLOT_MINUTES
_MEMORY_DAYS = 30
_PERSISTENCE = 0.8


@dataclass(frozen=True)
class Climate:
    """A temperate climate: yearly mean and swing, day-to-day spread, swing within a clear day (degC), latitude."""

    mean_c: float
    season_c: float
    spread_c: float
    daily_c: float
    latitude: float


CLIMATES = {
    "london": Climate(mean_c=11.0, season_c=7.0, spread_c=2.9, daily_c=4.2, latitude=51.5),
    "berlin": Climate(mean_c=9.9, season_c=10.0, spread_c=3.6, daily_c=4.8, latitude=52.5),
    "madrid": Climate(mean_c=15.0, season_c=10.0, spread_c=2.6, daily_c=6.5, latitude=40.4),
}


@dataclass(frozen=True)
class Weather:
    """Outdoor conditions over whole days.

    temperature (days * 48,) degC and irradiance (days * 48,) W/m2 (horizontal), at the middle of each half hour
    daily       (days,) mean temperature, degC
    sunrise, sunset  (days,) minutes after midnight, local standard time
    """

    temperature: np.ndarray
    irradiance: np.ndarray
    daily: np.ndarray
    sunrise: np.ndarray
    sunset: np.ndarray


def zone_weather(seed: int, climate: str, first: dt.date, days: int) -> Weather:
    """Weather from a date on. The same date has the same weather whatever the window that it is asked in.

    Day-to-day anomalies are a moving average with AR(1) weights (.8 a day), so every date is a function of the seed
    and the dates just before it; the swing within a day and the sun follow the day's clearness.
    """
    place, n = CLIMATES[climate], days + _MEMORY_DAYS
    dates = [first + dt.timedelta(days=day - _MEMORY_DAYS) for day in range(n)]
    years = {year: stream(seed, "weather", "*zone", str(year)).standard_normal((366, 2))
             for year in {date.year for date in dates}}
    yearday = np.array([date.timetuple().tm_yday for date in dates])
    draws = np.array([years[date.year][day - 1] for date, day in zip(dates, yearday)])  # (n, 2)
    weights = _PERSISTENCE ** np.arange(_MEMORY_DAYS + 1)
    anomaly = np.convolve(draws[:, 0], weights / np.sqrt((weights**2).sum()), "valid")  # (days,)
    clear = 1 / (1 + np.exp(-1.2 * draws[_MEMORY_DAYS:, 1]))  # (days,) in (0, 1)

    angle = 2 * np.pi * (yearday[_MEMORY_DAYS:] - 22) / 365.25
    season = place.mean_c - place.season_c * np.cos(angle)
    centre = season + place.spread_c * anomaly
    hours = (np.arange(days * SLOTS) + 0.5) / SLOTS  # days since the first midnight
    smooth = np.interp(hours, np.arange(days) + 0.5, centre)
    swing = place.daily_c * (0.35 + 0.65 * clear) * (0.8 - 0.35 * np.cos(angle))
    temperature = smooth + np.repeat(swing, SLOTS) * np.cos(2 * np.pi * (hours - 15 / 24))

    declination = -0.4091 * np.cos(2 * np.pi * (yearday[_MEMORY_DAYS:] + 10) / 365.25)
    latitude = np.radians(place.latitude)
    half_day = np.arccos(np.clip(-np.tan(latitude) * np.tan(declination), -1, 1)) * 720 / np.pi
    high = np.repeat(np.sin(latitude) * np.sin(declination), SLOTS)
    wide = np.repeat(np.cos(latitude) * np.cos(declination), SLOTS)
    elevation = np.maximum(high + wide * np.cos(2 * np.pi * (hours - 0.5)), 0)
    irradiance = 1000 * elevation * np.repeat(0.25 + 0.7 * clear, SLOTS)
    daily = temperature.reshape(days, SLOTS).mean(axis=1)
    return Weather(temperature, irradiance, daily, 720 - half_day, 720 + half_day)
