"""The imputer to take when nothing else is known: chosen from public quantities, fitted within one epsilon.

    found = imp.default.fit(train, epsilon=2.0, delta=1e-5, limits=(0.0, 3.0), kind="homes")
    mean, median = found.points(values, observed, time_of_day);  print(found.privacy)

For homes' use of energy in windows of whole days: dp_gp, drawn towards simulated homes as far as its own noise says, or
the simulated homes' alone where it would be all noise. For anything else: straight lines corrected by kriging and by the
window's own evidence (blend.py). On top, where asked for: a residual diffusion trained on
simulated homes, whose last layer may be tuned privately, or which knows homes by name (homes.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.imputation import blend, dp_gp, joint, packaged
from fedenergy.imputation import homes as homes_of
from fedenergy.imputation.dp_gp import DpGp
from fedenergy.imputation.dp_gp_release import Spent
from fedenergy.imputation.guided import Guided
from fedenergy.imputation.model import Model
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.task import Scale, Windows
from fedenergy.progress import Progress, SilentProgress

KINDS = ("homes", "other")
DISTANCE = 0.03         # relative noise at which simulated homes' correlations are trusted as much as the private ones
BASE_SHARE = 0.7        # of epsilon, for the base where a tuned diffusion takes the rest
HOMES_SHARE = 0.4       # of epsilon, for the base where homes' own profiles take the rest
AS_NOISY = 7.0          # rho at which the profiles of simulated homes of 60 windows are as noisy as those of 127 at rho 1.6
UNIT = 0.3              # of the residual over a guide
HEAD = "^out"
FREE = "free: no record was read"
AS_IT_COMES = "; the diffusion over it was trained on simulated homes only: free"


@dataclass(frozen=True, eq=False)
class Default:
    """What was chosen and fitted.

    choice   "dp_gp", "simulated" or "blend"
    base     the filling below; model: the diffusion over it, or None
    privacy  the statement, as text; epsilon: replace-one, of one window (or home), 0 where no record was read
    phase    step of the day at which the training windows start; None: at several
    """

    choice: str
    base: DpGp | blend.Blend
    model: Model | None
    epsilon: float
    privacy: str
    phase: int | None = 0

    def points(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray | None = None, *,
               homes: Sequence[str] | None = None, samples: int = 2, seed: int = 0,
               progress: Progress | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(mean, median) fillings, as DpGp.points. With a diffusion the mean is its x0 at the last time step over `samples`
        draws, and the median the base's, moved as the mean was. homes: of each window, for a diffusion fitted `by_home`.
        time_of_day None: windows start where the training windows did."""
        if time_of_day is None and isinstance(self.base, DpGp):
            if self.phase is None:
                raise ValueError("the training windows start at several times of day: give time_of_day (n, T)")
            time_of_day = np.tile((self.phase + np.arange(np.shape(values)[1])) % len(self.base.mean), (len(values), 1))
        mean, median = self.base.points(values, observed, time_of_day)
        if self.model is None:
            return mean, median
        from fedenergy.imputation.sample import fill

        windows = Windows(np.where(observed, values, np.nan), self.model.setup.steps_per_day,
                          None if time_of_day is None else np.asarray(time_of_day)[:, 0],
                          None if homes is None else tuple(homes))
        better = fill(self.model, windows, samples=samples, steps=1, seed=seed, progress=progress).mean.reshape(mean.shape)
        low = np.array(self.model.setup.scale.low)
        return better, np.where(observed, values, np.maximum(median + better - mean, low))


def choose(n: int, epsilon: float, delta: float = 1e-5, *, kind: str = "other", length: int = 96,
           steps_per_day: int = 24) -> str:
    """"dp_gp", "simulated" or "blend", from public quantities only.

    >>> choose(12_195, 2.0, kind="homes", steps_per_day=48), choose(98, 2.0, kind="homes", steps_per_day=48)
    ('dp_gp', 'simulated')
    >>> choose(127, 10.0), choose(15_132, 1.0, steps_per_day=1440)
    ('blend', 'blend')
    """
    if kind not in KINDS:
        raise ValueError(f"kind = {kind!r} is unknown (takes: {', '.join(KINDS)})")
    if kind == "other" or length % steps_per_day:
        return "blend"
    if dp_gp.choose_base(n, epsilon, delta, length=length) == "dp_gp":
        return "dp_gp"
    return "blend" if simulated_homes(length, steps_per_day) is None else "simulated"


