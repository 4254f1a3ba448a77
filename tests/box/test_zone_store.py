"""One query id opens one zone answer, over one set of homes, stored before it is revealed."""

import pytest

from fedenergy.box import receipts
from fedenergy.box.ledger_rows import LedgerBroken, LedgerUnavailable
from fedenergy.box.receipts import ReceiptLog
from fedenergy.box.zone_store import ZoneConflict, ZoneStore

HOMES = [f"home-{k}" for k in range(60)]


def never():
    raise AssertionError("the answer may not be opened here")


@pytest.fixture
def path(tmp_path):
    with ZoneStore(tmp_path / "ledger") as store:
        for query in ("q1", "q2", "q3"):
            store.put_once(query, HOMES, lambda query=query: f"answer {query}".encode())
    return tmp_path / "ledger"


def test_sixty_homes_and_then_fifty_nine_of_them_is_refused(path):
    with ZoneStore(path) as store:
        with pytest.raises(ZoneConflict, match=r"over 60 homes .* set of 59: one query id opens one answer"):
            store.put_once("q1", HOMES[:-1], never)
        with pytest.raises(ZoneConflict):
            store.put_once("q1", [*HOMES[:-1], "home-60"], never)
        assert store.get("q1").payload == b"answer q1"


def test_the_same_homes_get_the_stored_answer_in_whatever_order(path):
    with ZoneStore(path) as store:
        row = store.put_once("q2", HOMES[::-1], never, trust="curator")
        assert row == store.get("q2")
    assert (row.payload, row.trust, row.households) == (b"answer q2", "sum", tuple(sorted(HOMES)))


def test_get_knows_nothing_of_a_query_that_was_never_opened(path, tmp_path):
    with ZoneStore(path) as store:
        assert store.get("q4") is None
    with ZoneStore(tmp_path / "empty") as store:
        assert store.get("q1") is None
    assert not (tmp_path / "empty").exists()


def test_an_opening_that_fails_leaves_nothing_behind(path):
    with ZoneStore(path) as store:
        with pytest.raises(ZeroDivisionError):
            store.put_once("q4", HOMES, lambda: 1 // 0)
        with pytest.raises(TypeError, match="holds bytes"):
            store.put_once("q4", HOMES, lambda: "text")
        with pytest.raises(ValueError):
            store.put_once("q4", ["h1", "h1"], never)
        with pytest.raises(ValueError):
            store.put_once("q4", HOMES, never, trust="shared")
        assert store.get("q4") is None
        assert store.put_once("q4", HOMES[:59], lambda: b"fresh").payload == b"fresh"


def test_two_stores_share_one_answer(path):
    with ZoneStore(path) as first, ZoneStore(path) as second:
        assert second.get("q4") is None
        first.put_once("q4", HOMES, lambda: b"first")
        assert second.put_once("q4", HOMES, never).payload == b"first"


def test_an_older_copy_put_back_is_refused(path):
    older = (path / "zone.sqlite").read_bytes()
    with ZoneStore(path) as store:
        store.put_once("q4", HOMES, lambda: b"answer q4")
    (path / "zone.sqlite").write_bytes(older)
    with ZoneStore(path) as store:
        with pytest.raises(LedgerBroken, match="older"):
            store.put_once("q4", HOMES[:-1], never)
        with pytest.raises(LedgerBroken, match="older"):
            store.get("q1")


@pytest.mark.parametrize("damage", [
    lambda file: file.unlink(), lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(b"not a data base" * 999),
    lambda file: file.write_bytes(file.read_bytes().replace(b"answer q2", b"answer Q2")),
    lambda file: (file.parent / "receipts" / "zone.log").unlink()])
def test_a_missing_emptied_or_damaged_file_is_refused(path, damage):
    damage(path / "zone.sqlite")
    with ZoneStore(path) as store:
        with pytest.raises(LedgerBroken):
            store.get("q1")
        with pytest.raises(LedgerBroken):
            store.put_once("q4", HOMES, never)


def test_a_file_deleted_behind_an_open_store_is_refused(path):
    with ZoneStore(path) as store:
        assert store.get("q1") is not None
        (path / "zone.sqlite").unlink()
        with pytest.raises(LedgerBroken, match="missing"):
            store.put_once("q1", HOMES[:-1], never)


def test_nothing_is_revealed_without_its_receipt(path, monkeypatch):
    log = ReceiptLog(path / "receipts" / "zone.log")

    def full(file):
        raise OSError(28, "No space left on device")

    with ZoneStore(path) as store:
        assert store.get("q1") is not None
        monkeypatch.setattr(receipts.os, "fsync", full)
        with pytest.raises(LedgerUnavailable, match="No space"):
            store.put_once("q4", HOMES, lambda: b"answer q4")
        monkeypatch.undo()
    assert log.load()["*zone"][0] == 3
    with ZoneStore(path) as store:
        assert store.get("q4").payload == b"answer q4"
    assert log.load()["*zone"][0] == 4
