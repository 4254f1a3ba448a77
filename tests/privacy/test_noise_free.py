"""Contract: an un-noised array leaves through a mechanism or not at all."""

import ast
import copy
import io
import json
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest

import fedenergy
from fedenergy.privacy.mechanisms import SecureNoise, SimulationNoise
from fedenergy.privacy.noise_free import NoiseFree, reveal_to_mechanism
from fedenergy.privacy.secure_sum import Summer

SECRET = 0.8414709848078965
VALUES = np.array([SECRET, -2.0])

ESCAPES = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "json": json.dumps, "json of a list": lambda x: json.dumps([x]),
    "asarray": np.asarray, "array": np.array, "float array": lambda x: np.asarray(x, float), "ufunc": np.sum,
    "arithmetic": lambda x: x + 1, "numpy arithmetic": lambda x: np.ones(2) + x, "matmul": lambda x: np.ones(2) @ x,
    "iter": iter, "list": list, "len": len, "index": lambda x: x[0], "in": lambda x: SECRET in x, "bool": bool,
    "equal": lambda x: x == x, "unequal": lambda x: x != x, "less": lambda x: x < x, "hash": hash, "set": lambda x: {x},
    "float": float, "int": int, "bytes": bytes, "memoryview": memoryview, "vars": vars,
    "save": lambda x: np.save(io.BytesIO(), x), "deepcopy in a dict": lambda x: copy.deepcopy({"s": x}),
    **{f"pickle {p}": (lambda x, p=p: pickle.dumps(x, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)},
    "reduce": lambda x: x.__reduce__(), "getstate": lambda x: x.__getstate__(),
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_every_way_out_is_refused(escape):
    with pytest.raises(TypeError) as refusal:
        escape(NoiseFree(VALUES))
    assert "0.84" not in str(refusal.value)


def test_it_prints_as_its_name_only(caplog):
    x = NoiseFree(VALUES)
    with caplog.at_level(logging.INFO):
        logging.getLogger("box").info("%s %r", x, x)
    shown = [repr(x), str(x), f"{x}", f"{x:.3f}", f"{x!r:>20}".strip(), "%s" % x, repr([x])[1:-1]]  # noqa: UP031
    assert set(shown) == {"<NoiseFree>"}
    assert "0.84" not in caplog.text


def test_a_mechanism_reads_a_private_read_only_copy():
    original = VALUES.copy()
    x = NoiseFree(original)
    original[0] = 7.0
    inner = reveal_to_mechanism(x)
    assert inner.tolist() == VALUES.tolist()
    with pytest.raises(ValueError, match="read-only"):
        inner[0] = 1.0
    assert reveal_to_mechanism(VALUES) is VALUES
    assert reveal_to_mechanism(NoiseFree(x)).tolist() == VALUES.tolist()


@pytest.mark.parametrize("values", ["text", [None], [1j], [True]])
def test_it_holds_numbers_only(values):
    with pytest.raises(TypeError, match="numbers"):
        NoiseFree(values)


SEALED = {"source": SimulationNoise(1).source("h1", "q"), "simulation": SimulationNoise(20260727),
          "os source": SecureNoise().source("h1", "q"), "secure": SecureNoise(),
          "summer": Summer("q", {"h1": b"k" * 32})}


@pytest.mark.parametrize("thing", SEALED.values(), ids=SEALED.keys())
@pytest.mark.parametrize("way", ["pickle", "copy", "deepcopy", "json"])
def test_noise_and_keys_do_not_travel(thing, way):
    do = {"pickle": pickle.dumps, "copy": copy.copy, "deepcopy": copy.deepcopy, "json": json.dumps}[way]
    with pytest.raises(TypeError):
        do(thing)


@pytest.mark.parametrize("thing", SEALED.values(), ids=SEALED.keys())
def test_noise_and_keys_show_nothing(thing):
    for shown in (repr(thing), str(thing), f"{thing}"):
        assert shown in {"<NoiseSource>", "<SimulationNoise>", "<SecureNoise>", "<Summer>"}


def test_only_privacy_reads_what_is_noise_free():
    root = Path(fedenergy.__file__).parent
    words = ("id", "attr", "name")                      # of ast.Name, ast.Attribute, ast.alias
    readers = {path.relative_to(root).as_posix() for path in root.rglob("*.py")
               for node in ast.walk(ast.parse(path.read_text()))
               if "reveal_to_mechanism" in [getattr(node, word, "") for word in words]}
    assert {reader for reader in readers if not reader.startswith("privacy/")} == set()
    assert "privacy/mechanisms.py" in readers
