"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.no_network"]

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MPLBACKEND", "Agg")

# the same examples in every run, no clock: FEDENERGY_FUZZ=N searches anew
settings.register_profile("suite", derandomize="FEDENERGY_FUZZ" not in os.environ, deadline=None, database=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets: $FEDENERGY_DATA or ../shared/data; the test is skipped where neither exists."""
    folder = Path(os.environ.get("FEDENERGY_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data absent: {folder} is not a folder (set FEDENERGY_DATA)")
    return folder
