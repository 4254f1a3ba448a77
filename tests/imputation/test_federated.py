"""What homes compute for a shared imputer; filling a series; packaged models; curves; gappy homes."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import fedenergy as fe
from fedenergy.errors import ConfigError
from fedenergy.imputation import dp_gp, packaged
from fedenergy.imputation.baselines import linear
from fedenergy.imputation.dp_gp_release import Released
from fedenergy.imputation.events import crc32c, curves_of, write_events
from fedenergy.imputation.federated import (
    MEAN,
    MOMENTS,
    SCALE,
    UPDATE,
    WINDOWS,
    NetPlan,
    TrainImputer,
    assembled,
    moments_of,
    own_windows,
    released_mean,
    released_scale,
    usable,
    windows_of,
)
from fedenergy.imputation.filling import FilledSeries, fill_linear, fill_series, pieces
from fedenergy.imputation.gappy import FILLS, gappy_homes
from fedenergy.imputation.task import errors, join
from fedenergy.privacy.gaussian import Gaussian
from fedenergy.privacy.noise import SimulationNoise
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.shared_gaussian import LEAST_SHARE, SharedGaussian
from fedenergy.privacy.trust import Deposit
from fedenergy.privacy.window_records import check_windows, window_deposit

HOMES = fe.simulate_households(6, steps=24 * 12, seed=3)
TASK = TrainImputer()


# -- moments of a dp_gp ------------------------------------------------------------------------------------------------

def test_stages_give_the_imputer_of_dp_gp_fit():
    """Oracle: averaging the homes' own vectors is what dp_gp.fit does with unit = "household" and no noise."""
    cap, days = TASK.cap(HOMES), TASK.days
    rows = [usable(TASK.records(HOMES.load(i), HOMES)) for i in range(6)]
    empty = np.zeros(0)

    task = replace(TASK, moment_radius=dp_gp.radius_of(6, None, 48))

    def stage(kind, mean, scale):
        vectors, bound = [moments_of(kind, own, days, cap, mean, scale) for own in rows], task.kind_spec(kind, HOMES).clip
        return Released(np.mean([v * min(1.0, bound / np.linalg.norm(v)) for v in vectors], axis=0), 0.0)
    mean = released_mean(stage(MEAN, empty, empty))
    scale = released_scale(stage(SCALE, mean, empty), cap * dp_gp.TYPICAL)
    windows = join([own_windows(HOMES.load(i), days) for i in range(6)])
    fitted = dp_gp.fit(windows, math.inf, unit="household")
    gp = assembled(mean, scale, stage(MOMENTS, mean, scale), days, cap, 0, fitted.privacy)
    np.testing.assert_allclose(gp.mean, fitted.mean, atol=1e-5)
    np.testing.assert_allclose(gp.scale, fitted.scale, atol=1e-5)
    np.testing.assert_allclose(gp.correlation, fitted.correlation, atol=1e-3)     # the fit's grid is 192 / 2**20


def test_kinds_have_public_shapes_and_bounds():
    sizes = {kind: len(TASK.kind_spec(kind, HOMES).coordinates) for kind in TASK.kinds}
    assert sizes == {WINDOWS: 6, MEAN: 24, SCALE: 24, MOMENTS: 600, UPDATE: sizes[UPDATE]}
    assert TASK.kind_spec(MEAN, HOMES).clip == pytest.approx(math.sqrt(24 * 0.4))      # cap 6 kWh, typical cap / 15
    assert TASK.kind_spec(MOMENTS, HOMES).clip == 24.0                                 # T / 2
    assert replace(TASK, moment_radius=5.0).kind_spec(MOMENTS, HOMES).clip == 5.0
    late = replace(HOMES, start="2013-01-07T06:00")
    assert (TASK.phase(HOMES), TASK.phase(late)) == (0, 6)
    with pytest.raises(ValueError, match="shorter than one window"):
        TASK.kind_spec(MEAN, fe.simulate_households(1, steps=24))


def test_windows_of_a_home_say_nothing_of_what_is_missing():
    home = HOMES.load(0)
    total = home.total.copy()
    total[:60] = np.nan
    gone = replace(home, total=total)
    assert TASK.records(gone, HOMES).shape == TASK.records(home, HOMES).shape == (6, 48)
    assert len(usable(TASK.records(gone, HOMES))) == 5            # 48 of 48 and 12 of 48 steps are gone
    nothing = np.full((6, 48), np.nan)
    kept = windows_of(["a", "b"], [TASK.records(gone, HOMES), nothing], 24, 0)
    assert kept.homes == ("a",) * 5 + ("b",)                      # a home without readings still counts as one
    assert len(windows_of(["a", "b"], [TASK.records(gone, HOMES), nothing], 24, 0, keep_all=True)) == 12


