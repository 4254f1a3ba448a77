"""The claims of the source's section VI, each with its number, ours, and a verdict computed from the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fedenergy.report.words import number, spread
from simulations.fifty_homes.figures import LOCAL, ONE
from simulations.fifty_homes.measures import DRAWS, GOAL, START, U_GENERAL, U_SPECIFIC
from simulations.pages import FAILS, HOLDS, OPEN_QUESTION, Claim, judged, percent

if TYPE_CHECKING:
    from simulations.hxai_fifty_homes import Found

NO_NUMBER = "no number given"
GOOD, NEAR = 0.9, 0.05


def claims_of(found: Found) -> list[Claim]:
    """Every claim, in the order of the figures."""
    parts = (_shap, _noise, _negotiation, _classes, _leakage, _incentive)
    return [claim for part in parts for claim in part(found)]


def _shap(found: Found) -> Iterator[Claim]:
    table = found.spreads.set_index("appliance")
    sd, width, balance = (table[name] for name in ("sd (kWh)", "width (kWh)", "balance"))
    washer, heating = "Washing Machine", "Heating"
    if not {washer, heating, "Oven", "Fan"} <= set(table.index):
        yield Claim("Figure 6", "Widths of the SHAP distributions.", NO_NUMBER, "an appliance is left out", OPEN_QUESTION)
        return
    place = int((sd > sd[washer]).sum()) + 1
    weeks = ", ".join(dict.fromkeys(found.weeks["widest SHAP (sd)"]))
    yield Claim("Figure 6", "The washing machine's SHAP distribution is the widest.", NO_NUMBER,
                f"widest: {sd.idxmax()} (sd {number(sd.max())} kWh); washing machine {number(sd[washer])}, place "
                f"{place} of {len(sd)}; widest over four weeks of the year: {weeks}",
                judged(sd.idxmax() == washer, width.idxmax() == washer), "largest sd, and largest 5 to 95 % width")
    yield Claim("Figure 6", "Heating's distribution is more balanced.", NO_NUMBER,
                f"balance {number(balance[heating])} against the washing machine's {number(balance[washer])} (1: pushes "
                "up and down weigh the same)", judged(balance[heating] > balance[washer]),
                "balance above the washing machine's")
    small = sd[["Oven", "Fan"]].max()
    yield Claim("Figure 6", "Oven and fan are small.", NO_NUMBER,
                f"sd {number(sd['Oven'])} and {number(sd['Fan'])} kWh; heating {number(sd[heating])}, washing machine "
                f"{number(sd[washer])}", judged(small < sd[heating], small < sd[washer]),
                "both sd below heating's, and below the washing machine's")


def _noise(found: Found) -> Iterator[Claim]:
    local, one = found.main.loc[LOCAL], found.main.loc[ONE]
    yield Claim("Figures 7, 8", "After noise the dominant appliances keep their relative importance.", NO_NUMBER,
                f"ε {GOAL}: dominant appliance right in {percent(local.loc[GOAL, 'top1'], 0)} of seeds, cosine "
                f"{number(local.loc[GOAL, 'cosine'])}; ε {START}: {percent(local.loc[START, 'top1'], 0)}, "
                f"{number(local.loc[START, 'cosine'])}; one noise at {START}: {percent(one.loc[START, 'top1'], 0)}, "
                f"{number(one.loc[START, 'cosine'])}",
                judged(*(local.loc[e, score] >= GOOD for e in (GOAL, START) for score in ("top1", "cosine"))),
                f"top-1 and cosine at least {GOOD} with noise in every home, at both budgets")
    shape, shape_one = found.shape.loc[LOCAL]["cosine"], found.shape.loc[ONE]["cosine"]
    yield Claim("Figure 8", "After noise the overall shape of demand remains.", NO_NUMBER,
                f"cosine of the mean day at ε {GOAL}: {number(shape[GOAL])} (one noise {number(shape_one[GOAL])}); at "
                f"{START}: {number(shape[START])} (one noise {number(shape_one[START])})",
                judged(shape[GOAL] >= GOOD, shape[START] >= GOOD),
                f"cosine at least {GOOD} with noise in every home, at both budgets")


def _negotiation(found: Found) -> Iterator[Claim]:
    table, local, one = found.rounds, found.main.loc[LOCAL], found.main.loc[ONE]
    first, last = table.iloc[0], table.iloc[-1]
    yield Claim("Figure 9", "Negotiation takes ε from .16 to 6.73.", f"{START} to {GOAL}; rounds not given",
                f"{number(first['median ε'])} to {number(last['median ε'])} in {len(table)} rounds, "
                f"{'agreed' if last['ended'] == 'yes' else 'rounds ran out'}; set up so (prices and need are ours)",
                judged(abs(first["median ε"] - START) < 1e-3, abs(last["median ε"] - GOAL) < 0.1, last["ended"] == "yes"),
                "ends within .1 of 6.73, by agreement")
    yield Claim("Figure 9", "At .16 the noise distorts the explanation.", NO_NUMBER,
                f"cosine {number(local.loc[START, 'cosine'])}, signs right {percent(local.loc[START, 'sign'], 0)}; with one "
                f"noise {number(one.loc[START, 'cosine'])}", judged(local.loc[START, "cosine"] < 0.5), "cosine below .5")
    own = found.values[(found.values["strategy"] == LOCAL) & (found.values["epsilon"] == GOAL)]["value"]
    yield Claim("Figure 9", "At 6.73 the utility settles.", NO_NUMBER,
                f"cosine {spread(own.mean(), own.std())} over seeds", judged(own.mean() >= GOOD, own.std() < NEAR),
                f"mean at least {GOOD}, sd below {NEAR}")
    for words, score in (("dominant appliance", "top1"), ("sign", "sign"), ("relative ranking", "spearman")):
        value = local.loc[GOAL, score]
        yield Claim("Figure 9", f"At 6.73 the {words} remains.", NO_NUMBER,
                    f"{score} {number(value)} (one noise {number(one.loc[GOAL, score])})", judged(value >= GOOD),
                    f"mean over seeds at least {GOOD} with noise in every home")
    cautious = found.cautious.set_index("homes that stay at .16")["promised utility, noise per home"]
    one_home = found.cautious.set_index("homes that stay at .16")["promised utility, one noise"]
    text = f"promised utility {number(cautious[0])} if all move, {number(cautious.iloc[-1])} if none does"
    if 1 in cautious.index:
        text += f"; one home that stays is enough for {number(cautious[1])} (one noise: {number(one_home[1])})"
    yield Claim("Figure 9", "Homes that do not relax their privacy make the explanation coarser.", NO_NUMBER, text,
                judged(cautious.iloc[-1] < cautious.iloc[0]), "promised utility lower if none moves (public model)")


def _classes(found: Found) -> Iterator[Claim]:
    local, one = found.classes.loc[LOCAL]["cosine"], found.classes.loc[ONE]["cosine"]
    (general, *_), (specific, *_) = found.redrawn[found.general], found.redrawn[found.specific]
    yield Claim("Figure 11", "Specific queries reach 83 %, general ones 67 %.",
                f"{U_SPECIFIC} and {U_GENERAL}; no budgets",
                f"appliances at ε {found.specific:g} and {found.general:g}: {number(specific)} and {number(general)} over "
                f"{DRAWS:,} redraws ({number(local[found.specific])} and {number(local[found.general])} from the boxes, "
                f"{3 * found.seeds} seeds); one noise {number(one[found.specific])} and {number(one[found.general])}",
                judged(abs(specific - U_SPECIFIC) < NEAR, abs(general - U_GENERAL) < NEAR),
                f"both redraws within {NEAR} at budgets {found.specific / found.general:.2f} apart, which the closed form "
                "gives: the claim fixes the budgets, not the other way round")
    shape = found.shape.loc[LOCAL]["cosine"][found.general]
    yield Claim("Figure 11", "A specific query is more useful than a general one, which costs less.",
                "83 % against 67 %",
                f"specific at ε {found.specific:g}: {number(local[found.specific])}; a general one (peak shape, 24 bins) "
                f"at ε {found.general:g}: {number(shape)}", judged(local[found.specific] > shape),
                "mean cosine over seeds, noise in every home")


def _leakage(found: Found) -> Iterator[Claim]:
    table = found.leakage
    answered, refused = table[table["answers"] > 0], table[table["answers"] == 0]
    fresh = answered[answered["question"] != "the first question again"]
    most = table["ε spent"].max()
    whole = abs(fresh["ε asked"].sum() - most) < 1e-6
    yield Claim("Figure 12", "Leakage adds up to L_max, then every further query is refused.", f"L_max = {GOAL}",
                f"{len(fresh)} fresh queries answered, {number(most)} spent of {found.cap:g} by every home, then "
                f"{len(refused)} refused by all; a question asked before is answered from the store, free",
                judged(whole, most <= found.cap + 1e-9, len(refused) > 0, bool((refused["answers"] == 0).all()),
                       abs(most - found.cap) < 1e-6), "from the ledger: the sum of what was asked, never above the cap")
    yield Claim("Figures 9, 12", "A home that agreed to 6.73 can be asked again under L_max = 6.73.", "both are 6.73",
                f"at ε {GOAL} a query the cap allows {int(found.cap / GOAL + 1e-9)} answer(s)",
                HOLDS if int(found.cap / GOAL + 1e-9) > 1 else FAILS, "answers within the cap", own=True)


def _incentive(found: Found) -> Iterator[Claim]:
    table = found.discount.table
    untied = table["sigma"] == "not tied to the peak"
    tied, loose = table[~untied], table[untied]

    def cells(frame, column):
        return "; ".join(f"σ {row['sigma']}, η {row['eta']:g}: {percent(row[column])}" for _, row in frame.iterrows())
    yield Claim("Figure 10", "With a 20 % discount and 20 of 50 homes the peak price falls.", NO_NUMBER,
                f"mean price of the peak hours {cells(tied, 'peak price')}", judged(*(tied["peak price"] < 0)),
                "falls in every case")
    yield Claim("Figure 10", "The price curve is smoother.", NO_NUMBER,
                f"spread (sd) {cells(tied, 'spread of prices')}", judged(*(tied["spread of prices"] < 0)),
                "sd of the price over the record falls in every case")
    yield Claim("Figure 10", "The discount by itself does it.", "not said what it is tied to",
                f"not tied to the peak it raises use: peak price {', '.join(percent(v) for v in loose['peak price'])} (η "
                f"{', '.join(f'{eta:g}' for eta in loose['eta'])})", judged(*(loose["peak price"] < 0)),
                "the peak price falls too when it is not tied to the peak",
                own=True)
    facts = found.discount.facts
    yield Claim("Figure 10", "The scheme is worth its cost.", "cost not given",
                f"costs £{facts['cost']:.2f}, {percent(facts['cost_share'])} of all bills; at the shadow price it saves "
                + "; ".join(f"£{row['saved (£)']:.2f} (σ {row['sigma']}, η {row['eta']:g})" for _, row in tied.iterrows()),
                judged(*(tied["saved (£)"] > facts["cost"])),
                "saves more than it costs, in every case", own=True)
    if found.london is None:
        yield Claim("Figure 10", "The same with London's real dynamic tariff.", "not in the source",
                    "no data folder given", OPEN_QUESTION, own=True)
        return
    real = found.london.table
    yield Claim("Figure 10", "The same with London's real dynamic tariff.", "not in the source",
                f"price in High half hours {cells(real, 'peak price')}; the year's highest price "
                f"{percent(np.min(real['highest price']))} at best", judged(bool((real["peak price"] < 0).all()),
                bool((real["highest price"] < 0).all())),
                "falls in the High half hours, and at the year's highest price", own=True)
