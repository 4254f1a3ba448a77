"""What a box opened in a masked sum, kept for good: one set of survivors per session, whoever asks again.

Of each home, a box opens either its share of the seed or its share of the mask key (privacy/pairwise_masks.py). Asked
twice with different survivors, it would open both; so the first set is written down before anything is said. Not
covered: a file that somebody removes or puts back from an older copy.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from fedenergy.box.receipts import make_folder

FILE = "unmask.sqlite"
TABLE = ("CREATE TABLE IF NOT EXISTS promise (household TEXT NOT NULL, session BLOB NOT NULL, survivors BLOB NOT NULL, "
         "PRIMARY KEY (household, session)) WITHOUT ROWID")
WAIT_SECONDS = 60.0


def keep_promises(folder: Path, promises: Sequence[tuple[str, bytes, bytes]]) -> list[bool]:
    """Whether each (household, session, digest of the survivors) is the first one of its household and session, or the
    same again. One durable transaction in folder/unmask.sqlite, from any number of processes.

    Errors: sqlite3.Error where the file cannot be written: nothing may be opened then.
    """
    make_folder(folder)
    path = folder / FILE
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)) as sql:
        sql.execute("PRAGMA journal_mode = DELETE")
        sql.execute("PRAGMA synchronous = EXTRA")
        sql.execute("BEGIN IMMEDIATE")
        sql.execute(TABLE)
        sql.executemany("INSERT OR IGNORE INTO promise VALUES (?, ?, ?)", promises)
        kept = [sql.execute("SELECT survivors FROM promise WHERE household = ? AND session = ?",
                            (household, session)).fetchone()[0] == survivors
                for household, session, survivors in promises]
        sql.execute("COMMIT")
    return kept
