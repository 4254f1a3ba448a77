"""The ledger's charges in PostgreSQL: the store of a cluster whose nodes share no disk that SQLite may lock.

A ledger folder that holds `postgres.json` keeps its charges there instead of in 64 files; receipts, zone answers and the
clock stay in the folder. Each ledger has a schema of its own, so that many studies share a data base. A "file" is a
bucket of households: writers of one bucket wait for each other by an advisory lock, as they do for a SQLite file.
Needs psycopg (pip install 'fedenergy[postgres]').
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedenergy.box.ledger_rows import LedgerBroken, LedgerUnavailable, Row
from fedenergy.box.ledger_sqlite import CellHead, Head
from fedenergy.box.receipts import make_folder

MARK = "postgres.json"
SCHEMA, WAIT_SECONDS, CONNECTIONS = 1, 120, 8
LOCK = 0x6665  # "fe": the class of our advisory locks
TABLES = (
    """CREATE TABLE IF NOT EXISTS bucket (file SMALLINT PRIMARY KEY, version INTEGER NOT NULL, mark TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS charge (household TEXT NOT NULL, query_id TEXT NOT NULL, content_digest BYTEA NOT NULL,
       cell TEXT NOT NULL, block_from BIGINT NOT NULL, block_to BIGINT NOT NULL, unit TEXT NOT NULL,
       relation TEXT NOT NULL, mechanism TEXT NOT NULL, trust TEXT NOT NULL, epsilon_micro BIGINT,
       delta DOUBLE PRECISION NOT NULL, rho_micro BIGINT, payload BYTEA NOT NULL, sequence BIGINT NOT NULL,
       previous_hash BYTEA NOT NULL, file SMALLINT NOT NULL,
       PRIMARY KEY (household, sequence), UNIQUE (query_id, household))""",
    """CREATE TABLE IF NOT EXISTS head (household TEXT PRIMARY KEY, sequence BIGINT NOT NULL, hash BYTEA NOT NULL,
       spent_micro BIGINT NOT NULL, file SMALLINT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS cell_head (household TEXT NOT NULL, cell TEXT NOT NULL, spent_micro BIGINT NOT NULL,
       cap_micro BIGINT NOT NULL, scope TEXT NOT NULL, file SMALLINT NOT NULL, PRIMARY KEY (household, cell))""",
)
ATTEMPTS = 3
COLUMNS = ", ".join(f"charge.{name}" for name in Row._fields)
_engines: dict[tuple[int, str], Any] = {}  # by process: a connection does not survive a fork


def _make_tables(sql: Any, schema: str) -> None:
    """The schema and its tables, where they are not there yet.

    A connection may remember from before it waited for the lock that the schema is not there: "IF NOT EXISTS" then fails on
    its unique name. The next transaction looks again.
    """
    import psycopg

    for attempt in range(ATTEMPTS):
        try:
            with sql.transaction():
                sql.execute("SELECT pg_advisory_xact_lock(%s, %s)", (LOCK, -1))
                sql.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                sql.execute(f"SET LOCAL search_path TO {schema}")
                for statement in TABLES:
                    sql.execute(statement)
            return
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema, psycopg.errors.DuplicateTable):
            if attempt == ATTEMPTS - 1:
                raise


def check_address(url: str) -> str:
    """Return the address of a data base if it is one, and holds no password; ValueError otherwise.

    >>> check_address("postgresql://me@db:5432/energy")
    'postgresql://me@db:5432/energy'
    """
    if re.search(r"//[^/@]*:[^/]*@|password=", url):
        raise ValueError("the address of the data base holds a password, which would stand in every run folder and report: "
                         "leave it out, and give it in $PGPASSWORD or ~/.pgpass")
    if not re.fullmatch(r"postgres(ql)?(\+psycopg)?://\S+", url):
        raise ValueError(f'"{url}" is no address of a PostgreSQL data base: write postgresql://USER@HOST:PORT/DATABASE')
    return url


def keep_in_postgres(folder: Path, url: str) -> None:
    """Say that the charges of a ledger folder live in the data base at url; a folder that says so already must agree.

    url  postgresql://USER@HOST:PORT/DATABASE, without a password ($PGPASSWORD and ~/.pgpass are read)
    Errors: ValueError for another kind of URL, for a folder with SQLite files, or with another data base.
    """
    check_address(url)
    if (place := Postgres.of(folder)) is not None:
        if place.url != url:
            raise ValueError(f"{folder} keeps its charges in {place.url}, not in {url}: one ledger has one place")
        return
    if any(folder.glob("[0-9]*.sqlite")):
        raise ValueError(f"{folder} holds charges in SQLite files already: a ledger does not move, use another folder")
    if any(folder.glob("receipts/[0-9]*.log")):
        raise ValueError(f"{folder} holds receipts of charges, and {MARK}, which says where the charges are, is gone: put "
                         "it back, or start a ledger in another folder")
    path = folder / MARK
    make_folder(folder)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"url": url, "schema": f"fe_{secrets.token_hex(8)}"}, file)
        file.flush()
        os.fsync(file.fileno())


class Postgres:
    """Where the charges of a ledger folder live, if it holds MARK. Stands in for the files of a SQLite ledger."""

    def __init__(self, url: str, schema: str) -> None:
        if not re.fullmatch(r"fe_[0-9a-f]{16}", schema):
            raise LedgerBroken(f"{MARK} names the schema {schema!r}, which is none of ours: put back its newest copy")
        self.url, self.schema = url, schema

    @classmethod
    def of(cls, folder: Path) -> Postgres | None:
        """The data base that a ledger folder names; None for one of SQLite files."""
        path = folder / MARK
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(found["url"], found["schema"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerBroken(f"{path.name} is unreadable ({error}): put back its newest copy, or start a ledger in "
                               "another folder") from error

    def exists(self, path: Path) -> bool:
        """Whether the bucket of that file name was ever made."""
        with self.connection(path.name) as sql:
            return _has_tables(sql, self.schema) and _mark(sql, self.schema, int(path.stem)) is not None

    def open(self, path: Path, create: bool) -> PostgresStore:
        return PostgresStore(self, path, create)

    @contextlib.contextmanager
    def connection(self, name: str) -> Iterator[Any]:
        """A psycopg connection from the pool; its errors become the ledger's."""
        with _translated(name):
            pooled = self._engine().raw_connection()
        try:
            yield pooled.driver_connection
        finally:
            pooled.close()  # back to the pool, rolled back

    def _engine(self) -> Any:
        key = (os.getpid(), self.url)
        if key not in _engines:
            from sqlalchemy import create_engine, event

            url = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql+psycopg://", self.url)
            engine = create_engine(url, pool_size=CONNECTIONS, max_overflow=CONNECTIONS, pool_pre_ping=True,
                                   connect_args={"connect_timeout": 10})

            @event.listens_for(engine, "connect")
            def durable(connection: Any, _: Any) -> None:
                with connection.cursor() as cursor:
                    cursor.execute("SET synchronous_commit = on")
                    if cursor.execute("SHOW fsync").fetchone()[0] != "on":
                        raise LedgerUnavailable("the PostgreSQL server runs with fsync = off and may lose what it has "
                                                "committed: a ledger needs fsync = on")
                connection.commit()
            _engines[key] = engine
        return _engines[key]


class PostgresStore:
    """Charges and heads of one bucket. All reads and writes happen inside transaction()."""

    def __init__(self, place: Postgres, path: Path, create: bool) -> None:
        self.place, self.path, self.file = place, path, int(path.stem)
        self._sql: Any = None
        self._mark: str | None = None
        with place.connection(path.name) as sql, _translated(path.name):
            if create:
                _make_tables(sql, place.schema)
            self._mark = _mark(sql, place.schema, self.file)

    def close(self) -> None:
        self._mark = None

    def in_place(self) -> bool:
        """False where the bucket was dropped or made again behind this store."""
        with self.place.connection(self.path.name) as sql, _translated(self.path.name):
            return _has_tables(sql, self.place.schema) and _mark(sql, self.place.schema, self.file) == self._mark

    @contextlib.contextmanager
    def transaction(self, write: bool) -> Iterator[None]:
        """Commit on a normal end, roll back on any exception. Raises LedgerBroken, LedgerUnavailable."""
        with self.place.connection(self.path.name) as sql, _translated(self.path.name):
            mode = " ISOLATION LEVEL " + ("READ COMMITTED" if write else "REPEATABLE READ READ ONLY")
            sql.rollback()
            sql.autocommit = True  # BEGIN and COMMIT are said below, not guessed
            try:
                sql.execute("BEGIN" + mode)
                sql.execute(f"SET LOCAL search_path TO {self.place.schema}")
                if write:
                    sql.execute(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
                    sql.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s) # %s)", (LOCK, self.place.schema, self.file))
                self._sql = sql
                yield
                self._sql = None
                sql.execute("COMMIT")
            except BaseException:
                self._sql = None
                with contextlib.suppress(Exception):
                    sql.execute("ROLLBACK")
                raise
            finally:
                with contextlib.suppress(Exception):
                    sql.autocommit = False

    def schema(self) -> int:
        """0 for a bucket without tables, else the schema's version; LedgerBroken for anything else."""
        found = self._sql.execute("SELECT version FROM bucket WHERE file = %s", (self.file,)).fetchone()
        if found is not None and found[0] != SCHEMA:
            raise LedgerBroken(f"ledger bucket {self.path.stem} has schema {found[0]}, this version writes {SCHEMA}: use "
                               "the version that made it, or start a ledger in another folder")
        return 0 if found is None else found[0]

    def create(self) -> None:
        """Mark the bucket as made, inside the caller's transaction."""
        self._mark = secrets.token_hex(8)
        self._sql.execute("INSERT INTO bucket VALUES (%s, %s, %s)", (self.file, SCHEMA, self._mark))

    def integrity(self) -> list[str]:
        """PostgreSQL checks its pages itself, where the server's data checksums are on."""
        return []

    def stored(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        """(household, query id) -> row, for those that are there."""
        return {(row.household, row.query_id): row for row in self._rows(
            f"SELECT {COLUMNS} FROM unnest(%s::text[], %s::text[]) AS k(a, b) JOIN charge ON charge.household = k.a "
            "AND charge.query_id = k.b", keys)}

    def at(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Row]:
        """(household, sequence) -> row, for those that are there."""
        return {(row.household, row.sequence): row for row in self._rows(
            f"SELECT {COLUMNS} FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS k(a, b, n) JOIN charge "
            "ON charge.household = k.a AND charge.sequence = k.b ORDER BY k.n", places)}

    def heads(self, households: Iterable[str]) -> dict[str, Head]:
        return {home: Head._make(rest) for home, *rest in self._each(
            "SELECT household, sequence, hash, spent_micro FROM head WHERE household = ANY(%s)",
            ((household,) for household in households))}

    def cells(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], CellHead]:
        return {(home, cell): CellHead._make(rest) for home, cell, *rest in self._each(
            "SELECT household, cell, spent_micro, cap_micro, scope FROM unnest(%s::text[], %s::text[]) AS k(a, b) "
            "JOIN cell_head ON household = k.a AND cell = k.b", pairs)}

    def sums(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, str, int, int, int]]:
        """(household, cell, rows, largest sequence, spent) of the rows at places."""
        return self._each(
            "SELECT household, cell, count(*), max(sequence), coalesce(sum(epsilon_micro), 0)::bigint "
            "FROM unnest(%s::text[], %s::bigint[]) AS k(a, b) JOIN charge ON household = k.a AND sequence = k.b "
            "GROUP BY 1, 2", places)

    def blocks(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, str, int, int, int]]:
        """(household, cell, block_from, block_to, epsilon_micro) of the bounded rows at places."""
        return self._each(
            "SELECT household, cell, block_from, block_to, epsilon_micro FROM unnest(%s::text[], %s::bigint[]) AS k(a, b) "
            "JOIN charge ON household = k.a AND sequence = k.b WHERE epsilon_micro IS NOT NULL", places)

    def deltas(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, str, float]]:
        """(household, cell, delta) of the rows at places that have one."""
        return self._each(
            "SELECT household, cell, delta FROM unnest(%s::text[], %s::bigint[]) AS k(a, b) "
            "JOIN charge ON household = k.a AND sequence = k.b WHERE delta > 0", places)

    def add(self, rows: Sequence[Row], heads: dict[str, Head], cells: dict[tuple[str, str], CellHead]) -> None:
        """Append rows and replace the heads that they move."""
        with self._sql.cursor() as cursor:
            cursor.executemany(f"INSERT INTO charge VALUES ({', '.join(['%s'] * (len(Row._fields) + 1))})",
                               [(*row, self.file) for row in rows])
            cursor.executemany(
                "INSERT INTO head VALUES (%s, %s, %s, %s, %s) ON CONFLICT (household) DO UPDATE SET "
                "sequence = excluded.sequence, hash = excluded.hash, spent_micro = excluded.spent_micro",
                [(home, *head, self.file) for home, head in heads.items()])
            cursor.executemany(
                "INSERT INTO cell_head VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (household, cell) DO UPDATE SET "
                "spent_micro = excluded.spent_micro, cap_micro = excluded.cap_micro, scope = excluded.scope",
                [(*key, *head, self.file) for key, head in cells.items()])

    def paid(self, query_id: str) -> list[tuple[str, int]]:
        """(household, epsilon_micro) of every row of a query; 0 where it is unbounded."""
        return self._sql.execute("SELECT household, coalesce(epsilon_micro, 0) FROM charge "
                                 "WHERE query_id = %s AND file = %s", (query_id, self.file)).fetchall()

    def count(self) -> int:
        """Rows in the bucket."""
        return self._sql.execute("SELECT count(*) FROM charge WHERE file = %s", (self.file,)).fetchone()[0]

    def all_heads(self) -> dict[str, Head]:
        return {home: Head._make(rest) for home, *rest in self._sql.execute(
            "SELECT household, sequence, hash, spent_micro FROM head WHERE file = %s", (self.file,)).fetchall()}

    def all_cells(self) -> dict[tuple[str, str], CellHead]:
        return {(home, cell): CellHead._make(rest) for home, cell, *rest in self._sql.execute(
            "SELECT household, cell, spent_micro, cap_micro, scope FROM cell_head WHERE file = %s",
            (self.file,)).fetchall()}

    def _rows(self, statement: str, keys: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
        return map(Row._make, self._each(statement, keys))

    def _each(self, statement: str, keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        columns = [list(column) for column in zip(*keys, strict=True)]
        return self._sql.execute(statement, columns).fetchall() if columns else []


def _has_tables(sql: Any, schema: str) -> bool:
    return sql.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.bucket",)).fetchone()[0]


def _mark(sql: Any, schema: str, file: int) -> str | None:
    if not _has_tables(sql, schema):
        return None
    found = sql.execute(f"SELECT mark FROM {schema}.bucket WHERE file = %s", (file,)).fetchone()
    return None if found is None else found[0]


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    """Tell a passing failure (server away, locked, full) from damage."""
    try:
        import psycopg
        from sqlalchemy import exc
    except ImportError as error:
        raise LedgerUnavailable("the ledger is in PostgreSQL, and psycopg is not installed: pip install "
                                "'fedenergy[postgres]'") from error
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, exc.OperationalError, exc.TimeoutError) as error:
        raise LedgerUnavailable(f"ledger bucket {name.partition('.')[0]} cannot be used now ({_first_line(error)}): nothing "
                                "was revealed, ask again when the PostgreSQL server answers") from error
    except (psycopg.Error, exc.SQLAlchemyError) as error:
        raise LedgerBroken(f"ledger bucket {name.partition('.')[0]} is unreadable ({_first_line(error)}): put back the "
                           "newest copy of the data base, or start a ledger in another folder") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
