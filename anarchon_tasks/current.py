"""The run that this code executes, as `current_run()` gives it to a task."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextvars import Token

    from anarchon_tasks.clock import Clock
    from anarchon_tasks.errors import LeaseLost
    from anarchon_tasks.header import Header
    from anarchon_tasks.model import RunRef, Trigger
    from anarchon_tasks.stores.base import Delivered


@dataclass(slots=True, eq=False, kw_only=True)
class CurrentRun:
    """The run that this code executes, as `current_run()` gives it."""

    header: Header = field(repr=False)
    attempt: int
    token: int
    """The fencing token: protect your own writes with it, and refuse those that carry a lower one."""
    delivered: Delivered = field(repr=False)
    lease_s: float = field(repr=False)
    deadline: float = field(repr=False)
    """When, on the monotonic clock, this process must stop believing that it holds the lease."""
    lost_error: type[LeaseLost] = field(repr=False)
    clock: Clock = field(repr=False)
    told_lost: bool = field(default=False, repr=False)

    @property
    def lost(self) -> bool:
        """Whether the run is no longer this worker's: another attempt has it, or the store is out of reach too long.

        Asked of the clock, so that it is true in time also while the call of a heartbeat hangs.
        """
        return self.told_lost or self.clock.monotonic() >= self.deadline

    @property
    def ref(self) -> RunRef:
        """The identity of the run."""
        return self.header.ref

    @property
    def job(self) -> str:
        """The job's name."""
        return self.header.ref.job

    @property
    def slot(self) -> int:
        """The planned instant, in milliseconds since the Unix epoch."""
        return self.header.ref.slot

    @property
    def scheduled_for(self) -> datetime:
        """The planned instant, as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.slot / 1000, UTC)

    @property
    def trigger(self) -> Trigger:
        """What asked for the run."""
        return self.header.trigger

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` when the run is no longer this worker's.

        Raises:
            LeaseLost: Of a class that the running engine takes as a quiet end of the task.

        """
        if self.lost:
            message = (
                f"the run {self.job!r} {self.scheduled_for.isoformat()} (attempt {self.attempt}) is no longer this "
                "worker's: another attempt may execute. Stop, and write nothing more"
            )
            raise self.lost_error(message)


_current: ContextVar[CurrentRun | None] = ContextVar("anarchon_run", default=None)


def current_run() -> CurrentRun | None:
    """Return the run that this code executes, or None when it was not a scheduler that sent the task."""
    return _current.get()


def enter(run: CurrentRun) -> Token[CurrentRun | None]:
    """Make `current_run()` return this run; give the token back to `leave`."""
    return _current.set(run)


def leave(token: Token[CurrentRun | None]) -> None:
    """Undo `enter`. In another context than the one that entered, forget the run there."""
    try:
        _current.reset(token)
    except ValueError:
        _current.set(None)
