"""Protocol-mode sums: masks that cancel (contract), what the aggregator can derive (algebra), audits and mutants."""

import math
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedenergy.privacy import pairwise_masks, shamir
from fedenergy.privacy.mechanisms import SimulationNoise
from fedenergy.privacy.pairwise_masks import Party, Session, SumClosed, open_sum, recover
from fedenergy.privacy.secure_sum import Summer, laplace_share, pad, seal
from fedenergy.privacy.sum_protocol import SumProtocol, vanishing
from tests.privacy.auditing import epsilon_bounds
from tests.privacy.test_noise import pmf_p_value

D = 4
K = 32                   # the audits' l1 bound, grid steps: small, so that shares are quick to draw
SCALE = Fraction(2 * K)  # a claimed epsilon of 1
TRIALS = 8000


@lru_cache(maxsize=256)
def share_of(name, noise, scale, parties, size):
    return laplace_share(SimulationNoise(7).source(name, noise), scale, parties, size)


class Run:
    """One session played honestly; gone: home -> the round before which it vanishes ("late": y is made, not counted)."""

    def __init__(self, n=5, gone=(), protocol=None, z=None, query="q1", noise="n1", size=D, scale=Fraction(50)):
        names = [f"h{i}" for i in range(n)]
        gone = dict(gone)
        self.protocol = protocol or SumProtocol(0.6)
        self.session = Session(query, tuple(names), self.protocol)
        self.parties = {name: Party(self.session, name, bytes([i]) * 32) for i, name in enumerate(names)}
        self.z = z or {name: np.arange(size) + 10**6 * (i + 1) for i, name in enumerate(names)}
        self.share = {name: share_of(name, noise, scale, self.session.parties, size) for name in names}
        self.roster = {name: p.advertise() for name, p in self.parties.items() if gone.get(name) != "keys"}
        self.posted = {name: self.parties[name].share_keys(self.roster) for name in self.roster
                       if gone.get(name) != "secrets"}
        self.sent = {name: seal(self.z[name], self.share[name], self.mask(name, size))
                     for name in self.posted if gone.get(name) != "shares"}
        self.answers = {name: y for name, y in self.sent.items() if gone.get(name) != "late"}
        self.opened = {name: self.unmask(name) for name in self.answers if gone.get(name) != "unmask"}

    def mask(self, name, size=D):
        return self.parties[name].mask(self.roster, self.posted, size)

    def unmask(self, name, survivors=None):
        return self.parties[name].unmask(self.roster, self.posted, list(self.answers if survivors is None else survivors))

    def open(self, **changes):
        parts = {"answers": self.answers, "opened": self.opened} | changes
        return open_sum(self.session, self.roster, self.posted, **parts)

    @property
    def truth(self):
        return sum(self.z[name] + self.share[name] for name in self.answers)


# -- contract: Shamir --------------------------------------------------------------------------------------------------

def test_the_prime_is_a_prime_above_every_key():
    p = shamir.PRIME
    assert p > 2**256
    odd, twos = p - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):       # Miller-Rabin
        x = pow(base, odd, p)
        assert x == 1 or any(pow(x, 2**k, p) == p - 1 for k in range(twos))


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 4), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, more, random):
    shares = shamir.split(secret, threshold, threshold + more, random.randbytes)
    points = random.sample(range(1, threshold + more + 1), threshold)
    assert shamir.join({x: shares[x - 1] for x in points}, threshold) == secret
    with pytest.raises(ValueError, match="fewer than the threshold"):
        shamir.join({x: shares[x - 1] for x in points[1:]}, threshold)


def test_shares_below_the_threshold_fit_every_secret():
    """For t - 1 shares and any other secret there is a polynomial: here the one through (0, secret) and the shares."""
    shares = shamir.split(b"k" * 32, 3, 3, np.random.default_rng(1).bytes)
    for secret in (b"\x00" * 32, b"\xff" * 32):
        points = {0: int.from_bytes(secret, "little"), 1: int.from_bytes(shares[0], "little"),
                  2: int.from_bytes(shares[1], "little")}
        third = sum(y * np.prod([(3 - o) * pow(x - o, -1, shamir.PRIME) for o in points if o != x], dtype=object)
                    for x, y in points.items()) % shamir.PRIME
        assert shamir.join({1: shares[0], 2: shares[1], 3: int(third).to_bytes(33, "little")}, 3) == secret


