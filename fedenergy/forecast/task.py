"""Forecast: homes train one small net together that predicts the next hour, by any Flower strategy.

Models travel as they are, so this is not private: trust "open" only, in each [[strategy]] table, with oracle = true.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fedenergy import ids
from fedenergy.box.box import Answer, Box
from fedenergy.box.query import SealedQuery
from fedenergy.box.updates import (
    CLIPPING_NORM,
    NORM_BIT,
    PROXIMAL_MU,
    Computed,
    UpdateSpec,
    answer_updates,
    clipped_update,
)
from fedenergy.box.world import KindSpec, World
from fedenergy.forecast import net
from fedenergy.forecast.rows import Plan, Rows, plan_of, rows_of
from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.households.population import Population
from fedenergy.ids import stream

TRAIN, EVALUATE = "train.forecast", "evaluate.forecast"
LOSS, CLUSTER, STEP = "train_loss", "cluster", "step"
CONTROL = "control."   # before the name of an array that is added to the gradient of that name
ERRORS = ("mse", "mae", "mse_no_change", "mae_no_change")
TESTED = "tested"      # 1 where a home has test rows; else its errors are 0 and do not count
MAX_CACHED = 4_000

_cache: OrderedDict[tuple, Rows] = OrderedDict()  # of this process's homes; never serialised


Arrays = Mapping[str, np.ndarray]


class Sent(NamedTuple):
    """The arrays of a message: models to choose from, whether they came as a stack, and what is added to the gradients."""

    models: tuple[Arrays, ...]
    several: bool
    control: Arrays | None


class RoundWindow(NamedTuple):
    """rows: steps [first, last) that are read; blocks: days [first, last), since 1970 where the population has a start."""

    rows: tuple[int, int]
    blocks: tuple[int, int]


def whole_record(population: Population, rounds: int, repeat: str, task: str) -> list[RoundWindow]:
    """The whole record in every round; ValueError where a query asks for the next window each time."""
    if repeat != "same_window":
        raise ValueError(f'every round of a {task} trains on the same record: set [query] repeat = "same_window"')
    start = getattr(population, "start", None)
    day = int(np.datetime64(start, "D").astype(int)) if start else 0
    days = -(-population.steps * population.step_minutes // MINUTES_PER_DAY)
    return [RoundWindow((0, population.steps), (day, day + days))] * rounds


def kept_rows(box: Box, lags: tuple[float, ...], test_days: int, scale_kwh: float) -> Rows:
    """A home's rows, made once per process."""
    population = box.world.population
    key = (_family(box.world, lags, test_days, scale_kwh), getattr(population, "source", int)(box.index))
    if key not in _cache:
        _cache[key] = rows_of(box.load(), plan_of(population, lags, test_days), scale_kwh)
        if len(_cache) > MAX_CACHED:
            _cache.popitem(last=False)
    return _cache[key]


@lru_cache(maxsize=64)
def _family(world: World, lags: tuple[float, ...], test_days: int, scale_kwh: float) -> str:
    return ids.digest(b"fe.forecast.1", [world.population.identity(), list(lags), test_days, scale_kwh]).hex()


def check_number(task: str, name: str, value: Any, least: float, whole: bool = False) -> None:
    """ValueError unless value is a number above least (a whole one of at least that)."""
    if whole and (type(value) is not int or value < least):
        raise ValueError(f"{task}: {name} = {value!r} is not a whole number of at least {least:g}")
    if not whole and (isinstance(value, bool) or not isinstance(value, int | float) or not least < value < 1e9):
        raise ValueError(f"{task}: {name} = {value!r} is not a finite number above {least:g}")


def check_scale(task: str, value: Any) -> None:
    """ValueError unless value is a number of at least 0."""
    if value != 0:
        check_number(task, "scale_kwh", value, 0)