@pytest.mark.parametrize(("change", "words"), [({"days": 0}, "days = 0"), ({"cap_kw": -1}, "cap_kw = -1"),
                                               ({"moment_radius": math.nan}, "moment_radius = nan")])
def test_bad_tasks(change, words):
    with pytest.raises(ValueError, match=words):
        TrainImputer(**change)


@pytest.mark.parametrize(("change", "words"), [({"clip": 0.0}, "clip = 0"), ({"local_steps": 0}, "local_steps = 0"),
                                               ({"base": "dp_gp"}, "base = 'dp_gp'"), ({"rate": math.inf}, "rate = inf")])
def test_bad_nets(change, words):
    with pytest.raises(ValueError, match=words):
        NetPlan(**change)


# -- the shared Gaussian noise -----------------------------------------------------------------------------------------

def test_shares_add_up_to_the_noise_that_is_charged():
    """Statistics: the sum of 5 homes' shares has the variance of one noise, and the tails of a normal law."""
    law, size, parties = SharedGaussian(4.0, 1e-5), 6000, 5
    noise = SimulationNoise(1)
    total = sum(law.share(noise.source(f"h{k}", "q"), 1_000_000, parties, size) for k in range(parties))
    one = Gaussian(4.0, 1e-5)
    assert law.variance(1_000_000) == one.variance(1_000_000) * (1 + Fraction(1, 2**40))
    scaled = total / math.sqrt(one.variance(1_000_000))
    assert abs(scaled.var() - 1) < 5 * math.sqrt(2 / size)
    assert abs((scaled**4).mean() - 3) < 5 * math.sqrt(96 / size)
    share = law.share(noise.source("h0", "q"), 1_000_000, parties, size) / math.sqrt(one.variance(1_000_000))
    assert abs(share.var() * parties - 1) < 5 * math.sqrt(2 / size)       # one share alone is a fifth of the noise


def test_a_share_is_refused_where_the_theorem_does_not_reach():
    law = SharedGaussian(4.0, 1e-5)
    with pytest.raises(ValueError, match=f"below {LEAST_SHARE}"):
        law.share(SimulationNoise(0).source("h0", "q"), 1_000_000, 2**40, 1)
    for parties in (0, True, 2.0):
        with pytest.raises(ValueError, match="number of homes"):
            law.share(SimulationNoise(0).source("h0", "q"), 1_000_000, parties, 1)


def test_deposits_are_clipped_in_l2():
    z = SharedGaussian(1.0, 1e-5).deposit(np.full(100, 3.0))
    norm = math.sqrt(float((z.astype(float)**2).sum()))
    assert math.isclose(norm * SharedGaussian(1.0, 1e-5).grid.step, 1.0, rel_tol=1e-4)


# -- windowed records --------------------------------------------------------------------------------------------------

def test_window_records_keep_to_the_agreed_limits():
    values = window_deposit(NoiseFree(np.array([[-1.0, 0.5], [np.nan, 9.0]])), (2, 2), 3.3)
    assert values.dtype == np.float32
    assert float(values[1, 1]) <= 3.3                                     # float32 rounds 3.3 up
    assert values[0, 0] == 0
    assert np.isnan(values[1, 0])
    check_windows(Deposit("h1", "q", 1, values), (2, 2), 3.3)
    for bad, words in ((values.astype(np.float64), "float32"), (values + 1, "within"), (values[:1], "float32")):
        with pytest.raises(ValueError, match=words):
            check_windows(Deposit("h1", "q", 1, bad), (2, 2), 3.3)
    with pytest.raises(ValueError, match="was agreed"):
        window_deposit(np.zeros((3, 2)), (2, 2), 3.3)


# -- filling a series --------------------------------------------------------------------------------------------------

def test_pieces_cover_every_gap_once_and_lie_inside_their_windows():
    rng = np.random.default_rng(1)
    for length, n in ((8, 40), (8, 5), (48, 500)):
        missing = rng.random(n) < 0.4
        covered = np.zeros(n, int)
        for start, low, high in pieces(missing, length):
            assert 0 <= start <= low < high <= start + length
            covered[low:high] += 1
        assert (covered == missing).all()


def series(days=20, seed=5):
    home = fe.simulate_households(1, steps=24 * days, seed=seed).load(0)
    return home.total.copy(), np.arange(24 * days) % 24


