"""Whatever a config, a --set or a --vary says: a study, or one line of ConfigError; nothing runs, and nothing hangs.

FEDENERGY_FUZZ=N sets the number of examples of each test, with fresh randomness.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedenergy import studies
from fedenergy.config import Config, load, parse_value, put
from fedenergy.errors import ConfigError
from tests.test_studies import MODULE

ROOT = Path(__file__).parents[1]
EXAMPLES = int(os.environ.get("FEDENERGY_FUZZ", "30"))
quick = settings(max_examples=EXAMPLES, deadline=None, derandomize="FEDENERGY_FUZZ" not in os.environ, database=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
QUICKSTART = (ROOT / "configs" / "quickstart.toml").read_bytes()
TABLES = ("population", "task", "policy", "negotiation", "query", "agreement", "privacy", "engine", "ledger", "vary",
          "strategy", "strategy.0", "populaton", "")
KEYS = ("use", "trust", "count", "seed", "steps", "epsilon", "delta", "rounds", "kind", "cap", "expires", "noise", "workers",
        "nodes", "address", "batch", "max_failures", "path", "name", "seeds", "oracle", "fresh", "out", "data", "trees",
        "query.epsilon", "population.count", "a.b.c", "lags", "x")
USES = ("fedenergy:Explain", "fedenergy:simulate_households", "fedenergy:Fixed", "strategies.zonal_sum:ZonalSum",
        "strategies.zonal_sum:ZonalSumm", "fedenergy", ":", "a:b:c", "os.path:join", "no_such.module:Name", "../x:Y", "")

texts = st.text(st.characters(codec="utf-8"), max_size=12)
literals = st.sampled_from([
    "1", "-1", "0", "1e-5", "1e400", "nan", "inf", "-inf", "true", '"1e-5"', "[]", "[1, 1]", "[0, 1]", "{}", "{a = 1}",
    "99999999999999999999", "2030-01-01", "01:00:00", "'x'", '"', "[[", "{use = 'fedenergy:Fixed'}", "0x10", "1_000", ".5",
    '"\\u0000"', '"=1+1"', "[" * 30 + "]" * 30]) | st.sampled_from(USES).map(lambda use: f'"{use}"') | texts \
    | st.floats().map(repr) | st.integers().map(str)
keys = st.sampled_from(KEYS) | st.builds(lambda table, key: f"{table}.{key}".strip("."), st.sampled_from(TABLES),
                                        st.sampled_from(KEYS)) | texts
signs = st.sampled_from(["=", "+=", "", " = ", "=="])
sets = st.lists(st.builds(lambda key, sign, value: f"{key}{sign}{value}", keys, signs, literals), max_size=4)

PAIRS = st.builds(lambda key, value: f"{key} = {value}", st.sampled_from(KEYS), literals)


@st.composite
def documents(draw) -> bytes:
    """TOML of known and unknown tables and keys with wild values, often bad TOML."""
    lines = draw(st.lists(PAIRS, max_size=4))
    for table in draw(st.lists(st.sampled_from(TABLES), max_size=5)):
        lines.append(f"[[{table}]]" if table == "strategy" or draw(st.integers(0, 9)) == 0 else f"[{table}]")
        lines += draw(st.lists(PAIRS, max_size=3))
    return "\n".join(lines).encode()


def damaged(good: bytes):
    """A good config with bytes changed, cut, inserted or repeated."""
    def apply(edits) -> bytes:
        data = bytearray(good)
        for kind, where, what in edits:
            at = where % max(len(data), 1)
            if kind == "cut":
                del data[at:at + what]
            elif kind == "repeat":
                data[at:at] = data[at:at + what]
            else:
                data[at:at] = bytes([what])
        return bytes(data)
    return st.lists(st.tuples(st.sampled_from(["cut", "repeat", "insert"]), st.integers(0, 1 << 14), st.integers(0, 255)),
                    min_size=1, max_size=4).map(apply)


def refused_in_one_line(call, *args, **named):
    """What the call gives, or None where it raised ConfigError with one printable line."""
    try:
        return call(*args, **named)
    except ConfigError as error:
        told = str(error)
    assert told
    assert "\n" not in told
    assert len(told) < 3_000
    return None


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDENERGY_DATA", raising=False)
    return tmp_path / "study.toml"


def loaded(path: Path, **options) -> None:
    config = refused_in_one_line(load, path, **options)
    if config is None:
        return
    assert isinstance(config, Config)
    refused_in_one_line(config.check)
    again = refused_in_one_line(lambda: config.run_name)
    assert again is None or "/" not in again
    assert os.listdir(path.parent) == [path.name], "reading a config writes nothing"


@quick
@given(documents() | st.binary(max_size=200), sets, st.booleans())
def test_any_file_is_a_study_or_one_line(path, data, changes, small):
    path.write_bytes(data)
    loaded(path, sets=changes, quick=small)


@quick
@given(damaged(QUICKSTART))
def test_a_damaged_config_is_a_study_or_one_line(path, data):
    path.write_bytes(data)
    loaded(path)


@quick
@given(sets, sets, st.none() | literals, st.none() | texts)
def test_any_set_vary_and_seeds_on_a_good_config(path, changes, varied, seeds, data):
    path.write_bytes(QUICKSTART)
    loaded(path, sets=changes, vary=varied, seeds=seeds, data=data)


@quick
@given(texts | literals, keys, st.booleans())
def test_values_and_keys_of_set(text, key, append):
    refused_in_one_line(parse_value, text)
    refused_in_one_line(put, {"strategy": [{"use": "a:B"}], "query": {"epsilon": 1.0}}, key, text, append=append)


@quick
@given(documents() | damaged(b'use = "fuzzed_study:Coins"\nname = "a"\nseeds = [0, 1]\nsteps = 3\n'), sets,
       st.none() | literals, st.booleans())
def test_studies_that_name_themselves(path, data, changes, seeds, small):
    module = path.with_name("fuzzed_study.py")
    module.write_text(MODULE)
    path.write_bytes(data)
    found = refused_in_one_line(studies.load, path, sets=changes, seeds=seeds, quick=small)
    if found is not None:
        study, place = found
        assert study.name
        assert place.folder(study).parent == Path(place.out)
        refused_in_one_line(lambda: studies.load(path, sets=changes, seeds=seeds, quick=small)[0] == study)
    sys.modules.pop("fuzzed_study", None)
    module.unlink()


def test_a_good_config_passes(path):
    path.write_bytes(QUICKSTART)
    assert refused_in_one_line(load, path).check().name == "quickstart"
