"""The rule of the ledger, without a file: what is charged, what is stored already, what is over the cap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from fedenergy.box.ledger_rows import (
    CHARGED,
    CONFLICT,
    HOME,
    OVER_CAP,
    PERIOD,
    STORED,
    ZERO,
    Charge,
    Outcome,
    Row,
    row_hash,
)
from fedenergy.box.ledger_sqlite import CellHead, Head
from fedenergy.box.receipts import Receipt

Key = tuple[str, str]
Block = tuple[str, int, int, int]
NEW = Head(0, ZERO, 0)


@dataclass
class State:
    """What a transaction read about the households that it touches; decide() moves it along."""

    stored: dict[Key, Row]
    heads: dict[str, Head]
    cells: dict[Key, CellHead]
    blocks: dict[str, list[Block]]
    deltas: dict[str, list[tuple[str, float]]] = field(default_factory=dict)  # household -> (cell, delta) of its rows


def decide(charges: Sequence[Charge], state: State, known: Mapping[str, Receipt], draw: Callable[[int], bytes]
           ) -> tuple[list[Outcome], list[Row], set[str]]:
    """Outcomes, rows to store, and the households that need a receipt before anything is revealed.

    Moves the heads of state along, so that several charges of one household see each other.
    """
    outcomes: list[Outcome] = []
    rows: list[Row] = []
    fresh: set[str] = set()
    stored, heads, cells, blocks = state.stored, state.heads, state.cells, state.blocks
    for index, charge in enumerate(charges):
        household, cell, scope, micro = charge.household, charge.cell, charge.scope, charge.epsilon_micro
        head, held = heads.get(household, NEW), cells.get((household, cell))
        if scope == PERIOD:
            spent = overlap(charge, blocks[household])
        else:
            spent = head.spent_micro if scope == HOME else held.spent_micro if held else 0
        if (row := stored.get((household, charge.query_id))) is not None:
            if row.content_digest != charge.content_digest:
                outcomes.append(Outcome(CONFLICT, None, spent, f"household {household}: query id {charge.query_id} was "
                                        f"used for another query: a changed query needs an id of its own"))
                continue
            if row.sequence > known.get(household, NEW)[0]:
                fresh.add(household)
            outcomes.append(Outcome(STORED, row.payload, spent))
            continue
        if problem := charge.problem():
            outcomes.append(Outcome(OVER_CAP, None, spent, f"household {household}: {problem}"))
            continue
        if micro is not None and not (spent + micro <= charge.cap_micro):
            outcomes.append(Outcome(OVER_CAP, None, spent, f"household {household}: {spent} spent + {micro} asked > "
                                    f"cap {charge.cap_micro} micro-epsilon (scope {scope})"))
            continue
        if charge.delta and charge.delta_cap is not None:
            before = [delta for where, delta in state.deltas.get(household, ()) if scope == HOME or where == cell]
            if not sum(map(exactly, (*before, charge.delta))) <= exactly(charge.delta_cap):
                outcomes.append(Outcome(OVER_CAP, None, spent, f"household {household}: delta {charge.delta:g} asked, "
                                        f"{len(before)} answers before it had one, cap {charge.delta_cap:g}"))
                continue
            state.deltas.setdefault(household, []).append((cell, charge.delta))
        payload = draw(index)
        if not isinstance(payload, bytes):
            raise TypeError(f"draw({index}) returned a {type(payload).__name__}: the ledger stores bytes")
        row = Row(household, charge.query_id, charge.content_digest, cell, charge.block_from, charge.block_to,
                  charge.unit, charge.relation, charge.mechanism, charge.trust, micro, float(charge.delta),
                  charge.rho_micro, payload, head.sequence + 1, head.hash)
        added, cap = (0, 0) if micro is None else (micro, charge.cap_micro)
        heads[household] = Head(row.sequence, row_hash(row), head.spent_micro + added)
        held = held or CellHead(0, 0, scope)
        cells[household, cell] = CellHead(held.spent_micro + added, max(held.cap_micro, cap), scope)
        if added and household in blocks:
            blocks[household].append((cell, charge.block_from, charge.block_to, added))
        stored[household, charge.query_id] = row
        rows.append(row)
        fresh.add(household)
        outcomes.append(Outcome(CHARGED, payload, spent + added))
    return outcomes, rows, fresh


def exactly(delta: float) -> Decimal:
    """A delta as it was written: three times 1e-5 are 3e-5."""
    return Decimal(repr(float(delta)))


def overlap(charge: Charge, blocks: Iterable[Block]) -> int:
    """Micro-epsilon already spent on days that the charge reads."""
    return sum(micro for cell, start, end, micro in blocks
               if start < charge.block_to and charge.block_from < end and (charge.all_cells or cell == charge.cell))
