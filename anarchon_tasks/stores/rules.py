"""The rules of a run, as one atomic step on the account of one job.

The memory and SQLite stores execute these functions; the Redis store says the same in Lua (`lua/`), the PostgreSQL
store in PL/pgSQL (`sql/postgres/`), and the tests compare them call by call. Each function reads and writes an
`Account` and is given the store's time. What may not be left out, and what breaks without it, is explained in
`docs/explanation/protocol.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from anarchon_tasks.model import OPEN, Reason, Run, RunRef, Status, Trigger
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginAnswer,
    BeginKind,
    Claim,
    ClaimAnswer,
    ClaimKind,
    Definition,
    Delivered,
    Delivery,
    Finish,
    Overlap,
    Park,
    Policy,
    Queued,
    Registered,
    Release,
    SlotRange,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY_MS = 86_400_000
NOT_STARTED = -1
TRIM_STEP = 4
MAX_DOUBLINGS = 20
SETTLED = frozenset({Status.SKIPPED, Status.MISSED})
_SETTLED = {Status.SKIPPED: ClaimKind.OVERLAP, Status.MISSED: ClaimKind.LATE}


@dataclass(slots=True, kw_only=True)
class RunState:
    """What the store knows of one run."""

    ref: RunRef
    trigger: Trigger
    status: Status
    attempt: int = 1
    token: int = 0
    lease_until: int = 0
    """The end of what keeps others away: the claim, the wait in the queue, or the worker's lease."""
    not_before: int = 0
    """A released run is not claimed again before."""
    grant_id: str = ""
    """The claim id or delivery id that the current token was given for; empty once the claim was handed back."""
    due: int = 0
    latest: int = 0
    instance: str | None = None
    tracked: bool = True
    exclusive: bool = True
    """Whether no other run of the job may be under way beside it."""
    releases: int = 0
    """Failed publishes since the last confirmed one."""
    publishes: int = 0
    task_id: str | None = None
    parked: bool = False
    retries: int = NOT_STARTED
    """The highest retry of this attempt that began."""
    delivered: Delivered | None = None
    deadline: int | None = None
    claimed_at: int | None = None
    enqueued_at: int | None = None
    first_enqueued_at: int | None = None
    """When the run was first under way in any attempt: what decides whether a later slot overlaps it."""
    started_at: int | None = None
    finished_at: int | None = None
    reason: Reason | None = None
    error: str | None = None

    @property
    def open(self) -> bool:
        """Whether the run has not ended."""
        return self.status in OPEN

    @property
    def unstarted_claim(self) -> bool:
        """Whether the run is still in its first claim: nothing of it ever started or waits in a queue."""
        return self.status is Status.CLAIMED and self.attempt == 1 and self.first_enqueued_at is None

    def entry(self) -> Run:
        """Return the current attempt as the history tells it."""
        return Run(
            job=self.ref.job,
            slot=self.ref.slot,
            key=self.ref.key,
            trigger=self.trigger,
            attempt=self.attempt,
            token=self.token,
            status=self.status,
            reason=self.reason,
            tracked=self.tracked,
            due=self.due,
            instance=self.instance,
            worker=self.delivered.worker if self.delivered else None,
            pid=self.delivered.pid if self.delivered else None,
            claimed_at=self.claimed_at,
            enqueued_at=self.enqueued_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            publishes=self.publishes,
            retries=max(self.retries, 0),
            task_id=self.task_id,
            error=self.error,
        )


@dataclass(slots=True, kw_only=True)
class JobState:
    """What the store knows of a job apart from its runs."""

    floor: int | None = None
    """The highest slot on the account: each slot at or below it without a state of its own is settled."""
    trimmed: int = -1
    """The highest slot whose state was ever trimmed: a message at or below it without a state is too old to begin."""
    token: int = 0
    doublings: int = 0
    """Publishes since a run of the job last began: each doubles the start timeout."""
    fingerprint: str = ""
    registered_at: int = 0
    changed_at: int = 0


