"""`fedenergy agreement new | show | verify | revoke`: what they print, how they leave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer

from fedenergy import cli_agreement
from fedenergy.box import box as box_module
from fedenergy.box.box import open_ledger
from fedenergy.config import load
from fedenergy.errors import FedenergyError
from fedenergy.federation.study import run_study

CONFIG = """
seeds = [5]
oracle = false
[population]
use = "tests.federation.helpers:Planted"
[task]
use = "tests.federation.helpers:Sums"
clip = 120.0
[agreement]
cap = 3
trust = ["local", "sum"]
[[strategy]]
use = "strategies.zonal_sum:ZonalSum"
[query]
epsilon = 1.0
rounds = 2
[engine]
workers = 0
"""


@pytest.fixture(autouse=True)
def study(tmp_path, monkeypatch):
    root = Path.cwd()
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(CONFIG)
    yield
    open_ledger.cache_clear()
    box_module._watch.cache_clear()


def run(*args: str) -> int:
    """The exit code that `fedenergy agreement ARGS` leaves with; its mistakes are printed as the command line does."""
    app = typer.Typer()
    app.add_typer(cli_agreement.app)
    try:
        return app(["agreement", *args], standalone_mode=False) or 0
    except FedenergyError as error:
        print(f"Error: {error}")
        return error.exit_code


def test_new_show_verify_revoke(capsys):
    assert run("new", "agreements", "--config", "study.toml") == 0
    out = capsys.readouterr().out
    assert out.startswith("3 agreements in agreements; private keys in ")
    assert "epsilon 3 per household (replace-one), trust local/sum, general/specific queries, until 2100-01-01" in out
    assert run("verify", "agreements") == 0
    assert "3 agreement(s) verified with the Authenticator's key" in capsys.readouterr().out
    assert run("revoke", "agreements", "h1") == 0
    assert "1 revoked; revocation list: version 1, 1 agreements" in capsys.readouterr().out
    assert run("show", "agreements") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["h0", "in"], ["h1", "revoked"]]
    assert lines[-1] == "3 homes; revocation list: version 1, 1 agreements"
    for args in (("agreements", "h1"), ("agreements/homes/h1.json",)):
        assert run("show", *args) == 0
        shown = capsys.readouterr().out
        assert "state          revoked" in shown
        assert "spent before   nothing: the first agreement" in shown


def test_options_say_what_is_agreed(capsys):
    assert run("new", "agreements", "--config", "study.toml", "--cap", "2.5", "--per-query", "1", "--trust", "curator",
               "--class", "windows", "--purpose", "diagnosis", "--querier", "trainer", "--zone", "north", "--until",
               "2091-02-01", "--from", "2090-01-01", "--granularity", "total", "--delta", "1e-5") == 0
    capsys.readouterr()
    assert run("show", "agreements", "h0") == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.split()[0] in (
        "cap", "delta", "trust", "queries", "purposes", "queriers", "zone", "granularity", "from", "until", "state"))
    assert shown == {"cap": "epsilon 2.5, all answers", "delta": "1e-05", "trust": "curator", "queries": "windows",
                     "purposes": "diagnosis", "queriers": "trainer", "zone": "north", "granularity": "total",
                     "from": "2090-01-01", "until": "2091-02-01", "state": "not yet in force"}


def test_a_study_spends_a_renewal_carries_over(capsys):
    """Cap 3 and two rounds of 1; renewed with a cap of 4, two of which are spent."""
    run("new", "agreements", "--config", "study.toml")
    config = load(Path("study.toml"), sets=['agreement={folder = "agreements"}'])
    folder = run_study(config)
    open_ledger.cache_clear()
    capsys.readouterr()
    assert run("new", "agreements", "--renew", "--home", "h0", "--ledger", str(folder / "ledger"), "--cap", "4") == 0
    out = capsys.readouterr().out
    assert out.startswith("1 renewed in agreements; carried over: epsilon 2 at most; revocation list: version 1")
    assert "epsilon 4, 2 of it spent before" in out
    assert run("verify", "agreements") == 0
    refused = run_study(load(Path("study.toml"), sets=['agreement={folder = "agreements"}'], fresh=True))
    rows = [line.split(",") for line in (refused / "metrics.csv").read_text().splitlines()[1:]]
    answers = {(row[9], row[10]): float(row[11]) for row in rows}
    assert (answers["1", "answers"], answers["2", "answers"]) == (3, 1)  # h1 and h2 had 1 left, h0 had 2
    shown = (refused / "summary.json").read_text()
    assert '"revocations": {' in shown
    assert str(Path.cwd()) not in shown  # the folder's name, no path of this machine


def test_verify_leaves_with_1_where_something_is_wrong(capsys):
    run("new", "agreements", "--config", "study.toml")
    path = Path("agreements/homes/h1.json")
    path.write_bytes(path.read_bytes().replace(b'"cap_micro":"3000000"', b'"cap_micro":"3000001"'))
    capsys.readouterr()
    assert run("verify", "agreements") == 1
    out = capsys.readouterr().out
    assert out.startswith("homes/h1.json: not signed by this Authenticator, or altered since")
    assert "1 finding(s) in 3 agreement(s)" in out
    assert run("verify", "agreements/homes/h0.json") == 0
    run("show", "agreements")
    assert "h1                   not valid: " in capsys.readouterr().out


@pytest.mark.parametrize(("args", "message"), [
    (("show", "nowhere"), "no Authenticator's public key"), (("verify", "nowhere"), "no Authenticator's public key"),
    (("revoke", "agreements", "h7"), 'h7 has no agreement in'), (("show", "agreements", "h11"), 'Did you mean "h1"'),
    (("new", "agreements", "--home", "h0"), "has an agreement already"),
    (("new", "agreements", "--config", "study.toml"), "3 of 3 homes have one"),
    (("new", "agreements"), "give the homes"), (("new", "agreements", "--home", "x", "--config", "study.toml"), "not both"),
    (("new", "agreements", "--home", "../x"), "household id"), (("new", "agreements", "--home", "h9", "--cap", "0"), "cap"),
    (("new", "agreements", "--home", "h9", "--until", "soon"), "YYYY-MM-DD"),
    (("new", "agreements", "--home", "h9", "--class", "foo"), "Error: --class = 'foo' is unknown"),
    (("new", "agreements", "--home", "h9", "--per-query", "9"), "Error: --per-query = 9 is above cap = 6.73"),
    (("new", "agreements", "--home", "h9", "--from", "2026-01-02", "--until", "2026-01-01"),
     "Error: --until = 2026-01-01 is not after not_before = 2026-01-02"),
    (("new", "agreements", "--home", "h9", "--revoked"), "--revoked goes with --renew"),
    (("new", "agreements", "--home", "h9", "--trust", "locl"), 'Did you mean "local"'),
    (("new", "agreements", "--home", "h0", "--renew"), "belong together"),
    (("new", "agreements", "--home", "h0", "--renew", "--ledger", "nowhere"), "is no ledger"),
    (("new", "agreements", "--home", "h9", "--keys", "agreements/keys"), "inside the agreements")])
def test_mistakes_are_one_line(args, message, capsys):
    run("new", "agreements", "--config", "study.toml")
    capsys.readouterr()
    assert run(*args) == 2
    out = capsys.readouterr().out
    assert message in out
    assert out.count("\n") == 1


def test_without_the_keys_an_auditor_can_verify_and_nothing_more(capsys):
    run("new", "agreements", "--config", "study.toml")
    shutil.rmtree("agreements.keys")
    assert run("verify", "agreements") == 0
    assert run("revoke", "agreements", "h0") == 2
    assert "there is no private key" in capsys.readouterr().out


def test_a_home_that_withdrew_comes_back_only_when_that_is_said(capsys):
    run("new", "agreements", "--config", "study.toml")
    folder = run_study(load(Path("study.toml"), sets=['agreement={folder = "agreements"}']))
    open_ledger.cache_clear()
    run("revoke", "agreements", "h1", "h1")
    capsys.readouterr()
    assert run("revoke", "agreements", "h1", "h2") == 0
    assert capsys.readouterr().out == "revoked already: h1\n1 revoked; revocation list: version 2, 2 agreements\n"
    assert run("revoke", "agreements", "h1") == 0
    assert "0 revoked; revocation list: version 2, unchanged, 2 agreements" in capsys.readouterr().out
    renewal = ("new", "agreements", "--renew", "--home", "h1", "--home", "h0", "--ledger", str(folder / "ledger"))
    assert run(*renewal) == 2
    assert "h1 is revoked (1 of 2 homes are)" in capsys.readouterr().out
    assert run(*renewal, "--revoked") == 0
    assert "in force again, though revoked before: h1\n" in capsys.readouterr().out


def test_show_says_whose_file_it_is(capsys):
    run("new", "agreements", "--config", "study.toml")
    shutil.copy("agreements/homes/h1.json", "agreements/homes/h0.json")
    capsys.readouterr()
    run("show", "agreements")
    assert "h0                   not valid: h0.json: it is the agreement of h1" in capsys.readouterr().out
    assert run("show", "agreements", "h0") == 2


def test_show_names_the_ledger_and_a_renewal_takes_no_other(capsys):
    run("new", "agreements", "--config", "study.toml")
    secure = ['agreement={folder = "agreements"}', 'privacy.noise="secure"']
    folder = run_study(load(Path("study.toml"), sets=secure))
    other = run_study(load(Path("study.toml")))
    open_ledger.cache_clear()
    capsys.readouterr()
    run("show", "agreements")
    assert capsys.readouterr().out.endswith(f"charged in the ledger {folder.absolute() / 'ledger'}\n")
    assert run("new", "agreements", "--renew", "--home", "h0", "--ledger", str(other / "ledger")) == 2
    assert "are charged in the ledger" in capsys.readouterr().out


def test_no_help_text_loses_its_brackets():
    """Rich takes [word] for markup: what is to be read is escaped."""
    from rich.text import Text

    from fedenergy import cli

    def texts(command):
        yield command.help or ""
        for item in command.params:
            yield getattr(item, "help", None) or ""
        for below in getattr(command, "commands", {}).values():
            yield from texts(below)

    for text in texts(typer.main.get_command(cli.app)):
        written = text.replace("\b", "").replace("[bold]", "").replace("[/bold]", "").replace("\\[", "[")
        assert Text.from_markup(text.replace("\b", "")).plain == written


def test_help_teaches(capsys):
    for command in ("new", "show", "verify", "revoke"):
        run(command, "--help")
        assert f"fedenergy agreement {command} agreements" in capsys.readouterr().out
