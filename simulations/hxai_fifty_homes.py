"""The HXAI source's section VI from end to end: 50 homes, 7 appliances, 100 steps, and what holds of its claims.

    python -m simulations.hxai_fifty_homes [configs/hxai_fifty_homes.toml] [--quick] [--data DIR] [--out DIR]

Figures 6 to 12 are redrawn from this run into study.html, with the source's claim beside each. Answers and charges come
from the real boxes and their ledger; distributions of SHAP values are an inside view, recomputed off the grid.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from fedenergy.config import Config, load, parse
from fedenergy.errors import ConfigError
from fedenergy.federation.plan import plan_from_config
from fedenergy.federation.study import place, run_study
from fedenergy.privacy.trust import LOCAL as LOCAL_TRUST
from fedenergy.privacy.trust import SUM
from fedenergy.progress import open_progress
from fedenergy.report import figures as report_figures
from fedenergy.report.gallery import Plate
from fedenergy.report.markup import bullets, paragraph
from fedenergy.report.report import Report
from fedenergy.report.words import listing, number
from simulations import pages
from simulations.fifty_homes import figures, incentive, measures
from simulations.fifty_homes.claims import claims_of
from simulations.fifty_homes.figures import LOCAL, ONE
from simulations.fifty_homes.measures import GOAL, START, U_GENERAL, U_SPECIFIC

CONFIG = "configs/hxai_fifty_homes.toml"


@dataclass(frozen=True)
class Found:
    """Everything that the run yields, before it is drawn.

    coordinates     names of the appliances; homes, clip, cap: of the study
    main, classes, shape   measures.measured of the three runs: the two budgets, the two query classes, the peak shape
    values          cosine of every seed, rows strategy, epsilon, value: appliances; shape_values: the peak shape
    eps0            strategy -> eps0 of the zone; general, specific: the epsilons of the two classes
    redrawn         their cosine with noise in every home: measures.redrawn_cosine
    phi, owned      measures.shap_values; (homes, d) whether the home used the appliance
    """

    coordinates: tuple[str, ...]
    homes: int
    clip: float
    cap: float
    seeds: int
    main: pd.DataFrame
    classes: pd.DataFrame
    shape: pd.DataFrame
    values: pd.DataFrame
    shape_values: pd.DataFrame
    zones: list[Mapping]
    shape_zones: list[Mapping]
    steps_per_day: int
    eps0: Mapping[str, float]
    general: float
    specific: float
    redrawn: Mapping[float, tuple[float, float, float]]
    phi: np.ndarray
    owned: np.ndarray
    spreads: pd.DataFrame
    weeks: pd.DataFrame
    rounds: pd.DataFrame
    cautious: pd.DataFrame
    leakage: pd.DataFrame
    discount: incentive.Incentive
    london: incentive.Incentive | None
    stamp: str


@dataclass(frozen=True)
class Study:
    """The page, the "what holds" table, and every other table by name (CSV files beside the page)."""

    folder: Path
    page: Path
    claims: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]


def main(config: Config | None = None) -> Study:
    """Run everything, write study.html, figures/ and tables into the run folder (default: CONFIG).

    The config needs oracle = true, and START and GOAL among the varied epsilons; its data (or $FEDENERGY_DATA) gives
    the real tariff where it has lcl_london/. Raises ConfigError, RunFailed.
    """
    config = load(CONFIG) if config is None else config
    if not config.oracle or not {START, GOAL} <= set(config.vary.get("query.epsilon", ())):
        raise ConfigError(f'hxai_fifty_homes needs oracle = true and [vary] "query.epsilon" with {START} and {GOAL}')
    found, folder = explore(config)
    claims = claims_of(found)
    tables = {"what_holds": pages.claims_frame(claims), "shap_spread": found.spreads, "weeks": found.weeks,
              "negotiation": found.rounds, "cautious": found.cautious, "leakage": found.leakage,
              "classes": class_rows(found), "discount": found.discount.table}
    if found.london:
        tables["london"] = found.london.table
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    return Study(folder, write(folder, config, found, claims), tables["what_holds"], tables)


def explore(config: Config) -> tuple[Found, Path]:
    """Run the studies behind the figures."""
    first = Report(run_study(config, progress=open_progress()))
    first.to_html()
    task, population = config.task.build(), config.population.build()
    zones = first.data.rows("zones")
    truth = np.array(zones[0]["true_clipped"])
    eps0 = {name: measures.half_signal(task.clip, len(population), truth, trust)
            for name, trust in ((LOCAL, LOCAL_TRUST), (ONE, SUM))}
    general, specific = (round(measures.budget_of(u, eps0[LOCAL]), 3) for u in (U_GENERAL, U_SPECIFIC))
    document = config.document()
    roomy = {"agreement": {**document["agreement"], "cap": max(specific, config.agreement.get("cap", GOAL))}}
    more = {"seeds": list(range(3 * len(config.seeds)))}  # two means are held against two numbers: they must be sharp
    classes = _variant(document | roomy | more, "classes", [general, specific])
    shape = measures.PeakShape()
    day = _variant(document | roomy | {"task": shape.identity(), "query": {**document["query"], "kind": "peak_hour"}},
                   "peak-shape", [START, general, GOAL])
    folder = first.folder
    plan = plan_from_config(config, folder, place(config)[1])
    world, query = plan.parts[-1].world, replace(config.query.build(), epsilon=GOAL)
    phi = measures.shap_values(population, task)
    owned = np.stack([population.load(home).readings.any(axis=0) for home in range(len(population))])
    data = config.data or os.environ.get("FEDENERGY_DATA", "")
    london = data and (Path(data) / "lcl_london" / "tariffs_dtou_2013.csv").is_file()
    return Found(
        coordinates=population.channels, homes=len(population), clip=task.clip, cap=world.terms.cap,
        seeds=len(config.seeds), main=measures.measured(first), classes=measures.measured(classes),
        shape=measures.measured(day), values=_cosines(first, classes), shape_values=_cosines(day), zones=zones,
        shape_zones=day.data.rows("zones"), steps_per_day=1440 // population.step_minutes, eps0=eps0, general=general,
        specific=specific,
        redrawn={e: measures.redrawn_cosine(truth, task.clip, len(population), e) for e in (general, specific)},
        phi=phi, owned=owned, spreads=measures.spreads(phi, population.channels), weeks=measures.by_week(config, task),
        rounds=measures.rounds_table(measures.negotiation(world, query)),
        cautious=measures.cautious_homes(world, query),
        leakage=measures.walk_to_refusal(config, shape, folder / "leakage"),
        discount=incentive.discount_scenario(population), london=incentive.london_scenario(data) if london else None,
        stamp=str(first.data.summary.get("stamp") or "")), folder


def _variant(document: dict, suffix: str, epsilons: list[float]) -> Report:
    config = parse(document | {"name": f"{document['name']}-{suffix}", "vary": {"query.epsilon": epsilons}})
    return Report(run_study(config, progress=open_progress()))


def _cosines(*reports: Report) -> pd.DataFrame:
    rows = pd.concat([report.metrics for report in reports])
    return rows.loc[rows["metric"] == "cosine", ["strategy", "epsilon", "value"]].reset_index(drop=True)


def class_rows(found: Found) -> pd.DataFrame:
    """Utility by query, strategy: measured mean, lowest and highest seed, closed form, the source's."""
    rows = []
    for query, values, epsilon, source in (
            (f"general budget,\nappliances (ε {found.general:g})", found.values, found.general, U_GENERAL),
            (f"specific budget,\nappliances (ε {found.specific:g})", found.values, found.specific, U_SPECIFIC),
            (f"general query,\npeak shape (ε {found.general:g})", found.shape_values, found.general, U_GENERAL)):
        for strategy in (LOCAL, ONE):
            own = values[(values["strategy"] == strategy) & (values["epsilon"] == epsilon)]["value"]
            rows.append({"query": query, "strategy": strategy, "epsilon": epsilon, "mean": own.mean(), "low": own.min(),
                         "high": own.max(), "source": source})
    return pd.DataFrame(rows)