class Account(Protocol):
    """One job's account inside one atomic step."""

    job: JobState

    def get(self, ref: RunRef) -> RunState | None:
        """Return a run's state."""
        ...

    def open_runs(self, *, claimed: bool = False) -> Iterable[RunState]:
        """Return the runs that have not ended, lowest slot first; or only those that an instance holds a claim of."""
        ...

    def open_count(self) -> int:
        """Return how many runs have not ended."""
        ...

    def put(self, state: RunState) -> None:
        """Store a run's state, new or changed."""
        ...

    def oldest(self, *, below: int, limit: int) -> Iterable[RunState]:
        """Return the states with the lowest slots below the given one, ended or not."""
        ...

    def drop(self, ref: RunRef) -> None:
        """Remove a run's state."""
        ...

    def settled_at(self, job: str, slot: int) -> Run | None:
        """Return the history's entry of a skipped or missed slot, or of the stretch that ends with it."""
        ...

    def erase(self, entry: Run) -> None:
        """Remove an entry from the history."""
        ...

    def record(self, entry: Run, *, keep: int) -> None:
        """Add to the history, in place of an entry of the same attempt, and keep only the newest entries."""
        ...

    def forget(self, *, before: int) -> None:
        """Remove the entries of slots before the given one from the history, at least a hundred of them."""
        ...

    def refuse(self, ref: RunRef, token: int) -> None:
        """Count a refused write in the history entry of the attempt that had this token, if there is one."""
        ...


def next_token(job: JobState, now: int) -> int:
    """Take the job's next fencing token: increasing, and still increasing when a failover lost the last ones."""
    job.token = max(job.token + 1, now * 1_000)
    return job.token


def register(account: Account, definition: Definition, now: int) -> Registered:
    """Open the job's account, or raise its floor to now when its slots may have changed."""
    job = account.job
    changed = job.fingerprint != definition.fingerprint
    if job.floor is None:
        known = definition.floor if definition.floor is not None else definition.since
        job.floor = now if known is None else min(known, now)
        job.registered_at = now
    else:
        job.floor = max(job.floor, now if changed else min(definition.floor or 0, now))
    if changed:
        job.fingerprint, job.changed_at = definition.fingerprint, now
    return Registered(floor=job.floor, changed=changed)


# --- claim -----------------------------------------------------------------------------------------------------------


def claim(account: Account, ask: Claim, now: int) -> ClaimAnswer:
    """Decide a claim."""
    floor = account.job.floor
    if floor is None:
        return ClaimAnswer(kind=ClaimKind.UNREGISTERED)
    state = account.get(ask.ref)
    if state is not None and ask.trigger is Trigger.SCHEDULE and floor == ask.floor < ask.ref.slot:
        # A worker brought the run back after the store had lost it: put the slot on the account.
        _settle_ranges(account, ask)
        _raise_floor(account, ask)
    answer = _claim_new(account, ask, floor, now) if state is None else _claim_known(account, ask, state, now)
    return answer if answer is not None else _busy(account, state, now)


def _answer(
    account: Account, kind: ClaimKind, state: RunState | None = None, until: int = 0, *, decided: bool = False
) -> ClaimAnswer:
    """Answer about a run; `decided`: this claim, or the one that it repeats, ended it."""
    floor = account.job.floor or 0
    if state is None:
        return ClaimAnswer(kind=kind, floor=floor, until=until)
    return ClaimAnswer(
        kind=kind,
        floor=floor,
        attempt=state.attempt,
        token=state.token,
        until=until or state.lease_until,
        status=state.status,
        run=state.ref.run,
        tracked=state.tracked,
        trigger=state.trigger,
        reason=state.reason if decided else None,
    )


def _busy(account: Account, state: RunState | None, now: int) -> ClaimAnswer:
    until = max(state.lease_until, state.not_before, now) if state else now
    return _answer(account, ClaimKind.RUNNING, state, until)


