"""Gradient norms of single records before clipping: how much DP-SGD cuts, on which path, at which diffusion times.

LAB ONLY: every figure here is a private statistic, read from records without protection; DP-SGD's epsilon does not cover
it. Norms are those of single records (`Split` adds the share of some layers), in training (`train_watched`) or at a fixed
model (`probe`, `attenuation`). Sources: DP-aware AdaLN-Zero (arXiv 2602.22610), gradient diagnostics; objective
conditioning (arXiv 2610.00209), propositions 1-2, corollary 1, figure 2, tables 4 and I.17.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedenergy.ids import stream
from fedenergy.imputation import training
from fedenergy.imputation.bookkeeping import BookKeeping, Coefficients, Engine, Losses, _by_record, _recorder, square_norms
from fedenergy.imputation.dit import DiT, conditioning_parameters
from fedenergy.imputation.dpsgd import PrivateGradient
from fedenergy.imputation.masks import Masks, training_masks
from fedenergy.imputation.model import Model, single
from fedenergy.imputation.objective import noised
from fedenergy.imputation.schedule import alpha_bar
from fedenergy.imputation.task import Windows

LAB = "lab only: a private statistic that DP-SGD does not cover"
QUANTILES = (0.01, 0.05, 0.25, 0.5)            # of eta: its low end is where records are cut most
ROW = np.dtype([("step", "<i4"), ("total", "<f4"), ("conditioning", "<f4")])


# ---- pure functions of norms

def severity(norms: np.ndarray, clip: float) -> np.ndarray:
    """eta of each record, min(1, C / ||g||): the factor that clipping multiplies its gradient by (1: untouched).

    >>> severity(np.array([0.5, 2.0, 0.0]), 1.0).tolist()
    [1.0, 0.5, 1.0]
    """
    norms = np.asarray(norms, np.float64)
    return np.minimum(1.0, clip / np.maximum(norms, clip))


def distortion(norms: np.ndarray, clip: float) -> np.ndarray:
    """||g - clip(g)||_2 = (||g||_2 - C)_+ of each record (objective conditioning, corollary 1).

    >>> distortion(np.array([0.5, 2.5]), 1.0).tolist()
    [0.0, 1.5]
    """
    return np.maximum(np.asarray(norms, np.float64) - clip, 0.0)


def effective_bound(clip: float, weight: np.ndarray) -> np.ndarray:
    """C / lambda: the norm of the *unweighted* gradient above which a record of that weight is clipped (proposition 2).

    >>> effective_bound(1.0, np.array([1.0, 0.1])).tolist()
    [1.0, 10.0]
    """
    return clip / np.asarray(weight, np.float64)


def summary(norms: np.ndarray, clip: float) -> dict[str, float]:
    """Mean, quantiles, clip fraction and severity of norms; {} without any.

    Keys: records, mean, p50, p95, p99, max, clipped (share with norm > C), eta (mean of `severity`), eta_p01, eta_p05,
    eta_p25, eta_p50 (its low quantiles), distortion (mean). Norms that are not finite count as clipped with eta 0 and
    are left out of the rest.
    """
    norms = np.asarray(norms, np.float64)
    if not norms.size:
        return {}
    sound = norms[np.isfinite(norms)]
    eta = np.where(np.isfinite(norms), severity(np.where(np.isfinite(norms), norms, clip), clip), 0.0)
    found = {"records": float(norms.size)}
    if sound.size:
        found |= {"mean": float(sound.mean()), "max": float(sound.max())}
        found |= {"distortion": float(distortion(sound, clip).mean())}
        found |= {f"p{q}": float(np.quantile(sound, q / 100)) for q in (50, 95, 99)}
    found |= {"clipped": float((~(norms <= clip)).mean()), "eta": float(eta.mean())}
    return found | {f"eta_p{100 * q:02.0f}": float(np.quantile(eta, q)) for q in QUANTILES}


@dataclass(frozen=True, eq=False)
class Norms:
    """Norms of records before clipping, (R,) each, and the bound they meet. Lab only.

    step          training step, or diffusion time, of each record
    total         ||g||_2 of the whole gradient
    conditioning  ||g_cond||_2 of the condition encoder and the modulation layers (0 where the net has none)
    """

    step: np.ndarray
    total: np.ndarray
    conditioning: np.ndarray
    clip: float

    @property
    def rest(self) -> np.ndarray:
        """||g_rest||_2 of all other layers."""
        return np.sqrt(np.maximum(self.total.astype(np.float64)**2 - self.conditioning.astype(np.float64)**2, 0.0))

    def table(self) -> dict[str, dict[str, float]]:
        """`summary` of the parts by name: total, conditioning, rest (clip figures mean something for total only)."""
        return {name: summary(getattr(self, name), self.clip) for name in ("total", "conditioning", "rest")}


# ---- the split engine

def conditioning_layers(net: nn.Module) -> list[nn.Linear]:
    """The Linear layers of source B's g_cond: time and pooled encodings, modulation layers; none for other nets."""
    if not isinstance(net, DiT):
        return []
    chosen = {id(p) for p in conditioning_parameters(net)}
    return [m for m in net.modules() if isinstance(m, nn.Linear) and id(m.weight) in chosen]


