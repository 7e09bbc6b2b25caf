"""Stores of earlier formats: the present version reads what they hold, and what was under way goes on."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.model import RunRef, Status, Trigger
from anarchon_tasks.stores import PostgresBackend
from anarchon_tasks.stores.base import FORMAT, BeginKind, ClaimKind
from anarchon_tasks.stores.sqlite import SqliteStore
from anarchon_tasks.testing import Lab, ManualClock
from tests.golden import dumps, scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
FORMATS = range(1, FORMAT + 1)


def text(store: str, number: int, ending: str) -> str:
    """Return a file of this folder."""
    return (HERE / f"{store}-{number}.{ending}").read_text(encoding="utf-8")


class Golden:
    """A restored store, its clock, and what is known of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.expected: dict[str, Any] = json.loads(text("expected", number, "json"))
        self.clock = ManualClock(self.expected["now"])
        self.lab: Lab

    def opened(self, store: Any) -> Golden:  # noqa: ANN401 - any of the stores
        """Take the store."""
        self.lab = Lab(scenario.Player(store, self.clock))
        return self

    def known(self, job: str) -> tuple[RunRef, int, str]:
        """Return what the client of an open run knows: its reference, its token, and its claim or delivery id."""
        slot, key, token, grant = self.expected["known"][job]
        return RunRef(job, slot, key), token, grant


class GoldenTests:
    """What must hold for each store of each format."""

    def test_everything_is_read(self, golden: Golden) -> None:
        """Definitions, queues, the history of every job and the runs whose lease is over are as they were."""
        found = json.loads(json.dumps(scenario.read(golden.lab.store)))
        for name in ("definitions", "queues", "expired", "last"):
            assert found[name] == golden.expected[name], name
        for job, entries in golden.expected["history"].items():
            # Later versions may know more of a run, never less.
            assert [{key: e[key] for key in entries[0]} for e in found["history"][job]] == entries, job

    def test_holders_go_on(self, golden: Golden) -> None:
        """Who holds a run with its token beats, records, begins, retries and ends as if nothing had been changed."""
        lab = golden.lab
        ref, token, claim_id = golden.known("claimed")
        again = lab.claim(ref, claim_id=claim_id)
        assert (again.kind, again.token, again.attempt) == (ClaimKind.WON, token, 1)
        assert lab.claim(ref).kind is ClaimKind.RUNNING
        assert lab.enqueue(ref, token)
        ref, token, _ = golden.known("queued")
        begun = lab.begin(ref, token)
        assert (begun.kind, begun.attempt) == (BeginKind.OK, 1)
        assert begun.token > token
        assert lab.finish(ref, begun.token)
        ref, token, delivery = golden.known("running")
        assert not lab.beat(ref, token - 1)
        assert lab.beat(ref, token)
        assert lab.begin(ref, 1, delivery_id=delivery).token == token
        assert lab.begin(ref, token).kind is BeginKind.BUSY
        assert lab.finish(ref, token, Status.FAILED, error="at last")
        ref, token, _ = golden.known("parked")
        assert lab.begin(ref, token).kind is BeginKind.BUSY
        retried = lab.begin(ref, token, retries=1)
        assert (retried.kind, retried.attempt) == (BeginKind.OK, 1)
        ref, token, _ = golden.known("manual")
        assert ref.key
        assert lab.finish(ref, token)
        assert [run.status for run in lab.history("running")] == [Status.FAILED]

    def test_recovery_goes_on(self, golden: Golden) -> None:
        """A run whose worker is gone is taken over, and one that rests is claimed when it has rested."""
        lab = golden.lab
        ref, token, _ = golden.known("over")
        taken = lab.claim(ref)
        assert (taken.kind, taken.attempt) == (ClaimKind.WON, 2)
        assert taken.token > token
        assert not lab.finish(ref, token), "the first worker came back"
        resting, _, _ = golden.known("resting")
        assert lab.claim(resting).kind is ClaimKind.RUNNING
        lab.pass_ms(1_000)
        assert resting in lab.store.expired(limit=100).answers
        assert lab.claim(resting).kind is ClaimKind.WON

    def test_what_is_settled_stays_settled(self, golden: Golden) -> None:
        """Floors hold, ended runs are not run again, and the next slot of every job can be claimed."""
        lab = golden.lab
        for job, entries in golden.expected["history"].items():
            if job in {"unknown", "gone", "documented"}:
                continue
            newest = RunRef(job, entries[0]["slot"])
            floor = lab.claim(RunRef(job, 1)).floor
            assert floor >= newest.slot or job == "manual"
            if job not in golden.expected["known"] and job not in {"stretches", "busy", "attempts"}:
                assert lab.claim(newest, floor=floor).kind is ClaimKind.DONE, job
                assert lab.begin(newest, 1).kind in {BeginKind.DONE, BeginKind.UNTRACKED}, job
                assert lab.won(RunRef(job, lab.base - 1), floor=floor).token > max(e["token"] for e in entries), job
        oldest = RunRef("trimmed", scenario.START - 100_000)
        assert lab.begin(oldest, 1).kind is BeginKind.DONE, "the slots that were trimmed are forgotten"

    def test_definitions_are_known(self, golden: Golden) -> None:
        """A job that is registered again as it was keeps its floor; a manual run of it can be claimed."""
        lab = golden.lab
        floor = lab.claim(RunRef("ends", 1)).floor
        [definition] = [d for d in lab.store.definitions().answers if d.name == "ends"]
        [registered] = lab.store.register([definition]).answers
        assert (registered.changed, registered.floor) == (False, floor)
        assert lab.claim(RunRef("ends", lab.base, "by hand"), trigger=Trigger.MANUAL).kind is ClaimKind.WON


@pytest.mark.parametrize("number", FORMATS)
class TestSqlite(GoldenTests):
    """SQLite."""

    @pytest.fixture
    def golden(self, number: int, tmp_path: Path) -> Iterator[Golden]:
        """Restore a file."""
        dumps.restore_sqlite(text("sqlite", number, "sql"), tmp_path / "store.db")
        made = Golden(number)
        store = SqliteStore(tmp_path / "store.db", clock=made.clock)
        yield made.opened(store)
        store.close()


@pytest.mark.parametrize("number", FORMATS)
class TestRedis(GoldenTests):
    """Redis and Valkey."""

    @pytest.fixture
    def golden(self, number: int, redis_url: str, redis_prefix: str) -> Iterator[Golden]:
        """Restore the keys below a prefix."""
        import redis

        from anarchon_tasks.stores._redis_client import Connection
        from anarchon_tasks.stores.redis import RedisStore

        made = Golden(number)
        with redis.Redis.from_url(redis_url) as client:
            dumps.restore_redis(text("redis", number, "json"), client, redis_prefix)
            connection = Connection(client=client, location=redis_url)
            yield made.opened(RedisStore(connection, prefix=redis_prefix, clock=made.clock))


@pytest.mark.parametrize("number", FORMATS)
class TestPostgres(GoldenTests):
    """PostgreSQL. The functions are those of the present version, beside the tables of the earlier one."""

    @pytest.fixture
    def golden(self, number: int, postgres_url: str) -> Iterator[Golden]:
        """Restore the tables in a schema."""
        import psycopg

        made, name = Golden(number), f"golden_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
            dumps.restore_postgres(text("postgres", number, "sql"), connection, name)
            store = PostgresBackend(postgres_url, table=f"{name}.{name}", clock=made.clock).open()
            yield made.opened(store)
            store.close()
            connection.execute(f'DROP SCHEMA "{name}" CASCADE')
