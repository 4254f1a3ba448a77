"""RayGrid: the nodes live, sticky, in supervised Ray actors; messages travel in batches.

Why not Flower's own simulation: it polls every node against every stored message, pickles the app with each message
and never replaces a dead actor (measured for Flower 1.42). Here a household always lives in the same actor, what is
broadcast is put into Ray's store once, and a batch never splits a ledger file, so its homes are charged in one
transaction.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flwr.app import Message, RecordDict

from fedenergy.errors import RunFailed
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.local_grid import HomesGrid, collector_paused
from fedenergy.federation.mail import Batch, Mail, cut
from fedenergy.federation.shard import Client, Shard

STORE_BYTES = 512 * 1024 * 1024
KILLS_BEFORE_QUARANTINE = 2
IN_FLIGHT = 2
WINDOWS = 2  # of a stream: while the first is handed on the workers are busy with the second
PATIENCE = 15.0
_END = object()


class Worker:
    """One actor: a shard of the nodes."""

    def __init__(self, factory: Callable[[], Client], count: int) -> None:
        self._shard = Shard(factory(), count)

    def ready(self) -> int:
        return os.getpid()

    def run(self, content: RecordDict, kind: str, group: str, numbers: list[int], homes: list[int]) -> list[Any]:
        """Answers to one broadcast content for many homes, in order: the parts of a content, or an error code."""
        with collector_paused():  # a context per home lives here: walking them takes longer than answering
            messages = [flower.received(content, f"m{number}", flower.node_id(home), kind, group)
                        for number, home in zip(numbers, homes, strict=True)]
            return [flower.parts_of(answer.content) if answer.has_content() else answer.error.code
                    for answer in self._shard.run(messages)]


@contextmanager
def ray_session(workers: int, address: str = ""):
    """A private Ray, or a connection to the cluster at `address` ("auto", "ray://host:port").

    Private: token authentication, loopback only, no dashboard, a folder that only this user can read, a bounded store.
    A cluster must run with RAY_AUTH_MODE=token, else any local process could run code in it: refused.
    """
    if address and os.environ.get("RAY_AUTH_MODE") != "token":
        raise ValueError(f"engine.address = {address!r}: the cluster must use token authentication; set "
                         "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here and on every node")
    _answers(address)
    if not address:  # one token per process: Ray reads it once and keeps it
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray  # imported late: Ray reads the authentication mode when it is loaded

    if ray.is_initialized():
        raise RuntimeError("Ray already runs in this process; close the other grid (or call ray.shutdown()) first")
    folder = None
    try:
        if address:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        else:
            old_mask = os.umask(0o077)
            try:
                folder = tempfile.mkdtemp(prefix="fe-ray-")  # short: socket paths have a limit of 107 bytes
                ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                         object_store_memory=STORE_BYTES, _temp_dir=folder, _node_ip_address="127.0.0.1")
            finally:
                os.umask(old_mask)
            _without_log_monitor(ray)
        yield ray
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _without_log_monitor(ray: Any) -> None:
    """Ray's log monitor looks through all log files ten times a second (1 % of a core) for a driver that prints them, which
    ours does not (log_to_driver). Ray has no public way to leave it out; where the private one is gone, it stays."""
    node = getattr(getattr(getattr(ray, "_private", None), "worker", None), "_global_node", None)
    with suppress(Exception):
        node.kill_log_monitor(check_alive=False)


def _answers(address: str) -> None:
    """ConnectionError where nothing listens at host:port or ray://host:port: Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(f"nothing listens at {host}:{port} ({error}); `ray status` on the cluster's head says "
                                  "where it does") from error


