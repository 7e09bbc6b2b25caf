"""What an instance saw of outages, to say why a slot is late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.model import Reason

ENDS_S = 5.0
"""Failures no further apart than this are one outage; one that ended no longer ago may have made a slot late."""


class Outages:
    """Remembers the last outage of each kind, on the monotonic clock: the host's may be wrong, and may jump."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[Reason, tuple[float, float]] = {}

    def note(self, reason: Reason) -> None:
        """Note that something failed just now."""
        now = self._clock.monotonic()
        first, last = self._seen.get(reason, (now, now))
        self._seen[reason] = (first if now - last < ENDS_S else now, now)

    def at(self, instant: float) -> Reason | None:
        """Return what was out of order at a monotonic instant, or a moment before it."""
        for reason, (first, last) in self._seen.items():
            if first <= instant <= last + ENDS_S:
                return reason
        return None
