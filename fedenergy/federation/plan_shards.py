"""[engine] nodes = "shards": which studies can be played with a node for all homes of a ledger file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedenergy.box.block import SERVED
from fedenergy.box.shaping import shaped
from fedenergy.errors import ConfigError
from fedenergy.federation.campaign import Part, declared
from fedenergy.federation.strategy import ZoneStrategy
from fedenergy.privacy.trust import OPEN

INSTEAD = 'leave [engine] nodes at "homes"'


def sharded(parts: Sequence[Part]) -> list[Part]:
    """The parts with nodes that are shards of homes; ConfigError for what must be asked home by home."""
    for part in parts:
        task = part.world.task
        if not hasattr(task, "summaries"):
            raise ConfigError(f'[engine] nodes = "shards": the task {type(task).__name__} has no summaries(boxes, query): '
                              f"{INSTEAD}")
        if part.negotiation is not None:
            raise ConfigError(f'[engine] nodes = "shards": a negotiation goes home by home: {INSTEAD}')
        for entry in part.entries:
            strategy = entry.build()
            if not isinstance(strategy, ZoneStrategy):
                raise ConfigError(f'[engine] nodes = "shards": [[strategy]] {entry.label} is no fedenergy.ZoneStrategy, and '
                                  f"reads one reply per home: {INSTEAD}")
            trust, mechanism, _ = declared(strategy, entry.trust, part.query.kind)
            mechanism = shaped(part.world.policy, mechanism)
            if trust != OPEN and mechanism not in SERVED[trust]:
                raise ConfigError(f'[engine] nodes = "shards": [[strategy]] {entry.label} asks for {mechanism} noise under '
                                  f"trust {trust}, which goes home by home: {INSTEAD}")
    return [replace(part, shards=True) for part in parts]
