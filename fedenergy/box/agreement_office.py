"""The Authenticator's desk over a folder of agreement files: issue, renew, revoke, check. Used by the command line.

It plays both sides of a simulated enrolment: it makes a key for each home's box, lets the box prove it, and signs.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedenergy.box.admission import Authenticator, BoxKey, Revocations
from fedenergy.box.agreement import Agreement, AgreementError, AgreementTerms
from fedenergy.box.agreement_files import (
    AUTHENTICATOR,
    HOMES,
    PAST,
    REVOKED,
    Enrolment,
    key_file,
    keys_beside,
    new_private_key,
    put_whole,
    read_agreement,
    read_authenticator,
    read_private_key,
    read_revocations,
    to_file,
    write_authenticator,
)
from fedenergy.box.agreement_ledger import LEDGER, charged_in
from fedenergy.box.ledger import Ledger
from fedenergy.box.receipts import make_folder
from fedenergy.households.household import check_household_id


class Found(NamedTuple):
    """Something wrong with a folder: which file, and what."""

    file: str
    text: str


@dataclass(frozen=True)
class Standing:
    """One home's agreement and how it stands: "in force", "revoked", "not yet in force" or "expired"."""

    agreement: Agreement
    state: str


class AgreementOffice:
    """A folder of agreements with its keys.

    folder   of the agreements; keys: of the private keys (None: <folder>.keys)
    create   make the folder and the Authenticator's key where there are none
    Raises AgreementError where the folder is none, or its key is absent or another one.
    """

    def __init__(self, folder: Path, keys: Path | None = None, *, create: bool = False) -> None:
        self.folder = Path(folder).absolute()
        self.keys = keys_beside(self.folder) if keys is None else Path(keys).absolute()
        if self.keys == self.folder or self.folder in self.keys.parents:
            raise AgreementError("private", f"the keys {self.keys} would lie inside the agreements {self.folder}, which "
                                 "others may read: keep them in a folder beside it")
        if create and not (self.folder / "authenticator.json").exists():
            self._begin()
        self.public_key = read_authenticator(self.folder)

    @property
    def enrolment(self) -> Enrolment:
        return Enrolment(self.folder, self.folder / REVOKED, self.keys, self.public_key)

    def issue(self, homes: Iterable[str], terms: AgreementTerms, unit: str = "household") -> list[Agreement]:
        """First agreements. AgreementError "bound" where a home has one already: renew it."""
        with self._authenticator() as authenticator:
            homes = [check_household_id(home) for home in homes]
            if known := [home for home in homes if self.enrolment.file(home).exists()]:
                raise AgreementError("bound", f"{known[0]} has an agreement already ({len(known)} of {len(homes)} homes "
                                     "have one): renew it with --renew, so that what was spent is carried over")
            issued = []
            for home in homes:
                path = key_file(self.keys, home)
                private = read_private_key(path) if path.exists() else new_private_key(path)
                issued.append(authenticator.issue(home, BoxKey(home, private=private), terms, unit=unit))
                put_whole(self.enrolment.file(home), to_file(issued[-1].to_bytes()))
            return issued

    def renew(self, spent_micro: Mapping[str, int], terms: AgreementTerms, *, revoked: bool = False) -> list[Agreement]:
        """New agreements of homes that have one; the old ones are revoked and kept under past/.

        spent_micro  home -> what its ledger says, integer micro-epsilon (`spent_in`); what the old agreement carried over
                     counts where it is more
        revoked      homes that withdrew are put back in force; else AgreementError "revoked" for one of them
        """
        with self._authenticator() as authenticator:
            if not revoked and (withdrawn := self.withdrawn(spent_micro)):
                raise AgreementError("revoked", f"{withdrawn[0]} is revoked ({len(withdrawn)} of {len(spent_micro)} homes "
                                     "are), and a renewal would put it back in force: add --revoked where it wants that")
            renewed = []
            for home, spent in spent_micro.items():
                old, box = self.enrolment.agreement(home), self.enrolment.box_key(home)
                if box.public_key != old.box_key:
                    raise AgreementError("bound", f"the key of {home} is not the one that its agreement binds: put back "
                                         f"{key_file(self.keys, home)}")
                new = authenticator.renew(old, box, terms, max(spent, old.spent_micro))
                make_folder(self.folder / PAST)
                put_whole(self.folder / PAST / f"{old.id}.json", to_file(old.to_bytes()))
                put_whole(self.enrolment.file(home), to_file(new.to_bytes()))
                renewed.append(new)
            # last: until then the old agreements hold, and after it the boxes read the new ones
            put_whole(self.folder / REVOKED, to_file(authenticator.revocations()))
            return renewed

    def revoke(self, homes: Sequence[str]) -> list[str]:
        """Put the agreements of these homes on the list; returns the homes that were not on it. None: it stays as it is."""
        with self._authenticator() as authenticator:
            known = self.revocations().ids
            held = {home: self.enrolment.agreement(home).id for home in homes}
            added = [home for home, name in held.items() if name not in known]
            for home in added:
                authenticator.revoke(held[home])
            if added:
                put_whole(self.folder / REVOKED, to_file(authenticator.revocations()))
        return added

    def withdrawn(self, homes: Iterable[str]) -> list[str]:
        """Those of the homes whose agreement is on the revocation list."""
        listed = self.revocations().ids
        return [home for home in homes if self.enrolment.agreement(home).id in listed]

    def revocations(self) -> Revocations:
        return read_revocations(self.folder / REVOKED, self.public_key)

    def homes(self) -> list[str]:
        """Homes that have a file, valid or not, sorted."""
        return sorted(path.stem for path in (self.folder / HOMES).glob("*.json"))

    def standing(self, home: str, now: int) -> Standing:
        """One home's agreement and how it stands at a time (whole seconds since 1970 UTC)."""
        agreement = self.enrolment.agreement(home)
        if agreement.household != home:
            raise AgreementError("household", f"{home}.json: {_another(agreement)}")
        state = ("revoked" if agreement.id in self.revocations().ids else
                 "not yet in force" if now < agreement.not_before else
                 "expired" if now >= agreement.expires else "in force")
        return Standing(agreement, state)

    def check(self, keys: bool = True) -> list[Found]:
        """What is wrong: signatures, names, keys, the list, and the chain of renewals."""
        found = []
        try:
            self.revocations()
        except AgreementError as error:
            found.append(Found(REVOKED, str(error)))
        try:
            charged_in(self.folder)
        except AgreementError as error:
            found.append(Found(LEDGER, str(error)))
        if keys and (path := key_file(self.keys)).exists():
            try:
                if Authenticator(private=read_private_key(path)).public_key != self.public_key:
                    found.append(Found(path.name, f"is not the key of {self.folder.name}/{AUTHENTICATOR}: the two belong "
                                                  "together"))
            except AgreementError as error:
                found.append(Found(path.name, str(error)))
        for home in self.homes():
            name = f"{HOMES}/{home}.json"
            try:
                agreement = self.enrolment.agreement(home)
            except (AgreementError, ValueError) as error:
                found.append(Found(name, str(error).removeprefix(f"{home}.json: ")))
                continue
            if agreement.household != home:
                found.append(Found(name, _another(agreement)))
            found += [Found(name, text) for text in self._past_problems(agreement)]
            if keys and self.keys.is_dir():
                try:
                    if self.enrolment.box_key(home).public_key != agreement.box_key:
                        found.append(Found(f"{home}.key", "is not the key that the agreement binds"))
                except AgreementError as error:
                    found.append(Found(f"{home}.key", str(error)))
        return found

    def _past_problems(self, agreement: Agreement) -> Iterator[str]:
        """A renewal carries over at least what the one before it carried, and the one before is revoked."""
        while agreement.renews:
            path = self.folder / PAST / f"{agreement.renews}.json"
            if not path.exists():
                return
            try:
                old = read_agreement(path, self.public_key)
                revoked = self.revocations().ids
            except AgreementError as error:
                yield str(error)
                return
            if old.household != agreement.household or old.spent_micro > agreement.spent_micro:
                yield f"it renews {old.id}, which is another home's or carried over more"
            if old.id not in revoked:
                yield f"it renews {old.id}, which is not revoked"
            agreement = old

    def _begin(self) -> None:
        if any((self.folder / HOMES).glob("*.json")):
            raise AgreementError("absent", f"{self.folder} holds agreements, and its {AUTHENTICATOR} is gone: put it back, "
                                 "or begin in another folder")
        make_folder(self.folder)
        make_folder(self.folder / HOMES)
        path = key_file(self.keys)
        private = read_private_key(path) if path.exists() else new_private_key(path)
        authenticator = Authenticator(private=private)
        put_whole(self.folder / REVOKED, to_file(authenticator.revocations()))
        write_authenticator(self.folder, authenticator.public_key)

    @contextlib.contextmanager
    def _authenticator(self) -> Iterator[Authenticator]:
        """The signing key, for one writer at a time."""
        private = read_private_key(key_file(self.keys))
        with open(self.keys / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            authenticator = Authenticator(private=private, revoked=self.revocations())
            if authenticator.public_key != self.public_key:
                raise AgreementError("key", f"{key_file(self.keys)} is not the key of {self.folder}: the two belong "
                                     "together")
            yield authenticator


def _another(agreement: Agreement) -> str:
    return f"it is the agreement of {agreement.household}: put back the home's own"


def spent_in(ledger: Path, homes: Iterable[str]) -> dict[str, int]:
    """Micro-epsilon that each home spent, as its ledger says: of all cells together where the ledger holds secure noise,
    else of the cell in which it spent most (every cell of a simulation is a world of its own).

    Raises LedgerBroken where the ledger is older than its receipts or damaged.
    """
    whole = (ledger / "enrolment.key").exists()
    found = {}
    with Ledger(ledger) as opened:
        for home in homes:
            cells: dict[str, int] = {}
            for row in opened.history(home):
                cells[row.cell] = cells.get(row.cell, 0) + (row.epsilon_micro or 0)
            found[home] = sum(cells.values()) if whole else max(cells.values(), default=0)
    return found
