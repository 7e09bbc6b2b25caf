"""What a store must guarantee, in the calls that the rest of the package makes.

Every call takes a batch and costs one round trip. Every call may be executed twice (a driver that repeats it after a
lost reply): the second execution answers as the first did, and leaves the account as the first did. Two answers tell
what their own execution did: `Registered.changed` and that of `forget`. And one number counts executions, since nothing
tells a repeated call from a second one: `Run.refused`. Each item of a batch is decided atomically and apart from the
others; one that fails answers with `error` and does not spoil them. The time of every decision is the store's own and
comes back in the reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anarchon_tasks.model import Reason, Run, RunRef, Status, Trigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 1
"""The store format that this version writes, and the newest that it reads."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generic[A]):
    """The answers to a batch, in its order, and the store's time when it decided them."""

    now_ms: int
    answers: list[A]


# --- definitions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What an instance tells the store of a job: enough for a reader without user code to list it."""

    name: str
    fingerprint: str
    """Changes when the job's slots may change."""
    document: str
    """JSON text: schedule, zone, target, queue, options. No arguments of tasks."""
    floor: int | None = None
    """The highest slot that this instance knows to be on the account, should the store have lost what it knew."""
    since: int | None = None
    """Since when this instance answers for the job: the floor of a job that the store does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The answer to a definition."""

    floor: int = 0
    """Slots at or below it are none of the job's: it was registered, or its schedule changed, after them."""
    changed: bool = False
    """Whether this very execution of the call changed the job; a repeat of it did not."""
    error: str | None = None


# --- claims ----------------------------------------------------------------------------------------------------------


class Overlap(StrEnum):
    """What happens to a slot while an earlier run of its job has not ended."""

    SKIP = "skip"
    ALLOW = "allow"


class Delivery(StrEnum):
    """What happens to a publish whose outcome is unknown."""

    AT_LEAST_ONCE = "at_least_once"
    """It is repeated, with the same message id."""
    AT_MOST_ONCE = "at_most_once"
    """It is not repeated; the run ends as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A job's rules, as far as the store applies them."""

    overlap: Overlap = Overlap.SKIP
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    max_attempts: int = 3
    claim_lease_ms: int = 5_000
    coalesce_ms: int = 10_000
    """A slot no later than this is never superseded by a newer one."""
    start_timeout_ms: int = 3_600_000
    """How long a message may wait in its queue before it is published again. Doubles at each publish of the job, up
    to a day, until a run of the job begins."""
    start_deadline_ms: int | None = None
    """How long after its due time a run may start for the first time."""
    takeover_delay_ms: int = 0
    keep_ms: int = 86_400_000
    """How long a late claim could still ask for a slot: no younger run leaves the state."""
    history_size: int = 1_000
    history_ttl_ms: int | None = None
    """How old the slot of an entry of the history may become; older ones go at the job's next claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRange:
    """A stretch of slots that share one fate."""

    first: int
    last: int
    count: int
    status: Status
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The question: may I take this run?"""

    ref: RunRef
    claim_id: str
    """Random, made for this claim, and used again only to repeat it after a lost reply."""
    instance: str
    policy: Policy
    due_ms: int
    """The slot plus its jitter: not to be claimed before."""
    latest_ms: int
    """Not to be claimed for a first start after."""
    floor: int
    """The job's floor as the caller last saw it."""
    gap_ms: int = 86_400_000
    """The time from this slot to the job's next one."""
    ranges: tuple[SlotRange, ...] = ()
    """What becomes of the slots between that floor and this slot."""
    tracked: bool = True
    """Whether workers report on the run; without, being enqueued is its end."""
    late_reason: Reason = Reason.NO_INSTANCE
    """Why the slot is late, should it be too late."""
    queue_begun_ms: int = 0
    """When some run of the job's queue last began, as far as the caller knows."""
    trigger: Trigger = Trigger.SCHEDULE
    takeover: bool = True
    """False after an outage of the store, or when the caller cannot know of one: live workers speak first. A run that
    was begun is left to them, and a slot is not skipped for one whose end may not be written yet: it waits."""


class ClaimKind(StrEnum):
    """The answers to a claim."""

    WON = "won"
    RUNNING = "running"
    """The run is somebody's, or waits for its time; ask again at `until`."""
    WAIT = "wait"
    """An older run of the job comes first, and delayed this one; the slot stays claimable. Ask again by `until`."""
    DONE = "done"
    """The slot is settled."""
    OVERLAP = "overlap"
    """The slot is now settled as skipped: an earlier run was under way when it was due."""
    LATE = "late"
    """The slot is now settled as missed: it is past its latest time."""
    EARLY = "early"
    MOVED = "moved"
    """The account has moved on since the caller looked: look at `floor`, then ask again."""
    UNREGISTERED = "unregistered"
    """The store does not know the job (any more)."""
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAnswer:
    """The answer to a claim."""

    kind: ClaimKind
    floor: int = 0
    attempt: int = 0
    token: int = 0
    until: int = 0
    status: Status | None = None
    run: str | None = None
    """The run that the answer is about: this one, or the one in the way (`wait`; `overlap`, as long as it is open)."""
    tracked: bool = True
    trigger: Trigger = Trigger.SCHEDULE
    reason: Reason | None = None
    """Why the run ended, told to the claim that decided its end, and to its repeat, alone."""
    error: str | None = None


