"""TrustGrid: a strategy sees Releases, Plains or one ZoneRelease, once per query id; hostile messages do nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedMedian

from fedenergy.box.box import open_ledger
from fedenergy.box.policy import Offer, Refuse
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.zone_store import ZoneConflict, ZoneStore
from fedenergy.config import Engine
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.client_app import ACCEPT
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.study import play_plan
from fedenergy.federation.trust_grid import Crossings, Exchange, TrustGrid
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.privacy.trust import TRUST_MODES
from strategies.secure_sum import SecureSum
from strategies.zonal_sum import ZonalSum
from tests.federation.helpers import (
    FITTED,
    Known,
    Planted,
    Says,
    Sums,
    Tap,
    local_grid,
    make_world,
    seal,
    to_homes,
    wire,
)

CLIP, STEP, BOUND = 4.0, 2.0**-18, 2**20
S = ((1.5, -0.25), (-3.0, 2.0), (0.0, 0.5), (1.0, 1.0))
K = Known(CLIP, values=S)
Z = NoiseGrid(CLIP).encode(np.array(S))
SEED = 3


@pytest.fixture(autouse=True)
def fresh():
    FITTED.clear()
    yield
    open_ledger.cache_clear()


class Side:
    """The operator's side of one world: a tapped grid, a zone store, and exchanges of one round each."""

    def __init__(self, world, change=None, inside=None) -> None:
        self.world, self.tap = world, Tap(local_grid(world, inside=inside), change)
        self.zones = ZoneStore(world.ledger)
        self.crossings = Crossings()
        self.round()

    def round(self) -> Exchange:
        """A new round: nothing is remembered but what is stored."""
        self.exchange = Exchange(self.tap, self.world, 0, SEED, self.zones, self.crossings)
        return self.exchange

    def grid(self, trust: str, **query) -> TrustGrid:
        return TrustGrid(self.exchange, trust, lambda homes: seal(self.world, trust, homes, **query))

    def spent(self) -> list[int]:
        return [open_ledger(self.world.ledger).spent(name) for name in self.world.population.ids]


@pytest.fixture
def side(tmp_path):
    with_zones = []

    def make(task=K, count=4, change=None, inside=None, **more) -> Side:
        made = Side(make_world(tmp_path / f"world{len(with_zones)}", task, count, **more), change, inside)
        with_zones.append(made)
        return made

    yield make
    for made in with_zones:
        made.zones.close()


def summaries(replies: Sequence[Message]) -> list[list[float]]:
    return [reply.content[records.ARRAYS][records.SUMMARY].numpy().tolist() for reply in replies]


def names(replies: Sequence[Message]) -> list[str]:
    return [reply.content[records.ENVELOPE]["household"] for reply in replies]


def only(index: int, make):
    """A change that puts another reply in the place of one home's."""
    def change(message: Message, reply: Message) -> Message:
        if flower.node_index(message.metadata.dst_node_id) != index or message.metadata.message_type != "train":
            return reply
        return flower.reply(message, make(reply.content))
    return change


# -- what a strategy sees ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_local_gives_every_release_sorted_by_household(order, side):
    one = side()
    grid = one.grid("local")
    replies = grid.send_and_receive(to_homes(order))
    assert isinstance(replies, list)
    assert names(replies) == ["h0", "h1", "h2", "h3"] == list(grid.answered)
    for index, reply in enumerate(replies):
        source = SimulationNoise(SEED).source(f"h{index}", grid.query.id)
        expected = Laplace(CLIP).release(np.array(S[index]), source, 1_000_000)
        assert summaries([reply]) == [expected.tolist()]
        assert set(reply.content) == {records.ARRAYS, records.METRICS, records.ENVELOPE}
        assert dict(reply.content[records.METRICS]) == {"num-examples": 1}
        assert dict(reply.content[records.ENVELOPE]) == {"household": f"h{index}", "query_id": grid.query.id,
                                                        "epsilon_micro": 1_000_000}
    assert (grid.asked, grid.refused, grid.failed) == (4, 0, 0)


