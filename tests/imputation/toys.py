"""Small nets and batches that the imputation tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedenergy.imputation.dit import AdaLNBound, DiT, DiTConfig
from fedenergy.imputation.learned import NETS as LEARNED
from fedenergy.imputation.learned import LearnedConfig, network
from fedenergy.imputation.objective import Objective, noised
from fedenergy.imputation.schedule import alpha_bar

torch.set_num_threads(1)
SOFT = AdaLNBound(c=2.0, gamma=0.5, beta=0.5, alpha=0.5)
HARD = AdaLNBound(c=2.0, gamma=0.05, beta=0.05, alpha=0.05, soft=False)
SMALL = dict(length=24, channels=1, patch=2, width=16, depth=2, heads=2)


class Twice(nn.Module):
    """An MLP that uses one layer twice and has a layer without bias: not a DiT, same engine."""

    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(3, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 1)

    def forward(self, x_t: Tensor, t: Tensor, observed: Tensor, mask: Tensor) -> Tensor:
        h = torch.tanh(self.first(torch.cat([x_t, observed, mask], -1)))
        h = torch.tanh(self.shared(torch.tanh(self.shared(h)))) + t.view(-1, 1, 1) / 1000
        return self.last(h)


def _moved(net: nn.Module) -> nn.Module:
    with torch.no_grad():                 # zero-initialised parts would hide mistakes
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return net


def _dit(**more) -> DiT:
    return _moved(DiT(DiTConfig(**{**SMALL, **more})))


def learned(name: str, **more) -> LearnedConfig:
    return LearnedConfig(name, **{**dict(length=24, width=16, depth=2, heads=2, patch=8), **more})


NETS = {
    "dit": _dit,
    "dit patch 1": lambda: _dit(patch=1),
    "dit patch 12": lambda: _dit(patch=12),
    "dit soft bound": lambda: _dit(bound=SOFT),
    "dit hard bound": lambda: _dit(bound=HARD),
    "dit pooled": lambda: _dit(pooled=True, bound=SOFT),
    "mlp": Twice,
    **{name: lambda name=name: _moved(network(learned(name))) for name in LEARNED},
}


def make(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return NETS[name]()


class Batch:
    """Records with fixed draws, and the loss of each: rows are record-major where K > 1."""

    def __init__(self, records: int = 6, draws: int = 1, seed: int = 1, objective: Objective | None = None):
        torch.manual_seed(seed)
        self.records, self.draws = records, draws
        self.objective = objective or Objective("v", draws=draws)
        self.x0 = torch.rand(records, 24, 1) * 3
        self.noise = torch.randn(records, draws, 24, 1)
        self.mask = (torch.rand(records, draws, 24, 1) < 0.5).float()
        self.t = torch.randint(0, 1000, (records, draws))

    def part(self, rows: list[int]) -> Batch:
        other = Batch(len(rows), self.draws, objective=self.objective)
        for name in ("x0", "noise", "mask", "t"):
            setattr(other, name, getattr(self, name)[rows])
        return other

    def losses(self, net) -> Tensor:
        """(records,)"""
        x0 = self.x0.repeat_interleave(self.draws, 0)
        noise, mask, t = self.noise.flatten(0, 1), self.mask.flatten(0, 1), self.t.flatten()
        a = alpha_bar("cosine")[t].float()
        out = net(noised(x0, noise, a.view(-1, 1, 1)), t, x0 * mask, mask)
        each = self.objective.losses(out, x0, noise, a, mask < 0.5)
        return each.view(self.records, self.draws).mean(1)


def by_hand(net, batch: Batch, clip) -> tuple[Tensor, Tensor]:
    """(flat clipped sum, norms) by one backward pass per record, in double precision where it matters."""
    total, norms = 0.0, []
    for row in range(batch.records):
        net.zero_grad()
        batch.part([row]).losses(net).sum().backward()
        grad = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in net.parameters()])
        norm = grad.double().norm().float()
        norms.append(norm)
        total = total + clip(norm[None])[0] * grad
    net.zero_grad()
    return total, torch.stack(norms)