def test_shamir_refuses_what_does_not_fit():
    for args in ((b"short", 1, 1), (b"k" * 32, 0, 1), (b"k" * 32, 3, 2), (b"k" * 32, 1, 2**16)):
        with pytest.raises(ValueError):
            shamir.split(*args, bytes)
    for points in ((0,), (1, 1), (2**16,)):
        with pytest.raises(ValueError, match="points"):
            shamir.weights(points)
    with pytest.raises(ValueError, match="33 bytes"):
        shamir.combine([b"\xff" * 33], [1])
    with pytest.raises(ValueError, match="one of them is wrong"):
        shamir.combine([(2**256).to_bytes(33, "little")], [1])


# -- contract: parameters ----------------------------------------------------------------------------------------------

@given(st.integers(1, 10**6), st.integers(0, 999), st.integers(0, 999_999))
def test_parameters_travel_in_the_mechanisms_name(tau, colluders, drop):
    if tau == 10**6:
        colluders = 0
    one = SumProtocol(tau / 10**6, colluders, drop / 10**6)
    assert SumProtocol.parse(one.mechanism) == one
    assert len(one.mechanism) <= 64


@pytest.mark.parametrize("bad", [{"tau": 0}, {"tau": 1.1}, {"tau": float("nan")}, {"tau": True}, {"tau": "1"},
                                 {"colluders": -1}, {"colluders": 1}, {"colluders": 1.0}, {"drop_out": 1.0},
                                 {"drop_out": -0.1}])
def test_parameters_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match="SecureSum"):
        SumProtocol(**bad)


@pytest.mark.parametrize("name", ["laplace-protocol", "laplace-protocol-tau0-c0-drop0", "laplace-protocol-tau01-c0-drop0",
                                  "laplace-protocol-tau1000001-c0-drop0", "laplace-protocol-tau1-c0-drop0-x"])
def test_other_spellings_are_no_parameters(name):
    assert SumProtocol.parse("laplace") is None
    with pytest.raises(ValueError):
        SumProtocol.parse(name)


@pytest.mark.parametrize(("protocol", "n", "parties", "threshold", "needed"), [
    (SumProtocol(), 50, 50, 26, 50),             # every share is needed
    (SumProtocol(0.8), 50, 40, 26, 40),          # 1 / 40 each
    (SumProtocol(0.55), 20, 11, 11, 11),         # exact: .55 * 20 is 11.000000000000002 in floats
    (SumProtocol(0.8), 7, 6, 4, 6),              # 5.6 rounds up
    (SumProtocol(0.8, 5), 50, 40, 28, 45),       # five know their own shares
    (SumProtocol(0.3), 50, 15, 26, 26),          # fewer than the threshold could not unmask
])
def test_how_many_shares_make_one_noise_and_how_many_homes_must_stay(protocol, n, parties, threshold, needed):
    assert (protocol.parties(n), protocol.threshold(n), protocol.needed(n)) == (parties, threshold, needed)
    assert protocol.variance_factor(n, n) == Fraction(n, parties)
    assert 2 * threshold > n + protocol.colluders


def test_a_session_that_cannot_open_is_refused_at_once():
    with pytest.raises(SumClosed, match="4 homes accepted and 5 must survive"):
        Session("q", ("a", "b", "c", "d"), SumProtocol(0.9, 1))
    with pytest.raises(ValueError, match="at most 1000"):
        Session("q", tuple(f"h{i}" for i in range(1001)), SumProtocol())
    for homes in (("a", "a"), ("../a", "b")):
        with pytest.raises(ValueError):
            Session("q", homes, SumProtocol())


# -- contract: the rounds ----------------------------------------------------------------------------------------------

GONE = [{}, {"h1": "keys"}, {"h1": "secrets"}, {"h1": "shares"}, {"h1": "late"}, {"h1": "unmask"},
        {"h0": "keys", "h4": "late"}, {"h0": "shares", "h4": "unmask"}]


