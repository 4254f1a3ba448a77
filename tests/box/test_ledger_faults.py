"""A ledger that is full, damaged, missing or older than its receipts reveals nothing, and says why."""

import os
import shutil

import pytest

from fedenergy.box import ledger_file, receipts
from fedenergy.box.ledger import Ledger, LedgerBroken, LedgerUnavailable, bucket
from fedenergy.box.receipts import ReceiptLog, ReceiptsBroken, decode_line
from tests.box.test_ledger import MICRO, TENTH, charge, never, noised, one

OTHER = next(f"h{k}" for k in range(2, 500) if bucket(f"h{k}") != bucket("h1"))
SAME = next(f"h{k}" for k in range(2, 500) if bucket(f"h{k}") == bucket("h1"))


@pytest.fixture
def path(tmp_path):
    """A closed ledger in which h1 spent 0.3 of 1 by q1 to q3, and its neighbours in and out of its file 0.1 each."""
    with Ledger(tmp_path / "ledger") as ledger:
        for query in ("q1", "q2", "q3"):
            one(ledger, charge(query=query), lambda index, query=query: f"answer to {query}".encode())
        ledger.settle([charge(household=SAME), charge(household=OTHER)], noised)
    return tmp_path / "ledger"


def file_of(path, household="h1"):
    return path / f"{bucket(household):02d}.sqlite"


def log_of(path, household="h1"):
    return path / "receipts" / f"{bucket(household):02d}.log"


def assert_broken(path, why):
    """Every request for the households of the file fails, with the reason; the others are served."""
    with Ledger(path) as ledger:
        asked = [charge(query="q1"), charge(query="q9"), charge(household=SAME, query="q9"), charge(household=OTHER)]
        outcomes = ledger.settle(asked, never)
        assert [outcome.status for outcome in outcomes] == ["broken"] * 3 + ["stored"]
        assert {outcome.payload for outcome in outcomes[:3]} == {None}
        assert all(why in outcome.reason for outcome in outcomes[:3]), outcomes[0].reason
        assert set(ledger.lookup([(OTHER, "q1")])) == {(OTHER, "q1")}
        for read in (lambda: ledger.lookup([("h1", "q1"), (OTHER, "q1")]),
                     lambda: ledger.spent("h1"), lambda: ledger.history("h1"), lambda: list(ledger.rows())):
            with pytest.raises(LedgerBroken, match=why):
                read()
        assert any(why in problem.text for problem in ledger.verify())


def test_an_older_copy_put_back_is_refused(path):
    older = file_of(path).read_bytes()
    with Ledger(path) as ledger:
        one(ledger, charge(query="q4"))
    file_of(path).write_bytes(older)
    assert_broken(path, "older than its receipts")


def test_an_older_copy_is_refused_though_only_a_neighbour_was_charged_since(path):
    older = file_of(path).read_bytes()
    with Ledger(path) as ledger:
        one(ledger, charge(household=SAME, query="q4"))
    file_of(path).write_bytes(older)
    assert_broken(path, "older than its receipts")


@pytest.mark.parametrize("replace", [True, False])
def test_an_older_copy_put_back_behind_an_open_ledger_is_refused(path, replace):
    with Ledger(path) as ledger:
        shutil.copy(file_of(path), path / "older")
        one(ledger, charge(query="q4"))
        if replace:
            os.replace(path / "older", file_of(path))
        else:
            file_of(path).write_bytes((path / "older").read_bytes())
        assert one(ledger, charge(query="q4"), never).status == "broken"


def test_another_history_with_as_many_rows_is_refused(path, tmp_path):
    with Ledger(tmp_path / "other") as other:
        for query in ("q1", "q2", "q3"):
            one(other, charge(query=query))
        one(other, charge(household=SAME))
    shutil.copy(file_of(tmp_path / "other"), file_of(path))
    assert_broken(path, "disagree")


def test_a_deleted_file_is_not_created_again(path):
    file_of(path).unlink()
    assert_broken(path, "missing")
    assert not file_of(path).exists()


def test_a_file_deleted_behind_an_open_ledger_is_refused(path):
    with Ledger(path) as ledger:
        assert one(ledger, charge(), never).status == "stored"
        file_of(path).unlink()
        assert one(ledger, charge(query="q4"), never).status == "broken"


def test_missing_receipts_are_refused(path):
    log_of(path).unlink()
    assert_broken(path, "receipts")
    assert not log_of(path).exists()


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 0.9])
def test_a_truncated_file_is_refused(path, keep):
    data = file_of(path).read_bytes()
    file_of(path).write_bytes(data[:int(len(data) * keep)])
    assert_broken(path, f"ledger file {file_of(path).name}")


def test_a_file_that_is_no_data_base_is_refused(path):
    file_of(path).write_bytes(b"not a data base" * 1_000)
    assert_broken(path, "unreadable")


