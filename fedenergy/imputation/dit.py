"""The denoiser: a diffusion transformer (DiT) with AdaLN-Zero over windows of a series.

Every trainable tensor belongs to a Linear layer (LayerNorm without affine part, fixed positions, linear patch
embedding): the book-keeping engine rests on it. Sources: Peebles and Xie 2023; objective-conditioning, table B.10;
DP-aware AdaLN-Zero (bounds, pooled condition).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedenergy.imputation.limits import AdaLNBound, CrossAttentionBound, projected


@dataclass(frozen=True)
class DiTConfig:
    """Shape of a DiT. The default is the source's (7.63 M parameters at patch 1).

    length, channels  T and D of a window; patch divides length
    extra             further input channels (a base's filling, for example)
    pooled            condition on a pooled encoding of (x0 * m, m) too; covariates: further columns in that encoding
    bound             limits on the AdaLN path; None: none
    cross             condition by cross-attention on the patches of (x0 * m, m, covariates) too, within these limits
                      (CrossAttentionBound(): none); None: no cross-attention
    """

    length: int = 96
    channels: int = 1
    patch: int = 1
    width: int = 256
    depth: int = 8
    heads: int = 8
    ratio: int = 2
    extra: int = 0
    pooled: bool = False
    covariates: int = 0
    bound: AdaLNBound | None = None
    cross: CrossAttentionBound | None = None

    def __post_init__(self) -> None:
        for name in ("length", "channels", "patch", "width", "depth", "heads", "ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"DiT {name} = {getattr(self, name)} is not at least 1")
        if self.length % self.patch:
            raise ValueError(f"DiT patch = {self.patch} does not divide length = {self.length}")
        if self.width % self.heads or self.width % 2:
            raise ValueError(f"DiT width = {self.width} must be even and a multiple of heads = {self.heads}")
        if self.covariates and not (self.pooled or self.cross):
            raise ValueError("DiT covariates enter through the pooled encoding: set pooled = True (or cross)")

    def as_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DiTConfig:
        """The inverse of `as_json`."""
        bound, cross = data.get("bound"), data.get("cross")
        return cls(**{**data, "bound": AdaLNBound(**bound) if bound else None,
                      "cross": None if cross is None else CrossAttentionBound(**cross)})


def sinusoid(at: Tensor, width: int) -> Tensor:
    """Sines and cosines of `at` at geometric frequencies.

    at (n,) -> (n, width)
    """
    half = width // 2
    rate = torch.exp(-math.log(10_000.0) * torch.arange(half, device=at.device, dtype=torch.float32) / half)
    angle = at.float()[:, None] * rate
    return torch.cat([angle.cos(), angle.sin()], -1)                             # (n, width)


class TimeEmbedding(nn.Module):
    """A diffusion time as a vector: 256 sinusoids and an MLP."""

    def __init__(self, width: int, frequencies: int = 256):
        super().__init__()
        self.frequencies = frequencies
        self.first, self.second = nn.Linear(frequencies, width), nn.Linear(width, width)

    def forward(self, t: Tensor) -> Tensor:
        return self.second(F.silu(self.first(sinusoid(t, self.frequencies))))    # (B,) -> (B, d)


class PooledEncoding(nn.Module):
    """The observed part of a window, and covariates, as one vector."""

    def __init__(self, inputs: int, patch: int, width: int):
        super().__init__()
        self.patch = patch
        self.first, self.second = nn.Linear(inputs * patch, width), nn.Linear(width, width)

    def forward(self, seen: Tensor) -> Tensor:
        patches = seen.reshape(seen.shape[0], seen.shape[1] // self.patch, -1)   # (B, N, p * k)
        return self.second(F.silu(self.first(patches)).mean(1))                  # (B, d)


class Attention(nn.Module):
    """Multi-head self-attention of two Linears."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        q, k, v = (part.view(rows, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)                          # (B, h, N, d / h)
        return self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))      # (B, N, d)


