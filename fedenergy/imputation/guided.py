"""A dp_gp that tells the network above it all that it knows: its filling, how unsure it is, and the window in its own units.

The residual is then learned in units of sqrt(standard deviation): between plain errors, where a few heavy windows decide,
and standardised ones, where errors of idle hours count like those of dinner. All of it is computed from the window's
observed values and the released numbers: free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedenergy.imputation.base import Cues
from fedenergy.imputation.dp_gp import DpGp, conditional
from fedenergy.imputation.dp_gp_release import Spent
from fedenergy.imputation.homes import RELATION, Homes

ARRAYS, FIELDS = ("mean", "scale", "correlation"), ("phase", "low", "cap", "transform", "level")
SHARP = 9.0                     # brings a typical standard deviation over the cap near 1


@dataclass(frozen=True, eq=False)
class Guided:
    """Satisfies base.Guide.

    homes  None, or what sets homes apart: windows of a home that it names are then filled by that home's law
    """

    gp: DpGp
    homes: Homes | None = None

    name, columns = "dp_gp guided", 5

    @property
    def note(self) -> str:
        """For a statement over it; what it knows of homes by name is a step of that statement's history (joint.begun)."""
        if self.homes is None or not self.homes.rho:
            return self.gp.note
        cost = (f"zCDP rho {self.homes.rho:.4g}, counted as the first step ({RELATION})" if math.isfinite(self.homes.rho)
                else "no privacy")
        return "; ".join(filter(None, [self.gp.note, f"homes' profiles: {cost}", self.homes.noise]))

    @property
    def privacy(self) -> Spent:
        """What the filling cost without homes' names."""
        return self.gp.privacy

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray | None = None,
             point: str = "mean") -> np.ndarray:
        """See DpGp.fill."""
        return self.gp.fill(values, observed, time_of_day, point)

    def laws(self, starts: np.ndarray, homes: Sequence[str] | None) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """As DpGp.laws, the mean (n, T) by window."""
        if self.homes is None or homes is None:
            known, own = np.zeros(len(starts), bool), np.zeros((len(starts), len(self.gp.mean)))
        else:
            known, own = self.homes.of(homes)
        for gp, at in ((self.gp, np.flatnonzero(~known)), (self._within, np.flatnonzero(known))):
            for rows, mu, cov in gp.laws(starts[at]) if len(at) else ():
                clock = (starts[at[rows], None] + np.arange(gp.length)) % len(gp.mean)
                yield at[rows], mu + np.take_along_axis(own[at[rows]], clock, axis=1), cov

    @property
    def _within(self) -> DpGp:
        return self.gp if self.homes is None else replace(self.gp, correlation=self.homes.correlation)

    def guide(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray | None = None,
              homes: Sequence[str] | None = None) -> Cues:
        """See base.Guide; columns: the window in the base's standard units (filled where hidden), its standard deviation
        there, the level, the standard deviation in original units, how unusual the observed part is."""
        gp = self.gp
        x, seen, starts = gp.read(values, observed, time_of_day)
        mean, spread, columns = np.empty_like(x), np.empty_like(x), np.empty((*x.shape, self.columns), np.float32)
        for rows, mu, cov in self.laws(starts, homes):
            m, variance = conditional(mu.astype(np.float32), cov.astype(np.float32), x[rows].astype(np.float32), seen[rows])
            scale = np.sqrt(np.diag(cov))
            mean[rows] = gp.back(m, variance)
            if gp.transform == "sqrt":
                spread[rows] = np.sqrt(4 * m**2 * variance + 2 * variance**2)
            else:
                spread[rows] = np.sqrt(variance) * (gp.cap - gp.low)
            level = np.where(seen[rows], x[rows], m)
            z = (level - mu) / scale
            unusual = np.sqrt(np.where(seen[rows], z**2, 0.0).sum(1) / np.maximum(seen[rows].sum(1), 1))
            columns[rows] = np.stack([z, np.sqrt(variance) / scale, level, SHARP * spread[rows] / (gp.cap - gp.low),
                                      np.broadcast_to(unusual[:, None], z.shape)], -1)
        shape = np.shape(values)
        return Cues(np.where(observed, values, mean.reshape(shape)), spread.reshape(shape), columns)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """(arrays, JSON values) from which `from_state` makes an equal one: the same fillings to the last bit."""
        arrays = {name: getattr(self.gp, name) for name in ARRAYS}
        body = {**{name: getattr(self.gp, name) for name in FIELDS}, "privacy": asdict(self.gp.privacy)}
        if self.homes is not None:
            arrays |= {"profiles": self.homes.profiles, "within": self.homes.correlation}
            body["homes"] = {"names": list(self.homes.names), "rho": "infinite" if math.isinf(self.homes.rho)
                             else self.homes.rho, "noise": self.homes.noise}
        return arrays, body

    @classmethod
    def from_state(cls, arrays: Mapping[str, np.ndarray], body: Mapping[str, Any]) -> Guided:
        """The inverse of `state`."""
        gp = DpGp(*(arrays[name] for name in ARRAYS), Spent(**body["privacy"]), **{k: body[k] for k in FIELDS})
        if (homes := body.get("homes")) is None:
            return cls(gp)
        return cls(gp, Homes(tuple(homes["names"]), arrays["profiles"], arrays["within"], float(homes["rho"])
                             if homes["rho"] != "infinite" else math.inf, homes["noise"]))
