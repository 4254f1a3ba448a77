"""The net: many at once equal one by one, a home's result does not depend on its company, gradients against differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import threadpoolctl
import torch

from fedenergy.forecast import net
from fedenergy.forecast.net import Local, first_weights, mean_square, predict, train_many, train_one, train_vmapped


def homes(count: int, features: int = 5, hidden: int = 6, steps: int = 4, batch: int = 33,
          control: bool = False) -> list[Local]:
    draw = np.random.default_rng(1)
    found = []
    for at in range(count):
        start = {name: values + 0.1 * draw.normal(size=values.shape)
                 for name, values in first_weights(features, hidden, at).items()}
        pull = {name: 0.1 * draw.normal(size=values.shape) for name, values in start.items()} if control else None
        found.append(Local(start, draw.normal(size=(steps, batch, features)), draw.normal(size=(steps, batch)), pull))
    return found


@pytest.mark.parametrize("together", [train_many, train_vmapped])
@pytest.mark.parametrize("control", [False, True])
def test_many_at_once_equal_one_by_one(control, together):
    many = homes(20, control=control)
    many[3] = replace(many[3], control=None)
    for one, fast in zip(many, together(many, 0.1, proximal=0.3), strict=True):
        slow = train_one(one, 0.1, proximal=0.3)
        for name in net.NAMES:
            np.testing.assert_allclose(fast[name], slow[name], rtol=1e-6, atol=1e-6)
            assert not np.array_equal(fast[name], one.weights[name])


@pytest.mark.parametrize(("features", "hidden", "batch", "train"), [
    (9, 16, 64, train_many), (5, 6, 33, train_many), (12, 24, 7, train_many), (1, 1, 1, train_many),
    (40, 130, 200, train_many), (5, 6, 33, train_vmapped)])
def test_a_home_gets_the_same_bits_in_any_company(features, hidden, batch, train):
    many = homes(2 * net.CHUNK + 5, features, hidden, 3, batch)
    together = train(many, 0.1)
    draw = np.random.default_rng(0)
    companies = [[at] for at in range(0, len(many), 7)] + [draw.permutation(len(many))[:size] for size in (2, 3, 16, 17, 36)]
    for chosen in companies:
        for at, alone in zip(chosen, train([many[at] for at in chosen], 0.1), strict=True):
            assert all(np.array_equal(alone[name], together[at][name]) for name in net.NAMES)


def test_threads_change_nothing_and_are_put_back():
    """A product large enough to be shared out among threads, were it allowed."""
    before, many, blas = torch.get_num_threads(), homes(2, 60, 200, 1, 3_000), threadpoolctl.ThreadpoolController()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with blas.limit(limits=threads, user_api="blas"):
                found.append([*train_many(many, 0.1), *train_vmapped(many, 0.1),
                              {name: predict(many[0].weights, many[0].x[0]) for name in net.NAMES}])
                assert {one["num_threads"] for one in blas.info() if one["user_api"] == "blas"} == {threads}
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(*found, strict=True) for name in net.NAMES)


def test_any_net_is_trained_at_once():
    """A line through the points, whose gradient nobody wrote out."""
    draw = np.random.default_rng(0)
    many = [Local({"slope": np.array([float(at)])}, x, 3 * x[:, :, 0])
            for at, x in enumerate(draw.normal(size=(5, 80, 9, 1)))]

    def loss(weights, x, y):
        return ((x @ weights["slope"] - y) ** 2).mean()

    for one, fast in zip(many, train_vmapped(many, 0.1, loss=loss), strict=True):
        np.testing.assert_allclose(fast["slope"], train_one(one, 0.1, loss=loss)["slope"], rtol=1e-12)
        np.testing.assert_allclose(fast["slope"], 3.0, rtol=1e-4)


def test_one_step_goes_down_the_gradient():
    """Against central differences of the loss, which no line of the net's code computes."""
    (home,) = homes(1, 3, 2, 1, 10)
    (after,) = train_many([home], 1.0)
    for name, values in home.weights.items():
        for at in np.ndindex(values.shape):
            sides = []
            for sign in (1, -1):
                moved = {key: one.copy() for key, one in home.weights.items()}
                moved[name][at] += sign * 1e-5
                sides.append(mean_square(moved, home.x[0], home.y[0]))
            assert values[at] - after[name][at] == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_the_proximal_term_holds_the_model_back_and_control_shifts_it():
    (home,) = homes(1, steps=30)

    def moved(local: Local, proximal: float = 0.0) -> float:
        (after,) = train_many([local], 0.05, proximal)
        return sum(float(np.sum((after[name] - home.weights[name]) ** 2)) for name in net.NAMES) ** 0.5

    assert moved(home, 5.0) < 0.7 * moved(home)
    (plain,) = train_many([Local(home.weights, home.x[:1], home.y[:1])], 0.1)
    pull = {name: np.ones_like(values) for name, values in home.weights.items()}
    (pulled,) = train_many([Local(home.weights, home.x[:1], home.y[:1], pull)], 0.1)
    for name in net.NAMES:
        np.testing.assert_allclose(plain[name] - pulled[name], 0.1, atol=1e-12)


def test_prediction_by_hand():
    weights = {net.HIDDEN: np.array([[1.0], [0.0]]), net.BIAS: np.array([0.5]), net.OUT: np.array([2.0]),
               net.LEVEL: np.array([3.0])}
    np.testing.assert_allclose(predict(weights, np.array([[0.25, 9.0]])), [2 * np.tanh(0.75) + 3])
    assert mean_square(weights, np.zeros((0, 2)), np.zeros(0)) == 0.0
