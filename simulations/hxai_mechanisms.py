"""The HXAI source's section V: central and zonal mechanisms on its three UCI sets, and what holds of its claims.

    python -m simulations.hxai_mechanisms [configs/hxai_mechanisms.toml] [--quick] [--data DIR] [--out DIR]
    python -m simulations.hxai_mechanisms --panel      the bounds of settings.py, computed again from the public panels

Table III and Figures 2 to 5 are redrawn from our runs into study.html, the source's numbers beside ours. Every answer comes
from the real boxes and their ledgers, those of the source's own negotiated form too, in worlds that allow it (it leaks);
ranks and truths are an inside view.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedenergy.config import Config, load
from fedenergy.errors import ConfigError
from fedenergy.progress import open_progress
from fedenergy.report.gallery import Plate
from fedenergy.report.markup import bullets, paragraph
from fedenergy.report.words import number, spread, unit_text
from simulations import pages
from simulations.mechanisms import figures
from simulations.mechanisms.claims import KINDS, METHOD, at, brief, claims_of
from simulations.mechanisms.runs import (
    CENTRAL,
    NEGOTIATED,
    ORDER,
    SAME,
    UNBOUNDED,
    WEIGHTED,
    Result,
    over_seeds,
    play,
    scores,
    with_moderate,
)
from simulations.mechanisms.settings import APPLIANCE, DELTA, FEATURE_LAG, MODERATE, SETTINGS, TABLE_3, Setting, panel_bounds

CONFIG = "configs/hxai_mechanisms.toml"
NEEDED = ("ZonalSum", "LocalDP", "CentralLaplace", "CentralUnbounded", "SecureSum", "NonPrivate")
LEAKS = ("The source's negotiated form (AttributionWeighted) gives coordinates with a larger true |S_k| more of the budget, "
         "so its noise levels tell S: no guarantee holds at the ε shown. Boxes run it only where a study allows it. The "
         "source states no formula for it; ours keeps the mean ε over coordinates at the one asked.")


@dataclass(frozen=True)
class Study:
    """The page, the "what holds" table, and every other table by name (CSV files beside the page)."""

    folder: Path
    page: Path
    claims: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]


def main(config: Config | None = None, settings: Sequence[Setting] = SETTINGS) -> Study:
    """Run everything, write study.html, figures/ and tables into <out>/<name>-<digest> (default: CONFIG).

    config     needs oracle = true and the strategies of CONFIG; its population.count and task.trees hold for every setting,
               its [engine] workers is the number of settings run at once; MODERATE is added to its epsilons
    settings   which sets and coordinates
    Raises ConfigError, RunFailed, FileNotFoundError where the data are absent.
    """
    config = with_moderate(load(CONFIG) if config is None else config, MODERATE)
    missing = set(NEEDED) - {spec.use.split(":")[-1] for spec in config.strategies}
    if not config.oracle or missing:
        raise ConfigError("hxai_mechanisms needs oracle = true and [[strategy]] " + ", ".join(sorted(missing) or NEEDED))
    folder = Path(config.out) / config.run_name
    folder.mkdir(parents=True, exist_ok=True)
    results = play(config, settings, folder, open_progress())
    return publish(folder, config, results)


def publish(folder: Path, config: Config, results: Sequence[Result]) -> Study:
    """Tables, figures and page of results."""
    seeds = scores(results)
    table = over_seeds(seeds)
    claims = claims_of(results, table)
    tables = {"what_holds": pages.claims_frame(claims), "scores": seeds, "mechanisms": table, "table_3": table_3(table),
              "settings": settings_table(results)}
    for name, frame in tables.items():
        frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    return Study(folder, write(folder, config, results, tables, claims), tables["what_holds"], tables)


def table_3(table: pd.DataFrame) -> pd.DataFrame:
    """The source's Table III, and ours at its moderate and at the largest epsilon, for every set and both coordinates."""
    rows = []
    for quoted in TABLE_3:
        rows.append({"data set": quoted.dataset, "method": quoted.method, "of": "the source", "ε": "not given",
                     "utility": f"{quoted.utility}", "rank": f"{quoted.rank}", "MAE": f"{quoted.mae}"})
        for words in dict.fromkeys(table["set"]):
            if not words.startswith(quoted.dataset):
                continue
            for mechanism in METHOD[quoted.method]:
                for coordinates in (FEATURE_LAG, APPLIANCE):
                    line = at(table, words, coordinates, mechanism)
                    for epsilon in dict.fromkeys([MODERATE, *line.index[-1:]]) if len(line) else ():
                        row = line.loc[epsilon]
                        rows.append({"data set": brief(words), "method": mechanism, "of": f"ours, {KINDS[coordinates]}",
                                     "ε": f"{epsilon:.3g}", "utility": spread(row["cosine"], row["cosine_sd"]),
                                     "rank": spread(row["spearman"], row["spearman_sd"]),
                                     "MAE": spread(row["mae"], row["mae_sd"])})
    return pd.DataFrame(rows)


