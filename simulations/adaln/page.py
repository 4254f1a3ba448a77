"""Result files and the page of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedenergy.imputation.diagnose import LAB
from fedenergy.report.gallery import Plate
from fedenergy.report.markup import bullets, paragraph
from fedenergy.studies import Finished, write_results
from simulations import pages
from simulations.adaln import claims as judge
from simulations.adaln import figures
from simulations.adaln.measure import MAGNITUDES, REACH, TYPICAL
from simulations.adaln.runs import Results, overlap, shape_of
from simulations.adaln.settings import ABLATION, P99, PLAIN, PUBLISHED, REGIMES, RMSE_FORECAST, TASKS, TRUE, bound_of

if TYPE_CHECKING:
    from simulations.adaln_zero import AdaLNZero

ERRORS = ("rmse", "mae", "r2", "coverage")
BY = ["dataset", "task", "regime", "asked", "clip", "objective", "limits"]
SOURCE = ("arXiv 2602.22610 prints, on its own meter (vanilla, then with limits): forecasting RMSE "
          f"{RMSE_FORECAST[0]} and {RMSE_FORECAST[1]} at σ 0.05; p99 of ‖g_cond‖ ~{P99[0]} and ~{P99[1]} at σ 0.2; RMSE of "
          "its ablation " + ", ".join(f"{value:.2f} ({name})" for name, value in ABLATION.items()) + ".")


def publish(study: AdaLNZero, folder: Path, found: Results) -> Finished:
    """metrics.csv, cells.csv, table.csv, gradients_lab_only.csv, what_holds.csv, figures/ and report.html."""
    if found.rows.empty:
        page = pages.write_page(folder / "report.html", title=study.title, meta=folder.name, plates=[], parts=[],
                                short=[f"{what}: {why}." for what, why in found.unrun])
        return Finished(folder, page, found.rows, [f"{what}: {why}" for what, why in found.unrun])
    table = summary(found.rows)
    claims = judge.claims_of(study, found)
    write_files(study, folder, found, table, claims)
    page = write(study, folder, found, table, claims)
    lines = [f"{c.verdict}: {c.claim} {c.ours}" for c in claims if c.ours != judge.NOT_RUN]
    lines += [f"{what}: {why}" for what, why in found.unrun]
    return Finished(folder, page, table, lines)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds by cell and task, in the order of the run, with the standard deviation of RMSE."""
    rows = rows if "coverage" in rows else rows.assign(coverage=math.nan)        # free fillings only: no cell was begun
    group = rows.groupby(BY, sort=False, dropna=False)
    return group[list(ERRORS)].mean().assign(rmse_sd=group["rmse"].std(ddof=1).fillna(0.0), seeds=group.size()).reset_index()


def write_files(study: AdaLNZero, folder: Path, found: Results, table: pd.DataFrame, claims: list[pages.Claim]) -> None:
    """The CSV files; figures of gradients stay apart from metrics.csv: they are not for release."""
    pattern = {"imputation": "random", "forecasting": "suffix"}
    rate = {"imputation": study.missing, "forecasting": study.horizon / study.length}
    rows = found.rows.assign(pattern=found.rows["task"].map(pattern), rate=found.rows["task"].map(rate),
                             delta=[study.delta if r in (PUBLISHED, TRUE) else None for r in found.rows["regime"]],
                             sigma=[a if r == PUBLISHED else "" for r, a in zip(found.rows["regime"], found.rows["asked"])])
    rows["clip"] = ["" if math.isnan(clip) else clip for clip in rows["clip"]]
    write_results(folder, rows, metrics=["rmse", "mae", "mse", "r2", "coverage"], strategy="limits",
                  vary=["dataset", "pattern", "rate", "objective", "regime", "asked", "sigma", "clip", "limits"])
    for name, frame in (("table", table), ("gradients_lab_only", found.gradients), ("times_lab_only", found.times),
                        ("sizes_lab_only", found.sizes), ("costs", found.costs.drop(columns=["notes"], errors="ignore")),
                        ("what_holds", pages.claims_frame(claims))):
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")


