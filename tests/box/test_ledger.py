"""The privacy ledger's promises: one id is one answer, the cap holds, nothing is shown before it is durable."""

import dataclasses
import hashlib
import json
import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedenergy import ids
from fedenergy.box import ledger_file
from fedenergy.box.ledger import BUCKETS, Charge, Ledger, Row, bucket
from fedenergy.box.ledger_rows import row_hash
from fedenergy.box.receipts import ReceiptLog

MICRO = 1_000_000
TENTH = MICRO // 10


def charge(household="h1", query="q1", epsilon=TENTH, cap=MICRO, **changes):
    trust = "open" if epsilon is None else "local"
    return Charge(household, query, changes.pop("content", b"digest"), changes.pop("cell", "c1"), 0, 0, "household",
                  "replace-one", "laplace", changes.pop("trust", trust), epsilon, cap, **changes)


def noised(index):
    """Another answer at each call: the same bytes twice can only come from the store."""
    return b"noised" + os.urandom(8)


def never(index):
    raise AssertionError("no noise may be drawn here")


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger") as opened:
        yield opened
        assert opened.verify() == []


def one(ledger, item, draw=noised):
    (outcome,) = ledger.settle([item], draw)
    return outcome


def test_ten_charges_of_a_tenth_pass_a_cap_of_one_and_the_eleventh_is_refused(ledger):
    # 10 x 0.1 = 1.0 in integers; in floats the sum is 0.9999999999999999
    statuses = [one(ledger, charge(query=f"q{k}")).status for k in range(11)]
    assert statuses == ["charged"] * 10 + ["over_cap"]
    assert ledger.spent("h1", "c1") == ledger.spent("h1") == MICRO
    assert len(ledger.history("h1")) == 10


def test_unbounded_answers_of_another_cell_are_outside_the_cap_of_all_cells(ledger):
    """An oracle's rows come after charged ones in every later round: what was charged before them is not their own."""
    for turn in range(3):
        assert one(ledger, charge(query=f"p{turn}", all_cells=True)).status == "charged"
        assert one(ledger, charge(query=f"o{turn}", epsilon=None, cell="open", all_cells=True)).status == "charged"
    assert ledger.verify() == []
    assert ledger.spent("h1") == 3 * TENTH


def test_one_id_has_one_answer_byte_for_byte_and_a_retry_costs_nothing(tmp_path):
    with Ledger(tmp_path / "ledger") as ledger:
        first = one(ledger, charge())
        again = one(ledger, charge(), never)
    with Ledger(tmp_path / "ledger") as reopened:
        later = one(reopened, charge(epsilon=3 * TENTH), never)
        assert reopened.spent("h1") == TENTH
    assert [first.status, again.status, later.status] == ["charged", "stored", "stored"]
    assert first.payload == again.payload == later.payload


def test_a_retry_is_answered_when_the_budget_is_used_up(ledger):
    first = one(ledger, charge(epsilon=MICRO))
    assert one(ledger, charge(query="q2"), never).status == "over_cap"
    assert one(ledger, charge(epsilon=MICRO), never).payload == first.payload


def test_an_id_with_other_content_is_a_conflict_and_shows_nothing(ledger):
    one(ledger, charge())
    outcome = one(ledger, charge(content=b"another"), never)
    assert (outcome.status, outcome.payload, ledger.spent("h1")) == ("conflict", None, TENTH)


@pytest.mark.parametrize("epsilon", [float("nan"), float("inf"), 0.1, 1.0, 0, -1, True, "1", 1 << 80])
def test_an_epsilon_that_is_no_positive_integer_is_refused(ledger, epsilon):
    outcome = one(ledger, charge(epsilon=epsilon), never)
    assert (outcome.status, outcome.payload) == ("over_cap", None)
    assert ledger.spent("h1") == 0
    assert list(ledger.rows()) == []


@pytest.mark.parametrize("cap", [float("nan"), float("inf"), 1e9, -1, None, 1 << 62])
def test_a_cap_that_is_no_integer_refuses(ledger, cap):
    assert one(ledger, charge(cap=cap), never).status == "over_cap"


def test_open_rows_are_unbounded_and_outside_the_cap(ledger):
    assert one(ledger, charge(query="oracle", epsilon=None)).status == "charged"
    assert one(ledger, charge(epsilon=MICRO)).status == "charged"
    assert [row.epsilon_micro for row in ledger.history("h1")] == [None, MICRO]
    assert ledger.spent("h1") == MICRO
    for wrong in (charge(query="x", epsilon=None, trust="local"), charge(query="y", trust="open")):
        assert one(ledger, wrong, never).status == "over_cap"


