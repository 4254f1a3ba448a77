"""Learned baselines by name: PatchTST-, iTransformer- and TimesNet-style regressors and a TimeDiT-style denoiser.

`train(..., net="patchtst")` trains one like the DiT: the same masks, per-record losses, engine and privacy statement.
The regressors read (x0 * m, m) only and give the filling in one pass, so that `fill` returns it as the only sample; they
are trained on the squared error at hidden points (target "x0"). "timedit" is a diffusion model (default target "eps").
"dit" is `DiTConfig`. Every trainable tensor is a Linear's, every LayerNorm affine-free, and nothing mixes records.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import nn

from fedenergy.imputation.dit import DiT, DiTConfig
from fedenergy.imputation.learned_nets import ITransformer, PatchTST, TimesNet
from fedenergy.imputation.learned_timedit import TimeDiT
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.task import Windows

REGRESSORS = {"patchtst": PatchTST, "itransformer": ITransformer, "timesnet": TimesNet}
NETS = {**REGRESSORS, "timedit": TimeDiT}
NAMES = ("dit", *NETS)
SIZES = {"patchtst": (128, 3, 16, 2), "itransformer": (256, 2, 8, 2), "timesnet": (64, 2, 1, 1), "timedit": (256, 8, 8, 2)}


@dataclass(frozen=True)
class LearnedConfig:
    """Shape of a learned baseline.

    name              "patchtst", "itransformer", "timesnet" or "timedit"
    length, channels  T and D of a window
    width, depth, heads, ratio   0: the name's default: patchtst 128 x 3, 16 heads, ratio 2; itransformer 256 x 2, 8, 2;
                      timesnet 64 x 2, ratio 1; timedit 256 x 8, 8, 2 (the DiT's). ratio = hidden width of the MLPs / width
    patch             patchtst: steps per patch (16 or the length), half of it apart; not used by the others
    periods           timesnet: public periods in steps; () = (24, 12, 6) where they fit; not used by the others
    extra             further input channels, 0 or D (a base's filling)
    """

    name: str
    length: int = 96
    channels: int = 1
    width: int = 0
    depth: int = 0
    heads: int = 0
    ratio: int = 0
    patch: int = 16
    periods: tuple[int, ...] = ()
    extra: int = 0

    covariates: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.name not in NETS:
            raise ValueError(f"net = {self.name!r} is unknown (takes: {', '.join(NAMES)})")
        for key, value in zip(("width", "depth", "heads", "ratio"), SIZES[self.name]):
            object.__setattr__(self, key, getattr(self, key) or value)
        periods = tuple(self.periods) or periods_within(self.length, 24)
        object.__setattr__(self, "periods", periods if self.name == "timesnet" else ())
        object.__setattr__(self, "patch", min(self.patch, self.length) if self.name == "patchtst" else 1)
        for key in ("length", "channels", "width", "depth", "heads", "ratio", "patch"):
            if getattr(self, key) < 1:
                raise ValueError(f"{self.name} {key} = {getattr(self, key)} is not at least 1")
        if self.width % self.heads or self.width % 2:
            raise ValueError(f"{self.name} width = {self.width} must be even and a multiple of heads = {self.heads}")
        if self.extra not in (0, self.channels):
            raise ValueError(f"{self.name} extra = {self.extra} is neither 0 nor channels = {self.channels}")
        if any(not 2 <= p <= self.length for p in self.periods):
            raise ValueError(f"timesnet periods = {self.periods}: each must lie between 2 and length = {self.length}")

    def as_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {**asdict(self), "periods": list(self.periods)}


Shape = DiTConfig | LearnedConfig


def periods_within(length: int, steps_per_day: int) -> tuple[int, ...]:
    """Public periods for windows of a length: day, half and quarter of it; shares of the window where none fits.

    >>> periods_within(96, 24), periods_within(96, 1440)
    ((24, 12, 6), (48, 24))
    """
    day = tuple(steps_per_day // k for k in (1, 2, 4) if 2 <= steps_per_day // k <= length)
    return day or tuple(max(2, length // k) for k in (2, 4))


def shape_of(net: Shape | str | None, windows: Windows) -> Shape:
    """A net's shape: as given, or the default shape of a name for these windows (None: "dit")."""
    if net is not None and not isinstance(net, str):
        return net
    if net in (None, "dit"):
        return DiTConfig(windows.length, windows.channels)
    periods = periods_within(windows.length, windows.steps_per_day) if net == "timesnet" else ()
    return LearnedConfig(net, windows.length, windows.channels, periods=periods)


def shape_from_json(data: dict[str, Any]) -> Shape:
    """The inverse of a shape's `as_json`."""
    if "name" not in data:
        return DiTConfig.from_json(data)
    return LearnedConfig(**{**data, "periods": tuple(data["periods"])})


def network(shape: Shape) -> nn.Module:
    """A net of this shape, weights drawn from torch's global generator."""
    if isinstance(shape, DiTConfig):
        return DiT(shape)
    net = NETS[shape.name](shape)
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear):
            zero = name == "out" or name.endswith("modulation")
            (nn.init.zeros_ if zero else nn.init.xavier_uniform_)(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def regresses(shape: Shape) -> bool:
    """True for a net that gives the filling itself, in one pass; False for a denoiser."""
    return isinstance(shape, LearnedConfig) and shape.name in REGRESSORS


def objective_for(shape: Shape, objective: Objective | None) -> Objective:
    """The objective given, or the shape's default: "x0"; timedit "eps". ValueError where a regressor cannot take it."""
    if objective is None:
        return Objective("eps" if isinstance(shape, LearnedConfig) and shape.name == "timedit" else "x0")
    if regresses(shape) and (objective.target, objective.weight) != ("x0", "none"):
        raise ValueError(f"{shape.name} fills in one pass, without diffusion times: objective {objective.name!r} must be "
                         "target \"x0\" without a weight")
    return objective
