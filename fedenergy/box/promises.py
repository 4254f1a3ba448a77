"""What a box opened in a masked sum, kept for good: one set of survivors per session, whoever asks again.

Of each home, a box opens either its share of the seed or its share of the mask key (privacy/pairwise_masks.py). Asked
twice with different survivors, it would open both; so the first set is written down before anything is said. The promises
of a home form a chain, and its length and head go to a log of receipts (box/receipts.py) before anything is said, so a
file that is missing or was put back from an older copy is refused. Not covered: file and receipts put back together
(box/ledger_mark.py sees that, once the run has ended).
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from fedenergy.box.ledger_rows import ZERO, LedgerBroken
from fedenergy.box.receipts import Receipt, ReceiptLog, ReceiptsBroken, make_folder
from fedenergy.ids import canon

FILE, LOG = "unmask.sqlite", "unmask.log"
TABLE = ("CREATE TABLE IF NOT EXISTS promise (household TEXT NOT NULL, session BLOB NOT NULL, survivors BLOB NOT NULL, "
         "sequence INTEGER NOT NULL, head BLOB NOT NULL, PRIMARY KEY (household, session)) WITHOUT ROWID")
CHAIN = "SELECT sequence, session, survivors, head FROM promise WHERE household = ? ORDER BY sequence"
WAIT_SECONDS = 60.0
REMEDY = "put back its newest copy, or start a ledger in another folder"


def keep_promises(folder: Path, promises: Sequence[tuple[str, bytes, bytes]]) -> list[bool]:
    """Whether each (household, session, digest of the survivors) is the first one of its household and session, or the
    same again. One durable transaction in folder/unmask.sqlite, from any number of processes.

    Errors: sqlite3.Error or OSError where the file or its receipts cannot be written, LedgerBroken where the file is
    missing, damaged or older than its receipts: nothing may be opened then.
    """
    make_folder(folder)
    path, log = folder / FILE, ReceiptLog(folder / "receipts" / LOG)
    try:
        known = log.load() if log.exists() else None  # before the file: receipts follow commits
    except ReceiptsBroken as error:
        raise LedgerBroken(str(error)) from error
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)) as sql:
        sql.execute("PRAGMA journal_mode = DELETE")
        sql.execute("PRAGMA synchronous = EXTRA")
        sql.execute("BEGIN IMMEDIATE")
        sql.execute(TABLE)
        if known is None:
            if sql.execute("SELECT 1 FROM promise LIMIT 1").fetchone() and not log.exists():
                raise LedgerBroken(f"{FILE} holds promises, but its receipts {LOG} are missing: {REMEDY}")
            log.create()
        heads = _heads(sql, {household for household, _, _ in promises}, known or {})
        kept = []
        for household, session, survivors in promises:
            found = sql.execute("SELECT survivors FROM promise WHERE household = ? AND session = ?",
                                (household, session)).fetchone()
            if found is None:
                sequence, before = heads[household]
                heads[household] = sequence + 1, _head(before, session, survivors)
                sql.execute("INSERT INTO promise VALUES (?, ?, ?, ?, ?)", (household, session, survivors, *heads[household]))
            kept.append(found is None or found[0] == survivors)
        sql.execute("COMMIT")
    if fresh := {name: head for name, head in heads.items() if head[0] > (known or {}).get(name, (0, ZERO))[0]}:
        log.append(fresh)
    return kept


def check_promises(folder: Path) -> int:
    """How many promises a ledger holds, after checking every chain and its receipt; 0 where there are none.

    Raises LedgerBroken, or sqlite3.Error for a file that is no data base.
    """
    path, log = folder / FILE, ReceiptLog(folder / "receipts" / LOG)
    try:
        known = log.read() if log.exists() else {}
    except ReceiptsBroken as error:
        raise LedgerBroken(str(error)) from error
    if not path.exists():
        if known:
            raise LedgerBroken(f"{FILE} is missing, yet receipts show the promises of {len(known)} homes: {REMEDY}")
        return 0
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=WAIT_SECONDS)) as sql:
        homes = {name for name, in sql.execute("SELECT DISTINCT household FROM promise")}
        return sum(sequence for sequence, _ in _heads(sql, homes | set(known), known).values())


def _heads(sql: sqlite3.Connection, households: Iterable[str], known: dict[str, Receipt]) -> dict[str, Receipt]:
    """Length and head of each home's chain, after making sure that it leads to the head that its receipt shows."""
    found = {}
    for household in households:
        before, at, receipt = ZERO, 0, known.get(household, (0, ZERO))
        for sequence, session, survivors, head in sql.execute(CHAIN, (household,)):
            before, at = _head(before, session, survivors), at + 1
            if (sequence, head) != (at, before) or (at == receipt[0] and before != receipt[1]):
                raise LedgerBroken(f"{FILE} is damaged: the promises of {household} do not lead to its head: {REMEDY}")
        if at < receipt[0]:
            raise LedgerBroken(f"{FILE} is older than its receipts (an earlier copy was put back): {REMEDY}")
        found[household] = at, before
    return found


def _head(before: bytes, session: bytes, survivors: bytes) -> bytes:
    return hashlib.blake2b(canon([before, session, survivors]), digest_size=32).digest()
