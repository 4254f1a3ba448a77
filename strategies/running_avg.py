"""RunningAvg: federated averaging in which each home's model is added to a sum as it arrives and let go."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedenergy.federation import records
from fedenergy.federation.strategy import RunningMean, fold_all, mean_metrics


class RunningAvg(FedAvg):
    """Training, trust open. Source: McMahan et al. 2017 (arXiv:1602.05629), FederatedAveraging, every home of one weight.

    fraction_train  share of the homes asked in each round
    The model of Flower's FedAvg up to rounding. Its memory is that of a few models, however many homes take part: Flower's
    strategies keep the models of all of them until the round ends.
    Guarantee: none (epsilon infinite).
    """

    trust = "open"
    returns = "state"
    kinds = ("train.forecast",)

    def __init__(self, fraction_train: float = 1.0) -> None:
        if isinstance(fraction_train, bool) or not isinstance(fraction_train, int | float) or not 0 < fraction_train <= 1:
            raise ValueError(f"RunningAvg: fraction_train = {fraction_train!r} is not a number above 0, at most 1")
        super().__init__(fraction_train=float(fraction_train), min_train_nodes=1, min_evaluate_nodes=1,
                         min_available_nodes=1)

    def fold(self, state: RunningMean | None, reply: Message) -> RunningMean:
        """The sum with one more home's model."""
        state = state or RunningMean()
        state.add(reply.content)
        return state

    def folded(self, server_round: int, state: RunningMean) -> tuple[ArrayRecord, MetricRecord]:
        """The mean model."""
        return records.array_record(state.mean()), mean_metrics([state])

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return fold_all(self, server_round, replies)
