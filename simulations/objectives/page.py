"""Result files and page of an objective-conditioning study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedenergy.privacy.noise import SimulationNoise
from fedenergy.report import markup
from fedenergy.report.words import number
from fedenergy.studies import Finished, Place, kept, write_results
from simulations import pages
from simulations.objectives import data, figures, tables
from simulations.objectives.claims import HOLDS_WHERE_RUN, Recount, figure_claims
from simulations.objectives.paper import SOURCE, STEPS
from simulations.objectives.runs import Results
from simulations.pages import FAILS, HOLDS, OPEN_QUESTION, PARTLY, Claim, Part

if TYPE_CHECKING:
    from simulations.objective_conditioning import Objectives

MOST = 12                # condition tables shown open; the others are folded
VARY = ("dataset", "pattern", "rate", "method", "regime", "asked", "sampler")


def publish(study: Objectives, folder: Path, results: Results, place: Place) -> Finished:
    """metrics.csv, cells.csv, table.csv, claims.csv, figures/ and report.html."""
    table = tables.summary(results.rows)
    scaling = kept(folder, {"figure": 2}, lambda: figures.curves(study)) if "figure 2" in study.tables else None
    claims = figure_claims(scaling) + Recount(study, results, table).claims()
    claims.sort(key=lambda claim: claim.figure.removeprefix("Table ").lower() not in {name.lower() for name in study.tables})
    rows = results.rows.assign(objective=results.rows["method"], delta=study.delta,
                               mechanism=[("gaussian" if r in ("as_published", "true_epsilon") else "none")
                                          for r in results.rows["regime"]])
    rows = rows.assign(epsilon=_epsilons(rows, results.costs), asked=["" if pd.isna(x) else x for x in rows["asked"]])
    rows.loc[rows["mechanism"] == "none", "delta"] = float("nan")
    write_results(folder, rows, vary=(*VARY[:3], "objective", *VARY[4:]), metrics=("mse", "mae", "rmse", "mse_mean"))
    table.to_csv(folder / "table.csv", index=False, float_format="%.6g", lineterminator="\n")
    pages.claims_frame(claims).to_csv(folder / "claims.csv", index=False, lineterminator="\n")
    written = write(study, folder, results, table, claims, scaling)
    return Finished(folder, written, table, lines(study, table, claims, results))


def _epsilons(rows: pd.DataFrame, costs: pd.DataFrame) -> list[float]:
    """The epsilon that each row cost (not the one asked); NaN where none applies."""
    spent = tables.true_epsilon(costs)
    def of(row: dict) -> float:
        if row["mechanism"] == "none":
            return float("nan")
        return row["asked"] if row["method"] == "dp_gp" else spent[
            (row["dataset"], row["method"], row["regime"], row["asked"])]
    return [of(row) for row in rows.to_dict("records")]


def lines(study: Objectives, table: pd.DataFrame, claims: Sequence[Claim], results: Results) -> list[str]:
    """What a run prints: the judged claims, then what was not run."""
    told = [f"{c.figure}: {c.claim}: {c.verdict} ({c.ours})" for c in claims if c.verdict != OPEN_QUESTION]
    return told + [f"not run: {what} ({why})" for what, why in results.unrun]


def short(study: Objectives, claims: Sequence[Claim], results: Results) -> list[str]:
    """The page's first lines."""
    source = [c for c in claims if not c.own]
    words = [f"{n} {word}" for word in (HOLDS, HOLDS_WHERE_RUN, PARTLY, FAILS, OPEN_QUESTION)
             if (n := sum(c.verdict == word for c in source))]
    size = f"DiT {study.depth} × {study.width}, patch {study.patch}, {study.steps:,} steps"
    told = [f"Of the source's {len(source)} counted claims: {', '.join(words)}."]
    if (study.depth, study.width, study.steps) != (8, 256, STEPS):
        told.insert(0, f"This is not the source's model: {size}, where the source has 8 × 256 and {STEPS:,} steps. "
                       "Verdicts are about this run.")
    return told + [f"{c.figure}: {c.claim}: {c.verdict} ({c.ours})." for c in claims if c.own]


def write(study: Objectives, folder: Path, results: Results, table: pd.DataFrame, claims: Sequence[Claim],
          scaling: dict | None) -> Path:
    """report.html."""
    plates = figures.plates(study, table, scaling)
    tested = [c for c in claims if c.verdict != OPEN_QUESTION and not c.own]
    rest = [c for c in claims if c.verdict == OPEN_QUESTION and not c.own]
    own = [c for c in claims if c.own]
    parts = [Part("holds", "What holds", "".join(filter(None, [
        pages.claims_table(tested, f"Counted claims of {SOURCE}, recounted; the verdict is that of the view “as published, "
                           "literal sampler”, where it was run.") if tested else "",
        pages.claims_table(own, "Our own questions.") if own else "",
        markup.details(f"{len(rest)} claims cannot be tested here: their cells were not run", pages.claims_table(
            rest, "Not run in this study.")) if rest else ""])))]
    parts += _special(study, results, table)
    if plates:
        parts.append(Part("figures", "Figures"))
    parts += _conditions(study, results, table)
    parts.append(Part("costs", "What it costs", tables.costs_table(study, results) + markup.bullets(_notes(results))))
    parts.append(Part("settings", "Settings", markup.pairs(settings(study, results))))
    if results.unrun:
        parts.append(Part("unrun", "Not run", markup.bullets(f"{what}: not run ({why})." for what, why in results.unrun)))
    parts.append(Part("all", "All cells", markup.details("Every row", tables.frame(table))))
    stamp = SimulationNoise(0).stamp
    return pages.write_page(folder / "report.html", title=study.title, short=short(study, claims, results), parts=parts,
                            plates=plates, stamp=stamp[:1].upper() + stamp[1:],
                            meta=" · ".join(filter(None, [
                                folder.name, f"after {SOURCE}",
                                ", ".join(t if t.startswith("figure") else f"table {t}" for t in study.tables),
                                f"{len(study.seeds)} seed{'s' * (len(study.seeds) > 1)}" if study.datasets else ""])))


