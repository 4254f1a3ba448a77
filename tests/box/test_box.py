"""The box: exactly the envelope of the trust mode leaves it, after its charge; a refusal costs and shows nothing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedenergy.box.admission import Authenticator, BoxKey
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.box import Box, answer_many, consider, open_ledger
from fedenergy.box.ledger import Charge, bucket
from fedenergy.box.policy import Counter, Offer, Refuse
from fedenergy.box.query import Query, SealedQuery
from fedenergy.explain.task import Explain
from fedenergy.federation.client_app import accept_many
from fedenergy.households.simulate import simulate_households
from fedenergy.privacy.mechanisms import Laplace, NoiseGrid
from fedenergy.privacy.noise import SecureNoise, SimulationNoise, discrete_laplace
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.secure_sum import Summer, laplace_share, pad
from fedenergy.privacy.trust import ENVELOPES, TRUST_MODES, Deposit, Envelope, Plain, Release, Share
from tests.federation.helpers import FITTED, Known, Says, Sums, boxes_of, make_world, seal

# C = 4: g = 2**(2 - 20), K = 4 / g = 2**20. Home 0 within the bound; home 1 has l1 norm 5, so it is clipped.
CLIP, STEP, BOUND = 4.0, 2.0**-18, 2**20
S = ((1.5, -0.25), (-3.0, 2.0), (0.0, 0.0))
Z = ((393_216, -65_536),                       # 1.5 * 2**18, -.25 * 2**18
     (-629_145, 419_430),                      # 3 * 2**18 * 2**20 // (5 * 2**18) = 629145.6 rounded towards 0, ...
     (0, 0))
K = Known(CLIP, values=S)
SEED = 7


@pytest.fixture(autouse=True)
def fresh_counts():
    FITTED.clear()
    yield
    open_ledger.cache_clear()


def ask(world, query, indices=None, *, seed=SEED, parties=0):
    boxes = boxes_of(world) if indices is None else [Box(world, index) for index in indices]
    return world.task.answer_many(boxes, [query] * len(boxes), seed=seed, parties=parties)


def spent(world, cell=None):
    return [open_ledger(world.ledger).spent(name, cell) for name in world.population.ids]


def noise(name, query, epsilon_micro):
    """The noise that the stream of (seed, home, query) gives: b = 2 K 10**6 / epsilon."""
    return discrete_laplace(SimulationNoise(SEED).source(name, query.id), Fraction(2 * BOUND * 10**6, epsilon_micro), 2)


def data(answers):
    return [(a.household, a.code, type(a.envelope).__name__, a.envelope and a.envelope.values.tobytes())
            for a in answers]


# -- what leaves, per trust mode ---------------------------------------------------------------------------------------

def test_a_release_is_z_plus_the_streams_noise_on_the_grid(tmp_path):
    world = make_world(tmp_path, K)
    query = seal(world, "local", epsilon=0.5)
    for index, answer in enumerate(ask(world, query)):
        envelope = answer.envelope
        assert type(envelope) is Release
        assert (answer.code, envelope.epsilon_micro, envelope.query_id) == ("charged", 500_000, query.id)
        drawn = noise(f"h{index}", query, 500_000)
        assert (drawn != 0).all()  # absent appliances are noised like any other
        assert envelope.values.tolist() == [(z + n) * STEP for z, n in zip(Z[index], drawn.tolist())]
        assert (np.remainder(envelope.values, STEP) == 0).all()
    assert spent(world) == [500_000] * 3


def test_a_smaller_grant_is_noised_for_what_was_granted(tmp_path):
    world = make_world(tmp_path, K, policy=Says(lambda case: Offer(case.query.epsilon / 4, "a quarter")))
    query = seal(world, "local", epsilon=1.0)
    envelope = ask(world, query, [0])[0].envelope
    drawn = noise("h0", query, 250_000)
    assert envelope.epsilon_micro == 250_000
    assert envelope.values.tolist() == [(z + n) * STEP for z, n in zip(Z[0], drawn.tolist())]
    assert spent(world) == [250_000, 0, 0]


def test_shares_are_never_bare_and_open_to_the_exact_sum(tmp_path):
    world = make_world(tmp_path, K)
    query = seal(world, "sum", epsilon=0.5)
    answers = ask(world, query, parties=3)
    scale, total = Fraction(2 * BOUND * 10**6, 500_000), np.zeros(2, np.int64)
    for index, answer in enumerate(answers):
        assert type(answer.envelope) is Share
        own = laplace_share(SimulationNoise(SEED).source(f"h{index}", query.id), scale, 3, 2)
        mask = pad(world.key("pad", f"h{index}"), f"h{index}", query.id, 2)
        bare = np.array(Z[index]) + own
        assert not (answer.envelope.values == bare.view(np.uint64)).any()
        assert not (answer.envelope.values == np.array(Z[index]).view(np.uint64)).any()
        assert np.array_equal(answer.envelope.values, bare.view(np.uint64) + mask)
        total += bare
    summer = Summer(query.id, {name: world.key("pad", name) for name in world.population.ids})
    assert np.array_equal(summer.open({a.household: a.envelope.values for a in answers}), total)
    assert spent(world) == [500_000] * 3


def test_an_opened_sum_has_the_central_law_and_a_single_share_is_uniform(tmp_path):
    """4 homes with S = 0 in 2,000 coordinates: the sum is one discrete Laplace(b), not four; a share tells nothing."""
    task = Known(CLIP, values=((0.0,) * 2_000,) * 4)
    world = make_world(tmp_path, task, 4)
    query = seal(world, "sum")
    shares = {a.household: a.envelope.values for a in ask(world, query, parties=4)}
    opened = Summer(query.id, {name: world.key("pad", name) for name in shares}).open(shares)
    b = float(Laplace(CLIP).scale(1_000_000))
    assert stats.kstest(opened, stats.laplace(scale=b).cdf).pvalue > 0.01
    assert stats.kstest(opened, stats.laplace(scale=b * 1.5).cdf).pvalue < 1e-6  # the test can fail
    for values in shares.values():
        assert stats.kstest(values / 2.0**64, "uniform").pvalue > 0.01


@pytest.mark.parametrize(("granted", "bound", "z"), [
    (1.0, 2**20, (-629_145, 419_430)),   # as asked: K
    (0.5, 2**19, (-314_572, 209_715)),   # K_i = K / 2: 786432 * 524288 // 1310720 = 314572.8 towards 0
    (0.16, 167_772, (-100_663, 67_108)),  # floor(.16 * 2**20) = 167772
])
def test_a_deposit_is_clipped_to_what_the_home_grants(granted, bound, z, tmp_path):
    world = make_world(tmp_path, K, policy=Says(Offer(granted, "my own")))
    envelope = ask(world, seal(world, "curator"), [1])[0].envelope
    assert type(envelope) is Deposit
    assert envelope.epsilon_micro == granted * 1e6
    assert tuple(envelope.values.tolist()) == z
    assert bound - 2 <= np.abs(envelope.values).sum() <= bound
    assert spent(world) == [0, granted * 1e6, 0]


def test_a_share_of_a_smaller_grant_is_clipped_to_it_under_the_noise_that_was_asked(tmp_path):
    world = make_world(tmp_path, K, policy=Says(Offer(0.5, "half")))
    query = seal(world, "sum")
    envelope = ask(world, query, [1], parties=3)[0].envelope
    own = laplace_share(SimulationNoise(SEED).source("h1", query.id), Fraction(2 * BOUND), 3, 2)
    opened = envelope.values - pad(world.key("pad", "h1"), "h1", query.id, 2) - own.view(np.uint64)
    assert opened.view(np.int64).tolist() == [-314_572, 209_715]


def test_plain_holds_both_summaries_and_is_unbounded(tmp_path):
    world = make_world(tmp_path, K, open=True)
    answers = ask(world, seal(world, "open"))
    for index, answer in enumerate(answers):
        assert type(answer.envelope) is Plain
        assert answer.envelope.epsilon_micro is None
        assert answer.envelope.values.tolist() == [[z * STEP for z in Z[index]], list(S[index])]
    rows = list(open_ledger(world.ledger).rows())
    assert [row.epsilon_micro for row in rows] == [None] * 3
    assert {row.trust for row in rows} == {"open"}
    assert spent(world) == [0, 0, 0]


def test_a_deposits_charge_stores_a_keyed_digest_and_not_the_deposit(tmp_path):
    world = make_world(tmp_path, K)
    envelope = ask(world, seal(world, "curator"), [0])[0].envelope
    row, = open_ledger(world.ledger).rows()
    assert len(row.payload) == 32
    assert envelope.values.astype("<i8").tobytes() not in row.payload
    other = make_world(tmp_path / "other", Known(CLIP, values=((1.0, 1.0),) * 3))
    other_query = seal(other, "curator")
    ask(other, other_query, [0, 1])
    first, second = open_ledger(other.ledger).rows()
    assert first.payload != second.payload  # equal deposits of two homes cannot be matched in the ledger


@pytest.mark.parametrize("trust", TRUST_MODES)
def test_the_gate_lets_out_one_envelope_type_per_trust_mode(trust, tmp_path, monkeypatch):
    from fedenergy.box import box as module

    world = make_world(tmp_path, K, open=True)
    query = seal(world, trust)
    assert type(ask(world, query, parties=3)[0].envelope) is ENVELOPES[trust]
    for other in set(TRUST_MODES) - {trust}:
        kind = ENVELOPES[other]
        shape = (2, 2) if other == "open" else (2,)
        made = kind("h0", query.id, None if other == "open" else 1, np.zeros(shape, kind.dtype))
        with pytest.raises(ValueError, match=f"trust {trust} lets out a"):
            module._gate(made, Box(world, 0), query)


def test_a_real_explanation_leaves_as_its_mechanism_says(tmp_path):
    homes = simulate_households(2, steps=96, seed=1)
    task = Explain(lags=(1, 24), trees=3, depth=2, clip=5.0)
    world = make_world(tmp_path, task, population=homes)
    window = task.windows(homes, 1, "next_window")[0]
    query = seal(world, "local", rows=window.rows)
    for index, answer in enumerate(ask(world, query)):
        home = homes.load(index)
        summary = task.explainer.summary(home, slice(*window.rows))
        source = SimulationNoise(SEED).source(home.id, query.id)
        assert np.abs(summary.values).sum() > 0
        assert np.array_equal(answer.envelope.values, Laplace(5.0).release(summary.values, source, 1_000_000))


# -- asked again -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("trust", ["local", "sum"])
def test_a_stored_answer_is_the_same_bytes_free_and_without_a_fit(trust, tmp_path):
    world = make_world(tmp_path, K)
    query = seal(world, trust)
    first = ask(world, query, parties=3)
    assert sorted(FITTED) == ["h0", "h1", "h2"]
    FITTED.clear()
    open_ledger.cache_clear()  # as another process would
    # another seed, other data, no budget and a policy that refuses: what was bought stays what it is
    again = replace(world, task=Known(CLIP, values=((9.0, 9.0),) * 3), policy=Says(Refuse("no")))
    second = ask(again, query, seed=SEED + 1, parties=2)
    assert [a.envelope.values.tobytes() for a in first] == [a.envelope.values.tobytes() for a in second]
    assert {a.code for a in second} == {"stored"}
    assert FITTED == []
    assert spent(world) == [1_000_000] * 3


@pytest.mark.parametrize("trust", ["curator", "open"])
def test_a_deposit_or_plain_asked_again_is_free_and_the_same(trust, tmp_path):
    world = make_world(tmp_path, K, open=True)
    query = seal(world, trust)
    first, charged = ask(world, query), spent(world)
    second = ask(replace(world, policy=Says(Refuse("no"))), query)
    assert [a.envelope.values.tobytes() for a in first] == [a.envelope.values.tobytes() for a in second]
    assert {a.code for a in second} == {"stored"}
    assert spent(world) == charged


@pytest.mark.parametrize("trust", ["curator", "open"])
def test_data_that_changed_after_the_charge_are_an_error_without_values(trust, tmp_path):
    world = make_world(tmp_path, K, open=True)
    query = seal(world, trust)
    ask(world, query, [0])
    changed = replace(world, task=Known(CLIP, values=((1.25, -0.25), S[1], S[2])))
    with pytest.raises(ValueError, match="household h0: its data changed since this query was charged") as caught:
        ask(changed, query, [0])
    assert "1.25" not in str(caught.value)
    assert len(list(open_ledger(world.ledger).rows())) == 1


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
def test_an_id_with_another_content_is_a_conflict(trust, tmp_path):
    world = make_world(tmp_path, K)
    query = seal(world, trust)
    stored = Charge("h0", query.id, b"another digest", query.cell, 0, 0, "household", "replace-one", "laplace", trust,
                    epsilon_micro=1, cap_micro=10)
    open_ledger(world.ledger).settle([stored], lambda at: bytes(16))
    answers = ask(world, query, parties=3)
    assert answers[0].envelope is None
    assert [a.code for a in answers] == ["conflict", "charged", "charged"]
    assert spent(world) == [1, 1_000_000, 1_000_000]


def test_another_epsilon_under_the_same_id_cannot_be_said(tmp_path):
    """The body holds the epsilon, so that one id is one scale of noise for every home."""
    query = seal(make_world(tmp_path, K), "local", epsilon=0.1)
    with pytest.raises(ValueError, match=r"epsilon = '0.1', the query for 6"):
        SealedQuery(query.body, 6_000_000, query.round, query.homes)


# -- the cap -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
def test_ten_queries_of_a_tenth_pass_a_cap_of_one_and_the_eleventh_is_refused(trust, tmp_path):
    world = make_world(tmp_path, K, cap=1.0)
    for number in range(10):
        answer, = ask(world, seal(world, trust, epsilon=0.1, fresh=number), [0], parties=1)
        assert answer.code == "charged"
    FITTED.clear()
    answer, = ask(world, seal(world, trust, epsilon=0.1, fresh=10), [0], parties=1)
    assert (answer.envelope, answer.code) == (None, "budget")
    assert FITTED == []
    assert spent(world) == [1_000_000, 0, 0]


def test_the_ledger_refuses_where_two_queries_are_decided_on_the_same_state(tmp_path):
    """Both see nothing spent; the transaction, not the policy, has the last word."""
    world = make_world(tmp_path, K, cap=1.0)
    box, queries = Box(world, 0), [seal(world, "local", epsilon=0.6, fresh=number) for number in range(2)]
    answers = world.task.answer_many([box, box], queries, seed=SEED)
    assert [a.code for a in answers] == ["charged", "over_cap"]
    assert answers[1].envelope is None
    assert spent(world)[0] == 600_000


def test_a_cell_has_a_budget_of_its_own_in_a_simulation_only(tmp_path):
    for noise_name, codes in (("simulation", ["charged", "charged"]), ("secure", ["charged", "budget"])):
        world = make_world(tmp_path / noise_name, K, cap=1.0, noise=noise_name)
        found = [ask(world, seal(world, "local", cell=digit * 32), [0])[0].code for digit in "ab"]
        assert found == codes


def test_secure_noise_is_reproducible_only_from_the_ledger(tmp_path, monkeypatch):
    world = make_world(tmp_path, K, noise="secure", cap=5.0)
    drawn = []
    monkeypatch.setattr(SecureNoise, "source", lambda self, home, query, real=SecureNoise.source:
                        drawn.append(home) or real(self, home, query))
    query = seal(world, "local")
    first, second = (ask(world, query, [0])[0].envelope.values for _ in range(2))
    assert np.array_equal(first, second)
    assert drawn == ["h0"]
    assert not np.array_equal(first, ask(world, seal(world, "local", fresh=1), [0])[0].envelope.values)


# -- the policy's word -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("says", "code"), [
    (Refuse("not today"), "refuse"), (Refuse("not today", "weekend"), "weekend"),
    (lambda case: Counter(replace(case.query, kind="total"), 0.1, "the total only"), "counter"),
    (Offer(7.0, "more than asked"), "policy_error"), (Offer(float("nan"), "?"), "policy_error"),
    (Offer(0, "nothing"), "policy_error"), ("yes", "policy_error"), (None, "policy_error"),
    (RuntimeError("no idea"), "policy_error"), (KeyError("spent"), "policy_error")])
@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
def test_a_policy_that_does_not_offer_is_a_refusal_with_its_code(says, code, trust, tmp_path):
    world = make_world(tmp_path, K, policy=Says(says))
    answers = ask(world, seal(world, trust), parties=3)
    assert {(a.envelope, a.code) for a in answers} == {(None, code)}
    assert all(a.reason for a in answers)
    assert FITTED == []
    assert list(open_ledger(world.ledger).rows()) == []


def test_an_offer_above_what_remains_is_refused(tmp_path):
    world = make_world(tmp_path, K, cap=1.0, policy=Says(lambda case: Offer(case.query.epsilon, "always")))
    codes = [ask(world, seal(world, "local", epsilon=0.6, fresh=number), [0])[0].code for number in range(2)]
    assert codes == ["charged", "policy_error"]
    assert spent(world)[0] == 600_000


def test_a_policy_sees_public_state_only(tmp_path):
    """Two homes with other data and the same public state: the same case, so the same offer."""
    seen = []
    world = make_world(tmp_path, Sums(), policy=Says(lambda case: seen.append(case) or Refuse("looking")))
    ask(world, seal(world, "local"))
    assert len(seen) == 3
    assert {replace(case, agreement=None) for case in seen} == {replace(seen[0], agreement=None)}
    assert FITTED == []


# -- agreement and query -----------------------------------------------------------------------------------------------

REFUSED = [
    ("expired", {"expires": 1}, {}), ("not_yet", {"not_before": 4_000_000_000}, {}),
    ("querier", {"queriers": ("other-operator",)}, {}), ("querier", {}, {"querier": "somebody"}),
    ("purpose", {"purposes": ("monitoring",)}, {}), ("purpose", {"purposes": ("planning",)}, {"purpose": "diagnosis"}),
    ("class", {"classes": ("general",)}, {}), ("range", {"per_query_max": 0.5}, {})]


@pytest.mark.parametrize("trust", TRUST_MODES)
@pytest.mark.parametrize(("code", "terms", "query"), REFUSED)
def test_what_is_not_agreed_is_refused_before_anything_is_fitted(code, terms, query, trust, tmp_path):
    if (code, trust) == ("range", "open"):
        pytest.skip("open rows have no epsilon")
    world = make_world(tmp_path, K, open=True, **terms)
    answers = ask(world, seal(world, trust, **query), parties=3)
    assert {(a.envelope, a.code) for a in answers} == {(None, code)}
    assert FITTED == []
    assert list(open_ledger(world.ledger).rows()) == []


@pytest.mark.parametrize("trust", TRUST_MODES)
def test_a_trust_mode_that_is_not_agreed_is_refused(trust, tmp_path):
    others = tuple(mode for mode in ("local", "sum", "curator") if mode != trust)
    world = make_world(tmp_path, K, trust=others)
    answers = ask(world, seal(world, trust), parties=3)
    assert {(a.envelope, a.code) for a in answers} == {(None, "trust")}
    assert FITTED == []
    assert list(open_ledger(world.ledger).rows()) == []


@pytest.mark.parametrize(("code", "agreement"), [
    ("household", ("h1", "h1", {})), ("box", ("h0", "another-box", {})), ("zone", ("h0", "h0", {"zone": "elsewhere"}))])
def test_a_foreign_agreement_is_refused(code, agreement, tmp_path):
    world = make_world(tmp_path, K)
    household, key, terms = agreement
    own = BoxKey(household, 0) if key == household else BoxKey(household, 99)
    box = Box(world, 0)
    box.__dict__["agreement"] = Authenticator(0).issue(household, own, AgreementTerms(**terms))
    answer, = world.task.answer_many([box], [seal(world, "local")], seed=SEED)
    assert (answer.envelope, answer.code) == (None, code)
    assert FITTED == []


def test_a_query_with_a_bound_of_its_own_is_refused(tmp_path):
    """A larger clip or a finer grid than the agreed task's would release more than was agreed."""
    world = make_world(tmp_path, K)
    body = dict(seal(world, "local").body)
    for change in ({"clip": "8"}, {"grid": "0.5"}):
        answer, = ask(world, SealedQuery(body | change, 1_000_000), [0])
        assert (answer.envelope, answer.code) == (None, "clip")
    assert FITTED == []


