"""Limits on the conditioning path: what holds in the forward pass, and the bound on ||g_cond|| that follows."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedenergy.imputation.bookkeeping import BookKeeping
from fedenergy.imputation.bound import GELU, SILU, conditioning_bound
from fedenergy.imputation.diagnose import Split, conditioning_layers
from fedenergy.imputation.dit import DiT, DiTConfig, conditioning_parameters
from fedenergy.imputation.limits import LEVELS, AdaLNBound, CrossAttentionBound, limited, projected
from fedenergy.imputation.objective import Objective, noised
from fedenergy.imputation.schedule import alpha_bar
from tests.imputation.toys import SMALL

LIMITS = AdaLNBound(c=2.0, gamma=0.3, beta=0.2, alpha=0.1)


def record(seed: int, scale: float, rows: int = 3):
    """Rows of (x_t, t, observed, mask), what they should predict, and alpha_bar: values of any size."""
    g = torch.Generator().manual_seed(seed)
    x0, noise = (torch.randn(rows, 24, 1, generator=g) for _ in range(2))
    x0 = x0 * scale
    mask = (torch.rand(rows, 24, 1, generator=g) < 0.5).float()
    mask[:, 0] = 0.0                                                  # a missing position at least
    t = torch.randint(0, 1000, (rows,), generator=g)
    a = alpha_bar("linear")[t].float()
    return noised(x0, noise, a.view(-1, 1, 1)), t, x0 * mask, mask, x0, noise, a


def net_of(seed: int, limits: AdaLNBound | None, size: float, pooled: bool = True, modulation: float = 0.0) -> DiT:
    """A net with random weights of that size; modulation: added to every bias of its modulation layers."""
    torch.manual_seed(seed)
    net = DiT(DiTConfig(**SMALL, pooled=pooled, bound=limits))
    with torch.no_grad():
        for p in net.parameters():
            p.add_(size * torch.randn_like(p))
        for layer in (net.modulation, *(block.modulation for block in net.blocks)):
            layer.bias.add_(modulation)
    return net


def measured(net: DiT, seed: int, scale: float, objective: Objective) -> tuple[list[float], list[float], float]:
    """||g_cond|| and the norm of the target of each row, and the largest norm of the net's output."""
    x_t, t, seen, mask, x0, noise, a = record(seed, scale)
    split = Split(BookKeeping(net), conditioning_layers(net))
    out = []

    def losses():
        out.append(net(x_t, t, seen, mask))
        return objective.losses(out[0], x0, noise, a, mask < 0.5)
    split.add_clipped(losses, len(t), torch.zeros_like, [torch.zeros_like(p) for p in net.parameters()])
    wanted = objective.wanted(x0, noise, a.view(-1, 1, 1)) * (mask < 0.5)
    largest = float(out[0].detach().flatten(1).norm(dim=1).max())
    return split.parts[0].tolist(), wanted.flatten(1).norm(dim=1).tolist(), largest


def bound_of(net: DiT, seed: int, scale: float, target: float, **more):
    _, _, seen, mask, *_ = record(seed, scale)
    patches = torch.cat([seen, mask], -1).reshape(3, 24 // net.config.patch, -1)
    return conditioning_bound(net, target, patch_norm=float(patches.norm(dim=-1).max()), **more)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(0.0, 2.0), scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
       soft=st.booleans(), pooled=st.booleans(), factor=st.sampled_from([0.01, 1.0, 20.0]),
       modulation=st.sampled_from([0.0, 1.0, 1e3]), target=st.sampled_from(["eps", "v", "x0"]),
       reduction=st.sampled_from(["mean", "sum"]))
def test_property_no_gradient_exceeds_the_bound(seed, size, scale, soft, pooled, factor, modulation, target, reduction):
    limits = AdaLNBound(**{**vars(LIMITS), "soft": soft}).scaled(factor)
    net = net_of(seed, limits, size, pooled, modulation)
    norms, targets, output = measured(net, seed, scale, Objective(target, reduction=reduction))
    found = bound_of(net, seed, scale, max(targets))
    assert max(norms) <= found.total * (1 + 1e-4)
    assert output <= found.output * (1 + 1e-4)
    assert math.isfinite(found.total)


def spread_of(net: DiT, seed: int, scale: float) -> float:
    """The least standard deviation of a token that a LayerNorm of the net reads."""
    least = []
    hooks = [m.register_forward_pre_hook(lambda _, x: least.append(x[0].std(-1, correction=0).min()))
             for m in net.modules() if isinstance(m, nn.LayerNorm)]
    with torch.no_grad():
        net(*record(seed, scale)[:4])
    for hook in hooks:
        hook.remove()
    return float(min(least))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(0.01, 0.5), scale=st.sampled_from([1.0, 30.0]))
