"""A small net that predicts one number, and its local training: one home at a time, or many at once.

    predict(x) = tanh(x W + b) v + c

Many at once: the gradient is written out, and each of its products is one call for a chunk of homes. A home's own products
are then the same calls of the same library, on one thread, whoever shares its chunk: batches and workers change no bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedenergy.ids import stream

HIDDEN, BIAS, OUT, LEVEL = NAMES = ("hidden.weight", "hidden.bias", "out.weight", "out.bias")
CHUNK = 32   # homes whose batches of one step fit the cache
PADDED = 16  # of vmap

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
    """(n,) for (n, F), numpy alone, on one thread: the same bits in every process."""
    with _one_thread():
        inside = x @ weights[HIDDEN]
        inside += weights[BIAS]
        return np.tanh(inside, out=inside) @ weights[OUT] + weights[LEVEL][0]


def mean_square(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Mean squared error, 0 where there are no rows."""
    return float(np.mean(np.square(predict(weights, x) - y))) if len(y) else 0.0


def train_many(homes: Sequence[Local], rate: float, proximal: float = 0.0) -> list[dict[str, np.ndarray]]:
    """The weights of each home, float64, after its K steps of gradient descent.

    homes     of one shape; rate: of the steps; proximal: mu of FedProx (Li et al. 2020, equation 2), 0: none
    Guarantee: a home's result does not depend on the others, to the bit. Equal to train_one to 1e-6.
    """
    flats: dict[int, np.ndarray] = {}  # homes mostly start from the same weights
    found: list[dict[str, np.ndarray]] = []
    with _one_thread():
        for first in range(0, len(homes), CHUNK):
            found += _chunk(homes[first:first + CHUNK], rate, proximal, flats)
    return found


def _chunk(homes: Sequence[Local], rate: float, proximal: float,
           flats: dict[int, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """All weights of a home as one row: (F + 1, H) of W over b, then (H + 1, 1) of v over c. Inputs get a last column 1."""
    count, (steps, batch, features), hidden = len(homes), homes[0].x.shape, len(homes[0].weights[BIAS])
    start = np.stack([_flat(home.weights, flats) for home in homes])
    pull = np.stack([np.zeros_like(start[0]) if home.control is None else _flat(home.control, flats) for home in homes])
    now, slope, cut = start.copy(), np.empty_like(start), (features + 1) * hidden
    w, dw = (flat[:, :cut].reshape(count, features + 1, hidden) for flat in (now, slope))
    v, dv = (flat[:, cut:, None] for flat in (now, slope))
    x, inside = np.ones((count, batch, features + 1)), np.ones((count, batch, hidden + 1))
    wave, off, y = np.empty((count, batch, hidden)), np.empty((count, batch, 1)), np.empty((count, batch, 1))
    for step in range(steps):
        for at, home in enumerate(homes):
            x[at, :, :features], y[at, :, 0] = home.x[step], home.y[step]
        np.tanh(np.matmul(x, w, out=wave), out=wave)
        inside[:, :, :hidden] = wave
        np.matmul(inside, v, out=off)
        off -= y
        off *= 2 / batch                                          # the loss by the prediction
        np.matmul(inside.swapaxes(1, 2), off, out=dv)
        np.subtract(1, np.multiply(wave, wave, out=wave), out=wave)
        wave *= off
        wave *= v[:, None, :hidden, 0]                            # the loss by x W + b
        np.matmul(x.swapaxes(1, 2), wave, out=dw)
        if proximal:
            slope += proximal * (now - start)
        slope += pull
        slope *= rate
        now -= slope
    parts = shapes(features, hidden)
    ends = np.cumsum([math.prod(shape) for shape in parts.values()])[:-1]
    return [{name: values.reshape(shape) for (name, shape), values in zip(parts.items(), np.split(row, ends), strict=True)}
            for row in now]


def _flat(weights: Weights, known: dict[int, np.ndarray]) -> np.ndarray:
    if id(weights) not in known:
        known[id(weights)] = np.concatenate([np.asarray(weights[name], np.float64).ravel() for name in NAMES])
    return known[id(weights)]


# ---- by automatic differentiation, for any net


def square(weights: Mapping, x, y):
    """The loss of this net, for torch: x (B, F), y (B,)."""
    import torch

    inside = torch.tanh(x @ weights[HIDDEN] + weights[BIAS])   # (B, H)
    return ((inside @ weights[OUT] + weights[LEVEL] - y) ** 2).mean()


def train_one(home: Local, rate: float, proximal: float = 0.0, loss: Callable = square) -> dict[str, np.ndarray]:
    """The definition: one home, one step after the other.

    loss  (weights, x, y) -> scalar, of torch functions alone; another net has another, and other names of its weights
    """
    import torch

    with _one_torch_thread():
        done = _descended(home.weights, home.control, home.x, home.y, torch.func.grad(loss), rate, proximal)
        return {name: values.copy() for name, values in done.items()}


def train_vmapped(homes: Sequence[Local], rate: float, proximal: float = 0.0,
                  loss: Callable = square) -> list[dict[str, np.ndarray]]:
    """train_one of many homes at once, by torch.func.vmap: for a net whose gradient nobody wrote out.

    Guarantee: as train_many. Chunks are padded: batches of one matrix take another path through the product.
    """
    import torch

    found: list[dict[str, np.ndarray]] = []
    with _one_torch_thread():
        gradient = torch.func.vmap(torch.func.grad(loss))
        for first in range(0, len(homes), PADDED):
            part = list(homes[first:first + PADDED])
            full = part + [part[0]] * (PADDED - len(part))
            names = list(part[0].weights)
            start = {name: np.stack([home.weights[name] for home in full]) for name in names}
            pull = {name: np.stack([np.zeros_like(home.weights[name]) if home.control is None else home.control[name]
                                    for home in full]) for name in names}
            x, y = (np.stack([getattr(home, key) for home in full], axis=1) for key in ("x", "y"))
            done = _descended(start, pull, x, y, gradient, rate, proximal)
            found += [{name: done[name][at].copy() for name in names} for at in range(len(part))]
    return found


def _descended(weights: Weights, control: Weights | None, x: np.ndarray, y: np.ndarray, gradient: Callable, rate: float,
               proximal: float) -> dict[str, np.ndarray]:
    """x, y: a batch for each step along their first axis."""
    import torch

    start = {name: torch.from_numpy(np.ascontiguousarray(values, np.float64)) for name, values in weights.items()}
    pull = {name: torch.from_numpy(np.ascontiguousarray(values, np.float64)) for name, values in (control or {}).items()}
    now = dict(start)
    for rows, wanted in zip(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y)),
                            strict=True):
        slope = gradient(now, rows, wanted)
        now = {name: now[name] - rate * (slope[name] + proximal * (now[name] - start[name]) + pull.get(name, 0.0))
               for name in now}
    return {name: values.numpy() for name, values in now.items()}


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Sums in another order would be other bits; and small matrices are slower on many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _libraries():
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _one_thread():
    """The same for numpy's products."""
    return _libraries().limit(limits=1, user_api="blas")