def test_fill_series_keeps_readings_and_brackets_what_it_fills():
    truth, clock = series()
    values = truth.copy()
    values[30:34] = values[100:220] = values[-3:] = np.nan               # the long one is longer than a window
    gp = packaged.fit_simulated(4, 14, 60, 1)
    found = fill_series(gp, values, clock, samples=40, seed=1)
    assert isinstance(found, FilledSeries)
    known = ~np.isnan(values)
    assert (found.values[known] == truth[known]).all()
    assert np.isfinite(found.values).all()
    assert (found.filled == ~known).all()
    assert np.isnan(found.low[known]).all()
    assert (found.low[~known] <= found.high[~known]).all()
    assert found.blind == 72      # 120 steps in pieces of 24; the windows of the inner three hold no reading
    other = fill_series(gp, values, clock, samples=40, seed=2)
    assert (other.values == found.values).all()    # the law is known: no draw in it
    assert (other.low[~known] == found.low[~known]).all()
    median = fill_series(gp, values, clock, point="median", level=1e-9)
    np.testing.assert_allclose(median.values[~known], median.low[~known], atol=1e-6)


def test_exact_quantiles_are_those_of_many_draws():
    """Oracle: DpGp.sample. 400 draws give a 5 % quantile to some hundredth."""
    gp, windows = packaged.fit_simulated(4, 14, 60, 1), packaged.simulated_windows(1, 2, 60, 3)
    values = windows.values[0, :, 0].copy()
    values[10:30] = np.nan
    found = fill_series(gp, values, np.arange(48) % 24)
    drawn = gp.sample(np.nan_to_num(values)[None], ~np.isnan(values)[None], samples=400, seed=1)[0]
    for name, level in (("low", 0.05), ("high", 0.95)):
        assert np.abs(getattr(found, name)[10:30] - np.quantile(drawn[:, 10:30], level, axis=0)).mean() < 0.05, name


def test_fill_series_reads_only_its_own_window():
    truth, clock = series()
    values = truth.copy()
    values[30:34] = np.nan
    changed = values.copy()
    changed[250:] *= 3
    gp = packaged.simulated(60)
    assert (fill_series(gp, values, clock).values[30:34] == fill_series(gp, changed, clock).values[30:34]).all()


def test_fill_series_of_a_short_or_an_empty_record():
    gp = packaged.simulated(60)
    short = np.array([0.2, np.nan, 0.3])
    assert np.isfinite(fill_series(gp, short, np.arange(3)).values).all()
    empty = fill_series(gp, np.full(60, np.nan), np.arange(60) % 24)
    assert empty.blind == 60
    whole = fill_series(gp, np.ones(60), np.arange(60) % 24)
    assert not whole.filled.any()
    for bad in ({"samples": 0}, {"level": 1.0}, {"point": "mode"}):
        with pytest.raises(ValueError, match="at least 1"):
            fill_series(gp, short, np.arange(3), **bad)
    with pytest.raises(ValueError, match="infinite"):
        fill_series(gp, np.array([1.0, np.inf]), np.arange(2))


def test_ninety_percent_intervals_cover_about_ninety_percent():
    """Statistics: on homes of the kind that it was fitted to. 40 homes x 3 gaps of 6 hours."""
    inside, homes = [], fe.simulate_households(40, steps=24 * 12, seed=21)
    for index in range(40):
        home = homes.load(index)
        values = home.total.copy()
        for start in (40, 130, 220):
            values[start:start + 6] = np.nan
        found = fill_series(packaged.simulated(60), values, np.arange(len(values)) % 24, samples=60, seed=index)
        at = found.filled
        inside.append(((found.low[at] <= home.total[at]) & (home.total[at] <= found.high[at])).mean())
    assert 0.84 < np.mean(inside) < 0.96


