"""Golden tests of what is costly to change later: canonical JSON, identities, streams."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedenergy import ids


def test_canonical_form():
    value = {"b": [1, 2.50, True, None], "a": {"é": b"\x00\xff"}, "c": Decimal("1e-7")}
    assert ids.canon(value) == '{"a":{"é":"00ff"},"b":["1","2.5",true,null],"c":"0.0000001"}'.encode()


def test_equal_numbers_have_one_form():
    assert ids.canon(1) == ids.canon(1.0) == ids.canon(Decimal("1.00")) == ids.canon(np.int32(1)) == b'"1"'
    assert ids.canon(0.1) == ids.canon(Decimal("0.1")) == b'"0.1"'
    assert ids.canon(10**25) == b'"10000000000000000000000000"'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN")])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="finite"):
        ids.canon(value)


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, object()])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(TypeError):
        ids.canon(value)


VALUES = st.recursive(st.none() | st.booleans() | st.text(st.characters(codec="utf-8")),
                      lambda x: st.lists(x) | st.dictionaries(st.text(st.characters(codec="utf-8")), x))


@given(VALUES)
def test_canonical_form_is_json_that_reads_back(value):
    assert json.loads(ids.canon(value)) == value


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(), max_size=5))
def test_the_order_of_keys_does_not_matter(value):
    assert ids.canon(value) == ids.canon(dict(reversed(value.items())))


def test_the_digest_is_personalised_blake2b():
    by_hand = hashlib.blake2b(b'["1","x"]', digest_size=16, person=b"fe.cell.1").digest()
    assert ids.digest(ids.CELL, [1, "x"]) == by_hand
    assert ids.digest(ids.QUERY, [1, "x"]) != by_hand


def test_golden_identities():
    """The hex digits were printed once from the definition above; they hold the form in place."""
    cell = {"trust": "local", "mechanism": "laplace", "policy": "Fixed", "epsilon": "1", "seed": 0, "vary": {}}
    assert ids.cell_id(cell) == "7aed595f7903ddbbcc9451cdc1b85836"
    assert ids.query_id({"kind": "appliances"}) == hashlib.blake2b(
        b'{"kind":"appliances"}', digest_size=16, person=b"fe.query.1").hexdigest()


def test_golden_stream():
    """stream = Philox, key = little-endian H("fe.stream.1", [seed, purpose, household, query_id]), counter 0."""
    key = hashlib.blake2b(b'["7","noise","home-1","q"]', digest_size=16, person=b"fe.stream.1").digest()
    by_hand = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"), counter=0))
    assert ids.stream(7, "noise", "home-1", "q").integers(0, 2**63, 4).tolist() == by_hand.integers(0, 2**63, 4).tolist()


def test_streams_differ_by_every_part():
    base = ids.stream(1, "noise", "h", "q").random()
    others = [ids.stream(2, "noise", "h", "q"), ids.stream(1, "pad", "h", "q"), ids.stream(1, "noise", "i", "q"),
              ids.stream(1, "noise", "h", "r")]
    assert all(other.random() != base for other in others)
