"""Agreements as files: forgeries are refused, a newer revocation list reaches running boxes, a renewal refunds nothing."""

from __future__ import annotations

import json
import random
import shutil
import stat
import sys
from dataclasses import replace
from decimal import Decimal
from functools import partial

import numpy as np
import pytest

from fedenergy.box import box as box_module
from fedenergy.box.admission import Authenticator, BoxKey, Revocations
from fedenergy.box.agreement import Agreement, AgreementError, AgreementTerms, key_id
from fedenergy.box.agreement_files import (
    AgreementFolder,
    Enrolment,
    from_file,
    key_file,
    put_whole,
    read_private_key,
    read_revocations,
    to_file,
    write_authenticator,
)
from fedenergy.box.agreement_ledger import charged_in, check_ledger
from fedenergy.box.agreement_office import AgreementOffice, spent_in
from fedenergy.box.box import open_ledger
from fedenergy.box.carried import MECHANISM
from fedenergy.box.ledger import Ledger, bucket
from fedenergy.box.query import Query
from fedenergy.box.revocation import SEEN, RevocationWatch, follows
from fedenergy.box.world import enrolment_secret
from fedenergy.config import Engine, parse
from fedenergy.errors import ConfigError
from fedenergy.federation import records
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.negotiation_rounds import case_of
from fedenergy.federation.plan import plan_from_config, plan_from_objects
from fedenergy.federation.study import play_plan, run_study
from strategies.zonal_sum import ZonalSum
from tests.federation.helpers import CELL, Planted, Sums, boxes_of, make_world, seal, to_homes

HOMES = ["h0", "h1", "h2"]
MASKS = (0x01, 0x02, 0x10, 0x20, 0x80, 0xFF)
TASK = Sums(clip=120.0)


@pytest.fixture(autouse=True)
def no_handles():
    yield
    open_ledger.cache_clear()
    box_module._watch.cache_clear()


@pytest.fixture
def office(tmp_path) -> AgreementOffice:
    office = AgreementOffice(tmp_path / "agreements", create=True)
    office.issue(HOMES, AgreementTerms(cap=3))
    return office


@pytest.fixture
def world(office, tmp_path):
    """A world whose homes hold the office's files."""
    return replace(make_world(tmp_path, TASK, cap=3), enrolment=office.enrolment)


def code(call, *args) -> str:
    with pytest.raises(AgreementError) as caught:
        call(*args)
    return caught.value.code


def answers(world, query, *, seed=7):
    boxes = boxes_of(world)
    return {one.household: one for one in world.task.answer_many(boxes, [query] * len(boxes), seed=seed, parties=0)}


def codes(world, query) -> list[str]:
    return [one.code for one in answers(world, query).values()]


# -- the form of a file ------------------------------------------------------------------------------------------------

def test_golden_file():
    """The body as it is signed, then the signature, in one spelling that any JSON reader takes."""
    authenticator = Authenticator(seed=1)
    signed = authenticator.issue("h1", BoxKey("h1", seed=1), AgreementTerms()).to_bytes()
    file = to_file(signed)
    assert file == b'{"body":' + signed[64:] + b',"signature":"' + signed[:64].hex().encode() + b'"}\n'
    assert b'"signature":"0a740e1e03325b36' in file
    assert json.loads(file)["body"]["household"] == "h1"
    assert from_file(file) == signed


def refused(file: bytes, public: bytes) -> None:
    with pytest.raises(AgreementError):
        Agreement.verify(from_file(file), public)


def test_flipped_bytes_are_refused(office):
    file = office.enrolment.file("h0").read_bytes()
    sample = random.Random(0)
    pairs = [(place, file[place] ^ MASKS[place % len(MASKS)]) for place in range(len(file))]
    pairs += [(sample.randrange(len(file)), sample.randrange(256)) for _ in range(500)]
    for place, value in pairs:
        if value != file[place]:
            refused(file[:place] + bytes([value]) + file[place + 1:], office.public_key)


@pytest.mark.slow
def test_every_byte_value_at_every_position_is_refused(office):
    for name, read in (("homes/h0.json", Agreement.verify), ("revoked.json", Revocations.verify)):
        file = (office.folder / name).read_bytes()
        assert read(from_file(file), office.public_key)
        for place in range(len(file)):
            for value in set(range(256)) - {file[place]}:
                with pytest.raises(AgreementError):
                    read(from_file(file[:place] + bytes([value]) + file[place + 1:]), office.public_key)