def test_open_gives_every_plain(side):
    one = side(open=True)
    replies = one.grid("open").send_and_receive(to_homes(range(4)))
    assert names(replies) == ["h0", "h1", "h2", "h3"]
    assert [values[1] for values in summaries(replies)] == [list(s) for s in S]
    assert [values[0] for values in summaries(replies)] == (Z * STEP).tolist()


@pytest.mark.parametrize("trust", ["sum", "curator"])
def test_a_zone_gives_one_release_and_never_a_share_or_deposit(trust, side):
    one = side()
    replies = one.grid(trust).send_and_receive(to_homes(range(4)))
    assert names(replies) == [records.ZONE]
    fields = dict(replies[0].content[records.ENVELOPE])
    assert fields == {"household": "*zone", "query_id": fields["query_id"], "epsilon_micro": 1_000_000, "answers": 4}
    values = replies[0].content[records.ARRAYS][records.SUMMARY].numpy()
    assert values.dtype == np.float64
    assert values.shape == (2,)
    assert (np.remainder(values, STEP) == 0).all()
    own = {c.content[records.ARRAYS][records.SUMMARY].numpy().tobytes() for c in one.tap.replies("envelope")}
    assert len(own) == 4
    assert not any(part in wire(replies[0].content) for part in own)


def test_the_curators_answer_is_the_sum_of_z_and_one_noise_of_the_zones_stream(side):
    one = side()
    grid = one.grid("curator")
    values, = summaries(grid.send_and_receive(to_homes(range(4))))
    noise = Laplace(CLIP).noise(SimulationNoise(SEED).source("*zone", grid.query.id), 1_000_000, 2)
    assert values == ((Z.sum(axis=0) + noise) * STEP).tolist()


