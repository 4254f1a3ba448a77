"""A connection to one SQLite file that must not lose what it has committed, for the ledger and for zone answers.

WAL loses committed rows in library versions before 3.51.3, so older libraries use a rollback journal. A commit empties
it and syncs that: removing it instead would cost a sync of the folder, and another when the next one is made.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedenergy.box.ledger_rows import LedgerBroken, LedgerUnavailable

SCHEMA = 1
BUSY_SECONDS = 120.0
CACHE_KIB = 8_192
JOURNAL, SYNCHRONOUS = ("wal", "FULL") if sqlite3.sqlite_version_info >= (3, 51, 3) else ("truncate", "EXTRA")
PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR,
                     sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
                     sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL})
ERRORS = (sqlite3.Error, UnicodeDecodeError)  # of a damaged file the message itself may not decode


def translate(error: Exception, name: str) -> LedgerBroken | LedgerUnavailable:
    """Tell a passing failure (full, locked, no permission) from damage."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in PASSING:
        return LedgerUnavailable(f"ledger file {name} cannot be used now ({error}): nothing was revealed, ask again "
                                 f"when the disk has room and nobody holds the file")
    return LedgerBroken(f"ledger file {name} is unreadable ({error}): put back its newest copy, or start a ledger in "
                        f"another folder")


class Connection:
    """One file with given tables. All reads and writes go through `sql`, inside transaction()."""

    def __init__(self, path: Path, create: bool, tables: Sequence[str]) -> None:
        self.path, self._tables = path, tables
        self.sql: sqlite3.Connection | None = None
        try:
            self.sql = sqlite3.connect(f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}", uri=True,
                                       timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            mode = self.sql.execute(f"PRAGMA journal_mode = {JOURNAL}").fetchone()[0]
            if mode != JOURNAL:
                raise LedgerUnavailable(f"ledger file {path.name} is in journal mode {mode} and somebody holds it: end "
                                        f"the other processes, then ask again")
            self.sql.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            self.sql.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self.sql.execute("PRAGMA cell_size_check = ON")
            status = os.stat(path)
            if create and status.st_mode & 0o077:
                os.chmod(path, 0o600)  # opening and closing the file here instead would drop SQLite's locks
            self._identity = status.st_dev, status.st_ino
        except ERRORS as error:
            self.close()
            raise translate(error, path.name) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.sql is not None:
            self.sql.close()

    def in_place(self) -> bool:
        """False where the file was deleted or replaced behind this connection."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    @contextlib.contextmanager
    def transaction(self, write: bool) -> Iterator[None]:
        """Commit on a normal end, roll back on any exception; SQLite's errors become the ledger's."""
        try:
            if self.sql.in_transaction:  # left open by an interrupt
                self._run("ROLLBACK")
            self._run("BEGIN IMMEDIATE" if write else "BEGIN")
            yield
            self._run("COMMIT")
        except BaseException as error:
            if self.sql.in_transaction:
                with contextlib.suppress(*ERRORS):
                    self.sql.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise translate(error, self.path.name) from error
            raise

    def _run(self, statement: str) -> None:
        try:
            self.sql.execute(statement)
        except ERRORS as error:
            raise translate(error, self.path.name) from error

    def schema(self) -> int:
        """0 for an empty file, else the schema's version; LedgerBroken for anything else."""
        version = self.sql.execute("PRAGMA user_version").fetchone()[0]
        tables = self.sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version not in (0, SCHEMA) or bool(tables) != bool(version):
            raise LedgerBroken(f"ledger file {self.path.name} has schema {version}, this version writes {SCHEMA}: use "
                               f"the version that made it, or start a ledger in another folder")
        return version

    def create(self) -> None:
        """Make the tables in an empty file, inside the caller's transaction."""
        for statement in (*self._tables, f"PRAGMA user_version = {SCHEMA}"):
            self.sql.execute(statement)

    def integrity(self) -> list[str]:
        """SQLite's own findings; empty where the file is sound."""
        return [text for (text,) in self.sql.execute("PRAGMA integrity_check(20)") if text != "ok"]
