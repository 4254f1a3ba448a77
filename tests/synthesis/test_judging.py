"""All scores of artificial records in one call."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedenergy import synthesis as syn
from fedenergy.synthesis.components import SEASONAL_PARTS


@pytest.fixture(scope="module")
def fake(homes):
    return syn.synthesise(homes, seed=1)


@pytest.fixture(scope="module")
def others(holdout):
    return syn.panel(holdout, ids=[f"other-{i}" for i in range(len(holdout))])


def test_all_scores_in_one_call(homes, fake, others):
    found = syn.judge(homes, fake, others, parts=["utility", "discriminative", "forecast", "privacy"])
    assert {"guarantee", "utility", "shuffle", "discriminative", "forecast", "privacy", "self_test"} <= set(found.scores)
    json.dumps(found.scores)
    assert "linkage" in found["privacy"]
    assert found["shuffle"]["violations"] == fake.violations
    travelled = syn.judge(homes, pickle.loads(pickle.dumps(fake)), others, parts=["privacy"])
    assert "linkage" not in travelled["privacy"]


def test_without_a_holdout_distances_but_no_attack(homes, fake):
    found = syn.judge(homes, fake, parts=["privacy"])
    assert found["privacy"]["day"]["real"]["dcr"] > 0
    assert "membership" not in found["privacy"]["day"]
    assert "holdout" not in found["privacy"]["day"]
    assert "self_test" not in found


def test_more_records_than_homes(homes, fake):
    twice = replace(fake, values=np.tile(fake.values, (2, 1)), ids=(*fake.ids, *(f"more-{i}" for i in range(60))))
    one, two = (syn.judge(homes, each, parts=["utility"])["utility"] for each in (fake, twice))
    assert two["drp"]["uDRP_total_ratio"] == pytest.approx(one["drp"]["uDRP_total_ratio"])
    assert two["drp"]["dDRP_curve_error"] == pytest.approx(one["drp"]["dDRP_curve_error"])
    assert two["daily_energy_sd_ratio"] == pytest.approx(one["daily_energy_sd_ratio"])


def test_breaking_inputs(homes, fake, others):
    fewer = syn.panel(homes.values[:59], ids=homes.ids[:59])
    with pytest.raises(ValueError, match="59 usable homes"):
        syn.judge(fewer, fake)
    with pytest.raises(ValueError, match="household home-000001 is in the holdout"):
        syn.judge(homes, fake, homes)
    with pytest.raises(ValueError, match="parts has 'beauty'"):
        syn.judge(homes, fake, parts=["beauty"])
    with pytest.raises(ValueError, match="not the homes' window"):
        syn.judge(homes, fake, syn.panel(others.values[:, :336], ids=others.ids))


def test_public_names():
    assert syn.__all__ == sorted(syn.__all__)
    assert all(getattr(syn, name) is not None for name in syn.__all__)
    with pytest.raises(AttributeError, match="synthesise"):
        _ = syn.synthesize
    light = "import sys, fedenergy.synthesis; assert not {'scipy', 'numba', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", light], check=True)


def test_every_treatment_of_the_seasonal_part_is_scored_by_linkage(homes):
    some = syn.panel(homes.values[:30], ids=homes.ids[:30])
    found = {}
    for part in SEASONAL_PARTS:
        fake = syn.synthesise(some, seed=2, clusters=1, recipe=syn.Recipe(seasonal_part=part, phase_hours=3))
        found[part] = syn.judge(some, fake, parts=["privacy"])["privacy"]["linkage"]["home"]
    assert found["phase_shift"] < found["keep"]
    assert min(found.values()) > 2 / 30     # none of them hides a home
