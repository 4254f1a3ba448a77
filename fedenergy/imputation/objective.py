"""What the network is asked to predict, how much each time step counts, and where the error is measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import torch

from fedenergy.imputation.schedule import snr

TARGETS = ("eps", "v", "x0")
LOSS_ON = ("missing", "all")
REDUCTIONS = ("mean", "sum")
_WEIGHT = re.compile(r"(none|alpha_bar|static|min_snr)(?:\(([0-9.eE+-]+)\))?")


@dataclass(frozen=True)
class Objective:
    """A diffusion training objective.

    target     "eps", "v" = sqrt(a) eps - sqrt(1 - a) x0, or "x0", a = alpha_bar_t
    weight     of a time step: "none", "alpha_bar" (dynamic), "static(0.6)", "min_snr" or "min_snr(5)"
    loss_on    "missing" positions or "all"
    reduction  "mean" over the counted positions of a record, or "sum"; always within a record, so that a record's loss
               does not depend on the others
    draws      (t, noise, mask) draws averaged within a record, before its clip: free in epsilon
    late       share of the draws that are moved to the last time step, where x0 is the conditional mean: with many of them
               `fill(steps=1)` gives the mean in one pass
    Source: objective-conditioning, equations 3-4; Salimans and Ho 2022 (v); Hang et al. 2023 (min-SNR).

    >>> Objective("v", weight="alpha_bar").name
    'v alpha_bar'
    """

    target: str = "x0"
    weight: str = "none"
    loss_on: str = "missing"
    reduction: str = "mean"
    draws: int = 1
    late: float = 0.0

    def __post_init__(self) -> None:
        for name, value, known in (("target", self.target, TARGETS), ("loss_on", self.loss_on, LOSS_ON),
                                   ("reduction", self.reduction, REDUCTIONS)):
            if value not in known:
                raise ValueError(f"objective {name} = {value!r} is unknown (takes: {', '.join(known)})")
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ValueError(f"objective draws = {self.draws!r} is not a whole number of at least 1")
        if not 0 <= self.late <= 1:
            raise ValueError(f"objective late = {self.late!r} is not a share within [0, 1]")
        _ = self._weight

    @cached_property
    def _weight(self) -> tuple[str, float]:
        match = _WEIGHT.fullmatch(self.weight)
        if match is None:
            raise ValueError(f"objective weight = {self.weight!r} is unknown (takes: none, alpha_bar, static(0.6), "
                             "min_snr, min_snr(5))")
        kind, number = match.group(1), match.group(2)
        if (kind == "static") != (number is not None) and kind != "min_snr":
            raise ValueError(f"objective weight = {self.weight!r}: static takes one number, none and alpha_bar none")
        value = float(number) if number else 5.0
        if not 0 < value < float("inf"):
            raise ValueError(f"objective weight = {self.weight!r}: the number must be positive")
        return kind, value

    @property
    def name(self) -> str:
        """Target and weight, for tables."""
        return self.target if self.weight == "none" else f"{self.target} {self.weight}"

    def weights(self, a: torch.Tensor) -> torch.Tensor:
        """The weight of each time step, from alpha_bar alone: public, whatever the data."""
        kind, value = self._weight
        if kind == "none":
            return torch.ones_like(a)
        if kind == "alpha_bar":
            return a
        if kind == "static":
            return torch.full_like(a, value)
        ratio = snr(a)
        least = ratio.clamp(max=value)
        return {"eps": least / ratio, "v": least / (ratio + 1), "x0": least}[self.target]

    def wanted(self, x0: torch.Tensor, noise: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """The target of (x0, noise) at alpha_bar a (broadcast against them)."""
        if self.target == "eps":
            return noise
        return x0 if self.target == "x0" else a.sqrt() * noise - (1 - a).sqrt() * x0

    def split(self, out: torch.Tensor, x_t: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(x0, noise) that a network output implies at x_t."""
        if self.target == "eps":
            return (x_t - (1 - a).sqrt() * out) / a.sqrt(), out
        if self.target == "x0":
            return out, noise_of(out, x_t, a)
        return a.sqrt() * x_t - (1 - a).sqrt() * out, (1 - a).sqrt() * x_t + a.sqrt() * out

    def losses(self, out: torch.Tensor, x0: torch.Tensor, noise: torch.Tensor, a: torch.Tensor,
               counted: torch.Tensor) -> torch.Tensor:
        """One loss per row.

        out, x0, noise  (B, T, D); a (B,) alpha_bar of each row
        counted         (B, T, D) bool: positions that the loss may look at (missing ones, or all that are known)
        Guarantee: row i depends on row i only. A row without counted positions has loss 0.
        """
        wide = a.view(-1, 1, 1)
        error = (out - self.wanted(x0, noise, wide)).square() * counted
        loss = error.sum((1, 2))
        if self.reduction == "mean":
            loss = loss / counted.sum((1, 2)).clamp(min=1)
        return loss * self.weights(a)


def noised(x0: torch.Tensor, noise: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """x_t = sqrt(a) x0 + sqrt(1 - a) noise (a broadcast against them)."""
    return a.sqrt() * x0 + (1 - a).sqrt() * noise


def noise_of(x0: torch.Tensor, x_t: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """The noise that leads from x0 to x_t."""
    return (x_t - a.sqrt() * x0) / (1 - a).sqrt()
