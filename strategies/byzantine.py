"""Byzantine: a test instrument, no aggregation of its own. Corrupts a share of the answers before another strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedenergy import ids
from fedenergy.federation import records
from fedenergy.federation.around import Around


def corrupted(households: Sequence[str], share: float, seed: int = 0) -> frozenset[str]:
    """The floor(share n) of n household names that misbehave: a set fixed by names and seed, whatever their order.

    >>> sorted(corrupted(["home-1", "home-2", "home-3", "home-4"], share=0.5))
    ['home-1', 'home-3']
    """
    order = sorted(households, key=lambda name: ids.digest(b"fe.byzantine.1", [seed, name]))
    return frozenset(order[:at_most(share, len(order))])


def at_most(share: float, count: int) -> int:
    """floor(share count), forgiving the rounding of decimal shares.

    >>> at_most(0.29, 100)
    29
    """
    return int(share * count + 1e-9)


def push(size: float, coordinates: int) -> np.ndarray:
    """What a bad home adds to its answer (d,): -size on even coordinates, size on odd ones, so that ranks break too.

    >>> push(2.0, 3)
    array([-2.,  2., -2.])
    """
    return np.where(np.arange(coordinates) % 2, size, -size)


class Byzantine(Around):
    """A test instrument: what `inner` makes of the answers when a share of the homes lies.

    inner      "module:Name" of a strategy, Flower's own too; arguments: its arguments
    share      of the homes that answered, rounded down, 0 to 1; the same ones in every round
    size       added by each bad home to every coordinate, units of S, signs alternating. A multiple of the noise grid
               (whole numbers are, for C < 2^21) cannot be told from an honest Release by its form. In training it is added
               to every weight of the home's model
    seed       of the choice of homes
    Trust, mechanism and `returns` are those of inner. Under trust sum and curator nobody sees a single answer, so the
    push of all bad homes is added to the zone's one: such a sum cannot tell either. Privacy is untouched.
    """

    def __init__(self, inner: str, share: float = 0.1, size: float = 1000.0, seed: int = 0,
                 arguments: Mapping[str, Any] | None = None) -> None:
        for name, value, most in (("share", share, 1.0), ("size", size, 1e12)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                raise ValueError(f"Byzantine: {name} = {value!r} is not a number from 0 to {most:g}")
        self.share, self.size, self.seed = float(share), float(size), seed
        super().__init__(inner, arguments)

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.inner.aggregate_train(server_round, self._spoilt(list(replies)))

    def _spoilt(self, replies: list[Message]) -> list[Message]:
        names = [_envelope(reply)["household"] for reply in replies if reply.has_content()]
        bad = corrupted(names, self.share, self.seed)
        spoilt = []
        for reply in replies:
            if reply.has_content():
                fields = _envelope(reply)
                one = fields["household"]
                liars = at_most(self.share, fields["answers"]) if one == records.ZONE else int(one in bad)
                reply = _pushed(reply, liars * self.size)
            spoilt.append(reply)
        return spoilt


def _envelope(reply: Message) -> ConfigRecord:
    return reply.content[records.ENVELOPE]


def _pushed(reply: Message, size: float) -> Message:
    """A copy of the reply with the push added; the original stays as it is."""
    content = RecordDict({name: record.copy() for name, record in reply.content.items()})
    arrays = {name: array.numpy() for name, array in content[records.ARRAYS].items()}
    if records.SUMMARY in arrays:
        arrays[records.SUMMARY] = arrays[records.SUMMARY] + push(size, arrays[records.SUMMARY].shape[-1])
    else:  # a model's weights; bytes stay as they are
        arrays = {name: values + push(size, values.size).reshape(values.shape) if values.dtype.kind == "f" else values
                  for name, values in arrays.items()}
    content[records.ARRAYS] = ArrayRecord({name: Array(values) for name, values in arrays.items()})
    return Message(metadata=reply.metadata, content=content)
