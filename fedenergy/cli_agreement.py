"""`fedenergy agreement`: signed agreements of a study's homes as files: make, show, verify, renew, revoke."""

from __future__ import annotations

import datetime
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedenergy.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedenergy.box.agreement import Agreement, AgreementTerms
    from fedenergy.box.agreement_office import AgreementOffice

HELP = """Agreements of the homes as signed files: what a box may answer, to whom, and how much epsilon it may spend.

\b
  fedenergy agreement new agreements --config configs/quickstart.toml     one signed file a home
  fedenergy run configs/quickstart.toml --set agreement='{folder = "agreements"}'
  fedenergy agreement show agreements                                      who agreed to what
  fedenergy agreement verify agreements                                    signatures, keys, the revocation list
  fedenergy agreement revoke agreements home-000003                          that home refuses from the next query on
  fedenergy agreement new agreements --renew --home home-000003 --ledger runs/quickstart-1a2b3c4d/ledger

Each box reads its own file, believes only what the Authenticator's key signed, and reads the revocation list again
before every query, while a study runs too. The private keys lie beside the folder (agreements.keys, readable by you
alone): they are those of simulated homes; a real box keeps its own."""

app = typer.Typer(name="agreement", no_args_is_help=True, rich_markup_mode="rich", help=HELP)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of agreements.")]
FolderOrFile = Annotated[Path, typer.Argument(metavar="FOLDER|FILE", help="A folder of agreements, or one home's file.")]
Keys = Annotated[Path | None, typer.Option("--keys", metavar="DIR", help="The private keys (default: FOLDER.keys).")]
HOMES, TERMS = "Which homes", "What they agree to"
FLAGS = {"per_query_max": "--per-query", "classes": "--class", "purposes": "--purpose", "queriers": "--querier",
         "not_before": "--from", "expires": "--until"}  # the rest are called as in the table


def _terms(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=TERMS)


@app.command()
def new(folder: Folder,
        config: Annotated[Path | None, typer.Option("--config", metavar="CONFIG", rich_help_panel=HOMES, help=(
            "All homes of this study; the terms of its \\[agreement] table hold where no option says otherwise."))] = None,
        home: Annotated[list[str], typer.Option("--home", metavar="NAME", rich_help_panel=HOMES,
                                                help="A home by its id. Repeat it for more.")] = [],  # noqa: B006
        renew: Annotated[bool, typer.Option("--renew", rich_help_panel=HOMES, help=(
            "A new agreement for homes that have one: what they spent is carried over, the old one is revoked."))] = False,
        ledger: Annotated[Path | None, typer.Option("--ledger", metavar="DIR", rich_help_panel=HOMES, help=(
            "With --renew: the ledger that says what was spent, such as runs/NAME/ledger."))] = None,
        revoked: Annotated[bool, typer.Option("--revoked", rich_help_panel=HOMES, help=(
            "With --renew: put homes back in force that had withdrawn."))] = False,
        cap: Annotated[float | None, _terms("--cap", "EPSILON", "All answers together (default: 6.73).")] = None,
        per_query: Annotated[float | None, _terms("--per-query", "EPSILON", "One answer (default: the cap).")] = None,
        delta: Annotated[float | None, _terms("--delta", "DELTA", "All answers together; 0: no Gaussian noise.")] = None,
        trust: Annotated[list[str], _terms("--trust", "MODE", "local, sum, curator or open. Repeat it.")] = [],  # noqa: B006
        kinds: Annotated[list[str], _terms("--class", "CLASS", "general, specific, windows, ... Repeat it.")] = [],  # noqa: B006
        purpose: Annotated[list[str], _terms("--purpose", "WORD", "planning, monitoring, diagnosis. Repeat it.")] = [],  # noqa: B006
        querier: Annotated[list[str], _terms("--querier", "NAME", "Who may ask. Repeat it.")] = [],  # noqa: B006
        zone: Annotated[str | None, _terms("--zone", "NAME", "The zone that may ask.")] = None,
        granularity: Annotated[str | None, _terms("--granularity", "WORD", (
            "The finest that is released: total, daypart, appliance, feature_lag."))] = None,
        start: Annotated[str | None, _terms("--from", "DATE", "First day (UTC), such as 2027-01-01.")] = None,
        until: Annotated[str | None, _terms("--until", "DATE", "The day from which it no longer holds.")] = None,
        keys: Keys = None) -> None:
    """Sign an agreement for each home, or renew one; the folder, keys and Authenticator are made where there are none.

    \b
    fedenergy agreement new agreements --config configs/quickstart.toml --cap 5
    fedenergy agreement new agreements --home home-000003 --cap 2 --trust sum --until 2027-01-01
    fedenergy agreement new agreements --renew --home home-000003 --ledger runs/quickstart-1a2b3c4d/ledger --cap 8
    """
    from fedenergy.box.agreement_ledger import check_ledger
    from fedenergy.box.agreement_office import spent_in
    from fedenergy.box.ledger_mark import holds_ledger

    if renew != (ledger is not None):
        raise ConfigError("--renew and --ledger belong together: a renewal carries over what the ledger says was spent")
    if ledger is not None and not holds_ledger(ledger):
        raise ConfigError(f"{ledger} is no ledger: give the folder of a run that holds 00.sqlite to 63.sqlite")
    if revoked and not renew:
        raise ConfigError("--revoked goes with --renew: it puts homes back in force that had withdrawn")
    if bool(home) == (config is not None):
        raise ConfigError("give the homes: --config CONFIG for all of a study, or --home NAME for one (not both)")
    given = {"cap": cap, "per_query_max": per_query, "delta": delta, "trust": trust, "classes": kinds, "purposes": purpose,
             "queriers": querier, "zone": zone, "granularity": granularity, "not_before": _date("--from", start),
             "expires": _date("--until", until)}
    homes, unit, terms = _study(config, home, {key: value for key, value in given.items() if value not in (None, [])})
    with _told():
        office = _office(folder, keys, create=not renew)
        if renew:
            if unknown := [name for name in homes if name not in office.homes()]:
                raise ConfigError(f"{unknown[0]} has no agreement in {folder} to renew: make one without --renew")
            check_ledger(office.folder, ledger)
            back = office.withdrawn(homes) if revoked else []
            made = office.renew(spent_in(ledger, homes), terms, revoked=revoked)
            most = max(made, key=lambda one: one.spent_micro)
            print(f"{len(made):,} renewed in {folder}; carried over: epsilon {_epsilon(most.spent_micro)} at most; "
                  f"revocation list: version {office.revocations().version}")
            if back:
                print(f"in force again, though revoked before: {', '.join(back[:5])}"
                      + (f" and {len(back) - 5:,} more" if len(back) > 5 else ""))
        else:
            made = office.issue(homes, terms, unit)
            print(f"{len(made):,} agreements in {folder}; private keys in {office.keys}")
    print(_in_words(made[0]))


