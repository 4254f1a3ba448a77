"""Zone answers, stored before they are revealed: one query id opens one answer, over one set of homes.

Else two openings of one query, over 60 homes and over 59 of them, would differ by the last home's own value.
Summer and Curator ask get() before any home is asked, and reveal what put_once() returns.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fedenergy.box.ledger_connection import Connection
from fedenergy.box.ledger_rows import ZERO, LedgerBroken, LedgerUnavailable
from fedenergy.box.query import homes_digest
from fedenergy.box.receipts import Receipt, ReceiptLog, ReceiptsBroken, make_folder
from fedenergy.ids import canon
from fedenergy.privacy.trust import SUM, check_trust

ZONE = "*zone"
TABLES = ("""CREATE TABLE zone (sequence INTEGER PRIMARY KEY, query_id TEXT NOT NULL UNIQUE, homes_digest TEXT NOT NULL,
    households BLOB NOT NULL, trust TEXT NOT NULL, payload BLOB NOT NULL, previous_hash BLOB NOT NULL)""",)
COLUMNS = ("sequence", "query_id", "homes_digest", "households", "trust", "payload", "previous_hash")
SELECT = f"SELECT {', '.join(COLUMNS)} FROM zone"
REMEDY = "put back its newest copy, or start a ledger in another folder"


class ZoneConflict(RuntimeError):
    """A query id was opened over one set of homes and is asked to open over another."""


@dataclass(frozen=True)
class ZoneRow:
    """A zone's answer: the noised (or summed) bytes, and the homes that they are over, sorted."""

    query_id: str
    homes_digest: str
    households: tuple[str, ...]
    payload: bytes
    trust: str


