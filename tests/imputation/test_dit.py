"""The denoiser: size, zero start, limits on the conditioning path, rows that don't mix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedenergy.imputation.dit import AdaLNBound, DiT, DiTConfig, conditioning_parameters, sinusoid
from tests.imputation.toys import HARD, SMALL, SOFT, make


def inputs(rows=3, length=24, channels=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    x, o = (torch.randn(rows, length, channels, generator=g) for _ in range(2))
    m = (torch.rand(rows, length, channels, generator=g) < 0.5).float()
    return x, torch.randint(0, 1000, (rows,), generator=g), o * m, m


def test_golden_parameters_at_source_size():
    with torch.device("meta"):
        net = DiT(DiTConfig())
    # embed 1,024; time 131,584; 8 blocks of 920,832; final modulation 131,584; out 257
    assert sum(p.numel() for p in net.parameters()) == 1_024 + 131_584 + 8 * 920_832 + 131_584 + 257 == 7_631_105
    assert DiTConfig(width=256, depth=8, heads=8, ratio=2) == DiTConfig()


@pytest.mark.parametrize("patch", [1, 4, 8])
def test_contract_starts_at_zero_whatever_the_input(patch):
    net = DiT(DiTConfig(**{**SMALL, "patch": patch}))
    out = net(*inputs())
    assert out.shape == (3, 24, 1)
    assert (out == 0).all()


def test_every_trainable_tensor_is_a_linear():
    for config in (DiTConfig(**SMALL), DiTConfig(**SMALL, pooled=True, covariates=2, bound=SOFT)):
        net = DiT(config)
        owned = {id(p) for layer in net.modules() if isinstance(layer, nn.Linear) for p in layer.parameters()}
        assert owned == {id(p) for p in net.parameters()}
        assert not list(net.buffers())


@pytest.mark.parametrize("name", ["dit", "dit patch 12", "dit soft bound", "dit hard bound", "dit pooled"])
def test_contract_rows_do_not_mix(name):
    net, (x, t, o, m) = make(name), inputs()
    alone = torch.cat([net(x[k:k + 1], t[k:k + 1], o[k:k + 1], m[k:k + 1]) for k in range(3)])
    torch.testing.assert_close(net(x, t, o, m), alone, rtol=1e-4, atol=1e-5)


def test_contract_every_input_matters():
    net, (x, t, o, m) = make("dit pooled"), inputs()
    out = net(x, t, o, m)
    for changed in ((x + 1, t, o, m), (x, (t + 300) % 1000, o, m), (x, t, o + 1, m), (x, t, o, 1 - m)):
        assert (net(*changed) - out).abs().max() > 1e-3
    wide = DiT(DiTConfig(**SMALL, pooled=True, covariates=2, extra=1))
    nn.init.normal_(wide.out.weight)
    nn.init.normal_(wide.modulation.weight)
    extra, covariates = torch.randn(3, 24, 1), torch.randn(3, 24, 2)
    first = wide(x, t, o, m, extra, covariates)
    assert (wide(x, t, o, m, extra + 1, covariates) - first).abs().max() > 1e-3
    assert (wide(x, t, o, m, extra, covariates + 1) - first).abs().max() > 1e-3


@pytest.mark.parametrize("bound", [SOFT, HARD])
def test_contract_limits_hold_for_extreme_input(bound):
    net = DiT(DiTConfig(**SMALL, pooled=True, bound=bound))
    with torch.no_grad():
        for p in net.parameters():
            p.normal_(std=5.0)
    x, t, o, m = inputs()
    for factor in (0.0, 1.0, 1e6):
        c = net.condition(t, torch.cat([o * factor, m], -1))
        assert c.norm(dim=-1).max() <= bound.c * (1 + 1e-6)
    for name in ("gamma", "beta", "alpha"):
        values = torch.tensor([-1e30, -1.0, 0.0, 0.01, 1e30])
        limited = bound.limit(values, name)
        assert limited.abs().max() <= getattr(bound, name)
        assert limited[3] == pytest.approx(0.01, rel=1e-2)
    assert net(x, t, o * 1e6, m).isfinite().all()
    assert AdaLNBound(c=2.0).scaled(0.5) == AdaLNBound(c=1.0)


def test_contract_an_unbounded_net_exceeds_the_limits():
    net = make("dit")
    with torch.no_grad():
        for p in conditioning_parameters(net):
            p.mul_(100)
    _, t, o, m = inputs()
    c = net.condition(t, torch.cat([o, m], -1))
    assert c.norm(dim=-1).max() > SOFT.c
    assert net.blocks[0].modulation(torch.nn.functional.silu(c)).abs().max() > SOFT.alpha


def test_golden_sinusoid():
    assert sinusoid(torch.tensor([0.0]), 4).tolist() == [[1.0, 1.0, 0.0, 0.0]]
    first = sinusoid(torch.tensor([1.0]), 4)[0]
    at = torch.tensor([1.0, 0.01])
    torch.testing.assert_close(first, torch.cat([at.cos(), at.sin()]))


def test_config_round_trip_and_refusals():
    config = DiTConfig(**SMALL, bound=SOFT)
    assert DiTConfig.from_json(config.as_json()) == config
    for bad in (dict(patch=7), dict(heads=5), dict(depth=0), dict(covariates=1)):
        with pytest.raises(ValueError, match="DiT"):
            DiTConfig(**{**SMALL, **bad})
    with pytest.raises(ValueError, match="gamma"):
        AdaLNBound(gamma=0.0)