def _claim_new(account: Account, ask: Claim, floor: int, now: int) -> ClaimAnswer:
    """Claim a run without a state: a slot that nobody took yet, or a manual run."""
    scheduled = ask.trigger is Trigger.SCHEDULE
    if scheduled and ask.ref.slot <= floor:
        return _answer(account, ClaimKind.DONE)
    if now < ask.due_ms:
        return _answer(account, ClaimKind.EARLY, until=ask.due_ms)
    if scheduled and floor != ask.floor:
        return _answer(account, ClaimKind.MOVED)
    state = RunState(
        ref=ask.ref,
        trigger=ask.trigger,
        status=Status.CLAIMED,
        due=ask.due_ms,
        latest=ask.latest_ms,
        tracked=ask.tracked,
        exclusive=_exclusive(ask),
        grant_id=ask.claim_id,
    )
    if now > ask.latest_ms:
        _settle_ranges(account, ask)
        return _settle(account, ask, state, ClaimKind.LATE, ask.late_reason, now)
    superseded: list[RunState] = []
    in_the_way = _in_the_way(account, ask, superseded, now)
    if in_the_way is not None:
        kind, other = in_the_way
        if kind is ClaimKind.OVERLAP:
            # What would have been superseded if this slot had won shares its fate.
            ask = replace(ask, ranges=tuple(overlapped(item) for item in ask.ranges))
            _settle_ranges(account, ask)
            _settle(account, ask, state, kind, Reason.OVERLAP, now)
            return _overlap(account, other, now)
        return _answer(account, kind, other, max(other.lease_until, other.not_before, now))
    for other in superseded:
        _end(account, other, Status.MISSED, now, Reason.SUPERSEDED, ask.policy.history_size)
    _settle_ranges(account, ask)
    _raise_floor(account, ask)
    _grant_claim(account, state, ask, now)
    _trim(account, ask.policy, now, keep=ask.ref)
    return _answer(account, ClaimKind.WON, state)


def _in_the_way(
    account: Account, ask: Claim, superseded: list[RunState], now: int
) -> tuple[ClaimKind, RunState] | None:
    """Find the open run that keeps this slot from starting, and whether the slot waits for it or is skipped.

    A run that would still be under way when the slot was due, had it been on time itself, makes the slot an overlap.
    One that would not, because an outage or a killed scheduler delayed it, makes the slot wait: that delay is ours,
    not the job's. But a run that takes half of the time between two slots leaves no time to catch up in, and what
    waits for it is skipped, or the job would stay late for ever. After an outage of the store nothing is skipped until
    the workers had the time to say which runs have ended meanwhile.
    """
    overlaps: tuple[ClaimKind, RunState] | None = None
    # Beside others, only claims can matter, and a job may have thousands of runs in its queue.
    for other in account.open_runs(claimed=not _exclusive(ask)):
        if _superseded(ask, other, now):
            superseded.append(other)
        elif not (_exclusive(ask) or _older_claim(ask, other)):
            continue
        elif not (ask.takeover and _overlaps(ask, other, now)):
            return ClaimKind.WAIT, other
        else:
            overlaps = overlaps or (ClaimKind.OVERLAP, other)
    return overlaps


def _older_claim(ask: Claim, other: RunState) -> bool:
    both_scheduled = ask.trigger is Trigger.SCHEDULE and other.trigger is Trigger.SCHEDULE
    return both_scheduled and other.unstarted_claim and other.ref.slot < ask.ref.slot


def _superseded(ask: Claim, other: RunState, now: int) -> bool:
    """Tell whether a claim that was never published is over, and past coalescing."""
    return _older_claim(ask, other) and other.lease_until <= now and now > other.due + ask.policy.coalesce_ms


def _overlap(account: Account, other: RunState, now: int) -> ClaimAnswer:
    """Answer that a slot is skipped, and name the run in its way: the caller sees whether to recover that one."""
    until = max(other.lease_until, other.not_before, now)
    return replace(_answer(account, ClaimKind.OVERLAP, other, until), reason=Reason.OVERLAP)


def _overlaps(ask: Claim, other: RunState, now: int) -> bool:
    if other.first_enqueued_at is None:
        return False
    took = now - other.first_enqueued_at
    return other.due + took > ask.due_ms or 2 * took >= ask.gap_ms


def _exclusive(ask: Claim) -> bool:
    return ask.policy.overlap is Overlap.SKIP and ask.tracked


