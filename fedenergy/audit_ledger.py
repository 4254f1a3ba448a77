"""The ledger part of an audit: chains, caps and receipts, and whether the results agree with what was charged."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedenergy.audit_checks import ABSENT, FINDING, NOTE, OK, Check, Run
from fedenergy.box.carried import MECHANISM as CARRIED
from fedenergy.box.ledger import Ledger, LedgerBroken, LedgerUnavailable, Row
from fedenergy.box.ledger_mark import HEADS, behind, heads_of, holds_ledger, read_mark
from fedenergy.box.ledger_rows import row_hash
from fedenergy.box.promises import check_promises
from fedenergy.box.receipts import Receipt, ReceiptsBroken
from fedenergy.box.zone_store import ZoneStore
from fedenergy.privacy.epsilon import text
from fedenergy.privacy.trust import CURATOR, LOCAL, OPEN, SUM

AREA, SHOWN = "ledger", 5
CLOUD = "cloud"  # the tier above the zones: adds up what they released, and charges nobody


def ledger_checks(run: Run) -> Iterator[Check]:
    """Every check of the ledger of a run."""
    if not holds_ledger(run.ledger):
        yield Check(AREA, "the ledger is there", FINDING, f"{run.ledger} holds no ledger file: what was spent is not known")
        return
    yield from _modes(run.ledger)
    with Ledger(run.ledger) as ledger:
        problems = ledger.verify()
        yield from (Check(AREA, "chains, heads, sums, caps, receipts", FINDING, f"{one.file}"
                          + (f", {one.household}" if one.household else "") + f": {one.text}") for one in problems[:SHOWN])
        if len(problems) > SHOWN:
            yield Check(AREA, "chains, heads, sums, caps, receipts", FINDING, f"and {len(problems) - SHOWN:,} more")
        try:
            rows = list(ledger.rows())
        except (LedgerBroken, LedgerUnavailable) as error:
            yield Check(AREA, "every row can be read", FINDING, str(error))
            return
    homes = {row.household for row in rows}
    if not problems:
        yield Check(AREA, "chains, heads, sums, caps, receipts", OK, f"{len(rows):,} charges of {len(homes):,} households: "
                    "every chain leads to its head, the sums are right and within their caps, the receipts agree")
    yield from _mark(run, rows)
    yield from _caps(run, rows)
    yield from _answers(run, rows)
    yield from _zones(run, rows)
    yield from _told(run, rows)
    yield from _promises(run)


def _modes(folder: Path) -> Iterator[Check]:
    """The ledger holds noised answers and, under secure noise, the enrolment's secret: for its owner alone."""
    open_ones = [path for path in (*folder.glob("*.sqlite"), *folder.glob("*.key"))
                 if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        yield Check(AREA, "for the owner alone", FINDING, f"{len(open_ones)} files can be read by others, such as "
                    f"{open_ones[0].name}: chmod 600 them")
    else:
        yield Check(AREA, "for the owner alone", OK, "ledger files and keys have mode 600")


def _mark(run: Run, rows: list[Row]) -> Iterator[Check]:
    """The ledger has come at least as far as when the results were written."""
    what, path = "no older than the results", run.folder / HEADS
    if not path.is_file():
        yield Check(AREA, what, ABSENT, f"the run left no {HEADS}")
        return
    try:
        mark, heads = read_mark(path), heads_of(run.ledger / "receipts")
    except ReceiptsBroken as error:
        yield Check(AREA, what, FINDING, str(error))
        return
    hashes: dict[tuple[str, int], bytes] = {(row.household, row.sequence): row_hash(row) for row in rows}
    wrong = set(behind(mark, heads))
    wrong |= {name for name, (sequence, head) in mark.items()
              if "/" not in name and not name.startswith("*") and hashes.get((name, sequence), head) != head}
    if wrong:
        yield Check(AREA, what, FINDING, f"{len(wrong):,} of {len(mark):,} chains are shorter than, or other than, when the "
                    f"results were written ({min(wrong)} among them): ledger and receipts were put back together, or "
                    "rewritten")
        return
    more = sum(_sequence(heads, name) - sequence for name, (sequence, _) in mark.items())
    yield Check(AREA, what, OK, f"all {len(mark):,} chains hold what they held when the results were written"
                + (f", and {more:,} rows since" if more else ""))


def _sequence(heads: dict[str, Receipt], name: str) -> int:
    return heads[name][0]


def _caps(run: Run, rows: list[Row]) -> Iterator[Check]:
    """Charges of every household and cell of this run stay within the agreement's cap."""
    cap = run.data.part("agreement", dict).get("cap")
    if not isinstance(cap, int | float) or not run.cells:
        yield Check(AREA, "within the agreements' caps", ABSENT, "the run states no cap")
        return
    secure = run.data.summary.get("noise") == "secure"
    spent: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.epsilon_micro is not None and (secure or row.cell in run.cells):
            key = row.household, "" if secure else row.cell
            spent[key] = spent.get(key, 0) + row.epsilon_micro
    caps = {home: run.cap_of(home, round(cap * 1_000_000)) for home, _ in spent}
    over = [key for key, micro in spent.items() if not micro <= caps[key[0]]]
    carried = sum(row.mechanism == CARRIED for row in rows)
    if over:
        home, cell = over[0]
        yield Check(AREA, "within the agreements' caps", FINDING, f"{len(over):,} sums are above the cap: {home} spent "
                    f"{text(spent[over[0]])} of {text(caps[home])}{f' in cell {cell}' if cell else ''}")
    else:
        most = max(spent.values(), default=0)
        yield Check(AREA, "within the agreements' caps", OK, f"the most that a household spent is epsilon {text(most)}"
                    f"{'' if secure else ' in one cell'}, of {cap:g}" + (f"; {carried} rows carry over" if carried else ""))


def _answers(run: Run, rows: list[Row]) -> Iterator[Check]:
    """What the results hold as released is what the ledger stored and charged, byte for byte."""
    what, path = "releases are the stored answers", run.folder / "releases.parquet"
    stored = {(row.query_id, row.household): row for row in rows if row.trust == LOCAL}
    if not path.is_file():
        yield Check(AREA, what, ABSENT, "the run kept no releases.parquet")
        return
    import pyarrow.parquet as pq

    columns = ["part", "round", "query_id", "household", "epsilon_micro", "value"]
    table = pq.read_table(path, columns=columns).to_pandas()
    if table.empty:
        yield Check(AREA, what, ABSENT, "no home answered under trust local")
        return
    wrong, count = [], 0
    for (query, home, *_), part in table.groupby(["query_id", "household", "part", "round"], sort=False):  # one may repeat
        key = query, home
        row, count = stored.get(key), count + 1
        if row is None or row.payload[:8 * len(part)] != part["value"].to_numpy("<f8").tobytes() \
                or row.epsilon_micro != int(part["epsilon_micro"].iloc[0]):
            wrong.append(key)
    if wrong:
        yield Check(AREA, what, FINDING, f"{len(wrong):,} of {count:,} releases differ from what the ledger stored, or were "
                    f"never charged: {wrong[0][1]}, query {wrong[0][0]}")
    else:
        yield Check(AREA, what, OK, f"{count:,} releases are in the ledger, charged, byte for byte")


def _zones(run: Run, rows: list[Row]) -> Iterator[Check]:
    """Every stored answer of the zone is over homes that were all charged for it."""
    charged: dict[str, set[str]] = {}
    for row in rows:
        if row.trust in (SUM, CURATOR):
            charged.setdefault(row.query_id, set()).add(row.household)
    if not charged:
        return
    what, count, wrong = "zone answers are over charged homes", 0, []
    try:
        with ZoneStore(run.ledger) as zones:
            for query, homes in charged.items():
                if (answer := zones.get(query)) is not None:
                    count += 1
                    if not set(answer.households) <= homes:
                        wrong.append(query)
    except (LedgerBroken, LedgerUnavailable) as error:
        yield Check(AREA, what, FINDING, str(error))
        return
    state = FINDING if wrong else OK
    yield Check(AREA, what, state, f"{len(wrong)} of {count} zone answers hold homes that were not charged" if wrong else
                f"{count:,} answers, each opened once, over homes that were charged first; {len(charged) - count:,} stayed "
                "closed")


def _promises(run: Run) -> Iterator[Check]:
    """What homes opened in masked sums, where there were any."""
    what = "masked sums opened once"
    try:
        if count := check_promises(run.ledger):
            yield Check(AREA, what, OK, f"{count:,} promises, every chain whole and as far as its receipt")
    except (LedgerBroken, sqlite3.Error) as error:
        yield Check(AREA, what, FINDING, str(error))


def _told(run: Run, rows: list[Row]) -> Iterator[Check]:
    """What the results say was spent is at most what the ledger says."""
    what, spent = "results and ledger agree on what was spent", {}
    for row in rows:
        if row.epsilon_micro is not None:
            home = spent.setdefault(row.cell, {})
            home[row.household] = home.get(row.household, 0) + row.epsilon_micro
    metrics = run.data.metrics
    told = metrics[(metrics["metric"] == "epsilon_spent_max") & (metrics["trust"] != OPEN)].groupby("cell")["value"].max()
    told = told[[cell for cell in told.index if run.cells.get(cell, {}).get("zone") != CLOUD]]
    wrong = [cell for cell, value in told.items()
             if np.isfinite(value) and value * 1e6 > max(spent.get(cell, {}).values(), default=0) + 0.5]
    if wrong:
        yield Check(AREA, what, FINDING, f"in {len(wrong)} cells the results speak of more than the ledger holds, such as "
                    f"epsilon {told[wrong[0]]:g} in cell {wrong[0]}")
    elif len(told):
        yield Check(AREA, what, OK, f"in all {len(told):,} cells the ledger holds at least what the results say")
    else:
        yield Check(AREA, what, NOTE, "the results state no spending")