@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
def test_an_answer_of_another_width_is_not_charged(trust, tmp_path):
    """No gate would let it out: a charge for it would be lost."""
    world = make_world(tmp_path, Known(CLIP, values=((1.0, 2.0), (1.0, 2.0, 3.0), (0.0, 0.0))))
    with pytest.raises(ValueError, match="2 coordinates are asked for"):
        ask(world, seal(world, trust), [1], parties=1)
    assert spent(world)[1] == 0
    assert list(open_ledger(world.ledger).rows()) == []


def test_consider_and_accept_charge_and_fit_nothing(tmp_path):
    world = make_world(tmp_path, K, cap=1.0)
    query = seal(world, "sum", epsilon=1.0)
    assert consider(boxes_of(world), [query] * 3, open_ledger(world.ledger)) == [1_000_000] * 3
    assert accept_many(boxes_of(world), query) == [None] * 3
    over = accept_many(boxes_of(world), seal(world, "sum", epsilon=1.1))
    assert {answer.code for answer in over} == {"budget"}
    assert FITTED == []
    assert list(open_ledger(world.ledger).rows()) == []


# -- many homes at once ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("trust", TRUST_MODES)
def test_many_homes_at_once_are_one_at_a_time_byte_for_byte(trust, tmp_path):
    def world_in(name):
        return make_world(tmp_path / name, K, open=True, cap=2.0)

    world = world_in("many")
    query = seal(world, trust)
    many = data(ask(world, query, parties=3))
    for number, order in enumerate([(0, 1, 2), (2, 0, 1)]):
        single = world_in(f"one{number}")
        one = [data(ask(single, query, [index], parties=3))[0] for index in order]
        assert sorted(one) == many
        batch = world_in(f"batch{number}")
        assert sorted(data(ask(batch, query, list(order), parties=3))) == many


