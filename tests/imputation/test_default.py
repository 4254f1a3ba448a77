"""The default imputer: chosen without peeking, one statement for base and diffusion, the same fillings after a save."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedenergy import imputation as imp
from fedenergy.imputation import blend, default, dp_gp, joint, kriging
from fedenergy.imputation.base import Guide, Linear, inputs_of
from fedenergy.imputation.guided import Guided
from fedenergy.imputation.model import Model
from fedenergy.privacy.accounting import History, Steps

SLOTS, T = 6, 12
LIMITS = (0.0, 3.0)
NET = imp.DiTConfig(T, 1, patch=3, width=16, depth=1, heads=2)


def windows(n: int = 60, seed: int = 0) -> imp.Windows:
    rng = np.random.default_rng(seed)
    day = 0.3 + 0.1 * np.cos(np.arange(T) * 2 * np.pi / SLOTS)
    return imp.Windows(day * rng.gamma(4.0, 0.25, (n, 1)) + 0.02 * rng.random((n, T)), SLOTS, homes=("a", "b") * (n // 2))


def base(epsilon: float = 2.0) -> Guided:
    return Guided(dp_gp.fit(windows(), epsilon, cap=LIMITS[1], typical=0.3))


def trained(steps: int = 2, privacy: imp.DPSGD | None = None, over: Guided | None = None, **more) -> Model:
    return imp.train(windows(), None, imp.Objective("x0", late=0.5), privacy, steps=steps, batch=10, seed=0,
                     base=over or base(), limits=LIMITS, residual_scale=0.3, **{"net": NET, **more})


def test_contract_the_choice_reads_public_quantities_only():
    assert default.choose(127, 10.0, steps_per_day=24) == "blend"
    assert default.choose(12_000, 2.0, kind="homes", steps_per_day=48) == "dp_gp"
    assert default.choose(98, 2.0, kind="homes", steps_per_day=48) == "simulated"
    assert default.choose(98, 2.0, kind="homes", length=24, steps_per_day=24) == "simulated"
    assert default.choose(98, 2.0, kind="homes", length=96, steps_per_day=144) == "blend"
    with pytest.raises(ValueError, match="kind"):
        default.choose(1, 1.0, kind="cars")


def test_contract_each_choice_fits_and_states_what_it_cost():
    found = default.fit(windows(), 2.0, limits=LIMITS)
    assert (found.choice, found.epsilon) == ("blend", found.base.privacy.epsilon)
    assert isinstance(found.base, blend.Blend)
    few = imp.Windows(np.full((6, 96), 0.2), 48, homes=("a", "b", "c") * 2)
    found = default.fit(few, 2.0, limits=LIMITS, kind="homes", unit="household")
    assert (found.choice, found.epsilon, found.privacy) == ("simulated", 0.0, default.FREE)
    seen = imp.outage(0.5).observed(6, 96)
    mean, median = found.points(few.values, seen, few.time_of_day)
    assert np.array_equal(mean[seen], few.values[seen])
    assert (median <= mean + 1e-12).all()


def test_contract_the_guide_fills_as_its_base_and_reads_no_hidden_value():
    guided, data = base(), windows(8, 1)
    assert isinstance(guided, Guide)
    assert inputs_of(guided, 1) == 6
    seen = imp.blocks(0.5, 2, 3).observed(8, T)
    cues = guided.guide(data.values, seen, data.time_of_day)
    again = guided.guide(np.where(seen, data.values, np.nan), seen, data.time_of_day)
    np.testing.assert_allclose(cues.filling, guided.fill(data.values, seen), rtol=1e-3)
    assert np.array_equal(cues.columns, again.columns)
    assert cues.columns.shape == (8, T, guided.columns)
    assert np.isfinite(cues.columns).all()
    assert (cues.spread[seen] == 0).all()
    assert (cues.spread[~seen] > 0).all()


def test_contract_before_training_the_model_is_its_base():
    guided, data = base(), windows(8, 2)
    model = trained(1, over=guided, rate=1e-12)
    seen = imp.outage(0.5).observed(8, T)
    filled = imp.fill(model, data, seen, samples=2, steps=1)
    np.testing.assert_allclose(filled.mean, guided.fill(data.values, seen), rtol=2e-3, atol=1e-5)


def test_contract_a_saved_model_holds_its_base_and_fills_the_same(tmp_path):
    data, seen = windows(8, 3), imp.outage(0.5).observed(8, T)
    gap = kriging.fit(windows(), 2.0, limits=LIMITS)
    for name, over in (("guided", base()), ("free", base(math.inf)), ("kriging", gap)):
        model = trained(over=over, rate=1e-2)
        again = Model.load(model.save(tmp_path / name))
        assert again.base.privacy == over.privacy
        for a, b in zip(*(imp.fill(m, data, seen, samples=2, steps=2).quantiles.values() for m in (model, again))):
            assert np.array_equal(a, b)
    assert not list(tmp_path.rglob("*.pkl"))


def test_contract_one_statement_for_base_and_steps():
    guided = base()
    model = trained(3, imp.DPSGD(clip=1.0, sigma=2.0), guided)
    total = model.total
    assert total.epsilon == joint.epsilon_of(guided.privacy.rho, model.history, 1e-5)
    assert max(guided.privacy.epsilon * 0.9, model.privacy.replace_one) < total.epsilon
    assert total.epsilon <= guided.privacy.epsilon + model.privacy.replace_one
    assert f"base and diffusion together: epsilon {total.epsilon:.4g}" in str(model.privacy)
    assert "replace-one" in str(total)
    assert total.household == guided.privacy.household + model.privacy.household
    assert math.isinf(trained(1).total.epsilon)
    assert trained(1, imp.DPSGD(clip=1.0, sigma=2.0), Linear()).total is None


def test_contract_tuning_trains_the_last_layer_within_epsilon():
    start = trained()
    tuned = default.tune_head(start, windows(), 4.0, 1e-5, steps=2, batch=20, rate=1e-2, clip=0.5)
    assert tuned.total.epsilon <= 4.0
    changed = {k for k, v in tuned.net.state_dict().items() if not np.array_equal(v, start.net.state_dict()[k])}
    assert changed == {"out.weight", "out.bias"}
    with pytest.raises(ValueError, match="fit it at less"):
        joint.calibrate(1.0, 1.0, 1e-5, 0.1, 5)


def test_contract_the_share_of_simulated_homes_grows_with_the_noise():
    """level .1 at distance .1: half of each; no noise, or distance 0: its own."""
    other, gp = base().gp, replace(base(4.0).gp, level=0.1)
    np.testing.assert_allclose(default.mixed(gp, other, 0.1).correlation, (gp.correlation + other.correlation) / 2)
    assert np.array_equal(default.mixed(replace(gp, level=0.0), other, 0.1).correlation, gp.correlation)
    assert np.array_equal(default.mixed(gp, other, 0.0).correlation, gp.correlation)


def test_contract_a_diffusion_moves_to_another_base_of_its_shape():
    residual, other = trained(), base(4.0).gp
    found = default.Default("dp_gp", other, default.over(residual, other), 4.0, "")
    data, seen = windows(6, 4), imp.outage(0.5).observed(6, T)
    mean, median = found.points(data.values, seen, data.time_of_day)
    assert np.array_equal(mean[seen], data.values[seen])
    assert (median[~seen] >= 0).all()
    with pytest.raises(ValueError, match="same limits"):
        default.over(residual, replace(other, cap=2.0))


def test_oracle_the_base_as_a_step_is_the_gaussian_curve():
    """rho .5 is mu 1: delta(epsilon) = Phi(1/2 - epsilon) - e^epsilon Phi(-1/2 - epsilon) (Balle and Wang 2018)."""
    found = joint.epsilon_of(0.5, [], 1e-5)
    assert norm.cdf(0.5 - found) - math.exp(found) * norm.cdf(-0.5 - found) <= 1e-5
    assert norm.cdf(0.5 - found * 0.98) - math.exp(found * 0.98) * norm.cdf(-0.5 - found * 0.98) > 1e-5
    sigma = joint.calibrate(4.0, 0.1, 1e-5, 0.1, 20)
    history = History([Steps(sigma, 0.1, 20)], None)
    assert 3.9 < joint.epsilon_of(0.1, history, 1e-5) <= 4.0


@pytest.mark.parametrize("kind", ["homes", "other"])
@pytest.mark.parametrize("limits", [(0.0, math.inf), (1.0, 1.0), (math.nan, 3.0)])
def test_nonsense_limits_are_refused_whatever_is_chosen(kind, limits):
    with pytest.raises(ValueError, match="not two finite numbers in ascending order"):
        default.fit(imp.Windows(np.full((5, 96), 0.2), 48), 2.0, limits=limits, kind=kind)


def test_too_small_an_epsilon_takes_what_is_free():
    found = default.fit(imp.Windows(np.full((5, 96), 0.2), 48), 0.001, limits=(0.0, 3.0), kind="homes")
    assert (found.choice, found.epsilon) == ("simulated", 0.0)


def test_without_a_time_of_day_windows_start_where_the_training_windows_did():
    noon = imp.Windows(np.random.default_rng(0).gamma(2.0, 0.1, (20, 96)), 48, np.full(20, 24))
    found = default.fit(noon, 2.0, limits=(0.0, 3.0), kind="homes")
    seen = imp.outage(0.5).observed(20, 96)
    told, alone = (found.points(noon.values, seen, time) for time in (noon.time_of_day, None))
    assert np.array_equal(told[0], alone[0])
    assert not np.array_equal(found.points(noon.values, seen, imp.Windows(noon.values, 48).time_of_day)[0], alone[0])
    several = default.fit(imp.Windows(noon.values, 48, np.arange(20)), 2.0, limits=(0.0, 3.0), kind="homes")
    with pytest.raises(ValueError, match="give time_of_day"):
        several.points(noon.values, seen)