def test_a_smaller_grant_enters_a_zones_sum_clipped_to_it(side):
    one = side(policy=Says(lambda case: Offer(case.query.epsilon / 2, "half")))
    grid = one.grid("curator")
    values, = summaries(grid.send_and_receive(to_homes(range(4))))
    noise = Laplace(CLIP).noise(SimulationNoise(SEED).source("*zone", grid.query.id), 1_000_000, 2)
    total = NoiseGrid(CLIP).encode(np.array(S), BOUND // 2).sum(axis=0)
    assert values == ((total + noise) * STEP).tolist()
    assert one.spent() == [500_000] * 4


@pytest.mark.parametrize("trust", TRUST_MODES)
def test_refusals_and_errors_are_dropped_and_counted(trust, side):
    def offer(case):
        return Refuse("no") if case.agreement.household == "h1" else Offer(case.query.epsilon, "as asked")

    def fail(content):
        return flower.CLIENT_RAISED

    one = side(policy=Says(offer), open=True, change=only(2, fail))
    grid = one.grid(trust)
    replies = grid.send_and_receive(to_homes(range(4)))
    if trust == "open":  # no policy is asked about the oracle's world
        assert (names(replies), grid.refused, grid.failed) == (["h0", "h1", "h3"], 0, 1)
        return
    assert (grid.refused, grid.failed, grid.asked) == (1, 1, 4)
    assert (one.crossings.refused[trust], one.crossings.errors[trust]) == (1, 1)
    if trust == "local":
        assert names(replies) == ["h0", "h3"] == list(grid.answered)
    elif trust == "curator":
        assert grid.answered == ("h0", "h3")
        assert replies[0].content[records.ENVELOPE]["answers"] == 2
    else:
        assert (replies, grid.answered) == ([], ())  # a share is missing: the sum stays closed


def test_nobody_who_answers_is_no_reply_at_all(side):
    one = side(policy=Says(Refuse("no")))
    for trust in ("local", "sum", "curator"):
        grid = one.grid(trust)
        assert grid.send_and_receive(to_homes(range(4))) == []
        assert (grid.refused, grid.failed, grid.answered) == (4, 0, ())
    assert FITTED == []
    assert one.spent() == [0] * 4
    assert not (one.world.ledger / "zone.sqlite").exists()


def test_node_ids_are_household_indices(side):
    assert list(side().grid("local").get_node_ids()) == [2, 3, 4, 5]


def test_only_whole_rounds_pass(side):
    grid = side().grid("local")
    with pytest.raises(NotImplementedError):
        grid.push_messages(to_homes([0]))
    with pytest.raises(NotImplementedError):
        grid.pull_messages(["m1"])


def test_two_messages_to_one_home_are_refused(side):
    one = side()
    for trust in ("local", "sum", "curator"):
        with pytest.raises(ValueError, match="two messages to one home"):
            one.grid(trust).send_and_receive(to_homes([0, 1, 0]))
    assert one.tap.crossings == []
    assert one.grid("local").send_and_receive([]) == []


# -- one exchange per query id -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("trust", TRUST_MODES)
def test_two_strategies_of_a_cell_cause_one_exchange(trust, side):
    one = side(open=True)
    first = one.grid(trust).send_and_receive(to_homes(range(4)))
    crossed = len(one.tap.crossings)
    second = one.grid(trust).send_and_receive(to_homes(range(4)))
    assert [wire(reply.content) for reply in first] == [wire(reply.content) for reply in second]
    assert len(one.tap.crossings) == crossed
    assert one.tap.asked("train") == [0, 1, 2, 3]


def test_a_strategy_that_asks_more_homes_asks_only_those_not_asked_before(side):
    one = side()
    one.grid("local").send_and_receive(to_homes([0, 1]))
    replies = one.grid("local").send_and_receive(to_homes([0, 1, 2]))
    assert names(replies) == ["h0", "h1", "h2"]
    assert one.tap.asked("train") == [0, 1, 2]
    assert names(one.grid("local").send_and_receive(to_homes([3, 1]))) == ["h1", "h3"]


def test_a_home_that_failed_is_not_asked_again_in_the_round(side):
    one = side(change=only(1, lambda content: flower.NODE_UNAVAILABLE))
    for _ in range(2):
        grid = one.grid("local")
        assert names(grid.send_and_receive(to_homes(range(4)))) == ["h0", "h2", "h3"]
        assert grid.failed == 1
    assert one.tap.asked("train") == [0, 1, 2, 3]


@pytest.mark.parametrize("trust", TRUST_MODES)
def test_what_a_strategy_does_to_its_replies_reaches_no_other(trust, side):
    one = side(open=True)
    clean = [wire(reply.content) for reply in one.grid(trust).send_and_receive(to_homes(range(4)))]
    spoilt = one.grid(trust).send_and_receive(to_homes(range(4)))
    for reply in spoilt:
        reply.content[records.METRICS]["num-examples"] = 10**6
        reply.content[records.ENVELOPE]["household"] = "nobody"
        reply.content[records.ENVELOPE]["epsilon_micro"] = 1
        array = reply.content[records.ARRAYS][records.SUMMARY]
        array.data = b"\x00" * len(array.data)
        reply.content[records.ARRAYS].clear()
        reply.content["more"] = ConfigRecord({"x": 1})
    spoilt.clear()
    again = one.grid(trust).send_and_receive(to_homes(range(4)))
    assert [wire(reply.content) for reply in again] == clean


def test_stock_fedmedian_twice_gives_the_same(tmp_path):
    """Stock strategies take records out of their replies: the second must not find them empty."""
    def median():
        return FedMedian(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)

    class Thief(ZonalSum):
        def aggregate_train(self, server_round, replies):
            for reply in replies:
                reply.content.clear()
            replies.clear()
            return None, None

    def first():
        return median()

    def second():
        return median()

    folder = play_plan(plan_from_objects(Planted(5), Sums(), Query(), [first, Thief, second, SecureSum], oracle=False,
                                         engine=Engine(workers=0), folder=tmp_path / "run"))
    state = (folder / "checkpoints" / "all-seed0.json").read_text()
    arrays = json.loads(state)["arrays"]
    assert arrays["first"] == arrays["second"]
    assert "Thief" not in arrays
    assert arrays["SecureSum"]


# -- zones: one opening per query id, over one set of homes ------------------------------------------------------------

@pytest.mark.parametrize("trust", ["sum", "curator"])
def test_a_stored_zone_answer_is_found_before_any_home_is_asked(trust, side):
    one = side()
    first = one.grid(trust).send_and_receive(to_homes(range(4)))
    one.tap.crossings.clear()
    one.round()
    grid = one.grid(trust)
    again = grid.send_and_receive(to_homes(range(4)))
    assert one.tap.crossings == []
    assert wire(again[0].content) == wire(first[0].content)
    assert (grid.answered, grid.refused, grid.failed) == (("h0", "h1", "h2", "h3"), 0, 0)
    assert one.spent() == [1_000_000] * 4


@pytest.mark.parametrize("trust", ["sum", "curator"])
def test_differencing_over_60_and_59_homes_opens_one_id_once_and_charges_anew(trust, side):
    """The same question over 59 of 60 homes is another id with noise of its own: the difference is not h59's z."""
    task = Known(CLIP, values=tuple((1.0 + index / 64, 0.5) for index in range(60)))
    one = side(task, 60, cap=2.0)
    everyone = one.grid(trust)
    all60, = summaries(everyone.send_and_receive(to_homes(range(60))))
    but_one = one.grid(trust)
    of59, = summaries(but_one.send_and_receive(to_homes(range(59))))
    assert everyone.query.id != but_one.query.id
    assert one.spent() == [2_000_000] * 59 + [1_000_000]
    z59 = NoiseGrid(CLIP).encode(np.array(task.values[59])) * STEP
    assert not np.isclose(np.subtract(all60, of59), z59).any()
    one.round()
    assert summaries(one.grid(trust).send_and_receive(to_homes(range(60)))) == [all60]
    refused = one.grid(trust)  # the cap of a third set is the homes' own
    assert refused.send_and_receive(to_homes(range(58))) == []
    assert refused.refused == 58
    assert one.spent() == [2_000_000] * 59 + [1_000_000]


@pytest.mark.parametrize("trust", ["sum", "curator"])
def test_one_id_is_never_opened_over_a_second_set(trust, side):
    """A hostile operator keeps the id of 4 homes and leaves one out: the stored answer, or nothing."""
    one = side()
    first = one.grid(trust).send_and_receive(to_homes(range(4)))
    one.round()
    everyone = seal(one.world, trust)
    forged = TrustGrid(one.exchange, trust, lambda homes: everyone)
    again = forged.send_and_receive(to_homes(range(3)))
    assert wire(again[0].content) == wire(first[0].content)
    with pytest.raises(ZoneConflict):
        one.zones.put_once(everyone.id, ("h0", "h1", "h2"), lambda: bytes(16), trust)


@pytest.mark.parametrize("trust", ["sum", "curator"])
def test_a_late_envelope_opens_nothing(trust, side):
    """One home's answer times out; asked in the next round with the same id it comes, too late."""
    late = {"late": True}

    def change(message, reply):
        out = flower.node_index(message.metadata.dst_node_id) == 3 and message.metadata.message_type == "train"
        return flower.reply(message, flower.NODE_UNAVAILABLE) if out and late["late"] else reply

    one = side(change=change)
    first = one.grid(trust).send_and_receive(to_homes(range(4)))
    late["late"] = False
    one.round()
    second = one.grid(trust).send_and_receive(to_homes(range(4)))
    assert one.spent() == [1_000_000] * 4
    if trust == "curator":  # opened over three homes, for ever
        assert wire(first[0].content) == wire(second[0].content)
        assert second[0].content[records.ENVELOPE]["answers"] == 3
    else:  # closed the first time; the same four shares, stored, make the one opening
        assert first == []
        assert second[0].content[records.ENVELOPE]["answers"] == 4


def test_a_sum_with_a_missing_share_stays_closed_and_refunds_nothing(side):
    one = side(change=only(2, lambda content: flower.NODE_UNAVAILABLE))
    grid = one.grid("sum")
    assert grid.send_and_receive(to_homes(range(4))) == []
    assert (grid.answered, grid.refused, grid.failed) == ((), 0, 1)
    assert one.spent() == [1_000_000] * 4
    assert one.zones.get(grid.query.id) is None
    another = one.grid("sum")  # a second strategy of the cell finds it as closed, and asks no home for a share again
    assert another.send_and_receive(to_homes(range(4))) == []
    assert one.tap.asked("train") == [0, 1, 2, 3]


def test_homes_that_do_not_accept_take_no_part_and_pay_nothing(side):
    def offer(case):
        return Refuse("no") if case.agreement.household == "h1" else Offer(case.query.epsilon, "as asked")

    one = side(policy=Says(offer))
    grid = one.grid("sum")
    replies = grid.send_and_receive(to_homes(range(4)))
    assert replies[0].content[records.ENVELOPE]["answers"] == 3
    assert (grid.answered, grid.refused) == (("h0", "h2", "h3"), 1)
    assert one.spent() == [1_000_000, 0, 1_000_000, 1_000_000]
    parties = {c.content[records.QUERY]["parties"] for c in one.tap.crossings if c.way == "out" and c.kind == "train"}
    assert parties == {3}  # n is fixed before any share is drawn


@pytest.mark.parametrize("same_round", [True, False])
def test_shares_drawn_for_four_homes_are_never_opened_over_three(same_round, side):
    """h3 accepts, then drops out; asked again it does not accept. Its noise share is missing from the others' sum."""
    gone = {"train"}

    def change(message, reply):
        out = flower.node_index(message.metadata.dst_node_id) == 3 and message.metadata.message_type in gone
        return flower.reply(message, flower.NODE_UNAVAILABLE) if out else reply

    one = side(change=change)
    assert one.grid("sum").send_and_receive(to_homes(range(4))) == []
    gone.add(f"query.{ACCEPT}")
    if not same_round:
        one.round()
    assert one.grid("sum").send_and_receive(to_homes(range(4))) == []


# -- hostile replies ---------------------------------------------------------------------------------------------------

def answered(content: RecordDict) -> tuple[np.ndarray, dict]:
    return content[records.ARRAYS][records.SUMMARY].numpy(), dict(content[records.ENVELOPE])


def with_values(change):
    return lambda content: records.answer_records(change(answered(content)[0]), answered(content)[1])


def with_fields(**fields):
    def make(content):
        values, own = answered(content)
        own |= fields
        return records.answer_records(values, {key: value for key, value in own.items() if value is not None})
    return make


def with_records(**more):
    return lambda content: RecordDict({**content, **more})


def without(name):
    return lambda content: RecordDict({key: value for key, value in content.items() if key != name})


def bad_array(**fields):
    def make(content):
        array = content[records.ARRAYS][records.SUMMARY]
        own = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
        made = Array(**(own | fields))
        return RecordDict({**content, records.ARRAYS: ArrayRecord({records.SUMMARY: made})})
    return make


def claims_a_huge_shape(content):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    data = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117) + b"\n" + bytes(16)
    return bad_array(data=data)(content)


