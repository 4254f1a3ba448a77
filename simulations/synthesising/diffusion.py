"""DP diffusion as a synthesiser: an imputer trained with DP-SGD on weeks, sampled with little or nothing observed.

Its unit is a window, so it is converted before it may stand in a table: a home gives at most `windows` weeks, DP-SGD is
accounted for all of them together under add/remove (PLD), and that is converted to replace-one of a home,
(2 epsilon, (1 + e^epsilon) delta). The noise is calibrated backwards from the target. A record is a chain of weeks: the
first from nothing, each next one given the last day of the one before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedenergy.ids import stream
from fedenergy.privacy.accounting import History, epsilon, to_replace_one
from fedenergy.synthesis.generate import Synthetic
from fedenergy.synthesis.intake import Panel

WEEK, RELATION, UNIT = 7, "replace-one", "household (all of its weeks used)"


@dataclass(frozen=True)
class Diffusion:
    """windows: weeks of a home that are trained on; the rest as in imputation.train and fill. cap_kwh is public."""

    windows: int = 1
    steps: int = 300
    batch: int = 64
    width: int = 32
    depth: int = 2
    rate: float = 2e-3
    sampling_steps: int = 20
    cap_kwh: float = 6.0

    def __post_init__(self) -> None:
        for name in ("windows", "steps", "batch", "width", "depth", "sampling_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"diffusion.{name} = {value!r}; use a whole number of at least 1")


def calibrate(target: float, delta: float, q: float, steps: int, windows: int) -> tuple[float, float]:
    """(sigma, delta of the add/remove statement): the least noise (to 1 %) whose statement, converted, is within target."""
    inner = delta / (1 + math.exp(target / 2))
    low, high = 0.3, 0.6
    while epsilon(high, q, steps, inner, windows=windows) > target / 2:
        low, high = high, 2 * high
        if high > 1e5:
            raise ValueError(f"no noise below 1e5 gives epsilon {target:g} at q = {q:g}, {steps} steps")
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle, q, steps, inner, windows=windows) <= target / 2 else (middle, high)
    return high, inner


def spent(history: History, inner: float, windows: int) -> tuple[float, float]:
    """(epsilon, delta) of a household under replace-one, from the steps that ran."""
    return to_replace_one(history.epsilon(inner, windows=windows), inner)


def synthesise(homes: Panel, how: Diffusion, *, epsilon: float, delta: float, seed: int, count: int = 0) -> Synthetic:
    """`count` records (0: as many as homes) over the homes' window; epsilon infinite: trained without noise."""
    import torch

    from fedenergy import imputation as imp

    torch.set_num_threads(1)
    windows, per_day = _weeks(homes, how.windows), homes.per_day
    length = WEEK * per_day
    q = min(1.0, how.batch / len(windows))
    private = math.isfinite(epsilon)
    sigma, inner = calibrate(epsilon, delta, q, how.steps, how.windows) if private else (None, delta)
    net = imp.DiTConfig(length, 1, width=how.width, depth=how.depth, heads=2, patch=per_day)
    masks = imp.mixed(imp.points(0.99), imp.suffix(6 * per_day))    # almost nothing seen; the first day seen
    model = imp.train(imp.Windows(np.minimum(windows, how.cap_kwh), per_day), None, imp.Objective("x0"),
                      imp.DPSGD(clip=1.0, sigma=sigma, delta=inner) if private else None, steps=how.steps, seed=seed,
                      batch=min(how.batch, len(windows)), rate=how.rate, net=net, masks=masks, limits=(0.0, how.cap_kwh),
                      ema=0.99)
    count = count or len(homes.ids)
    week = np.full((count, length), np.nan)
    record = np.empty((count, 0))
    while record.shape[1] < homes.values.shape[1]:
        filled = imp.fill(model, week, samples=1, steps=how.sampling_steps, seed=seed + record.shape[1]).mean[:, :, 0]
        record = np.concatenate([record, filled[:, per_day if record.shape[1] else 0:]], axis=1)
        week = np.full((count, length), np.nan)
        week[:, :per_day] = record[:, -per_day:]
    if private:
        cost, within = spent(model.history, inner, how.windows)
        said = (f"epsilon {cost:.4g}, delta {within:.2g} per {UNIT}, {RELATION} (converted from {how.windows} windows of "
                "a home "
                f"under add/remove); {model.privacy.noise}")
    else:
        said = "none: trained without noise, epsilon = infinity"
    nothing = np.full(count, -1)
    return Synthetic(np.maximum(record[:, :homes.values.shape[1]], 0.0), tuple(f"syn-{i + 1:06d}" for i in range(count)),
                     homes.start, homes.step_minutes, "private" if private else "curator", "dp_diffusion", "", said, nothing,
                     nothing, (), {"homes": len(homes.ids)})


def _weeks(homes: Panel, windows: int) -> np.ndarray:
    """(N windows, T) weeks of every home, drawn by a stream that knows no reading; without overlap."""
    weeks = homes.days // WEEK
    if windows > weeks:
        raise ValueError(f"diffusion.windows = {windows}, but a record of {homes.days} days holds {weeks} weeks")
    cut = homes.values[:, :weeks * WEEK * homes.per_day].reshape(len(homes.ids), weeks, -1)
    picked = np.stack([np.sort(stream(0, "study.weeks", home).permutation(weeks)[:windows]) for home in homes.ids])
    return np.take_along_axis(cut, picked[:, :, None], axis=1).reshape(-1, cut.shape[2])
