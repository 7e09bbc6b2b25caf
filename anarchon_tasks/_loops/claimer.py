"""The loop that asks for slots and publishes what it won.

All that it knows of its jobs is touched by its own thread only; others leave notes in its inbox.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import uuid
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anarchon_tasks._backoff import Backoff
from anarchon_tasks._loops.outages import Outages
from anarchon_tasks._loops.telling import Telling, extra
from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.jobs import DAY_MS
from anarchon_tasks.model import Reason, RunRef, Trigger
from anarchon_tasks.planning import next_due, plan
from anarchon_tasks.stores.base import Claim, ClaimAnswer, ClaimKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks import events
    from anarchon_tasks._loops.dispatch import Dispatch, WonRun
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.link import StoreLink
    from anarchon_tasks.planning import Plan
    from anarchon_tasks.tracking import Tracking

logger = logging.getLogger("anarchon_tasks.scheduler")

SOONEST_MS, LATEST_MS = 50, 1_000
"""A slot that waits for a run of its job asks again after a twentieth of its period, within these bounds."""

PUT_OFF_S = 60.0
NO_FLOOR = -1
"""For a claim that must not move a job's floor: it says nothing of the slots before its own."""


@dataclass(slots=True, eq=False)
class _Row:
    """What the loop knows of one job."""

    job: Job
    since: float
    """Since when, on the monotonic clock, this instance answers for the job."""
    floor: int | None = None
    wake: int = 0
    """Identifies the row's valid entry in the heap."""
    waiting: bool = False
    """Its slot waits for an earlier run of the job."""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    row: _Row
    claim: Claim
    gap_ms: int
    recovery: bool = False


