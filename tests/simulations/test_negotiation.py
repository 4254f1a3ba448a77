"""The negotiation study runs, its tables add up, and it says of spread and lies what the arithmetic gives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedenergy.config import load
from fedenergy.metrics import eps0, expected_cosine
from simulations.negotiation import CONFIG, DEFAULTS, lying, main, one_year, schemes, setting, text, unequal, utility


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return main(out=tmp_path_factory.mktemp("negotiation"), quick=True)


@pytest.fixture(scope="module")
def small():
    return setting(load(CONFIG), {**DEFAULTS, "quick": True})


def test_smoke(found):
    names = {path.name for path in found.files}
    assert {"summary.csv", "year.csv", "groups.csv", "source_talk.csv", "lying.csv", "unequal.csv"} < names
    assert {"year.png", "zone.png", "who_wins.png", "source_talk.png", "money_and_spread.png"} < names
    assert all(path.stat().st_size > 200 for path in found.files)
    assert len(found.summary) == 14
    assert "AttributionWeighted" in text(found)
    assert found.summary.set_index("policy")["leaks"].sum() == 1


def test_nobody_spends_more_than_the_cap(found):
    assert (found.summary["epsilon_max"] <= 6.73 + 1e-9).all()


def test_every_home_is_counted_every_week(found):
    year = found.year
    assert (year["answers"] + year["counters"] + year["refusals"] == 12).all()
    assert (year.groupby("policy")["week"].count() == 16).all()
    shares = found.summary[["answers_share", "counters_share", "refusals_share"]].sum(axis=1)
    np.testing.assert_allclose(shares, 1)
    given = found.groups.groupby("policy")["given_share"].sum()
    np.testing.assert_allclose(given, 1)


def test_fixed_answers_until_its_budget_is_spent(found):
    """.5 a week from 6.73: 13 answers, then refusals."""
    fixed = found.year[found.year["policy"] == "Fixed"]
    assert fixed["answers"].tolist() == [12] * 13 + [0] * 3
    row = found.summary.set_index("policy").loc["Fixed"]
    assert row["epsilon_mean"] == pytest.approx(6.5)
    assert fixed["utility_one_noise"].iloc[0] == pytest.approx(expected_cosine(0.5, eps0(100.0, 7, 1, 12 * 25.0)))
    assert fixed["noise_local"].iloc[0] == pytest.approx(math.sqrt(2 * 12) * 100 / 0.5)


def test_the_money_holds(found):
    paid = found.year[found.year["paid"] > 0]
    assert set(paid["policy"]) == {"RiskAware", "Incentive", "Auction, fixed epsilon", "Auction, Ghosh-Roth"}
    assert (paid["paid"] <= DEFAULTS["money"] + 1e-6).all()
    row = found.summary.set_index("policy")
    for name in ("Incentive", "Auction, fixed epsilon", "Auction, Ghosh-Roth"):
        assert row.loc[name, "losers_share"] == 0  # sold at or above their own price: taking part never costs


def test_weights_lower_the_noise_and_the_sources_raise_it(found):
    """Public weights lower the mean square of the noise; the source's own split of the same mean epsilon raises it."""
    noise = found.summary.set_index("policy")["noise_one"]
    assert noise["FeatureWeighted"] < noise["Fixed"] < noise["AttributionWeighted (leaks)"]


def test_the_sources_talk(found):
    talk = found.tables["source_talk"]
    np.testing.assert_allclose(talk["epsilon"], 6.73 - 6.57 / 2.0 ** talk["turn"], atol=1e-5)
    assert talk["utility"].is_monotonic_increasing


def test_lying_never_pays(small):
    table = lying(small)
    truth = table[table["claims"] == 1].set_index(["home", "rule"])["profit"]
    assert all(row.profit <= truth[row.home, row.rule] + 1e-12 for row in table.itertuples())
    assert table["profit"].min() < 0  # understating can cost: the figure is not flat by construction


def test_spread_hurts_local_noise_and_not_one_noise(small):
    means = unequal(small, 10).groupby("spread")[["variance_local", "utility_local", "utility_one"]].mean()
    assert means["variance_local"].iloc[0] == pytest.approx(1)
    assert means["variance_local"].iloc[-1] > 4
    assert means["utility_local"].is_monotonic_decreasing
    np.testing.assert_allclose(means["utility_one"], means["utility_one"].iloc[0], rtol=1e-5)


def test_shaped_noise_and_the_model():
    from fedenergy.box.policy import Public

    public = Public(N=10, d=7, clip=50.0, trust="sum")
    plain = utility([500_000] * 10, 500_000, public, 1.0)
    assert utility([500_000] * 10, 500_000, public, 0.25) == pytest.approx(
        utility([1_000_000] * 10, 1_000_000, public, 1.0))
    assert utility([], 500_000, public, 1.0) == 0.0
    assert 0 < plain < 1


def test_a_year_is_repeatable(small):
    scheme = schemes(replace(small, weeks=4))[9]
    first, second = (one_year(replace(small, weeks=4), scheme) for _ in range(2))
    assert first[0] == second[0]
    pd.testing.assert_frame_equal(first[1], second[1])


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="no option 'moeny'"):
        main(moeny=3)
