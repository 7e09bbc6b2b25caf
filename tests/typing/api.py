"""The public names as a type checker sees them. This file is checked by mypy and never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_type

import psycopg
from psycopg_pool import ConnectionPool

import anarchon_tasks
from anarchon_tasks import (
    AnarchonError,
    ConfigError,
    CurrentRun,
    Job,
    JobOptions,
    LeaseLost,
    MemoryBackend,
    PostgresBackend,
    PublishError,
    Reader,
    RedisBackend,
    Run,
    RunRefused,
    Schedule,
    ScheduleError,
    Scheduler,
    SqliteBackend,
    Status,
    StoredJob,
    StoreError,
    StoreFormatError,
    StoreUnavailable,
    TooFewReplicas,
    UnknownJob,
    ValkeyBackend,
    at,
    cron,
    current_run,
    every,
    explain,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from anarchon_tasks.publishing import Envelope, Outcome

assert_type(anarchon_tasks.__version__, str)


# --- schedules -------------------------------------------------------------------------------------------------------

schedules: list[Schedule] = [
    every("10s"),
    every(10),
    every(0.5),
    every(timedelta(hours=1), offset="5m", start=datetime(2026, 1, 1, tzinfo=UTC)),
    cron("0 8 * * 1-5", timezone="Europe/Athens", gap="skip", fold="both"),
    cron("@daily", end=datetime(2027, 1, 1, tzinfo=UTC)),
    at(datetime(2026, 10, 24, tzinfo=UTC)),
]
assert_type(schedules[0].next(0), int | None)
assert_type(explain("0 8 * * 1-5", after=datetime.now(UTC), timezone="Europe/Athens", count=3).words, str)


# --- a job, a publisher, a scheduler ---------------------------------------------------------------------------------


class Print:
    """The smallest publisher."""

    def publish(self, envelopes: Iterable[Envelope]) -> Iterator[Outcome]:
        """Send nothing."""
        del envelopes
        return iter(())

    def probe(self) -> str | None:
        """Answer."""
        return None

    def close(self) -> None:
        """Close nothing."""


options = JobOptions.build("digest", {"max_late": "30m", "overlap": "allow", "tags": ["mail"]})
job = Job(name="digest", schedule=cron("0 8 * * 1-5"), target="shop.digest", queue="mail", options=options)
scheduler = Scheduler(backend="redis://cache:6379/1", publisher=Print(), timezone="Europe/Athens", instance_id="pod-1")
scheduler.add_job(job)
scheduler.replace_job(job)
scheduler.start()
assert_type(scheduler.running, bool)
assert_type(scheduler.jobs(), list[Job])
assert_type(scheduler.next_run("digest"), datetime | None)
assert_type(scheduler.history("digest", limit=5), list[Run])
assert_type(scheduler.last_run("digest"), Run | None)
scheduler.remove("digest")
assert_type(scheduler.stop(timeout=25), bool)

for backend in (
    RedisBackend("redis://cache:6379", prefix="billing:cron:"),
    RedisBackend({"host": "cache"}, strategy={"name": "lease"}, min_replicas=1, min_replicas_timeout="100ms"),
    ValkeyBackend("valkey://cache:6379"),
    PostgresBackend("postgresql://db/shop", table="billing.runs", timeout="2s"),
    PostgresBackend({"host": "db", "port": 5433}),
    PostgresBackend(ConnectionPool("postgresql://db/shop", open=False)),
    PostgresBackend(lambda: psycopg.connect("postgresql://db/shop")),
    SqliteBackend("jobs.db", table="billing", busy_timeout="2s"),
    MemoryBackend(),
):
    Scheduler(backend=backend, publisher=Print())
    Reader(backend)


# --- readers ---------------------------------------------------------------------------------------------------------

reader = Reader("sqlite:///jobs.db", table="billing")
assert_type(reader.jobs(), list[StoredJob])
assert_type(reader.jobs()[0].rebuild(), Schedule | None)
assert_type(reader.last_runs(["digest"]), list[Run | None])
for past in reader.history("digest"):
    assert_type(past.status, Status)
    assert_type(past.scheduled_for, datetime)
    assert_type(past.lateness_ms, int | None)
    assert_type(past.duration_ms, int | None)
    assert_type(past.task_id, str | None)
    if past.status is Status.MISSED:
        assert_type(past.reason, str | None)
reader.close()


# --- inside a task ---------------------------------------------------------------------------------------------------

run = current_run()
assert_type(run, CurrentRun | None)
if run is not None:
    assert_type(run.job, str)
    assert_type(run.slot, int)
    assert_type(run.scheduled_for, datetime)
    assert_type(run.attempt, int)
    assert_type(run.token, int)
    assert_type(run.lost, bool)
    run.raise_if_lost()


# --- errors ----------------------------------------------------------------------------------------------------------

errors: list[type[AnarchonError]] = [
    *(ConfigError, LeaseLost, PublishError, RunRefused, ScheduleError),
    *(StoreError, StoreFormatError, StoreUnavailable, TooFewReplicas, UnknownJob),
]
assert_type(ConfigError().code, str)
value_error: type[ValueError] = ScheduleError
connection_error: type[ConnectionError] = StoreUnavailable
lookup_error: type[LookupError] = UnknownJob


# --- what is refused -------------------------------------------------------------------------------------------------

Scheduler("redis://cache", publisher=Print())  # type: ignore[call-arg]
every("10s", "5m")  # type: ignore[call-arg]
cron("* * * * *", gap="maybe")  # type: ignore[arg-type]
anarchon_tasks.nothing  # type: ignore[attr-defined]  # noqa: B018
