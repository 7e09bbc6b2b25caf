"""Whether the store or the broker answers: a state with two edges, each told once."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from anarchon_tasks import events

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock

logger = logging.getLogger("anarchon_tasks")

SAID_AGAIN_S = 60.0
"""A refusal is told again when there was none for so long."""


class Availability:
    """Remembers since when something does not answer, and says so once when it stops and once when it returns."""

    def __init__(self, what: str, *, clock: Clock, tell: events.Events) -> None:
        self.what = what
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._down_since: float | None = None
        self._up_since: float | None = None

    @property
    def down(self) -> bool:
        """Whether the last try failed."""
        return self._down_since is not None

    def up_for(self) -> float:
        """Return for how many seconds it has answered since its last outage; infinite when there was none."""
        since = self._up_since
        return float("inf") if since is None else self._clock.monotonic() - since

    def failed(self, error: BaseException | str, *, sent: float = float("inf")) -> None:
        """Note that a try failed that was made at that monotonic instant.

        What was under way when the state changed says nothing of the time after it: else an outage that ends while a
        call of another thread hangs would be told twice.
        """
        with self._lock:
            if self._down_since is not None or sent < (self._up_since or sent):
                return
            self._down_since = self._clock.monotonic()
        logger.warning("%s does not answer: %s", self.what, error, extra={"anarchon": {"event": f"{self.what}-down"}})
        self._tell.emit(events.Down(what=self.what, error=str(error)))

    def answered(self, *, sent: float = float("inf")) -> None:
        """Note that a try succeeded that was made at that monotonic instant; one made before the failure is no sign."""
        if not self.down:
            return
        with self._lock:
            since = self._down_since
            if since is None or sent < since:
                return
            self._down_since = None
            self._up_since = now = self._clock.monotonic()
        seconds = now - since
        logger.warning(
            "%s answers again after %.1f s", self.what, seconds, extra={"anarchon": {"event": f"{self.what}-up"}}
        )
        self._tell.emit(events.Up(what=self.what, seconds=seconds))


class Refusals:
    """Knows which refusals of a server are news: another text than the last one, or the same after a minute."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._said = ""
        self._at = 0.0

    def news(self, error: BaseException) -> bool:
        """Return whether this refusal should be told. Calls that succeed in between are no reason to repeat it."""
        now, said = self._clock.monotonic(), str(error)
        fresh = said != self._said or now - self._at > SAID_AGAIN_S
        self._said, self._at = said, now
        return fresh
