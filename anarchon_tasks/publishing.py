"""The seam between the scheduler and the engine that carries its messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from anarchon_tasks.header import Header
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.model import RunRef, Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One message to publish: the attempt of a run that this instance holds a claim of."""

    job: Job
    ref: RunRef
    attempt: int
    token: int
    trigger: Trigger
    message_id: str
    header: Header
    due_ms: int
    expires_ms: int | None = None
    """Not to be started after this instant. Only of a first attempt that nobody tracks: the begin of a tracked run is
    refused by the store when it is too late."""
    now_ms: int = 0
    """The store's time when the run was won."""


class Sent(StrEnum):
    """What became of a message."""

    CONFIRMED = "confirmed"
    """The broker has it, as surely as it can tell."""
    FAILED = "failed"
    """The broker does not have it."""
    UNKNOWN = "unknown"
    """It may have it: the connection was lost after the message was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one envelope."""

    envelope: Envelope
    sent: Sent
    task_id: str = ""
    eta_ms: int = 0
    """When workers will see the message, if later than now (a countdown)."""
    error: str | None = None
    broker_down: bool = False
    """The broker itself does not answer: the next message would fare no better."""


class Publisher(Protocol):
    """Sends messages to one engine's broker. Called from one thread at a time."""

    def publish(self, envelopes: Iterable[Envelope]) -> Iterator[Outcome]:
        """Send each envelope when it is drawn, and yield its outcome before the next one is drawn.

        The envelopes come lazily, since the scheduler looks before each whether the claim is still its own. Nothing
        raises: an error is an outcome. One envelope takes seconds at most, also when the broker hangs.
        """
        ...

    def probe(self) -> str | None:
        """Try to reach a broker that did not answer, within seconds.

        Returns:
            None when it answers, else the error.

        """
        ...

    def close(self) -> None:
        """Close what was opened. Idempotent."""
        ...


class NoPublisher:
    """Stands where a scheduler that only reads would have a publisher."""

    def publish(self, envelopes: Iterable[Envelope]) -> Iterator[Outcome]:
        """Send nothing."""
        return (Outcome(envelope=envelope, sent=Sent.FAILED, error="there is no publisher") for envelope in envelopes)

    def probe(self) -> str | None:
        """Say that there is nothing to reach."""
        return "there is no publisher"

    def close(self) -> None:
        """Do nothing."""
