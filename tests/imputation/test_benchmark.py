"""The benchmark's engines take steps, and the same ones."""

from __future__ import annotations

import pytest

from simulations.benchmarks import dpsgd


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("engine", dpsgd.ENGINES)
def test_smoke_every_engine_steps(engine):
    step = dpsgd.build(engine, patch=8, width=16, depth=1)
    step()
    step()
    with pytest.raises(ValueError, match="unknown"):
        dpsgd.build("ghost", patch=8, width=16, depth=1)
