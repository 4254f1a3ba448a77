"""Schedules and objectives: the algebra of eps, v and x0, weights, and losses that stay within a record."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.imputation.objective import Objective, noise_of, noised
from fedenergy.imputation.schedule import alpha_bar, ddim_times, snr

A = st.floats(1e-6, 1 - 1e-6)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_contract_schedules_fall_from_one_towards_zero(name):
    a = alpha_bar(name)
    assert a.shape == (1000,)
    assert a.dtype == torch.float64
    assert (a.diff() < 0).all()
    assert 0 < a[-1] < 1e-4
    assert 0.999 < a[0] < 1


def test_golden_cosine():
    a = alpha_bar("cosine")
    f = torch.cos((torch.tensor([501 / 1000, 0.0], dtype=torch.float64) + 0.008) / 1.008 * torch.pi / 2) ** 2
    torch.testing.assert_close(a[500], f[0] / f[1])
    assert float(a[999]) == pytest.approx(2.4e-9, rel=0.02)
    assert float(a[999] ** -0.5) == pytest.approx(20_291, rel=1e-3)        # what eps-prediction's error is multiplied by


def test_golden_linear():
    a = alpha_bar("linear")
    assert float(a[0]) == pytest.approx(1 - 1e-4)
    assert float(a[1]) == pytest.approx((1 - 1e-4) * (1 - 1e-4 - (0.02 - 1e-4) / 999))


@pytest.mark.parametrize("call", [lambda: alpha_bar("cos"), lambda: alpha_bar("cosine", 1), lambda: ddim_times(0),
                                  lambda: ddim_times(50, start_t=1000), lambda: ddim_times(7, start_t=5)])
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError):
        call()


@settings(max_examples=60, deadline=None)
@given(target=st.sampled_from(["eps", "v", "x0"]), a=A, seed=st.integers(0, 1000))
def test_contract_a_perfect_network_gives_back_x0_and_noise(target, a, seed):
    g = torch.Generator().manual_seed(seed)
    x0, noise = (torch.randn(3, 8, 1, generator=g, dtype=torch.float64) for _ in range(2))
    a = torch.tensor(a, dtype=torch.float64)
    objective, x_t = Objective(target), noised(x0, noise, a)
    found_x0, found_noise = objective.split(objective.wanted(x0, noise, a), x_t, a)
    torch.testing.assert_close(found_x0, x0, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found_noise, noise, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(noise_of(x0, x_t, a), noise, rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(a=A)
def test_contract_min_snr_weighs_every_target_alike(a):
    """|v error|^2 = (snr + 1) |x0 error|^2 and |eps error|^2 = snr |x0 error|^2, at the same x_t."""
    a = torch.tensor([a], dtype=torch.float64)
    weight = {t: Objective(t, weight="min_snr(5)").weights(a) for t in ("eps", "v", "x0")}
    torch.testing.assert_close(weight["eps"] * snr(a), weight["x0"])
    torch.testing.assert_close(weight["v"] * (snr(a) + 1), weight["x0"])
    assert weight["x0"] <= 5


def test_golden_weights():
    a = torch.tensor([0.2, 0.9])
    assert Objective("v", weight="static(.6)").weights(a).tolist() == pytest.approx([0.6, 0.6])
    assert Objective("v", weight="alpha_bar").weights(a).tolist() == pytest.approx([0.2, 0.9])
    assert Objective("eps").weights(a).tolist() == [1.0, 1.0]
    assert Objective("v", weight="alpha_bar").name == "v alpha_bar"


@pytest.mark.parametrize("bad", [dict(target="y"), dict(weight="static"), dict(weight="static(0)"), dict(draws=0),
                                 dict(weight="alpha_bar(2)"), dict(loss_on="some"), dict(reduction="none"),
                                 dict(weight="nope"), dict(draws=1.5)])
def test_unknown_objectives_are_refused(bad):
    with pytest.raises(ValueError, match="objective"):
        Objective(**bad)


def test_contract_a_loss_is_normalised_within_its_record():
    torch.manual_seed(0)
    out, x0, noise = (torch.randn(4, 6, 2) for _ in range(3))
    counted = torch.rand(4, 6, 2) < 0.5
    a = torch.rand(4)
    whole = Objective("v").losses(out, x0, noise, a, counted)
    for row in range(4):
        one = Objective("v").losses(*(x[row:row + 1] for x in (out, x0, noise, a, counted)))
        torch.testing.assert_close(one[0], whole[row])
    error = (out - Objective("v").wanted(x0, noise, a.view(-1, 1, 1))).square()
    torch.testing.assert_close(whole[0], error[0][counted[0]].mean())
    torch.testing.assert_close(Objective("v", reduction="sum").losses(out, x0, noise, a, counted)[0],
                               error[0][counted[0]].sum())
    nothing = Objective("v").losses(out, x0, noise, a, torch.zeros_like(counted))
    assert (nothing == 0).all()


def test_contract_weights_scale_gradients_exactly():
    """Proposition 1 of the source: the attenuation of one record at t is 1 - alpha_bar_t."""
    torch.manual_seed(0)
    x0, noise, counted = torch.rand(1, 8, 1), torch.randn(1, 8, 1), torch.ones(1, 8, 1, dtype=torch.bool)
    for t in (0, 500, 990):
        a = alpha_bar("cosine")[t:t + 1].float()
        norms = []
        for weight in ("none", "alpha_bar"):
            out = torch.zeros(1, 8, 1, requires_grad=True)
            Objective("v", weight=weight).losses(out, x0, noise, a, counted).sum().backward()
            norms.append(float(out.grad.norm()))
        assert 1 - norms[1] / norms[0] == pytest.approx(1 - float(a), abs=1e-6)
