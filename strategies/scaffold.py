"""Scaffold: a forecaster trained with control variates, which take out of each home's steps what is peculiar to the home."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedenergy.federation import records

CONTROL = "control."  # the homes add control.<name> to every gradient of that name
STEP = "step"         # the metric with which a home says how far one unit of gradient would have moved it: K times its rate

Arrays = Mapping[str, np.ndarray]


def new_control(control: Arrays, zone: Arrays, sent: Arrays, trained: Arrays, step: float) -> dict[str, np.ndarray]:
    """c_i+ = c_i - c + (x - y_i) / (K eta): a home's control variate after a round (option II of the paper).

    control, zone  c_i and c; sent, trained: x and y_i; step: K eta

    >>> new_control({"w": np.zeros(1)}, {"w": np.zeros(1)}, {"w": np.ones(1)}, {"w": np.zeros(1)}, 0.5)
    {'w': array([2.])}
    """
    return {name: control[name] - zone[name] + (sent[name] - trained[name]) / step for name in sent}


def mean_change(sent: Arrays, trained: Sequence[Arrays], rate: float) -> dict[str, np.ndarray]:
    """x + rate * mean of (y_i - x): the zone's model after a round.

    >>> mean_change({"w": np.zeros(1)}, [{"w": np.ones(1)}, {"w": np.full(1, 3.0)}], rate=1.0)
    {'w': array([2.])}
    """
    return {name: sent[name] + rate * np.mean([one[name] - sent[name] for one in trained], axis=0) for name in sent}


class Scaffold(FedAvg):
    """Training, trust open. Source: Karimireddy et al. 2020 (arXiv:1910.06378), Algorithm 1 with option II.

    rate            of the zone's step (eta_g)
    fraction_train  share of the homes asked in each round
    Homes keep nothing between rounds: what option II makes of c_i follows from the models that cross, so the zone keeps it
    and sends each home c - c_i. The arithmetic is the paper's.
    Guarantee: none (epsilon infinite); trust "open" is declared here, since nothing else could work.
    """

    trust = "open"
    returns = "state"
    kinds = ("train.forecast",)

    def __init__(self, rate: float = 1.0, fraction_train: float = 1.0) -> None:
        for name, value, most in (("rate", rate, 1e3), ("fraction_train", fraction_train, 1.0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise ValueError(f"Scaffold: {name} = {value!r} is not a number above 0, at most {most:g}")
        super().__init__(fraction_train=float(fraction_train), min_train_nodes=1, min_evaluate_nodes=1,
                         min_available_nodes=1)
        self.rate = float(rate)
        self.homes = 0
        self.sent: dict[str, np.ndarray] = {}
        self.control: dict[str, np.ndarray] = {}             # c
        self.controls: dict[int, dict[str, np.ndarray]] = {}  # node -> c_i; 0 where absent

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord,
                        grid: Grid) -> Iterable[Message]:
        """To each home the model and its own correction."""
        self.homes = len(list(grid.get_node_ids()))
        self.sent = {name: array.numpy() for name, array in arrays.items()}
        if not self.control:
            self.control = {name: np.zeros_like(values) for name, values in self.sent.items()}
        messages = []
        for message in super().configure_train(server_round, arrays, config, grid):
            node = message.metadata.dst_node_id
            own = self.controls.get(node)
            pull = records.array_record({CONTROL + name: self.control[name] - (own[name] if own else 0.0)
                                         for name in self.sent})
            pull.update(arrays)
            content = RecordDict({self.arrayrecord_key: pull, self.configrecord_key: config})
            messages.append(Message(content=content, dst_node_id=node, message_type=message.metadata.message_type,
                                    group_id=str(server_round)))
        return messages

    def aggregate_train(self, server_round: int,
                        replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The new model; the control variates of the homes that answered move with it."""
        valid, _ = self._check_and_log_replies(list(replies), is_train=True)
        if not valid:
            return None, None
        trained, moved = [], []
        for reply in valid:
            node = reply.metadata.src_node_id
            model = {name: records.loaded(array) for name, array in reply.content[records.ARRAYS].items()}
            old = self.controls.get(node) or {name: np.zeros_like(values) for name, values in model.items()}
            new = new_control(old, self.control, self.sent, model, float(reply.content[records.METRICS][STEP]))
            moved.append({name: new[name] - old[name] for name in new})
            self.controls[node] = new
            trained.append(model)
        result = mean_change(self.sent, trained, self.rate)
        self.control = {name: values + np.sum([one[name] for one in moved], axis=0) / self.homes
                        for name, values in self.control.items()}
        metrics = self.train_metrics_aggr_fn([reply.content for reply in valid], self.weighted_by_key)
        return records.array_record(result), metrics
