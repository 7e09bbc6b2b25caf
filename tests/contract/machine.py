"""A store decides as the rules do: both get the same random calls at the same instants and must answer alike.

The memory store executes the rules. Calls are drawn from small sets of jobs, slots, ids and tokens, so that repeats
after a lost reply, stale tokens, races for a slot and takeovers all happen often. What differs between the stores that
are compared with it (how their tables or keys are read) is in a `Driver` of each.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from anarchon_tasks.model import Reason, RunRef, Status, Trigger
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginAnswer,
    Claim,
    ClaimAnswer,
    Definition,
    Delivered,
    Delivery,
    Finish,
    Overlap,
    Park,
    Policy,
    Queued,
    Release,
    Reply,
    SlotRange,
)
from anarchon_tasks.stores.memory import MemoryStore

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores.base import LeaseStore
    from anarchon_tasks.stores.rules import RunState

A = TypeVar("A")
Pick = tuple[int, str, int, str]

START = 1_800_000_000_000
JOBS = ("sync", 'odd: {%} "κλειδί"\n*')
KEYS = ("", "nightly", 'a "b" \0c')
POLICIES = (
    Policy(),
    Policy(keep_ms=3_000, history_size=3, history_ttl_ms=4_000, max_attempts=1, coalesce_ms=1_000),
    Policy(overlap=Overlap.ALLOW, start_timeout_ms=2_000, max_attempts=2, coalesce_ms=0, keep_ms=6_000),
    Policy(delivery=Delivery.AT_MOST_ONCE, max_attempts=1, start_timeout_ms=1_000),
    Policy(takeover_delay_ms=1_500, start_deadline_ms=0, start_timeout_ms=86_400_000, claim_lease_ms=1_000),
)
STATE = (
    *("status", "token", "lease_until", "not_before", "reason", "attempt", "trigger", "grant_id", "due", "latest"),
    *("instance", "tracked", "exclusive", "releases", "publishes", "task_id", "parked", "retries", "delivered"),
    *("deadline", "claimed_at", "enqueued_at", "first_enqueued_at", "started_at", "finished_at", "error"),
)

jobs = st.sampled_from(JOBS)
keys = st.sampled_from(("", "", "", "", *KEYS[1:]))
picks = st.tuples(st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 9)), jobs, st.integers(-4, 1), keys)
"""A run: one of the last ones that had a token, or a new one near the present second."""
backs = st.sampled_from((0, 0, 0, 0, 1, 2))
"""How far back a token is: mostly the newest of its run."""
ids = st.sampled_from(("i1", "i2", "i3", "i4"))
policies = st.sampled_from(POLICIES)
errors = st.sampled_from((None, "boom", 'Traceback "…"\n/\\'))
ranges = st.lists(
    st.builds(
        SlotRange,
        first=st.just(START - 9_000),
        last=st.integers(-8, 2).map(lambda step: START + step * 1_000),
        count=st.integers(1, 9),
        status=st.sampled_from((Status.MISSED, Status.SKIPPED)),
        reason=st.sampled_from((Reason.SUPERSEDED, Reason.TOO_LATE, Reason.OVERLAP)),
    ),
    max_size=2,
).map(tuple)
delivered = st.builds(
    Delivered,
    message_id=st.sampled_from(("m1", "m1", "m1", "m2")),
    retries=st.sampled_from((0, 0, 0, 0, 1, 2)),
    worker=st.just("w1"),
    pid=st.sampled_from((11, 11, 11, 12)),
)
waits = st.sampled_from((0, 1, 500, 1_000, 3_000, 40_000))


class MovedClock:
    """A clock that the test moves, forth and sometimes back."""

    def __init__(self) -> None:
        self.now = START

    def wall_ms(self) -> int:
        """Return the instant that the test has set."""
        return self.now

    def monotonic(self) -> float:
        """Return the same in seconds."""
        return self.now / 1_000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Not wait."""
        del seconds
        return event.is_set()


