"""The SQL of one ledger file: the only place that knows its tables. Another back end offers the same methods.

Rows are appended, and keys begin with the query or the sequence: what a round adds lies side by side, so a commit does
not rewrite the rounds before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from fedenergy.box.ledger_connection import Connection
from fedenergy.box.ledger_rows import Row

CHUNK = 400
TABLES = (
    """CREATE TABLE charge (household TEXT NOT NULL, query_id TEXT NOT NULL, content_digest BLOB NOT NULL,
       cell TEXT NOT NULL, block_from INTEGER NOT NULL, block_to INTEGER NOT NULL, unit TEXT NOT NULL,
       relation TEXT NOT NULL, mechanism TEXT NOT NULL, trust TEXT NOT NULL, epsilon_micro INTEGER, delta REAL NOT NULL,
       rho_micro INTEGER, payload BLOB NOT NULL, sequence INTEGER NOT NULL, previous_hash BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX charge_query ON charge (query_id, household)",
    "CREATE UNIQUE INDEX charge_sequence ON charge (sequence, household)",
    """CREATE TABLE head (household TEXT PRIMARY KEY, sequence INTEGER NOT NULL, hash BLOB NOT NULL,
       spent_micro INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE cell_head (household TEXT NOT NULL, cell TEXT NOT NULL, spent_micro INTEGER NOT NULL,
       cap_micro INTEGER NOT NULL, scope TEXT NOT NULL, PRIMARY KEY (household, cell)) WITHOUT ROWID""",
)
COLUMNS = ", ".join(f"charge.{name}" for name in Row._fields)


class Head(NamedTuple):
    """A household's newest row: its sequence and hash, and the micro-epsilon of all its cells."""

    sequence: int
    hash: bytes
    spent_micro: int


class CellHead(NamedTuple):
    """What a household spent in one cell; the largest cap and the last scope it was charged under."""

    spent_micro: int
    cap_micro: int
    scope: str


class SqliteFiles:
    """Where the charges of a ledger folder live: one file per bucket."""

    @staticmethod
    def exists(path: Path) -> bool:
        return path.exists()

    @staticmethod
    def open(path: Path, create: bool) -> SqliteStore:
        return SqliteStore(path, create)


