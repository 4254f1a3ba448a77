"""The page's sections: each takes the run and gives HTML, or says what is absent and why."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedenergy.report import markup
from fedenergy.report.gallery import Plate
from fedenergy.report.load import RunData
from fedenergy.report.svg import inline
from fedenergy.report.tables import EPSILON, display, export_csv, ranking, summary_table, why_no_ranking
from fedenergy.report.tiers import by_number, zone_of
from fedenergy.report.words import ABSENT, duration, epsilon_text, heading, listing, number, unit_text
from fedenergy.report.zone import ZoneReport, latest

RELATIONS = {
    "replace-one": "two populations are neighbours if one {unit}'s whole record is replaced by any other",
    "zero-out": "two populations are neighbours if one {unit}'s whole record is set to zero",
    "add-remove": "two populations are neighbours if one {unit} is added or removed",
}
RESULTS = {
    "Error against the clipped sum": ["mae", "rmse", "spearman", "cosine", "top1", "sign"],
    "Error against the true sum, clipping included": [
        "mae_total",
        "rmse_total",
        "spearman_total",
        "cosine_total",
        "top1_total",
        "mae_less",
        "clipped_share",
    ],
    "Answers, and what was spent by this run": ["answers", "refusals", "epsilon_spent_mean", "epsilon_spent_max"],
}
TEXT_COLUMNS = (
    "strategy",
    "trust",
    "policy",
    "population",
    "unit",
    "verdict",
    "relation",
    "noise stamp",
    "seen by",
    "envelope",
    "reason",
    "code",
)
MOST_HOMES, MOST_ZONES = 500, 10
TRAINED = {
    "Errors of the shared model on the homes' last days, after the last round": [
        "mae",
        "rmse",
        "mae_worst_tenth",
        "mae_no_change",
        "rmse_no_change",
        "train_loss",
    ],
    "Answers of the last round": ["answers", "refusals", "failures"],
}


def privacy(data: RunData) -> str:
    """What is promised, to whom, about what: before any result."""
    unit, relation = data.unit, str(data.summary.get("relation") or "")
    metrics, agreement, query = data.metrics, data.part("agreement", dict), data.part("query", dict)
    private = metrics[metrics["trust"] != "open"]
    epsilons = sorted(private["epsilon"].dropna().unique())
    deltas = sorted(private["delta"].fillna(0).unique())
    rounds = query.get("rounds") or (int(metrics["round"].nunique()) if len(metrics) else None)
    rule = RELATIONS.get(relation, "").format(unit=unit or "unit")
    noise, stamp = str(data.summary.get("noise") or ""), str(data.summary.get("stamp") or "")
    together = ", all cells and rounds together" if noise == "secure" else " and cell, all rounds together"
    items = [
        ("Unit", unit or "not stated by the run"),
        ("Relation", f"{relation}: {rule}" if rule else relation or "not stated by the run"),
        (
            "ε asked",
            f"{listing(epsilon_text(value) for value in epsilons)} per {unit or 'unit'} and round"
            if epsilons
            else "none: no private answers",
        ),
        ("δ", listing(number(value) for value in deltas) if deltas else "0"),
    ]
    items += [("Rounds", number(rounds))] if rounds else []
    if isinstance(agreement.get("cap"), int | float):
        items += [
            (
                "Cap",
                f"ε = {number(agreement['cap'])} per {unit or 'unit'}{together}; "
                "a request beyond it is refused",
            )
        ]
    if agreement.get("trust"):
        items += [("Trust modes", listing(agreement["trust"]))]
    if agreement.get("authenticator"):
        listed = agreement.get("revocations") or {}
        items += [
            (
                "Agreements",
                f"signed files, Authenticator's key {agreement['authenticator']}; "
                + (
                    f"revocation list: {listed['problem']}"
                    if "problem" in listed
                    else f"revocation list at the end: version {number(listed.get('version', 0))}, "
                    f"{number(listed.get('agreements', 0))} agreements withdrawn"
                )
                + ". The cap is the largest, the trust modes are all that any home agreed to"
                + ("" if noise != "simulation" else ". The noise is seeded, so every cell is a world of "
                   "its own and every ledger counts anew; under secure noise one ledger counts all answers together"),
            )
        ]
    meaning = {
        "simulation": "seeded, for repeatable studies",
        "secure": "drawn from the operating system's entropy",
    }.get(noise, "")
    items += [
        (
            "Noise",
            f"{noise}{f' ({meaning})' if meaning else ''}{f': {stamp}' if stamp else ''}" or "not stated by the run",
        )
    ]
    parts = [markup.pairs(items)]
    if data.summary.get("oracle"):
        parts.append(
            markup.paragraph(
                "An oracle ran beside the private strategies (oracle = true): the errors and the parts marked "
                "“inside view” use data that never leave a box in a deployment."
            )
        )
    parts.append("<h3>Who sees what</h3>" + _who_sees_what(data))
    parts.append(
        markup.paragraph(
            "Boxes, Summer and Curator are process conventions of a simulation: this page shows what flowed between "
            "them, not that machines were isolated.",
            "note",
        )
    )
    return "".join(parts)


def _who_sees_what(data: RunData) -> str:
    rows = data.rows("who_sees_what")
    if not rows:
        return markup.paragraph("Absent: the run recorded no count of the envelopes that crossed.")
    titles = [
        "trust",
        "envelope",
        "count",
        "seen by",
        "ε asked: against the querier",
        "ε asked: against the operator",
        "ε granted, least to most",
        "unit",
        "relation",
        "noise stamp",
    ]
    keys = [
        "trust",
        "envelope",
        "count",
        "seen_by",
        "epsilon_vs_querier",
        "epsilon_vs_operator",
        "epsilon_granted",
        "unit",
        "relation",
        "stamp",
    ]
    body = [[_text(row.get(key)) for key in keys] for row in rows]
    return markup.table(
        titles,
        body,
        "Envelopes that crossed from a box to the zone, counted; ε = ∞ means no protection against that party.",
        TEXT_COLUMNS,
    )


def _text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value, 4)
    return {"inf": "∞", "Infinity": "∞"}.get(str(value), str(value)) if value not in (None, "") else "–"


def ran(data: RunData) -> str:
    """Which data, which task, which software."""
    population, task, query = (data.part(key, dict) for key in ("population", "task", "query"))
    size = f"{number(population['count'])} {population.get('unit') or 'unit'}s" if population.get("count") else ""
    length = (
        f"{number(population['steps'])} steps of {number(population['step_minutes'])} minutes"
        if population.get("steps") and population.get("step_minutes")
        else ""
    )
    channels = population.get("channels") or []
    metrics = data.metrics
    items = [
        (
            "Population",
            ", ".join(filter(None, [str(population.get("name") or ""), size, length])) or "not stated by the run",
        ),
        ("Source", str(population.get("source") or "")),
        ("Channels", listing(channels) if isinstance(channels, list) else number(channels)),
        ("Task", _arguments(task)),
        ("Query", _arguments(query)),
        ("Strategies", listing(sorted(set(metrics["strategy"])))),
        ("Policies", listing(sorted(set(metrics["policy"])))),
        ("Seeds", listing(sorted(set(metrics["seed"])))),
        ("Started", str(data.summary.get("started") or "")),
        ("Took", duration(data.summary.get("seconds")) if data.summary.get("seconds") else ""),
        (
            "Versions",
            ", ".join(f"{name} {version}" for name, version in data.versions.items())
            or "absent: the folder has no versions.json",
        ),
    ]
    html = markup.pairs((term, value) for term, value in items if value)
    notes = [str(note) for note in data.part("notes", list)]
    return html + (f"<h3>Notes</h3>{markup.bullets(notes)}" if notes else "")


def _arguments(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in table.items())


def results(data: RunData, plates: list[Plate]) -> str:
    if data.metrics.empty:
        return markup.paragraph("Absent: metrics.csv has no rows.")
    table = summary_table(data.metrics, data.cells, data.unit)
    unit, parts = str(data.summary.get("unit_of_values") or ""), []
    seeds = data.metrics["seed"].nunique()
    how = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed: no standard deviation"
    if not data.oracle:
        parts.append(
            markup.paragraph(
                "Errors are absent: the run had oracle = false, so nothing but answers, refusals and budgets is known."
            )
        )
    groups = TRAINED if data.summary.get("training") else RESULTS
    known = {metric for group in groups.values() for metric in group}
    extra = [name for name in table if f"{name}_sd" in table and name not in known]
    for title, metrics in {**groups, "Other measures": extra}.items():
        present = [metric for metric in metrics if metric in table]
        if not present:
            continue
        titles, rows = display(table, unit, present)
        caption = f"{title}. {how}; {data.privacy_line}."
        parts.append(
            f"<h3>{markup.escape(title)}</h3>"
            + _table(data, titles, rows, caption, ["strategy", EPSILON, "δ"], ["n", "trust"])
        )
    return "".join(parts) + markup.download(export_csv(table), "summary.csv") + _plates(plates, "results")


def ranked(data: RunData) -> str:
    unit, parts = str(data.summary.get("unit_of_values") or ""), []
    for metric in ("mae", "cosine"):
        table = ranking(data.metrics, data.cells, metric)
        if table.empty:
            continue
        titles, rows = display(table, unit)
        caption = (
            f"Ranked by {heading(metric, unit)}. Difference and verdict are against the best mean of the same setting, "
            f"paired by seed, with a 95 % t interval (not adjusted for the number of strategies); {data.privacy_line}."
        )
        parts.append(_table(data, titles, rows, caption, ["strategy", EPSILON, "δ", "rank"], ["n", "trust"]))
    return "".join(parts) or markup.paragraph(why_no_ranking(data.metrics))


def _table(
    data: RunData, titles: list[str], rows: list[list[str]], caption: str, first: list[str], last: list[str]
) -> str:
    """A result table with what a phone shows first in front; a line between settings; the unit in epsilon's heading."""
    rank = {title: place - 99 for place, title in enumerate(first)} | {
        title: place + 99 for place, title in enumerate(last)
    }
    order = sorted(range(len(titles)), key=lambda i: rank.get(titles[i], 0))
    group = [titles[i] for i in order].index(EPSILON)
    heads = [f"{EPSILON} per {data.unit}" if titles[i] == EPSILON and data.unit else titles[i] for i in order]
    return markup.table(heads, [[row[i] for i in order] for row in rows], caption, TEXT_COLUMNS, group)