def plates_of(found: Found) -> list[Plate]:
    """The source's Figures 6 to 12, in its order."""
    style = report_figures.styles([LOCAL, ONE])
    made = [Plate("fig06_shap", "shap", "Figure 6: SHAP values by appliance",
                  "Homes that used the appliance. Bar: middle half; line: 5th to 95th percentile; black: median; dots: "
                  "the rest. Logarithmic beyond ±0.05 kWh.", "Distributions of SHAP values per appliance; the numbers "
                  "are in the table below.", figures.shap_boxes(found.phi, found.coordinates, found.owned))]
    for epsilon in (START, GOAL):
        chosen = [zone for zone in found.zones if zone["epsilon"] == epsilon and zone["strategy"] in style]
        made.append(Plate(f"fig07_before_after_{epsilon:g}".replace(".", "_"), "noise",
                          f"Figure 7: zone sums before and after noise, ε = {epsilon:g}",
                          "Vertical lines: the truth, solid with clipping, dotted without. Whiskers: lowest to highest "
                          "seed. ZonalSum: noise in every home; SecureSum: one noise for the zone.",
                          f"True and released zone sum of each appliance at epsilon {epsilon:g}.",
                          report_figures.true_and_released(chosen, found.coordinates, style, "kWh^2")))
    made += [
        Plate("fig08_shape", "noise", "Figure 8: the shape of demand before and after noise",
              "A general query: the zone's mean day, one seed.",
              "Mean day of the zone, true and released, at two budgets.",
              figures.shape_lines(found.shape_zones, [START, GOAL])),
        Plate("fig09_rounds", "negotiation", f"Figure 9: the negotiation, {START} to {GOAL}",
              "All homes are alike here, so their offers coincide.", "Offers of the homes by round and the utility that "
              "the operator says is lacking.", figures.rounds(found.rounds, START, GOAL)),
        Plate("fig09_utility", "negotiation", "Figure 9: utility before and after",
              "Dots: mean over seeds of measured cosines at .16, 6.73 and the two class budgets; whiskers: lowest to "
              "highest seed.", "Cosine against epsilon for noise per home and one noise.",
              figures.utility_curves(found.values, found.eps0, {})),
        Plate("fig10_price", "incentive", f"Figure 10: price curve, {pages.percent(incentive.DISCOUNT, 0)} discount, "
              f"{found.discount.facts['joined']} of {found.homes} homes",
              "Mean day of a shadow price, from our own homes; shaded: the peak hours.",
              "Price over the mean day before and after, for two steepnesses of the price.",
              figures.price_curves(found.discount, incentive.ETAS, found.steps_per_day)),
        Plate("fig11_classes", "classes", "Figure 11: general and specific queries",
              "Bars: mean over seeds; whiskers: lowest to highest seed. Black lines: the source's 67 % and 83 %.",
              "Utility of general and specific queries, with the source's values.",
              figures.class_bars(class_rows(found))),
        Plate("fig11_curve", "classes", "Figure 11: where the source's utilities lie",
              "Stars: the source's utilities at the budgets that the closed form asks for them with noise in every home.",
              "Cosine against epsilon with the source's two utilities marked.",
              figures.utility_curves(found.values, found.eps0, {"67 %": (found.general, U_GENERAL),
                                                                "83 %": (found.specific, U_SPECIFIC)})),
        Plate("fig12_leakage", "leakage", f"Figure 12: leakage up to refusal at L_max = {found.cap:g}",
              "From the ledger of a run with fresh queries under secure noise.",
              "Epsilon spent after each query; refusals at the cap.", figures.leakage(found.leakage, found.cap))]
    if found.london:
        day = incentive.evening_event(found.london)
        made.append(Plate("fig10_london", "incentive", "Figure 10 with London's real dynamic tariff",
                          f"{np.datetime64('2013-01-01') + day}, the evening event with the largest load; shaded: its "
                          "High half hours.", "Price over one day of the real tariff, before and after.",
                          figures.price_curves(found.london, incentive.ETAS, incentive.HALF_HOURS,
                                               slice(day, day + 1))))
    return made


