"""A soak: many rounds over many homes with faults injected at random, and nothing may be lost, overspent or grow.

    python -m simulations.soak [--rounds 1000] [--homes 1000] [--workers 2] [--nodes shards|homes] [--seed 0] [--json FILE]

In about one round of eight something goes wrong: a worker is killed in the middle of the round, the same question comes
again (a duplicate), an answer is thrown away and asked for again later (a late reply), or the homes' clocks jump by up to
13 hours. After the last round the ledger must add up: every answer that was revealed is charged once and is there byte for
byte, nobody is above the cap, every chain and receipt holds. Memory and open files of driver and workers are followed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedenergy.box import box as boxes
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.ledger import Ledger, bucket
from fedenergy.box.policies import Fixed
from fedenergy.box.query import Query, SealedQuery
from fedenergy.box.world import World, enrolment_secret
from fedenergy.box.zone_store import ZoneStore
from fedenergy.explain.task import Explain
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.campaign import sealer
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.ray_grid import RayGrid
from fedenergy.federation.shard_exchange import ShardExchange
from fedenergy.federation.trust_grid import Crossings, Exchange
from fedenergy.households.simulate import simulate_households
from fedenergy.progress import Progress, SilentProgress, open_progress

EPSILON, CLOCK = 0.01, "clock.offset"
FAULTS = ("death", "duplicate", "late", "clock")
EARLY = 100  # the round after which memory and files may not grow


@dataclass
class Found:
    """What a soak saw. faults: by kind; answers, refusals: all rounds; problems: what was lost, overspent or broken."""

    faults: Counter = field(default_factory=Counter)
    answers: int = 0
    refusals: int = 0
    failures: int = 0
    replaced: int = 0
    problems: list[str] = field(default_factory=list)
    memory_mb: dict[int, list[float]] = field(default_factory=dict)
    files: dict[int, list[int]] = field(default_factory=dict)
    seconds: float = 0.0


def client_of(homes: Homes, folder: Path):
    """The homes' client, whose clock runs off by what a file says: a worker cannot be reached otherwise."""
    offset = folder / CLOCK
    boxes.time = SimpleNamespace(time=lambda: time.time() + float(offset.read_text()))
    return make_client(homes)