class ZoneStore:
    """path/zone.sqlite and its receipts (zone.log), guarded as the ledger's files are.

    Errors: ZoneConflict; LedgerBroken where the file is missing, older than its receipts or damaged; LedgerUnavailable
    where it is full or locked (nothing was revealed: ask again).
    """

    def __init__(self, path: Path, receipts: Path | None = None) -> None:
        self.path = Path(path) / "zone.sqlite"
        self._log = ReceiptLog((Path(path) / "receipts" if receipts is None else Path(receipts)) / "zone.log")
        self._file: Connection | None = None
        self._known: Receipt = (0, ZERO)
        self._lock = threading.RLock()

    def get(self, query_id: str) -> ZoneRow | None:
        """The stored answer, or None where the query was never opened."""
        with self._lock:
            if (file := self._open(create=False)) is None:
                return None
            with file.transaction(write=False):
                head = self._head(file)
                row = file.sql.execute(f"{SELECT} WHERE query_id = ?", (query_id,)).fetchone()
            if row is None:
                return None
            self._receipt(head)
            return self._zone_row(row)

    def put_once(self, query_id: str, homes: Iterable[str], payload_fn: Callable[[], bytes],
                 trust: str = SUM) -> ZoneRow:
        """Store the answer over homes, or return the one stored: the first writer wins.

        payload_fn  opens the sum or draws the noise, inside the transaction, only where nothing is stored; what it
                    raises passes through, after a rollback
        """
        names = sorted(homes)
        digest, trust = homes_digest(names), check_trust(trust)
        with self._lock:
            file = self._open(create=True)
            with file.transaction(write=True):
                head = self._head(file)
                row = file.sql.execute(f"{SELECT} WHERE query_id = ?", (query_id,)).fetchone()
                if row is None:
                    payload = payload_fn()
                    if not isinstance(payload, bytes):
                        raise TypeError(f"payload_fn returned a {type(payload).__name__}: the zone store holds bytes")
                    row = (head[0] + 1, query_id, digest, zlib.compress("\n".join(names).encode(), 1), trust, payload,
                           head[1])
                    file.sql.execute(f"INSERT INTO zone VALUES ({', '.join('?' * len(COLUMNS))})", row)
                    head = row[0], _hash(row)
            found = self._zone_row(row)
            if found.homes_digest != digest:
                raise ZoneConflict(f"query {query_id} was opened over {len(found.households)} homes and is asked to "
                                   f"open over another set of {len(names)}: one query id opens one answer, over one "
                                   f"set of homes. Use the stored answer, or ask a new query, which is charged")
            self._receipt(head)
            return found

    def close(self) -> None:
        """Close the file; the store opens it again when asked."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def __enter__(self) -> ZoneStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _open(self, create: bool) -> Connection | None:
        if self._file is not None and not self._file.in_place():
            self.close()
        if self._file is not None:
            return self._file
        try:
            logged = self._log.load().get(ZONE, (0, ZERO)) if self._log.exists() else (0, ZERO)
            self._known = max(logged, self._known, key=lambda receipt: receipt[0])
            there = self.path.exists()
            if not there and self._known[0]:
                raise LedgerBroken(f"{self.path.name} is missing, yet a receipt shows {self._known[0]} zone answers: "
                                   f"{REMEDY}")
            if not there and not create:
                return None
            make_folder(self.path.parent)
            file = Connection(self.path, not there, TABLES)
            try:
                with file.transaction(write=False):
                    filled = file.schema()
                    chained = self._chain(file) if filled else 0
                    if not filled and self._known[0]:
                        raise LedgerBroken(f"{self.path.name} is older than its receipts: {REMEDY}")
                if chained and not self._log.exists():
                    raise LedgerBroken(f"{self.path.name} holds answers, but its receipts {self._log.path.name} are "
                                       f"missing: {REMEDY}")
                if create and not filled:
                    self._log.create()
                    with file.transaction(write=True):
                        if not file.schema():
                            file.create()
                if not filled and not create:
                    file.close()
                    return None
            except BaseException:
                file.close()
                raise
        except ReceiptsBroken as error:
            raise LedgerBroken(str(error)) from error
        except OSError as error:
            raise LedgerUnavailable(f"{self.path.name} cannot be opened ({error})") from error
        self._file = file
        return file

    def _chain(self, file: Connection) -> int:
        """Check every row against the next, and the receipt's row; returns the number of rows."""
        previous, count = ZERO, 0
        for count, row in enumerate(file.sql.execute(f"{SELECT} ORDER BY sequence"), start=1):
            if row[0] != count or row[-1] != previous:
                raise LedgerBroken(f"{self.path.name} is damaged: its chain breaks at row {count}: {REMEDY}")
            previous = _hash(row)
        self._head(file)
        return count

    def _head(self, file: Connection) -> Receipt:
        """(sequence, hash) of the newest row, after making sure that the receipt's row is there unchanged."""
        sequence, receipt = self._known
        known = file.sql.execute(f"{SELECT} WHERE sequence = ?", (sequence,)).fetchone() if sequence else None
        if sequence and (known is None or _hash(known) != receipt):
            raise LedgerBroken(f"{self.path.name} is older than its receipts or damaged: row {sequence} is not the one "
                               f"that was revealed: {REMEDY}")
        newest = file.sql.execute(f"{SELECT} ORDER BY sequence DESC LIMIT 1").fetchone()
        return (newest[0], _hash(newest)) if newest else (0, ZERO)

    def _zone_row(self, row: tuple[Any, ...]) -> ZoneRow:
        _, query_id, digest, households, trust, payload, _ = row
        try:
            names = tuple(zlib.decompress(households).decode().split("\n"))
        except (zlib.error, TypeError, ValueError) as error:
            raise LedgerBroken(f"{self.path.name} is damaged: the homes of query {query_id} are unreadable: "
                               f"{REMEDY}") from error
        return ZoneRow(query_id, digest, names, payload, trust)

    def _receipt(self, head: Receipt) -> None:
        if head[0] <= self._known[0]:
            return
        try:
            self._log.append({ZONE: head})
        except OSError as error:
            raise LedgerUnavailable(f"receipts {self._log.path.name} cannot be written ({error}): nothing was "
                                    f"revealed, ask again when the disk has room") from error
        self._known = head


def _hash(row: tuple[Any, ...]) -> bytes:
    """BLAKE2b-32 of the canonical row: the next row's previous_hash. Damaged values give one that matches nothing."""
    try:
        return hashlib.blake2b(canon(dict(zip(COLUMNS, row, strict=True))), digest_size=32).digest()
    except (TypeError, ValueError):
        return b""