def _special(study: Objectives, results: Results, table: pd.DataFrame) -> list[Part]:
    """The tables that are not one row per method and condition."""
    cells, found = tables.Cells(table), []
    shown = [view for view in tables.views(study) if view.sampler in study.samplers[:2]]
    conditions = [c for c in data.conditions(study) if c[0] in data.KINDS]
    makers = {"3": ("Table 3: decomposition", lambda: tables.table_3(study, cells, shown, conditions)),
              "4": ("Table 4: gradient norms in training", lambda: tables.table_4(results)),
              "5": ("Table 5: MAE by missing rate", lambda: tables.table_5(study, cells, shown)),
              "8": ("Table 8: tuned eps", lambda: tables.table_8(study, results)
                    + tables.table_8_errors(study, cells, shown)),
              "I.17": ("Table I.17: controlled attenuation", lambda: tables.table_i17(results))}
    for name, (title, make) in makers.items():
        if name in study.tables:
            found.append(Part(f"table{name.lower().replace('.', '')}", title, make(), inside=name in ("4", "I.17")))
    return found


def _conditions(study: Objectives, results: Results, table: pd.DataFrame) -> list[Part]:
    """A table per data set and condition."""
    found = []
    for dataset in study.datasets:
        run = set(zip(*(table[table["dataset"] == dataset][name] for name in ("pattern", "rate"))))
        here = [c for c in data.conditions(study) if c in run]
        if not here:
            why = dict(results.unrun).get(dataset, "no cell was reached")
            found.append(Part(f"set-{dataset}", dataset, markup.paragraph(f"Not run: {why}.")))
            continue
        made = [tables.measured(study, table, results.costs, dataset, c) for c in here]
        html = "".join(made[:MOST]) + (markup.details(f"{len(made) - MOST} more conditions", "".join(made[MOST:]))
                                       if len(made) > MOST else "")
        found.append(Part(f"set-{dataset}", dataset, markup.paragraph(f"{results.sets[dataset]}.") + html))
    return found


def _notes(results: Results) -> list[str]:
    """What the figures of the table do not cover, each once."""
    notes: dict[str, list[str]] = {}
    for row in results.costs.to_dict("records"):
        for note in row["notes"]:
            regimes = notes.setdefault(note, [])
            if tables.WORDS[row["regime"]] not in regimes:
                regimes.append(tables.WORDS[row["regime"]])
    return [f"Not covered, {' and '.join(regimes)}: {note}." for note, regimes in notes.items()] + [
        "as published: the noise multiplier and steps of the source, whatever they cost. true ε: calibrated by PLD.",
        "dp_gp's ε is under replace-one, DP-SGD's under add/remove (its replace-one ε stands beside it).",
        "Filling reads the query window's own values: training with DP does not protect those."]


def settings(study: Objectives, results: Results) -> list[tuple[str, str]]:
    """Everything that determines the numbers."""
    public = {"by regime": "min and max of the training windows as published and without privacy, public limits at a true ε",
              "training": "min and max of the training windows", "public": "public limits where known"}[study.scale]
    return [("model", f"DiT with AdaLN-Zero, {study.depth} blocks of {study.width}, {study.heads} heads, patch "
                      f"{study.patch}"),
            ("training", f"AdamW {study.rate:g}, {study.steps:,} steps, batch {study.batch} ({study.batch_electricity} "
                         f"Electricity), C {study.clip:g}, σ {study.sigma:g} as published"),
            ("true ε by", "a larger σ at all steps" if study.calibrate == "sigma" else "fewer steps at the source's σ"),
            ("checkpoint", f"best of validation, every {study.valid_every:,} steps" if study.select == "best"
             else "the last"),
            ("loss", f"on {study.loss_on} positions, {study.reduction} over them (the source leaves both open)"),
            ("training masks", f"{study.training_masks}: 10 to 50 % (open in the source)"),
            ("schedule", f"{study.schedule}, {study.diffusion_steps:,} diffusion steps"),
            ("sampling", f"DDIM {study.ddim_steps} steps, {study.samples} samples, median; clipped to the scale at the end; "
                         "clip_x0: at every step too; start_t: first time of the sampler"),
            ("test masks", "the same for every method and seed; blocks of 4 to 12 steps; outage: one run"),
            ("scale", public), ("ETT channels", study.channels),
            ("test windows", f"at most {study.test_windows}" if study.test_windows else "all"),
            ("seeds", ", ".join(map(str, study.seeds))),
            ("learned", ", ".join(study.learned) or "none in this study"),
            ("tuning", f"C in {', '.join(f'{c:g}' for c in study.tuning_clips)}; rate in "
                       f"{', '.join(number(r) for r in study.tuning_rates)}")]


