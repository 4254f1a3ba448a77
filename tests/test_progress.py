"""Progress: the text of a phase, lines for logs, a bar for terminals, silence."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedenergy.progress import BarProgress, LineProgress, Progress, SilentProgress, Tally, clock_text, open_progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def bar(width: int = 120) -> tuple[BarProgress, io.StringIO]:
    stream = io.StringIO()
    return BarProgress(Console(file=stream, force_terminal=True, width=width, color_system=None)), stream


def test_a_tally_tells_share_times_and_counts():
    tally = Tally(54, "cells", now=100.0)
    tally.add(27, failures=1, refusals=2, epsilon_max=1.05, label=None)
    tally.add(0, failures=0, refusals=1, epsilon_max=0.1, label=None)  # a smaller epsilon does not lower the largest
    # 27 of 54 in 90 s: the other half takes another 90 s
    assert tally.line(190.0) == "cells: 27/54 (50%), 1:30 elapsed, 1:30 left, 1 failed, 3 refused, epsilon 1.05"


@pytest.mark.parametrize(("total", "done", "text"), [
    (0, 0, "x: 0/0, 0:00 elapsed"), (4, 0, "x: 0/4 (0%), 0:00 elapsed"), (4, 4, "x: 4/4 (100%), 0:00 elapsed"),
    (4, 5, "x: 5/4 (125%), 0:00 elapsed"), (-3, 0, "x: 0/0, 0:00 elapsed")])
def test_a_tally_of_odd_totals_never_divides_by_zero(total, done, text):
    tally = Tally(total, "x", now=0.0)
    tally.add(done, 0, 0, None, None)
    assert tally.line(0.0) == text


def test_lines_come_at_the_start_then_every_few_seconds_then_at_the_end():
    clock, stream = Clock(), io.StringIO()
    progress = LineProgress(stream, every_seconds=5.0, clock=clock)
    progress.start(100, "homes")
    for second in range(1, 13):
        clock.now = float(second)
        progress.advance(8, epsilon_max=0.5)
    progress.note("one\nline")
    progress.close()
    progress.close()
    assert stream.getvalue().splitlines() == [
        "homes: 0/100 (0%), 0:00 elapsed",
        "homes: 40/100 (40%), 0:05 elapsed, 0:08 left, epsilon 0.5",
        "homes: 80/100 (80%), 0:10 elapsed, 0:02 left, epsilon 0.5",
        "one line",
        "homes: 96/100 (96%), 0:12 elapsed, 0:00 left, epsilon 0.5",
    ]


def test_a_second_phase_ends_the_first_and_starts_its_own_counts():
    stream = io.StringIO()
    progress = LineProgress(stream, clock=Clock())
    progress.advance()  # before any phase: nothing to tell
    progress.start(2, "fit")
    progress.advance(2, failures=1)
    progress.start(3, "ask")
    progress.advance(label="cell 2")
    progress.close()
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "fit: 0/2 (0%)", "fit: 2/2 (100%)", "ask: 0/3 (0%)", "cell 2: 1/3 (33%)"]
    assert "failed" not in stream.getvalue().splitlines()[-1]


def test_a_bar_shows_label_count_refusals_and_epsilon_without_reading_markup():
    progress, stream = bar()
    progress.start(4, "[bold]ask")
    progress.advance(3, refusals=2, epsilon_max=6.73)
    progress.note("[red]kept\nline")
    progress.start(2, "next")
    progress.advance(2, label="last [cell]")
    progress.close()
    progress.close()
    shown = stream.getvalue()
    for text in ("[bold]ask", "3/4", "2 refused, epsilon 6.73", "[red]kept line", "last [cell]", "2/2"):
        assert text in shown


def test_a_stream_that_is_no_terminal_gets_lines_and_a_terminal_a_bar():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(open_progress(io.StringIO()), LineProgress)
    assert isinstance(open_progress(Terminal()), BarProgress)


def test_every_kind_of_progress_fits_the_protocol():
    for progress in (SilentProgress(), LineProgress(io.StringIO()), bar()[0]):
        assert isinstance(progress, Progress)
        progress.start(1, "x")
        progress.advance(1, failures=0, refusals=0, epsilon_max=None, label="y")
        progress.note("z")
        progress.close()


def test_clock_text():
    assert [clock_text(s) for s in (-1, 0, 59.6, 3_599, 3_600)] == ["0:00", "0:00", "1:00", "59:59", "1:00:00"]
