"""Which ledger a folder of agreements is charged in, under noise that is not seeded: one, and always the same.

A signed cap is for all answers of a home together. Two ledgers would each grant it in full, so the folder remembers the
first one (ledger.json), by a digest of the enrolment's secret that lies in it: a ledger can be moved, not exchanged.
Under seeded noise nothing is remembered: a simulated cell is a world of its own, and nothing of it is private.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fedenergy import ids
from fedenergy.box.agreement import AgreementError
from fedenergy.box.agreement_files import read_bytes
from fedenergy.box.query import load_canonical
from fedenergy.box.receipts import sync_folder

LEDGER, SECRET = "ledger.json", "enrolment.key"


class Charged(NamedTuple):
    """The ledger of a folder of agreements: its digest, and where it lay when it was first used."""

    ledger: str
    path: Path


def charged_in(folder: Path) -> Charged | None:
    """What the folder remembers; None where its homes were never asked under secure noise. AgreementError "form"."""
    path = Path(folder) / LEDGER
    if not path.exists():
        return None
    try:
        found = load_canonical(read_bytes(path, 4096, "note of the ledger").removesuffix(b"\n"), LEDGER)
        if not isinstance(found, dict) or set(found) != {"ledger", "path"} \
                or not all(isinstance(value, str) for value in found.values()):
            raise ValueError("it has exactly the keys ledger and path")
    except ValueError as error:
        raise AgreementError("form", f"{path} is damaged ({error}): put back its newest copy, which says in which ledger "
                             "the homes are charged") from error
    return Charged(found["ledger"], Path(os.path.normpath(Path(folder).absolute() / found["path"])))


def check_ledger(folder: Path, ledger: Path) -> Charged | None:
    """What the folder remembers; AgreementError "ledger" where that is another ledger than this one. Changes nothing."""
    known = charged_in(folder)
    if known is not None and known.ledger != _digest(ledger):
        raise AgreementError("ledger", f"the homes of {folder} are charged in the ledger {known.path}, not in {ledger}: "
                             f'under secure noise a cap is for all answers together. Set [ledger] path = "{known.path}", or '
                             "make other agreements with fedenergy agreement new")
    return known


@lru_cache(maxsize=16)  # once a process; failures are not kept
def keep_ledger(folder: Path, ledger: Path) -> None:
    """Remember the ledger at its first use; afterwards check_ledger. Of several processes at once one is first."""
    if check_ledger(folder, ledger) is not None:
        return
    note = {"ledger": _digest(ledger), "path": os.path.relpath(Path(ledger).absolute(), Path(folder).absolute())}
    path = Path(folder) / LEDGER
    draft = path.with_name(f".{LEDGER}.{os.getpid()}.tmp")
    try:
        with open(draft, "wb") as file:
            file.write(ids.canon(note) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # never over another one
        except FileExistsError:
            check_ledger(folder, ledger)
        finally:
            draft.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise AgreementError("ledger", f"{path} cannot be written ({error.strerror}): under secure noise the agreements "
                             "remember the ledger that they are charged in; let the folder be written to") from error


def _digest(ledger: Path) -> str:
    secret = Path(ledger) / SECRET
    return ids.digest(b"fe.ledger.1", secret.read_bytes() if secret.exists() else str(Path(ledger).resolve()), 16).hex()
