"""ForecastTrees: the forecaster as boosted trees that travel as bytes, for Flower's FedXgbBagging and FedXgbCyclic.

Trees are made of readings and travel as they are, so this is not private: trust "open" only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from fedenergy.box.box import Answer, Box
from fedenergy.box.query import SealedQuery
from fedenergy.box.updates import Computed, UpdateSpec, answer_updates
from fedenergy.box.world import KindSpec
from fedenergy.forecast.rows import Plan, Rows, plan_of
from fedenergy.forecast.task import (
    ERRORS,
    EVALUATE,
    LOSS,
    TESTED,
    TRAIN,
    RoundWindow,
    check_number,
    check_scale,
    errors_of,
    kept_rows,
    whole_record,
)
from fedenergy.households.population import Population

MODEL = "0"            # the name under which Flower's strategies look for the bytes
BASE_SCORE = 0.5       # public, so that the trees of different homes add up to one model


@dataclass(frozen=True)
class ForecastTrees:
    """A shared next-step load forecaster of boosted trees (xgboost, squared error, one thread: equal in every process).

    lags, test_days, scale_kwh   as of Forecast
    trees, depth, bins           new trees of a home in one round, their depth, and bins of the histogram
    learning_rate                of the zone's model: where several homes are asked at once each boosts with its share of
                                 it, and Flower's bagging adds the first new tree of each; a home that is asked alone
                                 (cyclic) sends the whole model with its new trees
    """

    lags: tuple[float, ...] = (1, 2, 3, 24, 48, 168)
    trees: int = 1
    depth: int = 4
    bins: int = 64
    learning_rate: float = 0.3
    test_days: int = 7
    scale_kwh: float = 0.0

    kinds = (TRAIN, EVALUATE)
    trains, evaluates = TRAIN, EVALUATE
    reads_arrays = reads_config = True
    unit = "kWh"
    clip = 1.0   # of nothing: under trust open no update is clipped

    def __post_init__(self) -> None:
        object.__setattr__(self, "lags", tuple(self.lags))
        for name, least in (("trees", 1), ("depth", 1), ("bins", 2), ("test_days", 1)):
            check_number("ForecastTrees", name, getattr(self, name), least, whole=True)
        check_number("ForecastTrees", "learning_rate", self.learning_rate, 0)
        check_scale("ForecastTrees", self.scale_kwh)

    # ---- public

    def plan(self, population: Population) -> Plan:
        return plan_of(population, self.lags, self.test_days)

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        return ("model",)

    def kind_spec(self, kind: str, population: Population) -> KindSpec:
        """One "coordinate", the model. ValueError for records too short."""
        self.plan(population)
        return KindSpec(self.coordinate_names(population), self.unit, self.clip)

    def update_spec(self, kind: str, population: Population) -> UpdateSpec:
        """The form of an answer."""
        return UpdateSpec({}, (*ERRORS, TESTED)) if kind == EVALUATE else UpdateSpec({MODEL: ("uint8", None)}, (LOSS,))

    def first_arrays(self, population: Population) -> dict[str, np.ndarray]:
        """No trees yet: no bytes."""
        return {MODEL: np.zeros(0, np.uint8)}

    def check_arrays(self, arrays: Mapping[str, np.ndarray], population: Population) -> None:
        """ValueError unless arrays are the bytes of one model."""
        if set(arrays) != {MODEL} or arrays[MODEL].dtype != np.uint8 or arrays[MODEL].ndim != 1:
            raise ValueError(f'it returned {[(name, str(a.dtype), a.shape) for name, a in arrays.items()]}: one array "0" '
                             "of uint8, a model's bytes, is expected. Trees are for FedXgbBagging and FedXgbCyclic")
        if arrays[MODEL].size:
            try:
                json.loads(arrays[MODEL].tobytes())
            except ValueError as error:
                raise ValueError("it returned bytes that are no xgboost model in JSON: trees are for FedXgbBagging and "
                                 "FedXgbCyclic") from error

    def windows(self, population: Population, rounds: int, repeat: str) -> list[RoundWindow]:
        return whole_record(population, rounds, repeat, "forecaster")

    def identity(self) -> Mapping[str, Any]:
        return {"use": "fedenergy:ForecastTrees", **asdict(self)}

    def seconds(self, population: Population) -> float:
        """Of one home and round, a guess."""
        return 5e-3 + 5e-6 * population.steps * self.trees

    # ---- in the box

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int, parties: int = 0,
                    arrays: Mapping[str, np.ndarray] | None = None,
                    config: Mapping[str, Any] | None = None) -> list[Answer]:
        """One answer per box: its trees, or its errors."""
        return answer_updates(boxes, queries, partial(self._computed, arrays=arrays or {}))

    def _computed(self, boxes: Sequence[Box], queries: Sequence[SealedQuery],
                  arrays: Mapping[str, np.ndarray]) -> list[Computed]:
        self.check_arrays(arrays, boxes[0].world.population)
        data = arrays[MODEL].tobytes()
        rows = [kept_rows(box, self.lags, self.test_days, self.scale_kwh) for box in boxes]
        if queries[0].kind == EVALUATE:
            return [Computed({}, errors_of(_predict(data, one.test_x), one)) for one in rows]
        return [self._trained(data, one, queries[0].homes) for one in rows]

    def _trained(self, data: bytes, rows: Rows, homes: int) -> Computed:
        import xgboost

        loss = float(np.mean(np.square(_predict(data, rows.x) - rows.y))) if len(rows.y) else 0.0
        alone = homes == 1
        settings = {"objective": "reg:squarederror", "tree_method": "hist", "max_bin": self.bins, "max_depth": self.depth,
                    "learning_rate": self.learning_rate / max(1, homes), "base_score": BASE_SCORE, "nthread": 1,
                    "verbosity": 0, "seed": 0}
        x, y = (rows.x, rows.y) if len(rows.y) else (np.zeros((1, rows.x.shape[1])), np.full(1, BASE_SCORE))
        matrix = xgboost.DMatrix(x, y, nthread=1)
        booster = xgboost.Booster(settings, [matrix])
        before = 0
        if data:
            booster.load_model(bytearray(data))
            booster.set_param(settings)
            before = booster.num_boosted_rounds()
        for step in range(before, before + self.trees):
            booster.update(matrix, step)
        new = booster if alone or not before else booster[before:before + self.trees]
        return Computed({MODEL: np.frombuffer(bytes(new.save_raw("json")), np.uint8)}, {LOSS: loss})


def _predict(data: bytes, x: np.ndarray) -> np.ndarray:
    """(n,) of a model's bytes; without trees the base score."""
    if not data or not len(x):
        return np.full(len(x), BASE_SCORE)
    import xgboost

    booster = xgboost.Booster({"nthread": 1, "verbosity": 0})
    booster.load_model(bytearray(data))
    return booster.predict(xgboost.DMatrix(x, nthread=1)).astype(np.float64)
