"""The judge's table and its page."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedenergy import synthesis as syn
from fedenergy.synthesis import judge_embedding


@pytest.fixture(scope="module")
def judged(homes, holdout):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_embedding, "MOST_ROWS", 30)
        return _judged(homes, holdout)


def _judged(homes, holdout):
    away = syn.panel(holdout[:12], ids=[f"other-{i}" for i in range(12)])
    some = syn.panel(homes.values[:24], ids=homes.ids[:24])
    fake = syn.synthesise(some, seed=1, variant="components", clusters=2)
    return syn.judge(some, fake, away, make=lambda panel: syn.synthesise(panel, seed=1, variant="components", clusters=2))


def test_table_has_every_score_with_its_yardstick(judged):
    lines = judged.table()
    for words in ("PSI", "exact copies", "DCR", "NNDR", "membership", "a known day finds its home", "top tenth", "canary",
                  "epsilon is at least", "discriminative", "forecast", "ACF at 24", "uDRP curve"):
        assert lines["score"].str.contains(words, regex=False).any(), words
    distances = lines[(lines["part"] == "proxy")]
    assert set(distances["per"]) == {"day", "home"}
    assert distances["yardstick"].notna().all()
    assert (lines["reading"] != "").all()


def test_page_is_whole_and_safe(judged, tmp_path):
    text = judged.to_html(tmp_path / "new" / "one.html").read_text()
    assert not list(tmp_path.rglob("*.part"))
    assert "http://" not in re.sub(r'xmlns[^"]*"[^"]*"', "", text)
    assert "<script" not in text
    assert "Guarantee: none (heuristic): epsilon = infinity" in text
    assert len(re.findall("<figure>", text)) == 10
    assert "nan" not in re.sub(r"<[^>]*>", "", text).lower().split()


def test_page_without_holdout_says_so_in_the_same_bytes(homes, tmp_path):
    fake = syn.synthesise(homes, seed=1)
    judged = syn.judge(homes, fake, parts=["privacy"])
    text = judged.to_html(tmp_path / "x.html").read_text()
    assert "No holdout was given" in text
    possible = sum(cell.feasible for cell in fake.cells)
    assert f"{possible} of {len(fake.cells)}" in text
    assert f"{100 * fake.violations:.1f} % ({100 * fake.real_violations:.1f} % of the real ones)" in text
    assert text == judged.to_html(tmp_path / "again.html").read_text()
    only = syn.judge(homes, fake, parts=["forecast"]).to_html(tmp_path / "y.html", title="<b>& co").read_text()
    assert "What does it give away?" not in only
    assert "<b>& co" not in only


def test_readings_follow_the_scores(judged):
    from fedenergy.synthesis.judge_table import table

    seen = {**judged["canaries"], "epsilon_lower": 3.0, "epsilon_claimed": 1.0, "falsified": 1.0}
    scores = {**judged.scores, "canaries": seen}
    lines = table(scores).set_index("score")
    assert lines.loc["epsilon is at least (95 %)", "reading"] == "the claim is refuted"
    privacy = {**scores["privacy"], "day": {**scores["privacy"]["day"], "exact_copies": 0.5}}
    lines = table({**scores, "privacy": privacy})
    assert "real records pass" in set(lines["reading"])
    assert np.isfinite(lines["artificial"]).all()


@pytest.mark.parametrize("distance", ["euclidean", "dtw"])
def test_a_choice_of_clusters_is_drawn_with_its_three_criteria(homes, distance, tmp_path):
    from fedenergy.report import synthesis_page
    from fedenergy.synthesis import stream

    plan = stream.Plan(clusters="auto", sizes=1, criterion="calinski_harabasz", distance=distance)
    some = syn.panel(homes.values[:30], ids=homes.ids[:30])
    fake = stream.make(some, plan, 1)
    judged = syn.judge(some, fake, parts=[])
    chosen = judged["choice"]
    best = max((k for k in chosen["scores"] if k > 1), key=lambda k: chosen["scores"][k]["calinski_harabasz"])
    assert chosen["clusters"] == best
    (plate,) = synthesis_page.gallery(judged)
    found = plate.figure.axes
    for ax, name in zip(found, ("inertia", "silhouette", "calinski_harabasz"), strict=True):
        ks = [k for k in sorted(chosen["scores"]) if name in chosen["scores"][k]]
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), ks)
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), [chosen["scores"][k][name] for k in ks])
        assert set(ax.lines[1].get_xdata()) == {best}
    assert "How many clusters" in judged.to_html(tmp_path / "x.html").read_text()
    fixed = syn.judge(some, stream.make(some, stream.Plan(sizes=1), 1), parts=[])
    assert "choice" not in fixed
