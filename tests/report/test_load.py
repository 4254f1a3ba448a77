"""contract: a run folder is read once, and what is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedenergy.report.load import RunData, RunFolderError
from tests.report.fake import edit


def test_a_finished_run_is_read(run_folder: Path) -> None:
    data = RunData.read(run_folder)
    assert data.title == "Zone explanations: one noise or fifty"
    assert data.unit == "household"
    assert data.oracle
    assert data.metrics["seed"].dtype == int
    assert data.privacy_line == "epsilon per household and round; relation replace-one; seeded noise: not private"


def test_what_is_no_run_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a folder"):
        RunData.read(tmp_path / "absent")
    with pytest.raises(RunFolderError, match=r"not a run folder: it has no config\.resolved\.toml"):
        RunData.read(tmp_path)


@pytest.mark.parametrize("name", ["metrics.csv", "cells.csv", "summary.json"])
def test_an_unfinished_run_says_how_to_resume(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink()
    with pytest.raises(RunFolderError, match=rf"no {name}; go on where it stopped with `fedenergy resume .*093000`"):
        RunData.read(run_folder)


def test_damaged_files_are_named(run_folder: Path) -> None:
    (run_folder / "summary.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"summary\.json is damaged"):
        RunData.read(run_folder)
    (run_folder / "summary.json").write_text("{}")
    metrics = (run_folder / "metrics.csv").read_text()
    (run_folder / "metrics.csv").write_text(metrics.replace(",value\n", ",worth\n"))
    with pytest.raises(RunFolderError, match="no column 'value'"):
        RunData.read(run_folder)
    lines = metrics.splitlines()
    (run_folder / "metrics.csv").write_text("\n".join([lines[0], lines[1].rsplit(",", 1)[0] + ",many"]))
    with pytest.raises(RunFolderError, match="column 'value' holds numbers only"):
        RunData.read(run_folder)
    (run_folder / "metrics.csv").write_text(metrics)
    cells = (run_folder / "cells.csv").read_text().splitlines()
    (run_folder / "cells.csv").write_text("\n".join([*cells, cells[-1]]))
    with pytest.raises(RunFolderError, match="twice"):
        RunData.read(run_folder)


def test_names_that_look_like_numbers_stay_names(run_folder: Path) -> None:
    text = (
        (run_folder / "metrics.csv")
        .read_text()
        .replace(",Fixed,", ",NA,")
        .replace("strategies.zonal_sum:ZonalSum", "007")
    )
    (run_folder / "metrics.csv").write_text(text)
    metrics = RunData.read(run_folder).metrics
    assert set(metrics["policy"]) == {"NA"}
    assert "007" in set(metrics["strategy"])


def test_a_key_of_another_kind_is_named(run_folder: Path) -> None:
    edit(run_folder, spent={"home": 1}, refusals=["cap"])
    data = RunData.read(run_folder)
    with pytest.raises(RunFolderError, match="'spent' is a dict, expected a list"):
        data.rows("spent")
    with pytest.raises(RunFolderError, match="'refusals' is a list of objects"):
        data.rows("refusals")
