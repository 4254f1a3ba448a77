"""A trained imputer and its files: safetensors for arrays, JSON for the rest, a digest over both. No pickle."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedenergy.imputation.base import NAMES as BASES
from fedenergy.imputation.base import Base, Guide, base_from
from fedenergy.imputation.guided import Guided
from fedenergy.imputation.joint import Joint, joint
from fedenergy.imputation.kriging import Kriging
from fedenergy.imputation.learned import Shape, network, shape_from_json
from fedenergy.imputation.objective import Objective
from fedenergy.imputation.task import Scale, Windows
from fedenergy.privacy.accounting import History, Statement

SCHEMA = 2
KEPT = {Guided.name: Guided, Kriging.name: Kriging}        # fitted bases that a checkpoint holds
FINEST = 0.007                 # least standard deviation of a guide that the residual is measured in, [0, 1] units


@dataclass(frozen=True)
class Setup:
    """What a network means: its shape, what it predicts, and the units around it.

    residual_scale  the network's x0 is (window - base) / residual_scale in [0, 1] units; over a guide (see base.Guide)
                    it is divided by the root of the guide's standard deviation too; public
    """

    net: Shape
    objective: Objective
    scale: Scale
    schedule: str = "cosine"
    diffusion_steps: int = 1000
    residual_scale: float = 1.0
    steps_per_day: int = 24

    def __post_init__(self) -> None:
        if not 0 < self.residual_scale < math.inf:
            raise ValueError(f"residual_scale = {self.residual_scale!r} is not a finite number above 0")
        for name in ("diffusion_steps", "steps_per_day"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r} is not at least 1")

    def as_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {**{k: v for k, v in vars(self).items() if isinstance(v, str | int | float)}, "net": self.net.as_json(),
                "objective": asdict(self.objective), "scale": asdict(self.scale)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Setup:
        """The inverse of `as_json`."""
        scale = data["scale"]
        return cls(**{**data, "net": shape_from_json(data["net"]), "objective": Objective(**data["objective"]),
                      "scale": Scale(tuple(scale["low"]), tuple(scale["high"]), scale["public"])})


@dataclass(eq=False)
class Model:
    """A trained imputer.

    net       the denoiser, in evaluation mode
    setup     what its numbers mean
    base      the filling that it corrects, or None
    privacy   what may be claimed (`str(model.privacy)`)
    history   the steps and batches behind the claim
    log       training and validation losses by step: lab only where the data are private
    """

    net: nn.Module
    setup: Setup
    base: Base | None
    privacy: Statement
    history: History
    log: dict[str, list]

    def prepare(self, windows: Windows, observed: np.ndarray) -> Inputs:
        """See `prepare`."""
        return prepare(self.setup, self.base, windows, observed)

    @property
    def total(self) -> Joint | None:
        """What base and steps may claim together; None where the base is free or states its own cost in words."""
        return joint(self.base, self.history, self.privacy.delta, self.privacy.household, self.privacy.noise)

    def save(self, folder: str | Path, lab: bool = False) -> Path:
        """Write the model into a folder; `Model.load` reads it back without unpickling anything.

        lab  True: with losses and batch sizes, which are private statistics; False: what may leave
        """
        name = "none" if self.base is None else self.base.name
        history, said = (self.history, self.privacy) if lab else (
            replace(self.history, batches=None), replace(self.privacy, empty_batches=None))
        body = {"kind": "model", "setup": self.setup.as_json(), "base": name, "history": history.as_json(),
                "privacy": _finite(asdict(said)), "log": self.log if lab else {}}
        arrays = {f"net.{k}": v for k, v in self.net.state_dict().items()}
        if name in KEPT:
            held, body["base_state"] = self.base.state()
            body["base_state"] = {**body["base_state"], "privacy": _finite(body["base_state"]["privacy"])}
            arrays |= {f"base.{k}": torch.from_numpy(np.array(v)) for k, v in held.items()}
        return write(folder, arrays, body)

    @classmethod
    def load(cls, folder: str | Path, base: Base | None = None) -> Model:
        """A saved model; a base that was an own object must be passed again. ValueError where the files are damaged."""
        arrays, body = read(folder, "model")
        try:
            return cls._of(arrays, body, base)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{folder} holds no model that can be used: {error}") from error

    @classmethod
    def _of(cls, arrays: Mapping[str, Tensor], body: Mapping[str, Any], base: Base | None) -> Model:
        setup = Setup.from_json(body["setup"])
        if base is None and body["base"] in KEPT:
            state = {**body["base_state"], "privacy": _infinite(body["base_state"]["privacy"])}
            base = KEPT[body["base"]].from_state({k.removeprefix("base."): v.numpy() for k, v in arrays.items()
                                                  if k.startswith("base.")}, state)
        if base is None and body["base"] not in BASES[:-1]:
            raise ValueError(f"it corrects the base {body['base']!r}: pass it as base")
        if odd := [name for name, values in arrays.items() if not values.isfinite().all()]:
            raise ValueError(f"{odd[0]} holds values that are not finite")
        with torch.device("meta"):                         # nothing is allocated for a shape that the arrays do not have
            check_shapes(network(setup.net), arrays, "net.")
        net = network(setup.net)
        load_into(net, arrays, "net.")
        privacy = {k: tuple(v) if isinstance(v, list) else v for k, v in _infinite(body["privacy"]).items()}
        return cls(net.eval(), setup, base or base_from(body["base"]), Statement(**privacy),
                   History.from_json(body["history"]), body["log"])


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a network sees of windows, float32 in [0, 1] units: everything but x_t and t.

    values  (n, T, D) observed values, 0 elsewhere; mask (n, T, D) 1 where observed
    base    (n, T, D) the base's filling (0 without a base); covariates (n, T, k) or None
    extra   (n, T, k) what the network sees of the base, or None; unit (n, T, D): the residual's
    """

    values: Tensor
    mask: Tensor
    base: Tensor
    extra: Tensor | None
    unit: Tensor
    covariates: Tensor | None

    def to(self, device: torch.device, repeats: int = 1) -> Inputs:
        """On a device, every window `repeats` times in a row."""
        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.repeat_interleave(repeats, 0).to(device)
        return Inputs(*(move(getattr(self, item.name)) for item in fields(self)))

    def run(self, net: nn.Module, x_t: Tensor, t: Tensor) -> Tensor:
        """The network's output at (x_t, t)."""
        more = {} if self.extra is None else {"extra": self.extra}
        if self.covariates is not None:
            more["covariates"] = self.covariates
        return net(x_t, t, self.values, self.mask, **more)


