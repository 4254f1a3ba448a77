"""What outages do to a zone's answer, and what filling them inside the box gives back.

    fedenergy run configs/gappy_homes.toml [--quick]

Simulated homes lose readings in outages of real lengths. Each box fills its own gaps (or does not), explains its use and
lets out a private answer. The zone's S is compared with the S of the same homes without any outage: an inside view, since
only the simulation knows it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

import fedenergy as fe
from fedenergy import metrics
from fedenergy.imputation.gappy import FILLS, OUTAGE_MINUTES, GappyHomes, teachers
from fedenergy.progress import Progress, SilentProgress
from fedenergy.report.gallery import Plate
from fedenergy.report.markup import bullets
from fedenergy.report.svg import PALETTE
from fedenergy.studies import Finished, Place, kept, write_results
from simulations import pages

TRUE = FILLS[0]
SAID = {"true": "no outage (oracle)", "none": "gaps stay", "linear": "linear", "imputer": "imputer, mean",
        "draw": "imputer, one draw"}
COLUMNS = ("zone", "zone_clipped", "home", "spearman", "released")
TITLES = {"zone": "zone", "zone_clipped": "zone, clipped", "home": "median home", "spearman": "ranks",
          "released": "released"}


@dataclass(frozen=True)
class GappyStudy:
    """The keys of configs/gappy_homes.toml.

    count, steps, seed, step_minutes   simulated homes
    missing        shares of every record lost; outage_minutes: lengths that outages are drawn from
    fills          what the boxes do with gaps (see fedenergy.imputation.gappy)
    gap_seeds      of the outages; seeds: of the noise
    lags, clip, trees   of Explain; epsilon, strategy: of the private answer, per home and answer
    """

    name: str = "gappy-homes"
    title: str = "Homes with outages: what filling gives back"
    count: int = 60
    steps: int = 744
    seed: int = 1
    step_minutes: int = 60
    missing: tuple[float, ...] = (0.1, 0.2, 0.4)
    outage_minutes: tuple[int, ...] = OUTAGE_MINUTES
    fills: tuple[str, ...] = FILLS
    gap_seeds: tuple[int, ...] = (0, 1)
    seeds: tuple[int, ...] = (0, 1, 2)
    lags: tuple[int, ...] = (1, 24, 168)
    clip: float = 50.0
    trees: int = 100
    epsilon: float = 1.0
    strategy: str = "strategies.central_laplace:CentralLaplace"

    def __post_init__(self) -> None:
        for name in ("missing", "outage_minutes", "fills", "gap_seeds", "seeds", "lags"):
            values = tuple(getattr(self, name))
            if not values or (name != "outage_minutes" and len(set(values)) < len(values)):
                raise ValueError(f"{name} = {list(values)}: give one or more, each once")
            object.__setattr__(self, name, values)
        if TRUE not in self.fills:
            raise ValueError(f'fills = {list(self.fills)} lacks "{TRUE}", with which the others are compared')
        for missing in self.missing:
            for fill in self.fills:
                self.homes(fill, missing, 0)
        self.query  # noqa: B018 - its own checks
        self.task.windows(self.homes(TRUE, 0.0, 0), 1, "next_window")

    @property
    def task(self) -> fe.Explain:
        return fe.Explain(lags=self.lags, clip=self.clip, trees=self.trees)

    @property
    def query(self) -> fe.Query:
        return fe.Query("appliances", epsilon=self.epsilon)

    def homes(self, fill: str, missing: float, gap_seed: int) -> GappyHomes:
        """The population of one cell."""
        return GappyHomes(self.count, self.steps, self.seed, self.step_minutes, fill=fill, missing=missing,
                          outage_minutes=self.outage_minutes, gap_seed=gap_seed)

    def cells(self) -> list[tuple[str, float, int]]:
        """(fill, missing, gap seed); without outages nothing depends on the last two."""
        return [(TRUE, 0.0, 0)] + [(fill, missing, gap) for missing in self.missing for gap in self.gap_seeds
                                   for fill in self.fills if fill != TRUE]

    def toy(self) -> GappyStudy:
        """20 homes, 20 trees, one share, one set of outages, two noise seeds."""
        return replace(self, count=min(self.count, 20), trees=min(self.trees, 20), missing=self.missing[-1:],
                       gap_seeds=self.gap_seeds[:1], seeds=self.seeds[:2])

    def check(self, place: Place) -> Sequence[tuple[str, str]]:
        """What a run would do and cost."""
        count, drawn = len(self.cells()), sum(fill in ("imputer", "draw") for fill, _, _ in self.cells())
        return [("homes", f"{self.count:,}"), ("cells", f"{count:,}"), ("models fitted", f"{2 * count * self.count:,}"),
                ("epsilon, each home and answer", f"{self.epsilon:g} (pure, replace-one); every cell and seed has its own "
                 "ledger"), ("imputer", "fitted to other simulated homes: no privacy cost"),
                ("seconds, about", f"{self.count * (count * self.trees * 8e-4 + drawn * 0.15):,.0f}")]

    def run(self, place: Place, progress: Progress) -> Finished:
        """Every cell, the table, the page."""
        folder, found = place.folder(self), []
        folder.mkdir(parents=True, exist_ok=True)
        progress.start(len(self.cells()), "cells")
        try:
            for fill, missing, gap in self.cells():
                key = {"fill": fill, "missing": missing, "gap": gap}
                found.append({**key, **kept(folder, key, lambda cell=(fill, missing, gap): self._cell(folder, *cell))})
                progress.advance()
        finally:
            progress.close()
        rows = self._scored(found)
        write_results(folder, rows, vary=["fill", "missing", "gap"], metrics=COLUMNS, population="population",
                      strategy="strategy")
        table = self._table(rows)
        table.to_csv(folder / "what_filling_gives_back.csv", index=False, float_format="%.6g", lineterminator="\n")
        return Finished(folder, self._page(folder, found, rows, table), table, self._lines(table))

    # ---- one cell

    def _cell(self, folder, fill: str, missing: float, gap: int) -> dict[str, Any]:
        """Every home's S (inside view), and the zone's private answers, by noise seed."""
        homes, task = self.homes(fill, missing, gap), self.task
        if fill in ("imputer", "draw"):
            teachers(self.step_minutes, homes.channels)
        rows = slice(*task.windows(homes, 1, "next_window")[0].rows)
        inside = []
        for index in range(len(homes)):
            try:
                inside.append(task.explainer.summary(homes.load(index), rows).values.tolist())
            except ValueError:                    # too few readings left: the box answers zeros, noised like any other
                inside.append([0.0] * len(homes.channels))
        report = fe.compare(homes, task, self.query, [self.strategy], seeds=self.seeds, oracle=False,
                            progress=SilentProgress(), name="answers", out=folder / "answers")
        summary = json.loads((report.folder / "summary.json").read_text())
        answers = {str(one["seed"]): one["released"] for one in summary["zone_answers"]}
        return {"inside": inside, "answers": answers, "stamp": str(summary.get("noise", "")),
                "lost": float(np.mean([homes.lost(index).mean() for index in range(len(homes))])) if missing else 0.0}

    def _scored(self, found: list[dict[str, Any]]) -> pd.DataFrame:
        """One row per cell and noise seed."""
        truth = np.array(next(one["inside"] for one in found if one["fill"] == TRUE))
        zone, clipped, rows = truth.sum(0), self._clipped(truth).sum(0), []
        size = np.maximum(np.abs(truth).sum(1), 1e-12)
        for one in found:
            own = np.array(one["inside"])
            plain = {"zone": _apart(own.sum(0), zone), "zone_clipped": _apart(self._clipped(own).sum(0), clipped),
                     "home": float(np.median(np.abs(own - truth).sum(1) / size)),
                     "spearman": metrics.spearman(own.sum(0), zone)}
            rows += [{"population": "gappy", "strategy": SAID[one["fill"]], "fill": one["fill"], "missing": one["missing"],
                      "gap": one["gap"], "epsilon": self.epsilon, "delta": 0.0, "seed": int(seed), "mechanism": "laplace",
                      **plain, "released": _apart(np.array(values), clipped)} for seed, values in one["answers"].items()]
        return pd.DataFrame(rows)

    def _clipped(self, values: np.ndarray) -> np.ndarray:
        """(n, d) each row within the l1 bound that the box clips to."""
        norm = np.maximum(np.abs(values).sum(1, keepdims=True), 1e-12)
        return values * np.minimum(1.0, self.clip / norm)

    # ---- what is shown

    def _table(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Means over gap and noise seeds, with the sd of what was released."""
        groups = rows.groupby(["missing", "fill"], sort=False)
        table = groups[list(COLUMNS)].mean().reset_index()
        table["released_sd"] = groups["released"].std(ddof=1).to_numpy()
        return table

    def _lines(self, table: pd.DataFrame) -> list[str]:
        lines = []
        for missing in self.missing:
            own = table[table["missing"] == missing].set_index("fill")["zone"]
            lines.append(f"{missing:.0%} lost: the zone's S is off by " + ", ".join(
                f"{pages.percent(value)} ({SAID[name]})" for name, value in own.items()))
        return lines

    def _page(self, folder, found, rows: pd.DataFrame, table: pd.DataFrame):
        shown = table.assign(fill=[SAID[name] for name in table["fill"]]).rename(columns=TITLES | {"released_sd": "± sd"})
        formats = {name: pages.percent for name in ("missing", *(TITLES[c] for c in COLUMNS if c != "spearman"), "± sd")}
        claims = self._claims(table)
        noise = next(one["stamp"] for one in found)
        return pages.write_page(
            folder / "report.html", title=self.title, meta=f"{folder.name} · {self.count} homes · {len(found)} cells",
            short=[*self._lines(table), *(f"{c.claim} {c.verdict.capitalize()}." for c in claims)],
            stamp="Seeded noise: not private" if noise == "simulation" else "", plates=[self._plate(table)],
            parts=[pages.Part("holds", "What holds", pages.claims_table(claims, "Our own questions.")),
                   pages.Part("table", "What filling gives back", pages.frame_table(
                       shown, "Distance from the answer without outages, relative l1; ranks: Spearman of the zone's S.",
                       formats), True),
                   pages.Part("setting", "Setting", bullets([
                       f"{self.count} simulated homes, {self.steps} steps of {self.step_minutes} minutes; whole outages, "
                       "their lengths drawn from a list until the share is lost, the same outages for every fill.",
                       "imputer: one Gaussian process per channel (dp_gp) over weeks, fitted without noise to other "
                       "simulated homes: no real home is in it. It fills before the home explains. Lines are free too.",
                       "zone: sum of all homes' S before clipping. clipped: after the box's l1 bound. median home: each "
                       "home's own S against its own truth. released: the private answer against the clipped answer "
                       "without outages, noise included.",
                       f"Each answer costs each home epsilon {self.epsilon:g} (pure, replace-one household), whatever "
                       "fills the gaps: filling reads the home's own readings inside its box, which the noise covers.",
                       "One draw keeps the spread of readings; the mean does not, and S is a sum of products."]))])

    def _claims(self, table: pd.DataFrame) -> list[pages.Claim]:
        found = []
        for column, claim in (("zone", "The imputer brings the zone's S closer to the truth than linear lines."),
                              ("home", "It brings the median home's own S closer to the truth than linear lines.")):
            both = table.pivot(index="missing", columns="fill", values=column)
            if {"imputer", "linear"} <= set(both):
                better = (both["imputer"] < both["linear"]).loc[list(self.missing)]
                ours = "; ".join(f"{missing:.0%} lost: {pages.percent(both['imputer'][missing])} against "
                                 f"{pages.percent(both['linear'][missing])}" for missing in self.missing)
                found.append(pages.Claim("ours", claim, "none", ours, pages.judged(*better.tolist()),
                                         f"smaller mean {TITLES[column]} at every share", True))
        return found

    def _plate(self, table: pd.DataFrame) -> Plate:
        figure, (left, right) = pages.axes(2.6, 1, 2)
        for k, fill in enumerate(name for name in self.fills if name != TRUE):
            own = table[table["fill"] == fill]
            for ax, column in ((left, "zone"), (right, "home")):
                ax.plot(own["missing"] * 100, own[column] * 100, "o-", color=PALETTE[k], label=SAID[fill], linewidth=1.6)
        left.set(xlabel="lost, %", ylabel="off, %", title="zone")
        right.set(xlabel="lost, %", title="median home")
        for ax in (left, right):
            ax.set_ylim(bottom=0)
        pages.legend(figure, left, 4)
        return Plate("filling", "table", "Distance from the answer without outages", "Mean over sets of outages.",
                     "Relative error of the zone's S and of the median home's S against the share of readings lost.", figure)


def _apart(found: np.ndarray, truth: np.ndarray) -> float:
    """Relative l1 distance."""
    size = float(np.abs(truth).sum())
    return float(np.abs(found - truth).sum()) / size if size else math.nan
