"""The DP-aware AdaLN-Zero study: cells, files, costs from what ran, verdicts that can fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedenergy import studies
from fedenergy.errors import ConfigError
from fedenergy.imputation.limits import AdaLNBound
from fedenergy.privacy import accounting
from fedenergy.progress import SilentProgress
from simulations.adaln import claims, data, measure, runs
from simulations.adaln.settings import ABLATION, PLAIN, PUBLISHED, TRUE, Fit
from simulations.adaln_zero import AdaLNZero
from simulations.pages import FAILS, HOLDS, OPEN_QUESTION

torch.set_num_threads(1)
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("adaln_*.toml"))
SMALL = AdaLNZero(name="adaln", datasets=("simulated",), limits=("none", "medium"), sigmas=(0.2,), epsilons=(10.0,),
                  seeds=(0,), width=16, depth=1, heads=2, patch=24, steps=6, batch=24, warmup=2, ema=0.5, samples=3,
                  ddim_steps=4, test_windows=4, probes=4, checkpoint_every=0, reference=(3.0, 0.5, 0.5, 0.5), threads=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny run."""
    place = studies.Place("", str(tmp_path_factory.mktemp("runs")))
    return place, studies.run(SMALL, place, SilentProgress())


def test_smoke_a_run_leaves_its_files_and_the_same_bytes_again(finished, tmp_path):
    _, first = finished
    names = ("metrics.csv", "cells.csv", "table.csv", "costs.csv", "gradients_lab_only.csv")
    second = studies.run(SMALL, studies.Place("", str(tmp_path)), SilentProgress())
    assert first.page == first.folder / "report.html"
    for name in names:
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    metrics, cells = (pd.read_csv(first.folder / name) for name in ("metrics.csv", "cells.csv"))
    assert tuple(metrics.columns) == studies.HEADER
    assert {"dataset", "pattern", "rate", "objective", "regime", "limits"} <= set(cells.columns)
    assert set(metrics["cell"]) == set(cells["cell"])
    assert set(metrics["metric"]) == {"rmse", "mae", "mse", "r2", "coverage"}
    assert "p99" not in set(metrics["metric"])                       # private statistics stay out of it
    text = first.page.read_text()
    for words in ("no privacy", "Seeded noise: not private", "a private statistic that DP-SGD does not cover", "0.423"):
        assert words.lower() in text.lower()
    assert list((first.folder / "figures").glob("*.png"))


def test_contract_a_resumed_run_trains_nothing(finished, monkeypatch):
    _, first = finished
    before = (first.folder / "metrics.csv").read_bytes()
    monkeypatch.setattr(runs, "cell", lambda *_: pytest.fail("a finished cell ran again"))
    again = studies.resume(first.folder, SilentProgress())
    assert (again.folder / "metrics.csv").read_bytes() == before


def test_contract_studies_beside_each_other_share_their_cells(finished, tmp_path, monkeypatch):
    """Another study of the same settings trains only what the first did not: one limit more."""
    place, first = finished
    trained, cell = [], runs.cell
    monkeypatch.setattr(runs, "cell", lambda study, fit, *more: trained.append(fit) or cell(study, fit, *more))
    other = replace(SMALL, name="other", title="Other", limits=("medium", "tight"), epsilons=(), small=True)
    done = studies.run(other, place, SilentProgress())
    assert [fit.limits for fit in trained] == ["tight"]
    rows = [pd.read_csv(folder / "table.csv").query("limits == 'medium' and asked == 0.2") for folder in
            (first.folder, done.folder)]
    pd.testing.assert_frame_equal(*(part.reset_index(drop=True) for part in rows))


