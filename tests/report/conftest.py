from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.fake import write_run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """3 strategies x 3 epsilons x 3 seeds, 2 rounds, with an oracle."""
    return write_run(tmp_path / "zone-explanations-20260115-093000")