def fit(train: Windows | np.ndarray, epsilon: float, delta: float = 1e-5, *, limits: tuple[float, float],
        kind: str = "other", unit: str = "window", residual: Model | None = None, tune: int = 0, batch: int = 1024,
        rate: float = 3e-3, clip: float = 0.5, by_home: bool = False, noise: str = "simulation", seed: int = 0,
        progress: Progress | None = None) -> Default:
    """Choose and fit within (epsilon, delta), replace-one.

    epsilon   inf: the twin without noise; limits: public (low, high); kind: "homes" (kWh per step) or "other"
    unit      "window" or "household" (train.homes needed)
    residual  a diffusion from `pretrained`, used over dp_gp and simulated; None: the base alone
    tune      0: the diffusion as it comes; else so many steps of DP-SGD on its last layer (window unit, dp_gp), of batches
              of `batch` records: the base then takes BASE_SHARE of epsilon, and sigma is calibrated for both together
    clip, rate  of these steps
    by_home   the diffusion also knows homes by name: each one's own profile, released at window unit (see homes.py); the
              base then takes HOMES_SHARE of epsilon (window unit, no `tune`). Over simulated no home is known
    """
    if by_home and (residual is None or tune or unit != "window"):
        raise ValueError("by_home = True conditions a residual diffusion that is not tuned, at window unit: give residual, "
                         "leave tune at 0 and unit at \"window\"")
    Scale.given(limits, 1)                              # refuses what are no limits
    windows = Windows.of(train)
    phase = int(windows.phase[0]) if (windows.phase == windows.phase[0]).all() else None
    n = len(windows) if unit == "window" else len(set(windows.homes or ()))
    choice = choose(n, epsilon, delta, kind=kind, length=windows.length, steps_per_day=windows.steps_per_day)
    if choice == "blend":
        base = blend.fit(windows, epsilon, delta, limits=limits, unit=unit, noise=noise, seed=seed)
        return Default(choice, base, None, base.privacy.epsilon, str(base.privacy), phase)
    if choice == "simulated":
        base = replace(simulated_homes(windows.length, windows.steps_per_day), low=limits[0], cap=limits[1])
        return Default(choice, base, None if residual is None else over(residual, base), 0.0,
                       FREE + (AS_IT_COMES if residual else ""), phase)
    tuned = residual is not None and tune > 0 and unit == "window"
    share = BASE_SHARE if tuned else HOMES_SHARE if by_home else 1.0
    base = towards_simulated(dp_gp.fit(windows, epsilon * share, delta, low=limits[0], cap=limits[1], unit=unit,
                                       noise=noise, seed=seed), windows.steps_per_day)
    if by_home:
        model = over_homes(residual, base, windows, epsilon, delta, noise=noise, seed=seed)
        return Default(choice, base, model, model.total.epsilon, f"{model.total}; {homes_of.RELATION}{AS_IT_COMES}", phase)
    if not tuned:
        return Default(choice, base, None if residual is None else over(residual, base), base.privacy.epsilon,
                       str(base.privacy) + (AS_IT_COMES if residual else ""), phase)
    model = tune_head(over(residual, base), windows, epsilon, delta, steps=tune, batch=min(batch, n), rate=rate, clip=clip,
                      noise=noise, seed=seed, progress=progress)
    return Default(choice, base, model, model.total.epsilon, str(model.total), phase)


def simulated_homes(length: int, steps_per_day: int) -> DpGp | None:
    """The packaged imputer of simulated homes for windows of that many steps: the first so many of its own; None where
    none has that clock or is as long."""
    minutes, rest = divmod(MINUTES_PER_DAY, steps_per_day)
    if rest or length % steps_per_day or minutes not in packaged.steps_packaged():
        return None
    gp = packaged.simulated(minutes)
    return replace(gp, correlation=gp.correlation[:length, :length]) if gp.length >= length else None


def towards_simulated(gp: DpGp, steps_per_day: int) -> DpGp:
    """Its correlations mixed with those of simulated homes, the more the noisier they are: level / (level + DISTANCE) of
    them. Post-processing: free. As it is where no simulated imputer has its steps, length and phase, or noise is absent."""
    other = simulated_homes(gp.length, steps_per_day) if gp.level else None
    if other is None or (other.phase, other.transform) != (gp.phase, gp.transform):
        return gp
    return mixed(gp, other, DISTANCE)


def mixed(gp: DpGp, other: DpGp, distance: float) -> DpGp:
    """gp with level / (level + distance) of the other's correlations; distance 0: as it is."""
    share = gp.level / (gp.level + distance) if distance else 0.0
    return replace(gp, correlation=(1 - share) * gp.correlation + share * other.correlation)


