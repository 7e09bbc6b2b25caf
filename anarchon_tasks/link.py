"""A process's way to its store: the clock, the outages and the grace after them, learned from every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from anarchon_tasks.availability import Availability
from anarchon_tasks.clock import Clock, StoreClock
from anarchon_tasks.errors import StoreUnavailable, TooFewReplicas

if TYPE_CHECKING:
    from collections.abc import Callable

    from anarchon_tasks import events
    from anarchon_tasks.stores.base import LeaseStore, Reply

A = TypeVar("A")

_READS = frozenset({"definitions", "expired", "history", "last_runs", "queues", "repair", "time"})
"""Calls that a store may answer though it takes nothing in: a locked file, a full memory, a replica."""


class StoreLink:
    """Calls the store, and knows its time.

    After an outage, or a jump of the store's clock by more than a third of the lease, nothing is taken over for
    `grace_s` seconds: the live workers beat first. Of an outage that ended just before its start a process cannot know,
    so it takes no run from a worker for as long after the store's first answer.
    """

    def __init__(
        self, store: LeaseStore, *, clock: Clock, tell: events.Events, lease_ms: int, heartbeat_ms: int
    ) -> None:
        self.store = store
        self.time = StoreClock(clock)
        self.availability = Availability("store", clock=clock, tell=tell)
        self._clock = clock
        self._jump_ms = lease_ms / 3
        self._grace_s = heartbeat_ms / 1000 + 1.0
        self._jumped_at: float | None = None
        self._known_since: float | None = None
        self._takes_nothing = False

    def call(self, operation: Callable[..., Reply[A]], *args: Any, **options: Any) -> Reply[A]:  # noqa: ANN401
        """Make one call.

        Raises:
            StoreUnavailable: The store does not answer. It has been noted and logged.

        """
        sent = self._clock.monotonic()
        reads = getattr(operation, "__name__", "") in _READS
        try:
            reply = operation(*args, **options)
        except TooFewReplicas:  # it answers, and says itself when that begins and when it ends
            self._answered(sent, reads=reads)
            raise
        except StoreUnavailable as error:
            self._takes_nothing |= not reads
            self.availability.failed(error, sent=sent)
            raise
        received = self._clock.monotonic()
        if self._known_since is None:
            self._known_since = received
        self._answered(sent, reads=reads)
        if abs(self.time.observe(reply.now_ms, sent=sent, received=received)) > self._jump_ms:
            self._jumped_at = received
        return reply

    def _answered(self, sent: float, *, reads: bool) -> None:
        """Note an answer. What a write found out of order is in order when one succeeds; it is repeated until then."""
        if reads and self._takes_nothing:
            return
        self.availability.answered(sent=sent)
        self._takes_nothing = self.availability.down

    def undisturbed_s(self) -> float:
        """Return for how long the store has answered, and its clock has not jumped."""
        if self.availability.down:
            return 0.0
        jumped = float("inf") if self._jumped_at is None else self._clock.monotonic() - self._jumped_at
        return min(self.availability.up_for(), jumped)

    @property
    def in_grace(self) -> bool:
        """Whether live workers must be given the time to beat before anybody is taken over."""
        return self.undisturbed_s() < self._grace_s

    @property
    def may_take_over(self) -> bool:
        """Whether a run may be taken from a worker that is silent: those who live have had the time to beat."""
        since = self._known_since
        return since is not None and self._clock.monotonic() - since >= self._grace_s and not self.in_grace
