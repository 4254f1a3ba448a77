"""One set of survivors per household and session, for good, whoever races for it."""

from __future__ import annotations

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedenergy.box.promises import FILE, keep_promises

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
