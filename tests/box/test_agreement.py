"""The signed agreement: golden bytes, and forgeries that must all be refused."""

from __future__ import annotations

import datetime
import json
import pickle
import random
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedenergy import ids
from fedenergy.box.admission import Authenticator, BoxKey
from fedenergy.box.agreement import (
    AGREEMENT_ID,
    DOMAIN,
    MAX_BYTES,
    SIGNATURE_BYTES,
    Agreement,
    AgreementError,
    AgreementTerms,
    key_id,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))  # signs anything: a wrong value with a right signature
PUBLIC = KEY.public_key().public_bytes_raw()
MASKS = (0x01, 0x02, 0x10, 0x20, 0x80, 0xFF)


@pytest.fixture(scope="module")
def authenticator() -> Authenticator:
    return Authenticator(seed=1)


@pytest.fixture(scope="module")
def agreement(authenticator) -> Agreement:
    return authenticator.issue("h1", BoxKey("h1", seed=1), AgreementTerms())


def code(data: object, public: bytes) -> str:
    with pytest.raises(AgreementError) as caught:
        Agreement.verify(data, public)
    return caught.value.code


def plain_body(agreement: Agreement) -> dict:
    return json.loads(agreement.to_bytes()[SIGNATURE_BYTES:])


def resigned(body: dict, domain: bytes = DOMAIN) -> bytes:
    """A body of any content under a valid signature of KEY, its id and key id put right."""
    body = body | {"key_id": key_id(PUBLIC)}
    body |= {"id": ids.digest(AGREEMENT_ID, body | {"id": ""}).hex()}
    text = ids.canon(body)
    return KEY.sign(domain + text) + text


# golden

GOLDEN_BODY = (
    '{"box_key":"%s","cap_micro":"6730000","classes":["general","specific"],"delta":"0","expires":"4102444800",'
    '"granularity":"appliance","household":"h1","id":"%s","key_id":"%s","not_before":"0","per_query_max_micro":null,'
    '"per_query_min_micro":"1","purposes":["planning","monitoring","diagnosis"],"queriers":["zone-operator"],'
    '"relation":"replace-one","renews":"","spent_micro":"0","trust":["local","sum","curator"],"unit":"household",'
    '"version":"1","zone":"zone-1"}')


def test_golden_bytes(agreement, authenticator):
    data = agreement.to_bytes()
    text = GOLDEN_BODY % (agreement.box_key.hex(), agreement.id, agreement.key_id)
    assert data[SIGNATURE_BYTES:] == text.encode()
    # an independent check of the signature, and the keys of seed 1
    Ed25519PublicKey.from_public_bytes(authenticator.public_key).verify(
        data[:SIGNATURE_BYTES], b"fedenergy.agreement.1\n" + text.encode())
    assert agreement.box_key == Ed25519PrivateKey.from_private_bytes(
        ids.stream(1, "box-key", "h1").bytes(32)).public_key().public_bytes_raw()
    assert (agreement.id, agreement.key_id) == ("c4ab7be04c7faee33e458ce288e9c627", "3487d7ef719b1a7d")
    assert data[:8].hex() == "0a740e1e03325b36"  # Ed25519 is deterministic


def test_the_text_is_the_canonical_form(agreement):
    for item in (agreement, replace(agreement, delta=1e-5, per_query_max_micro=10, spent_micro=3, renews="0" * 32)):
        body = {f.name: getattr(item, f.name) for f in fields(item) if f.name != "signature"} | {"version": "1"}
        assert item.text() == ids.canon(body)


def test_round_trip(agreement, authenticator):
    assert Agreement.verify(agreement.to_bytes(), authenticator.public_key) == agreement
    assert pickle.loads(pickle.dumps(agreement)) == agreement


def test_verified_once_per_bytes(agreement, authenticator):
    first = Agreement.verify(agreement.to_bytes(), authenticator.public_key)
    assert Agreement.verify(bytes(bytearray(agreement.to_bytes())), authenticator.public_key) is first


# forgeries of the bytes

def test_flipped_bytes_are_refused(agreement, authenticator):
    """Every position with a handful of masks in turn, and 256 sampled (position, value) pairs."""
    data = agreement.to_bytes()
    pairs = [(position, data[position] ^ MASKS[position % len(MASKS)]) for position in range(len(data))]
    sample = random.Random(0)
    pairs += [(position, value) for position in (0, 31, 32, 63, 64, len(data) - 1) for value in (0, 127, 255)]
    pairs += [(sample.randrange(len(data)), sample.randrange(256)) for _ in range(256)]
    assert_all_refused(data, pairs, authenticator.public_key)


