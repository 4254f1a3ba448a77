"""Contract: rounding, clipping, sensitivity and scale of the Laplace mechanism, in integers."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedenergy.privacy.mechanisms import Laplace, NoiseGrid, SimulationNoise
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.trust import Deposit, Plain, Release, check_envelope

CLIPS = st.floats(2.0**-200, 2.0**200) | st.floats(1e-3, 1e3)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e4, 1e4)
VECTORS = st.lists(NUMBERS, min_size=1, max_size=8).map(np.array)
INT64 = st.integers(-2**63, 2**63 - 1)
HUGE = np.finfo(float).max


def slow(values, step, bound):
    """Oracle: the rule of DESIGN.md, Envelopes, in fractions."""
    z = [round(Fraction(value) / Fraction(step)) for value in values]
    norm = sum(abs(k) for k in z)
    if norm <= bound:
        return z
    return [(1 if k > 0 else -1) * (abs(k) * bound // norm) for k in z]


@given(CLIPS)
@example(1.0)
@example(np.nextafter(2.0, 0))
@example(2.0)
@example(0.1)
def test_the_grid_is_fine_and_a_power_of_two(clip):
    grid = NoiseGrid(clip)
    mantissa, _ = np.frexp(grid.step)
    assert mantissa == 0.5
    assert 2**20 <= grid.bound < 2**21
    assert grid.bound * Fraction(grid.step) <= Fraction(clip) < (grid.bound + 1) * Fraction(grid.step)


@given(CLIPS, VECTORS)
@example(1.0, np.array([HUGE, -HUGE, HUGE]))
@example(2.0**-200, np.array([HUGE, 5e-324]))
@example(2.0**200, np.array([5e-324, -HUGE]))
@example(1.0, np.array([2.0**33, -2.0**33]))              # above the fast path: 2**53 grid steps
@example(1.0, np.array([2.0**20, 1.0]))                   # its very edge: 2**40 grid steps
def test_encode_keeps_the_l1_bound_exactly_and_equals_the_rule(clip, values):
    grid = NoiseGrid(clip)
    z = grid.encode(values)
    assert z.dtype == np.int64
    assert z.shape == values.shape
    assert sum(map(abs, z.tolist())) <= grid.bound
    assert z.tolist() == slow(values.tolist(), grid.step, grid.bound)
    assert grid.was_clipped(values) == (slow(values.tolist(), grid.step, 10**700) != z.tolist())


@given(st.lists(VECTORS.filter(lambda v: v.size >= 3).map(lambda v: v[:3]), min_size=1, max_size=5))
def test_a_shard_of_homes_equals_its_homes(rows):
    grid = NoiseGrid(50.0)
    assert grid.encode(np.array(rows)).tolist() == [grid.encode(row).tolist() for row in rows]
    assert grid.was_clipped(np.array(rows)).tolist() == [grid.was_clipped(row) for row in rows]


@given(st.lists(INT64, min_size=1, max_size=6), st.integers(0, 1_638_400))
@example([-2**63, -2**63, 2**63 - 1], 1_638_400)
def test_clip_never_wraps_around(values, bound):
    z = NoiseGrid(50.0).clip(np.array(values, np.int64), bound)
    assert z.tolist() == slow(values, 1, bound)
    assert sum(map(abs, z.tolist())) <= bound


@given(VECTORS, st.integers(0, 1_638_400))
def test_clipping_twice_is_within_the_smaller_bound(values, bound):
    grid = NoiseGrid(50.0)
    for z in (grid.encode(values, bound), grid.clip(grid.encode(values), bound)):
        assert np.abs(z).sum() <= bound
    assert grid.clip(grid.encode(values)).tolist() == grid.encode(values).tolist()


@given(st.data(), CLIPS, st.integers(1, 8))
def test_two_records_are_never_further_apart_than_the_sensitivity(data, clip, d):
    law, vector = Laplace(clip), st.lists(NUMBERS, min_size=d, max_size=d)
    one, other = (law.grid.encode(np.array(data.draw(vector))) for _ in range(2))
    assert np.abs(one - other).sum() <= law.grid_sensitivity("replace-one")
    assert np.abs(one).sum() <= law.grid_sensitivity("zero-out")


def test_the_sensitivity_is_reached():
    law = Laplace(50.0)
    one, other = law.grid.encode(np.array([50.0, 0.0])), law.grid.encode(np.array([-9e99, 0.0]))
    assert np.abs(one - other).sum() == law.grid_sensitivity() == 2 * 1_638_400


def test_scale_and_sensitivity_are_one_property():
    # C = 50 = 1.5625 * 2**5: g = 2**-15, K = 50 * 2**15 = 1,638,400
    law = Laplace(clip=50.0)
    assert (law.sensitivity(), law.sensitivity("zero-out")) == (100.0, 50.0)
    assert law.scale(100_000) == Fraction(2 * 1_638_400 * 10**6, 100_000)
    assert law.scale(100_000, "zero-out") == law.scale(100_000) / 2
    assert law.scale(3) == Fraction(2 * 1_638_400 * 10**6, 3)        # exact, no rounding of b
    assert law.scale_units(100_000) == pytest.approx(100.0 / 0.1)
    assert Laplace(0.1).sensitivity() <= 0.2


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_a_smaller_grant_costs_no_more_than_was_granted(one, other):
    granted, asked = sorted((one, other))
    law = Laplace(50.0)
    bound = law.grid.bound_for(granted, asked)
    spent = 2 * bound / law.scale(asked) * 10**6
    assert spent <= granted
    assert granted - spent < Fraction(asked, law.grid.bound)          # no more than one grid step is lost
    assert law.grid.bound_for(asked, asked) == law.grid.bound


def test_decode_is_exact_and_on_the_grid():
    grid = NoiseGrid(0.1)
    z = np.array([2**53, -(2**53), 1, 0, -3])
    assert [Fraction(v) for v in grid.decode(z).tolist()] == [k * Fraction(grid.step) for k in z.tolist()]


def test_the_envelopes_pass_the_outbound_gate():
    law, summary = Laplace(50.0), NoiseFree(np.array([10.0, -3.3, 0.0]))
    release = law.release(summary, SimulationNoise(1).source("h1", "q1"), 1_000_000)
    check_envelope(Release("h1", "q1", 1_000_000, release), "local", 3, law.grid.step, law.grid.bound)
    check_envelope(Deposit("h1", "q1", 1_000_000, law.deposit(summary)), "curator", 3, law.grid.step, law.grid.bound)
    check_envelope(Plain("h1", "q1", None, law.plain(summary)), "open", 3, law.grid.step, law.grid.bound)
    noise = law.noise(SimulationNoise(1).source("h1", "q1"), 1_000_000, 3)
    assert (release == law.grid.decode(law.deposit(summary) + noise)).all()
    assert law.plain(summary)[1].tolist() == [10.0, -3.3, 0.0]


def test_what_carries_no_noise_stays_wrapped():
    grid = NoiseGrid(50.0)
    assert isinstance(grid.encode(NoiseFree([1.0])), NoiseFree)
    assert isinstance(grid.clip(NoiseFree([1])), NoiseFree)


@pytest.mark.parametrize("clip", [0, -1.0, float("nan"), float("inf"), True, "50", 1e-300, 1e300])
def test_a_bound_is_a_positive_finite_number(clip):
    for kind in (NoiseGrid, Laplace):
        with pytest.raises(ValueError, match="clip"):
            kind(clip)


@pytest.mark.parametrize("summary", [
    [np.nan], [1.0, np.inf], [-np.inf], [], 1.0, [1j], ["a"], [True], [None], np.zeros((2, 0))])
def test_bad_summaries_are_refused_without_showing_them(summary):
    for use in (NoiseGrid(1.0).encode, NoiseGrid(1.0).was_clipped, Laplace(1.0).plain):
        with pytest.raises(ValueError, match="summary"):
            use(summary)


@pytest.mark.parametrize("bound", [-1, 2**21, 1.0, True])
def test_bad_bounds_are_refused(bound):
    with pytest.raises(ValueError, match="bound"):
        NoiseGrid(1.0).encode([1.0], bound)


def test_one_noise_never_covers_two_homes():
    for use in (Laplace(1.0).plain, lambda s: Laplace(1.0).release(s, SimulationNoise(1).source("h1", "q1"), 10**6)):
        with pytest.raises(ValueError, match="own noise"):
            use(np.ones((2, 3)))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="encode floats first"):
        NoiseGrid(1.0).clip(np.array([1.0]))
    with pytest.raises(ValueError, match="exceeds"):
        NoiseGrid(1.0).bound_for(2, 1)
    with pytest.raises(ValueError, match="granted_micro"):
        NoiseGrid(1.0).bound_for(0, 1)
    with pytest.raises(ValueError, match="replace-one"):
        Laplace(1.0).sensitivity("add-remove")
    for epsilon_micro, error in ((0, ValueError), (-5, ValueError), (0.1, TypeError), (True, TypeError)):
        with pytest.raises(error, match="epsilon_micro"):
            Laplace(1.0).scale(epsilon_micro)
