"""DP-SGD: Poisson batches, clipped sums, Gaussian noise on the sum, and what was spent.

A step draws each record with probability q = batch / n, adds up the clipped gradients of those drawn, adds noise of
standard deviation sigma * C to every coordinate of the sum and divides by the *expected* batch. A step that draws nobody
releases noise only and counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedenergy.ids import stream
from fedenergy.imputation.bookkeeping import ENGINES, Clip, Losses, trainable
from fedenergy.privacy import accounting
from fedenergy.privacy.noise import SecureNoise, SimulationNoise

CHUNK = 2**18                  # draws made at once: they stay in the cache
CACHED = 5 * 2**20             # bytes of the widest layer's outputs that book-keeping handles at once on a CPU
NOISES = (SimulationNoise.name, SecureNoise.name)


@dataclass(frozen=True)
class DPSGD:
    """How a model is trained privately.

    clip       C, the l2 bound of a record's gradient: the sensitivity of the sum under add/remove
    epsilon    target at delta; sigma is then calibrated (PLD). Or sigma, and epsilon is what it costs: give one of both
    relation   what `epsilon` means: "add/remove" or "replace-one" one record
    clipping   "flat" or "automatic"
    engine     "bookkeeping" (nets of Linear layers) or "opacus"
    noise      "simulation" (seeded, stamped: not private) or "secure" (operating system entropy, for the sampler and for
               the records' times, masks and noise too)
    physical_batch   most records x draws that are handled at once, to bound memory (see records_at_once); changes no more
                     than the rounding of a sum
    household_windows   most windows that one household has, for the household statement; None: from the data, or unknown
    """

    clip: float = 1.0
    epsilon: float | None = None
    delta: float = 1e-5
    sigma: float | None = None
    relation: str = "add/remove"
    clipping: str = "flat"
    engine: str = "bookkeeping"
    noise: str = "simulation"
    physical_batch: int = 256
    household_windows: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.clip < float("inf"):
            raise ValueError(f"DPSGD clip = {self.clip!r} is not a finite bound above 0")
        if (self.epsilon is None) == (self.sigma is None):
            raise ValueError(f"DPSGD epsilon = {self.epsilon}, sigma = {self.sigma}: give one of the two")
        accounting.check_delta(self.delta)
        accounting.Steps(1.0 if self.sigma is None else self.sigma, 1.0, 1)
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise ValueError(f"DPSGD epsilon = {self.epsilon!r} is not a finite number above 0")
        for name, value, known in (("relation", self.relation, accounting.RELATIONS), ("noise", self.noise, NOISES),
                                   ("clipping", self.clipping, ("flat", "automatic")), ("engine", self.engine, ENGINES)):
            if value not in known:
                raise ValueError(f"DPSGD {name} = {value!r} is unknown (takes: {', '.join(known)})")
        if self.physical_batch < 1:
            raise ValueError(f"DPSGD physical_batch = {self.physical_batch} is not at least 1")

    def noise_multiplier(self, q: float, steps: int) -> float:
        """sigma: the one given, or the smallest that keeps `steps` steps within epsilon."""
        if self.sigma is not None:
            return float(self.sigma)
        return accounting.calibrate_sigma(self.epsilon, self.delta, q, steps, relation=self.relation)

    @property
    def sensitivity(self) -> float:
        """l2 distance between the sums of neighbouring data sets (add/remove), in units of the gradient."""
        return self.clip


class Gaussian(Protocol):
    """Where the trainer's noise and its batches come from."""

    stamp: str

    def add(self, total: Tensor, deviation: float, step: int) -> None:
        """Add this step's independent normal draws of that standard deviation to a flat tensor."""

    def included(self, n: int, q: float, step: int) -> np.ndarray:
        """The records of this step's Poisson batch, ascending (int64)."""


class SeededGaussian:
    """Noise keyed by (seed, step): a resumed run draws what the uninterrupted one would have. Not private."""

    stamp = SimulationNoise.stamp

    def __init__(self, seed: int):
        self._seed = seed

    def add(self, total: Tensor, deviation: float, step: int) -> None:
        key = int(stream(self._seed, "noise", "", f"dpsgd-{step}").integers(2**63))
        generator, draws = torch.Generator(total.device).manual_seed(key), total.new_empty(min(CHUNK, total.numel()))
        for part in total.split(CHUNK):
            part.add_(draws[:part.numel()].normal_(generator=generator), alpha=deviation)

    def included(self, n: int, q: float, step: int) -> np.ndarray:
        return np.flatnonzero(stream(self._seed, "poisson", "", f"dpsgd-{step}").random(n) < q)


class SecureGaussian:
    """Noise and batches from the operating system's entropy; no seed exists.

    Normal draws are Box-Muller over 53-bit uniforms in float64; they are not on a grid (Mironov 2012 attacks single
    releases of floats; here the sum itself is a float32 rounding, and the model's weights are the release).
    """

    stamp = SecureNoise.stamp

    def add(self, total: Tensor, deviation: float, step: int) -> None:
        for part in total.split(CHUNK):
            half = (part.numel() + 1) // 2
            radius = np.sqrt(-2.0 * np.log1p(-_uniform(half)))       # 1 - u lies in (0, 1]
            angle = 2.0 * np.pi * _uniform(half)
            draws = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:part.numel()] * deviation
            part.add_(torch.from_numpy(draws).to(part))

    def included(self, n: int, q: float, step: int) -> np.ndarray:
        return np.flatnonzero(_uniform(n) < q)


