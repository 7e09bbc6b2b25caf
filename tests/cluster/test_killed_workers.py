"""Workers die or stop in the middle of a task: the run is taken over, and the old worker can no longer write."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.conftest import LEASE_S
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from anarchon_tasks.model import Run
    from tests.cluster.conftest import Cluster
    from tests.servers._process import OwnedProcess


def plan_slow(cluster: Cluster, soon: Callable[[float], tuple[str, str, float]], *, seconds: float) -> int:
    """Give the cluster one run of the slow job, soon; return its slot."""
    period, offset, due = soon(12)
    cluster.environment |= {
        "CLUSTER_SLOW_EVERY": period,
        "CLUSTER_SLOW_OFFSET": offset,
        "CLUSTER_SLOW_SECONDS": str(seconds),
    }
    return int(due * 1000)


def whose(line: dict[str, Any], workers: list[OwnedProcess]) -> tuple[OwnedProcess, OwnedProcess]:
    """Return the worker whose child wrote the line, and the other one."""
    first, second = workers
    return (first, second) if os.getpgid(line["pid"]) == first.pid else (second, first)


def attempts(cluster: Cluster, slot: int) -> list[Run]:
    """Return the attempts of the slow job's slot, in order."""
    return [run for run in cluster.history("slow") if run.slot == slot]


@pytest.mark.timeout(120)
def test_celery_1628_a_worker_killed_in_mid_task_is_taken_over(
    cluster: Cluster, soon: Callable[[float], tuple[str, str, float]]
) -> None:
    """Kill -9 of a whole worker: attempt 2 starts within lease + 2 s, with a higher token, and ends the run."""
    slot = plan_slow(cluster, soon, seconds=3)
    workers = [cluster.worker(concurrency=2), cluster.worker(concurrency=2)]
    cluster.beat()
    [line] = cluster.wait_for("slow", "start", timeout=30)
    victim, heir = whose(line, workers)
    victim.signal_group(signal.SIGKILL)
    killed = time.time()
    assert not cluster.evidence.of("slow", "end"), "killed in the middle"
    lines = cluster.wait_for("slow", "start", count=2, timeout=LEASE_S + 12)
    assert lines[1]["at"] - killed <= LEASE_S + 2
    assert [line["attempt"] for line in lines] == [1, 2]
    assert lines[1]["token"] > lines[0]["token"]
    cluster.wait_for("slow", "end", timeout=15)
    poll_until(lambda: attempts(cluster, slot)[-1].status.value == "succeeded", 10)
    first, second = attempts(cluster, slot)
    assert (first.status.value, first.reason) == ("interrupted", "taken_over")
    assert (second.attempt, second.status.value) == (2, "succeeded")
    assert heir.running


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_dbs_402_a_stopped_worker_that_wakes_up_cannot_finish(
    cluster: Cluster, soon: Callable[[float], tuple[str, str, float]]
) -> None:
    """SIGSTOP for two leases: the run goes to another worker, and the late finish of the first one is refused."""
    slot = plan_slow(cluster, soon, seconds=4)
    workers = [cluster.worker(concurrency=2), cluster.worker(concurrency=2)]
    cluster.beat()
    [started] = cluster.wait_for("slow", "start", timeout=30)
    sleeper, heir = whose(started, workers)
    sleeper.signal_group(signal.SIGSTOP)
    until = time.time() + 2 * LEASE_S
    try:
        cluster.wait_for("slow", "start", count=2, timeout=LEASE_S + 10)
        poll_until(lambda: time.time() >= until, 2 * LEASE_S + 1)
    finally:
        sleeper.signal_group(signal.SIGCONT)
    cluster.wait_for("slow", "end", count=2, timeout=20)  # both bodies ran to their end; only one counts
    poll_until(lambda: any(run.refused for run in attempts(cluster, slot)), 15, what="the refusal on record")
    poll_until(lambda: attempts(cluster, slot)[-1].status.value == "succeeded", 10)
    first, second = attempts(cluster, slot)
    assert (first.status.value, first.refused >= 1) == ("interrupted", True)
    assert (second.status.value, second.attempt) == ("succeeded", 2)
    assert second.pid != started["pid"]
    assert second.token > first.token
    assert heir.running
    assert sleeper.running, "the worker itself goes on"
