"""The data sets that the loaders read: where they are published, their licence, and the hash of what is inside.

Hashes are of the inner file, decompressed: archives that are built on the fly change theirs. A hash that is not known
here is recorded in the data folder at the first fetch and called "unpinned": it then tells a change, not an origin.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from fedenergy.errors import ConfigError, did_you_mean

LOCK = "catalogue.lock.json"
CHUNK = 1 << 20
OPEN: dict[str, Callable[..., IO[bytes]]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
OK, UNPINNED, DIFFERS, ABSENT = "ok", "unpinned", "differs", "absent"


@dataclass(frozen=True)
class Item:
    """One file of a set.

    path    in the data folder, plain; found with .gz or .xz too
    urls    where it is published, tried in order; () where it is only given on request or by hand (--from)
    member  the file inside a zip that the url gives; "" where it gives the file itself
    size    bytes, and sha256: of the inner file; 0 and "" where they are not known
    """

    path: str
    urls: tuple[str, ...] = ()
    member: str = ""
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class DataSet:
    """A named set: its files, what it is, licence and citation as its publisher gives them."""

    name: str
    title: str
    licence: str
    citation: str
    items: tuple[Item, ...]
    note: str = ""


class Verdict(NamedTuple):
    """What verify found of one file: OK, UNPINNED, DIFFERS or ABSENT; its hash and where it was read."""

    dataset: str
    path: str
    verdict: str
    sha256: str = ""
    told: str = ""


def _ett(name: str, sha256: str) -> Item:
    inside = f"zhouhaoyi/ETDataset/main/ETT-small/{name}.csv"
    return Item(f"ett/{name}.csv", (f"https://raw.githubusercontent.com/{inside}",
                                    f"https://cdn.jsdelivr.net/gh/{inside.replace('/main/', '@main/')}"), sha256=sha256)


def _uci(number: int, archive: str) -> tuple[str, ...]:
    return (f"https://archive.ics.uci.edu/static/public/{number}/{archive}.zip",)


SETS = {one.name: one for one in (
    DataSet("ett", "ETT: oil temperature and loads of two transformers, hourly and quarter-hourly",
            "CC BY-ND 4.0 (unmodified only)", "Zhou et al., Informer, AAAI 2021", (
                _ett("ETTh1", "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
                _ett("ETTh2", "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b"),
                _ett("ETTm1", "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e"),
                _ett("ETTm2", "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd"))),
    DataSet("uci_household", "Individual Household Electric Power Consumption, one home, one minute, 2006-2010",
            "CC BY 4.0", "Hebrail and Berard, UCI 235", (
                Item("uci_household/household_power_consumption.txt",
                     _uci(235, "individual+household+electric+power+consumption"), "household_power_consumption.txt",
                     132_960_755, "4259c9d7ece5dbee9ab8d53682baac68d791c864f0f64a52b4043cb3b90894b7"),)),
    DataSet("uci_appliances", "Appliances Energy Prediction, one home, ten minutes", "CC BY 4.0",
            "Candanedo, Feldheim and Deramaix 2017, UCI 374", (
                Item("uci_appliances/energydata_complete.csv", _uci(374, "appliances+energy+prediction"),
                     "energydata_complete.csv"),)),
    DataSet("uci_bike", "Bike Sharing, hourly", "CC BY 4.0", "Fanaee-T and Gama 2013, UCI 275", (
        Item("uci_bike/hour.csv", _uci(275, "bike+sharing+dataset"), "hour.csv"),)),
    DataSet("electricity", "ElectricityLoadDiagrams20112014, 370 clients, quarter-hourly kW", "CC BY 4.0",
            "Trindade 2015, UCI 321", (
                Item("electricity/LD2011_2014.txt", _uci(321, "electricityloaddiagrams20112014"), "LD2011_2014.txt"),)),
    DataSet("lcl_london", "Low Carbon London, 100 homes of 2013, half-hourly", "CC BY 4.0",
            "UK Power Networks, Low Carbon London", (Item("lcl_london/lcl_2013_100households_long.csv"),
                                                     Item("lcl_london/tariffs_dtou_2013.csv")),
            "a cut of the trial's data (columns household, time, kwh): put it there with --from"),
    DataSet("opsd_household", "Open Power System Data, households in Konstanz, cumulative kWh", "CC BY 4.0",
            "Open Power System Data, Household Data 2020-04-15", (
                Item("opsd_household/household_data_60min_singleindex.csv",
                     ("https://data.open-power-system-data.org/household_data/2020-04-15/"
                      "household_data_60min_singleindex.csv",)),)),
)}


def dataset(name: str) -> DataSet:
    """The set of that name; ConfigError with the nearest names for another."""
    if name not in SETS:
        raise ConfigError(f'there is no data set "{name}" (there is: {", ".join(SETS)}).{did_you_mean(name, SETS)}')
    return SETS[name]


def found_at(root: Path, item: Item) -> Path | None:
    """Where a file of a set lies in the data folder: plain, .gz or .xz."""
    places = (root / f"{item.path}{suffix}" for suffix in OPEN)
    return next((place for place in places if place.is_file()), None)


def inner_hash(path: Path) -> tuple[str, int]:
    """(SHA-256 in hex, bytes) of a file, decompressed if it is .gz or .xz. OSError, EOFError or LZMAError if damaged."""
    digest, size = hashlib.sha256(), 0
    with OPEN.get(path.suffix, open)(path, "rb") as file:
        for chunk in chunks(file):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def verify(root: Path, name: str = "") -> list[Verdict]:
    """What the data folder holds of one set or of all, each file's inner hash compared with the one that is known."""
    locked = read_lock(root)
    verdicts = []
    for one in [dataset(name)] if name else SETS.values():
        for item in one.items:
            place = found_at(root, item)
            if place is None:
                verdicts.append(Verdict(one.name, item.path, ABSENT))
                continue
            try:
                sha256, size = inner_hash(place)
            except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
                verdicts.append(Verdict(one.name, item.path, DIFFERS, told=f"{place.name} is damaged: {error}"))
                continue
            verdicts.append(_judged(one.name, item, sha256, size, locked))
    return verdicts


def _judged(name: str, item: Item, sha256: str, size: int, locked: dict[str, str]) -> Verdict:
    if item.sha256:
        if sha256 == item.sha256:
            return Verdict(name, item.path, OK, sha256)
        wanted = f", {item.size:,} bytes" if item.size else ""
        return Verdict(name, item.path, DIFFERS, sha256, f"published: {item.sha256}{wanted}; here: {size:,} bytes")
    known = locked.get(item.path)
    if known not in (None, sha256):
        return Verdict(name, item.path, DIFFERS, sha256, f"when it was fetched: {known}")
    return Verdict(name, item.path, UNPINNED, sha256,
                   "its hash is not known here" + ("" if known else " and was not recorded: it was not fetched by us"))


def read_lock(root: Path) -> dict[str, str]:
    """Hashes recorded at the first fetch, by path. ConfigError where the file is damaged."""
    path = root / LOCK
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): str(value) for key, value in found.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged ({error}): delete it to record the hashes anew") from error


def record(root: Path, item: Item, sha256: str) -> None:
    """Note the hash of a file that is not pinned here; a hash that is noted already stays."""
    known = read_lock(root)
    if item.sha256 or item.path in known:
        return
    part = root / f".{LOCK}.part"
    part.write_text(json.dumps({**known, item.path: sha256}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(part, root / LOCK)