def test_property_nor_the_tighter_one_that_knows_the_spread_of_tokens_and_the_count(seed, size, scale):
    net = net_of(seed, LIMITS, size)
    norms, targets, _ = measured(net, seed, scale, Objective("eps"))
    counted = int((record(seed, scale)[3] < 0.5).sum((1, 2)).min())
    loose = bound_of(net, seed, scale, max(targets))
    tight = bound_of(net, seed, scale, max(targets), counted=counted, spread=0.999 * spread_of(net, seed, scale))
    assert max(norms) <= tight.total * (1 + 1e-4)
    assert tight.total <= loose.total


@pytest.mark.parametrize("seed", range(5))
def test_unbounded_adaln_violates_the_bound(seed):
    """The same weights without limits, one bias large: the bound does not depend on it, the gradient does."""
    free, kept = (net_of(seed, limits, 0.05) for limits in (None, LIMITS))
    for net in (free, kept):
        with torch.no_grad():
            net.modulation.bias.add_(1e6)
    found = {}
    for name, net in (("free", free), ("kept", kept)):
        norms, targets, _ = measured(net, seed, 1.0, Objective("eps"))
        found[name] = max(norms), bound_of(net, seed, 1.0, max(targets), bound=LIMITS,
                                           spread=0.99 * spread_of(net, seed, 1.0)).total
    assert math.isfinite(found["free"][0])
    assert found["free"][0] > found["free"][1]
    assert 0 < found["kept"][0] <= found["kept"][1]


@pytest.mark.parametrize("c", [0.5, 4.0])
def test_golden_the_gain_of_a_modulation_layer_is_met_where_the_condition_is_large(c):
    """||dL/dW, dL/db|| = ||delta|| sqrt(1 + ||silu(c)||^2), and silu(c) is nearly c where all its coordinates are large."""
    limits = AdaLNBound(c, 0.3, 0.2, 0.1)
    net = net_of(0, limits, 0.1)
    with torch.no_grad():
        net.time.second.bias.add_(100.0)             # beyond the ball, all coordinates positive
    seen, layer = {}, net.blocks[0].modulation
    layer.register_full_backward_hook(lambda _, inputs, outputs: seen.update(delta=outputs[0]))
    layer.register_forward_pre_hook(lambda _, inputs: seen.update(x=inputs[0].detach()))
    x_t, t, observed, mask, *_ = record(0, 1.0)
    net(x_t[:1], t[:1], observed[:1], mask[:1]).square().sum().backward()
    norm = torch.cat([layer.weight.grad.flatten(), layer.bias.grad]).norm()
    gain, found = norm / seen["delta"].norm(), conditioning_bound(net, 5.0, patch_norm=3.0)
    assert float(gain) == pytest.approx(float((1 + seen["x"].square().sum()).sqrt()), rel=1e-5)
    assert 0.5 * found.gain < gain <= found.gain * (1 + 1e-5)
    assert found.gain == pytest.approx(math.sqrt(1 + c**2))


def test_contract_the_bound_is_not_vacuous_where_the_blocks_are_silent():
    """Blocks that add nothing leave the final layer: within four orders of magnitude; depth does the rest."""
    net = net_of(0, LIMITS, 0.3)
    with torch.no_grad():
        for block in net.blocks:
            for p in block.parameters():
                p.zero_()
    norms, targets, _ = measured(net, 0, 1.0, Objective("eps", reduction="sum"))
    found = bound_of(net, 0, 1.0, max(targets), spread=0.99 * spread_of(net, 0, 1.0)).total
    assert max(norms) <= found < 1e4 * max(norms)


def test_contract_the_bound_grows_with_each_limit_and_needs_all_of_them():
    net = net_of(0, LIMITS, 0.1)
    base = conditioning_bound(net, 5.0, patch_norm=3.0)
    for name in ("c", "gamma", "beta", "alpha"):
        wider = AdaLNBound(**{**vars(LIMITS), name: 10 * getattr(LIMITS, name)})
        assert conditioning_bound(net, 5.0, patch_norm=3.0, bound=wider).total > base.total
        without = AdaLNBound(**{**vars(LIMITS), name: None})
        assert math.isinf(conditioning_bound(net, 5.0, patch_norm=3.0, bound=without).total)
    assert math.isinf(conditioning_bound(net, 5.0).encoder)
    assert math.isfinite(conditioning_bound(net, 5.0).modulation)
    assert conditioning_bound(net, 50.0, patch_norm=3.0).total > base.total > conditioning_bound(
        net, 5.0, counted=4, patch_norm=3.0).total


