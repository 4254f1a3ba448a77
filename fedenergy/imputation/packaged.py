"""Fitted imputers as files, and those that come with the package: fitted to simulated homes, so that they cost no privacy.

A dp_gp is a folder of one JSON and one safetensors file (nothing is unpickled; a digest ties the two). The packaged ones lie
in pretrained/, one per step of the clock, with a card that says how they were made and how well they fill.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from fedenergy.errors import ConfigError
from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.households.simulate import simulate_households
from fedenergy.imputation import dp_gp, masks
from fedenergy.imputation.baselines import fill_with
from fedenergy.imputation.dp_gp import DpGp
from fedenergy.imputation.dp_gp_release import Spent
from fedenergy.imputation.task import Windows, cut, errors, join
from fedenergy.progress import Progress, SilentProgress

SCHEMA, FILE = 1, "dp_gp.json"
PRETRAINED = Path(__file__).parent / "pretrained"
SIMULATED = "simulated"
LEAST_STEP = 5          # minutes: below it the covariance of two days has millions of entries
FIELDS = ("phase", "low", "cap", "transform", "level")
ARRAYS = ("mean", "scale", "correlation")
PATTERNS = (masks.points(0.3), masks.blocks(0.5), masks.outage(0.2), masks.outage(0.5))
RIVALS = ("linear", "nearest", "window mean", "same time of day")


def save_gp(gp: DpGp, folder: str | Path, card: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted dp_gp into a folder; card: JSON values for the reader (how it was made, what it scored)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = save_arrays({name: np.ascontiguousarray(getattr(gp, name), np.float32) for name in ARRAYS})
    mark = hashlib.blake2b(blob, digest_size=8).hexdigest()
    privacy = {k: "infinite" if v == math.inf else v for k, v in asdict(gp.privacy).items()}
    body = {"schema": SCHEMA, "kind": "dp_gp", "arrays": mark, **{name: getattr(gp, name) for name in FIELDS},
            "privacy": privacy, "card": dict(card or {})}
    _replace(folder / f"{mark}.safetensors", blob)
    _replace(folder / FILE, (json.dumps(body, indent=1, allow_nan=False) + "\n").encode())
    for old in folder.glob("*.safetensors"):
        if old.stem != mark and re.fullmatch("[0-9a-f]{16}", old.stem):
            old.unlink()
    return folder


def load_gp(folder: str | Path) -> tuple[DpGp, dict[str, Any]]:
    """(a saved dp_gp, its card). ConfigError where the folder holds none or its files are damaged."""
    path = Path(folder) / FILE
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if (body["schema"], body["kind"]) != (SCHEMA, "dp_gp") or not str(body["arrays"]).isalnum():
            raise ValueError(f"schema {body['schema']!r}, kind {body['kind']!r}")
        blob = (path.parent / f"{body['arrays']}.safetensors").read_bytes()
        if hashlib.blake2b(blob, digest_size=8).hexdigest() != body["arrays"]:
            raise ValueError("the arrays do not match their digest")
        found = {name: array.astype(np.float64) for name, array in load_arrays(blob).items()}
        slots, length = len(found["mean"]), len(found["correlation"])
        if found["scale"].shape != (slots,) or found["correlation"].shape != (length, length) or length % slots:
            raise ValueError("the arrays have no common shape")
        privacy = {k: math.inf if v == "infinite" else v for k, v in body["privacy"].items()}
        gp = DpGp(*(found[name] for name in ARRAYS), Spent(**privacy), **{name: body[name] for name in FIELDS})
        return gp, body["card"]
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{path} is no imputer of this version, or is damaged ({error}): restore the whole folder, or "
                          "train again") from error


def steps_packaged() -> tuple[int, ...]:
    """Lengths of a step, minutes, for which an imputer is packaged."""
    return tuple(sorted(int(path.name.rpartition("-")[2]) for path in PRETRAINED.glob(f"{SIMULATED}-*")))


@lru_cache(maxsize=8)
def simulated(step_minutes: int) -> DpGp:
    """The packaged imputer for that step, fitted to simulated homes only. ConfigError where there is none."""
    folder = PRETRAINED / f"{SIMULATED}-{step_minutes}"
    if not folder.is_dir():
        remedy = (f"make one with fedenergy imputer train --step {step_minutes} --out DIR, and give it as --model DIR"
                  if LEAST_STEP <= step_minutes <= 60 else f"imputers work on steps of {LEAST_STEP} to 60 minutes")
        raise ConfigError(f"no packaged imputer has steps of {step_minutes} minutes (there are: "
                          f"{', '.join(map(str, steps_packaged()))}): {remedy}")
    return load_gp(folder)[0]


@dataclass(frozen=True)
class Longer:
    """A dp_gp as the base of a net whose windows are shorter: what lies after them is not observed."""

    gp: DpGp

    name = "dp_gp"

    @property
    def note(self) -> str:
        return "" if math.isinf(self.gp.privacy.epsilon) else self.gp.note

    def fill(self, values: np.ndarray, observed: np.ndarray, time_of_day: np.ndarray) -> np.ndarray:
        """See base.Base."""
        after = self.gp.length - values.shape[1]
        if after < 0:
            raise ValueError(f"windows of {values.shape[1]} steps are longer than the base's {self.gp.length}")
        wide = ((0, 0), (0, after), (0, 0))
        known = np.where(observed, values, 0.0)
        time = (time_of_day[:, :1] + np.arange(self.gp.length)) % len(self.gp.mean)
        filled = self.gp.fill(np.pad(known, wide), np.pad(observed, wide), time)
        return filled[:, :values.shape[1]]


def open_model(name: str | Path, step_minutes: int) -> Any:
    """A model for series of that step: "simulated", or the folder of a saved dp_gp or diffusion model (or a run folder
    that holds one in model/). ConfigError where there is none, or its clock is another."""
    if str(name) == SIMULATED:
        return simulated(step_minutes)
    folder = next((place for place in (Path(name), Path(name) / "model")
                   if (place / FILE).exists() or (place / "model.json").exists()), None)
    if folder is None:
        raise ConfigError(f"--model {name}: no imputer is saved there (a folder with {FILE} or model.json), and it is not "
                          f'"{SIMULATED}"')
    if (folder / "model.json").exists():
        from fedenergy.imputation.model import Model

        base = Longer(load_gp(folder)[0]) if (folder / FILE).exists() else None
        try:
            model = Model.load(folder, base)
        except ValueError as error:
            raise ConfigError(error) from error
        slots = model.setup.steps_per_day
    else:
        model = load_gp(folder)[0]
        slots = len(model.mean)
    if slots * step_minutes != MINUTES_PER_DAY:
        raise ConfigError(f"--model {name} was made for steps of {MINUTES_PER_DAY / slots:g} minutes, and the series has "
                          f"{step_minutes}: train one with --step {step_minutes}, or use --model {SIMULATED}")
    return model


def card_of(name: str | Path) -> dict[str, Any]:
    """The card of a saved imputer: how it was made and what it cost; {} where its folder holds none."""
    place = next((place for place in (Path(name), Path(name) / "model") if (place / FILE).exists()), None)
    return {} if place is None else load_gp(place)[1]


def simulated_windows(homes: int, days: int, step_minutes: int, seed: int, window_days: int = 2,
                      progress: Progress | None = None) -> Windows:
    """Windows of whole days of simulated homes' total use, kWh per step."""
    slots, progress = MINUTES_PER_DAY // step_minutes, progress or SilentProgress()
    population = simulate_households(homes, steps=days * slots, seed=seed, step_minutes=step_minutes)
    parts = []
    progress.start(homes, "simulated homes")
    for index in range(homes):
        parts.append(cut(population.load(index).total, window_days * slots, steps_per_day=slots, home=population.ids[index]))
        progress.advance()
    return join(parts)