def write(folder: Path, config: Config, found: Found, claims: list[pages.Claim]) -> Path:
    """study.html."""
    facts, cost = found.discount.facts, found.discount.table
    shares = dict.fromkeys(("peak energy", "peak price", "highest price", "spread of prices",
                            "closed form, peak price", "revenue forgone"), pages.percent)
    incentive_html = paragraph(
        f"{facts['joined']} of {facts['homes']} homes join. Their peak, {facts['from']:g} to {facts['to']:g} h, holds "
        f"{pages.percent(facts['peak_share'])} of their use, so R = 1 + D/w = {facts['price_ratio']:.2f}; what they move "
        f"comes back the same day. The scheme costs £{facts['cost']:.2f} in {facts['days']:.1f} days, "
        f"{pages.percent(facts['cost_share'])} of all bills at {incentive.tariff.FLAT_PENCE:g} p/kWh "
        f"({pages.percent(incentive.DISCOUNT * facts['joined'] / facts['homes'])} if all homes were alike). For so few "
        "homes the price is a shadow price: nobody is charged it.")
    incentive_html += pages.frame_table(
        cost, "The discount, by sigma (elasticity of the peak) and eta (steepness of the price). Changes of the mean price "
        "over the peak hours, of the highest price and of its spread; pounds over the whole record.", shares)
    if found.london:
        real = found.london.facts
        incentive_html += "<h3>London's dynamic tariff of 2013 on real homes</h3>" + paragraph(
            f"{real['joined']} of {real['homes']} real homes pay "
            f"{listing(f'{name} {pence:g}' for name, pence in incentive.tariff.DTOU_PENCE.items())} p/kWh, the others a "
            f"flat {incentive.tariff.FLAT_PENCE:g}. High holds {real['high_slots']:,} half hours and "
            f"{pages.percent(real['high_share'])} of their use; R = High / Normal = {real['price_ratio']:.2f}. Filled gaps: "
            f"{real['gaps']} half hours. A year's bills. Revenue forgone: what the supplier takes less, as a share of all "
            "bills at the flat price.")
        incentive_html += pages.frame_table(found.london.table, "The real tariff, by sigma and eta; changes over the "
                                            "High half hours.", shares)
    else:
        incentive_html += paragraph("London's real tariff is left out: give --data DIR with lcl_london/.", "note")
    parts = [
        pages.Part("holds", "What holds",
                   pages.claims_table([c for c in claims if not c.own], "What holds of the source's section VI.")
                   + pages.claims_table([c for c in claims if c.own], "What the source leaves open: our own questions.")),
        pages.Part("shap", "SHAP distributions",
                   pages.frame_table(found.spreads, "SHAP values of all homes and hours.")
                   + pages.frame_table(found.weeks, "The same homes in other weeks. Cosines by the closed form."), True),
        pages.Part("noise", "Before and after noise"),
        pages.Part("negotiation", "Negotiation", pages.frame_table(found.rounds, "The exchange, round by round.")
                   + pages.frame_table(found.cautious, "What the public utility model promises when some homes do not "
                                       "move (noise per home: variances add up, so the most cautious weigh most).")),
        pages.Part("classes", "Query classes", paragraph(
            f"The source gives no budgets for its 67 % and 83 %; by the closed form they are {measures.RATIO:.2f} apart. "
            f"With noise in every home they are ε = {found.general:g} and {found.specific:g} for these homes.")),
        pages.Part("leakage", "Accumulated leakage",
                   pages.frame_table(found.leakage, "Every query, in order; ε per home from the ledger.")),
        pages.Part("incentive", "Discount and price", incentive_html),
        pages.Part("setting", "Setting", bullets([
            f"{found.homes} simulated homes, {len(found.coordinates)} appliances, {config.population.args['steps']} "
            f"hourly steps, {found.seeds} seeds of the noise; clip {found.clip:g} kWh², cap {found.cap:g}.",
            "ε is per household (its whole record replaced) and query. Noise in every home is the source's mechanism; "
            "one noise for the zone is what it does not have.",
            "The class runs raise the cap where one query needs more than it; the walk to refusal keeps it."]))]
    verdicts = [claim.verdict for claim in claims if not claim.own]
    short = [f"{verdicts.count(word)} of the source's {len(verdicts)} claims: {word}."
             for word in (pages.HOLDS, pages.PARTLY, pages.FAILS, pages.OPEN_QUESTION) if word in verdicts]
    short += [f"{c.claim} Ours: {c.ours}." for c in claims if c.verdict == pages.FAILS and not c.own][:4]
    short += [f"The discount costs {pages.percent(facts['cost_share'])} of all bills (£{number(facts['cost'])} here)."]
    return pages.write_page(folder / "study.html", title=config.title or config.name, short=short, parts=parts,
                            plates=plates_of(found), stamp=found.stamp[:1].upper() + found.stamp[1:],
                            meta=f"{folder.name} · {found.homes} homes · source: HXAI, section VI")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG)
    parser.add_argument("--quick", action="store_true", help="toy size")
    parser.add_argument("--data", help="folder with lcl_london/ (default: $FEDENERGY_DATA)")
    parser.add_argument("--out", help="folder for runs")
    options = parser.parse_args()
    done = main(load(options.config, quick=options.quick, data=options.data, out=options.out))
    for row in done.claims.itertuples():
        print(f"{row.figure:8} {row.verdict:22} {row.claim}\n{'':31} source: {row.source}\n{'':31} ours: {row.ours}")
    print(done.page)
