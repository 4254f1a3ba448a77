"""The leak scan of an audit: the readings of the run's simulated homes, searched for in every file that it left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedenergy.audit_checks import ABSENT, FINDING, NOTE, OK, Check, Run
from fedenergy.errors import where
from fedenergy.households.population import Population
from fedenergy.privacy.audit_scan import Hit, Needles, digits_for, files_in
from fedenergy.report.tables import summary_table

if TYPE_CHECKING:
    from fedenergy.report.load import RunData

AREA, WHAT = "leaks", "no reading in any file"
MOST_NUMBERS = 2_000_000
READING, INSIDE = "reading", "reading of the inside view"
INSIDE_FILES = ("summary.json", "report.html", "figures/")
SHOWN = 5
LEAST_PARTS, MOST_PARTS = 100, 1_000  # k/n with n up to the number of homes, within these: what a run computes anyway
SHARES = ("clipped_share", "answers", "refusals", "failures", "top1", "sign", "spearman", "top1_total", "sign_total",
          "spearman_total", "epsilon_spent_mean", "epsilon_spent_max")


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
    planted, homes, everybody, unread = readings(populations)
    if unread:
        yield Check(AREA, WHAT, NOTE, f"{len(unread)} home(s) could not be read again, so nothing of them was looked for: "
                    + "; ".join(unread[:SHOWN]))
    if not planted:
        yield Check(AREA, WHAT, ABSENT, "no home could be read")
        return
    numbers = sum(values.size for values in planted.values())
    shown = run.data.part("inside_view", dict).get("readings") if run.data.summary.get("inside_view") else None
    if shown:
        planted[INSIDE] = np.concatenate([np.asarray(values, np.float64) for values in shown.values()])[:, None]
    parts = min(max(LEAST_PARTS, everybody), MOST_PARTS)
    known = shares_of(run.data)
    planted = {what: blanked(values, parts, known) for what, values in planted.items()}
    left_out = numbers - np.count_nonzero(np.isfinite(planted[READING]))
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
                    f"{needles.digits} or more digits; {left_out:,} not looked for: fractions k/n with n up to {parts:,} "
                    "and the run's own shares say nothing of a home")
    yield from _inside_note(inside)


def readings(populations: Sequence[Population]) -> tuple[dict[str, np.ndarray], int, int, list[str]]:
    """({"reading": (steps of all homes, channels + 1)}, homes in it, homes in all, homes that raise, with type and place):
    the first homes of the populations in turn, up to MOST_NUMBERS numbers; homes with other channels than the first one's
    are left out, and no text of an exception is passed on: it may hold readings."""
    found: dict[tuple[str, str], np.ndarray] = {}
    unread: dict[tuple[str, str], str] = {}
    everybody = {(population.name, home) for population in populations for home in population.ids}
    for index in range(max(map(len, populations))):
        for population in populations:
            if index < len(population) and (
                    key := (population.name, population.ids[index])) not in found and key not in unread:
                try:
                    home = population.load(index)
                except Exception as error:
                    unread[key] = f"{key[1]} ({where(error)})"
                    continue
                table = np.concatenate([home.readings, home.total[:, None]], axis=1)
                if not found or table.shape[1] == next(iter(found.values())).shape[1]:
                    found[key] = table
        if sum(table.size for table in found.values()) >= MOST_NUMBERS:
            break
    planted = {READING: np.concatenate(list(found.values()))} if found else {}
    return planted, len(found), len(everybody), list(unread.values())


def shares_of(data: RunData) -> np.ndarray:
    """Sorted: what the results hold of counts, ranks and shares of homes, round by round and as means; they meet the round
    numbers among simulated readings. (audit_results.py checks that they are what they claim to be.)"""
    table = summary_table(data.metrics, data.cells)
    found = [data.metrics.loc[data.metrics["metric"].isin(SHARES), "value"]]
    found += [table[name] for metric in SHARES for name in (metric, f"{metric}_sd") if name in table]
    values = np.concatenate([part.to_numpy(float) for part in found])
    return np.unique(np.abs(values[np.isfinite(values)]))


def blanked(values: np.ndarray, most: int, known: np.ndarray) -> np.ndarray:
    """values with NaN for every fraction k/n, n <= most, and for every known number (sorted)."""
    each, place = np.unique(values, return_inverse=True)
    plain = fractions(each, most)
    if known.size:
        at = np.searchsorted(known, np.abs(each)).clip(max=known.size - 1)
        for neighbour in (known[at], known[np.maximum(at - 1, 0)]):
            plain |= np.abs(np.abs(each) - neighbour) <= 1e-12 * np.abs(each)
    return np.where(plain, np.nan, each)[place].reshape(values.shape)


def fractions(values: np.ndarray, most: int) -> np.ndarray:
    """(n,) bool: which of (n,) numbers are k/n, rounded, for whole numbers k and 1 <= n <= most; by continued fractions.

    >>> fractions(np.array([1 / 12, 11 / 12 + 1, 0.0, 0.123456789]), 100).tolist()
    [True, True, True, False]
    """
    size = np.abs(np.asarray(values, np.float64))
    k0, n0, k, n = np.ones_like(size), np.zeros_like(size), np.floor(size), np.ones_like(size)
    rest, found = size - k, np.zeros(size.shape, bool)
    while True:
        found |= (n <= most) & (np.abs(k / n - size) <= 4 * np.finfo(float).eps * size)
        live = (rest > 0) & (n <= most) & ~found
        if not live.any():
            return found
        turned = np.divide(1.0, rest, out=np.zeros_like(rest), where=live)
        whole = np.floor(turned)
        k0, k = k, np.where(live, whole * k + k0, k)
        n0, n = n, np.where(live, whole * n + n0, n)
        rest = np.where(live, turned - whole, 0.0)


def _inside_note(inside: set[Hit]) -> Iterator[Check]:
    if inside:
        places = ", ".join(sorted({hit.place for hit in inside}))
        yield Check(AREA, "the inside view", NOTE, f"one home's day stands in {places}: shown on purpose, because the study "
                    "has oracle = true")
