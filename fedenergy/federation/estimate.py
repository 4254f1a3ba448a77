"""What a study would cost, before it runs: epsilon, charges, time, memory, disk."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedenergy.box.shaping import shaped
from fedenergy.config import Config
from fedenergy.federation import flower_privacy
from fedenergy.federation.campaign import Part, cell_of, declared
from fedenergy.federation.plan import Plan, plan_from_config
from fedenergy.federation.strategy import Folding
from fedenergy.federation.training import replies_held, trains
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.trust import OPEN

PROBES = 2                       # homes that are loaded to time one
DRIVER_MB, WORKER_MB = 260.0, 330.0   # resident size of a driver and of a worker with everything imported
MESSAGE_SECONDS, FILE_SECONDS, FILES = 0.001, 0.012, 64
ROW_BYTES, CHECKPOINT_BYTES = 700, 400
REPLY_COPIES = 3                 # of a model in a reply: as it came, as an envelope, as the strategy gets it
FIT_SECONDS_PER_CELL = 2.1e-7    # of rows x lags x channels x trees: fit and SHAP of a home-month at depth 4


@dataclass(frozen=True)
class Estimate:
    """worst_case_epsilon: per cell (label, micro-epsilon of one home or None, cap, whether it is refused, unit)."""

    homes: int
    cells: int
    rounds: int
    exchanges: int
    worst_case_epsilon: list[tuple[str, int | None, int | None, bool, str]]
    charges: int
    seconds: float
    driver_mb: float
    worker_mb: float
    disk_mb: float
    notes: list[str]


def estimate(config: Config) -> Estimate:
    """Worst case of a config. Loads a few homes to time them; asks nothing, spends nothing, leaves nothing behind."""
    with tempfile.TemporaryDirectory() as scratch:
        plan = plan_from_config(config, Path(scratch) / "run", Path(scratch) / "ledger")
        cells = {cell: row for part in plan.parts for cell, row in _cells(part).items()}
        asked = sum(len(part.world.population) * part.query.rounds * _exchanges(part) for part in plan.parts)
        charges = sum(len(part.world.population) * (part.query.rounds if part.query.repeat == "next_window" else 1)
                      for part in plan.parts for row in _cells(part).values() if row[1] is not None)
        workers = max(1, plan.engine.workers)
        fits = _fits(plan)
        exchanges = sum(part.query.rounds * _exchanges(part) for part in plan.parts)
        files = sum(part.query.rounds * _exchanges(part) * min(FILES, len(part.world.population))
                    for part in plan.parts)
        seconds = (fits + _trainings(plan) + asked * MESSAGE_SECONDS + files * FILE_SECONDS) / workers + 8.0
        notes = ["time is a guess from a few homes loaded here: within a factor of two on a quiet machine"]
        if any(row[3] for row in cells.values()):
            notes.append("refused: the home stops answering when the cap is reached; nothing beyond it is ever spent")
        if plan.noise == "simulation":
            notes.append('seeded noise: not private; [privacy] noise = "secure" draws from the operating system')
        notes += [note for part in plan.parts[::len(plan.seeds)] for note in flower_privacy.planned(part)]
        population = plan.population
        unit = population.unit
        if unit != "household":
            notes.append(f"the privacy unit is one {unit}: a home behind k of them is charged k times as much")
        models, told = _models(plan)
        return Estimate(len(population), len(cells), plan.parts[0].query.rounds, exchanges, list(cells.values()),
                        charges, seconds, DRIVER_MB + asked / exchanges * 0.003 + models, WORKER_MB + len(population) * 0.01,
                        (charges * ROW_BYTES + asked * CHECKPOINT_BYTES) / 1e6, notes + told)


def _cells(part: Part) -> dict[str, tuple[str, int | None, int | None, bool, str]]:
    found = {}
    for entry in part.entries:
        trust, mechanism, _ = declared(entry.build(), entry.trust, part.query.kind)
        mechanism = shaped(part.world.policy, mechanism)
        cap = micro(part.world.terms.cap)
        asked = part.query.epsilon_micro * (part.query.rounds if part.query.repeat == "next_window" else 1)
        spent = None if trust == OPEN else min(asked, cap // part.query.epsilon_micro * part.query.epsilon_micro)
        label = f"{trust}, {mechanism}, {part.policy}" + "".join(f", {k} {v}" for k, v in part.keys.items())
        found[cell_of(part, trust, mechanism)] = (label, spent, None if trust == OPEN else cap,
                                                  trust != OPEN and asked > cap, part.world.population.unit)
    return found


def _exchanges(part: Part) -> int:
    """In one round: strategies of a cell share one; those that train share nothing, and their models are judged."""
    return 2 * len(part.entries) if trains(part.query.kind) else len(_cells(part))


def _models(plan: Plan) -> tuple[float, list[str]]:
    """(MB of the models that the driver holds at a time, a line for each strategy): in training, where replies are large."""
    most, told = 0.0, {}
    for part in plan.parts:
        if not trains(part.query.kind):
            continue
        homes = len(part.world.population)
        model = sum(values.nbytes for values in part.world.task.first_arrays(part.world.population).values())
        for entry in part.entries:
            strategy = entry.build()
            asked = max(1, int(homes * getattr(strategy, "fraction_train", 1.0)))
            folds = isinstance(strategy, Folding)
            held = min(asked, replies_held(model, max(1, plan.engine.workers))) if folds else asked
            size = REPLY_COPIES * held * model / 1e6
            most = max(most, size)
            told[entry.label] = (f"memory: {entry.label} {'folds' if folds else 'lists'} its replies, {held:,} models of "
                                 f"{model / 1e6:.2g} MB at a time, {size:.2g} MB with their copies in transit")
    return most, list(told.values())


def _trainings(plan: Plan) -> float:
    """Seconds that homes train a model together, every round of every strategy; 0 for other tasks."""
    return sum(part.world.task.seconds(part.world.population) * len(part.world.population) * part.query.rounds
               * len(part.entries) for part in plan.parts if trains(part.query.kind) and hasattr(part.world.task, "seconds"))


def _fits(plan: Plan) -> float:
    """Seconds to load and explain every home of every window once."""
    total, seen = 0.0, set()
    for part in plan.parts:
        population, task = part.world.population, part.world.task
        windows = set(task.windows(population, part.query.rounds, part.query.repeat))
        key = (id(population), id(task), tuple(sorted(windows)))
        if key in seen:
            continue
        seen.add(key)
        began = time.perf_counter()
        probes = min(PROBES, len(population))
        for index in range(probes):
            with suppress(Exception):  # a home that raises is the run's to name, without the text: it may hold readings
                population.load(index)
        load = (time.perf_counter() - began) / probes
        rows = sum(window.rows[1] - window.rows[0] for window in windows)
        features = len(getattr(task, "lags", (1,))) * len(population.channels)
        fit = FIT_SECONDS_PER_CELL * rows * features * getattr(task, "trees", 1)
        total += len(population) * (load * len(windows) + fit)
    return total
