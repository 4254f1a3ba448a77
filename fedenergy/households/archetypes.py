"""Who lives in a simulated home: routines, size, habits and what the home owns.

Orders of magnitude (ownership, powers, routines) are the author's, then scaled so that 100 homes without any setting
resemble Low Carbon London's: simulations/simulator_vs_london.py measures how closely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

APPLIANCES = ("Heating", "Fridge", "Fan", "Oven", "Washing Machine", "Dryer", "Cooler")
OWNERSHIP = {"Heating": 0.14, "Fridge": 0.99, "Fan": 0.8, "Oven": 0.65, "Washing Machine": 0.95, "Dryer": 0.35,
             "Cooler": 0.35}


@dataclass(frozen=True)
class Routine:
    """Median clock times of a day, minutes after its midnight (beyond 1440: the next morning)."""

    wake: int
    leave: int
    back: int
    bed: int


@dataclass(frozen=True)
class Archetype:
    """A kind of household.

    share          weight in the default mix
    occupants      smallest and largest number of people
    work, off      routines of working days and of days off
    out_work, out_off  chance that the main absence happens; else there is only an errand of about an hour
    dinner         minutes after midnight
    use            factor on lights, electronics and standby
    spread         standard deviation of clock times, minutes
    """

    share: float
    occupants: tuple[int, int]
    work: Routine
    off: Routine
    out_work: float
    out_off: float
    dinner: int = 1105
    use: float = 1.0
    spread: float = 35.0


ARCHETYPES = {
    "early commuter": Archetype(
        0.13, (1, 3), Routine(345, 410, 1010, 1370), Routine(450, 690, 900, 1410), out_work=0.77, out_off=0.35),
    "office commuter": Archetype(
        0.21, (1, 3), Routine(445, 520, 1075, 1440), Routine(510, 720, 960, 1470), out_work=0.7, out_off=0.4),
    "family": Archetype(
        0.20, (3, 5), Routine(405, 515, 940, 1425), Routine(465, 690, 900, 1430), 0.5, 0.35, dinner=1060, use=1.05),
    "home worker": Archetype(
        0.12, (1, 3), Routine(450, 740, 800, 1450), Routine(510, 700, 930, 1470), 0.25, 0.4, dinner=1120, use=1.15),
    "retired": Archetype(
        0.13, (1, 2), Routine(430, 630, 780, 1400), Routine(440, 640, 780, 1400), 0.35, 0.3, 1040, 0.95, spread=25),
    "night shift": Archetype(
        0.05, (1, 2), Routine(850, 1260, 1840, 1960), Routine(650, 900, 1100, 1560), 0.85, 0.4, dinner=1070),
    "late sharers": Archetype(
        0.08, (2, 4), Routine(540, 690, 1050, 1545), Routine(620, 800, 1080, 1590), 0.5, 0.35, 1180, 1.1, spread=60),
    "low use": Archetype(
        0.08, (1, 1), Routine(460, 520, 1170, 1420), Routine(530, 660, 1110, 1430), 0.85, 0.7, dinner=1170, use=0.4),
}

_NORMAL = NormalDist()
_DRAWS = 40  # uniforms that a home's lasting traits may use; spare ones keep later streams in place


@dataclass(frozen=True)
class Home:
    """The lasting traits of one simulated home (inside view: never released).

    floor_m2      floor area; heat_loss_w_per_k and comfort_c describe its heating
    use           factor on lights, electronics and standby
    owned         appliance -> True; "Heating" means electric space heating (else a gas boiler's pump is all it uses)
    storage       electric heating by night storage rather than by panels on a thermostat
    traits        spare uniforms by name for powers, durations and rates
    """

    archetype: str
    occupants: int
    floor_m2: float
    heat_loss_w_per_k: float
    comfort_c: float
    use: float
    owned: Mapping[str, bool]
    storage: bool
    standby_watts: int
    traits: Mapping[str, float]

    def between(self, trait: str, low: float, high: float) -> float:
        """A lasting value of this home, uniform between two bounds."""
        return low + (high - low) * self.traits[trait]


_TRAITS = ("early", "fridge", "fridge_rate", "fridge_duty", "fan", "oven", "oven_rate", "washer", "washer_rate",
           "dryer", "cooler", "air_cooler", "heater", "season", "timer", "shower", "dishwasher", "hob", "lights",
           "television", "trips", "offset", "immersion", "lively", "company")


def draw_home(rng: np.random.Generator, mix: Mapping[str, float], ownership: Mapping[str, float]) -> Home:
    """Draw one home's traits: 40 uniforms of rng, whatever comes out, so that what is drawn next stays in place.

    mix is archetype -> weight; ownership is appliance -> share of homes, and a larger share only adds owners.
    """
    uniforms = rng.random(_DRAWS)
    first = iter(uniforms[:8].tolist())
    point, name = next(first) * sum(mix.values()), ""
    for name, weight in mix.items():  # noqa: B007  the last name stands where rounding leaves a crumb
        point -= weight
        if point < 0:
            break
    kind = ARCHETYPES[name]
    low, high = kind.occupants
    occupants = low + int(next(first) * (high - low + 1))
    floor = 32 + 20 * occupants + 35 * next(first)
    electric = (owned_draws := uniforms[8:15].tolist())[0] < ownership["Heating"]
    per_m2 = 0.7 + 0.6 * next(first) if electric else 1.6 + 1.4 * next(first)  # W/K: electric ones are flats
    comfort = 19.0 + 2.5 * next(first)
    normal = [_NORMAL.inv_cdf(min(max(next(first), 1e-6), 1 - 1e-6)) for _ in range(2)]
    storage = next(first) < 0.55
    use = kind.use * (0.40 + 0.23 * occupants) * float(np.exp(0.48 * normal[0]))
    traits = dict(zip(_TRAITS, uniforms[15:].tolist(), strict=True))
    standby = round((4 + 72 * use) * float(np.exp(0.65 * normal[1])))
    owned = {appliance: draw < ownership[appliance] for appliance, draw in zip(APPLIANCES, owned_draws)}
    return Home(name, occupants, floor, per_m2 * floor, comfort, use, owned, storage, standby, traits)