class CrossAttention(nn.Module):
    """Attention of a window's tokens on the tokens of its condition; adds nothing before training."""

    def __init__(self, width: int, heads: int, bound: CrossAttentionBound):
        super().__init__()
        self.heads, self.bound = heads, bound
        self.query, self.key_value, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        rows, tokens, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(rows, -1, self.heads, width // self.heads).transpose(1, 2)
        k, v = self.key_value(projected(context, self.bound.context)).chunk(2, -1)
        v = self.bound.limit(v, "value")
        mixed = F.scaled_dot_product_attention(split(self.query(x)), split(k), split(v))          # (B, h, N, d / h)
        return self.bound.limit(self.out(mixed.transpose(1, 2).reshape(rows, tokens, width)), "out")   # (B, N, d)


def modulate(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """x (B, N, d) scaled by 1 + gamma and shifted by beta, both (B, d)."""
    return torch.addcmul(beta.unsqueeze(1), x, 1 + gamma.unsqueeze(1))           # (B, N, d)


class Block(nn.Module):
    """Attention and MLP, each scaled, shifted and gated by the condition; gates start at zero."""

    def __init__(self, width: int, heads: int, ratio: int, bound: AdaLNBound, cross: CrossAttentionBound | None = None):
        super().__init__()
        self.bound = bound
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)
        self.modulation = nn.Linear(width, 6 * width)
        self.cross = None if cross is None else CrossAttention(width, heads, cross)

    def forward(self, x: Tensor, c: Tensor, context: Tensor | None = None) -> Tensor:
        limit, parts = self.bound.limit, self.modulation(F.silu(c)).chunk(6, -1)
        gamma, gamma2 = limit(parts[0], "gamma"), limit(parts[3], "gamma")
        beta, beta2 = limit(parts[1], "beta"), limit(parts[4], "beta")
        alpha, alpha2 = limit(parts[2], "alpha"), limit(parts[5], "alpha")
        x = torch.addcmul(x, alpha.unsqueeze(1), self.attention(modulate(self.norm(x), gamma, beta)))
        if self.cross is not None:
            x = x + self.cross(self.norm(x), context)
        hidden = F.gelu(self.up(modulate(self.norm(x), gamma2, beta2)), approximate="tanh")
        return torch.addcmul(x, alpha2.unsqueeze(1), self.down(hidden))          # (B, N, d)


class DiT(nn.Module):
    """The denoiser. Its output is zero before the first step of training.

    >>> round(sum(p.numel() for p in DiT(DiTConfig()).parameters()) / 1e6, 2)
    7.63
    """

    def __init__(self, config: DiTConfig):
        super().__init__()
        self.config = config
        bound, width = config.bound or AdaLNBound(), config.width
        self.embed = nn.Linear((3 * config.channels + config.extra) * config.patch, width)
        self.time = TimeEmbedding(width)
        self.pool = (PooledEncoding(2 * config.channels + config.covariates, config.patch, width)
                     if config.pooled else None)
        self.context = (None if config.cross is None else
                        nn.Linear((2 * config.channels + config.covariates) * config.patch, width))
        self.blocks = nn.ModuleList(Block(width, config.heads, config.ratio, bound, config.cross)
                                    for _ in range(config.depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation, self.out = nn.Linear(width, 2 * width), nn.Linear(width, config.channels * config.patch)
        self._start()

    def _start(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        for layer in (self.time.first, self.time.second):
            nn.init.normal_(layer.weight, std=0.02)
        crossings = [block.cross.out for block in self.blocks if block.cross is not None]
        for layer in (*(block.modulation for block in self.blocks), *crossings, self.modulation, self.out):
            nn.init.zeros_(layer.weight)

    @property
    def row_floats(self) -> int:
        """Numbers in the widest layer's output for one row of inputs: what decides how many rows stay in a cache."""
        config = self.config
        return config.length // config.patch * config.width * max(3, config.ratio)

    @property
    def bound(self) -> AdaLNBound:
        """The limits on the conditioning path."""
        return self.config.bound or AdaLNBound()

    def condition(self, t: Tensor, seen: Tensor) -> Tensor:
        """The condition vector, within its bound.

        t (B,); seen (B, T, 2 D + covariates) = (x0 * m, m, covariates) -> (B, d)
        """
        c = self.time(t)
        if self.pool is not None:
            c = c + self.pool(seen)
        return self.bound.condition(c)                                           # (B, d)

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor, extra: Tensor | None = None,
                covariates: Tensor | None = None) -> Tensor:
        """x_t, observed = x0 * m, mask = m: (B, T, D); t (B,); extra (B, T, extra); covariates (B, T, k)."""
        config = self.config
        rows = x_t.shape[0]
        seen = torch.cat([observed, mask] + ([] if covariates is None else [covariates]), -1)   # (B, T, 2 D + k)
        inputs = [x_t, observed, mask] + ([] if extra is None else [extra])
        patches = torch.cat(inputs, -1).reshape(rows, config.length // config.patch, -1)        # (B, N, p * inputs)
        places = sinusoid(torch.arange(patches.shape[1], device=x_t.device), config.width)      # (N, d)
        x, c = self.embed(patches) + places, self.condition(t, seen)             # (B, N, d), (B, d)
        context = None
        if self.context is not None:
            context = self.context(seen.reshape(rows, patches.shape[1], -1)) + places             # (B, N, d)
        for block in self.blocks:
            x = block(x, c, context)                                             # (B, N, d)
        gamma, beta = self.modulation(F.silu(c)).chunk(2, -1)
        x = modulate(self.norm(x), self.bound.limit(gamma, "gamma"), self.bound.limit(beta, "beta"))
        return self.out(x).reshape(rows, config.length, config.channels)         # (B, T, D)


def conditioning_parameters(net: DiT) -> list[nn.Parameter]:
    """The parameters of the conditioning path (source B's g_cond): time and pooled encodings, modulation layers, and
    where there is cross-attention its context and layers."""
    parts = [net.time, net.modulation, *(block.modulation for block in net.blocks), net.pool, net.context,
             *(block.cross for block in net.blocks)]
    return [p for part in parts if part is not None for p in part.parameters()]
