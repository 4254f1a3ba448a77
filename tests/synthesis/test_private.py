"""Private mode from end to end: what is charged and said, what crosses, what the zone can know."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest

from fedenergy import synthesis as syn
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.ledger import Ledger
from fedenergy.box.zone_store import ZoneStore
from fedenergy.errors import ConfigError
from fedenergy.federation import synthesising
from fedenergy.households.household import Household
from fedenergy.households.simulate import simulate_households
from fedenergy.privacy.gaussian import epsilon_of_rho, rho_micro
from fedenergy.synthesis import private_home as own
from fedenergy.synthesis import private_model as models
from fedenergy.synthesis.held import HeldHomes
from fedenergy.synthesis.private_draw import draw, standard_gev
from fedenergy.synthesis.private_plan import Budget, Constants

FEW = 24
DELTA = 1e-5
ASK = {"epsilon": 2.0, "delta": DELTA, "seed": 3, "tell": lambda words: None}


def homes(count=FEW, steps=336, seed=1):
    return simulate_households(count, steps=steps, seed=seed)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(model, ledger folder) of one run over 24 homes."""
    ledger = tmp_path_factory.mktemp("private") / "ledger"
    return syn.fit_private(homes(), ledger=ledger, **ASK), ledger


# -- what is spent -----------------------------------------------------------------------------------------------------

def test_every_home_is_charged_for_every_query(run):
    model, folder = run
    with Ledger(folder) as ledger:
        assert ledger.verify() == []
        rows = list(ledger.rows())
    assert len(rows) == FEW * 6
    assert {(row.unit, row.relation, row.mechanism, row.trust) for row in rows} == {
        ("household", "replace-one", "gaussian", "curator")}
    for home in homes().ids:
        mine = [row for row in rows if row.household == home]
        assert sum(row.rho_micro for row in mine) / 1e6 == pytest.approx(model.privacy["rho"])
        assert sum(row.epsilon_micro for row in mine) / 1e6 == pytest.approx(model.privacy["ledger"]["epsilon"])
        assert sum(row.delta for row in mine) <= DELTA


def test_the_statement_is_the_composition_of_what_ran(run):
    privacy = run[0].privacy
    rho = sum(query["rho"] for query in privacy["queries"])
    assert privacy["epsilon"] == epsilon_of_rho(round(rho * 1e6), DELTA)
    assert 1.99 < privacy["epsilon"] <= 2.0 < privacy["ledger"]["epsilon"]
    assert privacy["relation"] == "replace-one"
    assert privacy["noise"] == "seeded noise: not private"
    assert [query["answers"] for query in privacy["queries"]] == [FEW] * 6
    assert privacy["crossed"] == {"curator": 6 * FEW}
    json.dumps(dict(privacy))
    words = syn.sample_private(run[0], 2, seed=0).guarantee
    for said in ("epsilon = 2", "delta = 1e-05", "household", "replace-one", "everyone but the Curator", "not private"):
        assert said in words
    assert synthesising.told(privacy).startswith("epsilon = 2, delta = 1e-05 per household")


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
@pytest.mark.parametrize("steps", [1, 4])
def test_contract_the_parts_never_exceed_the_whole(epsilon, steps):
    budget = Budget(epsilon, DELTA, Constants(steps=steps))
    assert sum(spend.rho_micro for spend in budget.spends) <= rho_micro(round(epsilon * 1e6), DELTA)
    assert budget.charged[1] <= DELTA
    for spend in budget.spends:
        assert spend.rho_micro == rho_micro(spend.epsilon_micro, spend.delta)


def test_asked_again_the_same_ledger_spends_nothing(run):
    model, folder = run
    again = syn.fit_private(homes(), ledger=folder, **ASK)
    np.testing.assert_array_equal(again.centres, model.centres)
    with Ledger(folder) as ledger:
        assert len(list(ledger.rows())) == FEW * 6


