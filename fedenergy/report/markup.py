"""Small pieces of HTML. Every text that enters is escaped here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

TALL = 24  # rows from which a table scrolls within its own height


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    left: Iterable[str] = (),
    group: int | None = None,
    tall: bool = True,
) -> str:
    """A table in its own scrolling box.

    titles, rows  plain text; the first column is the row's heading
    left          titles of text columns (the others are numbers, aligned right)
    group         a column at whose changes a stronger line is drawn
    """
    text = {0, *(i for i, title in enumerate(titles) if title in set(left))}
    wide = {i for i in text if any(len(row[i]) > 40 for row in rows)}
    classes = {
        i: f' class="{"" if i in text else "n"}{"wide" if i in wide else ""}"'
        for i in range(len(titles))
        if i not in text or i in wide
    }
    head = "".join(f'<th scope="col"{classes.get(i, "")}>{escape(title)}</th>' for i, title in enumerate(titles))
    lines, before = [], None
    for row in rows:
        new = group is not None and before is not None and row[group] != before
        before = row[group] if group is not None else None
        cells = "".join(f"<td{classes.get(i, '')}>{escape(cell)}</td>" for i, cell in enumerate(row) if i)
        lines.append(f'<tr{" class=group" if new else ""}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    scroll = "scroll tall" if tall and len(rows) > TALL else "scroll"
    return (
        f'<div class="{scroll}" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption><span>{escape(caption)}</span>"
        f"</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """A list of terms and values."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(value)}</dd>" for term, value in items) + "</dl>"


def paragraph(text: str, style: str = "") -> str:
    return f"<p{f' class={style}' if style else ''}>{escape(text)}</p>"


def bullets(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def details(summary: str, inner: str) -> str:
    """A collapsible block; inner is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def code(text: str) -> str:
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def download(csv: str, name: str) -> str:
    """A link that saves the CSV out of the page itself."""
    data = base64.b64encode(csv.encode()).decode()
    link = f'<a download="{escape(name)}" href="data:text/csv;charset=utf-8;base64,{data}">Save as CSV</a>'
    return f'<p class="note download">{link}</p>'


def figure(title: str, svg: str, caption: str, inside: bool = False) -> str:
    tag = ' <span class="tag">inside view</span>' if inside else ""
    return f"<figure><h3>{escape(title)}{tag}</h3>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