# -- packaged models ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("step", [15, 30, 60])
def test_the_packaged_imputer_beats_linear_lines_on_unseen_homes(step):
    gp = packaged.simulated(step)
    scores = packaged.scores(gp, packaged.simulated_windows(6, 14, step, 4321, gp.length * step // 1440))
    for pattern in ("blocks 0.5", "outage 0.2", "outage 0.5"):
        assert scores[pattern]["imputer"]["mse"] < scores[pattern]["linear"]["mse"], pattern
    assert sum(path.stat().st_size for path in packaged.PRETRAINED.rglob("*") if path.is_file()) < 2_000_000


def test_the_packaged_imputer_beats_linear_lines_on_london_block_gaps(data_dir):
    from fedenergy.households.datasets import london_households

    homes = london_households(data_dir, count=25, step_minutes=60)
    windows = join([own_windows(homes.load(i), 7) for i in range(len(homes))])
    windows = windows.take(np.flatnonzero(windows.known.all(axis=(1, 2)))[::4])
    scores = packaged.scores(packaged.simulated(60), windows)
    for pattern in ("blocks 0.5", "outage 0.2", "outage 0.5"):
        assert scores[pattern]["imputer"]["mse"] < 0.9 * scores[pattern]["linear"]["mse"], pattern


def test_a_longer_base_sees_nothing_after_the_window():
    gp, windows = packaged.simulated(60), packaged.simulated_windows(2, 4, 60, 1)
    observed = np.random.default_rng(0).random(windows.values.shape) < 0.5
    filled = packaged.Longer(gp).fill(windows.values, observed, windows.time_of_day)
    wide = np.full((4, gp.length - 48, 1), np.nan)
    whole = np.concatenate([windows.values, wide], axis=1)
    seen = np.concatenate([observed, np.zeros(wide.shape, bool)], axis=1)
    np.testing.assert_allclose(filled, gp.fill(np.nan_to_num(whole), seen)[:, :48])
    assert packaged.Longer(gp).note == ""
    with pytest.raises(ValueError, match="longer than the base"):
        packaged.Longer(packaged.fit_simulated(2, 4, 60, 1, 1)).fill(windows.values, observed, windows.time_of_day)


def test_saved_imputers_come_back_and_damage_is_named(tmp_path):
    gp = packaged.fit_simulated(3, 8, 60, 1)
    packaged.save_gp(gp, tmp_path, {"made by": "a test"})
    back, card = packaged.load_gp(tmp_path)
    assert card == {"made by": "a test"}
    np.testing.assert_allclose(back.correlation, gp.correlation, atol=1e-6)
    assert back.privacy == gp.privacy
    assert packaged.open_model(tmp_path, 60).length == 48
    with pytest.raises(ConfigError, match="steps of 60 minutes"):
        packaged.open_model(tmp_path, 30)
    arrays = next(tmp_path.glob("*.safetensors"))
    blob = bytearray(arrays.read_bytes())
    blob[-1] ^= 1
    arrays.write_bytes(blob)
    with pytest.raises(ConfigError, match="digest"):
        packaged.load_gp(tmp_path)
    with pytest.raises(ConfigError, match="no imputer is saved"):
        packaged.open_model(tmp_path / "nowhere", 60)
    with pytest.raises(ConfigError, match="--step 7"):
        packaged.simulated(7)
    with pytest.raises(ConfigError, match="steps of 5 to 60 minutes"):
        packaged.simulated(1)


# -- TensorBoard's files -----------------------------------------------------------------------------------------------

GOLDEN = ("1800000000000000a37f4b22"                                                       # 24 bytes, CRC of that
          "0900000040fc54d941" "1a0d" "627261696e2e4576656e743a32" "eced8f9d"               # wall time; "brain.Event:2"; CRC
          "1800000000000000a37f4b22"
          "0900000040fc54d941" "2a0d0a0b" "0a046c6f7373" "150000c03f" "f7909d1a")            # "loss", 1.5


def test_event_files_have_the_bytes_that_tensorboard_reads(tmp_path):
    """Golden: read once with tensorboard 2.21's EventAccumulator, which gave (step 0, 1.5)."""
    path = write_events(tmp_path, {"loss": [(0, 1.5)]}, 1.7e9)
    assert path.read_bytes().hex() == GOLDEN
    assert "tfevents" in path.name
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA                      # RFC 3720, B.4


def test_tensorboard_reads_them_where_it_is_installed(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_events(tmp_path, {"loss": [(0, 1.5), (300, 0.25)]}, 1.7e9)
    found = reader.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(0, 1.5), (300, 0.25)]


def test_steps_are_varints(tmp_path):
    blob = write_events(tmp_path, {"a": [(300, 1.0)]}).read_bytes()
    assert b"\x10\xac\x02" in blob                              # 300 = 0b10_0101100
    assert struct.pack("<f", 1.0) in blob


def test_curves_leave_out_what_is_not_a_number():
    log = {"step": [0, 1], "loss": [0.5, None], "clipped": [0.0, 0.1], "valid_step": [], "valid": []}
    assert curves_of(log) == {"loss": [(0, 0.5)], "clipped": [(0, 0.0), (1, 0.1)]}


# -- gappy homes -------------------------------------------------------------------------------------------------------

def test_gappy_homes_lose_the_same_steps_whatever_fills_them():
    homes = {fill: gappy_homes(2, steps=24 * 10, seed=1, missing=0.25, fill=fill) for fill in FILLS}
    lost = homes["none"].lost(0)
    assert lost.sum() == 60
    assert all((made.lost(0) == lost).all() for made in homes.values())
    loaded = {fill: made.load(0) for fill, made in homes.items()}
    assert np.isnan(loaded["none"].total[lost]).all()
    for fill in FILLS:
        np.testing.assert_allclose(loaded[fill].total[~lost], loaded["true"].total[~lost], atol=1e-9)
    for fill in ("linear", "imputer", "draw"):
        assert np.isfinite(loaded[fill].total).all()
        assert (loaded[fill].readings.sum(axis=1) <= loaded[fill].total + 1e-9).all()
    expected = linear(np.where(lost, np.nan, loaded["true"].readings[:, 0])[None, :, None])[0, :, 0]
    np.testing.assert_allclose(loaded["linear"].readings[:, 0], expected)
    assert len({str(made.identity()) for made in homes.values()}) == len(FILLS)
    again = gappy_homes(2, steps=24 * 10, seed=1, missing=0.25, fill="draw")
    assert (homes["draw"].load(1).total == again.load(1).total).all()


def test_the_imputer_fills_outages_better_than_lines():
    """Statistics: 12 homes, a quarter of the record lost in real outage lengths."""
    found = {"linear": [], "imputer": []}
    for fill, scores in found.items():
        homes = gappy_homes(12, steps=24 * 20, seed=4, missing=0.25, fill=fill)
        for index in range(12):
            lost = homes.lost(index)[:, None]
            truth = homes.homes.load(index).total[:, None]
            scores.append(errors(homes.load(index).total[:, None], truth, ~lost)["mse"])
    assert np.mean(found["imputer"]) < 0.8 * np.mean(found["linear"])


@pytest.mark.parametrize(("change", "words"), [({"fill": "spline"}, "fill = 'spline'"), ({"missing": 1.0}, "missing = 1.0"),
                                               ({"outage_minutes": [0]}, "whole minutes"), ({"steps": 0}, "steps")])
def test_bad_gappy_homes(change, words):
    with pytest.raises(ValueError, match=words):
        gappy_homes(2, **change)


def test_linear_lines_of_columns():
    assert fill_linear(np.array([[1.0, np.nan], [np.nan, 2.0], [3.0, np.nan]])).tolist() == [[1, 2], [2, 2], [3, 2]]


# -- nets --------------------------------------------------------------------------------------------------------------

def test_a_home_s_update_moves_only_the_weights_that_are_trained():
    from fedenergy.imputation import federated_net

    plan = NetPlan(train_only="out", local_steps=2)
    windows = own_windows(HOMES.load(0), 2)
    first = federated_net.first_weights(plan, 48, 24, 6.0)
    assert len(first) == federated_net.size(plan, 48, 24, 6.0) < federated_net.size(NetPlan(), 48, 24, 6.0)
    moved = federated_net.update(plan, windows, first, 6.0, "h1", "q")
    assert moved.shape == first.shape
    assert np.abs(moved).max() > 0
    assert (federated_net.update(plan, windows, first, 6.0, "h1", "q") == moved).all()
    model = federated_net.with_weights(plan, first + moved, 48, 24, 6.0)
    np.testing.assert_allclose(federated_net.flat(model.net, plan), first + moved, atol=1e-6)
    names = dict(model.net.named_parameters())
    start = dict(federated_net.with_weights(plan, first, 48, 24, 6.0).net.named_parameters())
    assert all((names[n] == start[n]).all() for n in names if "out" not in n)
    with pytest.raises(ValueError, match="weights for a net of"):
        federated_net.with_weights(plan, first[:-1], 48, 24, 6.0)
    with pytest.raises(ValueError, match="matches no weight"):
        federated_net.size(NetPlan(train_only="nothing"), 48, 24, 6.0)


def test_the_noise_of_a_central_net_keeps_the_household_s_epsilon():
    from fedenergy.imputation.federated_central import household_sigma, one_sided
    from fedenergy.privacy import accounting

    sigma = household_sigma(4.0, 1e-5, 0.5, 1, 2)
    wanted, delta = one_sided(4.0, 1e-5)
    assert accounting.epsilon(sigma, 0.5, 1, delta, windows=2) <= wanted
    assert accounting.epsilon(sigma / 1.02, 0.5, 1, delta, windows=2) > wanted