def test_secure_noise_is_not_stamped_and_differs(run, tmp_path):
    model = syn.fit_private(homes(), noise="secure", ledger=tmp_path / "ledger", **ASK)
    assert model.privacy["noise"] == ""
    assert "not private" not in syn.sample_private(model, 1, seed=0).guarantee
    assert np.abs(model.sizes.histogram - run[0].sizes.histogram).max() > 0
    again = syn.fit_private(homes(), noise="secure", ledger=tmp_path / "ledger", **ASK)
    np.testing.assert_array_equal(again.sizes.histogram, model.sizes.histogram)      # stored, not drawn again


def test_a_sum_without_a_curator(tmp_path):
    model = syn.fit_private(homes(), trust="sum", ledger=tmp_path / "ledger", **ASK)
    assert model.privacy["crossed"] == {"sum": 6 * FEW}
    assert "the aggregator too" in syn.sample_private(model, 1, seed=0).guarantee
    with Ledger(tmp_path / "ledger") as ledger:
        assert {row.trust for row in ledger.rows()} == {"sum"}


# -- before anything is spent ------------------------------------------------------------------------------------------

def test_the_user_is_told_before_anything_is_spent(tmp_path):
    class Stop(Exception):
        pass

    heard = []

    def stop(words):
        heard.append(words)
        raise Stop

    with pytest.raises(Stop):
        syn.fit_private(homes(), ledger=tmp_path / "ledger", **ASK | {"tell": stop})
    assert not (tmp_path / "ledger").exists()
    assert "too few homes" in heard[0]
    assert "daily shape" in heard[0]


def test_golden_promise():
    """Noise falls as 1 / N: ten times the homes, a tenth; and names what it is about."""
    few, many = syn.promise(1_000, 1.0, DELTA), syn.promise(10_000, 1.0, DELTA)
    assert (few.verdict, many.verdict, syn.promise(100, 1.0, DELTA).verdict) == ("useful", "useful", "too few homes")
    for name, value in few.noise.items():
        assert many.noise[name] == pytest.approx(value / 10)
    assert "replace-one" in str(few)
    assert few.as_dict()["verdict"] == "useful"


def test_statistics_the_promise_is_the_noise_that_comes():
    """The promise's sigma is the law's own, and the law's noise has it."""
    budget = Budget(2.0, DELTA)
    law = budget.constants.law("synth_size", budget.spends[4].delta)
    assert budget.sigma("synth_size") == law.scale_units(budget.spends[4].epsilon_micro)
    noise = law.noise(synthesising.noise_from("simulation", 0).source("*zone", "q"), budget.spends[4].epsilon_micro, 4_000)
    assert noise.std() * law.grid.step == pytest.approx(budget.sigma("synth_size"), rel=0.04)


@pytest.mark.parametrize(("terms", "word"), [
    ({"cap": 1.0, "delta": 0.1, "classes": ("synthetic",)}, "cap"), ({"cap": 9.0, "classes": ("synthetic",)}, "delta"),
    ({"cap": 9.0, "delta": 0.1, "classes": ("general",)}, "synthetic"),
    ({"cap": 9.0, "delta": 0.1, "trust": ("sum",), "classes": ("synthetic",)}, "curator")])
def test_an_agreement_that_does_not_allow_it_is_refused_before(tmp_path, terms, word):
    with pytest.raises(ConfigError, match=word):
        syn.fit_private(homes(), agreement=AgreementTerms(**terms), ledger=tmp_path / "ledger", **ASK)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(("change", "word"), [
    ({"epsilon": None}, "needs epsilon"), ({"delta": None}, "needs delta"), ({"delta": 0.5}, "unprotected"),
    ({"epsilon": 0.01}, "too little|millionth"), ({"clusters": "auto"}, "without looking at the homes"),
    ({"variant": "raw_shuffle"}, "no such argument"), ({"min_cell": 9}, "no such argument"), ({"seed": 1.5}, "seed"),
    ({"count": 0}, "count = 0"), ({"days": -1}, "days = -1"), ({"trust": "open"}, "trust"), ({"noise": "none"}, "noise"),
    ({"cap_kwh": -1}, "cap_kwh")])
def test_breaking_arguments(change, word):
    with pytest.raises((ValueError, ConfigError), match=word):
        syn.synthesise(homes(3), **{"mode": "private", **ASK, **change})


def test_arguments_of_private_mode_elsewhere():
    with pytest.raises(ValueError, match=r'epsilon: mode = .curator. has no such argument'):
        syn.synthesise(homes(12), seed=0, epsilon=1.0)


