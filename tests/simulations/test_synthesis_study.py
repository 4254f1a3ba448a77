"""The synthesis study at toy size, its claims, and its private rivals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedenergy import studies
from fedenergy.errors import ConfigError
from fedenergy.households.simulate import simulate_households
from fedenergy.privacy.accounting import epsilon as cost
from fedenergy.privacy.accounting import to_replace_one
from fedenergy.progress import SilentProgress
from fedenergy.synthesis.intake import Panel, panel
from fedenergy.synthesis.judge_utility import psi
from simulations import synthesis_study
from simulations.synthesis_study import SynthesisStudy
from simulations.synthesising import cells, claims, diffusion, histogram

ROOT = Path(__file__).parents[2]
SMALL = {"use": "fedenergy:simulate_households", "count": 30, "steps": 336, "seed": 1}


def study(**changes) -> SynthesisStudy:
    plain = {"population": SMALL, "synthesis": {"clusters": 2, "sizes": 1}, "recipes": ("sound",), "shuffles": ("free",),
             "segments": (True,), "seasonal_parts": ("keep",), "judged": False}
    return SynthesisStudy(**{**plain, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = studies.Place(out=str(tmp_path_factory.mktemp("runs")))
    mine = study(studies=("variants", "tradeoff"), clusters=(1, 2), seasonal=(7,))
    return place, studies.run(mine, place, SilentProgress())


def test_smoke_run_leaves_its_files(finished):
    _, done = finished
    for name in ("config.resolved.toml", "metrics.csv", "cells.csv", "table.csv", "report.html"):
        assert (done.folder / name).stat().st_size > 0
    drawn = {path.stem for path in (done.folder / "figures").glob("*.svg")}     # 14 days: too few for demand response
    assert drawn == {"utility_privacy", "tradeoff_use", "tradeoff_distance", "tradeoff_attack"}
    metrics = pd.read_csv(done.folder / "metrics.csv")
    assert set(metrics["strategy"]) == {"components / sound", "components shuffle / sound / free", "raw shuffle / free",
                                        "components shuffle / sound / within date"}
    copies = metrics[(metrics["metric"] == "copies_day")].set_index("strategy")["value"]
    assert copies["raw shuffle / free"] == 1
    assert copies["components / sound"] == 0


def test_resume_computes_nothing_twice_and_gives_the_same_bytes(finished, monkeypatch):
    _, done = finished
    before = (done.folder / "metrics.csv").read_bytes()
    monkeypatch.setattr(cells.Cell, "make", lambda *_: pytest.fail("a kept cell was made again"))
    again = studies.resume(done.folder, SilentProgress())
    assert again.folder == done.folder
    assert (done.folder / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("name", ["source", "london", "appliances", "tradeoff", "equal_epsilon"])
def test_configs_load_and_shrink(name):
    loaded, _ = studies.load(ROOT / f"configs/synthesis_{name}.toml")
    quick, _ = studies.load(ROOT / f"configs/synthesis_{name}.toml", quick=True)
    assert quick.name == f"synthesis-{name.replace('_', '-')}-quick"
    assert len(quick._cells()) + len(quick._rivals()) < len(loaded._cells()) + len(loaded._rivals())


def test_check_runs_nothing_and_states_epsilon(monkeypatch):
    loaded, place = studies.load(ROOT / "configs/synthesis_equal_epsilon.toml")
    monkeypatch.setattr(synthesis_study, "split", lambda *_: pytest.fail("check read records"))
    rows = dict(loaded.check(place))
    assert "per household" in rows["epsilon"]
    assert "replace-one" in rows["epsilon"]
    assert rows["noise"] == "seeded noise: not private"


@pytest.mark.parametrize(("change", "words"), [
    ({"studies": ("variant",)}, "studies has 'variant'"), ({"holdout": 1.0}, "holdout = 1"), ({"seeds": ()}, "is empty"),
    ({"synthesis": {"cluster": 2}}, "Did you mean"), ({"diffusion": {"step": 2}}, "has no key 'step'"),
    ({"epsilons": (0.0,)}, "epsilons above 0"), ({"rivals": ("gan",)}, "rivals has 'gan'")])
def test_breaking_configs(change, words):
    with pytest.raises(ValueError, match=words):
        study(**change)


def test_holdout_takes_whole_owners_or_says_why_not(tmp_path):
    with pytest.raises(ConfigError, match="both sides need at least 6"):
        studies.run(study(holdout=0.05), studies.Place(out=str(tmp_path)), SilentProgress())


def rows(**changes) -> pd.DataFrame:
    base = {"study": "variants", "recipe": "source", "seasonal_part": "keep", "segments": True, "clusters": "4",
            "seasonal": 13, "shuffle": "free", "psi": 0.05, "drp_error": 0.3, "dcr_home": 10.0, "dcr_day": 1.0,
            "copies_day": 0.0,
            "membership_day": 0.5, "linkage_home": 0.01, "linkage_chance": 0.01, "violations": 0.2, "real_violations": 0.25,
            "clipped_share": 0.05}
    three = [base | {"variant": "raw_shuffle", "method": "raw", "recipe": "none", "copies_day": 1.0, "dcr_home": 12.0,
                     "dcr_day": 2.0},
             base | {"variant": "components", "method": "parts", "shuffle": "none"},
             base | {"variant": "components_shuffle", "method": "whole", "drp_error": 0.1}]
    three[2] |= changes
    return pd.DataFrame(three).assign(epsilon=math.inf)


def test_verdicts_follow_the_numbers():
    found = {claim.figure: claim.verdict for claim in claims.claims(rows())}
    assert found == {"figure 11": "holds", "section 4": "holds", "section 4.2": "holds", "section 1": "holds",
                     "section 3.3": "holds", "section 3.1": "does not hold"}
    worse = rows(drp_error=0.5, psi=0.2, membership_day=0.9, violations=0.4, clipped_share=0.0)
    found = {claim.figure: claim.verdict for claim in claims.claims(worse)}
    assert [found[name] for name in ("figure 11", "section 4", "section 1", "section 3.3", "section 3.1")] == [
        "does not hold", "does not hold", "does not hold", "does not hold", "holds"]


def test_a_verdict_at_equal_epsilon_names_those_who_were_there():
    two = rows().iloc[:2].assign(study="equal_epsilon", method=["private_mode", "dp_histogram"], epsilon=1.0, psi=[0.1, 0.2],
                                 daily_curve_error=[0.1, 0.2], drp_error=[0.1, 0.2])
    (found,) = claims.claims(two)
    assert (found.claim, found.verdict) == ("private mode beats a plain histogram", "holds")
    three = pd.concat([two, two[1:].assign(method="dp_diffusion", psi=0.05)])
    (found,) = claims.claims(three)
    assert (found.claim, found.verdict) == ("private mode beats a plain histogram and DP diffusion", "holds in part")


def test_statistics_histogram_learns_with_epsilon():
    homes = panel(simulate_households(60, steps=336, seed=1))
    far, near = (psi(homes.values, histogram.synthesise(homes, epsilon=epsilon, delta=1e-5, seed=0, count=200).values)
                 for epsilon in (0.5, 500.0))
    assert near < 0.05 < far


def test_contract_histogram_sensitivity():
    """Whatever a home holds, its vector fits the clip: nothing of it is cut, nothing exceeds it."""
    homes = panel(simulate_households(8, steps=336, seed=1))
    found = histogram.counts(homes)
    np.testing.assert_allclose(found.reshape(8, 24, -1).sum(axis=2), 1.0)
    assert np.linalg.norm(found, axis=1).max() <= math.sqrt(24) + 1e-12
    one = Panel(("home",), np.tile(np.r_[np.full(23, 0.5), 0.6], 14)[None], homes.start)     # every day the same
    assert np.linalg.norm(histogram.counts(one), axis=1)[0] == pytest.approx(math.sqrt(24))


@pytest.mark.parametrize("windows", [1, 2])
def test_contract_diffusion_is_calibrated_for_a_household(windows):
    sigma, inner = diffusion.calibrate(4.0, 1e-5, 0.5, 2, windows)
    spent, delta = to_replace_one(cost(sigma, 0.5, 2, inner, windows=windows), inner)
    assert spent <= 4.0
    assert delta <= 1e-5 * (1 + 1e-9)
    assert to_replace_one(cost(sigma / 1.05, 0.5, 2, inner, windows=windows), inner)[0] > 4.0


@pytest.mark.slow
def test_smoke_equal_epsilon(tmp_path):
    loaded, _ = studies.load(ROOT / "configs/synthesis_equal_epsilon.toml", quick=True)
    done = studies.run(loaded, studies.Place(out=str(tmp_path)), SilentProgress())
    table = pd.read_csv(done.folder / "table.csv")
    assert set(table["method"]) == {"heuristic", "private_mode", "dp_histogram", "dp_diffusion"}
    assert (table[table["method"] != "heuristic"]["epsilon"] == 4.0).all()
    page = (done.folder / "report.html").read_text()
    assert "not private" in page
    assert "replace-one" in page
