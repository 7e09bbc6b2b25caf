"""Many clients of one PostgreSQL at once: one winner each, and nobody waits for somebody who waits for him."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.clock import SystemClock
from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginKind,
    Claim,
    ClaimKind,
    Definition,
    Delivered,
    Finish,
    Policy,
    Queued,
    Release,
)
from anarchon_tasks.testing import ManualClock
from tests.servers import poll_until

pytest.importorskip("psycopg")

from anarchon_tasks.stores import PostgresBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.stores.base import LeaseStore
    from tests.contract.postgres_adapter import EmptyTables
    from tests.servers import ProcessOwner

CLIENTS = 8
ROUNDS = 40
SLOTS = 500
STORM_S = 4.0

RACER = """
import json, sys
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores import from_url
from anarchon_tasks.stores.base import Claim, ClaimKind, Definition, Policy

url, table, who, base, number = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
store = from_url(url, table=table, timeout=60)
names = [f"job-{at}" for at in range(number)]
won = []
for at in range(0, number, 25):
    part = names[at : at + 25]
    store.register([Definition(name=n, fingerprint="1", document="{}", floor=base - 5_000) for n in part])
    asks = [
        Claim(ref=RunRef(n, base - 1_000), claim_id=f"{who}-{n}", instance=who, policy=Policy(), due_ms=base - 1_000,
              latest_ms=base + 10**9, floor=base - 5_000)
        for n in part
    ]
    won += [a.ref.job for a, answer in zip(asks, store.claim(asks).answers) if answer.kind is ClaimKind.WON]
