"""`fedenergy audit`: look for what went wrong in a finished run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedenergy.cli_parts import run_folder, use_data, watched

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its name in runs/.")]
Trials = Annotated[int, typer.Option("--trials", metavar="N", min=100, help=(
    "Releases on each side of the worst pair; 1,000 bound an epsilon of 1 from below by .75, 20,000 by .94."))]
Scan = Annotated[bool, typer.Option("--scan/--no-scan", help=(
    "Make the simulated readings again and look for them in every file of the run."))]
Data = Annotated[str | None, typer.Option("--data", metavar="DIR", envvar="FEDENERGY_DATA", help=(
    "Folder of the real data sets."))]


def audit(run: RunPath, trials: Trials = 20_000, scan: Scan = True, data: Data = None) -> None:
    """Audit a finished run: ledger, results, releases, leaks, stamps, agreements, versions. Asks and spends nothing.

    Run it in the folder of the study, where its strategies are found. It checks that every chain of the ledger is whole
    and within its cap, that what was released is what was charged, that the scores follow from the sums on file, that the
    mechanism as configured loses no more than it claims (99 % confidence for all designs together), and that no reading
    stands in any file. It writes audit.json and audit.html, and a section of the report.

    Exit codes: 0 nothing found, 1 findings.

    \b
    fedenergy audit runs/quickstart-1a2b3c4d
    fedenergy audit runs/quickstart-1a2b3c4d --trials 2000 --no-scan
    """
    from fedenergy.audit import audit_run
    from fedenergy.report.audit_page import write_audit
    from fedenergy.report.page import write_report

    folder = run_folder(run)
    use_data(data)

    found = watched(lambda progress: audit_run(folder, trials=trials, scan=scan, progress=progress), folder)
    width = max(len(check.area) for check in found.checks)
    for check in found.checks:
        print(f"{check.state:<12} {check.area:<{width}}  {check.what}: {check.detail}")
    for row in found.releases:
        if row["tight"]:
            print(f"{'':<12} {row['mechanism']} under trust {row['trust']}, {row['design']}: claimed epsilon "
                  f"{row['claimed']:g}, at least {row['low']:.3f}, at most {row['high']:.3f}")
    print(f"\nAudit: {write_audit(folder)}")
    write_report(folder)
    if found.findings:
        print(f"{len(found.findings)} finding(s)", file=sys.stderr)
        raise typer.Exit(1)
    print("nothing found")
