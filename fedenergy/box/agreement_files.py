"""Agreements as files: a signed file a home, the revocation list, the Authenticator's public key; private keys apart.

    agreements/authenticator.json    whom the boxes of this folder believe: a public key and its short name
    agreements/homes/h0.json         the agreement of h0: {"body":{...},"signature":"..."}
    agreements/past/<id>.json        agreements that were renewed
    agreements/revoked.json          the signed revocation list
    agreements/ledger.json           the ledger that they are charged in, once that is under secure noise
    agreements.keys/                 0700; authenticator.key and homes/h0.key: 64 hex digits each, 0600

A signed file is JSON that any program reads, and has one spelling only: the signature covers the body's bytes as they
stand in the file, and they are cut out by position, so nothing is parsed before it is verified. The key files are those
of simulated homes: a real box keeps its own, and nobody else has it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedenergy import ids
from fedenergy.box.admission import BoxKey, Revocations
from fedenergy.box.agreement import MAX_BYTES, SIGNATURE_BYTES, Agreement, AgreementError, AgreementTerms, key_id
from fedenergy.box.query import GRANULARITIES, check_name, load_canonical
from fedenergy.box.receipts import make_folder, sync_folder
from fedenergy.households.household import check_household_id
from fedenergy.privacy.epsilon import MICRO

AUTHENTICATOR, HOMES, PAST, REVOKED = "authenticator.json", "homes", "past", "revoked.json"
MAX_LIST_BYTES = 64 * 1024 * 1024
REMEDIES = {
    AUTHENTICATOR: "name a folder that fedenergy agreement new made, or put the file back",
    REVOKED: "put its newest copy back, until then every home refuses; the newest that boxes have seen is revoked.seen in "
             "the folder of their ledger"}
_OPEN, _MIDDLE, _CLOSE = b'{"body":', b',"signature":"', b'"}\n'
_SIGNATURE = re.compile(rb"[0-9a-f]{128}")
_TAIL = len(_MIDDLE) + 2 * SIGNATURE_BYTES + len(_CLOSE)
_HEX = re.compile(r"[0-9a-f]{64}")


# -- the form of a file ------------------------------------------------------------------------------------------------

def to_file(signed: bytes) -> bytes:
    """Signature and canonical body (Agreement.to_bytes, Authenticator.revocations) as the bytes of a JSON file."""
    return b"".join((_OPEN, signed[SIGNATURE_BYTES:], _MIDDLE, signed[:SIGNATURE_BYTES].hex().encode(), _CLOSE))


def from_file(data: bytes, what: str = "agreement") -> bytes:
    """Signature and body of a file's bytes, not verified yet. AgreementError "form" for any other spelling.

    >>> signed = bytes(64) + b'{"a":"1"}'
    >>> from_file(to_file(signed)) == signed
    True
    """
    body, tail = data[len(_OPEN):-_TAIL], data[-_TAIL:]
    signature = tail[len(_MIDDLE):-len(_CLOSE)]
    if len(data) <= len(_OPEN) + _TAIL or not data.startswith(_OPEN) or not tail.startswith(_MIDDLE) \
            or not tail.endswith(_CLOSE) or not _SIGNATURE.fullmatch(signature):
        raise AgreementError("form", f'the {what} is not {{"body":...,"signature":"128 hex digits"}} and a line break')
    return bytes.fromhex(signature.decode()) + body


def read_bytes(path: Path, most: int, what: str) -> bytes:
    """A file's bytes, at most so many. AgreementError "absent" or "length"."""
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        remedy = f": {REMEDIES[path.name]}" if path.name in REMEDIES else ""
        raise AgreementError("absent", f"there is no {what} at {path} ({error.strerror}){remedy}") from error
    if len(data) > most:
        raise AgreementError("length", f"the {what} at {path} has more than {most} bytes")
    return data


