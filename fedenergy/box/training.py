"""What a box lets out for training: one clipped update (class update), or its windowed records to the trusted trainer.

Updates take the way of every summary (box/box.py). Windows leave in the one envelope that carries no noise, to the Curator
alone, where the agreement grants the class windows; the charge is what the model that is trained on them will cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from fedenergy.box.box import RELATION, Answer, Box, consider, open_ledger
from fedenergy.box.ledger import Charge
from fedenergy.box.query import WINDOWS, SealedQuery
from fedenergy.box.world import SECURE
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.trust import CURATOR, Deposit
from fedenergy.privacy.window_records import WIDTH, check_windows, window_deposit

Windowed = Callable[[Sequence[Box], Sequence[SealedQuery]], Sequence[NoiseFree]]


def window_shape(query: SealedQuery, coordinates: int) -> tuple[int, int]:
    """(n, T) of a home's windows: as many as the kind has coordinates, of the task's length. ValueError without one."""
    task = query.body["task"]
    length = str(task.get("length", "")) if hasattr(task, "get") else ""
    if not (length.isascii() and length.isdigit() and 2 <= int(length) <= 100_000):
        raise ValueError("a query of class windows is of a task that states the length of a window")
    return coordinates, int(length)


def answer_windows(boxes: Sequence[Box], queries: Sequence[SealedQuery], windowed: Windowed) -> list[Answer]:
    """One Deposit of windows per box, or its refusal. Charged once; asked again it is recomputed and checked.

    windowed  (n, T) records of the boxes that will answer, NaN where missing
    """
    if not boxes:
        return []
    ledger = open_ledger(boxes[0].world.ledger)
    stored = ledger.lookup([(box.id, query.id) for box, query in zip(boxes, queries, strict=True)])
    answers: list[Answer | None] = [None] * len(boxes)
    granted: dict[int, int] = {}
    for at, decision in enumerate(consider(boxes, queries, ledger)):
        box, query = boxes[at], queries[at]
        row = stored.get((box.id, query.id))
        if query.query_class != WINDOWS or query.trust != CURATOR:
            answers[at] = Answer(box.id, None, "trust", "windows go to the Curator alone")
        elif row is not None:
            granted[at] = row.epsilon_micro
        elif isinstance(decision, Answer):
            answers[at] = decision
        elif decision < query.epsilon_micro:  # one noise for all: who grants less cannot take part
            answers[at] = Answer(box.id, None, "offer", "the training costs more than the policy offers")
        else:
            granted[at] = decision
    order = list(granted)
    found = windowed([boxes[at] for at in order], [queries[at] for at in order]) if order else []
    records = [_Records(boxes[at], queries[at], granted[at], values) for at, values in zip(order, found, strict=True)]
    outcomes = ledger.settle([item.charge() for item in records], lambda i: records[i].digest()) if order else []
    for at, item, outcome in zip(order, records, outcomes, strict=True):
        told = outcome.status in ("charged", "stored")
        answers[at] = (Answer(boxes[at].id, item.envelope(outcome.payload), outcome.status) if told
                       else Answer(boxes[at].id, None, outcome.status, outcome.reason))
    return answers


class _Records:
    """One home's windows on their way out."""

    def __init__(self, box: Box, query: SealedQuery, granted: int, windows: NoiseFree) -> None:
        self.box, self.query, self.granted = box, query, granted
        self.shape = window_shape(query, len(box.world.spec(query.kind).coordinates))
        self.values: np.ndarray = window_deposit(windows, self.shape, query.clip)

    def charge(self) -> Charge:
        world, query, agreement = self.box.world, self.query, self.box.agreement
        first, last = query.blocks
        return Charge(household=self.box.id, query_id=query.id, content_digest=query.content_digest, cell=query.cell,
                      block_from=first, block_to=last, unit=world.population.unit, relation=RELATION,
                      mechanism=query.mechanism, trust=query.trust, epsilon_micro=self.granted,
                      cap_micro=agreement.cap_micro, all_cells=world.noise == SECURE, delta=query.delta,
                      delta_cap=agreement.delta)

    def digest(self) -> bytes:
        key = self.box.world.key("digest", self.box.id)
        return hashlib.blake2b(self.values.astype(WIDTH).tobytes(), key=key, digest_size=32).digest()

    def envelope(self, payload: bytes) -> Deposit:
        if payload != self.digest():
            raise ValueError(f"household {self.box.id}: its data changed since this query was charged; ask with --fresh")
        return check_windows(Deposit(self.box.id, self.query.id, self.granted, self.values), self.shape, self.query.clip)
