"""DP-aware AdaLN-Zero (arXiv 2602.22610) as studies: limits on the conditioning path against none, under DP-SGD.

    fedenergy run configs/adaln_published.toml --quick --data DIR

The source's sigmas (0.03 to 0.2) carry no privacy: such cells are mechanism diagnostics, and their epsilon, computed from
the steps that ran, says so. Cells at a calibrated true epsilon stand beside them. The source's meter is not public: a
household set takes its place. Its network's size, its limits in numbers and its tasks' masks are not given either: ours are
printed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from fedenergy.imputation.dit import DiT
from fedenergy.imputation.dpsgd import DPSGD
from fedenergy.privacy import accounting
from fedenergy.progress import Progress
from fedenergy.report.words import number
from fedenergy.studies import Finished, Place
from simulations.adaln import data, measure, page, runs
from simulations.adaln.measure import device_of
from simulations.adaln.settings import DATASETS, PLAIN, REGIMES, SCALINGS, TASKS, TRUE, noise_words, objective_of, parse

TRAIN, TIMED = 3.5, 5           # a DP training step over a forward pass of its batch; forward passes that are timed


@dataclass(frozen=True)
class AdaLNZero:
    """A study of DP-aware AdaLN-Zero: every data set x limits x noise x clip x objective x seed is one training.

    datasets     household (UCI, hourly), etth1, ettm1 (seven channels each), simulated
    limits       "none", or "loose", "medium", "tight", "too tight" (1, .9, .75, .5 of the reference magnitudes), then
                 ", c only" or ", modulation only", then ", hard" (clamp instead of tanh)
    reference    c, gamma, beta, alpha; empty: measured on a simulated home, trained without limits at each cell's own noise
    sigmas       noise multipliers as published; epsilons: true ones, sigma calibrated; non_private: also without noise
    clips        C; objectives: "eps" (the source's), "v alpha_bar" (objective conditioning), ...
    scaling      z-scores of the "training" part (not covered by DP-SGD), "public" units, or "by regime" (public for a true
                 epsilon and its non-private twin)
    length, stride, horizon, missing   window, step between windows, suffix to forecast, share hidden for imputation
    width, depth, heads, patch         of the network, which the source does not give
    test_windows 0 all; probes: training windows of the gradient diagnostics
    left_out     data sets that --quick left out: the page lists them as not run
    hours        0 no limit; else cells not begun by then read "not run", and a resumed run goes on
    small        set by --quick: the page says that this is a toy
    """

    name: str = "adaln"
    title: str = "DP-aware AdaLN-Zero"
    datasets: tuple[str, ...] = ("household", "etth1", "ettm1")
    limits: tuple[str, ...] = ("none", "medium")
    reference: tuple[float, ...] = ()
    sigmas: tuple[float, ...] = (0.05, 0.2)
    epsilons: tuple[float, ...] = ()
    non_private: bool = False
    clips: tuple[float, ...] = (1.0,)
    objectives: tuple[str, ...] = ("eps",)
    seeds: tuple[int, ...] = (0, 1, 2)
    scaling: str = "by regime"
    delta: float = 1e-5
    length: int = 168
    stride: int = 24
    horizon: int = 24
    missing: float = 0.5
    width: int = 256
    depth: int = 8
    heads: int = 8
    patch: int = 4
    diffusion_steps: int = 1000
    steps: int = 20_000
    batch: int = 96
    rate: float = 7e-4
    weight_decay: float = 2e-5
    warmup: int = 1000
    ema: float = 0.999
    samples: int = 30
    ddim_steps: int = 50
    test_windows: int = 0
    probes: int = 64
    checkpoint_every: int = 500
    left_out: tuple[str, ...] = ()
    hours: float = 0.0
    device: str = "auto"
    threads: int = 0
    small: bool = False

    def __post_init__(self) -> None:
        for item in fields(self):
            if isinstance(value := getattr(self, item.name), list):
                object.__setattr__(self, item.name, tuple(value))
        for name in ("datasets", "limits", "clips", "objectives", "seeds"):
            values = getattr(self, name)
            if isinstance(values, str) or not values or len(set(values)) < len(values):
                raise ValueError(f"{name} = {values!r} must be a list of one value or more, each once")
        if unknown := [x for x in (*self.datasets, *self.left_out) if x not in DATASETS]:
            raise ValueError(f"datasets: {unknown[0]!r} is unknown (takes: {', '.join(DATASETS)})")
        for text in self.limits:
            parse(text)
        for text in self.objectives:
            objective_of(text)
        if self.scaling not in SCALINGS:
            raise ValueError(f"scaling = {self.scaling!r} is unknown (takes: {', '.join(SCALINGS)})")
        if not (self.sigmas or self.epsilons or self.non_private):
            raise ValueError("nothing to train: give sigmas, epsilons, or non_private = true")
        for clip in self.clips:
            for asked in ({"sigma": s} for s in self.sigmas):
                DPSGD(clip, delta=self.delta, **asked)
            for asked in ({"epsilon": e} for e in self.epsilons):
                DPSGD(clip, delta=self.delta, **asked)
        if self.reference and (len(self.reference) != 4 or min(self.reference) <= 0):
            raise ValueError(f"reference = {self.reference!r} must be four positive numbers (c, gamma, beta, alpha), or "
                             "empty")
        for name in ("stride", "horizon", "steps", "batch", "samples", "ddim_steps", "probes", "diffusion_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} is not at least 1")
        if self.hours < 0:
            raise ValueError(f"hours = {self.hours} is below 0 (0: no limit)")
        if not (0 < self.missing < 1 and self.horizon < self.length):
            raise ValueError(f"missing = {self.missing} must lie within (0, 1), and horizon = {self.horizon} below length = "
                             f"{self.length}")
        if self.ddim_steps > self.diffusion_steps or not 0 <= self.ema < 1:
            raise ValueError(f"ddim_steps = {self.ddim_steps} must not exceed diffusion_steps = {self.diffusion_steps}, and "
                             f"ema = {self.ema} must lie within [0, 1)")
        runs.shape_of(self, 7)

    def toy(self) -> AdaLNZero:
        """First data set, first two seeds, ends of the lists of sigma and C, largest epsilon, windows of 72 hours, a 2 x 64
        network of patch 4, 300 steps of batch 48 at rate 2e-3 (or what is smaller): a toy, whose cells differ only by what
        they are said to. Cells that another study's quick form made in the same folder are not made again."""
        def ends(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(dict.fromkeys([*values[:1], *values[-1:]]))
        return replace(self, name=f"{self.name}-quick", datasets=self.datasets[:1], left_out=self.datasets[1:],
                       seeds=self.seeds[:2], sigmas=ends(self.sigmas), clips=ends(self.clips), epsilons=self.epsilons[-1:],
                       length=min(self.length, 72), width=min(self.width, 64), depth=min(self.depth, 2), heads=4,
                       steps=min(self.steps, 300), batch=min(self.batch, 48), rate=2e-3, warmup=15, ema=0.98, samples=8,
                       ddim_steps=15, test_windows=16, probes=16, checkpoint_every=0, threads=self.threads or 1, small=True)

    def check(self, place: Place) -> Sequence[tuple[str, str]]:
        """What would be trained, what each noise costs, hours; runs nothing but timed forward passes on random numbers."""
        net = DiT(runs.shape_of(self, data.CHANNELS))
        rows = [("model", f"DiT {self.depth} x {self.width}, patch {self.patch}, pooled condition: "
                          f"{sum(p.numel() for p in net.parameters()):,} parameters; on {device_of(self.device)}"),
                ("training", f"linear schedule, T = {self.diffusion_steps:,}; AdamW {self.rate:g}, weight decay "
                             f"{self.weight_decay:g}, {self.warmup:,} warm-up steps, EMA {self.ema:g}, expected batch "
                             f"{self.batch}, {self.steps:,} steps"),
                ("tasks", f"imputation ({self.missing:.0%} of points hidden), forecasting (last {self.horizon} of "
                          f"{self.length} steps)"),
                ("limits", f"{'; '.join(self.limits)}; reference magnitudes "
                           + (", ".join(f"{x:g}" for x in self.reference) if self.reference else "measured first"))]
        forward, total = self._seconds(net), 0.0
        for dataset in self.datasets:
            try:
                one = data.load(self, dataset, place.data)
            except FileNotFoundError as error:
                rows.append((dataset, f"not run: data absent ({error})"))
                continue
            rows.append((dataset, one.note))
            rows += self._costs(dataset, len(one.train))
            cells = len(runs.fits(self, dataset))
            noises = 0 if self.reference else len({runs.noise_of(fit) for fit in runs.fits(self, dataset)})
            fill = len(one.test) * len(TASKS) * self.samples * self.ddim_steps / self.batch
            probe = TRAIN * self.probes * measure.PROBED / self.batch
            total += forward * (cells * (TRAIN * self.steps + fill + probe) + noises * TRAIN * self.steps)
            told = f"{cells} trainings" + (f"; {noises} more for reference magnitudes" if noises else "")
            rows.append((f"{dataset}, cells", f"{told}; those of another study in the same folder are not made again"))
        rows += [(dataset, data.why_left_out(dataset, place.data)) for dataset in self.left_out]
        rows.append(("estimated", f"{number(total / 3600)} hours on this machine's {device_of(self.device)}, from timed "
                                  "forward passes"))
        return rows

    def _costs(self, dataset: str, n: int) -> list[tuple[str, str]]:
        q, rows = min(1.0, self.batch / n), []
        for regime, asked, dp in ([(runs.PUBLISHED, s, DPSGD(sigma=s, delta=self.delta)) for s in self.sigmas]
                                  + [(TRUE, e, DPSGD(epsilon=e, delta=self.delta)) for e in self.epsilons]):
            sigma = dp.noise_multiplier(q, self.steps)
            costs = [accounting.epsilon(sigma, q, self.steps, self.delta, windows=k) for k in (1, runs.overlap(self))]
            rows.append((f"{dataset}, {noise_words(regime, asked)}",
                         f"{REGIMES[regime]}: σ {sigma:.4g}, q {q:.4g}: ε {costs[0]:.4g} per window, {costs[1]:.4g} per "
                         f"reading (in up to {runs.overlap(self)} windows), δ {self.delta:g}, add/remove"))
        return rows + ([(f"{dataset}, no noise", REGIMES[PLAIN])] if self.non_private else [])

    def _seconds(self, net: DiT) -> float:
        """One forward pass of a batch: the shortest of some, as other work disturbs."""
        device = device_of(self.device)
        net = net.to(device)
        x = torch.randn(self.batch, self.length, 7, device=device)
        t = torch.zeros(self.batch, dtype=torch.long, device=device)
        took = []
        with torch.no_grad():
            for _ in range(TIMED):
                start = time.perf_counter()
                float(net(x, t, x, x).sum())
                took.append(time.perf_counter() - start)
        return min(took)

    def run(self, place: Place, progress: Progress) -> Finished:
        """Train what is not kept yet, then write tables, figures and the page."""
        folder = place.folder(self)
        folder.mkdir(parents=True, exist_ok=True)
        return page.publish(self, folder, runs.play(self, place, progress))
