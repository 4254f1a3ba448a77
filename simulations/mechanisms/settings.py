"""What the study runs on: the source's sets cut into windows, their bounds, its grid, its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import fedenergy as fe
from fedenergy.box.policies import ZONE, private_price
from fedenergy.box.policy import Case, Counter, Offer, Refuse
from fedenergy.households.population import Population

MODERATE = 1.05361                            # the source's Figure 3: element 4 of its grid
APPLIANCE, FEATURE_LAG = "appliance", "feature_lag"
DELTA = 1e-5                                  # of the Gaussian noise
PANEL_QUANTILE = 75


def epsilon_grid() -> tuple[float, ...]:
    """The source's ten epsilons.

    >>> epsilon_grid()[4], epsilon_grid()[0], epsilon_grid()[-1]
    (1.05361, 0.1, 20.0)
    """
    return tuple(round(float(value), 6) for value in np.logspace(-1, np.log10(20), 10))


@dataclass(frozen=True)
class Setting:
    """One set with one step and one kind of coordinates.

    dataset       as the source calls it; words: for tables; window_days, count, lags (hours): ours
    clip, clip2   C in l1 and (Gaussian) l2: third quartile of the norms of a public panel, the windows of the set that
                  follow the `count` of the study, rounded to two digits (panel_bounds). Never from the study's windows
    """

    set: str
    step_minutes: int
    window_days: int
    count: int
    lags: tuple[int, ...]
    coordinates: str
    clip: float
    clip2: float

    @property
    def dataset(self) -> str:
        return {"household": "UCI Household Power", "appliances": "UCI Appliances", "bike": "UCI Bike Sharing"}[self.set]

    @property
    def words(self) -> str:
        step = {10: "ten-minute", 60: "hourly"}[self.step_minutes]
        return self.dataset + (f" ({step})" if self.set == "appliances" else "")

    @property
    def key(self) -> str:
        return f"{self.set}-{self.step_minutes}-{self.coordinates.replace('_', '-')}"

    @property
    def unit(self) -> str:
        """Of MAE. Coordinates of weather carry the weather's unit instead of a consumption."""
        return "rentals^2" if self.set == "bike" else "kWh^2" if self.coordinates == APPLIANCE else "kWh x feature"

    def population(self, count: int | None = None) -> dict[str, Any]:
        """The [population] table."""
        features = self.coordinates == FEATURE_LAG or self.set != "household"
        return {"use": "fedenergy:uci_windows", "set": self.set, "window_days": self.window_days,
                "step_minutes": self.step_minutes, "features": features,
                **({} if count is None else {"count": min(count, self.count)})}

    def task(self, trees: int, clip: float | None = None) -> dict[str, Any]:
        """The [task] table."""
        return {"use": "fedenergy:Explain", "lags": list(self.lags), "coordinates": self.coordinates, "trees": trees,
                "clip": self.clip if clip is None else clip}


SETTINGS = (
    Setting("appliances", 10, 3, 36, (1, 6), FEATURE_LAG, 270.0, 120.0),
    Setting("appliances", 60, 3, 36, (1, 3, 6), FEATURE_LAG, 81.0, 26.0),
    Setting("household", 60, 14, 50, (1, 3, 6), FEATURE_LAG, 1600.0, 940.0),
    Setting("bike", 60, 14, 40, (1, 3, 6), FEATURE_LAG, 1.1e7, 8.6e6),
    Setting("appliances", 10, 3, 36, (1, 6), APPLIANCE, 0.22, 0.22),
    Setting("appliances", 60, 3, 36, (1, 3, 6), APPLIANCE, 2.5, 2.5),
    Setting("household", 60, 14, 50, (1, 3, 6), APPLIANCE, 100.0, 71.0),
    Setting("bike", 60, 14, 40, (1, 3, 6), APPLIANCE, 1.1e7, 1.1e7),
)


@dataclass(frozen=True)
class Quoted:
    """A row of the source's Table III."""

    dataset: str
    method: str
    utility: float
    rank: float
    mae: float


TABLE_3 = (
    Quoted("UCI Appliances", "HXAI (same ε)", 0.9999, 0.9991, 0.25),
    Quoted("UCI Bike Sharing", "HXAI (same ε)", 0.9999, 0.9854, 0.25),
    Quoted("UCI Household Power", "HXAI (neg. ε)", 0.9908, 0.4162, 0.22),
    Quoted("UCI Appliances", "Central DP", 0.65, 0.45, 29.45),
    Quoted("UCI Household Power", "Central DP", 0.74, 0.17, 0.45),
)


@dataclass(frozen=True)
class OwnPrice:
    """A policy: the library's BoundedSearch where every home has its own price of privacy. Public: never looks at S.

    price, spread   of the homes' lambda_i, log-normal (private_price); ell: half-width of the interval, in epsilon
    epsilon_min     the least that a home offers (.16 is where the source's negotiation starts)
    """

    price: float = 0.05
    spread: float = 0.5
    ell: float = 1.0
    epsilon_min: float = 0.16

    def __post_init__(self) -> None:
        fe.BoundedSearch(price=self.price, ell=self.ell, epsilon_min=self.epsilon_min)  # its own checks

    def offer(self, case: Case) -> Offer | Counter | Refuse:
        price = private_price(case.agreement.household, self.price, self.spread, 0)
        return fe.BoundedSearch(price=price, ell=self.ell, epsilon_min=self.epsilon_min, utility=ZONE).offer(case)


def summaries(population: Population, task: fe.Explain, first: int = 0, last: int | None = None) -> np.ndarray:
    """(homes, d) noise-free summaries, recomputed off the grid. Inside view: never leaves a box. Too short: zeros."""
    (window,) = task.windows(population, 1, "next_window")
    found, d = [], len(task.coordinate_names(population))
    for home in range(first, len(population) if last is None else last):
        try:
            found.append(task.explainer.summary(population.load(home), slice(*window.rows)).values)
        except ValueError:
            found.append(np.zeros(d))
    return np.array(found)


def panel_bounds(setting: Setting, data: str, trees: int = 100) -> Mapping[str, float]:
    """The bounds of a setting from its public panel: third quartile of the l1 and l2 norms."""
    document = setting.population()
    homes = fe.uci_windows(data, **{name: value for name, value in document.items() if name != "use"})
    task = {name: value for name, value in setting.task(trees).items() if name != "use"}
    values = summaries(homes, fe.Explain(**task), first=setting.count)
    return {name: float(np.percentile(np.linalg.norm(values, norm, axis=1), PANEL_QUANTILE))
            for name, norm in (("clip", 1), ("clip2", 2))}