def shown(table: pd.DataFrame, dataset: str, task: str) -> pd.DataFrame:
    """The errors of one set and task, free fillings last."""
    here = table[(table["dataset"] == dataset) & (table["task"] == task)]
    free = here["regime"].isin(["free", "unprotected"])
    noise = [r if r in ("free", "unprotected") else figures.noise_words(r, a) for r, a in zip(here["regime"], here["asked"])]
    found = pd.DataFrame({"limits or filling": here["limits"], "noise": noise,
                          "C": ["" if math.isnan(c) else f"{c:g}" for c in here["clip"]], "objective": here["objective"],
                          "RMSE": here["rmse"], "± sd": here["rmse_sd"], "MAE": here["mae"], "R²": here["r2"],
                          "90 % interval covers": [("" if math.isnan(x) else pages.percent(x)) for x in here["coverage"]]})
    return pd.concat([found[~free], found[free].sort_values("RMSE")])


def costs_table(costs: pd.DataFrame, per_reading: int) -> pd.DataFrame:
    """What each noise costs, from the steps that ran; seeds and limits cost the same."""
    one = costs.drop_duplicates(["dataset", "regime", "asked"])
    return pd.DataFrame({"set": one["dataset"], "regime": one["regime"].map(REGIMES), "σ": one["sigma"], "q": one["q"],
                         "steps": one["steps"], "windows": one["n"], "ε, window": one["epsilon"],
                         "ε, RDP": one["epsilon_rdp"], "ε, replace-one": one["replace_one"],
                         f"ε, reading ({per_reading} windows)": one["hour"]})


def gradients_table(found: Results, dataset: str) -> pd.DataFrame:
    """Norms of the last 20 % of steps by cell."""
    here = found.gradients[found.gradients["dataset"] == dataset]
    keys = ["regime", "asked", "clip", "objective", "limits"]
    mean = here.groupby([*keys, "part"], sort=False).mean(numeric_only=True)
    rows = []
    for key in dict.fromkeys(zip(*(here[k] for k in keys))):
        total, path, rest = (mean.loc[(*key, part)] for part in ("total", "conditioning", "rest"))
        rows.append({"limits": key[4], "noise": figures.noise_words(key[0], key[1]), "C": f"{key[2]:g}", "objective": key[3],
                     "g_cond p50": path["p50"], "p95": path["p95"], "p99": path["p99"], "rest p50": rest["p50"],
                     "rest p99": rest["p99"], "clipped": pages.percent(total["clipped"]), "mean η": total["eta"],
                     "η p05": total["eta_p05"], "η p50": total["eta_p50"]})
    return pd.DataFrame(rows)


def limits_table(study: AdaLNZero, found: Results) -> pd.DataFrame:
    """The limits in numbers, by noise; first the reference that they are shares of."""
    rows = []
    for (regime, asked, clip, objective), reference in found.reference.items():
        label = {"noise": figures.noise_words(regime, asked), "C": f"{clip:g}", "objective": objective}
        rows.append({**label, "limits": "reference", **{name: f"{getattr(reference, name):.3g}" for name in MAGNITUDES},
                     "form": "", "√(1 + c²)": ""})
        for text in study.limits:
            if (bound := bound_of(text, reference)) is not None:
                values = {name: getattr(bound, name) for name in MAGNITUDES}
                rows.append({**label, "limits": text, **{k: "none" if v is None else f"{v:.3g}" for k, v in values.items()},
                             "form": "tanh" if bound.soft else "clamp",
                             "√(1 + c²)": "" if bound.c is None else f"{math.hypot(1, bound.c):.3g}"})
    return pd.DataFrame(rows)


def sizes_table(sizes: pd.DataFrame) -> pd.DataFrame:
    """Magnitudes at the final models, and the bound."""
    keys = ["dataset", "regime", "asked", "limits"]
    mean = sizes.groupby(keys, sort=False).mean(numeric_only=True).reset_index()
    bounds = {title: ["none" if math.isinf(x) else f"{x:.1e}" for x in mean[name]]
              for name, title in (("bound", "bound"), ("bound_met", "bound, spread as met"))}
    return pd.DataFrame({"set": mean["dataset"], "noise": [figures.noise_words(r, a) for r, a in zip(mean["regime"],
                         mean["asked"])], "limits": mean["limits"], "‖c‖": mean["c"], "|γ|": mean["gamma"],
                         "|β|": mean["beta"], "|α|": mean["alpha"], "largest ‖g_cond‖": mean["largest"], **bounds})


