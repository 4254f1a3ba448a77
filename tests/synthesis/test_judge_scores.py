"""Classifier, forecaster, embedding, canaries and top-decile overlap: what they must see, and what they must not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedenergy import synthesis as syn
from fedenergy.synthesis import judge_canaries as canary
from fedenergy.synthesis.judge_classifier import discriminative
from fedenergy.synthesis.judge_downstream import forecast
from fedenergy.synthesis.judge_embedding import embed
from fedenergy.synthesis.judge_privacy import top_overlap

MONDAY = np.datetime64("2013-01-07")


@pytest.mark.parametrize("unit", ["day", "home"])
def test_statistics_discriminative_between_blind_and_certain(homes, holdout, unit):
    same = discriminative(homes.values, holdout, unit)
    other = discriminative(homes.values, np.roll(homes.values, 6, axis=1), unit)
    assert same["score"] < 0.12 < other["score"]
    assert other["auc"] > 0.8


def test_discriminative_keeps_a_homes_rows_on_one_side(homes):
    """Constant homes, a level of their own each: only the level could tell, and it is never seen twice."""
    level = np.random.default_rng(0).uniform(1, 2, (2, 40, 1))
    flat = np.repeat(level, 240, axis=2)
    assert discriminative(flat[0], flat[1], "day")["score"] < 0.2


def test_golden_forecast_of_a_perfect_rule():
    """x[t] = x[t - 24] exactly: training finds it on real and fake alike, and yesterday's value is right."""
    day = np.random.default_rng(0).gamma(2, 1, (8, 24))
    values = np.tile(day, 10)
    found = forecast(values[:4], values[2:6], values[6:], MONDAY)
    assert found["yesterday"] == pytest.approx(0)
    assert found["real"] < 0.05


def test_statistics_forecast_from_noise_is_worse(homes, holdout):
    noise = np.random.default_rng(0).permuted(homes.values, axis=1)
    assert forecast(homes.values, noise, holdout, homes.start)["ratio"] > 1.2
    with pytest.raises(ValueError, match="too few to train"):
        forecast(homes.values[:, :48], homes.values[:, :48], holdout[:, :48], homes.start)


@pytest.mark.parametrize("unit", ["day", "home"])
def test_contract_embedding(homes, unit):
    found = embed(homes.values, 3 * homes.values, unit, most=40)
    assert found["pca"].shape == found["tsne"].shape == (80, 2)
    assert found["fake"].sum() == 40
    assert 0 < found["explained"].sum() <= 1
    again = embed(homes.values, 3 * homes.values, unit, most=40)
    np.testing.assert_array_equal(again["tsne"], found["tsne"])


def test_golden_epsilon_lower():
    # all 20 of 20 right: (e^eps / (1 + e^eps))^20 = .05, so e^eps / (1 + e^eps) = .8609 and eps = log(6.19)
    assert canary.epsilon_lower(20, 20, 20) == pytest.approx(math.log(0.05 ** (1 / 20) / (1 - 0.05 ** (1 / 20))), abs=1e-6)
    assert canary.epsilon_lower(0, 0, 20) == 0
    assert canary.epsilon_lower(100, 95, 100, 1e-3) < canary.epsilon_lower(100, 95, 100)
    with pytest.raises(ValueError, match="cannot be"):
        canary.epsilon_lower(10, 11, 20)


def test_statistics_epsilon_lower_refutes_no_true_claim():
    """Randomised response at epsilon = 1 tells each coin with probability e / (1 + e): its bound is above 1 in about 5 %."""
    right = np.random.default_rng(0).binomial(200, math.e / (1 + math.e), size=300)
    above = np.mean([canary.epsilon_lower(200, int(k), 200) > 1.0 for k in right])
    assert above <= 0.08


def test_canaries_find_a_generator_that_copies_and_none_that_does_not_look(homes):
    found = canary.canaries(homes, lambda panel: syn.synthesise(panel, seed=1, variant="raw_shuffle"), claimed=1.0)
    assert found["auc"] > 0.99
    assert found["epsilon_lower"] > 1.0
    assert found["falsified"] == 1.0
    blind = canary.canaries(homes, lambda panel: syn.synthesise(homes, seed=1), claimed=1.0)
    assert blind["epsilon_lower"] < 1.0
    assert blind["falsified"] == 0.0


def test_contract_canaries_are_homes_and_nobodys(homes):
    made = canary.canary_homes(homes, 10, seed=3)
    assert made.shape == (10, 744)
    assert 0 <= made.min() <= made.max() <= homes.cap_kwh
    assert np.abs(made[:, None] - homes.values[None]).max(axis=2).min() > 0.1
    with pytest.raises(ValueError, match="pairs = 1"):
        canary.canaries(homes, lambda panel: None, pairs=1)


def test_top_overlap_is_a_leak_where_identity_is_kept(homes):
    kept = syn.synthesise(homes, seed=1, variant="components")
    found = top_overlap(homes.values, kept.values, kept._provenance, homes.start)
    assert found["chance"] == pytest.approx(0.1)
    assert found["uDRP"] > 0.5
    mixed = syn.synthesise(homes, seed=1)
    assert top_overlap(homes.values, mixed.values, mixed._provenance, homes.start) == {}
