"""Report: what `fe.run` and `fe.compare` give back, a view of a run folder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from fedenergy.report.load import RunData


class Report:
    """A finished run, read when first asked for.

    folder   the run folder
    table    mean, sd and n over seeds per strategy and setting (tables.summary_table)
    ranking  strategies ranked by MAE with paired intervals (tables.ranking)
    metrics  the tidy metrics behind them
    ledger   one row per charge, from folder/ledger
    print(report) shows the table; a notebook shows it as HTML. Raises load.RunFolderError where the run is unfinished.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def data(self) -> RunData:
        from fedenergy.report.load import RunData

        return RunData.read(self.folder)

    @property
    def metrics(self) -> pd.DataFrame:
        return self.data.metrics

    @cached_property
    def table(self) -> pd.DataFrame:
        from fedenergy.report.tables import summary_table

        return summary_table(self.data.metrics, self.data.cells, self.data.unit)

    @cached_property
    def ranking(self) -> pd.DataFrame:
        from fedenergy.report.tables import ranking

        return ranking(self.data.metrics, self.data.cells)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """One row per charge: the ledger's columns as stored, and epsilon (NaN where an answer was plain).

        Raises FileNotFoundError where folder/ledger is absent ([ledger] path in the config puts it elsewhere),
        LedgerBroken where it is damaged.
        """
        import pandas as pd

        from fedenergy.box.ledger import Ledger, Row

        path = self.folder / "ledger"
        if not path.is_dir():
            raise FileNotFoundError(
                f"{path} is no folder: the run kept its ledger elsewhere ([ledger] path in "
                f"{self.folder / 'config.resolved.toml'}); read it with fedenergy.box.ledger.Ledger(path).rows()"
            )
        with Ledger(path) as ledger:
            rows = pd.DataFrame(list(ledger.rows()), columns=list(Row._fields))
        rows["epsilon"] = pd.to_numeric(rows["epsilon_micro"]) / 1_000_000
        return rows

    def to_html(self, path: str | Path | None = None) -> Path:
        """Write the self-contained page (default: report.html in the run folder) and return its path."""
        from fedenergy.report.page import write_report

        return write_report(self.folder, path)

    def to_csv(self, path: str | Path) -> Path:
        """Write the table as CSV, safe to open in a spreadsheet, and return its path."""
        from fedenergy.report.tables import export_csv

        export_csv(self.table, path)
        return Path(path)

    def __str__(self) -> str:
        from rich.console import Console

        from fedenergy.report.tables import to_rich

        console = Console(width=100, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(
                to_rich(self.table, self.data.privacy_line, str(self.data.summary.get("unit_of_values") or ""))
            )
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")

    def __repr__(self) -> str:
        return f"Report({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        from fedenergy.report.markup import table
        from fedenergy.report.sections import TEXT_COLUMNS
        from fedenergy.report.tables import display

        titles, rows = display(self.table, str(self.data.summary.get("unit_of_values") or ""))
        return table(titles, rows, f"{self.data.title}; {self.data.privacy_line}", TEXT_COLUMNS, tall=False)
