"""The nouns of a run: references, states, reasons, and the record of an attempt.

Times are integer milliseconds since the Unix epoch, UTC, on the store's clock.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

_IDS = uuid.UUID("5c8d2b1e-6f3a-5e0c-9d53-0a2f1c7b4e90")


class Status(StrEnum):
    """Where a run, or one attempt of it, stands."""

    CLAIMED = "claimed"
    """An instance holds the run and is about to publish it."""
    QUEUED = "queued"
    """Its message is with the broker; or a retry of the task waits there."""
    RUNNING = "running"
    """A worker has begun it and beats for it."""
    ENQUEUED = "enqueued"
    """Published, and nobody reports back: the end of a run that is not tracked."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """Its worker died. As the end of a run: and the attempts are used up."""
    LOST = "lost"
    """Published, but never started."""
    EXPIRED = "expired"
    """Past its start deadline before it started."""
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    """Decided not to run; the reason says why."""
    MISSED = "missed"
    """Should have run and could not; the reason says why."""


OPEN = frozenset({Status.CLAIMED, Status.QUEUED, Status.RUNNING})
"""The states of a run that has not ended."""


class Reason(StrEnum):
    """Why a run or an attempt ended as it did, where its status alone does not tell."""

    OVERLAP = "overlap"
    """An earlier run of the job was under way when the slot was due."""
    SUPERSEDED = "superseded"
    """A newer slot of the job was taken in its stead."""
    TOO_LATE = "too_late"
    NO_INSTANCE = "no_instance"
    """No scheduler that has the job was alive while the slot could be claimed."""
    PUBLISH_FAILED = "publish_failed"
    """The broker refused the message for as long as the slot could be claimed."""
    PUBLISH_UNKNOWN = "publish_unknown"
    """The publish may have happened or not, and the job asks for at most one."""
    STORE_UNAVAILABLE = "store_unavailable"
    TAKEN_OVER = "taken_over"
    """The lease of this attempt ran out and the next attempt took its place."""
    WORKER_LOST = "worker_lost"
    """The process that executed the attempt died."""
    TIME_LIMIT = "time_limit"
    NEVER_STARTED = "never_started"
    IGNORED = "ignored"
    """The task raised the engine's `Ignore`."""
    REPLACED = "replaced"
    REJECTED = "rejected"
    RETRY_LOST = "retry_lost"
    """The task asked for a retry, and its message never came back."""
    UNREGISTERED = "unregistered"
    """The worker does not know the task."""
    REVOKED = "revoked"
    DEADLINE = "deadline"


class Trigger(StrEnum):
    """What asked for a run."""

    SCHEDULE = "schedule"
    MANUAL = "manual"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, order=True)
class RunRef:
    """The identity of a run within a namespace: its job, its slot, and a key that only manual runs have."""

    job: str
    slot: int
    key: str = ""

    @property
    def run(self) -> str:
        """The run's name within its job: `"1791633610000"`, or with a key `"1791633610000:nightly"`."""
        return f"{self.slot}:{self.key}" if self.key else str(self.slot)

    @classmethod
    def parse(cls, job: str, run: str) -> RunRef:
        """Read back what `run` wrote."""
        slot, _, key = run.partition(":")
        return cls(job, int(slot), key)


def message_id(namespace: str, ref: RunRef, attempt: int) -> str:
    """Return the id that every message of this attempt carries, whoever publishes it and however often."""
    return str(uuid.uuid5(_IDS, json.dumps([namespace, ref.job, ref.slot, ref.key, attempt])))


def iso(ms: int | None) -> str | None:
    """Write an instant in ISO 8601 with milliseconds and `Z`."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt of a run, or a stretch of slots that share one fate, as the history tells it."""

    job: str
    slot: int
    """The planned instant. Of a stretch of slots: the last one."""
    key: str = ""
    trigger: Trigger = Trigger.SCHEDULE
    attempt: int = 1
    token: int = 0
    status: Status
    reason: str | None = None
    count: int = 1
    """How many slots this entry stands for."""
    first_slot: int | None = None
    """Of a stretch of slots: the first one."""
    tracked: bool = True
    due: int | None = None
    """When the slot was to be enqueued: the slot plus its jitter."""
    instance: str | None = None
    """The scheduler that won the claim."""
    worker: str | None = None
    """The worker that executed the attempt."""
    pid: int | None = None
    """Its process."""
    claimed_at: int | None = None
    enqueued_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    publishes: int = 0
    """How many times the broker confirmed a message of this attempt."""
    retries: int = 0
    """How many retries of the task's own this attempt has seen."""
    refused: int = 0
    """How many late writes of this attempt were refused after it had lost the run. One that was sent again, because its
    reply was lost, counts again."""
    task_id: str | None = None
    error: str | None = None

    @property
    def scheduled_for(self) -> datetime:
        """The slot as an aware datetime, UTC."""
        return datetime.fromtimestamp(self.slot / 1000, UTC)

    @property
    def lateness_ms(self) -> int | None:
        """How long after its due time the run was enqueued; None while it was not."""
        at = self.enqueued_at if self.enqueued_at is not None else self.started_at
        return None if at is None else at - (self.due if self.due is not None else self.slot)

    @property
    def duration_ms(self) -> int | None:
        """How long the attempt ran; None unless it started and ended."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at

    def to_json(self) -> dict[str, Any]:
        """Return the run for people and programs: every key present, instants in ISO 8601, None where unknown."""
        row = asdict(self)
        for name in ("first_slot", "due", "claimed_at", "enqueued_at", "started_at", "finished_at"):
            row[name] = iso(row[name])
        row["scheduled_for"] = iso(self.slot)
        row["lateness_ms"] = self.lateness_ms
        row["duration_ms"] = self.duration_ms
        row["status"], row["trigger"] = self.status.value, self.trigger.value
        return row