class Claimer:
    """Asks for due slots in batches, dispatches what it wins, and takes over runs whose lease is over."""

    def __init__(
        self,
        *,
        link: StoreLink,
        dispatch: Dispatch,
        tracking: Tracking,
        instance: str,
        clock: Clock,
        tell: events.Events,
        register: Callable[[Job, int | None], None],
    ) -> None:
        self._link = link
        self._dispatch = dispatch
        self._tracking = tracking
        self._instance = instance
        self._clock = clock
        self._telling = Telling(tell)
        self._register = register
        self._namespace = link.store.namespace
        self._inbox: deque[Callable[[], None]] = deque()
        self._rows: dict[str, _Row] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._ticket = itertools.count(1)
        self._unanswered: list[_Asked] = []
        self._recover: deque[RunRef] = deque()
        self._put_off: dict[RunRef, float] = {}
        """Runs whose claim failed, and when, on the monotonic clock, they are asked for again."""
        self._backoff = Backoff(first_s=1.0, most_s=30.0)
        self._outages = Outages(clock=clock)

    # --- notes from other threads ------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Take a job on, new or changed. It is asked for once it is registered."""
        self._inbox.append(lambda: self._added(job))

    def remove(self, name: str) -> None:
        """Ask for no more slots of a job."""
        self._inbox.append(lambda: self._removed(name))

    def registered(self, job: Job, floor: int) -> None:
        """Note a job's floor: it was registered."""
        self._inbox.append(lambda: self._floor_known(job, floor))

    def recover(self, refs: Sequence[RunRef]) -> None:
        """Note runs whose lease is over."""
        self._inbox.append(lambda: self._over(refs))

    def _added(self, job: Job) -> None:
        old = self._rows.get(job.name)
        self._rows[job.name] = _Row(job=job, since=old.since if old else self._clock.monotonic())
        self._register(job, None)

    def _removed(self, name: str) -> None:
        self._rows.pop(name, None)

    def _floor_known(self, job: Job, floor: int) -> None:
        row = self._rows.get(job.name)
        if row is not None and row.job is job:
            row.floor = floor
            self._reschedule(row)

    def _over(self, refs: Sequence[RunRef]) -> None:
        now = self._clock.monotonic()
        for ref in refs:
            if ref not in self._recover and self._put_off.get(ref, now) <= now:
                self._put_off.pop(ref, None)
                self._recover.append(ref)

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(self) -> float:
        """Ask for what is due; return the seconds until something will be."""
        try:
            return self._step()
        except StoreUnavailable:
            self._outages.note(Reason.STORE_UNAVAILABLE)
            raise

    def _step(self) -> float:
        if self._link.availability.down:  # whoever noticed it
            self._outages.note(Reason.STORE_UNAVAILABLE)
        while self._inbox:
            self._inbox.popleft()()
        self._dispatch.write_records()
        if not self._dispatch.broker_ready():
            self._outages.note(Reason.PUBLISH_FAILED)
            return 0.25
        asked = [self._again(ask) for ask in self._unanswered] or self._due()
        if not asked:
            return self._pause()
        self._ask(asked)
        return 0.0 if self._inbox or self._unanswered else self._pause()

    def finish(self) -> None:
        """Write what is still to be written."""
        self._dispatch.write_records()

    def _pause(self) -> float:
        if self._recover:
            return 0.0
        if not self._heap:
            return 1.0
        return max(0.0, (self._heap[0][0] - self._link.time.now_ms()) / 1000)

    def _due(self) -> list[_Asked]:
        limit = self._dispatch.chunk()
        asked = self._recoveries(limit)
        now = self._link.time.now_ms()
        while self._heap and len(asked) < limit and self._heap[0][0] <= now:
            _, ticket, name = heapq.heappop(self._heap)
            row = self._rows.get(name)
            if row is not None and row.wake == ticket:
                ask = self._prepare(row, now)
                if ask is not None:
                    asked.append(ask)
        return asked

    def _recoveries(self, limit: int) -> list[_Asked]:
        asked: list[_Asked] = []
        while self._recover and len(asked) < limit:
            ref = self._recover.popleft()
            row = self._rows.get(ref.job)
            if row is not None:
                asked.append(self._recovery(row, ref))
        return asked

    def _prepare(self, row: _Row, now: int) -> _Asked | None:
        """Plan a row's next claim; a job whose schedule fails rests and hurts no other."""
        if row.floor is None:
            return None
        try:
            planned = plan(
                row.job, self._namespace, floor=row.floor, now=now, why_late=lambda at: self._why_late(row, at)
            )
        except Exception:
            row.failures += 1
            logger.exception(
                "the schedule of job %r failed", row.job.name, extra=extra("schedule-failed", row.job.name)
            )
            self._wake_at(row, now + int(self._backoff.seconds(row.failures) * 1000))
            return None
        if planned is None:
            self._reschedule(row)
            return None
        return _Asked(row, self._claim(row, planned), planned.gap_ms)

    def _claim(self, row: _Row, planned: Plan) -> Claim:
        return Claim(
            ref=RunRef(row.job.name, planned.slot),
            claim_id=uuid.uuid4().hex,
            instance=self._instance,
            policy=row.job.policy(planned.gap_ms),
            due_ms=planned.due_ms,
            latest_ms=planned.latest_ms,
            floor=row.floor or 0,
            gap_ms=planned.gap_ms,
            ranges=planned.ranges,
            tracked=self._tracking.tracked(row.job),
            late_reason=self._why_late(row, planned.latest_ms),
            queue_begun_ms=self._tracking.begun_ms(row.job.queue),
            takeover=self._link.may_take_over,
        )

    def _again(self, ask: _Asked) -> _Asked:
        """Return a claim to repeat after a lost reply: the same, but for what the outage since then changed."""
        late_reason = self._why_late(ask.row, ask.claim.latest_ms)
        return replace(ask, claim=replace(ask.claim, late_reason=late_reason, takeover=self._link.may_take_over))

    def _recovery(self, row: _Row, ref: RunRef) -> _Asked:
        try:
            gap = row.job.gap_ms(ref.slot)
            due = row.job.due_ms(ref.slot, self._namespace) if not ref.key else ref.slot
        except Exception:  # noqa: BLE001 - logged where its slots are planned; the run is there and must go on
            gap, due = DAY_MS, ref.slot
        claim = Claim(
            ref=ref,
            claim_id=uuid.uuid4().hex,
            instance=self._instance,
            policy=row.job.policy(gap),
            due_ms=due,
            latest_ms=due + row.job.max_late_ms(gap),
            floor=NO_FLOOR,
            tracked=self._tracking.tracked(row.job),
            queue_begun_ms=self._tracking.begun_ms(row.job.queue),
            trigger=Trigger.MANUAL if ref.key else Trigger.SCHEDULE,
            takeover=self._link.may_take_over,
        )
        return _Asked(row, claim, gap, recovery=True)

    def _ask(self, asked: list[_Asked]) -> None:
        """Make the claims, publish what was won. Claims whose reply is lost are repeated with the same ids."""
        sent = self._clock.monotonic()
        try:
            reply = self._link.call(self._link.store.claim, [ask.claim for ask in asked])
        except StoreError:  # repeated with the same ids, whatever the store has against it at the moment
            self._unanswered = asked
            raise
        except Exception:
            self._put_back(asked)
            raise
        self._unanswered = []
        won: list[WonRun] = []
        for ask, answer in zip(asked, reply.answers, strict=True):
            if answer.kind is ClaimKind.WON:
                # A claim that is repeated after a lost reply was granted by the first call, and its lease runs since.
                left_ms = answer.until - reply.now_ms
                granted = sent - max(0, ask.claim.policy.claim_lease_ms - left_ms) / 1000
                won.append(self._dispatch.won(ask.row.job, ask.claim, answer, gap_ms=ask.gap_ms, granted=granted))
                self._telling.won(ask.claim, answer, recovery=ask.recovery)
            else:
                self._telling.not_won(ask.claim, answer, recovery=ask.recovery)
            if not ask.recovery:
                self._learn(ask, answer, reply.now_ms)
            elif answer.kind is ClaimKind.ERROR:
                self._telling.failed(ask.row.job, answer)
                self._put_off[ask.claim.ref] = self._clock.monotonic() + PUT_OFF_S
        if won:
            self._dispatch.publish(won)

    def _put_back(self, asked: list[_Asked]) -> None:
        """Ask again for each job later: a defect met by one batch must not end the jobs in it."""
        now = self._link.time.now_ms()
        for ask in asked:
            ask.row.failures += 1
            if not ask.recovery and self._rows.get(ask.row.job.name) is ask.row:
                self._wake_at(ask.row, now + int(self._backoff.seconds(ask.row.failures) * 1000))

    # --- what an answer means for the row ----------------------------------------------------------------------------

    def _learn(self, ask: _Asked, answer: ClaimAnswer, now: int) -> None:
        row = ask.row
        if self._rows.get(row.job.name) is not row:
            return
        row.waiting = answer.kind is ClaimKind.WAIT
        match answer.kind:
            case ClaimKind.ERROR:
                row.failures += 1
                self._telling.failed(row.job, answer)
                self._wake_at(row, now + int(self._backoff.seconds(row.failures) * 1000))
                return
            case ClaimKind.UNREGISTERED:
                self._register(row.job, row.floor)
                row.floor = None
                return
            case ClaimKind.WAIT:
                soon = min(max(ask.gap_ms // 20, SOONEST_MS), LATEST_MS)
                self._wake_at(row, now + min(max(answer.until - now, SOONEST_MS), soon))
                return
            case ClaimKind.MOVED if answer.floor < ask.claim.floor:
                # The store came back older than it was; what is settled here must not run again.
                self._register(row.job, row.floor)
                row.floor = None
                return
            case ClaimKind.EARLY:
                self._wake_at(row, max(answer.until, now + 1))
                return
            case ClaimKind.OVERLAP if (
                answer.run is not None and answer.run != ask.claim.ref.run and answer.until <= now
            ):
                # Whoever executes the run in the way is silent, and the index that tells so may have been lost.
                self._over([RunRef.parse(row.job.name, answer.run)])
        row.failures = 0
        row.floor = answer.floor
        self._reschedule(row)

    # --- waking ------------------------------------------------------------------------------------------------------

    def _reschedule(self, row: _Row) -> None:
        try:
            due = next_due(row.job, self._namespace, row.floor or 0)
        except Exception:
            row.failures += 1
            logger.exception(
                "the schedule of job %r failed", row.job.name, extra=extra("schedule-failed", row.job.name)
            )
            due = self._link.time.now_ms() + int(self._backoff.seconds(row.failures) * 1000)
        if due is not None:
            self._wake_at(row, due)

    def _wake_at(self, row: _Row, at_ms: int) -> None:
        row.wake = next(self._ticket)
        heapq.heappush(self._heap, (at_ms, row.wake, row.job.name))

    # --- why a slot is late ------------------------------------------------------------------------------------------

    def _why_late(self, row: _Row, latest_ms: int) -> Reason:
        """Say why a slot could not be claimed by that instant, as far as this instance can know."""
        instant = self._clock.monotonic() - (self._link.time.now_ms() - latest_ms) / 1000
        if instant < row.since:
            return Reason.NO_INSTANCE
        return self._outages.at(instant) or (Reason.OVERLAP if row.waiting else Reason.NO_INSTANCE)
