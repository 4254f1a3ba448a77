"""A ledger of many homes at once, and clocks that are put forward and back over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedenergy.box import box as box_module
from fedenergy.box.box import Box, answer_many, open_ledger
from fedenergy.box.clock import StoredClock
from fedenergy.box.ledger import BUCKETS, Ledger, bucket
from fedenergy.box.ledger_connection import Connection
from tests.box.test_ledger import charge
from tests.federation.helpers import Sums, make_world, seal

NOW, HOURS_13 = 1_800_000_000, 13 * 3_600


def test_ten_thousand_homes_are_charged_in_one_transaction_per_file(tmp_path, monkeypatch):
    said: list[str] = []
    real = Connection._run
    monkeypatch.setattr(Connection, "_run", lambda self, sql, *rest: said.append(sql) or real(self, sql, *rest))
    homes = [f"home-{k}" for k in range(10_000)]
    charges = [charge(household=home) for home in homes]
    with Ledger(tmp_path / "ledger") as ledger:
        ledger.settle([charge(household=home, query="q0") for home in homes[:1_000]], lambda index: b"make the files")
        said.clear()
        outcomes = ledger.settle(charges, lambda index: homes[index].encode())
        assert {outcome.status for outcome in outcomes} == {"charged"}
        assert len({bucket(home) for home in homes}) == BUCKETS
        assert said.count("BEGIN IMMEDIATE") == BUCKETS
        again = ledger.settle(charges, lambda index: b"never")
        assert {outcome.status for outcome in again} == {"stored"}
        assert [outcome.payload for outcome in again] == [home.encode() for home in homes]
    assert len(list((tmp_path / "ledger").glob("*.sqlite"))) == BUCKETS


@pytest.fixture
def restarted():
    """Forget what this process knows of ledgers and clocks, as a new process would."""
    def forget() -> None:
        box_module._clock.cache_clear()
        open_ledger.cache_clear()

    yield forget
    forget()


def test_a_clock_13_hours_off_neither_revives_an_agreement_nor_frees_budget(tmp_path, monkeypatch, restarted):
    at = [NOW]
    monkeypatch.setattr(box_module.time, "time", lambda: at[0])
    task = Sums(clip=64.0)
    world = make_world(tmp_path, task, cap=1.0, expires=NOW + 3_600)

    def asked(cell: str) -> str:
        answer, = answer_many([Box(world, 0)], [seal(world, "local", epsilon=0.5, cell=cell * 16)], task.summaries, seed=1)
        return answer.code

    def spent() -> int:
        with Ledger(world.ledger) as ledger:
            return sum(row.epsilon_micro for row in ledger.rows())

    assert asked("ab") == "charged"
    for step in (HOURS_13, 0, -HOURS_13):  # forward: expired; back, to before it was issued too: still expired
        at[0] = NOW + step
        assert asked("cd") == "expired"
        restarted()
        assert asked("cd") == "expired"
        assert spent() == 500_000
        assert asked("ab") == "stored"  # what was answered stays so, free
        assert spent() == 500_000


def test_the_highest_time_that_any_process_saw_counts(tmp_path):
    path = Path(tmp_path / "clock")
    one, other = StoredClock(path), StoredClock(path)
    assert one.read(NOW + HOURS_13) == NOW + HOURS_13
    assert other.read(NOW + HOURS_13 - 5) >= NOW + HOURS_13 - 5
    assert StoredClock(path).read(NOW - HOURS_13) == NOW + HOURS_13
    assert other.read(NOW + HOURS_13 + 1) == NOW + HOURS_13 + 1
    assert one.read(NOW) >= NOW + HOURS_13
