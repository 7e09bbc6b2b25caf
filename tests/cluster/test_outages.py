"""The broker or the store goes away and comes back: runs are late, not lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.conftest import Cluster


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_celery_8845_a_broker_away_at_the_due_moment_makes_the_run_late_not_lost(
    cluster: Cluster, soon: Callable[[float], tuple[str, str, float]]
) -> None:
    """The broker is away for 20 s around the slot: it is enqueued on its return, and the history says how late."""
    period, offset, due = soon(14)
    cluster.environment |= {
        "CLUSTER_SLOW_EVERY": period,
        "CLUSTER_SLOW_OFFSET": offset,
        "CLUSTER_SLOW_SECONDS": "0.1",
    }
    cluster.worker()
    schedulers = [cluster.beat(), cluster.beat()]
    # Between two seconds: a Celery worker that loses its broker with a message in hand ends itself.
    poll_until(lambda: time.time() >= due - 1.5, 20)
    cluster.broker.kill()
    away = time.time()
    poll_until(lambda: time.time() >= away + 20, 22)
    assert [scheduler.running for scheduler in schedulers] == [True, True]
    cluster.broker.start()
    back = time.time()
    line = cluster.wait_for("slow", "end", timeout=40)[0]
    assert line["slot"] == int(due * 1000)
    [run] = [run for run in cluster.history("slow") if run.slot == line["slot"]]
    late = (back - due) * 1000
    assert run.lateness_ms is not None
    assert late - 1_000 <= run.lateness_ms <= late + 5_000, "enqueued soon after the broker's return"
    assert cluster.evidence.count("slow", "start")[int(due * 1000)] == 1
    for scheduler in schedulers:
        said = [text for text in scheduler.output().splitlines() if "broker does not answer" in text]
        assert len(said) <= 1, "an outage is said once"
