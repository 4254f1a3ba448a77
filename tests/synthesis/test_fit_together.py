"""fit = "cell": one residual law and one trend kernel for all homes of a cell."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import genextreme

from fedenergy.synthesis import residual, stl
from fedenergy.synthesis.components import Recipe, remake
from fedenergy.synthesis.generate import synthesise
from fedenergy.synthesis.trend import ALPHA, TrendGP


def test_oracle_one_law_for_all(homes):
    rest = stl.decompose(np.log1p(homes.values[:6]))[2]
    found = residual.fit_together(rest, "gev")
    assert np.ptp(found.law.shape) == 0
    one = found.law.log_likelihood(rest).sum()
    shape, location, scale = genextreme.fit(rest.ravel(), found.law.shape[0], loc=found.law.location[0],
                                            scale=found.law.scale[0])
    assert one > genextreme.logpdf(rest.ravel(), shape, location, scale).sum() - 1e-2
    assert one < residual.fit(rest, "gev").law.log_likelihood(rest).sum()       # each its own fits better


@pytest.mark.parametrize("form", residual.FORMS)
def test_contract_one_home_together_is_itself(homes, form):
    rest = stl.decompose(np.log1p(homes.values[:1]))[2]
    normal = np.random.default_rng(0).standard_normal(rest.shape)
    np.testing.assert_allclose(residual.fit_together(rest, form).sample(normal), residual.fit(rest, form).sample(normal))


def test_empirical_draws_from_all_homes_of_the_cell(homes):
    rest = stl.decompose(np.log1p(homes.values[:3]))[2]
    drawn = residual.fit_together(rest, "empirical").sample(np.random.default_rng(0).standard_normal(rest.shape))
    assert set(drawn[0, 5::24]) <= set(rest[:, 5::24].ravel())
    assert not set(drawn[0, 5::24]) <= set(rest[0, 5::24])


def test_oracle_one_kernel_has_the_largest_summed_likelihood(homes):
    trend = stl.decompose(np.log1p(homes.values[:5]))[0]
    process = TrendGP(744)
    together, alone = process.fit_together(trend), process.fit(trend)
    assert len(set(together.kernel)) == len(set(together.scale)) == 1
    assert together.likelihood.sum() <= alone.likelihood.sum() + 1e-6
    values, _, _ = process.standardise(trend)
    hours = process.grid.astype(float)
    distance = np.abs(hours[:, None] - hours)
    z = np.sqrt(5) * distance / together.lengths[0, 1]
    kernel = together.scale[0] * (np.exp(-0.5 * (distance / together.lengths[0, 0]) ** 2) + (1 + z + z * z / 3) * np.exp(-z))
    kernel += ALPHA * np.eye(hours.size)
    expected = [-0.5 * (y @ np.linalg.solve(kernel, y) + np.linalg.slogdet(kernel)[1] + y.size * np.log(2 * np.pi))
                for y in values]
    np.testing.assert_allclose(together.likelihood, expected, rtol=1e-6)


def test_a_cells_homes_share_their_residual(homes):
    """Hourly scales of remade homes differ less within a cell than homes' own do."""
    cells = [np.arange(0, 60, 2), np.arange(1, 60, 2)]
    own, shared = (remake(homes, Recipe(fit=fit), 1, cells).values for fit in ("home", "cell"))

    def spread(values):
        scale = stl.decompose(np.log1p(values))[2].std(axis=1)
        return np.mean([scale[cell].std() / scale[cell].mean() for cell in cells])

    assert spread(shared) < 0.6 * spread(own)
    assert shared.mean() == pytest.approx(homes.values.mean(), rel=0.05)
    fake = synthesise(homes, seed=1, recipe=Recipe(fit="cell"))
    assert np.isfinite(fake.values).all()
