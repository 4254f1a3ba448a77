"""`fedenergy audit`: a sound run passes, and each thing that was done to a run or to its mechanism is found."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import typer

from fedenergy import cli_audit
from fedenergy.audit import audit_run, state_of
from fedenergy.audit_checks import ABSENT, FINDING, NOTE, OK, Run
from fedenergy.audit_leaks import blanked
from fedenergy.box import box as box_module
from fedenergy.box.box import open_ledger
from fedenergy.box.ledger import Ledger, bucket
from fedenergy.box.ledger_mark import HEADS, behind, heads_of, mark_text, older_than, read_mark
from fedenergy.box.receipts import ReceiptsBroken
from fedenergy.config import parse
from fedenergy.errors import ConfigError
from fedenergy.federation.study import run_study
from fedenergy.privacy import mechanisms
from fedenergy.privacy.audit import QUICK_TRIALS
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noise import SimulationNoise, noise_from
from fedenergy.report.audit_page import write_audit
from fedenergy.report.page import write_report
from tests.federation.helpers import Planted

TRIALS = 400
AREA_CHAINS = "chains, heads, sums, caps, receipts"


def config(out: Path, **changes):
    document = {"name": "audited", "seeds": [5], "out": str(out), "oracle": False,
                "population": {"use": "tests.federation.helpers:Planted"},
                "task": {"use": "tests.federation.helpers:Sums", "clip": 120.0}, "engine": {"workers": 0},
                "query": {"epsilon": 1.0, "rounds": 2}, "agreement": {"cap": 6.0},
                "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}, {"use": "strategies.secure_sum:SecureSum"},
                             {"use": "strategies.central_laplace:CentralLaplace"}]}
    return parse({**document, **changes})


def played(out: Path, **changes) -> Path:
    folder = run_study(config(out, **changes))
    open_ledger(folder / "ledger").close()
    open_ledger.cache_clear()
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return played(tmp_path_factory.mktemp("audit"))


@pytest.fixture
def run(sound, tmp_path) -> Path:
    """A copy that a test may spoil; audits of it skip the mechanism, which the spoiling does not touch."""
    folder = tmp_path / sound.name
    shutil.copytree(sound, folder, ignore=shutil.ignore_patterns("audit.*"))
    return folder


@pytest.fixture
def no_trials(monkeypatch):
    monkeypatch.setattr("fedenergy.audit.release_checks", lambda run, trials, progress: ([], []))


def found(folder: Path, **options) -> dict[str, str]:
    """what -> detail of every finding."""
    return {check.what: check.detail for check in audit_run(folder, **{"trials": 100, **options}).findings}


# -- a sound run -------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def audited(sound):
    return audit_run(sound, trials=TRIALS)


def test_a_sound_run_has_no_finding(audited):
    assert audited.findings == []
    states = {check.what: check.state for check in audited.checks}
    assert states == {
        "for the owner alone": OK, AREA_CHAINS: OK, "no older than the results": OK, "within the agreements' caps": OK,
        "releases are the stored answers": OK, "zone answers are over charged homes": OK,
        "results and ledger agree on what was spent": OK, "scores follow from the sums on file": OK,
        "empirical epsilon": OK, "stored answers made again": OK, "noise is stamped": OK,
        "the config is the one that ran": OK, "the run's versions": OK,
        "no reading in any file": OK}


def test_bounds_stand_beside_the_claims(audited):
    tight = {row["trust"]: row for row in audited.releases if row["tight"]}
    assert set(tight) == {"local", "curator", "sum"}
    for trust, row in tight.items():
        assert row["claimed"] == 1
        assert row["low"] <= 1 <= row["high"]
        assert trust == "sum" or row["low"] > 0.2  # .6 expected at 400 trials; the sum has 100
        assert row["confidence"] == pytest.approx(1 - 0.01 / len(audited.releases))
    assert {row["design"] for row in audited.releases} == {"worst pair", "two releases", "absent appliance",
                                                           "two households"}
    assert {row["trials"] for row in audited.releases} == {TRIALS, TRIALS // 4, QUICK_TRIALS}


def test_an_audit_asks_and_spends_nothing(sound, audited):
    before = {path: path.read_bytes() for path in (sound / "ledger").rglob("*") if path.is_file()}
    audit_run(sound, trials=100, scan=False)
    assert {path: path.read_bytes() for path in (sound / "ledger").rglob("*") if path.is_file()} == before


def test_the_page_and_the_section_say_the_same(run, audited):
    assert "nobody audited this run" in write_report(run).read_text()
    shutil.copy(audited_file(run, audited), run / "audit.json")
    page, report = write_audit(run).read_text(), write_report(run).read_text()
    for text in (page, report):
        assert "No findings" in text
        assert "each is a point of the clipping ball" in text
        assert "The run has changed since" not in text
        assert "<script" not in text
    assert "Seeded noise: not private" in page
    (run / "summary.json").write_text((run / "summary.json").read_text() + " ")
    assert "The run has changed since" in write_report(run).read_text()
    (run / "audit.json").write_text("{")
    assert "the file is damaged" in write_report(run).read_text()


def audited_file(run: Path, audited) -> Path:
    path = run / "written.json"
    checks = [vars(check) for check in audited.checks]
    path.write_text(json.dumps({"run": run.name, "of": state_of(run), "trials": TRIALS, "confidence": 0.99,
                                "unit": "household", "relation": "replace-one", "stamp": SimulationNoise.stamp,
                                "checks": checks, "releases": list(audited.releases)}))
    return path


def test_the_command_leaves_with_0_or_1(run, capsys, no_trials):
    cli_audit.audit(str(run), trials=100, scan=True, data=None)
    out = capsys.readouterr().out
    assert "nothing found" in out
    assert f"Audit: {run / 'audit.html'}" in out
    (run / "note.txt").write_text(repr(float(Planted().load(0).readings[3, 1])))
    with pytest.raises(typer.Exit) as left:
        cli_audit.audit(str(run), trials=100, scan=True, data=None)
    assert left.value.exit_code == 1
    shown = capsys.readouterr()
    assert "finding      leaks" in shown.out
    assert "1 finding(s)" in shown.err


def test_what_is_no_finished_run_is_a_mistake(tmp_path, run):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no config\.resolved\.toml"):
        audit_run(tmp_path / "empty")
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="unfinished"):
        audit_run(run)
    with pytest.raises(ValueError, match="trials"):
        audit_run(run, trials=5)


@pytest.mark.parametrize("changes", [{"engine": {"workers": 0, "nodes": "shards"}},
                                     {"population": {"use": "tests.federation.helpers:Planted", "count": 5, "zones": 2}}],
                         ids=["shards", "zones"])
def test_other_engines_and_zones_are_audited_as_well(tmp_path, changes):
    checks = {check.what: check for check in audit_run(played(tmp_path, **changes), trials=100).checks}
    assert {check.state for check in checks.values()} == {OK}
    homes = changes.get("population", {"count": 3})["count"]
    assert f"of {homes} of {homes} homes" in checks["no reading in any file"].detail
    assert checks["stored answers made again"].detail.startswith(f"{2 * homes} stored answers")


def test_runs_of_other_studies_are_a_mistake(tmp_path):
    (tmp_path / "config.resolved.toml").write_text('use = "simulations.adaln:AdaLN"\n')
    with pytest.raises(ConfigError, match=r"a run of simulations.adaln:AdaLN, which answers no queries"):
        audit_run(tmp_path)


# -- the ledger --------------------------------------------------------------------------------------------------------

def change(folder: Path, statement: str, home: str = "h0") -> None:
    with sqlite3.connect(folder / "ledger" / f"{bucket(home):02d}.sqlite") as sql:
        assert sql.execute(statement).rowcount > 0
    sql.close()


@pytest.mark.parametrize("statement", [
    "UPDATE charge SET epsilon_micro = 1 WHERE household = 'h0' AND sequence = 1",
    "UPDATE charge SET payload = zeroblob(16) WHERE household = 'h0' AND trust = 'local'",
    "DELETE FROM charge WHERE household = 'h0' AND trust = 'sum'",
    "UPDATE head SET spent_micro = 0 WHERE household = 'h0'", "UPDATE cell_head SET cap_micro = 1 WHERE household = 'h0'"])
def test_a_changed_ledger_is_found(run, no_trials, statement):
    change(run, statement)
    assert AREA_CHAINS in found(run, scan=False)


def test_a_lost_ledger_is_found(run, no_trials):
    shutil.rmtree(run / "ledger")
    assert "holds no ledger file" in found(run, scan=False)["the ledger is there"]


def test_a_ledger_that_others_can_read_is_found(run, no_trials):
    (run / "ledger" / f"{bucket('h1'):02d}.sqlite").chmod(0o644)
    assert "chmod 600" in found(run, scan=False)["for the owner alone"]


def test_a_lost_answer_of_the_zone_is_found(run, no_trials):
    with sqlite3.connect(run / "ledger" / "zone.sqlite") as sql:
        sql.execute("UPDATE zone SET payload = zeroblob(16) WHERE sequence = 1")
    sql.close()
    assert "damaged" in found(run, scan=False)["zone answers are over charged homes"]


def test_ledger_and_receipts_from_one_older_backup_are_found(tmp_path, no_trials):
    """Each is in accord with the other; the results remember that more was spent."""
    folder = played(tmp_path)
    backup = tmp_path / "backup"
    shutil.copytree(folder / "ledger", backup)
    fresh = run_study(config(tmp_path, fresh=1))
    open_ledger(folder / "ledger").close()
    open_ledger.cache_clear()
    assert found(fresh, scan=False) == {}
    assert "rows since" in next(check.detail for check in audit_run(folder, trials=100, scan=False).checks
                                if check.what == "no older than the results")
    shutil.rmtree(folder / "ledger")
    shutil.copytree(backup, folder / "ledger")
    assert Ledger(folder / "ledger").verify() == []       # nothing in the ledger itself shows it
    assert "put back together" in found(fresh, scan=False)["no older than the results"]
    for again in (config(tmp_path), config(tmp_path, fresh=1)):
        with pytest.raises(ConfigError, match="older than the results"):
            run_study(again)                              # and no home answers on it
    assert found(folder, scan=False) == {}                # the first run's own results were there already


def test_marks_survive_and_prove_themselves(run, tmp_path):
    mark = read_mark(run / HEADS)
    assert mark == heads_of(run / "ledger" / "receipts")
    assert set(mark) == {"h0", "h1", "h2", "*zone"}
    many = {f"h{n}": (n + 1, bytes(32)) for n in range(2_500)}
    (tmp_path / HEADS).write_bytes(mark_text(many))
    assert read_mark(tmp_path / HEADS) == many
    assert behind(many, many) == []
    assert behind(many, {**many, "h7": (7, bytes(32)), "h9": (10, b"1" * 32), "h8": (90, b"1" * 32)}) == ["h7", "h9"]
    data = bytearray((run / HEADS).read_bytes())
    data[40] ^= 1
    (run / HEADS).write_bytes(data)
    with pytest.raises(ReceiptsBroken, match="damaged"):
        read_mark(run / HEADS)
    assert "damaged" in older_than([run / HEADS], run / "ledger")
    assert older_than([tmp_path / "none"], run / "ledger") == ""


# -- results -----------------------------------------------------------------------------------------------------------

def test_a_release_that_was_never_charged_is_found(run, no_trials):
    import pyarrow.parquet as pq

    table = pq.read_table(run / "releases.parquet").to_pandas()
    table.loc[0, "value"] += 2.0**-15
    table.to_parquet(run / "releases.parquet")
    assert "never charged" in found(run, scan=False)["releases are the stored answers"]


def test_results_that_spent_more_than_the_ledger_holds_are_found(run, no_trials):
    lines = (run / "metrics.csv").read_text().splitlines()
    lines = [line.rsplit(",", 1)[0] + ",2.5" if "epsilon_spent_max" in line else line for line in lines]
    (run / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert "more than the ledger holds" in found(run, scan=False)["results and ledger agree on what was spent"]


def test_a_cap_that_was_passed_is_found(run, no_trials):
    summary = json.loads((run / "summary.json").read_text())
    summary["agreement"]["cap"] = 1.5
    (run / "summary.json").write_text(json.dumps(summary))
    assert "spent 2 of 1.5" in found(run, scan=False)["within the agreements' caps"]


@pytest.fixture(scope="module")
def scored(tmp_path_factory) -> Path:
    """Zones and a cloud, with an oracle: 5 homes in 2 zones."""
    return played(tmp_path_factory.mktemp("scored"), oracle=True,
                  population={"use": "tests.federation.helpers:Planted", "count": 5, "zones": 2})


def test_scores_are_computed_again_from_the_sums(scored, no_trials):
    checks = {check.what: check for check in audit_run(scored, trials=100).checks}
    assert {check.state for check in checks.values()} == {OK}
    # 3 strategies x 2 rounds x (2 zones + the cloud) x (12 scores and the answers)
    assert checks["scores follow from the sums on file"].detail.startswith("234 values of metrics.csv computed again")


@pytest.mark.parametrize(("where", "metric", "value", "told"), [
    ("planted/cloud", "mae", "0.5", "mae of"), ("planted/cloud", "answers", "4.0", "answers of"),
    ("planted", "cosine_total", "1.0", "cosine_total of"), ("planted", "rmse", None, "rmse of"),
    ("planted", "clipped_share", "0.31", "clipped share of 0.31")])
def test_scores_that_do_not_follow_from_the_sums_are_found(scored, tmp_path, no_trials, where, metric, value, told):
    folder = tmp_path / "run"
    shutil.copytree(scored, folder, ignore=shutil.ignore_patterns("audit.*"))
    lines = (folder / "metrics.csv").read_text().splitlines()
    at = next(place for place, line in enumerate(lines) if line.split(",")[2].startswith(where)
              and line.split(",")[10] == metric and "open" not in line)
    lines[at:at + 1] = [] if value is None else [lines[at].rsplit(",", 1)[0] + f",{value}"]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert told in found(folder, scan=False)["scores follow from the sums on file"]


def test_scores_without_sums_are_found(scored, tmp_path, no_trials):
    folder = tmp_path / "run"
    shutil.copytree(scored, folder, ignore=shutil.ignore_patterns("audit.*"))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "zones": summary["zones"][1:]}))
    assert "have no sums" in found(folder, scan=False)["scores follow from the sums on file"]


def test_a_missing_stamp_and_another_config_are_found(run, no_trials):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "stamp": ""}))
    assert SimulationNoise.stamp in found(run, scan=False)["noise is stamped"]
    (run / "summary.json").write_text(json.dumps({**summary, "noise": "secure", "stamp": ""}))
    assert 'the results "secure"' in found(run, scan=False)["noise is stamped"]
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "report.html").write_text("<p>private</p>")
    text = (run / "config.resolved.toml").read_text()
    (run / "config.resolved.toml").write_text(text.replace("epsilon = 1.0", "epsilon = 0.1"))
    assert set(found(run, scan=False)) >= {"the report shows the stamp", "the config is the one that ran"}


def test_results_that_were_relabelled_are_not_those_of_the_config_that_ran(run, no_trials):
    """As a resumed run under an edited config would leave them: stamps, names and config agree with each other."""
    before = parse(tomllib.loads((run / "config.resolved.toml").read_text()))
    after = replace(before, privacy=replace(before.privacy, noise="secure"))
    (run / "config.resolved.toml").write_text(after.to_toml())
    (run / "metrics.csv").write_text((run / "metrics.csv").read_text().replace(before.run_name, after.run_name))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "noise": "secure", "stamp": ""}))
    told = found(run, scan=False)["the config is the one that ran"]
    assert f'began with the config {before.digest()[:8]} (noise = "simulation")' in told
    start = json.loads((run / "start.json").read_text())
    (run / "start.json").write_text(json.dumps({key: start[key] for key in ("fresh", "ledger", "started")}))
    states = {check.what: check for check in audit_run(run, trials=100, scan=False).checks}
    assert states["the config is the one that ran"].state == ABSENT
    assert "older version" in states["the config is the one that ran"].detail


def test_a_question_that_is_repeated_has_its_stored_answer_in_every_round(tmp_path, no_trials):
    folder = played(tmp_path, query={"epsilon": 1.0, "rounds": 2, "repeat": "same_window"})
    checks = {check.what: check for check in audit_run(folder, trials=100, scan=False).checks}
    assert checks["releases are the stored answers"].detail.startswith("6 releases are in the ledger")
    assert [check for check in checks.values() if check.state == FINDING] == []


def test_an_oracle_beside_secure_noise_is_outside_every_cap(tmp_path, no_trials):
    """Its rows follow charged ones in the second round; their cell has no cap, and needs none."""
    folder = played(tmp_path, oracle=True, privacy={"noise": "secure"})
    assert found(folder) == {}
    assert Ledger(folder / "ledger").verify() == []


def test_other_versions_are_noted(run, no_trials):
    versions = json.loads((run / "versions.json").read_text())
    (run / "versions.json").write_text(json.dumps({**versions, "numpy": "1.0"}))
    check = next(check for check in audit_run(run, trials=100, scan=False).checks if check.area == "versions")
    assert check.state == NOTE
    assert check.detail.startswith("others here: numpy 1.0 (here ")


# -- leaks -------------------------------------------------------------------------------------------------------------

def test_readings_are_found_in_every_form(run, no_trials):
    home = Planted().load(2)
    x = float(home.readings[11, 0])
    (run / "inside").mkdir(exist_ok=True)
    (run / "a.bin").write_bytes(b"abc" + np.float64(x).tobytes())
    (run / "inside" / "b.bin").write_bytes(np.array(x, ">f8").tobytes())
    (run / "figures").mkdir(exist_ok=True)
    (run / "figures" / "c.svg").write_text(f"<path d='M {x!r} 0'/>")
    np.savez_compressed(run / "checkpoints" / "d.npz", rows=home.readings[4:9].astype(np.float32))
    (run / "ledger" / "e.txt").write_text(x.hex())
    details = [check.detail for check in audit_run(run, trials=100).findings]
    assert {detail.split()[0] for detail in details} == {"a.bin", "inside/b.bin", "figures/c.svg", "checkpoints/d.npz",
                                                         "ledger/e.txt"}


@dataclass(frozen=True)
class Round(Planted):
    """Homes whose readings are whole watt-minutes: 1/12 kWh is among them, and is the share of one home of twelve."""

    def load(self, index):
        home = super().load(index)
        readings = np.round(home.readings * 60_000) / 60_000
        readings[5:9, 0] = [1 / 12, 5 / 12, 7 / 12, 11 / 12]
        return replace(home, readings=readings, total=readings.sum(axis=1))


def test_a_share_of_homes_is_no_leaked_reading(tmp_path, no_trials):
    """One of twelve homes clipped: .08333333333333333 stands in metrics.csv, a checkpoint and report.html."""
    folder = played(tmp_path, population={"use": "tests.test_cli_audit:Round", "count": 12}, oracle=True)
    lines = (folder / "metrics.csv").read_text().splitlines()
    for share, at in zip((1, 5), [at for at, line in enumerate(lines) if ",clipped_share," in line]):
        lines[at] = lines[at].rsplit(",", 1)[0] + f",{share / 12!r}"   # two rounds: their mean is 3 of 12
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    (folder / "checkpoints" / "share.json").write_text(json.dumps({"clipped_share": 7 / 12}))
    write_report(folder)
    assert found(folder) == {}
    check = next(check for check in audit_run(folder, trials=100).checks if check.area == "leaks")
    assert "fractions k/n with n up to 100" in check.detail
    (folder / "note.txt").write_text(repr(float(Round(12).load(3).readings[20, 1])))
    assert "note.txt" in found(folder)["no reading in any file"]


def test_means_of_shares_are_no_leaked_readings():
    """Shares of 1,200 homes in the results are known; other numbers of the same size are not."""
    known = np.array([0.0, 7 / 1_200])
    values = np.array([[7 / 1_200, 0.123456789], [11 / 1_200, 1 / 3]])
    assert np.isnan(blanked(values, 1_000, known)).tolist() == [[True, False], [False, True]]


def test_runs_made_from_objects_and_measured_homes_say_what_is_not_checked(run, no_trials):
    (run / "config.resolved.toml").write_text("")
    checks = {check.what: check for check in audit_run(run, trials=100).checks}
    assert checks["no reading in any file"].state == ABSENT
    assert "Python objects" in checks["no reading in any file"].detail
    assert Run.open(run).plan is None


# -- faults of a mechanism, in a run -----------------------------------------------------------------------------------

def half_scale(monkeypatch):
    real = Laplace.scale
    monkeypatch.setattr(Laplace, "scale", lambda self, epsilon, relation="replace-one": real(self, epsilon, "zero-out"))


def no_query(monkeypatch):
    keyed(monkeypatch, lambda household, query: (household, "q"))


def one_home(monkeypatch):
    keyed(monkeypatch, lambda household, query: ("h", query))


def keyed(monkeypatch, key):
    """Noise whose stream is keyed by something else, for one home and for many."""
    real = SimulationNoise.source
    monkeypatch.setattr(SimulationNoise, "source", lambda self, household, query: real(self, *key(household, query)))
    monkeypatch.setattr(SimulationNoise, "sources", lambda self, households, query:
                        [self.source(household, query) for household in households])


def only_non_zero(monkeypatch):
    monkeypatch.setattr(Laplace, "release", lambda self, summary, source, epsilon: self.grid.decode(
        (z := self.deposit(summary)) + self.noise(source, epsilon, z.size) * (z != 0)))


def floats(monkeypatch):
    monkeypatch.setattr(Laplace, "release", lambda self, summary, source, epsilon: self.grid.decode(
        self.deposit(summary)) + np.random.default_rng(int.from_bytes(source.bits(8), "little")).laplace(
            0.0, self.scale_units(epsilon), 2))


@pytest.mark.parametrize("fault", [half_scale, no_query, one_home, only_non_zero, floats], ids=lambda fault: fault.__name__)
def test_a_faulty_mechanism_is_found_by_the_audit_of_a_run(fault, sound, monkeypatch):
    """The code is at fault while it is audited: the worst pair and its fellows find it."""
    fault(monkeypatch)
    assert found(sound, trials=TRIALS, scan=False).keys() >= {"empirical epsilon"}


@pytest.mark.parametrize("fault", [half_scale, no_query, one_home], ids=lambda fault: fault.__name__)
def test_a_fault_at_the_time_of_the_run_is_found_in_its_stored_answers(fault, tmp_path):
    """The code was at fault when the homes answered, and is right now: their noise is not what it should have been."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        folder = played(tmp_path)
    details = found(folder, scan=False)
    assert list(details) == ["stored answers made again"]
    assert "of 6 stored answers are not" in details["stored answers made again"]