# --- the scheduler's records -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The broker confirmed the message of a claimed run."""

    ref: RunRef
    token: int
    policy: Policy
    task_id: str
    eta_ms: int = 0
    """When the message becomes visible to workers, if later than now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A claimed run is handed back: its publish failed, or its instance stops."""

    ref: RunRef
    token: int
    failed: bool = True
    """False: the instance stops; anybody may claim the run at once."""
    unknown: bool = False
    """The message may have been published."""
    policy: Policy = Policy()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Push the end of a lease forward: an instance's claim, or a worker's run."""

    ref: RunRef
    token: int
    lease_ms: int
    phase: Status = Status.RUNNING


# --- the worker's calls ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One delivery of one message to one process: what the parent of that process can know of it."""

    message_id: str
    retries: int
    worker: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The question: may I execute the run of this message?"""

    ref: RunRef
    delivery_id: str
    """Random, made for this delivery, and used again only to repeat the call after a lost reply."""
    delivered: Delivered
    attempt: int
    token: int
    """The token in the message's header."""
    lease_ms: int
    max_attempts: int = 3
    history_size: int = 1_000
    trigger: Trigger = Trigger.SCHEDULE
    takeover: bool = True
    """False after an outage of the store: live workers beat first."""


class BeginKind(StrEnum):
    """The answers to a begin."""

    OK = "ok"
    BUSY = "busy"
    """Another delivery executes, or will; drop this one."""
    DONE = "done"
    """The run has ended; drop the message."""
    UNTRACKED = "untracked"
    """Nobody tracks the run: execute it and report nothing."""
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginAnswer:
    """The answer to a begin."""

    kind: BeginKind
    attempt: int = 0
    token: int = 0
    until: int = 0
    status: Status | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """The task asked for a retry of its own: the run goes back to its queue."""

    ref: RunRef
    token: int
    eta_ms: int
    """When the retry becomes visible to workers."""
    start_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a run, or (`interrupted`) of an attempt, told by who executed it or by the parent of that process.

    With `token` it must be the current one. With `delivered` the run must be executing exactly that delivery, or not
    have started at all and wait for this message (`attempt`, `header_token`).
    """

    ref: RunRef
    status: Status
    token: int = 0
    delivered: Delivered | None = None
    attempt: int = 0
    header_token: int = 0
    reason: Reason | None = None
    error: str | None = None
    max_attempts: int = 3
    history_size: int = 1_000


# --- what a reader sees ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNote:
    """What workers that load the integration said of a queue."""

    announced_ms: int
    begun_ms: int = 0
    """When a run of this queue last began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do; the conformance suite skips what it declares that it cannot."""

    leases: bool = True
    server_clock: bool = True
    """False: the clock is the host's."""
    many_processes: bool = True
    many_hosts: bool = True


class LeaseStore(Protocol):
    """A store that gives claims, leases and the account of runs.

    Connections open at the first call, in the process that makes it, and again after a fork. Every call raises
    `StoreUnavailable` when the store does not answer within its timeout, and `StoreFormatError` when its data is of a
    newer format.
    """

    @property
    def namespace(self) -> str:
        """The prefix or table: instances that share it share jobs."""
        ...

    @property
    def location(self) -> str:
        """Where the store is, for people: a URL without its password."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    def time(self) -> Reply[None]:
        """Ask for the store's time. Also checks that the store answers and that its format can be read."""
        ...

    def register(self, definitions: Sequence[Definition]) -> Reply[Registered]:
        """Make jobs known. A new job, and one whose fingerprint changed, gets the present time as its floor."""
        ...

    def forget(self, names: Sequence[str]) -> Reply[bool]:
        """Remove definitions from the list that readers see. The account of the job stays. False: it was not there."""
        ...

    def claim(self, claims: Sequence[Claim]) -> Reply[ClaimAnswer]:
        """Take runs: at most one caller is told `won` for each attempt and token."""
        ...

    def queued(self, records: Sequence[Queued]) -> Reply[bool]:
        """Record confirmed publishes. False: stale, the worker or another instance was faster."""
        ...

    def release(self, records: Sequence[Release]) -> Reply[bool]:
        """Hand claims back. The run stays on record. False: stale."""
        ...

    def beat(self, beats: Sequence[Beat]) -> Reply[bool]:
        """Push lease ends forward. False: the token is not the current one; stop."""
        ...

    def begin(self, begins: Sequence[Begin]) -> Reply[BeginAnswer]:
        """Admit one execution per attempt and retry."""
        ...

    def park(self, parks: Sequence[Park]) -> Reply[bool]:
        """Put running runs back into their queue for the task's own retry. False: stale."""
        ...

    def finish(self, ends: Sequence[Finish]) -> Reply[bool]:
        """End runs. False: refused, the token or the delivery is not the current one."""
        ...

    def expired(self, *, limit: int) -> Reply[RunRef]:
        """Return runs whose lease is over, found by an index."""
        ...

    def repair(self, jobs: Sequence[str]) -> Reply[bool]:
        """Put the open runs of these jobs back into that index, should they be missing there."""
        ...

    def announce(self, worker: str, queues: Mapping[str, int]) -> Reply[None]:
        """Say that a worker with the integration consumes these queues; values: when a run last began, or 0."""
        ...

    def queues(self) -> Reply[tuple[str, QueueNote]]:
        """Return what workers said of their queues, at most a day old."""
        ...

    def definitions(self) -> Reply[Definition]:
        """Return the stored definitions, by name."""
        ...

    def history(self, job: str, *, limit: int) -> Reply[Run]:
        """Return the newest attempts and stretches of a job, newest slot and attempt first."""
        ...

    def last_runs(self, jobs: Sequence[str]) -> Reply[Run | None]:
        """Return the newest entry of each job."""
        ...

    def close(self) -> None:
        """Close what the store itself opened. Idempotent; a later call opens it again."""
        ...