def _claim_known(account: Account, ask: Claim, state: RunState, now: int) -> ClaimAnswer | None:
    """Claim a run that has a state. None: somebody has it, or it is not its time."""
    if not state.open:
        repeated = state.grant_id == ask.claim_id
        if repeated and (state.status, state.reason) == (Status.SKIPPED, Reason.OVERLAP):
            for other in account.open_runs():
                if not _superseded(ask, other, now):
                    return _overlap(account, other, now)
        kind = _SETTLED.get(state.status, ClaimKind.DONE) if repeated else ClaimKind.DONE
        return _answer(account, kind, state, decided=repeated)
    if state.lease_until > now:
        same = state.status is Status.CLAIMED and state.grant_id == ask.claim_id
        return _answer(account, ClaimKind.WON, state) if same else None
    if state.not_before > now:
        return None
    ended = _recover(account, ask, state, now)
    if ended is not None:
        return ended
    if state.lease_until > now or state.not_before > now:
        return None
    _grant_claim(account, state, ask, now)
    return _answer(account, ClaimKind.WON, state)


def _recover(account: Account, ask: Claim, state: RunState, now: int) -> ClaimAnswer | None:
    """Prepare a run whose lease is over for its next claim, or end it and return the answer."""
    match state.status:
        case Status.CLAIMED if ask.policy.delivery is Delivery.AT_MOST_ONCE and state.grant_id not in {
            "",
            ask.claim_id,
        }:
            # Its holder died without a word: the message may have been published.
            return _end_by_claim(account, ask, state, Status.LOST, Reason.PUBLISH_UNKNOWN, now)
        case Status.CLAIMED if state.unstarted_claim and now > state.latest:
            reason = Reason.PUBLISH_FAILED if state.releases else Reason.NO_INSTANCE
            return _end_by_claim(account, ask, state, Status.MISSED, reason, now)
        case Status.QUEUED if not state.parked:
            return _recover_queued(account, ask, state, now)
        case Status.QUEUED | Status.RUNNING if not ask.takeover:
            return _busy(account, state, now)
        case Status.QUEUED | Status.RUNNING:
            state.not_before = state.lease_until + ask.policy.takeover_delay_ms
            if state.not_before > now:
                account.put(state)
                return None
            reason = Reason.RETRY_LOST if state.parked else state.reason or Reason.TAKEN_OVER
            if state.attempt >= ask.policy.max_attempts:
                return _end_by_claim(account, ask, state, Status.INTERRUPTED, reason, now)
            _next_attempt(account, state, reason, ask.policy.history_size, now)
    return None


def _end_by_claim(
    account: Account, ask: Claim, state: RunState, status: Status, reason: Reason, now: int
) -> ClaimAnswer:
    """End a run that was to be taken over, and remember the claim for its repeat."""
    state.grant_id = ask.claim_id
    _end(account, state, status, now, reason, ask.policy.history_size)
    return _answer(account, _SETTLED.get(status, ClaimKind.DONE), state, decided=True)


def _recover_queued(account: Account, ask: Claim, state: RunState, now: int) -> ClaimAnswer | None:
    policy = ask.policy
    end: tuple[Status, Reason] | None = None
    if state.deadline is not None and now > state.deadline and state.attempt == 1:
        end = Status.EXPIRED, Reason.DEADLINE
    elif policy.delivery is Delivery.AT_MOST_ONCE or (
        state.publishes >= policy.max_attempts and ask.queue_begun_ms > (state.enqueued_at or 0)
    ):
        end = Status.LOST, Reason.NEVER_STARTED
    if end is None:
        return None
    return _end_by_claim(account, ask, state, end[0], end[1], now)


def _next_attempt(account: Account, state: RunState, reason: Reason, history_size: int, now: int) -> None:
    """Close the attempt that died, and make the next one."""
    state.status, state.reason, state.finished_at = Status.INTERRUPTED, reason, now
    account.record(state.entry(), keep=history_size)
    state.attempt += 1
    state.status, state.reason, state.error, state.finished_at = Status.CLAIMED, None, None, None
    state.parked, state.retries, state.delivered = False, NOT_STARTED, None
    state.publishes = state.releases = state.not_before = 0
    state.claimed_at = state.enqueued_at = state.started_at = state.task_id = None


