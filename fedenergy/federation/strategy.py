"""ZoneStrategy: a Flower Strategy that asks every home and combines the answers, for strategies of a few lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedenergy.federation import records

EPSILON_UNIT = 1e-6


@dataclass(frozen=True)
class Answers:
    """What reached the aggregator in one round, sorted by household.

    values      (n, d) one row per answer: a home's Release (trust local), or the one ZoneRelease (sum, curator);
                trust open: (n, 2, d), clipped and unclipped
    epsilons    (n,) epsilon of each row; NaN under trust open
    households  n names; the zone's own answer is called "*zone"
    """

    values: np.ndarray
    epsilons: np.ndarray
    households: tuple[str, ...]


class ZoneStrategy(Strategy):
    """Abstract. A subclass defines combine(answers) -> (d,), and may declare its class attributes:

    trust      "local" (default), "sum", "curator" or "open": which envelope the homes send
    mechanism  "laplace" (default)
    returns    "sum" (default here): combine gives the zone's sum; "mean": the mean over the homes that answered
    """

    trust = "local"
    mechanism = "laplace"
    returns = "sum"

    @abstractmethod
    def combine(self, answers: Answers) -> np.ndarray:
        """The zone's vector (d,) from the answers; a pure function."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                        grid: Grid) -> list[Message]:
        """One message to every home. TrustGrid adds the query."""
        content = RecordDict({records.ARRAYS: arrays, "config": config})
        return [Message(content=content, dst_node_id=node, message_type="train", group_id=str(server_round))
                for node in grid.get_node_ids()]

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies; None where nobody answered."""
        contents = [reply.content for reply in replies if reply.has_content()]
        if not contents:
            return None, None
        zone = np.asarray(self.combine(_read(contents)))
        if zone.dtype.kind not in "iuf":
            raise TypeError(f"combine returned {zone.dtype} {zone.shape}: real numbers (d,) are expected")
        zone = zone.astype(np.float64)
        return ArrayRecord({records.SUMMARY: Array(zone)}), MetricRecord()

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                           grid: Grid) -> list[Message]:
        """Releases are not evaluated on the homes."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing to log: the report says what ran."""


def _read(contents: list[RecordDict]) -> Answers:
    """One reply per home; or one for all homes, where nodes are shards of them."""
    if "households" in contents[0][records.ENVELOPE]:
        arrays, fields = contents[0][records.ARRAYS], contents[0][records.ENVELOPE]
        names, values = tuple(fields["households"].decode().split("\n")), arrays[records.SUMMARY].numpy()
        micro = arrays["epsilon_micro"].numpy() if "epsilon_micro" in arrays else np.full(len(names), np.nan)
        return Answers(values, micro * EPSILON_UNIT, names)
    fields = [content[records.ENVELOPE] for content in contents]
    return Answers(np.stack([content[records.ARRAYS][records.SUMMARY].numpy() for content in contents]),
                   np.array([f["epsilon_micro"] * EPSILON_UNIT if "epsilon_micro" in f else np.nan for f in fields]),
                   tuple(f["household"] for f in fields))
