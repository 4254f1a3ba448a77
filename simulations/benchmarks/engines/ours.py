"""What the engine benchmark measures of ours: bare rounds, the explain round, a query of a whole population, memory."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Timer
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedenergy.box.ledger import Ledger
from fedenergy.box.zone_store import ZoneStore
from fedenergy.config import parse
from fedenergy.explain.summary import Explainer
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.campaign import Campaign
from fedenergy.federation.client_app import Homes
from fedenergy.federation.plan import Plan, plan_from_config
from fedenergy.federation.ray_grid import RayGrid
from fedenergy.federation.shard import Client
from fedenergy.federation.study import make_grid
from fedenergy.households.simulate import simulate_households
from fedenergy.windows import lagged
from simulations.benchmarks.engines.stock import answer, content_of

LAGS = (1, 24, 168)
EXPLAIN_STEPS = 168 + 2 * 576     # two rounds of 24 days
LIBRARY_HOMES = 50                # of those homes, in xgboost's own loop


def client() -> Client:
    """A ClientApp whose nodes answer and do nothing, one by one and in batches."""
    app = ClientApp()
    app.query()(answer)

    def many(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        return [flower.reply(message, RecordDict({"config": ConfigRecord({"done": True})})) for message in messages]
    return Client(app, {"query": many})


def bucket(index: int) -> int:
    """Placement of the bare rounds' nodes: as many shards as a ledger has files."""
    return index % 64


def exchange(grid: RayGrid, megabytes: float, turn: int) -> int:
    """One round: a message to every node; how many answered."""
    content = content_of(megabytes)
    replies = grid.send_and_receive(flower.instruction(content, node, "query", str(turn)) for node in grid.get_node_ids())
    return sum(reply.has_content() for reply in replies)


def rounds(part: dict[str, Any]) -> dict[str, Any]:
    """Bare rounds over {nodes, repeats, megabytes, workers}, after one that is not counted.

    {"seconds": [...], "processor_s": of driver and workers together, of a round; "puts": of a round}
    """
    grid = RayGrid(client, part["nodes"], bucket, workers=part["workers"])
    found, spent = [], 0.0
    try:
        for turn in range(part["repeats"] + 1):
            spent = processor_s([os.getpid(), *grid.pids()]) if turn == 1 else spent
            began = time.perf_counter()
            if exchange(grid, part.get("megabytes", 0.0), turn) != part["nodes"]:
                raise RuntimeError("a node did not answer")
            if turn:
                found.append(time.perf_counter() - began)
        spent = processor_s([os.getpid(), *grid.pids()]) - spent
    finally:
        grid.close()
    return {"seconds": found, "processor_s": spent / part["repeats"], "puts": grid.puts / (part["repeats"] + 1)}


def death(part: dict[str, Any]) -> dict[str, Any]:
    """A worker is killed in the middle of a round of {nodes}: answers of that round and of the next."""
    app = ClientApp()

    def make() -> Client:
        @app.query()
        def slow(message: Message, context: Context) -> Message:
            time.sleep(0.05)
            return answer(message, context)
        return Client(app, {})

    grid = RayGrid(make, part["nodes"], bucket, workers=part["workers"], batch=4)
    try:
        victim = grid.pids()[0]
        Timer(0.4, os.kill, (victim, signal.SIGKILL)).start()
        answers = [exchange(grid, 0.0, turn) for turn in range(2)]
        return {"answers": answers, "nodes": part["nodes"], "replaced": grid.replaced}
    finally:
        grid.close()


def growth(part: dict[str, Any]) -> dict[str, Any]:
    """The driver's memory after round 20 and after the last of {repeats} rounds over {nodes}, kB."""
    grid = RayGrid(client, part["nodes"], bucket, workers=part["workers"])
    sizes = []
    try:
        for turn in range(part["repeats"]):
            exchange(grid, 0.0, turn)
            sizes.append(resident_kb(os.getpid()))
    finally:
        grid.close()
    early, late = sizes[19], sizes[-1]
    return {"after_20_kb": early, "after_last_kb": late, "rounds": part["repeats"], "growth": late / early - 1}