def test_statistical_the_reference_is_what_a_model_without_limits_reaches_at_the_cells_noise(tmp_path):
    """Trained alike on the simulated home (its own seed and noise, no limits): quantiles of that very model; noise changes
    them; the config's own come before."""
    study = replace(SMALL, reference=(), epsilons=(), non_private=True)
    one, known = data.load(study, "simulated", ""), {}
    loud = Fit("simulated", "medium", "eps", PUBLISHED, 0.2, 1.0, 0)
    plain = replace(loud, limits="none", regime=PLAIN, asked=0.0)
    found = [runs.reference_for(study, fit, one, tmp_path, known) for fit in (loud, plain)]
    assert found[0] != found[1]
    assert list(known) == [(PUBLISHED, 0.2, 1.0, "eps"), (PLAIN, 0.0, 1.0, "eps")]
    fit = replace(loud, limits="none")
    model, _ = runs.trained(study, fit, one, None, Path(), SilentProgress(), runs.privacy(study, fit))
    sizes = measure.magnitudes(study, model, data.scaled(one.train, *one.units(False)))
    assert {name: getattr(found[0], name) for name in measure.MAGNITUDES} == pytest.approx(
        {name: max(values[1], 1e-3) for name, values in sizes.items()}, rel=1e-6)
    assert runs.reference_for(SMALL, loud, one, tmp_path, {}) == AdaLNBound(3.0, 0.5, 0.5, 0.5)


def test_hours_leave_the_rest_not_run(finished, tmp_path):
    """No cell is begun: the page says so, and that the source's claims were not tested."""
    _, first = finished
    study = replace(SMALL, name="short", hours=1e-9)
    done = studies.run(study, studies.Place("", str(tmp_path)), SilentProgress())
    assert any("4 of 4 trainings" in line and "not run" in line for line in done.lines)
    claims_of = pd.read_csv(done.folder / "what_holds.csv")
    assert set(claims_of[~claims_of["own"]]["ours"]) == {"not run"}
    assert len(claims_of[~claims_of["own"]]) == len(claims.SOURCE)
    again = pd.read_csv(first.folder / "what_holds.csv")
    tested = again[again["ours"] != "not run"]
    assert "Training at σ 0.03 to 0.2 carries rigorous privacy guarantees." in set(tested["claim"])
    assert "not run" in set(again["ours"])                           # no ablation in this study


@pytest.mark.slow
def test_full_size_runs_twenty_steps_and_resumes(tmp_path):
    """The published config as it is but for its data set (simulated), steps, samples: cut in step 15, resumed from step 10,
    the same bytes as in one go."""
    class Stop(SilentProgress):
        count = 0

        def advance(self, n=1, **_):
            self.count += n
            if self.count >= 15:
                raise KeyboardInterrupt
    full, _ = studies.load(Path(__file__).parents[2] / "configs" / "adaln_published.toml")
    study = replace(full, datasets=("simulated",), limits=("medium",), sigmas=(0.2,), seeds=(0,), steps=20,
                    checkpoint_every=10, samples=1, ddim_steps=2, test_windows=1, probes=1, reference=(8.0, 1.0, 0.5, 0.5),
                    batch=16, threads=1)
    assert (study.width, study.depth, study.length, study.patch) == (256, 8, 168, 4)
    place = studies.Place("", str(tmp_path / "stopped"))
    with pytest.raises(KeyboardInterrupt):
        studies.run(study, place, Stop())
    stopped = studies.resume(place.folder(study), SilentProgress())
    whole = studies.run(study, studies.Place("", str(tmp_path / "whole")), SilentProgress())
    assert (stopped.folder / "metrics.csv").read_bytes() == (whole.folder / "metrics.csv").read_bytes()
    assert "hours" in dict(study.check(place))["estimated"]