class Driver(Protocol):
    """A store under comparison: opens it in a namespace of its own, and reads what it holds."""

    def open(self, clock: Clock) -> LeaseStore:
        """Return the store, with nothing in it."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...

    def lose_index(self) -> None:
        """Lose the index of lease ends, if it is a thing of its own."""
        ...

    def states(self, job: str) -> dict[str, dict[str, object]]:
        """Return what is stored of each run, by the names in `STATE`."""
        ...

    def open_runs(self, job: str) -> set[str]:
        """Return the runs that the store's own list of open runs has."""
        ...

    def known(self, job: str) -> dict[str, int | None]:
        """Return the job's floor, trimmed and token."""
        ...


class SameAnswers(RuleBasedStateMachine):
    """A memory store and another one that are asked the same."""

    make_driver: ClassVar[Callable[[], Driver]]
    reply_is_lost = False
    """Whether the next call is executed twice."""

    @initialize(known=st.sampled_from((JOBS, JOBS, JOBS[:1])))
    def open(self, known: tuple[str, ...]) -> None:
        """Open both, and register the jobs or one of them."""
        self.clock = MovedClock()
        self.driver = type(self).make_driver()
        self.memory = MemoryStore(clock=self.clock)
        self.stores: tuple[LeaseStore, ...] = (self.memory, self.driver.open(self.clock))
        self.floors: dict[str, int] = {}
        self.tokens: dict[RunRef, list[int]] = {}
        for job in known:
            self.register(job, "f1", START - 3_000)

    def teardown(self) -> None:
        """Compare the whole history once more and leave nothing behind."""
        if hasattr(self, "driver"):
            try:
                for job in JOBS:
                    self.both(lambda store, job=job: store.history(job, limit=1_000))
            finally:
                self.driver.close()

    def both(self, ask: Callable[[LeaseStore], Reply[A]], *, again: bool = True) -> list[A]:
        """Ask both stores and return the answers, which are the same; ask twice when a reply was to be lost.

        Args:
            ask: The call.
            again: Whether it answers the same when it is executed again.

        """
        lost, self.reply_is_lost = self.reply_is_lost, False
        expected, found = (ask(store) for store in self.stores)
        assert found == expected, f"\nthe store: {found}\nthe rules: {expected}"
        if lost:
            repeated, found = (ask(store) for store in self.stores)
            assert found == repeated, f"\nthe store, again: {found}\nthe rules, again: {repeated}"
            alone = len(expected.answers) == 1  # of several, one tells the floor as the next one left it
            assert repeated == expected or not (again and alone), f"\nagain: {repeated}\nfirst: {expected}"
        return expected.answers

    @precondition(lambda self: not self.reply_is_lost)
    @rule()
    def lose_reply(self) -> None:
        """Let the next call be executed twice, as by a driver that repeats it."""
        self.reply_is_lost = True

    def token(self, ref: RunRef, back: int) -> int:
        """Return one of the run's tokens: the newest, an older one, or one that never was."""
        had = self.tokens.get(ref, [])
        return had[-1 - back] if back < len(had) else back

    def ref(self, pick: Pick) -> RunRef:
        """Return the run that was picked."""
        back, job, step, key = pick
        known = list(self.tokens)
        return known[-1 - back] if back < len(known) else self.near(job, step, key)

    def near(self, job: str, step: int, key: str) -> RunRef:
        """Return a run so many seconds from the present one."""
        return RunRef(job, (self.clock.now // 1_000 + step) * 1_000, key)

    def learn(self, ref: RunRef, answer: ClaimAnswer | BeginAnswer) -> None:
        """Remember a token that was given."""
        if answer.token:
            had = self.tokens.pop(ref, [])
            self.tokens[ref] = [*had, *({answer.token} - {*had})]

    @rule(
        step=st.sampled_from(
            (1, 400, 1_000, 1_000, 1_000, 2_500, 2_500, 6_000, 6_000, 40_000, 40_000, 4_000_000, 90_000_000, -1_500)
        )
    )
    def time_passes(self, step: int) -> None:
        """Move the clock."""
        self.clock.now += step

    @rule(job=jobs, fingerprint=st.sampled_from(("f1", "f1", "f2")), floor=st.sampled_from((None, START - 3_000)))
    def register(self, job: str, fingerprint: str, floor: int | None) -> None:
        """Make a job known, again, or changed."""
        definition = Definition(name=job, fingerprint=fingerprint, document='{"a": "π"}', floor=floor)
        [answer] = self.both(lambda store: store.register([definition]), again=False)
        self.floors[job] = answer.floor

    @rule(
        asked=st.lists(st.tuples(picks, ids, policies, ranges, waits, waits), min_size=1, max_size=3),
        tracked=st.sampled_from((True, True, True, False)),
        seen=st.sampled_from((0, 0, 0, 0, 1)),
        begun=waits,
        backfill=st.sampled_from((False, False, False, True)),
        takeover=st.sampled_from((True, True, True, False)),
    )
    def claim(
        self,
        asked: list[tuple[Pick, str, Policy, tuple[SlotRange, ...], int, int]],
        tracked: bool,
        seen: int,
        begun: int,
        backfill: bool,
        takeover: bool = True,
    ) -> None:
        """Claim one or several runs, now and then with a floor that is not the present one."""
        claims = [
            Claim(
                ref=ref,
                claim_id=claim_id,
                instance=f"instance-{claim_id}",
                policy=policy,
                due_ms=ref.slot + jitter // 100,
                latest_ms=ref.slot + jitter + late,
                floor=self.floors.get(ref.job, 0) + seen,
                ranges=settled,
                tracked=tracked,
                queue_begun_ms=self.clock.now - begun,
                trigger=Trigger.MANUAL if ref.key else Trigger.BACKFILL if backfill else Trigger.SCHEDULE,
                takeover=takeover,
            )
            for ref, claim_id, policy, settled, jitter, late in ((self.ref(pick), *rest) for pick, *rest in asked)
        ]
        for ask, answer in zip(claims, self.both(lambda store: store.claim(claims)), strict=True):
            self.learn(ask.ref, answer)
            self.floors[ask.ref.job] = answer.floor

    @rule(job=jobs, step=st.integers(-3, 0), policy=policies, far=st.integers(1, 3), tracked=st.booleans())
    def publish(self, job: str, step: int, policy: Policy, far: int, tracked: bool) -> None:
        """Take a run as far as its claim, its publish or its begin."""
        ref = self.near(job, step, "")
        self.claim([((99, job, step, ""), "i1", policy, (), 0, 10_000)], tracked or far > 1, 0, 0, backfill=False)
        if far > 1 and ref in self.tokens:
            self.queued((99, job, step, ""), 0, policy, 500)
        if far > 2 and ref in self.tokens:
            message = Delivered(message_id="m1", retries=0, worker="w1", pid=11)
            self.begin((99, job, step, ""), "i1", message, 0, 3, takeover=True, attempt=1, history=1_000)

    @rule(pick=picks, back=backs, policy=policies, eta=waits, twice=st.booleans())
    def queued(self, pick: Pick, back: int, policy: Policy, eta: int, twice: bool = False) -> None:
        """Confirm a publish, alone or with the same again in one batch."""
        ref = self.ref(pick)
        record = Queued(
            ref=ref, token=self.token(ref, back), policy=policy, task_id="m1", eta_ms=self.clock.now - 500 + eta
        )
        again = [replace(record, token=record.token + back)] if twice else []
        self.both(lambda store: store.queued([record, *again]))

    @rule(pick=picks, back=backs, policy=policies, failed=st.booleans(), unknown=st.booleans(), error=errors)
    def release(self, pick: Pick, back: int, policy: Policy, failed: bool, unknown: bool, error: str | None) -> None:
        """Hand a claim back."""
        ref = self.ref(pick)
        token = self.token(ref, back)
        record = Release(ref=ref, token=token, failed=failed, unknown=unknown, policy=policy, error=error)
        self.both(lambda store: store.release([record]))

    @rule(
        pick=picks,
        back=backs,
        lease=st.sampled_from((0, 1_000, 30_000)),
        phase=st.sampled_from((Status.RUNNING, Status.RUNNING, Status.CLAIMED)),
        twice=st.booleans(),
    )
    def beat(self, pick: Pick, back: int, lease: int, phase: Status, twice: bool) -> None:
        """Push a lease, also twice in one batch, to two instants."""
        ref = self.ref(pick)
        item = Beat(ref=ref, token=self.token(ref, back), lease_ms=lease, phase=phase)
        again = [replace(item, lease_ms=700)] if twice else []
        self.both(lambda store: store.beat([item, *again]))

    @rule(
        pick=picks,
        delivery_id=ids,
        message=delivered,
        back=backs,
        attempts=st.integers(1, 3),
        takeover=st.sampled_from((True, True, False)),
        attempt=st.integers(1, 2),
        history=st.sampled_from((3, 1_000)),
        twice=st.booleans(),
    )
    def begin(
        self,
        pick: Pick,
        delivery_id: str,
        message: Delivered,
        back: int,
        attempts: int,
        takeover: bool,
        attempt: int,
        history: int,
        twice: bool = False,
    ) -> None:
        """Ask to execute a run, sometimes one that the store does not know, also in two deliveries of one batch."""
        ref = self.ref(pick)
        ask = Begin(
            ref=ref,
            delivery_id=delivery_id,
            delivered=message,
            attempt=attempt,
            token=self.token(ref, back),
            lease_ms=3_000,
            max_attempts=attempts,
            history_size=history,
            trigger=Trigger.MANUAL if ref.key else Trigger.SCHEDULE,
            takeover=takeover,
        )
        again = [replace(ask, delivery_id="i5")] if twice else []
        for answer in self.both(lambda store: store.begin([ask, *again])):
            self.learn(ref, answer)

    @rule(pick=picks, back=backs, eta=waits)
    def park(self, pick: Pick, back: int, eta: int) -> None:
        """Put a run back into its queue."""
        ref = self.ref(pick)
        item = Park(ref=ref, token=self.token(ref, back), eta_ms=self.clock.now + eta, start_timeout_ms=1_000)
        self.both(lambda store: store.park([item, item]))

    @rule(
        pick=picks,
        back=backs,
        message=st.none() | st.none() | delivered,
        status=st.sampled_from((Status.SUCCEEDED, Status.FAILED, Status.INTERRUPTED, Status.INTERRUPTED)),
        attempt=st.integers(1, 2),
        reason=st.sampled_from((None, Reason.TIME_LIMIT)),
        error=errors,
        attempts=st.integers(1, 3),
        history=st.sampled_from((4, 4, 1_000, 0)),
        twice=st.booleans(),
    )
    def finish(
        self,
        pick: Pick,
        back: int,
        message: Delivered | None,
        status: Status,
        attempt: int,
        reason: Reason | None,
        error: str | None,
        attempts: int,
        history: int,
        twice: bool,
    ) -> None:
        """End a run or an attempt, as who executes it or as the parent of that process; also twice in one batch."""
        ref = self.ref(pick)
        token = self.token(ref, back)
        end = Finish(
            ref=ref,
            status=status,
            token=0 if message else token,
            delivered=message,
            attempt=attempt,
            header_token=token if message else 0,
            reason=reason,
            error=error,
            max_attempts=attempts,
            history_size=history,
        )
        self.both(lambda store: store.finish([end, end] if twice else [end]))

    @rule(lost=st.booleans())
    def expired(self, lost: bool) -> None:
        """Find runs whose lease is over, also after the index was lost and repaired."""
        if lost:
            self.driver.lose_index()
            self.both(lambda store: store.repair(JOBS))
        self.both(lambda store: store.expired(limit=1_000))

    @rule(limit=st.sampled_from((1, 3, 1_000)), begun=waits, gone=st.none() | jobs)
    def read(self, limit: int, begun: int, gone: str | None) -> None:
        """Read the newest entries, and what is known of jobs and queues."""
        for job in JOBS:
            self.both(lambda store, job=job: store.history(job, limit=limit))
        self.both(lambda store: store.last_runs([*JOBS, "unknown"]))
        self.both(lambda store: store.announce("w1", {"celery": self.clock.now - begun, "π": 0}))
        self.both(lambda store: store.queues())
        if gone is not None:
            self.both(lambda store: store.forget([gone, gone]), again=False)
        self.both(lambda store: store.definitions())

    @invariant()
    def same_states(self) -> None:
        """Both stores hold the same states, and the list of open runs is exact."""
        if not hasattr(self, "driver"):
            return
        for job in JOBS:
            account = self.memory._accounts[job]
            assert self.driver.states(job) == {ref.run: _stored(state) for ref, state in account.states.items()}
            assert self.driver.open_runs(job) == {ref.run for ref, state in account.states.items() if state.open}
            known = {"floor": account.job.floor, "trimmed": account.job.trimmed, "token": account.job.token}
            assert self.driver.known(job) == known


def _stored(state: RunState) -> dict[str, object]:
    fields = asdict(state)
    given = fields["delivered"]
    fields["delivered"] = None if given is None else list(given.values())
    return {name: fields[name] for name in STATE}


def machine(make_driver: Callable[[], Driver]) -> type[SameAnswers]:
    """Return the machine that compares this store."""
    return type("SameAnswersHere", (SameAnswers,), {"make_driver": staticmethod(make_driver)})


def compare(make_driver: Callable[[], Driver], *, examples: int, steps: int) -> None:
    """Run random sequences of calls, each with a store of its own."""
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine(make_driver),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=quiet,
            database=None,
            phases=(Phase.generate, Phase.shrink),
        ),
    )


