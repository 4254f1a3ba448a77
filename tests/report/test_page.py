"""contract: one self-contained page, whatever the run holds and whatever the names are."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedenergy.report import page as page_module
from fedenergy.report.gallery import gallery
from fedenergy.report.load import RunData
from fedenergy.report.page import page, write_report
from fedenergy.report.prose import in_short
from fedenergy.report.report import Report
from tests.report.fake import CENTRAL, LOCAL, SECURE, TRUST, edit, write_run

EVIL = '<script>alert("x")</script>&\'$title'
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Outline(HTMLParser):
    """Tags that are open, ids, headings and references of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.ids, self.references = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.references += [
            given[name] for name in ("src", "href", "srcset", "action", "data", "xlink:href") if name in given
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_page(folder: Path) -> str:
    """The page without its figures (drawing them is the slow part, and is tested on its own)."""
    return page(RunData.read(folder), [])


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "zone-explanations-20260115-093000")
    return write_report(folder)


def test_the_page_is_self_contained_and_well_formed(full: Path) -> None:
    text = full.read_text()
    assert full.name == "report.html"
    assert "http://" not in text
    assert "https://" not in text
    outline = Outline(text)
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(outline.tags)
    assert all(reference.startswith(("#", "data:text/csv;")) for reference in outline.references)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(outline.ids) == len(set(outline.ids))
    assert {reference[1:] for reference in outline.references if reference.startswith("#")} <= set(outline.ids)
    assert outline.tags.count("h1") == 1
    assert outline.tags.count("table") == outline.tags.count("caption")
    assert text.count("<svg ") == text.count('role="img" aria-label="')


def test_privacy_stands_before_results_and_beside_them(full: Path) -> None:
    text = full.read_text()
    assert text.index('id="privacy"') < text.index("Who sees what") < text.index('id="results"')
    assert "Seeded noise: not private" in text
    assert "ε asked per household" in text
    assert "ε asked: against the querier" in text
    assert "ε granted, least to most" in text
    assert ">0.5 to 1</td>" in text
    assert "prefers-color-scheme: dark" in text
    assert "zone-explanations-20260115-093000/config.resolved.toml" in text


def test_figures_are_saved_in_two_formats_on_white(full: Path) -> None:
    names = {path.name for path in (full.parent / "figures").iterdir()}
    assert {"utility_mae.svg", "utility_mae.png", "spent.svg", "inside_shap.png"} <= names
    assert 'fill="white"' in (full.parent / "figures" / "spent.svg").read_text()


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "r",
        strategies={f"mine:{EVIL}": "local", SECURE: "sum"},
        epsilons=(0.5, 1.0),
        seeds=(0, 1),
        config=f"# {EVIL}",
    )
    edit(
        folder,
        title=EVIL,
        stamp=EVIL,
        notes=[EVIL],
        quality=[{"household": EVIL, "missing": 3}],
        refusals=[{"reason": EVIL, "code": EVIL, "count": 2}],
        inside_view={"household": EVIL, "readings": {EVIL: [0.1] * 24}},
        population={"name": EVIL, "unit": EVIL, "count": 50},
        coordinates=[EVIL] * 7,
        task={EVIL: EVIL},
        who_sees_what=[{"trust": EVIL, "seen_by": EVIL}],
    )
    text = write_report(folder).read_text()
    assert "<script" not in text
    assert 'alert("x")' not in re.sub(r"<svg.*?</svg>", "", text, flags=re.S)  # in SVG text a quote is only a quote
    assert "&lt;script&gt;" in text
    Outline(text)


def test_without_oracle_errors_are_absent_with_the_reason(tmp_path: Path) -> None:
    text = text_page(write_run(tmp_path / "r", oracle=False))
    assert "No oracle was computed (oracle = false)" in text
    assert "No ranking: the run has no mae" in text
    assert "MAE (kWh²)" not in text
    assert "Absent: it needs the oracle" in text
    assert "answers" in text


