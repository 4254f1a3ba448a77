"""What switches on in a simulated home, and when.

Each device turns one day's uniforms into events (events.py). The uniforms are drawn in one block per day, so a longer
record begins with the shorter one.
"""

from __future__ import annotations

import numpy as np

from fedenergy.households.archetypes import APPLIANCES, Home
from fedenergy.households.events import Events
from fedenergy.households.occupancy import PRESENCE_DRAWS, Days, Presence
from fedenergy.households.weather import SLOT_MINUTES, SLOTS

HEATING, FRIDGE, FAN, OVEN, WASHER, DRYER, COOLER = range(len(APPLIANCES))
OTHER = len(APPLIANCES)  # lights, electronics, kettle, shower, standby: metered, never explained
_CYCLES = 40             # most compressor cycles in a day
_COLUMNS = {"presence": PRESENCE_DRAWS, "fridge": 2 * _CYCLES, "cooler": 2 * _CYCLES, "heat": 2 * SLOTS, "air": SLOTS,
            "fan": 9, "oven": 12, "laundry": 9, "kettle": 21, "shower": 20, "meals": 12, "lights": 4, "screens": 8,
            "dishwasher": 3, "errands": 16, "night": 3}
_OFFSETS = dict(zip(_COLUMNS, np.cumsum([0, *_COLUMNS.values()]).tolist()))
DAY_DRAWS = sum(_COLUMNS.values())


def home_energy(home: Home, days: Days, u: np.ndarray, steps: int, step_minutes: int) -> np.ndarray:
    """Energy of a home, (8, steps) whole watt-minutes: the seven appliances in order, then everything else.

    u (D, DAY_DRAWS) uniforms, one row per day.
    """
    draw = {name: u[:, first:first + _COLUMNS[name]] for name, first in _OFFSETS.items()}
    events = Events(OTHER + 1)
    presence = Presence(home, days, draw["presence"])
    dinner = presence.dinner(home, draw["meals"])
    if home.owned["Fridge"]:
        _compressor(events, FRIDGE, days, draw["fridge"], home.between("fridge", 75, 155),
                    home.between("fridge_duty", 0.26, 0.48), 18 + int(20 * home.traits["fridge_rate"]))
    if home.owned["Cooler"]:
        _compressor(events, COOLER, days, draw["cooler"], home.between("cooler", 40, 75), 0.3, 24)
        _air_cooler(events, home, days, presence, draw["air"])
    _heating(events, home, days, presence, draw["heat"])
    if home.owned["Fan"]:
        _fan(events, home, days, presence, dinner, draw["fan"])
    if home.owned["Oven"]:
        _oven(events, home, days, presence, dinner, draw["oven"])
    _laundry(events, home, days, presence, draw["laundry"])
    _lights_and_screens(events, home, days, presence, draw["lights"], draw["screens"])
    _kitchen_and_bath(events, home, days, presence, dinner, draw)
    events.add(OTHER, days.midnight[:1], 1440 * days.midnight.size, home.standby_watts)
    return events.watt_minutes(steps, step_minutes)


def _compressor(events, channel, days, u, watts, duty, cycles) -> None:
    """A cold appliance: `cycles` runs a day, longer on warm days."""
    length = 1440 / cycles
    warmth = 1 + 0.018 * (days.weather.daily - 11)
    minutes = duty * length * warmth[:, None] * (0.7 + 0.6 * u[:, :cycles])
    start = days.midnight[:, None] + (np.arange(cycles) + 0.35 * u[:, _CYCLES:_CYCLES + cycles]) * length
    events.add(channel, start, np.minimum(minutes, 0.6 * length) + 0.5, watts)


