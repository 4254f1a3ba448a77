"""contract: figures are pure, deterministic and safe with any name; nothing of pyplot is touched."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

from fedenergy.report import figures, svg
from fedenergy.report.gallery import gallery
from fedenergy.report.load import RunData
from tests.report.fake import write_run

HOSTILE = ["_hidden", "a$b$c", "<svg onload=alert(1)>", "名字", "x" * 90, "tab\tnew\nline"]


def frame(strategies: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"strategy": name, "epsilon": epsilon, "seed": seed, "value": (place + 1) / epsilon + 0.1 * seed}
            for place, name in enumerate(strategies)
            for epsilon in (0.1, 1.0)
            for seed in (0, 1)
        ]
    )


def test_any_name_may_stand_on_a_figure() -> None:
    text = svg.render(figures.utility(frame(HOSTILE), "mae", figures.styles(HOSTILE), values_unit="kWh^2"))
    assert "_hidden" in text
    assert "a$b$c" in text
    assert "名字" in text
    assert "<svg onload" not in text
    element = svg.inline(text, "u", 'alt "quoted" <b>')
    assert 'aria-label="alt &quot;quoted&quot; &lt;b&gt;"' in element
    assert "http" not in element
    assert "var(--c0)" in element
    assert 'id="u-' in element


def test_figures_leave_no_global_state_and_are_deterministic(run_folder: Path) -> None:
    before, values = dict(matplotlib.rcParams), frame(["a", "b"])
    first, second = (svg.render(figures.utility(values, "mae", figures.styles(["a", "b"]))) for _ in range(2))
    assert first == second
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def test_colours_stay_with_their_strategy() -> None:
    many = [f"s{i:02d}" for i in range(19)]
    style = figures.styles(many)
    assert style == figures.styles(reversed(many))
    assert len(set(style.values())) == 19  # a hue and a marker together tell all 19 of them apart


def test_the_gallery_follows_what_varied(tmp_path: Path) -> None:
    names = [plate.name for plate in gallery(RunData.read(write_run(tmp_path / "a")))]
    assert names == [
        "utility_cosine",
        "utility_mae",
        "released_epsilon_0_1",
        "released_epsilon_0_5",
        "released_epsilon_1",
        "spent",
        "refusals",
        "inside_readings",
        "inside_shap",
    ]
    counts = gallery(RunData.read(write_run(tmp_path / "b", counts=(50, 200), epsilons=(1.0,))))
    assert counts[0].title == "Cosine against population.count"
    both = gallery(RunData.read(write_run(tmp_path / "c", counts=(50, 200), epsilons=(0.5, 1.0), seeds=(0, 1))))
    assert [plate.title for plate in both[:2]] == [
        "Cosine against ε, population.count = 50",
        "Cosine against ε, population.count = 200",
    ]
    assert "Dashed" in both[0].caption


def test_nothing_numeric_varies_gives_dots_and_no_oracle_no_error_figures(tmp_path: Path) -> None:
    dots = gallery(RunData.read(write_run(tmp_path / "a", epsilons=(1.0,))))
    assert dots[0].title == "Cosine per strategy"
    bare = gallery(RunData.read(write_run(tmp_path / "b", oracle=False)))
    assert [plate.name for plate in bare] == ["spent", "refusals"]


def test_equal_budgets_become_one_curve_and_long_ones_stay_small() -> None:
    figure = figures.spent({"ε 1": np.linspace(0, 2, 100_000)}, [6.73])
    assert len(figure.axes[0].lines[0].get_xdata()) == 201
    assert figure.axes[0].get_ylim()[1] > 6.73


def test_many_coordinates_and_channels_are_cut_to_the_largest() -> None:
    zone = {
        "strategy": "a",
        "true_clipped": list(range(40)),
        "true_total": list(range(40)),
        "released": list(range(40)),
    }
    ax = figures.true_and_released([zone], [f"c{k}" for k in range(40)], figures.styles(["a"])).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"c{k}" for k in range(28, 40)]
    day = figures.day(range(24), {f"c{k:02d}": [k] * 24 for k in range(10)}, "kWh")
    assert [text.get_text() for text in day.legends[0].get_texts()] == [
        "c04",
        "c05",
        "c06",
        "c07",
        "c08",
        "c09",
        "4 others",
    ]
