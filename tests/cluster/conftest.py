"""A cluster: schedulers, workers, a broker and a store, each a process that a test may kill."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks import Reader
from tests.cluster.evidence import Evidence
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.model import Run
    from tests.servers import ProcessOwner, RedisServer
    from tests.servers._process import OwnedProcess

ROOT = Path(__file__).parents[2]
LEASE_S = 3.0


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Starts and names the processes; reads what the tasks wrote and what the store says."""

    processes: ProcessOwner
    broker: RedisServer
    store: str
    evidence_file: Path
    environment: dict[str, str] = field(default_factory=dict)
    _count: int = 0
    _reader: Reader | None = None

    def _celery(self, name: str, *arguments: str) -> OwnedProcess:
        self._count += 1
        environment = {
            "CLUSTER_BROKER": self.broker.redis_url,
            "CLUSTER_STORE": self.store,
            "CLUSTER_EVIDENCE": str(self.evidence_file),
            "ANARCHON_INSTANCE_ID": name,
            **self.environment,
        }
        return self.processes.python(
            "-m", "celery", "-A", "tests.cluster.shop", *arguments, name=name, env=environment, cwd=ROOT
        )

    def beat(self, name: str | None = None, *, wait: bool = True) -> OwnedProcess:
        """Start a scheduler and wait until it works."""
        process = self._celery(name or f"beat-{self._count}", "beat", "-S", "anarchon", "-l", "INFO", "--pidfile=")
        if wait:
            process.wait_for_output("started ", 30)
        return process

    def worker(
        self, name: str | None = None, pool: str = "prefork", concurrency: int = 2, *, wait: bool = True
    ) -> OwnedProcess:
        """Start a worker and wait until it is ready."""
        name = name or f"worker-{self._count}"
        process = self._celery(name, "worker", "-P", pool, "-c", str(concurrency), "-l", "INFO", "-n", f"{name}@%h")
        if wait:
            process.wait_for_output("ready.", 30)
        return process

    def start(self, *, schedulers: int, workers: int) -> tuple[list[OwnedProcess], list[OwnedProcess]]:
        """Start several of both at once, and wait until all work."""
        executing = [self.worker(wait=False) for _ in range(workers)]
        asking = [self.beat(wait=False) for _ in range(schedulers)]
        for process, word in [*((p, "ready.") for p in executing), *((p, "started ") for p in asking)]:
            process.wait_for_output(word, 60)
        return asking, executing

    @property
    def evidence(self) -> Evidence:
        """What the tasks wrote until now."""
        return Evidence.read(self.evidence_file)

    def history(self, job: str, limit: int = 500) -> list[Run]:
        """Return what the store says of a job, oldest first."""
        self._reader = self._reader or Reader(self.store)
        return self._reader.history(job, limit=limit)[::-1]

    def wait_for(self, job: str, kind: str, *, count: int = 1, timeout: float = 30.0) -> list[dict[str, Any]]:
        """Wait until the tasks wrote that many lines."""
        found = poll_until(
            lambda: lines if len(lines := self.evidence.of(job, kind)) >= count else None,
            timeout,
            what=f"{count} lines {kind!r} of job {job!r}",
        )
        return found or []

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()


@pytest.fixture(params=["redis", "sqlite"])
def store_kind(request: pytest.FixtureRequest) -> str:
    """Which store the cluster uses."""
    return str(request.param)


@pytest.fixture
def cluster(
    processes: ProcessOwner, own_redis: RedisServer, tmp_path: Path, store_kind: str, redis_url: str, redis_prefix: str
) -> Iterator[Cluster]:
    """A cluster on a broker of its own; with Redis, the store is another server than the broker."""
    store = f"sqlite:///{tmp_path / 'store.db'}" if store_kind == "sqlite" else f"{redis_url}?prefix={redis_prefix}"
    made = Cluster(processes=processes, broker=own_redis, store=store, evidence_file=tmp_path / "evidence.jsonl")
    try:
        yield made
    finally:
        made.close()


def stop_all(processes: list[OwnedProcess], timeout: float = 20.0) -> None:
    """Ask processes to end, all at once, and wait for them."""
    for process in processes:
        if process.running:
            process.signal(signal.SIGTERM)
    for process in processes:
        process.wait(timeout)


@pytest.fixture
def soon() -> Callable[[float], tuple[str, str, float]]:
    """Plan one slot of the `slow` job: its period, its offset, and the instant, some seconds from now."""

    def plan(seconds: float) -> tuple[str, str, float]:
        due = int(time.time() + seconds)
        return "10m", f"{due % 600}s", float(due)

    return plan
