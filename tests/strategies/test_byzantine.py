"""The test instrument: who lies, what it does, and that it leaves the answers as they were."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import RecordDict

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from strategies.byzantine import Byzantine, corrupted
from strategies.zonal_sum import ZonalSum
from tests.strategies.zone import LAPLACE, aggregated, draws, replies, zone

HOMES = 50


def messages():
    return replies(draws(zone(HOMES), np.full(HOMES, 6.73), 1)[0], np.full(HOMES, 6.73))


def test_the_liars_are_fixed_by_name_and_seed():
    names = [f"home-{home:03d}" for home in range(HOMES)]
    assert corrupted(names, 0.1) == corrupted(names[::-1], 0.1)
    assert len(corrupted(names, 0.1)) == 5
    assert corrupted(names, 0.1) < corrupted(names, 0.2)
    assert corrupted(names, 0.1) != corrupted(names, 0.1, seed=1)
    assert corrupted(names, 0.0) == frozenset()


def test_a_sum_moves_by_all_that_the_liars_add():
    before = aggregated(ZonalSum(), messages())
    after = aggregated(Byzantine("strategies.zonal_sum:ZonalSum", share=0.1, size=1000.0), messages())
    assert np.array_equal(after - before, 5 * 1000.0 * np.array([-1, 1, -1, 1, -1, 1, -1]))
    assert np.array_equal(np.remainder(after, LAPLACE.grid.step), np.zeros(7))      # still on the grid: not to be told


def test_the_zones_one_answer_moves_alike():
    asked = flower.instruction(RecordDict(), flower.node_id(0), "train", "1")
    fields = {"household": records.ZONE, "query_id": "0" * 32, "epsilon_micro": 1_000_000, "answers": 19}
    zone_answer = flower.reply(asked, records.answer_records(np.zeros(3), fields))
    strategy = Byzantine("strategies.secure_sum:SecureSum", share=0.1, size=2.0)
    assert strategy.trust == "sum"
    assert strategy.returns == "sum"
    assert np.array_equal(aggregated(strategy, [zone_answer]), [-2.0, 2.0, -2.0])   # floor(1.9) = 1 home lies
    assert np.array_equal(zone_answer.content["arrays"]["summary"].numpy(), np.zeros(3))


@pytest.mark.parametrize(("inner", "arguments"), [
    ("strategies.zonal_median:ZonalMedian", {}), ("strategies.trimmed_mean:TrimmedMean", {"share": 0.1}),
    ("flwr.serverapp.strategy:FedMedian", {}), ("flwr.serverapp.strategy:Krum", {"num_malicious_nodes": 5})])
def test_robust_strategies_do_not_care_how_far_the_liars_push(inner, arguments):
    far, further = (aggregated(Byzantine(inner, size=size, arguments=arguments), messages()) for size in (1e6, 1e9))
    assert np.allclose(far, further, rtol=1e-9)
    honest = np.abs(draws(zone(HOMES), np.full(HOMES, 6.73), 1)[0]).max()
    assert np.abs(far).max() < honest


def test_a_share_above_the_trim_breaks_the_trimmed_mean():
    far = aggregated(Byzantine("strategies.trimmed_mean:TrimmedMean", share=0.2, size=1e9), messages())
    assert np.abs(far).min() > 1e6
