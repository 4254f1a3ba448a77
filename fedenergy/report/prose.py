"""The plain-language summary: sentences computed from the run's numbers, never written ahead of them."""

from __future__ import annotations

import pandas as pd

from fedenergy.report.load import RunData
from fedenergy.report.tables import nobody_answered, per_seed, ranking, summary_table
from fedenergy.report.tiers import in_words, zone_of, zones_only
from fedenergy.report.words import TRUST, duration, epsilon_text, heading, labels, listing, number, unit_text

MOST_COMPARED = 4


def in_short(data: RunData) -> list[str]:
    """What the run shows, a sentence per finding; what it cannot show is said, not left out.

    Of a run with zones: of the zones; the cloud above them is no setting of its own, and has a sentence.
    """
    zones = zones_only(data)
    found = [text for part in (_ran, _errors, _direction, _closed_form) for text in part(zones)]
    return [*found, *in_words(data), *_clipping(zones), *_budget(zones)]


def _ran(data: RunData) -> list[str]:
    metrics, population = data.metrics, data.part("population", dict)
    if metrics.empty:
        return ["The run has no results: metrics.csv is empty."]
    epsilons = sorted(metrics.loc[(metrics["trust"] != "open") & metrics["epsilon"].notna(), "epsilon"].unique())
    seeds, strategies = metrics["seed"].nunique(), metrics["strategy"].nunique()
    homes = f" on {number(population['count'])} {population.get('unit') or 'unit'}s" if population.get("count") else ""
    homes += f" in {number(len(zones))} zones" if (zones := set(zone_of(data).values())) else ""
    asked = (
        f", ε = {listing(epsilon_text(value) for value in epsilons)} per round"
        if 0 < len(epsilons) <= 6
        else (
            f", {len(epsilons)} values of ε from {epsilon_text(epsilons[0])} to {epsilon_text(epsilons[-1])} per round"
            if epsilons
            else ""
        )
    )
    took = f", in {duration(data.summary['seconds'])}" if data.summary.get("seconds") else ""
    rounds = metrics.groupby(["cell", "strategy"])["round"].nunique().max()
    return [
        f"{_count(strategies, 'strategy', 'strategies')}{homes}{asked}, {_count(seeds, 'seed')}, "
        f"{_count(rounds, 'round')}{took}."
    ]


def _errors(data: RunData) -> list[str]:
    """How much lower the best strategy's MAE is than each other's, where paired intervals tell them apart."""
    if not (data.metrics["metric"] == "mae").any() or not data.oracle:
        why = (
            "No oracle was computed (oracle = false)"
            if not data.oracle
            else "No home answered"
            if nobody_answered(data.metrics)
            else "The oracle has no sum to compare with (a home refused it, or a strategy gave none)"
        )
        return [f"{why}, so the errors are unknown: the report shows answers, refusals and budgets only."]
    ranks = ranking(data.metrics, data.cells)
    if ranks.empty:
        return []
    settings = [key for key in ranks.columns[: ranks.columns.get_loc("rank")]]
    wins = ranks[ranks["rank"] == 1].groupby(["strategy", "trust"]).size().sort_values(ascending=False, kind="stable")
    (best, trust), names = wins.index[0], labels(data.metrics["strategy"])
    total = int(wins.sum())
    mine = ranks[(ranks["strategy"] == best) & (ranks["trust"] == trust)].set_index(settings)["mean"]
    rivals = []
    for entrant, rows in ranks[(ranks["strategy"] != best) | (ranks["trust"] != trust)].groupby(["strategy", "trust"]):
        theirs = rows.set_index(settings)["mean"]
        ratio = (theirs / mine.reindex(theirs.index)).replace([float("inf")], float("nan")).dropna()
        if len(ratio):
            rivals.append((ratio, entrant))
    rivals.sort(key=lambda rival: -rival[0].median())
    entrants = pd.Series(list(zip(data.metrics["strategy"], data.metrics["trust"])), index=data.metrics.index)
    open_only = bool(data.summary.get("training"))  # every strategy of a training is: its name says more
    first, texts = names[best] if open_only else f"{TRUST.get(trust, trust)} ({names[best]})", []
    for ratio, (other, mode) in rivals[:MOST_COMPARED]:
        second = names[other] if open_only else f"{TRUST.get(mode, mode)} ({names[other]})"
        duel = ranking(data.metrics[entrants.isin([(best, trust), (other, mode)])], data.cells)
        losers = duel.loc[duel["verdict"] == "worse", "strategy"]
        beaten, lost, of = int((losers == other).sum()), int((losers == best).sum()), int((duel["rank"] == 1).sum())
        if ratio.min() > 1:
            texts.append(
                f"With {first} the mean absolute error is {_range(ratio)} times lower than with {second}"
                f"{_certainty(beaten, of, data)}."
            )
        else:
            texts.append(
                f"Between {first} and {second} there is no clear order: the mean absolute error of the second is "
                f"{_range(ratio)} times that of the first; beyond chance higher in {beaten} and lower in {lost} of "
                f"{_count(of, 'setting')}."
            )
    if len(rivals) > MOST_COMPARED:
        more = _count(len(rivals) - MOST_COMPARED, "more comparison")
        texts.append(f"{more} with {names[best]} can be read from the ranking.")
    if wins.iloc[0] < total:
        texts.insert(
            0,
            f"No strategy is best everywhere: {names[best]} has the lowest mean absolute error in "
            f"{wins.iloc[0]} of {total} settings.",
        )
    return texts


