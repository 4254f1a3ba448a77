"""A small diffusion imputer, trained in rounds over homes by any Flower strategy.

In every round each home takes a few steps from the zone's weights and lets out one clipped update: the household is the unit
for free. What the strategy receives are weights, as if homes had sent theirs:

    trust     noise                                   the strategy receives
    local     each home adds Gaussian noise           one reply per home: weights + its noised update
    sum       the homes share one Gaussian noise      one reply: weights + the noised mean update
    curator   the Curator adds one Gaussian noise     one reply: weights + the noised mean update
    open      none, epsilon is infinite               one reply per home: weights + its clipped update (the oracle)

So FedAvg takes the mean update, and FedAdam, FedYogi or FedAvgM use it as their pseudo-gradient.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedenergy import ids
from fedenergy.box.query import Query
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.campaign import seeded, write_durably
from fedenergy.federation.freeze import dump_arrays, freeze, load_arrays, thaw
from fedenergy.federation.imputing import DEFAULT, Session, Setting, Trained, clipped, training
from fedenergy.federation.trust_grid import TrustGrid
from fedenergy.households.population import Population
from fedenergy.imputation import federated_net
from fedenergy.imputation.federated import UPDATE, TrainImputer, digest_of
from fedenergy.imputation.packaged import save_gp, simulated
from fedenergy.privacy.trust import CURATOR, OPEN, SUM
from fedenergy.progress import Progress, SilentProgress

CHECKPOINT, SCHEMA = "training.json", 1
MESSAGE = "train.imputer"


def rounds(homes: Population, strategy: Callable[[], Strategy], *, epsilon: float, rounds: int, delta: float = 1e-5,
           folder: str | Path, trust: str = CURATOR, task: TrainImputer | None = None, setting: Setting = DEFAULT,
           progress: Progress | None = None) -> Trained:
    """Train the net of task.net; resumable: a call with the same arguments goes on after the last finished round.

    strategy  a class or function that makes one (FedAvg, FedAdam, ...); it chooses the homes of a round
    epsilon   of each home that is asked, per round, at delta / rounds; delta: of all rounds together
    Every round is charged in the ledger of every home that answers. Errors: ConfigError before anything is asked;
    RunFailed where a round has no answer, or the strategy fails.
    """
    folder, task, progress = Path(folder), TrainImputer() if task is None else task, progress or SilentProgress()
    if type(rounds) is not int or rounds < 1:
        raise ConfigError(f"rounds = {rounds!r} is not a whole number of at least 1")
    query = Query(UPDATE, epsilon=epsilon, delta=delta / rounds, rounds=rounds, repeat="same_window", fresh=setting.fresh)
    made = strategy()
    if not isinstance(made, Strategy):
        raise ConfigError(f"{strategy!r:.60} makes a {type(made).__name__}, no flwr.serverapp.strategy.Strategy")
    name = type(made).__name__
    with training(homes, task, [query], trust=trust, classes="update", folder=folder, setting=setting,
                  key=["rounds", rounds, name, setting.fresh]) as session:
        shape = task.length(homes), task.slots(homes), task.cap(homes)
        state = _State.begin(folder / CHECKPOINT, session, name, federated_net.first_weights(task.net, *shape))
        if state.frozen is not None:
            thaw(state.frozen, made)
        progress.start(rounds, f"rounds of {name}")
        progress.advance(state.done)
        try:
            for index in range(state.done, rounds):
                answered, failed, refused = _round(session, query, made, name, index, state)
                state.after(index + 1, made, answered, session.asked)
                progress.advance(failures=failed, refusals=refused)
        finally:
            progress.close()
        session.asked[:] = state.asked
        model = federated_net.with_weights(task.net, state.weights, *shape)
        model.save(folder / "model")
        if task.net.base == "simulated":
            save_gp(simulated(homes.step_minutes), folder / "model")
        return Trained(model, session.spending(delta), folder, session.crossings, state.answered)


@dataclass
class _State:
    """What the rounds so far made; the checkpoint is its JSON form."""

    path: Path
    key: str
    weights: np.ndarray
    done: int = 0
    frozen: dict | None = None
    answered: int = 0
    asked: tuple[str, ...] = ()

    @classmethod
    def begin(cls, path: Path, session: Session, strategy: str, first: np.ndarray) -> _State:
        """From the first weights, or from the checkpoint; ConfigError where that is another training's."""
        world = session.world
        key = ids.digest(b"fe.imputer.1", [session.cell, strategy, world.task.public(world.population),
                                           world.population.identity(), len(world.population)]).hex()
        if not path.exists():
            return cls(path, key, first)
        body = json.loads(path.read_text(encoding="utf-8"))
        if (body.get("schema"), body.get("key")) != (SCHEMA, key):
            raise ConfigError(f"{path} belongs to another training: choose another folder")
        weights = load_arrays(body["arrays"])[records.SUMMARY].numpy()
        return cls(path, key, weights, body["done"], body["strategy"], body["answered"], tuple(body["asked"]))

    def after(self, done: int, strategy: Strategy, answered: int, asked: list[str]) -> None:
        """A round is over: make it durable."""
        self.done, self.answered, self.asked = done, answered, (*self.asked, *asked)
        asked.clear()
        body = {"schema": SCHEMA, "key": self.key, "done": done, "answered": answered, "asked": list(self.asked),
                "arrays": dump_arrays(_record(self.weights)), "strategy": freeze(strategy)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.path, json.dumps(body).encode())


