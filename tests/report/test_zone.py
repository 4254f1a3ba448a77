"""The zone report: laws of the noise against simulation, confidence that is right, publishing rules, the page's section."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedenergy.report.load import RunData
from fedenergy.report.page import page
from fedenergy.report.zone import PRESETS, KMin, day_shape, intervals, latest, leader, margin, read_answer, tail
from tests.report.fake import edit

ONE = {"law": "laplace", "scale": 2.0, "noises": 1}
FIFTY = {"law": "laplace", "scale": 2.0, "noises": 50}
NORMAL = {"law": "normal", "sd": 3.0}
NAMES = ["heating", "fridge", "oven"]


def row(**changes):
    return {"kind": "appliances", "class": "specific", "strategy": "SecureSum", "trust": "sum", "mechanism": "laplace",
            "epsilon": 1.0, "delta": 0.0, "seed": 0, "round": 1, "cell": "c", "asked": 50, "answers": 48,
            "coordinates": NAMES, "unit": "kWh^2", "clip": 50.0, "released": [900.0, 300.0, -5.0],
            "noise": {"law": "laplace", "scale": 100.0, "noises": 1}, **changes}


def draws(noise, size, seed=0):
    rng = np.random.default_rng(seed)
    if noise["law"] == "normal":
        return rng.normal(0, noise["sd"], size)
    return rng.laplace(0, noise["scale"], (noise["noises"], *np.atleast_1d(size))).sum(axis=0)


# -- the law of the noise ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("noise", "values"), [(ONE, (0, 1, 8)), (FIFTY, (0, 10, 50)), (NORMAL, (0, 2, 7))])
@pytest.mark.parametrize("coordinates", [1, 2])
def test_tails_against_simulation(noise, values, coordinates):
    seen = draws(noise, (coordinates, 40_000)).sum(axis=0)
    for value in values:
        expected = tail(noise, value, coordinates)
        assert abs((seen > value).mean() - expected) < 3.3 * math.sqrt(expected * (1 - expected) / 40_000)


def test_golden_tails():
    assert tail(ONE, 4.0) == pytest.approx(math.exp(-2) / 2)
    assert tail(ONE, 4.0, 2) == pytest.approx((2 + 2) * math.exp(-2) / 4)    # two Laplace(b): (2 + x/b) exp(-x/b) / 4
    assert tail(FIFTY, 0.0) == pytest.approx(0.5)
    assert tail(NORMAL, 3.0) == pytest.approx(stats.norm.sf(1))


def test_oracle_many_noises_are_normal_where_the_exact_law_ends():
    exact = {"law": "laplace", "scale": 1.0, "noises": 2000}
    for value in (20.0, 100.0, 200.0):
        assert tail(exact, value) == pytest.approx(tail(exact | {"noises": 2001}, value), rel=0.02)


@pytest.mark.parametrize("noise", [ONE, FIFTY, NORMAL])
@pytest.mark.parametrize("chance", [0.5, 0.05, 1e-6])
def test_a_margin_is_the_tails_inverse(noise, chance):
    assert 2 * tail(noise, margin(noise, chance)) == pytest.approx(chance, rel=1e-6)


def test_golden_margin():
    assert margin(ONE, 0.05) == pytest.approx(2 * math.log(20))
    with pytest.raises(ValueError, match="chance"):
        margin(ONE, 0.0)
    with pytest.raises(ValueError, match="tail"):
        tail(ONE, -1.0)


# -- confidence --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("noise", [ONE, FIFTY, NORMAL])
def test_statistics_intervals_hold_all_coordinates_at_once(noise):
    truth = np.array([10.0, 3.0, 0.0, -4.0, 2.0])
    low, high = intervals(truth + draws(noise, (4000, 5)), noise)
    held = ((low <= truth) & (truth <= high)).all(axis=1)
    assert 0.94 <= held.mean() <= 0.965                         # Bonferroni: just above .95


def test_statistics_a_wrong_leader_is_seldom_confident():
    """Two equal leaders: whatever is said with 90 % confidence is wrong for each of them in at most 10 %."""
    truth = np.array([5.0, 5.0, 0.0, 0.0])
    found = [leader(values, ONE) for values in truth + draws(ONE, (3000, 4), 3)]
    for wrong in (0, 1):
        bold = np.mean([first == wrong and sure >= 0.9 for first, sure in found])
        assert bold <= 0.1 + 3 * math.sqrt(0.09 / 3000)
    assert np.mean([sure >= 0.9 for _, sure in found]) > 0.02   # and the statement is made at all


def test_golden_leader():
    first, sure = leader([1.0, 9.0, 3.0], ONE)
    assert first == 1
    assert sure == pytest.approx(1 - (2 + 4) * math.exp(-4) / 4 - (2 + 3) * math.exp(-3) / 4)
    assert leader([1.0, 9.0], None) == (1, None)
    assert leader([1.0, 1.0, 1.0, 1.0], ONE)[1] == 0.0          # never below 0


def test_the_day_is_never_negative_and_adds_up_to_one():
    assert day_shape([-1.0] * 24, 5).tolist() == [0.0] * 24
    shape = day_shape(np.random.default_rng(1).normal(0.04, 0.1, 24) * 50, 50)
    assert (shape >= 0).all()
    assert shape.sum() == pytest.approx(1)


# -- publishing --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("preset", "answers", "bound", "may"), [
    ("15", 14, None, False), ("15", 15, None, True), ("15", 50, 334.0, True), ("15", 50, 333.0, False),
    ("100", 99, None, False), ("100", 100, None, True), ("100", 100, 60.0, True)])
def test_golden_presets(preset, answers, bound, may):
    """50 is at most 15 % of a public bound from 333.3 on."""
    assert PRESETS[preset].verdict(answers, 50.0, bound)[0] is may


def test_a_rule_of_few_homes_still_asks_that_none_dominates():
    may, why = KMin(3, 0.15).verdict(4, 50.0)
    assert not may
    assert why == "one home can hold 25 % of the public bound, at most 15 % is allowed"
    with pytest.raises(ValueError, match="public_bound = 0"):
        PRESETS["15"].verdict(20, 50.0, 0)


# -- the report --------------------------------------------------------------------------------------------------------

def test_golden_report_of_an_answer():
    report = read_answer(row())
    assert (report.leader, report.answers, report.refused, report.shares) == ("heating", 48, 2, None)
    half = 100 * math.log(3 / 0.05)
    assert report.low == pytest.approx([900 - half, 300 - half, -5 - half])
    assert report.confidence == pytest.approx(1 - tail(row()["noise"], 600, 2) - tail(row()["noise"], 905, 2))
    assert report.ranked == [0, 1, 2]
    assert {name: verdict[0] for name, verdict in report.publish.items()} == {"15": True, "100": False}


def test_one_number_has_no_leader_and_an_unknown_noise_no_interval():
    report = read_answer(row(kind="total", coordinates=["total"], released=[480.0], noise=None))
    assert (report.leader, report.confidence, report.low) == (None, None, None)


def test_shares_of_homes_and_of_the_day():
    votes = read_answer(row(kind="top", unit="homes", released=[36.0, 15.0, -3.0], noise=NORMAL))
    assert votes.shares == pytest.approx([0.75, 0.3125, -0.0625])       # unbiased, so a small one may fall below 0
    hours = [f"{hour:02d}:00" for hour in range(24)]
    day = read_answer(row(kind="peak_hour", unit="share", coordinates=hours, released=[2.0] * 23 + [10.0], noise=NORMAL))
    assert day.leader == "23:00"
    assert day.shares == pytest.approx([2 / 56] * 23 + [10 / 56])
    assert day.ranked == list(range(24))


@pytest.mark.parametrize("bad", [{"released": [1.0]}, {"released": [1.0, math.nan, 2.0]},
                                 {"released": [], "coordinates": []}])
def test_numbers_that_do_not_fit_are_refused(bad):
    with pytest.raises(ValueError, match="finite numbers"):
        read_answer(row(**bad))


def test_the_latest_is_the_first_seed_the_largest_epsilon_and_the_last_round():
    rows = [row(seed=seed, epsilon=epsilon, round=round_) for seed in (1, 0) for epsilon in (2.0, 0.5) for round_ in (1, 2)]
    rows += [row(kind="top", unit="homes")]
    found = latest(rows)
    assert [(report.kind, report.epsilon, report.round) for report in found] == [("appliances", 2.0, 2), ("top", 1.0, 1)]


def test_the_page_has_the_section(run_folder):
    assert "Absent: the run stored no answers of the zone" in page(RunData.read(run_folder), [])
    edit(run_folder, zone_answers=[row(), row(strategy="<b>Median", noise=None)])
    text = page(RunData.read(run_folder), [])
    assert '<h2 id="zone">Zone report</h2>' in text
    assert "heating" in text
    assert "&lt;b&gt;Median" in text
    assert "no: 48 homes answered, at least 100 are needed" in text
    assert "no closed form" in text
