"""The ledger in PostgreSQL passes the tests of the ledger in files: promises, race, kills; and faults of its own."""

from __future__ import annotations

import contextlib
import json

import psycopg
import pytest

from fedenergy.box.ledger import Ledger, LedgerBroken, bucket
from fedenergy.box.ledger_postgres import ATTEMPTS, MARK, TABLES, Postgres, _make_tables, keep_in_postgres
from tests.box import test_ledger, test_ledger_crash, test_ledger_race
from tests.box.test_ledger import charge, ledger, never, noised, one  # noqa: F401 - a fixture among them

OF_FILES = {"test_nothing_is_visible_before_commit_and_nothing_returned_before_the_receipt",
            "test_lookup_after_reopening_finds_the_stored_answers_without_charging",  # looks for files
            "test_folders_and_files_are_for_the_owner_alone", "test_golden_chain_of_two_rows",
            "test_the_file_of_a_household_does_not_depend_on_anything_else",
            "test_the_fast_hash_is_that_of_the_canonical_row", "test_a_malformed_charge_is_refused_when_it_is_made",
            "test_a_thousand_kills_lose_nothing_and_reveal_nothing_uncharged",
            "test_sixty_kills_lose_nothing_and_reveal_nothing_uncharged",
            "test_the_check_sees_a_worker_that_reveals_before_it_commits"}

for _module in (test_ledger, test_ledger_race, test_ledger_crash):
    globals().update({name: item for name, item in vars(_module).items()
                      if name.startswith("test_") and name not in OF_FILES})


@pytest.fixture
def tmp_path(tmp_path, postgres_url):
    """Whatever makes a ledger in tmp_path/ledger makes it in PostgreSQL."""
    keep_in_postgres(tmp_path / "ledger", postgres_url)
    return tmp_path


def test_kills_lose_nothing_and_reveal_nothing_uncharged(tmp_path):
    result = test_ledger_crash.drive(tmp_path, "careful", 18)
    assert result["faults"] == []
    assert result["kills"] == 18


def execute(folder, statement, *values):
    place = Postgres.of(folder)
    with place.connection("00.sqlite") as sql, sql.transaction():
        sql.execute(f"SET LOCAL search_path TO {place.schema}")
        return sql.execute(statement, values).rowcount


def test_the_files_of_a_study_hold_no_charge(tmp_path):
    with Ledger(tmp_path / "ledger") as opened:
        one(opened, charge())
    names = {path.name for path in (tmp_path / "ledger").rglob("*") if path.is_file()}
    assert names == {MARK, f"{bucket('h1'):02d}.log"}
    assert (tmp_path / "ledger" / MARK).stat().st_mode & 0o077 == 0


def test_nothing_is_visible_to_others_before_commit(tmp_path):
    with Ledger(tmp_path / "ledger") as opened:
        one(opened, charge(query="q0"))

        def seen_while_drawing(index):
            assert execute(tmp_path / "ledger", "SELECT 1 FROM charge WHERE query_id = 'q1'") == 0
            return b"noised"
        assert one(opened, charge(query="q1"), seen_while_drawing).status == "charged"
    assert execute(tmp_path / "ledger", "SELECT 1 FROM charge WHERE query_id = 'q1'") == 1


@pytest.mark.parametrize(("statement", "told"), [
    ("DELETE FROM charge WHERE sequence = 2", "do not add up|damaged|disagree"),
    ("UPDATE charge SET epsilon_micro = 1 WHERE sequence = 1", "damaged"),
    ("UPDATE head SET spent_micro = 0", "damaged"),
    ("DELETE FROM head", "older than its receipts"),
    ("DELETE FROM bucket", "missing"),
    ("DROP TABLE charge", "unreadable"),
    ("UPDATE bucket SET version = 9", "has schema 9"),
])
def test_what_somebody_changed_in_the_data_base_is_refused(tmp_path, statement, told):
    with Ledger(tmp_path / "ledger") as opened:
        for query in ("q1", "q2", "q3"):
            one(opened, charge(query=query))
    execute(tmp_path / "ledger", statement)
    with Ledger(tmp_path / "ledger") as opened:
        outcome = one(opened, charge(query="q9"), never)
        assert outcome.status == "broken"
        with pytest.raises(LedgerBroken, match=told):
            opened.spent("h1")


def test_an_older_dump_put_back_is_refused(tmp_path):
    with Ledger(tmp_path / "ledger") as opened:
        one(opened, charge(query="q1"))
        execute(tmp_path / "ledger", "CREATE TABLE dump AS SELECT * FROM charge")
        execute(tmp_path / "ledger", "CREATE TABLE heads_dump AS SELECT * FROM head")
        one(opened, charge(query="q2"))
    for statement in ("DELETE FROM charge", "DELETE FROM head", "INSERT INTO charge SELECT * FROM dump",
                      "INSERT INTO head SELECT * FROM heads_dump"):
        execute(tmp_path / "ledger", statement)
    with Ledger(tmp_path / "ledger") as opened:
        assert one(opened, charge(query="q3"), never).status == "broken"
        with pytest.raises(LedgerBroken, match="older than its receipts"):
            opened.spent("h1")


