"""Is a ledger file the one that its receipts speak of, and do its rows lead to its heads?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fedenergy.box.ledger_decide import NEW, Key
from fedenergy.box.ledger_rows import HOME, PERIOD, ZERO, LedgerBroken, Problem, Row, row_hash
from fedenergy.box.ledger_sqlite import CellHead, Head, SqliteStore
from fedenergy.box.receipts import Receipt

PAGE = 500
REMEDY = "put back its newest copy, or start a ledger in another folder"


def broken(store: SqliteStore, what: str) -> LedgerBroken:
    return LedgerBroken(f"ledger file {store.path.name} {what}: {REMEDY}")


def compare(store: SqliteStore, known: Mapping[str, Receipt], heads: Mapping[str, Head]) -> None:
    """Every receipt is of a row that the file holds; the file may be ahead (killed between COMMIT and receipt)."""
    ahead: dict[tuple[str, int], bytes] = {}
    for household, (sequence, receipt) in known.items():
        head = heads.get(household, NEW)
        if head.sequence < sequence:
            raise broken(store, "is older than its receipts (an earlier copy was put back)")
        if head.sequence > sequence:
            ahead[household, sequence + 1] = receipt
        elif head.hash != receipt:
            raise broken(store, f"and its receipts disagree on row {sequence} of {household}")
    links = store.at(ahead)
    for (household, sequence), receipt in ahead.items():
        follower = links.get((household, sequence))
        if follower is None or follower.previous_hash != receipt:
            raise broken(store, f"and its receipts disagree on row {sequence - 1} of {household}")


def recount(store: SqliteStore, households: Iterable[str], heads: Mapping[str, Head]) -> None:
    """Heads and cell heads agree with the rows, and the newest row hashes to the head."""
    households = list(households)
    beyond = ((household, heads.get(household, NEW).sequence + 1) for household in households)
    if extra := store.at(beyond):
        raise broken(store, f"is damaged: {min(extra)[0]} has a row behind its head")
    totals: dict[str, tuple[int, int, int]] = {}
    spent: dict[Key, int] = {}
    for household, cell, rows, sequence, micro in store.sums(places(households, heads)):
        count, largest, total = totals.get(household, (0, 0, 0))
        totals[household] = count + rows, max(largest, sequence), total + micro
        spent[household, cell] = spent.get((household, cell), 0) + micro
    newest = store.at((household, heads[household].sequence) for household in households if household in heads)
    hashes = {row.household: row_hash(row) for row in newest.values()}
    cells = store.cells(spent)
    for household in households:
        head = heads.get(household, NEW)
        if totals.get(household, (0, 0, 0)) != (head.sequence, head.sequence, head.spent_micro):
            raise broken(store, f"is damaged: the rows of {household} do not add up to its head")
        if hashes.get(household, ZERO) != head.hash:
            raise broken(store, f"is damaged: the newest row of {household} does not match its head")
    for (household, cell), micro in spent.items():
        if (household, cell) not in cells or cells[household, cell].spent_micro != micro:
            raise broken(store, f"is damaged: what {household} spent in cell {cell} is not the sum of its rows")


def sound(store: SqliteStore, rows: Iterable[Row], heads: Mapping[str, Head]) -> None:
    """Rows about to be shown again match the link that follows each (or the head)."""
    rows = list(rows)
    links = store.at((row.household, row.sequence + 1) for row in rows
                     if row.sequence < heads.get(row.household, NEW).sequence)
    for row in rows:
        follower = links.get((row.household, row.sequence + 1))
        expected = follower.previous_hash if follower else heads.get(row.household, NEW).hash
        if row_hash(row) != expected:
            raise broken(store, f"is damaged: row {row.sequence} of {row.household} does not match the chain")


def places(households: Iterable[str], heads: Mapping[str, Head]) -> Iterator[tuple[str, int]]:
    """(household, sequence) of every row up to the heads, in that order."""
    return ((household, number) for household in households
            for number in range(1, heads.get(household, NEW).sequence + 1))


def chain_problem(rows: Iterable[Row], head: Head) -> str:
    """Where the chain of one household breaks, or ""."""
    previous, count = ZERO, 0
    for count, row in enumerate(rows, start=1):
        if row.sequence != count or row.previous_hash != previous:
            return f"the chain breaks at row {count}"
        previous = row_hash(row)
    if count != head.sequence or previous != head.hash:
        return f"the chain ends at row {count}, not at the head's row {head.sequence} and hash"
    return ""


def histories(store: SqliteStore, heads: Mapping[str, Head]) -> Iterator[tuple[str, list[Row]]]:
    """(household, its rows up to the head, in order), sorted by household."""
    households = sorted(heads)
    for start in range(0, len(households), PAGE):
        page = households[start:start + PAGE]
        rows: dict[str, list[Row]] = {household: [] for household in page}
        for row in store.at(places(page, heads)).values():
            rows[row.household].append(row)
        yield from rows.items()


def verify(store: SqliteStore, known: Mapping[str, Receipt]) -> Iterator[Problem]:
    """Everything that is wrong with a file: pages, chains, heads, sums, caps, receipts. One read transaction."""
    name = store.path.name
    yield from (Problem(name, "", text) for text in store.integrity())
    heads, count = store.all_heads(), store.count()
    cells: dict[str, dict[str, CellHead]] = {}
    for (household, cell), held in store.all_cells().items():
        cells.setdefault(household, {})[cell] = held
    if count != (led := sum(head.sequence for head in heads.values())):
        yield Problem(name, "", f"holds {count} rows, its heads lead to {led}")
    for household, rows in histories(store, heads):
        try:
            texts = [chain_problem(rows, heads[household]),
                     *_sum_problems(rows, heads[household], cells.get(household, {}))]
        except (TypeError, ValueError, AttributeError) as error:  # a damaged file may hold values of any type
            texts = [f"a row is unreadable ({error})"]
        yield from (Problem(name, household, text) for text in texts if text)
    for household, receipt in known.items():
        try:
            compare(store, {household: receipt}, heads)
        except LedgerBroken as error:
            yield Problem(name, household, str(error))


def _sum_problems(rows: list[Row], head: Head, cells: Mapping[str, CellHead]) -> Iterator[str]:
    spent: dict[str, int] = {row.cell: 0 for row in rows}
    running, total = {}, 0
    for row in rows:
        total += row.epsilon_micro or 0
        spent[row.cell] += row.epsilon_micro or 0
        if row.epsilon_micro is not None:  # unbounded answers are outside the cap: their cells have none
            running[row.cell] = total
    if head.spent_micro != total:
        yield f"the head says {head.spent_micro} micro-epsilon, the rows {total}"
    for cell in spent.keys() | cells.keys():
        held = cells.get(cell, CellHead(0, 0, ""))
        if held.spent_micro != spent.get(cell, 0):
            yield f"cell {cell}: the head says {held.spent_micro} micro-epsilon, the rows {spent.get(cell, 0)}"
        charged = (_busiest_day(rows, cell) if held.scope == PERIOD else
                   running.get(cell, 0) if held.scope == HOME else spent.get(cell, 0))
        if not (charged <= held.cap_micro):
            yield f"cell {cell}: {charged} micro-epsilon charged over the cap {held.cap_micro}"


def _busiest_day(rows: list[Row], cell: str) -> int:
    """Micro-epsilon of the day that most answers of a cell read."""
    edges: dict[int, int] = {}
    for row in rows:
        if row.cell == cell and row.epsilon_micro:
            edges[row.block_from] = edges.get(row.block_from, 0) + row.epsilon_micro
            edges[row.block_to] = edges.get(row.block_to, 0) - row.epsilon_micro
    level = most = 0
    for day in sorted(edges):
        level += edges[day]
        most = max(most, level)
    return most
