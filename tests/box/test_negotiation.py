"""Negotiation: the source's trajectory, both sides pluggable, money that holds, and the same exchange over a grid."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal

import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedenergy.box.negotiation import (
    Bid,
    Budget,
    NeedAccuracy,
    Operator,
    OperatorCase,
    Procurement,
    Response,
    TakeIt,
    Terms,
    answer,
    negotiate,
    promised_utility,
)
from fedenergy.box.policies import BoundedSearch, Fixed, Strict, epsilon_zero, expected_utility
from fedenergy.box.policies_paid import Auction, Incentive
from fedenergy.box.policies_public import Accuracy, CounterOffer
from fedenergy.box.policy import Offer, Published
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import negotiation_rounds as rounds
from fedenergy.federation import records
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.local_grid import LocalGrid
from tests.box.test_policy import AGREEMENT, PUBLIC, case
from tests.federation.helpers import FITTED, Sums, boxes_of, make_world, seal

SOURCE = BoundedSearch(epsilon_target=3.445, ell=3.285, price=1.0, utility="zone", rounds=32)


def homes(policy, count: int = 50, **more):
    """household -> (policy, case); policy may be a function of the index."""
    return {f"h{i:02d}": (policy(i) if callable(policy) and not hasattr(policy, "offer") else policy,
                          replace(case(**more), agreement=replace(AGREEMENT, household=f"h{i:02d}")))
            for i in range(count)}


# the source's scenario

def test_the_source_goes_from_016_to_673():
    """HXAI, Figure 9. The home starts at the low end of [.16, 6.73]; each "still short" halves what is left to the top:
    after k rounds it offers 6.73 - 6.57 / 2^k. The source gives both ends and no rounds; the path is our rule."""
    found = negotiate(homes(SOURCE, epsilon=6.73), NeedAccuracy(need=0.98), rounds=26)
    path = [turn.bids[0].epsilon_micro for turn in found.transcript]
    assert path[0] == 160_000
    assert path[-1] == 6_730_000
    assert path == [pytest.approx(1e6 * (6.73 - 6.57 / 2**k), abs=25) for k in range(26)]
    assert path[:9] == [160_000, 3_445_000, 5_087_500, 5_908_750, 6_319_375, 6_524_688, 6_627_344, 6_678_672, 6_704_336]
    assert not found.agreed  # .98 is beyond 50 homes with local noise at 6.73: U = .954
    utility = [0.98 - turn.response.feedback for turn in found.transcript]
    assert utility == sorted(utility)
    assert utility[0] == pytest.approx(0.075, abs=0.001)
    assert utility[-1] == pytest.approx(0.954, abs=0.001)
    assert {bid.code for bid in found.transcript[0].bids} == {"optimum"}
    assert {bid.code for bid in found.bids.values()} == {"negotiated"}


def test_it_stops_where_the_need_is_met():
    found = negotiate(homes(SOURCE, epsilon=6.73), NeedAccuracy(need=0.9), rounds=20)
    assert found.agreed
    last = found.transcript[-1]
    offered = [bid.epsilon_micro for bid in last.bids]
    assert promised_utility(offered, 6_730_000, PUBLIC) == pytest.approx(0.9, abs=0.005)
    assert len(found.transcript) < 12


def test_without_a_deal_the_strict_default_stands():
    found = negotiate(homes(Strict(), epsilon=6.73), NeedAccuracy(need=0.9), rounds=3)
    assert not found.agreed
    assert set(found.granted_micro.values()) == {160_000}


# the public utility model

def test_equal_offers_promise_the_closed_form():
    eps0 = epsilon_zero(PUBLIC, "zone")
    assert promised_utility([2_000_000] * 50, 6_730_000, PUBLIC) == pytest.approx(expected_utility(2.0, eps0))
    one = replace(PUBLIC, trust="sum")
    for asked in (2_000_000, 6_730_000):  # one noise for what was asked, homes clipped to what they grant: the same
        assert promised_utility([2_000_000] * 50, asked, one) == pytest.approx(
            expected_utility(2.0, epsilon_zero(one, "zone")))


def test_one_cautious_home_costs_a_locally_noised_zone_dearly():
    """One home of .16 among 49 of 6.73: with local noise .906 -> .364; with one noise it stays. Here prior .5."""
    generous, mixed = [6_730_000] * 50, [160_000] + [6_730_000] * 49
    one = replace(PUBLIC, trust="sum")
    assert promised_utility(mixed, 6_730_000, PUBLIC) < 0.5 < 0.9 < promised_utility(generous, 6_730_000, PUBLIC)
    assert promised_utility(mixed, 6_730_000, one) > promised_utility(generous, 6_730_000, one) - 0.001
    assert promised_utility([], 6_730_000, PUBLIC) == 0.0


# operators

def test_take_it_takes_the_first_answers():
    found = negotiate(homes(Fixed()), TakeIt(), rounds=5)
    assert (found.agreed, len(found.transcript)) == (True, 1)
    assert set(found.granted_micro.values()) == {1_000_000}


def test_need_accuracy_is_met_by_accuracy_at_once():
    found = negotiate(homes(Accuracy(), epsilon=6.73), NeedAccuracy(need=0.9), rounds=5)
    assert (found.agreed, len(found.transcript)) == (True, 1)
    assert next(iter(found.bids.values())).code == "accuracy"


def test_it_takes_up_a_counter_offer_that_many_make():
    found = negotiate(homes(CounterOffer(0.7)), NeedAccuracy(need=0.9, fall_back=0.5), rounds=5)
    assert found.agreed
    assert {(bid.action, bid.kind, bid.epsilon_micro) for bid in found.bids.values()} == {("offer", "top", 606_061)}
    few = negotiate(homes(lambda i: CounterOffer(0.7) if i < 20 else Fixed()), NeedAccuracy(need=0.9, fall_back=0.5), 3)
    assert {bid.kind for bid in few.bids.values() if bid.action == "offer"} == {"appliances"}


@settings(deadline=None, max_examples=40)
@given(st.floats(0.1, 200), st.floats(0.1, 0.999), st.integers(1, 14), st.floats(0, 2), st.integers(1, 30))
def test_the_budget_is_never_exceeded(money, need, turns, spread, count):
    found = negotiate(homes(Incentive(price=0.5, spread=spread, partial=False), count,
                            public=replace(PUBLIC, N=count)), Budget(money, need), turns)
    owed = sum(found.payments_micro.values())
    assert not found.agreed or owed <= money * 1e6
    assert turns == 1 or found.agreed


def test_a_posted_price_buys_the_cheap_homes():
    found = negotiate(homes(Incentive(price=0.5, spread=0.8, partial=False)), Budget(15.0, 0.99), rounds=12)
    sold = set(found.granted_micro)
    price = max(found.payments_micro.values())
    cheap = {name for name in found.bids if Incentive(price=0.5, spread=0.8).reservation(name) * 10**6 <= price}
    assert 5 < len(sold) < 50
    assert sold == cheap


@pytest.mark.parametrize("rule", ["fixed", "ghosh_roth"])
def test_an_auction_takes_two_rounds_and_pays_the_winners(rule):
    found = negotiate(homes(Auction()), Procurement(10.0, rule), rounds=8)
    assert (found.agreed, len(found.transcript)) == (True, 2)
    assert all(bid.action == "refuse" and bid.price_micro for bid in found.transcript[0].bids)
    sold = found.granted_micro
    assert 1 < len(sold) < 50
    assert sum(found.payments_micro.values()) <= 10_000_000
    for name, amount in sold.items():
        assert found.payments_micro[name] >= Auction().cost(name) * amount - 1
    dearest = max(Auction().cost(name) for name in sold)
    assert all(Auction().cost(name) >= dearest for name in found.bids if name not in sold)


def test_lying_does_not_pay_in_the_negotiation_either():
    def profit(shade: float) -> float:
        policies = homes(lambda i: Auction(shade=shade if i == 7 else 1.0), 20)
        found = negotiate(policies, Procurement(6.0), rounds=3)
        paid, sold = found.payments_micro.get("h07", 0), found.granted_micro.get("h07", 0)
        return paid - float(Auction().cost("h07")) * sold
    honest = profit(1.0)
    assert honest >= 0
    assert all(profit(shade) <= honest + 1 for shade in (0.1, 0.5, 0.9, 1.1, 1.5, 2.0, 5.0, 20.0))


def test_both_sides_are_pluggable():
    class Haggler:
        """Says once that it is not enough, then takes what it gets."""

        def respond(self, bids, case: OperatorCase) -> Response:
            return Response(need=0.5, feedback=0.1 if bids else None, done=case.round == 2)

    class Stubborn:
        def offer(self, case):
            return Offer(case.query.epsilon / (1 + len(case.public.feedback)), "less each time", "spite")

    assert isinstance(Haggler(), Operator)
    found = negotiate(homes(Stubborn(), 3), Haggler(), rounds=9)
    assert set(found.granted_micro.values()) == {500_000}
    assert [turn.bids[0].epsilon_micro for turn in found.transcript] == [1_000_000, 500_000]


def test_a_failing_policy_refuses_and_its_words_stay_inside():
    class Curious:
        def offer(self, case):
            raise RuntimeError("reading 3.14159")

    bid, code, reason = answer("h1", Curious(), case(), Terms())
    assert code == "policy_error"
    assert (bid.action, bid.code, bid.epsilon_micro) == ("refuse", "refused", None)
    assert "3.14159" in reason
    assert "3.14159" not in repr(bid)


def test_refusals_show_no_code():
    found = negotiate(homes(Incentive(), 3), TakeIt(), 1)
    assert {bid.code for bid in found.bids.values()} == {"refused"}


def test_terms_make_the_case():
    release = Published((1.0,) * 7, 1.0)
    seen = Terms(0.9, (0.1,), 2_500_000, 400_000, "top", (release,)).case(case())
    assert (seen.query.kind, seen.query.epsilon_micro) == ("top", 400_000)
    assert (seen.public.need, seen.public.feedback, seen.public.releases) == (0.9, (0.1,), (release,))
    assert seen.payment == Decimal("2.5")
    assert Terms(epsilon_micro=9_000_000).case(case()).query.epsilon_micro == 1_000_000  # never above the query's
    for bad in ({"need": math.nan}, {"feedback": (math.inf,)}, {"payment_micro": -1}, {"kind": "gossip"},
                {"feedback": (0.1,) * 65}):
        with pytest.raises(ValueError, match="terms"):
            Terms(**bad)


def test_empty_negotiations_are_refused():
    for bad in (({}, 3), (homes(Fixed(), 1), 0), (homes(Fixed(), 1), 65)):
        with pytest.raises(ValueError, match="negotiation"):
            negotiate(bad[0], TakeIt(), bad[1])


# over a grid

def grid_of(world, inside=None):
    known = Homes((world,), inside)
    return LocalGrid(make_client(known), len(world.population))


def sender(grid, query, names, drop=()):
    record = records.query_record(query, world=0, seed=0)

    def send(batch):
        shared = {}
        messages = []
        for name, content in batch:
            full = shared.setdefault(id(content), RecordDict({**content, records.QUERY: record}))
            messages.append(flower.instruction(full, flower.node_id(names.index(name)), "query.negotiate", "1"))
        replies = grid.send_and_receive(messages)
        return [None if name in drop else reply.content if reply.has_content() else None
                for (name, _), reply in zip(batch, replies, strict=True)]
    return send


def over(world, operator, turns=8, query=None, **more):
    names = list(world.population.ids)
    query = query or seal(world, "local", epsilon=more.pop("epsilon", 1.0))
    drop = more.pop("drop", ())
    grid = grid_of(world, more.pop("inside", None))
    return query, rounds.negotiate_over(sender(grid, query, names, drop), names, query, 2, operator, turns, **more)


def test_the_grid_and_the_pure_loop_end_alike(tmp_path):
    world = make_world(tmp_path, Sums(), 6, policy=SOURCE)
    query, found = over(world, NeedAccuracy(need=0.9), epsilon=6.73)
    boxes = {box.id: box for box in boxes_of(world)}
    cases = {name: (SOURCE, rounds.case_of(box, query, 0, 10**9)) for name, box in boxes.items()}
    pure = negotiate(cases, NeedAccuracy(need=0.9), 8)
    assert found.talk.granted_micro == pure.granted_micro
    assert [turn.response for turn in found.talk.transcript] == [turn.response for turn in pure.transcript]
    assert found.talk.bids["h1"].window == (0, 49)


def test_nothing_is_read_or_charged(tmp_path):
    FITTED.clear()
    world = make_world(tmp_path, Sums(), 3, policy=SOURCE)
    over(world, NeedAccuracy(), epsilon=6.73)
    assert FITTED == []
    assert not list((tmp_path / "ledger").glob("*.sqlite")) or all(
        rounds.open_ledger(world.ledger).spent(name) == 0 for name in world.population.ids)


def test_an_offer_binds_and_only_its_own_box_can_make_it(tmp_path):
    world = make_world(tmp_path, Sums(), 3, policy=BoundedSearch(utility="zone"))
    query, found = over(world, NeedAccuracy(need=0.99))
    [(names, record)] = found.bindings("appliances")
    binding = rounds.read_binding(RecordDict({rounds.BINDING: record}))
    one, two, _ = boxes_of(world)
    assert rounds.bound_micro(one, query, binding) == found.talk.granted_micro["h0"]
    epsilon, payment, mark = binding["h0"]
    for changed in ((epsilon + 1, payment, mark), (epsilon, payment + 1, mark), (epsilon, payment, b"\0" * 32),
                    (0, payment, mark), (epsilon, payment, b"")):
        assert rounds.bound_micro(one, query, {"h0": changed}) is None
    assert rounds.bound_micro(two, query, {"h1": binding["h0"]}) is None  # another home's
    assert rounds.bound_micro(one, query, {}) is None
    other = seal(world, "local", rows=(0, 24))
    assert rounds.bound_micro(one, other, binding) is None  # another query's
    again = boxes_of(make_world(tmp_path, Sums(), 3, policy=BoundedSearch(utility="zone")))[0]
    assert rounds.bound_micro(again, query, binding) == epsilon  # another process, after a crash
    assert names == ["h0", "h1", "h2"]


def test_reasons_stay_inside_and_refusals_are_one_word(tmp_path):
    world = make_world(tmp_path, Sums(), 3, policy=Incentive())
    names = list(world.population.ids)
    query = seal(world, "local")
    grid = grid_of(world, tmp_path / "inside")
    seen = []
    send = sender(grid, query, names)

    def tapped(batch):
        seen.extend(found := send(batch))
        return found
    rounds.negotiate_over(tapped, names, query, 2, TakeIt(), 2)
    for content in seen:
        assert dict(content[rounds.BID]) == {"household": content[rounds.BID]["household"], "query_id": query.id,
                                             "status": "refused", "price_micro": 0}
    [file] = (tmp_path / "inside").iterdir()
    logged = [json.loads(line) for line in file.read_text().splitlines()]
    assert all("does not cover" in entry["reason"] for entry in logged)


def test_an_auction_over_the_grid(tmp_path):
    world = make_world(tmp_path, Sums(), 6, policy=Auction())
    _, found = over(world, Procurement(1.5))
    assert found.talk.agreed
    assert 0 < len(found.talk.granted_micro) < 6
    [(names, record)] = found.bindings("appliances")
    assert sorted(found.talk.granted_micro) == names
    assert sum(record["payments"]) <= 1_500_000


def test_homes_that_fail_or_may_not_answer_are_left_out(tmp_path):
    world = make_world(tmp_path, Sums(), 3)
    _, found = over(world, TakeIt(), drop=("h1",))
    assert found.failed == ("h1",)
    assert sorted(found.talk.granted_micro) == ["h0", "h2"]
    closed = make_world(tmp_path / "closed", Sums(), 2, trust=("sum",))
    _, refused = over(closed, TakeIt())
    assert refused.talk.granted_micro == {}


def test_a_resumed_negotiation_ends_as_the_first_one_did(tmp_path):
    """The home was charged, then the run was killed: it bids as it did before the charge."""
    policy = BoundedSearch(epsilon_target=3.0, ell=3.0, utility="zone")
    world = make_world(tmp_path, Sums(), 3, policy=policy, cap=3.5)
    query, first = over(world, NeedAccuracy(need=0.9), epsilon=3.0)
    boxes = boxes_of(world)
    boxes[0].world.task.answer_many(boxes[:1], [query], seed=0)
    assert rounds.open_ledger(world.ledger).spent("h0") > 0
    _, second = over(world, NeedAccuracy(need=0.9), query=query)
    assert second.talk.granted_micro == first.talk.granted_micro


def test_releases_reach_the_policies(tmp_path):
    """An earlier answer far above its noise raises the utility of the same epsilon: the home offers otherwise."""
    world = make_world(tmp_path, Sums(), 3, policy=BoundedSearch(price=0.1, ell=0, utility="own_report"))
    _, without = over(world, TakeIt(), epsilon=6.73)
    release = Published((90.0, 60.0), 100.0, homes=3, noises=3)
    _, with_one = over(world, TakeIt(), epsilon=6.73, releases=(release,))
    assert without.talk.granted_micro != with_one.talk.granted_micro
    said = Terms(0.5, (0.25, -0.125), 1, 2, "top", (release, Published((1.0, 2.0), 0.5)))
    [(_, record)] = rounds.terms_records({"h0": said})
    assert rounds.read_terms(RecordDict({rounds.TERMS: record})) == {"h0": said}


def test_contents_are_shared_by_homes_with_the_same_terms():
    terms = {f"h{i}": Terms(payment_micro=i) for i in range(600)}
    parts = rounds.terms_records(terms)
    assert [len(names) for names, _ in parts] == [256, 256, 88]
    read = [rounds.read_terms(RecordDict({rounds.TERMS: record})) for _, record in parts]
    assert {name: said for part in read for name, said in part.items()} == terms


@pytest.mark.parametrize("change", [
    {"epsilon_micro": 9_000_000}, {"epsilon_micro": 0}, {"household": "h9"}, {"query_id": "0" * 32}, {"extra": 1},
    {"status": "bribe"}, {"window": [1]}, {"tag": b"short"}, {"epsilon_micro": "1"}, {"price_micro": -1}])
def test_hostile_bids_are_refused(change, tmp_path):
    world = make_world(tmp_path, Sums(), 1)
    query = seal(world, "local")
    bid = Bid("h0", "offer", 500_000, "appliances", "as_asked", window=(0, 49))
    sound = rounds.encode_bid(bid, query.id, b"\1" * 32)
    assert rounds.decode_bid(sound, query, "h0")[0].epsilon_micro == 500_000
    with pytest.raises(ValueError, match="bid"):
        rounds.decode_bid(RecordDict({rounds.BID: ConfigRecord({**sound[rounds.BID], **change})}), query, "h0")
