"""A small net that predicts one number, and its local training: one home at a time, or many by torch.func.vmap.

    predict(x) = tanh(x W + b) v + c

Homes are trained in chunks of CHUNK rows, padded: the arithmetic of a home is then the same whoever shares its chunk, so
results do not depend on batches or workers. (Batches of one matrix take another path through the matrix product.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedenergy.ids import stream

HIDDEN, BIAS, OUT, LEVEL = NAMES = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
CHUNK = 16

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Local:
    """One home's training in one round.

    weights   where it starts; x (K, B, F), y (K, B): its K batches
    control   added to every gradient (SCAFFOLD's c - c_i); None: nothing
    """

    weights: Weights
    x: np.ndarray
    y: np.ndarray
    control: Weights | None = None


def shapes(features: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the weights, in the order of NAMES."""
    return {HIDDEN: (features, hidden), BIAS: (hidden,), OUT: (hidden,), LEVEL: (1,)}


def first_weights(features: int, hidden: int, seed: int) -> dict[str, np.ndarray]:
    """The weights before the first round, float64: the same in every process (Glorot and Bengio 2010, normal form)."""
    draw = stream(seed, "forecast init")
    found = {name: np.zeros(shape) for name, shape in shapes(features, hidden).items()}
    found[HIDDEN] = draw.normal(0.0, math.sqrt(2 / (features + hidden)), (features, hidden))
    found[OUT] = draw.normal(0.0, math.sqrt(2 / (hidden + 1)), hidden)
    return found


def predict(weights: Weights, x: np.ndarray) -> np.ndarray:
    """(n,) for (n, F), numpy alone: einsum's own loops, so the same bits with any number of threads."""
    inside = np.tanh(np.einsum("nf,fh->nh", x, weights[HIDDEN]) + weights[BIAS])
    return np.einsum("nh,h->n", inside, weights[OUT]) + weights[LEVEL][0]


def mean_square(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Mean squared error, 0 where there are no rows."""
    return float(np.mean(np.square(predict(weights, x) - y))) if len(y) else 0.0


def train_many(homes: Sequence[Local], rate: float, proximal: float = 0.0) -> list[dict[str, np.ndarray]]:
    """The weights of each home after its K steps of gradient descent.

    rate      of the steps; proximal: mu of FedProx (Li et al. 2020, equation 2), 0: none
    Guarantee: a home's result does not depend on the others, to the bit. Equal to train_one to 1e-6.
    """
    found: list[dict[str, np.ndarray]] = []
    for first in range(0, len(homes), CHUNK):
        part = list(homes[first:first + CHUNK])
        found += _chunk(part + [part[0]] * (CHUNK - len(part)), rate, proximal)[:len(part)]
    return found


def train_one(home: Local, rate: float, proximal: float = 0.0) -> dict[str, np.ndarray]:
    """The definition: one home, one step after the other, without vmap."""
    import torch

    with _one_thread():
        start = _tensors(home.weights)
        control = _tensors(home.control or {name: np.zeros_like(home.weights[name]) for name in NAMES})
        now, gradient = dict(start), torch.func.grad(_loss)
        for x, y in zip(torch.from_numpy(home.x), torch.from_numpy(home.y), strict=True):
            slope = gradient(now, x, y)
            now = {name: now[name] - rate * (slope[name] + proximal * (now[name] - start[name]) + control[name])
                   for name in NAMES}
        return {name: now[name].numpy().copy() for name in NAMES}


def _chunk(homes: Sequence[Local], rate: float, proximal: float) -> list[dict[str, np.ndarray]]:
    import torch

    with _one_thread():
        start = {name: torch.from_numpy(np.stack([home.weights[name] for home in homes])) for name in NAMES}
        pull = {name: torch.from_numpy(np.stack([
            np.zeros_like(home.weights[name]) if home.control is None else home.control[name] for home in homes]))
            for name in NAMES}
        x, y = (torch.from_numpy(np.stack([getattr(home, key) for home in homes])) for key in ("x", "y"))
        now, gradient = dict(start), torch.func.vmap(torch.func.grad(_loss))
        for step in range(x.shape[1]):
            slope = gradient(now, x[:, step].contiguous(), y[:, step].contiguous())
            now = {name: now[name] - rate * (slope[name] + proximal * (now[name] - start[name]) + pull[name])
                   for name in NAMES}
        done = {name: values.numpy() for name, values in now.items()}
    return [{name: done[name][at].copy() for name in NAMES} for at in range(len(homes))]


def _loss(weights, x, y):
    import torch

    inside = torch.tanh(x @ weights[HIDDEN] + weights[BIAS])   # (B, H)
    return ((inside @ weights[OUT] + weights[LEVEL] - y) ** 2).mean()


def _tensors(weights: Weights) -> dict:
    import torch

    return {name: torch.from_numpy(np.ascontiguousarray(weights[name], np.float64)) for name in NAMES}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in another order would be other bits; and small matrices are slower on many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
