"""SecureSum in protocol mode: masks that cancel in the sum, so that no party needs to be trusted with a single answer.

Source: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning" (the protocol
against an honest-but-curious server), with integers modulo 2**64, 256-bit keys throughout, and noise shares beneath the
masks (Acs & Castelluccia 2011). A home sends

    y_u = z_u + e_u + p(b_u) + sum over v > u of p(k_uv) - sum over v < u of p(k_uv)      modulo 2**64

z_u clipped grid integers, e_u its exact share of one discrete Laplace noise, p a keyed BLAKE2b in counter mode, b_u the
home's own mask seed, k_uv = k_vu a key from X25519 and HKDF. Rounds, all through the aggregator:

1. keys      every home that accepted posts two public keys: one for sealed letters, one for masks
2. secrets   it shares its mask key and b_u among all homes (Shamir, threshold t), each share sealed for its holder
3. shares    it sends y_u: charged and stored, once per query id
4. unmask    it opens, for every home of round 2, ONE of its two shares: of b_u if y_u arrived, else of the mask key

| of whom                       | what aggregator and c colluding homes hold together       | what follows             |
|-------------------------------|-----------------------------------------------------------|--------------------------|
| the honest survivors          | every b, no mask key                                      | the sum of their z + e   |
| a home that dropped out, or   | its mask key, not its b (c < t shares of it)              | nothing, even from its y |
| whose y came late             |                                                           |                          |

Threat model: the aggregator and up to c homes are honest but curious and collude; who survives does not depend on
readings. Guarantee: they learn the sum over the honest survivors (computationally: X25519, HKDF, BLAKE2b as a PRF,
ChaCha20-Poly1305), and that sum holds at least P shares of 1/P, one whole discrete Laplace, unknown to them: replace-one
epsilon as charged, of every home. Detected: wrong shares of a key (commitments, public keys), letters of another session,
replays and reused masks (every key is bound to the query id, the homes that accepted and the parameters; a masked answer
is stored with the board that it belongs to), and two sets of survivors for one session: t > (n + c) / 2, so no two sets
find t homes each, as an honest box opens for one alone (box/promises.py). Out of scope: an aggregator that stands in the
middle of round 1 (the channel must be authentic; agreements carry a box's signing key) or invents homes, homes that send
a wrong y (true of every sum of unseen values), side channels. Keys follow from a secret of the box, so that a restarted
box goes on where it was; hence no forward secrecy: who later takes that secret and the old messages reads its old y.

Noise: P = ceil(tau n) shares of 1/P make one whole Laplace, n homes accepted. The sum opens over s survivors only if
s - c >= P and s >= t, which every box checks itself before round 4. Variance s / P times one Laplace's: about 1 / tau
if all n survive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedenergy import ids
from fedenergy.households.household import check_household_id
from fedenergy.privacy import shamir
from fedenergy.privacy.noise_free import Sealed
from fedenergy.privacy.secure_sum import pad
from fedenergy.privacy.sum_protocol import MAX_HOMES, SumProtocol

KEYS_BYTES = 64
LETTER_BYTES = 2 * shamir.SHARE_BYTES + 16
COMMITMENT_BYTES = 32
BINDING_BYTES = 32
_NONCE = bytes(12)        # every letter has its own key


class SumClosed(ValueError):
    """The sum stays closed: too few homes are left, or what they sent does not fit together. Nothing is refunded."""


@dataclass(frozen=True)
class Session:
    """One run of the protocol: a query, the homes that accepted it (sorted, fixed), and the parameters.

    Errors: ValueError for malformed or repeated homes, and for more than MAX_HOMES; SumClosed where even all of them
    are too few for the parameters.
    """

    query_id: str
    homes: tuple[str, ...]
    protocol: SumProtocol

    def __post_init__(self) -> None:
        names = tuple(sorted(check_household_id(name) for name in self.homes))
        if len(set(names)) != len(names):
            raise ValueError(f"the {len(names)} homes of a sum repeat an id")
        if len(names) > MAX_HOMES:
            raise ValueError(f"a protocol-mode sum over {len(names)} homes: every home writes to every other, so at most "
                             f"{MAX_HOMES}; use SecureSum(mode=\"ideal\"), or zones of fewer homes")
        object.__setattr__(self, "homes", names)
        if self.needed > len(names):
            raise SumClosed(f"{len(names)} homes accepted and {self.needed} must survive: lower tau or colluders")

    @cached_property
    def id(self) -> bytes:
        """32 bytes that every key is bound to."""
        return ids.digest(b"fe.masks.1", [self.query_id, self.homes, self.protocol.mechanism], 32)

    @property
    def parties(self) -> int:
        return self.protocol.parties(len(self.homes))

    @property
    def threshold(self) -> int:
        return self.protocol.threshold(len(self.homes))

    @property
    def needed(self) -> int:
        return self.protocol.needed(len(self.homes))

    @cached_property
    def points(self) -> dict[str, int]:
        """The Shamir point of each home."""
        return {name: place for place, name in enumerate(self.homes, 1)}

    def binding(self, roster: Mapping[str, bytes], posted: Mapping[str, bytes]) -> bytes:
        """32 bytes over all that rounds 1 and 2 posted: what a stored y belongs to."""
        board = [[name, roster[name], hashlib.blake2b(posted[name], digest_size=32).digest()]
                 for name in self.members(roster, posted)]
        return ids.digest(b"fe.board.1", [self.id, board], BINDING_BYTES)

    def members(self, roster: Mapping[str, bytes], posted: Mapping[str, bytes]) -> tuple[str, ...]:
        """The homes of round 2, sorted, after checking the board. SumClosed where they are too few."""
        self.check_roster(roster)
        letters = COMMITMENT_BYTES + LETTER_BYTES * len(roster)
        for name, letter in posted.items():
            if name not in roster or not isinstance(letter, bytes) or len(letter) != letters:
                raise ValueError(f"the secrets posted for {name!r} are not {letters} bytes of a home in the roster")
        return self._enough(posted, "shared their secrets")

    def check_roster(self, roster: Mapping[str, bytes]) -> tuple[str, ...]:
        """The homes of round 1, sorted. SumClosed where they are too few."""
        for name, keys in roster.items():
            if name not in self.points or not isinstance(keys, bytes) or len(keys) != KEYS_BYTES:
                raise ValueError(f"the keys posted for {name!r} are not {KEYS_BYTES} bytes of a home that accepted")
        if len({keys[:32] for keys in roster.values()} | {keys[32:] for keys in roster.values()}) != 2 * len(roster):
            raise SumClosed("two homes posted one key: the sum stays closed")
        return self._enough(roster, "posted keys")

    def check_survivors(self, members: Sequence[str], survivors: Sequence[str]) -> tuple[str, ...]:
        """The homes of round 3, sorted. SumClosed where they are too few."""
        if len(set(survivors)) != len(survivors) or not set(survivors) <= set(members):
            raise ValueError("the survivors are not distinct homes that shared their secrets")
        return self._enough(survivors, "answered")

    def _enough(self, names, what: str) -> tuple[str, ...]:
        if len(names) < self.needed:
            raise SumClosed(f"{len(names)} of {len(self.homes)} homes {what} and {self.needed} are needed (tau = "
                            f"{self.protocol.tau:g}, colluders = {self.protocol.colluders}): the sum stays closed, "
                            "charges stay; ask a new query, with a lower tau")
        return tuple(sorted(names))


class Party(Sealed):
    """One home's side of one session. Everything follows from the box's secret: made again, it says the same.

    session, household  of this run; secret: the box's own 32 bytes
    """

    __slots__ = ("__channel", "__household", "__keys", "__letters", "__mask_key", "__secret", "__session",
                 "__shared", "__split")
    _label = "<Party>"

    def __init__(self, session: Session, household: str, secret: bytes) -> None:
        if household not in session.points:
            raise ValueError(f"household {household} is not among the homes of this sum")
        if not isinstance(secret, bytes) or len(secret) != 32:
            raise ValueError("a box's secret is 32 bytes")
        self.__session, self.__household, self.__secret = session, household, secret
        self.__channel = X25519PrivateKey.from_private_bytes(self.__derive("channel"))
        self.__mask_key = X25519PrivateKey.from_private_bytes(self.__derive("mask"))
        self.__keys = _public(self.__channel) + _public(self.__mask_key)
        self.__split: tuple[list[bytes], list[bytes]] | None = None
        self.__shared: dict[bytes, bytes] = {}
        self.__letters: dict[tuple[bytes, str], bytes] = {}

    def __derive(self, purpose: str, place: int = 0, size: int = 32) -> bytes:
        message = ids.canon([purpose, self.__session.id, self.__household, place])
        return hashlib.blake2b(message, key=self.__secret, digest_size=size, person=b"fe.party.1").digest()

    def advertise(self) -> bytes:
        """Round 1: 64 bytes, the public keys for letters and for masks."""
        return self.__keys

    def share_keys(self, roster: Mapping[str, bytes]) -> bytes:
        """Round 2: a commitment to b, then one sealed letter per home of the roster, in its order: 32 + 82 m bytes."""
        names = self.__checked(roster)
        if self.__split is None:
            self.__split = self.__shares("self"), self.__shares("mask")
        mine, masks = self.__split
        letters = [_seal(self.__letter_key(roster[name], self.__household, name),
                         mine[self.__session.points[name] - 1] + masks[self.__session.points[name] - 1])
                   for name in names]
        return commitment(self.__session, self.__household, self.__derive("self")) + b"".join(letters)

    def __shares(self, what: str) -> list[bytes]:
        session, draws = self.__session, count()
        return shamir.split(self.__derive(what), session.threshold, len(session.homes),
                            lambda n: self.__derive(f"{what} share", next(draws), n))

    def mask(self, roster: Mapping[str, bytes], posted: Mapping[str, bytes], size: int) -> np.ndarray:
        """Round 3: (size,) uint64, what is added to z + e; over the homes of round 2, whose letters must open."""
        members = self.__joined(roster, posted)
        self.__open_letters(roster, posted, members)
        total = self_mask(self.__session, self.__household, self.__derive("self"), size)
        for name in members:
            if name != self.__household:
                total += pair_mask(self.__session, self.__mask_key, self.__household, name, roster[name][32:], size)
        return total

    def unmask(self, roster: Mapping[str, bytes], posted: Mapping[str, bytes], survivors: Sequence[str]) -> bytes:
        """Round 4: for each home of round 2, in order, 33 bytes: the share of b of a survivor, of the mask key of
        another; never both. Call it for one set of survivors alone (fedenergy.box.promises keeps a box to that).

        Errors: SumClosed where the survivors are too few; ValueError where this home is not one of them.
        """
        members = self.__joined(roster, posted)
        alive = set(self.__session.check_survivors(members, survivors))
        if self.__household not in alive:
            raise ValueError(f"household {self.__household} is not among the survivors: it opens nothing")
        opened = self.__open_letters(roster, posted, members)
        cut = shamir.SHARE_BYTES
        return b"".join(opened[name][:cut] if name in alive else opened[name][cut:] for name in members)

    def __checked(self, roster: Mapping[str, bytes]) -> tuple[str, ...]:
        names = self.__session.check_roster(roster)
        if roster.get(self.__household) != self.__keys:
            raise ValueError(f"household {self.__household}: the roster has other keys for it than its own")
        return names

    def __joined(self, roster: Mapping[str, bytes], posted: Mapping[str, bytes]) -> tuple[str, ...]:
        self.__checked(roster)
        members = self.__session.members(roster, posted)
        if self.__household not in members or posted[self.__household] != self.share_keys(roster):
            raise ValueError(f"household {self.__household}: its secrets were not posted as it sent them")
        return members

    def __open_letters(self, roster: Mapping[str, bytes], posted: Mapping[str, bytes],
                       members: Sequence[str]) -> dict[str, bytes]:
        place = COMMITMENT_BYTES + LETTER_BYTES * sorted(roster).index(self.__household)
        found = {}
        for name in members:
            key = self.__letter_key(roster[name], name, self.__household)
            try:
                found[name] = ChaCha20Poly1305(key).decrypt(_NONCE, posted[name][place:place + LETTER_BYTES], None)
            except InvalidTag:
                raise ValueError(f"the letter from {name} to {self.__household} was not sealed by {name}, for it, in "
                                 "this session: this home takes no part") from None
        return found

    def __letter_key(self, keys: bytes, sender: str, receiver: str) -> bytes:
        """The key of a letter from this home or to it; keys: what the other posted."""
        if (letter := (keys, sender)) not in self.__letters:
            if keys not in self.__shared:
                self.__shared[keys] = self.__channel.exchange(X25519PublicKey.from_public_bytes(keys[:32]))
            self.__letters[letter] = _hkdf(self.__shared[keys], self.__session.id, "letter", sender, receiver)
        return self.__letters[letter]


def self_mask(session: Session, household: str, seed: bytes, size: int) -> np.ndarray:
    """p(b_u): (size,) uint64."""
    return pad(_hkdf(seed, session.id, "self", household), household, session.query_id, size)


def pair_mask(session: Session, mask_key: X25519PrivateKey, own: str, other: str, public: bytes,
              size: int) -> np.ndarray:
    """+ p(k_uv) where own < other, else - p(k_uv): (size,) uint64, what `own` adds for its pair with `other`."""
    first, second = sorted((own, other))
    shared = mask_key.exchange(X25519PublicKey.from_public_bytes(public))
    mask = pad(_hkdf(shared, session.id, "pair", first, second), first, session.query_id, size)
    return mask if own == first else np.zeros(size, np.uint64) - mask


def commitment(session: Session, household: str, seed: bytes) -> bytes:
    """32 bytes that show later that a recovered b is the one that the home shared; b has 256 bits, so they hide it."""
    return ids.digest(b"fe.commit.1", [session.id, household, seed], COMMITMENT_BYTES)


def open_sum(session: Session, roster: Mapping[str, bytes], posted: Mapping[str, bytes],
             answers: Mapping[str, np.ndarray], opened: Mapping[str, bytes]) -> np.ndarray:
    """(d,) int64: the sum of z + e over the survivors, from their y (d,) uint64 and what at least t homes unmasked.

    answers  survivor -> y; exactly the survivors that the homes were told, late ones left out
    opened   home -> its bytes of round 4
    Errors: SumClosed where too few homes survive or unmask, where a recovered key is not the one posted, or where an
    array does not fit.
    """
    members = session.members(roster, posted)
    survivors = session.check_survivors(members, list(answers))
    arrays = {name: np.asarray(array) for name, array in answers.items()}
    if len({array.shape for array in arrays.values()}) != 1 \
            or any(array.dtype != np.uint64 or array.ndim != 1 for array in arrays.values()):
        raise SumClosed("masked answers are uint64 of one length (d,): the sum stays closed")
    secrets = recover(session, members, survivors, opened)
    total = np.zeros(next(iter(arrays.values())).shape, np.uint64)
    for name in survivors:
        if commitment(session, name, secrets[name]) != posted[name][:COMMITMENT_BYTES]:
            raise SumClosed(f"the seed recovered for {name} is not the one it shared: a share is wrong")
        total += arrays[name] - self_mask(session, name, secrets[name], total.size)
    for name in members:
        if name not in arrays:
            key = X25519PrivateKey.from_private_bytes(secrets[name])
            if _public(key) != roster[name][32:]:
                raise SumClosed(f"the key recovered for {name} is not the one it posted: a share is wrong")
            for other in survivors:  # the survivor's half of the pair is the negative of this one
                total += pair_mask(session, key, name, other, roster[other][32:], total.size)
    return total.view(np.int64)


def recover(session: Session, members: Sequence[str], survivors: Sequence[str],
            opened: Mapping[str, bytes]) -> dict[str, bytes]:
    """The 32-byte secret of each home of round 2: b of a survivor, the mask key of another."""
    size = shamir.SHARE_BYTES
    helpers = [name for name in sorted(opened) if name in set(survivors) and len(opened[name]) == size * len(members)]
    if len(helpers) < session.threshold:
        raise SumClosed(f"{len(helpers)} homes unmasked and {session.threshold} are needed: the sum stays closed, "
                        "charges stay")
    helpers = helpers[:session.threshold]
    weights = shamir.weights([session.points[name] for name in helpers])
    try:
        return {name: shamir.combine([opened[helper][size * at:size * (at + 1)] for helper in helpers], weights)
                for at, name in enumerate(members)}
    except ValueError as error:
        raise SumClosed(str(error)) from error


def _public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def _hkdf(secret: bytes, salt: bytes, *info: str) -> bytes:
    return HKDF(SHA256(), 32, salt, " ".join(info).encode()).derive(secret)  # names hold no space


def _seal(key: bytes, text: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)