# -- what the zone can know --------------------------------------------------------------------------------------------

def test_leak_empty_blocks_are_noised(run):
    """diffprivlib leaves noise out where a cluster is empty; here most blocks of the histogram are, and none is 0."""
    with ZoneStore(run[1]) as zones, Ledger(run[1]) as ledger:
        sizes = {query_id: np.frombuffer(zones.get(query_id).payload, "<i8")
                 for query_id in {row.query_id for row in ledger.rows()}}
    known = Constants()
    histogram = next(values for values in sizes.values() if values.size == known.clusters * known.bins)
    assert (histogram != 0).all()
    step = known.law("synth_size", DELTA).grid.step
    assert np.std(histogram * step) > 0.5 * Budget(2.0, DELTA).sigma("synth_size")


def test_leak_nothing_exact_is_kept(run):
    """No label, count or inertia of the homes is in the model: every number in it is public, or made of noised answers."""
    names = {field.name for thing in (run[0], run[0].sizes, run[0].cells[0]) for field in dataclasses.fields(thing)}
    assert not [name for name in names if any(word in name for word in ("label", "inertia", "count", "provenance"))]
    fake = syn.sample_private(run[0], 5, seed=0)
    assert fake._provenance is None
    assert fake.cells == ()
    assert np.isnan(fake.real_violations)
    assert not set(fake.ids) & set(homes().ids)


def test_non_interference_the_zone_sees_the_noised_answers_alone(monkeypatch, tmp_path):
    """With the same noised answers, two populations that share no reading give the same queries and the same model."""
    def given(self, query_id, names, payload_fn, trust="sum"):
        size = len(payload_fn()) // 8
        rng = np.random.default_rng(int(query_id[:8], 16))
        values = (rng.normal(0, 1, size) * 2.0**22).astype("<i8").tobytes()
        return real(self, query_id, names, lambda: values, trust)

    real = ZoneStore.put_once
    monkeypatch.setattr(ZoneStore, "put_once", given)
    rng = np.random.default_rng(0)
    records = [rng.gamma(1, 0.5, (8, 336)), np.zeros((8, 336))]
    records[1][3] = 1e6
    records[1][4, 5] = np.nan
    made = [syn.fit_private(values, ledger=tmp_path / str(at), **ASK) for at, values in enumerate(records)]
    asked = []
    for at in range(2):
        with Ledger(tmp_path / str(at)) as ledger:
            asked.append(sorted((row.household, row.query_id, row.epsilon_micro) for row in ledger.rows()))
    assert asked[0] == asked[1]
    drawn = [syn.sample_private(model, 3, seed=0).values for model in made]
    np.testing.assert_array_equal(drawn[0], drawn[1])


def test_oracle_the_answers_are_the_homes_sums(monkeypatch, tmp_path):
    """Without noise, one query holds each home's shape in its own cluster, and one count a home."""
    monkeypatch.setattr("fedenergy.privacy.one_block.discrete_gaussian", lambda source, variance, size: np.zeros(size, int))
    seen = []
    advance = synthesising.shapes.advance
    monkeypatch.setattr(synthesising.shapes, "advance", lambda *given: seen.append(given) or advance(*given))
    syn.fit_private(homes(6), ledger=tmp_path / "ledger", **ASK)
    state, sums, counts, _, count = seen[0]
    points = [synthesising.shapes.squash(synthesising.shapes.shape_of(homes(6).load(i).total)) for i in range(6)]
    expected = np.zeros_like(sums)
    for point in points:
        expected[synthesising.shapes.nearest(point, state.centres)] += point
    np.testing.assert_allclose(sums, expected, atol=1e-5)
    assert counts.sum() == pytest.approx(6, abs=1e-4)
    assert count == 6


# -- in the home -------------------------------------------------------------------------------------------------------

def record(values, start="2013-01-07", minutes=60):
    values = np.asarray(values, float)
    return Household("h1", ("total",), values[:, None], values, np.datetime64(start), minutes)


