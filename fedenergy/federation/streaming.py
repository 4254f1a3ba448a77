"""Artificial homes by the million: batches made in this process or in Ray workers, written in order as they come.

What a worker makes depends on the batch's number alone, and blocks are written in the order of these numbers, so the file is
the same, byte for byte, for any number of workers. Every finished batch is kept beside the output until the file is whole: a
run that was stopped goes on from there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy.box.ledger_mark import holds_ledger
from fedenergy.progress import Progress, SilentProgress
from fedenergy.synthesis import outputs, stream
from fedenergy.synthesis.generate import PRIVATE
from fedenergy.synthesis.outputs import Block
from fedenergy.synthesis.stream import LocalMaker, Maker, Plan, PrivateMaker

SCALE = 10**outputs.DECIMALS
ASKING = (PRIVATE, "local")     # modes that ask the homes, which the ledger charges
NAMED = 100     # excluded homes that are named in the facts; all are counted


@dataclass(frozen=True)
class Streamed:
    """path; homes written; behind: homes that records were made from; batches made and found; excluded: id -> reason."""

    path: Path
    homes: int
    behind: int
    batches: int
    found: int
    facts: Mapping[str, Any]


def stream_homes(population: Any, plan: Plan, homes: int, path: str | Path, *, seed: int, workers: int = 0, form: str = "",
                 address: str = "", progress: Progress | None = None, ledger: str | Path | None = None) -> Streamed:
    """Write `homes` artificial records of a population to a file, whole or not at all, and FILE.about.json beside it.

    homes    any number; beyond the population's usable homes, each is drawn again with another seed
    workers  Ray actors; 0: this process. form: see outputs.format_of; address: a Ray cluster
    Memory: a few batches (about `plan.shard` homes each), whatever the number of homes.
    mode = "private" and "local": the homes are asked once; their charges are kept in the folder `ledger` (None:
    FILE.ledger), and the same command spends nothing. "local": each makes its own series in its box, which leaves it where
    plan.agreement grants that, and all are held here.
    Errors: ValueError for what the plan, the population or the file's name and folder cannot do, and where the ledger that
    homes were charged in for this file is gone.
    """
    path, progress = Path(path), progress or SilentProgress()
    form = check_file(path, form)
    if isinstance(homes, bool) or not isinstance(homes, int) or homes < 1:
        raise ValueError(f"homes = {homes!r}; use a whole number of at least 1")
    if plan.mode == "local" and homes > stream.size(population):
        raise ValueError(f'{homes} records of {stream.size(population)} homes: with mode = "local" each home makes one '
                         'of its own; use '
                         'mode = "curator" for more')
    if workers and not hasattr(population, "load"):
        raise ValueError(f"workers = {workers}: homes held in memory stay in this process; pass a Population, or workers "
                         "= 0")
    parts = path.with_name(f".{path.name}.{stream.identity(population, plan, seed, homes)}.parts")
    charges = path.with_name(f"{path.name}.ledger") if ledger is None else Path(ledger)
    if plan.mode in ASKING:
        _ledger_is_there(path, parts, charges)
    try:
        parts.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"the folder {path.parent} cannot be written in ({error.strerror}): name another") from error
    try:
        maker = _maker(population, plan, seed, charges, workers)
    except BaseException:
        with suppress(OSError):     # batches of an earlier run stay
            parts.rmdir()
        raise
    if plan.mode == "local":
        workers, address = 0, ""    # the homes have done the work
    gathered = _Gathered(maker, homes)
    if ledger is not None and plan.mode in ASKING:
        gathered.facts["ledger"] = os.path.relpath(charges, path.parent)
    progress.start(homes, "artificial homes")
    batches = _batches(maker, parts, workers, address)
    try:
        outputs.write_blocks(_blocks(gathered, batches, progress), path, form, gathered.facts)
    finally:
        batches.close()
        progress.close()
    shutil.rmtree(parts, ignore_errors=True)
    return Streamed(path, homes, sum(gathered.behind.values()), gathered.batches, gathered.found, gathered.facts)


def check_file(path: Path, form: str = "") -> str:
    """The format of a file to write; ValueError for a name, folder or format that cannot be."""
    form = outputs.format_of(path, form)
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} does not exist: make it first")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file")
    return form


def _ledger_is_there(path: Path, parts: Path, ledger: Path) -> None:
    """What is left of an earlier run says where its homes were charged: without that ledger they would answer as if nothing
    had been spent. ValueError where it is gone, or where this run would charge another."""
    facts = path.with_name(f"{path.name}.about.json")
    try:
        known = json.loads(facts.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if isinstance(known, dict) and known.get("mode") in ASKING:
        left, charged = facts, path.parent / str(known.get("ledger", f"{path.name}.ledger"))
    elif any(parts.glob("[0-9]*.npz")):
        left, charged = parts, ledger
    else:
        return
    unseen = f"{left} is of a run whose homes were charged in the ledger {charged}"
    if not holds_ledger(charged):
        raise ValueError(f"{unseen}, which is gone: they would answer as if nothing had been spent. Put the ledger back, or "
                         f"move {left} and {path.name} away to begin anew")
    if charged.resolve() != ledger.resolve():
        raise ValueError(f"{unseen}, and now {ledger} would be charged: they would answer as if nothing had been spent. Set "
                         "[ledger] path to the former, or name another file")


def _maker(population: Any, plan: Plan, seed: int, ledger: Path, workers: int) -> Maker | LocalMaker | PrivateMaker:
    if plan.mode == PRIVATE:
        return PrivateMaker(stream.fit(population, plan, seed, ledger, workers), plan, seed)
    if plan.mode == "local":
        return stream.ask_locally(population, plan, seed, ledger, workers)
    return Maker(population, plan, seed)


class _Gathered:
    """What was written so far, and the facts of the whole file."""

    def __init__(self, maker: Maker | LocalMaker | PrivateMaker, homes: int) -> None:
        self.maker, self.homes = maker, homes
        self.done = self.batches = self.found = self.filled = 0
        self.behind: dict[int, int] = {}        # shard -> usable homes
        away: Mapping[str, str] = getattr(getattr(maker, "population", None), "excluded", {})     # before any was read
        self.excluded: dict[str, str] = dict(list(away.items())[:NAMED])
        self.excluded_count = len(away)
        self.counts: dict[str, int] = {}
        self.facts: dict[str, Any] = {}

    def take(self, number: int, part: Mapping[str, np.ndarray]) -> Block:
        """The block of a batch, cut to what is still wanted, with its ids."""
        head = json.loads(str(part["head"]))
        values = part["values"][:self.homes - self.done] / SCALE
        n, local = len(values), self.maker.plan.mode == "local"
        ids = tuple(part["ids"][:n].tolist()) if local else tuple(
            f"syn-{self.done + i + 1:07d}" for i in range(n))
        shard = number % self.maker.shards
        if number < self.maker.shards:
            self.filled += head["filled"]
            self.excluded_count += len(head["excluded"])
            self.excluded |= dict(list(head["excluded"].items())[:max(0, NAMED - len(self.excluded))])
        self.behind[shard] = head["counts"]["homes"]
        self.done += n
        self.batches += 1
        for name in ("cells", "merged_cells", "clipped_steps", "capped_steps"):
            self.counts[name] = self.counts.get(name, 0) + head["counts"].get(name, 0)
        if "smallest_cell" in head["counts"]:
            smallest = head["counts"]["smallest_cell"]
            self.counts["smallest_cell"] = min(self.counts.get("smallest_cell", smallest), smallest)
        self._state(head)
        return Block(ids, values, np.datetime64(head["start"]), head["step_minutes"], part["cluster"][:n], part["size"][:n],
                     self.maker.plan.sizes)

    def _state(self, head: Mapping[str, Any]) -> None:
        usable = sum(self.behind.values())
        self.facts.update(
            guarantee=head["guarantee"], mode=head["mode"], variant=head["variant"], shuffle=head["shuffle"],
            unit_of_values=f"kWh per {head['step_minutes']} minutes", homes=self.homes, seed=self.maker.seed,
            homes_behind=usable, counts=dict(self.counts), privacy=head["privacy"],
            draws_per_home=1 if head["privacy"] else -(-self.homes // usable),
            readings_filled=self.filled, homes_excluded=self.excluded_count, excluded=dict(self.excluded))


def _blocks(gathered: _Gathered, batches: Iterator[tuple[int, Mapping[str, np.ndarray], bool]],
            progress: Progress) -> Iterator[Block]:
    for number, part, old in batches:
        gathered.found += old
        block = gathered.take(number, part)
        yield block
        progress.advance(len(block.ids))
        if gathered.done >= gathered.homes:
            return
        if gathered.maker.plan.mode == "local" and number + 1 >= gathered.maker.shards:
            raise ValueError(f"only {gathered.done} of the {gathered.homes} homes asked can be used; the first that cannot: "
                             f"{next(iter(gathered.excluded.items()), '')}")


def _batches(maker: Maker | LocalMaker | PrivateMaker, parts: Path, workers: int,
             address: str) -> Iterator[tuple[int, Mapping[str, np.ndarray], bool]]:
    """(number, arrays, whether it was there) of batch 0, 1, ..., each kept in the folder before it is handed on."""
    if workers == 0 and not address:
        for number in count():
            file = parts / f"{number:08d}.npz"
            old = _read(file)
            yield number, old or _keep(file, packed(maker(number))), old is not None
    from fedenergy.federation.ray_grid import ray_map

    kept = {number for number in (int(file.stem) for file in parts.glob("[0-9]*.npz"))
            if _read(parts / f"{number:08d}.npz") is not None}
    todo = (number for number in count() if number not in kept)
    fresh = ray_map(_Packer(maker), todo, workers=max(1, workers), address=address)
    try:
        for number in count():
            file = parts / f"{number:08d}.npz"
            yield number, _read(file) if number in kept else _keep(file, next(fresh)[1]), number in kept
    finally:
        fresh.close()


@dataclass(frozen=True)
class _Packer:
    """A maker whose batches travel as plain arrays."""

    maker: Maker | LocalMaker | PrivateMaker

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        return packed(self.maker(number))


def packed(batch: stream.Batch) -> dict[str, np.ndarray]:
    """A batch as arrays: whole .0001 kWh (int32), ids, cells, and a JSON head; where days came from does not travel."""
    fake = batch.fake
    head = {"guarantee": fake.guarantee, "mode": fake.mode, "variant": fake.variant, "shuffle": fake.shuffle,
            "start": str(fake.start), "step_minutes": fake.step_minutes, "counts": dict(fake.counts),
            "filled": batch.filled, "excluded": dict(fake.excluded), "privacy": fake.privacy}
    whole = np.rint(fake.values * SCALE)
    if np.abs(whole).max() >= 2**31:
        raise ValueError(f"a reading of {np.abs(fake.values).max():g} kWh in one step is too large to write: lower cap_kwh")
    return {"values": whole.astype(np.int32), "cluster": fake.cluster.astype(np.int16), "size": fake.size.astype(np.int8),
            "ids": np.array(fake.ids), "head": np.array(json.dumps(head, sort_keys=True))}


def _keep(file: Path, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    part = file.with_suffix(".part")
    with part.open("wb") as out:
        np.savez(out, **arrays)
    os.replace(part, file)
    return arrays


def _read(file: Path) -> dict[str, np.ndarray] | None:
    try:
        with np.load(file, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        return None
    except Exception:  # cut short by a full disk or a power failure: made again
        return None