def zone(data: RunData) -> str:
    """The zone report as the operator gets it: no truth, no reasons."""
    zones = zone_of(data)
    reports = latest([{**row, "zone": zones.get(row.get("cell"), "")} for row in data.rows("zone_answers")])
    if not reports:
        return markup.paragraph("Absent: the run stored no answers of the zone.")
    names = sorted({report.zone for report in reports}, key=by_number)
    reports = [report for report in reports if report.zone in names[:MOST_ZONES]]
    left_out = f" The first {MOST_ZONES} of {len(names)} zones." if len(names) > MOST_ZONES else ""
    titles = ["query", *(["zone"] if zones else []), "strategy", EPSILON, "leads", "confidence", "answers", "refused"]
    titles += ["K_min 15", "K_min 100"]
    body = [
        [
            report.kind,
            *([report.zone] if zones else []),
            report.strategy,
            epsilon_text(report.epsilon),
            report.leader or ABSENT,
            ABSENT if report.confidence is None else f"{100 * report.confidence:.1f} %",
            number(report.answers),
            number(report.refused),
            *("yes" if report.publish[name][0] else f"no: {report.publish[name][1]}" for name in ("15", "100")),
        ]
        for report in reports
    ]
    caption = (
        f"First seed, largest ε, last round.{left_out} Confidence: were another coordinate the largest in truth (of the "
        "clipped sums), a lead like this would come up in at most the rest of all draws. K_min 15 also asks that no home "
        f"holds more than 15 % of a public bound, here of what that many homes can add at most; {data.privacy_line}."
    )
    text = markup.table(titles, body, caption, (*TEXT_COLUMNS, "leads", "K_min 15", "K_min 100"))
    return text + "".join(_zone_values(report) for report in reports) + markup.paragraph(
        "Why homes refused is known inside the boxes only: see Refusals, an inside view.", "note"
    )