def test_homes_that_refuse_do_not_change_the_others(tmp_path):
    def only_even(case):
        index = int(case.agreement.household[1:])
        return Refuse("odd") if index % 2 else Offer(case.query.epsilon, "even")

    query = seal(make_world(tmp_path, K), "local")
    all_answer = data(ask(make_world(tmp_path / "a", K), query))
    some = data(ask(make_world(tmp_path / "b", K, policy=Says(only_even)), query))
    assert some == [all_answer[0], ("h1", "refuse", "NoneType", None), all_answer[2]]


def test_no_boxes_no_answers():
    assert answer_many([], [], lambda boxes, queries: [], seed=0) == []


def test_a_summary_that_fails_charges_nobody(tmp_path):
    world = make_world(tmp_path, Sums(fails=1))
    with pytest.raises(RuntimeError):
        ask(world, seal(world, "local"))
    assert list(open_ledger(world.ledger).rows()) == []


@pytest.mark.parametrize("bad", [(np.nan, 0.0), (np.inf, 0.0)])
def test_a_summary_that_is_no_number_charges_nothing(bad, tmp_path):
    for trust in TRUST_MODES:
        world = make_world(tmp_path / trust, Known(CLIP, values=(bad,)), 1, open=True)
        with pytest.raises(ValueError, match="finite"):
            ask(world, seal(world, trust), parties=1)
        assert list(open_ledger(world.ledger).rows()) == []