def _round(session: Session, query: Query, strategy: Strategy, name: str, index: int, state: _State) -> tuple[int, int, int]:
    """One round; state.weights are then the new ones. (answered, failed, refused)."""
    weights, cell = state.weights, session.cell
    grid = TrustGrid(session.exchange(), session.trust, lambda homes: session.seal(
        query, index, homes, strategy=name, weights=digest_of(weights)))
    model_grid = ModelGrid(grid, weights, session.world.spec(UPDATE).clip)
    try:
        with seeded(cell, index, "configure"):
            asked = list(strategy.configure_train(index + 1, _record(weights), ConfigRecord(), model_grid) or ())
        replies = model_grid.send_and_receive(asked)
        with seeded(cell, index, "aggregate"):
            result, _ = strategy.aggregate_train(index + 1, replies) if replies else (None, None)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise RunFailed(f"strategy {name} failed in round {index + 1}: {type(error).__name__}: {error}") from error
    if result is None:
        why = grid.closed or f"{grid.refused} homes refused, {grid.failed} failed"
        raise RunFailed(f"round {index + 1} of {name} has no answer: {why}; what was charged before is stored and free")
    new = result[records.SUMMARY].numpy().astype(np.float64) if records.SUMMARY in result else np.zeros(0)
    if new.shape != weights.shape or not np.isfinite(new).all():
        raise RunFailed(f"strategy {name} returned {new.shape} weights in round {index + 1}, not {weights.shape} finite "
                        "ones")
    session.asked.append(grid.query.id)
    state.weights = new
    return len(grid.answered), grid.failed, grid.refused


def _record(weights: np.ndarray) -> ArrayRecord:
    return ArrayRecord({records.SUMMARY: Array(weights)})


class ModelGrid(Grid):
    """A TrustGrid whose replies are weights: those that went out, plus the update that came back."""

    def __init__(self, grid: TrustGrid, weights: np.ndarray, clip: float) -> None:
        self._grid, self._weights, self._clip = grid, weights, clip

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        batch = [flower.instruction(message.content, message.metadata.dst_node_id, MESSAGE, message.metadata.group_id)
                 for message in messages]
        return [self._with_weights(reply) for reply in self._grid.send_and_receive(batch)]

    def _with_weights(self, reply: Message) -> Message:
        values, fields = reply.content[records.ARRAYS][records.SUMMARY].numpy(), dict(reply.content[records.ENVELOPE])
        trust = self._grid.query.trust
        if trust == OPEN:
            values = clipped(values[1], self._clip)
        elif trust in (SUM, CURATOR):
            values = values / len(self._grid.answered)
        reply.content = records.answer_records(self._weights + values, fields)
        return reply

    def get_node_ids(self) -> list[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def set_run(self, run) -> None:
        self._grid.set_run(run)

    @property
    def run(self):
        return self._grid.run