def test_a_server_that_is_away_reveals_nothing_and_loses_nothing(tmp_path):
    folder = tmp_path / "away"
    keep_in_postgres(folder, "postgresql://fe@127.0.0.1:1/postgres")
    with Ledger(folder) as opened:
        outcome = one(opened, charge(), never)
        assert (outcome.status, outcome.payload) == ("broken", None)
        assert "ask again when the PostgreSQL server answers" in outcome.reason


def test_one_ledger_has_one_place(tmp_path, postgres_url):
    keep_in_postgres(tmp_path / "ledger", postgres_url)
    with pytest.raises(ValueError, match="one ledger has one place"):
        keep_in_postgres(tmp_path / "ledger", "postgresql://me@elsewhere/energy")
    with Ledger(tmp_path / "files") as opened:
        one(opened, charge())
    with pytest.raises(ValueError, match="does not move"):
        keep_in_postgres(tmp_path / "files", postgres_url)
    (tmp_path / "ledger" / MARK).unlink()
    with Ledger(tmp_path / "third") as opened:
        one(opened, charge())
    (tmp_path / "third" / f"{bucket('h1'):02d}.sqlite").unlink()
    with pytest.raises(ValueError, match="is gone: put it back"):
        keep_in_postgres(tmp_path / "third", postgres_url)


@pytest.mark.parametrize(("url", "told"), [
    ("mysql://me@db/energy", "no address"), ("postgres:/x", "no address"),
    ("postgresql://fe:sekret99@db/energy", "PGPASSWORD"), ("postgresql://fe:p@ss@db/energy", "PGPASSWORD"),
    ("postgresql://db/energy?user=fe&password=sekret99", "PGPASSWORD")])
def test_an_address_is_checked_with_the_config_and_a_password_is_never_written(tmp_path, url, told):
    from fedenergy.config import parse
    from fedenergy.errors import ConfigError

    with pytest.raises(ConfigError, match=told) as refused:
        parse({"strategy": [{"use": "strategies.zonal_sum:ZonalSum"}], "ledger": {"path": url}})
    assert "sekret99" not in str(refused.value)
    assert "p@ss" not in str(refused.value)


def test_a_damaged_mark_is_refused(tmp_path):
    for text in ("{", '{"url": "postgresql://a/b"}', '{"url": "postgresql://a/b", "schema": "x; DROP TABLE y"}'):
        (tmp_path / "ledger" / MARK).write_text(text)
        with Ledger(tmp_path / "ledger") as opened, pytest.raises(LedgerBroken, match="newest copy"):
            opened.spent("h1")


def test_two_ledgers_share_a_data_base_and_nothing_else(tmp_path, postgres_url):
    keep_in_postgres(tmp_path / "second", postgres_url)
    assert json.loads((tmp_path / "ledger" / MARK).read_text())["schema"] != json.loads(
        (tmp_path / "second" / MARK).read_text())["schema"]
    with Ledger(tmp_path / "ledger") as first, Ledger(tmp_path / "second") as second:
        one(first, charge())
        assert second.spent("h1") == 0
        assert one(second, charge(), noised).status == "charged"


def test_a_study_charges_in_the_data_base_and_finds_it_again(tmp_path, postgres_url):
    from fedenergy.federation.study import run_study
    from tests.federation.test_study import make_config, results

    entries = [{"use": "strategies.zonal_sum:ZonalSum"}]
    plain = run_study(make_config(tmp_path / "plain", entries, seeds=[0]))
    kept = make_config(tmp_path / "kept", entries, seeds=[0], ledger={"path": postgres_url})
    folder = run_study(kept)
    assert results(folder)[1:] == results(plain)[1:]
    assert not list((folder / "ledger").glob("[0-9]*.sqlite"))
    with Ledger(folder / "ledger") as opened:
        first = list(opened.rows())
        assert opened.verify() == []
    assert run_study(kept) == folder
    with Ledger(folder / "ledger") as opened:
        assert list(opened.rows()) == first


@pytest.mark.parametrize("failures", [1, ATTEMPTS])
def test_a_schema_that_another_connection_makes_meanwhile_is_looked_for_again(failures):
    """A connection that forgot to look fails on the unique name; for ever is not the race."""
    told = []

    class Racing:
        def transaction(self):
            return contextlib.nullcontext()

        def execute(self, statement, *values):
            told.append(statement)
            if statement.startswith("CREATE SCHEMA") and told.count(statement) <= failures:
                raise psycopg.errors.UniqueViolation("pg_namespace_nspname_index")

    if failures < ATTEMPTS:
        _make_tables(Racing(), "study")
        assert told[-len(TABLES):] == list(TABLES)
    else:
        with pytest.raises(psycopg.errors.UniqueViolation):
            _make_tables(Racing(), "study")
    assert sum(statement.startswith("CREATE SCHEMA") for statement in told) == min(failures + 1, ATTEMPTS)
