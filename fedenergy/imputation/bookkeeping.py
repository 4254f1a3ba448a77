"""Per-record clipped gradient sums at about the cost of a plain step.

Book-keeping (Bu et al. 2023): one backward pass keeps, for every Linear layer, its inputs x and output gradients g. The
squared norm of record i's weight gradient sum_t g_t x_t' is read off Gram matrices (on the CPU off their lower halves, in
kernels.py) or off the gradient itself, whichever is less work; the clipped sum is one matrix product per layer. Weight
gradients of single records are never stored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

DIRECT_BYTES = 64 * 2**20         # single-record weight gradients of a layer are formed in slices of this size
ROUNDING = 1e-6                   # norms are taken this much larger, so that float32 rounding cannot break the bound

Losses = Callable[[], Tensor]
Coefficients = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Clip:
    """How a record's gradient of norm n is scaled.

    bound  C; the result's norm is at most C
    rule   "flat": min(1, C / n) (Abadi et al. 2016); "automatic": C / (n + 0.01) (Bu et al. 2022, AUTO-S)
    """

    bound: float
    rule: str = "flat"

    def __call__(self, norms: Tensor) -> Tensor:
        """(R,) norms -> (R,) factors, 0 where a norm is not finite: such a record adds nothing."""
        safe = norms * (1 + ROUNDING)
        if self.rule == "flat":
            factor = (self.bound / safe).clamp(max=1.0)
        else:
            factor = self.bound / (safe + 0.01)
        return torch.where(norms.isfinite(), factor, torch.zeros_like(factor))


class Engine(Protocol):
    """Adds sum_i factor(norm_i) grad_i of a chunk of records to `sums`; returns losses and norms, both (R,)."""

    def add_clipped(self, losses: Losses, records: int, factor: Coefficients, sums: list[Tensor]) -> tuple[Tensor, Tensor]:
        ...


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, in the net's order."""
    return [p for p in net.parameters() if p.requires_grad]


class BookKeeping:
    """The engine for nets whose trainable parameters all belong to Linear layers.

    Inputs of a layer have rows in record order: (R * K, ..., features), K rows (draws) of record 0 first.
    Guarantee: equal to clipping each record's own gradient; a record's part depends on that record only, provided the
    net does not mix rows. A layer may be used several times in a pass.
    Raises TypeError for a net with other trainable parameters, naming the first.
    """

    def __init__(self, net: nn.Module):
        self.parameters = trainable(net)
        place = {id(p): k for k, p in enumerate(self.parameters)}
        self._layers: list[tuple[nn.Linear, int | None, int | None]] = []
        for layer in net.modules():
            if isinstance(layer, nn.Linear):
                weight, bias = place.pop(id(layer.weight), None), place.pop(id(layer.bias), None)
                if weight is not None or bias is not None:
                    self._layers.append((layer, weight, bias))
        if place:
            names = [name for name, p in net.named_parameters() if id(p) in place]
            raise TypeError(f"book-keeping needs every trainable parameter in a Linear layer of its own; {names[0]} "
                            "is not: freeze it, replace its layer, or take engine = \"opacus\"")

    def add_clipped(self, losses: Losses, records: int, factor: Coefficients, sums: list[Tensor]) -> tuple[Tensor, Tensor]:
        """See Engine. losses() returns (R,), each entry the record's own loss."""
        tapes: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self._layers]
        hooks = [layer.register_forward_hook(_recorder(tape)) for (layer, *_), tape in zip(self._layers, tapes)]
        for p in self.parameters:
            p.requires_grad_(False)         # autograd then skips weight gradients
        try:
            with torch.enable_grad():
                value = losses()
            _check(value, records)
            if value.requires_grad:
                value.sum().backward()
        finally:
            for p in self.parameters:
                p.requires_grad_(True)
            for hook in hooks:
                hook.remove()
        with torch.no_grad():
            return value.detach(), self._add(tapes, records, factor, sums)

    def _add(self, tapes: list, records: int, factor: Coefficients, sums: list[Tensor]) -> Tensor:
        kept = []
        squares = torch.zeros(records, dtype=torch.float64, device=sums[0].device)
        for (_, weight, bias), tape in zip(self._layers, tapes):
            if not tape:
                continue
            x, g = (_by_record(parts, records) for parts in zip(*tape))
            tape.clear()
            squares += square_norms(x, g, weight is not None, bias is not None)
            kept.append((x, g, weight, bias))
        norms = squares.sqrt().float()
        scale = factor(norms)
        bad = ~norms.isfinite()
        while kept:
            x, g, weight, bias = kept.pop()
            if bad.any():                   # 0 * nan is nan
                x, g = x.masked_fill(bad.view(-1, 1, 1), 0), g.masked_fill(bad.view(-1, 1, 1), 0)
            flat_g, per_row = g.flatten(0, 1), scale.repeat_interleave(g.shape[1])
            if bias is not None:
                sums[bias].addmv_(flat_g.t(), per_row)
            if weight is not None:
                if x.shape[2] <= g.shape[2]:
                    sums[weight].addmm_(flat_g.t(), x.flatten(0, 1) * per_row[:, None])
                else:
                    sums[weight].addmm_((flat_g * per_row[:, None]).t(), x.flatten(0, 1))
        return norms


