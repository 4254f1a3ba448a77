"""A denoiser in the manner of TimeDiT: one token per time step, the observed part scaling and shifting every token.

Source: Cao et al. 2024 (arXiv 2409.02322); no code of it is public. Taken from there: only hidden steps are noised, the
partial observation is embedded step by step and enters through adaptive layer norm beside the diffusion time, masks of
several kinds in training. Open there, chosen here: the size (the DiT's 256 x 8), gates that start at zero, noise
prediction with the loss on hidden positions, the study's own masks and cosine schedule in place of its stride and future
masks, no padding to a common number of channels, no pre-training on other data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedenergy.imputation.dit import Attention, TimeEmbedding, sinusoid

if TYPE_CHECKING:
    from fedenergy.imputation.learned import LearnedConfig


class TokenBlock(nn.Module):
    """A DiT block whose scales, shifts and gates are each token's own."""

    def __init__(self, width: int, heads: int, ratio: int):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        gamma, beta, alpha, gamma2, beta2, alpha2 = self.modulation(F.silu(c)).chunk(6, -1)
        x = x + alpha * self.attention(self.norm(x) * (1 + gamma) + beta)
        hidden = F.gelu(self.up(self.norm(x) * (1 + gamma2) + beta2), approximate="tanh")
        return x + alpha2 * self.down(hidden)                                    # (B, T, d)


class TimeDiT(nn.Module):
    """The denoiser. Its output is zero before the first step of training."""

    def __init__(self, config: LearnedConfig):
        super().__init__()
        width, channels = config.width, config.channels
        self.embed, self.seen = nn.Linear(channels, width), nn.Linear(2 * channels + config.extra, width)
        self.time = TimeEmbedding(width)
        self.blocks = nn.ModuleList(TokenBlock(width, config.heads, config.ratio) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation, self.out = nn.Linear(width, 2 * width), nn.Linear(width, channels)

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor, extra: Tensor | None = None) -> Tensor:
        """See DiT.forward: (B, T, D)."""
        places = sinusoid(torch.arange(x_t.shape[1], device=x_t.device), self.embed.out_features)
        seen = torch.cat([observed, mask] + ([] if extra is None else [extra]), -1)
        c = self.time(t).unsqueeze(1) + self.seen(seen)                          # (B, T, d)
        x = self.embed(x_t * (1 - mask)) + places
        for block in self.blocks:
            x = block(x, c)
        gamma, beta = self.modulation(F.silu(c)).chunk(2, -1)
        return self.out(self.norm(x) * (1 + gamma) + beta)                       # (B, T, D)