def _zone_values(report: ZoneReport) -> str:
    unit, many = unit_text(report.unit), report.shares is not None
    titles = ["coordinate", f"sum ({unit})", "from", "to", *(["share"] if many else [])]
    body = [
        [
            report.names[k],
            number(report.values[k]),
            ABSENT if report.low is None else number(report.low[k]),
            ABSENT if report.high is None else number(report.high[k]),
            *([f"{100 * report.shares[k]:.1f} %"] if many else []),
        ]
        for k in report.ranked
    ]
    share = {"top": " Share: of the homes that answered.", "peak_hour": " Share: of the day, none below 0."}
    what = "From and to hold all sums of clipped answers at once with 95 % confidence."
    known = what if report.low is not None else "The noise of this strategy's answer has no closed form."
    return markup.details(
        f"{report.kind}, {f'zone {report.zone}, ' if report.zone else ''}{report.strategy}",
        markup.table(titles, body, f"What was released, round {report.round}. {known}{share.get(report.kind, '')}", ()),
    )


def truth(data: RunData, plates: list[Plate]) -> str:
    why = "it needs the oracle, and the run had oracle = false" if not data.oracle else "the run stored no zone sums"
    return _plates(plates, "truth") or markup.paragraph(f"Absent: {why}.")


def spent(data: RunData, plates: list[Plate]) -> str:
    return _plates(plates, "spent") or markup.paragraph(
        "Absent: the run stored no budgets per home; the ledger holds every charge."
    )