def _heating(events, home, days, presence, u) -> None:
    """Space heating from a heat balance: what holds the set point against the weather, within the heater's power.

    Indoor temperature follows the set point with a lag of five hours (quasi-steady, so no step-by-step loop);
    power = loss * (indoor - outdoor) + capacity * change - gains. Panels and a boiler's pump run for that share of
    each half hour; storage heaters charge at night what the day is forecast to need.
    """
    season = days.weather.daily < home.between("season", 13.5, 16.5)
    loss = home.heat_loss_w_per_k
    gains = 150 + 90 * home.occupants
    electric = home.owned["Heating"]
    if electric and home.storage:
        need = loss * (home.comfort_c - 1 - days.weather.daily) - gains  # (D,) W over the day to come
        heater = 1500 + 50 * home.floor_m2 * home.between("heater", 0.6, 1.0)
        minutes = np.clip(need * 1440 / heater, 0, 420) * season * (0.3 + 0.7 * presence.here)
        events.add(HEATING, days.midnight - 30 + 75 * home.traits["timer"], minutes, heater)
        return
    present = presence.slots(lead=45)
    set_point = np.where(present, home.comfort_c, home.comfort_c - 3)
    lag = np.exp(-np.arange(24) / 10)
    padded = np.concatenate([np.full(23, set_point[0]), set_point])
    indoor = np.convolve(padded, lag / lag.sum(), "valid")  # (D * 48,)
    capacity = 26 * loss  # Wh/K: a time constant of 26 hours
    change = np.diff(indoor, prepend=indoor[:1]) * SLOTS / 24
    demand = loss * (indoor - days.weather.temperature) + capacity * change - gains
    if electric:
        power = watts = home.between("heater", 2500, 5000)
        share = 1.0
    else:  # the boiler burns gas; its pump and fan run a little longer than the flame
        power, share = 9000.0, 1.6
        watts = home.between("heater", 70, 150)
        _room_heater(events, home, days, presence, u)
    run = np.clip(share * demand / power, 0, 1) * np.repeat(season, SLOTS)
    minutes = np.floor(run * SLOT_MINUTES + u[:, :SLOTS].ravel())  # dithered: the mean is exact
    start = days.midnight[0] + np.arange(minutes.size) * SLOT_MINUTES + u[:, SLOTS:].ravel() * (SLOT_MINUTES - minutes)
    events.add(HEATING, start, minutes, watts)


def _room_heater(events, home, days, presence, u) -> None:
    """A portable heater in the evening, and on days at home, in a third of the homes that burn gas."""
    if home.traits["heater"] > 0.35:
        return
    cold = np.clip((home.between("season", 11, 15) - days.weather.daily) / 8, 0, 1.2) * presence.here * presence.lively
    cold = np.minimum(cold, 1)
    watts = 350 + 2300 * home.traits["heater"]
    evening = np.maximum(presence.back, 840)
    events.add(HEATING, presence.clock + evening + 60 * u[:, 0], (presence.bed - evening) * cold * u[:, 1], watts)
    events.add(HEATING, presence.clock + presence.wake + 10, 0.5 * presence.morning * cold * u[:, 2], 0.6 * watts)


def _air_cooler(events, home, days, presence, u) -> None:
    """A portable air cooler in a fifth of the homes with a Cooler: from 23 degC outdoors while someone is there."""
    if home.traits["air_cooler"] > 0.2 or days.weather.temperature.max() < 23:
        return
    run = np.clip((days.weather.temperature - 22) / 6, 0, 1) * presence.slots()
    minutes = np.floor(run * SLOT_MINUTES + u.ravel() * (run > 0))
    events.add(COOLER, days.midnight[0] + np.arange(minutes.size) * SLOT_MINUTES, minutes, 900)