def test_the_cap_is_per_cell_and_under_secure_noise_over_all_cells(ledger):
    assert one(ledger, charge(query="a", epsilon=MICRO, cell="c1")).status == "charged"
    assert one(ledger, charge(query="b", epsilon=TENTH, cell="c2")).status == "charged"
    refused = one(ledger, charge(query="c", epsilon=TENTH, cell="c2", all_cells=True), never)
    assert (refused.status, refused.spent_micro) == ("over_cap", MICRO + TENTH)
    assert ledger.spent_many([("h1", "c1"), ("h1", "c2"), ("h1", None), ("h2", "c1")]) == {
        ("h1", "c1"): MICRO, ("h1", "c2"): TENTH, ("h1", None): MICRO + TENTH, ("h2", "c1"): 0}
    assert [row.query_id for row in ledger.history("h1", "c2")] == ["b"]


def test_blocks_refresh_the_budget_only_where_the_unit_is_a_period(ledger):
    def ask(query, first, last, period, cell):
        return one(ledger, dataclasses.replace(charge(query=query, epsilon=6 * TENTH, cell=cell), block_from=first,
                                               block_to=last, period=period)).status

    assert [ask("p1", 0, 7, True, "p"), ask("p2", 7, 14, True, "p"), ask("p3", 13, 20, True, "p"),
            ask("p4", 14, 21, True, "p")] == ["charged", "charged", "over_cap", "charged"]
    assert [ask("w1", 0, 7, False, "w"), ask("w2", 7, 14, False, "w")] == ["charged", "over_cap"]


def test_several_charges_of_one_home_in_a_batch_see_each_other(ledger):
    batch = [charge(query=query, epsilon=6 * TENTH) for query in ("a", "b", "a")]
    batch += [charge(query="a", content=b"x"), charge(query="c", epsilon=4 * TENTH)]
    outcomes = ledger.settle(batch, noised)
    assert [outcome.status for outcome in outcomes] == ["charged", "over_cap", "stored", "conflict", "charged"]
    assert outcomes[0].payload == outcomes[2].payload
    assert [outcome.spent_micro for outcome in outcomes] == [6 * TENTH] * 4 + [MICRO]


def test_outcomes_keep_the_order_of_charges_and_draw_gets_each_position_once(ledger):
    homes = [f"home-{k}" for k in range(200)]
    drawn = []

    def draw(index):
        drawn.append(index)
        return homes[index].encode()

    outcomes = ledger.settle([charge(household=home) for home in homes], draw)
    assert [outcome.payload.decode() for outcome in outcomes] == homes
    assert sorted(drawn) == list(range(200))
    assert {row.household for row in ledger.rows()} == set(homes)


def test_lookup_after_reopening_finds_the_stored_answers_without_charging(tmp_path):
    homes = [f"home-{k}" for k in range(1_000)]
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.lookup([("home-1", "q1")]) == {}
        assert not (tmp_path / "ledger").exists()
        outcomes = ledger.settle([charge(household=home) for home in homes], noised)
    with Ledger(tmp_path / "ledger") as ledger:
        found = ledger.lookup([(home, query) for home in homes for query in ("q1", "q2")])
    assert {key: row.payload for key, row in found.items()} == {
        (home, "q1"): outcome.payload for home, outcome in zip(homes, outcomes, strict=True)}
    assert found["home-1", "q1"].content_digest == b"digest"


def test_nothing_is_visible_before_commit_and_nothing_returned_before_the_receipt(ledger, monkeypatch):
    path = ledger.path / f"{bucket('h1'):02d}.sqlite"
    log = ReceiptLog(ledger.path / "receipts" / f"{bucket('h1'):02d}.log")
    one(ledger, charge(query="q0"))
    seen = []

    def look(step):
        with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as other:
            rows = other.execute("SELECT count(*) FROM charge").fetchone()[0]
        other.close()
        seen.append((step, rows, log.load()["h1"][0]))

    monkeypatch.setattr(ledger_file, "on_step", look)
    payload = one(ledger, charge(query="q1")).payload
    monkeypatch.undo()
    assert seen == [("begun", 1, 1), ("checked", 1, 1), ("drawn", 1, 1), ("stored", 1, 1), ("committed", 2, 1),
                    ("receipted", 2, 2)]
    assert payload is not None