def test_seeded_noise_that_is_sold_as_secure_is_found(tmp_path, monkeypatch):
    many = {"population": {"use": "tests.federation.helpers:Planted", "count": 6}, "privacy": {"noise": "secure"},
            "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}]}
    honest = played(tmp_path / "honest", **many)
    checks = {check.what: check for check in audit_run(honest, trials=100).checks}
    assert checks["no seed gives the noise"].state == OK
    assert checks["noise is stamped"].detail == "noise from the operating system"
    assert [check for check in checks.values() if check.state == FINDING] == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_module, "noise_from", lambda name, seed: mechanisms.SimulationNoise(seed))
        sold = played(tmp_path / "sold", **many)
    assert found(sold, scan=False)["no seed gives the noise"].endswith("that of seed 5")


@pytest.mark.parametrize(("count", "seeded", "told"), [(6, {5, 6}, "that of seed 5"), (6, {6}, "that of seed 6"),
                                                       (3, {5, 6}, "that of each cell's own seed")])
def test_seeded_noise_of_several_seeds_is_found_in_the_answers_of_each(tmp_path, count, seeded, told):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_module, "noise_from", lambda name, seed: noise_from(
            "simulation" if seed in seeded else name, seed))
        sold = played(tmp_path, population={"use": "tests.federation.helpers:Planted", "count": count}, seeds=[5, 6],
                      privacy={"noise": "secure"}, strategy=[{"use": "strategies.zonal_sum:ZonalSum"}],
                      agreement={"cap": 20.0})
    assert found(sold, scan=False)["no seed gives the noise"].endswith(told)


def test_a_home_that_raises_is_named_without_its_readings_and_ends_no_audit(tmp_path, no_trials):
    folder = played(tmp_path, engine={"workers": 0, "max_failures": 1.0},
                    population={"use": "tests.federation.helpers:Planted", "odd": [1, "broken"]},
                    strategy=[{"use": "strategies.zonal_sum:ZonalSum"}])
    audit = audit_run(folder, trials=100)
    notes = [check.detail for check in audit.checks if "could not be read again" in check.detail]
    assert len(notes) == 1
    assert "1 home(s)" in notes[0]
    assert "h1 (ValueError at helpers.py:" in notes[0]
    assert "kWh" not in notes[0]