def _fan(events, home, days, presence, dinner, u) -> None:
    """Extractor fans with bath and dinner; a table fan on warm evenings."""
    watts = home.between("fan", 30, 110)
    start = np.stack([presence.wake + 10 + 40 * u[:, 0], dinner - 5, presence.bed - 30 - 120 * u[:, 1]], axis=1)
    minutes = (15 + 30 * u[:, 2:5]) * (u[:, 5:8] < [0.8, 0.7, 0.5]) * presence.here[:, None]
    events.add(FAN, presence.clock[:, None] + start, minutes, watts)
    warm = np.maximum(days.weather.daily - 18, 0) * 60 * u[:, 8] * presence.here
    events.add(FAN, presence.clock + presence.bed - warm.clip(0, 420), warm.clip(0, 420), watts)


def _oven(events, home, days, presence, dinner, u) -> None:
    """Preheat, then short bursts that hold the temperature; ready for dinner."""
    rate = home.between("oven_rate", 0.1, 0.45) * np.where(days.off, 1.35, 1.0)
    uses = (u[:, 0] < rate) * presence.here
    watts = home.between("oven", 1900, 2600)
    preheat = 9 + 5 * u[:, 1]
    start = presence.clock + dinner - 25 + 20 * u[:, 2]
    events.add(OVEN, start, preheat * uses, watts)
    count = 2 + 5 * u[:, 3]
    bursts = np.arange(6)
    held = (bursts < count[:, None]) * uses[:, None] * (2.6 + 2.0 * u[:, 4:10])
    events.add(OVEN, (start + preheat + 5)[:, None] + 8 * bursts, held, watts)


def _laundry(events, home, days, presence, u) -> None:
    """A washing machine's heat, drum and spin; then, where there is one, often the dryer, more so in cold weather."""
    if not home.owned["Washing Machine"]:
        return
    rate = (0.10 + 0.11 * home.occupants) * home.between("washer_rate", 0.7, 1.3) * np.where(days.off, 1.35, 0.85)
    uses = (u[:, 0] < np.minimum(rate, 0.95)) * presence.here
    start = presence.clock + presence.moment(0.9 * u[:, 1:2])[:, 0]
    heat, drum = 9 + 13 * u[:, 2], 40 + 35 * u[:, 3]
    events.add(WASHER, start, heat * uses, home.between("washer", 1800, 2200))
    events.add(WASHER, start + heat, drum * uses, 160)
    events.add(WASHER, start + heat + drum, 8 * uses, 420)
    if not home.owned["Dryer"]:
        return
    dries = uses * (u[:, 4] < np.clip(0.75 - 0.025 * (days.weather.daily - 8), 0.3, 0.85))
    load_in = start + heat + drum + 12 + 40 * u[:, 5]
    hot = 35 + 35 * u[:, 6]
    watts = home.between("dryer", 1900, 2500)
    events.add(DRYER, load_in, hot * dries, watts)
    events.add(DRYER, load_in + hot, 10 * dries, 250)


def _lights_and_screens(events, home, days, presence, u, v) -> None:
    """Lights while it is dark and someone is up; computers by day; television in the evening."""
    p, here = presence, presence.here
    rise, fall = days.weather.sunrise + days.clock + 25, days.weather.sunset + days.clock - 35
    glow = home.between("lights", 45, 140) * home.use * (0.6 + 0.4 * p.lively)
    events.add(OTHER, p.clock + p.wake, (np.minimum(p.leave, rise) - p.wake) * here, glow * (0.3 + 0.4 * u[:, 0]))
    lit = np.maximum(p.back, fall)
    events.add(OTHER, p.clock + lit, (p.bed - lit) * here, glow * (0.7 + 0.6 * u[:, 1]))
    afternoon = np.maximum(p.wake, fall)  # those who are in when it gets dark, before they go out
    events.add(OTHER, p.clock + afternoon, (p.leave - afternoon) * here, glow * (0.7 + 0.6 * u[:, 2]))
    work = home.use * 115 * p.lively
    events.add(OTHER, p.clock + p.wake + 15, (p.leave - p.wake - 15) * here, work * (0.3 + 1.1 * v[:, 0]))
    events.add(OTHER, p.clock + p.back, (p.bed - p.back) * here, work * (0.1 + 0.6 * v[:, 1]))
    if home.occupants > 1:  # not everybody is out
        share = home.use * home.between("company", 60, 500) * (v[:, 6] < 0.75) * (0.5 + v[:, 7])
        events.add(OTHER, p.clock + p.leave, (p.back - p.leave) * here, share * p.lively)
    screen = home.between("television", 25, 80) * home.use**0.5 * p.lively
    on = np.maximum(p.back + 20, 1080 + 90 * v[:, 2])
    events.add(OTHER, p.clock + on, (p.bed - 60 * v[:, 3] - on) * here, screen)
    left_on = (v[:, 4] < 0.5) * here  # a screen, a lamp or a charger that stays on into the night
    events.add(OTHER, p.clock + p.bed, left_on * 420 * v[:, 5], 0.8 * screen)


