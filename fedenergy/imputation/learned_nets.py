"""Three regressors after well-known forecasters, of Linear layers and affine-free LayerNorm only.

All take what the DiT takes and ignore x_t and t. Each window is normalised by the mean and spread of its own observed
values and its filling is put back, so that a zero output is the window mean, or the base where one is given. What
differs from the sources: LayerNorm for BatchNorm, no dropout, masks as inputs, public periods (TimesNet).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedenergy.imputation.dit import Attention, sinusoid

if TYPE_CHECKING:
    from fedenergy.imputation.learned import LearnedConfig

FLOOR = 1e-4                   # added to a window's variance, in [0, 1] units: a flat window is not blown up


def normed(observed: Tensor, mask: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """What the nets read, and how a filling is put back: (features (B, T, D, f), shift, spread (B, 1, D)).

    observed = x0 * m, mask = m, extra (a base's filling or None): (B, T, D). The features are the normalised values
    (0 where hidden), m and the normalised base. Row i depends on row i only.
    """
    count = mask.sum(1, keepdim=True).clamp(min=1.0)
    mean = (observed * mask).sum(1, keepdim=True) / count                        # (B, 1, D)
    spread = (((observed - mean) * mask).square().sum(1, keepdim=True) / count + FLOOR).sqrt()
    parts = [(observed - mean) * mask / spread, mask]
    if extra is not None:
        parts.append((extra - mean) / spread)
    return torch.stack(parts, -1), mean if extra is None else torch.zeros_like(mean), spread


class Layer(nn.Module):
    """A Transformer encoder layer, normalised before each part."""

    def __init__(self, width: int, heads: int, ratio: int):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))                      # (B, N, d)


class PatchTST(nn.Module):
    """Attention over overlapping patches of each channel alone; one head from all patches to the window.

    Source: Nie et al. 2023 (patch 16, stride 8, channel independence, instance normalisation, flatten head).
    """

    def __init__(self, config: LearnedConfig):
        super().__init__()
        self.patch, self.stride, width = config.patch, max(1, config.patch // 2), config.width
        tokens = (config.length + self.stride - self.patch) // self.stride + 1
        self.embed = nn.Linear((2 + bool(config.extra)) * self.patch, width)
        self.layers = nn.ModuleList(Layer(width, config.heads, config.ratio) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out = nn.Linear(tokens * width, config.length)

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor, extra: Tensor | None = None) -> Tensor:
        """See DiT.forward: (B, T, D)."""
        rows, _, channels = observed.shape
        x, shift, spread = normed(observed, mask, extra)                         # (B, T, D, f)
        x = torch.cat([x, x[:, -1:].expand(-1, self.stride, -1, -1)], 1)         # the end is repeated
        patches = x.unfold(1, self.patch, self.stride).transpose(1, 2)           # (B, D, N, f, p)
        tokens = self.embed(patches.reshape(rows * channels, patches.shape[2], -1))
        tokens = tokens + sinusoid(torch.arange(tokens.shape[1], device=x.device), tokens.shape[2])
        for layer in self.layers:
            tokens = layer(tokens)                                               # (B D, N, d)
        filled = self.out(self.norm(tokens).reshape(rows, channels, -1))         # (B, D, T)
        return shift + spread * filled.transpose(1, 2)


class ITransformer(nn.Module):
    """Each channel's whole window is one token; attention runs over channels. With D = 1 it is an MLP of the window.

    Source: Liu et al. 2024.
    """

    def __init__(self, config: LearnedConfig):
        super().__init__()
        self.embed = nn.Linear((2 + bool(config.extra)) * config.length, config.width)
        self.layers = nn.ModuleList(Layer(config.width, config.heads, config.ratio) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, elementwise_affine=False)
        self.out = nn.Linear(config.width, config.length)

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor, extra: Tensor | None = None) -> Tensor:
        """See DiT.forward: (B, T, D)."""
        x, shift, spread = normed(observed, mask, extra)                         # (B, T, D, f)
        tokens = self.embed(x.transpose(1, 2).flatten(2))                        # (B, D, d)
        for layer in self.layers:
            tokens = layer(tokens)
        return shift + spread * self.out(self.norm(tokens)).transpose(1, 2)      # (B, T, D)


class TimesBlock(nn.Module):
    """The series folded at each period into (T / p, p), two 3 x 3 convolutions over it (as Linears of the unfolded
    neighbourhoods), and a mean over the periods weighted by the window's own amplitudes."""

    def __init__(self, width: int, ratio: int, periods: tuple[int, ...]):
        super().__init__()
        self.periods = periods
        self.up, self.down = nn.Linear(9 * width, ratio * width), nn.Linear(9 * ratio * width, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        y, parts, sizes = self.norm(x), [], []
        for period in self.periods:
            folded = F.pad(y, (0, 0, 0, -y.shape[1] % period))
            hidden = F.gelu(self.up(neighbours(folded, period)))
            parts.append(self.down(neighbours(hidden, period))[:, :y.shape[1]])  # (B, T, d)
            sizes.append(amplitude(y, period))
        weights = torch.stack(sizes, -1).softmax(-1)                             # (B, periods)
        return x + (torch.stack(parts, -1) * weights[:, None, None]).sum(-1)     # (B, T, d)


def neighbours(x: Tensor, period: int) -> Tensor:
    """(B, T, d), T a multiple of the period -> (B, T, 9 d): each step beside its neighbours within and across periods."""
    grid = x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1, period)         # (B, d, T / p, p)
    return F.unfold(grid, 3, padding=1).transpose(1, 2)


def amplitude(x: Tensor, period: int) -> Tensor:
    """(B, T, d) -> (B,): each row's own amplitude at a period, mean over features."""
    angle = 2 * math.pi / period * torch.arange(x.shape[1], device=x.device)
    parts = [(x * wave.view(-1, 1)).mean(1).square() for wave in (angle.cos(), angle.sin())]
    return (parts[0] + parts[1] + 1e-12).sqrt().mean(-1)


class TimesNet(nn.Module):
    """Two-dimensional variation at fixed, public periods.

    Source: Wu et al. 2023. The source finds periods by the batch mean of a Fourier transform, which couples the records
    of a batch: here they are public, and only their weights depend on data, each window's on itself.
    """

    def __init__(self, config: LearnedConfig):
        super().__init__()
        self.embed = nn.Linear((2 + bool(config.extra)) * config.channels, config.width)
        self.blocks = nn.ModuleList(TimesBlock(config.width, config.ratio, config.periods) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, elementwise_affine=False)
        self.out = nn.Linear(config.width, config.channels)

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor, extra: Tensor | None = None) -> Tensor:
        """See DiT.forward: (B, T, D)."""
        x, shift, spread = normed(observed, mask, extra)                         # (B, T, D, f)
        tokens = self.embed(x.flatten(2))
        tokens = tokens + sinusoid(torch.arange(tokens.shape[1], device=x.device), tokens.shape[2])
        for block in self.blocks:
            tokens = block(tokens)                                               # (B, T, d)
        return shift + spread * self.out(self.norm(tokens))