def _certainty(sure: int, settings: int, data: RunData) -> str:
    if data.metrics["seed"].nunique() < 2:
        return "; with one seed nothing can be said about chance"
    if sure == settings:
        return ", beyond chance in every setting" if settings > 1 else ", beyond chance"
    return f", beyond chance in {sure} of {settings} settings" if sure else ", which is within chance"


def _direction(data: RunData) -> list[str]:
    """Cosine at the highest epsilon, best and worst strategy."""
    values, _ = per_seed(data.metrics, data.cells)
    values = values[(values["metric"] == "cosine") & (values["trust"] != "open")].dropna(subset="value")
    if values.empty:
        return []
    top = values["epsilon"].max()
    means = values[values["epsilon"] == top].groupby("strategy")["value"].mean().sort_values(ascending=False)
    names = labels(data.metrics["strategy"])
    ends = [means.index[0], *([means.index[-1]] if len(means) > 1 else [])]
    whose = (
        "the zones' released profiles point the way of the true ones with a mean cosine"
        if zone_of(data)
        else "the released profile points the way of the true one with a cosine"
    )
    return [
        f"At ε = {epsilon_text(top)} {whose} of "
        f"{listing(f'{number(means[name])} ({names[name]})' for name in ends)}; 1 is the same direction."
    ]


def _closed_form(data: RunData) -> list[str]:
    expected = pd.DataFrame(data.rows("expected"))
    keys = ["strategy", "epsilon"]
    if expected.empty or not {*keys, "mae"} <= set(expected):
        return []
    table = summary_table(data.metrics, data.cells)
    if zone_of(data) and "n" in expected and "answers" in table:  # zones differ in size: each has its own
        table["n"], keys = table["answers"], [*keys, "n"]
    if "mae" not in table or expected.duplicated(keys).any():
        return []
    both = table.merge(expected[[*keys, "mae"]], on=keys, suffixes=("", "_expected"))
    ratio = (both["mae"] / both["mae_expected"]).replace([float("inf")], float("nan")).dropna()
    return (
        [f"The measured mean absolute error is {_range(ratio)} times what the closed form expects."]
        if len(ratio)
        else []
    )


def _clipping(data: RunData) -> list[str]:
    metrics = data.metrics
    share = metrics.loc[metrics["metric"] == "clipped_share", "value"].dropna()
    if share.empty:
        return []
    clip = data.part("task", dict).get("clip")
    bound = (
        f" to {number(clip)} {unit_text(str(data.summary.get('unit_of_values') or ''))}".rstrip()
        if isinstance(clip, int | float)
        else ""
    )
    less = metrics.loc[metrics["metric"] == "mae_less", "value"].dropna()
    unit = unit_text(str(data.summary.get("unit_of_values") or ""))
    granting = ", and to less where a home granted less than was asked," if len(less) else ""
    texts = [
        f"Clipping{bound}{granting} cut {number(100 * share.mean(), 2)} % of the answers; "
        "the “total” columns count that loss too."
    ]
    if len(less):
        texts.append(
            "Under one noise, scaled to the ε asked, a home that grants less is clipped to as much less. That alone puts "
            f"the sums off by {number(less.mean())} {unit}".rstrip() + " on average: the mean absolute error holds it "
            f"beside the noise, the column “{heading('mae_less')}” tells it apart, and no closed form is compared."
        )
    return texts


def _budget(data: RunData) -> list[str]:
    """Refusals; the most that a home has spent, as the ledger says, against its cap, and by this run."""
    metrics, texts = data.metrics, []
    counts = metrics[metrics["metric"].isin(["answers", "refusals"])].groupby("metric")["value"].sum()
    if {"answers", "refusals"} <= set(counts.index) and counts.sum() > 0:
        share = counts["refusals"] / counts.sum()
        texts.append(
            f"{number(100 * share, 2)} % of the requests were refused." if share else "No request was refused."
        )
    own = metrics.loc[(metrics["metric"] == "epsilon_spent_max") & (metrics["trust"] != "open"), "value"].max()
    by_run = f"at most ε = {number(own)} by this run" if pd.notna(own) else ""
    most = data.part("spent_most", dict)
    spent, cap = most.get("epsilon_spent"), most.get("cap")
    if isinstance(spent, int | float) and isinstance(cap, int | float):
        over = ": more than allowed, which must not happen" if spent > cap + 1e-9 else ""
        where = "" if data.summary.get("noise") == "secure" else " per cell"
        texts.append(
            f"The home that spent most has spent ε = {number(spent)} of the {number(cap)} that its agreement allows{where}, "
            f"by what the ledger holds{over}" + (f"; {by_run}." if by_run else ".")
        )
    elif by_run:
        texts.append(f"Each home spent {by_run}; what it had spent before is in the ledger.")
    return texts


def _count(n: int, one: str, many: str = "") -> str:
    return f"{number(int(n))} {one if n == 1 else many or one + 's'}"


def _range(values: pd.Series) -> str:
    low, high = number(values.min(), 2), number(values.max(), 2)
    return low if low == high else f"{low} to {high}"
