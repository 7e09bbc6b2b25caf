"""What happens, as typed events, and who is told.

| event | when |
| --- | --- |
| `Started`, `Stopped` | a scheduler starts, stops |
| `Won` | a claim was won |
| `Enqueued` | the broker confirmed a run's message |
| `PublishFailed` | it did not; the claim was handed back |
| `Settled` | a slot, or a stretch of slots, was decided not to run |
| `TookOver` | a run whose claim, message or worker was lost was claimed again |
| `Began`, `Refused`, `LeaseLost` | in a worker |
| `Ended` | in a worker, or in the scheduler whose claim ended a run: lost, expired, interrupted |
| `Down`, `Up` | the store or the broker stopped answering, answers again |
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from anarchon_tasks.model import RunRef

logger = logging.getLogger("anarchon_tasks.events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """A scheduler started."""

    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """It stopped."""

    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(Event):
    """Something happened to a run."""

    ref: RunRef
    attempt: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Won(RunEvent):
    """This instance won the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver(RunEvent):
    """This instance won a run that had been another's: its claim, its message or its worker was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(RunEvent):
    """The broker confirmed the message."""

    task_id: str
    lateness_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed(RunEvent):
    """The broker did not take the message; the claim was handed back."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Event):
    """Slots were decided not to run."""

    job: str
    first: int
    last: int
    count: int
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Began(RunEvent):
    """The worker was admitted and starts the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(RunEvent):
    """The worker was not admitted: the message is a duplicate or stale."""

    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(RunEvent):
    """The worker reported the end of the run; or a scheduler ended it, because nobody executes it."""

    status: str
    accepted: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(RunEvent):
    """The run is no longer this worker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Down(Event):
    """The store or the broker stopped answering."""

    what: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Up(Event):
    """It answers again."""

    what: str
    seconds: float


class Events:
    """Tells listeners. A listener that raises is logged and hurts nobody."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[Event], None], ...] = ()
        self._lock = threading.Lock()

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call the listener with every event from now on; return what ends it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("listener-failed", extra={"anarchon": {"event": type(event).__name__}})