def prepare(setup: Setup, base: Base | None, windows: Windows, observed: np.ndarray) -> Inputs:
    """The inputs of windows under a mask; reads observed positions only.

    Raises ValueError for windows of another shape than the model's.
    """
    if (windows.length, windows.channels) != (setup.net.length, setup.net.channels):
        raise ValueError(f"windows of {windows.length} steps x {windows.channels} channels for a model of "
                         f"{setup.net.length} x {setup.net.channels}: cut them to its length")
    if observed.shape != windows.values.shape or observed.dtype != bool:
        raise ValueError(f"mask {observed.shape} of {observed.dtype}: give booleans of shape {windows.values.shape}")
    seen = observed & windows.known
    values = np.where(seen, setup.scale.normal(windows.values), 0.0)
    hidden, start, extra = np.where(seen, windows.values, np.nan), np.zeros_like(values), None
    unit = np.full(values.shape, setup.residual_scale)
    if isinstance(base, Guide):
        cues = base.guide(hidden, seen, windows.time_of_day, windows.homes)
        start = setup.scale.normal(cues.filling)
        spread = cues.spread / (np.array(setup.scale.high) - np.array(setup.scale.low))
        unit, extra = unit * np.sqrt(np.maximum(spread, FINEST)), single(np.concatenate([start, cues.columns], -1))
    elif base is not None:
        start = setup.scale.normal(base.fill(hidden, seen, windows.time_of_day))
        extra = single(start)
    columns = 0 if windows.covariates is None else windows.covariates.shape[2]
    if columns < setup.net.covariates:
        raise ValueError(f"windows with {columns} covariates for a model of {setup.net.covariates}: pass them all")
    covariates = single(windows.covariates[:, :, :setup.net.covariates]) if setup.net.covariates else None
    return Inputs(single(values), single(seen), single(start), extra, single(unit), covariates)