class SqliteStore:
    """Charges and heads of one file. All reads and writes happen inside transaction()."""

    def __init__(self, path: Path, create: bool) -> None:
        self.path = path
        self._file = Connection(path, create, TABLES)

    def close(self) -> None:
        self._file.close()

    def in_place(self) -> bool:
        """False where the file was deleted or replaced behind this connection."""
        return self._file.in_place()

    def transaction(self, write: bool) -> AbstractContextManager[None]:
        """Commit on a normal end, roll back on any exception. Raises LedgerBroken, LedgerUnavailable."""
        return self._file.transaction(write)

    def schema(self) -> int:
        """0 for an empty file, else the schema's version; LedgerBroken for anything else."""
        return self._file.schema()

    def create(self) -> None:
        """Make the tables in an empty file, inside the caller's transaction."""
        self._file.create()

    def integrity(self) -> list[str]:
        """What the data base itself finds wrong; empty where the file is sound."""
        return self._file.integrity()

    def stored(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        """(household, query id) -> row, for those that are there."""
        return {(row[0], row[1]): Row._make(row) for row in self._each(
            f"SELECT {COLUMNS} FROM (VALUES {{}}) AS k CROSS JOIN charge ON charge.household = k.column1 "
            f"AND charge.query_id = k.column2", keys)}

    def at(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Row]:
        """(household, sequence) -> row, for those that are there."""
        return {(row[0], row[14]): Row._make(row) for row in self._each(
            f"SELECT {COLUMNS} FROM (VALUES {{}}) AS k CROSS JOIN charge ON charge.household = k.column1 "
            f"AND charge.sequence = k.column2", places)}

    def heads(self, households: Iterable[str]) -> dict[str, Head]:
        return {household: Head._make(rest) for household, *rest in self._each(
            "SELECT head.* FROM (VALUES {}) AS k CROSS JOIN head ON head.household = k.column1",
            ((household,) for household in households))}

    def cells(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], CellHead]:
        return {(household, cell): CellHead._make(rest) for household, cell, *rest in self._each(
            "SELECT cell_head.* FROM (VALUES {}) AS k CROSS JOIN cell_head ON cell_head.household = k.column1 "
            "AND cell_head.cell = k.column2", pairs)}

    def sums(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, str, int, int, int]]:
        """(household, cell, rows, largest sequence, spent) of the rows at places; a household may come in parts.

        Counts only rows that their query id finds, too: one that a damaged index hides would be drawn again.
        """
        return list(self._each(
            "SELECT charge.household, charge.cell, count(*), max(charge.sequence), "
            "coalesce(sum(charge.epsilon_micro), 0) FROM (VALUES {}) AS k CROSS JOIN charge "
            "ON charge.household = k.column1 AND charge.sequence = k.column2 "
            "CROSS JOIN charge AS twin INDEXED BY charge_query ON twin.query_id = charge.query_id "
            "AND twin.household = charge.household AND twin.rowid = charge.rowid GROUP BY 1, 2", places))

    def blocks(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, str, int, int, int]]:
        """(household, cell, block_from, block_to, epsilon_micro) of the bounded rows at places."""
        return list(self._each(
            "SELECT charge.household, charge.cell, charge.block_from, charge.block_to, charge.epsilon_micro "
            "FROM (VALUES {}) AS k CROSS JOIN charge ON charge.household = k.column1 AND charge.sequence = k.column2 "
            "WHERE charge.epsilon_micro IS NOT NULL", places))

    def deltas(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, str, float]]:
        """(household, cell, delta) of the rows at places that have one."""
        return list(self._each(
            "SELECT charge.household, charge.cell, charge.delta FROM (VALUES {}) AS k CROSS JOIN charge "
            "ON charge.household = k.column1 AND charge.sequence = k.column2 WHERE charge.delta > 0", places))

    def paid(self, query_id: str) -> list[tuple[str, int]]:
        """(household, epsilon_micro) of every row of a query; 0 where it is unbounded."""
        return self._file.sql.execute("SELECT household, coalesce(epsilon_micro, 0) FROM charge WHERE query_id = ?",
                                      (query_id,)).fetchall()

    def add(self, rows: Sequence[Row], heads: dict[str, Head], cells: dict[tuple[str, str], CellHead]) -> None:
        """Append rows and replace the heads that they move."""
        run = self._file.sql.executemany
        run(f"INSERT INTO charge VALUES ({', '.join('?' * len(Row._fields))})", rows)
        run("REPLACE INTO head VALUES (?, ?, ?, ?)", [(key, *head) for key, head in heads.items()])
        run("REPLACE INTO cell_head VALUES (?, ?, ?, ?, ?)", [(*key, *head) for key, head in cells.items()])

    def count(self) -> int:
        """Rows in the file."""
        return self._file.sql.execute("SELECT count(*) FROM charge").fetchone()[0]

    def all_heads(self) -> dict[str, Head]:
        return {household: Head._make(rest) for household, *rest in self._file.sql.execute("SELECT * FROM head")}

    def all_cells(self) -> dict[tuple[str, str], CellHead]:
        return {(household, cell): CellHead._make(rest)
                for household, cell, *rest in self._file.sql.execute("SELECT * FROM cell_head")}

    def _each(self, statement: str, keys: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        keys = list(keys)
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start:start + CHUNK]
            marks = "(" + ", ".join("?" * len(chunk[0])) + ")"
            yield from self._file.sql.execute(statement.format(", ".join([marks] * len(chunk))),
                                         [item for key in chunk for item in key])
