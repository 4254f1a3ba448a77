"""golden and contract: means over seeds, paired intervals, what a terminal shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedenergy.report.load import RunData
from fedenergy.report.tables import (
    export_csv,
    paired_interval,
    ranking,
    summary_table,
    to_rich,
    varied_keys,
    why_no_ranking,
)
from tests.report.fake import write_run

A, B, C = "lab:A", "lab:B", "lab:C"


def tidy(
    values: dict[str, list[list[float]]], metric: str = "mae", epsilon: float = 1.0, cell: str = "c"
) -> pd.DataFrame:
    """Metrics of strategies {name: [[value per round] per seed]}; trust as in a run: A sum, the others local."""
    return pd.DataFrame(
        [
            {
                "run": "r",
                "cell": f"{cell}{seed}{name == A}",
                "population": "p",
                "strategy": name,
                "policy": "Fixed",
                "trust": "sum" if name == A else "local",
                "epsilon": epsilon,
                "delta": 0.0,
                "seed": seed,
                "round": round_ + 1,
                "metric": metric,
                "value": value,
            }
            for name, seeds in values.items()
            for seed, row in enumerate(seeds)
            for round_, value in enumerate(row)
        ]
    )


# Two rounds per seed. Means over rounds: A 2, 4, 6; B 3, 6, 9; C 5.9, 8.0, 10.1.
GOLDEN = {A: [[1, 3], [3, 5], [5, 7]], B: [[2, 4], [5, 7], [8, 10]], C: [[5.9, 5.9], [8.0, 8.0], [10.1, 10.1]]}


def test_mean_and_sd_are_over_seeds() -> None:
    table = summary_table(tidy(GOLDEN), unit="household").set_index("strategy")
    # A: mean (2 + 4 + 6) / 3 = 4, sd sqrt((4 + 0 + 4) / 2) = 2; B: mean 6, sd sqrt((9 + 0 + 9) / 2) = 3
    assert table.loc[A, ["n", "mae", "mae_sd", "mae_n"]].tolist() == [3, 4, 2, 3]
    assert table.loc[B, ["n", "mae", "mae_sd", "mae_n"]].tolist() == [3, 6, 3, 3]
    assert table.loc[A, ["trust", "epsilon", "delta", "unit"]].tolist() == ["sum", 1.0, 0.0, "household"]


def test_running_totals_count_their_last_round() -> None:
    table = summary_table(tidy({A: [[0.5, 1.0], [0.5, 2.0]]}, metric="epsilon_spent_max"))
    assert table["epsilon_spent_max"].tolist() == [1.5]  # (1 + 2) / 2, not the mean over rounds


def test_one_seed_has_no_sd_and_nan_is_counted_out() -> None:
    table = summary_table(pd.concat([tidy({A: [[4.0]]}), tidy({A: [[np.nan]]}, metric="cosine")]))
    assert table["mae"].tolist() == [4.0]
    assert np.isnan(table["mae_sd"].iloc[0])
    assert table["cosine_n"].tolist() == [0]
    # seeds 0 and 2 have a cosine, seed 1 none: mean (.2 + .4) / 2
    some = summary_table(tidy({A: [[0.2], [np.nan], [0.4]]}, metric="cosine"))
    assert some["cosine"].iloc[0] == pytest.approx(0.3)
    assert some[["n", "cosine_n"]].iloc[0].tolist() == [3, 2]


def test_paired_interval_by_hand() -> None:
    # differences 1, 2, 3: mean 2, sd 1, t(.975, 2) = 4.302653, half width 4.302653 / sqrt(3) = 2.484138
    assert paired_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2, -0.484138, 4.484138), abs=1e-6)
    assert paired_interval(np.array([1.0]))[0] == 1
    assert np.isnan(paired_interval(np.array([1.0]))[1:]).all()


def test_ranking_pairs_seeds_across_trust_modes() -> None:
    ranks = ranking(tidy(GOLDEN)).set_index("strategy")
    assert ranks["rank"].to_dict() == {A: 1, B: 2, C: 3}
    assert ranks["n"].tolist() == [3, 3, 3]
    # B - A: 1, 2, 3, as above: the interval holds 0
    assert ranks.loc[B, ["difference", "low", "high"]].tolist() == pytest.approx([2, -0.484138, 4.484138], abs=1e-6)
    assert ranks.loc[B, "verdict"] == "indistinguishable"
    # C - A: 3.9, 4.0, 4.1: mean 4, sd .1, half width .2484138. Unpaired, C's own sd of 2.1 would have hidden it.
    assert ranks.loc[C, ["difference", "low", "high"]].tolist() == pytest.approx([4, 3.7515862, 4.2484138], abs=1e-6)
    assert ranks.loc[C, "verdict"] == "worse"


def test_ranking_knows_which_way_is_better() -> None:
    ranks = ranking(tidy({A: [[0.9], [0.8]], B: [[0.4], [0.3]]}, metric="cosine"), metric="cosine")
    assert ranks["strategy"].tolist() == [A, B]
    assert ranks["difference"].tolist() == pytest.approx([0, -0.5])


def test_settings_are_ranked_apart_or_pooled() -> None:
    two = pd.concat([tidy({A: [[1], [2]], B: [[2], [4]]}), tidy({A: [[5], [6]], B: [[4], [6]]}, epsilon=0.1, cell="d")])
    ranks = ranking(two)
    assert ranks["epsilon"].tolist() == [0.1, 0.1, 1.0, 1.0]
    assert ranks["strategy"].tolist() == [B, A, A, B]
    pooled = ranking(two, pooled=True).set_index("strategy")
    # B - A per seed, over both settings: seed 0 (1 - 1) / 2 = 0, seed 1 (2 + 0) / 2 = 1
    assert pooled.loc[B, "difference"] == pytest.approx(0.5)
    assert pooled["n"].tolist() == [2, 2]


def test_one_seed_gives_no_interval_and_one_strategy_no_ranking() -> None:
    assert ranking(tidy({A: [[1]], B: [[2]]}))["verdict"].tolist() == ["best", "one seed: no interval"]
    alone = tidy({A: [[1], [2]]})
    assert ranking(alone).empty
    assert "two strategies" in why_no_ranking(alone)
    assert "oracle = false" in why_no_ranking(tidy({A: [[1]]}, metric="answers"))


def test_plain_answers_take_no_part_beside_private_ones() -> None:
    metrics = tidy(GOLDEN)
    metrics.loc[metrics["strategy"] == C, "trust"] = "open"
    assert set(ranking(metrics)["strategy"]) == {A, B}
    assert summary_table(metrics).set_index("strategy").loc[C, "epsilon"] == np.inf


def test_varied_keys_are_those_that_metrics_do_not_name(tmp_path: Path) -> None:
    data = RunData.read(write_run(tmp_path / "r", counts=(50, 200), seeds=(0, 1)))
    assert varied_keys(data.metrics, data.cells) == ["population.count"]  # query.epsilon is the column epsilon
    table = summary_table(data.metrics, data.cells)
    assert len(table) == 3 * 3 * 2
    assert set(table["population.count"]) == {50, 200}
    assert len(ranking(data.metrics, data.cells)) == 3 * 3 * 2


@pytest.mark.parametrize("width", [100, 60])
def test_a_terminal_table_fits_and_names_what_it_leaves_out(run_folder: Path, width: int) -> None:
    data = RunData.read(run_folder)
    for table in (summary_table(data.metrics, data.cells, data.unit), ranking(data.metrics, data.cells)):
        console = Console(width=200, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(to_rich(table, data.privacy_line, "kWh^2", width))
        lines = [line.rstrip() for line in capture.get().splitlines()]
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert "ZonalSum" in text
        assert "relation replace-one; seeded noise: not private" in text
        assert "…" not in text


def test_exports_are_safe_in_a_spreadsheet(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"strategy": ['=cmd|"/c calc"!A1', "+1", "-1", "@x", "fine"], "value": [-1.5, 0.1, 2.0, 3.0, np.nan]}
    )
    export_csv(table, tmp_path / "x.csv")
    back = pd.read_csv(tmp_path / "x.csv")
    assert back["strategy"].tolist() == ['\'=cmd|"/c calc"!A1', "'+1", "'-1", "'@x", "fine"]
    assert back["value"].tolist()[:4] == [-1.5, 0.1, 2.0, 3.0]