@pytest.mark.parametrize("gone", GONE, ids=str)
def test_the_sum_opens_over_the_survivors_whoever_vanishes(gone):
    run = Run(gone=gone)
    opened = run.open()
    assert opened.dtype == np.int64
    assert opened.tolist() == run.truth.tolist()
    assert open_sum(run.session, dict(reversed(run.roster.items())), dict(reversed(run.posted.items())),
                    dict(reversed(run.answers.items())), dict(reversed(run.opened.items()))).tolist() == opened.tolist()


def test_it_equals_the_ideal_mode_number_by_number():
    """Same z, same noise shares, tau = 1: the two modes differ by their masks alone."""
    run = Run(protocol=SumProtocol())
    keys = {name: bytes([9]) * 32 for name in run.z}
    ideal = Summer("q1", keys).open({name: seal(run.z[name], run.share[name], pad(keys[name], name, "q1", D))
                                     for name in run.z})
    assert run.open().tolist() == ideal.tolist()


def test_sums_are_modulo_2_to_the_64():
    z = {f"h{i}": np.array([2**63 - 1, -2**63]) for i in range(3)}
    run = Run(3, z=z, size=2)
    total = [(int(v) + 2**63) % 2**64 - 2**63 for v in sum(
        run.z[n].astype(object) + run.share[n].astype(object) for n in z)]
    assert run.open().tolist() == total


def test_a_home_restarted_says_the_same():
    run = Run()
    again = Party(run.session, "h2", bytes([2]) * 32)
    assert again.advertise() == run.roster["h2"]
    assert again.share_keys(run.roster) == run.posted["h2"]
    assert again.mask(run.roster, run.posted, D).tolist() == run.mask("h2").tolist()
    assert again.unmask(run.roster, run.posted, list(run.answers)) == run.opened["h2"]


def test_a_party_shows_nothing_of_its_state():
    party = Run().parties["h0"]
    assert repr(party) == str(party) == "<Party>"
    with pytest.raises(TypeError, match="stays in the process"):
        __import__("copy").copy(party)
    for secret in (b"short", "k" * 32):
        with pytest.raises(ValueError, match="32 bytes"):
            Party(Run().session, "h0", secret)
    with pytest.raises(ValueError, match="not among the homes"):
        Party(Run().session, "h9", b"k" * 32)


def test_too_few_survivors_keep_the_sum_closed_and_homes_check_it_themselves():
    protocol = SumProtocol(0.8)                                        # of 5: 4 must stay
    run = Run(gone={"h1": "shares"}, protocol=protocol)
    assert run.open().tolist() == run.truth.tolist()
    few = [name for name in run.answers if name != "h2"]
    with pytest.raises(SumClosed, match=r"3 of 5 homes answered and 4 are needed.*charges stay"):
        run.unmask("h0", few)
    with pytest.raises(SumClosed, match="3 of 5 homes answered"):
        run.open(answers={name: run.answers[name] for name in few})
    with pytest.raises(SumClosed, match="3 of 5 homes posted keys"):
        run.parties["h0"].share_keys({name: run.roster[name] for name in few})
    with pytest.raises(SumClosed, match="3 of 5 homes shared their secrets"):
        run.parties["h0"].mask(run.roster, {name: run.posted[name] for name in few}, D)
    with pytest.raises(SumClosed, match="2 homes unmasked and 3 are needed"):
        run.open(opened={name: run.opened[name] for name in ("h0", "h2")})
    with pytest.raises(SumClosed):
        Run(gone={"h1": "keys"}, protocol=SumProtocol())               # tau = 1: one home is one too many
    with pytest.raises(SumClosed, match="4 of 5 homes answered and 5 are needed"):
        Run(gone={"h1": "shares"}, protocol=SumProtocol())


def test_colluders_raise_what_must_stay():
    protocol = SumProtocol(0.6, 1)                                     # of 5: 3 honest shares and a colluder's
    run = Run(gone={"h1": "late"}, protocol=protocol)
    assert run.open().tolist() == run.truth.tolist()
    with pytest.raises(SumClosed, match="3 of 5"):
        Run(gone={"h1": "late", "h2": "late"}, protocol=protocol)


def test_a_home_that_did_not_survive_opens_nothing():
    run = Run(gone={"h1": "late"})
    with pytest.raises(ValueError, match="h1 is not among the survivors"):
        run.unmask("h1")
    for survivors in (["h0", "h0", "h2", "h3"], ["h0", "h2", "h3", "h9"]):
        with pytest.raises(ValueError, match="not distinct homes"):
            run.unmask("h0", survivors)