def test_a_draw_that_fails_rolls_its_file_back_and_is_raised(ledger):
    homes = [name for name in (f"h{k}" for k in range(2_000)) if bucket(name) == 5][:3]

    def fail(index):
        if index == 2:
            raise ZeroDivisionError("the mechanism failed")
        return b"noised"

    with pytest.raises(ZeroDivisionError):
        ledger.settle([charge(household=home) for home in homes], fail)
    with pytest.raises(TypeError, match="stores bytes"):
        one(ledger, charge(household=homes[0]), lambda index: 1.5)
    assert [ledger.spent(home) for home in homes] == [0, 0, 0]
    outcomes = ledger.settle([charge(household=home) for home in homes], noised)
    assert {outcome.status for outcome in outcomes} == {"charged"}


def test_draw_may_not_use_the_ledger_that_calls_it(ledger):
    with pytest.raises(RuntimeError, match="draw may not use the ledger"):
        one(ledger, charge(), lambda index: bytes(ledger.spent("h1")))
    assert ledger.spent("h1") == 0


def test_threads_of_one_process_share_a_ledger(ledger):
    def ask(number):
        statuses = [one(ledger, charge(query=f"q{number}-{k}")).status for k in range(4)]
        return statuses.count("charged"), len(list(ledger.rows()))

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(ask, range(4)))
    assert sum(charged for charged, _ in counts) == 10
    assert ledger.spent("h1") == MICRO


def test_a_child_of_fork_opens_its_own_files(ledger):
    one(ledger, charge(query="parent"))
    child = os.fork()
    if not child:
        status = one(ledger, charge(query="child")).status
        os._exit(0 if status == "charged" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert one(ledger, charge(query="child"), never).status == "stored"


def test_folders_and_files_are_for_the_owner_alone(ledger):
    one(ledger, charge())
    files = [path for path in ledger.path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".sqlite", ".sqlite-journal", ".log"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (ledger.path, ledger.receipts)} == {0o700}


def test_the_file_of_a_household_does_not_depend_on_anything_else():
    # hashlib.blake2b(b"h1").hexdigest() begins with 0x65 = 101 = 64 + 37
    assert bucket("h1") == 0x65 % BUCKETS == 37
    assert {bucket(f"home-{k}") for k in range(2_000)} == set(range(BUCKETS))


def test_golden_chain_of_two_rows(ledger):
    # the text below is written by hand: sorted keys, no spaces, numbers as decimal strings, bytes as hex
    ledger.settle([Charge("h1", "q1", bytes([1, 2]), "c1", 19_000, 19_007, "household", "replace-one", "laplace",
                          "local", 250_000, MICRO, delta=1e-5, rho_micro=31_250)], lambda index: bytes([0xAB]))
    ledger.settle([Charge("h1", "q2", bytes([3]), "c1", 0, 0, "household", "replace-one", "laplace", "open", None,
                          MICRO)], lambda index: b"")
    first, second = ledger.history("h1")
    text = ('{"block_from":"19000","block_to":"19007","cell":"c1","content_digest":"0102","delta":"0.00001",'
            '"epsilon_micro":"250000","household":"h1","mechanism":"laplace","payload":"ab",'
            '"previous_hash":"0000000000000000000000000000000000000000000000000000000000000000","query_id":"q1",'
            '"relation":"replace-one","rho_micro":"31250","sequence":"1","trust":"local","unit":"household"}')
    assert first.previous_hash == bytes(32)
    assert second.previous_hash == hashlib.blake2b(text.encode(), digest_size=32).digest()
    assert second.previous_hash.hex() == "9bdfcba0a80ff050cffe0da3bb75971dff61d7886856eddeb82bfff3dc871ada"
    assert row_hash(second).hex() == "19a6c8d34bf99a06fc3d12a64ff0ae48351788c56c0578240daa101f4d4f9873"
    assert (second.sequence, second.epsilon_micro, second.rho_micro) == (2, None, None)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-12, 0.25])
@pytest.mark.parametrize("text", ["plain", 'quo"te\\', "tab\tnul\x00", "Wärme €", "\u2028"])
def test_the_fast_hash_is_that_of_the_canonical_row(delta, text):
    row = Row("h1", text, b"\x00\xff", text, -1, 2**40, text, text, text, "local", 7, delta, None, b"", 3, bytes(32))
    assert json.loads(ids.canon(row._asdict()))["cell"] == text
    assert row_hash(row) == hashlib.blake2b(ids.canon(row._asdict()), digest_size=32).digest()


@pytest.mark.parametrize("changes", [{"household": "../h1"}, {"query_id": ""}, {"content_digest": b""},
                                     {"content_digest": "text"}, {"block_from": 1.0}, {"block_from": 1, "block_to": 0},
                                     {"period": True}, {"delta": 1.0}, {"delta": float("nan")}, {"trust": "shared"}])
def test_a_malformed_charge_is_refused_when_it_is_made(changes):
    with pytest.raises(ValueError):
        dataclasses.replace(charge(), **changes)
