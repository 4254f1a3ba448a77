"""Zones and the cloud above them: which settings are which, and what the page says of the cloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from fedenergy.report import markup
from fedenergy.report.load import RunData
from fedenergy.report.tables import EPSILON, summary_table
from fedenergy.report.words import ABSENT, epsilon_text, heading, labels, listing, number

ZONE, CLOUD = "zone", "cloud"
KEYS = ("base", "strategy", "trust", "policy", "epsilon", "delta")
SCORES = ("mae", "mae_total", "cosine")


def zone_of(data: RunData) -> Mapping[str, str]:
    """cell -> number of its zone, or "cloud"; empty where the homes were not dealt out to zones."""
    if ZONE not in data.cells:
        return {}
    zones = data.cells.set_index("cell")[ZONE].astype(str)
    return {cell: zone for cell, zone in zones.items() if zone}


def by_number(zone: str) -> tuple[int, str]:
    """Sort key of zones: 1, 2, 10."""
    return (int(zone), "") if zone.isdigit() else (0, zone)


def zones_only(data: RunData) -> RunData:
    """The run without the cloud's rows: the cloud adds up what the zones released, and is no experiment of its own."""
    above = {cell for cell, zone in zone_of(data).items() if zone == CLOUD}
    if not above:
        return data
    return replace(data, metrics=data.metrics[~data.metrics["cell"].isin(above)].reset_index(drop=True),
                   cells=data.cells[~data.cells["cell"].isin(above)].reset_index(drop=True))


def section(data: RunData) -> str:
    """What the cloud is, whether its sums are those of its zones, its errors beside theirs; "" without zones."""
    zones = zone_of(data)
    names = sorted({zone for zone in zones.values() if zone != CLOUD}, key=by_number)
    if not names:
        return ""
    text = markup.paragraph(
        f"The homes are dealt out to {len(names)} zones. Each zone is asked, noised and charged on its own, and no home is "
        "in two. The cloud is the tier above: it adds up the vectors that the zones released. It asks no home, holds "
        "nothing but those vectors and adds no noise of its own, so it costs no epsilon beyond what the homes spent in "
        "their zones."
    )
    if CLOUD not in zones.values():
        return text + markup.paragraph(
            "Absent: the run kept no sums of the cloud (cloud = false, or a zone released nothing)."
        )
    same, of = exact_sums(data)
    if of:
        how = "bit for bit the sum of its zones' vectors" + ("" if same == of else f" in {same} of {of} sums only")
        text += markup.paragraph(
            f"The sum is exact: released values lie on the noise grid, and {number(of)} sums on file were compared: the "
            f"cloud's vector is {how}. Where a strategy adds up its homes' answers, it is thus the sum over all homes, "
            "however they were dealt out. The noise of the cloud is that of all its zones together: under one noise per "
            f"zone there are {len(names)} noises in it."
        )
    return text + _errors(data)


def exact_sums(data: RunData) -> tuple[int, int]:
    """(sums of the cloud that equal those of their zones' vectors to the last bit, sums that can be compared)."""
    turns: dict[tuple, dict[str, list[float]]] = {}
    settings = _settings(data)
    zones = zone_of(data)
    for row in (*data.rows("zone_answers"), *data.rows("zones")):
        if (cell := row.get("cell")) in settings and zones.get(cell, CLOUD) != CLOUD and row.get("released"):
            key = settings[cell], row.get("strategy"), row.get("round")
            turns.setdefault(key, {})[zones[cell]] = row["released"]
    same = of = 0
    for row in data.rows("cloud"):
        found = turns.get((settings.get(row.get("cell")), row.get("strategy"), row.get("round")), {})
        if found and len(found) == row.get("zones"):
            of += 1
            same += bool(np.array_equal(np.sum([found[zone] for zone in sorted(found, key=by_number)], axis=0),
                                        np.array(row["released"], float)))
    return same, of


