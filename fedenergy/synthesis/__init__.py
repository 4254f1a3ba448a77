"""Artificial load profiles: intake -> segments -> components -> shuffle -> synthesise, and the scores that judge them."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "DEFAULT": "components", "Plan": "stream", "Recipe": "components", "SOURCE": "components", "Synthesise": "task",
    "Synthetic": "generate", "canaries": "judge_canaries", "fit_private": "private", "judge": "judging",
    "panel": "intake", "promise": "private", "sample_private": "private", "synthesise": "generate", "write": "outputs",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"fedenergy.synthesis has no {name!r} (it has: {', '.join(__all__)})")
    return getattr(importlib.import_module(f"fedenergy.synthesis.{_HOME[name]}"), name)
