"""The command line. Exit 0 done, 1 failed run, 2 mistake in the config or arguments, 130 interrupted.

A mistake is one line on stderr; FEDENERGY_DEBUG=1 shows the traceback too. Heavy imports wait for a command that needs
them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer

from fedenergy import cli_study
from fedenergy.cli_agreement import app as agreement_app
from fedenergy.cli_audit import audit
from fedenergy.cli_catalogue import app as data_app  # that of cli_data, with list, fetch and verify
from fedenergy.cli_impute import app as imputer_app
from fedenergy.cli_impute import impute
from fedenergy.cli_parts import console, pairs, run_folder, use_data, watched
from fedenergy.cli_synthesise import synthesise
from fedenergy.errors import ConfigError, FedenergyError, RunFailed, did_you_mean, one_line, os_text

if TYPE_CHECKING:
    from fedenergy.config import Config

HELP = """Simulate a population of [bold]private homes[/bold], aggregate what they let out in several ways, compare.

Start here:

\b
  fedenergy check configs/quickstart.toml         what it costs; runs nothing
  fedenergy run configs/quickstart.toml           200 homes, one report
  fedenergy run configs/london.toml --data DIR    the same with real homes

More to do:

\b
  fedenergy new mystudy                           a study folder of your own
  fedenergy audit runs/NAME                       check a finished run
  fedenergy data inspect FILE                     what a meter file holds
  fedenergy impute FILE                           fill the gaps of a meter file
  fedenergy synthesise CONFIG --out FILE          artificial load profiles

Your own strategy or policy is a class in a file of the working folder, named [bold]module:Name[/bold]:

\b
  fedenergy run CONFIG --set strategy+=strategies.mine:Mine
  fedenergy run CONFIG --set policy=policies.mine:Cautious

