"""DP diffusion imputation. Names are loaded when first used: torch is not imported before that."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "AdaLNBound": "limits", "CrossAttentionBound": "limits", "DPSGD": "dpsgd", "DiT": "dit", "DiTConfig": "dit",
    "Filled": "sample", "LearnedConfig": "learned", "Masks": "masks", "Model": "model", "Objective": "objective",
    "Windows": "task", "blend": "blend", "blocks": "masks", "bound": "bound", "cut": "task", "default": "default",
    "diagnose": "diagnose", "dp_gp": "dp_gp", "errors": "task", "fill": "sample", "fill_with": "baselines",
    "join": "task", "kriging": "kriging", "mixed": "masks", "outage": "masks", "points": "masks", "runs": "masks",
    "split": "task", "suffix": "masks", "train": "training",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedenergy.imputation' has no attribute {name!r}")
    module = import_module(f"fedenergy.imputation.{_HOME[name]}")
    value = module if _HOME[name] == name else getattr(module, name)
    globals()[name] = value
    return value