def _grant_claim(account: Account, state: RunState, ask: Claim, now: int) -> None:
    state.status, state.grant_id, state.instance = Status.CLAIMED, ask.claim_id, ask.instance
    state.token = next_token(account.job, now)
    state.lease_until, state.not_before = now + ask.policy.claim_lease_ms, 0
    state.claimed_at = state.claimed_at or now
    if ask.policy.start_deadline_ms is not None:
        state.deadline = state.due + ask.policy.start_deadline_ms
    account.put(state)


def _settle(account: Account, ask: Claim, state: RunState, kind: ClaimKind, reason: Reason, now: int) -> ClaimAnswer:
    status = Status.SKIPPED if kind is ClaimKind.OVERLAP else Status.MISSED
    _close(account, state, status, now, reason)
    if not _joined(account, ask, status, reason):
        account.record(state.entry(), keep=ask.policy.history_size)
    _raise_floor(account, ask)
    _trim(account, ask.policy, now, keep=ask.ref)
    return _answer(account, kind, state, decided=True)


def _joined(account: Account, ask: Claim, status: Status, reason: Reason) -> bool:
    """Add the slot to the stretch before it, if that one shares its fate: a long run is one entry, not thousands."""
    if ask.trigger is not Trigger.SCHEDULE:
        return False
    before = account.settled_at(ask.ref.job, ask.ranges[-1].last if ask.ranges else ask.floor)
    if before is None or (before.status, before.reason) != (status, reason) or before.publishes or before.error:
        return False  # another fate, or one with a story of its own
    account.erase(before)
    first = before.slot if before.first_slot is None else before.first_slot
    joined = SlotRange(first=first, last=ask.ref.slot, count=before.count + 1, status=status, reason=reason)
    _record_range(account, ask, joined)
    return True


def overlapped(item: SlotRange) -> SlotRange:
    """Return what becomes of a stretch when the slot that would have superseded it is itself skipped."""
    if item.reason is not Reason.SUPERSEDED:
        return item
    return replace(item, status=Status.SKIPPED, reason=Reason.OVERLAP)


def _settle_ranges(account: Account, ask: Claim) -> None:
    for item in ask.ranges:
        _record_range(account, ask, item)


def _record_range(account: Account, ask: Claim, item: SlotRange) -> None:
    entry = Run(
        job=ask.ref.job,
        slot=item.last,
        first_slot=item.first,
        count=item.count,
        attempt=0,
        status=item.status,
        reason=item.reason,
    )
    account.record(entry, keep=ask.policy.history_size)


def _raise_floor(account: Account, ask: Claim) -> None:
    if ask.trigger is Trigger.SCHEDULE:
        account.job.floor = max(account.job.floor or 0, ask.ref.slot)


def _trim(account: Account, policy: Policy, now: int, *, keep: RunRef) -> None:
    """Drop the oldest ended states, a few per step; open ones at the bottom do not stop it. And what is too old.

    The run of this very step is kept: it answers the repeat of its claim.
    """
    if policy.history_ttl_ms is not None:
        account.forget(before=now - policy.history_ttl_ms)
    limit = TRIM_STEP + account.open_count()
    for state in list(account.oldest(below=now - policy.keep_ms, limit=limit)):
        if not state.open and state.ref != keep:
            account.drop(state.ref)
            account.job.trimmed = max(account.job.trimmed, state.ref.slot)


def _end(account: Account, state: RunState, status: Status, now: int, reason: Reason | None, history_size: int) -> None:
    _close(account, state, status, now, reason)
    account.record(state.entry(), keep=history_size)


def _close(account: Account, state: RunState, status: Status, now: int, reason: Reason | None) -> None:
    state.status, state.reason, state.finished_at = status, reason, now
    state.lease_until = state.not_before = 0
    account.put(state)


# --- the scheduler's records -----------------------------------------------------------------------------------------


