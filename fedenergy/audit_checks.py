"""What an audit is made of: the run as it was found, and checks with their outcome."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedenergy.errors import ConfigError
from fedenergy.report.load import RunData, RunFolderError

if TYPE_CHECKING:
    from fedenergy.config import Config
    from fedenergy.federation.plan import Plan

OK, FINDING, NOTE, ABSENT = STATES = ("ok", "finding", "note", "not checked")


def _other_study(folder: Path) -> str:
    """What a folder is a run of, where it is no study of queries to homes."""
    try:
        return str(tomllib.loads((folder / "config.resolved.toml").read_text(encoding="utf-8")).get("use", ""))
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. state: ok, finding (something is wrong), note, not checked (and why)."""

    area: str
    what: str
    state: str
    detail: str


@dataclass(frozen=True)
class Run:
    """A finished run, its ledger, and its plan where it can be made again.

    plan is None where it cannot (made from Python objects, files moved): why says so, for the checks that need it
    start   what start.json says
    """

    folder: Path
    data: RunData
    ledger: Path
    config: Config | None
    plan: Plan | None
    why: str = ""
    start: Mapping[str, Any] = field(default_factory=dict)
    _caps: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Read a run folder. ConfigError where it is none or unfinished. Changes nothing."""
        folder = Path(folder)
        if use := _other_study(folder):
            raise ConfigError(f"{folder} is a run of {use}, which answers no queries of a zone: fedenergy audit is for "
                              "studies with a [query]")
        try:
            data = RunData.read(folder)
            start = json.loads((folder / "start.json").read_text(encoding="utf-8"))
            ledger, fresh = folder / start["ledger"], int(start["fresh"])
        except RunFolderError as error:
            raise ConfigError(error) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{folder / 'start.json'} is absent or damaged: an audit needs to know where the ledger is "
                              f"({type(error).__name__})") from error
        config, plan, why = None, None, "the run was made from Python objects, so what it ran is not on file"
        if data.config.strip():
            from fedenergy.config import parse
            from fedenergy.federation.plan import plan_from_config

            try:
                config = parse(tomllib.loads(data.config))
                if config.privacy.noise == "secure" and not (ledger / "enrolment.key").exists():
                    raise ConfigError("the ledger has no enrolment.key")  # making a plan would make another one
                plan, why = plan_from_config(config, folder, ledger, fresh), ""
            except (ConfigError, tomllib.TOMLDecodeError) as error:
                why = f"the study cannot be planned again here: {error}"
        return cls(folder, data, ledger, config, plan, why, start)

    @cached_property
    def cells(self) -> Mapping[str, Mapping[str, Any]]:
        """cell -> its row in cells.csv."""
        return {row["cell"]: row for row in self.data.cells.to_dict("records")}

    def cap_of(self, home: str, otherwise: int) -> int:
        """A home's cap, integer micro-epsilon: its own agreement's where the homes hold files, which may have been renewed
        since; else the study's."""
        if home not in self._caps:
            enrolment = self.plan.worlds[0].enrolment if self.plan else None
            try:
                own = enrolment.agreement(home) if enrolment else None
                # a renewal may lower the cap below what was spent by then: nothing more is granted
                self._caps[home] = max(own.cap_micro, own.spent_micro) if own else otherwise
            except ValueError:
                self._caps[home] = otherwise
        return self._caps[home]
