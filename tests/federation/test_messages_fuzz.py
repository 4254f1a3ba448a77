"""Whatever crosses the wire, either way: a schema takes it whole, or raises ValueError; a home answers it or says a code.

FEDENERGY_FUZZ=N sets the number of examples of each test, with fresh randomness.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedenergy.box.block import Block
from fedenergy.box.ledger import Ledger
from fedenergy.box.negotiation import Bid, Terms
from fedenergy.box.policy import OFFER, Published
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.updates import UpdateSpec
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import masked_rounds, negotiation_rounds, records, shard_nodes, update_records
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.sum_protocol import SumProtocol
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM, Deposit, Envelope, Plain, Release, Share
from tests.federation.helpers import CELL, Sums, Window, boxes_of, local_grid, make_world, seal

EXAMPLES = int(os.environ.get("FEDENERGY_FUZZ", "30"))
quick = settings(max_examples=EXAMPLES, deadline=None, derandomize="FEDENERGY_FUZZ" not in os.environ, database=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
D = 2
NAMES = ["query", "arrays", "metrics", "envelope", "summary", "num-examples", "household", "query_id", "epsilon_micro",
         "status", "households", "refused", "failed", "board", "homes", "roster", "keys", "members", "letters",
         "survivors", "posted", "value", "terms", "bid", "binding", "payments", "epsilons", "need", "feedback", "kind",
         "values", "release", "tags", "tag", "window", "code", "price_micro", "world", "seed", "parties", "body",
         "digest", "x"]
TEXTS = ["h0", "h1", "h0\nh1", "refused", "accepted", "offer", "appliances", "../../etc", "", "é", "q" * 32]

numbers = st.integers(-2**63, 2**63 - 1) | st.sampled_from([0, 1, -1, 3, 10**6])
floats = st.floats() | st.sampled_from([0.0, 1.0, float("inf"), float("-inf"), float("nan"), 1e300])
texts = st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8"), max_size=8)
blobs = st.binary(max_size=40) | st.sampled_from([b"h0", b"h0\nh1", b"\xff", bytes(32)])
scalars = numbers | floats | texts | blobs | st.booleans()
values = scalars | st.lists(numbers, max_size=5) | st.lists(floats, max_size=5) | st.lists(texts, max_size=4) \
    | st.lists(blobs, max_size=4) | st.lists(st.booleans(), max_size=3)
arrays = st.builds(
    Array, st.sampled_from(["float64", "int64", "uint64", "float32", "object", "<f8", "x"]),
    st.lists(st.integers(0, 5) | st.just(10**12), max_size=3).map(tuple), st.sampled_from(["numpy.ndarray", "torch", ""]),
    st.binary(max_size=60) | st.sampled_from([b"\x93NUMPY", bytes(144)])) | st.builds(
    lambda dtype, size, fill: Array(np.full(size, fill, dtype)), st.sampled_from(["<f8", ">f8", "<i8", "<u8", "<f4", "?"]),
    st.sampled_from([(D,), (2, D), (0,), (), (D, 1), (1, D)]), st.sampled_from([0, 1, 64]))
configs = st.dictionaries(st.sampled_from(NAMES), values, max_size=6).map(ConfigRecord)
metrics = st.dictionaries(st.sampled_from(NAMES), numbers | floats | st.lists(numbers, max_size=3),
                          max_size=3).map(MetricRecord)
stores = st.dictionaries(st.sampled_from(NAMES), arrays, max_size=2).map(ArrayRecord)
contents = st.dictionaries(st.sampled_from(NAMES), configs | metrics | stores, max_size=4).map(RecordDict)


def copied(content: RecordDict) -> RecordDict:
    return RecordDict({name: record.copy() for name, record in content.items()})


def changed(good: list[RecordDict]):
    """One of some good messages with up to three things set, removed or put elsewhere."""
    def apply(start: int, edits) -> RecordDict:
        content = copied(good[start % len(good)])
        for action, where, name, value, record in edits:
            keys = sorted(content)
            if not keys or action == "put":
                content[name] = record
                continue
            key = keys[where % len(keys)]
            inner = content[key]
            fields = sorted(inner)
            if action == "drop":
                del content[key]
            elif action == "drop field" and fields:
                del inner[fields[where % len(fields)]]
            elif action == "set":
                field = fields[where % len(fields)] if fields and where % 3 else name
                try:
                    inner[field] = value
                except (TypeError, ValueError):  # a record that takes no such value
                    content[key] = ConfigRecord({**(dict(inner) if isinstance(inner, ConfigRecord) else {}), field: b"x"})
        return content

    edits = st.tuples(st.sampled_from(["set", "set", "drop", "drop field", "put"]), st.integers(0, 50),
                      st.sampled_from(NAMES), values | arrays, configs | metrics | stores)
    return st.builds(apply, st.integers(0, 9), st.lists(edits, max_size=3))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), Sums(clip=64.0), count=3)


def on_grid(query: SealedQuery, numbers=(3, -7)) -> np.ndarray:
    return np.array(numbers, np.float64) * query.grid


def envelopes(query: SealedQuery) -> list[Envelope]:
    kind = {LOCAL: Release, SUM: Share, CURATOR: Deposit, OPEN: Plain}[query.trust]
    values = {LOCAL: on_grid(query), SUM: np.array([1, 2**63], np.uint64), CURATOR: np.array([5, -9]),
              OPEN: np.array([[1.0, 2.0], [0.5, 2.0]])}[query.trust]
    return [kind("h0", query.id, None if query.trust == OPEN else query.epsilon_micro, values)]


@pytest.mark.parametrize("trust", [LOCAL, SUM, CURATOR, OPEN])
def test_answers(world, trust):
    query = seal(world, trust)
    good = [records.encode(one) for one in envelopes(query)]
    for content in good:
        assert np.array_equal(records.decode(content, query, "h0", D).values, envelopes(query)[0].values)

    @quick
    @given(changed(good) | contents)
    def check(content):
        try:
            found = records.decode(content, query, "h0", D)
        except ValueError:
            return
        assert (found.household, found.query_id) == ("h0", query.id)
        assert set(content) == {records.ARRAYS, records.METRICS, records.ENVELOPE}
        assert np.isfinite(found.values).all()
        if trust == LOCAL:
            assert np.array_equal(np.round(found.values / query.grid) * query.grid, found.values)
        if trust != OPEN:
            assert 0 < found.epsilon_micro <= query.epsilon_micro
    check()


@pytest.mark.parametrize("trust", [LOCAL, SUM, CURATOR, OPEN])
def test_blocks_of_shards(world, trust):
    query = seal(world, trust)
    shard = next(at for at, homes in enumerate(shard_nodes.shards_of(world)) if 0 in homes)
    one = envelopes(query)[0]
    block = Block(query.id, trust, ("h0",), np.array([one.epsilon_micro or 0]), one.values[None])
    good = [shard_nodes.encode(block, 0)]
    assert shard_nodes.decode(good[0], query, world, shard)[0].households == ("h0",)

    @quick
    @given(changed(good) | contents)
    def check(content):
        for read in (shard_nodes.decode, lambda *args: shard_nodes.counts(*args, {records.ENVELOPE})):
            try:
                found = read(content, query, world, shard)
            except ValueError:
                continue
            assert found[1] + found[2] + len(getattr(found[0], "households", found[0])) == 1
    check()


def test_queries(world):
    good = [RecordDict({records.QUERY: records.query_record(seal(world, trust), world=0, seed=1, parties=3)})
            for trust in (LOCAL, SUM)]

    @quick
    @given(changed(good) | contents)
    def check(content):
        try:
            query, extras = records.read_query(content)
        except ValueError:
            return
        wire = {name: value for name, value in content[records.QUERY].items() if name not in records.EXTRAS}
        assert query.to_wire() == wire
        assert min(extras.values()) >= 0
    check()


def test_boards(world):
    query = Query("appliances", 1.0).sealed(
        task=world.task.identity(), population=world.population.identity(), window=Window((0, 49)), clip=64.0,
        grid=NoiseGrid(64.0).step, trust=SUM, mechanism=SumProtocol(0.8).mechanism, cell=CELL, round=0,
        homes=world.population.ids)
    keys, letters = bytes(masked_rounds.KEYS_BYTES), bytes(masked_rounds.COMMITMENT_BYTES)
    good = [RecordDict({masked_rounds.BOARD: board.record()}) for board in (
        masked_rounds.Board(("h0", "h1", "h2")),
        masked_rounds.Board(("h0", "h1", "h2"), {"h0": keys, "h1": keys, "h2": keys}, {"h0": letters}, ("h0", "h1")))]

    @quick
    @given(changed(good) | contents)
    def check(content):
        try:
            board = masked_rounds.Board.read(content)
            session = masked_rounds.session_of(query, board)
            session.binding(board.roster, board.posted)
        except ValueError:
            return
        assert masked_rounds.Board.read(RecordDict({masked_rounds.BOARD: board.record()})) == board
    check()


def test_terms_bids_and_bindings(world):
    query = seal(world, LOCAL)
    said = Terms(0.5, (0.1, 0.2), 10, 500_000, "appliances", (Published((1.0, 2.0), 0.5, 3, 1),))
    terms = [RecordDict({negotiation_rounds.TERMS: record}) for _, record in
             negotiation_rounds.terms_records({"h0": said, "h1": replace(said, payment_micro=5), "h2": Terms()})]
    bids = [negotiation_rounds.encode_bid(Bid("h0", OFFER, 1000, "appliances", "full", 7, (0, 4)), query.id, bytes(32)),
            negotiation_rounds.encode_bid(Bid("h0", "refuse", price_micro=3), query.id)]
    bound = [RecordDict({negotiation_rounds.BINDING: record}) for _, record in
             negotiation_rounds.binding_records({"h0": (1000, 5, bytes(32)), "h1": (7, 0, bytes(32))})]
    assert negotiation_rounds.read_terms(terms[0])["h0"] == said
    assert negotiation_rounds.decode_bid(bids[0], query, "h0")[0].epsilon_micro == 1000
    assert negotiation_rounds.read_binding(bound[0])["h1"] == (7, 0, bytes(32))

    @quick
    @given(changed(terms + bids + bound) | contents)
    def check(content):
        for read in (negotiation_rounds.read_terms, negotiation_rounds.read_binding,
                     lambda content: negotiation_rounds.decode_bid(content, query, "h0")):
            try:
                found = read(content)
            except ValueError:
                continue
            if isinstance(found, tuple) and found[0].epsilon_micro:
                assert 0 < found[0].epsilon_micro <= query.epsilon_micro
    check()


SPEC = UpdateSpec({"w": ("<f8", (D,)), "b": ("<f4", None)}, ("loss",))


def test_updates(world):
    query = seal(world, LOCAL)
    good = [RecordDict({
        records.ARRAYS: ArrayRecord({"w": Array(np.ones(D)), "b": Array(np.ones(3, "<f4"))}),
        records.METRICS: MetricRecord({"num-examples": 1, "loss": 0.5}),
        records.ENVELOPE: ConfigRecord({"household": "h0", "query_id": query.id})})]
    assert update_records.decode_update(good[0], query, "h0", SPEC).metrics == {"loss": 0.5}

    @quick
    @given(changed(good) | contents)
    def check(content):
        try:
            found = update_records.decode_update(content, query, "h0", SPEC)
        except ValueError:
            return
        assert list(found.arrays) == ["w", "b"]
        assert all(np.isfinite(array).all() for array in found.arrays.values())
    check()


KINDS = ("train", "evaluate", "query.appliances", "query.accept", "query.negotiate", "query.shard", "query.shard_accept",
         "query.keys", "query.secrets", "query.unmask")


def test_homes_answer_hostile_messages_with_a_refusal_or_a_code(world):
    """No text leaves, the home goes on, and what is no sealed query of a kind that homes know costs nothing."""
    sealed = seal(world, LOCAL)
    good = [RecordDict({records.QUERY: records.query_record(sealed, world=at, seed=1)}) for at in (0, 7)]
    grid = local_grid(world, inside=world.ledger / "inside")

    @settings(quick, max_examples=EXAMPLES * 2)
    @given(changed(good) | contents, st.sampled_from(KINDS))
    def check(content, kind):
        try:
            query = records.read_query(content)[0]
        except ValueError:
            query = None
        with Ledger(world.ledger) as ledger:
            before = {row.query_id for row in ledger.rows()}
        reply, = grid.send_and_receive([flower.instruction(content, flower.node_id(0), kind, "1")])
        with Ledger(world.ledger) as ledger:
            charged = {row.query_id for row in ledger.rows()} - before
        assert charged <= ({query.id} if query else set())
        if reply.has_error():
            assert (reply.error.code, reply.error.reason) == (flower.CLIENT_RAISED, None)
        else:
            assert query is not None
            assert set(reply.content) <= {records.ARRAYS, records.METRICS, records.ENVELOPE, negotiation_rounds.BID,
                                          masked_rounds.POSTED}
    check()
    assert len(boxes_of(world)) == 3