@pytest.mark.parametrize("spoil", ["constant", "zeros", "huge", "spike", "two values"])
def test_contract_every_usable_record_gives_a_vector_of_norm_at_most_one(spoil):
    values = np.random.default_rng(0).gamma(1, 0.5, 336)
    values = {"constant": np.full(336, 0.7), "zeros": np.zeros(336), "huge": values * 1e3,
              "spike": np.where(np.arange(336) == 5, 1e6, values), "two values": np.tile([0.0, 1e-9], 168)}[spoil]
    kwh, _ = own.cleaned(record(values), (0, 336), 100.0)
    assert kwh.max() <= 100
    vector = own.statistics(kwh, np.zeros(12))
    assert np.isfinite(vector).all()
    assert vector.size == own.WIDTH
    assert np.linalg.norm(vector) <= 1 + 1e-12


def test_missing_readings_are_filled_or_the_record_is_not_used():
    values = np.random.default_rng(0).gamma(1, 0.5, 336)
    values[5] = np.nan
    kwh, note = own.cleaned(record(values), (0, 336), 100.0)
    assert kwh[5] == pytest.approx(np.nanmean(values[5::24]))
    assert note == ""
    values[:100] = np.nan
    assert own.cleaned(record(values), (0, 336), 100.0)[0] is None
    for given, rows in ((record(values[:100]), (0, 336)), (record(np.ones(336), "2013-01-07T05:00"), (0, 336)),
                        (record(np.ones(335)), (0, 336))):
        assert own.cleaned(given, rows, 100.0)[0] is None


def test_half_hours_are_added_up():
    kwh, note = own.cleaned(record(np.ones(672), minutes=30), (0, 672), 1.5)
    assert kwh.tolist() == [1.5] * 336
    assert note == "336 hours cut to the public cap"


def test_bad_homes_answer_like_any_other(tmp_path):
    """A home without a usable record is charged and counted like all; an error would say something about its data."""
    values = np.random.default_rng(0).gamma(1, 0.5, (9, 336))
    values[2], values[4, :200], values[5] = 0.0, np.nan, 1e6
    model = syn.fit_private(values, ledger=tmp_path / "ledger", **ASK)
    assert [query["answers"] for query in model.privacy["queries"]] == [9] * 6
    assert model.privacy["ledger"]["homes_charged"] == 9
    with pytest.raises(ValueError, match=r"home-000002: .*negative consumption"):
        syn.fit_private(np.where(np.arange(9)[:, None] == 1, -1.0, values), **ASK)


def test_held_homes_stay_in_this_process():
    held = HeldHomes.of(np.ones((2, 336)))
    with pytest.raises(TypeError, match="stay in this process"):
        held.__reduce__()
    with pytest.raises(ValueError, match="workers = 2"):
        syn.fit_private(np.ones((2, 336)), workers=2, **ASK)
    assert HeldHomes.of(np.zeros((2, 336))).identity() == held.identity()


# -- sampling ----------------------------------------------------------------------------------------------------------

def test_free_sampling_any_number_and_a_year(run):
    model = run[0]
    year = syn.sample_private(model, 3, days=365, seed=1)
    assert year.values.shape == (3, 8_760)
    assert np.isfinite(year.values).all()
    assert 0 <= year.values.min() <= year.values.max() <= 100
    many = syn.sample_private(model, 200, seed=1)
    np.testing.assert_array_equal(many.values[:3], syn.sample_private(model, 3, seed=1).values)   # record i is i's alone
    assert np.abs(syn.sample_private(model, 3, seed=2).values - many.values[:3]).max() > 0.1
    assert syn.sample_private(model, seed=1).values.shape == (FEW, 336)


def cell(**change):
    return replace(models.Cell(-0.03, 0.02, np.zeros((12, 12)), np.full(24, 0.2), 0.5, 0.1, 1e-3,
                               0.01 * np.exp(-np.array(own.LAGS) / 40)), **change)


