"""The reach table of SecureSum: its arithmetic, its rows at toy size, its command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedenergy import metrics
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.sum_protocol import SumProtocol
from simulations import one_noise
from simulations.one_noise import DROPPED, ONE, STRICT, Size, goals_of, local_errors, one_noise_errors, ratio_interval

TOY = Size(homes=10, seeds=2, steps=300, trees=5, large=30, draws=20, large_draws=5)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    file = tmp_path_factory.mktemp("one") / "found.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Size, "quick", staticmethod(lambda: TOY))
        one_noise.main(["--quick", "--json", str(file)])
    return json.loads(file.read_text())


def rows(found, path, case):
    return {row["strategy"]: row for row in found["rows"] if row["path"] == path and case in row["case"]}


def test_smoke(found):
    boxes = rows(found, "boxes", "N = 10")
    assert set(boxes) == set(one_noise.STRATEGIES)
    assert (boxes[ONE]["answers"], boxes[DROPPED]["answers"], boxes[STRICT]["opened"]) == (10, 8, 0)
    assert {boxes[name]["epsilon"] for name in (ONE, DROPPED, "ZonalSum")} == {1.05}   # drop-outs keep the epsilon
    assert boxes["ZonalSum"]["ratio"] == 1
    assert set(rows(found, "boxes", "one home at 0.16 among 9")) == set(one_noise.STRATEGIES)
    assert len(rows(found, "mechanism", "")) == 4
    assert len(found["goals"]) == 9
    assert found["stamp"] == "seeded noise: not private"
    assert all(goal["met"] == (goal["reached"] >= goal["needed"]) for goal in found["goals"])


def test_the_printed_table_holds_the_figures(found, capsys):
    made = [one_noise.Row(**row) for row in found["rows"]]
    text = one_noise.table(made, goals_of(made, TOY))
    assert f"{made[1].ratio:.2f} [{made[1].low:.2f}, {made[1].high:.2f}]" in text
    assert text.count("reached") + text.count("MISSED") == 9
    assert text.endswith("seeded noise: not private")


def test_errors_have_the_laws_that_the_closed_forms_state():
    """b = 1 / 1.05 of 2 K: E|one| = b, E|sum of 10| = b 20 C(20, 10) / 4**10; tau .8 with all ten: variance 10 / 8."""
    b = float(Laplace(one_noise.CLIP).scale(1_050_000))
    local = np.abs(local_errors(10, 300))
    assert local.mean() / b == pytest.approx(metrics.expected_abs_sum_of_laplace(10), rel=0.06)
    for errors in (one_noise_errors(10, 300, SumProtocol()), one_noise_errors(10, 300, SumProtocol(0.8), gone=2),
                   one_noise_errors(10, 300, SumProtocol(), ideal=True)):
        assert errors.shape == (300, 7)
        assert np.abs(errors).mean() / b == pytest.approx(1, rel=0.09)
    whole = one_noise_errors(10, 300, SumProtocol(0.8))
    assert (whole / b).var() == pytest.approx(2 * 10 / 8, rel=0.2)


def test_ratio_interval():
    """Constant samples: no spread; else the interval holds the ratio, and narrows as 1 / sqrt(rows)."""
    assert ratio_interval(np.full((5, 2), 8.0), np.full((5, 2), 2.0), "x") == (4, 4, 4)
    draw = np.random.default_rng(1)
    widths = []
    for size in (50, 5_000):
        mean, low, high = ratio_interval(draw.exponential(8, (size, 3)), draw.exponential(1, (size, 3)), "x")
        assert low < mean < high
        widths.append(high - low)
    assert 5 < widths[0] / widths[1] < 20
