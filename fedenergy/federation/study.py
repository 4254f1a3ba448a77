"""A study from start to end: plan, grid, campaign, run folder; resumable at every round."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import shlex
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedenergy.box.ledger import Ledger, LedgerBroken, LedgerUnavailable, bucket
from fedenergy.box.ledger_mark import HEADS, holds_ledger, older_than
from fedenergy.box.ledger_postgres import Postgres, keep_in_postgres
from fedenergy.box.receipts import make_folder
from fedenergy.box.zone_store import ZoneStore
from fedenergy.config import Config, parse
from fedenergy.errors import ConfigError, RunFailed
from fedenergy.federation import run_folder
from fedenergy.federation.campaign import Campaign, State, write_durably
from fedenergy.federation.client_app import Homes, make_client
from fedenergy.federation.failures import INSIDE, killers_of
from fedenergy.federation.local_grid import HomesGrid, LocalGrid
from fedenergy.federation.placement import balanced
from fedenergy.federation.plan import Plan, plan_from_config
from fedenergy.federation.scores import score
from fedenergy.federation.shard import Client
from fedenergy.progress import Progress, SilentProgress

BATCH = 256


def run_study(config: Config, *, progress: Progress | None = None,
              grid: Callable[[int], Grid] | None = None) -> Path:
    """Run every strategy x vary x seed of a config from its first round; returns the run folder.

    The folder's name follows from the config, so the same study finds its own ledger again: what was charged before is
    stored and free. --fresh asks anew, in a folder of its own, against the same ledger.
    grid    makes another runtime's grid (Flower's own) for a number of homes; by default [engine] decides: workers = 0
            in this process, else Ray
    Errors: ConfigError before anything is spent; RunFailed after (the run folder can be resumed).
    """
    folder, ledger, fresh = place(config)
    _make_ledger(config, ledger)
    plan = plan_from_config(config, folder, ledger, fresh)
    with _only_run(folder):
        _ledger_is_there(folder, ledger, config.run_name)
        if "://" in config.ledger.path:
            _in_postgres(ledger, config.ledger.path)
        if fresh:
            _count_fresh(ledger, config, fresh)
        start = {"fresh": fresh, "ledger": _ledger_note(config, folder, ledger), **begun_with(config)}
        return _play(plan, progress or SilentProgress(), grid, start)


def resume_study(folder: Path, *, progress: Progress | None = None) -> Path:
    """Go on where a run stopped; ends in the same bytes as an uninterrupted run."""
    folder = Path(folder)
    config_file, start_file = folder / "config.resolved.toml", folder / "start.json"
    if not config_file.is_file() or not start_file.is_file():
        raise ConfigError(f"{folder} is not a run folder: it has no config.resolved.toml and start.json; give "
                          "runs/<name>-<digest> as `fedenergy run` printed it")
    text = config_file.read_text(encoding="utf-8")
    if not text.strip():
        raise ConfigError(f"{folder} was made from Python objects, not from a config: run the script again; what was "
                          "charged is stored and free")
    start = json.loads(start_file.read_text(encoding="utf-8"))
    try:
        config = parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{config_file} is damaged: {error}") from error
    if problem := other_config(start, config):
        raise ConfigError(f"{folder} cannot be resumed: {problem}; run the config as a study of its own: fedenergy run "
                          f"{shlex.quote(str(config_file))}")
    plan = plan_from_config(config, folder, folder / start["ledger"], start["fresh"])
    with _only_run(folder):
        return _play(plan, progress or SilentProgress())


def begun_with(config: Config) -> dict[str, str]:
    """What start.json keeps of the config that a run begins with: results are of no other."""
    return {"config": config.digest(), "noise": config.privacy.noise}


def other_config(start: Mapping[str, Any], config: Config) -> str:
    """Why a config is not the one that a run began with, by its start.json; "" where it is."""
    began, now = {key: start.get(key) for key in ("config", "noise")}, begun_with(config)
    if began["config"] is None:
        return ("start.json does not say which config the run began with (an older version wrote it), so that "
                "config.resolved.toml may be another")
    return "" if began == now else (
        f"it began with the config {str(began['config'])[:8]} (noise = \"{began['noise']}\"), and config.resolved.toml is "
        f"now {now['config'][:8]} (noise = \"{now['noise']}\")")


def _make_ledger(config: Config, ledger: Path) -> None:
    """A folder that the config names for the ledger is there and can be written, before anything else happens."""
    if not config.ledger.path or "://" in config.ledger.path:
        return
    try:
        make_folder(ledger)
        with tempfile.TemporaryFile(dir=ledger):
            pass
    except OSError as error:
        raise ConfigError(f'[ledger] path = "{config.ledger.path}" cannot be made or written: {error.strerror}; give a '
                          "folder that does not exist yet, or one of your own with room in it") from error


def _ledger_note(config: Config, folder: Path, ledger: Path) -> str:
    """Where a resumed run finds its ledger: beside the run folder, so that both can move, or where the config says."""
    given = config.ledger.path and "://" not in config.ledger.path
    return str(ledger.resolve()) if given else os.path.relpath(ledger, folder)


def place(config: Config, number: int | None = None) -> tuple[Path, Path, int]:
    """(run folder, ledger, fresh number) of a config: <out>/<name>-<digest>, with -fresh<n> for the n-th --fresh.

    number  of the --fresh, where it was counted already (0: none); by default config.fresh asks for the next one
    """
    base = Path(config.out) / config.run_name
    ledger = Path(config.ledger.path) if config.ledger.path and "://" not in config.ledger.path else base / "ledger"
    if number is None:
        number = _fresh_counts(ledger).get(config.digest(), 0) + 1 if config.fresh else 0
    if not number:
        return base, ledger, 0
    return base.with_name(f"{base.name}-fresh{number}"), ledger, number


def _ledger_is_there(folder: Path, ledger: Path, name: str) -> None:
    """A run that has results has a ledger: without it the homes would answer as if nothing had been spent."""
    ran = [path for path in (folder, *folder.parent.glob(f"{name}-fresh*"))
           if (path / "metrics.csv").exists() or any(path.glob("checkpoints/*"))]
    if ran and not holds_ledger(ledger):
        raise ConfigError(f"{ran[0]} has results, but its ledger {ledger} is gone: the homes would answer as if nothing had "
                          "been spent. Put the ledger back, or move the old run folders away to begin a new study")
    if older := older_than([path / HEADS for path in ran], ledger):
        raise ConfigError(f"{older}, or move the old run folders away to begin a new study")


def _in_postgres(ledger: Path, url: str) -> None:
    try:
        keep_in_postgres(ledger, url)
    except ValueError as error:
        raise ConfigError(error) from error
    Postgres.of(ledger).exists(ledger / "00.sqlite")  # a server that is away is told now, not home by home


def _fresh_counts(ledger: Path) -> dict[str, int]:
    path = ledger / "fresh.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _count_fresh(ledger: Path, config: Config, number: int) -> None:
    ledger.mkdir(parents=True, exist_ok=True, mode=0o700)
    known = {**_fresh_counts(ledger), config.digest(): number}
    write_durably(ledger / "fresh.json", json.dumps(known, sort_keys=True).encode())


@contextmanager
def _only_run(folder: Path) -> Iterator[None]:
    """Two runs in one folder would mix their checkpoints: the second is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder} is in use by another run: wait for it, or give another --out") from None
        yield


