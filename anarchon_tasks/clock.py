"""Clocks: the host's, and the store's as seen from here.

Nothing else in the package asks the operating system for the time. Decisions are made on the store's clock, local
waiting on the monotonic one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """A source of time. Tests put their own in its place."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch by this host's clock."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never jump."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the time has passed; return whether it is set."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch by this host's clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never jump."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the time has passed; return whether it is set."""
        return event.wait(max(0.0, seconds))


@dataclass(slots=True)
class StoreClock:
    """The store's clock as this process sees it: what it last said, carried on by the monotonic clock.

    The host's wall clock is used only until the store has answered once, so a host whose clock is wrong, or jumps,
    schedules correctly.
    """

    clock: Clock
    _offset_ms: float | None = field(default=None)
    _error_ms: float = field(default=0.0)
    _sampled: float = field(default=0.0)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # How fast a sample loses its worth: oscillators drift by up to about 0.1 ms per second.
    _DRIFT_MS_PER_S = 0.1

    def now_ms(self) -> int:
        """Return the store's time, in milliseconds since the epoch."""
        offset = self._offset_ms
        if offset is None:
            return self.clock.wall_ms()
        return int(self.clock.monotonic() * 1000 + offset)

    def observe(self, store_ms: int, *, sent: float, received: float) -> int:
        """Learn from a reply that the store stamped between two monotonic instants.

        Returns:
            By how many milliseconds the store's clock moved against the monotonic clock beyond what the round trip
            explains: 0 in the normal case, positive when it jumped forward.

        """
        half = (received - sent) * 500
        offset = store_ms - (sent + received) * 500
        with self._lock:
            if self._offset_ms is None:
                self._offset_ms, self._error_ms, self._sampled = offset, half, received
                return 0
            aged = self._error_ms + (received - self._sampled) * self._DRIFT_MS_PER_S
            moved = offset - self._offset_ms
            jump = abs(moved) - half - aged - 1
            if half <= aged or jump > 0:
                self._offset_ms, self._error_ms, self._sampled = offset, half, received
            return 0 if jump <= 0 else int(moved)
