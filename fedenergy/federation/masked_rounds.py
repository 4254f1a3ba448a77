"""A protocol-mode sum over a grid: keys, secrets, masked shares, unmasking (privacy/pairwise_masks.py).

The aggregator keeps a board of what homes posted, public keys and sealed letters, and sends it with every round: here
one record for all homes, so that batches share it; a deployment would send each home its own letters. A box keeps
nothing between rounds: its keys follow from its secret, its masked share lies in the ledger, bound to the board, and
what it unmasked in box/promises.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedenergy import ids
from fedenergy.box.box import Box, Masking, open_ledger
from fedenergy.box.promises import keep_promises
from fedenergy.box.query import SealedQuery
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.privacy.pairwise_masks import (
    BINDING_BYTES,
    COMMITMENT_BYTES,
    KEYS_BYTES,
    LETTER_BYTES,
    Party,
    Session,
    SumClosed,
    open_sum,
)
from fedenergy.privacy.shamir import SHARE_BYTES
from fedenergy.privacy.sum_protocol import KEYS, LATE, SECRETS, SumProtocol

UNMASK = "unmask"
ROUNDS = (KEYS, SECRETS, UNMASK)     # message types query.keys, query.secrets, query.unmask; shares go as the query does
BOARD, POSTED = "board", "posted"
_BOARD = {"homes": str, "roster": str, "keys": bytes, "members": str, "letters": bytes, "survivors": str}


@dataclass(frozen=True)
class Board:
    """What was posted so far: the homes that accepted; household -> keys; household -> letters; the survivors."""

    homes: tuple[str, ...]
    roster: Mapping[str, bytes] = field(default_factory=dict)
    posted: Mapping[str, bytes] = field(default_factory=dict)
    survivors: tuple[str, ...] = ()

    def record(self) -> ConfigRecord:
        """As it travels."""
        return ConfigRecord({"homes": list(self.homes), "roster": list(self.roster), "keys": list(self.roster.values()),
                             "members": list(self.posted), "letters": list(self.posted.values()),
                             "survivors": list(self.survivors)})

    @staticmethod
    def read(content: RecordDict) -> Board:
        """Inverse of record(); whatever does not fit raises ValueError."""
        record = content.get(BOARD)
        if not isinstance(record, ConfigRecord) or set(record) != set(_BOARD) or any(
                type(record[name]) is not list or any(type(item) is not kind for item in record[name])
                for name, kind in _BOARD.items()):
            raise ValueError(f"a board has exactly the lists {', '.join(_BOARD)}")
        if any(len(set(record[name])) != len(record[name]) for name in ("homes", "roster", "members", "survivors")):
            raise ValueError("a board names a home twice")
        return Board(tuple(record["homes"]), dict(zip(record["roster"], record["keys"], strict=True)),
                     dict(zip(record["members"], record["letters"], strict=True)), tuple(record["survivors"]))


# the home's side

def session_of(query: SealedQuery, board: Board) -> Session:
    """The session of a query and a board. ValueError where the query asks for no protocol-mode sum."""
    protocol = SumProtocol.parse(query.mechanism)
    if protocol is None or len(board.homes) > query.homes:
        raise ValueError("a board comes with a protocol-mode sum, over no more homes than were asked")
    return Session(query.id, board.homes, protocol)


@lru_cache(maxsize=512)  # spares the key agreements of earlier rounds; a new process makes the same party again
def _party(session: Session, household: str, secret: bytes) -> Party:
    return Party(session, household, secret)


def _party_of(box: Box, session: Session) -> Party:
    return _party(session, box.id, box.world.key("masks", box.id))


def masked_boxes(boxes: Sequence[Box], query: SealedQuery, content: RecordDict, parties: int) -> list[Box]:
    """The boxes, each with its mask where the message carries a board.

    Errors: ValueError where the number of parties is not that of the session, or a home's letters do not open.
    """
    if BOARD not in content:
        return list(boxes)
    board = Board.read(content)
    session = session_of(query, board)
    if parties != session.parties:
        raise ValueError(f"parties = {parties} to a sum of {session.parties}")
    size, binding = len(boxes[0].world.spec(query.kind).coordinates), session.binding(board.roster, board.posted)
    found = []
    for box in boxes:
        masked = copy.copy(box)
        masked.masking = Masking(_party_of(box, session).mask(board.roster, board.posted, size), binding)
        found.append(masked)
    return found


def handler(homes, round_name: str) -> Callable[[Sequence[Message], Sequence[Context]], list[Message]]:
    """The batch handler of one of ROUNDS for fedenergy.federation.client_app.Homes."""
    def answer(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        query, extras = records.read_query(messages[0].content)
        board = Board.read(messages[0].content)
        session = session_of(query, board)
        boxes = [homes.box(extras["world"], int(context.node_config["partition-id"])) for context in contexts]
        if round_name == KEYS:
            values = [_party_of(box, session).advertise() for box in boxes]
        elif round_name == SECRETS:
            values = [_party_of(box, session).share_keys(board.roster) for box in boxes]
        else:
            values = _unmask(boxes, query, session, board)
        return [flower.reply(message, records.refusal(box.id, query.id) if value is None else RecordDict(
            {POSTED: ConfigRecord({"household": box.id, "query_id": query.id, "value": value})}))
            for message, box, value in zip(messages, boxes, values, strict=True)]

    def many(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        replies, start = [], 0
        for at in range(1, len(messages) + 1):  # messages of one content together, as they come
            if at == len(messages) or messages[at].content is not messages[start].content:
                replies += answer(messages[start:at], contexts[start:at])
                start = at
        return replies
    return many


def _unmask(boxes: Sequence[Box], query: SealedQuery, session: Session, board: Board) -> list[bytes | None]:
    """Round 4: only a box whose share of this very board was charged, and only for one set of survivors, for good."""
    folder = boxes[0].world.ledger
    stored = open_ledger(folder).lookup([(box.id, query.id) for box in boxes])
    binding = session.binding(board.roster, board.posted)
    opened: list[bytes | None] = []
    for box in boxes:
        row = stored.get((box.id, query.id))
        sent = row is not None and row.content_digest == query.content_digest \
            and row.payload[-BINDING_BYTES:] == binding
        opened.append(_party_of(box, session).unmask(board.roster, board.posted, board.survivors) if sent else None)
    digest = ids.digest(b"fe.survivors.1", sorted(board.survivors), 32)
    able = [at for at, value in enumerate(opened) if value is not None]
    kept = keep_promises(folder, [(boxes[at].id, session.id + binding, digest) for at in able])
    for at, promised in zip(able, kept, strict=True):
        opened[at] = opened[at] if promised else None
    return opened


# the aggregator's side

class MaskedRounds:
    """One protocol-mode sum, from the homes that accepted to the one number vector.

    send       messages -> a reply for each; adds the query record
    ask        (messages, parties) -> household -> masked share, of those that answered; adds the query record
    names      household of each of the messages `takers`, which accepted
    vanishing  household -> stage: homes that the simulation makes vanish
    too_many   whether the study stops where so many homes are lost: nothing is unmasked then, nor charged if it is seen
               before
    """

    def __init__(self, query: SealedQuery, takers: Sequence[Message], names: Sequence[str],
                 send: Callable[[list[Message]], list[Message]],
                 ask: Callable[[list[Message], int], Mapping[str, np.ndarray]], vanishing: Mapping[str, str],
                 too_many: Callable[[int], bool] = lambda lost: False) -> None:
        self.query, self.send, self.ask = query, send, ask
        self.takers = dict(zip(names, takers, strict=True))
        self.gone, self.too_many = vanishing, too_many
        self.board = Board(tuple(sorted(names)))
        self.answers: Mapping[str, np.ndarray] = {}
        self.lost: set[str] = set()      # homes that dropped out before their answer, of themselves
        self.silent: set[str] = set()    # homes that failed after it: a loss only where the sum stays closed
        self._opened: Mapping[str, bytes] = {}

    def play(self) -> tuple[str, ...]:
        """All four rounds. Returns the survivors. SumClosed where too few are left; before round 3 nobody is charged."""
        session = session_of(self.query, self.board)
        present = [name for name in self.takers if self.gone.get(name) != KEYS]
        self.board = replace(self.board, roster=self._round(KEYS, present, KEYS_BYTES))
        session.check_roster(self.board.roster)
        size = COMMITMENT_BYTES + LETTER_BYTES * len(self.board.roster)
        self.board = replace(self.board, posted=self._round(SECRETS, list(self.board.roster), size))
        members = session.members(self.board.roster, self.board.posted)
        present = [name for name in members if self.gone.get(name) != SECRETS]
        session.check_survivors(members, present)
        self._enough()
        arrived = self.ask(self._with_board([self.takers[name] for name in present]), session.parties)
        self.lost |= set(present) - set(arrived) - set(self.gone)
        self._enough()
        self.answers = {name: share for name, share in arrived.items() if self.gone.get(name) != LATE}
        self.board = replace(self.board, survivors=session.check_survivors(members, list(self.answers)))
        self._opened = self._round(UNMASK, list(self.board.survivors), SHARE_BYTES * len(members))
        return self.board.survivors

    def open(self) -> np.ndarray:
        """(d,) int64, after play(): the sum over the survivors. SumClosed where it cannot be opened."""
        return open_sum(session_of(self.query, self.board), self.board.roster, self.board.posted, self.answers,
                        self._opened)

    def _round(self, kind: str, names: Sequence[str], size: int) -> dict[str, bytes]:
        """What the homes posted, each that many bytes; one that fails, refuses or breaks the schema has dropped out."""
        content = RecordDict({BOARD: self.board.record()})
        messages = [flower.instruction(content, self.takers[name].metadata.dst_node_id, f"query.{kind}",
                                       self.takers[name].metadata.group_id) for name in names]
        found = {}
        for name, reply in zip(names, self.send(messages), strict=True):
            record = reply.content.get(POSTED) if reply.has_content() else None
            if isinstance(record, ConfigRecord) and set(record) == {"household", "query_id", "value"} \
                    and (record["household"], record["query_id"]) == (name, self.query.id) \
                    and type(record["value"]) is bytes and len(record["value"]) == size:
                found[name] = record["value"]
            elif kind != UNMASK and name not in self.gone:
                self.lost.add(name)
            elif kind == UNMASK and not reply.has_content():
                self.silent.add(name)
        return dict(sorted(found.items()))

    def _enough(self) -> None:
        if self.too_many(len(self.lost)):
            raise SumClosed(f"{len(self.lost)} homes failed, more than the study allows")

    def _with_board(self, messages: Sequence[Message]) -> list[Message]:
        """The strategy's own messages with the board; those that share a content share the new one."""
        record, contents, found = self.board.record(), {}, []
        for message in messages:
            own = message.content
            if id(own) not in contents:
                contents[id(own)] = RecordDict({**own, BOARD: record})
            found.append(flower.instruction(contents[id(own)], message.metadata.dst_node_id,
                                            message.metadata.message_type, message.metadata.group_id))
        return found
