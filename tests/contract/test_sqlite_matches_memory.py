"""The SQLite store answers as the memory store does, whatever is asked in whatever order."""
# ruff: noqa: ANN401 - what Hypothesis draws has many types

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from anarchon_tasks.model import Reason, RunRef, Status, Trigger
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    Claim,
    Definition,
    Delivered,
    Delivery,
    Finish,
    Overlap,
    Park,
    Policy,
    Queued,
    Release,
    SlotRange,
)
from anarchon_tasks.stores.memory import MemoryStore
from anarchon_tasks.stores.sqlite import SqliteStore
from anarchon_tasks.testing import ManualClock

if TYPE_CHECKING:
    from anarchon_tasks.stores.rules import RunState

JOBS = ("a", "b", "ζ {}")
MEMORY = Path("/dev/shm")
"""Where a commit costs no disk access."""
START = 1_750_000_000_000
SECOND = 1_000

jobs = st.sampled_from(JOBS)
picks = st.integers(0, 11)
ids = st.sampled_from(("id-1", "id-2", "id-3"))
small = st.sampled_from((0, 1, 500, 5 * SECOND, 60 * SECOND))
histories = st.sampled_from((0, 1, 3, 1_000))
policies = st.builds(
    Policy,
    overlap=st.sampled_from(Overlap),
    delivery=st.sampled_from((Delivery.AT_LEAST_ONCE, Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE)),
    max_attempts=st.integers(1, 3),
    claim_lease_ms=st.sampled_from((1, 5 * SECOND)),
    coalesce_ms=st.sampled_from((0, 10 * SECOND)),
    start_timeout_ms=st.sampled_from((1, 5 * SECOND, 3_600 * SECOND)),
    start_deadline_ms=st.sampled_from((None, None, 0, 5 * SECOND)),
    takeover_delay_ms=st.sampled_from((0, 0, 2 * SECOND)),
    keep_ms=st.sampled_from((0, 3 * SECOND, 86_400 * SECOND)),
    history_size=histories,
    history_ttl_ms=st.sampled_from((None, None, 4_000)),
)
messages = st.builds(
    Delivered,
    message_id=st.sampled_from(("m-1", "m-2")),
    retries=st.integers(0, 2),
    worker=st.just("worker"),
    pid=st.integers(1, 2),
)
ends = st.sampled_from((Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.INTERRUPTED, Status.INTERRUPTED))


