"""Real `celery beat -S anarchon` processes, with a real broker, a real store and a real worker."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from anarchon_tasks.model import RunRef, Status, message_id
from anarchon_tasks.stores import from_url
from tests.servers import RedisServer, free_port, missing, poll_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.model import Run
    from anarchon_tasks.stores.base import LeaseStore
    from tests.servers import OwnedProcess, ProcessOwner

APPS = Path(__file__).parent / "apps"
SECRET = "s3cret-pass"
EVERY_SECOND = {
    "a number",
    "a timedelta",
    "schedule(...)",
    "κείμενο",
    "of the user's own",
    "lazy",
    "options",
    "added",
}


class Bench:
    """Starts beats and workers of one app, and reads what they left behind."""

    def __init__(self, processes: ProcessOwner, folder: Path, **env: str) -> None:
        self.processes = processes
        self.evidence_file = folder / "evidence.jsonl"
        self.folder = folder
        self.env = {"EVIDENCE": str(self.evidence_file), "PYTHONPATH": str(APPS), **env}

    def start(self, *args: str, name: str, **env: str) -> OwnedProcess:
        """Start a celery command."""
        command = (sys.executable, "-m", "celery", "-A", "beat_app", *args)
        return self.processes.start(*command, name=name, env={**self.env, **env}, cwd=self.folder)

    def beat(self, *args: str, name: str = "beat", **env: str) -> OwnedProcess:
        """Start a beat."""
        return self.start("beat", "-S", "anarchon", "-l", "INFO", *args, name=name, **env)

    def worker(self, *args: str) -> OwnedProcess:
        """Start a worker."""
        quick = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        return self.start("worker", "-P", "solo", "-Q", "celery,other", *quick, "-l", "WARNING", *args, name="worker")

    def evidence(self) -> list[dict[str, Any]]:
        """Return what the tasks wrote."""
        if not self.evidence_file.exists():
            return []
        lines = self.evidence_file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]


def stopped(process: OwnedProcess) -> None:
    """Check that SIGTERM ends a process in an orderly way, and in time."""
    started = time.monotonic()
    assert process.terminate(timeout=12) == 0, process.tail()
    assert time.monotonic() - started < 9.5


def history(store: LeaseStore, job: str) -> list[Run]:
    """Return the runs of a job, oldest first."""
    return list(reversed(store.history(job, limit=1000).answers))


def enqueued(store: LeaseStore, job: str) -> list[int]:
    """Return the slots of a job whose message is out."""
    return [run.slot for run in history(store, job) if run.enqueued_at is not None]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """A store in a file."""
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def store(store_url: str) -> Iterator[LeaseStore]:
    """The same, opened to look at."""
    opened = from_url(store_url)
    yield opened
    opened.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RedisServer]:
    """A broker that is not started yet."""
    if RedisServer.binary() is None:
        missing("redis", RedisServer.how_to_have())
    server = RedisServer(tmp_path / "broker")
    yield server
    server.kill()


def test_celery_2856_two_beats_send_each_slot_once(
    processes: ProcessOwner, own_redis: RedisServer, tmp_path: Path
) -> None:
    """Entries of every kind, with two beats and a worker: once per slot, with all that was asked for, and tracked.

    Also celery#4808 and dcb#576.
    """
    store_url = own_redis.redis_url.replace("/0", "/1")
    bench = Bench(processes, tmp_path, BROKER=own_redis.redis_url, STORE=store_url)
    worker = bench.worker()
    beats = [bench.beat(name=f"beat-{n}") for n in range(2)]
    everything = EVERY_SECOND | {"declared", "decorated"}

    def all_came() -> bool:
        seen = Counter(line["headers"]["periodic_task_name"] for line in bench.evidence())
        return all(seen[name] >= 4 for name in everything)

    poll_until(all_came, 40, what=lambda: f"four runs of each entry, there are {bench.evidence()[-5:]}")
    for process in beats:
        stopped(process)
    lines = [line for line in bench.evidence() if line["headers"]["anarchon"]]
    runs = [(line["headers"]["periodic_task_name"], json.loads(line["headers"]["anarchon"])["slot"]) for line in lines]
    assert max(Counter(runs).values()) == 1, "each slot once"
    by_name = {name: [line for line in lines if line["headers"]["periodic_task_name"] == name] for name in everything}
    for name, entries in by_name.items():
        for line in entries:
            slot = json.loads(line["headers"]["anarchon"])["slot"]
            assert line["id"] == message_id("cron:", RunRef(name, slot), 1)
            assert line["headers"]["celery_beat_task"] is True
    assert by_name["a number"][0]["args"] == [1, "two"]
    assert by_name["a number"][0]["kwargs"] == {"three": [3]}
    assert by_name["lazy"][0]["args"] == ["computed"]
    assert by_name["added"][0]["args"] == ["added"]
    assert by_name["declared"][0]["args"] == ["declared"]
    assert (by_name["options"][0]["queue"], by_name["options"][0]["headers"]["x"]) == ("other", "y")
    assert by_name["declared"][-1]["slot"], "the worker knows the run"

    with_account = from_url(store_url)
    try:
        poll_until(lambda: history(with_account, "declared")[-1].status is Status.SUCCEEDED)
        assert Status.SUCCEEDED in {run.status for run in history(with_account, "decorated")}
    finally:
        with_account.close()
    for process in beats:
        assert "entry 'broken' cannot be used" in process.output()
        assert "task_id, which is not used" in process.output()
        assert "celerybeat-schedule" not in {path.name for path in tmp_path.iterdir()}, "no local file"
    stopped(worker)


def test_redbeat_92_killing_one_beat_leaves_no_gap(
    processes: ProcessOwner, own_redis: RedisServer, tmp_path: Path, store_url: str, store: LeaseStore
) -> None:
    """The other goes on at once; nobody waits for a lock. Also dcron#31 and sidekiq#6804."""
    bench = Bench(processes, tmp_path, BROKER=own_redis.redis_url, STORE=store_url, ENTRIES="0")
    first, second = bench.beat(name="beat-1"), bench.beat(name="beat-2")
    for process in (first, second):
        process.wait_for_output("started")
    poll_until(lambda: len(enqueued(store, "declared")) >= 2, 20)
    first.kill()
    killed_at = len(enqueued(store, "declared"))
    poll_until(lambda: len(enqueued(store, "declared")) >= killed_at + 5, 30)
    stopped(second)
    slots = enqueued(store, "declared")
    assert [late - early for early, late in itertools.pairwise(slots)] == [1_000] * (len(slots) - 1)


