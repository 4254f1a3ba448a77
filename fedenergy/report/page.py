"""One self-contained HTML page from a run folder: no network, no scripts, light and dark, phone and paper."""

from __future__ import annotations

import string
from pathlib import Path

from fedenergy.errors import naming
from fedenergy.report import audit_page, markup, sections, svg, tiers
from fedenergy.report.gallery import Plate, gallery
from fedenergy.report.load import RunData
from fedenergy.report.prose import in_short
from fedenergy.report.style import CSS, PAGE


def write_report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write report.html (or path) and figures/*.svg and *.png from a finished run; returns the page's path.

    Raises RunFolderError where the folder is no finished run. The same run gives the same bytes.
    """
    data = RunData.read(folder)
    plates = gallery(data)
    figures = data.folder / "figures"
    figures.mkdir(exist_ok=True)
    for plate in plates:
        svg.save(plate.figure, plate.svg, figures / plate.name)
    path = data.folder / "report.html" if path is None else Path(path)
    with naming(path):
        path.write_text(page(data, plates), encoding="utf-8", newline="\n")
    return path


def page(data: RunData, plates: list[Plate] | None = None) -> str:
    """The page as text."""
    plates = gallery(data) if plates is None else plates
    parts = [
        ("privacy", "Privacy", sections.privacy(data)),
        ("ran", "What ran", sections.ran(data)),
        ("results", "Results", sections.results(data, plates)),
        ("zone", "Zone report", sections.zone(data)),
        *([("cloud", "Zones and the cloud", tiers.section(data))] if tiers.zone_of(data) else []),
        ("ranking", "Ranking", sections.ranked(data)),
        ("truth", "True and released", sections.truth(data, plates)),
        ("spent", "Spent budget", sections.spent(data, plates)),
        ("refusals", "Refusals", sections.refused(data, plates)),
        ("inside", "Inside one home", sections.inside(data, plates)),
        ("quality", "Data quality", sections.quality(data)),
        ("audit", "Audit", audit_page.section(data)),
        ("reproduce", "Reproduce", sections.reproduce(data)),
    ]
    findings = markup.bullets(in_short(data))
    short = f'<section class="short" aria-labelledby="short"><h2 id="short">In short</h2>{findings}</section>'
    return string.Template(PAGE).substitute(
        title=markup.escape(data.title),
        css=CSS,
        meta=sections.meta(data),
        stamp=sections.stamp(data),
        contents="".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in parts),
        body=short
        + "".join(
            f'\n<section aria-labelledby="{key}"><h2 id="{key}">{title}</h2>{html}</section>'
            for key, title, html in parts
        ),
        footer=markup.escape(
            f"Written by fedenergy {data.versions.get('fedenergy', '')} from {data.folder.resolve().name}. "
            "Every number on this page was computed from the files of that folder."
        ),
    )
