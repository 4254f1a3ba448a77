"""The objective-conditioning source (arXiv 2610.00209) as studies: its tables 1 to 8, C.13 to I.17 and figures 1 and 2.

    fedenergy run configs/objectives_table1.toml --quick --data DIR

One config per table. Every study has two regimes: `as_published` (sigma 1.5 and the source's steps, with the epsilon that
they cost, computed from the batches drawn) and `true_epsilon` (noise or steps calibrated until epsilon is what the source
states). Every table carries the baselines that are free.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from fedenergy import imputation as imp
from fedenergy.progress import Progress
from fedenergy.studies import Finished, Place
from simulations.objectives import check, page, runs, settings
from simulations.objectives.settings import CALIBRATE, DATASETS, LEARNED, PATTERNS, REGIMES, SCALES, TABLES, TRAINING


@dataclass(frozen=True)
class Objectives:
    """A study of the objective-conditioning source.

    tables       which of its tables and figures the page redraws: "1" ... "8", "C.13" ... "I.17", "figure 1", "figure 2"
    datasets     etth1, ettm1, electricity (all sensors, MT_369 tested), electricity-369, household, appliances
    channels     of ETT: "OT" or "all"; household_rows, electricity_rows: the first so many steps, 0 all
    patterns     random, block, outage, real outages (lengths of Household's gaps); rates; horizons: suffixes
    objectives   rows to train: "eps", "v", "x0", weighted or not ("v alpha_bar", "v static(0.6)", "v min_snr"), "eps tuned"
                 (over tuning_clips x tuning_rates), "x0 over linear" (the residual of a free base)
    learned      patchtst, itransformer, timesnet, timedit; learned_width, learned_depth: 0 takes each one's own
    samplers     "literal" (the source's: clipped at the end only), "clip_x0" (at each step), "start_t 980", both with "+"
    regimes      as_published, true_epsilon, non_private; epsilons: of true_epsilon
    calibrate    what meets a true epsilon: "sigma" (at all steps) or "steps" (at the source's sigma)
    scale        min and max from "training" windows (not covered by DP-SGD), "public" limits where known, or "by regime"
    loss_on, reduction, training_masks   left open by the source: "missing" or "all"; "mean" or "sum"; "mixed" or one pattern
    select       "best" by validation loss every valid_every steps, or "last"
    test_windows 0 all; else so many, drawn once
    left_out     data sets that --quick left out: the page lists them as not run
    hours        0 no limit; else cells not begun by then read "not run", and a resumed run goes on
    """

    name: str = "objectives"
    title: str = "Objective conditioning under DP-SGD"
    tables: tuple[str, ...] = ("1",)
    datasets: tuple[str, ...] = ("etth1", "ettm1", "electricity", "household", "appliances")
    channels: str = "OT"
    household_rows: int = 0
    electricity_rows: int = 0
    patterns: tuple[str, ...] = ("random", "block", "outage")
    rates: tuple[float, ...] = (0.5,)
    horizons: tuple[int, ...] = ()
    objectives: tuple[str, ...] = ("eps", "v alpha_bar")
    learned: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ("literal", "clip_x0", "start_t 980")
    regimes: tuple[str, ...] = ("as_published", "true_epsilon")
    epsilons: tuple[float, ...] = (10.0,)
    calibrate: str = "sigma"
    scale: str = "by regime"
    loss_on: str = "missing"
    reduction: str = "mean"
    training_masks: str = "mixed"
    schedule: str = "cosine"
    seeds: tuple[int, ...] = (42, 43, 44)
    steps: int = 100_000
    batch: int = 32
    batch_electricity: int = 16
    rate: float = 1e-4
    clip: float = 1.0
    sigma: float = 1.5
    delta: float = 1e-5
    width: int = 256
    depth: int = 8
    heads: int = 8
    patch: int = 1
    learned_width: int = 0
    learned_depth: int = 0
    window: int = 96
    window_electricity: int = 192
    diffusion_steps: int = 1000
    ddim_steps: int = 50
    samples: int = 30
    select: str = "best"
    valid_every: int = 1000
    tuning_clips: tuple[float, ...] = (0.5, 1.0, 2.0)
    tuning_rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    attenuate: bool = False
    test_windows: int = 0
    baselines: bool = True
    dp_gp: bool = True
    kalman: bool = True
    checkpoint_every: int = 2000
    left_out: tuple[str, ...] = ()
    hours: float = 0.0
    threads: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, list):
                object.__setattr__(self, item.name, tuple(value))
        for name, known in (("tables", TABLES), ("datasets", DATASETS), ("left_out", DATASETS), ("patterns", PATTERNS),
                            ("regimes", REGIMES), ("learned", tuple(LEARNED))):
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"{name} holds {value!r}, which is unknown (takes: {', '.join(known)})")
        for name, known in (("calibrate", CALIBRATE), ("scale", SCALES), ("training_masks", TRAINING),
                            ("channels", ("OT", "all")), ("schedule", ("cosine", "linear")), ("select", ("best", "last"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} = {getattr(self, name)!r} is unknown (takes: {', '.join(known)})")
        for name in ("steps", "batch", "batch_electricity", "samples", "ddim_steps", "valid_every", "checkpoint_every",
                     "diffusion_steps"):
            if isinstance(getattr(self, name), bool) or getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not at least 1")
        for name in ("household_rows", "electricity_rows", "test_windows", "hours", "threads", "learned_width",
                     "learned_depth"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)!r} is below 0 (0: no limit, or the default)")
        for horizon in self.horizons:
            if not 0 < horizon < min(self.window, self.window_electricity):
                raise ValueError(f"horizons holds {horizon}: a suffix is shorter than a window ({self.window})")
        if self.datasets and not (self.seeds and self.regimes and self.samplers):
            raise ValueError("seeds, regimes and samplers each need at least one entry")
        for name in self.samplers:
            settings.sampler(name)
        for name in self.objectives:
            settings.method(name, self.loss_on, self.reduction)
        for rate in self.rates:
            imp.points(rate)
        for epsilon in self.epsilons:
            imp.DPSGD(self.clip, epsilon=epsilon, delta=self.delta)
        imp.DPSGD(self.clip, sigma=self.sigma, delta=self.delta)
        for length in (self.window, self.window_electricity):
            imp.DiTConfig(length, 1, self.patch, self.width, self.depth, self.heads)
        if settings.TUNED in self.objectives and self.select != "best":
            raise ValueError(f'objectives holds "{settings.TUNED}", which is chosen by validation loss: set select = "best"')

    @property
    def methods(self) -> tuple[str, ...]:
        """Rows that are trained: objectives, then learned baselines."""
        return (*self.objectives, *(LEARNED[name] for name in self.learned))

    def toy(self) -> Objectives:
        """The same study on its first data set that fits a laptop: DiT 2 x 64 in patches of 4, 300 steps at rate 1e-3, 10
        DDIM steps, 6 samples, learned baselines 1 x 32, at most 100 test windows, no Kalman smoother; one thread. Trainings
        and errors that another table's quick form made in the same folder are not made again."""
        chosen = [name for name in self.datasets if not name.startswith("electricity")][:1]
        return replace(
            self, name=f"{self.name}-quick", datasets=tuple(chosen),
            left_out=tuple(name for name in self.datasets if name not in chosen),
            width=64, depth=2, heads=4, patch=4, steps=300, rate=1e-3, learned_width=32, learned_depth=1, ddim_steps=10,
            samples=6, test_windows=100, kalman=False, valid_every=100, household_rows=self.household_rows or 200_000,
            tuning_clips=(0.5, 1.0), tuning_rates=(3e-4, 1e-3), threads=1)

    def check(self, place: Place) -> list[tuple[str, str]]:
        """Windows, steps, sigma, true epsilon (PLD and RDP) of every set and regime, parameters, estimated hours."""
        return check.rows(self, place)

    def run(self, place: Place, progress: Progress) -> Finished:
        """Run what is not kept yet, then write tables, figures and the page."""
        folder = place.folder(self)
        folder.mkdir(parents=True, exist_ok=True)
        return page.publish(self, folder, runs.play(self, place, progress), place)