def test_without_the_extension_enqueued_is_the_end(
    processes: ProcessOwner, own_redis: RedisServer, tmp_path: Path, store_url: str, store: LeaseStore
) -> None:
    """Replacing `-S` alone: workers that say nothing are not believed dead, and nothing is sent again."""
    bench = Bench(processes, tmp_path, BROKER=own_redis.redis_url, STORE=store_url, EXTENSION="0")
    beat = bench.beat("--max-interval", "3")
    poll_until(lambda: len(enqueued(store, "a number")) >= 3, 20)
    stopped(beat)
    runs = history(store, "a number")
    assert {run.status for run in runs if run.enqueued_at} == {Status.ENQUEUED}
    assert "maxinterval -> 3.00 seconds" in beat.output()
    assert "no Anarchon(app)" in beat.output()
    client = redis.Redis.from_url(own_redis.redis_url)
    waiting = [json.loads(raw)["headers"] for raw in client.lrange("celery", 0, -1)]
    client.close()
    assert not any(json.loads(headers["anarchon"])["tracked"] for headers in waiting)


def test_celery_8845_a_broker_that_is_down_delays_and_loses_nothing_recent(
    processes: ProcessOwner, broker: RedisServer, tmp_path: Path, store_url: str, store: LeaseStore
) -> None:
    """At the start and later: beat lives, says so once per outage, and sends when the broker is there."""
    bench = Bench(processes, tmp_path, BROKER=broker.redis_url, STORE=store_url, ENTRIES="0")
    beat = bench.beat()
    beat.wait_for_output("broker")
    poll_until(lambda: "no answer" in beat.output() or "refused" in beat.output(), 15)
    broker.start()
    poll_until(lambda: len(enqueued(store, "declared")) >= 2, 20)
    broker.kill()
    before = len(enqueued(store, "declared"))
    poll_until(lambda: time.time() * 1000 - max(enqueued(store, "declared")) > 2_000, 10)
    assert beat.running
    broker.start()
    poll_until(lambda: len(enqueued(store, "declared")) >= before + 3, 20)
    stopped(beat)
    slots = [run.slot for run in history(store, "declared") if run.status not in (Status.MISSED, Status.SKIPPED)]
    assert len(slots) == len(set(slots))