def single(x: np.ndarray) -> Tensor:
    """A float32 tensor; absurd values stay finite (the square is not: such a record's gradient counts as 0)."""
    return torch.from_numpy(np.clip(x, -1e30, 1e30).astype(np.float32))


def write(folder: str | Path, arrays: Mapping[str, Tensor], body: Mapping[str, Any]) -> Path:
    """Arrays and JSON as one pair: the arrays first, under a name of their own; the JSON names them and replaces the old
    one atomically, so that a crash leaves the old pair or the new one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    blob = save_tensors({k: v.detach().cpu().contiguous() for k, v in arrays.items()})
    mark = hashlib.blake2b(blob, digest_size=16).hexdigest()
    whole = {"schema": SCHEMA, "arrays": mark, **body}
    text = json.dumps({**whole, "digest": _digest(whole)}, allow_nan=False)
    _replace(folder / f"{mark}.safetensors", blob)
    _replace(folder / f"{body['kind']}.json", text.encode())
    _sweep(folder)
    return folder


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove arrays of ours that no JSON names any more; all stay where a JSON cannot be read."""
    wanted = set()
    for path in folder.glob("*.json"):
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            return
        wanted.add(found.get("arrays") if isinstance(found, dict) else None)
    for old in folder.glob("*.safetensors"):
        if re.fullmatch("[0-9a-f]{32}", old.stem) and old.stem not in wanted:
            old.unlink()


def read(folder: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The pair that `write` left; ValueError where it is absent, foreign or damaged."""
    path = Path(folder) / f"{kind}.json"
    try:
        body = json.loads(path.read_text())
        if body["schema"] != SCHEMA or body["kind"] != kind:
            raise ValueError(f"schema {body['schema']!r}, kind {body['kind']!r}")
        name = str(body["arrays"])
        if not name.isalnum():
            raise ValueError(f"array file {name!r}")
        blob = (Path(folder) / f"{name}.safetensors").read_bytes()
        if hashlib.blake2b(blob, digest_size=16).hexdigest() != name:
            raise ValueError("the arrays do not match their digest")
        if body.pop("digest") != _digest(body):
            raise ValueError("its own text does not match its digest")
        return load_tensors(blob), body
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise ValueError(f"{path} is not a {kind} of this version or is damaged ({error}): train again, or restore "
                         "the whole folder") from error


def load_into(net: nn.Module, arrays: Mapping[str, Tensor], prefix: str) -> None:
    """Copy the arrays under a prefix into a net; ValueError unless names and shapes are the net's."""
    net.load_state_dict(check_shapes(net, arrays, prefix))


def check_shapes(net: nn.Module, arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The arrays under a prefix; ValueError unless names and shapes are the net's."""
    state = net.state_dict()
    found = {k[len(prefix):]: v for k, v in arrays.items() if k.startswith(prefix)}
    if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in state.items()}:
        raise ValueError(f"the checkpoint's arrays are not those of this network ({len(found)} for {len(state)})")
    return found


def _replace(path: Path, blob: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _finite(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: "infinite" if v == float("inf") else v for k, v in data.items()}


def _infinite(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: float("inf") if v == "infinite" else v for k, v in data.items()}
