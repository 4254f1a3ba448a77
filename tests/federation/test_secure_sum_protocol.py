"""SecureSum in protocol mode over grids: drop-outs, what stays closed, what crossed, replays, restarts, both grids."""

from __future__ import annotations

import csv
import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedenergy.box import box as box_module
from fedenergy.box.ledger import bucket
from fedenergy.box.policy import Offer
from fedenergy.box.query import Query
from fedenergy.box.zone_store import ZoneStore
from fedenergy.config import Engine
from fedenergy.errors import ConfigError
from fedenergy.federation import client_app, masked_rounds, records
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.campaign import declared
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.masked_rounds import BOARD, POSTED, Board
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.study import play_plan
from fedenergy.federation.trust_grid import Crossings, Exchange, TrustGrid
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.privacy.pairwise_masks import Session, open_sum
from fedenergy.privacy.secure_sum import laplace_share
from fedenergy.privacy.sum_protocol import SumProtocol, vanishing
from fedenergy.testing import check_strategy
from strategies.secure_sum import SecureSum
from tests.federation.helpers import (
    CELL,
    FITTED,
    Known,
    Planted,
    Says,
    Sums,
    Tap,
    Window,
    local_grid,
    make_world,
    to_homes,
)
from tests.federation.helpers_scan import Needles, files_in
from tests.federation.test_flwr_run import PLANTED, Flower, play, study  # noqa: F401 - study: a fixture

CLIP, SEED, EPSILON = 4.0, 3, 1_000_000
ASK, FETCH, SHARE, OPEN_UP = "query.keys", "query.secrets", "train", "query.unmask"
WHOLE = SumProtocol()


def summaries(count):
    """S of each home: random mantissas, so that a hit of the byte scan is a hit."""
    return np.random.default_rng(5).uniform(-1.9, 1.9, (count, 2))


class Side:
    """The operator's side of one world of known summaries; change(message, reply): what the network does to replies."""

    def __init__(self, folder, protocol, count=10, change=None, **world) -> None:
        self.values, self.protocol = summaries(count), protocol
        self.world = make_world(folder, Known(CLIP, values=tuple(map(tuple, self.values))), count, **world)
        self.tap = Tap(local_grid(self.world), change)
        self.crossings, self.zones = Crossings(), ZoneStore(self.world.ledger)
        self.round()

    def round(self) -> Exchange:
        self.exchange = Exchange(self.tap, self.world, 0, SEED, self.zones, self.crossings)
        return self.exchange

    def seal(self, homes=None, **more):
        task = self.world.task
        return Query("appliances", 1.0, **more).sealed(
            task=task.identity(), population=self.world.population.identity(), window=Window((0, 49)),
            grid=NoiseGrid(CLIP).step, clip=CLIP, trust="sum", mechanism=self.protocol.mechanism, cell=CELL, round=0,
            homes=self.world.population.ids if homes is None else homes)

    def grid(self, **more) -> TrustGrid:
        return TrustGrid(self.exchange, "sum", lambda homes: self.seal(homes, **more))

    def ask(self, **more):
        """(released (d,) or None, the TrustGrid)."""
        grid = self.grid(**more)
        replies = grid.send_and_receive(to_homes(range(len(self.values))))
        assert len(replies) <= 1
        return (replies[0].content[records.ARRAYS][records.SUMMARY].numpy() if replies else None), grid

    def parts(self, query):
        """(z, share) of each home: what no message may show."""
        z = NoiseGrid(CLIP).encode(self.values)
        scale, parties = Laplace(CLIP).scale(EPSILON), self.protocol.parties(len(z))
        e = np.array([laplace_share(SimulationNoise(SEED).source(name, query.id), scale, parties, 2)
                      for name in self.world.population.ids])
        return z, e

    def truth(self, query, names):
        z, e = self.parts(query)
        at = [self.world.population.ids.index(name) for name in names]
        return (z + e)[at].sum(axis=0) * NoiseGrid(CLIP).step

    def spent(self):
        return [box_module.open_ledger(self.world.ledger).spent(name) for name in self.world.population.ids]

    def contents(self, kind, way="out"):
        return [c.content for c in self.tap.crossings if c.kind == kind and c.way == way and c.content is not None]


@pytest.fixture(autouse=True)
def fresh():
    FITTED.clear()
    yield
    box_module.open_ledger.cache_clear()


@pytest.fixture
def side(tmp_path):
    made = []

    def make(protocol=WHOLE, count=10, change=None, **world) -> Side:
        made.append(Side(tmp_path / f"world{len(made)}", protocol, count, change, **world))
        return made[-1]

    yield make
    for one in made:
        one.zones.close()