def check_lost_run_that_begins(make_driver: Callable[[], Driver], newer: str) -> None:
    """Take a path that random calls seldom find: a run given up as lost begins, unless a newer one is under way.

    Args:
        make_driver: Opens the store.
        newer: How far a newer run is: `none` there, `queued` or `running`.

    """
    both = machine(make_driver)()
    both.open(known=JOBS)
    try:
        lost, late = both.near("sync", -2, ""), both.near("sync", 0, "")
        pick, message = (99, "sync", -2, ""), Delivered(message_id="m1", retries=0, worker="w1", pid=11)
        policy = replace(POLICIES[0], start_timeout_ms=1_000, max_attempts=1)
        both.claim([(pick, "i1", policy, (), 0, 10_000)], True, 0, 0, backfill=False)
        both.queued(pick, 0, policy, 0)
        both.clock.now += 1_000
        pick = (99, "sync", -3, "")
        both.clock.now += 1
        both.claim([(pick, "i2", policy, (), 0, 10_000)], True, 0, 1, backfill=False)
        assert both.memory._accounts["sync"].states[lost].status is Status.LOST
        if newer != "none":
            pick = (99, "sync", -1, "")
            both.claim([(pick, "i3", policy, (), 0, 10_000)], True, 0, 0, backfill=False)
            both.queued(pick, 0, policy, 0)
        if newer == "running":
            both.begin(pick, "i3", message, 0, 3, takeover=True, attempt=1, history=1_000)
        both.begin((99, "sync", -3, ""), "i4", message, 0, 3, takeover=True, attempt=1, history=1_000)
        states = both.memory._accounts["sync"].states
        assert states[lost].status is (Status.LOST if newer == "running" else Status.RUNNING)
        assert newer != "queued" or states[late].status is Status.SKIPPED
        both.same_states()
    finally:
        both.teardown()