def soak(folder: Path, rounds: int = 1_000, homes: int = 1_000, workers: int = 2, nodes: str = "shards", seed: int = 0,
         progress: Progress | None = None) -> Found:
    """Run it in a folder; see the module. nodes: "shards" or "homes", as in [engine]."""
    progress, chance, found = progress or SilentProgress(), random.Random(seed), Found()
    (folder / CLOCK).write_text("0")
    population = simulate_households(homes, steps=744, seed=1, distinct=min(homes, 10))
    cap = round(EPSILON * max(1, rounds * 2 // 3), 6)  # in the last third every home refuses
    world = World(population, Explain(trees=20), Fixed(), AgreementTerms(cap=cap), folder / "ledger",
                  secret=enrolment_secret("simulation", folder / "ledger"))
    ids = list(population.ids)
    factory = partial(client_of, Homes((world,), folder / "inside"), folder)
    count, placement = (64, int) if nodes == "shards" else (homes, lambda index: bucket(ids[index]))
    grid = RayGrid(factory, count, placement, workers=workers)
    revealed: dict[str, tuple[SealedQuery, bytes]] = {}
    began = time.monotonic()
    progress.start(rounds, f"{homes} homes")
    try:
        with ZoneStore(folder / "ledger") as zones:
            for turn in range(rounds):
                fault = chance.choice(FAULTS) if chance.random() < 0.125 else ""
                _round(grid, world, zones, turn, fault, chance, revealed, found, folder, nodes)
                if turn + 1 in (EARLY, rounds) or (turn + 1) % 250 == 0:
                    pids = [os.getpid(), *_workers(grid)]
                    found.memory_mb[turn + 1] = [_status(pid, "VmRSS") / 1024 for pid in pids]
                    found.files[turn + 1] = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
                progress.advance(failures=0)
        found.replaced = grid.replaced
    finally:
        grid.close()
        progress.close()
    found.seconds = time.monotonic() - began
    _check(folder / "ledger", ids, revealed, round(cap * 1e6), found)
    return found


def _round(grid, world, zones, turn, fault, chance, revealed, found, folder, nodes) -> None:
    query = _sealed(world, turn)
    if fault:
        found.faults[fault] += 1
    if fault == "clock":
        (folder / f"{CLOCK}.new").write_text(str(chance.uniform(-13, 13) * 3600))
        os.replace(folder / f"{CLOCK}.new", folder / CLOCK)
    if fault == "late":  # the answer is lost on its way; the question comes again
        _ask(grid, world, zones, query, nodes)
    timer = None
    if fault == "death":
        timer = Timer(chance.uniform(0.0, 0.05), _kill, [chance.choice(_workers(grid))])
        timer.start()
    answered, digest, refused, failed = _ask(grid, world, zones, query, nodes)
    if timer is not None:
        timer.join()
    if fault == "duplicate":
        again = _ask(grid, world, zones, query, nodes)
        if again[:2] != (answered, digest):
            found.problems.append(f"round {turn + 1}: asked twice, answered otherwise")
    found.answers, found.refusals, found.failures = found.answers + len(answered), found.refusals + refused, \
        found.failures + failed
    revealed[query.id] = query, digest
    if len(answered) not in (0, len(world.population)) or failed:
        found.problems.append(f"round {turn + 1} ({fault or 'no fault'}): {len(answered)} answers, {refused} refusals, "
                              f"{failed} failures")


def _sealed(world: World, turn: int) -> SealedQuery:
    window = world.task.windows(world.population, 1, "same_window")[0]
    return sealer(Query("appliances", epsilon=EPSILON, fresh=turn), world, "local", "laplace", "c" * 32, 0, window)(
        list(world.population.ids))


def _ask(grid, world, zones, query: SealedQuery, nodes: str) -> tuple[tuple[str, ...], bytes, int, int]:
    """(homes that answered, digest of their answers, refusals, failures)."""
    digest = hashlib.blake2b(digest_size=16)
    if nodes == "shards":
        exchange = ShardExchange(grid, world, 0, 0, zones, Crossings())
        shards = [shard for shard, inside in enumerate(exchange.shards) if inside]
        asked = exchange.ask(query, shards, RecordDict(), "1")
        found = {name: block.values[row] for block in asked.blocks.values() for row, name in enumerate(block.households)}
    else:
        exchange = Exchange(grid, world, 0, 0, zones, Crossings())
        asked = exchange.ask(query, [flower.instruction(RecordDict(), flower.node_id(home), "train", "1")
                                     for home in range(len(world.population))])
        found = {name: envelope.values for name, envelope in asked.envelopes.items()}
    for name in sorted(found):
        digest.update(name.encode() + np.ascontiguousarray(found[name], "<f8").tobytes())
    return tuple(sorted(found)), digest.digest(), asked.refused, asked.failed


def _check(path: Path, ids: Sequence[str], revealed: dict[str, tuple[SealedQuery, bytes]], cap: int, found: Found) -> None:
    """The ledger against what was revealed."""
    with Ledger(path) as ledger:
        found.problems += [f"ledger {problem.file} {problem.household}: {problem.text}" for problem in ledger.verify()]
        spent = ledger.spent_many([(name, "c" * 32) for name in ids])
        charged = 0
        for query_id, (query, digest) in revealed.items():
            rows = ledger.lookup([(name, query_id) for name in ids])
            again = hashlib.blake2b(digest_size=16)
            for name, _ in sorted(rows):
                again.update(name.encode() + rows[name, query_id].payload)
                charged += rows[name, query_id].epsilon_micro
            if again.digest() != digest:
                found.problems.append(f"round {query.body['fresh']}: what was revealed is not what is stored")
        if charged != sum(spent.values()):
            found.problems.append(f"{charged} micro-epsilon revealed, {sum(spent.values())} spent: a charge has no answer")
        if max(spent.values()) > cap:
            found.problems.append(f"a home spent {max(spent.values())} of {cap}")


def _workers(grid: RayGrid) -> list[int]:
    """Process ids of the workers. One that was killed after its round's end is replaced by the next round: ask again."""
    try:
        return grid.pids()
    except Exception:
        grid.send_and_receive([flower.instruction(RecordDict(), node, "query.hello", "0") for node in grid.get_node_ids()])
        return grid.pids()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _status(pid: int, key: str) -> int:
    return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if line.startswith(f"{key}:"))


def lines(found: Found) -> list[str]:
    """The figures as text."""
    first, last = min(found.memory_mb), max(found.memory_mb)
    told = [f"{sum(found.faults.values())} faults: " + ", ".join(f"{count} {kind}" for kind, count in found.faults.items()),
            f"{found.answers:,} answers, {found.refusals:,} refusals, {found.failures} failures, {found.replaced} workers "
            f"replaced, {found.seconds:.0f} s"]
    for name, values, unit in (("memory", found.memory_mb, " MB"), ("open files", found.files, "")):
        told.append(f"{name}, driver and workers: " + "; ".join(
            f"round {turn}: {', '.join(f'{value:.0f}' for value in values[turn])}{unit}" for turn in (first, last)))
    return [*told, *(found.problems or ["no lost charge, no overspending, every answer stored byte for byte"])]


def main(arguments: list[str] | None = None) -> Found:
    """Run it, print the figures; exit code 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 1_000), ("homes", 1_000), ("workers", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--nodes", choices=("shards", "homes"), default="shards")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fe-soak-") as folder:
        found = soak(Path(folder), given.rounds, given.homes, given.workers, given.nodes, given.seed, open_progress())
    print("\n".join(lines(found)))
    if given.json:
        body: dict[str, Any] = {**vars(found), "faults": dict(found.faults), "homes": given.homes, "rounds": given.rounds}
        given.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    if found.problems:
        raise SystemExit(1)
    return found


if __name__ == "__main__":
    main()
