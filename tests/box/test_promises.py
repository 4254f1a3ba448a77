"""One set of survivors per household and session, for good, whoever races for it."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedenergy.box.ledger_mark import behind, heads_of
from fedenergy.box.ledger_rows import LedgerBroken
from fedenergy.box.promises import FILE, LOG, check_promises, keep_promises

ONE, OTHER = b"1" * 32, b"2" * 32


def test_the_first_set_stands(tmp_path):
    folder = tmp_path / "ledger"
    assert keep_promises(folder, [("h1", b"s", ONE), ("h2", b"s", ONE)]) == [True, True]
    assert keep_promises(folder, [("h1", b"s", ONE), ("h1", b"s", OTHER), ("h1", b"t", OTHER), ("h3", b"s", OTHER)]) \
        == [True, False, True, True]
    assert keep_promises(folder, [("h3", b"s", ONE)]) == [False]
    assert keep_promises(folder, []) == []
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600


def test_of_those_that_race_one_wins(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda n: keep_promises(tmp_path, [("h1", b"s", bytes([n]) * 32)]), range(16)))
    assert sum(one for one, in kept) == 1


def test_nothing_is_promised_where_it_cannot_be_written(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    with pytest.raises(sqlite3.Error):
        keep_promises(tmp_path, [("h1", b"s", ONE)])


def test_an_older_file_opens_nothing(tmp_path):
    """Put back, it would open the other share of a home: the promise that it lacks is in the receipts."""
    keep_promises(tmp_path, [("h1", b"s", ONE), ("h2", b"s", ONE)])
    shutil.copy(tmp_path / FILE, tmp_path / "older")
    assert keep_promises(tmp_path, [("h1", b"t", ONE)]) == [True]
    newest = (tmp_path / FILE).read_bytes()
    assert check_promises(tmp_path) == 3
    shutil.copy(tmp_path / "older", tmp_path / FILE)
    with pytest.raises(LedgerBroken, match="older than its receipts"):
        check_promises(tmp_path)
    with pytest.raises(LedgerBroken, match="older than its receipts"):
        keep_promises(tmp_path, [("h1", b"t", OTHER)])
    assert keep_promises(tmp_path, [("h2", b"s", ONE), ("h2", b"s", OTHER)]) == [True, False]  # a home that is not behind
    (tmp_path / FILE).unlink()
    with pytest.raises(LedgerBroken, match="missing"):
        check_promises(tmp_path)
    assert check_promises(tmp_path / "none") == 0
    for promise in (("h1", b"t", OTHER), ("h2", b"u", ONE)):
        with pytest.raises(LedgerBroken, match="older"):
            keep_promises(tmp_path, [promise])
    (tmp_path / FILE).write_bytes(newest)
    assert keep_promises(tmp_path, [("h1", b"t", ONE), ("h1", b"t", OTHER)]) == [True, False]


def test_a_changed_promise_and_lost_receipts_open_nothing(tmp_path):
    keep_promises(tmp_path, [("h1", b"s", ONE), ("h1", b"t", ONE)])
    with sqlite3.connect(tmp_path / FILE) as sql:
        sql.execute("UPDATE promise SET survivors = ? WHERE session = ?", (OTHER, b"s"))
    sql.close()
    with pytest.raises(LedgerBroken, match="damaged"):
        keep_promises(tmp_path, [("h1", b"s", OTHER)])
    with sqlite3.connect(tmp_path / FILE) as sql:
        sql.execute("UPDATE promise SET survivors = ? WHERE session = ?", (ONE, b"s"))
    sql.close()
    assert keep_promises(tmp_path, [("h1", b"s", OTHER)]) == [False]
    (tmp_path / "receipts" / LOG).unlink()
    with pytest.raises(LedgerBroken, match="receipts"):
        keep_promises(tmp_path, [("h1", b"s", OTHER)])


def test_a_kill_between_commit_and_receipt_loses_nothing(tmp_path):
    keep_promises(tmp_path, [("h1", b"s", ONE)])
    log = (tmp_path / "receipts" / LOG).read_bytes()
    keep_promises(tmp_path, [("h1", b"t", ONE)])
    (tmp_path / "receipts" / LOG).write_bytes(log)  # as if killed before the receipt of t
    assert keep_promises(tmp_path, [("h1", b"t", OTHER)]) == [False]
    assert heads_of(tmp_path / "receipts")["unmask/h1"][0] == 2


def test_file_and_receipts_put_back_together_fall_behind_the_results(tmp_path):
    keep_promises(tmp_path / "ledger", [("h1", b"s", ONE)])
    shutil.copytree(tmp_path / "ledger", tmp_path / "backup")
    keep_promises(tmp_path / "ledger", [("h1", b"t", ONE)])
    mark = heads_of(tmp_path / "ledger" / "receipts")
    assert behind(mark, heads_of(tmp_path / "backup" / "receipts")) == ["unmask/h1"]
