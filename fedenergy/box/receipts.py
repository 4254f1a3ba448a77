"""Receipts: what the Authenticator remembers of every ledger, so that an older copy put back is seen.

A hash chain over rows does not see a rollback: an older copy is a valid chain. So (sequence, head hash) of every
household that was charged goes to a log of its own before the answer is revealed. Keep the folder of the receipts
apart from the ledger's: whoever can put back both together can put back an older budget.

A log is lines of text, one per batch, `digest household:sequence:hash ...`, appended and fsynced under a file lock.
A last line without its newline is torn: it is ignored and cut, for its batch was never revealed. A whole line that
does not match its digest is corruption.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

Receipt = tuple[int, bytes]
COMPACT_ABOVE = 1_000


class ReceiptsBroken(RuntimeError):
    """A whole line of a log of receipts does not match its digest."""


def merge(known: dict[str, Receipt], household: str, receipt: Receipt) -> None:
    """Keep the newest receipt; processes may append in another order than they committed in."""
    if household not in known or known[household][0] <= receipt[0]:
        known[household] = receipt


def encode_line(receipts: Mapping[str, Receipt]) -> bytes:
    """One batch as a line that proves itself whole."""
    body = " ".join([f"{home}:{sequence}:{head.hex()}" for home, (sequence, head) in receipts.items()]).encode()
    return _mark(body) + b" " + body + b"\n"


def decode_line(line: bytes) -> dict[str, Receipt] | None:
    """The batch of a whole line, without its newline; None where the line is torn or damaged."""
    mark, _, body = line.partition(b" ")
    if mark != _mark(body):
        return None
    entries = (entry.split(":") for entry in body.decode().split())
    return {household: (int(sequence), bytes.fromhex(head)) for household, sequence, head in entries}


def _mark(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()


class ReceiptLog:
    """The receipts of one ledger file: load() once per process, then append() before every reveal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._durable = True

    def exists(self) -> bool:
        return self.path.exists()

    def create(self, durable: bool = True) -> None:
        """An empty log, if there is none. durable=False: the caller syncs the folder before anything relies on it."""
        make_folder(self.path.parent)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            if durable:
                sync_folder(self.path.parent)

    def load(self, durable: bool = True) -> dict[str, Receipt]:
        """household -> (sequence, head hash). Cuts a torn tail and compacts a log that has grown.

        durable=False: the caller calls settle() before it reveals anything because of these receipts.
        Raises FileNotFoundError, or ReceiptsBroken where a whole line does not match its digest.
        """
        with self._locked() as file:
            data = _read_all(file)
            known, whole, entries = self._parse(data)
            if entries > COMPACT_ABOVE + 2 * len(known):
                self._replace(encode_line(known))
            else:
                if whole < len(data):
                    os.ftruncate(file, whole)
                self._durable = False  # the process that wrote the last line may have been killed before its own fsync
                if durable:
                    self._sync(file)
        return known

    def settle(self) -> None:
        """Make what load() returned durable, unless it is known to be."""
        if not self._durable:
            with self._locked() as file:
                self._sync(file)

    def _sync(self, file: int) -> None:
        os.fsync(file)
        self._durable = True

    def read(self) -> dict[str, Receipt]:
        """As load, but the log stays as it is: for audits."""
        with self._locked() as file:
            return self._parse(_read_all(file))[0]

    def append(self, receipts: Mapping[str, Receipt]) -> None:
        """Make receipts durable: on return they survive a kill and a power cut. OSError: they do not count."""
        line = memoryview(encode_line(receipts))
        with self._locked() as file:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # another process was killed in the middle of a line
                size = _read_all(file).rfind(b"\n") + 1
                os.ftruncate(file, size)
            start = size
            try:
                while line:
                    written = os.pwrite(file, line, size)
                    line, size = line[written:], size + written
                self._sync(file)
            except OSError:
                os.ftruncate(file, start)
                raise

    def _parse(self, data: bytes) -> tuple[dict[str, Receipt], int, int]:
        """(receipts, bytes up to the last newline, entries read)."""
        known: dict[str, Receipt] = {}
        whole, entries = data.rfind(b"\n") + 1, 0
        for number, line in enumerate(data[:whole].split(b"\n")[:-1], start=1):
            batch = decode_line(line)
            if batch is None:
                raise ReceiptsBroken(f"line {number} of the receipts {self.path.name} is damaged: put back the newest "
                                     f"undamaged copy, or start a ledger in another folder")
            if known:
                for household, receipt in batch.items():
                    merge(known, household, receipt)
            else:
                known = batch
            entries += len(batch)
        return known, whole, entries

    def _replace(self, data: bytes) -> None:
        """Under the lock; processes that wait for it on the old file see that it is no longer the one at this path."""
        spare = self.path.with_suffix(".compact")
        file = os.open(spare, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view):]
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(spare, self.path)
        sync_folder(self.path.parent)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        while True:
            file = os.open(self.path, os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(file), os.stat(self.path)):
                    yield file
                    return
            finally:
                os.close(file)


def make_folder(path: Path) -> None:
    """Create a folder for the owner alone (0700), durable in its parent; one that exists is left as it is."""
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _read_all(file: int) -> bytes:
    parts, offset = [], 0
    while part := os.pread(file, 1 << 24, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