def fit_simulated(homes: int, days: int, step_minutes: int, seed: int, window_days: int = 2,
                  progress: Progress | None = None) -> DpGp:
    """A dp_gp of simulated homes, without noise: no real home is in it, so nothing is spent."""
    windows = simulated_windows(homes, days, step_minutes, seed, window_days, progress)
    return dp_gp.fit(windows, math.inf)


def scores(gp: DpGp, windows: Windows, seed: int = 0) -> dict[str, dict[str, dict[str, float]]]:
    """pattern -> method -> {"mse", "mae"}: the imputer (MSE of its mean, MAE of its median) and the free baselines, on
    windows whose values are all known."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for pattern in PATTERNS:
        observed = pattern.observed(len(windows), windows.length,
                                    rng=np.random.default_rng([seed, len(windows), windows.length]))
        mean, median = gp.points(np.where(observed, windows.values, 0.0), observed, windows.time_of_day)
        row = {"imputer": {"mse": errors(mean, windows.values, observed)["mse"],
                           "mae": errors(median, windows.values, observed)["mae"]}}
        for name in RIVALS:
            both = errors(fill_with(name, windows, observed), windows.values, observed)
            row[name] = {"mse": both["mse"], "mae": both["mae"]}
        found[pattern.name] = {name: {k: float(f"{v:.5g}") for k, v in both.items()} for name, both in row.items()}
    return found


def _replace(path: Path, blob: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(blob)
    os.replace(part, path)