def test_boards_that_were_tampered_with_are_refused_before_anything_is_charged():
    run = Run()
    spoilt = {name: bytes(letter) for name, letter in run.posted.items()}
    spoilt["h3"] = spoilt["h3"][:-1] + bytes([spoilt["h3"][-1] ^ 1])                   # the last letter: to h4
    with pytest.raises(ValueError, match="letter from h3 to h4"):
        run.parties["h4"].mask(run.roster, spoilt, D)
    run.parties["h0"].mask(run.roster, spoilt, D)                                      # its own letter is whole
    with pytest.raises(ValueError, match="not posted as it sent them"):
        run.parties["h3"].mask(run.roster, spoilt, D)
    size = pairwise_masks.LETTER_BYTES
    moved = run.posted["h3"][:32] + run.posted["h3"][32 + size:32 + 2 * size] * 5      # h1's letter for everybody
    with pytest.raises(ValueError, match="letter from h3 to h0"):
        run.parties["h0"].mask(run.roster, run.posted | {"h3": moved}, D)
    with pytest.raises(ValueError, match="other keys for it"):
        run.parties["h0"].share_keys(run.roster | {"h0": bytes(range(64))})
    with pytest.raises(ValueError, match="two homes posted one key"):
        run.parties["h0"].share_keys(run.roster | {"h1": run.roster["h2"]})
    for board in ({"h9": run.roster["h0"]}, {"h1": b"short"}):
        with pytest.raises(ValueError, match="keys posted"):
            run.parties["h0"].share_keys(run.roster | board)
    for board in ({"h9": run.posted["h0"]}, {"h1": b"short"}):
        with pytest.raises(ValueError, match="secrets posted"):
            run.parties["h0"].mask(run.roster, run.posted | board, D)


def test_wrong_shares_close_the_sum_instead_of_spoiling_it():
    for gone, at, message in (({}, 0, "seed recovered for h0"), ({"h4": "shares"}, 4, "key recovered for h4")):
        run = Run(gone=gone)
        one = bytearray(run.opened["h1"])
        one[33 * at] ^= 1
        with pytest.raises(SumClosed, match=f"{message}|one of them is wrong"):
            run.open(opened=run.opened | {"h1": bytes(one)})
    run = Run()
    for bad in (run.sent["h1"].view(np.int64), run.sent["h1"][:2], run.sent["h1"].astype(float)):
        with pytest.raises(SumClosed, match="uint64"):
            run.open(answers=run.answers | {"h1": bad})


def test_every_key_is_bound_to_the_query_and_the_homes_that_accepted():
    one, other, fewer = Run(), Run(query="q2"), Run(6)
    for name in one.roster:
        for another in (other, fewer):
            assert not set(np.frombuffer(one.roster[name], "<u8")) & set(np.frombuffer(another.roster[name], "<u8"))
            assert one.mask(name).tolist() != another.mask(name).tolist()
    with pytest.raises(ValueError, match="other keys"):                                # a replay of another session
        other.parties["h0"].mask(one.roster, one.posted, D)
    assert one.session.id != other.session.id != fewer.session.id
    assert one.session.binding(one.roster, one.posted) != Run(gone={"h1": "secrets"}).session.binding(
        *(getattr(Run(gone={"h1": "secrets"}), part) for part in ("roster", "posted")))


def test_masks_look_uniform_and_differ_by_coordinate():
    z = {f"h{i}": np.full(20_000, 5) for i in range(5)}
    run = Run(size=20_000, z=z, scale=Fraction(1, 100))                # shares are 0
    words = run.sent["h1"]
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > 0.01
    assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 0.01
    # what an aggregator sees of a late home once the pairwise masks are taken off is masked still
    late = Run(gone={"h1": "late"}, size=20_000, z=z, scale=Fraction(1, 100))
    assert stats.kstest(peeled(late, "h1") / 2.0**64, "uniform").pvalue > 0.01


def test_golden_session():
    # hashlib: BLAKE2b-32, person "fe.masks.1", of '["q1",["a","b","c"],"laplace-protocol-tau1000000-c0-drop0"]'
    import hashlib
    text = b'["q1",["a","b","c"],"laplace-protocol-tau1000000-c0-drop0"]'
    assert Session("q1", ("c", "a", "b"), SumProtocol()).id \
        == hashlib.blake2b(text, digest_size=32, person=b"fe.masks.1").digest()


