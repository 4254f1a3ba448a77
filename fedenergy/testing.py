"""Check a plug-in of your own in one call: each function returns plain-language problems; an empty list is a pass.

>>> from fedenergy.testing import check_policy
>>> check_policy(__import__("fedenergy").Fixed())
[]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.campaign import declared, seeded
from fedenergy.federation.freeze import freeze, thaw
from fedenergy.federation.local_grid import LocalGrid
from fedenergy.federation.shard import Client
from fedenergy.households.household import Household
from fedenergy.ids import canon, stream
from fedenergy.privacy.trust import CURATOR, OPEN, SUM
from fedenergy.testing_policy import check_policy

__all__ = ["check_policy", "check_population", "check_strategy"]

HOMES, COORDINATES, EPSILON_MICRO = 12, 5, 1_050_000


def check_strategy(make: Callable[[], Strategy]) -> list[str]:
    """What is wrong with a strategy. make: its class, or a function that makes a fresh instance.

    Plays two rounds over made-up answers of the trust mode that it declares, and looks for: messages that cannot be
    sent, answers of the wrong shape, NaN, changed replies, dependence on their order, hidden randomness, state that a
    checkpoint cannot hold.
    """
    problems: list[str] = []
    try:
        strategy = make()
    except Exception as error:
        return [f"it cannot be made: {type(error).__name__}: {error}"]
    if not isinstance(strategy, Strategy):
        return [f"{type(strategy).__name__} is no flwr.serverapp.strategy.Strategy: derive from fedenergy.ZoneStrategy"]
    try:
        trust, _, returns = declared(strategy)
    except ValueError as error:
        return [str(error)]
    if returns not in ("sum", "mean", "state"):
        problems.append(f'returns = {returns!r}: use "sum", "mean" or "state"')
    try:
        first = _play(make(), trust, problems)
        if first is None:
            return problems
        if not np.array_equal(first, _play(make(), trust, []), equal_nan=True):
            problems.append("two fresh instances give different results: draw from `random` or `np.random` inside "
                            "configure_train or aggregate_train only, where the campaign seeds them")
        if not np.allclose(first, _play(make(), trust, [], backwards=True), rtol=1e-9, atol=1e-9):
            problems.append("the result depends on the order of the replies")
    except Exception as error:
        return [*problems, f"it failed: {type(error).__name__}: {error}"]
    return problems


def _play(strategy: Strategy, trust: str, problems: list[str], backwards: bool = False) -> np.ndarray | None:
    grid = LocalGrid(Client(app=None), HOMES)
    arrays = ArrayRecord({records.SUMMARY: Array(np.zeros(COORDINATES))})
    result = None
    for server_round in (1, 2):
        with seeded("check", server_round, "strategy"), flower.quiet_flower():
            messages = list(strategy.configure_train(server_round, arrays, ConfigRecord(), grid) or ())
            if not messages:
                problems.append(f"configure_train of round {server_round} sends no message: no home is asked")
                return None
            nodes = [message.metadata.dst_node_id for message in messages]
            if len(set(nodes)) < len(nodes):
                problems.append("configure_train asks a home twice in one round")
            replies = _replies(messages, trust, server_round)
            before = [_bytes(reply) for reply in replies]
            result, _ = strategy.aggregate_train(server_round, replies[::-1] if backwards else replies)
            if trust not in (SUM, CURATOR) and type(strategy).__module__.split(".")[0] != "flwr" \
                    and [_bytes(reply) for reply in replies] != before:
                problems.append("aggregate_train changes the replies that it is given")
        if result is None:
            problems.append(f"aggregate_train of round {server_round} returns no arrays although every home answered")
            return None
        if list(result) != [records.SUMMARY]:
            problems.append(f'aggregate_train returns the arrays {sorted(result)}: one called "summary" is expected')
            return None
        values = result[records.SUMMARY].numpy()
        if values.shape != (COORDINATES,) or values.dtype.kind != "f":
            problems.append(f"aggregate_train returns {values.dtype} {values.shape}: float (d,) is expected, "
                            f"here ({COORDINATES},)")
            return None
        if not np.isfinite(values).all():
            problems.append("aggregate_train returns NaN or infinite values for finite answers")
        arrays = result
        try:
            thaw(freeze(strategy), strategy)
        except TypeError as error:
            problems.append(f"a run of it could not be resumed: {error}")
            return None
    return result[records.SUMMARY].numpy()


def _replies(messages: Sequence[Message], trust: str, server_round: int) -> list[Message]:
    """Made-up answers of a trust mode: one per message, or the zone's one."""
    noise = stream(0, "check", str(server_round))
    asked = messages[:1] if trust in (SUM, CURATOR) else messages
    shape = (2, COORDINATES) if trust == OPEN else (COORDINATES,)
    answers = []
    for number, message in enumerate(asked):
        fields: dict[str, str | int] = {"household": f"home-{number:03d}", "query_id": "0" * 32}
        if trust != OPEN:
            fields["epsilon_micro"] = EPSILON_MICRO
        if trust in (SUM, CURATOR):
            fields |= {"household": records.ZONE, "answers": len(messages)}
        values = np.round(noise.normal(1.0, 3.0, shape) * 256) / 256
        answers.append(flower.reply(message, records.answer_records(values, fields)))

    return answers


def _bytes(message: Message) -> list[tuple[str, bytes]]:
    content: RecordDict = message.content
    arrays = content.get(records.ARRAYS)
    return [] if not isinstance(arrays, ArrayRecord) else [(key, array.data) for key, array in arrays.items()]


def check_population(population: Any, sample: int = 3) -> list[str]:
    """What is wrong with a population: loads a few members and compares them with what it says of itself."""
    problems: list[str] = []
    for name in ("name", "unit", "channels", "ids", "steps", "step_minutes", "load", "identity"):
        if not hasattr(population, name):
            problems.append(f"it has no {name}: see fedenergy.Population")
    if problems:
        return problems
    ids = list(population.ids)
    if len(ids) != len(population) or len(set(ids)) != len(ids):
        problems.append(f"ids: {len(ids)} names, {len(set(ids))} different, for a population of {len(population)}")
    try:
        if canon(population.identity()) != canon(population.identity()):
            problems.append("identity() changes between calls")
    except (TypeError, ValueError) as error:
        problems.append(f"identity() is not canonical JSON: {error}")
    for index in sorted({0, len(population) // 2, len(population) - 1})[:sample]:
        try:
            home, again = population.load(index), population.load(index)
        except Exception as error:
            problems.append(f"load({index}) failed: {type(error).__name__}: {error}")
            continue
        if not isinstance(home, Household):
            problems.append(f"load({index}) returns a {type(home).__name__}, not a fedenergy.Household")
            continue
        if home.id != ids[index]:
            problems.append(f"load({index}) is {home.id}, but ids[{index}] is {ids[index]}")
        if home.channels != tuple(population.channels) or home.step_minutes != population.step_minutes:
            problems.append(f"load({index}) has other channels or another step than the population says")
        if home.total.shape[0] > population.steps:
            problems.append(f"load({index}) has {home.total.shape[0]} steps, more than population.steps "
                            f"({population.steps})")
        if home.readings.tobytes() != again.readings.tobytes() or home.total.tobytes() != again.total.tobytes():
            problems.append(f"load({index}) gives other readings on a second call: results could not be reproduced")
        if np.nansum(home.readings) > np.nansum(home.total) * (1 + 1e-6) + 1e-9:
            problems.append(f"load({index}): the channels add up to more than the total")
    return problems