def refused(data: RunData, plates: list[Plate]) -> str:
    rows = [row for row in data.rows("refusals") if row.get("count")]
    if not rows:
        known = "refusals" in data.summary
        return markup.paragraph("No request was refused." if known else "Absent: the run did not record reasons.")
    body = [
        [str(row.get("reason") or ""), _text(row.get("code")), number(row.get("count"))]
        for row in sorted(rows, key=lambda row: -row["count"])
    ]
    return _plates(plates, "refusals", inside=True) + markup.table(
        ["reason", "code", "count"],
        body,
        "Inside view: reasons stay in the box's log; outside it a refusal is one word.",
        TEXT_COLUMNS,
    )


def inside(data: RunData, plates: list[Plate]) -> str:
    return _plates(plates, "inside", inside=True) or markup.paragraph(
        "Absent: a home's day is recomputed off the network, and only with oracle = true."
        if not data.oracle
        else "Absent: the run stored no home's day."
    )


def quality(data: RunData) -> str:
    rows = data.rows("quality")
    if not rows:
        return markup.paragraph("Absent: the run stored no counts of faulty readings.")
    frame = pd.DataFrame(rows)
    counts = [name for name in frame if name != "household"]
    frame[counts] = frame[counts].apply(pd.to_numeric, errors="coerce").fillna(0)
    totals = ", ".join(f"{name} {number(frame[name].sum())}" for name in counts if frame[name].sum()) or "nothing wrong"
    bad = frame[frame[counts].sum(axis=1) > 0]
    bad = bad.loc[bad[counts].sum(axis=1).sort_values(ascending=False, kind="stable").index]
    text = markup.paragraph(
        f"{number(len(frame))} homes; together: {totals}. {number(len(frame) - len(bad))} homes have no fault."
    )
    if bad.empty or "household" not in frame:
        return text
    titles = ["household", *counts]
    body = [
        [str(row["household"]), *(number(row[name]) for name in counts)] for _, row in bad.head(MOST_HOMES).iterrows()
    ]
    more = f", the {MOST_HOMES} worst of {number(len(bad))}" if len(bad) > MOST_HOMES else ""
    return text + markup.details(
        f"Counts per home (inside view{more})",
        markup.table(titles, body, "Faults per home, the worst first.", TEXT_COLUMNS),
    )


def reproduce(data: RunData) -> str:
    config = shlex.quote(str(data.folder / "config.resolved.toml"))
    text = markup.paragraph("From the folder of the study, where its strategies are found:")
    text += markup.code(f"fedenergy run {config}")
    if data.summary.get("noise") == "secure":
        text += markup.paragraph(
            "The noise came from the operating system: only the ledger's stored answers give these numbers again "
            "(keep ledger/, and set [ledger] path to it)."
        )
    elif data.summary.get("noise") == "simulation":
        text += markup.paragraph(
            "The noise is seeded: the same config and versions give the same metrics.csv, byte for byte."
        )
    return text + markup.details("config.resolved.toml", markup.code(data.config or "(empty)"))


def _plates(plates: list[Plate], section: str, inside: bool = False) -> str:
    chosen = [plate for plate in plates if plate.section == section]
    html = "".join(
        markup.figure(plate.title, inline(plate.svg, plate.name, plate.alt), plate.caption, inside) for plate in chosen
    )
    return f'<div class="plates">{html}</div>' if html else ""


def stamp(data: RunData) -> str:
    text = str(data.summary.get("stamp") or "")
    return f'<p class="stamp">{markup.escape(text[:1].upper() + text[1:])}</p>' if text else ""


def meta(data: RunData) -> str:
    facts = [
        data.summary.get("name"),
        data.summary.get("started"),
        duration(data.summary["seconds"]) if data.summary.get("seconds") else "",
        f"values in {unit_text(str(data.summary['unit_of_values']))}" if data.summary.get("unit_of_values") else "",
    ]
    return markup.escape(" · ".join(str(fact) for fact in facts if fact))
