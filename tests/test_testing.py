"""check_strategy and check_population find what is wrong, and pass what is right."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedMedian

import fedenergy as fe
from fedenergy.testing import check_population, check_strategy
from strategies.central_laplace import CentralLaplace
from strategies.non_private import NonPrivate
from strategies.secure_sum import SecureSum
from strategies.zonal_sum import ZonalSum


@pytest.mark.parametrize("make", [ZonalSum, CentralLaplace, SecureSum, NonPrivate, FedAvg, FedMedian])
def test_good_strategies_pass(make):
    assert check_strategy(make) == []


class Order(fe.ZoneStrategy):
    def combine(self, answers):
        return answers.values[0]


class Random(fe.ZoneStrategy):
    rng = np.random.default_rng()

    def combine(self, answers):
        return answers.values.sum(axis=0) + self.rng.normal()


class Shape(fe.ZoneStrategy):
    def combine(self, answers):
        return answers.values


class Spoils(fe.ZoneStrategy):
    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        for reply in replies:
            reply.content["arrays"].clear()
        return result

    def combine(self, answers):
        return answers.values.sum(axis=0)


class Holds(fe.ZoneStrategy):
    def combine(self, answers):
        self.seen = object()
        return answers.values.sum(axis=0)


class Silent(fe.ZoneStrategy):
    def configure_train(self, server_round, arrays, config, grid):
        return []

    def combine(self, answers):
        return answers.values.sum(axis=0)


class Odd(ZonalSum):
    trust = "everyone"


@pytest.mark.parametrize(("make", "word"), [
    (Order, "order"), (Random, "fresh instances"), (Shape, r"float \(d,\)"), (Spoils, "changes the replies"),
    (Holds, "resumed"), (Silent, "no message"), (Odd, "trust mode"), (dict, "no flwr"),
    (lambda: 1 / 0, "cannot be made")])
def test_bad_strategies_are_told_what_is_wrong(make, word):
    problems = check_strategy(make)
    assert len(problems) >= 1
    assert any(re.search(word, problem) for problem in problems), problems


def test_populations():
    homes = fe.simulate_households(5, steps=200, seed=1)
    assert check_population(homes) == []
    assert check_population(object())[0].startswith("it has no name")

    @dataclasses.dataclass(frozen=True)
    class Wrong:
        inner: object
        name, unit, step_minutes, steps = "wrong", "household", 60, 10

        def __len__(self):
            return 5

        @property
        def channels(self):
            return self.inner.channels

        ids = property(lambda self: ["x"] * 5)

        def load(self, index):
            return self.inner.load(index)

        def identity(self):
            return {"x": {1, 2}}

    problems = " ".join(check_population(Wrong(homes)))
    for word in ("different", "canonical JSON", "more than population.steps", "but ids[0]"):
        assert word in problems
