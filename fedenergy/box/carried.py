"""What a renewed agreement carries over, as rows of the ledger.

An agreement says how much its household had spent when it was renewed. A ledger that holds less (a new one, or another
cell's) charges the difference before the first answer under it, as a row of its own, so that old and new charges
together stay below the cap. A ledger that holds as much already charges nothing, and asking again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedenergy import ids
from fedenergy.box.ledger import Charge, Ledger
from fedenergy.privacy.trust import LOCAL

if TYPE_CHECKING:
    from fedenergy.box.agreement import Agreement

MECHANISM = "carried-over"


def carry_over(ledger: Ledger, agreements: Sequence[Agreement], cells: Sequence[str],
               spent: dict[tuple[str, str | None], int], all_cells: bool) -> None:
    """Charge what is missing, and put it into spent: (household, cell, or None for all cells) -> micro-epsilon."""
    charges = []
    for agreement, cell in zip(agreements, cells, strict=True):
        known = spent[agreement.household, None if all_cells else cell]
        if agreement.spent_micro > known:
            name = ids.digest(b"fe.carried.1", [agreement.id, cell])
            charges.append(Charge(
                agreement.household, name.hex(), name, cell, 0, 0, agreement.unit, agreement.relation, MECHANISM, LOCAL,
                epsilon_micro=agreement.spent_micro - known, cap_micro=max(agreement.cap_micro, agreement.spent_micro),
                all_cells=all_cells))
    for charge, outcome in zip(charges, ledger.settle(charges, lambda _: b"carried over") if charges else (), strict=True):
        if outcome.payload is not None:
            spent[charge.household, None if all_cells else charge.cell] = outcome.spent_micro