HOSTILE = {
    "empty": lambda content: RecordDict(),
    "no arrays": without(records.ARRAYS),
    "no metrics": without(records.METRICS),
    "no envelope": without(records.ENVELOPE),
    "an extra record": with_records(more=ConfigRecord({"reading": 1.5})),
    "an extra array record": with_records(more=ArrayRecord({"x": Array(np.zeros(2))})),
    "two arrays": with_records(arrays=ArrayRecord({"summary": Array(np.zeros(2)), "norm": Array(np.zeros(1))})),
    "another array": with_records(arrays=ArrayRecord({"readings": Array(np.zeros(2))})),
    "a weight": with_records(metrics=MetricRecord({"num-examples": 744})),
    "an extra metric": with_records(metrics=MetricRecord({"num-examples": 1, "r2": 0.5})),
    "an extra field": with_fields(rows=744),
    "no epsilon": with_fields(epsilon_micro=None),
    "another household": with_fields(household="h0"),
    "the zone's name": with_fields(household="*zone"),
    "another query": with_fields(query_id="0" * 32),
    "a status": with_fields(status="accepted"),
    "too long": with_values(lambda v: np.concatenate([v, v])),
    "a megabyte": with_values(lambda v: np.zeros(131_072, v.dtype)),
    "too short": with_values(lambda v: v[:1]),
    "one more axis": with_values(lambda v: v[None]),
    "a scalar": with_values(lambda v: np.array(v[0])),
    "float32": with_values(lambda v: v.astype(np.float32)),
    "int32": with_values(lambda v: v.astype(np.int32)),
    "the other byte order": with_values(lambda v: v.astype(v.dtype.newbyteorder(">"))),
    "text": with_values(lambda v: np.array(["1.5", "2.5"])),
    "complex": with_values(lambda v: v.astype(complex)),
    "no numpy file": bad_array(data=b"\x80\x04K\x01."),
    "a truncated file": bad_array(data=b"\x93NUMPY\x01\x00"),
    "objects": bad_array(data=b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }"
                         .ljust(117) + b"\n" + b"\x80\x04]."),
    "epsilon below 0": with_fields(epsilon_micro=-1),
}
FLOATS = {
    "off the grid": with_values(lambda v: v + STEP / 3),
    "NaN": with_values(lambda v: v * np.nan),
    "infinite": with_values(lambda v: v + np.inf),
    "integers": with_values(lambda v: v.astype(np.int64)),
}
OTHER_TYPES = {
    "epsilon 0": with_fields(epsilon_micro=0),
    "epsilon 0.5": with_fields(epsilon_micro=0.5),
    "more epsilon than asked": with_fields(epsilon_micro=10**9),
    "epsilon as text": with_fields(epsilon_micro="1"),
    "metrics in a ConfigRecord": with_records(metrics=ConfigRecord({"num-examples": 1})),
    "arrays in a ConfigRecord": with_records(arrays=ConfigRecord({"summary": 1.5})),
    "a huge shape": claims_a_huge_shape,
    "another serialisation": bad_array(stype="pickle"),
}


