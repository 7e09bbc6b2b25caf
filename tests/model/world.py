"""What the model of claims, publishes and begins is made of: states, rules, faults and the promises to keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

MAX_ATTEMPTS = 2
MAX_COPIES = 2
"""Publishes of one attempt, after which a run that never started is lost."""

NOBODY = -1
"""The token of an idle scheduler or worker: never a run's."""

Status = Literal[
    "none", "claimed", "queued", "running",
    "enqueued", "succeeded", "interrupted", "lost", "skipped", "superseded", "late", "displaced", "trimmed",
]  # fmt: skip
OPEN = frozenset({"claimed", "queued", "running"})
NEVER_RAN = frozenset({"skipped", "superseded", "late", "displaced"})
SETTLED_UNASKED = frozenset({"none", "skipped", "late"})

TWICE = "COMPLETED TWICE, though no lease ran out under a paused worker and no outcome was lost"
OVERLAP = "OVERLAP: two slots of one job run at once under live tokens"
STUCK = "STUCK: a slot is open and nothing will happen to it"
FENCED = "LIVE WORKER FENCED: its run went to somebody else, or ended, while its lease held"
FALSE_INTERRUPTED = "FALSE INTERRUPTED: attempts used up, though fewer workers than that died"
FALSE_ATTEMPT = "FALSE ATTEMPT: a new attempt was counted, though no worker died for it"
FALSE_LOST = "FALSE LOST: ended as lost, though not every copy of its message was"
ALL_DROPPED = "ALL DROPPED: no body ran, though no fault forbade it"
TWO_ENDS = "TWO ENDS: a slot that had a state of its own was settled over it"
NO_END = "NO END: a slot at or below the floor is in no state at all"
FALSE_SKIP = "FALSE SKIP: skipped for an overlap, though nothing was enqueued when the slot was due"
FALSE_SUPERSEDED = "FALSE SUPERSEDED: settled in favour of newer slots, none of which was won"
MISSED_AFTER_START = "MISSED AFTER START: a run that had started was settled as missed"
PILE_UP = "PILE-UP: a job's second message is on its way, while the first waits and no worker was there"
ORPHANED = "ORPHANED CLAIM: the instance that holds it lives and does not know"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of the protocol that the model can do without, each on unless a test takes it out."""

    begin_while_claimed: bool = True
    """begin admits a run whose publish is not on record yet."""
    begin_has_id: bool = True
    """A begin repeated with the same delivery id answers as the first did."""
    begin_id_outlives_lease: bool = True
    """It does so even when the lease ran out before it was repeated, as long as nobody else was granted the run."""
    begin_busy_while_live: bool = True
    """begin drops the message of a run that is running under a live lease."""
    begin_below_floor_is_done: bool = True
    """A message of a slot at or below the floor that never had a state, or lost it, is dropped."""
    begin_of_trimmed_is_done: bool = True
    """A message of a slot whose state was trimmed is dropped."""
    claim_has_id: bool = True
    """A claim repeated with the same claim id answers as the first did."""
    claim_checked_before_publish: bool = True
    """An instance whose claim ran out by its own clock drops it instead of publishing."""
    queued_compares_token: bool = True
    """The record of a publish applies only while the run is claimed under its token."""
    release_compares_token: bool = True
    """A release applies only while the run is claimed under its token."""
    release_keeps_state: bool = True
    """A released run stays on record, claimed, with its lease over."""
    finish_compares_token: bool = True
    """A finish applies only with the current token."""
    report_matches_begin: bool = True
    """A parent's report of a dead child applies only to the begin that this child made."""
    reclaim_keeps_attempt: bool = True
    """Claiming a run that never started again keeps its attempt."""
    takeover_ignores_late: bool = True
    """`max_late` bounds the first start only."""
    grace_after_outage: bool = True
    """After an outage of the store nothing is taken over before the live workers have beaten."""
    overlap_counts_expired: bool = True
    """Every open run counts for overlap, its lease over or not."""
    claimed_phase_waits: bool = True
    """While an older slot is claimed, a newer one waits instead of being skipped."""
    delayed_run_makes_wait: bool = True
    """A run first enqueued after the slot was due makes it wait instead of being skipped."""
    ranges_make_wait: bool = True
    """A claim that carries superseded slots is never answered `overlap`."""
    winner_settles_unstarted: bool = True
    """A winning claim settles older claims whose lease is over and that never started."""
    ranges_not_before_win: bool = True
    """Superseded slots are not settled in a step before the claim."""
    ranges_not_after_win: bool = True
    """Superseded slots are not settled in a step after the claim."""
    floor_compared: bool = True
    """A claim that saw another floor changes nothing."""
    claims_brought_back_first: bool = True
    """A claim does not pass over a slot that a worker brought back after the store had lost it."""
    at_most_once_gives_up: bool = True
    """Delivered at most once, a claim that ran out without a word is lost: its message may be on its way."""
    lost_needs_a_begin: bool = True
    """A run is lost only if workers began something in its queue while its copies waited."""
    lost_may_begin: bool = True
    """A lost run whose message arrives after all may begin."""
    lost_yields_to_started: bool = True
    """A lost run does not begin while another run of the job has started and is open."""
    lost_displaces_unstarted: bool = True
    """A lost run that begins settles the open newer one that never started."""

    def without(self, rule: str) -> Rules:
        """Return the rules with one of them taken out."""
        return replace(self, **{rule: False})


