"""Ifca: several forecasters at once; each home trains the one that fits it best, so homes of like habits find together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedenergy.federation import records
from fedenergy.federation.strategy import RunningMean, fold_all, mean_metrics
from fedenergy.ids import stream

CLUSTER = "cluster"  # the metric with which a home says which model it chose

Arrays = Mapping[str, np.ndarray]


def spread_out(model: Arrays, clusters: int, spread: float, seed: int) -> dict[str, np.ndarray]:
    """k copies of a model (k, ...), each with its own noise: where the clusters start.

    spread  standard deviation of the noise; the first copy has none

    >>> spread_out({"w": np.zeros(3)}, clusters=2, spread=0.1, seed=0)["w"].shape
    (2, 3)
    """
    draw = stream(seed, "ifca init")
    found = {}
    for name, values in sorted(model.items()):
        noise = draw.normal(0.0, spread, (clusters, *values.shape))
        noise[0] = 0.0
        found[name] = values + noise
    return {name: found[name] for name in model}


def per_cluster(models: Arrays, means: Mapping[int, Arrays]) -> dict[str, np.ndarray]:
    """The k models (k, ...) with those that some home chose replaced by the mean of what their homes trained.

    >>> per_cluster({"w": np.array([[0.0], [5.0]])}, {0: {"w": np.array([2.0])}})
    {'w': array([[2.],
           [5.]])}
    """
    found = {name: np.array(values, np.float64) for name, values in models.items()}
    for k, mean in means.items():
        for name in found:
            found[name][k] = mean[name]
    return found


def split(models: Arrays, chosen: Mapping[int, float], spread: float, seed: int, server_round: int) -> dict[str, np.ndarray]:
    """Models that nobody chose start again beside the one that most chose, as an empty cluster of k-means does.

    chosen  how many chose each; models that nobody chose may be left out
    At a model that suits nobody in particular, any small step suits one half of the homes better: so they part.
    """
    found, clusters = {name: np.array(values) for name, values in models.items()}, len(next(iter(models.values())))
    most = max(range(clusters), key=lambda k: (chosen.get(k, 0), -k))
    for k in sorted(set(range(clusters)) - set(chosen)):
        draw = stream(seed, "ifca split", str(k), str(server_round))
        for name in sorted(found):
            found[name][k] = found[name][most] + draw.normal(0.0, spread, found[name][most].shape)
    return found


class Ifca(FedAvg):
    """Training, trust open. Source: Ghosh et al. 2020 (arXiv:2006.04088), Algorithm 1 with model averaging.

    clusters        k models; each home trains, and is judged by, the one with the least loss on its own training rows
    spread, seed    standard deviation of the noise that tells the k models apart before the first round
    respawn         models that nobody chose start again (see split); false: they stay, as in the paper, whose start must
                    then be near the clusters, else all homes take one model for good
    fraction_train  share of the homes asked in each round
    Guarantee: none (epsilon infinite); which model a home chose is visible too.
    """

    trust = "open"
    returns = "state"
    kinds = ("train.forecast",)

    def __init__(self, clusters: int = 3, spread: float = 0.1, respawn: bool = True, seed: int = 0,
                 fraction_train: float = 1.0) -> None:
        if type(clusters) is not int or not 1 <= clusters <= 100:
            raise ValueError(f"Ifca: clusters = {clusters!r} is not a whole number from 1 to 100")
        for name, value, most in (("spread", spread, 1e3), ("fraction_train", fraction_train, 1.0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise ValueError(f"Ifca: {name} = {value!r} is not a number above 0, at most {most:g}")
        if type(seed) is not int or seed < 0:
            raise ValueError(f"Ifca: seed = {seed!r} is not a whole number of at least 0")
        super().__init__(fraction_train=float(fraction_train), min_train_nodes=1, min_evaluate_nodes=1,
                         min_available_nodes=1)
        if type(respawn) is not bool:
            raise ValueError(f"Ifca: respawn = {respawn!r} is not true or false")
        self.clusters, self.spread, self.respawn, self.seed = clusters, float(spread), respawn, seed
        self.models: dict[str, np.ndarray] = {}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                        grid: Grid) -> Iterable[Message]:
        """All models to every home that is asked."""
        if not self.models:
            self.models = spread_out({name: array.numpy() for name, array in arrays.items()}, self.clusters, self.spread,
                                     self.seed)
        return super().configure_train(server_round, records.array_record(self.models), config, grid)

    def fold(self, state: dict[int, RunningMean] | None, reply: Message) -> dict[int, RunningMean]:
        """The sums of the models that chose each of the k, with one more home's."""
        state = {} if state is None else state
        chosen = int(reply.content[records.METRICS][CLUSTER])
        if not 0 <= chosen < self.clusters:
            raise ValueError(f"a home chose a model that was not offered: there are {self.clusters}")
        state.setdefault(chosen, RunningMean()).add(reply.content)
        return state

    def folded(self, server_round: int, state: dict[int, RunningMean]) -> tuple[ArrayRecord, MetricRecord]:
        """The k models, (k, ...) each."""
        self.models = per_cluster(self.models, {k: one.mean() for k, one in state.items()})
        if self.respawn:
            self.models = split(self.models, {k: one.weight for k, one in state.items()}, self.spread, self.seed,
                                server_round)
        return records.array_record(self.models), mean_metrics(state.values())

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return fold_all(self, server_round, replies)