def settings_table(results: Sequence[Result]) -> pd.DataFrame:
    """What each setting is, and how much of its zone the bound cuts off."""
    rows = []
    for r in results:
        s = r.setting
        top = np.argsort(-np.abs(r.truth), kind="stable")[:3]
        rows.append({"set": s.words, "coordinates": s.coordinates, "windows": r.homes, "days each": s.window_days,
                     "lags (h)": ", ".join(map(str, s.lags)), "d": len(r.coordinates), "C (l1)": s.clip,
                     "C (l2, Gaussian)": s.clip2, "unit": s.unit, "clipped": r.clipped_share,
                     "zone norm": float(np.linalg.norm(r.truth)),
                     "largest": ", ".join(r.coordinates[k] for k in top)})
    return pd.DataFrame(rows)


def scores_table(table: pd.DataFrame, words: str, coordinates: str) -> pd.DataFrame:
    """Mean and sd of every score of one setting at the smallest, the moderate and the largest epsilon."""
    own = table[(table["set"] == words) & (table["coordinates"] == coordinates)]
    finite = own["epsilon"][np.isfinite(own["epsilon"])]
    rows = []
    for mechanism in ORDER:
        line = own[own["mechanism"] == mechanism].set_index("epsilon")
        for epsilon in [e for e in dict.fromkeys([finite.min(), MODERATE, finite.max(), np.inf]) if e in line.index]:
            row = line.loc[epsilon]
            rows.append({"mechanism": mechanism, "ε asked": number(epsilon), "ε granted": number(row["granted"]),
                         **{title: spread(row[name], row[f"{name}_sd"]) for title, name in (
                             ("cosine", "cosine"), ("Spearman", "spearman"), ("MAE", "mae"), ("dominant first", "dominant"),
                             ("signs kept", "sign"), ("Top-10 distance", "displacement"))}})
    return pd.DataFrame(rows)


def _scores_html(setting: Setting, table: pd.DataFrame, seeds: int) -> str:
    return f"<h3>{setting.words}</h3>" + pages.frame_table(
        scores_table(table, setting.words, setting.coordinates),
        f"{setting.words}: mean ± sd over {seeds} seeds; MAE in {unit_text(setting.unit)}.")


def plates_of(results: Sequence[Result], table: pd.DataFrame) -> list[Plate]:
    """Figures 2 to 5."""
    made, largest = [], table["epsilon"][np.isfinite(table["epsilon"])].max()
    for r in results:
        s = r.setting
        own = table[(table["set"] == s.words) & (table["coordinates"] == s.coordinates)]
        kind = "every lagged feature" if s.coordinates == FEATURE_LAG else "metered channels"
        made.append(Plate(f"fig02_{s.key}".replace("-", "_"), f"curves-{s.coordinates}",
                          f"Figure 2: {s.words}, {kind} (d = {len(r.coordinates)}, N = {r.homes})",
                          "Mean over seeds, shaded one sd. Dashed curves: Gaussian noise at the same place. Dashed "
                          "vertical: ε 1.05361. Local DP is held against its own home.",
                          f"Cosine, Spearman and MAE against epsilon for every mechanism, {s.words}.",
                          figures.curves(own, unit_text(s.unit))))
    for r in results:
        s = r.setting
        if s.coordinates != FEATURE_LAG:
            continue
        name = s.key.replace("-", "_")
        made.append(Plate(f"fig03_{name}", "signs", f"Figure 3: {s.words}, eps={MODERATE}",
                          "One seed. Hollow bars: the sign flipped. Bars end at three times the largest true value. "
                          "Local DP: one home and its own truth.",
                          f"Largest coordinates, true and noised, {s.words}.", figures.bars(r)))
        made.append(Plate(f"fig04_{name}", "ranks", f"Figure 4: {s.words}, (a) fixed ε, (b) negotiated ε",
                          "Rank under noise of the oracle's Top-10; dashed: the diagonal. Thin: seeds; thick: their mean.",
                          f"Rank trajectories of fixed and negotiated epsilon, {s.words}.",
                          figures.ranks(r, (SAME, NEGOTIATED, WEIGHTED), (MODERATE, largest))))
        if s.dataset == "UCI Appliances":
            made.append(Plate(f"fig05_{name}", "ranks", f"Figure 5: {s.words}, central against negotiated ε",
                              "As Figure 4.", f"Rank trajectories of central noise and negotiated epsilon, {s.words}.",
                              figures.ranks(r, (CENTRAL, UNBOUNDED, NEGOTIATED), (MODERATE, largest))))
    return made