def _kitchen_and_bath(events, home, days, presence, dinner, draw) -> None:
    """Kettle, breakfast, hob, microwave, dishwasher, electric shower, odd jobs; an immersion heater on a timer."""
    p, here = presence, presence.here[:, None]
    clock = p.clock[:, None]
    u = draw["kettle"]
    rate = ((0.22 + 0.09 * home.occupants) * p.lively)[:, None]
    events.add(OTHER, clock + p.moment(u[:, :7]), (1.8 + 2.2 * u[:, 7:14]) * (u[:, 14:] < rate) * here, 2700)
    u = draw["meals"]
    start = np.stack([p.wake + 15 + 20 * u[:, 2], dinner, dinner + 10 * u[:, 3]], axis=1)
    electric_hob = home.traits["hob"] < 0.5
    minutes = np.stack([4 + 5 * u[:, 4], 10 + 22 * u[:, 5], 4 + 5 * u[:, 6]], axis=1)
    chance = np.array([0.4, 0.85 * electric_hob, 0.45])
    watts = np.array([1100.0, 550 + 150 * home.occupants, 1250.0])
    events.add(OTHER, clock + start, minutes * (u[:, 7:10] < chance) * here, watts)
    lunch = 680 + 270 * u[:, 10]
    there = ((lunch > p.wake) & (lunch < p.leave) | (lunch > p.back) | (home.occupants > 2)) * p.here
    events.add(OTHER, p.clock + lunch, (8 + 50 * u[:, 11]) * there, 450 + 100 * home.occupants)
    if home.traits["shower"] < 0.2:
        morning, moment, minutes, taken = (draw["shower"][:, first:first + home.occupants] for first in (0, 5, 10, 15))
        when = np.where(morning < 0.6, (p.wake + 5)[:, None] + 80 * moment, (p.bed - 20)[:, None] - 200 * moment)
        events.add(OTHER, clock + when, (3.5 + 4 * minutes) * (taken < 0.7) * here, 8200)
    if home.traits["dishwasher"] < 0.38:
        u = draw["dishwasher"]
        uses = (u[:, 0] < 0.25 + 0.12 * home.occupants) * p.here
        start = p.clock + dinner + 40 + 260 * u[:, 1]
        for after, minutes, watts in ((0, 16, 1900), (16, 45, 70), (61, 12, 1900)):
            events.add(OTHER, start + after, minutes * uses, watts)
    u = draw["errands"]
    minutes = (8 + 110 * u[:, 8:12] ** 2) * (u[:, 12:16] < 0.5 * p.lively[:, None])
    watts = (120 + 900 * u[:, 4:8] ** 2) * min(home.use, 2.0)
    events.add(OTHER, clock + p.moment(u[:, :4]), minutes * here, watts)
    if home.traits["immersion"] < (0.4 if home.owned["Heating"] else 0.02):
        u = draw["night"]
        events.add(OTHER, days.midnight - 30 + 120 * home.traits["timer"], (25 + 45 * u[:, 0]) * p.here, 2800)
