"""Figures to files and into a page: deterministic SVG, and SVG whose colours are CSS variables."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b1f24", "#5c6670", "#d9dee3"
# Seven hues that differ for every common colour blindness; markers tell them apart too.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#3aa0d8", "#c28a00", "#5b5f97")
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {hue: f"--c{i}" for i, hue in enumerate(PALETTE)}


def render(figure: Figure) -> str:
    """The figure as SVG text on no ground; the same figure gives the same text."""
    buffer = io.StringIO()
    # Text stays text (searchable, small); a fixed salt and no date make equal figures equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedenergy"}), _quiet():
        _lay_out(figure)
        figure.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", buffer.getvalue(), flags=re.M)


def save(figure: Figure, text: str, stem: Path) -> tuple[Path, Path]:
    """Write stem.svg (from its rendered text) and stem.png, both on white, for papers."""
    paths = stem.with_suffix(".svg"), stem.with_suffix(".png")
    after = text.index(">", text.index("<svg")) + 1
    paths[0].write_text(
        f'{text[:after]}\n <rect width="100%" height="100%" fill="white"/>{text[after:]}',
        encoding="utf-8",
        newline="\n",
    )
    with _quiet():
        _lay_out(figure)
        figure.set_facecolor("white")
        FigureCanvasAgg(figure).print_png(str(paths[1]), metadata={"Software": None})
    return paths


def inline(text: str, name: str, alt: str) -> str:
    """Rendered SVG as an element for HTML: as wide as its box, colours from the page's CSS variables.

    name: prefix of every id in it, so that figures of one page do not share ids
    alt: its description for a screen reader
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    box = re.search(r'viewBox="([^"]*)"', text)
    head = f'<svg viewBox="{box[1] if box else "0 0 100 100"}" role="img" aria-label="{html.escape(alt)}">'
    text = head + text[text.index(">") + 1 :]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text


def _lay_out(figure: Figure) -> None:
    """Place the parts once: the layout is most of the work, and every format shares it."""
    if figure.get_layout_engine() is not None:
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # "none" would leave a placeholder that lays out again


@contextmanager
def _quiet() -> Iterator[None]:
    """Names in any script may stand on a figure: the browser has the glyphs that matplotlib's font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield
