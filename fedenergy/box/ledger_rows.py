"""What the privacy ledger writes and answers: charges, rows, outcomes, and the hash that chains rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring as quote
from typing import NamedTuple

from fedenergy.households.household import check_household_id
from fedenergy.ids import decimal_text
from fedenergy.privacy.trust import OPEN, check_trust

BUCKETS = 64
ZERO = bytes(32)
LIMIT = 1 << 62  # micro-epsilon: sums stay within 64 bits
CELL, HOME, PERIOD = "cell", "home", "period"
CHARGED, STORED, OVER_CAP, CONFLICT, BROKEN = "charged", "stored", "over_cap", "conflict", "broken"
STATUSES = (CHARGED, STORED, OVER_CAP, CONFLICT, BROKEN)


class LedgerBroken(RuntimeError):
    """A ledger file is missing, older than its receipts, or corrupt: nothing in it may be used."""


class LedgerUnavailable(RuntimeError):
    """A ledger file cannot be read or written just now (locked, disk full): nothing was revealed; ask again later."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What one household would pay for the answer to one query.

    household       who pays (Household.charged_to); with query_id the key: one id, one answer
    content_digest  digest of the query's body: the same id with another digest is a conflict
    cell            the world that the budget belongs to (fedenergy.ids.cell_id)
    block_from/to   days since 1970-01-01 that the answer reads, half-open; 0, 0 where the unit is a whole record
    epsilon_micro   integer micro-epsilon; None exactly under trust `open` ("unbounded", outside the cap)
    cap_micro       integer micro-epsilon of the home's agreement
    delta, rho_micro  of a Gaussian query, kept beside epsilon
    delta_cap       of the home's agreement: the deltas in the cap's scope add up to at most it. None: not limited here
    all_cells       True under `secure` noise: the cap sums every cell of the household, else this cell only
    period          True where the unit is a period: the cap sums only rows whose blocks overlap these blocks

    Errors: ValueError for a malformed id, digest, block or trust mode. Numbers that are no integers (NaN among them)
    are accepted here and refused by the ledger, so that one bad budget does not stop a whole batch.
    """

    household: str
    query_id: str
    content_digest: bytes
    cell: str
    block_from: int
    block_to: int
    unit: str
    relation: str
    mechanism: str
    trust: str
    epsilon_micro: int | None
    cap_micro: int
    delta: float = 0.0
    rho_micro: int | None = None
    all_cells: bool = False
    period: bool = False
    delta_cap: float | None = None

    def __post_init__(self) -> None:
        check_household_id(self.household)
        check_trust(self.trust)
        if not self.query_id or not isinstance(self.query_id, str):
            raise ValueError(f"household {self.household}: query id {self.query_id!r} is empty or no text")
        if not isinstance(self.content_digest, bytes) or not self.content_digest:
            raise ValueError(f"household {self.household}: content_digest is the bytes of a digest, "
                             f"not {self.content_digest!r}")
        if type(self.block_from) is not int or type(self.block_to) is not int or self.block_from > self.block_to:
            raise ValueError(f"household {self.household}: blocks {self.block_from!r} to {self.block_to!r} are not "
                             f"integer days, half-open, in order")
        if self.period and self.block_from == self.block_to:
            raise ValueError(f"household {self.household}: a unit of a period needs at least one day of blocks, else "
                             f"its charge would overlap nothing and be free")
        if not 0.0 <= self.delta < 1.0:
            raise ValueError(f"household {self.household}: delta = {self.delta!r} lies outside [0, 1)")

    @property
    def scope(self) -> str:
        """What the cap sums over: PERIOD (overlapping blocks), HOME (all cells) or CELL."""
        return PERIOD if self.period else HOME if self.all_cells else CELL

    def problem(self) -> str:
        """Why the numbers cannot be charged, or "" (checked inside the transaction)."""
        epsilon, cap = self.epsilon_micro, self.cap_micro
        if (epsilon is None) != (self.trust == OPEN):
            return f"epsilon is absent exactly under trust {OPEN}: got {epsilon!r} under trust {self.trust}"
        if epsilon is not None and not (type(epsilon) is int and epsilon > 0):
            return f"epsilon_micro = {epsilon!r} is not a positive int (fedenergy.privacy.epsilon.micro makes one)"
        if epsilon is not None and not (type(cap) is int and 0 <= cap < LIMIT):
            return f"cap_micro = {cap!r} is not an int in [0, 2**62)"
        if self.rho_micro is not None and not (type(self.rho_micro) is int and 0 < self.rho_micro < LIMIT):
            return f"rho_micro = {self.rho_micro!r} is not a positive int below 2**62"
        return ""


class Outcome(NamedTuple):
    """What became of a charge.

    charged   paid and durable; payload: the noised bytes just stored
    stored    the same query was answered before; payload: those bytes; nothing was paid
    over_cap  spent + epsilon <= cap does not hold, or they are no integers
    conflict  the id was used for another query
    broken    the ledger's file is missing, older than its receipts, damaged, or (for this call) full or locked
    payload is None unless charged or stored. spent_micro: micro-epsilon spent in the cap's scope, with this charge.
    reason: for the box's own log, never for a message.
    """

    status: str
    payload: bytes | None
    spent_micro: int
    reason: str = ""


class Row(NamedTuple):
    """One charge as it is stored (schema 1)."""

    household: str
    query_id: str
    content_digest: bytes
    cell: str
    block_from: int
    block_to: int
    unit: str
    relation: str
    mechanism: str
    trust: str
    epsilon_micro: int | None
    delta: float
    rho_micro: int | None
    payload: bytes
    sequence: int
    previous_hash: bytes


StoredRow = Row


class Problem(NamedTuple):
    """Something that verify() found: the file, the household ("" for the whole file) and what is wrong."""

    file: str
    household: str
    text: str


def bucket(household: str) -> int:
    """The ledger file (0 to 63) of a household, whatever the number of workers.

    >>> bucket("h1"), bucket("h2")
    (37, 38)
    """
    return hashlib.blake2b(household.encode()).digest()[0] % BUCKETS


def row_hash(row: Row) -> bytes:
    """BLAKE2b-32 of ids.canon(row), bytes as hex: the next row's previous_hash.

    The text is put together here because canon walks a row in 30 us; a test holds the two equal.
    """
    epsilon, rho = row.epsilon_micro, row.rho_micro
    return hashlib.blake2b((
        f'{{"block_from":"{row.block_from}","block_to":"{row.block_to}","cell":{quote(row.cell)},'
        f'"content_digest":"{row.content_digest.hex()}","delta":"{_decimal(row.delta)}",'
        f'"epsilon_micro":{_integer(epsilon)},"household":{quote(row.household)},"mechanism":{quote(row.mechanism)},'
        f'"payload":"{row.payload.hex()}","previous_hash":"{row.previous_hash.hex()}",'
        f'"query_id":{quote(row.query_id)},"relation":{quote(row.relation)},"rho_micro":{_integer(rho)},'
        f'"sequence":"{row.sequence}","trust":{quote(row.trust)},"unit":{quote(row.unit)}}}'
    ).encode(), digest_size=32).digest()


def _integer(value: int | None) -> str:
    return "null" if value is None else f'"{value}"'


@lru_cache(maxsize=256)
def _decimal(value: float) -> str:
    return decimal_text(value)