def queued(account: Account, record: Queued, now: int) -> bool:
    """Record a confirmed publish, unless the run has moved on since its claim."""
    state = account.get(record.ref)
    if state is None or state.token != record.token or state.status is not Status.CLAIMED:
        return state is not None and state.token == record.token and state.status in {Status.QUEUED, Status.ENQUEUED}
    state.publishes += 1
    state.releases = 0
    state.task_id = record.task_id
    state.enqueued_at = state.enqueued_at or now
    if not state.tracked:
        _end(account, state, Status.ENQUEUED, now, None, record.policy.history_size)
        return True
    state.first_enqueued_at = state.first_enqueued_at or now
    timeout = min(record.policy.start_timeout_ms << min(account.job.doublings, MAX_DOUBLINGS), DAY_MS)
    timeout = max(timeout, record.policy.start_timeout_ms)
    account.job.doublings = min(account.job.doublings + 1, MAX_DOUBLINGS)
    state.status = Status.QUEUED
    state.lease_until = max(now, record.eta_ms) + timeout
    if state.deadline is not None:
        state.lease_until = max(now + 1, min(state.lease_until, state.deadline + 1))
    account.put(state)
    return True


def release(account: Account, record: Release, now: int) -> bool:
    """Hand a claim back. The run stays on record; after a failed publish it rests for a while."""
    state = account.get(record.ref)
    if state is None or state.token != record.token:
        return False
    handed_back = not state.grant_id
    if state.status is not Status.CLAIMED:
        return handed_back and state.status is Status.LOST  # the repeat of what ended it
    if record.unknown and record.policy.delivery is Delivery.AT_MOST_ONCE:
        state.grant_id = ""
        _end(account, state, Status.LOST, now, Reason.PUBLISH_UNKNOWN, record.policy.history_size)
        return True
    if handed_back and state.lease_until <= now:
        return True
    if record.failed and not handed_back:
        state.releases += 1
        state.error = record.error
        state.not_before = now + min(30_000, 1_000 << min(state.releases - 1, 5))
    state.lease_until = now
    state.grant_id = ""
    account.put(state)
    return True


def beat(account: Account, item: Beat, now: int) -> bool:
    """Push a lease forward for the current token."""
    state = account.get(item.ref)
    if state is None or state.token != item.token:
        if item.phase is Status.RUNNING:
            account.refuse(item.ref, item.token)
        return False
    if state.status is not item.phase:
        return False  # its own holder moved it on
    if state.reason is not None:
        return False
    state.lease_until = now + item.lease_ms
    account.put(state)
    return True


# --- the worker's calls ----------------------------------------------------------------------------------------------


def begin(account: Account, ask: Begin, now: int) -> BeginAnswer:
    """Admit one execution per attempt and retry."""
    state = account.get(ask.ref)
    if state is None:
        if ask.ref.slot <= account.job.trimmed:
            return BeginAnswer(kind=BeginKind.DONE)
        state = RunState(
            ref=ask.ref, trigger=ask.trigger, status=Status.QUEUED, attempt=ask.attempt, due=ask.ref.slot, latest=now
        )
        return _start(account, ask, state, now)
    match state.status:
        case Status.ENQUEUED:
            return BeginAnswer(kind=BeginKind.UNTRACKED, status=state.status)
        case Status.CLAIMED | Status.QUEUED:
            return _begin_waiting(account, ask, state, now)
        case Status.RUNNING:
            return _begin_running(account, ask, state, now)
        case Status.LOST:
            return _begin_lost(account, ask, state, now)
    return BeginAnswer(kind=BeginKind.DONE, status=state.status)


def _is_retry_of(ask: Begin, state: RunState) -> bool:
    return ask.delivered.retries > 0 and ask.token == state.token


def _begin_waiting(account: Account, ask: Begin, state: RunState, now: int) -> BeginAnswer:
    if state.parked and not _is_retry_of(ask, state):
        return BeginAnswer(kind=BeginKind.BUSY, status=state.status, until=state.lease_until)
    if state.deadline is not None and now > state.deadline and state.attempt == 1 and not state.parked:
        _end(account, state, Status.EXPIRED, now, Reason.DEADLINE, ask.history_size)
        return BeginAnswer(kind=BeginKind.DONE, status=state.status)
    return _start(account, ask, state, now)


