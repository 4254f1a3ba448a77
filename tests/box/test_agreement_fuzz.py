"""Agreements and revocation lists of any bytes and any signed body: what does not fit is an AgreementError, nothing else.

FEDENERGY_FUZZ=N sets the number of examples of each test, with fresh randomness.
"""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedenergy import ids
from fedenergy.box.admission import REVOCATION, Authenticator, BoxKey, Revocations
from fedenergy.box.agreement import MAX_BYTES, SIGNATURE_BYTES, Agreement, AgreementError, AgreementTerms
from fedenergy.box.agreement_files import from_file, read_agreement, read_revocations, to_file
from tests.box.test_agreement import KEY, PUBLIC, plain_body, resigned

EXAMPLES = int(os.environ.get("FEDENERGY_FUZZ", "30"))
quick = settings(max_examples=EXAMPLES, deadline=None, derandomize="FEDENERGY_FUZZ" not in os.environ, database=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = Authenticator(seed=1).issue("h1", BoxKey("h1", seed=1), AgreementTerms())
SIGNED = resigned(plain_body(GOOD))
LIST = KEY.sign(REVOCATION + (text := ids.canon({"version": "2", "ids": ["a" * 32]}))) + text

words = st.text(max_size=10) | st.sampled_from(["", "1", "-1", "0", "1e5", "nan", "inf", "9" * 30, "local", "h1", "../x",
                                                "H1", "0x1", "1" * 5_000, "replace-one", "\u0661", " 1"])
values = st.recursive(st.none() | st.booleans() | words, lambda inner: st.lists(inner, max_size=3)
                      | st.dictionaries(st.text(max_size=5), inner, max_size=2), max_leaves=6)
bodies = st.dictionaries(st.sampled_from([*plain_body(GOOD), "extra"]), values, min_size=1, max_size=3).map(
    lambda change: plain_body(GOOD) | change)


def edited(good: bytes):
    kinds = st.sampled_from(["set", "cut", "insert", "swap"])
    edits = st.lists(st.tuples(kinds, st.integers(0, 1 << 12), st.integers(0, 255)), min_size=1, max_size=4)

    def apply(found) -> bytes:
        data = bytearray(good)
        for kind, where, what in found:
            at = where % max(len(data), 1)
            if kind == "set" and data:
                data[at] = what
            elif kind == "cut":
                del data[at:at + what % 9 + 1]
            elif kind == "insert":
                data[at:at] = bytes([what])
            else:
                data[:at], data[at:] = data[len(data) - at:], data[:len(data) - at]
        return bytes(data)
    return edits.map(apply)


def refuses(call, *args):
    """What the call gives, or None where it raised AgreementError with a code."""
    try:
        return call(*args)
    except AgreementError as error:
        told = error
    assert told.code
    assert len(str(told)) < 2 * MAX_BYTES
    return None


def test_the_good_ones_pass():
    assert Agreement.verify(SIGNED, PUBLIC).household == "h1"
    assert Revocations.verify(LIST, PUBLIC).ids == {"a" * 32}


@quick
@given(edited(SIGNED) | st.binary(max_size=200))
def test_agreements_of_any_bytes(data):
    found = refuses(Agreement.verify, data, PUBLIC)
    assert found is None or data == SIGNED


@quick
@given(bodies)
def test_signed_agreements_of_any_body(body):
    """A valid signature does not make a value sensible: what is taken is written again to the same bytes."""
    try:
        data = resigned(body)
    except ValueError:  # not canonical
        return
    found = refuses(Agreement.verify, data, PUBLIC)
    if found is None:
        return
    assert found.to_bytes() == data
    assert found.cap_micro >= 0
    assert found.not_before <= found.expires
    assert json.loads(data[SIGNATURE_BYTES:])["id"] == found.id


@quick
@given(edited(LIST) | st.binary(max_size=150))
def test_revocation_lists_of_any_bytes(data):
    found = refuses(Revocations.verify, data, PUBLIC)
    assert found is None or data == LIST


@quick
@given(st.dictionaries(st.sampled_from(["version", "ids", "x"]), values, max_size=3))
def test_signed_revocation_lists_of_any_body(body):
    try:
        text = ids.canon(body)
    except ValueError:
        return
    found = refuses(Revocations.verify, KEY.sign(REVOCATION + text) + text, PUBLIC)
    assert found is None or (found.version >= 0 and all(isinstance(name, str) for name in found.ids))


@pytest.mark.parametrize(("signed", "read"), [(SIGNED, read_agreement), (LIST, read_revocations)], ids=["agreement", "list"])
def test_files_of_any_bytes(signed, read, tmp_path):
    path, good = tmp_path / "h1.json", to_file(signed)
    path.write_bytes(good)
    read(path, PUBLIC)

    @quick
    @given(edited(good) | st.binary(max_size=300) | st.text(max_size=50).map(str.encode))
    def check(data):
        path.write_bytes(data)
        assert refuses(read, path, PUBLIC) is None or data == good
        refuses(from_file, data)
    check()