# -- what the aggregator can derive ------------------------------------------------------------------------------------

def known(run, colluders=()):
    """What the aggregator and the colluders hold: (homes whose b is known, pairs whose mask is known)."""
    members = sorted(run.posted)
    secrets = recover(run.session, members, sorted(run.answers), run.opened)
    seeds = {name for name in members if name in run.answers} | set(colluders)
    keys = {name for name in members if name not in run.answers} | set(colluders)
    for name in members:                                               # recovered as claimed, and nothing else
        kind = "self" if name in run.answers else "mask"
        assert secrets[name] == run.parties[name]._Party__derive(kind)
    return seeds, {frozenset(pair) for pair in combinations(members, 2) if set(pair) & keys}


def derivable(run, colluders=()):
    """A basis of the combinations of y in which no unknown mask is left: (k, senders) over the rationals."""
    seeds, pairs = known(run, colluders)
    senders, members = sorted(run.sent), sorted(run.posted)
    unknown = [("self", name) for name in members if name not in seeds] \
        + [("pair", *pair) for pair in combinations(members, 2) if frozenset(pair) not in pairs]
    matrix = np.zeros((len(senders), len(unknown)))
    for row, name in enumerate(senders):
        for column, (kind, *homes) in enumerate(unknown):
            if name in homes:
                matrix[row, column] = 1 if kind == "self" or name == homes[0] else -1
    if not unknown:
        return np.eye(len(senders)), senders
    u, values, _ = np.linalg.svd(matrix)
    rank = int((values > 1e-9).sum())
    return u[:, rank:].T, senders


@pytest.mark.parametrize("gone", [*GONE, {"h1": "late", "h3": "late"}], ids=str)
def test_with_all_recovered_secrets_only_the_sum_over_the_survivors_can_be_derived(gone):
    run = Run(gone=gone)
    basis, senders = derivable(run)
    assert len(basis) == 1
    expected = np.array([float(name in run.answers) for name in senders])
    assert np.allclose(np.abs(basis[0]), expected / np.linalg.norm(expected))


@pytest.mark.parametrize("gone", [{}, {"h1": "late"}, {"h2": "unmask", "h5": "shares"}], ids=str)
def test_with_colluders_only_their_own_answers_and_the_honest_sum(gone):
    run = Run(7, gone=gone, protocol=SumProtocol(0.6, 1))
    basis, senders = derivable(run, colluders=["h0"])
    span = np.linalg.matrix_rank(basis)
    honest = np.array([float(name in run.answers and name != "h0") for name in senders])
    own = np.array([float(name == "h0") for name in senders])
    assert span == 2
    assert np.linalg.matrix_rank(np.vstack([basis, honest, own])) == 2


@pytest.mark.parametrize("gone", GONE, ids=str)
def test_never_both_secrets_of_one_home(gone):
    """Of every home, fewer shares than the threshold of one kind are in the aggregator's hands: none at all."""
    run = Run(gone=gone)
    members = sorted(run.posted)
    for helper, opened in run.opened.items():
        for at, name in enumerate(members):
            piece = opened[33 * at:33 * at + 33]
            mine, masks = run.parties[name]._Party__split
            point = run.session.points[helper] - 1
            assert piece == (mine if name in run.answers else masks)[point]
            assert piece != (masks if name in run.answers else mine)[point]


def test_two_sets_of_survivors_cannot_both_be_opened():
    """An aggregator that lies: 13 homes are told that h0 survived, others that it did not; each answers once."""
    for n, c in ((5, 0), (6, 0), (7, 1), (50, 5), (100, 9)):
        t = SumProtocol(0.6, c).threshold(n)
        assert 2 * t > (n - c) + 2 * c                                 # honest homes answer one, colluders both


def peeled(run, name):
    """y of a late home minus all pairwise masks that the aggregator can make from its recovered mask key."""
    secrets = recover(run.session, sorted(run.posted), sorted(run.answers), run.opened)
    key = pairwise_masks.X25519PrivateKey.from_private_bytes(secrets[name])
    y = run.sent[name].copy()
    for other in run.posted:
        if other != name:
            y -= pairwise_masks.pair_mask(run.session, key, name, other, run.roster[other][32:], y.size)
    return y


