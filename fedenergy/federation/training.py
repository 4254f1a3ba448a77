"""A training round of a strategy: configure, train on the homes, aggregate, evaluate on the homes.

Models travel as they are, so only under trust open, in the oracle's world. Strategies that train share nothing: each asks
with its own model. The oracle's evaluation asks every home about the strategy's model; the strategy's own configure_evaluate
and aggregate_evaluate are called as Flower would, and get the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedenergy.box.query import QUERY_CLASSES, UPDATE, SealedQuery
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import flower_privacy, records
from fedenergy.federation.freeze import dump_arrays, load_arrays
from fedenergy.federation.strategy import Folding
from fedenergy.federation.trust_grid import Exchange, TrustGrid
from fedenergy.federation.update_records import model_digest
from fedenergy.privacy.mechanisms import NoiseGrid
from fedenergy.privacy.trust import OPEN

if TYPE_CHECKING:
    from fedenergy.federation.campaign import Campaign, Entry

CLUSTER, LOSS = "cluster", "train_loss"
HELD, HELD_BYTES, SPARE = 2_048, 64 * 2**20, 8  # replies of a strategy that folds


def trains(kind: str) -> bool:
    """Whether a kind of query asks for updates of a model."""
    return QUERY_CLASSES[kind] == UPDATE


def check_training(label: str, strategy: Any, trust: str, task: Any, kind: str) -> None:
    """ConfigError where a strategy and a query do not fit: models travel in the open, and only where they are asked for."""
    only = getattr(strategy, "kinds", None)
    if only is not None and kind not in only:
        raise ConfigError(f"[[strategy]] {label} takes queries of kind {', '.join(only)} only, not {kind}: leave it out, or "
                          f'set [query] kind = "{only[0]}" and a task that trains')
    if not trains(kind):
        return
    if getattr(task, "trains", None) != kind:
        fits = f'set [query] kind = "{task.trains}"' if hasattr(task, "trains") else "a study does not train this task"
        raise ConfigError(f'[query] kind = "{kind}" trains no model with the task {type(task).__name__}: {fits}')
    if trust != OPEN:
        raise ConfigError(f"[[strategy]] {label} has trust {trust}, and un-noised models travel under trust open only: "
                          'write trust = "open" in its table, and oracle = true')


class Training:
    """The training turns of one campaign's part."""

    def __init__(self, campaign: Campaign, seeded: Callable[..., Any], cell: str) -> None:
        self.campaign, self.part, self._seeded, self.cell = campaign, campaign.part, seeded, cell
        self.world, self.number = self.part.oracle
        self.task, self.population = self.world.task, self.world.population

    def turn(self, entry: Entry, index: int, window: Any, crossings: Any, advance: Callable[..., None]) -> None:
        """One round of one strategy: its arrays and rows go into the campaign's state."""
        campaign, strategy = self.campaign, self.campaign.strategies[entry.label]
        exchange = Exchange(campaign.grid, self.world, self.number, self.part.seed, campaign.zones, crossings,
                            max_failures=self.part.max_failures)
        before = campaign.state.arrays.get(entry.label)
        arrays = load_arrays(before) if before else _record(self.task.first_arrays(self.population))
        grid, told = self._grid(exchange, self.task.trains, entry, index, window)
        with flower.quiet_flower():
            with self._seeded(self.cell, index, "configure"), campaign.blame(entry, index):
                messages = list(strategy.configure_train(index + 1, arrays.copy(), ConfigRecord(), grid) or ())
            told.append(model_digest(messages))
            said = Said()
            gather = self._fold if isinstance(strategy, Folding) else self._list
            aggregate = gather(strategy, entry, index, grid, messages, said)
            campaign.check_failures(grid, entry, index)
            noted = flower_privacy.before(strategy)
            with self._seeded(self.cell, index, "aggregate"), campaign.blame(entry, index), flower.frozen_gc():
                result = aggregate() if grid.answered else None
                if result is not None:
                    self.task.check_arrays({name: array.numpy() for name, array in result.items()}, self.population)
            if result is not None:
                arrays = result
            values = {"answers": len(grid.answered), "refusals": grid.refused, "failures": grid.failed}
            if result is not None:
                values |= flower_privacy.after(noted, len(grid.answered))
            if said.losses:
                values[LOSS] = math.fsum(said.losses) / len(said.losses)
            values |= self._evaluated(exchange, strategy, entry, index, window, arrays)
        values |= {f"cluster_{k}": said.clusters.count(k) for k in sorted(set(said.clusters))}
        campaign.state.arrays[entry.label] = dump_arrays(arrays)
        key = [self.cell, self.population.name, entry.label, self.part.policy, OPEN, float("inf"), 0.0, self.part.seed,
               index + 1]
        campaign.state.rows += [[*key, metric, float(value)] for metric, value in values.items()]
        advance(1, failures=grid.failed, refusals=grid.refused, epsilon_max=None)

    def _list(self, strategy: Strategy, entry: Entry, index: int, grid: TrustGrid, messages: Sequence[Message],
              said: Said) -> Callable[[], ArrayRecord | None]:
        """Ask for the list of all replies; how to aggregate them."""
        replies = grid.send_and_receive(messages)
        for reply in replies:  # before the strategy, which may empty them
            said.note(reply)
        return lambda: strategy.aggregate_train(index + 1, replies)[0]

    def _fold(self, strategy: Folding, entry: Entry, index: int, grid: TrustGrid, messages: Sequence[Message],
              said: Said) -> Callable[[], ArrayRecord | None]:
        """Give the strategy each reply as it comes, and let go of it; how to end."""
        state = None
        for reply in grid.stream(messages, at_once(messages, self.campaign.grid)):
            said.note(reply)
            with self.campaign.blame(entry, index):
                state = strategy.fold(state, reply)
        return lambda: strategy.folded(index + 1, state)[0]

    def _grid(self, exchange: Exchange, kind: str, entry: Entry, index: int, window: Any) -> tuple[TrustGrid, list[str]]:
        """The strategy's grid, and where the digest of its messages is to be put before they are sent."""
        told: list[str] = []
        clip, query = self.world.spec(kind).clip, replace(self.part.query, kind=kind)

        def seal(homes: Sequence[str]) -> SealedQuery:
            body = {**self.task.identity(), "model": told[-1] if told else ""}
            if kind == self.task.trains:
                body["asked"] = len(homes)  # a home that is asked alone may train in another way
            return query.sealed(task=body, population=self.population.identity(), window=window, grid=NoiseGrid(clip).step,
                                clip=clip, trust=OPEN, mechanism="none", cell=self.cell, round=index, homes=homes,
                                strategy=entry.label[:256])
        return exchange.strategy_grid(OPEN, seal), told

    def _evaluated(self, exchange: Exchange, strategy: Any, entry: Entry, index: int, window: Any,
                   arrays: ArrayRecord) -> dict[str, float]:
        """Errors on the homes' test days: every home weighs the same."""
        grid, told = self._grid(exchange, self.task.evaluates, entry, index, window)
        content = RecordDict({records.ARRAYS: arrays})
        everyone = [flower.instruction(content, node, "evaluate", str(index + 1)) for node in grid.get_node_ids()]
        told.append(model_digest(everyone))
        replies = grid.send_and_receive(everyone)
        self.campaign.check_failures(grid, entry, index)
        with self._seeded(self.cell, index, "evaluate"), self.campaign.blame(entry, index):
            own = list(strategy.configure_evaluate(index + 1, arrays.copy(), ConfigRecord(), grid) or ())
            if own:
                own = [_only_arrays(message) for message in own]
                told.append(model_digest(own))
                strategy.aggregate_evaluate(index + 1, grid.send_and_receive(own))
        tested = [reply.content[records.METRICS] for reply in replies if reply.content[records.METRICS]["tested"]]
        if not tested:
            return {}
        mean = {name: math.fsum(one[name] for one in tested) / len(tested)
                for name in ("mse", "mae", "mse_no_change", "mae_no_change")}
        spread = sorted(one["mae"] for one in tested)
        return {"rmse": math.sqrt(mean["mse"]), "mae": mean["mae"], "rmse_no_change": math.sqrt(mean["mse_no_change"]),
                "mae_no_change": mean["mae_no_change"], "mae_worst_tenth": _worst_tenth(spread)}


