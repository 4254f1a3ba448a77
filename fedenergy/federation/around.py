"""Around: a strategy that stands between the homes' answers and another strategy; a base for test instruments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedenergy.config import Spec
from fedenergy.privacy.trust import LOCAL


class Around(Strategy):
    """Abstract: a subclass changes the replies in aggregate_train and hands them on.

    inner   "module:Name" of a strategy, Flower's own too; arguments: its arguments
    Trust, mechanism, `returns` and `kinds` are those of inner.
    """

    def __init__(self, inner: str, arguments: Mapping[str, Any] | None = None) -> None:
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

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                           grid: Grid) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Nothing to log: the report says what ran."""