def reply_of(one: Side, trust: str) -> tuple[RecordDict, SealedQuery]:
    query = seal(one.world, trust)
    record = records.query_record(query, world=0, seed=SEED, parties=4)
    reply, = one.tap.send_and_receive(to_homes([1], content=RecordDict({records.QUERY: record})))
    return reply.content, query


@pytest.mark.parametrize("trust", TRUST_MODES)
def test_decode_takes_a_homes_own_answer_and_refuses_everything_else(trust, side):
    one = side(open=True)
    content, query = reply_of(one, trust)
    envelope = records.decode(content, query, "h1", 2)
    assert (envelope.household, envelope.query_id, envelope.trust) == ("h1", query.id, trust)
    assert wire(records.encode(envelope)) == wire(content)
    hostile = HOSTILE | (FLOATS if trust == "local" else {})
    if trust == "open":
        hostile = {k: v for k, v in hostile.items() if k not in ("no epsilon", "epsilon below 0")}
        hostile |= {"an epsilon": with_fields(epsilon_micro=1), "NaN": FLOATS["NaN"], "infinite": FLOATS["infinite"]}
    for name, make in hostile.items():
        changed = make(RecordDict({key: record.copy() for key, record in content.items()}))
        with pytest.raises(ValueError) as caught:
            records.decode(changed, query, "h1", 2)
        for value in (*envelope.values.ravel().tolist(), "744"):
            assert str(value) not in str(caught.value) or value in (0.0, 1.0), name


