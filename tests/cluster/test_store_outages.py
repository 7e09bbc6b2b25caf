"""The store goes away for 15 s under three schedulers and two workers: nothing is doubled, and nothing lost unsaid."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.cluster.conftest import LEASE_S, Cluster, stop_all
from tests.cluster.evidence import multiples
from tests.servers import PostgresServer, RedisServer, ValkeyServer, missing, poll_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anarchon_tasks.model import Run
    from tests.servers import ProcessOwner
    from tests.servers._process import OwnedProcess

AWAY_S = 15.0
LONG_S = 20.0
"""A task that begins before the outage and ends after it."""
COALESCE_S = 10.0
SAID = re.compile(r"\[[^\]]*/(?P<process>\w[\w-]*)\].*store (?P<what>does not answer|answers again)")


class Store(Protocol):
    """A store that can be taken away."""

    url: str

    def take_away(self) -> None:
        """Let it answer nobody."""
        ...

    def bring_back(self) -> None:
        """Let it answer again, with everything that it knew."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(slots=True)
class Server:
    """A server of the test's own, and how it goes."""

    server: RedisServer | PostgresServer
    how: str

    @property
    def url(self) -> str:
        """Where it is."""
        return self.server.url

    def take_away(self) -> None:
        """Kill it, end it, or let it hang."""
        {"killed": self.server.kill, "ended": self.server.stop, "paused": self.server.pause}[self.how]()

    def bring_back(self) -> None:
        """Start it again, or let it go on."""
        if self.how == "paused":
            self.server.resume()
        else:
            self.server.start()

    def close(self) -> None:
        """End it."""
        self.server.kill()


class LockedFile:
    """An SQLite file that somebody else locks."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        self._other: sqlite3.Connection | None = None

    def take_away(self) -> None:
        """Lock it."""
        self._other = sqlite3.connect(self._path, timeout=10, isolation_level=None)
        self._other.execute("BEGIN EXCLUSIVE")

    def bring_back(self) -> None:
        """Unlock it."""
        assert self._other is not None
        self._other.execute("ROLLBACK")
        self._other.close()

    def close(self) -> None:
        """Do nothing: the file goes with its directory."""


def _redis(directory: Path, how: str) -> Store:
    if RedisServer.binary() is None:
        missing("redis", RedisServer.how_to_have())
    return Server(RedisServer(directory, persistence=True).start(), how)


def _valkey(directory: Path, how: str) -> Store:
    if ValkeyServer.binary() is None:
        missing("valkey", ValkeyServer.how_to_have())
    return Server(ValkeyServer(directory, persistence=True).start(), how)


def _postgres(directory: Path, how: str) -> Store:
    pytest.importorskip("psycopg")
    if PostgresServer.folder() is None:
        missing("postgres", PostgresServer.how_to_have())
    return Server(PostgresServer(directory).start(), how)


def _sqlite(directory: Path, how: str) -> Store:
    del how
    directory.mkdir()
    return LockedFile(directory / "store.db")


OUTAGES: dict[str, Callable[[Path, str], Store]] = {
    "redis-killed": _redis,
    "redis-paused": _redis,
    "valkey-ended": _valkey,
    "postgres-killed": _postgres,
    "sqlite-locked": _sqlite,
}


@pytest.fixture(params=OUTAGES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own."""
    made = OUTAGES[request.param](tmp_path / "store", request.param.partition("-")[2])
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cluster(processes: ProcessOwner, own_redis: RedisServer, tmp_path: Path, store: Store) -> Iterator[Cluster]:
    """A cluster on that store; its broker is another server, and stays."""
    made = Cluster(processes=processes, broker=own_redis, store=store.url, evidence_file=tmp_path / "evidence.jsonl")
    made.environment["CLUSTER_KEPT"] = "1"
    try:
        yield made
    finally:
        made.close()


@contextmanager
def away(store: Store) -> Iterator[None]:
    """Take the store away for 15 s."""
    store.take_away()
    gone = time.time()
    try:
        yield
        poll_until(lambda: time.time() >= gone + AWAY_S, AWAY_S + 5, interval=0.1)
    finally:
        store.bring_back()


def settled(cluster: Cluster, job: str) -> dict[int, Run]:
    """Return what the store says of each slot of a job; of a slot with several attempts, the last one."""
    told: dict[int, Run] = {}
    for run in cluster.history(job):
        for slot in range(run.slot if run.first_slot is None else run.first_slot, run.slot + 1, 1_000):
            told[slot] = run
    return told