def test_no_peeling_of_a_message_shows_a_homes_number():
    """Every subset of the masks that the aggregator can make, taken off every message: nobody's z, nor z + e."""
    run = Run(gone={"h1": "late", "h3": "shares"}, protocol=SumProtocol(0.6))
    secrets = recover(run.session, sorted(run.posted), sorted(run.answers), run.opened)
    plain = {int(v) % 2**64 for name in run.z for v in (*run.z[name], *(run.z[name] + run.share[name]), *run.share[name])
             if v}
    for name, y in run.sent.items():
        masks = []
        if name in run.answers:
            masks.append(pairwise_masks.self_mask(run.session, name, secrets[name], D))
        for other in run.posted:
            if other == name or (other in run.answers and name in run.answers):
                continue
            gone = name if name not in run.answers else other
            key = pairwise_masks.X25519PrivateKey.from_private_bytes(secrets[gone])
            far = other if gone == name else name
            mask = pairwise_masks.pair_mask(run.session, key, gone, far, run.roster[far][32:], D)
            masks.append(mask if gone == name else np.zeros(D, np.uint64) - mask)
        for k in range(len(masks) + 1):
            for some in combinations(masks, k):
                assert not plain & set((y - sum(some, np.zeros(D, np.uint64))).tolist())
    assert set((run.sent["h1"] - run.mask("h1")).tolist()) & plain     # the scan sees a bare share


# -- drop-outs of a simulation -----------------------------------------------------------------------------------------

def test_vanishing_homes_are_a_function_of_the_query_and_in_all_stages():
    names = [f"h{i}" for i in range(50)]
    gone = vanishing(SumProtocol(0.8, drop_out=0.2), "q1", names)
    assert gone == vanishing(SumProtocol(0.8, drop_out=0.2), "q1", names[::-1])
    assert len(gone) == 10
    assert sorted(gone.values()) == ["keys"] * 4 + ["late"] * 3 + ["secrets"] * 3
    assert set(gone) != set(vanishing(SumProtocol(0.8, drop_out=0.2), "q2", names))
    assert vanishing(SumProtocol(), "q1", names) == {}


# -- statistics: the law, audits, mutants ------------------------------------------------------------------------------

def test_what_opens_is_one_laplace_when_the_fewest_survive_and_more_when_all_do():
    scale, size = Fraction(5, 2), 6000
    zeros = {f"h{i}": np.zeros(size, np.int64) for i in range(5)}
    exactly = Run(gone={"h1": "late"}, protocol=SumProtocol(0.8), z=zeros, size=size, scale=scale)
    assert pmf_p_value(exactly.open(), scale) > 0.01
    whole = Run(protocol=SumProtocol(), z=zeros, size=size, scale=scale)
    assert pmf_p_value(whole.open(), scale) > 0.01
    over = Run(protocol=SumProtocol(0.8), z=zeros, size=size, scale=scale).open().astype(float)
    r = np.exp(-1 / 2.5)
    expected = 2 * r / (1 - r)**2 * 5 / 4                              # n / P = 5 / 4 of one Laplace's variance
    assert abs(over.var() / expected - 1) < 6 * np.sqrt(4 / size)
    assert pmf_p_value(Run(gone={"h1": "late"}, protocol=SumProtocol(0.6), z=zeros, size=size,
                           scale=scale).open(), scale) < 1e-6          # 4 of 3: the test sees it