class Split:
    """Wraps an engine: the same clipped sums, and the norm of each record's gradient within some Linear layers.

    parts  one (R,) float64 tensor of norms per call of `add_clipped`, on the CPU; empty it when read
    """

    def __init__(self, engine: Engine, layers: Sequence[nn.Linear]):
        self._engine, self._layers, self.parts = engine, list(layers), []

    def add_clipped(self, losses: Losses, records: int, factor: Coefficients, sums: list[Tensor]) -> tuple[Tensor, Tensor]:
        """See bookkeeping.Engine."""
        trained = [(layer.weight.requires_grad, layer.bias is not None and layer.bias.requires_grad)
                   for layer in self._layers]
        tapes: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self._layers]
        hooks = [layer.register_forward_hook(_recorder(tape)) for layer, tape in zip(self._layers, tapes)]
        try:
            value, norms = self._engine.add_clipped(losses, records, factor, sums)
        finally:
            for hook in hooks:
                hook.remove()
        squares = torch.zeros(records, dtype=torch.float64, device=norms.device)
        with torch.no_grad():
            for tape, (weight, bias) in zip(tapes, trained):
                if tape and (weight or bias):
                    x, g = (_by_record(parts, records) for parts in zip(*tape))
                    squares += square_norms(x, g, weight, bias)
        self.parts.append(squares.sqrt().cpu())
        return value, norms

    def close(self) -> None:
        """Close the engine within."""
        getattr(self._engine, "close", lambda: None)()


# ---- in training

