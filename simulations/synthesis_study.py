"""Artificial load profiles: the load-synthesis source's claims, the trade-off of its knobs, and synthesisers at equal
epsilon.

    fedenergy run configs/synthesis_source.toml [--quick] [--data DIR]

Three studies, chosen by `studies`: "variants" (its cases 1 and 3 and the components between them, every exchange of days,
with and without segments; figure 11 and the ranking by demand response), "tradeoff" (K and STL's seasonal window over PSI,
DRP error, DCR, NNDR), "equal_epsilon" (private mode, a plain DP histogram and DP diffusion, one privacy unit). Every figure
is scored against homes that the generator never saw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedenergy.privacy.noise import SimulationNoise
from fedenergy.progress import Progress
from fedenergy.report.words import number
from fedenergy.studies import Finished, Place, kept, write_results
from fedenergy.synthesis import shuffle as exchanges
from fedenergy.synthesis.components import SEASONAL_PARTS
from fedenergy.synthesis.stream import Plan
from simulations import pages
from simulations.synthesising import cells, claims, figures, rivals, scoring
from simulations.synthesising.diffusion import Diffusion
from simulations.synthesising.homes import Split, population, split

STUDIES = ("variants", "tradeoff", "equal_epsilon")
SHOWN = {"psi": "PSI", "daily_curve_error": "mean day", "drp_error": "DRP error", "discriminative_day": "told apart, day",
         "forecast_ratio": "forecast", "violations": "steps > σ", "copies_day": "copied days", "dcr_day_share": "DCR day",
         "dcr_home_share": "DCR home", "nndr_home": "NNDR home", "membership_day": "AUC day", "membership_home": "AUC home",
         "linkage_home": "finds home", "top_overlap_udrp": "top tenth"}
BRIEF = ("method", "PSI", "mean day", "DRP error", "steps > σ", "AUC day", "AUC home", "finds home")    # for a terminal
HOME_MS, JUDGE_MS = 2.0, 60.0     # rough costs of one record, made and judged: for `check` alone


@dataclass(frozen=True)
class SynthesisStudy:
    """A study of artificial load profiles.

    population  `use` and arguments of whose records to start from, as in any config
    synthesis   the plan: keys of synthesis.stream.Plan and of synthesis.records.Reading; `fedenergy synthesise` reads it too
    holdout     share of the records, of whole owners, that the generator never sees
    studies     some of variants, tradeoff, equal_epsilon
    recipes     of variants: "source" (marginal trend, one GEV, independent draws), "sound" (joint trend, hourly GEV, memory)
    shuffles, segments, seasonal_parts   of variants; other seasonal parts are tried on the first of each
    clusters, seasonal   the grid of tradeoff
    rivals, epsilons, delta   of equal_epsilon: household, replace-one; diffusion: its settings
    canaries    a second run of each cheap rival with made-up homes, for a lower bound of epsilon
    judged      the page of the plan itself, judged/index.html
    """

    name: str = "synthesis"
    title: str = "Artificial load profiles"
    population: Mapping[str, Any] = field(default_factory=lambda: {"use": "fedenergy:simulate_households", "count": 145})
    synthesis: Mapping[str, Any] = field(default_factory=dict)
    holdout: float = 0.3
    studies: tuple[str, ...] = ("variants",)
    recipes: tuple[str, ...] = ("source", "sound")
    shuffles: tuple[str, ...] = ("free", "within_date", "same_daytype")
    segments: tuple[bool, ...] = (True, False)
    seasonal_parts: tuple[str, ...] = SEASONAL_PARTS
    clusters: tuple[int, ...] = (2, 4, 6, 8)
    seasonal: tuple[int, ...] = (7, 13, 19)
    rivals: tuple[str, ...] = rivals.RIVALS
    epsilons: tuple[float, ...] = (1.0, 4.0)
    delta: float = 1e-5
    diffusion: Mapping[str, Any] = field(default_factory=dict)
    canaries: bool = True
    judged: bool = True
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name, options in (("studies", STUDIES), ("recipes", tuple(cells.RECIPES)), ("shuffles", exchanges.METHODS),
                              ("seasonal_parts", SEASONAL_PARTS), ("rivals", rivals.RIVALS)):
            for value in getattr(self, name):
                if value not in options:
                    raise ValueError(f"{name} has {value!r}; use some of {', '.join(options)}")
        for name in ("studies", "recipes", "shuffles", "segments", "clusters", "seasonal", "rivals", "epsilons", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; give at least one value")
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout = {self.holdout!r}; use a share strictly between 0 and 1, such as 0.3")
        if not all(epsilon > 0 for epsilon in self.epsilons) or not 0 < self.delta < 1:
            raise ValueError(f"epsilons = {self.epsilons}, delta = {self.delta!r}; use epsilons above 0 and a delta "
                             "inside (0, 1)")
        self.plan, self.how  # noqa: B018 - their checks

    @property
    def plan(self) -> Plan:
        return Plan.of_table(self.synthesis)

    @property
    def how(self) -> Diffusion:
        unknown = set(self.diffusion) - set(Diffusion.__dataclass_fields__)
        if unknown:
            raise ValueError(f"[diffusion] has no key {sorted(unknown)[0]!r} (takes: "
                             f"{', '.join(Diffusion.__dataclass_fields__)})")
        return Diffusion(**self.diffusion)

    def toy(self) -> SynthesisStudy:
        """At most 48 records, one seed, the first values of each list; a small network."""
        smaller = dict(self.population)
        if "count" in smaller or str(smaller.get("use", "")).endswith((":simulate_households", ":london_households")):
            smaller["count"] = min(int(smaller.get("count", 48)), 48)
        return replace(self, name=f"{self.name}-quick", population=smaller, holdout=max(self.holdout, 0.3),
                       recipes=self.recipes[:2],
                       shuffles=self.shuffles[:1],
                       segments=self.segments[:1], seasonal_parts=self.seasonal_parts[:1], clusters=self.clusters[:2],
                       seasonal=self.seasonal[:1], epsilons=self.epsilons[-1:], seeds=self.seeds[:1], judged=False,
                       diffusion={**self.diffusion, "steps": 20, "width": 16, "depth": 1, "batch": 16, "windows": 1,
                                  "sampling_steps": 5})

    def check(self, place: Place) -> list[tuple[str, str]]:
        """What would run; reads no readings."""
        table = dict(self.population)
        takes_data = not str(table.get("use", "")).endswith(":simulate_households")
        homes = len(population(table, place)) if not takes_data or place.data else None
        mine, rivals_count = self._cells(), len(self._rivals())
        window = f"{self.plan.reading.days} days" if self.plan.reading.days else "the whole record"
        rows = [("records", "known with --data" if homes is None else f"{homes:,}, of which {self.holdout:.0%} are kept "
                                                                      "away"),
                ("window", window), ("cells", f"{len(mine):,} of variants and trade-off, {rivals_count:,} at equal epsilon")]
        if mine:
            rows.append(("guarantee of curator cells", "none (heuristic): epsilon = infinity"))
        if "equal_epsilon" in self.studies:
            rows += [("epsilon", f"{', '.join(f'{e:g}' for e in self.epsilons)} at delta {self.delta:g} per household "
                                 "(all of its "
                                 "days), replace-one; each rival spends it anew on the same records: a comparison, not a "
                                 "release"),
                     ("noise", SimulationNoise.stamp)]
        if homes:
            minutes = (len(mine) + 2 * rivals_count) * homes * (HOME_MS + JUDGE_MS) / 60_000
            more = " and the diffusion's training" if rivals_count and "dp_diffusion" in self.rivals else ""
            rows.append(("time, about", f"{max(1, round(minutes))} min{more}"))
        return rows

    def run(self, place: Place, progress: Progress) -> Finished:
        """Make and judge every cell that is not kept yet; write metrics.csv, cells.csv, table.csv, figures/, report.html."""
        folder = place.folder(self)
        folder.mkdir(parents=True, exist_ok=True)
        homes = split(self.population, self.plan.reading, self.holdout, place)
        mine, others = self._cells(), self._rivals()
        progress.start(len(mine) + len(others) + self.judged, self.name)
        rows, drawn = [], {}
        for cell in mine:
            found = kept(folder, cell.key, lambda cell=cell: scoring.score(homes, lambda: cell.make(homes.homes)))
            rows.append(cell.row | {"epsilon": math.inf, "trust": "curator", "mechanism": "none"} | found["scores"])
            drawn.setdefault(cell.method, found["drp"])
            progress.advance(label=cell.method)
        said = []
        for one, seed in others:
            found = kept(folder, {"study": "equal_epsilon", "rival": one.name, "epsilon": str(one.epsilon), "seed": seed},
                         lambda one=one: self._rival(homes, one))
            rows.append({"study": "equal_epsilon", "method": one.name, "variant": one.name, "shuffle": "none",
                         "segments": True,
                         "recipe": "none", "seasonal_part": "none", "clusters": str(self.plan.clusters), "seasonal": 0,
                         "seed": seed, "epsilon": one.epsilon,
                         "delta": self.delta if math.isfinite(one.epsilon) else math.nan,
                         "trust": "curator",
                         "mechanism": "none" if math.isinf(one.epsilon) else "gaussian"} | found["scores"])
            said.append(f"{one.name.replace('_', ' ')}, ε {number(one.epsilon)}, seed {seed}: {found['guarantee']}")
            progress.advance(label=one.name)
        if self.judged:
            self._judge(homes, folder)
            progress.advance(label="judged")
        return self._publish(folder, homes, pd.DataFrame(rows), drawn, said)

    def _cells(self) -> list[cells.Cell]:
        found: list[cells.Cell] = []
        if "variants" in self.studies:
            found += cells.variants(self.plan, self.recipes, self.shuffles, self.segments, self.seasonal_parts, self.seeds)
        if "tradeoff" in self.studies:
            found += cells.tradeoff(self.plan, self.recipes[-1], self.clusters, self.seasonal, self.seeds)
        return found

    def _rivals(self) -> list[tuple[rivals.Rival, int]]:
        if "equal_epsilon" not in self.studies:
            return []
        return [(rivals.rival(name, self.plan, self.how, epsilon, self.delta, seed), seed) for seed in self.seeds
                for name in self.rivals for epsilon in (self.epsilons if name != "heuristic" else (math.inf,))]

    def _rival(self, homes: Split, one: rivals.Rival) -> dict[str, Any]:
        made = one.make(homes.homes)
        found = scoring.score(homes, lambda: made, canary=one.make if self.canaries and one.canaries else None,
                              claimed=one.epsilon, delta=self.delta if math.isfinite(one.epsilon) else 0.0)
        found["scores"].pop("ms_per_home")
        return found | rivals.statement(made)

    def _judge(self, homes: Split, folder: Path) -> None:
        page = folder / "judged" / "index.html"
        if not page.exists():
            scoring.score(homes, lambda: cells.make(homes.homes, self.plan, self.seeds[0]),
                          judged=lambda found: found.to_html(page, f"{self.title}: the plan, judged"))

    def _publish(self, folder: Path, homes: Split, raw: pd.DataFrame, drawn: dict[str, Any], said: list[str]) -> Finished:
        raw = raw.assign(dataset=homes.name)
        metrics = [name for name in scoring.METRICS if name in raw]
        write_results(folder, raw, vary=cells.VARY, metrics=[name for name in metrics if name != "ms_per_home"])
        keys = [*cells.VARY, "method", "epsilon"]
        table = raw.groupby(keys, dropna=False, sort=False)[metrics].mean().reset_index()
        table = table.reindex(columns=[*table.columns, *(name for name in scoring.METRICS if name not in table)])
        table.drop(columns="ms_per_home").dropna(axis=1, how="all").to_csv(
            folder / "table.csv", index=False, float_format="%.6g", lineterminator="\n")
        real = scoring.truth(homes) if drawn or said else {}
        judgements = claims.claims(table)
        drawings = figures.plates(table, drawn, real)
        lines = [f"{c.figure}: {c.claim}: {c.verdict} ({c.ours})" for c in judgements]
        page = pages.write_page(
            folder / "report.html", title=self.title, plates=drawings,
            stamp=SimulationNoise.stamp.capitalize() if said else "",
            meta=f"{folder.name} · {len(homes.homes.ids)} records, {len(homes.holdout.ids)} kept away · "
                 f"{homes.homes.days} days, "
                 f"every {homes.homes.step_minutes} minutes · {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}",
            short=[f"{line}." for line in lines] or ["No claim is judged on these data."],
            parts=[part for part in self._parts(table, judgements, homes, said) if part.html or any(
                plate.section == part.key for plate in drawings)])
        shown = _shown(table)
        return Finished(folder, page, shown[[name for name in BRIEF if name in shown]], lines)

    def _parts(self, table: pd.DataFrame, judgements: list[pages.Claim], homes: Split, said: list[str]) -> list[pages.Part]:
        facts = [f"{homes.owners} owners; {homes.filled:,} missing readings were estimated from the nearest days of the "
                 "same type."]
        facts += [f"Left out: {name}: {reason}." for name, reason in list(homes.excluded.items())[:20]]
        facts += ["DCR day, DCR home: median distance to the closest of the homes behind the records, over the same to "
                  "strangers; "
                  "below 1 means closer to members. A proxy, as is NNDR.",
                  "Forecast: error of a forecaster trained on the records over that of one trained on the real homes, on "
                  "strangers."]
        link = ('<p><a href="judged/index.html">The plan itself, judged in full</a></p>' if self.judged else "")
        return [pages.Part("drp", "Demand response, use and privacy"), pages.Part("tradeoff", "Clusters and seasonal "
                                                                                              "window"),
                pages.Part("equal", "At equal epsilon", pages.markup.bullets(said) if said else ""),
                pages.Part("holds", "What holds", pages.claims_table(judgements, "The source's claims, and ours.")
                           if judgements else ""),
                pages.Part("table", "All methods", link + pages.frame_table(_shown(table), "Mean over seeds.")),
                pages.Part("data", "Whose records", pages.markup.bullets(facts))]


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The columns for people, with names for people."""
    label = [f"K {row.clusters}, seasonal {row.seasonal}" if row.study == "tradeoff" else
             row.method.replace("_", " ") + (f", ε {number(row.epsilon)}" if row.study == "equal_epsilon" else "")
             for row in table.itertuples()]
    found = pd.DataFrame({"method": label})
    for name, heading in SHOWN.items():
        if name in table and table[name].notna().any():
            found[heading] = table[name].to_numpy(np.float64).round(9)
    return found


def main(config: Any = None, out: str = "runs") -> Finished:
    """Run a study (default: the first of the docstring, at toy size) from Python."""
    from fedenergy import studies
    from fedenergy.progress import SilentProgress

    study = config if isinstance(config, SynthesisStudy) else SynthesisStudy().toy()
    return studies.run(study, Place(out=out), SilentProgress())