def write(folder: Path, config: Config, results: Sequence[Result], tables: Mapping[str, pd.DataFrame],
          claims: list[pages.Claim]) -> Path:
    """study.html."""
    table = tables["mechanisms"]
    curves = {coordinates: "".join(_scores_html(r.setting, table, len(config.seeds)) for r in results
                                   if r.setting.coordinates == coordinates) for coordinates in (FEATURE_LAG, APPLIANCE)}
    source = [c for c in claims if not c.own]
    parts = [
        pages.Part("holds", "What holds", pages.claims_table(source, "What holds of the source's section V.")
                   + pages.claims_table([c for c in claims if c.own], "Our own questions.")),
        pages.Part("table3", "Table III", paragraph(
            "The source's rows, then ours at its moderate ε (1.05361) and at the largest. N, Δ and ε of its Table III are "
            "unreported, and so is the unit of its MAE: MAEs are comparable by ratio only. Features: every lagged feature "
            "is a coordinate; channels: the metered ones.")
            + pages.frame_table(tables["table_3"], "Table III and ours, mean ± sd over seeds.")),
        pages.Part("curves-feature_lag", "Figure 2, every lagged feature a coordinate", curves[FEATURE_LAG]),
        pages.Part("curves-appliance", "Figure 2, metered channels", paragraph(
            "Two channels (Appliances, Bike) or four (Household): Spearman of two coordinates is 1 or −1.")
            + curves[APPLIANCE]),
        pages.Part("signs", "Figure 3: signs", "", True),
        pages.Part("ranks", "Figures 4 and 5: ranks", paragraph(
            "Both titles of the source's Figure 4 say uci_appliances; its caption names (b) UCI Household Power. We draw "
            "every set."), True),
        pages.Part("setting", "Setting", bullets([
            "The source calls UCI Appliances hourly; the set is ten-minute (19,735 rows of 10 min). Both are run.",
            "N, Δ, ε and the number of seeds of the source's section V are unreported; windows, bounds and lags are ours.",
            "The unit is a window of one series, which stands in for a home: all windows of a set belong to one home. By "
            "composition that home has as many times the ε shown as it has windows.",
            f"ε on the source's grid, {len(config.vary['query.epsilon'])} of its values here; {len(config.seeds)} seeds. "
            f"Gaussian: δ = {DELTA:g}, l2 bound. Bounds C: third quartile of a public panel, the windows of the set that "
            "follow the study's; never from the study's own.",
            "Negotiated, public form: BoundedSearch in every box, log-normal private prices (median .05), never above the ε "
            "asked, at least .16; it never looks at S. The figures' ε is the one asked; tables show the mean granted.",
            LEAKS,
            "Coordinates of weather features carry the feature's own unit (pressure: about 755 mmHg), so they can outweigh "
            "what was used; the source's Figure 3 names Press_mm_hg_lag6 too. The largest of each zone are below.",
            "Spearman is of signed values, Top-10 ranks of magnitudes. Scores compare with the clipped sum: noise alone."])
            + pages.frame_table(tables["settings"], "Settings.", {"clipped": pages.percent})),
    ]
    verdicts = [claim.verdict for claim in source]
    short = [f"{verdicts.count(word)} of the source's {len(verdicts)} claims: {word}."
             for word in (pages.HOLDS, pages.PARTLY, pages.FAILS, pages.OPEN_QUESTION) if word in verdicts]
    short += [f"{c.claim} {c.verdict.capitalize()}." for c in source if c.figure == "Table III, Figure 2"]
    short += [f"{c.claim} {c.verdict.capitalize()}." for c in claims if c.own]
    stamp = next((r.stamp for r in results if r.stamp), "")
    return pages.write_page(folder / "study.html", title=config.title or config.name, short=short, parts=parts,
                            plates=plates_of(results, table), stamp=stamp[:1].upper() + stamp[1:],
                            meta=f"{folder.name} · {len(results)} settings · source: HXAI, section V")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG)
    parser.add_argument("--quick", action="store_true", help="toy size")
    parser.add_argument("--data", help="folder of data sets (default: $FEDENERGY_DATA)")
    parser.add_argument("--out", help="folder for runs")
    parser.add_argument("--panel", action="store_true", help="compute the bounds again and stop")
    options = parser.parse_args()
    toy = ["population.count=8", "task.trees=20"] if options.quick else []
    study = load(options.config, quick=options.quick, data=options.data, out=options.out, sets=toy)
    if options.panel:
        for one in SETTINGS:
            print(one.key, {name: f"{value:.3g}" for name, value in panel_bounds(one, options.data).items()})
    else:
        done = main(study)
        for line in done.claims.itertuples():
            print(f"{line.figure:20} {line.verdict:22} {line.claim}\n{'':43} source: {line.source}")
            print(f"{'':43} ours: {line.ours}")
        print(done.page)