@pytest.mark.slow
def test_every_byte_value_at_every_position_is_refused(agreement, authenticator):
    data = agreement.to_bytes()
    assert_all_refused(data, [(position, value) for position in range(len(data)) for value in range(256)],
                       authenticator.public_key)


def assert_all_refused(data: bytes, pairs: list[tuple[int, int]], public: bytes) -> None:
    for position, value in pairs:
        if data[position] != value:
            forged = data[:position] + bytes([value]) + data[position + 1:]
            with pytest.raises(AgreementError):
                Agreement.verify(forged, public)


def test_truncations_and_additions_are_refused(agreement, authenticator):
    data = agreement.to_bytes()
    for length in range(len(data)):
        assert code(data[:length], authenticator.public_key) in ("length", "signature")
    assert code(data + b" ", authenticator.public_key) == "signature"
    assert code(data + bytes(MAX_BYTES), authenticator.public_key) == "length"
    assert code(data[1:], authenticator.public_key) == "signature"
    for other in (None, data.decode("latin-1"), bytearray(data), 5):
        assert code(other, authenticator.public_key) == "length"


def test_malleable_signature_is_refused(agreement, authenticator):
    """S + L verifies under naive implementations: the same body must have one signature only."""
    order = 2**252 + 27742317777372353535851937790883648493
    data = agreement.to_bytes()
    scalar = int.from_bytes(data[32:64], "little") + order
    assert code(data[:32] + scalar.to_bytes(32, "little") + data[64:], authenticator.public_key) == "signature"


@pytest.mark.parametrize("change", [
    {"cap_micro": "6730001"},                   # cap + 1
    {"household": "h2"}, {"box_key": "00" * 32}, {"spent_micro": "1"}, {"trust": ["local", "sum", "curator", "open"]},
    {"expires": "4102444801"}, {"zone": "zone-2"}, {"per_query_max_micro": "6730000"}])
def test_changed_values_under_the_old_signature_are_refused(agreement, authenticator, change):
    body = plain_body(agreement) | change
    forged = agreement.signature + ids.canon(body)
    assert code(forged, authenticator.public_key) == "signature"


def test_swaps_are_refused(authenticator, agreement):
    other = authenticator.issue("h2", BoxKey("h2", seed=1), AgreementTerms())
    mixed = replace(agreement, signature=other.signature)
    assert code(mixed.to_bytes(), authenticator.public_key) == "signature"
    assert code(replace(agreement, household="h2").to_bytes(), authenticator.public_key) == "signature"
    assert code(replace(agreement, box_key=other.box_key).to_bytes(), authenticator.public_key) == "signature"


def test_another_authenticator_is_refused(agreement):
    assert code(agreement.to_bytes(), Authenticator(seed=2).public_key) == "signature"
    assert code(agreement.to_bytes(), bytes(32)) in ("key", "signature")
    for bad in (b"", b"short", None, "text"):
        assert code(agreement.to_bytes(), bad) == "key"


def test_another_domain_is_refused(agreement):
    body = plain_body(agreement)
    assert Agreement.verify(resigned(body), PUBLIC).household == "h1"
    for domain in (b"", b"fedenergy.agreement.2\n", b"fedenergy.possession.1\n", DOMAIN[:-1]):
        assert code(resigned(body, domain), PUBLIC) == "signature"


def test_key_id_of_another_key_is_refused(agreement):
    body = plain_body(agreement) | {"key_id": "0" * 16}
    body |= {"id": ids.digest(AGREEMENT_ID, body | {"id": ""}).hex()}
    text = ids.canon(body)
    assert code(KEY.sign(DOMAIN + text) + text, PUBLIC) == "key"


# well signed, still refused: form and values

@pytest.mark.parametrize("text", [
    b"", b"null", b"[]", b'"x"', b"\xff", b"{", b'{"a":1}', b'{"a":"1","a":"1"}', b'{ "a":"1"}', b"[" * 10_000])
def test_signed_nonsense_is_refused(text):
    if text:
        assert code(KEY.sign(DOMAIN + text) + text, PUBLIC) == "form"
    else:
        assert code(KEY.sign(DOMAIN), PUBLIC) == "length"