class Caller:
    """One actor of `ray_map`."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call

    def run(self, item: Any) -> Any:
        return self._call(item)


def ray_map(call: Callable[[Any], Any], items: Iterable[Any], *, workers: int,
            address: str = "") -> Iterator[tuple[Any, Any]]:
    """(item, call(item)) in the order of the items, made by `workers` actors of one CPU each.

    call  sent once to each actor, which keeps it (and whatever it caches) for all its items
    items may be endless: at most IN_FLIGHT per worker are taken ahead of what was handed on, so memory stays flat
    A worker that dies is replaced and its items are sent again; RuntimeError where one item kills KILLS_BEFORE_QUARANTINE
    workers. An exception of call ends the iteration. Close the iterator to let go of the workers.
    """
    if workers < 1:
        raise ValueError(f"workers = {workers}: at least 1 (0 means this process, without Ray)")
    source = iter(items)
    with ray_session(workers, address) as ray:
        shared, actor = ray.put(call), ray.remote(num_cpus=1, max_restarts=0)(Caller)
        actors = [actor.remote(shared) for _ in range(workers)]
        waiting: deque[tuple[Any, int, Any, int]] = deque()     # (item, worker, reference, kills), in order

        def send(item: Any, kills: int = 0) -> tuple[Any, int, Any, int]:
            load = [sum(1 for _, at, _, _ in waiting if at == worker) for worker in range(workers)]
            worker = load.index(min(load))
            return item, worker, actors[worker].run.remote(item), kills

        while True:
            while len(waiting) < IN_FLIGHT * workers and (item := next(source, _END)) is not _END:
                waiting.append(send(item))
            if not waiting:
                return
            item, worker, reference, kills = waiting.popleft()
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                if kills + 1 >= KILLS_BEFORE_QUARANTINE:
                    raise RuntimeError(f"item {item!r} killed {kills + 1} workers: see its memory and its machine "
                                       "code") from error
                actors[worker] = actor.remote(shared)
                lost = [(other, at, actors[at].run.remote(other) if at == worker else ref, n)
                        for other, at, ref, n in waiting]
                waiting = deque([(item, worker, actors[worker].run.remote(item), kills + 1), *lost])
                continue
            except ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            yield item, answer


class RayGrid(HomesGrid):
    """Nodes in `workers` Ray actors, one CPU each.

    factory    makes the Client inside each actor (sent by Ray's own transport)
    placement  ledger bucket of a household index: the home lives in worker bucket mod workers
    batch      messages per batch, rounded up to whole buckets
    A worker that dies is replaced and its unanswered messages are sent again with the same ids. A node that kills its
    worker twice while alone in a batch is quarantined (`quarantined` holds its index): its answer is an error.
    Where a cluster has no room for a replacement within PATIENCE seconds (its machine is gone), the homes of the dead
    worker move in with those of a living one (`moved` counts it).
    What messages bring is put into Ray's store once for all that bring the same object (`puts` counts it).
    """

    def __init__(self, factory: Callable[[], Client], count: int, placement: Callable[[int], int], *,
                 workers: int = 2, batch: int = 256, address: str = "") -> None:
        super().__init__(count)
        if workers < 1 or batch < 1:
            raise ValueError(f"engine.workers = {workers}, engine.batch = {batch}: both must be at least 1 "
                             "(workers = 0 means this process: LocalGrid)")
        self.workers, self.batch, self.quarantined, self.replaced, self.moved = workers, batch, set(), 0, 0
        self.puts = 0
        self._elsewhere = bool(address)
        self._buckets = [placement(index) for index in range(count)]
        self._session = ray_session(workers, address)
        self._ray = self._session.__enter__()
        try:
            if address and workers > (cpus := int(self._ray.cluster_resources().get("CPU", 0))):
                raise ValueError(f"engine.workers = {workers} on a cluster of {cpus} CPUs: each worker takes one, so they "
                                 f"would be waited for without end; ask for at most {cpus}")
            self._factory = self._ray.put(factory)
            spread = {"scheduling_strategy": "SPREAD"} if address else {}
            self._actor = self._ray.remote(num_cpus=1, max_restarts=0, **spread)(Worker)
            self._actors = [self._spawn() for _ in range(workers)]
            self.pids()
        except BaseException:
            self.close()
            raise

    def pids(self) -> list[int]:
        """Process ids of the workers, once all of them are up."""
        return self._ray.get([actor.ready.remote() for actor in self._actors])

    def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.__exit__(None, None, None)

    def deliver(self, mail: Mail, at_once: int) -> Iterator[tuple[int, Message]]:
        window = at_once if at_once >= len(mail.messages) else max(1, at_once // WINDOWS)
        spans = deque(enumerate(mail.spans(window)))
        unanswered: dict[int, int] = {}  # window -> messages without a reply
        queues: list[deque[Batch]] = [deque() for _ in range(self.workers)]
        flying: dict[object, Batch] = {}
        broadcast: dict[int, object] = {}
        while spans or unanswered:
            while spans and spans[0][0] < min(unanswered, default=spans[0][0]) + WINDOWS:
                number, span = spans.popleft()
                unanswered[number] = len(span)
                for batch in cut(mail, span, self._buckets, self.workers, self.batch):
                    queues[batch.worker].append(batch)
            positions, answers = self._launch(mail, queues, flying, broadcast)
            if not positions:
                positions, answers = self._land(mail, queues, flying)
            answers.reverse()
            for at in positions:  # popped, so that an answer is let go when its reply is
                content = answers.pop()
                yield at, flower.reply(mail.messages[at],
                                       content if isinstance(content, int) else flower.content_from(content))
            for number, count in Counter(at // window for at in positions).items():
                unanswered[number] -= count
                if not unanswered[number]:
                    del unanswered[number]

    def _land(self, mail: Mail, queues: list[deque], flying: dict) -> tuple[list[int], list]:
        """Positions and answers of a batch that is done; none where a worker died, whose batches are queued again."""
        done, _ = self._ray.wait(list(flying), num_returns=1)
        batch = flying.pop(done[0])
        try:
            return batch.positions, self._ray.get(done[0])
        except self._ray.exceptions.RayActorError:
            dead = self._actors[batch.worker]
            lost = [batch,
                    *(flying.pop(ref) for ref in [r for r, b in flying.items() if self._actors[b.worker] is dead])]
            self._replace(dead)
            for again in lost:
                queues[again.worker].extendleft(reversed(self._after_death(mail, again)))
            return [], []

    def _launch(self, mail: Mail, queues: list[deque], flying: dict,
                broadcast: dict[int, object]) -> tuple[list[int], list]:
        """Send what the workers can take; positions and answers of quarantined homes, which nobody asks."""
        nobody: list[int] = []
        for worker, queue in enumerate(queues):
            mine = [batch for batch in flying.values() if self._actors[batch.worker] is self._actors[worker]]
            while queue and len(mine) < IN_FLIGHT and not any(batch.kills for batch in mine):
                if queue[0].kills and mine:
                    break  # a suspect flies alone, so that nobody else is blamed for a death
                batch = queue.popleft()
                if self.quarantined:
                    nobody += [at for at in batch.positions if mail.homes[at] in self.quarantined]
                    batch.positions = [at for at in batch.positions if mail.homes[at] not in self.quarantined]
                if not batch.positions:
                    continue
                content, kind, group = mail.kinds[batch.form]
                if id(content) not in broadcast:
                    broadcast[id(content)] = self._ray.put(content)
                    self.puts += 1
                flying[self._actors[worker].run.remote(
                    broadcast[id(content)], kind, group, [mail.first + at for at in batch.positions],
                    [mail.homes[at] for at in batch.positions])] = batch
                mine.append(batch)
        return nobody, [flower.NODE_UNAVAILABLE] * len(nobody)

    def _after_death(self, mail: Mail, batch: Batch) -> list[Batch]:
        """What is queued again."""
        batch.kills += 1
        if len(batch.positions) == 1 and batch.kills > KILLS_BEFORE_QUARANTINE:
            self.quarantined.add(mail.homes[batch.positions[0]])  # not sent again: _launch answers for it
        if len(batch.positions) > 1 and batch.kills >= KILLS_BEFORE_QUARANTINE:
            halves = batch.halves()
            for half in halves:
                half.kills = 1 if len(half.positions) == 1 else batch.kills - 1
            return halves
        return [batch]

    def _spawn(self):
        return self._actor.remote(self._factory, self.count)

    def _replace(self, dead) -> None:
        """Another actor for every worker of a dead one."""
        new = self._spawn()
        self.replaced += 1
        if self._elsewhere and not self._ray.wait([new.ready.remote()], timeout=PATIENCE)[0]:
            self._ray.kill(new)
            living = [actor for actor in self._actors if actor is not dead]
            if not living:
                raise RunFailed(f"the last worker died and the cluster has no CPU for another within {PATIENCE:g} s: "
                                "look at `ray status`, then fedenergy resume goes on where this run stopped")
            new = living[0]
            self.moved += 1
        self._actors = [new if actor is dead else actor for actor in self._actors]
