"""Pages of studies: what a source claims beside what our runs yield. Made of the report's own pieces."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

import fedenergy
from fedenergy.report import axes as look
from fedenergy.report import markup, svg
from fedenergy.report.gallery import Plate
from fedenergy.report.style import CSS, PAGE
from fedenergy.report.words import minus, number

HOLDS, PARTLY, FAILS, OPEN_QUESTION = "holds", "holds in part", "does not hold", "cannot be tested here"
WIDTH = 5.2
EXTRA = """
td.wide { min-width: 10.5rem; max-width: 30rem; }
"""


@dataclass(frozen=True)
class Claim:
    """One claim of a source: what it says, its number, what our run yields, and a verdict computed from that.

    rule   by what the verdict was decided, for the reader; own: a question of ours that the source leaves open
    """

    figure: str
    claim: str
    source: str
    ours: str
    verdict: str
    rule: str = ""
    own: bool = False


@dataclass(frozen=True)
class Part:
    """A section of the page: HTML (already escaped by the markup functions), then its plates (plate.section == key)."""

    key: str
    title: str
    html: str = ""
    inside: bool = False


def judged(*conditions: bool) -> str:
    """The verdict of a claim made of several statements: all true, some, none.

    >>> judged(True, True), judged(True, False), judged(False)
    ('holds', 'holds in part', 'does not hold')
    """
    return HOLDS if all(conditions) else PARTLY if any(conditions) else FAILS


def claims_frame(claims: Iterable[Claim]) -> pd.DataFrame:
    """The "what holds" table as a frame: figure, claim, source, ours, verdict, rule."""
    return pd.DataFrame([vars(claim) for claim in claims], columns=[item.name for item in fields(Claim)])


def claims_table(claims: Iterable[Claim], caption: str) -> str:
    """The "what holds" table as HTML."""
    titles = ["figure", "claim", "the source's number", "our run", "verdict", "decided by"]
    return markup.table(titles, [[c.figure, c.claim, c.source, c.ours, c.verdict, c.rule] for c in claims],
                        f"{caption} Verdicts are computed from this run by the rule beside them.", titles, tall=False)


def frame_table(frame: pd.DataFrame, caption: str, formats: dict[str, Callable[[object], str]] | None = None) -> str:
    """A frame as a table: numbers with three digits unless a column has its own format."""
    formats = formats or {}
    text = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    rows = [[(formats.get(name) or number)(value) for name, value in zip(frame.columns, row, strict=True)]
            for row in frame.itertuples(index=False, name=None)]
    return markup.table([str(name) for name in frame.columns], rows, caption, [str(name) for name in text])


def percent(value: object, digits: int = 1) -> str:
    """A share as a signed-where-negative percentage.

    >>> percent(-0.0161), percent(0.08)
    ('−1.6 %', '8.0 %')
    """
    return minus(f"{float(value):.{digits}%}".replace("%", " %"))


def axes(height: float = 3.1, rows: int = 1, columns: int = 1, **kind) -> tuple[Figure, list[Axes]]:
    """A figure with the report's look and its axes, row by row."""
    return look.axes(height, rows, columns, width=WIDTH, **kind)


def legend(figure: Figure, ax: Axes, columns: int = 2, handles: Sequence | None = None) -> None:
    """A legend below the axes: of their own lines, or of the handles."""
    look.legend(figure, ax.get_legend_handles_labels()[0] if handles is None else handles, columns, handlelength=1.9,
                columnspacing=1.4)


def plain_ticks(*which) -> None:
    """Plain numbers instead of powers of ten."""
    for axis in which:
        axis.set_major_formatter(FuncFormatter(lambda value, _: minus(f"{round(value, 12):,.6g}")))


def write_page(path: Path, *, title: str, meta: str, short: Iterable[str], parts: Sequence[Part],
               plates: Sequence[Plate], stamp: str = "", kicker: str = "fedenergy study") -> Path:
    """Write one page that opens without a network, and its figures (SVG, PNG) into figures/ beside it."""
    figures = path.parent / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for plate in plates:
        svg.save(plate.figure, plate.svg, figures / plate.name)
    body = ('<section class="short" aria-labelledby="short"><h2 id="short">In short</h2>'
            f"{markup.bullets(short)}</section>")
    for part in parts:
        own = "".join(markup.figure(p.title, svg.inline(p.svg, p.name, p.alt), p.caption, part.inside)
                      for p in plates if p.section == part.key)
        body += (f'\n<section aria-labelledby="{part.key}"><h2 id="{part.key}">{markup.escape(part.title)}</h2>'
                 + (f'<div class="plates">{own}</div>' if own else "") + part.html + "</section>")
    page = string.Template(PAGE.replace("fedenergy report", kicker)).substitute(
        title=markup.escape(title), css=CSS + EXTRA, meta=markup.escape(meta),
        stamp=f'<p class="stamp">{markup.escape(stamp)}</p>' if stamp else "",
        contents="".join(f'<li><a href="#{part.key}">{markup.escape(part.title)}</a></li>' for part in parts),
        body=body, footer=f"Written by fedenergy {fedenergy.__version__}. The run that wrote this page computed every "
                          "number on it, but for those quoted as the source's.")
    path.write_text(page, encoding="utf-8", newline="\n")
    return path