def test_a_flipped_bit_never_changes_an_answer_nor_frees_budget(path):
    """Every fourth byte that is not empty, one bit of each: refused, or nothing that matters was hit."""
    data = file_of(path).read_bytes()
    log = log_of(path).read_bytes()
    places = [place for place, byte in enumerate(data) if byte][::4]
    refused = 0
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        file_of(path).write_bytes(damaged)
        log_of(path).write_bytes(log)
        with Ledger(path) as ledger:
            over = one(ledger, charge(query="q9", epsilon=8 * TENTH), never)
            again = one(ledger, charge(query="q2"), lambda index: b"unlucky: q2 forgotten")
        refused += "broken" in (again.status, over.status)
        assert over.status in ("broken", "over_cap"), place
        assert again.status == "broken" or (again.status, again.payload) == ("stored", b"answer to q2"), place
    assert len(places) > 400
    assert refused > len(places) / 4


def test_verify_finds_a_flipped_bit_in_an_old_row(path):
    data = file_of(path).read_bytes()
    at = data.index(b"answer to q1")
    file_of(path).write_bytes(data[:at] + b"Answer to q1" + data[at + 12:])
    with Ledger(path) as ledger:
        assert [(problem.household, problem.text) for problem in ledger.verify()] == [
            ("h1", "the chain breaks at row 2")]
        with pytest.raises(LedgerBroken, match="chain breaks"):
            ledger.history("h1")
    with Ledger(path) as ledger:
        assert one(ledger, charge(query="q1"), never).status == "broken"


@pytest.mark.parametrize(("change", "found"), [
    ("UPDATE cell_head SET spent_micro = 0", "the head says 0"), ("UPDATE head SET spent_micro = 0", "the head says 0"),
    ("DELETE FROM head", "its heads lead to"), ("DELETE FROM charge WHERE query_id = 'q3'", "its heads lead to"),
    ("UPDATE charge SET epsilon_micro = 1", "chain breaks"), ("UPDATE cell_head SET cap_micro = 1", "over the cap")])
def test_verify_finds_what_somebody_changed(path, change, found):
    with Ledger(path) as ledger:
        assert ledger.verify() == []
        ledger._file(bucket("h1")).store._file.sql.execute(change)
        assert any(found in problem.text for problem in ledger.verify())


def test_a_full_disk_reveals_nothing_and_passes_when_there_is_room(path):
    with Ledger(path) as ledger:
        one(ledger, charge(), never)
        sql = ledger._file(bucket("h1")).store._file.sql
        pages = sql.execute("PRAGMA page_count").fetchone()[0]
        sql.execute(f"PRAGMA max_page_count = {pages}")
        outcome = one(ledger, charge(query="q4"), lambda index: bytes(100_000))
        assert (outcome.status, outcome.payload) == ("broken", None)
        assert "full" in outcome.reason
        assert ledger.spent("h1") == 3 * TENTH
        sql.execute("PRAGMA max_page_count = 1000000")
        assert one(ledger, charge(query="q4")).status == "charged"
        assert ledger.verify() == []


def test_a_receipt_that_cannot_be_written_reveals_nothing_though_it_is_charged(path, monkeypatch):
    with Ledger(path) as ledger:
        one(ledger, charge(), never)

        def full(file):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(receipts.os, "fsync", full)
        outcome = one(ledger, charge(query="q4"))
        monkeypatch.undo()
        assert (outcome.status, outcome.payload) == ("broken", None)
        assert "No space" in outcome.reason
        assert ledger.spent("h1") == 4 * TENTH  # no refund after the charge is durable
        assert one(ledger, charge(query="q4"), never).status == "stored"
        assert ReceiptLog(log_of(path)).load()["h1"][0] == 4


@pytest.mark.parametrize("ask", ["settle", "lookup"])
def test_a_charge_without_receipt_gets_it_before_it_is_shown(path, monkeypatch, ask):
    def stop(step):
        if step == "committed":
            raise KeyboardInterrupt

    monkeypatch.setattr(ledger_file, "on_step", stop)
    with pytest.raises(KeyboardInterrupt), Ledger(path) as ledger:
        one(ledger, charge(query="q4"))
    monkeypatch.undo()
    assert ReceiptLog(log_of(path)).load()["h1"][0] == 3
    with Ledger(path) as ledger:
        shown = ledger.settle([charge(query="q4")], never) if ask == "settle" else ledger.lookup([("h1", "q4")])
        assert len(shown) == 1
    assert ReceiptLog(log_of(path)).load()["h1"][0] == 4


@pytest.mark.parametrize("ask", ["settle", "lookup"])
def test_receipts_of_another_process_are_made_durable_before_they_count(path, monkeypatch, ask):
    """It may have been killed between writing and syncing them."""
    def full(file):
        raise OSError(28, "No space left on device")

    with Ledger(path) as ledger:
        monkeypatch.setattr(receipts.os, "fsync", full)
        assert ledger.spent("h1") == 3 * TENTH  # nothing is shown of it but a sum
        if ask == "settle":
            assert one(ledger, charge(query="q1"), never).status == "broken"
        else:
            with pytest.raises(LedgerUnavailable, match="No space left"):
                ledger.lookup([("h1", "q1")])
        monkeypatch.undo()
        assert one(ledger, charge(query="q1"), never).payload == b"answer to q1"