def idle(part: dict[str, Any]) -> dict[str, Any]:
    """What a population of {nodes} homes and its grid add to the driver, bytes."""
    before = resident_kb(os.getpid())
    homes = simulate_households(part["nodes"], steps=744)
    grid = RayGrid(client, part["nodes"], bucket, workers=1)
    try:
        nodes = grid.get_node_ids()
        return {"bytes": 1024 * (resident_kb(os.getpid()) - before), "nodes": len(nodes), "homes": len(homes)}
    finally:
        grid.close()


def explain(part: dict[str, Any]) -> dict[str, Any]:
    """Rounds of fit, SHAP, noise and ledger over {nodes} homes, and a bare loop over the same homes on as many processes.

    The bare loop makes the readings, fits and explains, and does nothing else; Ray's processes are suspended meanwhile. Both
    are measured in turn, ours first, round by round, in seconds and in processor seconds of all their processes (Ray's own
    too): "first" is the first round of new homes, which makes their keys, their agreements and a ledger; "next" is the
    checkpoint of that round and the round after it, over the next part of the record. "library" is what a home takes in
    a loop of xgboost's own training call and its own contributions, on one core, and "alone" in the bare loop on that core.
    """
    nodes, workers = part["nodes"], part["workers"]
    found: dict[str, list[float]] = {"library_s": [], "alone_s": []} | {
        f"{which}_{name}{kind}_s": [] for which in ("first", "next") for name in ("ours", "bare")
        for kind in ("", "_processor")}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(_bare, [([0], 0, (LAGS[-1], 744))] * workers))  # import and compile before the clock starts
        before = {os.getpid(), *descendants(os.getpid())}
        for turn in range(part["repeats"] + 1):
            plan, grid, folder = _opened(nodes, workers, epsilons=[1.0], seed=turn, rounds=2)
            rows = [window.rows for window in plan.parts[0].world.task.windows(plan.population, 2, "next_window")]
            of_ray = [pid for pid in descendants(os.getpid()) if pid not in before]
            ours, bare = Clock([os.getpid(), *of_ray]), Clock([os.getpid(), *pool._processes])

            def after(_part, index: int, _exchange, ours=ours, bare=bare, rows=rows, turn=turn, of_ray=of_ray) -> None:
                ours.stop()
                with suspended(of_ray):
                    bare.start()
                    list(pool.map(_bare, [(range(first, nodes, workers), turn, rows[index]) for first in range(workers)]))
                    bare.stop()
                ours.start()
            try:
                with Ledger(plan.ledger) as ledger, ZoneStore(plan.ledger) as zones:
                    ours.start()
                    _play(plan, grid, 0, ledger, zones, after)
            finally:
                grid.close()
                folder.cleanup()
            if turn:  # the first is not counted
                for name, clock in (("ours", ours), ("bare", bare)):
                    for which, (seconds, processor) in zip(("first", "next"), clock.taken, strict=True):
                        found[f"{which}_{name}_s"].append(seconds)
                        found[f"{which}_{name}_processor_s"].append(processor)
                few = range(min(nodes, LIBRARY_HOMES))
                for key, loop in (("library_s", _library), ("alone_s", _bare)):
                    began = time.perf_counter()
                    pool.submit(loop, (few, turn, rows[0])).result()
                    found[key].append((time.perf_counter() - began) / len(few))
    return found


