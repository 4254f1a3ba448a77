"""DP-SGD: noise on the sum, the expected batch as divisor, empty batches, the sampler, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from fedenergy.imputation.bookkeeping import Clip
from fedenergy.imputation.dit import DiT, DiTConfig
from fedenergy.imputation.dpsgd import (
    CACHED,
    CHUNK,
    DPSGD,
    PrivateGradient,
    SecureGaussian,
    SeededGaussian,
    chunks_of,
    gaussian,
    records_at_once,
)
from fedenergy.privacy import accounting
from tests.imputation.toys import NETS, Batch, by_hand, make

GOLDEN = [0, 1, 6]                      # the batch of seed 1, step 0, for n = 10, q = 0.5


def flat(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()])


class NoNoise:
    stamp = "none"

    def add(self, total, deviation, step):
        pass


@pytest.mark.parametrize("noise", ["simulation", "secure"])
@pytest.mark.parametrize("name", NETS)
def test_statistics_noise_level_on_zero_gradients(name, noise):
    """Empty batches release noise only: standard deviation sigma * C / expected batch, within 5 %."""
    net = make(name)
    step = PrivateGradient(net, DPSGD(clip=0.5, sigma=2.0), 2.0, 8.0, gaussian(noise, 3))
    draws = []
    while sum(map(len, draws)) < 20_000:
        losses, norms = step.step([], len(draws))
        assert len(losses) == len(norms) == 0
        draws.append(flat(net).clone())
    values = torch.cat(draws).numpy()
    assert values.std() == pytest.approx(2.0 * 0.5 / 8.0, rel=0.05)
    assert abs(values.mean()) < 5 * values.std() / len(values) ** 0.5
    assert stats.kurtosis(values) == pytest.approx(0.0, abs=0.2)
    assert stats.kstest(values / 0.125, "norm").pvalue > 1e-3
    assert all((a[:50] != b[:50]).any() for a, b in pairwise(draws))


def test_contract_the_sum_is_divided_by_the_expected_batch():
    net, batch = make("dit"), Batch(6)
    wanted, _ = by_hand(net, batch, Clip(0.1))
    step = PrivateGradient(net, DPSGD(clip=0.1, sigma=1.0), 1.0, 32.0, NoNoise())
    step.step([(lambda: batch.losses(net), 6)], 0)
    torch.testing.assert_close(flat(net), wanted / 32.0, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("engine", ["bookkeeping", "opacus"])
def test_contract_chunks_change_nothing(engine):
    net, batch = make("dit"), Batch(7, draws=2)
    step = PrivateGradient(net, DPSGD(clip=0.1, sigma=1.0, engine=engine), 1.0, 8.0, NoNoise())
    results = []
    for size in (7, 3, 1):
        def part(at):
            piece = batch.part(list(at))
            return lambda: piece.losses(net)

        losses, norms = step.step(chunks_of(np.arange(7), part, size), 0)
        results.append((flat(net).clone(), losses, norms))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    step.close()


def test_contract_neighbouring_sums_differ_by_at_most_the_sensitivity():
    net, batch = make("dit soft bound"), Batch(6)
    privacy = DPSGD(clip=0.05, sigma=1.0)
    step = PrivateGradient(net, privacy, 1.0, 8.0, NoNoise())
    whole = step.clipped_sum([(lambda: batch.losses(net), 6)])[0].clone()
    piece = batch.part([0, 1, 2, 3, 4])
    less = step.clipped_sum([(lambda: piece.losses(net), 5)])[0].clone()
    distance = (whole - less).double().norm()
    assert distance <= privacy.sensitivity * (1 + 1e-5)
    assert distance == pytest.approx(privacy.sensitivity, rel=1e-3)          # this record is clipped: the bound is met


def test_contract_seeded_noise_is_named_by_step_and_stamped():
    def draws(source, step):
        total = torch.zeros(64)
        source.add(total, 1.0, step)
        return total

    assert torch.equal(draws(SeededGaussian(1), 5), draws(SeededGaussian(1), 5))
    assert not torch.equal(draws(SeededGaussian(1), 5), draws(SeededGaussian(1), 6))
    assert not torch.equal(draws(SeededGaussian(1), 5), draws(SeededGaussian(2), 5))
    assert SeededGaussian(1).included(10, 0.5, 0).tolist() == GOLDEN
    assert np.array_equal(SeededGaussian(1).included(100, 0.3, 7), SeededGaussian(1).included(100, 0.3, 7))
    assert SeededGaussian.stamp == "seeded noise: not private"
    assert SecureGaussian.stamp == ""
    with pytest.raises(TypeError):
        SecureGaussian(1)
    assert not torch.equal(draws(SecureGaussian(), 5), draws(SecureGaussian(), 5))


@pytest.mark.parametrize("noise", ["simulation", "secure"])
def test_contract_noise_does_not_repeat_between_chunks(noise):
    total = torch.zeros(2 * CHUNK + 7)
    gaussian(noise, 0).add(total, 3.0, 1)
    first, second, last = total.split(CHUNK)
    assert float(total.std()) == pytest.approx(3.0, rel=0.01)
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.01
    assert (last != 0).all()


@pytest.mark.parametrize("noise", ["simulation", "secure"])
def test_statistics_poisson_sampler(noise):
    """Each record by its own coin: batch sizes are binomial, empty batches occur, inclusion is q for everyone."""
    source, n, q, steps = gaussian(noise, 11), 20, 0.1, 4000
    batches = [source.included(n, q, step) for step in range(steps)]
    sizes = np.bincount([len(b) for b in batches], minlength=n + 1)
    expected = stats.binom.pmf(np.arange(n + 1), n, q) * steps
    pooled = [*range(6), slice(6, None)]
    found, wanted = np.array([sizes[k].sum() for k in pooled]), np.array([expected[k].sum() for k in pooled])
    chance = 1e-3 if noise == "simulation" else 1e-7          # secure draws are new in every run
    assert stats.chisquare(found, wanted * found.sum() / wanted.sum()).pvalue > chance
    assert sizes[0] > 0
    each = np.bincount(np.concatenate(batches), minlength=n) / steps
    assert np.abs(each - q).max() < 5 * (q * (1 - q) / steps) ** 0.5
    pair = np.mean([0 in b and 1 in b for b in batches])
    assert pair == pytest.approx(q * q, abs=5 * (q * q / steps) ** 0.5)


@pytest.mark.parametrize(("shape", "privacy", "records", "draws", "at_once"), [
    ({}, {}, 32, 1, 16), ({}, {}, 35, 1, 12), ({}, {}, 32, 4, 4), ({}, {}, 0, 1, 256), ({}, {}, 17, 1, 256),
    ({}, {"engine": "opacus"}, 32, 1, 256), ({}, {"physical_batch": 8}, 32, 1, 8), ({}, {"physical_batch": 2}, 32, 4, 1),
    ({"patch": 8}, {}, 32, 1, 256), ({"width": 16, "heads": 2}, {}, 256, 1, 256)])
def test_golden_records_at_once(shape, privacy, records, draws, at_once):
    """The source's net at patch 1 makes 96 x 768 numbers of a row: 17 rows fit into 5 MB, and parts of a batch are equal."""
    with torch.device("meta"):
        net = DiT(DiTConfig(**{"depth": 1, **shape}))
    net.to_empty(device="cpu")
    assert records_at_once(net, DPSGD(sigma=1.0, **privacy), records, draws) == at_once
    assert CACHED // (4 * 96 * 768) == 17