Exit codes: 0 done, 1 the run failed, 2 a mistake in the config or the arguments, 130 interrupted.
FEDENERGY_DEBUG=1 shows tracebacks."""

app = typer.Typer(name="fedenergy", help=HELP, rich_markup_mode="rich", add_completion=False,
                  pretty_exceptions_enable=False, context_settings={"help_option_names": ["--help", "-h"]})
app.add_typer(data_app)
app.add_typer(agreement_app)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="A study in TOML, such as configs/quickstart.toml.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its name in runs/.")]
Sets = Annotated[list[str], typer.Option(
    "--set", metavar="KEY=VALUE", rich_help_panel="Change the study",
    help="Set one key: query.epsilon=2, strategy.0.floor=1, policy=policies.mine:Cautious (its old arguments go), "
         "strategy=module:Name (instead of all), strategy+=module:Name (besides). Values are TOML or bare text. "
         "Repeat it for more keys.")]
Vary = Annotated[list[str], typer.Option(
    "--vary", metavar="KEY=A,B", rich_help_panel="Change the study",
    help="Run every value: query.epsilon=0.5,1 or population.count=50,200. Several --vary are crossed.")]
Seeds = Annotated[str | None, typer.Option(
    "--seeds", metavar="0,1,2", rich_help_panel="Change the study",
    help="Seeds of noise and sampling; the population stays (population.seed makes another).")]
Quick = Annotated[bool, typer.Option(
    "--quick", rich_help_panel="Change the study",
    help="Toy size: at most 20 homes, the first 2 seeds, the first and last value of each varied key.")]
Fresh = Annotated[bool, typer.Option(
    "--fresh", rich_help_panel="Change the study",
    help="Ask anew: new answers, charged on top of what the ledger says was spent. Without it, answers that are "
         "stored already come back free.")]
Data = Annotated[str | None, typer.Option(
    "--data", metavar="DIR", envvar="FEDENERGY_DATA", rich_help_panel="Where", help="Folder of the real data sets.")]
Out = Annotated[str | None, typer.Option(
    "--out", metavar="DIR", rich_help_panel="Where", help="Where run folders go (default: runs).")]
Workers = Annotated[int | None, typer.Option(
    "--workers", metavar="N", min=0, rich_help_panel="Where",
    help="Worker processes; 0 works in this one. Results do not depend on it.")]
Address = Annotated[str | None, typer.Option(
    "--address", metavar="ADDR", rich_help_panel="Where", help="A Ray cluster to join: auto or ray://host:port.")]
Metric = Annotated[str, typer.Option("--metric", metavar="NAME", help="What to rank by.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"fedenergy {version('fedenergy')}")
        except PackageNotFoundError:
            print("fedenergy (a checkout that is not installed: pip install -e .)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(ctx: typer.Context, version: Annotated[bool, typer.Option(
        "--version", callback=_version, is_eager=True, help="Show the version and leave.")] = False) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@app.command()
def run(config: ConfigPath, sets: Sets = [], vary: Vary = [], seeds: Seeds = None, workers: Workers = None,  # noqa: B006
        address: Address = None, data: Data = None, quick: Quick = False, fresh: Fresh = False,
        out: Out = None) -> None:
    """Run every strategy x varied value x seed; print the table and write report.html.

    CONFIG is a study in TOML.

    \b
    fedenergy run configs/quickstart.toml
    fedenergy run configs/quickstart.toml --quick --workers 0
    fedenergy run configs/quickstart.toml --vary population.count=50,200
    fedenergy run configs/london.toml --data ../shared/data --seeds 0,1
    """
    if cli_study.is_other(config):
        return cli_study.run(*cli_study.load(config, sets, seeds, data, quick, out, vary=vary, workers=workers,
                                             address=address, fresh=fresh))
    folder = _run(_study(config, sets, vary, seeds, workers, address, data, quick, fresh, out))
    _show(folder)


@app.command()
def compare(config: ConfigPath, metric: Metric = "mae", sets: Sets = [], vary: Vary = [], seeds: Seeds = None,  # noqa: B006
            workers: Workers = None, address: Address = None, data: Data = None, quick: Quick = False,
            fresh: Fresh = False, out: Out = None) -> None:
    """Run, then rank the strategies with confidence intervals over the seeds.

    \b
    fedenergy compare configs/quickstart.toml --vary population.count=50,200
    fedenergy compare configs/quickstart.toml --metric cosine --seeds 0,1,2,3,4
    """
    study = _study(config, sets, vary, seeds, workers, address, data, quick, fresh, out)
    _check_metric(metric)
    _show(_run(study), metric)


@app.command()
def resume(run: RunPath, data: Data = None) -> None:
    """Go on where a run stopped; the result is the same as without the stop.

    RUN is a run folder, or its name in runs/.

    \b
    fedenergy resume runs/quickstart-1a2b3c4d
    """
    folder = run_folder(run)
    use_data(data)
    if cli_study.is_other(folder / "config.resolved.toml"):
        return cli_study.resume(folder, data)
    from fedenergy.federation.study import resume_study

    _show(watched(lambda progress: resume_study(folder, progress=progress), folder))


@app.command()
def check(config: ConfigPath, sets: Sets = [], vary: Vary = [], seeds: Seeds = None, workers: Workers = None,  # noqa: B006
          address: Address = None, data: Data = None, quick: Quick = False, fresh: Fresh = False,
          out: Out = None) -> None:
    """Show the resolved config, the worst-case epsilon of a home, time and memory. Runs nothing, spends nothing.

    \b
    fedenergy check configs/quickstart.toml
    fedenergy check configs/quickstart.toml --set agreement.cap=1
    """
    if cli_study.is_other(config):
        return cli_study.check(*cli_study.load(config, sets, seeds, data, quick, out, vary=vary, workers=workers,
                                               address=address, fresh=fresh))
    study = _study(config, sets, vary, seeds, workers, address, data, quick, fresh, out)
    from fedenergy.federation.estimate import estimate

    found = estimate(study)
    print(f"# {study.run_name}: the resolved config\n{study.to_toml()}")
    _show_estimate(found)


@app.command()
def new(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet, or an empty one.")]
        ) -> None:
    """Make a study folder: a config, a strategy and a policy of your own to edit, a test, a README. Works offline.

    \b
    fedenergy new mystudy
    cd mystudy && fedenergy run study.toml
    """
    from fedenergy.scaffold import new_study

    for path in new_study(folder):
        print(f"  {path.relative_to(folder.resolve())}")
    print(f"\nNext: cd {shlex.quote(str(folder))} && fedenergy run study.toml")


@app.command()
def report(run: RunPath, data: Data = None) -> None:
    """Write the report of a finished run again: one HTML page that opens without a network.

    RUN is a run folder, or its name in runs/.

    \b
    fedenergy report runs/quickstart-1a2b3c4d
    """
    folder = run_folder(run)
    use_data(data)
    if cli_study.is_other(folder / "config.resolved.toml"):
        return cli_study.resume(folder, data)
    _show(folder)


for _command in (audit, impute, synthesise):
    app.command()(_command)
app.add_typer(imputer_app)


def _study(path: Path, sets: Sequence[str], vary: Sequence[str], seeds: str | None, workers: int | None,
           address: str | None, data: str | None, quick: bool, fresh: bool, out: str | None) -> Config:
    from fedenergy.config import load

    config = load(path, sets=sets, vary=vary, seeds=seeds, workers=workers, address=address, data=data or None,
                  quick=quick, fresh=fresh, out=out)
    use_data(config.data)
    return config


def _check_metric(metric: str) -> None:
    """A mistyped metric is a mistake before the study runs, not after it."""
    from fedenergy.report.words import METRICS

    if metric not in METRICS:
        raise ConfigError(f'there is no metric "{metric}" (there is: {", ".join(METRICS)}).{did_you_mean(metric, METRICS)}')


def _run(config: Config) -> Path:
    from fedenergy.federation.study import place, run_study

    folder, _, _ = place(config)  # before the run: each --fresh run that begins makes the next one's folder another
    again = (folder / "metrics.csv").exists()
    done = watched(lambda progress: run_study(config, progress=progress), folder)
    if again:
        print("note: this study had run before: what its homes had answered then is stored, and was given again, free and "
              "unchanged, whatever an edited policy would say now; --fresh asks and charges anew", file=sys.stderr)
    return done


def _show(folder: Path, metric: str | None = None) -> None:
    """Print the summary table, with a metric the ranking too, and write report.html."""
    from fedenergy.report.load import RunData, RunFolderError
    from fedenergy.report.page import write_report
    from fedenergy.report.tables import ranking, summary_table, to_rich, why_no_ranking

    screen = console()
    try:
        data = RunData.read(folder)
        unit = str(data.summary.get("unit_of_values") or "")
        table = summary_table(data.metrics, data.cells, data.unit)
        screen.print(to_rich(table, data.privacy_line, unit, width=screen.width))
        if metric is not None:
            names = sorted(set(data.metrics["metric"]))
            if metric not in names:
                raise ConfigError(f'the run has no metric "{metric}" (it has: {", ".join(names)}).'
                                  f"{did_you_mean(metric, names)} The run itself is done: {folder}")
            ranked = ranking(data.metrics, data.cells, metric=metric)
            if len(ranked):
                caption = "95 % Student intervals over seeds, paired with the best of the setting"
                screen.print(to_rich(ranked, caption, unit, width=screen.width))
            else:
                print(why_no_ranking(data.metrics, metric))
        refusals = sorted(data.summary.get("refusals", ()), key=lambda row: -row["count"])
        for row in refusals[:5]:
            word = "failed" if row["code"] == "error" else "refused"
            print(f"{word} {row['count']:,} times: {row['code']}: {one_line(row['reason'])}")
        print(f"\nReport: {write_report(folder)}")
    except RunFolderError as error:
        raise ConfigError(error) from error
    answers = data.metrics[data.metrics["metric"] == "answers"]["value"]
    if refusals and not answers.any() and {row["code"] for row in refusals} == {"policy_error"}:
        raise RunFailed("no home answered, for the policy itself failed in every one: mend it and run again (nothing was "
                        "charged)")


def _show_estimate(found: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Worst case per home", title_justify="left", box=None, pad_edge=False)
    for heading, side in (("cell", "left"), ("epsilon", "right"), ("cap", "right"), ("unit", "left"), ("", "left")):
        table.add_column(heading, justify=side)
    rows = [(label, _epsilon(micro, "unbounded"), _epsilon(cap, "none"), unit,
             "refused: above the cap" if refused else "")
            for label, micro, cap, refused, unit in found.worst_case_epsilon]
    rows = list(dict.fromkeys(rows))
    for row in rows[:40]:
        table.add_row(*(Text(str(cell)) for cell in row))
    console().print(table)
    if len(rows) > 40:
        print(f"... and {len(rows) - 40:,} more cells")
    pairs([("homes", f"{found.homes:,}"), ("cells", f"{found.cells:,}"), ("rounds", f"{found.rounds:,}"),
            ("exchanges", f"{found.exchanges:,}"), ("charges to ledgers", f"{found.charges:,}"),
            ("time, about", _time(found.seconds)), ("memory, driver", f"{found.driver_mb:,.0f} MB"),
            ("memory, each worker", f"{found.worker_mb:,.0f} MB"), ("disk", f"{found.disk_mb:,.1f} MB")])
    for note in found.notes:
        print(f"note: {one_line(note)}")


def _epsilon(micro: int | None, otherwise: str) -> str:
    from fedenergy.ids import decimal_text

    return otherwise if micro is None else decimal_text(Decimal(micro).scaleb(-6))


def _time(seconds: float) -> str:
    from fedenergy.progress import clock_text

    return f"{seconds:.0f} s" if seconds < 100 else clock_text(seconds)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point: runs the command and leaves with its exit code."""
    try:
        code = app(args=None if args is None else list(args), prog_name="fedenergy", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        message = re.sub(r"( Did you mean '[^']*'\?)\1", r"\1", error.format_message())  # Click and Typer both hint
        code = _complain(message, 2, error)
    except click.Abort as error:
        code = _complain("interrupted", 130, error)
    except FedenergyError as error:
        code = _complain(error, error.exit_code, error)
    except BrokenPipeError:  # the reader left, as in `fedenergy check ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        code = _complain(os_text(error), 1, error)
    except _foreseen() as error:
        code = _complain(error, 1, error)
    except Exception as error:
        debug = "" if _debug() else " (FEDENERGY_DEBUG=1 shows where)"
        code = _complain(f"unexpected {type(error).__name__}: {error}{debug}", 1, error)
    sys.exit(code if isinstance(code, int) else 0)


def _foreseen() -> tuple[type[BaseException], ...]:
    """Failures of the ledger, which say themselves what to do."""
    if "fedenergy.box.ledger_rows" not in sys.modules:
        return ()
    from fedenergy.box.ledger_rows import LedgerBroken, LedgerUnavailable

    return LedgerBroken, LedgerUnavailable


def _debug() -> bool:
    return os.environ.get("FEDENERGY_DEBUG", "0") not in ("", "0")


def _complain(message: object, code: int, error: BaseException) -> int:
    if _debug():
        traceback.print_exception(error)
    print(f"Error: {one_line(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