def test_redbeat_230_a_store_that_is_down_is_waited_for(
    processes: ProcessOwner, own_redis: RedisServer, broker: RedisServer, tmp_path: Path
) -> None:
    """No exit, one line per outage, and work as soon as it answers. Also sqla#29."""
    late_store = broker
    bench = Bench(
        processes, tmp_path, BROKER=own_redis.redis_url, STORE=f"redis://127.0.0.1:{late_store.port}/0", ENTRIES="0"
    )
    beat = bench.beat()
    beat.wait_for_output("store")
    poll_until(lambda: "refused" in beat.output().lower(), 15)
    started = time.monotonic()
    poll_until(lambda: time.monotonic() - started > 2, 5)
    assert beat.running
    assert beat.output().lower().count("refused") <= 2, "said once, not at each try"
    late_store.start()
    client = redis.Redis.from_url(own_redis.redis_url)
    poll_until(lambda: client.llen("celery") >= 2, 20)
    client.close()
    stopped(beat)


def test_no_password_is_ever_printed(processes: ProcessOwner, tmp_path: Path) -> None:
    """Neither in the banner nor in the log, not even when nothing answers; and SIGTERM works then, too."""
    nowhere = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    bench = Bench(processes, tmp_path, BROKER=f"{nowhere}/0", STORE=f"{nowhere}/1")
    beat = bench.beat("-l", "DEBUG")
    beat.wait_for_output("started")
    poll_until(lambda: "refused" in beat.output().lower(), 15)
    stopped(beat)
    assert "store -> redis://:***@127.0.0.1" in beat.output()
    assert SECRET not in beat.output()


def test_without_a_store_beat_says_what_to_write(processes: ProcessOwner, tmp_path: Path) -> None:
    """It does not start on a broker that cannot be the store; the last lines hold the line to add."""
    bench = Bench(processes, tmp_path, BROKER=f"amqp://guest:{SECRET}@127.0.0.1:{free_port()}//")
    beat = bench.beat()
    assert beat.wait(20) != 0
    assert 'app.conf.anarchon_store = "redis://' in beat.tail()
    assert SECRET not in beat.output()


def test_beat_may_be_embedded_in_a_worker(
    processes: ProcessOwner, own_redis: RedisServer, tmp_path: Path, store_url: str, store: LeaseStore
) -> None:
    """`celery worker -B --scheduler anarchon`: in a process of its own, ended with the worker."""
    bench = Bench(processes, tmp_path, BROKER=own_redis.redis_url, STORE=store_url, ENTRIES="0")
    quick = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-c", "1", "-l", "INFO")
    worker = bench.start("worker", "-B", "--scheduler", "anarchon", *quick, name="worker")
    poll_until(lambda: len(bench.evidence()) >= 3, 30, what=worker.tail)
    poll_until(lambda: any(run.status is Status.SUCCEEDED for run in history(store, "declared")), 20)
    assert worker.terminate(timeout=20) == 0