print("won " + json.dumps(won), flush=True)
"""


@pytest.fixture
def clients(postgres_tables: EmptyTables) -> Iterator[Callable[..., LeaseStore]]:
    """Open clients of one store, each with connections of its own."""
    opened: list[LeaseStore] = []

    def client(clock: ManualClock | None = None) -> LeaseStore:
        backend = PostgresBackend(postgres_tables.url, table=postgres_tables.table, timeout=60, clock=clock)
        opened.append(backend.open())
        return opened[-1]

    yield client
    for store in opened:
        store.close()


def _claim(ref: RunRef, floor: int, claim_id: str, policy: Policy = Policy()) -> Claim:  # noqa: B008 - frozen
    return Claim(
        ref=ref,
        claim_id=claim_id,
        instance=claim_id,
        policy=policy,
        due_ms=ref.slot,
        latest_ms=ref.slot + 10**9,
        floor=floor,
    )


def test_slots_of_one_job_never_win_side_by_side(clients: Callable[..., LeaseStore]) -> None:
    """Eight clients ask for eight slots of a job that forbids overlap, at once: one of them wins, in every round."""
    stores = [clients() for _ in range(CLIENTS)]
    now = stores[0].time().now_ms
    jobs = [f"job-{at}" for at in range(ROUNDS)]
    stores[0].register([Definition(name=j, fingerprint="1", document="{}", floor=now - 60_000) for j in jobs])
    start = threading.Barrier(CLIENTS)

    def ask(at: int) -> list[ClaimKind]:
        kinds = []
        for job in jobs:
            start.wait()
            claim = _claim(RunRef(job, now - 50_000 + at), now - 60_000, f"client-{at}")
            kinds += [answer.kind for answer in stores[at].claim([claim]).answers]
        return kinds

    with ThreadPoolExecutor(CLIENTS) as threads:
        told = list(threads.map(ask, range(CLIENTS)))
    for job, kinds in zip(jobs, zip(*told, strict=True), strict=True):
        assert kinds.count(ClaimKind.WON) == 1, (job, kinds)
        [run] = stores[0].history(job, limit=100).answers
        assert run.status is Status.CLAIMED


def test_each_slot_has_one_winner_among_processes(postgres_tables: EmptyTables, processes: ProcessOwner) -> None:
    """Eight processes that register and claim the same five hundred runs at once: each run has one winner."""
    base = SystemClock().wall_ms()
    where = (postgres_tables.url, postgres_tables.table)
    racers = [processes.python("-c", RACER, *where, f"racer-{at}", str(base), str(SLOTS)) for at in range(CLIENTS)]
    for racer in racers:
        assert racer.wait(60) == 0, racer.tail()
    won = [
        json.loads(line.removeprefix("won "))
        for racer in racers
        for line in racer.output().splitlines()
        if line.startswith("won ")
    ]
    assert len(won) == CLIENTS
    assert sorted(name for names in won for name in names) == sorted(f"job-{at}" for at in range(SLOTS))


@dataclass
class _Storm:
    """What one client does: shuffled batches of calls about the same few jobs as the others."""

    store: LeaseStore
    clock: ManualClock
    jobs: list[str]
    tokens: dict[RunRef, int]
    """The last token that anybody was given, whoever it was."""
    seed: int
    policy: Policy = field(default=Policy(claim_lease_ms=1_000, start_timeout_ms=1_000, keep_ms=5_000, history_size=5))
    done: dict[str, int] = field(default_factory=dict)

    def run(self, until: float) -> dict[str, int]:
        """Make calls until this instant, and return how many items each had an effect on."""
        draw, clock = random.Random(self.seed), SystemClock()
        moves = (self.claims, self.claims, self.beats, self.beats, self.queued, self.begins, self.ends, self.expired)
        while clock.monotonic() < until:
            move = draw.choice(moves)
            jobs = draw.sample(self.jobs, len(self.jobs) // 2)
            known = [ref for ref in list(self.tokens) if ref.job in jobs]
            draw.shuffle(known)
            effects = move(jobs, known[:40])
            self.done[move.__name__] = self.done.get(move.__name__, 0) + effects
            self.clock.advance(0.05)
        return self.done

    def claims(self, jobs: list[str], known: list[RunRef]) -> int:
        """Claim new slots, and take over runs whose lease is over."""
        now = self.store.time().now_ms
        registered = self.store.register([_definition(job) for job in jobs]).answers
        fresh = [
            _claim(RunRef(job, now), answer.floor, f"{self.seed}-{now}", self.policy)
            for job, answer in zip(jobs, registered, strict=True)
        ]
        asks = [*fresh, *(_claim(ref, ref.slot, f"{self.seed}-{now}", self.policy) for ref in known)]
        answers = self.store.claim(asks).answers
        for ask, answer in zip(asks, answers, strict=True):
            if answer.kind is ClaimKind.WON:
                self.tokens[ask.ref] = answer.token
        return sum(answer.kind is ClaimKind.WON for answer in answers)

    def beats(self, jobs: list[str], known: list[RunRef]) -> int:
        """Beat for runs and for claims."""
        del jobs
        phases = (Status.RUNNING, Status.CLAIMED)
        beats = [
            Beat(ref=ref, token=self.tokens[ref], lease_ms=1_000, phase=phase) for ref in known for phase in phases
        ]
        return sum(self.store.beat(beats).answers)

    def queued(self, jobs: list[str], known: list[RunRef]) -> int:
        """Confirm publishes, and hand some claims back."""
        del jobs
        half = len(known) // 2
        records = [Queued(ref=r, token=self.tokens[r], policy=self.policy, task_id="t") for r in known[half:]]
        released = self.store.release([Release(ref=r, token=self.tokens[r], failed=False) for r in known[:half]])
        return sum(self.store.queued(records).answers) + sum(released.answers)

    def begins(self, jobs: list[str], known: list[RunRef]) -> int:
        """Begin runs, or take them over."""
        del jobs
        message = Delivered(message_id="m", retries=0, worker=f"w{self.seed}", pid=1)
        asks = [
            Begin(
                ref=ref,
                delivery_id=f"{self.seed}-{self.clock.wall_ms()}",
                delivered=message,
                attempt=1,
                token=self.tokens[ref],
                lease_ms=1_000,
            )
            for ref in known
        ]
        answers = self.store.begin(asks).answers
        for ask, answer in zip(asks, answers, strict=True):
            if answer.kind is BeginKind.OK:
                self.tokens[ask.ref] = answer.token
        return sum(answer.kind is BeginKind.OK for answer in answers)

    def ends(self, jobs: list[str], known: list[RunRef]) -> int:
        """End runs, whoever holds them."""
        del jobs
        ended = [ref for ref in known[:20] if ref in self.tokens]
        ends = [Finish(ref=ref, status=Status.SUCCEEDED, token=self.tokens[ref]) for ref in ended]
        answers = self.store.finish(ends).answers
        for ref in ended[:10]:
            self.tokens.pop(ref, None)
        return sum(answers)

    def expired(self, jobs: list[str], known: list[RunRef]) -> int:
        """Move the index of lease ends."""
        del jobs, known
        return len(self.store.expired(limit=100).answers)


def _definition(job: str) -> Definition:
    return Definition(name=job, fingerprint="1", document="{}", floor=0)


def test_shuffled_batches_never_deadlock(postgres_tables: EmptyTables, clients: Callable[..., LeaseStore]) -> None:
    """Four clients claim, beat, begin, end and take over the same runs in any order: the server sees no deadlock."""
    clock, tokens = ManualClock(), dict[RunRef, int]()
    jobs = [f"job-{at}" for at in range(40)]
    storms = [_Storm(clients(clock), clock, jobs, tokens, seed) for seed in range(4)]
    storms[0].store.register([_definition(job) for job in jobs])
    before = _deadlocks(postgres_tables)
    until = SystemClock().monotonic() + STORM_S
    with ThreadPoolExecutor(len(storms)) as threads:
        done = list(threads.map(lambda storm: storm.run(until), storms))
    for storm in storms:
        storm.store.close()  # a server process that ends has told its numbers
    poll_until(lambda: _clients(postgres_tables) == 0, what="the end of the connections")
    assert _deadlocks(postgres_tables) == before, done
    for move in ("claims", "beats", "queued", "begins", "ends", "expired"):
        assert sum(each.get(move, 0) for each in done) > 0, f"no call of {move} had an effect: {done}"


def test_beats_and_begins_in_opposite_orders(postgres_tables: EmptyTables, clients: Callable[..., LeaseStore]) -> None:
    """Two clients change the same hundred runs at once, one from the first to the last, one back: no deadlock."""
    beating, beginning = clients(), clients()
    now = beating.time().now_ms
    refs = [RunRef(f"job-{at:03}", now - 1_000) for at in range(100)]
    beating.register([replace(_definition(ref.job), floor=now - 60_000) for ref in refs])
    message = Delivered(message_id="m", retries=0, worker="w", pid=1)
    asks = [Begin(ref=ref, delivery_id="d", delivered=message, attempt=1, token=0, lease_ms=60_000) for ref in refs]
    tokens = [answer.token for answer in beating.begin(asks).answers]
    beats = [Beat(ref=ref, token=token, lease_ms=60_000) for ref, token in zip(refs, tokens, strict=True)]
    before = _deadlocks(postgres_tables)

    def many(call: Callable[[], None]) -> None:
        for _ in range(100):
            call()

    def beat() -> None:
        assert all(beating.beat(beats).answers)

    def begin() -> None:
        answers = beginning.begin(asks[::-1]).answers
        assert [answer.token for answer in answers] == tokens[::-1]

    with ThreadPoolExecutor(2) as threads:
        for outcome in [threads.submit(many, beat), threads.submit(many, begin)]:
            outcome.result()
    beating.close()
    beginning.close()
    poll_until(lambda: _clients(postgres_tables) == 0, what="the end of the connections")
    assert _deadlocks(postgres_tables) == before


def _deadlocks(tables: EmptyTables) -> int:
    with tables.connection() as connection:
        [row] = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchall()
    return int(row["deadlocks"])


def _clients(tables: EmptyTables) -> int:
    with tables.connection() as connection:
        [row] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchall()
    return int(row["count"])


def test_an_announcement_that_waited_moves_nothing_back(
    postgres_tables: EmptyTables, clients: Callable[..., LeaseStore]
) -> None:
    """A call that waits for another's row notes when it got it, and not when it began."""
    store = clients()
    store.announce("w", {"q": 5})
    queues, clock = postgres_tables.name("queues"), "floor(extract(epoch FROM clock_timestamp()) * 1000)"
    ask = "SELECT count(*) AS waiting FROM pg_locks l WHERE NOT l.granted AND %s = ANY(pg_blocking_pids(l.pid))"
    with ThreadPoolExecutor(1) as threads, postgres_tables.connection() as other, postgres_tables.connection() as admin:
        with other.transaction():
            other.execute(f"SELECT FROM {queues} FOR UPDATE".encode())
            call = threads.submit(store.announce, "w", {"q": 7})
            pid = other.info.backend_pid
            poll_until(lambda: admin.execute(ask, [pid]).fetchone() == {"waiting": 1}, what="a call that waits")
            told = other.execute(f"UPDATE {queues} SET announced = {clock} RETURNING announced".encode()).fetchone()
        call.result(60)
    [(_, note)] = store.queues().answers
    assert note.begun_ms == 7
    assert told is not None
    assert note.announced_ms >= told["announced"]
