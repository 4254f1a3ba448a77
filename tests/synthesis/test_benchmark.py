"""The benchmark's own parts at toy size: the recipe runs, and both DCRs are one number."""

from __future__ import annotations

import numpy as np

from fedenergy.synthesis.judge_privacy import dcr_gower
from simulations.benchmarks import synthesis as benchmark


def test_smoke_source_recipe():
    homes = benchmark.population(3, 168)
    taken = benchmark.source_recipe(homes.values[0], 0, np.random.default_rng(0))
    assert set(taken) == {"stl", "trend", "residual"}
    assert all(seconds >= 0 for seconds in taken.values())


def test_population_repeats_with_other_sizes():
    homes = benchmark.population(120, 168)
    assert homes.values.shape == (120, 168)
    assert np.abs(homes.values[0] - homes.values[100]).max() > 0


def test_oracle_the_loop_and_ours_agree():
    rng = np.random.default_rng(0)
    fake, real = rng.gamma(1, 1.5, (6, 130)), rng.gamma(1, 1, (9, 130))
    np.testing.assert_allclose(dcr_gower(fake, real), benchmark.by_definition(fake, real), atol=1e-12)
