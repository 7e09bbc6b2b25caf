"""What calls cost a PostgreSQL server: heartbeats touch no index, plain batches run no loop, and nothing grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import Beat, Begin, Claim, Definition, Delivered, Finish, Policy, Queued
from anarchon_tasks.testing import ManualClock
from tests.servers import poll_until

pytest.importorskip("psycopg")

from anarchon_tasks.stores import PostgresBackend
from anarchon_tasks.stores._postgres_schema import Names

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore
    from tests.contract.postgres_adapter import EmptyTables

LEASE_MS = 30_000
JOBS = [f"job-{at}" for at in range(100)]


class Life:
    """Some jobs, by default a hundred, and what becomes of one slot of each, in batches of a hundred."""

    def __init__(
        self, tables: EmptyTables, *, options: str = "", policy: Policy | None = None, jobs: list[str] = JOBS
    ) -> None:
        self.jobs = jobs
        url = f"{tables.url}?options={options}" if options else tables.url
        self.clock = ManualClock()
        self.store: LeaseStore = PostgresBackend(url, table=tables.table, timeout=60, clock=self.clock).open()
        self.policy = policy or Policy(start_timeout_ms=LEASE_MS, claim_lease_ms=LEASE_MS)
        floor = self.clock.wall_ms() - 60_000
        self.store.register([Definition(name=job, fingerprint="1", document="{}", floor=floor) for job in jobs])
        self.floors = dict.fromkeys(jobs, floor)
        self.tokens: dict[RunRef, int] = {}

    def live(self, *, beats: int) -> None:
        """Take the next slot of each job through its run."""
        self.clock.advance(10)
        self.claim()
        self.begin()
        for _ in range(beats):
            self.beat()
        self.finish()

    def claim(self) -> None:
        """Claim the present slot of each job."""
        slot = self.clock.wall_ms()
        asks = [
            Claim(
                ref=RunRef(job, slot),
                claim_id=f"{job}-{slot}",
                instance="instance",
                policy=self.policy,
                due_ms=slot,
                latest_ms=slot + LEASE_MS,
                floor=self.floors[job],
            )
            for job in self.jobs
        ]
        answers = self.store.claim(asks).answers
        self.tokens = {ask.ref: answer.token for ask, answer in zip(asks, answers, strict=True)}
        self.floors = {ask.ref.job: answer.floor for ask, answer in zip(asks, answers, strict=True)}

    def begin(self) -> None:
        """Publish the runs and begin them."""
        records = [Queued(ref=r, token=t, policy=self.policy, task_id="message") for r, t in self.tokens.items()]
        assert all(self.store.queued(records).answers)
        message = Delivered(message_id="message", retries=0, worker="worker", pid=1)
        asks = [
            Begin(ref=ref, delivery_id="d", delivered=message, attempt=1, token=token, lease_ms=LEASE_MS)
            for ref, token in self.tokens.items()
        ]
        answers = self.store.begin(asks).answers
        self.tokens = {ask.ref: answer.token for ask, answer in zip(asks, answers, strict=True)}

    def beat(self) -> None:
        """Push the leases."""
        beats = [Beat(ref=ref, token=token, lease_ms=LEASE_MS) for ref, token in self.tokens.items()]
        assert all(self.store.beat(beats).answers)

    def finish(self) -> None:
        """End the runs."""
        ends = [
            Finish(ref=ref, token=token, status=Status.SUCCEEDED, history_size=self.policy.history_size)
            for ref, token in self.tokens.items()
        ]
        assert all(self.store.finish(ends).answers)


def _rows(tables: EmptyTables, statement: str) -> list[dict[str, Any]]:
    with tables.connection() as connection:
        return connection.execute(statement.encode()).fetchall()


def _updates(tables: EmptyTables) -> tuple[int, int]:
    """Return how many updates of states there were, and how many of them touched no index."""
    [row] = _rows(tables, f"SELECT * FROM pg_stat_user_tables WHERE relname = '{tables.table}_state'")
    return row["n_tup_upd"], row["n_tup_hot_upd"]


def test_heartbeats_touch_no_index(lone_postgres_tables: EmptyTables) -> None:
    """Of the heartbeats of open runs, at least nine in ten change the row in its place (HOT)."""
    life = Life(lone_postgres_tables)
    life.claim()
    life.begin()
    for _ in range(40):
        life.clock.advance(10)
        life.beat()
    life.store.close()  # a server process that ends has told its numbers
    poll_until(lambda: _updates(lone_postgres_tables)[0] >= 4_200, what="the server's numbers")
    updates, hot = _updates(lone_postgres_tables)
    assert hot / updates >= 0.9, (hot, updates)


def test_the_index_of_leases_moves_once_in_a_lease(postgres_tables: EmptyTables) -> None:
    """Looking for runs whose lease is over moves the index entry of a run that lives once in each lease, not more."""
    life = Life(postgres_tables)
    life.claim()
    life.begin()
    for _ in range(40):
        life.clock.advance(10)
        life.beat()
        assert life.store.expired(limit=10).answers == []
    life.store.close()
    poll_until(lambda: _updates(postgres_tables)[0] >= 4_200, what="the server's numbers")
    updates, _ = _updates(postgres_tables)
    assert updates - 4_200 <= 100 * (40 // 3 + 1)


def test_plain_batches_run_no_loop(postgres_tables: EmptyTables) -> None:
    """Claims, publishes, begins, heartbeats and ends of many jobs are decided together, and so are claims that lose."""
    life = Life(postgres_tables, options="-c%20track_functions%3Dpl")
    policy = Policy(keep_ms=15_000, history_size=2, history_ttl_ms=15_000, start_timeout_ms=LEASE_MS)
    life.policy = policy
    for _ in range(4):
        life.clock.advance(10)
        life.claim()
        claims = [
            Claim(
                ref=ref,
                claim_id="another",
                instance="another",
                policy=policy,
                due_ms=ref.slot,
                latest_ms=ref.slot,
                floor=life.floors[ref.job],
            )
            for ref in life.tokens
        ]
        life.store.claim(claims)
        life.begin()
        life.beat()
        life.finish()
    life.store.close()
    names = Names(postgres_tables.table).functions
    calls = "SELECT funcname, calls FROM pg_stat_user_functions"

    def called() -> dict[str, int]:
        found = {row["funcname"]: row["calls"] for row in _rows(postgres_tables, calls)}
        return {name: found.get(real, 0) for name, real in names.items()}

    poll_until(lambda: called()["finish"] == 4, what="the server's numbers")
    each = {name: number for name, number in called().items() if name.endswith("_one") and name != "register_one"}
    assert set(each) >= {"claim_one", "queued_one", "begin_one", "finish_one"}
    assert each == dict.fromkeys(each, 0)


def test_trimmed_as_it_grows(postgres_tables: EmptyTables) -> None:
    """States that no late claim can ask for, and entries beyond the size of the history, go with each run."""
    life = Life(postgres_tables, policy=Policy(keep_ms=25_000, history_size=4, start_timeout_ms=LEASE_MS))
    for _ in range(12):
        life.live(beats=0)
    life.store.close()
    for table, most in (("state", 4), ("runs", 4), ("jobs", 1)):
        name = postgres_tables.name(table)
        [row] = _rows(postgres_tables, f"SELECT max(n) AS most FROM (SELECT count(*) n FROM {name} GROUP BY job) j")
        assert row["most"] <= most, table


def test_rows_are_found_by_their_keys(postgres_tables: EmptyTables) -> None:
    """A session that planned its statements when the tables had one row does not read them whole later."""
    tables = [postgres_tables.name(table) for table in ("state", "jobs", "runs")]
    with postgres_tables.connection() as connection:
        for name in tables:
            connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
    life = Life(postgres_tables, jobs=JOBS[:1])
    for _ in range(2):
        life.live(beats=1)
        with postgres_tables.connection() as connection:
            for name in tables:
                connection.execute(f"ANALYZE {name}")
    grown = Life(postgres_tables, jobs=[f"grown-{at}" for at in range(1_000)])
    grown.live(beats=0)
    before = _read(postgres_tables)
    for _ in range(100):
        life.live(beats=1)
        assert life.store.expired(limit=10).answers == []
    life.store.close()
    grown.store.close()
    poll_until(lambda: _read(postgres_tables) > before, what="the server's numbers")
    calls = 100 * 6
    assert (_read(postgres_tables) - before) / calls < 50


def _read(tables: EmptyTables) -> int:
    """Return how many rows of all tables were read."""
    read = "sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))"
    [row] = _rows(tables, f"SELECT {read} AS read FROM pg_stat_user_tables WHERE relname LIKE '{tables.table}%'")
    return int(row["read"])