def plates_of(found: Results) -> list[Plate]:
    """Figures by data set."""
    made = []
    for dataset in found.sets:
        if not len(found.sizes) or dataset not in set(found.sizes["dataset"]):
            continue
        made.append(Plate(f"errors_{dataset}", "errors", f"{dataset}: error by noise and limits",
                          "Mean over seeds, objectives and C; bars: the lowest and the highest of them. Dashed: the best "
                          "filling that costs nothing.", f"RMSE by noise and limits on {dataset}.",
                          figures.errors(found.rows, dataset)))
        if len(found.gradients):
            made.append(Plate(f"tails_{dataset}", "gradients", f"{dataset}: the conditioning path's gradients",
                              "Before clipping, records of the last 20 % of steps. Lab only.",
                              f"Quantiles of the norm of g_cond on {dataset}.", figures.tails(found.gradients, dataset)))
        made.append(Plate(f"times_{dataset}", "gradients", f"{dataset}: norms against diffusion time",
                          "Final models, fixed training windows, masks and noise, 20 times each, bins of 100. Lab only.",
                          f"99 % quantile of gradient norms against diffusion time on {dataset}.",
                          figures.times(found.times, dataset)))
    return made


def write(study: AdaLNZero, folder: Path, found: Results, table: pd.DataFrame, claims: list[pages.Claim]) -> Path:
    """report.html."""
    source, own = [c for c in claims if not c.own], [c for c in claims if c.own]
    errors = "".join(f"<h3>{dataset}, {task}</h3>" + pages.frame_table(
        shown(table, dataset, task), f"{dataset}, {task}: z-scores over all channels, where hidden and measured.")
        for dataset in found.sets for task in TASKS)
    gradients = paragraph(f"{LAB[:1].upper()}{LAB[1:]}.") + "".join(pages.frame_table(
        gradients_table(found, dataset), f"{dataset}: norms before clipping, last 20 % of steps. g_cond: condition encoder "
        "and modulation layers. η = min(1, C / ‖g‖) of the whole gradient.")
        for dataset in found.sets if len(found.gradients))
    parts = [pages.Part("holds", "What holds", pages.claims_table(source, "What holds of the source's claims.")
                        + (pages.claims_table(own, "Our own questions.") if own else "")),
             pages.Part("errors", "Errors", paragraph(SOURCE) + errors),
             pages.Part("gradients", "Gradients (lab only)", gradients),
             pages.Part("limits", "Limits, and the bound that they imply", _limits(study, found)),
             pages.Part("privacy", "What it costs", _privacy(study, found)),
             pages.Part("setting", "Setting", bullets(_setting(study, found)))]
    verdicts = [c.verdict for c in source]
    short = ([f"A toy: {study.steps} steps of a {study.depth} x {study.width} network, batch {study.batch}, one set. It "
              "shows that all parts work; its numbers prove nothing."] if study.small else [])
    short += [f"{verdicts.count(word)} of the source's {len(verdicts)} claims in this run: {word}."
              for word in (pages.HOLDS, pages.PARTLY, pages.FAILS, pages.OPEN_QUESTION) if word in verdicts]
    if len(costs := found.costs[found.costs["regime"] == PUBLISHED] if len(found.costs) else found.costs):
        short.append(f"Published σ: mechanism diagnostics, no privacy. ε {costs['epsilon'].min():.3g} to "
                     f"{costs['epsilon'].max():.3g} per window, and a reading is in up to {overlap(study)} windows.")
    short += [f"{c.claim} {c.verdict.capitalize()}: {c.ours}." for c in own] + [f"{w}: {why}." for w, why in found.unrun]
    stamp = next(iter(found.costs["noise"]), "") if len(found.costs) else ""
    return pages.write_page(folder / "report.html", title=study.title, short=short, parts=parts, plates=plates_of(found),
                            stamp=stamp[:1].upper() + stamp[1:],
                            meta=f"{folder.name} · {len(found.sizes)} trainings · source: arXiv 2602.22610")