def _worst_tenth(spread: Sequence[float]) -> float:
    """Mean error of the tenth of the homes (at least one) that the model serves worst."""
    count = max(1, len(spread) // 10)
    return math.fsum(spread[-count:]) / count


def _record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


@dataclass
class Said:
    """What the homes say beside their models, where they say it."""

    losses: list[float] = field(default_factory=list)
    clusters: list[float] = field(default_factory=list)

    def note(self, reply: Message) -> None:
        for name, found in ((LOSS, self.losses), (CLUSTER, self.clusters)):
            value = reply.content[records.METRICS].get(name)
            if value is not None:
                found.append(value)


def at_once(messages: Sequence[Message], grid: Any) -> int:
    """How many replies of a strategy that folds may exist at a time: each as large as what was sent."""
    arrays = messages[0].content.array_records.values() if messages else ()
    return replies_held(sum(len(array.data) for record in arrays for array in record.values()),
                        getattr(grid, "workers", 1))


def replies_held(model_bytes: int, workers: int) -> int:
    """As many as keep the workers busy, and more where models are small: HELD_BYTES of them, at most HELD.

    >>> replies_held(100 * 2**20, workers=4), replies_held(2**20, workers=4), replies_held(100, workers=4)
    (12, 64, 2048)
    """
    return max(workers + SPARE, min(HELD, HELD_BYTES // max(1, model_bytes)))


def _only_arrays(message: Message) -> Message:
    """An evaluation depends on the model alone, so equal models are one question, whatever the strategy writes beside."""
    arrays = next(iter(message.content.array_records.values()), None)
    if arrays is None:
        raise RunFailed("configure_evaluate sends no arrays: there is nothing to evaluate")
    return flower.instruction(RecordDict({records.ARRAYS: arrays}), message.metadata.dst_node_id, "evaluate",
                              message.metadata.group_id)
