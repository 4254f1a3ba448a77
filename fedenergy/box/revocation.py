"""The revocation list as running boxes see it: read again before every query, and never an older one.

The newest list that any box of a ledger saw is kept, as it was signed, in the ledger's folder. A list that is missing,
damaged, signed with another key, older than that one, or that names fewer agreements, makes every box refuse, with the
reason inside. What was answered before stays answered: asking the same query again gives the stored bytes and tells
nothing new.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from fedenergy.box.admission import Revocations
from fedenergy.box.agreement import AgreementError
from fedenergy.box.agreement_files import MAX_LIST_BYTES, from_file, put_whole, read_bytes
from fedenergy.box.receipts import make_folder

SEEN, LOCK = "revoked.seen", "revoked.lock"
_Stamp = tuple[int, int, int, int] | None


class RevocationWatch:
    """One process's view of a list; other processes of the same ledger share what was seen.

    path      the list; public_key: the Authenticator's; ledger: folder in which the newest list seen is kept
    """

    def __init__(self, path: Path, public_key: bytes, ledger: Path) -> None:
        self.path, self.public_key, self.seen = Path(path), public_key, Path(ledger) / SEEN
        self._stamps: tuple[_Stamp, _Stamp] = (None, None)
        self._list: Revocations | None = None

    def read(self) -> Revocations:
        """The list as it is now. AgreementError where it may not be believed: then nothing may be answered.

        Costs two looks at the file system while nothing has changed.
        """
        if self._list is not None and self._stamps == (_stamp(self.path), _stamp(self.seen)):
            return self._list
        self._list = None
        make_folder(self.seen.parent)
        with _locked(self.seen.with_name(LOCK)):
            before = _stamp(self.path)  # a list that is put in place after this is read next time
            data = read_bytes(self.path, MAX_LIST_BYTES, "revocation list")
            listed, seen = self._verified(data), None
            if self.seen.exists():
                seen = self._verified(read_bytes(self.seen, MAX_LIST_BYTES, "revocation list seen before"))
                follows(listed, seen)
            if seen is None or listed.version > seen.version:
                put_whole(self.seen, data, 0o600)
            self._stamps, self._list = (before, _stamp(self.seen)), listed
        return listed

    def _verified(self, data: bytes) -> Revocations:
        return Revocations.verify(from_file(data, "revocation list"), self.public_key)


def follows(listed: Revocations, seen: Revocations) -> None:
    """Raise AgreementError "revocations" unless the list is the one seen, or a later one that holds all of it."""
    if listed.version < seen.version:
        raise AgreementError("revocations", f"the revocation list has version {listed.version}, but version {seen.version} "
                             "was seen before: put the newest one back")
    if listed.version == seen.version and listed.ids != seen.ids:
        raise AgreementError("revocations", f"two revocation lists have version {listed.version} and differ: ask the "
                             "Authenticator for a new one")
    if not listed.ids >= seen.ids:
        raise AgreementError("revocations", f"the revocation list of version {listed.version} leaves out agreements that "
                             f"version {seen.version} named: what is revoked stays revoked")


def _stamp(path: Path) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
