"""Prices and the incentive scenario: known answers by hand, conservation, the real London tariff."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedenergy import tariff
from fedenergy.tariff import InverseDemand, PeakDiscount, Tariff, bill, flat_discount, peak_steps, read_dtou, shift

loads = arrays(np.float64, st.tuples(st.integers(24, 75), st.integers(1, 4)), elements=st.floats(0, 50))


@pytest.mark.parametrize(("sigma", "zone", "normal", "tight"), [
    # R = 1 + .2/.25 = 1.8; home: 1.8^-.07 = .9597; zone: 20/50 of -4.03 % = -1.61 %; .9839^2 = .968, ^6 = .907
    (0.07, -0.0161, -0.032, -0.093),
    # 1.8^-.21 = .8839; -4.64 %; .9536^2 = .909, ^6 = .752
    (0.21, -0.0464, -0.091, -0.248)])
def test_known_answers_of_the_scenario(sigma, zone, normal, tight):
    scheme = PeakDiscount(0.2, 0.25, sigma)
    assert scheme.price_ratio == pytest.approx(1.8)
    assert scheme.zone_change(20, 50) == pytest.approx(zone, abs=5e-5)
    for eta, price in ((2.0, normal), (6.0, tight)):
        assert InverseDemand(14.0, 50.0, eta).change(zone) == pytest.approx(price, abs=5e-4)


def test_the_closed_form_is_what_alike_homes_do():
    """50 homes, a quarter of the use in 6 of 24 hours (all hours alike): 20 join; the zone's peak falls by 1.6 %."""
    load, peak = np.ones((48, 50)), np.arange(48) % 24 >= 18
    scheme = PeakDiscount(0.2, 0.25, 0.07)
    after = load.copy()
    after[:, :20] = scheme.respond(load[:, :20], peak, 24)
    assert after[peak].sum() / load[peak].sum() - 1 == pytest.approx(scheme.zone_change(20, 50))
    assert after[peak].sum() / load[peak].sum() - 1 == pytest.approx(-0.0161, abs=5e-5)


