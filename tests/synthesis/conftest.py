"""Simulated homes that the synthesis tests share: members, and others that no generator sees."""

from __future__ import annotations

import numpy as np
import pytest

from fedenergy.households.simulate import simulate_households
from fedenergy.synthesis.intake import Panel, panel


@pytest.fixture(scope="session")
def homes() -> Panel:
    """60 homes, 31 days, hourly."""
    return panel(simulate_households(60, steps=744, seed=1))


@pytest.fixture(scope="session")
def holdout() -> np.ndarray:
    """(45, 744) of other homes of the same population."""
    population = simulate_households(105, steps=744, seed=1)
    return np.stack([population.load(i).total for i in range(60, 105)])