def test_repeated_unknown_and_missing_keys_are_refused(agreement):
    text = ids.canon(plain_body(agreement))
    repeated = text[:-1] + b',"zone":"zone-1"}'
    assert code(KEY.sign(DOMAIN + repeated) + repeated, PUBLIC) == "form"
    assert code(resigned(plain_body(agreement) | {"extra": "1"}), PUBLIC) == "form"
    for key in set(plain_body(agreement)) - {"id", "key_id"}:
        assert code(resigned({k: v for k, v in plain_body(agreement).items() if k != key}), PUBLIC) == "form"


@pytest.mark.parametrize(("key", "value"), [
    ("version", "2"), ("household", "h\u0131"), ("household", "\uff48\uff11"), ("household", "h1\n"),
    ("household", "../h1"), ("household", "H1"), ("household", ["h1"]), ("household", None),
    ("zone", "z\u043ene-1"), ("queriers", ["zone-oper\u0430tor"]), ("queriers", []), ("queriers", "zone-operator"),
    ("queriers", ["a", "a"]), ("purposes", ["control"]), ("classes", ["specifi\u0441"]), ("trust", ["all"]),
    ("trust", {"local": "x"}), ("granularity", "room"), ("unit", ""), ("relation", "event"),
    ("cap_micro", "0"), ("cap_micro", "-1"), ("cap_micro", "1.5"), ("cap_micro", "\u0667"), ("cap_micro", "01"),
    ("cap_micro", "1" * 17), ("cap_micro", None), ("cap_micro", True), ("delta", "1"), ("delta", "-0.1"),
    ("delta", "NaN"), ("delta", "0.\u0661"), ("per_query_min_micro", "0"), ("per_query_max_micro", "0"),
    ("spent_micro", "-1"), ("renews", "x"), ("not_before", "4102444800"), ("expires", "0"), ("expires", "1" * 17),
    ("box_key", "00"), ("box_key", "GG" * 32), ("box_key", "\uff10" * 64)])
def test_signed_wrong_values_are_refused(agreement, key, value):
    assert code(resigned(plain_body(agreement) | {key: value}), PUBLIC) == "value"


def test_id_is_the_digest_of_the_body(agreement):
    body = plain_body(agreement) | {"id": "0" * 32, "key_id": key_id(PUBLIC)}
    text = ids.canon(body)
    assert code(KEY.sign(DOMAIN + text) + text, PUBLIC) == "value"


def test_error_survives_pickling():
    error = pickle.loads(pickle.dumps(AgreementError("value", "text")))
    assert (error.code, str(error)) == ("value", "text")


# terms

def test_terms_default_to_the_source():
    terms = AgreementTerms()
    assert (terms.cap, terms.trust, terms.classes) == (6.73, ("local", "sum", "curator"), ("general", "specific"))


def test_terms_take_lists_and_dates_of_toml():
    terms = AgreementTerms(trust=["local"], cap="6.73", not_before=datetime.date(2027, 1, 1),
                           expires=datetime.datetime(2027, 1, 2, tzinfo=datetime.UTC))
    assert terms.trust == ("local",)
    assert terms.expires - terms.not_before == 86_400
    assert hash(terms) == hash(replace(terms))


@pytest.mark.parametrize(("changes", "message"), [
    ({"cap": 0}, "cap = 0"), ({"cap": float("nan")}, "cap"), ({"cap": float("inf")}, "cap"), ({"cap": True}, "cap"),
    ({"cap": "1e-5"}, "cap"), ({"cap": None}, "cap"), ({"per_query_max": 7}, "above cap"),
    ({"per_query_max": -1}, "per_query_max"), ({"trust": "local"}, "trust = 'local' is not a list"),
    ({"trust": []}, "trust"), ({"trust": ["locl"]}, 'Did you mean "local"'), ({"trust": ["sum", "sum"]}, "repeats"),
    ({"classes": ["general", "special"]}, "classes"), ({"purposes": ["control"]}, "purposes"),
    ({"queriers": ["Zone"]}, "queriers"), ({"queriers": [5]}, "queriers"), ({"zone": "z 1"}, "zone"),
    ({"granularity": "room"}, "granularity"), ({"not_before": -1}, "not_before"), ({"not_before": True}, "not_before"),
    ({"expires": 1.5}, "expires"), ({"not_before": 10, "expires": 10}, "not after"), ({"delta": 1}, "delta"),
    ({"delta": -1e-9}, "delta"), ({"delta": float("nan")}, "delta"), ({"delta": "0"}, "delta")])
def test_terms_refuse(changes, message):
    with pytest.raises(ValueError, match=message):
        AgreementTerms(**changes)