def test_a_net_that_says_nothing_of_its_rows_is_not_split():
    assert records_at_once(torch.nn.Linear(4_096, 4_096), DPSGD(sigma=1.0), 300) == 256


def test_sigma_is_calibrated_or_given():
    assert DPSGD(sigma=1.5).noise_multiplier(0.1, 100) == 1.5
    sigma = DPSGD(epsilon=3.0).noise_multiplier(0.1, 200)
    assert 2.97 < accounting.epsilon(sigma, 0.1, 200, 1e-5) <= 3.0
    tight = DPSGD(epsilon=3.0, relation="replace-one").noise_multiplier(0.1, 200)
    assert tight > sigma
    assert accounting.epsilon(tight, 0.1, 200, 1e-5, relation="replace-one") <= 3.0


@pytest.mark.parametrize("bad", [
    dict(), dict(sigma=1.0, epsilon=1.0), dict(sigma=0.0), dict(sigma=float("nan")), dict(sigma=float("inf")),
    dict(epsilon=-1.0), dict(epsilon=float("inf")), dict(sigma=1.0, delta=0.0), dict(sigma=1.0, delta=1.0),
    dict(sigma=1.0, delta=2.0), dict(sigma=1.0, clip=0.0), dict(sigma=1.0, clip=float("inf")),
    dict(sigma=1.0, engine="fast"), dict(sigma=1.0, noise="none"), dict(sigma=1.0, clipping="soft"),
    dict(sigma=1.0, relation="replace"), dict(sigma=1.0, physical_batch=0)])
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError):
        DPSGD(**bad)