def pretrained(homes: int = 300, days: int = 120, step_minutes: int = 30, *, steps: int = 400, batch: int = 256,
               rate: float = 2e-3, seed: int = 11, width: int = 64, depth: int = 2, patch: int = 8,
               limits: tuple[float, float] = (0.0, 3.0), by_home: bool = False, progress: Progress | None = None) -> Model:
    """A residual diffusion of simulated homes over a dp_gp of simulated homes. Reads no real home.

    by_home  over what is released of simulated homes by name too (homes.py), for `fit(by_home=True)`

    The simulator's powers and habits were scaled by hand to the aggregates of a hundred London homes: on those homes it
    is a prior that knew their totals, not an unseen test.
    """
    from fedenergy.imputation.dit import DiTConfig
    from fedenergy.imputation.masks import blocks, mixed, outage, points
    from fedenergy.imputation.training import train

    windows = packaged.simulated_windows(homes, days, step_minutes, seed)
    gp = replace(dp_gp.fit(windows, math.inf, cap=limits[1], low=limits[0]), privacy=simulated_cost(len(windows)))
    known = homes_of.release(windows, gp, AS_NOISY, seed=seed) if by_home else None
    base = Guided(gp, None if known is None else replace(known, rho=0.0))          # no real home is in it: free
    rates = (0.1, 0.2, 0.3, 0.5, 0.5)
    return train(windows, None, Objective("x0", late=0.5), None, steps=steps, batch=batch, rate=rate, weight_decay=0.0,
                 warmup=30, ema=0.98, seed=seed, base=base, residual_scale=UNIT, limits=limits,
                 masks=mixed(points(rates), blocks(rates), outage(rates)),
                 net=DiTConfig(windows.length, 1, patch=patch, width=width, depth=depth, heads=4), progress=progress)


def simulated_cost(n: int) -> Spent:
    """What fitting to simulated homes costs anybody: nothing."""
    return Spent(0.0, 0.0, 0.0, n, "simulated home", noise="no real home is in it")


def over(residual: Model, base: DpGp) -> Model:
    """The residual's network over another base of the same shape: what it learned on simulated homes, free."""
    if (base.length, base.low, base.cap) != (residual.setup.net.length, residual.setup.scale.low[0],
                                             residual.setup.scale.high[0]):
        raise ValueError(f"the residual was trained for windows of {residual.setup.net.length} steps within "
                         f"{residual.setup.scale.low[0]:g} to {residual.setup.scale.high[0]:g}; the base has {base.length} "
                         f"within {base.low:g} to {base.cap:g}: give the same limits")
    return replace(residual, base=Guided(base))


def over_homes(residual: Model, base: DpGp, windows: Windows, epsilon: float, delta: float, *, noise: str = "simulation",
               seed: int = 0) -> Model:
    """The residual's network over another base and over what is released of the windows' homes (homes.py), base and
    releases together within (epsilon, delta), replace-one a window. Its network costs nothing."""
    rho = None if math.isinf(epsilon) else joint.rest(epsilon, base.privacy.rho, delta)
    known = homes_of.release(windows, base, rho, noise=noise, seed=seed)
    history, privacy = homes_of.stated(known, len(windows), delta, windows.windows_per_home)
    return replace(over(residual, base), base=Guided(base, known), history=history, privacy=privacy, log={})


def tune_head(model: Model, windows: Windows, epsilon: float, delta: float, *, steps: int, batch: int, rate: float,
              clip: float, noise: str = "simulation", seed: int = 0, progress: Progress | None = None) -> Model:
    """Tune the last layer by DP-SGD so that base and steps stay within (epsilon, delta), replace-one.

    One draw a record, at the last time step: the squared error of the conditional mean.
    """
    from fedenergy.imputation.dpsgd import DPSGD
    from fedenergy.imputation.training import train

    privacy = None
    if not math.isinf(epsilon):
        rho = model.base.privacy.rho + joint.released(model.base)
        sigma = joint.calibrate(epsilon, rho, delta, batch / len(windows), steps)
        privacy = DPSGD(clip=clip, sigma=sigma, delta=delta, noise=noise)
    return train(windows, None, Objective("x0", late=1.0), privacy, steps=steps, batch=batch, rate=rate,
                 weight_decay=0.0, ema=0.9, seed=seed, base=model.base, residual_scale=model.setup.residual_scale,
                 start=model, train_only=HEAD, progress=progress or SilentProgress())
