"""Section V of the HXAI source: its grid, the counting of claims, and the study at toy size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedenergy.config import load
from fedenergy.errors import ConfigError
from simulations import pages
from simulations.hxai_mechanisms import CONFIG, main
from simulations.mechanisms import claims, runs
from simulations.mechanisms.runs import CENTRAL, LOCAL_DP, NAMES, ONE, ORDER, SAME, Result, Vector
from simulations.mechanisms.settings import FEATURE_LAG, MODERATE, SETTINGS, OwnPrice, epsilon_grid, panel_bounds

BIKE = next(one for one in SETTINGS if one.set == "bike" and one.coordinates == FEATURE_LAG)


def test_the_configs_grid_is_the_sources():
    """np.logspace(-1, log10(20), 10): element 4 is the 1.05361 of the source's Figure 3."""
    assert load(CONFIG).vary["query.epsilon"] == epsilon_grid()
    assert epsilon_grid()[4] == MODERATE == pytest.approx(10 ** (-1 + 4 * np.log10(200) / 9), abs=1e-5)
    assert len(load(CONFIG).seeds) >= 5


def test_ranks_and_their_distance_from_the_diagonal():
    """|truth| ranks a, b, c, d as 1 to 4; released swaps the first two: (1 + 1 + 0 + 0) / 4."""
    truth, released = np.array([-4.0, 3.0, 2.0, 1.0]), np.array([2.5, -9.0, 1.0, 0.5])
    assert runs.trajectory(released, truth).tolist() == [2, 1, 3, 4]
    assert runs.displacement(released, truth) == 0.5
    assert runs.displacement(truth, truth) == 0
    assert runs.displacement(released, truth, top=2) == 1


def curve(words, mechanism, **columns):
    size = len(next(iter(columns.values())))
    scores = {name: np.full(size, 0.5) for name in ("cosine", "spearman", "mae", "sign", "displacement", "granted")}
    spreads = {f"{name}_sd": np.full(size, 0.1) for name in scores}
    return pd.DataFrame({"set": words, "coordinates": FEATURE_LAG, "mechanism": mechanism, "n": 5,
                         "epsilon": epsilon_grid()[:size]} | scores | spreads | columns)


def test_wins_are_counted_in_the_right_direction():
    """MAE 1, 2, 3 against 2, 2, 2: smaller once; cosine the same: larger once. Ties and chance (2 .1 sqrt(2 / 5) = .126) do
    not count."""
    ours = curve("s", SAME, mae=[1.0, 2.0, 3.0], cosine=[1.0, 2.0, 3.0]).set_index("epsilon")
    theirs = curve("s", CENTRAL, mae=[2.0, 2.0, 2.0], cosine=[2.0, 2.0, 2.0]).set_index("epsilon")
    assert claims.wins(ours, theirs, "mae") == (1, 3)
    assert claims.wins(ours, theirs, "cosine") == (1, 3)
    assert claims.wins(ours.assign(cosine=theirs["cosine"] + 0.12), theirs, "cosine") == (0, 3)
    assert claims.wins(ours.assign(cosine=theirs["cosine"] + 0.13), theirs, "cosine") == (3, 3)


def test_the_order_of_central_and_local_is_judged_from_the_curves():
    setting = replace(BIKE, clip=1.0)
    result = Result(setting, ("a", "b"), 50, (), 0.0, "", 0.0)
    small, large = [0.1, 0.1], [0.8, 0.8]
    table = pd.concat([curve(setting.words, SAME, mae=large, cosine=small),
                       curve(setting.words, CENTRAL, mae=small, cosine=large),
                       curve(setting.words, runs.UNBOUNDED, mae=[9.0, 9.0], cosine=[-0.1, -0.1])])
    found = {claim.own: claim.verdict for claim in claims._order([result], table)}
    assert found == {False: pages.FAILS, True: pages.HOLDS}


def test_homes_needed_follow_the_closed_form():
    """N = 50, d = 2, norm 100, C = 1: eps0 = 2 sqrt(4 50) / 100 = .2828, one noise .04; U = .9999 asks .01414."""
    vector = Vector(SAME, 1.0, 0, np.zeros(2), np.array([100.0, 0.0]), np.zeros(2), 1.0)
    result = Result(replace(BIKE, clip=1.0), ("a", "b"), 50, (vector,), 0.0, "", 0.0)
    ratio = np.sqrt(1 / 0.9999**2 - 1)
    assert claims.homes_needed(result, 0.9999, 1.0, local=True) == pytest.approx(50 * (0.28284 / ratio) ** 2, rel=1e-3)
    assert claims.homes_needed(result, 0.9999, 1.0, local=False) == pytest.approx(50 * 0.04 / ratio, rel=1e-3)


def test_own_price_is_checked():
    with pytest.raises(ValueError, match="price"):
        OwnPrice(price=-1)


def test_a_config_without_the_oracle_is_refused():
    with pytest.raises(ConfigError, match="oracle = true"):
        main(load(CONFIG, sets=["oracle=false"]))


@pytest.fixture(scope="module")
def study(tmp_path_factory, data_dir):
    toy = ["population.count=3", "seeds=[0, 1]", "task.trees=10", "vary.query.epsilon=[1.05361, 20.0]"]
    config = load(CONFIG, sets=toy, workers=0, data=str(data_dir), quick=True, out=str(tmp_path_factory.mktemp("runs")))
    return main(config, settings=(SETTINGS[0], SETTINGS[2]))


def test_smoke(study):
    page = study.page.read_text(encoding="utf-8")
    assert all(words in page for words in ("Table III", "Figure 2", "Figure 3", "Figure 4", "Figure 5", "not private"))
    assert "say uci_appliances" in page
    assert "ten-minute" in page
    assert "unreported" in page
    assert "http" not in page.split("</head>")[1].replace("http://www.w3.org", ""), "no network"
    for name in study.tables:
        assert (study.folder / f"{name}.csv").stat().st_size > 50


def test_every_mechanism_ran_at_every_epsilon_and_every_claim_has_a_verdict(study):
    table = study.tables["scores"]
    assert set(table["mechanism"]) == set(ORDER) == {*NAMES.values(), *ORDER}
    counts = table[np.isfinite(table["epsilon"])].groupby(["set", "mechanism"]).size()
    assert set(counts) == {2 * 2}
    assert not study.claims["ours"].str.contains(r"\bnan\b").any()
    assert set(study.claims["verdict"]) <= {pages.HOLDS, pages.PARTLY, pages.FAILS, pages.OPEN_QUESTION}
    assert study.claims["figure"].str.contains("Table III").sum() >= 6


def test_one_noise_beats_noise_in_every_home_and_the_oracle_has_none(study):
    means = study.tables["mechanisms"].groupby("mechanism")["mae_total"].mean()
    assert means["oracle"] < 1e-9 * means[ONE]
    assert means[ONE] < means[SAME]
    local = study.tables["scores"]
    assert (local[local["mechanism"] == LOCAL_DP]["granted"] == local[local["mechanism"] == LOCAL_DP]["epsilon"]).all()


def test_bounds_come_from_windows_outside_the_study(data_dir):
    """Two digits of the panel's third quartile, as settings.py states them."""
    found = panel_bounds(BIKE, str(data_dir))
    assert {name: float(f"{value:.2g}") for name, value in found.items()} == {"clip": BIKE.clip, "clip2": BIKE.clip2}
