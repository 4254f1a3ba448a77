"""An audit of a finished run: ledger, results, release, leaks, stamps, agreements, versions. It changes nothing but
audit.json and its pages.

What it can show is what went wrong: a broken chain, an answer that was never charged, a release that loses more than it
claims, a reading in a file. That nothing was found proves neither the code nor the guarantee.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedenergy.audit_checks import ABSENT, FINDING, NOTE, OK, Check, Run
from fedenergy.audit_leaks import leak_checks
from fedenergy.audit_ledger import ledger_checks
from fedenergy.audit_release import release_checks
from fedenergy.audit_results import result_checks
from fedenergy.errors import naming
from fedenergy.privacy.audit import CONFIDENCE, TRIALS
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.progress import Progress, SilentProgress

AUDIT = "audit.json"


@dataclass(frozen=True)
class Audited:
    """The outcome: checks in the order they were made, and the claim and bounds of every design."""

    name: str
    checks: tuple[Check, ...]
    releases: tuple[dict[str, Any], ...]
    trials: int

    @property
    def findings(self) -> list[Check]:
        return [check for check in self.checks if check.state == FINDING]


def audit_run(folder: Path, *, trials: int = TRIALS, scan: bool = True, progress: Progress | None = None) -> Audited:
    """Audit a run folder and write audit.json into it.

    trials   releases a side of the worst pair; scan: look for readings in every file
    Errors: ConfigError where the folder is no finished run.
    """
    if type(trials) is not int or trials < 100:
        raise ValueError(f"trials = {trials!r} is not a whole number from 100 on")
    run, progress = Run.open(folder), progress or SilentProgress()
    progress.start(1, "ledger")
    checks = [*ledger_checks(run), *result_checks(run), *_agreements(run)]
    progress.advance(1)
    released, rows = release_checks(run, trials, progress)
    checks += [*released, *_stamps(run), *_versions(run)]
    progress.start(1, "files")
    checks += leak_checks(run) if scan else [Check("leaks", "no reading in any file", ABSENT, "left out (--no-scan)")]
    progress.advance(1)
    audited = Audited(run.folder.resolve().name, tuple(checks), tuple(rows), trials)
    document = {"run": audited.name, "of": state_of(run.folder), "trials": trials, "confidence": CONFIDENCE,
                "unit": run.data.unit, "relation": str(run.data.summary.get("relation") or ""),
                "stamp": str(run.data.summary.get("stamp") or ""),
                "checks": [asdict(check) for check in checks], "releases": rows}
    with naming(run.folder / AUDIT):
        (run.folder / AUDIT).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8", newline="\n")
    return audited


def state_of(folder: Path) -> str:
    """What an audit was of: a digest of the run's results. Another one: the run went on or was changed."""
    digest = hashlib.blake2b(digest_size=16)
    for name in ("metrics.csv", "summary.json"):
        digest.update(hashlib.blake2b((folder / name).read_bytes()).digest())
    return digest.hexdigest()


def _stamps(run: Run) -> Iterator[Check]:
    """Seeded noise says of itself that it is not private; the config on file is the one that ran."""
    noise, stamp = str(run.data.summary.get("noise") or ""), str(run.data.summary.get("stamp") or "")
    planned = run.config.privacy.noise if run.config else noise
    if noise not in ("simulation", "secure"):
        yield Check("stamp", "noise is stamped", FINDING, f'summary.json says noise = "{noise}"')
    elif noise != planned:
        yield Check("stamp", "noise is stamped", FINDING, f'the config says noise = "{planned}", the results "{noise}"')
    elif noise == "simulation" and SimulationNoise.stamp not in stamp:
        yield Check("stamp", "noise is stamped", FINDING, f'summary.json does not say "{SimulationNoise.stamp}"')
    elif noise == "secure" and SimulationNoise.stamp in stamp:
        yield Check("stamp", "noise is stamped", FINDING, "noise from the operating system is stamped as seeded")
    else:
        yield Check("stamp", "noise is stamped", OK, stamp or "noise from the operating system")
    report = run.folder / "report.html"
    if noise == "simulation" and report.is_file() and "eeded noise: not private" not in report.read_text(encoding="utf-8"):
        yield Check("stamp", "the report shows the stamp", FINDING, "report.html does not say that its noise is seeded")
    if run.config is not None:
        from fedenergy.federation.study import other_config

        what, names = "the config is the one that ran", sorted(set(run.data.metrics["run"]))
        if names not in ([run.config.run_name], []):
            yield Check("stamp", what, FINDING, f"config.resolved.toml is of {run.config.run_name}, the results are of "
                        f"{', '.join(names)}")
        elif problem := other_config(run.start, run.config):
            yield Check("stamp", what, FINDING if "config" in run.start else ABSENT, problem)
        else:
            yield Check("stamp", what, OK, run.config.run_name)


def _agreements(run: Run) -> Iterator[Check]:
    """Agreements on file: signatures, names, keys, list, renewals; and the list that the boxes saw."""
    enrolment = run.plan.worlds[0].enrolment if run.plan else None
    if enrolment is None:
        return
    from fedenergy.box.admission import Revocations
    from fedenergy.box.agreement import AgreementError
    from fedenergy.box.agreement_files import MAX_LIST_BYTES, from_file, read_bytes, read_revocations
    from fedenergy.box.agreement_office import AgreementOffice
    from fedenergy.box.revocation import SEEN, follows

    try:
        office = AgreementOffice(enrolment.folder, enrolment.keys)
        found = office.check()
    except AgreementError as error:
        yield Check("agreements", "signed and bound", FINDING, str(error))
        return
    yield from (Check("agreements", "signed and bound", FINDING, f"{one.file}: {one.text}") for one in found)
    if not found:
        yield Check("agreements", "signed and bound", OK, f"{len(office.homes()):,} agreements in {enrolment.folder.name}")
    try:
        listed = read_revocations(enrolment.revoked, enrolment.public_key)
        if (seen := run.ledger / SEEN).exists():
            data = from_file(read_bytes(seen, MAX_LIST_BYTES, "revocation list seen before"), "revocation list")
            follows(listed, Revocations.verify(data, enrolment.public_key))
        yield Check("agreements", "revocation list", OK, f"version {listed.version}, {len(listed.ids):,} agreements")
    except AgreementError as error:
        yield Check("agreements", "revocation list", FINDING, str(error))


def _versions(run: Run) -> Iterator[Check]:
    """Which versions the run had, and which of them are others here."""
    from fedenergy.federation.run_folder import versions

    ran = dict(run.data.versions)
    if not ran:
        yield Check("versions", "the run's versions", ABSENT, "the folder has no versions.json")
        return
    here = versions()
    others = [f"{name} {value} (here {here.get(name, 'not installed')})" for name, value in ran.items()
              if here.get(name) != value]
    told = ", ".join(f"{name} {value}" for name, value in ran.items())
    yield Check("versions", "the run's versions", NOTE if others else OK, f"others here: {', '.join(others)}; all: {told}"
                if others else told)