def test_statistics_what_is_drawn_has_the_models_parts():
    """Sizes, residual memory and trend of drawn homes are those of the model."""
    known = Constants(clusters=1, sizes=1)
    histogram = np.zeros((1, known.bins))
    histogram[0, 8] = 1.0
    model = models.PrivateModel(np.zeros((1, 12)), np.ones(1), models.Sizes(histogram, np.zeros((1, 0))), (cell(),),
                                known.edges, 100.0, np.datetime64("2013-01-07"), 10, 30, {})
    kwh = draw(model, 60, 120, 0)[0]
    size = kwh.mean(axis=1) * 24
    assert (known.edges[7] * 0.99 <= size).all()
    assert (size <= known.edges[8] * 1.01).all()
    trend = np.log1p(kwh).reshape(60, -1, 24).mean(axis=2)
    level = np.log1p(kwh).mean()
    assert trend.std(axis=1).mean() == pytest.approx(np.sqrt((0.01 + 0.04 / 24) * level), rel=0.35)


def test_statistics_standard_gev():
    u = (np.arange(200_000) + 0.5) / 200_000
    for skewness in (-0.1, 0.0, 0.1, 0.3):
        x = standard_gev(skewness).quantile(u[None])[0]
        assert x.mean() == pytest.approx(0, abs=0.01)
        assert x.std() == pytest.approx(1, abs=0.02)
        assert own.l_skewness(x) == pytest.approx(skewness, abs=0.01)


def test_statistics_noise_free_statistics_come_back():
    """Encode 400 equal homes, decode: the statistics of one."""
    kwh = simulate_households(1, steps=744, seed=5).load(0).total
    vector = own.statistics(kwh, np.zeros(12))
    means, left = models.pooled(np.tile(vector * 200, (2, 1)), np.array([200.0, 200.0]), 1e-6, 400)
    found = models.cell_of(means[0], float(left[0]))
    log = np.log1p(kwh)
    rest = own.decompose(log)[2][0].reshape(-1, 24)
    scale = own.amplitude(log.mean())
    np.testing.assert_allclose(found.hours, np.sqrt(np.square(rest).mean(axis=0)) / scale, rtol=1e-6)
    assert found.level == pytest.approx(log.mean() - np.log1p(kwh.mean()), rel=1e-6)


def test_statistics_noisy_cells_are_drawn_to_the_mean_of_all():
    rng = np.random.default_rng(0)
    truth = np.tile(rng.normal(0, 0.05, own.WIDTH), (6, 1))
    truth[0] += 0.2
    counts = np.full(6, 300.0)
    error = {sigma: np.abs(models.pooled(truth * 300 + rng.normal(0, sigma, truth.shape), counts, sigma, 1_800)[0]
                           - truth)[1:].mean() for sigma in (1.0, 100.0)}
    assert error[1.0] < 0.01
    assert error[100.0] < 0.6 * 100 / 300 * np.sqrt(2 / np.pi)      # what a cell by itself would have
    small = models.pooled(truth * 300, np.full(6, 1.0), 100.0, 6)[0]
    np.testing.assert_allclose(small, np.tile(small[:1], (6, 1)))


def test_sizes_are_shares_with_rising_borders():
    edges, rng = Constants().edges, np.random.default_rng(0)
    sizes = np.exp(rng.normal(np.log(12), 0.5, 3_000))
    counts = np.stack([np.bincount(np.searchsorted(edges, sizes, side="right"), minlength=16), np.zeros(16)])
    found = models.sizes_of(counts + rng.normal(0, 20, counts.shape), 20.0, edges, 3)
    np.testing.assert_allclose(found.histogram.sum(axis=1), 1)
    assert (found.histogram >= 0).all()
    assert (np.diff(found.borders, axis=1) > 0).all()
    np.testing.assert_allclose(found.borders[0], np.quantile(sizes, [1 / 3, 2 / 3]), rtol=0.08)
    assert models.simplex(np.full(4, -1.0)).tolist() == [0.25] * 4


@pytest.mark.slow
def test_statistics_much_signal_gives_a_close_distribution():
    """600 homes at epsilon 8: PSI below .25, and the energy, which few large homes decide, within a fifth."""
    population = homes(600, 744)
    real = np.stack([population.load(i).total for i in range(600)])
    fake = syn.synthesise(population, "private", **ASK | {"epsilon": 8.0}).values
    from fedenergy.synthesis.judge_utility import psi

    assert psi(real, fake) < 0.25
    assert fake.mean() == pytest.approx(real.mean(), rel=0.2)