def changes(process: OwnedProcess) -> dict[str, list[str]]:
    """Return what each process of a group said of the store, in order."""
    said: dict[str, list[str]] = {}
    for found in map(SAID.search, process.output().splitlines()):
        if found:
            said.setdefault(found["process"], []).append(found["what"])
    return said


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_store_that_is_away_delays_and_loses_nothing(
    cluster: Cluster, store: Store, soon: Callable[[float], tuple[str, str, float]]
) -> None:
    """Nobody exits, each slot is executed at most once and is on record, and the task in hand ends as attempt 1."""
    period, offset, due = soon(15)
    cluster.environment |= {
        "CLUSTER_SLOW_EVERY": period,
        "CLUSTER_SLOW_OFFSET": offset,
        "CLUSTER_SLOW_SECONDS": str(LONG_S),
    }
    schedulers, workers = cluster.start(schedulers=3, workers=2)
    cluster.wait_for("slow", "start", timeout=40)
    with away(store):
        gone = time.time()
    back = time.time()
    [line] = cluster.wait_for("slow", "end", timeout=LONG_S)
    assert line["attempt"] == 1
    last = time.time() - 2
    kept = multiples(1_000, gone - 2, last)
    poll_until(
        lambda: all(cluster.evidence.count("kept", "end")[slot] for slot in kept),
        20,
        what=lambda: f"the slots {[s for s in kept if not cluster.evidence.count('kept', 'end')[s]]}",
    )
    assert [process.name for process in (*schedulers, *workers) if not process.running] == []
    stop_all(schedulers)
    stop_all(workers)

    evidence, first = cluster.evidence, gone - 2
    twice = {job: [slot for slot, n in evidence.count(job, "start").items() if n > 1] for job in ("second", "kept")}
    assert twice == {"second": [], "kept": []}
    told = {job: settled(cluster, job) for job in ("second", "kept", "slow")}
    assert {told["kept"][slot].status.value for slot in kept} == {"succeeded"}
    slots = multiples(1_000, first, last)
    assert [slot for slot in slots if slot not in told["second"]] == [], "slots without a record"
    fates = Counter((told["second"][slot].status.value, told["second"][slot].reason) for slot in slots)
    young = [slot for slot in slots if slot > (back - COALESCE_S + 2) * 1_000]
    assert {told["second"][slot].status.value for slot in young} == {"succeeded"}, fates
    assert set(fates) <= {("succeeded", None), ("missed", "superseded")}, fates
    assert all(
        evidence.count("second", "end")[slot] == 1 for slot in slots if told["second"][slot].status == "succeeded"
    )
    slow = told["slow"][int(due * 1_000)]
    assert (slow.status.value, slow.attempt, slow.refused) == ("succeeded", 1, 0)

    said = {process.name: changes(process) for process in (*schedulers, *workers)}
    assert all(said[process.name] for process in schedulers)
    assert any(said[process.name] for process in workers), (
        "the one that executed the long task; who is idle does not ask"
    )
    for words in (words for of_group in said.values() for words in of_group.values()):
        assert words == ["does not answer", "answers again"], said
    assert back - gone > LEASE_S, "the lease of the long task was over when the store came back"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("store", ["redis-killed"], indirect=True)
def test_a_scheduler_that_starts_after_an_outage_takes_no_live_run_over(
    cluster: Cluster, store: Store, soon: Callable[[float], tuple[str, str, float]]
) -> None:
    """It knows nothing of the outage, and the worker has not spoken yet: the run is the worker's all the same."""
    period, offset, due = soon(10)
    cluster.environment |= {
        "CLUSTER_SLOW_EVERY": period,
        "CLUSTER_SLOW_OFFSET": offset,
        "CLUSTER_SLOW_SECONDS": "12",
        "CLUSTER_LEASE": "6s",
        "CLUSTER_HEARTBEAT": "2s",
    }
    [first], [worker] = cluster.start(schedulers=1, workers=1)
    cluster.wait_for("slow", "start", timeout=40)
    first.kill()
    store.take_away()
    gone = time.time()
    poll_until(lambda: time.time() >= gone + 7, 9)
    worker.pause()
    store.bring_back()
    cluster.beat()
    working = time.time()
    poll_until(lambda: time.time() >= working + 1.5, 3)  # three times the pause between two looks for such runs
    [run] = [run for run in cluster.history("slow") if run.slot == int(due * 1_000)]
    assert (run.status.value, run.attempt) == ("running", 1)
    worker.resume()
    [line] = cluster.wait_for("slow", "end", timeout=20)
    told = poll_until(lambda: [r for r in cluster.history("slow") if r.slot == line["slot"] and r.finished_at], 10)
    assert [(run.status.value, run.attempt, run.refused) for run in told] == [("succeeded", 1, 0)]
    assert len(cluster.evidence.of("slow", "start")) == 1
