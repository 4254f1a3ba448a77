"""For strategies of a few lines: ZoneStrategy, which asks every home and combines the answers, and what folds them.

A training strategy that has `fold` gets its replies one after the other, in household order, so that a round's memory does
not grow with the number of homes; one that has not (Flower's own) gets their list.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedenergy.federation import records

EPSILON_UNIT = 1e-6
WEIGHT = "num-examples"


@runtime_checkable
class Folding(Protocol):
    """What a strategy adds to Flower's methods to get its replies one by one. Neither may draw random numbers.

    aggregate_train(server_round, replies) must be folded(server_round, state after all replies): see fold_all
    """

    def fold(self, state: Any, reply: Message) -> Any:
        """The state with one more reply; None comes before the first. It may be changed in place."""

    def folded(self, server_round: int, state: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What aggregate_train returns, from the state after the last reply."""


def fold_all(strategy: Folding, server_round: int,
             replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """aggregate_train of a strategy that folds; None where nobody answered."""
    state = None
    for reply in replies:
        if reply.has_content():
            state = strategy.fold(state, reply)
    return (None, None) if state is None else strategy.folded(server_round, state)


@dataclass
class RunningMean:
    """Weighted sums of models and of metrics, in the order in which they are added.

    weight  so far: of the metric num-examples, which is 1 for every home
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, content: RecordDict) -> None:
        """One more reply: an ArrayRecord of floating point numbers and a MetricRecord. ValueError for other forms."""
        model = {name: records.loaded(array) for name, array in content[records.ARRAYS].items()}
        numbers = dict(content[records.METRICS])
        weight = float(numbers.pop(WEIGHT))
        if any(values.dtype.kind != "f" for values in model.values()):
            raise ValueError("a mean is of arrays of floating point numbers: this model has others (trees, for example)")
        forms = [{name: (values.shape, values.dtype) for name, values in one.items()} for one in (model, self.arrays)]
        if self.weight and forms[0] != forms[1]:
            raise ValueError("the models of two homes have different arrays: they cannot be averaged")
        for name, values in model.items():
            values *= weight
            self.arrays[name] = values if name not in self.arrays else np.add(self.arrays[name], values,
                                                                              out=self.arrays[name])
        for name, value in numbers.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + weight * value
        self.weight += weight

    def mean(self) -> dict[str, np.ndarray]:
        """The mean model."""
        return {name: values / self.weight for name, values in self.arrays.items()}


def mean_metrics(means: Iterable[RunningMean]) -> MetricRecord:
    """The weighted mean of every metric over all replies of several means."""
    means = list(means)
    total = sum(one.weight for one in means)
    names = sorted({name for one in means for name in one.metrics})
    return MetricRecord({name: sum(one.metrics.get(name, 0.0) for one in means) / total for name in names})


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
    return Answers(np.stack([records.loaded(content[records.ARRAYS][records.SUMMARY]) for content in contents]),
                   np.array([f["epsilon_micro"] * EPSILON_UNIT if "epsilon_micro" in f else np.nan for f in fields]),
                   tuple(f["household"] for f in fields))
