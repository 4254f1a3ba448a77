"""The Curator's noise: b for CentralLaplace, N b for CentralUnbounded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedenergy.federation.offers import Willing
from fedenergy.federation.trust_grid import Asked, TrustGrid
from fedenergy.privacy.trust import CURATOR, Deposit
from strategies.central_laplace import CentralLaplace
from strategies.central_unbounded import CentralUnbounded
from tests.strategies.zone import CLIP, LAPLACE

HOMES, DRAWS = 9, 20_000


def opened(mechanism: str) -> np.ndarray:
    """What the Curator reveals of homes that all deposit zeros: its noise, (DRAWS,) in grid steps."""
    envelopes = {f"home-{home}": Deposit(f"home-{home}", "q", 1_000_000, np.zeros(DRAWS, np.int64))
                 for home in range(HOMES)}
    zones = SimpleNamespace(put_once=lambda query_id, names, make, trust: np.frombuffer(make(), "<i8"))
    offers = SimpleNamespace(willing=lambda query, batch: Willing(list(batch)))
    exchange = SimpleNamespace(grid=None, ask=lambda query, batch: Asked(envelopes, 0, 0), zones=zones, seed=0,
                               offers=offers, world=SimpleNamespace(noise="simulation", policy=None), max_failures=0.0)
    query = SimpleNamespace(id="q", clip=CLIP, epsilon_micro=1_000_000, mechanism=mechanism, delta=0.0)
    return TrustGrid(exchange, CURATOR, seal=None)._open_deposits(query, [])


def test_the_curator_adds_one_noise():
    assert np.abs(opened(CentralLaplace.mechanism)).mean() == pytest.approx(float(LAPLACE.scale(1_000_000)), rel=0.03)


def test_unbounded_is_n_times_that_noise():
    expected = HOMES * float(LAPLACE.scale(1_000_000))
    assert np.abs(opened(CentralUnbounded.mechanism)).mean() == pytest.approx(expected, rel=0.03)


def test_it_is_a_cell_of_its_own():
    assert CentralUnbounded.mechanism != CentralLaplace.mechanism