class StoresAgree(RuleBasedStateMachine):
    """Two clients of one SQLite file, a memory store, and one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START)
        self.memory = MemoryStore(clock=self.clock)
        self.directory = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.clients = [SqliteStore(self.directory / "store.db", clock=self.clock) for _ in range(2)]
        self.calls = 0
        self.floors = dict.fromkeys(JOBS, START - 20 * SECOND)
        self.refs = [RunRef("b", START - 30 * SECOND)]
        self.tokens: dict[RunRef, int] = {}

    def teardown(self) -> None:
        """Compare what is left, and clean up."""
        self.same("definitions")
        for client in self.clients:
            client.close()
        shutil.rmtree(self.directory)

    def same(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call to both and return the answers."""
        self.calls += 1
        expected = getattr(self.memory, name)(*args, **kwargs)
        found = getattr(self.clients[self.calls % 2], name)(*args, **kwargs)
        assert found == expected
        return expected.answers

    def pick(self, at: int) -> tuple[RunRef, int]:
        """Return one of the last runs that were asked for, with its token, or with a wrong one."""
        ref = self.refs[-1 - at % min(len(self.refs), 4)]
        return ref, self.tokens.get(ref, 0) - (1 if at == 11 else 0)

    @initialize()
    def begin_with_jobs(self) -> None:
        """Register two of the jobs."""
        self.register(["a", "b"], "1", 0)

    # --- jobs and time

    @rule(
        names=st.lists(jobs, min_size=1, max_size=3), mark=st.sampled_from("112"), floor=st.sampled_from((None, 0, 9))
    )
    def register(self, names: list[str], mark: str, floor: int | None) -> None:
        """Register jobs."""
        known = None if floor is None else START - 20 * SECOND + floor * SECOND
        answers = self.same(
            "register", [Definition(name=n, fingerprint=mark, document=f"{mark}{n}", floor=known) for n in names]
        )
        self.floors.update({name: answer.floor for name, answer in zip(names, answers, strict=True)})

    @rule(name=jobs)
    def forget(self, name: str) -> None:
        """Forget a job."""
        self.same("forget", [name, "unknown"])

    @rule(ms=st.sampled_from((1, 1, 500, SECOND, 2 * SECOND, 6 * SECOND, 90 * SECOND, 86_400 * SECOND)))
    def time_passes(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms / 1_000)

    @rule(ms=st.sampled_from((-5 * SECOND, -1, 7 * SECOND)))
    def clock_steps(self, ms: int) -> None:
        """Let the wall clock jump."""
        self.clock.set_wall(self.clock.wall_ms() + ms)

    @rule(at=st.integers(0, 1))
    def close(self, at: int) -> None:
        """Close a client; it opens again."""
        self.clients[at].close()

    # --- the scheduler

    @rule(
        job=st.sampled_from("aaab") | jobs,
        asked=st.lists(st.tuples(st.integers(0, 5), ids, st.booleans()), min_size=1, max_size=3),
        policy=policies,
        tracked=st.sampled_from((True, True, True, False)),
        jitter=st.sampled_from((0, 0, 500, 5 * SECOND)),
        latest=st.sampled_from((0, 30 * SECOND, 3_600 * SECOND, 3_600 * SECOND)),
        stretch=st.sampled_from((None, None, Reason.SUPERSEDED, Reason.NO_INSTANCE)),
        key=st.sampled_from(("", "", "", "k")),
        moved=st.sampled_from((0, 0, 0, 0, 0, 1)),
        begun=small,
    )
    def claim(self, job: str, asked: Any, policy: Policy, stretch: Reason | None, key: str, **drawn: Any) -> None:
        """Claim slots above the floor, or the slot of now, or runs that are known."""
        claims = []
        for ahead, claim_id, known in asked:
            new = RunRef(job, self.clock.wall_ms() if ahead > 3 else self.floors[job] + ahead * SECOND, key)
            ref = self.pick(ahead)[0] if known else new
            floor = self.floors[ref.job]
            ranges = ()
            if stretch is not None and floor + 2 < ref.slot:
                ranges = (SlotRange(first=floor + 1, last=ref.slot - 1, count=3, status=Status.MISSED, reason=stretch),)
            claims.append(
                Claim(
                    ref=ref,
                    claim_id=claim_id,
                    instance="instance",
                    policy=policy,
                    due_ms=ref.slot + drawn["jitter"],
                    latest_ms=ref.slot + drawn["jitter"] + drawn["latest"],
                    floor=floor - drawn["moved"],
                    ranges=ranges,
                    tracked=drawn["tracked"],
                    queue_begun_ms=self.clock.wall_ms() - drawn["begun"],
                    trigger=Trigger.MANUAL if ref.key else Trigger.SCHEDULE,
                )
            )
            self.refs = [*(known for known in self.refs if known != ref), ref]
        self.claim_all(claims)

    @rule(claim_id=ids, coalesce_ms=st.sampled_from((0, 10 * SECOND)))
    def claim_now(self, claim_id: str, coalesce_ms: int) -> None:
        """Claim the slot of now, of a job that forbids overlap."""
        now = self.clock.wall_ms()
        claim = Claim(
            ref=RunRef("a", now),
            claim_id=claim_id,
            instance="instance",
            policy=Policy(coalesce_ms=coalesce_ms),
            due_ms=now,
            latest_ms=now + 3_600 * SECOND,
            floor=self.floors["a"],
        )
        self.refs = [*(known for known in self.refs if known != claim.ref), claim.ref]
        self.claim_all([claim])

    def claim_all(self, claims: list[Claim]) -> None:
        """Claim, and remember floors and tokens."""
        for asking, answer in zip(claims, self.same("claim", claims), strict=True):
            if answer.floor:
                self.floors[asking.ref.job] = answer.floor
            if answer.token:
                self.tokens[asking.ref] = answer.token

    @rule(at=picks, policy=policies, eta=small, twice=st.booleans())
    def queued(self, at: int, policy: Policy, eta: int, *, twice: bool) -> None:
        """Record a publish."""
        ref, token = self.pick(at)
        record = Queued(ref=ref, token=token, policy=policy, task_id="task", eta_ms=self.clock.wall_ms() + eta)
        self.same("queued", [record] * (1 + twice))

    @rule(at=picks, policy=policies, failed=st.booleans(), unknown=st.booleans(), twice=st.booleans())
    def release(self, at: int, policy: Policy, *, twice: bool, **drawn: bool) -> None:
        """Hand a claim back."""
        ref, token = self.pick(at)
        self.same("release", [Release(ref=ref, token=token, policy=policy, error="no", **drawn)] * (1 + twice))

    @rule(at=picks, lease=small, phase=st.sampled_from((Status.RUNNING, Status.RUNNING, Status.CLAIMED)))
    def beat(self, at: int, lease: int, phase: Status) -> None:
        """Push a lease."""
        ref, token = self.pick(at)
        self.same("beat", [Beat(ref=ref, token=token, lease_ms=lease, phase=phase)])

    # --- the worker

    @rule(
        at=picks,
        delivery_id=ids,
        delivered=messages,
        attempt=st.integers(1, 2),
        lease_ms=small,
        max_attempts=st.integers(1, 3),
        history_size=histories,
        takeover=st.sampled_from((True, True, False)),
    )
    def begin(self, at: int, **drawn: Any) -> None:
        """Deliver a message."""
        ref, token = self.pick(at)
        [answer] = self.same("begin", [Begin(ref=ref, token=token, **drawn)])
        if answer.token:
            self.tokens[ref] = answer.token

    @rule(at=picks, eta=small, timeout=small, twice=st.booleans())
    def park(self, at: int, eta: int, timeout: int, *, twice: bool) -> None:
        """Put a run back for its retry."""
        ref, token = self.pick(at)
        item = Park(ref=ref, token=token, eta_ms=self.clock.wall_ms() + eta, start_timeout_ms=timeout)
        self.same("park", [item] * (1 + twice))

    @rule(
        at=picks,
        status=ends,
        delivered=st.none() | messages,
        attempt=st.integers(1, 2),
        reason=st.sampled_from((None, Reason.TIME_LIMIT)),
        error=st.sampled_from((None, "boom")),
        max_attempts=st.integers(1, 3),
        history_size=histories,
    )
    def finish(self, at: int, **drawn: Any) -> None:
        """Report an end, twice."""
        ref, token = self.pick(at)
        end = Finish(ref=ref, token=token, header_token=token, **drawn)
        self.same("finish", [end])
        self.same("finish", [end, replace(end, status=Status.FAILED)])

    # --- what comes next in an ordinary life

    def some(self, status: Status, at: int) -> RunState | None:
        """Return a run in this state, if there is one."""
        states = [s for job in JOBS for _, s in sorted(self.memory._accounts[job].states.items()) if s.status is status]
        return states[at % len(states)] if states else None

    @rule(at=picks, policy=policies)
    def publish_next(self, at: int, policy: Policy) -> None:
        """Record the publish of a claimed run."""
        state = self.some(Status.CLAIMED, at)
        if state is not None:
            self.same("queued", [Queued(ref=state.ref, token=state.token, policy=policy, task_id="task")])

    @rule(at=picks, delivered=messages, lease_ms=small, history_size=histories)
    def begin_next(self, at: int, delivered: Delivered, **drawn: int) -> None:
        """Deliver the message of a queued run, or of its retry."""
        state = self.some(Status.QUEUED, at)
        if state is None:
            return
        delivered = replace(delivered, retries=max(delivered.retries, int(state.parked)))
        delivery_id = f"delivery-{self.calls}"
        message = {"attempt": state.attempt, "token": state.token, "delivery_id": delivery_id, "delivered": delivered}
        [answer] = self.same("begin", [Begin(ref=state.ref, **message, **drawn)])
        self.tokens[state.ref] = answer.token or state.token

    @rule(
        at=picks,
        what=st.sampled_from((Status.SUCCEEDED, Status.INTERRUPTED, "park", "beat")),
        lease_ms=small,
        max_attempts=st.integers(1, 3),
        history_size=histories,
    )
    def end_next(self, at: int, what: str, lease_ms: int, **drawn: int) -> None:
        """Let a running run end, in one way or another, or go on."""
        state = self.some(Status.RUNNING, at)
        if state is None:
            return
        ref, token = state.ref, state.token
        if what == "park":
            self.same(
                "park", [Park(ref=ref, token=token, eta_ms=self.clock.wall_ms() + 500, start_timeout_ms=lease_ms)]
            )
        elif what == "beat":
            self.same("beat", [Beat(ref=ref, token=token, lease_ms=lease_ms)])
        else:
            self.same("finish", [Finish(ref=ref, status=Status(what), delivered=state.delivered, **drawn)])

    @rule(job=st.sampled_from("ab"))
    def beat_late(self, job: str) -> None:
        """Beat with the token of every attempt that there ever was."""
        for entry in self.memory.history(job, limit=5).answers:
            ref = RunRef(entry.job, entry.slot, entry.key)
            self.same("beat", [Beat(ref=ref, token=entry.token, lease_ms=SECOND)])

    # --- readers

    @rule(limit=st.integers(1, 5), at=picks)
    def read(self, limit: int, at: int) -> None:
        """Ask for what spans jobs."""
        self.same("expired", limit=limit)
        self.same("repair", [JOBS[at % 3]])
        self.same("last_runs", [*JOBS, "unknown"])
        self.same("history", JOBS[at % 3], limit=limit)

    @rule(queues=st.dictionaries(st.sampled_from(("mail", "default")), st.integers(0, 3)))
    def announce(self, queues: dict[str, int]) -> None:
        """Say what a worker consumes."""
        self.same("announce", "worker", queues)
        self.same("queues")

    @invariant()
    def same_history(self) -> None:
        """Compare the whole history and the index of leases."""
        for job in JOBS:
            self.same("history", job, limit=1_000)
        self.same("expired", limit=1_000)


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        StoresAgree,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_same_answers() -> None:
    """Every answer and the whole history are the same, in some hundred short stories."""
    _run(40, 50)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_same_answers_for_long() -> None:
    """Every answer and the whole history are the same, in many long stories."""
    _run(250, 80)