@pytest.mark.parametrize("trust", TRUST_MODES)
def test_an_envelope_of_another_trust_mode_is_refused(trust, side):
    one = side(open=True)
    content, query = reply_of(one, trust)
    for other in set(TRUST_MODES) - {trust}:
        foreign, foreign_query = reply_of(one, other)
        with pytest.raises(ValueError):
            records.decode(foreign, query, "h1", 2)
        fields = {key: value for key, value in content[records.ENVELOPE].items()}
        with pytest.raises(ValueError):  # its values under the right names
            records.decode(records.answer_records(answered(foreign)[0], fields), query, "h1", 2)
        with pytest.raises(ValueError):
            records.decode(content, foreign_query, "h1", 2)


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_decode_refuses_other_types(name, side):
    make = OTHER_TYPES[name]
    content, query = reply_of(side(), "local")
    with pytest.raises(ValueError):
        records.decode(make(content), query, "h1", 2)


@pytest.mark.parametrize("values", [(BOUND + 1, 0), (BOUND // 2 + 1, -BOUND // 2), (2**62, 0),
                                    (2**62, 2**62),
                                    (-2**63, 0),
                                    (2**63 - 1, 2**63 - 1)])
def test_a_deposit_beyond_the_bound_is_a_failure(values, side):
    """Else one home takes over the zone's sum."""
    one = side(change=only(1, with_values(lambda v: np.array(values))))
    grid = one.grid("curator")
    grid.send_and_receive(to_homes(range(4)))
    assert (grid.answered, grid.failed) == (("h0", "h2", "h3"), 1)


OTHER_ERRORS = ("arrays in a ConfigRecord", "epsilon as text", "a huge shape", "another serialisation")


@pytest.mark.parametrize("name", OTHER_ERRORS)
def test_a_reply_of_the_wrong_types_is_that_homes_failure_alone(name, side):
    grid = side(change=only(1, OTHER_TYPES[name])).grid("local")
    grid.send_and_receive(to_homes(range(4)))
    assert (grid.answered, grid.failed) == (("h0", "h2", "h3"), 1)


@pytest.mark.parametrize("trust", ["local", "curator"])
def test_a_malformed_reply_is_that_homes_failure_alone(trust, side):
    one = side(change=only(1, HOSTILE["an extra record"]))
    grid = one.grid(trust)
    replies = grid.send_and_receive(to_homes(range(4)))
    assert (grid.answered, grid.failed) == (("h0", "h2", "h3"), 1)
    assert len(replies) == (3 if trust == "local" else 1)


def test_a_home_that_answers_for_another_is_not_heard(side):
    """Home 0 answers with home 1's envelope: it must not be counted twice."""
    one = side()
    stolen, _ = reply_of(one, "local")
    one.tap.change = only(0, lambda content: stolen)
    grid = one.grid("local")
    assert names(grid.send_and_receive(to_homes(range(4)))) == ["h1", "h2", "h3"]
    assert grid.failed == 1


def test_an_acceptance_with_data_attached_is_not_passed_on(side):
    def change(message, reply):
        if message.metadata.message_type != f"query.{ACCEPT}":
            return reply
        return flower.reply(message, RecordDict({**reply.content, "arrays": ArrayRecord({"x": Array(np.ones(99))})}))

    one = side(change=change)
    replies = one.grid("sum").send_and_receive(to_homes(range(4)))
    assert set(replies[0].content) == {records.ARRAYS, records.METRICS, records.ENVELOPE}
    assert replies[0].content[records.ARRAYS][records.SUMMARY].numpy().shape == (2,)


# -- hostile queries ---------------------------------------------------------------------------------------------------

def ask_homes(one: Side, content: RecordDict, kind: str = "train") -> list[Message]:
    return one.tap.send_and_receive(to_homes(range(4), kind, content))


@pytest.mark.parametrize("kind", ["train", "query.appliances", "query.accept", "query.windows", "evaluate",
                                  "query.other"])
def test_messages_without_a_query_record_are_an_error_without_text(kind, side):
    one = side()
    for record in ({}, {"config": ConfigRecord({"lr": 0.1})}, {records.QUERY: MetricRecord({"world": 0})},
                   {records.QUERY: ArrayRecord()}):
        content = RecordDict(record)
        replies = ask_homes(one, content, kind)
        assert [reply.error.code for reply in replies] == [flower.CLIENT_RAISED] * 4
        assert {reply.error.reason for reply in replies} == {None}
    assert FITTED == []
    assert one.spent() == [0] * 4


def forge(query: SealedQuery, **changes) -> RecordDict:
    record = dict(records.query_record(query, world=0, seed=SEED, parties=4)) | changes
    return RecordDict({records.QUERY: ConfigRecord({k: v for k, v in record.items() if v is not None})})


def test_forged_query_records_are_refused(side):
    one = side()
    query = seal(one.world, "local")
    forged = {
        "another cell": {"body": query.text.replace("ab" * 16, "cd" * 16)},
        "another trust": {"body": query.text.replace('"trust":"local"', '"trust":"open"')},
        "another clip": {"body": query.text.replace('"clip":"4"', '"clip":"400"')},
        "a huge body": {"body": query.text.replace('"use"', '"x":"' + "y" * 100_000 + '","use"')},
        "a deep body": {"body": "[" * 50_000},
        "a repeated key": {"body": query.text.replace('"cell"', '"cell":"' + "ab" * 16 + '","cell"', 1)},
        "a spelling": {"body": query.text.replace(":", ": ", 1)},
        "no body": {"body": ""}, "a body of bytes": {"body": query.text.encode()}, "no body at all": {"body": None},
        "another id": {"query_id": "0" * 32}, "no id": {"query_id": None},
        "a long id": {"query_id": query.id + "\n"},
        "epsilon 0": {"epsilon_micro": 0}, "epsilon below 0": {"epsilon_micro": -1},
        "a float epsilon": {"epsilon_micro": 1e6}, "a text epsilon": {"epsilon_micro": "1000000"},
        "a vast epsilon": {"epsilon_micro": 2**62}, "no epsilon": {"epsilon_micro": None},
        "a boolean epsilon": {"epsilon_micro": True},
        "another world": {"world": 7}, "a world below 0": {"world": -1}, "no world": {"world": None},
        "a float seed": {"seed": 1.0}, "parties below 0": {"parties": -1}, "homes below 0": {"homes": -1},
        "an unknown key": {"debug": 1},
    }
    for name, changes in forged.items():
        replies = ask_homes(one, forge(query, **changes))
        assert [(r.has_error() and r.error.code, r.has_error() and r.error.reason) for r in replies] \
            == [(flower.CLIENT_RAISED, None)] * 4, name
    assert FITTED == []
    assert one.spent() == [0] * 4
    assert {c.status for c in one.tap.replies()} == {"error"}


def test_a_query_that_the_agreement_does_not_allow_is_one_word(side, tmp_path):
    one = side(trust=("local",), inside=tmp_path / "inside")
    for query in (seal(one.world, "open"), seal(one.world, "sum"), seal(one.world, "local", querier="somebody")):
        for reply in ask_homes(one, forge(query)):
            assert set(reply.content) == {records.ENVELOPE}
            fields = dict(reply.content[records.ENVELOPE])
            assert fields.pop("household") in one.world.population.ids
            assert fields == {"query_id": query.id, "status": "refused"}
    assert FITTED == []
    assert one.spent() == [0] * 4


def test_every_refusal_looks_the_same_from_outside(side, tmp_path):
    """Broken policy, no budget, not agreed: the same bytes but for the id of the query."""
    seen = set()
    for terms in ({"policy": Says(Refuse("no"))}, {"policy": Says(ValueError("reading 3.14159"))}, {"cap": 0.5},
                  {"expires": 1}, {"purposes": ("diagnosis",)}):
        one = side(**terms)
        query = seal(one.world, "local")
        seen.add(wire(ask_homes(one, forge(query))[0].content))
    assert len(seen) == 1


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
def test_another_epsilon_under_the_same_id_is_refused(trust, side):
    one = side()
    query = seal(one.world, trust, epsilon=0.5)
    honest = ask_homes(one, forge(query))
    assert all(reply.has_content() for reply in honest)
    for epsilon_micro in (100_000, 5_000_000):
        for reply in ask_homes(one, forge(query, epsilon_micro=epsilon_micro)):
            assert reply.has_error() or records.status_of(reply.content) == "refused"


def test_a_number_of_parties_beyond_the_homes_asked_is_refused(side):
    one = side()
    for reply in ask_homes(one, forge(seal(one.world, "sum"), parties=10**6)):
        assert reply.has_error() or records.status_of(reply.content) == "refused"


def test_a_strategys_own_query_record_is_replaced(side):
    """A strategy may put what it likes into its messages: the homes answer TrustGrid's query."""
    one = side(open=True)
    smuggled = forge(seal(one.world, "open"))
    grid = one.grid("local")
    replies = grid.send_and_receive(to_homes(range(4), content=smuggled))
    assert {reply.content[records.ENVELOPE]["query_id"] for reply in replies} == {grid.query.id}
    assert {c.trust for c in one.tap.crossings if c.way == "out"} == {"local"}
    assert one.crossings.envelopes == {"local": 4}


@pytest.mark.parametrize("kind", ["query.hello", "query.accept", "evaluate"])
def test_a_strategy_gets_nothing_by_another_message_type(kind, side):
    one = side()
    grid = one.grid("local")
    assert grid.send_and_receive(to_homes(range(4), kind)) == []
    assert grid.failed == 4
    assert one.spent() == [0] * 4
