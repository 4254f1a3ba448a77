"""Names that are computed: canonical JSON, keyed digests, random streams.

Everything random in fedenergy is keyed by what it is for, never by the order in which it is drawn,
so results do not depend on the number of workers. The forms below are fixed: golden tests hold them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from json.encoder import encode_basestring as quote
from typing import Any

import numpy as np

CELL, QUERY, STREAM = b"fe.cell.1", b"fe.query.1", b"fe.stream.1"


def canon(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8, numbers as plain decimal strings, bytes as hex.

    Equal numbers have one form (1, 1.0 and Decimal("1.00") are all "1"). NaN and infinities raise ValueError,
    values of other types TypeError.

    >>> canon({"b": 1.50, "a": [True, None, "x"]})
    b'{"a":[true,null,"x"],"b":"1.5"}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | float | Decimal | np.integer | np.floating):
        return decimal_text(value)
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"canonical JSON takes text keys only, got {bad[0]!r}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, Set):
        raise TypeError("a set has no order: sort it into a list before it becomes canonical JSON")
    raise TypeError(f"canonical JSON cannot hold a {type(value).__name__}: {value!r}")


def decimal_text(value: int | float | Decimal) -> str:
    """The shortest plain decimal text of a finite number.

    >>> decimal_text(1e-5), decimal_text(50.0), decimal_text(-0.0)
    ('0.00001', '50', '0')
    """
    number = Decimal(int(value)) if isinstance(value, int | np.integer) else (
        value if isinstance(value, Decimal) else Decimal(repr(float(value))))
    if not number.is_finite():
        raise ValueError(f"{value!r} is not a finite number and has no canonical form")
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def digest(person: bytes, value: Any, size: int = 16) -> bytes:
    """BLAKE2b of the canonical form, personalised (at most 16 bytes), so that domains never collide."""
    return hashlib.blake2b(canon(value), digest_size=size, person=person).digest()


def cell_id(key: Mapping[str, Any]) -> str:
    """Identity of a cell: {trust, mechanism, policy, epsilon, seed, vary} (DESIGN: Cell), 32 hex digits."""
    return digest(CELL, key).hex()


def query_id(body: Mapping[str, Any]) -> str:
    """Identity of a query: the digest of its whole body (DESIGN: Ids and streams), 32 hex digits."""
    return digest(QUERY, body).hex()


def stream(seed: int, purpose: str, household: str = "", query: str = "") -> np.random.Generator:
    """A counter-based generator (Philox, counter 0) keyed by (seed, purpose, household, query id).

    >>> stream(1, "noise", "h1", "q").integers(10) == stream(1, "noise", "h1", "q").integers(10)
    np.True_
    """
    return np.random.Generator(np.random.Philox(key=int.from_bytes(stream_key(seed, purpose, household, query), "little")))


def stream_key(seed: int, purpose: str, household: str = "", query: str = "") -> bytes:
    """The 16 bytes, little-endian, that key a stream: digest(STREAM, [seed, purpose, household, query]).

    >>> stream_key(1, "noise", "h1", "q") == digest(STREAM, [1, "noise", "h1", "q"])
    True
    """
    if type(seed) is not int:
        return digest(STREAM, [seed, purpose, household, query])
    text = f'["{seed}",{quote(purpose)},{quote(household)},{quote(query)}]'  # canon of it, at an eighth of its time
    return hashlib.blake2b(text.encode(), digest_size=16, person=STREAM).digest()