@settings(max_examples=60, deadline=None)
@given(loads, st.floats(-1, 0), st.integers(0, 23), st.integers(1, 23))
def test_shifting_conserves_energy(load, change, first, length):
    """Every home, every day; nothing turns negative, and no peak step rises. Days are 24 steps from midnight on."""
    step = np.arange(len(load)) % 24
    peak = (step - first) % 24 < length
    if peak[len(load) // 24 * 24:].all() and len(load) % 24:
        load, peak = load[:len(load) // 24 * 24], peak[:len(load) // 24 * 24]  # a last day without an off-peak step
    after = shift(load, peak, 24, change)
    for day in range(0, len(load), 24):
        one = slice(day, day + 24)
        np.testing.assert_allclose(after[one].sum(axis=0), load[one].sum(axis=0), rtol=1e-9, atol=1e-9)
    assert (after >= 0).all()
    assert (after[peak] <= load[peak]).all()
    np.testing.assert_allclose(after[peak], load[peak] * (1 + change), atol=1e-12)


def test_without_payback_the_energy_is_gone():
    load, peak = np.array([2.0, 4.0]), np.array([False, True])
    assert shift(load, peak, 2, -0.25, payback=0.0).tolist() == [2.0, 3.0]
    assert shift(load, peak, 2, -0.25, payback=0.5).tolist() == [2.5, 3.0]


@pytest.mark.parametrize("elasticity", [0.01, 0.1, 0.5])
def test_a_discount_not_tied_to_the_peak_never_lowers_it(elasticity):
    load = np.linspace(0.1, 3, 48)
    after = flat_discount(load, 0.2, elasticity)
    assert (after > load).all()
    price = InverseDemand(14.0, 1.0, 6.0)
    assert price.price(after).max() > price.price(load).max()


def test_no_discount_and_no_elasticity_change_nothing():
    assert PeakDiscount(0.0).home_change == 0
    assert PeakDiscount(0.2, sigma=0.0).home_change == 0
    load = np.arange(24.0)
    np.testing.assert_array_equal(PeakDiscount(0.0).respond(load, load > 18, 24), load)


def test_the_scheme_costs_8_percent_of_the_bills():
    """20 of 50 alike homes get 20 % off: .4 x .2."""
    cost, share = tariff.scheme_cost(np.full(50, 61.5), np.arange(50) < 20, 0.2)
    assert share == pytest.approx(0.08)
    assert cost == pytest.approx(0.08 * 50 * 61.5)


def test_the_price_rises_with_the_load_and_meets_its_anchor():
    curve = InverseDemand(14.228, 40.0, 2.0)
    assert curve.price(40.0) == pytest.approx(14.228)
    assert (np.diff(curve.price(np.linspace(0, 90, 50))) > 0).all()


def test_an_outcome_by_hand():
    """Loads 1, 1, 4 become 1.5, 1.5, 3; mean 2, P0 = 10, eta 2: prices 2.5, 2.5, 40 become 5.625, 5.625, 22.5."""
    peak = np.array([False, False, True])
    found = tariff.compare_loads(np.array([1.0, 1, 4]), np.array([1.5, 1.5, 3]), peak, 10.0, 2.0)
    assert found.price_after.tolist() == [5.625, 5.625, 22.5]
    assert found.peak_change == pytest.approx(-0.25)
    assert found.peak_price_change == found.highest_price_change == pytest.approx(22.5 / 40 - 1)
    assert found.spread_change == pytest.approx((22.5 - 5.625) / (40 - 2.5) - 1)
    assert found.saved_pounds == pytest.approx((165 - 84.375) / 100)


def test_peak_steps_find_the_window_of_the_mean_day():
    load = np.tile([1.0, 1, 5, 6, 1, 1], 3)
    assert np.flatnonzero(peak_steps(load, 6, 2)).tolist() == [2, 3, 8, 9, 14, 15]


def test_bills():
    """3 kWh at 67.2 p and 1 kWh at 3.99 p: 205.59 p."""
    two = Tariff(tariff.DTOU_PENCE, np.array(["High", "Low"]), np.datetime64("2013-01-01T00:00"))
    assert two.bill(np.array([3.0, 1.0])) == pytest.approx(2.0559)
    np.testing.assert_allclose(two.bill(np.array([[3.0, 0.0], [1.0, 0.0]])), [2.0559, 0.0])
    assert bill(np.ones(48), tariff.FLAT_PENCE) == pytest.approx(48 * 0.14228)


@pytest.mark.data
def test_the_real_tariff(data_dir):
    path = data_dir / "lcl_london" / "tariffs_dtou_2013.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    dtou = read_dtou(path)
    assert dtou.counts == {"High": 788, "Normal": 15_072, "Low": 1_660}
    assert dtou.start == np.datetime64("2013-01-01T00:00")
    # 788 x 67.20 + 15,072 x 11.76 + 1,660 x 3.99 = 236,823.72 p for one kWh in every slot: 13.517 p on average
    assert dtou.pence.mean() == pytest.approx(236_823.72 / 17_520)
    assert dtou.bill(np.ones(17_520)) == pytest.approx(2368.2372)
    days = (dtou.slots == "High").reshape(365, 48)
    assert not days.all(axis=1).any(), "a day without another level would leave nowhere to move use"


@pytest.mark.parametrize(("text", "message"), [
    ("a,b\n1,2\n", "columns are TariffDateTime"),
    ("TariffDateTime,Tariff\n2013-01-01 00:00:00,Normal\n2013-01-01 01:00:00,Low\n", "line 3"),
    ("TariffDateTime,Tariff\n2013-01-01 00:00:00,Normal\n2013-01-01 00:30:00,Cheap\n", "line 3 has the level 'Cheap'"),
    ("TariffDateTime,Tariff\n01/01/2013,Normal\n", "no date")])
def test_a_broken_tariff_file_is_refused(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_dtou(tmp_path / "t.csv")


@pytest.mark.parametrize("make", [
    lambda: PeakDiscount(1.0), lambda: PeakDiscount(-0.1), lambda: PeakDiscount(0.2, 0.0),
    lambda: PeakDiscount(0.2, 1.0), lambda: PeakDiscount(sigma=float("nan")), lambda: PeakDiscount(payback=1.5),
    lambda: PeakDiscount(True),
    lambda: InverseDemand(0.0, 1.0), lambda: InverseDemand(1.0, float("inf")), lambda: InverseDemand(1.0, 1.0, -1.0),
    lambda: InverseDemand(1.0, 1.0).price(np.array([np.nan])), lambda: InverseDemand(1.0, 1.0).price(-1.0),
    lambda: PeakDiscount().zone_change(51, 50), lambda: shift(np.ones(24), np.ones(24, bool), 24, -0.1),
    lambda: shift(np.ones(24), np.ones(24), 24, -0.1), lambda: shift(np.ones(24), np.arange(24) > 20, 24, 0.1),
    lambda: shift(np.full(24, np.nan), np.arange(24) > 20, 24, -0.1), lambda: bill(np.array([np.nan]), 1.0),
    lambda: bill(np.ones(3), np.ones(2)), lambda: flat_discount(np.ones(2), 1.0),
    lambda: peak_steps(np.ones(10), 24, 4), lambda: tariff.scheme_cost(np.zeros(2), np.array([True, False]), 0.2)])
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError):
        make()