def test_a_new_file_gets_its_tables_with_its_first_charges(tmp_path):
    def fails(index):
        raise KeyError("no noise")

    with Ledger(tmp_path / "ledger") as ledger:
        with pytest.raises(KeyError):
            one(ledger, charge(), fails)
        assert file_of(tmp_path / "ledger").stat().st_size == 0
        assert ledger.lookup([("h1", "q1")]) == {}
        assert (ledger.spent("h1"), ledger.history("h1"), ledger.verify(), list(ledger.rows())) == (0, [], [], [])
        with Ledger(tmp_path / "ledger") as other:
            assert one(other, charge()).status == "charged"
        assert one(ledger, charge(), never).status == "stored"
        assert ledger.verify() == []


def test_the_names_of_new_receipts_are_durable_before_any_row(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(ledger_file, "on_step", seen.append)
    monkeypatch.setattr(ledger_file, "sync_folder", lambda folder: seen.append(folder.name))
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.settle([charge(household=name) for name in ("h1", SAME, OTHER)], noised)
    assert seen[0] == "receipts"
    assert seen.count("receipts") == 1  # for both files


def test_without_a_durable_name_of_the_receipts_nothing_is_charged(tmp_path, monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device")

    with Ledger(tmp_path / "ledger") as ledger:
        monkeypatch.setattr(ledger_file, "sync_folder", full)
        outcomes = ledger.settle([charge(), charge(household=OTHER)], never)
        assert [outcome.status for outcome in outcomes] == ["broken", "broken"]
        monkeypatch.undo()
        assert one(ledger, charge()).status == "charged"


@pytest.mark.parametrize("torn", [b"0123", b"0123456789abcdef h1:9:", b"\x00" * 500])
def test_a_torn_last_receipt_is_ignored_and_cut(path, torn):
    with Ledger(path) as ledger:
        one(ledger, charge(), never)
        with log_of(path).open("ab") as log:
            log.write(torn)
        assert one(ledger, charge(query="q4")).status == "charged"  # another process was killed while this one ran
        with log_of(path).open("ab") as log:
            log.write(torn)
    with Ledger(path) as ledger:
        assert one(ledger, charge(query="q5")).status == "charged"
        assert ledger.verify() == []
    assert ReceiptLog(log_of(path)).load()["h1"][0] == 5
    # every line is whole (not "the torn bytes occur nowhere": a hash may hold 0123 by chance)
    assert all(decode_line(line) for line in log_of(path).read_bytes().splitlines())


def test_a_damaged_receipt_is_refused(path):
    data = bytearray(log_of(path).read_bytes())
    data[30] ^= 1
    log_of(path).write_bytes(data)
    assert_broken(path, "line 1 of the receipts")


def test_receipts_keep_the_newest_in_whatever_order_and_are_compacted(tmp_path, monkeypatch):
    log = ReceiptLog(tmp_path / "00.log")
    log.create()
    for sequence in (2, 1, 3):
        log.append({"h1": (sequence, bytes([sequence]) * 32), "h2": (1, bytes(32))})
    before = log.path.stat().st_size
    monkeypatch.setattr(receipts, "COMPACT_ABOVE", 1)
    assert log.load() == log.load() == {"h1": (3, bytes([3]) * 32), "h2": (1, bytes(32))}
    assert log.path.stat().st_size < before / 2
    log.path.write_bytes(b"\n")
    with pytest.raises(ReceiptsBroken):
        log.load()


def test_the_receipts_may_be_kept_elsewhere(tmp_path):
    with Ledger(tmp_path / "ledger", receipts=tmp_path / "authenticator") as ledger:
        assert one(ledger, charge(epsilon=MICRO)).status == "charged"
    shutil.rmtree(tmp_path / "ledger")
    with Ledger(tmp_path / "ledger", receipts=tmp_path / "authenticator") as ledger:
        assert one(ledger, charge(query="q2"), never).status == "broken"


@pytest.mark.parametrize("change", [
    "UPDATE cell_head SET spent_micro = 0 WHERE household = 'h1'",
    "UPDATE head SET spent_micro = 0 WHERE household = 'h1'",
    "UPDATE charge SET epsilon_micro = 1 WHERE query_id = 'q1'", "DELETE FROM charge WHERE query_id = 'q2'",
    "UPDATE charge SET unit = 'week' WHERE query_id = 'q3'",
    "UPDATE charge SET payload = 7 WHERE query_id = 'q3'", "UPDATE head SET hash = 'text' WHERE household = 'h1'",
    "INSERT INTO charge SELECT household, 'q0', content_digest, cell, 0, 0, unit, relation, mechanism, trust, 1, 0.0, "
    "NULL, payload, 4, previous_hash FROM charge WHERE query_id = 'q3'"])
def test_the_first_touch_of_a_household_sees_that_its_rows_and_heads_disagree(path, change):
    with Ledger(path) as ledger:
        assert one(ledger, charge(), never).status == "stored"
        ledger._file(bucket("h1")).store._file.sql.execute(change)
    with Ledger(path) as ledger:
        assert one(ledger, charge(query="q9", epsilon=1), never).status == "broken"
        assert any(problem.household in ("", "h1") for problem in ledger.verify())