def test_truncations_and_additions_are_refused(office):
    file = office.enrolment.file("h0").read_bytes()
    for length in range(len(file)):
        refused(file[:length], office.public_key)
    for other in (file + b"\n", file + file, b" " + file, file[1:], file.replace(b"\n", b"\r\n"), b"", b"{}"):
        refused(other, office.public_key)


def test_other_spellings_of_the_same_json_are_refused(office):
    file = office.enrolment.file("h0").read_bytes()
    document = json.loads(file)
    for text in (json.dumps(document), json.dumps(document, indent=1),
                 file.decode().replace(document["signature"], document["signature"].upper())):
        refused(text.encode() + b"\n", office.public_key)


@pytest.mark.parametrize(("old", "new"), [
    (b'"cap_micro":"3000000"', b'"cap_micro":"3000001"'), (b'"household":"h0"', b'"household":"h1"'),
    (b'"trust":["local","sum","curator"]', b'"trust":["local","sum","curator","open"]'),
    (b'"spent_micro":"0"', b'"spent_micro":"1"'), (b'"zone":"zone-1"', b'"zone":"zone-2"')])
def test_a_changed_value_is_refused_inside_the_box(office, world, old, new):
    path = office.enrolment.file("h0")
    file = path.read_bytes()
    assert file.count(old) == 1
    path.write_bytes(file.replace(old, new))
    found = answers(world, seal(world, "local"))
    assert [one.code for one in found.values()] == ["agreement", "charged", "charged"]
    assert "altered" in found["h0"].reason
    assert [one.file for one in office.check()] == ["homes/h0.json"]


def test_swapped_files_are_refused(office, world):
    one, two = office.enrolment.file("h0"), office.enrolment.file("h1")
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert codes(world, seal(world, "local")) == ["household", "household", "charged"]
    assert {found.text for found in office.check()} >= {
        "it is the agreement of h1: put back the home's own", "it is the agreement of h0: put back the home's own"}
    assert code(office.standing, "h0", 0) == "household"


def test_swapped_keys_are_refused(office, world):
    shutil.copy2(key_file(office.keys, "h1"), key_file(office.keys, "h0"))
    assert codes(world, seal(world, "local")) == ["box", "charged", "charged"]
    assert [found.file for found in office.check()] == ["h0.key"]
    assert code(office.renew, {"h0": 0}, AgreementTerms()) == "bound"


def test_the_authenticators_own_key_is_checked(office):
    path = key_file(office.keys)
    good = path.read_bytes()
    path.write_bytes(b"no key")
    assert [found.file for found in office.check()] == ["authenticator.key"]
    path.write_bytes(b"00" * 32 + b"\n")
    assert [found.text for found in office.check()] == [
        "is not the key of agreements/authenticator.json: the two belong together"]
    path.write_bytes(good)
    assert office.check() == []


def test_lost_files_come_with_a_remedy(office):
    (office.folder / "revoked.json").rename(office.folder / "kept.json")
    assert "put its newest copy back" in office.check()[0].text
    (office.folder / "kept.json").rename(office.folder / "revoked.json")
    (office.folder / "authenticator.json").unlink()
    with pytest.raises(AgreementError, match="name a folder that fedenergy agreement new made, or put the file back"):
        AgreementOffice(office.folder)
    listed = (office.folder / "revoked.json").read_bytes()
    with pytest.raises(AgreementError, match="is gone: put it back"):
        AgreementOffice(office.folder, create=True)
    assert (office.folder / "revoked.json").read_bytes() == listed


def test_who_is_revoked_already_changes_no_list(office):
    assert office.revoke(["h0"]) == ["h0"]
    assert office.revoke(["h0"]) == []
    assert office.revocations().version == 1
    assert office.revoke(["h0", "h1"]) == ["h1"]
    assert office.revocations().version == 2


# -- one ledger --------------------------------------------------------------------------------------------------------