def test_a_summary_of_another_length_than_the_coordinates_never_leaves(tmp_path):
    class Longer(Known):
        def summaries(self, boxes, queries):
            return [(NoiseFree(np.zeros(3)), "") for _ in boxes]

    for trust in TRUST_MODES:
        world = make_world(tmp_path / trust, Longer(CLIP, values=S), open=True)
        with pytest.raises(ValueError):
            ask(world, seal(world, trust), [0], parties=1)


# -- the ledger --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("trust", ["local", "sum", "curator"])
@pytest.mark.parametrize("damage", ["missing", "garbled", "older"])
def test_a_broken_ledger_refuses_its_homes_and_says_why_inside(damage, trust, tmp_path):
    world = make_world(tmp_path, K)
    files = [world.ledger / f"{bucket(name):02d}.sqlite" for name in ("h0", "h1")]
    assert files[0] != files[1]
    ask(world, seal(world, trust), [0], parties=1)
    older = files[0].read_bytes()
    ask(world, seal(world, trust, fresh=1), parties=3)
    open_ledger(world.ledger).close()
    open_ledger.cache_clear()
    if damage == "missing":
        files[0].unlink()
    else:
        files[0].write_bytes(older if damage == "older" else b"\0" * len(older))
    FITTED.clear()
    answers = ask(world, seal(world, trust, fresh=2), parties=3)
    assert [(a.code, a.envelope is None) for a in answers] == [("broken", True), ("charged", False), ("charged", False)]
    assert answers[0].reason
    assert "h0" not in FITTED
    again = ask(world, seal(world, trust, fresh=1), [0], parties=3)[0]  # what was bought is refused as well
    assert (again.code, again.envelope) == ("broken", None)


def test_the_grid_of_these_tests():
    grid = NoiseGrid(CLIP)
    assert (grid.step, grid.bound) == (STEP, BOUND)
    assert grid.encode(np.array(S)).tolist() == [list(z) for z in Z]
    assert Query().epsilon_micro == 1_000_000
    assert Envelope.trust == ""