def _begin_running(account: Account, ask: Begin, state: RunState, now: int) -> BeginAnswer:
    alive = state.lease_until > now
    if state.grant_id == ask.delivery_id and state.reason is None:
        # The same call again. Also after an outage that outlived the lease, as long as nobody else was granted the run.
        state.lease_until = max(state.lease_until, now + ask.lease_ms)
        account.put(state)
        return BeginAnswer(
            kind=BeginKind.OK,
            attempt=state.attempt,
            token=state.token,
            until=state.lease_until,
            status=state.status,
        )
    if _is_retry_of(ask, state):
        return _start(account, ask, state, now)
    if alive or not ask.takeover:
        return BeginAnswer(kind=BeginKind.BUSY, status=state.status, until=state.lease_until)
    reason = state.reason or Reason.TAKEN_OVER
    if state.attempt >= ask.max_attempts:
        _end(account, state, Status.INTERRUPTED, now, reason, ask.history_size)
        return BeginAnswer(kind=BeginKind.DONE, status=state.status)
    _next_attempt(account, state, reason, ask.history_size, now)
    return _start(account, ask, state, now)


def _begin_lost(account: Account, ask: Begin, state: RunState, now: int) -> BeginAnswer:
    """Let a run that was given up still run: a backlog makes runs late, not absent."""
    others = [other for other in account.open_runs() if other.ref != state.ref] if state.exclusive else []
    if state.reason is not Reason.NEVER_STARTED or any(
        other.attempt > 1 or other.retries > NOT_STARTED for other in others
    ):
        return BeginAnswer(kind=BeginKind.DONE, status=state.status)
    for other in others:
        _end(account, other, Status.SKIPPED, now, Reason.OVERLAP, ask.history_size)
    state.reason, state.finished_at = None, None
    return _start(account, ask, state, now)


def _start(account: Account, ask: Begin, state: RunState, now: int) -> BeginAnswer:
    account.job.doublings = 0
    state.status, state.parked, state.reason = Status.RUNNING, False, None
    state.token = next_token(account.job, now)
    state.grant_id, state.delivered, state.retries = ask.delivery_id, ask.delivered, ask.delivered.retries
    state.task_id = ask.delivered.message_id
    state.lease_until, state.not_before = now + ask.lease_ms, 0
    state.enqueued_at = state.enqueued_at or now
    state.first_enqueued_at = state.first_enqueued_at or now
    state.started_at = state.started_at or now
    account.put(state)
    return BeginAnswer(
        kind=BeginKind.OK, attempt=state.attempt, token=state.token, until=state.lease_until, status=state.status
    )


def park(account: Account, item: Park, now: int) -> bool:
    """Put a running run back into its queue for the task's own retry."""
    state = account.get(item.ref)
    if state is None or state.token != item.token:
        account.refuse(item.ref, item.token)
        return False
    if state.status is Status.QUEUED and state.parked:
        return True
    if state.status is not Status.RUNNING:
        return False
    state.status, state.parked, state.reason = Status.QUEUED, True, None
    state.lease_until = max(now, item.eta_ms) + item.start_timeout_ms
    account.put(state)
    return True


def finish(account: Account, end: Finish, now: int) -> bool:
    """End a run, or an attempt, if who tells it is who executes it."""
    state = account.get(end.ref)
    if state is None:
        return False
    if not state.open:
        return state.status is end.status and _concerns(end, state)
    if not _concerns(end, state):
        account.refuse(end.ref, end.token)
        return False
    if end.status is not Status.INTERRUPTED:
        state.enqueued_at = state.enqueued_at or now  # its message was there, faster than the record of its publish
        state.error = end.error
        _end(account, state, end.status, now, end.reason, end.history_size)
        return True
    if state.status is not Status.RUNNING:
        return False
    state.reason, state.error = end.reason or Reason.WORKER_LOST, end.error
    if state.attempt >= end.max_attempts:
        _end(account, state, Status.INTERRUPTED, now, state.reason, end.history_size)
    else:
        state.lease_until = min(state.lease_until, now)
        account.put(state)
    return True


def _concerns(end: Finish, state: RunState) -> bool:
    """Tell whether the report is about what the run does now."""
    if end.delivered is None:
        return end.token == state.token and state.status is not Status.CLAIMED
    if state.delivered == end.delivered:
        return True
    if state.status is Status.RUNNING or state.attempt != end.attempt:
        return False
    return end.header_token == state.token if state.parked else end.delivered.retries == 0