def secure(out, folder, **changes):
    return parse({"name": "one", "seeds": [5], "out": str(out), "oracle": False,
                  "population": {"use": "tests.federation.helpers:Planted"},
                  "task": {"use": "tests.federation.helpers:Sums", "clip": 120.0}, "engine": {"workers": 0},
                  "query": {"epsilon": 1.0, "rounds": 2}, "agreement": {"folder": str(folder)},
                  "privacy": {"noise": "secure"}, "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}], **changes})


def test_a_signed_cap_holds_for_all_studies_together(office, tmp_path):
    """Cap 3, two studies of epsilon 2 with secure noise: in a ledger each they would have 4 of it."""
    first = run_study(secure(tmp_path / "a", office.folder))
    known = charged_in(office.folder)
    assert known.path == first / "ledger"
    with pytest.raises(ConfigError, match=r'charged in the ledger .*\. Set \[ledger\] path = "'):
        run_study(secure(tmp_path / "b", office.folder, seeds=[6]))
    again = run_study(secure(tmp_path / "b", office.folder, seeds=[6], ledger={"path": str(known.path)}))
    with Ledger(known.path) as ledger:
        assert [ledger.spent(home) for home in HOMES] == [3_000_000] * 3
    rows = [line.split(",") for line in (again / "metrics.csv").read_text().splitlines()]
    assert [row[11] for row in rows if row[10] == "answers"] == ["3.0", "0.0"]
    assert office.check() == []


def test_a_ledger_may_be_moved_and_boxes_refuse_another_one(office, world, tmp_path):
    one = replace(world, noise="secure", secret=enrolment_secret("secure", world.ledger))
    assert codes(one, seal(one, "local")) == ["charged"] * 3
    other = replace(one, ledger=tmp_path / "other", secret=enrolment_secret("secure", tmp_path / "other"))
    assert codes(other, seal(other, "local", fresh=1)) == ["revocations"] * 3
    assert "charged in the ledger" in answers(other, seal(other, "local", fresh=1))["h0"].reason
    shutil.copytree(world.ledger, tmp_path / "moved")
    assert check_ledger(office.folder, tmp_path / "moved").path == world.ledger
    assert code(check_ledger, office.folder, tmp_path / "other") == "ledger"
    (office.folder / "ledger.json").write_text("{}")
    assert code(check_ledger, office.folder, world.ledger) == "form"
    assert office.check()[0].file == "ledger.json"


def test_seeded_noise_leaves_no_note_of_a_ledger(office, world):
    assert codes(world, seal(world, "local")) == ["charged"] * 3
    assert charged_in(office.folder) is None


def test_another_authenticator_is_refused(office, world, tmp_path):
    """A whole folder under another key: the study keeps the key that it began with, the ledger the list it saw."""
    other = AgreementOffice(tmp_path / "other", create=True)
    other.issue(HOMES, AgreementTerms(cap=1_000, trust=("local", "open")))
    assert codes(world, seal(world, "local")) == ["charged"] * 3
    shutil.rmtree(office.folder)
    shutil.copytree(other.folder, office.folder)
    assert codes(world, seal(world, "local", fresh=1)) == ["revocations"] * 3
    begun_anew = replace(world, enrolment=replace(other.enrolment, public_key=other.public_key))
    assert codes(begun_anew, seal(world, "local", fresh=1)) == ["revocations"] * 3  # the list seen has another signer
    write_authenticator(other.folder, office.public_key)
    assert code(AgreementFolder(str(other.folder)).agreed, HOMES) == "signature"


def test_another_domain_is_refused(office):
    agreement, listed = office.enrolment.file("h0"), office.folder / "revoked.json"
    swap = agreement.read_bytes()
    agreement.write_bytes(listed.read_bytes())
    assert code(office.enrolment.agreement, "h0") == "signature"
    listed.write_bytes(swap)
    assert code(read_revocations, listed, office.public_key) == "signature"


@pytest.mark.parametrize("name", ["../h0", "H0", "h\u0131", "\uff48\uff10", "h0\n", "", "h0/", "x" * 65])
def test_look_alike_homes_have_no_file(office, name):
    for ask in (office.enrolment.agreement, office.enrolment.box_key, lambda home: office.issue([home], AgreementTerms())):
        with pytest.raises(ValueError, match="household id"):
            ask(name)
    assert office.homes() == HOMES


def test_a_home_without_a_file_refuses_and_the_others_answer(office, world):
    office.enrolment.file("h1").unlink()
    key_file(office.keys, "h2").unlink()
    found = answers(world, seal(world, "local"))
    assert [one.code for one in found.values()] == ["charged", "agreement", "agreement"]
    assert "there is no agreement" in found["h1"].reason
    assert "there is no private key" in found["h2"].reason


# -- keys --------------------------------------------------------------------------------------------------------------

def test_private_keys_lie_apart_for_the_owner_alone(office):
    assert office.keys == office.folder.with_name("agreements.keys")
    files = sorted(path for path in office.keys.rglob("*.key"))
    assert [path.name for path in files] == ["authenticator.key", "h0.key", "h1.key", "h2.key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (office.keys, office.keys / "homes")} == {0o700}
    secrets = [read_private_key(path) for path in files]
    assert len(set(secrets)) == 4
    for path in office.folder.rglob("*"):
        assert path.is_dir() or not any(key in path.read_bytes() or key.hex().encode() in path.read_bytes()
                                        for key in secrets)
    with pytest.raises(AgreementError, match="inside the agreements"):
        AgreementOffice(office.folder, office.folder / "keys")


def test_a_key_that_others_can_read_is_refused(office, world):
    key_file(office.keys, "h0").chmod(0o640)
    assert code(office.enrolment.box_key, "h0") == "private"
    assert codes(world, seal(world, "local")) == ["agreement", "charged", "charged"]
    key_file(office.keys).chmod(0o644)
    assert code(office.revoke, ["h1"]) == "private"


def test_a_lost_key_is_not_made_again(office):
    key_file(office.keys).unlink()
    assert code(office.issue, ["h9"], AgreementTerms()) == "absent"
    again = AgreementOffice(office.folder, create=True)  # the folder has its key already
    assert code(again.issue, ["h9"], AgreementTerms()) == "absent"


# -- revocation --------------------------------------------------------------------------------------------------------

def put_list(office: AgreementOffice, version: int, names=()) -> None:
    """A list of any version under the office's own signature."""
    signer = Authenticator(private=read_private_key(key_file(office.keys)),
                           revoked=Revocations(version, frozenset(names)))
    put_whole(office.folder / "revoked.json", to_file(signer.revocations()))


def test_a_list_follows_the_one_seen():
    seen = Revocations(3, frozenset("ab"))
    for good in (seen, Revocations(4, frozenset("abc")), Revocations(9, frozenset("ab"))):
        follows(good, seen)
    for bad in (Revocations(2, frozenset("ab")), Revocations(3, frozenset("abc")), Revocations(4, frozenset("a"))):
        assert code(follows, bad, seen) == "revocations"


def test_an_older_list_a_lost_one_and_a_forged_one_stop_every_box(office, world):
    query = partial(seal, world, "local", epsilon=0.1)
    put_list(office, 5)
    assert codes(world, query()) == ["charged"] * 3
    listed = (office.folder / "revoked.json").read_bytes()
    for number, spoil in enumerate((lambda: put_list(office, 4), lambda: put_list(office, 5, ["0" * 32]),
                                    (office.folder / "revoked.json").unlink,
                                    lambda: put_whole(office.folder / "revoked.json", listed[:-3] + b"0" + listed[-2:]),
                                    lambda: put_whole(office.folder / "revoked.json", listed[:-1]))):
        spoil()
        found = answers(world, query(fresh=number + 1))
        assert [one.code for one in found.values()] == ["revocations"] * 3, number
        assert codes(world, query()) == ["stored"] * 3  # what was said before is no secret any more
        put_whole(office.folder / "revoked.json", listed)
    assert codes(world, query(fresh=9)) == ["charged"] * 3


def test_what_one_process_saw_binds_the_next(office, tmp_path):
    first, second = (RevocationWatch(office.folder / "revoked.json", office.public_key, tmp_path / "l") for _ in range(2))
    assert first.read().version == second.read().version == 0
    old = (office.folder / "revoked.json").read_bytes()
    office.revoke(["h0"])
    assert first.read().version == 1
    put_whole(office.folder / "revoked.json", old)
    assert code(second.read) == code(first.read) == "revocations"  # second never saw version 1 itself
    assert code(RevocationWatch(first.path, office.public_key, tmp_path / "l").read) == "revocations"
    assert RevocationWatch(first.path, office.public_key, tmp_path / "other").read().version == 0
    (tmp_path / "l" / SEEN).write_bytes(b"damaged")
    assert code(first.read) == "form"


def test_nothing_is_read_twice_while_nothing_changes(office, tmp_path, monkeypatch):
    watch = RevocationWatch(office.folder / "revoked.json", office.public_key, tmp_path)
    first = watch.read()
    monkeypatch.setattr(Revocations, "verify", None)
    assert watch.read() is first


def grids(kind, world):
    if kind == "local":
        return LocalGrid(make_client(Homes((world,))), 3)
    from fedenergy.federation.ray_grid import RayGrid

    if "ray" in sys.modules:  # of an earlier module of this process: Ray keeps the first session's token
        from ray._raylet import AuthenticationTokenLoader

        AuthenticationTokenLoader.instance().reset_cache()
    ids = world.population.ids
    return RayGrid(partial(make_client, Homes((world,))), 3, lambda index: bucket(ids[index]), workers=1)


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_a_newer_list_in_mid_run_reaches_running_boxes(kind, office, world):
    grid = grids(kind, world)

    def ask(fresh: int) -> list[str]:
        query = seal(world, "local", epsilon=0.1, fresh=fresh)
        content = to_homes([0])[0].content
        content[records.QUERY] = records.query_record(query, world=0, seed=1, parties=0)
        replies = grid.send_and_receive(to_homes(range(3), content=content))
        return [records.status_of(reply.content) or "envelope" for reply in replies]

    try:
        assert ask(0) == ["envelope"] * 3
        old = (office.folder / "revoked.json").read_bytes()
        office.revoke(["h1"])
        assert ask(1) == ["envelope", "refused", "envelope"]
        newest = (office.folder / "revoked.json").read_bytes()
        put_whole(office.folder / "revoked.json", old)
        assert ask(2) == ["refused"] * 3
        put_whole(office.folder / "revoked.json", newest)
        assert ask(3) == ["envelope", "refused", "envelope"]
        assert ask(0) == ["envelope"] * 3                 # the stored answers: nothing new is told
        office.renew({"h1": 100_000}, AgreementTerms(cap=3), revoked=True)
        assert ask(4) == ["envelope"] * 3                 # so does a renewal
    finally:
        grid.close()


def test_a_home_that_withdrew_negotiates_no_more(office, world):
    query = seal(world, "local")
    withdrawn, other = boxes_of(world)[:2]
    old = (office.folder / "revoked.json").read_bytes()
    assert [case_of(box, query, 0, 1_000) is None for box in (withdrawn, other)] == [False, False]
    office.revoke(["h0"])
    assert [case_of(box, query, 0, 1_000) is None for box in (withdrawn, other)] == [True, False]
    assert code(office.renew, {"h0": 500_000}, AgreementTerms(cap=4)) == "revoked"
    office.renew({"h0": 500_000}, AgreementTerms(cap=4), revoked=True)
    assert case_of(withdrawn, query, 0, 1_000).spent == Decimal("0.5")
    put_whole(office.folder / "revoked.json", old)
    assert [case_of(box, query, 0, 1_000) is None for box in (withdrawn, other)] == [True, True]


# -- renewal -----------------------------------------------------------------------------------------------------------

def total(world) -> int:
    return open_ledger(world.ledger).spent("h0", CELL)


def test_a_renewal_carries_over_what_the_ledger_says(office, world):
    for fresh in range(3):
        assert codes(world, seal(world, "local", fresh=fresh)) == ["charged"] * 3
    assert codes(world, seal(world, "local", fresh=3)) == ["budget"] * 3
    assert spent_in(world.ledger, HOMES) == dict.fromkeys(HOMES, 3_000_000)
    renewed, = office.renew(spent_in(world.ledger, ["h0"]), AgreementTerms(cap=4))
    assert (renewed.spent_micro, renewed.cap_micro) == (3_000_000, 4_000_000)
    assert office.check() == []
    assert codes(world, seal(world, "local", fresh=3)) == ["charged", "budget", "budget"]
    assert codes(world, seal(world, "local", fresh=4)) == ["budget"] * 3
    assert total(world) == 4_000_000
    assert MECHANISM not in {row.mechanism for row in open_ledger(world.ledger).rows()}  # this ledger has it all


def test_a_new_ledger_grants_no_more_than_what_was_left(office, world, tmp_path):
    """Without its row the new ledger would grant 2.5 again, up to 4.5 in all, under a cap of 3."""
    office.renew({"h0": 2_000_000}, AgreementTerms(cap=3))
    elsewhere = replace(world, ledger=tmp_path / "elsewhere")
    told = [answers(elsewhere, seal(world, "local", epsilon=0.5, fresh=fresh))["h0"].code for fresh in range(4)]
    assert told == ["charged", "charged", "budget", "budget"]
    ledger = open_ledger(elsewhere.ledger)
    rows = ledger.history("h0")
    assert [(row.mechanism, row.epsilon_micro) for row in rows] == [
        (MECHANISM, 2_000_000), ("laplace", 500_000), ("laplace", 500_000)]
    assert ledger.spent("h0") == 3_000_000
    assert ledger.verify() == []
    office.renew({"h0": ledger.spent("h0")}, AgreementTerms(cap=4))  # renewed again: nothing is charged twice
    assert answers(elsewhere, seal(world, "local", fresh=9))["h0"].code == "charged"
    assert ledger.spent("h0") == 4_000_000


def test_a_cap_below_what_was_spent_grants_nothing(office, world):
    office.renew({"h0": 2_000_000}, AgreementTerms(cap=1))
    assert answers(world, seal(world, "local", epsilon=0.1))["h0"].code == "budget"
    assert total(world) == 2_000_000
    assert Ledger(world.ledger).verify() == []


def test_a_renewal_never_carries_less(office):
    office.renew({"h0": 2_000_000}, AgreementTerms())
    renewed, = office.renew({"h0": 0}, AgreementTerms())  # a ledger that holds less: the old agreement's figure stays
    assert renewed.spent_micro == 2_000_000
    assert office.check() == []
    past = sorted((office.folder / "past").glob("*.json"))
    assert len(past) == 2
    put_whole(office.folder / "revoked.json", to_file(Authenticator(
        private=read_private_key(key_file(office.keys))).revocations()))
    assert {one.text for one in office.check()} == {f"it renews {path.stem}, which is not revoked" for path in past}


def test_a_home_has_one_first_agreement(office):
    assert code(office.issue, ["h0", "h9"], AgreementTerms()) == "bound"
    assert office.homes() == HOMES  # all or nothing


# -- a study -----------------------------------------------------------------------------------------------------------

def test_terms_of_a_folder_are_the_widest(office):
    office.issue(["h3"], AgreementTerms(cap=9, trust=("sum",), per_query_max=2, granularity="total", delta=1e-5))
    terms, enrolment = AgreementFolder(str(office.folder)).agreed(["h0", "h3", "nobody"])
    assert (terms.cap, terms.trust, terms.per_query_max, terms.delta) == (9, ("local", "sum", "curator"), None, 1e-5)
    assert (terms.granularity, terms.zone) == ("appliance", "zone-1")
    assert enrolment == Enrolment(office.folder, office.folder / "revoked.json", office.keys, office.public_key)
    assert AgreementFolder(str(office.folder), authenticator=key_id(office.public_key)).enrolment() == enrolment
    assert code(AgreementFolder(str(office.folder), authenticator="0" * 16).enrolment) == "key"
    assert code(AgreementFolder(str(office.folder)).agreed, ["nobody"]) == "absent"
    assert code(AgreementFolder(str(office.folder / "nowhere")).agreed, HOMES) == "absent"


@pytest.mark.parametrize("oracle", [False, True])
def test_a_study_runs_on_a_folder_and_homes_withdraw(office, tmp_path, oracle):
    def play(name: str, fresh: int):
        plan = plan_from_objects(Planted(), TASK, Query("appliances", 1.0, 1, fresh=fresh), [ZonalSum], oracle=oracle,
                                 agreement=AgreementFolder(str(office.folder)), engine=Engine(workers=0), name=name,
                                 folder=tmp_path / name, ledger=tmp_path / "ledger")
        folder = play_plan(plan)
        lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()[1:]]
        return {line[-2]: float(line[-1]) for line in lines}

    assert (first := play("one", 0))["answers"] == 3
    office.revoke(["h1"])
    second = play("two", 1)
    assert (second["answers"], second["refusals"]) == (2, 1)
    assert ("mae" in first) == ("mae" in second) == oracle  # the oracle's world has the simulation's own agreements


def test_a_config_names_the_folder(office, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = {"population": {"use": "tests.federation.helpers:Planted"}, "task": {"use": "tests.federation.helpers:Sums"},
                "agreement": {"folder": "agreements"}, "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}]}
    config = parse(document).check()
    assert "folder = \"agreements\"" in config.to_toml()
    assert config.agreement_spec.build().enrolment() == office.enrolment
    for change, message in (({"cap": 3}, 'has no argument "cap"'), ({"folder": "nowhere"}, "no Authenticator's public key"),
                            ({"revoke": "x"}, 'Did you mean "revoked"'), ({"zone": "z 1"}, "zone")):
        with pytest.raises(ConfigError, match=message):
            plan_from_config(parse({**document, "agreement": {"folder": "agreements", **change}}).check(), tmp_path / "run",
                             tmp_path / "ledger")


def test_answers_are_the_same_whoever_signed(office, world, tmp_path):
    """Agreements decide who answers, never what: the same homes, queries and seed give the same bytes."""
    plain = make_world(tmp_path / "plain", TASK, cap=3)
    one, two = (answers(each, seal(world, "local")) for each in (world, plain))
    for home in HOMES:
        assert np.array_equal(one[home].envelope.values, two[home].envelope.values)
