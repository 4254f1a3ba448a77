"""The leak scan of an audit: the readings of the run's simulated homes, searched for in every file that it left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedenergy.audit_checks import ABSENT, FINDING, NOTE, OK, Check, Run
from fedenergy.households.population import Population
from fedenergy.privacy.audit_scan import Hit, Needles, digits_for, files_in

AREA, WHAT = "leaks", "no reading in any file"
MOST_NUMBERS = 2_000_000
READING, INSIDE = "reading", "reading of the inside view"
INSIDE_FILES = ("summary.json", "report.html", "figures/")
SHOWN = 5


def leak_checks(run: Run) -> Iterator[Check]:
    """Make the readings again and look for them in every file of the run folder and of the ledger."""
    if run.plan is None:
        yield Check(AREA, WHAT, ABSENT, run.why)
        return
    populations = list({id(world.population): world.population for world in run.plan.worlds}.values())
    if measured := [one.name for one in populations if hasattr(one, "excluded")]:
        yield Check(AREA, WHAT, ABSENT, f"{measured[0]} are measured homes: their readings are few round numbers that "
                    "stand in any file by chance; the scan is for simulated ones")
        return
    files = files_in(run.folder)
    if run.folder.resolve() not in run.ledger.resolve().parents:
        files |= {f"ledger/{name}": data for name, data in files_in(run.ledger).items()}
    size = sum(map(len, files.values()))
    planted, homes, everybody = readings(populations)
    numbers = sum(values.size for values in planted.values())
    shown = run.data.part("inside_view", dict).get("readings") if run.data.summary.get("inside_view") else None
    if shown:
        planted[INSIDE] = np.concatenate([np.asarray(values, np.float64) for values in shown.values()])[:, None]
    needles = Needles(planted, digits=digits_for(numbers, size), pairs=True)
    hits = needles.scan(files)
    inside = {hit for hit in hits if hit.what == INSIDE and hit.place.startswith(INSIDE_FILES)}
    leaks = sorted(hits - inside, key=lambda hit: hit.place)
    for hit in leaks[:SHOWN]:
        yield Check(AREA, WHAT, FINDING, f"{hit.place} holds a {hit.what} ({hit.form})")
    if len(leaks) > SHOWN:
        yield Check(AREA, WHAT, FINDING, f"and {len(leaks) - SHOWN:,} more hits")
    if not leaks:
        yield Check(AREA, WHAT, OK, f"{numbers:,} readings of {homes:,} of {everybody:,} homes, {len(files):,} files, "
                    f"{size:,} bytes: none as f64 (both byte orders), as a pair of f32, or as decimal text of "
                    f"{needles.digits} or more digits")
    yield from _inside_note(inside)


def readings(populations: Sequence[Population]) -> tuple[dict[str, np.ndarray], int, int]:
    """({"reading": (steps of all homes, channels + 1)}, homes in it, homes in all): the first homes of the populations in
    turn, up to MOST_NUMBERS numbers; homes with other channels than the first one's are left out."""
    found: dict[tuple[str, str], np.ndarray] = {}
    everybody = {(population.name, home) for population in populations for home in population.ids}
    for index in range(max(map(len, populations))):
        for population in populations:
            if index < len(population) and (key := (population.name, population.ids[index])) not in found:
                home = population.load(index)
                table = np.concatenate([home.readings, home.total[:, None]], axis=1)
                if not found or table.shape[1] == next(iter(found.values())).shape[1]:
                    found[key] = table
        if sum(table.size for table in found.values()) >= MOST_NUMBERS:
            break
    return {READING: np.concatenate(list(found.values()))}, len(found), len(everybody)


def _inside_note(inside: set[Hit]) -> Iterator[Check]:
    if inside:
        places = ", ".join(sorted({hit.place for hit in inside}))
        yield Check(AREA, "the inside view", NOTE, f"one home's day stands in {places}: shown on purpose, because the study "
                    "has oracle = true")
