"""Progress of long work: a protocol for the engine, a Rich bar for terminals, lines for logs, silence for tests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO, runtime_checkable

from fedenergy.errors import one_line


@runtime_checkable
class Progress(Protocol):
    """What the engine tells while it works. Every call is cheap; none of them raises."""

    def start(self, total: int, label: str) -> None:
        """A new phase of `total` steps begins; the phase before it, if any, is over."""

    def advance(self, n: int = 1, *, failures: int = 0, refusals: int = 0, epsilon_max: float | None = None,
                label: str | None = None) -> None:
        """n more steps are done. failures and refusals are those *since the last call*; epsilon_max is the largest
        epsilon (not micro) that any home has spent so far: only a larger one is taken over."""

    def note(self, text: str) -> None:
        """One line worth keeping on the screen."""

    def close(self) -> None:
        """The work is over; safe to call twice."""


class SilentProgress:
    """Shows nothing."""

    def start(self, total: int, label: str) -> None: ...

    def advance(self, n: int = 1, *, failures: int = 0, refusals: int = 0, epsilon_max: float | None = None,
                label: str | None = None) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Tally:
    """The counts of one phase and their one-line text; shared by the bar and the lines."""

    def __init__(self, total: int, label: str, now: float):
        self.total, self.label, self.began = max(int(total), 0), label, now
        self.done = self.failures = self.refusals = 0
        self.epsilon_max: float | None = None

    def add(self, n: int, failures: int, refusals: int, epsilon_max: float | None, label: str | None) -> None:
        self.done += n
        self.failures += failures
        self.refusals += refusals
        if epsilon_max is not None and not (self.epsilon_max is not None and epsilon_max <= self.epsilon_max):
            self.epsilon_max = epsilon_max
        self.label = self.label if label is None else label

    def counts(self) -> str:
        """failures, refusals and epsilon, for example "2 refused, epsilon 1.05"."""
        pairs = ((self.failures, "failed"), (self.refusals, "refused"))
        parts = [f"{number} {word}" for number, word in pairs if number]
        if self.epsilon_max is not None:
            parts.append(f"epsilon {self.epsilon_max:.6g}")
        return ", ".join(parts)

    def line(self, now: float) -> str:
        """Label, done of total, share, time taken and time left, counts."""
        share = f" ({self.done / self.total:.0%})" if self.total else ""
        times = f"{clock_text(now - self.began)} elapsed"
        if 0 < self.done < self.total:
            times += f", {clock_text((now - self.began) * (self.total - self.done) / self.done)} left"
        return ", ".join(filter(None, (f"{self.label}: {self.done}/{self.total}{share}", times, self.counts())))


def clock_text(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock_text(75.2), clock_text(4000)
    ('1:15', '1:06:40')
    """
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class LineProgress:
    """A line at the start of a phase, every `every_seconds` while it advances, and at its end: for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, every_seconds: float = 5.0,
                 clock: Callable[[], float] = time.monotonic):
        self._stream, self._every, self._clock = stream or sys.stderr, every_seconds, clock
        self._tally: Tally | None = None
        self._printed = 0.0

    def start(self, total: int, label: str) -> None:
        self.close()
        self._tally = Tally(total, label, self._clock())
        self._print()

    def advance(self, n: int = 1, *, failures: int = 0, refusals: int = 0, epsilon_max: float | None = None,
                label: str | None = None) -> None:
        if self._tally is None:
            return
        self._tally.add(n, failures, refusals, epsilon_max, label)
        if self._clock() - self._printed >= self._every:
            self._print()

    def note(self, text: str) -> None:
        print(one_line(text), file=self._stream, flush=True)

    def close(self) -> None:
        if self._tally is not None:
            self._print()
            self._tally = None

    def _print(self) -> None:
        self._printed = self._clock()
        self.note(self._tally.line(self._printed))


class BarProgress:
    """A Rich bar with the time left, failures, refusals and the largest epsilon spent: for terminals."""

    def __init__(self, console: Any = None):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._console = console or Console(stderr=True)
        self._bars = Bars(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                          TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
                          TextColumn("{task.fields[counts]}", markup=False), console=self._console)
        self._tally: Tally | None = None
        self._task: Any = None

    def start(self, total: int, label: str) -> None:
        self._finish_phase()
        self._tally = Tally(total, one_line(label), time.monotonic())
        self._bars.start()
        self._task = self._bars.add_task(self._tally.label, total=self._tally.total, counts="")

    def advance(self, n: int = 1, *, failures: int = 0, refusals: int = 0, epsilon_max: float | None = None,
                label: str | None = None) -> None:
        if self._tally is None:
            return
        self._tally.add(n, failures, refusals, epsilon_max, label and one_line(label))
        self._bars.update(self._task, advance=n, description=self._tally.label, counts=self._tally.counts())

    def note(self, text: str) -> None:
        self._console.print(one_line(text), markup=False, highlight=False)

    def close(self) -> None:
        self._finish_phase()
        self._bars.stop()

    def _finish_phase(self) -> None:
        if self._tally is not None:
            self._bars.stop_task(self._task)
            self._tally = None


def open_progress(stream: TextIO | None = None) -> Progress:
    """A bar where the stream (default: stderr) is a terminal, lines elsewhere."""
    stream = stream or sys.stderr
    if not stream.isatty():
        return LineProgress(stream)
    from rich.console import Console

    return BarProgress(Console(file=stream))
