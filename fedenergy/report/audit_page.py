"""What `fedenergy audit` found, as a page of its own and as a section of the report."""

from __future__ import annotations

import hashlib
import json
import string
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedenergy.errors import naming
from fedenergy.report import markup
from fedenergy.report.load import RunData
from fedenergy.report.style import CSS, PAGE
from fedenergy.report.words import number

AUDIT, PAGE_NAME = "audit.json", "audit.html"
TEXT = ("check", "state", "what was found", "design", "trust", "verdict")
MOST_SHOWN = 50  # a bound above it says that the event was never seen on one side


def write_audit(folder: str | Path) -> Path:
    """Write audit.html from audit.json in a run folder; returns its path."""
    data = RunData.read(folder)
    found = _read(data)
    if found is None:
        raise FileNotFoundError(f"{data.folder / AUDIT} is absent: fedenergy audit {data.folder} makes it")
    body = "".join(f'\n<section aria-labelledby="{key}"><h2 id="{key}">{title}</h2>{html}</section>'
                   for key, title, html in (("checks", "Checks", _checks(found)), ("release", "Releases", _releases(found)),
                                            ("means", "What this means", _meaning(found))))
    stamp = str(found.get("stamp") or "")
    page = string.Template(PAGE).substitute(
        title=markup.escape(f"Audit of {found.get('run')}"), css=CSS, meta=markup.escape(_verdict(found)),
        stamp=f'<p class="stamp">{markup.escape(stamp[:1].upper() + stamp[1:])}</p>' if stamp else "",
        contents="".join(f'<li><a href="#{key}">{title}</a></li>' for key, title in (
            ("checks", "Checks"), ("release", "Releases"), ("means", "What this means"))), body=body,
        footer=markup.escape(f"Written by fedenergy {data.versions.get('fedenergy', '')} from {AUDIT}."))
    path = data.folder / PAGE_NAME
    with naming(path):
        path.write_text(page, encoding="utf-8", newline="\n")
    return path


def section(data: RunData) -> str:
    """The report's section: the verdict, the checks, the releases; or how to make an audit."""
    found = _read(data)
    if found is None:
        return markup.paragraph("Absent: nobody audited this run.") + markup.code(f"fedenergy audit {data.folder.name}")
    parts = [markup.paragraph(_verdict(found))]
    if found.get("of") != _state(data.folder):
        parts.append(markup.paragraph("The run has changed since: audit it again.", "stamp"))
    return "".join([*parts, _checks(found), markup.details("Claims and bounds", _releases(found))])


def _read(data: RunData) -> Mapping[str, Any] | None:
    path = data.folder / AUDIT
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {"checks": [{"area": "audit", "what": AUDIT, "state": "finding", "detail": "the file is damaged"}]}
    return found if isinstance(found, dict) else None


def _state(folder: Path) -> str:
    """As fedenergy.audit.state_of."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("metrics.csv", "summary.json"):
        digest.update(hashlib.blake2b((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def _verdict(found: Mapping[str, Any]) -> str:
    counts = Counter(check["state"] for check in found["checks"])
    first = f"{counts['finding']} finding(s)" if counts["finding"] else "No findings"
    words = {"ok": "passed", "note": "note" if counts["note"] == 1 else "notes", "not checked": "not checked"}
    rest = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{first}; {', '.join(rest)}."


def _checks(found: Mapping[str, Any]) -> str:
    order = {"finding": 0, "note": 1, "not checked": 2, "ok": 3}
    rows = [[f"{check['area']}: {check['what']}", check["state"], check["detail"]]
            for check in sorted(found["checks"], key=lambda check: order.get(check["state"], 0))]
    return markup.table(["check", "state", "what was found"], rows, "What was looked at, findings first.", TEXT)


def _releases(found: Mapping[str, Any]) -> str:
    if not found.get("releases"):
        return markup.paragraph("Absent: no mechanism was audited; see the checks.")
    titles = ["mechanism", "trust", "design", "ε claimed", "δ", "ε at least", "ε at most", "trials a side", "verdict"]
    rows = [[row["mechanism"], row["trust"], row["design"], number(row["claimed"]), number(row["delta"]), number(row["low"]),
             number(row["high"]) if row["high"] < MOST_SHOWN else "not bounded", number(row["trials"]),
             row["problem"] or "within the claim"] for row in found["releases"]]
    each = min(row["confidence"] for row in found["releases"])
    unit = found.get("unit") or "unit"
    caption = (f"Per {unit}, relation {found.get('relation') or 'not stated'}. Each mechanism as the study configured it, "
               f"on two neighbouring worlds; Clopper-Pearson bounds at {100 * each:.4g} % each, 99 % for all together. "
               "“At most” bounds the loss of this one event; a design whose event the right mechanism never shows has no "
               "upper bound.")
    return markup.table(titles, rows, caption, TEXT)


def _meaning(found: Mapping[str, Any]) -> str:
    return markup.bullets([
        "“At least” above the claim proves the claim wrong, up to the stated chance of error. Below it, nothing is "
        "proved: an audit can find a fault, never show that there is none.",
        "In the worst pair the right mechanism reaches its claim, so “at most” below 95 % of it means more noise than the "
        "claim needs.",
        "The ledger's chains show a changed row, its receipts an older copy, heads.log both put back together. Whoever can "
        "rewrite all three, results included, is not seen.",
        "The leak scan looks for the readings' own bits and digits; numbers that were scaled, rounded to few digits or "
        "encrypted are not seen.",
        "Seeded noise is repeatable by anybody who knows the seed: the guarantee needs noise = \"secure\"."])
