"""What the limits of AdaLNBound imply: an upper bound on ||g_cond||, the gradient of a record's conditioning path.

Source: DP-aware AdaLN-Zero (arXiv 2602.22610) announces such a bound and prints none; this one is ours, by the chain rule.
Its steps, for one record of N tokens and width d, R = sqrt(d) (1 + gamma + beta), and s = sqrt(spread^2 + 1e-6):

1. LayerNorm's output has norm at most sqrt(d) per token, so what a layer reads, modulated, has norm at most R. Attention
   and MLP outputs are then bounded by their weights, and so is the net's output.
2. Backwards: a branch passes on at most alpha J ||g||, J its Jacobian on that ball; LayerNorm's Jacobian is at most 1 / s;
   so ||dL/dx|| grows by at most 1 + alpha J (1 + gamma) / s per branch.
3. The derivative of either limiter is at most 1: ||dL/d(gamma, beta, alpha before the limit)|| is bounded by those after.
4. A modulation layer's gradient is the outer product with silu(c): its norm is at most the factor sqrt(1 + c^2) larger.
5. The projection of the condition is 1-Lipschitz, |silu'| <= 1.1: the encoders follow by the chain rule.

Without limits no such number exists: it grows with the modulation itself. The bound is finite and holds; it is loose by
orders of magnitude, since it multiplies worst cases over depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedenergy.imputation.dit import Block, DiT
from fedenergy.imputation.limits import AdaLNBound

EPS = 1e-6                        # of the nets' LayerNorm
SILU, GELU = 1.1, 1.13            # largest slopes of silu (1.0998) and of gelu, tanh form (1.129)
SINUSOID = math.sqrt(128.0)       # norm of 256 sinusoids of a time


@dataclass(frozen=True)
class ConditioningBound:
    """Upper bounds on a record's gradient norms: modulation layers, condition encoders, both together.

    output  largest norm of the net's output, which the final limits imply
    gain    sqrt(1 + c^2): a modulation layer's gradient is at most so many times that at its output. The part that is tight
    """

    modulation: float
    encoder: float
    output: float
    gain: float

    @property
    def total(self) -> float:
        """||g_cond|| <= this."""
        return math.hypot(self.modulation, self.encoder)


def conditioning_bound(net: DiT, target: float, counted: int = 1, *, spread: float = 0.0, patch_norm: float = math.inf,
                       weight: float = 1.0, bound: AdaLNBound | None = None) -> ConditioningBound:
    """The bound on ||g_cond|| that the limits imply, for every input that meets the assumptions.

    Assumptions, all checkable without private data but for the first:
    target      ||what the net should predict||_2 of the record is at most this (unit Gaussian noise of n numbers: about
                sqrt(n); v: at most ||x0|| + ||noise||)
    counted     at least so many positions count in the record's mean loss; 1 where the loss is their sum
    weight      the loss weight of the record's time is at most this
    spread      every token that a LayerNorm reads has at least this standard deviation (0: no assumption)
    patch_norm  ||a patch of (x0 * m, m, covariates)||_2 is at most this; only a pooled net needs it
    weights     of the layers outside the limits, as they are in `net`: their spectral norms are computed here
    bound       other limits than the net's own
    Guarantee: ||g_cond|| <= result.total in exact arithmetic, for one draw and so for the mean of several. Infinite where
    gamma, beta, alpha or c has no limit, for nets with cross-attention, and (the encoders' part) for a pooled net without
    patch_norm.
    """
    limits = net.bound if bound is None else bound
    if None in (limits.c, limits.gamma, limits.beta, limits.alpha) or net.config.cross is not None:
        return ConditioningBound(*[math.inf] * 3, math.inf if limits.c is None else math.hypot(1, limits.c))
    d, tokens = net.config.width, net.config.length // net.config.patch
    slope, reach = 1.0 / math.sqrt(spread**2 + EPS), math.sqrt(d) * (1 + limits.gamma + limits.beta)
    per_value = math.sqrt(tokens) * math.sqrt(d * 1.0 + 1.0)         # of (gamma, beta) per unit of dL/dy, together
    out = _norm(net.out.weight)
    output = math.sqrt(tokens) * (out * reach + _norm(net.out.bias))
    upstream = 2 * weight * (output + target) / counted
    flow = out * upstream                                            # ||dL/dy||, then ||dL/dx||
    squares, to_c = (flow * per_value)**2, _norm(net.modulation.weight) * flow * per_value
    flow *= (1 + limits.gamma) * slope
    for block in reversed(net.blocks):
        part = 0.0
        for jacobian, size in (_mlp(block, reach), _attention(block, reach, tokens)):
            inner = limits.alpha * jacobian * flow
            part += (flow * math.sqrt(tokens) * size)**2 + (inner * per_value)**2
            flow += inner * (1 + limits.gamma) * slope
        squares += part
        to_c += _norm(block.modulation.weight) * math.sqrt(part)
    gain = math.hypot(1, limits.c)
    return ConditioningBound(math.sqrt(squares) * gain, _encoders(net, SILU * to_c, patch_norm), output, gain)


def _mlp(block: Block, reach: float) -> tuple[float, float]:
    """(Jacobian, output norm per token) of the MLP for tokens of norm at most `reach`."""
    up, down = _norm(block.up.weight), _norm(block.down.weight)
    return GELU * up * down, down * (up * reach + _norm(block.up.bias)) + _norm(block.down.bias)


def _attention(block: Block, reach: float, tokens: int) -> tuple[float, float]:
    """(Jacobian, output norm per token) of the attention on that ball.

    Per head, d(A V) = A dV + dA V: ||A|| <= sqrt(N) for rows that sum to 1; a row of dA V is a covariance of values and
    scores, at most ||v|| ||ds||; ds of a row at most sqrt(N) (|k| |dq| + |q| |dk|) / sqrt(d_head).
    """
    attention = block.attention
    size = attention.out.in_features // attention.heads
    weights = attention.qkv.weight.view(3, attention.heads, size, -1)
    biases = attention.qkv.bias.view(3, attention.heads, size)
    jacobian = value = 0.0
    for head in range(attention.heads):
        q, k, v = (_norm(weights[part, head]) for part in range(3))
        reaches = [w * reach + _norm(biases[part, head]) for part, w in enumerate((q, k, v))]
        score = (reaches[1] * q + reaches[0] * k) / math.sqrt(size)
        jacobian += (math.sqrt(tokens) * (v + reaches[2] * score))**2
        value += reaches[2]**2
    out = _norm(attention.out.weight)
    return out * math.sqrt(jacobian), out * math.sqrt(value) + _norm(attention.out.bias)


def _encoders(net: DiT, to_c: float, patch_norm: float) -> float:
    """The encoders' gradient for ||dL/dc|| <= to_c."""
    def two_layers(first: nn.Linear, second: nn.Linear, size: float) -> float:
        if math.isinf(size):
            return math.inf
        hidden = _norm(first.weight) * size + _norm(first.bias)
        inner = SILU * _norm(second.weight) * to_c
        return math.hypot(to_c * math.sqrt(1 + hidden**2), inner * math.sqrt(1 + size**2))
    time = two_layers(net.time.first, net.time.second, SINUSOID)
    return time if net.pool is None else math.hypot(time, two_layers(net.pool.first, net.pool.second, patch_norm))


def _norm(x: Tensor) -> float:
    """Spectral norm of a matrix, Euclidean norm of a vector, in double precision."""
    with torch.no_grad():
        return float(torch.linalg.matrix_norm(x.double(), 2) if x.dim() == 2 else x.double().norm())
