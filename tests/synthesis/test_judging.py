from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest

from fedenergy import synthesis as syn


@pytest.fixture(scope="module")
def fake(homes):
    return syn.synthesise(homes, seed=1)


@pytest.fixture(scope="module")
def others(holdout):
    return syn.panel(holdout, ids=[f"other-{i}" for i in range(len(holdout))])


def test_all_scores_in_one_call(homes, fake, others):
    found = syn.judge(homes, fake, others)
    assert set(found) == {"guarantee", "counts", "utility", "shuffle", "privacy", "self_test"}
    json.dumps(found)
    assert "linkage" in found["privacy"]
    assert found["shuffle"]["violations"] == fake.violations
    travelled = syn.judge(homes, pickle.loads(pickle.dumps(fake)), others)
    assert "linkage" not in travelled["privacy"]
    assert "privacy" not in syn.judge(homes, fake)


def test_breaking_inputs(homes, fake, others):
    fewer = syn.panel(homes.values[:59], ids=homes.ids[:59])
    with pytest.raises(ValueError, match="59 usable homes"):
        syn.judge(fewer, fake)
    with pytest.raises(ValueError, match="household home-000001 is in the holdout"):
        syn.judge(homes, fake, homes)
    with pytest.raises(ValueError, match="not the homes' window"):
        syn.judge(homes, fake, syn.panel(others.values[:, :336], ids=others.ids))


def test_public_names():
    assert syn.__all__ == sorted(syn.__all__)
    assert all(getattr(syn, name) is not None for name in syn.__all__)
    with pytest.raises(AttributeError, match="synthesise"):
        _ = syn.synthesize
    light = "import sys, fedenergy.synthesis; assert not {'scipy', 'numba', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", light], check=True)
