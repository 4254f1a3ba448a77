"""The FedAvg round of engines.fedavg in pfl 0.6, run by the Python of a virtual environment that has pfl and torch.

    PYTHON pfl_peer.py '{"nodes": 200, "repeats": 3}'

Stands alone: nothing of fedenergy is imported, so that pfl's own pins rule its environment. float32, as pfl does by default;
tensors kept between rounds and an optimizer without foreach, which made it faster by a sixth; one process, one thread.
"""

import json
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

FEATURES, HIDDEN, STEPS, BATCH, RATE = 23, 16, 5, 32, 0.05


def data_of(index):
    draw = np.random.default_rng(index)
    x = draw.normal(size=(STEPS, BATCH, FEATURES))
    y = x[..., :3].sum(-1) + 0.1 * draw.normal(size=(STEPS, BATCH))
    return [torch.from_numpy(values.astype(np.float32)) for values in (x.reshape(-1, FEATURES), y.reshape(-1))]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))[:, 0]

    def loss(self, x, y, eval=False):
        return ((self(x) - y) ** 2).mean()

    @torch.no_grad()
    def metrics(self, x, y, eval=False):
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):
    def __init__(self):
        self.marks = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.marks.append(time.perf_counter())
        return False, Metrics()


def descent(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, foreach=False)


def measure(part):
    torch.set_num_threads(1)
    net = Net()
    model = PyTorchModel(net, local_optimizer_create=descent,
                         central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0))
    users = [Dataset(raw_data=data_of(index)) for index in range(part["nodes"])]
    order = iter(list(range(part["nodes"])) * (part["repeats"] + 2))
    federated = FederatedDataset(lambda index: users[index], lambda: next(order))
    backend, clock = SimulatedBackend(training_data=federated, val_data=None), Clock()
    FederatedAveraging().run(
        backend=backend, model=model,
        algorithm_params=NNAlgorithmParams(central_num_iterations=part["repeats"] + 1, evaluation_frequency=10_000,
                                           train_cohort_size=part["nodes"], val_cohort_size=0),
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=BATCH), callbacks=[clock])
    print("FOUND " + json.dumps({"seconds": list(np.diff(clock.marks))}))


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]))
