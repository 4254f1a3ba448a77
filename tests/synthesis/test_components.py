from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedenergy.synthesis import components
from fedenergy.synthesis.components import DEFAULT, SOURCE, Recipe, back, remake
from fedenergy.synthesis.intake import Panel


def test_trap_negative_energy_is_counted_and_the_mean_kept(homes):
    """The source's log is harmless; the way back makes negative kWh."""
    made = remake(homes, SOURCE, 1)
    assert made.clipped.sum() > 0.02 * made.values.size
    assert made.values.min() == 0
    assert remake(homes, DEFAULT, 1).clipped.sum() < made.clipped.sum()


def test_back_in_numbers():
    values, clipped, capped = back(np.log1p(np.array([[-0.5, 1.0, 2.0, 1.5], [0.0, 0.0, 0.0, 9.0]])), 5.0)
    np.testing.assert_allclose(values[0], [0, 4 / 4.5, 8 / 4.5, 6 / 4.5])   # mean 1 before and after
    np.testing.assert_allclose(values[1], [0, 0, 0, 5])
    assert (clipped.tolist(), capped.tolist()) == ([1, 0], [0, 1])
    assert np.isfinite(back(np.full((1, 3), 1e4), 5.0)[0]).all()


def test_population_mean_is_kept(homes):
    for recipe in (DEFAULT, SOURCE):
        assert remake(homes, recipe, 1).values.mean() == pytest.approx(homes.values.mean(), rel=0.02)


def test_contract_a_home_does_not_depend_on_the_others(homes):
    """Streams are keyed by the home's id; only the last bits of matrix products may differ."""
    alone = Panel(homes.ids[7:8], homes.values[7:8], homes.start)
    for recipe in (DEFAULT, Recipe(trend="prior", seasonal_part="phase_shift", residual="empirical")):
        np.testing.assert_allclose(remake(alone, recipe, 3).values[0], remake(homes, recipe, 3).values[7], atol=1e-6)


def test_contract_seeds_and_parts_are_apart(homes):
    few = Panel(homes.ids[:4], homes.values[:4], homes.start)
    first = remake(few, DEFAULT, 1).values
    np.testing.assert_array_equal(first, remake(few, DEFAULT, 1).values)
    assert np.abs(first - remake(few, DEFAULT, 2).values).max() > 0.1


def test_trap_the_seasonal_part_passes_verbatim_unless_moved(homes):
    few = Panel(homes.ids[:20], homes.values[:20], homes.start)
    season = components.decompose_seasons(np.log1p(few.values))[1]
    moved = {part: components._move(season, few.ids, Recipe(seasonal_part=part), few, 1)
             for part in components.SEASONAL_PARTS}
    assert moved["keep"] is season
    ratio = (moved["jitter"] / season).reshape(20, 31, 24)
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :, :1], ratio.shape))
    assert np.log(ratio[:, :, 0]).std() == pytest.approx(components.JITTER, rel=0.15)
    moves = [[hours for hours in (-1, 0, 1) if np.array_equal(np.roll(before, hours), after)]
             for before, after in zip(season, moved["phase_shift"])]
    assert {hours for (hours,) in moves} == {-1, 0, 1}


@pytest.mark.parametrize("change", [{"residual": "normal"}, {"trend": "mean"}, {"gp": "sparse"}, {"seasonal_part": "drop"},
                                    {"floor_kwh": -1.0}, {"phase_hours": 0}])
def test_recipe_refuses(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} = .*; use"):
        Recipe(**change)


def test_even_seasonal_is_refused(homes):
    with pytest.raises(ValueError, match="odd"):
        remake(homes, replace(DEFAULT, seasonal=14))


def test_floor(homes):
    few = Panel(homes.ids[:4], homes.values[:4], homes.start)
    low, high = (remake(few, Recipe(floor_kwh=floor), 1).values for floor in (0.0, 0.3))
    assert high.mean() > low.mean()


def test_a_weekly_part(homes):
    few = Panel(homes.ids[:4], homes.values[:4], homes.start)
    weekly = remake(few, Recipe(periods=(24, 168), seasonal=7), 1).values
    assert weekly.mean() == pytest.approx(few.values.mean(), rel=0.05)
    with pytest.raises(ValueError, match="three periods of 168"):
        remake(Panel(few.ids, few.values[:, :336], few.start), Recipe(periods=(24, 168)))


def test_half_hours(homes):
    """The same pipeline at 30 minutes."""
    values = np.repeat(homes.values[:5], 2, axis=1) / 2 * np.random.default_rng(0).uniform(0.5, 1.5, (5, 1_488))
    made = remake(Panel(homes.ids[:5], values, homes.start, 30), DEFAULT, 0)
    assert made.values.mean() == pytest.approx(values.mean(), rel=0.1)


def test_a_year_uses_the_long_form(homes):
    values = np.tile(homes.values[:2], (1, 12)) * np.random.default_rng(0).uniform(0.5, 1.5, (2, 8_928))
    made = remake(Panel(homes.ids[:2], values[:, :3_600], homes.start), DEFAULT, 0)
    assert made.values.mean() == pytest.approx(values[:, :3_600].mean(), rel=0.1)
