"""From a won claim to a message with the broker, and the record of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anarchon_tasks import events
from anarchon_tasks._loops.telling import tell_ended
from anarchon_tasks.availability import Availability
from anarchon_tasks.header import Header
from anarchon_tasks.model import Reason, Status, Trigger, message_id
from anarchon_tasks.publishing import Envelope, Outcome, Publisher, Sent
from anarchon_tasks.stores.base import Claim, ClaimAnswer, Delivery, Policy, Queued, Release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from anarchon_tasks._loops.holding import Holding
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.link import StoreLink
    from anarchon_tasks.model import RunRef

logger = logging.getLogger("anarchon_tasks.scheduler")

CHUNK = 100
RECORD_AFTER_S = 0.05
PROBE_EVERY_S = 1.0
SMOOTHING = 0.05


@dataclass(frozen=True, slots=True)
class WonRun:
    """A run that this instance holds and is about to publish."""

    envelope: Envelope
    policy: Policy


class Dispatch:
    """Publishes won runs through the engine's publisher and records what became of each."""

    def __init__(
        self,
        *,
        link: StoreLink,
        publisher: Publisher,
        holding: Holding,
        clock: Clock,
        tell: events.Events,
        claim_lease_s: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._link = link
        self._publisher = publisher
        self._holding = holding
        self._clock = clock
        self._tell = tell
        self._claim_lease_s = claim_lease_s
        self._stopping = stopping
        self._broker = Availability("broker", clock=clock, tell=tell)
        self._probe_at = 0.0
        self._queued: list[Queued] = []
        self._released: list[tuple[Release, int]] = []
        """What is handed back, and the attempt that it was."""
        self._publish_s = 0.005
        """What one publish takes, of late; the records in between do not count."""
        self._drawn: RunRef | None = None
        """The run whose message the publisher is sending."""

    # --- how much, and whether at all --------------------------------------------------------------------------------

    def chunk(self) -> int:
        """Return how many runs to claim at once: what a third of the claim's lease suffices to publish."""
        return max(1, min(CHUNK, int(self._claim_lease_s / 3 / max(self._publish_s, 1e-6))))

    def broker_ready(self) -> bool:
        """Whether to claim at all: a broker that did not answer is probed once a second first."""
        if not self._broker.down:
            return True
        now = self._clock.monotonic()
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_EVERY_S
        if self._publisher.probe() is not None:
            return False
        self._broker.answered()
        return True

    # --- publish -----------------------------------------------------------------------------------------------------

    def won(self, job: Job, claim: Claim, answer: ClaimAnswer, *, gap_ms: int, granted: float) -> WonRun:
        """Take a claim into custody that was granted at that monotonic instant."""
        ref, options = claim.ref, job.options
        self._holding.add(ref, answer.token, granted=granted)
        identity = message_id(self._link.store.namespace, ref, answer.attempt)
        trigger = Trigger.MANUAL if ref.key else answer.trigger
        header = Header(
            id=identity,
            namespace=self._link.store.namespace,
            ref=ref,
            attempt=answer.attempt,
            token=answer.token,
            trigger=trigger,
            tracked=answer.tracked,
            queue=job.queue,
            max_attempts=claim.policy.max_attempts,
            history_size=options.history_size,
            lease_ms=options.lease_ms or 0,
            heartbeat_ms=options.heartbeat_ms or 0,
            start_timeout_ms=job.start_timeout_ms(gap_ms),
        )
        # Of a tracked run the store decides at its begin, by its own clock; the engine would ask each host's.
        expires = answer.attempt == 1 and options.start_deadline_ms is not None and not answer.tracked
        envelope = Envelope(
            job=job,
            ref=ref,
            attempt=answer.attempt,
            token=answer.token,
            trigger=trigger,
            message_id=identity,
            header=header,
            due_ms=claim.due_ms,
            expires_ms=claim.due_ms + (options.start_deadline_ms or 0) if expires else None,
            now_ms=self._link.time.now_ms(),
        )
        return WonRun(envelope, claim.policy)

    def publish(self, won: Sequence[WonRun]) -> None:
        """Publish runs in turn. What is not published is handed back; nothing is kept."""
        policies = {run.envelope.ref: run.policy for run in won}
        left = {run.envelope.ref: run.envelope for run in won}
        drawn = recorded_at = self._clock.monotonic()
        try:
            for outcome in self._publisher.publish(self._still_mine([run.envelope for run in won])):
                now = self._clock.monotonic()
                ref, self._drawn = outcome.envelope.ref, None
                left.pop(ref, None)
                self._note(outcome, policies[ref])
                if outcome.sent is Sent.CONFIRMED:
                    self._publish_s += SMOOTHING * (now - drawn - self._publish_s)
                if len(self._queued) >= CHUNK or now - recorded_at >= RECORD_AFTER_S:
                    recorded_at = now
                    self._try_to_write()
                if outcome.broker_down:
                    self._broker.failed(outcome.error or "no answer")
                    break
                drawn = self._clock.monotonic()
        finally:  # also when the publisher raises, which it must not: a claim that is kept would be renewed for ever
            self._hand_back(list(left.values()), policies)
        self._try_to_write()

    def _still_mine(self, envelopes: Sequence[Envelope]) -> Iterator[Envelope]:
        """Draw envelopes one by one, leaving out those whose claim may have run out meanwhile."""
        for envelope in envelopes:
            if self._stopping():
                return
            if self._holding.mine(envelope.ref, envelope.token):
                self._drawn = envelope.ref
                yield envelope

    def _note(self, outcome: Outcome, policy: Policy) -> None:
        envelope = outcome.envelope
        ref, token = envelope.ref, envelope.token
        if outcome.sent is Sent.CONFIRMED:
            self._queued.append(
                Queued(ref=ref, token=token, policy=policy, task_id=outcome.task_id, eta_ms=outcome.eta_ms)
            )
            self._tell.emit(
                events.Enqueued(
                    ref=ref,
                    attempt=envelope.attempt,
                    token=token,
                    task_id=outcome.task_id,
                    lateness_ms=self._link.time.now_ms() - envelope.due_ms,
                )
            )
            return
        error = outcome.error or "the broker refused the message"
        unknown = outcome.sent is Sent.UNKNOWN
        self._released.append(
            (Release(ref=ref, token=token, policy=policy, unknown=unknown, error=error), envelope.attempt)
        )
        if not self._broker.down:
            logger.warning(
                "publishing %s slot %s failed, the run is handed back: %s",
                ref.job,
                ref.slot,
                error,
                extra={"anarchon": {"event": "publish-failed", "job": ref.job, "slot": ref.slot}},
            )
        self._tell.emit(events.PublishFailed(ref=ref, attempt=envelope.attempt, token=token, error=error))

    def _hand_back(self, envelopes: Sequence[Envelope], policies: dict[RunRef, Policy]) -> None:
        """Give back what has no outcome; of the message that was being sent nobody knows whether it is out."""
        drawn, self._drawn = self._drawn, None
        for envelope in envelopes:
            unknown = envelope.ref == drawn
            release = Release(
                ref=envelope.ref,
                token=envelope.token,
                policy=policies[envelope.ref],
                failed=unknown,
                unknown=unknown,
                error="the publisher failed while it sent the message" if unknown else None,
            )
            self._released.append((release, envelope.attempt))

    # --- records -----------------------------------------------------------------------------------------------------

    def _try_to_write(self) -> None:
        """Write the records, if the store answers; they are kept for the next step otherwise."""
        if not self._link.availability.down:
            try:
                self.write_records()
            except ConnectionError:
                return

    def write_records(self) -> None:
        """Write what became of the published runs.

        Raises:
            StoreUnavailable: Nothing is forgotten; call again.

        """
        if self._queued:
            records = list(self._queued)
            self._link.call(self._link.store.queued, records)
            del self._queued[: len(records)]
            for record in records:
                self._holding.drop(record.ref, record.token)
        if self._released:
            handed_back = list(self._released)
            answers = self._link.call(self._link.store.release, [item for item, _ in handed_back]).answers
            del self._released[: len(handed_back)]
            for (item, attempt), taken in zip(handed_back, answers, strict=True):
                self._holding.drop(item.ref, item.token)
                if taken and item.unknown and item.policy.delivery is Delivery.AT_MOST_ONCE:
                    tell_ended(self._tell, item.ref, attempt, item.token, Status.LOST, Reason.PUBLISH_UNKNOWN)
