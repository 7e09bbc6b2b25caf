"""What a scheduler says of its claims: an event and a line in the log for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from anarchon_tasks import events
from anarchon_tasks.model import Reason, Status
from anarchon_tasks.stores.base import ClaimKind
from anarchon_tasks.stores.rules import SETTLED, overlapped

if TYPE_CHECKING:
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.model import RunRef
    from anarchon_tasks.stores.base import Claim, ClaimAnswer

logger = logging.getLogger("anarchon_tasks.scheduler")


class Telling:
    """Tells what became of claims. Of an end that a claim decided, the instance that made the claim speaks alone."""

    def __init__(self, tell: events.Events) -> None:
        self._tell = tell

    def won(self, claim: Claim, answer: ClaimAnswer, *, recovery: bool) -> None:
        """Tell of a run that was won, and of the slots that its claim settled."""
        ref = claim.ref
        kind = events.TookOver if recovery else events.Won
        self._tell.emit(kind(ref=ref, attempt=answer.attempt, token=answer.token))
        if recovery:
            logger.info(
                "took over %s slot %s as attempt %s",
                ref.job,
                ref.slot,
                answer.attempt,
                extra=extra("took-over", ref.job, slot=ref.slot, attempt=answer.attempt),
            )
        self._stretches(claim, skipped=False)

    def not_won(self, claim: Claim, answer: ClaimAnswer, *, recovery: bool) -> None:
        """Tell of what the claim decided instead: a slot that does not run, or the end of a run; else nothing."""
        if not recovery and answer.kind in {ClaimKind.OVERLAP, ClaimKind.LATE}:
            self._stretches(claim, skipped=answer.kind is ClaimKind.OVERLAP)
        if answer.reason is None or answer.status is None:
            return
        status = Status.SKIPPED if answer.kind is ClaimKind.OVERLAP else answer.status
        if status in SETTLED:
            slot = claim.ref.slot
            self._settled(claim.ref.job, slot, slot, 1, status, answer.reason)
        else:
            tell_ended(self._tell, claim.ref, answer.attempt, answer.token, answer.status, answer.reason)

    def failed(self, job: Job, answer: ClaimAnswer) -> None:
        """Tell of a claim that the store could not decide."""
        logger.error("a claim of job %r failed: %s", job.name, answer.error, extra=extra("claim", job.name))

    def _stretches(self, claim: Claim, *, skipped: bool) -> None:
        for item in map(overlapped, claim.ranges) if skipped else claim.ranges:
            self._settled(claim.ref.job, item.first, item.last, item.count, item.status, item.reason)

    def _settled(self, job: str, first: int, last: int, count: int, status: Status, reason: Reason) -> None:
        level = logging.WARNING if status is Status.MISSED else logging.INFO
        logger.log(level, "%s: %s slot(s) %s (%s)", job, count, status.value, reason.value, extra=extra("settled", job))
        self._tell.emit(
            events.Settled(job=job, first=first, last=last, count=count, status=status.value, reason=reason.value)
        )


def tell_ended(
    tell: events.Events, ref: RunRef, attempt: int, token: int, status: Status, reason: Reason | None
) -> None:
    """Tell of a run that a scheduler ended: nobody executes it, and nobody will."""
    why = reason.value if reason else None
    logger.warning(
        "%s slot %s attempt %s ended: %s (%s)",
        ref.job,
        ref.slot,
        attempt,
        status.value,
        why,
        extra=extra("ended", ref.job, slot=ref.slot, attempt=attempt, status=status.value),
    )
    tell.emit(events.Ended(ref=ref, attempt=attempt, token=token, status=status.value, accepted=True, reason=why))


def extra(event: str, job: str, **more: object) -> dict[str, object]:
    """Return what a log line carries for programs."""
    return {"anarchon": {"event": event, "job": job, **more}}