@dataclass(frozen=True)
class Forecast:
    """A shared next-step load forecaster: a net of one hidden layer on lags and the clock.

    lags        hours back from the step that is predicted
    hidden      width of the layer
    local_steps, batch, rate   of a home's gradient descent in one round: batches drawn from its training rows
    test_days   the last days of the record, on which the shared model is judged and never trained
    scale_kwh   kWh per step that stand for 1 in the net, the same for all; 0: each home's own root mean square before the
                test days, so that large homes and small ones train alike. It stays in the home
    seed        of the first weights

    A message brings the model's arrays; config "proximal-mu" (FedProx) and "clipping_norm" (client-side clipping) are
    obeyed. Two more forms: arrays with a leading axis k are k models, of which a home takes the one with the least loss on
    its training rows (IFCA); "control.<name>" is added to each gradient (SCAFFOLD). A home sends the model that it trained,
    train_loss (of the model that it got, in units of the scale squared) and step = local_steps x rate; a home without rows
    sends the model back. Errors on the test days are in kWh. Every home weighs the same.
    """

    lags: tuple[float, ...] = (1, 2, 3, 24, 48, 168)
    hidden: int = 16
    local_steps: int = 20
    batch: int = 64
    rate: float = 0.1
    test_days: int = 7
    scale_kwh: float = 0.0
    seed: int = 0

    kinds = (TRAIN, EVALUATE)
    trains, evaluates = TRAIN, EVALUATE
    reads_arrays = reads_config = reads_each = True
    unit = "kWh"
    clip = 1.0   # of nothing: under trust open no update is clipped

    def __post_init__(self) -> None:
        object.__setattr__(self, "lags", tuple(self.lags))
        for name in ("hidden", "local_steps", "batch", "test_days"):
            check_number("Forecast", name, getattr(self, name), 1, whole=True)
        check_number("Forecast", "rate", self.rate, 0)
        check_scale("Forecast", self.scale_kwh)
        check_number("Forecast", "seed", self.seed, 0, whole=True)

    # ---- public

    def plan(self, population: Population) -> Plan:
        return plan_of(population, self.lags, self.test_days)

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        return ("model",)

    def kind_spec(self, kind: str, population: Population) -> KindSpec:
        """One "coordinate", the model: nothing of it is noised or clipped. ValueError for records too short."""
        self.plan(population)
        return KindSpec(self.coordinate_names(population), self.unit, self.clip)

    def update_spec(self, kind: str, population: Population) -> UpdateSpec:
        """The form of an answer."""
        if kind == EVALUATE:
            return UpdateSpec({}, (*ERRORS, TESTED), (CLUSTER,))
        forms = {name: ("float64", shape) for name, shape in self.shapes(population).items()}
        return UpdateSpec(forms, (LOSS, STEP), (NORM_BIT, CLUSTER))

    def shapes(self, population: Population) -> dict[str, tuple[int, ...]]:
        return net.shapes(len(self.plan(population).names), self.hidden)

    def first_arrays(self, population: Population) -> dict[str, np.ndarray]:
        """The model before the first round."""
        return net.first_weights(len(self.plan(population).names), self.hidden, self.seed)

    def check_arrays(self, arrays: Mapping[str, np.ndarray], population: Population) -> None:
        """ValueError unless arrays are the model, or k models along a leading axis, of finite numbers."""
        shapes, lead = self.shapes(population), set()
        if set(arrays) != set(shapes):
            raise ValueError(f"it returned the arrays {sorted(arrays)}: {sorted(shapes)} are expected")
        for name, shape in shapes.items():
            own = arrays[name].shape
            lead.add(own[:len(own) - len(shape)])
            if own[len(own) - len(shape):] != shape or arrays[name].dtype.kind not in "iuf" \
                    or not np.isfinite(arrays[name]).all():
                raise ValueError(f"it returned {arrays[name].dtype} {own} as {name}: {shape} finite numbers, or k times "
                                 "that, are expected")
        if len(lead) > 1 or len(next(iter(lead))) > 1:
            raise ValueError("it returned arrays with different leading axes: every one has the k models, or none")

    def windows(self, population: Population, rounds: int, repeat: str) -> list[RoundWindow]:
        return whole_record(population, rounds, repeat, "forecaster")

    def identity(self) -> Mapping[str, Any]:
        return {"use": "fedenergy:Forecast", **asdict(self)}

    def seconds(self, population: Population) -> float:
        """Of one home and round, a guess: its steps, and the loss and errors over its rows."""
        return 6e-7 * self.local_steps * self.batch + 1e-8 * population.steps * self.hidden

    # ---- in the box

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int, parties: int = 0,
                    arrays: Arrays | Sequence[Arrays] | None = None,
                    config: Mapping[str, Any] | None = None) -> list[Answer]:
        """One answer per box: its update, or its errors. arrays: of all boxes, or a list, of each its own."""
        own = arrays if isinstance(arrays, Sequence) else [arrays or {}] * len(boxes)
        by_home = {box.id: mine for box, mine in zip(boxes, own, strict=True)}
        return answer_updates(boxes, queries, partial(self._computed, by_home=by_home, config=config or {}, seed=seed))

    def _computed(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], by_home: Mapping[str, Arrays],
                  config: Mapping[str, Any], seed: int) -> list[Computed]:
        population, query = boxes[0].world.population, queries[0]
        read = {id(arrays): arrays for arrays in by_home.values()}  # most strategies send the same to all
        sent = {key: self._sent(arrays, population) for key, arrays in read.items()}
        brought = [sent[id(by_home[box.id])] for box in boxes]
        rows = [kept_rows(box, self.lags, self.test_days, self.scale_kwh) for box in boxes]
        training = query.kind != EVALUATE
        losses = [[net.mean_square(model, one.x, one.y) for model in mine.models]
                  if training or len(mine.models) > 1 else [0.0] for mine, one in zip(brought, rows, strict=True)]
        best = [int(np.argmin(several)) for several in losses]
        models = [mine.models[at] for mine, at in zip(brought, best, strict=True)]
        chosen = [{CLUSTER: at} if mine.several else {} for mine, at in zip(brought, best, strict=True)]
        if not training:
            return [Computed({}, {**self._errors(model, one), **more})
                    for model, one, more in zip(models, rows, chosen, strict=True)]
        able = [at for at, one in enumerate(rows) if len(one.y)]
        locals_ = [net.Local(models[at], *self._batches(boxes[at], rows[at], query, seed), brought[at].control)
                   for at in able]
        trained = dict(zip(able, net.train_many(locals_, self.rate, _number(config, PROXIMAL_MU)), strict=True))
        found = []
        for at, (model, more) in enumerate(zip(models, chosen, strict=True)):
            after = trained.get(at, dict(model))
            metrics = {LOSS: losses[at][best[at]], STEP: self.local_steps * self.rate, **more}
            if CLIPPING_NORM in config:
                after, metrics[NORM_BIT] = clipped_update(model, after, config[CLIPPING_NORM])
            found.append(Computed({name: after[name] for name in net.NAMES}, metrics))
        return found

    def _sent(self, arrays: Arrays, population: Population) -> Sent:
        """ValueError unless arrays are one or more models and, perhaps, a correction of one."""
        given = {name: values for name, values in arrays.items() if not name.startswith(CONTROL)}
        control = {name.removeprefix(CONTROL): np.asarray(values, np.float64)
                   for name, values in arrays.items() if name.startswith(CONTROL)} or None
        for one in (given, control):
            if one is not None:
                self.check_arrays(one, population)
        models = {name: np.asarray(given[name], np.float64) for name in net.NAMES}
        if models[net.LEVEL].ndim == len(self.shapes(population)[net.LEVEL]):
            return Sent((models,), False, control)
        stack = range(len(models[net.LEVEL]))
        return Sent(tuple({name: np.ascontiguousarray(models[name][k]) for name in net.NAMES} for k in stack), True, control)

    def _batches(self, box: Box, rows: Rows, query: SealedQuery, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """(K, B, F) and (K, B): drawn by home and round, the same for every strategy."""
        draw = stream(seed, "forecast batches", box.id, str(query.round))
        chosen = draw.integers(0, len(rows.y), (self.local_steps, self.batch))
        return rows.x[chosen], rows.y[chosen]

    def _errors(self, model: net.Weights, rows: Rows) -> dict[str, float]:
        return errors_of(net.predict(model, rows.test_x), rows)


def errors_of(predicted: np.ndarray, rows: Rows) -> dict[str, float]:
    """ERRORS of predictions (n,) in units of the rows' scale, and of expecting no change: kWh, kWh^2; and TESTED."""
    off, still = (predicted - rows.test_y) * rows.scale, rows.last - rows.test_y * rows.scale
    if not len(off):
        return dict.fromkeys(ERRORS, 0.0) | {TESTED: 0}
    values = (np.mean(off**2), np.mean(np.abs(off)), np.mean(still**2), np.mean(np.abs(still)))
    return {name: float(value) for name, value in zip(ERRORS, values, strict=True)} | {TESTED: 1}


def _number(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{name} is a finite number of at least 0")
    return float(value)
