"""Masks: exact rates, run lengths, places, reproducibility."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy import imputation as imp
from fedenergy.imputation.masks import training_masks


def lengths(missing):
    """Run lengths of one row."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], missing.astype(int), [0]])))
    return edges[1::2] - edges[::2]


MAKERS = {"points": imp.points, "blocks": imp.blocks, "apart": lambda r: imp.blocks(r, apart=True), "outage": imp.outage}


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(sorted(MAKERS)), rate=st.floats(0.01, 0.99), length=st.integers(2, 120),
       channels=st.integers(1, 3), seed=st.integers(0, 99))
def test_contract_the_rate_is_exact(kind, rate, length, channels, seed):
    observed = MAKERS[kind](rate).observed(5, length, channels, np.random.default_rng(seed))
    assert observed.shape == (5, length, channels)
    positions = length * channels if kind == "points" else length
    missing = (~observed).sum((1, 2)) // (1 if kind == "points" else channels)
    assert set(missing) == {int(np.clip(np.rint(rate * positions), 1, positions - 1))}


def test_contract_shapes_of_gaps():
    rng = np.random.default_rng(0)
    outage = ~imp.outage(0.3).observed(200, 96, 1, rng)[:, :, 0]
    assert all(list(lengths(row)) == [29] for row in outage)
    assert outage[:, 0].any()
    assert outage[:, -1].any()
    apart = [lengths(row) for row in ~imp.blocks(0.5, apart=True).observed(200, 96, 1, rng)[:, :, 0]]
    assert max(map(max, apart)) <= 12
    assert all(sum(run < 4 for run in row) <= 1 for row in apart)                # only the last one is cut
    touching = [lengths(row) for row in ~imp.blocks(0.5).observed(200, 96, 1, rng)[:, :, 0]]
    assert max(map(max, touching)) > 12
    points = ~imp.points(0.5).observed(500, 96, 1, rng)[:, :, 0]
    assert np.abs(points.mean(0) - 0.5).max() < 0.12
    suffix = ~imp.suffix([24, 48]).observed(50, 96, 2, rng)
    assert {tuple(lengths(row)) for row in suffix[:, :, 0]} == {(24,), (48,)}
    assert suffix[:, -24:].all()
    real = ~imp.runs([3, 7, 400]).observed(100, 96, 1, rng)[:, :, 0]
    assert {int(row.sum()) for row in real} == {3, 7, 95}


def test_contract_runs_strike_every_channel_points_do_not():
    rng = np.random.default_rng(1)
    for mask in (imp.outage(0.5), imp.blocks(0.5), imp.suffix(24)):
        observed = mask.observed(20, 48, 3, rng)
        assert (observed == observed[:, :, :1]).all()
    observed = imp.points(0.5).observed(20, 48, 3, rng)
    assert (observed != observed[:, :, :1]).any()


def test_contract_the_seed_names_the_masks():
    first = imp.outage(0.5, seed=0).observed(30, 96)
    assert np.array_equal(first, imp.outage(0.5, seed=0).observed(30, 96))
    assert not np.array_equal(first, imp.outage(0.5, seed=1).observed(30, 96))


def test_statistics_mixtures_take_every_part_and_rate():
    observed = training_masks().observed(600, 96, 1, np.random.default_rng(0))
    shares = np.unique((~observed).sum((1, 2)))
    assert set(shares) == {10, 19, 29, 48}
    runs = [len(lengths(row)) for row in ~observed[:, :, 0]]
    assert 150 < sum(n == 1 for n in runs) < 300
    assert imp.mixed(imp.points(0.1), imp.outage(0.5)).name == "points 0.1 + outage 0.5"


@pytest.mark.parametrize("call", [lambda: imp.points(0.0), lambda: imp.points(1.0), lambda: imp.blocks(0.5, 8, 4),
                                  lambda: imp.runs([0]), lambda: imp.mixed(), lambda: imp.points(0.5).observed(1, 1),
                                  lambda: imp.suffix(96).observed(1, 96), lambda: imp.Masks("holes")])
def test_nonsense_is_refused(call):
    with pytest.raises(ValueError):
        call()
