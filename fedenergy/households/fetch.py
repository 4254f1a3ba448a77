"""Fetch a data set: resumable, atomic, checked by the hash of what is inside; or put it there from a file at hand.

Nothing here runs unless a user asks for it (`fedenergy data fetch`). TLS checks stay on; a partial file is never taken
for a whole one.
"""

from __future__ import annotations

import os
import shutil
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fedenergy.errors import ConfigError, RunFailed
from fedenergy.households.catalogue import CHUNK, OPEN, Item, chunks, dataset, found_at, inner_hash, read_lock, record
from fedenergy.progress import Progress, SilentProgress

TRIES, PAUSE_SECONDS, TIMEOUT_SECONDS = 3, 2.0, 60.0
Opener = Callable[[urllib.request.Request], IO[bytes]]


def open_url(request: urllib.request.Request) -> IO[bytes]:
    """The one place that reaches out."""
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def fetch(root: Path, name: str, *, offline: bool = False, given: Path | None = None, progress: Progress | None = None,
          opener: Opener = open_url) -> list[tuple[Item, Path, str]]:
    """(file, where it lies, what was done) for each file of a set. What is there and right is left alone.

    offline  never reach out: what is absent is a mistake; given: a file or a zip at hand that holds a file of the set
    Errors: ConfigError (unknown name, nothing to fetch from, a file that is not the published one), RunFailed (no url
    answered; what came so far is kept, and the next fetch goes on from there).
    """
    one, progress = dataset(name), progress or SilentProgress()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{root} is no folder for data sets ({error.strerror}): give another with --data DIR") from error
    done = []
    for item in one.items:
        place = found_at(root, item)
        if place is not None:
            done.append((item, place, _check(root, item, place)))
        elif given is not None and (taken := _take(root, item, given, alone=len(one.items) == 1)):
            done.append((item, taken, "taken from " + given.name))
        elif given is None and item.urls and not offline:
            done.append((item, _download(root, item, progress, opener), "fetched"))
        elif given is None:
            why = "is not here, and --offline reaches nowhere" if item.urls else "has no address that anybody may fetch"
            note = f" ({one.note})" if one.note else ""
            raise ConfigError(f"{name}: {item.path} {why}: give it with --from FILE{note}")
    if given is not None and not any("taken" in what for _, _, what in done) and len(done) < len(one.items):
        wanted = ", ".join(Path(item.member or item.path).name for item in one.items)
        raise ConfigError(f"{given.name} holds no file of {name} (it has: {wanted}): unpack it, or rename the file")
    return done


def _check(root: Path, item: Item, place: Path) -> str:
    sha256, _ = inner_hash(place)
    wanted = item.sha256 or read_lock(root).get(item.path, sha256)
    if sha256 != wanted:
        raise ConfigError(f"{place} is not the file that is published: its SHA-256 is {sha256}, not {wanted}; move it away "
                          "and fetch again")
    return "there already"


def _download(root: Path, item: Item, progress: Progress, opener: Opener) -> Path:
    target = root / item.path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    said: list[str] = []
    for url in item.urls:
        for attempt in range(TRIES):
            try:
                _receive(url, part, progress, opener)
                return _settle(root, item, part, target)
            except (urllib.error.URLError, TimeoutError, ConnectionError, OSError) as error:
                said.append(f"{url.split('/')[2]}: {getattr(error, 'reason', error)}")
                if isinstance(error, urllib.error.HTTPError) and error.code in (404, 410, 403):
                    part.unlink(missing_ok=True)
                    break
                if attempt + 1 < TRIES:
                    time.sleep(PAUSE_SECONDS * 2**attempt)
    raise RunFailed(f"{item.path} cannot be fetched ({'; '.join(dict.fromkeys(said))}): what came is kept and the same "
                    "command goes on from there; or give the file with --from FILE")


def _receive(url: str, part: Path, progress: Progress, opener: Opener) -> None:
    """Append to part what it lacks; start anew where the server cannot go on in the middle."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "fedenergy", **(
        {"Range": f"bytes={have}-"} if have else {})})
    try:
        answer = opener(request)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is behind what we have
            return
        raise
    with answer:
        going_on = have and getattr(answer, "status", 200) == 206
        length = int(answer.headers.get("Content-Length") or 0)
        progress.start(max(1, length), f"fetching {part.name.strip('.').removesuffix('.part')}")
        received = 0
        with part.open("ab" if going_on else "wb") as file:
            for chunk in chunks(answer):
                file.write(chunk)
                received += len(chunk)
                progress.advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        if length and received != length:
            raise ConnectionError(f"the connection ended after {received:,} of {length:,} bytes")


def _settle(root: Path, item: Item, part: Path, target: Path) -> Path:
    """Unpack if need be, compare the hash, and only then give the file its name."""
    try:
        ready = _unpacked(part, item) if item.member else part
    except (zipfile.BadZipFile, KeyError) as error:
        part.unlink()
        raise OSError(f"what came is no archive with {item.member} inside ({error})") from error
    sha256, size = inner_hash(ready)
    if item.sha256 and sha256 != item.sha256:
        for path in {ready, part}:
            path.unlink(missing_ok=True)
        raise ConfigError(f"{item.path}: what came is not the published file: {size:,} bytes with SHA-256 {sha256}, not "
                          f"{item.sha256}; nothing was kept")
    os.replace(ready, target)
    if ready != part:
        part.unlink(missing_ok=True)
    record(root, item, sha256)
    return target


def _unpacked(archive: Path, item: Item) -> Path:
    ready = archive.with_suffix(".inner")
    with zipfile.ZipFile(archive) as inside, inside.open(_member(inside, item)) as source, ready.open("wb") as out:
        shutil.copyfileobj(source, out, CHUNK)
        out.flush()
        os.fsync(out.fileno())
    return ready


def _member(inside: zipfile.ZipFile, item: Item) -> str:
    wanted = Path(item.member or item.path).name
    named = [name for name in inside.namelist() if Path(name).name == wanted]
    if not named:
        raise KeyError(f"it holds {', '.join(inside.namelist()[:5])}")
    return named[0]


def _take(root: Path, item: Item, given: Path, alone: bool) -> Path | None:
    """Copy the item out of a file at hand: itself, its .gz or .xz, or a zip; None where it is not inside."""
    if not given.is_file():
        raise ConfigError(f"--from {given}: there is no such file")
    target = root / item.path
    part = target.with_name(f".{target.name}.part")
    if given.suffix == ".zip" and not zipfile.is_zipfile(given):
        raise ConfigError(f"--from {given} is called a zip archive and is none: was it fetched whole?")
    target.parent.mkdir(parents=True, exist_ok=True)
    if zipfile.is_zipfile(given):
        try:
            ready = _unpacked_from(given, item, part)
        except KeyError:
            return None
        return _settle(root, Item(item.path, item.urls, "", item.size, item.sha256), ready, target)
    plain = given.name.removesuffix(".gz").removesuffix(".xz")
    if plain not in (Path(item.path).name, Path(item.member or item.path).name) and not alone:
        return None
    with OPEN.get(given.suffix, open)(given, "rb") as source, part.open("wb") as out:
        shutil.copyfileobj(source, out, CHUNK)
    return _settle(root, Item(item.path, item.urls, "", item.size, item.sha256), part, target)


def _unpacked_from(given: Path, item: Item, part: Path) -> Path:
    with zipfile.ZipFile(given) as inside, inside.open(_member(inside, item)) as source, part.open("wb") as out:
        shutil.copyfileobj(source, out, CHUNK)
    return part

