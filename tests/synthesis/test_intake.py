from __future__ import annotations

import numpy as np
import pytest

from fedenergy.households.simulate import simulate_households
from fedenergy.synthesis.intake import day_types, panel


def homes(count=3, days=14):
    return np.random.default_rng(0).gamma(1, 0.5, (count, 24 * days))


def spoiled(change):
    values = homes()
    change(values[1])
    return values


@pytest.mark.parametrize(("values", "reason"), [
    (spoiled(lambda row: row.__setitem__(5, np.nan)), "1 of 336 readings are missing"),
    (spoiled(lambda row: row.__setitem__(5, np.inf)), "infinite"),
    (spoiled(lambda row: row.__setitem__(5, -0.5)), "negative net load"),
    (spoiled(lambda row: row.__setitem__(5, 1e6)), "above the public cap of 100"),
    (spoiled(lambda row: row.__imul__(1_000)), "above the public cap of 100"),
    (spoiled(lambda row: row.fill(0.0)), "all its readings are 0"),
    (spoiled(lambda row: row.fill(0.7)), "all its readings equal 0.7"),
])
def test_breaking_inputs_name_the_household(values, reason):
    with pytest.raises(ValueError, match=f"household home-000002: .*{reason}"):
        panel(values)
    kept = panel(values, on_bad="drop")
    assert kept.ids == ("home-000001", "home-000003")
    assert reason in kept.excluded["home-000002"]


@pytest.mark.parametrize("steps", [335, 337])
def test_breaking_inputs_clock_change(steps):
    with pytest.raises(ValueError, match=r"home-000001: its 33[57] steps are not whole days of 24: .*clock change"):
        panel(np.random.default_rng(0).random((2, steps)))


def test_breaking_inputs_not_whole_days():
    with pytest.raises(ValueError, match="not whole days of 24; cut"):
        panel(np.random.default_rng(0).random((2, 340)))


@pytest.mark.parametrize("days", [1, 2, 6])
def test_breaking_inputs_few_days_would_pass_verbatim(days):
    with pytest.raises(ValueError, match=f"{days} days are too few"):
        panel(homes(days=days))


def test_breaking_inputs_of_the_set():
    with pytest.raises(ValueError, match="at least one"):
        panel([])
    with pytest.raises(ValueError, match="none of 2 households"):
        panel(np.zeros((2, 336)), on_bad="drop")
    with pytest.raises(ValueError, match="shape"):
        panel(np.zeros(336))
    with pytest.raises(ValueError, match="different ids"):
        panel(homes(2), ids=["a", "a"])
    with pytest.raises(ValueError, match="on_bad"):
        panel(homes(), on_bad="ignore")
    with pytest.raises(ValueError, match="cap_kwh"):
        panel(homes(), cap_kwh=0)


def test_another_window_names_the_household():
    short = simulate_households(1, steps=336, seed=1).load(0)
    rest = [simulate_households(4, steps=744, seed=1).load(i) for i in (1, 2, 3)]
    with pytest.raises(ValueError, match="home-000001: it has 336 steps"):
        panel([short, *rest])
    evening = simulate_households(1, steps=744, start="2013-01-07T18:00").load(0)
    with pytest.raises(ValueError, match="not at a midnight"):
        panel([evening])


def test_contract_sorted_by_id_whatever_the_order():
    values = homes()
    first = panel(values, ids=["c", "a", "b"])
    second = panel(values[[1, 2, 0]], ids=["a", "b", "c"])
    assert first.ids == second.ids == ("a", "b", "c")
    np.testing.assert_array_equal(first.values, second.values)
    assert panel(first).ids == first.ids


def test_day_types_cross_a_week():
    assert day_types(np.datetime64("2024-02-29"), 4).tolist() == [False, False, True, True]   # Thursday
