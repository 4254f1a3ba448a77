"""Section VI of the HXAI source: the study runs at toy size, and its parts give known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import fedenergy as fe
from fedenergy import metrics, tariff
from fedenergy.box.world import World
from fedenergy.config import load
from fedenergy.errors import ConfigError
from fedenergy.households.household import Household
from simulations import pages
from simulations.fifty_homes import incentive, measures
from simulations.hxai_fifty_homes import CONFIG, main


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    config = load(CONFIG, sets=["population.count=6", "seeds=[0, 1]"], workers=0,
                  out=str(tmp_path_factory.mktemp("runs")))
    return main(replace(config, data=""))


@pytest.fixture
def world(tmp_path):
    homes = fe.simulate_households(10, steps=100, seed=1)
    return World(homes, fe.Explain(lags=(1, 24), clip=10.0), fe.Fixed(), fe.AgreementTerms(), tmp_path, secret=bytes(32))


def test_smoke(study):
    figures = {path.stem for path in (study.folder / "figures").glob("fig*.svg")}
    assert {name[:5] for name in figures} == {f"fig{number:02d}" for number in range(6, 13)}
    assert {path.stem for path in (study.folder / "figures").glob("fig*.png")} == figures
    page = study.page.read_text(encoding="utf-8")
    assert all(f"Figure {number}" in page for number in range(6, 13))
    assert "not private" in page
    assert "http" not in page.split("</head>")[1].replace("http://www.w3.org", ""), "no network"
    for name in study.tables:
        assert (study.folder / f"{name}.csv").stat().st_size > 50


def test_every_claim_has_a_verdict_from_the_run(study):
    claims = study.claims
    assert set(claims["verdict"]) <= {pages.HOLDS, pages.PARTLY, pages.FAILS, pages.OPEN_QUESTION}
    assert {f"Figure {n}" for n in (6, 8, 9, 10, 11, 12)} <= set(claims["figure"])
    assert claims["ours"].str.len().min() > 5
    assert not claims["ours"].str.contains(r"\bnan\b").any()


def test_leakage_is_the_ledgers(study):
    """.6 and .99 in turn: 8 answers cost 6.36; .37 fills the cap exactly; one thousandth more is refused."""
    table = study.tables["leakage"]
    assert table["ε spent"].tolist() == pytest.approx(
        [0.6, 1.59, 2.19, 3.18, 3.78, 4.77, 5.37, 6.36, 6.36, 6.73, 6.73, 6.73])
    assert table["answers"].tolist() == [6] * 8 + [0, 6, 0, 6]
    assert table["refusals"].tolist() == [0] * 8 + [6, 0, 6, 0]


def test_a_config_without_an_oracle_is_refused():
    with pytest.raises(ConfigError, match="oracle = true"):
        main(load(CONFIG, sets=["oracle=false"]))


def test_the_ratio_of_budgets_is_what_the_utilities_imply():
    """.83 / sqrt(1 - .83^2) = 1.4881; .67 / sqrt(1 - .67^2) = .9025; their ratio 1.649."""
    assert abs(measures.RATIO - 1.649) < 1e-3
    for utility in (0.67, 0.83):
        assert metrics.expected_cosine(measures.budget_of(utility, 3.0), 3.0) == pytest.approx(utility)


def test_redrawn_cosines_agree_with_the_closed_form():
    """d = 7, all in one coordinate, eps0 = 2.881: U within .02 of .83 and .67 (spec: within .02 above .45)."""
    truth = np.array([183.6, 0, 0, 0, 0, 0, 0])
    eps0 = measures.half_signal(10.0, 50, truth)
    assert eps0 == pytest.approx(20 * math.sqrt(2 * 7 * 50) / 183.6, rel=1e-4)
    for utility in (0.67, 0.83):
        mean, low, high = measures.redrawn_cosine(truth, 10.0, 50, measures.budget_of(utility, eps0))
        assert low < mean < high
        assert mean == pytest.approx(utility, abs=0.02)


def test_negotiation_goes_from_016_to_673(world):
    query = fe.Query("appliances", epsilon=6.73)
    found = measures.negotiation(world, query)
    table = measures.rounds_table(found)
    assert found.agreed
    assert table["median ε"].iloc[0] == pytest.approx(0.16, abs=1e-5)
    assert table["median ε"].is_monotonic_increasing
    assert 6.6 < table["median ε"].iloc[-1] <= 6.73
    # each feedback halves what is left to 6.73
    assert (6.73 - table["median ε"].iloc[1]) / (6.73 - 0.16) == pytest.approx(0.5, abs=1e-5)
    cautious = measures.cautious_homes(world, query)
    assert cautious["promised utility, noise per home"].is_monotonic_decreasing
    promised = cautious["promised utility, one noise"].iloc[1], cautious["promised utility, noise per home"].iloc[1]
    assert promised[0] > 0.95
    assert promised[1] < 0.7


def test_mean_day_by_hand():
    """Two days in half hours: 1 kWh in every half hour of hour 5, 3 kWh once at 06:30 of the second day."""
    total = np.zeros(96)
    total[[10, 11, 58, 59]] = 1.0
    total[48 + 13] = 3.0
    home = Household("h1", ("a",), np.zeros((96, 1)), total, np.datetime64("2013-01-07T00:00"), 30)
    day = measures.mean_day(home, (0, 96))
    assert day[5] == 2.0
    assert day[6] == 1.5
    assert day.sum() == 3.5
    assert measures.mean_day(home, (48, 96))[6] == 3.0


def test_spreads_know_the_widest():
    """Column 0 swings between -2 and 2, column 1 between -1 and .5: widths 4 and 1.5, balance 1 and .5."""
    phi = np.tile(np.array([[-2.0, -1.0], [2.0, 0.5]]), (5, 1))[None]
    table = measures.spreads(phi, ["wide", "narrow"]).set_index("appliance")
    assert table["width (kWh)"].tolist() == [4.0, 1.5]
    assert table["balance"].tolist() == [1.0, 0.5]


def test_the_discount_on_simulated_homes():
    homes = fe.simulate_households(10, steps=100, seed=1)
    found = incentive.discount_scenario(homes)
    table = found.table.set_index(["sigma", "eta"])
    tied = table.drop("not tied to the peak")
    assert (tied["peak price"] < 0).all()
    assert (table.loc["not tied to the peak", "peak price"] > 0).all()
    np.testing.assert_allclose(tied["peak price"], tied["closed form, peak price"], atol=0.02)
    assert found.facts["joined"] == 4
    loads = incentive.loads_of(homes)
    joined = incentive.joiners(tuple(homes.ids))
    assert found.facts["cost"] == pytest.approx(0.2 * 0.14228 * loads[:, joined].sum())
    for outcome in (found.outcomes[0.07, 2.0], found.outcomes[0.21, 6.0]):
        assert outcome.after.sum() == pytest.approx(outcome.before.sum()), "what is moved comes back"


@pytest.mark.data
def test_the_real_tariff_on_real_homes(data_dir):
    found = incentive.london_scenario(data_dir)
    assert found.facts["homes"] == 50
    assert found.facts["joined"] == 20
    assert found.facts["high_slots"] == 788
    assert found.facts["price_ratio"] == pytest.approx(67.20 / 11.76)
    assert (found.table["peak price"] < 0).all()
    assert (found.table["bill, dynamic, moved (£)"] < found.table["bill, dynamic, as before (£)"]).all()
    assert found.outcomes[tariff.RESPONSIVE, 2.0].after.sum() == pytest.approx(
        found.outcomes[tariff.RESPONSIVE, 2.0].before.sum())