def test_contract_an_interrupted_cell_goes_on_where_it_stood(tmp_path):
    """Stopped in step 5, with a checkpoint after step 4: the same bytes as without the stop, norms included."""
    class Stop(SilentProgress):
        count = 0

        def advance(self, n=1, **_):
            self.count += n
            if self.count >= 5:
                raise KeyboardInterrupt

    study = replace(SMALL, limits=("medium",), epsilons=(), checkpoint_every=2)
    place = studies.Place("", str(tmp_path / "stopped"))
    with pytest.raises(KeyboardInterrupt):
        studies.run(study, place, Stop())
    assert list(place.folder(study).glob("state/*/training.json"))
    stopped = studies.resume(place.folder(study), SilentProgress())
    whole = studies.run(study, studies.Place("", str(tmp_path / "whole")), SilentProgress())
    for name in ("metrics.csv", "gradients_lab_only.csv"):
        assert (stopped.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not (stopped.folder / "state").exists()


def test_contract_costs_are_those_of_the_steps_that_ran(finished):
    costs = pd.read_csv(finished[1].folder / "costs.csv")
    for row in costs.itertuples():
        assert row.epsilon == pytest.approx(accounting.epsilon(row.sigma, row.q, row.steps, SMALL.delta), rel=1e-4)
        assert row.hour == pytest.approx(accounting.epsilon(row.sigma, row.q, row.steps, SMALL.delta, windows=7), rel=1e-4)
        assert row.steps == SMALL.steps
    true = costs[costs["regime"] == TRUE]
    assert (true["epsilon"] <= 10.0).all()
    assert set(costs[costs["regime"] == PUBLISHED]["sigma"]) == {0.2}


def test_check_runs_nothing_and_says_what_it_costs(tmp_path):
    rows = dict(SMALL.check(studies.Place("", str(tmp_path))))
    assert "no privacy" in rows["simulated, σ 0.2"]
    assert "7 windows" in rows["simulated, σ 0.2"]
    assert rows["simulated, cells"].startswith("4 trainings; those")
    more = dict(replace(SMALL, reference=()).check(studies.Place("", str(tmp_path))))
    assert more["simulated, cells"].startswith("4 trainings; 2 more for reference magnitudes")
    assert "data absent" in dict(replace(SMALL, datasets=("etth1",)).check(studies.Place(str(tmp_path))))["etth1"]
    assert not list(tmp_path.iterdir())


def test_data_absent_is_said_on_the_page(tmp_path):
    done = replace(SMALL, datasets=("etth1",)).run(studies.Place(str(tmp_path), str(tmp_path)), SilentProgress())
    assert done.lines == ["etth1: not run: data absent"]
    assert "data absent" in done.page.read_text()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_read_and_has_a_toy(path):
    study, _ = studies.load(path, quick=True)
    assert study.name.endswith("-quick")
    assert study.small
    assert len(runs.fits(study, study.datasets[0])) <= 16
    full, _ = studies.load(path)
    assert (full.steps, full.batch, full.rate, full.weight_decay, full.ema) == (20_000, 96, 7e-4, 2e-5, 0.999)
    assert (full.length, full.stride, full.warmup, full.diffusion_steps) == (168, 24, 1000, 1000)


@pytest.mark.parametrize(("key", "value", "words"), [
    ("limits", ("medum",), "medum"), ("limits", ("none, hard",), "none"), ("datasets", ("mars",), "mars"),
    ("reference", (1.0, 2.0), "reference"), ("sigmas", (0.0,), "sigma"), ("objectives", ("y",), "y"), ("patch", 5, "patch"),
    ("seeds", (1, 1), "seeds"), ("horizon", 168, "horizon"), ("scaling", "none", "scaling")])
def test_mistakes_are_named(key, value, words):
    with pytest.raises(ValueError, match=words):
        replace(SMALL, **{key: value})


def test_a_mistyped_key_is_refused(tmp_path):
    (tmp_path / "bad.toml").write_text('use = "simulations.adaln_zero:AdaLNZero"\nsigma = [0.2]\n')
    with pytest.raises(ConfigError, match="sigmas"):
        studies.load(tmp_path / "bad.toml")


# ---- data and measures

def test_golden_sets_are_split_by_time_and_scaled_by_the_training_part():
    one = data.load(SMALL, "simulated", "")
    values, *_ = data.read("simulated", "")
    part = values[:int(0.7 * len(values))]
    np.testing.assert_allclose(one.mean, part.mean(0))
    assert len(one.train) == (len(part) - 168) // 24 + 1
    np.testing.assert_array_equal(one.train.values[1], values[24:192])
    assert len(one.test) == 4
    inside = sum(1 for start in range(0, len(part) - 167, 24) if start <= 300 < start + 168)
    assert inside == runs.overlap(SMALL) == 7                        # a reading in the middle
    z = one.score_units(one.train.values)
    assert abs(z.mean()) < 0.2
    centre, _ = one.units(public=True)
    assert not np.allclose(centre, one.mean)
    hidden = ~data.training_masks(SMALL).observed(2_000, 168, 7, np.random.default_rng(0))
    assert hidden.sum((1, 2)).min() == data.least_hidden(SMALL, 7) == round(0.1 * 168 * 7)


def test_golden_scores():
    """Two hidden values 1 and 3 (sd 1, mean 0): filled 2 and 2, errors 1 and 1; around their mean: 1 and 1, so R2 = 0."""
    truth = np.array([[[5.0], [1.0], [3.0]]])
    one = data.Set("simulated", *[runs.imp.Windows(truth)] * 3, np.zeros(1), np.ones(1), "")
    filled = np.array([[[5.0], [2.0], [2.0]]])
    observed = np.array([[[True], [False], [False]]])
    found = measure.scores(one, filled, observed, filled - 1.5, filled + 0.5)
    assert (found["rmse"], found["mae"], found["r2"], found["coverage"]) == (1.0, 1.0, 0.0, 0.5)


def test_oracle_the_sampler_sees_the_models_own_units():
    """A net that answers with what it is shown: the base, the [0, 1] units and the mask cancel out."""
    one = data.load(SMALL, "simulated", "")
    fit = Fit("simulated", "none", "x0", PLAIN, 0.0, 1.0, 0)
    model, _ = runs.trained(replace(SMALL, objectives=("x0",)), fit, one, None, Path(), SilentProgress(), None)
    windows = data.scaled(one.test, *one.units(False))

    class Echo(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unused, self.seen = torch.nn.Parameter(torch.zeros(1)), []

        def forward(self, x_t, t, observed, mask):
            self.seen.append((observed, mask))
            return torch.full_like(x_t, 2.5)

    echo = Echo()
    observed = data.test_masks(SMALL, one.test)["forecasting"]
    filled = measure.fill(SMALL, replace(model, net=echo), windows, observed, 0, 6.0)
    np.testing.assert_allclose(filled.median[~observed], 2.5, atol=1e-4)
    shown, mask = echo.seen[0]
    np.testing.assert_allclose(shown[::SMALL.samples].numpy(), np.where(observed, windows.values, 0.0), atol=1e-4)
    assert (mask[::SMALL.samples].numpy() == observed).all()


def test_contract_the_limits_of_a_cell_reach_its_network(finished):
    one = data.load(SMALL, "simulated", "")
    limits = AdaLNBound(*SMALL.reference)
    hard = AdaLNBound(c=2.25, soft=False)
    for name, wanted in (("none", None), ("medium", limits.scaled(0.9)), ("tight, c only, hard", hard)):
        fit = Fit("simulated", name, "eps", PUBLISHED, 0.2, 1.0, 0)
        model, norms = runs.trained(SMALL, fit, one, runs.bound_of(name, limits), Path(), SilentProgress(),
                                    runs.privacy(SMALL, fit))
        assert model.setup.net.bound == wanted
        assert len(norms.total) == sum(model.history.batches[5:])
        assert model.setup.schedule == "linear"
    sizes = pd.read_csv(finished[1].folder / "sizes_lab_only.csv").set_index("limits")
    assert (sizes.loc["medium", "c"] <= 2.7 * (1 + 1e-6)).all()
    assert np.isinf(sizes.loc["none", "bound"]).all()
    assert (sizes.loc["medium", "largest"] <= sizes.loc["medium", "bound_met"]).all()
    assert (sizes.loc["medium", "bound_met"] <= sizes.loc["medium", "bound"]).all()


# ---- verdicts

def rows_of(values: dict[str, float], regime: str = PUBLISHED, asked: float = 0.05) -> pd.DataFrame:
    """Rows of one data set, forecasting, by limits."""
    return pd.DataFrame([{"dataset": "household", "limits": name, "objective": "eps", "regime": regime, "asked": asked,
                          "clip": 1.0, "seed": 0, "task": "forecasting", "rmse": value} for name, value in values.items()])


def verdict(found: runs.Results, study: AdaLNZero, words: str) -> str:
    return next(c.verdict for c in claims.claims_of(study, found) if words in c.claim)


def results_of(rows: pd.DataFrame, epsilon: float = 1e5, gradients: pd.DataFrame | None = None) -> runs.Results:
    costs = pd.DataFrame({"regime": [PUBLISHED], "epsilon": [epsilon]})
    return runs.Results({}, rows, pd.DataFrame() if gradients is None else gradients, costs=costs)


@pytest.mark.parametrize(("with_limits", "expected"), [(0.4, HOLDS), (0.498, FAILS), (0.6, FAILS)])
def test_golden_the_error_claims_follow_the_errors(with_limits, expected):
    found = results_of(rows_of({"none": 0.5, "medium": with_limits}))
    assert verdict(found, SMALL, "forecasting error") == expected
    assert verdict(found, SMALL, "consistently") == expected
    claim = next(c for c in claims.claims_of(SMALL, found) if "forecasting error" in c.claim)
    assert f"0.5 → {with_limits:.3g}" in claim.ours
    assert "0.423" in claim.source
    assert verdict(found, SMALL, "rigorous") == FAILS
    assert verdict(results_of(found.rows, epsilon=9.0), SMALL, "rigorous") == HOLDS


def test_golden_the_ablation_claims_follow_the_order():
    study = replace(SMALL, limits=("none", "medium, c only", "medium, modulation only", "medium", "medium, hard"))
    names = dict(zip(ABLATION, study.limits))
    published = results_of(rows_of({names[scope]: value for scope, value in ABLATION.items()} | {"medium, hard": 2.5}))
    for words in ("together", "on c alone", "hard clamp"):
        assert verdict(published, study, words) == HOLDS
    reverse = results_of(rows_of({names[scope]: 5 - value for scope, value in ABLATION.items()} | {"medium, hard": 1.0}))
    for words in ("together", "on c alone", "hard clamp"):
        assert verdict(reverse, study, words) == FAILS


def test_golden_the_gradient_claims_follow_the_norms():
    def gradients(p99: float, eta: float, clipped: float) -> pd.DataFrame:
        shared = {"dataset": "household", "objective": "eps", "regime": PUBLISHED, "asked": 0.2, "clip": 1.0, "seed": 0}
        return pd.DataFrame([shared | {"limits": limits, "part": part, "p99": value, "eta": e, "clipped": c}
                             for limits, tail, e, c in (("none", 64.5, 0.5, 0.9), ("medium", p99, eta, clipped))
                             for part, value in (("total", 70.0), ("conditioning", tail), ("rest", 10.0))])
    rows = rows_of({"none": 0.5, "medium": 0.4}, asked=0.2)
    good, bad = (results_of(rows, gradients=gradients(*x)) for x in ((54.8, 0.6, 0.91), (70.0, 0.4, 0.5)))
    for words in ("shorten the tail", "hardly elsewhere", "stays similar", "less severe"):
        assert verdict(good, SMALL, words) == HOLDS
        assert verdict(bad, SMALL, words) == FAILS


def test_golden_limits_that_nothing_reaches_are_said_not_to_act():
    rows, study = rows_of({"none": 0.5, "medium": 0.4}), SMALL
    for size, expected in ((0.1, FAILS), (10.0, HOLDS)):
        found = results_of(rows)
        found.reference = {(PUBLISHED, 0.05, 1.0, "eps"): AdaLNBound(1.0, 1.0, 1.0, 1.0)}
        found.sizes = pd.DataFrame([{"limits": "none", "regime": PUBLISHED, "asked": 0.05, "clip": 1.0, "objective": "eps",
                                     "bound": np.inf,
                                     **dict.fromkeys(measure.MAGNITUDES, size)}])
        assert verdict(found, study, "The limits (medium) act") == expected
        assert verdict(found, study, "consistently") == (HOLDS if expected == HOLDS else OPEN_QUESTION)


def test_golden_without_privacy_medium_limits_may_lose_two_percent():
    for value, expected in ((1.015, HOLDS), (1.03, FAILS)):
        found = results_of(rows_of({"none": 1.0, "medium": value}, PLAIN, 0.0))
        assert verdict(found, SMALL, "medium limits lose nothing") == expected
    assert math.isclose(claims.NOTHING, 1.02)


@pytest.mark.data
def test_data_the_household_set_is_hours_of_seven_channels(data_dir):
    values, steps_per_day, _ = data.read("household", str(data_dir))
    assert (values.shape[1], steps_per_day) == (7, 24)
    assert 34_000 < len(values) < 35_000
    assert 0.5 < np.nanmean(values[:, 0]) < 2.0                      # kWh an hour: a mean of about 1.1 kW
    assert np.nanmin(values[:, 5]) > 200
    assert np.nanmax(values[:, 5]) < 260
