"""The audit: its bounds hold at their stated confidence, correct DP-SGD passes its claim, broken mechanisms do not.

Every audit below is at 95 % confidence and a fixed seed: a correct mechanism would fail one in twenty seeds at worst.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedenergy import imputation as imp
from fedenergy.ids import stream
from fedenergy.imputation.audit import (
    at_most,
    audit,
    gaussian_bound,
    gaussian_epsilon,
    log_likelihood_ratio,
    observe,
    one_run_bound,
)
from fedenergy.imputation.bookkeeping import Clip
from fedenergy.imputation.learned import NETS
from fedenergy.privacy import accounting
from tests.imputation.toys import learned

DATA = np.random.default_rng(0).random((32, 24)) * 4
TINY = imp.DiTConfig(24, 1, patch=12, width=16, depth=1, heads=2)
SETTING = dict(steps=60, batch=140, net=TINY, limits=(0.0, 4.0), canaries=1000)
CLAIM = imp.DPSGD(clip=0.7, sigma=2.0)
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]


def run(seed=1, privacy=CLAIM, **more):
    return audit(DATA, privacy, seed=seed, **SETTING | more)


def halved(gradient):
    gradient.deviation /= 2


def loose(gradient):
    gradient.clip = Clip(5 * gradient.clip.bound)


def eager(gradient):
    """Records are drawn three times as often as stated."""
    drawn = gradient.noise.included
    gradient.noise.included = lambda n, q, step: drawn(n, 3 * q, step)


MUTANTS = {"noise halved": dict(tamper=halved), "clip x5": dict(tamper=loose), "drawn too often": dict(tamper=eager),
           "four windows of a home sold as one record": dict(windows=4, batch=500)}


@pytest.mark.parametrize("seed", SEEDS)
def test_statistics_correct_dp_sgd_passes_its_claim(seed):
    found = run(seed)
    assert found.passed
    assert 1.0 < found.bound.epsilon <= found.claimed          # the attack is no sham: it finds a good part of epsilon
    assert found.one_run <= found.claimed
    n = len(DATA) + found.inserted
    assert found.claimed == accounting.epsilon(2.0, 140 / n, 60, 1e-5)
    assert "not refuted" in str(found)
    assert "not private" in str(found)                         # seeded noise is stamped


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MUTANTS)
def test_statistics_mutants_go_red(name, seed):
    found = run(seed, **MUTANTS[name])
    assert not found.passed
    assert found.bound.epsilon > 1.2 * found.claimed
    assert "REFUTED" in str(found)


def test_statistics_one_run_alone_misses_halved_noise():
    """Why Gaussian DP is the main test: without its assumption one run shows too little."""
    found = run(1, tamper=halved)
    assert found.one_run <= found.claimed < found.bound.epsilon


def test_statistics_the_household_statement_holds_for_whole_homes():
    found = run(1, windows=4, batch=500, unit="household")
    assert found.passed
    assert found.claimed > run(1, windows=4, batch=500).claimed


def test_statistics_the_bound_is_tight_without_sampling():
    """At q = 1 the run is exactly sqrt(steps) / sigma-GDP: the audit finds most of it, and no more."""
    inserted = int((stream(5, "audit").random(4000) < 0.5).sum())
    found = run(5, imp.DPSGD(sigma=4.0), batch=len(DATA) + inserted, steps=20, canaries=4000)
    assert found.inserted == inserted
    assert found.claimed == pytest.approx(gaussian_epsilon(20**0.5 / 4, 1e-5), rel=0.01)
    assert 0.75 * found.claimed < found.bound.epsilon <= found.claimed


@pytest.mark.parametrize("name", NETS)
def test_statistics_learned_baselines_pass_and_their_mutants_do_not(name):
    options = dict(net=learned(name, width=8, depth=1), canaries=600, batch=100, steps=30)
    assert run(2, **options).passed
    assert not run(2, **options, tamper=halved).passed


def test_statistics_opacus_engine_and_draws_pass_too():
    found = run(3, privacy=imp.DPSGD(sigma=2.0, engine="opacus"), steps=30, canaries=400, batch=60)
    assert found.passed
    found = run(3, objective=imp.Objective("v", draws=2), steps=30)
    assert found.passed
    assert not run(3, objective=imp.Objective("v", draws=2), steps=30, tamper=halved).passed


def test_statistics_noise_level_where_the_gradient_is_zero():
    """Canaries that are out: their coordinates hold noise only, of standard deviation sigma C, within 5 %."""
    found = observe(DATA, CLAIM, seed=4, **SETTING)
    noise = found.seen[:, ~found.coins].ravel()
    assert noise.size >= 10_000
    assert noise.std() == pytest.approx(2.0, rel=0.05)
    assert abs(noise.mean()) < 5 * 2.0 / noise.size**0.5
    assert stats.kstest(noise / 2.0, "norm").pvalue > 1e-3
    inside = found.seen[:, found.coins]
    assert inside.mean() == pytest.approx(found.q, abs=5 * 2.1 / inside.size**0.5)         # clipped to C exactly, drawn at q


@pytest.mark.parametrize("mu", [1.0, 2.5])
def test_statistics_the_bounds_keep_their_confidence(mu):
    """Scores that are exactly mu-GDP: each bound exceeds the truth in at most 5 % of 300 draws (99.9 % limit: 30)."""
    rng, truth, wrong, one_wrong = np.random.default_rng(7), gaussian_epsilon(mu, 1e-5), 0, 0
    found = []
    for _ in range(300):
        coins = rng.random(800) < 0.5
        scores = rng.standard_normal(800) + mu * coins
        found.append(gaussian_bound(scores, coins, 1e-5, 0.95).epsilon)
        wrong += found[-1] > truth
        one_wrong += one_run_bound(scores, coins, 1e-5, 0.95) > truth
    assert stats.binom.sf(30, 300, 0.05) < 1e-3
    assert wrong <= 30
    assert one_wrong <= 30
    assert 0.3 * truth < np.median(found) < truth


def test_golden_bounds():
    assert gaussian_epsilon(1.0, 0.5) == 0.0                   # delta(0) = 2 Phi(1 / 2) - 1 = 0.383 < 0.5
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    for mu in (0.3, 1.0, 6.0, 20.0):
        epsilon = gaussian_epsilon(mu, 1e-5)
        assert accounting.epsilon(1 / mu, 1.0, 1, 1e-5) == pytest.approx(epsilon, rel=5e-3)     # one Gaussian release
    assert float(at_most(10, 10, 0.95)) == 1.0
    # 20 guesses, all right: chance^20 = 0.05 at chance = 0.8609; epsilon = log(chance / (1 - chance)) = 1.82
    coins = np.repeat([True, False], 100)
    scores = np.linspace(1.0, 0.0, 200)
    assert one_run_bound(scores, coins, 0.0, 0.95) == pytest.approx(np.log(0.05**0.05 / (1 - 0.05**0.05)), rel=1e-3)
    assert one_run_bound(-scores, coins, 0.0, 0.95) == 0.0     # all wrong: nothing shown
    # one step at q = 1, sigma = 1: ((2 x - 1) / 2)
    assert log_likelihood_ratio(np.array([[0.0, 0.5, 2.0]]), 1.0, 1.0).tolist() == [-0.5, 0.0, 1.5]
    assert log_likelihood_ratio(np.array([[0.5], [0.5]]), 1.0, 0.3).tolist() == pytest.approx([0.0])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="window, household"):
        run(unit="home")
    with pytest.raises(ValueError, match="at least 40"):
        run(canaries=10)
    with pytest.raises(TypeError, match="stepz"):
        run(stepz=3)
