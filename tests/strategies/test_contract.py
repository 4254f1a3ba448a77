"""Every strategy keeps the contract; arguments that make no sense are refused with the rule."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum

from fedenergy.errors import ConfigError
from fedenergy.testing import check_strategy
from strategies.byzantine import Byzantine
from strategies.central_gaussian import CentralGaussian
from strategies.central_laplace import CentralLaplace
from strategies.central_unbounded import CentralUnbounded
from strategies.drop_cautious import DropCautious
from strategies.inverse_variance import InverseVariance
from strategies.non_negative import NonNegative
from strategies.non_private import NonPrivate
from strategies.public_prior import PublicPrior
from strategies.secure_sum import SecureSum
from strategies.trimmed_mean import TrimmedMean
from strategies.zonal_gaussian import ZonalGaussian
from strategies.zonal_median import ZonalMedian
from strategies.zonal_sum import ZonalSum
from tests.strategies.zone import aggregated, replies

MAKERS = {
    "ZonalSum": ZonalSum, "CentralLaplace": CentralLaplace, "SecureSum": SecureSum, "NonPrivate": NonPrivate,
    "ZonalGaussian": ZonalGaussian, "CentralGaussian": CentralGaussian,
    "CentralUnbounded": CentralUnbounded, "InverseVariance": InverseVariance,
    "DropCautious": lambda: DropCautious(floor=0.5), "ZonalMedian": ZonalMedian, "TrimmedMean": TrimmedMean,
    "NonNegative": lambda: NonNegative(public=True), "PublicPrior": PublicPrior,
    "PublicPrior, weight": lambda: PublicPrior(weight=0.5), "PublicPrior, profile": lambda: PublicPrior(prior=range(5)),
    "Byzantine sum": lambda: Byzantine("strategies.secure_sum:SecureSum"),
    "Byzantine oracle": lambda: Byzantine("strategies.non_private:NonPrivate"),
    "Byzantine prior": lambda: Byzantine("strategies.public_prior:PublicPrior", arguments={"weight": 0.5}),
    "Byzantine Krum": lambda: Byzantine("flwr.serverapp.strategy:Krum", arguments={"num_malicious_nodes": 1}),
    "FedAvg": FedAvg, "FedMedian": FedMedian, "FedTrimmedAvg": FedTrimmedAvg, "Krum": Krum,
}
LOCAL = [name for name, make in MAKERS.items() if getattr(make(), "trust", "local") == "local"]


@pytest.mark.parametrize("name", MAKERS)
def test_check_strategy_passes(name):
    assert check_strategy(MAKERS[name]) == []


@pytest.mark.parametrize("name", LOCAL)
def test_homes_are_exchangeable(name):
    rng = np.random.default_rng(3)
    values, epsilons = rng.integers(-2**20, 2**20, (15, 5)) / 2**10, rng.choice([0.2, 1.0, 2.0], 15)
    messages = replies(values, epsilons)
    order = rng.permutation(15)
    assert np.allclose(aggregated(MAKERS[name](), messages),
                       aggregated(MAKERS[name](), [messages[at] for at in order]), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("name", ["InverseVariance", "DropCautious", "ZonalMedian", "TrimmedMean", "NonNegative",
                                  "PublicPrior", "PublicPrior, weight", "FedAvg", "FedMedian"])
def test_equal_answers_are_the_answer(name):
    """A zone of equal homes without noise: n times the estimate is its sum, exactly."""
    row = np.array([3.0, 0.5, 0.0, 8.25, 2.0**-15])
    assert np.array_equal(aggregated(MAKERS[name](), replies(np.tile(row, (8, 1)), np.full(8, 1.0))), row)


@pytest.mark.parametrize(("make", "word"), [
    (lambda: DropCautious(0), "floor = 0"), (lambda: DropCautious(float("nan")), "floor = nan"),
    (lambda: TrimmedMean(0.5), "share = 0.5"), (lambda: TrimmedMean(-0.1), "0 <= share < 0.5"),
    (lambda: TrimmedMean(True), "share = True"), (lambda: NonNegative(False), "everybody knows"),
    (lambda: PublicPrior(weight=1.1), "weight = 1.1"), (lambda: PublicPrior(prior=[0, 0]), "not all 0"),
    (lambda: PublicPrior(prior=[1, float("inf")]), "finite"),
    (lambda: Byzantine("strategies.zonal_sum:ZonalSum", share=2), "share = 2"),
    (lambda: Byzantine("strategies.zonal_sum:ZonalSum", size=float("inf")), "size = inf")])
def test_senseless_arguments_are_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_the_inner_strategy_is_checked_like_a_config():
    with pytest.raises(ConfigError, match='no "ZonalSun"'):
        Byzantine("strategies.zonal_sum:ZonalSun")
    with pytest.raises(ConfigError, match="flor"):
        Byzantine("strategies.drop_cautious:DropCautious", arguments={"flor": 1})


def test_a_prior_of_another_length_is_refused():
    with pytest.raises(ValueError, match="2 numbers, the answers have 5"):
        aggregated(PublicPrior(prior=[1, 2]), replies(np.ones((3, 5)), np.ones(3)))