def put_whole(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that a crash, or somebody who reads it meanwhile, finds the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def read_agreement(path: Path, public_key: bytes) -> Agreement:
    """The verified agreement in a file."""
    try:
        return Agreement.verify(from_file(read_bytes(path, 2 * MAX_BYTES, "agreement")), public_key)
    except AgreementError as error:
        raise AgreementError(error.code, f"{path.name}: {error}") from error


def read_revocations(path: Path, public_key: bytes) -> Revocations:
    """The verified revocation list in a file."""
    return Revocations.verify(from_file(read_bytes(path, MAX_LIST_BYTES, "revocation list"), "revocation list"), public_key)


# -- keys --------------------------------------------------------------------------------------------------------------

def keys_beside(folder: Path) -> Path:
    """Where the private keys of a folder lie unless something else is said: beside it, never inside it."""
    folder = Path(folder).absolute()
    return folder.with_name(f"{folder.name}.keys")


def key_file(keys: Path, household: str = "") -> Path:
    """The file of a home's private key; "": the Authenticator's."""
    return keys / HOMES / f"{check_household_id(household)}.key" if household else keys / "authenticator.key"


def new_private_key(path: Path) -> bytes:
    """32 bytes from the operating system, durable at path (0600) before anything is signed with them."""
    make_folder(path.parent.parent if path.parent.name == HOMES else path.parent)
    make_folder(path.parent)
    private = os.urandom(32)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(private.hex().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return private


def read_private_key(path: Path) -> bytes:
    """32 bytes. AgreementError "absent"; "private" where others may read the file; "form" where it is none."""
    text = read_bytes(path, 65, "private key").decode("ascii", "replace").removesuffix("\n")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise AgreementError("private", f"the private key {path} can be read by others: chmod 600 it, or make a new one")
    if not _HEX.fullmatch(text):
        raise AgreementError("form", f"the private key {path} is not 64 hex digits")
    return bytes.fromhex(text)


def write_authenticator(folder: Path, public_key: bytes) -> None:
    """The public key that the boxes of the folder believe."""
    put_whole(folder / AUTHENTICATOR, ids.canon({"key_id": key_id(public_key), "public_key": public_key}) + b"\n")


def read_authenticator(folder: Path) -> bytes:
    """The folder's public key, 32 bytes."""
    path = folder / AUTHENTICATOR
    data = read_bytes(path, 1024, "Authenticator's public key")
    try:
        found = load_canonical(data.removesuffix(b"\n"), AUTHENTICATOR)
        if not isinstance(found, dict) or set(found) != {"key_id", "public_key"} \
                or not _HEX.fullmatch(str(found["public_key"])):
            raise ValueError("it has exactly the keys key_id and public_key (64 hex digits)")
    except ValueError as error:
        raise AgreementError("form", f"{path}: {error}") from error
    public = bytes.fromhex(found["public_key"])
    if found["key_id"] != key_id(public):
        raise AgreementError("key", f"{path} names the key {found['key_id']}, not {key_id(public)}")
    return public


# -- what a study uses -------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Enrolment:
    """Where the boxes of a study find their agreements and keys, and whom they believe. Travels to workers.

    folder, revoked, keys   paths; public_key: the Authenticator's, 32 bytes, fixed when the study begins
    """

    folder: Path
    revoked: Path
    keys: Path
    public_key: bytes

    def file(self, household: str) -> Path:
        return self.folder / HOMES / f"{check_household_id(household)}.json"

    def agreement(self, household: str) -> Agreement:
        """The home's verified agreement, read now. AgreementError where it has none that holds."""
        return read_agreement(self.file(household), self.public_key)

    def box_key(self, household: str) -> BoxKey:
        """The home's own key."""
        return BoxKey(household, private=read_private_key(key_file(self.keys, household)))


@dataclass(frozen=True)
class AgreementFolder:
    """The `[agreement]` table of a study whose homes hold signed agreements: caps and trust modes are in the files.

    folder          made by `fedenergy agreement new`
    revoked         the revocation list ("": revoked.json in the folder); read again before every query
    keys            the private keys of the simulated homes ("": <folder>.keys)
    zone            who asks; an agreement with another zone refuses
    authenticator   key id that the folder must have ("": whatever it has)
    """

    folder: str
    revoked: str = ""
    keys: str = ""
    zone: str = "zone-1"
    authenticator: str = ""

    def __post_init__(self) -> None:
        check_name("[agreement] zone", self.zone)
        if not self.folder:
            raise ValueError('[agreement] folder = "" names no folder: give the one that fedenergy agreement new made')

    def enrolment(self) -> Enrolment:
        """Raises AgreementError where the folder has no Authenticator, or another one than was named."""
        folder = Path(self.folder).absolute()
        public = read_authenticator(folder)
        if self.authenticator and self.authenticator != key_id(public):
            raise AgreementError("key", f"authenticator = {self.authenticator}, but {folder} has the key "
                                 f"{key_id(public)}: take the folder of that Authenticator")
        return Enrolment(folder, Path(self.revoked).absolute() if self.revoked else folder / REVOKED,
                         Path(self.keys).absolute() if self.keys else keys_beside(folder), public)

    def agreed(self, households: Iterable[str]) -> tuple[AgreementTerms, Enrolment]:
        """The widest terms that any of these homes agreed to (a study that goes beyond them would be refused by every
        home), and where the homes find their agreements.

        Homes without a valid agreement are left out: they refuse. AgreementError where no home has one.
        """
        enrolment, held, first = self.enrolment(), [], None
        read_revocations(enrolment.revoked, enrolment.public_key)
        for household in households:
            try:
                held.append(enrolment.agreement(household))
            except AgreementError as error:
                first = first or error
        if not held:
            raise AgreementError("absent", f"no home of the study has a valid agreement in {enrolment.folder}"
                                 + (f" ({first})" if first else "")
                                 + ": make them with fedenergy agreement new --config CONFIG")
        return widest(held, self.zone), enrolment


def widest(held: Iterable[Agreement], zone: str) -> AgreementTerms:
    """Terms that allow whatever at least one of the agreements allows."""
    held = list(held)

    def union(name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for one in held for word in getattr(one, name)))

    each = [one.per_query_max_micro for one in held]
    return AgreementTerms(
        cap=max(one.cap_micro for one in held) / MICRO, trust=union("trust"),
        per_query_max=None if None in each else max(each) / MICRO, classes=union("classes"), purposes=union("purposes"),
        queriers=union("queriers"), zone=zone, granularity=max((one.granularity for one in held), key=GRANULARITIES.index),
        not_before=min(one.not_before for one in held), expires=max(one.expires for one in held),
        delta=max(one.delta for one in held))
