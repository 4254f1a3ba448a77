"""Lossy: a test instrument, no aggregation of its own. A share of the answers never reaches another strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedenergy.config import Spec
from fedenergy.ids import stream
from fedenergy.privacy.trust import LOCAL


def arrives(node: int, server_round: int, share: float, seed: int = 0) -> bool:
    """Whether the answer of a node arrives in a round: drawn for each, whatever else happens.

    >>> sum(arrives(node, 1, share=0.25) for node in range(10_000)) / 10_000
    0.7556
    """
    return float(stream(seed, "lossy", str(node), str(server_round)).random()) >= share


class Lossy(Strategy):
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
        self.inner: Strategy = Spec(inner, dict(arguments or {}), table="strategy").check().build()

    @property
    def trust(self) -> str:
        return getattr(self.inner, "trust", LOCAL)

    @property
    def mechanism(self) -> str:
        return getattr(self.inner, "mechanism", "laplace")

    @property
    def returns(self) -> str:
        return getattr(self.inner, "returns", "mean")

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """Queries that inner is for; None: any."""
        return getattr(self.inner, "kinds", None)

    @property
    def min_available_nodes(self) -> int:
        """Flower's own strategies wait for so many; the campaign checks it."""
        return getattr(self.inner, "min_available_nodes", 0)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                        grid: Grid) -> Iterable[Message]:
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = [reply for reply in replies if arrives(reply.metadata.src_node_id, server_round, self.share, self.seed)]
        return self.inner.aggregate_train(server_round, kept) if kept else (None, None)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                           grid: Grid) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Nothing to log: the report says what ran."""