def losing(*gone):
    """The network: replies of these (home index, message type) never arrive."""
    gone = set(gone)

    def change(message, reply):
        at = flower.node_index(message.metadata.dst_node_id), message.metadata.message_type
        return flower.reply(message, flower.NODE_UNAVAILABLE) if at in gone else reply
    change.gone = gone
    return change


# -- the sum -----------------------------------------------------------------------------------------------------------

def test_the_released_sum_is_that_of_z_and_the_noise_shares(side):
    one = side()
    released, grid = one.ask()
    assert released.tolist() == one.truth(grid.query, one.world.population.ids).tolist()
    assert (len(grid.answered), grid.refused, grid.failed, grid.closed) == (10, 0, 0, "")
    assert one.spent() == [EPSILON] * 10
    assert one.crossings.envelopes == {"sum": 10}
    assert [one.tap.asked(kind) for kind in (ASK, FETCH, SHARE, OPEN_UP)] == [list(range(10))] * 4
    again, _ = one.ask()                                               # one query id, one answer: nobody is asked again
    assert again.tolist() == released.tolist()
    assert len(one.tap.asked(SHARE)) == 10


def test_twenty_percent_drop_outs_keep_the_sum_and_its_epsilon(side):
    one = side(SumProtocol(0.8, drop_out=0.2), count=15)
    released, grid = one.ask()
    gone = vanishing(one.protocol, grid.query.id, one.world.population.ids)
    assert sorted(gone.values()) == ["keys", "late", "secrets"]
    assert grid.answered == tuple(sorted(set(one.world.population.ids) - set(gone)))
    assert (grid.refused, grid.failed) == (0, 3)
    assert released.tolist() == one.truth(grid.query, grid.answered).tolist()  # 12 shares of 1 / 12: one whole Laplace
    late = one.world.population.ids.index(next(name for name, stage in gone.items() if stage == "late"))
    spent = one.spent()                                                # late: charged, not in the sum, not refunded
    assert {name for name, paid in zip(one.world.population.ids, spent, strict=True) if paid} \
        == {*grid.answered, f"h{late}"}
    assert set(spent) == {0, EPSILON}
    assert late in one.tap.asked(SHARE)
    assert late not in one.tap.asked(OPEN_UP)
    one.round()
    grid = one.grid()
    grid.send_and_receive(to_homes(range(15)))                         # from the store: the same counts
    assert (len(grid.answered), grid.refused, grid.failed) == (12, 0, 3)


def test_with_tau_1_a_drop_out_keeps_the_sum_closed_before_anybody_is_charged(side):
    one = side(SumProtocol(1, drop_out=0.2))
    released, grid = one.ask()
    assert released is None
    assert "10 are needed" in grid.closed
    assert one.spent() == [0] * 10
    assert FITTED == []


@pytest.mark.parametrize("protocol", [WHOLE, SumProtocol(0.9)], ids=str)
def test_shares_that_do_not_arrive_close_the_sum_and_refund_nothing(protocol, side):
    one = side(protocol, change=losing((2, SHARE), (5, SHARE)))
    released, grid = one.ask()
    assert released is None
    assert f"8 of 10 homes answered and {protocol.parties(10)} are needed" in grid.closed
    assert (grid.answered, grid.refused, grid.failed) == ((), 0, 2)
    assert one.spent() == [EPSILON] * 10
    assert one.tap.asked(OPEN_UP) == []
    assert one.zones.get(grid.query.id) is None


@pytest.mark.parametrize(("gone", "answers"), [
    ([(0, ASK)], 9), ([(0, FETCH)], 9), ([(0, SHARE)], 9), ([(0, OPEN_UP)], 10),
    ([(0, ASK), (1, FETCH)], 8), ([(0, FETCH), (1, SHARE), *((at, OPEN_UP) for at in (2, 3))], 8)], ids=str)
def test_homes_that_really_fail_are_survived_too(gone, answers, side):
    one = side(SumProtocol(0.8), change=losing(*gone))
    released, grid = one.ask()
    assert released.tolist() == one.truth(grid.query, grid.answered).tolist()
    assert (len(grid.answered), grid.failed) == (answers, 10 - answers)