def play_plan(plan: Plan, progress: Progress | None = None) -> Path:
    """Run a plan made from objects."""
    with _only_run(plan.out):
        return _play(plan, progress or SilentProgress(), start={"fresh": 0, "ledger": str(plan.ledger.resolve())})


def new_folder(out: Path, name: str) -> Path:
    """A name for a run folder that does not exist yet: <out>/<name>-<stamp>."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        folder = out / f"{name}-{stamp}{suffix}"
        if not folder.exists():
            return folder
    raise ConfigError(f"{out} already holds a thousand runs of this second")


def _begin(plan: Plan, start: Mapping[str, Any]) -> None:
    for name in ("summary.json", "metrics.csv", "cells.csv", "releases.parquet", "report.html"):
        (plan.out / name).unlink(missing_ok=True)
    for name in ("checkpoints", INSIDE):
        shutil.rmtree(plan.out / name, ignore_errors=True)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_durably(plan.out / "config.resolved.toml", plan.text.encode())
    write_durably(plan.out / "start.json", json.dumps({**start, "started": started}).encode())
    write_durably(plan.out / "versions.json", json.dumps(run_folder.versions(), indent=1).encode())


def _play(plan: Plan, progress: Progress, grid: Callable[[int], Grid] | None = None,
          start: Mapping[str, Any] | None = None) -> Path:
    """start: what a new run notes for resuming; None goes on with the checkpoints that are there."""
    began = time.monotonic()
    homes = Homes(plan.worlds, plan.out / INSIDE)
    turns = sum(part.query.rounds * len(part.entries) for part in plan.parts)
    states: list[State] = []
    if older := older_than([plan.out / HEADS], plan.ledger):
        raise ConfigError(older)
    try:
        with (_grid(plan, homes, grid, progress) as nodes, Ledger(plan.ledger) as ledger,
              ZoneStore(plan.ledger) as zones):
            if start is not None:
                _begin(plan, start)
            progress.start(turns, f"{len(plan.population)} homes")
            truths: dict = {}
            for part in plan.parts:
                campaign = Campaign(part, nodes, zones, plan.out / "checkpoints" / f"{part.name}.json",
                                    partial(score, clip=part.world.spec(part.query.kind).clip),
                                    partial(run_folder.keep_releases, plan.out), ledger, truths)
                progress.advance(campaign.state.round * len(part.entries))
                states.append(campaign.play(progress.advance))
            run_folder.finish(plan, states, ledger, truths, time.monotonic() - began)
    except (RunFailed, ConfigError, LedgerBroken, LedgerUnavailable) as error:
        raise type(error)(f"{error} (run folder: {plan.out})") from error
    finally:
        progress.close()
    return plan.out


@contextmanager
def _grid(plan: Plan, homes: Homes, given: Callable[[int], Grid] | None, progress: Progress) -> Iterator[Grid]:
    if given is not None:
        yield given(plan.nodes)
        return
    made = make_grid(plan, homes)
    try:
        yield made
    finally:
        made.close()
        if getattr(made, "replaced", 0):
            killers = killers_of(made, plan.population.ids)
            progress.note(f"{made.replaced} worker(s) died and were replaced" + (f"; {killers}" if killers else ""))


def _shard_grid(plan: Plan, homes: Homes) -> HomesGrid:
    engine = plan.engine
    if engine.workers == 0:
        return LocalGrid(make_client(homes), plan.nodes)
    from fedenergy.federation.ray_grid import RayGrid

    return RayGrid(partial(prepared_client, make_client, homes), plan.nodes, int, workers=engine.workers, batch=1,
                   address=engine.address)


def prepared_client(make: Callable[[Homes], Client], homes: Homes) -> Client:
    """The client of a worker, before its first message: what its tasks import and compile is there."""
    for task in {id(world.task): world.task for world in homes.worlds}.values():
        getattr(task, "prepare", lambda: None)()
    return make(homes)


def make_grid(plan: Plan, homes: Homes) -> HomesGrid:
    """LocalGrid for [engine] workers = 0, else RayGrid."""
    population, engine = plan.population, plan.engine
    if engine.nodes == "shards":
        return _shard_grid(plan, homes)
    if engine.workers == 0:
        return LocalGrid(make_client(homes), len(population))
    from fedenergy.federation.ray_grid import RayGrid

    places = balanced(map(bucket, population.ids), max(1, engine.workers))
    try:
        return RayGrid(partial(prepared_client, make_client, homes), len(population), places.__getitem__,
                       workers=engine.workers, batch=engine.batch or BATCH, address=engine.address)
    except ValueError as error:
        raise ConfigError(f"[engine] {error}") from error
    except ConnectionError as error:
        raise ConfigError(f"[engine] address = {engine.address!r}: no Ray cluster answers there: {error}") from error