Fault = Literal[
    "kill scheduler", "pause scheduler", "lose claim reply", "publish error",
    "kill worker", "pause worker", "lose begin reply", "report",
    "duplicate", "lose message", "slow queue", "late", "trim", "outage", "failover",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """How big the model is, which faults it knows and how many of them may happen in one history."""

    faults: frozenset[Fault]
    budget: int
    slots: int = 1
    schedulers: int = 2
    workers: int = 2
    at_most_once: bool = False
    """Whether a publish whose outcome is unknown is not repeated."""
    tracked: bool = True
    """Whether workers ask the store before they run; without, a job is enqueue-only."""


class Run(NamedTuple):
    """What the store knows of a slot, the token last."""

    status: Status = "none"
    attempt: int = 0
    live: bool = False
    """The lease (queued: the start timeout) is not over."""
    copies: int = 0
    """Recorded publishes of this attempt."""
    enqueued: int = 0
    """How many slots were due when the run was first enqueued; 0: it was not."""
    handed_back: bool = False
    """The claim was released after a publish that surely failed."""
    passed: bool = False
    """Some other message was begun in the queue after all copies of this run's were published."""
    token: int = 0


class Facts(NamedTuple):
    """What really happened to a slot; only the promises look at it."""

    bodies: int = 0
    deaths: int = 0
    vanished: int = 0
    """Copies of the message that a fault destroyed."""
    busy: bool = False
    """Something of the job was enqueued or running when the slot became due."""
    excused: bool = False
    """A fault happened under which nobody can promise a single completion."""


class Scheduler(NamedTuple):
    """What an instance is at: `plan`, `asked`, `settle`, `won`, `overslept`, `published`, `unknown` or `failed`."""

    phase: str = "idle"
    slot: int = 0
    seen: int = 0
    """The floor that the plan is based on."""
    token: int = NOBODY


class Worker(NamedTuple):
    """What a worker is about to do: `repeat` its begin, `run` the body, or `finish`."""

    phase: str = "idle"
    slot: int = 0
    paused: bool = False
    """Its lease ran out under it at some time."""
    token: int = NOBODY


class State(NamedTuple):
    """Everything there is. Slots count from 0 and the floor is the number of slots settled from below."""

    runs: tuple[Run, ...]
    facts: tuple[Facts, ...]
    schedulers: tuple[Scheduler, ...]
    workers: tuple[Worker, ...]
    messages: tuple[int, ...] = ()
    """The slots of the messages in the queue, sorted."""
    reports: tuple[tuple[int, int], ...] = ()
    """(slot, token of the begin) of children whose parent has yet to report their death."""
    floor: int = 0
    due: int = 1
    late: int = 0
    """How many slots are later than `max_late`, from below."""
    tokens: int = 0
    faults: int = 0
    """How many faults may still happen."""
    outage: bool = False
    """The store was away and not all live workers have beaten since."""
    replica: tuple[tuple[Run, ...], int] | None = None
    """The runs and the floor to which a failover falls back."""
    broken: str = ""
    """A promise that the last step broke."""

    def run(self, slot: int, run: Run) -> State:
        """Return the state with one run replaced."""
        return self._replace(runs=(*self.runs[:slot], run, *self.runs[slot + 1 :]))

    def fact(self, slot: int, facts: Facts) -> State:
        """Return the state with the facts of one slot replaced."""
        return self._replace(facts=(*self.facts[:slot], facts, *self.facts[slot + 1 :]))

    def scheduler(self, index: int, scheduler: Scheduler) -> State:
        """Return the state with one scheduler replaced."""
        return self._replace(schedulers=(*self.schedulers[:index], scheduler, *self.schedulers[index + 1 :]))

    def worker(self, index: int, worker: Worker) -> State:
        """Return the state with one worker replaced."""
        return self._replace(workers=(*self.workers[:index], worker, *self.workers[index + 1 :]))

    def send(self, slot: int) -> State:
        """Return the state with one more message of the slot in the queue."""
        return self._replace(messages=tuple(sorted((*self.messages, slot))))

    def take(self, slot: int) -> State:
        """Return the state with one message of the slot out of the queue."""
        at = self.messages.index(slot)
        return self._replace(messages=self.messages[:at] + self.messages[at + 1 :])

    def fault(self) -> State:
        """Return the state with one fault less to come."""
        return self._replace(faults=self.faults - 1)