@app.command()
def show(path: FolderOrFile,
         home: Annotated[str | None, typer.Argument(metavar="[HOME]", help="One home of the folder, in full.")] = None,
         keys: Keys = None) -> None:
    """Show what was agreed: one line a home, or one agreement in full.

    \b
    fedenergy agreement show agreements
    fedenergy agreement show agreements home-000003
    fedenergy agreement show agreements/homes/home-000003.json
    """
    from fedenergy.box.agreement_ledger import charged_in

    folder, name = _one(path, home)
    with _told():
        office = _office(folder, keys)
        now = int(time.time())
        if name is not None:
            _known(office, [name])
            found = office.standing(name, now)
            _full(found.agreement, found.state)
            return
        names = office.homes()
        for one in names:
            try:
                found = office.standing(one, now)
            except ValueError as error:
                print(f"{one:<20} not valid: {error}")
                continue
            print(f"{one:<20} {found.state:<16} {_in_words(found.agreement)}")
        listed = office.revocations()
        print(f"{len(names):,} homes; revocation list: version {listed.version}, {len(listed.ids):,} agreements")
        if (charged := charged_in(office.folder)) is not None:
            print(f"charged in the ledger {charged.path}")


@app.command()
def verify(path: FolderOrFile, keys: Keys = None) -> None:
    """Check signatures, names, keys, the revocation list and renewals; leave with 1 where something is wrong.

    \b
    fedenergy agreement verify agreements
    fedenergy agreement verify agreements/homes/home-000003.json
    """
    folder, name = _one(path, None)
    from fedenergy.box.agreement import key_id

    with _told():
        office = _office(folder, keys)
        found = [one for one in office.check() if name is None or Path(one.file).stem == name]
    for one in found:
        print(f"{one.file}: {one.text}")
    count = 1 if name is not None else len(office.homes())
    if found:
        print(f"{len(found)} finding(s) in {count:,} agreement(s)")
        raise typer.Exit(1)
    print(f"{count:,} agreement(s) verified with the Authenticator's key {key_id(office.public_key)}; "
          f"revocation list: version {office.revocations().version}")


