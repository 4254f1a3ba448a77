"""Lossy: a test instrument, no aggregation of its own. A share of the answers never reaches another strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord

from fedenergy.federation.around import Around
from fedenergy.ids import stream


def arrives(node: int, server_round: int, share: float, seed: int = 0) -> bool:
    """Whether the answer of a node arrives in a round: drawn for each, whatever else happens.

    >>> sum(arrives(node, 1, share=0.25) for node in range(10_000)) / 10_000
    0.7556
    """
    return float(stream(seed, "lossy", str(node), str(server_round)).random()) >= share


class Lossy(Around):
    """A test instrument: what `inner` makes of the answers when homes drop out after they answered.

    inner   "module:Name" of a strategy, Flower's own too; arguments: its arguments
    share   of the answers that are lost, 0 to below 1, drawn by home and round; seed: of the draw
    Trust, mechanism and `returns` are those of inner. What was charged stays charged. Where all are lost inner is not asked.
    """

    def __init__(self, inner: str = "strategies.zonal_sum:ZonalSum", share: float = 0.1, seed: int = 0,
                 arguments: Mapping[str, Any] | None = None) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise ValueError(f"Lossy: share = {share!r} of the answers is lost: use 0 <= share < 1")
        self.share, self.seed = float(share), seed
        super().__init__(inner, arguments)

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = [reply for reply in replies if arrives(reply.metadata.src_node_id, server_round, self.share, self.seed)]
        return self.inner.aggregate_train(server_round, kept) if kept else (None, None)
