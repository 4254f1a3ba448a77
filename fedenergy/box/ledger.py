"""The privacy ledger: what every household has spent, and the answers that it bought, durable before they are revealed.

64 SQLite files by household hash, whatever the number of workers; or a PostgreSQL data base (ledger_postgres.py).

Guarantees, for processes that race, crash, repeat and replay:
1. nothing is revealed before its charge is durable, and its receipt with it;
2. the charges of a household never exceed its cap;
3. one (household, query id) has one answer, byte for byte; asking again costs nothing;
4. nothing is ever refunded; 5. an id with other content is a conflict;
6. a file that is missing, older than its receipts or damaged refuses all its households and says why.
Clocks play no part. Not covered: a ledger and its receipts put back together from one older backup.

| case                                   | outcome                                                         |
|----------------------------------------|-----------------------------------------------------------------|
| epsilon NaN, float, 0, negative        | over_cap                                                        |
| trust `open` (epsilon None)            | charged: a row without epsilon ("unbounded"), outside the cap   |
| draw raises                            | its file rolls back: no charge of it, nothing revealed          |
| killed before COMMIT                   | no charge, nothing revealed                                     |
| killed after COMMIT                    | charged; asking again returns the stored bytes                  |
| disk full, file locked                 | broken, for this call only: ask again                           |
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from fedenergy.box.ledger_file import LedgerFile
from fedenergy.box.ledger_postgres import Postgres
from fedenergy.box.ledger_rows import (
    BUCKETS,
    Charge,
    LedgerBroken,
    LedgerUnavailable,
    Outcome,
    Problem,
    Row,
    StoredRow,
    bucket,
)
from fedenergy.box.ledger_sqlite import SqliteFiles
from fedenergy.box.receipts import ReceiptLog

__all__ = ["BUCKETS", "Charge", "Ledger", "LedgerBroken", "LedgerUnavailable", "Outcome", "Problem", "Row", "StoredRow",
           "bucket"]

WINDOW = 8



# connections inherited by fork: SQLite forbids using them, and closing them would drop locks
_left_to_parent: list[Any] = []


class Plain(Executor):
    """An Executor in the thread that submits."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class Ledger:
    """The charges of a population; opens its files lazily, works after fork and from many threads and processes.

    path      folder of 00.sqlite to 63.sqlite (0700, files 0600)
    receipts  folder of the Authenticator's receipts (default: path/receipts); better on another disk

    >>> import tempfile
    >>> charge = Charge("h1", "q1", b"digest", "cell", 0, 0, "household", "replace-one", "laplace", "local",
    ...                 epsilon_micro=600_000, cap_micro=1_000_000)
    >>> with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger") as ledger:
    ...     first = ledger.settle([charge], draw=lambda i: b"noised")
    ...     again = ledger.settle([charge], draw=lambda i: b"other noise")
    ...     first[0].status, again[0].status, again[0].payload, ledger.spent("h1")
    ('charged', 'stored', b'noised', 600000)
    """

    def __init__(self, path: Path, receipts: Path | None = None) -> None:
        self.path = Path(path)
        self.receipts = self.path / "receipts" if receipts is None else Path(receipts)
        self._start()

    def settle(self, charges: Sequence[Charge], draw: Callable[[int], bytes]) -> list[Outcome]:
        """Charge, draw, store, commit; outcomes in the order of charges.

        draw  called inside the transaction with the position in charges, at most once each, and only where the answer
              is new and within the cap; returns the noised bytes (or a Deposit's digest) to be stored and revealed.
        One transaction and one receipt per file; while up to WINDOW files wait for the disk, the next is drawn. Several
        charges of one household see each other.
        Errors: what draw raises, after a rollback of that file: of it nothing was charged or revealed. Files before it
        keep their charges (asking again returns their stored bytes, free); files after were not begun.
        """
        groups = self._grouped(range(len(charges)), key=lambda index: charges[index].household)
        outcomes: list[Outcome | None] = [None] * len(charges)
        with self._locked(), self._pool(len(groups)) as pool:
            files = {number: self._file(number) for number in groups}
            list(pool.map(lambda file: file.warm(create=True), files.values()))
            self._name_receipts(files.values())
            flying: deque[tuple[list[int], Future[list[Outcome]]]] = deque()

            def land() -> None:
                places, settled = flying.popleft()
                for place, outcome in zip(places, settled.result(), strict=True):
                    outcomes[place] = outcome

            for number, places in groups.items():  # ascending: processes that wait for each other's files cannot deadlock
                begun = files[number].begin([charges[place] for place in places],
                                            lambda i, places=places: draw(places[i]))
                flying.append((places, pool.submit(begun.finish)))
                if len(flying) > WINDOW:
                    land()
            while flying:
                land()
        return outcomes

    def lookup(self, keys: Iterable[tuple[str, str]],
               broken: dict[str, str] | None = None) -> dict[tuple[str, str], StoredRow]:
        """(household, query id) -> stored row, for the answers that exist: asked before any model is fitted.

        Charges nothing. Compare content_digest before use: a row of another query is a conflict, which settle reports.
        broken  where given, homes whose file cannot be read are put into it with the reason; else LedgerBroken or
                LedgerUnavailable: an answer that cannot be read is not one that was never given
        """
        found: dict[tuple[str, str], StoredRow] = {}
        with self._locked():
            for number, group in self._warmed(keys).items():
                try:
                    found.update(self._file(number).lookup(group))
                except (LedgerBroken, LedgerUnavailable) as error:
                    if broken is None:
                        raise
                    broken.update((household, str(error)) for household, _ in group)
        return found

    def paid(self, query_id: str) -> dict[str, int]:
        """Micro-epsilon that each household paid for a query (unbounded rows: 0). Raises LedgerBroken, LedgerUnavailable."""
        found: dict[str, int] = {}
        with self._locked():
            for number in range(BUCKETS):
                found.update(self._file(number).paid(query_id))
        return found

    def spent(self, household: str, cell: str | None = None) -> int:
        """Micro-epsilon spent by a household in a cell (None: in all). Raises LedgerBroken, LedgerUnavailable."""
        return self.spent_many([(household, cell)])[household, cell]

    def spent_many(self, pairs: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], int]:
        """spent() of many (household, cell), one read per file."""
        found: dict[tuple[str, str | None], int] = {}
        with self._locked():
            for number, group in self._warmed(pairs).items():
                found.update(self._file(number).spent(group))
        return found

    def history(self, household: str, cell: str | None = None) -> list[Row]:
        """A household's rows in the order charged, its whole chain checked. Raises LedgerBroken, LedgerUnavailable."""
        with self._locked():
            rows = self._file(bucket(household)).history(household)
        return [row for row in rows if cell in (None, row.cell)]

    def rows(self) -> Iterator[Row]:
        """All rows, by file, household and sequence. Raises LedgerBroken, LedgerUnavailable."""
        for number in range(BUCKETS):
            with self._locked():
                pages = self._file(number).pages()
            while True:
                with self._locked():
                    page = next(pages, None)
                if page is None:
                    break
                yield from page

    def verify(self) -> list[Problem]:
        """What is wrong with pages, chains, heads, sums, caps and receipts; [] for a sound ledger. Reads all rows."""
        with self._locked():
            return [problem for number in range(BUCKETS) for problem in self._file(number).verify()]

    def close(self) -> None:
        """Close the files; the ledger opens them again when asked."""
        with self._locked():
            for file in self._files.values():
                file.close()
            self._files.clear()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        self._process, self._lock, self._busy = os.getpid(), threading.RLock(), False
        self._files: dict[int, LedgerFile] = {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One thread at a time, with this process's own files."""
        if os.getpid() != self._process:
            _left_to_parent.append(self._files)
            self._start()
        with self._lock:
            if self._busy:
                raise RuntimeError("draw may not use the ledger that calls it: read what it needs before settle")
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def _file(self, number: int) -> LedgerFile:
        if number not in self._files:
            name = f"{number:02d}"
            place = Postgres.of(self.path) or SqliteFiles()
            self._files[number] = LedgerFile(self.path / f"{name}.sqlite", ReceiptLog(self.receipts / f"{name}.log"), place)
        return self._files[number]

    def _warmed(self, pairs: Iterable[tuple[str, Any]]) -> dict[int, list[tuple[str, Any]]]:
        """Pairs by file, the files opened."""
        groups = self._grouped(pairs, key=lambda pair: pair[0])
        if cold := [number for number in groups if number not in self._files]:
            with self._pool(len(cold)) as pool:
                list(pool.map(lambda file: file.warm(create=False), [self._file(number) for number in cold]))
        return groups

    @staticmethod
    def _name_receipts(files: Iterable[LedgerFile]) -> None:
        """One sync of the folder for all logs of receipts that are new; each file does it by itself where this fails."""
        new = [file for file in files if file.unnamed]
        if len(new) > 1:
            with contextlib.suppress(LedgerUnavailable):
                new[0].name_receipts()
                for file in new:
                    file.unnamed = False

    @staticmethod
    def _pool(tasks: int) -> Executor:
        """A few threads (waiting for the disk leaves the interpreter free); plain for a single task."""
        return ThreadPoolExecutor(min(WINDOW, tasks)) if tasks > 1 else Plain()

    @staticmethod
    def _grouped(items: Iterable[Any], key: Callable[[Any], str]) -> dict[int, list[Any]]:
        groups: dict[int, list[Any]] = {}
        for item in items:
            groups.setdefault(bucket(key(item)), []).append(item)
        return dict(sorted(groups.items()))
