"""Training an imputer, privately or not.

Everything random is keyed by (seed, purpose, step), so a run that is resumed equals the uninterrupted one bit for bit
(with secure noise: in law). Only the net's weights are meant to leave; losses, norms and the choice of a checkpoint by
validation loss are private statistics.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedenergy.ids import canon, stream
from fedenergy.imputation.base import Base, base_from, inputs_of
from fedenergy.imputation.bookkeeping import Losses
from fedenergy.imputation.dpsgd import DPSGD, PrivateGradient, chunks_of, gaussian, records_at_once
from fedenergy.imputation.joint import begun, joint
from fedenergy.imputation.learned import Shape, network, objective_for, shape_of
from fedenergy.imputation.masks import Masks, training_masks
from fedenergy.imputation.model import Model, Setup, load_into, prepare, read, single, write
from fedenergy.imputation.objective import Objective, noised
from fedenergy.imputation.schedule import alpha_bar
from fedenergy.imputation.task import Scale, Windows
from fedenergy.privacy import accounting
from fedenergy.progress import Progress, SilentProgress

SELECT = ("last", "best")
MARKED = 64             # windows whose fillings tell one base from another
OnStep = Callable[[int, float], None]


def train(train: Windows | np.ndarray, valid: Windows | np.ndarray | None, objective: Objective | None = None,
          privacy: DPSGD | None = None, *, steps: int, seed: int, batch: int = 32, rate: float = 1e-4,
          weight_decay: float = 0.01, warmup: int = 0, ema: float = 0.0, net: Shape | str | None = None,
          masks: Masks | None = None, schedule: str = "cosine", diffusion_steps: int = 1000, base: str | Base = "none",
          residual_scale: float = 1.0, limits: Any = None, start: Model | None = None, train_only: str = "",
          select: str = "last", valid_every: int = 0, checkpoint: str | Path | None = None, checkpoint_every: int = 0,
          device: str = "cpu", on_step: OnStep | None = None, progress: Progress | None = None) -> Model:
    """Train an imputer and say what it cost.

    train, valid   Windows or arrays (n, T[, D]) in original units; each window is one record
    objective      default Objective("x0"); "eps" for net = "timedit"
    privacy        None: plain training on uniform batches, epsilon infinite; else DP-SGD with Poisson batches,
                   q = batch / n (n counts as public)
    batch          expected batch; rate, weight_decay, warmup: AdamW, linear warm-up over that many steps
    ema            0 none; 0.999: the model is the moving average of the weights (free)
    net            "dit" (default: the source's 8 x 256), "patchtst", "itransformer", "timesnet", "timedit" (see `learned`),
                   or a DiTConfig or LearnedConfig
    masks          distribution of training masks; default points, blocks, outages at 10 to 50 %
    base           "none", "linear", "daily" or an object (see base.Base): the model then learns the residual
    limits         public (low, high) per channel that map to [0, 1]; None: min and max of `train`, which DP-SGD does not
                   cover (the statement says so)
    start          a model to go on from (pre-trained on public or simulated data): its weights, its scale
    train_only     train only parameters whose name contains one of these words ("modulation,out"), or begins with it after
                   a "^" ("^out": the last layer)
    select         "last", or "best" by loss on `valid` every `valid_every` steps (reads private data; the statement says so)
    checkpoint     folder for resumable state, written every `checkpoint_every` steps and at the end; an existing one of
                   the same arguments is resumed, of other arguments refused
    on_step        called with (step, mean loss of its batch) after each step, and on resuming first for those done before
                   (an empty batch's is 0, a diverged one's NaN); losses are private statistics
    """
    trainer = _Trainer(locals())
    return trainer.run(SilentProgress() if progress is None else progress, on_step)


class _Trainer:
    """One call of `train`: its fixed parts and its state."""

    def __init__(self, a: dict[str, Any]):
        self.steps, self.seed, self.batch, self.rate = a["steps"], a["seed"], a["batch"], a["rate"]
        self.warmup, self.decay, self.device, self.select = a["warmup"], a["ema"], torch.device(a["device"]), a["select"]
        self.valid_every, self.folder, self.every = a["valid_every"], a["checkpoint"], a["checkpoint_every"]
        self.windows = Windows.of(a["train"])
        self.valid = None if a["valid"] is None else Windows.of(a["valid"])
        start, self.privacy = a["start"], a["privacy"]
        shape = shape_of(a["net"] or (start.setup.net if start else None), self.windows)
        self.objective = objective_for(shape, a["objective"])
        self.masks, self.base = a["masks"] or training_masks(), base_from(a["base"])
        self._check()
        n = len(self.windows)
        shape = replace(shape, extra=inputs_of(self.base, self.windows.channels))
        scale = (start.setup.scale if start and a["limits"] is None else Scale.fitted(self.windows)
                 if a["limits"] is None else Scale.given(a["limits"], self.windows.channels))
        self.setup = Setup(shape, self.objective, scale, a["schedule"], a["diffusion_steps"], a["residual_scale"],
                           self.windows.steps_per_day)
        self.q = min(1.0, self.batch / n)
        self.sigma = 0.0 if self.privacy is None else self.privacy.noise_multiplier(self.q, self.steps)
        self.noise = None if self.privacy is None else gaussian(self.privacy.noise, self.seed)
        self.start_note = _start_note(start, self.base)
        self.net = self._network(start, a["train_only"])
        self.average = copy.deepcopy(self.net) if self.decay else None
        self.best: dict[str, Tensor] | None = None
        parameters = [p for p in self.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=self.rate, weight_decay=a["weight_decay"], fused=True)
        self.gradient = None if self.privacy is None else PrivateGradient(
            self.net, self.privacy, self.sigma, self.q * n, self.noise)
        self.a = alpha_bar(self.setup.schedule, self.setup.diffusion_steps).float().to(self.device)
        self.history = accounting.History() if self.privacy is None else begun(self.base, n)
        self.done, self.best_loss = 0, float("inf")
        self.log: dict[str, list] = {"step": [], "loss": [], "clipped": [], "valid_step": [], "valid": []}
        self.arguments = canon({**self.setup.as_json(), "seed": self.seed, "steps": self.steps, "batch": self.batch,
                                "rate": self.rate, "decay": a["weight_decay"], "warmup": self.warmup, "ema": self.decay,
                                "masks": asdict(self.masks), "base": getattr(self.base, "name", "none"), "n": n,
                                "privacy": None if self.privacy is None else asdict(self.privacy),
                                "select": self.select, "valid_every": self.valid_every,
                                "train_only": a["train_only"], "marks": self._marks(start)}).decode()

    def _marks(self, start: Model | None) -> dict[str, str]:
        """Digests of what the arguments only name: data, base (by its fillings and its cost) and the model to go on from.

        A state goes on with equal ones only, else its statement would speak of another training.
        """
        few = self.windows.take(np.unique(np.linspace(0, len(self.windows) - 1, MARKED).astype(int)))
        hidden = few.known & (np.arange(few.length) % 2 == 0)[:, None]
        filled = () if self.base is None else (self.base.fill(few.values, hidden, few.time_of_day), self.base.note)
        if (state := getattr(self.base, "state", None)) is not None:          # all that a fitted base knows, homes included
            arrays, rest = state()
            filled += (*(arrays[name] for name in sorted(arrays)), json.dumps(rest, sort_keys=True))
        weights = () if start is None else (*(v.cpu().numpy() for v in start.net.state_dict().values()), self.start_note)
        return {"train": _mark(*_contents(self.windows)), "base": _mark(*filled), "start": _mark(*weights),
                "valid": _mark(*(() if self.valid is None else _contents(self.valid)))}

    def _check(self) -> None:
        for name, value in (("steps", self.steps), ("batch", self.batch)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} = {value!r} is not a whole number of at least 1")
        if self.privacy is not None and self.batch > len(self.windows):
            raise ValueError(f"batch = {self.batch} exceeds the {len(self.windows)} windows: q = batch / n is at most 1")
        if not 0 <= self.decay < 1:
            raise ValueError(f"ema = {self.decay!r} is not within [0, 1)")
        if self.select not in SELECT:
            raise ValueError(f"select = {self.select!r} is unknown (takes: {', '.join(SELECT)})")
        if self.select == "best" and (self.valid is None or self.valid_every < 1):
            raise ValueError("select = \"best\" needs valid windows and valid_every >= 1")
        if self.base is not None and self.objective.target != "x0":
            raise ValueError(f"base {self.base.name!r} needs target \"x0\" (a zero output is then the base itself), "
                             f"not {self.objective.target!r}")

    def _network(self, start: Model | None, train_only: str) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(self.seed, "init").integers(2**63)))
            net = network(self.setup.net)
        if start is not None:
            load_into(net, {f"net.{k}": v for k, v in start.net.state_dict().items()}, "net.")
        words = [word.strip() for word in train_only.split(",") if word.strip()]
        for name, p in net.named_parameters():
            p.requires_grad_(not words or any(_named(name, word) for word in words))
        if not any(p.requires_grad for p in net.parameters()):
            raise ValueError(f"train_only = {train_only!r} matches no parameter of the net")
        return net.to(self.device)

    # ---- one step

    def losses_of(self, windows: Windows, rows: np.ndarray, rng: np.random.Generator) -> Callable[[np.ndarray], Losses]:
        """Draw times, masks and noise for the rows of a batch; the result gives the loss of a part of them."""
        k, (length, channels) = self.objective.draws, windows.values.shape[1:]
        n = len(rows)
        share = (rng.random((n, k)) + np.arange(k)) / k               # stratified over the draws of a record
        t = np.minimum((share * self.setup.diffusion_steps).astype(np.int64), self.setup.diffusion_steps - 1)
        observed = self.masks.observed(n * k, length, channels, rng).reshape(n, k, length, channels)
        noise = rng.standard_normal((n, k, length, channels), np.float32)
        if self.objective.late:
            t[rng.random((n, k)) < self.objective.late] = self.setup.diffusion_steps - 1

        def part(at: np.ndarray) -> Losses:
            chosen = windows.take(np.repeat(rows[at], k))
            seen = observed[at].reshape(-1, length, channels)
            inputs = prepare(self.setup, self.base, chosen, seen).to(self.device)
            known = torch.from_numpy(chosen.known).to(self.device)
            whole = single(np.nan_to_num(self.setup.scale.normal(chosen.values)))
            x0 = torch.where(known, (whole.to(self.device) - inputs.base) / inputs.unit, 0.0)
            counted = known & (inputs.mask < 0.5) if self.objective.loss_on == "missing" else known
            time, eps = torch.from_numpy(t[at].ravel()), torch.from_numpy(noise[at]).flatten(0, 1)
            time, eps = time.to(self.device), eps.to(self.device)
            a = self.a[time]

            def losses() -> Tensor:
                out = inputs.run(self.net, noised(x0, eps, a.view(-1, 1, 1)), time)
                return self.objective.losses(out, x0, eps, a, counted).view(-1, k).mean(1)        # (records,)
            return losses
        return part

    def _draws(self, number: int) -> np.random.Generator:
        """Of the times, masks and noise of a step's records: by seed and step, or where the noise is secure by the operating
        system. A record's draws depend on its place in the batch, so they must be secret: were they known, one record more
        would change what is known to have been drawn for all those after it, and the sum by more than its own gradient."""
        if self.privacy is not None and self.privacy.noise == "secure":
            return np.random.default_rng(int.from_bytes(os.urandom(32), "little"))
        return stream(self.seed, "draws", "", f"step-{number}")

    def step(self) -> None:
        """One optimiser step; the history is written before its result can be used."""
        number = self.done
        draws = self._draws(number)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1.0, (number + 1) / self.warmup) if self.warmup else self.rate
        if self.gradient is not None:
            rows = self.noise.included(len(self.windows), self.q, number)
            part = self.losses_of(self.windows, rows, draws)
            self.history.add(self.sigma, self.q, len(rows))
            size = records_at_once(self.net, self.privacy, len(rows), self.objective.draws)
            losses, norms = self.gradient.step(chunks_of(rows, part, size), number)
            clipped = float((norms > self.privacy.clip).float().mean()) if len(rows) else 0.0
        else:
            rows = stream(self.seed, "batch", "", f"step-{number}").choice(
                len(self.windows), min(self.batch, len(self.windows)), replace=False)
            losses = self.losses_of(self.windows, rows, draws)(np.arange(len(rows)))()
            self.optimizer.zero_grad()
            losses.mean().backward()
            clipped = 0.0
        self.optimizer.step()
        if self.average is not None:
            with torch.no_grad():
                torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), 1 - self.decay)
        self.done += 1
        self.log["step"].append(number)
        loss = float(losses.detach().mean()) if len(losses) else 0.0
        self.log["loss"].append(loss if math.isfinite(loss) else None)
        self.log["clipped"].append(clipped)

    # ---- the whole run

    def run(self, progress: Progress, on_step: OnStep | None = None) -> Model:
        """Steps from where the checkpoint stands to the end; then the model and its statement."""
        self._resume()
        tell = on_step or (lambda step, loss: None)
        for step in range(self.done):
            tell(step, self._loss_at(step))
        progress.start(self.steps, "training")
        progress.advance(self.done)
        try:
            while self.done < self.steps:
                self.step()
                tell(self.done - 1, self._loss_at(-1))
                if self.valid is not None and self.valid_every and self.done % self.valid_every == 0:
                    self._validate()
                if self.folder is not None and self.every and self.done % self.every == 0:
                    self._save()
                progress.advance()
            if self.folder is not None:
                self._save()
        finally:
            progress.close()
            if self.gradient is not None:
                self.gradient.close()
        net = copy.deepcopy(self.average or self.net)
        if self.best is not None:
            net.load_state_dict(self.best)
        net = net.cpu().requires_grad_(True).eval()
        statement = self.statement()
        progress.note(str(statement))
        return Model(net, self.setup, self.base, statement, self.history, self.log)

    def _loss_at(self, index: int) -> float:
        loss = self.log["loss"][index]
        return math.nan if loss is None else loss

    def statement(self) -> accounting.Statement:
        """What may be claimed, from the history alone."""
        dp, notes = self.privacy, []
        if dp is None:
            return accounting.state(self.history, 0.0, 0.0, household_windows=self.windows.windows_per_home)
        if not self.setup.scale.public:
            notes.append("the scale is read off the training data and not covered: give public limits")
        if self.select == "best":
            notes.append("the checkpoint is chosen by validation loss: that choice reads the validation data, uncovered")
        both = joint(self.base, self.history, dp.delta, None, self.noise.stamp)
        notes += filter(None, [self.start_note, "" if self.base is None else self.base.note,
                               "" if both is None else str(replace(both, noise=""))])
        homes = dp.household_windows if dp.household_windows is not None else self.windows.windows_per_home
        return accounting.state(self.history, dp.delta, dp.clip, household_windows=homes, noise=self.noise.stamp,
                                notes=notes)

    @torch.no_grad()
    def _validate(self) -> None:
        net, self.net = self.net, self.average or self.net
        rows, total = np.arange(len(self.valid)), []
        part = self.losses_of(self.valid, rows, stream(self.seed, "valid"))        # the same draws every time
        for low in range(0, len(rows), 256):
            total.append(part(rows[low:low + 256])().cpu())
        self.net, used = net, self.average or self.net
        loss = float(torch.cat(total).mean())
        self.log["valid_step"].append(self.done)
        self.log["valid"].append(loss)
        if self.select == "best" and loss < self.best_loss:
            self.best_loss, self.best = loss, {k: v.clone() for k, v in used.state_dict().items()}

    # ---- checkpoints

    def _save(self) -> None:
        arrays = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        arrays |= {f"average.{k}": v for k, v in ({} if self.average is None else self.average.state_dict()).items()}
        arrays |= {f"best.{k}": v for k, v in (self.best or {}).items()}
        for k, state in self.optimizer.state_dict()["state"].items():
            arrays |= {f"adam.{k}.{key}": value for key, value in state.items()}
        write(self.folder, arrays, {"kind": "training", "arguments": self.arguments, "done": self.done, "log": self.log,
                                    "best_loss": None if self.best is None else self.best_loss,
                                    "history": self.history.as_json()})

    def _resume(self) -> None:
        if self.folder is None or not (Path(self.folder) / "training.json").exists():
            return
        arrays, body = read(self.folder, "training")
        if body["arguments"] != self.arguments:
            old, new = json.loads(body["arguments"]), json.loads(self.arguments)
            odd = {name for name in {*old, *new} if old.get(name) != new.get(name)} - {"marks"}
            marks, mine = old.get("marks", {}), new["marks"]
            odd |= {f"the content of {name}" for name in mine if marks.get(name) != mine[name]}
            raise ValueError(f"{self.folder} holds the training state of other arguments ({', '.join(sorted(odd))}): choose "
                             "another folder, or delete it to begin again")
        load_into(self.net, arrays, "net.")
        if self.average is not None:
            load_into(self.average, arrays, "average.")
        if body["best_loss"] is not None:
            self.best = {k.removeprefix("best."): v.to(self.device) for k, v in arrays.items() if k.startswith("best.")}
            self.best_loss = body["best_loss"]
        packed = self.optimizer.state_dict()
        for name, value in arrays.items():
            if name.startswith("adam."):
                _, k, key = name.split(".")
                packed["state"].setdefault(int(k), {})[key] = value
        self.optimizer.load_state_dict(packed)
        self.done, self.log = body["done"], body["log"]
        self.history = accounting.History.from_json(body["history"])


def _contents(windows: Windows) -> tuple[np.ndarray | str, ...]:
    """All that a training reads of windows."""
    extra = np.zeros(0) if windows.covariates is None else windows.covariates
    return windows.values, windows.phase, extra, str(windows.homes), str(windows.steps_per_day)


def _mark(*parts: np.ndarray | str) -> str:
    """Digest of arrays and texts, 32 hex digits."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else np.ascontiguousarray(part).tobytes()
        shape = "" if isinstance(part, str) else f"{part.dtype} {part.shape}"
        found.update(f"{len(data)} {shape}\n".encode() + data)
    return found.hexdigest()


def _named(name: str, word: str) -> bool:
    return name.startswith(word[1:]) if word.startswith("^") else word in name


def _start_note(start: Model | None, base: Base | None) -> str:
    """What a model to go on from does to the statement: its own training data are not in this history."""
    if start is None:
        return ""
    if start.base is base and start.history.parts and start.history.parts == begun(base, 0).parts:
        return ""                                       # what it cost is what the base knows of homes: this history has it
    if math.isinf(start.privacy.epsilon):
        return "goes on from a model trained without DP-SGD: sound only where its data are public or simulated"
    return (f"goes on from a model that cost epsilon {start.privacy.epsilon:.4g} at delta {start.privacy.delta:g} on its "
            "own data: add it where a record is in both")
