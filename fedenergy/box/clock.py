"""The boxes' clock: it never runs back, not even over a restart, so that no expired agreement revives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedenergy.box.admission import Clock


class StoredClock:
    """A Clock whose high-water mark is kept in a file, shared by all processes of a ledger.

    The file is written, durably, whenever the mark has moved by a second: once a second at most.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._clock = Clock(self._stored())
        self._written = self._clock.high

    def read(self, now: int) -> int:
        """now, whole seconds since 1970 UTC, or the highest time that any process saw if that is later."""
        high = self._clock.read(now)
        if high > self._written:
            high = self._clock.read(self._store(high))
            self._written = high
        return high

    def _stored(self) -> int:
        try:
            text = self.path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return 0
        return int(text) if text.isdigit() else 0  # a torn write loses one step of the mark, not the budget

    def _store(self, high: int) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read().strip()
            high = max(high, int(text) if text.isdigit() else 0)
            file.seek(0)
            file.write(f"{high:<20d}")  # one fixed-width write, in place
            file.flush()
            os.fsync(file.fileno())
        return high
