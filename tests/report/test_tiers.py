"""Zones and the cloud on the page: told apart everywhere, and the cloud is no setting of its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedenergy.config import parse
from fedenergy.federation.study import run_study
from fedenergy.report import sections, tiers
from fedenergy.report.gallery import gallery
from fedenergy.report.load import RunData
from fedenergy.report.page import page
from fedenergy.report.prose import in_short
from fedenergy.report.tables import summary_table, varied_keys
from fedenergy.report.words import number

HOMES, ZONES, SEEDS, ROUNDS = 7, 3, 3, 2  # 3, 2 and 2 homes


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Seven homes in zones of unlike size, two strategies."""
    return run_study(parse({
        "name": "tiers", "seeds": list(range(SEEDS)), "out": str(tmp_path_factory.mktemp("tiers")), "oracle": True,
        "population": {"use": "tests.federation.helpers:Planted", "count": HOMES, "zones": ZONES},
        "task": {"use": "tests.federation.helpers:Sums", "clip": 120.0}, "engine": {"workers": 0},
        "query": {"epsilon": 1.0, "rounds": ROUNDS}, "vary": {"query.epsilon": [0.5, 1.0]},
        "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}, {"use": "strategies.secure_sum:SecureSum"}]}))


@pytest.fixture(scope="module")
def data(folder) -> RunData:
    return RunData.read(folder)


def cloud_mae(data: RunData, low: float) -> float:
    """Mean absolute error of the cloud's rows of ZonalSum at an epsilon, by hand."""
    rows = data.metrics[(data.metrics["population"] == "planted/cloud") & (data.metrics["metric"] == "mae")]
    return rows.loc[(rows["strategy"] == "ZonalSum") & (rows["epsilon"] == low), "value"].mean()


def test_a_zone_is_a_population_and_no_second_key(data):
    assert varied_keys(data.metrics, data.cells) == []  # population, epsilon and seed are columns of metrics already
    assert "zone" not in summary_table(data.metrics, data.cells)
    several = data.metrics.assign(population="planted")     # where the population does not tell it, the zone is a key
    assert varied_keys(several, data.cells) == ["zone"]


def test_the_summary_counts_zones_alone(data):
    texts = " ".join(in_short(data))
    assert "on 7 households in 3 zones" in texts
    odd = data.metrics.copy()
    odd.loc[odd["population"] == "planted/cloud", "value"] *= 1e6
    told = [[text for text in in_short(one) if "The cloud" not in text] for one in (data, replace(data, metrics=odd))]
    assert told[0] == told[1]
    assert len(told[0]) == len(in_short(data)) - 1
    zones = tiers.zones_only(data).metrics
    assert set(zones["population"]) == {"planted/zone-1", "planted/zone-2", "planted/zone-3"}
    cosine = zones[(zones["metric"] == "cosine") & (zones["epsilon"] == 1) & (zones["strategy"] == "ZonalSum")]["value"]
    assert f"{cosine.mean():.3f} (ZonalSum)" in texts or f"{cosine.mean():.4f} (ZonalSum)" in texts
    above = tiers.beside(data)["mae_cloud"] / tiers.beside(data)["mae"]
    assert f"{number(above.min(), 2)} to {number(above.max(), 2)} times that of its zones" in texts


def test_each_zone_is_judged_by_the_closed_form_of_its_own_size(data):
    """Zones of 3 and of 2 homes have other noises in their sums; the cloud's 7 have no closed form on file."""
    expected = pd.DataFrame(data.rows("expected"))
    assert expected.duplicated(["strategy", "epsilon"]).any()
    table = summary_table(tiers.zones_only(data).metrics, tiers.zones_only(data).cells)
    both = table.merge(expected, left_on=["strategy", "epsilon", "answers"], right_on=["strategy", "epsilon", "n"])
    assert len(both) == ZONES * 2 * 2
    ratio = both["mae_x"] / both["mae_y"]
    told = next(text for text in in_short(data) if "closed form" in text)
    assert f"{ratio.min():.2g}" in told or f"{ratio.min():.2f}" in told


def test_the_section_says_what_the_cloud_is(data):
    html = tiers.section(data)
    assert "3 zones" in html
    assert "costs no epsilon" in html
    sums = 2 * 2 * SEEDS * ROUNDS
    assert f"{sums} sums on file were compared" in html
    assert "bit for bit the sum of its zones" in html
    assert "sums only" not in html
    table = tiers.beside(data).set_index(["strategy", "epsilon"])
    row = table.loc[("ZonalSum", 0.5)]
    assert row["mae_cloud"] == pytest.approx(cloud_mae(data, 0.5))
    assert row["mae_low"] <= row["mae"] <= row["mae_high"]
    assert "Zones and the cloud" in page(data, [])


def test_a_sum_that_is_not_exact_is_told(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    summary = json.loads((copy / "summary.json").read_text())
    summary["cloud"][0]["released"][0] += 2.0**-20
    (copy / "summary.json").write_text(json.dumps(summary))
    assert tiers.exact_sums(RunData.read(copy)) == (23, 24)
    assert "in 23 of 24 sums only" in tiers.section(RunData.read(copy))


def test_the_zone_report_shows_every_zone_and_says_which(data):
    html = sections.zone(data)
    for zone in (1, 2, 3):
        assert f", zone {zone}, SecureSum" in html
    assert html.count("<details") == ZONES * 2
    many = sections.MOST_ZONES
    try:
        sections.MOST_ZONES = 2
        assert "The first 2 of 3 zones." in sections.zone(data)
        assert ", zone 3, " not in sections.zone(data)
    finally:
        sections.MOST_ZONES = many


def test_figures_are_of_zones_and_name_them_once(data):
    plates = gallery(data)
    titles = [plate.title for plate in plates]
    assert "MAE against \u03b5, population = planted/zone-1" in titles
    assert not any("cloud" in title or "zone = " in title for title in titles)
    assert any("Shown: zone = 1." in plate.caption for plate in plates if plate.section == "truth")
    assert not any("Dashed" in plate.caption for plate in plates if plate.name.startswith("utility_cosine"))


def test_without_zones_there_is_no_section(run_folder):
    data = RunData.read(run_folder)
    assert tiers.section(data) == ""
    assert "Zones and the cloud" not in page(data, [])
    assert tiers.zones_only(data) is data
    assert "zones" not in in_short(data)[0]
