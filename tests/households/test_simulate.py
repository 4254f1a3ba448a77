"""The simulated homes: contract, reproducibility, statistics and a golden home."""

from __future__ import annotations

import datetime as dt
import doctest
import hashlib
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from fedenergy.households import holidays, simulate
from fedenergy.households.archetypes import APPLIANCES, ARCHETYPES
from fedenergy.households.events import Events
from fedenergy.households.holidays import day_off, easter, public_holidays, summer_time
from fedenergy.households.population import Population
from fedenergy.households.simulate import simulate_households
from fedenergy.households.weather import zone_weather
from fedenergy.ids import canon

ROOT = Path(__file__).parents[2]
SEASONS = ("2013-01-07", "2013-07-01")


def fingerprint(home) -> str:
    rounded = np.rint(np.column_stack([home.readings, home.total]) * 1e9).astype(np.int64)
    return hashlib.blake2b(rounded.tobytes(), digest_size=8).hexdigest()


@pytest.fixture(scope="module")
def year():
    """(homes, 365, 48) kWh of 120 homes over 2013, and their appliances' share."""
    homes = simulate_households(120, 17520, seed=3, step_minutes=30, start="2013-01-01")
    return np.array([homes.load(index).total.reshape(365, 48) for index in range(len(homes))])


# contract


def test_population_protocol():
    homes = simulate_households(3, 48)
    assert isinstance(homes, Population)
    assert (homes.name, homes.unit, homes.channels, len(homes)) == ("simulated", "household", APPLIANCES, 3)
    assert list(homes.ids) == ["home-000001", "home-000002", "home-000003"]
    assert homes.ids[-1] == "home-000003"
    assert homes.ids[1:] == ("home-000002", "home-000003")
    with pytest.raises(IndexError, match="the population has 3"):
        homes.load(3)
    with pytest.raises(FrozenInstanceError):
        homes.count = 4