def test_golden_the_slopes_used():
    x = torch.linspace(-10, 10, 200_001, dtype=torch.float64, requires_grad=True)
    for function, slope in ((F.silu, SILU), (lambda y: F.gelu(y, approximate="tanh"), GELU)):
        (found,) = torch.autograd.grad(function(x).sum(), x)
        assert 0.99 * slope < found.abs().max() <= slope
        assert (function(x).abs() <= x.abs()).all()


# ---- limits

def test_golden_levels_and_scopes():
    assert LEVELS == {"loose": 1.0, "medium": 0.9, "tight": 0.75, "too tight": 0.5}
    assert LIMITS.only("c only") == AdaLNBound(c=2.0)
    assert LIMITS.only("modulation only") == AdaLNBound(gamma=0.3, beta=0.2, alpha=0.1)
    assert LIMITS.only("both") == LIMITS
    assert AdaLNBound(c=2.0, soft=False).scaled(0.75) == AdaLNBound(c=1.5, soft=False)
    with pytest.raises(ValueError, match="scope"):
        LIMITS.only("half")
    for kind in (AdaLNBound, CrossAttentionBound):
        with pytest.raises(ValueError, match=f"{kind.__name__} "):
            kind(**{next(iter(kind.__dataclass_fields__)): -1.0})


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(-2.0**99, 2.0**99, width=32), min_size=2, max_size=8), most=st.floats(1e-3, 1e3),
       soft=st.booleans())
def test_property_limits_are_odd_monotone_and_never_exceeded(values, most, soft):
    x = torch.tensor(values)
    found = limited(x, most, soft)
    assert found.abs().max() <= most * (1 + 1e-6)
    assert torch.equal(limited(-x, most, soft), -found)
    order = x.argsort()
    assert (found[order].diff() >= 0).all()
    if x.double().norm() < 1e15:
        assert projected(x, most).norm() <= most * (1 + 1e-5)
    assert torch.equal(limited(x, None), x)


# ---- cross-attention, the named extension

def crossing(bound: CrossAttentionBound, seed: int = 0, size: float = 0.0) -> DiT:
    torch.manual_seed(seed)
    net = DiT(DiTConfig(**SMALL, cross=bound))
    with torch.no_grad():
        for p in net.parameters():
            p.add_(size * torch.randn_like(p))
    return net


def test_contract_cross_attention_starts_at_zero_and_is_bounded():
    bound = CrossAttentionBound(context=1.0, value=0.5, out=0.25)
    x_t, t, seen, mask, *_ = record(0, 1.0)
    assert (crossing(bound)(x_t, t, seen, mask) == 0).all()
    net = crossing(bound, size=3.0)
    added = []
    for block in net.blocks:
        block.cross.register_forward_hook(lambda *a: added.append(a[2].abs().max()))
    with torch.no_grad():
        assert net(x_t, t, seen * 1e6, mask).isfinite().all()
    assert max(added) <= 0.25 * (1 + 1e-6)
    free = crossing(CrossAttentionBound(), size=3.0)
    added.clear()
    free.blocks[0].cross.register_forward_hook(lambda *a: added.append(a[2].abs().max()))
    with torch.no_grad():
        free(x_t, t, seen * 1e6, mask)
    assert max(added) > 1.0
    other = crossing(bound, size=0.2)
    assert (other(x_t, t, seen + mask, mask) - other(x_t, t, seen, mask)).abs().max() > 1e-4


def test_contract_cross_attention_trains_by_book_keeping_and_keeps_rows_apart():
    net = crossing(CrossAttentionBound(context=1.0), size=0.2)
    x_t, t, seen, mask, *_ = record(1, 1.0)
    BookKeeping(net)                                                  # every trainable tensor is a Linear's
    alone = torch.cat([net(*(x[k:k + 1] for x in (x_t, t, seen, mask))) for k in range(3)])
    torch.testing.assert_close(net(x_t, t, seen, mask), alone, rtol=1e-4, atol=1e-5)
    names = {id(p) for p in conditioning_parameters(net)}
    assert {id(p) for p in net.blocks[0].cross.parameters()} | {id(net.context.weight)} <= names
    assert DiTConfig.from_json(net.config.as_json()) == net.config
    assert math.isinf(conditioning_bound(net, 1.0).total)
