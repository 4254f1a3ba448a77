"""One ledger file with its receipts: opened with suspicion, charged in one transaction.

BEGIN IMMEDIATE -> same (household, query id)? the stored bytes -> spent + epsilon <= cap? -> draw the noise -> store
charge and noised bytes -> COMMIT -> receipts -> only then reveal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fedenergy.box import ledger_check as check
from fedenergy.box.ledger_decide import NEW, Block, Key, State, decide
from fedenergy.box.ledger_postgres import Postgres
from fedenergy.box.ledger_rows import BROKEN, Charge, LedgerBroken, LedgerUnavailable, Outcome, Problem, Row
from fedenergy.box.ledger_sqlite import Head, SqliteFiles, SqliteStore
from fedenergy.box.receipts import Receipt, ReceiptLog, ReceiptsBroken, make_folder, merge, sync_folder

STEPS = ("begun", "checked", "drawn", "stored", "committed", "receipted")


def on_step(step: str) -> None:
    """Called at each of STEPS: a test replaces it to kill the process there."""


class LedgerFile:
    """The households of one bucket, as one process sees them; other processes may write the same file."""

    def __init__(self, path: Path, log: ReceiptLog, place: SqliteFiles | Postgres) -> None:
        self.path, self.log, self.place = path, log, place
        self.store: SqliteStore | None = None
        self._known: dict[str, Receipt] = {}
        self._checked: set[str] = set()
        self._broken = ""
        self.filled = False  # a new file gets its tables with its first charges, in one transaction
        self.unnamed = False  # its log of receipts was made, and the folder not synced yet

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        self.store = None

    def warm(self, create: bool) -> None:
        """Open the file if it can be opened, so that many are opened at once; who needs it is told why it cannot."""
        with contextlib.suppress(LedgerBroken, LedgerUnavailable):
            self.open(create)

    def begin(self, charges: Sequence[Charge], draw: Callable[[int], bytes]) -> Pending:
        """Charge inside a transaction that stays open; draw(i) makes the noised bytes of the i-th charge.

        What draw raises passes through, after a rollback. Nothing may be revealed before finish() returns it.
        """
        pending = Pending(self, len(charges))
        try:
            store = self.open(create=True)
            self.name_receipts()
            pending.stack.enter_context(self._transaction(store, write=True))
            on_step("begun")
            with self._readable(store):
                if not self.filled and not store.schema():  # another process may have been faster
                    store.create()
                state = self._read(store, charges)
            on_step("checked")
            pending.outcomes, rows, fresh = decide(charges, state, self._known, draw)
            on_step("drawn")
            if rows:
                store.add(rows, {row.household: state.heads[row.household] for row in rows},
                          {(row.household, row.cell): state.cells[row.household, row.cell] for row in rows})
            pending.heads = {household: state.heads[household] for household in fresh}
            on_step("stored")
        except BaseException as error:
            pending.cancel(error)
        return pending

    def lookup(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """Stored rows; one that was charged but has no receipt yet gets it before it is shown."""
        if (store := self.open(create=False)) is None:
            return {}
        with self._transaction(store, write=False), self._readable(store):
            stored = store.stored(keys)
            heads = self._heads(store, {household for household, _ in stored})
            check.sound(store, stored.values(), heads)
        if stored:
            self.write_receipts({row.household: heads[row.household] for row in stored.values()
                                 if row.sequence > self._known.get(row.household, NEW)[0]})
        return stored

    def spent(self, pairs: Sequence[tuple[str, str | None]]) -> dict[tuple[str, str | None], int]:
        """Micro-epsilon by (household, cell); cell None: all cells."""
        if (store := self.open(create=False)) is None:
            return dict.fromkeys(pairs, 0)
        with self._transaction(store, write=False), self._readable(store):
            heads = self._heads(store, {household for household, _ in pairs})
            cells = store.cells((household, cell) for household, cell in pairs if cell is not None)
        return {(household, cell): heads.get(household, NEW).spent_micro if cell is None
                else cells[household, cell].spent_micro if (household, cell) in cells else 0
                for household, cell in pairs}

    def paid(self, query_id: str) -> list[tuple[str, int]]:
        """(household, micro-epsilon) of every row of a query."""
        if (store := self.open(create=False)) is None:
            return []
        with self._transaction(store, write=False), self._readable(store):
            return store.paid(query_id)

    def history(self, household: str) -> list[Row]:
        """All rows of a household in the order charged, its whole chain checked."""
        if (store := self.open(create=False)) is None:
            return []
        with self._transaction(store, write=False), self._readable(store):
            heads = self._heads(store, {household})
            rows = list(store.at(check.places([household], heads)).values())
            if problem := check.chain_problem(rows, heads.get(household, NEW)):
                raise check.broken(store, f"is damaged: {household}: {problem}")
        return rows

    def pages(self) -> Iterator[list[Row]]:
        """All rows by household and sequence, in pages; no transaction stays open between them."""
        if (store := self.open(create=False)) is None:
            return
        with self._transaction(store, write=False), self._readable(store):
            heads = store.all_heads()
        households = sorted(heads)
        for start in range(0, len(households), check.PAGE):
            with self._transaction(store, write=False), self._readable(store):
                page = store.at(check.places(households[start:start + check.PAGE], heads))
            yield list(page.values())

    def verify(self) -> list[Problem]:
        """Every problem found; a file that cannot be opened is one problem."""
        try:
            if (store := self.open(create=False)) is None:
                return []
            with self._transaction(store, write=False), self._readable(store):
                return list(check.verify(store, self._known))
        except (LedgerBroken, LedgerUnavailable) as error:
            return [Problem(self.path.name, "", str(error))]

    def open(self, create: bool) -> SqliteStore | None:
        """The store, compared with its receipts; None where there is no ledger yet and none is asked for.

        Raises LedgerBroken (then always, in this process) or LedgerUnavailable.
        """
        if self._broken:
            raise LedgerBroken(self._broken)
        if self.store is not None and not self.store.in_place():
            self.close()
        if self.store is None:
            try:
                self.store = self._open(create)
            except (LedgerBroken, ReceiptsBroken) as error:
                self._broken = str(error)
                raise LedgerBroken(self._broken) from error
            except OSError as error:
                raise LedgerUnavailable(f"ledger file {self.path.name} cannot be opened ({error})") from error
        if self.store is not None and not self.filled and not create:
            with self._transaction(self.store, write=False):
                self.filled = bool(self.store.schema())
            return self.store if self.filled else None
        return self.store

    def _open(self, create: bool) -> SqliteStore | None:
        self._checked = set()
        logged = self.log.load(durable=False) if self.log.exists() else {}  # before the heads: receipts follow commits
        for household, receipt in logged.items():
            merge(self._known, household, receipt)
        there = self.place.exists(self.path)
        if not there and self._known:
            raise LedgerBroken(f"ledger file {self.path.name} is missing, yet receipts show {len(self._known)} charged "
                               f"households: {check.REMEDY}")
        if not there and not create:
            return None
        make_folder(self.path.parent)
        store = self.place.open(self.path, create=not there)
        try:
            with store.transaction(write=False), self._readable(store):
                filled = store.schema()
                heads = store.all_heads() if filled else {}
                check.compare(store, self._known, heads)
            if heads and not self.log.exists():
                raise LedgerBroken(f"ledger file {self.path.name} holds charges, but its receipts {self.log.path.name} "
                                   f"are missing: put back their newest copy, or start a ledger in another folder")
            if create and not filled:
                self.log.create(durable=False)
                self.unnamed = True
        except BaseException:
            store.close()
            raise
        if not filled and not create:
            store.close()
            return None
        self.filled = bool(filled)
        return store

    def name_receipts(self) -> None:
        """The log of receipts is durable before any row: a file with rows and without receipts is refused.

        Raises LedgerUnavailable.
        """
        if self.unnamed:
            try:
                sync_folder(self.log.path.parent)
            except OSError as error:
                raise LedgerUnavailable(f"receipts {self.log.path.name} cannot be written ({error}): nothing was charged, "
                                        f"ask again when the disk has room") from error
            self.unnamed = False

    def _read(self, store: SqliteStore, charges: Sequence[Charge]) -> State:
        heads = self._heads(store, {charge.household for charge in charges})
        stored = store.stored((charge.household, charge.query_id) for charge in charges)
        check.sound(store, stored.values(), heads)
        cells = store.cells({(charge.household, charge.cell) for charge in charges})
        blocks: dict[str, list[Block]] = {charge.household: [] for charge in charges if charge.period}
        for household, *block in store.blocks(check.places(blocks, heads)):
            blocks[household].append(tuple(block))
        deltas: dict[str, list[tuple[str, float]]] = {}
        for household, cell, delta in store.deltas(check.places({c.household for c in charges if c.delta}, heads)):
            deltas.setdefault(household, []).append((cell, delta))
        return State(stored, heads, cells, blocks, deltas)

    def _heads(self, store: SqliteStore, households: Iterable[str]) -> dict[str, Head]:
        """Heads that follow from what this process knows; on first touch recounted from the rows, too."""
        households = sorted(households)
        heads = store.heads(households)
        check.compare(store, {home: self._known[home] for home in households if home in self._known}, heads)
        if new := [household for household in households if household not in self._checked]:
            check.recount(store, new, heads)
            self._checked.update(new)
        return heads

    @contextlib.contextmanager
    def _transaction(self, store: SqliteStore, write: bool) -> Iterator[None]:
        """A transaction after which a damaged file stays refused, whoever asks."""
        try:
            with store.transaction(write):
                yield
        except LedgerBroken as error:
            self._broken = str(error)
            raise

    @staticmethod
    @contextlib.contextmanager
    def _readable(store: SqliteStore) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError, AttributeError) as error:  # a damaged file may hold values of any type
            raise check.broken(store, f"is unreadable ({error})") from error

    def write_receipts(self, heads: dict[str, Head]) -> None:
        """Called before rows are shown, with the heads that have no receipt yet."""
        receipts = {household: (head.sequence, head.hash) for household, head in heads.items()}
        try:
            if receipts:
                self.log.append(receipts)
            else:
                self.log.settle()
        except OSError as error:
            raise LedgerUnavailable(f"receipts {self.log.path.name} cannot be written ({error}): charges that are "
                                    f"stored stay, nothing was revealed; ask again when the disk has room") from error
        for household, receipt in receipts.items():
            merge(self._known, household, receipt)


class Pending:
    """Charges of one file between their transaction's beginning and its end."""

    def __init__(self, file: LedgerFile, count: int) -> None:
        self.file, self.count = file, count
        self.stack = contextlib.ExitStack()
        self.outcomes: list[Outcome] = []
        self.heads: dict[str, Head] = {}
        self._refused = ""

    def finish(self) -> list[Outcome]:
        """COMMIT, then the receipts; only then the outcomes. From any thread."""
        try:
            self.stack.close()
            if not self._refused:
                self.file.filled = True
                on_step("committed")
                self.file.write_receipts(self.heads)
                on_step("receipted")
        except (LedgerBroken, LedgerUnavailable) as error:
            self._refused = str(error)
        return [Outcome(BROKEN, None, 0, self._refused)] * self.count if self._refused else self.outcomes

    def cancel(self, error: BaseException) -> None:
        """Roll back; a ledger's own error becomes the reason of a refusal, any other is raised."""
        try:
            if not self.stack.__exit__(type(error), error, error.__traceback__):
                raise error
        except (LedgerBroken, LedgerUnavailable) as translated:
            self._refused = str(translated)