@app.command()
def revoke(folder: Folder, homes: Annotated[list[str], typer.Argument(metavar="HOME...", help="Homes that withdraw.")],
           keys: Keys = None) -> None:
    """Withdraw homes: their agreements go on the signed list, and their boxes refuse from the next query on.

    A study that runs reads the list before every query. Answers given before stay given: nothing is refunded.

    \b
    fedenergy agreement revoke agreements home-000003 home-000007
    """
    with _told():
        office = _office(folder, keys)
        _known(office, homes)
        homes = list(dict.fromkeys(homes))
        added = office.revoke(homes)
        listed = office.revocations()
    if already := [home for home in homes if home not in added]:
        print(f"revoked already: {', '.join(already[:5])}" + (f" and {len(already) - 5:,} more" if len(already) > 5 else ""))
    print(f"{len(added):,} revoked; revocation list: version {listed.version}{'' if added else ', unchanged'}, "
          f"{len(listed.ids):,} agreements")


def _study(config: Path | None, home: Sequence[str], given: dict[str, Any]) -> tuple[list[str], str, AgreementTerms]:
    """Home ids, privacy unit, terms."""
    if config is None:
        return list(dict.fromkeys(home)), "household", _agreed(given, {})
    from fedenergy.cli_parts import use_data
    from fedenergy.config import load

    study = load(config)
    use_data(study.data)
    population = study.population.build()
    own = {} if "folder" in study.agreement else dict(study.agreement)
    return list(population.ids), population.unit, _agreed(given, own)


def _agreed(given: dict[str, Any], own: dict[str, Any]) -> AgreementTerms:
    """Terms of options and of a study's own table; a mistake names the option, or the key of the table."""
    from fedenergy.box.agreement import AgreementTerms
    from fedenergy.errors import call

    try:
        return call(AgreementTerms, {**own, **given}, "agreement")
    except ConfigError as error:
        key = str(error).removeprefix("[agreement] ").split(" ")[0]
        if key not in given or not str(error).startswith("[agreement] "):
            raise
        flag = FLAGS.get(key, f"--{key}")
        raise ConfigError(str(error).replace(f"[agreement] {key}", flag, 1)) from error


def _date(flag: str, text: str | None) -> datetime.date | None:
    try:
        return None if text is None else datetime.date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f'{flag} "{text}" is not a date: write YYYY-MM-DD') from None


def _office(folder: Path, keys: Path | None, create: bool = False) -> AgreementOffice:
    from fedenergy.box.agreement_office import AgreementOffice

    return AgreementOffice(folder, keys, create=create)


def _one(path: Path, home: str | None) -> tuple[Path, str | None]:
    """(folder, home) of a folder, or of one home's file in it."""
    if path.is_file() and path.parent.name == "homes":
        return path.parent.parent, path.stem
    return path, home


def _known(office: AgreementOffice, homes: Sequence[str]) -> None:
    names = office.homes()
    for home in homes:
        if home not in names:
            raise ConfigError(f"{home} has no agreement in {office.folder}.{did_you_mean(home, names)}")


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with a folder is a mistake of who named it: one line, exit code 2."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(error) from error


def _epsilon(micro: int) -> str:
    from fedenergy.privacy.epsilon import text

    return text(micro)


def _in_words(agreement: Agreement) -> str:
    spent = f", {_epsilon(agreement.spent_micro)} of it spent before" if agreement.spent_micro else ""
    return (f"epsilon {_epsilon(agreement.cap_micro)}{spent} per {agreement.unit} ({agreement.relation}), trust "
            f"{'/'.join(agreement.trust)}, {'/'.join(agreement.classes)} queries, until {_day(agreement.expires)}")


def _full(one: Agreement, state: str) -> None:
    highest = "the cap" if one.per_query_max_micro is None else _epsilon(one.per_query_max_micro)
    rows = [("household", one.household), ("state", state), ("cap", f"epsilon {_epsilon(one.cap_micro)}, all answers"),
            ("spent before", f"epsilon {_epsilon(one.spent_micro)}" if one.renews else "nothing: the first agreement"),
            ("one query", f"epsilon {_epsilon(one.per_query_min_micro)} to {highest}"), ("delta", f"{one.delta:g}"),
            ("unit", f"{one.unit}, {one.relation}"), ("trust", ", ".join(one.trust)), ("queries", ", ".join(one.classes)),
            ("purposes", ", ".join(one.purposes)), ("queriers", ", ".join(one.queriers)), ("zone", one.zone),
            ("granularity", one.granularity), ("from", _day(one.not_before)), ("until", _day(one.expires)),
            ("id", one.id), ("renews", one.renews or "-"), ("signed by key", one.key_id), ("box key", one.box_key.hex())]
    for name, value in rows:
        print(f"{name:<14} {value}")


def _day(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")