def test_an_empty_summary_still_gives_a_page_that_says_what_is_absent(run_folder: Path) -> None:
    (run_folder / "summary.json").write_text("{}")
    (run_folder / "versions.json").unlink()
    text = write_report(run_folder).read_text()
    Outline(text)
    for absent in (
        "Absent: the run recorded no count of the envelopes",
        "not stated by the run",
        "the run stored no zone sums",
        "the run stored no budgets",
        "did not record reasons",
        "no home's day",
        "no counts of faulty readings",
        "no versions.json",
    ):
        assert absent.replace("'", "&#x27;") in text
    assert "MAE" in text


def test_nan_one_seed_and_one_strategy(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", strategies={LOCAL: "local"}, seeds=(0,), rounds=1)
    metrics = (folder / "metrics.csv").read_text()
    (folder / "metrics.csv").write_text(re.sub(r"(,cosine,)[-0-9.e]+", r"\1nan", metrics))
    text = text_page(folder)
    assert "One seed: no standard deviation" in text
    assert "±" not in text
    assert "No ranking: it takes at least two strategies" in text
    assert "–" in text
    empty = folder / "metrics.csv"
    empty.write_text(metrics.splitlines()[0] + "\n")
    assert "metrics.csv is empty" in text_page(folder)
    assert {plate.section for plate in gallery(RunData.read(folder))} == {"truth", "spent", "refusals", "inside"}


def test_the_summary_is_computed(tmp_path: Path) -> None:
    """ZonalSum's errors set to 8 times SecureSum's, CentralLaplace's to the same: the sentences say so."""
    folder = write_run(tmp_path / "r", strategies=TRUST, epsilons=(0.5, 1.0))
    data = RunData.read(folder)
    base = data.metrics.index % 7 / 100 + 1.0 + data.metrics["seed"] + data.metrics["round"]
    mae = data.metrics["metric"] == "mae"
    first = data.metrics[mae & (data.metrics["strategy"] == SECURE)].set_index(["epsilon", "seed", "round"]).index
    values = {key: float(value) for key, value in zip(first, base[mae & (data.metrics["strategy"] == SECURE)])}
    factor = {LOCAL: 8.0, SECURE: 1.0, CENTRAL: 1.0}
    for i in data.metrics.index[mae]:
        row = data.metrics.loc[i]
        data.metrics.loc[i, "value"] = factor[row["strategy"]] * values[row["epsilon"], row["seed"], row["round"]]
    texts = " ".join(in_short(data))
    assert "(ZonalSum), beyond chance in every setting" in texts
    assert (
        "the mean absolute error is 8.0 times lower than with one noise per home" in texts
        or "is 8 times lower" in texts
    )
    assert "there is no clear order: the mean absolute error of the second is 1 times that of the first" in texts
    assert "3 strategies on 50 households, ε = 0.5 and 1 per round, 3 seeds, 2 rounds, in 3 min 24 s." in texts
    assert "4 % of the requests were refused." in texts
    assert "has spent ε = 2 of the 6.73 that its agreement allows per cell, by what the ledger holds" in texts
    assert "; at most ε = 2 by this run." in texts


def test_report_shows_its_table(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(run_folder)
    text = str(report)
    assert "ZonalSum" in text
    assert "relation replace-one" in text
    assert max(map(len, text.splitlines())) <= 100
    assert report._repr_html_().startswith("<div")
    assert len(report.table) == 9
    assert report.ranking["rank"].max() == 3
    assert "=" not in report.to_csv(run_folder / "t.csv").read_text()
    monkeypatch.setattr(page_module, "gallery", lambda data: [])
    assert report.to_html(run_folder / "mine.html").name == "mine.html"
    with pytest.raises(FileNotFoundError, match="ledger elsewhere"):
        _ = report.ledger


def test_the_ledger_is_read_as_a_table(run_folder: Path) -> None:
    ledger = pytest.importorskip("fedenergy.box.ledger")
    charge = ledger.Charge(
        "h1",
        "q1",
        b"digest",
        "cell",
        0,
        0,
        "household",
        "replace-one",
        "laplace",
        "local",
        epsilon_micro=600_000,
        cap_micro=1_000_000,
    )
    with ledger.Ledger(run_folder / "ledger") as book:
        book.settle([charge], draw=lambda i: b"noised")
    rows = Report(run_folder).ledger
    assert rows[["household", "epsilon", "trust"]].values.tolist() == [["h1", 0.6, "local"]]


def test_large_runs_stay_small_pages(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", epsilons=(1.0,), seeds=(0, 1), rounds=1, oracle=False)
    spent = [
        {"household": f"h{i}", "cell": "c", "trust": "local", "epsilon_spent": float(np.sqrt(i)), "cap": 200.0}
        for i in range(20_000)
    ]
    edit(folder, spent=spent, quality=[{"household": f"h{i}", "missing": 1 + i % 3} for i in range(20_000)])
    text = write_report(folder).read_text()
    assert len(text) < 600_000
    assert "the 500 worst of 20,000" in text


def test_importing_report_is_light() -> None:
    code = (
        "import sys, fedenergy.report.report\n"
        "print(sorted({'pandas', 'matplotlib', 'rich', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_budget_above_its_cap_is_called_out(run_folder: Path) -> None:
    edit(run_folder, spent_most={"epsilon_spent": 2.0, "cap": 1.5})
    assert "ε = 2 of the 1.50 that its agreement allows per cell, by what the ledger holds: more than allowed, which must " \
        "not happen;" in " ".join(in_short(RunData.read(run_folder)))


def test_what_the_ledger_holds_is_told_from_what_this_run_spent(run_folder: Path) -> None:
    """The homes had spent 3 before, and this run's questions added nothing."""
    metrics = (run_folder / "metrics.csv").read_text()
    (run_folder / "metrics.csv").write_text(re.sub(r",epsilon_spent_max,[0-9.]+", ",epsilon_spent_max,0.0", metrics))
    rows = [{"household": f"h{i}", "cell": "", "trust": "", "epsilon_spent": 3.0, "cap": 3.0} for i in range(4)]
    edit(run_folder, noise="secure", spent=rows, spent_most={"epsilon_spent": 3.0, "cap": 3.0})
    data = RunData.read(run_folder)
    assert "has spent ε = 3 of the 3 that its agreement allows, by what the ledger holds; at most ε = 0 by this run." in \
        " ".join(in_short(data))
    [plate] = [plate for plate in gallery(data) if plate.name == "spent"]
    assert plate.caption == "4 budgets (homes, all cells together), by what the ledger holds. None is above its cap."
    edit(run_folder, spent=[], spent_most=None)  # too many homes to be looked up, or an older run
    assert "Each home spent at most ε = 0 by this run; what it had spent before is in the ledger." in " ".join(
        in_short(RunData.read(run_folder))
    )


def test_when_all_homes_refuse_the_page_says_so(run_folder: Path) -> None:
    lines = (run_folder / "metrics.csv").read_text().splitlines()
    keep = [line for line in lines if line.split(",")[-2] in ("metric", "refusals", "epsilon_spent_max")]
    keep += [re.sub(r",answers,.*", ",answers,0.0", line) for line in lines if ",answers," in line]
    (run_folder / "metrics.csv").write_text("\n".join(keep) + "\n")
    text = text_page(run_folder)
    assert "No home answered, so the errors are unknown" in text
    assert "No ranking: no home answered." in text
    assert "oracle = false" not in text


def test_what_granting_less_cuts_is_told_from_the_noise(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r", strategies={SECURE: "sum"}, seeds=(0,), rounds=1)
    assert "granted less" not in " ".join(in_short(RunData.read(folder)))
    metrics = folder / "metrics.csv"
    lines = metrics.read_text().splitlines()
    less = [re.sub(r",mae,.*", ",mae_less,12.5", line) for line in lines if ",mae," in line]
    metrics.write_text("\n".join([*lines, *less]) + "\n")
    texts = " ".join(in_short(RunData.read(folder)))
    assert "Clipping to 50 kWh², and to less where a home granted less than was asked, cut 12 % of the answers" in texts
    assert "puts the sums off by 12.5 kWh² on average" in texts
    assert "MAE, by granting less (kWh²)" in text_page(folder)