def test_too_few_that_unmask_keep_it_closed_until_they_do(side):
    change = losing(*((at, OPEN_UP) for at in range(5)))
    one = side(SumProtocol(0.8), change=change)
    released, grid = one.ask()
    assert released is None
    assert "5 homes unmasked and 6 are needed" in grid.closed
    change.gone.clear()
    one.round()
    released, grid = one.ask()                                         # same survivors: the same promise, nothing charged
    assert released.tolist() == one.truth(grid.query, one.world.population.ids).tolist()
    assert one.spent() == [EPSILON] * 10


def test_a_home_that_grants_less_is_clipped_to_less(side):
    def offer(case):
        return Offer(case.query.epsilon / (4 if case.agreement.household == "h1" else 1), "as I like")

    one = side(policy=Says(offer))
    released, grid = one.ask()
    z, e = one.parts(grid.query)
    grid_of = NoiseGrid(CLIP)
    z[1] = grid_of.encode(one.values[1], grid_of.bound // 4)
    assert released.tolist() == ((z + e).sum(axis=0) * grid_of.step).tolist()
    assert one.spent() == [EPSILON // 4 if name == "h1" else EPSILON for name in one.world.population.ids]


def test_homes_that_refuse_take_no_part(side):
    def offer(case):
        return Offer(case.query.epsilon, "yes") if case.agreement.household != "h1" else None

    one = side(policy=Says(offer))
    one.protocol = SumProtocol()
    released, grid = one.ask()
    assert (len(grid.answered), grid.refused, grid.failed) == (9, 1, 0)
    assert 1 not in one.tap.asked(ASK)
    assert one.tap.asked(SHARE) == [0, *range(2, 10)]
    assert released is not None


# -- what crossed ------------------------------------------------------------------------------------------------------

def test_the_aggregator_opens_the_sum_from_what_crossed_and_nothing_else(side):
    """Played again from the messages alone: no key of a home was needed on the operator's side."""
    one = side(SumProtocol(0.8), change=losing((3, SHARE)))
    released, grid = one.ask()
    board = Board.read(one.contents(OPEN_UP)[-1])
    answers = {c[records.ENVELOPE]["household"]: c[records.ARRAYS][records.SUMMARY].numpy()
               for c in one.contents(SHARE, "in")}
    answers.pop("h3", None)
    opened = {c[POSTED]["household"]: c[POSTED]["value"] for c in one.contents(OPEN_UP, "in")}
    session = Session(grid.query.id, board.homes, one.protocol)
    total = open_sum(session, board.roster, board.posted, answers, opened)
    assert (total * NoiseGrid(CLIP).step).tolist() == released.tolist()


def test_no_message_and_no_file_holds_a_homes_number(side):
    """z, noise share, their sum, S: in messages (a late one too), ledger, zone store; recovery information included."""
    one = side(SumProtocol(0.8, drop_out=0.2), count=15)
    _, grid = one.ask()
    z, e = one.parts(grid.query)
    needles = Needles({"S": one.values, "z": z, "z + e": z + e, "e": e, "z mod 2**64": z.astype(np.uint64).view("<i8")})
    one.zones.close()
    blobs = {f"{c.way} {c.kind} {at}": c.data for at, c in enumerate(one.tap.crossings)} | files_in(one.world.ledger)
    assert sum(name.startswith("in query.unmask") for name in blobs) == 12
    assert any(name.endswith("unmask.sqlite") for name in blobs)
    assert needles.scan(blobs) == set()


def test_the_scan_goes_red_without_masks(side, monkeypatch):
    monkeypatch.setattr(masked_rounds.Party, "mask", lambda self, roster, posted, size: np.zeros(size, np.uint64))
    one = side()
    _, grid = one.ask()
    z, e = one.parts(grid.query)
    hits = Needles({"z + e": z + e}).scan({str(at): c.data for at, c in enumerate(one.tap.crossings)})
    assert {hit.what for hit in hits} == {"z + e"}


def test_other_data_change_nothing_but_the_masked_shares(side, tmp_path):
    """Non-interference: every other byte of every message is the same for two zones with other data."""
    one, other = side(SumProtocol(0.8, drop_out=0.2)), side(SumProtocol(0.8, drop_out=0.2))
    other.world = replace(other.world, task=replace(other.world.task, values=tuple(map(tuple, -other.values))))
    other.tap = Tap(local_grid(other.world))
    other.round()
    one.ask(), other.ask()
    assert len(one.tap.crossings) == len(other.tap.crossings)
    for mine, theirs in zip(one.tap.crossings, other.tap.crossings, strict=True):
        same = mine.way == "out" or mine.kind != SHARE
        assert (mine.data == theirs.data) is same
        assert (mine.way, mine.node, mine.kind, len(mine.data)) == (theirs.way, theirs.node, theirs.kind, len(theirs.data))


# -- replays, forgeries, restarts --------------------------------------------------------------------------------------

def board_of(one, kind=OPEN_UP):
    return Board.read(one.contents(kind)[-1])


def send(one, kind, board, indices, *, query=None, parties=None):
    """A message of an aggregator that does as it likes."""
    query = one.seal() if query is None else query
    parties = one.protocol.parties(len(board.homes)) if parties is None else parties
    content = RecordDict({records.QUERY: records.query_record(query, world=0, seed=SEED, parties=parties),
                          BOARD: board.record()})
    return one.tap.grid.send_and_receive(to_homes(indices, kind, content))


def values(replies):
    return [reply.content[POSTED]["value"] if reply.has_content() and POSTED in reply.content else None
            for reply in replies]


def test_a_box_opens_for_one_set_of_survivors_alone(side):
    """Else it would open both secrets of a home that is in one set and not in the other."""
    one = side(SumProtocol(0.6))
    one.ask()
    board = board_of(one)
    first = values(send(one, OPEN_UP, board, range(10)))
    assert None not in first                                           # the same again: the same bytes
    assert first == [c[POSTED]["value"] for c in one.contents(OPEN_UP, "in")]
    other = replace(board, survivors=board.survivors[1:])
    assert values(send(one, OPEN_UP, other, range(1, 10))) == [None] * 9
    for cache in (box_module.open_ledger, masked_rounds._party, client_app._box):
        cache.cache_clear()                                            # a restarted box remembers
    assert values(send(one, OPEN_UP, other, range(1, 10))) == [None] * 9


def test_a_box_that_sent_no_share_opens_nothing(side):
    one = side(SumProtocol(0.6))
    one.ask()
    board = board_of(one)
    fresh = one.seal(fresh=1)                                          # another query: nothing was sent for it
    homes = replace(board, roster={}, posted={}, survivors=())
    keys = dict(zip(homes.homes, values(send(one, ASK, homes, order(homes), query=fresh)), strict=True))
    homes = replace(homes, roster=keys)
    letters = dict(zip(homes.homes, values(send(one, FETCH, homes, order(homes), query=fresh)), strict=True))
    homes = replace(homes, posted=letters, survivors=homes.homes)
    assert values(send(one, OPEN_UP, homes, order(homes), query=fresh)) == [None] * 10


def order(board):
    return [int(name[1:]) for name in board.homes]


def test_masks_serve_once(side):
    """Asked again with another board (a home fewer), a box neither sends its share again nor makes another one."""
    one = side(SumProtocol(0.6))
    one.ask()
    board = board_of(one)
    stored = {c[records.ENVELOPE]["household"]: c[records.ARRAYS][records.SUMMARY].numpy().tolist()
              for c in one.contents(SHARE, "in")}
    again = send(one, SHARE, board, range(10))
    assert {r.content[records.ENVELOPE]["household"]: r.content[records.ARRAYS][records.SUMMARY].numpy().tolist()
            for r in again} == stored
    fewer = replace(board, posted={name: letter for name, letter in board.posted.items() if name != "h9"})
    for reply in send(one, SHARE, fewer, range(9)):
        assert records.status_of(reply.content) == "refused"
    assert one.spent() == [EPSILON] * 10


def test_another_querys_board_is_of_no_use(side):
    one = side(SumProtocol(0.6))
    one.ask()
    for kind in (SHARE, OPEN_UP):
        replies = send(one, kind, board_of(one), range(10), query=one.seal(fresh=1))
        assert all(reply.has_error() or records.status_of(reply.content) == "refused" for reply in replies)
    assert one.spent() == [EPSILON] * 10


@pytest.mark.parametrize("parties", [0, 5, 7, 10, 10**6])
def test_a_number_of_parties_that_is_not_the_sessions_is_refused(parties, side):
    one = side(SumProtocol(0.6))                                       # 6
    one.ask()
    one.round()
    replies = send(one, SHARE, board_of(one), range(10), parties=parties)
    assert [reply.error.code for reply in replies] == [flower.CLIENT_RAISED] * 10


def test_a_masked_sum_needs_its_board_and_nothing_else_takes_one(side):
    one = side()
    bare = RecordDict({records.QUERY: records.query_record(one.seal(), world=0, seed=SEED, parties=10)})
    plain = side()
    plain.protocol = type("Plain", (), {"mechanism": "laplace"})()
    query = plain.seal()
    board = Board(tuple(sorted(one.world.population.ids)))
    with_board = RecordDict({records.QUERY: records.query_record(query, world=0, seed=SEED, parties=10),
                             BOARD: board.record()})
    for which, content in ((one, bare), (plain, with_board)):
        replies = which.tap.send_and_receive(to_homes(range(10), SHARE, content))
        assert [reply.has_error() for reply in replies] == [True] * 10
    assert one.spent() == plain.spent() == [0] * 10
    assert FITTED == []


@pytest.mark.parametrize("record", [
    {}, {"homes": ["h0"]}, {"homes": "h0"}, {"homes": [1]}, {"homes": ["h0", "h0"]}, {"homes": ["../h0"]},
    {"roster": ["h0"]}, {"roster": ["h0"], "keys": ["text"]}, {"survivors": ["h0", "h0"]}, {"more": ["x"]}], ids=str)
def test_malformed_boards_are_an_error_without_text(record, side):
    one = side()
    empty = {"homes": [f"h{at}" for at in range(10)], "roster": [], "keys": [], "members": [], "letters": [],
             "survivors": []}
    fields = empty | record if record else {}
    content = RecordDict({records.QUERY: records.query_record(one.seal(), world=0, seed=SEED, parties=10),
                          BOARD: ConfigRecord(fields)})
    for kind in (FETCH, SHARE, OPEN_UP):
        for reply in one.tap.send_and_receive(to_homes(range(10), kind, content)):
            assert reply.error.code == flower.CLIENT_RAISED
            assert reply.error.reason is None
    assert FITTED == []


@pytest.mark.parametrize("kind", [ASK, FETCH, OPEN_UP])
def test_homes_that_post_nonsense_have_dropped_out(kind, side):
    """Another home's name, other bytes, another record: one failure each, and the sum goes on."""
    def change(message, reply):
        index = flower.node_index(message.metadata.dst_node_id)
        if message.metadata.message_type != kind or index > 2:
            return reply
        fields = dict(reply.content[POSTED])
        odd = ({"household": "h9"}, {"value": fields["value"] + b"x"}, {"note": "hello"})[index]
        return flower.reply(message, RecordDict({POSTED: ConfigRecord(fields | odd)}))

    one = side(SumProtocol(0.6), change=change)
    released, grid = one.ask()
    assert released.tolist() == one.truth(grid.query, grid.answered).tolist()
    assert len(grid.answered) == (10 if kind == OPEN_UP else 7)


def test_boxes_restarted_before_every_round_give_the_same_bytes(side):
    """A box keeps nothing but its secret and what is stored."""
    def restart(message, reply):
        for cache in (masked_rounds._party, client_app._box):
            cache.cache_clear()
        return reply

    one, other = side(SumProtocol(0.8, drop_out=0.2)), side(SumProtocol(0.8, drop_out=0.2), change=restart)
    first, second = one.ask()[0], other.ask()[0]
    assert first.tolist() == second.tolist()
    assert [c.data for c in one.tap.crossings] == [c.data for c in other.tap.crossings]


def test_ray_workers_give_the_same_bytes_though_one_dies_before_the_shares(tmp_path):
    from fedenergy.federation.ray_grid import RayGrid

    seen, killed = [], []

    def kill(message, reply):
        if message.metadata.message_type == FETCH and not killed:
            killed.extend(one.tap.grid.pids()[:1])
            os.kill(killed[0], signal.SIGKILL)
        return reply

    for name in ("local", "ray"):
        one = Side(tmp_path / name, SumProtocol(0.8, drop_out=0.2))
        if name == "ray":
            place = partial(_bucket_of, one.world.population.ids)
            one.tap = Tap(RayGrid(partial(make_client, Homes((one.world,))), 10, place, workers=2, batch=2), kill)
            one.round()
        try:
            released, grid = one.ask()
        finally:
            one.tap.close()
            one.zones.close()
        seen.append((released.tolist(), grid.answered, [(c.way, c.node, c.kind, c.data) for c in one.tap.crossings]))
    assert killed
    assert seen[0] == seen[1]


def test_a_study_on_flowers_own_runtime_gives_the_bytes_of_local_grid(study):  # noqa: F811
    """Random node ids, replies in any order, one message at a time (`flwr run`, with its grid stood in for)."""
    use = 'use = "strategies.secure_sum:SecureSum"'
    text = PLANTED.replace(use, f'{use}\nmode = "protocol"\ntau = 0.6\ndrop_out = 0.2')
    assert text != PLANTED
    here = play(study(text, out="here"))
    run_config = study(text, out="there")
    there = play(run_config, Flower(run_config, 5))
    assert (there / "metrics.csv").read_bytes() == (here / "metrics.csv").read_bytes()
    with open(here / "metrics.csv", newline="") as file:
        found = {(r["strategy"], r["metric"], float(r["value"])) for r in csv.DictReader(file)}
    assert {value for strategy, metric, value in found if (strategy, metric) == ("SecureSum", "answers")} == {4}


def _bucket_of(names, index):
    return bucket(names[index])


def test_secure_noise_takes_the_same_way(side):
    one = side(SumProtocol(0.8, drop_out=0.2), noise="secure")
    released, grid = one.ask()
    assert len(grid.answered) == 8
    again, _ = one.ask()
    assert again.tolist() == released.tolist()
    other = side(SumProtocol(0.8, drop_out=0.2), noise="secure")
    assert other.ask()[0].tolist() != released.tolist()
    assert [c.data for c in one.tap.crossings if c.kind == ASK and c.way == "in"] \
        != [c.data for c in other.tap.crossings if c.kind == ASK and c.way == "in"]


# -- the strategy and whole studies ------------------------------------------------------------------------------------

def test_the_strategys_parameters_are_part_of_the_question():
    assert SecureSum().mechanism == "laplace"
    one = SecureSum("protocol", 0.8, drop_out=0.2)
    assert declared(one) == ("sum", "laplace-protocol-tau800000-c0-drop200000", "sum")
    for make in (SecureSum, lambda: one, lambda: SecureSum("protocol", tau=0.7, colluders=3)):
        assert check_strategy(make) == []


@pytest.mark.parametrize("bad", [{"mode": "magic"}, {"tau": 0.8}, {"colluders": 1}, {"drop_out": 0.2},
                                 {"mode": "protocol", "tau": 0}, {"mode": "protocol", "colluders": 2},
                                 {"mode": "protocol", "drop_out": 1.0}], ids=str)
def test_parameters_that_do_not_fit_are_refused(bad):
    with pytest.raises(ValueError, match="SecureSum"):
        SecureSum(**bad)


def resilient():
    return SecureSum("protocol", tau=0.8, drop_out=0.2)


def strict():
    return SecureSum("protocol", drop_out=0.2)


def plan(folder, strategies=(SecureSum, resilient, strict), **more):
    return plan_from_objects(Planted(15), Sums(), Query(rounds=2), list(strategies), oracle=True, seeds=(0, 1),
                             engine=Engine(workers=0), folder=folder, **more)


def test_a_study_with_drop_outs_pays_the_same_epsilon_and_repeats_to_the_same_bytes(tmp_path):
    folder = play_plan(plan(tmp_path / "one", ledger=tmp_path / "ledger"))
    with open(folder / "metrics.csv", newline="") as file:
        rows = {(r["strategy"], r["seed"], r["round"], r["metric"]): float(r["value"]) for r in csv.DictReader(file)}
    for seed in "01":
        for number in "12":
            found = {name: [rows[name, seed, number, metric] for metric in ("answers", "refusals", "failures")]
                     for name in ("SecureSum", "resilient", "strict")}
            assert found == {"SecureSum": [15, 0, 0], "resilient": [12, 0, 3], "strict": [0, 0, 3]}
        assert rows["SecureSum", seed, "2", "epsilon_spent_max"] == rows["resilient", seed, "2", "epsilon_spent_max"] == 2
        assert rows["strict", seed, "2", "epsilon_spent_max"] == 0     # closed before anybody was charged
        assert ("strict", seed, "1", "mae") not in rows
    again = play_plan(plan(tmp_path / "two", ledger=tmp_path / "ledger"))
    assert (again / "metrics.csv").read_text() == (folder / "metrics.csv").read_text()


def test_the_wrong_trust_for_a_masked_sum_is_a_mistake_in_the_config(tmp_path):
    class Local(SecureSum):
        trust = "local"

    with pytest.raises((ConfigError, ValueError), match="mechanism"):
        play_plan(plan(tmp_path / "run", [lambda: Local("protocol")]))


def test_a_population_too_large_for_the_protocol_is_a_mistake_in_the_config(tmp_path):
    with pytest.raises(ConfigError, match=r'mode = "protocol" is for at most 1000 homes.*use mode = "ideal"'):
        plan_from_objects(Planted(1001), Sums(), Query(), [strict], folder=tmp_path / "run")
