"""Deterministic limits on how strongly a condition may act on a denoiser, applied in the forward pass.

Source: DP-aware AdaLN-Zero (arXiv 2602.22610): the condition is projected to a ball, what modulates is limited per
coordinate by M tanh(x / M). A limit shrinks the gradients of rare conditions before DP-SGD clips them; the mechanism and
its epsilon stay as they are. The source gives levels relative to reference magnitudes and no absolute values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

LEVELS = {"loose": 1.0, "medium": 0.9, "tight": 0.75, "too tight": 0.5}        # the source's, times reference magnitudes
SCOPES = {"both": ("c", "gamma", "beta", "alpha"), "c only": ("c",), "modulation only": ("gamma", "beta", "alpha")}


def projected(x: Tensor, most: float | None) -> Tensor:
    """x scaled along its last axis to a norm of at most `most` (None: as it is): 1-Lipschitz."""
    if most is None:
        return x
    return x * (most / x.norm(dim=-1, keepdim=True).clamp(min=most))


def limited(x: Tensor, most: float | None, soft: bool = True) -> Tensor:
    """Every coordinate at most `most` in size: most * tanh(x / most), or a hard clamp (None: as it is)."""
    if most is None:
        return x
    return most * torch.tanh(x / most) if soft else x.clamp(-most, most)


@dataclass(frozen=True)
class _Limits:
    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "soft" and value is not None and not 0 < value < math.inf:
                raise ValueError(f"{type(self).__name__} {item.name} = {value!r} is not a positive number (None: no bound)")


@dataclass(frozen=True)
class AdaLNBound(_Limits):
    """Limits on the conditioning path (DP-aware AdaLN-Zero); None leaves a part unbounded.

    c      ||condition||_2 <= c, by projection
    gamma, beta, alpha   largest absolute scale, shift and gate, per coordinate
    soft   M tanh(x / M), or a hard clamp (the ablation)
    Guarantee: the limits hold in every forward pass, whatever the input; what they imply for gradients: `bound`.

    >>> AdaLNBound(c=4.0, alpha=1.0).scaled(0.5)
    AdaLNBound(c=2.0, gamma=None, beta=None, alpha=0.5, soft=True)
    """

    c: float | None = None
    gamma: float | None = None
    beta: float | None = None
    alpha: float | None = None
    soft: bool = True

    def scaled(self, factor: float) -> AdaLNBound:
        """Every limit times factor: loose 1.0, medium 0.9, tight 0.75, too tight 0.5 of reference magnitudes (LEVELS)."""
        return replace(self, **{name: value * factor for name in SCOPES["both"]
                                if (value := getattr(self, name)) is not None})

    def only(self, scope: str) -> AdaLNBound:
        """The limits of one scope, the others lifted: "both", "c only" or "modulation only"."""
        if scope not in SCOPES:
            raise ValueError(f"scope = {scope!r} is unknown (takes: {', '.join(SCOPES)})")
        return replace(self, **{name: None for name in SCOPES["both"] if name not in SCOPES[scope]})

    def condition(self, c: Tensor) -> Tensor:
        """(B, d) -> (B, d) with norm at most `c`."""
        return projected(c, self.c)

    def limit(self, x: Tensor, name: str) -> Tensor:
        """x with every coordinate at most the limit of `name` ("gamma", "beta" or "alpha")."""
        return limited(x, getattr(self, name), self.soft)


@dataclass(frozen=True)
class CrossAttentionBound(_Limits):
    """The same idea for conditioning by cross-attention, the extension that the source names; None: unbounded.

    context  ||context token||_2, by projection, before keys and values are formed
    value    largest absolute coordinate of the values
    out      largest absolute coordinate of what cross-attention adds to a token
    soft     as for AdaLNBound
    """

    context: float | None = None
    value: float | None = None
    out: float | None = None
    soft: bool = True

    def limit(self, x: Tensor, name: str) -> Tensor:
        """x with every coordinate at most the limit of `name` ("value" or "out")."""
        return limited(x, getattr(self, name), self.soft)