def audited(event, gone=(), protocol=None, n=5, one=K, other=-K, seen=Run.open, make=Run, trials=TRIALS):
    """99 % bounds of what the event tells about h0's z: each coordinate is one trial of a 1-number query."""
    hits = []
    for side, value in enumerate((one, other)):
        z = {f"h{i}": np.full(trials, K // 7 if i else value) for i in range(n)}
        run = make(n, gone, protocol, z=z, noise=f"side {side}", size=trials, scale=SCALE)
        rest = sum(run.z[name] for name in run.answers if name != "h0")
        hits.append(int(event(seen(run) - rest).sum()))
    return epsilon_bounds(*hits, trials)


def above(y):
    return y >= K


@pytest.mark.parametrize("gone", [{"h1": "late"}, {"h1": "keys"}, {"h2": "shares"}], ids=str)
def test_twenty_percent_drop_outs_keep_the_epsilon(gone):
    low, high = audited(above, gone, SumProtocol(0.8))
    assert 0.85 < low <= 1                                             # .91 expected: exactly one Laplace is left
    assert high >= 0.95


@pytest.mark.parametrize("protocol", [SumProtocol(), SumProtocol(0.8), SumProtocol(0.8, 1)], ids=str)
def test_all_survive_within_epsilon(protocol):
    low, _ = audited(above, {}, protocol)
    assert low <= 1


def near(y):
    return np.abs(y - K) <= 1


def test_mutant_missing_shares_goes_red():
    """Shares of 1 / n and two of five homes gone: three fifths of the noise, whose law peaks at z."""
    class Careless(SumProtocol):
        def parties(self, homes):
            return homes

        def needed(self, homes):
            return 3

    assert audited(near, {"h1": "late", "h2": "late"}, SumProtocol(0.6))[0] <= 1
    assert audited(near, {"h1": "late", "h2": "late"}, Careless(0.6))[0] > 1


def test_mutant_reused_masks_goes_red():
    """Two queries of one home: with masks of the first for both, y - y' is z - z' and two shares that are mostly 0."""
    def difference(query):
        hits = []
        for side, value in enumerate((K, -K)):
            runs = [Run(8, z={f"h{i}": np.full(1000, v) for i in range(8)}, query=name, noise=f"{side} {name}",
                        size=1000, protocol=SumProtocol(), scale=SCALE)
                    for name, v in (("q1", K), (query, value))]
            if query == "q1":
                assert runs[0].mask("h0", 8).tolist() == runs[1].mask("h0", 8).tolist()
            hits.append(int(((runs[0].sent["h0"] - runs[1].sent["h0"]).view(np.int64) == 0).sum()))
        return epsilon_bounds(*hits, 1000)[0]
    assert difference("q2") <= 1
    assert difference("q1") > 2


def test_mutant_float_shares_goes_red():
    """A float z + e keeps no digit of e below z's last place: the digits of an exact sum tell which z was 0.

    h0 has K or 0 (half of replace-one's 2 K: a claimed epsilon of 1/2), the others K or -K. 2**-48: last place of K / 2.
    """
    def fine(y):
        return (np.abs(y) < 1) & (np.ldexp(y, 48) % 1 != 0)

    def hits(z, seed, trials=50_000):
        rng = np.random.default_rng(seed)
        e = rng.gamma(1 / 5, float(SCALE), (trials, 5)) - rng.gamma(1 / 5, float(SCALE), (trials, 5))
        return int(fine(np.array([math.fsum(row) for row in np.add(e, [z, K, -K, K, -K]).tolist()])).sum())

    assert epsilon_bounds(hits(0, 1), hits(K, 2), 50_000)[0] > 3
    assert not fine(Run(protocol=SumProtocol(), scale=SCALE).open().astype(float)).any()
    with pytest.raises(ValueError, match="seal takes"):                # no float gets into a share
        seal(np.array([1]), np.array([0.5]), np.array([1], np.uint64))


def test_mutant_bare_share_goes_red():
    """Without masks one message tells nearly everything: most shares of a noise are 0."""
    def seen(run):
        rest = sum(run.z[name] for name in run.answers if name != "h0")
        return run.sent["h0"].view(np.int64) + rest

    class Bare(Run):
        def mask(self, name, size=D):
            return np.zeros(size, np.uint64)

    assert audited(lambda y: y == K, protocol=SumProtocol(), n=8, seen=seen, trials=1000)[0] <= 1
    assert audited(lambda y: y == K, protocol=SumProtocol(), n=8, seen=seen, make=Bare, trials=1000)[0] > 2


def test_mixed_epsilons_by_clipping_are_what_each_home_granted():
    """A home that grants .25 of the 1 asked is clipped to K / 4: what its answer tells audits to at most .25."""
    bound = K // 4
    low, high = audited(lambda y: y >= bound, {"h1": "late"}, SumProtocol(0.8), one=bound, other=-bound)
    assert 0.15 < low <= 0.25
    assert high >= 0.24