def _uniform(n: int) -> np.ndarray:
    """(n,) float64 in [0, 1), 53 bits each, from the operating system."""
    return (np.frombuffer(os.urandom(8 * n), "<u8") >> np.uint64(11)) * 2.0**-53


def gaussian(name: str, seed: int) -> Gaussian:
    """The noise of a DPSGD; seed serves "simulation" only."""
    return SeededGaussian(seed) if name == SimulationNoise.name else SecureGaussian()


class PrivateGradient:
    """Writes the noisy mean gradient of a step into the parameters' .grad.

    net       its trainable parameters are fixed from here on
    sigma     noise multiplier; expected_batch = q n, the divisor whatever was drawn
    Guarantee: the written gradient is (sum_i clip(g_i) + sigma C N(0, I)) / expected_batch, with |clip(g_i)|_2 <= C.
    """

    def __init__(self, net: nn.Module, privacy: DPSGD, sigma: float, expected_batch: float, noise: Gaussian):
        self.clip = Clip(privacy.clip, privacy.clipping)
        self.deviation, self.expected_batch, self.noise = sigma * privacy.sensitivity, expected_batch, noise
        self._engine = ENGINES[privacy.engine](net)
        parameters = trainable(net)
        self._flat = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
        self._sums = [part.view(p.shape) for part, p in
                      zip(self._flat.split([p.numel() for p in parameters]), parameters)]
        self._parameters = parameters

    def clipped_sum(self, chunks: Iterable[tuple[Losses, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """(flat sum of clipped gradients, losses (R,), norms before clipping (R,)); all private, for tests and the lab.

        chunks  (losses, records) pairs: losses() computes (records,) record losses through the net
        """
        return self._scaled_sum(chunks, 1.0)

    def _scaled_sum(self, chunks: Iterable[tuple[Losses, int]], scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """`clipped_sum` times scale, which costs no pass over the sum: it is in the records' factors."""
        def factor(norms: Tensor) -> Tensor:
            return self.clip(norms) * scale

        for p in self._parameters:
            p.grad = None                # the last step's .grad are views of the sums
        self._flat.zero_()
        results = [self._engine.add_clipped(losses, records, factor, self._sums) for losses, records in chunks]
        losses, norms = ([pair[k] for pair in results] for k in (0, 1))
        empty = self._flat.new_zeros(0)
        return self._flat, torch.cat([empty, *losses]), torch.cat([empty, *norms])

    def step(self, chunks: Iterable[tuple[Losses, int]], step: int) -> tuple[Tensor, Tensor]:
        """One noisy gradient into .grad; returns losses and norms (lab only: private statistics)."""
        share = 1.0 / self.expected_batch
        flat, losses, norms = self._scaled_sum(chunks, share)
        self.noise.add(flat, self.deviation * share, step)
        for p, part in zip(self._parameters, self._sums):
            p.grad = part
        return losses, norms

    def close(self) -> None:
        """Leave the net without hooks."""
        close: Callable[[], None] | None = getattr(self._engine, "close", None)
        if close is not None:
            close()


def records_at_once(net: nn.Module, privacy: DPSGD, records: int, draws: int = 1) -> int:
    """Records of a batch that are handled at once: equal parts, each at most physical_batch rows (records x draws).

    On a CPU the book-keeping engine takes fewer where a net says how much a row of inputs makes (`row_floats`): what is kept
    of a pass takes less memory (a third less for the full-size model), and that the process has already, instead of new
    pages at every step which the system has to clear (up to a tenth of a step, by what else the process did before). The sum
    of a step is the same up to rounding.
    """
    most = max(1, privacy.physical_batch // draws)
    size = getattr(net, "row_floats", 0)
    if size and privacy.engine == "bookkeeping" and next(net.parameters()).device.type == "cpu":
        at_once = max(1, CACHED // (4 * size * draws))
        if at_once < min(most, records):
            return -(-records // -(-records // at_once))
    return most


def chunks_of(rows: np.ndarray, losses_of: Callable[[np.ndarray], Losses], size: int) -> list[tuple[Losses, int]]:
    """Rows of a batch in chunks of at most `size`; losses_of(slice of positions in the batch) -> losses()."""
    places = [np.arange(low, min(low + size, len(rows))) for low in range(0, len(rows), size)]
    return [(losses_of(part), len(part)) for part in places]