class Clock:
    """(seconds, processor seconds of the processes) of every stretch between start and stop."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.taken = pids, []

    def start(self) -> None:
        processor = processor_s(self.pids)
        self._began = time.perf_counter(), processor

    def stop(self) -> None:
        now = time.perf_counter()
        self.taken.append((now - self._began[0], processor_s(self.pids) - self._began[1]))


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found[1:]


@contextmanager
def suspended(pids: Sequence[int]) -> Iterator[None]:
    """Processes that stand still meanwhile."""
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _bare(work: tuple[Sequence[int], int, tuple[int, int]]) -> int:
    homes, seed, rows = work
    explainer = Explainer(lags=LAGS)
    for home in homes:
        explainer.summary(simulate_households(home + 1, steps=EXPLAIN_STEPS, seed=seed).load(home), slice(*rows))
    return len(homes)


def _library(work: tuple[Sequence[int], int, tuple[int, int]]) -> int:
    """The loop that a user of xgboost writes: the same rows and model, its own contributions."""
    import xgboost

    homes, seed, rows = work
    parameters = {"max_depth": Explainer.depth, "max_bin": Explainer.bins, "eta": Explainer.learning_rate, "nthread": 1}
    for home in homes:
        design = lagged(simulate_households(home + 1, steps=EXPLAIN_STEPS, seed=seed).load(home), LAGS, slice(*rows))
        matrix = xgboost.DMatrix(design.X, design.y, nthread=1)
        xgboost.train(parameters, matrix, Explainer.trees).predict(matrix, pred_contribs=True)
    return len(homes)


def census(part: dict[str, Any]) -> dict[str, Any]:
    """New queries of {nodes} homes, every home charged, on kept summaries: seconds of each, and memory.

    form  "shards" (a node is a shard of homes) or "homes" (one message per home)
    The first query enrols the homes (keys, agreements) and makes the summaries of {distinct} homes: not counted.
    """
    epsilons = [0.1 + 0.01 * turn for turn in range(part["repeats"] + 1)]
    plan, grid, folder = _opened(part["nodes"], part["workers"], epsilons, form=part["form"], distinct=part["distinct"])
    seconds = []
    try:
        with Ledger(plan.ledger) as ledger, ZoneStore(plan.ledger) as zones:
            for number in range(len(epsilons)):
                began = time.perf_counter()
                state = _play(plan, grid, number, ledger, zones)
                seconds.append(time.perf_counter() - began)
                answers = [row[10] for row in state.rows if row[9] == "answers"]
                if answers != [part["nodes"]]:
                    raise RuntimeError(f"{answers} of {part['nodes']} homes answered")
        pids = [os.getpid(), *(grid.pids() if hasattr(grid, "pids") else [])]
        return {"first_s": seconds[0], "seconds": seconds[1:], "memory_gb": sum(map(resident_kb, pids)) / 2**20}
    finally:
        grid.close()
        folder.cleanup()


def _opened(nodes: int, workers: int, epsilons: list[float], *, seed: int = 1, form: str = "homes", distinct: int = 0,
            rounds: int = 1):
    folder = tempfile.TemporaryDirectory(prefix="fe-engine-")
    config = parse({
        "name": "engine", "oracle": False, "out": folder.name,
        "population": {"use": "fedenergy:simulate_households", "count": nodes, "seed": seed,
                       "steps": EXPLAIN_STEPS if rounds > 1 else 744, **({"distinct": distinct} if distinct else {})},
        "task": {"use": "fedenergy:Explain", "lags": list(LAGS)}, "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}],
        "query": {"kind": "appliances", "epsilon": 1.0, "rounds": rounds}, "vary": {"query.epsilon": epsilons},
        "engine": {"workers": workers, "nodes": form}}).check()
    plan = plan_from_config(config, Path(folder.name) / "run", Path(folder.name) / "ledger")
    return plan, make_grid(plan, Homes(plan.worlds)), folder


def _play(plan: Plan, grid: Any, number: int, ledger: Ledger, zones: ZoneStore,
          observe: Callable[..., None] = lambda *_: None):
    """One part of the plan, as a study plays it; observe: called after each round."""
    part = plan.parts[number]
    return Campaign(part, grid, zones, plan.out / f"{part.name}.json", lambda *_, **__: ({}, {}), observe, ledger,
                    {}).play(lambda *_, **__: None)


def processor_s(pids: Sequence[int]) -> float:
    """Processor seconds that processes have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def resident_kb(pid: int) -> int:
    """Resident memory of a process, kB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS:"))


PARTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "rounds": rounds, "death": death, "growth": growth, "idle": idle, "explain": explain, "census": census}