def _recorder(tape: list) -> Callable:
    def hook(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not output.requires_grad:
            output = output.detach().requires_grad_(True)
        x = inputs[0].detach()
        output.register_hook(lambda g: tape.append((x, g)))
        return output
    return hook


def _by_record(parts: tuple[Tensor, ...], records: int) -> Tensor:
    """Uses and draws of a layer side by side: (R, tokens, features)."""
    views = [part.reshape(records, -1, part.shape[-1]) for part in parts]
    return views[0] if len(views) == 1 else torch.cat(views, 1)


def square_norms(x: Tensor, g: Tensor, weight: bool = True, bias: bool = True) -> Tensor:
    """(R,) float64: squared norm of each record's gradient of a Linear layer.

    x (R, N, i) inputs, g (R, N, o) output gradients; weight, bias: which parts count. The weight gradient is
    sum_n g_n x_n', the bias gradient sum_n g_n: a constant input of 1.
    """
    records, tokens, i = x.shape
    o = g.shape[2]
    exact = torch.float64
    if tokens == 1:
        size = x.square().sum((1, 2), dtype=exact) * weight + float(bias)
        return g.square().sum((1, 2), dtype=exact) * size
    halved = x.device.type == "cpu" and x.dtype == torch.float32 == g.dtype
    if weight and tokens * (i + o) < i * o * (2 if halved else 1):
        return _by_symmetry(x, g, bias) if halved else _by_gram(x, g, bias)
    total = g.sum(1).square().sum(1, dtype=exact) if bias else torch.zeros(records, dtype=exact, device=x.device)
    size = max(1, DIRECT_BYTES // (4 * i * o))
    for low in range(0, records if weight else 0, size):
        part = torch.bmm(g[low:low + size].transpose(1, 2), x[low:low + size])
        total[low:low + size] += torch.linalg.vector_norm(part.flatten(1), dim=1).double().square()
    return total


def _by_gram(x: Tensor, g: Tensor, bias: bool) -> Tensor:
    """Squared norms from whole Gram matrices, on any device."""
    pairs, inner = torch.bmm(g, g.transpose(1, 2)), torch.bmm(x, x.transpose(1, 2))
    pairs *= inner.add_(1.0) if bias else inner
    return pairs.sum((1, 2), dtype=torch.float64).clamp(min=0.0)


def _by_symmetry(x: Tensor, g: Tensor, bias: bool) -> Tensor:
    """The same in half the multiplications, float32 on the CPU; a record's result is the same on any number of threads."""
    from fedenergy.imputation.kernels import gram_norms  # numba loads where it is needed only

    squares, threads = torch.empty(len(x), dtype=torch.float64), torch.get_num_threads()
    parts = [[part.numpy() for part in tensor.contiguous().chunk(threads)] for tensor in (x, g, squares)]
    if len(parts[0]) == 1:
        gram_norms(parts[0][0], parts[1][0], float(bias), parts[2][0])
    else:
        with ThreadPoolExecutor(len(parts[0])) as pool:
            list(pool.map(lambda a, b, out: gram_norms(a, b, float(bias), out), *parts))
    return squares.clamp_(min=0.0)


def _check(value: Tensor, records: int) -> None:
    if value.shape != (records,):
        raise ValueError(f"losses() returned shape {tuple(value.shape)}: one loss per record is ({records},)")


class Opacus:
    """The alternative engine: Opacus' GradSampleModule hooks store every record's gradient. Any layer it supports.

    Close it when done: it removes its hooks from the net.
    """

    def __init__(self, net: nn.Module):
        from opacus import GradSampleModule

        self.parameters = trainable(net)
        self._module = GradSampleModule(net, batch_first=True, loss_reduction="sum", strict=True)

    def add_clipped(self, losses: Losses, records: int, factor: Coefficients, sums: list[Tensor]) -> tuple[Tensor, Tensor]:
        """See Engine."""
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")      # torch warns of full backward hooks on a net's first layers
            value = losses()
            _check(value, records)
            value.sum().backward()
        with torch.no_grad():
            gradients = []
            for p in self.parameters:
                parts = getattr(p, "grad_sample", None)
                parts = parts if isinstance(parts, list) else [] if parts is None else [parts]
                rows = [part if len(part) == records else part.reshape(records, -1, *p.shape).sum(1) for part in parts]
                gradients.append(sum(rows[1:], rows[0]) if rows else None)
                p.grad_sample = p.grad = None
            norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients if g is not None])
            norms = norms.double().square().sum(0).sqrt().float()
            scale, bad = factor(norms), ~norms.isfinite()
            for g, total in zip(gradients, sums):
                if g is not None:
                    if bad.any():
                        g = g.masked_fill(bad.view(-1, *[1] * total.dim()), 0)
                    total.view(-1).addmv_(g.flatten(1).t(), scale)
        return value.detach(), norms

    def close(self) -> None:
        """Give the net back without hooks."""
        self._module.remove_hooks()
        for p in self.parameters:
            if hasattr(p, "grad_sample"):
                del p.grad_sample


ENGINES = {"bookkeeping": BookKeeping, "opacus": Opacus}
