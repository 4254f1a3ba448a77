"""What a box lets out in non-private training: a model that it trained, or the errors of one that it was sent.

Un-noised model updates are Plains: they leave under trust open alone, where epsilon is infinite, and every one is a row
"unbounded" in the ledger. Private training takes the way of summaries instead (box/box.py, class update).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedenergy.box.box import RELATION, Answer, Box, consider, open_ledger
from fedenergy.box.ledger import Charge
from fedenergy.box.query import UPDATE, SealedQuery
from fedenergy.box.world import SECURE
from fedenergy.privacy.trust import OPEN, Plain

MAX_BYTES = 64 * 1024 * 1024
CLIPPING_NORM, NORM_BIT = "clipping_norm", "norm_bit"  # Flower's names: DifferentialPrivacyClientSide*
PROXIMAL_MU = "proximal-mu"                            # Flower's name: FedProx

Form = tuple[str, tuple[int, ...] | None]


class Computed(NamedTuple):
    """What one home makes of a training message. Arrays by name; metrics: finite numbers."""

    arrays: Mapping[str, np.ndarray]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class UpdateSpec:
    """The form of one kind of answer: public, so that nothing that a home claims about it is believed.

    arrays   name -> (dtype, shape); shape None: one axis of any length up to MAX_BYTES
    metrics  names of the numbers that must be there; may: of those that may
    """

    arrays: Mapping[str, Form]
    metrics: tuple[str, ...]
    may: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Update(Plain):
    """A Plain of training: arrays and metrics as they are. `values` is empty: there is no summary."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=lambda: MappingProxyType({}))
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


Compute = Callable[[Sequence[Box], Sequence[SealedQuery]], Sequence[Computed]]


def make_update(household: str, query_id: str, computed: Computed, spec: UpdateSpec) -> Update:
    """The envelope, checked: ValueError naming the rule, never a value."""
    if set(computed.arrays) != set(spec.arrays):
        raise ValueError(f"an update holds exactly the arrays {sorted(spec.arrays)}")
    for name, (dtype, shape) in spec.arrays.items():
        array = computed.arrays[name]
        fits = array.ndim == 1 and array.nbytes <= MAX_BYTES if shape is None else array.shape == tuple(shape)
        if array.dtype != np.dtype(dtype) or not fits:
            raise ValueError(f"the array {name} of an update is {dtype} {'(n,)' if shape is None else tuple(shape)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError("an update holds finite numbers only")
    known = set(computed.metrics)
    if not set(spec.metrics) <= known <= {*spec.metrics, *spec.may}:
        raise ValueError(f"an update holds the metrics {', '.join(spec.metrics)}"
                         + (f" and at most {', '.join(spec.may)}" if spec.may else ""))
    for value in computed.metrics.values():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError("the metrics of an update are finite numbers")
    return Update(household, query_id, None, np.zeros((2, 0)), MappingProxyType(dict(computed.arrays)),
                  MappingProxyType(dict(computed.metrics)))


def answer_updates(boxes: Sequence[Box], queries: Sequence[SealedQuery], compute: Compute) -> list[Answer]:
    """One Update per box, or its refusal. A row "unbounded" each; asked again it is recomputed and checked.

    compute  what the boxes that will answer make of the message, in order; equal inputs give equal bytes, else the second
             answer to one query is an error
    """
    if not boxes:
        return []
    ledger = open_ledger(boxes[0].world.ledger)
    stored = ledger.lookup([(box.id, query.id) for box, query in zip(boxes, queries, strict=True)])
    answers: list[Answer | None] = [None] * len(boxes)
    order = []
    for at, decision in enumerate(consider(boxes, queries, ledger)):
        box, query = boxes[at], queries[at]
        if query.query_class != UPDATE or query.trust != OPEN:
            answers[at] = Answer(box.id, None, "trust", "un-noised model updates leave under trust open only")
        elif isinstance(decision, Answer) and (box.id, query.id) not in stored:
            answers[at] = decision
        else:
            order.append(at)
    made = compute([boxes[at] for at in order], [queries[at] for at in order]) if order else []
    envelopes = [make_update(boxes[at].id, queries[at].id, one,
                             boxes[at].world.task.update_spec(queries[at].kind, boxes[at].world.population))
                 for at, one in zip(order, made, strict=True)]
    payloads = [digest(boxes[at], envelope) for at, envelope in zip(order, envelopes, strict=True)]
    charges = [_charge(boxes[at], queries[at]) for at in order]
    outcomes = ledger.settle(charges, lambda i: payloads[i]) if order else []
    for at, envelope, payload, outcome in zip(order, envelopes, payloads, outcomes, strict=True):
        if outcome.status not in ("charged", "stored"):
            answers[at] = Answer(boxes[at].id, None, outcome.status, outcome.reason)
        elif outcome.payload != payload:
            raise ValueError(f"household {boxes[at].id}: its data changed since this query was answered; ask with --fresh")
        else:
            answers[at] = Answer(boxes[at].id, envelope, outcome.status)
    return answers


def digest(box: Box, update: Update) -> bytes:
    """32 bytes of what left, keyed by the home: what the ledger keeps of a Plain."""
    state = hashlib.blake2b(key=box.world.key("digest", box.id), digest_size=32)
    for name, array in sorted(update.arrays.items()):
        state.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    for name, value in sorted(update.metrics.items()):
        state.update(f"{name} {value!r}\n".encode())
    return state.digest()


def _charge(box: Box, query: SealedQuery) -> Charge:
    world, (first, last) = box.world, query.blocks
    return Charge(household=box.id, query_id=query.id, content_digest=query.content_digest, cell=query.cell,
                  block_from=first, block_to=last, unit=world.population.unit, relation=RELATION,
                  mechanism=query.mechanism, trust=query.trust, epsilon_micro=None, cap_micro=box.agreement.cap_micro,
                  all_cells=world.noise == SECURE, delta=query.delta, delta_cap=box.agreement.delta)


def clipped_update(sent: Mapping[str, np.ndarray], trained: Mapping[str, np.ndarray],
                   bound: Any) -> tuple[dict[str, np.ndarray], int]:
    """(the model whose change is scaled to an l2 norm of at most bound, 1 where it was): Flower's client-side clipping.

    McMahan et al. 2018 (arXiv:1710.06963), flat clipping. ValueError for a bound that is no number above 0.

    >>> model, bit = clipped_update({"w": np.zeros(2)}, {"w": np.array([3.0, 4.0])}, 1.0)
    >>> model["w"].round(12).tolist(), bit
    ([0.6, 0.8], 1)
    """
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
        raise ValueError(f"{CLIPPING_NORM} is a finite number above 0")
    change = {name: trained[name] - sent[name] for name in trained}
    norm = math.sqrt(math.fsum(float(np.sum(np.square(values))) for values in change.values()))
    factor = min(1.0, bound / norm) if norm > 0 else 1.0
    return {name: sent[name] + values * factor for name, values in change.items()}, int(factor < 1)