class Watch:
    """Keeps the norms of the last part of a training run (source A, table 4; source B: its tail figures). Lab only.

    last  share of the steps, counted from the end
    path  a file that they are kept in too, so that a resumed run has those from before; None: memory only

    Use: watch = Watch(); model = train_watched(watch, windows, None, objective, DPSGD(sigma=1.5), steps=1000, seed=42);
    then watch.norms.table()["total"]["p99"], or summary(watch.norms.total, watch.clip).
    """

    def __init__(self, last: float = 0.2, path: str | Path | None = None):
        if not 0 < last <= 1:
            raise ValueError(f"Watch last = {last!r} is not a share within (0, 1]")
        self.last, self.path = last, None if path is None else Path(path)
        self.first, self.clip, self.steps = 0, float("nan"), 0
        self._rows: list[np.ndarray] = []

    def begin(self, steps: int, clip: float, done: int) -> None:
        """A run of `steps` steps starts, `done` of them earlier: norms from those are read back from the file."""
        self.first, self.steps, self.clip = steps - max(1, round(self.last * steps)), steps, clip
        kept = np.empty(0, ROW)
        if self.path is not None and self.path.exists() and done:
            blob = self.path.read_bytes()
            kept = np.frombuffer(blob[:len(blob) // ROW.itemsize * ROW.itemsize], ROW)
            kept = kept[kept["step"] < done]
        self._rows = [kept]
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(kept.tobytes())

    def add(self, step: int, total: Tensor, conditioning: Tensor | None) -> None:
        """The records of one step."""
        rows = np.zeros(len(total), ROW)
        rows["step"], rows["total"] = step, total.cpu().numpy()
        if conditioning is not None:
            rows["conditioning"] = conditioning.numpy()
        self._rows.append(rows)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(rows.tobytes())

    @property
    def norms(self) -> Norms:
        """What was kept; records of one step stand together, in the order of the batch."""
        rows = np.concatenate([np.empty(0, ROW), *self._rows])
        return Norms(rows["step"].astype(np.int64), rows["total"].copy(), rows["conditioning"].copy(), self.clip)


class _Watched:
    """Stands in for the trainer's PrivateGradient."""

    def __init__(self, inner: PrivateGradient, watch: Watch, layers: list[nn.Linear]):
        self._inner, self._watch, self._split = inner, watch, Split(inner._engine, layers)

    def step(self, chunks: Iterable[tuple[Losses, int]], step: int) -> tuple[Tensor, Tensor]:
        keeps = step >= self._watch.first
        plain = self._inner._engine
        self._inner._engine, self._split.parts = (self._split if keeps else plain), []
        try:
            losses, norms = self._inner.step(chunks, step)
        finally:
            self._inner._engine = plain
        if keeps:
            self._watch.add(step, norms, torch.cat([torch.zeros(0, dtype=torch.float64), *self._split.parts]))
        return losses, norms

    def close(self) -> None:
        self._inner.close()


def train_watched(watch: Watch, *args: Any, **named: Any) -> Model:
    """`train(*args, **named)` with the norms of its last steps in `watch`: the same model, bit for bit.

    Raises ValueError where privacy is None: plain training has no gradients of single records.
    """
    bound = inspect.signature(training.train).bind(*args, **named)
    bound.apply_defaults()
    trainer = training._Trainer(dict(bound.arguments))
    if trainer.gradient is None:
        raise ValueError("train_watched needs privacy = DPSGD(...): plain training has no gradients of single records")
    trainer._resume()
    watch.begin(trainer.steps, trainer.privacy.clip, trainer.done)
    trainer.gradient = _Watched(trainer.gradient, watch, conditioning_layers(trainer.net))
    progress = bound.arguments["progress"]
    return trainer.run(training.SilentProgress() if progress is None else progress)


# ---- at a fixed model

def probe(model: Model, windows: Windows | np.ndarray, times: int | Sequence[int] = 20, *, weight: str | None = None,
          clip: float = 1.0, masks: Masks | None = None, seed: int = 0, at_once: int = 64) -> Norms:
    """Norms of (window, time) pairs at a fixed model; nothing is trained. Lab only.

    windows  n windows, each a record (a synthetic normalised batch draws the source's figure 2)
    times    so many times per window, stratified over the schedule; or the times themselves, for every window
    weight   another weight than the model's own (Objective.weight): "none" against "alpha_bar" is the controlled pair
    masks    default: the training masks
    Returns Norms with n * k rows; step is the diffusion time. Windows, masks, diffusion noise and times depend on `seed`
    only, so that two calls with different weights or models compare the same draws.
    """
    windows, rng = Windows.of(windows), stream(seed, "probe")
    n, (length, channels), last = len(windows), windows.values.shape[1:], model.setup.diffusion_steps
    if isinstance(times, int):
        share = (rng.random((n, times)) + np.arange(times)) / times
        t = np.minimum((share * last).astype(np.int64), last - 1)
    else:
        t = np.repeat(np.asarray(times, np.int64)[None], n, axis=0)
        if t.min() < 0 or t.max() >= last:
            raise ValueError(f"times lie within 0 to {last - 1}, the model's diffusion steps, not {t.min()} to {t.max()}")
    k = t.shape[1]
    observed = (masks or training_masks()).observed(n, length, channels, rng).repeat(k, axis=0)
    noise = rng.standard_normal((n, length, channels), np.float32).repeat(k, axis=0)
    rows, t = np.repeat(np.arange(n), k), t.ravel()
    net = model.net
    device = next(net.parameters()).device
    objective = model.setup.objective if weight is None else replace(model.setup.objective, weight=weight)
    a = alpha_bar(model.setup.schedule, last).float().to(device)
    split = Split(BookKeeping(net), conditioning_layers(net))
    sums = [torch.zeros_like(p) for p in net.parameters() if p.requires_grad]
    totals = []
    for low in range(0, len(rows), at_once):
        part = slice(low, min(low + at_once, len(rows)))
        losses = _losses(model, objective, windows.take(rows[part]), observed[part], noise[part], t[part], a)
        totals.append(split.add_clipped(losses, part.stop - low, torch.zeros_like, sums)[1].cpu())
    return Norms(t, torch.cat(totals).numpy(), torch.cat(split.parts).numpy(), clip)


def _losses(model: Model, objective: Any, windows: Windows, observed: np.ndarray, noise: np.ndarray, t: np.ndarray,
            a: Tensor) -> Losses:
    setup = model.setup
    inputs = model.prepare(windows, observed).to(a.device)
    known = torch.from_numpy(windows.known).to(a.device)
    whole = single(np.nan_to_num(setup.scale.normal(windows.values))).to(a.device)
    x0 = torch.where(known, (whole - inputs.base) / inputs.unit, 0.0)
    counted = known & (inputs.mask < 0.5) if objective.loss_on == "missing" else known
    time, eps = torch.from_numpy(t).to(a.device), torch.from_numpy(noise).to(a.device)
    kept = a[time]

    def losses() -> Tensor:
        out = inputs.run(model.net, noised(x0, eps, kept.view(-1, 1, 1)), time)
        return objective.losses(out, x0, eps, kept, counted)
    return losses


def by_time(norms: Norms, bins: int = 10, diffusion_steps: int = 1000) -> list[dict[str, float]]:
    """Norm against t: one row per bin of diffusion times (low, high inclusive): records, p50, p95, p99, clipped, and p50
    and p99 of ||g_cond||; empty bins are left out."""
    edges = np.linspace(0, diffusion_steps, bins + 1).round().astype(int)
    rows = []
    for low, high in pairwise(edges):
        here = (norms.step >= low) & (norms.step < high)
        if here.any():
            found, path = summary(norms.total[here], norms.clip), norms.conditioning[here]
            rows.append({"low": int(low), "high": int(high) - 1, **{k: found[k] for k in ("records", "p50", "p95", "p99",
                         "clipped") if k in found}, "cond_p50": float(np.median(path)),
                         "cond_p99": float(np.quantile(path, 0.99))})
    return rows


@dataclass(frozen=True, eq=False)
class Attenuation:
    """Norms of the same draws at the same model with weight 1 and with another: the controlled diagnostic. Lab only.

    t (n,) diffusion times; plain, weighted (n,) norms
    """

    t: np.ndarray
    plain: np.ndarray
    weighted: np.ndarray

    @property
    def each(self) -> np.ndarray:
        """1 - weighted / plain of each draw: exactly 1 - lambda_t (proposition 1), in floats; NaN for a zero gradient."""
        plain = np.where(self.plain > 0, self.plain, np.nan).astype(np.float64)
        return 1.0 - self.weighted / plain

    def table(self, bins: int = 10, diffusion_steps: int = 1000) -> list[dict[str, float]]:
        """One row per bin of times: the median of the draws' attenuations, and beside it the source's I.17, one minus the
        ratio of the two median norms (and of the two p95), which mixes times within a bin."""
        edges, rows = np.linspace(0, diffusion_steps, bins + 1).round().astype(int), []
        for low, high in pairwise(edges):
            here = (self.t >= low) & (self.t < high) & (self.plain > 0)
            if here.any():
                plain, weighted = self.plain[here].astype(np.float64), self.weighted[here].astype(np.float64)
                rows.append({"low": int(low), "high": int(high) - 1, "draws": int(here.sum()),
                             "median": float(np.median(self.each[here])),
                             "ratio_of_medians": float(1 - np.median(weighted) / np.median(plain)),
                             "ratio_of_p95": float(1 - np.quantile(weighted, 0.95) / np.quantile(plain, 0.95))})
        return rows


def attenuation(model: Model, windows: Windows | np.ndarray, times: int | Sequence[int] = 20, *, weight: str = "alpha_bar",
                masks: Masks | None = None, seed: int = 0, at_once: int = 64) -> Attenuation:
    """The controlled gradient diagnostic: model, windows, masks, noise and times fixed, only the weight changes."""
    plain, weighted = (probe(model, windows, times, weight=w, masks=masks, seed=seed, at_once=at_once)
                       for w in ("none", weight))
    return Attenuation(plain.step, plain.total, weighted.total)