@pytest.mark.parametrize("start", SEASONS)
@pytest.mark.parametrize("step_minutes", [1, 15, 60])
def test_readings_are_finite_not_negative_and_below_the_total(start, step_minutes):
    homes = simulate_households(25, 7 * 1440 // step_minutes, seed=2, step_minutes=step_minutes, start=start)
    for index in range(len(homes)):
        home = homes.load(index)
        assert home.readings.shape == (homes.steps, 7)
        assert home.features.shape == (homes.steps, 2)
        assert np.isfinite(home.readings).all()
        assert np.isfinite(home.features).all()
        assert home.readings.min() >= 0
        assert (home.readings.sum(axis=1) < home.total).all()  # standby never rests
        assert home.start == np.datetime64(start)


@pytest.mark.parametrize("start", [*SEASONS, "2013-03-30T05:45", "2013-12-30"])
def test_a_home_has_the_same_energy_at_every_step(start):
    fine = simulate_households(4, 3 * 1440, seed=5, step_minutes=1, start=start)
    for step_minutes in (5, 15, 30, 60):
        coarse = simulate_households(4, 3 * 1440 // step_minutes, seed=5, step_minutes=step_minutes, start=start)
        for index in range(4):
            a, b = fine.load(index), coarse.load(index)
            np.testing.assert_allclose(a.readings.reshape(coarse.steps, step_minutes, 7).sum(axis=1), b.readings,
                                       rtol=0, atol=1e-12)
            np.testing.assert_allclose(a.total.reshape(coarse.steps, -1).sum(axis=1), b.total, rtol=0, atol=1e-12)


def test_a_longer_record_begins_with_the_shorter_one():
    short, long = (simulate_households(3, steps, seed=4).load(2) for steps in (100, 744))
    np.testing.assert_array_equal(short.readings, long.readings[:100])
    np.testing.assert_array_equal(short.features, long.features[:100])


def test_a_left_out_appliance_stays_in_the_total():
    all_seven, two = (
        simulate_households(2, 200, appliances=names).load(1) for names in (APPLIANCES, ["Oven", "Fridge"]))
    assert two.channels == ("Oven", "Fridge")
    np.testing.assert_array_equal(two.total, all_seven.total)
    np.testing.assert_array_equal(two.readings, all_seven.readings[:, [3, 1]])


@pytest.mark.parametrize("archetype", list(ARCHETYPES))
def test_every_archetype_loads(archetype):
    homes = simulate_households(3, 14 * 24, seed=1, archetypes=[archetype])
    low, high = ARCHETYPES[archetype].occupants
    for index in range(3):
        traits = homes.home(index)
        assert traits.archetype == archetype
        assert low <= traits.occupants <= high
        assert 0.5 < homes.load(index).total.sum() / 14 < 120


def test_the_mix_follows_its_weights():
    homes = simulate_households(600, 24, archetypes={"retired": 3, "family": 1})
    retired = sum(homes.home(index).archetype == "retired" for index in range(600))
    assert abs(retired - 450) < 4 * np.sqrt(600 * 0.75 * 0.25)
    turned = simulate_households(9, 24, archetypes={"family": 1, "retired": 3})  # the order is no argument
    assert homes.load(0).total.tobytes() == turned.load(0).total.tobytes()


def test_ownership_adds_owners_and_changes_nobody_else():
    few, many = (simulate_households(200, 24, ownership={"Dryer": share}) for share in (0.2, 0.6))
    owners = [{i for i in range(200) if homes.home(i).owned["Dryer"]} for homes in (few, many)]
    assert owners[0] < owners[1]
    assert 20 < len(owners[0]) < 65 < len(owners[1]) < 160
    still = next(i for i in range(200) if i not in owners[1])
    np.testing.assert_array_equal(few.load(still).total, many.load(still).total)
    assert simulate_households(1, 744, ownership={"Dryer": 0}).load(0).readings[:, 5].sum() == 0


def test_examples_in_the_docstrings():
    for module in (holidays, simulate):
        found = doctest.testmod(module)
        assert found.attempted > 0
        assert found.failed == 0


# reproducibility


def test_a_home_does_not_depend_on_count_or_order():
    first, second = simulate_households(50, 200, seed=9), simulate_households(200, 200, seed=9)
    forward = [fingerprint(first.load(index)) for index in range(10)]
    backward = [fingerprint(second.load(index)) for index in reversed(range(10))]
    assert forward == backward[::-1]
    assert len(set(forward)) == 10
    assert first.identity() == second.identity()


def test_a_home_is_the_same_in_another_process():
    code = ("from fedenergy.households.simulate import simulate_households as s; h = s(12, 300, seed=8).load(7);"
            "import hashlib; whole = h.readings.tobytes() + h.total.tobytes() + h.features.tobytes();"
            "print(hashlib.sha256(whole).hexdigest())")
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    home = simulate_households(8, 300, seed=8).load(7)
    whole = home.readings.tobytes() + home.total.tobytes() + home.features.tobytes()
    assert run.stdout.strip() == hashlib.sha256(whole).hexdigest()


def test_seed_and_arguments_are_in_the_identity():
    base = simulate_households(5, 48)
    bodies = {canon(population.identity()) for population in (
        base, simulate_households(5, 48, seed=1), simulate_households(5, 48, step_minutes=30),
        simulate_households(5, 48, start="2013-07-01"), simulate_households(5, 48, climate="madrid"),
        simulate_households(5, 48, country="none"), simulate_households(5, 48, archetypes=["family"]),
        simulate_households(5, 48, ownership={"Oven": 1}), simulate_households(5, 48, appliances=["Oven"]))}
    assert len(bodies) == 9
    assert "count" not in base.identity()


def test_golden_home():
    """Readings in nano-kWh. A change here is a change of every simulated study: raise simulate._MODEL with it."""
    home = simulate_households(3, 744, seed=1).load(1)
    assert fingerprint(home) == "9faa03f7526e9eb4"


# pieces


def test_events_count_watt_minutes():
    """90 W from minute 50 for 30 min: 10 x 90 before the hour, 20 x 90 after it. 60 W from before the start: 5 x 60."""
    events = Events(2)
    events.add(0, np.array([50.0]), 30, 90)
    events.add(1, np.array([-10.0, 170.0]), 15, 60)
    np.testing.assert_array_equal(events.watt_minutes(3, 60), [[900, 1800, 0], [300, 0, 600]])


def test_public_holidays():
    assert [easter(year).isoformat() for year in (2000, 2008, 2013, 2038)] == [
        "2000-04-23", "2008-03-23", "2013-03-31", "2038-04-25"]
    assert sorted(day.isoformat()[5:] for day in public_holidays(2013)) == [
        "01-01", "03-29", "04-01", "05-06", "05-27", "08-26", "12-25", "12-26"]
    assert {dt.date(2010, 12, 27), dt.date(2010, 12, 28)} < public_holidays(2010)  # Saturday and Sunday, moved on
    assert dt.date(2011, 1, 3) in public_holidays(2011)
    assert {dt.date(2013, 5, 9), dt.date(2013, 5, 20), dt.date(2013, 10, 3)} < public_holidays(2013, "DE")
    assert public_holidays(2013, "none") == frozenset()
    assert day_off(dt.date(2013, 3, 29))
    assert not day_off(dt.date(2013, 3, 28))


def test_summer_time():
    switches = [dt.date(2013, 3, 30), dt.date(2013, 3, 31), dt.date(2013, 10, 26), dt.date(2013, 10, 27)]
    assert [summer_time(day) for day in switches] == [False, True, True, False]
    assert not summer_time(dt.date(2013, 7, 1), "none")


def test_weather_belongs_to_the_date():
    whole = zone_weather(6, "london", dt.date(2012, 12, 20), 40)
    part = zone_weather(6, "london", dt.date(2012, 12, 30), 10)
    np.testing.assert_allclose(part.temperature[48:-48], whole.temperature[11 * 48:19 * 48], atol=1e-12)
    year = zone_weather(6, "london", dt.date(2013, 1, 1), 365)
    assert 9.5 < year.daily.mean() < 12.5
    assert year.daily[182:212].mean() - year.daily[:31].mean() > 8
    assert year.irradiance.min() == 0
    assert 550 < year.irradiance.max() < 1000
    assert 920 < (year.sunset - year.sunrise).max() < 1010  # 16 h 38 min at 51.5 degrees north, without refraction


# statistics: London 2013 as measured by simulations/simulator_vs_london.py on 89 homes stands beside each band


def test_daily_use_is_that_of_a_city_home(year):
    daily = year.sum(axis=2)
    assert 8.5 < daily.mean() < 12.5                              # 10.7 kWh
    assert 7 < np.median(daily.mean(axis=1)) < 10.5               # 9.4
    assert 0.45 < daily.mean(axis=1).std() / daily.mean() < 0.85  # 0.62
    assert 0.22 < np.median(daily.std(axis=1) / daily.mean(axis=1)) < 0.42  # 0.34


def test_seasons(year):
    month = np.array([(dt.date(2013, 1, 1) + dt.timedelta(day)).month for day in range(365)])
    winter, summer = (year[:, np.isin(month, months)].sum(axis=2).mean(axis=1) for months in ((12, 1, 2), (6, 7, 8)))
    assert 1.35 < winter.mean() / summer.mean() < 1.85            # 1.55
    assert 1.2 < np.median(winter / summer) < 1.55                # 1.39


def test_shape_of_a_day(year):
    zone = year.mean(axis=0) * 2000
    weekday = np.array([(dt.date(2013, 1, 1) + dt.timedelta(day)).weekday() < 5 for day in range(365)])
    winter = np.arange(365) < 59
    curve = zone[winter & weekday].mean(axis=0)
    assert 17.5 <= 16 + curve[32:46].argmax() / 2 <= 20.5         # 19 h
    assert 700 < curve[32:46].max() < 1000                        # 812 W
    assert 420 < curve[12:20].max() < 650                         # 516 W between 6 and 10 h
    assert 380 < curve[22:30].mean() < 600                        # 521 W between 11 and 15 h
    assert 0.95 < zone[~weekday].mean() / zone[weekday].mean() < 1.12  # 1.04
    assert 0.35 < zone.mean() / zone.max() < 0.55                 # 0.43


def test_memory_and_peaks_of_a_home(year):
    flat = year.reshape(len(year), -1)
    centred = (flat - flat.mean(axis=1, keepdims=True)) / flat.std(axis=1, keepdims=True)
    half_hour, day, week = (np.median((centred[:, lag:] * centred[:, :-lag]).mean(axis=1)) for lag in (1, 48, 336))
    assert 0.55 < half_hour < 0.72                                # 0.63
    assert 0.25 < day < 0.4                                       # 0.34
    assert 0.22 < week < 0.4                                      # 0.33
    january = flat[:, :31 * 48]
    assert 0.09 < np.median(january.mean(axis=1) / january.max(axis=1)) < 0.18  # 0.14 over all months


def test_every_appliance_shows_in_the_zone():
    homes = simulate_households(120, seed=1)
    use = np.mean([homes.load(index).readings.sum(axis=0) for index in range(120)], axis=0)
    assert (use > 1).all()  # kWh a month; Cooler too, in January
    assert use.argmax() == APPLIANCES.index("Heating")


def test_heating_answers_the_weather_and_the_cooler_the_heat():
    heated = simulate_households(30, 1440, ownership={"Heating": 1})
    for index in range(30):
        home = heated.load(index)
        day = home.readings[:, 0].reshape(60, 24).sum(axis=1), home.features[:, 0].reshape(60, 24).mean(axis=1)
        assert np.corrcoef(*day)[0, 1] < 0
    hot, mild = (simulate_households(40, 744, start="2013-07-01", climate=place, ownership={"Cooler": 1})
                 for place in ("madrid", "london"))
    assert sum(hot.load(i).readings[:, 6].sum() for i in range(40)) > 1.5 * sum(
        mild.load(i).readings[:, 6].sum() for i in range(40))


# bad arguments


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"count": 0}, ValueError, "count = 0 is below 1"),
    ({"count": 2.5}, TypeError, "count = 2.5 is not a whole number"),
    ({"steps": 0}, ValueError, "steps = 0 is below 1"),
    ({"seed": None}, TypeError, "seed = None"),
    ({"step_minutes": 7}, ValueError, "step_minutes = 7 must be 1 to 60 and divide a day"),
    ({"step_minutes": 120}, ValueError, "step_minutes = 120"),
    ({"start": "7 January"}, ValueError, 'start = \'7 January\' is not a date: write "2013-01-07"'),
    ({"start": "2013-01-07T00:00+01:00"}, ValueError, "without an offset"),
    ({"start": "2013-01-07T00:00:30"}, ValueError, "on a whole minute"),
    ({"archetypes": ["comuter"]}, ValueError, 'has no archetype \'comuter\' .*Did you mean ".* commuter"'),
    ({"archetypes": {"family": -1}}, ValueError, "weights >= 0"),
    ({"appliances": ["Frigde"]}, ValueError, 'no appliance \'Frigde\' .*Did you mean "Fridge"'),
    ({"appliances": ["Oven", "Oven"]}, ValueError, "each once"),
    ({"appliances": []}, ValueError, "one or more"),
    ({"ownership": {"Oven": 1.5}}, ValueError, "ownership of Oven = 1.5"),
    ({"ownership": {"oven": 1}}, ValueError, 'Did you mean "Oven"'),
    ({"climate": "lundon"}, ValueError, 'Did you mean "london"'),
    ({"country": "UK"}, ValueError, "no country 'UK' .*GB, DE, none"),
])
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        simulate_households(**{"count": 2, **arguments})