def _limits(study: AdaLNZero, found: Results) -> str:
    origin = ("given in the config" if study.reference else f"{TYPICAL['c']:.0%} (c) and {TYPICAL['gamma']:.0%} (γ, β, α) "
              "quantiles of a model without limits, trained on a simulated home with the cells' own noise, C and objective: "
              "public, so that its noise protects no one")
    return (paragraph("The source gives levels (loose 1.0, medium 0.9, tight 0.75, too tight 0.5 of reference magnitudes) "
                      f"and no numbers. Reference magnitudes here: {origin}.")
            + pages.frame_table(limits_table(study, found), "The limits used.")
            + paragraph("The bound on ‖g_cond‖ follows by the chain rule from the four limits, the spectral norms of the "
                        "other layers, ‖target‖ and the longest patch. Without an assumption on tokens LayerNorm may "
                        "amplify by 1,000; the second bound takes the spread of tokens as met. Both multiply worst "
                        "cases over depth and are loose. The part due to c alone is tight: a modulation layer's gradient is "
                        "at most √(1 + c²) times that at its output.")
            + ("" if not len(found.sizes) else pages.frame_table(
                sizes_table(found.sizes), "At the final models, after the limits; quantiles as for the reference. Lab "
                "only.")))


def _privacy(study: AdaLNZero, found: Results) -> str:
    if not len(found.costs):
        return paragraph("No cell of this study is private.")
    notes = sorted({f"{note}." for notes in found.costs["notes"] for note in notes})
    if study.scaling != "public":
        notes.append("z-scores of the training part are not covered by DP-SGD: "
                     + ("all cells" if study.scaling == "training" else
                        "cells at a published σ; the others take public units") + ".")
    four = dict.fromkeys(("σ", "q", "ε, window", "ε, RDP", "ε, replace-one", f"ε, reading ({overlap(study)} windows)"),
                         lambda value: f"{value:.4g}")
    return (pages.frame_table(costs_table(found.costs, overlap(study)), "Computed from the steps that ran: PLD, δ "
                              f"{study.delta:g}, add/remove unless the column says otherwise.", four)
            + bullets([f"The unit is a window of {study.length} steps; windows begin every {study.stride}, so a reading is "
                       f"in up to {overlap(study)} of them. One meter owns all windows: group privacy gives it their number "
                       "times a window's ε, at a larger δ.", *notes]))


def _setting(study: AdaLNZero, found: Results) -> list[str]:
    net = shape_of(study, 7)
    return [*(f"{name}: {note}." for name, note in found.sets.items()),
            f"One model for both tasks, trained on points, blocks and outages of 10 to 50 % and suffixes of "
            f"{study.horizon}; tested on {study.missing:.0%} random points and on the last {study.horizon} steps. The "
            "source does not say its masks.",
            f"DiT {net.depth} x {net.width}, {net.heads} heads, patch {net.patch}, pooled condition on (x0 · m, m): the "
            "source does not give its size.",
            f"Linear schedule, T = {study.diffusion_steps:,}; AdamW {study.rate:g}, weight decay {study.weight_decay:g}, "
            f"{study.warmup:,} warm-up steps, EMA {study.ema:g}, expected batch {study.batch}, {study.steps:,} steps; C "
            f"{', '.join(f'{c:g}' for c in study.clips)}; objectives {', '.join(study.objectives)}.",
            f"Median of {study.samples} DDIM samples, {study.ddim_steps} steps, x0 kept within ±{REACH[False]:g} deviations "
            "of the training part or, in public units, within the public limits. Seeds "
            f"{', '.join(map(str, study.seeds))}.",
            "Errors are in z-scores of the training part whatever the model's own units.",
            *([f"{REGIMES[PLAIN].capitalize()} cells: the same training without clipping and noise."] if study.non_private
              else [])]
