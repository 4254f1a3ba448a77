"""A second copy of a ledger's receipts, kept with the results: a ledger and its receipts put back together are seen.

The ledger is compared with its receipts whenever it is opened, so an older copy of the ledger alone is refused. Whoever
puts back both from one backup passes that check. A finished run therefore notes, beside its results, how far every
household's chain had come; a ledger that has not come that far is an older one. (Who puts back the results too is not
seen; keep a copy of heads.log elsewhere.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedenergy.box.ledger_postgres import MARK
from fedenergy.box.receipts import Receipt, ReceiptLog, ReceiptsBroken, decode_line, encode_line, merge

HEADS = "heads.log"
PER_LINE = 1_000


def holds_ledger(folder: Path) -> bool:
    """Whether charges are kept in a folder, or in the data base that it names."""
    return any(folder.glob("*.sqlite")) or (folder / MARK).exists()


def heads_of(receipts: Path) -> dict[str, Receipt]:
    """(sequence, head hash) of every household, and of the zone's answers, in a ledger's receipts.

    Raises ReceiptsBroken where a log is damaged.
    """
    found: dict[str, Receipt] = {}
    for path in sorted(receipts.glob("*.log")):
        prefix = "" if path.stem.isdigit() or path.stem == "zone" else f"{path.stem}/"
        for name, receipt in ReceiptLog(path).read().items():
            merge(found, prefix + name, receipt)
    return found


def mark_text(heads: Mapping[str, Receipt]) -> bytes:
    """The heads as lines that prove themselves whole, sorted by name."""
    names = sorted(heads)
    return b"".join(encode_line({name: heads[name] for name in names[at:at + PER_LINE]})
                    for at in range(0, len(names), PER_LINE))


def read_mark(path: Path) -> dict[str, Receipt]:
    """The heads that a finished run noted. Raises ReceiptsBroken for a line that does not match its digest."""
    found: dict[str, Receipt] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if (batch := decode_line(line)) is None:
            raise ReceiptsBroken(f"line {number} of {path.name} is damaged")
        found |= batch
    return found


def behind(mark: Mapping[str, Receipt], heads: Mapping[str, Receipt]) -> list[str]:
    """Names whose chain is shorter than the mark says, or ends in another row at the same length; sorted."""
    return sorted(name for name, (sequence, head) in mark.items()
                  if name not in heads or heads[name][0] < sequence
                  or (heads[name][0] == sequence and heads[name][1] != head))


def older_than(marks: Iterable[Path], ledger: Path) -> str:
    """Why a ledger cannot be the one that these runs used, or ""."""
    marks = [path for path in marks if path.is_file()]
    try:
        heads = heads_of(ledger / "receipts") if marks else {}
        noted = {path: read_mark(path) for path in marks}
    except ReceiptsBroken as error:
        return str(error)
    for path, mark in noted.items():
        if names := behind(mark, heads):
            return (f"the ledger {ledger} is older than the results in {path.parent}: {len(names)} households had spent "
                    f"more then ({names[0]} among them). Put the newest ledger back")
    return ""
