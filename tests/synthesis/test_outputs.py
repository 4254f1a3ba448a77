"""Files of artificial records, records of populations with gaps, net load, and midnights."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest

from fedenergy import synthesis as syn
from fedenergy.households.household import Household
from fedenergy.synthesis import net_load, outputs, seams
from fedenergy.synthesis.attributes import attributes
from fedenergy.synthesis.outputs import Block
from fedenergy.synthesis.records import MONDAY, Reading, fill, read
from fedenergy.synthesis.stream import Plan, make


@pytest.fixture(scope="module")
def fake(homes):
    return syn.synthesise(homes, seed=1)


@pytest.mark.parametrize(("form", "name"), [("long-csv", "a.csv"), ("wide-csv", "a.csv"), ("long-parquet", "a.parquet"),
                                            ("wide-parquet", "a.parquet")])
def test_contract_every_format_holds_the_same_records(fake, tmp_path, form, name):
    path = outputs.write(fake, tmp_path / name, form)
    frame = pd.read_csv(path) if name.endswith("csv") else pd.read_parquet(path)
    if form.startswith("wide"):
        assert list(frame["home"]) == list(fake.ids)
        values, start = frame.iloc[:, 3:].to_numpy(float), frame.columns[3]
    else:
        assert list(frame.columns) == ["home", "start", "kwh", "cluster", "size"]
        values, start = frame["kwh"].to_numpy().reshape(60, 744), str(frame["start"].iloc[0])[:16]
    np.testing.assert_allclose(values, fake.values, atol=0.5001e-4)
    assert start == "2013-01-07 00:00"
    rows = frame if form.startswith("wide") else frame.iloc[::744]
    assert rows["cluster"].tolist() == fake.cluster.tolist()
    assert set(rows["size"]) == {"small", "medium", "large"}
    about = json.loads((tmp_path / f"{name}.about.json").read_text())
    assert "epsilon = infinity" in about["guarantee"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("form", ["long-parquet", "wide-parquet"])
def test_parquet_of_the_same_records_is_the_same_bytes(fake, tmp_path, form):
    texts = {outputs.write(fake, tmp_path / f"{k}.parquet", form).read_bytes() for k in range(4)}
    assert len(texts) == 1


def test_parquet_carries_its_guarantee(fake, tmp_path):
    import pyarrow.parquet as parquet

    path = outputs.write(fake, tmp_path / "a.parquet")
    assert "epsilon = infinity" in json.loads(parquet.read_metadata(path).metadata[b"fedenergy"])["guarantee"]


def test_long_record_is_one_continuous_clock(homes):
    block = Block(("a",), np.ones((1, 24 * 365)), np.datetime64("2013-01-01"), 60, np.array([0]), np.array([0]))
    assert (np.diff(block.stamps) == np.timedelta64(3600, "s")).all()
    assert str(block.stamps[-1]) == "2013-12-31T23:00:00"


def test_names_are_no_formulas(tmp_path):
    names = ("-1+1", "home-1", "=x")
    block = Block(names, np.array([[1.0] * 24, [-2.0] * 24, [0.0] * 24]), MONDAY, 60, np.zeros(3, int), np.zeros(3, int), 1)
    outputs.write_blocks([block], tmp_path / "a.csv", "long-csv", {})
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["home"] for row in rows[::24]] == ["'-1+1", "home-1", "'=x"]
    assert [float(row["kwh"]) for row in rows[::24]] == [1.0, -2.0, 0.0]     # numbers stay numbers


def test_a_failed_write_leaves_nothing(fake, tmp_path):
    def blocks():
        yield Block.of(fake)
        raise RuntimeError("power failure")

    (tmp_path / "a.csv").write_text("before")
    with pytest.raises(RuntimeError, match="power"):
        outputs.write_blocks(blocks(), tmp_path / "a.csv", "long-csv", {})
    assert [item.name for item in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text() == "before"


@pytest.mark.parametrize(("name", "form", "words"), [("a.txt", "", "ends in '.txt'"), ("a.csv", "long", "format = 'long'"),
                                                     ("a.csv", "long-parquet", "let it end in .parquet")])
def test_breaking_names(name, form, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        outputs.format_of(tmp_path / name, form)


def test_golden_attributes():
    block = Block(("a",), np.r_[np.ones(23), 5.0][None], MONDAY, 60, np.array([2]), np.array([0]))
    assert attributes(block).iloc[0].to_dict() == {"home": "a", "cluster": 2, "size": "small", "mean_kwh_per_day": 28.0,
                                                   "peak_kwh": 5.0, "peak_hour": 23.0}


def home(name, values, start="2013-01-07", owner="", **channels):
    readings = np.column_stack(list(channels.values())) if channels else values[:, None]
    return Household(name, tuple(channels) or ("all",), readings, values, np.datetime64(start), 60, charged_to=owner)


def test_golden_fill_uses_days_of_the_type():
    days = np.tile(np.arange(24.0), (14, 1))
    days[5:7] += 100                       # weekends
    days[12:] += 100
    holes = days.copy()
    holes[6, 3] = holes[8, 5] = np.nan     # a Sunday, a Tuesday
    np.testing.assert_array_equal(fill(holes.ravel(), MONDAY).reshape(14, 24), days)
    holes[:, 7] = np.nan
    with pytest.raises(ValueError, match="step 7 of the day is missing on every day"):
        fill(holes.ravel(), MONDAY)


def test_gaps_are_refused_or_filled_and_counted(homes):
    rows = homes.values[:6].copy()
    rows[0, 10:13] = np.nan
    rows[1, :200] = np.nan
    people = [home(f"h{i}", row) for i, row in enumerate(rows)]
    refused = read(people, None, Reading())
    assert set(refused.panel.excluded) == {"h0", "h1"}
    filled = read(people, None, Reading(gaps="fill"))
    assert set(filled.panel.excluded) == {"h1"}
    assert "200 of 744 readings are missing" in filled.panel.excluded["h1"]
    assert filled.filled == 3


def test_months_are_aligned_by_weekday_and_keep_their_owner():
    day = np.random.default_rng(0).gamma(1, 1, 31 * 24)
    months = [home("a-10", day, "2013-10-01", "a"), home("a-11", day[:30 * 24], "2013-11-01", "a"),
              home("b-02", day[:28 * 24], "2014-02-01", "b")]
    found = read(months, None, Reading(days=21, align="monday"))
    assert found.panel.start == MONDAY
    assert found.owners == ("a", "a", "b")
    np.testing.assert_array_equal(found.panel.values[0], day[6 * 24:27 * 24])     # 2013-10-07 was a Monday
    np.testing.assert_array_equal(found.panel.values[1], day[3 * 24:24 * 24])     # 2013-11-04
    with pytest.raises(ValueError, match="none of 3 households"):
        read(months, None, Reading(days=28, align="monday"))


def test_net_load_round_trip_and_refusals(homes):
    rng = np.random.default_rng(0)
    net = homes.values - rng.gamma(1, 0.3, homes.values.shape) * (np.arange(744) % 24 == 12)
    assert net.min() < -0.5
    z, cap = net_load.lift(net, 5.0, None, 60)
    assert z.min() >= 0
    np.testing.assert_allclose(net_load.lower(z, 5.0), net, atol=1e-12)
    assert net_load.lower(np.array([cap]), 5.0)[0] == pytest.approx(100.0)
    with pytest.raises(ValueError, match="above the public bound export_cap_kwh = 1"):
        net_load.lift(np.array([[-2.0]]), 1.0, None, 60)
    with pytest.raises(ValueError, match="none of 60 households"):
        read(net - 10, None, Reading())


def test_net_load_by_plan_stays_signed(homes):
    rows = homes.values[:12]
    solar = np.tile(np.maximum(0, np.sin((np.arange(24) - 6) / 12 * np.pi)), 31) * 1.5
    people = [home(f"h{i:02d}", row, load=row, solar=solar * (0.5 + i / 12)) for i, row in enumerate(rows)]
    plan = Plan.of_table({"export_channel": "solar", "export_cap_kwh": 5.0, "clusters": 1})
    found = read(people, None, plan.reading)
    fake = make(found.panel, plan, 1)
    real = np.stack([one.total - one.readings[:, 1] for one in people])
    assert real.min() < 0
    assert -5 <= fake.values.min() < 0
    assert abs((fake.values < 0).mean() - (real < 0).mean()) < 0.08
    assert abs(fake.values.mean() - real.mean()) < 0.2
    with pytest.raises(ValueError, match="state the public bound export_cap_kwh"):
        Reading(export_channel="solar")


def test_midnights_are_joined_and_days_keep_their_energy(homes, fake):
    real = seams.midnight_jump(homes.values)
    assert seams.midnight_jump(fake.values) > 1.2 * real
    joined = seams.join(fake.values, homes.values)
    assert seams.midnight_jump(joined) < 1.1 * real
    assert joined.min() >= 0
    np.testing.assert_allclose(joined.reshape(60, 31, 24).sum(2), fake.values.reshape(60, 31, 24).sum(2), rtol=1e-9)
    assert seams.join(homes.values, homes.values) is homes.values
