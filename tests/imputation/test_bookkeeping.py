"""Per-record clipping: three engines agree, and the rules that privacy rests on hold on every kind of net."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedenergy.imputation.bookkeeping import BookKeeping, Clip, Opacus, _by_gram, _by_symmetry, square_norms
from tests.imputation.toys import NETS, Batch, by_hand, make


def clipped(engine, net, batch, clip):
    sums = [torch.zeros_like(p) for p in net.parameters()]
    losses, norms = engine.add_clipped(lambda: batch.losses(net), batch.records, clip, sums)
    return torch.cat([s.flatten() for s in sums]), losses, norms


def middle(net, batch) -> Clip:
    """A bound that clips about half of the records."""
    return Clip(float(by_hand(net, batch, Clip(1.0))[1].median()))


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("name", NETS)
def test_oracle_engines_agree(name, draws):
    net, batch = make(name), Batch(draws=draws)
    clip = middle(net, batch)
    wanted, norms = by_hand(net, batch, clip)
    assert (norms > clip.bound).any()
    for kind in (BookKeeping, Opacus):
        engine = kind(net)
        found, losses, found_norms = clipped(engine, net, batch, clip)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
        torch.testing.assert_close(found_norms, norms, rtol=1e-5, atol=0)
        torch.testing.assert_close(losses, batch.losses(net).detach(), rtol=1e-5, atol=0)
        getattr(engine, "close", lambda: None)()


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", NETS)
def test_oracle_vmap(name):
    net, batch = make(name), Batch(5)
    clip = middle(net, batch)
    names = [n for n, _ in net.named_parameters()]
    values = {n: p.detach() for n, p in net.named_parameters()}

    def loss(parameters, x0, noise, mask, t):
        one = Batch(1)
        one.x0, one.noise, one.mask, one.t = x0[None], noise[None], mask[None], t[None]
        return one.losses(lambda *a: torch.func.functional_call(net, parameters, a)).sum()

    torch.manual_seed(0)
    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0, 0), randomness="same")(
        values, batch.x0, batch.noise, batch.mask, batch.t)
    rows = torch.cat([grads[n].flatten(1) for n in names], 1)
    wanted = clip(rows.double().norm(dim=1).float()) @ rows
    found, _, _ = clipped(BookKeeping(net), net, batch, clip)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", NETS)
def test_contract_a_record_depends_on_itself_only(name):
    net, batch, clip = make(name), Batch(draws=2), Clip(0.05)
    other = Batch(draws=2, seed=9)
    for field in ("x0", "noise", "mask", "t"):
        getattr(other, field)[0] = getattr(batch, field)[0]
    norms = [clipped(BookKeeping(net), net, b, clip)[2][0] for b in (batch, other, batch.part([0]))]
    torch.testing.assert_close(norms[1], norms[0], rtol=2e-6, atol=0)
    torch.testing.assert_close(norms[2], norms[0], rtol=2e-6, atol=0)
    without = [clipped(BookKeeping(net), net, b.part([1, 2, 3, 4, 5]), clip)[0] for b in (batch, other)]
    parts = [clipped(BookKeeping(net), net, b, clip)[0] - w for b, w in zip((batch, other), without)]
    torch.testing.assert_close(parts[0], parts[1], rtol=0, atol=1e-6)
    assert (without[0] - without[1]).norm() > 1e-3


@pytest.mark.parametrize("rule", ["flat", "automatic"])
@pytest.mark.parametrize("name", NETS)
def test_contract_no_record_exceeds_the_bound(name, rule):
    net, batch = make(name), Batch(8, draws=2)
    for bound in (1e-3, 0.7):
        for row in range(batch.records):
            found, _, _ = clipped(BookKeeping(net), net, batch.part([row]), Clip(bound, rule))
            assert 0 < found.double().norm() <= bound * (1 + 1e-6)


@pytest.mark.parametrize("engine", [BookKeeping, Opacus])
def test_contract_a_broken_record_adds_nothing_and_breaks_nobody(engine):
    net, batch = make("dit"), Batch(4)
    good = clipped(BookKeeping(net), net, batch.part([0, 1, 3]), Clip(0.1))[0]
    batch.x0[2, 5] = float("nan")
    built = engine(net)
    found, _, norms = clipped(built, net, batch, Clip(0.1))
    assert not norms[2].isfinite()
    torch.testing.assert_close(found, good, rtol=1e-5, atol=1e-7)
    getattr(built, "close", lambda: None)()


def test_contract_gram_and_direct_give_the_same_norms():
    torch.manual_seed(0)
    for tokens, i, o in ((1, 5, 7), (4, 50, 60), (60, 4, 5)):
        x, g = torch.randn(3, tokens, i), torch.randn(3, tokens, o)
        w, b = torch.einsum("rno,rni->roi", g, x), g.sum(1)
        for weight in (True, False):
            for bias in (True, False):
                if not (weight or bias):
                    continue
                wanted = weight * w.square().sum((1, 2)) + bias * b.square().sum(1)
                found = square_norms(x, g, weight, bias).float()
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [2, 3, 4, 7, 13])
def test_contract_half_of_the_gram_matrices_is_enough(tokens):
    """The compiled kernel (float32) against whole Gram matrices (float64), also past its tiles of four tokens."""
    torch.manual_seed(tokens)
    x, g = torch.randn(5, tokens, 70), torch.randn(5, tokens, 33)
    for bias in (True, False):
        found, wanted = _by_symmetry(x, g, bias), _by_gram(x.double(), g.double(), bias)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
        assert torch.equal(found, square_norms(x, g, True, bias))
        x[3, 1, 2] = float("nan")
        assert _by_symmetry(x, g, bias).isfinite().tolist() == [True, True, True, False, True]
        x[3, 1, 2] = 0.0


def test_contract_norms_are_the_same_bytes_on_any_number_of_threads():
    x, g = torch.randn(7, 9, 40), torch.randn(7, 9, 50)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(_by_symmetry(x, g, True))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_contract_only_trained_layers_are_read():
    net, batch, clip = make("dit"), Batch(4), Clip(1e9)
    for name, p in net.named_parameters():
        p.requires_grad_("modulation" in name)
    engine = BookKeeping(net)
    sums = [torch.zeros_like(p) for p in engine.parameters]
    engine.add_clipped(lambda: batch.losses(net), 4, clip, sums)
    batch.losses(net).sum().backward()
    for p, found in zip(engine.parameters, sums):
        torch.testing.assert_close(found, p.grad, rtol=1e-4, atol=1e-6)
    assert [p.requires_grad for p in net.parameters()] == ["modulation" in n for n, _ in net.named_parameters()]


def test_other_layers_are_refused_by_name():
    net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    with pytest.raises(TypeError, match=r"1\.weight"):
        BookKeeping(net)
    with pytest.raises(ValueError, match="one loss per record"):
        BookKeeping(make("dit")).add_clipped(lambda: torch.zeros(()), 6, Clip(1.0), [])