def _settings(data: RunData) -> dict[str, tuple]:
    """cell -> everything that describes it but the zone."""
    rest = data.cells.drop(columns=["cell", ZONE]).astype(str)
    return dict(zip(data.cells["cell"], rest.itertuples(index=False, name=None)))


def beside(data: RunData) -> pd.DataFrame:
    """One row per strategy and setting: of each score its mean over the zones, lowest and highest zone, and the cloud's.

    Columns: base (population without its zone), strategy, trust, policy, epsilon, delta, varied keys, then per score m:
    m, m_low, m_high, m_cloud. Empty without scores of both tiers.
    """
    table = summary_table(data.metrics, data.cells)
    present = [name for name in SCORES if name in table]
    parts = table["population"].str.rpartition("/")
    table["base"], above = parts[0], parts[2] == CLOUD
    first = next((at for at, name in enumerate(table) if f"{name}_sd" in table), len(table.columns))
    varied = [name for name in table.columns[:first] if name not in (*KEYS, "population", "unit", "n", ZONE)]
    keys = [*KEYS, *varied]
    if not present or not above.any():
        return pd.DataFrame()
    zones = table[~above].groupby(keys, dropna=False)[present].agg(["mean", "min", "max"])
    zones.columns = [f"{name}{ {'mean': '', 'min': '_low', 'max': '_high'}[how]}" for name, how in zones.columns]
    cloud = table[above].set_index(keys)[present].add_suffix("_cloud")
    return zones.join(cloud, how="inner").reset_index()


def _errors(data: RunData) -> str:
    table = beside(data)
    if table.empty:
        return markup.paragraph("Errors of the cloud are absent: they need the oracle (oracle = true).")
    unit, names = str(data.summary.get("unit_of_values") or ""), labels(table["strategy"])
    present = [name for name in SCORES if name in table]
    more = [key for key in table if key not in KEYS and key.split("_")[0] not in ("mae", "cosine")
            and table[key].nunique() > 1]
    shown = [key for key in ("base", "policy") if table[key].nunique() > 1]
    titles = ["strategy", EPSILON, "δ", *("population" if key == "base" else key for key in shown), *more]
    titles += [f"{heading(name, unit)}, {tier}" for name in present for tier in ("zones", "cloud")]
    body = [
        [names[row["strategy"]], epsilon_text(row["epsilon"], row["trust"]), number(row["delta"]),
         *(str(row[key]) for key in shown), *(row[key] if isinstance(row[key], str) else number(row[key]) for key in more),
         *(text for name in present for text in (_spread(row, name), number(row[f"{name}_cloud"])))]
        for row in table.to_dict("records")
    ]
    caption = (
        "Of the zones: the mean over zones, in brackets the lowest and highest zone. Errors of the cloud are against the "
        f"sums over all homes, which are larger than a zone's. Means over seeds and rounds; {data.privacy_line}."
    )
    return markup.table(titles, body, caption, ("strategy", "population", "policy"))


def _spread(row: Mapping[str, float], name: str) -> str:
    if pd.isna(row[name]):
        return ABSENT
    return f"{number(row[name])} [{number(row[f'{name}_low'])}, {number(row[f'{name}_high'])}]"


def in_words(data: RunData) -> list[str]:
    """A sentence for the page's summary: the cloud's error as a multiple of its zones'."""
    table = beside(data) if CLOUD in zone_of(data).values() else pd.DataFrame()
    if table.empty or "mae" not in table:
        return []
    ratio = (table["mae_cloud"] / table["mae"]).replace([np.inf], np.nan).dropna()
    if ratio.empty:
        return []
    ends = listing(dict.fromkeys((number(ratio.min(), 2), number(ratio.max(), 2)))).replace(" and ", " to ")
    return [f"The cloud, which adds up what the zones released, has a mean absolute error {ends} times that of its zones on "
            "average; it costs no epsilon."]
